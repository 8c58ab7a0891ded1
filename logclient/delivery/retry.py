"""When to try again: delays as data, so that nothing here sleeps."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Full jitter: the n-th delay is uniform in [0, min(longest, shortest * 2**n)] seconds.

    Only a connection that worked resets it: one with an acknowledgement or, where there are none, one that
    took events and lasted. A server that accepts connections and drops them at once must not be tried at
    the fast pace for ever.

    `certain` is the part of the bound that is not left to chance.
    """

    def __init__(
        self, shortest: float, longest: float, random: Callable[[], float], certain: float = 0.0
    ) -> None:
        self.shortest = shortest
        self.longest = longest
        self.attempts = 0
        self._random = random
        self._certain = certain

    @property
    def bound(self) -> float:
        """What the next delay cannot exceed."""
        return min(self.longest, self.shortest * 2.0 ** min(self.attempts, 60))

    def delay(self) -> float:
        """The next delay, and one attempt more."""
        bound = self.bound
        self.attempts += 1
        return bound * (self._certain + (1.0 - self._certain) * self._random())

    def reset(self) -> None:
        self.attempts = 0
