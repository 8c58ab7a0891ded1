"""Logjam's public face: requests as applications log them, and what else the importer takes.

::

    client = logclient.connect("logjam://logs.example.net/shop-production")
    logging.getLogger().addHandler(logclient.Handler(client=client))

    with client.request("Shop::OrdersController#create") as request:
        log.info("order %s", number)            # a line of this request
        with request.measure("db"):             # db_time, db_calls
            ...
        request.code = 201

One request is one document (docs/logjam.md). The lines that were logged while it was the innermost
request of their context belong to it: context variables carry it into asyncio tasks and into threads
that were given the context. What is logged outside of any request is a document of its own.

Nothing here raises into the application for what it logged: what cannot be said is changed, cut or
left out, within the limits of ``protocols/logjam_document.py``.

`Subscriber` is the other side: what a device publishes.
"""

from __future__ import annotations

import contextvars
import datetime
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from logclient import client, threads
from logclient._ext.constants import K_ID1_TAKEN, K_TOPIC_SHIFT
from logclient._ext.record import Encoder
from logclient.config import Config
from logclient.delivery.engine import Engine
from logclient.delivery.report import Reporter
from logclient.errors import ConfigError, EncodeError
from logclient.protocols import logjam_document as document
from logclient.protocols.logjam import split_app_env
from logclient.protocols.logjam_document import MASKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient.collectors.subscriber import Subscriber as Subscriber

__all__ = ["MASKED", "Agent", "Client", "Pong", "Request", "Subscriber", "current"]

LOGS, EVENTS, PAGE, AJAX, JAVASCRIPT, MOBILE = range(6)
"""Topics, as the high nibble of the kind of an event says them."""

INFO, ERROR = 1, 3

Sink = Callable[[bytes, int, int], object]
"""``sink(body, level, kind)``: takes a document; the level is one of ``logging``'s."""

MAX_EVENT_BYTES = 8 << 20
MAX_EXCEPTIONS = 100

_AGES = 1e9  # seconds; beyond, and what is no number, is no time that a request takes

PAGE_TIMINGS = 16
AJAX_TIMINGS = 2

_HEX_ID = re.compile(r"[0-9a-f]{32}")
_FULL_ID = re.compile(r"[!-~]{1,255}-[!-~]{1,255}-[0-9A-Fa-f]{32}")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

_innermost: contextvars.ContextVar[Request | None] = contextvars.ContextVar("logclient_request", default=None)


def current(agent: Agent | None = None) -> Request | None:
    """The innermost request of this context that has not ended: of `agent`, or of any."""
    return _running(_innermost.get(), agent)


class LineFormatter(logging.Formatter):
    """What a line is where the user has no formatter: the message, with the traceback below.

    Arguments that do not fit their message are shown beside it.
    """

    def format(self, record: logging.LogRecord) -> str:
        try:
            if not (record.exc_info or record.exc_text or record.stack_info):
                return record.getMessage()  # which is all that would be
            return super().format(record)
        except Exception:
            return f"{record.msg} % {record.args!r}"


class Agent:
    """Makes documents of one application in one environment.

    Args:
        sink: takes the documents, as ``sink(body, level, kind)``. Called in the thread that ends a
            request or logs a record. What it raises is counted and reported, never passed on; only
            ``event``, ``page``, ``ajax``, ``javascript`` and ``mobile`` pass it on.
        app_env: ``<app>-<env>``; no dash in the environment.
        zone: the importer's time zone, as it reads ``started_at`` without looking at the offset: a
            name of the time zone database, or a tzinfo; None: this machine's.
        host: None: this machine's name.
        cluster, datacenter, namespace, revision: said in each document when given.
        mask: parts of the names of headers and parameters whose values are masked.
        max_event_bytes: a longer document is not made.
        own_ids: a request has the id that it is given; else that is ``labels_request_id``.
        reporter: where own errors are said.
        lost: called for each document that was not made or not taken.
        moved: called with the number of ids that became other fields.

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
        host: str | None = None,
        cluster: str | None = None,
        datacenter: str | None = None,
        namespace: str | None = None,
        revision: str | None = None,
        mask: Iterable[str] = MASKED,
        max_event_bytes: int = MAX_EVENT_BYTES,
        own_ids: bool = True,
        reporter: Reporter | None = None,
        lost: Callable[[], object] | None = None,
        moved: Callable[[int], object] | None = None,
    ) -> None:
        split_app_env(app_env)
        if isinstance(mask, str):
            raise ConfigError("mask: must be several parts of names, not one string")
        self.sink = sink
        self.app_env = app_env
        self.zone = _zone(zone)
        self._clock = document.Clock(self.zone)
        self.masks = document.Masks(mask)
        self.failed = 0  # documents that were not made or not taken
        place = {
            "host": client.node_name() if host is None else host,
            "cluster": cluster,
            "datacenter": datacenter,
            "namespace": namespace,
            "revision": revision,
        }
        self.place = {name: document.name_text(value) for name, value in place.items() if value is not None}
        self.own_ids = own_ids
        self._encoder = Encoder(max_event_bytes=max_event_bytes, ecs=False, carriers=())
        self._reporter = reporter or Reporter()
        self._lost = lost
        self._moved = moved

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
        """A request that begins now; use it in a ``with`` statement, or call its ``end``.

        Args:
            action: ``<module>#<method>``; may be set later.
            request_id: with ``own_ids``, 32 hex digits; others are replaced. Without, it becomes the field
                ``labels_request_id``. None: the id of the event that carries it, unless somebody asks for
                ``Request.request_id``.
            trace_id: of the chain of requests that this one is part of.
            caller_id: ``<app>-<environment>-<request_id>`` of the request that asked for this one.
            caller_action: its action.
            request_info: ``method``, ``url``, ``headers``, ``query_parameters``, ``body_parameters``.
            fields: more, at the top of the document.
        """
        request = Request(self, action)
        if request_id is not None:
            request.request_id = request_id
        request.trace_id = trace_id
        request.caller_id = caller_id
        request.caller_action = caller_action
        request.request_info.update(request_info or {})
        request.fields.update(fields or {})
        return request

    def ship(self, record: logging.LogRecord, made: str | dict[str, Any] | None = None) -> bool:
        """A line of the request that runs in this context, else a document; False: there was neither.

        Args:
            record: an exception in it is named in the request: from ERROR on in ``exceptions``, below in
                ``soft_exceptions``.
            made: what a formatter has made of it: the text of the line, or fields with the text as
                ``message``; None: the message, with the traceback below.
        """
        try:
            fields: dict[str, Any] = {}
            if isinstance(made, dict):
                fields = dict(made)
                made = str(fields.pop("message", ""))
            text = self.formatter.format(record) if made is None else made
            request = current(self)
            while request is not None and not request.line(record.levelno, text, record.created):
                request = _running(request.parent, self)  # it has just ended
            if request is None:
                return self.record(record, text, fields)
            request.fields.update(fields)
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            if error is not None:
                request.exception(error, soft=record.levelno < logging.ERROR)
                request._shown = error
        except Exception as error:
            self.complain(error, f"a record of logger {getattr(record, 'name', '?')!r}")
            return False
        return True

    def text(self, text: str) -> dict[str, Any]:
        """The document of a plain text: one line, of the action ``Unknown#line``."""
        now = time.time()
        return {
            "action": "Unknown#line",
            **self._times(now),
            "total_time": 1.0,
            "code": 200,
            "severity": INFO,
            **self.place,
            "process_id": os.getpid(),
            "lines": [[INFO, document.timestamp(now, self.zone), document.line_text(text, INFO)]],
        }

    def complete(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        """A document of somebody's own, with a ``started_at``: without one the importer drops it.

        The time is that of ``started_ms`` if it has one, else now. What the importer drops all the same is
        left as it is, and a line says so, one a minute.
        """
        now = time.time()
        started = fields.get("started_at")
        if started is None:
            ms = fields.get("started_ms")
            if ms is None:
                return {**fields, **self._times(now)}
            try:
                started = self._clock.text(ms / 1000)
            except (TypeError, ValueError, OverflowError, OSError):
                started = self._clock.text(now)
            fields = {**fields, "started_at": started}
        if not self._clock.takes(started, now):
            self._reporter.complain(
                "logjam:started_at",
                f"started_at {document.text_of(started)[:40]!r}: importers drop this document; it must begin "
                f"as in {self._clock.text(now)[:19]}, and be within 48 hours of their clocks",
            )
        return fields

    def record(
        self, record: logging.LogRecord, text: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> bool:
        """A record outside of any request, as a document with one line; whether it was taken.

        The action is ``<logger>#<function>``, the code 200, or 500 from ERROR on.
        """
        try:
            severity = document.severity_of(record.levelno)
            line = document.line_text(record.getMessage() if text is None else text, severity)
            values = document.Values()
            made = {
                "action": document.action_name(f"{record.name}#{record.funcName or ''}"),
                **self._times(record.created),
                "total_time": 1.0,  # what the importer makes of 0
                "code": 500 if severity >= ERROR else 200,
                "severity": severity,
                **self.place,
                "process_id": record.process or os.getpid(),
                "lines": [[severity, document.timestamp(record.created, self.zone), line]],
            }
            error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
            if error is not None:
                made["exceptions" if severity >= ERROR else "soft_exceptions"] = [_error_name(error)]
            extra = {name: value for name, value in record.__dict__.items() if name not in _record_names()}
            self._add(made, {**extra, **(fields or {})}, values)
            self._put(made, LOGS, record.levelno)
        except Exception as error:
            self.complain(error, "a record")
            return False
        return True

    def event(self, label: object, **fields: Any) -> Any:
        """Something that happened to the whole application, such as a deployment; what the sink returned.

        Raises:
            EncodeError: it has no label.
        """
        text = document.cut(document.text_of(label), document.MAX_STRING)
        if not text:
            raise EncodeError("label: an event needs one")
        return self._small(EVENTS, {"label": text}, fields)

    def page(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> Any:
        """How long a browser took for a page; what the sink returned.

        Args:
            request_id: as in the X-Logjam-Request-Id header of the page's request: the importer takes
                each once, and only after that request.
            timings: 16 times in ms since 1970, of which those that did not happen are 0, as the browser's
                PerformanceTiming has them: navigationStart, fetchStart, domainLookupStart,
                domainLookupEnd, connectStart, connectEnd, requestStart, responseStart, responseEnd,
                domLoading, domInteractive, domContentLoadedEventStart, domContentLoadedEventEnd,
                domComplete, loadEventStart, loadEventEnd. A list, or the text of it with commas.
            action: of the page's request.
            fields: ``user_agent``, ``url`` and what else is known.

        Raises:
            EncodeError: the importer would drop it.
        """
        times = _timings(timings, PAGE_TIMINGS)
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

    def ajax(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> Any:
        """How long a browser waited for a request of a page: begin and end, in ms; as ``page``.

        Raises:
            EncodeError: the importer would drop it.
        """
        times = _timings(timings, AJAX_TIMINGS)
        if times[1] < times[0]:
            raise EncodeError("timings: the end is before the begin")
        return self._frontend(AJAX, request_id, times, action, fields)

    def javascript(
        self, description: object, *, action: object = None, request_id: str | None = None, **fields: Any
    ) -> Any:
        """An error in a browser's script; what the sink returned.

        Args:
            description: the importer counts errors by it: without addresses and numbers, if it can be.
            action: of the page's request.
            request_id: as in that request's X-Logjam-Request-Id header.
            fields: ``url``, ``line``, ``user_agent`` and what else is known.

        Raises:
            EncodeError: it has no description.
        """
        text = document.name_text(description)
        if not text:
            raise EncodeError("description: a javascript error needs one")
        known = {"description": text, "logjam_action": document.action_name("" if action is None else action)}
        if request_id is not None:
            known["logjam_request_id"] = document.name_text(request_id)
        return self._small(JAVASCRIPT, known, fields)

    def mobile(self, **fields: Any) -> Any:
        """What a mobile application reports; what the sink returned. The importer ignores these today."""
        return self._small(MOBILE, {}, fields)

    def complain(self, error: BaseException, what: str) -> None:
        """Count a document that was lost on our side, and say so: a line a minute per kind."""
        self.failed += 1
        if self._lost is not None:
            self._lost()
        self._reporter.complain(f"logjam:{type(error).__name__}", f"{what}: {type(error).__name__}: {error}")

    def _frontend(
        self, topic: int, request_id: str, times: list[int], action: object, fields: dict[str, Any]
    ) -> Any:
        if not isinstance(request_id, str) or not _FULL_ID.fullmatch(request_id):
            raise EncodeError("request_id: must be <app>-<environment>-<32 hex digits>, as the page's header")
        known = {
            "logjam_request_id": request_id,
            "logjam_action": document.action_name("" if action is None else action),
            "rts": ",".join(map(str, times)),
        }
        return self._small(topic, known, fields)

    def _small(self, topic: int, known: dict[str, Any], fields: Mapping[str, Any]) -> Any:
        made = {**known, **self._times(time.time()), **self.place}
        self._add(made, fields, document.Values())
        return self._put(made, topic, logging.INFO)

    def _times(self, seconds: float) -> dict[str, Any]:
        return {"started_at": self._clock.text(seconds), "started_ms": int(seconds * 1000)}

    def count_moved(self, count: int) -> None:
        """Count ids of the application's that became other fields."""
        if count and self._moved is not None:
            self._moved(count)

    def _add(self, made: dict[str, Any], fields: Mapping[str, Any], values: document.Values) -> None:
        self.count_moved(_add_fields(made, fields, values))

    def _put(self, made: Mapping[str, Any], topic: int, level: int) -> Any:
        body = self._encoder.encode(made)[0]
        return self.sink(body, level, topic << K_TOPIC_SHIFT | (K_ID1_TAKEN if "request_id" in made else 0))


class Pong(NamedTuple):
    """A device's answer to a ping."""

    host: str | None
    """What it calls itself; None: it did not take our ping for one."""
    seconds: float
    """From the ping's way into ZeroMQ to its answer."""


class Client(client.Client):
    """The client of ``logclient.connect("logjam://...")``; an `Agent` makes its documents.

    ``send`` and ``submit`` take documents: mappings, which get the time of the call where they say no
    ``started_at``, and bytes as they are; a text becomes a document with one line.
    """

    agent: Agent = client.UNMADE

    def _promise(self, config: Config) -> dict[str, str]:
        """Whether messages are answered: else nobody promised an order."""
        return {"mode": "async" if config.scheme == "logjam+push" else config.mode}

    def _documents(self, config: Config, engine: Engine) -> Agent:
        put, lost = client.outlets(engine)
        self.agent = Agent(
            put,
            config.path[1:],
            zone=config.zone,
            host=config.host_name,
            cluster=config.cluster,
            datacenter=config.datacenter,
            namespace=config.namespace,
            revision=config.revision,
            mask=(*MASKED, *config.mask),
            max_event_bytes=config.max_event_bytes,
            own_ids=config.identity != "id",
            reporter=engine.reporter,
            lost=lost,
            moved=lambda count: engine.handoff.count_changed(0, count),
        )
        return self.agent

    def _names(self, config: Config) -> dict[str, Any]:
        """A document carries its id in one of two fields, by its topic, which not everybody sees; names
        have no dots there."""
        names: dict[str, Any] = {"carriers": ("request_id", "uuid"), "ecs": False, "labels": "labels_"}
        return {**names, "complete": self.agent.complete}

    def request(self, action: object = None, **given: Any) -> Request:
        """A request that begins now; see ``Agent.request``."""
        return self.agent.request(action, **given)

    def event(self, label: object, **fields: Any) -> int:
        """Something that happened to the whole application; see ``Agent.event``. Its sequence."""
        return int(self.agent.event(label, **fields))

    def page(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """How long a browser took for a page; see ``Agent.page``. Its sequence."""
        return int(self.agent.page(request_id, timings, action=action, **fields))

    def ajax(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """How long a browser waited for a request of a page; see ``Agent.ajax``. Its sequence."""
        return int(self.agent.ajax(request_id, timings, action=action, **fields))

    def javascript(self, description: object, **fields: Any) -> int:
        """An error in a browser's script; see ``Agent.javascript``. Its sequence."""
        return int(self.agent.javascript(description, **fields))

    def mobile(self, **fields: Any) -> int:
        """What a mobile application reports; see ``Agent.mobile``. Its sequence."""
        return int(self.agent.mobile(**fields))

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the device for a sign of life, in line with what is sent already.

        Raises:
            ConnectFailed: no answer within `timeout` seconds, or no connection.
            ValueError: nothing comes back on a PUSH socket.
        """
        return self.pong(*self._engine.call("ping", None, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """What ``ping`` returns, of an answer and the time that it took."""
        return Pong(answer, seconds)


class Request:
    """One request while it runs; made by ``Agent.request``.

    May be used by several threads. What is said after its end is ignored.

    Attributes:
        action: ``<module>#<method>``; None until it is known.
        code: what it answered; None: 200, or 500 if an exception ended it.
        caller_id, caller_action, trace_id: who asked for it.
        ip: of who asked.
        find_action: what the action is by now, for ``caller_headers`` of a request that gets it at its end.
        request_info: see ``Agent.request``; masked when the document is made.
        fields: more for the top of the document. A name that the document uses itself gets a ``_``
            behind it; what ends with ``_time`` or ``_calls`` must be a number.
        started: seconds since 1970.
    """

    def __init__(self, agent: Agent, action: object = None) -> None:
        self.agent = agent
        self.action = action
        self.code: int | None = None
        self.caller_id: str | None = None
        self.caller_action: str | None = None
        self.trace_id: str | None = None
        self.ip: str | None = None
        self.request_info: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.find_action: Callable[[], object] | None = None
        self.ended = False
        self.parent = current()
        self.pid = os.getpid()
        self.started = time.time()
        self._began = time.perf_counter()
        self._took: float | None = None  # seconds; None: until the end
        self._waited = 0.0
        self._lock = threads.RLock()  # a destructor may come here in the middle of a measure
        self._lines: deque[list[Any]] = deque()  # [severity, seconds, text]
        self._size = 0
        self._severity = -1
        self._times: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._exceptions: dict[str, None] = {}
        self._soft: dict[str, None] = {}
        self._shown: BaseException | None = None  # the last one whose traceback is in a line
        self._id: str | None = None
        self._given: object = None  # what the application says, where it is not for it to say
        self._before: Request | None = None

    # -- what it is

    @property
    def request_id(self) -> str:
        """32 hex digits, new unless it is known. What is set becomes the field ``labels_request_id`` where
        ``own_ids`` of the agent is off."""
        if self._id is None:
            with self._lock:
                if self._id is None:
                    self._id = _new_id()
        return self._id

    @request_id.setter
    def request_id(self, value: str) -> None:
        if not self.agent.own_ids:
            self._given = value
            return
        text = document.text_of(value).replace("-", "").lower()
        self._id = text if _HEX_ID.fullmatch(text) else _new_id()

    @property
    def full_id(self) -> str:
        """``<app>-<environment>-<request_id>``: how other applications and browsers name this request."""
        return f"{self.agent.app_env}-{self.request_id}"

    def caller_headers(self) -> dict[str, str]:
        """The headers of a request that is made on behalf of this one."""
        headers = {"X-Logjam-Caller-Id": self.full_id}
        if self.trace_id is not None:
            headers["X-Logjam-Trace-Id"] = _header_text(document.name_text(self.trace_id))
        action, find = self.action, self.find_action
        if action is None and find is not None:
            action = find()
        if action is not None:
            action = _header_text(document.action_name(action))
            headers["X-Logjam-Action"] = headers["X-Logjam-Caller-Action"] = action
        return headers

    @property
    def severity(self) -> int:
        """The highest of its lines' so far; 1 (INFO) before the first."""
        return INFO if self._severity < 0 else self._severity

    # -- what happens in it

    def line(self, level: int, text: object, created: float | None = None) -> bool:
        """Add a line; False when the request has ended.

        Args:
            level: a level number of ``logging``.
            text: more than 2048 characters are cut, from ERROR on only more than 10,000 bytes.
            created: seconds since 1970; None: now.
        """
        if self.ended:
            return False
        severity = document.severity_of(level)
        if severity > self._severity:
            self._severity = severity
        if self._size > document.MAX_LINES_BYTES or len(self._lines) >= document.MAX_LINES:
            self._size = document.MAX_LINES_BYTES + 1
            return True
        said = document.line_text(text, severity)
        self._size += len(said) if said.isascii() else len(said.encode())
        line = [severity, time.time() if created is None else created, said]
        self._lines.append(line)
        if self.ended:
            # It ended in another thread meanwhile: either it took the line, or we take it back.
            try:
                self._lines.remove(line)
            except ValueError:
                return True
            return False
        return True

    def measure(self, name: str) -> Measure:
        """``with request.measure("db"):`` adds to ``db_time`` (ms) and ``db_calls``.

        What is measured inside a measure of the same name counts twice.

        Raises:
            ConfigError: no name of a metric, or one that the document uses itself (``total``, ``wait``).
        """
        return Measure(self, name)

    def add_time(self, name: str, seconds: float, calls: int = 1) -> None:
        """What ``measure`` does, for who has measured.

        Raises:
            ConfigError: as for ``measure``.
        """
        _check_metric(name)
        if not -_AGES < seconds < _AGES:
            seconds = 0.0
        with self._lock:
            self._times[name] = self._times.get(name, 0.0) + seconds
            self._calls[name] = self._calls.get(name, 0) + calls

    def waited(self, seconds: float) -> None:
        """It waited so long before it got here: part of its time, and its start is earlier."""
        self._waited = seconds if 0.0 < seconds < _AGES else 0.0

    def exception(self, error: BaseException, *, soft: bool = False) -> None:
        """Name an exception: one that failed the request, or a soft one that it got over."""
        names = self._soft if soft else self._exceptions
        if len(names) < MAX_EXCEPTIONS:
            names[_error_name(error)] = None

    def failed_with(self, error: BaseException) -> None:
        """An exception that nobody handled ended it: named, with its traceback as a line unless that was
        logged already, and code 500 if there is none yet."""
        try:
            self.exception(error)
            self._severity = max(self._severity, ERROR)
            if self.code is None:
                self.code = 500
            if self._shown is not error:
                import traceback

                self.line(logging.ERROR, "".join(traceback.format_exception(error)).rstrip())
        except Exception as ours:
            self.agent.complain(ours, "an exception of a request")

    # -- its context

    def active(self) -> Active:
        """``with request.active():`` makes it the innermost request of this context for a while, such as
        in a thread that was not given the context. Does not end it."""
        return Active(self)

    def __enter__(self) -> Request:
        self._before = _innermost.get()
        _innermost.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not by a token, and only if it is the innermost: a generator or a task may be left in another
        # context than it was entered in, or out of order, and must then take nothing away from others.
        if _innermost.get() is self:
            _innermost.set(_alive(self._before))
        self._before = None
        if error is not None and not isinstance(error, GeneratorExit):
            self.failed_with(error)
        self.end()

    # -- its end

    def stop_clock(self) -> None:
        """What comes now is not part of its time, such as work after the answer."""
        if self._took is None:
            self._took = time.perf_counter() - self._began

    def end(self) -> None:
        """Make the document and give it away; idempotent, never raises an Exception."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        try:
            # A forked child has a copy of the request: the parent's will be sent.
            if self.pid == os.getpid():
                self.stop_clock()
                made = self._document()
                self.agent._put(made, LOGS, 10 * (made["severity"] + 1))
        except Exception as error:
            self.agent.complain(error, "a request")
        finally:
            self.parent = _alive(self.parent)  # else each would keep the one it was made in, for ever
            self.fields = {}
            self.request_info = {}
            self.find_action = None
            self._shown = None

    def _document(self) -> dict[str, Any]:
        agent = self.agent
        values = document.Values()
        total = (self._took or 0.0) + self._waited
        lines = self._taken_lines()
        made: dict[str, Any] = {
            "action": document.action_name("" if self.action is None else self.action),
            **agent._times(self.started - self._waited),
            # The importer makes 1.0 of 0.
            "total_time": max(0.001, round(total * 1000.0, 3)),
            "code": _code(self.code),
            "severity": self.severity,
        }
        if self._id is not None:
            made["request_id"] = self._id
        for name in ("trace_id", "caller_id", "caller_action"):
            value = getattr(self, name)
            if value is not None:
                made[name] = document.name_text(value)
        made.update(agent.place)
        made["process_id"] = self.pid
        if self.ip is not None:
            made["ip"] = document.name_text(self.ip)
        if self._waited:
            made["wait_time"] = round(self._waited * 1000.0, 3)
        for name, seconds in list(self._times.items()):
            made[f"{name}_time"] = round(seconds * 1000.0, 3)
            made[f"{name}_calls"] = self._calls.get(name, 0)
        if self._exceptions:
            made["exceptions"] = list(self._exceptions)
        if self._soft:
            made["soft_exceptions"] = list(self._soft)
        if self.request_info and isinstance(self.request_info, Mapping):
            made["request_info"] = self._info(values)
        if lines:
            made["lines"] = lines
        if self._given is not None:
            made["labels_request_id"] = document.name_text(self._given)
            agent.count_moved(1)
        agent._add(made, self.fields, values)
        return made

    def _taken_lines(self) -> list[list[Any]]:
        time_text = document.timestamps(self.agent.zone)
        lines: list[list[Any]] = []
        dropped = self._size > document.MAX_LINES_BYTES
        room = document.MAX_LINES_BYTES
        last = self.started
        while self._lines:
            severity, created, text = self._lines.popleft()
            room -= len(text) if text.isascii() else len(text.encode())
            # Bounds are kept here: two threads that add a line at once may both have found room.
            if room < 0 or len(lines) == document.MAX_LINES - 1:
                dropped = True
                continue
            lines.append([severity, _line_time(created, time_text), text])
            last = created
        if dropped:
            lines.append([self.severity, _line_time(last, time_text), document.LINES_DROPPED])
        return lines

    def _info(self, values: document.Values) -> dict[str, Any]:
        masks = self.agent.masks
        given = dict(self.request_info)
        info: dict[str, Any] = {}
        values.masks = masks
        try:
            # The importer takes these two for strings without a look.
            if given.get("method") is not None:
                info["method"] = values.string(given["method"])
            if given.get("url") is not None:
                info["url"] = values.string(masks.url(document.text_of(given["url"])))
            headers = values.mapping(given.get("headers", {}))
            for name, value in headers.items():
                if isinstance(value, str) and name.lower() in ("referer", "referrer", "location"):
                    headers[name] = masks.url(value)
            if headers:
                info["headers"] = headers
            for name, value in given.items():
                if name in ("query_parameters", "body_parameters"):
                    info[name] = values.mapping(value)
                elif name not in ("method", "url", "headers"):
                    info.update(values.mapping({name: value}))
        finally:
            values.masks = None
        return info

    def __repr__(self) -> str:
        return f"<Request {document.action_name('' if self.action is None else self.action)}>"


class Active:
    """See ``Request.active``."""

    __slots__ = ("_before", "_request")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._before: Request | None = None

    def __enter__(self) -> Request:
        self._before = _innermost.get()
        _innermost.set(self._request)
        return self._request

    def __exit__(self, *_: object) -> None:
        # What was entered inside and never left, such as a generator's request, is out of it now too.
        inner = _innermost.get()
        while inner is not None and inner is not self._request:
            inner = inner.parent
        if inner is not None:
            _innermost.set(_alive(self._before))


class Measure:
    """See ``Request.measure``."""

    __slots__ = ("_began", "_name", "_request")

    def __init__(self, request: Request, name: str) -> None:
        _check_metric(name)
        self._request = request
        self._name = name
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._request.add_time(self._name, time.perf_counter() - self._began)


def _running(request: Request | None, agent: Agent | None) -> Request | None:
    """The request, or the next one around it, that lines of this process and this agent belong to."""
    pid = os.getpid()
    while request is not None and (
        request.ended or request.pid != pid or not (agent is None or request.agent is agent)
    ):
        request = request.parent
    return request


def _alive(request: Request | None) -> Request | None:
    while request is not None and request.ended:
        request = request.parent
    return request


def _zone(zone: str | datetime.tzinfo | None) -> datetime.tzinfo | None:
    if zone is None or isinstance(zone, datetime.tzinfo):
        return zone
    if zone == "UTC":  # there also where no time zone database is
        return datetime.UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError):
        raise ConfigError("zone: must be a name of the time zone database, such as Europe/Berlin") from None


def _new_id() -> str:
    """A UUID of version 4, without the module that makes them (it costs milliseconds)."""
    digits = bytearray(os.urandom(16))
    digits[6] = digits[6] & 0x0F | 0x40
    digits[8] = digits[8] & 0x3F | 0x80
    return digits.hex()


def _header_text(text: str) -> str:
    """As a header can carry it, one line of ASCII: more is not worth an error."""
    return re.sub(r"[^ -~]", "?", text)


def _error_name(error: BaseException) -> str:
    """``package::module::Class``: the importer replaces dots. Builtins by their name alone."""
    kind = type(error)
    module = getattr(kind, "__module__", "")
    name = kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    return document.name_text(name.replace(".", "::").replace("$", "_"))


def _code(code: object) -> int:
    if code is None:
        return 200
    try:
        number = int(code)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 500
    return int(number) if -(1 << 31) <= number < 1 << 31 else 500


def _check_metric(name: str) -> None:
    if not isinstance(name, str) or not _METRIC.fullmatch(name):
        raise ConfigError("name: a metric's is letters, digits and _, up to 63, a letter first")
    if f"{name}_time" in document.OWN:
        raise ConfigError(f"name: {name}_time is the document's own")


def _timings(given: Sequence[int] | str, count: int) -> list[int]:
    try:
        found = [int(time) for time in (given.split(",") if isinstance(given, str) else given)]
    except (TypeError, ValueError, OverflowError):
        found = []
    if len(found) != count or not all(0 <= time < 1 << 62 for time in found):
        raise EncodeError(f"timings: must be {count} times in ms, whole and not negative")
    return found


def _line_time(seconds: float, time_text: Callable[[float], str]) -> str:
    try:
        return time_text(seconds)
    except (OverflowError, ValueError, OSError, TypeError):  # somebody's own record
        return time_text(0.0)


def _add_fields(made: dict[str, Any], fields: Mapping[str, Any], values: document.Values) -> int:
    """The user's fields, under names that are free; how many of them were ids."""
    ids = 0
    alike = document.Alike()
    if not isinstance(fields, Mapping):  # somebody has put something else there
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
            key = f"{document.cut(key, document.MAX_NAME - 1)}_"  # the importer would take it for a number
        if key in made or key in document.OWN:
            other = alike.other(key, made)
            if other is None:
                continue
            key = other
        made[key] = plain
    return ids


_names: frozenset[str] = frozenset()


def _record_names() -> frozenset[str]:
    """The attributes of every record; the others are the user's ``extra``."""
    global _names
    if not _names:
        plain = logging.LogRecord("", 0, "", 0, "", None, None).__dict__
        _names = frozenset({*plain, "message", "asctime", "taskName"})
    return _names


def __getattr__(name: str) -> Any:
    if name != "Subscriber":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only for who subscribes: it needs pyzmq at once.
    from logclient.collectors.subscriber import Subscriber

    return Subscriber
