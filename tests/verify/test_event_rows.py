"""Events with their words against the verdict's violations, on random histories and without Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from tests import support
from tests.verify.histories import World

np = support.need("numpy")
pa = support.need("pyarrow")
parquet = support.need("pyarrow.parquet")
support.need("pyspark")
ledgers = pytest.importorskip("logclient.verify.dataframes.ledgers")
packed_ledger = pytest.importorskip("logclient.verify.packed_ledger")
inprocess = pytest.importorskip("tests.verify_inprocess")

WORDS = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "users": {"users": 0.2},
    "anonymous": {"anonymous": 0.2, "users": 0.05},
    "unclosed": {"unclosed": "b"},
    "logjam": {"logjam": 0.6, "unclosed": "e"},
    "whole": {"whole": True, "anonymous": 0.1},
}


def rows_of(
    stretches: Any, keys: Any, tasks: list[tuple[int, int]], violations: Path
) -> list[dict[str, Any]]:
    """Return the rows of `ledgers.events`, with a sort in place of Spark's shuffle."""
    nothing = dict.fromkeys(ledgers._FAULTS.names)
    faults = [
        nothing | {"part": number, "key": key}
        for number, (low, high) in enumerate(tasks)
        for key in keys[low:high].tolist()
    ]
    starts = np.array([low for low, _ in tasks])
    for path in violations.iterdir():
        for batch in parquet.ParquetFile(path).iter_batches():
            for spread in ledgers.spread(stretches, keys, starts, batch):
                faults += spread.to_pylist()
    faults.sort(key=lambda row: (row["part"], row["key"], -1 if row["first"] is None else row["first"]))
    rows: list[dict[str, Any]] = []
    for part in sorted({row["part"] for row in faults}):
        own = [row for row in faults if row["part"] == part]
        for batch in ledgers.judge(stretches, [pa.RecordBatch.from_pylist(own, schema=ledgers._FAULTS)]):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [0, 2, 16])
def test_words_are_those_of_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, bits: int
) -> None:
    """However long a stretch is; nothing is a row twice, and every event of the ledgers is one."""
    monkeypatch.setattr(ledgers, "TASK_EVENTS", 1 << 10)
    world = World(40 + bits, 40, **KINDS[kind])
    ledger, capture = world.write(tmp_path)
    out, work = tmp_path / "out", tmp_path / "work"
    work.mkdir()
    verdict = inprocess.run(ledger, capture, out=out, bits=3, tail=2, work=work, keep_work=True)
    [folder] = work.iterdir()
    packed = packed_ledger.PackedLedger(str(folder), 3)
    tasks = ledgers._plan(packed, bits)
    stretches = ledgers.Stretches(packed, bits)
    keys = packed_ledger.map_table(str(folder), ledgers.STRETCHES)
    rows = rows_of(stretches, keys, tasks, out / "violations")
    found = {(row["verdict"], row["id"]) for row in rows if row["verdict"] != "ok"}
    found |= {("reordered", row["id"]) for row in rows if row["reordered"]}
    found |= {
        ("duplicated", row["id"]) for row in rows if (row["copies"] or 0) > 1 and row["created"] is not None
    }
    assert found == set(verify.violations(out))
    counts = Counter(row["verdict"] for row in rows)
    assert {word: counts[word] for word in WORDS} == {word: getattr(verdict.counts, word) for word in WORDS}
    assert len({row["id"] for row in rows}) == len(rows)
    sent = {
        (row["producer"], row["sequence"])
        for low, high in tasks
        for key in keys[low:high].tolist()
        for batch in ledgers.expand(stretches, key)
        for row in batch.to_pylist()
    }
    assert sent <= {(row["producer"], row["sequence"]) for row in rows}
    assert len(sent) >= sum(x.events for x in packed.producers)
