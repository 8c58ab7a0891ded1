"""Row `logger`: what a call such as ``logger.info("user %s did %s in %d ms", a, b, n)`` costs the program.

The same calls, from functions of this module, go to `logclient.Logger` and to the logger of the standard
library, each with a handler of ours; to the latter with a handler that drops everything, the least that
logging can cost; and to other libraries that end in a sink that drops everything. Documents of both ways are
decoded and compared before the timed runs. After each the queue is emptied and counted.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench.data import failing_records
from bench.handler import BOUND, NAMES
from bench.harness import Contender, NotExact, Row, Target, compare, judge, lines
from bench.ours import NOWHERE, QueueOnly
from bench.peers import logstash_async
from logclient.records.logger import Logger

CALLS = 1000
OURS = "logclient.Logger"
NULL = "logging.Logger, NullHandler"
PLAIN = "logging.Logger, logclient.Handler"
WAYS = ("", ", two extra", ", exc_info", ", redact", ", sample", ", bind")
TARGETS = [
    Target(OURS, NULL, "<=", 0.11),
    Target(OURS, PLAIN, "<=", 0.14),
    Target(OURS + WAYS[1], PLAIN + WAYS[1], "<=", 0.22),
    *(Target(OURS + way, PLAIN + way, "<=", 0.5) for way in WAYS[2:]),
    Target(OURS + ", disabled level", "logging.Logger, disabled level", "<=", 0.5),
    Target(OURS + ", and a console", PLAIN + ", and a console", "<=", 1.05),
]
Log = Callable[..., object]


def plain(log: Log) -> Callable[[], None]:
    """Make the calls with three arguments."""

    def work() -> None:
        for number in range(CALLS):
            log("user %s did %s in %d ms", "alice", "checkout", number)

    return work


def with_extra(log: Log) -> Callable[[], None]:
    """Make them with two fields."""

    def work() -> None:
        for number in range(CALLS):
            extra = {"user_id": number, "request": "7c9e6679"}
            log("user %s did %s in %d ms", "alice", "checkout", number, extra=extra)

    return work


def with_error(log: Log) -> Callable[[], None]:
    """Make them with exceptions whose frames were seen before."""
    errors = [record.exc_info for record in failing_records(CALLS)]

    def work() -> None:
        for number, error in enumerate(errors):
            log("user %s did %s in %d ms", "alice", "checkout", number, exc_info=error)

    return work


def formatted(log: Log) -> Callable[[], None]:
    """Make them for libraries that take fields or braces: the message is formatted by the caller."""

    def work() -> None:
        for number in range(CALLS):
            log(f"user alice did checkout in {number} ms")

    return work


class Pair:
    """Loggers of both classes, each with a handler of ours."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        self.loggers, self.queues = [], []
        for kind in (Logger, logging.Logger):
            handler = logclient_handler(stack, options)
            logger = kind("shop.checkout", logging.INFO)
            logger.addHandler(handler)
            self.loggers.append(logger)
            self.queues.append(QueueOnly(handler.client))

    def contenders(self, way: str, calls: Callable[[Log], Callable[[], None]], level: str = "info") -> Any:
        """Yield one of each, after both have made the same documents."""
        works = [calls(getattr(logger, level)) for logger in self.loggers]
        taken = []
        for work, queue in zip(works, self.queues, strict=True):
            work()
            documents = [json.loads(body) for body in queue.take()]
            for document in documents:
                del document["@timestamp"]
            taken.append(documents)
        if taken[0] != taken[1] or len(taken[0]) != CALLS:
            raise NotExact(f"{way}: the two loggers have made other documents")
        for name, work, queue in zip((OURS, PLAIN), works, self.queues, strict=True):
            yield Contender(name + way, work, CALLS, queue.count)


def logclient_handler(stack: ExitStack, options: dict[str, Any]) -> Any:
    """Make a handler of ours."""
    import logclient

    handler = logclient.Handler(NOWHERE, **options)
    stack.callback(handler.close)
    return handler


def bound(calls: Callable[[Log], Callable[[], None]]) -> Callable[[Log], Callable[[], None]]:
    """Make the calls with two fields that are bound to the context."""

    def make(log: Log) -> Callable[[], None]:
        import logclient

        work = calls(log)

        def work_bound() -> None:
            with logclient.bind(BOUND):
                work()

        return work_bound

    return make


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders."""
    with ExitStack() as stack:
        pairs = [Pair(stack) for _ in range(5)]
        contenders = [
            *pairs[0].contenders(WAYS[0], plain),
            *pairs[1].contenders(WAYS[1], with_extra),
            *pairs[2].contenders(WAYS[2], with_error, "error"),
            *Pair(stack, redact=NAMES).contenders(WAYS[3], plain),
            *Pair(stack, sample={"DEBUG": 0.1, "shop.search": 0.5}).contenders(WAYS[4], plain),
            *pairs[3].contenders(WAYS[5], bound(plain)),
        ]
        again = next(iter(Pair(stack).contenders("", plain)))
        contenders.append(again._replace(name=OURS + " (again)"))
        for logger in pairs[4].loggers:
            console = logging.StreamHandler(io.StringIO())
            logger.addHandler(console)
        for name, logger, queue in zip((OURS, PLAIN), pairs[4].loggers, pairs[4].queues, strict=True):
            contenders.append(Contender(name + ", and a console", plain(logger.info), CALLS, queue.count))
            contenders.append(Contender(f"{name.split(',')[0]}, disabled level", plain(logger.debug), CALLS))
        null = logging.Logger("shop.checkout", logging.INFO)
        null.addHandler(logging.NullHandler())
        contenders.append(Contender(NULL, plain(null.info), CALLS))
        contenders += peers(stack)
        samples = compare(contenders, rounds=rounds or (3 if quick else 15), seed=seed)
    notes = [
        "documents of both loggers decoded and compared before; the queue emptied and counted after each run",
        "NullHandler, loguru, structlog and picologging make no document of what they are given, or drop it",
    ]
    return Row(
        "logger",
        "a log call of a program, to a complete ECS document in the queue",
        "us/call",
        lines(samples),
        judge(samples, TARGETS, (OURS + " (again)", OURS)),
        notes,
        {},
    )


def peers(stack: ExitStack) -> list[Contender]:
    """Make those that are installed."""
    made = []
    try:
        import picologging

        logger = picologging.Logger("shop.checkout", logging.INFO)
        logger.addHandler(picologging.NullHandler())
        made.append(Contender("picologging, NullHandler", plain(logger.info), CALLS))
    except ImportError:
        pass
    try:
        import loguru

        loguru.logger.remove()
        stack.callback(loguru.logger.remove)
        loguru.logger.add(lambda _: None, format="{message}")
        made.append(Contender("loguru, a sink that drops", formatted(loguru.logger.info), CALLS))
    except ImportError:
        pass
    try:
        import structlog

        steps = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ]
        log = structlog.wrap_logger(structlog.ReturnLogger(), processors=steps).info
        made.append(Contender("structlog, JSONRenderer", formatted(log), CALLS))
    except ImportError:
        pass
    if (peer := logstash_async()) is not None:
        stack.callback(peer.close)
        logger = logging.Logger("shop.checkout", logging.INFO)
        logger.addHandler(peer.handler)
        made.append(Contender("python-logstash-async", plain(logger.info), CALLS, None, peer.settle))
    return made
