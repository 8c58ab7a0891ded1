"""Recorded Logux, the client's side: the recorded servers' frames against our client.

Where a recorded client sent what ours can send, ours must send the same (ids are compared as absolute ones).
Messages that ours cannot send are counted apart. Each frame of the server must have its recorded meaning:
connected, refused and for how long, answered, acknowledged, failed and why.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any

import pytest

from logclient._ext.constants import R_CLOSED
from logclient.codec import Connection, Event, Settled
from logclient.delivery.contract import Fatal, Inbound, Reply
from logclient.errors import CredentialError
from logclient.logux.core import DebugText, Logux, Opened
from logclient.logux.messages import Headers
from tests.support import recordings
from tests.support.configs import logux_config
from tests.support.connections import split

pytestmark = pytest.mark.unit

PRODUCER = bytes(10)
WHOLE_TIMED = 0x21  # raw bytes: an action behind its time and subprotocol

UNDONE = {"denied": "denied", "unknownType": "unknown_type", "error": "error"}


RECORDED = recordings.cases(recordings.LOGUX)
CASES = [case for case in RECORDED if not recordings.is_upgrade(case)]


class Player:
    """Our client in the place of the recorded one."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refused = False
        self.headers: dict[str, Any] = {}
        self.now = 100.0
        self.make({})

    def make(self, options: dict[str, Any]) -> None:
        subprotocol, self.token = options.get("subprotocol", 0), options.get("token")
        self.core = Logux(
            logux_config(
                token=options.get("token"), subprotocol=subprotocol, strict_spec=isinstance(subprotocol, str),
                identity="none", on_doubt="same", inflight=64,
            ),
            PRODUCER,
        )  # fmt: skip
        self.connection = Connection(self.core)
        self.set_clock(0.0)
        self.base = 0
        self.names: dict[str, int] = {}  # the recorded ids, as sequences
        self.own: dict[int, str] = {}  # the ids that ours gave
        self.last = 0

    def set_clock(self, ms: float) -> None:
        """Set the wall clock of now, in ms since 1970."""
        self.connection.epoch = ms / 1000 - self.now

    def sent(self) -> list[Any]:
        """Return the messages that wait, without asking for more."""
        assert self.connection.codec.answers() == 0
        return [json.loads(text) for text in split(self.connection.codec.take_bytes())]

    def lose(self) -> None:
        """End the connection; what was in flight is not sent again."""
        self.connection.lost()
        self.connection.in_flight.fail(R_CLOSED)
        self.connection.events()

    # -- what the recorded client did

    def client(self, step: dict[str, Any]) -> None:
        if "event" in step:
            if step["event"] in ("client-close", "close", "tcp-abort") and self.core.state != "disconnected":
                self.lose()
            return
        message = step["msg"]
        kind = message[0] if isinstance(message, list) and message and isinstance(message[0], str) else ""
        play = getattr(self, f"say_{kind}", None)
        if play is None or not play(message):
            self.counts["has no way to send"] += 1
        else:
            self.counts["sends the same"] += 1

    def say_headers(self, message: list[Any]) -> bool:
        if type(message[1]) is not dict:
            with pytest.raises(ValueError, match="headers"):
                self.core.post_command("headers", message[1], 1)
            return False
        self.core.post_command("headers", message[1], 1)
        self.headers = message[1]
        if self.core.state not in ("disconnected", "connecting"):
            self.core.regulate(self.now)
            assert self.sent() == [message]
        return True

    def say_connect(self, message: list[Any]) -> bool:
        _, protocol, node, received, *rest = message
        options = rest[0] if rest else {}
        if self.core.state != "disconnected":
            return False  # twice on one connection
        makeable = (
            protocol == 5 and isinstance(options, dict) and isinstance(options.get("token", ""), str)
            and options.get("subprotocol", 1) != 0
            and (type(options.get("subprotocol", 0)) is int or str(options["subprotocol"]).count(".") == 2)
        )  # fmt: skip
        headers = self.headers
        if not (self.core.node_id == node and self.token == options.get("token")):
            self.make(options if makeable else {})
            if headers:
                self.core.post_command("headers", headers, 1)
            self.core.node_id = node
            self.core._last_received = received
        self.connection.connected(self.now)
        *before, said = self.sent()
        assert before == ([["headers", headers]] if headers else [])
        assert said == message or not makeable
        return makeable

    def say_ping(self, message: list[Any]) -> bool:
        if self.core.state in ("disconnected", "connecting"):
            return False
        self.core.call("ping")
        ((kind, _),) = self.sent()
        return bool(kind == "ping")

    def say_synced(self, message: list[Any]) -> bool:
        return True  # compared when the sync came

    say_pong = say_synced

    def say_sync(self, message: list[Any]) -> bool:
        if self.core.state not in ("synchronized", "sending") or not isinstance(message, list):
            return False
        actions, metas = message[2::2], message[3::2]
        wanted = []
        for action, meta in zip(actions, metas, strict=False):
            if (
                not isinstance(meta, dict)
                or set(meta) - {"id", "time", "subprotocol"}
                or len(metas) != len(actions)
            ):
                return False
            id = meta.get("id")
            parts = id if isinstance(id, list) else [id]
            shift, counter, node = parts[0], parts[-1] if len(parts) > 1 else 0, self.core.node_id
            if len(parts) == 3:
                node = parts[1]
            if node != self.core.node_id or not all(
                type(n) is int for n in (shift, counter, meta.get("time"))
            ):
                return False
            wanted.append((action, shift, counter, meta["time"], meta.get("subprotocol", -1)))
        first = len(self.names)
        for action, shift, counter, time, subprotocol in wanted:
            if self.base + shift < self.last:
                return False  # ids of ours never go back
            if not self.send_one(action, shift, counter, time, subprotocol):
                assert len(wanted) == 1
                return False
        return len(self.names) > first

    def send_one(self, action: Any, shift: int, counter: int, time: int, subprotocol: int) -> bool:
        """Send one action of a sync by itself, as our client groups actions in its own way."""
        self.set_clock(float(self.base + shift) + 0.5)
        self.connection.codec.sample(self.now, self.now + self.connection.epoch)
        self.last = self.base + shift
        own = round(self.core.codec.to_wall(time))
        body = struct.pack("<qq", own, subprotocol) + json.dumps(action).encode()
        self.undo_suspects()
        before = self.core.codec.added
        self.connection.put(body, WHOLE_TIMED)
        batch = self.connection.in_flight.take(1, 1 << 20)
        assert batch is not None
        if not self.connection.encode(batch, 1, self.now):
            (end,) = self.connection.events()
            assert isinstance(end, Settled) and end.status == "failed"
            return False
        ((kind, added, said, meta),) = self.sent()
        assert (kind, added, said) == ("sync", before + 1, action)
        id = meta["id"] if isinstance(meta["id"], list) else [meta["id"], 0]
        assert (id[0], meta.get("subprotocol", -1)) == (shift, subprotocol)
        assert abs(meta["time"] - time) <= 1  # the wall clock has whole ms here
        # The counter may differ where the recorded one was made by hand.
        seq = len(self.names) + 1
        self.names[f"{self.base + shift} {self.core.node_id} {counter}"] = seq
        self.own[seq] = f"{self.base + id[0]} {self.core.node_id} {id[1]}"
        return True

    def undo_suspects(self) -> None:
        """Let suspects fail: ours sends an action undone with ``error`` once more, the recorded client
        did not."""
        while self.core.codec.suspects:
            self.connection.credit(self.now)  # others would go first, and
            self.connection.credit(self.now)  # there are none
            (meta,) = [message[3] for message in self.sent() if message[0] == "sync"]
            id = meta["id"] if isinstance(meta["id"], list) else [meta["id"], 0]
            name = f"{self.base + id[0]} {self.core.node_id} {id[1]}"
            undo = {"type": "logux/undo", "id": name, "reason": "error"}
            message = ["sync", 0, undo, {"id": 1, "time": 1}]
            events = self.connection.receive(json.dumps(message).encode(), self.now)
            (end,) = [e for e in events if isinstance(e, Settled)]
            assert end.reason == "error"
            self.sent()
            self.connection.credit(self.now)

    # -- what the recorded server did

    def server(self, step: dict[str, Any]) -> None:
        if "event" in step:
            if step["event"] == "close" and self.core.state != "disconnected":
                self.lose()
            return
        message = step["msg"]
        if message[0] == "synced" and message[1] > self.core.codec.added:
            return  # the answer to a sync that ours does not send
        if self.core.state == "disconnected":
            self.connection.connected(self.now)
            self.sent()
        self.refused = self.refused or self.core.codec.over
        before = self.core.state
        text = step.get("raw") or json.dumps(message)
        ids = []
        if message[0] == "sync":
            # by the ids that ours has
            for action in message[2::2]:
                seq = self.names.get(action.get("id", ""))
                if seq is not None:
                    text = text.replace(action["id"], self.own[seq])
                    ids.append((seq, action))
        self.now += 0.01
        events = [e for e in self.connection.receive(text.encode(), self.now) if not isinstance(e, Reply)]
        kind = message[0]
        if self.refused:
            assert events == []
        elif kind == "connected":
            self.connected(message, before, events)
        elif kind == "error":
            self.error(message, events)
        elif kind == "sync":
            assert self.sent() == [["synced", message[1]]]
            settled = [(e.status, e.reason) for e in events if isinstance(e, Settled)
                       for _ in range(e.first, e.last + 1)]  # fmt: skip
            wanted = []
            for _, action in ids:
                if action["type"] == "logux/processed":
                    wanted.append(("acked", ""))
                elif action["reason"] != "error":
                    wanted.append(("failed", UNDONE.get(action["reason"], "rejected")))
            assert settled == wanted  # an action undone with `error` is tried again
            others = [a for a in message[2::2] if not a["type"].startswith("logux/")]
            assert [e.payload.action for e in events if isinstance(e, Inbound) and is_action(e)][
                : len(others)
            ] == others
        elif kind == "ping":
            ((pong, _),) = self.sent()
            assert pong == "pong" and events == []
        elif kind == "headers":
            assert events == [Inbound(Headers(message[1]))]
        elif kind == "debug":
            assert events == [Inbound(DebugText(message[2]))]
        elif kind in ("synced", "pong"):
            assert events == [] and self.core.state == before
        else:
            assert kind in ("ready", "duilian") and events == []
        self.counts[f"hears {kind}"] += 1

    def connected(self, message: list[Any], before: str, events: list[Event]) -> None:
        if before != "connecting":
            assert isinstance(events[0], Fatal)
            return
        assert events == [Inbound(Opened(message[2]))] and self.core.state == "synchronized"
        self.base = message[3][1]
        # Without travel time, times equal those of the recorded client.
        self.core.codec.connected(json.dumps(self.core.node_id)[1:-1].encode(), self.base, self.now, 0.0)

    def error(self, message: list[Any], events: list[Event]) -> None:
        kind = message[1]
        if kind == "wrong-format" and self.core.state == "sending":
            assert [type(e).__name__ for e in events] == ["Inbound", "CloseWanted"]
            return
        (fatal,) = events
        assert isinstance(fatal, Fatal) and kind in str(fatal.error)
        assert fatal.forever is (kind in ("wrong-protocol", "wrong-subprotocol"))
        assert isinstance(fatal.error, CredentialError) is (kind == "wrong-credentials")


def is_action(event: Inbound) -> bool:
    return hasattr(event.payload, "action")


def play(case: dict[str, Any]) -> Counter[str]:
    player = Player()
    for step in case["steps"]:
        (player.client if step["dir"] == "C" else player.server)(step)
    return player.counts


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_client_sends_and_understands_as_recorded(case: dict[str, Any]) -> None:
    play(case)


MESSAGES = ["connected", "debug", "error", "headers", "ping", "pong", "sync", "synced"]
KINDS: recordings.Kinds = {
    name: lambda case, name=name: play(case)[name]
    for name in ["sends the same", "has no way to send", *(f"hears {message}" for message in MESSAGES)]
}


def test_recordings_cover_every_kind_of_message(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for case in CASES:
        counts += play(case)
    recordings.assert_replayed("Logux, client", CASES, CASES, KINDS)
    with capsys.disabled():
        print()
        print(recordings.summary("Logux, client", CASES, CASES, KINDS))
        print("of them", ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
    assert counts["sends the same"] > 0 or not CASES
