"""What the device and the consumer need of pyzmq."""

from __future__ import annotations

from typing import Any

from logclient.errors import MissingExtra

__all__ = ["load", "receive", "send"]

# As plain numbers: pyzmq's are enums, and to join two of them costs more than to send a frame.
_NOBLOCK, _SNDMORE = 1, 2

#: Frames of a message that are kept: one more than any that is taken, and a routing id.
FRAMES_MAX = 7


def load() -> Any:
    """The module ``zmq``."""
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra("zmq", "logjam") from error
    return zmq


def receive(zmq: Any, sock: Any) -> tuple[list[bytes], Any, int] | None:
    """The next message: its first frames, the first as pyzmq has it, the bytes of all; None: there is none.

    Who sends a message of a million frames gets no list of a million here.
    """
    try:
        first = sock.recv(zmq.NOBLOCK, False)
    except zmq.Again:
        return None
    parts = [first.bytes]
    size = len(parts[0])
    more = first.more
    while more:
        frame = sock.recv(0, False)  # a message is there as a whole, or not at all
        if len(parts) < FRAMES_MAX:
            parts.append(frame.bytes)
        size += len(frame)
        more = frame.more
    return parts, first, size


def send(sock: Any, parts: list[bytes]) -> None:
    """A message, as a whole or not at all.

    Raises:
        zmq.ZMQError: it cannot be taken now, or by nobody.
    """
    for part in parts[:-1]:
        sock.send(part, _NOBLOCK | _SNDMORE)
    sock.send(parts[-1], _NOBLOCK)
