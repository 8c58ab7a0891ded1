"""OpenTelemetry: 2,000 records beside the SDK's own JSON, and metrics beside the counts of clients."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import MissingExtra
from logclient.testing.lumberjack import Collector
from tests.integrations.odd_records import (
    DIFFERENCES,
    RECORDS,
    Broken,
    arrived,
    draw_fields,
    expected_field,
    fail,
    shown,
)
from tests.support import clean_environment
from tests.support.documents import dotted
from tests.support.patience import PATIENCE, wait_until

pytest.importorskip("opentelemetry.sdk")

from opentelemetry._logs import SeverityNumber
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    ConsoleLogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from logclient.integrations.counts import COUNTERS, GAUGES
from logclient.integrations.opentelemetry import METRICS, LogExporter, observe

RESOURCE = Resource(
    {
        "service.name": "shop",
        "deployment.environment.name": "production",
        "host.arch": "amd64",
        "k8s.pod.name": "shop-1",
        "telemetry.sdk.language": "python",
    }
)
RENAMED = {
    "deployment.environment.name": "service.environment",
    "host.arch": "host.architecture",
    "k8s.pod.name": "kubernetes.pod.name",
    "code.file.path": "log.origin.file.path",
    "code.line.number": "log.origin.file.line",
    "code.function.name": "log.origin.function",
    "exception.type": "error.type",
    "exception.message": "error.message",
    "exception.stacktrace": "error.stack_trace",
}
"""Attributes that have another name in ECS."""
TAKEN = {
    "timestamp": "the SDK rounds a float, so ours may differ by a microsecond",
    "observed_timestamp": "when the SDK saw the record, which is a moment after its timestamp",
    "trace_flags": "a trace's sampling is no matter of its logs",
    "dropped_attributes": "0, or else labels.dropped_attributes",
}
"""What our document has in another way, or not at all."""
KEPT = (float, str, bytes, int)
"""Types that the SDK keeps; it makes text of the others before any exporter sees them."""
METHODS = ("debug", "info", "warning", "error", "critical")


def _expected(theirs: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return our document of a record.

    Args:
        theirs: the SDK's own JSON.
        given: attributes as the program gave them.
    """
    expected = {
        "log.level": theirs.pop("severity_text").lower(),
        "event.severity": theirs.pop("severity_number"),
        "message": theirs.pop("body"),
    }
    for name, field in (("trace_id", "trace.id"), ("span_id", "span.id")):
        digits = theirs.pop(name).removeprefix("0x")
        if digits.strip("0"):
            expected[field] = digits
    if event := theirs.pop("event_name"):
        expected["event.action"] = event
    for name, value in (theirs.pop("resource")["attributes"] | (theirs.pop("attributes") or {})).items():
        own = given.get(name, value)
        differs = isinstance(own, KEPT) and any(own is difference.value for difference in DIFFERENCES)
        field, value = expected_field(RENAMED.get(name, name), own if differs else value, value)
        expected[field] = value
    if path := expected.get("log.origin.file.path"):
        expected["log.origin.file.name"] = Path(path).name
    assert theirs.keys() == TAKEN.keys()
    assert theirs["dropped_attributes"] == 0
    return expected


@pytest.fixture
def console() -> io.StringIO:
    return io.StringIO()


def _own_json(console: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in console.getvalue().splitlines()]


def _writer(console: io.StringIO) -> SimpleLogRecordProcessor:
    """Return a processor that writes a line of the SDK's own JSON for each record."""
    return SimpleLogRecordProcessor(
        ConsoleLogRecordExporter(console, lambda record: record.to_json(indent=None) + "\n")
    )


@pytest.fixture
def provider() -> Iterator[LoggerProvider]:
    made = LoggerProvider(RESOURCE, shutdown_on_exit=False)
    yield made
    made.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_records_equal_the_sdks_own_json(
    batch: bool, provider: LoggerProvider, console: io.StringIO, tmp_path: Path
) -> None:
    draw = random.Random("opentelemetry")
    given: list[dict[str, Any]] = []
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("tests")
    logger = logging.getLogger("test-opentelemetry")
    logger.propagate, logger.level = False, logging.DEBUG
    with Collector(capture=str(tmp_path)) as server:
        exporter = LogExporter(server.url, overflow="block")
        provider.add_log_record_processor(_writer(console))
        provider.add_log_record_processor(
            BatchLogRecordProcessor(exporter, max_queue_size=RECORDS)
            if batch
            else SimpleLogRecordProcessor(exporter)
        )
        handler = LoggingHandler(logger_provider=provider, log_code_attributes=True)
        logger.addHandler(handler)
        for n in range(RECORDS):
            fields = draw_fields(draw)
            if isinstance(fields.get("odd"), Broken):
                del fields["odd"]  # the SDK raises it into the log call
            given.append(fields)
            if n % 10 == 0:
                try:
                    fail(draw)
                except Exception:
                    logger.exception("failed %d", n, extra=fields)
            elif n % 3 == 0:
                with tracer.start_as_current_span("s"):
                    logger.info("in a span %d 😀", n, extra=fields)
            else:
                getattr(logger, draw.choice(METHODS))("event %d", n, extra={**fields, "otel.event.name": "e"})
        logger.removeHandler(handler)
        assert provider.force_flush()
        assert exporter.force_flush(PATIENCE * 1000)
        assert exporter.client.stats().failed == {}
        provider.shutdown()
        assert exporter.client.closed
    documents = [dotted(document) for document in arrived(tmp_path)]
    own = _own_json(console)
    assert len(documents) == len(own) == RECORDS
    for document, theirs, fields in zip(documents, own, given, strict=True):
        assert document.pop("log.logger") == logger.name
        times = [datetime.fromisoformat(time) for time in (document["@timestamp"], theirs["timestamp"])]
        assert abs(times[0] - times[1]) <= timedelta(microseconds=1)
        assert shown(document) == dotted(_expected(theirs, fields))


def _emitted(provider: LoggerProvider, *records: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Return the events of some records of the API."""
    with Collector(keep=True) as server:
        exporter = LogExporter(server.url, **options)
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        for record in records:
            provider.get_logger("scope", "1.2").emit(**record)
        assert exporter.force_flush(PATIENCE * 1000)
        assert exporter.client.stats().failed == {}
        events = [dotted(event) for event in server.events(exporter.client.stats().acked, PATIENCE)]
        exporter.shutdown()
    return events


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("text", {"message": "text"}),
        (None, {}),
        (5, {"message": "5"}),
        ([1, "a"], {"message": "[1, 'a']"}),
        (b"ab\xff", {"message": "ab\ufffd"}),
        ({"message": "m", "order": 7, 5: 6}, {"message": "m", "order": 7, "5": 6}),
        ({"n": {"deep": [1]}}, {"n.deep": [1]}),
        (Broken(), {"message": "<unprintable Broken>"}),
    ],
)
def test_bodies_of_any_kind_are_taken(body: Any, expected: dict[str, Any], provider: LoggerProvider) -> None:
    [event] = _emitted(provider, {"body": body, "attributes": {"order": 1, "k": 2} if body is None else None})
    found = {name: event.get(name) for name in ("message", "order", "n.deep", "5", "k") if name in event}
    assert found == (expected or {"order": 1, "k": 2})
    assert event["log.logger"] == "scope" and "log.level" not in event and "event.severity" not in event


@pytest.mark.parametrize("number", list(SeverityNumber))
def test_each_severity_has_a_level(number: SeverityNumber, provider: LoggerProvider) -> None:
    plain, named = _emitted(
        provider,
        {"severity_number": number, "body": "m"},
        {"severity_number": number, "severity_text": "Notice", "body": "m"},
    )
    assert plain.get("log.level") == (number.name.rstrip("234").lower() if number.value else None)
    assert plain.get("event.severity", 0) == number.value
    assert named["log.level"] == "notice"


def test_exceptions_of_the_api_become_errors(provider: LoggerProvider) -> None:
    try:
        fail(random.Random(1), 1)
    except ValueError as error:
        [event] = _emitted(provider, {"body": "failed", "exception": error})
    assert (event["error.type"], event["error.message"]) == ("ValueError", "grüße\n😀")
    assert event["error.stack_trace"].startswith("Traceback (most recent call last)")


@pytest.mark.parametrize("time", [1767323045123456789, 0, None, 1 << 90, -(1 << 90)])
def test_times_of_any_kind_are_taken(time: int | None, provider: LoggerProvider) -> None:
    [event] = _emitted(provider, {"timestamp": time, "body": "m"})
    if time == 1767323045123456789:
        assert event["@timestamp"] == "2026-01-02T03:04:05.123457Z"
    else:
        assert abs((datetime.now(UTC) - datetime.fromisoformat(event["@timestamp"])).total_seconds()) < 60


def test_dropped_attributes_are_counted() -> None:
    limits = LogRecordLimits(max_log_record_attributes=2)
    provider = LoggerProvider(RESOURCE, shutdown_on_exit=False, log_record_limits=limits)
    with pytest.warns(UserWarning, match="dropped"):
        [event] = _emitted(provider, {"body": "m", "attributes": {"a": 1, "b": 2, "c": 3}})
    assert event["labels.dropped_attributes"] == 1


def test_the_nearest_attribute_wins(provider: LoggerProvider) -> None:
    attributes = {"service.name": "record", "deployment.environment": "test"}
    attributes |= {"code.filepath": r"C:\app\old.py"}
    record = {"body": {"service.name": "body"}, "attributes": attributes}
    [event] = _emitted(provider, record, service="option")
    assert event["service.name"] == "body"
    assert event["service.environment"] == "test"
    assert event["log.origin.file.name"] == "old.py"


def test_records_have_the_fields_of_their_own_resource() -> None:
    """One exporter may serve several providers."""
    resources = [Resource({"service.name": name}) for name in ("shop", "store")]
    providers = [LoggerProvider(resource, shutdown_on_exit=False) for resource in resources]
    with Collector(keep=True) as server:
        exporter = LogExporter(server.url)
        for provider in providers:
            provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        for n in range(4):
            providers[n % 2].get_logger("scope").emit(body="m")
        assert exporter.force_flush(PATIENCE * 1000)
        events = [dotted(event) for event in server.events(4, PATIENCE)]
        exporter.shutdown()
    assert [event["service.name"] for event in events] == ["shop", "store"] * 2


def test_errors_are_dropped_last(provider: LoggerProvider) -> None:
    lost: list[logclient.Settlement] = []
    options: Any = {"max_events": 10, "overflow": "drop_oldest", "on_drop": lost.extend}
    exporter = LogExporter("lumberjack://127.0.0.1:9", **options)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("scope")
    for n in range(100):
        number = SeverityNumber.ERROR if n < 5 else SeverityNumber.WARN4
        logger.emit(body="m", severity_number=number)
    exporter.shutdown(timeout_millis=1)
    wait_until(lambda: sum(one.events for one in lost) == 100)
    errors = [one for one in lost if b'"log.level":"error"' in (one.body or b"")]
    assert [one.status for one in errors] == ["failed"] * 5
    assert sum(one.status == "dropped" for one in lost) == 90


def test_export_never_waits_and_never_raises(
    provider: LoggerProvider, capfd: pytest.CaptureFixture[str]
) -> None:
    cycle: dict[str, Any] = {}
    cycle["cycle"] = cycle
    exporter = LogExporter("lumberjack://127.0.0.1:9", max_events=10)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("scope")
    for n in range(100):
        logger.emit(body=str(n))
    logger.emit(body=cycle)
    assert exporter.export([object()]) is LogRecordExportResult.SUCCESS
    assert exporter.client.stats().dropped == {"overflow": 91}
    assert not exporter.force_flush(1)
    exporter.shutdown(timeout_millis=1)
    exporter.shutdown()
    assert exporter.client.closed
    assert exporter.client.stats().sanitized == 1
    assert exporter.export([]) is LogRecordExportResult.FAILURE
    assert "a record of OpenTelemetry: AttributeError" in capfd.readouterr().err


def test_a_client_that_was_given_stays_open(provider: LoggerProvider) -> None:
    with Collector(keep=True) as server, logclient.connect(server.url) as client:
        exporter = LogExporter(client=client)
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        provider.get_logger("scope").emit(body="m")
        provider.get_logger("logclient.engine").emit(body="of our own: left out")
        provider.shutdown()
        assert not client.closed
        assert [event["message"] for event in server.events(1, PATIENCE)] == ["m"]
        assert client.stats().sent == 1


def test_the_end_of_the_process_delivers() -> None:
    program = (
        "import sys\n"
        "from opentelemetry.sdk._logs import LoggerProvider\n"
        "from opentelemetry.sdk._logs.export import BatchLogRecordProcessor\n"
        "from logclient.integrations.opentelemetry import LogExporter\n"
        "provider = LoggerProvider()\n"
        "provider.add_log_record_processor(BatchLogRecordProcessor(LogExporter(sys.argv[1])))\n"
        "provider.get_logger('scope').emit(body='last')\n"
    )
    with Collector(keep=True) as server:
        command = [sys.executable, "-c", program, server.url]
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        done = subprocess.run(command, env=environment, timeout=2 * PATIENCE, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert [event["message"] for event in server.events(1, PATIENCE)] == ["last"]


def test_the_sdk_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "logclient.integrations.opentelemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk._logs", None)
    with pytest.raises(MissingExtra, match=r'pip install "logclient\[opentelemetry\]"'):
        import logclient.integrations.opentelemetry  # noqa: F401


class TestMetrics:
    @staticmethod
    def read(reader: InMemoryMetricReader) -> dict[tuple[str, str], float]:
        """Return values by name and reason, added up over the URLs."""
        found: dict[tuple[str, str], float] = {}
        data = reader.get_metrics_data()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                assert point.attributes is not None and str(point.attributes["url.full"])
                key = metric.name, str(point.attributes.get("logclient.reason", ""))
                found[key] = found.get(key, 0) + point.value  # type: ignore[union-attr]
        return found

    def test_counts_equal_those_of_the_clients(self) -> None:
        reader = InMemoryMetricReader()
        observe(MeterProvider([reader], shutdown_on_exit=False))
        with Collector() as server:
            with logclient.connect(server.url, max_event_bytes=100) as client:
                before = self.read(reader)
                for n in range(50):
                    client.send({"n": n, "nan": math.nan})
                with pytest.raises(logclient.EncodeError):
                    client.send({"m": "m" * 200})
                assert client.flush(PATIENCE) == 0
                now = self.read(reader)
                assert now["logclient.events.queued", ""] == now["logclient.events.in_flight", ""] == 0
                assert now["logclient.connections.open", ""] >= 1
                stats = client.stats()
            client.send({"n": 0})
        after = self.read(reader)
        grown = {key: value - before.get(key, 0) for key, value in after.items()}
        assert grown["logclient.events.sent", ""] == 51
        assert grown["logclient.events.acked", ""] == grown["logclient.values.sanitized", ""] == 50
        assert grown["logclient.events.failed", "too_large"] == 1
        assert grown["logclient.events.refused", ""] == grown["logclient.connections.opened", ""] == 1
        assert grown["logclient.network.sent", ""] >= stats.bytes_sent > 0

    def test_names_and_kinds_follow_the_conventions(self) -> None:
        reader = InMemoryMetricReader()
        observe(MeterProvider([reader], shutdown_on_exit=False))
        with logclient.connect("lumberjack://user.example:9?window=9") as client:
            client.send("m")
            data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
            client.close(0)
        [scope] = data["resource_metrics"][0]["scope_metrics"]
        assert scope["scope"]["name"] == "logclient"
        found = {metric["name"]: metric for metric in scope["metrics"]}
        assert METRICS.keys() == COUNTERS.keys() | GAUGES.keys()
        reasons = {f"logclient.events.{word}" for word in ("failed", "dropped", "filtered")}
        names = {METRICS[name][0]: name for name in METRICS}
        assert found.keys() | reasons == names.keys()
        for name, metric in found.items():
            assert metric["unit"] == METRICS[names[name]][1]
            assert metric["description"] == {**COUNTERS, **GAUGES}[names[name]]
            assert metric["data"].get("is_monotonic", False) is (names[name] in COUNTERS)
        urls = {
            point["attributes"]["url.full"]
            for metric in found.values()
            for point in metric["data"]["data_points"]
        }
        assert "lumberjack://user.example:9" in urls and not any("window" in url for url in urls)

    def test_one_collection_is_one_snapshot(self) -> None:
        reader = InMemoryMetricReader()
        observe(MeterProvider([reader], shutdown_on_exit=False))
        with Collector() as server, logclient.connect(server.url) as client:
            start = self.read(reader)
            for n in range(300):
                client.send({"n": n})
                now = self.read(reader)
                grown = {key: value - start.get(key, 0) for key, value in now.items()}
                assert grown["logclient.events.sent", ""] == n + 1
                assert grown["logclient.events.sent", ""] == (
                    grown["logclient.events.acked", ""]
                    + grown["logclient.events.queued", ""]
                    + grown["logclient.events.in_flight", ""]
                )
