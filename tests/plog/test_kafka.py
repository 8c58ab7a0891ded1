"""The broker of tools/kafka.py: its commands, its jars, and the broker of the test run."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.support import ROOT, clean_environment
from tests.support.kafka_fixture import topic_name
from tests.support.patience import PATIENCE
from tools import kafka as tool

pytestmark = [pytest.mark.spark, pytest.mark.tree]


def run(tree: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the script in its copied folder, beside which it notes what it started."""
    done = subprocess.run(
        [sys.executable, tree / "tools" / "kafka.py", *arguments],
        capture_output=True, text=True, env=clean_environment(), timeout=4 * PATIENCE,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "copy" / "tools").mkdir(parents=True)
    for name in ("kafka.py", "kafka-ivy.xml", "kafka.sha256"):
        (tmp_path / "copy" / "tools" / name).write_bytes((ROOT / "tools" / name).read_bytes())
    return tmp_path / "copy"


@pytest.mark.slow
def test_broker_starts_once_answers_and_stops(
    tree: Path, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # shorter than Java's command line, which ps must not cut
    assert run(tree, "status")[:2] == (1, {"bootstrap": None})
    code, started, _ = run(tree, "start")
    assert code == 0
    try:
        assert started["bootstrap"] != kafka
        assert run(tree, "start")[1] == started  # one is enough
        assert run(tree, "status")[:2] == (0, started)
        assert exchange(started["bootstrap"], [b"one", b"\0two"]) == [b"one", b"\0two"]
    finally:
        code, _, errors = run(tree, "stop")
    assert (code, errors) == (0, "")
    assert not os.path.exists(started["folder"])
    assert run(tree, "status")[0] == 1
    assert run(tree, "stop")[0] == 0
    host, _, port = started["bootstrap"].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_taken_port_of_the_broker_is_one_line(tree: Path, kafka: str) -> None:
    code, _, errors = run(tree, "start", "--port", kafka.rpartition(":")[2])
    assert code == 3
    assert errors.count("\n") == 1
    assert "port" in errors
    assert run(tree, "status")[0] == 1


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(tool, "HERE", tmp_path / "kafka")
    with pytest.raises(tool.Unavailable, match="Java 17"):
        tool.Broker()


def test_jar_without_a_known_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that Ivy brings is compared; a wrong one is neither used nor kept."""
    brought = {"broker/a-1.jar": b"a", "spark/b-2.jar": b"b"}

    def ivy(folder: Path) -> None:
        for name, data in brought.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    monkeypatch.setattr(tool, "retrieve", ivy)
    monkeypatch.setattr(tool, "HERE", tmp_path / "environment" / "kafka")
    monkeypatch.setattr(tool, "HASHES", tmp_path / "kafka.sha256")
    tool.lock()
    assert [Path(jar).name for jar in tool.jars("spark")] == ["b-2.jar"]
    tool.HASHES.write_text(tool.HASHES.read_text() + f"{'0' * 64}  spark/c-3.jar\n")
    for change, message in (
        ({}, "spark/c-3.jar is missing"),
        ({"spark/c-3.jar": b"c"}, f"spark/c-3.jar has SHA-256 {hashlib.sha256(b'c').hexdigest()}, but .* 0+"),
        ({"broker/d-4.jar": b"d"}, "broker/d-4.jar is not in tools/kafka.sha256"),
    ):
        brought |= change
        with pytest.raises(tool.WrongFileError, match=message):
            tool.fetch()
        assert not tool.HERE.with_suffix(".new").exists()
    assert tool.main(["fetch"]) == 1


def test_jars_of_the_environment_match_their_hashes() -> None:
    try:
        tool.fetch()
    except tool.Unavailable as error:
        support.missing(str(error))
    tool.check(tool.HERE)
    names = [line.split("  ")[1] for line in tool.HASHES.read_text().splitlines()]
    assert len(names) > 40
    assert {name.partition("/")[0] for name in names} == {"broker", "spark"}


def test_broker_of_the_test_run_takes_large_and_empty_values(kafka: str) -> None:
    assert exchange(kafka, [b"x" * 900_000, b""]) == [b"x" * 900_000, b""]


def exchange(bootstrap: str, values: list[bytes]) -> list[bytes]:
    """Produce to a new topic and read it from the beginning."""
    client = support.need("confluent_kafka")
    topic = topic_name("exchange")
    wrong = []
    producer = client.Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: wrong.append(error) if error else None)
    assert producer.flush(PATIENCE) == 0
    assert not wrong
    consumer = client.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        consumer.assign([client.TopicPartition(topic, 0, 0)])
        found = consumer.consume(len(values), timeout=PATIENCE)
    finally:
        consumer.close()
    assert [message.error() for message in found] == [None] * len(found)
    return [message.value() for message in found]
