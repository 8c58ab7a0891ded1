"""What programs do with a logger gives the same with `logclient.Logger` as with a plain subclass."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import gc
import inspect
import io
import json
import logging
import logging.config
import logging.handlers
import operator
import pdb
import pickle
import queue
import signal
import sys
import threading
import traceback
import types
import unittest
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import blinker
import django.dispatch
import pytest
from celery.utils.log import get_task_logger

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger


class Plain(logging.Logger):
    """What `logclient.Logger` is compared with."""


class Records(logging.Handler):
    """Keep what a reader of a record sees, without what differs at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        extra = sorted(set(vars(record)) - set(vars(logging.makeLogRecord({}))))
        failed = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        stack = record.stack_info is not None
        where = record.funcName, record.filename, record.lineno
        self.seen.append((record.levelname, record.getMessage(), where, failed, stack, extra))


def use_blinker(log: Any) -> Any:
    paid = blinker.Signal()
    paid.connect(log.warning)
    gc.collect()
    return [(receiver == log.warning, result) for receiver, result in paid.send("paid")]


def use_django(log: Any) -> Any:
    def received(sender: str, **_: object) -> None:
        log.warning("%s", sender)

    paid = django.dispatch.Signal()
    paid.connect(received)
    paid.connect(log.info, weak=True)  # takes no keyword `sender`: the error is the same
    gc.collect()
    return [repr(result) for _, result in paid.send_robust("paid")]


def use_debugger(log: Any) -> Any:
    output = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("step\nargs\nup\ncontinue\n"), stdout=output, nosigint=True, readrc=False
    )
    debugger.runcall(debug_here, log)
    return [line for line in output.getvalue().splitlines() if "debug_here" in line]


def debug_here(log: Any) -> None:
    log.info("inside of a debugger")


def use_trace(log: Any) -> Any:
    called: list[str] = []

    def tracer(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        log.info("traced")
    finally:
        sys.settrace(before)
    return "emit" in called  # a compiled method has no frame of its own


def use_profile(log: Any) -> Any:
    called: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        log.info("profiled")
    finally:
        sys.setprofile(before)
    return "emit" in called


def use_configuration(log: Any) -> Any:
    logging.config.dictConfig({
        "version": 1,
        "incremental": True,
        "loggers": {log.name: {"level": "ERROR", "propagate": False}},
    })  # fmt: skip
    log.info("no more")
    log.error("still")
    return log.level, log.propagate


def use_queue(log: Any) -> Any:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    target = Records()
    listener = logging.handlers.QueueListener(waiting, target)
    handler = logging.handlers.QueueHandler(waiting)
    log.addHandler(handler)
    listener.start()
    log.warning("through a %s", "queue")
    listener.stop()
    log.removeHandler(handler)
    return target.seen


def use_memory(log: Any) -> Any:
    target = Records()
    handler = logging.handlers.MemoryHandler(10, target=target)
    log.addHandler(handler)
    log.info("kept")
    before = len(target.seen)
    log.error("flushes")
    log.removeHandler(handler)
    return before, target.seen


def use_adapter(log: Any) -> Any:
    class Tagging(logging.LoggerAdapter[Any]):
        def process(self, msg: Any, kwargs: Any) -> Any:
            return f"[tag] {msg}", kwargs

    adapter = Tagging(logging.LoggerAdapter(log, {"request": 1}), {"user": 2})
    adapter.info("one")
    adapter.log(30, "two", stacklevel=1)
    adapter.setLevel(50)
    adapter.error("none")
    return adapter.name, adapter.isEnabledFor(40), adapter.getEffectiveLevel(), repr(adapter).split("(")[0]


def use_filter(log: Any) -> Any:
    def rewrite(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"rewritten: {record.getMessage()}", ()
        return record.levelno > logging.INFO

    log.addFilter(rewrite)
    log.info("dropped")
    log.warning("kept %d", 1)
    log.removeFilter(rewrite)
    log.info("kept again")
    return log.filters


def use_overrides(log: Any) -> Any:
    kind = type("Own", (type(log),), {
        "makeRecord": lambda self, *args: logging.makeLogRecord({"msg": f"made {args[3]}", "levelno": 30}),
        "findCaller": lambda self, stack_info=False, stacklevel=1: ("own.py", 7, "own", None),
    })  # fmt: skip
    own = kind("own")
    own.handlers = log.handlers
    return own.info("by hand"), own.isEnabledFor(10)


def use_handle(log: Any) -> Any:
    record = log.makeRecord(log.name, 30, "file.py", 3, "made %d", (1,), None, "function", {"extra": 1}, None)
    return log.handle(record), log.callHandlers(record), log.filter(record)


def use_mock(log: Any) -> Any:
    with mock.patch.object(log, "info") as made:
        log.info("not logged")
    log.info("logged")
    return made.mock_calls


def use_wrapper(log: Any) -> Any:
    before = log.info

    @functools.wraps(before)
    def info(msg: str, *args: object) -> None:
        before(f"wrapped: {msg}", *args)

    log.info = info
    log.info("one")
    del log.info
    log.info("two")
    return info.__name__, inspect.signature(info).parameters.keys()


def use_class_patch(log: Any) -> Any:
    with mock.patch.object(type(log), "warning", lambda self, msg: self.error(f"raised: {msg}")):
        log.warning("one")
    log.warning("two")


def use_cases(log: Any) -> Any:
    case = unittest.TestCase()
    with case.assertLogs(log, "INFO") as seen:
        log.info("one")
    with case.assertNoLogs(log, "ERROR"):
        log.warning("two")
    return seen.output


def use_tasks(log: Any) -> Any:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(log.info, "soon")
        await asyncio.sleep(0)  # its turn comes first
        await loop.run_in_executor(None, log.info, "in a %s", "thread")
        await asyncio.gather(*(asyncio.to_thread(log.info, "%d", 1) for _ in range(2)))

    asyncio.run(work())


def use_threads(log: Any) -> Any:
    thread = threading.Thread(target=log.info, args=("in %s", "a thread"))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        return [*pool.map(log.warning, "abc")]


def use_signal(log: Any) -> Any:
    before = signal.signal(signal.SIGUSR1, lambda *_: log.warning("signal"))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def use_warnings(log: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)
        warnings.warn("old", DeprecationWarning, stacklevel=1)


def use_exceptions(log: Any) -> Any:
    try:
        raise ValueError("x")
    except ValueError as error:
        log.exception("one")
        log.error("two", exc_info=error)
        log.error("three", exc_info=(type(error), error, error.__traceback__))
        log.error("four", exc_info=False)
    log.info("five", exc_info=True, stack_info=True)


def use_levels(log: Any) -> Any:
    logging.addLevelName(25, "NOTICE")
    log.notice = functools.partial(log.log, 25)
    log.notice("one")
    log.setLevel("NOTICE")
    log.info("none")
    log.setLevel(logging.NOTSET)
    return (
        log.getEffectiveLevel(),
        error_of(lambda: log.setLevel("NONE")),
        error_of(lambda: log.log("x", "y")),
    )


def use_class_method(log: Any) -> Any:
    type(log).trace = lambda self, msg, *args, **kwargs: self._log(5, msg, args, **kwargs)
    try:
        return log.trace("one %d", 1, extra={"a": 1})
    finally:
        del type(log).trace


def use_disable(log: Any) -> Any:
    logging.disable(logging.WARNING)
    try:
        log.warning("none")
        log.error("one")
        return log.isEnabledFor(30), log.isEnabledFor(40)
    finally:
        logging.disable(logging.NOTSET)


def use_tree(log: Any) -> Any:
    child = log.getChild("a").getChild("b")
    child.info("from a child")
    found = child.name, child.parent.name, child.hasHandlers(), log.manager is logging.Logger.manager
    return [*found, sorted(one.name for one in getattr(log, "getChildren", set)())]


def use_stack_level(log: Any) -> Any:
    def help_out(msg: str) -> None:
        log.info(msg, stacklevel=2)

    help_out("one")
    return error_of(lambda: log.info("two", unknown=1)), error_of(
        lambda: log.info("two", extra={"message": 1})  # noqa: G101
    )


def use_collection(log: Any) -> Any:
    return (
        {log: 1}[log],
        log in [log],
        log == copy.copy(log),
        sorted([log.name]),
        bool(log),
        hash(log) == hash(log),
    )


def use_context(log: Any) -> Any:
    contextvars.copy_context().run(log.info, "in a context")
    with contextlib.ExitStack() as stack:
        stack.callback(log.info, "at its end")
    finalizer = weakref.finalize(stack, log.info, "when it is gone")
    finalizer()


def use_generator(log: Any) -> Any:
    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            log.info("closed")

    made = numbers()
    next(made)
    made.close()


def error_of(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


OWN = {"obstacle", "why_slow"}  # what `logclient.Logger` adds

USES: dict[str, Callable[[Any], Any]] = {
    "signal of blinker": use_blinker,
    "signal of Django": use_django,
    "debugger": use_debugger,
    "settrace": use_trace,
    "setprofile": use_profile,
    "dictConfig": use_configuration,
    "QueueListener": use_queue,
    "MemoryHandler": use_memory,
    "LoggerAdapter": use_adapter,
    "filter that rewrites": use_filter,
    "makeRecord and findCaller of a subclass": use_overrides,
    "handle": use_handle,
    "mock of a method": use_mock,
    "wrapper on the logger": use_wrapper,
    "method of the class replaced": use_class_patch,
    "assertLogs": use_cases,
    "asyncio": use_tasks,
    "threads": use_threads,
    "signal handler": use_signal,
    "warnings": use_warnings,
    "exceptions": use_exceptions,
    "levels": use_levels,
    "method added to the class": use_class_method,
    "logging.disable": use_disable,
    "children": use_tree,
    "stacklevel and errors": use_stack_level,
    "collections": use_collection,
    "context": use_context,
    "generator": use_generator,
    "partial": lambda log: functools.partial(log.log, logging.ERROR, "one %s")("a"),
    "map": lambda log: [*map(log.info, "ab")],
    "methodcaller": lambda log: operator.methodcaller("warning", "one %d", 1)(log),
    "attrgetter": lambda log: operator.attrgetter("info.__name__")(log),
    "getattr by name": lambda log: [getattr(log, name)("x") for name in ("debug", "warn", "fatal")],
    "members": lambda log: [name for name, _ in inspect.getmembers(log, inspect.ismethod) if name not in OWN],
    "directory": lambda log: [name for name in dir(log) if name not in OWN],
    "text": lambda log: (repr(log), str(log), f"{log}"),
    "pickle": lambda log: pickle.loads(pickle.dumps(log)) is log,
    "deep copy": lambda log: copy.deepcopy({"log": log})["log"] is log,
    "mapping as the argument": lambda log: log.info("%(a)s %(b)d", {"a": "x", "b": 2}),
    "too few arguments": lambda log: error_of(lambda: log.info("%s %s", 1)),
    "message of another type": lambda log: [log.info(one) for one in (None, 3, ["a"], ValueError("x"))],
    "traceback of the caller": lambda log: log.info("".join(traceback.format_stack(limit=1)).split(",")[0]),
    "task logger of Celery": lambda log: get_task_logger(f"{log.name}.task").info("in a task"),
}  # fmt: skip


class Shipped:
    """What our handler ships, as a reader of a record sees it: the logger may take its fast way."""

    def __init__(self) -> None:
        self.handler = logclient.Handler(NOWHERE)
        self.queue = QueueOnly(self.handler.client)

    @property
    def seen(self) -> list[Any]:
        documents = [json.loads(body) for body in self.queue.take()]
        self.handler.client.close(timeout=0)
        kept = ("message", "log.level", "log", "log.origin", "error", "error.type")
        return [[document.get(name) for name in kept] for document in documents]


class Read:
    """What a plain handler is given."""

    def __init__(self) -> None:
        self.handler = Records()
        self.seen = self.handler.seen


@pytest.mark.filterwarnings("ignore:The 'warn' method:DeprecationWarning")
@pytest.mark.parametrize("target", [Read, Shipped])
@pytest.mark.parametrize("use", USES)
def test_a_use_gives_what_a_plain_subclass_gives(
    use: str, target: type[Read | Shipped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    found = []
    for kind in (Plain, Logger):
        with monkeypatch.context() as patch:
            patch.setattr(logging, "_loggerClass", kind)
            log = logging.getLogger(f"tests.uses.{kind.__name__}.{use}")
            sink = target()
            log.addHandler(sink.handler)
            log.setLevel(logging.DEBUG)
            result = USES[use](log)
        log.removeHandler(sink.handler)
        log.setLevel(logging.NOTSET)
        found.append(repr((result, sink.seen)).replace("Plain", "Logger"))
    assert found[0] == found[1]
