"""A server that does not take anything: calls go on, memory is bounded, every event has its outcome, and
once the server comes to life delivery goes on by itself.

What a call costs meanwhile is measured in bench/dead.py.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import logclient
from logclient.client import Outcome
from tests.support.dead_servers import KINDS, Refusing, outcomes, run
from tests.support.patience import PATIENCE, assert_returns, wait_until

MIB = 1 << 20
HALF = 33_000
"""Two of these are a little more than a chunk of the queue."""

NEVER = {"connect_timeout": 3600, "silence": 3600, "progress_timeout": 3600}
procfs = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="no peak of memory to reset")


@pytest.fixture(params=KINDS)
def dead(request: pytest.FixtureRequest) -> Iterator[Any]:
    try:
        server = KINDS[request.param]()
    except RuntimeError as error:
        pytest.skip(str(error))
    with server:
        yield server


# -- memory and outcomes ----------------------------------------------------------------------------------


def assert_bounded_under_storm(url: str, calls: int, **options: Any) -> None:
    """Log `calls` messages to a dead server: memory stays bounded and the counts add up."""
    options = {"max_bytes": 64 * MIB, **options}
    snapshot, rested, closed = run("storm", url=url, calls=calls, rest=1.0, options=options)
    names = ("queued", "inflight", "acked", "handed", "failed", "dropped")
    assert sum(snapshot[name] for name in names) == calls
    assert sum(closed[name] for name in names) == calls
    assert closed["failed"] == closed["left"] == snapshot["queued"] + snapshot["inflight"]
    assert snapshot["acked"] == snapshot["failed"] == closed["queued"] == closed["inflight"] == 0
    # Full, or nothing was shown.
    assert snapshot["dropped"] == closed["dropped"] > 0
    assert 63 * MIB < snapshot["bytes"] <= 64 * MIB
    assert snapshot["grown"] <= 1.25 * 64 * MIB + 16 * MIB
    # At rest it waits: a sender that spins takes all of it.
    assert rested["cpu"] < 0.2 * rested["rest"]
    print(f"{calls} calls in {snapshot['seconds']:.1f} s, peak {snapshot['grown'] / MIB:.1f} MiB over idle")


@pytest.mark.slow
@procfs
def test_memory_is_bounded_and_every_event_has_one_outcome(dead: Any) -> None:
    assert_bounded_under_storm(dead.url, 300_000)


@pytest.mark.slow
@procfs
def test_memory_is_bounded_while_the_sender_is_stuck() -> None:
    """So many windows at once that they fill the socket, too."""
    with KINDS["accepts and never reads"]() as server:
        assert_bounded_under_storm(server.url, 100_000, inflight=32, compression=0)


@procfs
@pytest.mark.long
def test_ten_million_calls_are_bounded(dead: Any) -> None:
    assert_bounded_under_storm(dead.url, 10_000_000)


@procfs
def test_memory_is_bounded_for_all_sizes() -> None:
    """Small events touch every page, then sizes that leave much of each chunk empty take their place."""
    phases = [(100, 200), (HALF, HALF), (20, 64 * 1024), (100, 200), (HALF, HALF)]
    options = {"max_bytes": 64 * MIB, "max_events": 10**7, "overflow": "drop_oldest"}
    with KINDS["connection refused"]() as server:
        said = run("sizes", url=server.url, phases=phases, volume=150 * MIB, options=options)
    print([round(line["grown"] / MIB) for line in said])
    for line in said:
        assert 63 * MIB < line["bytes"] <= 64 * MIB
        assert line["grown"] <= 1.25 * 64 * MIB + 16 * MIB


@pytest.mark.slow
@procfs
def test_memory_is_bounded_for_submitted_events() -> None:
    """A delivery costs more than its event; dropped ones are settled while an attempt to connect hangs."""
    with KINDS["no answer"]() as server:
        (said,) = run("follow", url=server.url, calls=300_000, options=NEVER | {"max_events": 10_000})
    assert said["told"] + said["pending"] == 300_000 and said["pending"] <= 10_000 + 100_000
    # As many deliveries, of a quarter of a KiB each, and the events.
    assert said["grown"] <= 64 * MIB
    print(said)


# -- nothing waits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["lumberjack", "lumberjack+tls"])
def test_flush_and_close_return_in_time(dead: Any, scheme: str) -> None:
    """The server's deadlines are an hour: a call that waited for the server or its handshake would hang."""
    url = dead.url.replace("lumberjack", scheme) + ("?verify=none" if scheme.endswith("tls") else "")
    handler = logclient.Handler(url, **NEVER)
    logger = logging.getLogger("tests.dead")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        for i in range(1000):
            logger.warning("event %d", i)
        client = handler.client
        assert assert_returns(lambda: client.flush(0.1)) == 1000
        if isinstance(dead, Refusing):
            wait_until(lambda: client.stats().last_error.endswith("connection refused"), "refused")
        assert assert_returns(lambda: client.close(0.1)) == 1000
        assert client.stats().failed == {"closed": 1000}
        logger.warning("too late")
        assert client.stats().refused == 1
    finally:
        logger.removeHandler(handler)
        handler.close()


@pytest.mark.slow
def test_deliveries_of_dropped_events_are_settled(dead: Any) -> None:
    """Also while an attempt to connect hangs for an hour."""
    with logclient.connect(dead.url, overflow="drop_oldest", max_events=100, timeout=0.1, **NEVER) as client:
        deliveries = [client.submit({"n": n}) for n in range(10_000)]
        # All but those in the bounds. A window in flight is kept, wherever it was when the connection came.
        wait_until(lambda: sum(delivery.done() for delivery in deliveries) == 9900, "outcomes")
        outcomes = [delivery.result(0.0) for delivery in deliveries if delivery.done()]
        assert set(outcomes) == {Outcome("dropped", "overflow")}
    found = Counter(delivery.result(0.0) for delivery in deliveries)
    assert found == {Outcome("dropped", "overflow"): 9900, Outcome("failed", "closed"): 100}


@pytest.mark.slow
def test_block_times_out_with_a_dead_server(dead: Any) -> None:
    """`block` waits for its time and no longer."""
    options = NEVER | {"overflow": "block:50ms", "max_events": 100}
    with logclient.connect(dead.url, timeout=0.1, **options) as client:
        sent = assert_returns(lambda: [client.send({"n": i}) for i in range(103)])
        assert all(sent[:100]) and sent[100:] == [0, 0, 0]
        assert client.stats().dropped == {"overflow": 3}


# -- and then it lives ---------------------------------------------------------------------------------


def test_delivery_resumes_when_the_server_comes_to_life(dead: Any) -> None:
    """The newest events arrive once and in order; the missing ones were counted as dropped."""
    paces = {"connect_timeout": 0.3, "backoff_max": 0.3}
    client = logclient.connect(dead.url, overflow="drop_oldest", max_events=5000, **paces)
    for i in range(20_000):
        client.send({"message": f"event {i}"})
    wait_until(lambda: client.stats().last_error or client.stats().inflight, "an attempt")
    before = client.stats()
    assert before.dropped == {"overflow": 15_000} and before.queued + before.inflight == 5000
    dead.come_alive()
    assert client.flush(PATIENCE) == 0
    for i in range(20_000, 21_000):
        client.send({"message": f"event {i}"})
    assert client.flush(PATIENCE) == 0
    after = client.stats()
    client.close()
    got = [seq for seq, _ in dead.got[client.producer]]
    assert len(got) == after.acked == 6000 and got == sorted(set(got)) and got[-1] == 21_000
    # What was on its way already when the queue was full (two windows), and then the newest.
    assert sum(b != a + 1 for a, b in pairwise(got)) <= 2
    assert after.dropped == before.dropped and sum(outcomes(after).values()) == 21_000
