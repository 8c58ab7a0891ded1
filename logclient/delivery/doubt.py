"""Estimate the losses of connections without acknowledgements that broke."""

from __future__ import annotations

from collections import deque

__all__ = ["KERNEL", "LATELY", "Doubt"]

KERNEL = 4 << 20
"""Bytes that the kernel may hold for one connection: the largest send buffer of Linux by default."""
LATELY = 1.0
"""Seconds within which a peer that reads has read everything."""

_EVERY = 0.05  # seconds between two samples that are kept


class Doubt:
    """Counts the events of connections that broke, and estimates how many of them never arrived.

    The estimate for one connection is the least of three numbers: the events that were handed over it; those
    of the last second in which any were, because a live peer has read the others; and those that
    transport and kernel can hold. The second number does not count when events still waited for the
    transport: then the peer has not read for a while, and both are full.

    The estimate is too low where the peer dies with more in its own memory, or where a network loses a
    trickle of events for longer than a second. It is too high where the peer had read up to the break.
    """

    def __init__(self) -> None:
        self.events = 0  # of all connections that broke; any number of them may be missing
        self.estimate = 0
        self._looks: deque[tuple[float, int]] = deque([(0.0, 0)])  # time, events handed so far
        self._before = self._bytes = 0

    def connected(self, now: float, handed: int, size: int) -> None:
        """Begin a connection; `handed` events and `size` bytes went over those before it."""
        self._before, self._bytes = handed, size
        self._looks.clear()
        self._looks.append((now, handed))

    def look(self, now: float, handed: int) -> None:
        """Note how many events were handed over by now. Called in every turn."""
        since, before = self._looks[-1]
        if handed != before and now - since >= _EVERY:
            self._looks.append((now, handed))
            self._forget(now)

    def _forget(self, now: float) -> None:
        while len(self._looks) > 1 and self._looks[1][0] <= now - LATELY:
            self._looks.popleft()

    def broke(self, now: float, handed: int, size: int, holds: int, waited: bool) -> None:
        """Count the events of a connection that broke.

        Args:
            now: monotonic seconds.
            handed: events, so far.
            size: bytes, so far.
            holds: events that the transport may hold, besides the kernel's buffers.
            waited: whether events waited for the transport to take them.
        """
        events = handed - self._before
        if events <= 0:
            return
        if handed != self._looks[-1][1]:
            self._forget(now)
        lately = events if waited else handed - self._looks[0][1]
        mean = max(1, (size - self._bytes) // events)
        self.events += events
        self.estimate += min(events, lately, holds + KERNEL // mean)
