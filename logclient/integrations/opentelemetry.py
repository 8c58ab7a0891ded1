"""OpenTelemetry: an exporter of the SDK's log records as ECS documents, and metrics of all clients.

docs/opentelemetry.md says what becomes a field of which name. A field of a body that is a mapping wins over
an attribute of the record, and this over one of its resource.
"""

from __future__ import annotations

import ntpath
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient.client import INFO
from logclient.errors import MissingExtra
from logclient.integrations.counts import COUNTERS, GAUGES, METRICS, Counts, Totals
from logclient.integrations.documents import FrontEnd, add_fields, begin, text
from logclient.records import formats

try:
    from opentelemetry import metrics
    from opentelemetry.sdk._logs import export as _sdk
except ImportError:
    raise MissingExtra("opentelemetry.sdk", "opentelemetry") from None

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter as _Exporter
else:
    # Their names before 1.39.
    _Exporter = getattr(_sdk, "LogRecordExporter", None) or _sdk.LogExporter
_Result: Any = getattr(_sdk, "LogRecordExportResult", None) or _sdk.LogExportResult

__all__ = ["ATTRIBUTES", "METRICS", "LogExporter", "observe"]

ATTRIBUTES = {
    "code.filepath": "log.origin.file.path",
    "code.file.path": "log.origin.file.path",
    "code.lineno": "log.origin.file.line",
    "code.function": "log.origin.function",
    "deployment.environment": "service.environment",
    "os.description": "host.os.full",
} | {
    name: field
    for field, name in (formats.ATTRIBUTES | formats.RESOURCE).items()
    if name not in (field, "code.file.path", "process.executable.name")
}
"""Attributes that ECS has another name for. Of two names for one field, the later one here wins."""

_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal")  # four severities each, from 1 on
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogExporter(FrontEnd, _Exporter):
    """An exporter of log records for ``BatchLogRecordProcessor`` and ``SimpleLogRecordProcessor``.

    Its arguments are those of `FrontEnd`.
    """

    _library = "OpenTelemetry"
    _last: tuple[Any, dict[str, Any]] = (None, {})  # a resource and its fields
    _ended = False

    def export(self, batch: Sequence[Any]) -> Any:
        """Queue records, without waiting for the network or raising; the SDK calls this.

        Returns ``LogRecordExportResult.SUCCESS``; after ``shutdown`` ``FAILURE``.
        """
        if self._ended:
            return _Result.FAILURE
        for item in batch:
            self._ship(item)
        return _Result.SUCCESS

    def shutdown(self, timeout_millis: float | None = None) -> None:
        """Deliver what is queued, for the option ``timeout`` by default, and close a client of its own."""
        if not self._ended:
            self._ended = True
            self._deliver(None if timeout_millis is None else timeout_millis / 1000)

    def force_flush(self, timeout_millis: float = 30000) -> bool:
        """Wait until every record that was exported has an outcome; return whether every one has."""
        return self.client.flush(timeout_millis / 1000) == 0

    def _document(self, item: Any) -> tuple[dict[str, Any], int, str]:
        record = item.log_record
        scope = getattr(item, "instrumentation_scope", None)
        name = text(scope.name) if scope is not None and scope.name else ""
        number = record.severity_number.value if record.severity_number is not None else 0
        group = (number - 1) // 4
        level = record.severity_text or (_LEVELS[group] if number else "")
        resource = getattr(item, "resource", None) or record.resource
        known, shared = self._last
        if resource is not known:
            shared = _renamed(resource.attributes)
            self._last = resource, shared
        fields = shared | _renamed(record.attributes or {})
        body = record.body
        if isinstance(body, bytes):
            body = body.decode(errors="replace")
        elif isinstance(body, Mapping):
            fields |= body
            body = None
        time = _time(record.timestamp or record.observed_timestamp)
        document = begin(time, text(level), body, name)
        if body is None:
            del document["message"]
        if not level:
            del document["log.level"]
        if number:
            document["event.severity"] = number
        found = {
            "event.action": getattr(record, "event_name", None),
            "trace.id": record.trace_id and f"{record.trace_id:032x}",
            "span.id": record.span_id and f"{record.span_id:016x}",
            "labels.dropped_attributes": getattr(item, "dropped_attributes", 0),
        }
        document |= {name: value for name, value in found.items() if value}
        add_fields(document, fields)
        return document, group * 10 if number else INFO, name


def _renamed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(attributes)
    for name in [name for name in ATTRIBUTES if name in found]:
        found[ATTRIBUTES[name]] = found.pop(name)
    path = found.get("log.origin.file.path")
    if isinstance(path, str):
        found.setdefault("log.origin.file.name", ntpath.basename(path))  # takes both separators
    return found


def _time(ns: int | None) -> datetime:
    """Return a time in nanoseconds since 1970, rounded to microseconds; one that no datetime has is now."""
    try:
        assert ns is not None
        return _EPOCH + timedelta(microseconds=(ns + 500) // 1000)
    except Exception:
        return datetime.now(UTC)


class _Snapshots(threading.local):
    """Reads all counts once for each collection: its instruments ask one after another, in one thread."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._asked: set[str] = set()
        self._counts: Counts = {}

    def of(self, name: str) -> Counts:
        """Return the counts for an instrument; one that asks again begins another collection."""
        if not self._asked or name in self._asked:
            self._asked = set()
            self._counts = self._totals.read()
        self._asked.add(name)
        return self._counts


def observe(meter_provider: metrics.MeterProvider | None = None) -> None:
    """Have OpenTelemetry see the counts of all clients of this process: those there are, and those to come.

    The counts are those of `logclient.integrations.prometheus`, with the names in `METRICS`. The attribute
    ``url.full`` is the URL without options and secrets; ``logclient.reason`` says why events failed or were
    dropped. Call it once: an instrument cannot be taken back.

    Args:
        meter_provider: None: the global one.
    """
    meter = metrics.get_meter("logclient", meter_provider=meter_provider)
    snapshots = _Snapshots(Totals())
    for name, (metric, unit) in METRICS.items():
        create = meter.create_observable_counter if name in COUNTERS else meter.create_observable_gauge
        create(metric, [partial(_observed, snapshots, name)], unit, {**COUNTERS, **GAUGES}[name])


def _observed(snapshots: _Snapshots, name: str, _: metrics.CallbackOptions) -> list[metrics.Observation]:
    return [
        metrics.Observation(value, {"url.full": url} | ({"logclient.reason": reason} if reason else {}))
        for (counted, url, reason), value in snapshots.of(name).items()
        if counted == name
    ]
