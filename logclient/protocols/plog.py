"""plog: the client's core, commands and their replies, tags.

There is no connection and there are no acknowledgements: an event is ``handed`` once the kernel has
taken all of it.

==========================  =====================================================================
what is sent                what is told of it
==========================  =====================================================================
unboxed message             nothing; only with ``unboxed=True``, and only what may travel so
boxed message (fragments)   its number, +1 for each, from 1 on each socket: servers count holes
PING and anything           PONG and the same, which is how a reply is matched
STAT                        one JSON text. It does not say to which question: the last one counts
ENVI                        one text, matched the same way
KILL                        nothing: the server process ends, some 10 s later
==========================  =====================================================================

A message is paced as a whole: its fragments leave back to back (servers drop messages whose fragments are
mixed with those of others), and the next one waits until the buckets of packets and bytes have recovered.

All the work is done in ``logclient._ext.plog``; this class gives it the words of ``protocols.core``, and the
compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from logclient._ext.hash import murmur3
from logclient._ext.plog import COMMAND as IS_COMMAND
from logclient._ext.plog import (
    HEADER,
    MAX_DATAGRAM,
    SIMPLE,
    VERDICT_NAMES,
    Hot,
    Reassembler,
    datagrams,
    join_runs,
)
from logclient.errors import ConfigError, ProtocolError
from logclient.protocols.compiled import CompiledCore
from logclient.protocols.core import CoreEvent, Reply
from logclient.protocols.pacing import ByQueue, ByStat, SlowStart
from logclient.readable import BODY_KEPT, Bytes, Frame, around

__all__ = [
    "Defragmenter", "Lines", "Loss", "Options", "Plog", "Probe", "Stat", "command", "estimate_loss", "frames",
    "join_tags", "kafka_tags", "parse_stat", "split_tags",
]  # fmt: skip

TAGGED = 1
"""High nibble of the kind of an event whose body begins with its own tags: u16 big-endian, then the tags."""

DATAGRAM_UNTOLD = 1452  # until a transport says more: Ethernet, IPv6
HEADERS_IPV4 = 28
HEADERS_IPV6 = 48
COMMANDS = ("ping", "stat", "envi", "kill")
STAT_EVERY = 0.25
"""Seconds between two looks at the server's counters, where they say how fast it may go."""
FILLING = 1e15  # a second: a microsecond of it fills any bucket
TRICKLE = 1e-3  # a second: none until the next look, for 0 is no bound
AGAIN = 0.001  # seconds, while it cannot be seen how full the queue is
UNPACED_BASE = 10_000.0
"""Packets a second that feedback begins with, without a pace."""

_TOPIC = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


# -- tags


def join_tags(tags: Iterable[str]) -> bytes:
    """Tags as they travel: UTF-8, a NUL between two.

    Raises:
        ValueError: with the rule that one breaks. Servers would drop an empty tag, cut one at a NUL,
            discard what goes to the topic ``null``, and take the last of two topics or keys.
    """
    found: list[bytes] = []
    seen = {"kt:": False, "pk:": False}
    for tag in tags:
        if not isinstance(tag, str):
            raise ValueError(f"tags: each must be text, not {type(tag).__name__}")
        if not tag or "\0" in tag:
            raise ValueError("tags: none may be empty or hold a NUL")
        kind, value = tag[:3], tag[3:]
        if kind in seen:
            if seen[kind]:
                raise ValueError(f"tags: two that begin with {kind}")
            seen[kind] = True
            if not value:
                raise ValueError(f"tags: nothing behind {kind}")
        if kind == "kt:":
            _checked_topic(value)
        try:
            found.append(tag.encode())
        except UnicodeEncodeError:
            raise ValueError("tags: must be encodable in UTF-8") from None
    joined = b"\0".join(found)
    if len(joined) > MAX_DATAGRAM - HEADER:
        raise ValueError(f"tags: {len(joined)} bytes; {MAX_DATAGRAM - HEADER} are the most")
    return joined


def split_tags(data: bytes) -> list[str]:
    """As the server reads them: empty ones are left out, what is no UTF-8 becomes U+FFFD."""
    return [tag.decode("utf-8", "replace") for tag in data.split(b"\0") if tag]


def kafka_tags(topic: str = "", key: str = "") -> list[str]:
    """The tags that send a message to a Kafka topic, with a key: ``kt:TOPIC``, ``pk:KEY``."""
    return ([f"kt:{topic}"] if topic else []) + ([f"pk:{key}"] if key else [])


def _checked_topic(topic: str) -> str:
    if topic == "null":
        raise ValueError("topic: servers discard what goes to 'null'")
    if not 0 < len(topic) <= 249 or topic in (".", "..") or not _TOPIC.issuperset(topic):
        raise ValueError("topic: 1 to 249 letters, digits, dots, underscores and dashes, as in Kafka")
    return topic


# -- commands


def command(name: str, payload: bytes = b"") -> bytes:
    """The datagram of a command; ``payload`` comes back from ``ping``, and is ignored by the others.

    Raises:
        ValueError: no such command.
    """
    if name not in COMMANDS:
        raise ValueError(f"command: {name!r} is none of {', '.join(COMMANDS)}")
    return b"\0\0" + name.upper().encode() + payload


class Defragmenter(NamedTuple):
    """Of the cache of open messages."""

    evictions: int = 0
    hits: int = 0
    misses: int = 0


class Stat(NamedTuple):
    """A server's counters, since it started, of all clients of this listener.

    The fields that are counters by size have 17 places: place 0 is for 0 (of fragments the first, of messages
    those of one fragment), place n for 2**(n-1) to 2**n - 1. In those of two places the first is that of the
    message, of its fragments less one, the second that of the fragment. What a server does not say is 0 or
    empty. Other names are read too: those in camelCase, and ``cache`` for ``defragmenter``.
    """

    version: str = ""
    uptime: int = 0
    """Milliseconds; when it is less than before, the server has begun anew."""
    udp_simple_messages: int = 0
    """Unboxed ones."""
    udp_invalid_version: int = 0
    v0_invalid_type: int = 0
    v0_invalid_multipart_header: int = 0
    unknown_command: int = 0
    v0_commands: int = 0
    exceptions: int = 0
    unhandled_objects: int = 0
    holes_from_dead_port: int = 0
    holes_from_new_message: int = 0
    """Messages that did not come, as far as their numbers tell: no more than 9 in a row are seen."""
    v0_fragments: tuple[int, ...] = ()
    v0_invalid_checksum: tuple[int, ...] = ()
    v0_invalid_fragments: tuple[tuple[int, ...], ...] = ()
    dropped_fragments: tuple[tuple[int, ...], ...] = ()
    defragmenter: Defragmenter = Defragmenter()
    handlers: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] = {}
    """All that it said, under its own names."""

    @property
    def seen_messages(self) -> int | None:
        """Messages that the first handler got; None: it does not say."""
        for name in ("seen_messages", "logged"):
            value = self.handlers[0].get(name) if self.handlers else None
            if isinstance(value, int):
                return value
        return None

    @property
    def failed_to_send(self) -> int | None:
        """Messages that its handlers could not pass on (to Kafka); None: they do not say."""
        found = [handler.get("failed_to_send") for handler in self.handlers]
        found.append(self.raw.get("failed_to_send", self.raw.get("failedToSend")))
        known = [value for value in found if isinstance(value, int)]
        return sum(known) if known else None

    @property
    def boxed_messages(self) -> int:
        """Boxed messages of which the first fragment came, whole or not."""
        return self.v0_fragments[0] if self.v0_fragments else 0


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1 << 63:
        raise ValueError("a counter that is no number")
    return int(value)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("counters that are no list")
    return tuple(map(_count, value))


def _objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("handlers that are no list of objects")
    return tuple(value)


def _cache(value: Any) -> Defragmenter:
    if not isinstance(value, dict):
        raise ValueError("a cache that is no object")
    return Defragmenter(*(_count(value.get(name, 0)) for name in Defragmenter._fields))


_READ: dict[str, Callable[[Any], Any]] = {
    "version": str,
    "v0_fragments": _counts,
    "v0_invalid_checksum": _counts,
    "v0_invalid_fragments": lambda value: tuple(map(_counts, value)),
    "dropped_fragments": lambda value: tuple(map(_counts, value)),
    "defragmenter": _cache,
    "handlers": _objects,
}


def parse_stat(data: bytes) -> Stat:
    """What a STAT was answered with.

    Raises:
        ProtocolError: it is no such thing.
    """
    import json

    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or "uptime" not in raw:
            raise ValueError("no JSON object with uptime")
        fields: dict[str, Any] = {}
        for name, value in raw.items():
            name = _snake(name)
            name = "defragmenter" if name == "cache" else name
            if name in Stat._fields and name != "raw":
                read: Callable[[Any], Any] = _READ.get(name, _count)
                fields[name] = read(value)
        return Stat(**fields, raw=raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"stat: {error}") from None


class Loss(NamedTuple):
    """How many of our messages did not arrive, as far as a server's counters tell."""

    lost: int | None
    """None: it cannot be told."""
    sent: int
    seen: int | None
    reason: str
    """Why it cannot be told."""


def estimate_loss(before: Stat, after: Stat, sent: int, commands: int = 1) -> Loss:
    """What became of `sent` messages between two STATs, in which we have sent `commands` commands.

    The counters are those of all clients of a listener, so ours must be the only one: what is more than we
    have sent gives another one away, in whichever counter it shows. Holes are not asked: ten messages lost in
    a row are none.
    """
    if after.uptime < before.uptime:
        return Loss(None, sent, None, "the server has begun anew")
    if before.seen_messages is None or after.seen_messages is None:
        return Loss(None, sent, None, "the server does not say how many messages it has seen")
    seen = after.seen_messages - before.seen_messages
    begun = after.boxed_messages - before.boxed_messages
    begun += after.udp_simple_messages - before.udp_simple_messages
    asked = after.v0_commands - before.v0_commands
    if min(seen, begun, asked) < 0:
        return Loss(None, sent, seen, "counters of the server went back")
    if seen > sent or begun > sent or asked > commands:
        return Loss(None, sent, seen, "another client's traffic is in the counters")
    return Loss(sent - seen, sent, seen, "")


# -- the core


class Options(NamedTuple):
    """What a plog core can be told."""

    mtu: int | None = None
    """Bytes of an IP packet at most; None: what the transport knows of the path."""
    unboxed: bool = False
    """Send without a box what may travel so: shorter, but unnumbered and unchecked."""
    tags: tuple[str, ...] = ()
    """Of each message that has none of its own; see `kafka_tags`."""
    max_message: int = 262_144
    """Bytes of a message at most: what a server takes with its defaults."""
    pace: float = 10_000.0
    """Packets a second; 0: as fast as it goes."""
    burst: int | None = None
    """Packets sent at once after a pause; None: 6.4 ms of the pace, 64 at least. A sender that slept a while
    makes up for it, as far as this goes."""
    pace_bytes: float = 64 << 20
    """Bytes a second; 0: no bound."""
    identity: str = "id"
    """``id``: splice the id into each event document; ``none``: do not."""
    check: bool = True
    """Look whether raw bytes are one JSON object in UTF-8 before the id goes in; no: where braces are."""
    reply_timeout: float = 2.0
    """Seconds that a command waits for its reply."""
    feedback: str = "none"
    """``none``: the pace is what it is, after a slow start; ``auto``: by the server's receive queue where the
    transport can see it, else by STAT; ``stat``: by STAT. See ``protocols.pacing``."""
    batch_bytes: int = 1 << 20
    """Bytes of messages encoded at once, at most; a larger one goes alone."""


class _Asked(NamedTuple):
    token: int
    kind: str
    payload: bytes
    at: float
    counts: tuple[int, int, int]
    asked: int


class Plog(CompiledCore):
    """The client's side of one socket at a time. See ``protocols.core.Core``.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        if options.identity not in ("id", "own", "none"):
            raise ConfigError(f"identity: id, own or none, not {options.identity!r}")
        if options.mtu is not None and not 576 <= options.mtu <= 65_535:
            raise ConfigError(f"mtu: 576 to 65535 bytes, not {options.mtu}")
        if options.feedback not in ("none", "auto", "stat"):
            raise ConfigError(f"feedback: none, auto or stat, not {options.feedback!r}")
        if not options.reply_timeout > 0:
            raise ConfigError(f"reply_timeout: more than 0 seconds, not {options.reply_timeout}")
        self.options = options
        burst = self._burst(options.pace)
        datagram = DATAGRAM_UNTOLD if options.mtu is None else options.mtu - HEADERS_IPV6
        try:
            hot = Hot(
                producer,
                datagram=datagram,
                tags=join_tags(options.tags),
                unboxed=options.unboxed,
                max_message=options.max_message,
                batch_bytes=options.batch_bytes,
                identity=options.identity != "none",
                check=options.check,
                packets=options.pace,
                burst=burst,
                size=options.pace_bytes,
                size_burst=_size_burst(burst),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(hot)
        self.strays = 0
        """Datagrams from the server that nobody waits for."""
        self.asked = 0
        """Commands that were to be sent."""
        self.receiver: Callable[[], tuple[int, int, int] | None] | None = None
        """Told by the transport, for each socket: looks at the server's receive queue; see `regulate`."""
        self._by_queue: ByQueue | None = None
        self._by_stat: ByStat | None = None
        self._slow_start: SlowStart | None = None
        self._known = False  # the slow start is over
        self._before = 0  # packets that went through earlier sockets
        self._sent_at = 0.0  # seconds of the clock, as far as looks tell
        self._base: tuple[Stat, _Asked] | None = None  # the answer that others are compared with
        self._own = 0  # the token of a question of our own
        self._look_at = self._looked_at = 0.0
        self._packets = 0  # sent at the last look
        self._token = 0
        self._random: Callable[[], float] = lambda: 0.0
        self._asked: list[_Asked] = []
        self._answers: list[Reply] = []
        self._born = 0.0  # a moment at which the server had begun, by our clock; 0: not known
        self._uptime = 0  # what the last STAT said
        self._late = 0  # STATs whose answer may still come

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Plog:
        """Make a core from a `logclient.config.Config`.

        Raises:
            ConfigError: An option is outside its range.
        """
        same = config.pick(Options._fields, but=("max_message", "tags", "reply_timeout", "batch_bytes"))
        same["max_message"] = config.max_event_bytes
        same["tags"] = (*kafka_tags(config.topic), *(tag for tag in config.tags.split(",") if tag))
        return cls(Options(**same), producer)

    @property
    def datagram(self) -> int:
        """Bytes of a datagram at most."""
        return int(self._hot.datagram)

    def path_mtu(self, mtu: int, headers: int = HEADERS_IPV4) -> None:
        """Told by the transport, for each socket: what the path to the server carries.

        The option ``mtu`` wins.

        Args:
            mtu: bytes of an IP packet.
            headers: of them those of IP and UDP: 28, or 48 with IPv6.
        """
        mtu = self.options.mtu or mtu
        least = max(576 - HEADERS_IPV6, HEADER + len(join_tags(self.options.tags)))
        self._hot.datagram = max(least, min(mtu - headers, MAX_DATAGRAM))

    def pace(self, now: float, packets: float, size: float) -> None:
        """From now on so many packets and bytes a second, 0: no bound; for whoever has feedback."""
        burst = self._burst(packets)
        self._hot.pace(now, packets, size, burst=burst, size_burst=_size_burst(burst))

    def regulate(self, now: float) -> tuple[float, bool]:
        """Between two runs of a pump: see how fast it may be.

        Returns:
            when to look again, and whether there is something to send for it.
        """
        if self._known or (self.options.feedback == "none" and not self.options.pace):
            return float("inf"), False
        self._hot.ready(now)  # it is `now` for what follows
        packets = int(self._hot.counts[2])
        if self.options.feedback == "none":
            return self._start_slowly(now, packets), False
        if self._by_stat is None:
            seen = self.receiver() if self.options.feedback == "auto" and self.receiver is not None else None
            if seen is not None:
                self._by_queue = self._by_queue or ByQueue()
                grant = self._by_queue.look(*seen, packets - self._packets)
                size = grant.size
                if self.options.pace_bytes:
                    size = min(size, self.options.pace_bytes * max(grant.look, now - self._looked_at))
                self._grant(now, grant.packets, size)
                self._looked_at = now
                self._packets = packets
                return now + grant.look, False
            if self._by_queue is not None:  # it was seen before: is anybody there still?
                self._grant(now, 1.0, 1.0)
                return now + AGAIN, False
            self._by_stat = ByStat(self.options.pace or UNPACED_BASE)
        self.handle_timeout(now)
        asks = self._look_at <= now and (packets != self._packets or self._base is None)
        asks = asks and not any(asked.kind == "stat" for asked in self._asked)
        if asks:
            self._packets = packets
            self._own = self.call("stat")
        if self._look_at <= now:
            self._look_at = now + STAT_EVERY
        self.pace(now, self._by_stat.rate, self.options.pace_bytes)
        return self._look_at, asks

    def _start_slowly(self, now: float, packets: int) -> float:
        """The pace of the first packets through a socket; when to look again.

        Where the receive queue is seen, it may be full from the first packet on, as long as there is room.
        """
        if self._slow_start is None:
            self._slow_start = SlowStart(self.options.pace)
            self._before = packets
            self._sent_at = now  # there is something to send, or there would be no socket
        elif packets != self._packets:
            self._sent_at = now
        self._packets = packets
        rate, size = self._slow_start.rate(packets - self._before), self.options.pace_bytes
        if rate >= self.options.pace:
            self._known = True
            self.pace(now, rate, size)
            return float("inf")
        idle = (now - self._sent_at) / 2
        look = max(SlowStart.LOOK, idle)
        burst = min(SlowStart.BURST, self._burst(rate))
        seen = self.receiver() if self.receiver is not None else None
        if seen is not None:
            self._by_queue = self._by_queue or ByQueue()
            grant = self._by_queue.look(*seen, 0)
            if grant.packets < 2:
                self._grant(now, 0.0, 0.0)
                self._sent_at = now  # or would, if there was room
                return now + SlowStart.LOOK_AT_QUEUE
            # Half of the room at once, the other half until the next look.
            look = max(SlowStart.LOOK_AT_QUEUE, idle)
            burst = max(1.0, min(self._burst(self.options.pace), grant.packets / 2))
            fits = min(self.options.pace, grant.packets / 2 / look)
            rate = max(rate, fits) if look > SlowStart.LOOK_AT_QUEUE else fits
            size = min(self.options.pace_bytes or FILLING, grant.size / 2 / SlowStart.LOOK_AT_QUEUE)
        self._hot.pace(now, rate, size, burst=burst, size_burst=_size_burst(burst))
        return now + look

    def _grant(self, now: float, packets: float, size: float) -> None:
        """So much may go at once, and then nothing."""
        if packets < 1:  # nothing at all: a packet for each look would fill any queue
            self._hot.pace(now, TRICKLE, TRICKLE, burst=1.0, size_burst=1.0)
            return
        self._hot.pace(now, FILLING, FILLING, burst=packets, size_burst=max(1.0, size))
        self._hot.pace(now + 1e-6, TRICKLE, TRICKLE)

    def _compare(self, asked: _Asked, answer: Stat) -> None:
        """An answer, for `regulate`."""
        if self._by_stat is None:
            return
        if self._base is None or answer.uptime < self._base[0].uptime:
            self._base = answer, asked
        before, then = self._base
        sent = sum(asked.counts[:2]) - sum(then.counts[:2])
        lost = estimate_loss(before, answer, sent, asked.asked - then.asked).lost
        if lost is None:
            self._base = answer, asked  # others' traffic may end
        self._by_stat.answered(self._hot.now, lost, asked.counts[2])

    def _burst(self, packets: float) -> float:
        burst = self.options.burst
        return max(64.0, packets * 0.0064) if burst is None else burst

    @property
    def counts(self) -> tuple[int, int, int]:
        """Messages encoded with a box, without one, and the datagrams of both."""
        boxed, simple, packets = self._hot.counts
        return int(boxed), int(simple), int(packets)

    @property
    def awaited(self) -> int:
        return len(self._asked) + int(self._hot.unsent)

    def silent(self) -> str:
        return "silence: no reply in time"  # not said: nothing but a command has one

    def sent(self, rest: int = 0) -> None:
        self._hot.sent(rest)

    def connected(self, now: float, random: Callable[[], float] | None = None) -> None:
        super().connected(now, random)
        if random is not None:
            self._random = random

    def _reset(self) -> None:
        super()._reset()
        self._asked.clear()  # commands are not sent again
        self._answers.clear()
        self._born = 0.0
        self._uptime = self._late = 0  # a new socket: no answer to an old question comes here
        self._base = self._by_queue = self._by_stat = self._slow_start = None
        self._known = False
        self._own = 0
        self._look_at = 0.0

    # -- commands

    def call(self, kind: str, payload: Any = None) -> int:
        """A command. What its ``Reply`` carries, or a ``TimeoutError``:

        ========  =========================================  ==============================
        ``ping``  payload: bytes or text, or None: our own   the payload, bytes
        ``stat``                                             a `Stat`, or a `ProtocolError`
        ``envi``                                             text
        ``kill``  must be True: it ends the server process   None, at once: nothing is said
        ========  =========================================  ==============================

        The same command with the same payload takes the place of one that has no answer yet.

        Raises:
            ValueError: no such command, or a payload that is too long.
        """
        if kind not in COMMANDS:
            raise ValueError(f"call: plog has no {kind!r}")
        data = b""
        if kind == "ping":
            data = self._ping_payload(payload)
        elif kind == "kill" and payload is not True:
            raise ValueError("call: kill wants True: it ends the server process")
        self._hot.command(command(kind, data))
        self._token += 1
        self.asked += 1
        self.handle_timeout(self._hot.now)
        for asked in [one for one in self._asked if (one.kind, one.payload) == (kind, data)]:
            self._give_up(asked, "another was asked")
        if kind == "kill":
            self._answers.append(Reply(self._token, None))
        else:
            self._asked.append(_Asked(self._token, kind, data, self._hot.now, self._hot.counts, self.asked))
        return self._token

    def _ping_payload(self, payload: Any) -> bytes:
        if payload is None:
            return f"{int(self._random() * (1 << 48)):012x}{self._token:x}".encode()
        return payload.encode() if isinstance(payload, str) else bytes(payload)

    def receive_data(self, data: bytes, now: float) -> None:
        super().receive_data(data, now)
        self._look(now)

    def _look(self, now: float) -> None:
        for datagram in self._hot.heard():
            self._take(datagram, now)

    def _replies(self) -> Iterator[CoreEvent]:
        self._look(self._hot.now)  # what the compiled pump has received
        answers, self._answers = self._answers, []
        return iter(answers)

    def _take(self, datagram: bytes, now: float) -> None:
        kinds = {asked.kind for asked in self._asked}
        if datagram.startswith(b"PONG"):
            payload = datagram[4:]
            for asked in self._asked:
                if asked.kind == "ping" and asked.payload == payload:
                    self._answer(asked, payload)
                    return
        elif datagram.startswith(b"{") and ("stat" in kinds or self._late):
            self._take_stat(datagram, now)
            return
        elif "envi" in kinds:
            self._answer(self._of("envi"), datagram.decode("utf-8", "replace"))
            return
        self.strays += 1

    def _take_stat(self, datagram: bytes, now: float) -> None:
        """An answer may be one to a question that was given up: its uptime tells, once one was matched."""
        try:
            found: Stat | ProtocolError = parse_stat(datagram)
        except ProtocolError as error:
            found = error
        asked = next((one for one in self._asked if one.kind == "stat"), None)
        late = asked is None
        if isinstance(found, Stat):
            made = self._born + found.uptime / 1000  # at the latest
            if asked is not None and self._late and self._born and found.uptime >= self._uptime:
                late = made < asked.at
            if not self._born or found.uptime < self._uptime or now < made:
                self._born = now - found.uptime / 1000
            self._uptime = found.uptime
        if late:
            self._late = max(0, self._late - 1)
            self.strays += 1
        elif asked is not None:
            self._answer(asked, found)

    def _of(self, kind: str) -> _Asked:
        return next(asked for asked in self._asked if asked.kind == kind)

    def _give_up(self, asked: _Asked, why: str) -> None:
        self._late += asked.kind == "stat"
        self._answer(asked, TimeoutError(f"{asked.kind}: {why}"))

    def _answer(self, asked: _Asked, answer: object) -> None:
        self._asked.remove(asked)
        if isinstance(answer, Stat):
            self._compare(asked, answer)
        if asked.token == self._own:
            self._own = 0
            if self._by_stat is not None and isinstance(answer, TimeoutError):
                self._by_stat.unanswered()
            return
        self._answers.append(Reply(asked.token, answer))

    # -- time

    def next_timeout(self, now: float) -> float | None:
        """When a command's reply is overdue, or the pace lets the next message go."""
        times = [asked.at + self.options.reply_timeout for asked in self._asked]
        ready = self._hot.ready(now)
        if ready:
            times.append(ready)
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        for asked in list(self._asked):
            if asked.at + self.options.reply_timeout <= now:
                self._give_up(asked, f"no answer in {self.options.reply_timeout:g} s")


class Lines(CompiledCore):
    """plog over TCP: each message is a line. Nothing is asked, answered or acknowledged, and nothing is
    paced: TCP holds back who is too fast.

    A message with a line end in it fails (``unencodable``): it would arrive as several.

    Args:
        options: of `Options`, ``max_message``, ``identity``, ``check`` and ``batch_bytes``.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        if options.identity not in ("id", "own", "none"):
            raise ConfigError(f"identity: id, own or none, not {options.identity!r}")
        self.options = options
        try:
            hot = Hot(
                producer,
                max_message=options.max_message,
                batch_bytes=options.batch_bytes,
                identity=options.identity != "none",
                check=options.check,
                packets=0.0,
                size=0.0,
                lines=True,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(hot)

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Lines:
        """Make a core from a `logclient.config.Config`."""
        return cls(
            Options(max_message=config.max_event_bytes, identity=config.identity, check=config.check),
            producer,
        )

    @property
    def awaited(self) -> int:
        return int(self._hot.unsent)

    def silent(self) -> str:
        return "silence: nothing is awaited"  # not said: nobody answers

    def sent(self, rest: int = 0) -> None:
        self._hot.sent(rest)

    def call(self, kind: str, payload: Any = None) -> int:
        raise ValueError(f"call: plog over TCP has no {kind!r}")


def _size_burst(burst: float) -> float:
    """Bytes that go at once: so many packets of a usual size, and one of any."""
    return max(burst * 2048.0, float(MAX_DATAGRAM))


class Probe:
    """A question that a plog server answers, and of which no event can come: its ping."""

    silence = "nobody listens there, or what is in between lets no UDP through"

    def __init__(self, config: Any) -> None:
        self._lines = getattr(config, "scheme", "") == "plog+tcp"
        self._payload = b""
        self._asked = 0
        self.about: dict[str, Any] = {}

    def ask(self) -> list[bytes]:
        """What to send; may be asked again after an answer. Over TCP there are no questions."""
        if self._lines:
            return []
        self._asked += 1
        self._payload = b"%x-%d" % (id(self), self._asked)
        return self.insist()

    def insist(self) -> list[bytes]:
        """The same again: a datagram may be lost."""
        return [join_runs([command("ping", self._payload)])]

    def receive_data(self, data: bytes) -> bool | None:
        """True: answered as plog does; False: as it never does; None: not yet."""
        for datagram in datagrams(data):
            if not datagram.startswith(b"PONG"):
                return False
            if datagram[4:] == self._payload:
                return True
        return None


# -- what travelled, for people


def frames(data: Bytes) -> Iterator[Frame]:
    """A datagram as one frame. A fragment is judged by itself: whether the others fit it, nobody looks."""
    view = memoryview(data)
    if len(view) > MAX_DATAGRAM:
        yield _marked(Frame(0, 0, len(view), "", {}), f"{len(view):,} bytes are no datagram", view)
        return
    judged = Reassembler(max_message=(1 << 31) - 1, max_bytes=1 << 32).feed(
        view, array("q", [0]), array("q", [len(view)]), array("Q", [0]), 0.0
    )
    verdict = judged.verdict[0]
    name = VERDICT_NAMES[verdict]
    body = judged.payload(0)
    fields: dict[str, Any] = {"type": name}
    if verdict == SIMPLE:
        title = "unboxed message"
    elif verdict == IS_COMMAND:
        letters = body[:4].decode("latin-1").upper()
        fields = {"type": "command", "command": letters}
        title, body = f"command {letters}", body[4:]
        if letters.lower() not in COMMANDS:
            name = "unknown_command"
    elif judged.count[0]:
        title = f"fragment {judged.index[0] + 1} of {judged.count[0]} of message {judged.id[0]}"
        header = bytes(view[:HEADER])
        size, total, hash_ = (int.from_bytes(header[a:b], "big") for a, b in ((6, 8), (12, 16), (16, 20)))
        tags = split_tags(judged.tags(0))
        fields = {
            "type": "fragment", "count": judged.count[0], "index": judged.index[0], "size": size,
            "id": judged.id[0], "total": total, "hash": f"{hash_:08x}", "tags": tags,
        }  # fmt: skip
        title += f", {total:,} bytes in all, hash {hash_:08x}"
        title += "".join(f", tag {tag}" for tag in tags)
    else:
        title, body = "", b""
    frame = Frame(0, 0, len(view), title, fields, body[:BODY_KEPT], len(body))
    wrong = _WRONG.get(name, "")
    if name == "bad_checksum":
        wrong += f": {murmur3(judged.payload(0)):08x}"
    yield _marked(frame, wrong, view) if wrong else frame


def _marked(frame: Frame, wrong: str, view: memoryview) -> Frame:
    data, begin = around(view, 0)
    return frame._replace(wrong=wrong, around=data, around_at=begin)


_WRONG = {
    "empty": "an empty datagram: servers take it for what an earlier one has left in their buffer",
    "bad_version": "a first byte of 1 to 31: no version but 0 is known, and no such message goes unboxed",
    "bad_type": "neither a command (0) nor a fragment (1)",
    "bad_header": "no header of a fragment: 24 bytes, an index below the count, a total, tags that are there",
    "out_of_bounds": "a payload beyond the total, or tags beyond the buffer of a server",
    "bad_fragment": "its payload is not as long as size and total say",
    "bad_checksum": "the hash of its payload is another",
    "unknown_command": "a command that no server knows",
}
