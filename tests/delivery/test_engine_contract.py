"""The contract of delivery, held against every kind of acknowledgement, in C and through both adapters.

Each test runs six times: four cores in Python over links in memory, through the adapters; two compiled ones
over sockets, in C. Whatever a test looks at itself, every run ends with ``Rig.finish``: each event
has exactly one outcome, the counts add up, an independent recount of the ledger gives the same numbers,
and what arrived is what was sent, byte by byte, under the hash in the ledger.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logclient.delivery import backoff, connection, endpoints
from logclient.delivery import engine as engine_module
from logclient.delivery import sender as sender_module
from logclient.delivery.backoff import Backoff
from logclient.delivery.stats import Stats
from tests.cores.plain import POISON
from tests.cores.rig import SETUPS, Rig, Setup
from tests.cores.server import Got, Peer, acknowledge, silent
from tests.support.patience import PATIENCE

Make = Callable[..., Rig]


def needs_setup(what: Callable[[Setup], bool]) -> Callable[[Any], Any]:
    """Run the test only for setups for which `what` is true."""

    def mark(test: Any) -> Any:
        test.needs = what
        return test

    return mark


def acks(setup: Setup) -> bool:
    return setup.kind != "none"


def no_acks(setup: Setup) -> bool:
    return setup.kind == "none"


def answers_single_events(setup: Setup) -> bool:
    """A single event can be refused, or asked for again."""
    return setup.kind in ("fifo", "by_id")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setup" in metafunc.fixturenames:
        wanted = getattr(metafunc.function, "needs", lambda setup: True)
        metafunc.parametrize("setup", [s for s in SETUPS if wanted(s)], ids=str)


@pytest.fixture
def make(setup: Setup, tmp_path: Path) -> Iterator[Make]:
    made: list[Rig] = []

    def build(**options: Any) -> Rig:
        rig = Rig(setup, tmp_path / "run", **options)
        made.append(rig)
        return rig

    yield build
    for rig in made:
        if not rig.finished:
            rig.finish(0.05)


def stop_listening(rig: Rig) -> None:
    """Take the server down: events stay queued whatever the protocol."""
    rig.server.down()


# -- ids ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sequences_count_from_1_under_one_producer_id(make: Make, setup: Setup) -> None:
    rig = make()
    seqs = rig.many(500)
    assert seqs == list(range(1, 501))
    stats = rig.settle()
    got = rig.server.events(500)
    assert [g.seq for g in got] == seqs
    assert {g.producer for g in got} == {stats.producer} and len(stats.producer) == 20
    assert (stats.acked, stats.handed) == ((500, 0) if acks(setup) else (0, 500))
    assert make().stats().producer != stats.producer


@needs_setup(acks)
def test_a_resend_keeps_the_id(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = silent
    rig.many(20)
    first = rig.server.events(20)
    rig.server.script = acknowledge
    rig.server.peers[0].cut()
    rig.settle()
    assert [g.payload for g in rig.server.peers[1].got] == [g.payload for g in first]


# -- counts -------------------------------------------------------------------------------------------


def test_counts_add_up_at_every_snapshot(make: Make, setup: Setup) -> None:
    """Partial acks, cuts, drops and four callers, while a fifth thread takes snapshots."""
    rig = make(max_events=400, overflow="drop_oldest")
    cuts = 0

    def script(peer: Peer) -> None:
        nonlocal cuts
        peer.ack(max(1, len(peer.waiting) * 2 // 3))
        if len(peer.got) > 60 and cuts < 8:
            cuts += 1
            peer.cut()

    rig.server.script = script
    lock = threading.Lock()
    pause = threading.Event()

    def call() -> None:
        for i in range(20_000):
            if i >= 1500:
                if cuts == 8 or not acks(setup):
                    return
                pause.wait(0.001)
            with lock:  # the rig remembers bodies
                rig.put(level=4 if i % 10 == 0 else 2)

    with rig.watched():
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rig.server.script = acknowledge
        for peer in rig.server.peers:
            if peer.open:
                peer.ack()
        stats = rig.settle()
    assert 6000 <= stats.sent == stats.acked + stats.handed + sum(stats.dropped.values())
    if acks(setup):
        assert cuts == 8 and stats.resent > 0 and stats.disconnects >= 8


def test_an_unencodable_event_fails_alone(make: Make, setup: Setup) -> None:
    rig = make(max_event_bytes=1000)
    for i in range(100):
        rig.put(POISON + b"%d" % i if i % 10 == 3 else b"good %d" % i)
    rig.put(b"x" * 1001)
    rig.put(b"\x04", kind=3)  # a tombstone: the caller's thread could not encode it
    stats = rig.settle()
    assert stats.failed == {"not_json": 10, "too_large": 1, "unencodable": 1}
    assert stats.acked + stats.handed == 90


def test_unencodable_events_alone_send_no_batch(make: Make) -> None:
    rig = make()
    for i in range(200):
        rig.put(POISON + b"%d" % i)
    stats = rig.settle()
    assert stats.failed == {"not_json": 200} and stats.batches == 0


@needs_setup(answers_single_events)
def test_a_rejected_event_fails_alone(make: Make, setup: Setup) -> None:
    rig = make()

    def script(peer: Peer) -> None:
        while peer.waiting:
            if peer.waiting[0].seq % 7 == 0:
                peer.reject()
            else:
                peer.ack(1)

    rig.server.script = script
    rig.many(70)
    stats = rig.settle()
    assert (stats.acked, stats.failed) == (60, {"rejected": 10})


# -- a poison -----------------------------------------------------------------------------------------


def ends_at_poison(on: Callable[[Got], bool], how: str = "cut") -> Callable[[Peer], None]:
    """A server that acknowledges events one by one and ends the connection at each event that is poison."""

    def script(peer: Peer) -> None:
        while peer.waiting and peer.open:
            if on(peer.waiting[0]):
                peer.cut() if how == "cut" else peer.reset()
            else:
                peer.ack(1)

    return script


def send_until(rig: Rig, what: Callable[[Stats], Any]) -> None:
    """Send events as the server takes them, for comparison, until the counts are as wanted."""

    def look(stats: Stats) -> Any:
        found = what(stats)
        if not found and stats.queued + stats.inflight < 100:
            rig.many(5)
        return found

    rig.until(look)


@pytest.mark.slow
@needs_setup(acks)
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_poison_fails_alone(make: Make, setup: Setup, how: str) -> None:
    rig = make(inflight=64)
    bad = {1, 58, 59} if how == "cut" else {58}
    rig.server.script = ends_at_poison(lambda got: got.seq in bad, how)
    rig.many(200)
    send_until(rig, lambda s: s.failed == {"poison": len(bad)})
    stats = rig.settle()
    assert (stats.acked, stats.failed, stats.quarantined) == (
        stats.sent - len(bad), {"poison": len(bad)}, 0
    )  # fmt: skip
    reports = [text for kind, text in rig.lines.lines if kind.startswith("poison")]
    assert len(reports) == len(bad)
    assert any(f"{rig.engine.producer.hex()}{58:012x} (8 bytes)" in text for text in reports)
    first = list(dict.fromkeys(got.seq for got in rig.server.events(stats.sent) if got.seq not in bad))
    rig.finish()
    in_order = [seq for seq in first if seq not in rig.books().deferred]
    assert in_order == sorted(in_order) and len(in_order) > stats.sent - 20, "in order, also around a poison"


@needs_setup(acks)
def test_poison_fails_without_new_events_to_compare_with(make: Make, setup: Setup) -> None:
    """Some of those that are queued are kept back for it."""
    rig = make(inflight=64)
    rig.server.script = ends_at_poison(lambda got: got.seq == 58)
    rig.many(200)
    stats = rig.until(lambda s: s.failed == {"poison": 1} and s.acked == 199)
    assert (stats.sent, stats.quarantined) == (200, 0)


@pytest.mark.slow
@needs_setup(acks)
def test_poison_waits_for_enough_events_to_compare_with(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = ends_at_poison(lambda got: got.body == b"bad")
    bad = rig.put(b"bad")
    rig.until(lambda s: s.disconnects >= 8)
    assert rig.stats().failed == {}, "no other event proves that the server takes any"
    rig.put(b"good")
    rig.until(lambda s: s.acked == 1)
    disconnects = rig.stats().disconnects
    rig.until(lambda s: s.disconnects >= disconnects + 8)
    stats = rig.stats()
    assert stats.failed == {} and stats.quarantined == 1, "one event is no proof"
    send_until(rig, lambda s: s.failed == {"poison": 1})
    stats = rig.settle()
    assert (stats.acked, stats.failed) == (stats.sent - 1, {"poison": 1})
    rig.finish()
    books = rig.books()
    assert books.outcomes[bad] == ("failed", "poison") and books.deferred == {bad}


@needs_setup(acks)
def test_random_breaks_condemn_no_event(make: Make, setup: Setup) -> None:
    rig = make(inflight=64, batch_events=8)
    random = Random(f"{setup}")

    def script(peer: Peer) -> None:
        while peer.waiting and peer.open:
            if random.random() < 0.1:
                peer.cut()
            else:
                peer.ack(min(8, len(peer.waiting)))

    rig.server.script = script
    rig.many(600)
    assert rig.settle().acked == 600


@pytest.mark.slow
@needs_setup(acks)
def test_close_does_not_wait_for_a_trial(make: Make, setup: Setup) -> None:
    """The neighbours are delivered first, all of them."""
    rig = make()
    rig.server.script = ends_at_poison(lambda got: got.body == b"bad")
    rig.put(b"bad")
    rig.put(b"good")
    rig.until(lambda s: s.quarantined == 1)
    rig.server.down()
    rig.many(150)
    rig.server.up()
    stats = rig.finish(1.0)
    assert stats.acked == 151 and sum(stats.failed.values()) == 1


@pytest.mark.slow
@needs_setup(acks)
def test_a_suspect_does_not_keep_its_neighbours_memory(make: Make, setup: Setup) -> None:
    rig = make(batch_events=50, max_bytes=64 << 20)
    rig.server.script = ends_at_poison(lambda got: got.body == b"bad")
    for n in range(1, 101):
        rig.put(b"bad" if n == 80 else bytes(10_000))
    stats = rig.until(lambda s: s.quarantined == 1 and s.acked == 99)
    assert stats.queued + stats.inflight == 1 and stats.queued_bytes < 100


@pytest.mark.slow
@needs_setup(acks)
def test_a_server_that_breaks_always_condemns_no_event(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = ends_at_poison(lambda got: True)
    rig.many(100)
    rig.until(lambda s: s.disconnects >= 25)
    assert rig.stats().failed == {}
    rig.server.script = acknowledge
    assert rig.settle().acked == 100
    rig.finish()
    assert not [kind for kind, _ in rig.lines.lines if kind.startswith("poison")]


@needs_setup(acks)
def test_full_windows_return_after_a_suspicion(make: Make, setup: Setup) -> None:
    rig = make(batch_events=50, inflight=64)
    rig.server.down()
    rig.many(50)
    rig.server.script = ends_at_poison(lambda got: len(rig.server.peers) <= 2)
    rig.server.up()
    assert rig.settle().acked == 50
    rig.server.script = silent
    rig.many(50)
    rig.until(lambda s: s.inflight == 50)
    peer = rig.server.peers[-1]
    rig.server.wait(lambda: len(peer.waiting) == 50)
    peer.ack()
    assert rig.settle().acked == 100


# -- bounds -------------------------------------------------------------------------------------------


@needs_setup(acks)
def test_max_events_counts_events_in_flight(make: Make, setup: Setup) -> None:
    rig = make(max_events=30, overflow="drop_new")
    rig.server.script = silent
    rig.many(30)
    rig.until(lambda s: s.inflight == 30)
    assert rig.put() == 0
    stats = rig.stats()
    assert (stats.sent, stats.dropped) == (31, {"overflow": 1})
    rig.server.script = acknowledge
    rig.server.peer(0).ack()
    rig.settle()
    assert rig.put() == 32


@needs_setup(acks)
def test_max_bytes_counts_events_kept_for_a_resend(make: Make, setup: Setup) -> None:
    rig = make(max_bytes=100 * 1024, overflow="drop_new")
    rig.server.script = silent
    body = b"x" * 1000
    while rig.put(body):
        pass
    n = len(rig.bodies)
    assert 90 <= n <= 102
    peer = rig.server.peer(0)
    rig.server.events(50)
    rig.server.down()
    peer.cut()
    rig.until(lambda s: s.inflight == 0 and s.disconnects == 1)
    assert rig.put(body) == 0, "a lost connection makes no room"
    assert rig.stats().queued_bytes <= 100 * 1024
    rig.server.script = acknowledge
    rig.server.up()
    assert rig.settle().acked == n


def test_an_event_larger_than_the_queue_is_too_large(make: Make) -> None:
    # Not: wait for room for ever, push everything else out, or find an empty queue full.
    for overflow in ("block", "drop_oldest", "drop_new", "raise"):
        rig = make(max_bytes=2048, max_event_bytes=4096, overflow=overflow)
        stop_listening(rig)
        assert rig.put(b"small") == 1
        assert rig.put(b"x" * 2047) == 2
        rig.server.up()
        stats = rig.settle()
        assert stats.failed == {"too_large": 1} and stats.acked + stats.handed == 1
        rig.finish()


def test_drop_oldest_drops_the_oldest(make: Make) -> None:
    rig = make(max_events=100, overflow="drop_oldest")
    stop_listening(rig)
    seqs = rig.many(250)
    assert seqs == list(range(1, 251))
    stats = rig.stats()
    assert stats.queued == 100 and stats.dropped == {"overflow": 150}
    rig.server.up()
    rig.settle()
    assert [g.seq for g in rig.server.events(100)] == seqs[150:]


def test_drop_oldest_keeps_errors(make: Make) -> None:
    rig = make(max_events=100, overflow="drop_oldest")
    stop_listening(rig)
    errors = [rig.put(level=4 if i % 5 == 0 else 2) for i in range(400)][::5]
    rig.server.up()
    rig.settle()
    seqs = [g.seq for g in rig.server.events(100)]
    assert seqs == sorted(seqs) and set(errors) <= set(seqs)


def test_drop_oldest_drops_errors_for_errors(make: Make) -> None:
    rig = make(max_events=10, overflow="drop_oldest")
    stop_listening(rig)
    rig.many(30, level=4)
    assert rig.put(level=2) == 0, "an ordinary one pushes out no error"
    rig.server.up()
    rig.settle()
    assert [g.seq for g in rig.server.events(10)] == list(range(21, 31))


def test_an_event_is_not_dropped_if_that_makes_no_room(make: Make) -> None:
    rig = make(max_bytes=2048, overflow="drop_oldest")
    stop_listening(rig)
    rig.put(b"e" * 1500, level=4)
    rig.put(b"small")
    assert rig.put(b"x" * 1000) == 0
    rig.server.up()
    stats = rig.settle()
    assert stats.acked + stats.handed == 2 and stats.dropped == {"overflow": 1}


def test_drop_new_drops_the_newest(make: Make) -> None:
    rig = make(max_events=100, overflow="drop_new")
    stop_listening(rig)
    seqs = rig.many(130)
    assert seqs == [*range(1, 101), *[0] * 30]
    rig.server.up()
    rig.settle()
    assert rig.put() == 131
    assert [g.seq for g in rig.server.events(101)] == [*range(1, 101), 131]


def test_raise_refuses_an_event_and_keeps_the_queue(make: Make) -> None:
    rig = make(max_events=5, overflow="raise")
    stop_listening(rig)
    assert rig.many(7) == [1, 2, 3, 4, 5, 0, 0]  # the client raises on 0
    assert rig.stats().dropped == {"overflow": 2}


def test_block_waits_for_room(make: Make, setup: Setup) -> None:
    rig = make(max_events=20, overflow="block")
    rig.server.down()
    rig.many(20)
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.extend(rig.many(200)))
    thread.start()
    rig.until(lambda s: s.queued == 20)
    assert not done
    rig.server.up()
    thread.join(PATIENCE)
    assert done == list(range(21, 221))
    assert rig.settle().dropped == {}


def test_block_times_out(make: Make) -> None:
    rig = make(max_events=3, overflow="block:20ms")
    stop_listening(rig)
    assert rig.many(5) == [1, 2, 3, 0, 0]
    assert rig.stats().dropped == {"overflow": 2}


def test_block_is_first_come_first_served(make: Make) -> None:
    """A large event waits behind those before it, never behind small ones that come later."""
    rig = make(max_events=1000, max_bytes=20_000, max_event_bytes=16_000, overflow="block")
    stop_listening(rig)
    rig.put(bytes(8000))
    seqs: dict[str, int] = {}
    threads = []
    for name, body in (("large", bytes(16_000)), ("small", b"s" * 10), ("smaller", b"s")):
        put = partial(lambda name, body: seqs.update({name: rig.put(body)}), name, body)
        threads.append(threading.Thread(target=put))
        threads[-1].start()
        place = len(threads)
        rig.until(lambda s: rig.engine.queue.waiting_callers == place)  # noqa: B023
    assert rig.engine.queue.fits(10) and not seqs
    rig.server.up()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(seqs.values()) == [2, 3, 4]
    assert rig.settle().dropped == {}


def test_a_large_event_does_not_starve(make: Make, setup: Setup) -> None:
    rig = make(max_events=1000, max_bytes=40_000, max_event_bytes=30_000, overflow="block")
    over = threading.Event()

    def small() -> None:
        while not over.is_set():
            rig.producer.put(b'{"m": "%s"}' % (b"x" * 1500), 2, 0)

    threads = [threading.Thread(target=small) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert rig.producer.put(b'{"m": "%s"}' % (b"y" * 29_000), 2, 0)
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert rig.settle().dropped == {}
    rig.bodies = {g.seq: g.body for p in rig.server.peers for g in p.got}


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no such signal")
def test_a_signal_handler_never_waits_for_room(make: Make) -> None:
    rig = make(max_events=1000, max_bytes=20_000, max_event_bytes=16_000, overflow="block")
    stop_listening(rig)
    rig.put(bytes(8000))
    thread = threading.Thread(target=rig.put, args=(bytes(16_000),))
    thread.start()
    rig.until(lambda s: rig.engine.queue.waiting_callers == 1)
    seqs: list[int] = []

    def handler(number: int, frame: object) -> None:
        seqs.extend((rig.put(b"fits"), rig.put(bytes(12_000))))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seqs == [2, 0], "what fits is taken at once, the rest dropped"
    rig.server.up()
    thread.join(PATIENCE)
    assert rig.settle().dropped == {"overflow": 1}


def test_close_ends_a_wait_for_room(make: Make) -> None:
    rig = make(max_events=3, overflow="block")
    stop_listening(rig)
    rig.many(3)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(rig.producer.put(b"one more", 2, 0)))
    thread.start()
    rig.waiter.close(0.05)
    thread.join(PATIENCE)
    assert answers == [0]
    stats = rig.finish()
    assert stats.failed == {"closed": 3} and stats.sent == 3


# -- order and resend ---------------------------------------------------------------------------------


@needs_setup(acks)
def test_only_unacknowledged_events_are_resent_in_order(make: Make, setup: Setup) -> None:
    rig = make(inflight=200 if setup.kind != "cumulative" else 8)
    rig.server.script = silent
    seqs = rig.many(200)
    peer = rig.server.peer(0)
    rig.server.events(200)
    peer.ack(77)
    rig.until(lambda s: s.acked == 77)  # a partial ack settles its events at once
    assert rig.stats().inflight == 123
    rig.server.script = acknowledge
    peer.cut()
    stats = rig.settle()
    assert [g.seq for g in rig.server.peers[1].got] == seqs[77:]
    assert (stats.acked, stats.resent, stats.disconnects) == (200, 123, 1)


@needs_setup(acks)
def test_acknowledgements_before_a_cut_count(make: Make, setup: Setup) -> None:
    # Acknowledged and cut at once: the acknowledgement counts.
    rig = make(inflight=100)

    def script(peer: Peer) -> None:
        if len(peer.got) >= 10:
            peer.ack(10)
            peer.cut()
            rig.server.script = acknowledge

    rig.server.script = script
    rig.many(40)
    rig.settle()
    first, second = (p.got for p in rig.server.peers[:2])
    assert [g.seq for g in second] == list(range(11, 41))
    assert [g.seq for g in first][:10] == list(range(1, 11))


@needs_setup(acks)
def test_new_events_never_pass_events_to_resend(make: Make, setup: Setup) -> None:
    rig = make(inflight=10 if setup.kind != "cumulative" else 1, batch_events=10)
    rig.server.script = silent
    rig.server.down()
    rig.many(30)
    rig.server.up()
    rig.server.events(10)
    rig.server.down()
    rig.server.peers[0].cut()
    rig.until(lambda s: s.disconnects == 1)
    rig.many(30)
    rig.server.script = acknowledge
    rig.server.up()
    rig.settle()
    assert [g.seq for g in rig.server.peers[1].got] == list(range(1, 61))


@needs_setup(acks)
def test_many_cuts_lose_and_reorder_no_event(make: Make, setup: Setup) -> None:
    rig = make(inflight=40 if setup.kind != "cumulative" else 3, batch_events=20)
    cuts = 0

    def script(peer: Peer) -> None:
        nonlocal cuts
        if cuts < 15 and len(peer.got) > 20:
            cuts += 1
            peer.ack(len(peer.waiting) // 2)
            peer.reset() if cuts % 3 == 0 else peer.cut()
        else:
            peer.ack()

    rig.server.script = script
    rig.many(1500)
    stats = rig.settle()
    assert stats.acked == 1500 and stats.disconnects == 15
    for peer in rig.server.peers:
        seqs = [g.seq for g in peer.got]
        assert seqs == sorted(seqs)
    firsts = list(dict.fromkeys(g.seq for p in rig.server.peers for g in p.got))
    assert firsts == list(range(1, 1501))


@needs_setup(answers_single_events)
def test_a_single_event_is_resent_on_request(make: Make, setup: Setup) -> None:
    rig = make()
    seen: set[int] = set()

    def script(peer: Peer) -> None:
        while peer.waiting:
            seq = peer.waiting[0].seq
            if seq % 10 == 0 and seq not in seen:
                seen.add(seq)
                peer.again()
            else:
                peer.ack(1)

    rig.server.script = script
    rig.many(100)
    stats = rig.settle()
    assert (stats.acked, stats.resent, stats.connects) == (100, 10, 1)


@needs_setup(lambda setup: setup.kind == "by_id")
def test_acknowledgements_may_come_out_of_order(make: Make, setup: Setup) -> None:
    rig = make(inflight=100)
    rig.server.script = silent
    rig.many(60)
    rig.server.events(60)
    peer = rig.server.peers[0]
    peer.answer(b"k", [g for g in peer.waiting if g.seq % 3])
    stats = rig.until(lambda s: s.acked == 40)
    assert stats.inflight == 20
    assert rig.waiter.flush(0.0) == 20, "what has its outcome is not outstanding"
    rig.server.script = acknowledge
    peer.cut()
    rig.settle()
    assert [g.seq for g in rig.server.peers[1].got] == list(range(3, 61, 3))


def test_many_small_batches_are_sent_without_another_turn(
    make: Make, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More batches than a pump sends between two looks; the last one must not stay behind until some
    # deadline makes the pump look again.
    monkeypatch.setattr(engine_module, "TURN", 3600.0)
    rig = make(inflight=256, batch_events=1)
    rig.server.script = silent
    stop_listening(rig)
    rig.many(256)
    rig.server.up()
    rig.server.events(256)
    rig.server.peers[0].ack()


@pytest.mark.slow
def test_a_stuck_server_delays_and_loses_nothing(make: Make, setup: Setup) -> None:
    rig = make(max_bytes=64 << 20, inflight=500)
    rig.server.stuck = True
    body = bytes(100_000)
    for _ in range(100):
        assert rig.put(body)
    if acks(setup):
        rig.until(lambda s: s.inflight > 0)
    with rig.server.changed:
        rig.server.stuck = False
        rig.server.changed.notify_all()
    rig.engine.queue.wake()
    stats = rig.settle()
    assert stats.acked + stats.handed == 100 and stats.connects == 1


# -- deadlines ----------------------------------------------------------------------------------------


@needs_setup(acks)
def test_silence_ends_a_connection(make: Make, setup: Setup) -> None:
    rig = make(silence=0.05)
    rig.server.script = silent
    rig.many(5)
    rig.server.events(5)
    rig.server.script = acknowledge
    stats = rig.settle()
    assert stats.acked == 5 and stats.disconnects >= 1
    (line, *_) = rig.lines.of("silence")
    words = ["no sign of life from the server in"]
    if setup.compiled and sys.platform == "linux":  # over TCP, where the build may ask what has arrived
        words.append("no answer in time: the server's system has")
    assert line.startswith(tuple(f"test://server: {address_of(rig)}: {one}" for one in words))


@pytest.mark.slow
def test_an_idle_connection_does_not_time_out(make: Make, setup: Setup) -> None:
    rig = make(silence=1.0)
    rig.many(3)
    rig.settle()
    threading.Event().wait(1.2)  # longer than the deadline: nothing was awaited
    rig.many(3)
    assert rig.settle().connects == 1


@needs_setup(acks)
def test_keep_alives_do_not_count_as_progress(make: Make, setup: Setup) -> None:
    rig = make(silence=0.1, progress_timeout=0.4)
    rig.server.script = silent
    rig.many(5)
    rig.server.events(5)
    peer = rig.server.peers[0]
    rig.server.script = acknowledge
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.01) and peer.open:
            peer.alive()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        stats = rig.settle()
    finally:
        over.set()
        thread.join()
    assert stats.acked == 5
    assert not rig.lines.of("silence")
    assert rig.lines.of("stalled")[0].endswith("the server is alive, but acknowledges nothing")


def address_of(rig: Rig) -> str:
    return ":".join(map(str, rig.server.endpoint))


# -- retry --------------------------------------------------------------------------------------------


def test_backoff_is_exponential_with_full_jitter() -> None:
    drawn = [0.0, 0.5, 0.999999]
    for value in drawn:
        backoff = Backoff(0.1, 30.0, lambda value=value: value)
        bounds = [min(30.0, 0.1 * 3.0**n) for n in range(100)]
        assert [backoff.delay() for _ in range(100)] == [pytest.approx(value * b) for b in bounds]
        backoff.reset()
        assert backoff.delay() == pytest.approx(value * 0.1)


class RecordedBackoff(Backoff):
    """A back-off that records its delays and resets, always at the upper bound."""

    made: list[RecordedBackoff]

    def __init__(self, shortest: float, longest: float) -> None:
        super().__init__(shortest, longest, lambda: 1.0)
        self.delays: list[float] = []
        self.resets = 0
        RecordedBackoff.made.append(self)

    def delay(self) -> float:
        self.delays.append(super().delay())
        return self.delays[-1]

    def reset(self) -> None:
        self.resets += 1
        super().reset()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[RecordedBackoff]:
    RecordedBackoff.made = []
    monkeypatch.setattr(endpoints, "Backoff", RecordedBackoff)
    return RecordedBackoff.made


@needs_setup(acks)
def test_only_an_acknowledgement_resets_the_backoff(
    make: Make, setup: Setup, watched: list[RecordedBackoff]
) -> None:
    rig = make(backoff_min=0.001, backoff_max=0.01)

    def slam(peer: Peer) -> None:
        peer.cut()

    rig.server.script = slam
    rig.put()  # one: with others beside it the next attempt may come at once, in search of a poison
    rig.server.peer(5)
    rig.server.script = acknowledge
    rig.settle()
    backoff = watched[0]
    assert backoff.delays[:5] == pytest.approx([0.001, 0.003, 0.009, 0.01, 0.01])
    rig.until(lambda s: backoff.resets)
    before = rig.stats().disconnects
    rig.server.peers[-1].cut()
    rig.until(lambda s: s.disconnects > before)
    rig.server.script = silent
    rig.many(3)
    rig.until(lambda s: s.inflight == 3)
    before = len(backoff.delays)
    rig.server.script = slam
    rig.server.peers[-1].cut()
    rig.until(lambda s: len(backoff.delays) > before)
    assert backoff.delays[before] == pytest.approx(0.001)
    rig.server.script = acknowledge
    rig.settle()


@needs_setup(acks)
def test_backoff_leaves_the_global_random_state_alone(make: Make) -> None:
    """An application that calls ``random.seed`` draws the same numbers beside a server that is down."""
    rig = make(backoff_min=0.001, backoff_max=0.01)
    rig.server.script = lambda peer: peer.cut()
    before = random.getstate()
    rig.many(3)
    rig.server.peer(8)
    rig.server.script = acknowledge
    rig.settle()
    assert random.getstate() == before


@needs_setup(no_acks)
@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_a_proven_connection_resets_the_backoff(
    make: Make, setup: Setup, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Without acknowledgements, a connection that took events and lasted resets the back-off."""
    monkeypatch.setattr(connection, "PROVEN", 0.02)
    monkeypatch.setattr(backoff, "random", lambda: 1.0)  # the longest waits
    rig = make(backoff_min=0.01, backoff_max=1000.0)
    # It was down for long: the next wait would be one of 40 s.
    rig.engine.lanes.first.endpoints.backoff.attempts = 12
    pause = threading.Event()
    for number in range(1, 8):
        rig.put()
        rig.until(lambda s, number=number: s.connects == number)
        for _ in range(12):
            for _ in range(200 if busy else 1):
                rig.put()
            pause.wait(0.005)  # so long that the connection has lasted
        rig.server.peers[-1].cut()
        rig.until(lambda s, number=number: s.disconnects == number)
    rig.settle()


@needs_setup(no_acks)
def test_immediate_cuts_lengthen_the_backoff(
    make: Make, setup: Setup, watched: list[RecordedBackoff]
) -> None:
    rig = make(backoff_min=0.01, backoff_max=0.1)
    rig.server.script = lambda peer: peer.cut()
    rig.put()
    rig.until(lambda s: rig.put() and len(watched[0].delays) >= 6)
    assert watched[0].delays[:6] == pytest.approx([0.01, 0.03, 0.09, 0.1, 0.1, 0.1])
    rig.server.script = lambda peer: None
    rig.settle()


def test_a_refused_connection_is_retried_and_reported(
    make: Make, setup: Setup, watched: list[RecordedBackoff]
) -> None:
    rig = make(backoff_min=0.001, backoff_max=0.004)
    rig.server.down()
    rig.many(3)
    rig.until(lambda s: len(watched[0].delays) >= 4)
    assert watched[0].delays[:4] == pytest.approx([0.001, 0.003, 0.004, 0.004])
    stats = rig.stats()
    assert stats.connects == 0 and stats.queued == 3
    assert stats.last_error == f"test://server: cannot connect to {address_of(rig)}: connection refused"
    rig.server.up()
    assert rig.settle().connects == 1


@needs_setup(acks)
def test_a_server_may_close_an_idle_connection(make: Make, setup: Setup) -> None:
    rig = make()
    rig.many(3)
    rig.settle()
    rig.server.peers[0].cut()
    rig.until(lambda s: s.disconnects == 1)
    assert rig.stats().last_error == "", "that is no failure"
    rig.many(3)
    assert rig.settle().connects == 2


@needs_setup(acks)
def test_detached_events_survive_a_cut(make: Make, setup: Setup) -> None:
    # The pump has detached a chunk, sent a batch of it, and lingers; the server acks the batch and cuts.
    rig = make(batch_events=5, linger=10.0)
    rig.server.down()
    rig.many(7)

    def script(peer: Peer) -> None:
        if len(peer.got) == 5:
            peer.ack()
            peer.cut()
            rig.server.script = acknowledge

    rig.server.script = script
    rig.server.up()
    rig.until(lambda s: s.disconnects == 1)
    rig.settle()
    assert [g.seq for g in rig.server.peers[1].got] == [6, 7]


@needs_setup(answers_single_events)
def test_an_answer_ends_the_linger_of_a_full_window(make: Make, setup: Setup) -> None:
    rig = make(inflight=1, linger=PATIENCE)
    rig.server.down()
    rig.many(5)
    rig.server.up()
    rig.settle()


def test_an_error_or_a_full_window_ends_the_linger(make: Make) -> None:
    rig = make(batch_events=5, inflight=100, linger=2 * PATIENCE)
    rig.put()
    rig.until(lambda s: s.acked + s.handed == 1)
    rig.put()
    rig.put(level=4)
    stats = rig.until(lambda s: s.acked + s.handed == 3)
    assert stats.batches == 2, "the event before it has waited"
    rig.many(4, level=4)
    rig.put()
    stats = rig.until(lambda s: s.acked + s.handed == 8)
    assert stats.batches == 3, "one error in a linger ends it, and the next one lasts its time"
    for _ in range(2):
        rig.put(b"x" * 600_000)
    rig.until(lambda s: s.acked + s.handed == 9)  # a window has room for one of them


def test_flush_does_not_wait_for_the_linger(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "CHECK", PATIENCE)  # who waits wakes the sender once
    rig = make(batch_events=5, inflight=100, linger=PATIENCE)
    rig.server.down()
    rig.many(7)  # a full batch, and one after a linger
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(rig.waiter.flush, PATIENCE / 2)
        rig.server.up()
        assert left.result() == 0


# -- age ----------------------------------------------------------------------------------------------


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "TURN", 0.02)


@pytest.mark.usefixtures("short_turns")
def test_old_events_fail_with_max_age(make: Make) -> None:
    rig = make(max_age=0.05)
    stop_listening(rig)
    rig.many(300)
    stats = rig.until(lambda s: s.queued == 0)
    assert stats.failed == {"max_age": 300}
    rig.server.up()
    rig.put()
    stats = rig.settle()
    assert stats.acked + stats.handed == 1


@pytest.mark.slow
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("step", [3600, -3600], ids=["forwards", "backwards"])
def test_max_age_when_the_clock_is_set(make: Make, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A step of the wall clock fails no young event and keeps no old one."""
    now = time.time_ns
    rig = make(max_age=0.3)
    stop_listening(rig)
    begin = time.monotonic()
    rig.many(30)
    rig.until(lambda s: s.turns > 1)
    monkeypatch.setattr(time, "time_ns", lambda: now() + step * 10**9)
    turns = rig.stats().turns
    stats = rig.until(lambda s: s.turns > turns + 2)
    assert stats.failed == {} or time.monotonic() - begin > 0.3
    stats = rig.until(lambda s: s.queued == 0)
    assert stats.failed == {"max_age": 30}
    assert time.monotonic() - begin >= 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("short_turns")
@needs_setup(acks)
def test_max_age_applies_to_events_to_resend(make: Make, setup: Setup) -> None:
    rig = make(max_age=0.5, batch_events=20, inflight=20 if setup.kind != "cumulative" else 1)
    rig.server.script = silent
    rig.server.down()
    rig.many(50)
    rig.server.up()
    rig.server.events(20)
    rig.server.down()
    rig.server.peers[0].cut()
    stats = rig.until(lambda s: s.queued + s.inflight == 0)
    assert stats.failed == {"max_age": 50}


# -- fatal --------------------------------------------------------------------------------------------


def test_a_fatal_answer_ends_sending_for_good(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = lambda peer: peer.say(b"!")
    rig.many(10)
    rig.until(lambda s: s.failed or not acks(setup))
    if not acks(setup):
        rig.until(lambda s: rig.engine.lanes.fatal is not None)
    rig.many(10)
    stats = rig.settle()
    assert stats.connects == 1
    assert stats.failed.get("fatal", 0) + stats.handed == 20
    assert stats.last_error == f"test://server: {address_of(rig)}: wrong version; nothing more will be sent"


@pytest.mark.parametrize("said", [b"\x00", b"garbage", b"kkkkkkkkkkkkkkkkkkkkkkk", b"A\xff\xff"])
def test_wrong_answers_end_the_connection(make: Make, setup: Setup, said: bytes) -> None:
    """No event is acknowledged twice by wrong answers, and none that was not sent."""
    rig = make()

    def script(peer: Peer) -> None:
        peer.say(said)
        rig.server.script = acknowledge if acks(setup) else silent

    rig.server.script = script
    rig.many(5)
    rig.until(lambda s: s.disconnects == 1)
    rig.put()
    stats = rig.settle()
    assert stats.acked + stats.handed == 6 and stats.connects == 2
    if acks(setup) and said != b"kkkkkkkkkkkkkkkkkkkkkkk":
        assert [g.seq for g in rig.server.peers[1].got] == [1, 2, 3, 4, 5, 6]


@needs_setup(acks)
def test_answers_may_be_split_at_every_byte(make: Make, setup: Setup) -> None:
    rig = make()
    original = Peer.say

    def slowly(peer: Peer, data: bytes) -> None:
        for i in range(len(data)):
            original(peer, data[i : i + 1])

    rig.server.script = silent
    rig.many(12)
    peer = rig.server.peer(0)
    rig.server.events(12)
    peer.say = slowly.__get__(peer)  # type: ignore[method-assign]
    peer.ack(5)
    peer.ack()
    assert rig.settle().acked == 12


# -- flush and close ----------------------------------------------------------------------------------


def test_flush_returns_the_number_of_events_left(make: Make) -> None:
    rig = make()
    assert rig.waiter.flush(0.0) == 0
    rig.server.down()
    rig.many(7)
    assert rig.waiter.flush(0.02) == 7
    rig.server.up()
    assert rig.waiter.flush(PATIENCE) == 0


@needs_setup(acks)
def test_flush_does_not_wait_for_later_events(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = lambda peer: peer.ack(max(0, len(peer.waiting) - 10))
    flushed = threading.Event()

    def send_later() -> None:
        while not flushed.is_set():
            rig.many(1)
            rig.server.events(len(rig.bodies))

    rig.many(10)
    later = threading.Thread(target=send_later)
    later.start()
    left = rig.waiter.flush(PATIENCE)
    flushed.set()
    later.join(PATIENCE)
    assert left == 0
    rig.until(lambda stats: stats.queued + stats.inflight == 10)
    rig.server.script = acknowledge
    rig.server.peers[0].ack()


def test_many_threads_may_flush(make: Make) -> None:
    rig = make()
    rig.many(100)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(rig.waiter.flush(PATIENCE))) for _ in range(8)]
    for thread in threads:
        thread.start()
        rig.many(20)
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [0] * 8


def test_close_delivers_the_queue(make: Make, setup: Setup) -> None:
    rig = make()
    rig.many(500)
    assert rig.waiter.close(PATIENCE) == 0
    stats = rig.finish()
    assert stats.acked + stats.handed == 500


def test_close_is_idempotent_and_final(make: Make) -> None:
    rig = make()
    rig.many(10)
    assert rig.waiter.close(PATIENCE) == 0
    assert rig.waiter.close(PATIENCE) == 0
    assert rig.put() == 0
    assert rig.waiter.flush(1.0) == 0
    stats = rig.finish()
    assert (stats.sent, stats.refused, stats.dropped) == (10, 1, {})


def test_many_threads_may_close(make: Make) -> None:
    rig = make()
    rig.many(50)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(rig.waiter.close(PATIENCE))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [0] * 5


def test_close_with_a_dead_server_gives_up(make: Make, setup: Setup) -> None:
    rig = make(backoff_min=5.0, backoff_max=5.0)
    rig.server.down()
    rig.many(10)
    assert rig.waiter.close(0.05) == 10
    stats = rig.finish()
    assert stats.failed == {"closed": 10}


@needs_setup(acks)
def test_close_with_a_silent_server_gives_up(make: Make, setup: Setup) -> None:
    rig = make()
    rig.server.script = silent
    rig.many(10)
    rig.until(lambda s: s.inflight == 10)
    assert rig.waiter.close(0.05) == 10
    assert rig.finish().failed == {"closed": 10}


def test_close_of_an_unused_engine_connects_nowhere(make: Make) -> None:
    rig = make()
    assert rig.waiter.close(1.0) == 0
    assert rig.finish().connects == 0


def test_nothing_happens_before_the_first_event(make: Make) -> None:
    before = threading.active_count()
    rig = make()
    assert threading.active_count() <= before + 1  # the server's own
    assert rig.server.attempts == 0 and rig.stats().connects == 0
    assert rig.ledger is not None and not list(rig.ledger.iterdir())
