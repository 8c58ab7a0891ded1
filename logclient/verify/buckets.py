"""The judgement of one bucket: the events of one producer, or of some small ones. See ``compare.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient._ext.arrivals import join
from logclient.verify.arrays import I32, I64, true_runs
from logclient.verify.ledger_buckets import read_bucket
from logclient.verify.overview import (
    DUPLICATED,
    LOST_SENT,
    MISSING_SENT,
    REORDERED,
    TimeCounts,
    cell,
)
from logclient.verify.packed_ledger import ACKED, DROPPED, FAILED, HANDED, NONE, PackedLedger
from logclient.verify.plan import Plan
from logclient.verify.producer_tables import Column, ProducerTables
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
    OTHER_RUN,
    OTHERS,
    PENDING,
    RECOVERED,
    STATES,
    UNEXPECTED,
    UNKNOWN,
)
from logclient.verify.violation_files import ViolationWriter
from logclient.verify.work_files import StretchReader, TailWriter, result_row

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
        self.bucket = bucket = read_bucket(packed, key)
        self.producers = bucket.producers
        n = len(bucket.hashes)
        self._shift = bucket.firsts - bucket.starts  # from a place to the sequence
        self._sizes = np.diff(np.append(bucket.starts, n))
        # The producer of each place, as an index of `producers`. Most buckets have only one.
        m = len(bucket.starts)
        self._owner = np.repeat(np.arange(m), self._sizes) if m > 1 else None
        self._families = packed.family[self.producers]
        self.listed = bucket.listed if bucket.shared is None else bucket.listed & ~bucket.shared
        if bucket.outside is not None:
            self.listed = self.listed & ~bucket.outside
        self._all_listed = bool(self.listed.all())
        self.tables = ProducerTables(packed.last)
        self.copies = np.zeros(n, np.int32)
        self.other_runs: npt.NDArray[np.bool_] | None = None  # events that arrived in runs not selected
        self.corrupt = np.zeros(n, bool)  # a copy had another hash
        self.corrupt_at: tuple[I64, I64] | None = None  # listener and position of the first such copy
        self.elsewhere = 0  # how many arrived there alone
        self._wrong = np.empty(0, np.int32)  # scratch
        self.arrivals: dict[int, list[int]] = {}  # listener -> copies, and of these with another hash
        self.first: dict[int, I64] = {}  # listener -> position of the first copy of each event
        self.received = np.full(n, NEVER, np.int64)  # of the first copy at any listener

    def _owners(self, places: npt.NDArray[Any]) -> I64:
        """Return the producer of each place, as an index of `producers`."""
        return np.zeros(len(places), np.int64) if self._owner is None else self._owner[places]

    def _per_place(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each place the value of its producer."""
        return np.broadcast_to(values, len(self.copies)) if self._owner is None else values[self._owner]

    def _add_times(self, places: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        """Count events over time, each for the protocol of its producer."""
        families = self._families[self._owners(places)]
        for family in np.unique(families).tolist():
            own = slice(None) if len(self._families) == 1 else families == family
            self.times.add(
                family,
                self.bucket.created_us[places[own]],
                kind if isinstance(kind, int) else kind[own],
                n if n is None else n[own],
            )

    def add(self, row: dict[str, Any], stretches: StretchReader) -> None:
        """Add one row. Rows of a listener come in the order of arrival.

        Args:
            row: of `schema.ARRIVALS`.
            stretches: the columns that it refers to.

        Raises:
            EOFError: a file has been truncated.
        """
        places = stretches.read(row, "offsets", np.int32)
        if row["listener"] >= OTHER_RUN:
            if self.other_runs is None:
                self.other_runs = np.zeros(len(self.copies), bool)
            self.other_runs[places] = True
            return
        hashes = stretches.read(row, "hashes", np.uint64)
        positions = stretches.read(row, "positions", np.int64)
        after = stretches.read(row, "after", np.uint32)
        n = len(self.copies)
        listener: int = row["listener"]
        first = self.first.get(listener)
        if first is None:
            if len(self.first) >= DEVICES and listener >> LISTENER_BITS:
                listener = (listener & LISTENER) + (OTHERS << LISTENER_BITS)
            first = self.first.setdefault(listener, np.full(n, NEVER, np.int64))
        if len(self._wrong) < len(places):
            self._wrong = np.empty(len(places), np.int32)
        of_listed, differing = join(
            places,
            hashes,
            positions,
            after,
            row["received_us"],
            row["shift"],
            self.bucket.hashes,
            self.listed.view(np.uint8),
            self.copies,
            first,
            self.received,
            self._wrong,
        )
        arrivals = self.arrivals.setdefault(listener & LISTENER, [0, 0])
        arrivals[0] += of_listed
        if differing:
            self._add_wrong(listener, places, positions, self._wrong[:differing])

    def _add_wrong(self, listener: int, places: I32, positions: I64, which: I32) -> None:
        """Note the arrivals with another hash than their event."""
        places, positions = places[which], positions[which]
        if not self._all_listed:
            # There is no hash to compare with.
            places, positions = places[self.listed[places]], positions[self.listed[places]]
        self.arrivals[listener & LISTENER][1] += len(places)
        self.corrupt[places] = True
        if self.corrupt_at is None:
            n = len(self.copies)
            self.corrupt_at = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        new = self.corrupt_at[0][places] < 0
        # In reverse order, so that the first of several remains.
        self.corrupt_at[1][places[new][::-1]] = positions[new][::-1]
        self.corrupt_at[0][places[new]] = listener

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the bucket, and return its rows of `RESULTS`."""
        tables, producers = self.tables, self.producers
        state, counted = self._states()
        listed = self.listed
        late, in_order, late_at = self._order(self._is_judged(listed))
        if self.later is not None:
            yield from self._second_pass(late, in_order)
            return
        twice = listed & (self.copies > 1)
        if self._owner is None:
            counts = np.bincount(state, minlength=EXCLUDED + 1)[None, :]
        else:
            counts = np.bincount(
                self._owner * (EXCLUDED + 1) + state, minlength=len(producers) * (EXCLUDED + 1)
            ).reshape(-1, EXCLUDED + 1)
        for code in range(EXCLUDED):
            tables.add("sums", producers, code, counts[:, code])
        odd = np.flatnonzero((state != OK) & (state != EXCLUDED))
        repeated, behind = np.flatnonzero(twice), np.flatnonzero(late)
        lost = odd[counted[odd] & (state[odd] == LOST)]
        missing = odd[counted[odd] & (state[odd] == MISSING)]
        extra = self.copies[repeated].astype(np.int64) - 1
        for places, column, n in (
            (lost, Column.LOST_SENT, None),
            (missing, Column.MISSING_SENT, None),
            (repeated, Column.DUPLICATED, extra),
            (behind, Column.REORDERED, None),
        ):
            tables.count("sums", producers[self._owners(places)], int(column), n)
        self._count_overview(state, counted, odd, (repeated, extra), behind)
        self._note_times(state, odd, behind)
        head: dict[str, Any] = {
            "at": self._by_listener(listed, late_at),
            "gaps": self._gaps(np.sort(np.concatenate((lost, missing)))),
            "elsewhere": self.elsewhere,
            "longest_us": self._count_latencies(listed & (self.copies > 0) & (state != UNKNOWN)),
            "examples": self._examples(state, odd, repeated, behind),
        }
        self._write_violations(state, counted, odd, repeated, behind)
        yield result_row("bucket", self.key, text=json.dumps(head))
        yield from tables.rows(self.key)
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
            if not self._all_listed:
                seen &= listed
            if self._owner is None:
                distinct = np.array([np.count_nonzero(seen)])
            else:
                distinct = np.bincount(self._owner[seen], minlength=len(self.producers))
            self.tables.add("listeners", self.producers, listener, distinct)
            total = int(distinct.sum())
            out.append([listener, total, n - total, wrong, late.get(listener, 0)])
        return out

    def _note_times(self, state: npt.NDArray[np.int8], odd: I64, late: I64) -> None:
        """Note for each fault the times at which the first and the last listed event were made."""
        created = self.bucket.created_us
        odd = odd[self.bucket.listed[odd]]
        for code in (LOST, MISSING, RECOVERED, CORRUPTED, UNKNOWN, PENDING):
            which = odd[state[odd] == code]
            self.tables.add_times(self.producers[self._owners(which)], STATES[code], created[which])
        self.tables.add_times(self.producers[self._owners(late)], "reordered", created[late])

    def _edges(self, in_order: dict[int, tuple[int, I64, I64]]) -> Iterator[dict[str, Any]]:
        """Yield the rows for the order across buckets, see ``compare.py``.

        The only bucket of a producer needs no row, and the last one needs no tail.
        """
        p = int(self.producers[0])
        low = int(self.ledger.bases[p])
        edges = self.key, low, low + self.ledger.own_buckets(p)
        at, low, high = np.searchsorted(self.ledger.live, edges).tolist()
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
        whole = self.ledger.whole[self.producers]
        if not whole.all():
            state[~seen & (bucket.outcome == NONE) & self._per_place(~whole)] = UNKNOWN
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
        newer = self.ledger.pending_after[self.producers] + 1 - self._shift  # the first place that may be
        if (newer < bucket.starts + self._sizes).any():
            undecided = (state == UNKNOWN) & ~(seen & bucket.listed)
            state[undecided & (np.arange(n) >= self._per_place(newer))] = PENDING
        counted = bucket.listed
        if bucket.shared is not None:
            state[bucket.shared] = EXCLUDED
            counted = counted & ~bucket.shared
        if bucket.outside is not None:
            state[bucket.outside] = EXCLUDED
            counted = counted & ~bucket.outside
        if self.other_runs is not None:
            elsewhere = self.other_runs & ~seen & counted
            self.elsewhere = int(np.count_nonzero(elsewhere))
            state[elsewhere] = EXCLUDED
            counted = counted & ~elsewhere
        return state, counted

    def _is_judged(self, listed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the events whose order is judged."""
        bucket = self.bucket
        if bucket.deferred is not None:
            # These waited in quarantine, and others overtook them on purpose.
            listed = listed & ~bucket.deferred
        whole = self.ledger.whole[self.producers]
        if not whole.all():
            # The ledger may end before the `deferred` line of an event. That line comes before the outcome,
            # so an event with an outcome is safe.
            listed = listed & (self._per_place(whole) | (bucket.outcome != NONE))
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
            # The earliest first copy from each event on, of the same producer.
            places = arrived if self._owner is None else _ranked(arrived, self._owner[which])
            earliest = np.minimum.accumulate(places[::-1])[::-1]
            good = np.ones(len(arrived), bool)
            good[:-1] = places[:-1] < earliest[1:]
            late[which[~good]] = True
            place = listener & LISTENER
            late_at[place] = late_at.get(place, 0) + len(arrived) - int(np.count_nonzero(good))
            kept[listener] = int(arrived.min()), which[good], arrived[good]
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
        which = np.flatnonzero(more)
        self._write_runs("reordered", more, np.ones(len(more), np.int64), True)
        p = self.producers[self._owners(which)]
        self._add_times(which, REORDERED)
        self.tables.count("sums", p, int(Column.REORDERED))
        self.tables.add_places(p, which + self._shift[0], REORDERED)
        self.tables.add_times(p, "reordered", self.bucket.created_us[which])
        some = sorted(at)[: self.plan.examples]
        head = {
            "at": [[listener, 0, 0, 0, n] for listener, n in late_at.items() if n],
            "examples": {"reordered": [self._example(off, *at[off], copies=1) for off in some]},
        }
        yield result_row("bucket", self.key, text=json.dumps(head))
        yield from self.tables.rows(self.key)

    def _runs(self, where: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
        """Return the first and the last place of each run of True that belongs to one producer."""
        first, last = true_runs(where)
        if self._owner is None or not len(first):
            return first, last
        edges = self.bucket.starts[1:]
        cut = edges[where[edges] & where[edges - 1]]
        return np.sort(np.concatenate((first, cut))), np.sort(np.concatenate((last, cut - 1)))

    def _gaps(self, places: I64) -> dict[str, Any]:
        """Count the runs of events that never arrived.

        Args:
            places: those of these events, ascending.

        Returns:
            The longest, as producer, first sequence and number of events. For a producer with several
            buckets also the runs at the edges, which are not counted yet: the driver joins them.
        """
        if not len(places):
            return {}
        n = len(self.copies)
        unseen = np.zeros(n, bool)
        unseen[places] = True
        first, last = self._runs(unseen)
        sizes = last - first + 1
        out: dict[str, Any] = {}
        p = int(self.producers[0])
        if self.ledger.own_buckets(p):
            out = {"p": p, "n": n, "first": int(self._shift[0]), "left": 0, "right": 0}
            if int(first[0]) == 0:
                out["left"] = int(sizes[0])
                first, sizes = first[1:], sizes[1:]
            if len(first) and int(first[-1] + sizes[-1]) == n:
                out["right"] = int(sizes[-1])
                first, sizes = first[:-1], sizes[:-1]
        owner = self._owners(first)
        self.tables.count("sums", self.producers[owner], int(Column.GAPS))
        top = np.argsort(-sizes, kind="stable")[:5]
        columns = self.producers[owner], first + self._shift[owner], sizes
        out["longest"] = np.stack([column[top] for column in columns], axis=1).tolist()
        return out

    def _count_latencies(self, arrived: npt.NDArray[np.bool_]) -> int:
        """Count the latencies of the events that arrived, and return the longest."""
        timed = arrived & (self.received != NEVER)
        if int(np.count_nonzero(timed)) < int(np.count_nonzero(arrived)):
            self._add_times(np.flatnonzero(arrived & ~timed), OK)
        if not timed.any():
            return 0
        longest = 0
        every = bool(timed.all())
        for family in np.unique(self._families).tolist():
            if (self._families == family).all():
                own = slice(None) if every else np.flatnonzero(timed)
            else:
                own = np.flatnonzero(timed & self._per_place(self._families == family))
            created, received = self.bucket.created_us[own], self.received[own]
            if not len(created):
                continue
            took = self.times.took(family, created, received)
            longest = max(longest, took.longest)
            if self._owner is not None:
                self._count_latencies_of(self.producers[self._owner[own]], received - created)
                continue
            used = np.flatnonzero(took.counts)
            self.tables.add("latency", self.producers, used + took.first, took.counts[used])
            self.tables.add("longest", self.producers, 0, np.array([took.longest]))
            self.tables.add("sums", self.producers, int(Column.EARLY), np.array([took.early]))
            self.tables.add("sums", self.producers, int(Column.EARLY_US), np.array([took.early_us]))
        return longest

    def _count_latencies_of(self, p: I64, took: I64) -> None:
        """Count latencies of several producers, by producer.

        Args:
            p: the producer of each event, ascending.
            took: the latency of each event; below 0 where it arrived before it was made.
        """
        starts = np.flatnonzero(np.concatenate(([True], p[1:] != p[:-1])))
        owner = p[starts]
        self.tables.add("longest", owner, 0, np.maximum(np.maximum.reduceat(took, starts), 0))
        before = -np.minimum(np.minimum.reduceat(took, starts), 0)
        if before.any():
            self.tables.add("sums", owner, int(Column.EARLY_US), before)
            early = took < 0
            self.tables.count("sums", p[early], int(Column.EARLY))
            p, took = p[~early], took[~early]
        self.tables.count("latency", p, cell(took))

    def _count_overview(
        self,
        state: npt.NDArray[np.int8],
        counted: npt.NDArray[np.bool_],
        odd: I64,
        repeated: tuple[I64, I64],
        late: I64,
    ) -> None:
        """Count faults over time and over the sequences.

        Args:
            state: of each place.
            counted: places of events that were sent and are judged here.
            odd: places of all states but `OK`.
            repeated: places of events with several copies, and how many beyond the first.
            late: places of reordered events.
        """
        kind = state[odd]
        sent = counted[odd]
        kind[sent & (kind == LOST)] = LOST_SENT
        kind[sent & (kind == MISSING)] = MISSING_SENT
        self._add_times(odd[sent], kind[sent])
        self._add_times(repeated[0], DUPLICATED, repeated[1])
        self._add_times(late, REORDERED)
        for places, what, n in (
            (odd, kind, None),
            (repeated[0], DUPLICATED, repeated[1]),
            (late, REORDERED, None),
        ):
            owner = self._owners(places)
            self.tables.add_places(self.producers[owner], places + self._shift[owner], what, n)

    def _example(self, place: int, listener: int, position: int, copies: int) -> list[Any]:
        """Return an example: producer, sequence, listener (-1: never arrived), position, copies, sent."""
        owner = int(self._owners(np.array([place]))[0])
        p, sequence = int(self.producers[owner]), place + int(self._shift[owner])
        return [p, sequence, listener, position, copies, bool(self.bucket.listed[place])]

    def _few(self, places: I64) -> list[int]:
        """Choose places for examples: of as many producers as possible, and the first of each."""
        limit = self.plan.examples
        if self._owner is None or not limit:
            few: list[int] = places[:limit].tolist()
            return few
        owner = self._owner[places]
        starts = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))[:limit]
        each = -(-limit // max(len(starts), 1))
        ends = np.append(starts[1:], np.searchsorted(owner, owner[starts[-1]], side="right"))
        return [
            place
            for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
            for place in places[low : min(high, low + each)].tolist()
        ]

    def _examples(
        self, state: npt.NDArray[np.int8], odd: I64, repeated: I64, late: I64
    ) -> dict[str, list[list[Any]]]:
        """Return examples of each fault, see `_example`."""
        out: dict[str, list[list[Any]]] = {}
        kind = state[odd]
        faults = [(STATES[code], odd[kind == code]) for code in range(1, PENDING) if code != DROPPED_STATE]
        for word, which in [*faults, ("duplicated", repeated), ("reordered", late)]:
            if not len(which):
                continue
            out[word] = []
            for place in self._few(which):
                listener, position = -1, 0
                if word == "corrupted" and self.corrupt_at is not None:
                    listener, position = (int(column[place]) for column in self.corrupt_at)
                elif self.copies[place]:
                    listener, position = min(
                        (i, int(first[place])) for i, first in self.first.items() if first[place] != NEVER
                    )
                out[word].append(self._example(place, listener, position, int(self.copies[place])))
        return out

    def _write_runs(
        self, word: str, where: npt.NDArray[np.bool_], copies: npt.NDArray[Any], sent: bool
    ) -> None:
        """Write the runs of True as violations; each has the copies of its first place."""
        first, last = self._runs(where)
        if len(first):
            owner = self._owners(first)
            shift = self._shift[owner]
            self.writer.add(word, self.producers[owner], first + shift, last + shift, copies[first], sent)

    def _write_violations(
        self, state: npt.NDArray[np.int8], counted: npt.NDArray[np.bool_], odd: I64, repeated: I64, late: I64
    ) -> None:
        if not self.writer.folder:
            return
        copies = self.copies
        for code in np.unique(state[odd]).tolist():
            which = state == code
            for sent in (True, False):
                # The number of copies may differ along a run; kind `duplicated` has it exactly.
                self._write_runs(STATES[code], which & (counted == sent), copies, sent)
        for n in np.unique(copies[repeated]).tolist():
            self._write_runs("duplicated", self.listed & (copies == n), copies, True)
        if len(late):
            where = np.zeros(len(copies), bool)
            where[late] = True
            self._write_runs("reordered", where, copies, True)


def _ranked(positions: I64, owner: I64) -> I64:
    """Return numbers in the order of some positions, but lower for all of a lower owner.

    Args:
        positions: distinct for each owner.
        owner: of each position, ascending.
    """
    rising = (positions[1:] > positions[:-1]) | (owner[1:] != owner[:-1])
    if rising.all():
        return np.arange(len(positions), dtype=np.int64)
    low = int(positions.min())
    span = int(positions.max()) - low + 1
    if span * (int(owner[-1]) + 1) < NEVER:
        return owner * span + (positions - low)
    ranks = np.empty(len(positions), np.int64)
    ranks[np.argsort(positions, kind="stable")] = np.arange(len(positions))
    return owner * len(positions) + ranks
