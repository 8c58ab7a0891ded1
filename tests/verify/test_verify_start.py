"""How Spark's JVM and its workers start: the archive of classes, the daemon, and failures of both."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ExitCode
from logclient.verify.stages import SparkStages
from logclient.verify.tuning import Tuning
from tests import support
from tests.support.patience import PATIENCE
from tests.verify.test_verify_session import environment, processes_of, remaining_files, wait_until
from tests.verify_scene import Scene

support.need("numpy")
support.need("pyarrow")
archives = pytest.importorskip("logclient.verify.class_archive")
sessions = pytest.importorskip("logclient.verify.spark")
write_archive = pytest.importorskip("logclient.verify.write_archive")

pytestmark = pytest.mark.spark

NAME = "0123456789abcdef"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger().write_capture()


def verify_command(scene: Scene) -> list[str]:
    command = [sys.executable, "-m", "logclient", "verify", "--ledger", str(scene.ledger)]
    return [*command, "--capture", str(scene.capture)]


def put(folder: Path, data: bytes = b"classes" * 1000, **facts: Any) -> Path:
    """Write an archive of any bytes with its facts."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{NAME}.jsa"
    path.write_bytes(data)
    path.chmod(0o600)
    with path.open("rb") as file:
        known = {"size": len(data), "hash": archives.hash_file(file.fileno()), "options": ["-cp", "a.jar"]}
    (folder / f"{NAME}.json").write_text(json.dumps(known | facts))
    return path


# -- the check before use


def test_archive_is_used_as_it_was_written(tmp_path: Path) -> None:
    path = put(tmp_path / "cache")
    archive = archives.find(str(path.parent), NAME)
    assert (archive.path, archive.options) == (str(path), ["-cp", "a.jar"])
    assert archives.find(str(path.parent), "another") is None


@pytest.mark.parametrize("damage", ["truncated", "longer", "flipped", "empty", "missing", "link", "writable"])
def test_changed_archive_is_not_used(tmp_path: Path, damage: str) -> None:
    path = put(tmp_path / "cache")
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        os.truncate(path, len(data) - 1)
    elif damage == "longer":
        path.write_bytes(bytes(data) + b"\0")
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "empty":
        os.truncate(path, 0)
    elif damage == "missing":
        path.unlink()
    elif damage == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.chmod(0o620)
    assert archives.find(str(path.parent), NAME) is None


@pytest.mark.parametrize(
    "facts", ["", "[]", "{", '{"size": 7000}', '{"size": 7000, "hash": 1, "options": []}']
)
def test_damaged_facts_are_no_archive(tmp_path: Path, facts: str) -> None:
    path = put(tmp_path / "cache")
    path.with_suffix(".json").write_text(facts)
    assert archives.find(str(path.parent), NAME) is None


@pytest.mark.parametrize("options", [None, 5, [1], {"-cp": 1}])
def test_options_that_are_no_texts_are_no_archive(tmp_path: Path, options: Any) -> None:
    path = put(tmp_path / "cache", options=options)
    assert archives.find(str(path.parent), NAME) is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", [".jsa", ".json"])
def test_archive_of_another_user_is_not_used(tmp_path: Path, which: str) -> None:
    path = put(tmp_path / "cache")
    os.chown(path.with_suffix(which), 12345, 12345)
    assert archives.find(str(path.parent), NAME) is None


def test_name_depends_on_java_jars_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    jar = jars / "one.jar"
    jar.write_bytes(b"one")
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    names = [archives.identify("/bin/java", "17.0.15", str(jars))]
    assert archives.identify("/bin/java", "17.0.15", str(jars)) == names[0]
    names.append(archives.identify("/bin/java", "17.0.16", str(jars)))
    names.append(archives.identify("/bin/java2", "17.0.15", str(jars)))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC")
    names.append(archives.identify("/bin/java", "17.0.15", str(jars)))
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    os.utime(jar, ns=(0, 1))
    names.append(archives.identify("/bin/java", "17.0.15", str(jars)))
    jar.write_bytes(b"longer")
    os.utime(jar, ns=(0, 1))
    names.append(archives.identify("/bin/java", "17.0.15", str(jars)))
    jar.rename(jars / "two.jar")
    names.append(archives.identify("/bin/java", "17.0.15", str(jars)))
    monkeypatch.setattr(archives, "OPTIONS", ("-XX:+UseSerialGC",))
    names.append(archives.identify("/bin/java", "17.0.15", str(jars)))
    assert len(set(names)) == len(names)


# -- the folder


def test_folder_is_private_and_below_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(archives.ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert archives.folder() == str(tmp_path / "xdg" / "logclient")
    assert stat.S_IMODE((tmp_path / "xdg" / "logclient").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification has it ignored
    assert archives.folder() == str(tmp_path / "home" / ".cache" / "logclient")
    monkeypatch.setenv(archives.ENVIRONMENT, str(tmp_path / "chosen"))
    assert archives.folder() == str(tmp_path / "chosen")


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o770, 0o755, 0o777])
def test_folder_open_to_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv(archives.ENVIRONMENT, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    assert archives.folder() is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders away")
def test_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(archives.ENVIRONMENT, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)
    assert archives.folder() is None


@pytest.mark.parametrize("value", ["off", "relative/folder", "/dev/null/below"])
def test_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(archives.ENVIRONMENT, value)
    assert archives.folder() is None
    assert list(tmp_path.iterdir()) == []


# -- writing


def test_nothing_is_written_while_another_process_writes(tmp_path: Path) -> None:
    with archives.locked(str(tmp_path)) as ours:
        assert ours
        with archives.locked(str(tmp_path)) as again:
            assert not again
        assert write_archive.write(str(tmp_path)) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]


def test_failed_attempt_is_not_repeated_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is a day later; without memory or disk there is none."""
    started: list[Any] = []
    monkeypatch.setattr(archives.subprocess, "run", lambda *given, **_: started.append(given))
    where = str(tmp_path)
    tried = Path(archives.mark_tried(where, NAME))
    archives.begin_writing(where, NAME)
    assert started == []
    os.utime(tried, (time.time() - 90_000,) * 2)
    archives.begin_writing(where, NAME)
    assert len(started) == 1
    for what in ("MEMORY", "DISK"):
        with monkeypatch.context() as patch:
            patch.setattr(archives, what, 1 << 60)
            archives.begin_writing(where, NAME)
    assert len(started) == 1


def test_old_archives_and_remains_are_removed(tmp_path: Path) -> None:
    """The archives that were used last stay."""
    for i in range(5):
        for kind in ("jsa", "json", "tried"):
            path = tmp_path / f"{i}{NAME}.{kind}"
            path.touch()
            os.utime(path, (1000 + i,) * 2)
    (tmp_path / "new-left").mkdir()
    (tmp_path / "new-left" / "jsa").touch()
    write_archive.prune(str(tmp_path), NAME)
    assert sorted(path.name for path in tmp_path.glob("*.js*")) == [
        f"{i}{NAME}.{kind}" for i in (3, 4) for kind in ("jsa", "json")
    ]
    assert not (tmp_path / "new-left").exists()


def test_jobs_on_made_up_rows_run(spark: Any) -> None:
    """With rows of the same columns as those of a verification."""
    SparkStages(sessions.Session(spark=spark)).exercise()


# -- a JVM


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real archive, written by two programs at once: one of them leaves it to the other."""
    folder = tmp_path_factory.mktemp("cache") / "logclient"
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", "logclient.verify.write_archive"]
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    variables = support.clean_environment(PYTHONPATH=paths, LOGCLIENT_CACHE=str(folder))
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables, cwd=folder
        )
        for _ in range(2)
    ]
    answers = [one.communicate(timeout=10 * PATIENCE)[0] for one in running]
    assert [one.returncode for one in running] == [0, 0], answers
    [path] = folder.glob("*.jsa")
    assert sorted(answers) == ["", f"{path}\n"]
    assert sorted(one.suffix for one in folder.iterdir() if one.name != "lock") == [".jsa", ".json"]
    return folder


def copied(written: Path, tmp_path: Path) -> Path:
    """Return the archive in a folder of its own."""
    shutil.copytree(written, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob("*.jsa")
    return path


SESSION = """
import sys
from pathlib import Path
from logclient.verify import class_archive
from logclient.verify.spark import Session, quiet

class_archive.begin_writing = lambda *_: print("write")
with quiet(), Session("local[1]") as session:
    context = session.context
    maps = Path("/proc", str(session.jvm.process.pid), "maps").read_text()
    print(".jsa" in maps.replace("classes.jsa", "").replace("classes_nocoops.jsa", ""))
    print(session.spark.range(10).count(), context.getConf().get("spark.driver.memory"))
"""


def run_session(tmp_path: Path, cache: Path, **variables: str) -> list[str]:
    """Run a session in a fresh process; return whether it mapped an archive, a count, and what came after."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=8 * PATIENCE, cwd=tmp_path,
        env=environment(tmp_path, **{"LOGCLIENT_CACHE": str(cache), **variables}),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert remaining_files(tmp_path) == []
    assert not list(tmp_path.glob("hs_err*"))
    return done.stdout.splitlines()


only_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")


@only_proc
@pytest.mark.long
def test_jvm_starts_with_the_archive(written: Path, tmp_path: Path) -> None:
    assert run_session(tmp_path, written) == ["True", "10 1g"]


@only_proc
@pytest.mark.long
@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed"])
def test_jvm_starts_without_a_damaged_archive(written: Path, tmp_path: Path, damage: str) -> None:
    """And a new one is written afterwards."""
    path = copied(written, tmp_path)
    size = path.stat().st_size
    if damage == "truncated":
        os.truncate(path, size // 2)
    elif damage == "flipped":
        with path.open("r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 255]))
    else:
        path.with_suffix(".json").unlink()
    assert run_session(tmp_path, path.parent) == ["False", "10 1g", "write"]


@only_proc
@pytest.mark.long
@pytest.mark.parametrize("how", ["killed by the archive", "an option that it refuses"])
def test_jvm_that_dies_is_started_once_more_without_the_archive(
    written: Path, tmp_path: Path, how: str
) -> None:
    """Its facts fit, so only the death of the JVM shows that the archive is of no use."""
    path = copied(written, tmp_path)
    facts = json.loads(path.with_suffix(".json").read_text())
    if how.startswith("killed"):
        os.truncate(path, path.stat().st_size // 2)
        with path.open("rb") as file:
            facts |= {"size": path.stat().st_size, "hash": archives.hash_file(file.fileno())}
    else:
        facts["options"] = ["-XX:MaxHeapFreeRatio=200", *facts["options"]]
    path.with_suffix(".json").write_text(json.dumps(facts))
    assert run_session(tmp_path, path.parent)[:2] == ["False", "10 1g"]
    assert sorted(one.suffix for one in path.parent.iterdir()) == ["", ".tried"]


@only_proc
@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({"JAVA_TOOL_OPTIONS": "-Dother=java"}, ["False", "10 1g", "write"]),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-memory 600m pyspark-shell"}, ["False", "10 600m"]),
        ({"SPARK_DRIVER_MEMORY": "600m"}, ["False", "10 1g"]),
        ({"LOGCLIENT_CACHE": "off"}, ["False", "10 1g"]),
    ],
)
def test_other_settings_do_without_the_archive(
    written: Path, tmp_path: Path, variables: dict[str, str], answer: list[str]
) -> None:
    """Options of Java need another archive; what spark-submit must do is left to it."""
    path = copied(written, tmp_path)
    assert run_session(tmp_path, path.parent, **variables) == answer


@only_proc
@pytest.mark.long
def test_archive_is_written_in_the_background(scene: Scene, tmp_path: Path) -> None:
    """The first verification begins it and does not wait; the process that writes ends by itself."""
    cache = tmp_path / "cache"
    variables = environment(tmp_path, LOGCLIENT_CACHE=str(cache), HOME="/dev/null")
    done = subprocess.run(
        verify_command(scene), capture_output=True, text=True, env=variables, timeout=8 * PATIENCE
    )
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: list(cache.glob("*.json")), "no archive was written")
    wait_until(lambda: not processes_of(tmp_path), "a process is left")
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".jsa", ".json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.glob("*.js*")} == {0o600}
    assert run_session(tmp_path, cache) == ["True", "10 1g"]


@only_proc
@pytest.mark.long
def test_verdict_with_the_archive_leaves_nothing(written: Path, scene: Scene, tmp_path: Path) -> None:
    """The JVM is killed at the end, unless a setting asks for more of it."""
    events = tmp_path / "events"
    events.mkdir()
    log = ["--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{events}"]
    for options in ([], log):
        done = subprocess.run(
            [*verify_command(scene), *options], capture_output=True, text=True, timeout=8 * PATIENCE,
            env=environment(tmp_path, LOGCLIENT_CACHE=str(written)),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (ExitCode.OK, "")
        assert remaining_files(tmp_path) == []
        wait_until(lambda: not processes_of(tmp_path), "a process is left")
    [finished] = [path.name for path in events.rglob("appstatus_*")]
    assert not finished.endswith(".inprogress")


def silent_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make a Java with an archive that never answers but makes a file ``started``; return its environment."""
    real = sessions.find_java()
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\nif [ "$*" = -version ]; then exec {real.path} -version; fi\n'
        f"echo > {tmp_path}/started\nexec sleep 1000\n"
    )
    java.chmod(0o755)
    cache = tmp_path / "cache"
    path = put(cache)
    monkeypatch.setenv("JAVA_HOME", str(home))
    name = archives.identify(str(java), sessions.find_java().version, sessions.jars_folder())
    for one in (path, path.with_suffix(".json")):
        one.rename(cache / f"{name}{one.suffix}")
    return environment(tmp_path, LOGCLIENT_CACHE=str(cache), JAVA_HOME=str(home))


def test_interrupt_ends_a_jvm_that_does_not_answer(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and neither a process nor a file is left."""
    running = subprocess.Popen(
        verify_command(scene), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=silent_java(tmp_path, monkeypatch),
    )  # fmt: skip
    try:
        wait_until((tmp_path / "started").exists, "the JVM was not started")
        os.killpg(running.pid, signal.SIGINT)
        out, error = running.communicate(timeout=4 * PATIENCE)
    finally:
        running.kill()
    assert (running.returncode, out, error) == (ExitCode.INTERRUPTED, "", "logclient: interrupted\n")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left")


def test_missing_evidence_is_named_while_the_jvm_starts(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not wait for the JVM, and ends it."""
    shutil.rmtree(scene.capture)
    done = subprocess.run(
        verify_command(scene), capture_output=True, text=True, timeout=4 * PATIENCE,
        env=silent_java(tmp_path, monkeypatch),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == f"logclient: capture: {scene.capture}: No such file or directory\n"
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left")


def test_version_of_java_is_read_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JVM is started for it. A folder without a version is no JDK's, so that Java is asked."""
    java, release = tmp_path / "bin" / "java", tmp_path / "release"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    release.write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.9"\n')
    assert sessions.find_java() == (str(java), release.read_text())
    release.write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(sessions.VerifyError, match="is version 11: set JAVA_HOME"):
        sessions.find_java()
    release.write_text("NAME=y\n")
    assert sessions.find_java() == (str(java), 'openjdk version "21.0.1"\n')


# -- jobs


@pytest.mark.parametrize(("tuning", "tasks"), [(Tuning(), [1]), (Tuning(together_bytes=0), [1, 2])])
def test_small_comparison_is_one_task(spark: Any, scene: Scene, tuning: Tuning, tasks: list[int]) -> None:
    """It needs no shuffle: its stages have so many tasks."""
    context = spark.sparkContext
    context.setJobGroup(f"jobs of {tasks}", "")
    try:
        assert verify.run(scene.ledger, scene.capture, spark=spark, tuning=tuning).ok
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()
    [job] = tracker.getJobIdsForGroup(f"jobs of {tasks}")
    stages = [tracker.getStageInfo(stage) for stage in tracker.getJobInfo(job).stageIds]
    assert sorted(stage.numTasks for stage in stages) == tasks


# -- workers


def printed_by(script: str, **more: str) -> str:
    """Return what a new process prints that runs the script, with more variables; nothing on stderr."""
    variables = support.clean_environment(
        PYTHONPATH=os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=variables | more
    )
    assert done.stderr == ""
    return done.stdout


def test_daemon_starts_no_thread() -> None:
    """A fork copies only one thread; others may hold locks that are then never released."""
    script = """
import os
from logclient.verify import daemon
daemon.prepare("pyspark.worker")
print(len(os.listdir("/proc/self/task")))
"""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    assert printed_by(script, **threads) == "1\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_large_arrays_use_memory_that_was_freed() -> None:
    """The kernel need not clear new pages for each of them."""
    script = """
import resource
from logclient.verify import daemon
print(daemon.keep_memory())
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
from logclient.verify.daemon import freeze_imports
counts = []
for source in ("", "import decimal", ""):
    exec(source)
    freeze_imports()
    counts.append(gc.get_freeze_count())
print(counts[0] < counts[1] == counts[2])
"""
    assert printed_by(script) == "True\n"


def test_workers_begin_with_their_imports(spark: Any) -> None:
    def look(batches: Any) -> Any:
        import gc
        import sys

        import pyarrow as pa

        for batch in batches:
            found = "logclient.verify.gather" in sys.modules and gc.get_freeze_count() > 0
            yield pa.record_batch([[found] * len(batch)], names=["found"])

    with sessions.no_pandas():
        rows = spark.range(2).mapInArrow(look, "found boolean").collect()
    assert [row.found for row in rows] == [True, True]


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
    wait_until(lambda: not processes_of(tmp_path), "a process is left")
