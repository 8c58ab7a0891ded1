"""What ecs-logging makes of the records of a run, and which differences to our documents are deliberate.

Documents are compared flat, so that it does not matter which of their names are nested. Differences:

* of fields that a record has by itself: `FIELDS`
* of values: ``odd_records.DIFFERENCES``
* of names: a plain value with the name of an ECS object is in ``labels`` (Elasticsearch refuses it otherwise)
* a field that is None is null in ours, and left out by ecs-logging
* what ``logclient.bind`` has bound is in ours, unless the record has it itself; ecs-logging knows no context
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integrations.odd_records import Broken, arrived, expected_field
from tests.support.documents import dotted

ecs_logging = pytest.importorskip("ecs_logging")

OWN_NAMES = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEFT_OUT = object()


def _time(record: logging.LogRecord) -> str:
    time = EPOCH + timedelta(microseconds=round(record.created * 1e6))
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


def _error_type(record: logging.LogRecord) -> object:
    given = record.exc_info
    return given[0].__name__ if isinstance(given, tuple) and given[0] is not None else LEFT_OUT


def _error_text(record: logging.LogRecord) -> object:
    error = _error(record)
    try:
        return LEFT_OUT if error is None else str(error)
    except Exception:
        return f"<unprintable {type(error).__name__}>"


def _trace(record: logging.LogRecord) -> object:
    parts = [record.stack_info] if record.stack_info else []
    if _error(record) is not None:
        assert isinstance(record.exc_info, tuple) and record.exc_info[0] is not None
        parts.insert(0, logging.Formatter().formatException(record.exc_info))
    return "\n".join(parts) if parts else LEFT_OUT


class FieldDifference(NamedTuple):
    """A field for which our document differs from that of ecs-logging, on purpose.

    Attributes:
        name: of the field.
        ours: its value in our document of a record, or `LEFT_OUT`.
        why: the reason.
    """

    name: str
    ours: Callable[[logging.LogRecord], object]
    why: str


FIELDS = (
    FieldDifference("@timestamp", _time, "microseconds; theirs are cut to milliseconds"),
    FieldDifference("ecs.version", lambda _: "8.11.0", "theirs names 1.6.0, of 2020"),
    FieldDifference("log.original", lambda _: LEFT_OUT, "it is the message once more"),
    FieldDifference("error.type", _error_type, "also of an exception without a text, where theirs fails"),
    FieldDifference("error.message", _error_text, "also of one without a text, or one that is false"),
    FieldDifference("error.stack_trace", _trace, "with causes, groups and notes; theirs has frames only"),
)


class Expected(NamedTuple):
    """The document that we expect, and the facts of its request, which may be filled in later."""

    fields: dict[str, Any]
    facts: Mapping[str, Any]
    extra: set[str]

    def document(self) -> dict[str, Any]:
        """Return the flat document. What the record has itself wins."""
        facts = {name: value for name, value in self.facts.items() if name not in self.extra}
        return {**dotted(facts), **self.fields}


class Peer(logging.Handler):
    """Keeps what we expect our document of each record to be: that of ecs-logging, but for the differences.

    Attributes:
        expected: what is expected, in order.
        facts: fields of the request or task at hand, which its records share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[Expected] = []
        self.facts: Mapping[str, Any] = {}
        self._formatter = ecs_logging.StdlibFormatter(ensure_ascii=False)

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        extra = {name: value for name, value in vars(record).items() if name not in OWN_NAMES}
        copy = logging.makeLogRecord(vars(record))
        for name, value in extra.items():
            if isinstance(value, Broken):
                del vars(copy)[name]  # theirs raises
        if _error_text(record) == f"<unprintable {type(_error(record)).__name__}>":
            copy.exc_info = None  # likewise
        made = dotted(json.loads(self._formatter.format(copy)))
        for difference in FIELDS:
            ours = difference.ours(record)
            made.pop(difference.name, None)
            if ours is not LEFT_OUT:
                made[difference.name] = ours
        for name, value in extra.items():
            theirs = made.pop(name, None)
            ours_name, ours = expected_field(name, value, theirs)
            if isinstance(value, dict) and value:  # its fields are in `made`, but for those that are None
                made |= {path: None for path, inner in dotted({name: value}).items() if inner is None}
            else:
                made[ours_name] = ours
        self.expected.append(Expected(made, self.facts, {*extra}))

    def check(self, capture: Path) -> list[dict[str, Any]]:
        """Compare what has arrived, in its order, field by field; return it."""
        documents = [dotted(document) for document in arrived(capture)]
        assert len(documents) == len(self.expected)
        for document, expected in zip(documents, self.expected, strict=True):
            assert len(document.pop("event.id")) == 32
            del document["@metadata._id"]
            wanted = expected.document()
            names = [name for name in {**document, **wanted} if document.get(name) != wanted.get(name)]
            assert document == wanted, [(name, document.get(name), wanted.get(name)) for name in names]
        return documents
