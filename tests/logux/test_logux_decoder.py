"""The decoder of captured Logux messages: ids, hashes, offsets, and a status for each fault."""

from __future__ import annotations

import json
from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext import logux
from logclient._ext.hash import xxh64
from logclient._ext.logux import (
    BAD_ACTION,
    BAD_JSON,
    BAD_MESSAGE,
    BAD_META,
    BAD_SYNC,
    CONTROL,
    FOREIGN,
    NO_ID,
    NOT_JSON,
    OK,
    PING,
    STATUS_NAMES,
    UNKNOWN_MESSAGE,
    Decoder,
)
from tests.oracle import logux_decoder as oracle
from tests.support import recordings
from tests.support.examples import examples
from tests.support.lumberjack_inputs import HEX_ID, damaged, randoms, scalars, space, write

pytestmark = pytest.mark.unit

OURS = bytes.fromhex("00ff10203040506070a0")
OTHER = bytes.fromhex("ffffffffffffffffffff")
MINE = OURS.hex() + "000000000007"
THEIRS = OTHER.hex() + "000000000009"


def columns(units: list[bytes]) -> tuple[bytes, array[int], array[int]]:
    """Put the units into one buffer with some bytes between them."""
    data, offsets = b"-", []
    for unit in units:
        offsets.append(len(data))
        data += unit + b"--"
    return data, array("q", offsets), array("q", map(len, units))


def decode(
    units: list[bytes], producers: list[bytes] | None = None, **options: bool
) -> list[list[oracle.Row]]:
    """Return the rows of each unit."""
    decoder = Decoder(b"".join(producers or []), **options)
    got = decoder.decode(*columns(units))
    hashes = got.id_hash.tolist()
    found: list[list[oracle.Row]] = [[] for _ in units]
    for i, unit in enumerate(got.unit.tolist()):
        found[unit].append(
            oracle.Row(
                got.status[i], got.offset[i], got.length[i], got.producer[i], got.prefix_high[i],
                got.prefix_low[i], got.sequence[i], got.hash[i], (hashes[2 * i], hashes[2 * i + 1]),
            )
        )  # fmt: skip
    assert got.unit.tolist() == sorted(got.unit.tolist())
    return found


def row_of(unit: bytes, producers: list[bytes] | None = None, **options: bool) -> oracle.Row:
    ((row,),) = decode([unit], producers, **options)
    return row


def sync(*actions: str, added: int = 1) -> bytes:
    pairs = "".join(f',{action},{{"id":{n},"time":{n}}}' for n, action in enumerate(actions))
    return f'["sync",{added}{pairs}]'.encode()


# -- actions


def test_sync_has_a_row_for_each_action() -> None:
    actions = [f'{{"type":"log/add","data":{{"n":{n}}},"id":"{OURS.hex()}{n:012x}"}}' for n in range(1, 4)]
    unit = sync(*actions)
    first, second = decode([unit, b'["ping",1]', unit], [OURS])[::2]
    assert first == second
    assert [row.sequence for row in first] == [1, 2, 3]
    for row, action in zip(first, actions, strict=True):
        assert (row.status, row.producer) == (OK, 0)
        assert unit[row.offset : row.offset + row.length].decode() == action
        assert row.hash == xxh64(action.encode())
        assert (row.prefix_high, row.prefix_low) == (
            int.from_bytes(OURS[:8], "big"), int.from_bytes(OURS[8:], "big"),
        )  # fmt: skip


def test_empty_sync_has_no_rows() -> None:
    assert decode([b'["sync",0]', b' [ "s\\u0079nc" , -1.5e3 ] ']) == [[], []]


@pytest.mark.parametrize(
    ("action", "status", "sequence"),
    [
        ('{"type":"x","id":"MINE"}', OK, 7),
        ('{"id":"MINE","type":"x"}', OK, 7),
        ('{"type":"x","\\u0069\\u0064":"MINE"}', OK, 7),
        ('{"type":"x","id":1,"id":"MINE"}', OK, 7),
        ('{"type":1,"type":"","id":"MINE","length":"1"}', OK, 7),
        ('{"type":"x","id":"THEIRS"}', FOREIGN, 9),
        ('{"type":"x","id":"MINE","id":[[1]]}', FOREIGN, 0),
        ('{"type":"x","id":null}', FOREIGN, 0),
        ('{"type":"x","id":""}', FOREIGN, 0),
        ('{"type":"x","id":{"id":"MINE"}}', FOREIGN, 0),
        ('{"type":"x","data":{"id":"MINE"}}', NO_ID, 0),
        ('{"type":"x","data":[{"id":"MINE","length":1}]}', NO_ID, 0),
        ('{"type":"x"}', NO_ID, 0),
    ],
)
def test_last_id_of_an_action_counts(action: str, status: int, sequence: int) -> None:
    unit = sync(action.replace("MINE", MINE).replace("THEIRS", THEIRS))
    row = row_of(unit, [OURS])
    assert (row.status, row.sequence, row.producer) == (status, sequence, 0 if status == OK else -1)
    assert [row] == oracle.decode(unit, [OURS])
    assert row_of(unit, [OURS], identity=False)[0] == NO_ID


def test_any_producer_is_accepted_when_none_is_given() -> None:
    unit = sync(
        f'{{"type":"x","id":"{THEIRS}"}}', '{"type":"x","id":"own"}', f'{{"type":"x","id":"{MINE.upper()}"}}'
    )
    ((theirs, own, upper),) = decode([unit])
    assert (theirs.status, theirs.sequence) == (OK, 9)
    assert own.id_hash == (xxh64(b"own", 42), xxh64(b"own", 43))
    assert upper.status == FOREIGN


@pytest.mark.parametrize(
    "meta",
    [
        '{"id":1,"time":1}',
        '{"id":[-1.5,0],"time":0}',
        '{"time":1e3,"id":[1,"10:a:b",0]}',
        '{"id":[1],"id":[1,0],"time":1,"length":"1","subprotocol":9}',
    ],
)
def test_every_valid_meta_is_accepted(meta: str) -> None:
    assert row_of(b'["sync",1,{"type":"x"},%s]' % meta.encode()).status == NO_ID


# -- other messages


WRONG = [
    # unit, status, where
    ("", BAD_JSON, 0),
    (" ", BAD_JSON, 1),
    ("nonsense", BAD_JSON, 0),
    ("nul", BAD_JSON, 0),
    ('["ping",1', BAD_JSON, 9),
    ('["ping",1]]', BAD_JSON, 10),
    ('["ping",1] x', BAD_JSON, 11),
    ('["ping",01]', BAD_JSON, 9),
    ('["ping",1.]', BAD_JSON, 8),
    ('["ping",1e999]', BAD_JSON, 8),
    ('["ping",1,]', BAD_JSON, 10),
    ('["ping" 1]', BAD_JSON, 8),
    ('["ping\n",1]', BAD_JSON, 1),
    ('["pi\\xng",1]', BAD_JSON, 1),
    ('["headers",{"a" 1}]', BAD_JSON, 16),
    ('["headers",{a:1}]', BAD_JSON, 12),
    ('["headers",{"a":}]', BAD_JSON, 16),
    ('["headers",{"a":1,}]', BAD_JSON, 18),
    ("null", BAD_MESSAGE, 0),
    (' {"sync":1}', BAD_MESSAGE, 1),
    ('"sync"', BAD_MESSAGE, 0),
    ("[]", BAD_MESSAGE, 1),
    ("[ ]", BAD_MESSAGE, 2),
    ("[1]", BAD_MESSAGE, 1),
    ('[["sync"],0]', BAD_MESSAGE, 1),
    ('["ping"]', BAD_MESSAGE, 7),
    ('["ping","1"]', BAD_MESSAGE, 8),
    ('["ping",1,2]', BAD_MESSAGE, 10),
    ('["pong",null]', BAD_MESSAGE, 8),
    ('["synced",[1]]', BAD_MESSAGE, 10),
    ('["headers",null]', BAD_MESSAGE, 11),
    ('["headers",[]]', BAD_MESSAGE, 11),
    ('["headers",{"length":1}]', BAD_MESSAGE, 11),
    ('["connect",5,"n"]', BAD_MESSAGE, 16),
    ('["connect","5","n",0]', BAD_MESSAGE, 11),
    ('["connect",5,"n",0,null]', BAD_MESSAGE, 19),
    ('["connect",5,"n",0,{},1]', BAD_MESSAGE, 22),
    ('["connected",5,"n",[1]]', BAD_MESSAGE, 19),
    ('["connected",5,"n",[1,2,3]]', BAD_MESSAGE, 19),
    ('["connected",5,"n",[1,"2"]]', BAD_MESSAGE, 19),
    ('["error"]', BAD_MESSAGE, 8),
    ('["error",1]', BAD_MESSAGE, 9),
    ('["debug","warn","x"]', BAD_MESSAGE, 9),
    ('["debug","error",1]', BAD_MESSAGE, 17),
    ('["ready",0]', UNKNOWN_MESSAGE, 1),
    ('["",0]', UNKNOWN_MESSAGE, 1),
    ('["syncs",0]', UNKNOWN_MESSAGE, 1),
    ('["sync"]', BAD_SYNC, 7),
    ('["sync",null]', BAD_SYNC, 8),
    ('["sync",1,{"type":"x"}]', BAD_SYNC, 22),
    ('["sync",1,null,{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,[],{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,"type",{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,{},{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,{"type":7},{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,{"type":"x","length":5},{"id":1,"time":1}]', BAD_ACTION, 10),
    ('["sync",1,{"type":"x"},null]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":"1","time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":[],"time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":[1,1,1],"time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":[1,"n",1,1],"time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":[[1,2]],"time":1}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":1,"time":"1"}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":1,"time":1,"length":0}]', BAD_META, 23),
    ('["sync",1,{"type":"x"},{"id":1,"time":1},{"type":"y"},{"id":1,"time":1}', BAD_JSON, 71),
    ('["sync",1,{"type":"x"},{"id":1,"time":1},{"type":"y"},{"id":1}]', BAD_META, 54),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "status", "where"), WRONG, ids=[unit for unit, *_ in WRONG])
def test_wrong_message_is_one_row_with_its_offset(unit: str, status: int, where: int) -> None:
    """There is no row for actions before the fault."""
    raw = unit.encode()
    row = row_of(raw)
    assert (STATUS_NAMES[row.status], row.offset) == (STATUS_NAMES[status], where)
    assert row == oracle.Row(status, where, len(raw) - where)
    assert [row] == oracle.decode(raw, [])


@pytest.mark.parametrize(
    ("unit", "status"),
    [
        ('["connect",5,"n",0]', CONTROL),
        ('["connect",5,"n",0,{"token":"x"}]', CONTROL),
        ('["connected",5,"n",[1,2]]', CONTROL),
        ('["connected",5,"n",[1,2],{}]', CONTROL),
        ('["headers",{}]', CONTROL),
        ('["headers",{"length":"1","type":1}]', CONTROL),
        ('["synced",1]', CONTROL),
        ('["error","x"]', CONTROL),
        ('["error","x",null]', CONTROL),
        ('["debug","error","x"]', CONTROL),
        ('["duilian","x"]', CONTROL),
        ('["ping",0]', PING),
        (' [ "po\\u006eg" , -0.5E+1 ]\n', PING),
    ],
)
def test_other_messages_are_one_row(unit: str, status: int) -> None:
    row = row_of(unit.encode())
    assert row == oracle.Row(status, 0, len(unit))
    assert [row] == oracle.decode(unit.encode(), [])


@pytest.mark.parametrize(
    "wrong", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0"]
)
def test_text_must_be_utf8(wrong: bytes) -> None:
    unit = sync('{"type":"log/add","data":{"message":"X"}}')
    assert row_of(unit.replace(b"X", "\u20ac".encode())).status == NO_ID
    at, broken = unit.index(b'"X"'), unit.replace(b"X", wrong)
    assert row_of(broken) == oracle.Row(BAD_JSON, at, len(broken) - at)


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"":', b"}")])
def test_nesting_is_limited_to_max_depth(brackets: tuple[bytes, bytes]) -> None:
    def unit(levels: int) -> bytes:
        inner = brackets[0] * levels + b"0" + brackets[1] * levels
        return b'["sync",1,{"type":"x","data":%b},{"id":1,"time":1}]' % inner

    assert row_of(unit(oracle.MAX_DEPTH - 2)).status == NO_ID
    assert row_of(unit(oracle.MAX_DEPTH - 1)).status == BAD_JSON
    assert row_of(b"[" * 1_000_000) == oracle.Row(BAD_JSON, oracle.MAX_DEPTH, 1_000_000 - oracle.MAX_DEPTH)


def test_bodies_without_messages_are_decoded() -> None:
    """Records in Kafka or a table hold a single action."""
    bodies = [f'{{"type":"x","id":"{MINE}"}}', ' {"id":"own"} ', "{}", "[1]", "x", "",
              '{"type":"x"},{"id":0,"time":0},{"type":"y"}']  # fmt: skip
    rows = [row for (row,) in decode([body.encode() for body in bodies], [OURS], messages=False)]
    assert [row.status for row in rows] == [OK, FOREIGN, NO_ID, NOT_JSON, NOT_JSON, NOT_JSON, NOT_JSON]
    assert rows == [oracle.decode_body(body.encode(), [OURS]) for body in bodies]
    (unsearched,) = decode([b"x"], identity=False, messages=False)
    assert unsearched == [oracle.decode_body(b"x", [], identity=False)]


# -- any input


def _objects(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    values = scalars | st.lists(scalars, max_size=3) | st.sampled_from([MINE, THEIRS])
    inner = st.recursive(
        values,
        lambda x: (
            st.lists(x, max_size=3) | st.lists(st.tuples(st.text(max_size=6), x), max_size=3).map(tuple)
        ),
        max_leaves=5,
    )
    return st.lists(st.tuples(st.sampled_from(names), inner), max_size=4).map(tuple)


_numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_good_actions = st.builds(
    lambda more, ident, end: (
        (("type", "x"), *more, *end) if ident is None else (("type", "x"), *more, ("id", ident))
    ),
    _objects(("data", "n", "id", "level")),
    st.sampled_from([None, MINE, THEIRS, HEX_ID, "own"]),
    st.just(()),
)
_good_metas = st.builds(
    lambda ident, time: (("id", ident), ("time", time)),
    _numbers
    | st.tuples(_numbers, _numbers).map(list)
    | st.tuples(_numbers, st.text(max_size=9), _numbers).map(list),
    _numbers,
)
_good_syncs = st.builds(
    lambda added, pairs: ["sync", added, *(x for pair in pairs for x in pair)],
    _numbers,
    st.lists(st.tuples(_good_actions, _good_metas), max_size=5),
)
_names = st.sampled_from(["sync", "sync", *oracle.FORMS, "ready", "error"])
_anything = st.builds(
    lambda name, rest: [name, *rest],
    _names,
    st.lists(
        _numbers | st.sampled_from(["x", "error", None, [1, 2]]) | _good_actions | _good_metas
        | _objects(("type", "id", "time", "length")),
        max_size=5,
    ),
)  # fmt: skip
_messages = st.builds(
    lambda value, random: (space(random) + write(value, random) + space(random)).encode("utf-8", "replace"),
    _good_syncs | _anything,
    randoms,
)


@pytest.mark.slow
@examples(80)
@given(_messages, st.booleans(), st.sampled_from([[], [OURS], [bytes.fromhex(HEX_ID)[:10], OTHER]]))
def test_decoding_equals_the_reference(unit: bytes, identity: bool, producers: list[bytes]) -> None:
    (rows,) = decode([unit], producers, identity=identity)
    assert rows == oracle.decode(unit, producers, identity)
    ((body,),) = decode([unit], producers, identity=identity, messages=False)
    assert body == oracle.decode_body(unit, producers, identity)


@pytest.mark.slow
@examples(80)
@given(st.builds(damaged, _messages, randoms) | st.binary(max_size=40))
@example(b'["sync",1,{"type":"x"},{"id":1,"time":1}]\0')
def test_decoding_of_damage_equals_the_reference(unit: bytes) -> None:
    assert decode([unit]) == [oracle.decode(unit, [])]


def test_every_cut_and_flipped_bit_equals_the_reference() -> None:
    whole = sync(f'{{"type":"log/add","data":{{"m":"a\\n\u20ac","l":[1,-2.5e3,null]}},"id":"{MINE}"}}',
                 '{"type":"log/add","data":{"ok":true}}')  # fmt: skip
    random = Random(7)
    units = [whole[:at] for at in range(len(whole))]
    units += [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    units += [whole[:at] + random.randbytes(3) + whole[at + 1 :] for at in range(len(whole))]
    assert decode(units, [OURS]) == [oracle.decode(unit, [OURS]) for unit in units]


def _text(step: dict[str, Any]) -> bytes:
    message = step.get("raw", step["msg"])
    if isinstance(message, dict):
        message = message["binary"]
    return (message if isinstance(message, str) else json.dumps(message)).encode()


def test_recorded_messages_are_judged_as_by_the_server() -> None:
    """Messages of real clients are right or wrong as the real server judged them; its own are right."""
    judged: set[str] = set()
    for case in recordings.cases(recordings.LOGUX):
        steps = [step for step in case["steps"] if "event" not in step]
        for step, then in zip(steps, [*steps[1:], {}], strict=False):
            text = _text(step)
            (rows,) = decode([text])
            assert rows == oracle.decode(text, [])
            answer = then.get("msg") if then.get("dir") == "S" and step["dir"] == "C" else None
            reason = answer[1] if isinstance(answer, list) and answer[0] == "error" else "none"
            judged.add(reason)
            wrong = {row.status for row in rows if BAD_JSON <= row.status < PING}
            if text.startswith((b"GET ", b"101 ", b"<")):  # described, not recorded
                continue
            if reason == "unknown-message":
                assert wrong == {UNKNOWN_MESSAGE}, text
            elif reason == "wrong-format":
                assert wrong
                assert wrong != {UNKNOWN_MESSAGE}, text
            elif step["dir"] == "S" and step["msg"][0] == "ready":
                assert wrong == {UNKNOWN_MESSAGE}, text  # of protocol 7
            else:
                assert not wrong, (case["name"], text)
    if recordings.FOLDER == recordings.OWN:
        assert {"none", "wrong-format", "unknown-message"} <= judged


# -- the decoder


def test_unit_outside_of_the_data_is_refused() -> None:
    for at, size in ((-1, 1), (0, -1), (0, 5), (5, 0), (1 << 62, 1), (2, 1 << 62)):
        with pytest.raises(ValueError, match="unit 1 leaves the data of 4 bytes"):
            Decoder().decode(b"four", array("q", [0, at]), array("q", [4, size]))
    for offsets, lengths in ((array("q", [0]), array("q")), (b"1234567", b"1234567")):
        with pytest.raises(ValueError, match="int64, equally many"):
            Decoder().decode(b"", offsets, lengths)


def test_producers_must_be_sorted_and_ten_bytes_each() -> None:
    for wrong in (b"123456789", OURS + OURS, OTHER + OURS):
        with pytest.raises(ValueError, match="producers: "):
            Decoder(wrong)


def test_decoder_can_be_used_again() -> None:
    decoder = Decoder(OURS)
    good = sync(f'{{"type":"x","id":"{MINE}"}}')
    for data, status in ((good, OK), (good[:-1], BAD_JSON), (good, OK)):
        got = decoder.decode(data, array("q", [0]), array("q", [len(data)]))
        assert got.status.tolist() == [status]
    large = sync(f'{{"type":"x","data":"{"y" * 5_000_000}","id":"{MINE}"}}')
    assert decoder.decode(large, array("q", [0]), array("q", [len(large)])).status.tolist() == [OK]
    assert len(decoder.decode(b"", array("q"), array("q"))) == 0


def test_statuses_have_the_names_of_the_reference() -> None:
    assert len(STATUS_NAMES) == CONTROL + 1
    assert [getattr(logux, name.upper()) for name in STATUS_NAMES] == list(range(CONTROL + 1))
