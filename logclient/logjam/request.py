"""Requests: the lines that an application logs while it serves a request become one document."""

from __future__ import annotations

import contextvars
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from logclient import threads
from logclient.errors import ConfigError
from logclient.logjam import document
from logclient.logjam.core import LOGS
from logclient.logjam.document import ERROR, INFO
from logclient.standard import os

MAX_EXCEPTIONS = 100

_LONGEST = 1e9  # seconds that a request may take

_HEX_ID = re.compile(r"[0-9a-f]{32}")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

innermost: contextvars.ContextVar[Request | None] = contextvars.ContextVar("logclient_request", default=None)
"""The request of this context, which may have ended."""


def current(agent: Any = None) -> Request | None:
    """Return the innermost request of this context that has not ended.

    Args:
        agent: consider only requests of this agent; None: of any agent.

    Returns:
        The request, or None if there is none.
    """
    return running(innermost.get(), agent)


class Request:
    """One request while it runs. ``Agent.request`` makes it.

    Several threads may use it. Calls after its end have no effect.

    Args:
        agent: the agent that ships the document.
        action: ``<module>#<method>``; None: set it later.

    Attributes:
        action: ``<module>#<method>``; None until it is known.
        code: the status code of the answer; None: 200, or 500 if an exception ended the request.
        caller_id, caller_action, trace_id: see ``Agent.request``.
        ip: the address of the client.
        find_action: a function that returns the action so far. ``caller_headers`` calls it while `action` is
            None.
        request_info: see ``Agent.request``; masked when the document is made.
        fields: more fields at the top of the document. A name that the document uses itself gets a ``_``
            appended; the value of a name that ends with ``_time`` or ``_calls`` must be a number.
        started: the time of its begin, in seconds since 1970.
        ended: whether it has ended.
    """

    def __init__(self, agent: Any, action: object = None) -> None:
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
        self._took: float | None = None  # seconds; None while it runs
        self._waited = 0.0
        self._lock = threads.RLock()  # a destructor may come here in the middle of a measure
        self._lines: deque[list[Any]] = deque()  # [severity, seconds, text]
        self._size = 0
        self._severity = -1
        self._measured: dict[str, tuple[float, int]] = {}  # seconds and calls
        self._exceptions: dict[str, None] = {}
        self._soft: dict[str, None] = {}
        self._shown: BaseException | None = None  # the last exception whose traceback is in a line
        self._id: str | None = None
        self._given: object = None  # the application's id, when it must not be the request's
        self._before: Request | None = None

    @property
    def request_id(self) -> str:
        """The id of the request: 32 hex digits, made at the first access.

        If ``own_ids`` of the agent is False, a value that you set becomes the field ``labels_request_id``.
        """
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
        """The id of the request for other applications: ``<app>-<environment>-<request_id>``."""
        return f"{self.agent.app_env}-{self.request_id}"

    def caller_headers(self) -> dict[str, str]:
        """Return the HTTP headers for a call of another application on behalf of this request."""
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
        """The highest severity of its lines so far; 1 (INFO) before the first."""
        return INFO if self._severity < 0 else self._severity

    def line(self, level: int, text: object, created: float | None = None) -> bool:
        """Add a line.

        Args:
            level: a level number of ``logging``.
            text: the text of the line. It is cut at 2048 characters, or from ERROR on at 10,000 bytes.
            created: seconds since 1970; None: now.

        Returns:
            False if the request has ended.
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
            # It ended in another thread meanwhile. Either that has taken the line, or we remove it.
            try:
                self._lines.remove(line)
            except ValueError:
                return True
            return False
        return True

    def measure(self, name: str) -> Measure:
        """Return a context manager that measures the time of its block.

        It adds the time to the field ``<name>_time``, in ms, and 1 to ``<name>_calls``. The time of a block
        inside another one of the same name counts twice.

        Args:
            name: the name of the metric: a letter, then letters, digits and ``_``, 63 characters at most.

        Raises:
            ConfigError: the name breaks this rule, or the document uses it itself (``total``, ``wait``).
        """
        return Measure(self, name)

    def add_time(self, name: str, seconds: float, calls: int = 1) -> None:
        """Add a measured time, as ``measure`` does.

        Args:
            name: the name of the metric.
            seconds: the time.
            calls: the number of calls that took this time.

        Raises:
            ConfigError: as for ``measure``.
        """
        _check_metric(name)
        if not -_LONGEST < seconds < _LONGEST:
            seconds = 0.0
        with self._lock:
            before, called = self._measured.get(name, (0.0, 0))
            self._measured[name] = before + seconds, called + calls

    def waited(self, seconds: float) -> None:
        """Set how long the request waited in a queue before this process took it.

        The wait is part of the request's time, and its start moves back by as much.

        Args:
            seconds: the duration of the wait.
        """
        self._waited = seconds if 0.0 < seconds < _LONGEST else 0.0

    def exception(self, error: BaseException, *, soft: bool = False) -> None:
        """Add the name of an exception to the document.

        Args:
            error: the exception.
            soft: True: the request has recovered from it, and its name goes to ``soft_exceptions`` instead of
                ``exceptions``.
        """
        names = self._soft if soft else self._exceptions
        if len(names) < MAX_EXCEPTIONS:
            names[error_name(error)] = None

    def failed_with(self, error: BaseException) -> None:
        """Note the unhandled exception that ended the request.

        Its name goes to ``exceptions``. Its traceback becomes a line, unless it was logged already. The code
        becomes 500 if none is set.

        Args:
            error: the exception.
        """
        try:
            self.exception(error)
            self._severity = max(self._severity, ERROR)
            if self.code is None:
                self.code = 500
            if self._shown is not error:
                self.line(logging.ERROR, self.agent.trace(error).rstrip())
        except Exception as ours:
            self.agent.note_lost(ours, "an exception of a request")

    @contextmanager
    def active(self) -> Iterator[Request]:
        """Return a context manager that makes this the innermost request of the context, without ending it.

        Use it in a thread that does not run in a copy of the request's context.
        """
        before = innermost.get()
        innermost.set(self)
        try:
            yield self
        finally:
            # Also ends requests that were entered inside and never left, such as that of a generator.
            inner = innermost.get()
            while inner is not None and inner is not self:
                inner = inner.parent
            if inner is not None:
                innermost.set(running(before))

    def __enter__(self) -> Request:
        self._before = innermost.get()
        innermost.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Without a token, and only if this is the innermost: a generator or a task may end in another context
        # than it began in, or out of order, and must not affect the requests of others.
        if innermost.get() is self:
            innermost.set(running(self._before))
        self._before = None
        if error is not None and not isinstance(error, GeneratorExit):
            self.failed_with(error)
        self.end()

    def stop_clock(self) -> None:
        """Stop measuring the request's time, for example before work after the answer."""
        if self._took is None:
            self._took = time.perf_counter() - self._began

    def end(self) -> None:
        """End the request and ship its document. May be called again. Never raises an ``Exception``."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        try:
            # A forked child has a copy of the request; the parent sends it.
            if self.pid == os.getpid():
                self.stop_clock()
                made = self._document()
                self.agent.put(made, LOGS, 10 * (made["severity"] + 1))
        except Exception as error:
            self.agent.note_lost(error, "a request")
        finally:
            self.parent = running(self.parent)  # else each request would keep its parent for ever
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
            "action": document.action_name(self.action),
            **agent.times(self.started - self._waited),
            # The importer turns 0 into 1.0.
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
        for name, (seconds, calls) in list(self._measured.items()):
            made[f"{name}_time"] = round(seconds * 1000.0, 3)
            made[f"{name}_calls"] = calls
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
            agent.moved(1)
        agent.add_fields(made, self.fields, values)
        return made

    def _taken_lines(self) -> list[list[Any]]:
        time_of = self.agent.clock.line_time
        lines: list[list[Any]] = []
        dropped = self._size > document.MAX_LINES_BYTES
        room = document.MAX_LINES_BYTES
        last = self.started
        while self._lines:
            severity, created, text = self._lines.popleft()
            room -= len(text) if text.isascii() else len(text.encode())
            # Check the bounds again: two threads that added a line at once may both have found room.
            if room < 0 or len(lines) == document.MAX_LINES - 1:
                dropped = True
                continue
            lines.append([severity, time_of(created), text])
            last = created
        if dropped:
            lines.append([self.severity, time_of(last), document.LINES_DROPPED])
        return lines

    def _info(self, values: document.Values) -> dict[str, Any]:
        masks = self.agent.masks
        given = dict(self.request_info)
        info: dict[str, Any] = {}
        values.masks = masks
        try:
            # The importer assumes that these two are strings.
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
        return f"<Request {document.action_name(self.action)}>"


class Measure:
    """The context manager of ``Request.measure``."""

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


def running(request: Request | None, agent: Any = None) -> Request | None:
    """Return the request, or the next one around it, that takes lines of this process and of `agent`.

    None: of any agent.
    """
    pid = os.getpid()
    while request is not None and (
        request.ended or request.pid != pid or not (agent is None or request.agent is agent)
    ):
        request = request.parent
    return request


def _new_id() -> str:
    """Return a UUID of version 4, without the module for UUIDs, whose import takes milliseconds."""
    digits = bytearray(os.urandom(16))
    digits[6] = digits[6] & 0x0F | 0x40
    digits[8] = digits[8] & 0x3F | 0x80
    return digits.hex()


def _header_text(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)


def error_name(error: BaseException) -> str:
    """Return ``package::module::Class``, as the importer replaces dots, or the class alone for builtins."""
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
    return number if -(1 << 31) <= number < 1 << 31 else 500


def _check_metric(name: str) -> None:
    if not isinstance(name, str) or not _METRIC.fullmatch(name):
        raise ConfigError("name: a metric's is letters, digits and _, up to 63, a letter first")
    if f"{name}_time" in document.OWN:
        raise ConfigError(f"name: {name}_time is the document's own")
