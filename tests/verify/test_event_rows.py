"""Ledgers as rows, and events with their words against the verdict's, without Spark."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Scene
from tests.verify.histories import World

support.need("numpy")
pa = support.need("pyarrow")
support.need("pyspark")
sources = pytest.importorskip("logclient.verify.dataframes.sources")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

WORDS = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "users": {"users": 0.2},
    "anonymous": {"anonymous": 0.2, "users": 0.05},
    "unclosed": {"unclosed": "b"},
    "logjam": {"logjam": 0.6, "unclosed": "e"},
    "whole": {"whole": True, "anonymous": 0.1},
}


def rows_of(source: Any, **options: Any) -> list[dict[str, Any]]:
    """Read a table as tasks of Spark do, without Spark."""
    reader = source({name: str(value) for name, value in options.items()}).reader(None)
    rows: list[dict[str, Any]] = []
    for part in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(part))):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task_bytes", [1, 20 << 10, 64 << 20])
def test_words_are_those_of_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, task_bytes: int
) -> None:
    """However producers are shared out; nothing is a row twice, and every event of the ledgers is one."""
    monkeypatch.setattr(sources, "MOST_PRODUCERS", 7)
    monkeypatch.setattr(sources, "TASK_BYTES", task_bytes)
    world = World(40 + task_bytes % 7, 40, **KINDS[kind])
    ledger, capture = world.write(tmp_path)
    out = tmp_path / "out"
    verdict = inprocess.run(ledger, capture, out=out, bits=3, task_places=1)
    rows = rows_of(sources.EventSource, ledger=ledger, capture=capture)
    found = {(row["verdict"], row["id"]) for row in rows if row["verdict"] != "ok"}
    found |= {("reordered", row["id"]) for row in rows if row["reordered"]}
    found |= {
        ("duplicated", row["id"]) for row in rows if (row["copies"] or 0) > 1 and row["created"] is not None
    }
    assert found == set(verify.violation_ids(out))
    counts = Counter(row["verdict"] for row in rows)
    assert {word: counts[word] for word in WORDS} == {word: getattr(verdict.counts, word) for word in WORDS}
    assert len({row["id"] for row in rows}) == len(rows)
    sent = rows_of(sources.LedgerSource, ledger=ledger)
    by_event = {(row["producer"], row["sequence"]): row for row in rows}
    assert len({(row["producer"], row["sequence"]) for row in sent}) == len(sent)
    for row in sent:
        assert by_event[row["producer"], row["sequence"]].items() >= row.items()
    assert len([row for row in sent if row["created"] is not None]) == sum(
        row["created"] is not None for row in rows
    )


def test_outcomes_of_random_ledgers_are_the_strongest(tmp_path: Path) -> None:
    """Also where lines contradict each other, and in any part of the ledger."""
    rng = random.Random(5)
    scene = Scene(tmp_path)
    bodies = {seq: b'{"n":%d}' % seq for seq in range(1, 400) if rng.random() < 0.8}
    outcomes: dict[str, list[int]] = {}
    for name in ("acked", "failed", "handed", "dropped"):
        outcomes[name] = sorted(rng.sample(range(1, 450), 120))
    scene.write_ledger(bodies=bodies, outcomes=outcomes)
    rows = {row["sequence"]: row for row in rows_of(sources.LedgerSource, path=scene.ledger)}
    assert sorted(rows) == sorted({*bodies, *(seq for seqs in outcomes.values() for seq in seqs)})
    for seq, row in rows.items():
        named = [name for name in ("acked", "handed", "failed", "dropped") if seq in outcomes[name]]
        assert row["outcome"] == (named[0] if named else "undecided")
        assert (row["hash"] is None) == (row["created"] is None) == (seq not in bodies)
        if seq in bodies:
            assert row["hash"] & (1 << 64) - 1 == files.xxh64(bodies[seq])


def test_damaged_ledgers(tmp_path: Path) -> None:
    """Without FAILFAST, what can be read has its rows."""
    scene = Scene(tmp_path)
    scene.write_ledger(bodies={1: b"a", 2: b"b"})
    assert len(rows_of(sources.LedgerSource, ledger=scene.ledger, mode="FAILFAST")) == 2
    [path] = scene.ledger.iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], b'{"t":"batch"}\n', *lines[1:]]))
    assert [row["sequence"] for row in rows_of(sources.LedgerSource, path=scene.ledger)] == [1, 2]
    with pytest.raises(LedgerError, match=f"^ledger: {path} line 2: "):
        rows_of(sources.LedgerSource, ledger=scene.ledger, mode="failfast")
    path.write_bytes(b"".join(lines))
    (scene.ledger / "x.ledger.gz").write_bytes(b"")
    with pytest.raises(LedgerError, match=r"^ledger: x\.ledger\.gz is not read$"):
        rows_of(sources.LedgerSource, ledger=scene.ledger, mode="FAILFAST")


def test_sequences_beyond_all_bounds_are_an_error(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    line = {"t": "dropped", "seqs": [[9, (1 << 48) - 1]], "reason": "x", "at_us": 1}
    scene.write_ledger(bodies={1: b"a"}, tail=[json.dumps(line).encode() + b"\n"])
    with pytest.raises(LedgerError, match=r"^ledger: 281474976710647 sequences .* are too many"):
        rows_of(sources.LedgerSource, ledger=scene.ledger)


def test_columns_of_a_schema(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StringType, StructType

    scene = Scene(tmp_path)
    scene.write_ledger(bodies={7: b"a"})
    schema = StructType().add("outcome", StringType()).add("sequence", LongType())
    reader = sources.LedgerSource({"ledger": str(scene.ledger)}).reader(schema)
    [batch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.to_pylist() == [{"outcome": "acked", "sequence": 7}]
    with pytest.raises(ConfigError, match="schema: there is no column 'seq': producer, host"):
        sources.LedgerSource({"ledger": "x"}).reader(StructType().add("seq", LongType()))


def test_wrong_options_are_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write_ledger()
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (sources.LedgerSource, {}, "ledger: the folder of a ledger must be given"),
        (sources.EventSource, {"ledger": scene.ledger}, "capture: the folder of a capture must be given"),
        (
            sources.LedgerSource,
            {"ledger": scene.ledger, "captur": "x"},
            "captur: there is no such option: there are ledger, mode",
        ),
        (sources.EventSource, {"ledger": "[1", "capture": "x"}, "ledger: it must be a list of paths"),
        (sources.LedgerSource, {"ledger": scene.ledger, "mode": "x"}, "mode: 'x' must be PERMISSIVE or"),
    ]
    for source, options, why in cases:
        with pytest.raises(ConfigError, match=why):
            rows_of(source, **options)
    with pytest.raises(LedgerError, match="No such file"):
        rows_of(sources.LedgerSource, ledger=scene.ledger / "nowhere")
    assert len(rows_of(sources.LedgerSource, ledger=json.dumps([str(scene.ledger)]))) == 20
    rows = rows_of(sources.LedgerSource, paths=json.dumps([str(tmp_path)]))
    assert {row["producer"] for row in rows} == {P}
