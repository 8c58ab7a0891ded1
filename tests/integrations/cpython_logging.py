"""Runs CPython's own tests of logging, and writes what each of them gave.

    python -m tests.integrations.cpython_logging LOGGER PLACE TIMES FILE

LOGGER is ``own`` for loggers of the class ``logclient.Logger``, or ``standard``. PLACE is ``beside`` for a
handler of ours beside the one that the tests add to the root logger, ``instead`` for one in place of it, or
``none``. Each log call outside of tests of handlers runs TIMES times. FILE gets a `Run`, as JSON.
"""

from __future__ import annotations

import ast
import json
import logging
import sys
import threading
import unittest
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import logclient
from bench.ours import NOWHERE, QueueOnly

METHODS = {"debug", "info", "warning", "error", "critical", "exception", "log"}


class Run(NamedTuple):
    """What a run has given."""

    outcomes: dict[str, str]
    """By the name of a test: ``ok``, ``skipped``, ``failed`` or ``error``."""
    documents: dict[str, list[dict[str, Any]]]
    """By the name of a test: the documents that it has shipped, in the order of the queue."""
    records: int
    """How many log records the handlers of ours were given: the other documents were made without one."""


class Outcomes(unittest.TestResult):
    """Keeps the outcome of each test, and takes what it has shipped."""

    def __init__(self, begin: Callable[[], object], take: Callable[[], list[dict[str, Any]]]) -> None:
        super().__init__()
        self._begin, self._take = begin, take
        self.outcomes: dict[str, str] = {}
        self.documents: dict[str, list[dict[str, Any]]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin()
        self.outcomes[test.id()] = "ok"

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.documents[test.id()] = self._take()

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.outcomes[test.id()] = "skipped"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.outcomes[test.id()] = "failed"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.outcomes[test.id()] = "error"

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcomes[test.id()] = "failed"


class Repeat(ast.NodeTransformer):
    """Runs each statement that is a log call a number of times.

    Tests of handlers stay as they are: many look at what a server has got last.
    """

    def __init__(self, times: int) -> None:
        self._times = times

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node if node.name.endswith("HandlerTest") else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
        ):
            return node
        [loop] = ast.parse(f"for _ in range({self._times}): pass").body
        assert isinstance(loop, ast.For)
        loop.body = [node]
        return ast.fix_missing_locations(ast.copy_location(loop, node))


def load(times: int) -> Any:
    """Import the tests; `times` is how often a log call runs."""
    spec = find_spec("test.test_logging")
    assert spec is not None and spec.origin is not None and spec.loader is not None
    tree = ast.parse(Path(spec.origin).read_bytes())
    module = sys.modules[spec.name] = module_from_spec(spec)
    sys.modules["test"].test_logging = module  # type: ignore[attr-defined]
    exec(compile(Repeat(times).visit(tree) if times > 1 else tree, spec.origin, "exec"), module.__dict__)
    return module


def run(own: bool, place: str, times: int) -> Run:
    """Run the tests."""
    kind = logclient.Logger if own else logging.Logger
    logging.setLoggerClass(kind)
    tests = load(times)
    client = logclient.connect(NOWHERE)
    queue = QueueOnly(client)
    records = 0

    def count(frame: FrameType, event: str, found: Any) -> None:
        nonlocal records
        if event == "c_call" and found.__name__ == "handle" and isinstance(found.__self__, logclient.Handler):
            records += 1

    def add_handler(test: Any) -> None:
        handler = logclient.Handler(client=client)
        if place == "instead":
            test.root_logger.removeHandler(test.root_hdlr)
            test.root_hdlr = handler
        test.root_logger.addHandler(handler)

    def set_logger(test: Any) -> None:
        test.logger = kind(name="blah")
        test.logger.addHandler(test.recording)

    if place != "none":
        extend(tests.BaseTest, add_handler)
    extend(tests.LoggerTest, set_logger)
    threading.setprofile(count)
    sys.setprofile(count)
    # Some tests set another class of loggers, and then the standard library's.
    result = Outcomes(
        lambda: logging.setLoggerClass(kind), lambda: [json.loads(body) for body in queue.take()]
    )
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    sys.setprofile(None)
    client.close(timeout=0)
    for test, text in result.failures + result.errors:
        print(test, text, sep="\n", file=sys.stderr)
    return Run(result.outcomes, result.documents, records)


def extend(kind: type[unittest.TestCase], more: Callable[[Any], object]) -> None:
    """Have a class of tests call a function at the end of its ``setUp``."""
    before = kind.setUp

    def setUp(self: Any) -> None:
        before(self)
        more(self)

    kind.setUp = setUp  # type: ignore[method-assign]


if __name__ == "__main__":
    logger, place, times, file = sys.argv[1:]
    found = run(logger == "own", place, int(times))
    Path(file).write_text(json.dumps(found._asdict()))
