"""The four protocols in Python: codecs in the words of ``_ext/codec.pxd``, and a core for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from logclient._ext.constants import (
    ACKED,
    FAILED,
    HANDED,
    INFLIGHT,
    PENDING,
    R_NOT_JSON,
    R_REJECTED,
    STOP_PROTOCOL,
)
from logclient._ext.hash import xxh64
from logclient._ext.inflight import Batch, Event
from logclient._ext.pump import Outcomes, PythonCodec
from logclient.delivery.contract import Core, CoreEvent, Fatal, Inbound, Reply
from tests.cores.messages import frames_of, join

POISON = b"\xff"
"""The beginning of bodies that cannot be encoded."""

PLENTY = 1 << 30


class Refused(Exception):
    """The error of a server that refuses permanently."""


class Base:
    """The base of the four codecs.

    Args:
        producer: 10 bytes.
        inflight: the most events (`cumulative`: windows) in flight.
        silence: seconds without a byte from the server while an answer is awaited.
    """

    def __init__(self, producer: bytes, *, inflight: int = 64, silence: float = 30.0) -> None:
        self.producer = producer.hex()
        self.inflight = inflight
        self.silence = silence
        self.connection_lost()

    def connected(self, now: float) -> None:
        self.connection_lost()
        self._last_sign = now

    def connection_lost(self) -> None:
        self.replies: list[Reply | Inbound] = []
        self.error: str | None = None
        self.refused = False
        self._asked = b""
        self._last_sign = 0.0
        self._buffer = b""

    @property
    def awaited(self) -> int:
        raise NotImplementedError

    @property
    def _over(self) -> bool:
        return self.refused or self.error is not None

    def credit(self, now: float) -> tuple[int, int]:
        free = 0 if self._over else self.inflight - self.awaited
        return max(0, free), PLENTY

    def carried(
        self, batch: Batch, events: int, now: float, status: int = INFLIGHT
    ) -> list[tuple[Event, bytes]]:
        """Mark up to `events` events as sent, and return their payloads."""
        if not self.awaited:
            self._last_sign = now
        found = []
        for event in batch.pending():
            if len(found) == events:
                break
            if event.body.startswith(POISON):
                batch.mark(event.seq, FAILED, R_NOT_JSON)
                continue
            payload = f"{self.producer}{event.seq:012x}".encode() + event.body
            batch.mark(event.seq, status, 0, xxh64(payload))
            found.append((event, payload))
        return found

    def take_replies(self) -> list[Reply | Inbound]:
        found, self.replies = self.replies, []
        return found

    def answers(self, wire: bytearray) -> None:
        wire += self._asked
        self._asked = b""

    def receive(self, data: bytes, now: float, out: Outcomes) -> int:
        if not self._over:
            self._last_sign = now
            self._buffer += data
        while self._buffer and not self._over:
            kind = self._buffer[:1]
            if kind == b".":
                self._buffer = self._buffer[1:]
            elif kind == b"!":
                self.refused = True
            else:
                used = self._take(kind, self._buffer, out)
                if used == 0:
                    break
                self._buffer = self._buffer[used:]
        return STOP_PROTOCOL if self._over else 0

    def _take(self, kind: bytes, data: bytes, out: Outcomes) -> int:
        """Handle one answer of the server; return its bytes, or 0 if it is incomplete."""
        raise NotImplementedError

    def _wrong(self, what: str) -> int:
        self.error = what
        return 0

    def _give(self, word: bytes, seqs: Sequence[int], out: Outcomes) -> None:
        status, reason = {b"k": (ACKED, 0), b"n": (FAILED, R_REJECTED), b"r": (PENDING, 0)}[word]
        out.items += [(seq, seq, status, reason) for seq in seqs]
        out.progress += word != b"r"

    def deadline(self) -> float:
        return self._last_sign + self.silence if self.awaited and not self._over else 0.0


class PlainCore(Core):
    """The core for these codecs, and for their compiled counterparts."""

    def call(self, kind: str, payload: Any) -> int:
        if kind != "ping":
            return super().call(kind, payload)
        self._codec.ping(int(payload))
        return int(payload)

    def _read_events(self) -> Iterator[CoreEvent]:
        if self._codec.refused and not self._ended:
            self._ended = True
            yield Fatal(Refused("wrong version"), True)
        yield from self._codec.take_replies()


def core_of(kind: type[Base], producer: bytes, **options: Any) -> PlainCore:
    return PlainCore(PythonCodec(kind(producer, **options)))


class Cumulative(Base):
    """A protocol with windows that are acknowledged up to a number."""

    def connection_lost(self) -> None:
        super().connection_lost()
        self._windows: deque[list[int]] = deque()

    @property
    def awaited(self) -> int:
        return len(self._windows)

    def credit(self, now: float) -> tuple[int, int]:
        windows, size = super().credit(now)
        return (PLENTY if windows else 0), size

    def encode(self, batch: Batch, events: int, now: float, wire: bytearray, out: Outcomes) -> int:
        found = self.carried(batch, events, now)
        if found:
            wire += b"W%c%c" % divmod(len(found), 256) if len(found) < 65536 else b""
            wire += b"".join(len(payload).to_bytes(4, "big") + payload for _, payload in found)
            self._windows.append([event.seq for event, _ in found])
        return len(found)

    def _take(self, kind: bytes, data: bytes, out: Outcomes) -> int:
        if kind != b"A":
            return self._wrong("no ack")
        if len(data) < 3:
            return 0
        number = int.from_bytes(data[1:3], "big")
        if not self._windows or not 0 < number <= len(self._windows[0]):
            return self._wrong("an ack for nothing")
        window = self._windows[0]
        self._give(b"k", window[:number], out)
        del window[:number]
        if not window:
            self._windows.popleft()
        return 3


class Fifo(Base):
    """A protocol with a byte of answer for the oldest event."""

    def connection_lost(self) -> None:
        super().connection_lost()
        self._waiting: deque[int] = deque()

    @property
    def awaited(self) -> int:
        return len(self._waiting)

    def encode(self, batch: Batch, events: int, now: float, wire: bytearray, out: Outcomes) -> int:
        found = self.carried(batch, events, now)
        self._waiting.extend(event.seq for event, _ in found)
        wire += b"".join(self._framed(payload) for _, payload in found)
        return len(found)

    def _framed(self, payload: bytes) -> bytes:
        return b"E" + len(payload).to_bytes(4, "big") + payload

    def _take(self, kind: bytes, data: bytes, out: Outcomes) -> int:
        if kind not in b"knr":
            return self._wrong("no reply")
        if not self._waiting:
            return self._wrong("a reply to nothing")
        self._give(kind, [self._waiting.popleft()], out)
        return 1


class Frames(Fifo):
    """The same over ZeroMQ: messages of the frames "E" and payload, replies of one byte."""

    def _framed(self, payload: bytes) -> bytes:
        return join([[b"E", payload]])

    def receive(self, data: bytes, now: float, out: Outcomes) -> int:
        return super().receive(b"".join(b"".join(frames) for frames in frames_of(data)), now, out)


class ById(Base):
    """A protocol with a byte and a number of answer for any event, with pings and unsolicited messages."""

    def connection_lost(self) -> None:
        super().connection_lost()
        self._waiting: dict[int, int] = {}
        self._number = 0

    @property
    def awaited(self) -> int:
        return len(self._waiting)

    def encode(self, batch: Batch, events: int, now: float, wire: bytearray, out: Outcomes) -> int:
        found = self.carried(batch, events, now)
        for event, payload in found:
            self._number += 1
            self._waiting[self._number] = event.seq
            wire += b"E" + self._number.to_bytes(8, "big") + len(payload).to_bytes(4, "big") + payload
        return len(found)

    def ping(self, number: int) -> None:
        self._asked += b"P" + number.to_bytes(8, "big")

    def _take(self, kind: bytes, data: bytes, out: Outcomes) -> int:
        if kind not in b"knrPI":
            return self._wrong("no reply")
        if len(data) < 9:
            return 0
        number = int.from_bytes(data[1:9], "big")
        if kind in b"PI":
            self.replies.append(Reply(number, None) if kind == b"P" else Inbound(number))
            out.events += 1
        elif number not in self._waiting:
            return self._wrong("a reply to nothing")
        else:
            self._give(kind, [self._waiting.pop(number)], out)
        return 9


class NoAcks(Base):
    """A protocol without acknowledgements."""

    awaited = 0

    def credit(self, now: float) -> tuple[int, int]:
        return (0, 0) if self._over else (PLENTY, PLENTY)

    def encode(self, batch: Batch, events: int, now: float, wire: bytearray, out: Outcomes) -> int:
        found = self.carried(batch, events, now, HANDED)
        wire += b"".join(b"D" + len(payload).to_bytes(4, "big") + payload for _, payload in found)
        return len(found)

    def _take(self, kind: bytes, data: bytes, out: Outcomes) -> int:
        return self._wrong("a word from who says nothing")
