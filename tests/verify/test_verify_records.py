"""Arrivals in Kafka or in a table: the same verdicts as from a capture, on the same histories."""

from __future__ import annotations

import base64
import datetime
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
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
from tests.support.kafka_fixture import Record, connector, create_topic
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene
from tests.verify.histories import ENDPOINTS, World, differences, overview_differences

support.need("numpy")
pa = support.need("pyarrow")
parquet = support.need("pyarrow.parquet")
job = pytest.importorskip("logclient.verify.job")
readers = pytest.importorskip("logclient.verify.readers")
report = pytest.importorskip("logclient.verify.report")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

pytestmark = pytest.mark.spark


def verify_topic(spark: Any, scene: Scene, broker: str, some: Iterable[Record], partitions: int = 1) -> Any:
    name = create_topic(broker, partitions, some)
    return job.run(scene.ledger, kafka=f"{broker}/{name}", spark=spark, out=scene.out, tuning=Tuning(3))


def records_of(scene: Scene, seqs: Iterable[int]) -> list[Record]:
    return [Record(scene.bodies[seq]) for seq in seqs]


# -- random histories


def records_of_world(world: World) -> list[Record]:
    """The arrivals of a world as records, a partition for each of its endpoints; times to the millisecond."""
    endpoints = sorted(name for names in ENDPOINTS.values() for name in names)
    out = []
    for i, one in enumerate(world.merged):
        at_ms = one.arrival.received_us // 1000
        world.merged[i] = one._replace(arrival=one.arrival._replace(received_us=1000 * at_ms))
        out.append(Record(one.raw, endpoints.index(one.endpoint), at_ms))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lumberjack", {"users": 0.1, "anonymous": 0.1, "logjam": 0.0}),
        ("logjam", {"users": 0.1, "logjam": 1.0}),
    ],
)
def test_histories_in_kafka_equal_the_reference(
    spark: Any,
    broker: str,
    tmp_path: Path,
    kind: str,
    options: dict[str, Any],
) -> None:
    world = World(len(kind), 60, **options)
    ledger, capture = world.write(tmp_path)
    some = records_of_world(world)
    name = create_topic(broker, sum(map(len, ENDPOINTS.values())), some)
    out = tmp_path / "kafka"
    verdict = job.run(ledger, kafka=f"{broker}/{name}", spark=spark, out=out, tuning=Tuning(3, 1))
    expected = world.expected()
    found = {
        word: {event for event in events if event[0] in expected.counts}
        for word, events in inprocess.found(out).items()
    }
    wrong = differences(expected, verdict, found, published="logjam")
    wrong += overview_differences(expected, verdict)
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:20])
    assert verdict.seconds["second_passes"] == 1
    by_capture = inprocess.run(ledger, capture, out=tmp_path / "out", bits=3)
    assert verdict.counts == by_capture.counts
    assert verdict.exit_code == by_capture.exit_code
    assert sorted(verify.violation_ids(out)) == sorted(verify.violation_ids(tmp_path / "out"))
    assert verdict.capture["units"] == len(some)


# -- plog


def document(ident: str, data: bytes) -> bytes:
    return b'{"type":"log","uuid":"%b","host":"h","timestamp":1,"data":"%b"}' % (ident.encode(), data)


@pytest.mark.slow
def test_plog_events_are_found_by_id_or_hash(spark: Any, broker: str, scene: Scene) -> None:
    """Documents, a user's own uuid, and bytes that are no document."""
    rng = random.Random(20)
    seqs = range(1, 1001)
    sizes = (0, 1, 300, 5_000)
    scene.bodies = {
        seq: document(files.event_id(P, seq), b"x" * rng.choice(sizes)) if seq <= 900
        else document(f"mine-{seq}", b"x") if seq <= 950
        else rng.randbytes(40) + bytes([seq % 256])
        for seq in seqs
    }  # fmt: skip
    theirs = [(seq, f"mine-{seq}".encode() if seq <= 950 else scene.bodies[seq]) for seq in range(901, 1001)]
    ids = {
        "t": "ids", "seqs": files.ranges(seq for seq, _ in theirs), "n": len(theirs),
        "ids": base64.b64encode(
            b"".join(struct.pack("<QQ", files.xxh64(raw), files.xxh64(raw, 43)) for _, raw in theirs)
        ).decode(),
    }  # fmt: skip
    scene.write_ledger(protocol="plog", outcomes={"handed": seqs}, extra=[ids])
    gone, twice = set(rng.sample(seqs, 100)), set(rng.sample(seqs, 100))
    bad = set(rng.sample(range(1, 901), 30)) - gone
    some = []
    for seq in seqs:
        raw = document(files.event_id(P, seq), b"other") if seq in bad else scene.bodies[seq]
        some += [Record(raw, seq % 3)] * ((seq not in gone) + (seq in twice - gone))
    strange = [document(files.event_id(Q, 1), b""), b"\0\0kill", b"", document(files.event_id(P, 2000), b"")]
    some += [Record(raw) for raw in strange]
    rng.shuffle(some)
    verdict = verify_topic(spark, scene, broker, some, partitions=3)
    found = inprocess.found(scene.out)
    found.pop("reordered")  # order is not promised
    assert {word: {seq for _, seq in events} for word, events in found.items()} == {
        "missing": gone, "duplicated": twice - gone, "corrupted": bad, "unexpected": {1, 2000},
    }  # fmt: skip
    counts = verdict.counts
    assert (counts.ok, counts.missing, counts.unexpected) == (1000 - len(gone | bad), 100, 4)
    assert verdict.broken == (f"{len(bad)} corrupted", "4 unexpected")


# -- Kafka


@pytest.mark.slow
def test_partitions_are_listeners_and_keys_are_kept(spark: Any, broker: str, scene: Scene) -> None:
    """A fault is shown with its bytes."""
    scene.write_ledger()
    bad = files.body(files.event_id(P, 5), "event V")
    some = [Record(scene.bodies[seq], seq % 2, 60 + seq, b"k%d" % seq) for seq in range(1, 20)]
    some += [Record(bad, 1, 90, b"<\x1b[31m\xff"), Record(scene.bodies[7], 1, 91)]
    verdict = verify_topic(spark, scene, broker, some, partitions=3)
    assert verdict.exit_code == ExitCode.BROKEN
    assert inprocess.counts(verdict) == {
        "events": 20, "ok": 18, "lost": 1, "corrupted": 1, "duplicated": 2
    }  # fmt: skip
    assert verdict.order == "checked"
    assert verdict.problems == ()
    name = verdict.capture["folder"].rpartition("/")[2]
    assert verdict.capture == {
        "folder": f"kafka://{broker}/{name}", "listeners": [f"{name}[{i}]" for i in range(3)],
        "segments": 3, "bytes": sum(len(x.value or b"") for x in some), "units": 21, "acks": 0, "events": 21,
        "heartbeats": 0, "pings": 0, "others": 0, "commands": 0, "controls": 0, "checks": 0,
        "first_us": 61_000, "last_us": 91_000, "complete": True, "published": [], "runs": [],
            "runs_left_out": 0,
    }  # fmt: skip
    assert (
        verdict.latency.max == 60_000
    )  # of each event, sequence milliseconds after the ledger's clock began
    [example] = verdict.examples["corrupted"]
    assert example["listener"] == example["segment"] == f"{name}[1]"
    assert (example["arrival"], example["key"], example["body"]) == (10, "<\x1b[31m\\xff", bad.decode())
    assert example["arrived_hash"] == f"{files.xxh64(bad):016x}"
    assert [x["copies"] for x in verdict.examples["duplicated"]] == [2, 2]
    page = (scene.out / "report.html").read_text()
    assert f"{name}[1], record 10" in page
    assert "\x1b" not in page


@pytest.mark.slow
def test_order_is_judged_per_partition(spark: Any, broker: str, scene: Scene) -> None:
    scene.write_ledger()
    order = [1, 2, 4, 3, *range(5, 21)]
    verdict = verify_topic(spark, scene, broker, [Record(scene.bodies[seq]) for seq in order])
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "reordered": 1}
    apart = [Record(scene.bodies[seq], seq % 2) for seq in sorted(order, key=lambda seq: (seq % 2, seq))]
    assert verify_topic(spark, scene, broker, apart, partitions=2).ok


def test_empty_topic_loses_all_acknowledged_events(spark: Any, broker: str, scene: Scene) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 16), "handed": range(16, 21)})
    verdict = verify_topic(spark, scene, broker, [], partitions=2)
    assert inprocess.counts(verdict) == {"events": 20, "lost": 15, "missing": 5}
    assert len(verdict.capture["listeners"]) == 2
    assert verdict.capture["complete"]


HOSTILE = [
    b"", b"\0", b"{", b"{}", b"[]", b"nul", b"\xff\xfe{}", b'{"a":' * 5000, b"2W\0\0\0\x012J", b"<script>",
    b'{"event.id":"' + b"9" * 32 + b'"}', b'{"message":"' + b"x" * 900_000 + b'"}', b"{" + b"\0" * 65536,
]  # fmt: skip


@pytest.mark.slow
def test_hostile_values_change_no_event(spark: Any, broker: str, scene: Scene) -> None:
    """A topic is open to other writers: values that are no event are counted by reason."""
    scene.write_ledger()
    some, keys = [Record(None, key=b"tombstone")], random.Random(1)
    for seq, raw in scene.bodies.items():
        some += [Record(raw), Record(HOSTILE[seq % len(HOSTILE)], key=keys.randbytes(9))]
    some += [Record(raw) for raw in HOSTILE] + [Record(None)]
    verdict = verify_topic(spark, scene, broker, some)
    counts = inprocess.counts(verdict)
    assert counts.pop("unexpected") == 3  # two bodies without an id, known by their hash, and a foreign id
    assert counts == {"events": 20, "ok": 20}
    assert verdict.undecodable["no_value"] == 2
    assert sum(verdict.undecodable.values()) == 2 + len(HOSTILE) + 20 - sum(
        raw in (b"{}", HOSTILE[10], HOSTILE[11])
        for raw in [*HOSTILE, *(HOSTILE[i % 13] for i in range(1, 21))]
    )
    assert {row["reason"] for row in verdict.undecoded} <= set(verdict.undecodable)
    shown = {row["unit_at"]: row.get("bytes") for row in verdict.undecoded}
    assert (shown[0], shown[2]) == (None, HOSTILE[1].hex())
    assert (scene.out / "report.html").read_text().count("<script>") == 1  # its own


def test_events_deleted_by_retention_are_unknown(spark: Any, broker: str, scene: Scene) -> None:
    client, admin = support.need("confluent_kafka"), support.need("confluent_kafka.admin")
    scene.write_ledger(created=lambda seq: 10_000_000 + seq)
    old = [Record(b"{}", at_ms=9_000) for _ in range(3)]
    name = create_topic(broker, 1, [*old, *(Record(scene.bodies[seq], at_ms=11_000) for seq in range(1, 19))])
    asks = admin.AdminClient({"bootstrap.servers": broker})

    def without(first: int) -> Any:
        for gone in asks.delete_records([client.TopicPartition(name, 0, first)]).values():
            gone.result(PATIENCE)
        return job.run(scene.ledger, kafka=f"{broker}/{name}", spark=spark)

    assert inprocess.counts(without(2)) == {"events": 20, "ok": 18, "unexpected": 1, "lost": 2}
    verdict = without(5)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 16, "unknown": 4}
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.problems == (f"capture: {name}[0]: gap: records before offset 5 are deleted",)
    assert inprocess.counts(without(21)) == {"events": 20, "unknown": 20}


def test_offset_without_a_record_is_a_gap(spark: Any, broker: str, scene: Scene) -> None:
    """A transaction ends with a marker that takes an offset, as a deleted record would."""
    client = support.need("confluent_kafka")
    name = create_topic(broker, 1, records_of(scene, range(1, 11)))
    producer = client.Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for seq in range(11, 21):
        producer.produce(name, scene.bodies[seq])
    producer.commit_transaction(60)
    reader = client.Consumer({"bootstrap.servers": broker, "group.id": name})
    end = time.monotonic() + 2 * PATIENCE
    while reader.get_watermark_offsets(client.TopicPartition(name, 0), 30)[1] < 21:  # the marker comes later
        assert time.monotonic() < end
    reader.close()
    verdict = job.run(scene.write_ledger().ledger, kafka=f"{broker}/{name}", spark=spark)
    assert verdict.ok
    assert verdict.problems == (
        f"capture: {name}[0]: gap: 1 of 21 offsets have no record, because of compaction or transactions",
    )
    # Offsets are counted from the first record that is there.
    asks = support.need("confluent_kafka.admin").AdminClient({"bootstrap.servers": broker})
    for gone in asks.delete_records([client.TopicPartition(name, 0, 3)]).values():
        gone.result(PATIENCE)
    problems = job.run(scene.ledger, kafka=f"{broker}/{name}", spark=spark).problems
    gap = "gap: 1 of 18 offsets have no record, because of compaction or transactions"
    assert f"capture: {name}[0]: {gap}" in problems


def test_ledger_lines_after_the_listing_are_not_read(
    spark: Any, broker: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers are listed before the topic's ends: later events of these or new producers are unknown."""
    more = {seq: files.body(files.event_id(P, seq), "more") for seq in range(21, 31)}
    other = {seq: files.body(files.event_id(Q, seq), "q") for seq in range(1, 4)}
    scene.write_ledger(tail=[])
    path = scene.ledger / f"{P}-0001.ledger"
    name = create_topic(broker, 1, records_of(scene, range(1, 21)))
    offsets = readers._offsets

    def lines(first: int, last: int) -> bytes:
        events = [(seq, 1000 * seq, files.xxh64(more[seq])) for seq in range(first, last + 1)]
        problems = [files.batch_line(events), files.outcome_line("acked", range(first, last + 1))]
        return b"".join(map(files.encode_line, problems))

    def asked(*given: Any) -> Any:
        # Sent and acknowledged after the ledgers were listed and before the topic was; then after both.
        client = support.need("confluent_kafka").Producer({"bootstrap.servers": broker})
        for raw in [*(more[seq] for seq in range(21, 26)), *other.values()]:
            client.produce(name, raw, partition=0)
        assert client.flush(2 * PATIENCE) == 0
        with open(path, "ab") as file:
            file.write(lines(21, 25))
        scene.write_ledger(producer=Q, bodies=other, tail=[])
        found = offsets(*given)
        with open(path, "ab") as file:
            file.write(lines(26, 30))
        return found

    monkeypatch.setattr(readers, "_offsets", asked)
    verdict = job.run(scene.ledger, kafka=f"{broker}/{name}", spark=spark, out=scene.out, tuning=Tuning(3))
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "unknown": 8}
    assert verdict.exit_code == ExitCode.UNREACHABLE


@pytest.mark.slow
def test_several_topics_are_one_verdict(spark: Any, broker: str, scene: Scene) -> None:
    scene.write_ledger()
    names = [create_topic(broker, 1, records_of(scene, range(1 + i, 21, 2))) for i in range(2)]
    verdict = job.run(scene.ledger, kafka=f"{broker}/{','.join(names)}", spark=spark)
    assert verdict.ok
    assert verdict.capture["listeners"] == sorted(f"{name}[0]" for name in names)


def test_missing_topic_is_named(spark: Any, broker: str, scene: Scene) -> None:
    scene.write_ledger()
    with pytest.raises(LedgerError, match="has no topic nowhere"):
        job.run(scene.ledger, kafka=f"{broker}/nowhere", spark=spark)


def test_unreachable_broker_is_one_line(
    spark: Any, broker: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "ANSWER_MS", 500)
    with pytest.raises(job.VerifyError, match="TimeoutException") as failed:
        job.run(scene.write_ledger().ledger, kafka="127.0.0.1:1/t", spark=spark)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    "address",
    ["", "t", "/t", "h:1/", "h:1/a,", "h:1/a/b", "h:1/a b", "user:secret@h:1/t", "h:1/" + "t" * 250],
)
def test_wrong_kafka_address_is_a_config_error(scene: Scene, address: str) -> None:
    with pytest.raises(ConfigError, match=r"^kafka: ") as failed:
        job.run(scene.write_ledger().ledger, kafka=address)
    assert "secret" not in str(failed.value)


@pytest.mark.slow
def test_kafka_config_file_sets_the_consumer(spark: Any, broker: str, scene: Scene, tmp_path: Path) -> None:
    scene.write_ledger()
    name = create_topic(broker, 1, records_of(scene, range(1, 21)))
    file = tmp_path / "consumer.properties"
    file.write_text("# of our cluster\n\n client.id = us\nisolation.level=read_committed\n")
    assert readers.read_config(file) == {"client.id": "us", "isolation.level": "read_committed"}
    assert job.run(scene.ledger, kafka=f"{broker}/{name}", kafka_config=file, spark=spark).ok
    file.write_text("security.protocol=SSL\nssl.key.password hunter2\n")
    with pytest.raises(ConfigError, match=r"^kafka_config: line 2 must be NAME=VALUE$"):
        readers.read_config(file)
    with pytest.raises(LedgerError, match="kafka_config"):
        readers.read_config(tmp_path / "none")


def test_topic_needs_ledgers_of_one_protocol(spark: Any, broker: str, scene: Scene) -> None:
    scene.write_ledger().write_ledger(producer="0c" * 10, protocol="logjam", bodies={})
    name = create_topic(broker, 1)
    with pytest.raises(ConfigError, match="it has logjam and lumberjack"):
        job.run(scene.ledger, kafka=f"{broker}/{name}", spark=spark)


def test_exactly_one_source_of_arrivals_is_given(scene: Scene) -> None:
    for given in ({}, {"capture": "c", "kafka": "h:1/t"}, {"kafka": "h:1/t", "table": "t"}):
        with pytest.raises(ConfigError, match="exactly one"):
            job.run(scene.ledger, **given)


@pytest.mark.slow
def test_command_starts_a_session_with_the_connector(broker: str, scene: Scene, tmp_path: Path) -> None:
    """The connector is taken from a folder of jars."""
    scene.write_ledger()
    name = create_topic(broker, 2, [Record(scene.bodies[seq], seq % 2) for seq in range(1, 20)])
    (tmp_path / "jars").mkdir()
    for jar in connector()[0]:
        (tmp_path / "jars" / os.path.basename(jar)).symlink_to(jar)
    command = ["verify", "--ledger", str(scene.ledger), "--kafka", f"{broker}/{name}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "logclient", *command, "--packages", str(tmp_path / "jars")],
        capture_output=True, text=True, timeout=8 * PATIENCE,
        env=support.clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    assert json.loads(done.stdout)["counts"]["lost"] == 1


# -- frames


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    names = ("key", "producer", "sequence", "hash", "size", "own_id", "error")
    return sorted((tuple(row[name] for name in names) for row in frame.collect()), key=repr)


@pytest.mark.slow
def test_topic_decodes_alike_in_batch_and_stream(
    spark: Any, broker: str, scene: Scene, tmp_path: Path
) -> None:
    """Other columns of the rows stay."""
    user = files.body(None, "x", user="theirs")
    some = [Record(raw, seq % 2, key=b"%d" % seq) for seq, raw in scene.bodies.items()]
    some += [Record(user, key=b"u"), Record(None, 1, key=b"n"), Record(b"{", key=b"b")]
    name = create_topic(broker, 2, some)
    options = {"kafka.bootstrap.servers": broker, "subscribe": name, "startingOffsets": "earliest"}
    batch = verify.decoded(spark.read.format("kafka").options(**options).load(), "lumberjack")
    found = rows_of(batch)
    expected: list[tuple[Any, ...]] = [
        (b"%d" % seq, P, seq, signed(files.xxh64(raw)), len(raw), None, None)
        for seq, raw in scene.bodies.items()
    ]
    own = f"{files.xxh64(b'theirs'):016x}{files.xxh64(b'theirs', 43):016x}"
    expected += [
        (b"u", None, None, signed(files.xxh64(user)), len(user), own, None),
        (b"n", None, None, None, None, None, "no_value"),
        (b"b", None, None, signed(files.xxh64(b"{")), 1, None, "not_json"),
    ]
    assert found == sorted(expected, key=repr)
    assert batch.selectExpr("xxhash64(value) = hash AS same").where("NOT same").count() == 0
    assert set(batch.columns) >= {"topic", "partition", "offset", "timestamp", "value"}
    stream = verify.decoded(spark.readStream.format("kafka").options(**options).load(), "lumberjack")
    writer = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        assert query.awaitTermination(120)
        assert rows_of(spark.table("streamed")) == found
    finally:
        query.stop()
        spark.catalog.dropTempView("streamed")


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@pytest.mark.slow
def test_frame_without_a_body_column_is_refused(spark: Any) -> None:
    frame = spark.createDataFrame([(1, "{}", None)], "n int, value string, hash int")
    for column in ("n", "none"):
        with pytest.raises(ConfigError, match="must be a column of binary or text"):
            verify.decoded(frame, "lumberjack", body=column)
    with pytest.raises(ConfigError, match="has a column hash already"):
        verify.decoded(frame, "lumberjack")
    with pytest.raises(ConfigError, match="cannot be decoded"):
        verify.decoded(frame.drop("hash"), "smoke")
    [row] = verify.decoded(frame.drop("hash"), "lumberjack").collect()
    assert (row.n, row.value, row.size, row.error) == (1, "{}", 2, None)


# -- tables


@pytest.fixture
def table(spark: Any, scene: Scene, tmp_path: Path) -> Any:
    """Writes rows to Parquet files, so many in each, and gives the verdict on them."""

    def go(rows: list[dict[str, Any]], per_file: int = 7, **options: Any) -> Any:
        folder = tmp_path / "table"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for i in range(0, len(rows), per_file):
            parquet.write_table(pa.Table.from_pylist(rows[i : i + per_file]), folder / f"{i:06}.parquet")
        name = options.pop("name", str(folder))
        return job.run(scene.ledger, table=name, spark=spark, out=scene.out, tuning=Tuning(3), **options)

    return go


@pytest.mark.slow
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


class Columns(UserDict[str, str]):
    """Columns of a table that call a function when the verifier reads them, before it reads the table."""

    def __init__(self, columns: dict[str, str], reading: Callable[[], object]) -> None:
        super().__init__(columns)
        self.reading = reading

    def __iter__(self) -> Iterator[str]:
        self.reading()
        return super().__iter__()


def test_events_of_a_producer_that_began_after_the_listing_are_unknown(scene: Scene, table: Any) -> None:
    """They are in no line that was read, but a ledger of theirs exists: they are not unexpected."""
    scene.write_ledger()
    bodies = {seq: files.body(files.event_id(Q, seq), "q") for seq in range(1, 4)}
    columns = Columns({"body": "value"}, lambda: scene.write_ledger(producer=Q, bodies=bodies))
    rows = [{"value": raw} for raw in [*scene.bodies.values(), *bodies.values()]]
    verdict = table(rows, columns=columns)
    assert inprocess.counts(verdict) == {"events": 20, "ok": 20, "unknown": 3}
    assert verdict.exit_code == ExitCode.UNREACHABLE


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_unknown_table_format_is_named(scene: Scene, table: Any, tmp_path: Path) -> None:
    scene.write_ledger()
    with pytest.raises(LedgerError, match=r"^table: Spark knows no format 'delta': .*--packages") as failed:
        table([], name=f"delta:{tmp_path}")
    assert "\n" not in str(failed.value)
