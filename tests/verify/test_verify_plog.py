"""Captures of datagrams: events in one or many fragments, over segments and senders, with every fault."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from logclient.errors import ExitCode
from logclient.verify.tuning import Tuning
from tests import support
from tests.oracle import plog as oracle
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene
from tests.verify.datagrams import Datagram, document, write_datagrams

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")


@pytest.mark.parametrize("units", [1, 7, 1 << 18])
def test_each_fault_in_a_capture_is_found(scene: Scene, units: int) -> None:
    rng = random.Random(units)
    seqs = range(1, 301)
    scene.bodies = {seq: document(P, seq, rng.choice((0, 100, 800, 5_000))) for seq in seqs}
    scene.write_ledger(protocol="plog", outcomes={"handed": seqs})
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
    sent: list[Datagram] = []
    while any(queues.values()):  # two senders at a time: a message is known by sender and number
        stream = rng.choice([stream for stream, some in queues.items() if some])
        sent.append((stream, queues[stream].pop(0)))
    write_datagrams(scene.capture, sent, 37)
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out, bits=4, units=units, chunk=4096)
    found = {word: {seq for _, seq in events} for word, events in inprocess.found(scene.out).items()}
    found.pop("reordered", None)  # order is not promised
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


def test_each_tcp_line_is_a_body(scene: Scene) -> None:
    """A line of TCP is a body, even one that looks like a command."""
    scene.bodies = {1: document(P, 1, 9), 2: b"\0\0kill", 3: b"plain"}
    theirs = [(seq, scene.bodies[seq].decode()) for seq in (2, 3)]
    scene.write_ledger(protocol="plog", outcomes={"handed": [1, 2, 3]}, extra=[files.ids_line(theirs)])
    write_datagrams(
        scene.capture, [(1, raw) for raw in scene.bodies.values()], 2, protocol="plog+tcp", name="l"
    )
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert verdict.ok
    assert verdict.counts.ok == 3


def test_a_selection_leaves_out_bodies_without_an_id(scene: Scene) -> None:
    """Another program writes to the server, too. With a selection only what has an id is judged."""
    scene.bodies = {1: document(P, 1, 9)}
    scene.write_ledger(protocol="plog", outcomes={"handed": [1]})
    sent = [(1, raw) for raw in (scene.bodies[1], b"of another program", b'{"of": "another program"}')]
    write_datagrams(scene.capture, sent, 2)
    verdict = inprocess.run(scene.ledger, scene.capture, since=0)
    assert (verdict.exit_code, inprocess.counts(verdict)) == (0, {"events": 1, "ok": 1})
    assert inprocess.run(scene.ledger, scene.capture).broken == ("2 unexpected",)


@pytest.mark.slow
@pytest.mark.spark
def test_messages_may_span_segments_of_two_listeners(spark: Any, scene: Scene) -> None:
    scene.bodies = {seq: document(P, seq, 3_000) for seq in range(1, 101)}
    scene.write_ledger(protocol="plog", outcomes={"handed": range(1, 101)})
    for first, name in ((1, "a"), (2, "b")):
        sent = [
            (1, raw) for seq in range(first, 101, 2) for raw in oracle.fragments(scene.bodies[seq], seq, 1000)
        ]
        write_datagrams(scene.capture, sent, 23, name=name)
    verdict = job.run(scene.ledger, scene.capture, spark=spark, tuning=Tuning(3, together_bytes=0))
    assert verdict.ok
    assert verdict.counts.ok == 100
