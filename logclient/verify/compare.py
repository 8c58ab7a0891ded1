"""The exact comparison of all events in the ledgers with all arrivals, order included.

There are two stages with one shuffle between them:

- A *map* task (``gather.py``) reads a few segments, decodes them and writes the arrivals to a file in the
  work folder, one *stretch* per bucket. A bucket is up to ``2 ** bits`` sequences, consecutive ones of a
  large producer or all of some small ones (``ledger_buckets.py``). The bytes of a capture never pass through
  the JVM: only a short row per stretch is shuffled, with the place of the stretch.
- A *reduce* task (this module) gets the rows of a bucket in the order of arrival, reads the stretches and
  the bucket's part of the ledger from the files, and decides the word of each event (``buckets.py``).

The cost does not depend on the order of arrival, on skew (a large producer is many buckets, and many small
ones are one) or on the number of faults. A task holds one bucket in memory.

An event is *reordered* when its first copy arrived after the first copy of a later event at the same
listener. Inside a bucket this is a minimum taken from the end. Across buckets, each reduce task reports per
listener the earliest and the latest first copy, and leaves the latest arrivals that are in order so far in
the work folder (at most ``tail`` of them). The driver (``tally.py``) reads these tails only where the latest
arrival of a bucket is behind the earliest of a later one. If a whole tail turns out to be late, there may be
more: such buckets go through a *second pass* with the minimum of the later buckets known.

Arrivals without a place in a bucket have rows of their own. Unlisted ids (``unlisted.py``) are spread by
hash, because there may be any number of them. Events without an id (``anonymous.py``) are compared as a
multiset of hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from logclient.evidence.arrays import Workspace
from logclient.verify.anonymous import AnonymousReducer
from logclient.verify.buckets import BucketReducer
from logclient.verify.overview import Grid, TimeCounts
from logclient.verify.packed_ledger import PackedLedger
from logclient.verify.plan import Plan
from logclient.verify.schema import ANONYMOUS, FACT
from logclient.verify.unlisted import UnlistedReducer
from logclient.verify.violation_files import ViolationWriter
from logclient.verify.work_files import StretchReader, TailWriter, result_batch, result_row, write_results

__all__ = ["reduce_task", "reduce_to_file"]

BATCH_BYTES = 1 << 20  # of keys in a batch of results, which the driver reads at a time


def reduce_task(
    batches: Iterable[pa.RecordBatch], work: str, later: dict[tuple[int, int], int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Judge the rows of one partition, which are sorted by key, listener and position.

    Args:
        batches: of `schema.ARRIVALS`.
        work: the work folder.
        later: for a second pass over some buckets: bucket and listener -> the earliest first copy in all
            later buckets. Then only the order is judged.

    Yields:
        Batches of `schema.RESULTS`.
    """
    plan = Plan.load(work)
    packed = PackedLedger(work, plan.bits, plan.left_out_producers)
    writer = ViolationWriter(plan.violations, packed)
    times = TimeCounts(Grid(*plan.grid), plan.families)
    stretches = StretchReader(work)
    tails = TailWriter(work)
    space = Workspace()
    current: BucketReducer | UnlistedReducer | AnonymousReducer | None = None
    key: int | None = None
    out: list[dict[str, Any]] = []

    def finish() -> None:
        if current is not None:
            out.extend(current.finish())

    for batch in batches:
        for row in batch.to_pylist():
            if row["key"] != key:
                finish()
                key = row["key"]
                if key == FACT:
                    current = None
                elif key >= 0:
                    current = BucketReducer(plan, packed, writer, times, tails, space, key, later)
                elif key > ANONYMOUS:
                    current = UnlistedReducer(plan, packed, writer, key)
                else:
                    current = AnonymousReducer(plan, packed, writer, times, key)
            if current is None:
                text = stretches.read(row, "offsets", np.uint8).tobytes()
                out.append(result_row("fact", FACT, text=text.decode()))
                continue
            if not row["n"]:
                continue  # the row only announces the bucket
            if isinstance(current, BucketReducer):
                current.add(row, stretches)
                continue
            current.add(
                row["listener"],
                stretches.read(row, "offsets", np.int32),
                stretches.read(row, "hashes", np.uint64),
                stretches.read(row, "positions", np.int64),
                stretches.read(row, "after", np.uint64),
            )
        if len(out) >= 256 or sum(len(row["keys"]) for row in out) >= BATCH_BYTES:
            yield result_batch(out)
            out = []
    finish()
    for name, family, keys, counts in times.rows():
        out.append(result_row("times", FACT, family, name, keys.tobytes(), counts.tobytes()))
    stretches.close()
    tails.close()
    name = writer.close()
    if name:
        out.append(result_row("file", FACT, text=name))
    yield result_batch(out)


def reduce_to_file(
    batches: Iterable[pa.RecordBatch], work: str, later: dict[tuple[int, int], int] | None = None
) -> str:
    """Run `reduce_task`, write its rows to a new file of this attempt, and return the file's name."""
    return write_results(work, reduce_task(batches, work, later))
