"""The hand-off and the hash alone; run by `make bench ROW=functions`."""

from __future__ import annotations

from array import array

import pytest

from bench.lumberjack import event
from bench.ours import CLOSED
from logclient._ext.flight import Flight
from logclient._ext.handoff import Handoff
from logclient._ext.hash import xxh64, xxh64_many

EVENTS = 2048
BODY = event(300)


@pytest.mark.benchmark(group="hand-off, 2048 x 300 bytes")
def test_push(benchmark):
    handoff = Handoff()
    flight = Flight(handoff)

    def empty():
        assert flight.fail(CLOSED) in (0, EVENTS)
        flight.commit()

    def push():
        put = handoff.push
        for _ in range(EVENTS):
            put(BODY)

    benchmark.pedantic(push, setup=empty, rounds=300, warmup_rounds=20)
    assert flight.fail(CLOSED) == EVENTS


@pytest.mark.benchmark(group="hand-off, 2048 x 300 bytes")
def test_take_and_commit(benchmark):
    handoff = Handoff()
    flight = Flight(handoff)

    def fill():
        for _ in range(EVENTS):
            handoff.push(BODY)

    def take():
        assert flight.fail(CLOSED) == EVENTS
        flight.commit()

    benchmark.pedantic(take, setup=fill, rounds=300, warmup_rounds=20)


@pytest.mark.benchmark(group="XXH64, 2048 x 300 bytes")
def test_xxh64_one_by_one(benchmark):
    bodies = [BODY] * EVENTS
    assert len(set(benchmark(lambda: [xxh64(b) for b in bodies]))) == 1


@pytest.mark.benchmark(group="XXH64, 2048 x 300 bytes")
def test_xxh64_many(benchmark):
    data = BODY * EVENTS
    offsets = array("q", range(0, len(data), len(BODY)))
    lengths = array("q", [len(BODY)] * EVENTS)
    out = array("Q", bytes(8 * EVENTS))
    benchmark(xxh64_many, data, offsets, lengths, out)
    assert set(out) == {xxh64(BODY)}
