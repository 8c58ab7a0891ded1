"""The collector of the demo, a process of its own, and its verifier, a Spark session."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from logclient.cli.demo.shipping import print_line
from logclient.cli.progress import ProgressLine
from logclient.errors import ConnectFailed, LogclientError

__all__ = ["Collector", "Verifier"]

_LIFE_S = 1800.0  # seconds after which a collector ends, even when its demo was killed
_START_S = 30.0
_STOP_S = 30.0


class Collector:
    """A collector as a separate process. A context manager that ends the process.

    Its arguments are those of ``logclient collect``; ``collector.log`` is in `folder`.
    """

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
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            self._lines.put(json.loads(raw))
        self._lines.put(None)  # the process has ended

    def __enter__(self) -> Self:
        ready = None
        with suppress(queue.Empty):
            ready = self._lines.get(timeout=_START_S)
        if ready is None:
            self.__exit__()
            raise ConnectFailed(f"collector: did not start: {_last_line(self._log)}")
        self.url = ready["url"]
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for file in (self._process.stdout, self._errors):
            assert file is not None
            file.close()

    def stop(self) -> dict[str, Any]:
        """End the collector after it has closed its capture; return its counts.

        Raises:
            LogclientError: It did not stop in time, or failed.
        """
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise LogclientError(f"collector: did not stop within {_STOP_S:g}s") from None
        counts = self._lines.get(timeout=_STOP_S)
        if self._process.returncode or counts is None:
            raise LogclientError(f"collector: ended with {self._process.returncode}: {_last_line(self._log)}")
        return counts


class Verifier:
    """The verifier in one Spark session, which gets ledgers and captures but no fault log. A context manager.

    The session starts in a thread of its own.
    """

    def __init__(self, packages: str | None = None) -> None:
        from logclient.verify import job

        self._job = job
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "demo-spark")
        self._session = self._thread.submit(job.Session, packages=packages, stop=self._stop)

    def verify(self, ledger: Path, out: Path, options: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Judge one run; return the exit code, and the counts of the verdict by word.

        The options are further arguments of `logclient.verify.job.run`.

        Raises:
            LogclientError: There is no verdict.
        """
        progress = ProgressLine()
        begun = time.monotonic()
        progress.show("  Spark is starting")
        try:
            verdict = self._job.run(
                ledger,
                out=out,
                spark=self._session.result().spark,
                progress=lambda text: progress.show(f"  {text}") if text else progress.clear(),
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
        self._stop.set()
        self._thread.shutdown()
        if self._session.exception() is None:
            self._session.result().stop()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
