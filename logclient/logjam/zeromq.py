"""ZeroMQ for the consumer and the device: receiving, and connections that bring messages without an end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from logclient.errors import MissingExtra
from logclient.transports.tcp_link import COUNTS_RECEIVED as COUNTS_RECEIVED
from logclient.transports.tcp_link import bytes_received

_WATCH_FROM = 1 << 20  # bytes

#: Frames of a message that are kept: one more than a valid message has, and a routing id.
FRAMES_MAX = 7
#: Seconds between two looks at the bytes that connections have received.
LOOK_EVERY = 0.1
#: Bytes that a connection may bring in that time without a message, in addition to its longest message.
UNREAD_MAX = 1 << 20


def load() -> Any:
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
