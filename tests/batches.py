"""Batches of given events, as a sender has them."""

from __future__ import annotations

from collections.abc import Iterable

from logclient._ext.constants import FAILED
from logclient._ext.flight import Batch, Flight
from logclient._ext.handoff import Handoff


def flight_of(events: Iterable[tuple[bytes, int]], holes: Iterable[int] = ()) -> tuple[Flight, Batch]:
    """A flight with one batch of (body, kind); the sequences in `holes` are failed, not pending."""
    handoff = Handoff(max_bytes=1 << 30, max_event_bytes=1 << 28)
    for body, kind in events:
        assert handoff.push(body, 2, kind) > 0
    flight = Flight(handoff)
    batch = flight.take(100_000, 1 << 40)
    assert batch is not None
    holes = list(holes)
    for seq in holes:
        batch.mark(seq, FAILED)
    if holes:
        flight.encoded(batch)
    return flight, batch
