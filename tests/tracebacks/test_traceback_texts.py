"""The texts of exceptions equal those of `logging.Formatter`, whatever happens to sources and functions."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.tracebacks import ExceptionFormatter
from tests.support import TESTED, clean_environment, missing
from tests.support.patience import PATIENCE
from tests.tracebacks.failing_modules import (
    FAILURES,
    LINKS,
    Counting,
    Module,
    Plain,
    exc_info,
    fail,
    modules,
    raised,
)

standard = logging.Formatter().formatException
NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def outcome(call: Any, given: Any) -> str:
    Counting.asked = 0
    try:
        return str(call(given))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


class Scene:
    """A formatter, and modules whose functions fail."""

    def __init__(self, folder: Path) -> None:
        self.formatter = ExceptionFormatter()
        self.modules = modules(folder, random.Random(1))
        self.again = 0

    def check(self, error: BaseException, ours_first: bool = True) -> None:
        """Format an exception in both ways, ours twice: new frames, and frames seen before."""
        given = exc_info(error)
        calls = [self.formatter.format, self.formatter.format, standard]
        texts = [outcome(call, given) for call in (calls if ours_first else reversed(calls))]
        assert texts[0] == texts[1] == texts[2]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("sources"))
    yield made
    assert made.formatter.cached or NO_GIL
    assert len(made.formatter.sizes()) > 50 or NO_GIL


FUNCTIONS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=6)
ERRORS = st.tuples(FUNCTIONS, st.sampled_from(FAILURES))
EVENTS = st.sampled_from(["nothing", "nothing", "edit", "delete", "load", "reload"])


def play(scene: Scene, first: Any, second: Any, link: Any, event: str, which: int, ours_first: bool) -> None:
    """Let functions fail, and compare; change a source, and compare the same exception once more."""
    made = [
        fail([scene.modules[m][f] for m, f in functions], failure) for functions, failure in (first, second)
    ]
    error = link(*made)
    scene.check(error, ours_first)
    module = scene.modules[which]
    if event == "reload":
        module.delete()
        module.load()
    elif event != "nothing":
        getattr(module, event)()
    scene.check(error, not ours_first)


@pytest.mark.slow
@settings(max_examples=300)
@given(ERRORS, ERRORS, st.sampled_from(LINKS), EVENTS, st.integers(0, 6), st.booleans())
def test_random_exceptions_have_the_standard_text(
    scene: Scene, first: Any, second: Any, link: Any, event: str, which: int, ours_first: bool
) -> None:
    play(scene, first, second, link, event, which, ours_first)


@pytest.mark.long
@settings(max_examples=50_000)
@given(ERRORS, ERRORS, st.sampled_from(LINKS), EVENTS, st.integers(0, 6), st.booleans())
def test_50_000_random_exceptions_have_the_standard_text(
    scene: Scene, first: Any, second: Any, link: Any, event: str, which: int, ours_first: bool
) -> None:
    play(scene, first, second, link, event, which, ours_first)


@pytest.mark.parametrize("failure", range(len(FAILURES)))
def test_each_kind_of_failure_has_the_standard_text(scene: Scene, failure: int) -> None:
    for link in LINKS:
        error = fail([scene.modules[0][1], scene.modules[3][2]], FAILURES[failure])
        scene.check(link(error, fail([scene.modules[1][0]], FAILURES[0])))


@pytest.mark.slow
def test_exceptions_of_the_tests_of_cpython_are_equal() -> None:
    if find_spec("test") is None or find_spec("test.test_traceback") is None:
        missing("the interpreter is without its package `test`")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.tracebacks.cpython_tests"],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["differences"] == []
    assert figures["compared"] > 200
    assert figures["cached"] > 150 or NO_GIL
    assert done.returncode == 0


@pytest.mark.parametrize(
    "given", [(None, None, None), (ValueError, None, None), (ValueError, ValueError("no trace"), None)]
)
def test_unusual_exc_info_has_the_standard_text(scene: Scene, given: Any) -> None:
    assert scene.formatter.format(given) == standard(given)


@pytest.mark.parametrize("given", [None, (), (1,), (ValueError, "text", None), (ValueError, 1, 2), "abc"])
def test_nonsense_fails_as_with_the_standard_library(scene: Scene, given: Any) -> None:
    assert outcome(scene.formatter.format, given) == outcome(standard, given)


class TestSources:
    """A text is as the source is now, not as it was."""

    @pytest.fixture
    def module(self, tmp_path: Path) -> Module:
        return Module(str(tmp_path / "orders.py"), "orders", random.Random(5), "file")

    @pytest.mark.parametrize("event", ["edit", "delete", "load"])
    def test_a_changed_source_shows_in_the_text(self, module: Module, event: str) -> None:
        formatter = ExceptionFormatter()
        given = exc_info(fail([module[0], module[1]], FAILURES[0]))
        before = [formatter.format(given), formatter.format(given)]
        getattr(module, event)()
        assert formatter.format(given) == standard(given) != before[0] == before[1]

    def test_a_source_that_comes_back_shows_again(self, module: Module) -> None:
        formatter = ExceptionFormatter()
        given = exc_info(fail([module[0]], FAILURES[0]))
        before = formatter.format(given)
        Path(module.path).rename(module.path + ".away")
        assert formatter.format(given) == standard(given) != before
        Path(module.path + ".away").rename(module.path)
        assert formatter.format(given) == standard(given) == before

    def test_a_line_changed_in_the_cache_shows(self, module: Module) -> None:
        """Others put entries into `linecache.cache`, and may change them."""
        import linecache

        formatter = ExceptionFormatter()
        module.kind = "cached"
        module.load()
        given = exc_info(fail([module[0]], FAILURES[0]))
        before = formatter.format(given)
        lines = linecache.cache[module.path][2]  # type: ignore[misc]
        lines[:] = [line.replace("go", "gone") for line in lines]
        assert formatter.format(given) == standard(given) != before


def test_each_str_is_called_once_as_in_the_standard_library() -> None:
    formatter = ExceptionFormatter()
    first = fail([], lambda: (_ for _ in ()).throw(Counting()))
    for link in LINKS:
        given = exc_info(link(fail([], FAILURES[-1]), first))
        assert outcome(formatter.format, given) == outcome(standard, given)


def test_the_first_look_may_be_inside_of_a_handler() -> None:
    """Its samples must not become part of what is handled, whatever that is."""
    for failure in FAILURES:
        formatter = ExceptionFormatter()
        try:
            failure()
        except BaseException:
            assert outcome(formatter.format, sys.exc_info()) == outcome(standard, sys.exc_info())
            assert formatter.cached or NO_GIL


def test_functions_on_one_line_are_not_folded() -> None:
    """Equal lines in a row are folded only if they are of functions of the same name."""
    space: dict[str, Any] = {"__name__": "folded"}
    text = "def a(go): return go()\n" * 2
    exec(compile(text, "<folded>", "exec"), space)
    first = [space["a"]] * 4
    exec(compile(text.replace("a(", "b("), "<folded>", "exec"), space)
    formatter = ExceptionFormatter()
    for chain in (first, [*first, space["b"]], [space["b"], *first] * 2, [space["a"], space["b"]] * 4):
        given = exc_info(fail(chain, FAILURES[0]))
        assert formatter.format(given) == formatter.format(given) == standard(given)


def test_frames_seen_before_are_not_made_again() -> None:
    formatter = ExceptionFormatter()
    given = raised(lambda: (lambda: 1 / 0)())
    formatter.format(given)
    kept = len(formatter.sizes())
    assert (kept, sum(formatter.sizes()) > 500 * kept) == (3, True) if not NO_GIL else kept == 0
    for _ in range(3):
        formatter.format(given)
    assert len(formatter.sizes()) == kept
    formatter.clear()
    assert formatter.sizes() == []


class TestFingerprint:
    def test_it_is_the_hash_of_type_and_functions(self) -> None:
        from tests.oracle.xxh64 import xxh64

        def fall(n: int) -> None:
            if n:
                fall(n - 1)
            raise Plain("17")

        def catch() -> None:
            try:
                fall(3)
            except Plain as error:
                raise KeyError("k") from error

        here = f"{__name__}:TestFingerprint.test_it_is_the_hash_of_type_and_functions.<locals>"
        lines = ["builtins.KeyError", f"{__name__ and raised.__module__}:raised", f"{here}.catch",
                 "tests.tracebacks.failing_modules.Plain", f"{here}.catch", f"{here}.fall"]  # fmt: skip
        expected = f"{xxh64(chr(10).join(lines).encode(), 42):016x}"
        assert ExceptionFormatter().fingerprint(raised(catch)) == expected

    def test_lines_and_messages_do_not_matter(self, tmp_path: Path) -> None:
        module = Module(str(tmp_path / "orders.py"), "orders", random.Random(5), "file")
        formatter = ExceptionFormatter()
        found = set()
        for message in ("one", "two"):
            error = fail([module[0]], partial(int, message))
            found.add(formatter.fingerprint(exc_info(error)))
            Path(module.path).write_text("\n\n" + module.text, encoding="utf-8")
            exec(compile("\n\n" + module.text, module.path, "exec"), module.space)
        assert len(found) == 1

    def test_cycles_end(self) -> None:
        for link in LINKS:
            error = link(fail([], FAILURES[0]), fail([], FAILURES[1]))
            assert len(ExceptionFormatter().fingerprint(exc_info(error))) == 16
