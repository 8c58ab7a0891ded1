"""Captures of datagrams: events in one fragment or many, over segments and senders, with every fault."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ExitCode
from logclient.verify.tuning import Tuning
from tests import support
from tests import verify_files as files
from tests.oracle import plog as oracle
from tests.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.verify_inprocess")

Sent = tuple[int, bytes]  # stream and datagram


def document(producer: str, seq: int, size: int, fill: bytes = b"x") -> bytes:
    """An event document."""
    ident = files.event_id(producer, seq).encode()
    return b'{"type":"log","uuid":"%b","host":"h","timestamp":1,"data":"%b"}' % (ident, fill * size)


def write(
    folder: Path, sent: Sequence[Sent], per_segment: int, *, protocol: str = "plog", name: str = "main"
) -> None:
    """A capture of these datagrams, an answer to somebody between them."""
    folder.mkdir(exist_ok=True)
    arrival = 1
    pieces = [sent[i : i + per_segment] for i in range(0, len(sent), per_segment)] or [[]]
    for number, piece in enumerate(pieces, 1):
        data = [files.header_record(name, number, arrival, protocol)]
        data += [files.stream_record(stream, f"10.0.0.{stream}:9") for stream in (1, 2)]
        for stream, raw in piece:
            data.append(files.unit_record(arrival, raw, stream=stream, received_us=50_000 + arrival))
            arrival += 1
        data.append(files.unit_record(arrival, b"PONG", direction=1))
        arrival += 1
        data.append(files.end_record(arrival, "closed" if number == len(pieces) else "rotated"))
        (folder / f"{name}-{number:06d}.cap").write_bytes(b"".join(data))


@pytest.mark.parametrize("units", [1, 7, 1 << 18])
def test_a_capture(scene: Scene, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    rng = random.Random(units)
    seqs = range(1, 301)
    scene.bodies = {seq: document(P, seq, rng.choice((0, 100, 800, 5_000))) for seq in seqs}
    scene.write_ledger(protocol="plog", fates={"handed": seqs})
    gone, twice, bad = (set(rng.sample(seqs, 30)) for _ in range(3))
    queues: dict[int, list[bytes]] = {1: [], 2: []}
    for seq in seqs:
        raw = document(P, seq, 50, b"y") if seq in bad else scene.bodies[seq]
        for _ in range(1 + (seq in twice - gone)):
            datagrams = oracle.fragments(raw, (seq + 1) // 2, room=424)
            if seq in gone:
                del datagrams[rng.randrange(len(datagrams))]
            elif rng.random() < 0.3:
                rng.shuffle(datagrams)
            queues[seq % 2 + 1] += datagrams
    strange = [
        document(Q, 7, 1), b"\1", b"\0\0ping", b"\0\1", b"",
        struct.pack(">BBHHHIIIHH", 0, 1, 2, 0, 5, 9999, (1 << 31) - 1, 0, 0, 0),
    ]  # fmt: skip
    queues[1] += strange
    sent: list[Sent] = []
    while any(queues.values()):  # two senders at a time: the key is who and which
        stream = rng.choice([stream for stream, some in queues.items() if some])
        sent.append((stream, queues[stream].pop(0)))
    write(scene.capture, sent, 37)
    verdict = inprocess.run(
        monkeypatch, scene.ledger, scene.capture, out=scene.out, bits=4, units=units, chunk=4096
    )
    found = {word: {seq for _, seq in events} for word, events in inprocess.found(scene.out).items()}
    found.pop("reordered", None)  # nobody promised
    assert found == {
        "missing": gone, "duplicated": twice - gone, "corrupted": bad - gone, "unexpected": {7}
    }  # fmt: skip
    assert verdict.exit_code == ExitCode.BROKEN
    assert verdict.broken == (f"{len(bad - gone)} corrupted", "1 unexpected")
    assert verdict.undecodable == {"bad_version": 1, "bad_header": 1, "empty": 1, "bad_fragment": 1}
    assert verdict.capture["commands"] == 1
    assert verdict.capture["units"] == len(sent) + verdict.capture["acks"]
    for example in verdict.examples["corrupted"]:
        assert example["body"].encode() == document(P, example["seq"], 50, b"y")
        assert example["peer"] == f"10.0.0.{example['seq'] % 2 + 1}:9"
        assert example["frames"]
    large = [x for x in verdict.examples["duplicated"] if len(scene.bodies[x["seq"]]) > 424]
    assert large
    assert all(x["body"] == scene.bodies[x["seq"]][:4096].decode() for x in large if x["seq"] not in bad)


def test_lines(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came over TCP: a line is a body, whatever it looks like."""
    scene.bodies = {1: document(P, 1, 9), 2: b"\0\0kill", 3: b"plain"}
    theirs = [(seq, scene.bodies[seq].decode()) for seq in (2, 3)]
    scene.write_ledger(protocol="plog", fates={"handed": [1, 2, 3]}, extra=[files.ids_line(theirs)])
    write(scene.capture, [(1, raw) for raw in scene.bodies.values()], 2, protocol="plog+tcp", name="l")
    verdict = inprocess.run(monkeypatch, scene.ledger, scene.capture)
    assert verdict.ok
    assert verdict.counts.ok == 3


@pytest.mark.spark
def test_on_spark(spark: Any, scene: Scene) -> None:
    """A message whose fragments lie in several segments, at several listeners."""
    scene.bodies = {seq: document(P, seq, 3_000) for seq in range(1, 101)}
    scene.write_ledger(protocol="plog", fates={"handed": range(1, 101)})
    for first, name in ((1, "a"), (2, "b")):
        sent = [
            (1, raw) for seq in range(first, 101, 2) for raw in oracle.fragments(scene.bodies[seq], seq, 1000)
        ]
        write(scene.capture, sent, 23, name=name)
    verdict = job.run(scene.ledger, scene.capture, spark=spark, tuning=Tuning(3))
    assert verdict.ok
    assert verdict.counts.ok == 100
