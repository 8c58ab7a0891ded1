"""`logclient.Logger`: its documents are those of the standard library's logger with our handler."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger


class Pair:
    """A compiled logger and one of the standard library, each with a handler of ours."""

    def __init__(self, **options: Any) -> None:
        self.handlers = [logclient.Handler(NOWHERE, **options) for _ in range(2)]
        self.queues = [QueueOnly(handler.client) for handler in self.handlers]
        self.fast: logging.Logger = Logger("app.part")
        self.plain = logging.Logger("app.part")
        for logger, handler in zip((self.fast, self.plain), self.handlers, strict=True):
            logger.addHandler(handler)

    def documents(self) -> list[list[dict[str, Any]]]:
        """Return what both have made since the last call, without times and ids."""
        made = []
        for queue in self.queues:
            bodies = [json.loads(body) for body in queue.take()]
            for body in bodies:
                body.pop("@timestamp")
            made.append(bodies)
        return made

    def close(self) -> None:
        for handler in self.handlers:
            handler.client.close(timeout=0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


class Odd:
    def __str__(self) -> str:
        return "odd"


class Broken:
    def __str__(self) -> str:
        raise ValueError("broken")

    __repr__ = __str__


def failing(depth: int = 3) -> BaseException:
    try:
        if depth:
            failing(depth - 1)
        raise ValueError("no such order")
    except ValueError as error:
        return error


VALUES: list[Any] = [
    1, -7, 2**70, 1.5, float("nan"), True, None, "text", "ümläut", "a\"b\\c\n", "\ud800", b"bytes", Odd(),
    Broken(), [1, 2], (1, "x"), {"a": 1}, {}, MappingProxyType({"a": 2}), {"password": "secret", "a": 3},
    object, ValueError("v"),
]  # fmt: skip
MESSAGES: list[Any] = [
    "plain", "user %s", "%s did %s", "%d items", "%(a)s", "%s %s %s", "100%", "%5.1f|%-8s", "%r", "", Odd(),
    7, {"message": "a mapping", "x": 1}, None, Broken(), "ü %s", "%%", "%s %(a)s",
]  # fmt: skip
NAMES = ["user_id", "request", "a.b", "host", "labels", "message_x", "ümläut", "log.level", "event", "x" * 40]


def random_call(chance: random.Random) -> tuple[str, list[Any], dict[str, Any]]:
    """Return a method, its arguments and keywords."""
    method = chance.choice(["debug", "info", "warning", "error", "critical", "exception", "log"])
    args: list[Any] = [chance.choice(MESSAGES)]
    args += [chance.choice(VALUES) for _ in range(chance.choice([0, 0, 1, 1, 2, 3]))]
    if method == "log":
        args.insert(0, chance.choice([0, 5, 10, 20, 25, 30, 40, 50, 60, 2**40]))
    named: dict[str, Any] = {}
    if chance.random() < 0.3:
        named["extra"] = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randint(0, 3))}
    if chance.random() < 0.2:
        named["exc_info"] = chance.choice([True, False, None, failing(), (None, None, None), 1])
    if chance.random() < 0.1:
        named["stack_info"] = chance.choice([True, False])
    if chance.random() < 0.1:
        named["stacklevel"] = chance.choice([1, 2, 3, 50])
    return method, args, named


def both(pair: Pair, method: str, args: list[Any], named: dict[str, Any]) -> None:
    """Make a call with each logger, from one line."""
    for logger in (pair.fast, pair.plain):
        getattr(logger, method)(*args, **named)


def in_lambda(call: Callable[[], None]) -> None:
    (lambda: call())()


def in_generator(call: Callable[[], None]) -> None:
    def steps() -> Iterator[None]:
        yield call()

    list(steps())


def in_exec(call: Callable[[], None]) -> None:
    exec("call()", {"call": call})


def in_coroutine(call: Callable[[], None]) -> None:
    async def run() -> None:
        call()

    coroutine = run()
    with pytest.raises(StopIteration):
        coroutine.send(None)


def in_handler(call: Callable[[], None]) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        call()


SHAPES = [lambda call: call(), in_lambda, in_generator, in_exec, in_coroutine, in_handler]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "options", [{}, {"redact": ["password"], "fields": {"service.name": "shop"}}], ids=str
)
def test_both_ways_make_the_same_documents(seed: int, options: dict[str, Any]) -> None:
    chance = random.Random(seed)
    pair = Pair(**options)
    try:
        for number in range(400):
            call = random_call(chance)
            chance.choice(SHAPES)(lambda call=call: both(pair, *call))
            if number % 20 == 19:
                fast, plain = pair.documents()
                assert fast == plain
                assert Logger.obstacle(pair.fast) == ""
    finally:
        pair.close()
