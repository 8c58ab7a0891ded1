"""The others, used as their documentation says. A peer that is not installed is left out of the table."""

from __future__ import annotations

import logging
import time
from logging.handlers import QueueHandler
from queue import Empty, SimpleQueue
from typing import Any


class EmptyHandler(logging.Handler):
    """What any handler costs: filter, lock, and an `emit` that does nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        pass


class EmptyHandle(logging.Handler):
    """What a logging call costs before any handler: no filter, no lock."""

    def handle(self, record: logging.LogRecord) -> bool:  # type: ignore[override]
        return True


def drain(queue: SimpleQueue[Any]) -> int:
    """Take everything out; how many there were."""
    n = 0
    try:
        while True:
            queue.get_nowait()
            n += 1
    except Empty:
        return n


def queue_handler() -> tuple[QueueHandler, SimpleQueue[Any]]:
    """The standard library's hand-off to another thread."""
    queue: SimpleQueue[Any] = SimpleQueue()
    return QueueHandler(queue), queue  # type: ignore[arg-type]


class _NullTransport:
    """Takes what the worker sends and counts it."""

    def __init__(self, **_: object) -> None:
        self.events = 0

    def send(self, events: list[bytes], **_: object) -> None:
        self.events += len(events)

    def close(self) -> None:
        pass


class LogstashAsync:
    """python-logstash-async: its handler, memory cache, a transport that sends nowhere."""

    def __init__(self) -> None:
        from logstash_async.handler import AsynchronousLogstashHandler

        self.transport = _NullTransport()
        self.handler = AsynchronousLogstashHandler(
            "127.0.0.1", 1, database_path=None, transport=self.transport
        )
        self._seen = 0

    def settle(self, expected: int) -> int:
        """Events its worker took since the last call; it looks every two seconds."""
        self.handler.flush()
        deadline = time.monotonic() + 20
        while self.transport.events < self._seen + expected and time.monotonic() < deadline:
            time.sleep(0.05)
        n, self._seen = self.transport.events - self._seen, self.transport.events
        return n

    def close(self) -> None:
        self.handler.close()


def logstash_async() -> LogstashAsync | None:
    """None when it is not installed."""
    try:
        return LogstashAsync()
    except ImportError:
        return None
