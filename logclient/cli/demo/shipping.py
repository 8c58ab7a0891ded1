"""Ship the events of a run as applications do: from loggers in several threads, and with ``client.send``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logclient.cli.demo.scenarios import Protocol, Run
from logclient.cli.progress import ProgressLine
from logclient.errors import ConnectFailed
from logclient.testing.samples import Line

if TYPE_CHECKING:
    from logclient.client import Client
    from logclient.handler import Handler

__all__ = ["print_line", "ship"]

_THREADS = 4  # the number of threads that feed the Handler
_PROGRESS_S = 0.1
_STALLED_S = 60.0  # seconds without progress after which a run fails


def print_line(text: str = "") -> None:
    """Print a line without buffering, so that it keeps its place among the lines on stderr."""
    print(text, flush=True)


def ship(
    url: str, protocol: Protocol, run: Run, lines: list[Line], events: int, ledger: Path, log: Path
) -> None:
    """Send events and wait until all of them are delivered. The lines are repeated as needed.

    The log messages of the clients go to the file `log`. Without progress for a minute, this is a
    ConnectFailed.
    """
    from logclient.client import connect
    from logclient.handler import Handler

    # Drop no event: a thread that is too fast waits.
    options: dict[str, Any] = {"overflow": "block", "ledger": str(ledger)}
    if protocol.unit:
        options[protocol.unit] = run.unit
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(feed: Callable[[int, int], None], first: int, count: int) -> None:
        def work() -> None:
            try:
                feed(first, count)
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=work, name=f"demo-{len(threads)}", daemon=True))

    share, *shares = _shares(events, 1 + run.senders)
    first = 0
    handler = Handler(url, **options)
    clients = [handler.client]
    feed = _request_feed if protocol.requests else _logger_feed
    for count in _shares(share, _THREADS):
        start(feed(handler, lines, len(threads)), first, count)
        first += count
    for count in shares:
        client = connect(url, **options)
        clients.append(client)
        start(_send_feed(client, lines), first, count)
        first += count

    messages = logging.FileHandler(log, encoding="utf-8")
    logging.getLogger("logclient").addHandler(messages)
    begun = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        _wait(clients, threads, events, run)
        if errors:
            raise errors[0]
        stats = [client.stats() for client in clients]
        seconds = time.monotonic() - begun
        if protocol.acks:
            acked, resent = sum(one.acked for one in stats), sum(one.resent for one in stats)
            outcomes = f"{acked:,} acknowledged, {resent:,} resent"
        else:
            outcomes = f"{sum(one.handed for one in stats):,} handed over"
        print_line(f"  shipped {events:,} events in {seconds:.1f}s: {outcomes}")
    finally:
        handler.close()
        for client in clients:
            client.close(timeout=5.0)
        logging.getLogger("logclient").removeHandler(messages)
        messages.close()


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]


def _logger_feed(handler: logging.Handler, lines: list[Line], number: int) -> Callable[[int, int], None]:
    logger = logging.Logger(f"demo.thread-{number}", logging.DEBUG)
    logger.addHandler(handler)

    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            line = lines[index % len(lines)]
            logger.log(line.level, "%s", line.text, extra={"log.file.path": line.file})

    return feed


def _request_feed(handler: Handler, lines: list[Line], number: int) -> Callable[[int, int], None]:
    """Log in requests, as an application does: each request is one event with three lines."""
    logger = logging.Logger(f"demo.thread-{number}", logging.DEBUG)
    logger.addHandler(handler)
    client: Any = handler.client

    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            with client.request(f"Demo::Thread{number}#line"):
                for line in (lines[(index + step) % len(lines)] for step in range(3)):
                    logger.log(line.level, "%s", line.text)

    return feed


def _send_feed(client: Any, lines: list[Line]) -> Callable[[int, int], None]:
    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            line = lines[index % len(lines)]
            client.send({"message": line.text, "log.file.path": line.file, "log.file.line": index})

    return feed


def _wait(clients: list[Client], threads: list[threading.Thread], events: int, run: Run) -> None:
    progress = ProgressLine()
    done_before, since = -1, time.monotonic()
    while True:
        alive = [thread for thread in threads if thread.is_alive()]
        left = 0
        if alive:
            alive[0].join(_PROGRESS_S)
        else:
            left = sum(client.flush(timeout=_PROGRESS_S) for client in clients)
        stats = [client.stats() for client in clients]
        done = sum(one.acked + one.handed for one in stats)
        progress.show(f"  {done:,} of {events:,} delivered")
        now = time.monotonic()
        if done != done_before:
            done_before, since = done, now
        if not alive and not left:
            progress.clear()
            return
        if now - since > _STALLED_S:
            progress.clear()
            reason = next((one.last_error for one in stats if one.last_error), "no error was reported")
            raise ConnectFailed(f"{run.name}: no progress for {_STALLED_S:g}s: {reason}")
