"""Interoperation with @logux/server, @logux/client and @logux/core, as they are released.

The programs are in tests/interop/logux; npm installs them (`make deps`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import logclient
from tests.support.kill_scenes import wait_for
from tests.support.logux_server import JsClient, LoguxServer
from tests.support.patience import PATIENCE
from tests.support.tls import Authority

pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

from logclient.testing.logux import Collector

pytestmark = [pytest.mark.tree, pytest.mark.timeout(4 * PATIENCE)]


class RawClient:
    """A connection that sends what a test says, for messages that no good client sends."""

    def __init__(self, server: LoguxServer, node_id: str = "u:raw:tab", token: str = "secret") -> None:
        self._open = ExitStack()
        self.socket = self._open.enter_context(websocket(server.address, open_timeout=10))
        self.send("connect", 5, node_id, 0, {"token": token, "subprotocol": 1})
        self.first = self.receive()

    def send(self, *message: Any) -> None:
        self.socket.send(json.dumps(message))

    def receive(self) -> list[Any]:
        """Return the next message, or an empty one at the end of the connection."""
        try:
            return json.loads(self.socket.recv(10))  # type: ignore[no-any-return]
        except ConnectionClosed:
            return []

    def outcomes(self, n: int) -> list[tuple[str, Any]]:
        """Return the next `n` outcomes as (reason or type, id) in order of arrival; answer each."""
        found: list[tuple[str, Any]] = []
        while len(found) < n:
            message = self.receive()
            if message[0] == "sync":
                self.send("synced", message[1])
                found += [(a.get("reason", a["type"]), a["id"]) for a in message[2::2]]
        return found

    def synced(self) -> int:
        while (message := self.receive())[0] != "synced":
            pass
        return int(message[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def add(n: int, **data: Any) -> dict[str, Any]:
    return {"type": "log/add", "data": {"n": n, **data}, "id": f"{n:032x}"}


def sync(actions: list[dict[str, Any]], first: int = 1) -> list[Any]:
    """Make one message of all actions; ids count from `first`."""
    message: list[Any] = ["sync", first + len(actions) - 1]
    for number, action in enumerate(actions, first):
        message += [action, {"id": [0, number], "time": 0}]
    return message


Serve = Callable[..., LoguxServer]
Pace = Callable[[float, float], None]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[LoguxServer] = []

    def serve(**options: Any) -> LoguxServer:
        servers.append(LoguxServer(tmp_path, **options))
        servers[-1].start()
        return servers[-1]

    yield serve
    for server in servers:
        server.end()


def numbers(server: LoguxServer) -> list[int]:
    """Return the numbers of the processed actions in order."""
    return [json.loads(line["body"])["data"]["n"] for line in server.lines()]


class TestReleasedServer:
    """Behaviour of released servers that our client must cope with."""

    def test_duplicate_jams_a_server_that_keeps_its_log(self, serve: Serve) -> None:
        server = serve(keep="memory")
        with RawClient(server) as client:
            client.send(*sync([add(1)]))
            assert [how for how, _ in client.outcomes(1)] == ["logux/processed"]
            server.tell("again")
            client.send(*sync([add(2)], first=2))
            assert [client.synced(), client.synced()] == [1, 2]
        with RawClient(server, "u:raw:other") as client:
            client.send(*sync([add(3)], first=3))
            assert client.synced() == 3
        with RawClient(server, "u:new:tab") as client:
            client.send(*sync([add(4)], first=4))
            assert [how for how, _ in client.outcomes(1)] == ["logux/processed"]
        assert numbers(server) == [1, 4]
        assert server.tell("state")["waiting"] == 3

    def test_duplicate_is_processed_again_without_a_log(self, serve: Serve) -> None:
        server = serve()
        with RawClient(server) as client:
            for _ in range(2):
                client.send(*sync([add(1)]))
                assert [how for how, _ in client.outcomes(1)] == ["logux/processed"]
        assert numbers(server) == [1, 1]

    def test_kept_log_survives_a_kill(self, serve: Serve) -> None:
        server = serve(keep="file", die=2)
        with RawClient(server) as client:
            base = client.first[3][1]
            client.send(*sync([add(1), add(2), add(3)]))
            server.wait()
        server.start(die=0)
        assert numbers(server) == [1, 2]
        with RawClient(server) as client:
            shift = base - client.first[3][1]
            message = sync([add(3), add(1), add(4)])
            for number, place in ((3, 3), (1, 5), (4, 7)):
                message[place] = {"id": [shift, number], "time": 0}
            client.send(*message)
            assert [how for how, _ in client.outcomes(1)] == ["logux/processed"]
        assert numbers(server) == [1, 2, 3]

    def test_throwing_action_undoes_those_behind_it(self, serve: Serve) -> None:
        server = serve()
        with RawClient(server) as client:
            client.send(*sync([add(1), add(2, throw=True), add(3), add(4)]))
            outcomes = client.outcomes(4)
            assert sorted(how for how, _ in outcomes) == ["error"] * 3 + ["logux/processed"]
            client.send(*sync([add(5)], first=5))
            assert [how for how, _ in client.outcomes(1)] == ["logux/processed"]
        assert numbers(server) == [1, 5]

    @pytest.mark.parametrize(
        "action, reason", [(add(2, deny=True), "denied"), ({"type": "log/other"}, "unknownType")]
    )
    def test_refused_action_undoes_those_behind_it(
        self, serve: Serve, action: dict[str, Any], reason: str
    ) -> None:
        server = serve()
        with RawClient(server) as client:
            client.send(*sync([add(1), action, add(3)]))
            found = sorted(how for how, _ in client.outcomes(3))
            assert found == sorted(["logux/processed", reason, "error"])
        assert numbers(server) == [1]

    def test_numeric_length_ends_the_connection(self, serve: Serve) -> None:
        with RawClient(serve()) as client:
            client.send(*sync([{**add(1), "length": 5}]))
            assert client.receive()[:2] == ["error", "wrong-format"]
            assert client.receive() == []


def connected(server: LoguxServer, **options: Any) -> Any:
    """Connect our client with short waits between attempts."""
    ours = {"token": "secret", "user": "u", "overflow": "block", "backoff_max": 0.05}
    return logclient.connect(server.url, **{**ours, **options})


def clients_of(server: LoguxServer) -> list[str]:
    """Return the client ids of the processed actions, ordered by their first action."""
    return list(
        dict.fromkeys(":".join(line["metaId"].split(" ")[1].split(":")[:2]) for line in server.lines())
    )


@pytest.mark.usefixtures("websocket_pump")
class TestOurClientWithTheirServer:
    def test_every_action_is_processed_unchanged_and_once(self, serve: Serve) -> None:
        server = serve()
        began = time.time() * 1000
        with connected(server) as client:
            for n in range(3000):
                client.send(
                    {"n": n, "message": f"größte Zeile {n} \u2028 \U0001f680", "none": None, "length": 5}
                )
            assert client.flush(PATIENCE) == 0
            node_id = client.node_id
            assert client.state == "synchronized"
            ids = [client.event_id(n + 1) for n in range(3000)]
        ended = time.time() * 1000
        stats = client.stats()
        assert (stats.acked, stats.resent, stats.connects, stats.last_error) == (3000, 0, 1, "")
        lines = list(server.lines())
        for n, line in enumerate(lines):
            data = {"n": n, "message": f"größte Zeile {n} \u2028 \U0001f680", "none": None, "length": 5}
            assert json.loads(line["body"]) == {"type": "log/add", "data": data, "id": ids[n]}
            assert line["metaId"].split(" ")[1] == node_id
            assert began - 5000 < line["time"] < ended + 5000
            assert line["subprotocol"] == 1
        assert len({line["metaId"] for line in lines}) == 3000
        assert server.complaints() == ""

    @pytest.mark.slow
    def test_actions_of_900_kb_are_processed(self, serve: Serve) -> None:
        server = serve()
        with connected(server) as client:
            for n in range(20):
                client.send({"n": n, "message": "x" * (900_000 if n % 10 == 5 else 60_000)})
            assert client.close(PATIENCE) == 0
        assert numbers(server) == list(range(20))

    @pytest.mark.slow
    def test_actions_are_processed_over_tls(self, serve: Serve, tmp_path: Path, websocket_pump: str) -> None:
        authority = Authority(tmp_path / "ours")
        server = serve(cert=authority.issue("server"))
        with connected(server, ca=authority.ca) as client:
            for n in range(1000):
                client.send({"n": n})
            assert client.close(PATIENCE) == 0
            assert client.stats().tls.startswith("TLSv1.3 ")
            assert client.stats().pump == websocket_pump
        assert numbers(server) == list(range(1000))

    @pytest.mark.slow
    def test_wrong_token_is_retried_without_showing_it(
        self, serve: Serve, slow_pace: Pace, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing is sent meanwhile. The server then accepts the token, and the next slow attempt
        delivers."""
        slow_pace(0.3, 0.3)
        server = serve(token="other")
        client = connected(server, token="planted-secret")
        client.send({"n": 0})
        wait_for(lambda: client.state == "denied", PATIENCE, "a refusal")
        wait_for(lambda: "wrong-credentials" in client.stats().last_error, PATIENCE, "its reason")
        server.tell("set", token="planted-secret")
        assert client.close(PATIENCE) == 0
        assert numbers(server) == [0]
        assert "planted-secret" not in client.stats().last_error + capfd.readouterr().err + repr(client)

    @pytest.mark.slow
    def test_a_rotated_token_needs_no_restart(
        self, serve: Serve, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The server never sees the old one again: one wrong token would be reported."""
        file = tmp_path / "token"
        file.touch(0o600)
        file.write_text("first")
        server = serve(token="first")
        with connected(server, token=f"file:{file}") as client:
            client.send({"n": 0})
            assert client.flush(PATIENCE) == 0
            file.write_text("second")
            server.kill()
            server.start(token="second")
            client.send({"n": 1})
            assert client.flush(PATIENCE) == 0
        assert numbers(server) == [0, 1]
        assert "credentials" not in capfd.readouterr().err

    @pytest.mark.slow
    def test_locked_out_client_delivers_later(self, serve: Serve, slow_pace: Pace) -> None:
        """After wrong tokens from one address the server refuses the right one for a while."""
        server = serve()
        for _ in range(3):
            with RawClient(server, token="guess") as guess:
                assert guess.first[1] == "wrong-credentials"
        slow_pace(1.5, 1.5)
        client = connected(server)
        client.send({"n": 0})
        wait_for(lambda: client.state == "denied", PATIENCE, "a refusal")
        assert client.close(PATIENCE) == 0
        assert numbers(server) == [0]

    def test_refused_subprotocol_stops_the_client(self, serve: Serve) -> None:
        server = serve(subprotocol=3, minSubprotocol=3)
        client = connected(server, subprotocol=2)
        client.send({"n": 0})
        wait_for(lambda: client.stats().failed, PATIENCE, "a refusal")
        assert client.state == "stopped"
        assert "subprotocol" in client.stats().last_error
        client.close(1)
        with connected(server, subprotocol=4) as client:  # there is no upper bound
            client.send({"n": 1})
            assert client.close(PATIENCE) == 0
        assert [(line["subprotocol"], json.loads(line["body"])["data"]["n"]) for line in server.lines()] == [
            (4, 1)
        ]

    @pytest.mark.slow
    def test_refused_action_fails_alone(self, serve: Serve) -> None:
        """Actions undone with it are processed, once each."""
        server = serve()
        with connected(server) as client:
            bad = []
            for n in range(1000):
                if n % 250 == 100:
                    bad.append(client.submit({"n": n, "deny": True}))
                elif n % 250 == 200:
                    bad.append(client.add({"type": "log/other", "data": {"n": n}}))
                else:
                    client.send({"n": n})
            assert client.close(PATIENCE) == 0
        assert [delivery.result(1) for delivery in bad] == [
            ("failed", "denied"),
            ("failed", "unknown_type"),
        ] * 4
        assert client.stats().acked == 992
        assert Counter(numbers(server)) == Counter(n for n in range(1000) if n % 250 not in (100, 200))

    @pytest.mark.parametrize("env", ["production", "development"])
    def test_throwing_action_fails_alone(self, serve: Serve, env: str) -> None:
        """An action undone while alone is the cause. The others are processed, once each."""
        server = serve(env=env)
        with connected(server) as client:
            for n in range(600):
                client.send({"n": n, "throw": n in (50, 300), "throwOnce": n == 450})
            assert client.close(PATIENCE) == 0
        stats = client.stats()
        assert (stats.acked, stats.failed) == (598, {"error": 2})
        assert Counter(numbers(server)) == Counter(n for n in range(600) if n not in (50, 300))

    def test_development_server_is_understood(self, serve: Serve) -> None:
        """It sends headers before `connected`, and messages about errors."""
        server = serve(env="development")
        with connected(server) as client:
            client.send({"n": 0})
            client.send({"n": 1, "deny": True})
            assert client.flush(PATIENCE) == 0
            assert client.server_headers == {"env": "development"}
        assert (client.stats().acked, client.stats().failed) == (1, {"denied": 1})

    def test_ack_synced_does_not_wait_for_processing(self, serve: Serve) -> None:
        server = serve()
        with connected(server, ack="synced") as client:
            server.tell("hold")
            for n in range(300):
                client.send({"n": n})
            assert client.flush(PATIENCE) == 0
            assert numbers(server) == []
            server.tell("release")
            wait_for(lambda: server.tell("state")["written"] == 300, PATIENCE, "actions")
        assert client.stats().acked == 300

    def test_headers_go_first_on_each_connection(self, serve: Serve) -> None:
        """They replace the former headers as a whole."""
        server = serve()

        def current_headers() -> Any:
            return [one["headers"] for one in server.tell("state")["clients"]]

        with connected(server) as client:
            client.headers = {"locale": "fr", "build": 7}
            client.send({"n": 0})
            assert client.flush(PATIENCE) == 0
            assert current_headers() == [{"locale": "fr", "build": 7}]
            client.headers = {"locale": "de"}
            wait_for(lambda: current_headers() == [{"locale": "de"}], PATIENCE, "headers")
            for n in (1, 2):
                server.tell("cut")
                client.send({"n": n})
                assert client.flush(PATIENCE) == 0
                assert current_headers() == [{"locale": "de"}]
            server.tell("headers", data={"shard": 3})
            wait_for(lambda: client.server_headers == {"shard": 3}, PATIENCE, "headers")

    def test_each_action_is_processed_with_its_headers(self, serve: Serve) -> None:
        """1,000 changes, each followed by an action, without waiting for answers."""
        server = serve()
        with connected(server) as client:
            for n in range(1000):
                client.headers = {"n": n}
                client.add({"type": "headers/see", "n": n})
            assert client.close(PATIENCE) == 0
            stats = client.stats()
        assert (stats.acked, stats.resent, stats.connects) == (1000, 0, 1)
        seen = [(json.loads(line["body"])["n"], line["headers"]) for line in server.lines()]
        assert seen == [(n, {"n": n}) for n in range(1000)]

    def test_headers_change_on_an_idle_connection(self, serve: Serve) -> None:
        """The action follows at once."""
        server = serve()
        with connected(server) as client:
            for n in range(50):
                client.headers = {"n": n}
                outcome = client.add({"type": "headers/see", "n": n}).result(PATIENCE)
                assert outcome == ("acked", "")
        assert [line["headers"] for line in server.lines()] == [{"n": n} for n in range(50)]

    @pytest.mark.slow
    def test_resent_action_keeps_its_headers(self, serve: Serve) -> None:
        server = serve(slow=1)
        with connected(server) as client:
            for n in range(200):
                client.headers = {"n": n}
                client.add({"type": "headers/see", "n": n})
                client.add({"type": "headers/see", "n": n})
                if n % 50 == 25:
                    server.tell("cut")
            assert client.close(PATIENCE) == 0
        seen = [(json.loads(line["body"])["n"], line["headers"]["n"]) for line in server.lines()]
        assert all(n == header for n, header in seen)
        assert Counter(n for n, _ in seen).keys() == set(range(200))
        assert client.stats().connects > 1

    def test_client_with_state_file_resumes(self, serve: Serve, tmp_path: Path) -> None:
        """To the server it is the same client. It receives what it missed, and nothing twice."""
        server = serve(keep="memory")
        received: list[int] = []
        ids = []
        for life in range(3):
            with connected(server, state=tmp_path / "state") as client:
                client.on("news/kept", lambda action, meta: received.append(action["n"]))
                client.send({"n": life})
                assert client.flush(PATIENCE) == 0
                ids.append(":".join(client.node_id.split(":")[:2]))
                to = {"clients": ids[:1]}
                server.tell("send", action={"type": "news/kept", "n": 2 * life}, meta=to)
                wait_for(lambda n=2 * life: received[-1:] == [n], PATIENCE, "news")  # type: ignore[misc]
            server.tell("send", action={"type": "news/kept", "n": 2 * life + 1}, meta=to)
        assert ids == ids[:1] * 3
        assert received == [0, 1, 2, 3, 4]

    def test_client_and_server_answer_pings(self, serve: Serve) -> None:
        """The server closes connections that do not answer."""
        server = serve(ping=50, timeout=250)
        with RawClient(server) as silent, connected(server, ping=0.1, silence=0.5) as client:
            client.send({"n": 0})
            assert client.flush(PATIENCE) == 0
            while silent.receive():
                pass  # it does not answer
            moment = time.monotonic() + 0.8
            wait_for(lambda: time.monotonic() > moment, PATIENCE, "the moment")
            assert 0 < client.ping(5).seconds < 5
            client.send({"n": 1})
            assert client.flush(PATIENCE) == 0
        assert (client.stats().connects, client.stats().resent) == (1, 0)

    def test_client_receives_actions_and_channels(self, serve: Serve) -> None:
        server = serve()
        received: list[tuple[Any, Any]] = []

        def news() -> list[Any]:
            return [action for action, _ in received]

        with connected(server) as client, connected(server, user="other") as other:
            client.on(None, lambda action, meta: received.append((action, meta)))
            assert client.add({"type": "echo/ask", "data": [1, None]}).result(PATIENCE) == ("acked", "")
            wait_for(lambda: news() == [{"type": "echo/answer", "data": [1, None]}], PATIENCE, "an answer")
            subscribed = client.add({"type": "logux/subscribe", "channel": "news/a"})
            assert subscribed.result(PATIENCE) == ("acked", "")
            wait_for(lambda: news()[1:] == [{"type": "news/last", "topic": "a"}], PATIENCE, "what was there")
            for topic in ("a", "b", "a"):
                assert other.add({"type": "news/add", "topic": topic}).result(PATIENCE) == ("acked", "")
            wait_for(lambda: len(received) == 4, PATIENCE, "news")
            assert [(a["type"], a["topic"]) for a in news()[2:]] == [("news/add", "a")] * 2
            assert {meta["id"].split(" ")[1] for _, meta in received[2:]} == {other.node_id}
            sent = server.tell("send", action={"type": "server/says", "n": 1})
            wait_for(lambda: len(received) == 5, PATIENCE, "what the server says")
            action, meta = received[4]
            assert (action, meta["id"]) == ({"type": "server/says", "n": 1}, sent["id"])
            assert abs(meta["time"] - time.time() * 1000) < 5000
            for channel, reason in (("news/secret", "denied"), ("nowhere", "rejected")):
                refused = client.add({"type": "logux/subscribe", "channel": channel}).result(PATIENCE)
                assert refused == ("failed", reason)

    def test_channels_are_subscribed_again_after_a_break(self, serve: Serve) -> None:
        """The server forgets subscriptions with the connection."""
        server = serve()
        with connected(server) as client, connected(server, user="other") as other:
            received: list[str] = []
            client.on(None, lambda action, meta: received.append(action["type"]))
            assert client.subscribe("news/a").result(PATIENCE) == ("acked", "")
            assert client.subscribe("news/b").result(PATIENCE) == ("acked", "")
            assert client.subscribe("news/secret").result(PATIENCE) == ("failed", "denied")
            assert client.unsubscribe("news/b").result(PATIENCE) == ("acked", "")
            wait_for(lambda: received == ["news/last"] * 2, PATIENCE, "what was there")
            for n in (3, 4):
                server.tell("cut")
                wait_for(lambda n=n: received == ["news/last"] * n, PATIENCE, "what was there, again")  # type: ignore[misc]
            for topic in ("b", "a"):
                assert other.add({"type": "news/add", "topic": topic}).result(PATIENCE) == ("acked", "")
            wait_for(lambda: received[4:] == ["news/add"], PATIENCE, "news")

    @pytest.mark.slow
    def test_async_client_sends_and_receives(self, serve: Serve) -> None:
        server = serve()

        async def main() -> None:
            options = {"token": "secret", "user": "u"}
            async with logclient.AsyncClient(server.url, **options) as client:
                answers = client.actions("echo/answer")
                outcomes = await asyncio.gather(*(client.submit({"n": n}) for n in range(500)))
                assert set(outcomes) == {("acked", "")}
                for n in range(20):
                    assert await client.add({"type": "echo/ask", "data": n}) == ("acked", "")
                    action, _ = await anext(answers)
                    assert action["data"] == n
                assert await client.subscribe("news/secret") == ("failed", "denied")

        asyncio.run(main())
        assert len(list(server.lines())) == 520

    def test_own_meta_and_id_are_kept(self, serve: Serve) -> None:
        server = serve()
        with connected(server, identity="own") as client:
            made = time.time() * 1000 - 86_400_000
            action = {"type": "log/add", "id": "mine", "data": {"n": 0}}
            client.add(action, {"time": made, "subprotocol": 2}).result(PATIENCE)
        (line,) = server.lines()
        assert json.loads(line["body"]) == action
        assert line["subprotocol"] == 2
        assert abs(line["time"] - made) <= 1000


@pytest.mark.usefixtures("websocket_pump")
class TestInDoubt:
    """Actions that the server processed before it died without saying so."""

    @pytest.fixture(params=[None, "file"], ids=["log not kept", "log kept"])
    def keep(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def send_through_a_death(self, server: LoguxServer, **options: Any) -> Any:
        """Send 250 actions, of which the server's first life processes 120 and answers some."""
        with connected(server, **options) as client:
            for n in range(250):
                client.send({"n": n})
            server.wait()
            server.start(die=0)
            assert client.close(PATIENCE) == 0
        return client.stats()

    def test_new_client_id_after_doubt_avoids_a_jam(self, serve: Serve, keep: Any) -> None:
        """No id is sent twice, so that a server with a log is not jammed."""
        server = serve(keep=keep, die=120)
        stats = self.send_through_a_death(server, processing_timeout=3600.0)
        assert (stats.acked, len(clients_of(server))) == (250, 2)
        found = Counter(numbers(server))
        assert set(found) == set(range(250))
        assert 0 < found.total() - 250 <= stats.resent

    def test_same_client_id_leaves_a_jam_for_a_new_one(self, serve: Serve, keep: Any) -> None:
        """Without a log the client id stays; with a log the server jams, and the client takes a new id."""
        server = serve(keep=keep, die=120)
        stats = self.send_through_a_death(server, on_doubt="same", processing_timeout=0.3)
        assert (stats.acked, len(clients_of(server))) == (250, 2 if keep else 1)
        found = Counter(numbers(server))
        assert set(found) == set(range(250))
        assert 0 < found.total() - 250 <= stats.resent

    @pytest.mark.slow
    def test_dropped_doubt_processes_nothing_twice(self, serve: Serve, keep: Any) -> None:
        server = serve(keep=keep, die=120)
        stats = self.send_through_a_death(server, on_doubt="drop", processing_timeout=3600.0)
        assert stats.acked + stats.failed["doubt"] == 250
        found = Counter(numbers(server))
        assert found.total() == len(found) >= stats.acked  # nothing twice


@pytest.mark.usefixtures("websocket_pump")
class TestJam:
    @pytest.mark.slow
    def test_jam_is_noticed_and_left_by_a_new_client_id(self, serve: Serve) -> None:
        """The server jams in the middle of a connection, without a break."""
        server = serve(keep="memory")
        with connected(server, processing_timeout=0.3) as client:
            client.send({"n": 0})
            assert client.flush(PATIENCE) == 0
            before = client.node_id
            assert server.tell("again") == {"again": 1}
            for n in range(1, 500):
                client.send({"n": n})
            assert client.close(PATIENCE) == 0
            assert client.node_id.split(":")[1] != before.split(":")[1]
        assert client.stats().acked == 500
        assert numbers(server) == list(range(500))


KINDS = pytest.mark.parametrize("kind", ["client", "node"], ids=["@logux/client", "ClientNode"])
"""The client of applications, and the node below it."""


def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
    """Deny every tenth action."""
    return "denied" if action["data"]["n"] % 10 == 3 else ""


class TestTheirClientWithOurServer:
    """@logux/client, and ClientNode of @logux/core, with our collector."""

    @pytest.fixture
    def js(self, tmp_path: Path) -> Iterator[Callable[..., JsClient]]:
        clients: list[JsClient] = []

        def js(collector: Collector, **options: Any) -> JsClient:
            address = f"ws://127.0.0.1:{collector.port}/any/path"
            clients.append(JsClient(address, tmp_path / "js.log", **options))
            return clients[-1]

        yield js
        for client in clients:
            client.end(signal.SIGKILL)
        assert (tmp_path / "js.log").read_text() == ""

    @KINDS
    def test_their_client_is_served_completely(self, js: Callable[..., JsClient], kind: str) -> None:
        """Half of the actions come in one message, made before it was connected."""
        with Collector(keep=True, token="secret", headers={"shard": 3}) as collector:
            client = js(collector, kind=kind, n=2000, offline=1000, headers={"locale": "fr"})
            assert client.until("ready") == 2000
            (headers,) = collector.clients.values()
            assert headers == {"locale": "fr"}
            found = collector.events(2000)
            done = client.until("done")
            counts = collector.counts
        assert done["processed"] == 2000
        assert (done["undone"], done["errors"], done["headers"]) == ({}, [], {"shard": 3})
        assert sorted(action["data"]["n"] for action in found) == list(range(2000))
        assert found[0] == {"type": "log/add", "data": {"n": 0}}
        assert (counts.captured_events, counts.outcomes, counts.undone) == (2000, 2000, 0)
        assert (counts.connections, counts.protocol_errors, counts.timeouts) == (1, 0, 0)

    @pytest.mark.slow
    @KINDS
    def test_their_client_resends_what_was_cut(self, js: Callable[..., JsClient], kind: str) -> None:
        """It sends again, under the same ids, actions without `synced`."""
        with Collector(keep=True, faults="cut-before-ack=every:15") as collector:
            done = js(collector, kind=kind, n=100, pace=5).until("done")
            counts = collector.counts
            found = collector.events(counts.captured_events)
        assert done["processed"] == 100
        assert counts.connections - 1 == counts.cuts > 2
        assert len(found) > 100
        assert {action["data"]["n"] for action in found} == set(range(100))

    @pytest.mark.slow
    @KINDS
    def test_their_client_learns_of_undone_actions(self, js: Callable[..., JsClient], kind: str) -> None:
        with Collector(judge=judge, types=["log/add"]) as collector:
            done = js(collector, kind=kind, n=100, offline=50).until("done")
            other = js(collector, kind=kind, n=1, type="log/other").until("done")
        # As with the real server, actions behind a denied one are undone with it.
        assert done["undone"].pop("denied") >= 1
        assert done["processed"] + 1 <= 100
        assert set(done["undone"]) <= {"error"}
        assert other["undone"] == {"unknownType": 1}

    @KINDS
    def test_their_client_stops_when_refused(self, js: Callable[..., JsClient], kind: str) -> None:
        """Neither kind tries again."""
        with Collector(token="other", minimum=2) as collector:
            for subprotocol, why in ((1, "wrong-subprotocol: "), (2, "wrong-credentials: ")):
                client = js(collector, kind=kind, stay=True, subprotocol=subprotocol)
                while client.until("state") != "disconnected":
                    pass
                client.leave()
                (error,) = client.until("done")["errors"]
                assert error.startswith(why)
            counts = collector.counts
        assert (counts.connections, counts.refused_logins, counts.logins) == (2, 2, 0)

    @pytest.mark.slow
    @KINDS
    def test_their_client_and_our_server_answer_pings(self, js: Callable[..., JsClient], kind: str) -> None:
        for ours, theirs in ((0.05, 10_000), (20.0, 50)):
            with Collector(ping=ours, timeout=2.0) as collector:
                client = js(collector, kind=kind, n=1, ping=theirs, timeout=2000, stay=True)
                client.until("ready")
                moment = time.monotonic() + 0.4
                wait_for(lambda moment=moment: time.monotonic() > moment, PATIENCE, "the moment")
                counts = collector.counts
                client.leave()
                assert client.until("done")["errors"] == []
            assert (counts.open, counts.timeouts) == (1, 0)
            assert (counts.pings > 3) == (theirs == 50)

    @KINDS
    def test_their_client_receives_our_actions(self, js: Callable[..., JsClient], kind: str) -> None:
        with Collector() as collector:
            client = js(collector, kind=kind, n=1, stay=True)
            client.until("ready")
            action = {"type": "server/says", "n": [1, None]}
            collector.push(action)
            while "received" not in (line := client.said()):
                pass
            assert line["received"] == action
            assert line["meta"]["id"].split(" ")[1] == "server:logclient"
            assert abs(line["meta"]["time"] - time.time() * 1000) < 5000
