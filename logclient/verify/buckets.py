"""The judgement of one bucket of consecutive sequences of a producer. See ``compare.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.verify.arrays import I64, U64, true_runs
from logclient.verify.ledger import ACKED, DROPPED, FAILED, HANDED, NONE, PackedLedger
from logclient.verify.overview import (
    DUPLICATED,
    LOST_SENT,
    MISSING_SENT,
    REORDERED,
    SequenceCounts,
    TimeCounts,
)
from logclient.verify.plan import Plan
from logclient.verify.schema import (
    CORRUPTED,
    DEVICES,
    DROPPED_STATE,
    EXCLUDED,
    LISTENER,
    LISTENER_BITS,
    LOST,
    MISSING,
    NEVER,
    OK,
    OTHERS,
    PENDING,
    RECOVERED,
    STATES,
    UNEXPECTED,
    UNKNOWN,
)
from logclient.verify.violation_files import ViolationWriter
from logclient.verify.work_files import TailWriter, result_row

__all__ = ["BucketReducer"]


class BucketReducer:
    """The judgement of one bucket from the rows of its arrivals.

    Args:
        plan: of the comparison.
        packed: the ledgers.
        writer: for the faults.
        times: the task's counts over time.
        tails: for the latest arrivals that are in order.
        key: the bucket.
        later: for a second pass: bucket and listener -> the earliest first copy in all later buckets. Then
            only the order is judged.
    """

    def __init__(
        self,
        plan: Plan,
        packed: PackedLedger,
        writer: ViolationWriter,
        times: TimeCounts,
        tails: TailWriter,
        key: int,
        later: dict[tuple[int, int], int] | None,
    ) -> None:
        self.tails = tails
        self.plan = plan
        self.ledger = packed
        self.writer = writer
        self.times = times
        self.key = key
        self.later = later
        self.bucket = packed.bucket(key)
        self.family = int(packed.family[self.bucket.producer])
        n = len(self.bucket.hashes)
        self.copies = np.zeros(n, np.int32)
        self.corrupt = np.zeros(n, bool)  # a copy had another hash
        self.corrupt_at: dict[int, tuple[int, int]] = {}  # some of them: offset -> listener, position
        self._scratch = np.empty(n, np.int32)
        self.arrivals: dict[int, list[int]] = {}  # listener -> copies, and of these with another hash
        self.first: dict[int, I64] = {}  # listener -> position of the first copy of each event
        self.received = np.full(n, NEVER, np.int64)  # of the first copy at any listener

    def add(
        self, listener: int, offsets: npt.NDArray[np.int32], hashes: U64, positions: I64, received: I64
    ) -> None:
        """Add one row. Rows of a listener come in the order of arrival.

        Args:
            listener: with the device, see `schema.LISTENER_BITS`.
            offsets: distances of the sequences from the first of the bucket.
            hashes: of the bodies.
            positions: ascending.
            received: in microseconds since 1970; `NEVER` where it is not known.
        """
        n = len(self.copies)
        first = self.first.get(listener)
        if first is None:
            if len(self.first) >= DEVICES and listener >> LISTENER_BITS:
                listener = (listener & LISTENER) + (OTHERS << LISTENER_BITS)
            first = self.first.setdefault(listener, np.full(n, NEVER, np.int64))
        arrivals = self.arrivals.setdefault(listener & LISTENER, [0, 0])
        arrivals[0] += len(offsets)
        low = int(offsets[0])
        if int(offsets[-1]) - low == len(offsets) - 1 and bool((offsets[1:] - offsets[:-1] == 1).all()):
            # Most rows are consecutive, and slices are much faster than index arrays.
            where = slice(low, low + len(offsets))
            wrong = hashes != self.bucket.hashes[where]
            self.copies[where] += 1
            before = first[where]
            if int(before.min()) == NEVER:
                first[where] = positions
            else:
                np.minimum(before, positions, out=before)
            earliest = self.received[where]
            np.minimum(earliest, received, out=earliest)
        else:
            wrong = hashes != self.bucket.hashes[offsets]
            # Separate the first copy of each event from repeated ones: written in reverse order, the index of
            # the first one remains.
            order = np.arange(len(offsets), dtype=np.int32)
            self._scratch[offsets[::-1]] = order[::-1]
            repeated = self._scratch[offsets] != order
            if repeated.any():
                first_copies, rest = ~repeated, offsets[repeated]
                np.add.at(self.copies, rest, 1)
                np.minimum.at(self.received, rest, received[repeated])
                firsts = offsets[first_copies]
                first_positions, first_received = positions[first_copies], received[first_copies]
            else:
                firsts, first_positions, first_received = offsets, positions, received
            self.copies[firsts] += 1
            first[firsts] = np.minimum(first[firsts], first_positions)
            self.received[firsts] = np.minimum(self.received[firsts], first_received)
        if wrong.any():
            which = np.flatnonzero(wrong)
            arrivals[1] += len(which)
            self.corrupt[offsets[which]] = True
            for i in which[: self.plan.examples].tolist():
                self.corrupt_at.setdefault(int(offsets[i]), (listener, int(positions[i])))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the bucket, and return its rows of `RESULTS`."""
        bucket = self.bucket
        state, counted = self._states()
        listed = bucket.listed if bucket.shared is None else bucket.listed & ~bucket.shared
        late, in_order, late_at = self._order(self._is_judged(listed))
        if self.later is not None:
            yield from self._second_pass(late, in_order)
            return
        seen = self.copies > 0
        twice = listed & (self.copies > 1)
        head: dict[str, Any] = {
            "p": bucket.producer,
            "counts": np.bincount(state, minlength=EXCLUDED + 1)[:EXCLUDED].tolist(),
            "sent": [int((counted & (state == LOST)).sum()), int((counted & (state == MISSING)).sum())],
            "duplicated": int(self.copies[twice].sum() - twice.sum()),
            "reordered": int(late.sum()),
            "gaps": self._gaps(counted & ((state == LOST) | (state == MISSING))),
            "at": self._by_listener(listed, late_at),
        }
        head["when"] = self._when(state, late, head["counts"])
        arrived = listed & seen & (state != UNKNOWN)
        timed = arrived & (self.received != NEVER)
        if bool(timed.any()):
            head["latency"], head["early"] = self._latency(timed)
        if int(timed.sum()) < int(arrived.sum()):
            self.times.add(self.family, bucket.created_us[arrived & ~timed], OK)
        head["examples"] = self._examples(state, twice, late)
        self._write_violations(state, counted, twice, late)
        places = self._count_overview(state, counted, twice, late)
        yield result_row("bucket", self.key, -1, json.dumps(head), *places, p=bucket.producer)
        yield from self._edges(in_order)

    def _by_listener(self, listed: npt.NDArray[np.bool_], late: dict[int, int]) -> list[list[int]]:
        """Count the events that arrived at each listener.

        Args:
            listed: events that are judged.
            late: listener -> reordered events.

        Returns:
            For each listener its number, listed events, their copies beyond the first there, their copies
            with another hash, and reordered events.
        """
        out = []
        for listener, (n, wrong) in sorted(self.arrivals.items()):
            some = [first for key, first in self.first.items() if key & LISTENER == listener]
            seen = some[0] != NEVER
            for first in some[1:]:
                seen |= first != NEVER
            # Leave out events that are not listed: there is no hash to compare with.
            unlisted = seen & ~listed
            if unlisted.any():
                m = int(self.copies[unlisted].sum()) if len(self.arrivals) == 1 else int(unlisted.sum())
                n, wrong = n - m, max(wrong - m, 0)
                seen &= listed
            distinct = int(np.count_nonzero(seen))
            out.append([listener, distinct, max(n - distinct, 0), wrong, late.get(listener, 0)])
        return out

    def _when(
        self, state: npt.NDArray[np.int8], late: npt.NDArray[np.bool_], counts: list[int]
    ) -> dict[str, list[int]]:
        """Return for each fault the times at which its first and its last listed event were made."""
        faults = [
            (STATES[code], (state == code) & self.bucket.listed)
            for code in (LOST, MISSING, RECOVERED, CORRUPTED, UNKNOWN, PENDING)
            if counts[code]
        ]
        out = {}
        for word, which in (*faults, ("reordered", late)):
            if which.any():
                made = self.bucket.created_us[which]
                out[word] = [int(made.min()), int(made.max())]
        return out

    def _edges(self, in_order: dict[int, tuple[int, I64, I64]]) -> Iterator[dict[str, Any]]:
        """Yield the rows for the order across buckets, see ``compare.py``.

        The only bucket of a producer needs no row, and the last one needs no tail.
        """
        p = self.bucket.producer
        live = self.ledger.live
        at, low, high = np.searchsorted(live, (self.key, *self.ledger.bases[p : p + 2])).tolist()
        if high - low < 2:
            return
        for listener, (minimum, offsets, positions) in in_order.items():
            head: dict[str, Any] = {"min": minimum}
            if at < high - 1 and len(positions):
                some = slice(-self.plan.tail, None)
                head |= {
                    "max": int(positions[-1]),
                    "cut": len(positions) > self.plan.tail,
                    "tail": [
                        self.tails.name,
                        self.tails.write(offsets[some], positions[some]),
                        len(positions[some]),
                    ],
                }
            yield result_row("order", self.key, listener, json.dumps(head), p=p)

    def _states(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
        """Return the state of each sequence, and the sequences that were sent and are judged here."""
        bucket = self.bucket
        n = len(self.copies)
        seen = self.copies > 0
        sure = bucket.outcome >= HANDED
        acked = bucket.outcome == ACKED
        # Listed events, by outcome and by what arrived.
        state = np.where(
            seen,
            np.where(self.corrupt, CORRUPTED, np.where(sure, OK, RECOVERED)),
            np.where(acked, LOST, MISSING),
        ).astype(np.int8)
        if not self.ledger.whole[bucket.producer]:
            state[~seen & (bucket.outcome == NONE)] = UNKNOWN
        if bucket.has_id is not None:
            state[self.corrupt & bucket.has_id] = UNKNOWN
        if not bucket.listed.all():
            dropped = bucket.outcome == DROPPED
            unlisted = np.where(
                seen,
                np.where(dropped, UNEXPECTED, UNKNOWN),
                np.where(dropped, DROPPED_STATE, np.where(bucket.outcome == FAILED, MISSING, UNKNOWN)),
            )
            state = np.where(bucket.listed, state, unlisted).astype(np.int8)
        pending_after = int(self.ledger.pending_after[bucket.producer])
        if pending_after < bucket.first + n - 1:
            settled = max(pending_after + 1 - bucket.first, 0)
            undecided = (state[settled:] == UNKNOWN) & ~(seen[settled:] & bucket.listed[settled:])
            state[settled:][undecided] = PENDING
        counted = bucket.listed
        if bucket.shared is not None:
            state[bucket.shared] = EXCLUDED
            counted = counted & ~bucket.shared
        return state, counted

    def _is_judged(self, listed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the events whose order is judged."""
        bucket = self.bucket
        if bucket.deferred is not None:
            # These waited in quarantine, and others overtook them on purpose.
            listed = listed & ~bucket.deferred
        if not self.ledger.whole[bucket.producer]:
            # The ledger may end before the `deferred` line of an event. That line comes before the outcome,
            # so an event with an outcome is safe.
            listed = listed & (bucket.outcome != NONE)
        return listed

    def _order(
        self, listed: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], dict[int, tuple[int, I64, I64]], dict[int, int]]:
        """Judge the order inside the bucket.

        Args:
            listed: the events whose order is judged.

        Returns:
            The events that are late at any listener. For each listener the earliest first copy, and offsets
            and positions of the events that are in order so far. For each listener the number of late events.
        """
        late = np.zeros(len(self.copies), bool)
        kept: dict[int, tuple[int, I64, I64]] = {}
        late_at: dict[int, int] = {}
        if not self.plan.ordered:
            return late, kept, late_at
        for listener, first in self.first.items():
            if listener >> LISTENER_BITS == OTHERS or listener & LISTENER in self.plan.unjudged:
                continue
            which = np.flatnonzero(listed & (first != NEVER))
            if not len(which):
                continue
            arrived = first[which]
            # The earliest first copy from each event on.
            earliest = np.minimum.accumulate(arrived[::-1])[::-1]
            good = np.ones(len(arrived), bool)
            good[:-1] = arrived[:-1] < earliest[1:]
            late[which[~good]] = True
            place = listener & LISTENER
            late_at[place] = late_at.get(place, 0) + len(arrived) - int(np.count_nonzero(good))
            kept[listener] = int(earliest[0]), which[good], arrived[good]
        if len(kept) > 1 and late.any():
            # An event that is late at one listener is counted, so later buckets need not judge it again.
            kept = {
                listener: (minimum, which[~late[which]], arrived[~late[which]])
                for listener, (minimum, which, arrived) in kept.items()
            }
        return late, kept, late_at

    def _second_pass(
        self, late: npt.NDArray[np.bool_], in_order: dict[int, tuple[int, I64, I64]]
    ) -> Iterator[dict[str, Any]]:
        """Yield the events that arrived after events of later buckets."""
        assert self.later is not None
        more = np.zeros(len(late), bool)
        at: dict[int, tuple[int, int]] = {}
        late_at: dict[int, int] = {}
        for listener, (_, which, arrived) in in_order.items():
            behind = arrived > self.later.get((self.key, listener), NEVER)
            more[which[behind]] = True
            place = listener & LISTENER
            late_at[place] = late_at.get(place, 0) + int(np.count_nonzero(behind))
            for i in np.flatnonzero(behind)[: self.plan.examples].tolist():
                at.setdefault(int(which[i]), (listener, int(arrived[i])))
        first, last = true_runs(more)
        self.writer.add(
            "reordered", self.bucket.producer, first + self.bucket.first, last + self.bucket.first, 1, True
        )
        examples = [[self.bucket.first + off, *at[off]] for off in sorted(at)[: self.plan.examples]]
        places = SequenceCounts(int(self.ledger.last[self.bucket.producer]))
        which = np.flatnonzero(more)
        self.times.add(self.family, self.bucket.created_us[which], REORDERED)
        places.add(which + self.bucket.first, REORDERED)
        head = {
            "p": self.bucket.producer, "reordered": len(which), "examples": examples,
            "at": [[listener, 0, 0, 0, n] for listener, n in late_at.items() if n],
            "when": self._when(np.zeros(0, np.int8), more, [0] * EXCLUDED),
        }  # fmt: skip
        yield result_row("second_pass", self.key, -1, json.dumps(head), *places.row(), p=self.bucket.producer)

    def _gaps(self, unseen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Return the runs of events that never arrived. The driver joins those at the edges."""
        if not unseen.any():
            return {}
        first, last = true_runs(unseen)
        n = len(unseen)
        sizes = last - first + 1
        out: dict[str, Any] = {"n": n, "first": self.bucket.first, "left": 0, "right": 0}
        if int(first[0]) == 0:
            out["left"] = int(sizes[0])
            first, sizes = first[1:], sizes[1:]
        if len(first) and int(first[-1] + sizes[-1]) == n:
            out["right"] = int(sizes[-1])
            first, sizes = first[:-1], sizes[:-1]
        out["inside"] = len(first)
        top = np.argsort(-sizes, kind="stable")[:5]
        out["longest"] = [[int(first[i]) + self.bucket.first, int(sizes[i])] for i in top]
        return out

    def _latency(self, which: npt.NDArray[np.bool_]) -> tuple[list[list[int]], list[int]]:
        """Count the latencies of some events.

        Returns:
            ``[longest, 0]`` and then ``[cell, count]`` pairs, see `overview.cell`. How many events arrived
            before they were made, and by how much.
        """
        created, received = self.bucket.created_us, self.received
        if not which.all():
            created, received = created[which], received[which]
        took = self.times.took(self.family, created, received)
        used = np.flatnonzero(took.counts)
        cells = np.stack((used + took.first, took.counts[used]), axis=1).tolist()
        return [[took.longest, 0], *cells], [took.early, took.early_us]

    def _count_overview(
        self,
        state: npt.NDArray[np.int8],
        counted: npt.NDArray[np.bool_],
        twice: npt.NDArray[np.bool_],
        late: npt.NDArray[np.bool_],
    ) -> tuple[bytes, bytes]:
        """Count faults over time, and return those over the sequences as keys and values of a row."""
        odd = np.flatnonzero((state != OK) & (state != EXCLUDED))
        repeated, behind = np.flatnonzero(twice), np.flatnonzero(late)
        if not (len(odd) or len(repeated) or len(behind)):
            return b"", b""
        created = self.bucket.created_us
        places = SequenceCounts(int(self.ledger.last[self.bucket.producer]))
        if len(odd):
            kind = state[odd]
            sent = counted[odd]
            kind[sent & (kind == LOST)] = LOST_SENT
            kind[sent & (kind == MISSING)] = MISSING_SENT
            self.times.add(self.family, created[odd[sent]], kind[sent])
            places.add(odd + self.bucket.first, kind)
        extra = self.copies[repeated].astype(np.int64) - 1
        for which, what, n in ((repeated, DUPLICATED, extra), (behind, REORDERED, None)):
            self.times.add(self.family, created[which], what, n)
            places.add(which + self.bucket.first, what, n)
        return places.row()

    def _examples(
        self, state: npt.NDArray[np.int8], twice: npt.NDArray[np.bool_], late: npt.NDArray[np.bool_]
    ) -> dict[str, list[list[int]]]:
        """Return examples of each fault: sequence, listener (-1: never arrived), position, copies, sent."""
        out: dict[str, list[list[int]]] = {}
        limit = self.plan.examples
        faults = [(STATES[code], state == code) for code in range(1, PENDING) if code != DROPPED_STATE]
        for word, which in [*faults, ("duplicated", twice), ("reordered", late)]:
            if not which.any():
                continue
            rows = []
            # For corrupted events show a corrupt copy. `corrupt_at` has enough of them.
            corrupt = sorted(off for off in self.corrupt_at if which[off]) if word == "corrupted" else []
            for off in corrupt[:limit] or np.flatnonzero(which)[:limit].tolist():
                listener, position = self.corrupt_at[off] if corrupt else (-1, 0)
                if not corrupt and self.copies[off]:
                    listener, position = min(
                        (i, int(first[off])) for i, first in self.first.items() if first[off] != NEVER
                    )
                rows.append(
                    [
                        self.bucket.first + off,
                        listener,
                        position,
                        int(self.copies[off]),
                        bool(self.bucket.listed[off]),
                    ]
                )
            out[word] = rows
        return out

    def _write_violations(
        self,
        state: npt.NDArray[np.int8],
        counted: npt.NDArray[np.bool_],
        twice: npt.NDArray[np.bool_],
        late: npt.NDArray[np.bool_],
    ) -> None:
        if not self.writer.folder:
            return
        p, base = self.bucket.producer, self.bucket.first
        for code in range(1, EXCLUDED):
            which = state == code
            if which.any():
                for sent in (True, False):
                    first, last = true_runs(which & (counted == sent))
                    # The number of copies may differ along a run; kind `duplicated` has it exactly.
                    self.writer.add(
                        STATES[code], p, first + base, last + base, self.copies[first].astype(np.int64), sent
                    )
        for copies in np.unique(self.copies[twice]).tolist():
            first, last = true_runs(twice & (self.copies == copies))
            self.writer.add("duplicated", p, first + base, last + base, copies, True)
        first, last = true_runs(late)
        self.writer.add("reordered", p, first + base, last + base, self.copies[first].astype(np.int64), True)
