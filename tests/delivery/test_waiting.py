"""Whoever waits for a sender is answered, also where none can run: a thread that cannot start, one that died,
a caller that is the sender itself, the end of the process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

import logclient
from logclient import threads
from logclient.delivery.lanes import Lanes
from logclient.delivery.outcomes import Outcome
from logclient.errors import ConnectFailed
from logclient.testing.logjam import Collector as LogjamServer
from logclient.testing.logux import Collector as LoguxServer
from logclient.testing.lumberjack import Collector
from logclient.testing.plog import Collector as PlogServer
from tests.support import TESTED, clean_environment
from tests.support.forks import FORKS, needs_fork, passes_in_own_process, run_in_child
from tests.support.patience import PATIENCE, assert_returns, wait_until

SERVERS: dict[str, Any] = {
    "lumberjack": Collector,
    "plog": PlogServer,
    "logjam": LogjamServer,
    "logux": LoguxServer,
}

# -- what a caller can wait for, without a limit of its own where there is a choice ----------------------

SYNC: dict[str, Callable[[Any], Any]] = {
    "result": lambda client: client.submit({"message": "1"}).result().ok,
    "flush": lambda client: client.send({"message": "1"}) and client.flush(100 * PATIENCE) == 0,
}
ASYNC: dict[str, Callable[[Any], Any]] = {
    "await submit": lambda client: client.submit({"message": "1"}),
    "await flush": lambda client: client.send({"message": "1"}) and client.flush(100 * PATIENCE),
}
COMMAND = {"command": lambda client: client.command("ping", timeout=100 * PATIENCE) is not None}
PING = {"ping": lambda client: client.ping(timeout=100 * PATIENCE) is not None}
ACTION = {"add": lambda client: client.add({"type": "a"}).result().ok}
CASES = [(server, ways, how) for server in SERVERS for ways in (SYNC, ASYNC) for how in ways]
CASES += [("plog", COMMAND, "command"), ("logux", PING, "ping"), ("logux", ACTION, "add")]
cases = pytest.mark.parametrize(
    ("server", "ways", "how"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)


def wait(client: Any, ways: dict[str, Callable[[Any], Any]], how: str) -> bool:
    """Wait in this way; return whether it went well."""
    if ways is not ASYNC:
        return bool(ways[how](client))

    async def main() -> bool:
        found = await ways[how](logclient.AsyncClient(client))
        return bool(found.ok if isinstance(found, Outcome) else found == 0)

    return asyncio.run(main())


@contextmanager
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No sender can be started at first."""
    real = threads.make_thread
    left = [1]

    def make_thread(target: Callable[[], object], name: str) -> threads.AnyThread:
        thread = real(target, name)
        if name == threads.SENDER and left:
            left.pop()

            def start() -> None:
                raise RuntimeError("can't start new thread")

            monkeypatch.setattr(thread, "start", start)
        return thread

    monkeypatch.setattr(threads, "make_thread", make_thread)
    yield
    assert not left


@contextmanager
def dying_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bug of ours ends the first sender."""
    real = Lanes.deliver
    left = [1]

    def deliver(lanes: Lanes, until: float) -> None:
        if left:
            left.pop()
            raise ValueError("a bug")
        real(lanes, until)

    monkeypatch.setattr(Lanes, "deliver", deliver)
    yield
    assert not left


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("trouble", [no_thread, dying_thread])
@cases
def test_a_missing_sender_is_replaced(
    trouble: Any, server: str, ways: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        SERVERS[server]() as collector,
        logclient.connect(f"{collector.url}{'/shop-production' * (server == 'logjam')}") as client,
        trouble(monkeypatch),
    ):
        assert assert_returns(lambda: wait(client, ways, how)) is True


FROM_THE_SENDER: dict[str, Callable[[Any, Any], Any]] = {
    "result": lambda client, delivery: delivery.result(),
    "flush": lambda client, delivery: client.flush(100 * PATIENCE),
    "flush of a handler": lambda client, delivery: logclient.Handler(client=client).flush(),
    "command": lambda client, delivery: client.command("ping", timeout=100 * PATIENCE),
}


@pytest.mark.parametrize("how", FROM_THE_SENDER)
def test_the_sender_does_not_wait_for_itself(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A destructor that a garbage collection runs in the sender's thread waits for nobody."""
    ended: list[str] = []

    class Session:
        client: ClassVar[Any]

        def __init__(self) -> None:
            self.me = self  # a cycle

        def __del__(self) -> None:
            delivery = self.client.submit({"message": "the end"})
            try:
                FROM_THE_SENDER[how](self.client, delivery)
            except ConnectFailed:
                assert how == "command"
            ended.append(threading.current_thread().name)

    real = Lanes.deliver
    due: list[int] = []

    def deliver(lanes: Lanes, until: float) -> None:
        if due:
            due.pop()
            gc.collect()
        real(lanes, until)

    monkeypatch.setattr(Lanes, "deliver", deliver)
    gc.disable()
    try:
        server: Any = PlogServer if how == "command" else Collector
        with server() as collector, logclient.connect(collector.url, timeout=100 * PATIENCE) as client:
            Session.client = client
            Session()
            due.append(1)
            client.send({"message": "1"})
            assert assert_returns(lambda: client.flush(100 * PATIENCE)) == 0
            assert ended == [threads.SENDER]
    finally:
        gc.enable()


AT_EXIT = {
    "result": "print(client.submit({'message': '1'}).result())",
    "add_done_callback": "client.submit({'message': '1'}).add_done_callback(print); client.flush()",
    "await submit": "print(asyncio.run(logclient.AsyncClient(client).submit({'message': '1'})).status)",
    "await flush": "print(asyncio.run(flush()))",
}


@pytest.mark.parametrize("used", [True, False], ids=["used before", "not used before"])
@pytest.mark.parametrize("how", AT_EXIT)
def test_waiting_ends_while_the_process_does(how: str, used: bool) -> None:
    """The server is away, and what is logged after our own exit handler is delivered in the call."""
    program = f"""
import asyncio, atexit
def last():
    {AT_EXIT[how]}
atexit.register(last)  # it runs after ours
import logclient
async def flush():
    client = logclient.AsyncClient(made)
    client.send({{"message": "1"}})
    return await client.flush(3600)
made = client = logclient.connect("lumberjack://127.0.0.1:1?atexit_timeout=100ms")
if {used}:
    client.send({{"message": "0"}})
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE,
        cwd=TESTED, env=clean_environment(),
    )  # fmt: skip
    wanted = {"result": ["None"], "await submit": ["failed"], "await flush": ["1"]}
    assert run.returncode == 0 and "Traceback" not in run.stderr, run.stderr
    assert run.stdout.splitlines() == wanted.get(how, []), run.stderr


def test_an_asynchronous_close_waits_for_the_callback_that_runs() -> None:
    entered, ended = threading.Event(), threading.Event()
    gate = threading.Event()

    def callback(_: object) -> None:
        entered.set()
        assert gate.wait(PATIENCE)
        ended.set()

    async def main(url: str) -> None:
        client = logclient.AsyncClient(url)
        client.client.submit({"message": "1"}).add_done_callback(callback)
        assert await client.flush(PATIENCE) == 0
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        closing = asyncio.create_task(client.close(PATIENCE))
        done, _ = await asyncio.wait({closing}, timeout=0.5)
        assert not done
        gate.set()
        assert await closing == 0
        assert ended.is_set()

    with Collector() as collector:
        asyncio.run(main(collector.url))


@needs_fork
@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("how", ["flush", "close"])
def test_an_asynchronous_client_notices_a_fork(how: str, fork: str, request: pytest.FixtureRequest) -> None:
    """What the parent has queued is not the child's; the loop of the child is a new one."""
    if fork == "from C" and passes_in_own_process(request.node.nodeid):
        return
    with logclient.connect("lumberjack://127.0.0.1:1", atexit_timeout=0.0) as client:
        client.send({"message": "the parent's"})
        wait_until(lambda: client.stats().last_error)

        def child() -> None:
            asynchronous = logclient.AsyncClient(client)
            assert asyncio.run(getattr(asynchronous, how)(0.0)) == 0

        run_in_child(child, FORKS[fork])
        client.close(0.0)


def test_each_dead_server_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """However many clients have one; and 40 dead servers have no more kinds than 32."""
    ports = [1, 1, 2, 2, *range(3, 41)]
    clients = [logclient.connect(f"lumberjack://127.0.0.1:{port}") for port in ports]
    for client in clients:
        client.send({"message": "1"})
    for client in clients:
        wait_until(lambda client=client: client.stats().last_error)  # type: ignore[misc]
    for client in clients:
        client.close(0.0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "cannot connect" in line]
    named = [line.partition("cannot connect to ")[2].partition(": ")[0] for line in lines]
    assert len(set(named)) == len(named) and 32 <= len(named) <= 33


def test_an_endpoint_that_fails_does_not_hide_the_next_of_one_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logclient.connect("lumberjack://127.0.0.1:1,127.0.0.1:2", backoff_max=0.01) as client:
        client.send({"message": "1"})
        wait_until(lambda: "cannot connect to 127.0.0.1:2: " in client.stats().last_error)
        client.close(0.0)
    said = capsys.readouterr().err
    assert said.count("cannot connect to 127.0.0.1:1: ") == said.count("cannot connect to 127.0.0.1:2: ") == 1
