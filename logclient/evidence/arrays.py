"""NumPy array types, and sets of integers as inclusive ranges: arrays of rows ``first, last``.

Most functions need *sorted and disjoint* ranges, which `union` makes of any.
"""

from __future__ import annotations

from typing import Any

from logclient._ext.arrivals import paint
from logclient.evidence.libraries import np, npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]


class Workspace:
    """Arrays that are used again and again. The system needs as long to provide new memory as to fill it."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, n: int, dtype: Any) -> npt.NDArray[Any]:
        """Return an array with any content. The one taken before under this name is then invalid."""
        found = self._arrays.get(name)
        if found is None or len(found) < n:
            found = self._arrays[name] = np.empty(n, dtype)
        return found[:n]

    def filled(self, name: str, n: int, dtype: Any, value: Any) -> npt.NDArray[Any]:
        found = self.take(name, n, dtype)
        found.fill(value)
        return found


def keyed(rows: I64, base: int = 0) -> I64:
    """Return rows of producer, first and last as ranges, with the producer above 48 bits of the sequence.

    Ranges of many producers are then one sorted table. `base` is the producer that counts as 0.
    """
    ranges: I64 = rows[:, 1:3] + ((rows[:, :1] - base) << 48)
    return ranges


def expand(ranges: I64) -> I64:
    """Return all numbers of some ranges, one range after the other."""
    sizes = ranges[:, 1] - ranges[:, 0] + 1
    starts = np.cumsum(sizes) - sizes
    numbers: I64 = np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(ranges[:, 0] - starts, sizes)
    return numbers


def union(ranges: I64) -> I64:
    """Return ranges sorted and disjoint, with neighbours joined."""
    if len(ranges) < 2:
        return ranges.reshape(-1, 2)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    starts = np.concatenate(([True], ranges[1:, 0] > reach[:-1] + 1))
    return np.stack((ranges[starts, 0], reach[np.append(starts[1:], True)]), axis=1)


def subtract(a: I64, b: I64) -> I64:
    """Return the numbers of `a` that are not in `b`. Both must be sorted and disjoint."""
    if not len(a) or not len(b):
        return a
    span = np.iinfo(np.int64)
    gaps = np.concatenate(([span.min], (b + np.array([-1, 1])).reshape(-1), [span.max]))  # around `b`
    return intersect(a, gaps.reshape(-1, 2))


def overlaps(a: I64, b: I64) -> tuple[I64, I64]:
    """Return the parts of any ranges that are in `b`: the indices of their ranges in `a`, and the parts."""
    if not len(a) or not len(b):
        return np.empty(0, np.int64), np.empty((0, 2), np.int64)
    first = np.searchsorted(b[:, 1], a[:, 0], side="left")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="right")
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(a)), counts)
    other = np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    out = np.stack((np.maximum(a[which, 0], b[other, 0]), np.minimum(a[which, 1], b[other, 1])), axis=1)
    inside = out[:, 0] <= out[:, 1]
    return which[inside], out[inside]


def intersect(a: I64, b: I64) -> I64:
    """Return the numbers that are in both. Both must be sorted and disjoint."""
    return overlaps(a, b)[1]


def repeated(ranges: I64) -> I64:
    """Return the numbers that are in more than one of some ranges, sorted and disjoint."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    last = np.minimum(ranges[1:, 1], np.maximum.accumulate(ranges[:, 1])[:-1])
    return union(np.stack((ranges[1:, 0], last), axis=1)[ranges[1:, 0] <= last])


def total_length(ranges: I64) -> int:
    """Count the numbers in some disjoint ranges."""
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum()) if len(ranges) else 0


def true_runs(where: npt.NDArray[np.bool_]) -> I64:
    """Return the indices of the runs of True as ranges."""
    edges = np.flatnonzero(np.diff(where, prepend=False, append=False))
    return np.stack((edges[::2], edges[1::2] - 1), axis=1)


def covered(ranges: I64, n: int) -> npt.NDArray[np.bool_]:
    """Mark which of the numbers from 0 to ``n - 1`` are in some ranges of them. The ranges may overlap."""
    found = np.zeros(n, np.bool_)
    paint(ranges, np.ones(len(ranges), np.uint8), found.view(np.uint8))
    return found


def starts_of(*columns: npt.NDArray[Any]) -> I64:
    """Return the index of the first of each run of rows that are equal in some columns."""
    new = np.arange(len(columns[0])) == 0
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def sum_by_key(keys: I64, n: I64 | None = None) -> tuple[I64, I64]:
    """Return the distinct keys in order, and for each the sum of `n`, or how often it occurs."""
    if not len(keys):
        return keys, keys
    low = int(keys.min())
    if int(keys.max()) - low < max(4 * len(keys), 1 << 12):
        sums = np.bincount(keys - low, weights=n).astype(np.int64)
        used = np.flatnonzero(sums)
        return used + low, sums[used]
    found, which = np.unique(keys, return_inverse=True)
    return found, np.bincount(which, weights=n).astype(np.int64)
