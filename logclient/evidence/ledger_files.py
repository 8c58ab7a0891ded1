"""The ledger files below some folders, and other files that look like ledgers; see ``docs/formats.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from logclient.evidence import storage
from logclient.evidence.arrays import U64, starts_of, true_runs
from logclient.evidence.libraries import np, npt

_MAX_OPEN_LINE = 1 << 20  # bytes of an `open` line that are read
_NAME = re.compile(r"([0-9a-f]{20})-(\d{4}|[1-9]\d{4,17})\.ledger", re.ASCII)
_MAX_NAMED = 1000  # the most files of a kind that are named
_AT_ONCE = 1 << 10  # the files of a list that are in memory as `Part` at a time


class Part(NamedTuple):
    """One file of a producer's ledger."""

    producer: str  # 20 hex digits
    number: int  # from 1
    path: str
    size: int  # when the file was found; lines written later are not read


_FILE = np.dtype([("producer", "u1", 10), ("number", "<i8"), ("size", "<i8"), ("folder", "<i4")])


class Parts(Sequence[Part]):
    """Ledger files by producer and part, in a few bytes each: there may be very many."""

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
        if not isinstance(i, slice):
            return self[i : i + 1 or None][0]
        rows = self.rows[i]
        names = np.ascontiguousarray(rows["producer"]).tobytes().hex()
        heads = ["" if storage.is_url(folder) else storage.join(folder, "") for folder in self.folders]
        found = []
        # By column: a row at a time takes as long as opening the file.
        columns = (rows[name].tolist() for name in ("number", "size", "folder"))
        for at, (number, size, folder) in enumerate(zip(*columns, strict=True)):
            producer = names[20 * at : 20 * at + 20]
            name = f"{producer}-{number:04d}.ledger"
            path = heads[folder] + name if heads[folder] else storage.join(self.folders[folder], name)
            found.append(Part(producer, number, path, size))
        return found

    def __iter__(self) -> Iterator[Part]:
        for low in range(0, len(self), _AT_ONCE):
            yield from self[low : low + _AT_ONCE]

    def same_producer(self) -> npt.NDArray[np.bool_]:
        """Return for each file but the last whether the next one is of the same producer."""
        producers = self.rows["producer"]
        same: npt.NDArray[np.bool_] = (producers[1:] == producers[:-1]).all(axis=1)
        return same

    @property
    def sizes(self) -> list[int]:
        sizes: list[int] = self.rows["size"].tolist()
        return sizes


class Ledgers(NamedTuple):
    """The files below some folders that are, or look like, ledgers."""

    parts: Parts
    unread: list[str]  # files and folders that may be ledgers and are not read, at most 1,000
    copies: list[str]  # copies of ledger files, as problems; likewise
    twice: frozenset[str] = frozenset()  # producers with two files of one part that differ

    def plus(self, parts: Parts) -> Ledgers:
        more = parts.rows.copy()
        more["folder"] += len(self.parts.folders)
        rows = np.concatenate((self.parts.rows, more))
        return self._replace(parts=Parts([*self.parts.folders, *parts.folders], rows))


def prefix_words(prefixes: npt.NDArray[Any]) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Return producers, ten bytes each, as two numbers that sort in the same order."""
    whole = np.ascontiguousarray(prefixes)
    high = whole[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
    return high, whole[:, 8:].copy().view(">u2").reshape(-1).astype(np.uint16)


def find_ledgers(places: Sequence[str]) -> Ledgers:
    """Find the ledger files below some folders, each file once."""
    parts, unread = _list_parts(places)
    _ask_sizes_again(parts)
    parts, copies, differing, twice = _without_copies(parts)
    return Ledgers(parts, [*unread, *differing][:_MAX_NAMED], copies, frozenset(twice))


def _list_parts(places: Sequence[str]) -> tuple[Parts, list[str]]:
    """Find the ledger files below some folders, copies included; and what else may be or have ledgers."""
    found, others = storage.find_files(
        places,
        "ledger",
        ("ledger", "<producer>-<part>.ledger"),
        fits=_NAME.fullmatch,
        alike=lambda name: ".ledger" in name.lower(),
    )
    unread = [f"{name} ({what})" for name, what in others.items()]

    def fields() -> Iterator[tuple[bytes, int, int, int]]:
        for owner, entries in enumerate(found.values()):
            for name, entry in entries.items():
                if entry.regular and (match := _NAME.fullmatch(entry.name)):
                    yield bytes.fromhex(match[1]), int(match[2]), entry.size, owner
                else:
                    unread.append(name)

    rows = np.fromiter(fields(), [("producer", "V10"), *_FILE.descr[1:]]).view(_FILE)
    return Parts([*found], rows), sorted(unread)


def _ask_sizes_again(parts: Parts) -> None:
    # An object with a successor is complete, but a listing that takes a while may have an older size of it:
    # lines would be missing between two parts.
    again = np.append(parts.same_producer(), False)
    again &= np.array([storage.is_url(folder) for folder in parts.folders])[parts.rows["folder"]]
    some = Parts(parts.folders, parts.rows[again])
    sizes = storage.for_each(lambda part: storage.size_of(part.path, "ledger"), some, remote=True)
    parts.rows["size"][again] = list(sizes)


def _without_copies(parts: Parts) -> tuple[Parts, list[str], list[str], set[str]]:
    """Return the files less those that another folder has too: copies, as problems, and those that differ.

    The last result is of the producers of these.
    """
    rows = parts.rows
    same = parts.same_producer() & (rows["number"][1:] == rows["number"][:-1])
    keep = np.ones(len(rows), bool)
    copies: list[str] = []
    differing: list[str] = []
    twice: set[str] = set()
    for first, last in true_runs(same).tolist():
        # The longest file has the most lines of a ledger that is still being written, or copied.
        longest = first + int(rows["size"][first : last + 2].argmax())
        for i in (*range(first, longest), *range(longest + 1, last + 2)):
            keep[i] = False
            mine, other = parts[i], parts[longest]
            if storage.begin_equally(mine.path, other.path, "ledger", mine.size):
                copies.append(f"{mine.path}: copy: it is a copy of {other.path}")
            else:
                why = "two processes with one id wrote them, or one is damaged"
                twice.add(mine.producer)
                differing.append(f"{mine.path} (which differs from {other.path}: {why})")
    return Parts(parts.folders, rows[keep]), copies[:_MAX_NAMED], differing[:_MAX_NAMED], twice


def find_new_producers(places: Sequence[str], before: Parts) -> Parts:
    """Find the ledgers of producers that have begun since `before` was made.

    Only the ``open`` line of each is read: their events must not be taken for those of an unknown producer,
    and nothing else is known about them.
    """
    now, _ = _list_parts(places)
    rows = np.concatenate((before.rows, now.rows))
    high, low = prefix_words(rows["producer"])
    order = np.lexsort((low, high))  # stable: parts of `before` come first
    first = order[starts_of(high[order], low[order])]
    found = Parts(now.folders, now.rows[first[first >= len(before)] - len(before)])
    for i, part in enumerate(found):
        try:
            line = storage.read_at(part.path, "ledger", 0, _MAX_OPEN_LINE)
        except OSError as error:
            raise storage.failure(error, part.path, "ledger") from error
        found.rows["size"][i] = line.find(b"\n") + 1
    return found
