"""Documents in other forms than ECS: the option ``format``.

Each is made of the document in ECS, whose names have dots. docs/events.md has a table of the names.

In `logstash` and `json` a field of the application with one of our names moves below ``labels``. In `gelf`
null is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from logclient.records import times
from logclient.standard import json

Document = dict[str, Any]


class Form(NamedTuple):
    """A form of documents."""

    make: Callable[[Document], Document]  # of one in ECS, which it may change
    ecs: bool = False  # the names that are left belong to ECS
    nested: bool = False  # names with dots become objects


_SEVERITIES = {
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
_ODD = re.compile(r"[^\w.-]", re.ASCII)


def form(name: str, host: str) -> Form:
    """Return the form ``logstash``, ``otel``, ``gelf`` or ``json``; `gelf` needs the name of this machine."""
    return {
        "logstash": Form(_logstash, ecs=True, nested=True),
        "otel": Form(_otel),
        "gelf": Form(partial(_gelf, host=host)),
        "json": Form(_json, ecs=True),
    }[name]


def _json(document: Document) -> Document:
    made = _taken(document, {"@timestamp": "@timestamp", "message": "message"})
    if "log.level" in document:
        made["level"] = _upper(document.pop("log.level"))
    document.pop("ecs.version", None)
    made |= _taken(document, _PLAIN)
    for name, value in document.items():
        if name == "level" or name in _PLAIN.values():
            times.put(made, f"labels.{name}", value)
        else:
            made[name] = value
    return made


def _taken(document: Document, names: dict[str, str]) -> Document:
    """Take fields out of a document, and return them under other names."""
    return {ours: document.pop(name) for name, ours in names.items() if name in document}


def _logstash(document: Document) -> Document:
    made = _json({name: value for name, value in document.items() if name != "@version"})
    time = made.pop("@timestamp", None)
    return {"@timestamp": time, "@version": "1", **made} if time is not None else {"@version": "1", **made}


def _gelf(document: Document, host: str) -> Document:
    message = document.pop("message", None)
    trace = document.pop("error.stack_trace", None)
    level = document.pop("log.level", None)
    time = _time(document)
    document.pop("ecs.version", None)
    made: Document = {
        "version": "1.1",
        "host": _text(document.get("host.name") or host) or "unknown",
        "short_message": _text("" if message is None else message) or "-",
        "timestamp": time / 1e6,
    }
    if trace is not None:
        made["full_message"] = f"{made['short_message']}\n{_text(trace)}"
    severity = _severity(level)
    if severity is not None:
        made["level"] = severity[1]
    elif level is not None:
        document["level"] = level
    for name, value in document.items():
        if value is None:
            continue
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        kept = "_" + _ODD.sub("_", _PLAIN.get(name, name))
        times.put(made, f"{kept}_" if kept == "_id" else kept, value if plain else _text(value))
    return made


def _otel(document: Document) -> Document:
    time = _time(document)
    document.pop("ecs.version", None)
    made: Document = {"Timestamp": str(time * 1000)}
    if "log.level" in document:
        level = document.pop("log.level")
        made["SeverityText"] = _upper(level)
        severity = _severity(level)
        if severity is not None:
            made["SeverityNumber"] = severity[0]
    made["Body"] = document.pop("message", None)
    made |= _taken(document, {"trace.id": "TraceId", "span.id": "SpanId"})
    if "log.logger" in document:
        made["InstrumentationScope"] = {"Name": document.pop("log.logger")}
    resource, attributes = _taken(document, RESOURCE), _taken(document, ATTRIBUTES)
    for name, value in document.items():
        times.put(attributes, name, value)
    if resource:
        made["Resource"] = resource
    if attributes:
        made["Attributes"] = attributes
    return made


def _severity(level: Any) -> tuple[int, int] | None:
    return _SEVERITIES.get(level.lower()) if isinstance(level, str) else None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(document: Document) -> int:
    """Take the time out of a document, and return its microseconds since 1970."""
    found = times.read(document.pop("@timestamp", None)) or datetime.now(UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
