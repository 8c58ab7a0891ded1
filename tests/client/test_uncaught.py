"""Uncaught exceptions and warnings of real processes, at the collector."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import logclient
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.documents import dotted
from tests.support.patience import PATIENCE

HEAD = """
import asyncio, logging, sys, threading, warnings
import logclient
logging.getLogger().addHandler(logclient.Handler(sys.argv[1]))
hooks = logclient.log_uncaught({arguments})

def fail(*_):
    raise LookupError("größe")
"""


class Run(NamedTuple):
    code: int
    stderr: str
    events: list[dict[str, Any]]


def run(program: str, arguments: str = "", *options: str) -> Run:
    """Run a program to its end; what has arrived is all that there is."""
    text = HEAD.replace("{arguments}", arguments) + program
    with Collector(keep=True) as server:
        done = subprocess.run(
            [sys.executable, *options, "-c", text, server.url],
            capture_output=True,
            encoding="utf-8",
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path), PYTHONIOENCODING="utf-8"),
            timeout=2 * PATIENCE,
        )
        return Run(done.returncode, done.stderr, [dotted(event) for event in server.events()])


def _assert_error(event: dict[str, Any], level: str, message: str, logger: str = "uncaught") -> None:
    assert (event["log.level"], event["message"], event["log.logger"]) == (level, message, logger)
    assert (event["error.type"], event["error.message"]) == ("LookupError", "größe")
    assert event["error.stack_trace"].rstrip().endswith("LookupError: größe")


class TestExceptions:
    def test_one_that_ends_the_process_arrives(self) -> None:
        done = run("fail()")
        [event] = done.events
        _assert_error(event, "critical", "uncaught exception")
        assert (event["log.origin.function"], event["log.origin.file.line"]) == ("fail", 8)
        assert done.code == 1
        assert done.stderr.count("LookupError: größe") == 1

    def test_one_has_the_fields_of_the_innermost_block_that_it_has_left(self) -> None:
        program = """
with logclient.bind(job="nightly", step=1):
    with logclient.bind(step="2", message="of the block"):
        fail()
"""
        [event] = run(program).events
        assert (event["job"], event["step"], event["labels.message"]) == ("nightly", "2", "of the block")

    def test_one_has_the_span_that_was_active_there(self) -> None:
        pytest.importorskip("opentelemetry.sdk")
        program = """
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider(resource=Resource({"service.name": "shop"}))
handler = logclient.Handler(sys.argv[1] + "?opentelemetry=true")
with provider.get_tracer("shop").start_as_current_span("job") as span:
    print(trace.format_trace_id(span.get_span_context().trace_id), file=sys.stderr)
    with logclient.bind():
        fail()
"""
        done = run(program)
        [event] = done.events
        assert event["trace.id"] == done.stderr.split()[0] and event["service.name"] == "shop"

    def test_one_that_has_left_a_block_can_be_sent_to_another_process(self) -> None:
        error = ValueError("wrong")
        with pytest.raises(ValueError), logclient.bind(lock=threading.Lock(), job="nightly"):
            raise error
        assert pickle.loads(pickle.dumps(error)).args == ("wrong",)

    def test_one_with_attributes_of_its_own_does_not_stop_the_hook_from_before(self) -> None:
        for found in ("raise KeyError(name)", "return name"):
            done = run(
                "sys.excepthook = lambda *error: print('before', file=sys.stderr)\n"
                "hooks.restore()\n"
                "logclient.log_uncaught()\n"
                f"class Odd(LookupError):\n    def __getattr__(self, name): {found}\n"
                "raise Odd('größe')\n"
            )
            assert [event["error.type"] for event in done.events] == ["Odd"]
            assert done.stderr == "before\n"

    def test_one_of_a_thread_arrives(self) -> None:
        done = run("threading.Thread(target=fail, name='worker').start()", "'app.crash'")
        [event] = done.events
        _assert_error(event, "error", "uncaught exception in thread worker", "app.crash")
        assert event["process.thread.name"] == "worker"
        assert (done.code, done.stderr.count("LookupError: größe")) == (0, 1)

    def test_one_of_a_destructor_arrives(self) -> None:
        done = run("class Thing:\n    __del__ = fail\n    __repr__ = fail\nThing()", "logging.getLogger('x')")
        [event] = done.events
        assert event["message"].startswith("exception ignored in <function fail at ")
        _assert_error(event, "error", event["message"], "x")
        assert done.code == 0 and "Exception ignored" in done.stderr

    def test_those_of_asyncio_arrive(self) -> None:
        done = run(
            "async def main():\n"
            "    asyncio.get_running_loop().call_soon(fail)\n"
            "    await asyncio.sleep(0)\n"
            "    await asyncio.gather(asyncio.to_thread(fail))\n"
            "asyncio.run(main())\n"
        )
        callback, last = done.events
        assert callback["message"].startswith("Exception in callback fail()")
        _assert_error(callback, "error", callback["message"], "asyncio")
        _assert_error(last, "critical", "uncaught exception")

    def test_one_that_wraps_others_has_them_all(self) -> None:
        done = run("try:\n    fail()\nexcept LookupError as error:\n    raise ValueError('x') from error")
        [event] = done.events
        assert event["error.type"] == "ValueError"
        assert "LookupError: größe" in event["error.stack_trace"]
        assert event["log.origin.file.line"] == 12

    @pytest.mark.parametrize(
        ("program", "code"),
        [
            ("raise SystemExit(3)", 3),
            ("raise KeyboardInterrupt", -2),
            ("threading.Thread(target=sys.exit).start()", 0),
        ],
    )
    def test_those_that_are_no_errors_are_left_alone(self, program: str, code: int) -> None:
        done = run(program)
        assert (done.code, done.events) == (code, [])

    def test_the_hook_from_before_runs(self) -> None:
        theirs = "hooks.restore()\nsys.excepthook = lambda *_: print('theirs', file=sys.stderr)\n"
        done = run(theirs + "logclient.log_uncaught()\nlogclient.log_uncaught('again')\nfail()")
        [event] = done.events
        assert event["log.logger"] == "again"
        assert done.stderr == "theirs\n"

    def test_a_handler_that_raises_hides_nothing(self) -> None:
        done = run("logging.getLogger('uncaught').addFilter(lambda _: 1 / 0)\nfail()")
        assert done.events == []
        assert "LookupError: größe" in done.stderr and "ZeroDivisionError" not in done.stderr

    def test_levels_of_the_logger_count(self) -> None:
        quiet = "logging.getLogger('uncaught').setLevel(logging.CRITICAL)\n"
        done = run(quiet + "thread = threading.Thread(target=fail)\nthread.start()\nthread.join()\nfail()")
        assert [event["log.level"] for event in done.events] == ["critical"]


class TestWarnings:
    PROGRAM = (
        "def old():\n"
        "    warnings.warn('old is old', DeprecationWarning, stacklevel=2)\n"
        "for _ in range(3):\n"
        "    old()\n"
        "warnings.warn('odd')\n"
    )

    def test_they_arrive_once_as_the_filters_say(self) -> None:
        done = run(self.PROGRAM, "warnings=True")
        found = [
            (e["log.level"], e["log.logger"], e["message"], e["error.type"], e["log.origin.file.line"])
            for e in done.events
        ]
        assert found == [
            ("warning", "py.warnings", "old is old", "DeprecationWarning", 12),
            ("warning", "py.warnings", "odd", "UserWarning", 13),
        ]
        assert {event["log.origin.file.name"] for event in done.events} == {"<string>"}
        assert not any("error.stack_trace" in event for event in done.events)
        # Some Pythons add the line of the program.
        assert done.stderr.count("Warning: old is old") == done.stderr.count("Warning: odd") == 1

    @pytest.mark.parametrize(("filters", "expected"), [("always", 4), ("ignore", 0)])
    def test_filters_decide(self, filters: str, expected: int) -> None:
        done = run(self.PROGRAM, "warnings=True", "-W", filters)
        assert len(done.events) == expected

    def test_they_are_not_logged_unless_asked_for(self) -> None:
        done = run(self.PROGRAM)
        assert done.events == [] and "old is old" in done.stderr


class TestRestore:
    @pytest.fixture
    def records(self) -> Iterator[list[logging.LogRecord]]:
        found: list[logging.LogRecord] = []
        hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning

        class Keep(logging.Handler):
            emit = staticmethod(found.append)  # type: ignore[assignment]

        handler = Keep()
        logging.getLogger().addHandler(handler)
        yield found
        logging.getLogger().removeHandler(handler)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks

    def test_hooks_are_as_before(self, records: list[logging.LogRecord]) -> None:
        before = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
        hooks = logclient.log_uncaught(warnings=True)
        now = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
        assert not set(before) & set(now)
        hooks.restore()
        hooks.restore()
        assert (sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning) == before

    def test_a_hook_set_meanwhile_stays(self, records: list[logging.LogRecord]) -> None:
        calls: list[Any] = []
        sys.excepthook = lambda *error: calls.append(("first", *error))
        hooks = logclient.log_uncaught()
        ours = sys.excepthook

        def later(*error: Any) -> None:
            calls.append(("later", *error))
            ours(*error)

        sys.excepthook = later
        hooks.restore()
        assert sys.excepthook is later
        error = LookupError("x")
        sys.excepthook(LookupError, error, None)
        assert calls == [(name, LookupError, error, None) for name in ("later", "first")]
        assert records == []

    def test_exceptions_without_traceback_are_logged(self, records: list[logging.LogRecord]) -> None:
        sys.excepthook = lambda *_: None
        hooks = logclient.log_uncaught()
        sys.excepthook(LookupError, LookupError("x"), None)
        hooks.restore()
        [record] = records
        assert (record.getMessage(), record.levelname) == ("uncaught exception", "CRITICAL")
        assert (record.pathname, record.lineno) == ("(unknown file)", 0)

    def test_anything_but_a_logger_is_refused(self) -> None:
        before = sys.excepthook
        with pytest.raises(TypeError, match=r"logger: must be a name or a logging\.Logger, got int"):
            logclient.log_uncaught(5)  # type: ignore[arg-type]
        assert sys.excepthook is before
