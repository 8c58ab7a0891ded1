"""The Logux client without sockets: messages, outcomes, and its way around the traps of real servers."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections import deque
from random import Random, random
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.constants import ACKED, FAILED, REASONS, STATUSES
from logclient._ext.constants import K_DOCUMENT as DOCUMENT
from logclient._ext.constants import K_RAW as RAW
from logclient._ext.hash import xxh64
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.logux import Codec
from logclient._ext.queue import EventQueue
from logclient.config.parsing import parse
from logclient.delivery.contract import (
    Alive,
    CloseWanted,
    Core,
    CoreEvent,
    Fatal,
    Inbound,
    Link,
    Progress,
    Reply,
    Retry,
    Settled,
)
from logclient.errors import ConfigError, CredentialError, ProtocolError
from logclient.logux.core import Action, DebugText, Logux, Opened, Received, Undone
from logclient.logux.messages import Headers
from tests.oracle import logux_client as oracle
from tests.support.batches import inflight_of
from tests.support.configs import logux_config
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


def make_core(clock: Clock | None = None, **options: Any) -> Logux:
    core = Logux(logux_config(**{"token": "secret", **options}), PRODUCER)
    core.wall = (clock or Clock()).wall
    return core


def sent(core: Logux) -> list[list[Any]]:
    return [json.loads(text) for text in raw(core)]


def raw(core: Logux) -> list[bytes]:
    texts = [b"".join(bytes(buffer) for buffer in wire.buffers) for wire in core.data_to_send()]
    core.sent()
    assert core.data_to_send() == []
    return texts


def receive(core: Logux, *message: Any, now: float = NOW) -> list[CoreEvent]:
    """Let the core receive a message, written as JavaScript does; return its events."""
    core.receive_data(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(), now)
    return list(core.events_received())


def connected_core(clock: Clock | None = None, **options: Any) -> Logux:
    """Return a core after `connected`, when the server's clock showed BASE."""
    core = make_core(clock, **options)
    connect(core)
    return core


def connect(core: Logux, now: float = NOW) -> None:
    core.connected(now, lambda: 0.5)
    assert core.state == "connecting"
    raw(core)
    assert receive(core, "connected", 5, "server:x", [BASE, BASE], now=now) == [Inbound(Opened("server:x"))]
    assert core.state == "synchronized"


def send(core: Logux, n: int, now: float = NOW) -> tuple[InflightBatches, Batch]:
    """Send actions 1 to n in one batch, as many as the credit allows."""
    in_flight, batch = inflight_of([(b'{"n":1}', RAW)] * n)
    more(core, in_flight, batch, now)
    return in_flight, batch


def more(core: Logux, in_flight: InflightBatches, batch: Batch, now: float = NOW) -> list[Any]:
    """Send from a batch as much as the credit allows; return the messages."""
    while events := core.credit(now)[0]:
        n = core.encode(batch, events, now)
        in_flight.encoded(batch)
        if not n:
            break
    return sent(core)


def names(core: Logux, message: list[Any]) -> dict[str, str]:
    """Return {absolute id: stable id} of the actions of a sync."""
    found = {}
    for action, meta in zip(message[2::2], message[3::2], strict=True):
        shift, *rest = meta["id"] if isinstance(meta["id"], list) else [meta["id"]]
        found[f"{shift + BASE} {core.node_id} {rest[0] if rest else 0}"] = action["id"]
    return found


def processed(core: Logux, id: str, now: float = NOW, added: int = 0) -> list[CoreEvent]:
    meta = {"id": 4, "time": 4, "subprotocol": 1}
    return receive(core, "sync", added, {"id": id, "type": "logux/processed"}, meta, now=now)


def undo(core: Logux, id: str, reason: Any = "error", now: float = NOW) -> list[CoreEvent]:
    """Receive an undo; return the events without the report of the undo, which precedes its outcome."""
    action = {"action": {"type": "log/add"}, "id": id, "reason": reason, "type": "logux/undo"}
    events = receive(core, "sync", 0, action, {"id": [1, 1], "time": 1, "subprotocol": 1}, now=now)
    found = []
    for event, after in zip(events, [*events, None][1:], strict=True):
        if not (isinstance(event, Inbound) and isinstance(event.payload, Undone)):
            found.append(event)
            continue
        assert isinstance(after, Settled) and after.ranges == [(event.payload.seq, event.payload.seq)]
        assert event.payload.action == action
    return found


def test_core_has_the_type_of_a_core_with_codec() -> None:
    core: Core = make_core()
    assert core.codec is not None


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
        core = make_core(token="hush")
        assert not any("hush" in repr(value) for value in vars(core).values())
        core.connected(NOW, random)
        assert sent(core)[0][4]["token"] == "hush"


class TestConnect:
    def test_connect_has_protocol_node_id_and_token(self) -> None:
        core = make_core(user="10")
        core.connected(NOW, random)
        (message,) = sent(core)
        assert message == ["connect", 5, core.node_id, 0, {"token": "secret", "subprotocol": 1}]
        assert core.node_id.split(":")[0] == "10" and len(core.node_id.split(":")) == 3
        assert " " not in core.node_id

    @pytest.mark.parametrize(("options", "sent_options"), [
        ({"token": None}, {"subprotocol": 1}), ({"token": ""}, {"subprotocol": 1}),
        ({"subprotocol": 0}, {"token": "secret"}), ({"token": None, "subprotocol": 0}, None),
        ({"strict_spec": True}, {"token": "secret", "subprotocol": "1.0.0"}),
        ({"subprotocol": "1.2.3", "strict_spec": True}, {"token": "secret", "subprotocol": "1.2.3"}),
    ])  # fmt: skip
    def test_unset_options_are_left_out_of_connect(
        self, options: dict[str, Any], sent_options: dict[str, Any] | None
    ) -> None:
        core = make_core(**options)
        core.connected(NOW, random)
        assert sent(core)[0][4:] == ([sent_options] if sent_options else [])

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
        core = connected_core()
        receive(core, "ping", 3)
        receive(core, "sync", 7, {"type": "a"}, {"id": 1, "time": 1})
        receive(core, "pong", 5)
        processed(core, "1 x 1", added=9)
        core.connection_lost()
        assert core.state == "disconnected"
        core.connected(NOW, random)
        assert sent(core)[0][3] == 9

    def test_resumed_core_keeps_client_id_and_number(self) -> None:
        core = make_core(user="10", state="file")
        tab = core.node_id.split(":")[2]
        core.resume("abc", 3, 17)
        assert core.node_id == f"10:abc-3:{tab}"
        connect(core)
        assert receive(core, "ping", 16) == []
        assert receive(core, "ping", 18) == [Inbound(Received(18))]
        assert processed(core, "1 x 1", added=19)[-1] == Inbound(Received(19))
        news, received = receive(core, "sync", 20, {"type": "a"}, {"id": 1, "time": 1})
        assert isinstance(news, Inbound) and isinstance(news.payload, Action)  # first
        assert received == Inbound(Received(20))
        core.connection_lost()
        core.connected(NOW, random)
        assert sent(core)[0][2:4] == [f"10:abc-3:{tab}", 20]

    def test_headers_go_before_connect_and_replace_all(self) -> None:
        core = make_core()
        core.post_command("headers", {"lang": "en", "x": 1}, 0)
        core.connected(NOW, random)
        assert [m[:2] for m in sent(core)] == [["headers", {"lang": "en", "x": 1}], ["connect", 5]]
        receive(core, "connected", 5, "server:x", [BASE, BASE])
        core.post_command("headers", {"lang": "fr"}, 1)
        core.credit(NOW)
        assert sent(core) == [["headers", {"lang": "fr"}]]
        core.connection_lost()
        core.connected(NOW, random)
        assert sent(core)[0] == ["headers", {"lang": "fr"}]
        mine = {"a": [1]}
        core.post_command("headers", mine, 1)
        mine["a"].append(2)
        core.connection_lost()
        connect(core)
        core.post_command("headers", {}, 2)
        core.credit(NOW)
        assert sent(core) == [["headers", {}]]
        core.connection_lost()
        core.connected(NOW, random)
        assert [m[0] for m in sent(core)] == ["connect"]

    @pytest.mark.parametrize("wrong", [None, [], {"length": 1}, {"a": float("nan")}, {"a": {1}}, "x"])
    def test_headers_that_break_servers_are_refused(self, wrong: Any) -> None:
        core = connected_core()
        with pytest.raises(ValueError, match="headers: "):
            core.post_command("headers", wrong, 1)
        with pytest.raises(ValueError, match="Logux has no 'stat'"):
            core.post_command("stat", {}, 1)
        with pytest.raises(ValueError, match="Logux has no 'stat'"):
            core.call("stat")
        core.credit(NOW)
        assert sent(core) == []

    def test_pings_are_sent_and_answered_in_order(self) -> None:
        core = make_core()
        core.connected(NOW, random)
        token = core.call("ping")
        assert [m[0] for m in sent(core)] == ["connect"]
        receive(core, "connected", 5, "server:x", [BASE, BASE])
        assert sent(core) == [["ping", 0]]
        other = core.call("ping")
        assert receive(core, "pong", 0) == [Reply(token, "server:x")]
        assert receive(core, "pong", 0) == [Reply(other, "server:x")]
        assert receive(core, "pong", 0) == []
        receive(core, "ping", 0)
        assert sent(core) == [["ping", 0], ["pong", 0]]

    @pytest.mark.parametrize("first", ["ping", "pong", "synced"])
    @pytest.mark.parametrize("second", ["ping", "pong"])
    def test_two_messages_in_one_are_refused(self, first: str, second: str) -> None:
        core = make_core()
        core.connected(NOW, random)
        receive(core, "connected", 5, "server:x", [BASE, BASE])
        core.receive_data(f'["{first}",0]["{second}",0]'.encode(), NOW)
        (event,) = core.events_received()
        assert isinstance(event, Fatal) and "invalid message" in str(event.error)

    def test_nothing_is_sent_before_connected(self) -> None:
        core = make_core()
        assert core.credit(NOW) == (0, 0)
        core.connected(NOW, random)
        assert core.credit(NOW) == (0, 0)
        receive(core, "headers", {"env": "development"})
        assert core.credit(NOW) == (0, 0)
        receive(core, "connected", 5, "server:x", [BASE, BASE])
        assert core.credit(NOW) == (100, 32 << 10)

    @pytest.mark.parametrize("message", [
        ["connected", 5, "server:x", [1.5, 2.5]], ["connected", 5, "server:x", [-5, -4]],
        ["connected", 5, "server:x", [0, 2**53]], ["connected", 5, "s" * 1025, [1, 1]],
        ["sync", 1], ["synced", 1], ["ping", 1], ["pong", 1],
        ["connect", 5, "x", 0], ["connected", 5, "x y", [1, 1]], ["connected", "5", "x", [1, 1]],
        ["connected", 5, "x", None], ["sync", 1, None, None], [], [1], None, {"length": 1},
        ["error"], ["headers", None], ["headers", {"length": 1}], ["debug", "other", "x"],
    ])  # fmt: skip
    def test_message_out_of_turn_or_invalid_is_fatal(self, message: Any) -> None:
        core = make_core()
        core.connected(NOW, random)
        core.receive_data(json.dumps(message).encode(), NOW)
        (event,) = core.events_received()
        assert isinstance(event, Fatal) and isinstance(event.error, ProtocolError) and not event.forever
        assert str(event.error).isprintable() and len(str(event.error)) < 400
        assert core.credit(NOW) == (0, 0)
        assert receive(core, "connected", 5, "server:x", [BASE, BASE]) == []

    @pytest.mark.parametrize("message", [["connect", 5, "x", 0], ["connected", 5, "x", [1, 1]]])
    def test_second_connected_is_fatal(self, message: list[Any]) -> None:
        (event,) = receive(connected_core(), *message)
        assert isinstance(event, Fatal) and not event.forever

    def test_older_protocol_is_fatal_for_ever(self) -> None:
        core = make_core()
        core.connected(NOW, random)
        (event,) = receive(core, "connected", 4, "server:x", [BASE, BASE])
        assert isinstance(event, Fatal) and event.forever and "protocol 4" in str(event.error)

    def test_silent_refusal_is_asked_in_the_older_form(self) -> None:
        """Servers of protocol 4 close without a reason. Asked in the older form, they name their protocol."""
        core = make_core(subprotocol=3)
        core.connected(NOW, random)
        assert sent(core)[0][4]["subprotocol"] == 3
        core.receive_eof()
        (event,) = core.events_received()
        assert isinstance(event, Fatal) and not event.forever
        assert "protocol 4 (@logux/server 0.13 and older)" in str(event.error)
        core.connection_lost()
        core.connected(NOW, random)
        assert sent(core)[0][4]["subprotocol"] == "3.0.0"
        (event,) = receive(core, "connected", 4, "server:x", [BASE, BASE])
        assert isinstance(event, Fatal) and event.forever
        assert "the server speaks protocol 4 (@logux/server 0.13 and older), we speak protocol 5" in str(
            event.error
        )

    def test_older_server_with_a_version_range_is_fatal(self) -> None:
        core = make_core()
        core.connected(NOW, random)
        (event,) = receive(core, "error", "wrong-subprotocol", {"supported": "2.x", "used": "0.0.0"})
        assert isinstance(event, Fatal) and event.forever
        assert "protocol 4 (@logux/server 0.13 and older)" in str(event.error)
        assert "'2.x' is supported" in str(event.error)

    @pytest.mark.parametrize("answer", [5, 0])
    def test_older_form_is_tried_once_only(self, answer: int) -> None:
        """The server had another reason to close, such as being stopped."""
        core = make_core()
        for n, form in enumerate((1, "1.0.0", 1, 1)):
            core.connected(NOW, random)
            assert sent(core)[0][4]["subprotocol"] == form
            if form == "1.0.0" and answer:
                (event,) = receive(core, "connected", 5, "server:x", [BASE, BASE])
                assert isinstance(event, Fatal) and not event.forever
            else:
                core.receive_eof()
                assert len(list(core.events_received())) == (n == 0)
            core.connection_lost()
        connect(core)

    @pytest.mark.parametrize("options", [{"strict_spec": True, "subprotocol": "1.0.0"}, {"subprotocol": 0}])
    def test_no_older_form_without_a_numeric_subprotocol(self, options: dict[str, Any]) -> None:
        core = make_core(**options)
        core.connected(NOW, random)
        core.receive_eof()
        assert list(core.events_received()) == []

    @pytest.mark.parametrize("strict", [False, True])
    def test_unknown_message_is_counted_and_ignored(self, strict: bool) -> None:
        core = connected_core(strict_spec=strict)
        assert receive(core, "ready", 0) == []
        assert core.unknown == 1
        assert [m[:2] for m in sent(core)] == ([["error", "wrong-format"]] if strict else [])
        assert core.credit(NOW)[0] == 100

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
        core = make_core()
        core.connected(NOW, random)
        (event,) = receive(core, *message)
        assert isinstance(event, Fatal) and type(event.error) is error and event.forever is forever
        words = str(event.error)
        assert words.isprintable() and len(words) < 400
        assert message[1] in words or not message[1].isprintable()

    @pytest.mark.parametrize("token", ["hunter2", 'hun"ter2', "hunter2" * 1000, "h\xfcnter2"])
    def test_token_quoted_by_the_server_is_masked(self, token: str) -> None:
        """The real server quotes messages that it finds invalid."""
        for name in ("wrong-format", "my-own", f"no {token}"):
            core = make_core(token=token)
            core.connected(NOW, random)
            (message,) = raw(core)
            (event,) = receive(core, "error", name, message.decode()[:4096])
            assert isinstance(event, Fatal)
            assert "ter2" not in str(event.error) and "hun" not in str(event.error)
        core = make_core(token=token)
        core.connected(NOW, random)
        for text in (f"bad {token}!", message.decode()):
            (debug,) = receive(core, "debug", "error", text)
            assert isinstance(debug, Inbound) and "ter2" not in debug.payload.text
        (event,) = receive(core, "error", "refused", {"was": [token]})
        assert isinstance(event, Fatal) and "hunter2" not in str(event.error)

    def test_answers_to_unknown_messages_are_short(self) -> None:
        core = connected_core(strict_spec=True)
        for _ in range(100):
            receive(core, "x" * 1_000_000)
        assert sum(map(len, raw(core))) < 100_000

    def test_wrong_format_of_an_action_closes_the_connection(self) -> None:
        """The server does not say which action. The engine finds it by trials."""
        core = connected_core()
        send(core, 1)
        debug, end = receive(core, "error", "wrong-format", "x")
        assert isinstance(debug, Inbound) and isinstance(debug.payload, DebugText)
        assert end == CloseWanted()


# -- sending --------------------------------------------------------------------------------------------


class TestSync:
    def test_batch_goes_in_syncs_of_the_window(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(b'{"n":%d}' % n, RAW) for n in range(250)])
        messages = more(core, in_flight, batch)
        assert [m[:2] for m in messages] == [["sync", 100], ["sync", 200], ["sync", 250]]
        assert [a for m in messages for a in m[2::2]] == [
            {"type": "log/add", "data": {"n": n}, "id": ID % (n + 1)} for n in range(250)
        ]
        ids = [id for m in messages for id in names(core, m)]
        assert len(set(ids)) == 250
        metas = [meta for m in messages for meta in m[3::2]]
        assert metas[0]["id"] == -250 and metas[1]["id"] == [-250, 1]
        assert all(set(meta) == {"id", "time"} for meta in metas)
        assert core.state == "sending"

    def test_credit_counts_unsettled_syncs(self) -> None:
        core = connected_core(inflight=2, window=10)
        _in_flight, batch = send(core, 25)
        assert list(batch.statuses().values()).count("inflight") == 20
        assert core.credit(NOW) == (0, 256 << 10)
        receive(core, "synced", 20)
        assert core.credit(NOW)[0] == 0
        for counter in range(9):
            processed(core, f"{int(WALL * 1000)} {core.node_id} {counter}")
        assert core.credit(NOW)[0] == 0
        processed(core, f"{int(WALL * 1000)} {core.node_id} 9")
        assert core.credit(NOW)[0] == 10

    def test_sync_ends_at_window_bytes(self) -> None:
        core = connected_core(window_bytes=1000)
        body = b'{"n":"%s"}' % (b"x" * 392)
        large = b'{"n":"%s"}' % (b"x" * 5000)
        in_flight, batch = inflight_of([(body, RAW)] * 4 + [(large, RAW), (body, RAW)])
        # The last one waits: the large one is more than four messages together may be.
        assert [len(m[2::2]) for m in more(core, in_flight, batch)] == [2, 2, 1]

    def test_own_time_and_subprotocol_go_into_the_meta(self) -> None:
        core = connected_core(Clock())
        own = struct.pack("<qq", int(WALL * 1000) - 5000, 7) + b'{"type":"a"}'
        none = struct.pack("<qq", -(2**63), -1) + b'{"type":"a"}'
        in_flight, batch = inflight_of([(own, RAW | TIMED), (none, TIMED)])
        ((_, _, _, first, _, second),) = more(core, in_flight, batch)
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
        core = connected_core()
        in_flight, batch = inflight_of([(b"{}", RAW), (body, kind), (b"{}", RAW)])
        ((*_, a, _, b, _),) = more(core, in_flight, batch)
        assert (a["id"], b["id"]) == (ID % 1, ID % 3)
        assert in_flight.take_report() == [(2, 2, "failed", reason)]

    @pytest.mark.parametrize("body", [
        b'{"type":"a","length":"1"}', b'{"type":"a","data":{"length":1}}',
        b'{"type":"a","length":1,"length":[]}',
        b'{"type":"a","length":null}', b'{"type":1,"ty\\u0070e":"a"}', b' {"type" : "a" , "b":[{"type":2}]} ',
    ])  # fmt: skip
    def test_unusual_valid_action_is_sent(self, body: bytes) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(body, RAW | WHOLE)])
        ((_, _, action, _),) = more(core, in_flight, batch)
        assert action == {**json.loads(body), "id": ID % 1}

    def test_fields_of_an_event_stay_within_data(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(b'{"length":5,"type":7,"id":"mine"}', RAW)])
        ((_, _, action, _),) = more(core, in_flight, batch)
        assert action == {"type": "log/add", "data": {"length": 5, "type": 7, "id": "mine"}, "id": ID % 1}

    def test_body_is_sent_unchanged_without_identity_and_check(self) -> None:
        core = connected_core(identity="none", check=False, action_type='lög "x"')
        _in_flight, batch = inflight_of([(b" {oops} ", RAW), (b'{"type":"a"}', RAW | WHOLE)])
        core.encode(batch, 9, NOW)
        (text,) = raw(core)
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
        core = connected_core(identity="id" if identity else "none", check=check, silence=1e9)
        given_ = [(body, kind | nibble) for (body, nibble), kind in events]
        # Without a check, bodies must be JSON where their fields are searched.
        given_ = [
            (body, kind)
            for body, kind in given_
            if not kind >> 4
            or (check and kind & 3 == RAW)
            or isinstance(oracle.action(body, kind & ~3 | RAW, 1, PRODUCER), oracle.Text)
        ]
        in_flight, batch = inflight_of(given_ or [(b"{}", RAW)])
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
        n = core.encode(batch, 100, NOW)
        got = batch.hashes()
        in_flight.encoded(batch)
        assert n == len(expected)
        assert raw(core) == ([oracle.sync(0, expected, BASE)] if expected else [])
        assert {s: r for s, t, f, r in in_flight.take_report() for s in range(s, t + 1)} == failures
        assert {s: h for s, h in got.items() if s in hashes} == hashes

    def test_own_ids_are_hashed_for_the_ledger(self) -> None:
        core = connected_core()
        events = [(b'{"type":"a","id":%s}' % id, RAW | WHOLE) for id in (b'"mine"', b"[1,2]", b'""')]
        in_flight, batch = inflight_of(events)
        core.encode(batch, 9, NOW)
        (line,) = [json.loads(x) for x in in_flight.encoded(batch).splitlines() if b'"ids"' in x]
        import base64

        words = struct.unpack("<6Q", base64.b64decode(line["ids"]))
        assert words == tuple(w for own in (b"mine", b"[1,2]", b"") for w in (xxh64(own), xxh64(own, 43)))
        assert all("id" in a and a["id"] != ID % 1 for a in sent(core)[0][2::2])


class TestIds:
    def test_ids_rise_when_the_clock_goes_back(self) -> None:
        clock = Clock()
        core = connected_core(clock, window=10)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 60)
        found: list[tuple[int, int]] = []

        def some() -> None:
            core.encode(batch, 10, clock.now)
            in_flight.encoded(batch)
            (message,) = [m for m in sent(core) if m[0] == "sync"]
            pairs = [id.split(" ") for id in names(core, message)]
            found.extend((int(ms), int(n)) for ms, _, n in pairs)
            for id in names(core, message):
                processed(core, id)

        some()
        clock.ahead -= 3600
        some()
        core.connection_lost()
        connect(core)
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
        core = make_core(clock)
        core.connected(clock.now, random)
        raw(core)
        clock.now += 0.2  # 50 ms there, 100 in the server, 50 back
        base = int(WALL * 1000) + 3_600_000 + 150
        receive(core, "connected", 5, "server:x", [base - 100, base], now=clock.now)
        clock.now += 5
        own = struct.pack("<qq", round((clock.wall() - 1) * 1000), -1) + b'{"type":"a"}'
        _in_flight, batch = inflight_of([(own, TIMED)])
        core.encode(batch, 1, clock.now)
        ((_, _, _, meta),) = sent(core)
        assert meta["id"] == round(clock.wall() * 1000) - base
        # It was made a second ago, which the server called so many ms since its base time.
        assert meta["time"] == 4050
        (event,) = receive(core, "sync", 1, {"type": "a"}, {"id": 4050, "time": 4050}, now=clock.now)
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
        core = make_core(clock)
        core.connected(NOW, random)
        clock.now += way / 1000
        base = BASE + start + spent
        receive(core, "connected", 5, "server:x", [BASE + start, base], now=clock.now)
        _in_flight, batch = inflight_of(
            [(struct.pack("<qq", round(clock.wall() * 1000), -1) + b'{"type":"a"}', TIMED)]
        )
        raw(core)
        core.encode(batch, 1, clock.now)
        ((_, _, _, meta),) = sent(core)
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
            codec.sample_clocks(now, now + late + ahead)
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
        codec.sample_clocks(10.0, 1010.0)
        codec.sample_clocks(11.0, 1011.4)  # it came 400 ms late
        assert codec.made_at(1_010_900_000, 11.5, 1) == pytest.approx(10.9)
        codec.sample_clocks(12.0, 1012.0)
        assert codec.made_at(1_011_900_000, 12.0, 2) == pytest.approx(11.9)

    @pytest.mark.slow
    @examples(200)
    @given(st.lists(st.tuples(st.sampled_from("lw"), st.floats(0, 50), st.floats(-40, 40),
                              st.integers(1, 30)), max_size=40))  # fmt: skip
    def test_times_equal_the_reference(self, calls: list[tuple[str, float, float, int]]) -> None:
        codec, reference = Codec(PRODUCER, b'"a"'), oracle.Clocks()
        for what, now, off, seq in calls:
            if what == "l":
                codec.sample_clocks(now, now + off)
                reference.look(now, now + off)
            else:
                us = round((now + off) * 1e6)
                assert codec.made_at(us, now, seq) == reference.when(us, now, seq)


# -- outcomes -----------------------------------------------------------------------------------------------


def acked(*seqs: int) -> list[CoreEvent]:
    return [Settled("acked", "", [(seqs[0], seqs[-1])]), Progress()]


class LaterServer:
    """A server that processes actions, with the headers of that moment, when `work` is called.

    It reads the headers then.
    """

    def __init__(self, core: Logux) -> None:
        self.core = core
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
                names_ = names(self.core, message)
                self.queue += [(id, actions[own]) for id, own in names_.items()]

    def work(self, in_flight: InflightBatches, most: int, reason: str = "") -> None:
        for id, action in self.queue[:most]:
            self.seen.append((action["data"]["n"], self.headers.get("n", 0)))
            events = undo(self.core, id, reason) if reason else processed(self.core, id)
            for event in events:
                if isinstance(event, Settled):
                    in_flight.apply(event.ranges, STATUSES.index(event.status))
                elif isinstance(event, Retry):
                    in_flight.apply(event.ranges, 0)
        del self.queue[:most]
        in_flight.commit()


def numbered(n: int) -> tuple[InflightBatches, Batch]:
    return inflight_of([(b'{"n":%d}' % (i + 1), RAW) for i in range(n)])


class TestHeaders:
    """The server processes each action with the headers that were set before it."""

    @pytest.mark.parametrize("most", [1, 3, 1000])
    def test_each_action_has_the_headers_before_it(self, most: int) -> None:
        core = connected_core(window=4)
        in_flight, batch = numbered(60)
        changes = {1: 1, 2: 2, 9: 9, 10: 10, 11: 11, 30: 30, 59: 59, 61: 61}
        for first, n in changes.items():
            core.post_command("headers", {"n": n}, first, in_flight)
        server = LaterServer(core)
        while len(server.seen) < 60:
            server.receive(more(core, in_flight, batch))
            server.work(in_flight, most)
        assert server.seen == [(n, max(c for c in changes if c <= n)) for n in range(1, 61)]
        core.credit(NOW)
        server.receive(sent(core))
        assert server.headers == {"n": 61}  # at last, though nothing is to be sent after them
        assert server.said == len(changes)

    def test_actions_with_the_same_headers_do_not_wait(self) -> None:
        core = connected_core(window=4, inflight=4)
        in_flight, batch = numbered(40)
        core.post_command("headers", {"n": 1}, 1, in_flight)
        core.post_command("headers", {"n": 33}, 33, in_flight)
        found = more(core, in_flight, batch)
        assert [m[0] for m in found] == ["headers", *["sync"] * 4]
        assert core.credit(NOW)[0] == 0

    def test_headers_set_between_credit_and_encode_hold(self) -> None:
        """An event, and headers before it, may be put after the pump has asked for the credit."""
        core = connected_core()
        in_flight, batch = numbered(2)
        events, _ = core.credit(NOW)
        core.post_command("headers", {"n": 2}, 2, in_flight)
        assert core.encode(batch, events, NOW) == 1
        assert [m[0] for m in sent(core)] == ["sync"]

    def test_resent_action_has_its_former_headers(self) -> None:
        core = connected_core()
        in_flight, batch = numbered(3)
        core.post_command("headers", {"n": 1}, 1, in_flight)
        core.post_command("headers", {"n": 3}, 3, in_flight)
        server = LaterServer(core)
        server.receive(more(core, in_flight, batch))
        assert server.seen == [] and server.headers == {"n": 1}
        core.connection_lost()
        in_flight.requeue()
        core.connected(NOW, random)
        assert sent(core)[0] == ["headers", {"n": 3}]  # the newest, with which it lets us in
        server = LaterServer(core)
        server.headers = {"n": 3}
        receive(core, "connected", 5, "server:x", [BASE, BASE])
        while len(server.seen) < 3:
            server.receive(more(core, in_flight, batch))
            server.work(in_flight, 1)
        assert server.seen == [(1, 1), (2, 1), (3, 3)]

    def test_suspect_has_its_former_headers(self) -> None:
        core = connected_core()
        in_flight, batch = numbered(3)
        core.post_command("headers", {"n": 1}, 1, in_flight)
        core.post_command("headers", {"n": 3}, 3, in_flight)
        server = LaterServer(core)
        server.receive(more(core, in_flight, batch))
        server.work(in_flight, 1, "error")  # the first is the suspect
        server.work(in_flight, 1, "error")  # the second undone with it
        while len(server.seen) < 5:
            server.receive(more(core, in_flight, batch))
            core.credit(NOW)
            server.receive(sent(core))
            server.work(in_flight, 1)
        assert server.seen == [(1, 1), (2, 1), (2, 1), (1, 1), (3, 3)]
        assert server.said == 2
        core.credit(NOW)
        server.receive(sent(core))
        assert server.headers == {"n": 3}

    def test_new_headers_wait_for_queued_events(self) -> None:
        core = connected_core()
        in_flight, batch = numbered(1)
        in_flight.queue.push(b'{"n":2}', 2, RAW)
        core.post_command("headers", {"n": 3}, 3, in_flight)
        core.credit(NOW)
        assert sent(core) == []
        assert [m[0] for m in more(core, in_flight, batch)] == ["sync"]

    def test_headers_of_settled_actions_are_forgotten(self) -> None:
        core = connected_core()
        queue = EventQueue()
        in_flight = InflightBatches(queue)
        server = LaterServer(core)
        for n in range(1, 1001):
            core.post_command("headers", {"n": n, "text": "x" * 100_000}, queue.next_seq, in_flight)
            queue.push(b'{"n":%d}' % n, 2, RAW)
            batch = in_flight.take(1, 1000)
            assert batch is not None
            server.receive(more(core, in_flight, batch))
            server.work(in_flight, 1)
            if n == 100:
                tracemalloc.start()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert server.seen == [(n, n) for n in range(1, 1001)]
        assert used < 5_000_000

    def test_headers_of_dropped_events_are_forgotten(self) -> None:
        """There is no connection, the queue is full, and each event has its own headers."""
        core = make_core()
        queue = EventQueue(max_events=10, policy="drop_oldest")
        in_flight = InflightBatches(queue)
        tracemalloc.start()
        for n in range(1, 2001):
            core.post_command("headers", {"n": n, "text": "x" * 10_000}, queue.next_seq, in_flight)
            queue.push(b"{}", 2, RAW)
            in_flight.report_gaps()
            in_flight.commit()
            core.sample_clocks(NOW)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 2_000_000

    def test_kept_headers_are_bounded(self) -> None:
        """The oldest are dropped; their actions get the next ones."""
        core = connected_core()
        in_flight, batch = numbered(100)
        tracemalloc.start()
        for n in range(1, 101):
            core.post_command("headers", {"n": n, "text": "x" * 1_000_000}, n, in_flight)
            core.credit(NOW)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 25_000_000
        server = LaterServer(core)
        while len(server.seen) < 100:
            server.receive(more(core, in_flight, batch))
            server.work(in_flight, 1)
        assert server.seen == [(n, max(n, 85)) for n in range(1, 101)]


class TestOutcomes:
    def test_processed_settles_and_synced_does_not(self) -> None:
        core = connected_core()
        send(core, 2)
        assert receive(core, "synced", 2) == [Alive()]
        assert processed(core, f"{BASE - 250} {core.node_id} 0") == acked(1)
        assert core.state == "sending"
        assert processed(core, f"{BASE - 250} {core.node_id} 1", added=3) == acked(2)
        assert core.state == "synchronized"
        assert sent(core) == [["synced", 0], ["synced", 3]]

    def test_ack_synced_settles_cumulatively(self) -> None:
        core = connected_core(ack="synced", window=2)
        send(core, 4)
        assert receive(core, "synced", 2) == acked(1, 2)
        assert receive(core, "synced", 1) == [Alive()]
        # cumulative, and beyond what was ever sent
        assert receive(core, "synced", 99.5) == acked(3, 4)
        assert processed(core, f"{BASE - 250} {core.node_id} 0") == [Alive()]
        assert undo(core, f"{BASE - 250} {core.node_id} 1") == []
        send(core, 1)
        assert core.state == "sending"

    @pytest.mark.parametrize("message", [
        '["sync",1,{"id":"%s","type":"logux/processed"},{"id":1,"time":1}]',
        '["sync",1,{"type":"logux/processed","id":"%s"},{"id":[1,2],"time":1,"subprotocol":1}]',
        '["sync",-1.5,{"type":"logux/processed","id":"%s"},{"time":1,"id":[1,"a",2]}]',
        ' [ "sync", 1, {"type": "logux/processed", "id": "%s"}, {"id": 1.5, "time": 1, "more": {}} ] ',
        '["sync",1,{"type":"logux/processed","id":"%s","more":1},{"id":1,"time":1}]',
        '["sync",1,{"type":"a"},{"id":1,"time":1},{"type":"logux/processed","id":"%s"},{"id":1,"time":1}]',
    ])  # fmt: skip
    def test_processed_is_read_in_every_form_of_json(self, message: str) -> None:
        core = connected_core(user='"\\ö')
        send(core, 1)
        id = json.dumps(f"{BASE - 250} {core.node_id} 0", ensure_ascii=False)[1:-1]
        core.receive_data((message % id).encode(), NOW)
        events = list(core.events_received())
        assert [e for e in events if not isinstance(e, Inbound)] == acked(1)
        assert [m[0] for m in sent(core)] == ["synced"]

    @pytest.mark.parametrize("id", [
        "{ms} other 0", "{ms} {node} 1", "1 {node} 0", "{ms}  {node} 0", "{ms} {node}", "{ms}.5 {node} 0",
        "{ms} {node} -0", "{ms} {node} 0.0", "", "{ms} {node} 0 0", "x {node} 0",
        "{ms} {node} 18446744073709551616",
        "99999999999999999999 {node} 0", 5, None, [], {}, "\x00", "²{ms} {node} 0",
    ])  # fmt: skip
    def test_outcome_of_an_unsent_id_is_counted_and_ignored(self, id: Any) -> None:
        core = connected_core()
        send(core, 1)
        if isinstance(id, str):
            id = id.format(ms=BASE - 250, node=core.node_id)
        for _ in range(1000):
            assert processed(core, id) in ([], [Alive()])
        assert undo(core, id) == [] or not isinstance(id, str) or core.node_id not in id
        assert core.state == "sending" and core.unmatched >= 1000
        assert len(sent(core)) == 1001

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
        codec.receive(message, NOW)
        assert (codec.next_message() is None) is (found is not None)
        answers = [] if found is None or len(found) == 1 else [b'["synced",%d]' % found[0]]
        assert [bytes(answer) for answer in codec.buffers()] == answers

    @pytest.mark.parametrize(("reason", "name"), [
        ("denied", "denied"), ("unknownType", "unknown_type"), ("wrongChannel", "rejected"),
        ("notFound", "rejected"), ("anything", "rejected"), (None, "rejected"), (5, "rejected"),
        ([], "rejected"),
    ])  # fmt: skip
    def test_undo_fails_with_the_reason_of_the_server(self, reason: Any, name: str) -> None:
        core = connected_core()
        send(core, 2)
        assert undo(core, f"{BASE - 250} {core.node_id} 1", reason) == [Settled("failed", name, [(2, 2)])]
        assert undo(core, f"{BASE - 250} {core.node_id} 1", reason) == []
        assert processed(core, f"{BASE - 250} {core.node_id} 0") == acked(1)
        assert [m[0] for m in sent(core)] == ["synced"] * 3

    def test_unsent_ids_cost_no_memory(self) -> None:
        core = connected_core()
        message = (
            b'["sync",0,{"id":"1 %s 0","type":"logux/processed"},{"id":1,"time":1}]' % core.node_id.encode()
        )
        for _ in range(20_000):
            core.receive_data(message, NOW)
        assert list(core.events_received()) == [Alive()]
        assert core.unmatched == 20_000
        assert raw(core) == [b'["synced",0]'] * 20_000

    def test_actions_of_the_server_are_inbound(self) -> None:
        core = connected_core(Clock())
        send(core, 1)
        (one, two) = receive(
            core, "sync", 5,
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
        assert receive(core, "headers", {"a": 1}) == [Inbound(Headers({"a": 1}))]
        assert receive(core, "debug", "error", "oh") == [Inbound(DebugText("oh"))]
        assert sent(core) == [["synced", 5]]


class TestUndoneRuns:
    """When one action fails at the server, those behind it are undone with it."""

    def send_run(self, core: Logux, n: int) -> tuple[InflightBatches, Batch, list[str]]:
        """Send n actions; return batches and ids."""
        in_flight, batch = inflight_of([(b'{"n":1}', RAW)] * n)
        messages = more(core, in_flight, batch)
        return in_flight, batch, [id for m in messages for id in names(core, m)]

    def apply(self, in_flight: InflightBatches, events: list[CoreEvent]) -> None:
        for event in events:
            if isinstance(event, Retry):
                in_flight.apply(event.ranges, 0)
            elif isinstance(event, Settled):
                in_flight.apply(event.ranges, STATUSES.index(event.status), REASONS.index(event.reason))

    def send_again(self, core: Logux, in_flight: InflightBatches) -> dict[str, str]:
        """Send what is due and return {stable id: id}."""
        found = {}
        for _ in range(9):
            batch = in_flight.pending()
            while batch is not None and (events := core.credit(NOW)[0]):
                n = core.encode(batch, events, NOW)
                in_flight.encoded(batch)
                batch = in_flight.pending() if n else None
            core.credit(NOW)
            for message in sent(core):
                if message[0] == "sync":
                    found |= {stable: id for id, stable in names(core, message).items()}
        return found

    @pytest.mark.parametrize("guilty", [True, False])
    def test_first_undone_is_tried_alone_after_the_others(self, guilty: bool) -> None:
        core = connected_core()
        in_flight, _, ids = self.send_run(core, 5)
        self.apply(in_flight, processed(core, ids[0]))
        assert undo(core, ids[1]) == []
        for seq in (3, 4, 5):
            (event,) = events = undo(core, ids[seq - 1])
            assert event == Retry([(seq, seq)], "undone with another")
            self.apply(in_flight, events)
        innocent = self.send_again(core, in_flight)
        assert list(innocent) == [ID % 3, ID % 4, ID % 5] and not set(innocent.values()) & set(ids)
        for id in innocent.values():
            assert self.send_again(core, in_flight) == {}
            self.apply(in_flight, processed(core, id))
        suspect = self.send_again(core, in_flight)
        assert list(suspect) == [ID % 2] and suspect[ID % 2] not in ids
        end = undo(core, suspect[ID % 2]) if guilty else processed(core, suspect[ID % 2])
        assert end == ([Settled("failed", "error", [(2, 2)])] if guilty else acked(2))
        self.apply(in_flight, end)
        assert in_flight.inflight == 0 and core.credit(NOW)[0] == 100

    def test_core_is_sending_while_there_is_a_suspect(self) -> None:
        core = connected_core()
        in_flight, _, (id,) = self.send_run(core, 1)
        undo(core, id)
        assert core.state == "sending"
        (id,) = self.send_again(core, in_flight).values()
        processed(core, id)
        assert core.state == "synchronized"

    def test_suspect_is_sent_with_its_text_unchanged(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([
            (struct.pack("<qq", 5000, 7) + b'{"type" : "\xc3\xb6",  "b":1.50}', RAW | TIMED), (b"{}", RAW),
        ])  # fmt: skip
        core.encode(batch, 2, NOW)
        in_flight.encoded(batch)
        (text,) = raw(core)
        first = text[text.index(b"{") : text.index(b',{"id"')]
        for n in range(2):
            self.apply(in_flight, undo(core, f"{BASE - 250} {core.node_id} {n}"))
        ids = self.send_again(core, in_flight)
        self.apply(in_flight, processed(core, ids[ID % 2]))
        core.credit(NOW)
        (text,) = [m for m in raw(core) if m.startswith(b'["sync"')]
        meta = b',{"id":[-250,3],"time":%d,"subprotocol":7}]' % (5000 - BASE + 250)
        assert text == b'["sync",4,' + first + meta

    def test_nothing_new_goes_while_there_is_a_suspect(self) -> None:
        core = connected_core(window=2, inflight=2)
        queue = EventQueue()
        for _ in range(100):
            queue.push(b"{}", 2, RAW)
        in_flight = InflightBatches(queue)
        in_flight.take(4, 1 << 20)
        in_flight.take(96, 1 << 20)
        ids = list(self.send_again(core, in_flight).values())
        assert len(ids) == 4
        for id in ids:
            self.apply(in_flight, undo(core, id))
        innocent = self.send_again(core, in_flight)
        assert list(innocent) == [ID % 2, ID % 3, ID % 4]
        for id in innocent.values():
            self.apply(in_flight, processed(core, id))
        suspect = self.send_again(core, in_flight)
        assert list(suspect) == [ID % 1]
        self.apply(in_flight, processed(core, suspect[ID % 1]))
        assert list(self.send_again(core, in_flight)) == [ID % seq for seq in (5, 6, 7, 8)]

    @pytest.mark.parametrize("reason", ["denied", "unknownType"])
    def test_actions_behind_a_refused_one_are_sent_again(self, reason: str) -> None:
        core = connected_core()
        in_flight, _, ids = self.send_run(core, 3)
        self.apply(in_flight, undo(core, ids[0], reason))
        for seq in (2, 3):
            events = undo(core, ids[seq - 1])
            assert events == [Retry([(seq, seq)], "undone with another")]
            self.apply(in_flight, events)
        assert list(self.send_again(core, in_flight)) == [ID % 2, ID % 3]

    def test_processed_action_ends_a_run(self) -> None:
        core = connected_core()
        in_flight, _, ids = self.send_run(core, 5)
        undo(core, ids[0])
        self.apply(in_flight, processed(core, ids[1]))
        assert undo(core, ids[2]) == []  # the next suspect
        self.apply(in_flight, undo(core, ids[3]))
        self.apply(in_flight, undo(core, ids[4]))
        innocent = self.send_again(core, in_flight)
        assert list(innocent) == [ID % 4, ID % 5]
        for id in innocent.values():
            self.apply(in_flight, processed(core, id))
        for seq in (1, 3):
            found = self.send_again(core, in_flight)
            assert list(found) == [ID % seq]
            self.apply(in_flight, undo(core, found[ID % seq]))
        assert [(a, f, r) for a, _, f, r in in_flight.take_report() if f == "failed"] == [
            (1, "failed", "error"), (3, "failed", "error"),
        ]  # fmt: skip

    @pytest.mark.parametrize("data", [
        b"[" * 900 + b"]" * 900, b"[" * 9000 + b"]" * 9000, b'{"a\\"[":' * 600 + b"1" + b"}" * 600,
        b"[" + b"0," * 3_100_000 + b"0]",
    ], ids=["deep", "deeper", "deep objects", "wide"])  # fmt: skip
    def test_undo_may_return_a_deep_or_wide_action(self, data: bytes) -> None:
        """The server sends the action back, whatever its size. No other message may be so large."""
        core = connected_core()
        send(core, 2)
        id = f"{BASE - 250} {core.node_id}"
        undone = b'["sync",0,{"action":{"type":"log/add","data":%b},"id":"%b 0","reason":"denied",'
        core.receive_data(
            undone % (data, id.encode()) + b'"type":"logux/undo"},{"id":[1,1],"time":1,"subprotocol":1}]', NOW
        )
        report, outcome = core.events_received()
        assert isinstance(report, Inbound) and report.payload.action["reason"] == "denied"
        assert outcome == Settled("failed", "denied", [(1, 1)])
        assert sent(core) == [["synced", 0]]
        # Other messages are limited.
        core.receive_data(b'["sync",0,{"type":"a","data":%b},{"id":[1,1],"time":1}]' % data, NOW)
        (event,) = core.events_received()
        assert isinstance(event, Fatal)

    def test_lost_connection_forgets_suspects(self) -> None:
        core = connected_core()
        in_flight, _, ids = self.send_run(core, 2)
        undo(core, ids[0])
        core.connection_lost()
        in_flight.requeue()
        connect(core)
        assert list(self.send_again(core, in_flight)) == [ID % 1, ID % 2]


# -- ended connections, silent servers ------------------------------------------------------------------


class TestDoubt:
    def test_client_id_stays_without_doubt(self) -> None:
        core = connected_core()
        node = core.node_id
        core.connection_lost()
        connect(core)
        assert core.node_id == node

    def test_doubt_takes_a_new_client_id(self) -> None:
        core = connected_core(user="10")
        in_flight, batch = send(core, 3)
        node = core.node_id
        processed(core, f"{BASE - 250} {node} 1")
        in_flight.apply([(2, 2)], ACKED)
        core.connection_lost()
        assert list(core.events_received()) == []
        in_flight.requeue()
        connect(core)
        assert [a == b for a, b in zip(core.node_id.split(":"), node.split(":"), strict=True)] == [
            True,
            False,
            True,
        ]
        (message,) = more(core, in_flight, batch)
        assert [a["id"] for a in message[2::2]] == [ID % 1, ID % 3]
        assert processed(core, f"{BASE - 250} {node} 0") == [] and core.unmatched == 1
        assert processed(core, f"{BASE - 250} {core.node_id} 3") == acked(1)

    def test_client_ids_differ_between_processes(self) -> None:
        """They must not depend on `random`, which many programs seed."""
        found = set()
        for n in range(3):
            core = Logux(logux_config(), bytes([n] * 10))
            core.wall = Clock().wall
            for _ in range(3):
                connect(core)
                found.add(core.node_id.rpartition(":")[0])
                send(core, 1)
                core.connection_lost()
        assert len(found) == 9

    def test_on_doubt_same_sends_the_same_ids(self) -> None:
        core = connected_core(on_doubt="same", window=2, inflight=2)
        in_flight, batch = send(core, 5)
        node = core.node_id
        processed(core, f"{BASE - 250} {node} 1")
        in_flight.apply([(2, 2)], ACKED)
        for count in (2, 1, 1):  # connections that end before all is sent again
            core.connection_lost()
            in_flight.requeue()
            connect(core)
            assert core.node_id == node
            core.encode(batch, 2, NOW)
            in_flight.encoded(batch)
            message = sent(core)[0]
            assert [meta["id"] for meta in message[3::2]] == [-250, [-250, 2]][:count]
        processed(core, f"{BASE - 250} {node} 0")
        in_flight.apply([(1, 1)], ACKED)
        messages = more(core, in_flight, batch)
        for counter in (2, 3):
            processed(core, f"{BASE - 250} {node} {counter}")
        in_flight.apply([(3, 4)], ACKED)
        messages += more(core, in_flight, batch)
        ids = [meta["id"] for m in messages if m[0] == "sync" for meta in m[3::2]]
        assert ids == [[-250, 2], [-250, 3], [-250, 4]], "first the actions in doubt, then the unsent ones"

    def test_settled_action_is_not_kept(self) -> None:
        core = connected_core()
        before = sys.getsizeof(core._codec)
        _, batch = inflight_of([(b'{"a":"%b"}' % (b"x" * (2 << 20)), RAW)])
        more(core, InflightBatches(EventQueue()), batch)
        assert sys.getsizeof(core._codec) > before + (2 << 20)
        processed(core, f"{BASE - 250} {core.node_id} 0")
        assert sys.getsizeof(core._codec) < before + (1 << 20)

    def test_doubt_about_dropped_events_is_forgotten(self) -> None:
        core = connected_core(on_doubt="same", window=1, inflight=1)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 9)
        for seq in range(1, 7):
            core.encode(batch, 1, NOW)
            in_flight.encoded(batch)
            core.connection_lost()
            if seq > 1:
                in_flight.apply([(seq, seq)], FAILED)
            connect(core)
        in_flight.requeue()
        core.encode(batch, 1, NOW)
        (message,) = [m for m in sent(core) if m[0] == "sync"]
        assert list(names(core, message).values()) == [ID % 1]
        assert message[3]["id"] == [-250, 6]  # not the first of all

    def test_on_doubt_drop_fails_events_in_doubt(self) -> None:
        core = connected_core(on_doubt="drop", window=2, inflight=2)
        in_flight, batch = send(core, 6)
        node = core.node_id
        processed(core, f"{BASE - 250} {node} 1")
        core.connection_lost()
        assert list(core.events_received()) == [Settled("failed", "doubt", [(1, 1), (3, 4)])]
        in_flight.apply([(1, 1), (3, 4)], FAILED)
        in_flight.apply([(2, 2)], ACKED)
        in_flight.requeue()
        connect(core)
        assert core.node_id == node
        (message,) = more(core, in_flight, batch)
        assert [a["id"] for a in message[2::2]] == [ID % 5, ID % 6]


class TestPieces:
    """Less is in flight on a path that is too slow, and more again with outcomes."""

    def flying(self, core: Logux, now: float = NOW, size: int = 1000) -> list[int]:
        """Send as much as may be in flight; return the actions in each message."""
        queue = EventQueue(max_bytes=1 << 30)
        for _ in range(2000):
            queue.push(b'{"n":"%b"}' % (b"x" * (size - 8)), 2, RAW)
        in_flight = InflightBatches(queue)
        while (credit := core.credit(now))[0]:
            batch = in_flight.take(*credit)
            assert batch is not None
            core.encode(batch, credit[0], now)
            in_flight.encoded(batch)
        return [len(m[2::2]) for m in sent(core) if m[0] == "sync"]

    def test_first_messages_are_small(self) -> None:
        """Our answer to a ping of the server goes behind them."""
        assert self.flying(connected_core()) == [32, 31, 32, 31]  # 1,024 bytes each, as the queue counts them

    @pytest.mark.parametrize(("trip", "most"), [(0.3, 16), (0.002, 4)])
    def test_messages_in_flight_follow_the_round_trip(self, trip: float, most: int) -> None:
        core = connected_core(ack="synced", window=10)
        now, seen = NOW, 0
        for _ in range(30):
            seen = max(seen, len(self.flying(core, now)))
            now += trip
            receive(core, "synced", core._codec.added, now=now)
        assert seen >= most if most > 4 else seen == most

    @pytest.mark.parametrize("size", [60, 200, 1000, 2000])
    def test_less_is_in_flight_after_each_break(self, size: int) -> None:
        """Until messages have one action. They grow again with answers."""
        core = connected_core(inflight=4, ack="synced")
        most = self.flying(core, size=size)
        sizes = [most]
        while sizes[-1] != [1] * 4:
            core.connection_lost()
            connect(core)
            sizes.append(self.flying(core, size=size))
            assert len(sizes[-1]) == 4 and sizes[-1][0] <= max(1, sizes[-2][0] // 2)
        grown = sizes[-1]
        for _ in range(12):
            receive(core, "synced", core._codec.added)
            assert (grown := self.flying(core, size=size)) > [1] * 4
        assert grown == most == [100] * 4


class TestTimeouts:
    def events_at(self, core: Logux, now: float) -> list[CoreEvent]:
        """Return the events at a time; assert that none is due before."""
        timeout = core.next_timeout(now - 1)
        assert timeout == pytest.approx(now)
        core.handle_timeout(now - 0.01)
        assert list(core.events_received()) == []
        core.handle_timeout(now)
        return list(core.events_received())

    def test_connect_without_an_answer_times_out(self) -> None:
        core = make_core()
        assert core.next_timeout(NOW) is None
        core.handle_timeout(NOW)
        core.connected(NOW, random)
        receive(core, "headers", {}, now=NOW + 20)  # a message, but no answer
        (event,) = self.events_at(core, NOW + 30)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError) and not event.forever

    def test_idle_core_pings_and_times_out(self) -> None:
        core = connected_core()
        assert self.events_at(core, NOW + 10) == []
        assert sent(core) == [["ping", 0]]
        assert core.next_timeout(NOW + 10) == NOW + 40
        assert receive(core, "pong", 0, now=NOW + 11) == []
        assert self.events_at(core, NOW + 21) == []
        assert sent(core) == [["ping", 0]]
        (event,) = self.events_at(core, NOW + 51)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError)

    def test_server_that_takes_bytes_is_alive(self) -> None:
        core = connected_core(ping=50.0)
        send(core, 1, NOW + 5)
        core._codec.moved(NOW + 20)
        assert core.next_timeout(NOW) == NOW + 50
        (event,) = self.events_at(core, NOW + 50)
        assert isinstance(event, Fatal) and isinstance(event.error, TimeoutError)

    def test_silence_with_actions_in_flight_times_out(self) -> None:
        core = connected_core(ping=50.0)
        send(core, 1, NOW + 5)
        assert core.next_timeout(NOW) == NOW + 35
        receive(core, "debug", "error", "x", now=NOW + 7)
        (event,) = self.events_at(core, NOW + 37)
        assert isinstance(event, Fatal) and "1 actions in flight" in str(event.error)
        core.handle_timeout(NOW + 99)
        assert list(core.events_received()) == []

    def test_jam_is_left_by_a_new_client_id(self) -> None:
        core = connected_core(on_doubt="same")
        node = core.node_id
        in_flight, batch = send(core, 2)
        receive(core, "synced", 2, now=NOW + 1)
        for patience, helped in ((20, False), (40, False), (80, True), (20, False)):
            # The server lives and answers pings.
            now = NOW + 1
            while now + 10 < NOW + 1 + patience:
                now += 10
                core.handle_timeout(now)
                assert [m[0] for m in sent(core)] == ["ping"]
                receive(core, "pong", 0, now=now)
            (event,) = self.events_at(core, NOW + 1 + patience)
            assert isinstance(event, Fatal) and str(event.error).startswith(
                "jam: the server has got 2 actions"
            )
            assert not event.forever and not isinstance(event.error, TimeoutError)
            core.connection_lost()
            in_flight.requeue()
            connect(core)
            assert core.node_id != node
            node = core.node_id
            (message,) = more(core, in_flight, batch)
            assert all(name.split(" ")[1] == node for name in names(core, message))
            receive(core, "synced", message[1], now=NOW + 1)
            if helped:
                for seq, id in enumerate(names(core, message), 1):
                    assert processed(core, id, NOW + 1) == acked(seq)
                core.credit(NOW + 1)
                in_flight, batch = inflight_of([(b"{}", RAW)] * 2)
                (message,) = [m for m in more(core, in_flight, batch, NOW + 1) if m[0] == "sync"]
                receive(core, "synced", message[1], now=NOW + 1)

    def test_jam_beside_processed_actions_is_noticed(self) -> None:
        """The real server may have several queues by type."""
        core = connected_core(ping=1000.0)
        _, batch = inflight_of([(b"{}", RAW)] * 9)
        core.encode(batch, 1, NOW)
        receive(core, "synced", 1)
        for n in range(2, 6):
            now = NOW + 5 * (n - 1)
            assert core.encode(batch, 1, now) == 1
            assert core.next_timeout(now) == NOW + 20
            assert self.jam_events(core, now - 0.1) == []
            receive(core, "synced", n, now=now)
            message = [m for m in sent(core) if m[0] == "sync"][-1]
            assert processed(core, next(iter(names(core, message))), now) == acked(n)
        (event,) = self.jam_events(core, NOW + 20)
        assert isinstance(event, Fatal) and "has got 1 actions and processes none" in str(event.error)

    def test_each_action_has_its_own_processing_time(self) -> None:
        core = connected_core(window=1, ping=1000.0)
        _, batch = inflight_of([(b"{}", RAW)] * 3)
        messages = more(core, InflightBatches(EventQueue()), batch)
        ids = [id for message in messages for id in names(core, message)]
        receive(core, "synced", 3)
        for n, id in enumerate(ids):
            assert core.next_timeout(NOW) == NOW + 19 * n + 20
            assert self.jam_events(core, NOW + 19 * (n + 1)) == []
            assert processed(core, id, NOW + 19 * (n + 1)) == acked(n + 1)
        assert core._codec.open == 0 and core.next_timeout(NOW) == NOW + 57 + 1000

    def test_jam_ends_when_its_actions_are_processed(self) -> None:
        """Even if newer actions are always in flight."""
        core = connected_core(window=1, inflight=2)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 9)
        core.encode(batch, 1, NOW)
        in_flight.encoded(batch)
        receive(core, "synced", 1)
        assert self.jam_events(core, NOW + 20)
        core.connection_lost()
        in_flight.requeue()
        connect(core)
        for seq in range(1, 4):
            more(core, in_flight, batch)
            id = f"{BASE - 250} {core.node_id} {seq}"
            assert processed(core, id) == acked(seq)
            in_flight.apply([(seq, seq)], ACKED)
            more(core, in_flight, batch)
            assert core.state == "sending"
        receive(core, "synced", 99)
        assert self.jam_events(core, NOW + 20)

    def test_fast_action_does_not_shorten_the_time_of_slow_ones(self) -> None:
        """Otherwise slow ones would be added again for ever."""
        core = connected_core(ping=1000.0)
        in_flight, batch = send(core, 2)
        receive(core, "synced", 2)
        assert self.jam_events(core, NOW + 20)
        core.connection_lost()
        in_flight.requeue()
        connect(core)
        (message,) = more(core, in_flight, batch)
        receive(core, "synced", message[1])
        quick, slow = names(core, message)
        assert processed(core, quick) == acked(1)
        core.credit(NOW)
        assert self.jam_events(core, NOW + 39) == []
        assert processed(core, slow, NOW + 39) == acked(2)

    def test_longer_processing_times_are_bounded(self) -> None:
        """The engine's own deadline must not come first, as no new client id would be taken."""
        core = connected_core(on_doubt="same")
        in_flight, batch = send(core, 1)
        for _ in range(9):
            receive(core, "synced", 10**6)
            node = core.node_id
            assert self.jam_events(core, NOW + 160)
            core.connection_lost()
            in_flight.requeue()
            connect(core)
            assert core.node_id != node
            more(core, in_flight, batch)

    def test_processing_time_adapts_to_a_slow_server(self) -> None:
        core = connected_core()
        in_flight, batch = send(core, 1)
        receive(core, "synced", 1)
        (_event,) = self.jam_events(core, NOW + 20)
        core.connection_lost()
        in_flight.requeue()
        connect(core)
        (message,) = more(core, in_flight, batch)
        receive(core, "synced", message[1])
        (id,) = names(core, message)
        assert processed(core, id, NOW + 30) == acked(1)
        core.credit(NOW + 30)
        in_flight, batch = inflight_of([(b"{}", RAW)])
        (message,) = [m for m in more(core, in_flight, batch, NOW + 30) if m[0] == "sync"]
        receive(core, "synced", message[1], now=NOW + 30)
        assert self.jam_events(core, NOW + 69) == []
        assert len(self.jam_events(core, NOW + 70)) == 1

    def jam_events(self, core: Logux, now: float) -> list[CoreEvent]:
        receive(core, "debug", "error", "I live", now=now)
        core.handle_timeout(now)
        return [e for e in core.events_received() if isinstance(e, Fatal)]

    def test_server_that_asks_and_does_not_read_is_fatal(self) -> None:
        core = connected_core()
        for _ in range(100_001):
            core.receive_data(b'["ping",0]', NOW)
        (event,) = core.events_received()
        assert isinstance(event, Fatal) and "does not read" in str(event.error)
        core = connected_core()
        core._codec.add_answer(1)
        for n in range(100_001):
            core.receive_data(b'["sync",%d]' % n, NOW)
        (event,) = core.events_received()
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
        self.core: Any = None

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
                    ["ping", 0], ["pong", 1], ["synced", 10**9], ["debug", "error", "x"], ["ready", 1],
                    ["sync", 1, {"type": "other"}, {"id": 1, "time": 1}],
                ]))  # fmt: skip
        if not self.out:
            self.work()
        return self.out.popleft() if self.out else None

    def wait(self, seconds: float, writable: bool) -> None:
        assert not self.core.data_to_send(), "it waits with something to say"
        self.clock.now += 0.001 if self.out or self.queue else max(0.001, min(seconds, 1.0))
        if self.script.random() < 0.01:
            self.clock.ahead += self.script.choice([-3600, 3600, 0.5])


def drive(core: Logux, in_flight: InflightBatches, link: Link, clock: Clock, until: float) -> str:
    """Do what the loop of the sender does, by this clock; return the end as `PumpGroup.run` names it."""
    end = ""
    while True:
        now = clock.now
        for _ in range(64):
            events, size = core.credit(now)
            batch = (in_flight.pending() or in_flight.take(events, size)) if events else None
            if batch is not None:
                core.encode(batch, events, now)
                in_flight.encoded(batch)
            wires = list(core.data_to_send())
            for wire in wires:
                link.send(wire.buffers)
            core.sent()
            if batch is None and not wires:
                break
        timeout = core.next_timeout(now)
        due = not end and timeout is not None and now >= timeout
        if due:
            core.handle_timeout(now)
        _, fatal, closed, _ = core.take_events(in_flight)
        in_flight.commit()
        if fatal is not None:
            return "silence" if isinstance(fatal.error, TimeoutError) else "protocol"
        if end or closed:
            return "closed"
        if in_flight.has_report or now >= until:
            return "report"
        if due:
            continue  # perhaps with a ping
        link.wait(min(until, timeout or until) - now, False)
        while not end and (data := link.receive()) is not None:
            if data:
                core.receive_data(data, clock.now)
            else:
                core.receive_eof()
                end = "closed"


def deliver(
    does: list[str], script: Random, *, calm: bool = False, rounds: int = 100_000, **options: Any
) -> tuple[RandomServer, dict[str, tuple[str, str]], Logux]:
    """Send events with these instructions through a core; return the outcome of each."""
    clock = Clock()
    core = make_core(clock, **options)
    queue = EventQueue()
    for what in does:
        queue.push(json.dumps({"do": what}).encode(), 2, RAW)
    in_flight = InflightBatches(queue)
    server = RandomServer(script, clock)
    server.calm, server.core = calm, core
    outcomes: dict[str, tuple[str, str]] = {}
    for _ in range(rounds):
        if server.over:
            server.connect()
            core.connected(clock.now, script.random)
        end = drive(core, in_flight, server, clock, clock.now + 5)
        if end in ("closed", "protocol", "silence"):
            server.over = True
            core.connection_lost()
            for event in core.events_received():
                if isinstance(event, Settled):
                    in_flight.apply(event.ranges, STATUSES.index(event.status), REASONS.index(event.reason))
            in_flight.requeue()
            in_flight.commit()
        for first, last, status, reason in in_flight.take_report():
            for seq in range(first, last + 1):
                assert ID % seq not in outcomes
                outcomes[ID % seq] = status, reason
        if len(outcomes) == len(does):
            break
        server.calm = server.calm or len(server.nodes) > 30
    assert len(outcomes) == len(does), f"{len(does) - len(outcomes)} without an outcome"
    return server, outcomes, core


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
        server, outcomes, core = deliver(
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
        assert core._codec.open == 0

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
        assert server.disturbed < 500 * 12

    def test_window_grows_again_after_undos(self) -> None:
        core = connected_core()
        in_flight, batch = inflight_of([(b"{}", RAW)] * 4)
        for message in more(core, in_flight, batch):
            for id in names(core, message):
                assert undo(core, id, "denied")  # and nothing is processed
        sent(core)
        in_flight, batch = inflight_of([(b"{}", RAW)] * 3000)
        most, held = [], 0
        for _ in range(3000):
            messages = [m for m in more(core, in_flight, batch) if m[0] == "sync"]
            if not messages:
                break
            most.append(sum(len(m) // 2 - 1 for m in messages))
            for message in messages:
                for id in names(core, message):
                    for event in processed(core, id):
                        if isinstance(event, Settled):
                            in_flight.apply(event.ranges, STATUSES.index(event.status))
                            held += 1
        assert held == 3000 and most[0] == 1 and max(most) == 400
        assert len(most) < 30
