"""Verification on several machines: folders that workers must see, and executors that die or are replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Scene
from tests.verify.cluster import Cluster, can_mount
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

pytestmark = [pytest.mark.spark, pytest.mark.long]

MEMORY = ("--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1")


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    return support.clean_environment(PYTHONPATH=paths, TMPDIR=str(folder))


def test_workers_must_see_the_evidence(tmp_path: Path) -> None:
    """The error names the folder that they do not see; --out need not be visible to workers."""
    if not can_mount():
        support.missing("unshare -m and mount are not allowed here")
    scene = Scene(tmp_path).write_ledger().write_capture(range(1, 20))
    private = tmp_path / "tmp"
    private.mkdir()
    out = private / "out"
    command = [sys.executable, "-m", "logclient", "verify", "--ledger", str(scene.ledger), *MEMORY]
    with Cluster(tmp_path / "cluster", 1, hidden=private) as cluster:

        def run_verify(*more: str) -> subprocess.CompletedProcess[str]:
            began = time.monotonic()
            done = subprocess.run(
                [*command, "--master", cluster.url, "--out", str(out), *more],
                capture_output=True, text=True, timeout=8 * PATIENCE, env=environment(private),
            )  # fmt: skip
            print(f"{time.monotonic() - began:.1f} s: {done.stderr or done.stdout.splitlines()[-2:]}")
            return done

        hidden = private / "capture"
        hidden.mkdir()
        for path in scene.capture.iterdir():
            (hidden / path.name).write_bytes(path.read_bytes())
        unseen = run_verify("--capture", str(hidden))
        assert unseen.returncode == ExitCode.USAGE
        assert unseen.stderr.startswith(f"logclient: capture: a worker cannot see {hidden}: workers read it")
        assert len(unseen.stderr.splitlines()) == 1
        assert [x.name for x in private.iterdir() if not x.name.startswith("hsperf")] == ["capture"]

        done = run_verify("--capture", str(scene.capture))
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    assert list(verify.violation_ids(out)) == [("lost", files.event_id(P, 20))]
    modes = {path.stat().st_mode & 0o777 for path in (out / "violations").iterdir()}
    assert modes == {0o600}


# -- executors

SCRIPT = """
import json, sys
from logclient import verify
from logclient.verify import comparison, job, runners

master, ledger, capture, out, log, *stages = sys.argv[1:]
comparison.TASK_BYTES = runners.GROUP_BYTES = 1  # a task for each file
runners.HERE_FILES = 0
settings = json.loads(sys.stdin.readline())
tuning = job.Tuning(bucket_bits=2)
with job.Session(master, conf=settings) as session:
    for i, stage in enumerate(stages):
        waiting = [True]

        def progress(text):
            # The parent process kills or stops an executor now, and answers with a line.
            name, _, share = text.partition(",")[0].rpartition(" ")
            if not waiting or not share.endswith("%"):
                return
            share = int(share[:-1])
            wanted, low, high = {
                "survey": ("reading ledgers", 5, 100),
                "read": ("comparing", 5, 35),
                "judge": ("comparing", 45, 100),
            }[stage]
            if name == wanted and low < share < high:
                waiting.clear()
                print(stage, text, flush=True)
                sys.stdin.readline()

        verify.run(ledger, capture, out=f"{out}/{i}", spark=session.spark, tuning=tuning, progress=progress)
        print("verdict", flush=True)
"""


# All tasks of a query are known from its beginning.
ONE_JOB = {"spark.sql.adaptive.enabled": "false"}


def verify_on_cluster(
    tmp_path: Path, what: str, settings: dict[str, str], stages: list[str]
) -> tuple[Any, Path]:
    """Verify once for each stage while `what` happens to one of two executors; return the folders."""
    world = World(7, 60, users=0.1, anonymous=0.1)
    ledger, capture = world.write(tmp_path)
    with Cluster(tmp_path / "cluster") as cluster:
        running = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, cluster.url, ledger, capture, tmp_path / "out", tmp_path, *stages],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(tmp_path),
        )  # fmt: skip
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            running.stdin.write(json.dumps({**ONE_JOB, "spark.executor.memory": "512m", **settings}) + "\n")
            running.stdin.flush()
            reached = []
            for line in running.stdout:
                print(line, end="")
                if line.startswith("verdict"):
                    continue
                reached.append(line.split()[0])
                executors = cluster.executors()
                assert executors
                if what == "kill":
                    os.kill(executors[0], signal.SIGKILL)
                else:
                    # A stopped worker makes Spark begin its task again elsewhere.
                    for pid in cluster.pythons(executors[0]):
                        os.kill(pid, signal.SIGSTOP)
                running.stdin.write("\n")
                running.stdin.flush()
            assert running.wait(timeout=PATIENCE) == 0
        finally:
            running.kill()
            running.communicate()
    assert reached == stages
    return (ledger, capture), tmp_path / "out"


def assert_same_verdicts(tmp_path: Path, folders: Any, out: Path, n: int) -> None:
    expected = inprocess.run(*folders, out=tmp_path / "expected", bits=2)
    assert expected.counts.lost
    assert expected.counts.reordered
    for i in range(n):
        found = json.loads((out / str(i) / "verdict.json").read_text())
        assert found["counts"] == expected.counts._asdict()
        assert found["exit_code"] == expected.exit_code
        faults = [sorted(verify.violation_ids(one)) for one in (out / str(i), tmp_path / "expected")]
        assert faults[0] == faults[1]


def test_killed_executor_changes_no_verdict(tmp_path: Path) -> None:
    """An executor is killed in each stage."""
    stages = ["survey", "read", "judge"]
    folders, out = verify_on_cluster(tmp_path, "kill", {}, stages)
    assert_same_verdicts(tmp_path, folders, out, len(stages))


def test_speculative_attempts_change_no_verdict(tmp_path: Path) -> None:
    """Each stage begins a task again while the first attempt is stopped."""
    stages = ["survey", "read", "judge"]
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.speculation": "true", "spark.speculation.interval": "20ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.05",
        "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }  # fmt: skip
    folders, out = verify_on_cluster(tmp_path, "stop", settings, stages)
    [log] = events.rglob("events_*")
    started = [
        json.loads(line) for line in log.read_text().splitlines() if '"SparkListenerTaskStart"' in line
    ]
    twice = sum(event["Task Info"]["Speculative"] for event in started)
    print(f"{twice} of {len(started)} attempts were speculative")
    assert twice >= len(stages)
    assert_same_verdicts(tmp_path, folders, out, len(stages))
