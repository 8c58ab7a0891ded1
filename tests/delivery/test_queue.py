"""The queue: bounds and wake-ups, callers in many threads, waiting, and forks.

Its counts are compared with the reference in Python in test_inflight.py, where the sender takes part.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

from logclient._ext.constants import ACKED, INFLIGHT, K_TOMB, PUT_FORKED, PUT_FULL, R_UNENCODABLE
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from tests.oracle.queue import room_of
from tests.support.forks import FORKS, run_in_child
from tests.support.patience import PATIENCE, wait_until

pytestmark = pytest.mark.unit


def settle(in_flight: InflightBatches) -> None:
    """Take and acknowledge everything."""
    while (batch := in_flight.take(1000, 1 << 20)) is not None:
        for event in batch.pending():
            batch.mark(event.seq, INFLIGHT)
        in_flight.encoded(batch)
    in_flight.apply([(1, 1 << 40)], ACKED)
    in_flight.commit()


# -- one thread ---------------------------------------------------------------------------------------


def test_push_counts_events_and_bytes() -> None:
    h = EventQueue()
    assert [h.push(b"x" * i) for i in range(3)] == [1, 2, 3]
    assert h.queued == (3, room_of(0) + room_of(1) + room_of(2)) == (3, 24 + 32 + 32)
    assert h.next_seq == 4 and h.settled == 0
    h.count_changed(2, 3)
    h.count_ignored()
    counts = h.counters()
    assert (counts["sanitized"], counts["moved"], counts["ignored"], counts["sent"]) == (2, 3, 1, 3)


def test_tombstones_keep_their_reason() -> None:
    h = EventQueue(max_event_bytes=10)
    h.push(bytes([R_UNENCODABLE]), 2, K_TOMB)
    h.push(b"x" * 11)
    in_flight = InflightBatches(h)
    assert in_flight.take(10, 1 << 20) is not None
    assert in_flight.take_report() == [(1, 1, "failed", "unencodable"), (2, 2, "failed", "too_large")]


def test_event_times_are_the_given_ones_or_now() -> None:
    h = EventQueue()
    before = time.time_ns() // 1000
    h.push(b"", 2, 0, 12345)
    h.push(b"")
    batch = InflightBatches(h).take(10, 1 << 20)
    assert batch is not None
    first, second = batch.pending()
    assert first.created_us == 12345
    assert before - 1000 <= second.created_us <= time.time_ns() // 1000 + 1000


def test_close_refuses_events_and_ends_waits() -> None:
    h = EventQueue(policy="block", max_events=1)
    h.push(b"")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(h.ticket(1).wait(PATIENCE)))
    thread.start()
    h.close()
    thread.join(PATIENCE)
    assert answers == [True] and h.push(b"") == 0 and h.next_seq == 2
    h.refuse()
    assert h.counters()["dropped"] == {"closed": 2}


def test_events_larger_than_a_chunk_stay_whole() -> None:
    h = EventQueue(max_event_bytes=1 << 20)
    random = Random(1)
    bodies = [random.randbytes(size) for size in (65_447, 65_448, 65_449, 200_000, 10, 1 << 20)]
    for body in bodies:
        assert h.push(body) > 0
    in_flight = InflightBatches(h)
    found = []
    while (batch := in_flight.take(2, 1 << 30)) is not None:
        found += [e.body for e in batch.pending()]
    assert found == bodies


# -- memory --------------------------------------------------------------------------------------------

MIB = 1 << 20
KEPT = 4 * MIB
"""What is kept for good."""


def fill(h: EventQueue, size: int, volume: int) -> None:
    for _ in range(volume // size):
        assert h.push(bytes(size)) > 0


def test_the_empty_end_of_a_chunk_is_a_multiple_of_eight() -> None:
    """The log of a spool copies whole chunks, and its blocks begin at multiples of eight bytes."""
    events, room = 9, room_of(8000)
    queue = EventQueue(max_bytes=events * room + 1001, policy="drop_new")
    for _ in range(events):
        assert queue.push(bytes(8000)) > 0
    # Eight fill the first chunk but for 1,280 bytes, of which the bound leaves 1,001.
    assert queue.queued == (events, events * room + 1000)


@pytest.mark.parametrize("size", [300, 8000, 64 << 10, 100_000, MIB, 2 * MIB - 100])
def test_chunks_are_reused(size: int) -> None:
    h = EventQueue(max_event_bytes=2 * MIB)
    in_flight = InflightBatches(h)
    fill(h, size, 16 * MIB)
    assert h.free_bytes == 0
    settle(in_flight)
    before = h.free_bytes
    assert h.queued == (0, 0) and 15 * MIB < before < 18 * MIB
    fill(h, size, 16 * MIB)
    assert h.free_bytes == 0
    settle(in_flight)
    assert h.free_bytes == before


def test_free_chunks_of_one_size_give_way_to_another() -> None:
    h = EventQueue(max_bytes=16 * MIB, max_event_bytes=4 * MIB, policy="drop_oldest")
    in_flight = InflightBatches(h)
    sizes = (300, 64 << 10, 70_000, 3 * MIB, 200_000, 20, MIB)
    for size in sizes:
        fill(h, size, 24 * MIB)
        assert h.free_bytes + h.queued[1] <= 16 * MIB + KEPT
        settle(in_flight)
        assert h.free_bytes <= 16 * MIB + KEPT
    while sizes:  # all sizes at once, and fewer and fewer
        for i in range(2000):
            assert h.push(bytes(min(sizes[i % len(sizes)], 200_000))) > 0
            assert h.free_bytes + h.queued[1] <= 16 * MIB + KEPT
        sizes = sizes[1:]


def test_unused_chunks_are_freed() -> None:
    h = EventQueue(free_after=0.0)
    in_flight = InflightBatches(h)
    fill(h, 64 << 10, 32 * MIB)
    settle(in_flight)  # it is needed until here
    assert h.free_bytes > 31 * MIB
    in_flight.commit()
    assert KEPT - MIB < h.free_bytes <= KEPT
    fill(h, 300, 2 * MIB)
    in_flight.commit()
    settle(in_flight)
    in_flight.commit()
    assert KEPT - MIB < h.free_bytes <= KEPT, "4 MiB are kept for good"


# -- wake-ups -------------------------------------------------------------------------------------------


def readable(h: EventQueue) -> bool:
    return bool(select.select([h.fileno()], [], [], 0)[0])


def is_at(fd: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), file)
    except OSError:
        return False


def with_sender(**bounds: int) -> EventQueue:
    """A queue whose sender has opened what wakes it."""
    h = EventQueue(**bounds)
    assert h.fileno() < 0, "nothing is open before there is a sender"
    h.open_wake()
    return h


def test_an_event_ends_the_rest_of_a_sender() -> None:
    h = with_sender()
    sender = threading.Thread(target=lambda: h.wait_for_wake(2 * PATIENCE, for_event=True))
    sender.start()
    wait_until(h.pause_for_fork)
    h.resume_after_fork()
    h.push(b"")
    sender.join(PATIENCE)
    assert not sender.is_alive() and not readable(h)
    sender = threading.Thread(target=lambda: h.wait_for_wake(2 * PATIENCE, for_event=True))
    sender.start()
    sender.join(PATIENCE)
    assert not sender.is_alive(), "it is still queued"


def test_a_busy_sender_is_not_woken() -> None:
    h = with_sender(full_events=2)
    for _ in range(10):
        h.push(b"", 5)
    assert not readable(h)
    h.wake()
    assert readable(h)
    h.wait_for_wake(PATIENCE)
    assert not readable(h)


def test_a_number_that_another_file_has_is_left_alone() -> None:
    """Whether the sender or a caller finds it: never written, read or closed; the sender opens a new pipe."""
    for notice in (EventQueue.wake, EventQueue.leave_fork_safe, EventQueue.open_wake, EventQueue.release):
        h = with_sender()
        pipe = os.fstat(h.fileno())
        numbers = [fd for fd in map(int, os.listdir("/dev/fd")) if is_at(fd, pipe)]
        assert len(numbers) == 2
        mine, peer = socket.socketpair()
        with mine, peer:
            peer.send(b"for the program")
            for fd in numbers:
                os.dup2(mine.fileno(), fd)
            try:
                notice(h)
                h.wake()
                assert not select.select([peer], [], [], 0)[0], "nothing was written"
                assert mine.recv(100) == b"for the program", "nothing was read"
                if notice is not EventQueue.release:
                    h.open_wake()
                    assert h.fileno() not in numbers
                    h.wake()
                    assert readable(h)
                h.release()
                del h
                assert all(is_at(fd, os.fstat(mine.fileno())) for fd in numbers), "nothing was closed"
            finally:
                for fd in numbers:
                    os.close(fd)


# -- waiting ------------------------------------------------------------------------------------------


def test_wait_settled_ends_when_the_events_are_settled() -> None:
    h = EventQueue()
    assert h.wait_settled(0, 0.0)
    h.push(b"")
    assert not h.wait_settled(1, 0.0) and not h.wait_settled(1, 0.01)
    in_flight = InflightBatches(h)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(h.wait_settled(1, PATIENCE))) for _ in range(4)]
    for thread in threads:
        thread.start()
    settle(in_flight)
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [True] * 4


def test_commit_tells_when_the_flush_target_is_reached() -> None:
    h = EventQueue()
    in_flight = InflightBatches(h)
    for _ in range(3):
        h.push(b"")
    h.set_flush_target(2)
    h.set_flush_target(3)  # the nearer one stays
    batch = in_flight.take(10, 1 << 20)
    assert batch is not None
    for event in batch.pending():
        batch.mark(event.seq, INFLIGHT)
    in_flight.encoded(batch)
    in_flight.apply([(1, 1)], ACKED)
    assert not in_flight.commit()
    in_flight.apply([(2, 2)], ACKED)
    assert in_flight.commit()
    in_flight.apply([(3, 3)], ACKED)
    assert not in_flight.commit(), "the target is reached already"
    h.set_flush_target(3)
    assert not in_flight.commit(), "it was settled before"


def test_signal_handlers_run_while_callers_wait() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))

    def when_heard(act: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=lambda: wait_until(lambda: received) and act())
        thread.start()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        return thread

    try:
        h = EventQueue(policy="block", max_events=1)
        h.push(b"")
        thread = when_heard(h.close)
        assert h.ticket(1).wait(PATIENCE)
        thread.join(PATIENCE)
        received.clear()
        thread = when_heard(lambda: settle(InflightBatches(h)))
        assert h.wait_settled(1, PATIENCE)
        thread.join(PATIENCE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- room for those that wait -------------------------------------------------------------------------


def waiting_caller(h: EventQueue, body: bytes, answers: list[tuple[int, bytes]]) -> threading.Thread:
    """Start a caller that waits for room; return its thread once it stands in line."""

    def run() -> None:
        ticket = h.ticket(len(body))
        assert ticket.wait(PATIENCE)
        answers.append((h.push(body, ticket=ticket), body))

    place = h.waiting_callers + 1
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: h.waiting_callers == place)
    return thread


def test_waiting_callers_are_served_in_order() -> None:
    h = EventQueue(policy="block", max_events=1)
    in_flight = InflightBatches(h)
    h.push(b"")
    answers: list[tuple[int, bytes]] = []
    threads = [waiting_caller(h, b"%d" % i, answers) for i in range(8)]
    for i in range(8):
        settle(in_flight)
        wait_until(lambda: len(answers) == i + 1)  # noqa: B023
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [(i + 2, b"%d" % i) for i in range(8)]


def test_small_events_do_not_pass_a_waiting_large_one() -> None:
    h = EventQueue(policy="block", max_bytes=10_000, max_event_bytes=8000)
    in_flight = InflightBatches(h)
    h.push(bytes(4000))
    answers: list[tuple[int, bytes]] = []
    thread = waiting_caller(h, bytes(8000), answers)
    assert h.push(b"small") == PUT_FULL and h.fits(5)
    settle(in_flight)
    thread.join(PATIENCE)
    assert answers == [(2, bytes(8000))]
    assert h.push(b"small") == 3


def test_granted_room_is_reserved() -> None:
    h = EventQueue(policy="block", max_events=2)
    in_flight = InflightBatches(h)
    h.push(b"")
    h.push(b"")
    ticket = h.ticket(1)
    assert not ticket.is_ready() and h.waiting_callers == 1
    settle(in_flight)
    assert ticket.is_ready() and h.waiting_callers == 0
    assert h.push(b"") == 3 and h.push(b"") == PUT_FULL, "the other half of the room is spoken for"
    assert h.counters()["queued"] == 1
    assert h.push(b"", ticket=ticket) == 4


def test_a_caller_that_gives_up_lets_the_next_one_go() -> None:
    h = EventQueue(policy="block", max_bytes=10_000, max_event_bytes=8000)
    h.push(bytes(4000))
    large = h.ticket(8000)
    assert not large.wait(0.0)
    answers: list[tuple[int, bytes]] = []
    thread = waiting_caller(h, b"small", answers)
    large.leave()
    thread.join(PATIENCE)
    assert answers == [(2, b"small")]
    # And so does one that is collected.
    large = h.ticket(8000)
    assert not large.is_ready() and h.push(b"small") == PUT_FULL
    del large
    assert h.push(b"small") == 3


def test_room_granted_and_given_up_goes_to_the_next() -> None:
    h = EventQueue(policy="block", max_events=1)
    in_flight = InflightBatches(h)
    h.push(b"")
    first = h.ticket(1)
    assert not first.is_ready()
    answers: list[tuple[int, bytes]] = []
    thread = waiting_caller(h, b"second", answers)
    settle(in_flight)
    assert first.is_ready() and h.waiting_callers == 1
    first.leave()
    thread.join(PATIENCE)
    assert answers == [(2, b"second")] and h.waiting_callers == 0


def test_an_exception_in_a_signal_handler_ends_the_wait() -> None:
    def handler(number: int, frame: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        h = EventQueue(policy="block", max_bytes=10_000, max_event_bytes=8000)
        h.push(bytes(4000))
        ticket = h.ticket(8000)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(ZeroDivisionError):
            ticket.wait(PATIENCE)
        assert h.waiting_callers == 0 and h.push(b"small") == 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- many threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_every_pushed_event_is_delivered_or_dropped(policy: str) -> None:
    """Three producers and a consumer: every event arrives once, whole and in order, or lies inside a reported
    gap."""
    h = EventQueue(policy=policy, max_bytes=256 * 1024)
    in_flight = InflightBatches(h)
    n = 20_000
    given = [0, 0, 0]
    refused = [0, 0, 0]
    done = threading.Event()

    def produce(k: int) -> None:
        for i in range(n):
            body = b"%d:%d:" % (k, i) + bytes((k + 65,)) * (i % 300)
            if h.push(body, 4 if i % 50 == 0 else 2):
                given[k] += 1
            else:
                refused[k] += 1

    seen: list[tuple[int, bytes]] = []
    dropped = 0

    def account() -> int:
        return sum(b - a + 1 for a, b, status, _ in in_flight.take_report() if status == "dropped")

    def consume() -> None:
        nonlocal dropped
        while True:
            last = done.is_set()
            while (batch := in_flight.take(500, 1 << 20)) is not None:
                for event in batch.pending():
                    seen.append((event.seq, event.body))
                    batch.mark(event.seq, INFLIGHT)
                in_flight.encoded(batch)
                in_flight.apply([(1, 1 << 40)], ACKED)
                in_flight.commit()
            in_flight.report_gaps()
            dropped += account()
            if last:
                return

    producers = [threading.Thread(target=produce, args=(k,)) for k in range(3)]
    consumer = threading.Thread(target=consume)
    for thread in [*producers, consumer]:
        thread.start()
    for thread in producers:
        thread.join(4 * PATIENCE)
    done.set()
    consumer.join(4 * PATIENCE)
    counts = h.counters()
    assert counts["sent"] == 3 * n == len(seen) + dropped
    assert counts["acked"] == len(seen) and counts["dropped"].get("overflow", 0) == dropped
    assert counts["queued"] == counts["queued_bytes"] == 0
    assert counts["settled"] == 3 * n
    seqs = [seq for seq, _ in seen]
    assert seqs == sorted(set(seqs))
    latest = [-1, -1, -1]
    for _, body in seen:
        k, i, filling = body.split(b":")
        assert filling == bytes((int(k) + 65,)) * (int(i) % 300)
        assert int(i) > latest[int(k)], "of one thread, in order"
        latest[int(k)] = int(i)
    if policy == "drop_new":
        assert sum(given) == len(seen) and sum(refused) == dropped


def test_errors_are_kept_when_the_queue_overflows() -> None:
    h = EventQueue(policy="drop_oldest", max_events=5000)
    for i in range(50_000):
        assert h.push(b"%d" % i, 4 if i % 20 == 0 else 2)
    in_flight = InflightBatches(h)
    levels = []
    while (batch := in_flight.take(1000, 1 << 20)) is not None:
        levels += [event.level for event in batch.pending()]
    assert levels.count(4) == 2500 and len(levels) == 5000


# -- fork ---------------------------------------------------------------------------------------------


def test_a_waiting_sender_can_be_paused() -> None:
    h = with_sender()
    assert not h.pause_for_fork(), "no sender sleeps"
    ended = threading.Event()

    def wait() -> None:
        h.wait_for_wake(PATIENCE)
        ended.set()

    sender = threading.Thread(target=wait)
    sender.start()
    wait_until(h.pause_for_fork)
    h.wake()
    assert not ended.wait(0.2)
    h.resume_after_fork()
    assert ended.wait(PATIENCE)
    sender.join()
    assert not h.pause_for_fork(), "no sender sleeps any more"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("fork", FORKS)
def test_a_forked_child_gets_a_new_queue(fork: str) -> None:
    """In either kind of fork the child neither counts for the parent nor waits for its locks."""
    h = EventQueue()
    h.push(b"parent's")

    def work() -> None:
        assert h.forked and h.push(b"x") == PUT_FORKED
        h.count_changed(1, 1)
        h.count_ignored()
        h.renew()
        assert not h.forked and h.queued == (0, 0) and h.push(b"x") == 1
        assert h.counters()["sanitized"] == h.counters()["moved"] == h.counters()["ignored"] == 0

    run_in_child(work, FORKS[fork])
    assert not h.forked and h.queued[0] == 1 and h.push(b"x") == 2


@pytest.mark.parametrize(
    ("policy", "answer"), [("block", PUT_FULL), ("raise", PUT_FULL), ("drop_new", 0), ("drop_oldest", 3)]
)
def test_each_policy_answers_at_the_bound(policy: str, answer: int) -> None:
    h = EventQueue(policy=policy, max_events=2)
    h.push(b"1")
    h.push(b"2")
    assert not h.fits(1)
    assert h.push(b"3") == answer


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(KeyError):
        EventQueue(policy="keep_all")


def test_lost_events_are_kept_in_one_place() -> None:
    queue = EventQueue(max_events=1, policy="drop_new")
    queue.keep_lost(1 << 20)
    queue.push(b"{}", 2, 0)
    queue.push(b"lost", 2, 0)
    with pytest.raises(RuntimeError, match="kept already"):
        queue.keep_lost(1 << 20)
    assert [lost[4] for lost in queue.take_lost()[0]] == [b"lost"]
