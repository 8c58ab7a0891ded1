"""logux.json, the server's side: what ours answers to the recorded clients is what the real server did.

Without a socket; the clock is the recorded one. Masked: the ids and times of what the server itself makes
(they are its clock), the number under which it counts what it has kept (it had a history), stack traces.
``js-*`` were recorded against a stub: what @logux/client sends must be accepted.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from logclient.protocols.logux_messages import compact
from logclient.protocols.logux_node import Login, Rules, Server, ServerNode
from tests import shared

KEPT = (
    "duplicate-id-kept-log",
    "queue-jam-after-duplicate-1",
    "queue-jam-after-duplicate-2-reconnect",
)
#: name -> why ours differs, and is safer
DELIBERATE = dict.fromkeys(
    KEPT, "an id that was kept comes again: the real server stops to work off the client's queue, for good"
)
SKIPPED = {"http-upgrade": "nothing of Logux in it: test_logux_collector.py does it over a socket"}

RULES: dict[str, dict[str, Any]] = {
    "server-ping+timeout": {"ping": 0.5, "timeout": 0.8, "minimum": 3},
    "never-connect-timeout": {"ping": 0.5, "timeout": 0.8},
    "wrong-subprotocol-semver": {"ping": 0.5, "timeout": 0.8, "minimum": 3},
    "client-never-answers-synced": {"ping": 0, "timeout": 0.8},
    "client-answers-synced": {"ping": 0, "timeout": 0.8},
    "development-mode": {"development": True},
    **{name: {"keep_log": True} for name in KEPT},
}
SLACK = 0.03  # seconds that a recorded timer may be late


@functools.cache
def load() -> list[dict[str, Any]]:
    return json.loads(shared.shared_path("vectors/logux.json").read_text())


def cases() -> list[Any]:
    """The cases as parameters, or one that skips (or fails) when the file is not there."""
    try:
        found = load()
    except (Exception, pytest.skip.Exception, pytest.fail.Exception):
        return [pytest.param(0, id="missing")]
    return [pytest.param(i, id=case["name"]) for i, case in enumerate(found)]


def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
    """The recorded server's two types of action."""
    if action["type"] == "log/throw":
        raise RuntimeError("boom")
    if action["type"] != "log/add":
        return "unknownType"
    return "denied" if action.get("deny") else ""


def authenticate(login: Login) -> bool:
    return bool(login.token == "secret")


def kind(step: dict[str, Any]) -> Any:
    """The type of its message, if it has one."""
    message = step.get("msg")
    return message[0] if isinstance(message, list) and message else None


def recorded(steps: list[dict[str, Any]]) -> list[Any]:
    return [step["msg"] for step in steps if step["dir"] == "S" and "msg" in step]


def server_for(case: dict[str, Any]) -> Server:
    options = [m[4] for m in recorded(case["steps"]) if m[0] == "connected" and len(m) == 5]
    rules: dict[str, Any] = {"subprotocol": options[0]["subprotocol"] if options else 1, "minimum": 1}
    rules.update(RULES.get(case["name"], {}))
    if case["name"] == "js-no-token":
        rules["authenticate"] = None
    return Server(Rules(**{"node_id": "server:gold", "authenticate": authenticate, "judge": judge, **rules}))


class Play:
    """The frames of a recorded client, one connection, against a node of ours."""

    def __init__(self, server: Server, steps: list[dict[str, Any]]) -> None:
        self.start = next((s["t"] for s in steps if s.get("t", 0) > 1e12), 0)  # js-*: since 1970
        # The recorded clock, at the moment from which ids are counted.
        ends = [message[3][1] for message in recorded(steps) if message[0] == "connected"]
        asked = [s["t"] for s in steps if s["dir"] == "C" and kind(s) == "connect"]
        self.zero = ends[0] - (asked[0] - self.start) if ends and asked else 1_795_155_000_000
        self.now = 0.0
        self.said: list[Any] = []
        self.closed = ""
        self.node = ServerNode(server, "10.0.0.1", 0.0)
        for step in steps:
            self.until(max(self.now, ((step.get("t") or self.start) - self.start) / 1000))
            if step["dir"] == "C" and "msg" in step and not self.closed:
                self.hear(raw_of(step["msg"]))
            elif step.get("event") == "close" and not self.closed:
                self.until(self.now + SLACK)
        self.node.connection_lost()

    @property
    def wall(self) -> int:
        return round(self.zero + self.now * 1000)

    def until(self, now: float) -> None:
        while (due := self.node.next_timeout()) is not None and due <= now + 1e-9:
            self.now = due
            self.said += map(json.loads, self.node.handle_timeout(due))
        self.now = now
        self.closed = self.closed or self.node.closed

    def hear(self, raw: bytes) -> None:
        for heard in self.node.receive(raw, self.now, self.wall):
            self.said += map(json.loads, heard.answers)
            for outcome in heard.outcomes:
                self.said += map(json.loads, outcome)
            self.node.sent(len(heard.outcomes), self.now)
        self.closed = self.node.closed


def raw_of(message: Any) -> bytes:
    if isinstance(message, dict):
        return str(message["binary"]).encode()
    if message == "<sync with 2,000,000-char string>":
        message = ["sync", 1, {"type": "log/add", "s": "x" * 2_000_000}, {"id": 1, "time": 1}]
    return message.encode() if isinstance(message, str) else compact(message)


def masked(message: list[Any]) -> list[Any]:
    kind = message[0]
    if kind == "connected":
        return [*message[:3], [message[3][1]] * 2, *message[4:]]
    if kind in ("ping", "pong"):
        return [kind, "added"]
    if kind == "sync":
        meta = {name: "own" if name in ("id", "time") else value for name, value in message[3].items()}
        return [kind, "added", message[2], meta]
    if kind == "debug" and "\n" in message[2]:
        return [kind, message[1], message[2].partition("\n")[0].partition(": ")[2]]
    if kind == "debug" and message[2].startswith("RuntimeError: "):
        return [kind, message[1], message[2].partition(": ")[2]]
    return message


def texts(messages: list[Any]) -> list[str]:
    """As texts, in which the order of keys counts."""
    return [compact(masked(message)).decode() for message in messages]


def bad_logins(server: Server, times: int) -> None:
    for _ in range(times):
        node = ServerNode(server, "10.0.0.1", 0.0)
        node.receive(b'["connect",5,"u17:b:t",0,{"token":"bad","subprotocol":1}]', 0.0, 0)
        assert node.closed == "wrong-credentials"


def before(case: dict[str, Any], server: Server) -> None:
    """What the recorded server had seen in the case before this one."""
    if case["name"].startswith("bruteforce-") and case["name"] != "bruteforce-1":
        bad_logins(server, 3)
    if case["name"] == "queue-jam-after-duplicate-2-reconnect":
        Play(server, next(c for c in load() if c["name"] == "queue-jam-after-duplicate-1")["steps"])


def connections(steps: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The steps of a js-* case, connection by connection."""
    found: list[list[dict[str, Any]]] = []
    for step in steps:
        if step.get("event") == "upgrade":
            found.append([])
        else:
            found[-1].append(step)
    yield from found


def played(case: dict[str, Any]) -> str:
    """``passed``, or what is different."""
    server = server_for(case)
    before(case, server)
    steps = case["steps"]
    if case["name"].startswith("js-"):
        for some in connections(steps):
            play = Play(server, some)
            if play.closed or any(message[0] == "error" for message in play.said):
                return f"{play.closed}: {play.said}"
            syncs = [s["msg"] for s in some if s["dir"] == "C" and kind(s) == "sync"]
            answers = [m[1] for m in play.said if m[0] == "synced"]
            done = [m[2] for m in play.said if m[0] == "sync"]
            if answers != [m[1] for m in syncs] or len(done) != sum(len(m) // 2 - 1 for m in syncs):
                return f"{syncs}: {play.said}"
            if any(action["type"] != "logux/processed" for action in done):
                return str(done)
        return "passed"
    play = Play(server, steps)
    want = texts(recorded(steps))
    if case["name"] == "processed-lost-on-drop":  # the client was gone before it could be told
        want += texts(play.said[1:])
    if texts(play.said) != want:
        return "\n".join(["ours:", *texts(play.said), "theirs:", *want])
    if bool(play.closed) != any(step.get("event") == "close" for step in steps):
        return f"closed: {play.closed!r}"
    return "passed"


@pytest.mark.parametrize("index", cases())
def test_case(index: int) -> None:
    case = load()[index]
    if case["name"] in SKIPPED:
        pytest.skip(SKIPPED[case["name"]])
    outcome = played(case)
    if case["name"] in DELIBERATE:
        assert outcome != "passed", "it is no difference any more: take it from the list"
    else:
        assert outcome == "passed", outcome


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    found = load()
    passed = sum(played(case) == "passed" for case in found if case["name"] not in SKIPPED)
    with capsys.disabled():
        print(
            f"\nvectors logux.json, server: {passed} passed, {len(DELIBERATE)} deliberate, "
            f"{len(SKIPPED)} skipped"
        )
    assert passed + len(DELIBERATE) + len(SKIPPED) == len(found)
    assert len(DELIBERATE) <= 0.05 * len(found)
    assert len(SKIPPED) <= 0.05 * len(found)


# --- that the differences are safer ------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DELIBERATE))
def test_a_duplicate_jams_nothing(name: str) -> None:
    """What the client sends after it is processed, once each; it is ignored itself, as the text has it."""
    case = next(one for one in load() if one["name"] == name)
    server = server_for(case)
    before(case, server)
    play = Play(server, case["steps"])
    sent = [
        action["n"]
        for step in case["steps"]
        if step["dir"] == "C" and kind(step) == "sync"
        for action in step["msg"][2::2]
    ]
    done = [message[2]["id"] for message in play.said if message[0] == "sync"]
    assert len(done) == len(set(done)) == len(set(sent))
    assert play.closed == ""
    theirs = [message for message in recorded(case["steps"]) if message[0] == "sync"]
    assert len(theirs) < len(done), "the recorded server did not jam"


@pytest.mark.parametrize(
    "frame",
    [
        b'["connect",5,"u:c:t",0,null]',
        b'["headers",null]',
        b'["sync",1,null,{"id":1,"time":1}]',
        b'["sync",1,{"type":"log/add"},null]',
    ],
)
def test_null_ends_one_connection_only(frame: bytes) -> None:
    """The real server's process ends. These transcripts are kept apart from the others."""
    server = Server(Rules())
    other = ServerNode(server, "10.0.0.2", 0.0)
    other.receive(b'["connect",5,"u:other:t",0]', 0.0, 0)
    node = ServerNode(server, "10.0.0.1", 0.0)
    if not frame.startswith(b'["connect"'):
        node.receive(b'["connect",5,"u:c:t",0]', 0.0, 0)
    (heard,) = node.receive(frame, 0.0, 0)
    assert json.loads(heard.answers[0])[:2] == ["error", "wrong-format"]
    assert node.closed
    (heard,) = other.receive(b'["ping",0]', 0.0, 0)
    assert heard.answers == [b'["pong",0]']
