"""A protocol without I/O: its codec, for tests of a server and for loops of your own.

There is no socket, no clock and no thread: `Connection` takes bodies and returns bytes to send, takes bytes
from the peer and returns outcomes. The time is an argument, in seconds of any clock that never falls.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from logclient._ext.constants import K_RAW, STOP_MEMORY
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.queue import EventQueue
from logclient.config import registry
from logclient.config.parsing import parse
from logclient.delivery.contract import FOREVER, CloseWanted, Core, Fatal, Inbound, Reply
from logclient.errors import ConfigError

__all__ = ["CloseWanted", "Connection", "Event", "Fatal", "Inbound", "Reply", "Settled"]


class Settled(NamedTuple):
    """The outcome of the events `first` to `last`: ``acked``, ``handed`` or ``failed``, and the reason."""

    first: int
    last: int
    status: str
    reason: str = ""


Event = Settled | Reply | Inbound | Fatal | CloseWanted
"""What a call of `Connection` returns: a ``Fatal`` or ``CloseWanted`` is the end of the connection."""


class Connection:
    """One connection of a protocol after another, without I/O.

    Args:
        core: the protocol, as `to` makes it.
        epoch: the wall clock, in seconds since 1970, when the time was 0; for protocols that date events.
        queue: its bounds are those of the events; None: 1 GiB.

    Attributes:
        in_flight: the batches of the events that wait or are in flight.
        progress: acknowledgements so far.
    """

    def __init__(self, core: Core, epoch: float = 0.0, queue: EventQueue | None = None) -> None:
        self.core = core
        self.epoch = epoch
        self.in_flight = InflightBatches(queue or EventQueue(max_bytes=1 << 30, max_event_bytes=1 << 28))
        self.progress = 0
        self._now = 0.0
        self._next_look = FOREVER
        self._found: list[Event] = []
        core.set_wall_clock(lambda: self.epoch + self._now)

    @classmethod
    def to(cls, url: str, *, producer: bytes | None = None, epoch: float = 0.0, **options: Any) -> Connection:
        """Make the connection of a client with this URL and these options.

        Args:
            url: as for ``logclient.connect``.
            producer: the 10 bytes that begin every id; None: random ones.
            epoch: see the class.
            options: as for ``logclient.connect``. Those of the protocol apply, and ``max_events``,
                ``max_bytes`` and ``max_event_bytes``.

        Raises:
            ConfigError: the URL or an option breaks a rule.
        """
        config = parse(url, **options)
        if config.protocol == registry.OFF:
            raise ConfigError("URL: none is the off switch, which has no codec")
        core = registry.load(registry.lookup(config.scheme).core)
        queue = EventQueue(
            max_events=config.max_events,
            max_bytes=config.max_bytes,
            max_event_bytes=config.queued_event_bytes,
        )
        return cls(core(config, os.urandom(10) if producer is None else producer), epoch, queue)

    def put(self, body: bytes, kind: int = K_RAW) -> int:
        """Have an event sent; return its sequence, 0 when there is no room.

        Args:
            body: one JSON object; for plog any bytes; for Lumberjack's version 1 and strict frames the
                fields, as a frame of data has them: their number, then each name and value behind its length,
                as 32 bits, big-endian.
            kind: what is known of it: a ``K_`` number of ``logclient._ext.constants``.
        """
        made_us = max(int((self.epoch + self._now) * 1e6), 1)  # 0 would be the time of the clock
        return self.in_flight.queue.push(body, 2, kind, made_us)

    # -- a connection begins and ends

    def connected(self, now: float) -> None:
        """Begin a connection, on which nothing is in flight."""
        self._now = now
        self.core.connected(now)

    def lost(self) -> list[Event]:
        """End the connection. Events without an outcome are sent again on the next one."""
        self.core.connection_lost()
        found = self.events()
        self.in_flight.requeue()
        return found

    # -- out

    def send(self, now: float) -> bytes:
        """Return the bytes to send: messages of the protocol, and events as far as there is credit."""
        self._now = now
        self.core.sample_clocks(now)
        self._next_look = self.core.regulate(now)
        fruitless = 0  # the core may have had to send something first
        while fruitless < 2:
            events, size = self.credit(now)
            batch = self.in_flight.pending() or (self.in_flight.take(events, size) if events else None)
            if batch is None or not events:
                break
            before = self.in_flight.waiting
            if not self.encode(batch, events, now):
                self._found = self.events()
            fruitless = fruitless + 1 if self.in_flight.waiting == before else 0
        return bytes(self.codec.take_bytes())

    def sent(self, size: int) -> list[Event]:
        """Note that the transport has so many more bytes, for protocols without acknowledgements."""
        self.codec.sent(size)
        return self.events()

    # -- in

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the peer; empty: it has closed the connection, and `CloseWanted` comes last."""
        self._now = now
        if data:
            _enough_memory(self.codec.receive(data, now))
            return self.events()
        self.core.receive_eof()
        return [*self.events(), CloseWanted()]

    def events(self) -> list[Event]:
        """Return what has happened since the last call. The other methods that return events call it."""
        others, fatal, closed, progress = self.core.take_events(self.in_flight)
        self.progress += progress
        self.in_flight.commit()
        found, self._found = self._found, []
        found += [Settled._make(one) for one in self.in_flight.take_report()]
        return [*found, *others, *([fatal] if fatal else []), *([CloseWanted()] if closed else [])]

    # -- time

    def deadline(self, now: float) -> float | None:
        """Return when to call `timeout` and `send` although nothing arrives; None: never."""
        times = self.codec.deadline(), self.codec.ready(now), self._next_look
        return min((one for one in times if 0 < one < FOREVER), default=None)

    def timeout(self, now: float) -> list[Event]:
        """Act on a deadline of the protocol that is over. TimeoutError in a ``Fatal``: the peer is silent."""
        self._now = now
        deadline = self.codec.deadline()
        done = self.codec.timeout(now) if 0 < deadline <= now else 0
        _enough_memory(done)
        silent = [Fatal(TimeoutError("no answer in time"))] if done == 1 else []
        return [*self.events(), *silent]

    # -- parts of `send`, for tests of a codec

    def credit(self, now: float) -> tuple[int, int]:
        """Return how many events, and bytes of them, `encode` may take now."""
        self._now = now
        self.codec.sample(now, self.epoch + now)
        credit: tuple[int, int] = self.codec.credit(now)
        _enough_memory(self.codec.answers())
        return credit

    def encode(self, batch: Batch, events: int, now: float) -> int:
        """Frame so many pending events of a batch at most; return how many."""
        done = self.codec.encode(batch.capsule, events, now)
        self.in_flight.encoded(batch)
        _enough_memory(done)
        return int(done)

    @property
    def codec(self) -> Any:
        """The functions of the codec, each a method."""
        return self.core.codec


def _enough_memory(done: int) -> None:
    if done == STOP_MEMORY:
        raise MemoryError("out of memory for events or outcomes")
