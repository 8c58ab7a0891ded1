"""`logclient.Logger` remembers where it is called from: a bounded number of places, freed at any moment."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import types
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger
from tests.support import TESTED, clean_environment
from tests.support.logger_growth import function
from tests.support.patience import PATIENCE

KEPT = 100
"""Code objects that a logger may keep, at most: a small number."""


@pytest.fixture
def logged() -> Iterator[tuple[Logger, QueueOnly]]:
    handler = logclient.Handler(NOWHERE)
    queue = QueueOnly(handler.client)
    logger = Logger("app")
    logger.addHandler(handler)
    for _ in range(2):
        logger.info("before")
    assert logger.obstacle() == ""
    queue.take()
    yield logger, queue
    handler.client.close(timeout=0)


def functions_of(queue: QueueOnly) -> list[str]:
    """Return the functions that logged, without the number of their name."""
    return [json.loads(body)["log"]["origin"]["function"] for body in queue.take()]


@pytest.mark.parametrize("stacklevel", [1, 2])
def test_code_that_logged_once_is_freed(logged: tuple[Logger, QueueOnly], stacklevel: int) -> None:
    logger, queue = logged

    def log(message: str) -> None:
        logger.info(message, stacklevel=stacklevel)

    alive: list[weakref.ref[types.CodeType]] = []
    for number in range(2000):
        made = function(logger.info if stacklevel == 1 else log, f"f{number}")
        alive.append(weakref.ref(made.__code__))
        made()
    del made
    kept = sum(code() is not None for code in alive)
    assert functions_of(queue) == [f"f{number}" for number in range(2000)]
    assert 0 < kept <= KEPT


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_functions_that_log_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.logger_growth", "100000"],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3 << 20


class Farewell:
    """Logs when it is freed, from a function of its own, which is remembered, too."""

    def __init__(self, log: Any, number: int, cyclic: bool) -> None:
        self.log, self.number = log, number
        self.me = self if cyclic else None

    def __del__(self) -> None:
        function(self.log, f"farewell{self.number}")()


class Collecting:
    """An argument that collects garbage."""

    def __str__(self) -> str:
        gc.collect()
        return "collected"


DROPS_NESTED = hasattr(logging.Logger, "_is_disabled")
"""Whether this Python drops log calls while it handles a record in the same thread."""


def test_destructors_of_code_may_log_while_it_is_forgotten(logged: tuple[Logger, QueueOnly]) -> None:
    """Each place that is remembered replaces one whose code logs as it is freed, from yet another place."""
    logger, queue = logged
    count = 2000
    for number in range(count):
        function(logger.info, f"f{number}", Farewell(logger.info, number, cyclic=number % 3 == 0))()
        if number % 50 == 0 and not DROPS_NESTED:
            logger.info("%s", Collecting())
    made = functions_of(queue)
    assert sum(name.startswith("f") and name[1:].isdigit() for name in made) == count
    # The code that is remembered still, or is garbage yet, is freed from here on.
    for number in range(50 * KEPT):
        function(logger.info, f"g{number}")()
    gc.collect()
    made += functions_of(queue)
    farewells = Counter(name for name in made if name.startswith("farewell"))
    assert set(farewells.values()) == {1}
    assert count - KEPT <= len(farewells) <= count


def test_an_object_may_log_as_its_logger_is_freed() -> None:
    """The places of a logger are freed with it, when it can log no more."""
    handler = logclient.Handler(NOWHERE)
    queue = QueueOnly(handler.client)
    for _ in range(20):
        logger: Any = Logger("app")
        logger.addHandler(handler)
        other = logging.Logger("other")
        other.addHandler(handler)
        for number in range(100):
            function(logger.info, f"f{number}", Farewell(other.info, number, cyclic=False))()
        del logger, other
        gc.collect()
    names = Counter(name.rstrip("0123456789") for name in functions_of(queue))
    assert names == {"f": 2000, "farewell": 2000}
    handler.client.close(timeout=0)
