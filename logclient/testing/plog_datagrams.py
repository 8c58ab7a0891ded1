"""A UDP socket that is read in batches, and the kernel's counters of it."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import sub
from typing import Any, NamedTuple

from logclient._ext.udpreceive import Receiver
from logclient.testing.loop import bound_socket
from logclient.threads import Thread

BESIDE = sys.platform == "linux"  # whether a thread without the GIL receives, beside the collector's
_ROOM = 65536  # bytes of a datagram, at most
_ADDRESS = 28  # bytes of a source
_BATCH, _SIZE = 1024, 4 << 20  # datagrams and bytes of a batch
_SO_MEMINFO = 55  # Linux; the socket module has no name for it
_MEMINFO = struct.Struct("=9I")
_DROPS = 8


class Batch(NamedTuple):
    """Datagrams one after the other, ``data[offset:offset + length]``, each with its sender's address."""

    data: memoryview
    offsets: array[int]
    lengths: array[int]
    sources: list[Any]
    times: array[int] | None = None  #: when each came, microseconds since 1970; None: now

    def __len__(self) -> int:
        return len(self.offsets)

    def raw(self, row: int) -> memoryview:
        at = self.offsets[row]
        return self.data[at : at + self.lengths[row]]


def batch_of(datagrams: Sequence[bytes], sources: list[Any]) -> Batch:
    lengths = array("q", map(len, datagrams))
    offsets = array("q", [0, *accumulate(lengths)])[:-1]
    return Batch(memoryview(b"".join(datagrams)), offsets, lengths, sources)


class Datagrams:
    """A bound UDP socket that is read without waiting.

    On Linux a thread empties the socket into memory, up to 16 MiB, so that no datagram is lost while Python
    is busy. Elsewhere it is read when `read` is called. The kernel may give less than `receive_buffer` bytes.
    """

    def __init__(self, host: str, port: int, receive_buffer: int = 0) -> None:
        self.sock = bound_socket(socket.SOCK_DGRAM, host, port)
        forced = [33] if sys.platform == "linux" else []  # SO_RCVBUFFORCE, which needs a privilege
        for option in (*forced, socket.SO_RCVBUF) if receive_buffer else ():
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, option, receive_buffer)
                break
            except OSError:
                continue
        self.port: int = self.sock.getsockname()[1]
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._waiting: Iterator[Batch] = iter(())
        self._next: Batch | None = None
        if BESIDE:
            self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._receiver = Receiver(self.sock.fileno(), self._ready, self._wake)
            self._thread = Thread(target=self._receive, name="logclient-receiver", daemon=True)
            self._thread.start()

    def _receive(self) -> None:
        try:
            self._receiver.run()
        except BaseException as error:
            self.error = error

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to ``read``."""
        return self._ready if self._thread is not None else self.sock.fileno()

    @property
    def drops(self) -> int | None:
        """Datagrams that the kernel had no room for; None where that is unknown."""
        if sys.platform != "linux":
            return None
        try:
            found = self.sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            return int(_MEMINFO.unpack(found)[_DROPS])
        except (OSError, struct.error):  # an old kernel gives less
            return None

    @property
    def more(self) -> bool:
        """True when `read` has something although the descriptor may not be readable."""
        if self._next is None:
            self._next = next(self._waiting, None)
        return self._next is not None

    def read(self) -> Batch | None:
        """Return a bounded batch of received datagrams, valid until the next call; None: there are none."""
        if self._thread is None:
            return self._read()
        if not self.more:
            try:
                os.eventfd_read(self._ready)
            except BlockingIOError:
                pass
            taken = self._receiver.take()
            if taken is None:
                if self.error is not None:
                    raise self.error
                return None
            self._waiting = self._batches(*taken)
        batch, self._next = self._next or next(self._waiting), None
        return batch

    @staticmethod
    def _batches(data: bytes, ends: bytes, times: bytes, sources: bytes) -> Iterator[Batch]:
        view, stops, came = memoryview(data), array("q", ends), array("q", times)
        names = [_name(sources[at : at + _ADDRESS]) for at in range(0, len(sources), _ADDRESS)]
        begin = 0
        for first in range(0, len(stops), _BATCH):
            stop = stops[first : first + _BATCH]
            offsets = array("q", [begin]) + stop[:-1]
            lengths = array("q", map(sub, stop, offsets))
            behind = first + _BATCH
            yield Batch(view, offsets, lengths, names[first:behind], came[first:behind])
            begin = stop[-1]

    def _read(self) -> Batch | None:
        datagrams: list[bytes] = []
        sources, size = [], 0
        while len(datagrams) < _BATCH and size < _SIZE:
            try:
                data, source = self.sock.recvfrom(_ROOM)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # a receiver of a reply has gone
                continue
            datagrams.append(data)
            sources.append(source)
            size += len(data)
        return batch_of(datagrams, sources) if datagrams else None

    def finish(self) -> None:
        """Stop receiving. Earlier datagrams can still be read."""
        if self._thread is not None:
            self._receiver.stop()
            self._thread.join()

    def reply(self, data: bytes, source: Any) -> bool:
        """Send a datagram; return False when the kernel did not take it."""
        try:
            self.sock.sendto(data, source)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.finish()
        if self._thread is not None:
            os.close(self._ready)
            os.close(self._wake)
        self.sock.close()


@lru_cache(10_000)
def _name(raw: bytes) -> Any:
    """Return an address of the kernel's as the socket module has it."""
    family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
    if family != socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
    scope = int.from_bytes(raw[24:28], sys.byteorder)
    return socket.inet_ntop(socket.AF_INET6, raw[8:24]), port, int.from_bytes(raw[4:8], "big"), scope
