"""Any DataFrame as what arrived, and events that are found by their ids alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import verify
from logclient.errors import ConfigError, ExitCode, LedgerError
from logclient.testing import lumberjack as lumberjack
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.kafka_fixture import Record, create_topic
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
pa = support.need("pyarrow")
parquet = support.need("pyarrow.parquet")
report = pytest.importorskip("logclient.verify.report")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

BAD = files.body(files.event_id(P, 5), "event V")
FAULTS = {"events": 20, "ok": 18, "lost": 1, "corrupted": 1, "duplicated": 1, "reordered": 1}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger()


def arrivals(scene: Scene) -> list[bytes]:
    """Event 4 lost, 5 with another body, 7 twice, 10 and 11 exchanged."""
    order = [1, 2, 3, 5, 6, 7, 8, 9, 11, 10, *range(12, 21), 7]
    return [BAD if seq == 5 else scene.bodies[seq] for seq in order]


# -- any DataFrame


@pytest.fixture(params=["parquet", "shuffled", "jdbc", "kafka"])
def frame(request: pytest.FixtureRequest, spark: Any, scene: Scene, tmp_path: Path) -> Iterator[Any]:
    """The arrivals as a DataFrame with the columns raw, n and at."""
    bodies = arrivals(scene)
    if request.param == "kafka":
        where = request.getfixturevalue("broker")
        topic = create_topic(where, 1, [Record(body, at_ms=50 + i) for i, body in enumerate(bodies)])
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", where)
        found = reader.option("subscribe", topic).load()
        yield found.selectExpr("value AS raw", "offset AS n", "timestamp AS at")
        return
    numbers = [*range(len(bodies))]
    table = pa.table({"raw": bodies, "n": numbers, "at": [50_000 + n for n in numbers]})
    parquet.write_table(table, tmp_path / "arrived.parquet")
    found = spark.read.parquet(str(tmp_path / "arrived.parquet"))
    if request.param == "shuffled":
        found.createOrReplaceTempView("shuffled")
        # In another way each time that it is read.
        random_text = "reflect('java.util.UUID', 'randomUUID') AS text"
        yield spark.sql(f"SELECT raw, n, at FROM (SELECT *, {random_text} FROM shuffled DISTRIBUTE BY text)")
        spark.catalog.dropTempView("shuffled")
    elif request.param == "jdbc":
        spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
        url = f"jdbc:derby:memory:{tmp_path.name}"
        found.write.jdbc(f"{url};create=true", "arrived")
        yield spark.read.jdbc(url, "arrived", column="n", lowerBound=0, upperBound=20, numPartitions=3)
    else:
        yield found


@pytest.mark.slow
@pytest.mark.spark
def test_every_dataframe_gives_the_verdict_of_its_rows(scene: Scene, frame: Any) -> None:
    columns = {name.lower(): name for name in frame.columns}
    given = {"body": columns["raw"], "arrival": columns["n"], "received": columns["at"]}
    verdict = verify.run(scene.ledger, arrived=frame, columns=given, out=scene.out, tuning=Tuning(3))
    assert inprocess.counts(verdict) == FAULTS
    assert verdict.latency is not None and verdict.order == "checked"
    assert verdict.capture["folder"] == "DataFrame"
    assert [row["body"] for row in verdict.examples["corrupted"]] == [BAD.decode()]
    del given["arrival"], given["received"]
    verdict = verify.run(scene.ledger, arrived=frame, columns=given, out=scene.out, tuning=Tuning(3))
    assert inprocess.counts(verdict) == {word: n for word, n in FAULTS.items() if word != "reordered"}
    assert verdict.latency is None and verdict.order == "not checked"
    # However Spark distributes its rows, the examples are found in a second reading.
    assert [row["body"] for row in verdict.examples["corrupted"]] == [BAD.decode()]
    assert [row["body"] for row in verdict.examples["duplicated"]] == [scene.bodies[7].decode()]
    [example, *_] = verdict.examples["corrupted"]
    assert (example["arrival"], example["key"]) == (None, None)
    assert ", record " not in (scene.out / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_a_column_may_be_a_field_of_another_one(spark: Any, scene: Scene) -> None:
    made = spark.createDataFrame(
        [(body.decode(), i % 2) for i, body in enumerate(arrivals(scene))], "body string, server int"
    ).selectExpr("named_struct('raw', body, 'a.b', server) AS event", "1 AS `event.raw2`")
    verdict = verify.run(scene.ledger, arrived=made, columns={"body": "event.raw"}, spark=spark)
    assert verdict.counts.lost == 1
    for column in ("event.none", "none.raw", "event..raw", "event.raw`"):
        with pytest.raises(ConfigError, match=r"^columns: DataFrame has no column .* \(event, event.raw2\)$"):
            verify.run(scene.ledger, arrived=made, columns={"body": column})
    with pytest.raises(ConfigError, match=r"^columns: body: event is struct<.*, must be binary or string$"):
        verify.run(scene.ledger, arrived=made, columns={"body": "event"})


@pytest.mark.slow
@pytest.mark.spark
def test_listeners_without_an_order_are_told_apart(spark: Any, scene: Scene) -> None:
    rows = [(body.decode(), "ab"[i % 2]) for i, body in enumerate(arrivals(scene))]
    made = spark.createDataFrame(rows, "value string, server string").repartition(5)
    verdict = verify.run(scene.ledger, arrived=made, columns={"listener": "server"}, tuning=Tuning(3))
    assert verdict.capture["listeners"] == ["a", "b"]
    assert {x.listener: (x.events, x.seen, x.duplicated, x.corrupted) for x in verdict.listeners} == {
        "a": (10, 10, 0, 0), "b": (10, 9, 1, 1)
    }  # fmt: skip
    assert verdict.producers[0].listeners == {"a": 10, "b": 9}


@pytest.mark.spark
def test_rows_that_come_later_are_an_error(spark: Any, scene: Scene) -> None:
    made = spark.range(3).selectExpr("'{}' AS value", "reflect('java.util.UUID', 'randomUUID') AS server")
    with pytest.raises(LedgerError, match=r"^DataFrame: listener '.*': .* each reading must find the same"):
        verify.run(scene.ledger, arrived=made, columns={"listener": "server"})


@pytest.mark.slow
@pytest.mark.spark
def test_a_table_of_the_catalogue_comes_before_a_folder(
    spark: Any, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parquet.write_table(pa.table({"value": [*scene.bodies.values()][:3]}), "events")
    view = spark.createDataFrame([(body.decode(),) for body in scene.bodies.values()], "value string")
    view.createOrReplaceTempView("events")
    try:
        assert verify.run(scene.ledger, table="events", spark=spark).ok
    finally:
        spark.catalog.dropTempView("events")
    for name in (f"{tmp_path}/events", f"parquet:{tmp_path}/events"):
        assert verify.run(scene.ledger, table=name, spark=spark).counts.lost == 17


@pytest.mark.spark
def test_what_is_no_dataframe_is_refused(spark: Any, scene: Scene) -> None:
    stream = spark.readStream.format("rate").load()
    for arrived, words in (([b"{}"], "list must be"), (stream, "and no stream")):
        with pytest.raises(ConfigError, match=f"^arrived: .*{words}"):
            verify.run(scene.ledger, arrived=arrived)
    with pytest.raises(ConfigError, match="exactly one"):
        verify.run(scene.ledger, scene.capture, arrived=stream)
    with pytest.raises(ConfigError, match=r"^columns: a capture has none$"):
        verify.run(scene.ledger, scene.capture, columns={"body": "x"})


# -- by id


def changed(body: bytes) -> bytes:
    """Return a document as a filter leaves it: without metadata, with a field more, written anew."""
    document = json.loads(body)
    return json.dumps({"event": {"id": document["@metadata"]["_id"]}, "tags": ["seen"]}).encode()


def test_a_capture_of_changed_bodies_is_judged_by_id(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 16), "failed": range(16, 19)})
    order = [9, 1, 2, *range(5, 18), 7, 7]
    foreign = files.body(files.event_id(Q, 1), "of another producer")
    scene.write_capture([changed(body) for body in (*(scene.bodies[seq] for seq in order), foreign)])
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out, bits=3, match="id")
    assert inprocess.counts(verdict) == {
        "events": 20, "ok": 13, "lost": 2, "missing": 3, "recovered": 2, "duplicated": 3, "unexpected": 1,
    }  # fmt: skip
    assert verdict.exit_code == ExitCode.BROKEN
    assert (verdict.bodies, verdict.order) == ("not compared", "not checked")
    assert verdict.latency is not None and verdict.latency.events == 15
    assert "(bodies not compared)" in verdict.sentence
    written = json.loads((scene.out / "verdict.json").read_text())
    assert (written["bodies"], written["sentence"]) == ("not compared", verdict.sentence)
    assert "bodies: not compared" in report.text(verdict)
    assert "bodies not compared" in (scene.out / "report.html").read_text()
    assert inprocess.found(scene.out) == {
        "lost": {(P, 3), (P, 4)}, "missing": {(P, 18), (P, 19), (P, 20)}, "recovered": {(P, 16), (P, 17)},
        "duplicated": {(P, 7), (P, 9)}, "unexpected": {(Q, 1)},
    }  # fmt: skip


def test_a_promise_that_holds_by_id_alone_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write_capture([changed(body) for body in scene.bodies.values()])
    by_id = inprocess.run(scene.ledger, scene.capture, match="id")
    assert by_id.sentence == "The promise holds: 20 of 20 events (bodies not compared) arrived."
    whole = inprocess.run(scene.ledger, scene.capture)
    assert (whole.bodies, whole.counts.corrupted) == ("compared", 20)
    assert "bodies" not in whole.sentence


def test_events_without_an_id_of_their_own_are_not_judged_by_id(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_ledger(producer=Q, identity="none", bodies={1: b"{}"}).write_capture()
    words = r"^match: 1 events have no id, or that of another event: match bodies$"
    with pytest.raises(ConfigError, match=words):
        inprocess.run(scene.ledger, scene.capture, match="id")
    for match in ("ids", None, 3):
        with pytest.raises(ConfigError, match=r"^match: .* must be body or id$"):
            inprocess.run(scene.ledger, scene.capture, match=match)


OWN = ["plain", "0" * 32, "with space", 'a"b\\c', "é 😀", "/x", "\u2028", "f" * 31, "F" * 32]


@pytest.mark.slow
@pytest.mark.spark
def test_ids_come_from_a_column(spark: Any, tmp_path: Path) -> None:
    """Ours, and those that an application chose, without a body."""
    with lumberjack.Collector(keep=True) as server:
        client = logclient.connect(server.url, ledger=str(tmp_path / "ledger"), identity="own")
        for own in OWN:
            client.send({"event.id": own})
        ours = [client.event_id(len(OWN) + n) for n in range(1, 6)]
        for n in range(5):
            client.send({"n": n})
        server.events(len(OWN) + 5, PATIENCE)
        assert client.flush(PATIENCE) == 0
        client.close()
    found = [*OWN[1:], *ours[:-1], ours[0], "of another", files.event_id(Q, 3), None, ""]
    made = spark.createDataFrame([(x, 1) for x in found], "_id string, n int").repartition(3)
    out = tmp_path / "out"
    verdict = verify.run(
        tmp_path / "ledger", arrived=made, columns={"id": "_id"}, match="id", out=out, tuning=Tuning(3)
    )
    assert inprocess.counts(verdict) == {
        "events": 14, "ok": 12, "lost": 2, "duplicated": 1, "unexpected": 2
    }  # fmt: skip
    assert verdict.undecodable == {"no_value": 2}
    assert verdict.examples["duplicated"][0]["id"] == ours[0]
    assert inprocess.found(out)["unexpected"] == {(Q, 3)}
    with pytest.raises(ConfigError, match=r"^columns: id needs match=id$"):
        verify.run(tmp_path / "ledger", arrived=made, columns={"id": "_id"})
    with pytest.raises(ConfigError, match=r"^columns: id: n is int, must be binary or string$"):
        verify.run(tmp_path / "ledger", arrived=made, columns={"id": "n"}, match="id")


@pytest.mark.slow
@pytest.mark.spark
def test_keys_of_a_topic_are_its_ids(spark: Any, scene: Scene, broker: str) -> None:
    ids = [files.event_id(P, seq).encode() for seq in (*range(1, 20), 3)]
    topic = create_topic(broker, 2, [Record(b"changed", i % 2, key=key) for i, key in enumerate(ids)])
    verdict = verify.run(
        scene.ledger, kafka=f"{broker}/{topic}", columns={"id": "key"}, match="id", spark=spark
    )
    assert inprocess.counts(verdict) == {"events": 20, "ok": 19, "lost": 1, "duplicated": 1}
    assert verdict.capture["listeners"] == [f"{topic}[0]", f"{topic}[1]"]


# -- Elasticsearch and OpenSearch


class Stored:
    """1,000 events as a store has them: of 10 each none, two documents, or one with another id."""

    def __init__(self, ledger: Path) -> None:
        with lumberjack.Collector(keep=True) as server:
            client = logclient.connect(server.url, ledger=str(ledger))
            for n in range(1000):
                client.send({"message": f"order {n}", "n": n})
            arrived = server.events(1000, PATIENCE)
            assert client.flush(PATIENCE) == 0
            client.close()
        documents = {document["@metadata"]["_id"]: document for document in arrived}
        chosen = random.Random(43).sample(sorted(documents), 30)
        self.dropped, self.doubled, self.renamed = ({*chosen[i : i + 10]} for i in (0, 10, 20))
        self.documents: dict[str, dict[str, Any]] = {}
        self.strange: set[str] = set()
        for name, document in documents.items():
            del document["@metadata"]
            assert document["event"]["id"] == name
            document["tags"] = ["stored"]
            if name in self.renamed:
                document["event"]["id"] = files.event_id(Q, len(self.strange) + 1)
                self.strange.add(document["event"]["id"])
            if name not in self.dropped:
                self.documents[name] = document
            if name in self.doubled:
                self.documents[f"{name}-again"] = document

    def check(self, verdict: Any, out: Path) -> None:
        assert inprocess.counts(verdict) == {
            "events": 1000, "ok": 980, "lost": 20, "duplicated": 10, "unexpected": 10
        }  # fmt: skip
        assert verdict.exit_code == ExitCode.BROKEN
        found: dict[str, set[str]] = {}
        for word, name in verify.violation_ids(out):
            found.setdefault(word, set()).add(name)
        assert found == {
            "lost": self.dropped | self.renamed, "duplicated": self.doubled, "unexpected": self.strange
        }  # fmt: skip


def test_an_export_of_a_store_is_judged_by_id(runner: dict[str, Any], tmp_path: Path) -> None:
    """As files of Parquet with whole documents, whose ids are fields of an object."""
    stored = Stored(tmp_path / "ledger")
    rows = [*stored.documents.values()]
    (tmp_path / "export").mkdir()
    for i in range(0, len(rows), 300):
        parquet.write_table(pa.Table.from_pylist(rows[i : i + 300]), tmp_path / "export" / f"{i}.parquet")
    verdict = verify.run(
        tmp_path / "ledger", table=f"{tmp_path}/export", columns={"id": "event.id"}, match="id",
        out=tmp_path / "out", **runner,
    )  # fmt: skip
    stored.check(verdict, tmp_path / "out")


@pytest.mark.long
def test_opensearch_is_judged_by_id(tmp_path: Path) -> None:
    """By the recipe of docs/elastic.md."""
    from tests.support.opensearch import OpenSearch

    page = (support.ROOT / "docs" / "elastic.md").read_text()
    [recipe] = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "scroll" in block)
    names: dict[str, Any] = {}
    exec(compile(recipe, "docs/elastic.md", "exec"), names)
    template = (support.ROOT / "docs" / "elastic" / "index-template.json").read_bytes()
    stored = Stored(tmp_path / "ledger")
    with OpenSearch(tmp_path / "node") as node:
        assert node.ask("PUT", "_index_template/logclient", template) == {"acknowledged": True}
        bodies = {name: json.dumps(document).encode() for name, document in stored.documents.items()}
        answers = node.create("logs-logclient-default", bodies)
        assert {answer["status"] for answer in answers.values()} == {201}
        names["export_ids"](node.url, "logs-logclient-default", f"{tmp_path}/ids.parquet", page=64)
    verdict = verify.run(
        tmp_path / "ledger", table=f"{tmp_path}/ids.parquet", columns={"id": "id"}, match="id",
        out=tmp_path / "out", runner="local",
    )  # fmt: skip
    stored.check(verdict, tmp_path / "out")
