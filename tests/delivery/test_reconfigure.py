"""A running client gets another server, other fields or another level, and loses nothing."""

from __future__ import annotations

import logging
import threading
from collections import Counter, UserDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import ConfigError
from logclient.testing.logjam import Collector as LogjamServer
from logclient.testing.logux import Collector as LoguxServer
from logclient.testing.lumberjack import Collector
from tests.support.documents import dotted
from tests.support.forks import run_in_child
from tests.support.patience import PATIENCE, wait_until

QUICK: dict[str, Any] = {"backoff_max": 0.01}
SERVERS = {"lumberjack": Collector, "logux": LoguxServer, "logjam": LogjamServer}
NOBODY = "lumberjack://127.0.0.1:9"


def _ids(*servers: Collector) -> Counter[int]:
    found: Counter[int] = Counter()
    for server in servers:
        found.update(event["n"] for event in server.events(server.counts.events, PATIENCE))
    return found


class TestServers:
    def test_queued_events_go_to_the_new_server(self) -> None:
        with Collector(keep=True) as server, logclient.connect(NOBODY, **QUICK) as client:
            for n in range(100):
                client.send({"n": n})
            wait_until(lambda: client.stats().last_error)
            client.reconfigure(server.url)
            assert client.flush(PATIENCE) == 0
            assert _ids(server) == dict.fromkeys(range(100), 1)
            stats = client.stats()
            assert stats.url == client.config.redacted == server.url.partition("?")[0]

    def test_an_idle_connection_is_left(self) -> None:
        with (
            Collector(keep=True) as one,
            Collector(keep=True) as two,
            logclient.connect(one.url, **QUICK) as client,
        ):
            client.send({"n": 0})
            assert client.flush(PATIENCE) == 0
            client.reconfigure(two.url)
            wait_until(lambda: client.stats().disconnects == 1)
            client.send({"n": 1})
            assert client.flush(PATIENCE) == 0
            assert (_ids(one), _ids(two)) == ({0: 1}, {1: 1})

    @pytest.mark.parametrize("protocol", SERVERS)
    def test_nothing_is_lost_under_load(self, protocol: str, tmp_path: Path) -> None:
        _move_often(protocol, 30, tmp_path)

    @pytest.mark.long
    def test_nothing_is_lost_in_a_thousand_moves(self, tmp_path: Path) -> None:
        _move_often("lumberjack", 1000, tmp_path)

    def test_events_that_get_no_answer_are_sent_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from logclient.delivery import lanes

        monkeypatch.setattr(lanes, "MOVE_WAIT", 0.05)
        with (
            Collector(faults="stall=every:1") as silent,
            Collector(keep=True) as server,
            logclient.connect(silent.url, **QUICK) as client,
        ):
            for n in range(50):
                client.send({"n": n})
            wait_until(lambda: client.stats().inflight == 50)
            client.reconfigure(server.url)
            assert client.flush(PATIENCE) == 0
            stats = client.stats()
        assert stats.acked == stats.resent == 50

    def test_what_dead_owners_left_moves_too(self, tmp_path: Path) -> None:
        spool: Any = {"spool": str(tmp_path), "spool_mode": "always", **QUICK}
        with logclient.connect(NOBODY, timeout=0, **spool) as client:
            for n in range(20):
                client.send({"n": n})
        with Collector(keep=True) as server, logclient.connect(NOBODY, **spool) as client:
            wait_until(lambda: (replayer := client._engine.spool._replayer) and not replayer.ended)
            client.reconfigure(server.url)
            wait_until(lambda: server.counts.events == 20)
            assert _ids(server) == dict.fromkeys(range(20), 1)


def _move_often(protocol: str, moves: int, tmp_path: Path) -> None:
    """Move between three servers while four threads send; the verifier counts."""
    inprocess = pytest.importorskip("tests.support.verify_inprocess")
    ledger, capture = tmp_path / "ledger", tmp_path / "capture"
    stop = threading.Event()
    with ExitStack() as stack:
        servers = [stack.enter_context(SERVERS[protocol](capture=str(capture))) for _ in range(3)]
        urls = [server.url + ("/shop-test" if protocol == "logjam" else "") for server in servers]
        client = stack.enter_context(logclient.connect(urls[0], ledger=ledger, **QUICK))

        def send(thread: int) -> None:
            n = 0
            while not stop.is_set():
                client.send({"thread": thread, "n": n})
                n += 1
                if client.stats().queued > 20_000:
                    client.flush(PATIENCE)

        threads = [threading.Thread(target=send, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for n in range(1, moves + 1):
            before = client.stats()
            client.reconfigure(urls[n % 3])
            wait_until(lambda before=before: client.stats().connects > before.connects)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert client.flush(2 * PATIENCE) == 0
        stats = client.stats()
    assert stats.failed == stats.dropped == {} and stats.acked == stats.sent
    counts = inprocess.run(ledger, capture).counts
    assert counts.ok == stats.sent
    assert (counts.lost, counts.unknown, counts.unexpected, counts.corrupted) == (0, 0, 0, 0)


class TestFieldsAndLevels:
    def test_the_next_event_has_the_new_fields(self) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url, fields={"a": 1, "b": 1}, service="shop") as client:
                with logclient.bind(c=1):
                    client.send("one")
                    client.reconfigure(fields={"b": 2})
                    client.send("two")
                    client.reconfigure(fields=None, service="cart", tags=["x"])
                    client.send("three")
                assert client.flush(PATIENCE) == 0
            names = ("a", "b", "c", "service.name", "tags")
            events = [dotted(event) for event in server.events(3, PATIENCE)]
            found = [{name: event.get(name) for name in names} for event in events]
        assert [list(fields.values()) for fields in found] == [
            [1, 1, 1, "shop", None],
            [None, 2, 1, "shop", None],
            [None, None, 1, "cart", ["x"]],
        ]

    def test_a_fork_meanwhile_leaves_the_child_no_held_lock(self) -> None:
        with logclient.connect(NOBODY) as client:

            class Forking(UserDict[str, Any]):
                forked = False

                def __iter__(self) -> Any:
                    if not self.forked:
                        self.forked = True
                        run_in_child(lambda: client.reconfigure(fields={"a": 1}))
                    return super().__iter__()

            fields = Forking(a=2)
            client.reconfigure(fields=fields)
            assert fields.forked

    def test_documents_for_before_send_have_them_too(self) -> None:
        with Collector(keep=True) as server:
            with logclient.connect(server.url, fields={"a": 1}, before_send=dict) as client:
                client.reconfigure(fields={"a": 2})
                client.send("one")
                assert client.flush(PATIENCE) == 0
            assert server.events(1, PATIENCE)[0]["a"] == 2

    def test_the_level_is_that_of_all_handlers(self) -> None:
        with logclient.connect(NOBODY, timeout=0) as client:
            handlers = [logclient.Handler(client=client) for _ in range(2)]
            client.reconfigure(level="error")
            assert [handler.level for handler in handlers] == [logging.ERROR] * 2
            client.reconfigure(level=15)
            assert [handler.level for handler in handlers] == [15] * 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "rule"),
        [
            ({"url": "logux://127.0.0.1:1"}, "url: must keep the scheme"),
            ({"url": "lumberjack://127.0.0.1:1?max_events=5"}, "max_events: cannot change"),
            ({"window": 5}, "window: cannot change"),
            ({"nonsense": 5}, "nonsense: cannot change"),
            ({"level": "LOUD"}, "level: must be"),
            ({"url": "lumberjack://"}, "host: must not be empty"),
            ({"fields": 5}, "fields: must be a mapping"),
            ({"ca": "x"}, "ca: only for a scheme with TLS"),
        ],
    )
    def test_wrong_changes_change_nothing(self, change: dict[str, Any], rule: str) -> None:
        with logclient.connect(NOBODY, timeout=0, fields={"a": 1}) as client:
            before = client.config
            with pytest.raises(ConfigError, match=f"^{rule}"):
                client.reconfigure(**{"fields": {"a": 2}, **change} if "fields" not in change else change)
            assert client.config == before
            assert b'"a":1' in client.encoder.encode({})[0]

    def test_a_path_with_special_characters_stays(self) -> None:
        with logclient.connect("logux://127.0.0.1:9/a%25b%3F%40%23", timeout=0) as client:
            client.reconfigure(connect_timeout=4)
            assert (client.config.path, client.config.connect_timeout) == ("/a%b?@#", 4.0)

    def test_options_that_the_new_url_leaves_out_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the environment says later changes nothing."""
        url = "lumberjack://127.0.0.1:9?window=77&connect_timeout=3"
        with logclient.connect(url, timeout=0, fields={"a": 1}) as client:
            monkeypatch.setenv("LOGCLIENT_SERVICE", "other")
            client.reconfigure("lumberjack://127.0.0.1:10")
            config = client.config
        assert (config.endpoints, config.options["window"]) == ((("127.0.0.1", 10),), 77)
        assert (config.connect_timeout, config.options["fields"]) == (3.0, {"a": 1})
        assert config.options["service"] is None


@pytest.mark.parametrize(
    ("url", "change"),
    [("logjam://127.0.0.1:9/shop-test", {"fields": {"a": 1}}), ("plog://127.0.0.1:9", {"tags": "a"})],
)
def test_documents_that_are_not_ecs_keep_their_fields(url: str, change: Any) -> None:
    with logclient.connect(url) as client, pytest.raises(ConfigError, match="cannot change while the client"):
        client.reconfigure(**change)


def test_a_wrong_level_is_shown() -> None:
    client = logclient.connect("lumberjack://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^level: .* got 'LOUD'$"):
        client.reconfigure(level="LOUD")
    client.close()
