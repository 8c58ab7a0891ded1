"""What becomes of a document with the names of ECS in each other form, in plain Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from logclient.records import times
from logclient.records.formats import ATTRIBUTES, LEVELS, RESOURCE
from tests.oracle import ecs

Document = dict[str, Any]

NAMES = {
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
OURS = {"level", *NAMES.values()}
ODD = re.compile(r"[^\w.-]", re.ASCII)


def make(name: str, document: Document, host: str) -> Document:
    """Return the form of a document, which it changes."""
    return FORMS[name](document, host)


def flat(document: Document, _host: str = "") -> Document:
    made = taken(document, {"@timestamp": "@timestamp", "message": "message"})
    if "log.level" in document:
        made["level"] = upper(document.pop("log.level"))
    document.pop("ecs.version", None)
    made |= taken(document, NAMES)
    free = Names(name[7:].split(".")[0] for name in document if name.startswith("labels."))
    if isinstance(document.get("labels"), dict):
        free.names.update(document["labels"])
    for name, value in document.items():
        moves = name.split(".")[0] in OURS
        made[f"labels.{free.take(name.replace('.', '_'))}" if moves else name] = value
    return made


def logstash(document: Document, _host: str) -> Document:
    document.pop("@version", None)
    return ecs.nested({"@version": "1", **flat(document)})


def gelf(document: Document, host: str) -> Document:
    message = document.pop("message", None)
    trace = document.pop("error.stack_trace", None)
    level = document.pop("log.level", None)
    time = microseconds(document)
    document.pop("ecs.version", None)
    made: Document = {
        "version": "1.1",
        "host": text(document.get("host.name") or host) or "unknown",
        "short_message": text("" if message is None else message) or "-",
        "timestamp": time / 1e6,
    }
    if trace is not None:
        made["full_message"] = f"{made['short_message']}\n{text(trace)}"
    number = severity(level)
    if number is not None:
        made["level"] = number[1]
    fields = {"log.level": None if number else level, "host.name": document.pop("host.name", None)}
    fields |= {name: document.pop(name, None) for name in NAMES}
    free = Names()
    for name, value in [*fields.items(), *document.items()]:
        if value is None:
            continue
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        kept = "_" + ODD.sub("_", {**NAMES, "log.level": "level"}.get(name, name))
        made[free.take("_id_" if kept == "_id" else kept)] = value if plain else text(value)
    return made


def otel(document: Document, _host: str) -> Document:
    time = microseconds(document)
    document.pop("ecs.version", None)
    made: Document = {"Timestamp": str(time * 1000)}
    if "log.level" in document:
        level = document.pop("log.level")
        made["SeverityText"] = upper(level)
        number = severity(level)
        if number is not None:
            made["SeverityNumber"] = number[0]
    made["Body"] = document.pop("message", None)
    made |= taken(document, {"trace.id": "TraceId", "span.id": "SpanId"})
    if "log.logger" in document:
        made["InstrumentationScope"] = {"Name": document.pop("log.logger")}
    resource, attributes = taken(document, RESOURCE), taken(document, ATTRIBUTES)
    free = Names(attributes)
    for name, value in document.items():
        attributes[free.take(name)] = value
    if resource:
        made["Resource"] = resource
    if attributes:
        made["Attributes"] = attributes
    return made


FORMS: dict[str, Callable[[Document, str], Document]] = {
    "logstash": logstash, "otel": otel, "gelf": gelf, "json": flat,
}  # fmt: skip


class Names:
    """Names that are taken."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = set(names)

    def take(self, name: str) -> str:
        """Return the name, with a number behind it if it is taken."""
        free, number = name, 1
        while free in self.names:
            number += 1
            free = f"{name}_{number}"
        self.names.add(free)
        return free


def taken(document: Document, names: dict[str, str]) -> Document:
    """Take fields out of a document, and return them under other names."""
    return {ours: document.pop(name) for name, ours in names.items() if name in document}


def severity(level: Any) -> tuple[int, int] | None:
    return LEVELS.get(level.lower()) if isinstance(level, str) else None


def upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def microseconds(document: Document) -> int:
    """Take the time out of a document, and return its microseconds since 1970."""
    found = times.read(document.pop("@timestamp", None)) or datetime.now(UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
