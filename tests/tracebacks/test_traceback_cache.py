"""What the formatter keeps: its bounds, who else runs meanwhile, and who has changed `traceback`."""

from __future__ import annotations

import gc
import importlib
import json
import linecache
import logging
import os
import random
import subprocess
import sys
import sysconfig
import threading
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logclient._ext.tracebacks import ExceptionFormatter
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE
from tests.tracebacks.failing_modules import (
    BODIES,
    FAILURES,
    LINKS,
    Module,
    Plain,
    exc_info,
    fail,
    raised,
)
from tests.tracebacks.generated import generate, storm

MAX_FRAMES = 1024
MAX_FRAME_BYTES = 4096
standard = logging.Formatter().formatException
NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
needs_gil = pytest.mark.skipif(NO_GIL, reason="frames are kept only under the GIL")


@pytest.fixture
def formatter() -> ExceptionFormatter:
    return ExceptionFormatter()


@pytest.fixture
def module(tmp_path: Path) -> Module:
    return Module(str(tmp_path / "orders.py"), "orders", random.Random(5), "file")


def frames_made(call: Callable[[], Any]) -> int:
    """Return how many frames the standard library formats during a call."""
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_name == "format_frame_summary"

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def run_storm(functions: int, exceptions: int, seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tracebacks.generated", str(functions), str(exceptions)],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures["exceptions"] == exceptions
    assert figures["frames"] <= MAX_FRAMES
    assert figures["bytes"] <= MAX_FRAMES * MAX_FRAME_BYTES == 4 << 20
    assert figures["cached"] or NO_GIL
    return figures


@needs_gil
class TestBounds:
    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_generated_functions_do_not_fill_the_memory(self) -> None:
        figures = run_storm(3_000, 30_000, 4 * PATIENCE)
        assert figures["grown"] < 4 << 20

    @pytest.mark.long
    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_a_million_exceptions_stay_within_the_bound(self) -> None:
        figures = run_storm(100_000, 1_000_000, 3000)
        assert figures["grown"] < 4 << 20

    def test_large_frames_count_with_all_they_refer_to(self, formatter: ExceptionFormatter) -> None:
        """Lines as long as may be kept: the table is full, and within the bound."""
        kept = []
        for i in range(3 * MAX_FRAMES):
            name = f"<large {i}>"
            source = f"def large(value): return {i} / value  # {'x' * 1500}\n"
            linecache.cache[name] = (len(source), None, [source], name)
            space: dict[str, Any] = {}
            exec(compile(source, name, "exec"), space)
            kept.append(space["large"])
            formatter.format(raised(partial(kept[-1], 0)))
            del linecache.cache[name]
        assert 3 << 20 < sum(formatter.sizes()) <= 4 << 20
        assert len(formatter.sizes()) > 900

    def test_a_frame_too_large_is_not_kept(self, formatter: ExceptionFormatter) -> None:
        source = f"def large(value): return 1 / value  # {'x' * 5000}\n"
        linecache.cache["<large>"] = (len(source), None, [source], "<large>")
        space: dict[str, Any] = {}
        exec(compile(source, "<large>", "exec"), space)
        given = raised(partial(space["large"], 0))
        assert formatter.format(given) == standard(given)
        assert frames_made(lambda: formatter.format(given)) == 1
        del linecache.cache["<large>"]

    def test_neither_code_nor_source_is_pinned(self, formatter: ExceptionFormatter, module: Module) -> None:
        code = weakref.ref(module[0].__code__)  # type: ignore[attr-defined]
        given = exc_info(fail([module[0]], FAILURES[0]))
        standard(given)
        lines = linecache.cache[module.path][2]  # type: ignore[misc]
        before = sys.getrefcount(lines)
        formatter.format(given)
        assert frames_made(lambda: formatter.format(given)) == 0
        assert sys.getrefcount(lines) == before
        module.space.clear()
        given = None  # type: ignore[assignment]
        gc.collect()
        assert code() is None

    def test_a_new_code_at_an_old_address_is_another(self, formatter: ExceptionFormatter) -> None:
        addresses = set()
        for i in range(2000):
            space: dict[str, Any] = {}
            exec(compile(f"def render{i}(value): return 1 / value", "<same>", "exec"), space)
            function = space.pop(f"render{i}")
            addresses.add(id(function.__code__))
            given = raised(partial(function, 0))
            assert formatter.format(given) == standard(given)
            del function, given
        assert len(addresses) < 1000

    def test_generated_code_cannot_push_out_the_rest(self, formatter: ExceptionFormatter) -> None:
        """Neither functions that die, nor many that live and fail a few times."""
        rest = [raised(partial(generate(number), 0)) for number in range(200)]
        for _ in range(10):
            for given in rest:
                formatter.format(given)
        storm(formatter, range(1000, 4000), 3)
        alive = [generate(number) for number in range(5000, 9000)]
        for function in alive:
            for _ in range(2):
                formatter.format(raised(partial(function, 0)))
        made = frames_made(lambda: [formatter.format(given) for given in rest])
        assert made <= 20  # a set may lose one place, or be too small for the rest alone

    def test_new_hot_code_takes_the_place_of_old(self, formatter: ExceptionFormatter) -> None:
        old = [raised(partial(generate(number), 0)) for number in range(3000)]
        for _ in range(3):
            for given in old:
                formatter.format(given)
        new = [raised(partial(generate(number), 0)) for number in range(3000, 3100)]
        for _ in range(50):
            for given in new:
                formatter.format(given)
        assert frames_made(lambda: [formatter.format(given) for given in new]) <= 10


class Reentering:
    """Garbage in a cycle whose end formats an exception, and sometimes forgets all frames."""

    count = 0

    def __init__(self, formatter: ExceptionFormatter, given: Any) -> None:
        self.formatter, self.given, self.itself = formatter, given, self

    def __del__(self) -> None:
        Reentering.count += 1
        if Reentering.count % 7 == 0:
            self.formatter.clear()
        self.formatter.format(self.given)


class TestInBetween:
    """Python code that runs while an exception is formatted."""

    def test_destructors_may_format_and_forget(self, formatter: ExceptionFormatter, module: Module) -> None:
        errors = [exc_info(fail([module[i], module[5 - i]], FAILURES[i])) for i in range(6)]
        expected = [standard(given) for given in errors]
        old = gc.get_threshold()
        Reentering.count = 0
        try:
            for i in range(400):
                gc.set_threshold(0)
                for _ in range(3):
                    Reentering(formatter, errors[(i + 1) % 6])
                if i % 3 == 0:
                    formatter.clear()
                gc.set_threshold(1 + i % 40)
                assert formatter.format(errors[i % 6]) == expected[i % 6]
        finally:
            gc.set_threshold(*old)
        assert Reentering.count > 300

    def test_str_may_format_and_forget(self, formatter: ExceptionFormatter) -> None:
        class Busy(Exception):
            def __str__(self) -> str:
                formatter.clear()
                return formatter.format(raised(lambda: 1 / 0))[-40:]

        for link in LINKS[:4]:
            given = exc_info(link(fail([], partial(partial, "x")), fail([], FAILURES[0])))
            given = exc_info(link(Busy(), given[1]))
            for _ in range(3):
                assert formatter.format(given) == standard(given)

    def test_a_loader_may_format(self, formatter: ExceptionFormatter, tmp_path: Path) -> None:
        module = Module(str(tmp_path / "a.zip" / "m.py"), "m", random.Random(5), "loader")
        inner = raised(lambda: 1 / 0)
        get_source, asked = module.get_source, []

        def source(name: str) -> str:
            asked.append(formatter.format(inner))
            return get_source(name)

        module.get_source = source  # type: ignore[method-assign]
        given = exc_info(fail([module[0]], FAILURES[0]))
        linecache.clearcache()
        assert formatter.format(given) == standard(given)
        assert asked == [standard(inner)]

    def test_threads_get_the_standard_texts(self, formatter: ExceptionFormatter, module: Module) -> None:
        errors = [exc_info(fail([module[i % 6], module[i % 5]], FAILURES[i % 5])) for i in range(30)]
        expected = [standard(given) for given in errors]
        wrong: list[str] = []

        def work(draw: random.Random) -> None:
            for _ in range(400):
                i = draw.randrange(len(errors))
                if (text := formatter.format(errors[i])) != expected[i]:
                    wrong.append(text)
                if draw.random() < 0.05:
                    formatter.clear()

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work, args=(random.Random(n),)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        finally:
            sys.setswitchinterval(before)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
    def test_a_child_process_keeps_what_it_inherits(self, formatter: ExceptionFormatter) -> None:
        given = raised(lambda: (lambda: 1 / 0)())
        expected = formatter.format(given)
        pid = os.fork()
        if pid == 0:
            found = frames_made(lambda: formatter.format(given))
            os._exit(0 if formatter.format(given) == expected and (found == 0 or NO_GIL) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert formatter.format(given) == expected == standard(given)

    @needs_gil
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
    def test_a_child_goes_on_where_a_thread_was_looking(self, formatter: ExceptionFormatter) -> None:
        """A thread compares samples while another one forks; in the child nobody ends that look."""
        given = raised(lambda: 1 / 0)
        expected = standard(given)
        inside, go_on = threading.Event(), threading.Event()

        def block(phase: str, info: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(PATIENCE)

        def look() -> None:
            gc.set_threshold(1)
            formatter.format(given)

        old = gc.get_threshold()
        gc.callbacks.append(block)
        thread = threading.Thread(target=look)
        try:
            thread.start()
            assert inside.wait(PATIENCE)
            gc.set_threshold(*old)
            pid = os.fork()
            if pid == 0:
                texts = {formatter.format(given) for _ in range(5000)}
                os._exit(0 if texts == {expected} and formatter.cached else 1)
        finally:
            go_on.set()
            thread.join(PATIENCE)
            gc.callbacks.remove(block)
            gc.set_threshold(*old)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert formatter.format(given) == expected
        assert formatter.cached


class Callable_(str):
    """A function wrapped in an object, as instrumentation does."""

    def __call__(self, *given: Any, file: Any = None, **named: Any) -> None:
        (file or given[-1]).write("wrapped\n")


def print_short(*given: Any, file: Any = None, **named: Any) -> None:
    (file or given[-1]).write("short\n")


def renamed(real: Any) -> Any:
    def patched(self: Any, filename: str, lineno: int, name: str, **named: Any) -> None:
        real(self, filename, lineno, name.upper(), **named)

    return patched


def shout(real: Any) -> Any:
    def patched(*given: Any, **named: Any) -> Any:
        made = real(*given, **named)
        return made.upper() if isinstance(made, str) else [str(one).upper() for one in made]

    return patched


class Short(traceback.TracebackException):
    def format(self, **named: Any) -> Any:
        yield "short\n"


PATCHES: dict[str, tuple[Any, str, Any]] = {
    "print_exception": (traceback, "print_exception", print_short),
    "an object": (traceback, "print_exception", Callable_()),
    "a subclass": (traceback, "TracebackException", Short),
    "format": (traceback.TracebackException, "format", shout(traceback.TracebackException.format)),
    "a frame": (
        traceback.StackSummary, "format_frame_summary", shout(traceback.StackSummary.format_frame_summary)
    ),
    "names": (traceback.FrameSummary, "__init__", renamed(traceback.FrameSummary.__init__)),
    "last lines": (traceback, "_format_final_exc_line", shout(traceback._format_final_exc_line)),  # type: ignore[attr-defined]
    "a message": (traceback, "_cause_message", "\nBecause of this:\n\n"),
    "lines": (linecache, "getlines", lambda file, names=None: ["another line\n"] * 900),
    "formatException": (logging.Formatter, "formatException", lambda self, given: "by the application"),
}  # fmt: skip


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_traceback_goes_the_standard_way(
    formatter: ExceptionFormatter, module: Module, monkeypatch: pytest.MonkeyPatch, patch: str
) -> None:
    given = exc_info(LINKS[1](fail([module[0]], FAILURES[0]), fail([module[1]], FAILURES[1])))
    before = [formatter.format(given), formatter.format(given)]
    assert before == [standard(given)] * 2
    with monkeypatch.context() as patched:
        patched.setattr(*PATCHES[patch])
        linecache.clearcache()
        text = formatter.format(given)
        assert text == formatter.format(given) == logging.Formatter().formatException(given)
        assert ExceptionFormatter().format(given) == text != before[0]
        assert not formatter.cached
    linecache.clearcache()
    assert [formatter.format(given), formatter.format(given)] == before
    assert formatter.cached or NO_GIL


def test_the_limit_of_frames_is_respected(
    formatter: ExceptionFormatter, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = exc_info(fail([module[0], module[1]], FAILURES[0]))
    for limit in (1, 0, -1, None):
        monkeypatch.setattr(sys, "tracebacklimit", limit, raising=False)
        assert formatter.format(given) == standard(given)
    monkeypatch.delattr(sys, "tracebacklimit")
    assert formatter.format(given) == standard(given)
    assert formatter.cached or NO_GIL


@pytest.mark.slow
def test_a_full_stack_does_not_end_the_cache(formatter: ExceptionFormatter) -> None:
    """The first look may find no room for its samples; later ones do."""
    given = raised(lambda: 1 / 0)

    def fall() -> None:
        try:
            fall()
        except RecursionError:
            try:
                formatter.format(given)
            except RecursionError:
                pass
            raise

    for _ in range(2):
        with pytest.raises(RecursionError):
            fall()
    for _ in range(5000):
        assert formatter.format(given) == standard(given)
    assert formatter.cached or NO_GIL


RELOADS = """
import importlib, linecache, logging, sys, traceback
from logclient._ext import tracebacks
from tests.tracebacks.failing_modules import FAILURES, Counting, exc_info, fail

formatter = tracebacks.ExceptionFormatter()
for module in (traceback, linecache, logging, tracebacks, traceback):
    for failure in FAILURES:
        given = exc_info(fail([], failure))
        texts = []
        for call in (logging.Formatter().formatException, formatter.format, formatter.format):
            Counting.asked = 0
            texts.append(call(given))
        assert texts[0] == texts[1] == texts[2], (module, texts)
    assert formatter.cached or sys.argv[1] == "True", module
    importlib.reload(module)
    assert tracebacks.ExceptionFormatter().cached or sys.argv[1] == "True", module
print("done")
"""


def test_modules_of_the_standard_library_may_be_reloaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELOADS, str(NO_GIL)],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr


def test_a_reloaded_module_shows_its_new_source(
    formatter: ExceptionFormatter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "reloaded_orders.py"
    path.write_text("def ship(go):\n    return go()\n")
    module: Any = importlib.import_module("reloaded_orders")
    old = exc_info(fail([module.ship], FAILURES[0]))
    before = formatter.format(old)
    path.write_text("def ship(go):\n    first = 1\n    return first + go()\n")
    importlib.invalidate_caches()
    module = importlib.reload(module)
    new = exc_info(fail([module.ship], FAILURES[0]))
    for given in (new, old, new):
        assert formatter.format(given) == standard(given)
    assert "first + go()" in formatter.format(new)
    assert formatter.format(old) != before
    del sys.modules["reloaded_orders"]


def test_bodies_of_many_lines_are_among_the_random_ones() -> None:
    """The random tests would be worth less without them."""
    assert sum(body.count("\n") > 1 for body in BODIES) > 4
    assert Plain in (type(fail([], failure)) for failure in FAILURES)
