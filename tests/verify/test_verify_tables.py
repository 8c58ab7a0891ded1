"""Arrivals in a table: the same verdicts from Spark and in this process."""

from __future__ import annotations

import datetime
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import testing, verify
from logclient.errors import ConfigError, ExitCode, LedgerError
from logclient.testing import lumberjack as lumberjack
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
pa = support.need("pyarrow")
parquet = support.need("pyarrow.parquet")
dataset = support.need("pyarrow.dataset")
job = pytest.importorskip("logclient.verify.job")
report = pytest.importorskip("logclient.verify.report")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

SPARK_ONLY = pytest.mark.parametrize(
    "runner", [pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])], indirect=True
)


@pytest.fixture
def table(runner: dict[str, Any], scene: Scene, tmp_path: Path) -> Any:
    """Writes rows to Parquet files, so many in each, and gives the verdict on them."""

    def go(rows: list[dict[str, Any]], per_file: int = 7, **options: Any) -> Any:
        folder = tmp_path / "table"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for i in range(0, len(rows), per_file):
            parquet.write_table(pa.Table.from_pylist(rows[i : i + per_file]), folder / f"{i:06}.parquet")
        name = options.pop("name", str(folder))
        return job.run(scene.ledger, table=name, out=scene.out, tuning=Tuning(3), **{**runner, **options})

    return go


def test_table_needs_neither_arrival_nor_time(scene: Scene, table: Any) -> None:
    """Without an arrival number there is no order, without a time no latency."""
    scene.write_ledger()
    bad = files.body(files.event_id(P, 5), "event V")
    rows = [{"value": scene.bodies[seq]} for seq in (3, 2, 1, *range(6, 20), 7, 7)]
    verdict = table([*rows, {"value": bad}, {"value": None}, {"value": b"nothing"}])
    assert inprocess.counts(verdict) == {
        "events": 20, "ok": 17, "lost": 2, "corrupted": 1, "duplicated": 2
    }  # fmt: skip
    assert verdict.order == verdict.producers[0].order == "not checked"
    assert verdict.latency is verdict.producers[0].latency is None
    assert verdict.producers[0].early == 0
    assert verdict.problems == ()
    assert set(verdict.timeline.latency["max"]) == {None}
    assert verdict.undecodable == {"no_value": 1, "not_json": 1}
    assert verdict.examples["corrupted"][0]["body"] == bad.decode()
    assert {row.get("bytes") for row in verdict.undecoded} == {None, b"nothing".hex()}
    assert verdict.capture["folder"].startswith("table ")
    assert "1969-12-31" not in (scene.out / "report.html").read_text()


def test_events_of_a_producer_that_began_after_the_listing_are_unknown(
    scene: Scene, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no line that was read, but a ledger of theirs exists: they are not unexpected."""
    scene.write_ledger()
    bodies = {seq: files.body(files.event_id(Q, seq), "q") for seq in range(1, 4)}
    opened = job._open_source

    def began(*given: Any) -> Any:
        scene.write_ledger(producer=Q, bodies=bodies)
        return opened(*given)

    monkeypatch.setattr(job, "_open_source", began)
    rows = [{"value": raw} for raw in [*scene.bodies.values(), *bodies.values()]]
    verdict = table(rows)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "unknown": 3}
    assert verdict.exit_code == ExitCode.UNREACHABLE


@SPARK_ONLY
def test_documents_without_metadata_are_corrupted(spark: Any, scene: Scene, table: Any) -> None:
    """No event is taken for another one, and the problem gives the reason."""
    with lumberjack.Collector(keep=True) as server:
        client = logclient.connect(server.url, ledger=str(scene.ledger))
        theirs = client.event_id(1), client.event_id(3), client.event_id(2**40)
        events: list[Any] = [{}, {}, {}, {"event.id": "mine"}, {"event": {"id": "mine too"}}]
        events.append({"event": "login"})
        for forged in theirs:
            events += [{"@metadata": {"_id": forged}}, {"event.id": forged}, {"event": {"id": forged}}]
            events += [{"@metadata": {"_id": forged}, "event.id": forged}, {"event.id": forged, "event": "x"}]
            events.append(b'{"@metadata":{"_id":"%b"},"n":%d}' % (forged.encode(), len(events) + 1))
        for n, event in enumerate(events, 1):
            client.send(event if isinstance(event, bytes) else {"n": n, **event})
        documents = server.events(len(events), PATIENCE)
        assert client.flush(PATIENCE) == 0
        client.close()
    for document in documents:
        del document["@metadata"]
    rows = [{"value": json.dumps(document, separators=(",", ":"))} for document in documents]

    own = {f"{files.xxh64(x):016x}{files.xxh64(x, 43):016x}": n for n, x in ((4, b"mine"), (5, b"mine too"))}
    frame = spark.createDataFrame([(row["value"],) for row in rows], "value string")
    found = [(json.loads(row.value)["n"], row) for row in verify.decoded(frame, "lumberjack").collect()]
    nameless = [n for n, event in enumerate(events, 1) if isinstance(event, bytes)]
    seqs = {n: own.get(row.own_id, row.sequence) for n, row in found}
    assert seqs == {n: None if n in nameless else n for n in range(1, len(events) + 1)}
    assert {row.error for _, row in found} == {None}

    # Events without an id, and the two whose ids they carried, have only their bodies, which differ.
    verdict = table(rows)
    assert inprocess.counts(verdict) == {"events": 24, "corrupted": 19, "lost": 5, "unexpected": 5}
    assert {json.loads(x["body"])["n"] for x in verdict.examples["corrupted"] if x["seq"] > 5} == {
        x["seq"] for x in verdict.examples["corrupted"] if x["seq"] > 5
    }
    [problem] = verdict.problems
    assert problem.startswith("bodies: 19 of the 19 events that are seen have another body than was sent: ")
    text = report.text(verdict)
    assert problem in text
    assert "arrived at the table (19)" in text


@pytest.mark.parametrize("kept", [True, False], ids=["metadata kept", "metadata gone"])
def test_raw_bytes_with_two_ids_are_never_mixed_up(scene: Scene, table: Any, kept: bool) -> None:
    """No event is taken for another one, whichever of its ids the store keeps."""
    with lumberjack.Collector(keep=True) as server:
        client = logclient.connect(server.url, ledger=str(scene.ledger))
        client.send({"n": 1})
        client.send({"n": 2})
        client.send(b'{"@metadata":{"_id":"x"},"event.id":"%b","n":3}' % client.event_id(1).encode())
        client.send(b'{"@metadata":{"_id":"y"},"event.id":"z","n":4}')
        documents = server.events(4, PATIENCE)
        assert client.flush(PATIENCE) == 0
        client.close()
    if not kept:
        for document in documents:
            del document["@metadata"]
    values = [json.dumps(document, separators=(",", ":")) for document in documents]
    # Without `@metadata` every body differs from what was sent; two of the events share one id.
    whole, gone = (table([{"value": value} for value in some]) for some in (values, values[1:]))
    if kept:
        assert inprocess.counts(whole) == {"events": 4, "ok": 4}
        assert inprocess.counts(gone) == {"events": 4, "ok": 3, "lost": 1}
    else:
        assert inprocess.counts(whole) == {"events": 4, "corrupted": 2, "lost": 2, "unexpected": 2}
        assert inprocess.counts(gone) == {"events": 4, "corrupted": 2, "lost": 2, "unexpected": 1}
        assert {x["seq"] for x in whole.examples["corrupted"]} == {2, 4}


def test_columns_give_order_listener_time_and_key(scene: Scene, table: Any) -> None:
    """Order is that of arrival at each listener, wherever the rows are."""
    scene.bodies = {seq: files.body(files.event_id(P, seq), f"é {seq}") for seq in range(1, 21)}
    scene.write_ledger()
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {
            "text": scene.bodies[seq].decode(), "n": 100 - seq if seq in (4, 5) else seq, "server": seq % 2,
            "seen at": at + datetime.timedelta(microseconds=1000 * seq + 9), "k": "key",
        }
        for seq in range(1, 21)
    ]  # fmt: skip
    columns = {"body": "text", "arrival": "n", "listener": "server", "received": "seen at", "key": "k"}
    verdict = table(rows[::-1], columns=columns)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "reordered": 2}
    assert verdict.order == "checked"
    assert verdict.capture["listeners"] == ["0", "1"]
    assert verdict.latency.max == 9
    assert {(x["seq"], x["arrival"], x["key"]) for x in verdict.examples["reordered"]} == {
        (4, 96, "key"), (5, 95, "key")
    }  # fmt: skip


@SPARK_ONLY
def test_table_may_be_named_or_have_a_format(spark: Any, scene: Scene, table: Any, tmp_path: Path) -> None:
    scene.write_ledger()
    spark.createDataFrame(
        [(scene.bodies[seq].decode(),) for seq in range(1, 21)], "line string"
    ).createOrReplaceTempView("arrived")
    try:
        assert table([], name="arrived", columns={"body": "line"}).ok
    finally:
        spark.catalog.dropTempView("arrived")
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"".join(scene.bodies[seq] + b"\n" for seq in range(1, 20)))
    assert table([], name=f"text:{lines}").counts.lost == 1


def test_wrong_column_or_table_is_named(scene: Scene, table: Any) -> None:
    scene.write_ledger()
    rows = [{"value": b"{}", "n": 1.5}]
    for columns, words in (
        ({"body": "none"}, "has no column none"),
        ({"when": "n"}, "'when' is none of body"),
        ({"arrival": "n"}, "n is double, must be a whole number"),
        ({"body": "n"}, "n is double, must be binary or string"),
    ):
        with pytest.raises(ConfigError, match=rf"^columns: .*{words}"):
            table(rows, columns=columns)
    with pytest.raises(LedgerError, match=r"^table: "):
        table(rows, name="no.such_table")
    with pytest.raises(LedgerError, match=r"^table: "):
        table(rows, name="/no/where")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1, 1], "two records have the arrival number 1"),
        ([*range(4096), 4095], "two records have the arrival number 4095"),
        ([5, None], "column n: 1 NULL: every row needs its arrival number"),
        ([1, 1 << 41], "from 1 to 2199023255552: the range must be less than 2\\*\\*40"),
    ],
)
def test_arrival_numbers_must_be_an_order(scene: Scene, table: Any, numbers: list[Any], words: str) -> None:
    scene.write_ledger()
    rows = [{"value": b"{}", "n": n} for n in numbers]
    with pytest.raises(LedgerError, match=f"^table [^ ]*: .*({words})") as failed:
        table(rows, columns={"arrival": "n"}, per_file=5000)
    assert "listener" not in str(failed.value)


@SPARK_ONLY
def test_arrival_number_in_two_files_is_refused(spark: Any, scene: Scene, table: Any) -> None:
    """Spark reads the files in two tasks, and neither task sees both."""
    scene.write_ledger()
    rows = [{"value": scene.bodies[seq], "n": seq % 10, "server": "a"} for seq in range(1, 21)]
    before = spark.conf.get("spark.sql.files.openCostInBytes")
    spark.conf.set("spark.sql.files.openCostInBytes", str(128 << 20))
    try:
        with pytest.raises(LedgerError, match="listener 'a': two records have the arrival number"):
            table(rows, per_file=10, columns={"arrival": "n", "listener": "server"})
        # Numbers may be interleaved over the files.
        for row, seq in zip(rows, [*range(1, 21, 2), *range(2, 21, 2)], strict=True):
            row |= {"value": scene.bodies[seq], "n": seq}
        assert table(rows, per_file=10, columns={"arrival": "n", "listener": "server"}).ok
    finally:
        spark.conf.set("spark.sql.files.openCostInBytes", before)


def test_arrival_numbers_may_begin_anywhere(scene: Scene, table: Any) -> None:
    """They count from the lowest of each listener, which may be negative."""
    scene.write_ledger()
    began = {"a": 1_700_000_000_000_000, "b": -20}
    rows = [
        {"value": scene.bodies[seq], "n": began["ab"[seq % 2]] + 1_000_000_000 * seq, "server": "ab"[seq % 2]}
        for seq in range(1, 21)
    ]
    rows[4]["n"], rows[6]["n"] = rows[6]["n"], rows[4]["n"]
    verdict = table(rows, columns={"arrival": "n", "listener": "server"})
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "reordered": 1}
    [example] = verdict.examples["reordered"]
    assert (example["seq"], example["arrival"]) == (5, began["b"] + 7_000_000_000)
    assert verdict.problems == ()


def test_wrong_time_is_named(scene: Scene, table: Any, capfd: pytest.CaptureFixture[str]) -> None:
    scene.write_ledger()
    rows = [{"value": scene.bodies[seq], "at": f"2024-01-01 00:00:{seq:02}"} for seq in range(1, 21)]
    assert table(rows, columns={"received": "at"}).latency.events == 20
    rows[7]["at"] = "not a time"
    with pytest.raises(LedgerError, match=r"^table [^ ]*: column at: 'not a time' is not a timestamp$"):
        table(rows, columns={"received": "at"})
    with pytest.raises(ConfigError, match=r"^columns: received: at is double, must be a timestamp"):
        table([{"value": b"{}", "at": 1.5}], columns={"received": "at"})
    assert capfd.readouterr().err == ""


@SPARK_ONLY
def test_the_session_zone_changes_no_time_and_null_is_unknown(scene: Scene, table: Any, spark: Any) -> None:
    """Text without a zone is UTC, as in every other part of the product; NULL is not 1970."""
    scene.write_ledger()
    zone = "spark.sql.session.timeZone"
    texts = ("2024-07-01 00:00:01.5", "2024-07-01T00:00:02Z", "2024-07-01 02:00:03 +02:00", None)
    rows = [{"value": scene.bodies[seq], "at": texts[seq % 4]} for seq in range(1, 21)]
    before = spark.conf.get(zone)
    spark.conf.set(zone, "America/New_York")
    try:
        verdict = table(rows, columns={"received": "at"})
    finally:
        spark.conf.set(zone, before)
    begin = 1_719_792_000_000_000
    assert (verdict.capture["first_us"], verdict.capture["last_us"]) == (begin + 1_500_000, begin + 3_000_000)
    assert verdict.latency.events == 15
    assert verdict.ok


@SPARK_ONLY
def test_unknown_table_format_is_named(scene: Scene, table: Any, tmp_path: Path) -> None:
    scene.write_ledger()
    with pytest.raises(LedgerError, match=r"^table: Spark knows no format 'delta': .*--packages") as failed:
        table([], name=f"delta:{tmp_path}")
    assert "\n" not in str(failed.value)


# -- both runners


def verdict_of_both(spark: Any, scene: Scene, table: Path, **options: Any) -> dict[str, Any]:
    """Return what verdict.json has from each runner, which must be the same but for times."""
    found = []
    for runner in ({"spark": spark}, {"runner": "local"}):
        job.run(scene.ledger, table=str(table), out=scene.out, tuning=Tuning(3), **runner, **options)
        found.append(json.loads((scene.out / "verdict.json").read_text()))
        assert found[-1].pop("seconds") and found[-1].pop("made_us")
    assert found[0] == found[1]
    return found[0]


@pytest.mark.slow
@pytest.mark.spark
def test_both_runners_give_the_same_verdict(spark: Any, scene: Scene, tmp_path: Path) -> None:
    """Of rows with every column, each kind of fault, and bodies that are no event."""
    scene.write_ledger(outcomes={"acked": range(1, 17), "failed": range(17, 21)})
    bad = files.body(files.event_id(P, 5), "event V")
    order = [1, 2, 3, 6, 7, 8, 9, 11, 10, 7, *range(12, 18)]
    bodies = [scene.bodies[seq] for seq in order]
    bodies += [bad, None, b"", b"nothing", b"\xff", files.body(files.event_id(Q, 1), "é"), bodies[3]]
    rows = [
        {
            "raw": raw, "n": 7 * i % len(bodies), "where": i % 3, "key": "k" * (i % 2) or None,
            "at": None if i == 4 else f"1970-01-01 00:00:{i:02}.5+00:00",
        }
        for i, raw in enumerate(bodies)
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), table := tmp_path / "rows.parquet")
    columns = {"body": "raw", "arrival": "n", "received": "at", "listener": "where", "key": "key"}
    for left_out in ((), ("arrival",), ("arrival", "received", "listener")):
        given = {what: name for what, name in columns.items() if what not in left_out}
        found = verdict_of_both(spark, scene, table, columns=given)
        assert found["counts"]["corrupted"] == 1 and found["examples"]


@pytest.mark.slow
@pytest.mark.spark
def test_both_runners_make_the_same_documents_of_ids(spark: Any, scene: Scene, tmp_path: Path) -> None:
    scene.write_ledger()
    ids = [
        *(files.event_id(P, seq).encode() for seq in (1, 2, 2, 4)),
        None,
        b"",
        "é\u2028😀".encode(),
        b"\x7f",
    ]
    ids += [b"a\xffb\xf0\x9f\x98c\xc3", bytes(range(32)), b'\\u001f/"<>&']
    parquet.write_table(pa.table({"id": pa.array(ids, pa.binary())}), table := tmp_path / "ids.parquet")
    found = verdict_of_both(spark, scene, table, columns={"id": "id"}, match="id")
    assert (len(found["examples"]["unexpected"]), found["undecodable"]) == (5, {"no_value": 2})


TIMES = {
    "2024": 0, "2024-1": 0, "2024-01-1": 0, "+2024-01-01 ": 0, "2024-01-01 1": 3600, "2024-01-01T01:2": 3720,
    "2024-01-01 1:2:3": 3723, " 2024-01-01 00:00:01.": 1, "2024-01-01T00:00:01.1234567Z": 1.123456,
    "2024-01-01 00:00:01 UTC": 1, "2024-01-01 02:00:00 +02:00": 0, "2024-01-01 02:00:00+02": 0,
    "2024-01-01 02:00:00+0200": 0, "2023-12-31 23:59:00-0:1": 0, "2024-01-01 00:00:00 UT": 0,
    "2024-01-01 01:01:01+1:01:01": 0, "2024-01-01 18:00:00 GMT+18": 0, "2024-01-01 00:00:07.5Z ": 7.5,
}  # fmt: skip
NO_TIMES = [
    "2024-01-01T", "2024-01-01 24:00:00", "2024-02-30", "2024-13-01", "2024-00-01", "2024-01-00", "20240101",
    "2024-01-01 00:60:00", "2024-01-01 00:00:60", "2024-01-01 00:00Z", "2024-01-01 00:00:00+19:00", "",
    "2024-01-01  00:00:00", "2024-01-01 00:00:00 z", "00:00:00", "yesterday",
]  # fmt: skip


def test_texts_of_times_have_one_meaning(scene: Scene, table: Any) -> None:
    scene.write_ledger()
    rows = [{"value": scene.bodies[i], "at": text} for i, text in enumerate(TIMES, 1)]
    verdict = table([*rows, *rows], columns={"received": "at"})
    found = {x["seq"]: x["received_us"] for x in verdict.examples["duplicated"]}
    begin = 1_704_067_200_000_000
    assert found == {i: begin + int(at * 1_000_000) for i, at in enumerate(TIMES.values(), 1)}


@pytest.mark.parametrize("text", [NO_TIMES[0], pytest.param(NO_TIMES, id="all")])
def test_a_text_that_is_no_time_is_refused(scene: Scene, table: Any, text: str | list[str]) -> None:
    """The first one by its text is named."""
    scene.write_ledger()
    rows = [{"value": scene.bodies[1], "at": one} for one in ([text] if isinstance(text, str) else text)]
    wrong = min(row["at"] for row in rows)
    with pytest.raises(LedgerError, match=f"^table .*: column at: '{wrong}' is not a timestamp$"):
        table(rows, columns={"received": "at"})


def test_types_of_other_columns_are_checked(scene: Scene, table: Any) -> None:
    scene.write_ledger()
    for what, rule in (("key", "binary or string"), ("listener", "a string, a whole number, a boolean or a")):
        with pytest.raises(ConfigError, match=rf"^columns: {what}: n is double, must be {rule}"):
            table([{"value": b"{}", "n": 1.5}], columns={what: "n"})


# -- by id

BY_ID = {"columns": {"id": "id"}, "match": "id"}


def test_ids_need_no_plain_text(scene: Scene, table: Any) -> None:
    """Those of an application may have any character; NULL and an empty text are none."""
    scene.write_ledger()
    names = ['a"b', "back\\slash", "\x01\n", "é 😀", "\u2028", *(files.event_id(P, n) for n in range(2, 21))]
    verdict = table([{"id": name} for name in (*names, None, "")], **BY_ID)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 19, "lost": 1, "unexpected": 5}
    shown = {json.loads(x["body"])["event.id"] for x in verdict.examples["unexpected"]}
    assert shown == set(names[:5]) and verdict.undecodable == {"no_value": 2}


@pytest.mark.parametrize(
    ("written", "how"),
    [
        (str.upper, "in lower case"),
        (lambda name: f" {name}\t", "without blanks"),
        (lambda name: f"{name[:8]}-{name[8:]}", "without dashes"),
        (lambda name: f"{name[:8]}-{name[8:].upper()}", "in lower case and without dashes"),
    ],
)
def test_ids_that_are_only_written_otherwise_are_shown(
    scene: Scene, table: Any, written: Callable[[str], str], how: str
) -> None:
    scene.write_ledger()
    names = [files.event_id(P, seq) for seq in range(1, 21)]
    verdict = table([{"id": written(name)} for name in names], **BY_ID)
    assert (verdict.counts.lost, verdict.counts.unexpected) == (20, 20)
    [hint] = verdict.problems
    pairs = [f"ids: {written(x)!r} arrived, and {x!r} was sent: {how} they are equal" for x in names]
    assert hint in pairs and hint in report.text(verdict)
    few = table([{"id": name} for name in (*names[:11], written(names[11]))], **BY_ID)
    assert few.problems == ()


def test_own_ids_that_are_only_written_otherwise_are_shown(
    runner: dict[str, Any], table: Any, scene: Scene
) -> None:
    with lumberjack.Collector(keep=True) as server:
        client = logclient.connect(server.url, ledger=str(scene.ledger), identity="own")
        client.send({"event.id": "Order 7"})
        server.events(1, PATIENCE)
        assert client.flush(PATIENCE) == 0
        client.close()
    [hint] = table([{"id": " Order 7 "}, {"id": "Order-7"}], **BY_ID).problems[:1] or [""]
    assert hint == ""
    [hint] = table([{"id": "Order- 7"}], **BY_ID).problems
    assert hint == "ids: 'Order- 7' arrived, and 'Order 7' was sent: without dashes they are equal"


def test_a_column_without_any_id_is_an_error(scene: Scene, table: Any) -> None:
    scene.write_ledger()
    rows = pa.table({"id": pa.array([None, "", None], pa.string())}).to_pylist()
    with pytest.raises(ConfigError, match=r"^columns: id: id is NULL or empty in all 3 rows$"):
        table(rows, **BY_ID)


# -- in this process


def lines(path: Path, rows: list[Any]) -> Path:
    """Write lines of JSON."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.write("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def written(form: str, folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write rows in a format, and return the arguments that name them."""
    made = pa.Table.from_pylist(rows)
    if form == "parquet":
        (folder / "day=1").mkdir()
        parquet.write_table(made, folder / "day=1" / "some.snappy.parquet")
        (folder / "_SUCCESS").touch()
        return {"table": str(folder)}
    if form in ("json", "jsonl", "ndjson", "json.gz"):
        half = len(rows) // 2
        lines(folder / "empty.json", [])
        for name, some in (("a", rows[:half]), ("b", rows[half:])):
            lines(folder / f"{name}.{form}", some)
        return {"table": str(folder)}
    if form == "FORMAT:PATH":
        return {"table": f"json:{lines(folder / 'rows.txt', rows)}"}
    if form in ("arrow", "feather"):
        path = folder / f"rows.{form}"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, made.schema) as writer:
            writer.write_table(made)
        return {"table": str(path)}
    encoded = made.set_column(0, "raw", made.column("raw").dictionary_encode())
    return {
        "arrived": {
            "Table": encoded,
            "RecordBatchReader": made.to_reader(5),
            "Dataset": dataset.dataset(made),
        }[form]
    }


FORMS = ("parquet", "json", "jsonl", "ndjson", "json.gz", "FORMAT:PATH", "arrow", "feather")


@pytest.mark.parametrize("form", [*FORMS, "Table", "RecordBatchReader", "Dataset"])
def test_each_format_gives_the_verdict_of_its_rows(scene: Scene, tmp_path: Path, form: str) -> None:
    scene.write_ledger()
    bad = files.body(files.event_id(P, 5), "event V")
    order = [1, 2, 3, 5, 6, 7, 8, 9, 11, 10, *range(12, 21), 7]
    rows = [
        {"raw": (bad if seq == 5 else scene.bodies[seq]).decode(), "n": i, "at": 50_000 + i}
        for i, seq in enumerate(order)
    ]
    (tmp_path / "arrived").mkdir()
    given = written(form, tmp_path / "arrived", rows[::-1])
    columns = {"body": "raw", "arrival": "n", "received": "at"}
    verdict = job.run(scene.ledger, columns=columns, runner="local", tuning=Tuning(3), **given)
    assert inprocess.counts(verdict) == {
        "events": 20, "ok": 18, "lost": 1, "corrupted": 1, "duplicated": 1, "reordered": 1
    }  # fmt: skip
    assert (verdict.capture["first_us"], verdict.capture["last_us"]) == (50_000, 50_019)
    assert [row["body"] for row in verdict.examples["corrupted"]] == [bad.decode()]


def test_documents_may_differ_in_all_that_is_not_asked_for(scene: Scene, tmp_path: Path) -> None:
    """An export of a store has fields of several types, objects beside texts, and long documents."""
    scene.write_ledger()
    rows: list[Any] = [
        {
            "labels": n if n % 2 else str(n),
            "event": {"id": files.event_id(P, n), "kind": [n]},
            "at": "2024-01-01",
        }
        for n in range(1, 21)
    ]
    rows[3]["event"] = None
    rows[4]["message"] = "x" * (3 << 20)
    rows += ["", {"labels": {}}, '{"event": {}}']
    path = lines(tmp_path / "export.ndjson", rows)
    options: dict[str, Any] = {
        "columns": {"id": "event.id", "received": "at"},
        "match": "id",
        "runner": "local",
    }
    verdict = job.run(scene.ledger, table=str(path), **options)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 19, "lost": 1}
    assert verdict.undecodable == {"no_value": 3}
    lines(path, [*rows, {"event": {"id": 5}}])
    with pytest.raises(LedgerError, match=r"^table .*id\) changed from string to number") as failed:
        job.run(scene.ledger, table=str(path), **options)
    assert "\n" not in str(failed.value)
    for name in ("event.none", "labels.id", "none"):
        with pytest.raises(
            ConfigError, match=rf"^columns: table .* has no column {name} \(labels, event, at,"
        ):
            job.run(scene.ledger, table=str(path), columns={"id": name}, match="id", runner="local")
    with pytest.raises(ConfigError, match=r"column value; name one as body, or as id with match=id \("):
        job.run(scene.ledger, table=str(path), match="id", runner="local")


def test_what_cannot_be_read_here_is_named(scene: Scene, tmp_path: Path) -> None:
    scene.write_ledger()
    (tmp_path / "broken.parquet").write_bytes(b"no")
    (tmp_path / "array.json").write_text('[{"value": "{}"}]\n')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "half.json").write_text('{"value": "\\ud800"}\n')  # half of a character
    (tmp_path / "named.json").write_text('{"value": "x", "\\ud800": 1}\n')
    (tmp_path / "empty").mkdir()
    for given, words in (
        ({"table": "/no/where"}, r"^table: /no/where: there is no such file or folder$"),
        ({"table": f"{tmp_path}/empty"}, r"^table: .*empty has no file$"),
        ({"table": f"{tmp_path}/array.json"}, r"^table .*array.json: no object in its first lines: each "),
        ({"table": f"{tmp_path}/deep.json"}, r"^table .*deep.json: no object in its first lines: each "),
        ({"table": f"{tmp_path}/half.json"}, r"^table .*half.json: .*surrogate"),
        ({"table": f"{tmp_path}/named.json"}, r"^table: .*named.json: .*surrogate"),
        ({"table": f"{tmp_path}/broken.parquet"}, r"^table: .*broken.parquet: .*Parquet"),
        (
            {"table": "delta:/data"},
            r"^table: without Spark there is no format 'delta': there are parquet, json",
        ),
        ({"arrived": [b"{}"]}, r"^arrived: list must be a Table, RecordBatchReader or Dataset of pyarrow"),
        ({"kafka": "h:1/t"}, r"^runner: a topic is read by Spark"),
    ):
        with pytest.raises((LedgerError, ConfigError), match=words) as failed:
            job.run(scene.ledger, runner="local", **given)
        assert "\n" not in str(failed.value)
    with pytest.raises(ConfigError, match=r'^arrived: Table must be a DataFrame of Spark.*runner="local"'):
        job.run(scene.ledger, arrived=pa.table({}))


def test_columns_are_checked_before_spark_starts(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"^columns: 'when' is none of body, "):
        job.run(scene.ledger, table="t", columns={"when": "n"}, master="local[0]")


def test_rows_of_many_batches_have_their_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are sorted together."""
    tables = pytest.importorskip("logclient.verify.tables")
    scene.write_ledger()
    monkeypatch.setattr(tables, "ROWS", 3)
    monkeypatch.setattr(tables, "PART_BYTES", 1)
    seqs = [*range(1, 21, 2), *range(2, 21, 2)]
    rows = pa.table({"value": [scene.bodies[seq] for seq in seqs], "n": seqs})
    given: dict[str, Any] = {"columns": {"arrival": "n"}, "runner": "local", "tuning": Tuning(3)}
    assert job.run(scene.ledger, arrived=rows, **given).ok
    twice = pa.concat_tables([rows, rows.slice(4, 1)])
    with pytest.raises(LedgerError, match="two records have the arrival number 9"):
        job.run(scene.ledger, arrived=twice, **given)


def test_a_test_may_assert_what_a_table_has(scene: Scene) -> None:
    scene.write_ledger()
    rows = pa.table({"value": list(scene.bodies.values())})
    assert testing.assert_delivered(scene.ledger, arrived=rows).counts.ok == 20
    with pytest.raises(AssertionError, match="1 lost"):
        testing.assert_delivered(scene.ledger, arrived=rows.slice(1))


def test_each_hour_reads_the_same_batches(scene: Scene, tmp_path: Path) -> None:
    hour = 3_600_000_000
    scene.write_ledger(created=lambda seq: hour * (seq > 10) + seq, per_batch=10)
    rows = pa.table({"value": list(scene.bodies.values())}).to_reader(3)
    found: list[Any] = []
    code = verify.append(
        tmp_path / "hours", scene.ledger, arrived=rows, runner="local", since=0, until=7200, each=found.append
    )
    assert (code, [verdict.counts.ok for verdict in found]) == (ExitCode.OK, [10, 10])
