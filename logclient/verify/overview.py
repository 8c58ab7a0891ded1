"""Counts for the charts of the report: over the times at which events were made, and over sequences."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I32, I64

STEPS = 240  # the most time steps of a run, each of a round length
PARTS = 200  # the most parts of a producer's sequences

# Kinds that are counted in addition to the states of `schema.STATES`, whose numbers come first. Listed events
# that are missing have a separate kind, because an incomplete capture makes them unknown; all lost ones are.
DUPLICATED, REORDERED, MISSING_SENT = 9, 10, 11
KINDS = 12

# Cells of the histogram of latencies: 64 per octave (1.6 %), and cell 0 for less than 1 µs.
CELLS = 64 << 6  # enough for 63 bits

_SECOND = 1_000_000
_STEPS = (
    *(n * unit for unit in (1_000, 10_000, 100_000) for n in (1, 2, 5)),
    *(n * unit for unit in (_SECOND, 60 * _SECOND) for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3600 * _SECOND for n in (1, 2, 3, 6, 12)),
)
_DAY = 86_400 * _SECOND


@functools.cache
def cell_value(index: int) -> float:
    """Return the middle of a cell of the histogram of latencies, in microseconds."""
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
        widths = itertools.chain(_STEPS, (_DAY << i for i in itertools.count()))
        width = next(x for x in widths if last_us // x - first_us // x < STEPS)
        return cls(first_us // width * width, width, last_us // width - first_us // width + 1)

    def step(self, at_us: I64) -> I64:
        """Return the step of each time."""
        steps: I64 = (at_us - self.start_us) // self.width_us
        return steps


class TimeCounts:
    """Counts over time, separately for each protocol, because a capture may be incomplete for only one."""

    def __init__(self, grid: Grid, families: int) -> None:
        self.grid = grid
        self.words = np.zeros((families, max(grid.n, 1), KINDS), np.int64)
        self.latency = np.zeros((families, max(grid.n, 1), CELLS), np.int64)

    def add(self, families: I32, at_us: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count events of some protocols by the times at which they were made, each once or `n` times."""
        if len(at_us):
            keys = (families.astype(np.int64) * self.words.shape[1] + self.grid.step(at_us)) * KINDS + kind
            counts = np.bincount(keys, n, self.words.size)
            self.words += counts.astype(np.int64).reshape(self.words.shape)

    def rows(self) -> Iterator[tuple[str, I64, I64]]:
        """Yield the counts for `take`: ``words`` or ``latency``, keys and counts."""
        for name, table in (("words", self.words), ("latency", self.latency)):
            keys = np.flatnonzero(table)
            yield name, keys, table.reshape(-1)[keys]

    def take(self, name: str, keys: I64, counts: I64) -> None:
        """Add the `rows` of another object."""
        (self.words if name == "words" else self.latency).reshape(-1)[keys] += counts


def part_width(last: Any) -> Any:
    """Return how many of the sequences 1 to `last` are in one of at most `PARTS` parts."""
    return np.maximum(-(-last // PARTS), 1)
