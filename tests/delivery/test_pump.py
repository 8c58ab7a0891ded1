"""The pump in Python: when it waits for several answers at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery import pump
from logclient.delivery.contract import Link
from tests.cores.plain import Fifo
from tests.support.patience import PATIENCE


class EagerLink(Link):
    """A link that takes everything and has one answer after each wait."""

    peer = ""

    def __init__(self, delay: float = 0.001, flushes: bool = True) -> None:
        self.ack_coalesce_delay = delay
        self.flushes = flushes
        self.answers = 0
        self.said: list[str] = []

    def fileno(self) -> int:
        return -1

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        return True

    def flush(self) -> bool:
        return self.flushes

    def receive(self) -> bytes | None:
        if not self.answers:
            return None
        self.answers -= 1
        return b"k"

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        self.said.append("wait")
        self.answers = 1

    def close(self, linger: float = 0.0) -> None: ...
    def abandon(self) -> None: ...


def run_pump(monkeypatch: pytest.MonkeyPatch, link: EagerLink, events: int) -> list[str]:
    """Drive the pump until all events are settled; return the link's waits and the pump's sleeps."""
    queue = EventQueue()
    for _ in range(events):
        queue.push(b"{}", 2, 1)
    core: Any = Fifo(bytes(10), inflight=1000)
    core.connected(0.0, lambda: 0.5)
    ticks = count()  # a clock that no load on this machine makes jump
    made = pump.PythonPump(InflightBatches(queue), core, clock=lambda: next(ticks) * 2e-6)
    made.connected()
    mine, sleep = threading.get_ident(), time.sleep

    def record(seconds: float) -> None:
        if threading.get_ident() == mine:
            link.said.append(f"{seconds}")
        else:  # a thread that another test has left
            sleep(seconds)

    monkeypatch.setattr(pump.time, "sleep", record)
    end = time.monotonic() + PATIENCE
    while made.in_flight.pending() or made.in_flight.inflight or not link.said:
        assert time.monotonic() < end
        made.run(link, 1e9)
    return link.said


def test_answers_are_gathered_while_much_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_pump(monkeypatch, EagerLink(), pump.ACK_COALESCE_MIN_INFLIGHT + 3)
    # After each of the first answers; where little is in flight each may be what the peer waits for.
    assert said[:8] == ["wait", "0.001", "wait", "0.001", "wait", "0.001", "wait", "wait"]
    assert said.count("0.001") == 3


@pytest.mark.parametrize("link", [EagerLink(delay=0.0), EagerLink(flushes=False)], ids=["none", "stuck"])
def test_answers_are_not_gathered_while_output_is_pending(
    monkeypatch: pytest.MonkeyPatch, link: Link
) -> None:
    assert set(run_pump(monkeypatch, link, pump.ACK_COALESCE_MIN_INFLIGHT + 3)) == {"wait"}
