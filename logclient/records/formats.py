"""Documents in other forms than ECS: the option ``format``.

A form is a table: what becomes of the fields with these names in ECS. docs/events.md shows it. To add a form
is to add a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logclient._ext.record import Form
from logclient.standard import json

__all__ = ["ATTRIBUTES", "FORMS", "RESOURCE", "form"]

LEVELS = {
    "trace": (1, 7), "debug": (5, 7), "info": (9, 6), "notice": (10, 5), "success": (10, 5),
    "warning": (13, 4), "warn": (13, 4), "error": (17, 3), "critical": (21, 2), "fatal": (21, 2),
    "alert": (22, 1), "emergency": (24, 0),
}  # fmt: skip
"""OpenTelemetry's number and syslog's of each level."""

_PLAIN = {
    "log.logger": "logger_name",
    "log.origin.file.name": "file_name",
    "log.origin.file.line": "line",
    "log.origin.function": "func_name",
    "process.pid": "pid",
    "process.name": "process_name",
    "process.thread.id": "thread_id",
    "process.thread.name": "thread_name",
    "error.type": "error_type",
    "error.message": "error_message",
    "error.stack_trace": "stack_trace",
    "error.fingerprint": "error_fingerprint",
}
ATTRIBUTES = {
    "log.origin.file.name": "code.file.path",
    "log.origin.file.line": "code.line.number",
    "log.origin.function": "code.function.name",
    "process.thread.id": "thread.id",
    "process.thread.name": "thread.name",
    "error.type": "exception.type",
    "error.message": "exception.message",
    "error.stack_trace": "exception.stacktrace",
}
RESOURCE = {
    "process.pid": "process.pid",
    "process.name": "process.executable.name",
    "service.name": "service.name",
    "service.version": "service.version",
    "service.environment": "deployment.environment.name",
    "service.node.name": "service.instance.id",
    "host.name": "host.name",
    "host.id": "host.id",
    "host.architecture": "host.arch",
    "host.os.type": "os.type",
    "host.os.name": "os.name",
    "host.os.version": "os.version",
    "container.id": "container.id",
    "kubernetes.pod.name": "k8s.pod.name",
    "kubernetes.pod.uid": "k8s.pod.uid",
    "kubernetes.pod.ip": "k8s.pod.ip",
    "kubernetes.node.name": "k8s.node.name",
    "kubernetes.namespace": "k8s.namespace.name",
}

# Rules: the name in ECS, the new name, behind that of the object which it goes into; and what becomes of the
# value (`CONVERSIONS` in _ext/record/forms.pyx). Members are written in this order, those of an object
# together, and all other fields behind them.
_Rules = Iterable[tuple[str, str, str]]


def _renamed(names: dict[str, str], prefix: str = "", how: str = "") -> _Rules:
    return [(name, prefix + ours, how) for name, ours in names.items()]


_NO_VERSION = ("ecs.version", "", "leave out")
_TIME = ("@timestamp", "@timestamp", "")
_FLAT: _Rules = (
    ("message", "message", ""),
    ("log.level", "level", "upper"),
    _NO_VERSION,
    *_renamed(_PLAIN),
)
_GELF: _Rules = (
    ("", '"version":"1.1"', "constant"),
    ("host.name", "host", "host"),
    ("message", "short_message", "short message"),
    ("@timestamp", "timestamp", "seconds"),
    ("error.stack_trace", "full_message", "full message"),
    ("log.level", "level", "syslog"),
    ("log.level", "_level", "other level"),
    _NO_VERSION,
    ("host.name", "_host.name", "plain"),
    *[rule for rule in _renamed(_PLAIN, "_", "plain") if rule[0] != "error.stack_trace"],
)
_OTEL: _Rules = (
    ("@timestamp", "Timestamp", "nanoseconds"),
    ("log.level", "SeverityText", "upper"),
    ("log.level", "SeverityNumber", "severity"),
    ("message", "Body", "body"),
    ("trace.id", "TraceId", ""),
    ("span.id", "SpanId", ""),
    _NO_VERSION,
    ("log.logger", "InstrumentationScope/Name", ""),
    *_renamed(RESOURCE, "Resource/"),
    *_renamed(ATTRIBUTES, "Attributes/"),
)
FORMS: dict[str, tuple[_Rules, dict[str, Any]]] = {
    "logstash": (
        (_TIME, ("@version", '"@version":"1"', "constant"), *_FLAT),
        {"nested": True, "moves": True},
    ),
    "otel": (_OTEL, {"levels": LEVELS, "others": "Attributes"}),
    "gelf": (_GELF, {"levels": LEVELS, "prefixed": True}),
    "json": ((_TIME, *_FLAT), {"moves": True}),
}
"""The rules of each form, and what becomes of all other fields (see `Form`)."""


def form(name: str, host: str) -> Form:
    """Return a form. `host` is the name of this machine."""
    rules, options = FORMS[name]
    quoted = json.dumps(host or "unknown", ensure_ascii=False).encode(errors="replace").decode()
    return Form(rules, host=quoted, **options)
