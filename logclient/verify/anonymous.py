"""The comparison of events without an id of their own, as a multiset of hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64, U64, starts_of
from logclient.evidence.segments import Segment
from logclient.verify import schema
from logclient.verify.ledger_facts import ACKED, HANDED, NONE
from logclient.verify.overview import DUPLICATED, LOST_SENT, MISSING_SENT
from logclient.verify.plan import Plan, Task
from logclient.verify.producer_tables import Column, ProducerTables
from logclient.verify.rows import LEDGER, Row, result_row
from logclient.verify.unlisted import split_id, unknown_result


class AnonymousReducer:
    """The comparison of one share of the hashes: events without an id, with arrived bodies without an id.

    Copies of one body cannot be distinguished. As many events as copies arrived count as seen, acknowledged
    ones first. ``lost`` therefore counts only events that no assignment can explain.
    """

    def __init__(self, task: Task, key: int) -> None:
        self.task = task
        self.plan, self.packed, self.writer, self.times, *_ = task
        self.key = key
        self.ledger: list[npt.NDArray[Any]] = []
        self.arrivals = _Arrivals(task.plan)

    EVENT = np.dtype(
        [
            ("hash", np.uint64),
            ("owner", np.int32),
            ("sequence", np.int64),
            ("outcome", np.int32),
            ("created_us", np.int64),
        ]
    )

    def add(self, row: Row) -> None:
        """Add one row: of arrivals, or of ledgers' events with producer and outcome in one number."""
        hashes = row.array("hashes", np.uint64)
        positions = row.positions(len(hashes))
        if row.listener != LEDGER:
            self.arrivals.add(row.listener, hashes, positions)
            return
        events = np.empty(len(hashes), self.EVENT)
        owner = row.array("places", np.int32)
        events["hash"], events["sequence"] = hashes, positions
        events["owner"], events["outcome"] = owner >> 3, owner & 7
        events["created_us"] = row.array("times", np.int64)
        self.ledger.append(events)

    def _add_times(self, rows: npt.NDArray[Any], kind: int, n: I64 | None = None) -> None:
        """Count events over time."""
        self.times.add(self.packed.family[rows["owner"]], rows["created_us"], kind, n)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the share, and return its rows of `RESULTS`."""
        rows = np.concatenate(self.ledger) if self.ledger else np.empty(0, self.EVENT)
        rows = rows[np.lexsort((rows["sequence"], rows["owner"], -rows["outcome"], rows["hash"]))]
        begins = starts_of(rows["hash"])
        sizes = np.diff(np.append(begins, len(rows)))
        nth = np.arange(len(rows)) - np.repeat(begins, sizes)
        hashes = rows["hash"][begins]
        for segment in self.arrivals.segments(hashes):
            name = Segment(*self.plan.segments[segment][0]).name
            yield result_row("matched", self.key, text=json.dumps(name))
        arrived = self.arrivals.by_hash()
        _, matched, at = np.intersect1d(arrived["hash"], hashes, True, True)
        copies = np.zeros(len(hashes), np.int64)
        copies[at] = arrived["n"][matched]
        seen = nth < np.repeat(copies, sizes)
        sure, acked = rows["outcome"] >= HANDED, rows["outcome"] == ACKED
        owner = rows["owner"]
        newer = rows["sequence"] > self.packed.pending_after[owner]
        undecided = np.where(newer, schema.PENDING, schema.UNKNOWN)
        open_ = (rows["outcome"] == NONE) & ~self.packed.whole[owner]
        unseen = np.where(acked, schema.LOST, np.where(open_, undecided, schema.MISSING))
        state = np.where(seen, np.where(sure, schema.OK, schema.RECOVERED), unseen)
        extra = np.maximum(copies - sizes, 0)
        tables = ProducerTables(self.packed.last)
        self._add_times(rows[seen], schema.OK)
        tables.count("sums", owner, state)
        examples: dict[str, list[list[Any]]] = {}
        order = np.lexsort((rows["sequence"], owner))
        for code in (schema.LOST, schema.MISSING, schema.RECOVERED, schema.UNKNOWN, schema.PENDING):
            some = rows[order[state[order] == code]]
            if not len(some):
                continue
            p, sequences = some["owner"], some["sequence"]
            kind = {schema.LOST: LOST_SENT, schema.MISSING: MISSING_SENT}.get(code, code)
            self._add_times(some, kind)
            tables.add_places(p, sequences, kind)
            tables.add_times(p, schema.STATES[code], some["created_us"])
            if sent := {schema.LOST: Column.LOST_SENT, schema.MISSING: Column.MISSING_SENT}.get(code):
                tables.count("sums", p, int(sent))
            self.writer.add(schema.STATES[code], p, sequences, sequences, int(code == schema.RECOVERED), True)
            if code != schema.PENDING:
                examples[schema.STATES[code]] = [
                    [p_, sequence, -1, 0, 0, True, hash_, made]
                    for hash_, p_, sequence, _, made in some[_first_of_each(p, self.plan.examples)].tolist()
                ]
        # Extra copies are charged to the first event of their hash.
        more = extra > 0
        some, extra, sizes = rows[begins[more]], extra[more], sizes[more]
        order = np.lexsort((some["sequence"], some["owner"]))
        some, extra, sizes = some[order], extra[order], sizes[order]
        self._add_times(some, DUPLICATED, extra)
        tables.count("sums", some["owner"], int(Column.DUPLICATED), extra)
        tables.add_places(some["owner"], some["sequence"], DUPLICATED, extra)
        self.writer.add("duplicated", some["owner"], some["sequence"], some["sequence"], extra + sizes, True)
        yield result_row("bucket", self.key, text=json.dumps({"examples": examples}))
        yield from tables.rows(self.key)
        unknown = np.delete(arrived, matched)
        if len(unknown):
            named = ((*split_id(schema.WITHOUT_ID, row["hash"], 0), row) for row in unknown)
            yield unknown_result(self.task, self.key, schema.WITHOUT_ID, len(unknown), named)


class _Arrivals:
    """Arrivals without an id: one row for each hash and segment, with the first of them and their number."""

    ROW = np.dtype([("hash", np.uint64), ("n", np.int64), ("listener", np.int64), ("position", np.int64)])

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows = np.empty(0, self.ROW)
        self.parts: list[npt.NDArray[Any]] = []
        self.waiting = 0

    def add(self, listener: int, hashes: U64, positions: I64) -> None:
        """Add arrivals at a listener."""
        part = np.empty(len(hashes), self.ROW)
        part["hash"], part["n"], part["listener"], part["position"] = hashes, 1, listener, positions
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(1 << 20, len(self.rows)):
            self._compact()

    def _compact(self) -> None:
        rows = np.concatenate((self.rows, *self.parts))
        self.parts.clear()
        self.waiting = 0
        if len(rows):
            rows = rows[np.lexsort((rows["position"], rows["listener"], rows["hash"]))]
            self.rows = _sum_by_key(rows, rows["hash"], self._segments_of(rows))

    def _segments_of(self, rows: npt.NDArray[Any]) -> I64:
        """Return the segments of some rows, as indices of `Plan.segments`; -1: they are records."""
        found = np.full(len(rows), -1, np.int64)
        if self.plan.segments:
            listeners = rows["listener"] & schema.LISTENER
            for listener in np.unique(listeners).tolist():
                own = listeners == listener
                found[own] = self.plan.segments_of(listener, rows["position"][own])
        return found

    def segments(self, hashes: U64) -> list[int]:
        """Return the segments with any of some hashes, as indices of `Plan.segments`."""
        self._compact()
        rows = self.rows[np.isin(self.rows["hash"], hashes)]
        return [segment for segment in np.unique(self._segments_of(rows)).tolist() if segment >= 0]

    def by_hash(self) -> npt.NDArray[Any]:
        """Return one row for each hash."""
        self._compact()
        return _sum_by_key(self.rows, self.rows["hash"])


def _first_of_each(owner: npt.NDArray[np.int32], limit: int) -> I64:
    """Return the first `limit` rows of each of the first `limit` owners. The owners ascend."""
    starts = starts_of(owner)
    nth = np.arange(len(owner)) - np.repeat(starts, np.diff(np.append(starts, len(owner))))
    end = starts[limit] if len(starts) > limit else len(owner)
    return np.flatnonzero(nth[:end] < limit)


def _sum_by_key(rows: npt.NDArray[Any], *keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first row of each key with the sum of their counts. The keys are in order."""
    starts = starts_of(*keys)
    counts = np.add.reduceat(rows["n"], starts) if len(rows) else rows["n"]
    rows = rows[starts]
    rows["n"] = counts
    return rows
