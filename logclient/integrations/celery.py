"""Celery: every event of a task has the name and the id of the task, and the request that has sent it.

The id and the trace of the request go with the message of its tasks. So both the program that sends tasks and
the worker call `install`. docs/web.md lists the fields.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from logclient.errors import MissingExtra
from logclient.integrations.request_fields import RequestLog, sane_id
from logclient.records.context import Binding, bound

__all__ = ["install"]

_HEADERS = {"http.request.id": "logclient_request_id", "trace.id": "logclient_trace_id"}
_BINDING, _BEGUN = "logclient_binding", "logclient_begun"
_TRACE = re.compile(r"[0-9a-f]{32}")


def install(app: Any, *, logger: str | None = None, skip: Collection[str] = ()) -> None:
    """Bind the fields of each task while it runs, and send those of the request with each task.

    Args:
        app: the application. Celery's signals are those of the process, so its other applications have the
            fields, too.
        logger: the name of a logger that gets one record for each finished task.
        skip: names of tasks that have no record unless they fail, such as ``["shop.tasks.beat", "ping.*"]``.

    Raises:
        MissingExtra: Celery is not installed.
        TypeError: it is not an application of Celery.
    """
    try:
        from celery import Celery, signals
    except ImportError:
        raise MissingExtra("celery") from None
    if not isinstance(app, Celery):
        raise TypeError(f"app: must be a celery.Celery, got {type(app).__name__}")
    connect(signals, logger, skip)


def connect(signals: Any, logger: str | None, skip: Collection[str] = ()) -> None:
    """Connect to the signals of tasks; a later call replaces the logger."""
    log = RequestLog.make(logger, skip)
    signals.before_task_publish.connect(_send_request, weak=False, dispatch_uid="logclient.request")
    signals.task_prerun.connect(_begin, weak=False, dispatch_uid="logclient.begin")
    signals.task_postrun.disconnect(dispatch_uid="logclient.end")  # of an earlier call, with another logger
    signals.task_postrun.connect(partial(_end, log), weak=False, dispatch_uid="logclient.end")


def _send_request(headers: dict[str, Any], **_: Any) -> None:
    fields = bound()
    for name, header in _HEADERS.items():
        if _is_fit(name, given := fields.get(name)):
            headers[header] = given


def _is_fit(name: str, given: object) -> bool:
    """Return whether an id goes with a message: a broker may refuse others."""
    return isinstance(given, str) and bool(sane_id(given) if name != "trace.id" else _TRACE.fullmatch(given))


def _begin(task_id: str, task: Any, **_: Any) -> None:
    fields: dict[str, Any] = {"celery.task.name": task.name, "celery.task.id": task_id}
    request = task.request
    for name, header in _HEADERS.items():
        if _is_fit(name, given := request.get(header)):
            fields[name] = given
    # There is one request for each run of a task, also of tasks that run within another one.
    setattr(request, _BINDING, Binding(fields, request=True))
    setattr(request, _BEGUN, time.perf_counter())


def _end(log: RequestLog | None, task: Any, state: str | None = None, **_: Any) -> None:
    binding = getattr(task.request, _BINDING, None)
    if binding is None:
        return
    state = state or "FAILURE"  # what a caller in this process gets itself has no state
    try:
        if log is not None and not log.skips(task.name, 500 if state == "FAILURE" else 200):
            took = time.perf_counter() - getattr(task.request, _BEGUN)
            fields = {"celery.task.state": state, "event.duration": round(took * 1e9)}
            log.write("%s: %s in %.1f ms", task.name, state, took * 1e3, fields=fields)
    finally:
        delattr(task.request, _BINDING)
        binding.reset()
