"""What a Logjam device does with its sockets: sending, CURVE, and the connections behind them."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from logclient.config.hosts import host_port
from logclient.config.readers import is_key
from logclient.errors import ConfigError
from logclient.logjam.zeromq import COUNTS_RECEIVED, UNREAD_MAX, EndlessMessages
from logclient.transports.tcp_link import bytes_received

# As plain numbers: pyzmq's are enums, and joining two of them costs more than sending a frame.
_NOBLOCK, _SNDMORE = 1, 2


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

        self.public, self.secret = curve_keys(secret)
        self._clients = None if clients is None else frozenset(clients)
        for key in self._clients or ():
            if not is_key(key):
                raise ConfigError("curve_clients: each must be a key of 40 characters of Z85")

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

    def answer(self, sock: Any) -> bool:
        """Answer one question on the authenticator's socket; return whether the client was accepted."""
        from zmq.utils import z85

        version, number, _, _, _, mechanism, *keys = sock.recv_multipart()
        known = mechanism == b"CURVE" and len(keys) == 1 and len(keys[0]) == 32
        welcome = known and z85.encode(keys[0]).decode() in (self._clients or ())
        status = (b"200", b"OK") if welcome else (b"400", b"this key is not let in")
        sock.send_multipart([version, number, *status, b"", b""])
        return welcome


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
        self.open.pop(fd, None)
        self._traffic.pop(fd, None)

    def clear(self) -> None:
        self.open.clear()
        self._traffic.clear()

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
                shut_down(fd, self.open[fd])
        return ended
