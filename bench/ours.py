"""Access to our own queue: a client whose sender never starts, so that events stay in the queue.

The rows that judge the caller's cost measure up to the queue, as the peers do. After each run the events are
taken out of the queue by the sender's own class and counted; a check also decodes them.
"""

from __future__ import annotations

from typing import Any

from bench.harness import NotExact

CLOSED = 2  # the reason with which the events taken out here fail
NOWHERE = "lumberjack://127.0.0.1:9"  # never connected, because the sender is not started
LOGJAM_NOWHERE = "logjam://127.0.0.1:9/shop-production"  # nor is this


class QueueOnly:
    """A client without a sender, with the documents in its queue."""

    def __init__(self, client: Any) -> None:
        from logclient._ext.inflight import InflightBatches

        self.client = client
        client.queue.needs_sender = False  # so that no caller starts the sender
        self._in_flight = InflightBatches(client.queue)

    def take(self) -> list[bytes]:
        """Empty the queue and return the bodies, as the caller left them."""
        bodies: list[bytes] = []
        while batch := self._in_flight.take(1 << 20, 1 << 30):
            bodies += [body for *_, body in batch.pending()]
        if self.count() != len(bodies):
            raise NotExact("the queue and the batches in flight disagree")
        return bodies

    def count(self) -> int:
        """Empty the queue and return the number of events."""
        n = self._in_flight.fail(CLOSED)
        self._in_flight.commit()
        self._in_flight.take_report()
        return n
