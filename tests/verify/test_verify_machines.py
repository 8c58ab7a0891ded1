"""Verification on machines that share nothing but an S3 server, also when one of them is lost.

Each worker of a standalone cluster has a private ``/tmp``. Evidence and verdict are behind URLs of
moto's server, and credentials come from the environment. The verdict must be that of a local verification.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import pytest

from logclient import verify
from logclient.errors import ExitCode
from tests import support
from tests.support.patience import PATIENCE
from tests.support.s3 import CREDENTIALS, Bucket
from tests.support.verify_scene import Scene
from tests.verify.cluster import Cluster, can_mount
from tests.verify.connect_server import ConnectServer
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(not can_mount() and not support.REQUIRE_ALL, reason="no unshare -m and mount here"),
]

HIDDEN = Path("/tmp")  # the folder that each machine has for itself
SETTINGS = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}


def environment(folder: Path) -> dict[str, str]:
    """The environment of a driver; the fixture `bucket` has put the credentials there."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    return support.clean_environment(PYTHONPATH=paths, TMPDIR=str(folder), SPARK_LOCAL_IP="127.0.0.1")


def comparable(verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict without times and places."""
    del verdict["made_us"], verdict["seconds"]
    for side in ("capture", "ledger"):
        del verdict[side]["folder"]
    return verdict


@pytest.fixture(scope="module")
def cluster(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines with credentials, which executors get from the environment of their worker."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            patch.setenv(name, value)
        cluster = Cluster(tmp_path_factory.mktemp("machines") / "cluster", hidden=HIDDEN)
        with cluster:
            yield cluster


def run_verify(cluster: Cluster, folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "logclient", "verify", "--master", cluster.url]
    command += ["--max-missing", "none", "--max-dropped", "none"]
    conf = [word for setting in SETTINGS.items() for word in ("--conf", "=".join(setting))]
    return subprocess.run(
        [str(word) for word in (*command, *conf, *arguments)],
        capture_output=True, text=True, timeout=8 * PATIENCE, env=environment(folder),
    )  # fmt: skip


def test_workers_share_nothing_but_a_bucket(cluster: Cluster, tmp_path: Path, bucket: Bucket) -> None:
    ledger, capture = World(11, 12).write(tmp_path)
    local = inprocess.run(ledger, capture, out=tmp_path / "out")
    places = ["--ledger", bucket.upload(ledger, "ledger"), "--capture", bucket.upload(capture, "capture")]
    places += ["--out", bucket.url("out")]
    done = run_verify(cluster, tmp_path / "driver", *places, "--json")
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    assert comparable(json.loads(done.stdout)) == comparable(json.loads(json.dumps(local.to_json())))
    assert sorted(verify.violation_ids(bucket.url("out"))) == sorted(verify.violation_ids(tmp_path / "out"))
    assert {name.partition("/")[0] for name in bucket.objects()} == {"ledger", "capture", "out"}


@pytest.mark.long
@pytest.mark.parametrize("what", ["ledger", "capture"])
def test_folder_that_workers_do_not_see_is_one_line(
    cluster: Cluster, tmp_path: Path, bucket: Bucket, what: str
) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture()
    places = {
        "ledger": bucket.upload(scene.ledger, "ledger"), "capture": bucket.upload(scene.capture, "capture"),
    }  # fmt: skip
    before = bucket.objects()
    places[what] = str({"ledger": scene.ledger, "capture": scene.capture}[what])
    given = [word for place in places.items() for word in (f"--{place[0]}", place[1])]
    for out in (bucket.url("out"), str(scene.out)):
        done = run_verify(cluster, tmp_path / "driver", *given, "--out", out)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
        [line] = done.stderr.splitlines()
        assert line.startswith(f"logclient: {what}: a worker cannot see {places[what]}: ")
        if what != "ledger":
            break
    assert bucket.objects() == before
    assert not scene.out.exists()


# -- a machine is lost

SCRIPT = """
import json, socket, sys
from logclient import verify
from logclient.verify import comparison, runners, watch

port, master, settings, ledger, capture, out = sys.argv[1:]
comparison.TASK_BYTES = runners.GROUP_BYTES = 1  # a task for each file
runners.HERE_FILES = 0
watch.INTERVAL_S = 0.02
parent = socket.create_connection(("127.0.0.1", int(port))).makefile("rw")
judge = runners.SparkRunner.judge
moments = []

def note_moments(self, parts, facts, plan, *more):
    read = len(runners.ledger_groups(parts)) + len(plan.tasks)
    first = round(100 * read / (read + plan.partitions))
    moments.extend([("read", range(1, first)), ("judge", range(first, 100))])
    return judge(self, parts, facts, plan, *more)

def progress(text):
    # The parent process stops or kills something now, and answers with a line.
    name, _, share = text.partition(",")[0].rpartition(" ")
    if moments and name == "comparing" and int(share.rstrip("%")) in moments[0][1]:
        print(moments.pop(0)[0], file=parent, flush=True)
        parent.readline()

runners.SparkRunner.judge = note_moments
verify.run(
    ledger, capture, out=out, progress=progress, master=master or None, conf=json.loads(settings),
)
print(moments, file=parent, flush=True)
"""

SPECULATION = {
    "spark.sql.adaptive.enabled": "false",  # all tasks of a query are known from its beginning
    "spark.speculation": "true", "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.05",
}  # fmt: skip


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The folders of a ledger, of a capture, and of their verdict by ``local[*]``."""
    folder = tmp_path_factory.mktemp("evidence")
    ledger, capture = World(7, 60, users=0.1).write(folder, segments=4)
    done = subprocess.run(
        [
            sys.executable, "-m", "logclient", "verify", "--ledger", ledger, "--capture", capture,
            "--out", folder / "out",
        ],
        capture_output=True, text=True, timeout=8 * PATIENCE, env=environment(folder / "driver"),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    return ledger, capture, folder / "out"


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events of the only Spark application that has written its log there."""
    [log] = folder.rglob("events_*")
    with log.open() as file:
        for line in file:
            yield json.loads(line)


def accept(server: socket.socket, process: subprocess.Popen[Any]) -> TextIO:
    """Wait until the script connects, or has ended."""
    server.settimeout(1)
    for _ in range(round(8 * PATIENCE)):
        try:
            connection, _ = server.accept()
        except TimeoutError:
            assert process.poll() is None, process.returncode
        else:
            with connection:  # the file keeps it open
                connection.settimeout(8 * PATIENCE)
                return connection.makefile("rw")
    raise AssertionError("the script does not connect")


@pytest.mark.long
@pytest.mark.parametrize("way", ["session", "submit", "connect"])
def test_lost_machine_and_speculation_change_no_verdict(
    evidence: tuple[Path, Path, Path], tmp_path: Path, bucket: Bucket, way: str
) -> None:
    """One machine's Python is stopped while it reads, and the other repeats its task; then it is killed."""
    if way == "connect":
        for module in ("pandas", "grpc", "grpc_status", "zstandard"):
            support.need(module)
    ledger, capture, local = evidence
    events = tmp_path / "events"
    events.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    places = [bucket.upload(ledger, "ledger"), bucket.upload(capture, "capture"), bucket.url("out")]
    settings = {
        **SETTINGS, **SPECULATION, "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }  # fmt: skip
    conf = [word for setting in settings.items() for word in ("--conf", "=".join(setting))]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path / "cluster", hidden=HIDDEN))
        parent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = str(parent.getsockname()[1])
        command: list[Any] = [sys.executable, script, port, cluster.url, json.dumps(settings), *places]
        if way == "submit":
            submit = Path(support.need("pyspark").__file__).parent / "bin" / "spark-submit"
            command = [submit, "--master", cluster.url, *conf, script, port, "", "{}", *places]
        elif way == "connect":
            progress = {"spark.connect.progress.reportInterval": "50ms"}
            server = ConnectServer(tmp_path / "server", cluster.url, settings=settings | progress)
            command = [sys.executable, script, port, stack.enter_context(server).url, "{}", *places]
        with open(tmp_path / "output", "wb") as output:
            running = subprocess.Popen(
                [str(word) for word in command], stdout=output, stderr=output,
                env=environment(tmp_path / "driver") | {"PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip
        stack.callback(running.wait)
        stack.callback(running.kill)
        try:
            run_with_faults(stack.enter_context(accept(parent, running)), cluster)
            assert running.wait(timeout=4 * PATIENCE) == 0
        finally:
            print((tmp_path / "output").read_text(errors="replace")[-3000:])
    log = list(read_events(events))
    twice = sum(x["Event"] == "SparkListenerTaskStart" and x["Task Info"]["Speculative"] for x in log)
    kinds = [x["Event"] for x in log]
    print(f"{twice} speculative attempts of {kinds.count('SparkListenerTaskStart')}")
    assert twice
    # The last job is the comparison, and it went on after the loss.
    assert "SparkListenerJobEnd" in kinds[kinds.index("SparkListenerExecutorRemoved") :]
    found = comparable(json.loads(bucket.get("out/verdict.json")))
    assert found == comparable(json.loads((local / "verdict.json").read_text()))
    assert found["counts"]["lost"]
    assert found["counts"]["reordered"]
    assert sorted(verify.violation_ids(bucket.url("out"))) == sorted(verify.violation_ids(local))
    assert {name.partition("/")[0] for name in bucket.objects()} == {"ledger", "capture", "out"}


def run_with_faults(script: TextIO, cluster: Cluster) -> None:
    """Stop the Python of a worker when the script reads; kill that worker when it judges."""

    def signal_python(worker: int, number: signal.Signals) -> None:
        [executor] = cluster.executors(worker)
        for pid in cluster.pythons(executor):
            os.kill(pid, number)

    def kill() -> None:
        signal_python(1, signal.SIGSTOP)  # the comparison cannot end before the loss
        cluster.kill(0)
        signal_python(1, signal.SIGCONT)

    faults: dict[str, Callable[[], None]] = {
        "read": lambda: signal_python(0, signal.SIGSTOP),
        "judge": kill,
    }
    for stage, fault in faults.items():
        assert script.readline() == f"{stage}\n"
        fault()
        print(file=script, flush=True)
    assert script.readline() == "[]\n"
