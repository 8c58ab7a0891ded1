"""Random documents against the published fields of ECS: 20,000 of them.

No name is both a value and an object, and Elasticsearch takes each value for the type of its field. A value
that the application gives to a field of ECS stays as it is (docs/formats.md), so half of the documents have
only values of the right types, and the other half also wrong ones, which must be the only faults.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

import logclient
from logclient._ext.record import REDACTED, Encoder
from logclient.integrations.request_fields import RequestFields
from logclient.records import context
from logclient.records.host import fields_of
from logclient.testing.lumberjack import Collector
from tests.oracle import ecs_fields
from tests.oracle.ecs_fields import TYPES, Object
from tests.support.patience import PATIENCE

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]

BATCHES = 18
IN_A_BATCH = 1_000
SHIPPED = 2_000

SECRETS = ("password", "*token*")
WRITTEN = (
    "@timestamp", "log.level", "message", "ecs.version", "log.logger", "log.origin.file.name",
    "log.origin.file.line", "log.origin.function", "process.pid", "process.name", "process.thread.id",
    "process.thread.name", "error.type", "error.message", "error.stack_trace",
)  # fmt: skip
PLAIN = (
    "order", "order.number", "a", "a.b", "a.b.c", "é", "é.x", "user id", "😀", "", ".a", "a.", "a..b",
    "password", "order.api_token", "log.flags", "error.fingerprint", "labels.a", "labels.user",
    "celery.task.id", "_id", "id",
)  # fmt: skip
"""Names that ECS does not define."""
MAPPINGS = ("a", "a.b", "order", "user", "host", "log", "process", "error", "event", "labels", "trace", "é")
HEADS = sorted({name.partition(".")[0] for name in TYPES if "." in name})
"""Objects at the top of ECS."""
COMMON = (
    "event.action", "event.duration", "event.outcome", "event.start", "user.id", "user.name",
    "http.request.id", "http.response.status_code", "url.path", "url.port", "client.ip",
    "client.geo.location", "host.name", "host.ip", "service.name", "service.version", "trace.id",
    "span.id", "error.code", "process.args", "process.parent.pid", "source.ip", "file.size", "tags",
    "host.cpu.usage", "event.risk_score", "log.syslog.priority", "ecs.version",
)  # fmt: skip
BELOW_RECORDS = ("process.pid.x", "message.x", "error.type.x.y", "log.level.x", "log.origin.file.line.x")
"""Names below a value of each record: they move to ``labels``."""


def test_the_table_is_the_published_one() -> None:
    assert ecs_fields.FILE.read_text("ascii").startswith("# Names and types of the fields of ECS 8.11, ")
    assert len(TYPES) == 1659
    assert set(COMMON) <= set(TYPES) and not set(PLAIN) & set(TYPES)
    assert set(WRITTEN) <= set(TYPES)


@pytest.mark.parametrize("head", HEADS)
def test_a_scalar_with_the_name_of_an_object_moves(head: str) -> None:
    """The rule of docs/formats.md, for each object that ECS defines at the top."""
    if head == "labels":
        return
    found = ecs_fields.flatten(json.loads(Encoder().encode({head: "x"})[0]))
    assert found == {f"labels.{head}": "x"}


# -- values


def right_value(draw: random.Random, kind: str) -> Any:
    """Return a value that Elasticsearch takes for a type."""
    if kind == "date":
        return draw.choice(["2026-11-24T09:00:00.123Z", "2026-11-24", 1_795_000_000_000])
    if kind == "ip":
        return draw.choice(["127.0.0.1", "2001:db8::1"])
    if kind == "long":
        return draw.choice([0, -1, 2**63 - 1, "17", 200])
    if kind in ("float", "scaled_float"):
        return draw.choice([0.5, -3, "1.25"])
    if kind == "boolean":
        return draw.choice([True, False, "true"])
    if kind == "geo_point":
        return draw.choice([{"lat": 1.5, "lon": -2}, "1.5,-2", [1.5, 2]])
    if kind in ecs_fields.HOLDS_OBJECTS:
        return {"custom": draw.randrange(9)}
    return draw.choice(["text", "", 7, 2.5, True, None, ["x", 1], "grüße 😀\ud800", float("nan")])


def any_value(draw: random.Random) -> Any:
    return draw.choice(
        [
            *(
                None,
                True,
                -5,
                2**70,
                2**1100,
                1.5,
                float("inf"),
                "",
                "text",
                "2026",
                "-",
                "1.2.3",
                b"\xff",
                {1},
            ),
            *(
                [],
                [1, "x", None],
                [{"k": 1}, {"k": "x"}],
                {},
                {"x": 1},
                {"x": {"y": "z"}},
                object,
                ("a", {"b": 1}),
            ),
        ]
    )


def mapping(draw: random.Random) -> dict[str, Any]:
    """Return a mapping whose own names do not conflict."""
    names = draw.sample(("b", "c", "custom", "d.e", "é", "b2"), draw.randrange(1, 4))
    return {name: draw.choice([draw.randrange(9), "x", {"c": 1, "deep": {"er": 2}}]) for name in names}


def fields(draw: random.Random, wrong: bool, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return fields of an application.

    Args:
        draw: the source of chance.
        wrong: values of fields of ECS may have any type.
        below: names below fields of ours.
    """
    made: dict[str, Any] = {}
    for _ in range(draw.choice((0, 1, 2, 4, 7))):
        what = draw.randrange(10)
        if what < 3:
            name = draw.choice(COMMON)
            made[name] = any_value(draw) if wrong and draw.random() < 0.5 else right_value(draw, TYPES[name])
        elif what == 3:
            name = draw.choice(ALL)
            made[name] = any_value(draw) if wrong and draw.random() < 0.5 else right_value(draw, TYPES[name])
        elif what < 6:
            made[draw.choice(PLAIN)] = any_value(draw)
        elif what == 6:
            made[draw.choice(HEADS)] = draw.choice([5, "text", True, ["x"], None])
        elif what == 7:
            made[draw.choice(MAPPINGS)] = mapping(draw)
        elif what == 8 and below:
            made[draw.choice(below)] = any_value(draw)
        elif wrong:
            made[draw.choice((*WRITTEN, *ABOVE))] = any_value(draw)
    return made


ALL = sorted(name for name in TYPES if TYPES[name] not in ecs_fields.HOLDS_OBJECTS)
ABOVE = sorted(ecs_fields.ABOVE)


# -- events


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def exc_info(draw: random.Random) -> Any:
    kind = draw.choice((ValueError, Silent, KeyError, None))
    if kind is None:
        return draw.choice((None, (None, None, None)))
    try:
        try:
            raise OSError("first\n😀")
        except OSError as error:
            raise kind("grüße") from error
    except Exception:
        return sys.exc_info()


def record(draw: random.Random, extra: Mapping[str, Any], message: Any) -> logging.LogRecord:
    """Return a record of a name, a level and a place of any kind."""
    name = draw.choice(("shop", "root", "größe", "", "a.b"))
    level = draw.choice((0, 5, 10, 20, 30, 50, 99))
    file, line = draw.choice((("/srv/shop.py", 7), ("", 0), ("größe.py", 10**6)))
    made = logging.LogRecord(name, level, file, line, message, (), exc_info(draw), draw.choice(("pay", None)))
    made.stack_info = draw.choice((None, "Stack (most recent call last):\n"))
    made.__dict__.update({name: value for name, value in extra.items() if name not in made.__dict__})
    return made


def message(draw: random.Random, wrong: bool) -> Any:
    """Return the message of a record: a text, an object, or a mapping with fields."""
    what = draw.randrange(6)
    if what < 3:
        return draw.choice(("paid", "", "grüße\ud800", "m" * 900))
    if what == 3:
        return draw.choice((5, None, ValueError("text"), ["list"]))
    return {"event": "paid", **fields(draw, wrong, BELOW_RECORDS)} | draw.choice(({}, {"message": "paid"}))


def scope(draw: random.Random) -> Any:
    """Return a context with fields of a request, or none."""
    if draw.random() < 0.6:
        return nullcontext()
    addresses = ("127.0.0.1", "::1", "fe80::1%eth0", "testclient", "", "/run/app.sock", "1.2.3.4:80", None)
    request = RequestFields(
        draw.choice(("GET", None)),
        draw.choice(("/orders", "", "/größe\ud800")),
        draw.choice((None, "r-1", "two words")),
        draw.choice((None, f"00-{'a' * 32}-{'b' * 16}-01", "junk")),
        draw.choice(addresses),
    )
    return ended(request.end)


def ended(end: Callable[[], None]) -> ExitStack:
    stack = ExitStack()
    stack.callback(end)
    return stack


# -- the rules

VALUES = Encoder(ecs=False, carriers=())
"""It changes no names."""


def given_nodes(*many: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what the application has given, by whole names: values, and objects above them."""
    found: dict[str, list[Any]] = {}
    for given in many:
        for name, value in given.items():
            for at, character in enumerate(name):
                if character == ".":
                    found.setdefault(name[:at], []).append(Object())
            inner = json.loads(VALUES.encode({"v": value})[0])["v"]
            found.setdefault(name, []).append(inner)
            if isinstance(inner, Mapping):
                for below, one in given_nodes(inner).items():
                    found.setdefault(f"{name}.{below}", []).extend(one)
    return found


def check(document: Mapping[str, Any], wrong: bool, *given: Mapping[str, Any]) -> None:
    """Assert that a document has no fault, or only wrong values that the application gave."""
    faults = ecs_fields.faults(document)
    if not faults:
        return
    assert wrong, faults
    known = given_nodes(*given)
    for name, value in faults.items():
        theirs = known.get(name, [])
        if isinstance(value, Object):
            assert any(isinstance(one, Mapping) for one in theirs), (name, value)
        else:
            assert value in theirs, (name, value, theirs)


def of_message(given: Any) -> dict[str, Any]:
    """Return the fields of a message that is a mapping."""
    return given if isinstance(given, dict) else {}


def for_send(own: dict[str, Any], wrong: bool) -> dict[str, Any]:
    """Return a mapping to send. It has no fields of a record that names below could conflict with."""
    kept = {name: value for name, value in own.items() if wrong or name not in BELOW_RECORDS}
    return {"message": "sent", **kept}


def span(draw: random.Random) -> Any:
    """Return a context with an active span, or none."""
    if trace is None or draw.random() < 0.5:
        return nullcontext()
    ids = trace.SpanContext(draw.randrange(1, 2**128), draw.randrange(1, 2**64), is_remote=True)
    return trace.use_span(trace.NonRecordingSpan(ids))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def parsed(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body, object_pairs_hook=unique)
    return found


def shared(draw: random.Random, wrong: bool) -> dict[str, Any]:
    """Return the fields of a client, as its options make them."""
    made = fields(draw, wrong, BELOW_RECORDS if wrong else ())
    if draw.random() < 0.5:
        made |= fields_of(["host", "container"]) | {"service.name": "shop", "tags": ["eu", "canary"]}
    if draw.random() < 0.5:
        made |= {
            "service.environment": "production",
            "kubernetes.pod.name": "shop-1",
            "kubernetes.labels.app": "s",
        }
    return made


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_documents(batch: int) -> None:
    draw = random.Random(f"documents {batch}")
    wrong = batch % 2 == 1
    made = 0
    while made < IN_A_BATCH:
        common = shared(draw, wrong)
        encoder = Encoder(
            fields=common,
            bound=context.current,
            timestamp=draw.random() < 0.5,
            truncate=True,
            max_event_bytes=draw.choice((900, 1 << 20)),
            redact=draw.choice(((), SECRETS)),
            fingerprint=draw.random() < 0.5,
            trust_metadata=draw.random() < 0.5,
        )
        for _ in range(20):
            bound = fields(draw, wrong)
            own = fields(draw, wrong, BELOW_RECORDS)
            with logclient.bind(bound) if draw.random() < 0.5 else nullcontext(), scope(draw):
                try:
                    if draw.random() < 0.7:
                        made_of = message(draw, wrong)
                        body = encoder.encode_record(record(draw, own, made_of))[0]
                    else:
                        own, made_of = for_send(own, wrong), None
                        body = encoder.encode(own)[0]
                except logclient.EncodeError as error:
                    assert "longer than max_event_bytes" in str(error)
                    continue
            check(parsed(body), wrong, own, of_message(made_of), bound, common)
            made += 1


@pytest.mark.parametrize("wrong", [False, True])
def test_random_documents_arrive_so(wrong: bool) -> None:
    """Through a client with all of its options, and a collector."""
    draw = random.Random(f"shipped {wrong}")
    common = shared(draw, wrong)
    with Collector(keep=True) as server:
        handler = logclient.Handler(
            server.url,
            fields=common,
            service="shop",
            environment="production",
            tags=["eu", "canary"],
            enrich="all",
            opentelemetry=trace is not None,
            redact=SECRETS,
            redact_text=["canary-[0-9]+"],
            truncate=True,
            max_event_bytes=3_000,
            error_fingerprint=True,
        )
        given: list[tuple[Mapping[str, Any], ...]] = []
        for n in range(SHIPPED // 2):
            bound, own = fields(draw, wrong), fields(draw, wrong, BELOW_RECORDS) | {"order_index": n}
            with logclient.bind(bound), scope(draw), span(draw):
                if draw.random() < 0.7:
                    made_of = message(draw, wrong)
                    handler.handle(record(draw, own, made_of))
                    given.append((own, of_message(made_of), bound))
                else:
                    own = for_send(own, wrong)
                    handler.client.send(own)
                    given.append((own, bound))
        assert handler.client.flush(PATIENCE) == 0
        stats = handler.client.stats()
        assert stats.acked == SHIPPED // 2
        arrived = server.events(stats.acked, PATIENCE)
        handler.client.close()
    assert [event["order_index"] for event in arrived] == list(range(SHIPPED // 2))
    for event, theirs in zip(arrived, given, strict=True):
        metadata = event.pop("@metadata")
        assert set(metadata) >= {"_id"}
        check(event, wrong, *theirs, common)
        written = {"event.id", "service.environment", "tags", "host.name"}
        assert wrong or written <= set(ecs_fields.flatten(event))


def test_attributes_of_a_record_stay() -> None:
    made = logging.makeLogRecord({"msg": "m", "process": "abc", "lineno": 7})
    assert ecs_fields.faults(parsed(Encoder().encode_record(made)[0])) == {"process.pid": "abc"}


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"process.pid": "abc"}, {"process.pid": "abc"}),
        ({"http.request": "GET"}, {"http.request": "GET"}),
        ({"log.level": {"a": 1}}, {"labels.log_level.a": 1}),
        ({"a..b": 1}, {"a..b": 1}),
        ({".a": 1}, {".a": 1}),
        ({"": 1}, {"": 1}),
        ({"x": {"": 1}}, {"x.": 1}),
    ],
)
def test_what_an_application_gives_stays_as_documented(extra: dict[str, Any], found: dict[str, Any]) -> None:
    made = logging.makeLogRecord({"msg": "m", **extra})
    document = ecs_fields.flatten(parsed(Encoder().encode_record(made)[0]))
    assert {name: document.get(name) for name in found} == found


@pytest.mark.parametrize(
    ("name", "value"),
    [("client.ip", "10.0.0.1"), ("process.parent.pid", 7), ("event.start", "2026-11-24T09:00:00Z")],
)
def test_a_redacted_value_is_text(name: str, value: object) -> None:
    """docs/formats.md says so: Elasticsearch refuses it where ECS has no text."""
    last = name.rpartition(".")[2]
    found = ecs_fields.faults(json.loads(Encoder(redact=(last,)).encode({name: value})[0]))
    assert found == {name: REDACTED}


class TestTable:
    """What Elasticsearch takes, by the helper of these tests."""

    @pytest.mark.parametrize("kind", sorted(set(TYPES.values())))
    def test_each_type_takes_some_values_only(self, kind: str) -> None:
        draw = random.Random(kind)
        for _ in range(50):
            assert ecs_fields.accepts(kind, right_value(draw, kind)), kind
        assert ecs_fields.accepts(kind, None)
        is_text = kind in ("keyword", "constant_keyword", "match_only_text", "wildcard")
        assert ecs_fields.accepts(kind, "some text") is is_text
        assert ecs_fields.accepts(kind, {"x": 1}) is (kind in ecs_fields.HOLDS_OBJECTS)

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            *(("long", value) for value in (True, 2**63, 1.5, "1.5", "x", float("inf"), [1, "x"])),
            *(("ip", value) for value in ("1.2.3.4:80", "fe80::1%eth0", "testclient", 7)),
            *(("date", value) for value in ("yesterday", "24.11.2026", True, 1.5)),
            *(("boolean", value) for value in (1, "yes")),
            *(("float", value) for value in ("x", True)),
            *(("keyword", value) for value in ([{"a": 1}], ["x", {}])),
            ("object", [{"a": 1}, "x"]),
            ("geo_point", {"lat": 1}),
        ],
    )
    def test_wrong_values_are_seen(self, kind: str, value: object) -> None:
        assert not ecs_fields.accepts(kind, value)

    @pytest.mark.parametrize(
        "document",
        [
            {"a": 1, "a.b": 2},
            {"a.b": 1, "a": {"b": 2}},
            {"a": {"b": 1, "b.c": 2}},
            {"a": {"b.c": 1}, "a.b": 2},
            {"": 1, ".x": 2},
        ],
    )
    def test_conflicts_of_names_are_seen(self, document: dict[str, Any]) -> None:
        with pytest.raises(ecs_fields.Conflict):
            ecs_fields.flatten(document)

    def test_both_forms_are_one(self) -> None:
        dotted = {"a.b.c": 1, "a.b.d": [2], "e": {}}
        assert (
            ecs_fields.flatten({"a": {"b": {"c": 1, "d": [2]}}, "e": {}})
            == ecs_fields.flatten(dotted)
            == dotted
        )
