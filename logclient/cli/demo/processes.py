"""The collector and the verifier of the demo, each as a separate process."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from logclient.cli.demo.shipping import print_line
from logclient.cli.progress import ProgressLine
from logclient.errors import ConnectFailed, LogclientError

__all__ = ["Collector", "Verifier"]

_PROGRESS_S = 0.1
_LIFE_S = 1800.0
"""Seconds after which a collector ends, even when its demo was killed."""
_START_S = 30.0
_STOP_S = 30.0
_VERIFY_S = 900.0


class _Process:
    """A process that runs a module and prints lines of JSON. A context manager that ends the process."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self._log = log
        self._errors: IO[bytes] = open(log, "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            self._lines.put(json.loads(raw))
        self._lines.put(None)  # the process has ended

    def _next(self, timeout: float) -> dict[str, Any] | None:
        """Wait for the next line; returns None when the process has ended.

        Raises:
            queue.Empty: No line came within `timeout` seconds.
        """
        return self._lines.get(timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            file.close()


class Collector(_Process):
    """A collector as a separate process.

    Args:
        listen: The URL at which it listens.
        faults: Its faults, as for ``logclient collect``.
        capture: The directory of its capture.
        fault_log: The file for the ids of the events that its faults change; None: no file.
        folder: The directory for ``collector.log``.
    """

    def __init__(self, listen: str, faults: str, capture: Path, fault_log: Path | None, folder: Path) -> None:
        arguments = ["collect", listen, "--capture", str(capture), "--faults", faults, "--json"]
        arguments += ["--for", f"{_LIFE_S:g}s"]
        if fault_log is not None:
            arguments += ["--fault-log", str(fault_log)]
        super().__init__(folder / "collector.log", "logclient", *arguments)
        self.url = ""

    def __enter__(self) -> Self:
        ready = None
        with suppress(queue.Empty):
            ready = self._next(_START_S)
        if ready is None:
            self.__exit__()
            raise ConnectFailed(f"collector: did not start: {_last_line(self._log)}")
        self.url = ready["url"]
        return self

    def stop(self) -> dict[str, Any]:
        """End the collector after it has closed its capture.

        Returns:
            Its counts.

        Raises:
            LogclientError: It did not stop in time, or failed.
        """
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise LogclientError(f"collector: did not stop within {_STOP_S:g}s") from None
        counts = self._next(_STOP_S)
        if self._process.returncode or counts is None:
            raise LogclientError(f"collector: ended with {self._process.returncode}: {_last_line(self._log)}")
        return counts


class Verifier(_Process):
    """The verifier as a separate process, which gets ledgers and captures but no fault log.

    Args:
        log: The file for its errors.
        packages: As for ``logclient verify``.
    """

    def __init__(self, log: Path, packages: str | None = None) -> None:
        super().__init__(log, "logclient.verify.service", *([packages] if packages else []))

    def verify(self, ledger: Path, out: Path, options: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Judge one run.

        Args:
            ledger: The directory of the ledger.
            out: The directory for the verdict.
            options: Further arguments of `logclient.verify.job.run`.

        Returns:
            The exit code, and the counts of the verdict by word.

        Raises:
            LogclientError: There is no verdict.
        """
        progress = ProgressLine()
        begun = time.monotonic()
        request = {"ledger": str(ledger), "out": str(out), **options}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and its log has the reason
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            try:
                answer = self._next(_PROGRESS_S) or {"error": f"its process ended: {_last_line(self._log)}"}
                break
            except queue.Empty:
                taken = time.monotonic() - begun
                progress.show(f"  Spark is judging, {taken:.0f}s")
                if taken > _VERIFY_S:
                    answer = {"error": f"no verdict after {_VERIFY_S:g}s"}
                    break
        progress.clear()
        if "error" in answer:
            raise LogclientError(f"verify: {answer['error']}")
        parts = ", ".join(f"{part} {answer['seconds'][part]:.1f}s" for part in ("pack", "compare"))
        print_line(f"  verify ended with {answer['exit']} after {time.monotonic() - begun:.1f}s ({parts})")
        return answer["exit"], answer["counts"]

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_STOP_S)  # the process ends Spark and deletes temporary files
        super().__exit__(*exception)


def _last_line(log: Path) -> str:
    """Return the last line of a log that has text."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
