"""The judgement of one bucket: the events of one producer, or of some small ones. See ``judge.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient._ext.arrivals import copy_ranges, count_arrived, count_latencies, join, judge, judge_order
from logclient.evidence.arrays import I32, I64, U8, expand, starts_of
from logclient.verify import rules, schema
from logclient.verify.ledger_buckets import lay_out
from logclient.verify.ledger_facts import NONE
from logclient.verify.overview import DUPLICATED, MISSING_SENT, REORDERED
from logclient.verify.plan import Task
from logclient.verify.producer_tables import Column, ProducerTables
from logclient.verify.rows import LEDGER, Row, result_row


class BucketReducer:
    """The judgement of one bucket from the rows of its arrivals; in a second pass of their order alone."""

    def __init__(self, task: Task, key: int) -> None:
        self.plan, self.ledger, self.writer, self.times, self.space, self.later, self._stretches = task
        space = self.space
        self.bucket = bucket = lay_out(self.ledger, key, space)
        self.producers = bucket.producers
        n = len(bucket.hashes)
        self._shift = bucket.firsts - bucket.starts  # from a place to the sequence
        self._families = self.ledger.family[self.producers]
        self.marks = space.take("marks", n, np.uint16)  # see `rules`
        np.multiply(bucket.listed, rules.LISTED, out=self.marks, dtype=np.uint16)
        self.marks |= bucket.outcome
        self.listed = bucket.listed  # and judged here
        for not_judged in (bucket.shared, bucket.outside):
            if not_judged is not None:
                self.marks[not_judged] |= rules.NOT_JUDGED
                self.listed = self.listed & ~not_judged
        for places, mark in (
            (bucket.deferred, rules.DEFERRED),
            (bucket.has_id, rules.HAS_ID),
            (bucket.unsettled, rules.UNSETTLED),
        ):
            if places is not None:
                self.marks[places] |= mark
        self._common = np.where(self.ledger.whole[self.producers], 0, rules.NOT_WHOLE).astype(np.uint16)
        self.judgements: U8 = space.take("judgements", n, np.uint8)
        # What an event counts for if it arrives: its order is judged before all arrivals are known.
        sizes = np.diff(bucket.starts, append=n)
        seen = self.marks | np.repeat(self._common | rules.SEEN, sizes)
        np.take(rules.RULES, seen, out=self.judgements)
        self.tables = ProducerTables(self.ledger.last)
        self.copies = space.filled("copies", n, np.int32, 0)
        self.received = space.filled("received", n, np.int64, schema.NEVER)  # the first copy
        self.corrupt_at: tuple[I64, I64] | None = None  # listener and position of the first bad copy
        # Where the first copy arrived, at the lowest listener of all: the listener, and the position.
        self.arrived_at = (
            space.filled("listeners", n, np.int64, -1),
            space.take("positions", n, np.int64),
        )
        # Of the listener whose rows are added:
        self._listener = -1  # with its device
        self._first = space.filled("first", n, np.int64, schema.NEVER)  # of each event its first position
        self._touched = space.take("touched", n, np.int32)  # the events with a position
        self._several = 0  # of these
        # Copies of listed events, those with another hash, and late events.
        self._copies_here = self._wrong = self._late = 0
        self._distinct = np.zeros(len(self.producers), np.int64)  # events of each producer
        self._counted_at = space.filled("counted at", n, np.int32, -1)
        self._at: list[list[int]] = []  # of all listeners
        self._stretches.begin(int(self.producers[0]), key)
        # In a second pass, with what is known of later stretches, the events that are late then.
        self._again: U8 | None = None
        if self.later is not None:
            self._again = space.take("judgements of the second pass", n, np.uint8)
            self._again[:] = self.judgements

    def _owners(self, places: npt.NDArray[Any]) -> I64:
        """Return the producer of each place, as an index of `producers`."""
        if len(self.producers) == 1:
            return np.zeros(len(places), np.int64)
        return np.searchsorted(self.bucket.starts, places, side="right") - 1

    def _ids(self, places: npt.NDArray[Any]) -> tuple[I64, I64]:
        """Return the producers and sequences of some places."""
        owner = self._owners(places)
        return self.producers[owner], places + self._shift[owner]

    def _add_times(self, places: I64, kind: npt.NDArray[Any] | int, n: I64 | None = None) -> None:
        families = self._families[self._owners(places)]
        self.times.add(families, self.bucket.created_us[places], kind, n)

    def add(self, row: Row) -> None:
        """Add one row. The ledgers' come first, and those of a listener in the order of arrival."""
        if row.listener == LEDGER:
            self._add_events(row)
            return
        places = row.array("places", np.int32)
        if row.listener != self._listener:
            self._leave_device(row.listener)
        positions, space = row.positions(len(places)), self.space
        times = row.array("times", np.uint32), row.value("base")
        given = places, row.array("hashes", np.uint64), positions, *times
        sent = self.bucket.hashes, self.listed.view(np.uint8)
        wrong = space.take("wrong", len(places), np.int32)
        out = self.copies, self._first, self.received, wrong, self._touched
        of_listed, differing, self._several = join(*given, *sent, *out, self._several)
        self._copies_here += of_listed
        if differing and not self.plan.by_id:
            self._add_wrong(row.listener, places, positions, wrong[:differing])

    def _leave_device(self, listener: int) -> None:
        """Judge the order of what arrived at a listener through one device, and begin with another one."""
        before, self._listener = self._listener, listener
        place, device = before >> schema.DEVICE_BITS, before & schema.DEVICE
        if self._several:
            touched = self._touched[: self._several]
            touched.sort()
            given = touched, self._first, self.judgements, self.bucket.starts
            counted = self._distinct, *self.arrived_at, self._counted_at
            count_arrived(*given, before, place, *counted)
            if self.plan.ordered and device != schema.OTHERS and place not in self.plan.unjudged:
                if self._again is not None:
                    again = touched, self._first, self._again, self.bucket.starts
                    self._late += judge_order(*again, self._stretches.later_limit(before))[0]
                late, lowest, last = judge_order(*given, self._stretches.limit(before))
                self._late += late if self._again is None else -late
                self._stretches.add(before, lowest, last)
            self._first[touched] = schema.NEVER
            self._several = 0
        if place >= 0 and listener >> schema.DEVICE_BITS != place:
            self._leave_listener(place)

    def _leave_listener(self, place: int) -> None:
        """Count what arrived at a listener, see `Tally.at`."""
        total = int(self._distinct.sum())
        if self._again is None:
            self.tables.add("listeners", self.producers, place, self._distinct)
            self._at.append([place, total, self._copies_here - total, self._wrong, self._late])
        elif self._late:
            self._at.append([place, 0, 0, 0, self._late])
        self._copies_here = self._wrong = self._late = 0
        self._distinct[:] = 0

    def _add_events(self, row: Row) -> None:
        ranges, hashes = row.array("places", np.int64).reshape(-1, 2), row.array("hashes", np.int64)
        times = row.array("times", np.uint32)
        if len(times) != len(hashes):
            times = row.array("times", np.int64)
        sizes = ranges[:, 1] - ranges[:, 0] + 1
        at = np.cumsum(sizes) - sizes
        copy_ranges(hashes, at, ranges, self.bucket.hashes.view(np.int64))
        copy_ranges(times + np.int64(row.value("base")), at, ranges, self.bucket.created_us)

    def _add_wrong(self, listener: int, places: I32, positions: I64, which: I32) -> None:
        which = which[self.listed[places[which]]]  # without a hash, there is nothing to compare with
        places, positions = places[which], positions[which]
        self._wrong += len(places)
        self.marks[places] |= rules.CORRUPT
        if self.corrupt_at is None:
            n, space = len(self.copies), self.space
            at = space.take("corrupt positions", n, np.int64)
            self.corrupt_at = space.filled("corrupt listeners", n, np.int64, -1), at
        new = self.corrupt_at[0][places] < 0
        # In reverse order, so that the first of several remains.
        self.corrupt_at[1][places[new][::-1]] = positions[new][::-1]
        self.corrupt_at[0][places[new]] = listener

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the bucket, and return its rows of `RESULTS`."""
        tables, producers = self.tables, self.producers
        self._leave_device(-1)
        if self._again is not None:
            yield from self._second_pass(np.flatnonzero((self._again ^ self.judgements) & rules.LATE))
            return
        counts, not_ok, repeated = self._judge()
        any_late = any(late for *_, late in self._at)
        late_places = np.flatnonzero(self.judgements & rules.LATE) if any_late else not_ok[:0]
        for code in range(len(schema.STATES)):
            tables.add("sums", producers, code, counts[:, code])
        state, sent = self._states(not_ok)
        kind = state.copy()
        missing = sent & (state == schema.MISSING)
        kind[missing] = MISSING_SENT
        tables.count("sums", self._ids(not_ok[missing])[0], int(Column.MISSING_SENT))
        tables.add_places(*self._ids(not_ok), kind)
        self._add_times(not_ok[sent], kind[sent])
        self._count(repeated, Column.DUPLICATED, DUPLICATED, self.copies[repeated].astype(np.int64) - 1)
        self._count(late_places, Column.REORDERED, REORDERED)
        faults = {word: not_ok[state == code] for code, word in enumerate(schema.STATES) if code}
        for word, places in {**faults, "reordered": late_places}.items():
            # When the first and the last of them were made.
            places = places[self.bucket.listed[places]]
            tables.add_times(self._ids(places)[0], word, self.bucket.created_us[places])
        head: dict[str, Any] = {
            "at": self._at,
            "gaps": self._gaps(not_ok[sent & self._lacking(not_ok, state)]),
            "longest_us": self._count_latencies(),
            "examples": self._examples(faults, repeated, late_places),
        }
        self._write_violations(faults, repeated, late_places)
        yield result_row("bucket", head)
        yield from tables.rows()

    def _judge(self) -> tuple[I64, I64, I64]:
        """Judge all but the order: events by producer and state, places of faults, and of repeated events."""
        bucket, producers, n = self.bucket, self.producers, len(self.copies)
        self._mark_unlisted()
        maybe_pending = self.ledger.pending_after[producers] + 1 - self._shift  # the first place that may be
        counts = np.zeros((len(producers), schema.EXCLUDED + 1), np.int64)
        not_ok, repeated = (self.space.take(name, n, np.int64) for name in ("not_ok", "repeated"))
        given = self.copies, self.marks, bucket.starts, self._common, maybe_pending, rules.RULES
        sizes = judge(*given, self.judgements, counts, not_ok, repeated)
        return counts, not_ok[: sizes[0]], repeated[: sizes[1]]

    def _mark_unlisted(self) -> None:
        """Mark the events that arrived and are not listed by when they arrived."""
        if self.ledger.whole[self.producers].all():
            return
        places = np.flatnonzero((self.copies > 0) & ~self.bucket.listed)
        received = self.received[places]
        self.marks[places[received <= self.ledger.complete_us[self._ids(places)[0]]]] |= rules.OVERDUE
        self.marks[places[self.plan.is_before_end(received)]] |= rules.BEFORE_END

    def _states(self, places: I64) -> tuple[U8, npt.NDArray[np.bool_]]:
        """Return the states of some events, and which of them were sent and are judged here."""
        judgements: U8 = self.judgements[places]
        return judgements & np.uint8(rules.STATE), judgements & np.uint8(rules.COUNTED) != 0

    def _second_pass(self, late: I64) -> Iterator[dict[str, Any]]:
        """Yield the events that arrived after events of later stretches, and were not late without these."""
        self._write_runs("reordered", late, self.copies, True)
        self._count(late, Column.REORDERED, REORDERED)
        self.tables.add_times(self._ids(late)[0], "reordered", self.bucket.created_us[late])
        head = {"at": self._at, "examples": self._examples({}, late[:0], late)}
        yield result_row("bucket", head)
        yield from self.tables.rows()

    def _runs(self, places: I64) -> tuple[I64, I64]:
        """Return the first and the last place of each run of events of one producer. The places ascend."""
        starts = starts_of(places - np.arange(len(places)), self._owners(places))
        ends = np.append(starts[1:], len(places))[: len(starts)]
        return places[starts], places[ends - 1]

    def _lacking(self, places: I64, state: U8) -> npt.NDArray[np.bool_]:
        """Return which events with faults did not arrive, also if a capture that goes on may get them yet."""
        lacking: npt.NDArray[np.bool_] = (state == schema.LOST) | (state == schema.MISSING)
        if self.bucket.unsettled is not None:
            undecided = ~self.ledger.whole[self._ids(places)[0]] & (self.bucket.outcome[places] == NONE)
            unsettled = (state == schema.UNKNOWN) & self.bucket.unsettled[places] & ~undecided
            lacking |= unsettled & (self.copies[places] == 0)
        return lacking

    def _gaps(self, places: I64) -> dict[str, Any]:
        """Count the runs of events that never arrived, and return the longest: producer, sequence, length.

        The runs at the edges of one of a producer's several buckets are not counted: the driver joins them.
        """
        if not len(places):
            return {}
        first, last = self._runs(places)
        gaps = np.column_stack((*self._ids(first), last - first + 1))
        several = self.ledger.own_buckets(int(self.producers[0])) > 0
        at_edge = several & ((first == 0) | (last == len(self.copies) - 1))
        joined, gaps = gaps[at_edge], gaps[~at_edge]
        self.tables.count("sums", gaps[:, 0], int(Column.GAPS))
        longest = gaps[np.argsort(-gaps[:, 2], kind="stable")[:5]]
        return {"longest": longest.tolist(), "open": joined.tolist()}

    def _count_latencies(self) -> int:
        """Count the latencies of events that are `rules.TIMED`, and return the longest."""
        n, times, bucket = len(self.received), self.times, self.bucket
        extremes = np.zeros((len(self.producers), 3), np.int64)
        owner, cells, counts = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int64)
        events = bucket.created_us, self.received, self.judgements
        given = *events, bucket.starts, self._families, times.grid.start_us, times.grid.width_us
        used = count_latencies(*given, times.words, times.latency, extremes, owner, cells, counts)
        self.tables.add("latency", self.producers[owner[:used]], cells[:used], counts[:used])
        self.tables.add("longest", self.producers, 0, extremes[:, 0])
        # Those of events that arrived before they were made, by the clocks.
        self.tables.add("sums", self.producers, int(Column.EARLY), extremes[:, 1])
        self.tables.add("sums", self.producers, int(Column.EARLY_US), extremes[:, 2])
        return int(extremes[:, 0].max())

    def _count(self, places: I64, column: Column, kind: int, n: I64 | None = None) -> None:
        p, sequences = self._ids(places)
        self.tables.count("sums", p, int(column), n)
        self.tables.add_places(p, sequences, kind, n)
        self._add_times(places, kind, n)

    def _arrivals(self, places: I64, word: str) -> tuple[I64, I64]:
        """Return the lowest listener that got each event, and the position there; -1 and 0: none did.

        Of corrupted events return where the first bad copy arrived.
        """
        if word == "corrupted" and self.corrupt_at is not None:
            return self.corrupt_at[0][places], self.corrupt_at[1][places]
        listeners = self.arrived_at[0][places]
        return listeners, np.where(listeners < 0, 0, self.arrived_at[1][places])

    def _few(self, places: I64, word: str) -> I64:
        """Choose some ascending places for examples: of as many producers as possible, and the first of each.

        Of many producers those are chosen whose first example arrived first, see `Tally.choose_examples`.
        """
        limit = self.plan.examples
        if len(self.producers) == 1 or not limit:
            return places[:limit]
        owner = self._owners(places)
        starts = starts_of(owner)
        ends = np.append(starts[1:], len(places))
        if len(starts) > limit:
            _, positions = self._arrivals(places[starts], word)
            chosen = np.sort(np.argsort(positions, kind="stable")[:limit])
            starts, ends = starts[chosen], ends[chosen]
        each = -(-limit // len(starts))
        return places[expand(np.column_stack((starts, np.minimum(ends, starts + each) - 1)))]

    def _examples(self, faults: dict[str, I64], repeated: I64, late: I64) -> dict[str, list[list[Any]]]:
        """Return by word the fields of `Example` for a few events."""
        out: dict[str, list[list[Any]]] = {}
        bucket = self.bucket
        for word, which in {**faults, "duplicated": repeated, "reordered": late}.items():
            if not len(which) or word in ("dropped", "pending"):
                continue
            few = self._few(which, word)
            known = self.copies[few], bucket.listed[few], bucket.hashes[few], bucket.created_us[few]
            columns = (x.tolist() for x in (*self._ids(few), *self._arrivals(few, word), *known))
            out[word] = [
                [self.ledger.name(p), sequence, None, *row, *((hash_, made) if row[-1] else (None, None))]
                for p, sequence, *row, hash_, made in zip(*columns, strict=True)
            ]
        return out

    def _write_runs(self, word: str, places: I64, copies: npt.NDArray[Any], sent: bool) -> None:
        """Write the runs of some places as violations; each has the copies of its first place."""
        first, last = self._runs(places)
        p, sequences = self._ids(first)
        self.writer.add(word, p, sequences, sequences + last - first, copies[first], sent)

    def _write_violations(self, faults: dict[str, I64], repeated: I64, late: I64) -> None:
        if not self.writer.wanted:
            return
        for word, which in faults.items():
            counted = self._states(which)[1]
            for sent in (True, False):
                # The number of copies may differ along a run; kind `duplicated` has it exactly.
                places = which[counted == sent]
                self._write_runs(word, places, self.copies, sent)
        copies = self.copies[repeated]
        for n in np.unique(copies).tolist():
            self._write_runs("duplicated", repeated[copies == n], self.copies, True)
        self._write_runs("reordered", late, self.copies, True)
