"""plog end to end: clients, the server as a process, a real broker, and the verdict on Spark.

Where datagrams are dropped and doubled, tests/oracle/plog_injected.py computes from the fault log which
events the verdict must name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logclient import verify
from logclient._ext.plog import MESSAGE, SIMPLE, Reassembler, fragments
from logclient.errors import ExitCode
from logclient.testing.plog_datagrams import batch_of
from tests import support
from tests.oracle import plog_injected
from tests.support import clean_environment
from tests.support.kafka_fixture import connector, topic_name
from tests.support.patience import PATIENCE
from tools.demo.processes import Collector

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts dropped datagrams"),
]

TRIES = 3  # the kernel may drop datagrams on a busy machine; such a run is repeated
CLIENTS = 4
# Packets a second of all clients together that the server can follow on a busy machine.
PACE, PACE_FAULTS = 20_000, 12_000
GROWTH = 48 << 20  # bytes; with a million events 600 MB go through the clients
#: Events: a few seconds of sending, and the long form.
EVENTS = [20_000, pytest.param(1_000_000, marks=pytest.mark.long)]

Say = Callable[[str], None]


class Run(NamedTuple):
    ledger: Path
    capture: Path
    topic: str
    fault_log: Path
    counts: dict[str, Any]
    """Of the server."""
    sent: dict[str, Any]
    """The report of tests/plog/load.py."""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print progress past pytest's capture."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", flush=True)

    return show


@pytest.fixture
def broker(kafka: str) -> str:
    """Return the broker if Spark has the connector to read it."""
    jars, why = connector()
    return kafka if jars else support.missing(why)


def run_once(folder: Path, broker: str, events: int, faults: str, pace: int) -> Run:
    folder.mkdir()
    topic = topic_name("e2e")
    ledger, capture, fault_log = folder / "ledger", folder / "capture", folder / "fault_log"
    url = f"plog://127.0.0.1:0?kafka={broker}&kafka_topic={topic}&receive_buffer=64MiB"
    with Collector(url, faults, capture, fault_log if faults else None, folder) as server:
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.plog.load",
                server.url, ledger, str(events), str(CLIENTS), str(pace // CLIENTS),
            ],
            capture_output=True, text=True, check=False, timeout=60 * PATIENCE,
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        counts = server.stop()
    return Run(ledger, capture, topic, fault_log, counts, json.loads(done.stdout))


def shipped(folder: Path, broker: str, events: int, say: Say, faults: str = "") -> Run:
    """Run until the kernel drops nothing, more slowly each time."""
    pace = PACE_FAULTS if faults else PACE
    for attempt in range(1, TRIES + 1):
        run = run_once(folder / f"run-{attempt}", broker, events, faults, pace // attempt)
        sent, counts = run.sent, run.counts
        say(
            f"{events:,} events in {counts['datagrams']:,} datagrams, {sent['bytes']:,} bytes, "
            f"{sent['seconds']:.1f} s; clients grew by {sent['grown'] >> 10:,} KiB; "
            f"the kernel dropped {counts['kernel_drops']}"
        )
        if not counts["kernel_drops"]:
            break
        say(f"run {attempt} of {TRIES} does not count: another one")
    else:
        pytest.fail(f"the kernel dropped datagrams in each of {TRIES} runs")
    assert (sent["handed"], sent["left"], sent["failed"], sent["ledger_error"]) == (events, 0, 0, "")
    assert sent["grown"] < GROWTH
    assert counts["kernel_drops"] == 0  # None would mean that the kernel does not count
    # Half of the events have at least two fragments.
    assert counts["datagrams"] >= events // 2 * 3 - CLIENTS
    assert counts["failed_to_send"] == counts["capture_errors"] == 0
    assert counts["forwarded"] == counts["captured_events"]
    return run


def verdict_of(run: Run, spark: Any, out: Path, **arrived: Any) -> tuple[Any, dict[str, set[str]]]:
    """Return the verdict, and the ids of its violations by word."""
    verdict = job.run(run.ledger, spark=spark, out=out, max_missing=None, **arrived)
    found: dict[str, set[str]] = {}
    for word, ident in verify.violation_ids(out):
        found.setdefault(word, set()).add(ident)
    return verdict, found


@pytest.mark.parametrize("events", EVENTS)
def test_every_event_is_in_kafka(broker: str, spark: Any, tmp_path: Path, events: int, say: Say) -> None:
    run = shipped(tmp_path, broker, events, say)
    assert run.counts["forwarded"] == events
    assert len(plog_injected.sent_ids(run.ledger)) == events
    verdict, found = verdict_of(run, spark, tmp_path / "out", kafka=f"{broker}/{run.topic}")
    assert verdict.exit_code == ExitCode.OK
    assert found == {}
    assert verdict.counts.ok == events
    assert verdict.counts.duplicated == verdict.counts.unexpected == verdict.counts.corrupted == 0


@pytest.mark.slow
@pytest.mark.parametrize("events", EVENTS)
def test_every_event_lost_or_doubled_is_named(
    broker: str, spark: Any, tmp_path: Path, events: int, say: Say
) -> None:
    """1 % of the datagrams are dropped, 1 % are doubled."""
    run = shipped(tmp_path, broker, events, say, "drop=p:0.01,duplicate=p:0.01,seed=11")
    truth = plog_injected.read(run.fault_log, run.ledger)
    assert (truth.unnamed, truth.foreign) == (0, 0)
    # Both sets must be large enough to mean something. Events of several datagrams are missing more often;
    # only events of a single datagram arrive twice.
    assert events // 120 < len(truth.missing) < events // 40
    assert events // 300 < len(truth.duplicated) < events // 120
    for out, arrived in (
        ("by-capture", {"capture": run.capture}),
        ("by-kafka", {"kafka": f"{broker}/{run.topic}"}),
    ):
        verdict, found = verdict_of(run, spark, tmp_path / out, **arrived)
        assert verdict.exit_code == ExitCode.OK, out
        assert found.pop("missing") == truth.missing, out
        assert found.pop("duplicated") == truth.duplicated, out
        assert found == {}, out
        assert verdict.counts.ok == events - len(truth.missing), out
        say(f"{out}: {len(truth.missing):,} missing, {len(truth.duplicated):,} duplicated, all named")


@pytest.mark.parametrize(
    ("copies", "whole"),
    [
        ([1], 1), ([0], 0), ([2], 2), ([1, 1, 1], 1), ([1, 0, 1], 0), ([2, 1], 1), ([1, 2], 1), ([0, 2], 0),
        ([2, 2], 1),  # the second copy of the last begins a message whose first fragment is missing
    ],
)  # fmt: skip
def test_reference_and_server_agree_on_whole_messages(copies: list[int], whole: int) -> None:
    """The script's rule is the server's."""
    assert plog_injected.times_whole(copies) == whole
    parts = fragments(b"x" * (400 * len(copies)), 1, datagram=424)
    assert len(parts) == len(copies)
    batch = batch_of([part for part, times in zip(parts, copies, strict=True) for _ in range(times)], [])
    judged = Reassembler().feed(batch.data, batch.offsets, batch.lengths, array("Q", [1] * len(batch)), 0.0)
    assert sum(verdict in (MESSAGE, SIMPLE) for verdict in judged.verdict.tolist()) == whole


def test_reference_computes_events_from_a_fault_log() -> None:
    sent = {"a", "b", "c", "d"}

    def act(fault: str, event: str, index: int = 0, count: int = 1) -> dict[str, Any]:
        return {"fault": fault, "event": event, "index": index, "count": count, "ids": ["not looked at"]}

    acts = [
        act("drop", "a", 1, 3), act("duplicate", "a", 0, 3), act("duplicate", "b", 1, 2),
        act("duplicate", "c", 0, 0), act("drop", ""), act("drop", "of somebody else"),
    ]  # fmt: skip
    assert plog_injected.injected(acts, sent) == ({"a"}, {"c"}, 1, 1)
    with pytest.raises(ValueError, match="struck twice"):
        plog_injected.injected([*acts, act("drop", "c")], sent)
    with pytest.raises(ValueError, match="garble"):
        plog_injected.injected([act("garble", "d")], sent)
