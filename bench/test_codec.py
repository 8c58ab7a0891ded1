"""The Lumberjack codec alone; run by `make bench ROW=functions`. A round: 2048 events of 300 bytes.

``test_copy`` is the floor of everything that writes or reads these bytes once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from bench.lumberjack import carriers, event, window
from logclient._ext.flight import Flight
from logclient._ext.handoff import Handoff
from logclient._ext.lumberjack import Decoder, Hot, Reader, check_json

EVENTS = 2048
BODY = event(300)
CARRIED = event(300, carriers())
PRODUCER = bytes.fromhex("0123456789abcdef0123")
DOCUMENT, RAW = 0, 1
ROUNDS = {"rounds": 200, "warmup_rounds": 20}


def writer(kind: int, **options: Any) -> tuple[Callable[[], tuple[tuple[Any, Any], dict[str, Any]]], Any]:
    """(setup, function) for `pedantic`: a fresh batch, one window of it."""
    hot = Hot(PRODUCER, window_bytes=1 << 24, **options)

    def setup() -> tuple[tuple[Any, Any], dict[str, Any]]:
        handoff = Handoff()
        for _ in range(EVENTS):
            handoff.push(BODY, 2, kind)
        flight = Flight(handoff)
        hot.connected(0.0)
        return (flight, flight.take(EVENTS, 1 << 30).capsule), {}

    def encode(flight: Flight, capsule: object) -> None:
        assert hot.encode(capsule, EVENTS, 0.0) == EVENTS

    return setup, encode


@pytest.mark.benchmark(group="Lumberjack, encode a window")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(RAW, {"compression": 0}, id="checked"),
        pytest.param(RAW, {"compression": 0, "check": False}, id="unchecked"),
        pytest.param(DOCUMENT, {"compression": 0}, id="document"),
        pytest.param(DOCUMENT, {"compression": 0, "identity": False}, id="no-id"),
        pytest.param(DOCUMENT, {"compression": 3}, id="compressed"),
        pytest.param(DOCUMENT, {"compression": 6}, id="zlib-6"),
    ],
)
def test_encode(benchmark: Any, kind: int, options: dict[str, Any]) -> None:
    setup, encode = writer(kind, **options)
    benchmark.pedantic(encode, setup=setup, **ROUNDS)


@pytest.mark.benchmark(group="Lumberjack, encode a window")
def test_copy(benchmark: Any) -> None:
    data, to = window(CARRIED, EVENTS), bytearray(len(window(CARRIED, EVENTS)))

    def copy() -> None:
        to[:] = data

    benchmark(copy)


@pytest.mark.benchmark(group="Lumberjack, decode")
@pytest.mark.parametrize("events", [1, EVENTS])
def test_decode(benchmark: Any, events: int) -> None:
    """The verifier's path: units of one event, or of a whole window."""
    body = CARRIED.replace(b"0123456789abcdef" * 2, PRODUCER.hex().encode() + b"000000000007")
    unit, units = window(body, events), EVENTS // events
    offsets, lengths = array("q", range(0, units * len(unit), len(unit))), array("q", [len(unit)] * units)
    data, decoder = unit * units, Decoder(PRODUCER)
    got = benchmark(decoder.decode, data, offsets, lengths)
    assert len(got) == EVENTS
    assert set(got.status.tolist()) == {0}


@pytest.mark.benchmark(group="Lumberjack, decode")
def test_reader(benchmark: Any) -> None:
    """The collector's path, bodies not looked at."""
    data, reader = window(CARRIED, EVENTS), Reader()
    (got,) = benchmark(reader.receive_data, data)
    assert len(got) == EVENTS


@pytest.mark.benchmark(group="Lumberjack, checking pass, 2048 calls")
@pytest.mark.parametrize("body", [BODY, CARRIED], ids=["4-members", "6-members"])
def test_check(benchmark: Any, body: bytes) -> None:
    bodies = [body] * EVENTS
    assert all(benchmark(lambda: [check_json(b) for b in bodies]))


@pytest.mark.benchmark(group="Lumberjack, acks of 1024 windows")
def test_acks(benchmark: Any) -> None:
    hot = Hot(PRODUCER, compression=0, window=1, inflight=1024)
    acks = b"2A\0\0\0\1" * 1024

    def setup() -> tuple[tuple[()], dict[str, Any]]:
        handoff = Handoff()
        for _ in range(1024):
            handoff.push(b"{}", 2, DOCUMENT)
        flight = Flight(handoff)
        hot.connected(0.0)
        batch = flight.take(1024, 1 << 30)
        for _ in range(1024):
            assert hot.encode(batch.capsule, 1, 0.0) == 1
            flight.encoded(batch)
        hot.outcomes()
        return (), {}

    def receive() -> None:
        assert hot.receive(acks, 0.0) == 0

    benchmark.pedantic(receive, setup=setup, rounds=50)
