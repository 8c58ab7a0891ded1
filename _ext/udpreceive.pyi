"""Receives datagrams beside Python: a thread without the GIL empties the socket into memory. Linux alone."""

from typing import final

@final
class Receiver:
    """A socket's datagrams, in memory until they are taken.

    Args:
        fd: of a bound UDP socket; it stays the caller's, as do the others.
        told: an eventfd that is written to when there is something to take.
        wake: an eventfd for `stop`.
        capacity: bytes that may wait, 64 for each datagram beside its own; beyond it they are left to the
            kernel. As much again may be with whoever takes them.

    Raises:
        ValueError: a capacity below that of one call, some 4 MiB.
    """

    def __init__(self, fd: int, told: int, wake: int, *, capacity: int = 16777216) -> None: ...
    def run(self) -> None:
        """Receive until `stop`, and then what is there still; in a thread of its own, without the GIL.

        Raises:
            OSError: the socket is broken, or memory is out.
        """
    def stop(self) -> None:
        """From any thread."""
    def take(self) -> tuple[bytes, bytes, bytes, list[tuple[bytes, int]]] | None:
        """What came since the last call: the datagrams one behind the other; int64 each, where each ends and
        when it came, in microseconds since 1970; whose they are: 28 bytes of a sockaddr, and how many in a
        row. None: nothing.
        """
