"""The Logux client without sockets: messages, outcomes, and its way around the traps of real servers."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections import deque
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.constants import FAILED
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.hash import xxh64
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.logux import Codec
from logclient._ext.queue import EventQueue
from logclient.codec import Connection, Event, Settled
from logclient.config.parsing import parse
from logclient.delivery.contract import CloseWanted, Core, Fatal, Inbound, Link, Reply
from logclient.errors import ConfigError, CredentialError, ProtocolError
from logclient.logux.core import Action, DebugText, Logux, Opened, Received, Undone
from logclient.logux.messages import Headers
from tests.oracle import logux_client as oracle
from tests.support.configs import logux_config
from tests.support.connections import load, split
from tests.support.examples import examples
from tests.support.lumberjack_inputs import near_objects, plain_objects

pytestmark = pytest.mark.unit

PRODUCER = bytes(range(10))
ID = "00010203040506070809%012x"
WHOLE, TIMED = 0x10, 0x20
WALL = 1_700_000_000.0  # long ago: what is sent in these tests was made now, by this clock
NOW = 100.0
BASE = 1_700_000_000_250  # of the server, 250 ms ahead


class Clock:
    """Monotonic and wall clock of a host, set by the test."""

    def __init__(self) -> None:
        self.now = NOW
        self.ahead = WALL - NOW

    def wall(self) -> float:
        return self.now + self.ahead


class Driven(Connection):
    """A connection by the test's clock, which may be set."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self.clock = clock
        super().__init__(core)

    @property
    def epoch(self) -> float:
        return self.clock.ahead

    @epoch.setter
    def epoch(self, epoch: float) -> None:
        pass


def make(clock: Clock | None = None, **options: Any) -> Connection:
    return Driven(Logux(logux_config(**{"token": "secret", **options}), PRODUCER), clock or Clock())


def raw(connection: Connection) -> list[bytes]:
    """Return the messages that wait, without asking for more."""
    assert connection.codec.answers() == 0
    return split(connection.codec.take_bytes())


def sent(connection: Connection) -> list[list[Any]]:
    return [json.loads(text) for text in raw(connection)]


def receive(connection: Connection, *message: Any, now: float = NOW) -> list[Event]:
    """Receive a message, written as JavaScript does; return the events."""
    data = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    return connection.receive(data, now)


def connected(clock: Clock | None = None, **options: Any) -> Connection:
    """Return a connection after `connected`, when the server's clock showed BASE."""
    connection = make(clock, **options)
    connect(connection)
    return connection


def connect(connection: Connection, now: float = NOW) -> None:
    connection.connected(now)
    assert connection.core.state == "connecting"
    raw(connection)
    opened = Inbound(Opened("server:x"))
    assert receive(connection, "connected", 5, "server:x", [BASE, BASE], now=now) == [opened]
    assert connection.core.state == "synchronized"


def send(connection: Connection, n: int, now: float = NOW) -> Batch:
    """Send actions 1 to n in one batch, as many as the credit allows."""
    batch = load(connection, [(b'{"n":1}', RAW)] * n)
    more(connection, now)
    return batch


def more(connection: Connection, now: float = NOW) -> list[Any]:
    """Send as much as the credit allows; return the messages."""
    return [json.loads(text) for text in split(connection.send(now))]


def names(connection: Connection, message: list[Any]) -> dict[str, str]:
    """Return {absolute id: stable id} of the actions of a sync."""
    found = {}
    for action, meta in zip(message[2::2], message[3::2], strict=True):
        shift, *rest = meta["id"] if isinstance(meta["id"], list) else [meta["id"]]
        found[f"{shift + BASE} {connection.core.node_id} {rest[0] if rest else 0}"] = action["id"]
    return found


def processed(connection: Connection, id: str, now: float = NOW, added: int = 0) -> list[Event]:
    meta = {"id": 4, "time": 4, "subprotocol": 1}
    return receive(connection, "sync", added, {"id": id, "type": "logux/processed"}, meta, now=now)


def undo(connection: Connection, id: str, reason: Any = "error", now: float = NOW) -> list[Event]:
    """Receive an undo; return the events without the report of the undo, which is behind its outcome."""
    action = {"action": {"type": "log/add"}, "id": id, "reason": reason, "type": "logux/undo"}
    meta = {"id": [1, 1], "time": 1, "subprotocol": 1}
    events = receive(connection, "sync", 0, action, meta, now=now)
    found = [event for event in events if isinstance(event, Settled)]
    reports = [event.payload for event in events if isinstance(event, Inbound)]
    assert [report.seq for report in reports if isinstance(report, Undone)] == [one.first for one in found]
    assert all(report.action == action for report in reports if isinstance(report, Undone))
    return [event for event in events if not isinstance(event, Inbound) or event.payload not in reports]


class TestOptions:
    def test_wrong_identity_is_named(self) -> None:
        with pytest.raises(ConfigError, match="identity: must be one of id, own, none"):
            parse("logux://h", identity="x")

    def test_codec_refuses_values_that_break_its_arithmetic(self) -> None:
        with pytest.raises(ValueError, match="producer: 10 bytes"):
            Codec(b"x", b'"a"')
        wrong: tuple[dict[str, Any], ...] = (
            {"window": 0}, {"window": 10_001}, {"window_bytes": 0}, {"inflight": 0}, {"inflight": 65},
            {"silence": 0.0}, {"ping": 0.0}, {"processing_timeout": 0.0},
        )  # fmt: skip
        for out in wrong:
            with pytest.raises(AssertionError):
                Codec(bytes(10), b'"a"', **out)
        with pytest.raises(AssertionError):
            Codec(bytes(10), b"")
        with pytest.raises(TypeError):
            Codec.__new__(Codec)

    def test_token_is_sent_and_not_shown(self) -> None:
        connection = make(token="hush")
        assert not any("hush" in repr(value) for value in vars(connection).values())
        connection.connected(NOW)
        assert sent(connection)[0][4]["token"] == "hush"


class TestConnect:
    def test_connect_has_protocol_node_id_and_token(self) -> None:
        connection = make(user="10")
        connection.connected(NOW)
        (message,) = sent(connection)
        assert message == ["connect", 5, connection.core.node_id, 0, {"token": "secret", "subprotocol": 1}]
        assert connection.core.node_id.split(":")[0] == "10" and len(connection.core.node_id.split(":")) == 3
        assert " " not in connection.core.node_id

    @pytest.mark.parametrize(("options", "sent_options"), [
        ({"token": None}, {"subprotocol": 1}), ({"token": ""}, {"subprotocol": 1}),
        ({"subprotocol": 0}, {"token": "secret"}), ({"token": None, "subprotocol": 0}, None),
        ({"strict_spec": True}, {"token": "secret", "subprotocol": "1.0.0"}),
        ({"subprotocol": "1.2.3", "strict_spec": True}, {"token": "secret", "subprotocol": "1.2.3"}),
    ])  # fmt: skip
    def test_unset_options_are_left_out_of_connect(
        self, options: dict[str, Any], sent_options: dict[str, Any] | None
    ) -> None:
        connection = make(**options)
        connection.connected(NOW)
        assert sent(connection)[0][4:] == ([sent_options] if sent_options else [])

    def test_each_producer_has_its_own_node_id(self) -> None:
        found = {Logux(logux_config(), bytes([i, *range(9)])).node_id for i in range(200)}
        found |= {Logux(logux_config(), bytes([*range(9), i])).node_id for i in range(200)}
        assert len(found) == 400 and len({node.split(":")[1] for node in found}) > 1

    @pytest.mark.parametrize("policy", ["new_client", "same", "drop"])
    def test_an_adopter_uses_another_node_id(self, policy: str) -> None:
        core = Logux(logux_config(on_doubt=policy), bytes(range(10)))
        before = core.node_id.split(":")
        core.take_over(bytes(range(50, 60)))
        after = core.node_id.split(":")
        assert after[0] == before[0] and after[2] != before[2]
        assert (after[1] == before[1]) is (policy == "same")
        assert core.node_id.split(":")[1] == core.client

    def test_reconnect_tells_the_last_received_number(self) -> None:
        connection = connected()
        receive(connection, "ping", 3)
        receive(connection, "sync", 7, {"type": "a"}, {"id": 1, "time": 1})
        receive(connection, "pong", 5)
        processed(connection, "1 x 1", added=9)
        connection.lost()
        assert connection.core.state == "disconnected"
        connection.connected(NOW)
        assert sent(connection)[0][3] == 9

    def test_resumed_core_keeps_client_id_and_number(self) -> None:
        connection = make(user="10", state="file")
        tab = connection.core.node_id.split(":")[2]
        connection.core.resume("abc", 3, 17)
        assert connection.core.node_id == f"10:abc-3:{tab}"
        connect(connection)
        assert receive(connection, "ping", 16) == []
        assert receive(connection, "ping", 18) == [Inbound(Received(18))]
        assert processed(connection, "1 x 1", added=19)[-1] == Inbound(Received(19))
        news, received = receive(connection, "sync", 20, {"type": "a"}, {"id": 1, "time": 1})
        assert isinstance(news, Inbound) and isinstance(news.payload, Action)  # first
        assert received == Inbound(Received(20))
        connection.lost()
        connection.connected(NOW)
        assert sent(connection)[0][2:4] == [f"10:abc-3:{tab}", 20]

    def test_headers_go_before_connect_and_replace_all(self) -> None:
        connection = make()
        connection.core.post_command("headers", {"lang": "en", "x": 1}, 0)
        connection.connected(NOW)
        assert [m[:2] for m in sent(connection)] == [["headers", {"lang": "en", "x": 1}], ["connect", 5]]
        receive(connection, "connected", 5, "server:x", [BASE, BASE])
        connection.core.post_command("headers", {"lang": "fr"}, 1)
        assert more(connection) == [["headers", {"lang": "fr"}]]
        connection.lost()
        connection.connected(NOW)
        assert sent(connection)[0] == ["headers", {"lang": "fr"}]
        mine = {"a": [1]}
        connection.core.post_command("headers", mine, 1)
        mine["a"].append(2)
        connection.lost()
        connect(connection)
        connection.core.post_command("headers", {}, 2)
        assert more(connection) == [["headers", {}]]
        connection.lost()
        connection.connected(NOW)
        assert [m[0] for m in sent(connection)] == ["connect"]

    @pytest.mark.parametrize("wrong", [None, [], {"length": 1}, {"a": float("nan")}, {"a": {1}}, "x"])
    def test_headers_that_break_servers_are_refused(self, wrong: Any) -> None:
        connection = connected()
        with pytest.raises(ValueError, match="headers: "):
            connection.core.post_command("headers", wrong, 1)
        with pytest.raises(ValueError, match="Logux has no 'stat'"):
            connection.core.post_command("stat", {}, 1)
        with pytest.raises(ValueError, match="Logux has no 'stat'"):
            connection.core.call("stat")
        assert more(connection) == []

    def test_pings_are_sent_and_answered_in_order(self) -> None:
        connection = make()
        connection.connected(NOW)
        token = connection.core.call("ping")
        assert [m[0] for m in sent(connection)] == ["connect"]
        receive(connection, "connected", 5, "server:x", [BASE, BASE])
        assert sent(connection) == [["ping", 0]]
        other = connection.core.call("ping")
        assert receive(connection, "pong", 0) == [Reply(token, "server:x")]
        assert receive(connection, "pong", 0) == [Reply(other, "server:x")]
        assert receive(connection, "pong", 0) == []
        receive(connection, "ping", 0)
        assert sent(connection) == [["ping", 0], ["pong", 0]]

    @pytest.mark.parametrize("first", ["ping", "pong", "synced"])
    @pytest.mark.parametrize("second", ["ping", "pong"])
    def test_two_messages_in_one_are_refused(self, first: str, second: str) -> None:
        connection = make()
        connection.connected(NOW)
        receive(connection, "connected", 5, "server:x", [BASE, BASE])
        (event,) = connection.receive(f'["{first}",0]["{second}",0]'.encode(), NOW)
        assert isinstance(event, Fatal) and "invalid message" in str(event.error)

    def test_nothing_is_sent_before_connected(self) -> None:
        connection = make()
        assert connection.credit(NOW) == (0, 0)
        connection.connected(NOW)
        assert connection.credit(NOW) == (0, 0)
        receive(connection, "headers", {"env": "development"})
        assert connection.credit(NOW) == (0, 0)
        receive(connection, "connected", 5, "server:x", [BASE, BASE])
        assert connection.credit(NOW) == (100, 32 << 10)

    @pytest.mark.parametrize("message", [
        ["connected", 5, "server:x", [1.5, 2.5]], ["connected", 5, "server:x", [-5, -4]],
        ["connected", 5, "server:x", [0, 2**53]], ["connected", 5, "s" * 1025, [1, 1]],
        ["sync", 1], ["synced", 1], ["ping", 1], ["pong", 1],
        ["connect", 5, "x", 0], ["connected", 5, "x y", [1, 1]], ["connected", "5", "x", [1, 1]],
        ["connected", 5, "x", None], ["sync", 1, None, None], [], [1], None, {"length": 1},
        ["error"], ["headers", None], ["headers", {"length": 1}], ["debug", "other", "x"],
    ])  # fmt: skip
    def test_message_out_of_turn_or_invalid_is_fatal(self, message: Any) -> None:
        connection = make()
        connection.connected(NOW)
        (event,) = connection.receive(json.dumps(message).encode(), NOW)
        assert isinstance(event, Fatal) and isinstance(event.error, ProtocolError) and not event.forever
        assert str(event.error).isprintable() and len(str(event.error)) < 400
        assert connection.credit(NOW) == (0, 0)
        assert receive(connection, "connected", 5, "server:x", [BASE, BASE]) == []

    @pytest.mark.parametrize("message", [["connect", 5, "x", 0], ["connected", 5, "x", [1, 1]]])
    def test_second_connected_is_fatal(self, message: list[Any]) -> None:
        (event,) = receive(connected(), *message)
        assert isinstance(event, Fatal) and not event.forever

    def test_older_protocol_is_fatal_for_ever(self) -> None:
        connection = make()
        connection.connected(NOW)
        (event,) = receive(connection, "connected", 4, "server:x", [BASE, BASE])
        assert isinstance(event, Fatal) and event.forever and "protocol 4" in str(event.error)

    def test_silent_refusal_is_asked_in_the_older_form(self) -> None:
        """Servers of protocol 4 close without a reason. Asked in the older form, they name their protocol."""
        connection = make(subprotocol=3)
        connection.connected(NOW)
        assert sent(connection)[0][4]["subprotocol"] == 3
        event, end = connection.receive(b"", NOW)
        assert isinstance(event, Fatal) and not event.forever and end == CloseWanted()
        assert "protocol 4 (@logux/server 0.13 and older)" in str(event.error)
        connection.lost()
        connection.connected(NOW)
        assert sent(connection)[0][4]["subprotocol"] == "3.0.0"
        (event,) = receive(connection, "connected", 4, "server:x", [BASE, BASE])
        assert isinstance(event, Fatal) and event.forever
        assert "the server speaks protocol 4 (@logux/server 0.13 and older), we speak protocol 5" in str(
            event.error
        )

    def test_older_server_with_a_version_range_is_fatal(self) -> None:
        connection = make()
        connection.connected(NOW)
        (event,) = receive(connection, "error", "wrong-subprotocol", {"supported": "2.x", "used": "0.0.0"})
        assert isinstance(event, Fatal) and event.forever
        assert "protocol 4 (@logux/server 0.13 and older)" in str(event.error)
        assert "'2.x' is supported" in str(event.error)

    @pytest.mark.parametrize("answer", [5, 0])
    def test_older_form_is_tried_once_only(self, answer: int) -> None:
        """The server had another reason to close, such as being stopped."""
        connection = make()
        for n, form in enumerate((1, "1.0.0", 1, 1)):
            connection.connected(NOW)
            assert sent(connection)[0][4]["subprotocol"] == form
            if form == "1.0.0" and answer:
                (event,) = receive(connection, "connected", 5, "server:x", [BASE, BASE])
                assert isinstance(event, Fatal) and not event.forever
            else:
                assert len(connection.receive(b"", NOW)) == 1 + (n == 0)
            connection.lost()
        connect(connection)

    @pytest.mark.parametrize("options", [{"strict_spec": True, "subprotocol": "1.0.0"}, {"subprotocol": 0}])
    def test_no_older_form_without_a_numeric_subprotocol(self, options: dict[str, Any]) -> None:
        connection = make(**options)
        connection.connected(NOW)
        assert connection.receive(b"", NOW) == [CloseWanted()]

    @pytest.mark.parametrize("strict", [False, True])
    def test_unknown_message_is_ignored(self, strict: bool) -> None:
        connection = connected(strict_spec=strict)
        assert receive(connection, "ready", 0) == []
        assert [m[:2] for m in sent(connection)] == ([["error", "wrong-format"]] if strict else [])
        assert connection.credit(NOW)[0] == 100

    @pytest.mark.parametrize(("message", "error", "forever"), [
        (["error", "wrong-credentials"], CredentialError, False),
        (["error", "wrong-protocol", {"supported": 7, "used": 5}], ProtocolError, True),
        (["error", "wrong-subprotocol", {"supported": 2, "used": 1}], ProtocolError, True),
        (["error", "timeout", 70000], ProtocolError, False), (["error", "wrong-format",
        "x"], ProtocolError, False),
        (["error", "unknown-message", "x" * 5000], ProtocolError, False),
        (["error", "\x1b[2J", {"a": "\x07" * 5000}], ProtocolError, False),
    ])  # fmt: skip
    def test_error_of_the_server_is_fatal_and_printable(
        self, message: list[Any], error: type[Exception], forever: bool
    ) -> None:
        connection = make()
        connection.connected(NOW)
        (event,) = receive(connection, *message)
        assert isinstance(event, Fatal) and type(event.error) is error and event.forever is forever
        words = str(event.error)
        assert words.isprintable() and len(words) < 400
        assert message[1] in words or not message[1].isprintable()

    @pytest.mark.parametrize("token", ["hunter2", 'hun"ter2', "hunter2" * 1000, "h\xfcnter2"])
    def test_token_quoted_by_the_server_is_masked(self, token: str) -> None:
        """The real server quotes messages that it finds invalid."""
        for name in ("wrong-format", "my-own", f"no {token}"):
            connection = make(token=token)
            connection.connected(NOW)
            (message,) = raw(connection)
            (event,) = receive(connection, "error", name, message.decode()[:4096])
            assert isinstance(event, Fatal)
            assert "ter2" not in str(event.error) and "hun" not in str(event.error)
        connection = make(token=token)
        connection.connected(NOW)
        for text in (f"bad {token}!", message.decode()):
            (debug,) = receive(connection, "debug", "error", text)
            assert isinstance(debug, Inbound) and "ter2" not in debug.payload.text
        (event,) = receive(connection, "error", "refused", {"was": [token]})
        assert isinstance(event, Fatal) and "hunter2" not in str(event.error)

    def test_answers_to_unknown_messages_are_short(self) -> None:
        connection = connected(strict_spec=True)
        for _ in range(100):
            receive(connection, "x" * 1_000_000)
        assert sum(map(len, raw(connection))) < 100_000

    def test_wrong_format_of_an_action_closes_the_connection(self) -> None:
        """The server does not say which action. The engine finds it by trials."""
        connection = connected()
        send(connection, 1)
        debug, end = receive(connection, "error", "wrong-format", "x")
        assert isinstance(debug, Inbound) and isinstance(debug.payload, DebugText)
        assert end == CloseWanted()


# -- sending --------------------------------------------------------------------------------------------


class TestSync:
    def test_batch_goes_in_syncs_of_the_window(self) -> None:
        connection = connected()
        load(connection, [(b'{"n":%d}' % n, RAW) for n in range(250)])
        messages = more(connection)
        assert [m[:2] for m in messages] == [["sync", 100], ["sync", 200], ["sync", 250]]
        assert [a for m in messages for a in m[2::2]] == [
            {"type": "log/add", "data": {"n": n}, "id": ID % (n + 1)} for n in range(250)
        ]
        ids = [id for m in messages for id in names(connection, m)]
        assert len(set(ids)) == 250
        metas = [meta for m in messages for meta in m[3::2]]
        assert metas[0]["id"] == -250 and metas[1]["id"] == [-250, 1]
        assert all(set(meta) == {"id", "time"} for meta in metas)
        assert connection.core.state == "sending"

    def test_credit_counts_unsettled_syncs(self) -> None:
        connection = connected(inflight=2, window=10)
        batch = send(connection, 25)
        assert list(batch.statuses().values()).count("inflight") == 20
        assert connection.credit(NOW) == (0, 256 << 10)
        receive(connection, "synced", 20)
        assert connection.credit(NOW)[0] == 0
        for counter in range(9):
            processed(connection, f"{int(WALL * 1000)} {connection.core.node_id} {counter}")
        assert connection.credit(NOW)[0] == 0
        processed(connection, f"{int(WALL * 1000)} {connection.core.node_id} 9")
        assert connection.credit(NOW)[0] == 10

    def test_sync_ends_at_window_bytes(self) -> None:
        connection = connected(window_bytes=1000)
        body = b'{"n":"%s"}' % (b"x" * 392)
        large = b'{"n":"%s"}' % (b"x" * 5000)
        load(connection, [(body, RAW)] * 4 + [(large, RAW), (body, RAW)])
        # The last one waits: the large one is more than four messages together may be.
        assert [len(m[2::2]) for m in more(connection)] == [2, 2, 1]

    def test_own_time_and_subprotocol_go_into_the_meta(self) -> None:
        connection = connected(Clock())
        own = struct.pack("<qq", int(WALL * 1000) - 5000, 7) + b'{"type":"a"}'
        none = struct.pack("<qq", -(2**63), -1) + b'{"type":"a"}'
        load(connection, [(own, RAW | TIMED), (none, TIMED)])
        ((_, _, _, first, _, second),) = more(connection)
        assert first == {"id": -250, "time": -5000, "subprotocol": 7}
        assert second["id"] == [-250, 1] and set(second) == {"id", "time"} and second["time"] == 0

    @pytest.mark.parametrize(("body", "kind", "reason"), [
        (b'{"a":}', RAW, "not_json"), (b"[]", RAW, "not_json"), (b"[]", DOCUMENT, "not_json"),
        (b"{}", RAW | WHOLE, "unencodable"), (b'{"type":1}', RAW | WHOLE, "unencodable"),
        (b'{"type":"a","type":1}', RAW | WHOLE, "unencodable"),
        (b'{"type":"a",}', DOCUMENT | WHOLE, "not_json"),
        (b'{"type":"a","length":1}', RAW | WHOLE, "unencodable"),
        (b'{"type":"a","len\\u0067th":-1.5}', RAW | WHOLE, "unencodable"),
        (b'{"type":"a","length":1}', DOCUMENT | WHOLE, "unencodable"), (b"{}", RAW | 0x30, "unencodable"),
        (b"{}", RAW | TIMED, "unencodable"), (bytes(16) + b"{", RAW | TIMED, "not_json"),
    ])  # fmt: skip
    def test_action_that_servers_refuse_fails_alone(self, body: bytes, kind: int, reason: str) -> None:
        connection = connected()
        load(connection, [(b"{}", RAW), (body, kind), (b"{}", RAW)])
        ((*_, a, _, b, _),) = more(connection)
        assert (a["id"], b["id"]) == (ID % 1, ID % 3)
        assert connection.events() == [Settled(2, 2, "failed", reason)]

    @pytest.mark.parametrize("body", [
        b'{"type":"a","length":"1"}', b'{"type":"a","data":{"length":1}}',
        b'{"type":"a","length":1,"length":[]}',
        b'{"type":"a","length":null}', b'{"type":1,"ty\\u0070e":"a"}', b' {"type" : "a" , "b":[{"type":2}]} ',
    ])  # fmt: skip
    def test_unusual_valid_action_is_sent(self, body: bytes) -> None:
        connection = connected()
        load(connection, [(body, RAW | WHOLE)])
        ((_, _, action, _),) = more(connection)
        assert action == {**json.loads(body), "id": ID % 1}

    def test_fields_of_an_event_stay_within_data(self) -> None:
        connection = connected()
        load(connection, [(b'{"length":5,"type":7,"id":"mine"}', RAW)])
        ((_, _, action, _),) = more(connection)
        assert action == {"type": "log/add", "data": {"length": 5, "type": 7, "id": "mine"}, "id": ID % 1}

    def test_body_is_sent_unchanged_without_identity_and_check(self) -> None:
        connection = connected(identity="none", check=False, action_type='lög "x"')
        batch = load(connection, [(b" {oops} ", RAW), (b'{"type":"a"}', RAW | WHOLE)])
        connection.encode(batch, 9, NOW)
        (text,) = raw(connection)
        assert b'{"type":"l\xc3\xb6g \\"x\\"","data":{oops}},{' in text and b',{"type":"a"},{' in text

    bodies = (near_objects | plain_objects).flatmap(
        lambda body: st.sampled_from([
            (body, 0),
            (body, WHOLE),
            (b'{"type":"a",' + body.strip()[1:] if len(body) > 3 else b'{"type":"a"}', WHOLE),
            (struct.pack("<qq", 1234, -1) + b'{"type":"a","id":' + body.strip() + b"}", TIMED),
            (body.replace(b"event", b"length").replace(b"uuid", b"type"), WHOLE),
        ])
    )  # fmt: skip

    @pytest.mark.slow
    @examples(100)
    @given(st.lists(st.tuples(bodies, st.sampled_from([RAW, RAW, DOCUMENT])), min_size=1, max_size=6),
           st.booleans(), st.booleans())  # fmt: skip
    def test_syncs_equal_the_reference(
        self, events: list[tuple[tuple[bytes, int], int]], identity: bool, check: bool
    ) -> None:
        connection = connected(identity="id" if identity else "none", check=check, silence=1e9)
        given_ = [(body, kind | nibble) for (body, nibble), kind in events]
        # Without a check, bodies must be JSON where their fields are searched.
        given_ = [
            (body, kind)
            for body, kind in given_
            if not kind >> 4
            or (check and kind & 3 == RAW)
            or isinstance(oracle.action(body, kind & ~3 | RAW, 1, PRODUCER), oracle.Text)
        ]
        batch = load(connection, given_ or [(b"{}", RAW)])
        expected, failures, ids = [], {}, oracle.Ids()
        hashes = {}
        for seq, (body, kind) in enumerate(given_ or [(b"{}", RAW)], 1):
            found = oracle.action(body, kind, seq, PRODUCER, identity=identity, check=check)
            if isinstance(found, str):
                failures[seq] = found
                continue
            hashes[seq] = xxh64(found.text)
            time = 0 if found.time is None else found.time - BASE + 250
            expected.append((found.text, *ids.next(int(WALL * 1000)), time, found.subprotocol))
        n = connection.encode(batch, 100, NOW)
        got = batch.hashes()
        assert n == len(expected)
        assert raw(connection) == ([oracle.sync(0, expected, BASE)] if expected else [])
        report = [event for event in connection.events() if isinstance(event, Settled)]
        assert {seq: one.reason for one in report for seq in range(one.first, one.last + 1)} == failures
        assert {s: h for s, h in got.items() if s in hashes} == hashes

    def test_own_ids_are_hashed_for_the_ledger(self) -> None:
        connection = connected()
        events = [(b'{"type":"a","id":%s}' % id, RAW | WHOLE) for id in (b'"mine"', b"[1,2]", b'""')]
        batch = load(connection, events)
        connection.codec.encode(batch.capsule, 9, NOW)
        lines = connection.in_flight.encoded(batch).splitlines()
        (line,) = [json.loads(line) for line in lines if b'"ids"' in line]
        import base64

        words = struct.unpack("<6Q", base64.b64decode(line["ids"]))
        assert words == tuple(w for own in (b"mine", b"[1,2]", b"") for w in (xxh64(own), xxh64(own, 43)))
        assert all("id" in a and a["id"] != ID % 1 for a in sent(connection)[0][2::2])


class TestIds:
    def test_ids_rise_when_the_clock_goes_back(self) -> None:
        clock = Clock()
        connection = connected(clock, window=10)
        batch = load(connection, [(b"{}", RAW)] * 60)
        found: list[tuple[int, int]] = []

        def some() -> None:
            connection.credit(clock.now)
            connection.encode(batch, 10, clock.now)
            (message,) = [m for m in sent(connection) if m[0] == "sync"]
            pairs = [id.split(" ") for id in names(connection, message)]
            found.extend((int(ms), int(n)) for ms, _, n in pairs)
            for id in names(connection, message):
                processed(connection, id)

        some()
        clock.ahead -= 3600
        some()
        connection.lost()
        connect(connection)
        clock.now += 1
        some()
        clock.ahead += 3602
        some()
        clock.ahead -= 3601
        some()
        assert len(set(found)) == 50 and found == sorted(found)
        assert {ms for ms, _ in found[:30]} == {int(WALL * 1000)}
        assert {ms for ms, _ in found[30:]} == {int(WALL * 1000) + 3000}

    def test_times_follow_the_clock_of_the_server(self) -> None:
        clock = Clock()
        connection = make(clock)
        connection.connected(clock.now)
        raw(connection)
        clock.now += 0.2  # 50 ms there, 100 in the server, 50 back
        base = int(WALL * 1000) + 3_600_000 + 150
        receive(connection, "connected", 5, "server:x", [base - 100, base], now=clock.now)
        clock.now += 5
        own = struct.pack("<qq", round((clock.wall() - 1) * 1000), -1) + b'{"type":"a"}'
        load(connection, [(own, TIMED)])
        ((_, _, _, meta),) = more(connection, clock.now)
        assert meta["id"] == round(clock.wall() * 1000) - base
        # It was made a second ago, which the server called so many ms since its base time.
        assert meta["time"] == 4050
        (event,) = receive(connection, "sync", 1, {"type": "a"}, {"id": 4050, "time": 4050}, now=clock.now)
        assert isinstance(event, Inbound) and isinstance(event.payload, Action)
        assert event.payload.meta == {
            "id": f"{base + 4050} server:x 0",
            "time": round((clock.wall() - 1) * 1000),
        }

    @given(start=st.integers(0, 3000), spent=st.integers(-50, 4000), way=st.integers(0, 2000))
    def test_half_the_travel_time_is_subtracted(self, start: int, spent: int, way: int) -> None:
        """The way back took half of the time that the server did not spend. Its clock may be set
        meanwhile."""
        clock = Clock()
        connection = make(clock)
        connection.connected(NOW)
        clock.now += way / 1000
        base = BASE + start + spent
        receive(connection, "connected", 5, "server:x", [BASE + start, base], now=clock.now)
        batch = load(
            connection, [(struct.pack("<qq", round(clock.wall() * 1000), -1) + b'{"type":"a"}', TIMED)]
        )
        raw(connection)
        connection.encode(batch, 1, clock.now)
        ((_, _, _, meta),) = sent(connection)
        assert abs(meta["time"] - (way - min(max(spent, 0), way)) / 2) <= 1


class Tick(NamedTuple):
    """An event of the test, after so many seconds."""

    after: float
    what: str
    much: float


ticks = st.lists(
    st.one_of(
        st.builds(Tick, st.floats(0.001, 0.9), st.just("event"), st.just(0.0)),
        st.builds(Tick, st.floats(0.001, 0.9), st.just("look"), st.floats(0, 0.004)),
        st.builds(Tick, st.floats(0.001, 0.9), st.just("send"), st.just(0.0)),
        st.builds(
            Tick, st.floats(0.001, 0.9), st.just("set"),
            st.sampled_from([3600.0, -3600.0, 60.0, -60.0, 86400.0, -86400.0]),
        ),
        st.builds(Tick, st.floats(0.001, 0.9), st.just("set"), st.floats(-0.015, 0.015)),
    ),
    max_size=60,
)  # fmt: skip


class TestClocks:
    @examples(300)
    @given(ticks)
    @example([*(Tick(0.5, "set", by) for by in (-60.0, -60.0, 60.0)), Tick(0.5, "event", 0.0)])
    def test_times_are_true_while_the_wall_clock_is_set(self, ticks: list[Tick]) -> None:
        """The clock is sampled once a second, and set by minutes and hours while events wait a few
        seconds."""
        codec, reference = Codec(PRODUCER, b'"a"'), oracle.Clocks()
        now, ahead, looked = 1000.0, 1e9, 0.0
        waiting: deque[tuple[int, float, int]] = deque()
        seq = jumps = 0

        def look(late: float = 0.0) -> None:
            nonlocal looked
            looked = now
            codec.sample(now, now + late + ahead)
            reference.look(now, now + late + ahead)

        def settle() -> None:
            while waiting:
                number, true, us = waiting.popleft()
                at = codec.made_at(us, now, number)
                assert at == reference.when(us, now, number)
                assert abs(at - true) < 0.1

        look()
        for tick in ticks:
            now += tick.after
            if now - looked > 0.9:
                look()
            if tick.what == "event":
                seq += 1
                waiting.append((seq, now, round((now + ahead) * 1e6)))
            elif tick.what == "look":
                look(tick.much)
            elif tick.what == "set":
                if abs(tick.much) > 1:
                    if jumps == 6:
                        continue
                    jumps += 1
                    for _ in range(2):  # a single sample between two jumps might be a late one
                        now += 0.001
                        look()
                ahead += tick.much
            if tick.what == "send" or (waiting and now - waiting[0][1] > 8):
                look()
                settle()
        look()
        settle()

    def test_one_late_sample_is_not_a_jump(self) -> None:
        codec = Codec(PRODUCER, b'"a"')
        codec.sample(10.0, 1010.0)
        codec.sample(11.0, 1011.4)  # it came 400 ms late
        assert codec.made_at(1_010_900_000, 11.5, 1) == pytest.approx(10.9)
        codec.sample(12.0, 1012.0)
        assert codec.made_at(1_011_900_000, 12.0, 2) == pytest.approx(11.9)

    @pytest.mark.slow
    @examples(200)
    @given(st.lists(st.tuples(st.sampled_from("lw"), st.floats(0, 50), st.floats(-40, 40),
                              st.integers(1, 30)), max_size=40))  # fmt: skip
    def test_times_equal_the_reference(self, calls: list[tuple[str, float, float, int]]) -> None:
        codec, reference = Codec(PRODUCER, b'"a"'), oracle.Clocks()
        for what, now, off, seq in calls:
            if what == "l":
                codec.sample(now, now + off)
                reference.look(now, now + off)
            else:
                us = round((now + off) * 1e6)
                assert codec.made_at(us, now, seq) == reference.when(us, now, seq)


# -- outcomes -----------------------------------------------------------------------------------------------


def acked(*seqs: int) -> list[Event]:
    return [Settled(seqs[0], seqs[-1], "acked")]


class LaterServer:
    """A server that processes actions, with the headers of that moment, when `work` is called.

    It reads the headers then.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.headers: dict[str, Any] = {}
        self.seen: list[tuple[int, int]] = []  # (number of an action, that in the headers)
        self.queue: list[tuple[str, dict[str, Any]]] = []
        self.said = 0  # headers

    def receive(self, messages: list[Any]) -> None:
        for message in messages:
            if message[0] == "headers":
                self.headers = message[1]
                self.said += 1
            elif message[0] == "sync":
                actions = {action["id"]: action for action in message[2::2]}
                names_ = names(self.connection, message)
                self.queue += [(id, actions[own]) for id, own in names_.items()]

    def work(self, most: int, reason: str = "") -> None:
        for id, action in self.queue[:most]:
            self.seen.append((action["data"]["n"], self.headers.get("n", 0)))
            _ = undo(self.connection, id, reason) if reason else processed(self.connection, id)
        del self.queue[:most]


def with_two_headers(connection: Connection) -> LaterServer:
    """Put three actions, the third with newer headers than the others; return the server that got them."""
    numbered(connection, 3)
    connection.core.post_command("headers", {"n": 1}, 1, connection.in_flight)
    connection.core.post_command("headers", {"n": 3}, 3, connection.in_flight)
    server = LaterServer(connection)
    server.receive(more(connection))
    return server


def numbered(connection: Connection, n: int) -> Batch:
    return load(connection, [(b'{"n":%d}' % (i + 1), RAW) for i in range(n)])


class TestHeaders:
    """The server processes each action with the headers that were set before it."""

    @pytest.mark.parametrize("most", [1, 3, 1000])
    def test_each_action_has_the_headers_before_it(self, most: int) -> None:
        connection = connected(window=4)
        numbered(connection, 60)
        changes = {1: 1, 2: 2, 9: 9, 10: 10, 11: 11, 30: 30, 59: 59, 61: 61}
        for first, n in changes.items():
            connection.core.post_command("headers", {"n": n}, first, connection.in_flight)
        server = LaterServer(connection)
        while len(server.seen) < 60:
            server.receive(more(connection))
            server.work(most)
        assert server.seen == [(n, max(c for c in changes if c <= n)) for n in range(1, 61)]
        server.receive(more(connection))
        assert server.headers == {"n": 61}  # at last, though nothing is to be sent after them
        assert server.said == len(changes)

    def test_actions_with_the_same_headers_do_not_wait(self) -> None:
        connection = connected(window=4, inflight=4)
        numbered(connection, 40)
        connection.core.post_command("headers", {"n": 1}, 1, connection.in_flight)
        connection.core.post_command("headers", {"n": 33}, 33, connection.in_flight)
        found = more(connection)
        assert [m[0] for m in found] == ["headers", *["sync"] * 4]
        assert connection.credit(NOW)[0] == 0

    def test_headers_set_between_credit_and_encode_hold(self) -> None:
        """An event, and headers before it, may be put after the pump has asked for the credit."""
        connection = connected()
        batch = numbered(connection, 2)
        events, _ = connection.credit(NOW)
        connection.core.post_command("headers", {"n": 2}, 2, connection.in_flight)
        assert connection.encode(batch, events, NOW) == 1
        assert [m[0] for m in sent(connection)] == ["sync"]

    def test_resent_action_has_its_former_headers(self) -> None:
        connection = connected()
        server = with_two_headers(connection)
        assert server.seen == [] and server.headers == {"n": 1}
        connection.lost()
        connection.connected(NOW)
        assert sent(connection)[0] == ["headers", {"n": 3}]  # the newest, with which it lets us in
        server = LaterServer(connection)
        server.headers = {"n": 3}
        receive(connection, "connected", 5, "server:x", [BASE, BASE])
        while len(server.seen) < 3:
            server.receive(more(connection))
            server.work(1)
        assert server.seen == [(1, 1), (2, 1), (3, 3)]

    def test_suspect_has_its_former_headers(self) -> None:
        connection = connected()
        server = with_two_headers(connection)
        server.work(1, "error")  # the first is the suspect
        server.work(1, "error")  # the second undone with it
        while len(server.seen) < 5:
            server.receive(more(connection))
            server.work(1)
        assert server.seen == [(1, 1), (2, 1), (2, 1), (1, 1), (3, 3)]
        assert server.said == 2
        server.receive(more(connection))
        assert server.headers == {"n": 3}

    def test_new_headers_wait_for_queued_events(self) -> None:
        connection = connected()
        numbered(connection, 1)
        connection.in_flight.queue.push(b'{"n":2}', 2, RAW)
        connection.core.post_command("headers", {"n": 3}, 3, connection.in_flight)
        connection.core.regulate(NOW)
        assert sent(connection) == []
        assert [m[0] for m in more(connection)] == ["sync", "sync"]

    def test_headers_of_settled_actions_are_forgotten(self) -> None:
        connection = connected()
        in_flight = connection.in_flight
        server = LaterServer(connection)
        for n in range(1, 1001):
            headers = {"n": n, "text": "x" * 100_000}
            connection.core.post_command("headers", headers, in_flight.queue.next_seq, in_flight)
            connection.put(b'{"n":%d}' % n)
            server.receive(more(connection))
            server.work(1)
            if n == 100:
                tracemalloc.start()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert server.seen == [(n, n) for n in range(1, 1001)]
        assert used < 5_000_000

    def test_headers_of_dropped_events_are_forgotten(self) -> None:
        """There is no connection, the queue is full, and each event has its own headers."""
        connection = make()
        queue = EventQueue(max_events=10, policy="drop_oldest")
        in_flight = InflightBatches(queue)
        tracemalloc.start()
        for n in range(1, 2001):
            headers = {"n": n, "text": "x" * 10_000}
            connection.core.post_command("headers", headers, queue.next_seq, in_flight)
            queue.push(b"{}", 2, RAW)
            in_flight.report_gaps()
            in_flight.commit()
            connection.core.sample_clocks(NOW)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 2_000_000

    def test_kept_headers_are_bounded(self) -> None:
        """The oldest are dropped; their actions get the next ones."""
        connection = connected()
        numbered(connection, 100)
        tracemalloc.start()
        for n in range(1, 101):
            headers = {"n": n, "text": "x" * 1_000_000}
            connection.core.post_command("headers", headers, n, connection.in_flight)
            connection.core.sample_clocks(NOW)
            connection.core.regulate(NOW)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 25_000_000
        server = LaterServer(connection)
        while len(server.seen) < 100:
            server.receive(more(connection))
            server.work(1)
        assert server.seen == [(n, max(n, 85)) for n in range(1, 101)]


class TestOutcomes:
    def test_processed_settles_and_synced_does_not(self) -> None:
        connection = connected()
        send(connection, 2)
        assert receive(connection, "synced", 2) == []
        assert processed(connection, f"{BASE - 250} {connection.core.node_id} 0") == acked(1)
        assert connection.core.state == "sending"
        assert processed(connection, f"{BASE - 250} {connection.core.node_id} 1", added=3) == acked(2)
        assert connection.core.state == "synchronized"
        assert sent(connection) == [["synced", 0], ["synced", 3]]

    def test_ack_synced_settles_cumulatively(self) -> None:
        connection = connected(ack="synced", window=2)
        send(connection, 4)
        assert receive(connection, "synced", 2) == acked(1, 2)
        assert receive(connection, "synced", 1) == []
        assert receive(connection, "synced", 4) == acked(3, 4)
        assert processed(connection, f"{BASE - 250} {connection.core.node_id} 0") == []
        assert undo(connection, f"{BASE - 250} {connection.core.node_id} 1") == []
        send(connection, 1)
        assert connection.core.state == "sending"

    @pytest.mark.parametrize("number", ["5", "4.5", "999999"])
    @pytest.mark.parametrize("ack", ["processed", "synced"])
    def test_synced_beyond_what_was_sent_ends_the_connection(self, number: str, ack: str) -> None:
        connection = connected(ack=ack, window=2)
        send(connection, 4)
        (event,) = connection.receive(b'["synced",%s]' % number.encode(), NOW)
        assert isinstance(event, Fatal) and not event.forever
        assert str(event.error) == f"the server sent synced: {json.loads(number)}, and 4 actions were sent"
        assert connection.codec.open == 4 and receive(connection, "synced", 4) == []

    @pytest.mark.parametrize("message", [
        '["sync",1,{"id":"%s","type":"logux/processed"},{"id":1,"time":1}]',
        '["sync",1,{"type":"logux/processed","id":"%s"},{"id":[1,2],"time":1,"subprotocol":1}]',
        '["sync",-1.5,{"type":"logux/processed","id":"%s"},{"time":1,"id":[1,"a",2]}]',
        ' [ "sync", 1, {"type": "logux/processed", "id": "%s"}, {"id": 1.5, "time": 1, "more": {}} ] ',
        '["sync",1,{"type":"logux/processed","id":"%s","more":1},{"id":1,"time":1}]',
        '["sync",1,{"type":"a"},{"id":1,"time":1},{"type":"logux/processed","id":"%s"},{"id":1,"time":1}]',
    ])  # fmt: skip
    def test_processed_is_read_in_every_form_of_json(self, message: str) -> None:
        connection = connected(user='"\\ö')
        send(connection, 1)
        id = json.dumps(f"{BASE - 250} {connection.core.node_id} 0", ensure_ascii=False)[1:-1]
        events = connection.receive((message % id).encode(), NOW)
        assert [e for e in events if not isinstance(e, Inbound)] == acked(1)
        assert [m[0] for m in sent(connection)] == ["synced"]

    @pytest.mark.parametrize("id", [
        "{ms} other 0", "{ms} {node} 1", "1 {node} 0", "{ms}  {node} 0", "{ms} {node}", "{ms}.5 {node} 0",
        "{ms} {node} -0", "{ms} {node} 0.0", "", "{ms} {node} 0 0", "x {node} 0",
        "{ms} {node} 18446744073709551616",
        "99999999999999999999 {node} 0", 5, None, [], {}, "\x00", "²{ms} {node} 0",
    ])  # fmt: skip
    def test_outcome_of_an_unsent_id_is_ignored(self, id: Any) -> None:
        connection = connected()
        send(connection, 1)
        if isinstance(id, str):
            id = id.format(ms=BASE - 250, node=connection.core.node_id)
        for _ in range(1000):
            assert processed(connection, id) == []
        assert undo(connection, id) == [] or not isinstance(id, str) or connection.core.node_id not in id
        assert connection.core.state == "sending"
        assert len(sent(connection)) == 1001

    @pytest.mark.slow
    @examples(300)
    @given(
        st.sampled_from(["synced", "id", "type"]), st.integers(-3, 10**17), st.integers(-3, 10**17),
        st.integers(-1, 10**17), st.sampled_from(["", ',"subprotocol":1', ',"x":2', " "]),
        st.sampled_from(["1", "[1,2]", "[1,-2]", '[1,"a",2]', "01", "-0", "1.5", "1e3", "", "null"]),
        st.none() | st.tuples(st.integers(0, 120), st.sampled_from([b"", b" ", b"0", b'"', b"]", b"-",
        b"\x00"])),
    )  # fmt: skip
    def test_fast_path_of_receive_equals_the_reference(
        self, kind: str, added: int, ms: int, n: int, more: str, id: str, damage: tuple[int, bytes] | None
    ) -> None:
        node = 'a:"ö\\:c'
        whole = json.dumps(f"{ms} {node} {n}", ensure_ascii=False)
        body = {
            "id": f'{{"id":{whole},"type":"logux/processed"}}',
            "type": f'{{"type":"logux/processed","id":{whole}}}',
        }  # fmt: skip
        text = f'["synced",{added}]'
        if kind != "synced":
            text = f'["sync",{added},{body[kind]},{{"id":{id},"time":{id[:1]}{more}}}]'
        message = text.encode()
        if damage is not None:
            message = message[: damage[0]] + damage[1] + message[damage[0] + 1 :]
        codec = Codec(PRODUCER, b'"a"')
        codec.connecting(NOW)
        codec.connected(json.dumps(node, ensure_ascii=False)[1:-1].encode(), BASE, NOW, 0.0)
        found = oracle.recognise(message, node)
        if kind == "synced" and found is not None and found[0] > codec.added:
            found = None
        codec.receive(message, NOW)
        assert (codec.next_message() is None) is (found is not None)
        answers = [] if found is None or len(found) == 1 else [b'["synced",%d]' % found[0]]
        assert codec.answers() == 0 and split(codec.take_bytes()) == answers

    @pytest.mark.parametrize(("reason", "name"), [
        ("denied", "denied"), ("unknownType", "unknown_type"), ("wrongChannel", "rejected"),
        ("notFound", "rejected"), ("anything", "rejected"), (None, "rejected"), (5, "rejected"),
        ([], "rejected"),
    ])  # fmt: skip
    def test_undo_fails_with_the_reason_of_the_server(self, reason: Any, name: str) -> None:
        connection = connected()
        send(connection, 2)
        id = f"{BASE - 250} {connection.core.node_id} 1"
        assert undo(connection, id, reason) == [Settled(2, 2, "failed", name)]
        assert undo(connection, id, reason) == []
        assert processed(connection, f"{BASE - 250} {connection.core.node_id} 0") == acked(1)
        assert [m[0] for m in sent(connection)] == ["synced"] * 3

    def test_unsent_ids_cost_no_memory(self) -> None:
        connection = connected()
        node = connection.core.node_id.encode()
        message = b'["sync",0,{"id":"1 %s 0","type":"logux/processed"},{"id":1,"time":1}]' % node
        for _ in range(20_000):
            assert connection.receive(message, NOW) == []
        assert raw(connection) == [b'["synced",0]'] * 20_000

    def test_actions_of_the_server_are_inbound(self) -> None:
        connection = connected(Clock())
        send(connection, 1)
        (one, two) = receive(
            connection, "sync", 5,
            {"type": "a", "id": 1}, {"id": 7, "time": 5, "subprotocol": 3},
            {"type": "logux/undo", "id": "1 other 0", "reason": "error"}, {"id": [8, "x:y", 2], "time": 9.25},
        )  # fmt: skip
        assert one == Inbound(
            Action(
                {"type": "a", "id": 1}, {"id": f"{BASE + 7} server:x 0", "time": BASE - 245, "subprotocol": 3}
            )
        )
        assert isinstance(two, Inbound) and two.payload.meta == {
            "id": f"{BASE + 8} x:y 2",
            "time": BASE - 241,
        }
        assert receive(connection, "headers", {"a": 1}) == [Inbound(Headers({"a": 1}))]
        assert receive(connection, "debug", "error", "oh") == [Inbound(DebugText("oh"))]
        assert sent(connection) == [["synced", 5]]


class TestUndoneRuns:
    """When one action fails at the server, those behind it are undone with it."""

    def send_run(self, connection: Connection, n: int) -> list[str]:
        """Send n actions; return their ids."""
        load(connection, [(b'{"n":1}', RAW)] * n)
        return [id for m in more(connection) for id in names(connection, m)]

    def send_again(self, connection: Connection) -> dict[str, str]:
        """Send what is due and return {stable id: id}."""
        found = {}
        for _ in range(9):
            for message in more(connection):
                if message[0] == "sync":
                    found |= {stable: id for id, stable in names(connection, message).items()}
        return found

    @pytest.mark.parametrize("guilty", [True, False])
    def test_first_undone_is_tried_alone_after_the_others(self, guilty: bool) -> None:
        connection = connected()
        ids = self.send_run(connection, 5)
        processed(connection, ids[0])
        assert undo(connection, ids[1]) == []
        for seq in (3, 4, 5):
            assert undo(connection, ids[seq - 1]) == []
            assert connection.in_flight.to_send == [(3, seq)]
        innocent = self.send_again(connection)
        assert list(innocent) == [ID % 3, ID % 4, ID % 5] and not set(innocent.values()) & set(ids)
        for id in innocent.values():
            assert self.send_again(connection) == {}
            processed(connection, id)
        suspect = self.send_again(connection)
        assert list(suspect) == [ID % 2] and suspect[ID % 2] not in ids
        end = undo(connection, suspect[ID % 2]) if guilty else processed(connection, suspect[ID % 2])
        assert end == ([Settled(2, 2, "failed", "error")] if guilty else acked(2))
        assert connection.in_flight.inflight == 0 and connection.credit(NOW)[0] == 100

    def test_core_is_sending_while_there_is_a_suspect(self) -> None:
        connection = connected()
        (id,) = self.send_run(connection, 1)
        undo(connection, id)
        assert connection.core.state == "sending"
        (id,) = self.send_again(connection).values()
        processed(connection, id)
        assert connection.core.state == "synchronized"

    def test_suspect_is_sent_with_its_text_unchanged(self) -> None:
        connection = connected()
        batch = load(connection, [
            (struct.pack("<qq", 5000, 7) + b'{"type" : "\xc3\xb6",  "b":1.50}', RAW | TIMED), (b"{}", RAW),
        ])  # fmt: skip
        connection.encode(batch, 2, NOW)
        (text,) = raw(connection)
        first = text[text.index(b"{") : text.index(b',{"id"')]
        for n in range(2):
            undo(connection, f"{BASE - 250} {connection.core.node_id} {n}")
        ids = self.send_again(connection)
        processed(connection, ids[ID % 2])
        (text,) = [m for m in split(connection.send(NOW)) if m.startswith(b'["sync"')]
        meta = b',{"id":[-250,3],"time":%d,"subprotocol":7}]' % (5000 - BASE + 250)
        assert text == b'["sync",4,' + first + meta

    def test_nothing_new_goes_while_there_is_a_suspect(self) -> None:
        connection = connected(window=2, inflight=2)
        queue = EventQueue()
        for _ in range(100):
            queue.push(b"{}", 2, RAW)
        in_flight = connection.in_flight = InflightBatches(queue)
        in_flight.take(4, 1 << 20)
        in_flight.take(96, 1 << 20)
        ids = list(self.send_again(connection).values())
        assert len(ids) == 4
        for id in ids:
            undo(connection, id)
        innocent = self.send_again(connection)
        assert list(innocent) == [ID % 2, ID % 3, ID % 4]
        for id in innocent.values():
            processed(connection, id)
        suspect = self.send_again(connection)
        assert list(suspect) == [ID % 1]
        processed(connection, suspect[ID % 1])
        assert list(self.send_again(connection)) == [ID % seq for seq in (5, 6, 7, 8)]

    @pytest.mark.parametrize("reason", ["denied", "unknownType"])
    def test_actions_behind_a_refused_one_are_sent_again(self, reason: str) -> None:
        connection = connected()
        ids = self.send_run(connection, 3)
        undo(connection, ids[0], reason)
        for seq in (2, 3):
            assert undo(connection, ids[seq - 1]) == []
            assert connection.in_flight.to_send == [(2, seq)]
        assert list(self.send_again(connection)) == [ID % 2, ID % 3]

    def test_processed_action_ends_a_run(self) -> None:
        connection = connected()
        ids = self.send_run(connection, 5)
        undo(connection, ids[0])
        processed(connection, ids[1])
        assert undo(connection, ids[2]) == []  # the next suspect
        undo(connection, ids[3])
        undo(connection, ids[4])
        innocent = self.send_again(connection)
        assert list(innocent) == [ID % 4, ID % 5]
        for id in innocent.values():
            processed(connection, id)
        for seq in (1, 3):
            found = self.send_again(connection)
            assert list(found) == [ID % seq]
            assert undo(connection, found[ID % seq]) == [Settled(seq, seq, "failed", "error")]

    @pytest.mark.parametrize("data", [
        b"[" * 900 + b"]" * 900, b"[" * 9000 + b"]" * 9000, b'{"a\\"[":' * 600 + b"1" + b"}" * 600,
        b"[" + b"0," * 3_100_000 + b"0]",
    ], ids=["deep", "deeper", "deep objects", "wide"])  # fmt: skip
    def test_undo_may_return_a_deep_or_wide_action(self, data: bytes) -> None:
        """The server sends the action back, whatever its size. No other message may be so large."""
        connection = connected()
        send(connection, 2)
        id = f"{BASE - 250} {connection.core.node_id}"
        undone = b'["sync",0,{"action":{"type":"log/add","data":%b},"id":"%b 0","reason":"denied",'
        outcome, report = connection.receive(
            undone % (data, id.encode()) + b'"type":"logux/undo"},{"id":[1,1],"time":1,"subprotocol":1}]', NOW
        )
        assert isinstance(report, Inbound) and report.payload.action["reason"] == "denied"
        assert outcome == Settled(1, 1, "failed", "denied")
        assert sent(connection) == [["synced", 0]]
        # Other messages are limited.
        (event,) = connection.receive(b'["sync",0,{"type":"a","data":%b},{"id":[1,1],"time":1}]' % data, NOW)
        assert isinstance(event, Fatal)

    def test_lost_connection_forgets_suspects(self) -> None:
        connection = connected()
        ids = self.send_run(connection, 2)
        undo(connection, ids[0])
        connection.lost()
        connect(connection)
        assert list(self.send_again(connection)) == [ID % 1, ID % 2]


# -- ended connections, silent servers ------------------------------------------------------------------


class TestDoubt:
    def test_client_id_stays_without_doubt(self) -> None:
        connection = connected()
        node = connection.core.node_id
        connection.lost()
        connect(connection)
        assert connection.core.node_id == node

    def test_doubt_takes_a_new_client_id(self) -> None:
        connection = connected(user="10")
        send(connection, 3)
        node = connection.core.node_id
        processed(connection, f"{BASE - 250} {node} 1")
        assert connection.lost() == []
        connect(connection)
        assert [a == b for a, b in zip(connection.core.node_id.split(":"), node.split(":"), strict=True)] == [
            True,
            False,
            True,
        ]
        (message,) = more(connection)
        assert [a["id"] for a in message[2::2]] == [ID % 1, ID % 3]
        assert processed(connection, f"{BASE - 250} {node} 0") == []
        assert processed(connection, f"{BASE - 250} {connection.core.node_id} 3") == acked(1)

    def test_client_ids_differ_between_processes(self) -> None:
        """They must not depend on `random`, which many programs seed."""
        found = set()
        for n in range(3):
            connection = Driven(Logux(logux_config(), bytes([n] * 10)), Clock())
            for _ in range(3):
                connect(connection)
                found.add(connection.core.node_id.rpartition(":")[0])
                send(connection, 1)
                connection.lost()
        assert len(found) == 9

    def test_on_doubt_same_sends_the_same_ids(self) -> None:
        connection = connected(on_doubt="same", window=2, inflight=2)
        batch = send(connection, 5)
        node = connection.core.node_id
        processed(connection, f"{BASE - 250} {node} 1")
        for count in (2, 1, 1):  # connections that end before all is sent again
            connection.lost()
            connect(connection)
            assert connection.core.node_id == node
            connection.encode(batch, 2, NOW)
            message = sent(connection)[0]
            assert [meta["id"] for meta in message[3::2]] == [-250, [-250, 2]][:count]
        processed(connection, f"{BASE - 250} {node} 0")
        messages = more(connection)
        for counter in (2, 3):
            processed(connection, f"{BASE - 250} {node} {counter}")
        messages += more(connection)
        ids = [meta["id"] for m in messages if m[0] == "sync" for meta in m[3::2]]
        assert ids == [[-250, 2], [-250, 3], [-250, 4]], "first the actions in doubt, then the unsent ones"

    def test_settled_action_is_not_kept(self) -> None:
        connection = connected()
        before = sys.getsizeof(connection.codec)
        load(connection, [(b'{"a":"%b"}' % (b"x" * (2 << 20)), RAW)])
        more(connection)
        assert sys.getsizeof(connection.codec) > before + (2 << 20)
        processed(connection, f"{BASE - 250} {connection.core.node_id} 0")
        assert sys.getsizeof(connection.codec) < before + (1 << 20)

    def test_doubt_about_dropped_events_is_forgotten(self) -> None:
        connection = connected(on_doubt="same", window=1, inflight=1)
        batch = load(connection, [(b"{}", RAW)] * 9)
        for seq in range(1, 7):
            connection.encode(batch, 1, NOW)
            connection.core.connection_lost()
            if seq > 1:
                connection.in_flight.apply([(seq, seq)], FAILED)
                connection.events()
            connect(connection)
        connection.in_flight.requeue()
        connection.encode(batch, 1, NOW)
        (message,) = [m for m in sent(connection) if m[0] == "sync"]
        assert list(names(connection, message).values()) == [ID % 1]
        assert message[3]["id"] == [-250, 6]  # not the first of all

    def test_on_doubt_drop_fails_events_in_doubt(self) -> None:
        connection = connected(on_doubt="drop", window=2, inflight=2)
        send(connection, 6)
        node = connection.core.node_id
        processed(connection, f"{BASE - 250} {node} 1")
        assert connection.lost() == [Settled(1, 1, "failed", "doubt"), Settled(3, 4, "failed", "doubt")]
        connect(connection)
        assert connection.core.node_id == node
        (message,) = more(connection)
        assert [a["id"] for a in message[2::2]] == [ID % 5, ID % 6]


class TestPieces:
    """Less is in flight on a path that is too slow, and more again with outcomes."""

    def flying(self, connection: Connection, now: float = NOW, size: int = 1000) -> list[int]:
        """Send as much as may be in flight; return the actions in each message."""
        queue = EventQueue(max_bytes=1 << 30)
        for _ in range(2000):
            queue.push(b'{"n":"%b"}' % (b"x" * (size - 8)), 2, RAW)
        in_flight = connection.in_flight = InflightBatches(queue)
        while (credit := connection.credit(now))[0]:
            batch = in_flight.take(*credit)
            assert batch is not None
            connection.encode(batch, credit[0], now)
        return [len(m[2::2]) for m in sent(connection) if m[0] == "sync"]

    def test_first_messages_are_small(self) -> None:
        """Our answer to a ping of the server goes behind them."""
        assert self.flying(connected()) == [32, 31, 32, 31]  # 1,024 bytes each, as the queue counts them

    @pytest.mark.parametrize(("trip", "most"), [(0.3, 16), (0.002, 4)])
    def test_messages_in_flight_follow_the_round_trip(self, trip: float, most: int) -> None:
        connection = connected(ack="synced", window=10)
        now, seen = NOW, 0
        for _ in range(30):
            seen = max(seen, len(self.flying(connection, now)))
            now += trip
            receive(connection, "synced", connection.codec.added, now=now)
        assert seen >= most if most > 4 else seen == most

    @pytest.mark.parametrize("size", [60, 200, 1000, 2000])
    def test_less_is_in_flight_after_each_break(self, size: int) -> None:
        """Until messages have one action. They grow again with answers."""
        connection = connected(inflight=4, ack="synced")
        most = self.flying(connection, size=size)
        sizes = [most]
        while sizes[-1] != [1] * 4:
            connection.lost()
            connect(connection)
            sizes.append(self.flying(connection, size=size))
            assert len(sizes[-1]) == 4 and sizes[-1][0] <= max(1, sizes[-2][0] // 2)
        grown = sizes[-1]
        for _ in range(12):
            receive(connection, "synced", connection.codec.added)
            assert (grown := self.flying(connection, size=size)) > [1] * 4
        assert grown == most == [100] * 4


class TestTimeouts:
    def events_at(self, connection: Connection, now: float) -> list[Event]:
        """Return the events at a time; assert that none is due before."""
        timeout = connection.deadline(now - 1)
        assert timeout == pytest.approx(now)
        assert connection.timeout(now - 0.01) == []
        return connection.timeout(now)

    def test_connect_without_an_answer_times_out(self) -> None:
        connection = make()
        assert connection.deadline(NOW) is None
        connection.timeout(NOW)
        connection.connected(NOW)
        receive(connection, "headers", {}, now=NOW + 20)  # a message, but no answer
        (event,) = self.events_at(connection, NOW + 30)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError) and not event.forever

    def test_idle_core_pings_and_times_out(self) -> None:
        connection = connected()
        assert self.events_at(connection, NOW + 10) == []
        assert sent(connection) == [["ping", 0]]
        assert connection.deadline(NOW + 10) == NOW + 40
        assert receive(connection, "pong", 0, now=NOW + 11) == []
        assert self.events_at(connection, NOW + 21) == []
        assert sent(connection) == [["ping", 0]]
        (event,) = self.events_at(connection, NOW + 51)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError)

    def test_server_that_takes_bytes_is_alive(self) -> None:
        connection = connected(ping=50.0)
        send(connection, 1, NOW + 5)
        connection.codec.moved(NOW + 20)
        assert connection.deadline(NOW) == NOW + 50
        (event,) = self.events_at(connection, NOW + 50)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError)

    def test_silence_with_actions_in_flight_times_out(self) -> None:
        connection = connected(ping=50.0)
        send(connection, 1, NOW + 5)
        assert connection.deadline(NOW) == NOW + 35
        receive(connection, "debug", "error", "x", now=NOW + 7)
        (event,) = self.events_at(connection, NOW + 37)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError)

    def test_jam_is_left_by_a_new_client_id(self) -> None:
        connection = connected(on_doubt="same")
        node = connection.core.node_id
        send(connection, 2)
        receive(connection, "synced", 2, now=NOW + 1)
        for patience, helped in ((20, False), (40, False), (80, True), (20, False)):
            # The server lives and answers pings.
            now = NOW + 1
            while now + 10 < NOW + 1 + patience:
                now += 10
                connection.timeout(now)
                assert [m[0] for m in sent(connection)] == ["ping"]
                receive(connection, "pong", 0, now=now)
            (event,) = self.events_at(connection, NOW + 1 + patience)
            assert isinstance(event, Fatal) and str(event.error).startswith(
                "jam: the server has got 2 actions"
            )
            assert not event.forever and not isinstance(event.error, TimeoutError)
            connection.lost()
            connect(connection)
            assert connection.core.node_id != node
            node = connection.core.node_id
            (message,) = more(connection)
            assert all(name.split(" ")[1] == node for name in names(connection, message))
            receive(connection, "synced", message[1], now=NOW + 1)
            if helped:
                for seq, id in enumerate(names(connection, message), 1):
                    assert processed(connection, id, NOW + 1) == acked(seq)
                connection.credit(NOW + 1)
                load(connection, [(b"{}", RAW)] * 2)
                (message,) = [m for m in more(connection, NOW + 1) if m[0] == "sync"]
                receive(connection, "synced", message[1], now=NOW + 1)

    def test_jam_beside_processed_actions_is_noticed(self) -> None:
        """The real server may have several queues by type."""
        connection = connected(ping=1000.0)
        batch = load(connection, [(b"{}", RAW)] * 9)
        connection.encode(batch, 1, NOW)
        receive(connection, "synced", 1)
        for n in range(2, 6):
            now = NOW + 5 * (n - 1)
            assert connection.encode(batch, 1, now) == 1
            assert connection.deadline(now) == NOW + 20
            assert self.jam_events(connection, now - 0.1) == []
            receive(connection, "synced", n, now=now)
            message = [m for m in sent(connection) if m[0] == "sync"][-1]
            assert processed(connection, next(iter(names(connection, message))), now) == acked(n)
        (event,) = self.jam_events(connection, NOW + 20)
        assert isinstance(event, Fatal) and "has got 1 actions and processes none" in str(event.error)

    def test_each_action_has_its_own_processing_time(self) -> None:
        connection = connected(window=1, ping=1000.0)
        load(connection, [(b"{}", RAW)] * 3)
        messages = more(connection)
        ids = [id for message in messages for id in names(connection, message)]
        receive(connection, "synced", 3)
        for n, id in enumerate(ids):
            assert connection.deadline(NOW) == NOW + 19 * n + 20
            assert self.jam_events(connection, NOW + 19 * (n + 1)) == []
            assert processed(connection, id, NOW + 19 * (n + 1)) == acked(n + 1)
        assert connection.codec.open == 0 and connection.deadline(NOW) == NOW + 57 + 1000

    def test_jam_ends_when_its_actions_are_processed(self) -> None:
        """Even if newer actions are always in flight."""
        connection = connected(window=1, inflight=2)
        batch = load(connection, [(b"{}", RAW)] * 9)
        connection.encode(batch, 1, NOW)
        receive(connection, "synced", 1)
        assert self.jam_events(connection, NOW + 20)
        connection.lost()
        connect(connection)
        for seq in range(1, 4):
            more(connection)
            id = f"{BASE - 250} {connection.core.node_id} {seq}"
            assert processed(connection, id) == acked(seq)
            more(connection)
            assert connection.core.state == "sending"
        receive(connection, "synced", connection.codec.added)
        assert self.jam_events(connection, NOW + 20)

    def test_fast_action_does_not_shorten_the_time_of_slow_ones(self) -> None:
        """Otherwise slow ones would be added again for ever."""
        connection = connected(ping=1000.0)
        send(connection, 2)
        receive(connection, "synced", 2)
        assert self.jam_events(connection, NOW + 20)
        connection.lost()
        connect(connection)
        (message,) = more(connection)
        receive(connection, "synced", message[1])
        quick, slow = names(connection, message)
        assert processed(connection, quick) == acked(1)
        connection.credit(NOW)
        assert self.jam_events(connection, NOW + 39) == []
        assert processed(connection, slow, NOW + 39) == acked(2)

    def test_longer_processing_times_are_bounded(self) -> None:
        """The engine's own deadline must not come first, as no new client id would be taken."""
        connection = connected(on_doubt="same")
        send(connection, 1)
        for _ in range(9):
            receive(connection, "synced", connection.codec.added)
            node = connection.core.node_id
            assert self.jam_events(connection, NOW + 160)
            connection.lost()
            connect(connection)
            assert connection.core.node_id != node
            more(connection)

    def test_processing_time_adapts_to_a_slow_server(self) -> None:
        connection = connected()
        send(connection, 1)
        receive(connection, "synced", 1)
        (_event,) = self.jam_events(connection, NOW + 20)
        connection.lost()
        connect(connection)
        (message,) = more(connection)
        receive(connection, "synced", message[1])
        (id,) = names(connection, message)
        assert processed(connection, id, NOW + 30) == acked(1)
        connection.credit(NOW + 30)
        load(connection, [(b"{}", RAW)])
        (message,) = [m for m in more(connection, NOW + 30) if m[0] == "sync"]
        receive(connection, "synced", message[1], now=NOW + 30)
        assert self.jam_events(connection, NOW + 69) == []
        assert len(self.jam_events(connection, NOW + 70)) == 1

    def jam_events(self, connection: Connection, now: float) -> list[Event]:
        receive(connection, "debug", "error", "I live", now=now)
        return [e for e in connection.timeout(now) if isinstance(e, Fatal)]

    def test_server_that_asks_and_does_not_read_is_fatal(self) -> None:
        connection = connected()
        for _ in range(100_000):
            assert connection.receive(b'["ping",0]', NOW) == []
        (event,) = connection.receive(b'["ping",0]', NOW)
        assert isinstance(event, Fatal) and "does not read" in str(event.error)
        connection = connected()
        connection.codec.add_answer(1)
        for n in range(99_999):
            assert connection.receive(b'["sync",%d]' % n, NOW) == []
        (event,) = connection.receive(b'["sync",0]', NOW)
        assert isinstance(event, Fatal) and "does not read" in str(event.error)


# -- a server with random behaviour ---------------------------------------------------------------------


class RandomServer(Link):
    """A Logux server in a link: one queue for each client id, undone from a failing action on.

    Args:
        script: what else happens, at random; nothing once it is `calm`.
    """

    peer = "server"

    def __init__(self, script: Random, clock: Clock) -> None:
        self.script = script
        self.clock = clock
        self.calm = False
        self.processed: list[str] = []  # stable ids
        self.metas: list[str] = []
        self.undone: dict[str, list[str]] = {}
        self.jammed: set[str] = set()
        self.nodes: list[str] = []
        self.waiting_answers = 0
        self.disturbed = 0
        self.sends = 0
        self.over = True

    def connect(self) -> None:
        self.over = False
        self.node = ""
        self.queue: deque[tuple[str, dict[str, Any]]] = deque()
        self.out: deque[bytes] = deque()
        self.unanswered = 0

    def answer(self, *message: Any) -> None:
        spaces = None if self.script.random() < 0.2 else (",", ":")  # it reads all that is JSON
        self.out.append(json.dumps(message, separators=spaces).encode())

    def send_action(self, action: dict[str, Any]) -> None:
        self.unanswered += 1
        self.answer("sync", self.script.choice([0, 0, 3]), action, {"id": 1, "time": 1, "subprotocol": 1})

    # as a link

    def send(self, buffers: Any) -> bool:
        self.sends += 1
        message = json.loads(b"".join(bytes(b) for b in buffers))
        kind = message[0]
        if kind == "connect":
            self.node = message[2]
            self.nodes.append(self.node)
            now = int(self.clock.wall() * 1000)
            self.base = now
            self.answer("connected", 5, "server:x", [now, now], {"subprotocol": 1})
        elif kind == "ping":
            self.answer("pong", 0)
        elif kind == "synced":
            self.unanswered -= 1
        elif kind == "sync":
            self.answer("synced", message[1])
            for action, meta in zip(message[2::2], message[3::2], strict=True):
                shift, *rest = meta["id"] if isinstance(meta["id"], list) else [meta["id"]]
                self.queue.append((f"{shift + self.base} {self.node} {rest[0] if rest else 0}", action))
        return True

    def flush(self) -> bool:
        return True

    def work(self) -> None:
        """Process some of the queue."""
        client = self.node.rpartition(":")[0]
        if client in self.jammed:
            return
        some = len(self.queue) if self.calm else self.script.randint(0, len(self.queue))
        while some > 0 and self.queue:
            some -= 1
            id, action = self.queue.popleft()
            name, what = action["id"], action["data"].get("do", "")
            before = self.undone.setdefault(name, [])
            if what == "throw" or (what == "once" and "error" not in before):
                self.undo(id, action, "error")
            elif what in ("denied", "unknownType"):
                self.undo(id, action, what)
            elif what == "custom":
                before.append(what)
                self.send_action({"type": "logux/undo", "id": id, "reason": what, "action": action})
                continue
            else:
                self.processed.append(name)
                self.metas.append(id)
                self.send_action({"id": id, "type": "logux/processed"})
                continue
            for id, action in self.queue:
                self.send_action({"type": "logux/undo", "id": id, "reason": "error", "action": action})
                self.disturbed += 1
            self.queue.clear()

    def undo(self, id: str, action: dict[str, Any], reason: str) -> None:
        self.undone[action["id"]].append(reason)
        self.send_action({"action": action, "type": "logux/undo", "id": id, "reason": reason})

    def receive(self) -> bytes | None:
        if self.over:
            return b""
        if not self.calm:
            if self.script.random() < 0.01:
                self.disturbed += 1
                if self.script.random() < 0.5:
                    self.work()  # without an answer
                self.over = True
                return b""
            if self.script.random() < 0.003 and self.node:
                self.disturbed += 1
                self.jammed.add(self.node.rpartition(":")[0])
            if self.script.random() < 0.05:
                self.answer(*self.script.choice([
                    ["ping", 0], ["pong", 1], ["synced", 0], ["debug", "error", "x"], ["ready", 1],
                    ["sync", 1, {"type": "other"}, {"id": 1, "time": 1}],
                ]))  # fmt: skip
        if not self.out:
            self.work()
        return self.out.popleft() if self.out else None

    def wait(self, seconds: float, writable: bool) -> None:
        self.clock.now += 0.001 if self.out or self.queue else max(0.001, min(seconds, 1.0))
        if self.script.random() < 0.01:
            self.clock.ahead += self.script.choice([-3600, 3600, 0.5])


def drive(connection: Connection, link: RandomServer, clock: Clock, until: float) -> list[Event]:
    """Run a connection by this clock, until it has events or a time is reached; return the events."""
    found: list[Event] = []
    while not found and clock.now < until:
        for message in split(connection.send(clock.now)):
            link.send([message])
        found = connection.timeout(clock.now)
        if found:
            break
        deadline = connection.deadline(clock.now)
        link.wait(min(until, deadline or until) - clock.now, False)
        while (data := link.receive()) is not None:
            found += connection.receive(data, clock.now)
            if not data:
                break
    return found


def deliver(
    does: list[str], script: Random, *, calm: bool = False, rounds: int = 100_000, **options: Any
) -> tuple[RandomServer, dict[str, tuple[str, str]], Connection]:
    """Send events with these instructions; return the outcome of each."""
    clock = Clock()
    connection = make(clock, **options)
    for what in does:
        connection.put(json.dumps({"do": what}).encode())
    server = RandomServer(script, clock)
    server.calm = calm
    outcomes: dict[str, tuple[str, str]] = {}
    for _ in range(rounds):
        if server.over:
            server.connect()
            connection.connected(clock.now)
        events = drive(connection, server, clock, clock.now + 5)
        if any(isinstance(event, Fatal | CloseWanted) for event in events):
            server.over = True
            events += connection.lost()
        for event in events:
            if isinstance(event, Settled):
                for seq in range(event.first, event.last + 1):
                    assert ID % seq not in outcomes
                    outcomes[ID % seq] = event.status, event.reason
        if len(outcomes) == len(does):
            break
        server.calm = server.calm or len(server.nodes) > 30
    assert len(outcomes) == len(does), f"{len(does) - len(outcomes)} without an outcome"
    return server, outcomes, connection


OUTCOMES = {
    "": ("acked", ""), "throw": ("failed", "error"), "once": ("acked", ""), "denied": ("failed", "denied"),
    "unknownType": ("failed", "unknown_type"), "custom": ("failed", "rejected"),
}  # fmt: skip


class TestDelivery:
    @examples(150)
    @given(
        st.lists(st.sampled_from(["", "", "", "", *OUTCOMES]), min_size=1, max_size=120),
        st.integers(0, 2**32).map(Random), st.booleans(), st.sampled_from([(1, 1), (2, 3), (3, 10),
        (4, 100)]),
        st.sampled_from(["new_client", "same", "drop"]),
    )  # fmt: skip
    def test_every_event_gets_its_outcome(
        self, does: list[str], script: Random, calm: bool, room: tuple[int, int], policy: str
    ) -> None:
        server, outcomes, connection = deliver(
            does, script, calm=calm, inflight=room[0], window=room[1], on_doubt=policy, silence=5.0,
            ping=2.0, processing_timeout=3.0,
        )  # fmt: skip
        names = {ID % seq: what for seq, what in enumerate(does, 1)}
        for name, what in names.items():
            if outcomes[name] == ("acked", ""):
                assert name in server.processed and what in ("", "once")
            elif policy == "drop" and outcomes[name] == ("failed", "doubt"):
                assert server.disturbed
            else:
                assert outcomes[name] == OUTCOMES[what]
        if policy != "same":
            assert len(set(server.metas)) == len(server.metas)  # no id twice
        if not server.disturbed:
            clean = [name for name in server.processed if names[name] == ""]
            assert clean == [name for name, what in names.items() if what == ""]
        if policy == "new_client" and not server.jammed and len(server.nodes) == 1:
            assert len(set(server.processed)) == len(server.processed)
        assert connection.codec.open == 0

    @pytest.mark.parametrize("room", [(4, 100), (1, 1), (2, 5)])
    @pytest.mark.parametrize(("what", "most"), [("throw", 4), ("denied", 3), ("unknownType", 3)])
    def test_server_that_undoes_everything_fails_each_event(
        self, room: tuple[int, int], what: str, most: int
    ) -> None:
        n = 1000
        server, outcomes, _ = deliver([what] * n, Random(1), calm=True, inflight=room[0], window=room[1])
        assert set(outcomes.values()) == {OUTCOMES[what]}
        # The number of sends grows with the failures, not with their square.
        assert sum(map(len, server.undone.values())) + server.disturbed < most * n

    @examples(30)
    @given(st.integers(1, 200), st.integers(0, 2**32).map(Random), st.booleans())
    def test_ack_synced_acks_every_event(self, n: int, script: Random, calm: bool) -> None:
        server, outcomes, _ = deliver(
            [""] * n, script, calm=calm, ack="synced", window=7, silence=5.0, ping=2.0, processing_timeout=3.0
        )
        assert set(outcomes.values()) == {("acked", "")}
        assert server.disturbed or len(server.nodes) == 1

    def test_few_failures_cost_few_resends(self) -> None:
        does = ["throw" if n % 100 == 7 else "" for n in range(5000)]
        server, outcomes, _ = deliver(does, Random(1), calm=True)
        assert list(outcomes.values()).count(("failed", "error")) == 50
        assert len(server.processed) == len(set(server.processed)) == 4950
        # the window recovers: a run costs only the rest of what was in flight
        assert server.disturbed < 50 * 400

    @pytest.mark.parametrize("what", ["denied", "unknownType"])
    def test_many_refusals_cost_few_resends(self, what: str) -> None:
        does = [what if n % 7 == 6 else "" for n in range(3500)]
        server, outcomes, _ = deliver(does, Random(1), calm=True)
        assert list(outcomes.values()).count(OUTCOMES[what]) == 500
        assert len(server.processed) == len(set(server.processed)) == 3000
        # no more than were processed between two refusals are in flight, and twice that before the next one
        assert server.disturbed < 500 * 13

    def test_window_grows_again_after_undos(self) -> None:
        connection = connected()
        load(connection, [(b"{}", RAW)] * 4)
        for message in more(connection):
            for id in names(connection, message):
                assert undo(connection, id, "denied")  # and nothing is processed
        sent(connection)
        load(connection, [(b"{}", RAW)] * 3000)
        most, held = [], 0
        for _ in range(3000):
            messages = [m for m in more(connection) if m[0] == "sync"]
            if not messages:
                break
            most.append(sum(len(m) // 2 - 1 for m in messages))
            for message in messages:
                for id in names(connection, message):
                    held += len(processed(connection, id))
        assert held == 3000 and most[0] == 1 and max(most) == 400
        assert len(most) < 30
