"""Recorded Logux, the server's side: ours answers the recorded clients as the real server did.

Without a socket; the clock is the recorded one. Not compared are ids and times that the server makes by its
clock, the numbers of kept actions (the real server had a history), and stack traces. Whatever @logux/client
sent to a stub of a server must be accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logclient.logux.messages import compact
from logclient.testing.logux_node import Login, Rules, Server, ServerNode
from tests.support import recordings

pytestmark = pytest.mark.unit

SLACK = 0.03  # seconds that a recorded timer may be late


def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
    """Judge as the recorded server does its two types of action."""
    if action["type"] == "log/throw":
        raise RuntimeError("boom")
    if action["type"] != "log/add":
        return "unknownType"
    return "denied" if action.get("deny") else ""


TOKEN = "secret"


def authenticate(login: Login) -> bool:
    return bool(login.token == TOKEN)


def kind(step: dict[str, Any]) -> Any:
    """Return the type of the message of a step, if it has one."""
    message = step.get("msg")
    return message[0] if isinstance(message, list) and message else None


def recorded(steps: list[dict[str, Any]]) -> list[Any]:
    return [step["msg"] for step in steps if step["dir"] == "S" and "msg" in step]


def is_of_a_client(case: dict[str, Any]) -> bool:
    """Return whether @logux/client was recorded with a stub of a server."""
    return any(step.get("event") == "upgrade" for step in case["steps"])


def closed_by_server(case: dict[str, Any]) -> bool:
    return any(step.get("event") == "close" for step in case["steps"])


def logins(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options with which the client connected."""
    found = [step["msg"] for step in case["steps"] if step["dir"] == "C" and kind(step) == "connect"]
    return [message[4] for message in found if len(message) > 4 and isinstance(message[4], dict)]


def client_of(case: dict[str, Any]) -> str:
    """Return user and client of the node that connects, without its tab."""
    node = next(step["msg"][2] for step in case["steps"] if kind(step) == "connect")
    return str(node).rpartition(":")[0]


def is_jammed(case: dict[str, Any]) -> bool:
    """Return whether the real server met a kept id again and stopped working off the queue.

    It then sent ``synced`` for more actions than outcomes, on a connection that held. Ours goes on, which is
    safer.
    """
    if is_of_a_client(case) or any(step.get("event") == "tcp-abort" for step in case["steps"]):
        return False
    syncs = [step["msg"] for step in case["steps"] if step["dir"] == "C" and kind(step) == "sync"]
    synced = {message[1] for message in recorded(case["steps"]) if message[0] == "synced"}
    taken = sum(len(message[2::2]) for message in syncs if message[1] in synced)
    return taken > sum(len(message[2::2]) for message in recorded(case["steps"]) if message[0] == "sync")


def is_locked_out(case: dict[str, Any]) -> bool:
    """Return whether the right token was refused because this address had sent wrong ones."""
    refused = any(message[:2] == ["error", "wrong-credentials"] for message in recorded(case["steps"]))
    if is_of_a_client(case) or not refused or client_of(case).startswith("server:"):
        return False
    return any(login.get("token") == TOKEN for login in logins(case))


def server_for(case: dict[str, Any]) -> Server:
    """Make a server with the options that the recorded one shows."""
    said = recorded(case["steps"])
    answers = [m[4]["subprotocol"] for m in said if m[0] == "connected" and len(m) == 5]
    least = [m[2]["supported"] for m in said if m[:2] == ["error", "wrong-subprotocol"]]
    let_in = [m for m in said if m[0] == "connected"]
    rules: dict[str, Any] = {
        "subprotocol": answers[0] if answers else 1,
        "minimum": least[0] if least else 1,
        "development": ["headers", {"env": "development"}] in said,
        "keep_log": is_jammed(case),
        **timers(case),
    }
    if let_in and not any("token" in login for login in logins(case)):
        rules["authenticate"] = None
    return Server(Rules(**{"node_id": "server:gold", "authenticate": authenticate, "judge": judge, **rules}))


def timers(case: dict[str, Any]) -> dict[str, float]:
    """Return ``ping`` and ``timeout`` in seconds, where the recorded server's expired."""
    found: dict[str, float] = {}
    last = 0
    for step in case["steps"]:
        if is_of_a_client(case) or "t" not in step:
            break
        waited = round((step["t"] - last) / 1000, 1)
        if step["dir"] == "S" and kind(step) == "ping":
            found["ping"] = waited
        elif step.get("event") == "close" and waited:
            found["timeout"] = waited
        last = step["t"]
    return found


class Replay:
    """Plays the frames of one recorded connection against a node of ours."""

    def __init__(self, server: Server, steps: list[dict[str, Any]]) -> None:
        self.start = next((s["t"] for s in steps if s.get("t", 0) > 1e12), 0)  # recorded since 1970
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
        for received in self.node.receive(raw, self.now, self.wall):
            self.said += map(json.loads, received.answers)
            for outcome in received.outcomes:
                self.said += map(json.loads, outcome)
            self.node.sent(len(received.outcomes), self.now)
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
    """Return messages as texts, so that the order of keys counts."""
    return [compact(masked(message)).decode() for message in messages]


def bad_logins(server: Server, times: int) -> None:
    for _ in range(times):
        node = ServerNode(server, "10.0.0.1", 0.0)
        node.receive(b'["connect",5,"u17:b:t",0,{"token":"bad","subprotocol":1}]', 0.0, 0)
        assert node.closed == "wrong-credentials"


def prepare(case: dict[str, Any], server: Server) -> None:
    """Let the server see what the recorded one had seen before this case."""
    if is_locked_out(case):
        bad_logins(server, 3)
    if is_jammed(case):
        for earlier in CASES[: CASES.index(case)]:
            if is_jammed(earlier) and client_of(earlier) == client_of(case):
                Replay(server, earlier["steps"])


def connections(steps: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps of a recorded client, connection by connection."""
    found: list[list[dict[str, Any]]] = []
    for step in steps:
        if step.get("event") == "upgrade":
            found.append([])
        else:
            found[-1].append(step)
    yield from found


def replay_case(case: dict[str, Any]) -> str:
    """Return ``passed``, or the difference."""
    server = server_for(case)
    prepare(case, server)
    steps = case["steps"]
    if is_of_a_client(case):
        for some in connections(steps):
            play = Replay(server, some)
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
    play = Replay(server, steps)
    want = texts(recorded(steps))
    if steps[-1].get("event") == "tcp-abort":  # the client was gone before the answers
        want += texts(play.said[len(want) :])
    if texts(play.said) != want:
        return "\n".join(["ours:", *texts(play.said), "theirs:", *want])
    if bool(play.closed) != closed_by_server(case):
        return f"closed: {play.closed!r}"
    return "passed"


RECORDED = recordings.cases(recordings.LOGUX)
CASES = [case for case in RECORDED if not recordings.is_upgrade(case)]
JAMMED = [case for case in CASES if is_jammed(case)]


def each_case(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


@each_case(CASES)
def test_node_answers_as_the_recorded_server(case: dict[str, Any]) -> None:
    outcome = replay_case(case)
    assert (outcome == "passed") is not is_jammed(case), outcome


def connects_with(name: str, kind: type) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: a client connects with an option of this type."""
    return lambda case: any(isinstance(login.get(name), kind) for login in logins(case))


def sends(*start: Any) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: the server sends a message that begins so."""
    return lambda case: any(message[: len(start)] == [*start] for message in recorded(case["steps"]))


KINDS: recordings.Kinds = {
    "@logux/client": is_of_a_client,
    "an action that is processed": lambda case: "logux/processed" in json.dumps(recorded(case["steps"])),
    "an action that is undone": lambda case: "logux/undo" in json.dumps(recorded(case["steps"])),
    "wrong-credentials": sends("error", "wrong-credentials"),
    "wrong-format": sends("error", "wrong-format"),
    "wrong-protocol": sends("error", "wrong-protocol"),
    "wrong-subprotocol": sends("error", "wrong-subprotocol"),
    "unknown-message": sends("error", "unknown-message"),
    "a subprotocol that is a string": connects_with("subprotocol", str),
    "a server's ping": sends("ping"),
    "a server's timeout": lambda case: "timeout" in timers(case),
    "a development server": sends("headers", {"env": "development"}),
    "an address that is shut out": is_locked_out,
    "a queue that is jammed": is_jammed,
}


def test_recordings_cover_every_kind_of_connection(capsys: pytest.CaptureFixture[str]) -> None:
    passed = sum(replay_case(case) == "passed" for case in CASES)
    recordings.assert_replayed("Logux, server", RECORDED, CASES, KINDS, deliberate=len(JAMMED))
    with capsys.disabled():
        print()
        print(recordings.summary("Logux, server", RECORDED, CASES, KINDS, deliberate=len(JAMMED)))
    assert passed + len(JAMMED) == len(CASES)


# --- deliberate differences, which are safer ---------------------------------------------------


@each_case(JAMMED)
def test_duplicate_is_ignored_and_jams_nothing(case: dict[str, Any]) -> None:
    """Later actions of the client are processed, once each."""
    server = server_for(case)
    prepare(case, server)
    play = Replay(server, case["steps"])
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
def test_null_closes_only_its_connection(frame: bytes) -> None:
    """The real server's process ends over it."""
    server = Server(Rules())
    other = ServerNode(server, "10.0.0.2", 0.0)
    other.receive(b'["connect",5,"u:other:t",0]', 0.0, 0)
    node = ServerNode(server, "10.0.0.1", 0.0)
    if not frame.startswith(b'["connect"'):
        node.receive(b'["connect",5,"u:c:t",0]', 0.0, 0)
    (received,) = node.receive(frame, 0.0, 0)
    assert json.loads(received.answers[0])[:2] == ["error", "wrong-format"]
    assert node.closed
    (received,) = other.receive(b'["ping",0]', 0.0, 0)
    assert received.answers == [b'["pong",0]']
