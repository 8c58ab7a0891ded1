"""The data source ``logclient`` on all protocols: each row against what was put into the capture."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.verify import log_captures
from tests.verify.log_captures import assert_equal, read

np = support.need("numpy")
pa = support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes.sources")
segment_rows = pytest.importorskip("logclient.verify.dataframes.segment_rows")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "task_bytes"), [(0, 1 << 26), (1, 3000), (2, 500), (3, 1)])
def test_each_row_equals_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, task_bytes: int
) -> None:
    """However the segments are shared out."""
    monkeypatch.setattr(segment_rows, "TASK_BYTES", task_bytes)
    expected = log_captures.make(tmp_path / "capture", seed, 20, 25)
    assert_equal(read(tmp_path / "capture"), expected)


def test_small_batches_have_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = log_captures.make(tmp_path / "capture", 9, 20, 25)
    for name, size in (("ROWS", 3), ("BODY_BYTES", 500), ("UNITS", 4)):
        monkeypatch.setattr(segment_rows, name, size)
    assert_equal(read(tmp_path / "capture"), expected)


@pytest.mark.parametrize("protocol", ["lumberjack", "logjam", "plog", "logux"])
def test_protocol_selects_listeners(tmp_path: Path, protocol: str) -> None:
    expected = log_captures.make(tmp_path / "capture", 5, 10, 20)
    own = {f"l{i:05d}" for i in range(10) if log_captures.PROTOCOLS[i % 5].startswith(protocol)}
    assert_equal(
        read(tmp_path / "capture", protocol=protocol), [row for row in expected if row["listener"] in own]
    )


def test_a_task_has_about_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is read by one task, and so are all segments of a listener of datagrams."""
    body = files.body(None, "x" * 500)
    paths = files.write_segments(tmp_path, "many", [(files.window([body]), 0, 1)] * 60, per_segment=1)
    paths += files.write_segments(tmp_path, "big", [(files.window([body]), 0, 1)] * 400)
    fragments = [(body, 0, 1)] * 100
    paths += files.write_segments(tmp_path, "plog", fragments, per_segment=10, protocol="plog")
    monkeypatch.setattr(segment_rows, "TASK_BYTES", 20 << 10)
    parts = dataframes.LogSource({"path": str(tmp_path)}).reader(None).partitions()
    found = [{segment.name for one in part.series for segment in one.segments} for part in parts]
    sizes = {path.name: path.stat().st_size for path in paths}
    assert sorted(name for names in found for name in names) == sorted(sizes)
    [datagrams] = [names for names in found if any(name.startswith("plog") for name in names)]
    assert {name for name in sizes if name.startswith("plog")} <= datagrams
    assert all(sum(sizes[name] for name in names) <= 20 << 10 for names in found if len(names) > 10)
    assert 4 <= len(found) <= 6


def test_schema_chooses_columns(tmp_path: Path) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

    text = StringType()
    expected = log_captures.make(tmp_path / "capture", 7, 10, 20)
    for columns in (
        [("sequence", LongType()), ("error", text)],
        [("received", TimestampType()), ("id", text)],
        [("body", BinaryType())],
    ):
        schema = StructType()
        for name, kind in columns:
            schema.add(name, kind)
        found = read(tmp_path / "capture", schema=schema)
        assert_equal(found, [{name: row[name] for name, _ in columns} for row in expected])
    for name, kind, why in (
        ("sequenz", LongType(), "schema: there is no column 'sequenz': .*sequence"),
        ("raw", BinaryType(), "schema: there is no column 'raw'"),
        ("received", text, "schema: received has the type timestamp, not string"),
    ):
        with pytest.raises(ConfigError, match=why):
            read(tmp_path / "capture", schema=StructType().add(name, kind))


def test_each_column_alone_equals_that_of_all_columns(tmp_path: Path) -> None:
    """What a column does not need is not computed, and the column stays the same."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    from logclient.verify.dataframes.columns import COLUMNS

    log_captures.make(tmp_path / "capture", 10, 10, 20)
    names = [name for name in COLUMNS if name not in ("direction", "raw")]
    kinds = {name: from_arrow_type(COLUMNS[name][0]) for name in names}

    def schema(*chosen: str) -> Any:
        made = StructType()
        for name in chosen:
            made.add(name, kinds[name])
        return made

    whole = read(tmp_path / "capture", schema=schema(*names))
    for name in names:
        alone = read(tmp_path / "capture", schema=schema(name))
        assert [row[name] for row in alone] == [row[name] for row in whole], name


def test_only_what_is_asked_for_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logclient.evidence import decode
    from logclient.verify.dataframes.columns import Columns

    files.write_segments(tmp_path, "a", [(files.window([files.body(None, "x")]), 0, 1)])
    asked: list[tuple[bool, bool]] = []
    bounded = decode.bounded_decoder

    def noting(*args: Any, identity: bool, hashes: bool, **options: Any) -> Any:
        asked.append((identity, hashes))
        return bounded(*args, identity=identity, hashes=hashes, **options)

    monkeypatch.setattr(decode, "bounded_decoder", noting)
    for name, needs in (
        ("body", (False, False)),
        ("peer", (False, False)),
        ("hash", (False, True)),
        ("id", (True, False)),
        ("error", (True, False)),
    ):
        asked.clear()
        series, _ = segment_rows.find_series([str(tmp_path)])
        list(segment_rows.read(series, Columns((name,)), quiet=True, strict=False))
        assert asked == [needs], name


@pytest.mark.slow
def test_imports_are_exempt_from_garbage_collection_in_tasks_only(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "a", [(files.window([files.body(None, "x")]), 0, 1)])
    script = """if True:
        import gc, sys
        from pyspark import TaskContext
        from logclient.verify.dataframes.sources import LogSource

        reader = LogSource({"path": sys.argv[1]}).reader(None)
        frozen = []
        for _ in range(2):
            frozen.append(gc.get_freeze_count())
            assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 1
            frozen.append(gc.get_freeze_count())
            TaskContext._getOrCreate()
        assert frozen[:3] == [frozen[0]] * 3, frozen
        assert frozen[3] > frozen[0] + 10_000, frozen
    """
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


def test_wrong_options_are_named(tmp_path: Path) -> None:
    log_captures.make(tmp_path / "capture", 8, 2, 2)
    with pytest.raises(ConfigError, match="protocol: 'smtp' cannot be decoded: "):
        read(tmp_path / "capture", protocol="smtp")
    with pytest.raises(ConfigError, match="path: "):
        dataframes.LogSource({}).reader(None)
    known = "path, protocol, columns, mode"
    for source in (dataframes.LogSource, dataframes.CaptureSource):
        also = "" if source is dataframes.LogSource else ", rows"
        given = {"path": str(tmp_path / "capture"), "MODE": "permissive", "protocl": "plog"}
        words = f"protocl: there is no such option: there are {known}{also}"
        with pytest.raises(ConfigError, match=words):
            source(given).reader(None)
    with pytest.raises(ConfigError, match="mode: 'DROPMALFORMED' must be PERMISSIVE or FAILFAST"):
        read(tmp_path / "capture", mode="DROPMALFORMED")
    for name in ("sequenz", "raw"):
        with pytest.raises(ConfigError, match=f"columns: there is no column '{name}': .*sequence"):
            read(tmp_path / "capture", columns=f"received,{name}")
    with pytest.raises(ConfigError, match="rows: there is no such option"):
        read(tmp_path / "capture", rows="units")
    with pytest.raises(LedgerError, match="No such file"):
        read(tmp_path / "nowhere")


def test_option_names_columns(tmp_path: Path) -> None:
    expected = log_captures.make(tmp_path / "capture", 13, 10, 20)
    for names in ("received, peer,hash", "error", "id body"):
        chosen = names.replace(",", " ").split()
        source = dataframes.LogSource({"path": "x", "columns": names})
        assert source.schema().names == chosen
        found = read(tmp_path / "capture", columns=names)
        assert_equal(found, [{name: row[name] for name in chosen} for row in expected])


DAMAGE: dict[str, Any] = {
    "bad_frame": b"2W\0\0\0\1junk",
    "torn": files.window([b"{}"])[:-1],
    "not_json": files.window([b"{}", b"[1]"]),
}


@pytest.mark.parametrize("columns", ["id, error", "body"])
@pytest.mark.parametrize("word", DAMAGE)
def test_failfast_names_file_and_place(tmp_path: Path, word: str, columns: str) -> None:
    """Whichever columns are asked for. What a protocol sends besides events is no damage."""
    good = files.window([files.body(None, "x")])
    units = [(good, 0, 1), (files.window([]), 0, 1), (DAMAGE[word], 0, 1), (good, 0, 1)]
    [path] = files.write_segments(tmp_path, "main", units)
    assert len(read(tmp_path, columns=columns)) == 3 + (word == "not_json")
    at = path.read_bytes().index(DAMAGE[word])
    with pytest.raises(LedgerError, match=rf"^capture: main-000001\.cap at byte {at}: {word}$"):
        read(tmp_path, columns=columns, mode="failfast")


def test_failfast_names_damaged_and_unread_files(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 3)
    whole = path.read_bytes()
    assert len(read(tmp_path, mode="FAILFAST")) == 3
    path.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    with pytest.raises(LedgerError, match=r"^capture: main-000001\.cap at byte \d+: damage: CRC"):
        read(tmp_path, mode="FAILFAST")
    path.write_bytes(whole[:-3])
    with pytest.raises(LedgerError, match=r"^capture: main-000001\.cap at byte \d+: torn_record: "):
        read(tmp_path, mode="FAILFAST")
    path.rename(tmp_path / "other-000007.cap")
    with pytest.raises(LedgerError, match=r"^capture: other-000007\.cap: its header names it main-"):
        read(tmp_path, mode="FAILFAST")


def test_segment_that_is_gone_is_a_row(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "main", [(files.window([files.body(None, "x")]), 0, 1)])
    reader = dataframes.LogSource({"path": str(tmp_path)}).reader(None)
    [part] = reader.partitions()
    (tmp_path / "main-000001.cap").unlink()
    [row] = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert (row["listener"], row["error"], row["body"]) == ("main", "unread", None)


def test_files_that_cannot_be_read_are_rows(tmp_path: Path) -> None:
    """Nothing is left out without a word, but for copies of what is there."""
    unit = (files.window([files.body(None, "x")]), 0, 1)
    [good] = files.write_segments(tmp_path, "main", [unit])
    (tmp_path / "copy-000001.cap").write_bytes(good.read_bytes())
    (tmp_path / "renamed.cap").symlink_to(good)
    files.write_segments(tmp_path, "other", [unit])
    (tmp_path / "other-000001.cap").rename(tmp_path / "wrong-000007.cap")
    files.write_segments(tmp_path, "later", [unit] * 3, protocol="smtp", per_segment=2)

    def errors(**options: Any) -> list[tuple[str | None, str]]:
        rows = read(tmp_path, **options)
        return sorted((row["listener"] or "", row["error"]) for row in rows if row["error"])

    unreadable = [("", "misnamed"), ("", "unread")]
    unknown = [("later", "unknown_protocol")] * 2
    assert errors() == unreadable + unknown
    assert errors(protocol="lumberjack") == unreadable
    assert errors(protocol="logux") == [("", "unread")]
    assert len([row for row in read(tmp_path) if row["body"]]) == 1


# -- Spark


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("listeners", [200, pytest.param(2000, marks=pytest.mark.long)])
def test_spark_finds_the_source_and_reads_every_row(spark: Any, tmp_path: Path, listeners: int) -> None:
    """Each listener is a capture in a folder of its own."""
    expected = log_captures.make(tmp_path, 11, listeners, 12, apart=True)
    frame = spark.read.format("logclient").load(f"{tmp_path}/l*")
    found = [row.asDict() for row in frame.collect()]
    zone = datetime.datetime.now().astimezone().tzinfo
    for row in found:
        if row["received"] is not None:
            row["received"] = row["received"].replace(tzinfo=zone).astimezone(datetime.UTC)
    assert_equal(found, expected)


@pytest.mark.slow
@pytest.mark.spark
def test_sql_reads_the_bodies(spark: Any, tmp_path: Path) -> None:
    expected = log_captures.make(tmp_path / "capture", 13, 10, 20)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW logs (body BINARY, error STRING) "
        f"USING logclient OPTIONS (path '{tmp_path / 'capture'}', protocol 'logux')"
    )
    found = spark.sql(
        "SELECT from_json(string(body), 'type STRING, data STRUCT<`order`: INT>') AS event FROM logs "
        "WHERE error IS NULL"
    ).where("event.data.`order` > 50")
    bodies = [
        json.loads(row["body"]) for row in expected if row["listener"] in ("l00004", "l00009") and row["body"]
    ]
    orders = [body.get("data", {}).get("order", 0) for body in bodies]
    assert found.count() == sum(order > 50 for order in orders) > 0
