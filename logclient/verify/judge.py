"""Step 3 of a comparison: all rows of a bucket, of ledgers and arrivals, to the words of its events.

``docs/verify-spark.md`` explains the whole comparison, and ``order.py`` the order across buckets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pyarrow as pa

from logclient.evidence.arrays import Workspace
from logclient.verify.anonymous import AnonymousReducer
from logclient.verify.buckets import BucketReducer
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.order import Later, Stretches
from logclient.verify.overview import TimeCounts
from logclient.verify.plan import Plan, Task
from logclient.verify.rows import RESULTS, Batches, Row, Rows, result_row
from logclient.verify.schema import ANONYMOUS, FACT
from logclient.verify.unlisted import UnlistedReducer
from logclient.verify.violation_files import FILE_ROWS, ViolationWriter

BATCH_BYTES = 1 << 20  # of keys in a batch of results


def judge_rows(batches: Batches, facts: LedgerFacts, plan: Plan, later: Later | None = None) -> Rows:
    """Judge the rows of some keys, sorted by falling key, by listener and position, as batches of `RESULTS`.

    In a second pass only the order is judged.
    """
    writer = ViolationWriter(plan.violations, facts)
    times = TimeCounts(plan.grid, plan.families)
    task = Task(plan, facts, writer, times, Workspace(), later, Stretches(facts, later))
    out: list[dict[str, Any]] = []
    size = 0
    for result in _results(batches, task):
        out.append(result)
        size += len(result["keys"])
        if len(out) >= 256 or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(out, schema=RESULTS)
            out, size = [], 0
    yield pa.RecordBatch.from_pylist(out, schema=RESULTS)


def _rows(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        keys, listeners = (batch.column(name).to_pylist() for name in ("key", "listener"))
        yield from map(Row, itertools.repeat(batch), itertools.count(), keys, listeners)


def _results(batches: Batches, task: Task) -> Iterator[dict[str, Any]]:
    for key, rows in itertools.groupby(_rows(batches), attrgetter("key")):
        if key == FACT:
            yield from (result_row("fact", row.report()) for row in rows)
            continue
        reducer: BucketReducer | UnlistedReducer | AnonymousReducer
        if key >= 0:
            reducer = BucketReducer(task, key)
        else:
            reducer = UnlistedReducer(task) if key > ANONYMOUS else AnonymousReducer(task)
        for row in rows:
            reducer.add(row)
        yield from reducer.finish()
        if file := task.writer.take(FILE_ROWS):
            yield result_row("file", values=file)
    yield from task.stretches.finish()
    for name, keys, counts in task.times.rows():
        yield result_row("times", name, keys=keys.tobytes(), values=counts.tobytes())
    if file := task.writer.take():
        yield result_row("file", values=file)
