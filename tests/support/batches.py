"""Batches of given events, as a sender has them."""

from __future__ import annotations

from collections.abc import Iterable

from logclient._ext.constants import FAILED
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.queue import EventQueue


def inflight_of(
    events: Iterable[tuple[bytes, int]], holes: Iterable[int] = ()
) -> tuple[InflightBatches, Batch]:
    """In-flight batches: one batch of (body, kind); the sequences in `holes` are failed, not pending."""
    queue = EventQueue(max_bytes=1 << 30, max_event_bytes=1 << 28)
    for body, kind in events:
        assert queue.push(body, 2, kind) > 0
    in_flight = InflightBatches(queue)
    batch = in_flight.take(100_000, 1 << 40)
    assert batch is not None
    holes = list(holes)
    for seq in holes:
        batch.mark(seq, FAILED)
    if holes:
        in_flight.encoded(batch)
    return in_flight, batch
