"""Forks while the spool's mutex is held: the child has no thread that could release it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from logclient._ext.queue import EventQueue
from logclient._ext.spool import SEGMENT, Log, Segments
from tests.support.forks import run_in_child

CHILDREN = 100


@pytest.mark.slow
def test_a_child_lets_go_of_a_spool_whose_mutex_is_held(tmp_path: Path) -> None:
    """A thread copies events into the log, under the mutex, whenever it can; each child must end."""
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    producer = bytes(range(10))
    (tmp_path / f"{producer.hex()}.lock").touch()
    segments = Segments(queue, str(tmp_path), producer, bytes(16), os.getpid(), 2, True, 0)
    segments.grow()
    segments.grow()
    log = Log(segments, False, 1 << 24)
    for _ in range(60):
        assert queue.push(bytes(100_000)) > 0
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            log.write_all()

    def child() -> None:
        log.abandon()
        segments.close()
        assert not segments.is_used
        queue.renew()
        assert queue.push(b"of the child") == 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(CHILDREN):
            run_in_child(child)
    finally:
        stop.set()
        writer.join()
        log.close(False)
        segments.close()
