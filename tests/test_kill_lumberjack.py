"""Kill -9, of the collector and of the producer; the Spark verifier says what it did to the events."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from logclient.delivery.engine import Engine
from logclient.delivery.pump import FATE
from logclient.verify.job import run as verify
from tests.processes import CollectorProcess
from tests.shared import clean_environment, shared_path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KILLS = 10
RESENT = 1000
SEED = 20

# Late acks keep windows in flight, so that there is something to hit. And since a collector takes from
# the network what it can before it dies, some windows are cut off before they are written, too.
FAULTS = "delay-ack=p:0.5:40ms,cut-before-write=every:9,seed=5"


class Figures(NamedTuple):
    kills: int
    sent: int
    resent: int


def wait_for(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        threading.Event().wait(0.001)


def ship_through_kills(
    folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, requeue: Callable[[Engine], None]
) -> Figures:
    """One client, sending all the time; its collector killed and born again until KILLS of them hit."""
    randomly = random.Random(SEED)
    broken: list[int] = []  # events in flight, at each connection that broke

    def watched(engine: Engine) -> None:
        broken.append(engine.flight.inflight)
        requeue(engine)

    monkeypatch.setattr(Engine, "_requeue", watched)
    collector = CollectorProcess(folder / "capture", FAULTS)
    collector.start()
    client = logclient.connect(
        collector.url, ledger=str(folder / "ledger"), overflow="block", window=200, max_events=5000,
        backoff_min=0.01, backoff_max=0.05,
    )  # fmt: skip
    done = threading.Event()

    def send() -> None:
        number = 0
        while not done.is_set():
            client.send({"message": lines[number % len(lines)], "n": number})
            number += 1
            if number % 50 == 0:
                done.wait(0.0005)  # a load, not a flood: kills are to hit a flowing stream

    sender = threading.Thread(target=send)
    sender.start()

    def acked_more(n: int) -> None:
        before = client.stats().acked
        wait_for(lambda: client.stats().acked > before + n, 30, "acks")

    hits = 0
    try:
        for _ in range(10 * KILLS):
            acked_more(500)
            moment = time.monotonic() + randomly.uniform(0.0, 0.2)
            wait_for(lambda m=moment: time.monotonic() > m and client.stats().inflight, 30, "a batch out")
            connects, breaks = client.stats().connects, len(broken)
            collector.end(signal.SIGKILL)
            wait_for(lambda n=breaks: len(broken) > n, 30, "a broken connection")
            hits += any(broken[breaks:])
            collector.start()
            wait_for(lambda n=connects: client.stats().connects > n, 30, "a new connection")
            if hits >= KILLS:
                break
        acked_more(500)
    finally:
        done.set()
        sender.join()
        left = client.close(60)
        stats = client.stats()
        collector.end(signal.SIGTERM)
    assert left == 0
    return Figures(hits, stats.sent, stats.resent)


def test_collector_killed(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that was acknowledged is lost, whenever the collector dies."""
    lines = (shared_path("data") / "HDFS_2k.log").read_text().splitlines()
    figures = ship_through_kills(tmp_path, lines, monkeypatch, Engine._requeue)
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    counts = verdict.counts
    with capsys.disabled():
        print(
            f"\ncollector killed {figures.kills} times: {figures.sent} sent, {figures.resent} resent, "
            f"{counts.duplicated} duplicated (written before a kill, not acknowledged), {counts.lost} lost"
        )
    assert figures.kills >= KILLS
    assert figures.resent >= RESENT
    assert counts.duplicated > 0  # at least one kill was between the write and its ack
    assert (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.reordered) == (0,) * 5
    assert verdict.exit_code == 0


def test_control_without_resend(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with a client that takes a broken connection for an ack: the verifier must see it."""

    def forget(engine: Engine) -> None:
        engine.flight.apply([(1, 1 << 48)], FATE["acked"])

    lines = (shared_path("data") / "HDFS_2k.log").read_text().splitlines()
    figures = ship_through_kills(tmp_path, lines, monkeypatch, forget)
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    assert figures.resent == 0
    assert verdict.counts.lost > 0
    assert verdict.exit_code == 1


PRODUCER = """
import sys
import logclient

client = logclient.connect(sys.argv[1], ledger=sys.argv[2], window=200, overflow="block", max_events=5000)
number = 0
while True:
    client.send({"message": "line", "n": number})
    number += 1
    if number == 2000:
        print("flowing", flush=True)
"""


def test_producer_killed(tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A producer that dies in mid-stream leaves a ledger without an end: its tail is no loss."""
    randomly = random.Random(SEED)
    with CollectorProcess(tmp_path / "capture", FAULTS) as collector:
        for _ in range(KILLS):
            with subprocess.Popen(
                [sys.executable, "-c", PRODUCER, collector.url, str(tmp_path / "ledger")],
                stdout=subprocess.PIPE, env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
            ) as producer:  # fmt: skip
                assert producer.stdout is not None
                assert producer.stdout.readline() == b"flowing\n"
                moment = time.monotonic() + randomly.uniform(0.0, 0.3)
                wait_for(lambda moment=moment: time.monotonic() > moment, 5, "the moment")
                producer.kill()
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    counts = verdict.counts
    with capsys.disabled():
        print(f"\nproducer killed {KILLS} times: {counts}")
    assert len(list((tmp_path / "ledger").glob("*.ledger"))) == KILLS
    assert (counts.lost, counts.unexpected, counts.corrupted, counts.reordered) == (0,) * 4
    assert counts.ok > 0
    assert counts.recovered + counts.unknown + counts.missing > 0
    assert verdict.exit_code in (0, 3)
