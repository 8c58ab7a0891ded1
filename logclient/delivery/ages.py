"""Which events have waited too long, by the monotonic clock.

An event carries the wall time of its making, which may be far off: clocks are set, and a step must neither
fail what is young nor keep what is old. A second stamp would cost each log call a look at another clock.
So the sender notes now and then how far the sequences have come, and when.
"""

from __future__ import annotations

from collections import deque

MARKS = 64
"""Notes in the time of `max_age`: an event fails at most this part of it late."""


class Ages:
    """The ages of events, as far as `max_age` needs them. Holds `MARKS` notes or one more."""

    def __init__(self, max_age: float) -> None:
        self.every = min(max(max_age / 8, 0.05), 1.0)
        """Seconds between two looks, at most, while events wait."""
        self._max_age = max_age
        self._last = (float("-inf"), 0)
        self._marks: deque[tuple[float, int]] = deque()

    def look(self, now: float, newest: int) -> int:
        """The last sequence that has waited for more than `max_age` seconds, 0 when there is none.

        Args:
            now: monotonic seconds.
            newest: the last sequence that was given out.
        """
        last, seq = self._last
        if newest > seq and now - last >= self._max_age / MARKS:
            self._last = now, newest
            self._marks.append(self._last)
        old = 0
        while self._marks and now - self._marks[0][0] > self._max_age:
            old = self._marks.popleft()[1]
        return old
