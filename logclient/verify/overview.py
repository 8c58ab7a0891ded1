"""Counts for the charts of the report, over time and over sequences, of bounded size.

Tasks count while they judge the events, which costs some nanoseconds per event, and the driver adds up their
counts. A second pass over all events would be too slow.

*Time* is the time at which an event was made, in at most `STEPS` steps of a round length over the whole run.
The sequences of a producer are divided into at most `PARTS` equal parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.verify.arrays import I64

__all__ = [
    "CELLS",
    "DUPLICATED",
    "LOST_SENT",
    "MISSING_SENT",
    "REORDERED",
    "Grid",
    "SequenceCounts",
    "TimeCounts",
    "Latencies",
]

STEPS = 240  # the most time steps of a run
PARTS = 200  # the most parts of a producer's sequences

# Kinds that are counted in addition to the states of `schema.STATES`, whose numbers come first. Listed events
# that are lost or missing have separate kinds, because an incomplete capture makes them unknown.
DUPLICATED, REORDERED, LOST_SENT, MISSING_SENT = 9, 10, 11, 12
KINDS = 13

CELLS = 64 << 6  # cells of the histogram of latencies, enough for 63 bits

_SECOND = 1_000_000
_STEPS = (
    *(n * unit for unit in (1_000, 10_000, 100_000) for n in (1, 2, 5)),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60 * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 * _SECOND for n in (1, 2, 3, 6, 12)),
)
_DAY = 86_400 * _SECOND


def cell(took: I64) -> I64:
    """Return cells of a logarithmic histogram: 64 per octave (1.6 %), and 0 for less than 1 µs."""
    bits = took.astype(np.float64).view(np.int64) >> 46
    cells: I64 = np.maximum(bits - (1023 << 6) + 1, 0)
    return cells


def cell_value(index: int) -> float:
    """Return the middle of a cell, in microseconds."""
    if index <= 0:
        return 0.0
    edges = (np.array([index - 1, index], np.int64) + (1023 << 6)) << 46
    low, high = edges.view(np.float64)
    return float(low + high) / 2


class Grid(NamedTuple):
    """Time steps: `n` of `width_us` microseconds from `start_us` (since 1970, a multiple of the width)."""

    start_us: int
    width_us: int
    n: int

    @classmethod
    def over(cls, first_us: int, last_us: int) -> Grid:
        """Return the finest grid over a span, without steps if the span ends before it begins."""
        if last_us < first_us:
            return cls(0, 1, 0)
        widths = iter(_STEPS)
        width = next(widths)
        while last_us // width - first_us // width >= STEPS:
            width = next(widths, width * 2 if width >= _DAY else _DAY)
        return cls(first_us // width * width, width, last_us // width - first_us // width + 1)

    def step(self, at_us: I64) -> I64:
        """Return the step of each time."""
        steps: I64 = (at_us - self.start_us) // self.width_us
        return steps


class Latencies(NamedTuple):
    """The latencies of some events."""

    first: int  # cell of the histogram
    counts: I64  # in this cell and the following ones
    longest: int
    early: int  # events that arrived before they were made, by the clocks; not in the histogram
    early_us: int  # the longest such time


class TimeCounts:
    """Counts over time, separately for each protocol, because a capture may be incomplete for only one.

    Args:
        grid: the time steps.
        families: the number of protocols.
    """

    def __init__(self, grid: Grid, families: int) -> None:
        self.grid = grid
        self.words = np.zeros((families, max(grid.n, 1), KINDS), np.int64)
        self.latency = np.zeros((families, max(grid.n, 1), CELLS), np.int64)
        self._cells = [CELLS, 0]  # range of the cells in use

    def add(self, family: int, at_us: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count events.

        Args:
            family: the number of their protocol.
            at_us: when each was made.
            kind: one kind for all, or one for each.
            n: how often each counts; once by default.
        """
        if len(at_us):
            keys = self.grid.step(at_us) * KINDS + kind
            counts = np.bincount(keys, weights=n, minlength=self.words[0].size)
            self.words[family] += counts.astype(np.int64).reshape(-1, KINDS)

    def took(self, family: int, created_us: I64, received_us: I64) -> Latencies:
        """Count the latencies of events that arrived, and the events as kind 0.

        Args:
            family: the number of their protocol.
            created_us: when each was made.
            received_us: when each arrived.
        """
        took = received_us - created_us
        longest, least = int(took.max()), int(took.min())
        early = 0
        if least < 0:
            before = took < 0
            early = int(before.sum())
            self.add(family, created_us[before], 0)
            took, created_us = took[~before], created_us[~before]
            if not len(took):
                return Latencies(0, np.empty(0, np.int64), 0, early, -least)
        cells = cell(took)
        first, last = int(cells.min()), int(cells.max())
        low = (int(created_us.min()) - self.grid.start_us) // self.grid.width_us
        high = (int(created_us.max()) - self.grid.start_us) // self.grid.width_us
        size = last - first + 1
        if low == high:
            cells -= first
            keys = cells
        else:
            # A histogram over time step and cell at once.
            keys = created_us - (self.grid.start_us + low * self.grid.width_us)
            keys //= self.grid.width_us
            keys *= size
            keys += cells
            keys -= first
        both = np.bincount(keys, minlength=(high - low + 1) * size).reshape(-1, size)
        self.latency[family, low : high + 1, first : last + 1] += both
        self.words[family, low : high + 1, 0] += both.sum(axis=1)
        self._cells = [min(self._cells[0], first), max(self._cells[1], last + 1)]
        return Latencies(first, both.sum(axis=0), longest, early, max(-least, 0))

    def rows(self) -> list[tuple[str, int, I64, I64]]:
        """Return the counts for `take`: ``words`` or ``latency``, family, keys and counts."""
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
        """Add the `rows` of another object."""
        (self.words if name == "words" else self.latency)[family].reshape(-1)[keys] += counts


class SequenceCounts:
    """Counts over the sequences of one producer.

    Args:
        last: the last sequence; the first is 1.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self.width = max(-(-last // PARTS), 1)
        self.n = -(-last // self.width)
        self.counts = np.zeros(KINDS * PARTS, np.int64)

    def add(self, sequences: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count sequences.

        Args:
            sequences: in any order.
            kind: one kind for all, or one for each.
            n: how often each counts; once by default.
        """
        if len(sequences):
            keys = (sequences - 1) // self.width + np.multiply(kind, PARTS, dtype=np.int64)
            self.counts += np.bincount(keys, weights=n, minlength=len(self.counts)).astype(np.int64)

    def add_ranges(self, ranges: I64, kind: int) -> None:
        """Count disjoint inclusive ranges under one kind."""
        if not len(ranges):
            return
        # Count the numbers below each edge: whole ranges, and a part of the range that crosses the edge.
        edges = np.arange(self.n + 1, dtype=np.int64) * self.width + 1
        sizes = np.concatenate(([0], np.cumsum(ranges[:, 1] - ranges[:, 0] + 1)))
        begun = np.searchsorted(ranges[:, 0], edges, side="left")
        before = np.maximum(begun - 1, 0)
        over = np.maximum(ranges[before, 1] + 1 - edges, 0)
        below = sizes[begun] - np.where(begun > 0, over, 0)
        self.counts[kind * PARTS : kind * PARTS + self.n] += np.diff(below)

    def row(self) -> tuple[bytes, bytes]:
        """Return the keys (int32) and the counts (int64) that are not zero, for `take`."""
        used = np.flatnonzero(self.counts)
        return used.astype(np.int32).tobytes(), self.counts[used].tobytes()

    def take(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add the `row` of each of some other objects."""
        for keys, counts in rows:
            self.counts[np.frombuffer(keys, np.int32)] += np.frombuffer(counts, np.int64)
