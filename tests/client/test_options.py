"""Files made from the options: their page and their types for type checkers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

import logclient
from logclient.config.option import Option, all_options
from tests.support import ROOT, clean_environment, missing, need
from tests.support.patience import PATIENCE
from tools import options

USES = ROOT / "tests" / "typing" / "options.py"


@pytest.mark.tree
def test_the_files_made_from_the_options_are_current() -> None:
    assert options.PAGE.read_text(encoding="utf-8") == options.page(), "run: python -m tools.options"
    assert options.TYPES.read_text(encoding="utf-8") == options.types(), "run: python -m tools.options"


def test_each_option_is_listed_with_its_protocol() -> None:
    text = options.page()
    places = {
        "window": ["Lumberjack", "Logux"],
        "tags": ["Lumberjack, Logux", "plog"],
        "max_events": [""],
        "ca": ["TLS"],
        "fields": ["Lumberjack, Logux", "Logjam"],
    }
    for name, titles in places.items():
        [entry] = re.findall(rf"^### {name}\n\n(.*?)(?=\n\n#)", text, re.MULTILINE | re.DOTALL)
        assert titles == re.findall(r"^(?:\*(.+?):\* )?\S", entry, re.MULTILINE)


def test_every_option_has_its_section(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = re.findall(r"^### (\w+)$", options.page(), re.MULTILINE)
    assert set(listed) == set(all_options())
    monkeypatch.setitem(options.GROUPS, "Exit", "timeout")
    with pytest.raises(LookupError, match=r"no section .* atexit_timeout"):
        options.page()


@pytest.mark.tree
def test_no_variable_of_an_option_is_one_for_building_or_tests() -> None:
    places = [ROOT / "setup.py", ROOT / "Makefile", ROOT / "tests" / "conftest.py"]
    for folder in ("tools", "tests/support", "bench", "fuzz"):
        places += (ROOT / folder).glob("*.*")
    places.remove(Path(options.__file__))  # which writes about the variables of options
    text = "".join(path.read_text(encoding="utf-8") for path in places)
    found = set(re.findall(r"\bLOGCLIENT_([A-Z_]+)", text))
    assert {"ONLY", "TREE", "PATIENCE"} < found
    assert {name.lower() for name in found} & {"url", *all_options()} == set()


def test_every_option_has_a_type_that_allows_none() -> None:
    types = typing.get_type_hints(logclient.Options)
    assert set(types) == set(all_options())
    assert all(type(None) in typing.get_args(of) for of in types.values())


EVERY = [one for same in all_options().values() for one in same]


@pytest.mark.parametrize("option", [o for o in EVERY if o.default not in (None, ())], ids=lambda o: o.name)
def test_the_default_is_of_its_type(option: Option) -> None:
    allowed: list[object] = []
    for of in typing.get_args(typing.get_type_hints(logclient.Options)[option.name]):
        literal = typing.get_origin(of) is typing.Literal
        allowed += typing.get_args(of) if literal else [typing.get_origin(of) or of]
    assert any(
        isinstance(option.default, of) if isinstance(of, type) else option.default == of for of in allowed
    )
    assert option.reader(option.default) == option.default


def with_mypy(folder: Path) -> set[int]:
    need("mypy")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-error-summary"),
            *("--cache-dir", str(ROOT / "build" / "mypy-uses"), str(folder / USES.name)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env=clean_environment(MYPYPATH=str(ROOT)),
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^(.+?):(\d+): error:", done.stdout, re.MULTILINE)
    assert {Path(name).name for name, _ in found} == {USES.name}, done.stdout
    return {int(number) for _, number in found}


def with_pyright(folder: Path) -> set[int]:
    installed = Path(sys.prefix) / "pyright" / "node_modules" / "pyright" / "index.js"
    if (node := shutil.which("node")) is None or not installed.exists():
        missing("pyright is not installed: make deps")
    done = subprocess.run(
        [node, str(installed), "--pythonpath", sys.executable, USES.name],
        cwd=folder,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return {int(number) for number in re.findall(r"\.py:(\d+):\d+ - error:", done.stdout)}


@pytest.mark.slow
@pytest.mark.tree
@pytest.mark.parametrize("judge", [with_mypy, with_pyright], ids=["mypy", "pyright"])
def test_type_checkers_find_wrong_options(judge: Callable[[Path], set[int]], tmp_path: Path) -> None:
    """They see the file alone, as in a project that uses the installed package."""
    shutil.copy(USES, tmp_path)
    lines = USES.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) > 15
    assert judge(tmp_path) == wrong
