"""The peers, used according to their documentation. The table omits peers that are not installed."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from bench.program import Program

ROOT = Path(__file__).resolve().parent.parent


class EmptyHandler(logging.Handler):
    """A handler with an empty `emit`: the cost of any handler, with filter and lock."""

    def emit(self, record: logging.LogRecord) -> None:
        pass


class EmptyHandle(logging.Handler):
    """A handler with an empty `handle`: the cost of a logging call without filter and lock."""

    def handle(self, record: logging.LogRecord) -> bool:  # type: ignore[override]
        return True


def drain(queue: SimpleQueue[Any]) -> int:
    """Empty the queue and return the number of items."""
    n = 0
    try:
        while True:
            queue.get_nowait()
            n += 1
    except Empty:
        return n


def queue_handler() -> tuple[QueueHandler, SimpleQueue[Any]]:
    """Make the standard library's handler for another thread, with its queue."""
    queue: SimpleQueue[Any] = SimpleQueue()
    return QueueHandler(queue), queue  # type: ignore[arg-type]


def structlog_exception() -> tuple[str, Callable[[Any], object]] | None:
    """Return structlog's transformer of exceptions, without local variables; None: not installed."""
    try:
        from structlog.tracebacks import ExceptionDictTransformer
    except ImportError:
        return None
    return "structlog, dictionaries", ExceptionDictTransformer(show_locals=False)


def sentry_exception() -> tuple[str, Callable[[Any], object]] | None:
    """Return what sentry-sdk makes an event with, with its default options; None: not installed."""
    try:
        from sentry_sdk.consts import DEFAULT_OPTIONS
        from sentry_sdk.utils import event_from_exception
    except ImportError:
        return None

    def call(exc_info: Any) -> object:
        return event_from_exception(exc_info, client_options=DEFAULT_OPTIONS)

    return "sentry-sdk, event", call


class _NullTransport:
    """A transport that only counts the worker's events."""

    def __init__(self, **_: object) -> None:
        self.events = 0

    def send(self, events: list[bytes], **_: object) -> None:
        self.events += len(events)

    def close(self) -> None:
        pass


class LogstashAsync:
    """python-logstash-async with its handler, its memory cache, and a transport that sends nothing."""

    def __init__(self) -> None:
        from logstash_async.handler import AsynchronousLogstashHandler

        self.transport = _NullTransport()
        self.handler = AsynchronousLogstashHandler(
            "127.0.0.1", 1, database_path=None, transport=self.transport
        )
        self._seen = 0

    def settle(self, expected: int) -> int:
        """Wait for the worker, which polls every two seconds, and return the events since the last call."""
        self.handler.flush()
        deadline = time.monotonic() + 20
        while self.transport.events < self._seen + expected and time.monotonic() < deadline:
            time.sleep(0.05)
        n, self._seen = self.transport.events - self._seen, self.transport.events
        return n

    def close(self) -> None:
        self.handler.close()


def logstash_async() -> LogstashAsync | None:
    """Make the contender; None: it is not installed."""
    try:
        return LogstashAsync()
    except ImportError:
        return None


def pylogbeat(
    port: int, bodies: Sequence[bytes], windows: int, ca: str | None = None
) -> Callable[[], None] | None:
    """Make the work for pylogbeat: one window after the other, each compressed and acknowledged.

    `ca` is the file with the authority of the server's certificate; None: a plain connection.
    """
    try:
        from pylogbeat import PyLogBeatClient
    except ImportError:
        return None
    client = PyLogBeatClient("127.0.0.1", port, ssl_enable=ca is not None, ca_certs=ca)
    client.connect()

    def work() -> None:
        for _ in range(windows):
            client.send(bodies)

    return work


def logstash_beats(
    port: int, made: Sequence[logging.LogRecord], times: int, stack: ExitStack
) -> Callable[[], None] | None:
    """Make the work for python-logstash-async end to end: handler, memory cache, transport for Beats."""
    try:
        from logstash_async.handler import AsynchronousLogstashHandler
        from logstash_async.transport import BeatsTransport
    except ImportError:
        return None
    acked = threading.Semaphore(0)

    class Counting(BeatsTransport):  # type: ignore[misc]
        def send(self, events: list[bytes], **options: object) -> None:
            super().send(events, **options)
            acked.release(len(events))

    transport = Counting("127.0.0.1", port, False, False, None, None, None, None)
    handler = AsynchronousLogstashHandler("127.0.0.1", port, database_path=None, transport=transport)
    stack.callback(handler.close)

    def work() -> None:
        for _ in range(times):
            for record in made:
                handler.handle(record)
        handler.flush()
        for _ in range(times * len(made)):
            if not acked.acquire(timeout=60):
                raise TimeoutError("python-logstash-async: an event was not acknowledged")

    return work


class GoLumber:
    """go-lumber's asynchronous client: the program of tests/interop.

    A line of input starts a run. The program measures wall time from the first window to the last ack, and
    the CPU of its process.
    """

    def __init__(
        self, program: Path, port: int, events: Path, window: int, level: int, inflight: int = 2,
        ca: str | None = None,
    ) -> None:  # fmt: skip
        options = {"port": port, "in": events, "window": window, "level": level, "inflight": inflight}
        if ca is not None:
            options["ca"] = ca
        command = [str(program), "bench", *(word for k, v in options.items() for word in (f"-{k}", str(v)))]
        self._program = Program(command, "go-lumber")
        self.close = self._program.close

    def work(self, times: int) -> Mapping[str, float]:
        """Send all events `times` times, and return the program's clocks."""
        line = self._program.ask(str(times))
        return {"process": line["cpu"], "wall": line["wall"]}


def golumber() -> Path | None:
    """Build the program; return None without Go or its modules."""
    go = shutil.which("go")
    if go is None:
        return None
    program = ROOT / "build" / "interop" / "golumber"
    done = subprocess.run(
        [go, "build", "-buildvcs=false", "-o", str(program), "."],
        cwd=ROOT / "tests" / "interop" / "golumber",
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        check=False,
    )
    return program if done.returncode == 0 else None
