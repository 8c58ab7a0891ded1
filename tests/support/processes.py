"""Parts of the product as processes of their own, for tests that kill them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tests.support import clean_environment
from tests.support.patience import PATIENCE

LOGGING = """
def log_to(**options):
    global logclient
    import logclient
    handler = logclient.Handler(URL, **options)
    log = logging.getLogger("app")
    log.setLevel("INFO")
    log.propagate = False
    log.addHandler(handler)
    return log, handler

def say(**facts):
    print(json.dumps(facts), flush=True)
"""
"""Part of a program as text: log to its global ``URL``, and say facts to the test that reads its output."""

#: What the URL of a client has behind the ports.
PATHS = {"logjam": "/shop-production", "logjam+push": "/shop-production"}


def end_reader(process: subprocess.Popen[bytes], number: int) -> bool:
    """End a command that reads in its main thread with a signal; whether one was enough.

    Python sees one that comes right before a read begins only after it, and one in a function where it
    ignores all exceptions never.
    """
    process.send_signal(number)
    try:
        process.wait(PATIENCE / 3)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        process.wait(PATIENCE)
        return False
    return True


class Killable(Protocol):
    """A server on one port, over any number of lives."""

    scheme: str
    port: int

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def end(self, number: int) -> None:
        """Send the signal and see the process go."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class CollectorProcess:
    """``logclient collect`` on one port, with one capture, over any number of lives.

    Args:
        scheme: of the URL that it listens on.
        query: that URL's options.
    """

    def __init__(self, capture: Path, faults: str = "", scheme: str = "lumberjack", query: str = "") -> None:
        self.capture = capture
        self.faults = faults
        self.scheme = scheme
        self.query = query
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._held: socket.socket | None = None  # nobody else gets the port between two lives

    @property
    def url(self) -> str:
        """For clients."""
        return url_of(self)

    def start(self) -> None:
        url = f"{self.scheme}://127.0.0.1:{self.port}{self.query}"
        command = [sys.executable, "-m", "logclient", "collect", url, "--capture", str(self.capture)]
        if self.faults:
            command += ["--faults", self.faults]
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.port = json.loads(self._process.stdout.readline())["port"]
        self._release()

    def end(self, number: int) -> None:
        """Send the signal and see the process go. Its port refuses connections until the next start."""
        self._stop(number)
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", self.port))

    def _stop(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.communicate(timeout=PATIENCE)
        self._process = None

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> CollectorProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._stop(signal.SIGTERM)
        self._release()


def url_of(*collectors: Killable) -> str:
    """For a client of any of them, all of one scheme."""
    scheme = collectors[0].scheme
    addresses = ",".join(f"127.0.0.1:{collector.port}" for collector in collectors)
    return f"{scheme}://{addresses}{PATHS.get(scheme, '')}"
