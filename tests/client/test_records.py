"""Documents equal their reference in Python: every byte, the flags and the count of sanitized values."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import email.message
import enum
import http.client
import itertools
import json
import logging
import math
import pathlib
import random
import re
import struct
import sys
import threading
import urllib.parse
import uuid
import wsgiref.headers
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

import multidict
import pytest
import starlette.datastructures as starlette
import werkzeug.datastructures as werkzeug
from django.utils.datastructures import MultiValueDict as DjangoValues
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.record import Encoder
from logclient.errors import EncodeError, EncodeTypeError
from tests.oracle import ecs, lumberjack
from tests.support.examples import examples
from tests.support.record_fields import Lazy

pytestmark = pytest.mark.unit

ID1, ID2 = 0x04, 0x08


def encode_mapping(value: Any, limit: int = 1 << 20) -> tuple[bytes, int, int, int]:
    return Encoder(max_event_bytes=limit).encode(value)


class Broken:
    """An object whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        return "Broken()"


class Thing:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class MisleadingStr(str):
    """A str whose `__str__` returns another text."""

    def __str__(self) -> str:
        return "other"


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Order:
    """A dataclass whose `repr` hides a field."""

    number: int
    id: Any = None
    secret: str = dataclasses.field(default="s", repr=False)


class Unreadable(dict[str, Any]):
    """A mapping that cannot be read."""

    def keys(self) -> Any:
        raise RuntimeError("gone")

    items = __iter__ = keys


def _values_without_json() -> dict[str, Any]:
    items: list[Any] = [1]
    items.append({"again": items, "kept": Order(5)})
    table: dict[Any, Any] = {}
    table[1] = table  # by way of a key that is no string
    own: UserDict[str, Any] = UserDict(b=1)
    own["a"] = [own]
    both: tuple[list[Any], list[Any]] = [], []
    both[0].append(both[1])
    both[1].extend((both[0], both[0], 2))
    order = Order(1)
    order.id = [items, order]
    deep: Any = "end"
    for _ in range(200):
        deep = [0, {"a": deep}]
    return {
        "list": items, "mapping": table, "own mapping": own, "two lists": both[0], "dataclass": order,
        "in a set's place": (items, {"b": items}), "deep": deep, "deep and a cycle": [deep, items],
        "without text": Broken(), "without class": Lazy(), "unreadable": Unreadable(a=1),
        "many": [items] * 3 + [Broken()],
    }  # fmt: skip


WITHOUT_JSON = _values_without_json()


class Whole(int):
    """A subclass of int."""


def _message(kind: Any) -> Any:
    made = kind()
    for name, value in PAIRS:
        made[name] = value
    return made


PAIRS = [("x", "1"), ("y", "3"), ("x", "2")]
QUERY = "x=1&y=3&x=2"
SEVERAL_VALUES: dict[str, Callable[[], Any]] = {
    "werkzeug's MultiDict": lambda: werkzeug.MultiDict(PAIRS),
    "werkzeug's CombinedMultiDict": lambda: werkzeug.CombinedMultiDict([werkzeug.ImmutableMultiDict(PAIRS)]),
    "werkzeug's Headers": lambda: werkzeug.Headers(PAIRS),
    "multidict's CIMultiDict": lambda: multidict.CIMultiDict(PAIRS),
    "multidict's proxy": lambda: multidict.MultiDictProxy(multidict.MultiDict(PAIRS)),
    "Starlette's QueryParams": lambda: starlette.QueryParams(QUERY),
    "Starlette's FormData": lambda: starlette.FormData(PAIRS),
    "Starlette's Headers": lambda: starlette.Headers(raw=[(k.encode(), v.encode()) for k, v in PAIRS]),
    "Django's MultiValueDict": lambda: DjangoValues(urllib.parse.parse_qs(QUERY)),
    "email's Message": lambda: _message(email.message.Message),
    "http's HTTPMessage": lambda: _message(http.client.HTTPMessage),
    "wsgiref's Headers": lambda: wsgiref.headers.Headers(PAIRS),
}


class Pendulum(enum.Enum):
    """Each member stands for the other one."""

    TICK = "tick"
    TOCK = "tock"

    @property
    def value(self) -> Any:
        return Pendulum.TOCK if self is Pendulum.TICK else Pendulum.TICK


class Stand(datetime.timedelta):
    """A duration that stands for a value, or for another one like itself."""

    stands: Any

    def __new__(cls, stands: Any) -> Stand:
        made = super().__new__(cls, seconds=1)
        made.stands = stands
        return made

    def total_seconds(self) -> Any:
        return Stand(None) if self.stands is None else self.stands


class Number(enum.IntEnum):
    TWO = 2


class Mode(enum.StrEnum):
    ON = "on"


# All of Unicode, lone surrogates too, and strings long enough to cross every kind of register.
TEXT = (
    st.text(st.characters(), max_size=40)
    | st.text(st.characters(codec="ascii"), max_size=80)
    | st.text('ab"\\\n\x00\x1f\x7f é\u20ac\U0001f600\ud800', max_size=70)
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats()
    | st.decimals(allow_nan=False, places=4, min_value=-(10**9), max_value=10**9).map(float)
    | TEXT
    | st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.uuids()
    | st.decimals()
    | st.timedeltas()
    | st.sampled_from([Order(1), Order(2, Order(3, {Colour.RED})), Order(4, Broken())])
    | st.sampled_from([Colour.RED, Number.TWO, Mode.ON, Broken(), pathlib.PurePosixPath("a/b")])
    | st.just(MisleadingStr("name"))
    | TEXT.map(Thing)
    | TEXT.map(MisleadingStr)
)
ANY_KEY = (
    TEXT
    | st.integers(-3, 3)
    | st.none()
    | st.booleans()
    | st.floats(0, 2)
    | st.binary(max_size=3)
    | TEXT.map(MisleadingStr)
)
OUR_KEYS = st.sampled_from(
    [
        "@timestamp",
        "log.level",
        "message",
        "ecs.version",
        "log.logger",
        "log.origin.file.name",
        "log.origin.file.line",
        "log.origin.function",
        "process.pid",
        "process.name",
        "process.thread.id",
        "process.thread.name",
        "error.type",
        "error.message",
        "error.stack_trace",
        "error.fingerprint",
        "log.flags",
        "@metadata",
        "event.id",
        "event",
    ]
)
# Names that mean something, or conflict with others.
NAMES = OUR_KEYS | st.sampled_from(
    ["log", "log.origin", "log.origin.x", "process", "process.thread", "process.pid.x", "error", "error.code"]
    + [
        "labels",
        "labels.event",
        "labels.service",
        "labels.log_level",
        "service",
        "service.name",
        "user",
        "ecs",
    ]
    + [
        "event.id.x",
        "event.kind",
        "@metadata._id",
        "message.x",
        "a",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "b.a",
        "é.a",
        "é",
    ]
    + [".", "a.", ".a", "a..b", "id", "uuid", "request_id"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(ANY_KEY, inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "_id", "id.x", "kind", "b", "b.c", "origin", "level"]), inner
        )
        | st.dictionaries(TEXT, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(TEXT, inner, max_size=3).map(UserDict)
    ),
    max_leaves=12,
)
# What could be taken for an id of ours, and what nearly could.
LIKE_OURS = st.sampled_from(
    [
        "0123456789abcdef0123456789abcdef",
        "0" * 32,
        "A" * 32,
        "a" * 31,
        10**31,
        10**32 - 1,
        10**31 - 1,
        b"a" * 32,
    ]
).flatmap(lambda text: st.sampled_from([text, Thing(text), {"id": text}, {"_id": text}, [text]]))
MAPPINGS = (
    st.dictionaries(TEXT | OUR_KEYS, VALUES, max_size=6)
    | st.dictionaries(ANY_KEY | OUR_KEYS, VALUES, max_size=6)
    | st.dictionaries(NAMES, VALUES | LIKE_OURS, max_size=6)
)
EVENT_IDS = st.fixed_dictionaries(
    {},
    optional={
        "event": st.dictionaries(st.sampled_from(["id", "kind"]), TEXT),
        "event.id": TEXT,
        "@metadata": VALUES,
    },
)

EXTRA_KEY = (
    ANY_KEY.filter(lambda k: not isinstance(k, str) or str.__str__(k) not in ecs.STANDARD)
    | OUR_KEYS.filter(lambda k: k != "message")
    | NAMES.filter(lambda k: k not in ecs.STANDARD)
)


@st.composite
def records(draw: st.DrawFn) -> logging.LogRecord:
    record = logging.LogRecord(
        draw(TEXT),
        draw(st.sampled_from([0, 10, 20, 30, 35, 40, 50])),
        draw(TEXT),
        draw(st.integers(0, 10**6)),
        draw(TEXT | MAPPINGS | VALUES),
        (),
        None,
        draw(TEXT | st.none()),
        draw(st.none() | TEXT),
    )
    record.args = draw(
        st.just(()) | st.none() | st.lists(SCALARS, max_size=3).map(tuple) | st.dictionaries(TEXT, SCALARS)
    )
    if draw(st.booleans()):
        record.msg, record.args = draw(formats())
    record.created = draw(st.floats(-6e10, 2.5e11).filter(lambda t: round(t * 1e6)))
    if draw(st.booleans()):
        vars(record).update(draw(st.dictionaries(EXTRA_KEY, VALUES, max_size=5)))
        vars(record).update(draw(EVENT_IDS))
    error: BaseException | None = draw(
        st.none() | st.sampled_from([ValueError("bad \ud800"), KeyError(), Exception(Broken())])
    )
    if error is not None:
        record.exc_info = (type(error), error, None)
    record.exc_text = draw(st.none() | st.just("") | TEXT)
    for name in ("levelname", "threadName", "process", "processName", "thread", "filename", "lineno"):
        if draw(st.integers(0, 9)) == 0:
            setattr(record, name, draw(TEXT | SCALARS))
    return record


@st.composite
def formats(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    """Draw a message with directives and arguments that more or less fit."""
    parts = draw(
        st.lists(
            TEXT.map(lambda t: t.replace("%", ""))
            | st.sampled_from(["%s", "%d", "%i", "%%", "%r", "%.2f", "%5s", "%x", "%", "%s%s", "%(a)s"]),
            max_size=6,
        )
    )
    return "".join(parts), tuple(draw(st.lists(SCALARS, max_size=3)))


def load_fields(body: bytes) -> list[tuple[str, Any]]:
    """Return the fields in their order; no key may be there twice, at any depth."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        assert len(made) == len(items), items
        return made

    assert b"\n" not in body
    return list(json.loads(body.decode("utf-8"), object_pairs_hook=pairs).items())


def assert_same_document(made: tuple[bytes, int, int, int], expected: ecs.Document) -> None:
    body, *rest = made
    fields = dict(load_fields(body))
    if expected.moved or expected.flags:
        # In any order, but for what the id goes into.
        assert fields == json.loads(expected.json())
        assert not expected.flags & ecs.OPEN or ([*fields][-1] == "@metadata" and body.endswith(b"}}"))
        assert not expected.flags & ecs.EVENT_OPEN or ([*fields][-1] == "event" and body.endswith(b"}}"))
    else:
        assert body == expected.json()
    assert rest == [expected.flags, expected.sanitized, expected.moved]


def assert_same_pairs(made: tuple[bytes, int, int, int], expected: ecs.Document) -> None:
    body, *rest = made
    if expected.moved:
        assert split_pairs(body) == split_pairs(expected.pairs())
    else:
        assert body == expected.pairs()
    assert rest == [expected.flags, expected.sanitized, expected.moved]


def split_pairs(block: bytes) -> dict[bytes, bytes]:
    """Return the fields of a pair block; no key may be there twice."""
    pairs = lumberjack.split_pairs(block)
    assert pairs is not None
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def assert_no_name_conflicts(fields: Mapping[str, Any], nested: bool = False) -> None:
    """Assert that no scalar stands beside a field below it: neither by dots nor in a mapping.

    Args:
        nested: the document has objects, and `log.level` beside the object `log`. Names with empty parts
            stay as they are; Elasticsearch refuses them in any form.
    """
    for name in fields:
        for at in [at for at, c in enumerate(name) if c == "."]:
            above = fields.get(name[:at], {})
            assert isinstance(above, dict), (name[:at], name)
            alone = (name == "log.level" and "level" not in above) or name == "ecs.version"
            if nested and (alone or "" in name.split(".")):
                continue
            if name[:at] == "@metadata":
                continue  # trusted metadata travels as it is: servers keep it out of the document
            # What moves goes beside a mapping of labels, not into it.
            beside = name[:at] == "labels" and name[at + 1 :].split(".")[0] not in above
            assert not above or beside, (name[:at], name)


class TestMapping:
    @examples(150)
    @given(MAPPINGS)
    @example({})
    @example({"event": {"id": 1}})
    @example({"event": {"kind": 1}})
    @example({"event": "id"})
    @example({1: "a", "1": "b"})
    @example({chr(0xD800): 1, "\ufffd": 2})
    @example({"a": {True: 1, "True": 2, None: 3}})
    @example({"": 1, ".id": 2})
    @example({".id": 1, "": {"a": 1}})
    @example({"..": 1, "": 2})
    @example({"": {"id": "x"}, ".id": 3})
    def test_mappings_equal_the_reference(self, mapping: dict[Any, Any]) -> None:
        assert_same_document(encode_mapping(mapping), ecs.of_mapping(mapping))

    @given(TEXT)
    def test_a_string_becomes_the_message(self, text: str) -> None:
        assert_same_document(encode_mapping(text), ecs.of_mapping(text))

    @examples(120)
    @given(st.text(st.characters(), max_size=3000) | st.text(st.characters(codec="latin-1"), max_size=3000))
    def test_long_strings_equal_the_reference(self, text: str) -> None:
        assert_same_document(encode_mapping({"a": text, text: "a"}), ecs.of_mapping({"a": text, text: "a"}))

    @pytest.mark.parametrize("n", [*range(70), 1023, 1024, 1025, 2047, 2048, 2049])
    @pytest.mark.parametrize(
        "c", ["a", "\n", '"', "\\", "\x00", "\x7f", "é", "\u20ac", "\U0001f600", "\ud800"]
    )
    def test_a_special_character_at_every_place(self, n: int, c: str) -> None:
        for at in {0, n // 2, max(0, n - 1), n}:
            text = "x" * at + c + "y" * (n - at)
            assert_same_document(encode_mapping({text: text}), ecs.of_mapping({text: text}))

    @examples(1000)
    @given(
        st.floats()
        | st.floats(-1e6, 1e6).map(lambda v: round(v, 3))
        | st.floats(-1e16, 1e16)
        | st.integers(-(10**17), 10**17).map(lambda v: v / 10**6)
    )
    @example(0.1 + 0.2)
    @example(1e15)
    @example(999999999999999.9)
    @example(1e-4)
    @example(9.999e-5)
    @example(123456.78901234)
    @example(5e-324)
    @example(1.7976931348623157e308)
    @example(-0.0)
    @example(0.30000000000000004)
    @example(4503599627370497.5)
    def test_floats_are_as_short_as_repr(self, value: float) -> None:
        body = encode_mapping({"v": value})[0]
        assert body == b'{"v":%s}' % (repr(value).encode() if math.isfinite(value) else b"null")

    @pytest.mark.parametrize("places", range(10))
    def test_floats_of_every_number_of_digits(self, places: int) -> None:
        draw = random.Random(places)
        for digits in range(1, 18):
            for _ in range(20):
                value = draw.randrange(10**digits) / 10**places
                assert encode_mapping({"v": value})[0] == b'{"v":%s}' % repr(value).encode()

    def test_integers_of_every_number_of_digits(self) -> None:
        for digits in range(19):
            for value in (10**digits - 1, 10**digits, 10**digits + 1, 5 * 10**digits // 3):
                assert encode_mapping({"v": [value, -value]})[0] == b'{"v":[%d,%d]}' % (value, -value)

    @examples(120)
    @given(st.integers() | st.integers(-(2**64), 2**64))
    @example(2**63 - 1)
    @example(-(2**63))
    @example(2**63)
    @example(-(2**63) - 1)
    def test_integers_of_64_bits_are_numbers_and_others_their_text(self, value: int) -> None:
        whole = -(2**63) <= value < 2**63
        for one in (value, Whole(value)):
            made = encode_mapping({"v": one, "list": [one]})
            written = value if whole else str(value)
            assert (json.loads(made[0]), made[2]) == ({"v": written, "list": [written]}, 2 * (not whole))
            assert_same_document(made, ecs.of_mapping({"v": one, "list": [one]}))

    @pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63) - 1])
    def test_integers_beyond_64_bits_are_text_in_fields_of_ours(self, value: int) -> None:
        record = logging.makeLogRecord({"msg": "m", "lineno": value, "process": value})
        found = json.loads(Encoder().encode_record(record)[0])
        assert found["log.origin.file.line"] == found["process.pid"] == str(value)

    def test_integers_beyond_the_digits_of_python_become_text(self) -> None:
        for value in (2**1024, -(2**1024), 10**4000, 10 ** (sys.get_int_max_str_digits() + 1)):
            body, _, sanitized, _ = encode_mapping({"v": value})
            assert sanitized == 1
            assert int(json.loads(body)["v"], 0) == value

    def test_scalars_of_numpy_are_those_of_python(self) -> None:
        numpy = pytest.importorskip("numpy")
        event = {
            "a": numpy.int64(-5),
            "b": numpy.float32(0.5),
            "c": numpy.bool_(True),
            "d": numpy.datetime64("2026-01-02T03:04:05"),
            "e": numpy.str_("text"),
            "f": numpy.float64("nan"),
            "g": [numpy.uint8(255), numpy.uint64(2**64 - 1)],
            "h": [numpy.datetime64("2026-01-02T03:04:05.000006007"), numpy.timedelta64(1_500_000_000, "ns")],
        }
        body, _, sanitized, _ = encode_mapping(event)
        expected = {"a": -5, "b": 0.5, "c": True, "d": "2026-01-02T03:04:05+00:00", "e": "text", "f": None}
        expected |= {"g": [255, str(2**64 - 1)], "h": ["2026-01-02T03:04:05.000006+00:00", 1.5]}
        assert (json.loads(body), sanitized) == (expected, 2)

    def test_dataclasses_in_a_circle_end_as_text(self) -> None:
        order = Order(1)
        order.id = order
        body, _, sanitized, _ = encode_mapping({"order": order, "user": Order(2)})
        made = json.loads(body)
        assert made["user"] == {"number": 2, "id": None}
        levels = 0
        while isinstance(made, dict):
            made = made.get("id") or made.get("order")
            levels += 1
        assert (made, sanitized) == (str(order), 1)
        assert levels == 5

    def test_known_objects_are_written_by_their_value(self) -> None:
        moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
        number = uuid.UUID(int=7)
        event = {
            "a": moment,
            "b": number,
            "c": decimal.Decimal("1.50"),
            "d": Colour.RED,
            "e": Number.TWO,
            "f": Mode.ON,
            "g": datetime.timedelta(minutes=1, milliseconds=500),
            "h": Order(1, Order(2, Colour.RED)),
            "i": Order,
        }
        body, _, sanitized, _ = encode_mapping(event)
        assert sanitized == 1
        assert json.loads(body) == {
            "a": "2026-01-02T03:04:05.000006+00:00",
            "b": str(number),
            "c": "1.50",
            "d": 1,
            "e": 2,
            "f": "on",
            "g": 60.5,
            "h": {"number": 1, "id": {"number": 2, "id": 1}},
            "i": str(Order),
        }

    def test_sets_become_arrays(self) -> None:
        assert json.loads(encode_mapping({"s": {1}, "f": frozenset("a")})[0]) == {"s": [1], "f": ["a"]}

    def test_bytes_become_text(self) -> None:
        body, _, sanitized, _ = encode_mapping({"a": b"ok", "b": b"\xff", "c": memoryview(b"m"), b"k\xff": 1})
        assert json.loads(body) == {"a": "ok", "b": "\ufffd", "c": "m", "k\ufffd": 1}
        assert sanitized == 4

    def test_unprintable_values_keep_their_neighbours(self) -> None:
        body, _, sanitized, _ = encode_mapping({"a": 1, "b": Broken(), Broken(): 2})
        assert json.loads(body) == {"a": 1, "b": "<unprintable Broken>", "<unprintable Broken>": 2}
        assert sanitized == 2

    @pytest.mark.parametrize("levels", [126, 127, 128, 300])
    def test_what_is_nested_deeper_than_128_levels_becomes_a_short_text(self, levels: int) -> None:
        made: Any = {}
        for i in range(levels):
            made = [made] if i % 2 else {"a": made}
        event = {"v": made, "next": 1}
        result = encode_mapping(event)
        assert_same_document(result, ecs.of_mapping(event))
        assert result[2] == result[0].count(b'"<too deep>"') == (levels > 126)
        inside = json.loads(result[0])["v"]
        for _ in range(127):
            inside = inside["a"] if isinstance(inside, dict) and inside else inside[0] if inside else inside
        assert inside == ("<too deep>" if levels > 126 else {})

    @pytest.mark.parametrize("pairs", [False, True])
    @pytest.mark.parametrize("place", ["a", "list", "mapping", "event.id", "event", "@metadata"])
    @pytest.mark.parametrize("kind", ["an Enum", "a timedelta"])
    def test_values_that_stand_for_their_own_kind_end_as_a_short_text(
        self, kind: str, place: str, pairs: bool
    ) -> None:
        """Each stands for another one, without an end."""
        value: Any = Pendulum.TICK if kind == "an Enum" else Stand(None)
        nested = {"list": [value], "mapping": {"a": value}, "event": {"id": value}}
        nested["@metadata"] = {"_id": value}
        made = {place: nested.get(place, value), "kept": 1}
        encoder = Encoder(pairs=pairs, trust_metadata=True, identity="own")
        bodies = [encoder.encode_record(logging.makeLogRecord({"msg": "m"} | made))[0]]
        if place != "@metadata" or not pairs:
            bodies.append(encoder.encode(made)[0])
        for body in bodies:
            assert b"kept" in body and (place == "@metadata" or b"<too deep>" in body)

    def test_a_value_that_stands_for_others_is_the_last_one(self) -> None:
        made: Any = 5
        for _ in range(100):
            made = Stand(made)
        body, _, sanitized, _ = encode_mapping({"v": made, "event.id": made, "deep": [[made]]})
        expected = {"v": 5.0, "event.id": 5.0, "deep": [[5.0]]}
        assert (json.loads(body), sanitized) == (expected, 0)

    @pytest.mark.parametrize("pairs", [False, True])
    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize(
        "value",
        [decimal.Decimal("1.5"), b"b", 1 << 80, {"a": [{3: 4}]}, [{"\udc00": 1}, Number.TWO]],
        ids=repr,
    )
    def test_each_field_is_written_and_counted_once(self, value: Any, nested: bool, pairs: bool) -> None:
        """Wherever a value stands whose conversion runs Python code."""
        others = {"user": "u", "bad": "\udc00", "a.b": 1, "http.request.method": "GET"}

        def encode(*items: tuple[str, Any]) -> tuple[list[Any], int, int]:
            body, _, sanitized, moved = Encoder(nested=nested, pairs=pairs).encode(dict(items))
            found = split_pairs(body) if pairs else json.loads(body)
            return sorted(found.items(), key=repr), sanitized, moved

        alone, plain = encode(("v", value)), encode(*others.items())
        both = sorted(alone[0] + plain[0], key=repr), alone[1] + plain[1], alone[2] + plain[2]
        for place in range(len(others) + 1):
            items = list(others.items())
            items.insert(place, ("v", value))
            assert encode(*items) == both

    @pytest.mark.parametrize("nested", [False, True])
    @pytest.mark.parametrize("kind", WITHOUT_JSON)
    def test_a_value_without_json_costs_only_its_place(self, kind: str, nested: bool) -> None:
        value = WITHOUT_JSON[kind]
        names = ecs.Names(nested=nested)
        encoder = Encoder(nested=nested)
        for event in ({"v": [value], "next": 1}, {"v": {"a": [value, 2]}}):
            made = encoder.encode(event)
            assert_same_document(made, ecs.of_mapping(event, names))
            assert made[2] and re.search(b"<(cycle|too deep|unprintable [A-Za-z]+)>", made[0])
            record = logging.makeLogRecord({"msg": "m"} | event)
            assert_same_document(encoder.encode_record(record), ecs.of_record(record, names))
        for place in ("v", "labels", "error", "event.id", "@metadata", "log", "log.level"):
            event = {place: value, "next": 1, "error.code": 2}
            for made in encoder.encode(event), encoder.encode_record(logging.makeLogRecord(event)):
                assert json.loads(made[0])["next"] == 1 and made[2] + made[3]

    def test_a_value_without_json_costs_only_its_place_in_a_pair_block(self) -> None:
        for value in WITHOUT_JSON.values():
            event = {"v": [value], "next": 1}
            assert_same_pairs(Encoder(pairs=True).encode(event), ecs.of_mapping(event, pairs=True))

    def test_a_message_without_json_costs_only_its_place(self) -> None:
        table: dict[str, Any] = {"a": 1}
        table["again"] = table
        made = Encoder().encode_record(logging.makeLogRecord({"msg": table}))
        assert (json.loads(made[0])["again"], made[2]) == ({"a": 1, "again": "<cycle>"}, 1)
        record = logging.makeLogRecord({"msg": Unreadable(a=1), "kept": 1})
        found = json.loads(Encoder().encode_record(record)[0])
        assert (found["message"], found["kept"]) == ("<unprintable Unreadable>", 1)

    def test_a_value_that_has_no_end_without_a_cycle_becomes_a_short_text(self) -> None:
        """The same lists in many places: what is written grows with every level."""
        shared: Any = ["x"]
        for _ in range(200):
            shared = [shared, shared]
        ring: list[Any] = [[] for _ in range(12)]
        for one in ring:
            one.extend(ring)
        for value in (shared, ring):
            body, _, sanitized, _ = encode_mapping({"v": value, "next": 1}, 10_000)
            assert (json.loads(body), sanitized) == ({"v": "<too deep>", "next": 1}, 1)

    def test_an_interrupt_in_a_value_leaves_the_encoder(self) -> None:
        class Interrupted:
            def __str__(self) -> str:
                raise KeyboardInterrupt

        items: list[Any] = [Interrupted()]
        items.append(items)
        for value in (Interrupted(), items):
            with pytest.raises(KeyboardInterrupt):
                encode_mapping({"v": value})

    @pytest.mark.parametrize("kind", SEVERAL_VALUES)
    def test_all_values_of_a_name_are_kept(self, kind: str) -> None:
        value = SEVERAL_VALUES[kind]()
        expected = {"x": ["1", "2"], "y": "3"}
        made = encode_mapping({"v": value, "list": [value]})
        assert (json.loads(made[0]), made[2]) == ({"v": expected, "list": [expected]}, 0)
        assert_same_document(made, ecs.of_mapping({"v": value, "list": [value]}))
        assert json.loads(encode_mapping(value)[0]) == expected
        for at in ({"msg": value}, {"labels": value, "msg": "m"}):
            record = logging.makeLogRecord(at)
            made = Encoder().encode_record(record)
            assert_same_document(made, ecs.of_record(record))
            assert made[2:] == (0, 0)
        assert json.loads(Encoder(fields={"v": value}).encode({})[0]) == {"v": expected}

    @pytest.mark.parametrize(
        ("mapping", "written", "sanitized"),
        [
            ({1: "a", "1": "b"}, {"1": "b"}, 2),
            ({"1": "a", 1: "b", b"1": "c"}, {"1": "c"}, 4),
            ({None: 1, "None": 2, True: 3}, {"None": 2, "True": 3}, 3),
            ({"\ud800": 1, chr(0xFFFD): 2}, {"\ufffd": 2}, 2),
        ],
    )
    def test_a_value_that_is_lost_to_an_equal_key_is_counted(
        self, mapping: dict[Any, Any], written: dict[str, Any], sanitized: int
    ) -> None:
        for event, expected in ((mapping, written), ({"v": mapping}, {"v": written})):
            made = encode_mapping(event)
            assert (dict(load_fields(made[0])), made[2]) == (expected, sanitized)

    @pytest.mark.parametrize("odd", [None, 1, 1.5, [], ["a"], (("a", 1),), object()])
    def test_an_event_must_be_a_mapping_or_a_string(self, odd: Any) -> None:
        with pytest.raises(TypeError, match="mapping or a string"):
            encode_mapping(odd)
        with pytest.raises(EncodeTypeError):
            encode_mapping(odd)

    def test_any_kind_of_mapping_is_encoded(self) -> None:
        for made in (OrderedDict(a=1), UserDict(a=1)):
            assert encode_mapping(made)[0] == b'{"a":1}'

    def test_an_unreadable_mapping_is_refused_or_replaced(self) -> None:
        class Bad(UserDict[str, int]):
            def __iter__(self) -> Any:
                raise RuntimeError("gone")

        with pytest.raises(EncodeError):
            encode_mapping(Bad(a=1))
        body, _, sanitized, _ = encode_mapping({"a": Bad(b=1)})
        assert json.loads(body) == {"a": "<unprintable Bad>"}
        assert sanitized == 1

    def test_a_value_may_clear_its_own_container(self) -> None:
        class Vandal:
            def __str__(self) -> str:
                victim.clear()
                items.clear()
                return "done"

        victim: dict[str, Any] = {"a": Vandal(), **{f"k{i}": [str(i)] for i in range(50)}}
        items: list[Any] = [victim, *(str(i) * 3 for i in range(50))]
        load_fields(encode_mapping({"v": items, "w": victim})[0])

    @pytest.mark.parametrize("kind", [list, tuple, dict])
    def test_a_value_may_drop_the_container_that_is_written(self, kind: Any) -> None:
        """The memory of the container is used again at once."""

        def container(first: Any, second: str) -> Any:
            return kind({"a": first, "b": second}.items() if kind is dict else [first, second])

        class Vandal:
            def __str__(self) -> str:
                outer.clear()
                self.others = [container("x", "other") for _ in range(100)]
                return "done"

        outer: dict[str, Any] = {"v": container(Vandal(), "kept"), "w": 1}
        found = json.loads(encode_mapping({"outer": outer})[0])["outer"]
        assert found == {"v": {"a": "done", "b": "kept"} if kind is dict else ["done", "kept"], "w": 1}

    def test_a_value_may_change_the_mapping_that_it_is_in(self) -> None:
        class Restless:
            def __str__(self) -> str:
                inner["a"] = inner.pop("a", 0)
                inner["new"] = 1
                return "done"

        inner: dict[str, Any] = {}
        for encode in (encode_mapping, lambda made: Encoder().encode_record(logging.makeLogRecord(made))):
            inner.clear()
            inner.update({"a": Restless(), "b": 1})
            assert dict(load_fields(encode({"v": inner})[0]))["v"] == {"a": "done", "b": 1}

    def test_keyboard_interrupt_is_not_swallowed(self) -> None:
        class Stop:
            def __str__(self) -> str:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_mapping({"a": [Stop()]})
        with pytest.raises(KeyboardInterrupt):
            encode_mapping({"a": "x" * 20000, "b": {"c": Stop()}})


class TestSize:
    @examples(100)
    @given(MAPPINGS, st.integers(0, 400))
    def test_the_size_limit_is_exact(self, mapping: dict[Any, Any], limit: int) -> None:
        body = ecs.of_mapping(mapping).json()
        if len(body) <= limit:
            made = encode_mapping(mapping, limit)[0]
            assert (len(made), json.loads(made)) == (len(body), json.loads(body))
        else:
            with pytest.raises(EncodeError, match=f"max_event_bytes .{limit}."):
                encode_mapping(mapping, limit)

    def test_a_huge_string_is_refused_without_a_huge_buffer(self) -> None:
        text = "\x00" * 50_000_000  # six times as much when written
        with pytest.raises(EncodeError):
            encode_mapping({"a": text})

    @examples(120)
    @given(
        st.dictionaries(OUR_KEYS | st.sampled_from("abc"), TEXT, max_size=4),
        TEXT,
        st.integers(30, 300),
        st.integers(0, 6),
    )
    def test_truncate_cuts_the_message_to_the_limit(
        self, rest: dict[str, str], unit: str, limit: int, times: int
    ) -> None:
        rest.pop("message", None)
        event = {**rest, "message": unit * 2**times}
        encoder = Encoder(max_event_bytes=limit, truncate=True)
        whole = ecs.of_mapping(event).json()
        least = ecs.of_mapping({**rest, "message": ""}, cut=True).json()
        if len(whole) <= limit:
            assert json.loads(encoder.encode(event)[0]) == json.loads(whole)
            return
        if len(least) > limit:
            with pytest.raises(EncodeError):
                encoder.encode(event)
            return
        body, _, _, moved = encoder.encode(event)
        fields = dict(load_fields(body))
        expected = ecs.of_mapping(event, cut=True)
        message = expected.fields["message"]
        kept = fields["message"]
        assert message.startswith(kept)
        assert fields == expected.fields | {"message": kept}
        assert moved == expected.moved
        assert_no_name_conflicts(fields)
        # As long as it can be: one more character would not fit.
        following = json.dumps(message[len(kept) : len(kept) + 1], ensure_ascii=False).encode()[1:-1]
        assert len(body) <= limit
        assert not following or len(body) + len(following) > limit

    def test_truncate_cuts_the_message_of_a_record(self) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "%s", ("é" * 5000,), None)
        body, _, sanitized, _ = Encoder(max_event_bytes=1000, truncate=True).encode_record(record)
        fields = dict(load_fields(body))
        assert fields["log.flags"] == ["truncated"]
        assert fields["log.logger"] == "app"
        assert set(fields["message"]) == {"é"}
        assert 999 <= len(body) <= 1000
        assert sanitized == 0

    @pytest.mark.parametrize("record", [False, True])
    @pytest.mark.parametrize("options", [{}, {"pairs": True}, {"carriers": (), "flat": True}, {"ecs": False}])
    @pytest.mark.parametrize(
        ("given", "moved"),
        [
            ({"log.flags": "x"}, {"labels.log_flags": "x"}),
            ({"log.flags": ["x"], "labels.log_flags": "y"}, {"labels.log_flags_2": ["x"]}),
            ({"log.flags.x": "y"}, {"labels.log_flags_x": "y"}),
            ({"log": {"flags": "x", "n": "1"}}, {"labels.log_flags": "x"}),
            ({"log": {"flags": {"x": "y"}}}, {"labels.log_flags": {"x": "y"}}),
        ],
    )
    def test_the_truncation_mark_is_reserved(
        self, given: dict[str, Any], moved: dict[str, Any], options: dict[str, Any], record: bool
    ) -> None:
        """A field of the application with this name moves and is counted."""
        if options.get("flat") or options.get("pairs"):
            moved = {"labels.log": given["log"]} if "log" in given else moved
        if not options.get("ecs", True):
            moved = moved if "log.flags" in given else given
        encoder = Encoder(max_event_bytes=1000, truncate=True, **options)
        if record:
            made = logging.LogRecord("app", 20, "f.py", 1, "x" * 2000, (), None)
            vars(made).update(given)
            body, _, _, count = encoder.encode_record(made)
        else:
            body, _, _, count = encoder.encode({**given, "message": "x" * 2000})
        if options.get("pairs"):
            fields = {
                name.decode(): json.loads(value) if value[:1] in (b"[", b"{") else value.decode()
                for name, value in split_pairs(body).items()
            }
        else:
            fields = dict(load_fields(body))
        assert fields["log.flags"] == ["truncated"]
        assert {name: fields.get(name) for name in moved} == moved
        assert count == (0 if "log.flags" not in given and not options.get("ecs", True) else 1)
        if options.get("ecs", True):
            assert_no_name_conflicts(fields)

    def test_truncate_cuts_only_the_message(self) -> None:
        with pytest.raises(EncodeError):
            Encoder(max_event_bytes=1000, truncate=True).encode({"message": "a", "other": "x" * 2000})


IDENTITIES = st.sampled_from(["id", "own", "none"])
ECS_RULES = st.builds(
    ecs.Names,
    ecs=st.just(True),
    labels=st.just("labels."),
    carriers=st.sampled_from([("@metadata",), ()]),
    identity=IDENTITIES,
    trust_metadata=st.booleans(),
    flat=st.booleans(),
    nested=st.booleans(),
)
RULES = ECS_RULES | st.builds(
    ecs.Names,
    ecs=st.just(False),
    trust_metadata=st.just(False),
    flat=st.just(False),
    carriers=st.sampled_from([("uuid",), ("request_id", "uuid"), ("id",), ()]),
    identity=IDENTITIES,
    labels=st.sampled_from(["labels.", "labels_"]),
)


STEPS = st.sampled_from(["a", "b", "id", "level", "flags", "origin", "code", "type"])
PATHS = st.lists(
    st.sampled_from(["a", "b", "log", "error", "process", "event", "labels", "ecs", "service"]) | STEPS,
    min_size=1,
    max_size=3,
).map(".".join)


class TestNames:
    """Fields whose names could be taken for ours, or that conflict."""

    @examples(300)
    @given(st.dictionaries(NAMES, VALUES | LIKE_OURS, max_size=8) | MAPPINGS, RULES)
    @example({"a": {"b": {"c": {"d": {"e": 1}}}}, "a.b.c.d": {"e.f": 1}, "a.b": 3}, ecs.Names())
    @example({"labels": "x", "event": "y", "labels.event": {"z": 1}}, ecs.Names())
    @example({"labels": {"a": 1}, "log": None}, ecs.Names())
    @example({"@metadata": None, "": None}, ecs.Names(carriers=(), nested=True))
    @example({"@metadata": None, "a.b": None, "a.c": 1}, ecs.Names(carriers=(), nested=True))
    @example({"labels": {"b": 1}, "labels.b.c": 2}, ecs.Names())
    @example(
        {"@metadata": {"_id": "a", "pipeline": "b"}, "event": {"id": "c"}}, ecs.Names(trust_metadata=True)
    )
    def test_names_in_mappings_equal_the_reference(self, mapping: dict[Any, Any], rules: ecs.Names) -> None:
        made = Encoder(**rules._asdict()).encode(mapping)
        assert_same_document(made, ecs.of_mapping(mapping, rules))
        if rules.ecs and not rules.flat:
            assert_no_name_conflicts(dict(load_fields(made[0])), rules.nested)

    @examples(200)
    @given(records(), ECS_RULES)
    def test_names_in_records_equal_the_reference(self, record: logging.LogRecord, rules: ecs.Names) -> None:
        expected = ecs.of_record(record, rules)
        made = Encoder(**rules._asdict()).encode_record(record)
        assert_same_document(made, expected)
        if not rules.flat:
            assert_no_name_conflicts(dict(load_fields(made[0])), rules.nested)

    @examples(100)
    @given(
        records(),
        st.dictionaries(NAMES.filter(lambda name: name != "message.x"), VALUES | LIKE_OURS, max_size=6),
        RULES,
    )
    def test_names_are_kept_when_the_message_is_cut(
        self, record: logging.LogRecord, mapping: dict[Any, Any], rules: ecs.Names
    ) -> None:
        encoder = Encoder(**rules._asdict(), truncate=True, max_event_bytes=100_000)
        record.msg, record.args = "x" * 200_000, ()
        mapping["message"] = record.msg
        for made, expected in (
            (encoder.encode(mapping), ecs.of_mapping(mapping, rules, cut=True)),
            (encoder.encode_record(record), ecs.of_record(record, rules, cut=True)),
        ):
            fields = dict(load_fields(made[0]))
            assert len(made[0]) == 100_000
            assert len(set(fields["message"])) == 1
            whole = json.loads(expected.json())
            assert fields | {"message": record.msg} == whole | {"message": record.msg}
            assert made[1:] == (expected.flags, expected.sanitized, expected.moved)
            if rules.ecs and not rules.flat:
                assert_no_name_conflicts(fields, rules.nested)

    @examples(200)
    @given(
        st.dictionaries(
            PATHS, st.recursive(st.none(), lambda inner: st.dictionaries(STEPS, inner, max_size=3))
        ),
        st.booleans(),
        st.booleans(),
    )
    def test_every_value_has_a_unique_path(self, given: dict[str, Any], record: bool, cut: bool) -> None:
        numbers = itertools.count(10**9)

        def filled(inner: Any) -> Any:
            if inner is None:
                return next(numbers)
            return {name: filled(value) for name, value in inner.items()}

        given = filled(given)
        text = "x" * (20_000 if cut else 1)
        encoder = Encoder(max_event_bytes=10_000, truncate=True)
        if record:
            made = logging.LogRecord("app", 20, "f.py", 1, text, (), None)
            vars(made).update(given)
            fields = dict(load_fields(encoder.encode_record(made)[0]))
        else:
            fields = dict(load_fields(encoder.encode({**given, "message": text})[0]))
        assert not cut or fields["log.flags"] == ["truncated"]
        leaves: list[tuple[str, Any]] = []

        def flatten(path: str, value: Any) -> None:
            if isinstance(value, dict) and value:
                for name, inner in value.items():
                    flatten(f"{path}.{name}", inner)
            else:
                leaves.append((path, value))

        for name, value in fields.items():
            flatten(name, value)
        values = [value for _, value in leaves if isinstance(value, int)]
        assert set(range(10**9, next(numbers))) <= set(values)
        paths = sorted((*path.split("."), "") for path, value in leaves if value != {})
        for one, other in itertools.pairwise(paths):
            assert other[: len(one) - 1] != one[:-1], (one, other)

    @pytest.mark.parametrize(
        ("given", "fields", "moved"),
        [
            ({"event": "login"}, {"labels.event": "login"}, 1),
            ({"event": None}, {"labels.event": None}, 1),
            ({"user": "bob", "host": {"name": "a"}}, {"labels.user": "bob", "host": {"name": "a"}}, 1),
            ({"error": [1], "error.type": "X"}, {"labels.error": [1], "error.type": "X"}, 1),
            ({"event": {"action": "x"}}, {"event": {"action": "x"}}, 0),
            ({"a": 1, "a.b": 2}, {"labels.a": 1, "a.b": 2}, 1),
            ({"a": {"c": 1}, "a.b": 2}, {"a.c": 1, "a.b": 2}, 0),
            ({"a": {"b": 1}, "a.b": 2}, {"labels.a_b": 1, "a.b": 2}, 1),
            ({"service": "x", "labels.service": "y"}, {"labels.service_2": "x", "labels.service": "y"}, 1),
            ({"url": "x", "labels": {"url": "y"}}, {"labels.url_2": "x", "labels": {"url": "y"}}, 1),
            ({"labels": "x"}, {"labels.labels": "x"}, 1),
            ({"log": "x", "labels.log.a": "y"}, {"labels.log_2": "x", "labels.log.a": "y"}, 1),
            ({"event.id": "mine"}, {"event.id": "mine"}, 0),
            ({"event.id": "ab" * 16}, {"labels.event_id": "ab" * 16}, 1),
            ({"event": {"id": "ab" * 16, "a": 1}}, {"labels.event_id": "ab" * 16, "event": {"a": 1}}, 1),
            ({"@metadata": {"_id": "x"}, "n": 1}, {"n": 1}, 1),
            ({"@metadata._id": "x", "n": 1}, {"n": 1}, 1),
            ({"@timestamp": "then", "log.level": "high"}, {"@timestamp": "then", "log.level": "high"}, 0),
        ],
    )  # fmt: skip
    def test_reserved_names_in_mappings_are_moved(
        self, given: dict[str, Any], fields: dict[str, Any], moved: int
    ) -> None:
        body, _, sanitized, count = encode_mapping(given)
        assert (json.loads(body), sanitized, count) == (fields, 0, moved)

    @pytest.mark.parametrize(
        ("extra", "fields", "gone", "moved"),
        [
            ({"event": "login"}, {"labels.event": "login"}, "event", 1),
            ({"@timestamp": "then"}, {"labels.@timestamp": "then"}, "", 1),
            ({"log.level": "high"}, {"labels.log_level": "high", "log.level": "info"}, "", 1),
            ({"log": {"level": "high", "x": 1}}, {"labels.log_level": "high", "log.x": 1}, "log", 1),
            ({"log": {"origin": 1}}, {"labels.log_origin": 1, "log.origin.function": "f"}, "log", 1),
            ({"log.origin": 1}, {"labels.log_origin": 1, "log.origin.function": "f"}, "log.origin", 1),
            ({"message.x": 1}, {"labels.message_x": 1, "message": "m"}, "message.x", 1),
            ({"error": {"code": 5}}, {"error.code": 5}, "error", 0),
            ({"error.code": 5, "process.pid": 1}, {"error.code": 5, "process.pid": 1}, "", 0),
        ],
    )  # fmt: skip
    def test_reserved_names_in_records_are_moved(
        self, extra: dict[str, Any], fields: dict[str, Any], gone: str, moved: int
    ) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None, "f")
        vars(record).update(extra)
        body, _, sanitized, count = Encoder().encode_record(record)
        made = dict(load_fields(body))
        assert {name: made.get(name) for name in fields} == fields
        assert gone not in made
        assert (sanitized, count) == (0, moved)

    def test_long_dotted_names_stay_linear(self) -> None:
        names = ["." * 50_000, *("a." * n for n in range(300)), *(f"{n}." for n in range(3000))]
        body, *_ = encode_mapping(dict.fromkeys(names, 1))
        assert_no_name_conflicts({name: 1 for name in json.loads(body) if len(name) < 1000})

    def test_changing_names_equal_the_reference(self) -> None:
        encoder = Encoder()
        for n in range(3000):
            name = f"name-{n % 500}"
            fields = {name: n, "service": n, f"{name}.below" if n % 7 == 0 else "n": n}
            assert_same_document(encoder.encode(fields), ecs.of_mapping(fields))


class TestPairs:
    @examples(120)
    @given(MAPPINGS)
    @example({})
    @example({"a": {"b": "c"}, "d": ["e"], "f": None, "g": "h"})
    def test_pairs_equal_the_reference(self, mapping: dict[Any, Any]) -> None:
        assert_same_pairs(Encoder(pairs=True).encode(mapping), ecs.of_mapping(mapping, pairs=True))

    @examples(100)
    @given(records())
    def test_pairs_of_records_equal_the_reference(self, record: logging.LogRecord) -> None:
        record.exc_text = record.exc_text or "trace"
        expected = ecs.of_record(record, pairs=True)
        assert_same_pairs(Encoder(pairs=True).encode_record(record), expected)

    def test_truncate_cuts_pairs_to_the_limit(self) -> None:
        body, *_ = Encoder(max_event_bytes=200, truncate=True, pairs=True).encode(
            {"message": '"' * 500, "a": "b"}
        )
        assert len(body) == 200
        count, at, fields = struct.unpack_from(">I", body)[0], 4, {}
        for _ in range(count):
            texts = []
            for _ in range(2):
                n = struct.unpack_from(">I", body, at)[0]
                texts.append(body[at + 4 : at + 4 + n].decode())
                at += 4 + n
            fields[texts[0]] = texts[1]
        assert at == len(body)
        assert fields.keys() == {"message", "a", "log.flags"}
        assert fields["log.flags"] == '["truncated"]'
        assert set(fields["message"]) == {'"'}


class TestRecord:
    def test_a_value_may_delete_its_own_field(self) -> None:
        """The memory of the field is used again at once."""

        class Vandal:
            def __str__(self) -> str:
                vars(record).pop("f")
                vars(record)["new"] = self.others = [["x", "other", n] for n in range(100)]
                return "done"

        for value, written in (
            ([Vandal(), "kept", 3.5], ["done", "kept", 3.5]),
            ({"a": Vandal(), "b": "kept"}, {"a": "done", "b": "kept"}),
        ):
            for nested in (False, True):
                record = logging.makeLogRecord({"msg": "m", "f": value, "g": "last"})
                found = dict(load_fields(Encoder(nested=nested).encode_record(record)[0]))
                assert (found["f"], found["g"], "new" in found) == (written, "last", False)

    def test_fields_that_are_deleted_and_set_again_are_there_once(self) -> None:
        class Restless:
            def __str__(self) -> str:
                vars(record).pop("b")
                vars(record).update({"b": 7, "c": 8})
                return "done"

        record = logging.makeLogRecord({"msg": "m", "a": 0, "b": Restless(), "last": 3})
        found = dict(load_fields(Encoder().encode_record(record)[0]))
        assert [found.get(name) for name in ("a", "b", "c", "last")] == [0, "done", None, 3]

    def test_the_minute_before_1970(self) -> None:
        """In a thread that has written no time before."""
        found: list[Any] = []

        def encode() -> None:
            body = Encoder().encode_record(logging.makeLogRecord({"msg": "m", "created": -30.0}))[0]
            found.append(json.loads(body)["@timestamp"])

        thread = threading.Thread(target=encode)
        thread.start()
        thread.join()
        assert found == ["1969-12-31T23:59:30.000000Z"]

    @examples(200)
    @given(records())
    def test_records_equal_the_reference(self, record: logging.LogRecord) -> None:
        expected = ecs.of_record(record)
        assert_same_document(Encoder().encode_record(record), expected)

    @examples(300)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["del", "set"]),
                st.sampled_from(
                    [*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "extra", "more"]
                ),
            ),
            max_size=8,
        )
    )
    @example([("del", "args"), ("del", "process"), ("set", "extra"), ("set", "process"), ("set", "args")])
    @example([("del", "name"), ("set", "message"), ("set", "name"), ("set", "extra")])
    def test_attributes_may_go_and_come(self, changes: list[tuple[str, str]]) -> None:
        """Whether the dictionary of the record shares its keys with other records, and in whichever order."""
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None, "main")
        given = dict(vars(record), message="text", extra="e", more="f")
        for how, name in changes:
            if how == "set":
                setattr(record, name, given[name])
            elif hasattr(record, name) and name != "created":
                delattr(record, name)
        plain, gone = {1: 1, **vars(record)}, {"gone": 1, **vars(record)}
        del plain[1], gone["gone"]  # the first has entries for keys of any kind now
        made = []
        for attributes in (plain, vars(record), dict(vars(record)), gone):
            other = logging.makeLogRecord({})
            other.__dict__ = attributes  # type: ignore[assignment]
            made.append(Encoder().encode_record(other)[0])
        assert made == [made[0]] * 4

    @examples(150)
    @given(formats())
    def test_messages_equal_the_reference(self, made: tuple[str, tuple[Any, ...]]) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, made[0], (), None)
        record.args = made[1]
        assert_same_document(Encoder().encode_record(record), ecs.of_record(record))

    def test_the_first_fields_are_in_order(self) -> None:
        record = logging.LogRecord("app.x", 30, "/srv/f.py", 7, "hi %s", ("you",), None, "main")
        record.created = 1767268496.789012
        fields = load_fields(Encoder().encode_record(record)[0])
        assert fields[:3] == [
            ("@timestamp", "2026-01-01T11:54:56.789012Z"),
            ("log.level", "warning"),
            ("message", "hi you"),
        ]
        assert fields[3:8] == [
            ("ecs.version", "8.11.0"),
            ("log.logger", "app.x"),
            ("log.origin.file.name", "f.py"),
            ("log.origin.file.line", 7),
            ("log.origin.function", "main"),
        ]

    @examples(200)
    @given(st.integers(-62135596800000000, 253402300799000000).filter(lambda us: us != 0))
    @example(951782400000000)  # 29 February 2000
    @example(4107542399999999)
    @example(-1)
    @example(-62135596800000000)
    def test_timestamps_are_utc_with_microseconds(self, us: int) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
        record.created = us / 1e6
        expected = datetime.datetime(1970, 1, 1) + datetime.timedelta(
            microseconds=round(record.created * 1e6)
        )
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert fields["@timestamp"] == expected.isoformat(timespec="microseconds") + "Z"

    @pytest.mark.parametrize(
        "odd", [None, "yesterday", float("nan"), float("inf"), 1e18, -1e18, 0.0, 10**400]
    )
    def test_a_record_without_a_time_gets_the_current_one(self, odd: Any) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
        record.created = odd
        stamp = dict(load_fields(Encoder().encode_record(record)[0]))["@timestamp"]
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)
        assert abs(age.total_seconds()) < 3600

    def test_stack_trace_is_cached_in_the_record(self) -> None:
        try:
            raise ValueError("why")
        except ValueError:
            record = logging.LogRecord("app", 40, "f.py", 1, "m", (), sys.exc_info())
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert fields["error.type"] == "ValueError"
        assert fields["error.message"] == "why"
        assert fields["error.stack_trace"] == record.exc_text
        assert record.exc_text is not None
        assert record.exc_text.startswith("Traceback")
        record.exc_text = "another handler's"
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert fields["error.stack_trace"] == "another handler's"

    @pytest.mark.parametrize("nothing", [(None, None, None), None, False, True, 1, ()])
    def test_empty_exc_info_adds_no_error_field(self, nothing: Any) -> None:
        record = logging.LogRecord("app", 40, "f.py", 1, "m", (), None)
        record.exc_info = nothing
        assert not {k for k, _ in load_fields(Encoder().encode_record(record)[0]) if k.startswith("error")}

    def test_exc_info_may_be_the_exception_itself(self) -> None:
        record = logging.LogRecord("app", 40, "f.py", 1, "m", (), None)
        record.exc_info = KeyError("k")  # type: ignore[assignment]
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert (fields["error.type"], fields["error.message"]) == ("KeyError", "'k'")

    def test_a_mapping_as_message_becomes_fields(self) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, {"event": "paid", "sum": 3}, (), None)  # type: ignore[arg-type]
        record._logger = object()  # structlog's
        record.sum = 4
        record.where = "shop"
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert (fields["message"], fields["sum"], fields["where"]) == ("paid", 3, "shop")
        assert "event" not in fields
        assert "_logger" not in fields
        assert fields["log.logger"] == "app"

    def test_fields_of_the_user_replace_ours(self) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
        vars(record)["process.pid"] = "one"
        vars(record)["log.logger"] = 7
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert (fields["process.pid"], fields["log.logger"]) == ("one", 7)

    def test_attributes_set_by_other_handlers_are_no_fields(self) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m %s", ("a",), None)
        logging.Formatter("%(asctime)s %(message)s").format(record)
        names = {k for k, _ in load_fields(Encoder().encode_record(record)[0])}
        assert "asctime" not in names
        assert dict(load_fields(Encoder().encode_record(record)[0]))["message"] == "m a"

    def test_attributes_behind_fields_of_the_user_are_no_fields(self) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
        fields = vars(record)
        fields["order"] = 17
        fields["process"] = fields.pop("process")
        made, _, _, moved = Encoder().encode_record(record)
        document = json.loads(made)
        assert (document["order"], document["process.pid"], moved) == (17, record.process, 0)
        assert "labels.process" not in document

    @pytest.mark.parametrize(
        "fields", [("color_message",), ("color_message", "order"), ("order", "color_message")]
    )
    def test_the_coloured_copy_of_a_message_is_no_field(self, fields: tuple[str, ...]) -> None:
        """uvicorn makes it, with terminal escapes."""
        record = logging.LogRecord("uvicorn.error", 20, "f.py", 1, "m %d", (1,), None)
        vars(record).update(dict.fromkeys(fields, "\x1b[36mm %d\x1b[0m"))
        document = dict(load_fields(Encoder().encode_record(record)[0]))
        assert "color_message" not in document
        assert ("order" in document, document["message"]) == ("order" in fields, "m 1")

    def test_an_overridden_get_message_is_used(self) -> None:
        class Brace(logging.LogRecord):
            def getMessage(self) -> str:
                return str(self.msg).format(*(self.args or ()))

        good = Brace("app", 20, "f.py", 1, "{} %s", ("a",), None)
        assert dict(load_fields(Encoder().encode_record(good)[0]))["message"] == "a %s"
        bad = Brace("app", 20, "f.py", 1, "{} {} %s", ("a",), None)
        assert dict(load_fields(Encoder().encode_record(bad)[0]))["message"] == "{} {} a"

    def test_a_record_subclass_uses_the_default_message(self) -> None:
        class Mine(logging.LogRecord):
            pass

        record = Mine("app", 20, "f.py", 1, "%s!", ("a",), None)
        assert dict(load_fields(Encoder().encode_record(record)[0]))["message"] == "a!"

    @pytest.mark.parametrize(
        "missing", ["msg", "args", "levelname", "levelno", "created", "exc_info", "name", "lineno"]
    )
    def test_a_record_may_lack_any_attribute(self, missing: str) -> None:
        record = logging.LogRecord("app", 20, "f.py", 1, "m", (), None)
        delattr(record, missing)
        fields = dict(load_fields(Encoder().encode_record(record)[0]))
        assert fields["message"] == ("" if missing == "msg" else "m")

    def test_a_record_may_be_made_from_a_dictionary(self) -> None:
        fields = {
            "".join(["m", "sg"]): "m %s",
            "args": ("a",),
            "levelname": "INFO",
            "levelno": 20,
            "colour": "red",
        }
        record = logging.makeLogRecord(json.loads(json.dumps(fields)))
        record.args = ("a",)
        made = dict(load_fields(Encoder().encode_record(record)[0]))
        assert (made["message"], made["log.level"], made["colour"]) == ("m a", "info", "red")

    def test_encode_record_refuses_other_objects(self) -> None:
        with pytest.raises(AttributeError):
            Encoder().encode_record(object())  # type: ignore[arg-type]

    def test_arguments_may_change_their_record(self) -> None:
        class Vandal:
            def __str__(self) -> str:
                vars(record).clear()
                return "done"

        record = logging.LogRecord("app", 20, "f.py", 1, "%s", (Vandal(),), None)
        assert dict(load_fields(Encoder().encode_record(record)[0]))["message"] == "done"
