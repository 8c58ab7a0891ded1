"""Fork, exit and accidents: what the engine does when the process is not an ordinary one.

Tests of whole processes (exit, signals, multiprocessing, every Python) are in tests/lifecycle.
"""

from __future__ import annotations

import os
import signal
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from logclient import threads
from logclient.delivery import books as books_module
from logclient.delivery import engine as engine_module
from logclient.delivery import lanes as lanes_module
from logclient.delivery import lifecycle
from logclient.delivery import path as path_module
from logclient.delivery import sender as sender_module
from logclient.delivery.ending import State
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.errors import ConnectFailed
from tests.cores.rig import SETUPS, Rig, Setup
from tests.cores.server import MemoryServer, MemoryTransport, Peer, acknowledge, silent
from tests.support import NO_FALLBACK
from tests.support.forks import FORKS, needs_fork, passes_in_own_process, run_in_child
from tests.support.patience import PATIENCE, assert_returns

Make = Callable[..., Rig]
FIFO = Setup("fifo")


@pytest.fixture(params=SETUPS, ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    found: Setup = request.param
    return found


def assert_child_is_new(rig: Rig, n: int = 20) -> Callable[[], None]:
    """Return the work of a child: it starts empty under a new producer id and delivers its own events."""
    parents = rig.engine.producer

    def work() -> None:
        rig.server.changed = threading.Condition()  # of the parent's threads
        stats = rig.stats()
        assert stats.sent == stats.queued == stats.inflight == stats.acked == stats.connects == 0
        assert rig.engine.producer != parents
        assert [rig.producer.put(b"child %d" % i, 2, 0) for i in range(n)] == list(range(1, n + 1))
        assert rig.waiter.flush(PATIENCE) == 0
        stats = rig.stats()
        assert stats.acked + stats.handed == n and stats.connects == 1
        rig.waiter.close(PATIENCE)
        books = rig.books()
        assert sum(books.count("acked").values()) + sum(books.count("handed").values()) == n

    return work


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("fork", FORKS)
def test_a_child_starts_empty_and_the_parent_goes_on(
    build: Make, setup: Setup, fork: str, request: pytest.FixtureRequest
) -> None:
    if fork == "from C" and passes_in_own_process(request.node.nodeid):
        return
    rig = build(setup)
    ours = rig.engine.producer.hex()
    rig.many(50)
    rig.settle()
    # Something of the parent's is in flight at the fork; the child's is answered.
    rig.server.script = lambda peer: peer.ack() if peer.got[0].producer != ours else None
    rig.many(5)
    rig.server.events(55)
    run_in_child(assert_child_is_new(rig), FORKS[fork])
    assert rig.stats().inflight == (0 if setup.kind == "none" else 5)
    rig.server.script = acknowledge
    rig.server.peers[0].ack()
    rig.many(50)
    stats = rig.settle()
    assert stats.acked + stats.handed == stats.sent == 105
    assert stats.disconnects == 0, "the child hung up on the parent's server"


@pytest.mark.slow
@needs_fork
def test_events_queued_at_a_fork_stay_with_the_parent(build: Make, setup: Setup) -> None:
    rig = build(setup, backoff_max=0.002)
    rig.server.down()
    rig.many(100)

    def work() -> None:
        assert rig.stats().sent == 0
        assert rig.waiter.close(1.0) == 0

    run_in_child(work)
    assert rig.stats().sent == 100
    rig.server.up()
    assert rig.settle().connects == 1
    assert len(rig.server.events(100)) == 100


def submit_unanswered(rig: Rig) -> Delivery:
    """Submit an event that the server gets, and does not acknowledge."""
    rig.server.script = silent
    delivery = submit_event(rig)
    rig.server.events(1)
    return delivery


def exit_code(child: int) -> int:
    """Return the exit code of a child, which is killed if it does not end."""
    deadline = time.monotonic() + PATIENCE
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(done[1])


@needs_fork
def test_a_fork_while_a_caller_waits_for_room(build: Make) -> None:
    """A signal handler forks. The child does not wait, for its queue is empty; the parent keeps its place."""
    # All other threads sleep at the fork (see c_fork): the sender until its next attempt.
    rig = build(FIFO, max_events=1, overflow="block", backoff_min=0.5, backoff_max=0.5)
    rig.server.down()
    rig.put()
    parent = os.getpid()
    children: list[int] = []
    forked = threading.Event()

    def handler(number: int, frame: object) -> None:
        pid = os.fork()
        if pid:
            children.append(pid)
            forked.set()

    def run() -> None:
        rig.until(lambda s: rig.engine.queue.waiting_callers == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert forked.wait(PATIENCE)
        rig.server.up()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        seq = rig.producer.put(b"mine", 2, 0)
        if os.getpid() != parent:
            os._exit(0 if seq == 1 else 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    thread.join(PATIENCE)
    rig.bodies[2] = b"mine"
    assert seq == 2 and rig.settle().acked == 2
    assert exit_code(children[0]) == 0


def fork_while(rig: Rig, call: Callable[[], object], then: Callable[[], object]) -> int:
    """Have a signal handler fork while `call` waits, then call `then`; return the exit code of the child.

    The child ends successfully once `call` has returned there.
    """
    children: list[int] = []
    waiting, forked = threading.Event(), threading.Event()
    start = rig.sender.start

    def note_wait(wait: bool = False) -> bool:
        waiting.set()
        return start(wait)

    def handler(number: int, frame: object) -> None:
        if pid := os.fork():
            children.append(pid)
            forked.set()

    def run() -> None:
        rig.until(lambda _: waiting.is_set() or rig.sender.closed)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        forked.wait(PATIENCE)
        then()

    rig.sender.start = note_wait  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR1, handler)
    parent = os.getpid()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        call()
    finally:
        if os.getpid() != parent:
            os._exit(0)
        signal.signal(signal.SIGUSR1, before)
    thread.join(PATIENCE)
    return exit_code(children[0])


@needs_fork
@pytest.mark.parametrize("call", ["flush", "result", "close"])
def test_a_fork_while_a_caller_waits_for_outcomes(build: Make, call: str) -> None:
    """A signal handler forks. The child does not wait: its parent has the events."""
    rig = build(FIFO)
    delivery = submit_unanswered(rig)
    waits: dict[str, Callable[[], object]] = {
        "flush": lambda: rig.waiter.flush(10 * PATIENCE),
        "result": delivery.result,
        "close": lambda: rig.waiter.close(10 * PATIENCE),
    }

    def acknowledge_all() -> None:
        rig.server.script = acknowledge
        rig.server.peers[0].ack()

    assert fork_while(rig, waits[call], acknowledge_all) == 0
    assert delivery.result(PATIENCE) == Outcome("acked")


@needs_fork
def test_a_fork_while_a_caller_waits_for_an_answer(build: Make) -> None:
    rig = build(Setup("by_id"))
    rig.server.down()
    answers: list[object] = []

    def ask() -> None:
        with suppress(ConnectFailed):
            answers.append(rig.peer.request("ping", 1, 10 * PATIENCE))

    assert fork_while(rig, ask, rig.server.up) == 0
    assert len(answers) == 1


@needs_fork
def test_a_fork_before_a_caller_waits_for_an_answer(build: Make) -> None:
    """The request has been made when the process forks, and its caller does not wait yet."""
    rig = build(Setup("by_id"))
    children: list[int] = []
    parent, start = os.getpid(), rig.sender.start

    def fork_first(wait: bool = False) -> bool:
        if not children:
            children.append(os.fork())
        return start(wait)

    rig.sender.start = fork_first  # type: ignore[method-assign]
    try:
        with suppress(ConnectFailed):
            rig.peer.request("ping", 1, 10 * PATIENCE)
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert exit_code(children[0]) == 0


@needs_fork
def test_two_threads_notice_a_fork(
    build: Make, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """No hook has run, as in uwsgi's workers. Whichever thread is first begins anew, and the other waits."""
    if passes_in_own_process(request.node.nodeid):
        return
    rig = build(FIFO)
    rig.many(2)
    rig.settle()

    def work() -> None:
        begin, calls, second = rig.sender._after_fork, list[int](), threading.Event()

        def slow() -> None:
            calls.append(1)
            second.wait(0.2)  # the other one is let in, if anything does
            begin()

        monkeypatch.setattr(rig.sender, "_after_fork", slow)

        def log() -> None:
            if calls:
                second.set()
            rig.producer.put(b"from the child", 2, 0)

        loggers = [threading.Thread(target=log) for _ in range(2)]
        for logger in loggers:
            logger.start()
        for logger in loggers:
            logger.join(PATIENCE)
        assert len(calls) == 1
        assert rig.waiter.flush(PATIENCE) == 0
        assert rig.sender.stats().acked == 2

    run_in_child(work, FORKS["from C"])


@pytest.mark.slow
@needs_fork
def test_many_forks_under_load(build: Make, setup: Setup) -> None:
    """A caller logs all the time; 20 children each log their own events."""
    rig = build(setup)
    over = threading.Event()

    def call() -> None:
        while not over.wait(0.0005):
            rig.put()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(20):
            run_in_child(assert_child_is_new(rig, 5))
    finally:
        over.set()
        thread.join()
    stats = rig.settle()
    assert stats.acked + stats.handed == stats.sent == len(rig.bodies) > 0


@needs_fork
def test_deliveries_of_the_parent_fail_in_the_child(build: Make) -> None:
    rig = build(FIFO)
    delivery = submit_unanswered(rig)

    def work() -> None:
        assert delivery.result(0) == Outcome("failed", "forked")

    run_in_child(work)
    assert not delivery.done()
    rig.server.script = acknowledge
    rig.server.peers[0].ack()
    assert delivery.result(PATIENCE) == Outcome("acked")


@needs_fork
def test_no_sender_works_between_the_hooks_of_a_fork(build: Make, setup: Setup) -> None:
    rig = build(setup)
    rig.many(10)
    rig.settle()

    def senders() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name == threads.SENDER}

    before = senders()
    assert before
    lifecycle._before_fork()
    try:
        rig.many(10)  # another hook logs: no thread may be born now
        assert rig.waiter.flush(0.2) == 10
        assert senders() <= before
    finally:
        lifecycle._in_parent()
    assert rig.settle().connects == 1


@needs_fork
def test_a_closed_client_stays_closed_in_a_child(build: Make) -> None:
    rig = build(FIFO)
    rig.many(3)
    rig.finish()

    def work() -> None:
        assert rig.producer.put(b"x", 2, 0) == 0
        assert rig.stats().refused == 1
        assert rig.waiter.close(1.0) == 0

    run_in_child(work)


# -- exit ---------------------------------------------------------------------------------------------


def test_after_exit_each_call_delivers_its_event(build: Make, setup: Setup) -> None:
    rig = build(setup)
    rig.many(100)
    rig.exit(time.monotonic() + PATIENCE)
    stats = rig.stats()
    assert stats.acked + stats.handed == 100
    assert rig.sender.role.thread is not None and not rig.sender.role.thread.is_alive()
    books = rig.books()
    assert books.closed is not None and books.closed["last"] == 100
    for i in range(5):
        rig.put()
        stats = rig.stats()
        assert stats.acked + stats.handed == 101 + i, "delivered when the call returns"
    rig.exit(time.monotonic() + PATIENCE)  # a second hook changes nothing
    books = rig.books()
    assert books.closed is not None and books.closed["last"] == 105
    assert books.outcomes[105][0] in ("acked", "handed")
    assert rig.waiter.close(1.0) == 0
    assert len(list(rig.ledger.iterdir() if rig.ledger else [])) == 1, "still the same part"
    rig.reopen()


def test_exit_with_a_dead_server_reports_the_loss_once(build: Make, setup: Setup) -> None:
    rig = build(setup, backoff_min=5.0, backoff_max=5.0, atexit_timeout=0.1)
    rig.server.down()
    rig.many(7)
    rig.exit(time.monotonic() + 0.1)
    assert rig.stats().failed == {"closed": 7}
    (line,) = rig.lines.of("exit")
    what = f"test://server: 7 events were not delivered before exit{NO_FALLBACK}"
    assert line.startswith(f"{what} (cannot connect to ")
    assert rig.put() == 8  # has no patience left, and returns
    rig.reopen()


def test_the_exit_budget_counts_only_our_own_waits(build: Make) -> None:
    """Time that passes between calls of ours does not count."""
    rig = build(FIFO, atexit_timeout=0.5)
    rig.many(3)
    rig.exit(time.monotonic() + 0.5)
    time.sleep(0.6)
    rig.put()
    assert rig.stats().acked == 4
    rig.reopen()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Thread starts fail as in Python 3.12 at shutdown; the list holds the text of the error."""
    text = ["can't create new thread at interpreter shutdown"]
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if text and thread.name.startswith("logclient"):
            raise RuntimeError(text[0])
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return text


def test_without_threads_each_call_delivers_its_event(
    build: Make, setup: Setup, no_threads: list[str]
) -> None:
    rig = build(setup)
    for i in range(1, 6):
        rig.put()
        stats = rig.stats()
        assert stats.acked + stats.handed == i
    assert rig.waiter.flush(1.0) == 0
    rig.exit(time.monotonic() + 1.0)
    assert rig.stats().failed == {}
    rig.reopen()


def test_the_sender_starts_once_threads_are_available(
    build: Make, setup: Setup, no_threads: list[str]
) -> None:
    no_threads[0] = "can't start new thread"
    rig = build(setup)
    rig.many(5)
    stats = rig.stats()
    assert stats.queued == 5, "callers do not wait for the network"
    assert rig.lines.of("sender")[0] == "test://server: no sender: can't start new thread"
    assert rig.waiter.flush(PATIENCE) == 0, "who waits anyway does the work"
    no_threads.clear()
    rig.many(5)
    stats = rig.settle()
    assert stats.acked + stats.handed == 10


@needs_fork
def test_a_fork_while_a_caller_delivers(build: Make, no_threads: list[str]) -> None:
    """As in a signal handler. The child goes on in the call, with an engine and a role of its own."""
    rig = build(FIFO, atexit_timeout=0.3)
    rig.server.script = silent
    original, pids = rig.engine.turn, list[int]()

    def turn(until: float) -> None:
        if not pids:
            pids.append(os.fork())
        original(until)

    rig.engine.turn = turn  # type: ignore[method-assign]
    error: BaseException | None = None
    try:
        assert rig.put() == 1
    except BaseException as found:
        error = found
    if pids == [0]:
        sender = rig.sender
        with sender.role.held(0.0) as has_role:
            good = has_role and error is None and sender.engine.is_ours and not sender.queue.forked
        os._exit(not (good and rig.put() == 1))
    assert error is None
    _, status = os.waitpid(pids[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert rig.stats().inflight == 1
    rig.server.script = acknowledge
    rig.reopen()


def test_without_threads_the_caller_runs_callbacks(build: Make, no_threads: list[str]) -> None:
    rig = build(FIFO)
    seen: list[Outcome | None] = []
    delivery = rig.producer.submit(b"one", 2, 0)
    rig.bodies[1] = b"one"
    rig.engine.submissions.callbacks._idle_timeout = 1000 * PATIENCE
    assert_returns(lambda: delivery.add_done_callback(lambda d: seen.append(d.result(0))), "it lingers")
    assert seen == [Outcome("acked")]


def test_block_at_exit_delivers_until_there_is_room(build: Make, no_threads: list[str]) -> None:
    rig = build(FIFO, max_events=5, overflow="block")
    rig.server.script = silent
    rig.server.down()
    rig.sender.setup.config = rig.limits.replace(atexit_timeout=0.01)
    rig.sender.ending.patience = 0.01
    rig.many(5)
    rig.server.up()
    rig.server.script = acknowledge
    rig.sender.ending.patience = PATIENCE
    assert rig.many(3) == [6, 7, 8]
    assert rig.settle().acked == 8


def break_at_the_end(rig: Rig) -> None:
    """Have each turn of the sender raise once it drains."""
    turn = rig.engine.turn

    def broken(until: float) -> None:
        if rig.sender.ending.state is not State.RUNNING:
            raise RuntimeError("a bug")
        turn(until)

    rig.engine.turn = broken  # type: ignore[method-assign]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_that_stays_costs_an_exit_no_event(build: Make) -> None:
    rig = build(FIFO)
    delivery = submit_unanswered(rig)
    break_at_the_end(rig)
    assert_returns(lambda: rig.exit(time.monotonic() + 10 * PATIENCE), "the rest is given up at once")
    assert rig.stats().failed == {"closed": 1}
    assert delivery.result(0) == Outcome("failed", "closed")
    assert rig.lines.of("sender") == ["test://server: the sender stopped: RuntimeError: a bug"]
    (line,) = rig.lines.of("exit")
    assert line.startswith("test://server: 1 event was not delivered before exit")
    rig.reopen()


def test_a_bug_of_one_client_takes_no_time_of_another_at_exit(build: Make, no_threads: list[str]) -> None:
    no_threads[0] = "can't start new thread"
    rigs = [build(FIFO), build(FIFO)]
    for rig in rigs:
        rig.server.down()
        rig.put()
        rig.server.up()
    break_at_the_end(rigs[0])
    end = time.monotonic() + PATIENCE
    lifecycle.finish([rig.sender for rig in rigs], lambda sender: end)
    assert [rig.stats().acked for rig in rigs] == [0, 1]
    assert rigs[0].stats().failed == {"closed": 1}
    assert rigs[0].lines.of("sender")[-1] == "test://server: the sender stopped: RuntimeError: a bug"
    for rig in rigs:
        rig.reopen()


def test_a_sender_that_hangs_after_half_of_an_exit_is_given_up(build: Make) -> None:
    """As in a name look-up. Its events fail, and are counted, although it will not come back."""
    rig = build(FIFO, atexit_timeout=0.2)
    rig.server.script = silent
    rig.put()
    rig.server.events(1)
    turn, goes_on = rig.engine.turn, threading.Event()

    def hang(until: float) -> None:
        if rig.sender.ending.callers_deliver:
            goes_on.wait(PATIENCE)
        turn(until)

    rig.engine.turn = hang  # type: ignore[method-assign]
    rig.exit(time.monotonic() + 0.2)
    (line,) = rig.lines.of("exit")
    assert line.startswith("test://server: 1 event was not delivered before exit")
    goes_on.set()
    rig.until(lambda _: not rig.sender.running)
    assert len(rig.lines.of("exit")) == 1
    rig.reopen()


# -- accidents ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_sender_is_replaced(build: Make) -> None:
    rig = build(FIFO)
    rig.many(5)
    rig.settle()
    original = rig.engine.core.codec.target.encode

    def broken(*args: Any) -> int:
        rig.engine.core.codec.target.encode = original
        raise RuntimeError("a bug")

    rig.engine.core.codec.target.encode = broken
    thread = rig.sender.role.thread
    assert thread is not None
    rig.put()
    thread.join(PATIENCE)
    assert rig.lines.of("sender") == ["test://server: the sender stopped: RuntimeError: a bug"]
    rig.put()
    stats = rig.settle()
    assert stats.acked + stats.handed == 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_flush_that_waits_replaces_a_dead_sender(build: Make) -> None:
    rig = build(FIFO)
    rig.many(5)
    rig.settle()
    original = rig.engine.core.codec.target.encode
    flushing = threading.Event()

    def broken(*args: Any) -> int:
        rig.engine.core.codec.target.encode = original
        flushing.wait(PATIENCE)
        raise RuntimeError("a bug")

    rig.engine.core.codec.target.encode = broken
    rig.put()
    start = rig.sender.start

    def flushed(wait: bool = False) -> bool:
        flushing.set()
        return start(wait)

    rig.sender.start = flushed  # type: ignore[method-assign]
    assert rig.waiter.flush(PATIENCE) == 0
    assert rig.lines.of("sender") == ["test://server: the sender stopped: RuntimeError: a bug"]


def test_a_memory_error_ends_only_the_connection(build: Make) -> None:
    rig = build(FIFO)
    original = rig.engine.core.codec.target.encode

    def broken(*args: Any) -> int:
        rig.engine.core.codec.target.encode = original
        raise MemoryError

    rig.engine.core.codec.target.encode = broken
    rig.many(3)
    assert rig.settle().acked == 3
    assert rig.lines.of("memory")


@pytest.mark.slow
def test_a_failed_fork_leaves_the_sender_running(build: Make, setup: Setup) -> None:
    rig = build(setup)
    rig.server.down()
    rig.many(20)
    for _ in range(50):
        lifecycle._before_fork()
        lifecycle._in_parent()
    rig.server.up()
    stats = rig.settle()
    assert stats.acked + stats.handed == 20


def test_an_orphaned_engine_delivers_and_ends(
    build: Make, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "TURN", 0.02)
    rig = build(setup)
    rig.server.down()
    rig.many(10)
    rig.sender.background()
    rig.server.up()
    thread = rig.sender.role.thread
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive() and rig.sender.closed
    stats = rig.stats()
    assert stats.acked + stats.handed == 10
    assert rig.books().closed is not None


@pytest.mark.slow
def test_an_orphan_has_the_full_time_at_exit(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that ends the program drops its client just before."""
    monkeypatch.setattr(sender_module, "ORPHAN_TIMEOUT", 1.0)
    rig = build(FIFO)
    rig.server.script = silent
    rig.many(5)
    rig.server.events(5)
    rig.sender.background()
    late = threading.Timer(1.5, rig.server.peers[0].ack)
    late.start()
    rig.exit(time.monotonic() + PATIENCE)
    late.join()
    assert rig.stats().acked == 5


def test_replies_are_reported_without_extra_turns(build: Make) -> None:
    rig = build(Setup("by_id"))

    def script(peer: Peer) -> None:
        peer.say(b"I" + (7).to_bytes(8, "big"))
        peer.ack()

    rig.server.script = script
    rig.put()
    rig.settle()
    rig.until(lambda s: rig.received)
    assert [event.payload for event in rig.received] == [7]
    before = rig.stats().turns
    late = threading.Timer(0.05, rig.put)
    late.start()
    assert rig.until(lambda s: s.acked == 2).turns - before < 10  # it slept until the next event
    late.join()


# -- listening ----------------------------------------------------------------------------------------


def wait_for_peer(rig: Rig, n: int) -> Peer:
    """Wait for the n-th peer and return it."""
    rig.until(lambda _: len(rig.server.peers) >= n)
    assert len(rig.server.peers) == n
    return rig.server.peers[-1]


def test_keep_connected_connects_without_events(build: Make) -> None:
    rig = build(Setup("by_id"))
    rig.server.down()
    rig.peer.keep_connected(True)
    rig.until(lambda _: rig.server.attempts >= 3)
    rig.server.up()
    rig.until(lambda stats: stats.connects)
    for n in (1, 2, 3):
        peer = wait_for_peer(rig, n)
        peer.say(b"I" + n.to_bytes(8, "big"))
        rig.until(lambda _, n=n: len(rig.received) == n)  # type: ignore[misc]
        peer.cut()
    assert [event.payload for event in rig.received] == [1, 2, 3]
    wait_for_peer(rig, 4)
    rig.many(5)
    assert rig.settle().acked == 5
    rig.peer.keep_connected(False)
    rig.server.peers[-1].cut()
    rig.until(lambda stats: stats.disconnects == 4)
    assert rig.finish().connects == 4


def test_keep_connected_backs_off_when_cut_at_once(build: Make) -> None:
    class Rude(MemoryTransport):
        def connect(self, *given: Any) -> Any:
            link = super().connect(*given)
            link.far.cut()
            return link

    server = MemoryServer("by_id")
    rig = build(Setup("by_id"), server=server, transport=Rude(server), backoff_max=30.0)
    rig.peer.keep_connected(True)
    rig.until(lambda _: rig.engine.lanes.first.endpoints.backoff.bound > 0.03)
    assert server.attempts < 30


@needs_fork
@pytest.mark.parametrize("ends", [False, True], ids=["sender-pauses", "sender-ends"])
def test_keep_connected_goes_on_after_a_fork(
    ends: bool, build: Make, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ends:  # as where Python warns of a fork beside threads
        monkeypatch.setattr(lifecycle, "_would_warn", lambda: True)
    rig = build(setup)
    rig.peer.keep_connected(True)
    first = wait_for_peer(rig, 1)

    def work() -> None:
        rig.server.changed = threading.Condition()
        assert rig.stats().connects == 0
        rig.put()
        assert rig.waiter.flush(PATIENCE) == 0
        assert rig.stats().connects == 1
        rig.waiter.close(PATIENCE)

    run_in_child(work)
    assert rig.stats().disconnects == 0
    first.cut()
    rig.until(lambda stats: stats.connects == 2)


def test_an_orphaned_engine_ends_despite_keep_connected(build: Make) -> None:
    rig = build(Setup("by_id"))
    rig.peer.keep_connected(True)
    wait_for_peer(rig, 1)
    rig.sender.background()
    rig.until(lambda _: rig.sender.closed and not rig.sender.running)


def test_the_close_line_counts_only_settled_events(build: Make) -> None:
    """A process may be killed when a caller, at exit, has put its event and not yet delivered it."""

    class Late(MemoryTransport):
        def connect(self, *given: Any) -> Any:
            link = super().connect(*given)
            end = link.close

            def close(flush_for: float = 0.0) -> None:
                if not rig.bodies.get(6):
                    rig.bodies[rig.engine.queue.push(b"late", 2, 0)] = b"late"
                end(flush_for)

            link.drains_on_close, link.close = True, close  # type: ignore[method-assign]
            return link

    server = MemoryServer("fifo")
    rig = build(FIFO, server=server, transport=Late(server))
    rig.many(5)
    rig.exit(time.monotonic() + PATIENCE)
    books = rig.books()
    assert books.closed is not None
    assert books.closed["last"] == books.closed["acked"] == books.last == 5
    assert rig.put(b"last") == 7
    books = rig.books()
    assert books.closed is not None
    assert books.closed["last"] == books.closed["acked"] == books.last == 7


def test_no_close_line_while_a_sent_event_waits(build: Make) -> None:
    """At exit, connections break under an event: it is in the ledger, and has no outcome."""
    rig = build(Setup("by_id"), atexit_timeout=PATIENCE, backoff_min=0.001, backoff_max=0.01)
    rig.many(5)
    rig.exit(time.monotonic() + PATIENCE)
    before = rig.books().before
    breaks = []

    def cut_thrice(peer: Peer) -> None:
        if len(breaks) < 3:
            breaks.append(rig.books())
            peer.cut()
        else:
            peer.ack()

    rig.server.script = cut_thrice
    rig.put(b"late")
    assert [(books.last, books.before) for books in breaks] == [(6, before)] * 3
    books = rig.books()
    assert books.closed is not None
    assert books.closed["last"] == books.closed["acked"] == books.last == 6


# -- deliveries ---------------------------------------------------------------------------------------


def submit_event(rig: Rig) -> Delivery:
    body = b"event %d" % (len(rig.bodies) + 1)
    delivery = rig.producer.submit(body, 2, 0)
    rig.bodies[delivery.seq] = body
    return delivery


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender makes no periodic reports: outcomes are reported only because a caller waits."""
    for module in (books_module, lanes_module):
        monkeypatch.setattr(module, "REPORT_EVERY", 1000.0)
    monkeypatch.setattr(engine_module, "TURN", 1000.0)
    for module in (lanes_module, path_module):  # nor does it look at a wait
        monkeypatch.setattr(module, "LATE", 1000.0)


@pytest.mark.usefixtures("no_reports")
def test_result_does_not_wait_for_a_periodic_report(build: Make, setup: Setup) -> None:
    rig = build(setup, linger=1.0)
    for _ in range(20):
        outcome = submit_event(rig).result(PATIENCE)
        assert outcome is not None and outcome.ok
    deliveries = [submit_event(rig) for _ in range(20)]
    assert deliveries[-1].result(PATIENCE) is not None
    assert all(d.result(PATIENCE) for d in deliveries)


@pytest.mark.usefixtures("no_reports")
def test_several_waits_for_results_each_end_in_time(build: Make) -> None:
    rig = build(FIFO)
    rig.server.script = silent
    deliveries = [submit_event(rig) for _ in range(3)]
    told: list[Outcome | None] = []

    def wait(delivery: Delivery) -> None:
        told.append(delivery.result(PATIENCE))

    threads = [threading.Thread(target=wait, args=(d,)) for d in reversed(deliveries)]
    for thread in threads:
        thread.start()
    rig.server.events(3)
    for n in (1, 2, 3):
        rig.server.peers[0].ack(1)
        rig.until(lambda stats, n=n: stats.acked == n and deliveries[n - 1].done())  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE)
    assert told == [Outcome("acked")] * 3


def submit_acked(rig: Rig) -> Delivery:
    """Submit an event, and return its delivery once it and all before it are acknowledged."""
    delivery = submit_event(rig)
    rig.until(lambda stats: stats.acked == delivery.seq)
    return delivery


@pytest.mark.usefixtures("no_reports")
def test_a_late_wait_returns_a_settled_outcome(build: Make) -> None:
    rig = build(FIFO)
    first = submit_event(rig)
    rig.until(lambda _: first.done())  # with the first report of all
    for _ in range(100):
        delivery = submit_acked(rig)
        if not delivery.done():
            break
        # The wake-up for this event came together with its acknowledgement, and ended the pump's run.
    else:
        pytest.fail("every outcome was reported without a wait")
    assert delivery.result(PATIENCE) == Outcome("acked")


def submit(rig: Rig, body: bytes) -> Any:
    delivery = rig.producer.submit(body, 2, 0)
    if delivery.seq:
        rig.bodies[delivery.seq] = body
    return delivery


def test_submit_returns_a_delivery_with_the_outcome(build: Make, setup: Setup) -> None:
    rig = build(setup)
    ok, bad = submit(rig, b"good"), submit(rig, b"\xffbad")
    status = "acked" if setup.kind != "none" else "handed"
    assert ok.result(PATIENCE) == Outcome(status, "") and ok.result(0).ok and ok.done()
    assert bad.result(PATIENCE) == Outcome("failed", "not_json") and not bad.result(0).ok
    assert repr(ok) == f"<Delivery 1 {status}>" and repr(bad) == "<Delivery 2 failed not_json>"
    assert ok.cancel() is False


def test_many_threads_may_submit(build: Make, setup: Setup) -> None:
    rig = build(setup)
    found: list[Any] = []

    def call(k: int) -> None:
        found.extend(rig.producer.submit(b"%d" % k, 2, 0) for _ in range(200))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [d.result(PATIENCE) for d in found]
    assert all(o is not None and o.ok for o in outcomes)
    assert sorted(d.seq for d in found) == list(range(1, 801))
    rig.bodies = {g.seq: g.body for p in rig.server.peers for g in p.got}
    # Outcomes are there before their deliveries are let go of.
    rig.until(lambda _: not rig.engine.submissions.deliveries)


def test_memory_is_bounded_while_submits_overlap(build: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `block` some submit is always running; all collections stay bounded meanwhile."""
    monkeypatch.setattr(books_module, "REPORT_EVERY", 0.002)
    rig = build(FIFO, max_events=8, overflow="block", batch_events=4)
    rig.server.script = lambda peer: (time.sleep(0.001), acknowledge(peer))
    sizes: list[int] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            rig.producer.submit(b"x", 2, 0)
            parts = [
                rig.engine,
                rig.engine.submissions,
                rig.engine.books.requests,
                rig.engine.lanes.first.endpoints,
            ]
            found = [pair for part in parts for pair in vars(part).items()]
            kept = {name: len(value) for name, value in found if isinstance(value, (dict, list, deque))}
            # Until the sender reports their outcomes: `MAX_UNREPORTED_DELIVERIES` of them at most.
            del kept["deliveries"]
            sizes.append(max(kept.values()))

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    rig.until(lambda s: s.acked >= 500)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert max(sizes) <= 12
    rig.bodies = dict.fromkeys(range(1, rig.stats().sent + 1), b"x")


def test_deliveries_of_dropped_events_say_so(build: Make, setup: Setup) -> None:
    rig = build(setup, max_events=2, overflow="drop_oldest")
    rig.server.down()
    found = [submit(rig, b"%d" % i) for i in range(5)]
    rig.server.up()
    outcomes = [d.result(PATIENCE) for d in found]
    assert outcomes[:3] == [Outcome("dropped", "overflow")] * 3
    assert outcomes[3].ok and outcomes[4].ok
    rig.finish()
    assert submit(rig, b"late").result(0) == Outcome("dropped", "closed")


def test_submit_to_a_full_queue_is_dropped(build: Make) -> None:
    rig = build(FIFO, max_events=1, overflow="drop_new")
    rig.server.down()
    first, second = submit(rig, b"1"), submit(rig, b"2")
    assert second.result(0) == Outcome("dropped", "overflow") and second.seq == 0
    assert first.result(0.0) is None and repr(first) == "<Delivery 1 pending>"
    rig.waiter.close(0.0)
    assert first.result(0) == Outcome("failed", "closed")


def test_callbacks_run_on_the_callback_thread(build: Make, setup: Setup) -> None:
    rig = build(setup)
    names: list[str] = []
    ran = threading.Semaphore(0)

    def callback(delivery: Any) -> None:
        assert delivery.done()
        names.append(threading.current_thread().name)
        ran.release()

    early = submit(rig, b"1")
    early.add_done_callback(callback)
    assert ran.acquire(timeout=PATIENCE)
    early.add_done_callback(callback)  # done already
    assert ran.acquire(timeout=PATIENCE)
    assert names == ["logclient-callbacks"] * 2


def test_a_callback_may_raise_and_may_flush(build: Make) -> None:
    rig = build(FIFO)
    ran = threading.Semaphore(0)

    def bad(delivery: Any) -> None:
        raise ZeroDivisionError("oops")

    def waits(delivery: Any) -> None:
        rig.put(b"from a callback")
        assert rig.waiter.flush(PATIENCE) == 0
        ran.release()

    delivery = submit(rig, b"1")
    delivery.add_done_callback(bad)
    delivery.add_done_callback(waits)
    assert ran.acquire(timeout=PATIENCE)
    assert rig.lines.of("callback") == ["a callback raised ZeroDivisionError: oops"]
    assert rig.settle().acked == 2


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system has no /proc")
def test_a_joined_thread_has_ended_for_the_kernel_too() -> None:
    """Before that, libraries clean up after it holding locks, which a child of a fork would find locked."""
    left = 0
    for _ in range(100):
        # OpenSSL keeps something for each thread that has used it.
        thread = threads.make_thread(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "short")
        thread.start()
        assert threads.join(thread, PATIENCE)
        left += os.path.exists(f"/proc/self/task/{thread.native_id}")
    assert left == 0


def test_a_core_without_commands_refuses_them(build: Make, setup: Setup) -> None:
    """Only Logux has commands in line with events."""
    rig = build(setup)
    with pytest.raises(ValueError, match="command: this protocol has no 'headers'"):
        rig.peer.post_command("headers", {})


@needs_fork
def test_a_child_has_locks_of_its_own() -> None:
    locks: dict[int, Any] = {}
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with threads.lock_here(locks):
            taken.set()
            over.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(PATIENCE)

    def work() -> None:
        assert threads.lock_here(locks).acquire(False)

    run_in_child(work)
    assert not threads.lock_here(locks).acquire(False)
    over.set()
    holder.join()
