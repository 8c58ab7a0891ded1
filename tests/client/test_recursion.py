"""Calls that run within other calls end before the stack does; what all handlers of one call share."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from unittest import mock

import pytest

import logclient
from bench.ours import QueueOnly
from logclient.records.logger import Logger
from tests import support
from tests.support.patience import PATIENCE

KIB = 1024
# What runs within a call, and makes the next one.
SHAPES = (
    "argument", "message", "field", "nested field", "key", "exception", "class", "filter", "getMessage",
    "bound", "destructor", "send", "send nested", "submit",
)  # fmt: skip
# Many calls follow the deepest one (an exception's text is wanted several times), or each tries again (errors
# of a destructor reach nobody): with a deep stack it takes long, with handlers of the standard library, too.
LONG = ("exception", "destructor")
PROGRAM = """
import contextlib, json, logging, sys, threading
import logclient

way, shapes, limit, stack = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
if stack:
    threading.stack_size(stack)
if way == "fast":
    logging.setLoggerClass(logclient.Logger)


class Error(Exception):
    def __str__(self):
        step()
        return "error"


class Part:
    def __str__(self):
        step()
        return "part"

    __repr__ = __str__


class Kind(Part):
    @property
    def __class__(self):
        step()
        return Kind


class Drop:
    def __del__(self):
        step()


class Dropping:
    def __str__(self):
        Drop()
        return "dropping"


class Record(logging.LogRecord):
    def getMessage(self):
        step()
        return "message"


class Made(logclient.Handler if way == "subclass" else object):
    def emit(self, record):
        super().emit(record)


def filter_(record):
    step()
    return True


def step():
    global calls
    calls += 1
    part = Part()
    match shape:
        case "argument":
            log.info("a %s", part)
        case "message":
            log.info(part)
        case "field":
            log.info("a", extra={"field": part})
        case "nested field":
            log.info("a", extra={"field": deep(part)})
        case "key":
            log.info("a", extra={"field": {part: 1}})
        case "exception":
            try:
                raise Error
            except Error:
                log.exception("a")
        case "class":
            log.info("a %s", Kind())
        case "filter" | "getMessage":
            log.info("a")
        case "bound":
            with logclient.bind(part=part):
                log.info("a")
        case "destructor":
            log.info("a %s", Dropping())
        case "send" | "send nested":
            with contextlib.suppress(logclient.EncodeError):
                client.send({"field": part if shape == "send" else deep(part)})
        case "submit":
            with contextlib.suppress(logclient.EncodeError):
                client.submit({"field": part})


def deep(value):
    for number in range(120):
        value = {"a": value} if number % 2 else [value]
    return value


def run():
    sys.setrecursionlimit(limit)
    # A call that the standard library itself ends by this error is not counted.
    with contextlib.suppress(RecursionError):
        step()


found = {}
for shape in shapes:
    calls = 0
    options = {"max_events": 100_000, "overflow": "drop_new", "timeout": 0, "atexit_timeout": 0}
    handler = (Made if way == "subclass" else logclient.Handler)("lumberjack://127.0.0.1:9", **options)
    client = handler.client
    log = logging.getLogger(f"recursion.{shape}")
    log.propagate = False
    log.setLevel(10)
    log.addHandler(handler)
    if shape == "filter":
        handler.addFilter(filter_)
    logging.setLogRecordFactory(Record if shape == "getMessage" else logging.LogRecord)
    if stack:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    before = client.stats()
    calls_then, shape = calls, ""
    log.info("the thread goes on")
    found[log.name.partition(".")[2]] = [calls_then, before.sent, client.stats().sent - before.sent]
    client.close(timeout=0)
print(json.dumps(found))
"""


def run(way: str, limit: int, stack: int, shapes: tuple[str, ...]) -> dict[str, list[int]]:
    """Return by shape how many calls were begun and counted, and how many were counted afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, ",".join(shapes), str(limit), str(stack)],
        cwd=support.TESTED, env=support.clean_environment(), capture_output=True, text=True,
        timeout=4 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("stack", [256 * KIB, 512 * KIB, KIB * KIB, 8 * KIB * KIB, 0])
@pytest.mark.parametrize("way", ["fast", "handler", "subclass"])
def test_no_recursion_ends_the_process(way: str, stack: int) -> None:
    for limit in (1_000, 3_000, 10_000, 1_000_000):
        shapes = tuple(shape for shape in SHAPES if stack == 256 * KIB or shape not in LONG)
        if way != "fast":  # there the standard library looks at the class, long before it asks a handler
            shapes = tuple(shape for shape in shapes if shape != "class")
        for shape, (calls, counted, afterwards) in run(way, limit, stack, shapes).items():
            assert calls > 1, shape
            # One that reaches the limit before it comes to us raises, as the standard library's does.
            assert calls - counted in (0, 1), (shape, limit)
            assert afterwards == 1, shape


@pytest.mark.parametrize("options", ["version=1", "strict_spec=true&frames=data"])
def test_bytes_that_cannot_become_pairs_are_refused_at_once(options: str) -> None:
    with logclient.connect(f"lumberjack://127.0.0.1:9?{options}", timeout=0) as client:
        for give in (client.send, client.submit):
            with pytest.raises(logclient.EncodeError, match="JSON frames"):
                give(b'{"n": 1}')
        assert client.stats().sent == 2


def test_one_call_has_one_time_for_all_handlers() -> None:
    handlers = [logclient.Handler("lumberjack://127.0.0.1:9", timeout=0) for _ in range(3)]
    queues = [QueueOnly(handler.client) for handler in handlers]
    logger = Logger("times")
    for handler in handlers:
        logger.addHandler(handler)
    for _ in range(200):
        logger.info("a %d", 1)
        times = {json.loads(body)["@timestamp"] for queue in queues for body in queue.take()}
        assert len(times) == 1
    assert logger.obstacle() == ""
    for handler in handlers:
        handler.client.close(timeout=0)


def test_a_replaced_level_function_is_called_as_often_as_by_the_standard_library() -> None:
    counts = []
    for kind in (Logger, logging.Logger):
        logger, handler = kind("levels"), logclient.Handler("lumberjack://127.0.0.1:9", timeout=0)
        QueueOnly(handler.client)
        logger.addHandler(handler)
        console = logging.StreamHandler(io.StringIO())
        console.setLevel(logging.ERROR)
        logger.addHandler(console)
        with mock.patch.object(logger, "getEffectiveLevel", return_value=20) as level:
            for _ in range(3):
                logger.info("a")
                logger.debug("a")
            counts.append(level.call_count)
        handler.client.close(timeout=0)
    assert counts[0] == counts[1]
