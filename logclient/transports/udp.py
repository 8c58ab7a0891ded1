"""UDP: moves runs of datagrams over a connected socket.

``connect`` sends nothing. It fixes the peer, so that the kernel reports ICMP errors. A refused port ends the
link: an ICMP error reports that no server listens there, and the last datagrams are lost.

Bytes are runs of datagrams in the form of ``delivery.contract.Wire``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from logclient._ext.constants import UDP_METHODS
from logclient.delivery.attempt import Attempt
from logclient.delivery.contract import Transport
from logclient.errors import ConfigError
from logclient.threads import original
from logclient.transports.tcp import TcpLink, resolve

__all__ = ["Udp", "UdpLink"]

Endpoint = tuple[str, int]

_HEAD = struct.Struct("<II")  # of a run: its bytes and its segment
_SOL_UDP, _UDP_SEGMENT = 17, 103
_IP_MTU, _IPV6_MTU = 14, 24
_LARGEST = 65_535
_NO_GSO = {errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.EMSGSIZE}
_NOT_NOW = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}


class UdpLink(TcpLink):
    """One connected datagram socket."""

    hint = ""
    drains_on_close = True

    def __init__(self, sock: socket.socket, peer: str, send_method: str) -> None:
        super().__init__(sock, peer)
        self.send_method = send_method
        self.mtu, self.headers = _path_mtu(sock)
        self._runs: list[tuple[memoryview, int]] = []  # datagrams that were not taken, and their segment
        self._first_size = 0  # size of the first of them, in bytes
        self._queue: Any = None

    @property
    def unsent(self) -> int:
        """Bytes of the runs that the kernel has not taken completely."""
        taken = self._first_size - len(self._runs[0][0]) if self._runs else 0
        return taken + sum(_HEAD.size + len(data) for data, _ in self._runs)

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Give these runs to the kernel; return whether it took all of them and of the calls before."""
        for buffer in buffers:
            data = memoryview(bytes(buffer))
            at = 0
            while at < len(data):
                size, segment = _HEAD.unpack_from(data, at)
                at += _HEAD.size + size
                self._runs.append((data[at - size : at], segment))
        return self.flush()

    def receiver(self) -> tuple[int, int, int] | None:
        """Look at the receive queue of the server's socket, where that is on this machine: see `Link`."""
        if self._queue is None:
            from logclient.transports.udp_queue import ReceiverQueue

            self._queue = ReceiverQueue(self._socket)
        found: tuple[int, int, int] | None = self._queue.look()
        return found

    def close(self, linger: float = 0.0) -> None:
        """Close the socket and the view of the receive queue."""
        super().close(linger)
        self._close_queue()

    def abandon(self) -> None:
        """In a forked child, close the descriptors."""
        super().abandon()
        self._close_queue()

    def _close_queue(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def flush(self) -> bool:
        """Give the kernel the rest of earlier ``send`` calls; return whether nothing is left."""
        while self._runs:
            data, segment = self._runs[0]
            self._first_size = max(self._first_size, len(data))
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
                self._first_size = 0
        return True

    def _give(self, data: memoryview, segment: int) -> int:
        if self.send_method == "gso" and len(data) > segment:
            try:
                control = (_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", segment))
                return self._socket.sendmsg([data], [control])
            except OSError as error:
                if error.errno not in _NO_GSO:
                    raise
                self.send_method = "send"  # not on this system or device, or not at this size
        return self._socket.send(data[:segment])

    def receive(self) -> bytes | None:
        """Return a datagram behind its head, or None when there is none."""
        while True:
            try:
                data = self._socket.recv(_LARGEST)
            except (BlockingIOError, InterruptedError):
                return None
            if data:
                return _HEAD.pack(len(data), len(data)) + data


class Udp(Transport):
    """Makes connected UDP sockets.

    Args:
        send_method: one of `UDP_METHODS`. Where the system refuses it, a simpler one is used.

    Raises:
        ConfigError: there is no such method.
    """

    def __init__(self, send_method: str = "gso") -> None:
        if send_method not in UDP_METHODS:
            raise ConfigError(f"send_method: must be one of {', '.join(UDP_METHODS)}, got {send_method!r}")
        self.send_method = send_method

    @classmethod
    def from_config(cls, config: Any) -> Udp:
        """Make a transport from a ``logclient.config.Config``."""
        return cls()

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> UdpLink:
        """Make a socket whose peer is `endpoint`. Nothing is sent.

        Raises:
            OSError: the name is unknown, or there is no route.
        """
        host, port = endpoint
        failure: OSError | None = None
        for family, kind, number, _, address in resolve(host, port, socket.SOCK_DGRAM)[1]:
            sock: socket.socket = original(socket, "socket")(family, kind, number)
            try:
                sock.setblocking(False)
                sock.connect(address)
                if sock.getsockname() == sock.getpeername():
                    # The system gave this socket the very port it connects to: no server listens there.
                    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                return UdpLink(sock, f"{host}:{port}", self.send_method)
            except OSError as error:
                sock.close()
                failure = error
        raise failure or OSError(f"{host} has no address")

    def load_pump(self) -> Callable[..., Any]:
        """Import the factory of the compiled pump; see `Transport`."""
        from logclient._ext.pump import UdpPump

        return UdpPump


def _path_mtu(sock: socket.socket) -> tuple[int, int]:
    """Return the bytes of an IP packet on the path to the peer, 0 if unknown, and of its headers."""
    six = sock.family == socket.AF_INET6
    try:
        mtu = sock.getsockopt(41 if six else 0, _IPV6_MTU if six else _IP_MTU)
    except OSError:  # not on this system
        mtu = 0
    return max(0, mtu), 48 if six else 28
