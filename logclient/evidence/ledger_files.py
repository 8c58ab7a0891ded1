"""The ledger files below some folders, and other files that look like ledgers.

The format of a ledger is in ``docs/formats.md``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from logclient.errors import LedgerError
from logclient.evidence import storage
from logclient.evidence.arrays import U64

__all__ = ["Ledgers", "Part", "Parts", "find_ledgers", "find_new_producers", "prefix_words"]

_MAX_OPEN_LINE = 1 << 20  # bytes of an `open` line that are read
_NAME = re.compile(r"([0-9a-f]{20})-(\d{4}|[1-9]\d{4,17})\.ledger", re.ASCII)
_MAX_NAMED = 1000  # the most files of a kind that are named
_COMPARED = 1 << 20  # bytes of two files that are compared at a time
_AT_ONCE = 1 << 10  # the files of a list that are in memory as `Part` at a time


class Part(NamedTuple):
    """One file of a producer's ledger."""

    producer: str  # 20 hex digits
    number: int  # from 1
    path: str
    size: int  # when the file was found; lines written later are not read


_FILE = np.dtype([("producer", "u1", 10), ("number", "<i8"), ("size", "<i8"), ("folder", "<i4")])


class Parts(Sequence[Part]):
    """Ledger files by producer and part, in a few bytes each: there may be very many.

    Args:
        folders: the places of the folders that have ledger files.
        rows: of `_FILE`.
    """

    def __init__(self, folders: list[str], rows: npt.NDArray[Any]) -> None:
        self.folders = folders
        high, low = prefix_words(rows["producer"])
        self.rows = rows[np.lexsort((rows["number"], low, high))]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> list[Part]: ...
    def __getitem__(self, i: int | slice) -> Part | list[Part]:
        if isinstance(i, slice):
            return self._parts(self.rows[i])
        return self._parts(self.rows[i : i + 1 or None])[0]

    def __iter__(self) -> Iterator[Part]:
        for low in range(0, len(self), _AT_ONCE):
            yield from self[low : low + _AT_ONCE]

    def _parts(self, rows: npt.NDArray[Any]) -> list[Part]:
        """Return the files of some rows."""
        producers = np.ascontiguousarray(rows["producer"]).tobytes().hex()
        found = []
        heads = ["" if storage.is_url(folder) else storage.join(folder, "") for folder in self.folders]
        # By column: a row at a time takes as long as opening the file.
        columns = (rows[name].tolist() for name in ("number", "size", "folder"))
        for at, (number, size, folder) in enumerate(zip(*columns, strict=True)):
            producer = producers[20 * at : 20 * at + 20]
            name = f"{producer}-{number:04d}.ledger"
            head = heads[folder]
            path = head + name if head else storage.join(self.folders[folder], name)
            found.append(Part(producer, number, path, size))
        return found

    @property
    def sizes(self) -> list[int]:
        """The size of each file, in bytes."""
        sizes: list[int] = self.rows["size"].tolist()
        return sizes

    def plus(self, other: Parts) -> Parts:
        """Return the files of both."""
        more = other.rows.copy()
        more["folder"] += len(self.folders)
        return Parts([*self.folders, *other.folders], np.concatenate((self.rows, more)))


class Ledgers(NamedTuple):
    """The files below some folders that are, or look like, ledgers."""

    parts: Parts
    unread: list[str]  # files and folders that may be ledgers and are not read, at most 1,000
    copies: list[str]  # copies of ledger files, as problems; likewise

    def plus(self, parts: Parts) -> Ledgers:
        """Return these with more ledger files."""
        return self._replace(parts=self.parts.plus(parts))


def prefix_words(prefixes: npt.NDArray[Any]) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Return producers, ten bytes each, as two numbers that sort in the same order."""
    whole = np.ascontiguousarray(prefixes)
    high = whole[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
    return high, whole[:, 8:].copy().view(">u2").reshape(-1).astype(np.uint16)


def find_ledgers(places: str | Sequence[str]) -> Ledgers:
    """Find the ledger files below some folders, each file once.

    Args:
        places: of the folders.

    Raises:
        LedgerError: a folder cannot be read, or there is no ledger in any.
    """
    parts, unread = _list_parts([places] if isinstance(places, str) else places)
    _ask_sizes(parts)
    parts, copies, differing = _without_copies(parts)
    return Ledgers(parts, [*unread, *differing][:_MAX_NAMED], copies)


def _list_parts(places: Sequence[str]) -> tuple[Parts, list[str]]:
    """Find the ledger files below some folders by their names.

    Returns:
        The files, copies included; and files and folders that may be ledgers, or have some. A size is -1
        where a listing has none.
    """
    folders: list[str] = []
    producers, numbers, sizes, owners = bytearray(), array("q"), array("q"), array("i")
    unread: set[str] = set()
    empty: list[str] = []
    seen: set[str] = set()
    for place in places:
        has_any = False
        for relative, entries in storage.list_folders(place, "ledger"):
            if named := storage.folder_named(relative, _looks_like_one):
                _add(unread, f"{_shown(place, '', named, len(places) > 1)} (a folder)")
                continue
            folder = storage.join(place, *relative.split("/")) if relative else place
            has_any = has_any or any(entry.regular and _NAME.fullmatch(entry.name) for entry in entries)
            if folder in seen:
                continue  # it is below two of the folders that were given
            seen.add(folder)
            owner = len(folders)
            for entry in entries:
                match = _NAME.fullmatch(entry.name) if entry.regular else None
                if match:
                    producers += bytes.fromhex(match[1])
                    numbers.append(int(match[2]))
                    sizes.append(entry.size)
                    owners.append(owner)
                elif entry.folder:
                    name = _shown(place, relative, entry.name, len(places) > 1)
                    _add(unread, f"{name} (a link to a folder)")
                elif _looks_like_one(entry.name):
                    _add(unread, _shown(place, relative, entry.name, len(places) > 1))
            if owners and owners[-1] == owner:
                folders.append(folder)
        if not has_any:
            empty.append(place)
    if not numbers:
        where = ", ".join(places)
        more = f"; {min(unread)} is not read" if unread else ""
        raise LedgerError(f"ledger: {where} has no ledger: their names are <producer>-<part>.ledger{more}")
    rows = np.zeros(len(numbers), _FILE)
    rows["producer"] = np.frombuffer(producers, np.uint8).reshape(-1, 10)
    rows["number"], rows["size"], rows["folder"] = numbers, sizes, owners
    for place in empty:
        _add(unread, f"{place} (a folder without any ledger)")
    return Parts(folders, rows), sorted(unread)


def _looks_like_one(name: str) -> bool:
    return ".ledger" in name.lower()


def _add(unread: set[str], name: str) -> None:
    if len(unread) < _MAX_NAMED:
        unread.add(name)


def _shown(place: str, relative: str, name: str, whole: bool) -> str:
    """Return the name of a file in messages: in its folder, or whole where there are several folders."""
    if whole:
        return storage.join(place, *relative.split("/"), name) if relative else storage.join(place, name)
    return f"{relative}/{name}" if relative else name


def _ask_sizes(parts: Parts) -> None:
    """Find the sizes that a listing does not tell.

    All names are known before the first size is asked for. A part with a successor is complete, so this order
    cannot miss lines between two parts. A listing of objects has sizes, and takes a while: there the sizes of
    parts with a successor are asked for again.
    """
    rows = parts.rows
    same = (rows["producer"][1:] == rows["producer"][:-1]).all(axis=1)
    again = rows["size"] < 0
    again[:-1] |= same
    unknown = Parts(parts.folders, rows[again])
    sizes = []
    for part in unknown:
        try:
            sizes.append(storage.size_of(part.path, "ledger"))
        except OSError as error:
            raise LedgerError(f"ledger: {part.path}: {error.strerror or error}") from error
    rows["size"][again] = sizes


def _without_copies(parts: Parts) -> tuple[Parts, list[str], list[str]]:
    """Leave out the files that another folder has too.

    Returns:
        The others; problems with copies; and files that differ from the one of the same name that is read.
    """
    rows = parts.rows
    same = (rows["producer"][1:] == rows["producer"][:-1]).all(axis=1)
    same &= rows["number"][1:] == rows["number"][:-1]
    if not same.any():
        return parts, [], []
    keep = np.ones(len(rows), bool)
    copies: list[str] = []
    differing: list[str] = []
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        if high - low == 1:
            continue
        # The longest file has the most lines of a ledger that is still being written, or copied.
        longest = max(range(low, high), key=lambda i: (int(rows["size"][i]), -i))
        for i in range(low, high):
            if i == longest:
                continue
            keep[i] = False
            mine, other = parts[i], parts[longest]
            if _is_beginning(mine, other):
                copies.append(f"{mine.path}: copy: it is a copy of {other.path}")
            else:
                differing.append(f"{mine.path} (which differs from {other.path})")
    return Parts(parts.folders, rows[keep]), copies[:_MAX_NAMED], differing[:_MAX_NAMED]


def _is_beginning(part: Part, other: Part) -> bool:
    """Return whether a file has the same bytes as the beginning of a longer one."""
    try:
        with (
            storage.open_file(part.path, "ledger") as one,
            storage.open_file(other.path, "ledger") as two,
        ):
            left = part.size
            while left > 0:
                n = min(left, _COMPARED)
                mine, theirs = storage.read_exactly(one, n), storage.read_exactly(two, n)
                if mine != theirs or len(mine) < n:
                    return False
                left -= n
    except LedgerError:
        raise
    except OSError as error:
        raise LedgerError(f"ledger: {part.path}: {error.strerror or error}") from error
    return True


def find_new_producers(places: Sequence[str], before: Parts) -> Parts:
    """Find the ledgers of producers that have begun since `before` was made.

    Only the ``open`` line of each is read: their events must not be taken for those of an unknown producer,
    and nothing else is known about them.

    Args:
        places: the folders of the ledgers.
        before: the ledger files that were found first.
    """
    now, _ = _list_parts(places)
    rows = np.concatenate((before.rows, now.rows))
    high, low = prefix_words(rows["producer"])
    order = np.lexsort((low, high))  # stable: parts of `before` come first
    first = np.ones(len(rows), bool)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    fresh = order[first & (order >= len(before))] - len(before)
    found = Parts(now.folders, now.rows[fresh])
    for i, part in enumerate(found):
        line = storage.read_at(part.path, "ledger", 0, _MAX_OPEN_LINE)
        line = line[: line.find(b"\n") + 1]
        found.rows["size"][i] = len(line)
    return found
