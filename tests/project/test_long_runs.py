"""Long runs of tests in parts: the option `--resume`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clean_environment
from tests.support.patience import PATIENCE

TESTS = ("tests/project/test_long_runs.py::test_one", "tests/project/test_long_runs.py::test_another")


# These tests, not those of the tree, where another Python runs a copy of them.
TOP = Path(__file__).resolve().parents[2]


def test_one() -> None:
    assert TOP.is_dir()


def test_another() -> None:
    assert (TOP / "tests").is_dir()


def run(file: Path, *tests: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--resume", str(file), *tests]
    done = subprocess.run(
        command, cwd=TOP, capture_output=True, text=True, env=clean_environment(), timeout=4 * PATIENCE
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_what_has_passed_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "passed"
    assert "1 passed" in run(file, TESTS[0])
    assert file.read_text() == f"{TESTS[0]}\n"
    assert "1 passed, 1 deselected" in run(file, *TESTS)
    assert "2 deselected" in run(file, *TESTS)
