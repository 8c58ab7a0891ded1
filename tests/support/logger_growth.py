"""Functions that log once, and how the memory of a program grows with them.

``python -m tests.support.logger_growth NUMBER`` prints by how many bytes so many functions let it grow.
"""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger


def template() -> None:
    LOG("called")


def no_call(*args: Any) -> None:
    pass


LOG: Any = no_call


def function(log: Any, name: str, *constants: object) -> types.FunctionType:
    """Return a function with code of its own."""
    code = template.__code__
    code = code.replace(co_name=name, co_consts=(*code.co_consts, *constants))
    return types.FunctionType(code, {"LOG": log})


def resident() -> int:
    """Return the bytes of this process that are resident."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def measure(functions: int) -> int:
    """Return the growth with so many functions, behind some that make the memory grow to its size."""
    handler = logclient.Handler(NOWHERE)
    queue = QueueOnly(handler.client)
    logger = Logger("app")
    logger.addHandler(handler)

    def run(count: int) -> None:
        for number in range(count):
            function(logger.info, f"f{number}")()
            if number % 1000 == 999:
                assert len(queue.take()) == 1000

    run(10_000)
    before = resident()
    run(functions)
    assert logger.obstacle() == ""
    growth = resident() - before
    handler.client.close(timeout=0)
    return growth


if __name__ == "__main__":
    print(measure(int(sys.argv[1])))
