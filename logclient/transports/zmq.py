"""ZeroMQ: one socket, one TCP connection, one endpoint.

ZeroMQ's own reconnect is off (``ZMQ_RECONNECT_IVL=-1``). A reply does not name its request, so after a
connection was lost no later reply may be matched with earlier requests. A monitor reports when the connection
is lost; the engine then makes a new socket.

Bytes are messages in the form of ``lc_wire`` (``_ext/codec.pxd``): frames, each behind its head.

libzmq delivers whole messages and keeps the frames of one that have arrived, however many there are.
Where the kernel reports how many bytes a connection has received (Linux), a connection that receives
`OVERSIZED` bytes without a message is ended.

libzmq aborts the process when no descriptor or thread is left for starting its threads or for looking up a
name. So its threads are started once for all connections, after a check that there are enough, and it is
given addresses, never names.

For protocols without acknowledgements ZeroMQ may still lose messages silently: those that it has taken (up to
``hwm``) and not written when the connection breaks, and at the end of the process those for which the time to
drain was too short.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from logclient._ext.queue import socket_identity
from logclient.config.hosts import host_port
from logclient.config.secrets import Secret
from logclient.delivery.attempt import Attempt, renew
from logclient.delivery.contract import FOREVER, Link, Transport, find_frames, join_frames
from logclient.descriptors import standard_taken
from logclient.errors import ConfigError, CredentialError, MissingExtra
from logclient.standard import os, time
from logclient.threads import AnyThread, Event, make_thread, signals_blocked
from logclient.threads import join as join_thread
from logclient.transports.addresses import KEEP_ALIVE, first_address
from logclient.transports.tcp_link import COUNTS_RECEIVED, Endpoint, bytes_received, make_socket

try:
    import zmq
    from zmq.utils.monitor import parse_monitor_message
except ImportError as error:
    raise MissingExtra("zmq", "logjam") from error

MOST_LINGER_MS = (1 << 31) - 1
"""The longest time to wait at a close that ZeroMQ takes."""

RECEIVE = 65536
"""Bytes returned by one receive, and the bound of a message from a peer."""

OVERSIZED = 4 << 20
"""Bytes received without a message that end a connection. Replies to 65,536 requests are about 3 MB."""

_PIPES = 8
"""Pairs of descriptors that must be left when libzmq starts its threads: it uses six, and another four for a
connection with its monitor."""

_CHECK_S = 0.1  # seconds between two looks at the bytes received
_HEARTBEAT_BYTES = 256  # bytes a second that count as ZeroMQ's own heartbeats

# Plain numbers: combining two of pyzmq's enums costs more than sending a frame.
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


class _Owned:
    """Emits no ``ResourceWarning`` where closing is not our task.

    That is in a forked child, and during interpreter exit, when events may still be sent to the very end.
    """

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
        # The main thread has ended before the first exit handler runs.
        return self._made_by == getpid() and not finalizing() and main_thread().is_alive()

    def __del__(self) -> None:
        if self._is_ours():
            super().__del__()  # type: ignore[misc]


class _Socket(_Owned, zmq.Socket[bytes]):
    pass


class _Context(_Owned, zmq.Context[_Socket]):
    """Ends with the last reference to it, that of its transport or of a link."""

    _socket_class = _Socket

    def __del__(self) -> None:
        if not self.closed and self._is_ours():
            self.destroy(0)


class ZmqLink(Link):
    """A connected socket with its monitor. `end` ends the context once messages are written."""

    def __init__(self, sock: zmq.Socket[bytes], monitor: Any, peer: str, end: Callable[[], None]) -> None:
        self.peer = peer
        self.monitor = monitor
        self.socket = sock
        self.reads = sock.TYPE != zmq.PUSH
        self._baseline = 0.0
        self._checked_at = time.monotonic()
        self._oversized = False
        self._end = end
        self._unsent: list[list[memoryview]] = []
        self._pid = os.getpid()

    def facts(self) -> dict[str, Any]:
        return {"mechanism": self.tls} if self.tls else {}

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        for buffer in buffers:
            view = memoryview(bytes(buffer))
            end = 0
            while end < len(view):
                spans = find_frames(view, end)
                self._unsent.append([view[begin:end] for begin, end in spans])
                end = spans[-1][1]
        return self.flush()

    @property
    def unsent(self) -> int:
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
        """Give one message to ZeroMQ; return whether it was taken."""
        last = len(frames) - 1
        for place, frame in enumerate(frames):
            try:
                self.socket.send(frame, _DONTWAIT if place == last else _DONTWAIT | _SNDMORE)
            except zmq.Again:
                if place == 0:
                    return False
                # Only when the connection is gone: libzmq drops the frames before this one.
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
        return True

    def receive(self) -> bytes | None:
        found = bytearray()
        while self.reads and len(found) < RECEIVE // 2:
            try:
                found += join_frames(self._message())
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                raise _fault(error) from None
        if found:
            self._oversized = False
            self._baseline = bytes_received(self.file[0])
            return bytes(found)
        if self._is_over():
            return b""
        if self._is_oversized():
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        return None

    def _message(self) -> list[bytes]:
        frames = []
        size = 0
        more = True
        while more:
            frame = self.socket.recv(zmq.DONTWAIT, copy=False)  # a message is there completely, or not at all
            frames.append(frame.bytes)
            more = frame.more
            size += 4 + len(frames[-1])
            if size > RECEIVE:
                raise zmq.ZMQError(errno.EMSGSIZE)
        return frames

    def _is_oversized(self) -> bool:
        """Return whether too many bytes have arrived without a message."""
        now = time.monotonic()
        if now - self._checked_at < _CHECK_S:
            return self._oversized
        received = bytes_received(self.file[0])
        self._baseline = min(received, self._baseline + _HEARTBEAT_BYTES * (now - self._checked_at))
        self._checked_at = now
        self._oversized = received - self._baseline > OVERSIZED
        return self._oversized

    def _is_over(self) -> bool:
        while self.monitor.EVENTS & zmq.POLLIN:
            if parse_monitor_message(self.monitor.recv_multipart())["event"] in _OVER:
                return True
        return False

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        """Return what to wait for; check the state first: ZeroMQ's descriptors are edge-triggered."""
        wanted = zmq.POLLIN | (zmq.POLLOUT if writable else 0)
        reading = [int(self.socket.FD), int(self.monitor.FD)]
        if int(self.socket.EVENTS) & wanted or self.monitor.EVENTS & zmq.POLLIN or self._is_oversized():
            return reading, [], 0.0
        return reading, [], FOREVER if self.file[0] < 0 else _CHECK_S

    def close(self, flush_for: float = 0.0) -> None:
        """Close the socket; wait up to `flush_for` seconds for messages that ZeroMQ has not written yet."""
        if self._pid != os.getpid() or self.socket.closed:
            return
        milliseconds = min(int(flush_for * 1000), MOST_LINGER_MS) if self.drains_on_close else 0
        _drop(self.socket, self.monitor, milliseconds)
        if milliseconds:
            self._end()

    def abandon(self) -> None:
        """In a forked child, do nothing: without the I/O thread nothing may be touched."""


class Zmq(Transport):
    """Connects ZeroMQ sockets; ConfigError: a key is not valid, or this ZeroMQ has no CURVE."""

    def __init__(self, config: Any) -> None:
        push = config.scheme.endswith("+push")
        self.kind = "PUSH" if push else "DEALER"
        self.connect_timeout = config.connect_timeout  # seconds for one address, the handshake included
        self.hwm = config.hwm
        # Not needed where requests without a reply are sent again.
        self.drains_on_close = push or config.mode == "async"
        self._curve_secret: Secret | None = config.curve_secret
        self._has_keys = self._curve_secret is None or self._curve_secret.is_known
        self.curve: tuple[str, str, str] | None = None  # the server's public key, our public and secret key
        if config.curve_server is not None:
            known = None if self._curve_secret is None else self._curve_secret.reveal() or None
            self.curve = (config.curve_server, *curve_keys(known))
        self._context: _Context | None = None
        self._pid = 0
        self._monitors = 0

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> ZmqLink:
        """Connect to the first address that answers, and wait for the handshake.

        Where there are several, connections that are closed again find it.
        """
        self._renew_keys(attempt)

        def make(*found: Any) -> ZmqLink:
            if attempt.won.sock is not None:
                attempt.won.sock.close()
            with standard_taken():
                return self._link(found[-1][0], endpoint, attempt)

        return first_address(endpoint, socket.SOCK_STREAM, make, attempt, self.connect_timeout)

    def _renew_keys(self, attempt: Attempt) -> None:
        if self._curve_secret is None or self.curve is None:
            return
        renew([("curve_secret", self._curve_secret)], attempt)
        try:
            self.curve = (self.curve[0], *curve_keys(self._curve_secret.reveal()))
        except ConfigError as error:
            if not self._has_keys:
                raise CredentialError(str(error)) from None
            attempt.warn(f"{error}; the last key is used")
        else:
            self._has_keys = True

    def _link(self, address: str, endpoint: Endpoint, attempt: Attempt) -> ZmqLink:
        port = endpoint[1]
        monitor: Any = None
        link = None
        try:
            sock = self._socket()
        except zmq.ZMQError as error:
            raise _fault(error) from None
        try:
            self._prepare(sock, address)
            # A name of its own: the one that pyzmq would choose may still belong to the last connection.
            self._monitors += 1
            monitor = sock.get_monitor_socket(_EVENTS, f"inproc://monitor-{self._monitors}")
            sock.connect(f"tcp://{host_port(address, port)}")
            tcp = self._wait_for_handshake(monitor, attempt)
            link = ZmqLink(sock, monitor, host_port(*endpoint), self.close)
            link.file = _file_of(tcp if bytes_received(tcp) else -1, address, port)
            link.drains_on_close = self.drains_on_close
            link.tls = "CURVE" if self.curve else ""
            return link
        except zmq.ZMQError as error:
            raise _fault(error) from None
        finally:
            if link is None:
                _drop(sock, monitor, 0)

    def _socket(self) -> zmq.Socket[bytes]:
        """Return a new socket of this process's context."""
        if self._context is None or self._pid != os.getpid():
            # A forked child has none of its parent's threads and needs a context of its own.
            context = _Context(1)
            _check_resources()
            with signals_blocked():  # libzmq starts its threads here
                sock: zmq.Socket[bytes] = context.socket(getattr(zmq, self.kind))
            self._context, self._pid = context, os.getpid()
            return sock
        return self._context.socket(getattr(zmq, self.kind))

    def close(self) -> None:
        """End libzmq's threads once no link is left; the next connection starts others."""
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
        # Replies are few; others wait in the kernel, and there are fewer than requests. A PUSH socket is
        # never read: once libzmq holds so many messages for it, it no longer notices that the peer is gone.
        sock.RCVHWM = 1000 if self.kind != "PUSH" else 0 if COUNTS_RECEIVED else 1
        sock.MAXMSGSIZE = RECEIVE // 2 - 4
        sock.LINGER = 0
        sock.TCP_KEEPALIVE = 1
        sock.TCP_KEEPALIVE_IDLE, sock.TCP_KEEPALIVE_INTVL, sock.TCP_KEEPALIVE_CNT = KEEP_ALIVE.values()
        # Only for IPv6 addresses: otherwise libzmq, when the connection ends, would look for the endpoint
        # under an IPv6 name, not find it, and list all interfaces; without a descriptor for that it aborts.
        sock.IPV6 = 1 if ":" in address else 0
        if self.curve:
            server, public, secret = (key.encode("ascii") for key in self.curve)
            sock.CURVE_SERVERKEY, sock.CURVE_PUBLICKEY, sock.CURVE_SECRETKEY = server, public, secret

    def _wait_for_handshake(self, monitor: Any, attempt: Attempt) -> int:
        """Wait for the handshake; return the descriptor of the connection."""
        tcp = -1
        deadline = time.monotonic() + self.connect_timeout
        connected = failed = False
        while True:
            late = f"no answer to the {'handshake' if connected else 'connection attempt'} in time"
            if time.monotonic() >= deadline:  # first: ZeroMQ reports a failure at the same time
                raise TimeoutError(late)
            if not monitor.poll(0):
                # The descriptor is edge-triggered: check the state again.
                attempt.wait([int(monitor.FD)], [], deadline, late)
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
                    raise ConnectionError(f"the peer is not a ZeroMQ socket for a {self.kind}")
                if self.curve:
                    raise CredentialError(
                        "the handshake failed: is curve_server the server's key, and CURVE on there?"
                    )
                raise ConnectionError("the handshake failed: not a ZeroMQ socket, or it wants CURVE keys")
            else:
                failed = True

    def load_pump(self) -> Callable[..., Any]:
        from zmq.backend import cython

        from logclient._ext.pump import ZmqPump

        # pyzmq's extension, through which its copy of libzmq is found.
        return partial(ZmqPump.find, library=str(getattr(cython._zmq, "__file__", "")))


def _file_of(tcp: int, address: str, port: int) -> tuple[int, int, int]:
    """Return what tells libzmq's connection to this peer from a file that takes its number later."""
    try:
        with closing(make_socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(tcp))) as sock:
            ours = sock.getpeername()[:2] == (address, port)
        return (tcp, *(socket_identity(tcp) or (0, 0))) if ours else (-1, 0, 0)
    except OSError:
        return (-1, 0, 0)


def curve_keys(secret: str | None) -> tuple[str, str]:
    """Return our public and secret CURVE keys, as Z85 texts; a new pair for the secret None.

    Raises:
        ConfigError: the key is not valid, or libzmq has no CURVE.
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


def _check_resources() -> None:
    """Make sure that libzmq can start its threads; OSError: too little is left for them."""
    if sys.is_finalizing():  # Python's threads cannot run any more, and are waited for before Python 3.12
        return
    pipes: list[int] = []
    go = Event()
    started: list[AnyThread] = []
    try:
        for _ in range(_PIPES):
            pipes += os.pipe()
        for _ in range(2):
            thread = make_thread(go.wait, "logclient-probe")
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # no thread can be started
        # At interpreter exit Python 3.12 starts no threads of its own, but the system still does.
        if "shutdown" not in str(error):
            raise OSError(errno.EAGAIN, str(error)) from None
    finally:
        go.set()
        for thread in started:
            join_thread(thread)  # until the system does not count it any more
        for fd in pipes:
            os.close(fd)


def _drop(sock: zmq.Socket[bytes], monitor: Any, linger: int) -> None:
    """Close a socket and its monitor, with `linger` in milliseconds."""
    if monitor is not None:
        sock.disable_monitor()
        monitor.close(0)
    sock.close(linger)


def _fault(error: zmq.ZMQError) -> OSError:
    return OSError(error.errno, str(error.strerror))
