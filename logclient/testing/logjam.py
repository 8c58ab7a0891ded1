"""A Logjam device for demos and tests: captures and publishes messages, and commits faults on request.

docs/testing.md describes it. `logclient.testing.logjam_device` has the rules, this module the sockets,
the capture and the faults.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Unpack

from logclient._ext.logjam import Decoder
from logclient.config.hosts import host_port
from logclient.errors import ConfigError, ConnectFailed, MissingExtra, ProtocolError
from logclient.files.capture import TO_PEER
from logclient.logjam import zeromq
from logclient.logjam.messages import compress, decompress, unit
from logclient.testing import fault_gate, logjam_sockets
from logclient.testing.fault_gate import NEVER, Captured, Peer, Reply, ReplyPlan, flip_bit, under_foreign_id
from logclient.testing.logjam_device import Device, Message, carrier, counter_of, decode
from logclient.testing.loop import TOO_MANY, AckCounts, CollectorOptions, GatedCollector

__all__ = ["Collector", "Counts", "decode"]

_SOCKETS = {"port": "ROUTER", "push_port": "PULL", "publish_port": "XPUB", "stats_port": "PUB"}
_TURN_MESSAGES = 1000
_TURN_BYTES = 8 << 20
_REPLIES_MAX = 10_000  # that wait for a producer, in addition to those that libzmq holds for it
_PEERS_MAX = 10_000
_SUBSCRIPTION_MAX = 4096  # bytes
_PUBLISH_HWM = 100_000  # messages held for a consumer; more are dropped, and it sees a gap
_STATS_EVERY = 1.0  # seconds, as the real device has it
_RETRY_REPLY = 0.01  # seconds


@dataclass(frozen=True, kw_only=True)
class Counts(AckCounts):
    """Counters of a Logjam collector; messages are wire units, connections those of consumers, too."""

    messages: int = 0  # received, of any kind; `events` are those that are data and are taken
    refusals: int = 0  # replies 400; `acks` are replies 202
    pings: int = 0  # replies 200
    dropped: int = 0  # messages that are neither taken nor a ping, answered or not
    published: int = 0  # heartbeats not included
    heartbeats: int = 0
    subscriptions: int = 0  # made so far
    replies_lost: int = 0  # the producer was gone
    unanswered: int = 0  # by the fault no-reply


@dataclass(eq=False, slots=True)
class _Unit(fault_gate.Unit[list[bytes]]):
    reply: list[bytes] | None  # None: none is expected
    limit: int  # bytes of a body that is unpacked

    @property
    def is_answered(self) -> bool:
        return self.reply is not None

    def corrupted(self, random: Random) -> fault_gate.Changed | None:
        message: Message = self.whole.message
        method = message.meta.compression
        try:
            body = decompress(method, message.body, self.limit)
        except (ProtocolError, MissingExtra):  # also a body whose library is not installed
            return None
        changed = flip_bit(body, random, json.loads, (carrier(message.topic),))
        if changed is None:
            return None
        return [_captured(message.with_body(compress(method, changed)))], self.known_ids()

    def with_added(self, random: Random) -> fault_gate.Changed:
        message: Message = self.whole.message
        ids = self.known_ids()
        if not ids:
            return [self.whole] * 2, []
        method = message.meta.compression
        body, ids = under_foreign_id(decompress(method, message.body, self.limit), ids[0], random)
        return [self.whole, _captured(message.with_body(compress(method, body)))], ids

    def replies(self, plan: ReplyPlan) -> list[Reply[list[bytes]]]:
        if self.reply is None or plan.fault == "no-reply":
            return []
        return [Reply(self.reply, counter_of(self.reply), plan.due)]


def _captured(message: Message) -> Captured:
    return Captured(unit(message.parts), message=message)


@dataclass(eq=False)
class _Producer(Peer[list[bytes]]):
    """A routing id; or, with an empty one, all producers that push, which have none."""

    routing_id: bytes = b""
    fd: int = -1  # of its connection
    address: str = ""
    frame: Any = None  # of the last message that it brought


class Collector(GatedCollector[Counts, _Producer, list[bytes]]):
    """A Logjam device in a thread of its own. A context manager that can be started again.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: the port of the ROUTER socket; None: no such socket. For this and the next three, 0 picks a free
            port; the property of the same name has it then, and a restart keeps it.
        push_port: the port of the PULL socket; None: no such socket.
        publish_port: the port of the PUB socket; None: nothing is published.
        stats_port: the port of the socket that reports each second what was published; None: no such socket.
        device: the device's number, which consumers see; 1 to 4294967295.
        allow_invalid: publish messages with an invalid meta frame, too, as the device does with ``-A``.
        recompress: compress uncompressed bodies with ``zlib``, ``snappy`` or ``lz4``, as the device does with
            ``-x``.
        heartbeat: seconds between heartbeats to consumers; 0 = never.
        max_bytes: bytes of one frame, the sender of a larger one is disconnected; and of a body that is
            unpacked to look for its id.
        hwm: messages that libzmq holds for the device, for each connection.
        curve_secret: the device's secret CURVE key, 40 characters of Z85: all sockets are encrypted, and open
            only to clients that know the public key in ``curve_server``; None: in clear.
        curve_clients: the public keys of accepted producers and consumers; None: any key.
        clock: returns microseconds since 1970.
        options: see `CollectorOptions`. ``max_connections`` includes consumers. ``idle`` is 0 by default, and
            for producers where the kernel counts traffic (Linux): those of ZeroMQ keep their connections
            open, and lose what they push then.

    Raises:
        ConfigError: an argument that breaks its rule.
        MissingExtra: pyzmq, or the library for `recompress`, is not installed (``start``).
        LedgerError: the capture or the fault log cannot be used (``start``).
        ConnectFailed: an address cannot be listened on (``start``).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = 0,
        *,
        push_port: int | None = 0,
        publish_port: int | None = 0,
        stats_port: int | None = None,
        device: int = 1,
        allow_invalid: bool = False,
        recompress: str = "none",
        heartbeat: float = 5.0,
        max_bytes: int = 64 << 20,
        hwm: int = 1000,
        curve_secret: str | None = None,
        curve_clients: Collection[str] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        **options: Unpack[CollectorOptions],
    ) -> None:
        if port is None and push_port is None:
            raise ConfigError("port: port and push_port are both None: nothing to listen on")
        if not 1 <= device < 1 << 32:
            raise ConfigError(f"device: {device} must be 1 to {(1 << 32) - 1}")
        if curve_clients is not None and curve_secret is None:
            raise ConfigError("curve_clients: needs curve_secret")
        self.port, self.push_port = port, push_port
        self.publish_port, self.stats_port = publish_port, stats_port
        ports = {name: getattr(self, name) for name in _SOCKETS}
        super().__init__("logjam", Counts, Decoder(max_unpacked=max_bytes), host, options, **ports)
        self._keys = (curve_secret, curve_clients)
        self._curve: logjam_sockets.Curve | None = None
        self._authenticator: Any = None
        self._rules: Any = {"allow_invalid": allow_invalid, "recompress": recompress}
        self._number = device
        self._heartbeat = heartbeat
        self._max_bytes = max_bytes
        self._values = partial(decode, limit=max_bytes)
        self._connections = logjam_sockets.Connections(max_bytes, options.get("idle", 0.0))
        self._hwm = hwm
        self._clock_us = clock
        self._context: Any = None
        self._sockets: dict[str, Any] = {}
        self._monitors: dict[Any, str] = {}
        self._producers: dict[bytes, _Producer] = {}
        self._look_at = 0.0
        self._producer_number = 0

    def _at(self, scheme: str, port: int | None) -> str:
        return f"{scheme}://{host_port(self.host, port or 0)}"

    @property
    def url(self) -> str:
        """The URL for producers: the ROUTER socket's, or without one the PULL socket's."""
        if self.port is None:
            return self.push_url
        return self._at("logjam", self.port)

    @property
    def push_url(self) -> str:
        """The URL of the PULL socket."""
        return self._at("logjam+push", self.push_port)

    @property
    def publish_url(self) -> str:
        """The endpoint for consumers."""
        return self._at("tcp", self.publish_port)

    @property
    def listens(self) -> dict[str, Any]:
        """The addresses on which it listens: ``url``, ``port``, and those of its other sockets."""
        only_push = self.port is None
        found = {
            "url": self.url,
            "port": self.push_port if only_push else self.port,
            "push": None if only_push or self.push_port is None else self.push_url,
            "publish": None if self.publish_port is None else self.publish_url,
            "stats": None if self.stats_port is None else self._at("tcp", self.stats_port),
            "curve_server": self.curve_server,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def curve_server(self) -> str | None:
        """The public CURVE key, for the option of that name; None: in clear, or not started."""
        return None if self._curve is None else self._curve.public

    def _open(self) -> None:
        zmq = self._zmq = zeromq.load()
        secret, clients = self._keys
        if secret is not None:
            self._curve = logjam_sockets.Curve(secret, clients)
        self._device = Device(self._number, host=socket.gethostname(), **self._rules)
        self._context = zmq.Context()
        self._bind()
        urls = [] if self.port is None else [self.url]
        urls += [] if self.push_port is None else [self.push_url]
        port = self.push_port if self.port is None else self.port
        self._capture = self._open_capture(port, ",".join(urls))
        self._pushers = self._new_producer(b"", -1, "push")
        poller = zmq.Poller()
        for sock in (*self._sockets.values(), *self._monitors, self._wake_in, self._authenticator):
            if sock is not None:
                poller.register(sock, zmq.POLLIN)
        self._select = lambda s: poller.poll(int(s * 1000) + (s > 0))
        self._router = self._sockets.get("port")
        self._publisher = self._sockets.get("publish_port")
        self._stats = self._sockets.get("stats_port")
        self._beat_at = time.monotonic() + self._heartbeat if self._heartbeat else NEVER
        self._stats_at = NEVER if self._stats is None else time.monotonic()

    def _close_sockets(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)

    def _bind(self) -> None:
        zmq = self._zmq
        self._sockets, self._monitors = {}, {}
        self._authenticator = None if self._curve is None else self._curve.authenticator(zmq, self._context)
        for name, kind_name in _SOCKETS.items():
            port = getattr(self, name)
            if port is None:
                continue
            kind = getattr(zmq, kind_name)
            sock = self._context.socket(kind)
            sock.setsockopt(zmq.LINGER, 100)
            most = _SUBSCRIPTION_MAX if kind == zmq.XPUB else self._max_bytes
            sock.setsockopt(zmq.MAXMSGSIZE, most)
            sock.setsockopt(zmq.RCVHWM, self._hwm)
            if ":" in self.host:
                sock.setsockopt(zmq.IPV6, 1)
            if self._curve is not None:
                sock.CURVE_SERVER, sock.CURVE_SECRETKEY = True, self._curve.secret.encode()
            if kind == zmq.ROUTER:
                # A reply that cannot be sent is an error; by default it would be dropped silently.
                sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
            elif kind == zmq.XPUB:  # a PUB for consumers that reports subscriptions
                sock.setsockopt(zmq.XPUB_VERBOSER, 1)
                sock.setsockopt(zmq.SNDHWM, _PUBLISH_HWM)
            monitor = sock.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            try:
                sock.bind(self._at("tcp", port))
            except zmq.ZMQError as error:
                raise ConnectFailed(f"listen: {self.host} port {port}: {error.strerror}") from error
            setattr(self, name, int(sock.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1].rstrip(b"\0")))
            self._sockets[name] = sock
            self._monitors[monitor] = name

    def _end(self) -> None:
        for producer, message in self._gate.expire(NEVER):
            self._keep_unit(producer, message)
        self._flush()
        for sock in self._sockets.values():
            sock.disable_monitor()
        self._context.destroy(linger=100)
        self._connections.clear()
        self._producers.clear()
        self._replying.clear()

    def _close_all(self) -> None:
        for fd, address in self._connections.open.items():
            logjam_sockets.shut_down(fd, address)

    def _read(self, ready: list[Any], now: float) -> None:
        for sock, _ in ready:
            if sock in self._monitors:
                self._connections_changed(sock)
            elif sock is self._publisher:
                self._count["subscriptions"] += sum(frames[0][:1] == b"\1" for frames in self._waiting(sock))
            elif sock is self._authenticator:
                assert self._curve is not None
                if not self._curve.answer(sock):
                    self._count_reason("curve: a key that is not let in")
            elif sock in (self._wake_in, self._wake_in.fileno()):
                self._clear_wakeup()
            else:
                self._receive(sock, now)

    def _respond(self, now: float) -> None:
        super()._respond(now)
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self._heartbeat
            if self._publisher is not None:
                logjam_sockets.send(
                    self._publisher, self._device.heartbeat(self.publish_url, self._clock_us() // 1000)
                )
                self._count["heartbeats"] += 1
        if now >= self._stats_at:
            self._stats_at = now + _STATS_EVERY
            number, sequence = str(self._number).encode(), str(self._device.sequence).encode()
            logjam_sockets.send(self._stats, [b"stats", number, sequence])
        if now >= self._look_at:
            self._look_at = now + zeromq.LOOK_EVERY
            for fd in self._connections.endless.look(self._connections.open):
                logjam_sockets.shut_down(fd, self._connections.open[fd])
                self._count_reason("frames: no end")
            self._count["idle_closes"] += self._connections.shut_down_idle(now)

    def _due_at(self) -> float:
        look_at = self._look_at if self._connections else NEVER
        replies = [] if self._holding else [producer.replies[0].due for producer in self._replying.values()]
        return min([self._beat_at, self._stats_at, self._gate.due, look_at, *replies])

    def _connections_changed(self, monitor: Any) -> None:
        zmq = self._zmq
        for event, _ in self._waiting(monitor):
            kind, fd = int.from_bytes(event[:2], "little"), int.from_bytes(event[2:6], "little")
            if kind == zmq.EVENT_ACCEPTED:
                self._count["connections"] += 1
                full = len(self._connections) >= self._max_connections
                producer = self._monitors[monitor] not in ("publish_port", "stats_port")
                address = self._connections.accepted(fd, producer=producer, now=time.monotonic())
                if full:
                    self._count_reason(TOO_MANY)
                    logjam_sockets.shut_down(fd, address)
            else:
                self._connections.ended(fd)

    def _waiting(self, sock: Any) -> Iterator[list[bytes]]:
        """Yield the messages that wait at a socket, as their frames."""
        while True:
            try:
                yield sock.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return

    def _receive(self, sock: Any, now: float) -> None:
        push = sock is not self._router
        endless = self._connections.endless
        size = 0
        for _ in range(_TURN_MESSAGES):
            got = zeromq.receive(self._zmq, sock)
            if got is None:
                return
            parts, first, count = got
            size += count
            if endless.watched:
                endless.message_from(self._source(first))
            self._count["messages"] += 1
            self._count["bytes"] += count
            if push:
                self._message_received(self._pushers, parts, first, now)
            elif len(parts) > 1:  # ROUTER never delivers a routing id alone
                self._message_received(self._producer(parts.pop(0), first), parts, first, now)
            if size > _TURN_BYTES:
                return

    def _new_producer(self, routing_id: bytes, fd: int, name: str) -> _Producer:
        self._producer_number += 1
        producer = _Producer(self._producer_number, routing_id, fd, name)
        if self._capture is not None:
            peer = f"{name} {routing_id.hex()}" if routing_id else name
            producer.stream = self._capture.stream(peer)
        return producer

    def _source(self, frame: Any) -> int:
        """Return the descriptor of the connection that brought a frame; -1 for a peer with ZMTP 1 or 2."""
        try:
            return int(frame.get(self._zmq.SRCFD))
        except self._zmq.ZMQError:
            return -1

    def _producer(self, routing_id: bytes, frame: Any) -> _Producer:
        producer = self._producers.get(routing_id)
        if producer is None or producer.closing:
            fd = self._source(frame)
            address = logjam_sockets.address_of(fd)
            if producer is not None:
                # An id made by ROUTER belongs to one connection. Its descriptor may be another one's by now.
                if routing_id[:1] == b"\0" or address in ("", producer.address):
                    return producer
                self._forget(producer)  # a fixed routing id on a new connection
            producer = self._producers[routing_id] = self._new_producer(routing_id, fd, address)
            if len(self._producers) > _PEERS_MAX:
                # ROUTER does not report that a producer has gone. A forgotten one gets a new stream.
                for old in self._producers.values():
                    if not old.replies and old is not producer and not self._gate.holds(old):
                        self._forget(old)
                        break
        return producer

    def _forget(self, producer: _Producer) -> None:
        self._abort_swap(producer)
        self._producers.pop(producer.routing_id, None)
        self._replying.pop(producer.routing_id, None)
        if self._capture is not None:
            self._capture.end_stream(producer.stream)

    def _message_received(self, producer: _Producer, parts: list[bytes], first: Any, now: float) -> None:
        if producer.closing:  # messages after a cut have not arrived
            return
        answer = self._device.receive(parts, push=producer is self._pushers)
        if answer.reason:
            self._count_reason(answer.reason)
        if answer.message is not None:
            self._count["events"] += 1
            producer.frame = first
            gated = _Unit(_captured(answer.message), self._decoder, answer.reply, self._max_bytes)
            self._admit(producer, gated, now)
            return
        if not answer.ping:
            self._count["dropped"] += 1
        if answer.reply is not None and not producer.stalled:
            self._enqueue_reply(producer, Reply(answer.reply, counter_of(answer.reply)))

    def _enqueue_reply(self, producer: _Producer, reply: Reply[list[bytes]]) -> None:
        producer.replies.append(reply)
        self._replying[producer.routing_id] = producer
        if len(producer.replies) > _REPLIES_MAX and not self._holding and not producer.closing:
            self._count_reason("replies: not read")
            producer.replies.clear()
            self._close_after_replies(producer)

    def _add_reply(self, producer: _Producer, reply: Reply[list[bytes]]) -> None:
        if reply.data is not None:
            self._enqueue_reply(producer, reply)
            return
        self._find_connection(producer)
        self._close_after_replies(producer, reply)

    def _find_connection(self, producer: _Producer) -> None:
        """Find the connection that brought the last message, so that it can be cut.

        A routing id may have got another one meanwhile, and a pushing producer has no routing id.
        """
        producer.fd = self._source(producer.frame)
        producer.address = logjam_sockets.address_of(producer.fd)

    def _close_after_replies(self, producer: _Producer, close: Reply[list[bytes]] | None = None) -> None:
        """Take nothing more from a connection, and cut it when its replies are sent."""
        self._abort_swap(producer)
        close = close or Reply(None, "")
        if producer is self._pushers:  # one of many connections: the others go on
            if close.count:
                self._count[close.count] += 1
            logjam_sockets.shut_down(producer.fd, producer.address)
            return
        producer.closing = True
        self._enqueue_reply(producer, close)

    def _not_captured(self, producer: _Producer) -> None:
        producer.replies.clear()
        if producer is self._pushers:
            self._find_connection(producer)
        self._close_after_replies(producer)

    def _was_captured(self, unit: Captured) -> None:
        if self._publisher is not None:
            # A consumer that does not keep up misses messages and sees the gap, as with the real device.
            parts = self._device.publication(unit.message, self._clock_us() // 1000)
            logjam_sockets.send(self._publisher, parts)
            self._count["published"] += 1

    def _send_replies(self, producer: _Producer, now: float) -> None:
        replies = producer.replies
        while replies and replies[0].due <= now and not self._holding:
            reply = replies[0]
            if reply.data is not None and not self._send_reply(producer, reply.data):
                reply.due = now + _RETRY_REPLY  # the producer does not read now
                return
            replies.popleft()
            if reply.count:
                self._count[reply.count] += 1
            if reply.data is None:
                self._wait_until_written()
                logjam_sockets.shut_down(producer.fd, producer.address)
        if not replies:
            self._replying.pop(producer.routing_id, None)

    def _wait_until_written(self) -> None:
        """Wait until libzmq has written the answers that it was given, as far as producers read them.

        Its one I/O thread handles commands in order: when it has closed a listener, it has also handled the
        answers before that. The second round is for a socket that was busy until its next poll.
        """
        zmq = self._zmq
        for _ in range(2):
            with self._context.socket(zmq.PAIR) as sock:
                monitor = sock.get_monitor_socket(zmq.EVENT_CLOSED)
                sock.bind("tcp://127.0.0.1:*")
                sock.unbind(sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0"))
                monitor.poll(1000)
                sock.disable_monitor()
                monitor.close()

    def _send_reply(self, producer: _Producer, reply: list[bytes]) -> bool:
        """Send an answer; return False when libzmq holds as many as it may for this producer."""
        zmq = self._zmq
        try:
            logjam_sockets.send(self._router, [producer.routing_id, *reply])
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count["replies_lost"] += 1
            return True
        if self._capture is not None:
            self._capture.unit(producer.stream, unit(reply), TO_PEER, self._clock_us())
        return True
