"""The order of one producer's events over the buckets of a task, and over those of several tasks.

An event is *reordered* when its first copy arrived after that of a later event at the same listener. A task
judges the buckets of a producer from the last to the first, with the earliest position of all later events
at each listener. Where a producer has buckets in several tasks, each of these tells the driver the edges of
its *stretch* of them. Where edges conflict, a *second pass* judges the order of that stretch again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.rows import result_row
from logclient.verify.schema import NEVER


class Later(NamedTuple):
    """What a second pass judges again."""

    buckets: frozenset[int]
    limits: dict[int, dict[int, int]]
    """The last bucket of a stretch -> listener -> the earliest position of an event in later ones."""


class Stretches:
    """The stretches of a task. Only the first and the last of them can lack buckets of their producers.

    Buckets come from the last to the first. A listener is one of `rows.ROWS`, with its device.
    """

    def __init__(self, facts: LedgerFacts, later: Later | None) -> None:
        self.facts, self.later = facts, later
        # Of the stretch that has begun: producer, last and first bucket.
        self._p = self._high = self._low = -1
        self._limits: dict[int, int] = {}  # listener -> the earliest position of an event in these buckets
        self._lasts: dict[int, int] = {}  # listener -> the position of the last event in them
        self._later_limits: dict[int, int] = {}  # listener -> the earliest position in later stretches
        self._rows: list[dict[str, Any]] = []

    def begin(self, p: int, key: int) -> None:
        """Go on with the next bucket, which is of producer `p`."""
        if p != self._p:
            self._end()
            self._p, self._high = p, key
            self._limits, self._lasts = {}, {}
            self._later_limits = self.later.limits.get(key, {}) if self.later is not None else {}
        self._low = key

    def limit(self, listener: int) -> int:
        """Return the earliest position of all events in the later buckets of this stretch."""
        return self._limits.get(listener, NEVER)

    def later_limit(self, listener: int) -> int:
        """Return the same of all later buckets, in a second pass."""
        return min(self.limit(listener), self._later_limits.get(listener, NEVER))

    def add(self, listener: int, lowest: int, last: int) -> None:
        """Add the lowest position in the next bucket, and that of its last event, see `judge_order`."""
        if last != NEVER:
            self._limits[listener] = min(self.limit(listener), lowest)
            self._lasts.setdefault(listener, last)

    def finish(self) -> list[dict[str, Any]]:
        """Return the edges of all stretches, as rows of `rows.RESULTS`."""
        self._end()
        return self._rows

    def _end(self) -> None:
        """Keep the edges for the driver, unless the stretch has all buckets of its producer."""
        if self.later is not None or not self._limits:
            return
        first = int(self.facts.bases[self._p])
        low, high = np.searchsorted(self.facts.live, (first, first + self.facts.own_buckets(self._p)))
        own = self.facts.live[low:high].tolist()
        if own and (own[0], own[-1]) != (self._low, self._high):
            edges = np.array([(self._limits[listener], last) for listener, last in self._lasts.items()])
            keys = np.array([*self._lasts], np.int64)
            head = self._low, self._high
            self._rows.append(result_row("order", head, keys.tobytes(), edges.tobytes()))


class StretchEdges:
    """The edges of all stretches, on the driver."""

    def __init__(self, facts: LedgerFacts) -> None:
        self.facts = facts
        self._stretches: dict[int, tuple[int, Any, Any]] = {}  # by the last bucket

    def add(self, row: dict[str, Any]) -> None:
        """Add a row of `Stretches.finish`."""
        keys, edges = (np.frombuffer(row[name], np.int64) for name in ("keys", "values"))
        low, high = json.loads(row["head"])
        self._stretches[high] = low, keys, edges.reshape(-1, 2)

    def conflicts(self) -> Later | None:
        """Return what a second pass needs; None: no event arrived after one of a later stretch."""
        earliest: defaultdict[int, dict[int, int]] = defaultdict(dict)  # producer -> listener -> position
        buckets: list[int] = []
        limits: dict[int, dict[int, int]] = {}
        for high in sorted(self._stretches, reverse=True):
            low, listeners, edges = self._stretches[high]
            owner = int(np.searchsorted(self.facts.bases[:-1], high, side="right")) - 1
            later = earliest[owner]
            rows = [*zip(listeners.tolist(), *edges.T.tolist(), strict=True)]
            if any(last > later.get(listener, NEVER) for listener, _, last in rows):
                buckets += range(low, high + 1)
                limits[high] = dict(later)
            for listener, lowest, _ in rows:
                later[listener] = min(later.get(listener, NEVER), lowest)
        return Later(frozenset(buckets), limits) if buckets else None
