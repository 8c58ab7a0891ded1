"""Copies of evidence: closed segments, and ledgers up to a whole line, in a folder behind a URL.

A reader of the copies must never conclude more than the files say. An event that a copied ledger has as
acknowledged must not lack its segment: the sizes of ledgers are taken first, then captures are copied, then
ledgers up to these sizes. Events must not be those of an unknown producer: each new one gets its first line
before the captures, or they wait. A half copy of a segment has another size and no end record, and is copied
again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from logclient._ext.capture import END, walk
from logclient.errors import ConfigError
from logclient.evidence import storage

_COPY_BYTES = 4 << 20
_HEAD_BYTES = 1 << 16
_LAST_LINES = tuple(b'{"t":"%b"' % kind for kind in (b"close", b"ended", b"continued", b"stopped"))
_ENDS = (b"closed", b"rotated", b"recovered", b"resumed")


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

    def read(self, begin: int, end: int) -> bytes:
        return storage.read_at(self.path, "evidence", begin, end - begin)


def push(folder: storage.Folder, url: storage.Folder) -> Pushed:
    """Copy the ledgers and the closed segments below a folder, under the same names."""
    source = storage.resolve(folder, "evidence")
    target = storage.resolve(url, "evidence")
    if storage.is_url(source):
        raise ConfigError("evidence: the folder must be a path, and its copies a URL")
    if not storage.is_url(target):
        raise ConfigError("evidence: the copies need a URL such as s3://bucket/run")
    there = {file.name: file.size for file in _find(target, "")}
    copied: list[str] = []
    failed: dict[str, str] = {}
    unchanged = 0

    def put(file: _File, size: int) -> None:
        """Copy the beginning of a file unless it is there."""
        nonlocal unchanged
        before = there.get(file.name)
        if before == size or not size:
            unchanged += before == size
        elif before is not None and before > size and file.name.endswith(".ledger"):
            failed[file.name] = f"the copy has {before:,} bytes, the ledger only {size:,}"
        elif why := _copy(file, size, target):
            failed[file.name] = why
        else:
            there[file.name] = size
            copied.append(file.name)

    def look(find: Callable[[_File], int], files: Iterable[_File]) -> dict[_File, int]:
        """Return what is found in each file; one that cannot be read has failed."""
        found = {}
        for file in files:
            try:
                found[file] = find(file)
            except OSError as error:
                failed[file.name] = error.strerror or str(error)
        return found

    note_ends(source)
    listed = _find(source, ".ledger")
    ledgers = look(_whole_lines, listed)
    known = {file.name for file in listed} | set(there)
    segments = look(_is_closed, _find(source, ".cap"))
    begun = look(_first_line, (file for file in _find(source, ".ledger") if file.name not in known))
    for file, size in begun.items():
        put(file, size)
    # Without its ledger a producer would be unknown, and its events unexpected: the captures wait for it.
    complete = all(name in there for name in failed if name.endswith(".ledger"))
    closed = {file: file.size for file, ended in segments.items() if ended and complete}
    for file, size in (closed | ledgers).items():
        put(file, size)
    waiting = [file.name for file in segments if file not in closed]
    ended = look(lambda file: _has_close(file, ledgers[file]), ledgers)
    waiting += [file.name for file in ledgers if not ended.get(file, True)]
    return Pushed(copied, unchanged, waiting, [f"{name}: {why}" for name, why in failed.items()])


def note_ends(folder: str, host: str = "") -> None:
    """Append an ``ended`` line to the ledgers without an end whose process has ended: their lock is free.

    With `host` only to those of its processes that are gone: a copy of a ledger has no lock. Clients of
    before this lock say nothing about it in their first line, and may live.
    """
    last_parts = {file.path.rpartition("-")[0]: file.path for file in _find(folder, ".ledger")}
    for path in last_parts.values():
        _note_end(path, host)


def _note_end(path: str, host: str) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(fd).st_size
            data = os.pread(fd, _COPY_BYTES, max(size - _COPY_BYTES, 0))
            # A torn line stays what it is, and is ignored.
            head = os.pread(fd, _HEAD_BYTES, 0).partition(b"\n")[0]
            noted = b'"locked":true' in head and (not host or _is_gone(head, host))
            if noted and data.endswith(b"\n") and not _last_line(data).startswith(_LAST_LINES):
                line = json.dumps({"t": "ended", "at_us": time.time_ns() // 1000}, separators=(",", ":"))
                os.write(fd, line.encode() + b"\n")
        finally:
            os.close(fd)


def _is_gone(head: bytes, host: str) -> bool:
    """Return whether the process of a ledger's first line was one of this host, and is no more."""
    try:
        about = json.loads(head)
        if about["host"] != host or type(about["pid"]) is not int or about["pid"] <= 0:
            return False
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError, OverflowError):
        pass
    return False


def _copy(file: _File, size: int, target: str) -> str:
    """Copy the first bytes of a file, and return why that failed; empty: it did not."""
    pieces = _pieces(file, size)
    try:
        first = next(pieces)  # a small file is read before the object is begun
        with storage.create(storage.join(target, *file.name.split("/")), "evidence") as sink:
            sink.write(first)
            for data in pieces:
                sink.write(data)
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    except EOFError as error:
        return str(error)
    return ""


def _pieces(file: _File, size: int) -> Iterator[bytes]:
    """Read the first bytes of a file. An EOFError says why that is impossible."""
    try:
        with storage.open_file(file.path, "evidence") as source:
            for begin in range(0, size, _COPY_BYTES):
                n = min(size - begin, _COPY_BYTES)
                data = storage.read_exactly(source, n)
                if len(data) < n:
                    raise EOFError("it became shorter while it was copied")
                yield data
    except OSError as error:
        raise EOFError(error.strerror or str(error)) from error


def _find(folder: str, suffix: str) -> list[_File]:
    """Find the regular files with a suffix, each part or segment before its successor."""
    found = []
    for relative, entries in storage.list_folders(folder, "evidence", missing=True):
        for entry in entries:
            if entry.regular and entry.name.endswith(suffix):
                name = f"{relative}/{entry.name}" if relative else entry.name
                found.append(_File(name, storage.join(folder, *name.split("/")), entry.size))
    return sorted(found, key=lambda file: (file.name.rpartition("-")[0], len(file.name), file.name))


def _whole_lines(file: _File) -> int:
    end = file.size
    while end:
        begin = max(end - _COPY_BYTES, 0)
        at = file.read(begin, end).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _first_line(file: _File) -> int:
    return file.read(0, _COPY_BYTES).find(b"\n") + 1


def _has_close(file: _File, size: int) -> bool:
    return _last_line(file.read(max(size - _COPY_BYTES, 0), size)).startswith(b'{"t":"close"')


def _last_line(data: bytes) -> bytes:
    return data.rstrip(b"\n").rpartition(b"\n")[2]


def _is_closed(file: _File) -> bool:
    """Return whether a segment ends with an end record, see ``docs/formats.md``."""
    tail = file.read(max(file.size - 64, 0), file.size)
    for reason in _ENDS:
        length = 9 + len(reason)  # with the type and the next arrival
        if tail.endswith(reason) and walk(tail[-8 - length :]).others == [(END, 0, length)]:
            return True
    return False
