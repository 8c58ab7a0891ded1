"""The first stage of the comparison: what arrived, packed into a file, one stretch for each bucket.

See ``compare.py`` for the whole.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.verify import decode, sources
from logclient.verify.compare import (
    ARRIVALS,
    DEVICES,
    EVENT_BITS,
    FACT,
    LISTENER_BITS,
    NEVER,
    NOBODY,
    OTHERS,
    PHANTOM,
    POOL,
    STRANGER,
    TIMELESS,
    UNIT_BITS,
    USERS_OWN,
    Plan,
)
from logclient.verify.devices import Stretches
from logclient.verify.ledger import I64, U64, Ledger
from logclient.verify.overview import Grid

__all__ = ["Facts", "Mapper", "Pieces", "map_task"]

YEAR_2255 = 1 << 53  # microseconds: who received something later, or before 1970, does not know the time
ROWS = 1 << 17  # events packed at a time, which bounds what a stretch can hold: 3 MB


def map_task(work: str, number: int, only: frozenset[int] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one task. With `only`, a second pass: nothing but the arrivals of these buckets."""
    plan = Plan.load(work)
    packed = Ledger(work, plan.bits)
    task = plan.tasks[number]
    # A name of its own for each attempt: rows name the file that they are in.
    name = f"{number}-{uuid.uuid4().hex}.arrivals"
    with open(os.path.join(work, name), "wb", buffering=0) as file:
        mapper = Mapper(plan, packed, only, name, file)
        if only is None:
            low, high = task["live"]
            yield from mapper.skeleton(packed.live[low:high])
        for segment in task.get("segments", ()):
            yield from mapper.segment(plan.segments[segment])
        if only is None:
            for index in task.get("pool", ()):
                yield from mapper.pool(index)


# Of events, what tells whose they are, not where in their unit.
_WHOSE = ("status", "producer", "high", "low", "sequence", "hash", "id_hash")


def _joined(pieces: list[tuple[decode.Events, I64, I64]]) -> tuple[decode.Events, I64, I64]:
    """One piece of several; of the events, `_WHOSE` and the device."""
    if len(pieces) == 1:
        return pieces[0]
    events = [piece[0] for piece in pieces]
    device = [x.own["device"] for x in events if "device" in x.own]
    columns: dict[str, Any] = {name: np.concatenate([getattr(x, name) for x in events]) for name in _WHOSE}
    return (
        events[0]._replace(
            **columns,
            own={"device": np.concatenate(device)} if device else {},
        ),
        np.concatenate([piece[1] for piece in pieces]),
        np.concatenate([piece[2] for piece in pieces]),
    )


def _follow(devices: Stretches, events: decode.Events) -> None:
    """Keep account of what devices published: producers have no number, and requests come from them."""
    if not events.own:
        return
    mine = np.flatnonzero((events.own["device"] != 0) & (events.own["request"] == 0))
    if len(mine):
        beat = events.status[mine] == events.names.index("heartbeat")
        devices.add(events.own["device"][mine], events.own["number"][mine], beat)


class Facts:
    """What a task has to say of a segment, or of a share of some records, beside its events.

    Args:
        where: goes into each row of what did not decode.
    """

    def __init__(self, plan: Plan, **where: int) -> None:
        self.most = plan.examples
        self.where = where
        self.fields: dict[str, Any] = {
            "acks": 0,
            "events": 0,
            "quiet": {},
            "undecodable": {},
            "undecoded": [],
            "first_us": 0,
            "last_us": 0,
            "timeless": 0,
            "devices": [],
            "devices_left_out": 0,
        }

    def count(self, name: str, at: I64, received: I64, events: decode.Events) -> None:
        """Some units, where they are in what is called `name`, and what they hold."""
        fields = self.fields
        bad = events.status >= decode.NOT_JSON
        fields["events"] += int((events.status <= decode.NOT_JSON).sum())
        timed = received[(received >= 0) & (received < YEAR_2255)]
        fields["timeless"] += len(received) - len(timed)
        if len(timed):
            first, last = int(timed.min()), int(timed.max())
            fields["first_us"] = min(fields["first_us"] or first, first)
            fields["last_us"] = max(fields["last_us"], last)
        if not bad.any():
            return
        for code, word in enumerate(events.names):
            if word in decode.QUIET:  # a message of Logux for each of its actions, say
                those = events.status == code
                if n := int(those.sum()):
                    fields["quiet"][word] = fields["quiet"].get(word, 0) + n
                    bad &= ~those
        for row in np.flatnonzero(bad):
            word = events.names[events.status[row]]
            self.undecodable(word, name, int(at[events.unit[row]]), int(events.offset[row]))

    def undecodable(self, word: str, name: str, at: int, offset: int) -> None:
        """A thing that did not decode, `offset` bytes from the start of the unit that is `at`."""
        fields = self.fields
        fields["undecodable"][word] = fields["undecodable"].get(word, 0) + 1
        if len(fields["undecoded"]) < self.most:
            fields["undecoded"].append(
                {"segment": name, "unit_at": at, "reason": word, "offset": offset, **self.where}
            )


class Pieces:
    """Events on their way into rows: small reads stay in the cache of the processor, few rows cost little
    to shuffle."""

    def __init__(self, mapper: Mapper, listener: int) -> None:
        self.mapper = mapper
        self.listener = listener
        self.most = min(ROWS, mapper.plan.units)
        self.pieces: list[tuple[decode.Events, I64, I64]] = []
        self.held = 0

    def add(self, events: decode.Events, xs: I64, received: I64) -> Iterator[pa.RecordBatch]:
        for low in range(0, len(xs), ROWS):
            some = slice(low, low + ROWS)
            at = received[some]
            if int(at.min()) < 0 or int(at.max()) >= YEAR_2255:
                at = np.where((at < 0) | (at >= YEAR_2255), NEVER, at)
            piece = (events.part(some), xs[some], at)
            if self.held + len(piece[1]) > self.most:
                yield from self.rest()
            self.pieces.append(piece)
            self.held += len(piece[1])

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self.pieces:
            yield from self.mapper.batch(*_joined(self.pieces), self.listener)
            self.pieces, self.held = [], 0


class Mapper:
    """Packs what arrived into a file of the work folder, and makes the rows that say where it is."""

    def __init__(
        self, plan: Plan, packed: Ledger, only: frozenset[int] | None, name: str, file: IO[bytes]
    ) -> None:
        self.name = name
        self.file = file
        self.end = 0  # of the file
        self.plan = plan
        self.ledger = packed
        self.mask = (1 << plan.bits) - 1
        self.owners = np.flatnonzero(packed.addressed)
        prefixes = np.frombuffer(packed.prefixes, np.uint8).reshape(-1, 10)
        self.prefixes = prefixes[self.owners].tobytes()
        self.decoders: dict[int, Callable[[sources.Batch], decode.Events]] = {}
        self.pools = plan.pools > 0
        self.app_envs = [name.encode() for name in plan.app_envs]
        self.grid = Grid(*plan.grid)
        self.density = 0.05  # events per byte, to begin with
        self.known = 0  # events of a producer of the ledgers
        self.last = np.append(packed.last, 0)
        self.bases = np.append(packed.bases[:-1], 0)
        self.only = np.array(sorted(only), np.int64) if only is not None else None
        self.live = packed.live if self.only is None else self.only
        # When every bucket is live, which is the rule, none has to be looked up.
        self.all_live = self.only is None and len(packed.live) == int(packed.bases[-1])

    def part(self, keys: I64) -> npt.NDArray[np.int32]:
        """Buckets evenly over the partitions, whatever their numbers are."""
        place = np.where(keys >= 0, np.searchsorted(self.ledger.live, keys), -keys)
        return (place % self.plan.partitions).astype(np.int32)

    def rows(
        self,
        keys: I64,
        listener: int,
        starts: I64,
        offs: npt.NDArray[Any],
        hashes: U64,
        xs: I64,
        received: npt.NDArray[np.int64] | None,
        b: U64 | None = None,
    ) -> pa.RecordBatch:
        """One row for each slice, end to end; `received` becomes a base and 32 bits an event."""
        n = len(keys)
        base = np.zeros(n, np.int64)
        shift = np.zeros(n, np.int32)
        columns: list[npt.NDArray[Any]] = [offs, hashes, xs]
        if received is not None:
            base = np.minimum.reduceat(received, starts)
            sizes = np.diff(np.append(starts, len(xs)))
            timeless = None
            if int(received.max()) == NEVER:
                timeless = received == NEVER
                base[base == NEVER] = 0
                received = np.where(timeless, np.repeat(base, sizes), received)
            width = np.maximum.reduceat(received, starts) - base
            if int(width.max()) >= TIMELESS:  # more than 71 minutes in one row: coarser by a few microseconds
                shift = np.maximum(np.frexp(width.astype(np.float64))[1] - 31, 0).astype(np.int32)
                after = (received - np.repeat(base, sizes)) >> np.repeat(shift, sizes)
            else:
                after = received - np.repeat(base, sizes)
            if timeless is not None:
                after[timeless] = TIMELESS
            columns.append(after.astype(np.uint32))
        elif b is not None:
            columns.append(b)
        places = [self.write(column) + starts * column.itemsize for column in columns]
        return self.record(keys, listener, np.append(starts, len(xs)), xs[starts], base, shift, places)

    def write(self, values: npt.NDArray[Any]) -> int:
        """Where in the file they are now."""
        data = np.ascontiguousarray(values).view(np.uint8).data
        at = self.end
        while len(data):
            done = self.file.write(data)
            self.end += done
            data = data[done:]
        return at

    def record(
        self, keys: I64, listener: int, edges: I64, x: I64, base: I64, shift: Any, places: list[I64]
    ) -> pa.RecordBatch:
        n = len(keys)
        return pa.record_batch(
            [
                pa.array(self.part(keys)),
                pa.array(keys),
                pa.array(np.full(n, listener, np.int64)),
                pa.array(x),
                pa.array(base),
                pa.array(shift),
                pa.repeat(pa.scalar(self.name), n),
                pa.array(np.diff(edges).astype(np.int32)),
                *(pa.array(places[i]) if i < len(places) else pa.nulls(n, pa.int64()) for i in range(4)),
            ],
            schema=ARRIVALS,
        )

    def skeleton(self, live: I64) -> Iterator[pa.RecordBatch]:
        """An empty row for each bucket: one in which nothing arrived must say so."""
        n = len(live)
        if n:
            none = np.zeros(n + 1, np.int64)
            yield self.record(live, -1, none, none[1:], none[1:], none[1:].astype(np.int32), [])

    def fact(self, fields: dict[str, Any]) -> pa.RecordBatch:
        """A row whose text is in the file."""
        text = np.frombuffer(json.dumps(fields).encode(), np.uint8)
        none = np.zeros(1, np.int64)
        return self.record(
            np.array([FACT]), 0, np.array([0, len(text)]), none, none, none.astype(np.int32),
            [none + self.write(text)],
        )  # fmt: skip

    # -- captures

    def decoder(self, protocol: str, listener: int) -> Callable[[sources.Batch], decode.Events]:
        """A decoder for the next segment of a listener."""
        find = self.decoders.get(listener)
        if find is None:
            find = decode.decoder(protocol, self.prefixes, bool(len(self.owners)))
            if decode.carries(protocol):
                self.decoders[listener] = find
        return find

    def segment(self, entry: list[Any]) -> Iterator[pa.RecordBatch]:
        fields, listener, rank, protocol = entry
        segment = sources.Segment(*fields)
        reader = sources.SegmentReader(segment, units=self.plan.units, chunk=self.plan.chunk)
        facts = Facts(self.plan)
        self.known = 0
        find = self.decoder(protocol, listener) if protocol else None
        devices = Stretches(segment.listener)
        pieces = Pieces(self, listener)
        for batch in reader:
            if batch.ordinal + len(batch.offset) > 1 << UNIT_BITS:
                raise OverflowError(f"capture: {segment.name}: too many units to number them")
            units = np.flatnonzero(batch.direction == 0)
            facts.fields["acks"] += len(batch.offset) - len(units)
            if find is None:
                continue
            for which in self.shares(batch, units):
                part = batch if len(which) == len(batch.offset) else batch.take(which)
                events = find(part)
                self.learn(part, events)
                if events.own and self.app_envs:
                    events = decode.without_others(part, events, self.app_envs)
                if self.only is None:
                    _follow(devices, events)
                if int(events.within.max(initial=0)) >> EVENT_BITS:
                    raise OverflowError(f"capture: {segment.name}: too many events in a unit to number them")
                facts.count(segment.name, part.base + part.offset, part.received_us, events)
                received = part.received_us[events.unit]
                xs = ((np.int64(rank) << UNIT_BITS) + batch.ordinal + which[events.unit]) << EVENT_BITS
                xs += events.within
                yield from pieces.add(events, xs, received)
        yield from pieces.rest()
        if self.only is not None:
            return
        counts = dict(reader.counts)
        problems = [list(problem) for problem in reader.problems]
        if decode.NO_LIBRARY in facts.fields["undecodable"]:
            # It may well be an event that was sent: nothing can be called lost.
            n = counts["unreadable"] = facts.fields["undecodable"][decode.NO_LIBRARY]
            problems.append(
                ["unreadable", segment.name, 0, f"{n:,} bodies need python-snappy or lz4 to be opened"]
            )
        facts.fields.update(
            devices=[list(device) for device in devices.devices.values()],
            devices_left_out=devices.left_out,
            listener=segment.listener,
            index=listener,
            rank=rank,
            number=segment.number,
            name=segment.name,
            size=segment.size,
            protocol=protocol,
            units=reader.units,
            problems=problems,
            counts=counts,
            first_arrival=reader.first_arrival,
            next_arrival=reader.next_arrival,
            closed=reader.closed,
            header=reader.header is not None,
            known=self.known,
        )
        if reader.header is not None:
            facts.fields.update(
                run=reader.header.run,
                host=reader.header.host,
                url=reader.header.url,
                source=reader.header.source,
            )
        yield self.fact(facts.fields)

    def shares(self, batch: sources.Batch, units: I64) -> Iterator[I64]:
        """Units in shares of about `ROWS` events, as far as units so far tell: compressed ones hold many."""
        if not len(units):
            return
        reach = np.cumsum(batch.length[units])
        low = 0
        while low < len(units):
            most = int(ROWS / self.density) + (int(reach[low - 1]) if low else 0)
            high = max(int(np.searchsorted(reach, most, side="right")), low + 1)
            yield units[low:high]
            low = high

    def learn(self, part: sources.Batch, events: decode.Events) -> None:
        """Keep the density of events in the units, in events per byte."""
        self.density = max(len(events.unit) / max(int(part.length.sum()), 1), 1e-6)

    def batch(self, events: decode.Events, xs: I64, received: I64, listener: int) -> Iterator[pa.RecordBatch]:
        """The rows of one batch of events of a listener."""
        if not bool((xs[1:] > xs[:-1]).all()):
            raise AssertionError("arrivals must rise: the first copy of an event is told by it")
        device = events.own.get("device")
        if device is None or not device.any():
            yield from self.endpoint(events, xs, received, listener)
            return
        # Each device is an endpoint: events of a producer that came by two of them have no common order.
        if bool((device == device[0]).all()):
            yield from self.endpoint(events, xs, received, listener + (int(device[0]) << LISTENER_BITS))
            return
        device = device.astype(np.int64)
        numbers = np.unique(device)
        if len(numbers) > DEVICES:
            device = np.where(np.isin(device, numbers[:DEVICES]), device, OTHERS)
            numbers = np.append(numbers[:DEVICES], OTHERS)
        for number in numbers.tolist():
            which = np.flatnonzero(device == number)
            mine = events._replace(**{name: getattr(events, name)[which] for name in _WHOSE})
            yield from self.endpoint(mine, xs[which], received[which], listener + (number << LISTENER_BITS))

    def endpoint(
        self, events: decode.Events, xs: I64, received: I64, listener: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one batch of events that have a common order."""
        ok = events.status == decode.OK
        sequence = events.sequence
        hashes = events.hash
        if ok.all():
            producer = self.owners[events.producer]
            rest = None
        else:
            producer = np.where(
                ok, self.owners[np.where(ok, events.producer, 0)] if len(self.owners) else 0, NOBODY
            )
            rest = ~ok & (events.status <= decode.NO_ID)
            if len(self.ledger.ids) and (events.status == decode.FOREIGN).any():
                producer, sequence = self.by_users_id(events, producer, sequence)
                rest &= producer < 0
        if len(self.ledger.pooled):
            producer, sequence = self.without_pooled(producer, sequence)
            rest = ~ok & (producer < 0) if rest is None else rest
        self.known += len(producer) if rest is None else int((producer >= 0).sum())
        # Nobody's events have no place in the tables; the row of 0 behind them is the pool's.
        whose = producer if rest is None else np.maximum(producer, 0)
        known = (producer >= 0) & (sequence >= 1) & (sequence <= self.last[whose])
        bucket = self.bases[whose] + ((sequence - 1) >> self.plan.bits)
        if not self.all_live:
            at = np.minimum(np.searchsorted(self.live, bucket), max(len(self.live) - 1, 0))
            known &= (self.live[at] == bucket) if len(self.live) else False
        offs = ((sequence - 1) & self.mask).astype(np.int32)
        if known.all():
            yield self.sorted_rows(bucket, listener, offs, hashes, xs, received)
            return
        take = np.flatnonzero(known)
        if len(take):
            yield self.sorted_rows(bucket[take], listener, offs[take], hashes[take], xs[take], received[take])
        if self.only is not None:
            return
        strange = ~known & (producer >= 0)
        if rest is not None:
            if self.pools:
                rest |= strange & (producer == len(self.ledger))  # ids that the user gave twice
                strange &= producer < len(self.ledger)
                pooled = np.flatnonzero(rest)
                yield from self.pool_rows(hashes[pooled], xs[pooled], listener)
            else:
                strange |= rest
        which = np.flatnonzero(strange)
        if len(which):
            yield self.phantoms(events, producer, sequence, hashes, which, xs, listener)

    def sorted_rows(
        self, bucket: I64, listener: int, offs: npt.NDArray[np.int32], hashes: U64, xs: I64, received: I64
    ) -> pa.RecordBatch:
        if not (bucket[1:] >= bucket[:-1]).all():
            low = int(bucket.min())
            small = int(bucket.max()) - low < 1 << 16
            # A stable sort is a radix sort for 16 bits only; stable, so that arrivals keep their order.
            order = np.argsort((bucket - low).astype(np.uint16) if small else bucket, kind="stable")
            bucket, offs, hashes, xs, received = (
                bucket[order],
                offs[order],
                hashes[order],
                xs[order],
                received[order],
            )
        starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
        return self.rows(bucket[starts], listener, starts, offs, hashes, xs, received)

    def by_users_id(self, events: decode.Events, producer: I64, sequence: I64) -> tuple[I64, I64]:
        """Join what carries the user's own id by its hash."""
        rows = np.flatnonzero(events.status == decode.FOREIGN)
        high, low = events.id_hash[rows, 0], events.id_hash[rows, 1]
        table = self.ledger.ids
        at = np.searchsorted(table[:, 0], high)
        producer = producer.copy()
        sequence = sequence.copy()
        while len(rows):  # once more only for each pair of ids that share half of their hash
            inside = at < len(table)
            rows, high, low, at = rows[inside], high[inside], low[inside], at[inside]
            same = table[at, 0] == high
            rows, high, low, at = rows[same], high[same], low[same], at[same]
            hit = table[at, 1] == low
            found = np.minimum(table[at[hit], 2], np.uint64(len(self.ledger))).astype(np.int64)
            producer[rows[hit]] = found
            sequence[rows[hit]] = np.where(found < len(self.ledger), table[at[hit], 3].astype(np.int64), 0)
            rows, high, low, at = rows[~hit], high[~hit], low[~hit], at[~hit] + 1
        return producer, sequence

    def without_pooled(self, producer: I64, sequence: I64) -> tuple[I64, I64]:
        """Send to the pool what arrived of events that share an id with another one."""
        producer = producer.copy()
        sequence = sequence.copy()
        for p in np.intersect1d(producer, self.ledger.pooled[:, 0]).tolist():
            rows = np.flatnonzero(producer == p)
            rows = rows[np.isin(sequence[rows], self.ledger.pooled_of(p))]
            producer[rows] = len(self.ledger)
            sequence[rows] = 0
        return producer, sequence

    def phantoms(
        self,
        events: decode.Events,
        producer: I64,
        sequence: I64,
        hashes: U64,
        which: I64,
        xs: I64,
        listener: int,
    ) -> pa.RecordBatch:
        """Rows of ids that are no event of a bucket: whose, and 128 bits."""
        whose = producer[which].astype(np.int32)
        high, low = events.high[which], events.low[which]
        looks = (high | low | sequence[which].astype(np.uint64)) != 0
        status = events.status[which]
        a = np.where(whose >= 0, sequence[which].astype(np.uint64), high)
        b = np.where(
            whose >= 0,
            np.uint64(0),
            low.astype(np.uint64) << np.uint64(48) | sequence[which].astype(np.uint64),
        )
        whose = np.where(whose >= 0, whose, STRANGER).astype(np.int32)
        own = (whose == STRANGER) & (status == decode.FOREIGN) & ~looks
        a[own], b[own], whose[own] = events.id_hash[which[own], 0], events.id_hash[which[own], 1], USERS_OWN
        none = (whose == STRANGER) & (status == decode.NO_ID)
        a[none], b[none], whose[none] = hashes[which[none]], 0, NOBODY
        mixed = (a ^ (b * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
        spread = (mixed >> np.uint64(58)).astype(np.int64)
        order = np.argsort(spread.astype(np.uint16), kind="stable")
        spread = spread[order]
        starts = np.flatnonzero(np.concatenate(([True], spread[1:] != spread[:-1])))
        return self.rows(
            PHANTOM - spread[starts],
            listener,
            starts,
            whose[order],
            a[order],
            xs[which][order],
            None,
            b[order],
        )

    # -- the pool

    def spread_pool(self, hashes: U64) -> I64:
        return ((hashes * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)).astype(np.int64) % self.plan.pools

    def pool_rows(
        self, hashes: U64, xs: I64, listener: int, offs: Any = None, after: Any = None
    ) -> Iterator[pa.RecordBatch]:
        if not len(hashes):
            return
        spread = self.spread_pool(hashes)
        order = np.argsort(spread, kind="stable")
        spread = spread[order]
        starts = np.flatnonzero(np.concatenate(([True], spread[1:] != spread[:-1])))
        offs = np.zeros(len(hashes), np.int32) if offs is None else offs
        yield self.rows(
            POOL - spread[starts], listener, starts, offs[order], hashes[order], xs[order], None,
            after[order] if after is not None else None,
        )  # fmt: skip

    def pool(self, file: int) -> Iterator[pa.RecordBatch]:
        """The events of one packed file that have no id of their own: rows of listener -1."""
        step = 1 << 17
        spans = self.ledger.spans
        for p, first, last, position, _ in spans[spans[:, 4] == file].tolist():
            pooled = self.ledger.pooled_of(p)
            if self.ledger.addressed[p] and not len(pooled):
                continue
            for low in range(first, last + 1, step):
                high = min(low + step - 1, last)
                hashes, created = self.ledger.read(file, position + low - first, high - low + 1)
                sequences = np.arange(low, high + 1, dtype=np.int64)
                if self.ledger.addressed[p]:
                    inside = pooled[np.searchsorted(pooled, low) : np.searchsorted(pooled, high + 1)]
                    sequences, hashes, created = inside, hashes[inside - low], created[inside - low]
                fate = self.ledger.fates_at(p, sequences).astype(np.uint64)
                fate |= self.grid.step(created).astype(np.uint64) << np.uint64(3)
                whose = np.full(len(sequences), p, np.int32)
                yield from self.pool_rows(hashes, sequences, -1, whose, fate)
