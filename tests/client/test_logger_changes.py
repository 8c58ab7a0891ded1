"""What changes logging at run time changes it for `logclient.Logger`, too, from the next call on."""

from __future__ import annotations

import logging
import multiprocessing
import threading

import pytest

from logclient.records.logger import Logger
from tests.support.logger_changes import CHANGES, World, log


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_counts_from_the_next_call_on(name: str) -> None:
    took = []
    for kind in (Logger, logging.Logger):
        world = World(kind)
        try:
            results = log(world.logger, 0) + log(world.logger, 0)
            if kind is Logger:
                assert world.logger.obstacle() == ""
            CHANGES[name](world)
            results += log(world.logger, 1)
            world.undo.close()
            results += log(world.logger, 2)
            took.append([*world.taken(), results])
        finally:
            world.close()
    assert took[0] == took[1]
    assert took[0][0]  # documents


def test_a_level_may_have_the_memory_of_the_one_before() -> None:
    world = World(Logger)
    low = 1000
    try:
        handler = world.add(2 * low)
        for _ in range(20):
            handler.level = low + 1000
            world.logger.log(1500, "below its level")
            handler.level = low + 2000  # ends the first number
            handler.level = low + 1  # takes its place
            world.logger.log(1500, "above its level")
        assert [message for _, _, message, _, _ in world.seen] == ["above its level"] * 20
    finally:
        world.close()


OFTEN = [
    "process name", "thread name", "name", "propagate", "disabled", "propagate of the parent",
    "parent of the parent", "handlers of the parent", "level of the handler", "formatter",
]  # fmt: skip


def set_often(name: str, world: World, number: int) -> None:
    """Change something by code that the interpreter has specialized after some calls."""
    process, thread = multiprocessing.current_process(), threading.current_thread()
    match name:
        case "process name":
            process.name = f"process-{number}"
        case "thread name":
            thread.name = f"thread-{number}"
        case "name":
            world.logger.name = f"name-{number}"
        case "propagate":
            world.logger.propagate = number % 2 == 0
        case "disabled":
            world.logger.disabled = number % 3 == 0
        case "propagate of the parent":
            world.top.propagate = number % 2 == 0
        case "parent of the parent":
            world.top.parent = [None, world.above][number % 2]
        case "handlers of the parent":
            world.top.handlers = [[world.memory], [world.handler]][number % 2]
        case "level of the handler":
            world.handler.setLevel([10, 30, 50][number % 3])
        case "formatter":
            world.handler.setFormatter([None, logging.Formatter("%(lineno)d")][number % 2])


@pytest.mark.parametrize("name", OFTEN)
def test_each_of_many_changes_counts(name: str) -> None:
    process, thread = multiprocessing.current_process(), threading.current_thread()
    before = process.name, thread.name
    took = []
    for kind in (Logger, logging.Logger):
        world = World(kind)
        world.top.parent = world.above
        try:
            for number in range(60):
                set_often(name, world, number)
                log(world.logger, number)
            took.append(world.taken())
        finally:
            process.name, thread.name = before
            world.close()
    assert took[0] == took[1]
    assert took[0][0]
