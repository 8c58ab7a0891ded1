"""The option `format`: documents of Logstash, OpenTelemetry, GELF, and flat JSON."""

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import logclient
from logclient import ConfigError
from logclient._ext.record import Encoder
from logclient.records.formats import form
from logclient.records.formatters import DocumentFormatter, EcsFormatter
from logclient.records.times import corrected
from logclient.testing.lumberjack import Collector
from tests.oracle import formats
from tests.support.examples import examples
from tests.support.patience import PATIENCE
from tests.support.record_fields import FIELDS, NAMES, members_of, record_of

FORMS = ("logstash", "otel", "gelf", "json")
GELF = ("version", "host", "short_message", "full_message", "timestamp", "level")
CREATED = 1_790_000_000.123456
COMMON = {"service.name": "shop", "service.environment": "test", "host.name": "box", "team": "pay"}


def _made(name: str, record: logging.LogRecord, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DocumentFormatter(name, **options).format(record))
    return found


def _example(**changes: Any) -> logging.LogRecord:
    record = record_of({"order.number": 17, "paid": True, "items": [1, {"a": 2}], "trace.id": "ab" * 16})
    record.created = CREATED
    vars(record).update(changes)
    return record


def _failing() -> logging.LogRecord:
    record = _example()
    try:
        raise KeyError("späť")
    except KeyError as error:
        record.exc_info = (KeyError, error, error.__traceback__)
    return record


class TestForms:
    def test_logstash(self) -> None:
        made = _made("logstash", _failing(), fields=COMMON)
        assert [*made][:4] == ["@timestamp", "@version", "message", "level"]
        assert datetime.fromisoformat(made["@timestamp"]).timestamp() == pytest.approx(CREATED, abs=1e-6)
        assert (made["@version"], made["message"], made["level"]) == ("1", "text 1", "INFO")
        assert (made["logger_name"], made["file_name"], made["line"], made["func_name"]) == (
            "shop", "shop.py", 7, "pay",
        )  # fmt: skip
        assert made["thread_name"] == "MainThread" and made["pid"] and made["process_name"]
        assert (made["error_type"], made["error_message"]) == ("KeyError", "'späť'")
        assert made["stack_trace"].startswith("Traceback")
        assert made["service"] == {"name": "shop", "environment": "test"}
        assert made["order"] == {"number": 17} and made["trace"] == {"id": "ab" * 16}
        assert not {"ecs", "log", "process", "error"} & {*made}

    def test_json_is_flat(self) -> None:
        made = _made("json", _failing(), fields=COMMON)
        assert made["level"] == "INFO" and made["logger_name"] == "shop"
        assert made["order.number"] == 17 and made["service.name"] == "shop"
        assert made["items"] == [1, {"a": 2}] and made["paid"] is True
        assert "@version" not in made

    def test_gelf(self) -> None:
        made = _made("gelf", _failing(), fields=COMMON)
        assert (made["version"], made["host"], made["short_message"]) == ("1.1", "box", "text 1")
        assert made["timestamp"] == pytest.approx(CREATED, abs=1e-6)
        assert made["level"] == 6
        assert made["full_message"].startswith("text 1\nTraceback")
        assert made["_logger_name"] == "shop" and made["_order.number"] == 17
        assert (made["_paid"], json.loads(made["_items"])) == ("true", [1, {"a": 2}])

    def test_otel(self) -> None:
        made = _made("otel", _failing(), fields=COMMON)
        assert made["Timestamp"] == "1790000000123456000"
        assert (made["SeverityText"], made["SeverityNumber"], made["Body"]) == ("INFO", 9, "text 1")
        assert made["TraceId"] == "ab" * 16
        assert made["InstrumentationScope"] == {"Name": "shop"}
        resource, attributes = made["Resource"], made["Attributes"]
        assert resource["service.name"] == "shop" and resource["host.name"] == "box"
        assert resource["deployment.environment.name"] == "test" and resource["process.pid"]
        assert attributes["code.function.name"] == "pay" and attributes["code.line.number"] == 7
        assert attributes["exception.type"] == "KeyError" and attributes["team"] == "pay"
        assert attributes["items"] == [1, {"a": 2}] and attributes["order.number"] == 17

    @pytest.mark.parametrize(
        ("name", "otel", "gelf"),
        [("DEBUG", 5, 7), ("INFO", 9, 6), ("WARNING", 13, 4), ("ERROR", 17, 3), ("CRITICAL", 21, 2)],
    )
    def test_levels_have_the_numbers_of_their_standards(self, name: str, otel: int, gelf: int) -> None:
        record = _example(levelname=name)
        assert _made("otel", record)["SeverityNumber"] == otel
        assert _made("gelf", record)["level"] == gelf
        assert _made("logstash", record)["level"] == _made("json", record)["level"] == name

    def test_a_level_of_the_application_keeps_its_name(self) -> None:
        record = _example(levelname="Loud")
        assert (_made("otel", record)["SeverityText"], _made("json", record)["level"]) == ("LOUD", "LOUD")
        assert "SeverityNumber" not in _made("otel", record)
        made = _made("gelf", record)
        assert made["_level"] == "loud" and "level" not in made

    @pytest.mark.parametrize("name", ["logstash", "json"])
    def test_a_field_with_one_of_our_names_moves(self, name: str) -> None:
        made = _made(name, _example(level="deep", pid=5, labels={"level": 1}))
        labels = made["labels"] if name == "logstash" else made
        assert made["level"] == "INFO" and made["pid"] != 5
        assert labels["pid" if name == "logstash" else "labels.pid"] == 5

    def test_names_in_gelf_have_its_characters(self) -> None:
        made = _made("gelf", record_of({"id": 1, "a b": 2, "a_b": 3, "ž": 4, "x-y.z": 5, "none": None}))
        assert (made["_id_"], made["_a_b"], made["_a_b_2"], made["__"], made["_x-y.z"]) == (1, 2, 3, 4, 5)
        assert "_none" not in made and "_id" not in made

    def test_an_empty_message_of_gelf_is_a_dash(self) -> None:
        assert _made("gelf", record_of({}, msg="", args=()))["short_message"] == "-"

    def test_an_unknown_form_is_named(self) -> None:
        with pytest.raises(
            ConfigError, match="form: must be ecs, ecs_dotted, logstash, otel, gelf or json, got 'xml'"
        ):
            DocumentFormatter("xml")


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner)]
    return [value]


@examples(300)
@given(st.sampled_from(FORMS), FIELDS, FIELDS)
def test_every_value_of_a_record_arrives(name: str, common: dict[str, Any], extra: dict[str, Any]) -> None:
    record = record_of({k: v for k, v in extra.items() if k != "message"})
    draft = json.loads(Encoder(fields=common).encode_record(record)[0])
    made = _made(name, record, fields=common)
    draft.pop("ecs.version", None)
    seen = [json.dumps(leaf) for leaf in _leaves(made)]
    text = json.dumps(made, ensure_ascii=False)
    for field, value in draft.items():
        if field in ("@timestamp", "log.level"):
            continue
        for leaf in _leaves(value):
            if name == "gelf" and (leaf is None or isinstance(value, (list, dict))):
                continue
            assert json.dumps(leaf) in seen, (field, text)
    if name == "gelf":
        for field, value in made.items():
            assert field[:1] == "_" or field in GELF
            assert isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))


FORM_NAMES = st.sampled_from(
    (
        "level", "level.a", "pid", "pid.x", "line.x.y", "file_name", "stack_trace", "error_type.a",
        "code.file.path", "code.line.number.x", "thread.id", "exception.type", "id", "id_", "_id", "a b",
        "a_b", "a-b", "x'y", "\\", "\n", "ž", "ł.ž", "@version", "version", "host.id", "host.name",
        "service.version", "kubernetes.namespace", "labels.pid", "labels.pid_x", "labels.level_2",
        "labels.line.x", "log.level", "ecs.version", "log.logger", "error.stack_trace", "process.pid",
        "process.name", "span.id", "event.pid", "message.x", "x..y", "pid..x",
    )
)  # fmt: skip
FORM_KEYS = st.sampled_from(("pid", "level", "a", "x.y", ',":'))
FORM_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
        st.sampled_from(("", "Warning", "fatal", 'a"b', "\\", ',:"', "ﬃ", 0, 0.0, -0.0)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(FORM_KEYS | st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=5,
)  # fmt: skip
FORM_FIELDS = st.dictionaries(NAMES | FORM_NAMES, FORM_VALUES, max_size=6)
TIMES = st.sampled_from(
    (
        None, "2026-01-01T00:00:00Z", "1969-12-31T23:59:59.9+00:30", "2024-02-29T12:00:00.123456789-05:59",
        "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00", "1970-01-01T00:00:00Z", "2000-03-01T00:00:00.000001Z", "yesterday",
    )
)  # fmt: skip
LEVEL_NAMES = st.sampled_from(
    ("INFO", "debug", "Loud", "straße", "a\\n\x1f\"", None, 5, "Emergency", "", "WARNIN")
)  # fmt: skip


def _assert_form(name: str, made: tuple[bytes, int, int, int], draft: dict[str, Any], host: str) -> None:
    draft = json.loads(json.dumps(draft))
    found, expected = members_of(made[0]), formats.make(name, draft, host)
    if "@timestamp" not in draft and name in ("otel", "gelf"):
        time = "Timestamp" if name == "otel" else "timestamp"
        if abs(float(found[time]) - float(expected[time])) / (1e9 if name == "otel" else 1) < PATIENCE:
            expected[time] = found[time]  # now
    assert found == expected


@examples(int(os.environ.get("LOGCLIENT_EXAMPLES", "2000")))
@given(
    st.sampled_from(FORMS), FORM_FIELDS, FORM_FIELDS, LEVEL_NAMES, st.sampled_from((None, KeyError("späť"))),
    st.sampled_from(("text", "", 'a"\n\\', {"message": 7}, {"message": {}}, {"a": 1})),
)  # fmt: skip
@example("logstash", {}, {"message.x": None}, "INFO", None, {"message": {}})
@example("logstash", {"message.x": 1}, {}, "INFO", None, {"message": {}})
def test_a_record_has_the_form_of_the_reference(
    name: str, common: dict[str, Any], extra: dict[str, Any], level: Any, error: Exception | None, msg: Any
) -> None:
    record = record_of(extra, msg=msg, args=())
    record.levelname = level
    if error is not None:
        record.exc_info = (type(error), error, None)
    rules: dict[str, Any] = {"fields": common, "fingerprint": True}
    made = Encoder(**rules, form=form(name, "box")).encode_record(record)
    _assert_form(name, made, members_of(Encoder(**rules).encode_record(record)[0]), "box")


@examples(int(os.environ.get("LOGCLIENT_EXAMPLES", "2000")))
@given(st.sampled_from(FORMS), FORM_FIELDS, FORM_FIELDS, TIMES, st.sampled_from(("id", "none")))
@example("logstash", {}, {"message": {}, "message.x": None}, None, "none")
@example("logstash", {"message.x": 1}, {"message.y": {}, "message": {}}, None, "id")
def test_a_mapping_has_the_form_of_the_reference(
    name: str, common: dict[str, Any], event: dict[str, Any], time: str | None, identity: str
) -> None:
    event = event if time is None else {"@timestamp": time, **event}
    if "@timestamp" in event:
        event = corrected(event)[0]  # as each client does
    rules: dict[str, Any] = {"fields": common, "identity": identity}
    made = Encoder(**rules, form=form(name, 'b"x')).encode(event)
    _assert_form(name, made, members_of(Encoder(**rules).encode(event)[0]), 'b"x')


@examples(500)
@given(FORM_FIELDS, FORM_FIELDS, st.booleans(), st.booleans(), st.sampled_from(("", "nested", "logstash")))
@example({}, {"a": 10**18, "b": -(10**17), "c": 2**63 - 1, "d": -0.0, "e": 1e300}, False, False, "")
@example({}, {}, True, True, "")
@example({}, {}, True, True, "nested")
@example({}, {}, True, True, "logstash")
def test_a_document_is_read_as_the_standard_library_reads_it(
    common: dict[str, Any], event: dict[str, Any], is_record: bool, fails: bool, name: str
) -> None:
    made_form = form(name, "box") if name == "logstash" else None
    encoder = Encoder(fields=common, nested=name == "nested", form=made_form)
    scan = json.JSONDecoder().raw_decode
    if is_record:
        record = record_of(event)
        if fails:
            record.exc_info = (ValueError, ValueError("späť"), None)
        made, *changed = encoder.read_record(record, scan)
        body, _, *expected = encoder.encode_record(record)
    else:
        made, *changed = encoder.read(event, scan)
        body, _, *expected = encoder.encode(event)
    assert repr(made) == repr(json.loads(body)) and changed == expected


class TestClients:
    @pytest.mark.parametrize("name", [*FORMS, "ecs"])
    def test_the_server_gets_the_form_with_ids(self, name: str) -> None:
        with Collector(keep=True) as server:
            options: dict[str, Any] = {"format": name, "service": "shop"}
            handler = logclient.Handler(f"lumberjack://127.0.0.1:{server.port}", **options)
            handler.handle(_example())
            handler.client.send({"message": "mine", "a.b": 1})
            handler.client.send(b'{"raw":1}')
            assert handler.client.flush(PATIENCE) == 0
            producer = handler.client.producer
            handler.client.close()
            made = server.events(3, PATIENCE)
        assert [one.pop("@metadata")["_id"][:20] for one in made] == [producer] * 3
        record, mapping, raw = made
        assert raw.keys() == {"raw", "event.id"}
        if name in ("ecs", "logstash"):
            assert record.pop("event")["id"][:20] == mapping.pop("event")["id"][:20] == producer
            assert mapping["a"] == {"b": 1} and record["service"] == {"name": "shop"}
        else:
            assert record.pop("event.id")[:20] == producer
        formatter = DocumentFormatter(name, {"service.name": "shop"})
        assert record == json.loads(formatter.format(_example()))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"format": "xml"}, "format: must be one of ecs, ecs_dotted, logstash, otel, gelf, json"),
            ({"format": "gelf", "identity": "own"}, "identity: own needs format=ecs"),
            ({"format": "json", "trust": "metadata"}, "trust: metadata needs format=ecs"),
            ({"format": "otel", "version": 1}, "frames: data needs format=ecs"),
        ],
    )
    def test_options_that_do_not_fit_are_named(self, options: Mapping[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            logclient.connect("lumberjack://127.0.0.1:1", **options)

    @pytest.mark.parametrize("name", FORMS)
    @pytest.mark.parametrize("failing", [False, True])
    def test_truncate_cuts_the_message_of_each_form(self, name: str, failing: bool) -> None:
        limit = 2000
        sizes = [*range(0, 1000, 50), 5000]
        record = _failing() if failing else _example()
        vars(record).update(args=(), **{"log.flags": "own"})
        with Collector(keep=True) as server:
            options: dict[str, Any] = {"format": name, "truncate": True, "max_event_bytes": limit}
            handler = logclient.Handler(server.url, **options)
            for size in sizes:
                record.msg = "ž\n" * size
                handler.handle(record)
            assert handler.client.flush(PATIENCE) == 0
            assert handler.client.stats().failed == {}
            handler.client.close()
            made = server.events(len(sizes), PATIENCE)
        cut = 0
        for size, document in zip(sizes, made, strict=True):
            text = document["Body" if name == "otel" else "short_message" if name == "gelf" else "message"]
            marked = "truncated" in json.dumps(document)
            assert marked == (text not in ("ž\n" * size, "-"))
            assert ("ž\n" * size).startswith(text.strip("-"))
            if failing:
                assert "Traceback" in json.dumps(document)
            cut += marked
        assert 0 < cut < len(sizes)

    def test_before_send_sees_names_with_dots(self) -> None:
        seen = []

        def look(document: dict[str, Any]) -> dict[str, Any]:
            seen.append(document["log.logger"])
            document["order.total"] = 3
            return document

        with Collector(keep=True) as server:
            url = f"lumberjack://127.0.0.1:{server.port}"
            for name in ("ecs", "logstash"):
                handler = logclient.Handler(url, format=name, before_send=look)
                handler.handle(_example())
                handler.client.close(PATIENCE)
            made = server.events(2, PATIENCE)
        assert seen == ["shop", "shop"]
        assert [one["order"]["total"] for one in made] == [3, 3]
        assert made[0]["log"]["logger"] == made[1]["logger_name"] == "shop"

    def test_the_dotted_form_keeps_the_dots(self) -> None:
        with Collector(keep=True) as server:
            handler = logclient.Handler(f"lumberjack://127.0.0.1:{server.port}", format="ecs_dotted")
            handler.handle(_example())
            handler.client.close(PATIENCE)
            (made,) = server.events(1, PATIENCE)
        assert made["log.logger"] == "shop" and made["order.number"] == 17 and "event.id" in made


def test_formatters_of_other_handlers_have_the_forms() -> None:
    stream = io.StringIO()
    other = logging.StreamHandler(stream)
    for formatter in (DocumentFormatter("gelf"), EcsFormatter(), DocumentFormatter("ecs_dotted")):
        other.setFormatter(formatter)
        other.handle(_example())
    gelf, nested, dotted = map(json.loads, stream.getvalue().splitlines())
    assert gelf["short_message"] == nested["message"] == dotted["message"] == "text 1"
    assert nested["log"]["logger"] == dotted["log.logger"] == "shop"
