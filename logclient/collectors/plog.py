"""A plog server for demos and tests: captures what comes, may pass it on to Kafka, and lies on request.

`Listener` is what the real server makes of datagrams, with no socket in it: which are messages, what it
counts, what it answers. `Collector` has the sockets, the capture and the faults. One thread serves the UDP
listener and, where it is asked for, the one for lines over TCP.

A datagram is one wire unit, and so is a line. Each is in the capture, and handed to the operating system,
before anything else is done with it.

Where the real server gives what it should not, ours does not: an empty datagram is no message (the real one
reads what an earlier one has left in its buffer), KILL is obeyed only when that was asked for, ENVI shows
settings and no secrets, and what a header claims is never allocated before it is known to be kept.
"""

from __future__ import annotations

import errno
import json
import re
import selectors
import socket
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from logclient._ext.plog import COMMAND, EMPTY, SIMPLE, Decoder, Judged, Reassembler
from logclient.collectors.capture import FROM_PEER, TO_PEER, CaptureWriter
from logclient.collectors.datagrams import Batch, Datagrams, batch_of
from logclient.collectors.faults import Faults, Witness
from logclient.collectors.injector import Datagram, Injector
from logclient.collectors.kafka import Forwarder
from logclient.collectors.running import IDLE, MAX_CONNECTIONS, TOO_MANY, Running
from logclient.collectors.tally import Tally
from logclient.config import host_port
from logclient.errors import ConfigError, ConnectFailed, LedgerError, LogclientError
from logclient.plog.core import split_tags

__all__ = ["Allowance", "Collector", "Counts", "Listener", "Taken"]

_SEGMENTS = 4  # of the real server's cache: a message gets a quarter of it at most
_IDS = 10  # of each port that holes are looked for among
_HOLE_MAX = 10
_PORTS = 1024
_PORT_IDLE = 60.0
_PEERS_MAX = 10_000
_HOSTS = 20  # that get all the answers they may have, together
_REPLIES_MAX = 1000  # that wait while answers are held back
_RECEIVE = 1 << 18
_LAST_BATCHES = 1000
_TICK = 0.1  # seconds between two looks at what Kafka has to say
_NEVER = float("inf")
_LOWEST = -(1 << 31)  # a place without an id


# --- what the server does with datagrams -------------------------------------------------------


class _Port:
    """The last ids that came from one port, ascending."""

    __slots__ = ("ids", "max", "min", "touched")

    def __init__(self) -> None:
        self.reset()
        self.touched = 0.0

    def reset(self) -> None:
        self.ids = [_LOWEST] * _IDS
        self.min, self.max = _NEVER, -_NEVER

    def add(self, number: int) -> int:
        """Messages that are missing between the two lowest ids, as one of them leaves the window."""
        if number < self.min:
            if self.min != _NEVER and self.min - number > _HOLE_MAX:
                self.reset()
            else:
                self.min = number
        if number > self.max:
            if self.max != -_NEVER and number - self.max > _HOLE_MAX:
                self.reset()
            else:
                self.max = number
        ids = self.ids
        at = bisect_left(ids, number)
        if at < _IDS and ids[at] == number:
            return 0
        if at:
            gone = ids.pop(0)
            ids.insert(at - 1, number)
        else:
            gone = number
        hole = ids[0] - gone - 1
        return hole if gone != _LOWEST and 0 < hole <= _HOLE_MAX else 0

    def holes(self) -> int:
        """Of all that are in the window."""
        found = 0
        for one, two in zip(self.ids, self.ids[1:], strict=False):
            if one != _LOWEST and 0 < two - one - 1 <= _HOLE_MAX:
                found += two - one - 1
        return found


class _Holes:
    """Messages that never came, as far as their numbers tell: for each port, whatever the host."""

    def __init__(self) -> None:
        self.from_new_message = 0
        self.from_dead_port = 0
        self._ports: OrderedDict[int, _Port] = OrderedDict()

    def add(self, port: int, number: int, now: float) -> None:
        if number > 0x7FFFFFFF:  # below zero: it borrows from the port
            port, number = port - 1, number - (1 << 32)
        found = self._ports.get(port)
        if found is None:
            found = self._ports[port] = _Port()
            if len(self._ports) > _PORTS:
                self._forget()
        else:
            self._ports.move_to_end(port)
        found.touched = now
        self.from_new_message += found.add(number)

    def _forget(self) -> None:
        _, port = self._ports.popitem(last=False)
        self.from_dead_port += port.holes()

    def expire(self, now: float) -> None:
        while self._ports and now - next(iter(self._ports.values())).touched >= _PORT_IDLE:
            self._forget()


class Taken(NamedTuple):
    """What became of some datagrams; good as long as their bytes are."""

    judged: Judged
    rows: list[int]  # those with which a message was whole
    replies: list[tuple[int, bytes]]  # row of the question, answer
    killed: int = -1  # row of a KILL that is to be obeyed

    def messages(self) -> Iterator[tuple[bytes, list[str]]]:
        """Payload and tags of each."""
        judged = self.judged
        for row in self.rows:
            yield judged.payload(row), split_tags(judged.tags(row)) if judged.tags_length[row] else []


class Listener:
    """The rules of one UDP listener: datagrams in; messages, replies and statistics out.

    Args:
        now: seconds of any clock that does not go back, as in all calls.
        max_size: bytes of all messages that are not whole; one of several fragments may have a quarter.
        expire_time: seconds after which a message of which nothing more came is given up.
        allow_kill: obey KILL.
        environment: what ENVI says; it is shown to everybody.

    Raises:
        ConfigError: an argument outside its range.
    """

    def __init__(
        self,
        now: float,
        *,
        max_size: int = 1 << 20,
        expire_time: float = 10.0,
        allow_kill: bool = False,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            self._defragmenter = Reassembler(
                max_message=max_size // _SEGMENTS, max_bytes=max_size, expire=expire_time
            )
        except ValueError as error:
            raise ConfigError(f"max_size, expire_time: {error}") from None
        self._started = now
        self._allow_kill = allow_kill
        self._environment = dict(environment or {})
        self._holes = _Holes()
        self.commands = 0
        self.unknown_commands = 0
        self.kills = 0  # asked for, obeyed or not
        self.seen_messages = 0
        self.seen_bytes = 0

    def feed(
        self,
        data: Any,
        offsets: array[int],
        lengths: array[int],
        ports: Sequence[int],
        now: float,
        handlers: Sequence[Mapping[str, Any]] | None = None,
    ) -> Taken:
        """Datagrams ``data[offset:offset + length]``, in order; a STAT among them tells of all of them.

        Args:
            ports: of whom each is. As in the real server two hosts with the same port are one.
            handlers: what STAT says of those who get the messages; None: what was seen.
        """
        judged = self._defragmenter.feed(data, offsets, lengths, array("Q", ports), now)
        verdicts = judged.verdict.tolist()
        rows = [row for row, verdict in enumerate(verdicts) if verdict <= SIMPLE]
        self.seen_messages += len(rows)
        sizes = judged.length.tolist()
        self.seen_bytes += sum([sizes[row] for row in rows])
        numbers, add = judged.id.tolist(), self._holes.add
        for row, opened in enumerate(judged.opened.tolist()):
            if opened:
                add(ports[row], numbers[row], now)
        replies: list[tuple[int, bytes]] = []
        killed = -1
        if COMMAND in verdicts:
            for row, verdict in enumerate(verdicts):
                if verdict != COMMAND:
                    continue
                said = judged.payload(row)
                if said[:4].lower() == b"kill":
                    self.kills += 1
                    killed = row if self._allow_kill else -1
                    continue
                reply = self._command(said, now, handlers)
                if reply is not None:
                    replies.append((row, reply))
        return Taken(judged, rows, replies, killed)

    def _command(self, said: bytes, now: float, handlers: Sequence[Mapping[str, Any]] | None) -> bytes | None:
        name = said[:4].lower()
        if name == b"ping":
            reply = b"PONG" + said[4:]
        elif name == b"stat":
            reply = json.dumps(self.stat(now, handlers), separators=(",", ":")).encode()
        elif name == b"envi":
            reply = f"Config(SimpleConfigObject({json.dumps(self._environment)}))".encode()
        else:
            self.unknown_commands += 1
            return None
        self.commands += 1  # behind the reply, which shows those before
        return reply

    def stat(self, now: float, handlers: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """What STAT is answered with, under the real server's names."""
        self._defragmenter.expire(now)
        self._holes.expire(now)
        counted = self._defragmenter.counters()
        if handlers is None:
            handlers = [
                {"seen_messages": self.seen_messages, "seen_bytes": self.seen_bytes, "name": "capture"}
            ]
        return {
            "version": "logclient",
            "uptime": int((now - self._started) * 1000),
            "udp_simple_messages": counted["udp_simple_messages"],
            "udp_invalid_version": counted["udp_invalid_version"],
            "v0_invalid_type": counted["v0_invalid_type"],
            "v0_invalid_multipart_header": counted["v0_invalid_multipart_header"],
            "unknown_command": self.unknown_commands,
            "v0_commands": self.commands,
            "exceptions": counted["exceptions"],
            "unhandled_objects": 0,
            "holes_from_dead_port": self._holes.from_dead_port,
            "holes_from_new_message": self._holes.from_new_message,
            "v0_fragments": counted["v0_fragments"],
            "v0_invalid_checksum": counted["v0_invalid_checksum"],
            "v0_invalid_fragments": counted["v0_invalid_fragments"],
            "dropped_fragments": counted["dropped_fragments"],
            "defragmenter": counted["defragmenter"],
            "handlers": [dict(handler) for handler in handlers],
        }

    @property
    def open(self) -> int:
        """Messages that are not whole."""
        return len(self._defragmenter.open)


class Lines:
    """Bytes of a TCP connection as lines: LF or CRLF ends one. What is too long is dropped, and the rest goes
    on behind its end; what has no end when the connection is closed is dropped as well.
    """

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._rest = bytearray()
        self._skipping = False
        self.too_long = 0

    def receive(self, data: bytes) -> list[bytes]:
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        lines = []
        for line in whole:
            line = line.removesuffix(b"\r")
            if self._skipping:
                self._skipping = False
            elif len(line) > self._max:
                self.too_long += 1
            else:
                lines.append(bytes(line))
        if len(rest) > self._max + 1:  # a CR may be the first half of its end
            if not self._skipping:
                self.too_long += 1
            self._skipping = True
        if self._skipping:
            rest.clear()
        self._rest = rest
        return lines


# --- the server --------------------------------------------------------------------------------


class Counts(NamedTuple):
    """What a collector has seen and done since it was made; datagrams and lines are wire units."""

    connections: int = 0  # addresses that sent datagrams, and TCP connections
    open: int = 0  # TCP connections now
    datagrams: int = 0
    lines: int = 0
    bytes: int = 0  # of them
    events: int = 0  # messages, whole
    captured_events: int = 0  # those of them that the capture has: fewer with a liar
    replies: int = 0
    replies_lost: int = 0  # the kernel did not take them
    kills: int = 0  # asked for
    kernel_drops: int | None = None  # datagrams the kernel had no room for; None: it does not tell
    forwarded: int = 0  # messages that Kafka has
    failed_to_send: int = 0  # messages that Kafka has not
    too_long: int = 0  # lines over the limit
    idle_closes: int = 0  # TCP connections
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        return 0


class _Peer:
    """Somebody who sends datagrams."""

    __slots__ = ("number", "port", "stream")

    def __init__(self, number: int, port: int, stream: int) -> None:
        self.number = number
        self.port = port
        self.stream = stream


class _Connection:
    """Somebody who sends lines."""

    __slots__ = ("heard_at", "lines", "sock", "stream")

    def __init__(self, sock: socket.socket, lines: Lines, stream: int, now: float) -> None:
        self.heard_at = now
        self.sock = sock
        self.lines = lines
        self.stream = stream


class Allowance:
    """Answers that may go to each host in a second, and to all of them together.

    Args:
        rate: to one host; 0: no bound.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # of which host: how many, when

    def take(self, host: str, now: float) -> bool:
        """Whether one more may go there."""
        if not self._rate:
            return True
        mine, all_of_them = self._now(host, self._rate, now), self._now("", self._rate * _HOSTS, now)
        allowed = mine >= 1.0 and all_of_them >= 1.0
        for name, left in ((host, mine), ("", all_of_them)):
            self._left[name] = (left - allowed, now)
            self._left.move_to_end(name)
        if len(self._left) > _PEERS_MAX:
            self._left.popitem(last=False)
        return allowed

    def _now(self, name: str, rate: float, now: float) -> float:
        most = max(1.0, rate)
        left, at = self._left.get(name, (most, now))
        return min(most, left + (now - at) * rate)


def _name(address: Any) -> str:
    return host_port(*address[:2])


class Collector(Running[Counts]):
    """A plog server in a thread of its own. A context manager; starts and stops any number of times.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: of UDP; 0 picks a free one, which ``port`` then says, and a restart keeps.
        tcp_port: where lines are taken over TCP, the same way; None: nowhere.
        capture: directory of the capture; none is kept without.
        faults: see ``logclient.collectors.faults``; they strike datagrams, and no lines.
        witness: a file for what they did, see ``logclient.collectors.injector``.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default protocol, host and port. That of lines has ``-lines`` behind.
        max_size, expire_time, allow_kill: as of `Listener`.
        max_line: bytes of a line.
        idle: seconds after which a TCP connection over which nothing comes is closed; 0 = never.
        max_connections: of TCP at one time; who comes then is sent away.
        reply_rate: answers a second to one host that are longer than the question (STAT, ENVI); all hosts
            together get twenty times as many. 0 = no bound. Who asks may not be who the answer goes to.
        receive_buffer: bytes that the kernel is asked to keep for us; 0: what it gives by itself.
        kafka: where messages are passed on to: ``host:port``, or librdkafka's settings by name.
        kafka_topic: of messages that name none.
        count_duplicates: count the ids that are captured more than once.
        keep: keep the messages in memory, for ``events`` and ``messages``.

    Raises:
        ConfigError: an argument that breaks its rule.
        MissingExtra: confluent-kafka is needed and not installed (``start``).
        LedgerError: capture or witness cannot be used (``start``).
        ConnectFailed: an address cannot be listened on (``start``).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tcp_port: int | None = None,
        capture: str | None = None,
        faults: str | None = None,
        witness: str | None = None,
        run: str | None = None,
        listener: str | None = None,
        max_size: int = 1 << 20,
        expire_time: float = 10.0,
        allow_kill: bool = False,
        max_line: int = 1 << 20,
        idle: float = IDLE,
        max_connections: int = MAX_CONNECTIONS,
        reply_rate: float = 50.0,
        receive_buffer: int = 8 << 20,
        kafka: str | Mapping[str, Any] | None = None,
        kafka_topic: str = "",
        count_duplicates: bool = False,
        keep: bool = False,
    ) -> None:
        for name, number in (("port", port), ("tcp_port", tcp_port)):
            if number is not None and not 0 <= number <= 65535:
                raise ConfigError(f"{name}: {number} must be 0 to 65535")
        if kafka is not None and not kafka_topic:
            raise ConfigError("kafka_topic: needed with kafka, for messages that name none")
        if kafka is None and kafka_topic:
            raise ConfigError("kafka_topic: of no use without kafka")
        super().__init__(Counts._fields)
        self.host = host
        self._port = port
        self._tcp_port = tcp_port
        self._capture_dir = capture
        self._faults = Faults(faults or "", "plog")
        self._witness_path = witness
        self._run = run
        self._listener_name = listener
        self._max_size = max_size
        self._expire_time = expire_time
        self._allow_kill = allow_kill
        self._max_line = max_line
        self._idle = idle
        self._max_connections = max_connections
        self._allowance = Allowance(reply_rate)
        self._receive_buffer = receive_buffer
        self._kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
        self._kafka_topic = kafka_topic
        self._tally = Tally() if count_duplicates else None
        self._decoder = Decoder(datagrams=False)
        self._keep = keep
        self._drops_before = 0  # of sockets that are closed
        self._listener = Listener(0.0, max_size=max_size, expire_time=expire_time)  # checks them
        self._socket: Datagrams | None = None
        self._peers: OrderedDict[Any, _Peer] = OrderedDict()
        self._connections: set[_Connection] = set()
        self._replies: deque[tuple[Any, int, bytes]] = deque()
        self._capture: CaptureWriter | None = None
        self._line_capture: CaptureWriter | None = None
        self._witness: Witness | None = None
        self._forwarder: Forwarder | None = None
        self._injector: Injector | None = None
        self._shown: Listener | None = None  # what is kept, where a liar shows the server something else
        self._count["kernel_drops"] = 0

    # --- what the user's threads call

    @property
    def port(self) -> int:
        return self._port

    @property
    def tcp_port(self) -> int | None:
        return self._tcp_port

    @property
    def url(self) -> str:
        return f"plog://{_name((self.host, self._port))}"

    @property
    def receive_buffer(self) -> int:
        """Bytes that the kernel keeps for us, its own needs included; 0 when we do not listen."""
        return self._socket.receive_buffer if self._socket is not None else 0

    @property
    def listens(self) -> dict[str, Any]:
        found: dict[str, Any] = {"url": self.url, "port": self.port}
        if self.tcp_port is not None:
            found["tcp"] = self.tcp_port
        return found

    def _counts(self) -> Counts:
        self._count["open"] = len(self._connections)
        counted: dict[str, Any] = {**self._count}
        if self._socket is not None:
            drops = self._socket.drops
            counted["kernel_drops"] = None if drops is None else drops + self._drops_before
        if self._forwarder is not None:
            counted["forwarded"] += self._forwarder.delivered
            counted["failed_to_send"] += self._forwarder.failed_to_send
        return Counts(**counted)

    def stat(self) -> dict[str, Any]:
        """What STAT would be answered with."""
        with self._changed:
            return self._listener.stat(time.monotonic(), self._handlers())

    def messages(self) -> list[bytes]:
        """The payloads captured so far, in the order in which they were whole (``keep=True``)."""
        with self._changed:
            return list(self._kept)

    def start(self) -> Collector:
        """Listen. Returns the collector itself."""
        self._check_stopped()
        opened = Datagrams(self.host, self._port, self._receive_buffer)
        lines: socket.socket | None = None
        try:
            self._port = opened.port
            if self._tcp_port is not None:
                lines = self._listen(self._tcp_port)
                self._tcp_port = int(lines.getsockname()[1])
            if self._witness_path is not None:
                self._witness = Witness(self._witness_path, self._capture_dir)
            if self._kafka is not None:
                self._forwarder = Forwarder(self._kafka, self._kafka_topic)
            if self._capture_dir is not None:
                self._capture = self._open_capture("plog", self._port, self.url, "")
                if lines is not None:
                    url = f"plog+tcp://{_name((self.host, self._tcp_port))}"
                    self._line_capture = self._open_capture("plog+tcp", self._port, url, "-lines")
        except BaseException:
            opened.close()
            if lines is not None:
                lines.close()
            for file in (self._witness, self._capture):
                if file is not None:
                    file.close()
            raise
        now = time.monotonic()
        self._socket = opened
        self._listener = Listener(
            now,
            max_size=self._max_size,
            expire_time=self._expire_time,
            allow_kill=self._allow_kill,
            environment=self._environment(),
        )
        self._injector, self._shown = None, None
        if self._faults:
            self._begin_faults(now)
        self._run_in_thread(self._serve, opened, lines)
        return self

    def _begin_faults(self, now: float) -> None:
        # Whose datagrams they are is found out whatever the server would give up.
        self._injector = Injector(self._faults, self._testify, 64 << 20, 256 << 20)
        if self._injector.lies:  # what is kept, and what the server has seen
            self._shown = Listener(now, max_size=self._max_size, expire_time=self._expire_time)

    def _open_capture(self, protocol: str, port: int, url: str, suffix: str) -> CaptureWriter:
        assert self._capture_dir is not None
        place = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{port}")
        name = (self._listener_name or f"plog-{place}") + suffix
        return CaptureWriter(self._capture_dir, name, protocol, url=url, run=self._run)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            # On Windows SO_REUSEADDR would let another process take the port over.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
            listener.bind((self.host, port))
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise ConnectFailed(f"listen: {self.host} TCP port {port}: {error.strerror or error}") from error
        return listener

    def _environment(self) -> dict[str, Any]:
        """What ENVI shows, to anybody who asks."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self._port,
            "defrag": {
                "max_size": self._max_size,
                "expire_time": f"{self._expire_time:g}s",
                "detect_holes": {
                    "ids_per_port": _IDS, "maximum_hole": _HOLE_MAX, "ports": _PORTS,
                    "expire_time": f"{_PORT_IDLE:g}s",
                },
            },
        }  # fmt: skip
        if self._forwarder is not None:
            found["kafka"] = self._forwarder.shown()
        return found

    def _values(self, raw: bytes) -> list[Any]:
        return [json.loads(raw)]

    # --- the thread

    def _serve(self, opened: Datagrams, lines: socket.socket | None) -> None:
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(opened, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            if lines is not None:
                selector.register(lines, selectors.EVENT_READ)
            try:
                while not self._stopping and self.error is None:
                    self._turn(opened, lines)
            except BaseException as error:
                self.error = error  # for whoever waits: a dead thread must not look like a slow one
                raise
            finally:
                with self._changed:
                    self._end(opened, lines)
                    self._changed.notify_all()

    def _end(self, opened: Datagrams, lines: socket.socket | None) -> None:
        try:
            now = time.monotonic()
            opened.finish()
            if self.error is None:
                # What had come before we were told to stop has arrived.
                for _ in range(_LAST_BATCHES):
                    batch = opened.read()
                    if batch is None:
                        break
                    self._arrived(batch, now)
                if not self._holding:
                    self._reply(opened)
            if self._injector is not None:
                self._through(*self._injector.expire(now, all_of_them=True), now)
        finally:
            self._drops_before += opened.drops or 0
            self._count["kernel_drops"] = self._drops_before
            self._socket = None
            opened.close()
            if lines is not None:
                lines.close()
            for connection in list(self._connections):
                self._close(connection)
            self._peers.clear()
            for capture in (self._capture, self._line_capture):
                try:
                    if capture is not None:
                        capture.close()
                except LedgerError as error:
                    self._not_captured(error)
            if self._forwarder is not None:
                self._forwarder.close()
                self._hear()
                self._count["forwarded"] += self._forwarder.delivered
                self._count["failed_to_send"] += self._forwarder.failed_to_send
                self._forwarder = None
            if self._witness is not None:
                self._witness.close()

    def _turn(self, opened: Datagrams, lines: socket.socket | None) -> None:
        """Wait, read, capture, judge, answer."""
        timeout = 0.0 if opened.more else self._next_due()
        ready = self._selector.select(0)
        if not ready and timeout != 0:
            if self._capture is not None and self._capture.pending:
                # Rows of replies go with the next datagrams; before a sleep they go alone.
                with self._changed:
                    self._flush(self._capture)
            ready = self._selector.select(timeout)
        with self._changed:
            now = time.monotonic()
            batch = opened.read()
            if batch is not None:
                self._arrived(batch, now)
            for key, _ in ready:
                if key.data is not None:
                    self._receive(key.data, now)
                elif key.fileobj is lines:
                    self._accept(key.fileobj, now)
                elif key.fileobj is self._wake_in:
                    self._drain()
            if self._cut_all:
                self._cut_all = False
                for connection in list(self._connections):
                    self._close(connection)
            if self._idle:
                self._close_idle(now)
            if self._injector is not None and self._injector.due <= now:
                self._through(*self._injector.expire(now), now)
            if not self._holding:
                self._reply(opened)
            if self._forwarder is not None:
                self._hear()
            self._changed.notify_all()

    def _drain(self) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            pass

    def _next_due(self) -> float | None:
        """Seconds until something is due, None when nothing is."""
        if self._replies and not self._holding:
            return 0.0
        due = self._injector.due if self._injector is not None else _NEVER
        if self._idle:
            due = min([due, *(one.heard_at + self._idle for one in self._connections)])
        wait = max(0.0, due - time.monotonic())
        if self._forwarder is not None:
            wait = min(wait, _TICK)
        return None if wait == _NEVER else wait

    # --- datagrams -> capture -> messages

    def _arrived(self, batch: Batch, now: float) -> None:
        self._count["datagrams"] += len(batch)
        self._count["bytes"] += sum(batch.lengths)
        peers = [self._peer(source) for source in batch.sources]
        if self._injector is None:
            self._keep_batch(batch, peers, now)
            return
        incoming = [Datagram(bytes(batch.raw(row)), peer) for row, peer in enumerate(peers)]
        sources = {peer.number: source for peer, source in zip(peers, batch.sources, strict=True)}
        self._through(*self._injector.feed(incoming, now), now, sources)

    def _through(
        self,
        served: list[Datagram],
        kept: list[Datagram],
        now: float,
        sources: Mapping[int, Any] | None = None,
    ) -> None:
        """What came through the faults: for the server, and for the capture."""
        sources = sources or {}
        shown = self._shown
        if served and shown is not None:
            batch = batch_of([one.raw for one in served], [sources.get(one.peer.number) for one in served])
            self._judge(batch, [one.peer for one in served], now)
        if kept:
            batch = batch_of([one.raw for one in kept], [sources.get(one.peer.number) for one in kept])
            self._keep_batch(batch, [one.peer for one in kept], now, shown)

    def _peer(self, source: Any) -> _Peer:
        peers = self._peers
        peer = peers.get(source)
        if peer is not None:
            peers.move_to_end(source)
            return peer
        self._count["connections"] += 1
        stream = 0 if self._capture is None else self._capture.stream(_name(source))
        peer = peers[source] = _Peer(self._count["connections"], source[1], stream)
        if len(peers) > _PEERS_MAX:
            # A sender never says that it has gone. Whoever is forgotten and speaks again is a new stream.
            _, old = peers.popitem(last=False)
            if self._capture is not None:
                self._capture.end_stream(old.stream)
        return peer

    def _keep_batch(
        self, batch: Batch, peers: list[_Peer], now: float, shown: Listener | None = None
    ) -> None:
        """Capture it, and then see what is in it.

        Args:
            shown: what finds the messages in it, where the server was shown something else.
        """
        capture = self._capture
        if capture is not None:
            data, unit = batch.data, capture.unit
            times = batch.times or repeat(time.time_ns() // 1000, len(peers))
            for begin, length, peer, at in zip(batch.offsets, batch.lengths, peers, times, strict=True):
                unit(peer.stream, data[begin : begin + length], FROM_PEER, at)
            if not self._flush(capture):
                return  # not kept, so it has not come
        if shown is None:
            taken = self._judge(batch, peers, now)
        else:
            ports = [peer.port for peer in peers]
            taken = shown.feed(batch.data, batch.offsets, batch.lengths, ports, now)
        self._hand_on(taken)

    def _flush(self, capture: CaptureWriter) -> bool:
        try:
            capture.flush()
        except LedgerError as error:
            self._not_captured(error)
            return False
        return True

    def _judge(self, batch: Batch, peers: list[_Peer], now: float) -> Taken:
        """What the server makes of it."""
        ports = [peer.port for peer in peers]
        listener = self._listener
        kills = listener.kills
        taken = listener.feed(batch.data, batch.offsets, batch.lengths, ports, now, self._handlers())
        self._count["events"] += len(taken.rows)
        for row, reply in taken.replies:
            source = batch.sources[row]
            if source is None or len(self._replies) >= _REPLIES_MAX:
                self._count["replies_lost"] += 1
            elif len(reply) > batch.lengths[row] and not self._allowance.take(source[0], now):
                self._note("replies: asked for too often")
            else:
                self._replies.append((source, peers[row].stream, reply))
        if listener.kills > kills:
            self._count["kills"] += listener.kills - kills
            if taken.killed >= 0:
                whom = batch.sources[taken.killed]
                self.error = LogclientError(f"KILL from {_name(whom) if whom else 'somebody'}")
            else:
                self._note("kill: not allowed")
        if EMPTY in taken.judged.verdict.tolist():
            self._note("an empty datagram")
        return taken

    def _handlers(self) -> list[dict[str, Any]] | None:
        if self._forwarder is None:
            return None
        # What a liar shows has not always gone to Kafka.
        return [{**self._forwarder.stats(), "seen_messages": self._listener.seen_messages}]

    def _hand_on(self, taken: Taken) -> None:
        """Count the messages, and pass them on."""
        self._count["captured_events"] += len(taken.rows)
        if not taken.rows or (self._forwarder is None and self._tally is None and not self._keep):
            return
        messages = list(taken.messages())
        payloads = [payload for payload, _ in messages]
        if self._keep:
            self._kept += payloads
        if self._tally is not None:
            self._add_up(payloads)
        if self._forwarder is not None:
            for payload, tags in messages:
                self._forwarder.send(payload, tags)

    def _add_up(self, payloads: list[bytes]) -> None:
        assert self._tally is not None
        batch = batch_of(payloads, [])
        self._tally.add(self._decoder.decode(batch.data, batch.offsets, batch.lengths))
        self._count["duplicates"] = self._tally.duplicates
        self._count["copies"] = self._tally.copies

    def _testify(self, fault: str, ids: list[str], **more: str | int) -> None:
        if self._witness is not None:
            self._witness.write(fault, ids, **more)

    def _hear(self) -> None:
        """What Kafka has to say."""
        assert self._forwarder is not None
        self._forwarder.poll()
        for error in self._forwarder.errors:
            self._note(error)
        self._forwarder.errors.clear()

    def _reply(self, opened: Datagrams) -> None:
        while self._replies:
            source, stream, data = self._replies.popleft()
            if not opened.reply(data, source):
                self._count["replies_lost"] += 1
                continue
            self._count["replies"] += 1
            if self._capture is not None:
                self._capture.unit(stream, data, TO_PEER)

    # --- lines

    def _accept(self, listener: Any, now: float) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.01)  # no descriptor left: it stays in the backlog, those connected go on
            return
        if len(self._connections) >= self._max_connections:
            self._note(TOO_MANY)
            sock.close()
            return
        sock.setblocking(False)
        self._count["connections"] += 1
        stream = 0 if self._line_capture is None else self._line_capture.stream(_name(address))
        connection = _Connection(sock, Lines(self._max_line), stream, now)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _close_idle(self, now: float) -> None:
        for connection in [one for one in self._connections if now - one.heard_at >= self._idle]:
            self._count["idle_closes"] += 1
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if self._line_capture is not None:
            self._line_capture.end_stream(connection.stream)

    def _receive(self, connection: _Connection, now: float) -> None:
        try:
            data = connection.sock.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset
            data = b""
        if not data:
            self._close(connection)
            return
        connection.heard_at = now
        self._count["bytes"] += len(data)
        before = connection.lines.too_long
        found = connection.lines.receive(data)
        self._count["too_long"] += connection.lines.too_long - before
        self._count["lines"] += len(found)
        capture = self._line_capture
        if capture is not None and found:
            for line in found:
                capture.unit(connection.stream, line)
            if not self._flush(capture):
                return
        self._count["events"] += len(found)
        self._count["captured_events"] += len(found)
        if self._keep:
            self._kept += found
        if self._tally is not None and found:
            self._add_up(found)
        if self._forwarder is not None:
            for line in found:
                self._forwarder.send(line, [])
