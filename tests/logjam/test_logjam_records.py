"""Records outside of requests: compiled code makes the documents that the agent makes in Python."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient._ext.inflight import InflightBatches
from logclient._ext.record import level_index
from logclient.logjam import Agent, document
from tests.oracle.logjam_document import judge
from tests.support.examples import examples

pytestmark = pytest.mark.unit

APP = "shop-production"
NEVER = f"logjam://127.0.0.1:9/{APP}"
ZONES = [None, datetime.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns")]


def record_of(
    msg: Any = "paid", args: Any = (), extra: dict[Any, Any] | None = None, **attributes: Any
) -> logging.LogRecord:
    """Return a record, with further attributes set after it was made."""
    made = logging.LogRecord("shop.orders", 20, "/srv/f.py", 7, msg, (), None, "pay")
    vars(made).update(args=args, **attributes)
    vars(made).update(extra or {})
    return made


class Both:
    """An agent, with its documents, and its compiled encoder."""

    def __init__(self, zone: datetime.tzinfo | None = None, **options: Any) -> None:
        self.taken: list[tuple[bytes, int, int]] = []
        fields = {"host": "h", **options.pop("fields", {})}
        self.agent = Agent(lambda *made: self.taken.append(made), APP, zone=zone, fields=fields, **options)
        self.encoder = self.agent.line_encoder()

    def in_python(self, record: logging.LogRecord, text: str | None = None) -> tuple[bytes, int]:
        """Return the agent's document, and its level as the queue keeps it."""
        assert self.agent.ship(record, text)
        body, level, kind = self.taken.pop()
        assert kind == self.encoder.kind and self.taken == []
        return body, level_index(level)

    def is_ordinary(self, record: logging.LogRecord, text: str | None = None) -> bool:
        """Return whether the compiled encoder takes the record; if so, both documents are equal."""
        made = self.encoder.encode(record, text)
        assert made is None or made == self.in_python(record, text)
        return made is not None


@pytest.fixture
def both() -> Both:
    return Both()


class Text(str):
    def __str__(self) -> str:
        return "its text"


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


words = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
texts = st.text(st.characters(exclude_categories=[]), max_size=60)
lengths = st.integers(2030, 2060).map("x".__mul__) | st.integers(8100, 8300).map("y".__mul__)
times = st.floats(0, 4e9) | st.integers(0, 2**31).map(float) | st.integers(0, 2**42).map(lambda n: n / 1024)
numbers = st.integers(-(1 << 65), 1 << 65) | st.sampled_from([0, (1 << 63) - 1, 1 << 63, -(1 << 63)])
scalars = st.none() | st.booleans() | numbers | st.floats() | st.just(-0.0) | texts | lengths
containers = st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=3)
objects = st.binary(max_size=9) | st.builds(Text) | st.builds(object) | st.builds(Broken)
values = scalars | containers | objects
formats = st.sampled_from(["%s", "%d%%", "a %s b %d", "%r", "%.2f", "%(a)s", "%s %s", "100%"])
messages = texts | lengths | formats
arguments = st.lists(values, max_size=3).map(tuple) | st.none() | st.just({"a": 1}) | values
field_names = (
    words
    | texts
    | st.sampled_from([*sorted(document.OWN), "taskName", "asctime", "message"])
    | st.sampled_from(["wait_time", "db_calls", "a.b", "$", "", "a\x7f"])
    | st.integers(998, 1003).map("k".__mul__)
)
ordinary_names = words.filter(lambda name: not set(".$") & set(name)).map("x{}!".format)
ordinary_values = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text('a"\\é日😀\n', max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False)
)
odd_attributes = st.fixed_dictionaries(
    {},
    optional={
        "name": words | texts | values,
        "funcName": words | words.map("{}#".format) | texts | values,
        "levelno": st.integers(-20, 90) | values,
        "created": times | st.floats() | values,
        "process": st.integers(-1, 1 << 40) | values,
        "exc_info": st.sampled_from([None, False, (None, None, None), (KeyError, KeyError("k"), None)]),
        "exc_text": st.none() | texts,
        "stack_info": st.none() | texts,
    },
)


@pytest.mark.slow
@examples(600)
@given(messages, arguments, st.dictionaries(field_names, values, max_size=4), odd_attributes, st.data())
def test_encoded_documents_equal_those_of_the_agent(
    msg: Any, args: Any, extra: dict[str, Any], attributes: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever is in a record: it is left to the agent, or both make the same bytes."""
    fields = {"cluster": data.draw(st.none() | texts), "team": data.draw(texts | st.integers())}
    both = Both(data.draw(st.sampled_from(ZONES)), fields=fields)
    both.is_ordinary(record_of(msg, args, extra, **attributes), data.draw(st.none() | texts | lengths))


@pytest.mark.slow
@examples(300)
@given(
    st.text('ab %é日😀"\\\n\t\x7f', max_size=300),
    words.filter(lambda name: name[-1] != "#"),
    st.integers(0, 90),
    times,
    st.dictionaries(ordinary_names, ordinary_values, max_size=5),
    st.sampled_from(ZONES),
)
def test_ordinary_records_are_encoded(
    text: str, name: str, level: int, created: float, extra: dict[str, Any], zone: Any
) -> None:
    record = record_of("%s", (text,), extra, funcName=name, levelno=level, created=created // 1 + 0.25)
    assert Both(zone).is_ordinary(record)


@pytest.mark.parametrize(
    ("msg", "args"),
    [
        ("took %.3f s", (0.25,)), ("%r", ("it's",)), ("%(a)s", {"a": 1}), (KeyError("k"), ()), (17, None),
        ("%5d|%-5s|", (3, "x")), ("%s", ([1, 2],)), ("%s", ("é",)), ("é %s", (1,)), ("100%", ()),
        (Text(), ()),
    ],
)  # fmt: skip
def test_messages_of_any_format_are_encoded(both: Both, msg: Any, args: Any) -> None:
    assert both.is_ordinary(record_of(msg, args))


@pytest.mark.parametrize(
    "given",
    [
        {"exc_info": (KeyError, KeyError("k"), None)}, {"exc_text": "Traceback"}, {"stack_info": "Stack"},
        {"name": "a b"}, {"name": "é"}, {"name": "x" * 129}, {"funcName": None}, {"funcName": "pay#"},
        {"created": -1.0}, {"created": float("nan")}, {"created": 1e12}, {"created": 5}, {"process": None},
        {"levelno": -10}, {"levelno": 20.0}, {"levelno": None}, {"funcName": ""},
        {"msg": "a\0b"}, {"msg": "\ud800"}, {"msg": "x" * 2049},
        {"msg": "%d", "args": ("x",)}, {"created": 1e9 + 0.9999997}, {"name": "logclient.x"},
    ],
    ids=lambda given: "-".join(f"{name}" for name in given),
)  # fmt: skip
def test_records_that_need_rules_are_the_agents(both: Both, given: dict[str, Any]) -> None:
    record = record_of()
    assert both.is_ordinary(record)
    vars(record).update(given)
    assert not both.is_ordinary(record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", 1), ("request_id", "x"), ("a.b", 1), ("a$", 1), ("", 1), ("é", 1), ("a\n", 1), (7, 1),
        ("taskName2\0", 1), ("wait_time", "x"), ("db_calls", True), ("db_time", None), ("k" * 1001, 1),
        ("big", 1 << 63), ("nan", float("nan")), ("list", [1]), ("text", Text()), ("nul", "\0"),
        ("bytes", b"x"), ("long", "x" * 8192),
    ],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
def test_fields_that_need_rules_are_the_agents(both: Both, name: Any, value: Any) -> None:
    assert both.is_ordinary(record_of(extra={"name_": 1, "db_time": 2, "db_calls": 0.5}))
    assert not both.is_ordinary(record_of(extra={name: value}))


def test_negative_zero_loses_its_sign(both: Both) -> None:
    record = record_of(extra={"balance": -0.0})
    assert both.is_ordinary(record)
    assert both.in_python(record)[0].endswith(b'"balance":0.0}')


def test_fields_before_attributes_of_logging_are_kept(both: Both) -> None:
    record = record_of(extra={"order": 17})
    fields = vars(record)
    fields["process"] = fields.pop("process")  # now it comes after `order`
    assert both.is_ordinary(record)
    assert json.loads(both.in_python(record)[0])["order"] == 17


def test_records_of_a_subclass_are_the_agents(both: Both) -> None:
    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            return "mine"

    assert not both.is_ordinary(Record("a", 20, "f.py", 1, "m", (), None, "f"))


def test_a_running_request_takes_the_record(both: Both) -> None:
    with both.agent.request("Shop#pay"):
        assert not both.is_ordinary(record_of())
    both.taken.clear()
    assert both.is_ordinary(record_of())


def test_a_field_that_all_documents_have_is_left_to_the_agent() -> None:
    both = Both(fields={"team": "a", "n": 1})
    assert both.is_ordinary(record_of(extra={"order": 17}))
    assert not both.is_ordinary(record_of(extra={"team": "b"}))


def test_documents_beyond_the_bound_are_the_agents() -> None:
    both = Both(max_event_bytes=400)
    assert both.is_ordinary(record_of("x" * 100))
    assert both.encoder.encode(record_of("x" * 300)) is None


def test_each_second_has_its_own_texts() -> None:
    """Also on both sides of a change of the clock, and back again."""
    both = Both(ZoneInfo("Europe/Berlin"))
    change = 1_761_440_400.0  # 2025-10-26T01:00:00Z, when summer time ends
    for seconds in (change - 1, change, change - 0.5, change + 3600, 0.0, change):
        made = both.encoder.encode(record_of(created=seconds + 0.125))
        assert made == both.in_python(record_of(created=seconds + 0.125))
    assert json.loads(made[0])["started_at"] == "2025-10-26T02:00:00+01:00"


def test_a_clock_that_fails_leaves_records_to_the_agent(both: Both) -> None:
    class Zone(datetime.tzinfo):
        def utcoffset(self, moment: Any) -> Any:
            raise ValueError("no offset")

    assert Both(Zone()).encoder.encode(record_of()) is None


# -- through the handler


@pytest.fixture
def handler() -> Iterator[logclient.Handler]:
    made = logclient.Handler(NEVER, timeout=0, atexit_timeout=0)
    made.client.queue.needs_sender = False
    yield made
    made.close()


def bodies(handler: logclient.Handler) -> list[tuple[bytes, int, int]]:
    """Empty the queue; return body, level and kind of each event."""
    found: list[Any] = []
    in_flight = InflightBatches(handler.client.queue)
    while batch := in_flight.take(1 << 20, 1 << 30):
        found += [(bytes(event.body), event.level, event.kind) for event in batch.pending()]
    in_flight.fail(2)
    in_flight.commit()
    in_flight.take_report()
    return found


def test_handler_queues_what_the_agent_would(handler: logclient.Handler) -> None:
    """Ordinary records and others, in their order, each as one event."""
    client: Any = handler.client
    made = [
        record_of("one %d", (1,)), record_of("two", extra={"host": "x"}), record_of("three", levelno=40),
        record_of("four", levelno=50, exc_info=(KeyError, KeyError("k"), None)),
    ]  # fmt: skip
    for record in made:
        handler.handle(record)
    queued = bodies(handler)
    expected: list[Any] = []
    client.agent.sink = lambda body, level, kind: expected.append((body, level_index(level), kind))
    for record in made:
        client.agent.ship(record)
    assert queued == expected
    for body, _, _ in queued:
        assert judge(body, now=time.time())[1] == []


def test_texts_of_a_formatter_are_lines(handler: logclient.Handler) -> None:
    handler.setFormatter(logging.Formatter("<%(message)s>"))
    handler.handle(record_of("paid %d", (3,)))
    ((body, _, _),) = bodies(handler)
    assert json.loads(body)["lines"][0][2] == "<paid 3>"


def test_fields_of_a_formatter_are_in_the_document(handler: logclient.Handler) -> None:
    class Fields(logging.Formatter):
        def format(self, record: logging.LogRecord) -> Any:
            return {"message": "text", "order": 17}

    handler.setFormatter(Fields())
    handler.handle(record_of())
    ((body, _, _),) = bodies(handler)
    made = json.loads(body)
    assert (made["lines"][0][2], made["order"]) == ("text", 17)


def test_own_records_are_ignored_and_counted(handler: logclient.Handler) -> None:
    handler.handle(record_of(name="logclient.delivery"))
    handler.handle(record_of(name="logclients"))
    assert handler.client.stats().ignored == 1
    assert len(bodies(handler)) == 1


def test_interrupts_in_a_message_reach_the_caller(handler: logclient.Handler) -> None:
    class Interrupted:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handler.handle(record_of("%s", (Interrupted(),)))
    handler.handle(record_of("after"))
    assert len(bodies(handler)) == 1
