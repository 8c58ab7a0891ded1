"""Connections without I/O whose batches are those that a test gives them."""

from __future__ import annotations

from collections.abc import Iterable

from logclient._ext.inflight import Batch
from logclient.codec import Connection
from logclient.delivery.contract import find_frames
from tests.support.batches import inflight_of


def load(connection: Connection, events: Iterable[tuple[bytes, int]], holes: Iterable[int] = ()) -> Batch:
    """Give the connection one batch of (body, kind) in place of all that it has: sequences begin at 1."""
    connection.in_flight, batch = inflight_of(events, holes)
    return batch


def split(data: bytes) -> list[bytes]:
    """Return the messages of one frame that a codec has written."""
    found, at = [], 0
    while at < len(data):
        ((begin, at),) = find_frames(data, at)
        found.append(data[begin:at])
    return found
