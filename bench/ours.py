"""Our own queue, looked into: a client whose sender never starts, so that what was logged stays there.

The rows that judge the caller's cost measure up to the queue, as the peers do. What is in it is taken
out after each run through the same class the sender uses, counted, and for the check decoded.
"""

from __future__ import annotations

from typing import Any

from bench.harness import NotExact

CLOSED = 2   # the reason that what is taken out here fails with
NOWHERE = "lumberjack://127.0.0.1:9"  # nothing connects: the sender is never started


class Parked:
    """A client without a sender, and the documents in its hand-off."""

    def __init__(self, client: Any) -> None:
        from logclient._ext.inflight import InflightBatches

        self.client = client
        client.queue.needs_sender = False  # nobody shall start the sender
        self._in_flight = InflightBatches(client.queue)

    def take(self) -> list[bytes]:
        """Everything out of the queue, as the caller left it there."""
        bodies: list[bytes] = []
        while batch := self._in_flight.take(1 << 20, 1 << 30):
            bodies += [body for *_, body in batch.pending()]
        if self.count() != len(bodies):
            raise NotExact("the queue and the in_flight disagree")
        return bodies

    def count(self) -> int:
        """Everything out of the queue; how many events there were."""
        n = self._in_flight.fail(CLOSED)
        self._in_flight.commit()
        self._in_flight.take_report()
        return n
