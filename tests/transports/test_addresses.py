"""Names with several addresses, and clients with several servers: dead ones, slow look-ups, moves."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import threads
from logclient.delivery import engine as engine_module
from logclient.delivery import lifecycle
from logclient.delivery.attempt import Attempt
from logclient.errors import CredentialError
from logclient.testing.lumberjack import Collector
from logclient.transports import udp
from logclient.transports.addresses import Lookup
from tests.cores.rig import Rig, Setup
from tests.cores.server import MemoryLink, MemoryServer, MemoryTransport, silent
from tests.cores.sink import Sink
from tests.support import NO_FALLBACK, TESTED, clean_environment, transports
from tests.support.dead_servers import BlackHole
from tests.support.patience import PATIENCE, assert_returns, wait_until

pytestmark = pytest.mark.timeout(20 * PATIENCE)

NEVER = 3600.0
"""A time-out that no test waits for."""


@pytest.fixture
def hole() -> Iterator[tuple[str, int]]:
    """An address that answers nothing."""
    with BlackHole() as server:
        yield server._listener.getsockname()


def name_of(*addresses: Any, kind: socket.SocketKind = socket.SOCK_STREAM) -> Any:
    """A replacement of getaddrinfo: every host has these addresses."""
    return lambda *args, **options: [(socket.AF_INET, kind, 0, "", address) for address in addresses]


class TestAddresses:
    def test_a_silent_address_costs_no_time_out_and_is_reported(
        self, hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as good:
            monkeypatch.setattr(socket, "getaddrinfo", name_of(hole, good.getsockname()))
            said: list[str] = []
            attempt = Attempt(warn=said.append)
            link = assert_returns(lambda: transports.tcp(NEVER).connect(("two.addresses", 1), attempt))
            assert link._socket.getpeername() == good.getsockname()
            assert said == [f"no answer from 127.0.0.1:{hole[1]}: 127.0.0.1:{good.getsockname()[1]} is used"]
            link.close()

    def test_the_address_that_answered_last_is_tried_first(
        self, hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as good:
            monkeypatch.setattr(socket, "getaddrinfo", name_of(hole, good.getsockname()))
            first = Attempt()
            transports.tcp(NEVER).connect(("two.addresses", 1), first).close()
            monkeypatch.setattr("logclient.transports.addresses.STAGGER", NEVER)
            again = Attempt()
            again.known = first.known
            link = assert_returns(lambda: transports.tcp(NEVER).connect(("two.addresses", 1), again))
            link.close()

    def test_an_ipv6_address_is_named_with_its_brackets(self) -> None:
        for url in ("lumberjack://[::1]:1", "logux://[::1]:1", "lumberjack://[::1]:1,[::1]:2"):
            with logclient.connect(url, backoff_max=0.01) as client:
                client.send({"type": "a"})
                wait_until(lambda: client.stats().last_error, "an attempt has failed")
                assert f"{url}: cannot connect to [::1]:" in client.stats().last_error
                client.close(0.0)

    def test_an_address_that_fails_is_followed_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("logclient.transports.addresses.STAGGER", NEVER)
        with socket.create_server(("127.0.0.1", 0)) as good, socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            monkeypatch.setattr(socket, "getaddrinfo", name_of(bound.getsockname(), good.getsockname()))
            link = assert_returns(lambda: transports.tcp(NEVER).connect(("two.addresses", 1), Attempt()))
            link.close()

    def test_addresses_that_all_fail_are_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            monkeypatch.setattr(socket, "getaddrinfo", name_of(one.getsockname(), two.getsockname()))
            with pytest.raises(ConnectionRefusedError):
                transports.tcp(NEVER).connect(("two.addresses", 1), Attempt())
        monkeypatch.setattr(socket, "getaddrinfo", name_of())
        with pytest.raises(OSError, match=r"no\.addresses has no address"):
            transports.tcp(NEVER).connect(("no.addresses", 1), Attempt())

    def test_zeromq_finds_the_address_that_answers(
        self, hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zmq = pytest.importorskip("zmq")
        context = zmq.Context()
        with context, context.socket(zmq.ROUTER) as router:
            router.linger = 0
            # ZeroMQ connects to the port of the endpoint, so that the addresses differ in the host.
            router.bind(f"tcp://127.0.0.2:{hole[1]}")
            monkeypatch.setattr(socket, "getaddrinfo", name_of(hole, ("127.0.0.2", hole[1])))
            endpoint = ("two.addresses", hole[1])
            link = assert_returns(lambda: transports.zmq(NEVER).connect(endpoint, Attempt()))
            link.close()

    def test_the_families_take_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [(socket.AF_INET6, f"{n}") for n in "123"] + [(socket.AF_INET, f"{n}") for n in "45"]
        entries = [(family, socket.SOCK_STREAM, 0, "", (name, 1)) for family, name in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: entries)
        addresses = Lookup(("many.addresses", 1), socket.SOCK_STREAM, None).addresses
        assert [where[-1][0] for where in addresses or ()] == ["1", "4", "2", "5", "3"]

    def test_an_answer_of_an_odd_shape_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: [("odd",)])
        with pytest.raises(OSError, match="IndexError"):
            transports.tcp(NEVER).connect(("odd.answer", 1), Attempt())


class TestEndpoints:
    def test_datagrams_wait_for_no_other_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not even for the look-up of its name."""
        released = threading.Event()

        def find(name: bytes, *args: Any, **options: Any) -> Any:
            if name == b"other.server":
                released.wait(PATIENCE)
            return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 9))]

        monkeypatch.setattr(socket, "getaddrinfo", find)
        attempt = Attempt()
        attempt.others, attempt.wake = (("other.server", 9),), lambda: None
        try:
            link = assert_returns(lambda: transports.udp().connect(("127.0.0.1", 9), attempt))
            assert link.peer == "127.0.0.1:9"
            link.close()
        finally:
            released.set()

    @pytest.mark.parametrize("way", ["flush", "exit"])
    def test_a_silent_server_holds_up_no_other(self, hole: tuple[str, int], way: str) -> None:
        with Sink() as good:
            url = f"lumberjack://127.0.0.1:{hole[1]},{good.url.removeprefix('lumberjack://')}"
            if way == "flush":
                with logclient.connect(url, connect_timeout=1000) as client:
                    client.send({"message": "first"})
                    assert client.flush(PATIENCE) == 0
            else:
                program = (
                    "import logging, sys, logclient\n"
                    "handler = logclient.Handler(\n"
                    f"    sys.argv[1], connect_timeout=1000, atexit_timeout={PATIENCE}\n"
                    ")\n"
                    "logging.getLogger().addHandler(handler)\n"
                    "logging.error('first')\n"
                )
                command = [sys.executable, "-c", program, url]
                done = subprocess.run(
                    command, capture_output=True, text=True, cwd=TESTED, env=clean_environment(), check=True
                )
                assert "not delivered" not in done.stderr
            (producer,) = good.got
            assert good.messages(producer) == ["first"]

    def test_the_servers_that_may_be_tried_come_from_the_next_on(self, tmp_path: Path) -> None:
        rig = Rig(Setup("fifo"), tmp_path / "run", server=MemoryServer("fifo"))
        endpoints = rig.engine.lanes.first.endpoints
        endpoints._endpoints = ("a", "b", "c")
        assert endpoints.others(0.0) == ["b", "c"]
        endpoints.use("b")
        assert endpoints.current == "b" and endpoints.others(0.0) == ["c", "a"]
        endpoints.refused("c", CredentialError("no"))  # counts for the current one
        assert endpoints.current == "c" and endpoints.others(0.0) == ["a"]
        rig.finish()

    def test_a_server_that_is_named_twice_hides_no_other(self) -> None:
        with socket.socket() as bound, Collector() as server:
            bound.bind(("127.0.0.1", 0))
            dead = f"127.0.0.1:{bound.getsockname()[1]}"
            url, told = f"lumberjack://{dead},{dead},127.0.0.1:{server.port}", list[str]()
            client = logclient.connect(url, backoff_max=0.01, timeout=PATIENCE, on_error=told.append)
            client.send("first")
            assert client.flush() == 0
            server.__exit__(None, None, None)  # it keeps its port
            client.send("second")
            missed = f"{url}: cannot connect to 127.0.0.1:{server.port}: connection refused"
            wait_until(lambda: missed in told, "the server is missed")
            server.__enter__()
            assert client.flush() == 0
            client.close(0.0)


class TwoServers(MemoryTransport):
    """A transport to one server for each endpoint."""

    def __init__(self, servers: dict[str, MemoryServer]) -> None:
        super().__init__(servers["a"])
        self.servers = servers

    def connect(self, endpoint: Any, attempt: Attempt) -> MemoryLink:
        return MemoryTransport(self.servers[endpoint]).connect(endpoint, attempt)


def test_what_hangs_at_one_server_goes_to_another_at_the_end(tmp_path: Path) -> None:
    servers = {name: MemoryServer("fifo") for name in "ab"}
    servers["a"].script = silent
    rig = Rig(Setup("fifo"), tmp_path / "run", server=servers["b"], transport=TwoServers(servers))
    rig.engine.lanes.first.endpoints._endpoints = ("a", "b")
    rig.many(5)
    servers["a"].events(5)
    rig.engine.lanes.plan_end(time.monotonic())  # half of the time is over
    rig.engine.pump.poke()
    rig.engine.queue.wake()
    rig.settle()
    assert [got.seq for got in servers["b"].peers[0].got] == [1, 2, 3, 4, 5]
    rig.finish()


def test_the_line_at_the_end_says_what_events_waited_for(tmp_path: Path, hole: tuple[str, int]) -> None:
    rig = Rig(Setup("fifo"), tmp_path / "run", server=MemoryServer("fifo"), transport=transports.tcp(NEVER))
    rig.engine.lanes.first.endpoints._endpoints = (hole,)
    rig.many(3)
    rig.until(lambda _: rig.engine.lanes.holds_sender)
    rig.exit(time.monotonic() + 0.5)
    (line,) = rig.lines.of("exit")
    begin = f"test://server: 3 events were not delivered before exit{NO_FALLBACK} (no answer from 127.0.0.1:"
    assert line.startswith(f"{begin}{hole[1]} in ")
    rig.reopen()


def test_the_line_at_the_end_names_the_server_that_acknowledges_nothing(tmp_path: Path) -> None:
    server = MemoryServer("fifo")
    server.script = silent
    rig = Rig(Setup("fifo"), tmp_path / "run", server=server)
    rig.many(3)
    server.events(3)
    rig.exit(time.monotonic() + 0.1)
    (line,) = rig.lines.of("exit")
    assert line.endswith(f"{NO_FALLBACK} (3 of them not acknowledged by test:1)")
    rig.reopen()


class TestLookups:
    def test_a_resolver_that_hangs_ends_the_attempt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The look-up goes on, and is the next attempt's, too."""
        released, asked = threading.Event(), []

        def find(name: bytes, *args: Any, **options: Any) -> Any:
            asked.append(name)
            released.wait(PATIENCE)
            return []

        monkeypatch.setattr(socket, "getaddrinfo", find)
        first, woken = Attempt(), threading.Event()
        first.wake = woken.set
        try:
            for attempt in (first, Attempt()):
                attempt.known, attempt.wake = first.known, first.wake
                with pytest.raises(TimeoutError, match="resolver"):
                    transports.tcp(0.05).connect(("a.name", 1), attempt)
            assert asked == [b"a.name"]
        finally:
            released.set()
            assert woken.wait(PATIENCE)

    def test_a_look_up_that_hangs_holds_up_neither_close_nor_a_fork(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked, answer = threading.Event(), threading.Event()

        def hang(*args: Any, **options: Any) -> Any:
            asked.set()
            answer.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")

        monkeypatch.setattr(socket, "getaddrinfo", hang)
        monkeypatch.setattr(lifecycle, "PARK", PATIENCE)
        client = logclient.connect("lumberjack://slow.example:5044")
        client.send({"message": "first"})
        assert asked.wait(PATIENCE)
        sender = client._sender
        try:
            for _ in range(3):
                client._sender.park(pause=False)
                client._sender.wait_parked(time.monotonic() + PATIENCE)
                assert not client._sender.running, "a fork would find the sender in the middle"
                client._sender.unpark()
                client._sender.restart()
            hanging = [one for one in threading.enumerate() if one.name == "logclient-connect"]
            assert len(hanging) == 1, "who asks again waits for the first answer"
            assert assert_returns(lambda: client.close(0.1)) == 1
            assert sender.role.join(PATIENCE), "the sender does not wait for an answer"
        finally:
            answer.set()

    def test_an_unknown_name_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*args: Any, **options: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with logclient.connect("lumberjack://no.example:5044") as client:
            client.send({"message": "first"})
            wait_until(lambda: "not known" in client.stats().last_error.lower())
            client.close(0)

    def test_plog_follows_a_name_that_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(udp, "LOOK_AGAIN", 0.0)
        with socket.socket(type=socket.SOCK_DGRAM) as old, socket.socket(type=socket.SOCK_DGRAM) as new:
            old.bind(("127.0.0.1", 0))
            new.bind(("127.0.0.2", old.getsockname()[1]))
            kind = socket.SOCK_DGRAM
            monkeypatch.setattr(socket, "getaddrinfo", name_of(old.getsockname(), kind=kind))
            with logclient.connect(f"plog://moving.example:{old.getsockname()[1]}") as client:
                client.send({"message": "first"})
                old.settimeout(PATIENCE)
                assert old.recv(65536)
                monkeypatch.setattr(socket, "getaddrinfo", name_of(new.getsockname(), kind=kind))
                new.setblocking(False)

                def arrives() -> bytes:
                    client.send({"message": "later"})
                    try:
                        return new.recv(65536)
                    except BlockingIOError:
                        return b""

                assert wait_until(arrives, "a datagram at the new address")


class TestSleep:
    def test_an_idle_client_sleeps_for_a_minute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sleeps: list[float] = []
        turn = engine_module.Engine.turn

        def note(engine: Any, until: float) -> None:
            sleeps.append(until - time.monotonic())
            turn(engine, until)

        monkeypatch.setattr(engine_module.Engine, "turn", note)
        rig = Rig(Setup("fifo", True), tmp_path / "run")
        for _ in range(3):  # each event is seen at once
            rig.put()
            rig.settle()
        wait_until(lambda: sleeps[-1] > 30.0, "a long sleep")
        rig.put()
        rig.settle()
        rig.finish()

    def test_an_attempt_that_gets_no_answer_sleeps_as_long_as_it_may(
        self, tmp_path: Path, hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sleeps: list[float] = []
        wait_ready = threads.wait_ready

        def note(reading: list[int], writing: list[int], seconds: float) -> bool:
            sleeps.append(seconds)
            return wait_ready(reading, writing, seconds)

        monkeypatch.setattr(threads, "wait_ready", note)
        rig = Rig(
            Setup("fifo"), tmp_path / "run", server=MemoryServer("fifo"), transport=transports.tcp(NEVER)
        )
        rig.engine.lanes.first.endpoints._endpoints = (hole,)
        rig.put()
        wait_until(lambda: sleeps and sleeps[-1] > 30.0, "a long sleep")
        assert assert_returns(lambda: rig.waiter.close(0.0)) == 1
