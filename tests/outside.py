"""A Python program in a process of its own, for what is measured from outside: its memory, its answers."""

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

from tests.patience import PATIENCE
from tests.support import clean_environment

MIB = 1 << 20


class Outside:
    """Runs `program`, which finds its arguments as JSON in ``sys.argv[1]`` and speaks in lines of JSON."""

    def __init__(self, program: str, *arguments: Any) -> None:
        environment = clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._said = b""

    def hear(self, seconds: float = PATIENCE) -> Any:
        """The next line it says.

        Raises:
            TimeoutError: none in time.
            EOFError: it is over.
        """
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while b"\n" not in self._said:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"nothing said in {seconds} s")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                raise EOFError(f"it is over: {self.process.wait()}")
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def ask(self, question: str = "", seconds: float = PATIENCE) -> Any:
        """Give it a line, and hear the next one from it."""
        self.tell(question)
        return self.hear(seconds)

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def peak(self) -> int:
        """The most memory it has had so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+)", status)
        assert found is not None
        return int(found[1]) * 1024

    def mark(self) -> int:
        """Look at the peak from now on: what it has now."""
        with suppress(OSError):  # where that may not be, it is the peak of its life
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak()

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)

    def __enter__(self) -> Outside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.alive:
                self.process.communicate(timeout=PATIENCE)  # the end of its input is its end
        finally:
            if self.alive:
                self.end()
