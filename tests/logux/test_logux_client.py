"""The Logux client over real sockets: actions both ways, headers, state, and servers that refuse."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.delivery.lanes import Lanes
from logclient.delivery.outcomes import Outcome
from logclient.errors import ConnectFailed, EncodeError, EncodeTypeError
from logclient.logux import Client
from tests.logux.peer import LoguxPeer, processed, undo, until
from tests.support import ROOT, clean_environment
from tests.support.forks import needs_fork, run_in_child
from tests.support.patience import PATIENCE

OK = Outcome("acked")
pytestmark = pytest.mark.usefixtures("websocket_pump")


@pytest.fixture
def peer() -> Iterator[LoguxPeer]:
    with LoguxPeer() as peer:
        yield peer


def connect(peer: LoguxPeer, **options: Any) -> Client:
    client = logclient.connect(peer.url, **options)
    assert isinstance(client, Client)
    return client


def sent(peer: LoguxPeer) -> list[dict[str, Any]]:
    return [action for action, _ in peer.actions]


class TestSending:
    def test_event_is_the_data_of_an_action(self, peer: LoguxPeer) -> None:
        with connect(peer, user="10") as client:
            first = client.send({"a": 1, "length": 5, "type": "mine", "id": 7})
            client.send("text")
            client.send(b'{"raw": [1, 2]}')
            assert client.submit({"b": "\u00fc"}).result(PATIENCE) == OK
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == 4
            ids = [client.event_id(first + n) for n in range(4)]
        assert sent(peer) == [
            {"type": "log/add", "data": {"a": 1, "length": 5, "type": "mine", "id": 7}, "id": ids[0]},
            {"type": "log/add", "data": {"message": "text"}, "id": ids[1]},
            {"type": "log/add", "data": {"raw": [1, 2]}, "id": ids[2]},
            {"type": "log/add", "data": {"b": "\u00fc"}, "id": ids[3]},
        ]
        metas = [meta for _, meta in peer.actions]
        assert len({meta["id"] for meta in metas}) == 4
        assert all(set(meta) == {"id", "time"} for meta in metas)
        assert all(abs(meta["time"] / 1000 - time.time()) < 60 for meta in metas)
        connect_message = peer.lines[0].connect
        assert connect_message[1] == 5 and connect_message[4]["subprotocol"] == 1
        user, client_id, tab = connect_message[2].split(":")
        assert user == "10" and client_id and tab

    @pytest.mark.parametrize("check", [True, False])
    @pytest.mark.parametrize("identity", ["id", "own"])
    def test_whole_action_is_sent_with_meta_and_id(self, peer: LoguxPeer, check: bool, identity: str) -> None:
        with connect(peer, check=check, identity=identity) as client:
            chat = client.add({"type": "chat/add", "text": "hi"})
            own = client.add({"type": "chat/add", "id": "my own"})
            meta = client.add({"type": "chat/add"}, {"time": 1_600_000_000_123, "subprotocol": 3})
            plain = client.add({"type": ""}, {})
            assert [d.result(PATIENCE) for d in (chat, own, meta, plain)] == [OK] * 4
            ids = [client.event_id(d.seq) for d in (chat, own, meta, plain)]
        assert sent(peer) == [
            {"type": "chat/add", "text": "hi", "id": ids[0]},
            {"type": "chat/add", "id": "my own"}
            if identity == "own"
            else {"type": "chat/add", "labels.id": "my own", "id": ids[1]},
            {"type": "chat/add", "id": ids[2]},
            {"type": "", "id": ids[3]},
        ]
        found = peer.actions[2][1]
        # A client knows the server's clock to half a round trip.
        assert abs(found["time"] - 1_600_000_000_123) < 1000
        assert found["subprotocol"] == 3
        assert "subprotocol" not in peer.actions[0][1]

    @pytest.mark.parametrize(
        ("action", "meta", "error", "message"),
        [
            ([], None, EncodeTypeError, "action: must be a mapping, got list"),
            ("text", None, EncodeTypeError, "action: must be a mapping, got str"),
            ({}, None, EncodeTypeError, "type: an action's must be a string, got NoneType"),
            ({"type": None}, None, EncodeTypeError, "type: an action's must be a string, got NoneType"),
            ({"type": 5}, None, EncodeTypeError, "type: an action's must be a string, got int"),
            ({"type": "a", 5: 1}, None, EncodeTypeError, "each name in it must be a string, got int"),
            ({"type": "a", b"type": 1}, None, EncodeTypeError, "must be a string, got bytes"),
            ({"type": "a", "length": 0}, None, EncodeError, "length: servers end the connection"),
            ({"type": "a", "length": 1.5}, None, EncodeError, "length: servers end the connection"),
            ({"type": "a"}, [1], EncodeTypeError, "meta: must be a mapping, got list"),
            ({"type": "a"}, {"id": "1 a 0"}, EncodeError, "meta: only time and subprotocol"),
            ({"type": "a"}, {"channels": ["b"]}, EncodeError, "deny an action with 'channels' in it"),
            ({"type": "a"}, {"time": "now"}, EncodeTypeError, "time: must be milliseconds since 1970"),
            ({"type": "a"}, {"time": True}, EncodeTypeError, "time: must be milliseconds"),
            ({"type": "a"}, {"time": float("nan")}, EncodeError, "time: must be milliseconds"),
            ({"type": "a"}, {"time": 1e300}, EncodeError, "time: must be milliseconds"),
            ({"type": "a"}, {"subprotocol": "1.0.0"}, EncodeTypeError, "subprotocol: must be a whole number"),
            ({"type": "a"}, {"subprotocol": -1}, EncodeError, "subprotocol: must be a whole number, got -1"),
            ({"type": "a"}, {"subprotocol": 1.5}, EncodeError, "must be a whole number, got 1.5"),
        ],
    )
    def test_invalid_action_or_meta_is_refused_by_name(
        self, peer: LoguxPeer, action: Any, meta: Any, error: type[Exception], message: str
    ) -> None:
        with connect(peer) as client:
            with pytest.raises(error, match=message) as caught:
                client.add(action, meta)
            assert "\n" not in str(caught.value)
            assert client.add({"type": "a", "length": "5", "data": {"length": 5}}).result(PATIENCE) == OK
            stats = client.stats()
            assert (stats.sent, stats.acked, stats.failed) == (2, 1, {"unencodable": 1})
            assert stats.connects == 1

    def test_action_that_cannot_be_encoded_is_refused(self, peer: LoguxPeer) -> None:
        with connect(peer, max_event_bytes=1000, truncate=True) as client:
            with pytest.raises(EncodeError):
                client.add({"type": "a", "message": "x" * 2000})
            assert client.add({"type": "a", "odd": {1: float("nan"), "b": b"x"}}).result(PATIENCE) == OK
            assert client.stats().sanitized
        assert sent(peer)[0]["odd"] == {"1": None, "b": "x"}

    @pytest.mark.parametrize(
        ("reason", "reason_"),
        [("denied", "denied"), ("unknownType", "unknown_type"), ("wrongChannel", "rejected")],
    )
    def test_undone_action_fails_with_its_reason(self, peer: LoguxPeer, reason: str, reason_: str) -> None:
        with connect(peer) as client:
            assert client.add({"type": "a"}).result(PATIENCE) == OK
            peer.answer = undo(reason)
            assert client.add({"type": "a"}).result(PATIENCE) == Outcome("failed", reason_)
            assert client.stats().failed == {reason_: 1}

    @pytest.mark.parametrize("reason", ["spam", "denied", "unknownType"])
    def test_details_of_an_undo_are_in_outcome_and_callback(self, peer: LoguxPeer, reason: str) -> None:
        more = {"hint": {"see": ["https://example.org/rules", 7]}, "status": 5}
        received: list[tuple[dict[str, Any], dict[str, Any]]] = []
        everything: list[str] = []
        with connect(peer) as client:
            client.on("logux/undo", lambda action, meta: received.append((action, meta)))
            client.on(None, lambda action, meta: everything.append(action["type"]))
            good = client.add({"type": "chat/add", "n": 1}).result(PATIENCE)
            assert good is not None and good == OK and good.details == {}
            peer.answer = undo(reason, **more)
            delivery = client.add({"type": "chat/add", "n": 2})
            outcome = delivery.result(PATIENCE)
            assert outcome is not None and outcome.details == {"reason": reason, **more}
            assert outcome.status == "failed" and outcome == Outcome("failed", outcome.reason)
            assert pickle.loads(pickle.dumps(outcome)).details == outcome.details
            until(lambda: received)
            line = peer.line()
            line.send({"type": "the/end"})
            until(lambda: everything)
        ((action, meta),) = received
        (_, ours) = peer.actions
        assert {**action, "id": ""} == {
            "type": "logux/undo", "id": "", "reason": reason, "action": ours[0], **more
        }  # fmt: skip
        assert action["id"] == ours[1]["id"] and action["action"]["id"] == client.event_id(2)
        assert meta["id"].split(" ")[1] == "server:peer" and abs(meta["time"] - time.time() * 1000) < 60_000
        assert everything == ["the/end"]  # callbacks for all types do not get undos of ours

    def test_oversized_details_of_an_undo_are_cut(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            for reason, left in (("y" * 100_000, {"reason": "y" * 1000}), (["y" * 100_000], {})):
                peer.answer = undo(reason, more="x" * 200_000)  # type: ignore[arg-type]
                outcome = client.add({"type": "chat/add"}).result(PATIENCE)
                assert outcome == ("failed", "rejected")
                assert outcome is not None and outcome.details == left

    def test_undo_without_an_outcome_is_not_reported(self, peer: LoguxPeer) -> None:
        """An action undone for another's sake is sent again."""
        received: list[str] = []
        with connect(peer) as client:
            client.on("logux/undo", lambda action, meta: received.append(action["action"]["n"]))
            once = iter([undo("error")])
            peer.answer = lambda action: next(once, processed)(action)
            outcome = client.add({"type": "chat/add", "n": 1}).result(PATIENCE)
            assert outcome is not None and outcome == OK and outcome.details == {}
            peer.answer = undo("error", trace="x.js:5")
            outcome = client.add({"type": "chat/add", "n": 2}).result(PATIENCE)
            assert outcome is not None and outcome == ("failed", "error")
            assert outcome.details == {"reason": "error", "trace": "x.js:5"}
            until(lambda: received)
        assert received == [2]

    def test_handler_sends_ecs_documents(self, peer: LoguxPeer) -> None:
        handler = logclient.Handler(url=peer.url, action_type="audit/add")
        logger = logging.Logger("shop")
        logger.addHandler(handler)
        logger.warning("user %s logged in", "ada", extra={"length": 5})
        handler.flush()
        handler.close()
        (action,) = sent(peer)
        assert action["type"] == "audit/add" and len(action["id"]) == 32
        assert set(action) == {"type", "id", "data"}
        data = action["data"]
        assert data["message"] == "user ada logged in" and data["length"] == 5
        assert data["log.level"].upper() == "WARNING" and "ecs.version" in data

    def test_ack_synced_settles_without_processing(self, peer: LoguxPeer, tmp_path: Path) -> None:
        peer.answer = lambda action: {}
        with connect(peer, ack="synced", ledger=tmp_path) as client:
            assert client.add({"type": "a"}).result(PATIENCE) == OK
        (ledger,) = tmp_path.glob("*.ledger")
        opened = json.loads(ledger.read_text().partition("\n")[0])
        assert (opened["protocol"], opened["ack"]) == ("logux", "synced")

    def test_path_of_the_url_is_requested(self, peer: LoguxPeer) -> None:
        with logclient.connect(peer.url + "/some/where") as client:
            client.send("a")
            assert client.flush(PATIENCE) == 0
        assert peer.lines[0].path == "/some/where"


class TestHttp:
    def test_http_headers_are_sent_and_values_not_shown(self, peer: LoguxPeer) -> None:
        given = {
            "Cookie": "session=hunter2", "authorization": "Bearer x", "Origin": "https://example.org",
            "User-Agent": "mine",
        }  # fmt: skip
        with connect(peer, http_headers=given) as client:
            client.send("a")
            assert client.flush(PATIENCE) == 0
            shown = repr(client) + repr(client.config) + repr(client.stats())
        assert given.items() <= peer.lines[0].http.items()
        assert "Cookie" in shown and "hunter2" not in shown and "Bearer" not in shown


class TestHeaders:
    def test_headers_go_first_and_replace_all(self, peer: LoguxPeer) -> None:
        peer.headers = {"env": "development"}
        with connect(peer) as client:
            assert client.headers == {} and client.server_headers == {}
            client.headers = {"locale": "fr", "n": [1, {"deep": None}], "odd": float("inf")}
            assert client.headers == {"locale": "fr", "n": [1, {"deep": None}], "odd": None}
            client.send("a")
            assert client.flush(PATIENCE) == 0
            line = peer.line()
            assert line.headers == [client.headers]
            assert line.order.index("headers") < line.order.index("connect")
            assert client.server_headers == {"env": "development"}
            client.headers = {"locale": "de"}
            peer.wait(lambda: line.headers[-1:] == [{"locale": "de"}])
            line.say("headers", {"more": 1})
            until(lambda: client.server_headers == {"more": 1})
            line.close()
            until(lambda: client.stats().disconnects == 1)
            client.send("b")
            assert client.flush(PATIENCE) == 0
            again = peer.line(1)
            assert again.headers == [{"locale": "de"}]
            assert again.order.index("headers") < again.order.index("connect")

    def test_invalid_headers_are_refused(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            client.headers = {"a": 1}
            with pytest.raises(EncodeTypeError, match="headers: must be a mapping, got list"):
                client.headers = [1]  # type: ignore[assignment]
            with pytest.raises(EncodeError, match="length: servers end the connection on headers"):
                client.headers = {"length": 1}
            with pytest.raises(EncodeTypeError, match="each name in it must be a string"):
                client.headers = {1: 1}  # type: ignore[dict-item]
            client.headers["a"] = 2  # changes a copy only
            assert client.headers == {"a": 1}
            assert client.stats().sent == 0

    def test_setting_headers_does_not_connect(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            client.headers = {"a": 1}
        assert peer.lines == []


class TestReceiving:
    def test_callbacks_are_called_by_type_in_their_thread(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            chat: list[tuple[dict[str, Any], dict[str, Any]]] = []
            every: list[str] = []
            threads: set[str] = set()

            def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
                threads.add(threading.current_thread().name)
                chat.append((action, meta))

            end = client.on("chat/add", hear)
            client.on(None, lambda action, meta: every.append(action["type"]))
            # A callback connects without anything to send.
            line = peer.line()
            line.send({"type": "chat/add", "n": 1}, {"type": "other"}, {"type": "chat/add", "n": 2}, time=50)
            until(lambda: len(every) == 3)
            assert [action["n"] for action, _ in chat] == [1, 2]
            assert threads == {"logclient-callbacks"}
            meta = chat[0][1]
            assert meta["id"] == f"{line.base + 50} server:peer 1"
            assert abs(meta["time"] - line.base - 50) < 1000
            peer.wait(lambda: "synced" in line.order)
            end()
            end()
            line.send({"type": "chat/add", "n": 3})
            until(lambda: len(every) == 4)
            assert len(chat) == 2
            assert client.missed == 0

    def test_callback_that_raises_is_reported(
        self, peer: LoguxPeer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with connect(peer) as client:
            received: list[int] = []

            def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
                received.append(action["n"])
                raise SystemExit("oops")

            client.on("a", hear)
            client.on("a", hear)
            peer.line().send({"type": "a", "n": 1}, {"type": "a", "n": 2})
            until(lambda: received == [1, 1, 2, 2])
            assert client.submit("still here").result(PATIENCE) == OK
        assert "a callback for 'a' raised SystemExit: oops" in capsys.readouterr().err

    def test_invalid_callback_is_refused(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            with pytest.raises(EncodeTypeError, match="callback: must be callable, got int"):
                client.on("a", 5)  # type: ignore[arg-type]
            with pytest.raises(EncodeTypeError, match="type: must be a string or None, got int"):
                client.on(5, print)  # type: ignore[arg-type]
        assert peer.lines == []

    def test_client_with_callbacks_reconnects(self, peer: LoguxPeer) -> None:
        with connect(peer, backoff_max=0.02) as client:
            received: list[int] = []
            client.on("a", lambda action, meta: received.append(action["n"]))
            for n in range(3):
                line = peer.line(n)
                line.send({"type": "a", "n": n})
                until(lambda n=n: received[-1:] == [n])  # type: ignore[misc]
                line.close()
            peer.line(3)
            until(lambda: client.state == "synchronized")
        assert received == [0, 1, 2]

    def test_new_callback_wakes_an_idle_sender(
        self, peer: LoguxPeer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sender sleeps without a connection and without events. A callback must connect it at once."""
        sleeps, rest = threading.Event(), Lanes._rest

        def watched(lanes: Lanes, until: float) -> None:
            if lanes.first.link is None:
                sleeps.set()
            rest(lanes, until)

        monkeypatch.setattr("logclient.delivery.engine.TURN", 100 * PATIENCE)
        monkeypatch.setattr(Lanes, "_rest", watched)
        with connect(peer) as client:
            assert client.submit("first").result(PATIENCE) == OK
            sleeps.clear()
            peer.line().close()
            assert sleeps.wait(PATIENCE)
            received: list[int] = []
            client.on("a", lambda action, meta: received.append(action["n"]))
            peer.line(1).send({"type": "a", "n": 1})
            until(lambda: received == [1])

    def test_actions_for_slow_callbacks_are_missed(
        self, peer: LoguxPeer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with connect(peer, max_bytes=10_000, max_event_bytes=1000) as client:
            begun, go = threading.Event(), threading.Event()
            received: list[int] = []

            def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
                begun.set()
                assert go.wait(2 * PATIENCE)
                received.append(action["n"])

            client.on("a", hear)
            line = peer.line()
            line.send({"type": "a", "n": 0})
            assert begun.wait(PATIENCE)
            line.send({"type": "a", "n": 1, "big": "x" * 50_000})
            for n in range(2, 12):
                line.send({"type": "a", "n": n, "big": "x" * 1000})
            until(lambda: client.missed == 10)
            go.set()
            until(lambda: len(received) == 2)
            line.send({"type": "a", "n": 99})
            until(lambda: received == [0, 1, 99])
            assert client.missed == 10
        assert "callbacks are too slow" in capsys.readouterr().err

    def test_debug_text_of_the_server_is_reported(
        self, peer: LoguxPeer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with connect(peer) as client:
            client.on("a", print)
            peer.line().say("debug", "error", "Error: no such type\n    at server.js:5")
            shown = ""

            def seen() -> bool:
                nonlocal shown
                shown += capsys.readouterr().err
                return "the server says: Error: no such type" in shown

            until(seen)
        assert shown.count("\n") == 1


class TestChannels:
    def test_channels_are_subscribed_on_each_connection(self, peer: LoguxPeer) -> None:
        secret = undo("denied")
        honest = peer.answer
        peer.answer = lambda action: secret(action) if action.get("channel") == "secret" else honest(action)
        with connect(peer, backoff_max=0.02) as client:
            client.on("news", lambda action, meta: None)
            assert client.subscribe("sport", filter={"since": 5}).result(PATIENCE) == OK
            assert client.subscribe("chess").result(PATIENCE) == OK
            assert client.subscribe("secret").result(PATIENCE) == Outcome("failed", "denied")
            with pytest.raises(EncodeError):
                client.subscribe("odd", length=5)
            assert client.unsubscribe("chess").result(PATIENCE) == OK
            peer.lines[0].close()
            peer.wait(lambda: len(peer.actions) == 5)
            assert client.flush(PATIENCE) == 0
            peer.line(1).close()
            peer.wait(lambda: len(peer.actions) == 6)
            assert client.flush(PATIENCE) == 0
        found = [{k: v for k, v in action.items() if k != "id"} for action in sent(peer)]
        sport = {"type": "logux/subscribe", "channel": "sport", "filter": {"since": 5}}
        assert found == [
            sport,
            {"type": "logux/subscribe", "channel": "chess"},
            {"type": "logux/subscribe", "channel": "secret"},
            {"type": "logux/unsubscribe", "channel": "chess"},
            sport,
            sport,
        ]
        assert len({action["id"] for action in sent(peer)}) == 6

    @pytest.mark.parametrize("overflow", ["drop_new", "drop_oldest", "block"])
    def test_channel_that_finds_a_full_queue_is_subscribed_when_there_is_room(
        self, peer: LoguxPeer, overflow: str
    ) -> None:
        with connect(peer, max_events=2, overflow=overflow, backoff_max=0.02) as client:
            assert client.subscribe("sport").result(PATIENCE) == OK
            honest, peer.answer = peer.answer, lambda action: {}
            client.send("a")
            client.send("b")
            peer.wait(lambda: len(peer.actions) == 3)
            peer.lines[0].close()
            until(lambda: client.stats().dropped.get("overflow"))
            peer.wait(lambda: len(peer.actions) == 5)
            peer.answer = honest
            for _, meta in peer.actions[3:]:
                peer.lines[1].send({"type": "logux/processed", "id": meta["id"]})
            peer.wait(lambda: len(peer.actions) == 6)
            assert client.flush(PATIENCE) == 0
        assert sent(peer)[5]["channel"] == "sport"

    def test_subscription_in_flight_is_sent_once(self, peer: LoguxPeer) -> None:
        answer, peer.answer = peer.answer, lambda action: {}
        with connect(peer, backoff_max=0.02) as client:
            delivery = client.subscribe("sport")
            peer.wait(lambda: peer.actions)
            peer.answer = answer
            peer.lines[0].close()
            assert delivery.result(PATIENCE) == OK
            assert client.ping(PATIENCE)
            assert len(peer.actions) == 2  # the first one was in doubt


class TestState:
    def test_state_follows_connection_and_actions(self, peer: LoguxPeer) -> None:
        client = connect(peer)
        assert client.state == "disconnected"
        peer.answer = lambda action: {}
        delivery = client.submit("a")
        until(lambda: client.state == "sending")
        peer.wait(lambda: peer.actions)
        (_, meta) = peer.actions[0]
        peer.lines[0].send({"type": "logux/processed", "id": meta["id"]})
        assert delivery.result(PATIENCE) == OK
        until(lambda: client.state == "synchronized")
        assert peer.lines[0].connect[2] == client.node_id
        assert client.ping(PATIENCE).seconds >= 0
        client.close()
        assert client.state == "disconnected"
        with pytest.raises(ConnectFailed):
            client.ping(0.1)

    def test_state_is_connecting_until_accepted(self, peer: LoguxPeer) -> None:
        go = threading.Event()

        def refuse(connect: list[Any]) -> list[Any]:
            assert go.wait(PATIENCE)
            return []

        peer.refuse = refuse
        with connect(peer) as client:
            client.send("a")
            until(lambda: client.state == "connecting")
            go.set()
            until(lambda: client.state == "synchronized")

    def test_refused_credentials_are_retried_without_showing(
        self,
        peer: LoguxPeer,
        tmp_path: Path,
        slow_pace: Callable[[float, float], None],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        peer.refuse = lambda connect: [] if connect[4].get("token") == "right" else ["wrong-credentials"]
        slow_pace(0.05, 0.05)
        with connect(peer, token="hunter2", ledger=tmp_path) as client:
            delivery = client.submit("a")
            until(lambda: client.state == "denied")
            until(lambda: client.stats().connects >= 4)
            assert not delivery.done()
            stats = client.stats()
            assert (stats.queued, stats.failed) == (1, {})
            shown = capsys.readouterr().err + repr(client) + repr(stats) + repr(client.config)
            assert shown.count("nothing is sent there until that is corrected; next try") == 1
            # The server accepts the token now.
            peer.refuse = lambda connect: []
            assert delivery.result(PATIENCE) == OK
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert "hunter2" not in shown + capsys.readouterr().err and b"hunter2" not in files
        assert peer.lines[0].connect[4]["token"] == "hunter2"

    @pytest.mark.parametrize(
        "error",
        [
            ["wrong-protocol", {"supported": 7, "used": 5}],
            ["wrong-subprotocol", {"supported": 2, "used": 1}],
        ],
    )
    def test_refused_version_stops_the_client(
        self, peer: LoguxPeer, error: list[Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        peer.refuse = lambda connect: error
        with connect(peer) as client:
            assert client.submit("a").result(PATIENCE) == Outcome("failed", "fatal")
            assert client.state == "stopped"
            assert error[0].partition("-")[2] in client.stats().last_error
            assert client.submit("b").result(PATIENCE) == Outcome("failed", "fatal")
            assert client.stats().connects == 1
        assert "nothing more will be sent" in capsys.readouterr().err

    def test_server_of_protocol_4_stops_the_client(
        self, peer: LoguxPeer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It throws on a numeric subprotocol and closes without a reason. The client asks once more in
        the older form."""
        peer.protocol = 4
        with connect(peer, backoff_max=0.05) as client:
            assert client.submit("a").result(PATIENCE) == Outcome("failed", "fatal")
            assert client.state == "stopped"
            assert "the server speaks protocol 4 (@logux/server 0.13 and older)" in client.stats().last_error
            assert client.stats().connects == 2
        first, second = capsys.readouterr().err.splitlines()
        assert "protocol 4 (@logux/server 0.13 and older)" in first
        assert second.endswith("nothing more will be sent")
        assert [line.connect[4]["subprotocol"] for line in peer.lines] == [1, "1.0.0"]

    def test_server_of_protocol_7_stops_the_client(self, peer: LoguxPeer) -> None:
        peer.refuse = lambda connect: ["wrong-protocol", {"supported": 7, "used": connect[1]}]
        with connect(peer) as client:
            assert client.submit("a").result(PATIENCE) == Outcome("failed", "fatal")
            assert (
                "it wants protocol 7 (@logux/core 0.12 and newer), we speak protocol 5 (@logux/server 0.14)"
                in client.stats().last_error
            )


class TestLifetime:
    def test_close_fails_actions_without_an_outcome(self, peer: LoguxPeer) -> None:
        peer.answer = lambda action: {}
        client = connect(peer)
        deliveries = [client.add({"type": "a"}) for _ in range(5)]
        assert client.flush(0.05) == 5
        assert client.close(0.05) == 5
        assert {d.result(PATIENCE) for d in deliveries} == {Outcome("failed", "closed")}
        assert client.add({"type": "a"}).result(PATIENCE) == Outcome("dropped", "closed")

    def test_unreferenced_client_delivers_and_ends(self, peer: LoguxPeer) -> None:
        def hear(client: Client, action: dict[str, Any], meta: dict[str, Any]) -> None:
            client.send("received")

        client = connect(peer)
        client.on("a", partial(hear, client))
        peer.line()
        client.send("last")
        engine, found = client._sender, weakref.ref(client)
        del client
        gc.collect()
        assert found() is None
        until(lambda: engine.closed and not engine.running)
        assert len(peer.actions) == 1

    def test_callback_may_send_actions(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            client.on("ask", lambda action, meta: client.add({"type": "answer", "n": action["n"]}))
            peer.line().send({"type": "ask", "n": 7})
            peer.wait(lambda: peer.actions)
            assert sent(peer)[0]["type"] == "answer"
            assert client.flush(PATIENCE) == 0

    @needs_fork
    def test_forked_child_is_another_node(self, peer: LoguxPeer) -> None:
        with connect(peer) as client:
            client.headers = {"locale": "fr"}
            received: list[int] = []
            client.on("a", lambda action, meta: received.append(action["n"]))
            assert client.submit("parent").result(PATIENCE) == OK
            before = client.node_id

            def work() -> None:
                assert client.node_id != before
                assert client.headers == {"locale": "fr"}
                assert client.stats().connects == 0
                # The peer's threads run in the parent and answer the child, too.
                assert client.submit("child").result(PATIENCE) == OK
                until(lambda: received == [2])
                assert client.close() == 0

            # The child waits for this action once it is connected.
            answer = peer.answer

            def also(action: dict[str, Any]) -> dict[str, Any]:
                if action["data"]["message"] == "child":
                    peer.lines[-1].send({"type": "a", "n": 2})
                return answer(action)

            peer.answer = also
            run_in_child(work)
            assert client.node_id == before
            assert received == []
            child = peer.line(1)
            assert child.connect[2] != before
            assert child.headers == [{"locale": "fr"}]
            peer.lines[0].send({"type": "a", "n": 1})
            until(lambda: received == [1])
            assert client.stats().connects == 1

    @pytest.mark.parametrize("listens", [False, True])
    def test_exit_of_the_process_delivers_all(self, peer: LoguxPeer, listens: bool) -> None:
        code = (
            "import logclient, sys\n"
            f"client = logclient.connect({peer.url!r})\n"
            f"if {listens}: client.on('a', print)\n"
            "for n in range(1000): client.send({'n': n})\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert [action["data"]["n"] for action in sent(peer)] == list(range(1000))


@pytest.mark.tree
def test_example_of_the_documentation_works(peer: LoguxPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "logux.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(import logclient\n.+?)```", page, re.DOTALL)
    assert code is not None
    monkeypatch.setenv("LOGS_TOKEN", "secret")
    text = code[1].replace("logux+tls://logs.example.org:31337", peer.url)
    exec(text + f"    client.flush({PATIENCE})\n", {})
    assert [(action["type"], action.get("text")) for action in sent(peer)] == [
        ("log/add", None),
        ("chat/add", "hi"),
    ]
    assert peer.lines[0].connect[4]["token"] == "secret"


class TestAsync:
    def test_async_client_sends_and_receives(self, peer: LoguxPeer) -> None:
        async def main() -> None:
            async with logclient.AsyncClient(peer.url) as client:
                assert (await client.add({"type": "a"}, {"time": 5})).ok
                assert await client.submit({"b": 1}) == OK
                with pytest.raises(EncodeError, match="length"):
                    await client.add({"type": "a", "length": 1})
                assert (await client.ping()).seconds >= 0
                received: list[int] = []

                async def hear(action: dict[str, Any], meta: dict[str, Any]) -> None:
                    await asyncio.sleep(0)
                    received.append(action["n"])

                end = client.on("n", hear)
                actions = client.actions("n")
                peer.lines[0].send({"type": "n", "n": 1}, {"type": "other"}, {"type": "n", "n": 2})
                assert [(await anext(actions))[0]["n"] for _ in range(2)] == [1, 2]
                while received != [1, 2]:
                    await asyncio.sleep(0.001)
                end()
                assert await client.subscribe("sport") == OK
                assert await client.unsubscribe("sport") == OK
                assert client.client.state == "synchronized"
            assert [one async for one in actions] == []

        asyncio.run(main())
        assert sent(peer)[0]["type"] == "a"
