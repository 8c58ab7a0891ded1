"""Parts of the product as processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.shared import clean_environment


class CollectorProcess:
    """``logclient collect`` on one port, with one capture, over any number of lives."""

    def __init__(self, capture: Path, faults: str = "") -> None:
        self.capture = capture
        self.faults = faults
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"lumberjack://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "logclient", "collect", self.url, "--capture", str(self.capture)]
        if self.faults:
            command += ["--faults", self.faults]
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.port = json.loads(self._process.stdout.readline())["port"]

    def end(self, number: int) -> None:
        """Send the signal and see the process go."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.communicate(timeout=30)
        self._process = None

    def __enter__(self) -> CollectorProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)
