"""Captures of Logux: each action is a row, over syncs, connections and segments, with every fault."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import verify
from logclient.errors import ExitCode
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
support.need("websockets")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

from logclient.testing.logux import Collector  # noqa: E402

TOKEN = b"x7Zq-not-to-be-shown"
CONNECT = b'["connect",5,"10:a:b",0,{"token":"%b","subprotocol":1}]' % TOKEN


def action(producer: str, seq: int, fill: str = "x", own: str | None = None) -> bytes:
    ident = files.event_id(producer, seq) if own is None else own
    carried = f',"id":"{ident}"' if ident else ""
    text = fill * (1 + seq % 40)
    return f'{{"type":"log/add","data":{{"n":{seq},"m":"{text}","l":[{{}}]}}{carried}}}'.encode()


def sync(actions: Sequence[bytes], shift: int = 0) -> bytes:
    pairs = [b',%b,{"id":[%d,%d],"time":%d}' % (one, shift, n, shift) for n, one in enumerate(actions)]
    return b'["sync",%d%b]' % (len(actions), b"".join(pairs))


def write(folder: Path, units: Sequence[bytes], per_segment: int = 0) -> None:
    """A capture: each sync is answered with `synced` and with the outcome of its actions."""
    rows: list[tuple[bytes, int, int]] = []
    for at, raw in enumerate(units):
        rows.append((raw, 0, 50_000 + at))
        if raw.startswith(b'["sync"'):
            rows.append((b'["synced",1]', 1, 50_000 + at))
            rows.append((sync([b'{"type":"logux/processed","id":"1 10:a:b 0"}']), 1, 50_000 + at))
    files.write_segments(folder, "main", rows, protocol="logux", per_segment=per_segment)


@pytest.mark.parametrize("units", [1, 7, 1 << 18])
def test_each_fault_in_a_capture_is_found(scene: Scene, units: int) -> None:
    rng = random.Random(units)
    seqs = range(1, 301)
    scene.bodies = {seq: action(P, seq) for seq in seqs}
    failed = set(rng.sample(seqs, 20))
    scene.write_ledger(
        protocol="logux", outcomes={"acked": sorted(set(seqs) - failed), "failed": sorted(failed)}
    )
    drawn = rng.sample(sorted(set(seqs) - failed), 60)
    gone, twice, bad = (set(drawn[i : i + 20]) for i in (0, 20, 40))
    batches = [list(seqs)[i : i + 9] for i in range(0, 300, 9)]
    sent = [CONNECT, b'["headers",{"length":"1"}]']
    for number, batch in enumerate(batches):
        some = [action(P, seq, "y") if seq in bad else scene.bodies[seq] for seq in batch if seq not in gone]
        sent += [sync(some, number)] * (1 if number % 3 else 2)
        sent += [b'["synced",0]', b'["ping",1]'][: rng.randrange(3)]
    again = {seq for number, batch in enumerate(batches) if number % 3 == 0 for seq in batch} - gone
    behind = sorted(twice - again)
    sent += [CONNECT, sync([scene.bodies[seq] for seq in behind], -5)]  # added again after a break
    sent += [sync([action(Q, 7)]), b'["sync",1,{"type":"log/add","length":5},{"id":1,"time":1}]', b"[1,",
             b'["ready",0]', sync([])[:-1] + b',{"type":"x"}]', CONNECT[:-1] + b",1]"]  # fmt: skip
    write(scene.capture, sent, 11)
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out, bits=4, units=units, chunk=4096)
    found = {word: {seq for _, seq in events} for word, events in inprocess.found(scene.out).items()}
    found.pop("reordered", None)  # order is not promised
    assert found == {
        "lost": gone, "duplicated": again | set(behind), "corrupted": bad, "recovered": failed,
        "unexpected": {7},
    }  # fmt: skip
    assert verdict.exit_code == ExitCode.BROKEN
    assert verdict.undecodable == {
        "bad_action": 1,
        "bad_json": 1,
        "unknown_message": 1,
        "bad_sync": 1,
        "bad_message": 1,
    }
    assert verdict.capture["controls"] == 3 + sent.count(b'["synced",0]')
    assert verdict.capture["pings"] == sent.count(b'["ping",1]')
    assert verdict.capture["units"] == len(sent) + verdict.capture["acks"]
    for example in verdict.examples["corrupted"]:
        assert example["body"].encode() == action(P, example["seq"], "y")
        assert [frame["depth"] for frame in example["frames"]] == [0, 1]
        assert example["frames"][1]["title"].startswith("log/add, id [")
        assert bytes.fromhex(example["bytes"]) == example["body"].encode()[:192]
    reasons = {row["reason"]: row for row in verdict.undecoded}
    assert reasons["bad_action"]["wrong"].startswith("no action: ")
    assert reasons["bad_action"]["offset"] == 10
    assert bytes.fromhex(reasons["bad_json"]["bytes"]) == b"[1,"
    assert b"1},1]" in bytes.fromhex(reasons["bad_message"]["bytes"])
    for path in (path for path in scene.out.rglob("*") if path.is_file()):
        text = path.read_bytes()
        assert TOKEN[:4] not in text, path
        assert TOKEN[:4].hex().encode() not in text, path
    assert "no list with a type in front" in (scene.out / "report.html").read_text()


def test_order_is_not_promised(scene: Scene) -> None:
    """A server that undid an action has it added again, behind later ones."""
    scene.bodies = {seq: action(P, seq) for seq in range(1, 21)}
    scene.write_ledger(protocol="logux")
    write(
        scene.capture, [sync([scene.bodies[seq] for seq in some]) for some in (range(11, 21), range(1, 11))]
    )
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert (verdict.counts.ok, verdict.counts.reordered) == (20, 10)
    assert verdict.exit_code == ExitCode.OK


def test_own_ids_of_users_are_found_by_the_ledger(scene: Scene) -> None:
    own = [(2, "mine"), (3, "f" * 32), (5, "a\\nb")]
    scene.bodies = {seq: action(P, seq, own=dict(own).get(seq)) for seq in range(1, 7)}
    scene.write_ledger(protocol="logux", extra=[files.ids_line(own)])
    write(scene.capture, [CONNECT, sync(list(scene.bodies.values()))])
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert verdict.ok
    assert verdict.counts.ok == 6


def test_events_without_ids_are_compared_by_hash(scene: Scene) -> None:
    scene.bodies = {seq: action(P, seq % 3, own="") for seq in range(1, 10)}
    scene.write_ledger(protocol="logux", identity="none")
    write(scene.capture, [sync(list(scene.bodies.values())[1:]), sync([b'{"type":"x"}'])])
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert (verdict.counts.ok, verdict.counts.lost, verdict.counts.unexpected) == (8, 1, 1)
    assert verdict.order == "not checked"


@pytest.mark.spark
def test_spark_gives_actions_as_rows_and_the_verdict(spark: Any, scene: Scene) -> None:
    """An action is a row, in the segments of two collectors; bodies are decoded without a capture, too."""
    scene.bodies = {seq: action(P, seq) for seq in range(1, 101)}
    scene.write_ledger(protocol="logux")
    bodies = list(scene.bodies.values())
    write(scene.capture, [CONNECT, *(sync(bodies[i : i + 7]) for i in range(0, 100, 7)), b'["ping",0]'], 9)
    verdict = job.run(scene.ledger, scene.capture, spark=spark, tuning=Tuning(3, together_bytes=0))
    assert verdict.ok
    assert verdict.counts.ok == 100
    rows = verify.arrivals(spark, scene.capture).collect()
    assert sorted(row.sequence for row in rows if row.error is None) == list(range(1, 101))
    assert sorted(row.error for row in rows if row.error is not None) == ["control", "ping"]
    values = spark.createDataFrame([(body,) for body in [*bodies[:3], bytearray(b"x")]], "value binary")
    alone = verify.decoded(values, "logux").collect()
    named = [(row.sequence, row.error) for row in alone]
    assert named == [(1, None), (2, None), (3, None), (None, "not_json")]
    assert json.loads(alone[0].value)["id"] == files.event_id(P, 1)


@pytest.mark.parametrize("on_doubt", ["new_client", "same", "drop"])
def test_cuts_cause_duplicates_or_failed_doubt(scene: Scene, on_doubt: str) -> None:
    """What was in doubt arrived twice, or is reported as failed."""
    faults = "cut-before-ack=every:3:max:2,cut-before-write=every:8:max:1,partial-cut=every:10:max:1,seed=1"
    with Collector(capture=str(scene.capture), faults=faults, count_duplicates=True) as server:
        client = logclient.connect(
            server.url,
            window=10,
            on_doubt=on_doubt,
            ledger=str(scene.ledger),
            backoff_max=0.1,
            overflow="block",
        )
        for n in range(500):
            client.send({"n": n, "length": 5})
        assert client.flush(PATIENCE) == 0
        stats = client.stats()
        client.close()
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out)
    counts = verdict.counts
    assert verdict.ok
    assert server.counts.cuts == 4
    assert counts.duplicated == server.counts.copies
    assert (counts.ok, sum(stats.failed.values())) == (stats.acked, 500 - stats.acked)
    if on_doubt == "drop":
        assert (counts.duplicated, stats.failed) == (0, {"doubt": counts.recovered + counts.missing})
        assert counts.recovered >= 20
    else:
        assert counts.ok == 500
        assert counts.duplicated >= 20


FAULTS = {
    "discard=every:7:max:2": "lost",
    "swap=every:10:max:1": "reordered",
    "duplicate=every:12:max:1": "duplicated",
    "corrupt=every:15:max:1": "corrupted",
    "add=every:18:max:1": "unexpected",
}


def test_each_fault_of_the_collector_is_found(scene: Scene, tmp_path: Path) -> None:
    fault_log = tmp_path / "fault_log"
    with (
        Collector(
            capture=str(scene.capture), faults=",".join([*FAULTS, "seed=2"]), fault_log=str(fault_log)
        ) as server,
        logclient.connect(server.url, window=10, ledger=str(scene.ledger)) as client,
    ):
        for n in range(300):
            client.send({"n": n, "message": "a text that a bit may be flipped in"})
        assert client.flush(PATIENCE) == 0
        assert client.stats().acked == 300
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out)
    words = {fault.partition("=")[0]: word for fault, word in FAULTS.items()}
    truth: dict[str, set[str]] = {}
    for line in fault_log.read_text().splitlines():
        entry = json.loads(line)
        truth.setdefault(words[entry["fault"]], set()).update(entry["ids"])
    found: dict[str, set[str]] = {}
    for word, ident in verify.violation_ids(scene.out):
        found.setdefault(word, set()).add(ident)
    assert found == truth
    assert sorted(truth) == sorted(words.values())
    assert verdict.exit_code == ExitCode.BROKEN
