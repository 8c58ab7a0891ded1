"""A Python program in its own process, for tests that measure its memory or watch it under attack."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import clean_environment
from tests.support.patience import PATIENCE

MIB = 1 << 20


class MeasuredProcess:
    """Runs `program`, which finds its arguments as JSON in ``sys.argv[1]`` and prints lines of JSON."""

    def __init__(self, program: str, *arguments: Any) -> None:
        environment = clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._output = b""

    def read(self, seconds: float = PATIENCE) -> Any:
        """Return the next line that it prints, decoded.

        Raises:
            TimeoutError: There is none in time.
            EOFError: The process has ended.
        """
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._output:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no output in {seconds} s")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                raise EOFError(f"the process has ended: {self.process.wait()}")
            self._output += piece
        line, _, self._output = self._output.partition(b"\n")
        return json.loads(line)

    def ask(self, question: str = "", seconds: float = PATIENCE) -> Any:
        """Write a line and return the next one from it."""
        self.write(question)
        return self.read(seconds)

    def write(self, line: str = "") -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def peak(self) -> int:
        """Return its largest resident memory since the last `reset_peak`, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+)", status)
        assert found is not None
        return int(found[1]) * 1024

    def reset_peak(self) -> int:
        """Start a new measurement of the peak and return the present memory in bytes."""
        with suppress(OSError):  # without that permission the peak is the one of its whole life
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak()

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send the signal and wait until the process has ended."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)

    def __enter__(self) -> MeasuredProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.alive:
                self.process.communicate(timeout=PATIENCE)  # it ends with its input
        finally:
            if self.alive:
                self.end()
