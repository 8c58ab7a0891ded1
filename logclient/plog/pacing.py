"""The pace of datagrams, adapted to the receiver. No socket, no clock.

``ByQueue`` reads the receive queue of the server's socket, which needs the same machine. Between two looks it
allows only what fits into the queue, so that nothing is lost even if the server reads nothing. ``ByStat``
asks the server how many messages arrived (STAT): it speeds up a bit while all arrive, and slows down to what
arrives when many do not. ``slow_start`` is for a receiver whose state is unknown: it may have just started.
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
    """Follows what arrives, from `base` packets per second on and never below one.

    Where more than a quarter of the messages is lost, the path takes what has arrived and no more. A smaller
    loss may have other reasons: the rate falls slowly, not below the best of what arrived lately, and now and
    then it rises all the same.
    """

    _PROBE = 4  # answers from one rise in spite of losses to the next

    def __init__(self, base: float) -> None:
        self.base = base
        self.rate = base
        self._lost = self._sent = self._packets = 0  # at the last answer
        self._at: float | None = None
        self._best = 0.0  # of the rates of arrivals, forgotten slowly
        self._answers = self._silent = 0

    def answered(self, now: float, lost: int | None, sent: int, packets: int) -> None:
        """Adapt the rate to an answer: `lost` messages (None: unknown) of those `sent`, and our `packets`."""
        more, taken = (lost or 0) - self._lost, self._taken(now, packets)
        share = max(0.0, more / max(sent - self._sent, more, 1))
        arrived = taken * (1 - share)
        self._answers += 1
        self._silent = 0
        if lost is None:
            self.rate = min(self.rate, self.base)
        elif share > 0.25:
            self._best = arrived
            self.rate = max(1.0, arrived, min(self.rate, taken) / 2)
        else:
            self._best = max(arrived, self._best * 63 / 64)
            if share and self._answers % self._PROBE:
                self.rate = max(1.0, self.rate * 0.9, self._best)
            elif taken >= 0.7 * self.rate:
                self.rate += self.base / 2 if self.rate >= self.base else self.rate / 8
        self._lost, self._sent, self._packets, self._at = lost or 0, sent, packets, now

    def unanswered(self, now: float, packets: int) -> None:
        """Halve the rate, unless it is the first in a row: one question or answer is easily lost."""
        self._silent += 1
        if self._silent > 1:
            taken = self.rate if self._at is None else self._taken(now, packets)
            self.rate = max(1.0, min(self.rate, taken) / 2)

    def _taken(self, now: float, packets: int) -> float:
        """Return the packets per second since the last answer."""
        return 0.0 if self._at is None else (packets - self._packets) / max(now - self._at, 1e-3)


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
