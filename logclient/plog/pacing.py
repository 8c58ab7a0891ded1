"""How fast datagrams may go, by what is seen of the receiver. No socket, no clock.

``ByQueue`` looks at the receive queue of the server's socket, which is only possible on its machine: until
the next look no more is sent than has room there, even if the server takes nothing meanwhile. ``ByStat`` asks
how many messages have come (STAT): a bit faster as long as all have, at half the pace when some have not.
``SlowStart`` is for a receiver that nothing is known of yet: it may be a cold one.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ByQueue", "ByStat", "Grant", "SlowStart"]


class Grant(NamedTuple):
    """What may be sent until the next look: datagrams, bytes; and seconds until then."""

    packets: float
    size: float
    look: float


class ByQueue:
    """No more between two looks than the receiver's queue has room for.

    A queue is accounted in what the kernel allocates, not in what is in it: for a datagram at most
    `_OVERHEAD` and twice its payload (sizes are rounded up to powers of two). Half of the room is given to
    the overheads, four tenths to the payloads.
    """

    _OVERHEAD = 1080
    _COST = 1280  # of a small datagram
    _ACTIVE = 0.001
    _IDLE = 0.1
    _LEAST = 1 / 8

    def __init__(self) -> None:
        self._share = 1.0
        self._drops: int | None = None
        self._idle = self._ACTIVE

    def look(self, held: int, most: int, drops: int, packets: int) -> Grant:
        """A look at the queue.

        Args:
            held: bytes in it.
            most: bytes that it holds.
            drops: datagrams that found no room in it, ever.
            packets: datagrams that we sent since the last look.
        """
        if self._drops is not None and drops > self._drops:
            # Others use it too, or it holds less than we think.
            self._share = max(self._LEAST, self._share / 2)
        else:
            self._share = min(1.0, self._share * 1.001)
        self._drops = drops
        self._idle = self._ACTIVE if packets or held else min(self._idle * 2, self._IDLE)
        # What was sent since the last look may be on its way to the queue still.
        free = max(0.0, (most - held - packets * self._COST) * self._share)
        return Grant(free * 0.5 / self._OVERHEAD, free * 0.4 / 2, self._idle)


class ByStat:
    """More by additions, less by halves: from `base` packets a second on, a tenth of it at least."""

    def __init__(self, base: float) -> None:
        self.base = base
        self.rate = base
        self._lost = 0
        self._packets = 0
        self._at: float | None = None  # of the last answer

    def answered(self, now: float, lost: int | None, packets: int) -> None:
        """The server has said how much it has.

        Args:
            lost: messages of ours that have not come, since the beginning; None: nobody can say.
            packets: datagrams that we sent, since the beginning.
        """
        used = packets - self._packets
        if lost is None:
            self.rate = min(self.rate, self.base)
        elif lost > self._lost:
            self._slower()
        elif self._at is not None and used >= 0.7 * self.rate * (now - self._at):
            self.rate += self.base / 2
        self._lost = lost or 0
        self._packets, self._at = packets, now

    def unanswered(self) -> None:
        """The question, or its answer, is lost: as other things may be."""
        self._slower()

    def _slower(self) -> None:
        self.rate = max(self.base / 10, self.rate / 2)


class SlowStart:
    """A pace for the first packets to a receiver: from `FIRST` a second on, twice as fast each half second.

    A server that has just started reads slowly, and stops now and then. Linux gives its socket room for 280
    small datagrams, so at `FIRST` a second it may stop for half a second and lose nothing. The pace grows
    with what was sent, not with time: an idle client does not make a server warm.
    """

    FIRST = 500.0
    BURST = 16.0
    """Packets sent at once."""
    LOOK = 0.02
    """Seconds between two changes of the pace; more where nothing is sent: half of the time without."""
    LOOK_AT_QUEUE = 0.004
    """The same where the receive queue is seen."""
    _GROWTH = 1.4  # packets a second for each that was sent: twice the natural logarithm of 2

    def __init__(self, pace: float) -> None:
        self.pace = pace

    def rate(self, packets: int) -> float:
        """Packets a second after so many were sent: `pace` when the start is over."""
        return min(self.pace, self.FIRST + self._GROWTH * packets)
