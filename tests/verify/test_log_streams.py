"""Captures as streams: bounds of a batch, what offsets refuse, and queries that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.verify import log_captures
from tests.verify.datagrams import document, write_datagrams
from tests.verify.log_captures import Row, assert_equal, plain, rows_of, stream

np = support.need("numpy")
support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes")
streams = pytest.importorskip("logclient.verify.dataframes.streams")
limits = pytest.importorskip("pyspark.sql.streaming.datasource")

P = "ab" * 10


def taken(capture: Path, offset: Any) -> int:
    """Return how many bytes of a capture were read up to an offset."""
    n = 0
    for path in capture.iterdir():
        listener, _, number = path.stem.rpartition("-")
        entry = offset.get(listener, {})
        whole = any(first <= int(number) <= last for first, last in entry.get("read", []))
        n += path.stat().st_size if whole else entry.get("at", {}).get(str(int(number)), 0)
    return n


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
        sizes = [taken(capture, offset) for offset in (start, end)]
        assert 0 < sizes[1] - sizes[0] <= limit + longest
        rows += rows_of(stream(capture) if again else reader, start, end)
        start, batches = end, batches + 1
    assert_equal(rows, expected)
    assert batches > 5


def test_only_the_bytes_of_the_batch_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads no more than the limit, however long the segment is, and nothing again."""
    files.write_segments(tmp_path, "main", [(files.window([b"{}"] * 5), 0, 1)] * 3000)
    read: list[tuple[int, int]] = []

    class Reader(streams.SegmentReader):  # type: ignore[misc]
        def __init__(self, segment: Any, *, start: int = 0, end: int | None = None) -> None:
            super().__init__(segment, start=start, end=end)
            read.append((start, segment.size if end is None else end))

    monkeypatch.setattr(streams, "SegmentReader", Reader)
    start = stream(tmp_path).latestOffset({}, limits.ReadMaxBytes(40_000))
    end = stream(tmp_path).latestOffset(start, limits.ReadMaxBytes(20_000))
    first, second = (offset["main"]["at"]["1"] for offset in (start, end))
    assert read == [(0, 40_000), (first, first + 20_000)]
    assert 30_000 < first < second < 60_000


def test_a_busy_listener_leaves_room(tmp_path: Path) -> None:
    unit = (files.window([b"{}"] * 20), 0, 1)
    files.write_segments(tmp_path, "busy", [unit] * 2000)
    files.write_segments(tmp_path, "calm", [unit] * 10)
    files.write_segments(tmp_path, "hectic", [unit] * 2000)
    end = stream(tmp_path).latestOffset({}, limits.ReadMaxBytes(20_000))
    assert end["calm"]["read"] == [[1, 1]]
    assert all(5_000 < end[listener]["at"]["1"] < 10_000 for listener in ("busy", "hectic"))


def test_limit_that_pyspark_does_not_know_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PySpark 4.2, a batch has everything there is."""
    monkeypatch.setattr(streams, "limits", None)
    stream(tmp_path)
    with pytest.raises(ConfigError, match=r"maxBytesPerTrigger: it needs PySpark 4\.2 or newer"):
        stream(tmp_path, maxBytesPerTrigger=1000)


def test_segment_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    units = [(files.window([b"{}"]), 0, 1)] * 9
    paths = files.write_segments(tmp_path, "main", units, per_segment=3, closed=False)
    reader = stream(tmp_path)
    start = reader.latestOffset({}, None)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    for one in (reader, stream(tmp_path)):
        with pytest.raises(
            LedgerError, match=r"capture: main-000003\.cap has .* bytes, and .* were read: it was cut"
        ):
            one.latestOffset(start, None)


def test_segments_that_are_gone(tmp_path: Path) -> None:
    """One that was read keeps its offset. One that a batch needs is an error."""
    paths = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 9, per_segment=3)
    start = stream(tmp_path).latestOffset({}, None)
    paths[0].unlink()
    assert stream(tmp_path).latestOffset(start, None) == start
    with pytest.raises(LedgerError, match=r"capture: main-000001\.cap is gone, and a batch needs it"):
        stream(tmp_path).partitions({}, start)
    for path in paths[1:]:
        path.unlink()
    with pytest.raises(LedgerError, match="no segment"):
        stream(tmp_path).latestOffset(start, None)


def test_segments_may_come_in_any_order(tmp_path: Path) -> None:
    """As they do where they are copied: one that comes between others that were read has its rows, too."""
    capture = tmp_path / "capture"
    files.write_segments(capture, "main", [(files.window([b"{}"]), 0, i) for i in range(9)], per_segment=1)
    whole = held(capture)()
    start: Any = {}
    rows: list[Row] = []
    for numbers in ([7], [2, 3], [8], [1, 9], [5], [6], [4]):
        for number in numbers:
            path, data = whole[number - 1]
            path.write_bytes(data)
        end = stream(capture).latestOffset(start, None)
        rows += rows_of(stream(capture), start, end)
        start = end
        assert len(start["main"]["read"]) <= 4
    assert sorted(plain(row)["received"] for row in rows) == list(range(9))
    assert start == {"main": {"read": [[1, 9]]}}


@pytest.mark.slow
def test_many_segments_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trigger lists names and opens new segments only. The offset does not grow with their number."""
    capture = tmp_path / "capture"
    unit = [(files.window([b"{}"]), 0, 1)]
    files.write_segments(capture, "main", unit * 10_000, per_segment=1)
    from logclient.evidence import storage

    opened: list[str] = []
    open_file = storage.open_file

    def opening(place: str, what: str) -> Any:
        opened.append(place)
        return open_file(place, what)

    monkeypatch.setattr(storage, "open_file", opening)
    reader = stream(capture)
    start = reader.latestOffset({}, None)
    assert len(opened) == 20_000  # a header and the units of each
    assert start == {"main": {"read": [[1, 10_000]]}}
    for number in range(10_001, 10_004):
        opened.clear()
        [path] = files.write_segments(capture, "main", unit, first=number, arrival=number)
        end = reader.latestOffset(start, None)
        parts = reader.partitions(start, end)
        assert opened == [str(path)] * 2
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 1
        start = end
    assert start == {"main": {"read": [[1, 10_003]]}}
    opened.clear()
    assert reader.latestOffset(start, None) == start
    assert opened == []


def test_checkpoint_of_an_older_version_is_refused(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)])
    with pytest.raises(ConfigError, match="checkpointLocation: it is of an older version"):
        stream(tmp_path).latestOffset({"main-000001.cap": 100}, None)


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


@pytest.mark.slow
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


def test_damage_behind_an_incomplete_message_is_a_row_once(tmp_path: Path) -> None:
    """Its segment is read again with the rest of the message."""
    from tests.oracle import plog as oracle

    begin, end = oracle.fragments(document(P, 1, 1000), 1, 900)
    [whole] = oracle.fragments(document(P, 2, 10), 2, 900)
    write_datagrams(tmp_path, [(1, begin), (2, whole), (1, end), (2, whole)], 2)
    path = tmp_path / "main-000001.cap"
    data = bytearray(path.read_bytes())
    data[data.index(whole)] ^= 1
    path.write_bytes(data)
    (later := tmp_path / "main-000002.cap").rename(tmp_path / "later")
    start = stream(tmp_path).latestOffset({}, None)
    rows = rows_of(stream(tmp_path), {}, start)
    (tmp_path / "later").rename(later)
    rows += rows_of(stream(tmp_path), start, stream(tmp_path).latestOffset(start, None))
    assert [row["error"] for row in rows if row["error"]] == ["damage"]
    assert [row["sequence"] for row in rows if not row["error"]] == [1, 2]


# -- Spark

QUERY = """
import sys
from logclient import verify
from logclient.verify.job import Session

source, capture, out, check, trigger = sys.argv[1:]
spark = verify.register(Session("local[2]").spark)
stream = spark.readStream.format(source).option("maxBytesPerTrigger", "3000").load(capture)
writer = stream.writeStream.format("parquet").option("path", out).option("checkpointLocation", check)
how = {"availableNow": True} if trigger == "once" else {"processingTime": "0 seconds"}
writer.trigger(**how).start().awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("source", ["logclient", "logclient-capture"])
def test_killed_queries_write_each_row_once(spark: Any, tmp_path: Path, source: str, kills: int = 5) -> None:
    """At seeded points: when an offset is written, or a batch is complete."""
    rng = random.Random(source)
    capture, out, check = (tmp_path / name for name in ("capture", "out", "check"))
    expected = log_captures.make(capture, 21, 10, 30, damage=False)
    script = tmp_path / "query.py"
    script.write_text(QUERY)
    whole = held(capture)()

    def start(trigger: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), source, str(capture), str(out), str(check), trigger]
        return subprocess.Popen(command, cwd=support.ROOT, start_new_session=True)

    def batches(folder: str) -> int:
        names = os.listdir(check / folder) if (check / folder).is_dir() else []
        return len([name for name in names if name.isdigit()])

    for i in range(kills):
        # The capture grows meanwhile.
        for path, data in whole[i * len(whole) // kills : (i + 1) * len(whole) // kills]:
            path.write_bytes(data)
        process = start("always")
        try:
            folder, n = rng.choice(["offsets", "commits"]), rng.randrange(1, 4)
            before = batches(folder)
            deadline = time.monotonic() + 8 * PATIENCE
            while batches(folder) < before + n:
                assert process.poll() is None and time.monotonic() < deadline
                threading.Event().wait(0.001)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
    assert start("once").wait(8 * PATIENCE) == 0
    written = [row.asDict() for row in spark.read.parquet(str(out)).collect()]
    batch = verify.register(spark).read.format(source).load(str(capture))
    assert_equal(written, [row.asDict() for row in batch.collect()])
    last = max(int(name) for name in os.listdir(check / "offsets") if name.isdigit())
    offset = json.loads((check / "offsets" / str(last)).read_text().splitlines()[-1])
    assert {len(entry["read"]) for entry in offset.values()} == {1}
    if source == "logclient-capture":
        return
    found = [plain(row) for row in written]
    theirs = [plain(row) for row in expected]
    for row in (*found, *theirs):
        del row["time"], row["received"]  # the session's time zone is not what is tested here
    assert_equal(found, theirs)
