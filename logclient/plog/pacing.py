"""The pace of datagrams, adapted to the receiver. No socket, no clock.

``ByQueue`` reads the receive queue of the server's socket, which needs the same machine. Between two looks it
allows only what fits into the queue, so that nothing is lost even if the server reads nothing. ``ByStat``
asks the server how many messages arrived (STAT): it speeds up a bit while all arrive, and halves the pace
when some do not. ``slow_start`` is for a receiver whose state is unknown: it may have just started.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """What the queue may be charged until the next look, what it holds, and the seconds until then."""

    room: float
    most: float
    look: float


class ByQueue:
    """Allows no more between two looks than the receiver's queue has room for.

    The kernel charges a queue for allocated memory. The codec knows the most that it may charge for a
    datagram.
    """

    _ACTIVE = 0.001
    _IDLE = 0.1
    _MIN_SHARE = 1 / 8

    def __init__(self) -> None:
        self._share = 1.0
        self._drops: int | None = None
        self._idle = self._ACTIVE

    def look(self, held: int, most: int, drops: int, used: float) -> Grant:
        """Compute the allowance from the queue's content, size and drops, and the bytes `used` meanwhile."""
        if self._drops is not None and drops > self._drops:
            # Others use the queue too, or it holds less than we think.
            self._share = max(self._MIN_SHARE, self._share / 2)
        else:
            self._share = min(1.0, self._share * 1.001)
        self._drops = drops
        self._idle = self._ACTIVE if used or held else min(self._idle * 2, self._IDLE)
        # Datagrams sent since the last look may not have reached the queue yet.
        return Grant((most - held - used) * self._share, most * self._share, self._idle)


class ByStat:
    """Additive increase, multiplicative decrease, from `base` packets per second and never below a tenth."""

    def __init__(self, base: float) -> None:
        self.base = base
        self.rate = base
        self._lost = 0
        self._packets = 0
        self._at: float | None = None  # of the last answer

    def answered(self, now: float, lost: int | None, packets: int) -> None:
        """Adapt the rate to an answer: `lost` messages since the start (None: unknown), and our `packets`."""
        used = packets - self._packets
        if lost is None:
            self.rate = min(self.rate, self.base)
        elif lost > self._lost:
            self.unanswered()
        elif self._at is not None and used >= 0.7 * self.rate * (now - self._at):
            self.rate += self.base / 2
        self._lost = lost or 0
        self._packets, self._at = packets, now

    def unanswered(self) -> None:
        """Halve the rate: with a question or answer, other datagrams may be lost too."""
        self.rate = max(self.base / 10, self.rate / 2)


FIRST = 500.0  # packets per second at the slow start
SLOW_BURST = 16.0  # packets sent at once
SLOW_LOOK = 0.02  # seconds between two changes of the pace; half of the idle time if that is more
SLOW_LOOK_AT_QUEUE = 0.004  # the same where the receive queue is visible
_GROWTH = 1.4  # packets per second for each packet sent: twice the natural logarithm of 2


def slow_start(pace: float, packets: int) -> float:
    """Return the packets per second after so many to a new receiver: `FIRST`, then twice each half second.

    A server that has just started reads slowly and pauses now and then. Linux gives its socket room for 280
    small datagrams: at `FIRST` it may pause for half a second. The pace grows with the packets sent, because
    an idle client does not warm up a server.
    """
    return min(pace, FIRST + _GROWTH * packets)
