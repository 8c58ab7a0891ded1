"""The parts of a run of the demo: its collector, a process; its verifier, a Spark session; its events.

Events are shipped as applications do it: from loggers in several threads, and with ``client.send``.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

from logclient.cli.progress import ProgressLine
from logclient.client import Client, connect
from logclient.errors import ConnectFailed, LogclientError
from logclient.handler import Handler
from tools.demo.samples import Line
from tools.demo.scenarios import Protocol, Run

_LIFE_S = 1800.0  # seconds after which a collector ends, even when its demo was killed
_START_S = 30.0
_STOP_S = 30.0
_THREADS = 4  # the number of threads that feed the Handler
_PROGRESS_S = 0.1
_STALLED_S = 60.0  # seconds without progress after which a run fails


class Collector:
    """A collector as a process, with its log in `folder`. A context manager that ends the process."""

    def __init__(self, listen: str, faults: str, capture: Path, fault_log: Path | None, folder: Path) -> None:
        arguments = ["collect", listen, "--capture", str(capture), "--faults", faults, "--json"]
        arguments += ["--for", f"{_LIFE_S:g}s"]
        if fault_log is not None:
            arguments += ["--fault-log", str(fault_log)]
        self.url = ""
        self._log = folder / "collector.log"
        self._errors: IO[bytes] = open(self._log, "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "logclient", *arguments], stdout=subprocess.PIPE, stderr=self._errors
        )

    def __enter__(self) -> Self:
        output = self._process.stdout
        assert output is not None
        ready = select.select([output], [], [], _START_S)[0] and output.readline()
        if not ready:
            self.__exit__()
            raise ConnectFailed(f"collector: did not start: {_last_line(self._log)}")
        self.url = json.loads(ready)["url"]
        return self

    def __exit__(self, *_: object) -> None:
        with self._errors, self._process:  # which waits for its end
            self._process.kill()

    def stop(self) -> dict[str, Any]:
        """End the collector after it has closed its capture; return its counts."""
        self._process.terminate()
        try:
            output, _ = self._process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            raise LogclientError(f"collector: did not stop within {_STOP_S:g}s") from None
        if self._process.returncode or not output:
            raise LogclientError(f"collector: ended with {self._process.returncode}: {_last_line(self._log)}")
        counts: dict[str, Any] = json.loads(output)
        return counts


class Verifier:
    """The verifier in one Spark session, which starts in a thread of its own. A context manager."""

    def __init__(self, packages: str | None = None) -> None:
        from logclient.verify import job

        self._job = job
        self._thread = ThreadPoolExecutor(1, "demo-spark")
        self._session = self._thread.submit(job.Session, packages=packages)

    def verify(self, ledger: Path, out: Path, options: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Judge one run by `logclient.verify.job.run`; return the exit code, and the counts by word."""
        progress = ProgressLine()
        begun = time.monotonic()
        progress.show("  Spark is starting")
        try:
            verdict = self._job.run(
                ledger,
                out=out,
                spark=self._session.result().spark,
                progress=lambda text: progress.show(text and f"  {text}"),
                **options,
            )
        except LogclientError as error:
            raise LogclientError(f"verify: {error}") from error
        finally:
            progress.clear()
        parts = ", ".join(f"{part} {verdict.seconds[part]:.1f}s" for part in ("pack", "compare"))
        print_line(f"  verify ended with {verdict.exit_code} after {time.monotonic() - begun:.1f}s ({parts})")
        return verdict.exit_code, verdict.to_json()["counts"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if self._session.exception() is None:
            self._session.result().stop()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


Feed = Callable[[range], None]


def print_line(text: str = "") -> None:
    """Print a line without buffering, so that it keeps its place among the lines on stderr."""
    print(text, flush=True)


def ship(
    url: str, protocol: Protocol, run: Run, lines: list[Line], events: int, ledger: Path, log: Path
) -> None:
    """Send events and wait until all of them are delivered; no progress for a minute is a ConnectFailed."""
    # Drop no event: a thread that is too fast waits.
    options: dict[str, Any] = {"overflow": "block", "ledger": str(ledger)}
    if protocol.unit:
        options[protocol.unit] = run.unit
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def work(feed: Feed, numbers: range) -> None:
        try:
            feed(numbers)
        except BaseException as error:
            errors.append(error)

    share, *shares = _shares(events, 1 + run.senders)
    handler = Handler(url, **options)
    clients = [handler.client, *(connect(url, **options) for _ in shares)]
    feeds = [_logger_feed(handler, lines, number, protocol.requests) for number in range(_THREADS)]
    feeds += [_send_feed(client, lines) for client in clients[1:]]
    first = 0
    for feed, count in zip(feeds, [*_shares(share, _THREADS), *shares], strict=True):
        given = (feed, range(first, first + count))
        threads.append(threading.Thread(target=work, args=given, name=f"demo-{len(threads)}", daemon=True))
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


def _logger_feed(handler: Handler, lines: list[Line], number: int, requests: bool) -> Feed:
    """Log lines; with `requests` in requests, of which each is one event with three lines."""
    logger = logging.Logger(f"demo.thread-{number}", logging.DEBUG)
    logger.addHandler(handler)
    client: Any = handler.client

    def feed(numbers: range) -> None:
        for index in numbers:
            line = lines[index % len(lines)]
            if not requests:
                logger.log(line.level, "%s", line.text, extra={"log.file.path": line.file})
                continue
            with client.request(f"Demo::Thread{number}#line"):
                for line in (lines[(index + step) % len(lines)] for step in range(3)):
                    logger.log(line.level, "%s", line.text)

    return feed


def _send_feed(client: Any, lines: list[Line]) -> Feed:
    def feed(numbers: range) -> None:
        for index in numbers:
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
