"""Captures as streams: bounds of a batch, what offsets refuse, and queries that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests import verify_files as files
from tests.support.patience import PATIENCE
from tests.verify import log_captures
from tests.verify.datagrams import document, write_datagrams
from tests.verify.log_captures import Row
from tests.verify.test_logs import P, assert_equal, plain

np = support.need("numpy")
support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes")
streams = pytest.importorskip("logclient.verify.dataframes.streams")
limits = pytest.importorskip("pyspark.sql.streaming.datasource")


def stream(folder: Path, **options: Any) -> Any:
    source = dataframes.LogSource({"path": str(folder), **{name: str(x) for name, x in options.items()}})
    return source.streamReader(None)


def rows_of(reader: Any, start: Any, end: Any) -> list[Row]:
    return [
        row
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def held(capture: Path) -> Callable[[], list[tuple[Path, bytes]]]:
    """Take the files of a capture away."""
    whole = [(path, path.read_bytes()) for path in sorted(capture.iterdir())]
    for path, _ in whole:
        path.unlink()
    return lambda: whole


@pytest.mark.parametrize("again", [False, True], ids=["one reader", "a new one each time"])
@pytest.mark.parametrize("limit", [1, 700, 5000])
def test_batches_are_bounded_and_have_each_row_once(tmp_path: Path, limit: int, again: bool) -> None:
    capture = tmp_path / "capture"
    expected = log_captures.make(capture, limit, 6, 15, damage=False)
    longest = max(path.stat().st_size for path in capture.iterdir())
    reader = stream(capture, maxBytesPerTrigger=limit)
    bound = reader.getDefaultReadLimit()
    assert bound == limits.ReadMaxBytes(limit)
    start, rows, batches = reader.initialOffset(), [], 0
    while True:
        reader = stream(capture) if again else reader
        end = reader.latestOffset(start, bound)
        if end == start:
            break
        read = sum(at - start.get(name, 0) for name, at in end.items() if name != "open")
        assert 0 < read <= limit + longest
        assert all(at >= start.get(name, 0) for name, at in end.items() if name != "open")
        rows += rows_of(stream(capture) if again else reader, start, end)
        start, batches = end, batches + 1
    assert_equal(rows, expected)
    assert batches > 5


def test_only_the_bytes_of_the_batch_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads no more than the limit, however long the segment is, and nothing again."""
    [path] = files.write_segments(tmp_path, "main", [(files.window([b"{}"] * 5), 0, 1)] * 3000)
    read: list[tuple[int, int]] = []

    class Reader(streams.SegmentReader):  # type: ignore[misc]
        def __init__(self, segment: Any, *, start: int = 0, end: int | None = None) -> None:
            super().__init__(segment, start=start, end=end)
            read.append((start, segment.size if end is None else end))

    monkeypatch.setattr(streams, "SegmentReader", Reader)
    start = stream(tmp_path).latestOffset({}, limits.ReadMaxBytes(40_000))
    end = stream(tmp_path).latestOffset(start, limits.ReadMaxBytes(20_000))
    assert read == [(0, 40_000), (start[path.name], start[path.name] + 20_000)]
    assert 30_000 < start[path.name] < end[path.name] < 60_000


def test_a_busy_listener_leaves_room(tmp_path: Path) -> None:
    unit = (files.window([b"{}"] * 20), 0, 1)
    files.write_segments(tmp_path, "busy", [unit] * 2000)
    files.write_segments(tmp_path, "calm", [unit] * 10)
    end = stream(tmp_path).latestOffset({}, limits.ReadMaxBytes(20_000))
    assert end["calm-000001.cap"] == (tmp_path / "calm-000001.cap").stat().st_size
    assert 10_000 < end["busy-000001.cap"] < 20_000


def test_limit_that_pyspark_does_not_know_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PySpark 4.2, a batch has everything there is."""
    monkeypatch.setattr(streams, "limits", None)
    stream(tmp_path)
    with pytest.raises(ConfigError, match=r"maxBytesPerTrigger: it needs PySpark 4\.2 or newer"):
        stream(tmp_path, maxBytesPerTrigger=1000)


def test_segment_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    paths = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 9, per_segment=3)
    reader = stream(tmp_path)
    start = reader.latestOffset({}, None)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    for one in (reader, stream(tmp_path)):
        with pytest.raises(
            LedgerError, match=r"capture: main-000002\.cap has .* bytes, and .* were read: it was cut"
        ):
            one.latestOffset(start, None)


def test_segments_that_are_gone(tmp_path: Path) -> None:
    """One that was read keeps its offset. One that a batch needs is an error."""
    paths = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 9, per_segment=3)
    start = stream(tmp_path).latestOffset({}, None)
    paths[0].unlink()
    assert stream(tmp_path).latestOffset(start, None) == start
    with pytest.raises(LedgerError, match=r"capture: main-000001\.cap is gone, and bytes 0 to"):
        stream(tmp_path).partitions({}, start)
    for path in paths[1:]:
        path.unlink()
    with pytest.raises(LedgerError, match="no segment"):
        stream(tmp_path).latestOffset(start, None)


def test_query_that_ends_takes_what_was_there(tmp_path: Path) -> None:
    """With availableNow, lines that are written meanwhile wait for the next query."""
    capture = tmp_path / "capture"
    expected = log_captures.make(capture, 3, 5, 10, damage=False)
    reader = stream(capture)
    reader.prepareForTriggerAvailableNow()
    files.write_segments(capture, "new", [(files.window([b"{}"]), 0, 1)])
    start: Any = {}
    rows: list[Row] = []
    while (end := reader.latestOffset(start, limits.ReadMaxBytes(3000))) != start:
        rows += rows_of(reader, start, end)
        start = end
    assert_equal(rows, expected)


def test_damage_is_a_row_of_its_batch(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 3)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1  # in the last unit
    path.write_bytes(data)
    reader = stream(tmp_path)
    start = reader.latestOffset({}, limits.ReadMaxBytes(len(data) - 100))
    end = reader.latestOffset(start, None)
    first, second = rows_of(reader, {}, start), rows_of(reader, start, end)
    assert [row["error"] for row in first + second].count("damage") == 1
    assert "damage" in [row["error"] for row in second]


@pytest.mark.parametrize("limit", [400, 3000])
def test_messages_of_several_units_in_bounded_batches(tmp_path: Path, limit: int) -> None:
    sent = {seq: document(P, seq, 100 * seq) for seq in range(1, 31)}
    from tests.oracle import plog as oracle

    parts = [(1 + seq % 2, part) for seq, body in sent.items() for part in oracle.fragments(body, seq, 900)]
    write_datagrams(tmp_path, parts, 7)
    start: Any = {}
    rows: list[Row] = []
    while (end := stream(tmp_path).latestOffset(start, limits.ReadMaxBytes(limit))) != start:
        rows += rows_of(stream(tmp_path), start, end)
        start = end
    assert sorted(row["sequence"] for row in rows) == sorted(sent)
    assert {bytes(row["body"]) for row in rows} == set(sent.values())


# -- Spark

QUERY = """
import sys
from logclient.verify.job import Session

capture, out, check, trigger = sys.argv[1:]
spark = Session("local[2]").spark
stream = spark.readStream.format("logclient").option("maxBytesPerTrigger", "3000").load(capture)
writer = stream.writeStream.format("parquet").option("path", out).option("checkpointLocation", check)
how = {"availableNow": True} if trigger == "once" else {"processingTime": "0 seconds"}
writer.trigger(**how).start().awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.long
def test_killed_queries_write_each_row_once(spark: Any, tmp_path: Path, kills: int = 5) -> None:
    capture, out, check = (tmp_path / name for name in ("capture", "out", "check"))
    expected = log_captures.make(capture, 21, 10, 30, damage=False)
    script = tmp_path / "query.py"
    script.write_text(QUERY)
    whole = held(capture)()

    def start(trigger: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), str(capture), str(out), str(check), trigger]
        return subprocess.Popen(command, cwd=support.ROOT, start_new_session=True)

    def batches() -> int:
        offsets = check / "offsets"
        return len([name for name in os.listdir(offsets) if name.isdigit()]) if offsets.is_dir() else 0

    for i in range(kills):
        # The capture grows meanwhile.
        for path, data in whole[i * len(whole) // kills : (i + 1) * len(whole) // kills]:
            path.write_bytes(data)
        process = start("always")
        try:
            before = batches()
            deadline = time.monotonic() + 8 * PATIENCE
            while batches() < before + 2:
                assert process.poll() is None and time.monotonic() < deadline
                threading.Event().wait(0.001)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
    assert start("once").wait(8 * PATIENCE) == 0
    written = [row.asDict() for row in spark.read.parquet(str(out)).collect()]
    batch = spark.read.format("logclient").load(str(capture))
    assert_equal(written, [row.asDict() for row in batch.collect()])
    found = [plain(row) for row in written]
    theirs = [plain(row) for row in expected]
    for row in (*found, *theirs):
        del row["time"], row["received"]  # the session's time zone is not what is tested here
    assert_equal(found, theirs)
