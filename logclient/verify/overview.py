"""What the charts of the report are drawn from: sums over time and over the sequences, of bounded size.

They are made inside the one pass over the events (tasks `add`, the driver puts the rows together), because
nobody looks at a second one: two more columns of numbers that are in the cache anyway, some nanoseconds an
event, whatever there is.

*Time* is when an event was made, cut into at most `TIMES` steps of a round length over the whole run.
*Place* is a producer's sequence, cut into at most `PLACES` equal parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CELLS", "DUPLICATED", "LOST_SENT", "MISSING_SENT", "REORDERED", "Grid", "Places", "Times", "Took"]

I64 = npt.NDArray[np.int64]

TIMES = 240  # steps of a run, at most
PLACES = 200  # parts of a producer's sequences, at most

# Words beside the states of `compare`: their numbers begin behind those. What was sent and would be lost or
# missing is told apart from what never was, because a doubtful capture makes it unknown.
DUPLICATED, REORDERED, LOST_SENT, MISSING_SENT = 9, 10, 11, 12
KINDS = 13

CELLS = 64 << 6  # of the histogram of latencies: all that 63 bits hold

_SECOND = 1_000_000
_STEPS = (
    *(n * unit for unit in (1_000, 10_000, 100_000) for n in (1, 2, 5)),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60 * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 * _SECOND for n in (1, 2, 3, 6, 12)),
)
_DAY = 86_400 * _SECOND


def cell(took: I64) -> I64:
    """The cell of a logarithmic histogram: 64 to an octave, so within 1.6 %; 0 for less than 1 µs."""
    bits = took.astype(np.float64).view(np.int64) >> 46
    cells: I64 = np.maximum(bits - (1023 << 6) + 1, 0)
    return cells


def cell_value(index: int) -> float:
    """The middle of a cell, in microseconds."""
    if index <= 0:
        return 0.0
    edges = (np.array([index - 1, index], np.int64) + (1023 << 6)) << 46
    low, high = edges.view(np.float64)
    return float(low + high) / 2


class Grid(NamedTuple):
    """Steps of time: `n` of `width_us` microseconds from `start_us` (since 1970, a multiple of the width)."""

    start_us: int
    width_us: int
    n: int

    @classmethod
    def over(cls, first_us: int, last_us: int) -> Grid:
        """The finest one over a span; none of it when it ends before it begins."""
        if last_us < first_us:
            return cls(0, 1, 0)
        widths = iter(_STEPS)
        width = next(widths)
        while last_us // width - first_us // width >= TIMES:
            width = next(widths, width * 2 if width >= _DAY else _DAY)
        return cls(first_us // width * width, width, last_us // width - first_us // width + 1)

    def step(self, at_us: I64) -> I64:
        """The steps of some times of the span."""
        steps: I64 = (at_us - self.start_us) // self.width_us
        return steps


class Took(NamedTuple):
    """Latencies of some events."""

    first: int  # cell of the histogram
    counts: I64  # in that cell and those behind it
    longest: int
    early: int  # events that arrived before they were made, by the clocks; they are in no cell
    early_us: int  # how long before, at most


class Times:
    """Sums over time, one set of them for each family (protocols that a doubt touches together)."""

    def __init__(self, grid: Grid, families: int) -> None:
        self.grid = grid
        self.words = np.zeros((families, max(grid.n, 1), KINDS), np.int64)
        self.latency = np.zeros((families, max(grid.n, 1), CELLS), np.int64)
        self._cells = [CELLS, 0]  # the part of the histogram that is used

    def add(self, family: int, at_us: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count events of these birthdays under their kinds (one each, or `n`)."""
        if len(at_us):
            keys = self.grid.step(at_us) * KINDS + kind
            counts = np.bincount(keys, weights=n, minlength=self.words[0].size)
            self.words[family] += counts.astype(np.int64).reshape(-1, KINDS)

    def took(self, family: int, created_us: I64, received_us: I64) -> Took:
        """Count latencies of events that arrived, and the events as kind 0."""
        took = received_us - created_us
        longest, least = int(took.max()), int(took.min())
        early = 0
        if least < 0:
            before = took < 0
            early = int(before.sum())
            self.add(family, created_us[before], 0)
            took, created_us = took[~before], created_us[~before]
            if not len(took):
                return Took(0, np.empty(0, np.int64), 0, early, -least)
        cells = cell(took)
        first, last = int(cells.min()), int(cells.max())
        low = (int(created_us.min()) - self.grid.start_us) // self.grid.width_us
        high = (int(created_us.max()) - self.grid.start_us) // self.grid.width_us
        size = last - first + 1
        if low == high:
            cells -= first
            keys = cells
        else:
            # One histogram of both: step times cell.
            keys = created_us - (self.grid.start_us + low * self.grid.width_us)
            keys //= self.grid.width_us
            keys *= size
            keys += cells
            keys -= first
        both = np.bincount(keys, minlength=(high - low + 1) * size).reshape(-1, size)
        self.latency[family, low : high + 1, first : last + 1] += both
        self.words[family, low : high + 1, 0] += both.sum(axis=1)
        self._cells = [min(self._cells[0], first), max(self._cells[1], last + 1)]
        return Took(first, both.sum(axis=0), longest, early, max(-least, 0))

    def rows(self) -> list[tuple[str, int, I64, I64]]:
        """(``words`` or ``latency``, family, places, counts), for `Sums`."""
        out = []
        low, high = self._cells
        for family in range(len(self.words)):
            for name, table, first in (
                ("words", self.words[family], 0),
                ("latency", self.latency[family, :, low:high], low),
            ):
                step, column = np.nonzero(table)
                if len(step):
                    keys = step * self.words.shape[2] + column if name == "words" else step * CELLS + column
                    out.append((name, family, keys + first, table[step, column]))
        return out

    def take(self, name: str, family: int, keys: I64, counts: I64) -> None:
        """Add what another one's `rows` gave."""
        (self.words if name == "words" else self.latency)[family].reshape(-1)[keys] += counts


class Places:
    """Sums over the sequences 1..last of one producer."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.width = max(-(-last // PLACES), 1)
        self.n = -(-last // self.width)
        self.counts = np.zeros(KINDS * PLACES, np.int64)

    def add(self, sequences: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count sequences under their kinds (one each, or `n`)."""
        if len(sequences):
            keys = (sequences - 1) // self.width + np.multiply(kind, PLACES, dtype=np.int64)
            self.counts += np.bincount(keys, weights=n, minlength=len(self.counts)).astype(np.int64)

    def add_ranges(self, ranges: I64, kind: int) -> None:
        """Count disjoint inclusive ranges under a kind."""
        if not len(ranges):
            return
        # How many lie below each edge: whole ranges, and the begun one's part.
        edges = np.arange(self.n + 1, dtype=np.int64) * self.width + 1
        sizes = np.concatenate(([0], np.cumsum(ranges[:, 1] - ranges[:, 0] + 1)))
        begun = np.searchsorted(ranges[:, 0], edges, side="left")
        before = np.maximum(begun - 1, 0)
        over = np.maximum(ranges[before, 1] + 1 - edges, 0)
        below = sizes[begun] - np.where(begun > 0, over, 0)
        self.counts[kind * PLACES : kind * PLACES + self.n] += np.diff(below)

    def row(self) -> tuple[bytes, bytes]:
        """What `take` takes: where it is not zero (int32), and the counts (int64)."""
        used = np.flatnonzero(self.counts)
        return used.astype(np.int32).tobytes(), self.counts[used].tobytes()

    def take(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for keys, counts in rows:
            self.counts[np.frombuffer(keys, np.int32)] += np.frombuffer(counts, np.int64)
