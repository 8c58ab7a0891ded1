"""The ledger files in a folder, and other files that look like ledgers.

The format of a ledger is in ``docs/formats.md``.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from logclient.errors import LedgerError
from logclient.verify.arrays import U64

__all__ = ["Part", "Parts", "find_new_producers", "find_parts", "find_unread", "prefix_words"]

_MAX_OPEN_LINE = 1 << 20  # bytes of an `open` line that are read
_NAME = re.compile(r"([0-9a-f]{20})-(\d{4}|[1-9]\d{4,17})\.ledger", re.ASCII)
_MAX_UNREAD = 1000  # the most unread files that are named


class Part(NamedTuple):
    """One file of a producer's ledger."""

    producer: str  # 20 hex digits
    number: int  # from 1
    path: str
    size: int  # when the file was found; lines written later are not read


_FILE = np.dtype([("producer", "u1", 10), ("number", "<i8"), ("size", "<i8")])


class Parts(Sequence[Part]):
    """The ledger files of a folder, by producer and part, in a few bytes each: there may be very many."""

    def __init__(self, directory: str, rows: npt.NDArray[Any]) -> None:
        self.directory = directory
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
            return [self[at] for at in range(*i.indices(len(self)))]
        producer, number, size = self.rows[i]
        name = f"{producer.tobytes().hex()}-{number:04d}.ledger"
        return Part(name[:20], int(number), os.path.join(self.directory, name), int(size))

    @property
    def sizes(self) -> list[int]:
        """The size of each file, in bytes."""
        sizes: list[int] = self.rows["size"].tolist()
        return sizes

    def plus(self, other: Parts) -> Parts:
        """Return the files of both, which must be of one folder."""
        return Parts(self.directory, np.concatenate((self.rows, other.rows)))

    def save(self, path: str) -> None:
        """Write the list to a file."""
        np.save(path, self.rows)

    @classmethod
    def load(cls, directory: str, path: str, some: slice) -> Parts:
        """Read a list that `save` wrote.

        Args:
            directory: the folder of the ledger files.
            path: the file of the list.
            some: the entries to read.
        """
        return cls(directory, np.array(np.load(path, mmap_mode="r")[some]))


def prefix_words(prefixes: npt.NDArray[Any]) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Return producers, ten bytes each, as two numbers that sort in the same order."""
    whole = np.ascontiguousarray(prefixes)
    high = whole[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
    return high, whole[:, 8:].copy().view(">u2").reshape(-1).astype(np.uint16)


def find_parts(directory: str) -> Parts:
    """Find the ledger files in a folder.

    Raises:
        LedgerError: there is no such folder, or no ledger in it.
    """
    producers, numbers, sizes = bytearray(), array("q"), array("q")
    try:
        # Read all names before the first size. A part with a successor is complete, so this order cannot
        # miss lines between two parts.
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    producers += bytes.fromhex(match[1])
                    numbers.append(int(match[2]))
        for i, number in enumerate(numbers):
            name = f"{producers[10 * i : 10 * i + 10].hex()}-{number:04d}.ledger"
            sizes.append(os.stat(os.path.join(directory, name)).st_size)
    except OSError as error:
        raise LedgerError(f"ledger: {directory}: {error.strerror}") from error
    if not numbers:
        others = find_unread(directory)
        more = f"; {others[0]} is not read" if others else ""
        raise LedgerError(
            f"ledger: {directory} has no ledger: their names are <producer>-<part>.ledger{more}"
        )
    rows = np.zeros(len(numbers), _FILE)
    rows["producer"] = np.frombuffer(producers, np.uint8).reshape(-1, 10)
    rows["number"], rows["size"] = numbers, sizes
    return Parts(os.path.abspath(directory), rows)


def find_new_producers(directory: str, before: Parts) -> Parts:
    """Find the ledgers of producers that have begun since `before` was made.

    Only the ``open`` line of each is read: their events must not be taken for those of an unknown producer,
    and nothing else is known about them.

    Args:
        directory: the folder of the ledgers.
        before: the ledger files that were found first.
    """
    now = find_parts(directory)
    rows = np.concatenate((before.rows, now.rows))
    high, low = prefix_words(rows["producer"])
    order = np.lexsort((low, high))  # stable: parts of `before` come first
    first = np.ones(len(rows), bool)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    fresh = order[first & (order >= len(before))] - len(before)
    found = Parts(now.directory, now.rows[fresh])
    for i, part in enumerate(found):
        with open(part.path, "rb") as file:
            line = file.readline(_MAX_OPEN_LINE)
        found.rows["size"][i] = len(line) if line.endswith(b"\n") else 0
    return found


def find_unread(directory: str) -> list[str]:
    """Find files that look like a ledger and that `find_parts` does not read.

    Args:
        directory: a folder; its subfolders are searched too.

    Returns:
        Relative paths, at most 1,000.
    """
    found: list[str] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted([*names, *(x for x in folders if os.path.islink(os.path.join(folder, x)))]):
            if ".ledger" not in name.lower():
                continue
            path = os.path.join(folder, name)
            plain = os.path.isfile(path) and not os.path.islink(path)
            if folder != directory or not plain or not _NAME.fullmatch(name):
                found.append(os.path.relpath(path, directory))
                if len(found) == _MAX_UNREAD:
                    return found
    return found
