"""Step 3 of a comparison: all rows of a bucket, of ledgers and arrivals, to the words of its events.

Three functions over Arrow batches make a comparison, whoever runs them (``runners.py``):

1. ``ledger_rows.event_rows`` reads ledger files, ``(files) -> rows of buckets``.
2. ``arrival_rows.segment_rows`` reads segments, ``(files) -> rows of buckets``; for a topic or table
   ``records.record_rows`` does the same.
3. `judge_rows`, ``(all rows of some buckets) -> what was judged``: counts, examples and order, as rows.

A *bucket* is up to ``2 ** bits`` sequences, consecutive ones of a large producer or all of some small ones
(``ledger_buckets.py``). The rows of both readers are shuffled by bucket. So the cost does not depend on the
order of arrival, on skew or on the number of faults, and a task holds one bucket in memory.

An event is *reordered* when its first copy arrived after the first copy of a later event at the same
listener. Inside a bucket this is a minimum taken from the end. Across buckets, each bucket reports per
listener the earliest and the latest first copy, and its latest arrivals that are in order so far (at most
``tail`` of them). The driver (``tally.py``) compares these with the earliest arrivals of later buckets. If a
whole tail turns out to be late, there may be more: such buckets go through a *second pass* with the minimum
of the later buckets known.

Arrivals without a place in a bucket have keys of their own. Unlisted ids (``unlisted.py``) are spread by
hash, because there may be any number of them. Events without an id (``anonymous.py``) are compared as a
multiset of hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from logclient.evidence.arrays import Workspace
from logclient.verify.anonymous import AnonymousReducer
from logclient.verify.buckets import BucketReducer
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.overview import Grid, TimeCounts
from logclient.verify.plan import Plan, Task
from logclient.verify.rows import RESULTS, Row, result_row
from logclient.verify.schema import ANONYMOUS, FACT
from logclient.verify.unlisted import UnlistedReducer
from logclient.verify.violation_files import FILE_ROWS, ViolationWriter

BATCH_BYTES = 1 << 20  # of keys in a batch of results


def judge_rows(
    batches: Iterable[pa.RecordBatch],
    facts: LedgerFacts,
    plan: Plan,
    later: dict[tuple[int, int], int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Judge the rows of some keys, sorted by key, listener and position, as batches of `RESULTS`.

    For a second pass over some buckets `later` maps bucket and listener to the earliest first copy in all
    later buckets. Then only the order is judged.
    """
    writer = ViolationWriter(plan.violations, facts)
    times = TimeCounts(Grid(*plan.grid), plan.families)
    shared = Task(plan, facts, writer, times, Workspace(), later)
    current: BucketReducer | UnlistedReducer | AnonymousReducer | None = None
    key: int | None = None
    out: list[dict[str, Any]] = []
    for batch in batches:
        keys, listeners = (batch.column(name).to_pylist() for name in ("key", "listener"))
        for i, (own, listener) in enumerate(zip(keys, listeners, strict=True)):
            row = Row(batch, i, own, listener)
            if own != key:
                if current is not None:
                    out.extend(current.finish())
                key = own
                if key == FACT:
                    current = None
                elif key >= 0:
                    current = BucketReducer(shared, key)
                elif key > ANONYMOUS:
                    current = UnlistedReducer(shared, key)
                else:
                    current = AnonymousReducer(shared, key)
            if current is None:
                out.append(result_row("fact", FACT, text=row.text()))
            else:
                current.add(row)
        if file := writer.take(FILE_ROWS):
            out.append(result_row("file", FACT, values=file))
        if len(out) >= 256 or sum(len(row["keys"]) for row in out) >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(out, schema=RESULTS)
            out = []
    if current is not None:
        out.extend(current.finish())
    for name, keys_, counts in times.rows():
        out.append(result_row("times", FACT, text=name, keys=keys_.tobytes(), values=counts.tobytes()))
    if file := writer.take():
        out.append(result_row("file", FACT, values=file))
    yield pa.RecordBatch.from_pylist(out, schema=RESULTS)
