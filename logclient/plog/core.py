"""plog: the client's core, over UDP (`Plog`) and over TCP (`Lines`).

plog has no connection and no acknowledgements: an event is ``handed`` when the kernel has taken all of it.

==========================  =====================================================================
sent                        answer
==========================  =====================================================================
unboxed message             none; sent only with ``unboxed=True`` and where the format allows it
boxed message (fragments)   none; numbered from 1 on each socket, and servers count the gaps
PING and a payload          PONG and the same payload, which matches the answer to the ping
STAT                        one JSON text, which does not name its question
ENVI                        one text, which does not name its question
KILL                        none: the server process ends, some 10 s later
==========================  =====================================================================

A message is paced as a whole. Its fragments leave back to back, because servers drop messages whose fragments
are mixed with those of others. The next message waits until the token buckets of packets and bytes recover.

``logclient._ext.plog`` sends messages. `Plog` controls the pace, and asks commands and reads their answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from logclient._ext.constants import K_TOPIC_SHIFT
from logclient._ext.plog import HEADER, MAX_DATAGRAM, Codec
from logclient.delivery.contract import FOREVER, Core, CoreEvent, LookAtReceiver, Reply
from logclient.errors import ConfigError, ProtocolError
from logclient.plog.config import PlogConfig
from logclient.plog.messages import command, join_tags, parse_stat
from logclient.plog.pacing import (
    SLOW_BURST,
    SLOW_LOOK,
    SLOW_LOOK_AT_QUEUE,
    ByQueue,
    ByStat,
    Grant,
    Sent,
    slow_start,
)

TAGGED = 1
"""High nibble of the kind of an event whose body begins with its own tags: u16 big-endian, then the tags."""

DEFAULT_DATAGRAM = 1452
"""Bytes of a datagram until the transport reports the path's MTU: Ethernet and IPv6."""
HEADERS_IPV6 = 48
RECEIVER_RETRY = 0.001
"""Seconds between two looks while the receiver's queue is not visible."""
UNPACED_BASE = 10_000.0
"""Packets per second that feedback starts with, without a pace."""
QUESTIONS = 64
"""Questions that may wait for their answers; a further one takes the place of the oldest."""


class Plog(Core):
    """The client's side of one socket at a time. See ``delivery.contract.Core``."""

    def __init__(self, config: PlogConfig, producer: bytes) -> None:
        self._config = config
        burst = self._burst(config.pace)
        try:
            own = [tag for tag in config.tags.split(",") if tag]
            self._tags = join_tags(own, config.topic)
            codec = Codec(
                producer,
                datagram=DEFAULT_DATAGRAM if config.mtu is None else config.mtu - HEADERS_IPV6,
                tags=self._tags,
                unboxed=config.unboxed,
                max_message=config.max_event_bytes,
                identity=config.identity != "none",
                check=config.check,
                packets=config.pace,
                burst=burst,
                size=config.pace_bytes,
                size_burst=_size_burst(burst),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(codec)
        self.receiver: LookAtReceiver = lambda: None
        self._token = 0  # of the last command, and the number of commands sent
        self._reset()

    def _reset(self) -> None:
        super()._reset()
        # Answers to earlier questions do not arrive at a new socket.
        self._asked: dict[int, bytes] = {}  # commands that have no answer yet, by token
        self._by_queue: ByQueue | None = None
        self._by_stat: ByStat | None = None
        self._packets_before = int(self._codec.counts[2])  # sent through earlier sockets
        self._packets = self._packets_before  # sent until the last look
        self._sent_at = 0.0  # the last look that found new packets
        self._room = 0.0  # granted at the last look
        self._pace_is_final = self._config.feedback == "none" and not self._config.pace

    def event_of(self, body: bytes, kind: int) -> bytes:
        return body[2 + int.from_bytes(body[:2], "big") :] if kind >> K_TOPIC_SHIFT == TAGGED else body

    def path_mtu(self, mtu: int, headers: int) -> None:
        """Set the MTU of the path to the server. The option ``mtu`` takes precedence."""
        mtu = self._config.mtu or mtu
        least = max(576 - HEADERS_IPV6, HEADER + len(self._tags))
        self._codec.datagram = max(least, min(mtu - headers, MAX_DATAGRAM))

    def connected(self, now: float) -> None:
        """Begin with a new socket, which is opened when there is something to send."""
        super().connected(now)
        self._sent_at = now

    # -- pace

    def watch_receiver(self, look: LookAtReceiver) -> None:
        self.receiver = look

    def pace(self, now: float, packets: float, burst: float | None = None) -> None:
        """Set the packets per second, and those sent at once; 0: unlimited."""
        burst = self._burst(packets) if burst is None else burst
        size = self._config.pace_bytes
        self._codec.pace(now, packets, size, burst=burst, size_burst=_size_burst(burst))

    def regulate(self, now: float) -> float:
        """Adapt the pace to the receiver."""
        if self._pace_is_final:
            return FOREVER
        self._codec.ready(now)  # sets the codec's clock
        boxed, unboxed, packets = self._codec.counts
        if self._config.feedback == "none":
            return self._start_slowly(now, packets)
        if self._by_stat is None:
            seen = self.receiver() if self._config.feedback == "auto" else None
            if seen is not None:
                if self._by_queue is None:
                    self.pace(now, 0.0)
                return now + self._grant(*seen).look
            if self._by_queue is not None:  # the queue was visible before: the server may be gone
                self._allow(1.0, 1.0)  # one message
                return now + RECEIVER_RETRY
            self._by_stat = ByStat(self._config.pace or UNPACED_BASE)
        if self._by_stat.asks(Sent(now, self._token, boxed + unboxed, packets)):
            self.call("stat")
        rate = self._by_stat.rate
        self.pace(now, rate, max(1.0, min(self._burst(rate), rate * ByStat.INTERVAL)))
        return self._by_stat.due

    def _start_slowly(self, now: float, packets: int) -> float:
        """Set the pace of the first packets through a socket; return the time of the next look.

        A visible receive queue allows the full pace from the first packet on, as long as it has room.
        """
        if packets != self._packets:
            self._packets, self._sent_at = packets, now
        rate = slow_start(self._config.pace, packets - self._packets_before)
        if rate >= self._config.pace:
            self._pace_is_final = True
            self.pace(now, rate)
            self._allow(0.0, 0.0)
            return FOREVER
        look, burst = SLOW_LOOK, min(SLOW_BURST, self._burst(rate))
        seen = self.receiver()
        if seen is not None:
            look, burst = SLOW_LOOK_AT_QUEUE, self._burst(self._config.pace)
            self._grant(*seen)
            if seen[0]:
                self._sent_at = now  # only the queue may have kept us from sending
        idle = (now - self._sent_at) / 2
        if seen is not None and idle <= look:
            rate = self._config.pace  # as long as there is room
        else:
            self._allow(0.0, 0.0)  # the next look may be far
        self.pace(now, rate, burst)
        return now + max(look, idle)

    def _grant(self, held: int, most: int, drops: int) -> Grant:
        """Allow what the receiver's queue has room for."""
        self._by_queue = self._by_queue or ByQueue()
        grant = self._by_queue.look(held, most, drops, self._room - self._codec.room)
        self._allow(grant.room, grant.most)
        return grant

    def _allow(self, room: float, most: float) -> None:
        self._codec.grant(room, most)
        self._room = room

    def _burst(self, packets: float) -> float:
        least, seconds = self._config.burst
        return max(least, packets * seconds)

    # -- commands

    def call(self, kind: str, payload: bytes = b"") -> int:
        """Send a command, a ``ping`` with a payload, by default one of its own.

        The payload of its ``Reply`` is the datagram that answers it, or None for ``kill``, at once: the
        server says nothing. An answer to ``stat`` or ``envi`` is for all who wait for one.
        """
        datagram = command(kind, payload or b"%x" % self._token if kind == "ping" else b"")
        self._codec.command(datagram)
        self._token += 1
        self._asked[self._token] = datagram
        if len(self._asked) > QUESTIONS:
            del self._asked[next(iter(self._asked))]
        return self._token

    def _read_events(self) -> Iterator[CoreEvent]:
        yield from self._answer(command("kill"), None)
        for datagram in self._codec.take_replies():
            question = command("envi")
            if datagram.startswith(b"PONG"):
                question = command("ping", datagram[4:])
            elif datagram.startswith(b"{") and command("stat") in self._asked.values():
                question = command("stat")
                self._adapt(datagram)
            yield from self._answer(question, datagram)

    def _answer(self, question: bytes, answer: bytes | None) -> Iterator[Reply]:
        for token in [token for token, asked in self._asked.items() if asked == question]:
            del self._asked[token]
            yield Reply(token, answer)

    def _adapt(self, answer: bytes) -> None:
        """Adapt the pace to an answer to ``stat``."""
        if self._by_stat is not None:
            with suppress(ProtocolError):
                self.missing += self._by_stat.answered(parse_stat(answer))


class Lines(Core):
    """plog over TCP: each message is a line, without commands, answers and acknowledgements.

    TCP slows down a sender that is too fast. A message with a line end in it fails (``unencodable``).
    """

    def __init__(self, config: PlogConfig, producer: bytes) -> None:
        codec = Codec(
            producer,
            max_message=config.max_event_bytes,
            identity=config.identity != "none",
            check=config.check,
            packets=0.0,
            size=0.0,
            lines=True,
        )
        super().__init__(codec)


def _size_burst(burst: float) -> float:
    """Return the bytes sent at once: room for a burst of packets of common size, and for one of any size."""
    return max(burst * 2048.0, float(MAX_DATAGRAM))
