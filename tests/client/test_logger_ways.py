"""When `logclient.Logger` decides which way its calls go, and when not."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient import Logger
from tests import support
from tests.support.logger_changes import CHANGES, World, log
from tests.support.patience import PATIENCE

with_gil = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="all loggers take the ordinary way"
)

UNDONE = [
    "a record factory", "a record factory, by the module", "LogRecord.__init__", "LogRecord.getMessage",
    "Logger.handle", "Logger.callHandlers, as Sentry", "Logger.makeRecord", "Logger.makeRecord, as ddtrace",
    "Logger.callHandlers, as New Relic", "Logger._log", "Logger.findCaller", "Logger.filter", "Logger.info",
    "Logger.isEnabledFor", "handle of the logger", "info of the logger", "isEnabledFor of the logger",
    "handle of the handler", "handle of the handler's class", "no source file", "no threads", "no processes",
    "no multiprocessing", "getLevelName", "frozen time", "threading.current_thread", "threading.get_ident",
    "multiprocessing.current_process", "os.getpid",
]  # fmt: skip


@with_gil
@pytest.mark.parametrize("name", UNDONE)
def test_the_fast_way_is_taken_again_after_a_change_is_undone(name: str) -> None:
    world = World(Logger)
    try:
        log(world.logger, 0)
        CHANGES[name](world)
        log(world.logger, 1)
        world.undo.close()
        log(world.logger, 2)
        assert world.logger.obstacle() == ""  # type: ignore[attr-defined]
    finally:
        world.close()


@with_gil
def test_another_handler_needs_records_only_from_its_level_on() -> None:
    world = World(Logger)
    world.add(logging.ERROR)
    made: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_qualname == "Logger.makeRecord":
            made.append(frame.f_locals["msg"])

    try:
        assert world.logger.obstacle() == ""  # type: ignore[attr-defined]
        sys.setprofile(note)
        world.logger.info("below")
        world.logger.error("at it")
        world.logger.critical("above")
    finally:
        sys.setprofile(None)
        world.close()
    assert made == ["at it", "above"]


@with_gil
def test_a_null_handler_keeps_no_logger_off_the_fast_way() -> None:
    world = World(Logger)
    try:
        world.logger.addHandler(logging.NullHandler())
        log(world.logger, 0)
        assert world.logger.obstacle() == ""  # type: ignore[attr-defined]
        assert world.taken()[0]
    finally:
        world.close()


def test_a_level_that_the_class_of_a_handler_computes_is_asked_at_each_call() -> None:
    limit = [logging.NOTSET]

    class Sub(logclient.Handler):
        @property
        def level(self) -> int:
            return limit[0]

        @level.setter
        def level(self, value: int) -> None:
            pass

    counts = []
    for kind in (Logger, logging.Logger):
        handler = Sub(NOWHERE)  # type: ignore[abstract,unused-ignore]
        queue = QueueOnly(handler.client)
        logger = kind("part")
        logger.addHandler(handler)
        for limit[0] in (logging.NOTSET, logging.NOTSET, logging.ERROR, logging.NOTSET):
            logger.info("limit %d", limit[0])
        counts.append(queue.count())
        handler.client.close(timeout=0)
    assert counts == [3, 3]


def drop(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Stand in for `Logger.handle`."""


def propagate_further(world: World, on: bool) -> None:
    """Have the parent propagate, or not."""
    if world.top.parent is None:
        world.top.parent = logging.Logger("above")
        world.top.parent.addHandler(world.memory)
    world.top.propagate = on


def rename_process(world: World, on: bool) -> None:
    process = multiprocessing.current_process()
    world.undo.callback(setattr, process, "name", process.name)
    process.name = "on" if on else "off"


TOGGLES: dict[str, Callable[[World, bool], object]] = {
    "level of the handler": lambda w, on: setattr(w.handler, "level", 50 if on else 0),
    "level of the logger": lambda w, on: w.logger.setLevel(50 if on else 10),
    "propagate": lambda w, on: setattr(w.logger, "propagate", not on),
    "disabled": lambda w, on: setattr(w.logger, "disabled", on),
    "disabled parent": lambda w, on: setattr(w.top, "disabled", on),
    "handlers of the parent": lambda w, on: setattr(w.top, "handlers", [w.memory if on else w.handler]),
    "propagation of the parent": propagate_further,
    "name of the process": rename_process,
    "parent": lambda w, on: setattr(w.logger, "parent", None if on else w.top),
    "name": lambda w, on: setattr(w.logger, "name", "on" if on else "off"),
    "filters": lambda w, on: setattr(w.logger, "filters", [w.refuse] if on else []),
    "handle": lambda w, on: (
        setattr(w.handler, "handle", w.seen.append) if on else vars(w.handler).pop("handle", 0)
    ),
    "handle of the class": lambda w, on: setattr(
        type(w.logger), "handle", drop if on else logging.Logger.handle
    ),
}


@pytest.mark.parametrize("name", TOGGLES)
def test_a_change_counts_from_the_next_call_on_in_code_that_runs_often(name: str) -> None:
    """The interpreter specialises such code, and may store attributes past their dict."""
    took = []
    for kind in (Logger, logging.Logger):
        world = World(type("Sub", (kind,), {}))
        try:
            for number in range(300):
                TOGGLES[name](world, number % 3 == 0)
                world.logger.warning("call %d", number)
                world.logger.warning("again")
            bodies, seen = world.taken()
            took.append([bodies, [getattr(found, "args", found) for found in seen]])
        finally:
            world.close()
    assert took[0] == took[1]


def test_calls_in_the_middle_of_another_are_dropped_where_python_drops_them() -> None:
    """Newer Pythons do, in the same thread."""
    took = []
    for kind in (Logger, logging.Logger):
        world = World(kind)
        beside = kind("beside")

        class Talking:
            def __init__(self, logger: logging.Logger) -> None:
                self.logger = logger

            def __str__(self) -> str:
                self.logger.warning("in the middle")
                return f"enabled: {self.logger.isEnabledFor(logging.WARNING)}"

        class Forward(logging.Handler):
            def emit(self, record: logging.LogRecord, world: World = world) -> None:
                world.logger.warning("forwarded %s", record.getMessage())

        beside.addHandler(Forward())
        try:
            for number in range(3):
                world.logger.warning("call %d", number)
                world.top.warning("call %d", number)
                world.logger.warning("from itself: %s", Talking(world.logger))
                world.logger.warning("from the parent: %s", Talking(world.top))
                world.top.warning("from the child: %s", Talking(world.logger))
                beside.warning("other")
            took.append(world.taken())
        finally:
            world.close()
    assert took[0] == took[1]


class Silent(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        pass


ORDINARY: dict[str, Callable[[World], object]] = {
    "a filter": lambda w: w.logger.addFilter(w.mark),
    "another handler": lambda w: w.logger.addHandler(Silent()),
    "a filter of the handler": lambda w: w.handler.addFilter(w.mark),
    "a formatter": CHANGES["a formatter"],
    "a record factory": CHANGES["a record factory"],
    "disabled": lambda w: setattr(w.logger, "disabled", True),
    "no handler": lambda w: w.top.removeHandler(w.handler),
    "many handlers": lambda w: [w.top.addHandler(Silent()) for _ in range(20)],
    "LogRecord.__init__": CHANGES["LogRecord.__init__"],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_call_decides_nothing_again(name: str) -> None:
    """It runs no Python code but that of the standard library's logger."""
    ran = []
    for kind in (Logger, logging.Logger):
        world = World(kind)
        called: Counter[str] = Counter()

        def note(frame: FrameType, event: str, _: Any, called: Counter[str] = called) -> None:
            if event == "call":
                called[frame.f_code.co_qualname] += 1

        try:
            ORDINARY[name](world)
            for _ in range(3):
                world.logger.info("call %d", 1)
            sys.setprofile(note)
            world.logger.info("call %d", 1)
            sys.setprofile(None)
        finally:
            sys.setprofile(None)
            world.close()
        ran.append(called)
    assert ran[0] <= ran[1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="has no watchers")
def test_without_a_watcher_all_calls_take_the_ordinary_way() -> None:
    """A process has eight of them."""
    program = """
import ctypes, logging
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    lambda *_: 0)
try:
    while True:
        ctypes.pythonapi.PyDict_AddWatcher(callback)
except RuntimeError:
    pass
import logclient
from bench.ours import NOWHERE, QueueOnly
handler = logclient.Handler(NOWHERE)
queue = QueueOnly(handler.client)
logger = logclient.Logger("part")
logger.addHandler(handler)
logger.info("one")
logger.info("two")
print(queue.count(), logger.obstacle())
handler.client.close(timeout=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=support.TESTED, env=support.clean_environment(),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.stdout == "2 other extensions have taken all watchers of dicts\n", done.stderr
