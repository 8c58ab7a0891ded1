"""Objects in place of names with dots: each document equals the dotted one with its members arranged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.constants import K_EVENT_OPEN, K_METADATA_OPEN, K_NESTED
from logclient._ext.record import Encoder
from logclient.errors import EncodeError
from logclient.records import context
from tests.oracle import ecs
from tests.support.examples import examples
from tests.support.record_fields import FIELDS, members_of, record_of

ARRANGED = K_NESTED | K_EVENT_OPEN
ERRORS = st.sampled_from([None, ValueError("späť"), KeyError()])


def _load(body: bytes) -> dict[str, Any]:
    """Return a document without the time; no member occurs twice, at any depth."""
    return members_of(body) | {"@timestamp": ""}


def _assert_arranged(nested: tuple[bytes, int, int, int], dotted: tuple[bytes, int, int, int]) -> None:
    """Compare the nested form of a document with the dotted one."""
    made, plain = _load(nested[0]), _load(dotted[0])
    assert made == ecs.nested(plain)
    assert nested[2:] == dotted[2:]
    assert nested[1] & ~ARRANGED == dotted[1]
    if "event" not in made:
        assert nested[1] & ARRANGED == K_NESTED
    elif "@metadata" in made:
        assert not nested[1] & ARRANGED
    else:
        assert nested[1] & ARRANGED == K_EVENT_OPEN
        assert [*json.loads(nested[0])][-1] == "event" and nested[0].endswith(b"}}")


@examples(400)
@given(FIELDS, FIELDS, FIELDS)
@example({"event.kind": "x"}, {}, {"a": 1})
@example({"host.name": "x"}, {}, {"host": {"x": 1}})
@example({"labels.x": "x"}, {}, {"labels": {"y": 1}, "user": 1})
@example({}, {}, {"event": {}})
@example({}, {}, {"event": {}, "event.a": 1})
@example({}, {"log.level": {"b": 0}}, {"log.level": {}})
def test_mappings(own: dict[str, Any], bound: dict[str, Any], event: dict[str, Any]) -> None:
    rules: dict[str, Any] = {"fields": own, "bound": context.current, "timestamp": True}
    with context.bind(bound) if bound else nullcontext():
        dotted = Encoder(**rules).encode(event)
        _assert_arranged(Encoder(**rules, nested=True).encode(event), dotted)


@examples(400)
@given(FIELDS, FIELDS, FIELDS, ERRORS)
@example({"event.kind": "x", "trace.id": "y"}, {}, {"a": 1}, None)
@example({"service.name": "x"}, {}, {"service.version": 1, "a": 2}, ValueError())
@example({"log.x": "x"}, {"process.y": 1}, {}, ValueError())
@example({}, {}, {"error.code": 1}, ValueError())
@example({}, {}, {"event.kind": "x"}, None)
@example({}, {"user": None, "event.a": "é" * 2000}, {"labels.a": "\ud800", "event.b": 1}, None)
def test_records(
    own: dict[str, Any], bound: dict[str, Any], extra: dict[str, Any], error: Exception | None
) -> None:
    rules: dict[str, Any] = {"fields": own, "bound": context.current, "fingerprint": True}
    record = record_of(extra)
    if error is not None:
        record.exc_info = (type(error), error, None)
    with context.bind(bound) if bound else nullcontext():
        dotted = Encoder(**rules).encode_record(record)
        _assert_arranged(Encoder(**rules, nested=True).encode_record(record), dotted)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "n" * 200},
        {"name": "né"},
        {"threadName": None},
        {"process": None},
        {"processName": "p" * 40},
        {"lineno": 10**30},
        {"funcName": None},
        {"msg": {"event": "text", "log.x": 1}},
        {"msg": "%(a)s", "args": {"a": 1}},
        {"exc_text": "Traceback"},
        {"stack_info": "Stack"},
        {"levelname": 7},
    ],
)
@pytest.mark.parametrize("extra", [{}, {"a": 1}, {"a.b": 1}, {"event.kind": 1}, {"host": 1}])
def test_records_with_other_attributes(changes: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    record = record_of(extra)
    vars(record).update(changes)
    nested = Encoder(nested=True)
    for _ in range(2):  # the thread keeps a part of its last document
        for one in (record, record_of(extra)):
            _assert_arranged(nested.encode_record(one), Encoder().encode_record(one))


@pytest.mark.parametrize("extra", [{}, {"a": 1}, {"event.kind": "x", "log.x": 2}])
def test_a_cut_message_fills_the_bound(extra: Mapping[str, Any]) -> None:
    encoder = Encoder(nested=True, truncate=True, max_event_bytes=2000, fields={"service.name": "shop"})
    body = encoder.encode_record(record_of(extra, msg="x" * 5000, args=()))[0]
    made = _load(body)
    assert len(body) == 2000
    assert made["log"]["flags"] == ["truncated"] and set(made["message"]) == {"x"}
    assert made["service"] == {"name": "shop"}


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("limit", [14_400, 15_000, 16_000, 16_380, 130_000])
def test_the_bound_is_on_what_is_sent(limit: int, record: bool) -> None:
    """Names that share a prefix need fewer bytes as objects than with their dots."""
    fields = {f"kubernetes.labels.name{i}": i for i in range(100)}
    encoder = Encoder(nested=True, truncate=True, max_event_bytes=limit)
    text = "x" * limit
    if record:
        body = encoder.encode_record(record_of(fields, msg=text, args=()))[0]
    else:
        body = encoder.encode({"message": text, **fields})[0]
    assert len(body) == limit and _load(body)["kubernetes"]["labels"]["name99"] == 99


def test_a_document_that_only_its_dots_make_too_large_is_sent() -> None:
    fields = {f"kubernetes.container.environment.labels.n{i}": 1 for i in range(4000)}
    size = len(Encoder(nested=True).encode(fields)[0])
    for limit in (size, 2 * size, 3 * size):
        assert len(Encoder(nested=True, max_event_bytes=limit).encode(fields)[0]) == size
    with pytest.raises(EncodeError, match=f"max_event_bytes .{size - 1}."):
        Encoder(nested=True, max_event_bytes=size - 1).encode(fields)


def test_many_members_and_deep_names_are_arranged() -> None:
    fields = {f"a{n % 7}.b{n % 50}.c{n}": n for n in range(2000)}
    deep = {"d" + ".e" * 32: 1, "f" + ".g" * 33: 2, "x..y": 3, ".z": 4, "z.": 5}
    dotted = Encoder().encode(fields | deep)
    nested = Encoder(nested=True).encode(fields | deep)
    _assert_arranged(nested, dotted)
    made = json.loads(nested[0])
    assert made["f" + ".g" * 33] == 2 and made["x..y"] == 3
    assert json.dumps(made["d"]).count("{") == 32


PLACES = st.lists(st.sampled_from(("a", "b", "event", "a-part-of-a-long-name")), max_size=4)


@examples(400)
@given(st.lists(PLACES, max_size=40), st.booleans())
@example([["a", "b"], ["a"], ["a", "b"]], False)
@example([["a"], ["b"], ["a"]], False)
@example([["a"], [], ["a"]], False)
@example([["a", "b", "b"], ["a", "b"], ["a", "a"], ["a"]], False)
@example([["event"], ["a"], ["event"]], True)
@example([["event"], ["event", "a"]], False)
def test_names_that_share_objects(places: list[list[str]], lists: bool) -> None:
    """In any order: an object is open as long as the next name is in it, and `event` comes last."""
    fields = {
        ".".join([*place, f"n{n}"]): [{"event.a": n}, n > 2] if lists else n for n, place in enumerate(places)
    }
    for shared in None, {"event.x": 1, "b.x": 2}:
        nested, dotted = Encoder(nested=True, fields=shared), Encoder(fields=shared)
        _assert_arranged(nested.encode(fields), dotted.encode(fields))
        record = record_of(fields)
        _assert_arranged(nested.encode_record(record), dotted.encode_record(record))


def test_fields_of_event_that_another_value_deletes() -> None:
    record = record_of({"event.a": 1, "event.b": 2})

    class Value:
        def __str__(self) -> str:
            for name in "event.a", "event.b":
                vars(record).pop(name, None)
            return "text"

    vars(record)["value"] = Value()
    made = _load(Encoder(nested=True).encode_record(record)[0])
    assert made["value"] == "text" and made["event"] == {"a": 1, "b": 2}


def test_any_number_of_members_is_arranged() -> None:
    fields = {f"a{n}.b": n for n in range(40_000)}
    nested, dotted = Encoder(nested=True).encode(fields), Encoder().encode(fields)
    _assert_arranged(nested, dotted)
    assert json.loads(dotted[0]) == fields


def test_an_ordinary_record_has_the_objects_of_ecs_logging() -> None:
    record = record_of({"order": 17, "user.id": 7})
    made = json.loads(Encoder(nested=True).encode_record(record)[0])
    assert [*made][:6] == ["@timestamp", "log.level", "message", "ecs.version", "log", "process"]
    origin = {"file": {"name": "shop.py", "line": 7}, "function": "pay"}
    assert made["log"] == {"logger": "shop", "origin": origin}
    assert made["process"]["thread"] == {"id": record.thread, "name": record.threadName}
    assert made["user"] == {"id": 7}


def test_the_applications_metadata_stays_last() -> None:
    encoder = Encoder(nested=True, trust_metadata=True)
    body, kind, _, _ = encoder.encode({"@metadata": {"pipeline": "p"}, "event.kind": "x", "a.b": 1})
    assert [*members_of(body)] == ["a", "event", "@metadata"]
    assert kind & K_METADATA_OPEN and not kind & ARRANGED


def test_pairs_and_other_documents_keep_their_dots() -> None:
    assert Encoder(nested=True, pairs=True).encode({"a.b": 1}) == Encoder(pairs=True).encode({"a.b": 1})
    assert Encoder(nested=True, ecs=False).encode({"a.b": 1})[0] == b'{"a.b":1}'
    assert json.loads(Encoder(nested=True).encode("text")[0]) == {"message": "text"}


@pytest.mark.parametrize("length", [28, 29, 60, 254, 255, 256, 300])
@pytest.mark.parametrize("form", ["plain", "dotted", "dots", "escaped", "é"])
def test_names_of_any_length(length: int, form: str) -> None:
    """Also beside one that shares its first part, at their first and at later uses, and with any value."""
    unit = {"plain": "n", "dotted": "name_of_12.x", "dots": "b.", "escaped": 'a"', "é": "é.a"}[form]
    name = (unit * length)[: length - 1] + "z"
    encoders = [Encoder(nested=True), Encoder()]
    for fields in ({name: 1}, {"a": 1, name: "text"}, {name: None, "x.y": 1.5}, {name: 1, name + "2": [1]}):
        for _ in range(2):
            nested, dotted = (encoder.encode(fields) for encoder in encoders)
            _assert_arranged(nested, dotted)
            assert json.loads(dotted[0]) == fields


def test_more_names_than_an_encoder_remembers() -> None:
    names = [f"{'a.' * (n % 3)}n{n}" for n in range(2000)]
    nested, dotted = Encoder(nested=True), Encoder()
    for hidden in ((), tuple(names[::21])):  # without dots
        for encoder in (nested, dotted):
            encoder.set_redact(hidden)
        for at in range(0, len(names), 13):
            fields = {name: n for n, name in enumerate(names[at : at + 20])}
            expected = {name: "[redacted]" if name in hidden else n for name, n in fields.items()}
            made = dotted.encode(fields)
            assert json.loads(made[0]) == expected
            _assert_arranged(nested.encode(fields), made)
