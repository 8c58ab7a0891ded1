"""Arrivals in Kafka or in a table: the same verdicts as from a capture, on the same histories."""

from __future__ import annotations

import base64
import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

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
    return job.run(
        scene.ledger, kafka=f"{broker}/{name}", spark=spark, out=scene.out, tuning=Tuning(3), max_missing=None
    )


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
    verdict = job.run(ledger, kafka=f"{broker}/{name}", spark=spark, out=out, tuning=Tuning(3, 1 << 12))
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
        "segments": 3, "skipped": 0,
        "bytes": sum(len(x.value or b"") for x in some), "units": 21, "acks": 0, "events": 21,
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
