"""Logux messages as lines for people, and the messages of ``logclient check``."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.cli.probes import LoguxProbe
from logclient.config.secrets import Secret
from logclient.errors import CredentialError, ProtocolError
from logclient.evidence import frames as readable
from logclient.evidence.frames.logux import frames
from tests.oracle.logux_decoder import MAX_DEPTH
from tests.support import recordings
from tests.support.examples import examples
from tests.support.lumberjack_inputs import damaged, randoms

pytestmark = pytest.mark.unit

SYNC = (
    b'["sync",7,{"type":"log/add","data":{"message":"\\u001b[31m","n":1},"id":"x"},'
    b'{"id":[1,"10:a:b",0],"time":12,"subprotocol":2}, '
    b'{"type":"logux/processed","id":"1 a 0"} , {"id":-5,"time":0}]'
)


def lines(data: bytes, limit: int = readable.BODY_SHOWN) -> list[str]:
    return [line for frame in frames(data) for line in readable.lines(frame, limit)]


def assert_consistent(data: bytes) -> None:
    """Assert what holds for any bytes."""
    end = 0
    for frame in frames(data):
        if frame.depth == 0:
            assert data[end : frame.offset].strip() == b""  # only space between lines is left out
            end = frame.offset + frame.size
        else:
            assert frame.offset <= end
            if not frame.wrong:
                assert data[frame.offset : frame.offset + frame.length].startswith(frame.body)
        assert frame.title or frame.wrong
        assert bool(frame.wrong) == bool(frame.around) or not data
        for line in readable.lines(frame, 50):
            assert line.isprintable()
        json.dumps(readable.fields(frame), allow_nan=False)
    assert data[end:].strip() == b""


# -- frames


def test_sync_shows_each_action_and_its_meta() -> None:
    outer, first, second = frames(SYNC)
    assert readable.fields(outer) == {
        "offset": 0, "depth": 0, "size": len(SYNC), "type": "sync", "added": 7, "actions": 2, "wrong": None,
    }  # fmt: skip
    assert readable.fields(first) == {
        "offset": 10, "depth": 1, "size": 65, "type": "action", "action": "log/add",
        "meta": {"id": [1, "10:a:b", 0], "time": 12, "subprotocol": 2},
        "body": SYNC[10:75].decode(), "wrong": None,
    }  # fmt: skip
    assert readable.fields(second)["meta"] == {"id": -5, "time": 0}
    assert lines(SYNC, 9) == [
        "       0  sync of 2 actions, added 7",
        '          10  log/add, id [1,"10:a:b",0], time 12, subprotocol 2: {"type":" ... of 65 bytes',
        '         125  logux/processed, id -5, time 0: {"type":" ... of 39 bytes',
    ]


@pytest.mark.parametrize(
    ("unit", "shown"),
    [
        (
            '["connect",5,"10:a:b",3,{"token":"secret","subprotocol":1}]',
            "connect, protocol 5, node id 10:a:b, last added 3, with a token, subprotocol 1",
        ),
        ('["connect",5,"10:a:b",0]', "connect, protocol 5, node id 10:a:b, last added 0"),
        (
            '["connected",5,"server:x",[10,11],{"subprotocol":"1.0.0"}]',
            'connected, protocol 5, node id server:x, 10 to 11, subprotocol "1.0.0"',
        ),
        ('["ping",0]', "ping, added 0"),
        ('["pong",-1.5]', "pong, added -1.5"),
        ('["synced",9]', "synced, added 9"),
        ('["sync",0]', "sync of 0 actions, added 0"),
        ('["headers",{"env":"development"}]', 'headers: {"env":"development"}'),
        ('["debug","error","Error: a\\n  at b"]', "debug: Error: a\\x0a  at b"),
        ('["error","wrong-credentials"]', "error wrong-credentials"),
        ('["error","timeout",70000]', "error timeout: 70000"),
        ('["error","wrong-format","[1,"]', "error wrong-format: [1,"),
        ('["error","\\u202ex"]', "error \\u{202e}x"),
    ],
)
def test_each_kind_of_message_is_one_line(unit: str, shown: str) -> None:
    (line,) = lines(unit.encode())
    assert line == f"       0  {shown}"
    assert_consistent(unit.encode())


@pytest.mark.parametrize(
    ("unit", "first", "message"),
    [
        ("", "message of 0 bytes", "WRONG at byte 0: an empty message"),
        ("x", "message of 1 byte", "WRONG at byte 0: no JSON text in UTF-8 from here on"),
        ('["sync",1', "sync of 9 bytes", "WRONG at byte 9: no JSON"),
        ('["ping","1"]', "ping of 12 bytes", "WRONG at byte 8: no list with a type in front, or not what"),
        ('["ready",0]', "message of 11 bytes", "WRONG at byte 1: an unknown type"),
        ('["sync",1,{"type":"x"}]', "sync of 23 bytes", "WRONG at byte 22: a sync has a number"),
        ('["sync",1,null,{"id":1,"time":1}]', "sync of 33 bytes", "WRONG at byte 10: no action"),
        ('["sync",1,{"type":"x"},{"id":1}]', "sync of 32 bytes", "WRONG at byte 23: no meta"),
    ],
)
def test_wrong_message_shows_what_and_where(unit: str, first: str, message: str) -> None:
    found = lines(unit.encode())
    assert found[0].strip() == f"0  {first}"
    assert found[1].strip().startswith(message)
    assert bool(found[2:]) is bool(unit)  # the bytes around it
    assert [bool(frame.wrong) for frame in frames(unit.encode())] == [False, True]


def test_file_has_one_message_a_line() -> None:
    """There may be blank lines between messages, and line feeds within them."""
    found = list(frames(b'\n["ping",1]\r\n\n["sync",1,{"type":1},null]\n' + SYNC + b"\nx"))
    assert [(frame.offset, frame.depth, bool(frame.wrong)) for frame in found] == [
        (1, 0, False), (14, 0, False), (24, 1, True), (41, 0, False), (51, 1, False), (166, 1, False),
        (42 + len(SYNC), 0, False), (42 + len(SYNC), 1, True),
    ]  # fmt: skip
    (one,) = frames(b'[\n"ping",\n1]\n')
    assert one.title == "ping, added 1"


@pytest.mark.parametrize(
    "unit",
    [
        '["connect",5,"10:a:b",0,{"token":"SECRET"}]',
        '["connect",5,"10:a:b",0,{"token":"SECRET"},1]',
        '["connect",5,"10:a:b",0,{"token" : "SECRET"}',
        '["connect",5,"10:a:b",0,{"token":"SECRET',
        '["connected",5,"server:x",[1,2],{"token":"a\\"SECRET"},null]',
        '["error","wrong-format","[\\"connect\\",5,{\\"token\\":\\"SECRET\\"}]"]',
        '["error","wrong-format",["connect",5,{"token":"SECRET"}]]',
        '["debug","error","{\\"token\\": \\"SECRET\\"}"]',
        '["error",1,"{\\"token\\":\\"SECRET\\"}"]',
    ],
)
def test_token_is_never_shown(unit: str) -> None:
    raw = unit.encode()
    shown = "\n".join(lines(raw)) + json.dumps([readable.fields(frame) for frame in frames(raw)])
    shown += "".join(frame.around.hex() for frame in frames(raw))
    assert "SECRET" not in shown
    assert b"SECRET".hex() not in shown
    assert len(shown) > 40


def test_deep_nesting_is_shown_or_wrong() -> None:
    for levels in (200, 900, MAX_DEPTH - 2, MAX_DEPTH, 100_000):
        inner = b"[" * levels + b"]" * levels
        for unit in (
            b'["headers",{"a":%b}]',
            b'["sync",1,{"type":"x","a":%b},{"id":1,"time":1,"b":%b}]' % (b"%b", inner),
        ):
            raw = unit % inner
            assert_consistent(raw)
            assert any(frame.wrong for frame in frames(raw)) is (levels >= MAX_DEPTH)


@examples(60)
@given(st.builds(damaged, st.sampled_from([SYNC, SYNC + b"\n" + SYNC]), randoms) | st.binary(max_size=30))
def test_damaged_messages_are_shown_consistently(unit: bytes) -> None:
    assert_consistent(unit)


def test_recorded_messages_are_shown_consistently() -> None:
    for case in recordings.cases(recordings.LOGUX):
        texts = [step["msg"] for step in case["steps"] if "event" not in step]
        texts = [text if isinstance(text, str) else json.dumps(text) for text in texts]
        for text in texts:
            assert_consistent(text.encode())
        assert_consistent("\n".join(texts).encode())


# -- the probe


def probe(**options: Any) -> LoguxProbe:
    given = {"token": None, "user": "false", "subprotocol": 1} | options
    return LoguxProbe(SimpleNamespace(**given))


def test_probe_connects_then_pings() -> None:
    asked = probe(token=Secret("s"), user="10")
    (question,) = asked.ask()
    kind, protocol, node_id, synced, options = json.loads(question)
    assert (kind, protocol, synced, options) == ("connect", 5, 0, {"token": "s", "subprotocol": 1})
    user, client, tab = node_id.split(":")
    assert (user, len(client), tab) == ("10", 16, "check")
    assert json.loads(probe().ask()[0])[2] != json.loads(probe().ask()[0])[2]
    assert asked.insist() == []
    assert asked.receive_data(b'["headers",{"env":"development"}]') is None
    assert asked.receive_data(b'["connected",5,"server:x",[1,2],{"subprotocol":3}]') is True
    assert asked.about == {
        "node_id": "server:x", "protocol": 5, "subprotocol": 3, "env": "development", "time_ms": 2,
    }  # fmt: skip
    assert [json.loads(raw) for raw in asked.ask()] == [["ping", 0]]
    assert asked.receive_data(b'["sync",0,{"type":"x"},{"id":1,"time":1}]') is None
    assert asked.receive_data(b'["pong",0]') is True


def test_probe_leaves_out_unset_options() -> None:
    assert len(json.loads(probe(subprotocol=0).ask()[0])) == 4


def test_refused_probe_raises_the_reason() -> None:
    with pytest.raises(CredentialError, match="does not accept the token"):
        probe().receive_data(b'["error","wrong-credentials"]')
    with pytest.raises(
        ProtocolError, match="refuses the connection: wrong-subprotocol: 3 is supported, 1 is used"
    ):
        probe().receive_data(b'["error","wrong-subprotocol",{"supported":3,"used":1}]')


@pytest.mark.parametrize("answer", [b" ", b"hello", b'["ready",0]', b'["connect",5,"a",0]', b'{"a":1}'])
def test_probe_recognises_other_servers(answer: bytes) -> None:
    assert probe().receive_data(answer) is False
