"""Log calls during which Python code changes logging: whatever it does, memory stays sound.

An attack runs where a call looks at an object of the program: its message, arguments, fields, exception, the
name of the thread, or anything that the garbage collection drops. No document is checked but for its form:
a change counts from the next call on.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from types import CodeType, FunctionType
from typing import Any
from unittest import mock

import logclient
from bench.ours import NOWHERE, QueueOnly
from logclient.records.logger import Logger

JUNK: list[bytes] = []


def reuse_memory() -> None:
    """Fill what was freed."""
    JUNK[:] = [bytes([65 + i % 20]) * (40 + 8 * i) for i in range(60)]


class World:
    """Loggers and handlers that only their names here keep alive."""

    def __init__(self, handlers: int) -> None:
        self.logger: Any = Logger("top.part")
        self.logger.parent = Logger("top")
        self.queues: list[QueueOnly] = []
        for _ in range(handlers):
            self.logger.parent.addHandler(self.handler())
        self.depth = 0
        self.undo = ExitStack()

    def handler(self) -> logclient.Handler:
        made = logclient.Handler(NOWHERE, timeout=0.0, atexit_timeout=0.0)
        self.queues.append(QueueOnly(made.client))
        return made

    def top(self) -> Any:
        """Return the parent, or what the attacks before have left."""
        return self.logger.__dict__.get("parent") or self.logger

    def finish(self) -> int:
        """Put back what was replaced, and return how many documents were made."""
        self.undo.close()
        count = 0
        for queue in self.queues:
            for body in queue.take():
                assert isinstance(json.loads(body), dict)
                count += 1
            queue.client.close(0.0)
        return count


def remove_handlers(world: World) -> None:
    world.top().handlers.clear()


def replace_handlers(world: World) -> None:
    world.top().handlers[:] = [world.handler(), logging.NullHandler()]


def replace_list(world: World) -> None:
    world.top().handlers = [world.handler()]


def set_filter(world: World) -> None:
    for handler in world.top().handlers:
        handler.addFilter(lambda record: True)
    world.logger.addFilter(lambda record: False)


def set_formatter(world: World) -> None:
    for handler in world.top().handlers:
        handler.setFormatter(logging.Formatter("%(message)s"))


def drop_parent(world: World) -> None:
    world.logger.parent = None


def drop_logger(world: World) -> None:
    world.logger = Logger("another")
    world.logger.addHandler(world.handler())


def drop_all(world: World) -> None:
    world.logger.__dict__.clear()
    world.logger = Logger("another")


def replace_class(world: World) -> None:
    class Sub(type(world.logger)):  # type: ignore[misc]
        pass

    world.logger.__class__ = Sub


def replace_dict(world: World) -> None:
    world.logger.__dict__ = {**world.logger.__dict__, "handlers": [], "filters": []}


def forget_levels(world: World) -> None:
    world.logger.__dict__.pop("_cache", None)


def log_again(world: World) -> None:
    if world.depth < 3:
        world.depth += 1
        world.logger.info("again %s", Attacking(lambda: log_again(world)), extra={"depth": world.depth})
        world.logger.exception("again", stack_info=True)


NAMES = random.Random(5)


def rename(world: World) -> None:
    threading.current_thread().name = "".join(NAMES.choices("abc", k=40))
    multiprocessing.current_process().name = "".join(NAMES.choices("abc", k=40))


def patch_logging(world: World) -> None:
    for where, name in (
        (logging, "getLevelName"), (logging.Logger, "handle"), (logging.Logger, "info"),
        (threading, "current_thread"), (multiprocessing, "current_process"),
    ):  # fmt: skip
        before = getattr(where, name)
        world.undo.enter_context(
            mock.patch.object(where, name, lambda *args, _before=before, **named: _before(*args, **named))
        )


def forget_modules(world: World) -> None:
    world.undo.enter_context(mock.patch.dict(sys.modules))
    sys.modules.pop("multiprocessing", None)


def fail(world: World) -> None:
    raise KeyError("attack")


ATTACKS: list[Callable[[World], None]] = [
    remove_handlers, replace_handlers, replace_list, set_filter, set_formatter, drop_parent, drop_logger,
    drop_all, replace_class, replace_dict, forget_levels, log_again, rename, patch_logging, forget_modules,
    fail,
]  # fmt: skip


class Attacking:
    """Runs an attack whatever is asked of it, twice at most."""

    def __init__(self, attack: Callable[[], None]) -> None:
        self.attack = attack
        self.left = 2

    def run(self) -> None:
        if self.left:
            self.left -= 1
            try:
                self.attack()
            finally:
                gc.collect(0)
                reuse_memory()

    def __str__(self) -> str:
        self.run()
        return "attack"

    __repr__ = __str__

    def __bool__(self) -> bool:
        self.run()
        return True

    def __hash__(self) -> int:
        self.run()
        return hash("name")

    def __eq__(self, other: object) -> bool:
        self.run()
        return False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        self.run()
        return Attacking


class Fields(Mapping[str, Any]):
    def __init__(self, attacking: Attacking) -> None:
        self.attacking = attacking

    def __len__(self) -> int:
        self.attacking.run()
        return 1

    def __iter__(self) -> Iterator[str]:
        self.attacking.run()
        return iter(["name"])

    def __getitem__(self, name: str) -> Any:
        self.attacking.run()
        return self.attacking


class Error(Exception):
    def __init__(self, attacking: Attacking) -> None:
        self.attacking = attacking

    def __str__(self) -> str:
        return str(self.attacking)

    def __bool__(self) -> bool:
        return bool(self.attacking)


class Dropped:
    def __init__(self, attacking: Attacking) -> None:
        self.attacking = attacking

    def __del__(self) -> None:
        with suppress(Exception):
            self.attacking.run()


class AttackingThread(threading.Thread):
    """Its name is an attack."""

    attacking: Attacking

    @property
    def name(self) -> str:
        if "attacking" in self.__dict__:
            self.attacking.run()
        return "attack"

    @name.setter
    def name(self, value: str) -> None:
        pass


class Watching(type):
    """A metaclass that runs an attack when a class of it lacks an attribute."""

    attacking: Attacking | None = None

    def __getattr__(cls, name: str) -> Any:
        if Watching.attacking is not None:
            Watching.attacking.run()
        raise AttributeError(name)


class WatchingHandler(logclient.Handler, metaclass=Watching):
    pass


def template() -> None:
    CALL()


CALL: Callable[[], None] = template


def coded(attacking: Attacking, number: int) -> CodeType:
    """Return code that runs an attack when it is freed."""
    code = template.__code__
    return code.replace(co_consts=(*code.co_consts, Dropped(attacking)), co_name=f"f{number}")


def of_a_message(world: World, attacking: Attacking) -> None:
    world.logger.info(attacking)


def of_an_argument(world: World, attacking: Attacking) -> None:
    world.logger.info("%s and %r of %s", "one", attacking, "".join(["t", "hree"]))


def of_the_only_argument(world: World, attacking: Attacking) -> None:
    world.logger.warning("%s", attacking)


def of_a_mapping(world: World, attacking: Attacking) -> None:
    world.logger.log(25, "%(name)s", Fields(attacking))


def of_a_message_that_is_a_mapping(world: World, attacking: Attacking) -> None:
    world.logger.info({"message": "m", "field": attacking, "inner": {"x": [attacking]}})


def of_extra(world: World, attacking: Attacking) -> None:
    world.logger.error(
        "m", extra={"a": attacking, "b": [attacking, {"c": attacking}], "d": Fields(attacking)}
    )


def of_a_name_in_extra(world: World, attacking: Attacking) -> None:
    left, attacking.left = attacking.left, 0
    extra = {attacking: 1, "b": 2}
    attacking.left = left
    world.logger.info("m", extra=extra)


def of_an_error(world: World, attacking: Attacking) -> None:
    world.logger.error("m", exc_info=Error(attacking))
    try:
        raise Error(attacking)
    except Error:
        world.logger.exception("m")


def of_exc_info(world: World, attacking: Attacking) -> None:
    world.logger.error("m", exc_info=attacking)


def of_a_thread(world: World, attacking: Attacking) -> None:
    thread = AttackingThread(target=lambda: world.logger.info("m %d", 1, stack_info=True))
    thread.attacking = attacking
    thread.start()
    thread.join()


def of_a_site(world: World, attacking: Attacking) -> None:
    """Log from more places than are remembered, so that the first one's code is freed."""
    global CALL
    before, CALL = CALL, lambda: world.logger.info("m", stacklevel=2)
    exec(coded(attacking, 0), globals())
    try:
        for number in range(300):
            FunctionType(template.__code__.replace(co_name=f"g{number}"), globals())()
    finally:
        CALL = before


def of_a_decision(world: World, attacking: Attacking) -> None:
    """Attack while it is decided which way the calls go."""
    world.logger.parent.handlers[:] = [WatchingHandler(client=world.queues[0].client)]
    world.logger.info("m")
    world.logger.note = "a change"
    Watching.attacking = attacking
    try:
        world.logger.info("m %s", "one")
    finally:
        Watching.attacking = None


def of_the_collector(world: World, attacking: Attacking) -> None:
    """Attack wherever an object is made that the garbage collection counts."""
    before = gc.get_threshold()

    def hook(phase: str, info: dict[str, int]) -> None:
        with suppress(Exception):
            attacking.run() if phase == "start" else None

    for threshold in range(1, 12):
        attacking.left = 1
        gc.callbacks.append(hook)
        gc.set_threshold(threshold)
        try:
            world.logger.info("%s", "one", extra={"a": 1})
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(hook)


PLACES: list[Callable[[World, Attacking], None]] = [
    of_a_message, of_an_argument, of_the_only_argument, of_a_mapping, of_a_message_that_is_a_mapping,
    of_extra, of_a_name_in_extra, of_an_error, of_exc_info, of_a_thread, of_a_site, of_the_collector,
    of_a_decision,
]  # fmt: skip


def attack_once(place: Callable[[World, Attacking], None], attack: Callable[[World], None], n: int) -> int:
    world = World(handlers=n)
    world.logger.parent.handlers[0].addFilter(lambda record: True) if n == 3 else None  # the ordinary way
    for _ in range(2):
        for level in (10, 20, 25, 30, 40):
            world.logger.log(level, "before")
        world.logger.exception("before")
    with suppress(Exception):
        place(world, Attacking(lambda: attack(world)))
    with suppress(Exception):
        world.logger.info("after")
    return world.finish()


def threads_change_handlers(rounds: int) -> None:
    """Log while other threads replace handlers, filters, levels and classes."""
    world = World(handlers=2)
    logger, top = world.logger, world.logger.parent
    kinds = [type(logger), type("Sub", (type(logger),), {})]
    handlers = [world.handler() for _ in range(4)]
    stop = threading.Event()

    def log(number: int) -> None:
        for i in range(rounds):
            logger.log(20 + i % 3, "%s of %d", Attacking(lambda: None), i, extra={"i": i})
            logger.error("failed", exc_info=ValueError(i), stack_info=i % 50 == 0)

    def change() -> None:
        chance = random.Random(7)
        while not stop.is_set():
            top.handlers[:] = chance.sample(handlers, chance.randrange(3))
            top.handlers = [logclient.Handler(client=world.queues[0].client)]
            logger.__class__ = chance.choice(kinds)
            logger.filters[:] = chance.choice([[], [lambda record: True]])
            logger._cache.clear()
            threading.current_thread().name = f"changing {chance.random()}"

    workers = [threading.Thread(target=log, args=(n,)) for n in range(3)]
    changer = threading.Thread(target=change)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in (changer, *workers):
            thread.start()
        for thread in workers:
            thread.join()
    finally:
        stop.set()
        changer.join()
        sys.setswitchinterval(interval)
    world.finish()


def every_call(rounds: int = 300) -> None:
    """All places, all attacks, with one handler, two, and one that has a filter."""
    names = threading.current_thread().name, multiprocessing.current_process().name
    logging.lastResort = None
    threading.excepthook = lambda error: None
    made = attacks = 0
    for place in PLACES:
        for attack in ATTACKS:
            for n in (1, 2, 3):
                made += attack_once(place, attack, n)
                attacks += 1
                threading.current_thread().name, multiprocessing.current_process().name = names
    assert made > 10 * attacks, (made, attacks)
    threads_change_handlers(rounds)
    print("held")


if __name__ == "__main__":
    every_call()
