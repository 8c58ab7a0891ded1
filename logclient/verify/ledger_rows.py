"""Step 1 of a comparison: the events of ledger files, as rows of their buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.evidence.arrays import I64, U64, expand, overlaps, starts_of, true_runs
from logclient.evidence.ledger_files import Part
from logclient.verify import ledger_lines
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.plan import Plan
from logclient.verify.rows import LEDGER, blobs, row_batch, rows_of_keys
from logclient.verify.schema import ANONYMOUS

PIECE = 1 << 16  # events that are collected before they become rows


def event_rows(
    group: Sequence[Part], number: int, facts: LedgerFacts, plan: Plan, only: frozenset[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a group of ledger files again, and yield their events as rows of buckets.

    An event without an id of its own has a row of its share of the hashes instead: see
    `anonymous.AnonymousReducer.add`. `only` has the buckets that a second pass wants.
    """
    live = np.array(sorted(only), np.int64) if only is not None else facts.live
    anonymous = plan.anonymous_shares > 0 and only is None
    spans = facts.spans[facts.spans[:, 4] == number]
    p = spans[:, 0]
    first = facts.before[p] + 1
    wanted = (spans[:, 2] >= first) & (spans[:, 1] < first + facts.places[p])
    if anonymous:
        wanted |= _by_hash(spans, facts)
    for some, hashes, created in pieces(group, number, facts, spans[wanted]):
        by_hash = ~facts.addressed[some[:, 0]]
        if len(own := some[~by_hash]):
            yield from _bucket_rows(own, hashes, created, facts, plan, live)
        if anonymous:
            for p, first, last, at in some[_by_hash(some, facts)].tolist():
                sequences = facts.by_hash(p, first, last)
                if not len(sequences):
                    continue
                bodies = hashes[at + sequences - first]
                keys = ANONYMOUS - share_of(bodies, plan.anonymous_shares)
                owner = np.full(len(sequences), p << 3, np.int32) | facts.outcomes_at(p, sequences)
                times = created[at + sequences - first]
                given = plan.partition, keys, LEDGER, sequences
                yield rows_of_keys(*given, places=owner, hashes=bodies, times=times)


def hashes_of(group: Sequence[Part], number: int, facts: LedgerFacts) -> U64:
    """Return the hashes of the events of a group that are compared by hash alone."""
    found = [np.empty(0, np.uint64)]
    spans = facts.spans[facts.spans[:, 4] == number]
    for some, hashes, _ in pieces(group, number, facts, spans[_by_hash(spans, facts)]):
        for p, first, last, at in some.tolist():
            found.append(hashes[at + facts.by_hash(p, first, last) - first])
    return np.concatenate(found)


def _by_hash(spans: I64, facts: LedgerFacts) -> npt.NDArray[np.bool_]:
    """Return which spans may have events that are compared by hash."""
    return ~facts.addressed[spans[:, 0]] | np.isin(spans[:, 0], facts.shared_by)


def pieces(
    group: Sequence[Part], number: int, facts: LedgerFacts, spans: I64
) -> Iterator[tuple[I64, U64, I64]]:
    """Yield the events of some spans, some at a time: rows of producer, first, last and index; hashes, times.

    The spans are rows of `LedgerFacts.spans` of the group with this number.
    """
    spans = spans[np.argsort(spans[:, 3], kind="stable")]
    ends = spans[:, 3] + spans[:, 2] - spans[:, 1]
    places = np.column_stack((spans[:, 3], ends))
    for files, begin, done in _stretches(group, facts.steps[number], places):
        for hashes, created in ledger_lines.events(files, PIECE, begin):
            # Lines that a check has removed have positions, and no span.
            index, parts = overlaps(np.array([[done, done + len(hashes) - 1]], np.int64), places)
            if len(index):
                which = int(np.searchsorted(ends, done)) + np.arange(len(index))
                first = spans[which, 1] + parts[:, 0] - spans[which, 3]
                last = first + parts[:, 1] - parts[:, 0]
                yield np.column_stack((spans[which, 0], first, last, parts[:, 0] - done)), hashes, created
            done += len(hashes)


def _stretches(group: Sequence[Part], steps: I64, places: I64) -> Iterator[tuple[Sequence[Part], int, int]]:
    """Yield the stretches of files with some places: the files, the first byte, and the position there."""
    if not len(steps):
        yield group, 0, 0
        return
    first, end = steps[:, 2], np.append(steps[1:, 2], np.iinfo(np.int64).max)
    wanted = np.searchsorted(places[:, 1], first) < np.searchsorted(places[:, 0], end)
    for low, high in true_runs(wanted).tolist():
        index, begin, position = steps[low].tolist()
        files = [*group[index:]]
        if high + 1 < len(steps):
            last, stop, _ = steps[high + 1].tolist()
            files = files[: last - index] + [
                part._replace(size=stop) for part in files[last - index :][:1] if stop
            ]
        yield files, begin, position


def _bucket_rows(
    spans: I64, hashes: U64, created: I64, facts: LedgerFacts, plan: Plan, live: I64
) -> Iterator[pa.RecordBatch]:
    """Yield rows of spans, which are cut at the edges of buckets."""
    bits = facts.bits
    # From here on sequences are counted from the first that has a place.
    before = facts.before[spans[:, 0]]
    first, last = spans[:, 1] - before, spans[:, 2] - before
    at = spans[:, 3] + np.maximum(1 - first, 0)
    first, last = np.maximum(first, 1), np.minimum(last, facts.places[spans[:, 0]])
    spans = np.column_stack((spans[:, 0], first, last, at))[first <= last]
    low, high = (spans[:, 1] - 1) >> bits, (spans[:, 2] - 1) >> bits
    which = np.repeat(np.arange(len(spans)), high - low + 1)
    k = expand(np.column_stack((low, high)))
    p = spans[which, 0]
    bucket = facts.bases[p] + k
    first = np.maximum(spans[which, 1], (k << bits) + 1)
    last = np.minimum(spans[which, 2], (k + 1) << bits)
    at = spans[which, 3] + first - spans[which, 1]
    shift = facts.starts[p] - (k << bits) - 1
    found = np.minimum(np.searchsorted(live, bucket), max(len(live) - 1, 0))
    keep = np.flatnonzero(live[found] == bucket) if len(live) else np.empty(0, np.int64)
    keep = keep[np.argsort(bucket[keep], kind="stable")]
    if not len(keep):
        return
    bucket, at, sizes = bucket[keep], at[keep], (last - first + 1)[keep]
    ranges = np.column_stack((first + shift, last + shift))[keep]
    index = expand(np.column_stack((at, at + sizes - 1)))
    hashes, created = hashes[index], created[index]
    starts = starts_of(bucket)
    edges = np.append(starts, len(bucket))  # of ranges
    reach = np.concatenate(([0], np.cumsum(sizes)))[edges]  # of events
    base = np.minimum.reduceat(created, reach[:-1])
    times = created - np.repeat(base, np.diff(reach))
    wide = int(times.max()) >> 32 != 0
    yield row_batch(
        len(starts),
        part=plan.partition(bucket[starts]),
        key=bucket[starts],
        listener=LEDGER,
        position=0,
        base=np.zeros_like(base) if wide else base,
        places=blobs(ranges.reshape(-1), 2 * edges),
        hashes=blobs(hashes, reach),
        times=blobs(created if wide else times.astype(np.uint32), reach),
    )


def share_of(hashes: U64, shares: int) -> I64:
    """Return the share of events without an id that each hash belongs to."""
    mixed = (hashes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return mixed.astype(np.int64) % shares
