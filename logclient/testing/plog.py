"""A plog server for demos and tests: captures messages, can pass them on to Kafka, commits faults on request.

`logclient.testing.plog_device` has the rules, this module the sockets, the capture and the faults. A datagram
is one wire unit, and so is a line. It is captured before anything else is done with it.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Unpack

from logclient._ext.plog import EMPTY, Decoder
from logclient.config.hosts import host_port
from logclient.errors import ConfigError, LogclientError
from logclient.files.capture import FROM_PEER, TO_PEER, CaptureWriter
from logclient.testing.fault_gate import NEVER
from logclient.testing.kafka import Forwarder
from logclient.testing.loop import CollectorBase, CollectorOptions, bound_socket
from logclient.testing.loop import Counts as BaseCounts
from logclient.testing.plog_datagrams import Batch, Datagrams, batch_of
from logclient.testing.plog_device import HOLES, Lines, Listener, ReplyLimit, Taken
from logclient.testing.plog_injector import Datagram, Injector

__all__ = ["Collector", "Counts"]

_PEERS_MAX = 10_000
_REPLIES_MAX = 1000  # that wait while answers are held back
_RECEIVE = 1 << 18
_LAST_BATCHES = 1000
_KAFKA_POLL = 0.1  # seconds between two looks at Kafka's delivery reports


@dataclass(frozen=True, kw_only=True)
class Counts(BaseCounts):
    """Counters of a plog collector; datagrams and lines are wire units, events are whole messages.

    `connections` counts addresses that sent datagrams, and TCP connections; `open` only the latter. With data
    faults `captured_events` may be lower than `events`.
    """

    datagrams: int = 0
    lines: int = 0
    replies: int = 0
    replies_lost: int = 0  # the kernel did not take them
    kills: int = 0  # asked for
    kernel_drops: int | None = None  # datagrams the kernel had no room for; None: unknown
    forwarded: int = 0  # messages that Kafka has
    failed_to_send: int = 0  # messages that Kafka has not
    too_long: int = 0  # lines over the limit


class _Peer(NamedTuple):
    number: int
    port: int
    stream: int


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    lines: Lines
    stream: int
    alive_at: float


def _name(address: Any) -> str:
    return host_port(*address[:2])


class Collector(CollectorBase[Counts]):
    """A plog server in a thread of its own. A context manager that can be started again.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: the UDP port; 0 picks a free one; ``port`` has it then, and a restart keeps it.
        tcp_port: the port for lines over TCP, the same way; None: no lines.
        max_size: bytes of all incomplete messages; one of several fragments may have a quarter of it.
        expire_time: seconds without a new fragment after which an incomplete message is dropped.
        allow_kill: let the command KILL end the server.
        max_line: bytes of a line.
        reply_rate: answers a second to one host that are longer than the question (STAT, ENVI); all hosts
            together get twenty times as many; 0 = no limit. The sender's address of a question may be forged.
        receive_buffer: bytes of the kernel's buffer to ask for; 0: the default.
        kafka: the broker that messages are passed on to: ``host:port``, or librdkafka's settings by name.
        kafka_topic: the topic of messages that name none.
        options: see `CollectorOptions`. Faults apply to datagrams, not to lines; ``idle`` and
            ``max_connections`` apply to TCP. The name of lines in the capture ends with ``-lines``.

    Raises:
        ConfigError: an argument that breaks its rule.
        MissingExtra: confluent-kafka is needed and not installed (``start``).
        LedgerError: the capture or the fault log cannot be used (``start``).
        ConnectFailed: an address cannot be listened on (``start``).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tcp_port: int | None = None,
        max_size: int = 1 << 20,
        expire_time: float = 10.0,
        allow_kill: bool = False,
        max_line: int = 1 << 20,
        reply_rate: float = 50.0,
        receive_buffer: int = 8 << 20,
        kafka: str | Mapping[str, Any] | None = None,
        kafka_topic: str = "",
        **options: Unpack[CollectorOptions],
    ) -> None:
        if kafka is None and kafka_topic:
            raise ConfigError("kafka_topic: needs kafka")
        if kafka is not None and not kafka_topic:
            raise ConfigError("kafka_topic: needed with kafka, for messages that name none")
        decoder = Decoder(datagrams=False)
        super().__init__("plog", Counts, decoder, host, options, port=port, tcp_port=tcp_port)
        self.port: int = port  #: the UDP port
        self.tcp_port = tcp_port  #: the TCP port for lines; None: there is none
        self._max_size = max_size
        self._expire_time = expire_time
        self._allow_kill = allow_kill
        self._max_line = max_line
        self._reply_limit = ReplyLimit(reply_rate)
        self._receive_buffer = receive_buffer
        self._kafka = {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
        self._kafka_topic = kafka_topic
        self._make_listener = partial(Listener, max_size=max_size, expire_time=expire_time)
        self._listener = self._make_listener(0.0)  # checks the arguments
        self._socket: Any = None  # Datagrams, while it runs
        self._accepting: Any = None
        self._peers: OrderedDict[Any, _Peer] = OrderedDict()
        self._connections: set[_Connection] = set()
        self._replies: deque[tuple[Any, int, bytes]] = deque()
        self._line_capture: CaptureWriter | None = None
        self._forwarder: Forwarder | None = None
        self._injector: Injector | None = None
        self._capture_listener: Listener | None = None  # for the capture, where faults make it differ
        self._count["kernel_drops"] = 0  # of sockets that are closed

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"plog://{_name((self.host, self.port))}"

    @property
    def listens(self) -> dict[str, Any]:
        """The addresses on which it listens: ``url``, ``port``, and ``tcp`` for lines."""
        return super().listens | ({} if self.tcp_port is None else {"tcp": self.tcp_port})

    def _counts(self) -> Counts:
        counted = super()._counts().as_dict()
        if self._socket is not None:
            drops = self._socket.drops
            counted["kernel_drops"] = None if drops is None else drops + counted["kernel_drops"]
        if self._forwarder is not None:
            counted["forwarded"] += self._forwarder.delivered
            counted["failed_to_send"] += self._forwarder.failed_to_send
        return Counts(**counted)

    def stat(self) -> dict[str, Any]:
        """Return the answer to STAT."""
        with self._changed:
            return self._listener.stat(time.monotonic(), self._handlers())

    def messages(self) -> list[bytes]:
        """Return the payloads captured so far, in the order in which they were whole.

        Raises:
            ConfigError: the collector keeps nothing: it was made without ``keep=True``.
        """
        self._check_kept()
        with self._changed:
            return list(self._kept)

    def _open(self) -> None:
        self._socket = Datagrams(self.host, self.port, self._receive_buffer)
        self.port = self._socket.port
        if self.tcp_port is not None:
            self._accepting = bound_socket(socket.SOCK_STREAM, self.host, self.tcp_port, "TCP port")
            self.tcp_port = int(self._accepting.getsockname()[1])
        self._capture = self._open_capture(self.port, self.url)
        if self._accepting is not None:
            url = f"plog+tcp://{_name((self.host, self.tcp_port))}"
            self._line_capture = self._open_capture(self.port, url, protocol="plog+tcp", suffix="-lines")
        if self._kafka is not None:
            self._forwarder = Forwarder(self._kafka, self._kafka_topic)
        now = time.monotonic()
        times = {"max_size": self._max_size, "expire_time": f"{self._expire_time:g}s"}
        defrag = {**times, "detect_holes": HOLES}
        # The answer to ENVI, which anybody may ask for.
        environment = {"host": self.host, "port": self.port, "defrag": defrag}
        if self._forwarder is not None:
            environment["kafka"] = self._forwarder.public_settings()
        self._listener = self._make_listener(now, allow_kill=self._allow_kill, environment=environment)
        self._injector, self._capture_listener = None, None
        if self._faults:
            # Its limits are above the server's, to find the event of each datagram that the server drops.
            self._injector = Injector(self._faults, self._record_fault, 64 << 20, 256 << 20)
            if any(fault.name in ("discard", "swap", "corrupt", "add") for fault in self._faults.faults):
                self._capture_listener = self._make_listener(now)
        self._selector = selectors.DefaultSelector()
        for source in (self._socket, self._wake_in, self._accepting):
            if source is not None:
                self._selector.register(source, selectors.EVENT_READ)
        self._select = self._selector.select

    def _close_sockets(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._accepting is not None:
            self._accepting.close()
            self._accepting = None

    @staticmethod
    def _values(raw: bytes) -> list[Any]:
        return [json.loads(raw)]

    def _end(self) -> None:
        opened = self._socket
        now = time.monotonic()
        try:
            opened.finish()
            if self.error is None:
                # Datagrams that came before the end are still handled.
                for _ in range(_LAST_BATCHES):
                    batch = opened.read()
                    if batch is None:
                        break
                    self._datagrams_received(batch, now)
                self._send_replies()
            if self._injector is not None:
                self._pass_on(*self._injector.expire(now, everything=True), now)
        finally:
            self._count["kernel_drops"] += opened.drops or 0
            self._close_all()
            self._selector.close()
            self._peers.clear()
            if self._forwarder is not None:
                self._forwarder.close()
                self._poll_kafka(self._forwarder)
                self._count["forwarded"] += self._forwarder.delivered
                self._count["failed_to_send"] += self._forwarder.failed_to_send
                self._forwarder = None

    def _close_all(self) -> None:
        for connection in list(self._connections):
            self._close(connection)

    def _read(self, ready: list[Any], now: float) -> None:
        batch = self._socket.read()
        if batch is not None:
            self._datagrams_received(batch, now)
        for key, _ in ready:
            if key.data is not None:
                self._receive_lines(key.data, now)
            elif key.fileobj is self._accepting:
                self._accept(key.fileobj, now)
            elif key.fileobj is self._wake_in:
                self._clear_wakeup()

    def _respond(self, now: float) -> None:
        idle = [one for one in self._connections if self._idle and now - one.alive_at >= self._idle]
        for connection in idle:
            self._count["idle_closes"] += 1
            self._close(connection)
        if self._injector is not None and self._injector.due <= now:
            self._pass_on(*self._injector.expire(now), now)
        self._send_replies()
        if self._forwarder is not None:
            self._poll_kafka(self._forwarder)

    def _due_at(self) -> float:
        if self._socket.more or (self._replies and not self._holding):
            return 0.0
        due = self._injector.due if self._injector is not None else NEVER
        if self._idle:
            due = min([due, *(one.alive_at + self._idle for one in self._connections)])
        return due if self._forwarder is None else min(due, time.monotonic() + _KAFKA_POLL)

    def _datagrams_received(self, batch: Batch, now: float) -> None:
        self._count["datagrams"] += len(batch)
        self._count["bytes"] += sum(batch.lengths)
        peers = [self._peer(source) for source in batch.sources]
        if self._injector is None:
            self._keep_batch(batch, peers, now)
            return
        senders = zip(peers, batch.sources, strict=True)
        incoming = [Datagram(bytes(batch.raw(row)), *sender) for row, sender in enumerate(senders)]
        self._pass_on(*self._injector.feed(incoming, now), now)

    def _pass_on(self, served: list[Datagram], kept: list[Datagram], now: float) -> None:
        """Handle the datagrams that passed the faults: those for the server, and those for the capture."""
        for datagrams, handle in ((served, self._judge), (kept, self._keep_batch)):
            if datagrams and (datagrams is kept or self._capture_listener is not None):
                raws, peers, sources = (list(column) for column in zip(*datagrams, strict=True))
                handle(batch_of(raws, sources), peers, now)

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
            # A sender does not report that it has gone. A forgotten one gets a new stream.
            _, old = peers.popitem(last=False)
            if self._capture is not None:
                self._capture.end_stream(old.stream)
        return peer

    def _keep_batch(self, batch: Batch, peers: list[_Peer], now: float) -> None:
        capture = self._capture
        if capture is not None:
            data, unit = batch.data, capture.unit
            times = batch.times or repeat(time.time_ns() // 1000, len(peers))
            for begin, length, peer, at in zip(batch.offsets, batch.lengths, peers, times, strict=True):
                unit(peer.stream, data[begin : begin + length], FROM_PEER, at)
            if not self._hand_over(capture):
                return  # datagrams that are not captured have not arrived
        if self._capture_listener is None:
            taken = self._judge(batch, peers, now)
        else:
            taken = self._capture_listener.feed(batch, [peer.port for peer in peers], now)
        self._hand_on(len(taken.rows), taken.messages())

    def _judge(self, batch: Batch, peers: list[_Peer], now: float) -> Taken:
        listener = self._listener
        kills = listener.kills
        taken = listener.feed(batch, [peer.port for peer in peers], now, self._handlers())
        self._count["events"] += len(taken.rows)
        for row, reply in taken.replies:
            source = batch.sources[row]
            if len(self._replies) >= _REPLIES_MAX:
                self._count["replies_lost"] += 1
            elif len(reply) > batch.lengths[row] and not self._reply_limit.take(source[0], now):
                self._count_reason("replies: asked for too often")
            else:
                self._replies.append((source, peers[row].stream, reply))
        if listener.kills > kills:
            self._count["kills"] += listener.kills - kills
            if taken.killed >= 0:
                self.error = LogclientError(f"KILL from {_name(batch.sources[taken.killed])}")
            else:
                self._count_reason("kill: not allowed")
        if EMPTY in taken.judged.verdict.tolist():
            self._count_reason("an empty datagram")
        return taken

    def _handlers(self) -> list[dict[str, Any]] | None:
        if self._forwarder is None:
            return None
        # With data faults, Kafka has not got all that the server has seen.
        return [{**self._forwarder.stats(), "seen_messages": self._listener.seen_messages}]

    def _hand_on(self, count: int, captured: Iterable[tuple[bytes, list[str]]]) -> None:
        self._count["captured_events"] += count
        if not count or (self._forwarder is None and self._duplicates is None and not self._keep):
            return
        messages = list(captured)
        payloads = [payload for payload, _ in messages]
        if self._keep:
            self._kept += payloads
        self._count_duplicates(payloads)
        if self._forwarder is not None:
            for payload, tags in messages:
                self._forwarder.send(payload, tags)

    def _poll_kafka(self, forwarder: Forwarder) -> None:
        forwarder.poll()
        for error in forwarder.errors:
            self._count_reason(error)
        forwarder.errors.clear()

    def _send_replies(self) -> None:
        while self._replies and not self._holding:
            source, stream, data = self._replies.popleft()
            if not self._socket.reply(data, source):
                self._count["replies_lost"] += 1
                continue
            self._count["replies"] += 1
            if self._capture is not None:
                self._capture.unit(stream, data, TO_PEER)

    def _accept(self, listener: socket.socket, now: float) -> None:
        accepted = self._accepted(listener, len(self._connections))
        if accepted is None:
            return
        sock, address = accepted
        self._count["connections"] += 1
        stream = 0 if self._line_capture is None else self._line_capture.stream(_name(address))
        connection = _Connection(sock, Lines(self._max_line), stream, now)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _close(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if self._line_capture is not None:
            self._line_capture.end_stream(connection.stream)

    def _receive_lines(self, connection: _Connection, now: float) -> None:
        try:
            data = connection.sock.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset
            data = b""
        if not data:
            self._close(connection)
            return
        connection.alive_at = now
        self._count["bytes"] += len(data)
        before = connection.lines.too_long
        found = connection.lines.receive(data)
        self._count["too_long"] += connection.lines.too_long - before
        self._count["lines"] += len(found)
        capture = self._line_capture
        if capture is not None and found:
            for line in found:
                capture.unit(connection.stream, line)
            if not self._hand_over(capture):
                return
        self._count["events"] += len(found)
        self._hand_on(len(found), ((line, []) for line in found))
