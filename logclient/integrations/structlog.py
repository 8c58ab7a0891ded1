"""structlog: a logger factory that ships event dicts as ECS documents.

The event dict is encoded once, compiled: let no processor render it. See docs/other-loggers.md for what the
names of structlog become in ECS; all other fields are at the top of the document, as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import NoneType
from typing import Any

from logclient.integrations.documents import FrontEnd, add_fields, begin, text

__all__ = ["Logger", "LoggerFactory"]

_LEVELS = {
    "debug": 10, "info": 20, "msg": 20, "log": 20, "warning": 30, "warn": 30, "error": 40, "exception": 40,
    "err": 40, "failure": 50, "critical": 50, "fatal": 50,
}  # fmt: skip
_NAMES = {10: "debug", 20: "info", 30: "warning", 40: "error", 50: "critical"}
_ORIGIN = {
    "pathname": "log.origin.file.path",
    "filename": "log.origin.file.name",
    "lineno": "log.origin.file.line",
    "func_name": "log.origin.function",
    "process": "process.pid",
    "process_name": "process.name",
    "thread": "process.thread.id",
    "thread_name": "process.thread.name",
}  # what ``structlog.processors.CallsiteParameterAdder`` adds


class LoggerFactory(FrontEnd):
    """A logger factory for ``structlog.configure``: its loggers share one client.

    Its arguments are those of `FrontEnd`. ``client.flush()`` waits for the events; the end of the process
    delivers them, for ``atexit_timeout`` at most.
    """

    _library = "structlog"

    def __call__(self, *args: Any) -> Logger:
        """Return a logger; structlog calls this."""
        return Logger(self, args[0] if args and isinstance(args[0], str) else "")

    def _document(self, name: str, level: int, event: dict[str, Any]) -> tuple[dict[str, Any], int, str]:
        shown = event.pop("level", None)
        if isinstance(shown, str):
            level = _LEVELS.get(shown.lower(), level)
        else:
            shown = _NAMES[level]
        name = text(event.pop("logger", None) or event.pop("logger_name", None) or name)
        document = begin(event.pop("timestamp", None), shown, event.pop("event", None), name)
        traces = [event.pop(key) for key in ("exception", "stack") if isinstance(event.get(key), str)]
        exc_info = event.pop("exc_info", None)
        if isinstance(exc_info, (bool, int, str)):
            exc_info = sys.exc_info() if exc_info else None
        elif not isinstance(exc_info, (BaseException, tuple, NoneType)):
            event["exc_info"], exc_info = exc_info, None
        self._add_error(document, exc_info, "\n".join(traces))
        for key in _ORIGIN.keys() & event.keys():
            document[_ORIGIN[key]] = event.pop(key)
        add_fields(document, event)
        return document, level, name


def _method(level: int) -> Callable[..., None]:
    def log(self: Logger, /, *rendered: Any, **event: Any) -> None:
        if rendered:
            words = "makes text of each event, so its fields are lost in it: leave that processor out"
            words = f"structlog: the last processor {words}"
            self._factory.client.warn_limited("structlog:rendered", words)
            event["event"] = rendered[0]
        self._factory._ship(self.name, level, event)

    return log


class Logger:
    """What structlog's bound loggers wrap. A method gets the event dict as keywords, and never raises."""

    disabled = False  # for structlog.stdlib.filter_by_level

    def __init__(self, factory: LoggerFactory, name: str) -> None:
        self._factory = factory
        self.name = name

    def getEffectiveLevel(self) -> int:
        """Return the level below which nothing is sent; for ``structlog.stdlib.filter_by_level``."""
        return self._factory.level

    def isEnabledFor(self, level: int) -> bool:
        """Return whether events of a level are sent; for the same."""
        return level >= self._factory.level

    debug = _method(10)
    info = msg = log = _method(20)
    warning = warn = _method(30)
    error = exception = err = _method(40)
    critical = fatal = failure = _method(50)
