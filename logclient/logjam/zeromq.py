"""ZeroMQ for the device and the consumer: sending and receiving, CURVE, the connections behind a socket."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from logclient.config import host_port, is_key
from logclient.errors import ConfigError, MissingExtra
from logclient.transports.tcp import COUNTS_RECEIVED, bytes_received

__all__ = [
    "COUNTS_RECEIVED", "LOOK_EVERY", "UNREAD_MAX", "Connections", "Curve", "EndlessMessages", "address_of",
    "load", "receive", "send", "shut_down",
]  # fmt: skip

# As plain numbers: pyzmq's are enums, and joining two of them costs more than sending a frame.
_NOBLOCK, _SNDMORE = 1, 2

_WATCH_FROM = 1 << 20  # bytes

#: Frames of a message that are kept: one more than a valid message has, and a routing id.
FRAMES_MAX = 7
#: Seconds between two looks at the bytes that connections have received.
LOOK_EVERY = 0.1
#: Bytes that a connection may bring in that time without a message, in addition to its longest message.
UNREAD_MAX = 1 << 20


def load() -> Any:
    """Return the module ``zmq``, or raise MissingExtra."""
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra("zmq", "logjam") from error
    return zmq


def receive(zmq: Any, sock: Any) -> tuple[list[bytes], Any, int] | None:
    """Receive a message without waiting: its frames, the first one as pyzmq's object, and all its bytes.

    Of a message with very many frames only the first ones are kept.
    """
    try:
        first = sock.recv(zmq.NOBLOCK, False)
    except zmq.Again:
        return None
    parts = [first.bytes]
    size = len(parts[0])
    more = first.more
    while more:
        frame = sock.recv(0, False)  # the rest of a message is there with its first frame
        if len(parts) < FRAMES_MAX:
            parts.append(frame.bytes)
        size += len(frame)
        more = frame.more
    return parts, first, size


def send(sock: Any, parts: list[bytes]) -> None:
    """Send a message as a whole, without waiting; a zmq.ZMQError says that it cannot be sent now."""
    for part in parts[:-1]:
        sock.send(part, _NOBLOCK | _SNDMORE)
    sock.send(parts[-1], _NOBLOCK)


def address_of(fd: int) -> str:
    """Return the peer's address of one of libzmq's connections, "" when the connection has ended."""
    try:
        with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as sock:
            found = sock.getpeername()
            # The descriptor may be another socket's by now, of a kind that has no address.
            return host_port(*found[:2]) if isinstance(found, tuple) else ""
    except (OSError, ValueError):
        return ""


def shut_down(fd: int, address: str) -> None:
    """End one of libzmq's connections, unless its descriptor belongs to another one by now."""
    if fd < 0 or not address or address_of(fd) != address:
        return
    try:
        with socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Curve:
    """CURVE on listening sockets: encrypted, and open to clients with the right keys only; None: with any."""

    def __init__(self, secret: str, clients: Collection[str] | None) -> None:
        from logclient.transports.zmq import curve_keys

        self.public, self._secret = curve_keys(secret)
        self._clients = None if clients is None else frozenset(clients)
        for key in self._clients or ():
            if not is_key(key):
                raise ConfigError("curve_clients: each must be a key of 40 characters of Z85")

    def set_up(self, sock: Any) -> None:
        """Encrypt a socket. It must not be bound yet."""
        sock.CURVE_SERVER, sock.CURVE_SECRETKEY = True, self._secret.encode()

    def authenticator(self, zmq: Any, context: Any) -> Any:
        """Return the socket over which libzmq asks about clients (RFC 27, ZAP), or None to accept all.

        It must exist before the first client connects.
        """
        if self._clients is None:
            return None
        sock = context.socket(zmq.REP)
        sock.setsockopt(zmq.LINGER, 0)
        sock.bind("inproc://zeromq.zap.01")
        return sock

    def answer(self, zmq: Any, sock: Any) -> bool:
        """Answer one question on the authenticator's socket; return whether the client was accepted."""
        from zmq.utils import z85

        version, number, _, _, _, mechanism, *keys = sock.recv_multipart()
        known = mechanism == b"CURVE" and len(keys) == 1 and len(keys[0]) == 32
        welcome = known and z85.encode(keys[0]).decode() in (self._clients or ())
        status = (b"200", b"OK") if welcome else (b"400", b"this key is not let in")
        sock.send_multipart([version, number, *status, b"", b""])
        return welcome


class EndlessMessages:
    """Find connections that bring many bytes and no message.

    libzmq holds the frames of a message until it is whole, however many there are, and grows. The kernel
    counts the bytes of each connection (Linux: TCP_INFO). One that has brought a MiB is watched, and is to be
    cut when it brings `most` more without a message. Only then the source of messages has to be looked up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._before: dict[int, int] = {}
        self.watched: dict[int, int] = {}  #: descriptor -> bytes that it had received when watching began

    def message_from(self, fd: int) -> None:
        """Note a whole message from a connection; -1: from an unknown one."""
        if fd < 0:
            self.watched.clear()
        elif fd in self.watched:
            del self.watched[fd]
            self._before[fd] = bytes_received(fd)

    def forget(self, fd: int) -> None:
        """Forget a descriptor, which now belongs to another connection or to none."""
        self.watched.pop(fd, None)
        self._before.pop(fd, None)

    def look(self, open_now: Collection[int]) -> list[int]:
        """Return the descriptors of the connections that are to be cut."""
        for fd in [*self.watched]:
            if fd not in open_now:
                self.forget(fd)
        endless = []
        for fd in open_now:
            now = bytes_received(fd)
            if fd not in self.watched:
                if now - self._before.get(fd, 0) > _WATCH_FROM:
                    self.watched[fd] = now
            elif now - self.watched[fd] > self._most:
                endless.append(fd)
                self.forget(fd)
        return endless


class Connections:
    """The open connections behind listening sockets, as libzmq's monitors report them."""

    def __init__(self, max_bytes: int, idle: float) -> None:
        self.open: dict[int, str] = {}  # descriptor -> the peer's address
        self.endless = EndlessMessages(max_bytes + UNREAD_MAX)
        self._idle = idle
        self._traffic: dict[int, tuple[int, float]] = {}  # of producers: bytes brought, and since when

    def __len__(self) -> int:
        return len(self.open)

    def accepted(self, fd: int, *, producer: bool, now: float) -> str:
        """Add a connection, and return its peer's address."""
        address = self.open[fd] = address_of(fd)
        self.endless.forget(fd)
        self._traffic.pop(fd, None)
        if producer and COUNTS_RECEIVED:
            self._traffic[fd] = (0, now)
        return address

    def ended(self, fd: int) -> None:
        """Remove a connection."""
        self.open.pop(fd, None)
        self._traffic.pop(fd, None)

    def clear(self) -> None:
        """Remove all connections."""
        self.open.clear()
        self._traffic.clear()

    def shut_down(self, fd: int) -> None:
        """End a connection."""
        shut_down(fd, self.open[fd])

    def shut_down_all(self) -> None:
        """End all connections."""
        for fd in self.open:
            self.shut_down(fd)

    def shut_down_endless(self) -> int:
        """End the connections with a message without end, and return their number."""
        found = self.endless.look(self.open)
        for fd in found:
            self.shut_down(fd)
        return len(found)

    def shut_down_idle(self, now: float) -> int:
        """End the producers' connections that were idle for too long, and return their number."""
        if not self._idle:
            return 0
        ended = 0
        for fd, (before, since) in list(self._traffic.items()):
            bytes_now = bytes_received(fd)
            if bytes_now != before:
                self._traffic[fd] = (bytes_now, now)
            elif now - since >= self._idle:
                ended += 1
                del self._traffic[fd]
                self.shut_down(fd)
        return ended
