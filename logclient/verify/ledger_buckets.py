"""Buckets: the places that the sequences of all producers have in the comparison.

Each has at most ``2 ** bits`` *places*. A producer with more sequences has several of its own, and smaller
neighbours share one, so the cost of a comparison hardly depends on the number of producers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logclient._ext.arrivals import paint
from logclient.evidence.arrays import I64, U64, Workspace, covered
from logclient.verify.ledger_facts import LedgerFacts


class Placer:
    """Assigns a bucket and a first place to one producer after the other."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.bucket = 0  # the one that the next small producer shares, if there is room
        self.used = 0  # places in it

    def place(self, sizes: I64) -> tuple[I64, I64]:
        """Return the first bucket of producers with `sizes` sequences, and the first place there.

        A producer of size 0 needs no place.
        """
        room = 1 << self.bits
        buckets = np.empty(len(sizes), np.int64)
        starts = np.zeros(len(sizes), np.int64)
        reach = np.cumsum(sizes)
        low = 0
        while low < len(sizes):
            before = int(reach[low] - sizes[low])
            high = int(np.searchsorted(reach, before + room - self.used, side="right"))
            buckets[low:high] = self.bucket
            starts[low:high] = reach[low:high] - sizes[low:high] - before + self.used
            self.used += int(sizes[low:high].sum())
            low = high
            if low < len(sizes):
                self.bucket += self.used > 0
                self.used = 0
                if sizes[low] > room:
                    buckets[low] = self.bucket
                    self.bucket += -(-int(sizes[low]) >> self.bits)
                    low += 1
        return buckets, starts

    @property
    def end(self) -> int:
        """The number of buckets so far."""
        return self.bucket + (self.used > 0)


class LedgerBucket(NamedTuple):
    """The ledgers' content for the places of a bucket."""

    producers: I64  # those that have a place in it, ascending
    starts: I64  # the first place of each
    firsts: I64  # the sequence at that place
    hashes: U64  # 0 where no event is listed
    created_us: I64  # likewise
    listed: npt.NDArray[np.bool_]
    outcome: npt.NDArray[np.uint8]
    shared: npt.NDArray[np.bool_] | None  # events whose id another event has too; None: no event
    deferred: npt.NDArray[np.bool_] | None  # events that later ones may overtake; None: no event
    has_id: npt.NDArray[np.bool_] | None  # events with their own id; None: no event, or all ledgers whole
    outside: npt.NDArray[np.bool_] | None  # sequences that are not selected; None: no sequence
    unsettled: npt.NDArray[np.bool_] | None  # a capture that goes on may not have them yet; None: no sequence


def places_of(facts: LedgerFacts, buckets: I64) -> I64:
    """Return the number of places of some buckets."""
    sizes = facts.places
    reach = np.concatenate(([0], np.cumsum(np.where(sizes > 1 << facts.bits, 0, sizes))))
    low, high = (np.searchsorted(facts.bases[:-1], buckets, side=side) for side in ("left", "right"))
    shared = reach[high] - reach[low]
    owner = np.maximum(high - 1, 0)
    rest = sizes[owner] - ((buckets - facts.bases[owner]) << facts.bits)
    return np.where(sizes[owner] > 1 << facts.bits, np.minimum(rest, 1 << facts.bits), shared)


def lay_out(facts: LedgerFacts, bucket: int, space: Workspace) -> LedgerBucket:
    """Lay out one bucket, without hashes and times, which come in rows. It is valid until the next call."""
    room = 1 << facts.bits
    low, high = np.searchsorted(facts.bases[:-1], (bucket, bucket + 1)).tolist()
    inside = low + np.flatnonzero(facts.places[low:high] > 0)
    producers = inside if len(inside) else np.array([high - 1])
    p, end = int(producers[0]), int(producers[-1]) + 1
    starts = facts.starts[producers]
    before = (bucket - facts.bases[producers]) << facts.bits
    firsts = facts.before[producers] + before + 1
    sizes = np.minimum(facts.places[producers] - before, room)
    n = int(sizes.sum())
    local = np.full(end - p, -1, np.int64)  # producer -> its index here
    local[producers - p] = np.arange(len(producers))

    def ranges(rows: I64) -> tuple[I64, I64]:
        """Return which rows of (producer, first, last, ...) have places here, and these places."""
        q = local[rows[:, 0] - p]
        first = np.maximum(rows[:, 1], firsts[q])
        last = np.minimum(rows[:, 2], firsts[q] + sizes[q] - 1)
        which = np.flatnonzero((q >= 0) & (first <= last))
        shift = (starts - firsts)[q[which]]
        return which, np.stack((first[which] + shift, last[which] + shift), axis=1)

    def marked(rows: I64) -> npt.NDArray[np.bool_] | None:
        """Return which places are in some rows; None: no place is."""
        _, places = ranges(rows)
        return covered(places, n) if len(places) else None

    outcome = space.filled("outcome", n, np.uint8, 0)
    rows = facts.rows_of("outcomes", p, end)
    which, places = ranges(rows)
    # Of each producer the weakest first, so that the strongest remains.
    paint(places, rows[which, 3].astype(np.uint8), outcome)
    listed = covered(ranges(facts.rows_of("spans", p, end))[1], n)
    shared = marked(facts.shared[slice(*np.searchsorted(facts.shared_by, (p, end)))][:, [0, 1, 1]])
    return LedgerBucket(
        producers,
        starts,
        firsts,
        space.filled("hashes", n, np.uint64, 0),
        space.filled("created", n, np.int64, 0),
        listed,
        outcome,
        None if shared is None else shared & listed,  # the batch line of an `ids` line may be damaged
        marked(facts.rows_of("deferred", p, end)),
        None if facts.all_whole else marked(facts.rows_of("has_id", p, end)),
        marked(facts.rows_of("outside", p, end)),
        ~covered(ranges(facts.rows_of("settled", p, end))[1], n) if facts.ends else None,
    )
