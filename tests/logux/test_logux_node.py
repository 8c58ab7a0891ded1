"""The server's end of a Logux connection, without a socket. Recorded clients: test_logux_node_vectors.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import ConfigError
from logclient.logux.messages import compact, parse
from logclient.logux.node import Heard, Login, Rules, Server, ServerNode
from tests.oracle import logux_messages as oracle

pytestmark = pytest.mark.unit

WALL = 1_795_155_000_000


class Peer:
    """A connection of ours to a server node, with a clock that is moved by hand."""

    def __init__(self, server: Server | Rules | None = None, address: str = "10.0.0.1") -> None:
        self.server = server if isinstance(server, Server) else Server(server)
        self.now = 100.0
        self.node = ServerNode(self.server, address, self.now)

    @property
    def wall(self) -> int:
        return WALL + round((self.now - 100) * 1000)

    def hear(self, *message: Any, raw: bytes = b"") -> list[Heard]:
        found = self.node.receive(raw or compact(list(message)), self.now, self.wall)
        for heard in found:
            self.node.sent(len(heard.outcomes), self.now)
        return found

    def say(self, *message: Any, raw: bytes = b"") -> list[Any]:
        """Send a message; everything that comes back."""
        back = []
        for heard in self.hear(*message, raw=raw):
            back += [json.loads(one) for one in heard.answers]
            back += [json.loads(one) for outcome in heard.outcomes for one in outcome]
        return back

    def connect(self, node_id: str = "u:c:t", **options: Any) -> list[Any]:
        return self.say("connect", 5, node_id, 0, *([options] if options else []))

    def wait(self, seconds: float) -> list[Any]:
        """What the node says of its own accord in that time."""
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
    """A sync of (id, action)."""
    parts = []
    for relative, action in entries:
        parts += [action, {"id": relative, "time": 1}]
    return ["sync", added, *parts]


def results(messages: list[Any]) -> list[tuple[str, str]]:
    """(id, reason or "processed") of each server's sync, in order."""
    actions = [message[2] for message in messages if message[0] == "sync"]
    return [(action["id"], action.get("reason", "processed")) for action in actions]


ADD = {"type": "log/add", "n": 1}


class TestConnect:
    def test_answer_has_the_base_time(self) -> None:
        peer = Peer(Rules(node_id="server:x", subprotocol=3))
        peer.wait(1.5)
        assert peer.connect() == [["connected", 5, "server:x", [WALL + 1500] * 2, {"subprotocol": 3}]]
        assert (peer.node.base, peer.node.node_id, peer.node.user) == (WALL + 1500, "u:c:t", "u")

    def test_without_a_subprotocol_there_are_no_options(self) -> None:
        assert Peer(Rules(subprotocol=0)).connect() == [["connected", 5, "server:logclient", [WALL, WALL]]]

    def test_authenticator_sees_all_there_is(self) -> None:
        seen: list[Login] = []
        peer = Peer(Rules(authenticate=lambda login: not seen.append(login)))
        peer.say("headers", {"a": 1, "b": 2})
        peer.say("headers", {"a": 3})
        peer.connect(token={"any": "thing"})
        assert seen == [Login("u", "u:c:t", {"any": "thing"}, {"a": 3})]

    @pytest.mark.parametrize("answer", [lambda login: False, lambda login: 1 / 0])
    def test_refused(self, answer: Any) -> None:
        peer = Peer(Rules(authenticate=answer))
        assert peer.connect() == [["error", "wrong-credentials"]]
        assert peer.node.closed
        assert peer.say("ping", 0) == []
        assert peer.server.clients == {}

    @pytest.mark.parametrize("node_id", ["server", "server:a:b", "u:" + "c" * 5000])
    def test_never_let_in(self, node_id: str) -> None:
        assert Peer().connect(node_id) == [["error", "wrong-credentials"]]

    def test_any_newer_protocol_is_taken(self) -> None:
        assert Peer().say("connect", 5.5, "u:c:t", 0)[0][:2] == ["connected", 5]
        assert Peer().say("connect", 4.9, "u:c:t", 0)[0][1:] == [
            "wrong-protocol",
            {"supported": 5, "used": 4.9},
        ]

    def test_subprotocol(self) -> None:
        assert Peer(Rules(minimum=2)).connect(subprotocol=1) == [
            ["error", "wrong-subprotocol", {"supported": 2, "used": 1}]
        ]
        assert Peer(Rules(minimum=2)).connect(subprotocol={})[0][0] == "connected"
        assert Peer(Rules(minimum=2)).connect(subprotocol=None)[0][2] == {"supported": 2, "used": 0}

    def test_second_connect_closes_without_a_word(self) -> None:
        peer = connected()
        assert peer.connect() == []
        assert peer.node.closed

    def test_a_connected_that_nobody_asked_for_opens_nothing(self) -> None:
        peer = Peer()
        assert peer.say("connected", 5, "u:c:t", [1, 2]) == []
        assert peer.say("ping", 0) == []
        assert not peer.node.open and not peer.node.closed


class TestEarly:
    def test_answered_in_order_once_it_is_open(self) -> None:
        peer = Peer()
        assert peer.say("ping", 0) == []
        assert peer.say(*sync((1, ADD), added=7)) == []
        back = peer.connect()
        assert [message[0] for message in back] == ["connected", "pong", "synced", "sync"]
        assert results(back) == [(f"{WALL + 1} u:c:t 0", "processed")]

    def test_thrown_away_when_it_is_not(self) -> None:
        peer = Peer(Rules(authenticate=lambda login: False))
        peer.say(*sync((1, ADD)))
        assert peer.connect() == [["error", "wrong-credentials"]]

    @pytest.mark.parametrize("message", [["ping", 0], ["headers", {"x": "y" * 50}], ["error", "x"]])
    def test_bounded(self, message: list[Any]) -> None:
        peer = Peer(Rules(max_early=1000))
        said = 0
        while not peer.node.closed:
            peer.say(*message)
            said += len(compact(message))
        assert 1000 < said <= 1000 + len(compact(message))
        assert peer.connect() == []

    def test_no_end_of_waiting(self) -> None:
        peer = Peer(Rules(timeout=2, ping=1))
        assert peer.wait(1.99) == []
        assert not peer.node.closed
        peer.wait(0.01)
        assert peer.node.closed == "timeout"


NODES = st.sampled_from(["u:c:t", "u:c:x", "u:z:t", "q"])


class TestSync:
    def test_ids_in_all_forms(self) -> None:
        peer = connected()
        back = peer.say(*sync((5, ADD), ([5, 1], ADD), ([6, "u:c:other", 2], ADD), (-1.5, ADD), added=9))
        assert back[0] == ["synced", 9]
        assert results(back) == [
            (f"{WALL + 5} u:c:t 0", "processed"),
            (f"{WALL + 5} u:c:t 1", "processed"),
            (f"{WALL + 6} u:c:other 2", "processed"),
            (f"{WALL - 1.5} u:c:t 0", "processed"),
        ]

    def test_ids_of_our_own_rise_when_the_clock_does_not(self) -> None:
        peer = connected(Rules(subprotocol=2))
        metas = [m[3] for m in peer.say(*sync((1, ADD), (2, ADD)))[1:]]
        assert metas == [
            {"id": 0, "time": 0, "subprotocol": 2},
            {"id": [0, 1], "time": 0, "subprotocol": 2},
        ]
        peer.now -= 10
        assert peer.say(*sync((3, ADD)))[1][3]["id"] == [0, 2]

    def test_node_id_with_anything_in_it(self) -> None:
        node_id = 'u:"\\é\ud800:t'
        back = connected(node_id=node_id).say(*sync((1, ADD)))
        assert results(back) == [(f"{WALL + 1} {node_id} 0", "processed")]

    def test_denied_alone(self) -> None:
        peer = connected()
        foreign = {**ADD, "n": "foreign"}
        back = peer.say(
            "sync", 3, foreign, {"id": [1, "u:zz:t", 0], "time": 1},
            {**ADD, "n": 2}, {"id": 2, "time": 2, "reasons": ["x"]},
            ADD, {"id": 3, "time": 3, "subprotocol": 7},
        )  # fmt: skip
        assert [reason for _, reason in results(back)] == ["denied", "denied", "processed"]
        assert back[1][2]["action"] == foreign
        assert list(back[1][2]) == ["action", "id", "reason", "type"]

    def test_what_is_kept_of_an_id_has_bounds(self) -> None:
        peer = connected(Rules(keep_log=True))
        tabs = ["t" * 1000, "t" * 1100]
        for tab in tabs:
            peer.say(*sync(([1, f"u:c:{tab}", 1], ADD)))
        assert [peer.server.keeps(f"{WALL + 1} u:c:{tab} 1") for tab in tabs] == [True, False]

    @pytest.mark.parametrize("reason", ["denied", "unknownType", "wrongChannel", "error"])
    def test_undone_takes_the_rest_of_its_sync_with_it(self, reason: str) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            if action["n"] == 2 and reason == "error":
                raise RuntimeError("boom")
            return reason if action["n"] == 2 else ""

        peer = connected(Rules(judge=judge))
        back = peer.say(*sync(*((n, {"type": "log/add", "n": n}) for n in range(1, 5))))
        assert [r for _, r in results(back)] == ["processed", reason, "error", "error"]
        assert [r for _, r in results(peer.say(*sync((9, ADD))))] == ["processed"]

    def test_judge_sees_absolute_meta(self) -> None:
        seen: list[Any] = []
        peer = Peer(Rules(judge=lambda action, meta: seen.append((action, meta)) or ""))
        peer.connect(subprotocol=4)
        peer.say("sync", 1, ADD, {"id": 5, "time": 6}, ADD, {"id": 7, "time": 8, "subprotocol": 9})
        assert [meta for _, meta in seen] == [
            {"subprotocol": 4, "id": f"{WALL + 5} u:c:t 0", "time": WALL + 6},
            {"subprotocol": 9, "id": f"{WALL + 7} u:c:t 0", "time": WALL + 8},
        ]

    def test_types(self) -> None:
        peer = connected(Rules(types=["log/add"]))
        assert [r for _, r in results(peer.say(*sync((1, ADD), (2, {"type": "x"}))))] == [
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
    def test_types_of_the_server_itself(self, action: dict[str, Any], result: str) -> None:
        assert [r for _, r in results(connected().say(*sync((1, action))))] == [result]

    def test_duplicates(self) -> None:
        peer = connected()
        assert len(results(peer.say(*sync((1, ADD), (1, ADD), ([1, "u:c:t", 0], ADD))))) == 1
        assert len(results(peer.say(*sync((1, ADD))))) == 1, "nothing is kept: done a second time"

    def test_duplicates_of_what_is_kept(self) -> None:
        server = Server(Rules(keep_log=True))
        peer = connected(server)
        assert peer.say(*sync((1, ADD)))[1][1] == 1
        assert peer.say(*sync((1, ADD), added=2)) == [["synced", 2]]
        later = connected(server, "u:c:t2")
        assert results(later.say(*sync(([1, "u:c:t", 0], ADD), (2, ADD)))) == [
            (f"{WALL + 2} u:c:t2 0", "processed")
        ]
        assert later.say("ping", 0) == [["pong", 2]]

    def test_added_is_the_last_that_was_synced(self) -> None:
        peer = connected()
        peer.say("synced", 12)
        peer.say("synced", 5)
        assert peer.say(*sync((1, ADD)))[1][:2] == ["sync", 12]

    def test_own_actions(self) -> None:
        peer = connected()
        message = json.loads(peer.node.add({"type": "x", "a": "é"}, peer.now, peer.wall))
        assert message == ["sync", 0, {"type": "x", "a": "é"}, {"id": 0, "time": 0, "subprotocol": 1}]
        assert peer.node.unanswered == 1
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
    def test_one_word_for_each_id(self, entries: list[Any]) -> None:
        """Against the plain rule, word for word."""
        peer = connected(Rules(types=["good"]))
        back = peer.say(*sync(*((relative, {"type": kind}) for relative, kind in entries)))
        want, seen, undone = [], set(), False
        for relative, kind in entries:
            action_id = oracle.absolute_id(relative, WALL, "u:c:t")
            if action_id in seen:
                continue
            if not action_id.split(" ")[1].startswith("u:c:"):
                want.append((action_id, "denied"))
                continue
            seen.add(action_id)
            fate = "error" if undone else "processed" if kind == "good" else "unknownType"
            undone = undone or fate != "processed"
            want.append((action_id, fate))
        assert results(back) == want
        assert peer.node.unanswered == len(want)


class TestTime:
    def test_ping_when_nothing_happens(self) -> None:
        peer = connected(Rules(ping=5, timeout=20))
        assert peer.wait(4.9) == []
        peer.say("ping", 0)
        assert peer.wait(4.9) == []
        assert peer.wait(0.1) == [["ping", 0]]
        assert peer.say("pong", 0) == []
        assert peer.wait(5) == [["ping", 0]]

    def test_one_ping_until_something_comes(self) -> None:
        peer = connected(Rules(ping=1, timeout=10))
        assert peer.wait(9) == [["ping", 0]]
        assert peer.wait(2) == []
        assert peer.node.closed == "timeout"

    def test_answers_end_the_oldest(self) -> None:
        peer = connected(Rules(ping=0, timeout=10))
        peer.say(*sync((1, ADD), (2, ADD)))
        peer.wait(5)
        peer.say(*sync((3, ADD)))
        assert peer.node.unanswered == 3
        peer.wait(4)
        peer.say("synced", 0)
        peer.say("synced", 0)
        peer.wait(5.9)
        assert not peer.node.closed
        peer.wait(0.1)
        assert peer.node.closed == "timeout"

    def test_answers_that_nobody_waits_for(self) -> None:
        peer = connected()
        for _ in range(3):
            assert peer.say("synced", 1) == []
            assert peer.say("pong", 1) == []
        assert peer.node.unanswered == 0

    def test_endless_pings_keep_nothing_alive_that_is_owed(self) -> None:
        peer = connected(Rules(ping=1, timeout=3))
        peer.say(*sync((1, ADD)))
        while not peer.node.closed and peer.now < 110:
            peer.say("ping", 0)
            peer.wait(0.5)
        assert peer.node.closed == "timeout"

    def test_a_rule_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="ping"):
            Server(Rules(timeout=0))
        with pytest.raises(ConfigError, match="node_id"):
            Server(Rules(node_id="a b"))
        peer = connected(Rules(timeout=0, ping=0))
        peer.say(*sync((1, ADD)))
        assert peer.node.next_timeout() is None


class TestSharing:
    def test_zombie(self) -> None:
        server = Server()
        first, other = connected(server), connected(server, "u:other:t")
        second = connected(server, "u:c:t2")
        assert first.node.closed and not other.node.closed and not second.node.closed
        first.node.connection_lost()
        assert server.clients["u:c"] is second.node
        second.node.connection_lost()
        assert set(server.clients) == {"u:other"}

    def test_brute_force(self) -> None:
        server = Server(Rules(authenticate=lambda login: login.token == "good"))

        def attempt(token: str, seconds: float, address: str = "a") -> bool:
            peer = Peer(server, address)
            peer.wait(seconds)
            return peer.connect(token=token)[0][0] == "connected"

        assert [attempt("bad", s) for s in (0, 0.5, 1.0)] == [False] * 3
        assert not attempt("good", 2.9), "the fourth within 3 s"
        assert attempt("good", 2.9, address="b")
        # That one counted too: three of the last 3 s are left at 3.4.
        assert not attempt("good", 3.4)
        assert attempt("good", 6.5)

    def test_addresses_are_bounded(self) -> None:
        server = Server(Rules(authenticate=lambda login: False))
        for n in range(10_050):
            Peer(server, f"a{n}").connect()
        assert len(server._bad) <= 10_000


class TestDevelopment:
    def test_says_so_first(self) -> None:
        rules = Rules(development=True, headers={"a": 1})
        assert Peer(rules).connect()[0] == ["headers", {"a": 1, "env": "development"}]

    def test_what_went_wrong(self) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            if action["type"] == "throw":
                raise RuntimeError("boom")
            return str(action["type"])

        peer = connected(Rules(development=True, judge=judge))
        (unknown, synced, _) = peer.say(*sync((1, {"type": "unknownType"})))
        assert (unknown, synced) == (
            ["debug", "error", "Action with unknown type unknownType"],
            ["synced", 1],
        )
        assert [m[0] for m in peer.say(*sync((2, {"type": "throw"})))] == ["synced", "debug", "sync"]
        heard = peer.say("sync", 1, ADD, {"id": [3, "u:zz:t", 0], "time": 1})
        assert [m[0] for m in heard] == ["synced", "sync"], "what belongs to another is not told to this one"


class TestRefused:
    @pytest.mark.parametrize("raw", [b"", b"null", b"[1]", b'["ping"]', b"\xff", b"[" * 100_000])
    def test_the_real_server_closes(self, raw: bytes) -> None:
        peer = connected()
        (heard,) = peer.hear(raw=raw or b" ")
        assert heard.message is None and heard.reason
        assert json.loads(heard.answers[0])[:2] == ["error", "wrong-format"]
        assert peer.node.closed

    def test_unknown(self) -> None:
        peer = connected()
        assert peer.say("ready", 0) == [["error", "unknown-message", "ready"]]
        assert peer.node.closed

    def test_what_the_other_end_says_of_us_closes_nothing(self) -> None:
        peer = connected()
        assert peer.say("error", "wrong-format", "x") == []
        assert peer.say("debug", "error", "x") == []
        assert not peer.node.closed


class TestStrictSpec:
    RULES = Rules(strict_spec=True, subprotocol="1.2.0", minimum="1.2.0", timeout=5, ping=0)

    def test_missed_auth(self) -> None:
        peer = Peer(self.RULES)
        assert peer.say("ping", 0) == [["error", "missed-auth", '["ping",0]']]
        assert peer.say(*sync((1, ADD)))[0][1] == "missed-auth"
        assert peer.say("error", "x") == []
        assert peer.connect(subprotocol="1.10.0")[0][0] == "connected"
        assert peer.say("ping", 0) == [["pong", 0]]

    def test_no_message_ends_nothing(self) -> None:
        peer = Peer(self.RULES)
        peer.connect(subprotocol="1.2.0")
        assert peer.say("ready", 0) == [["error", "wrong-format", '["ready",0]']]
        assert peer.say("duilian", "x") == [["error", "wrong-format", '["duilian","x"]']]
        assert peer.say(raw=b"{") == [["error", "wrong-format", "{"]]
        assert peer.say("ping", 0) == [["pong", 0]]

    def test_subprotocol_in_semver(self) -> None:
        assert Peer(self.RULES).connect(subprotocol="1.2.0-rc.1") == [
            ["error", "wrong-subprotocol", {"supported": "1.2.0", "used": "1.2.0-rc.1"}]
        ]

    def test_timeout_is_said(self) -> None:
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
def test_whatever_comes(steps: list[bytes | float], strict: bool, development: bool) -> None:
    """No exception; what goes out is messages of ours; what is closed says nothing."""
    rules = Rules(types=["log/add"], strict_spec=strict, development=development, keep_log=strict)
    peer = Peer(rules)
    for step in steps:
        was_closed, was_open = bool(peer.node.closed), peer.node.open
        if isinstance(step, float):
            back = peer.wait(step)
        else:
            back = peer.say(raw=step or b" ")
        assert not (was_closed and back)
        for message in back:
            if message[0] == "duilian":
                continue
            parse(compact(message))
            if not was_open and message[0] not in ("headers", "error"):
                assert peer.node.open
    assert peer.node.unanswered >= 0
