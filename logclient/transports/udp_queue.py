"""Looks at the receive queue of the socket that a connected UDP socket sends to, on the same machine.

Only Linux shows it. ``sock_diag`` answers for one socket, with the size of its queue. Where that is missing,
``/proc/net/udp`` lists all sockets, and the size is taken to be the system's default.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

from logclient._ext.queue import socket_recv, socket_send
from logclient.standard import open
from logclient.transports.tcp_link import OwnSocket, make_socket

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


class ReceiverQueue:
    """The receive queue of the socket that receives from a connected one."""

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
        """Close the descriptor to the kernel."""
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
