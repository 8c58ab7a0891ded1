"""A program of the benchmarks in another process, which answers lines with lines of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any


class SinkError(RuntimeError):
    """The error of a sink that cannot be built or has ended, or whose peer broke the protocol."""


class Program:
    """A running program. It ends when its input is closed.

    Args:
        command: the program with its arguments.
        name: what it is called in errors.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def read(self) -> dict[str, Any]:
        """Read a line.

        Raises:
            SinkError: there is none, because the program has ended.
        """
        line = self._output.readline()
        if not line:
            raise SinkError(f"{self._name} ended early, exit {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str = "") -> dict[str, Any]:
        """Write a line, and read the answer."""
        self._input.write(f"{line}\n")
        self._input.flush()
        return self.read()

    def end(self) -> None:
        """Close the input: the program writes its last lines, if it has some, and ends."""
        self._input.close()

    def close(self) -> None:
        """End the program and wait for it."""
        self.end()
        self._process.wait(10)
        self._output.close()
