"""Captures as DataFrames: arrivals, and rows that do not decode."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.oracle import plog as oracle
from tests.support import verify_files as files
from tests.support.verify_scene import Scene
from tests.verify.datagrams import document, write_datagrams

pytestmark = pytest.mark.slow

np = support.need("numpy")
pa = support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes.sources")
segments = pytest.importorskip("logclient.evidence.segments")

P = "ab" * 10
BODIES = [
    *(files.body(files.event_id(P, seq), f"event {seq}") for seq in range(1, 6)),
    files.body(None, "x", user="mine"),
    files.body(None, "y"),
    b"[1]",
]
UNITS = [
    (files.window(BODIES[:4], compress=True), 0, 1001),
    (b"2A\0\0\0\4", 1, 1002),
    (files.window(BODIES[4:]), 0, 1003),
    (b"2W\0\0\0\1junk", 0, 1004),
]


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def micros(at: datetime.datetime) -> int:
    """Return a time in microseconds since 1970; Spark's rows have it in the local time zone."""
    since = at.astimezone(datetime.UTC) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)


def read_rows(reader: Any, parts: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part in parts:
        for batch in reader.read(part):
            rows += batch.to_pylist()
    return rows


def assert_events(rows: list[dict[str, Any]], folder: Path) -> None:
    rows = sorted(rows, key=lambda row: (row["arrival"], row["index"]))
    assert [row["hash"] for row in rows[:8]] == [signed(files.xxh64(body)) for body in BODIES]
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5, None, None, None, None]
    assert [row["producer"] for row in rows] == [P] * 5 + [None] * 4
    assert [row["error"] for row in rows] == [None] * 7 + ["not_json", "bad_frame"]
    assert [row["own_id"] for row in rows if row["own_id"]] == [
        f"{files.xxh64(b'mine'):016x}{files.xxh64(b'mine', 43):016x}"
    ]
    assert [row["size"] for row in rows] == [*map(len, BODIES), None]
    assert [row["arrival"] for row in rows] == [1] * 4 + [3] * 4 + [4]
    assert [micros(row["received"]) for row in rows] == [1001] * 4 + [1003] * 4 + [1004]
    assert {(row["listener"], row["protocol"], row["stream"], row["peer"]) for row in rows} == {
        ("main", "lumberjack", 1, "127.0.0.1:9")
    }
    # The body is at the place that its row names.
    for row in rows[4:8]:
        data = (folder / row["segment"]).read_bytes()
        at = row["unit_at"] + row["offset"]
        assert data[at : at + row["size"]] == BODIES[4:][row["index"]]


@pytest.mark.parametrize("per_segment", [0, 1, 3])
def test_each_event_is_a_row(tmp_path: Path, per_segment: int) -> None:
    files.write_segments(tmp_path, "main", UNITS, per_segment=per_segment)
    source = dataframes.CaptureSource({"path": str(tmp_path)})
    reader = source.reader(source.schema())
    assert_events(read_rows(reader, reader.partitions()), tmp_path)


def test_each_unit_is_a_row(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "main", UNITS)
    source = dataframes.CaptureSource({"path": str(tmp_path), "rows": "units"})
    reader = source.reader(source.schema())
    rows = read_rows(reader, reader.partitions())
    assert [(row["raw"], row["direction"], micros(row["received"])) for row in rows] == UNITS
    assert [row["arrival"] for row in rows] == [1, 2, 3, 4]
    assert {row["peer"] for row in rows} == {"127.0.0.1:9"}


def test_wrong_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="path: "):
        dataframes.CaptureSource({}).reader(None)
    with pytest.raises(ConfigError, match="rows: 'bytes' must be events or units"):
        dataframes.CaptureSource({"path": "x", "rows": "bytes"}).schema()
    with pytest.raises(ConfigError, match="rows: 'bytes' must be"):
        dataframes.arrivals(None, tmp_path, rows="bytes")
    with pytest.raises(LedgerError, match="no segment"):
        dataframes.arrivals(None, tmp_path)


# -- messages of several units

MESSAGES = {seq: document(P, seq, 100 * seq) for seq in range(1, 41)}


def fragments() -> list[tuple[int, bytes]]:
    """Fragments of two senders, mixed so that some message is open at any place."""
    by_sender: dict[int, list[bytes]] = {1: [], 2: []}
    for seq, body in MESSAGES.items():
        by_sender[1 + seq % 2] += oracle.fragments(body, seq, 900)
    mixed = itertools.zip_longest(by_sender[1], by_sender[2])
    return [(i, raw) for pair in mixed for i, raw in enumerate(pair, 1) if raw is not None]


@pytest.mark.parametrize("per_segment", [1, 2, 7, 1000])
def test_messages_may_span_segments(tmp_path: Path, per_segment: int) -> None:
    write_datagrams(tmp_path, fragments(), per_segment)
    source = dataframes.CaptureSource({"path": str(tmp_path)})
    reader = source.reader(source.schema())
    rows = read_rows(reader, reader.partitions())
    assert sorted(row["sequence"] for row in rows) == sorted(MESSAGES)
    assert {row["hash"] for row in rows} == {signed(files.xxh64(body)) for body in MESSAGES.values()}
    assert {row["error"] for row in rows} == {None}


def test_listener_name_outside_utf8_is_escaped(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "ma\udcffin", UNITS)
    for rows_of in ("events", "units"):
        source = dataframes.CaptureSource({"path": str(tmp_path), "rows": rows_of})
        reader = source.reader(source.schema())
        rows = read_rows(reader, reader.partitions())
        assert {(row["listener"], row["segment"]) for row in rows} == {("ma\\xffin", "ma\\xffin-000001.cap")}
        assert len(rows) == (9 if rows_of == "events" else 4)


@pytest.mark.spark
@pytest.mark.parametrize("rows", ["events", "units"])
def test_misnamed_segments_are_named(spark: Any, scene: Scene, rows: str) -> None:
    scene.write_capture()
    (scene.capture / "main-000001.cap").rename(scene.capture / "other-000007.cap")
    found = dataframes.arrivals(spark, scene.capture, rows=rows).collect()
    named = [(row.segment, row.error) for row in found] if rows == "events" else found
    assert named == ([("other-000007.cap", "misnamed")] if rows == "events" else [])


@pytest.mark.spark
def test_arrivals_carry_the_hash_of_spark(spark: Any, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    files.write_segments(capture, "main", UNITS, per_segment=2)
    found = dataframes.arrivals(spark, capture)
    assert_events([row.asDict() for row in found.collect()], capture)
    # Spark's xxhash64 of the bodies gives the same hashes.
    bodies = spark.createDataFrame([(bytearray(body),) for body in BODIES], "body binary")
    theirs = {row[0] for row in bodies.selectExpr("xxhash64(body)").collect()}
    assert theirs == {row.hash for row in found.where("hash is not null").collect()}
    assert dataframes.arrivals(spark, capture, rows="units").count() == 4
