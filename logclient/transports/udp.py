"""UDP: moves runs of datagrams over a connected socket.

``connect`` sends nothing. It fixes the peer, so that the kernel reports ICMP errors. A refused port ends the
link: an ICMP error reports that no server listens there, and the last datagrams are lost.

Bytes are runs of datagrams in the form of ``lc_wire`` (``_ext/codec.pxd``).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from logclient._ext.queue import socket_recv, socket_send
from logclient.config.hosts import host_port
from logclient.delivery.attempt import Attempt
from logclient.delivery.contract import Transport
from logclient.standard import os, time
from logclient.transports.addresses import Lookup, first_address
from logclient.transports.tcp_link import Endpoint, TcpLink, make_socket
from logclient.transports.udp_queue import ReceiverQueue

_HEAD = struct.Struct("<II")  # of a run: its bytes and its segment
_IP_MTU, _IPV6_MTU = 14, 24
_LARGEST = 65_535

LOOK_AGAIN = 15.0
"""Seconds between two look-ups of the server's name while it is sent to."""


class UdpLink(TcpLink):
    """One connected datagram socket."""

    hint = ""
    drains_on_close = True
    send_method = "gso"
    """The first of `UDP_METHODS` that the pump tries."""
    address: Any
    lookup: Lookup

    def __init__(self, sock: socket.socket, peer: str) -> None:
        super().__init__(sock, peer)
        six = sock.family == socket.AF_INET6
        self.headers = 48 if six else 28
        try:
            self.mtu = max(0, sock.getsockopt(41 if six else 0, _IPV6_MTU if six else _IP_MTU))
        except OSError:
            pass  # not on this system
        self._queue: Any = None
        self._look_at = time.monotonic() + LOOK_AGAIN

    def has_moved(self) -> bool:
        """Return whether the server's name has other addresses by now: see `Link`."""
        now, found = time.monotonic(), self.lookup.addresses
        if found is not None and now >= self._look_at:
            self._look_at = now + LOOK_AGAIN
            self.lookup = Lookup(self.lookup.endpoint, socket.SOCK_DGRAM, lambda: None)
        return bool(found) and all(where[-1] != self.address for where in found or ())

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Give the datagrams of these runs to the kernel. Pumps do it themselves: this is for questions."""
        for buffer in buffers:
            data, at = memoryview(buffer), 0
            while at < len(data):
                size, segment = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                for begin in range(at, at + size, segment):
                    part = data[begin : min(begin + segment, at + size)]
                    socket_send(self._socket.fileno(), self.identity, part, 0)
                at += size
        return True

    def receiver(self) -> tuple[int, int, int] | None:
        """Look at the receive queue of the server's socket, where that is on this machine: see `Link`."""
        if self._queue is None:
            self._queue = ReceiverQueue(self._socket)
        found: tuple[int, int, int] | None = self._queue.look()
        return found

    def close(self, flush_for: float = 0.0) -> None:
        """Close the socket and the view of the receive queue."""
        super().close(flush_for)
        if self._queue is not None:
            self._queue.close()

    abandon = close

    def receive(self) -> bytes | None:
        """Return a datagram behind its head, or None when there is none."""
        while True:
            try:
                data = socket_recv(self._socket.fileno(), self.identity, _LARGEST)
            except (BlockingIOError, InterruptedError):
                return None
            if data:
                return _HEAD.pack(len(data), len(data)) + data


class Udp(Transport):
    """Makes connected UDP sockets."""

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> UdpLink:
        """Make a socket whose peer is `endpoint`. Nothing is sent."""

        def make(_: bytes, family: int, kind: int, number: int, address: Any) -> UdpLink:
            sock = make_socket(family, kind, number)
            try:
                sock.setblocking(False)
                sock.connect(address)
                if sock.getsockname() == sock.getpeername():
                    # The system gave this socket the very port it connects to: no server listens there.
                    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                link = UdpLink(sock, host_port(*endpoint))
                link.lookup, link.address = attempt.won, address
                return link
            except OSError:
                sock.close()
                raise

        return first_address(endpoint, socket.SOCK_DGRAM, make, attempt, 0.0)

    def load_pump(self) -> Callable[..., Any]:
        from logclient._ext.pump import UdpPump

        return UdpPump
