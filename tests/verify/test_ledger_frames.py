"""Ledgers as DataFrames, and events with the words of the verdict."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ConfigError
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
pytest.importorskip("logclient.verify.dataframes.ledgers")
AnalysisException = pytest.importorskip("pyspark.errors").AnalysisException

pytestmark = [pytest.mark.slow, pytest.mark.spark]

WORDS = (
    "ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending",
)  # fmt: skip


def micros(at: datetime.datetime | None) -> int | None:
    if at is None:
        return None
    return (at.astimezone(datetime.UTC) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // (
        datetime.timedelta(microseconds=1)
    )


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def test_each_event_of_a_ledger_is_a_row(spark: Any, scene: Scene) -> None:
    bodies = {seq: scene.bodies[seq] for seq in (1, 2, 3, 4, 7)}
    outcomes = {"acked": [1, 2], "failed": [3], "dropped": [5]}
    scene.write_ledger(bodies=bodies, outcomes=outcomes, host="h1", pid=17, tail=[files.close_line(9)])
    scene.write_ledger(producer=Q, bodies={1: b"{}"}, host="", pid=0)
    rows = {(row.producer, row.sequence): row for row in verify.ledger(spark, scene.ledger).collect()}
    assert sorted(rows) == [(P, 1), (P, 2), (P, 3), (P, 4), (P, 5), (P, 7), (Q, 1)]
    assert {(row.host, row.pid) for (name, _), row in rows.items() if name == P} == {("h1", 17)}
    assert (rows[Q, 1].host, rows[Q, 1].pid) == (None, None)
    outcome = {seq: row.outcome for (name, seq), row in rows.items() if name == P}
    assert outcome == {1: "acked", 2: "acked", 3: "failed", 4: "undecided", 5: "dropped", 7: "undecided"}
    assert rows[P, 5].reason == "overflow"
    assert (rows[P, 5].created, rows[P, 5].hash) == (None, None)
    for seq, body in bodies.items():
        assert rows[P, seq].hash == signed(files.xxh64(body))
        assert micros(rows[P, seq].created) == 1000 * seq


def test_nothing_is_read_before_a_query(spark: Any, scene: Scene) -> None:
    frame = verify.ledger(spark, [scene.ledger])
    events = verify.events(spark, scene.ledger, scene.capture)
    scene.write_ledger(bodies={1: b"{}"}).write_capture([])
    assert frame.count() == 1
    scene.write_ledger(producer=Q, bodies={1: b"{}"})
    assert [row.verdict for row in events.collect()] == ["lost", "lost"]


def test_sources_are_used_in_sql(spark: Any, scene: Scene) -> None:
    scene.write_ledger().write_capture([1, 2, 3])
    verify.register(spark)
    given = f"ledger '{scene.ledger}'"
    for source, options in (("ledger", given), ("events", f"{given}, capture '{scene.capture}'")):
        spark.sql(f"CREATE OR REPLACE TEMP VIEW {source} USING `logclient-{source}` OPTIONS ({options})")
    [row] = spark.sql("SELECT count_if(outcome = 'acked') AS acked FROM ledger").collect()
    assert row.acked == 20
    [row] = spark.sql("SELECT count_if(verdict = 'lost') AS lost, count(*) AS n FROM events").collect()
    assert (row.lost, row.n) == (17, 20)


def test_violations_are_a_table(spark: Any, scene: Scene, tmp_path: Path) -> None:
    import pyarrow as pa

    from logclient.verify.schema import VIOLATIONS

    scene.write_ledger().write_capture([1, 2, 3, 6])
    verify.run(scene.ledger, scene.capture, out=tmp_path / "out", runner="local")
    table = verify.violations(tmp_path / "out")
    assert isinstance(table, pa.Table)
    assert table.schema == VIOLATIONS
    frame = verify.violations(tmp_path / "out", spark)
    assert [row.asDict() for row in frame.orderBy("first").collect()] == table.sort_by("first").to_pylist()
    assert [(row["kind"], row["first"], row["last"]) for row in table.sort_by("first").to_pylist()] == [
        ("lost", 4, 5), ("lost", 7, 20),
    ]  # fmt: skip
    scene.write_capture()
    verify.run(scene.ledger, scene.capture, out=tmp_path / "out", runner="local")
    assert verify.violations(tmp_path / "out").num_rows == 0
    assert verify.violations(tmp_path / "out", spark).count() == 0


def words_of(rows: list[Any]) -> tuple[set[tuple[str, str]], Counter[str]]:
    """Return the faults as `verify.violations` yields them, and the number of events of each word."""
    found = {(row.verdict, row.id) for row in rows if row.verdict != "ok"}
    found |= {("reordered", row.id) for row in rows if row.reordered}
    found |= {("duplicated", row.id) for row in rows if (row.copies or 0) > 1 and row.created is not None}
    return found, Counter(row.verdict for row in rows)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "users": {"users": 0.2},
    "anonymous": {"anonymous": 0.2, "users": 0.05},
    "unclosed": {"unclosed": "b"},
    "logjam": {"logjam": 0.6, "unclosed": "e"},
    "whole": {"whole": True, "anonymous": 0.1},
}


@pytest.mark.parametrize(
    ("kind", "histories"),
    [("anonymous", 100)] + [pytest.param(kind, 2000, marks=pytest.mark.long) for kind in KINDS],
)
def test_words_are_those_of_the_verdict(spark: Any, tmp_path: Path, kind: str, histories: int) -> None:
    """Row by row; and nothing is a row twice. See test_event_rows.py, too."""
    ledger, capture = World(histories, histories, **KINDS[kind]).write(tmp_path)
    tuning = Tuning(bucket_bits=3, task_places=1 << 14)
    verdict = job.run(ledger, capture, out=tmp_path / "out", spark=spark, tuning=tuning)
    rows = verify.events(spark, ledger, capture, columns=()).collect()
    found, counts = words_of(rows)
    assert found == set(verify.violation_ids(tmp_path / "out"))
    assert {word: counts[word] for word in WORDS} == {word: getattr(verdict.counts, word) for word in WORDS}
    assert len({row.id for row in rows}) == len(rows)


def test_first_copy_is_beside_the_event(spark: Any, scene: Scene) -> None:
    scene.write_ledger()
    scene.write_capture([1, 2, 2, 4], size=1)
    scene.write_capture([3], listener="other")
    frame = verify.events(spark, scene.ledger, scene.capture, columns=("received", "listener", "body"))
    rows = {row.sequence: row for row in frame.collect()}
    assert sorted(rows) == list(range(1, 21))
    assert (rows[2].copies, rows[2].verdict, rows[2].listener) == (2, "ok", "main")
    assert micros(rows[2].received) == 50_001
    assert (rows[3].listener, bytes(rows[3].body)) == ("other", scene.bodies[3])
    assert (rows[5].verdict, rows[5].listener, rows[5].received, rows[5].copies) == ("lost", None, None, 0)
    assert rows[5].id == files.event_id(P, 5)


def test_events_are_written_as_a_partitioned_table(spark: Any, scene: Scene, tmp_path: Path) -> None:
    scene.write_ledger()
    scene.write_capture([1, 2, 3])
    events = verify.events(spark, scene.ledger, scene.capture, columns=())
    events.write.partitionBy("verdict").parquet(str(tmp_path / "table"))
    assert sorted(path.name for path in (tmp_path / "table").glob("verdict=*")) == [
        "verdict=lost",
        "verdict=ok",
    ]
    lost = spark.read.parquet(str(tmp_path / "table")).where("verdict = 'lost'")
    assert [row.sequence for row in lost.orderBy("sequence").collect()] == list(range(4, 21))


def test_wrong_arguments_are_named(spark: Any, scene: Scene) -> None:
    scene.write_ledger().write_capture()
    for name in ("hash", "raw", "what"):
        with pytest.raises(ConfigError, match=f"columns: '{name}' is no column"):
            verify.events(spark, scene.ledger, scene.capture, columns=(name,))
    with pytest.raises(AnalysisException, match=r"LedgerError: ledger: .*nowhere: No such file"):
        verify.ledger(spark, scene.ledger / "nowhere").count()
