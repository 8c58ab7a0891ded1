"""Counts for the charts of the report, over time and over sequences, of bounded size.

Tasks count while they judge the events, which costs some nanoseconds per event, and the driver adds up their
counts. A second pass over all events would be too slow.

*Time* is the time at which an event was made, in at most `STEPS` steps of a round length over the whole run.
The sequences of a producer are divided into at most `PARTS` equal parts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient._ext.arrivals import count_latencies
from logclient.evidence.arrays import I32, I64, U8

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


@functools.cache
def cell_value(index: int) -> float:
    """Return the middle of a cell of the histogram of latencies, in microseconds.

    The histogram is logarithmic: 64 cells per octave (1.6 %), and cell 0 for less than 1 µs.
    """
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
    """The latencies of the events of some producers."""

    # A histogram: each row once.
    owner: I32  # index of the producer
    cell: I32
    n: I64
    # Of each producer:
    longest: I64
    early: I64  # events that arrived before they were made, by the clocks; not in the histogram
    early_us: I64  # the longest such time


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

    def count_latencies(
        self, families: I32, starts: I64, created_us: I64, received_us: I64, judgements: U8
    ) -> Latencies:
        """Count the latencies of events that arrived, and the events as kind 0.

        Args:
            families: the number of the protocol of each producer.
            starts: where the events of each producer begin.
            created_us: when each event was made.
            received_us: when each arrived; `NEVER`: not known, so it has no latency.
            judgements: of each event, see ``rules.py``; `rules.TIMED` counts.
        """
        m, n = len(starts), len(created_us)
        extremes = np.zeros((m, 3), np.int64)
        owner, cells, counts = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int64)
        used = count_latencies(
            created_us, received_us, judgements, starts, families, self.grid.start_us, self.grid.width_us,
            self.words, self.latency, extremes, owner, cells, counts,
        )  # fmt: skip
        if used:
            first, last = int(cells[:used].min()), int(cells[:used].max())
            self._cells = [min(self._cells[0], first), max(self._cells[1], last + 1)]
        return Latencies(owner[:used], cells[:used], counts[:used], *np.ascontiguousarray(extremes.T))

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
