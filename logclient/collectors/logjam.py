"""A Logjam device for demos and tests: captures what it accepts, publishes it, and lies on request.

ROUTER and PULL in, PUB out, over real ZeroMQ. `Device` is what the real device does with frames, with no
socket in it: what it answers, what it drops without a word, how it numbers what it publishes. Where the
real one aborts (12 frames and more, 11 where they are pushed) ours refuses. `Collector` has the sockets,
the capture and the faults.

A message is one wire unit. It is answered after the capture was handed to the operating system, producer
by producer in the order of arrival. As with the real device "202 Accepted" says that meta and app-env are
valid: a message whose topic is none of Logjam's is accepted, and neither captured nor published.

What libzmq takes in before we see it is bounded for each frame (`max_bytes`) and in messages (`hwm`), not
in the frames of one message: somebody who never ends a message makes any ZeroMQ socket grow. Where the
kernel tells what comes over a connection (Linux), such a one is cut: see `zeromq.Endless`.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from random import Random
from typing import Any, NamedTuple

from logclient.collectors import zeromq
from logclient.collectors.capture import TO_PEER, CaptureWriter
from logclient.collectors.faults import Act, Faults, Witness
from logclient.collectors.lies import flipped, foreign_id
from logclient.collectors.messages import (
    METHODS,
    NONE,
    SEQUENCE_MAX,
    Meta,
    compressed,
    frames,
    need,
    opened,
    read_meta,
    unit,
    well_formed,
    well_known,
)
from logclient.collectors.running import MAX_CONNECTIONS, TOO_MANY, Running
from logclient.config import host_port
from logclient.errors import ConfigError, ConnectFailed, LedgerError, ProtocolError

__all__ = ["Answer", "Collector", "Counts", "Device", "Message", "decode"]

ACCEPTED, REFUSED, PONG = b"202 Accepted", b"400 Bad Request", b"200 OK"

_FRAMES_MAX = zeromq.FRAMES_MAX - 1  # the routing id apart
_NAME_MAX = 4096  # bytes of app-env and of topic; the real device has no limit
_TURN_MESSAGES = 1000
_TURN_BYTES = 8 << 20
_OWED_MAX = 10_000  # replies that wait for a producer, beyond those libzmq holds for it
_PEERS_MAX = 10_000
_SUBSCRIPTION_MAX = 4096
_STATS_EVERY = 1.0  # seconds, as the real device has it
_LOOK = 0.1  # seconds between two looks at what connections have brought
_UNREAD = 1 << 20  # bytes that may come over one and not reach us in that time, its messages apart
_NEVER = float("inf")
_BODIES_MAX = 64 << 20  # bytes of a body that ``decode`` unpacks: what the importer takes


# --- what the device does with frames ----------------------------------------------------------


class Message(NamedTuple):
    """A data message that is kept and published."""

    parts: list[bytes]  # as it arrived, the empty frame of a request and all
    first: int  # index of the app-env in them
    meta: Meta
    request: bool

    @property
    def topic(self) -> bytes:
        return self.parts[self.first + 1]

    @property
    def body(self) -> bytes:
        return self.parts[self.first + 2]

    def with_body(self, body: bytes) -> Message:
        parts = list(self.parts)
        parts[self.first + 2] = body
        return self._replace(parts=parts)


class Answer(NamedTuple):
    """What becomes of the frames that came in."""

    reply: list[bytes] | None = None
    message: Message | None = None
    reason: str = ""  # why there is no message, or why a reply says 400
    ping: bool = False


class Device:
    """The rules of logjam-device, frames in and frames out.

    Args:
        number: the device's own, which consumers see.
        host: the name a ping is answered with.
        allow_invalid: publish what has an invalid meta frame (it is answered 400 all the same); ``-A``.
        recompress: what is not compressed is, before it is published; ``-x``.
        sequence: of the last message published.

    Raises:
        ConfigError: an argument that breaks its rule.
    """

    def __init__(
        self,
        number: int = 1,
        *,
        host: str = "localhost",
        allow_invalid: bool = False,
        recompress: str = "none",
        sequence: int = 0,
    ) -> None:
        if not 0 <= number < 1 << 32:
            raise ConfigError(f"device: {number} must be 0 to {(1 << 32) - 1}")
        if recompress not in METHODS:
            raise ConfigError(f"recompress: {recompress!r} is none of {', '.join(METHODS)}")
        self.number = number
        self.sequence = sequence
        self._host = host.encode()
        self._allow_invalid = allow_invalid
        self._recompress = METHODS[recompress]
        need(self._recompress)  # what is not installed is said now

    def receive(self, parts: list[bytes], *, push: bool = False) -> Answer:
        """Frames of one message, the routing id taken off; of more than six the rest need not be there.

        Args:
            push: it came to the PULL socket, which has no requests, and may lack the meta frame.
        """
        count = len(parts)
        request = not push and not parts[0]
        if request:
            return self._request(parts)
        if push and count == 3:
            meta, valid = Meta(), True
        elif count == 4:
            meta, valid = read_meta(parts[3])
        else:
            return Answer(reason=f"frames: a message has 4, not {_counted(count)}")
        return self._taken(Message(parts, 0, meta, request=False), valid)

    def _request(self, parts: list[bytes]) -> Answer:
        count = len(parts) - 1
        name = parts[1] if count else b"unknown-unknown"
        if len(name) > _NAME_MAX:
            return Answer([b"unknown-unknown", REFUSED], reason="app-env: too long")
        if count != 4:
            return Answer([name, REFUSED], reason=f"frames: a request has 5, not {_counted(len(parts))}")
        meta, valid = read_meta(parts[4])
        if name == b"ping":
            if valid:
                return Answer([name, PONG, self._host], ping=True)
            return Answer([name, REFUSED], reason="meta: not valid", ping=True)
        answer = self._taken(Message(parts, 1, meta, request=True), valid)
        accepted = valid and well_formed(name)
        return answer._replace(reply=[name, ACCEPTED if accepted else REFUSED])

    def _taken(self, message: Message, valid: bool) -> Answer:
        name = message.parts[message.first]
        if len(name) > _NAME_MAX or len(message.topic) > _NAME_MAX:
            return Answer(reason="app-env or topic: too long")
        if not well_formed(name):
            return Answer(reason="app-env: not printable ASCII with a dash")
        if not well_known(message.topic):
            return Answer(reason="topic: none of Logjam's")
        if not valid and not self._allow_invalid:
            return Answer(reason="meta: not valid")
        return Answer(message=message, reason="" if valid else "meta: not valid")

    def publication(self, message: Message, now_ms: int) -> list[bytes]:
        """The four frames that consumers get: with our number and sequence, and with a time."""
        name, topic, body = message.parts[message.first : message.first + 3]
        method = message.meta.compression
        if method == NONE and self._recompress:
            method = self._recompress
            body = compressed(method, body)
        return [name, topic, body, self._meta(method, message.meta.created_ms or now_ms)]

    def heartbeat(self, endpoint: str, now_ms: int) -> list[bytes]:
        """It has a sequence like any message. `endpoint`: where we publish."""
        return [b"heartbeat", endpoint.encode(), b"{}", self._meta(NONE, now_ms)]

    def _meta(self, method: int, created_ms: int) -> bytes:
        self.sequence = self.sequence % SEQUENCE_MAX + 1  # the last one is followed by 1
        return Meta(method, self.number, created_ms, self.sequence).pack()


def _counted(count: int) -> str:
    return str(count) if count < _FRAMES_MAX else f"{_FRAMES_MAX} or more"


# --- bodies: for lies, ids and the fixture -----------------------------------------------------

_ID = re.compile(r"[0-9a-f]{32}")
_LAST_ID = re.compile(rb'"(request_id|uuid)":"([0-9a-f]{32})"\}\s*$')  # where our producer puts it


def _carrier(topic: bytes) -> str:
    """The member of a document that carries the event's id."""
    return "request_id" if topic.startswith(b"logs") else "uuid"


def _event_id(message: Message, limit: int) -> str:
    """The id an event carries, "" when it has none of our form."""
    try:
        body = opened(message.meta.compression, message.body, limit)
        carrier = _carrier(message.topic)
        last = _LAST_ID.search(body, max(0, len(body) - 80))
        if last is not None and last[1].decode() == carrier:
            return last[2].decode()
        document = json.loads(body)
    except (ProtocolError, ValueError, RecursionError):
        return ""
    found = document.get(carrier) if isinstance(document, dict) else None
    return found if isinstance(found, str) and _ID.fullmatch(found) else ""


def decode(raw: bytes) -> list[Any]:
    """The event of one captured unit: a list of one JSON value.

    Raises:
        ValueError: it is not one whole data message, or its body is not JSON in the framing it names.
    """
    answer = Device(allow_invalid=True).receive(frames(raw), push=raw[:4] != b"\0\0\0\x80")
    if answer.message is None:
        raise ValueError(f"unit: {answer.reason or 'a ping'}")
    return [json.loads(opened(answer.message.meta.compression, answer.message.body, _BODIES_MAX))]


def _altered(before: Any, after: Any, carrier: str) -> bool:
    """Something changed, but neither a name nor what carries the id."""
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() != after.keys():
        return False
    return before != after and before.get(carrier) == after.get(carrier)


def _corrupt(message: Message, random: Random, limit: int) -> Message | None:
    """A bit of its body flipped, with its id and its form kept; None when that cannot be."""
    method, carrier = message.meta.compression, _carrier(message.topic)
    try:
        body = opened(method, message.body, limit)
    except ProtocolError:
        return None
    changed = flipped(body, random, json.loads, lambda before, after: _altered(before, after, carrier))
    return None if changed is None else message.with_body(compressed(method, changed))


def _added(message: Message, random: Random, limit: int) -> tuple[Message, str]:
    """A copy of it under an id that was never sent, and that id."""
    old = _event_id(message, limit)
    if not old:
        return message, ""
    new = foreign_id(old, random)
    body = opened(message.meta.compression, message.body, limit).replace(old.encode(), new.encode())
    return message.with_body(compressed(message.meta.compression, body)), new


class _Tally:
    """Ids seen more than once: two bits an id, for sequences without holes."""

    def __init__(self) -> None:
        self.duplicates = 0  # ids
        self.copies = 0  # beyond the first of each
        self._once: dict[int, int] = {}
        self._twice: dict[int, int] = {}

    def add(self, event_id: str) -> None:
        number = int(event_id, 16)
        page, bit = number >> 6, 1 << (number & 63)
        once = self._once.get(page, 0)
        if not once & bit:
            self._once[page] = once | bit
            return
        self.copies += 1
        twice = self._twice.get(page, 0)
        if not twice & bit:
            self._twice[page] = twice | bit
            self.duplicates += 1


# --- the server --------------------------------------------------------------------------------


class Counts(NamedTuple):
    """What a collector has seen and done since it was made; messages are wire units."""

    connections: int = 0  # producers' and consumers'
    open: int = 0  # connections now
    messages: int = 0  # received, of any kind
    events: int = 0  # those of them that are data and are taken
    bytes: int = 0  # of all frames
    captured_events: int = 0
    acks: int = 0  # 202
    refusals: int = 0  # 400
    pings: int = 0  # answered 200
    dropped: int = 0  # neither taken nor a ping, answered or not
    published: int = 0  # heartbeats apart
    heartbeats: int = 0
    subscriptions: int = 0  # made so far
    replies_lost: int = 0  # the producer had gone
    cuts_before_write: int = 0
    cuts_before_ack: int = 0
    cuts_after_ack: int = 0
    stalls: int = 0
    idle_closes: int = 0
    unanswered: int = 0  # no-reply
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        return self.cuts_before_write + self.cuts_before_ack + self.cuts_after_ack


class _Step:
    """One thing to do for a producer; steps are done in order, each not before it is due."""

    __slots__ = ("count", "due", "reply")

    def __init__(self, reply: list[bytes] | None, count: str, due: float = 0.0) -> None:
        self.reply = reply  # None: cut the connection
        self.count = count  # the field of Counts it adds to
        self.due = due


class _Held(NamedTuple):
    """The first message of a swap; its answer waits at `step`."""

    message: Message
    act: Act
    step: _Step | None
    until: float


class _Peer:
    """A producer: a routing id; or all that push, who have none."""

    def __init__(self, routing_id: bytes, number: int, fd: int, address: str) -> None:
        self.routing_id = routing_id
        self.number = number
        self.fd = fd  # of its connection
        self.address = address
        self.stream = 0
        self.steps: deque[_Step] = deque()
        self.held: _Held | None = None
        self.doomed = False  # what still comes from it has not arrived
        self.stalled = False


class _Fresh(NamedTuple):
    """A message that waits for the capture to be handed to the operating system."""

    peer: _Peer
    message: Message
    raw: bytes


def _address(fd: int) -> str:
    """Who is at the other end of a connection, "" when it is gone."""
    try:
        with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as sock:
            return host_port(*sock.getpeername()[:2])
    except (OSError, ValueError):
        return ""


def _shut(fd: int, address: str) -> None:
    """End a connection of libzmq's, when it is still the one that was meant."""
    if fd < 0 or not address or _address(fd) != address:
        return
    try:
        with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Collector(Running[Counts]):
    """A Logjam device in a thread of its own. A context manager; starts and stops any number of times.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: of the ROUTER socket; None: no such socket. Of this and of the next three 0 picks a free one,
            which the property of the name then says, and a restart keeps.
        push_port: of the PULL socket; None: no such socket.
        publish_port: of the PUB socket; None: nothing is published.
        stats_port: of the socket that says each second how much was published; None: no such socket.
        capture: directory of the capture; none is kept without.
        faults: see ``logclient.collectors.faults``.
        witness: a file for the ids of the events that were lied about.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default protocol, host and port.
        device: the number consumers see; 1 to 4294967295.
        allow_invalid: publish what has an invalid meta frame too, as the device does with ``-A``.
        recompress: ``zlib``, ``snappy`` or ``lz4``, as the device does with ``-x``.
        heartbeat: seconds between heartbeats to consumers; 0 = never.
        max_bytes: bytes of one frame, whose sender is disconnected when it has more; and of a body that is
            unpacked to look for its id.
        idle: seconds after which a producer's connection over which nothing comes is closed, where the kernel
            tells (Linux); 0 = never: ZeroMQ's producers keep theirs open, and what one pushes at that moment
            is lost.
        max_connections: at one time, consumers too; who comes then is sent away.
        hwm: messages that libzmq holds for us, for each connection.
        publish_hwm: messages that libzmq holds for a consumer; what is beyond is dropped, which it sees
            by the gap.
        curve_secret: our secret CURVE key, 40 characters of Z85: all sockets are encrypted, and are for those
            alone that know our public key, which ``curve_server`` says; None: in clear.
        curve_clients: the public keys of producers and consumers that are let in; None: all of these.
        count_duplicates: count the ids that are captured more than once.
        keep: keep what was captured in memory, for ``events``.
        clock: microseconds since 1970.

    Raises:
        ConfigError: an argument that breaks its rule.
        MissingExtra: pyzmq is not installed, or what `recompress` needs (``start``).
        LedgerError: capture or witness cannot be used (``start``).
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
        capture: str | None = None,
        faults: str | None = None,
        witness: str | None = None,
        run: str | None = None,
        listener: str | None = None,
        device: int = 1,
        allow_invalid: bool = False,
        recompress: str = "none",
        heartbeat: float = 5.0,
        max_bytes: int = 64 << 20,
        idle: float = 0.0,
        max_connections: int = MAX_CONNECTIONS,
        hwm: int = 1000,
        publish_hwm: int = 100_000,
        curve_secret: str | None = None,
        curve_clients: Collection[str] | None = None,
        count_duplicates: bool = False,
        keep: bool = False,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        ports = {
            "port": port, "push_port": push_port, "publish_port": publish_port, "stats_port": stats_port
        }  # fmt: skip
        for name, number in ports.items():
            if number is not None and not 0 <= number <= 65535:
                raise ConfigError(f"{name}: {number} must be 0 to 65535")
        if port is None and push_port is None:
            raise ConfigError("port: port and push_port are both None: nothing to listen on")
        if not 1 <= device < 1 << 32:
            raise ConfigError(f"device: {device} must be 1 to {(1 << 32) - 1}")
        if curve_clients is not None and curve_secret is None:
            raise ConfigError("curve_clients: needs curve_secret")
        super().__init__(Counts._fields)
        self.host = host
        self._keys = (curve_secret, curve_clients)
        self._curve: zeromq.Curve | None = None
        self._gate: Any = None
        self._ports = ports
        self._capture_dir = capture
        self._faults = Faults(faults or "", "logjam")
        self._witness_path = witness
        self._run = run
        self._listener = listener
        self._how = {"allow_invalid": allow_invalid, "recompress": recompress}
        self._number = device
        self._heartbeat = heartbeat
        self._max_bytes = max_bytes
        self._idle = idle
        self._max_connections = max_connections
        self._heard: dict[int, tuple[int, float]] = {}  # of producers' connections: bytes, and since when
        self._hwm = hwm
        self._publish_hwm = publish_hwm
        self._clock = clock
        self._tally = _Tally() if count_duplicates else None
        self._keep = keep
        self._fresh: list[_Fresh] = []
        self._zmq: Any = None
        self._sockets: dict[str, Any] = {}
        self._monitors: dict[Any, str] = {}
        self._router: Any = None
        self._publisher: Any = None
        self._open: dict[int, str] = {}  # descriptor of each connection -> address
        self._peers: dict[bytes, _Peer] = {}
        self._owed: dict[bytes, _Peer] = {}  # those with steps
        self._swapping: dict[bytes, _Peer] = {}  # those with a message held
        self._pushers: _Peer | None = None
        self._endless = zeromq.Endless(max_bytes + _UNREAD)
        self._look_at = 0.0
        self._peer_number = 0
        self._capture: CaptureWriter | None = None
        self._witness: Witness | None = None

    # --- what the user's threads call

    @property
    def port(self) -> int | None:
        return self._ports["port"]

    @property
    def push_port(self) -> int | None:
        return self._ports["push_port"]

    @property
    def publish_port(self) -> int | None:
        return self._ports["publish_port"]

    @property
    def stats_port(self) -> int | None:
        return self._ports["stats_port"]

    def _at(self, scheme: str, port: int | None) -> str:
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"

    @property
    def url(self) -> str:
        """For producers: the ROUTER socket's, or where there is none the PULL socket's."""
        if self.port is None:
            return self.push_url
        return self._at("logjam", self.port)

    @property
    def push_url(self) -> str:
        return self._at("logjam+push", self.push_port)

    @property
    def publish_url(self) -> str:
        """For consumers."""
        return self._at("tcp", self.publish_port)

    @property
    def listens(self) -> dict[str, Any]:
        found: dict[str, Any] = {"url": self.url, "port": self.port}
        if self.port is None:
            found["port"] = self.push_port
        elif self.push_port is not None:
            found["push"] = self.push_url
        if self.publish_port is not None:
            found["publish"] = self.publish_url
        if self.stats_port is not None:
            found["stats"] = self._at("tcp", self.stats_port)
        if self._curve is not None:
            found["curve_server"] = self._curve.public
        return found

    @property
    def curve_server(self) -> str | None:
        """Our public CURVE key, for the option of that name; None: in clear, or not started."""
        return None if self._curve is None else self._curve.public

    def _counts(self) -> Counts:
        self._count["open"] = len(self._open)
        return Counts(**self._count)

    def start(self) -> Collector:
        """Listen. Returns the collector itself."""
        self._check_stopped()
        zmq = self._zmq = zeromq.load()
        secret, clients = self._keys
        if secret is not None:
            self._curve = zeromq.Curve(secret, clients)
        self._device = Device(self._number, host=socket.gethostname(), **self._how)  # type: ignore[arg-type]
        self._context = zmq.Context()
        try:
            self._bind()
            if self._witness_path is not None:
                self._witness = Witness(self._witness_path, self._capture_dir)
            if self._capture_dir is not None:
                number = self.push_port if self.port is None else self.port
                place = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{number}")
                self._capture = CaptureWriter(
                    self._capture_dir,
                    self._listener or f"logjam-{place}",
                    "logjam",
                    url=",".join(
                        self._at(scheme, port)
                        for scheme, port in (("logjam", self.port), ("logjam+push", self.push_port))
                        if port is not None
                    ),
                    run=self._run,
                )
        except BaseException:
            self._context.destroy(linger=0)
            if self._witness is not None:
                self._witness.close()
            raise
        self._pushers = self._new_peer(b"", -1, "push")
        self._run_in_thread(self._serve)
        return self

    def _bind(self) -> None:
        zmq = self._zmq
        kinds = {"port": zmq.ROUTER, "push_port": zmq.PULL, "publish_port": zmq.XPUB, "stats_port": zmq.PUB}
        self._sockets, self._monitors = {}, {}
        self._gate = None if self._curve is None else self._curve.gate(zmq, self._context)
        for name, kind in kinds.items():
            port = self._ports[name]
            if port is None:
                continue
            sock = self._context.socket(kind)
            sock.setsockopt(zmq.LINGER, 100)
            most = _SUBSCRIPTION_MAX if kind == zmq.XPUB else self._max_bytes
            sock.setsockopt(zmq.MAXMSGSIZE, most)
            sock.setsockopt(zmq.RCVHWM, self._hwm)
            if ":" in self.host:
                sock.setsockopt(zmq.IPV6, 1)
            if self._curve is not None:
                self._curve.guard(sock)
            if kind == zmq.ROUTER:
                # A reply that cannot be given is an error, not dropped without a word.
                sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
            elif kind == zmq.XPUB:  # to consumers a PUB, to us one that tells who has subscribed
                sock.setsockopt(zmq.XPUB_VERBOSER, 1)
                sock.setsockopt(zmq.SNDHWM, self._publish_hwm)
            monitor = sock.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            try:
                sock.bind(self._at("tcp", port))
            except zmq.ZMQError as error:
                raise ConnectFailed(f"listen: {self.host} port {port}: {error.strerror}") from error
            self._ports[name] = int(sock.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1].rstrip(b"\0"))
            self._sockets[name] = sock
            self._monitors[monitor] = name

    def _values(self, raw: bytes) -> list[Any]:
        return decode(raw)

    # --- the thread

    def _serve(self) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        for sock in (*self._sockets.values(), *self._monitors):
            poller.register(sock, zmq.POLLIN)
        poller.register(self._wake_in, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate, zmq.POLLIN)
        self._router = self._sockets.get("port")
        self._publisher = self._sockets.get("publish_port")
        self._stats = self._sockets.get("stats_port")
        self._beat_at = time.monotonic() + self._heartbeat if self._heartbeat else _NEVER
        self._stats_at = _NEVER if self._stats is None else time.monotonic()
        try:
            while not self._stopping:
                self._turn(poller)
        except BaseException as error:
            self.error = error  # for whoever waits: a dead thread must not look like a slow one
            raise
        finally:
            with self._changed:
                self._end()
                self._changed.notify_all()

    def _end(self) -> None:
        for peer in list(self._swapping.values()):
            self._unhold(peer)
        self._flush()
        for sock in self._sockets.values():
            sock.disable_monitor()
        self._context.destroy(linger=100)
        self._open.clear()
        self._heard.clear()
        self._peers.clear()
        self._owed.clear()
        try:
            if self._capture is not None:
                self._capture.close()
        except LedgerError as error:
            self._not_captured(error)
        if self._witness is not None:
            self._witness.close()

    def _turn(self, poller: Any) -> None:
        """Wait, read, capture, answer, publish."""
        timeout = self._next_due()
        capture = self._capture
        ready = poller.poll(0)
        if not ready and timeout != 0:
            if capture is not None and capture.pending:
                # Rows of answers go with the next messages; before a sleep they go alone.
                with self._changed:
                    self._flush()
            ready = poller.poll(timeout)
        with self._changed:
            now = time.monotonic()
            for sock, _ in ready:
                if sock in self._monitors:
                    self._watch(sock)
                elif sock is self._publisher:
                    self._subscribed(sock)
                elif sock is self._gate:
                    self._let_in(sock)
                elif sock in (self._wake_in, self._wake_in.fileno()):
                    self._drain()
                else:
                    self._receive(sock, now)
            if self._cut_all:
                self._cut_all = False
                for fd, address in self._open.items():
                    _shut(fd, address)
            for peer in list(self._swapping.values()):
                if peer.held is not None and peer.held.until <= now:
                    self._unhold(peer)
            self._flush()
            now = time.monotonic()
            for peer in list(self._owed.values()):
                self._answer(peer, now)
            if now >= self._beat_at:
                self._beat(now)
            if now >= self._stats_at:
                self._stats_at = now + _STATS_EVERY
                number, sequence = str(self._number).encode(), str(self._device.sequence).encode()
                zeromq.send(self._stats, [b"stats", number, sequence])
            if now >= self._look_at:
                self._look(now)
            self._changed.notify_all()

    def _look(self, now: float) -> None:
        self._look_at = now + _LOOK
        for fd in self._endless.look(self._open):
            self._note("frames: no end")
            _shut(fd, self._open[fd])
        if self._idle:
            self._close_idle(now)

    def _close_idle(self, now: float) -> None:
        for fd, (before, since) in list(self._heard.items()):
            brought = zeromq.bytes_received(fd)
            if brought != before:
                self._heard[fd] = (brought, now)
            elif now - since >= self._idle:
                self._count["idle_closes"] += 1
                del self._heard[fd]
                _shut(fd, self._open[fd])

    def _drain(self) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            pass

    def _next_due(self) -> int | None:
        """Milliseconds until something is due, None when nothing is."""
        due = min(self._beat_at, self._stats_at, self._look_at if self._open else _NEVER)
        if not self._holding:
            for peer in self._owed.values():
                due = min(due, peer.steps[0].due)
        for peer in self._swapping.values():
            if peer.held is not None:
                due = min(due, peer.held.until)
        return None if due == _NEVER else max(0, int((due - time.monotonic()) * 1000) + 1)

    def _watch(self, monitor: Any) -> None:
        """Connections that came and went."""
        zmq = self._zmq
        while True:
            try:
                event, _ = monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, fd = int.from_bytes(event[:2], "little"), int.from_bytes(event[2:6], "little")
            if kind == zmq.EVENT_ACCEPTED:
                self._count["connections"] += 1
                address = _address(fd)
                if len(self._open) >= self._max_connections:
                    self._note(TOO_MANY)
                    _shut(fd, address)
                self._open[fd] = address
                self._endless.forget(fd)
                self._heard.pop(fd, None)
                if zeromq.COUNTS_RECEIVED and self._monitors[monitor] not in ("publish_port", "stats_port"):
                    self._heard[fd] = (0, time.monotonic())
            else:
                self._open.pop(fd, None)
                self._heard.pop(fd, None)

    def _let_in(self, gate: Any) -> None:
        assert self._curve is not None
        if not self._curve.answer(self._zmq, gate):
            self._note("curve: a key that is not let in")

    def _subscribed(self, sock: Any) -> None:
        zmq = self._zmq
        while True:
            try:
                said = sock.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._count["subscriptions"] += said[:1] == b"\1"

    # --- in: frames -> messages -> capture

    def _receive(self, sock: Any, now: float) -> None:
        push = sock is not self._router
        size = 0
        for _ in range(_TURN_MESSAGES):
            got = zeromq.receive(self._zmq, sock)
            if got is None:
                return
            parts, first, count = got
            size += count
            if self._endless.watched:
                self._endless.heard(self._source(first))
            self._count["messages"] += 1
            self._count["bytes"] += count
            if push:
                self._arrived(self._pushers, parts, first, now)
            elif len(parts) > 1:  # else a routing id alone: ROUTER gives no such thing
                self._arrived(self._peer(parts.pop(0), first), parts, first, now)
            if size > _TURN_BYTES:
                return

    def _new_peer(self, routing_id: bytes, fd: int, name: str) -> _Peer:
        self._peer_number += 1
        peer = _Peer(routing_id, self._peer_number, fd, name)
        if self._capture is not None:
            who = f"{name} {routing_id.hex()}" if routing_id else name
            peer.stream = self._capture.stream(who)
        return peer

    def _source(self, frame: Any) -> int:
        """The descriptor of the connection it came by; -1 for a peer that speaks ZMTP 1 or 2."""
        try:
            return int(frame.get(self._zmq.SRCFD))
        except self._zmq.ZMQError:
            return -1

    def _peer(self, routing_id: bytes, frame: Any) -> _Peer:
        peer = self._peers.get(routing_id)
        if peer is None or peer.doomed:
            fd = self._source(frame)
            if peer is not None:
                # An id that ROUTER has made is of one connection, whose descriptor may be another's by now.
                if routing_id[:1] == b"\0" or _address(fd) in ("", peer.address):
                    return peer
                self._forget(peer)  # with a fixed routing id, a new connection
            peer = self._peers[routing_id] = self._new_peer(routing_id, fd, _address(fd))
            if len(self._peers) > _PEERS_MAX:
                # ROUTER never says who has gone. Whoever is forgotten and speaks again is a new stream.
                for old in self._peers.values():
                    if not old.steps and old.held is None and old is not peer:
                        self._forget(old)
                        break
        return peer

    def _forget(self, peer: _Peer) -> None:
        self._unhold(peer)
        self._peers.pop(peer.routing_id, None)
        self._owed.pop(peer.routing_id, None)
        if self._capture is not None:
            self._capture.end_stream(peer.stream)

    def _arrived(self, peer: _Peer | None, parts: list[bytes], first: Any, now: float) -> None:
        assert peer is not None
        if peer.doomed:  # what came behind a cut has not arrived
            return
        answer = self._device.receive(parts, push=peer is self._pushers)
        if answer.reason:
            self._note(answer.reason)
        if answer.message is not None:
            self._count["events"] += 1
            self._unit(peer, answer.message, answer.reply, first, now)
            return
        if not answer.ping:
            self._count["dropped"] += 1
        if answer.reply is not None and not peer.stalled:
            self._owe(peer, _Step(answer.reply, _counter(answer.reply)))

    def _owe(self, peer: _Peer, step: _Step) -> None:
        peer.steps.append(step)
        self._owed[peer.routing_id] = peer
        if len(peer.steps) > _OWED_MAX and not self._holding and not peer.doomed:
            self._note("replies: not read")
            peer.steps.clear()
            self._doom(peer, "")

    def _unit(self, peer: _Peer, message: Message, reply: list[bytes] | None, first: Any, now: float) -> None:
        """Capture one message, and line up its answer; or do what the faults say."""
        plan = self._faults.plan(peer.number, paired=peer.held is not None)
        end = plan.end.fault.name if plan.end is not None else ""
        if plan.end is not None and reply is None and end in ("stall", "no-reply"):
            self._faults.give_back(plan.end)  # nobody waits for an answer
            end = ""
        if end.startswith("cut"):
            # Who pushes has no routing id, but has a connection. The one of a routing id may have changed.
            peer.fd = self._source(first)
            peer.address = _address(peer.fd)
        if end == "cut-before-write":
            self._doom(peer, "cuts_before_write")
            return
        step = None if reply is None else _Step(reply, _counter(reply))
        if plan.delay is not None:
            if step is None:
                self._faults.give_back(plan.delay)
            else:
                step.due = now + plan.delay.fault.value
        if plan.lie is None or not self._lie(peer, message, plan.lie, step, now):
            self._keep_unit(peer, message)
        if peer.held is not None and peer.held.message is not message:
            self._swap(peer, peer.held)
        if end == "stall":
            peer.stalled = True
            self._count["stalls"] += 1
        if end == "no-reply":
            self._count["unanswered"] += 1
        elif end == "cut-before-ack":
            self._doom(peer, "cuts_before_ack", step.due if step is not None else 0.0)
        else:
            if step is not None and not peer.stalled:
                self._owe(peer, step)
            if end == "cut-after-ack":
                self._doom(peer, "cuts_after_ack")

    def _doom(self, peer: _Peer, count: str, due: float = 0.0) -> None:
        """Take nothing more from this connection; cut it when what is owed has been sent."""
        self._unhold(peer)
        if peer is self._pushers:  # one of many connections: the others go on
            if count:
                self._count[count] += 1
            _shut(peer.fd, peer.address)
            return
        peer.doomed = True
        self._owe(peer, _Step(None, count, due))

    def _lie(self, peer: _Peer, message: Message, act: Act, step: _Step | None, now: float) -> bool:
        """Do to the captured message what the fault says; False when it cannot be done to this one."""
        name = act.fault.name
        if name == "swap":
            # Its answer waits until it is captured: a lie about the order, not about what is kept.
            peer.held = _Held(message, act, step, now + act.fault.value)
            self._swapping[peer.routing_id] = peer
            if step is not None:
                step.due = _NEVER
            return True
        lied = _event_id(message, self._max_bytes)
        kept = [message]
        if name == "discard":
            kept = []
        elif name == "duplicate":
            kept *= 2
        elif name == "add":
            added, lied = _added(message, act.random, self._max_bytes)
            kept.append(added)
        else:
            changed = _corrupt(message, act.random, self._max_bytes)
            if changed is None:
                self._faults.give_back(act)
                return False
            kept = [changed]
        for one in kept:
            self._keep_unit(peer, one)
        self._testify(name, lied)
        return True

    def _testify(self, fault: str, event_id: str) -> None:
        if self._witness is not None:
            self._witness.write(fault, [event_id] if event_id else [])

    def _swap(self, peer: _Peer, held: _Held) -> None:
        """The next message is captured: now the one before it."""
        self._let_go(peer, held)
        self._testify("swap", _event_id(held.message, self._max_bytes))

    def _unhold(self, peer: _Peer) -> None:
        """No next message came: the swap is given up."""
        if peer.held is not None:
            self._faults.give_back(peer.held.act)
            self._let_go(peer, peer.held)

    def _let_go(self, peer: _Peer, held: _Held) -> None:
        peer.held = None
        del self._swapping[peer.routing_id]
        self._keep_unit(peer, held.message)
        if held.step is not None:
            held.step.due = 0.0

    def _keep_unit(self, peer: _Peer, message: Message) -> None:
        raw = unit(message.parts)
        if self._capture is not None:
            self._capture.unit(peer.stream, raw, received_us=self._clock())
        self._fresh.append(_Fresh(peer, message, raw))

    def _flush(self) -> None:
        """Hand what was captured to the operating system; after this, and not before, it is answered."""
        fresh, self._fresh = self._fresh, []
        if self._capture is not None:
            try:
                self._capture.flush()
            except LedgerError as error:
                # Not kept, so neither acknowledged nor published: producers send it again.
                self._not_captured(error)
                for peer in {id(one.peer): one.peer for one in fresh}.values():
                    peer.steps.clear()
                    self._doom(peer, "")
                return
        now_ms = self._clock() // 1000 if fresh else 0
        for _, message, raw in fresh:
            self._count["captured_events"] += 1
            if self._keep:
                self._kept.append(raw)
            if self._tally is not None:
                event_id = _event_id(message, self._max_bytes)
                if event_id:
                    self._tally.add(event_id)
            if self._publisher is not None:
                self._publish(self._device.publication(message, now_ms), "published")
        if self._tally is not None:
            self._count["duplicates"] = self._tally.duplicates
            self._count["copies"] = self._tally.copies

    # --- out: answers and publications

    def _publish(self, parts: list[bytes], count: str) -> None:
        # A consumer that does not keep up misses it, as with the real device, and sees the gap.
        zeromq.send(self._publisher, parts)
        self._count[count] += 1

    def _beat(self, now: float) -> None:
        self._beat_at = now + self._heartbeat
        if self._publisher is not None:
            parts = self._device.heartbeat(self.publish_url, self._clock() // 1000)
            self._publish(parts, "heartbeats")

    def _answer(self, peer: _Peer, now: float) -> None:
        steps = peer.steps
        while steps and steps[0].due <= now and not self._holding:
            step = steps[0]
            if step.reply is not None and not self._say(peer, step.reply):
                step.due = now + 0.01  # it does not read them just now
                return
            steps.popleft()
            if step.count:
                self._count[step.count] += 1
            if step.reply is None:
                self._settle()
                _shut(peer.fd, peer.address)
        if not steps:
            self._owed.pop(peer.routing_id, None)

    def _settle(self) -> None:
        """Wait until libzmq has written what it was given, as far as producers read it.

        Its one I/O thread takes commands in their order, so when it has closed a listener it has seen to
        the answers before; a second time, because a socket it had under way comes up with the next look.
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

    def _say(self, peer: _Peer, reply: list[bytes]) -> bool:
        """Give an answer; False: libzmq holds as many as it may for this producer."""
        zmq = self._zmq
        try:
            zeromq.send(self._router, [peer.routing_id, *reply])
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count["replies_lost"] += 1
            return True
        if self._capture is not None:
            self._capture.unit(peer.stream, unit(reply), TO_PEER, self._clock())
        return True


def _counter(reply: list[bytes]) -> str:
    return {ACCEPTED: "acks", REFUSED: "refusals", PONG: "pings"}[reply[1]]
