"""How much memory events take beside the files, until the next segment is there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from logclient._ext.constants import PUT_FULL
from logclient._ext.queue import EventQueue
from logclient._ext.spool import Segments
from logclient.delivery.spool.owner_files import OwnerFiles, boot_id
from tests.support.patience import PATIENCE

MEMORY = 1 << 20
AHEAD = 8 << 20
CHUNK = 1 << 16
BODY = b"m" * 1000


def _segments(queue: EventQueue, folder: Path, most: int = 4) -> Segments:
    files = OwnerFiles(str(folder), "00" * 10)
    files.create()
    return Segments(queue, files.directory, bytes(10), boot_id(), os.getpid(), most, False, MEMORY)


@pytest.mark.parametrize("policy", ["block", "raise", "drop_new", "drop_oldest"])
def test_memory_is_bounded_while_a_segment_is_made(policy: str, tmp_path: Path) -> None:
    queue = EventQueue(max_bytes=MEMORY, policy=policy)
    segments = _segments(queue, tmp_path)
    try:
        codes = [queue.push(BODY, 1, 0) for _ in range(20_000)]
        assert MEMORY < queue.memory_used <= MEMORY + AHEAD + CHUNK
        dropped = queue.counters()["dropped"]
        if policy in ("block", "raise"):
            assert codes[-1] == PUT_FULL and not dropped
        else:
            assert sum(dropped.values()) > 1000
        segments.grow()
        assert queue.push(BODY, 1, 0) > 0
        assert queue.memory_used <= MEMORY + AHEAD + CHUNK
    finally:
        segments.close()


def test_a_caller_goes_on_when_a_segment_is_there(tmp_path: Path) -> None:
    queue = EventQueue(max_bytes=MEMORY, policy="block")
    segments = _segments(queue, tmp_path)
    try:
        while queue.push(BODY, 1, 0) > 0:
            pass
        ticket = queue.ticket(len(BODY))
        assert not ticket.is_ready()
        ready: list[bool] = []
        caller = threading.Thread(target=lambda: ready.append(ticket.wait(PATIENCE)))
        caller.start()
        segments.grow()
        caller.join(PATIENCE)
        assert ready == [True]
        assert queue.push(BODY, 1, 0, 0, ticket) > 0
    finally:
        segments.close()


@pytest.mark.parametrize("trim_every", [PATIENCE, 0.0])
def test_a_segment_is_ready_before_large_events_find_no_place(trim_every: float, tmp_path: Path) -> None:
    """Each takes 33 of the 64 slots of a segment: what stays free is too little for another one."""
    queue = EventQueue(max_bytes=4 << 20, max_event_bytes=4 << 20, policy="drop_new")
    segments = _segments(queue, tmp_path, most=20)
    try:
        segments.grow()
        for _ in range(20):
            segments.serve(0.0, trim_every)
            assert queue.push(bytes(33 * CHUNK - 1000), 1, 0) > 0
            assert queue.memory_used == 0
    finally:
        segments.close()
