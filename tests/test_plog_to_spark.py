"""The whole way of plog: client, collector as a process of its own, a real Kafka, and Spark's verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from logclient.errors import ExitCode
from tests import shared
from tests.kafka_fixture import connector

shared.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.verify_inprocess")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TRIES = 3
LONG = pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@pytest.fixture
def broker(kafka: str, spark: Any) -> str:
    if not connector()[0]:
        shared.missing(connector()[1])
    return kafka


class Ran(NamedTuple):
    topic: str
    report: dict[str, Any]  # what the collector counted
    acts: list[dict[str, Any]]  # what its faults did


def ship(folder: Path, broker: str, events: int, faults: str = "") -> Ran:
    """Send events to a topic of their own, half of them in several fragments."""
    topic = f"plog-{os.urandom(6).hex()}"
    url = f"plog://127.0.0.1:0?kafka={broker}&kafka_topic={topic}&receive_buffer=64MiB"
    command = [
        sys.executable,
        "-m",
        "logclient",
        "collect",
        url,
        "--capture",
        str(folder / "capture"),
        "--json",
    ]
    if faults:
        command += ["--faults", faults, "--witness", str(folder / "witness")]
    environment = shared.clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
    collector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert collector.stdout is not None
        port = json.loads(collector.stdout.readline())["port"]
        client = logclient.connect(
            f"plog://127.0.0.1:{port}?mtu=1400&pace=20000&overflow=block&block_timeout=600",
            ledger=str(folder / "ledger"),
        )
        with client:
            small, large = b"x" * 200, b"y" * 3_000
            for number in range(events):
                fill = large if number % 2 else small
                client.send(b'{"type":"t","host":"h","timestamp":%d,"data":"%b"}' % (number, fill))
            assert client.flush(timeout=300) == 0
            settle(client)
        collector.send_signal(signal.SIGTERM)
        report = json.loads(collector.communicate(timeout=120)[0])
    finally:
        collector.kill()
        collector.wait()
    witness = folder / "witness"
    acts = [json.loads(line) for line in witness.read_text().splitlines()] if faults else []
    return Ran(topic, report, acts)


def settle(client: Any) -> None:
    """Until the collector has looked at all that is there."""
    before, end = None, time.monotonic() + 120
    while True:
        try:
            stat = client.stat(timeout=10)
        except logclient.ConnectFailed:
            continue  # behind so much that it takes longer than that
        finally:
            assert time.monotonic() < end
        if stat.v0_fragments == before:
            return
        before = stat.v0_fragments


def delivered(tmp_path: Path, broker: str, events: int, faults: str = "") -> tuple[Path, Ran]:
    """A run in which the kernel had room for all: it is repeated where it had not."""
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ran = ship(folder, broker, events, faults)
        if not ran.report["kernel_drops"]:
            return folder, ran
        print(f"run {attempt + 1} of {TRIES}: the kernel dropped {ran.report['kernel_drops']} datagrams")
    pytest.fail(f"the kernel dropped datagrams in each of {TRIES} runs")


@pytest.mark.parametrize("events", [10_000, LONG])
def test_all_arrives(spark: Any, broker: str, tmp_path: Path, events: int) -> None:
    folder, ran = delivered(tmp_path, broker, events)
    assert ran.report["forwarded"] == events
    assert ran.report["datagrams"] > 1.9 * events
    verdict = job.run(folder / "ledger", kafka=f"{broker}/{ran.topic}", spark=spark)
    assert verdict.exit_code == ExitCode.OK
    assert (verdict.counts.ok, verdict.counts.duplicated) == (events, 0)
    assert verdict.undecodable == {}
    print(verdict.sentence, verdict.seconds)


@pytest.mark.parametrize("events", [10_000, LONG])
def test_faults_are_found_to_the_event(spark: Any, broker: str, tmp_path: Path, events: int) -> None:
    """What the verdict names is what the injector's log says, read by the lines below."""
    folder, ran = delivered(tmp_path, broker, events, "drop=p:0.01,duplicate=p:0.01,seed=5")
    missing = {act["event"] for act in ran.acts if act["fault"] == "drop"}
    duplicated = {one for act in ran.acts if act["fault"] == "duplicate" for one in act["ids"]} - missing
    assert "" not in missing
    assert len(missing) > events // 100
    assert len(duplicated) > events // 1000
    out = folder / "out"
    by_kafka = job.run(folder / "ledger", kafka=f"{broker}/{ran.topic}", spark=spark, out=out)
    found: dict[str, set[str]] = {}
    for word, ident in job.violations(out):
        found.setdefault(word, set()).add(ident)
    found.pop("reordered", None)  # nobody promised
    assert {word: len(ids) for word, ids in found.items()} == {
        "missing": len(missing), "duplicated": len(duplicated)
    }  # fmt: skip
    assert found == {"missing": missing, "duplicated": duplicated}
    by_capture = job.run(folder / "ledger", folder / "capture", spark=spark)
    assert by_kafka.counts._replace(reordered=0) == by_capture.counts._replace(reordered=0)
    assert by_kafka.exit_code == ExitCode.OK
    print(by_kafka.sentence, by_kafka.seconds)
