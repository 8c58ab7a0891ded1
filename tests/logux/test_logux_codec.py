"""The compiled codec of Logux: equal to the one in plain Python, whatever callers and servers do."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient._ext.constants import K_DOCUMENT, K_RAW
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import LinkPump, PumpGroup
from logclient._ext.queue import EventQueue
from logclient.codec import Connection, Event, Settled
from logclient.delivery.contract import Fatal, Inbound, Link
from logclient.logux.core import DebugText, Logux
from logclient.logux.messages import Headers
from tests.oracle.logux_codec import PythonLogux
from tests.support.configs import logux_config
from tests.support.connections import split
from tests.support.examples import examples
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))
NOW, WALL, BASE = 100.0, 1_700_000_000.0, 1_700_000_000_250
WHOLE, TIMED = 0x10, 0x20
EVENTS: tuple[tuple[bytes, int], ...] = (
    (b'{"n":1}', K_RAW), (b'{"n":1}', K_DOCUMENT), (b"{oops}", K_RAW), (b"[]", K_DOCUMENT),
    (b'{"type":"a","x":[1]}', K_RAW | WHOLE), (b'{"type":"a","length":1}', K_RAW | WHOLE),
    (b'{"type":"a","id":"mine"}', K_RAW | WHOLE), (b'{"type":1}', K_RAW | WHOLE),
    (struct.pack("<qq", 1_700_000_000_000, 7) + b'{"type":"a"}', K_RAW | TIMED),
    (struct.pack("<qq", -(2**63), -1) + b'{"type":"a"}', K_RAW | TIMED), (b"short", K_RAW | TIMED),
    (b'{"big":"%b"}' % (b"x" * 700), K_RAW),
)  # fmt: skip


class Side:
    """A connection with its events: one of the two that are compared."""

    def __init__(self, kind: type[Logux], options: dict[str, Any]) -> None:
        self.now = NOW
        self.core = kind(logux_config(**{"token": "t", **options}), PRODUCER)
        self.connection = Connection(self.core, WALL - NOW)
        self.core.set_wall_clock(lambda: self.now + self.connection.epoch)
        self.core.sample_clocks(NOW)

    @property
    def in_flight(self) -> InflightBatches:
        return self.connection.in_flight

    def send(self, events: int, size: int) -> list[Any]:
        """Ask for credit and encode, as a pump does; return what can be seen of it."""
        self.core.sample_clocks(self.now)
        self.core.regulate(self.now)
        granted, most = self.connection.credit(self.now)
        batch = self.in_flight.pending() or self.in_flight.take(events, size)
        if not granted or batch is None:
            return [granted, most]
        n = self.connection.encode(batch, min(granted, events), self.now)
        return [granted, most, n, batch.statuses(), {seq: h for seq, h in batch.hashes().items() if h}]

    def shown(self, events: Iterable[Event]) -> list[Any]:
        """Return events in a form that can be compared."""
        found: list[Any] = []
        for event in events:
            if isinstance(event, Settled):
                found += [(seq, event.status, event.reason) for seq in range(event.first, event.last + 1)]
            elif isinstance(event, Fatal):
                found.append((type(event.error), str(event.error), event.forever))
            else:
                found.append(event)
        return sorted(found, key=repr)

    def seen(self) -> list[Any]:
        """Return everything that can be seen: events, messages to send, state."""
        core, connection = self.core, self.connection
        events = self.shown(connection.events())
        assert connection.codec.answers() == 0
        return [
            events, split(connection.codec.take_bytes()), core.state, connection.deadline(self.now),
            core.received, connection.codec.open, connection.codec.suspects, core.node_id,
            connection.progress, self.in_flight.to_send,
        ]  # fmt: skip


class Pair:
    """Two cores to which the same happens. The random server knows the ids that were sent."""

    def __init__(self, random: Random, options: dict[str, Any]) -> None:
        self.random = random
        self.sides = [Side(Logux, options), Side(PythonLogux, options)]
        self.flying: list[str] = []
        self.added = 0
        self.said: list[bytes] = []
        self.headers = 0

    def compare(self, *results: Any) -> None:
        assert results[0] == results[1]
        one, other = (side.seen() for side in self.sides)
        assert one == other
        for text in one[1]:
            message = json.loads(text)
            if message[0] == "sync":
                self.added = message[1]
                self.flying += [name(meta["id"], self.sides[0].core.node_id) for meta in message[3::2]]

    def do(self, what: str) -> None:
        random, sides = self.random, self.sides
        results: list[Any] = []
        message = self.message(what)
        at_once = [message, self.message("other"), self.message("processed")] if random.random() < 0.2 else []
        arguments = random.randint(1, 9), random.choice([100, 1 << 20]), random.random()
        event = random.choice(EVENTS)
        for side in sides:
            core, connection = side.core, side.connection
            if message is not None and at_once:
                for one in at_once:  # as a compiled pump does, which asks the core later
                    connection.codec.receive(one, side.now)
            elif message is not None:
                results.append(side.shown(connection.receive(message, side.now)))
            elif what == "put":
                for _ in range(arguments[0]):
                    connection.put(*event)
            elif what == "send":
                results.append(side.send(*arguments[:2]))
            elif what == "wait":
                side.now += arguments[2] * 4
            elif what == "clock":
                connection.epoch += 3600.0 * (-1) ** arguments[0]
                core.sample_clocks(side.now)
            elif what == "timeout":
                side.now = max(side.now, connection.deadline(side.now) or 0.0)
                results.append(side.shown(connection.timeout(side.now)))
            elif what == "headers":
                next_seq = side.in_flight.queue.next_seq
                core.post_command("headers", {"n": self.headers}, next_seq, side.in_flight)
            elif what == "ping":
                results.append(core.call("ping"))
            elif what == "lost":
                lost = side.shown(connection.lost())
                connection.connected(side.now)
                answer = json.dumps(["connected", 5, "server:x", [BASE, BASE]]).encode()
                results.append([lost, side.shown(connection.receive(answer, side.now))])
        self.headers = (self.headers + (what == "headers")) % 3
        if what == "lost":
            self.flying.clear()
        self.compare(*results or (0, 0))

    def message(self, what: str) -> bytes | None:
        """Return a message of the server, in one of the forms that JSON allows."""
        random = self.random
        ids = [self.flying.pop(random.choice([0, -1])) for _ in range(min(1, len(self.flying)))]
        meta = random.choice([{"id": 1, "time": 1}, {"id": [1, 2], "time": 3, "subprotocol": 1}])
        if what == "processed":
            entries = [{"id": id, "type": "logux/processed"} for id in ids]
        elif what == "undo":
            reason = random.choice(["error", "error", "error", "denied", "unknownType", "custom", "\\", 5])
            action = {"type": "a", "data": random.choice([1, [{}], {"x": '}"]['}, "\ud800", 1e300])}
            rest = random.choice([{}, {"more": [1]}, {"reason": None}, {"length": "x"}, {"length": 5}])
            undone = {"action": action, **rest, "id": "", "reason": reason, "type": "logux/undo"}
            entries = [{**undone, "id": id} for id in ids]
        else:
            self.flying += ids
            return None if what not in MESSAGES else self.other(what)
        if not entries or random.random() < 0.1:
            node = self.sides[0].core.node_id
            kind = random.choice(["logux/processed", "logux/undo"])
            entries.append({"type": kind, "id": random.choice([f"7 {node} 0", f"7 {node}x 0", "x", 5])})
        if random.random() < 0.1:
            entries.append({"type": "news", "n": 1})
        parts = [part for entry in entries for part in (entry, meta)]
        return self.spelled(["sync", random.choice([0, 0, 3, -1, 1.5, 2**53 - 1]), *parts])

    def spelled(self, message: list[Any]) -> bytes:
        random = self.random
        spaces = random.choice([None, (",", ":"), (",", ":"), (",", ":")])
        text = json.dumps(message, separators=spaces, ensure_ascii=random.random() < 0.5)
        data = text.encode("utf-8", "surrogatepass")
        if random.random() < 0.05:
            place = random.randrange(len(data))
            new = random.choice([b"", b" ", b'"', b"\\", b"]", b"0", b"\xff"])
            data = data[:place] + new + data[place + 1 :]
        return data

    def other(self, what: str) -> bytes:
        random = self.random
        if what == "synced":
            return self.spelled(["synced", random.choice([self.added, self.added - 1, 0, 99.5, 10**9])])
        return self.spelled(random.choice([
            ["ping", 3], ["pong", 1], ["ping", 1.5], ["pong", 0], ["pong", 2], ["ping", 0],
            ["debug", "error", "x"], ["headers", {"a": 1}], ["ready", 1], ["sync", 1],
            ["sync", 4, {"type": "b"}, {"id": 1, "time": 1}],
        ]))  # fmt: skip


MESSAGES = ("processed", "undo", "synced", "other")
STEPS = (
    "put", "put", "send", "send", "send", "processed", "processed", "processed", "undo", "undo", "synced",
    "other", "wait", "clock", "timeout", "headers", "ping", "lost", "error",
)  # fmt: skip


def name(id: Any, node: str) -> str:
    shift, *rest = id if isinstance(id, list) else [id]
    return f"{shift + BASE} {node} {rest[0] if rest else 0}"


class TestTraces:
    @examples(400)
    @given(
        st.integers(0, 2**32), st.integers(0, 300),
        st.sampled_from([(1, 1), (2, 3), (4, 100), (3, 2)]), st.sampled_from(["new_client", "same", "drop"]),
        st.sampled_from(["processed", "processed", "synced"]), st.booleans(), st.sampled_from([1000, 300]),
    )  # fmt: skip
    def test_codec_equals_the_one_in_plain_python(
        self, seed: int, steps: int, room: tuple[int, int], doubt: str, ack: str, strict: bool, size: int
    ) -> None:
        """The same events, messages, statuses and deadlines, whatever callers and the server do."""
        pair = Pair(Random(seed), {
            "inflight": room[0], "window": room[1], "window_bytes": size, "on_doubt": doubt, "ack": ack,
            "silence": 9.0, "ping": 3.0, "processing_timeout": 5.0, "strict_spec": strict,
            "subprotocol": "1.0.0" if strict else 1,
        })  # fmt: skip
        pair.do("lost")
        for _ in range(steps):
            # The rarer ends come seldom, or nothing would follow them.
            what = pair.random.choice(STEPS)
            if what in ("lost", "timeout", "clock") and pair.random.randrange(7):
                what = "send"
            pair.do(what)

    @examples(2000)
    @given(
        st.sampled_from([
            '["synced",2]', '["ping",5]', '["pong",5]', '["sync",7]', '["debug","error","x"]',
            '["sync",3,{"id":"%s","type":"logux/processed"},{"id":[1,2],"time":3}]',
            '["sync",3,{"type":"logux/processed","id":"%s"},{"id":1,"time":3,"subprotocol":1}]',
            '["sync",3,{"action":{"a":[{"b":"}"}]},"id":"%s","reason":"error","type":"logux/undo"},{"id":1,"time":3}]',
            '["sync",3,{"type":"logux/undo","reason":"denied","id":"%s","length":"5"},{"id":1,"time":3}]',
        ]),
        st.lists(st.tuples(st.integers(0, 160), st.integers(0, 2), st.sampled_from([
            "", " ", "0", "1", "-", ".5", "e9", '"', "\\", "]", "}", "{", "[", ",", ":", "\x00", "\x1f",
            "\xe9", "null", '"length":5,', '"id":"x",', '"type":"a",', "\\u0061", "\ud800",
        ])), max_size=2),
    )  # fmt: skip
    def test_damaged_message_means_the_same_to_both(
        self, text: str, damages: list[tuple[int, int, str]]
    ) -> None:
        """The codec takes nothing that is no JSON or no message, and misses nothing that is."""
        pair = Pair(Random(1), {"subprotocol": "1.0.0", "strict_spec": True})
        for step in ("lost", "put", "send"):
            pair.do(step)
        message = (text % pair.flying[0] if "%" in text else text).encode()
        for place, gone, new in damages:
            place %= len(message) + 1
            message = message[:place] + new.encode("utf-8", "surrogatepass") + message[place + gone :]
        for side in pair.sides:
            side.connection.codec.receive(message, side.now)
        pair.compare(0, 0)

    def test_messages_behind_one_for_the_core_wait(self) -> None:
        """The core reads them in order, and sends nothing before it has."""
        connection = connected()
        codec = connection.codec
        for message in (b'["headers",{"a":1}]', b'["ping",1]', b'["debug","error","x"]', b'["ping",2]'):
            assert codec.receive(message, NOW) == 0
        assert connection.credit(NOW) == (0, 0) and codec.take_bytes() == b""
        assert connection.events() == [Inbound(Headers({"a": 1})), Inbound(DebugText("x"))]
        assert codec.answers() == 0 and split(codec.take_bytes()) == [b'["pong",0]'] * 2
        assert connection.credit(NOW)[0] == 100

    def test_outcomes_that_the_core_reads_are_applied(self) -> None:
        """In a form that JavaScript does not use; a pump asks for them when there are events."""
        connection = connected()
        core, codec, in_flight = connection.core, connection.codec, connection.in_flight
        for _ in range(2):
            connection.put(b"{}")
        connection.send(NOW)
        processed = b'["sync", 0, {"type": "logux/processed", "id": "%d %b %d"}, {"id": 1, "time": 1}]'
        codec.receive(processed % (WALL * 1000, core.node_id.encode(), 1), NOW)
        assert codec.outcomes() == ([], 0, 1)
        assert core.take_events(in_flight) == ([], None, False, 1)
        in_flight.commit()
        assert in_flight.take_report() == [(2, 2, "acked", "")]
        codec.receive(b'["debug","error","x"]', NOW)
        codec.receive(b'["error","wrong-format","x"]', NOW)
        events, fatal, closed, _ = core.take_events(in_flight)
        assert [type(event) for event in events] == [Inbound, Inbound] and fatal is None and closed
        connection.lost()
        connection.connected(NOW)
        codec.receive(b'["error","timeout",1]', NOW)
        events, fatal, closed, _ = core.take_events(in_flight)
        assert events == [] and isinstance(fatal, Fatal) and not closed

    def test_messages_behind_the_end_are_dropped(self) -> None:
        connection = connected()
        for message in (b'["error","timeout",1]', b'["ping",1]', b'["error","timeout",1]'):
            connection.codec.receive(message, NOW)
        (event,) = connection.events()
        assert isinstance(event, Fatal)
        assert connection.receive(b'["ping",1]', NOW) == []
        assert connection.codec.answers() == 0 and connection.codec.take_bytes() == b""


def connected() -> Connection:
    connection = Connection(Logux(logux_config(token="t"), PRODUCER), WALL - NOW)
    connection.connected(NOW)
    assert len(connection.receive(b'["connected",5,"server:x",[%d,%d]]' % (BASE, BASE), NOW)) == 1
    assert len(split(connection.send(NOW))) == 1
    return connection


class SpacedServer(Link):
    """A link to a server whose JSON has spaces, so that the core reads its messages."""

    peer = ""
    takes_messages = True

    def __init__(self) -> None:
        self.left: list[Any] = []
        self.node = ""

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        message = json.loads(b"".join(map(bytes, buffers)))
        if message[0] == "connect":
            self.node = message[2]
            self.left.append(["connected", 5, "server:x", [BASE, BASE]])
        elif message[0] == "sync":
            action = {"type": "logux/processed", "id": name(message[3]["id"], self.node)}
            self.left.append(["sync", 0, action, {"id": 1, "time": 1}])
        return True

    def receive(self) -> bytes | None:
        return json.dumps(self.left.pop(0)).encode() if self.left else None

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        return [], [], 0.0


def test_an_acknowledgement_that_the_core_reads_is_progress() -> None:
    core = Logux(logux_config(token="t"), PRODUCER)
    in_flight = InflightBatches(EventQueue())
    in_flight.queue.push(b"{}", 2, K_RAW)
    pump = LinkPump(in_flight, core)
    group = PumpGroup()
    group.add(pump)
    core.connected(time.monotonic())
    pump.connected()
    link, end = SpacedServer(), time.monotonic() + PATIENCE
    while not pump.progress:
        assert group.run([link], end) == ["report"]
    assert pump.progress == 1 and in_flight.take_report() == [(1, 1, "acked", "")]
