"""From files to verdict: the words, the exit codes, the report, and the errors."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient import cli, verify
from logclient.errors import ConfigError, ExitCode, LedgerError, MissingExtra
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene
from tests.verify.failing_spark import fail_on_spark

np = support.need("numpy")
pa = support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
report = pytest.importorskip("logclient.verify.report")
verdicts = pytest.importorskip("logclient.verify.verdict")

Run = Callable[..., Any]


def nonzero(counts: Any) -> dict[str, int]:
    return {word: n for word, n in counts._asdict().items() if n}


def ids(scene: Scene, word: str) -> list[int]:
    return sorted(seq for producer, seq in inprocess.found(scene.out).get(word, set()) if producer == P)


# -- the words


def test_intact_run_has_no_faults(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(per_segment=3)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert verdict.ok
    assert nonzero(verdict.counts) == {"events": 20, "ok": 20}
    assert verdict.sentence == "The promise holds: 20 of 20 events arrived intact."
    assert verdict.order == "checked"
    assert verdict.problems == ()
    assert verdict.examples == {}
    assert list(verify.violation_ids(scene.out)) == []
    assert verdict.capture == {
        "folder": str(scene.capture), "first_us": 50_000, "last_us": 50_004,
        "listeners": ["main"], "segments": 4, "skipped": 0,
        "bytes": verdict.capture["bytes"], "units": 10, "acks": 5,
        "events": 20, "heartbeats": 0, "pings": 0, "others": 0, "commands": 0, "controls": 0, "checks": 0,
        "complete": True, "published": [], "runs": verdict.capture["runs"], "runs_left_out": 0,
    }  # fmt: skip
    assert verdict.capture["runs"] == [
        {
            "listener": "main", "run": "r", "host": "", "url": "lumberjack://127.0.0.1:5044", "source": "",
            "segments": 4, "events": 20, "first_us": 50_000, "last_us": 50_004, "ours": True,
        }
    ]  # fmt: skip
    assert verdict.ledger == {
        "folder": str(scene.ledger), "producers": 1, "closed": 1, "listed": 20, "complete": True,
        "unread": 0, "still_open": 0,
    }  # fmt: skip


def test_acknowledged_events_are_lost_others_missing(scene: Scene, run: Run) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 15), "handed": [15, 16], "failed": [17, 18]})
    scene.write_capture([1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19])
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict.counts) == {"events": 20, "ok": 12, "lost": 3, "missing": 3, "recovered": 2}
    assert ids(scene, "lost") == [4, 5, 6]
    assert ids(scene, "missing") == [16, 18, 20]
    assert ids(scene, "recovered") == [17, 19]
    assert verdict.broken == ("3 lost",)
    assert verdict.gaps == 4
    assert verdict.longest_gaps[0] == verdicts.Gap(P, 4, 3)
    assert [example["seq"] for example in verdict.examples["lost"]] == [4, 5, 6]
    assert "body" not in verdict.examples["lost"][0]


def test_gap_over_many_buckets_is_one_gap(scene: Scene, run: Run) -> None:
    scene.bodies = {seq: files.body(files.event_id(P, seq), "x") for seq in range(1, 101)}
    scene.write_ledger().write_capture([*range(1, 12), 78, 79, *range(90, 101)])
    verdict = run()
    assert verdict.gaps == 2
    assert verdict.longest_gaps == (verdicts.Gap(P, 12, 66), verdicts.Gap(P, 80, 10))


def test_longest_of_many_gaps_is_named(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture([1, 3, 5, 7, 9, 11, 13, *range(17, 21)])
    verdict = run(bits=5)
    assert verdict.gaps == 7
    assert verdict.longest_gaps[0] == verdicts.Gap(P, 14, 3)


def test_missing_events_break_no_promise(scene: Scene, run: Run) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 19)}).write_capture(range(1, 20))
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert nonzero(verdict.counts) == {"events": 20, "ok": 18, "missing": 1, "recovered": 1}
    assert "1 missing, 1 recovered" in verdict.sentence


def test_further_copies_are_duplicated(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture([1, 2, 3, *range(1, 21), 20, 20])
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert nonzero(verdict.counts) == {"events": 20, "ok": 20, "duplicated": 5}
    assert ids(scene, "duplicated") == [1, 2, 3, 20]
    assert [(x["seq"], x["copies"]) for x in verdict.examples["duplicated"]] == [
        (1, 2),
        (2, 2),
        (3, 2),
        (20, 3),
    ]


def test_example_of_corrupted_shows_the_bad_copy(scene: Scene, run: Run) -> None:
    bad = files.body(files.event_id(P, 5), "event V")
    scene.write_ledger().write_capture([*range(1, 21), bad])
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict.counts) == {"events": 20, "ok": 19, "corrupted": 1, "duplicated": 1}
    [example] = verdict.examples["corrupted"]
    assert example["id"] == files.event_id(P, 5)
    assert example["body"] == bad.decode()
    assert (example["listener"], example["arrival"], example["peer"]) == ("main", 11, "127.0.0.1:9")


def test_example_of_an_event_shows_its_first_arrival(scene: Scene, run: Run) -> None:
    """Of several bad copies the first, at the first listener; of several good ones likewise."""
    bad = [files.body(files.event_id(P, 5), f"event {letter}") for letter in "VWX"]
    scene.write_ledger().write_capture([*range(1, 21), *bad[:2]], listener="a", size=1)
    scene.write_capture([7, 7, bad[2]], listener="b", size=1)
    verdict = run()
    [corrupted], [_, duplicated] = verdict.examples["corrupted"], verdict.examples["duplicated"]
    assert (corrupted["listener"], corrupted["body"]) == ("a", bad[0].decode())
    assert (duplicated["seq"], duplicated["listener"], duplicated["copies"]) == (7, "a", 3)


def test_examples_are_of_as_many_producers_as_possible(scene: Scene, run: Run) -> None:
    others = [f"{n:02x}" * 10 for n in range(3)]
    for other in others:
        bodies = {seq: files.body(files.event_id(other, seq), "x") for seq in range(1, 11)}
        scene.write_ledger(producer=other, bodies=bodies)
    scene.write_ledger().write_capture()
    examples = run(examples=4, bits=6).examples["lost"]  # one bucket
    assert sorted((x["producer"], x["seq"]) for x in examples) == [
        (others[0], 1), (others[0], 2), (others[1], 1), (others[2], 1)
    ]  # fmt: skip


def test_examples_are_of_the_producers_that_arrived_first(scene: Scene, run: Run) -> None:
    """So they are near each other, and little of a large capture is read for them."""
    others = [f"{n:02x}" * 10 for n in range(3)]
    arrived = []
    for other in others:
        bodies = {seq: files.body(files.event_id(other, seq), "x") for seq in range(1, 10)}
        scene.write_ledger(producer=other, bodies=bodies)
        arrived += [*reversed(bodies.values()), bodies[1]]
    scene.write_ledger().write_capture([*reversed(arrived), *range(1, 21)])
    for bits in (1, 3, 6):  # in one bucket, or in several
        examples = run(examples=2, bits=bits).examples["duplicated"]
        assert [x["producer"] for x in examples] == others[1:]


def test_events_of_no_ledger_are_unexpected(scene: Scene, run: Run) -> None:
    never = [files.body(files.event_id(P, seq), "never") for seq in (0, 21, 1 << 47)]
    others = [
        files.body(files.event_id(Q, 1), "other"),
        files.body(None, "no id"),
        files.body(None, "u", user="me"),
    ]
    scene.write_ledger().write_capture([*range(1, 21), *never, *others, *others])
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict.counts) == {"events": 20, "ok": 20, "unexpected": 6}
    assert ids(scene, "unexpected") == [0, 21, 1 << 47]
    found = {ident for _, ident in verify.violation_ids(scene.out, "unexpected")}
    assert files.event_id(Q, 1) in found
    assert f"~{files.xxh64(others[1]):016x}" in found
    assert f"~{files.xxh64(b'me'):016x}{files.xxh64(b'me', 43):016x}" in found
    assert [x.counts.unexpected for x in verdict.producers if not x.producer] == [3]
    assert {x["body"] for x in verdict.examples["unexpected"]} == {raw.decode() for raw in [*never, *others]}


def test_dropped_event_that_arrived_is_unexpected(scene: Scene, run: Run) -> None:
    sent = {seq: raw for seq, raw in scene.bodies.items() if seq < 10 or seq > 14}
    scene.write_ledger(bodies=sent, outcomes={"acked": sorted(sent), "dropped": range(10, 15)})
    scene.write_capture([*sorted(sent), 12])
    verdict = run()
    assert nonzero(verdict.counts) == {"events": 20, "ok": 15, "dropped": 4, "unexpected": 1}
    assert ids(scene, "dropped") == [10, 11, 13, 14]
    assert ids(scene, "unexpected") == [12]
    assert verdict.listeners[0].corrupted == 0  # there is no hash to compare with


def test_dropped_events_need_no_buckets(scene: Scene, run: Run) -> None:
    """No bucket is made where no event is listed: a billion dropped events cost nothing."""
    n = 10**9
    scene.write_ledger(
        bodies={1: scene.bodies[1]}, outcomes={"acked": [1]}, tail=[
            {"t": "dropped", "at_us": 1, "reason": "overflow", "seqs": [[2, n]]},
            files.close_line(n + 5, acked=1, dropped=n - 1),
        ],
    )  # fmt: skip
    scene.write_capture(
        [1, files.body(files.event_id(P, 500_000_000), "x"), files.body(files.event_id(P, n + 2), "x")]
    )
    verdict = run()
    assert nonzero(verdict.counts) == {
        "events": n + 5, "ok": 1, "dropped": n - 2, "unknown": 5, "unexpected": 1
    }  # fmt: skip


def test_events_behind_later_ones_are_reordered(scene: Scene, run: Run) -> None:
    order = [1, 2, 5, 6, 3, 4, *range(7, 16), 17, 18, 19, 20, 16]
    scene.write_ledger().write_capture(order)
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert verdict.broken == ("3 reordered",)
    assert ids(scene, "reordered") == [3, 4, 16]


def test_order_is_judged_per_listener(scene: Scene, run: Run) -> None:
    """Events at different listeners have no common order."""
    scene.write_ledger()
    scene.write_capture([*range(1, 6), *range(11, 21)], listener="a").write_capture(
        [6, 7, 9, 8, 10], listener="b"
    )
    assert run().counts.reordered == 1
    assert ids(scene, "reordered") == [8]


def test_resent_events_are_not_reordered(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture([*range(1, 11), *range(5, 21)])
    assert nonzero(run().counts) == {"events": 20, "ok": 20, "duplicated": 6}


@pytest.mark.parametrize(
    ("protocol", "mode", "code"),
    [
        ("plog", "", 0), ("logux", "", 0),
        ("logjam", "async", 0), ("logjam", "request", 1), ("logjam", "", 1),
        ("lumberjack+tls", "", 1),
    ],
)  # fmt: skip
def test_broken_order_fails_where_order_is_promised(
    scene: Scene, run: Run, protocol: str, mode: str, code: int
) -> None:
    scene.write_ledger(protocol=protocol, mode=mode).write_capture([2, 1, *range(3, 21)])
    verdict = run()
    assert verdict.exit_code == code
    assert verdict.counts.reordered == 1


@pytest.mark.parametrize(
    ("tail", "unknown", "code"),
    [
        ([], {"unknown": 2}, 3),
        ([b'{"t":"outc'], {"unknown": 2}, 3),
        ([{"t": "stopped", "reason": "full"}], {"unknown": 2}, 3),
        ([{"t": "stopped", "reason": "full"}, files.close_line(25)], {"events": 25, "unknown": 5}, 3),
        ([files.close_line(20)], {"unexpected": 2}, 1),
        ([b"damage\n", files.close_line(25)], {"events": 25, "unknown": 5}, 3),
        ([b"damage\n", files.close_line(20)], {"unknown": 2}, 3),
    ],
)
def test_events_beyond_the_ledger_depend_on_its_end(
    scene: Scene, run: Run, tail: list[Any], unknown: dict[str, int], code: int
) -> None:
    more = [files.body(files.event_id(P, seq), "more") for seq in (21, 23)]
    scene.write_ledger(tail=tail).write_capture([*range(1, 21), *more])
    verdict = run()
    assert verdict.exit_code == code
    assert nonzero(verdict.counts) == {"events": 20, "ok": 20} | unknown


def test_unclosed_capture_makes_absence_unknown(scene: Scene, run: Run) -> None:
    """Only what would be lost or missing becomes unknown, and only what was sent."""
    sent = {seq: raw for seq, raw in scene.bodies.items() if seq != 20}
    scene.write_ledger(
        bodies=sent, outcomes={"acked": range(1, 18), "failed": [18, 20]}, tail=[files.close_line(20)]
    )
    bad = files.body(files.event_id(P, 3), "other")
    scene.write_capture([1, 2, bad, 5, 4, *range(6, 12), *range(13, 18)], closed=False)
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict.counts) == {
        "events": 20, "ok": 15, "corrupted": 1, "reordered": 1, "unknown": 3, "missing": 1
    }  # fmt: skip
    assert ids(scene, "unknown") == [12, 18, 19]
    assert ids(scene, "missing") == [20]
    assert ids(scene, "lost") == []
    assert {x["seq"] for x in verdict.examples["unknown"]} == {12, 18, 19}
    [faults] = verdict.maps
    assert (faults.parts["unknown"], faults.parts["missing"]) == ([[11, 1], [17, 1], [18, 1]], [[19, 1]])
    assert "unknown" in verdict.producers[0].when and "lost" not in verdict.producers[0].when
    assert any("unclosed" in problem for problem in verdict.problems)
    assert not verdict.capture["complete"]


def test_unclosed_capture_with_all_events_is_ok(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(closed=False)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert verdict.problems


def test_unknown_events_alone_give_exit_code_3(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(range(1, 19), closed=False)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert (
        "promise is unproven: 2 of 20 events are unknown, because the capture is incomplete"
        in verdict.sentence
    )


def test_unclosed_capture_of_another_protocol_is_no_doubt(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(range(1, 19))
    files.write_segments(scene.capture, "other", [], protocol="plog", closed=False)
    verdict = run()
    assert verdict.counts.lost == 2
    assert "capture: other-000001.cap at byte" in verdict.problems[0]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_missing_segment_makes_events_unknown(scene: Scene, run: Run, which: int) -> None:
    scene.write_ledger().write_capture(per_segment=4)
    paths = sorted(scene.capture.iterdir())
    assert len(paths) == 3
    paths[which].unlink()
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.lost == 0
    assert verdict.counts.unknown > 0
    assert any("gap" in problem for problem in verdict.problems)


def test_damaged_header_is_taken_from_its_neighbours(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(per_segment=4)
    path = sorted(scene.capture.iterdir())[1]
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert any("CRC" in problem for problem in verdict.problems)


def test_capture_without_headers_proves_nothing(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture()
    [path] = scene.capture.iterdir()
    path.write_bytes(b"")
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.unknown == 20


def test_undecodable_units_are_counted_by_reason(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture([*range(1, 21), b"[1]"])
    [path] = scene.capture.iterdir()
    data = path.read_bytes()[: -len(files.end_record(13))]
    path.write_bytes(data + files.unit_record(13, b"2W\0\0\0\1junk") + files.end_record(14))
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert verdict.undecodable == {"not_json": 1, "bad_frame": 1}
    for row in verdict.undecoded:
        unit = path.read_bytes()[row["unit_at"] :]
        assert unit.startswith(b"2W")


def test_events_without_ids_are_compared_by_hash(scene: Scene, run: Run) -> None:
    """A multiset of hashes: order is not checked, a changed body is one lost and one unexpected."""
    texts = ["a", "b", "c", "same", "same", "same", "same", "failed", "x"]
    bodies = {seq: files.body(None, text) for seq, text in enumerate(texts, 1)}
    scene.write_ledger(
        bodies=bodies,
        identity="none",
        outcomes={"acked": [1, 2, 3, 4, 5, 9], "handed": [6, 7], "failed": [8]},
    )
    arrived = ["c", "b", "b", "same", "same", "same", "failed", "never"]
    scene.write_capture([files.body(None, text) for text in arrived])
    verdict = run()
    assert nonzero(verdict.counts) == {
        "events": 9, "ok": 5, "lost": 2, "missing": 1, "recovered": 1, "duplicated": 1, "unexpected": 1
    }  # fmt: skip
    assert ids(scene, "lost") == [1, 9]
    assert ids(scene, "missing") == [7]
    assert ids(scene, "duplicated") == [2]
    assert verdict.order == "not checked"
    assert "order: not checked" in report.text(verdict)


def test_own_ids_of_users_identify_events(scene: Scene, run: Run) -> None:
    bodies = {seq: files.body(None, str(seq), user=f"user {seq}") for seq in range(1, 5)}
    bodies |= {seq: files.body(None, str(seq), user="twice") for seq in (5, 6)}
    lines = [files.ids_line([(s, f"user {s}") for s in range(1, 5)] + [(5, "twice"), (6, "twice")])]
    scene.write_ledger(bodies=bodies, extra=lines)
    foreign = files.body(None, "s", user="another user")
    scene.write_capture(
        [bodies[2], bodies[1], files.body(None, "bad", user="user 3"), bodies[6], bodies[6], foreign]
    )
    verdict = run()
    # Two events share one id: each counts as arrived when a copy of its own body came.
    assert nonzero(verdict.counts) == {
        "events": 6, "ok": 3, "corrupted": 1, "lost": 2, "duplicated": 1, "reordered": 1, "unexpected": 1
    }  # fmt: skip
    assert ids(scene, "lost") == [4, 5]
    assert ids(scene, "reordered") == [1]


def test_own_ids_equal_to_generated_ids_need_the_body(scene: Scene, run: Run) -> None:
    """An id that two events carry identifies neither of them; their bodies do."""
    ours = [files.event_id(P, seq) for seq in range(8)]
    beyond = files.event_id(P, 4095)
    bodies = {seq: files.body(ours[seq], str(seq)) for seq in (1, 3, 5)}
    bodies |= {2: files.body(ours[1], "2"), 4: files.body(ours[3], "4"), 6: files.body(beyond, "6")}
    bodies[7] = files.body(ours[7], "7")
    given = [(2, ours[1]), (4, ours[3]), (6, beyond), (7, ours[7])]
    scene.write_ledger(bodies=bodies, extra=[files.ids_line(given)])
    scene.write_capture([bodies[seq] for seq in (1, 2, 3, 5, 6, 7)])
    verdict = run()
    assert nonzero(verdict.counts) == {"events": 7, "ok": 6, "lost": 1}
    assert ids(scene, "lost") == [4]


def test_own_ids_are_compared_by_128_bits(scene: Scene, run: Run) -> None:
    bodies = {1: files.body(None, "1", user="mine"), 2: files.body(None, "2", user="other")}
    lines = files.ids_line([(1, "mine"), (2, "other")])
    packed = bytearray(base64.b64decode(lines["ids"]))
    real = bytes(packed[:16])
    # Three rows with one first half: the right one is in the middle.
    forged = [real[:8] + b"\0" * 8, real, real[:8] + b"\xff" * 8]
    lines = {
        "t": "ids",
        "seqs": [[1, 3]],
        "n": 3,
        "ids": base64.b64encode(forged[0] + forged[1] + forged[2]).decode(),
    }
    bodies[3] = bodies[1]
    scene.write_ledger(bodies=bodies, extra=[lines], outcomes={"acked": [2]}).write_capture([bodies[1]])
    verdict = run()
    assert ids(scene, "corrupted") == [2]  # sequence 2 has the right id, and another body
    assert verdict.counts.unexpected == 0


def test_producers_are_judged_separately(scene: Scene, run: Run) -> None:
    mine = {seq: files.body(files.event_id(Q, seq), "q") for seq in range(1, 4)}
    scene.write_ledger().write_ledger(producer=Q, bodies=mine)
    scene.write_capture([1, mine[1], *range(2, 21), mine[3]])
    verdict = run()
    assert {x.producer: nonzero(x.counts) for x in verdict.producers} == {
        P: {"events": 20, "ok": 20}, Q: {"events": 3, "ok": 2, "lost": 1}
    }  # fmt: skip


def test_empty_ledger_is_ok(scene: Scene, run: Run) -> None:
    scene.write_ledger(bodies={}).write_capture([])
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert "nothing was sent" in verdict.sentence


@pytest.mark.parametrize("gone", ["failed", "dropped"])
def test_nothing_has_arrived_is_never_ok(scene: Scene, run: Run, gone: str) -> None:
    tail = [files.dropped_line(range(1, 21)), files.close_line(20, dropped=20)]
    if gone == "dropped":
        scene.write_ledger(bodies={}, outcomes={}, tail=tail)
    else:
        scene.write_ledger(outcomes={"failed": range(1, 21)})
    scene.write_capture([])
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.sentence.startswith("The promise is unproven, because nothing has arrived")


# -- a flood


def test_flood_of_unlisted_ids_is_counted_exactly(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlisted = pytest.importorskip("logclient.verify.unlisted")
    monkeypatch.setattr(unlisted.FirstArrivals, "LEAST", 50)
    waiting_rows = []
    merge = unlisted.FirstArrivals.merge

    def watched(self: Any) -> Any:
        waiting_rows.append(self.waiting)
        return merge(self)

    monkeypatch.setattr(unlisted.FirstArrivals, "merge", watched)
    rng = random.Random(1)
    wanted = [rng.randrange(1000) for _ in range(20_000)]
    flood = [files.body(files.event_id(Q, seq), "") for seq in wanted]
    scene.write_ledger().write_capture([*range(1, 21), *flood], size=100)
    verdict = run(units=5)
    assert verdict.counts.unexpected == len(set(wanted))
    assert len(verdict.examples["unexpected"]) == 20
    assert [x["seq"] for x in verdict.examples["unexpected"]] == sorted(set(wanted))[:20]
    assert len(list(verify.violation_ids(scene.out, "unexpected"))) == len(set(wanted))
    assert max(waiting_rows) < 600


@pytest.mark.parametrize(("few", "most"), [(16, 16), (40, 40), (1000, 128)])
def test_events_of_large_units_are_rows_in_bounded_pieces(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch, few: int, most: int
) -> None:
    """A piece is larger where the events of each bucket are few, up to eight times."""
    arrival_rows = pytest.importorskip("logclient.verify.arrival_rows")
    monkeypatch.setattr(arrival_rows, "ROWS", 16)
    monkeypatch.setattr(arrival_rows, "FEW", few)
    made = []
    rows = arrival_rows.BucketWriter.segment

    def watched(*given: Any) -> Any:
        for batch in rows(*given):
            hashes = batch.column("hashes").drop_null().to_pylist()  # of events, not of a segment's report
            made.append(sum(len(value) // 8 for value in hashes))
            yield batch

    monkeypatch.setattr(arrival_rows.BucketWriter, "segment", watched)
    scene.bodies = {seq: files.body(files.event_id(P, seq), "x") for seq in range(1, 501)}
    scene.write_ledger()
    one = files.window(list(scene.bodies.values()), compress=True)
    files.write_segments(
        scene.capture, "main", [(one, 0, 1), *[(files.window([scene.bodies[1]]), 0, 2)] * 30]
    )
    verdict = run(bits=9)
    assert nonzero(verdict.counts) == {"events": 500, "ok": 500, "duplicated": 30}
    assert most - 16 < max(made) <= most


# -- latency


def test_latency_quantiles_are_close_to_exact(scene: Scene, run: Run) -> None:
    rng = random.Random(2)
    scene.bodies = {seq: files.body(files.event_id(P, seq), "x") for seq in range(1, 1001)}
    took = {seq: int(rng.lognormvariate(8, 2)) for seq in scene.bodies}
    received = 1_700_000_000_000_000
    scene.write_ledger(created=lambda seq: received - took[seq]).write_capture(
        received=lambda _: received, size=50
    )
    latency = run(bits=6).latency
    assert latency.events == 1000
    assert latency.max == max(took.values())
    for word, q in (("p50", 500), ("p90", 900), ("p99", 990), ("p999", 999)):
        assert getattr(latency, word) == pytest.approx(sorted(took.values())[q - 1], rel=0.016)


def test_latency_counts_the_first_copy(scene: Scene, run: Run) -> None:
    scene.write_ledger(created=lambda seq: 1000).write_capture(received=lambda unit: 1500 + unit)
    scene.write_capture(listener="again", received=lambda unit: 90_000)
    latency = run().latency
    assert (latency.events, latency.max) == (20, 504)


@pytest.mark.parametrize("apart", [0, 7], ids=["one clock", "two clocks"])
def test_latency_is_exact_however_long_a_run_is(scene: Scene, run: Run, apart: int) -> None:
    """An event every two days; with a second clock the odd units come hours later."""
    day, hour = 86_400_000_000, 3_600_000_000
    made = {seq: 2 * day * seq + 7 * seq for seq in scene.bodies}
    scene.write_ledger(created=made.__getitem__, per_batch=1)
    scene.write_capture(received=lambda unit: made[unit + 1] + 300 + unit % 2 * apart * hour, size=1)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    assert verdict.latency.events == 20 and verdict.latency.max == 300 + apart * hour
    assert verdict.producers[0].early == 0
    assert verdict.latency.p50 == pytest.approx(300, rel=0.016)


def test_arrival_before_creation_is_a_clock_problem(scene: Scene, run: Run) -> None:
    """Events with a negative latency are reported, and are in no quantile."""
    hour = 3_600_000_000
    scene.write_ledger(created=lambda seq: hour + seq if seq > 4 else seq, per_batch=4)
    scene.write_capture(received=lambda unit: 1_000 + unit)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    [x] = verdict.producers
    assert (x.early, x.early_us) == (16, hour + 20 - 1_004)
    assert (verdict.latency.events, verdict.latency.max) == (4, 999)
    reason = "arrived before they were sent: the clocks differ by at least 3,599.999 s"
    assert verdict.problems == (f"clocks: 16 events of {P} (host h, pid 1) {reason}",)
    assert sum(verdict.timeline.events) == 20
    scene.write_ledger(created=lambda seq: hour)
    verdict = run()
    assert verdict.latency is None
    assert verdict.producers[0].early == 20


@pytest.mark.parametrize("absurd", [-(1 << 63), -1, 1 << 53, (1 << 63) - 1])
@pytest.mark.parametrize("created", [0, (1 << 60) - 1, -(1 << 60) + 1])
def test_absurd_times_have_no_latency(scene: Scene, run: Run, absurd: int, created: int) -> None:
    """They wrap nothing, and change no other time."""
    scene.write_ledger(created=lambda seq: created)
    scene.write_capture(received=lambda unit: absurd if unit % 2 else 1_234)
    verdict = run()
    assert verdict.exit_code == ExitCode.OK
    why = "received at no known time, or before 1970 or after 2255: they have no latency"
    assert f"clocks: main-000001.cap: 2 units {why}" in verdict.problems
    assert (verdict.capture["first_us"], verdict.capture["last_us"]) == (1_234, 1_234)
    if created > 0:
        assert verdict.latency is None
        assert (verdict.producers[0].early, verdict.producers[0].early_us) == (12, created - 1_234)
    else:
        assert (verdict.latency.events, verdict.latency.max) == (12, 1_234 - created)
    assert sum(verdict.timeline.events) == 20


def test_latency_is_right_over_days_in_one_task(scene: Scene, run: Run) -> None:
    """Times of one task may differ by more than 32 bits of microseconds."""
    day = 86_400_000_000
    scene.write_ledger(created=lambda seq: seq * day, per_batch=1)
    scene.write_capture(size=1, received=lambda unit: (unit + 1) * day + 5_000_000)
    latency = run(bits=6).latency
    assert latency.max == pytest.approx(5_000_000, abs=1024)


# -- limits


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        ({"max_missing": 2}, ()),
        ({"max_missing": 1}, ("2 missing, more than 1",)),
        ({"max_missing": "10%"}, ()),
        ({"max_missing": "9.9%"}, ("2 missing, more than 9.9%",)),
        ({"max_duplicated": 0}, ("1 duplicated, more than 0",)),
        ({"max_dropped": 0, "max_missing": "100%"}, ()),
    ],
)
def test_limit_exceeded_breaks_the_promise(
    scene: Scene, run: Run, limits: dict[str, Any], broken: tuple[str, ...]
) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 19)}).write_capture([1, *range(1, 19)])
    verdict = run(**limits)
    assert verdict.broken == broken
    assert verdict.exit_code == (ExitCode.BROKEN if broken else ExitCode.OK)


@pytest.mark.parametrize(
    ("limit", "missing", "events"),
    [("29%", 29, 100), ("0.7%", 7, 1000), (".7%", 7, 1000), ("57.%", 57, 100), ("100%", 10**17, 10**17)],
)
def test_share_is_exact(limit: str, missing: int, events: int) -> None:
    limits = verdicts.Limits.read(missing=limit)
    assert limits.broken(verdicts.Counts(events=events, missing=missing)) == []
    more = verdicts.Counts(events=events, missing=missing + 1)
    assert limits.broken(more) == [f"{missing + 1:,} missing, more than {limit}"]


@pytest.mark.parametrize("limit", ["", "x", "1.5", "-1", "1%%", "%", "١"])
def test_wrong_limit_is_a_config_error(scene: Scene, run: Run, limit: str) -> None:
    scene.write_ledger().write_capture()
    with pytest.raises(ConfigError, match=r"max_missing: .* must be a count such as 100 or a share"):
        run(max_missing=limit)


def test_units_larger_than_a_piece(scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed unit holds many events; here a single one exceeds a piece."""
    monkeypatch.setattr("logclient.verify.arrival_rows.ROWS", 1)
    scene.write_ledger().write_capture([1, 3, 2, *range(5, 21), *[20] * 4], size=3)
    verdict = run()
    assert nonzero(verdict.counts) == {"events": 20, "ok": 19, "lost": 1, "duplicated": 4, "reordered": 1}
    assert (ids(scene, "lost"), ids(scene, "reordered")) == ([4], [2])


# -- files


def test_verdict_files_are_private_and_replaced(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(range(3, 21))
    run()
    first = (scene.out / "verdict.json").read_text()
    assert stat.S_IMODE(scene.out.stat().st_mode) == 0o700
    for name in ("verdict.json", "report.html"):
        assert stat.S_IMODE((scene.out / name).stat().st_mode) == 0o600
    assert len(list(verify.violation_ids(scene.out))) == 2
    found = json.loads(first)
    assert found["version"] == 1
    assert found["exit_code"] == 1
    assert found["counts"]["lost"] == 2
    assert found["producers"][0]["counts"]["lost"] == 2
    assert set(found["seconds"]) == {"start", "pack", "compare", "second_passes", "total"}
    # A second run into the same folder replaces the first verdict.
    scene.write_capture(range(2, 21))
    run()
    assert list(verify.violation_ids(scene.out)) == [("lost", files.event_id(P, 1))]


def test_violations_hold_copies_and_whether_listed(scene: Scene, run: Run) -> None:
    """`sent` says that a batch line lists the events, `copies` how many arrived."""
    foreign = files.body(files.event_id(Q, 7), "foreign")
    listed = {seq: raw for seq, raw in scene.bodies.items() if seq not in (13, 14, 20)}
    outcomes = {"acked": sorted(listed), "dropped": [13, 14], "failed": [20]}
    scene.write_ledger(
        bodies=listed, outcomes=outcomes, tail=[files.close_line(20, acked=17, dropped=2, failed=1)]
    )
    scene.write_capture([1, 2, 5, 5, 5, 7, *range(7, 13), 14, 14, 15, 17, 16, 18, 19, foreign])
    run()
    table = support.need("pyarrow.parquet").read_table(scene.out / "violations")
    assert sorted(map(tuple, map(dict.values, table.to_pylist()))) == [
        ("dropped", P, 13, 13, 0, False, None),
        ("duplicated", P, 5, 5, 3, True, None),
        ("duplicated", P, 7, 7, 2, True, None),
        ("lost", P, 3, 4, 0, True, None),
        ("lost", P, 6, 6, 0, True, None),
        ("missing", P, 20, 20, 0, False, None),
        ("reordered", P, 16, 16, 1, True, None),
        ("unexpected", P, 14, 14, 2, False, None),
        ("unexpected", Q, 7, 7, 1, False, None),
    ]


def test_other_files_in_the_out_folder_stay(scene: Scene, run: Run) -> None:
    (scene.out / "violations").mkdir(parents=True)
    note = scene.out / "violations" / "note.txt"
    note.write_text("mine")
    scene.write_ledger().write_capture(range(2, 21))
    run()
    assert note.read_text() == "mine"
    assert list(verify.violation_ids(scene.out)) == [("lost", files.event_id(P, 1))]


def test_unknown_option_is_a_type_error(scene: Scene) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'worl'"):
        verify.run(scene.ledger, scene.capture, worl=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kafka", "127.0.0.1:9092/t"], "runner: a topic is read by Spark"),
        (["--table", "/no/where"], "table: /no/where: there is no such file or folder"),
    ],
)
def test_what_the_local_runner_cannot_read_is_named(
    scene: Scene, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    scene.write_ledger()
    assert cli.main(["verify", "--ledger", str(scene.ledger), "--local", *arguments]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"logclient: {words}")


def test_local_runner_needs_no_session(scene: Scene) -> None:
    scene.write_ledger().write_capture()
    with pytest.raises(ConfigError, match=r"^runner: a session is given, and local needs none"):
        verify.run(scene.ledger, scene.capture, runner="local", spark=object())
    with pytest.raises(ConfigError, match=r"^runner: 'flink' is neither spark nor local"):
        verify.run(scene.ledger, scene.capture, runner="flink")


def test_bodies_without_an_id_are_of_no_missing_ledger(scene: Scene, run: Run) -> None:
    scene.write_ledger(tail=[]).write_capture([*range(1, 21), files.body(None, "nobody's")])
    verdict = run()
    assert verdict.counts.unknown == 1
    assert not [line for line in verdict.problems if "is not here" in line]


def test_violations_of_no_verdict_or_a_damaged_one_are_an_error(scene: Scene, run: Run) -> None:
    with pytest.raises(LedgerError, match=f"^out: {scene.out}: No such file or directory"):
        verify.violations(scene.out)
    scene.write_ledger().write_capture(range(1, 11))
    run(out=scene.out)
    [file] = (scene.out / "violations").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(LedgerError, match=f"^out: {file}: "):
        list(verify.violation_ids(scene.out))


def test_an_interrupt_while_the_verdict_is_written_leaves_nothing(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    scene.write_ledger().write_capture(range(1, 11))
    monkeypatch.setattr(report, "page", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(out=scene.out)
    assert not scene.out.exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"examples": -1}, "examples: -1 is no whole number from 0 to 100,000"),
        ({"examples": "5"}, "examples: 5 is no"),
        ({"examples": 10**30}, "examples: 10{30} is no"),
        ({"others": None}, "others: 'None' is none of"),
        ({"max_latency": 5}, "max_latency: '5' is none of"),
    ],
)
def test_impossible_values_are_named(scene: Scene, run: Run, options: dict[str, Any], why: str) -> None:
    scene.write_ledger().write_capture()
    with pytest.raises(ConfigError, match=f"^{why}"):
        run(**options)


@pytest.mark.tree
def test_every_field_of_the_json_is_documented() -> None:
    text = (support.ROOT / "docs" / "verify-rules.md").read_text()
    fields = [*verdicts.Verdict._fields, *verdicts.Counts._fields, *verdicts.ProducerVerdict._fields]
    fields += [*verdicts.Timeline._fields, *verdicts.Map._fields]
    fields += [*verdicts.Listener._fields, *verdicts.Destination._fields, *verdicts.LeftOut._fields]
    for field in [*fields, *verdicts.Latency._fields, *verdicts.Gap._fields]:
        assert f"`{field}`" in text, field


# -- the command


def test_command_prints_the_table_or_json(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.write_ledger().write_capture([1, 1, *range(3, 20)], closed=False)
    given = ["verify", "--local", "--ledger", str(scene.ledger), "--capture", str(scene.capture)]
    assert cli.main([*given, "--out", str(scene.out)]) == ExitCode.UNREACHABLE
    out = capsys.readouterr().out
    assert "unknown" in out
    assert "duplicated" in out
    assert "unclosed" in out
    assert "gaps: 2, the longest of 1 events" in out
    assert "latency: p50" in out
    assert str(scene.out / "report.html") in out
    assert cli.main([*given, "--json", "--max-duplicated", "0"]) == ExitCode.BROKEN
    assert json.loads(capsys.readouterr().out)["broken"] == ["1 duplicated, more than 0"]


def test_failure_of_spark_is_one_line(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = RuntimeError(
        "aborted\nTraceback\n File x\norg.x.SparkException: y\nValueError: the\treal reason\n at z"
    )
    fail_on_spark(monkeypatch, failure)
    scene.write_ledger().write_capture()
    command = ["verify", "--ledger", str(scene.ledger), "--capture", str(scene.capture)]
    assert cli.main(command) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err == "logclient: spark: ValueError: the real reason\n"
    assert cli.main([*command, "--debug"]) == ExitCode.UNREACHABLE
    assert "Traceback" in capsys.readouterr().err


def test_missing_folders_are_errors(scene: Scene, run: Run, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger: .*: No such file"):
        run()
    scene.write_ledger()
    with pytest.raises(LedgerError, match=r"capture: .*: No such file"):
        run()
    scene.write_capture()
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="out: "):
        run(out=tmp_path / "file")
    with pytest.raises(LedgerError, match="out: "):
        run(out=tmp_path / "file" / "below")


def test_unknown_protocol_makes_events_unknown(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(protocol="gopher")
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.unknown == 20
    assert any("the unknown protocol 'gopher'" in problem for problem in verdict.problems)


def test_missing_pyspark_is_named(scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    with pytest.raises(MissingExtra, match=r'install "logclient\[spark\]", or .* --local') as caught:
        job.run(scene.ledger, scene.capture)
    assert caught.value.name == "pyspark"


# -- Spark itself


@pytest.mark.slow
@pytest.mark.spark
def test_spark_gives_the_same_counts(spark: Any, scene: Scene) -> None:
    scene.write_ledger().write_capture(
        [1, 2, 3, *range(1, 17), files.body(files.event_id(Q, 1), "other"), 18, 17]
    )
    verdict = job.run(scene.ledger, scene.capture, out=scene.out, spark=spark, tuning=Tuning(2))
    assert nonzero(verdict.counts) == {
        "events": 20, "ok": 18, "lost": 2, "duplicated": 3, "unexpected": 1, "reordered": 1
    }  # fmt: skip
    assert ids(scene, "lost") == [19, 20]
    assert (scene.out / "report.html").exists()


@pytest.mark.slow
@pytest.mark.spark
def test_error_in_a_spark_worker_is_one_line(spark: Any, scene: Scene) -> None:
    scene.write_ledger()
    table = scene.out.parent / "table"
    rows = [(bytearray(scene.bodies[seq]), 7) for seq in (1, 2)]
    spark.createDataFrame(rows, "value binary, n int").coalesce(1).write.parquet(str(table))
    with pytest.raises(LedgerError) as caught:
        job.run(scene.ledger, table=str(table), columns={"arrival": "n"}, spark=spark)
    assert "two records have the arrival number 7" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.spark
def test_command_is_quiet_and_leaves_no_files(scene: Scene, tmp_path: Path, spark: Any) -> None:
    scene.write_ledger().write_capture(range(1, 20))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [
            sys.executable, "-m", "logclient", "verify",
            "--ledger", str(scene.ledger), "--capture", str(scene.capture), "--out", str(scene.out),
        ],
        capture_output=True, text=True, cwd=temporary, timeout=8 * PATIENCE,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(support.ROOT)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == ExitCode.BROKEN
    assert done.stdout.splitlines()[-2] == "The promise is broken: 1 lost, of 20 events."
    assert [path.name for path in temporary.iterdir() if path.name != "hsperfdata_root"] == []
