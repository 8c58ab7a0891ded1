"""Messages, ids, errors and subprotocols of Logux; see ``tests/oracle/logux_messages.py``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient.errors import ProtocolError
from logclient.logux import messages as logux
from logclient.logux.messages import (
    MAX_NESTING,
    Connect,
    Connected,
    Debug,
    Error,
    Headers,
    Ping,
    Pong,
    Refused,
    Sync,
    Synced,
    UnknownMessage,
    pack,
    parse,
)
from logclient.testing import logux_node
from tests.oracle import logux_messages as oracle
from tests.support.logux_messages import messages, values

pytestmark = pytest.mark.unit

META = {"id": [1, 2], "time": 3}

MESSAGES = [
    (b'["connect",5,"u:c:t",0,{"token":"s"}]', Connect(5, "u:c:t", 0, {"token": "s"})),
    (b'["connect",5,"u:c:t",7]', Connect(5, "u:c:t", 7)),
    (b'["connected",5,"server:x",[1,2]]', Connected(5, "server:x", 1, 2)),
    (b'["connected",5,"s:x",[1,2],{"subprotocol":1}]', Connected(5, "s:x", 1, 2, {"subprotocol": 1})),
    (b'["headers",{"env":"development"}]', Headers({"env": "development"})),
    (b'["ping",0]', Ping(0)),
    (b'["pong",-1.5]', Pong(-1.5)),
    (b'["sync",0]', Sync(0, [])),
    (b'["sync",1,{"type":"a"},{"id":[1,2],"time":3}]', Sync(1, [({"type": "a"}, META)])),
    (b'["synced",3]', Synced(3)),
    (b'["debug","error","boom\\nat"]', Debug("error", "boom\nat")),
    (b'["error","wrong-credentials"]', Error("wrong-credentials")),
    (b'["error","timeout",70000]', Error("timeout", 70000)),
]  # fmt: skip


@pytest.mark.parametrize("raw, message", MESSAGES, ids=lambda v: v.decode() if isinstance(v, bytes) else "")
def test_message_is_parsed_and_packed(raw: bytes, message: logux.Message) -> None:
    assert parse(raw) == message
    assert type(parse(raw)) is type(message)
    assert parse(raw.decode()) == message
    assert parse(memoryview(raw)) == message
    assert pack(message) == raw


# --- invalid messages --------------------------------------------------------------------------


@given(messages)
@example(["headers", {"length": True}])
@example(["headers", {"length": 0.5}])
@example(["sync", 1, {"type": "a", "length": 5}, META])
@example(["sync", 1, {"type": "a"}, {**META, "length": 0}])
@example(["connect", 5, "u", 0, None])
@example(["connect", True, "u", 0])
def test_any_value_is_judged_as_by_the_reference(value: Any) -> None:
    text = json.dumps(value)
    try:
        message = parse(text)
    except UnknownMessage as error:
        assert oracle.shape(value) == "unknown"
        assert error.error == Error("unknown-message", value[0])
        assert error.message == value
    except Refused as error:
        assert oracle.shape(value) == "wrong"
        assert error.error.type == "wrong-format"
        assert json.loads(error.error.options) == value
        pack(error.error)
    else:
        assert oracle.shape(value) == "ok"
        again = json.loads(pack(message))
        if value[0].startswith("connect") and value[-1] == {}:
            value.pop()  # left out when empty
        if value[0] == "error" and value[2:] == [None]:
            value.pop()
        assert again == value


BAD = [
    b"", b" ", b"null", b"1", b'"ping"', b"{}", b"[]", b"[1,2]", b"[null]", b'["ping"', b'["ping",]',
    b'["ping",01]', b'["ping",NaN]', b'["ping",Infinity]', b'["ping",-Infinity]', b'["ping",1e999]',
    b'["ping",true]', b'["ping",9007199254740993]', b'["ping",' + b"9" * 5000 + b"]",
    b'["error","x",1e999]', b'["error","x",NaN]',
    b'["ping",0] x', b'\xef\xbb\xbf["ping",0]', b'["ping",0]\x00', b'["error","\xff"]', b'["error","a\nb"]',
    '["ping",0]'.encode("utf-16"), b"\x00", b'["headers",null]', b'["sync",1,null,{"id":1,"time":1}]',
    b'["sync",1,{"type":"a"},null]', b'["sync"]', b'["sync",1,{"type":"a"}]', b'["debug","warn","x"]',
]  # fmt: skip


@pytest.mark.parametrize("raw", BAD)
def test_invalid_message_is_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parse(raw)
    assert isinstance(caught.value, ProtocolError)
    assert caught.value.error.type == "wrong-format"
    assert "\n" not in str(caught.value)
    assert len(pack(caught.value.error)) < 50_000


def test_error_quotes_the_beginning_of_the_message() -> None:
    with pytest.raises(Refused) as caught:
        parse('{"a":')
    assert caught.value.error == Error("wrong-format", '{"a":')
    with pytest.raises(Refused) as caught:
        parse(b'["synced", "' + b"x" * 100_000 + b'"]')
    assert caught.value.error.options == '["synced","' + "x" * (4096 - 11)


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_quoted_in_an_error(raw: bytes) -> None:
    try:
        assert pack(parse(raw))
    except Refused as error:
        assert pack(error.error)


class TestBounds:
    @pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}"), ('[{"a\\"]":', "}]")])
    @pytest.mark.parametrize("more", [-1, 0, 1, 100_000])
    def test_nesting_is_limited(self, opening: str, closing: str, more: int) -> None:
        per = opening.count("[") + opening.count("{")
        times = (MAX_NESTING - 1 + more) // per
        text = f'["error","x",{opening * times}0{closing * times}]'
        assert (1 + per * times > MAX_NESTING) == (more > 0)
        if more > 0:
            with pytest.raises(Refused, match="nested deeper"):
                parse(text)
        else:
            assert parse(text) == Error("x", json.loads(text)[2])

    @pytest.mark.parametrize("bad", ["[" * 100_000, '["' + "[" * 600, '["\\"' + "[" * 600, "]" * 100_000])
    def test_unclosed_brackets_are_refused(self, bad: str) -> None:
        with pytest.raises(Refused):
            parse(bad)

    def test_brackets_in_texts_do_not_count(self) -> None:
        many = "[" * 5000 + '{"\\' * 2000
        assert parse(json.dumps(["error", many])) == Error(many)

    @given(
        st.text(st.sampled_from('[]{}"\\,:01 '), max_size=40),
        st.text(st.sampled_from('[]{}"\\'), max_size=30),
    )
    def test_nesting_is_counted_as_by_the_reference(self, junk: str, text: str) -> None:
        """Texts and escapes around the brackets do not matter."""
        document = f'["error",{json.dumps(text)},{"[" * (MAX_NESTING - 2)}{junk}{"]" * (MAX_NESTING - 2)}]'
        try:
            json.loads(document)
        except ValueError:
            with pytest.raises(Refused):
                parse(document)
            return
        if oracle.nesting(document) > MAX_NESTING:
            with pytest.raises(Refused, match="nested deeper"):
                parse(document)
        else:
            assert isinstance(parse(document), Error)

    def test_parse_on_a_nearly_full_stack_does_not_crash(self) -> None:
        text = '["error","x",' + "[" * (MAX_NESTING - 2) + "]" * (MAX_NESTING - 2) + "]"

        def down() -> str:
            try:
                return down()
            except RecursionError:
                try:
                    parse(text)
                except Refused:
                    return "refused"
                except RecursionError:  # no room for the call itself: try one frame up
                    raise
                return "taken"

        assert down() in ("refused", "taken")

    def test_values_and_texts_of_a_message_are_limited(self) -> None:
        with pytest.raises(Refused, match="values"):
            parse(b'["error","x",[' + b"0," * 3_100_000 + b"0]]")
        with pytest.raises(Refused, match="texts"):
            parse(b'["error","x",[' + b'"",' * 2_100_000 + b"0]]")
        commas = "," * 4_000_000
        assert parse(json.dumps(["error", commas])) == Error(commas)


# --- ids ---------------------------------------------------------------------------------------

nodes = st.sampled_from(["u1:c1:t1", "u1:c1:t2", "server:gold", "justname", "é:1"])
milliseconds = st.integers(0, 2**43)


class TestIds:
    @pytest.mark.parametrize(
        "relative, absolute",
        [
            (10, "1010 u:c:t 0"),
            (-10, "990 u:c:t 0"),
            ([10, 1], "1010 u:c:t 1"),
            ([11, "u:c:x", 0], "1011 u:c:x 0"),
            (1.5, "1001.5 u:c:t 0"),
            (2.0, "1002 u:c:t 0"),
            ([0, 2.0], "1000 u:c:t 2"),
        ],
    )
    def test_relative_id_becomes_absolute(self, relative: Any, absolute: str) -> None:
        assert logux.decode_id(relative, 1000, "u:c:t") == absolute

    @given(milliseconds, nodes, st.integers(0, 10**6), milliseconds, nodes)
    def test_each_form_of_an_id_becomes_absolute(
        self, shift: int, node: str, counter: int, base: int, own: str
    ) -> None:
        for relative in (shift, [shift, counter], [shift, node, counter]):
            assert oracle.relative_id(relative)
            assert logux.decode_id(relative, base, own) == oracle.absolute_id(relative, base, own)

    @pytest.mark.parametrize(
        "text, user, client",
        [
            ("u:c:t", "u", "u:c"),
            ("u:c", "u", "u:c"),
            ("justname", None, "justname"),
            ("u:c:t:more", "u", "u:c"),
            ("server:x", "server", "server:x"),
            ("", None, ""),
        ],
    )
    def test_node_id_has_user_and_client(self, text: str, user: str | None, client: str) -> None:
        assert logux_node.parse_id(text) == (user, client)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, raw",
    [
        (
            Error("wrong-protocol", {"supported": 5, "used": 4}),
            '["error","wrong-protocol",{"supported":5,"used":4}]',
        ),
        (logux.wrong_format("[1,"), '["error","wrong-format","[1,"]'),
        (Error("unknown-message", "foo"), '["error","unknown-message","foo"]'),
        (logux_node.WRONG_CREDENTIALS, '["error","wrong-credentials"]'),
        (Error("missed-auth", '["ping",0]'), '["error","missed-auth","[\\"ping\\",0]"]'),
        (Error("timeout", 70000), '["error","timeout",70000]'),
        (
            Error("wrong-subprotocol", {"supported": 1, "used": "0"}),
            '["error","wrong-subprotocol",{"supported":1,"used":"0"}]',
        ),
    ],
)
def test_error_is_packed_parsed_and_described(error: Error, raw: str) -> None:
    assert pack(error).decode() == raw
    assert parse(raw) == error
    line = logux.describe(error)
    assert line.startswith(error.type) and line.isprintable()


@given(st.text(max_size=100), values)
def test_description_of_any_error_is_one_line(kind: str, options_: Any) -> None:
    line = logux.describe(Error(kind, options_))
    assert len(line) < 300
    assert line.isprintable()


# --- subprotocols ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "used, minimum, below",
    [
        # The first five were recorded; the others were evaluated with node.
        (0, 1, True), (None, 1, True), (2, 1, False), ("1.0.0", 3, False), ("0", 1, True), ("1", 1, False),
        ("", 1, True), (False, 1, True), (True, 1, False), (True, 2, True), ({}, 1, False), ([], 1, True),
        ([0], 1, True), ([None], 1, True), ([5], 6, True), ([1, 2], 3, False), ("0x1", 2, True),
        (" 1 ", 2, True),
        ("1e1", 11, True), ("Infinity", 1, False), ("1_0", 11, False), (0.5, 1, True), ("10", "9", True),
        ("2", "10", False), (-1, 0, True), (10**400, 5, False),
    ],
)  # fmt: skip
def test_subprotocols_compare_as_in_javascript(used: Any, minimum: int | str, below: bool) -> None:
    assert logux_node.falls_below(used, minimum) is below


versions = st.builds(
    lambda numbers, before: ".".join(map(str, numbers)) + ("-" + ".".join(before) if before else ""),
    st.lists(st.integers(0, 3) | st.just(10), min_size=3, max_size=3),
    st.lists(st.sampled_from(["0", "1", "10", "alpha", "beta", "a-b"]), max_size=3),
)


def semver_less(one: str, other: str) -> bool:
    """Compare by rule 11 of SemVer."""
    a, b = oracle.order(one), oracle.order(other)
    if a[:3] != b[:3]:
        return a[:3] < b[:3]
    a, b = a[3:], b[3:]
    if ["release"] in (a, b):
        return a != ["release"]
    for left, right in zip(a, b, strict=False):
        if left != right:
            if left[0] != right[0]:
                return left[0] == "number"
            return left[1] < right[1]
    return len(a) < len(b)


@given(versions, versions)
@example("1.0.0-alpha", "1.0.0-alpha.1")
def test_strict_subprotocols_compare_as_semver(used: str, minimum: str) -> None:
    assert logux_node.falls_below(used, minimum, strict_spec=True) is semver_less(used, minimum)


@pytest.mark.parametrize("used", [None, "", "1", "1.0", "01.0.0", "x", [], {}, 1.5, True, "1" * 10_000])
def test_text_that_is_no_version_falls_below(used: Any) -> None:
    assert logux_node.falls_below(used, "0.0.0", strict_spec=True)


def test_number_is_a_major_version_in_strict_spec() -> None:
    assert not logux_node.falls_below(1, "1.0.0", strict_spec=True)
    assert logux_node.falls_below(1, "1.0.1", strict_spec=True)
    assert not logux_node.falls_below("1.0.0+build", 1, strict_spec=True)
