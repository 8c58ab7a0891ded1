"""The released @logux/server, @logux/client and @logux/core as processes, from tests/interop/logux.

`make deps` installs them, in the versions of the lock file there, when Node is there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import support
from tests.support.patience import PATIENCE

SOURCES = support.ROOT / "tests" / "interop" / "logux"
INSTALLED = Path(sys.prefix) / "logux"
WORK = support.ROOT / "build" / "interop" / "logux"


@cache
def absent() -> str:
    """Why there is no Logux server; empty when there is one."""
    if shutil.which("node") is None:
        return "no node: no Logux server"
    lock = INSTALLED / "package-lock.json"
    if not (INSTALLED / "node_modules" / "@logux" / "server").is_dir() or not lock.exists():
        return "@logux/server is not installed: make deps"
    if lock.read_bytes() != (SOURCES / lock.name).read_bytes():
        return "@logux/server is of another version: make deps"
    return ""


def need() -> None:
    """Skip where it cannot be had; fail with the reason where everything is required."""
    if why := absent():
        support.missing(why)


def program(source: Path) -> Path:
    """A JavaScript file from where it finds what is installed: Node looks beside the file, and above."""
    need()
    WORK.mkdir(parents=True, exist_ok=True)
    modules = WORK / "node_modules"
    target = INSTALLED / "node_modules"
    if not modules.is_symlink() or os.readlink(modules) != str(target):
        part = WORK / f"{os.getpid()}.link"  # another test process may be at the same
        part.symlink_to(target)
        part.replace(modules)
    copies = [(SOURCES / "package.json", WORK / "package.json"), (source, WORK / source.name)]
    for given, place in copies:
        text = given.read_bytes()
        if not place.exists() or place.read_bytes() != text:
            part = place.with_suffix(f".{os.getpid()}")
            part.write_bytes(text)
            part.replace(place)
    return copies[1][1]


class _Program:
    """A program that says and is told JSON objects, line by line, and ends with its input."""

    def __init__(self, name: str, options: dict[str, Any], errors: Path | None) -> None:
        self.errors = errors
        node = shutil.which("node") or "node"
        command = [node, str(program(SOURCES / name)), json.dumps(options)]
        with open(errors or os.devnull, "ab") as file:
            # A file, not a pipe: nobody reads it while the program runs.
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                env=support.clean_environment(),
            )  # fmt: skip

    def said(self) -> dict[str, Any]:
        """Its next line.

        Raises:
            AssertionError: it has ended.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text() if self.errors else "it has ended"
        return json.loads(line)  # type: ignore[no-any-return]

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def end(self, number: int = 0) -> int:
        """Send the signal (0: close its input) and see it go; its exit code."""
        if number:
            self.process.send_signal(number)
        elif self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.wait(PATIENCE)
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # what was not read when it was killed
                        pass
        return code


class LoguxServer:
    """@logux/server on one port of 127.0.0.1, over any number of lives.

    Args:
        folder: where it writes ``processed.jsonl`` and ``server.log``; one life after another.
        options: as in the head of server.js.
    """

    scheme = "logux"

    def __init__(self, folder: Path, **options: Any) -> None:
        need()
        self.processed = folder / "processed.jsonl"
        self.log = folder / "server.log"
        self.options = {"out": str(self.processed), **options}
        self.port = int(options.get("port", 0))
        self.node_id = ""
        self._program: _Program | None = None

    @property
    def url(self) -> str:
        """For a client of ours; the token is told apart."""
        return f"{'logux+tls' if 'cert' in self.options else 'logux'}://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """For any WebSocket client."""
        return f"ws://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._program is not None and self._program.process.poll() is None

    def start(self, **options: Any) -> None:
        """Begin a life, on the port of the one before; `options` are of this life alone."""
        self._program = _Program("server.js", {**self.options, "port": self.port, **options}, self.log)
        ready = self._program.said()
        self.port, self.node_id = ready["port"], ready["nodeId"]

    def tell(self, do: str, **given: Any) -> dict[str, Any]:
        """One of the commands of server.js, and its answer."""
        assert self._program is not None
        self._program.tell(do=do, **given)
        return self._program.said()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Until it has ended by itself (``die``); its exit code."""
        assert self._program is not None
        code = self._program.process.wait(seconds)
        self.kill()
        return code

    def kill(self) -> None:
        """-9."""
        self.end(signal.SIGKILL)

    def die(self) -> None:
        """-9 by its own hand, when it has processed one more action and before it says so."""
        assert self._program is not None
        self._program.tell(do="die")
        self.wait()

    def end(self, number: int = 0) -> None:
        if self._program is not None:
            running, self._program = self._program, None
            running.end(number)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it has processed, in order, over all its lives."""
        if self.processed.exists():
            with self.processed.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):  # a kill may have cut off the last one
                        yield json.loads(line)

    def complaints(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL if kind else 0)


class JsClient(_Program):
    """@logux/client, or with ``kind="node"`` core's ClientNode behind Reconnect.

    Args:
        options: as in the head of client.js.
    """

    def __init__(self, address: str, errors: Path, **options: Any) -> None:
        need()
        self.lines: list[dict[str, Any]] = []
        super().__init__("client.js", {"server": address, **options}, errors)

    def until(self, key: str) -> Any:
        """What its next line with this key has there; the lines before are kept in `lines`."""
        while True:
            line = self.said()
            if key in line:
                return line[key]
            self.lines.append(line)

    def leave(self) -> None:
        """End its input: one that has to `stay` says what it knows, and ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGKILL)
