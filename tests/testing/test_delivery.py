"""`assert_delivered` and the fixture ``log_delivery``."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import logclient
from logclient import testing
from logclient.errors import LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Scene

support.need("numpy")
support.need("pyarrow")


def test_delivered_events_pass(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture()
    verdict = testing.assert_delivered(scene.ledger, scene.capture)
    assert (verdict.exit_code, verdict.counts.ok) == (0, 20)


def test_error_names_each_event(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger()
    scene.write_capture([*range(1, 8), 9, 10, 10, *range(12, 21)])
    with pytest.raises(AssertionError) as caught:
        testing.assert_delivered(scene.ledger, scene.capture)
    first, *lines = str(caught.value).splitlines()
    assert "2 lost" in first
    lost = [line for line in lines if line.startswith("  - lost ")]
    assert [files.event_id(P, seq) in line for seq, line in zip((8, 11), lost, strict=True)] == [True, True]
    assert all(" acked" in line and " made 1970-" in line for line in lost)
    assert next(line for line in lines if line.startswith("  + duplicated ")).endswith("}")


def test_many_faults_are_counted(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture(range(1, 3))
    with pytest.raises(AssertionError) as caught:
        testing.assert_delivered(scene.ledger, scene.capture, examples=5)
    lines = str(caught.value).splitlines()
    assert sum(line.startswith("  - lost ") for line in lines) == 5
    assert "    and 13 more lost" in lines


def test_copies_are_counted_as_copies(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture([1, 1, 1, 1, 1, *range(2, 21), 20, 20])
    with pytest.raises(AssertionError) as caught:
        testing.assert_delivered(scene.ledger, scene.capture, max_duplicated=0)
    lines = str(caught.value).splitlines()
    assert [" 5 copies " in line for line in lines if line.startswith("  + duplicated ")] == [True, False]
    assert not [line for line in lines if " more " in line and "more than" not in line]
    with pytest.raises(AssertionError, match=r"\n    and 2 more copies"):
        testing.assert_delivered(scene.ledger, scene.capture, max_duplicated=0, examples=1)


def test_event_of_no_year_is_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger(created=lambda seq: 253_402_300_800_000_000 + seq)
    scene.write_capture(range(2, 21))
    with pytest.raises(AssertionError, match=r"lost .* made 253402300800000001 us acked"):
        testing.assert_delivered(scene.ledger, scene.capture)


def test_unproven_delivery_is_an_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture(range(1, 20), closed=False)
    with pytest.raises(AssertionError, match="unclosed"):
        testing.assert_delivered(scene.ledger, scene.capture)
    with pytest.raises(LedgerError, match=r"capture: .*: No such file"):
        testing.assert_delivered(scene.ledger, tmp_path / "none")


def test_events_that_the_client_gave_up_or_dropped_are_errors_unless_allowed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    sent = {seq: raw for seq, raw in scene.bodies.items() if seq not in (8, 9, 10)}
    outcomes = {"acked": [*range(1, 8), *range(11, 19)], "failed": [19, 20], "dropped": [8, 9, 10]}
    scene.write_ledger(bodies=sent, outcomes=outcomes).write_capture(outcomes["acked"])
    check = partial(testing.assert_delivered, scene.ledger, scene.capture)
    with pytest.raises(AssertionError, match=r"broken: 2 missing \(more than 0\), 3 dropped \(more than 0\)"):
        check()
    with pytest.raises(AssertionError, match="broken: 3 dropped"):
        check(max_missing=2)
    assert check(max_missing=2, max_dropped="15%").counts.ok == 15


@pytest.mark.parametrize("log_collector_scheme", ["lumberjack", "logjam", "plog", "logux"])
def test_fixture_proves_the_delivery(log_delivery: testing.Delivery, log_collector_scheme: str) -> None:
    url = log_delivery.url + ("/shop-production" if log_collector_scheme == "logjam" else "")
    with logclient.connect(url, ledger=log_delivery.ledger) as client:
        for i in range(50):
            client.send({"message": f"event {i}"})
        assert client.flush(PATIENCE) == 0
    assert log_delivery.check().counts.events == 50


@pytest.mark.slow
def test_fixture_fails_a_test_that_loses_events(tmp_path: Path) -> None:
    """At the end of the test, which itself notices nothing."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import os, logclient\n"
        "def test_it(log_delivery):\n"
        "    with logclient.connect(log_delivery.url, ledger=log_delivery.ledger) as client:\n"
        "        client.send({'message': 'kept'})\n"
        "        assert client.flush(20) == 0\n"
        "    for name in os.listdir(log_delivery.ledger):\n"
        "        with open(os.path.join(log_delivery.ledger, name), 'rb+') as file:\n"
        "            file.truncate(os.path.getsize(file.name) - 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:logclient", "-p", "logclient.testing.pytest_plugin",
         "-p", "no:cacheprovider", str(test)],
        capture_output=True, text=True, timeout=4 * PATIENCE, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert "AssertionError" in done.stdout and "has no end" in done.stdout


FAILING = """
import logging
import logclient, pytest
from logclient.testing import assert_delivered

@pytest.fixture
def log_collector_options():
    return {"faults": "discard=every:1"}

def _send(url, **options):
    logging.getLogger("shop").warning("output of the test")
    with logclient.connect(url, **options) as client:
        client.send({"message": "paid"})

def test_forgets_the_ledger(log_delivery):
    _send(log_delivery.url)

def test_loses(log_delivery):
    _send(log_delivery.url, ledger=log_delivery.ledger)

def test_checks(log_delivery):
    _send(log_delivery.url, ledger=log_delivery.ledger)
    log_delivery.check()

def test_waits(log_collector):
    log_collector.events(2, 0.1)

@pytest.mark.parametrize("log_collector_options", [{"faults": "discard"}])
def test_mistakes_a_fault(log_delivery):
    raise AssertionError

def test_asserts_about_nothing(tmp_path):
    assert_delivered(tmp_path / "none", tmp_path)
"""


def test_failures_say_what_is_wrong_in_a_few_lines(tmp_path: Path) -> None:
    """No line of ours is shown, and the reason stands before what the test has printed."""
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:logclient", "-p", "logclient.testing.pytest_plugin"]
    done = subprocess.run(
        command, cwd=tmp_path, env=support.clean_environment(PYTHONPATH=str(support.ROOT)),
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1 and "3 failed, 2 passed, 3 errors" in done.stdout, done.stdout
    shown = done.stdout.partition("short test summary")[0]
    lines = shown.splitlines()
    forgot = "nobody has written a ledger: give each client ledger=log_delivery.ledger"
    assert sum(forgot in line for line in lines) == 1
    reasons = [line for line in lines if line.startswith("E ")]
    for word in ("No such file", "0 of 2 events", "1 lost", "needs a term"):
        assert any(word in line for line in reasons)
    assert "logclient/" not in shown.replace(str(tmp_path), "") and len(lines) < 90, shown
    [lost] = [part for part in shown.split("ERROR at teardown of ") if part.startswith("test_loses")]
    assert lost.index("1 lost") < lost.index("output of the test")
