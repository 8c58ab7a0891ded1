"""How Spark's JVM starts and ends, and what its workers keep."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ExitCode
from logclient.verify.tuning import Tuning
from tests import support
from tests.support.leftovers import environment, processes_of, remaining_files
from tests.support.patience import PATIENCE, wait_until
from tests.support.verify_scene import Scene

support.need("numpy")
support.need("pyarrow")

pytestmark = pytest.mark.spark


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger().write_capture()


def verify_command(scene: Scene) -> list[str]:
    command = [sys.executable, "-m", "logclient", "verify", "--ledger", str(scene.ledger)]
    return [*command, "--capture", str(scene.capture)]


def silent_java(tmp_path: Path) -> dict[str, str]:
    """Make a Java that makes a file ``started``, never answers and ends with its input, as Spark's does.

    Returns its environment.
    """
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho > {tmp_path}/started\nexec cat\n")
    java.chmod(0o755)
    return environment(tmp_path, JAVA_HOME=str(tmp_path / "java"))


def test_interrupt_ends_a_jvm_that_does_not_answer(scene: Scene, tmp_path: Path) -> None:
    """One line, and neither a process nor a file is left."""
    running = subprocess.Popen(
        verify_command(scene), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=silent_java(tmp_path),
    )  # fmt: skip
    try:
        wait_until((tmp_path / "started").exists, "the JVM was not started", 4 * PATIENCE)
        os.killpg(running.pid, signal.SIGINT)
        out, error = running.communicate(timeout=4 * PATIENCE)
    finally:
        running.kill()
    assert (running.returncode, out, error) == (ExitCode.INTERRUPTED, "", "logclient: interrupted\n")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left", 4 * PATIENCE)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "there is none (JAVA_HOME="),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is version 11"),
        ("echo 'java version \"1.8.0_292\"' >&2", "is version 8"),
        ("echo garbage >&2", "is of no version"),
    ],
)
def test_java_that_is_missing_or_too_old_is_named(
    scene: Scene, tmp_path: Path, script: str | None, words: str
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    done = subprocess.run(
        [*verify_command(scene), "--out", str(scene.out)],
        capture_output=True, text=True, timeout=4 * PATIENCE,
        env=environment(tmp_path, JAVA_HOME=str(tmp_path / "java")),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (ExitCode.UNREACHABLE, "")
    assert done.stderr.startswith("logclient: java: Spark needs Java 17 or newer") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not scene.out.exists() and remaining_files(tmp_path) == []


def test_missing_evidence_is_named_without_spark(scene: Scene, tmp_path: Path) -> None:
    shutil.rmtree(scene.capture)
    done = subprocess.run(
        verify_command(scene), capture_output=True, text=True, timeout=4 * PATIENCE, env=silent_java(tmp_path)
    )
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == f"logclient: capture: {scene.capture}: No such file or directory\n"
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_events_of_spark_are_logged_to_their_end(scene: Scene, tmp_path: Path) -> None:
    """The JVM ends by itself, and leaves nothing else."""
    events = tmp_path / "events"
    events.mkdir()
    log = ["--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{events}"]
    done = subprocess.run(
        [*verify_command(scene), *log], capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(tmp_path),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left", 4 * PATIENCE)
    [finished] = [path.name for path in events.rglob("appstatus_*")]
    assert not finished.endswith(".inprogress")


# -- jobs


@pytest.mark.parametrize(("tuning", "tasks"), [(Tuning(), [1]), (Tuning(together_bytes=0), [2, 2])])
def test_small_comparison_is_one_task(spark: Any, scene: Scene, tuning: Tuning, tasks: list[int]) -> None:
    """It needs no shuffle: its stages have so many tasks."""
    context = spark.sparkContext
    context.setJobGroup(f"jobs of {tasks}", "")
    try:
        assert verify.run(scene.ledger, scene.capture, spark=spark, tuning=tuning).ok
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()

    def found() -> list[int]:
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(f"jobs of {tasks}"))
        stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
        return sorted(stage.numTasks for stage in stages if stage and stage.numCompletedTasks)

    wait_until(lambda: found() == tasks, "the tasks")  # Spark's listeners hear of them a little later


# -- workers


def printed_by(script: str) -> str:
    """Return what a new process prints that runs the script; nothing on stderr."""
    variables = support.clean_environment(
        PYTHONPATH=os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_large_arrays_use_memory_that_was_freed() -> None:
    """The kernel need not clear new pages for each of them."""
    script = """
import resource
from logclient.verify import worker
print(worker.keep_memory())
import numpy as np
[np.ones(1 << 20) for _ in range(6)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    [np.ones(1 << 20) for _ in range(6)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2048)
"""
    assert printed_by(script) == "True\nTrue\n"


def test_modules_imported_by_a_task_are_not_collected() -> None:
    script = """
import gc
from logclient.verify import worker
counts = []
for source in ("", "import decimal", ""):
    exec(source)
    worker.prepare()
    counts.append(gc.get_freeze_count())
print(counts[0] < counts[1] == counts[2])
"""
    assert printed_by(script) == "True\n"


@pytest.mark.long
def test_session_can_be_started_again(scene: Scene, tmp_path: Path) -> None:
    """After a stop the process has no session, and the next verification starts another one."""
    script = f"""
from pyspark import SparkContext
from logclient import verify
for _ in range(2):
    print(verify.run({str(scene.ledger)!r}, {str(scene.capture)!r}).ok, SparkContext._active_spark_context)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(tmp_path),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True None\nTrue None\n", "")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left", 4 * PATIENCE)
