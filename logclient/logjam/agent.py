"""Documents of one application: requests, records outside of requests, and the other topics."""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from logclient._ext.constants import K_ID1_TAKEN, K_TOPIC_SHIFT
from logclient._ext.record import Encoder, LineEncoder
from logclient._ext.tracebacks import ExceptionFormatter
from logclient.delivery.error_log import ErrorLog
from logclient.errors import ConfigError, EncodeError, described
from logclient.logjam import document
from logclient.logjam.core import AJAX, EVENTS, JAVASCRIPT, LOGS, MOBILE, PAGE, split_app_env
from logclient.logjam.document import ERROR, INFO, MASKED
from logclient.logjam.request import Request, current, error_name, innermost, running
from logclient.records.host import node_name
from logclient.standard import os

R = TypeVar("R")

Sink = Callable[[bytes, int, int], object]
"""``sink(body, level, kind)`` takes a document, with a level number of ``logging``."""

PLACE = ("host", "cluster", "datacenter", "namespace", "revision")
"""Fields that importers know, in the order of documents."""

_FULL_ID = re.compile(r"[!-~]{1,255}-[!-~]{1,255}-[0-9A-Fa-f]{32}")


class LineFormatter(logging.Formatter):
    """The formatter of lines when the user has none: the message, with the traceback below."""

    def __init__(self) -> None:
        super().__init__()
        self._exceptions = ExceptionFormatter()

    def formatException(self, ei: Any) -> str:
        """Return the text of an exception, equal to that of ``logging.Formatter``."""
        return self._exceptions.format(ei)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record; its message and arguments if they do not fit. Never raises."""
        try:
            if not (record.exc_info or record.exc_text or record.stack_info):
                return record.getMessage()  # the same, in less time
            return super().format(record)
        except Exception:
            return f"{record.msg} % {record.args!r}"


class AgentMethods(Generic[R]):
    """What applications call, of an `Agent` or of the client that has one."""

    agent: Agent  # of a client

    @property
    def _agent(self) -> Agent:
        return self.agent

    def request(
        self,
        action: object = None,
        *,
        request_id: str | None = None,
        trace_id: str | None = None,
        caller_id: str | None = None,
        caller_action: str | None = None,
        request_info: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Request:
        """Begin a request. Use it in a ``with`` statement, or call its ``end``.

        Args:
            action: ``<module>#<method>``; may be set later.
            request_id: with ``own_ids``, 32 hex digits; anything else is replaced by a new id. Without
                ``own_ids``, it becomes the field ``labels_request_id``. None: the id of the event that
                carries the document, unless ``Request.request_id`` is read before.
            trace_id: id of the chain of requests that this one is part of.
            caller_id: ``<app>-<environment>-<request_id>`` of the request that called this one.
            caller_action: the action of that request.
            request_info: ``method``, ``url``, ``headers``, ``query_parameters``, ``body_parameters``.
            fields: more fields at the top of the document.

        Returns:
            The request, which has begun. It becomes ``current()`` in its ``with`` statement.
        """
        request = self._agent._begin(action)
        if request_id is not None:
            request.request_id = request_id
        request.trace_id = trace_id
        request.caller_id = caller_id
        request.caller_action = caller_action
        request.request_info.update(request_info or {})
        request.fields.update(fields or {})
        return request

    def event(self, label: object, **fields: Any) -> R:
        """Ship an event of the whole application, such as a deployment.

        Args:
            label: the name of the event.
            fields: more fields of the document.

        Returns:
            The sink's result; a client's is the sequence of the document, or 0 if it was dropped at once.

        Raises:
            EncodeError: there is no label.
        """
        text = document.cut(document.text_of(label), document.MAX_STRING)
        if not text:
            raise EncodeError("label: an event needs one")
        return self._small(EVENTS, {"label": text}, fields)

    def page(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> R:
        """Ship the timings of a page in a browser.

        Args:
            request_id: the X-Logjam-Request-Id header of the page's request. The importer takes each once,
                and only after that request.
            timings: 16 times in ms since 1970, 0 where there was none, as in the browser's PerformanceTiming:
                navigationStart, fetchStart, domainLookupStart, domainLookupEnd, connectStart, connectEnd,
                requestStart, responseStart, responseEnd, domLoading, domInteractive,
                domContentLoadedEventStart, domContentLoadedEventEnd, domComplete, loadEventStart,
                loadEventEnd. A list, or text with commas.
            action: the action of the page's request.
            fields: ``user_agent``, ``url`` and other fields.

        Returns:
            The sink's result; a client's is the sequence of the document, or 0 if it was dropped at once.

        Raises:
            EncodeError: the importer would drop it.
        """
        times = _timings(timings, 16)
        base = times[0] or times[1]
        if not base:
            raise EncodeError("timings: neither navigationStart nor fetchStart is there")
        shown = [time and time - base for time in times]
        steps = [shown[n] for n in (6, 7, 8, 13, 15)]
        if steps[0] < 0 or steps != sorted(steps) or shown[10] <= 0:
            raise EncodeError(
                "timings: requestStart, responseStart, responseEnd, domComplete and loadEventEnd must rise, "
                "and domInteractive be there"
            )
        return self._frontend(PAGE, request_id, times, action, fields)

    def ajax(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> R:
        """Ship how long a browser waited for a request of a page.

        Args:
            request_id: as for ``page``.
            timings: begin and end, in ms since 1970. A list, or text with a comma.
            action: as for ``page``.
            fields: as for ``page``.

        Returns:
            The sink's result; a client's is the sequence of the document, or 0 if it was dropped at once.

        Raises:
            EncodeError: the importer would drop it.
        """
        times = _timings(timings, 2)
        if times[1] < times[0]:
            raise EncodeError("timings: the end is before the begin")
        return self._frontend(AJAX, request_id, times, action, fields)

    def javascript(
        self, description: object, *, action: object = None, request_id: str | None = None, **fields: Any
    ) -> R:
        """Ship an error in a browser's script.

        Args:
            description: the importer counts errors by it, so leave out addresses and numbers if possible.
            action: the action of the page's request.
            request_id: the X-Logjam-Request-Id header of that request.
            fields: ``url``, ``line``, ``user_agent`` and other fields.

        Returns:
            The sink's result; a client's is the sequence of the document, or 0 if it was dropped at once.

        Raises:
            EncodeError: there is no description.
        """
        text = document.name_text(description)
        if not text:
            raise EncodeError("description: a javascript error needs one")
        known = {"description": text, "logjam_action": document.action_name(action)}
        if request_id is not None:
            known["logjam_request_id"] = document.name_text(request_id)
        return self._small(JAVASCRIPT, known, fields)

    def mobile(self, **fields: Any) -> R:
        """Ship a report of a mobile application. Importers ignore it today.

        Args:
            fields: the fields of the report.

        Returns:
            The sink's result; a client's is the sequence of the document, or 0 if it was dropped at once.
        """
        return self._small(MOBILE, {}, fields)

    def _frontend(
        self, topic: int, request_id: str, times: list[int], action: object, fields: dict[str, Any]
    ) -> R:
        if not isinstance(request_id, str) or not _FULL_ID.fullmatch(request_id):
            raise EncodeError("request_id: must be <app>-<environment>-<32 hex digits>, as the page's header")
        known = {
            "logjam_request_id": request_id,
            "logjam_action": document.action_name(action),
            "rts": ",".join(map(str, times)),
        }
        return self._small(topic, known, fields)

    def _small(self, topic: int, known: dict[str, Any], fields: Mapping[str, Any]) -> R:
        agent = self._agent
        made = {**known, **agent.times(time.time()), **agent.place}
        agent.add_fields(made, fields, document.Values())
        found: R = agent.put(made, topic, logging.INFO)
        return found


class Agent(AgentMethods[Any]):
    """The maker of documents of one application in one environment. A client has one.

    Methods that are not described here are for clients, handlers and requests.

    Args:
        sink: takes the documents, as ``sink(body, level, kind)``. It is called in the thread that ends a
            request or logs a record. Its exceptions are counted and reported, and raised only by ``event``,
            ``page``, ``ajax``, ``javascript`` and ``mobile``.
        app_env: ``<app>-<env>``, without a dash in the environment.
        zone: the time zone in which the importer reads ``started_at`` (it ignores the offset): a name of the
            time zone database, or a tzinfo; None: this machine's.
        fields: fields of all documents. Those of `PLACE` become texts; ``host`` is the name of this machine
            by default. A document's own field wins over the others.
        mask: parts of the names of headers and parameters whose values are masked.
        max_event_bytes: the largest document in bytes; a larger one fails.
        own_ids: True: an id that the application gives to a request is its id. False: that id becomes the
            field ``labels_request_id``.
        reporter: the error log; None: one of its own.
        lost: called with the error of each document that was not made or not taken.
        moved: called with the number of ids that became other fields.

    Attributes:
        formatter: the formatter that a Handler shows while the application has set none.
        failed: documents that were not made or not taken.

    Raises:
        ConfigError: an argument breaks a rule.
    """

    formatter = LineFormatter()

    def __init__(
        self,
        sink: Sink,
        app_env: str,
        *,
        zone: str | datetime.tzinfo | None = None,
        fields: Mapping[str, Any] | None = None,
        mask: Iterable[str] = MASKED,
        max_event_bytes: int = 8 << 20,
        own_ids: bool = True,
        reporter: ErrorLog | None = None,
        lost: Callable[[BaseException], object] = lambda error: None,
        moved: Callable[[int], object] = lambda count: None,
    ) -> None:
        split_app_env(app_env)
        if isinstance(mask, str):
            raise ConfigError("mask: must be several parts of names, not one string")
        self.sink = sink
        self.app_env = app_env
        self.zone = _zone(zone)
        self.clock = document.Clock(self.zone)
        self.masks = document.Masks(mask)
        self.failed = 0  # documents that were not made or not taken
        self.own_ids = own_ids
        self._encoder = Encoder(max_event_bytes=max_event_bytes, ecs=False, carriers=())
        self._reporter = reporter or ErrorLog()
        self._lost = lost
        self.moved = moved
        own = {"host": node_name(), **(fields or {})}
        place = {name: own.pop(name) for name in PLACE if name in own}
        self.place = {name: document.name_text(value) for name, value in place.items() if value is not None}
        self.add_fields(self.place, own, document.Values())

    @property
    def _agent(self) -> Agent:
        return self

    def _begin(self, action: object) -> Request:
        """Begin a request. An agent of a client before its ``__init__`` has no such method."""
        return Request(self, action)

    def note_lost(self, error: BaseException, what: str) -> None:
        """Count a document that was lost here, and log it, at most once a minute for each kind of error."""
        self.failed += 1
        self._lost(error)
        kind = type(error).__name__
        self._reporter.warn_limited(f"logjam:{kind}", f"{what}: {described(error)}")

    def times(self, seconds: float) -> dict[str, Any]:
        """Return the fields for a time in seconds since 1970."""
        return {"started_at": self.clock.text(seconds), "started_ms": int(seconds * 1000)}

    def add_fields(self, made: dict[str, Any], fields: Mapping[str, Any], values: document.Values) -> None:
        """Add the user's fields to a document, under names that are free or of a field of all documents."""
        ids = 0
        common = set(self.place)
        alike = document.Alike()
        if not isinstance(fields, Mapping):  # the application has replaced the dict
            fields = {"fields": fields}
        for name, value in list(fields.items()):
            key = values.key(name)
            plain = values.plain(value)
            if key in ("request_id", "uuid"):
                key = f"labels_{key}"
                ids += 1
            if key.endswith(("_time", "_calls")) and (
                isinstance(plain, bool) or not isinstance(plain, (int, float))
            ):
                # The importer would take it for a number.
                key = f"{document.cut(key, document.MAX_NAME - 1)}_"
            if (key in made and key not in common) or key in document.OWN:
                other = alike.other(key, made)
                if other is None:
                    continue
                key = other
            made[key] = plain
            common.discard(key)
        if ids:
            self.moved(ids)

    def trace(self, error: BaseException) -> str:
        """Return the text of an exception, with its traceback."""
        return self._encoder.exceptions.format((type(error), error, error.__traceback__))

    def put(self, made: Mapping[str, Any], topic: int, level: int) -> Any:
        """Encode a document and pass it to the sink; return the sink's result."""
        body = self._encoder.encode(made)[0]
        return self.sink(body, level, topic << K_TOPIC_SHIFT | (K_ID1_TAKEN if "request_id" in made else 0))

    def ship(self, record: logging.LogRecord, made: str | dict[str, Any] | None = None) -> bool:
        """Add a record as a line to the request of this context, or make a document of it.

        An exception in it is named in the request: from ERROR on in ``exceptions``, below in
        ``soft_exceptions``. `made` is the result of a formatter: the text of the line, or fields with the
        text as ``message``; None: the message, with the traceback below. False: neither was possible.
        """
        try:
            fields: dict[str, Any] = {}
            if isinstance(made, dict):
                fields = dict(made)
                made = str(fields.pop("message", ""))
            text = self.formatter.format(record) if made is None else made
            request = current(self)
            while request is not None and not request.line(record.levelno, text, record.created):
                request = running(request.parent, self)  # the request has just ended
            if request is None:
                self._ship_alone(record, text, fields)
                return True
            request.fields.update(fields)
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            if error is not None:
                request.exception(error, soft=record.levelno < logging.ERROR)
                request._shown = error
        except Exception as error:
            self.note_lost(error, f"a record of logger {getattr(record, 'name', '?')!r}")
            return False
        return True

    def text(self, text: str) -> dict[str, Any]:
        """Return the document of a plain text: one line, of the action ``Unknown#line``."""
        return self._one_line("Unknown#line", time.time(), INFO, document.line_text(text, INFO), os.getpid())

    def _one_line(self, action: str, seconds: float, severity: int, line: str, pid: int) -> dict[str, Any]:
        """Return the document of a line that belongs to no request."""
        return {
            "action": action,
            **self.times(seconds),
            "total_time": 1.0,  # the importer turns 0 into this
            "code": 500 if severity >= ERROR else 200,
            "severity": severity,
            **self.place,
            "process_id": pid,
            "lines": [[severity, document.timestamp(seconds, self.zone), line]],
        }

    def complete(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        """Return an application's document with a ``started_at``, which the importer requires.

        The time is that of ``started_ms`` if there is one, else now. A ``started_at`` that the importer does
        not accept is not changed. It is reported in the error log, at most once a minute.
        """
        now = time.time()
        started = fields.get("started_at")
        if started is None:
            ms = fields.get("started_ms")
            if ms is None:
                return {**fields, **self.times(now)}
            try:
                started = self.clock.text(ms / 1000)
            except (TypeError, ValueError, OverflowError, OSError):
                started = self.clock.text(now)
            fields = {**fields, "started_at": started}
        if not self.clock.takes(started, now):
            self._reporter.warn_limited(
                "logjam:started_at",
                f"started_at {document.text_of(started)[:40]!r}: importers drop this document; it must begin "
                f"as in {self.clock.text(now)[:19]}, and be within 48 hours of their clocks",
            )
        return fields

    def _ship_alone(self, record: logging.LogRecord, text: str, fields: dict[str, Any]) -> None:
        """Ship a record that was logged outside of any request, with the action ``<logger>#<function>``."""
        severity = document.severity_of(record.levelno)
        line = document.line_text(text, severity)
        action = document.action_name(f"{record.name}#{record.funcName or ''}")
        made = self._one_line(action, record.created, severity, line, record.process or os.getpid())
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None:
            made["exceptions" if severity >= ERROR else "soft_exceptions"] = [error_name(error)]
        extra = {name: value for name, value in record.__dict__.items() if name not in _record_names()}
        self.add_fields(made, {**extra, **fields}, document.Values())
        self.put(made, LOGS, record.levelno)

    def line_encoder(self) -> LineEncoder:
        """Make the encoder that does the same as ``ship``, for ordinary records, in compiled code."""
        return LineEncoder(
            self._encoder,
            request=innermost,
            texts=self.clock.texts,
            place=self.place,
            reserved=document.OWN | _record_names() | self.place.keys(),
            kind=LOGS << K_TOPIC_SHIFT,
        )


def _zone(zone: str | datetime.tzinfo | None) -> datetime.tzinfo | None:
    if zone is None or isinstance(zone, datetime.tzinfo):
        return zone
    if zone == "UTC":  # works without a time zone database
        return datetime.UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError):
        raise ConfigError("zone: must be a name of the time zone database, such as Europe/Berlin") from None


def _timings(given: Sequence[int] | str, count: int) -> list[int]:
    try:
        found = [int(time) for time in (given.split(",") if isinstance(given, str) else given)]
    except (TypeError, ValueError, OverflowError):
        found = []
    if len(found) != count or not all(0 <= time < 1 << 62 for time in found):
        raise EncodeError(f"timings: must be {count} times in ms, whole and not negative")
    return found


@cache
def _record_names() -> frozenset[str]:
    """Return the attributes that every record has; all others come from the user's ``extra``."""
    plain = logging.LogRecord("", 0, "", 0, "", None, None).__dict__
    return frozenset({*plain, "message", "asctime", "taskName"})
