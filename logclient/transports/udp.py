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
from ipaddress import ip_address
from typing import Any

from logclient._ext.queue import socket_recv, socket_send
from logclient.config.hosts import host_port
from logclient.delivery.attempt import Attempt
from logclient.delivery.contract import Transport
from logclient.standard import open, os, time
from logclient.transports.addresses import Lookup, first_address
from logclient.transports.tcp_link import Endpoint, OwnSocket, TcpLink, make_socket

_RUN = struct.Struct("<II")  # of a run: its bytes and its segment
_IP_MTU, _IPV6_MTU = 14, 24
_LARGEST = 65_535

# Of sock_diag.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_SKMEMINFO = 7  # INET_DIAG_SKMEMINFO
_HEAD = struct.Struct("=IHHII")  # of a netlink message: size, type, flags, number, port
_ASK = struct.Struct("=BBBBI")  # family, protocol, requested data, padding, states
_IDENTITY = struct.Struct("!HH16s16s4x8s")  # ports, addresses, any interface, cookie
_MEMORY = struct.Struct("=9I")  # held, most, four of sending, two more, dropped
_MESSAGE = 72  # struct inet_diag_msg
_TABLES = ("/proc/net/udp", "/proc/net/udp6")
_DEFAULT = "/proc/sys/net/core/rmem_default"

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
        self._queue: ReceiverQueue | None = None
        self._look_at = time.monotonic() + LOOK_AGAIN

    def has_moved(self) -> bool:
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
                size, segment = _RUN.unpack_from(data, at)
                at += _RUN.size
                for begin in range(at, at + size, segment):
                    part = data[begin : min(begin + segment, at + size)]
                    socket_send(self._socket.fileno(), self.identity, part, 0)
                at += size
        return True

    def receiver(self) -> tuple[int, int, int] | None:
        if self._queue is None:
            self._queue = ReceiverQueue(self._socket)
        return self._queue.look()

    def close(self, flush_for: float = 0.0) -> None:
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
                return _RUN.pack(len(data), len(data)) + data


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


class ReceiverQueue:
    """The receive queue of the socket that a connected one sends to, on the same machine.

    Only Linux shows it. ``sock_diag`` answers for one socket, with the size of its queue. Where that is
    missing, ``/proc/net/udp`` lists all sockets, and the size is taken to be the system's default.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._netlink: OwnSocket | None = None
        self._request = b""
        self._matches: set[str] = set()  # addresses as the tables write them
        self._most = 0
        own, peer = sock.getsockname(), sock.getpeername()
        address = ip_address(peer[0].partition("%")[0])
        if not address.is_loopback and own[0] != peer[0]:
            return  # on another machine
        self._request = _request(sock.family, own, peer)
        try:
            self._netlink = netlink = make_socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            netlink.setblocking(False)
        except (AttributeError, OSError):  # not on this system
            self._netlink = None
        if self._ask() is None:
            self._use_tables(address.packed, peer[1])

    def look(self) -> tuple[int, int, int] | None:
        """Return (bytes in the queue, its size, datagrams that found no room); None: unknown."""
        if self._matches:
            return self._listed()
        return self._ask()

    def close(self) -> None:
        netlink, self._netlink = self._netlink, None
        if netlink is not None:
            netlink.close()

    def _ask(self) -> tuple[int, int, int] | None:
        netlink = self._netlink
        if netlink is None:
            return None
        try:
            socket_send(netlink.fileno(), netlink.identity, self._request, 0)
            data = socket_recv(netlink.fileno(), netlink.identity, 4096)
        except OSError:
            return None
        size, kind = _HEAD.unpack_from(data)[:2] if len(data) >= _HEAD.size else (0, 0)
        at = _HEAD.size + _MESSAGE
        while kind == _SOCK_DIAG_BY_FAMILY and at + 4 <= min(size, len(data)):
            length, name = struct.unpack_from("=HH", data, at)
            if name == _SKMEMINFO and at + 4 + _MEMORY.size <= len(data):
                found = _MEMORY.unpack_from(data, at + 4)
                return found[0], found[1], found[8]
            at += max(4, (length + 3) & ~3)
        return None

    def _use_tables(self, address: bytes, port: int) -> None:
        self.close()
        try:
            with open(_DEFAULT, "rb") as file:
                self._most = int(file.read())
        except (OSError, ValueError):
            return
        any_, mapped = bytes(len(address)), bytes(10) + b"\xff\xff"
        forms = [address, any_]
        if len(address) == 4:
            forms += [mapped + address, bytes(16)]
        for form in forms:  # as words of four bytes in the byte order of this machine
            words = struct.unpack(f"={len(form) // 4}I", form)
            self._matches.add(f"{''.join(f'{word:08X}' for word in words)}:{port:04X}")

    def _listed(self) -> tuple[int, int, int] | None:
        held = dropped = sockets = 0
        for table in _TABLES:
            try:
                with open(table) as file:
                    lines = file.read().splitlines()[1:]
            except OSError:
                continue
            for fields in map(str.split, lines):
                if fields[1] in self._matches and fields[2].endswith(":0000"):
                    held += int(fields[4].partition(":")[2], 16)
                    dropped += int(fields[-1])
                    sockets += 1
        return (held, self._most, dropped) if sockets else None


def _request(family: int, own: tuple[str, int], peer: tuple[str, int]) -> bytes:
    def packed(address: str) -> bytes:
        return socket.inet_pton(family, address.partition("%")[0])

    # The sending end comes first: "swapped for historical reasons" (net/ipv4/udp_diag.c).
    identity = _IDENTITY.pack(own[1], peer[1], packed(own[0]), packed(peer[0]), b"\xff" * 8)
    asked = _ASK.pack(family, socket.IPPROTO_UDP, 1 << (_SKMEMINFO - 1), 0, 0xFFFF_FFFF) + identity
    return _HEAD.pack(_HEAD.size + len(asked), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + asked
