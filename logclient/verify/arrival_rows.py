"""Step 2 of a comparison: arrivals, as rows of their buckets. ``judge.py`` explains the whole comparison."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient._ext.arrivals import locate, measure, spread
from logclient.errors import LedgerError
from logclient.evidence import decode, storage
from logclient.evidence.arrays import I32, I64, U64
from logclient.evidence.reports import SegmentReport
from logclient.evidence.segments import YEAR_2255, Batch, Segment, SegmentReader
from logclient.evidence.selection import EVERYTHING
from logclient.verify import rules, schema
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.ledger_rows import share_of
from logclient.verify.outside import contained
from logclient.verify.plan import Buckets, Plan
from logclient.verify.rows import Rows, blobs, distances, report_row, row_batch, rows_of_keys

WIDE = 1 << 16  # a range of buckets for which there are tables
NO_BUCKET = -1
ROWS = 1 << 17  # events packed at a time, so that a row has at most 3 MB
MANY = 8  # times as many where they belong to many buckets
FEW = 1 << 12  # events of a row: of fewer, the row costs more than they do
SAMPLE = 1 << 12  # events by which the number of buckets is estimated


Bools = npt.NDArray[np.bool_]

# The columns that identify an event, without its place in the unit.
_IDENTITY = ("status", "producer", "high", "low", "sequence", "hash", "id_hash")


def _joined(pieces: list[tuple[decode.Events, I64, I64]]) -> tuple[decode.Events, I64, I64]:
    """Join pieces into one: of the events, the columns of `_IDENTITY` and the device."""
    if len(pieces) == 1:
        return pieces[0]
    events = [piece[0] for piece in pieces]
    device = [x.own["device"] for x in events if "device" in x.own]
    columns: dict[str, Any] = {name: np.concatenate([getattr(x, name) for x in events]) for name in _IDENTITY}
    columns["own"] = {"device": np.concatenate(device)} if device else {}
    positions, received = (np.concatenate([piece[i] for piece in pieces]) for i in (1, 2))
    return events[0]._replace(**columns), positions, received


def _halves(events: decode.Events, rows: I64) -> tuple[U64, U64]:
    """Return both halves of some ids of 32 hex digits."""
    low = events.low[rows].astype(np.uint64) << np.uint64(48) | events.sequence[rows].astype(np.uint64)
    return events.high[rows], low


class EventBuffer:
    """A buffer of events until there are enough for a row.

    Small reads stay in the processor's cache, and few rows are cheap to shuffle. Where many producers log at
    a time, events have many buckets and the buffer is larger.
    """

    def __init__(self, writer: BucketWriter, listener: int) -> None:
        self.writer = writer
        self.listener = listener
        self.least = min(ROWS, writer.plan.units)
        self.most = 0  # events, by the buckets of the first ones
        self.pieces: list[tuple[decode.Events, I64, I64]] = []
        self.held = 0

    def add(self, events: decode.Events, positions: I64, received: I64) -> Rows:
        """Add events in the order of arrival, and yield the batches of rows that are complete."""
        for low in range(0, len(positions), ROWS):
            some = slice(low, low + ROWS)
            at = received[some]
            if int(at.min()) < 0 or int(at.max()) >= YEAR_2255:
                at = np.where((at < 0) | (at >= YEAR_2255), schema.NEVER, at)
            piece = (events.part(some), positions[some], at)
            if self.held + len(piece[1]) > self.most:
                yield from self.flush()
            if not self.pieces:
                buckets = self.writer.count_buckets(piece[0])
                self.most = max(self.least, min(FEW * buckets, MANY * self.least))
            self.pieces.append(piece)
            self.held += len(piece[1])

    def flush(self) -> Rows:
        """Yield the rest as a batch of rows."""
        if self.pieces:
            yield from self.writer.batch(*_joined(self.pieces), self.listener)
            self.pieces, self.held = [], 0


class BucketWriter:
    """A writer of arrivals as rows of their buckets, for a second pass only of some."""

    def __init__(self, plan: Plan, facts: LedgerFacts, only: Buckets) -> None:
        self.plan = plan
        self.ledger = facts
        self.all_addressed = bool(facts.addressed.all())
        self.needs_json = bool(facts.addressed.any())  # a body without an id may be any bytes
        # By protocol. One that carries something from unit to unit has a task for each listener.
        self.decoders: dict[str, Callable[[Batch], decode.Events]] = {}
        self.app_envs = [name.encode() for name in plan.app_envs]
        self.density = 0.05  # events per byte; a first guess
        self.report = SegmentReport("", "", "")  # of the segment that is read
        # Producers whose events have no ids have no places.
        self.before, self.places = np.append(facts.before, 0), np.append(facts.places, 0)
        self.bases = np.append(facts.bases[:-1], 0)
        self.starts = np.append(facts.starts, 0).astype(np.int32)
        self.selection = plan.selection
        self.only = only
        self.live = facts.live if only is None else np.array(sorted(only), np.int64)
        # Usually all buckets are live, and no look-up is needed.
        self.all_live = only is None and len(facts.live) == int(facts.bases[-1])

    def segment(self, segment: Segment, listener: int, first: int, protocol: str) -> Rows:
        """Yield the rows of one of `Plan.segments`, and its report. Those of a listener come in order."""
        folder = os.path.dirname(segment.path)
        if not storage.is_url(folder) and not os.path.isdir(folder):
            # A segment alone may have been deleted meanwhile, which is a doubt; this is no shared storage.
            raise LedgerError(f"capture: {folder}: No such directory")
        reader = SegmentReader(segment, units=self.plan.units, chunk=self.plan.chunk, peers=False)
        named = segment.listener, segment.name, listener, segment.number, segment.size, protocol
        self.report = report = SegmentReport(*named)
        if protocol and protocol not in self.decoders:
            self.decoders[protocol] = decode.decoder(protocol, self.ledger.prefixes)
        find = self.decoders.get(protocol)
        buffer = EventBuffer(self, listener)
        for batch in reader:
            units = np.flatnonzero(batch.direction == 0)
            report.acks += len(batch.offset) - len(units)
            end_us = int(batch.received_us[-1])
            report.end_us = end_us if 0 < end_us < YEAR_2255 else 0
            if find is None:
                continue
            for which in self._shares(batch, units):
                part = batch if len(which) == len(batch.offset) else batch.take(which)
                events = self.marked(find(part))
                self.density = max(len(events.unit) / max(int(part.length.sum()), 1), 1e-6)
                if events.own and self.app_envs:
                    others = decode.find_other_app_envs(part, events, self.app_envs)
                    events = decode.mark(events, self._without_known(events, others), "other")
                if int(events.within.max(initial=0)) >> schema.EVENT_BITS:
                    raise OverflowError(f"capture: {segment.name}: too many events in a unit to number them")
                at = part.base + part.offset
                report.count(at, part.received_us, events, self.selection, self.plan.examples)
                received = part.received_us[events.unit]
                positions = (first + batch.ordinal + which[events.unit]) << schema.EVENT_BITS
                positions += events.within
                yield from buffer.add(events, positions, received)
        yield from buffer.flush()
        if self.only is not None:
            return
        report.counts = dict(reader.counts)
        report.problems = [list(problem) for problem in reader.problems]
        if (header := reader.header) is not None:
            report.run, report.host = header.run, header.host
            report.url, report.source = header.url, header.source
            if not protocol:
                report.counts["damage"] += 1
                why = f"its header names the unknown protocol {header.protocol[:40]!r}"
                report.problems.append(["damage", segment.name, 0, why])
        if n := report.undecodable.get(decode.NO_LIBRARY):
            # Each of these may be an event that was sent, so no event counts as lost.
            report.counts["unreadable"] = n
            why = f"{n:,} bodies need python-snappy or lz4 to be opened"
            report.problems.append(["unreadable", segment.name, 0, why])
        report.header, report.closed, report.units = header is not None, reader.closed, reader.units
        report.first_arrival, report.next_arrival = reader.first_arrival, reader.next_arrival
        yield report_row(report)

    def _shares(self, batch: Batch, units: I64) -> Iterator[I64]:
        """Yield units in shares of about `ROWS` events. Compressed units hold many events in few bytes."""
        reach = np.cumsum(batch.length[units])
        low = 0
        while low < len(units):
            most = int(ROWS / self.density) + (int(reach[low - 1]) if low else 0)
            high = max(int(np.searchsorted(reach, most, side="right")), low + 1)
            yield units[low:high]
            low = high

    def count_buckets(self, events: decode.Events) -> int:
        """Return the number of buckets of the first of some events."""
        which = np.flatnonzero(events.status[:SAMPLE] == decode.OK)
        bucket, places = np.empty(len(which), np.int64), np.empty(len(which), np.int32)
        self._locate(events.producer[which].astype(np.int64), events.sequence[which], bucket, places)
        return len(np.unique(bucket))

    def _locate(self, producer: I64, sequence: I64, bucket: I64, places: I32) -> int:
        tables = self.before, self.places, self.bases, self.starts
        return locate(producer, sequence, *tables, self.plan.bits, bucket, places)

    def batch(self, events: decode.Events, positions: I64, received: I64, listener: int) -> Rows:
        """Yield the rows of some events of a listener, in the order of arrival."""
        if self.plan.ordered and not bool((positions[1:] > positions[:-1]).all()):
            raise AssertionError("positions must rise: they decide which copy of an event arrived first")
        # Events of a producer that came through two devices have no common order: treat each device as a
        # listener.
        device = events.own.get("device", np.zeros(1, np.int64)).astype(np.int64)
        numbers = device[:1] if (device == device[0]).all() else np.unique(device)
        if len(numbers) > schema.DEVICES:
            device = np.where(np.isin(device, numbers[: schema.DEVICES]), device, schema.OTHERS)
            numbers = np.append(numbers[: schema.DEVICES], schema.OTHERS)
        for number in numbers.tolist():
            which: Any = np.flatnonzero(device == number) if len(numbers) > 1 else slice(None)
            part = events._replace(**{name: getattr(events, name)[which] for name in _IDENTITY})
            own = (listener << schema.DEVICE_BITS) + number
            yield from self._one_order(part, positions[which], received[which], own)

    def marked(self, events: decode.Events) -> decode.Events:
        """Return events as these ledgers see them: test events are apart, and bodies need not be JSON."""
        if not self.needs_json:
            status = np.where(events.status == decode.NOT_JSON, np.uint8(decode.NO_ID), events.status)
            events = events._replace(status=status)
        foreign = np.flatnonzero(events.status == decode.FOREIGN)
        checks = foreign[events.high[foreign] >> np.uint64(32) == decode.CHECK]
        if len(checks):
            events = decode.mark(events, self._without_known(events, checks), "check")
        return events

    def _without_known(self, events: decode.Events, rows: I64) -> I64:
        """Return those of some rows whose event has no id that an application chose in these ledgers."""
        named = events.status[rows] == decode.FOREIGN
        named[named] = self._find_own(events, rows[named]) >= 0
        others: I64 = rows[~named]
        return others

    def _one_order(self, events: decode.Events, positions: I64, received: I64, listener: int) -> Rows:
        """Yield the rows of some events that have a common order."""
        ok = events.status == decode.OK
        if not self.all_addressed:
            ok &= self.ledger.addressed[np.where(ok, events.producer, 0)]
        producer = events.producer.astype(np.int64)
        sequence = events.sequence
        hashes = events.hash
        rest = None  # events that belong to no sequence
        if not ok.all():
            producer[~ok] = schema.WITHOUT_ID
            own = np.flatnonzero(~ok & (events.status <= decode.FOREIGN))
            if len(self.ledger.ids) and len(own):
                found = self._find_own(events, own)
                own, found = own[found >= 0], found[found >= 0]
                sequence = sequence.copy()
                producer[own], sequence[own] = self.ledger.ids[found, 2:].astype(np.int64).T
            rest = ~ok & (events.status <= decode.NO_ID) & (producer < 0)
        if len(self.ledger.shared):
            producer = self._without_shared(producer, sequence)
        self.report.known += len(producer) if rest is None else int((producer >= 0).sum())
        by_hash = None  # events whose id several events have, which are compared by hash
        if len(self.ledger.ids) and (of_several := producer >= len(self.ledger)).any():
            by_hash = producer == len(self.ledger)
            producer = np.where(of_several, schema.WITHOUT_ID, producer)
            rest = of_several if rest is None else rest | of_several
        n = len(producer)
        bucket, places = np.empty(n, np.int64), np.empty(n, np.int32)
        known = self._locate(producer, sequence, bucket, places)
        outside = None
        if self.selection != EVERYTHING:
            outside = self._outside(producer, sequence, received)
            bucket[outside] = NO_BUCKET
        if not self.all_live:
            at = np.minimum(np.searchsorted(self.live, bucket), max(len(self.live) - 1, 0))
            bucket[(self.live[at] != bucket) if len(self.live) else slice(None)] = NO_BUCKET
        if outside is not None or not self.all_live:
            known = int(np.count_nonzero(bucket != NO_BUCKET))
        if known:
            yield from self._sorted_rows(bucket, known, listener, places, hashes, positions, received)
        if known == n or self.only is not None:
            return
        unlisted = (bucket == NO_BUCKET) & (producer >= 0)
        if rest is not None and self.plan.anonymous_shares:
            if len(which := np.flatnonzero(rest)):
                keys = schema.ANONYMOUS - share_of(hashes[which], self.plan.anonymous_shares)
                given = self.plan.partition, keys, listener, positions[which]
                yield rows_of_keys(*given, hashes=hashes[which])
        elif rest is not None and self.plan.others != "ignore":
            if outside is not None:
                rest = self._selected_strangers(events, rest, by_hash)
            unlisted |= rest
        if outside is not None:
            unlisted &= ~outside
        if len(which := np.flatnonzero(unlisted)):
            marks = self._unlisted_marks(producer[which], received[which])
            for code in np.unique(marks).tolist():
                some = which[marks == code]
                yield self._unlisted_rows(events, producer, sequence, some, positions, listener, code)

    def _outside(self, producer: I64, sequence: I64, received: I64) -> Bools:
        """Return which events are not selected: by their sequence, else by their time of arrival."""
        outside: Bools = (self.selection.place(received) != 0) & (received != schema.NEVER)
        ours = np.flatnonzero(producer >= 0)
        outside[ours] = ~self.ledger.selected[producer[ours]]
        outside[ours] |= contained(self.ledger.outside, producer[ours], sequence[ours])
        return outside

    def _selected_strangers(self, events: decode.Events, rest: Bools, by_hash: Bools | None) -> Bools:
        """Return which unassigned events a selection judges: not those that only a hash could identify."""
        table = self.ledger.left_out_hashes
        if len(table):
            which = np.flatnonzero(rest)
            at = np.minimum(np.searchsorted(table, events.hash[which]), len(table) - 1)
            alike = table[at] == events.hash[which]
            self.report.matched |= bool(alike.any())
            rest = rest.copy()
            rest[which[alike]] = False
        if by_hash is not None:
            rest = rest & ~by_hash
        # plog has no place for an id outside of a body: one without any is known by the hash of the body.
        named: Bools = rest & (events.status != decode.NO_ID)
        named &= (events.status != decode.FOREIGN) | (events.id_hash[:, 0] != events.hash)
        return named

    def _sorted_rows(
        self, bucket: I64, known: int, listener: int, places: I32, hashes: U64, positions: I64, received: I64
    ) -> Rows:
        """Yield rows of the `known` events with a bucket, by bucket, then in the order of arrival."""
        given = bucket
        some = bucket if known == len(bucket) else bucket[bucket != NO_BUCKET]
        low = int(some.min())
        n = int(some.max()) - low + 1
        names = None
        if n > WIDE:
            names = np.unique(some)
            bucket = np.where(bucket == NO_BUCKET, NO_BUCKET, np.searchsorted(names, bucket))
            low, n = 0, len(names)
        sizes, base, last = np.zeros(n, np.int64), np.full(n, schema.NEVER, np.int64), np.zeros(n, np.int64)
        measure(bucket, received, low, sizes, base, last)
        base[base == schema.NEVER] = 0
        if int((last - base).max()) >= schema.NO_TIME:  # more than 71 minutes: cut it into half hours
            halves = np.where(received == schema.NEVER, 0, received >> 31)
            for half in np.unique(halves).tolist():
                some = np.where(halves == half, given, NO_BUCKET)
                known = int(np.count_nonzero(some != NO_BUCKET))
                if known:
                    yield from self._sorted_rows(some, known, listener, places, hashes, positions, received)
            return
        starts = np.cumsum(sizes) - sizes
        columns: list[Any] = [np.empty(known, kind) for kind in ("<i4", "<u8", "<i8", "<u4")]
        spread(bucket, places, hashes, positions, received, low, starts.copy(), base, *columns)
        used = np.flatnonzero(sizes)
        keys = used + low if names is None else names[used]
        edges = np.append(starts[used], known)
        places, hashes, positions, times = columns
        yield row_batch(
            len(keys),
            part=self.plan.partition(keys),
            key=keys,
            listener=listener,
            position=positions[edges[:-1]],
            base=base[used],
            places=blobs(places, edges),
            hashes=blobs(hashes, edges),
            positions=blobs(distances(positions, edges), edges),
            times=blobs(times, edges),
        )

    def _find_own(self, events: decode.Events, rows: I64) -> I64:
        """Return for each of some rows with an id its index among the ids that applications chose, or -1."""
        table = self.ledger.ids
        if not len(table):
            return np.full(len(rows), -1)
        high, low = events.id_hash[rows].T.copy()
        # The decoder names no id of a producer that it knows.
        ours = np.flatnonzero(events.status[rows] == decode.OK)
        high[ours], low[ours] = _halves(events, rows[ours])
        first = np.searchsorted(table[:, 0], high, side="left")
        end = np.searchsorted(table[:, 0], high, side="right")
        last = end - 1
        # Many ids may share their first half: search for the second one.
        while (narrow := np.flatnonzero(first < last)).size:
            middle = (first[narrow] + last[narrow]) // 2
            above = table[middle, 1] < low[narrow]
            first[narrow[above]] = middle[above] + 1
            last[narrow[~above]] = middle[~above]
        hit = first < end
        hit[hit] = table[first[hit], 1] == low[hit]
        return np.where(hit, first, -1)

    def _without_shared(self, producer: I64, sequence: I64) -> I64:
        """Return the producers, with numbers that none has where an event's id is another one's too."""
        producer = producer.copy()
        shared = self.ledger.shared
        for p in np.intersect1d(producer, self.ledger.shared_by).tolist():
            rows = np.flatnonzero(producer == p)
            own = shared[slice(*np.searchsorted(self.ledger.shared_by, (p, p + 1)))]
            at = np.minimum(np.searchsorted(own[:, 1], sequence[rows]), len(own) - 1)
            same = own[at, 1] == sequence[rows]
            producer[rows[same]] = len(self.ledger) + 1 - own[at[same], 3]
        return producer

    def _unlisted_rows(
        self,
        events: decode.Events,
        producer: I64,
        sequence: I64,
        which: I64,
        positions: I64,
        listener: int,
        marks: int,
    ) -> pa.RecordBatch:
        """Return rows of ids that are not in a bucket: owner and 128 bits each, and as base their marks."""
        strange = producer[which] < 0
        owner = np.where(strange, schema.UNKNOWN_PRODUCER, producer[which]).astype(np.int32)
        high, low = _halves(events, which)
        a = np.where(strange, high, sequence[which].astype(np.uint64))
        b = np.where(strange, low, np.uint64(0))
        own = strange & (events.status[which] == decode.FOREIGN) & (high | low == 0)
        (a[own], b[own]), owner[own] = events.id_hash[which[own]].T, schema.APPLICATION_ID
        none = strange & (events.status[which] == decode.NO_ID)
        a[none], b[none], owner[none] = events.hash[which[none]], 0, schema.WITHOUT_ID
        mixed = (a ^ (b * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
        keys = schema.UNLISTED - (mixed >> np.uint64(58)).astype(np.int64)
        given = self.plan.partition, keys, listener, positions[which]
        return rows_of_keys(*given, marks, places=owner, hashes=a, times=b)

    def _unlisted_marks(self, producer: I64, received: I64) -> I64:
        """Return the marks `rules.OVERDUE` and `rules.BEFORE_END` of some events that no ledger lists."""
        known = producer >= 0
        complete_us = self.ledger.complete_us[np.where(known, producer, 0)]
        overdue = received <= np.where(known, complete_us, self.ledger.all_complete_us)
        return overdue * rules.OVERDUE | self.plan.is_before_end(received) * rules.BEFORE_END
