"""The producers that a verdict names: which they are, and what it says about each."""

from __future__ import annotations

from typing import Any

import numpy as np

from logclient.evidence.arrays import I64
from logclient.verify.producer_tables import WORDS

__all__ = ["Details", "Ranking"]

LATEST = 1 << 62  # later than any time


class Details:
    """The data about one named producer, in addition to its sums."""

    def __init__(self) -> None:
        self.latency: list[tuple[I64, I64]] = []
        self.longest_us = 0
        self.when: dict[str, list[int]] = {}
        self.listeners: dict[int, Any] = {}
        self.sequence_counts: list[tuple[bytes, bytes]] = []

    def add(self, table: str, codes: I64, values: I64) -> None:
        """Add numbers of the producer, see `ProducerTables`."""
        if table == "longest":
            self.longest_us = max(self.longest_us, int(values.max()))
        elif table == "places":
            self.sequence_counts.append((codes.astype(np.int32).tobytes(), values.tobytes()))
        elif table == "latency":
            self.latency.append((codes, values))
        elif table == "listeners":
            for code, n in zip(codes.tolist(), values.tolist(), strict=True):
                self.listeners[code] = self.listeners.get(code, 0) + n
        elif table == "made":
            for code, value in zip(codes.tolist(), values.tolist(), strict=True):
                first, last = self.when.setdefault(WORDS[code // 2], [LATEST, -LATEST])
                either = [first, max(last, value)] if code % 2 else [min(first, -value), last]
                self.when[WORDS[code // 2]] = either


class Ranking:
    """The first few of many rows, by the lowest keys."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = np.empty((0, 0), np.int64)

    def add(self, *columns: I64) -> None:
        """Add rows. The last column has the values, the columns before it are the keys."""
        added = np.stack(columns, axis=1)
        rows = np.concatenate((self.rows, added)) if len(self.rows) else added
        self.rows = rows[np.lexsort(rows.T[::-1])[: self.limit]]

    def found(self) -> list[int]:
        """Return the values, those of the lowest keys first."""
        last: list[int] = self.rows[:, -1].tolist() if len(self.rows) else []
        return last
