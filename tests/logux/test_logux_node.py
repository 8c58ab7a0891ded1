"""The server's end of a Logux connection, without a socket. Recorded clients: test_logux_node_vectors.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import ConfigError
from logclient.logux.messages import compact, parse
from logclient.testing.logux_node import Login, Received, Rules, Server, ServerNode
from tests.oracle import logux_messages as oracle

pytestmark = pytest.mark.unit

WALL = 1_795_155_000_000


class Peer:
    """A client of a server node, with a clock that the test moves."""

    def __init__(self, server: Server | Rules | None = None, address: str = "10.0.0.1") -> None:
        self.server = server if isinstance(server, Server) else Server(server or Rules())
        self.now = 100.0
        self.node = ServerNode(self.server, address, self.now)

    @property
    def wall(self) -> int:
        return WALL + round((self.now - 100) * 1000)

    @property
    def unanswered(self) -> int:
        """Answers that this client owes."""
        return sum(count for _, count in self.node._waiting)

    def receive(self, *message: Any, raw: bytes = b"") -> list[Received]:
        found = self.node.receive(raw or compact(list(message)), self.now, self.wall)
        for received in found:
            self.node.sent(len(received.outcomes), self.now)
        return found

    def send(self, *message: Any, raw: bytes = b"") -> list[Any]:
        """Send a message; return everything that comes back."""
        back = []
        for received in self.receive(*message, raw=raw):
            back += [json.loads(one) for one in received.answers]
            back += [json.loads(one) for outcome in received.outcomes for one in outcome]
        return back

    def connect(self, node_id: str = "u:c:t", **options: Any) -> list[Any]:
        return self.send("connect", 5, node_id, 0, *([options] if options else []))

    def wait(self, seconds: float) -> list[Any]:
        """Return what the node sends in that time without a request."""
        end, back = self.now + seconds, []
        while (due := self.node.next_timeout()) is not None and due <= end:
            self.now = due
            back += [json.loads(one) for one in self.node.handle_timeout(due)]
        self.now = end
        return back


def connected(rules: Rules | Server | None = None, node_id: str = "u:c:t") -> Peer:
    peer = Peer(rules)
    answer = peer.connect(node_id)[-1]
    assert answer[0] == "connected", answer
    return peer


def sync(*entries: Any, added: int = 1) -> list[Any]:
    """Make a sync of (id, action) pairs."""
    parts = []
    for relative, action in entries:
        parts += [action, {"id": relative, "time": 1}]
    return ["sync", added, *parts]


def results(messages: list[Any]) -> list[tuple[str, str]]:
    """Return (id, reason or "processed") of each sync of the server, in order."""
    actions = [message[2] for message in messages if message[0] == "sync"]
    return [(action["id"], action.get("reason", "processed")) for action in actions]


ADD = {"type": "log/add", "n": 1}


class TestConnect:
    def test_connected_has_the_base_time(self) -> None:
        peer = Peer(Rules(node_id="server:x", subprotocol=3))
        peer.wait(1.5)
        assert peer.connect() == [["connected", 5, "server:x", [WALL + 1500] * 2, {"subprotocol": 3}]]
        assert (peer.node.base, peer.node.node_id) == (WALL + 1500, "u:c:t")

    def test_connected_has_no_options_without_subprotocol(self) -> None:
        assert Peer(Rules(subprotocol=0)).connect() == [["connected", 5, "server:logclient", [WALL, WALL]]]

    def test_authenticator_gets_user_token_and_headers(self) -> None:
        seen: list[Login] = []
        peer = Peer(Rules(authenticate=lambda login: not seen.append(login)))
        peer.send("headers", {"a": 1, "b": 2})
        peer.send("headers", {"a": 3})
        peer.connect(token={"any": "thing"})
        assert seen == [Login("u", "u:c:t", {"any": "thing"}, {"a": 3})]

    @pytest.mark.parametrize("answer", [lambda login: False, lambda login: 1 / 0])
    def test_refused_login_closes(self, answer: Any) -> None:
        peer = Peer(Rules(authenticate=answer))
        assert peer.connect() == [["error", "wrong-credentials"]]
        assert peer.node.closed
        assert peer.send("ping", 0) == []
        assert peer.server.clients == {}

    @pytest.mark.parametrize("node_id", ["server", "server:a:b", "u:" + "c" * 5000])
    def test_server_and_oversized_node_ids_are_refused(self, node_id: str) -> None:
        assert Peer().connect(node_id) == [["error", "wrong-credentials"]]

    def test_newer_protocol_is_accepted_and_older_refused(self) -> None:
        assert Peer().send("connect", 5.5, "u:c:t", 0)[0][:2] == ["connected", 5]
        assert Peer().send("connect", 4.9, "u:c:t", 0)[0][1:] == [
            "wrong-protocol",
            {"supported": 5, "used": 4.9},
        ]

    def test_subprotocol_below_the_minimum_is_refused(self) -> None:
        assert Peer(Rules(minimum=2)).connect(subprotocol=1) == [
            ["error", "wrong-subprotocol", {"supported": 2, "used": 1}]
        ]
        assert Peer(Rules(minimum=2)).connect(subprotocol={})[0][0] == "connected"
        assert Peer(Rules(minimum=2)).connect(subprotocol=None)[0][2] == {"supported": 2, "used": 0}

    def test_second_connect_closes_without_an_error(self) -> None:
        peer = connected()
        assert peer.connect() == []
        assert peer.node.closed

    def test_connected_of_a_client_opens_nothing(self) -> None:
        peer = Peer()
        assert peer.send("connected", 5, "u:c:t", [1, 2]) == []
        assert peer.send("ping", 0) == []
        assert not peer.node.open and not peer.node.closed


class TestBeforeConnect:
    def test_early_messages_are_answered_after_connect(self) -> None:
        peer = Peer()
        assert peer.send("ping", 0) == []
        assert peer.send(*sync((1, ADD), added=7)) == []
        back = peer.connect()
        assert [message[0] for message in back] == ["connected", "pong", "synced", "sync"]
        assert results(back) == [(f"{WALL + 1} u:c:t 0", "processed")]

    def test_early_messages_of_a_refused_client_are_dropped(self) -> None:
        peer = Peer(Rules(authenticate=lambda login: False))
        peer.send(*sync((1, ADD)))
        assert peer.connect() == [["error", "wrong-credentials"]]

    @pytest.mark.parametrize("message", [["ping", 0], ["headers", {"x": "y" * 50}], ["error", "x"]])
    def test_bytes_before_connect_are_limited(self, message: list[Any]) -> None:
        peer = Peer(Rules(max_early=1000))
        size = 0
        while not peer.node.closed:
            peer.send(*message)
            size += len(compact(message))
        assert 1000 < size <= 1000 + len(compact(message))
        assert peer.connect() == []

    def test_connection_without_connect_times_out(self) -> None:
        peer = Peer(Rules(timeout=2, ping=1))
        assert peer.wait(1.99) == []
        assert not peer.node.closed
        peer.wait(0.01)
        assert peer.node.closed == "timeout"


NODES = st.sampled_from(["u:c:t", "u:c:x", "u:z:t", "q"])


class TestSync:
    def test_ids_in_all_forms_are_processed(self) -> None:
        peer = connected()
        back = peer.send(*sync((5, ADD), ([5, 1], ADD), ([6, "u:c:other", 2], ADD), (-1.5, ADD), added=9))
        assert back[0] == ["synced", 9]
        assert results(back) == [
            (f"{WALL + 5} u:c:t 0", "processed"),
            (f"{WALL + 5} u:c:t 1", "processed"),
            (f"{WALL + 6} u:c:other 2", "processed"),
            (f"{WALL - 1.5} u:c:t 0", "processed"),
        ]

    def test_own_ids_rise_when_the_clock_does_not(self) -> None:
        peer = connected(Rules(subprotocol=2))
        metas = [m[3] for m in peer.send(*sync((1, ADD), (2, ADD)))[1:]]
        assert metas == [
            {"id": 0, "time": 0, "subprotocol": 2},
            {"id": [0, 1], "time": 0, "subprotocol": 2},
        ]
        peer.now -= 10
        assert peer.send(*sync((3, ADD)))[1][3]["id"] == [0, 2]

    def test_node_id_may_have_any_characters(self) -> None:
        node_id = 'u:"\\é\ud800:t'
        back = connected(node_id=node_id).send(*sync((1, ADD)))
        assert results(back) == [(f"{WALL + 1} {node_id} 0", "processed")]

    def test_action_with_foreign_id_or_meta_is_denied_alone(self) -> None:
        peer = connected()
        foreign = {**ADD, "n": "foreign"}
        back = peer.send(
            "sync", 3, foreign, {"id": [1, "u:zz:t", 0], "time": 1},
            {**ADD, "n": 2}, {"id": 2, "time": 2, "reasons": ["x"]},
            ADD, {"id": 3, "time": 3, "subprotocol": 7},
        )  # fmt: skip
        assert [reason for _, reason in results(back)] == ["denied", "denied", "processed"]
        assert back[1][2]["action"] == foreign
        assert list(back[1][2]) == ["action", "id", "reason", "type"]

    def test_kept_ids_are_limited_in_length(self) -> None:
        peer = connected(Rules(keep_log=True))
        tabs = ["t" * 1000, "t" * 1100]
        for tab in tabs:
            peer.send(*sync(([1, f"u:c:{tab}", 1], ADD)))
        assert [f"{WALL + 1} u:c:{tab} 1" in peer.server.kept for tab in tabs] == [True, False]

    @pytest.mark.parametrize("reason", ["denied", "unknownType", "wrongChannel", "error"])
    def test_undone_action_undoes_the_rest_of_its_sync(self, reason: str) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            if action["n"] == 2 and reason == "error":
                raise RuntimeError("boom")
            return reason if action["n"] == 2 else ""

        peer = connected(Rules(judge=judge))
        back = peer.send(*sync(*((n, {"type": "log/add", "n": n}) for n in range(1, 5))))
        assert [r for _, r in results(back)] == ["processed", reason, "error", "error"]
        assert [r for _, r in results(peer.send(*sync((9, ADD))))] == ["processed"]

    def test_judge_sees_absolute_meta(self) -> None:
        seen: list[Any] = []
        peer = Peer(Rules(judge=lambda action, meta: seen.append((action, meta)) or ""))
        peer.connect(subprotocol=4)
        peer.send("sync", 1, ADD, {"id": 5, "time": 6}, ADD, {"id": 7, "time": 8, "subprotocol": 9})
        assert [meta for _, meta in seen] == [
            {"subprotocol": 4, "id": f"{WALL + 5} u:c:t 0", "time": WALL + 6},
            {"subprotocol": 9, "id": f"{WALL + 7} u:c:t 0", "time": WALL + 8},
        ]

    def test_unknown_type_is_undone(self) -> None:
        peer = connected(Rules(types=["log/add"]))
        assert [r for _, r in results(peer.send(*sync((1, ADD), (2, {"type": "x"}))))] == [
            "processed",
            "unknownType",
        ]

    @pytest.mark.parametrize(
        "action, result",
        [
            ({"type": "logux/subscribe", "channel": "x"}, "wrongChannel"),
            ({"type": "logux/subscribe"}, "wrongChannel"),
            ({"type": "logux/unsubscribe", "channel": "x"}, "processed"),
            ({"type": "logux/unsubscribe"}, "wrongChannel"),
            ({"type": "logux/processed", "id": "x"}, "unknownType"),
            ({"type": "logux/undo", "id": "x"}, "unknownType"),
        ],
    )
    def test_types_of_the_server_itself_are_answered(self, action: dict[str, Any], result: str) -> None:
        assert [r for _, r in results(connected().send(*sync((1, action))))] == [result]

    def test_duplicate_in_a_sync_is_processed_once(self) -> None:
        peer = connected()
        assert len(results(peer.send(*sync((1, ADD), (1, ADD), ([1, "u:c:t", 0], ADD))))) == 1
        assert len(results(peer.send(*sync((1, ADD))))) == 1, "nothing is kept: done a second time"

    def test_duplicate_of_a_kept_action_is_ignored(self) -> None:
        server = Server(Rules(keep_log=True))
        peer = connected(server)
        assert peer.send(*sync((1, ADD)))[1][1] == 1
        assert peer.send(*sync((1, ADD), added=2)) == [["synced", 2]]
        later = connected(server, "u:c:t2")
        assert results(later.send(*sync(([1, "u:c:t", 0], ADD), (2, ADD)))) == [
            (f"{WALL + 2} u:c:t2 0", "processed")
        ]
        assert later.send("ping", 0) == [["pong", 2]]

    def test_added_is_the_last_synced_number(self) -> None:
        peer = connected()
        peer.send("synced", 12)
        peer.send("synced", 5)
        assert peer.send(*sync((1, ADD)))[1][:2] == ["sync", 12]

    def test_own_action_is_a_sync(self) -> None:
        peer = connected()
        message = json.loads(peer.node.add({"type": "x", "a": "é"}, peer.now, peer.wall))
        assert message == ["sync", 0, {"type": "x", "a": "é"}, {"id": 0, "time": 0, "subprotocol": 1}]
        assert peer.unanswered == 1
        with pytest.raises(ValueError, match="not JSON compliant"):
            peer.node.add({"type": "x", "a": float("nan")}, peer.now, peer.wall)

    @given(
        st.lists(
            st.tuples(
                st.integers(-9, 9)
                | st.tuples(st.integers(-3, 3), st.integers(0, 2)).map(list)
                | st.tuples(st.integers(-3, 3), NODES, st.integers(0, 2)).map(list),
                st.sampled_from(["good", "bad", "logux/x"]),
            ),
            max_size=12,
        )
    )  # fmt: skip
    def test_each_id_has_one_outcome(self, entries: list[Any]) -> None:
        """Compared with the plain rule."""
        peer = connected(Rules(types=["good"]))
        back = peer.send(*sync(*((relative, {"type": kind}) for relative, kind in entries)))
        want, seen, undone = [], set(), False
        for relative, kind in entries:
            action_id = oracle.absolute_id(relative, WALL, "u:c:t")
            if action_id in seen:
                continue
            if not action_id.split(" ")[1].startswith("u:c:"):
                want.append((action_id, "denied"))
                continue
            seen.add(action_id)
            result = "error" if undone else "processed" if kind == "good" else "unknownType"
            undone = undone or result != "processed"
            want.append((action_id, result))
        assert results(back) == want
        assert peer.unanswered == len(want)


class TestTime:
    def test_idle_node_pings(self) -> None:
        peer = connected(Rules(ping=5, timeout=20))
        assert peer.wait(4.9) == []
        peer.send("ping", 0)
        assert peer.wait(4.9) == []
        assert peer.wait(0.1) == [["ping", 0]]
        assert peer.send("pong", 0) == []
        assert peer.wait(5) == [["ping", 0]]

    def test_only_one_ping_until_an_answer(self) -> None:
        peer = connected(Rules(ping=1, timeout=10))
        assert peer.wait(9) == [["ping", 0]]
        assert peer.wait(2) == []
        assert peer.node.closed == "timeout"

    def test_answers_settle_the_oldest_sync(self) -> None:
        peer = connected(Rules(ping=0, timeout=10))
        peer.send(*sync((1, ADD), (2, ADD)))
        peer.wait(5)
        peer.send(*sync((3, ADD)))
        assert peer.unanswered == 3
        peer.wait(4)
        peer.send("synced", 0)
        peer.send("synced", 0)
        peer.wait(5.9)
        assert not peer.node.closed
        peer.wait(0.1)
        assert peer.node.closed == "timeout"

    def test_unexpected_answers_are_ignored(self) -> None:
        peer = connected()
        for _ in range(3):
            assert peer.send("synced", 1) == []
            assert peer.send("pong", 1) == []
        assert peer.unanswered == 0

    def test_pings_do_not_replace_the_missing_answers(self) -> None:
        peer = connected(Rules(ping=1, timeout=3))
        peer.send(*sync((1, ADD)))
        while not peer.node.closed and peer.now < 110:
            peer.send("ping", 0)
            peer.wait(0.5)
        assert peer.node.closed == "timeout"

    def test_contradicting_rules_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="ping"):
            Server(Rules(timeout=0))
        with pytest.raises(ConfigError, match="node_id"):
            Server(Rules(node_id="a b"))
        peer = connected(Rules(timeout=0, ping=0))
        peer.send(*sync((1, ADD)))
        assert peer.node.next_timeout() is None


class TestSharedServer:
    def test_second_connection_of_a_client_closes_the_first(self) -> None:
        server = Server(Rules())
        first, other = connected(server), connected(server, "u:other:t")
        second = connected(server, "u:c:t2")
        assert first.node.closed and not other.node.closed and not second.node.closed
        first.node.connection_lost()
        assert server.clients["u:c"] is second.node
        second.node.connection_lost()
        assert set(server.clients) == {"u:other"}

    def test_wrong_tokens_lock_out_their_address(self) -> None:
        server = Server(Rules(authenticate=lambda login: login.token == "good"))

        def attempt(token: str, seconds: float, address: str = "a") -> bool:
            peer = Peer(server, address)
            peer.wait(seconds)
            return peer.connect(token=token)[0][0] == "connected"

        assert [attempt("bad", s) for s in (0, 0.5, 1.0)] == [False] * 3
        assert not attempt("good", 2.9), "the fourth within 3 s"
        assert attempt("good", 2.9, address="b")
        # The fourth counted, too: at 3.4 three of them are less than 3 s old.
        assert not attempt("good", 3.4)
        assert attempt("good", 6.5)

    @pytest.mark.slow
    def test_remembered_addresses_are_limited(self) -> None:
        server = Server(Rules(authenticate=lambda login: False))
        for n in range(10_050):
            Peer(server, f"a{n}").connect()
        assert len(server._bad) <= 10_000


class TestDevelopment:
    def test_development_is_in_the_headers(self) -> None:
        rules = Rules(development=True, headers={"a": 1})
        assert Peer(rules).connect()[0] == ["headers", {"a": 1, "env": "development"}]

    def test_development_reports_faults_of_own_actions(self) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            if action["type"] == "throw":
                raise RuntimeError("boom")
            return str(action["type"])

        peer = connected(Rules(development=True, judge=judge))
        (unknown, synced, _) = peer.send(*sync((1, {"type": "unknownType"})))
        assert (unknown, synced) == (
            ["debug", "error", "Action with unknown type unknownType"],
            ["synced", 1],
        )
        assert [m[0] for m in peer.send(*sync((2, {"type": "throw"})))] == ["synced", "debug", "sync"]
        received = peer.send("sync", 1, ADD, {"id": [3, "u:zz:t", 0], "time": 1})
        assert [m[0] for m in received] == ["synced", "sync"], "no report about another client's action"


class TestInvalidMessages:
    @pytest.mark.parametrize("raw", [b"", b"null", b"[1]", b'["ping"]', b"\xff", b"[" * 100_000])
    def test_invalid_message_closes_as_in_the_real_server(self, raw: bytes) -> None:
        peer = connected()
        (received,) = peer.receive(raw=raw or b" ")
        assert received.message is None and received.reason
        assert json.loads(received.answers[0])[:2] == ["error", "wrong-format"]
        assert peer.node.closed

    def test_unknown_message_closes(self) -> None:
        peer = connected()
        assert peer.send("ready", 0) == [["error", "unknown-message", "ready"]]
        assert peer.node.closed

    def test_error_of_the_client_closes_nothing(self) -> None:
        peer = connected()
        assert peer.send("error", "wrong-format", "x") == []
        assert peer.send("debug", "error", "x") == []
        assert not peer.node.closed


class TestStrictSpec:
    RULES = Rules(strict_spec=True, subprotocol="1.2.0", minimum="1.2.0", timeout=5, ping=0)

    def test_message_before_connect_is_missed_auth(self) -> None:
        peer = Peer(self.RULES)
        assert peer.send("ping", 0) == [["error", "missed-auth", '["ping",0]']]
        assert peer.send(*sync((1, ADD)))[0][1] == "missed-auth"
        assert peer.send("error", "x") == []
        assert peer.connect(subprotocol="1.10.0")[0][0] == "connected"
        assert peer.send("ping", 0) == [["pong", 0]]

    def test_invalid_message_closes_nothing(self) -> None:
        peer = Peer(self.RULES)
        peer.connect(subprotocol="1.2.0")
        assert peer.send("ready", 0) == [["error", "wrong-format", '["ready",0]']]
        assert peer.send("duilian", "x") == [["error", "wrong-format", '["duilian","x"]']]
        assert peer.send(raw=b"{") == [["error", "wrong-format", "{"]]
        assert peer.send("ping", 0) == [["pong", 0]]

    def test_subprotocol_compares_as_semver(self) -> None:
        assert Peer(self.RULES).connect(subprotocol="1.2.0-rc.1") == [
            ["error", "wrong-subprotocol", {"supported": "1.2.0", "used": "1.2.0-rc.1"}]
        ]

    def test_timeout_is_an_error_message(self) -> None:
        assert Peer(self.RULES).wait(5) == [["error", "timeout", 5000]]


frames = st.one_of(
    st.sampled_from([
        b'["connect",5,"u:c:t",0]', b'["connect",5,"server:c:t",0]', b'["connect",3,"u:c:t",0]',
        b'["ping",1]', b'["pong",2]', b'["synced",1e3]', b'["headers",{"a":null}]',
        b'["headers",null]', b'["error","x",[]]',
        b'["debug","error",""]', '["duilian","金木水火土"]'.encode(),
        b'["sync",1,{"type":"log/add"},{"id":1,"time":1}]', b'["sync",2,{"type":"no"},{"id":[1,2],"time":1}]',
        b'["connected",5,"x",[1,2]]', b'["sync",0]', b"[",
        b'["sync",1,{"type":"logux/subscribe"},{"id":1,"time":1}]',
    ]),
    st.binary(max_size=10),
    st.floats(0, 30),
)  # fmt: skip


@given(st.lists(frames, max_size=20), st.booleans(), st.booleans())
def test_any_messages_get_valid_answers_until_closed(
    steps: list[bytes | float], strict: bool, development: bool
) -> None:
    """No exception is raised, every answer is a valid message, and a closed node is silent."""
    rules = Rules(types=["log/add"], strict_spec=strict, development=development, keep_log=strict)
    peer = Peer(rules)
    for step in steps:
        was_closed, was_open = bool(peer.node.closed), peer.node.open
        if isinstance(step, float):
            back = peer.wait(step)
        else:
            back = peer.send(raw=step or b" ")
        assert not (was_closed and back)
        for message in back:
            if message[0] == "duilian":
                continue
            parse(compact(message))
            if not was_open and message[0] not in ("headers", "error"):
                assert peer.node.open
    assert peer.unanswered >= 0
