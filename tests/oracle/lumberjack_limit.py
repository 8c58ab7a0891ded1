"""The number of Lumberjack windows in flight, in plain Python: what ``_ext/window/limit.pyx`` must do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MOST = 16
FOREVER = 1e18


class Trip(NamedTuple):
    """A window in flight."""

    sent: float
    round: int
    full: bool  # it used the limit up, as soon as that was possible
    size: int = 0


@dataclass
class Round:
    """As many windows as the limit allows, sent after one decision and acknowledged before the next."""

    number: int
    trips: list[float] = field(default_factory=list)
    full_trips: list[float] = field(default_factory=list)


def queue_bytes(size: int) -> int:
    """Return the bytes that an event is in the queue."""
    return 24 + (size + 7) // 8 * 8


class Piece:
    """The size of a window.

    Args:
        most: bytes of the largest one.
        start: bytes of the first one.
    """

    def __init__(self, most: int, start: int) -> None:
        self.most, self.size = most, min(most, start)
        self.begin()

    def begin(self) -> None:
        self.moved, self.acked = 0.0, False

    def settle(self, size: int, sent: float, now: float) -> None:
        if 2 * size >= self.size and (self.moved or now) - sent < 5:
            self.size = min(self.most, self.size + size)
        elif self.size <= 2 * size <= 2 * self.size and self.moved - sent > 10:
            self.size = max(1, self.size // 2)

    def lose(self, events: int, size: int) -> None:
        if events > 1 and not self.acked:
            self.size = max(1, min(self.size, size) // 2)


class Limit:
    """The limit of one connection.

    Args:
        least: the limit at its beginning.
    """

    def __init__(self, least: int = 2) -> None:
        self.least = least
        self.round = Round(0)
        self.reset()

    def reset(self) -> None:
        self.now = self.least
        self.before = 0
        self.pause, self.next_pause = 0, 8
        self.starting = True
        self.base = FOREVER
        self.freed = self.last_sent = self.seen = -FOREVER
        self._next_round()

    def _next_round(self) -> None:
        self.round = Round(self.round.number + 1)

    def sent(self, count: int, now: float, size: int = 0) -> Trip:
        """Return the window that is sent as number `count` in flight."""
        if count == 1 and now - self.seen >= 10:
            self.reset()
        known = self.base < FOREVER
        full = count >= self.now and known and now - max(self.freed, self.last_sent) <= self.base / 2
        self.last_sent = self.seen = now
        return Trip(now, self.round.number, full, size)

    def acked(self, trip: Trip, count: int, now: float) -> None:
        """Take the ack of a whole window, one of `count` in flight."""
        taken = now - trip.sent
        self.seen = now
        if count >= self.now:
            self.freed = now
        self.base = min(self.base, taken)
        if self.starting and trip.full and 0.005 <= self.base <= 1:
            self._start(taken)
        if trip.round == self.round.number:
            self.round.trips.append(taken)
            if trip.full:
                self.round.full_trips.append(taken)
            if len(self.round.trips) >= self.now:
                self._decide()

    def busy(self) -> None:
        """Take a keep-alive or a partial ack while windows are in flight."""
        self.now, self.before, self.starting = self.least, 0, False
        self.pause = self.next_pause = 1024
        self._next_round()

    def _start(self, taken: float) -> None:
        if taken <= 1.25 * self.base:
            self.now = min(MOST, self.now + 1)
            if self.now < MOST:
                return
        self.starting, self.before = False, max(self.least, self.now // 2)
        self._next_round()

    def _decide(self) -> None:
        before, self.before, now = self.before, 0, self.now
        self.pause = max(0, self.pause - 1)
        shortest, full = min(self.round.trips), min(self.round.full_trips, default=None)
        if self.base < 0.005:
            self.now = self.least
        elif before and full is not None and full > 1.25 * self.base:
            self.now, self.pause = before, self.next_pause
            self.next_pause = min(1024, 2 * self.next_pause)
        elif shortest > 2 * self.base:
            self.now = max(self.least, self.now // 2)
        elif shortest > 1.5 * self.base:
            self.now = max(self.least, self.now - 1)
        elif full is not None and full <= 1.25 * self.base:
            if before:
                self.next_pause = 8
            if not self.starting and not self.pause and self.now < MOST and self.base <= 1:
                self.before, self.now = self.now, min(MOST, self.now + max(1, self.now // 2))
        if self.now < now:
            self.starting = False
        self._next_round()
