"""The C sink as a context manager: built with the system's compiler, run in its own process.

::

    with Sink() as sink:
        ... write Lumberjack to ("127.0.0.1", sink.port) ...
        print(sink.counts().events)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.certificates import Certificate, server_arguments
from bench.program import Program, SinkError

SOURCE = Path(__file__).with_name("sink.c")
BINARY = SOURCE.parent.parent / "build" / "bench" / "sink"


class Counts(NamedTuple):
    """Totals since the sink started. Times in seconds; `first` and `last` are CLOCK_MONOTONIC."""

    connections: int
    windows: int
    events: int
    acks: int
    reads: int
    bytes: int
    payload: int  # sum of the J frames' payloads, inflated
    compressed: int  # C frames
    errors: int
    open_windows: int  # windows whose connection ended before their last event
    first: float
    last: float
    user: float
    system: float
    cipher: str = ""  # of the connection that has sent the last byte; empty: plain

    @property
    def cpu(self) -> float:
        """CPU seconds, user and system."""
        return self.user + self.system

    @property
    def busy(self) -> float:
        """The share of a core, from the first byte to the last."""
        return self.cpu / (self.last - self.first) if self.last > self.first else 0.0


def build() -> Path:
    """Compile the sink, with zlib if available."""
    return compiled(SOURCE, BINARY, ("-DSINK_ZLIB", "-lz", "-ldl"), ("-ldl",))


def compiled(source: Path, binary: Path, *tries: Sequence[str]) -> Path:
    """Compile if `binary` is older than its sources, with the first options that the compiler accepts."""
    sources = [source, *source.parent.glob("*.h")]
    if binary.exists() and binary.stat().st_mtime >= max(p.stat().st_mtime for p in sources):
        return binary
    compiler = (
        shutil.which("cc") or shutil.which("gcc") or (sysconfig.get_config_var("CC") or "").split(" ")[0]
    )
    if not compiler:
        raise SinkError(f"no C compiler found (cc): {source.name} cannot be built")
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_suffix(f".{os.getpid()}")
    base = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(fresh), str(source)]
    tried = ""
    for extra in tries:
        done = subprocess.run([*base, *extra], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            fresh.replace(binary)
            return binary
        tried = done.stderr
    said = tried.strip().splitlines()[-1] if tried else "no output"
    raise SinkError(f"{source.name} does not compile: {said}")


class Sink:
    """A running sink.

    Args:
        dump: a file for the payloads, one a line; too slow for timed runs.
        peek: inflate only the first header of a compressed frame, and count the events that the window
            announces.
        zmtp: read Logjam from DEALER and PUSH sockets; acks are then answers to requests.
        tls: show this certificate on all connections, and decrypt them in the sink's process.

    Attributes:
        url: for our client, with `options`.
        ca: the file with the certificate's authority; None: plain connections.
    """

    def __init__(
        self,
        dump: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        peek: bool = False,
        zmtp: bool = False,
        tls: Certificate | None = None,
    ) -> None:
        command = [str(build()), "--port", str(port), "--peek", str(int(peek)), "--zmtp", str(int(zmtp))]
        command += server_arguments(tls)
        if dump is not None:
            command += ["--dump", os.fspath(dump)]
        self._program = Program(command, "the sink")
        line = self._program.read()
        self.port: int = line["port"]
        self.zlib = bool(line["zlib"])
        self.url = f"{'logjam' if zmtp else 'lumberjack'}{'+tls' if tls else ''}://127.0.0.1:{self.port}"
        self.ca = tls.ca if tls else None
        self.options: dict[str, Any] = {"ca": tls.ca} if tls else {}
        self._final: Counts | None = None

    def counts(self) -> Counts:
        """Return the current totals; after `close`, the last ones."""
        if self._final is not None:
            return self._final
        return Counts(**self._program.ask())

    def wait(self, events: int, timeout: float = 30.0) -> Counts:
        """Wait until at least `events` have arrived in all, and return the totals.

        Raises:
            SinkError: they did not arrive within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            counts = self.counts()
            if counts.errors:
                raise SinkError("a writer broke the protocol, see stderr")
            if counts.events >= events:
                return counts
            if time.monotonic() > deadline:
                raise SinkError(f"the sink has {counts.events} events after {timeout} s, {events} were sent")
            time.sleep(0.005)

    def close(self) -> Counts:
        """End the sink and return its last totals."""
        if self._final is None:
            self._program.end()
            self._final = Counts(**self._program.read())
            self._program.close()
        return self._final

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
