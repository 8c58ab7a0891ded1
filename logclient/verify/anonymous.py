"""The comparison of events without an id of their own, as a multiset of hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64, expand, starts_of
from logclient.verify import rules, schema
from logclient.verify.outside import contained
from logclient.verify.overview import DUPLICATED, MISSING_SENT
from logclient.verify.plan import Task
from logclient.verify.producer_tables import Column, ProducerTables
from logclient.verify.rows import LEDGER, Row, result_row
from logclient.verify.unlisted import FirstArrivals, sum_rows, unknown_result

EVENT = np.dtype(
    [("hash", "u8"), ("owner", "i4"), ("sequence", "i8"), ("outcome", "i4"), ("created_us", "i8")]
)


class AnonymousReducer:
    """The comparison of one share of the hashes: events without an id, with arrived bodies without an id.

    Copies of one body cannot be distinguished. As many events as copies arrived count as seen, acknowledged
    ones first. ``lost`` therefore counts only events that no assignment can explain.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.plan, self.facts, self.writer, self.times, *_ = task
        self.ledger = [np.empty(0, EVENT)]
        self.arrivals = FirstArrivals(("a", np.uint64), split=self._segments_of)

    def add(self, row: Row) -> None:
        """Add one row: of arrivals, or of ledgers' events with producer and outcome in one number."""
        hashes = row.array("hashes", np.uint64)
        if row.listener != LEDGER:
            self.arrivals.add(row, hashes)
            return
        events = np.empty(len(hashes), EVENT)
        owner = row.array("places", np.int32)
        events["hash"], events["sequence"] = hashes, row.positions(len(hashes))
        events["owner"], events["outcome"] = owner >> 3, owner & 7
        events["created_us"] = row.array("times", np.int64)
        self.ledger.append(events)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the share, and return its rows of `RESULTS`."""
        rows = np.concatenate(self.ledger)
        rows = rows[np.lexsort((rows["sequence"], rows["owner"], -rows["outcome"], rows["hash"]))]
        begins = starts_of(rows["hash"])
        sizes = np.diff(np.append(begins, len(rows)))
        nth = np.arange(len(rows)) - np.repeat(begins, sizes)
        hashes = rows["hash"][begins]
        found = self.arrivals.merge()
        for segment in np.unique(self._segments_of(found[np.isin(found["a"], hashes)])).tolist():
            if segment >= 0:
                yield result_row("matched", self.plan.segments[segment][0].name)
        arrived = sum_rows(found, found["a"])
        _, matched, at = np.intersect1d(arrived["a"], hashes, True, True)
        copies = np.zeros(len(hashes), np.int64)
        copies[at] = arrived["n"][matched]
        seen = nth < np.repeat(copies, sizes)
        owner = rows["owner"]
        marks = rows["outcome"] | rules.LISTED | seen * rules.SEEN
        marks |= ~self.facts.whole[owner] * rules.NOT_WHOLE
        marks |= (rows["sequence"] > self.facts.pending_after[owner]) * rules.NEW
        if self.facts.ends:
            settled = contained(self.facts.tables["settled"], owner, rows["sequence"])
            marks |= ~settled * rules.UNSETTLED
        state = rules.RULES[marks] & rules.STATE
        extra = np.maximum(copies - sizes, 0)
        tables = ProducerTables(self.facts.last)

        def count(events: npt.NDArray[Any], kind: int, n: I64 | None = None) -> None:
            self.times.add(self.facts.family[events["owner"]], events["created_us"], kind, n)
            if kind != schema.OK:
                tables.add_places(events["owner"], events["sequence"], kind, n)

        count(rows[seen], schema.OK)
        tables.count("sums", owner, state)
        examples: dict[str, list[list[Any]]] = {}
        order = np.lexsort((rows["sequence"], owner))
        for code in (schema.LOST, schema.MISSING, schema.RECOVERED, schema.UNKNOWN, schema.PENDING):
            some = rows[order[state[order] == code]]
            if not len(some):
                continue
            p, sequences, word = some["owner"], some["sequence"], schema.STATES[code]
            count(some, MISSING_SENT if code == schema.MISSING else code)
            tables.add_times(p, word, some["created_us"])
            if code == schema.MISSING:
                tables.count("sums", p, int(Column.MISSING_SENT))
            self.writer.add(word, p, sequences, sequences, int(code == schema.RECOVERED), True)
            if code != schema.PENDING:
                starts = starts_of(p)
                ends = np.minimum(np.append(starts[1:], len(p)), starts + self.plan.examples)
                first = expand(np.column_stack((starts, ends - 1))[: self.plan.examples])
                examples[word] = [
                    [self.facts.name(p_), s, None, -1, 0, 0, True, hash_, made]
                    for hash_, p_, s, _, made in some[first].tolist()
                ]
        # Extra copies are charged to the first event of their hash.
        more = np.flatnonzero(extra)
        some = rows[begins[more]]
        order = np.lexsort((some["sequence"], some["owner"]))
        some, extra, sizes = some[order], extra[more[order]], sizes[more[order]]
        count(some, DUPLICATED, extra)
        tables.count("sums", some["owner"], int(Column.DUPLICATED), extra)
        self.writer.add("duplicated", some["owner"], some["sequence"], some["sequence"], extra + sizes, True)
        yield result_row("bucket", {"examples": examples})
        yield from tables.rows()
        unknown = np.delete(arrived, matched)
        if len(unknown):
            overdue = np.zeros(len(unknown), bool)  # their time of arrival is not known here
            yield unknown_result(self.task, schema.WITHOUT_ID, unknown, overdue)

    def _segments_of(self, rows: npt.NDArray[Any]) -> I64:
        """Return the segments of some arrivals, as indices of `Plan.segments`; -1: they are records."""
        found = np.full(len(rows), -1, np.int64)
        if self.plan.segments:
            listeners = rows["listener"] >> schema.DEVICE_BITS
            for listener in np.unique(listeners).tolist():
                own = listeners == listener
                found[own] = self.plan.segments_of(listener, rows["position"][own])
        return found
