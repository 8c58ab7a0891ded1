"""Ends of a client: close, exit, fork and dropped references, beside other clients and dead servers."""

from __future__ import annotations

import gc
import json
import logging
import logging.config
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import handler as handler_module
from logclient import threads
from logclient.delivery import engine as engine_module
from logclient.delivery import lifecycle
from logclient.delivery import sender as sender_module
from logclient.testing import lumberjack as collector
from tests.cores.rig import Rig, Setup
from tests.cores.scheme import URL, served
from tests.cores.server import MemoryServer, silent
from tests.support import NO_FALLBACK, clean_environment
from tests.support.dead_servers import BlackHole, Mute, Refusing
from tests.support.forks import needs_fork
from tests.support.patience import PATIENCE, assert_returns, wait_until

Make = Callable[..., Rig]
FIFO = Setup("fifo")


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with served() as found:
        yield found


@pytest.fixture
def black_hole() -> Iterator[str]:
    with BlackHole() as hole:
        yield hole.url


class Interrupt(Exception):
    """Stands for KeyboardInterrupt."""


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Interrupt the block by an exception of a signal handler, as Ctrl-C does."""

    def handle(number: int, frame: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Interrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_program(text: str, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a Python program in its own process."""
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )


# -- close ------------------------------------------------------------------------------------------------


class TestInterruptedClose:
    @staticmethod
    def interrupted_close(build: Make) -> Any:
        """Five events on their way, and a close that was interrupted."""
        rig = build(FIFO)
        rig.server.script = silent
        rig.many(5)
        rig.server.events(5)
        with interrupted(0.05):
            rig.waiter.close(PATIENCE)
        return rig

    def test_a_second_close_finishes_an_interrupted_one(self, build: Make) -> None:
        rig = self.interrupted_close(build)
        assert rig.sender.closed
        assert rig.put() == 0
        rig.server.peers[0].ack()
        assert rig.waiter.close(PATIENCE) == 0
        thread = rig.sender.role.thread
        assert thread is not None and not thread.is_alive()
        assert rig.finish().acked == 5

    def test_delivery_goes_on_after_an_interrupted_close(self, build: Make) -> None:
        rig = build(FIFO)
        rig.server.script = silent
        delivery = rig.producer.submit(b"one", 2, 0)
        rig.bodies[1] = b"one"
        rig.server.events(1)
        with interrupted(0.05):
            rig.waiter.close(PATIENCE)
        rig.server.peers[0].ack()
        outcome = delivery.result(PATIENCE)
        assert outcome is not None and outcome.status == "acked"
        thread = rig.sender.role.thread
        assert thread is not None
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a sender with nothing to do ends by itself"

    def test_exit_finishes_an_interrupted_close(self, build: Make) -> None:
        rig = self.interrupted_close(build)
        rig.server.peers[0].ack(2)
        rig.exit(time.monotonic() + 0.2)
        stats = rig.stats()
        assert stats.acked == 2 and stats.failed == {"closed": 3}
        (line,) = rig.lines.of("exit")
        what = f"test://server: 3 events were not delivered before exit{NO_FALLBACK}"
        assert line == f"{what} (3 of them not acknowledged by test:1)"
        books = rig.books()
        assert books.closed is not None and books.closed["last"] == 5


def test_endless_timeouts_are_allowed(server: MemoryServer) -> None:
    client = logclient.connect(URL)
    for seconds in (float("inf"), 1e10):
        delivery = client.submit("one")
        outcome = delivery.result(seconds)
        assert outcome is not None and outcome.ok
        assert client.flush(seconds) == 0
    assert client.close(float("inf")) == 0
    another = logclient.connect(URL)
    another.send("two")
    assert another.close(1e10) == 0


def test_close_reports_events_given_up(build: Make) -> None:
    rig = build(FIFO, backoff_min=5.0, backoff_max=5.0)
    rig.server.down()
    rig.many(3)
    assert rig.waiter.close(0.05) == 3
    (line,) = rig.lines.of("given up")
    assert line == (
        "test://server: 3 events were given up: the client ended before delivery; fallback=FILE, or stderr, "
        "would keep them"
    )
    assert rig.stats().last_error == line
    rig.finish()


def test_close_releases_descriptors(server: MemoryServer) -> None:
    handler = logclient.Handler(URL)
    log = logging.Logger("app")
    log.addHandler(handler)

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    before = descriptors()
    others = [logclient.Handler(URL) for _ in range(5)]
    for other in others:
        other.handle(logging.makeLogRecord({"msg": "one", "levelno": 20}))
        assert other.client.close() == 0
    assert descriptors() <= before
    for other in others:
        other.handle(logging.makeLogRecord({"msg": "late", "levelno": 20}))
        assert other.client.stats().refused == 1
    assert descriptors() <= before
    handler.client.close()


def test_events_after_close_are_reported_once(build: Make) -> None:
    rig = build(FIFO)
    rig.many(2)
    rig.waiter.close(PATIENCE)
    assert not rig.lines.of("refused")
    for _ in range(100):
        rig.put()
    (line,) = rig.lines.of("refused")
    assert line == "test://server: closed, so later events are dropped (stats count them as refused)"
    stats = rig.stats()
    assert stats.refused == 100 and stats.last_error == line


# -- owners that are gone ---------------------------------------------------------------------------------


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "logclient-sender"}


def test_unreferenced_clients_end_beside_dead_servers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sender_module, "ORPHAN_TIMEOUT", 0.3)
    with Refusing() as dead, BlackHole() as hole:
        descriptors, before = len(os.listdir("/dev/fd")), senders()  # those of other tests may end
        for url in (dead.url, hole.url) * 5:
            client = logclient.connect(url)
            client.send("one")
            assert senders() - before
            del client
        gc.collect()
        wait_until(lambda: senders() <= before)
        wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/dev/fd")) <= descriptors)
    lines = [line for line in capfd.readouterr().err.splitlines() if "given up" in line]
    assert len(lines) == 1 and "1 event was given up" in lines[0]


# -- handlers under the lock of logging -------------------------------------------------------------------

SERVERS: dict[str, tuple[Callable[[], Refusing | BlackHole | Mute], str]] = {
    "connection refused": (Refusing, "not client._sender.engine.lanes.may_be_reachable"),
    "no answer": (BlackHole, "client._sender.role.ident"),
    "mute": (Mute, "client.stats().inflight"),
}
"""How each is made, and what a client has noticed of it after a while."""


@pytest.mark.parametrize("kind", SERVERS)
def test_reconfiguring_logging_ignores_dead_servers(kind: str) -> None:
    """All other threads wait for logging's lock meanwhile. A call that waits does so for an hour."""
    make, noticed = SERVERS[kind]
    with make() as dead:
        text = f"""
import logging.config, os, sys, time
sys.path[:0] = {sys.path!r}
handler = {{"class": "logclient.Handler", "url": sys.argv[1], "timeout": 3600}}
config = {{"version": 1, "disable_existing_loggers": False, "handlers": {{"h": handler}},
          "root": {{"handlers": ["h"], "level": "INFO"}}}}
logging.config.dictConfig(config)
logging.info("one")
client = logging.root.handlers[0].client
while not {noticed}:
    time.sleep(0.001)
logging.config.dictConfig(config)
logging.info("two")
print(logging.root.handlers[0].client is client, flush=True)
os._exit(0)
"""
        done = run_program(text, dead.url, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("test-ends")
    logger.setLevel("INFO")
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


def test_a_handler_outlives_a_configuration_that_leaves_it_to_its_logger(
    server: MemoryServer, logger: logging.Logger
) -> None:
    """As under ``uvicorn.run``: dictConfig closes all handlers, but leaves them to their loggers."""
    handler = logclient.Handler(URL)
    logger.addHandler(handler)
    logger.info("before")
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    logger.info("afterwards")
    wait_until(lambda: handler.client.stats().acked == 2)
    assert not handler.client.closed and handler.client.stats().refused == 0
    handler.close()
    assert handler.client.closed


def test_a_handler_that_a_configuration_takes_away_ends(server: MemoryServer, logger: logging.Logger) -> None:
    ship = {"class": "logclient.Handler", "url": URL}
    config = {"version": 1, "disable_existing_loggers": False, "handlers": {"h": ship}}
    config["loggers"] = {logger.name: {"handlers": ["h"]}}
    logging.config.dictConfig(config)
    client = logger.handlers[0].client  # type: ignore[attr-defined]
    logger.info("before")
    logging.config.dictConfig(config)
    gc.collect()  # the configurator that has made it is in a cycle
    wait_until(lambda: client._sender.ended)
    assert client.closed and client.stats().acked == 1
    logger.handlers[0].close()


REPLACED = """
import gc, json, logging.config, os, sys, threading, time
sys.path[:0] = json.loads(sys.argv[1])
import logclient
gc.disable()
url, spool, patience = sys.argv[2], sys.argv[3], float(sys.argv[4])
options = json.loads(sys.argv[5])

class Own(logclient.Handler):
    def __init__(self, *given, **more):
        super().__init__(*given, **more)

def configure(kind=logclient.Handler):
    handler = {"()": kind, "url": url, "spool": spool, "spool_bytes": "8MiB", **options}
    root = {"handlers": ["h"], "level": "INFO"}
    logging.config.dictConfig({"version": 1, "handlers": {"h": handler}, "root": root})

def used():
    names = sorted(thread.name for thread in threading.enumerate())
    owners = sum(name.endswith(".lock") for name in os.listdir(spool))
    return names, len(os.listdir("/proc/self/fd")), owners

def reached(names, files, owners):
    # Wait until no more is used; a file may have been open for a moment when it was measured.
    deadline = time.monotonic() + patience
    while True:
        state = used()
        done = state[0] == names and state[1] <= files and state[2] == owners
        if done or time.monotonic() >= deadline:
            return done, state, (names, files, owners)
        time.sleep(0.01)

def ship():
    logging.info("a record")
    for handler in logging.root.handlers:
        assert handler.client.flush(patience) == 0

os.mkdir(spool, 0o700)
nothing = used()
configure()
ship()
one = used()
for _ in range(30):
    REPLACE
    ship()
    gc.collect()  # dictConfig leaves its handlers in a cycle
print(json.dumps(reached(*one)), flush=True)
logging.root.removeHandler(logging.root.handlers[0])
print(json.dumps(reached(*nothing)), flush=True)
os._exit(0)
"""

REPLACE = {
    "dictConfig": "configure()",
    "dictConfig of a subclass": "configure(Own)",
    "basicConfig": "configure(); "
    "logging.basicConfig(handlers=[logclient.Handler(url, spool=spool, **options)], level=20, force=True)",
    "removeHandler": "configure(); logging.info('one'); "
    "logging.root.removeHandler(logging.root.handlers[0]); "
    "logging.root.addHandler(logclient.Handler(url, spool=spool, **options))",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a spool")
@pytest.mark.parametrize("options", [{}, {"spool_mode": "always"}, {"rate_limit": 99, "redact_text": ["x"]}])
@pytest.mark.parametrize("replace", REPLACE)
def test_replaced_handlers_end(replace: str, options: dict[str, Any], tmp_path: Path) -> None:
    program = REPLACED.replace("REPLACE", REPLACE[replace])
    with collector.Collector() as server:
        path, folder = json.dumps([p for p in sys.path if p]), str(tmp_path / "spool")
        done = run_program(program, path, server.url, folder, str(PATIENCE), json.dumps(options))
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        ended, state, expected = json.loads(line)
        assert ended, (state, expected)
    assert len(done.stdout.splitlines()) == 2


def test_logging_shutdown_ignores_unreachable_servers(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "RETIRE_WAIT", 3600.0)
    server.down()
    handler = logclient.Handler(URL, timeout=3600)
    handler.handle(logging.makeLogRecord({"msg": "one", "levelno": 20}))
    server.wait(lambda: server.attempts > 1)
    assert_returns(lambda: logging.shutdown([lambda: handler]))  # type: ignore[list-item]
    assert handler.client.closed
    server.up()
    wait_until(lambda: handler.client.stats().acked == 1)


def test_a_closed_handler_delivers_in_the_background(server: MemoryServer) -> None:
    server.script = silent
    handler = logclient.Handler(URL, timeout=3600)
    for _ in range(5):
        handler.handle(logging.makeLogRecord({"msg": "one", "levelno": 20}))
    server.events(5)
    assert_returns(handler.close)
    assert handler.client.closed and handler.client.stats().inflight == 5
    server.peers[0].ack()
    wait_until(lambda: handler.client.stats().acked == 5)
    wait_until(lambda: handler.client._sender.ended)


def test_flush_of_a_handler_waits_for_a_slow_server(server: MemoryServer) -> None:
    server.script = silent
    handler = logclient.Handler(URL)
    handler.handle(logging.makeLogRecord({"msg": "one", "levelno": 20}))
    server.events(1)
    threading.Timer(0.3, lambda: server.peers[0].ack()).start()
    handler.flush()
    assert handler.client.stats().acked == 1
    handler.close()


# -- many clients -----------------------------------------------------------------------------------------


def test_exit_has_one_deadline_for_all_clients(black_hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [logclient.connect(black_hole) for _ in range(60)]
    for client in clients:
        client.send("one")
    finish, asked, waits = sender_module.Waiter.finish, [], []

    def deadline(sender: Any) -> float:
        asked.append(sender)
        return time.monotonic() + 1.0

    def note(sender: Any, by: float, grace: float) -> bool:
        waits.append(len(asked))
        return finish(sender, by, grace)

    monkeypatch.setattr(sender_module.Waiter, "finish", note)
    lifecycle.finish([client._sender for client in clients], deadline)
    assert waits == [60] * 60  # all of them were asked before one was waited for
    assert [client.stats().failed for client in clients] == [{"closed": 1}] * 60


def test_exit_reports_the_losses_of_all_clients_once(black_hole: str) -> None:
    text = """
import sys, logclient
clients = [logclient.connect(sys.argv[1], atexit_timeout=0.1) for _ in range(20)]
for client in clients:
    client.send("one")
    client.send("two")
"""
    done = run_program(text, black_hole)
    assert done.returncode == 0
    what = f"40 events were not delivered before exit{NO_FALLBACK}"
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"logclient: {line.split()[1]} and 19 more clients: {what}")


def test_many_clients_of_a_dead_server_report_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Refusing() as dead:
        clients = [logclient.connect(dead.url) for _ in range(20)]
        for client in clients:
            client.send("one")
        wait_until(lambda: all(client.stats().last_error for client in clients))
        for client in clients:
            client.close(0.0)
    said = capfd.readouterr().err.splitlines()
    assert len([line for line in said if "cannot connect" in line]) == 1
    assert len([line for line in said if "given up" in line]) == 1


@pytest.mark.slow
def test_exit_gives_live_clients_time_beside_dead_ones(black_hole: str) -> None:
    text = """
import atexit, logging, sys

def last():
    stats = handler.client.stats()
    print(stats.sent, stats.acked, flush=True)

def late():
    logging.getLogger("app").error("late")

atexit.register(last)
atexit.register(late)    # after the package's own hook, which is registered later
import logclient
dead = [logclient.connect(sys.argv[2], atexit_timeout=0.5) for _ in range(8)]
for client in dead:
    client.send("one")
handler = logclient.Handler(sys.argv[1], atexit_timeout=0.5)
logging.getLogger("app").addHandler(handler)
logging.getLogger("app").error("early")
"""
    from tests.cores.sink import Sink

    with Sink() as sink:
        for _ in range(3):
            done = run_program(text, sink.url, black_hole)
            assert done.stdout.split() == ["2", "2"], done.stderr


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[logclient.Client]], None]:
    """Return a function that does what a fork does in the parent; these clients must not delay it.

    A sender that sleeps until its time is over, or is in an attempt to connect, does so for an hour. A fork
    waits so long for those who were asked to end that none of them may be left.
    """
    monkeypatch.setattr(lifecycle, "PARK", PATIENCE)
    monkeypatch.setattr(engine_module, "TURN", 3600.0)
    wait_parked = sender_module.Sender.wait_parked
    asked: list[bool] = []

    def note(sender: Any, deadline: float) -> None:
        asked.append(all(one.ending.forking for one in senders))
        wait_parked(sender, deadline)

    monkeypatch.setattr(sender_module.Sender, "wait_parked", note)
    senders: list[Any] = []
    monkeypatch.setattr(lifecycle, "senders", lambda: senders)  # not those that other tests have left

    def before_and_after(clients: list[logclient.Client]) -> None:
        senders[:] = [client._sender for client in clients]
        asked.clear()
        lifecycle._before_fork()
        try:
            assert asked and all(asked), "one waits for another"
            assert not any(sender.running and sender.ending.parking for sender in senders)
        finally:
            lifecycle._in_parent()

    return before_and_after


@needs_fork
def test_a_fork_does_not_wait_for_hanging_connections(
    black_hole: str, fork: Callable[[list[logclient.Client]], None]
) -> None:
    clients = [logclient.connect(black_hole, connect_timeout=3600) for _ in range(60)]
    try:
        for _ in range(3):
            for client in clients:
                client.send("one")
            wait_until(lambda: all(client._sender.role.ident for client in clients))
            fork(clients)
        wait_until(lambda: all(client._sender.role.ident for client in clients))  # all of them go on
    finally:
        for client in clients:
            client.close(0.0)


@needs_fork
def test_a_fork_does_not_wait_for_idle_senders(fork: Callable[[list[logclient.Client]], None]) -> None:
    from tests.cores.sink import Sink

    with Sink() as sink:
        clients = [logclient.connect(sink.url) for _ in range(100)]
        try:
            for _ in range(3):
                for client in clients:
                    client.send("one")
                assert not any(client.flush(PATIENCE) for client in clients)
                fork(clients)
        finally:
            for client in clients:
                client.close()


@pytest.mark.slow
@needs_fork
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of a fork beside threads")
def test_an_idle_sender_survives_forks_in_the_parent() -> None:
    from tests.cores.sink import Sink

    def sender() -> int | None:
        return next((t.native_id for t in threading.enumerate() if t.name == threads.SENDER), None)

    with Sink() as sink, logclient.connect(sink.url) as client:
        kept = 0
        for _ in range(20):
            client.send("of the parent")
            assert not client.flush(PATIENCE)
            before = sender()
            child = os.fork()
            if child == 0:
                client.send("of the child")
                os._exit(client.flush(PATIENCE))
            assert os.waitpid(child, 0)[1] == 0
            kept += sender() == before is not None
        assert kept, "each of them was at work in each fork"
        assert client.stats().connects == 1
    assert sorted(len(events) for events in sink.got.values()) == [1] * 20 + [20]


def test_a_closed_client_is_freed_without_the_collector() -> None:
    """In a cycle the order of destruction is unknown: sockets would warn of not being closed."""
    from tests.cores.sink import Sink

    gc.collect()
    gc.disable()
    try:
        with Sink() as sink, logclient.connect(sink.url) as client:
            client.send("one")
        engine = weakref.ref(client._sender)
        del client
        assert wait_until(lambda: engine() is None)
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
def test_a_child_inherits_no_socket_of_an_attempt() -> None:
    def sockets() -> set[str]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:  # the descriptor of the list itself
                pass
        return {target for target in found if target.startswith("socket:")}

    with BlackHole() as hole:
        before = sockets()
        client = logclient.connect(hole.url)
        try:
            client.send("one")
            for _ in range(20):
                wait_until(lambda: sockets() - before)
                pid = os.fork()
                if pid == 0:
                    os._exit(len(sockets() - before))
                assert os.waitpid(pid, 0)[1] == 0
        finally:
            client.close(0.0)


# -- signals at any moment --------------------------------------------------------------------------------

SENDING = """
import mmap, os, signal, struct, sys
ready = mmap.mmap(os.open(sys.argv[3], os.O_RDWR), 8)
signal.signal(signal.SIGINT, signal.default_int_handler)    # also where it is ignored from the start
import logclient
if sys.argv[4] == "TERM":
    logclient.flush_on_sigterm(2.0)
sent = 0
with logclient.connect(sys.argv[1], ledger=sys.argv[2], window=5, atexit_timeout=1) as client:
    for _ in range(150):
        client.send("an event")
        sent += 1
        struct.pack_into("q", ready, 0, sent)
"""


COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from logclient.cli import main
sys.exit(main())
"""


class LeftEvidence:
    """What a program that was ended by a signal has left behind."""

    def __init__(self, folder: Path, said: str) -> None:
        from tests.cores.recount import recount

        files = sorted(folder.glob("*.ledger"))
        self.last = self.given_up = 0
        self.closed = not files
        if files:
            books = recount(folder, files[0].name.split("-")[0])
            self.closed = books.closed is not None
            if books.closed is not None:
                self.last = books.closed["last"]
                self.given_up = books.closed["failed"].get("closed", 0)
                settled = books.closed["acked"] + sum(books.closed["failed"].values())
                assert settled == self.last, books.closed
        # Of the same ones, if the first wait was cut short and the second one gave up.
        counts = re.findall(r"(\d+) events? w(?:as|ere) (?:given up|not delivered)", said)
        self.said = sum(map(int, counts))


def assert_program_accounts_after_signal(number: int, moment: float, folder: Path, url: str) -> None:
    """Run `SENDING` once with one signal; everything must add up."""
    folder.mkdir()
    counter = folder / "sent"
    counter.write_bytes(bytes(8))
    name = "TERM" if number == signal.SIGTERM else "INT"
    process = subprocess.Popen(
        [sys.executable, "-c", SENDING, url, str(folder / "run"), str(counter), name],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    # The moments are those after the first event: what happens before has nothing to lose.
    wait_until(lambda: counter.read_bytes() != bytes(8) or process.poll() is not None)
    time.sleep(moment)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    sent = int.from_bytes(counter.read_bytes(), sys.byteorder)
    found = LeftEvidence(folder / "run", said)
    assert found.closed, f"no close line after {moment:.4f} s\n{said}"
    assert sent <= found.last <= sent + 1, f"sent {sent}, in the ledger {found.last}\n{said}"
    assert found.given_up == found.said, f"given up {found.given_up}\n{said}"


@pytest.fixture
def slow_collector() -> Iterator[str]:
    from logclient.testing.lumberjack import Collector

    with Collector(faults="delay-ack=p:1:20ms", keep=False) as collector:
        yield collector.url


def assert_command_accounts_after_signal(number: int, moment: float, folder: Path, url: str) -> None:
    """Run ``logclient send`` once with one signal; everything must add up."""
    folder.mkdir()
    lines = folder / "lines"
    lines.write_text("a line\n" * 200)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "send", url, str(lines), "--ledger", str(folder / "run"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    # The moments are those after its ledger begins: what happens before has nothing to lose.
    wait_until(lambda: (folder / "run").exists() or process.poll() is not None)
    time.sleep(moment)
    process.send_signal(number)
    out, said = process.communicate(timeout=30)
    (report,) = map(json.loads, out.splitlines())
    # Once it has reported, a signal ends it like any other program.
    assert process.returncode in (report["exit"], -number), said
    settled = report["acked"] + sum(report["failed"].values()) + sum(report["dropped"].values())
    assert report["sent"] == settled, report
    found = LeftEvidence(folder / "run", said)
    assert found.closed and found.last == report["sent"], f"{report}, in the ledger {found.last}"
    assert found.given_up == report["failed"].get("closed", 0)


def moments(n: int, seconds: float) -> Iterator[tuple[int, float]]:
    """Return (signal, seconds after the first event) from a fixed seed: `n` of each signal."""
    chance = random.Random(n)
    for _ in range(n):
        yield signal.SIGINT, chance.uniform(0.0, seconds)
        yield signal.SIGTERM, chance.uniform(0.0, seconds)


INTERRUPT = {
    "with connect()": assert_program_accounts_after_signal,
    "logclient send": assert_command_accounts_after_signal,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", INTERRUPT)
def test_a_signal_at_any_moment_loses_no_account(what: str, slow_collector: str, tmp_path: Path) -> None:
    for number, (which, moment) in enumerate(moments(3, 0.8)):
        INTERRUPT[what](which, moment, tmp_path / f"{number}", slow_collector)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", INTERRUPT)
def test_a_signal_at_200_moments_loses_no_account(what: str, slow_collector: str, tmp_path: Path) -> None:
    for number, (which, moment) in enumerate(moments(100, 0.8)):
        INTERRUPT[what](which, moment, tmp_path / f"{number}", slow_collector)
