"""Words about one client: its last error, and lines for the error log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from logclient.delivery import error_log
from logclient.delivery.contract import Fatal

if TYPE_CHECKING:
    from logclient._ext.pump import CompiledPump
    from logclient._ext.queue import EventQueue
    from logclient.delivery.contract import Core
    from logclient.delivery.error_log import ErrorLog
    from logclient.delivery.watching import Watcher

_ENDS = {
    "silence": "no sign of life from the server in time",
    "stalled": "the server is alive, but acknowledges nothing",
    "memory": "out of memory",
}


class Diagnostics:
    """The errors of one client: the last one, and lines for the error log.

    Args:
        queue: lets a caller's thread write the lines that the sender may not write.

    Attributes:
        watcher: tells the application of errors and outcomes; None: it does not want to know.
    """

    def __init__(self, url: str, log: ErrorLog, queue: EventQueue) -> None:
        self.url = url
        self.log = log
        self.last_error = ""
        self.watcher: Watcher | None = None
        self._queue = queue

    def complain(self, text: str, kind: str) -> None:
        """Remember the error, and write a line unless one of its kind was written lately."""
        self.last_error = text
        if self.watcher is not None:
            self.watcher.failed(text)
        self.log.complain(kind, text)
        if error_log.has_deferred():
            self._queue.needs_sender = True

    def warn(self, url: str, text: str) -> None:
        """Report something about a connection that is being made all the same."""
        self.complain(f"{url}: {text}", "renewal")


def explain_end(
    end: str, core: Core, pump: CompiledPump, unanswered: int, acknowledged: bool
) -> tuple[str, Exception | None, bool]:
    """Describe the end of a connection.

    Args:
        end: the result of ``PumpGroup.run``, or a text of its own.
        core: has the violation that it found.
        pump: has the error behind the end.
        unanswered: events in flight, where the server acknowledges events.
        acknowledged: whether it has acknowledged some on this connection.

    Returns:
        The text, the error behind it, and whether a new connection is useless.
    """
    if end == "protocol":
        fatal = pump.fatal
        for event in core.events_received() if fatal is None else ():
            fatal = event if isinstance(event, Fatal) else fatal
        if fatal is None:
            return "the server broke the protocol", None, False
        return str(fatal.error), fatal.error, fatal.forever
    if end == "error":
        if pump.failure is not None:
            return describe_error(pump.failure), pump.failure, False
        number = pump.errno
        return os.strerror(number).lower() if number else "the connection broke", None, False
    if end != "closed":
        return _ENDS.get(end, end), None, False
    if not unanswered:
        return "the server closed the connection", None, False
    what = "everything" if acknowledged else "anything"
    return f"the server closed the connection before it acknowledged {what}", None, False


def describe_endpoint(endpoint: Any) -> str:
    """Write an endpoint as ``host:port``."""
    return ":".join(str(part) for part in endpoint) if isinstance(endpoint, tuple) else str(endpoint)


def describe_error(error: BaseException) -> str:
    """Describe an error in a few lower-case words."""
    if isinstance(error, MemoryError):
        return "out of memory"
    words = error.strerror if isinstance(error, OSError) else None
    return words.lower() if words else str(error) or type(error).__name__
