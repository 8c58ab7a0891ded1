"""UDP: a connected socket, runs of datagrams into it, what comes back out of it.

``connect`` sends nothing: it fixes the peer, so that the kernel tells what ICMP says. A refusal ends the
link: somebody was there to say that nobody listens, and what was sent last is gone.

Bytes are runs of datagrams in the form of ``delivery.contract.Wire``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from logclient.delivery.contract import Core, Pump, PumpLimits, Transport
from logclient.errors import ConfigError
from logclient.threads import original
from logclient.transports.attempt import Attempt
from logclient.transports.tcp import TcpLink, resolve

if TYPE_CHECKING:
    from typing import Unpack

    from logclient._ext.flight import Flight

__all__ = ["WAYS", "Udp", "UdpLink"]

Endpoint = tuple[str, int]

WAYS = ("send", "mmsg", "gso")
"""How datagrams are given to the kernel: one, many, or whole runs (UDP_SEGMENT) to a call. Python's own
sender has no ``mmsg``."""

_HEAD = struct.Struct("<II")  # of a run: its bytes, its segment
_SOL_UDP, _UDP_SEGMENT = 17, 103
_IP_MTU, _IPV6_MTU = 14, 24
_LARGEST = 65_535
_NO_GSO = {errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EMSGSIZE}
_NOT_NOW = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}


class UdpLink(TcpLink):
    """One connected datagram socket."""

    hint = ""
    drains_on_close = True

    def __init__(self, sock: socket.socket, peer: str, way: str) -> None:
        super().__init__(sock, peer)
        self.way = way
        self.mtu, self.headers = _path(sock)
        """Bytes of an IP packet that the path carries, as far as the system knows; 0: it does not. And those
        of its headers."""
        self._runs: list[tuple[memoryview, int]] = []  # datagrams not taken yet, their segment
        self._first = 0  # bytes that the first of them had
        self._queue: Any = None

    @property
    def unsent(self) -> int:
        """Bytes of runs that the kernel has not taken whole."""
        taken = self._first - len(self._runs[0][0]) if self._runs else 0
        return taken + sum(_HEAD.size + len(data) for data, _ in self._runs)

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Give these runs to the kernel; whether it took all of them, and all before."""
        for buffer in buffers:
            data = memoryview(bytes(buffer))
            at = 0
            while at < len(data):
                size, segment = _HEAD.unpack_from(data, at)
                at += _HEAD.size + size
                self._runs.append((data[at - size : at], segment))
        return self.flush()

    def receiver(self) -> tuple[int, int, int] | None:
        """Of the server's socket, where it is on this machine: (bytes in its receive queue, bytes that it
        holds, datagrams that found no room there). None: nobody can say."""
        if self._queue is None:
            from logclient.transports.udp_queue import ReceiverQueue

            self._queue = ReceiverQueue(self._socket)
        found: tuple[int, int, int] | None = self._queue.look()
        return found

    def close(self, linger: float = 0.0) -> None:
        super().close(linger)
        self._forget_queue()

    def abandon(self) -> None:
        super().abandon()
        self._forget_queue()

    def _forget_queue(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def flush(self) -> bool:
        while self._runs:
            data, segment = self._runs[0]
            self._first = max(self._first, len(data))
            try:
                taken = self._give(data, segment)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in _NOT_NOW:
                    return False
                raise
            if taken < len(data):
                self._runs[0] = (data[taken:], segment)
            else:
                self._runs.pop(0)
                self._first = 0
        return True

    def _give(self, data: memoryview, segment: int) -> int:
        if self.way == "gso" and len(data) > segment:
            try:
                control = (_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", segment))
                return self._socket.sendmsg([data], [control])
            except OSError as error:
                if error.errno not in _NO_GSO:
                    raise
                self.way = "send"  # this system, this device or this size
        return self._socket.send(data[:segment])

    def receive(self) -> bytes | None:
        """A datagram, behind its head; None when there is none."""
        while True:
            try:
                data = self._socket.recv(_LARGEST)
            except (BlockingIOError, InterruptedError):
                return None
            if data:
                return _HEAD.pack(len(data), len(data)) + data


class Udp(Transport):
    """Makes sockets, one endpoint at a time.

    Args:
        way: see `WAYS`; the first that works from there on is taken.
    """

    def __init__(self, way: str = "gso") -> None:
        if way not in WAYS:
            raise ConfigError(f"way: {way!r} is none of {', '.join(WAYS)}")
        self.way = way

    @classmethod
    def from_config(cls, config: Any) -> Udp:
        return cls()

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> UdpLink:
        """A socket whose peer is `endpoint`; nothing is sent.

        Raises:
            OSError: the name is not known, or there is no way there.
        """
        host, port = endpoint
        failure: OSError | None = None
        for family, kind, number, _, address in resolve(host, port, socket.SOCK_DGRAM)[1]:
            sock: socket.socket = original(socket, "socket")(family, kind, number)
            try:
                sock.setblocking(False)
                sock.connect(address)
                if sock.getsockname() == sock.getpeername():
                    # Nobody listens on a port that the system gave to this very socket.
                    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                return UdpLink(sock, f"{host}:{port}", self.way)
            except OSError as error:
                sock.close()
                failure = error
        raise failure or OSError(f"{host} has no address")

    def pump(self, flight: Flight, core: Core, **limits: Unpack[PumpLimits]) -> Pump | None:
        """The compiled pump for this transport, or None where there is none."""
        if core.hot is None:
            return None
        try:
            from logclient._ext.udpsend import UdpPump
        except ImportError:
            return None
        return UdpPump(flight, core, **limits)


def _path(sock: socket.socket) -> tuple[int, int]:
    """(bytes of an IP packet, of them its headers') on the path to the peer; 0 bytes: not known."""
    six = sock.family == socket.AF_INET6
    try:
        mtu = sock.getsockopt(41 if six else 0, _IPV6_MTU if six else _IP_MTU)
    except OSError:  # not on this system
        mtu = 0
    return max(0, mtu), 48 if six else 28
