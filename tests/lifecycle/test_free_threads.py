"""Without the GIL: the lock stays off, nothing crashes, every record is counted once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE

KEYS = {"locked", "logged", "sent", "acked", "failed", "dropped", "ignored", "more"}


def assert_storm_lost_nothing(done: subprocess.CompletedProcess[str], locked: bool) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a record of logger" not in done.stderr
    counts = json.loads(done.stdout)
    assert counts.keys() == KEYS
    assert counts["locked"] == locked
    assert counts["logged"] == counts["sent"] == counts["acked"] > 0
    assert counts["failed"] == counts["dropped"] == {}
    assert counts["ignored"] == 0
    assert "plog" in counts["more"]  # Logux needs a package, ZeroMQ one that is hard to build


@pytest.mark.slow
def test_threads_lose_no_record_in_this_python() -> None:
    """The program of the long test, in this interpreter and short."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.lifecycle.free_threads", "0.5"],
        cwd=TESTED, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    assert_storm_lost_nothing(done, locked=getattr(sys, "_is_gil_enabled", lambda: True)())


@pytest.mark.long
@pytest.mark.tree
def test_threads_lose_no_record_in_free_threaded_python() -> None:
    """Eight threads log, others set formatters and filters, read counts and change what is encoded."""
    from tools import freethreaded

    try:
        done = freethreaded.storm(20.0)
    except freethreaded.UnavailableError as error:
        pytest.skip(str(error).splitlines()[0])
    assert_storm_lost_nothing(done, locked=False)
