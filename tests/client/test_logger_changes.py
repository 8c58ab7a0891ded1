"""What changes logging at run time changes it for `logclient.Logger`, too, from the next call on."""

from __future__ import annotations

import functools
import json
import logging
import logging.config
import logging.handlers
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger


class Memory(logging.Handler):
    """Keeps what records say."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.name, record.levelname, record.getMessage(), record.lineno, record.funcName))


class SomeList(list[Any]):
    """A list whose items need not be where those of a list are."""


class World:
    """A logger below another one, which has our handler; and what was seen beside it."""

    def __init__(self, kind: type[logging.Logger]) -> None:
        self.handler = logclient.Handler(NOWHERE)
        self.queue = QueueOnly(self.handler.client)
        self.top = logging.Logger("top")
        self.logger = kind("top.part")
        self.logger.parent = self.top
        self.top.addHandler(self.handler)
        self.seen: list[Any] = []
        self.memory = Memory(self.seen)
        self.undo = ExitStack()

    def set(self, where: Any, name: str, value: Any) -> None:
        """Set an attribute until the end."""
        self.undo.enter_context(mock.patch.object(where, name, value))

    def wrap(self, where: Any, name: str) -> None:
        """Replace a function by one that notes its call."""
        before = getattr(where, name)

        @functools.wraps(before)
        def noted(*args: Any, **named: Any) -> Any:
            self.seen.append(name)
            return before(*args, **named)

        self.set(where, name, noted)

    def refuse(self, record: logging.LogRecord) -> bool:
        self.seen.append(record.getMessage())
        return False

    def mark(self, record: logging.LogRecord) -> bool:
        record.mark = len(self.seen)
        self.seen.append(record.getMessage())
        return True

    def taken(self) -> list[Any]:
        bodies = [json.loads(body) for body in self.queue.take()]
        for body in bodies:
            body.pop("@timestamp")
        seen, self.seen[:] = list(self.seen), []
        return [bodies, seen]

    def close(self) -> None:
        self.undo.close()
        self.handler.client.close(timeout=0)


class Proxy:
    """Looks like the function that it wraps, as those of wrapt do, which ddtrace and New Relic use."""

    def __init__(self, function: Any, seen: list[Any]) -> None:
        self._function, self._seen = function, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **named: Any) -> Any:
        self._seen.append(self._function.__name__)
        return self._function(*args, **named)


def subclass(world: World) -> None:
    class Sub(type(world.logger)):  # type: ignore[misc]
        def handle(self, record: logging.LogRecord) -> None:
            world.seen.append(record.getMessage())
            super().handle(record)

    world.logger.__class__ = Sub


def property_(world: World) -> None:
    class Sub(type(world.logger)):  # type: ignore[misc]
        propagate = False

    world.logger.__class__ = Sub
    world.logger.__dict__.pop("propagate")


def emitting(world: World) -> None:
    class Sub(logclient.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.seen.append(record.getMessage())
            super().emit(record)

    other = Sub(NOWHERE)
    QueueOnly(other.client)
    world.undo.callback(other.client.close, timeout=0)
    world.top.handlers[:] = [other]


def handler_class(world: World) -> None:
    class Sub(logclient.Handler):
        pass

    other = Sub(client=world.handler.client)
    world.top.handlers[:] = [other]
    world.logger.info("first")
    world.wrap(Sub, "handle")


def factory(world: World) -> None:
    def make(*args: Any, **named: Any) -> logging.LogRecord:
        record = logging.LogRecord(*args, **named)
        record.otelTraceID = "0" * 32
        record.more = "more"
        return record

    world.undo.callback(logging.setLogRecordFactory, logging.getLogRecordFactory())
    logging.setLogRecordFactory(make)


def disabled_manager(world: World) -> None:
    world.undo.callback(logging.disable, 0)
    logging.disable(logging.INFO)
    world.logger._cache.clear()


def level_name(world: World) -> None:
    world.undo.callback(logging.addLevelName, logging.INFO, "INFO")
    logging.addLevelName(logging.INFO, "HINWEIS")


def process_name(world: World) -> None:
    process = multiprocessing.current_process()
    world.undo.callback(setattr, process, "name", process.name)
    process.name = "worker-7"


def thread_name(world: World) -> None:
    world.undo.callback(setattr, threading.current_thread(), "name", threading.current_thread().name)
    threading.current_thread().name = "thread-7"


def formatter(world: World) -> None:
    world.handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))


def other_state(world: World) -> None:
    world.logger.__dict__ = {**world.logger.__dict__, "name": "other", "handlers": [world.memory]}


def filled_cache(world: World) -> None:
    world.logger._cache[logging.INFO] = False


def plain_filter(world: World) -> None:
    world.logger.filters.append(world.refuse)


CHANGES: dict[str, Callable[[World], object]] = {
    "a handler of the logger": lambda w: w.logger.addHandler(w.memory),
    "a handler of the parent": lambda w: w.top.addHandler(w.memory),
    "no handler": lambda w: w.top.removeHandler(w.handler),
    "another list of handlers": lambda w: setattr(w.top, "handlers", [w.memory]),
    "a handler replaced in place": lambda w: w.top.handlers.__setitem__(0, w.memory),
    "handlers replaced in place": lambda w: w.top.handlers.__setitem__(slice(None), [w.memory, w.handler]),
    "a handler before ours": lambda w: w.top.handlers.insert(0, w.memory),
    "our handler twice": lambda w: w.logger.addHandler(w.handler),
    "handlers in a subclass of list": lambda w: setattr(w.top, "handlers", SomeList([w.memory])),
    "handlers in a tuple": lambda w: setattr(w.top, "handlers", (w.memory,)),
    "no propagation": lambda w: setattr(w.logger, "propagate", False),
    "no propagation, by the dict": lambda w: w.logger.__dict__.__setitem__("propagate", 0),
    "no propagation, by the class": property_,
    "another parent": lambda w: setattr(w.logger, "parent", logging.Logger("else")),
    "no parent": lambda w: setattr(w.logger, "parent", None),
    "a parent above the parent": lambda w: setattr(w.top, "parent", logging.Logger("above")),
    "disabled": lambda w: setattr(w.logger, "disabled", True),
    "disabled parent": lambda w: setattr(w.top, "disabled", True),
    "a level": lambda w: w.logger.setLevel(logging.ERROR),
    "a level of the parent": lambda w: (w.top.setLevel(logging.ERROR), w.logger._cache.clear()),
    "a level without clearing": lambda w: setattr(w.logger, "level", logging.ERROR),
    "logging.disable": disabled_manager,
    "a filled cache": filled_cache,
    "another cache": lambda w: setattr(w.logger, "_cache", {logging.INFO: False}),
    "no cache": lambda w: w.logger._cache.clear(),
    "a filter": lambda w: w.logger.addFilter(w.refuse),
    "a filter that marks": lambda w: w.logger.addFilter(w.mark),
    "a filter in place": plain_filter,
    "a filter by name": lambda w: w.logger.addFilter(logging.Filter("else")),
    "a filter of the parent": lambda w: w.top.addFilter(w.refuse),
    "a filter of the handler": lambda w: w.handler.addFilter(w.refuse),
    "a marking filter of the handler": lambda w: w.handler.addFilter(w.mark),
    "another list of filters of the handler": lambda w: setattr(w.handler, "filters", [w.refuse]),
    "a formatter": formatter,
    "a level of the handler": lambda w: w.handler.setLevel(logging.ERROR),
    "a level of the handler, by the dict": lambda w: w.handler.__dict__.__setitem__("level", 40),
    "handle of the handler": lambda w: w.wrap(w.handler, "handle"),
    "emit of the handler": lambda w: w.wrap(w.handler, "emit"),
    "a handler with an emit": emitting,
    "handle of the handler's class": handler_class,
    "a closed handler": lambda w: w.handler.close(),
    "a record factory": factory,
    "a record factory, by the module": lambda w: w.wrap(logging, "_logRecordFactory"),
    "LogRecord.__init__": lambda w: w.wrap(logging.LogRecord, "__init__"),
    "LogRecord.getMessage": lambda w: w.wrap(logging.LogRecord, "getMessage"),
    "Logger.handle": lambda w: w.wrap(logging.Logger, "handle"),
    "Logger.callHandlers, as Sentry": lambda w: w.wrap(logging.Logger, "callHandlers"),
    "Logger.makeRecord": lambda w: w.wrap(logging.Logger, "makeRecord"),
    "Logger.makeRecord, as ddtrace": lambda w: w.set(
        logging.Logger, "makeRecord", Proxy(logging.Logger.makeRecord, w.seen)
    ),
    "Logger.callHandlers, as New Relic": lambda w: w.set(
        logging.Logger, "callHandlers", Proxy(logging.Logger.callHandlers, w.seen)
    ),
    "Logger._log": lambda w: w.wrap(logging.Logger, "_log"),
    "Logger.findCaller": lambda w: w.wrap(logging.Logger, "findCaller"),
    "Logger.filter": lambda w: w.wrap(logging.Filterer, "filter"),
    "Logger.info": lambda w: w.wrap(logging.Logger, "info"),
    "Logger.isEnabledFor": lambda w: w.wrap(logging.Logger, "isEnabledFor"),
    "handle of the logger": lambda w: w.wrap(w.logger, "handle"),
    "callHandlers of the logger": lambda w: w.wrap(w.logger, "callHandlers"),
    "makeRecord of the logger": lambda w: w.wrap(w.logger, "makeRecord"),
    "_log of the logger": lambda w: w.wrap(w.logger, "_log"),
    "findCaller of the logger": lambda w: w.wrap(w.logger, "findCaller"),
    "filter of the logger": lambda w: w.wrap(w.logger, "filter"),
    "isEnabledFor of the logger": lambda w: w.wrap(w.logger, "isEnabledFor"),
    "info of the logger": lambda w: w.wrap(w.logger, "info"),
    "another class": subclass,
    "another dict": other_state,
    "another name": lambda w: setattr(w.logger, "name", "renamed"),
    "no source file": lambda w: w.set(logging, "_srcfile", None),
    "no threads": lambda w: w.set(logging, "logThreads", False),
    "no processes": lambda w: w.set(logging, "logProcesses", False),
    "no multiprocessing": lambda w: w.set(logging, "logMultiprocessing", False),
    "a name of a level": level_name,
    "getLevelName": lambda w: w.wrap(logging, "getLevelName"),
    "frozen time": lambda w: w.wrap(time, "time"),
    "another name of the thread": thread_name,
    "threading.current_thread": lambda w: w.wrap(threading, "current_thread"),
    "threading.get_ident": lambda w: w.wrap(threading, "get_ident"),
    "another name of the process": process_name,
    "multiprocessing.current_process": lambda w: w.wrap(multiprocessing, "current_process"),
    "os.getpid": lambda w: w.set(os, "getpid", lambda: 4711),
}


def log(logger: logging.Logger, number: int) -> None:
    """Make calls that take the fast way if nothing forbids it."""
    logger.info("call %d of %s", number, "many", extra={"number": number})
    logger.error("failed", stacklevel=2)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_counts_from_the_next_call_on(name: str) -> None:
    took = []
    for kind in (Logger, logging.Logger):
        world = World(kind)
        try:
            log(world.logger, 0)
            if kind is Logger:
                assert world.logger.obstacle() == ""
            CHANGES[name](world)
            log(world.logger, 1)
            world.undo.close()
            log(world.logger, 2)
        finally:
            world.close()
        took.append(world.taken())
    assert took[0] == took[1]

