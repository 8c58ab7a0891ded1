"""The compiled pump for ZeroMQ against the link in Python; run by `make bench ROW=functions`.

A round: 2048 async messages of 300 bytes from a batch, encoded and passed to ZeroMQ, which keeps all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench.lumberjack import event
from bench.sink import Sink
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import LinkPump, PumpGroup
from logclient._ext.queue import EventQueue
from logclient.config.parsing import parse
from logclient.delivery.attempt import Attempt
from logclient.logjam.core import Logjam
from logclient.transports.zmq import Zmq

EVENTS = 2048
BODY = event(300)
PRODUCER = bytes.fromhex("0123456789abcdef0123")


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink(zmtp=True) as running:
        yield running


@pytest.mark.benchmark(group="Logjam, 2048 messages to ZeroMQ")
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
def test_pump(benchmark: Any, sink: Sink, compiled: bool) -> None:
    transport = Zmq(parse("logjam://127.0.0.1/a-b", hwm=1_000_000))
    link = transport.connect(("127.0.0.1", sink.port), Attempt())
    core = Logjam(parse("logjam://h/shop-production", mode="async", compression="none"), PRODUCER)
    queue = EventQueue()
    in_flight = InflightBatches(queue)
    pump = transport.load_pump()(in_flight, core) if compiled else LinkPump(in_flight, core)
    group = PumpGroup()
    group.add(pump)
    core.connected(time.monotonic())
    pump.connected()
    sent = 0

    def setup() -> None:
        nonlocal sent
        sink.wait(sent)
        in_flight.take_report()
        for _ in range(EVENTS):
            queue.push(BODY, 2, RAW)
        sent += EVENTS
        queue.set_flush_target(sent)

    def run() -> None:
        until = time.monotonic() + 10.0
        while queue.settled < sent:
            assert group.run([link], until)[0] in ("target", "report")

    try:
        benchmark.pedantic(run, setup=setup, rounds=50, warmup_rounds=5)
        assert sink.wait(sent).events == sent
    finally:
        link.close()
