"""The loop over links in Python: when it waits for several answers at once."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from logclient._ext.constants import ACKED
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import LinkPump, PumpGroup
from logclient._ext.queue import EventQueue
from logclient.delivery.contract import FOREVER, Link
from logclient.lumberjack.core import Lumberjack
from tests.cores.plain import Fifo, core_of
from tests.oracle.xxh64 import xxh64
from tests.support.configs import config_for
from tests.support.patience import PATIENCE

LEAST = 64
"""Events in flight from which on answers are gathered."""


def test_the_descriptor_of_a_ledger_stays_open(tmp_path: Path) -> None:
    """Even among those of the standard streams: its owner closes it."""
    saved = os.dup(0)
    in_flight = InflightBatches(EventQueue())
    try:
        with (tmp_path / "ledger").open("wb") as ledger:
            os.dup2(ledger.fileno(), 0)
            in_flight.set_ledger(0)
            assert os.path.samestat(os.fstat(0), os.fstat(ledger.fileno()))
    finally:
        in_flight.set_ledger(-1)
        os.dup2(saved, 0)
        os.close(saved)


class EagerLink(Link):
    """A link that takes everything and always has one answer."""

    peer = ""

    def __init__(self, delay: float = 0.001, flushes: bool = True) -> None:
        self.ack_coalesce_delay = delay
        self.flushes = flushes
        self.said: list[str] = []
        self._fd, far = os.pipe()
        os.write(far, b"x")
        os.close(far)

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        return self.flushes

    def flush(self) -> bool:
        return self.flushes

    def receive(self) -> bytes | None:
        if self.said[-1] == "read":
            return None
        self.said.append("read")
        return b"k"

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        self.said.append("wait")
        return [self._fd], [self._fd] if writable else [], FOREVER

    def close(self, flush_for: float = 0.0) -> None:
        os.close(self._fd)

    def abandon(self) -> None: ...


@pytest.fixture(params=[{}, {"delay": 0.0}, {"flushes": False}], ids=["delay", "none", "stuck"])
def link(request: pytest.FixtureRequest) -> Iterator[EagerLink]:
    made = EagerLink(**request.param)
    yield made
    made.close()


def run_loop(link: EagerLink, events: int) -> list[str]:
    """Drive the loop until all events are settled; return the link's waits and reads."""
    queue = EventQueue()
    for _ in range(events):
        queue.push(b"{}", 2, 1)
    core = core_of(Fifo, bytes(10), inflight=1000)
    core.connected(0.0)
    in_flight = InflightBatches(queue)
    # No linger and no report cuts a lull short.
    pump = LinkPump(in_flight, core, linger=0.0, report_every=1000.0)
    pump.connected()
    group = PumpGroup()
    group.add(pump)
    end = time.monotonic() + PATIENCE
    while in_flight.pending() or in_flight.inflight or not link.said:
        assert time.monotonic() < end
        group.run([link], end)
    return link.said


def test_answers_are_gathered_while_much_is_in_flight(link: EagerLink) -> None:
    """Not while output is pending, and only by a link that asks for it."""
    said = run_loop(link, LEAST + 3)
    lulls = sum(a == b == "wait" for a, b in pairwise(said))
    if link.ack_coalesce_delay and link.flushes:
        # After each of the first answers; where little is in flight each may be what the peer waits for.
        assert said[:10] == ["wait", "read", *["wait", "wait", "read"] * 2, "wait", "wait"]
        assert lulls == 3
    else:
        assert lulls == 0


class SilentLink(EagerLink):
    """A link that takes everything and never has an answer."""

    def __init__(self) -> None:
        super().__init__(delay=0.0)
        self.sent: list[bytes] = []

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        self.sent.append(b"".join(buffers))
        return True

    def receive(self) -> bytes | None:
        return None


def test_bodies_are_hashed_while_a_ledger_is_open_and_at_no_other_time(tmp_path: Path) -> None:
    """All four events are of one batch; each is sent alone, the second and the third with a ledger."""
    queue = EventQueue()
    for _ in range(4):
        queue.push(b'{"message":"same"}', 2, 0)
    core = Lumberjack(config_for("lumberjack", compression=0, inflight=4), bytes(10))
    core.connected(0.0)
    in_flight = InflightBatches(queue)
    in_flight.steer(1, False)
    pump = LinkPump(in_flight, core, linger=0.0)
    pump.connected()
    group = PumpGroup()
    group.add(pump)
    link = SilentLink()
    batch = in_flight.take(4, 1 << 20)
    assert batch is not None
    end = time.monotonic() + PATIENCE
    path = tmp_path / "ledger"
    with path.open("wb") as ledger:
        for seq, fd in enumerate((-1, ledger.fileno(), ledger.fileno(), -1), 1):
            in_flight.set_ledger(fd)
            while len(link.sent) < seq:
                assert time.monotonic() < end
                group.run([link], time.monotonic() + 0.01)
            hashes = batch.hashes()
            in_flight.apply([(seq, seq)], ACKED)
    link.close()
    second, third = (xxh64(sent[16:]) for sent in link.sent[1:3])  # behind the heads of window and frame
    assert hashes == {1: 0, 2: second, 3: third, 4: 0}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seqs"] for line in lines] == [[[2, 2]], [[3, 3]]]
    found = [base64.b64decode(line["hashes"]) for line in lines]
    assert found == [second.to_bytes(8, "little"), third.to_bytes(8, "little")]
