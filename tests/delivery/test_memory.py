"""One bound for all clients of a process: their policies, forks, and that every byte is given back."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient._ext.constants import ACKED, INFLIGHT, PUT_FULL
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue, SharedBound
from tests.cores.sink import Sink
from tests.support.dead_servers import KINDS, outcomes
from tests.support.forks import FORKS, run_in_child
from tests.support.patience import PATIENCE, assert_returns, wait_until

MIB = 1 << 20
BODY = b'{"message":"' + b"x" * 62 + b'"}'
ROOM = len(BODY) + 28
"""Bytes that an event with this body counts: 76 are padded to 80, and 24 are its header."""

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

QUIET = {"timeout": 0.0, "atexit_timeout": 0.0, "connect_timeout": 3600}


@pytest.fixture(autouse=True)
def unlimited() -> Iterator[None]:
    gc.collect()
    before = logclient.memory_used()
    yield
    gc.collect()
    counted = logclient.memory_used()
    logclient.limit_memory(None)
    assert counted == logclient.memory_used() == before, "the bound and the queues count the same"


@pytest.fixture
def refusing() -> Iterator[str]:
    with KINDS["connection refused"]() as server:
        yield server.url


def dead(url: str, **options: Any) -> logclient.Client:
    """Return a client that delivers nothing."""
    return logclient.connect(url, **QUIET | options)


def fill(client: logclient.Client) -> int:
    """Send until an event is dropped; return how many were taken."""
    taken = 0
    while client.send(BODY):
        taken += 1
    return taken


# -- policies -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_clients_together_stay_within_the_bound(refusing: str) -> None:
    """Those that exist, and those that are made later."""
    with dead(refusing, overflow="drop_new") as first:
        logclient.limit_memory(100 * ROOM)
        with dead(refusing, overflow="drop_new") as second:
            for _ in range(60):
                first.send(BODY)
            assert fill(second) == 40
            assert first.send(BODY) == second.send(BODY) == 0
            assert logclient.memory_used() == 100 * ROOM
            assert first.stats().queued_bytes == 60 * ROOM
            assert second.stats().queued_bytes == 40 * ROOM
            assert first.stats().dropped == {"overflow": 1}
            assert second.stats().dropped == {"overflow": 2}
        # Closed: its bytes are for the others.
        assert fill(first) == 40


@pytest.mark.slow
def test_drop_oldest_drops_from_its_own_queue(refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    with dead(refusing, overflow="drop_new") as other, dead(refusing, overflow="drop_oldest") as client:
        for _ in range(90):
            other.send(BODY)
        assert all(client.send(BODY) for _ in range(25))
        assert client.stats().dropped == {"overflow": 15}
        assert client.stats().queued_bytes == 10 * ROOM
        assert other.stats().dropped == {}


@pytest.mark.slow
def test_drop_oldest_without_events_of_its_own_drops_the_new_one(refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    with dead(refusing, overflow="drop_new") as other, dead(refusing, overflow="drop_oldest") as client:
        assert fill(other) == 100
        assert client.send(BODY) == 0
        assert client.stats().dropped == {"overflow": 1}
        assert other.stats().dropped == {"overflow": 1}


@pytest.mark.slow
def test_raise_raises_for_room_that_others_have(refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    with dead(refusing, overflow="drop_new") as other, dead(refusing, overflow="raise") as client:
        assert fill(other) == 100
        with pytest.raises(logclient.QueueFull):
            client.send(BODY)
        assert client.stats().dropped == {"overflow": 1}


@pytest.mark.slow
def test_a_drop_is_in_the_ledger(refusing: str, tmp_path: Path) -> None:
    logclient.limit_memory(100 * ROOM)
    options = {"overflow": "drop_new", "ledger": str(tmp_path)}
    with dead(refusing, overflow="drop_new") as other, dead(refusing, **options) as client:
        for _ in range(99):
            other.send(BODY)
        for _ in range(3):
            client.send(BODY)
    lines = [json.loads(line) for file in tmp_path.glob("*.ledger") for line in file.read_text().splitlines()]
    assert lines[-1]["t"] == "close" and lines[-1]["last"] == 3
    dropped = [line for line in lines if line["t"] == "dropped"]
    assert [(line["reason"], line["seqs"]) for line in dropped] == [("overflow", [[2, 3]])]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["the other delivers", "the other closes", "the limit rises", "no limit"])
def test_block_waits_for_room_that_another_client_makes(ends: str, refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    server = KINDS["connection refused"]()
    sent: list[int] = []
    with server, dead(refusing, overflow="block") as client:
        other = dead(server.url, overflow="drop_new", backoff_max=0.1)
        assert fill(other) == 100
        caller = threading.Thread(target=lambda: sent.append(client.send(BODY)), daemon=True)
        caller.start()
        wait_until(lambda: client.queue.waiting_callers == 1, "it waits")
        assert not sent
        match ends:
            case "the other delivers":
                server.come_alive()
            case "the other closes":
                other.close()
            case "the limit rises":
                logclient.limit_memory(101 * ROOM)
            case "no limit":
                logclient.limit_memory(None)
        caller.join(PATIENCE)
        assert sent == [1]
        other.close()


def test_block_gives_up_after_its_timeout(refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    with (
        dead(refusing, overflow="drop_new") as other,
        dead(refusing, overflow="block:50ms") as client,
    ):
        assert fill(other) == 100
        assert assert_returns(lambda: client.send(BODY)) == 0
        assert client.stats().dropped == {"overflow": 1}
    assert logclient.memory_used() == 0


# -- limits -------------------------------------------------------------------------------------------


def test_a_lower_limit_keeps_what_is_held(refusing: str) -> None:
    with dead(refusing, overflow="drop_new") as client:
        for _ in range(100):
            client.send(BODY)
        logclient.limit_memory(50 * ROOM)
        assert logclient.memory_used() == 100 * ROOM
        assert client.send(BODY) == 0
        logclient.limit_memory(101 * ROOM)
        assert client.send(BODY) and not client.send(BODY)


@pytest.mark.slow
def test_drop_oldest_gets_below_a_lower_limit(refusing: str) -> None:
    with dead(refusing, overflow="drop_oldest") as client:
        for _ in range(100):
            client.send(BODY)
        logclient.limit_memory(50 * ROOM)
        assert client.send(BODY)
        assert logclient.memory_used() == 50 * ROOM


@pytest.mark.slow
def test_an_event_larger_than_the_limit_fails_as_too_large() -> None:
    logclient.limit_memory("64KiB")
    with Sink() as server, logclient.connect(server.url, overflow="block") as client:
        # 65,536 bytes less its header.
        for size in (65_512, 65_513):
            assert assert_returns(lambda size=size: client.send(b'{"a":"%s"}' % (b"x" * (size - 8))))
        assert client.flush(PATIENCE) == 0
        found = client.stats()
        assert found.failed == {"too_large": 1}
        assert found.sent == sum(outcomes(found).values()) == 2


def test_a_caller_with_an_event_that_no_longer_fits_does_not_wait_forever() -> None:
    bound = SharedBound(10_000)
    waiting, other = EventQueue(policy="block"), EventQueue()
    for queue in (waiting, other):
        queue.share(bound)
    assert other.push(bytes(5000)) == 1
    ticket = waiting.ticket(8000)
    assert not ticket.is_ready()
    bound.limit = 6000
    for queue in (waiting, other):
        queue.share(bound)
    assert not ticket.is_ready()
    other.share(None)
    assert ticket.is_ready()
    assert waiting.push(bytes(8000), ticket=ticket) == 1
    assert bound.used == 32  # it takes its place, and fails


@pytest.mark.slow
@pytest.mark.parametrize("size", ["much", -1, 12, 1.5, True, "2TiB", 1 << 41])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(logclient.ConfigError, match="size"):
        logclient.limit_memory(size)


# -- everything is given back -------------------------------------------------------------------------


def test_a_collected_client_gives_its_bytes_back() -> None:
    bound = SharedBound(MIB)
    queue = EventQueue()
    in_flight = InflightBatches(queue)
    queue.share(bound)
    for _ in range(10):
        queue.push(BODY)
    assert in_flight.take(5, MIB) is not None
    assert bound.used == 10 * ROOM
    del in_flight, queue
    gc.collect()
    assert bound.used == 0


@pytest.mark.slow
def test_leaving_the_bound_gives_the_bytes_back() -> None:
    bound, another = SharedBound(MIB), SharedBound(MIB)
    queue = EventQueue()
    queue.push(BODY)
    queue.share(bound)
    queue.share(bound)
    assert bound.used == ROOM
    queue.share(another)
    assert (bound.used, another.used) == (0, ROOM)
    queue.share(None)
    assert (bound.used, another.used) == (0, 0)


def test_events_in_flight_count_until_they_have_their_outcome() -> None:
    bound = SharedBound(10 * ROOM)
    queue, other = EventQueue(policy="raise"), EventQueue(policy="raise")
    for one in (queue, other):
        one.share(bound)
    in_flight = InflightBatches(queue)
    for _ in range(10):
        assert queue.push(BODY) > 0
    batch = in_flight.take(100, MIB)
    assert batch is not None
    for event in batch.pending():
        batch.mark(event.seq, INFLIGHT)
    in_flight.encoded(batch)
    assert other.push(BODY) == PUT_FULL and not other.fits(len(BODY))
    in_flight.apply([(1, 10)], ACKED)
    in_flight.commit()
    assert bound.used == 0
    assert other.push(BODY) == 1


@pytest.mark.slow
def test_many_threads_and_clients_never_exceed_the_bound() -> None:
    """Live and dead servers, all policies: the sum stays within the limit, and is 0 in the end."""
    limit = 200_000
    logclient.limit_memory(limit)
    over: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if (used := logclient.memory_used()) > limit:
                over.append(used)

    with Sink() as live, KINDS["accepts and never reads"]() as mute:
        clients = [
            logclient.connect(url, overflow=policy, timeout=0.1)
            for url in (live.url, mute.url)
            for policy in ("drop_new", "drop_oldest", "raise", "block:50ms")
        ]

        def produce(client: logclient.Client, level: str) -> None:
            for i in range(3000 if client.config.policy != "block" else 50):
                try:
                    client.send(b'{"message":"%s"}' % (b"x" * (i % 3000)), level)
                except logclient.QueueFull:
                    pass

        watcher = threading.Thread(target=watch)
        watcher.start()
        producers = [
            threading.Thread(target=produce, args=(client, level))
            for client in clients
            for level in ("INFO", "ERROR")
        ]
        for thread in producers:
            thread.start()
        for thread in producers:
            thread.join(4 * PATIENCE)
        ended.set()
        watcher.join(PATIENCE)
        for client in clients:
            client.close()
        for client in clients:
            stats = client.stats()
            assert sum(outcomes(stats).values()) == stats.sent
        assert any(client.stats().acked for client in clients)
        assert any(client.stats().dropped for client in clients)
    assert not over
    assert logclient.memory_used() == 0


# -- forks --------------------------------------------------------------------------------------------


@forks
def test_clients_of_a_forked_child_count_from_zero(refusing: str) -> None:
    logclient.limit_memory(100 * ROOM)
    with dead(refusing, overflow="drop_new") as client:
        assert fill(client) == 100

        def work() -> None:
            assert logclient.memory_used() == 0
            with dead(refusing, overflow="drop_new") as another:
                assert [client.send(BODY) for _ in range(60)] == list(range(1, 61))
                assert fill(another) == 40
                assert logclient.memory_used() == 100 * ROOM
            assert fill(client) == 40

        run_in_child(work)
        assert logclient.memory_used() == 100 * ROOM
        assert client.send(BODY) == 0


@pytest.mark.slow
@forks
@pytest.mark.parametrize("fork", FORKS)
def test_queues_of_a_forked_child_count_from_zero(fork: str) -> None:
    """In either kind of fork, also for one that is freed before its first use."""
    bound = SharedBound(3 * ROOM)
    queues = [EventQueue() for _ in range(3)]
    for queue in queues:
        queue.share(bound)
        queue.push(BODY)
    assert queues[0].push(BODY) == 0

    def work() -> None:
        assert bound.used == queues[0].memory_used == 0
        queues[1].share(None)
        queues[1].share(bound)
        assert bound.used == 0
        queues[0].renew()
        assert [queues[0].push(BODY) for _ in range(4)] == [1, 2, 3, 0]
        queues.pop()
        assert bound.used == 3 * ROOM
        queues[1].renew()
        assert queues[1].push(BODY) == 0
        queues[0].share(None)
        assert bound.used == 0

    run_in_child(work, FORKS[fork])
    assert bound.used == 3 * ROOM
