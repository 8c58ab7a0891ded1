"""Verification through Spark Connect: no SparkContext, no JVM, and workers behind a server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ConfigError, ExitCode, LedgerError, MissingExtra
from tests import support
from tests.support import verify_files as files
from tests.support.kafka_fixture import Record, connector, create_topic
from tests.support.leftovers import environment, remaining_files
from tests.support.patience import PATIENCE, assert_returns
from tests.support.verify_scene import P, Scene
from tests.verify.connect_server import ConnectServer
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
for module in ("pandas", "grpc", "grpc_status", "zstandard"):
    support.need(module)
inprocess = pytest.importorskip("tests.support.verify_inprocess")
job = pytest.importorskip("logclient.verify.job")
sessions = pytest.importorskip("logclient.verify.spark")
watching = pytest.importorskip("logclient.verify.watch")

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    jars, _ = connector()
    settings = {"spark.jars": ",".join(jars)} if jars else {}
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server", settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def remote(server: ConnectServer) -> Iterator[Any]:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(server.url).create()
    yield session
    session.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger().write_capture()


def without_places(verdict: Any) -> dict[str, Any]:
    """A verdict without what names times and places."""
    found = verdict.to_json()
    for name in ("seconds", "made_us"):
        del found[name]
    return found


def test_verdict_equals_that_of_a_local_session(spark: Any, remote: Any, tmp_path: Path) -> None:
    """With faults of every kind, in several buckets, and the same violations."""
    ledger, capture = World(11, 40, users=0.1, anonymous=0.1).write(tmp_path)
    tuning = job.Tuning(bucket_bits=3)
    mine = verify.run(ledger, capture, out=tmp_path / "mine", spark=remote, tuning=tuning)
    theirs = verify.run(ledger, capture, out=tmp_path / "theirs", spark=spark, tuning=tuning)
    assert mine.counts.lost
    assert without_places(mine) == without_places(theirs)
    faults = [sorted(verify.violation_ids(tmp_path / name)) for name in ("mine", "theirs")]
    assert faults[0] == faults[1]
    assert remote.range(3).count() == 3


def test_data_sources_are_read(remote: Any, scene: Scene, tmp_path: Path) -> None:
    scene.write_capture([1, 2, 2, 3])
    verify.run(scene.ledger, scene.capture, out=tmp_path / "out", runner="local")
    assert verify.register(remote) is remote
    logs = remote.read.format("logclient").option("columns", "sequence, document").load(str(scene.capture))
    found = logs.selectExpr("document:message::string AS message").collect()
    assert sorted(row.message for row in found) == ["event 1", "event 2", "event 2", "event 3"]
    assert verify.arrivals(remote, scene.capture, rows="units").count() == 2
    assert verify.ledger(remote, scene.ledger).where("outcome = 'acked'").count() == 20
    events = verify.events(remote, scene.ledger, scene.capture, columns=("received", "message"))
    rows = {row.sequence: (row.verdict, row.copies, row.message) for row in events.collect()}
    assert rows[2] == ("ok", 2, "event 2")
    assert {rows[seq] for seq in range(4, 21)} == {("lost", 0, None)}
    lost = verify.violations(tmp_path / "out", remote).where("kind = 'lost'").collect()
    assert [(row.first, row.last) for row in lost] == [(4, 20)]


def test_command_line_connects_by_the_master(server: ConnectServer, scene: Scene, tmp_path: Path) -> None:
    scene.write_capture(range(1, 20))
    command = [sys.executable, "-m", "logclient", "verify", "--ledger", str(scene.ledger)]
    command += ["--capture", str(scene.capture), "--out", str(tmp_path / "out"), "--master", server.url]
    done = subprocess.run(
        [*command, "--conf", "spark.sql.shuffle.partitions=3"], capture_output=True, text=True,
        timeout=8 * PATIENCE, env=environment(tmp_path),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["counts"]["lost"] == 1
    assert remaining_files(tmp_path) == []


def test_progress_has_a_share(remote: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tags and the handlers of the session are as before."""
    monkeypatch.setattr(watching, "INTERVAL_S", 0.001)
    remote.addTag("theirs")
    lines: list[str] = []
    try:
        assert verify.run(scene.ledger, scene.capture, spark=remote, progress=lines.append).ok
        assert remote.getTags() == {"theirs"}
    finally:
        remote.removeTag("theirs")
    assert any("comparing" in line and "%" in line for line in lines), lines
    assert lines[-1] == ""


def test_stop_interrupts_and_keeps_the_session(
    remote: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "INTERVAL_S", 0.001)
    stop = threading.Event()

    def progress(text: str) -> None:
        if text.startswith("comparing"):
            stop.set()

    sleep = "java_method('java.lang.Thread', 'sleep', 600000L)"
    slow = remote.range(1).selectExpr(f"CAST({sleep} AS BINARY) AS value")

    def run() -> None:
        with pytest.raises(sessions.VerifyError, match=r"^stopped$"):
            verify.run(scene.ledger, arrived=slow, progress=progress, stop=stop)
        stopped.append(True)

    stopped: list[bool] = []
    assert_returns(run)
    assert stopped and remote.range(3).count() == 3


def test_tables_and_dataframes(remote: Any, scene: Scene, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"value": list(scene.bodies.values())[:-1]}), tmp_path / "t.parquet")
    assert verify.run(scene.ledger, table=str(tmp_path / "t.parquet"), spark=remote).counts.lost == 1
    with pytest.raises(LedgerError, match=r"^table: .*nothing"):
        verify.run(scene.ledger, table="nothing", spark=remote)
    rows = [(body, "ab"[seq % 2], seq + 100 * (seq in (6, 7))) for seq, body in scene.bodies.items()]
    frame = remote.createDataFrame(rows, "value binary, server string, n int").repartition(3)
    columns = {"listener": "server", "arrival": "n"}
    verdict = verify.run(scene.ledger, arrived=frame, columns=columns, tuning=job.Tuning(3))
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "reordered": 2}
    assert [row["seq"] for row in verdict.examples["reordered"]] == [6, 7]
    with pytest.raises(ConfigError, match=r"^columns: DataFrame has no column none"):
        verify.run(scene.ledger, arrived=frame, columns={"id": "none"}, match="id")
    ids = remote.createDataFrame([(files.event_id(P, seq),) for seq in range(1, 20)], "id string")
    assert verify.run(scene.ledger, arrived=ids, columns={"id": "id"}, match="id").counts.lost == 1


def test_kafka(remote: Any, scene: Scene, kafka: str) -> None:
    """The offsets are those that exist, also where records are deleted or a partition is empty."""
    client, admin = support.need("confluent_kafka"), support.need("confluent_kafka.admin")
    if not connector()[0]:
        support.missing(connector()[1])
    scene.write_ledger(created=lambda seq: 10_000_000 + seq)
    name = create_topic(kafka, 2, [Record(body, at_ms=11_000) for body in scene.bodies.values()])
    verdict = verify.run(scene.ledger, kafka=f"{kafka}/{name}", spark=remote)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20}
    assert verdict.capture["listeners"] == [f"{name}[0]", f"{name}[1]"]
    asks = admin.AdminClient({"bootstrap.servers": kafka})
    for gone in asks.delete_records([client.TopicPartition(name, 0, 5)]).values():
        gone.result(PATIENCE)
    verdict = verify.run(scene.ledger, kafka=f"{kafka}/{name}", spark=remote)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 15, "unknown": 5}
    assert verdict.problems == (f"capture: {name}[0]: gap: records before offset 5 are deleted",)
    for _ in range(2):  # it is not created
        with pytest.raises(LedgerError, match=r"^kafka: .* has no topic nowhere$"):
            verify.run(scene.ledger, kafka=f"{kafka}/nowhere", spark=remote)


def test_kafka_settings_of_a_connection(remote: Any, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = pytest.importorskip("logclient.verify.readers")
    monkeypatch.setattr(readers, "ANSWER_MS", 500)
    given = {"security.protocol": "SECRET"}
    words = r"^kafka_config: security.protocol: it is refused by confluent-kafka"
    with pytest.raises(ConfigError, match=words) as caught:
        verify.run(scene.ledger, kafka="127.0.0.1:1/t", kafka_config=given, spark=remote)
    assert "SECRET" not in str(caught.value)
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    with pytest.raises(sessions.VerifyError, match=r"^kafka: 127.0.0.1:1: .*[Tt]ransport failure|timed out"):
        verify.run(scene.ledger, kafka="127.0.0.1:1/t", kafka_config=given, spark=remote)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtra, match=r'confluent_kafka is not .*: pip install "logclient\[kafka\]"'):
        verify.run(scene.ledger, kafka="127.0.0.1:1/t", spark=remote)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"heap": "2g"}, ConfigError, "runs already: set spark.driver.memory"),
        ({"packages": "a:b:1"}, ConfigError, "runs already: set spark.jars.packages"),
        ({"conf": {"spark.sql.warehouse.dir": "/x"}}, ConfigError, "^spark: spark.sql.warehouse.dir must be"),
    ],
)
def test_settings_of_a_running_server_are_refused(
    server: ConnectServer, scene: Scene, settings: dict[str, Any], error: type[Exception], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sessions, "_active_session", lambda: None)
    with pytest.raises(error, match=words):
        verify.run(scene.ledger, scene.capture, master=server.url, **settings)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sc://127.0.0.1:1/;token=secret", r"^spark: sc://127.0.0.1:1 does not answer$"),
        ("sc://127.0.0.1:1/path/;token=secret", r"^master: sc://127.0.0.1:1/path must be as sc://HOST:PORT"),
    ],
)
def test_server_that_does_not_answer(
    scene: Scene, url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_active_session", lambda: None)
    monkeypatch.setattr(sessions, "ANSWER_S", 0.2)
    with pytest.raises((sessions.VerifyError, ConfigError), match=words) as caught:
        verify.run(scene.ledger, scene.capture, master=url)
    assert "secret" not in str(caught.value)


def test_missing_package_is_named_with_its_extra(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_active_session", lambda: None)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtra, match=r'grpc.* is not installed: pip install "logclient\[connect\]"'):
        verify.run(scene.ledger, scene.capture, master="sc://127.0.0.1:1")


def test_variable_names_the_server(server: ConnectServer, scene: Scene, tmp_path: Path) -> None:
    """``SPARK_REMOTE`` is what PySpark itself reads."""
    script = f"""
import sys
from logclient import verify
verdict = verify.run({str(scene.ledger)!r}, {str(scene.capture)!r})
print(verdict.ok, "pyspark.sql.connect.session" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=8 * PATIENCE,
        env=environment(tmp_path, SPARK_REMOTE=server.url),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True True\n", "")
