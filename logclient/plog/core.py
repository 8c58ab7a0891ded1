"""plog: the client's core, over UDP (`Plog`) and over TCP (`Lines`).

plog has no connection and no acknowledgements: an event is ``handed`` when the kernel has taken all of it.

==========================  =====================================================================
sent                        answer
==========================  =====================================================================
unboxed message             none; sent only with ``unboxed=True`` and where the format allows it
boxed message (fragments)   none; numbered from 1 on each socket, and servers count the gaps
PING and a payload          PONG and the same payload, which matches the answer to the ping
STAT                        one JSON text, which does not name its question; see `Plog._take_stat`
ENVI                        one text, matched to the oldest ENVI
KILL                        none: the server process ends, some 10 s later
==========================  =====================================================================

A message is paced as a whole. Its fragments leave back to back, because servers drop messages whose fragments
are mixed with those of others. The next message waits until the token buckets of packets and bytes recover.

``logclient._ext.plog`` does the work. These classes add the interface of ``delivery.contract``; the compiled
pump drives the same object through ``codec``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from logclient._ext.constants import K_TOPIC_SHIFT
from logclient._ext.plog import HEADER, MAX_DATAGRAM, Codec
from logclient.delivery.contract import Core, CoreEvent, LookAtReceiver, Reply
from logclient.errors import ConfigError, ProtocolError
from logclient.plog.config import PlogConfig
from logclient.plog.messages import COMMANDS, Stat, command, estimate_loss, join_tags, kafka_tags, parse_stat
from logclient.plog.pacing import (
    SLOW_BURST,
    SLOW_LOOK,
    SLOW_LOOK_AT_QUEUE,
    ByQueue,
    ByStat,
    Grant,
    slow_start,
)

TAGGED = 1
"""High nibble of the kind of an event whose body begins with its own tags: u16 big-endian, then the tags."""

DEFAULT_DATAGRAM = 1452
"""Bytes of a datagram until the transport reports the path's MTU: Ethernet and IPv6."""
HEADERS_IPV4 = 28
HEADERS_IPV6 = 48
STAT_INTERVAL = 0.25
"""Seconds between two questions for the server's counters, where they control the pace."""
RECEIVER_RETRY = 0.001
"""Seconds between two looks while the receiver's queue is not visible."""
UNPACED_BASE = 10_000.0
"""Packets per second that feedback starts with, without a pace."""


class _Request(NamedTuple):
    """A command that waits for its reply."""

    token: int
    kind: str
    payload: bytes
    at: float
    counts: tuple[int, int, int]
    commands: int


class Plog(Core):
    """The client's side of one socket at a time. See ``delivery.contract.Core``."""

    def event_of(self, body: bytes, kind: int) -> bytes:
        """Return the message without the tags of its own."""
        return body[2 + int.from_bytes(body[:2], "big") :] if kind >> K_TOPIC_SHIFT == TAGGED else body

    reply_timeout = 2.0
    """Seconds that a command waits for its reply."""

    def __init__(self, config: PlogConfig, producer: bytes) -> None:
        self._config = config
        burst = self._burst(config.pace)
        try:
            own = [tag for tag in config.tags.split(",") if tag]
            self._tags = join_tags([*kafka_tags(config.topic), *own])
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
        self.commands = 0
        """Commands sent, those of the feedback included."""
        self.receiver: LookAtReceiver | None = None
        """Returns the state of the server's receive queue; set by the engine for each socket."""
        self._sent_at = 0.0  # the last look that found new packets
        self._packets = 0  # sent until the last look
        self._token = 0
        self._random: Callable[[], float] = lambda: 0.0
        self._reset()

    def _reset(self) -> None:
        super()._reset()
        # A new socket: commands are not sent again, and answers to earlier questions do not arrive here.
        self._requests: list[_Request] = []
        self._answers: list[Reply] = []
        self._by_queue: ByQueue | None = None
        self._by_stat: ByStat | None = None
        self._pace_is_final = False  # the slow start is over
        self._packets_before: int | None = None  # sent through earlier sockets, from the slow start on
        self._baseline: tuple[Stat, _Request] | None = None  # the answer that later ones are compared with
        self._missing = 0  # until then
        self._own_token = 0  # of a STAT that the feedback sent
        self._next_stat = 0.0
        self._room = 0.0  # granted at the last look
        self._server_started = 0.0  # our clock when the server was running already; 0: unknown
        self._uptime = 0  # the last one reported, ms
        self._late_stats = 0  # STATs given up, whose answer may still come

    def path_mtu(self, mtu: int, headers: int = HEADERS_IPV4) -> None:
        """Set the MTU of the path to the server. The option ``mtu`` takes precedence."""
        mtu = self._config.mtu or mtu
        least = max(576 - HEADERS_IPV6, HEADER + len(self._tags))
        self._codec.datagram = max(least, min(mtu - headers, MAX_DATAGRAM))

    # -- pace

    def watch_receiver(self, look: LookAtReceiver) -> None:
        """Use `look` to see the server's receive queue."""
        self.receiver = look

    def pace(self, now: float, packets: float, size: float) -> None:
        """Set the pace: packets and bytes per second; 0: unlimited."""
        burst = self._burst(packets)
        self._codec.pace(now, packets, size, burst=burst, size_burst=_size_burst(burst))

    def regulate(self, now: float) -> tuple[float, bool]:
        """Adapt the pace to the receiver."""
        if self._pace_is_final or (self._config.feedback == "none" and not self._config.pace):
            return float("inf"), False
        self._codec.ready(now)  # sets the codec's clock
        packets = int(self._codec.counts[2])
        if self._config.feedback == "none":
            return self._start_slowly(now, packets), False
        if self._by_stat is None:
            seen = self.receiver() if self._config.feedback == "auto" and self.receiver is not None else None
            if seen is not None:
                if self._by_queue is None:
                    self.pace(now, 0.0, self._config.pace_bytes)
                return now + self._grant(*seen).look, False
            if self._by_queue is not None:  # the queue was visible before: the server may be gone
                self._allow(1.0, 1.0)  # one message
                return now + RECEIVER_RETRY, False
            self._by_stat = ByStat(self._config.pace or UNPACED_BASE)
        self.handle_timeout(now)
        asks = self._next_stat <= now and (packets != self._packets or self._baseline is None)
        asks = asks and not any(request.kind == "stat" for request in self._requests)
        if asks:
            self._packets = packets
            self._own_token = self.call("stat")
        if self._next_stat <= now:
            self._next_stat = now + STAT_INTERVAL
        rate = self._by_stat.rate
        burst = max(1.0, min(self._burst(rate), rate * STAT_INTERVAL))
        self._codec.pace(now, rate, self._config.pace_bytes, burst=burst, size_burst=_size_burst(burst))
        return self._next_stat, asks

    def _start_slowly(self, now: float, packets: int) -> float:
        """Set the pace of the first packets through a socket; return the time of the next look.

        A visible receive queue allows the full pace from the first packet on, as long as it has room.
        """
        if self._packets_before is None:
            self._packets_before = packets
            self._sent_at = now  # a socket is opened when there is something to send
        elif packets != self._packets:
            self._sent_at = now
        self._packets = packets
        rate, size = slow_start(self._config.pace, packets - self._packets_before), self._config.pace_bytes
        if rate >= self._config.pace:
            self._pace_is_final = True
            self.pace(now, rate, size)
            self._allow(0.0, 0.0)
            return float("inf")
        look, burst = SLOW_LOOK, min(SLOW_BURST, self._burst(rate))
        seen = self.receiver() if self.receiver is not None else None
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
        self._codec.pace(now, rate, size, burst=burst, size_burst=_size_burst(burst))
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

    def _compare(self, request: _Request, answer: Stat) -> None:
        """Give the loss since the first answer to the feedback."""
        if self._by_stat is None:
            return
        if self._baseline is None or answer.uptime < self._baseline[0].uptime:
            self._baseline, self._missing = (answer, request), self.missing
        before, then = self._baseline
        sent = sum(request.counts[:2]) - sum(then.counts[:2])
        lost = estimate_loss(before, answer, sent, request.commands - then.commands).lost
        if lost is None:
            # The traffic of other clients may end.
            self._baseline, self._missing = (answer, request), self.missing
        self.missing = self._missing + (lost or 0)
        self._by_stat.answered(self._codec.now, lost, sum(request.counts[:2]), request.counts[2])

    def _burst(self, packets: float) -> float:
        least, seconds = self._config.burst
        return max(least, packets * seconds)

    # -- the connection

    def connected(self, now: float, random: Callable[[], float] | None = None) -> None:
        """Begin with a new socket."""
        super().connected(now, random)
        self._random = random or self._random

    # -- commands

    def call(self, kind: str, payload: Any = None) -> int:
        """Send a command. It replaces an unanswered one of the same kind and payload.

        The payload of its ``Reply`` is a ``TimeoutError`` if there is no answer in time, else:

        ========  =========================================  ======================================
        kind      payload                                    payload of the reply
        ========  =========================================  ======================================
        ``ping``  bytes or text; None: one of our own        the same payload, as bytes
        ``stat``                                             a `Stat`, or a `ProtocolError`
        ``envi``                                             text
        ``kill``  must be True: it ends the server process   None, at once: the server says nothing
        ========  =========================================  ======================================
        """
        if kind not in COMMANDS:
            raise ValueError(f"call: plog has no {kind!r}")
        data = b""
        if kind == "ping":
            if payload is None:
                payload = f"{int(self._random() * (1 << 48)):012x}{self._token:x}"
            data = payload.encode() if isinstance(payload, str) else bytes(payload)
        elif kind == "kill" and payload is not True:
            raise ValueError("call: kill wants True: it ends the server process")
        self._codec.command(command(kind, data))
        self._token += 1
        self.commands += 1
        now = self._codec.now
        self.handle_timeout(now)
        for request in [one for one in self._requests if (one.kind, one.payload) == (kind, data)]:
            self._give_up(request, "another was asked")
        if kind == "kill":
            self._answers.append(Reply(self._token, None))
        else:
            self._requests.append(_Request(self._token, kind, data, now, self._codec.counts, self.commands))
        return self._token

    def _replies(self) -> Iterator[CoreEvent]:
        for datagram in self._codec.take_replies():
            self._take(datagram, self._codec.now)
        answers, self._answers = self._answers, []
        return iter(answers)

    def _take(self, datagram: bytes, now: float) -> None:
        kinds = {request.kind for request in self._requests}
        if datagram.startswith(b"PONG"):
            payload = datagram[4:]
            for request in self._requests:
                if request.kind == "ping" and request.payload == payload:
                    self._answer(request, payload)
                    return
        elif datagram.startswith(b"{") and ("stat" in kinds or self._late_stats):
            self._take_stat(datagram, now)
        elif "envi" in kinds:
            request = next(request for request in self._requests if request.kind == "envi")
            self._answer(request, datagram.decode("utf-8", "replace"))

    def _take_stat(self, datagram: bytes, now: float) -> None:
        """Match an answer to STAT, which may answer a question that was given up.

        The uptime decides once one answer was matched: it tells when the server made the answer.
        """
        try:
            found: Stat | ProtocolError = parse_stat(datagram)
        except ProtocolError as error:
            found = error
        request = next((one for one in self._requests if one.kind == "stat"), None)
        late = request is None
        if isinstance(found, Stat):
            made = self._server_started + found.uptime / 1000  # at the latest
            known = bool(self._server_started)
            if request is not None and self._late_stats and known and found.uptime >= self._uptime:
                late = made + 0.001 < request.at  # the uptime has whole milliseconds
            if not known or found.uptime < self._uptime or now < made:
                self._server_started = now - found.uptime / 1000
            self._uptime = found.uptime
        if late:
            self._late_stats = max(0, self._late_stats - 1)
        elif request is not None:
            self._answer(request, found)

    def _give_up(self, request: _Request, why: str) -> None:
        self._late_stats += request.kind == "stat"
        self._answer(request, TimeoutError(f"{request.kind}: {why}"))

    def _answer(self, request: _Request, answer: object) -> None:
        self._requests.remove(request)
        if isinstance(answer, Stat):
            self._compare(request, answer)
        if request.token == self._own_token:
            self._own_token = 0
            if self._by_stat is not None and isinstance(answer, TimeoutError):
                self._by_stat.unanswered(self._codec.now, int(self._codec.counts[2]))
            return
        self._answers.append(Reply(request.token, answer))

    # -- time

    def handle_timeout(self, now: float) -> None:
        """Give up requests whose reply is overdue."""
        for request in list(self._requests):
            if request.at + self.reply_timeout <= now:
                self._give_up(request, f"no answer in {self.reply_timeout:g} s")


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

    def call(self, kind: str, payload: Any = None) -> int:
        """Refuse every command: there are none over TCP."""
        raise ValueError(f"call: plog over TCP has no {kind!r}")


def _size_burst(burst: float) -> float:
    """Return the bytes sent at once: room for a burst of packets of common size, and for one of any size."""
    return max(burst * 2048.0, float(MAX_DATAGRAM))
