"""A process that formats exceptions of generated functions, and measures its memory.

    python -m tests.tracebacks.generated FUNCTIONS EXCEPTIONS

Prints as JSON the bytes that the process grew after its first tenth, and what the formatter holds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from functools import partial
from typing import Any

from logclient._ext.tracebacks import ExceptionFormatter
from tests.tracebacks.failing_modules import raised

LIVE = 100
"""Generated functions that exist at a time."""


def generate(number: int) -> Any:
    """Make a function as a template engine does: of its own code, in one of 500 files.

    Some Pythons keep all names and file names of code for ever, so there are not too many.
    """
    space: dict[str, Any] = {"__name__": "template"}
    source = f"def render(value):\n    return {number} / value\n"
    exec(compile(source, f"<template {number % 500}>", "exec"), space)
    return space["render"]


def storm(formatter: ExceptionFormatter, functions: range, times: int) -> None:
    """Let each function fail so many times, a hundred functions in turn."""
    for first in range(functions.start, functions.stop, LIVE):
        live = [generate(number) for number in functions[first - functions.start :][:LIVE]]
        for _ in range(times):
            for function in live:
                formatter.format(raised(partial(function, 0)))


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(functions: int, exceptions: int) -> None:
    """Run the storm and print figures."""
    formatter = ExceptionFormatter()
    times = exceptions // functions
    storm(formatter, range(functions // 10), times)
    gc.collect()
    before = resident()
    storm(formatter, range(functions // 10, functions), times)
    gc.collect()
    print(json.dumps({
        "exceptions": functions * times, "grown": resident() - before, "cached": formatter.cached,
        "frames": len(formatter.sizes()), "bytes": sum(formatter.sizes()),
    }))  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
