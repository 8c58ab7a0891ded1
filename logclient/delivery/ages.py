"""Find events that have waited too long, by the monotonic clock.

An event carries the wall time of its creation, which may be far off: clocks are set, and a step must neither
fail young events nor keep old ones. A second time stamp would cost each log call another clock reading.
So the sender notes now and then the last sequence and the time.
"""

from __future__ import annotations

from collections import deque

MARKS = 64
"""Notes within `max_age`: an event fails late by 1/64 of `max_age` at most."""


class Ages:
    """The ages of events, as far as `max_age` (seconds) needs them."""

    def __init__(self, max_age: float) -> None:
        self.every = min(max(max_age / 8, 0.05), 1.0)
        """Seconds between two calls of `look`, at most, while events wait."""
        self._max_age = max_age
        self._last = (float("-inf"), 0)
        self._marks: deque[tuple[float, int]] = deque()

    def look(self, now: float, newest: int) -> int:
        """Return the last sequence that has waited for more than `max_age` seconds, 0 when there is none."""
        last, seq = self._last
        if newest > seq and now - last >= self._max_age / MARKS:
            self._last = now, newest
            self._marks.append(self._last)
        old = 0
        while self._marks and now - self._marks[0][0] > self._max_age:
            old = self._marks.popleft()[1]
        return old
