"""A UDP socket read in batches, and what the kernel tells of it."""

from __future__ import annotations

import socket
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from logclient.errors import ConnectFailed

__all__ = ["Batch", "Datagrams", "batch_of"]

Address = tuple[Any, ...]

_ROOM = 65536  # of a datagram at most
_ARENA = 4 << 20
_BATCH = 1024
_SO_MEMINFO = 55  # Linux; the socket module has no name for it
_MEMINFO = struct.Struct("=9I")
_DROPS = 8


class Batch(NamedTuple):
    """Datagrams one behind the other: ``data[offset:offset + length]``, each with where it came from."""

    data: memoryview
    offsets: array[int]
    lengths: array[int]
    sources: list[Any]

    def __len__(self) -> int:
        return len(self.offsets)

    def raw(self, row: int) -> memoryview:
        at = self.offsets[row]
        return self.data[at : at + self.lengths[row]]


def batch_of(datagrams: Sequence[bytes], sources: list[Any]) -> Batch:
    """A batch of separate ones."""
    lengths = array("q", map(len, datagrams))
    offsets, at = array("q"), 0
    for length in lengths:
        offsets.append(at)
        at += length
    return Batch(memoryview(b"".join(datagrams)), offsets, lengths, sources)


class Datagrams:
    """A bound socket that does not block.

    Args:
        receive_buffer: bytes the kernel is asked for; it gives what it may.

    Raises:
        ConnectFailed: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, receive_buffer: int = 0) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if receive_buffer:
                self._widen(receive_buffer)
            self.sock.bind((host, port))
        except OSError as error:
            self.sock.close()
            raise ConnectFailed(f"listen: {host} port {port}: {error.strerror or error}") from error
        except BaseException:
            self.sock.close()
            raise
        self.sock.setblocking(False)
        self.port: int = self.sock.getsockname()[1]
        self._arena = memoryview(bytearray(_ARENA))

    def _widen(self, size: int) -> None:
        force = getattr(socket, "SO_RCVBUFFORCE", 33 if sys.platform == "linux" else None)
        for option in (force, socket.SO_RCVBUF):  # the first is for the mighty
            if option is None:
                continue
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, option, size)
                return
            except OSError:
                continue

    @property
    def receive_buffer(self) -> int:
        """Bytes the kernel keeps for what is not read yet, its own needs included."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    @property
    def drops(self) -> int | None:
        """Datagrams that the kernel had no room for; None where it does not tell."""
        if sys.platform != "linux":
            return None
        try:
            found = self.sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        except OSError:
            return None
        return int(_MEMINFO.unpack(found)[_DROPS]) if len(found) == _MEMINFO.size else None

    def read(self) -> Batch | None:
        """What is there, up to a bound; None: nothing. The next call overwrites it."""
        arena, receive = self._arena, self.sock.recvfrom_into
        offsets, lengths, sources = array("q"), array("q"), []
        at, last = 0, len(arena) - _ROOM
        for _ in range(_BATCH):
            if at > last:
                break
            try:
                size, source = receive(arena[at : at + _ROOM])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # somebody to whom we replied is not there any more
                continue
            offsets.append(at)
            lengths.append(size)
            sources.append(source)
            at += size
        return Batch(arena, offsets, lengths, sources) if offsets else None

    def reply(self, data: bytes, source: Any) -> bool:
        """False: the kernel did not take it."""
        try:
            self.sock.sendto(data, source)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.sock.close()
