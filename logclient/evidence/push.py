"""Copies of evidence: ledgers and closed segments of a machine, in a folder behind a URL.

Producers and collectors write local files. `push` copies what they have finished, again and again while they
write. It keeps three rules, so that a reader of the copies never concludes more than the files say:

- A segment is copied when it has an end record, under its own name. A half copy has another size, no end
  record, and is copied again.
- A ledger is copied up to its last whole line, and again when it has grown.
- The state of the ledgers is no newer than that of the captures, because an event that a copied ledger has as
  acknowledged must not lack its copied segment. So the sizes of ledgers are taken first, then captures are
  copied, then ledgers up to these sizes. Before the captures, each new producer gets at least its first line,
  because its events must not be those of an unknown producer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import storage

__all__ = ["Pushed", "push"]

_COPY_BYTES = 4 << 20
_ENDS = ("closed", "rotated", "recovered", "resumed")
_CLOSE = b'{"t":"close"'


class Pushed(NamedTuple):
    """The result of a push. Names are relative to the folder."""

    copied: list[str]
    unchanged: int  # files that were there already
    open: list[str]  # segments without an end, which wait, and ledgers without a ``close`` line
    failed: list[str]  # files that are not copied, with the reason


class _File(NamedTuple):
    name: str
    path: str
    size: int


def push(
    folder: storage.Folder, url: storage.Folder, tell: Callable[[str], None] | None = None
) -> Pushed:
    """Copy the ledgers and the closed segments below a folder.

    Args:
        folder: a local folder.
        url: the URL, or the folder, that gets the copies, with the same names in the same subfolders.
        tell: called with the name of each file that was copied.

    Raises:
        LedgerError: the folder cannot be read, or the copies cannot be written.
        ConfigError: the folder is a URL, or the URL is none.
    """
    source = storage.resolve(folder, "evidence")
    target = storage.resolve(url, "evidence")
    if storage.is_url(source):
        raise ConfigError("evidence: the folder must be a path, and its copies a URL")
    if not storage.is_url(target):
        raise ConfigError("evidence: the copies need a URL such as s3://bucket/run")
    there = _sizes_of(target)
    done = Pushed([], 0, [], [])
    pusher = _Pusher(target, there, done, tell)
    ledgers = {file.name: (file, _whole_lines(file)) for file in _find(source, ".ledger")}
    segments = _find(source, ".cap")
    closed = [file for file in segments if _is_closed(file)]
    ready = {file.name for file in closed}
    for file in _find(source, ".ledger"):
        if file.name not in ledgers and file.name not in there:
            pusher.put(file, _first_line(file))
    for file in closed:
        pusher.put(file, file.size)
    for file, size in ledgers.values():
        pusher.put(file, size)
    unfinished = [file.name for file, size in ledgers.values() if not _has_close(file, size)]
    return pusher.done._replace(open=[x.name for x in segments if x.name not in ready] + unfinished)


class _Pusher:
    def __init__(
        self, target: str, there: dict[str, int], done: Pushed, tell: Callable[[str], None] | None
    ) -> None:
        self.target = target
        self.there = there
        self.done = done
        self.tell = tell

    def put(self, file: _File, size: int) -> None:
        """Copy the beginning of a file unless it is there."""
        copied = self.there.get(file.name)
        if copied == size or not size:
            self.done = self.done._replace(unchanged=self.done.unchanged + (copied == size))
            return
        if copied is not None and copied > size and file.name.endswith(".ledger"):
            self.done.failed.append(f"{file.name}: the copy has {copied:,} bytes, the ledger only {size:,}")
            return
        place = storage.join(self.target, *file.name.split("/"))
        left = size
        try:
            with storage.open_file(file.path, "evidence") as source:
                # A small file is read before the object is begun.
                data = storage.read_exactly(source, min(left, _COPY_BYTES))
                with storage.create(place, "evidence") as sink:
                    while data:
                        sink.write(data)
                        left -= len(data)
                        data = storage.read_exactly(source, min(left, _COPY_BYTES))
                    if left:
                        raise EOFError
        except LedgerError:
            raise
        except EOFError:
            self.done.failed.append(f"{file.name}: it became shorter while it was copied")
            return
        except OSError as error:
            self.done.failed.append(f"{file.name}: {error.strerror or error}")
            return
        self.there[file.name] = size
        self.done.copied.append(file.name)
        if self.tell is not None:
            self.tell(file.name)


def _find(folder: str, suffix: str) -> list[_File]:
    """Find the regular files with a suffix, by name: so a part or a segment comes before its successor."""
    found = []
    for relative, entries in storage.list_folders(folder, "evidence"):
        for entry in entries:
            if entry.regular and entry.name.endswith(suffix):
                name = f"{relative}/{entry.name}" if relative else entry.name
                found.append((name, storage.join(folder, name)))
    sizes = []
    for name, path in sorted(found):
        try:
            sizes.append(_File(name, path, storage.size_of(path, "evidence")))
        except OSError as error:
            raise LedgerError(f"evidence: {path}: {error.strerror or error}") from error
    return sizes


def _sizes_of(target: str) -> dict[str, int]:
    """Return the sizes of the objects that are there, by relative name."""
    storage.check_reachable(target, "evidence")
    there: dict[str, int] = {}
    for relative, entries in storage.list_folders(target, "evidence", missing=True):
        for entry in entries:
            there[f"{relative}/{entry.name}" if relative else entry.name] = entry.size
    return there


def _whole_lines(file: _File) -> int:
    """Return how many bytes of a ledger are whole lines."""
    end = file.size
    while end:
        begin = max(end - _COPY_BYTES, 0)
        data = storage.read_at(file.path, "evidence", begin, end - begin)
        at = data.rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _first_line(file: _File) -> int:
    """Return the size of a ledger's first line; 0: it is not complete."""
    return storage.read_at(file.path, "evidence", 0, _COPY_BYTES).find(b"\n") + 1


def _has_close(file: _File, size: int) -> bool:
    """Return whether the last line of a ledger is a ``close`` line."""
    begin = max(size - _COPY_BYTES, 0)
    data = storage.read_at(file.path, "evidence", begin, size - begin)
    return data.rstrip(b"\n").rpartition(b"\n")[2].startswith(_CLOSE)


def _is_closed(file: _File) -> bool:
    """Return whether a segment ends with an end record, see ``docs/formats.md``."""
    for reason in _ENDS:
        length = 9 + len(reason)
        if file.size < length + 8:
            continue
        record = storage.read_at(file.path, "evidence", file.size - length - 8, length + 8)
        payload = record[8:]
        if (
            int.from_bytes(record[:4], "little") == length
            and payload[:1] == b"\x04"
            and payload[9:] == reason.encode()
            and int.from_bytes(record[4:8], "little") == zlib.crc32(payload)
        ):
            return True
    return False
