"""CPython's own tests of logging, with loggers and handlers of ours.

Outcomes and documents are compared with those of the standard library's loggers, in a process for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.integrations.cpython_logging import Run
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.long

PROGRAM = "tests.integrations.cpython_logging"

REPEATED = 60
"""How often each log call runs: the first of a logger and level takes the ordinary way."""

COUNTS_HANDLERS = {
    "LastResortTest.test_last_resort": "removes its handler from the root, and expects none to be left",
}


@pytest.fixture(scope="module", autouse=True)
def distributed() -> None:
    try:
        there = find_spec("test.test_logging") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        support.missing("CPython's own tests are not distributed with this Python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def run(logger: str, place: str, times: int, folder: Path) -> Run:
    """Run CPython's tests in a process, which must end well."""
    file = folder / f"{logger}-{place}.json"
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, logger, place, str(times), str(file)], cwd=folder,
        env=support.clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True, text=True, timeout=20 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run(**json.loads(file.read_text()))


@pytest.fixture(scope="module")
def standard(folder: Path) -> Run:
    return run("standard", "none", 1, folder)


def comparable(found: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the documents by test, without what differs from process to process."""
    for documents in found.documents.values():
        for document in documents:
            document.pop("@timestamp")
            document["process"].pop("pid")
            document["process"]["thread"].pop("id")
    return found.documents


def total(found: Run) -> int:
    return sum(map(len, found.documents.values()))


def test_loggers_of_ours_change_no_outcome(standard: Run, folder: Path) -> None:
    assert sum(outcome == "ok" for outcome in standard.outcomes.values()) > 200
    assert run("own", "none", 1, folder).outcomes == standard.outcomes


def test_a_handler_of_ours_beside_the_others_gets_all(standard: Run, folder: Path) -> None:
    """It changes the outcome of those tests only that count handlers."""
    own = run("own", "beside", 1, folder)
    changed = {name for name, outcome in own.outcomes.items() if outcome != standard.outcomes[name]}
    assert {name.removeprefix("test.test_logging.") for name in changed} == COUNTS_HANDLERS.keys()
    assert total(own) > 300
    assert comparable(own) == comparable(run("standard", "beside", 1, folder))


def test_a_handler_of_ours_alone_gets_the_same_without_records(folder: Path) -> None:
    """Tests that read what the other handler writes fail, whichever class the loggers are of."""
    own, ordinary = (run(logger, "instead", REPEATED, folder) for logger in ("own", "standard"))
    assert own.outcomes == ordinary.outcomes
    assert comparable(own) == comparable(ordinary)
    fast = ordinary.records - own.records
    assert fast > 1_000
