"""The queue and the hash alone; run by `make bench ROW=functions`."""

from __future__ import annotations

import pytest

from bench.lumberjack import event
from bench.ours import CLOSED
from logclient._ext.hash import xxh64
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue

EVENTS = 2048
BODY = event(300)


@pytest.mark.benchmark(group="hand-off, 2048 x 300 bytes")
def test_push(benchmark):
    queue = EventQueue()
    in_flight = InflightBatches(queue)

    def empty():
        assert in_flight.fail(CLOSED) in (0, EVENTS)
        in_flight.commit()

    def push():
        put = queue.push
        for _ in range(EVENTS):
            put(BODY)

    benchmark.pedantic(push, setup=empty, rounds=300, warmup_rounds=20)
    assert in_flight.fail(CLOSED) == EVENTS


@pytest.mark.benchmark(group="hand-off, 2048 x 300 bytes")
def test_take_and_commit(benchmark):
    queue = EventQueue()
    in_flight = InflightBatches(queue)

    def fill():
        for _ in range(EVENTS):
            queue.push(BODY)

    def take():
        assert in_flight.fail(CLOSED) == EVENTS
        in_flight.commit()

    benchmark.pedantic(take, setup=fill, rounds=300, warmup_rounds=20)


@pytest.mark.benchmark(group="XXH64, 2048 x 300 bytes")
def test_xxh64_one_by_one(benchmark):
    bodies = [BODY] * EVENTS
    assert len(set(benchmark(lambda: [xxh64(b) for b in bodies]))) == 1
