"""The four cores in Python, with the interface of ``delivery.contract``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from logclient._ext.constants import FAILED, HANDED, INFLIGHT
from logclient._ext.constants import R_NOT_JSON as NOT_JSON
from logclient._ext.hash import xxh64
from logclient._ext.inflight import Batch, Event
from logclient.delivery.contract import (
    Alive,
    Core,
    CoreEvent,
    Fatal,
    Inbound,
    Progress,
    Ranges,
    Reply,
    Retry,
    Settled,
    Wire,
)
from tests.cores.messages import frames_of, join

POISON = b"\xff"
"""The beginning of bodies that cannot be encoded."""

PLENTY = 1 << 30


class Refused(Exception):
    """The error of a server that refuses permanently."""


class Base(Core):
    """The base of the four cores.

    Args:
        producer: 10 bytes.
        inflight: the most events (`cumulative`: windows) in flight.
        silence: seconds without a byte from the server while an answer is awaited.
    """

    def __init__(self, producer: bytes, *, inflight: int = 64, silence: float = 30.0) -> None:
        self.producer = producer.hex()
        self.inflight = inflight
        self.silence = silence
        self._clear()

    def _clear(self) -> None:
        self._out: list[Wire] = []
        self._events: list[CoreEvent] = []
        self._last_sign = 0.0
        self._over = False
        self._buffer = b""

    @property
    def awaited(self) -> int:
        raise NotImplementedError

    def connected(self, now: float, random: Callable[[], float]) -> None:
        self._clear()
        self._last_sign = now

    def connection_lost(self) -> None:
        self._clear()

    def credit(self, now: float) -> tuple[int, int]:
        free = 0 if self._over else self.inflight - self.awaited
        return max(0, free), PLENTY

    def carried(
        self, batch: Batch, events: int, now: float, status: int = INFLIGHT
    ) -> list[tuple[Event, bytes]]:
        """Mark up to `events` events as sent, and yield their payloads."""
        if not self.awaited:
            self._last_sign = now
        found = []
        for event in batch.pending(PLENTY):
            if len(found) == events:
                break
            if event.body.startswith(POISON):
                batch.mark(event.seq, FAILED, NOT_JSON)
                continue
            payload = f"{self.producer}{event.seq:012x}".encode() + event.body
            batch.mark(event.seq, status, 0, xxh64(payload))
            found.append((event, payload))
        return found

    def data_to_send(self) -> list[Wire]:
        return self._out

    def sent(self, rest: int = 0) -> None:
        self._out = []

    def receive_data(self, data: bytes, now: float) -> None:
        if self._over:
            return
        self._last_sign = now
        self._buffer += data
        while self._buffer and not self._over:
            kind = self._buffer[:1]
            if kind == b".":
                self._buffer = self._buffer[1:]
                self._events.append(Alive())
            elif kind == b"!":
                self._stop(Refused("wrong version"), True)
            else:
                used = self._take(kind, self._buffer)
                if used == 0:
                    return
                self._buffer = self._buffer[used:]

    def _take(self, kind: bytes, data: bytes) -> int:
        """Handle one answer of the server; return its bytes, or 0 if it is incomplete."""
        raise NotImplementedError

    def _stop(self, error: Exception, forever: bool = False) -> None:
        self._over = True
        self._events.append(Fatal(error, forever))

    def _wrong(self, what: str) -> int:
        self._stop(ValueError(what))
        return 0

    def _give(self, word: bytes, ranges: Ranges) -> None:
        if word == b"r":
            self._events.append(Retry(ranges, "again"))
        else:
            self._events.append(
                Settled("acked", "", ranges) if word == b"k" else Settled("failed", "rejected", ranges)
            )
            self._events.append(Progress())

    def events_received(self) -> Iterator[CoreEvent]:
        events, self._events = self._events, []
        yield from events

    def next_timeout(self, now: float) -> float | None:
        return self._last_sign + self.silence if self.awaited and not self._over else None

    def handle_timeout(self, now: float) -> None:
        timeout = self.next_timeout(now)
        if timeout is not None and now >= timeout:
            self._stop(TimeoutError("silence"))


class Cumulative(Base):
    """A core with windows that are acknowledged up to a number."""

    def _clear(self) -> None:
        super()._clear()
        self._windows: deque[list[int]] = deque()

    @property
    def awaited(self) -> int:
        return len(self._windows)

    def credit(self, now: float) -> tuple[int, int]:
        windows, size = super().credit(now)
        return (PLENTY if windows else 0), size

    def encode(self, batch: Batch, events: int, now: float) -> int:
        found = self.carried(batch, events, now)
        if found:
            parts = [b"W%c%c" % divmod(len(found), 256)] if len(found) < 65536 else []
            parts += [len(payload).to_bytes(4, "big") + payload for _, payload in found]
            self._windows.append([event.seq for event, _ in found])
            self._out.append(Wire([b"".join(parts)]))
        return len(found)

    def _take(self, kind: bytes, data: bytes) -> int:
        if kind != b"A":
            return self._wrong("no ack")
        if len(data) < 3:
            return 0
        number = int.from_bytes(data[1:3], "big")
        if not self._windows or not 0 < number <= len(self._windows[0]):
            return self._wrong("an ack for nothing")
        window = self._windows[0]
        self._give(b"k", [(seq, seq) for seq in window[:number]])
        del window[:number]
        if not window:
            self._windows.popleft()
        return 3


class Fifo(Base):
    """A core with a byte of answer for the oldest event."""

    def _clear(self) -> None:
        super()._clear()
        self._waiting: deque[int] = deque()

    @property
    def awaited(self) -> int:
        return len(self._waiting)

    def encode(self, batch: Batch, events: int, now: float) -> int:
        found = self.carried(batch, events, now)
        self._waiting.extend(event.seq for event, _ in found)
        self._out += [Wire([b"E", len(payload).to_bytes(4, "big"), payload]) for _, payload in found]
        return len(found)

    def _take(self, kind: bytes, data: bytes) -> int:
        if kind not in b"knr":
            return self._wrong("no reply")
        if not self._waiting:
            return self._wrong("a reply to nothing")
        seq = self._waiting.popleft()
        self._give(kind, [(seq, seq)])
        return 1


class Frames(Fifo):
    """The same core over ZeroMQ: messages of the frames "E" and payload, replies of one byte."""

    def encode(self, batch: Batch, events: int, now: float) -> int:
        found = self.carried(batch, events, now)
        self._waiting.extend(event.seq for event, _ in found)
        self._out += [Wire([join([[b"E", payload]])]) for _, payload in found]
        return len(found)

    def receive_data(self, data: bytes, now: float) -> None:
        for frames in frames_of(data):
            super().receive_data(b"".join(frames), now)


class ById(Base):
    """A core with a byte and a number of answer for any event, with pings and unsolicited messages."""

    def _clear(self) -> None:
        super()._clear()
        self._waiting: dict[int, int] = {}
        self._number = 0

    @property
    def awaited(self) -> int:
        return len(self._waiting)

    def encode(self, batch: Batch, events: int, now: float) -> int:
        found = self.carried(batch, events, now)
        for event, payload in found:
            self._number += 1
            self._waiting[self._number] = event.seq
            head = b"E" + self._number.to_bytes(8, "big") + len(payload).to_bytes(4, "big")
            self._out.append(Wire([head + payload]))
        return len(found)

    def call(self, kind: str, payload: Any) -> int:
        if kind != "ping":
            return super().call(kind, payload)
        self._out.append(Wire([b"P" + int(payload).to_bytes(8, "big")]))
        return int(payload)

    def _take(self, kind: bytes, data: bytes) -> int:
        if kind not in b"knrPI":
            return self._wrong("no reply")
        if len(data) < 9:
            return 0
        number = int.from_bytes(data[1:9], "big")
        if kind == b"P":
            self._events.append(Reply(number, None))
        elif kind == b"I":
            self._events.append(Inbound(number))
        elif number not in self._waiting:
            return self._wrong("a reply to nothing")
        else:
            seq = self._waiting.pop(number)
            self._give(kind, [(seq, seq)])
        return 9


class NoAcks(Base):
    """A core without acknowledgements."""

    awaited = 0

    def credit(self, now: float) -> tuple[int, int]:
        return (0, 0) if self._over else (PLENTY, PLENTY)

    def encode(self, batch: Batch, events: int, now: float) -> int:
        found = self.carried(batch, events, now, HANDED)
        units = [b"D" + len(payload).to_bytes(4, "big") + payload for _, payload in found]
        if units:
            self._out.append(Wire(units))
        return len(found)

    def _take(self, kind: bytes, data: bytes) -> int:
        return self._wrong("a word from who says nothing")
