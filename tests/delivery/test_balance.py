"""``balance=true``: a client is connected to all of its servers, and loses nothing when some of them fail."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import ConfigError
from logclient.client import Outcome
from logclient.delivery import lanes as lanes_module
from logclient.testing.lumberjack import Collector
from logclient.transports.tls import server_context
from tests.cores.recount import recount
from tests.cores.rig import adds_up
from tests.support import clean_environment
from tests.support.breaks import PoisonedServer
from tests.support.patience import PATIENCE, wait_until

QUICK: dict[str, Any] = {"balance": True, "backoff_max": 0.02}
CLOSED = "127.0.0.1:9"


def url_of(*servers: Any) -> str:
    """Return the URL of several servers."""
    return "lumberjack://" + ",".join(where(server) for server in servers)


def where(server: Any) -> str:
    if isinstance(server, str):
        return server
    return str(server.url.partition("://")[2].partition("?")[0])


def connect(*servers: Any, **options: Any) -> logclient.Client:
    return logclient.connect(url_of(*servers), **QUICK | options)


@contextmanager
def running(*faults: str, **options: Any) -> Iterator[list[Collector]]:
    """Run a collector for each of these faults; empty: one without faults."""
    with ExitStack() as stack:
        yield [stack.enter_context(Collector(faults=one or None, **options)) for one in faults]


def connected(client: logclient.Client, n: int) -> None:
    """Wait until so many connections are there."""
    wait_until(lambda: sum(lane.link is not None for lane in lanes(client)) == n, f"{n} connections")


def lanes(client: logclient.Client) -> Any:
    return list(client._sender.engine.lanes)


def numbers(*servers: Collector) -> Counter[int]:
    """Count the arrivals of each event, by its ``n``."""
    found: Counter[int] = Counter()
    for server in servers:
        found.update(event["n"] for event in server.events(server.counts.events, PATIENCE))
    return found


def start_all(client: logclient.Client, n: int) -> None:
    """Send an event, and wait until all servers are connected."""
    client.send({"n": -1})
    connected(client, n)
    assert client.flush(PATIENCE) == 0


class TestShares:
    def test_windows_go_to_the_servers_in_turn(self) -> None:
        with running("", "", "") as servers, connect(*servers) as client:
            start_all(client, 3)
            before = [server.counts.events for server in servers]
            for n in range(30):
                client.send({"n": n})
                assert client.flush(PATIENCE) == 0
            assert [s.counts.events - b for s, b in zip(servers, before, strict=True)] == [10] * 3
            assert client.stats().connects == 3

    def test_equal_servers_get_about_equal_shares(self) -> None:
        options = {"window": 100, "inflight": 2, "overflow": "block", "max_events": 2000}
        with running("", "") as servers, connect(*servers, **options) as client:
            start_all(client, 2)
            for n in range(60_000):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            got = [server.counts.events for server in servers]
        assert sum(got) == 60_001 and min(got) > 6_000

    def test_a_slow_server_gets_less(self) -> None:
        options = {"window": 20, "inflight": 1, "overflow": "block", "max_events": 200}
        with running("delay-ack=every:1:20ms", "") as servers, connect(*servers, **options) as client:
            start_all(client, 2)
            for n in range(5000):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            slow, fast = (server.counts.events for server in servers)
        assert slow + fast == 5001 and 20 <= slow < fast

    @pytest.mark.parametrize("faults", [("stall=every:1", ""), ("", "stall=every:1")])
    def test_a_server_that_does_not_answer_delays_no_other(self, faults: tuple[str, ...]) -> None:
        """It takes the connection and its window, and never acknowledges that."""
        with running(*faults) as servers, connect(*servers, window=10) as client:
            for n in range(5000):
                client.send({"n": n})
                if n % 100 == 0:
                    client.flush(0.0)
            wait_until(lambda: client.stats().queued == 0)
            # At last only that server's are in flight.
            wait_until(lambda: 0 < client.flush(0.0) == client.stats().inflight <= 100)
            assert client.stats().acked >= 4900
            client.close(0)

    def test_a_black_hole_delays_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Connecting to it takes an hour, also for a sender that would do it itself."""
        from tests.support.dead_servers import KINDS

        try:
            hole = KINDS["no answer"]()
        except RuntimeError as error:
            pytest.skip(str(error))
        for share in ("SHARE", "ALONE"):
            monkeypatch.setattr(lanes_module, share, 3600.0)
        with hole, Collector(keep=True) as server, connect(hole, server, connect_timeout=3600) as client:
            for n in range(100):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert numbers(server) == dict.fromkeys(range(100), 1)
            assert client.close(PATIENCE) == 0

    @pytest.mark.slow
    def test_servers_with_tls(self, tls_pump: str, tmp_path: Path) -> None:
        tls = pytest.importorskip("tests.support.tls")
        ours = tls.Authority(tmp_path / "ours")
        with running("", "", tls=server_context(ours.issue("server")), keep=True) as servers:
            url = url_of(*servers).replace("lumberjack", "lumberjack+tls")
            with logclient.connect(url, ca=str(ours.ca), window=100, **QUICK) as client:
                start_all(client, 2)
                for n in range(20_000):
                    client.send({"n": n})
                assert client.flush(PATIENCE) == 0
                assert client.stats().tls.startswith("TLS") and client.stats().pump.startswith(tls_pump)
            assert numbers(*servers) == dict.fromkeys(range(-1, 20_000), 1)
            assert min(server.counts.events for server in servers) > 1000

    def test_handler_records_are_shared(self) -> None:
        with running("", "") as servers:
            handler = logclient.Handler(url_of(*servers), **QUICK)
            logger = logging.getLogger("tests.balance")
            logger.propagate = False
            logger.addHandler(handler)
            try:
                for n in range(40):
                    logger.warning("event %d", n)
                    assert handler.client.flush(PATIENCE) == 0
            finally:
                logger.removeHandler(handler)
                handler.close()
            got = [server.counts.events for server in servers]
        assert sum(got) == 40 and min(got) > 0


class TestFailures:
    def test_what_a_dead_server_had_goes_to_the_others(self, tmp_path: Path) -> None:
        """Under the same ids; later events are not sent after them, but do not wait for them either."""
        with running("stall=every:1", "", keep=True) as (dying, server):
            with connect(dying, server, window=10, ledger=str(tmp_path)) as client:
                connected_at = client.producer
                for n in range(2000):
                    client.send({"n": n})
                    if n % 10 == 9:
                        client.flush(0.0)
                held = lanes(client)[0].in_flight
                wait_until(lambda: client.stats().acked + held.inflight == 2000)
                left = held.inflight
                dying.stop()
                assert client.flush(PATIENCE) == 0
                stats = client.stats()
                assert numbers(server) == dict.fromkeys(range(2000), 1)
                assert stats.acked == 2000 and stats.resent == left and adds_up(stats)
            ids = {event["@metadata"]["_id"] for event in server.events()}
            assert ids == {client.event_id(seq) for seq in range(1, 2001)}
            books = recount(tmp_path, connected_at)
        assert books.count("acked") == {"": 2000} and books.closed is not None
        assert len(books.deferred) == left

    def test_a_server_gets_its_share_when_it_is_back(self) -> None:
        with running("", "") as (one, two), connect(one, two) as client:
            start_all(client, 2)
            two.stop()
            connected(client, 1)
            for n in range(100):
                client.send({"n": n})
                assert client.flush(PATIENCE) == 0
            two.start()
            before = two.counts.events

            def comes_back() -> bool:
                client.send({"n": 0})
                assert client.flush(PATIENCE) == 0
                return two.counts.events > before + 10

            wait_until(comes_back, "a share")
            assert sum(lane.link is not None for lane in lanes(client)) == 2

    def test_one_server_of_three_is_left(self) -> None:
        with Collector(keep=True) as server, connect(CLOSED, server, "127.0.0.1:11") as client:
            for n in range(500):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert numbers(server) == dict.fromkeys(range(500), 1)
            assert "cannot connect" in client.stats().last_error

    def test_no_server_is_there_at_first(self) -> None:
        with running("", "", keep=True) as servers:
            for server in servers:
                server.stop()
            with connect(*servers) as client:
                for n in range(500):
                    client.send({"n": n})
                wait_until(lambda: client.stats().last_error)
                assert client.stats().queued == 500 and client.flush(0.0) == 500
                for server in servers:
                    server.start()
                assert client.flush(PATIENCE) == 0
                assert numbers(*servers) == dict.fromkeys(range(500), 1)

    def test_random_cuts_on_both_servers_lose_nothing(self, tmp_path: Path) -> None:
        """They break around writes and acknowledgements, stop and start; the verifier judges."""
        inprocess = pytest.importorskip("tests.support.verify_inprocess")
        seeded = random.Random(19)
        ledger, capture = tmp_path / "ledger", tmp_path / "capture"
        faults = [
            f"cut-before-write=p:0.05,cut-before-ack=p:0.05,partial-cut=p:0.05,seed={seed}"
            for seed in (1, 2, 3)
        ]
        with running(*faults, capture=str(capture)) as servers:
            options = {"overflow": "block", "max_events": 1000, "window": 20}
            client = connect(*servers, ledger=str(ledger), **options)
            stop = threading.Event()
            sent: list[int] = []

            def send(sizes: random.Random) -> None:
                while not stop.is_set():
                    sent.append(client.send({"text": "x" * sizes.randrange(2000)}))

            threads = [threading.Thread(target=send, args=(random.Random(seed),)) for seed in (20, 21)]
            for thread in threads:
                thread.start()
            for _ in range(12):
                server = seeded.choice(servers)
                before = client.stats()
                server.stop()
                wait_until(lambda before=before: client.stats().acked > before.acked + 300)
                server.start()
                assert adds_up(client.stats())
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
            for server in servers:  # let it end: no more faults
                server.stop()
            with Collector(port=servers[0].port, capture=str(capture)):
                assert client.flush(2 * PATIENCE) == 0
                stats = client.stats()
                assert client.close(PATIENCE) == 0
        assert sorted(sent) == list(range(1, stats.sent + 1))
        assert stats.acked == stats.sent and stats.resent and stats.failed == stats.dropped == {}
        verdict = inprocess.run(ledger, capture)
        counts = verdict.counts
        assert (counts.lost, counts.missing, counts.unknown) == (0, 0, 0)
        assert (counts.unexpected, counts.corrupted, counts.reordered) == (0, 0, 0)
        assert verdict.exit_code == 0

    def test_refused_credentials_of_one_server(self, tmp_path: Path) -> None:
        """It is tried at the slow pace, and the other gets all events."""
        tls = pytest.importorskip("tests.support.tls")
        ours, theirs = tls.Authority(tmp_path / "ours"), tls.Authority(tmp_path / "theirs")

        with (
            Collector(tls=server_context(ours.issue("server")), keep=True) as server,
            Collector(tls=server_context(theirs.issue("server"))) as stranger,
            logclient.connect(
                url_of(stranger, server).replace("lumberjack", "lumberjack+tls"), ca=str(ours.ca), **QUICK
            ) as client,
        ):
            for n in range(200):
                client.send({"n": n})
                client.flush(PATIENCE)
            wait_until(lambda: "nothing is sent there" in client.stats().last_error)
            assert numbers(server) == dict.fromkeys(range(200), 1)
            assert client.stats().tls.startswith("TLS")


class Breaking(PoisonedServer):
    """Serves all connections at the same time."""

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as file, suppress(OSError):
            self._connection(peer, file, repeat(False))


class TestPoison:
    def test_an_event_that_no_server_takes_fails_alone(self, tmp_path: Path) -> None:
        poison = {500, 501}
        servers = [Breaking(repeat(repeat(False)), poison.__contains__) for _ in range(2)]
        options = {"compression": 0, "window": 50, "overflow": "block", "max_events": 500}
        try:
            with connect(*servers, ledger=str(tmp_path), **options) as client:
                sent = {}
                while sum(client.stats().failed.values()) < 2:
                    for _ in range(10):
                        sent[len(sent)] = client.send({"n": len(sent)})
                    client.flush(0.01)
                assert client.flush(PATIENCE) == 0
                stats = client.stats()
                assert stats.failed == {"poison": 2} and stats.quarantined == 0
                assert stats.acked == len(sent) - 2 and adds_up(stats)
            arrived = {n for server in servers for _, n in server.arrived}
            assert arrived == set(sent) - poison
            books = recount(tmp_path, client.producer)
            assert [books.outcomes[sent[n]] for n in sorted(poison)] == [("failed", "poison")] * 2
        finally:
            for server in servers:
                server.close()

    def test_an_event_that_one_server_refuses_goes_to_the_other(self) -> None:
        servers = [Breaking(repeat(repeat(False)), {300}.__contains__), Breaking(repeat(repeat(False)))]
        try:
            with connect(*servers, compression=0, window=20) as client:
                for n in range(1000):
                    client.send({"n": n})
                assert client.flush(PATIENCE) == 0
                assert client.stats().acked == 1000 and client.stats().failed == {}
        finally:
            for server in servers:
                server.close()


class TestCalls:
    """The calls of a client do what they do with one connection."""

    def test_results_and_callbacks(self) -> None:
        seen: list[Any] = []
        with running("", "") as servers, connect(*servers, on_delivery=seen.extend) as client:
            deliveries = [client.submit({"n": n}) for n in range(300)]
            outcomes = [delivery.result(PATIENCE) for delivery in deliveries]
            assert {outcome and outcome.status for outcome in outcomes} == {"acked"}
            wait_until(lambda: sum(last - first + 1 for _, first, last, *_ in map(tuple, seen)) == 300)

    def test_one_server(self) -> None:
        with Collector(keep=True) as server, connect(server) as client:
            for n in range(100):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            server.stop()
            server.start()
            client.send({"n": 100})
            assert client.flush(PATIENCE) == 0
            assert set(numbers(server)) == set(range(101))

    def test_asyncio(self) -> None:
        async def ship() -> list[str]:
            async with logclient.AsyncClient(url_of(*servers), **QUICK) as client:
                outcomes = await asyncio.gather(*(client.submit({"n": n}) for n in range(200)))
                assert await client.flush(PATIENCE) == 0
                return [outcome.status for outcome in outcomes]

        with running("", "", keep=True) as servers:
            assert asyncio.run(ship()) == ["acked"] * 200
            assert numbers(*servers) == dict.fromkeys(range(200), 1)

    def test_flush_from_many_threads(self) -> None:
        with running("delay-ack=every:2:5ms", "") as servers, connect(*servers, window=10) as client:
            left: list[int] = []

            def work() -> None:
                for n in range(30):
                    client.send({"n": n})
                    left.append(client.flush(PATIENCE))

            threads = [threading.Thread(target=work) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            assert left == [0] * 150 and client.stats().acked == 150

    def test_close_gives_up_what_no_server_takes(self) -> None:
        with running("stall=every:1", "stall=every:1") as servers, connect(*servers, window=10) as client:
            deliveries = [client.submit({"n": n}) for n in range(100)]
            wait_until(lambda: all(lane.in_flight.inflight for lane in lanes(client)))
            assert client.close(0.05) == 100
            assert client.stats().failed == {"closed": 100}
            assert {delivery.result(PATIENCE) for delivery in deliveries} == {Outcome("failed", "closed")}

    @pytest.mark.parametrize("overflow", ["drop_new", "drop_oldest", "block:10ms", "raise"])
    def test_one_bound_holds_for_all_connections(self, overflow: str) -> None:
        """Whatever the servers have not acknowledged counts."""
        with running("stall=every:1", "stall=every:1") as servers:
            options = {"overflow": overflow, "window": 10, "timeout": 0}
            with connect(*servers, max_events=100, **options) as client:
                results = []
                for n in range(150):
                    try:
                        results.append(client.send({"n": n}))
                    except logclient.QueueFull:
                        results.append(0)
                wait_until(lambda: client.stats().inflight)
                stats = client.stats()
                assert stats.dropped == {"overflow": 50} and adds_up(stats)
                assert stats.queued + stats.inflight == 100

    def test_events_that_are_too_old_fail(self) -> None:
        with connect(CLOSED, "127.0.0.1:11", max_age=0.05) as client:
            deliveries = [client.submit({"n": n}) for n in range(20)]
            outcomes = {delivery.result(PATIENCE) for delivery in deliveries}
            assert outcomes == {Outcome("failed", "max_age")}

    def test_a_child_of_a_fork_has_connections_of_its_own(self, tmp_path: Path) -> None:
        with running("", "", keep=True) as servers, connect(*servers, ledger=str(tmp_path)) as client:
            start_all(client, 2)
            child = os.fork()
            if child == 0:
                try:
                    for n in range(100, 200):
                        client.send({"n": n})
                    left = client.flush(PATIENCE)
                    os._exit(left or client.close(PATIENCE) or client.stats().acked - 100)
                finally:
                    os._exit(99)
            for n in range(100):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert os.waitpid(child, 0)[1] == 0
            assert numbers(*servers) == dict.fromkeys(range(-1, 200), 1)
            assert client.stats().acked == 101 and client.stats().disconnects == 0
        producers = {path.name.partition("-")[0] for path in tmp_path.glob("*.ledger")}
        assert len(producers) == 2
        assert sorted(sum(recount(tmp_path, one).count("acked").values()) for one in producers) == [100, 101]

    @pytest.mark.slow
    def test_fork_while_an_attempt_is_under_way(self) -> None:
        with Collector(keep=True) as server, connect(CLOSED, server) as client:
            for n in range(20):
                client.send({"n": n})
                child = os.fork()
                if child == 0:
                    try:
                        client.send({"n": 1000 + n})
                        os._exit(client.close(PATIENCE))
                    finally:
                        os._exit(99)
                assert os.waitpid(child, 0)[1] == 0
            assert client.flush(PATIENCE) == 0
            assert numbers(server) == dict.fromkeys([*range(20), *range(1000, 1020)], 1)

    def test_events_at_exit(self) -> None:
        """The process ends right after its last calls; later ones are delivered in their call."""
        code = """
import atexit, sys, logclient

client = None
atexit.register(lambda: [client.send({"n": n}) for n in range(500, 520)])
client = logclient.connect(sys.argv[1], balance=True, atexit_timeout=30)
for n in range(500):
    client.send({"n": n})
"""
        with running("", "", keep=True) as servers:
            ended = subprocess.run(
                [sys.executable, "-c", code, url_of(*servers)],
                env=clean_environment(),
                capture_output=True,
                timeout=4 * PATIENCE,
            )
            assert ended.returncode == 0 and not ended.stderr, ended.stderr
            assert numbers(*servers) == dict.fromkeys(range(520), 1)

    def test_an_unreferenced_client_delivers_and_ends(self) -> None:
        with running("", "", keep=True) as servers:
            client: logclient.Client | None = connect(*servers)
            assert client is not None
            engine = weakref.ref(client._sender)
            for n in range(300):
                client.send({"n": n})
            client = None
            wait_until(lambda: sum(server.counts.events for server in servers) == 300)
            wait_until(lambda: engine() is None, "the end of the engine")


class TestRefusals:
    @pytest.mark.parametrize(
        ("url", "rule"),
        [
            ("logux://127.0.0.1:1,127.0.0.1:2?balance=true", "balance: "),
            ("logjam://127.0.0.1:1,127.0.0.1:2/a-b?balance=true", "balance: "),
            ("plog://127.0.0.1:1,127.0.0.1:2?balance=true", "balance: "),
            ("lumberjack://127.0.0.1:1,127.0.0.1:1?balance=true", "balance: each server once"),
            ("lumberjack://" + ",".join(f"h{n}" for n in range(65)) + "?balance=true", "balance: for 64"),
            ("lumberjack://127.0.0.1:1?balance=perhaps", "balance: "),
        ],
    )
    def test_clear_errors(self, url: str, rule: str) -> None:
        with pytest.raises(ConfigError) as caught:
            logclient.connect(url)
        print(caught.value)
        assert str(caught.value).startswith(rule)

    def test_a_spool(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not with a spool"):
            connect(CLOSED, spool=str(tmp_path))
