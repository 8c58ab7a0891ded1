"""Waits between attempts: delays as data, so that nothing here sleeps."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

# Not the shared generator: a program that seeds that one keeps its sequence.
random = SystemRandom().random


class Backoff:
    """Full jitter: the n-th delay is uniform in [0, min(longest, shortest * 3**n)] seconds.

    Three and not two: of clients whose server was away for some seconds, no more than half come back in one.
    Only a connection that worked resets it: one with an acknowledgement or, where there are none, one that
    took events and lasted. A server that accepts connections and drops them at once must not be tried at
    the fast pace for ever.

    ``draw()`` returns a number in [0, 1). A share of the bound may be `certain`, which is not random then.
    """

    def __init__(
        self, shortest: float, longest: float, draw: Callable[[], float] | None = None, certain: float = 0.0
    ) -> None:
        self.shortest = shortest
        self.longest = longest
        self.attempts = 0
        self._draw = draw or random
        self._certain = certain

    @property
    def bound(self) -> float:
        return min(self.longest, self.shortest * 3.0 ** min(self.attempts, 60))

    def delay(self) -> float:
        bound = self.bound
        self.attempts += 1
        return bound * (self._certain + (1.0 - self._certain) * self._draw())

    def soon(self) -> float:
        """Return a delay in seconds that counts no attempt."""
        return self.bound * self._draw()

    def reset(self) -> None:
        self.attempts = 0
