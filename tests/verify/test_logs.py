"""The data source ``logclient`` on all protocols: each row against what was put into the capture."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.verify import log_captures
from tests.verify.log_captures import EPOCH, Row, assert_equal, plain, read

np = support.need("numpy")
pa = support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes")
filters = pytest.importorskip("pyspark.sql.datasource")

P = "ab" * 10


def at(us: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=us)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "units", "partition_bytes"),
    [(0, 25, 1 << 26), (1, 25, 3000), (2, 25, 500), (3, 25, 200), (4, 4, 1), (5, 4, 3)],
)
def test_each_row_equals_what_was_sent(tmp_path: Path, seed: int, units: int, partition_bytes: int) -> None:
    """However the segments are cut."""
    expected = log_captures.make(tmp_path / "capture", seed, 20, units)
    assert_equal(read(tmp_path / "capture", maxPartitionBytes=partition_bytes), expected)


def test_small_batches_have_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logclient.verify.dataframes import pieces

    expected = log_captures.make(tmp_path / "capture", 9, 20, 25)
    for name, size in (("ROWS", 3), ("BODY_BYTES", 500), ("UNITS", 4)):
        monkeypatch.setattr(pieces, name, size)
    assert_equal(read(tmp_path / "capture"), expected)


@pytest.mark.parametrize("protocol", ["lumberjack", "logjam", "plog", "logux"])
def test_protocol_selects_listeners(tmp_path: Path, protocol: str) -> None:
    expected = log_captures.make(tmp_path / "capture", 5, 10, 20)
    own = {f"l{i:05d}" for i in range(10) if log_captures.PROTOCOLS[i % 5].startswith(protocol)}
    assert_equal(
        read(tmp_path / "capture", protocol=protocol), [row for row in expected if row["listener"] in own]
    )


def test_pushed_filters_leave_no_row_out(tmp_path: Path) -> None:
    rows = log_captures.make(tmp_path / "capture", 6, 15, 25)
    times = sorted(row["received"] for row in rows if row["received"] is not None)
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    some = log_captures.PRODUCERS[:2]
    cases: list[tuple[list[Any], Any]] = [
        ([filters.EqualTo(("listener",), "l00001")], lambda row: row["listener"] == "l00001"),
        ([filters.In(("producer",), some)], lambda row: row["producer"] in some),
        ([filters.EqualTo(("producer",), "none")], lambda row: False),
        (
            [filters.GreaterThan(("received",), at(low)), filters.LessThanOrEqual(("received",), at(high))],
            lambda row: row["received"] is not None and low < row["received"] <= high,
        ),
        ([filters.EqualTo(("received",), at(low))], lambda row: row["received"] == low),
        ([filters.IsNotNull(("level",))], lambda row: row["level"] is not None),
    ]
    for pushed, wanted in cases:
        found = [plain(row) for row in read(tmp_path / "capture", tuple(pushed))]
        assert_equal([row for row in found if wanted(row)], [row for row in rows if wanted(row)])
    # They also save work: nothing but the wanted rows is left, and what cannot be read.
    alone = read(tmp_path / "capture", (filters.In(("producer",), some),))
    assert {row["producer"] for row in alone if row["error"] is None} <= set(some)
    within = read(tmp_path / "capture", (filters.LessThan(("received",), at(low)),))
    assert max(plain(row)["received"] or 0 for row in within) <= low


def test_partitions_have_about_so_many_bytes(tmp_path: Path) -> None:
    body = files.body(None, "x" * 500)
    files.write_segments(tmp_path, "big", [(files.window([body]), 0, 1)] * 400)
    for i in range(50):
        files.write_segments(tmp_path, f"small{i:02d}", [(files.window([body]), 0, 1)])
    source = dataframes.LogSource({"path": str(tmp_path), "maxPartitionBytes": "20k"})
    reader = source.reader(None)
    parts = reader.partitions()
    sizes = [sum(series.size for series in part.series) for part in parts]
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(sizes) == total
    assert max(sizes) <= 20 << 10
    assert len(parts) < 1.5 * total / (20 << 10)


def test_partitions_depend_on_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's machine says nothing about those of the workers."""
    from logclient.verify.dataframes import pieces

    body = files.body(None, "x" * 500)
    [path] = files.write_segments(tmp_path, "main", [(files.window([body]), 0, 1)] * 400)
    size = path.stat().st_size
    for least, most, expected in ((size, size, 1), (1, size, pieces.TASKS), (1, size // 100, 101)):
        monkeypatch.setattr(pieces, "LEAST_BYTES", least)
        monkeypatch.setattr(pieces, "MOST_BYTES", most)
        parts = dataframes.LogSource({"path": str(tmp_path)}).reader(None).partitions()
        assert abs(len(parts) - expected) <= 1


def test_schema_chooses_columns(tmp_path: Path) -> None:
    from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructType, TimestampType

    text, fields = StringType(), MapType(StringType(), StringType())
    expected = log_captures.make(tmp_path / "capture", 7, 10, 20)
    for columns in (
        [("sequence", LongType()), ("error", text)],
        [("fields", fields), ("id", text)],
        [("time", TimestampType())],
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
        ("time", text, "schema: time has the type timestamp, not string"),
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


def test_filter_on_producers_holds_without_their_column(tmp_path: Path) -> None:
    from pyspark.sql.types import BinaryType, StructType

    rows = log_captures.make(tmp_path / "capture", 6, 15, 25)
    some = log_captures.PRODUCERS[:2]
    found = read(
        tmp_path / "capture",
        (filters.In(("producer",), some),),
        schema=StructType().add("body", BinaryType()),
    )
    expected = [row["body"] for row in rows if row["producer"] in some]
    assert expected
    assert sorted(row["body"] for row in found if row["body"] is not None) == sorted(expected)


def test_only_what_is_asked_for_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logclient.evidence import decode
    from logclient.verify.dataframes import pieces
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
        ("message", (False, False)),
        ("peer", (False, False)),
        ("hash", (False, True)),
        ("id", (True, False)),
        ("error", (True, False)),
    ):
        asked.clear()
        list(pieces.read(pieces.find_series([str(tmp_path)])[0], Columns((name,)), pieces.Wanted()))
        assert asked == [needs], name


@pytest.mark.slow
def test_imports_are_exempt_from_garbage_collection_in_tasks_only(tmp_path: Path) -> None:
    files.write_segments(tmp_path, "a", [(files.window([files.body(None, "x")]), 0, 1)])
    script = """if True:
        import gc, sys
        from pyspark import TaskContext
        from logclient.verify import dataframes

        reader = dataframes.LogSource({"path": sys.argv[1]}).reader(None)
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
    with pytest.raises(ConfigError, match="pushFilters: 'maybe' must be false or true"):
        read(tmp_path / "capture", pushFilters="maybe")
    for size in ("many", "-1", "0"):
        with pytest.raises(ConfigError, match=f"maxPartitionBytes: '{size}' must be a number of bytes"):
            read(tmp_path / "capture", maxPartitionBytes=size)
    with pytest.raises(ConfigError, match="path: "):
        dataframes.LogSource({}).reader(None)
    known = "path, protocol, columns, mode, maxPartitionBytes, maxBytesPerTrigger, pushFilters"
    for source in (dataframes.LogSource, dataframes.CaptureSource):
        also = "" if source is dataframes.LogSource else ", rows"
        given = {"path": str(tmp_path / "capture"), "MAXPARTITIONBYTES": "1m", "protocl": "plog"}
        words = f"protocl: there is no such option: there are {known}{also}"
        for make in (source(given).reader, source(given).streamReader):
            with pytest.raises(ConfigError, match=words):
                make(None)
    with pytest.raises(ConfigError, match="mode: 'DROPMALFORMED' must be PERMISSIVE or FAILFAST"):
        read(tmp_path / "capture", mode="DROPMALFORMED")
    for name in ("sequenz", "raw"):
        with pytest.raises(ConfigError, match=f"columns: there is no column '{name}': .*sequence"):
            read(tmp_path / "capture", columns=f"time,{name}")
    with pytest.raises(ConfigError, match="rows: there is no such option"):
        read(tmp_path / "capture", rows="units")
    with pytest.raises(LedgerError, match="No such file"):
        read(tmp_path / "nowhere")


def test_option_names_columns(tmp_path: Path) -> None:
    expected = log_captures.make(tmp_path / "capture", 13, 10, 20)
    for names in ("time, level,message", "error", "id body"):
        chosen = names.replace(",", " ").split()
        source = dataframes.LogSource({"path": "x", "columns": names})
        assert source.schema().names == chosen
        found = read(tmp_path / "capture", columns=names)
        assert_equal(found, [{name: row[name] for name in chosen} for row in expected])


def test_document_is_the_body_as_a_variant(tmp_path: Path) -> None:
    from pyspark.sql.types import VariantVal

    bodies = [
        b'{"http":{"response":{"status_code":404}},"order":17}', b'  {"a": [1, null]}\n', b"[1]", b"{]",
        b'{"a":1} x', b'{"deep":' + b"[" * 100_000,
    ]  # fmt: skip
    files.write_segments(tmp_path, "main", [(files.window(bodies), 0, 1)])
    found = [row["document"] for row in read(tmp_path, columns="document")]
    assert found[2:] == [None] * 4
    made = [VariantVal(one["value"], one["metadata"]).toPython() for one in found[:2]]
    assert made == [{"http": {"response": {"status_code": 404}}, "order": 17}, {"a": [1, None]}]


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
    with pytest.raises(LedgerError, match=word):
        rows_of_stream(tmp_path, mode="FAILFAST")


def rows_of_stream(folder: Path, **options: str) -> list[Row]:
    reader = dataframes.LogSource({"path": str(folder), **options}).streamReader(None)
    parts = reader.partitions({}, reader.latestOffset({}, None))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_failfast_names_damaged_and_unread_files(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(files.window([b"{}"]), 0, 1)] * 3)
    whole = path.read_bytes()
    assert len(read(tmp_path, mode="FAILFAST")) == 3
    path.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    for source in (read, rows_of_stream):
        with pytest.raises(LedgerError, match=r"^capture: main-000001\.cap at byte \d+: damage: CRC"):
            source(tmp_path, mode="FAILFAST")  # type: ignore[operator]
    path.write_bytes(whole[:-3])
    with pytest.raises(LedgerError, match=r"^capture: main-000001\.cap at byte \d+: torn_record: "):
        read(tmp_path, mode="FAILFAST")
    path.rename(tmp_path / "other-000007.cap")
    for source in (read, rows_of_stream):
        with pytest.raises(LedgerError, match=r"^capture: other-000007\.cap: its header names it main-"):
            source(tmp_path, mode="FAILFAST")  # type: ignore[operator]


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
    for size in (100, 1 << 26):
        assert errors(maxPartitionBytes=size) == unreadable + unknown
    assert errors(protocol="lumberjack") == unreadable
    assert errors(protocol="logux") == [("", "unread")]
    assert len([row for row in read(tmp_path) if row["body"]]) == 1


class Opened:
    """Which segments are opened, and how many units are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from logclient.evidence import decode, storage

        self.paths: list[str] = []
        self.units = 0
        open_file, bounded = storage.open_file, decode.bounded_decoder

        def opening(place: str, what: str) -> Any:
            self.paths.append(place)
            return open_file(place, what)

        def deciding(*args: Any, **options: Any) -> Any:
            find = bounded(*args, **options)

            def run(batch: Any) -> Any:
                self.units += len(batch.offset)
                return find(batch)

            return run

        monkeypatch.setattr(storage, "open_file", opening)
        monkeypatch.setattr(decode, "bounded_decoder", deciding)


def test_pushed_filters_open_and_decode_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = files.window([files.body(None, "x")])
    for listener in ("a", "b", "c"):
        files.write_segments(
            tmp_path, listener, [(unit, 0, 1_000_000 * i) for i in range(100)], per_segment=50
        )
    opened = Opened(monkeypatch)

    def count(*pushed: Any, push: str = "true") -> tuple[set[str], int, int]:
        reader = dataframes.LogSource({"path": str(tmp_path), "pushFilters": push}).reader(None)
        assert [*reader.pushFilters(list(pushed))] == [*pushed]
        parts = reader.partitions()
        opened.paths, opened.units = [], 0
        rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
        return {Path(path).name[0] for path in opened.paths}, opened.units, rows

    assert count() == ({"a", "b", "c"}, 300, 300)
    assert count(filters.EqualTo(("listener",), "b")) == ({"b"}, 100, 100)
    assert count(filters.In(("listener",), ("a", "c", "d"))) == ({"a", "c"}, 200, 200)
    assert count(filters.EqualTo(("listener",), "d")) == (set(), 0, 0)
    low, high = at(20_000_000), at(29_000_000)
    within = (filters.GreaterThanOrEqual(("received",), low), filters.LessThanOrEqual(("received",), high))
    assert count(*within) == ({"a", "b", "c"}, 30, 30)
    assert count(*within, filters.EqualTo(("listener",), "a")) == ({"a"}, 10, 10)
    assert count(filters.EqualTo(("producer",), P)) == ({"a", "b", "c"}, 300, 0)
    assert count(filters.EqualTo(("listener",), "b"), push="false") == ({"a", "b", "c"}, 300, 300)


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
        for name in ("time", "received"):
            if row[name] is not None:
                row[name] = row[name].replace(tzinfo=zone).astimezone(datetime.UTC)
    assert_equal(found, expected)


@pytest.mark.slow
@pytest.mark.spark
def test_filters_give_the_same_rows_pushed_or_not(spark: Any, tmp_path: Path) -> None:
    """Only Spark can push them: while it does not, the option is an error that names Spark's setting."""
    rows = log_captures.make(tmp_path / "capture", 12, 20, 20)
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    from pyspark.errors import AnalysisException

    try:

        def load(push: bool) -> Any:
            source = spark.read.format("logclient").option("maxPartitionBytes", "2k")
            return source.option("pushFilters", push).load(str(tmp_path / "capture"))

        spark.conf.set(name, "false")
        with pytest.raises(AnalysisException, match=name):
            load(True).count()
        spark.conf.set(name, "true")
        times = sorted(row["received"] for row in rows if row["received"] is not None)
        low = times[len(times) // 2]
        where = f"listener = 'l00003' and received >= timestamp_micros({low}) and message is not null"
        own = [row for row in rows if row["listener"] == "l00003" and (row["received"] or 0) >= low]
        assert load(True).where(where).count() == sum(row["message"] is not None for row in own)
        producer = log_captures.PRODUCERS[1]
        one = load(True).where("listener = 'l00003'").rdd.getNumPartitions()
        assert one < load(True).rdd.getNumPartitions()
        # Without the option, a DataFrame may be used again.
        frame = load(False)
        assert frame.where("listener = 'l00003'").count() < frame.count() == len(rows)
        assert load(True).where(f"producer in ('{producer}', 'x')").count() == sum(
            row["producer"] == producer for row in rows
        )
    finally:
        spark.conf.set(name, before)


@pytest.mark.slow
@pytest.mark.spark
def test_sql_reads_a_capture(spark: Any, tmp_path: Path) -> None:
    expected = log_captures.make(tmp_path / "capture", 13, 10, 20)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW logs (level STRING, fields MAP<STRING, STRING>, error STRING) "
        f"USING logclient OPTIONS (path '{tmp_path / 'capture'}', protocol 'logux')"
    )
    [(n,)] = spark.sql("SELECT count(*) FROM logs WHERE level = 'info' AND fields['order'] > 50").collect()
    own = [row for row in expected if row["listener"] in ("l00004", "l00009")]
    assert n == sum(
        row["level"] == "info" and int((row["fields"] or {}).get("order") or 0) > 50 for row in own
    )
