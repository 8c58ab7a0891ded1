"""Queue and in-flight batches in plain Python: what ``_ext/queue.pyx`` and ``_ext/inflight.pyx`` must do.

Chunks are modelled too, because they decide what a sender has detached: only what still lies in the
hand-off can be dropped.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import deque
from collections.abc import Iterable

from logclient._ext.constants import (
    ACKED,
    DROPPED,
    FAILED,
    HANDED,
    INFLIGHT,
    K_TOMB,
    PENDING,
    PUT_FULL,
    R_MAX_AGE,
    R_OVERFLOW,
    R_TOO_LARGE,
    REASONS,
    STATUSES,
)

CHUNK = 65536 - 64
HEADER = 24
ERROR = 4
SPAN = 0x3FFFFFFF  # microseconds from the first event of a ledger line


def room_of(size: int) -> int:
    return HEADER + (size + 7) // 8 * 8


class Event:
    def __init__(self, seq: int, created_us: int, level: int, kind: int, body: bytes) -> None:
        self.seq = seq
        self.created_us = created_us
        self.level = level
        self.kind = kind
        self.body = body
        self.room = room_of(len(body))
        self.outcome = PENDING
        self.reason = 0
        self.settled = False
        self.listed = False
        self.hash = 0


class Chunk:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.events: deque[Event] = deque()


Chain = deque[Chunk]


def first_of(chain: Chain) -> Event | None:
    return chain[0].events[0] if chain else None


def events_in(chain: Chain) -> int:
    return sum(len(c.events) for c in chain)


def bytes_in(chain: Chain) -> int:
    return sum(e.room for c in chain for e in c.events)


def waste(chain: Chain, room: int) -> int:
    """What stays empty at the chain's end when an event of this room needs another chunk."""
    left = chain[-1].capacity - chain[-1].used if chain else 0
    return left if left < room else 0


def shift(chain: Chain) -> Event:
    """Take the first event out; an empty chunk goes away."""
    event = chain[0].events.popleft()
    if not chain[0].events:
        chain.popleft()
    return event


class SharedBound:
    """A bound on the bytes of several queues."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queues: list[EventQueue] = []

    @property
    def used(self) -> int:
        return sum(queue.used for queue in self.queues)


class Ticket:
    """A caller that waits for room."""

    def __init__(self, queue: EventQueue, size: int) -> None:
        self.queue = queue
        self.room = room_of(min(size, queue.max_event_bytes))
        self.granted = False

    def look(self) -> bool:
        h = self.queue
        if self.granted or h.closed:
            return True
        if self not in h.line:
            h.line.append(self)
            if h.line[0] is not self:
                return False
        h.grant()
        return self.granted

    def leave(self) -> None:
        h = self.queue
        if self.granted or self in h.line:
            self.take_back()
            h.grant()

    def take_back(self) -> None:
        if self.granted:
            self.queue.granted_events -= 1
            self.queue.granted_bytes -= self.room
        elif self in self.queue.line:
            self.queue.line.remove(self)
        self.granted = False


class EventQueue:
    def __init__(
        self,
        *,
        max_events: int,
        max_bytes: int,
        max_event_bytes: int,
        policy: str,
        keep_level: int,
        shared: SharedBound | None = None,
    ) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        # What could never fit is too large, or a caller would wait for room for ever.
        self.max_event_bytes = min(max_event_bytes, (max_bytes - HEADER) // 8 * 8)
        self.shared = shared
        if shared is not None:
            shared.queues.append(self)
            self.max_event_bytes = min(self.max_event_bytes, (shared.limit - HEADER) // 8 * 8)
        self.policy = policy
        self.keep_level = keep_level
        self.queue: Chain = deque()
        self.kept: Chain = deque()
        self.held_events = 0
        self.held_bytes = 0
        self.line: list[Ticket] = []  # who waits for room
        self.granted_events = 0
        self.granted_bytes = 0
        self.next_seq = 1
        self.settled = 0
        self.closed = False
        self.counts = {"inflight": 0, "acked": 0, "handed": 0, "resent": 0}
        self.failed = dict.fromkeys(REASONS, 0)
        self.dropped = dict.fromkeys(REASONS, 0)

    def queued(self) -> tuple[int, int]:
        events = events_in(self.queue) + events_in(self.kept)
        return events, bytes_in(self.queue) + bytes_in(self.kept)

    @property
    def used(self) -> int:
        return self.queued()[1] + self.held_bytes + self.granted_bytes

    def shared_over(self, room: int) -> bool:
        return self.shared is not None and self.shared.used + room > self.shared.limit

    def over(self, room: int) -> bool:
        events = self.queued()[0] + self.held_events + self.granted_events
        return self.used + room > self.max_bytes or events >= self.max_events or self.shared_over(room)

    def grant(self) -> None:
        """Room for those that wait, first come, first served."""
        while self.line and not self.over(self.line[0].room):
            ticket = self.line.pop(0)
            ticket.granted = True
            self.granted_events += 1
            self.granted_bytes += ticket.room

    def hopeless(self, room: int, keep: bool) -> bool:
        """Whether pushing out all that this event may push out would not be enough."""
        events, size = self.held_events, self.held_bytes
        if not keep:
            events += events_in(self.kept)
            size += bytes_in(self.kept)
        if self.shared_over(size + room - self.used):
            return True
        return size + room > self.max_bytes or events >= self.max_events

    def push(self, body: bytes, level: int, kind: int, created_us: int, ticket: Ticket | None = None) -> int:
        if len(body) > self.max_event_bytes and kind & 15 != K_TOMB:
            body, kind = bytes([R_TOO_LARGE]), K_TOMB
        room = room_of(len(body))
        keep = level >= self.keep_level
        if ticket is not None:
            ticket.take_back()
        if self.closed:
            self.dropped["closed"] += 1
            return 0
        if self.line and ticket is None:
            return PUT_FULL
        own = self.kept if keep else self.queue
        if self.policy == "drop_oldest" and not self.hopeless(room, keep):
            for chain in (self.queue, self.kept):
                # An ordinary event pushes out kept ones for itself, not for what it leaves empty.
                while chain and self.over(room + (waste(own, room) if keep or chain is self.queue else 0)):
                    shift(chain)
                    self.dropped["overflow"] += 1
        if self.over(room):
            if self.policy in ("block", "raise"):
                return PUT_FULL
            self.next_seq += 1
            self.dropped["overflow"] += 1
            return 0
        if not own or own[-1].capacity - own[-1].used < room:
            if own:
                # What stays empty counts, as far as there is room to count it.
                left = min(waste(own, room), (self.max_bytes - self.used - room) // 8 * 8)
                own[-1].events[-1].room += 0 if self.shared_over(room + left) else left
            own.append(Chunk(max(CHUNK, room)))
        event = Event(self.next_seq, created_us, level, kind, body)
        self.next_seq += 1
        own[-1].events.append(event)
        own[-1].used += room
        return event.seq

    def refuse(self) -> None:
        if self.closed:
            self.dropped["closed"] += 1
        else:
            self.next_seq += 1
            self.dropped["overflow"] += 1

    def fits(self, size: int) -> bool:
        return self.closed or not self.over(room_of(min(size, self.max_event_bytes)))

    def counters(self) -> dict[str, object]:
        events, size = self.queued()
        return {
            "sent": self.next_seq - 1,
            "queued": events + self.held_events - self.counts["inflight"],
            "queued_bytes": size + self.held_bytes,
            **self.counts,
            "stored": 0,
            "failed": {name: n for name, n in self.failed.items() if n},
            "dropped": {name: n for name, n in self.dropped.items() if n},
            "sanitized": 0,
            "moved": 0,
            "ignored": 0,
            "filtered": {},
            "settled": self.settled,
        }


class Batch:
    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.bytes = sum(e.room for e in events)

    def pending(self) -> list[Event]:
        return [e for e in self.events if e.outcome == PENDING]


class InflightBatches:
    def __init__(self, queue: EventQueue) -> None:
        self.queue = queue
        self.batches: list[Batch] = []
        self.ordinary: Chain = deque()
        self.kept: Chain = deque()
        self.horizon = 0
        self.expected = 1
        self.fresh: list[Event] = []  # settled since the last commit
        self.resent = 0
        self.reports: list[tuple[int, int, str, str]] = []

    # -- taking

    def take(self, events: int, size: int) -> Batch | None:
        self._stage(events, size)
        taken: list[Event] = []
        used = 0
        while len(taken) < events:
            chain = self._next()
            if chain is None:
                break
            event = first_of(chain)
            assert event is not None
            if taken and used + event.room > size:
                break
            if event.seq > self.expected:
                self._report(self.expected, event.seq - 1, DROPPED, R_OVERFLOW)
            self.expected = event.seq + 1
            taken.append(shift(chain))
            used += event.room
            if event.kind & 15 == K_TOMB:
                event.outcome, event.reason = FAILED, event.body[0]
        if not taken:
            return None
        batch = Batch(taken)
        self.batches.append(batch)
        self._settle(batch)
        return batch

    def _stage(self, events: int, size: int) -> None:
        h = self.queue
        while True:
            heads = [(e.seq, chain) for chain in (h.queue, h.kept) if (e := first_of(chain)) is not None]
            if not heads:
                self.horizon = h.next_seq
                return
            seq, chain = min(heads, key=lambda head: head[0])
            staged = [e.seq for c in (self.ordinary, self.kept) if (e := first_of(c)) is not None]
            enough = (
                events_in(self.ordinary) + events_in(self.kept) >= events
                or bytes_in(self.ordinary) + bytes_in(self.kept) >= size
            )
            if staged and min(staged) < seq and enough:
                self.horizon = seq
                return
            chunk = chain.popleft()
            h.held_events += len(chunk.events)
            h.held_bytes += sum(e.room for e in chunk.events)
            (self.ordinary if chain is h.queue else self.kept).append(chunk)

    def _next(self) -> Chain | None:
        heads = [(e.seq, c) for c in (self.ordinary, self.kept) if (e := first_of(c)) is not None]
        if not heads:
            return None
        seq, chain = min(heads, key=lambda head: head[0])
        return chain if seq < self.horizon else None

    def pending(self) -> Batch | None:
        return next((b for b in self.batches if b.pending()), None)

    # -- outcomes

    def _report(self, first: int, last: int, outcome: int, reason: int) -> None:
        if self.reports:
            start, end, status, why = self.reports[-1]
            if end + 1 == first and (status, why) == (STATUSES[outcome], REASONS[reason]):
                self.reports[-1] = (start, last, status, why)
                return
        self.reports.append((first, last, STATUSES[outcome], REASONS[reason]))

    def _settle(self, batch: Batch) -> None:
        for event in batch.events:
            if not event.settled and event.outcome not in (PENDING, INFLIGHT):
                event.settled = True
                self.fresh.append(event)
                self._report(event.seq, event.seq, event.outcome, event.reason)

    def encoded(self, batch: Batch, marks: dict[int, tuple[int, int, int]]) -> bytes:
        """A core has given these events ``{seq: (outcome, reason, hash)}``; the ledger's lines."""
        for event in batch.events:
            if event.seq in marks:
                event.outcome, event.reason, event.hash = marks[event.seq]
                if event.listed and event.outcome == INFLIGHT:
                    self.resent += 1
        lines = self._ledger(batch)
        self._settle(batch)
        return lines

    def _ledger(self, batch: Batch) -> bytes:
        """For what goes on the wire the first time, in lines that span no more than 2**30 µs."""
        cursor = next((i for i, e in enumerate(batch.events) if e.outcome == PENDING), len(batch.events))
        new = [e for e in batch.events[:cursor] if not e.listed]
        lines = b""
        line: list[Event] = []
        base = 0
        for event in new:
            if event is new[0] or abs(event.created_us - base) > SPAN:
                lines += self._line(line)
                line = []
                base = event.created_us
            event.listed = True
            if event.outcome in (INFLIGHT, HANDED):
                line.append(event)
        return lines + self._line(line)

    @staticmethod
    def _line(events: list[Event]) -> bytes:
        if not events:
            return b""
        seqs: list[list[int]] = []
        for event in events:
            if seqs and seqs[-1][1] + 1 == event.seq:
                seqs[-1][1] = event.seq
            else:
                seqs.append([event.seq, event.seq])
        base = events[0].created_us
        created = struct.pack(f"<{len(events)}i", *(e.created_us - base for e in events))
        hashes = struct.pack(f"<{len(events)}Q", *(e.hash for e in events))
        line = {
            "t": "batch",
            "seqs": seqs,
            "n": len(events),
            "base": base,
            "created": base64.b64encode(created).decode(),
            "hashes": base64.b64encode(hashes).decode(),
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def apply(self, ranges: Iterable[tuple[int, int]], outcome: int, reason: int) -> None:
        for first, last in ranges:
            for batch in self.batches:
                for event in batch.events:
                    if first <= event.seq <= last and event.outcome == INFLIGHT:
                        event.outcome = outcome
                        if outcome != PENDING:
                            event.reason = reason
                self._settle(batch)

    def requeue(self) -> None:
        for batch in self.batches:
            for event in batch.events:
                if event.outcome == INFLIGHT:
                    event.outcome = PENDING

    def fail(self, reason: int) -> int:
        while self.take(2048, 1 << 20) is not None:
            pass
        count = 0
        for batch in self.batches:
            for event in batch.events:
                if not event.settled:
                    event.outcome, event.reason = FAILED, reason
                    count += 1
            self._settle(batch)
        self.gaps()
        return count

    def expire(self, seq: int) -> None:
        h = self.queue
        while any(
            (e := first_of(c)) is not None and e.seq <= seq
            for c in (h.queue, h.kept, self.ordinary, self.kept)
        ):
            if self.take(2048, 1 << 20) is None:
                break
        for batch in self.batches:
            for event in batch.events:
                if event.outcome == PENDING and event.seq <= seq:
                    event.outcome, event.reason = FAILED, R_MAX_AGE
            self._settle(batch)

    def gaps(self) -> None:
        h = self.queue
        heads = [first_of(c) for c in (h.queue, h.kept, self.ordinary, self.kept)]
        first = min([h.next_seq, *(e.seq for e in heads if e is not None)])
        if first > self.expected:
            self._report(self.expected, first - 1, DROPPED, R_OVERFLOW)
            self.expected = first

    def commit(self) -> None:
        h = self.queue
        for event in self.fresh:
            h.held_events -= 1
            if event.outcome == ACKED:
                h.counts["acked"] += 1
            elif event.outcome == HANDED:
                h.counts["handed"] += 1
            else:
                h.failed[REASONS[event.reason]] += 1
        self.fresh.clear()
        for batch in list(self.batches):
            if all(e.settled for e in batch.events):
                h.held_bytes -= batch.bytes
                self.batches.remove(batch)
        h.counts["inflight"] = self.inflight
        h.counts["resent"] += self.resent
        self.resent = 0
        open_ones = [e.seq for b in self.batches for e in b.events if not e.settled]
        heads = [first_of(c) for c in (h.queue, h.kept, self.ordinary, self.kept)]
        h.settled = min([h.next_seq, *open_ones, *(e.seq for e in heads if e is not None)]) - 1
        # Those that wait are woken when an eighth is free.
        events, size = h.queued()
        if (
            8 * (size + h.held_bytes + h.granted_bytes) <= 7 * h.max_bytes
            and 8 * (events + h.held_events + h.granted_events) <= 7 * h.max_events
        ):
            h.grant()

    def report(self) -> list[tuple[int, int, str, str]]:
        found, self.reports = self.reports, []
        return found

    @property
    def inflight(self) -> int:
        return sum(e.outcome == INFLIGHT for b in self.batches for e in b.events)

    @property
    def waiting(self) -> int:
        return sum(len(b.pending()) for b in self.batches) + events_in(self.ordinary) + events_in(self.kept)
