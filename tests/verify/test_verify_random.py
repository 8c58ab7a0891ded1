"""The comparison against a plain-Python reference, on random histories with buckets of a few sequences.

Each history is a producer with a ledger and arrivals of its own: parts, torn tails, no close, damaged lines,
drops, copies, corrupt copies, swaps near and far, sequences never sent, foreign events, users' own
ids, producers without ids, captures that were never closed; Lumberjack at three listeners, Logjam at a device
and at a consumer of two, requests and async, compressed in every way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logclient.verify.tuning import Tuning
from tests import support
from tests.verify.histories import World, assert_equals_reference

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
summaries = pytest.importorskip("logclient.verify.summary")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "users": {"users": 0.2},
    "anonymous": {"anonymous": 0.2, "users": 0.05},
    "unclosed": {"unclosed": "b"},
    "unclosed anonymous": {"anonymous": 0.2, "unclosed": "a"},
    "logjam": {"logjam": 1.0, "users": 0.1, "anonymous": 0.05},
    "logjam unclosed": {"logjam": 0.6, "unclosed": "e"},
    "whole": {"whole": True, "anonymous": 0.1},
    "whole users": {"whole": True, "users": 0.2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bits", "task_places", "units"), [(2, 1, 3), (3, 4096, 64), (4, 1, 1), (5, 0, 100_000), (9, 1, 50)]
)
@pytest.mark.parametrize("histories", [60, pytest.param(300, marks=pytest.mark.long)])
def test_random_histories_equal_the_reference(
    tmp_path: Path,
    kind: str,
    bits: int,
    task_places: int,
    units: int,
    histories: int,
) -> None:
    world = World(bits * 1000 + units, histories, **KINDS[kind])
    ledger, capture = world.write(tmp_path)
    out = tmp_path / "out"
    sizes = {"bits": bits, "task_places": task_places, "units": units}
    verdict = inprocess.run(ledger, capture, out=out, **sizes)
    assert_equals_reference(world, verdict, out)
    if bits == 3:
        verdict = inprocess.run(ledger, capture, out=out, **sizes, allow_open=True)
        assert_equals_reference(world, verdict, out, allow_open=True)
        return
    # With a task for each bucket there is always an event that arrived after one of another task.
    if bits == 2:
        assert verdict.seconds["second_passes"] == 1
    if not task_places:
        assert verdict.seconds["second_passes"] == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "histories", "bits", "task_places"),
    [
        ("plain", 200, 3, 1 << 15),
        pytest.param("plain", 2000, 3, 1 << 18, marks=pytest.mark.long),
        ("anonymous", 200, 2, 1 << 16),
        pytest.param("anonymous", 1000, 2, 1 << 18, marks=pytest.mark.long),
        ("unclosed", 200, 4, 1 << 15),
        ("logjam", 200, 3, 1 << 15),
        pytest.param("logjam", 1000, 3, 1 << 18, marks=pytest.mark.long),
    ],
)
def test_random_histories_on_spark_equal_the_reference(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    histories: int,
    bits: int,
    task_places: int,
) -> None:
    monkeypatch.setattr(summaries, "MAX_NAMED", histories + 1)  # one more for foreign events
    world = World(histories, histories, **KINDS[kind])
    ledger, capture = world.write(tmp_path)
    for name, together in (("tasks", 0), ("one task", 1 << 30)):
        out = tmp_path / name
        tuning = Tuning(bits, task_places, 500, together_bytes=together)
        verdict = job.run(ledger, capture, out=out, spark=spark, tuning=tuning)
        assert_equals_reference(world, verdict, out)
        assert len([x for x in verdict.producers if x.producer]) == histories
