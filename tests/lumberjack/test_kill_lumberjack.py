"""Collector and producer are killed (-9) in mid-stream; the Spark verifier judges the events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.verify.job import run as verify
from tests.support.kill_scenes import KILLS, RESENT, forget, kill_producers, ship_through_kills
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess
from tests.support.tls import Authority
from tools.demo import samples

pytestmark = [pytest.mark.spark, pytest.mark.timeout(20 * PATIENCE)]

# Late acks keep windows in flight, so that kills hit some. A collector reads what it can from the network
# before it dies; therefore some windows are also cut off before they are written.
FAULTS = "delay-ack=p:0.5:40ms,cut-before-write=every:9,seed=5"


@pytest.fixture
def event() -> Callable[[int], dict[str, Any]]:
    lines = [line.text for line in samples.generate(2000)]
    return lambda number: {"message": lines[number % len(lines)], "n": number}


def test_killed_collector_loses_no_acknowledged_event(
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    event: Callable[[int], Any],
) -> None:
    collector = CollectorProcess(tmp_path / "capture", FAULTS)
    figures = ship_through_kills(tmp_path, [collector], event, monkeypatch, window=200)
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


@pytest.mark.slow
def test_killed_tls_collector_loses_no_acknowledged_event(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, event: Callable[[int], Any]
) -> None:
    ours = Authority(tmp_path / "ours")
    collector = CollectorProcess(
        tmp_path / "capture", FAULTS, "lumberjack+tls", f"?cert={ours.issue('server')}"
    )
    figures = ship_through_kills(tmp_path, [collector], event, monkeypatch, window=200, ca=ours.ca)
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    counts = verdict.counts
    assert figures.kills >= KILLS
    assert figures.resent >= RESENT
    assert (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.reordered) == (0,) * 5
    assert verdict.exit_code == 0


@pytest.mark.slow
def test_lumberjack_client_without_resend_is_judged_lossy(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, event: Callable[[int], Any]
) -> None:
    """The control: a client that takes a broken connection for an ack must be caught by the verifier."""
    collector = CollectorProcess(tmp_path / "capture", FAULTS)
    figures = ship_through_kills(tmp_path, [collector], event, monkeypatch, take_back=forget, window=200)
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    assert figures.resent == 0
    assert verdict.counts.lost > 0
    assert verdict.exit_code == 1


@pytest.mark.slow
def test_killed_lumberjack_producer_loses_nothing(
    tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed producer leaves a ledger without an end, whose tail is not counted as lost."""
    with CollectorProcess(tmp_path / "capture", FAULTS) as collector:
        kill_producers(collector, tmp_path / "ledger", window=200)
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark, allow_open=True)
    counts = verdict.counts
    with capsys.disabled():
        print(f"\nproducer killed {KILLS} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted, counts.reordered) == (0,) * 4
    assert counts.ok > 0
    assert counts.recovered + counts.unknown + counts.missing > 0
    assert verdict.exit_code == (3 if counts.unknown else 0)
