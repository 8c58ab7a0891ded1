"""Callbacks of submitted events: contained, bounded, and run before a client ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from logclient._ext.queue import EventQueue
from logclient.delivery import outcomes
from logclient.delivery.outcomes import CallbackThread, Delivery, Outcome, Submissions
from tests.cores.rig import Rig, Setup
from tests.cores.server import silent
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE, wait_until

Make = Callable[..., Rig]
FIFO = Setup("fifo")


class GreenletExit(BaseException):
    """The exception of greenlet with this name."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise GreenletExit


def submit(rig: Rig, body: bytes = b"x") -> Delivery:
    delivery = rig.producer.submit(body, 2, 0)
    if delivery.seq:
        rig.bodies[delivery.seq] = body
    return delivery


class Gate:
    """A callback that waits until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, *_: Any) -> None:
        self.entered.set()
        assert self.open.wait(PATIENCE)


def test_public_attributes_of_a_delivery() -> None:
    public = {name for name in dir(Delivery) if not name.startswith("_")}
    assert public == {"add_done_callback", "cancel", "done", "result", "seq", "stored"}


# -- whatever a callback raises -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GreenletExit("gone"), "GreenletExit: gone"),
        (GeneratorExit(), "GeneratorExit"),
        (pytest.fail.Exception("no"), "Failed: no"),
        (Unprintable(), "Unprintable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_in_a_callback_is_contained_and_reported(
    build: Make, error: BaseException, words: str
) -> None:
    rig = build(FIFO)
    ran = threading.Semaphore(0)

    def bad(delivery: Delivery) -> None:
        raise error

    submit(rig).add_done_callback(bad)
    rig.settle()
    wait_until(lambda: rig.lines.of("callback"))
    for _ in range(3):
        submit(rig).add_done_callback(lambda delivery: ran.release())
    assert all(ran.acquire(timeout=PATIENCE) for _ in range(3))
    assert rig.lines.of("callback") == [f"a callback raised {words}"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_callback_thread_is_replaced() -> None:
    runner = CallbackThread(lambda kind, text: None)
    call = runner._call
    dead: list[threading.Thread] = []

    def end(*job: Any) -> None:
        runner._call = call  # type: ignore[method-assign]
        call(*job)
        dead.append(threading.current_thread())
        raise SystemExit  # as if the thread had been ended from outside

    runner._call = end  # type: ignore[method-assign]
    first, second = threading.Event(), threading.Event()
    runner.queue(first.set)
    assert first.wait(PATIENCE)
    runner.queue(second.set)
    assert second.wait(PATIENCE)
    dead[0].join(PATIENCE)


def test_what_is_settled_before_its_delivery_is_known_has_its_outcome() -> None:
    """As when a signal handler that waits for the sender interrupts a call that submits."""

    class Quick:
        forked = False

        def push(self, *_: Any) -> int:
            sender = threading.Thread(target=submissions.settle, args=([(1, 7, "acked", "")],))
            sender.start()
            sender.join(PATIENCE)
            assert not sender.is_alive()
            return 7

    runner = CallbackThread(lambda kind, text: None)
    submissions = Submissions(Quick(), 10, runner, lambda: None)  # type: ignore[arg-type]
    delivery = Delivery(0, runner)
    assert submissions.push(b"{}", 2, 0, delivery) == 7
    assert delivery.result(0) == Outcome("acked") and not submissions.deliveries


def test_what_another_thread_has_settled_meanwhile_keeps_its_outcome() -> None:
    """As at the end of the process: a caller fails the rest while the sender settles some."""

    class Overtaken(CallbackThread):
        def queue(self, callback: Callable[..., object], *given: Any) -> None:
            other = threading.Thread(target=submissions.fail_rest)
            other.start()
            other.join(PATIENCE)
            super().queue(callback, *given)

    runner = Overtaken(lambda kind, text: None)
    submissions = Submissions(EventQueue(), 10, runner, lambda: None)
    deliveries = [Delivery(0, runner) for _ in range(3)]
    assert [submissions.push(b"{}", 2, 0, delivery) for delivery in deliveries] == [1, 2, 3]
    ran = threading.Event()
    deliveries[0].add_done_callback(lambda delivery: ran.set())
    submissions.settle([(1, 2, "acked", "")])
    found = [delivery.result(0) for delivery in deliveries]
    assert found == [Outcome("acked"), Outcome("failed", "closed"), Outcome("failed", "closed")]
    assert not submissions.deliveries and ran.wait(PATIENCE)


# -- how many may wait ----------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of submitted events and callbacks that are allowed beyond `max_events`."""
    monkeypatch.setattr(outcomes, "MAX_UNREPORTED_DELIVERIES", 20)
    return 20


def test_block_waits_for_slow_callbacks(build: Make, few: int) -> None:
    rig = build(FIFO, max_events=10, overflow="block")
    gate = Gate()
    submitted = 0

    def run() -> None:
        nonlocal submitted
        while not gate.open.is_set():
            submit(rig).add_done_callback(gate)
            submitted += 1

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.entered.wait(PATIENCE)
    wait_until(lambda: rig.engine.submissions.callbacks.waiting == 10 + few)
    before = submitted
    assert not thread.join(0.05) and submitted == before, "it waits"
    gate.open.set()
    thread.join(PATIENCE)
    assert not thread.is_alive() and rig.settle().dropped == {}


def test_block_times_out_while_callbacks_are_slow(build: Make, few: int) -> None:
    rig = build(FIFO, max_events=10, overflow="block:20ms")
    gate = Gate()
    submit(rig).add_done_callback(gate)
    assert gate.entered.wait(PATIENCE)
    for _ in range(10 + few):
        submit(rig).add_done_callback(gate)
    rig.settle()
    wait_until(lambda: rig.engine.submissions.callbacks.waiting == 10 + few)
    late = submit(rig)
    assert late.result(0) == Outcome("dropped", "overflow")
    gate.open.set()


@pytest.mark.parametrize("overflow", ["drop_new", "drop_oldest", "raise"])
def test_other_policies_drop_while_callbacks_are_slow(build: Make, few: int, overflow: str) -> None:
    """The callback of an event that is refused at once runs in the calling thread."""
    rig = build(FIFO, max_events=10, overflow=overflow)
    gate = Gate()
    submit(rig).add_done_callback(gate)
    rig.settle()
    assert gate.entered.wait(PATIENCE)
    outcomes: list[Outcome | None] = []
    threads: set[str] = set()

    def note(delivery: Delivery) -> None:
        outcomes.append(delivery.result(0))
        threads.add(threading.current_thread().name)

    for _ in range(200):
        submit(rig).add_done_callback(note)
    rig.settle()
    assert rig.engine.submissions.callbacks.waiting <= 10 + few
    assert threads == {threading.current_thread().name}
    gate.open.set()
    wait_until(lambda: len(outcomes) == 200)
    refused = outcomes.count(Outcome("dropped", "overflow"))
    assert refused == rig.stats().dropped["overflow"] >= 200 - 10 - few
    assert outcomes.count(Outcome("acked")) == 200 - refused


def test_a_callback_may_submit_a_refused_event_again(build: Make, few: int) -> None:
    """A callback that submits a refused event again neither recurses nor blocks."""
    rig = build(FIFO, max_events=10, overflow="drop_new")
    gate = Gate()
    submit(rig).add_done_callback(gate)
    rig.settle()
    assert gate.entered.wait(PATIENCE)
    acked = threading.Semaphore(0)

    def again(delivery: Delivery) -> None:
        outcome = delivery.result(0)
        assert outcome is not None
        if outcome.ok:
            acked.release()
        else:
            submit(rig).add_done_callback(again)

    for _ in range(100):
        submit(rig).add_done_callback(again)
    gate.open.set()
    assert all(acked.acquire(timeout=PATIENCE) for _ in range(100))


def test_a_callback_that_submits_does_not_wait_for_itself(build: Make, few: int) -> None:
    rig = build(FIFO, max_events=10, overflow="block")
    gate = Gate()
    ran = threading.Semaphore(0)
    submit(rig).add_done_callback(gate)
    assert gate.entered.wait(PATIENCE)

    def more(delivery: Delivery) -> None:
        submit(rig)
        ran.release()

    for _ in range(10 + few):
        submit(rig).add_done_callback(more)
    rig.settle()
    gate.open.set()
    assert all(ran.acquire(timeout=PATIENCE) for _ in range(10 + few))
    assert rig.settle().acked == 2 * (10 + few) + 1


# -- the end of a client --------------------------------------------------------------------------------


def test_close_runs_waiting_callbacks(build: Make) -> None:
    rig = build(FIFO)
    ran: list[int] = []
    for _ in range(100):
        submit(rig).add_done_callback(lambda delivery: (time.sleep(0.0005), ran.append(delivery.seq)))
    rig.finish(PATIENCE)
    assert ran == list(range(1, 101))
    assert rig.lines.of("callbacks") == []


def test_close_runs_callbacks_of_events_it_gives_up(build: Make) -> None:
    rig = build(FIFO)
    rig.server.down()
    ran: list[Outcome | None] = []
    for _ in range(10):
        submit(rig).add_done_callback(lambda delivery: ran.append(delivery.result(0)))
    rig.finish(0.0)
    assert ran == [Outcome("failed", "closed")] * 10


def test_close_reports_the_number_of_callbacks_not_run(build: Make) -> None:
    rig = build(FIFO)
    gate = Gate()
    for _ in range(10):
        submit(rig).add_done_callback(gate)
    rig.settle()
    wait_until(lambda: rig.stats().callbacks == 9)
    rig.finish(0.1)
    assert rig.lines.of("callbacks") == [
        "test://server: 10 callbacks had not run when close() ended; that goes on while the process lives"
    ]
    gate.open.set()
    wait_until(lambda: rig.stats().callbacks == 0)


def test_close_in_a_callback_does_not_wait_for_itself(build: Make) -> None:
    rig = build(FIFO)
    ran = threading.Semaphore(0)
    submit(rig).add_done_callback(lambda delivery: rig.waiter.close(PATIENCE))
    submit(rig).add_done_callback(lambda delivery: ran.release())
    assert ran.acquire(timeout=PATIENCE)
    assert rig.lines.of("callbacks") == []


def test_exit_runs_waiting_callbacks_or_reports_them(build: Make) -> None:
    rig = build(FIFO)
    gate = Gate()
    ran: list[int] = []
    for _ in range(10):
        submit(rig).add_done_callback(lambda delivery: ran.append(delivery.seq))
    rig.exit(time.monotonic() + PATIENCE)
    rig.engine.wait_for_callbacks(time.monotonic() + PATIENCE)
    assert len(ran) == 10
    rig.reopen()
    for _ in range(3):
        submit(rig).add_done_callback(gate)
    wait_until(lambda: rig.stats().callbacks == 2)
    rig.engine.wait_for_callbacks(time.monotonic() + 0.05)
    assert rig.lines.of("callbacks") == ["test://server: 3 callbacks did not run before exit"]
    gate.open.set()


# -- out of threads -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_threads_the_sender_runs_no_callback(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = build(FIFO)
    rig.server.script = silent
    start = threading.Thread.start
    short = [True]

    def refuse(thread: threading.Thread) -> None:
        if short and thread.name == "logclient-callbacks":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names: list[str] = []
    delivery = submit(rig)
    delivery.add_done_callback(lambda delivery: names.append(threading.current_thread().name))
    rig.server.events(1)
    rig.server.peers[0].ack()
    assert delivery.result(PATIENCE) == Outcome("acked")
    assert rig.waiter.flush(PATIENCE) == 0 and names == []
    short.clear()
    wait_until(lambda: names)  # without another event
    assert names == ["logclient-callbacks"]


# -- fork -----------------------------------------------------------------------------------------------


@needs_fork
def test_fork_beside_a_busy_callback_thread(build: Make) -> None:
    """The child runs the callbacks of deliveries that failed by the fork; the parent alone runs those of
    events that were settled before it."""
    rig = build(FIFO)
    gate = Gate()
    ran: list[tuple[int, str]] = []

    def note(delivery: Delivery) -> None:
        outcome = delivery.result(0)
        assert outcome is not None
        ran.append((os.getpid(), outcome.status))

    first, settled = submit(rig), submit(rig)
    first.add_done_callback(gate)
    settled.add_done_callback(note)
    assert settled.result(PATIENCE) == Outcome("acked")
    assert gate.entered.wait(PATIENCE)
    rig.server.script = silent
    pending = submit(rig)
    pending.add_done_callback(note)
    rig.server.events(3)

    def work() -> None:
        ours = os.getpid()
        wait_until(lambda: (ours, "failed") in ran)
        settled.add_done_callback(note)
        wait_until(lambda: (ours, "acked") in ran)
        assert ran == [(ours, "failed"), (ours, "acked")]

    run_in_child(work)
    gate.open.set()
    wait_until(lambda: ran == [(os.getpid(), "acked")])


@needs_fork
def test_fork_while_a_batch_is_being_settled(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the child, deliveries that were not settled before the fork fail, and none stays pending."""
    rig = build(FIFO)
    rig.server.script = silent
    settle, settled, go_on = Delivery._settle, threading.Event(), threading.Event()
    ours = os.getpid()

    def settle_and_wait(delivery: Delivery, outcome: Outcome) -> None:
        settle(delivery, outcome)
        if os.getpid() == ours:
            settled.set()
            assert go_on.wait(PATIENCE)

    monkeypatch.setattr(Delivery, "_settle", settle_and_wait)
    deliveries = [submit(rig) for _ in range(3)]
    ran: list[tuple[int, int]] = []
    for delivery in deliveries:
        delivery.add_done_callback(lambda delivery: ran.append((os.getpid(), delivery.seq)))
    rig.server.events(3)
    rig.server.peers[0].ack()
    assert settled.wait(PATIENCE)  # the first delivery alone
    wait_until(lambda: ran)

    def work() -> None:
        found = [delivery.result(PATIENCE / 4) for delivery in deliveries]
        assert found == [Outcome("acked"), Outcome("failed", "forked"), Outcome("failed", "forked")]
        wait_until(lambda: ran[1:] == [(os.getpid(), 2), (os.getpid(), 3)])

    run_in_child(work)
    go_on.set()
    assert [delivery.result(PATIENCE) for delivery in deliveries] == [Outcome("acked")] * 3
    wait_until(lambda: ran == [(ours, 1), (ours, 2), (ours, 3)])
