"""ZeroMQ: one socket, one TCP connection, one endpoint.

ZeroMQ's own reconnect is off (``ZMQ_RECONNECT_IVL=-1``): a reply says nothing of the request that it
answers, so after a connection was lost no later reply may be matched with what was sent before. A
monitor tells when it is lost; the engine then makes a new socket.

Bytes are messages in the form of ``protocols.core.Wire``: frames, each behind its head.

libzmq gives a message when it is whole, and holds what there is of it until then, however many frames that
are. Where the kernel says how much came over a connection (Linux), one that brings `SWOLLEN` bytes and no
message is over.

libzmq ends the process (``abort``) when it makes its threads, or looks a name up, and there is no descriptor
or thread left for it. So its threads are made once for all connections, after a look at whether there are
enough, and it is given addresses, never names.

What ZeroMQ may still drop without telling, for protocols without acknowledgements: messages that it has
taken (up to ``hwm``) and not yet written when the connection breaks, and when the process ends those
that ``linger`` was too short for.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from logclient._ext.constants import FRAME_MORE
from logclient.errors import ConfigError, CredentialError, MissingExtra
from logclient.threads import AnyThread, Event, make_thread, wait_until
from logclient.threads import join as join_thread
from logclient.transports.attempt import LOOK, Attempt, sleep
from logclient.transports.tcp import COUNTED, brought, resolve

try:
    import zmq
    from zmq.utils.monitor import parse_monitor_message
except ImportError as error:
    raise MissingExtra("zmq", "logjam") from error

__all__ = ["Zmq", "ZmqLink", "curve_keys", "frames_of", "join"]

Endpoint = tuple[str, int]

RECEIVE = 65536
"""Bytes handed over at once, and the longest message that is taken from a peer."""

SWOLLEN = 4 << 20
"""Bytes without a message. The replies to 65,536 requests are some 3 MB."""

_PIPES = 8
"""Descriptors, in pairs, that must be left when libzmq makes its threads: it uses six, and another four for
a connection with its monitor."""

_LOOK = 0.1  # seconds between two looks at that
_PULSE = 256  # bytes a second that are ZeroMQ's own heartbeats

# As plain numbers: to join two of pyzmq's enums costs more than to send a frame.
_DONTWAIT, _SNDMORE = 1, 2

_EVENTS = (
    zmq.Event.CONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_OVER = {zmq.Event.CLOSED, zmq.Event.DISCONNECTED}


def join(messages: Sequence[Sequence[bytes]]) -> bytes:
    """Messages of frames, each frame behind its head: u32 little-endian length, top bit when more follow."""
    parts = []
    for frames in messages:
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            parts += [(len(frame) | (FRAME_MORE if place < last else 0)).to_bytes(4, "little"), frame]
    return b"".join(parts)


def frames_of(data: bytes | memoryview) -> Iterator[list[memoryview]]:
    """The messages in `data`, whole ones only."""
    view = memoryview(data)
    at = 0
    frames: list[memoryview] = []
    while at < len(view):
        head = int.from_bytes(view[at : at + 4], "little")
        size = head & ~FRAME_MORE
        frames.append(view[at + 4 : at + 4 + size])
        at += 4 + size
        if not head & FRAME_MORE:
            yield frames
            frames = []


class _Owned:
    """Says nothing of being left open where it is not ours to close: in a forked child, to whom it is of no
    use, and while the interpreter exits, when events may come to the very end."""

    _made_by = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._made_by = os.getpid()

    def _is_ours(
        self,
        getpid: Callable[[], int] = os.getpid,
        finalizing: Callable[[], bool] = sys.is_finalizing,
        main_thread: Callable[[], threading.Thread] = threading.main_thread,
    ) -> bool:
        # The main thread is over before the first exit handler runs.
        return self._made_by == getpid() and not finalizing() and main_thread().is_alive()

    def __del__(self) -> None:
        if self._is_ours():
            super().__del__()  # type: ignore[misc]


class _Socket(_Owned, zmq.Socket[bytes]):
    pass


class _Context(_Owned, zmq.Context[_Socket]):
    """Ends with the last that refers to it: its transport, or a link."""

    _socket_class = _Socket

    def __del__(self) -> None:
        if not self.closed and self._is_ours():
            self.destroy(0)


class ZmqLink:
    """One connected socket, with its monitor.

    Args:
        end: ends the transport's context, and waits for what its sockets linger for.
    """

    bite = 0
    tls = ""
    lull = 0.0
    doubt = ""
    lingers = False
    """Whether what ZeroMQ has taken is worth waiting for at the end: nothing else will send it again."""
    holds = 0

    def __init__(self, sock: zmq.Socket[bytes], monitor: Any, peer: str, end: Callable[[], None]) -> None:
        self.peer = peer
        self.monitor = monitor
        self.socket = sock
        self.reads = sock.TYPE != zmq.PUSH
        self.tcp = -1
        """The descriptor of the connection, where the kernel says how much came over it."""
        self._before = 0.0
        self._looked = time.monotonic()
        self._is_swollen = False
        self._end = end
        self._unsent: list[list[memoryview]] = []
        self._pid = os.getpid()

    def facts(self) -> dict[str, Any]:
        """What protects it."""
        return {"mechanism": self.tls} if self.tls else {}

    def fileno(self) -> int:
        return int(self.socket.FD)

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Give these messages to ZeroMQ; whether it took all of them, and all before."""
        for buffer in buffers:
            self._unsent.extend(frames_of(bytes(buffer)))
        return self.flush()

    @property
    def unsent(self) -> int:
        """Bytes of messages that ZeroMQ has not taken yet."""
        return sum(4 + len(frame) for frames in self._unsent for frame in frames)

    def flush(self) -> bool:
        done = 0
        try:
            for frames in self._unsent:
                if not self._give(frames):
                    return False
                done += 1
        except zmq.ZMQError as error:
            raise _fault(error) from None
        finally:
            del self._unsent[:done]
        return True

    def _give(self, frames: list[memoryview]) -> bool:
        """Whether ZeroMQ has taken this message."""
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            try:
                self.socket.send(frame, _DONTWAIT if place == last else _DONTWAIT | _SNDMORE)
            except zmq.Again:
                if place == 0:
                    return False
                # Only of a connection that is gone: libzmq drops the frames before this one.
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
        return True

    def receive(self) -> bytes | None:
        found: list[list[bytes]] = []
        size = 0
        while self.reads and size < RECEIVE // 2:
            try:
                found.append(self._message())
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                raise _fault(error) from None
            size += sum(4 + len(frame) for frame in found[-1])
        if found:
            self._is_swollen = False
            self._before = brought(self.tcp)
            return join(found)
        if self._is_over():
            return b""
        if self._swollen():
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        return None

    def _message(self) -> list[bytes]:
        frames = []
        size = 0
        more = True
        while more:
            frame = self.socket.recv(zmq.DONTWAIT, copy=False)  # a message is there as a whole, or not at all
            frames.append(frame.bytes)
            more = frame.more
            size += 4 + len(frames[-1])
            if size > RECEIVE:
                raise zmq.ZMQError(errno.EMSGSIZE)
        return frames

    def _swollen(self) -> bool:
        """Whether much came, and no message."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return self._is_swollen
        so_far = brought(self.tcp)
        self._before = min(so_far, self._before + _PULSE * (now - self._looked))
        self._looked = now
        self._is_swollen = so_far - self._before > SWOLLEN
        return self._is_swollen

    def _is_over(self) -> bool:
        while self.monitor.EVENTS & zmq.POLLIN:
            if parse_monitor_message(self.monitor.recv_multipart())["event"] in _OVER:
                return True
        return False

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        """See ``Link.wait``. ZeroMQ's descriptors tell changes only, so its state is asked first."""
        wanted = zmq.POLLIN | (zmq.POLLOUT if writable else 0)
        if int(self.socket.EVENTS) & wanted or self.monitor.EVENTS & zmq.POLLIN:
            return
        reading = [self.fileno(), int(self.monitor.FD)] + ([wake] if wake >= 0 else [])
        if wake < 0:
            seconds = min(seconds, 0.005)  # nothing to be woken by: look again soon
        if self.tcp >= 0:
            if self._swollen():
                return
            seconds = min(seconds, _LOOK)
        sleep(reading, [], seconds)

    def close(self, linger: float = 0.0) -> None:
        """End it; waits `linger` seconds at most for what ZeroMQ has taken and not written."""
        if self._pid != os.getpid() or self.socket.closed:
            return
        milliseconds = int(linger * 1000) if self.lingers else 0
        _drop(self.socket, self.monitor, milliseconds)
        if milliseconds:
            self._end()

    def abandon(self) -> None:
        """In a forked child: the I/O thread is not there, and nothing may be touched."""


class Zmq:
    """Connects, one endpoint at a time.

    Args:
        connect_timeout: seconds, the handshake included.
        kind: ``DEALER`` or ``PUSH``.
        hwm: messages that ZeroMQ takes and holds, at most.
        lingers: whether links wait, when they are closed, for what is not written: not where what has no
            reply is sent again.
        heartbeat: seconds between two of ZeroMQ's own pings; 0: none.
        curve: (the server's public key, our public key, our secret key), as Z85 texts.

    Raises:
        ConfigError: keys that are none, or a ZeroMQ without CURVE.
    """

    def __init__(
        self,
        connect_timeout: float,
        *,
        kind: str = "DEALER",
        hwm: int = 1000,
        lingers: bool = False,
        heartbeat: float = 0.0,
        curve: tuple[str, str, str] | None = None,
    ) -> None:
        self.connect_timeout = connect_timeout
        self.kind = kind
        self.hwm = hwm
        self.lingers = lingers
        self.heartbeat = heartbeat
        self.curve = curve
        self._context: _Context | None = None
        self._pid = 0
        self._monitors = 0

    @classmethod
    def from_config(cls, config: Any) -> Zmq:
        push = config.scheme.endswith("+push")
        curve = None
        if config.curve_server is not None:
            secret = None if config.curve_secret is None else config.curve_secret.reveal()
            curve = (config.curve_server, *curve_keys(secret))
        return cls(
            config.connect_timeout,
            kind="PUSH" if push else "DEALER",
            hwm=config.hwm,
            lingers=push or config.mode == "async",
            heartbeat=config.heartbeat,
            curve=curve,
        )

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> ZmqLink:
        """A link whose handshake is done.

        Raises:
            OSError: nobody answers in time, or it is no ZeroMQ socket of the right kind.
            CredentialError: the CURVE keys are not accepted.
        """
        host, port = endpoint
        failure: OSError | None = None
        for *_, address in resolve(host, port, socket.SOCK_STREAM)[1]:
            try:
                return self._link(address[0], port, f"{host}:{port}", attempt)
            except InterruptedError:
                raise
            except OSError as error:
                # Of several, the one that somebody has to mend.
                if not isinstance(failure, CredentialError):
                    failure = error
        raise failure or OSError(f"{host} has no address")

    def _link(self, address: str, port: int, peer: str, attempt: Attempt) -> ZmqLink:
        monitor: Any = None
        link = None
        try:
            sock = self._socket()
        except zmq.ZMQError as error:
            raise _fault(error) from None
        try:
            self._prepare(sock, address)
            # A name of its own: the one that pyzmq would give may still be that of the connection before.
            self._monitors += 1
            monitor = sock.get_monitor_socket(_EVENTS, f"inproc://monitor-{self._monitors}")
            sock.connect(f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}")
            tcp = self._shake(monitor, attempt)
            link = ZmqLink(sock, monitor, peer, self.close)
            link.tcp = tcp if brought(tcp) else -1
            link.lingers, link.holds = self.lingers, self.hwm
            link.tls = "CURVE" if self.curve else ""
            return link
        except zmq.ZMQError as error:
            raise _fault(error) from None
        finally:
            if link is None:
                _drop(sock, monitor, 0)

    def _socket(self) -> zmq.Socket[bytes]:
        """A new socket, of this process's context."""
        if self._context is None or self._pid != os.getpid():
            # A forked child has none of its parent's threads, and a context of its own.
            context = _Context(1)
            _spare()
            # libzmq starts its threads here.
            sock: zmq.Socket[bytes] = context.socket(getattr(zmq, self.kind))
            self._context, self._pid = context, os.getpid()
            return sock
        return self._context.socket(getattr(zmq, self.kind))

    def close(self) -> None:
        """End libzmq's threads, once no link is left; the next connection starts others."""
        context, self._context = self._context, None
        if context is not None and self._pid == os.getpid():
            context.term()

    def _prepare(self, sock: zmq.Socket[bytes], address: str) -> None:
        milliseconds = max(1, int(self.connect_timeout * 1000))
        sock.RECONNECT_IVL = -1
        sock.IMMEDIATE = 1
        sock.CONNECT_TIMEOUT = milliseconds
        sock.HANDSHAKE_IVL = milliseconds
        sock.SNDHWM = self.hwm
        # Replies are few; what is more waits in the kernel, and there is less of it than of requests. Nobody
        # reads from a PUSH: once libzmq holds so much for it, it looks no more whether the peer is gone.
        sock.RCVHWM = 1000 if self.kind != "PUSH" else 0 if COUNTED else 1
        sock.MAXMSGSIZE = RECEIVE // 2 - 4
        sock.LINGER = 0
        # Not for the other addresses: when the connection ends libzmq would look for the endpoint under an
        # IPv6 name, not find it, and ask for all interfaces; without a descriptor for that it aborts.
        sock.IPV6 = 1 if ":" in address else 0
        if self.heartbeat:
            interval = max(1, int(self.heartbeat * 1000))
            sock.HEARTBEAT_IVL = interval
            sock.HEARTBEAT_TIMEOUT = 2 * interval
            sock.HEARTBEAT_TTL = 2 * interval
        if self.curve:
            server, public, secret = (key.encode("ascii") for key in self.curve)
            sock.CURVE_SERVERKEY, sock.CURVE_PUBLICKEY, sock.CURVE_SECRETKEY = server, public, secret

    def _shake(self, monitor: Any, attempt: Attempt) -> int:
        """Wait for the handshake; the descriptor of the connection."""
        tcp = -1
        deadline = time.monotonic() + self.connect_timeout
        connected = failed = False
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                words = "handshake" if connected else "connection attempt"
                raise TimeoutError(f"no answer to the {words} in time")
            if not monitor.poll(0):
                if attempt.stopped():
                    raise InterruptedError("stopped while connecting")
                # The descriptor tells changes only: what it told may have been taken already.
                attempt.rest([int(monitor.FD)], [], min(left, LOOK))
                if not monitor.poll(0):
                    continue
            message = parse_monitor_message(monitor.recv_multipart())
            event = message["event"]
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                return tcp
            if event == zmq.Event.CONNECTED:
                connected = True
                tcp = int(message["value"])
            elif event == zmq.Event.HANDSHAKE_FAILED_AUTH:
                raise CredentialError("the server does not accept our CURVE key: see curve_public there")
            elif event in _OVER:
                if not connected:
                    raise ConnectionRefusedError("connection refused")
                if not failed:
                    raise ConnectionError(f"what answers is no ZeroMQ socket for a {self.kind}")
                if self.curve:
                    raise CredentialError(
                        "the handshake failed: is curve_server the server's key, and CURVE on there?"
                    )
                raise ConnectionError("the handshake failed: no ZeroMQ socket, or one that wants CURVE keys")
            else:
                failed = True

    def pump(self, flight: Any, core: Any, **limits: Any) -> Any:
        """The compiled pump for this transport, or None where there is none."""
        if core.hot is None:
            return None
        try:
            from logclient._ext.zmqsend import ZmqPump
        except ImportError:
            return None
        return ZmqPump.find(flight, core, _library(), **limits)


def curve_keys(secret: str | None) -> tuple[str, str]:
    """Our public and secret CURVE keys; new ones without a secret.

    Raises:
        ConfigError: it is none, or libzmq has no CURVE.
    """
    if not zmq.has("curve"):
        raise ConfigError("curve: this libzmq is built without CURVE")
    if secret is None:
        public, made = zmq.curve_keypair()
        return public.decode("ascii"), made.decode("ascii")
    try:
        return zmq.curve_public(secret.encode("ascii")).decode("ascii"), secret
    except (ValueError, zmq.ZMQError):
        raise ConfigError("curve_secret: must be a key of 40 characters of Z85") from None


def _spare() -> None:
    """Make sure that libzmq can start its threads.

    Raises:
        OSError: there are too few descriptors or threads left.
    """
    pipes: list[int] = []
    go = Event()
    idents: list[int] = []

    def probe() -> None:
        idents.append(threading.get_native_id())
        go.wait()

    threads = [make_thread(probe, "logclient-probe") for _ in range(2)]
    started: list[AnyThread] = []
    try:
        for _ in range(_PIPES):
            pipes += os.pipe()
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # no thread can be started
        # At the end of the interpreter Python 3.12 starts none of its own, but the system still does.
        if "shutdown" not in str(error):
            raise OSError(errno.EAGAIN, str(error)) from None
    finally:
        go.set()
        for thread in started:
            join_thread(thread)
        for fd in pipes:
            os.close(fd)
        # A thread counts for the system a moment longer than for Python (Linux says how long).
        wait_until(lambda: not any(os.path.exists(f"/proc/self/task/{ident}") for ident in idents), 0.5)


def _drop(sock: zmq.Socket[bytes], monitor: Any, linger: int) -> None:
    """Close a socket and its monitor; `linger`: milliseconds."""
    if monitor is not None:
        sock.disable_monitor()
        monitor.close(0)
    sock.close(linger)


def _fault(error: zmq.ZMQError) -> OSError:
    return OSError(error.errno, str(error.strerror))


def _library() -> str:
    """The file through which pyzmq reaches its libzmq: ours must be the same copy."""
    from zmq.backend import cython

    return str(getattr(cython._zmq, "__file__", ""))
