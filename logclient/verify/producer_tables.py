"""Numbers of many producers, as tasks send them to the driver: pairs of a key and a value.

The key holds the producer and what is counted, so a row of `rows.RESULTS` has the numbers of all producers
of a bucket, and a producer costs some bytes for each number that is not zero.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64, overlaps, starts_of, sum_by_key
from logclient.verify.overview import CELLS, KINDS, PARTS, part_width
from logclient.verify.rows import result_row
from logclient.verify.schema import STATES


class Column(enum.IntEnum):
    """Columns of `Tally.sums`, behind one for each of `STATES`."""

    UNEXPECTED_BEYOND = len(STATES)  # distinct ids beyond the last sequence
    UNKNOWN_BEYOND = enum.auto()
    PENDING_BEYOND = enum.auto()
    MISSING_SENT = enum.auto()  # missing events that are listed: unknown where the capture is incomplete
    DUPLICATED = enum.auto()
    REORDERED = enum.auto()
    EARLY = enum.auto()  # events that arrived before they were sent, by the clocks
    EARLY_US = enum.auto()  # the longest such time; not a sum
    GAPS = enum.auto()


WORDS = (*STATES, "reordered")
"""Words of the times in table ``made``: the first and the last creation of the events of each."""

SCALES = {
    "sums": len(STATES) + len(Column),  # columns of `Tally.sums`
    "places": KINDS * PARTS,  # kinds of faults in parts of the sequences
    "latency": CELLS,  # cells of the histogram
    "longest": 1,  # the longest latency
    "listeners": 1 << 16,  # listed events that each listener got
    "made": 2 * len(WORDS),  # for each word the first time, negative, and the last
}
"""The tables, and the number of keys that each producer has in them."""


class ProducerTables:
    """The numbers of some producers, to be sent to the driver. `last` has the last sequence of all."""

    def __init__(self, last: I64) -> None:
        self._last = last
        self._parts: dict[str, list[tuple[I64, I64]]] = {}

    def add(self, table: str, p: I64, code: npt.NDArray[Any] | int, values: I64) -> None:
        """Add a number for each producer to a table of `SCALES`. Zeros are left out.

        What is counted is a code below the table's scale: one for all, or one for each.
        """
        used = np.flatnonzero(values)
        if not len(used):
            return
        keys = p.astype(np.int64) * SCALES[table] + code
        self._parts.setdefault(table, []).append((keys[used], values[used].astype(np.int64)))

    def count(self, table: str, p: I64, code: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count events of producers in a table of `SCALES`, each once or `n` times."""
        if not len(p):
            return
        # Count in the range of these producers and codes alone, which is small enough for an array.
        first, low = int(p.min()), int(np.min(code))
        width = int(np.max(code)) - low + 1
        keys, sums = sum_by_key((p.astype(np.int64) - first) * width + (np.asarray(code) - low), n)
        owners, codes = np.divmod(keys, width)
        self._parts.setdefault(table, []).append(((owners + first) * SCALES[table] + codes + low, sums))

    def add_places(self, p: I64, sequences: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count faults over the sequences of their producers."""
        part = (sequences - 1) // part_width(self._last[p])
        self.count("places", p, np.multiply(kind, PARTS, dtype=np.int64) + part, n)

    def add_ranges(self, p: int, ranges: I64, kind: int) -> None:
        """Count faults as disjoint ranges of sequences of one producer."""
        if len(ranges):
            last = int(self._last[p])
            width = part_width(last)
            first = np.arange(1, last + 1, width)
            part, pieces = overlaps(np.column_stack((first, first + width - 1)), ranges)
            sizes = pieces[:, 1] - pieces[:, 0] + 1
            self.count("places", np.full(len(part), p), kind * PARTS + part, sizes)

    def add_times(self, p: I64, word: str, created_us: I64) -> None:
        """Note when the events of a word of `WORDS` were made. The producers ascend."""
        if len(p):
            starts = starts_of(p)
            owner = p[starts].astype(np.int64) * SCALES["made"] + 2 * WORDS.index(word)
            first, last = np.minimum.reduceat(created_us, starts), np.maximum.reduceat(created_us, starts)
            keys, values = np.concatenate((owner, owner + 1)), np.concatenate((-first, last))
            self._parts.setdefault("made", []).append((keys, values))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return the tables as rows of `rows.RESULTS`. A key may be in a row more than once."""
        for table, parts in self._parts.items():
            keys, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            yield result_row(table, keys=keys.tobytes(), values=values.tobytes())
