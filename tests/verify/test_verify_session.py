"""The Spark session of a verification: its settings, its progress, and how signals end it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ConfigError, ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.leftovers import environment, processes_of, remaining_files
from tests.support.patience import PATIENCE, wait_until
from tests.support.verify_scene import Scene

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
sessions = pytest.importorskip("logclient.verify.spark")
watching = pytest.importorskip("logclient.verify.watch")

pytestmark = pytest.mark.spark


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger().write_capture()


def read_event_log(folder: Path) -> dict[str, str]:
    """The settings of a Spark application from its event log, its heap in bytes, and its jobs."""
    [log] = folder.rglob("events_*")
    found: dict[str, str] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            found |= event["Spark Properties"]
        if event["Event"] == "SparkListenerBlockManagerAdded":
            found["memory"] = str(event["Maximum Memory"])
        if event["Event"] == "SparkListenerJobEnd":
            found["jobs"] = str(int(found.get("jobs", 0)) + 1)
    return found


# -- settings

SUBMITTED = """
import sys
from logclient import verify
sys.exit(verify.run(sys.argv[1], sys.argv[2]).exit_code)
"""


@pytest.mark.slow
def test_settings_of_spark_submit_win(scene: Scene, tmp_path: Path) -> None:
    home = Path(support.need("pyspark").__file__).parent
    script = tmp_path / "sub.py"
    script.write_text(SUBMITTED)
    events = tmp_path / "events"
    events.mkdir()
    done = subprocess.run(
        [
            str(home / "bin" / "spark-submit"), "--master", "local[1]", "--name", "mine",
            "--conf", "spark.driver.memory=700m", "--conf", "spark.eventLog.enabled=true",
            "--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "--conf", f"spark.eventLog.dir=file://{events}", "--conf", "spark.eventLog.compress=false",
            str(script), str(scene.ledger), str(scene.capture),
        ],
        capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(tmp_path, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"),
    )  # fmt: skip
    assert done.returncode == ExitCode.OK, done.stderr[-2000:]
    found = read_event_log(events)
    assert (found["spark.master"], found["spark.app.name"]) == ("local[1]", "mine")
    assert found["spark.driver.memory"] == "700m"
    assert int(found["memory"]) < 300 << 20  # 60 % of what a heap of 700 MB has left
    assert found["spark.sql.execution.arrow.maxRecordsPerBatch"] == "32"  # our default
    assert found["jobs"] == "1"  # so small a ledger is packed without one


@pytest.mark.long
def test_command_line_wins_over_spark_files(scene: Scene, tmp_path: Path) -> None:
    """spark-defaults.conf, then PYSPARK_SUBMIT_ARGS, then the command line: each is stronger."""
    conf, events = tmp_path / "conf", tmp_path / "events"
    conf.mkdir()
    events.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.memory 600m\nspark.app.name=file\nspark.master = local[3]\n"
        f"spark.eventLog.enabled: true\nspark.eventLog.dir file://{events}\nspark.eventLog.compress false\n"
        "spark.sql.adaptive.enabled false\n"
    )
    command = ["verify", "--ledger", str(scene.ledger), "--capture", str(scene.capture)]
    done = subprocess.run(
        [sys.executable, "-m", "logclient", *command, "--conf", "spark.app.name=line", "--heap", "700m"],
        capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(
            tmp_path, SPARK_CONF_DIR=str(conf),
            PYSPARK_SUBMIT_ARGS="--master local[1] --conf spark.app.name=variable pyspark-shell",
        ),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    found = read_event_log(events)
    assert (found["spark.master"], found["spark.app.name"]) == ("local[1]", "line")
    assert found["spark.driver.memory"] == "700m"
    assert int(found["memory"]) < 300 << 20
    assert found["spark.sql.adaptive.enabled"] == "false"
    assert found["spark.ui.showConsoleProgress"] == "false"
    assert remaining_files(tmp_path) == []


def test_active_session_is_used_and_not_stopped(
    spark: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress shows stage, share and seconds; the job group of the session is restored."""
    monkeypatch.setattr(watching, "INTERVAL_S", 0.001)
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "theirs")
    lines: list[str] = []
    try:
        assert verify.run(scene.ledger, scene.capture, progress=lines.append).ok
        assert context.getLocalProperty("spark.jobGroup.id") == "theirs"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert lines.pop() == ""
    matches = [re.fullmatch(r"([a-zS ]+[a-zS])( \d+%)?, \d+ s", line) for line in lines]
    assert all(matches)
    stages = list(dict.fromkeys(match[1] for match in matches if match))
    known = [
        "looking for files",
        "starting Spark",
        "reading ledgers",
        "comparing",
        "adding up",
        "reading examples",
        "writing the report",
    ]
    assert stages == [stage for stage in known if stage in stages]
    assert "comparing" in stages  # others may be over at once
    assert any(match[2] for match in matches if match)
    assert spark.range(3).count() == 3
    assert support.need("pyspark").SparkContext._active_spark_context is context


def test_settings_of_the_session_are_never_changed(
    spark: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a moment either: other threads may use the session."""
    theirs = spark.conf
    changed = []
    for method in ("set", "unset"):
        real = getattr(type(theirs), method)

        def watched(conf: Any, name: str, *value: Any, real: Any = real) -> None:
            if conf is theirs:
                changed.append(name)
            real(conf, name, *value)

        monkeypatch.setattr(type(theirs), method, watched)
    bodies = [(body,) for body in scene.bodies.values()]
    frame = spark.createDataFrame(bodies, "value binary")
    assert verify.run(scene.ledger, arrived=frame).ok
    assert changed == []


def test_stop_cancels_jobs_and_keeps_the_session(
    spark: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's jobs are cancelled; the session is its owner's and goes on."""
    monkeypatch.setattr(watching, "INTERVAL_S", 0.001)
    stop = threading.Event()

    def progress(text: str) -> None:
        if text.startswith("comparing"):
            stop.set()

    with pytest.raises(sessions.VerifyError, match=r"^stopped$"):
        verify.run(scene.ledger, scene.capture, progress=progress, stop=stop)
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), "a job goes on", 4 * PATIENCE)
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    "late",
    [{"master": "local[1]"}, {"heap": "2g"}, {"packages": "a:b:1"}, {"conf": {"spark.x": "1"}}],
)
def test_settings_for_an_active_session_are_refused(spark: Any, scene: Scene, late: dict[str, Any]) -> None:
    for given in (None, spark):
        with pytest.raises(ConfigError, match=r"^spark: a session is active already"):
            verify.run(scene.ledger, scene.capture, spark=given, **late)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--conf", "executor.cores=2"], "must be as spark.executor.cores=2"),
        (["--conf", "spark.x"], "must be as spark.executor.cores=2"),
        (["--heap", "lots"], "must be a size such as 700m or 2g"),
        (["--packages", "."], "packages: . has no jar"),
    ],
)
def test_wrong_option_is_named(
    scene: Scene, tmp_path: Path, arguments: list[str], words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from logclient import cli

    monkeypatch.setattr(sessions, "_active_session", lambda: None)
    monkeypatch.setattr(sessions, "_jvm_runs", lambda: False)
    monkeypatch.chdir(tmp_path)
    command = ["verify", "--ledger", str(scene.ledger), "--capture", str(scene.capture)]
    assert cli.main([*command, *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


# -- signals


def read_all(descriptor: int, into: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # a terminal without a program behind it
        while data := os.read(descriptor, 4096):
            into.append(data)


def reached(moment: str, tmp_path: Path) -> bool:
    """Whether Java is started, or there are files of this name."""
    if moment == "java":
        return any(b"java" in command_line(pid).split(b"\0")[0] for pid in processes_of(tmp_path))
    return any((tmp_path / "tmp").glob(moment))


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "blockmgr-*"),
        pytest.param(signal.SIGINT, "blockmgr-*", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "java", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "java", marks=pytest.mark.long),
    ],
)
def test_signal_leaves_one_line_and_no_files(
    scene: Scene, tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    """Its own exit code, and no process left, whatever it was doing."""
    command = ["verify", "--ledger", str(scene.ledger), "--capture", str(scene.capture)]
    command += ["--conf", f"spark.local.dir={tmp_path / 'tmp'}"]
    terminal, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "logclient", *command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment(tmp_path),
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    screen: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(terminal, screen))
    reader.start()
    try:
        wait_until(lambda: reached(moment, tmp_path), f"it never came to {moment}", 4 * PATIENCE)
        # A terminal's Ctrl-C goes to the JVM and the workers too.
        (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
        out, _ = running.communicate(timeout=4 * PATIENCE)
    finally:
        running.kill()
        reader.join()
        os.close(terminal)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (out, running.returncode) == ("", ExitCode[word.upper()])
    # A progress line that is rewritten and erased, then the only line that stays.
    shown = b"".join(screen).decode().replace("\r\n", "\n").split("\r")
    assert shown[-1] == f"logclient: {word}\n"
    assert all(re.fullmatch(r"([a-zS ]+( \d+%)?, \d+ s)? *", line) for line in shown[:-1]), shown
    assert not (tmp_path / "out").exists()
    wait_until(lambda: not processes_of(tmp_path), "a process is left", 4 * PATIENCE)
    assert remaining_files(tmp_path) == []


@pytest.mark.long
def test_ctrl_c_in_a_script_ends_its_session(scene: Scene, tmp_path: Path) -> None:
    """The session that verify started is gone, and its folders."""
    script = f"""
import os, signal, threading, sys
from logclient import verify

struck = []

def strike(text):
    if text.startswith("comparing") and not struck:
        struck.append(text)
        os.kill(os.getpid(), signal.SIGINT)

try:
    verify.run({str(scene.ledger)!r}, {str(scene.capture)!r}, progress=strike)
except KeyboardInterrupt:
    print("interrupted", os.listdir(os.environ["TMPDIR"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(tmp_path),
    )  # fmt: skip
    assert (done.stdout.split(" ")[0], done.stderr) == ("interrupted", "")
    assert remaining_files(tmp_path) == []
    wait_until(lambda: not processes_of(tmp_path), "a process is left", 4 * PATIENCE)


# -- many producers


def write_many_producers(tmp_path: Path, n: int) -> Path:
    """Producers with an event each: a third of the events is lost, a seventh of the ledgers unclosed."""
    base = tmp_path / str(n)
    (base / "ledger").mkdir(parents=True)
    raws = []
    for i in range(n):
        producer = f"{i * 2654435761 % (1 << 32):020x}"
        raw = files.body(files.event_id(producer, 1), "x")
        lines = [
            files.open_line(producer), files.batch_line([(1, 1000, files.xxh64(raw))]),
            files.outcome_line("acked", [1]), files.close_line(1, acked=1),
        ]  # fmt: skip
        files.write_part(base / "ledger", producer, 1, lines[: None if i % 7 else 3])
        raws += [raw] if i % 3 else []
    units = [(files.window(raws[i : i + 1000]), 0, 5000 + i) for i in range(0, len(raws), 1000)]
    files.write_segments(base / "capture", "a", units)
    return base


@pytest.mark.long
def test_memory_of_the_driver_is_bounded(spark: Any, tmp_path: Path) -> None:
    """The verdict of very many producers stays small, too."""
    few, n = 3_000, 30_000
    peaks = []
    for size in (50, few, n):  # the first one for what is loaded and kept once
        base = write_many_producers(tmp_path, size)
        lines: list[str] = []
        tracemalloc.start()
        try:
            verdict = verify.run(
                base / "ledger", base / "capture", out=base / "out", spark=spark, progress=lines.append
            )
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    each = (peaks[2] - peaks[1]) / (n - few)
    text = (base / "out" / "verdict.json").read_text()
    print(f"{verdict.seconds}, {len(text):,} bytes of JSON, {len(lines)} lines of progress")
    print(f"driver: {peaks[1]:,} bytes with {few:,} producers, {each:.1f} more for each")
    assert each <= 1000
    assert (verdict.counts.ok, verdict.counts.lost) == (n - n // 3, n // 3)
    assert (len(verdict.producers), verdict.producers_left_out.producers) == (1000, n - 1000)
    assert (len(verdict.problems), verdict.problems_left_out) == (1000, -(-n // 7) - 1000)
    found = json.loads(text)
    assert len(text) < 2_000_000
    assert sum(one["counts"]["lost"] for one in found["producers"]) == 1000  # the worst come first
    assert found["producers_left_out"]["producers"] == n - 1000
    assert (base / "out" / "report.html").stat().st_size < 2_000_000
