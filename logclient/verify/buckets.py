"""The judgement of one bucket: the events of one producer, or of some small ones. See ``judge.py``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient._ext.arrivals import copy_ranges, count_arrived, find_last, find_late, join, judge
from logclient.evidence.arrays import I32, I64, U8, expand, starts_of
from logclient.verify import rules, schema
from logclient.verify.ledger_buckets import lay_out
from logclient.verify.ledger_facts import ACKED, NONE
from logclient.verify.overview import DUPLICATED, LOST_SENT, MISSING_SENT, REORDERED
from logclient.verify.plan import Task
from logclient.verify.producer_tables import Column, ProducerTables
from logclient.verify.rows import LEDGER, Row, result_row


class BucketReducer:
    """The judgement of one bucket from the rows of its arrivals; in a second pass of their order alone."""

    def __init__(self, task: Task, key: int) -> None:
        self.plan, self.ledger, self.writer, self.times, self.space, self.later = task
        self.key = key
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
        for not_judged in (bucket.shared, bucket.outside, bucket.away):
            if not_judged is not None:
                self.marks[not_judged] |= rules.NOT_JUDGED
                self.left_out = self.listed & not_judged  # by the last of these alone
                self.listed = self.listed & ~not_judged
        self.tables = ProducerTables(self.ledger.last)
        self.copies = space.filled("copies", n, np.int32, 0)
        self.corrupt_at: tuple[I64, I64] | None = None  # listener and position of the first bad copy
        self.arrivals: dict[int, list[int]] = {}  # listener -> copies, and of these with another hash
        self.first: dict[int, I64] = {}  # listener -> position of the first copy of each event
        # Of the first copy at any listener:
        self.received = space.filled("received", n, np.int64, schema.NEVER)
        self.judgements: U8 = space.take("judgements", n, np.uint8)

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
        if row.listener >= schema.OTHER_RUN:
            self.marks[places] |= rules.IN_OTHER_RUN
            return
        positions = row.positions(len(places))
        listener, n, space = row.listener, len(self.first), self.space
        if listener not in self.first and n >= schema.DEVICES and listener >> schema.LISTENER_BITS:
            listener = (listener & schema.LISTENER) + (schema.OTHERS << schema.LISTENER_BITS)
        if listener not in self.first:
            self.first[listener] = space.filled(f"first {n}", len(self.copies), np.int64, schema.NEVER)
        times = row.array("times", np.uint32), row.value("base")
        given = places, row.array("hashes", np.uint64), positions, *times
        sent = self.bucket.hashes, self.listed.view(np.uint8)
        wrong = space.take("wrong", len(places), np.int32)
        of_listed, differing = join(*given, *sent, self.copies, self.first[listener], self.received, wrong)
        arrivals = self.arrivals.setdefault(listener & schema.LISTENER, [0, 0])
        arrivals[0] += of_listed
        if differing and not self.plan.by_id:
            self._add_wrong(listener, places, positions, wrong[:differing])

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
        self.arrivals[listener & schema.LISTENER][1] += len(places)
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
        counts, not_ok, repeated = self._judge()
        late_at, earliest = self._find_late()
        if self.later is not None:
            yield from self._second_pass(earliest)
            return
        late_places = np.flatnonzero(self.judgements & rules.LATE) if any(late_at.values()) else not_ok[:0]
        for code in range(len(schema.STATES)):
            tables.add("sums", producers, code, counts[:, code])
        state, sent = self._states(not_ok)
        kind = state.copy()
        for code, column, of_sent in (
            (schema.LOST, Column.LOST_SENT, LOST_SENT),
            (schema.MISSING, Column.MISSING_SENT, MISSING_SENT),
        ):
            which = sent & (state == code)
            kind[which] = of_sent
            tables.count("sums", self._ids(not_ok[which])[0], int(column))
        tables.add_places(*self._ids(not_ok), kind)
        self._add_times(not_ok[sent], kind[sent])
        self._count(repeated, Column.DUPLICATED, DUPLICATED, self.copies[repeated].astype(np.int64) - 1)
        self._count(late_places, Column.REORDERED, REORDERED)
        if self.bucket.away is not None:
            nowhere = self.left_out & (self.bucket.outcome == ACKED)
            nowhere &= self.marks & rules.IN_OTHER_RUN == 0
            tables.count("sums", self._ids(np.flatnonzero(nowhere))[0], int(Column.NOWHERE))
        faults = {word: not_ok[state == code] for code, word in enumerate(schema.STATES) if code}
        for word, places in {**faults, "reordered": late_places}.items():
            # When the first and the last of them were made.
            places = places[self.bucket.listed[places]]
            tables.add_times(self._ids(places)[0], word, self.bucket.created_us[places])
        head: dict[str, Any] = {
            "at": self._by_listener(late_at),
            "gaps": self._gaps(not_ok[sent & self._lacking(not_ok, state)]),
            "elsewhere": int(counts[:, rules.ELSEWHERE].sum()),
            "longest_us": self._count_latencies(),
            "examples": self._examples(faults, repeated, late_places),
        }
        self._write_violations(faults, repeated, late_places)
        yield result_row("bucket", self.key, text=json.dumps(head))
        yield from tables.rows(self.key)
        yield from self._edges(earliest)

    def _judge(self) -> tuple[I64, I64, I64]:
        """Judge all but the order: events by producer and state, places of faults, and of repeated events."""
        bucket, producers, n = self.bucket, self.producers, len(self.copies)
        for places, mark in (
            (bucket.deferred, rules.DEFERRED),
            (bucket.has_id, rules.HAS_ID),
            (bucket.unsettled, rules.UNSETTLED),
        ):
            if places is not None:
                self.marks[places] |= mark
        self._mark_unlisted()
        common = np.where(self.ledger.whole[producers], 0, rules.NOT_WHOLE).astype(np.uint16)
        maybe_pending = self.ledger.pending_after[producers] + 1 - self._shift  # the first place that may be
        counts = np.zeros((len(producers), rules.ELSEWHERE + 1), np.int64)
        not_ok, repeated = (self.space.take(name, n, np.int64) for name in ("not_ok", "repeated"))
        given = self.copies, self.marks, bucket.starts, common, maybe_pending, rules.RULES
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

    def _by_listener(self, late: dict[int, int]) -> list[list[int]]:
        """Return for each listener: listed events, copies beyond the first, wrong hashes, and late ones."""
        out = []
        for listener, (n, wrong) in sorted(self.arrivals.items()):
            some = [first for key, first in self.first.items() if key & schema.LISTENER == listener]
            first = some[0] if len(some) == 1 else np.minimum.reduce(some)
            distinct = np.zeros(len(self.producers), np.int64)
            count_arrived(first, self.judgements, self.bucket.starts, distinct)
            self.tables.add("listeners", self.producers, listener, distinct)
            total = int(distinct.sum())
            out.append([listener, total, n - total, wrong, late.get(listener, 0)])
        return out

    def _find_late(self) -> tuple[dict[int, int], dict[int, int]]:
        """Mark the events that are late inside the bucket, and return how many each listener has.

        Return also for each listener and device whose order is judged the earliest first copy's position.
        """
        late: dict[int, int] = {}
        earliest: dict[int, int] = {}
        if not self.plan.ordered:
            return late, earliest
        for key, first in self.first.items():
            listener = key & schema.LISTENER
            if key >> schema.LISTENER_BITS == schema.OTHERS or listener in self.plan.unjudged:
                continue
            arrived, n, minimum = find_late(first, self.judgements, self.bucket.starts)
            if arrived:
                late[listener] = late.get(listener, 0) + n
                earliest[key] = minimum
        return late, earliest

    def _last_in_order(self, listener: int, limit: int) -> tuple[I64, I64]:
        """Return places and positions of the last events in order so far at a listener with its device."""
        places, positions = np.empty(limit, np.int64), np.empty(limit, np.int64)
        n = find_last(self.first[listener], self.judgements, places, positions)
        return places[limit - n :], positions[limit - n :]

    def _edges(self, earliest: dict[int, int]) -> Iterator[dict[str, Any]]:
        """Yield the rows for the order across buckets, see ``judge.py``.

        The only bucket of a producer needs no row, and the last one needs no tail.
        """
        p = int(self.producers[0])
        low = int(self.ledger.bases[p])
        edges = self.key, low, low + self.ledger.own_buckets(p)
        at, low, high = np.searchsorted(self.ledger.live, edges).tolist()
        if high - low < 2:
            return
        tail = self.plan.tail
        for listener, minimum in earliest.items():
            head = {"min": minimum, "cut": False}
            rest = b""
            if at < high - 1:
                offsets, positions = self._last_in_order(listener, tail + 1)
                head["cut"] = len(positions) > tail
                offsets, positions = offsets[-tail:], positions[-tail:]
                made, hashes = self.bucket.created_us[offsets], self.bucket.hashes[offsets].view(np.int64)
                counted = self.judgements[offsets] & rules.LATE != 0  # late inside the bucket
                offsets = np.where(counted, ~offsets, offsets)
                rest = np.concatenate((offsets, positions, made, hashes)).tobytes()
            yield result_row("order", self.key, listener, json.dumps(head), values=rest)

    def _second_pass(self, listeners: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the events that arrived after events of later buckets."""
        assert self.later is not None
        n = len(self.copies)
        more = np.zeros(n, bool)
        at: dict[int, tuple[int, int]] = {}
        late: dict[int, int] = {}
        for listener in listeners:
            places, positions = self._last_in_order(listener, n)
            late_places = np.flatnonzero(positions > self.later.get((self.key, listener), schema.NEVER))
            place = listener & schema.LISTENER
            late[place] = late.get(place, 0) + len(late_places)
            # Those that are late inside the bucket, at any listener, are counted.
            late_places = late_places[self.judgements[places[late_places]] & rules.LATE == 0]
            more[places[late_places]] = True
            for i in late_places[: self.plan.examples].tolist():
                at.setdefault(int(places[i]), (listener, int(positions[i])))
        which = np.flatnonzero(more)
        self._write_runs("reordered", which, np.ones(n, np.int64), True)
        self._count(which, Column.REORDERED, REORDERED)
        self.tables.add_times(self._ids(which)[0], "reordered", self.bucket.created_us[which])
        some = sorted(at)[: self.plan.examples]
        arrived = np.array([at[i] for i in some], np.int64).reshape(-1, 2).T
        shown = self._describe(np.array(some, np.int64), arrived, np.ones(len(some), np.int64))
        head = {
            "at": [[listener, 0, 0, 0, n] for listener, n in late.items() if n],
            "examples": {"reordered": shown},
        }
        yield result_row("bucket", self.key, text=json.dumps(head))
        yield from self.tables.rows(self.key)

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
        took = self.times.count_latencies(
            self._families, self.bucket.starts, self.bucket.created_us, self.received, self.judgements
        )
        self.tables.add("latency", self.producers[took.owner], took.cell, took.n)
        self.tables.add("longest", self.producers, 0, took.longest)
        self.tables.add("sums", self.producers, int(Column.EARLY), took.early)
        self.tables.add("sums", self.producers, int(Column.EARLY_US), took.early_us)
        return int(took.longest.max())

    def _count(self, places: I64, column: Column, kind: int, n: I64 | None = None) -> None:
        p, sequences = self._ids(places)
        self.tables.count("sums", p, int(column), n)
        self.tables.add_places(p, sequences, kind, n)
        self._add_times(places, kind, n)

    def _describe(self, places: I64, arrived: Iterable[I64], copies: npt.NDArray[Any]) -> list[list[Any]]:
        """Return the fields of `Example` for some events."""
        bucket = self.bucket
        known = bucket.listed[places], bucket.hashes[places], bucket.created_us[places]
        columns = (column.tolist() for column in (*self._ids(places), *arrived, copies, *known))
        return [
            [self.ledger.name(p), sequence, None, *row, *((hash_, made) if row[-1] else (None, None))]
            for p, sequence, *row, hash_, made in zip(*columns, strict=True)
        ]

    def _arrivals(self, places: I64, word: str) -> tuple[I64, I64]:
        """Return the lowest listener that got each event, and the position there; -1 and 0: none did.

        Of corrupted events return where the first bad copy arrived.
        """
        if word == "corrupted" and self.corrupt_at is not None:
            return self.corrupt_at[0][places], self.corrupt_at[1][places]
        found, at = np.full(len(places), -1, np.int64), np.zeros(len(places), np.int64)
        for listener in sorted(self.first, reverse=True):
            positions = self.first[listener][places]
            arrived = positions != schema.NEVER
            found[arrived], at[arrived] = listener, positions[arrived]
        return found, at

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
        out: dict[str, list[list[Any]]] = {}
        for word, which in {**faults, "duplicated": repeated, "reordered": late}.items():
            if len(which) and word not in ("dropped", "pending"):
                few = self._few(which, word)
                out[word] = self._describe(few, self._arrivals(few, word), self.copies[few])
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
