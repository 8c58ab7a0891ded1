"""What programs and tools change of logging at run time, and calls that show it."""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import multiprocessing
import multiprocessing.process
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import logclient
from bench.ours import NOWHERE, QueueOnly


class Memory(logging.Handler):
    """Keeps what records say."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.name, record.levelname, record.getMessage(), record.lineno, record.funcName))


class LoudNull(logging.NullHandler):
    """Notes each record."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def handle(self, record: logging.LogRecord) -> bool:
        self.seen.append(record.getMessage())
        return True


class SomeList(list[Any]):
    """A list whose items need not be where those of a list are."""


class World:
    """A logger below another one, which has our handler; and what was seen beside it."""

    def __init__(self, kind: type[logging.Logger]) -> None:
        self.handler = logclient.Handler(NOWHERE)
        self.queue = QueueOnly(self.handler.client)
        self.above = logging.Logger("above")
        self.top = logging.Logger("top")
        self.logger = kind("top.part")
        self.logger.parent = self.top
        self.top.addHandler(self.handler)
        self.seen: list[Any] = []
        self.memory = Memory(self.seen)
        self.above.addHandler(self.memory)
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

    def add(self, level: int) -> logging.Handler:
        """Add another handler with a level."""
        handler = Memory(self.seen)
        handler.setLevel(level)
        self.top.addHandler(handler)
        log(self.logger, 5)
        return handler

    def mark(self, record: logging.LogRecord) -> bool:
        record.mark = len(self.seen)
        self.seen.append(record.getMessage())
        return True

    def taken(self) -> list[Any]:
        bodies = [json.loads(body) for body in self.queue.take()]
        for body in bodies:
            body["@timestamp"] = body["@timestamp"][:2]  # the century: clocks may be replaced
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


def overridden(name: str) -> Callable[[World], None]:
    """Give the logger a class with a method that notes its keywords, and calls the one below."""

    def change(world: World) -> None:
        kind: Any = type(world.logger)

        def method(self: Any, *args: Any, **named: Any) -> Any:
            world.seen.append([name, len(args), sorted(named)])
            return getattr(super(sub, self), name)(*args, **named)

        sub = type("Sub", (kind,), {name: method})
        world.logger.__class__ = sub

    return change


def refusing(world: World) -> None:
    class Sub(type(world.logger)):  # type: ignore[misc]
        def isEnabledFor(self, level: int) -> bool:
            return level > logging.INFO

    world.logger.__class__ = Sub


def patched_class(world: World) -> None:
    """Replace a method that other methods call, on the class of the logger itself."""
    world.set(type(world.logger), "isEnabledFor", lambda self, level: level > logging.INFO)


def counted_frames(world: World) -> None:
    """Add a handler that finds the caller by a number of frames, as that of loguru's documentation did."""

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.seen.append(sys._getframe(6).f_code.co_name)

    world.top.addHandler(Counting())


def level_property(world: World) -> None:
    class Sub(logclient.Handler):
        level = property(lambda self: minimum[0], lambda self, value: None)  # type: ignore[assignment]

    minimum = [0]
    other = Sub(client=world.handler.client)
    world.top.handlers[:] = [other]
    log(world.logger, 7)
    minimum[0] = logging.ERROR


def strange_parent(world: World) -> None:
    class Strange(logging.Logger):
        def __getattribute__(self, name: str) -> Any:
            return [world.memory] if name == "handlers" else super().__getattribute__(name)

    world.top.__class__ = Strange


def false_parent(world: World) -> None:
    class Collection(type(world.top)):  # type: ignore[misc]
        def __len__(self) -> int:
            return 0

    world.top.__class__ = Collection


def strange_handler(world: World) -> None:
    class Strange(logclient.Handler):
        def __getattribute__(self, name: str) -> Any:
            return world.memory.handle if name == "handle" else super().__getattribute__(name)

    world.top.handlers[:] = [Strange(client=world.handler.client)]


def deleted(where: Any, name: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.set(where, name, None)
        delattr(where, name)

    return change


def without_multiprocessing(world: World) -> None:
    process_name(world)
    log(world.logger, 7)
    world.undo.enter_context(mock.patch.dict(sys.modules))
    del sys.modules["multiprocessing"]


def another_clock(world: World) -> None:
    world.set(time, "time", time.monotonic)
    world.set(time, "time_ns", time.monotonic_ns)


def c_function(function: Any) -> ctypes.c_void_p:
    """Return the place of the C function that a built-in function calls."""
    definition = ctypes.c_void_p.from_address(id(function) + object.__basicsize__).value
    assert definition is not None
    return ctypes.c_void_p.from_address(definition + ctypes.sizeof(ctypes.c_void_p))


def clock_in_c(world: World) -> None:
    """Replace what the clocks call, as time-machine does: no object changes."""
    for function, other in ((time.time, time.monotonic), (time.time_ns, time.monotonic_ns)):
        place = c_function(function)
        world.undo.callback(setattr, place, "value", place.value)
        place.value = c_function(other).value
    world.seen.append(time.time() < 1e9)


def record_subclass(world: World) -> None:
    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            return super().getMessage() + "!"

    world.undo.callback(logging.setLogRecordFactory, logging.getLogRecordFactory())
    logging.setLogRecordFactory(Record)


def many_handlers(world: World) -> None:
    """Have more handlers than are looked at, then ours alone."""
    for _ in range(20):
        world.top.addHandler(Memory(world.seen))
    log(world.logger, 7)
    del world.top.handlers[1:]


CHANGES: dict[str, Callable[[World], object]] = {
    "a handler of the logger": lambda w: w.logger.addHandler(w.memory),
    "a handler of the parent": lambda w: w.top.addHandler(w.memory),
    "no handler": lambda w: w.top.removeHandler(w.handler),
    "another list of handlers": lambda w: setattr(w.top, "handlers", [w.memory]),
    "a handler replaced in place": lambda w: w.top.handlers.__setitem__(0, w.memory),
    "handlers replaced in place": lambda w: w.top.handlers.__setitem__(slice(None), [w.memory, w.handler]),
    "a handler before ours": lambda w: w.top.handlers.insert(0, w.memory),
    "our handler twice": lambda w: w.logger.addHandler(w.handler),
    "a handler of a higher level": lambda w: w.add(logging.ERROR),
    "a handler of a lower level": lambda w: w.add(1),
    "a higher level of a handler": lambda w: w.add(1).setLevel(logging.ERROR),
    "a lower level of a handler": lambda w: w.add(logging.ERROR).setLevel(1),
    "a level that is set in the dict": lambda w: w.add(logging.ERROR).__dict__.__setitem__("level", 1),
    "a NullHandler": lambda w: w.logger.addHandler(logging.NullHandler()),
    "NullHandler alone": lambda w: w.top.handlers.__setitem__(0, logging.NullHandler()),
    "NullHandler.handle": lambda w: (
        w.logger.addHandler(logging.NullHandler()),
        w.wrap(logging.NullHandler, "handle"),
    ),
    "handle of a NullHandler": lambda w: (
        w.logger.addHandler(logging.NullHandler()),
        w.wrap(w.logger.handlers[0], "handle"),
    ),
    "a subclass of NullHandler": lambda w: w.logger.addHandler(LoudNull(w.seen)),
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
    "error of the logger": lambda w: w.wrap(w.logger, "error"),
    "_log of a subclass": overridden("_log"),
    "error of a subclass": overridden("error"),
    "info of a subclass": overridden("info"),
    "isEnabledFor of a subclass": refusing,
    "isEnabledFor of the class": patched_class,
    "findCaller of a subclass": overridden("findCaller"),
    "makeRecord of a subclass": overridden("makeRecord"),
    "callHandlers of a subclass": overridden("callHandlers"),
    "filter of a subclass": overridden("filter"),
    "a handler that counts frames": counted_frames,
    "a property in place of a handler's level": level_property,
    "a parent with a __getattribute__": strange_parent,
    "a parent that is false": false_parent,
    "a handler with a __getattribute__": strange_handler,
    "Logger.warning deleted": deleted(logging.Logger, "warning"),
    "Logger.error deleted": deleted(logging.Logger, "error"),
    "handlers deleted": lambda w: delattr(w.logger, "handlers"),
    "propagate deleted": lambda w: delattr(w.logger, "propagate"),
    "filters deleted": lambda w: delattr(w.logger, "filters"),
    "disabled deleted": lambda w: delattr(w.logger, "disabled"),
    "_cache deleted": lambda w: delattr(w.logger, "_cache"),
    "name deleted": lambda w: delattr(w.logger, "name"),
    "the handler's level deleted": lambda w: delattr(w.handler, "level"),
    "logging._srcfile deleted": deleted(logging, "_srcfile"),
    "logging.currentframe": lambda w: w.set(logging, "currentframe", lambda: sys._getframe(5)),
    "logging._is_internal_frame": lambda w: w.set(logging, "_is_internal_frame", lambda frame: False),
    "another source file": lambda w: w.set(logging, "_srcfile", os.path.normcase(__file__)),
    "no errors raised": lambda w: w.set(logging, "raiseExceptions", False),
    "a class of records": record_subclass,
    "LogRecord.__setattr__": lambda w: w.undo.enter_context(
        mock.patch.object(
            logging.LogRecord, "__setattr__", lambda self, *given: object.__setattr__(self, *given)
        )
    ),
    "another clock in C": another_clock,
    "a clock replaced in C": clock_in_c,
    "the name of the main thread's class": lambda w: w.undo.enter_context(
        mock.patch.object(threading._MainThread, "name", "main", create=True)
    ),
    "the name of the thread's class": lambda w: w.set(threading.Thread, "name", "some"),
    "the name of the process's class": lambda w: w.set(multiprocessing.process.BaseProcess, "name", "worker"),
    "multiprocessing not imported": without_multiprocessing,
    "another process": lambda w: w.set(
        multiprocessing.process, "_current_process", multiprocessing.Process(name="other")
    ),
    "many handlers": many_handlers,
}


def log(logger: logging.Logger, number: int) -> list[Any]:
    """Make calls that take the fast way if nothing forbids it; return what they return or raise."""
    results: list[Any] = []
    calls: list[Callable[[], Any]] = [
        lambda: logger.info("call %d of %s", number, "many", extra={"number": number}),
        lambda: logger.error("failed", stacklevel=2),
        lambda: logger.exception("failed", exc_info=KeyError(number)),
        lambda: logger.log(25, "between"),
        lambda: logger.debug("a level that is not enabled by a handler"),
        lambda: logger.isEnabledFor(logging.INFO),
    ]
    for call in calls:
        try:
            results.append(call())
        except Exception as error:
            results.append(type(error).__name__)
    return results
