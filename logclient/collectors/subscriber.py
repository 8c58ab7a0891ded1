"""A consumer of what logjam-devices publish: a subset, and what is missing of it.

::

    with Subscriber("tcp://device:9606", app_envs=["shop-production"], topics=["logs"]) as subscriber:
        for message in subscriber:
            print(message.topic, message.document())

A device numbers all it publishes, from 1, in one row over all app-envs. So a gap can be seen only by one
who takes everything: with ``gaps=True`` everything comes over the wire and the subset is chosen here; with
``gaps=False`` the device sends the subset alone, and nothing can be said about what is missing.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from logclient.collectors import zeromq
from logclient.collectors.capture import CaptureWriter
from logclient.collectors.messages import opened, read_meta, unit, well_formed
from logclient.config import dns_name, is_key
from logclient.errors import ConfigError, ConnectFailed, ProtocolError
from logclient.transports.tcp import COUNTS_RECEIVED

__all__ = ["Device", "Gap", "Message", "Stat", "Subscriber", "Tracker", "stat"]

HEARTBEAT = b"heartbeat"
PORT = 9606
STATS_PORT = 9621

_BODY_MAX = 64 << 20
_DEVICES_MAX = 4096
_GAPS_KEPT = 1000
_REASONS_MAX = 100
_BATCH = 100
_LOOK = 0.1  # seconds between two looks at what connections have brought
_UNREAD = 1 << 20  # bytes that may come over one and not reach us in that time, its messages apart
_STATS_APART = 0.5  # seconds between two of them that tell the rate
_REVIVE = 0.3  # seconds after which libzmq will not connect again by itself
_WRAPS = 1 << 53  # a number at least so high that is followed by a low one has come to its end
_ENDPOINT = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class Message(NamedTuple):
    """A data message as a device published it."""

    app_env: str
    topic: str
    payload: bytes
    """The body as it travelled."""
    compression: int
    """0 none, 1 zlib, 2 snappy, 3 lz4; other numbers pass a device too."""
    device: int
    created_ms: int
    sequence: int

    def body(self, limit: int = _BODY_MAX) -> bytes:
        """The body, unpacked.

        Raises:
            ProtocolError: it is not what its compression says, or has more than `limit` bytes.
            MissingExtra: snappy or lz4 is not installed.
        """
        return opened(self.compression, self.payload, limit)

    def document(self, limit: int = _BODY_MAX) -> Any:
        """The body as a JSON value.

        Raises:
            ProtocolError: see `body`; also when it is nested deeper than Python's reader goes.
            ValueError: it is not JSON.
        """
        try:
            return json.loads(self.body(limit))
        except RecursionError:
            raise ProtocolError("body: nested too deep") from None


class Gap(NamedTuple):
    """Messages that a device published and we never got: `first` to `last`."""

    device: int
    first: int
    last: int


class Device(NamedTuple):
    """What is known of a device."""

    number: int
    received: int = 0  # messages, heartbeats too
    heartbeats: int = 0
    last: int = 0  # sequence
    missing_at_least: int = 0  # messages, since the first one seen
    gaps: int = 0  # that were seen
    restarts_at_least: int = 0
    wraps: int = 0
    seen: float = 0.0  # monotonic seconds of the last message


class Stat(NamedTuple):
    """What a device says of itself, each second."""

    device: int
    """Its number."""
    sequence: int
    """Of the last message that it published, heartbeats too: their number since it was started."""
    per_second: float | None
    """Messages that it published meanwhile; None: it spoke only once in time, or was started again."""


class Tracker:
    """Frames in, messages out, with no socket: chooses the subset, and keeps account of the devices.

    A number that is not higher than the one before is a restart: what the device published from 1 to that
    number in its new life is missing. All figures are lower bounds: a restart that has overtaken the last
    number seen looks like a gap, shorter than what is missing, and what a device published last before it
    ended has no number behind it. Device 0 has no numbers of its own and is not followed.

    Args:
        app_envs: those wanted; none: all.
        topics: those wanted, with all that begin with one and a dot (``logs``: ``logs.shop`` too); none: all.
        gaps: everything a device publishes comes by here.

    Raises:
        ConfigError: an app-env that no device would publish, or an empty topic.
    """

    def __init__(
        self, app_envs: Iterable[str] = (), topics: Iterable[str] = (), *, gaps: bool = True
    ) -> None:
        self.app_envs = frozenset(name.encode() for name in app_envs)
        self._topics = tuple(topic.encode() for topic in topics)
        for name in self.app_envs:
            if not well_formed(name):
                raise ConfigError(f"app_envs: {name.decode()[:64]!r} must be printable ASCII with a dash")
        if b"" in self._topics:
            raise ConfigError("topics: one of them is empty")
        self._watch = gaps
        self._devices: dict[int, Device] = {}
        self._gaps: deque[Gap] = deque(maxlen=_GAPS_KEPT)
        self.refused: dict[str, int] = {}  #: why something was no message, and how often

    @property
    def devices(self) -> dict[int, Device]:
        """By their numbers."""
        return dict(self._devices)

    @property
    def gaps(self) -> list[Gap]:
        """The last 1,000 of them."""
        return list(self._gaps)

    def take(self, parts: list[bytes], now: float) -> Message | None:
        """A message, or None: not wanted, a heartbeat, or none at all (see `refused`)."""
        if len(parts) != 4:
            self.refuse("frames: a message has 4")
            return None
        name, topic, body, frame = parts
        meta, valid = read_meta(frame)
        if not valid:
            self.refuse("meta: not valid")
            return None
        beat = name == HEARTBEAT
        if meta.device:
            self._follow(meta.device, meta.sequence, beat, now)
        if beat or (self.app_envs and name not in self.app_envs) or not self._wanted(topic):
            return None
        return Message(
            name.decode("utf-8", "backslashreplace"),
            topic.decode("utf-8", "backslashreplace"),
            body,
            meta.compression,
            meta.device,
            meta.created_ms,
            meta.sequence,
        )

    def _wanted(self, topic: bytes) -> bool:
        return not self._topics or any(
            topic == wanted or topic.startswith(wanted + b".") for wanted in self._topics
        )

    def refuse(self, reason: str) -> None:
        """Count what was no message."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _follow(self, number: int, sequence: int, beat: bool, now: float) -> None:
        device = self._devices.get(number)
        if device is None:
            if len(self._devices) >= _DEVICES_MAX:
                self.refuse(f"devices: more than {_DEVICES_MAX}, not followed")
                return
            device = Device(number, last=sequence - 1)  # what came before us is not missing
        first = device.last + 1
        if sequence <= device.last:
            first = 1
            if device.last >= _WRAPS and sequence < _WRAPS:
                device = device._replace(wraps=device.wraps + 1)
            else:
                device = device._replace(restarts_at_least=device.restarts_at_least + 1)
        if self._watch and sequence > first:
            self._gaps.append(Gap(number, first, sequence - 1))
            missing = device.missing_at_least + sequence - first
            device = device._replace(missing_at_least=missing, gaps=device.gaps + 1)
        self._devices[number] = device._replace(
            received=device.received + 1, heartbeats=device.heartbeats + beat, last=sequence, seen=now
        )


def stat(
    host: str,
    port: int = STATS_PORT,
    timeout: float = 5.0,
    *,
    curve_server: str | None = None,
    curve_secret: str | None = None,
) -> Stat:
    """What the device at this host says of itself, on a socket of its own.

    Waits for two of its messages, a second apart, to tell how much it publishes.

    Raises:
        ConfigError: a key that is none, or a host.
        ConnectFailed: nothing was said within `timeout` seconds.
        MissingExtra: pyzmq is not installed.
    """
    zmq = zeromq.load()
    curve = _curve(curve_server, curve_secret)
    endpoint = _endpoint(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{dns_name(host).decode()}:{port}")
    first: tuple[float, int, int] | None = None
    deadline = time.monotonic() + timeout
    context = zmq.Context()
    try:
        sock = context.socket(zmq.SUB)
        sock.setsockopt(zmq.MAXMSGSIZE, 4096)
        sock.setsockopt(zmq.RCVHWM, 10)
        sock.setsockopt(zmq.IPV6, "[" in endpoint)
        _encrypt(sock, curve)
        sock.setsockopt(zmq.SUBSCRIBE, b"stats")
        monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        sock.connect(endpoint)
        while sock.poll(max(0.0, deadline - time.monotonic()) * 1000):
            got = zeromq.receive(zmq, sock)
            now = time.monotonic()
            said = None if got is None else _said(got[0])
            if said is None:
                continue
            if first is None:
                first = (now, *said)
            elif now - first[0] >= _STATS_APART:
                same = said[0] == first[1] and said[1] >= first[2]
                return Stat(*said, (said[1] - first[2]) / (now - first[0]) if same else None)
        if first is not None:
            return Stat(*first[1:], None)
        why = "it says nothing" if monitor.poll(0) else "no device answers there"
        raise ConnectFailed(f"stat: {why}, in {timeout:g} s")
    finally:
        context.destroy(linger=0)


def _said(parts: list[bytes]) -> tuple[int, int] | None:
    """A device's number and sequence; None: it is no such message."""
    if len(parts) != 3 or parts[0] != b"stats":
        return None
    if not all(part.isdigit() and len(part) <= 20 for part in parts[1:]):
        return None
    return int(parts[1]), int(parts[2])


def _curve(server: str | None, secret: str | None) -> tuple[str, str, str] | None:
    """The keys of a consumer; None: in clear."""
    if server is None:
        if secret is not None:
            raise ConfigError("curve_secret: needs curve_server")
        return None
    if not is_key(server):
        raise ConfigError("curve_server: must be a key of 40 characters of Z85")
    from logclient.transports.zmq import curve_keys

    return (server, *curve_keys(secret))


def _encrypt(sock: Any, curve: tuple[str, str, str] | None) -> None:
    """Before it is connected."""
    if curve is not None:
        server, public, secret = (key.encode() for key in curve)
        sock.CURVE_SERVERKEY, sock.CURVE_PUBLICKEY, sock.CURVE_SECRETKEY = server, public, secret


def _endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    port = int(match[2] or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"endpoints: {text[:80]!r} must be tcp://host:port")
    return f"tcp://{match[1]}:{port}"


class _Source:
    """A device's socket. One each, so that each can be connected to anew by itself."""

    def __init__(self, sock: Any, monitor: Any) -> None:
        self.sock = sock
        self.monitor = monitor
        self.endpoint = ""
        self.reached = False  # a device has answered
        self.fd = -1  # of its connection
        self.lost = 0.0  # when that ended, as long as libzmq does not connect again


class Subscriber:
    """A SUB socket on one or several devices. A context manager, an iterator; for one thread.

    Args:
        endpoints: where devices publish, ``tcp://host:9606``: one, or several.
        app_envs: see `Tracker`.
        topics: see `Tracker`.
        gaps: take everything over the wire, to see what is missing.
        hwm: messages that libzmq holds for us; what is beyond, the device drops: a gap.
        max_bytes: bytes of one frame; who sends more is disconnected.
        curve_server: the devices' public CURVE key, 40 characters of Z85; None: in clear.
        curve_secret: our own secret key, for devices that know their consumers; None: a new one.
        capture: directory for a capture of everything that comes, heartbeats too: a message is in it before
            it is returned.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default ``logjam-sub``.

    Raises:
        ConfigError: an argument that breaks its rule.
        MissingExtra: pyzmq is not installed.
        LedgerError: the capture cannot be used; also when it cannot be written any further (`receive`).
    """

    def __init__(
        self,
        endpoints: str | Iterable[str],
        *,
        app_envs: Iterable[str] = (),
        topics: Iterable[str] = (),
        gaps: bool = True,
        hwm: int = 100_000,
        max_bytes: int = _BODY_MAX,
        curve_server: str | None = None,
        curve_secret: str | None = None,
        capture: str | None = None,
        run: str | None = None,
        listener: str = "logjam-sub",
    ) -> None:
        self.endpoints = [
            _endpoint(text) for text in ([endpoints] if isinstance(endpoints, str) else endpoints)
        ]
        if not self.endpoints:
            raise ConfigError("endpoints: none is given")
        self._tracker = Tracker(app_envs, topics, gaps=gaps)
        self.taken = 0  #: messages that came, whatever they were
        self.captured = 0  #: those of them that are in the capture
        self._ready: deque[Message] = deque()
        self._streams: dict[int, int] = {}
        zmq = self._zmq = zeromq.load()
        self._curve = _curve(curve_server, curve_secret)
        self._capture: CaptureWriter | None = None
        if capture is not None:
            self._capture = CaptureWriter(
                capture, listener, "logjam", url=",".join(self.endpoints), run=run, source="devices"
            )
        wanted = self._tracker.app_envs
        self._prefixes = (HEARTBEAT, *wanted) if wanted and not gaps else (b"",)
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._endless = zeromq.Endless(max_bytes + _UNREAD)
        self._look_at = 0.0
        self._sources = [self._source(endpoint, hwm, max_bytes) for endpoint in self.endpoints]

    def _source(self, endpoint: str, hwm: int, max_bytes: int) -> _Source:
        zmq = self._zmq
        sock = self._context.socket(zmq.SUB)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVHWM, hwm)
        sock.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        sock.setsockopt(zmq.RECONNECT_IVL, 100)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 10_000)
        # A device that is gone without a word is noticed, and connected to again.
        sock.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
        sock.setsockopt(zmq.IPV6, "[" in endpoint)
        _encrypt(sock, self._curve)
        for prefix in self._prefixes:
            sock.setsockopt(zmq.SUBSCRIBE, prefix)
        watched = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        source = _Source(sock, sock.get_monitor_socket(watched | zmq.EVENT_HANDSHAKE_SUCCEEDED))
        self._poller.register(sock, zmq.POLLIN)
        self._poller.register(source.monitor, zmq.POLLIN)
        source.endpoint = endpoint
        sock.connect(endpoint)
        return source

    @property
    def devices(self) -> dict[int, Device]:
        """What is known of each device, by its number."""
        return self._tracker.devices

    @property
    def gaps(self) -> list[Gap]:
        """The last 1,000 gaps."""
        return self._tracker.gaps

    @property
    def refused(self) -> dict[str, int]:
        """Why something that came was no message, and how often."""
        return dict(self._tracker.refused)

    @property
    def unreached(self) -> list[str]:
        """Endpoints where no device has answered yet."""
        return [source.endpoint for source in self._sources if not source.reached]

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message that is wanted.

        Args:
            timeout: seconds; None: for ever.

        Returns:
            None when none came in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = None if end is None else max(0.0, end - time.monotonic())
            self._take(left)
            if left == 0.0 and not self._ready:
                return None
        return self._ready.popleft()

    def _take(self, left: float | None) -> None:
        """Wait at most so many seconds for something, and take what is there."""
        if any(source.lost for source in self._sources):
            left = _REVIVE if left is None else min(left, _REVIVE)
        elif COUNTS_RECEIVED:
            left = _LOOK if left is None else min(left, _LOOK)
        self._poller.poll(None if left is None else math.ceil(left * 1000))
        now = time.monotonic()
        for source in self._sources:
            for _ in range(_BATCH):
                got = zeromq.receive(self._zmq, source.sock)
                if got is None:
                    self._look_after(source, now)
                    break
                parts = got[0]
                self.taken += 1
                if self._endless.watched:
                    self._endless.heard(source.fd)
                message = self._tracker.take(parts, now)
                if message is not None:
                    self._ready.append(message)
                if self._capture is not None:
                    self._keep(self._capture, parts)
        if self._capture is not None:
            self._capture.flush()
        if now >= self._look_at:
            self._look_at = now + _LOOK
            endless = self._endless.look([source.fd for source in self._sources])
            for source in self._sources:
                if source.fd in endless:
                    self._tracker.refuse("frames: no end")
                    source.sock.disconnect(source.endpoint)
                    source.fd, source.lost = -1, now

    def _look_after(self, source: _Source, now: float) -> None:
        """Connect anew where libzmq does not, which is after a frame that is too large. Nothing waits now."""
        zmq = self._zmq
        while source.monitor.poll(0):
            said = source.monitor.recv_multipart()[0]
            event, value = int.from_bytes(said[:2], "little"), int.from_bytes(said[2:6], "little")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                source.reached = True
                continue
            source.lost = now if event == zmq.EVENT_DISCONNECTED else 0.0
            source.fd = value if event == zmq.EVENT_CONNECTED else -1
            self._endless.forget(source.fd)
        if source.lost and now - source.lost >= _REVIVE:
            source.lost = 0.0
            try:
                source.sock.disconnect(source.endpoint)
            except zmq.ZMQError:
                pass  # gone already, with its connection
            source.sock.connect(source.endpoint)

    def _keep(self, capture: CaptureWriter, parts: list[bytes]) -> None:
        meta, valid = read_meta(parts[-1])
        if len(parts) != 4 or not valid:
            return
        stream = self._streams.get(meta.device)
        if stream is None:
            if len(self._streams) >= _DEVICES_MAX:
                for old in self._streams.values():
                    capture.end_stream(old)
                self._streams.clear()
            stream = self._streams[meta.device] = capture.stream(f"device {meta.device}")
        capture.unit(stream, unit(parts))
        self.captured += 1

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self.receive()
            if message is not None:
                yield message

    def close(self) -> None:
        """Close the socket and the capture. Idempotent."""
        self._context.destroy(linger=0)
        if self._capture is not None:
            self._capture.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
