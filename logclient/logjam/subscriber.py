"""A consumer of the messages of logjam-devices: it chooses messages, and finds those that are missing.

::

    with Subscriber("tcp://device:9606", app_envs=["shop-production"], topics=["logs"]) as subscriber:
        for message in subscriber:
            print(message.topic, message.document())

A device numbers everything it publishes from 1, over all app-envs, so gaps are only seen by a consumer that
takes everything. With ``gaps=True`` everything comes over the wire and messages are chosen here; with
``gaps=False`` the device sends the chosen app-envs only, and missing messages are not found.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from logclient.config.hosts import dns_name, host_port
from logclient.config.readers import is_key
from logclient.errors import ConfigError, ConnectFailed, ProtocolError
from logclient.files.capture import CaptureWriter
from logclient.logjam import zeromq
from logclient.logjam.messages import decompress, is_app_env, read_meta, unit

HEARTBEAT = b"heartbeat"
PORT = 9606
STATS_PORT = 9621

_BODY_MAX = 64 << 20
_DEVICES_MAX = 4096
_GAPS_KEPT = 1000
_REASONS_MAX = 100
_BATCH = 100
_STATS_APART = 0.5  # seconds, at least, between two statistics that give the rate
_REVIVE = 0.3  # seconds without a reconnect by libzmq, after which the consumer reconnects
_ENDPOINT = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class Message(NamedTuple):
    """A data message as a device published it."""

    app_env: str
    topic: str
    payload: bytes  # the body on the wire
    compression: int  # 0 none, 1 zlib, 2 snappy, 3 lz4; devices pass other numbers on
    device: int
    created_ms: int
    sequence: int

    def body(self, limit: int = _BODY_MAX) -> bytes:
        """Return the body, decompressed.

        Raises:
            ProtocolError: the body does not fit its compression, or has more than `limit` bytes.
            MissingExtra: snappy or lz4 is not installed.
        """
        return decompress(self.compression, self.payload, limit)

    def document(self, limit: int = _BODY_MAX) -> Any:
        """Return the body as a JSON value.

        Raises:
            ProtocolError: see `body`; also for a body nested too deep for Python's reader.
            ValueError: the body is not JSON.
        """
        try:
            return json.loads(self.body(limit))
        except RecursionError:
            raise ProtocolError("body: nested too deep") from None


class Gap(NamedTuple):
    """Messages `first` to `last` of a device, which never came."""

    device: int
    first: int
    last: int


class Device(NamedTuple):
    """Counters of one device."""

    number: int
    received: int = 0  # messages, heartbeats included
    heartbeats: int = 0
    last: int = 0  # the last sequence
    missing_at_least: int = 0  # messages, since the first one seen
    gaps: int = 0
    restarts_at_least: int = 0
    seen: float = 0.0  # monotonic seconds of the last message


class Stat(NamedTuple):
    """The statistics that a device sends each second."""

    device: int  # the device's number
    sequence: int
    """The sequence of its last message, heartbeats included: the number of messages since its start."""
    per_second: float | None
    """Messages per second; None: only one statistic came in time, or the device was restarted."""


class Tracker:
    """Choose messages and track the devices' sequences: frames in, messages out. No I/O.

    A sequence that is not higher than the one before is a restart: the messages from 1 to that sequence are
    missing. All figures are lower bounds: a restart that has overtaken the last sequence seen looks like a
    shorter gap, and the last messages before the end of a device leave none. Device 0 is not tracked.
    """

    def __init__(
        self, app_envs: Iterable[str] = (), topics: Iterable[str] = (), *, gaps: bool = True
    ) -> None:
        for title, names in (("app_envs", app_envs), ("topics", topics)):
            if isinstance(names, str):
                raise ConfigError(f"{title}: must be several names, not one string")
        self.app_envs = frozenset(name.encode() for name in app_envs)
        self._topics = tuple(topic.encode() for topic in topics)
        for name in self.app_envs:
            if not is_app_env(name):
                raise ConfigError(f"app_envs: {name.decode()[:64]!r} must be printable ASCII with a dash")
        if b"" in self._topics:
            raise ConfigError("topics: one of them is empty")
        self._watch = gaps
        self.devices: dict[int, Device] = {}  #: by number
        self.gaps: deque[Gap] = deque(maxlen=_GAPS_KEPT)  #: the last ones
        self.refused: dict[str, int] = {}  #: the reasons for which messages were refused, and how often

    def take(self, parts: list[bytes], now: float) -> Message | None:
        """Take the frames of a message; None: a heartbeat, or one that is invalid or not chosen."""
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
        if beat or (self.app_envs and name not in self.app_envs):
            return None
        if self._topics and not any(topic == one or topic.startswith(one + b".") for one in self._topics):
            return None
        app_env, on = (part.decode("utf-8", "backslashreplace") for part in (name, topic))
        return Message(app_env, on, body, *meta)

    def refuse(self, reason: str) -> None:
        """Count an invalid message."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _follow(self, number: int, sequence: int, beat: bool, now: float) -> None:
        device = self.devices.get(number)
        if device is None:
            if len(self.devices) >= _DEVICES_MAX:
                self.refuse(f"devices: more than {_DEVICES_MAX}, not followed")
                return
            device = Device(number, last=sequence - 1)  # earlier messages are not missing
        first = device.last + 1
        if sequence <= device.last:
            first = 1
            device = device._replace(restarts_at_least=device.restarts_at_least + 1)
        if self._watch and sequence > first:
            self.gaps.append(Gap(number, first, sequence - 1))
            missing = device.missing_at_least + sequence - first
            device = device._replace(missing_at_least=missing, gaps=device.gaps + 1)
        self.devices[number] = device._replace(
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
    """Return a device's statistics, from its socket for them. The rate needs two of them, a second apart.

    Raises:
        ConfigError: an invalid key or host.
        ConnectFailed: no statistic came within `timeout` seconds.
        MissingExtra: pyzmq is not installed.
    """
    zmq = zeromq.load()
    curve = _curve(curve_server, curve_secret)
    endpoint = _endpoint(f"tcp://{host_port(dns_name(host).decode(), port)}")
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
            counters = None if got is None else _counters(got[0])
            if counters is None:
                continue
            if first is None:
                first = (now, *counters)
            elif now - first[0] >= _STATS_APART:
                same = counters[0] == first[1] and counters[1] >= first[2]
                return Stat(*counters, (counters[1] - first[2]) / (now - first[0]) if same else None)
        if first is not None:
            return Stat(*first[1:], None)
        why = "it says nothing" if monitor.poll(0) else "no device answers there"
        raise ConnectFailed(f"stat: {why}, in {timeout:g} s")
    finally:
        context.destroy(linger=0)


def _counters(parts: list[bytes]) -> tuple[int, int] | None:
    """Return a device's number and sequence; None for another message."""
    if len(parts) != 3 or parts[0] != b"stats":
        return None
    if not all(part.isdigit() and len(part) <= 20 for part in parts[1:]):
        return None
    return int(parts[1]), int(parts[2])


def _curve(server: str | None, secret: str | None) -> tuple[str, str, str] | None:
    if server is None:
        if secret is not None:
            raise ConfigError("curve_secret: needs curve_server")
        return None
    if not is_key(server):
        raise ConfigError("curve_server: must be a key of 40 characters of Z85")
    from logclient.transports.zmq import curve_keys

    return (server, *curve_keys(secret))


def _encrypt(sock: Any, curve: tuple[str, str, str] | None) -> None:
    if curve is not None:
        server, public, secret = (key.encode() for key in curve)
        sock.CURVE_SERVERKEY, sock.CURVE_PUBLICKEY, sock.CURVE_SECRETKEY = server, public, secret


def _endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    port = int(match[2] or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"endpoints: {text[:80]!r} must be tcp://host:port")
    return f"tcp://{match[1]}:{port}"


@dataclass(eq=False)
class _Source:
    """The socket of one device. Each has its own, so that each can be reconnected alone."""

    sock: Any
    monitor: Any
    endpoint: str
    reached: bool = False  # a device has answered
    fd: int = -1  # descriptor of its connection
    lost: float = 0.0  # when the connection ended, until libzmq reconnects


class Subscriber:
    """A reader of the messages that one or several devices publish.

    Use it in a ``with`` statement, or call ``close``. Iterate over it, or call ``receive``. It is for one
    thread.

    Args:
        endpoints: one or more addresses where devices publish, such as ``tcp://host:9606``.
        app_envs: return only messages of these; empty: of all.
        topics: return only messages of these; empty: of all. ``logs`` includes topics that begin with
            ``logs.``.
        gaps: True: receive everything, so that missing messages can be noticed. False: receive only messages
            of `app_envs`.
        hwm: number of messages that libzmq holds; the device drops more, which is a gap.
        max_bytes: bytes of one frame; the sender of a larger one is disconnected.
        curve_server: the devices' public CURVE key, 40 characters of Z85; None: not encrypted.
        curve_secret: the consumer's secret key, if devices accept only known consumers; None: a new one.
        capture: directory for a capture of everything that comes, heartbeats included. A message is in it
            before it is returned. None: no capture.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default ``logjam-sub``.
        rotate: seconds after which a segment of the capture ends; default: only by its size.

    Attributes:
        endpoints: the addresses, with their ports.
        taken: messages that came, of any kind.
        captured: messages of these that are in the capture.

    Raises:
        ConfigError: an argument breaks its rule.
        MissingExtra: pyzmq is not installed.
        LedgerError: the capture cannot be used.
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
        rotate: float = math.inf,
    ) -> None:
        self.endpoints = [
            _endpoint(text) for text in ([endpoints] if isinstance(endpoints, str) else endpoints)
        ]
        if not self.endpoints:
            raise ConfigError("endpoints: none is given")
        for name, value, least, most in (("hwm", hwm, 0, 2**31 - 1), ("max_bytes", max_bytes, 1, 2**62)):
            if not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{name}: must be a number from {least} to {most}, got {value!r:.40}")
        self._tracker = Tracker(app_envs, topics, gaps=gaps)
        self.taken = 0
        self.captured = 0
        self._ready: deque[Message] = deque()
        self._streams: dict[int, int] = {}
        zmq = self._zmq = zeromq.load()
        self._curve = _curve(curve_server, curve_secret)
        self._capture: CaptureWriter | None = None
        if capture is not None:
            given: dict[str, Any] = {"url": ",".join(self.endpoints), "run": run, "source": "devices"}
            self._capture = CaptureWriter(capture, listener, "logjam", segment_seconds=rotate, **given)
        wanted = self._tracker.app_envs
        self._prefixes = (HEARTBEAT, *wanted) if wanted and not gaps else (b"",)
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._endless = zeromq.EndlessMessages(max_bytes + zeromq.UNREAD_MAX)
        self._look_at = 0.0
        try:
            self._sources = [self._source(endpoint, hwm, max_bytes) for endpoint in self.endpoints]
        except BaseException:
            self.close()
            raise

    def _source(self, endpoint: str, hwm: int, max_bytes: int) -> _Source:
        zmq = self._zmq
        sock = self._context.socket(zmq.SUB)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVHWM, hwm)
        sock.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        sock.setsockopt(zmq.RECONNECT_IVL, 100)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 10_000)
        # Notices a device that has gone silently, and reconnects.
        sock.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
        sock.setsockopt(zmq.IPV6, "[" in endpoint)
        _encrypt(sock, self._curve)
        for prefix in self._prefixes:
            sock.setsockopt(zmq.SUBSCRIBE, prefix)
        watched = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        monitor = sock.get_monitor_socket(watched | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._poller.register(sock, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        sock.connect(endpoint)
        return _Source(sock, monitor, endpoint)

    @property
    def devices(self) -> dict[int, Device]:
        """The devices by number."""
        return dict(self._tracker.devices)

    @property
    def gaps(self) -> list[Gap]:
        """The last 1,000 gaps."""
        return list(self._tracker.gaps)

    @property
    def refused(self) -> dict[str, int]:
        """How many messages were refused, by reason."""
        return dict(self._tracker.refused)

    @property
    def unreached(self) -> list[str]:
        """Endpoints where no device has answered yet."""
        return [source.endpoint for source in self._sources if not source.reached]

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message of the chosen app-envs and topics.

        Args:
            timeout: seconds; None: no limit.

        Returns:
            The message, or None if none came within `timeout`.

        Raises:
            LedgerError: the capture cannot be written any further.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = None if end is None else max(0.0, end - time.monotonic())
            self._take(left)
            if left == 0.0 and not self._ready:
                return None
        return self._ready.popleft()

    def _take(self, left: float | None) -> None:
        """Wait at most `left` seconds for messages, and take those that have come."""
        if any(source.lost for source in self._sources):
            left = _REVIVE if left is None else min(left, _REVIVE)
        elif zeromq.COUNTS_RECEIVED:
            left = zeromq.LOOK_EVERY if left is None else min(left, zeromq.LOOK_EVERY)
        self._poller.poll(None if left is None else math.ceil(left * 1000))
        now = time.monotonic()
        for source in self._sources:
            for _ in range(_BATCH):
                got = zeromq.receive(self._zmq, source.sock)
                if got is None:
                    self._check_connection(source, now)
                    break
                parts = got[0]
                self.taken += 1
                if self._endless.watched:
                    self._endless.message_from(source.fd)
                message = self._tracker.take(parts, now)
                if message is not None:
                    self._ready.append(message)
                if self._capture is not None:
                    self._keep(self._capture, parts)
        if self._capture is not None:
            self._capture.flush()
        if now >= self._look_at:
            self._look_at = now + zeromq.LOOK_EVERY
            endless = self._endless.look([source.fd for source in self._sources])
            for source in self._sources:
                if source.fd in endless:
                    self._tracker.refuse("frames: no end")
                    source.sock.disconnect(source.endpoint)
                    source.fd, source.lost = -1, now

    def _check_connection(self, source: _Source, now: float) -> None:
        """Reconnect where libzmq does not, which is after a frame that is too large. No message waits now."""
        zmq = self._zmq
        while source.monitor.poll(0):
            report = source.monitor.recv_multipart()[0]
            event, value = int.from_bytes(report[:2], "little"), int.from_bytes(report[2:6], "little")
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
        """Close the sockets and the capture. May be called again."""
        self._context.destroy(linger=0)
        if self._capture is not None:
            self._capture.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
