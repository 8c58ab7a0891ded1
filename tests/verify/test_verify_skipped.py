"""A selection of time reads the segments, the ledgers' lines and the places that can have its events."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.evidence.selection import Selection
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Scene

np = support.need("numpy")
support.need("pyarrow")
captures = pytest.importorskip("logclient.evidence.captures")
comparison = pytest.importorskip("logclient.verify.comparison")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
ledger_lines = pytest.importorskip("logclient.verify.ledger_lines")
ledger_rows = pytest.importorskip("logclient.verify.ledger_rows")
ledgers = pytest.importorskip("tests.verify.ledgers")
segments = pytest.importorskip("logclient.evidence.segments")

MINUTE = 60_000_000
EVENTS = 240  # one each second, from second 1 on; a segment has ten, and is received half a second later


@pytest.fixture
def minutes(scene: Scene) -> Scene:
    scene.bodies = {s: files.body(files.event_id(P, s), f"event {s}") for s in range(1, EVENTS + 1)}
    scene.write_ledger(created=lambda seq: 1_000_000 * seq, at_us=1, per_batch=7)
    return scene


def write_capture(scene: Scene, moved: dict[int, int] | None = None, **options: Any) -> None:
    """Write a unit for each event, or at the place of another one; 0: nowhere."""
    at = {seq: seq for seq in scene.bodies} | (moved or {})
    order = sorted((place, seq) for seq, place in at.items() if place)
    units = [(files.window([scene.bodies[seq]]), 0, 1_000_000 * place + 500_000) for place, seq in order]
    files.write_segments(scene.capture, "main", units, per_segment=10, **options)


@pytest.fixture
def verify(minutes: Scene) -> Callable[..., Any]:
    def run(since: int = 60, until: int = 120, **options: Any) -> Any:
        given = {"out": minutes.out, "since": since, "until": until, **options}
        return inprocess.run(minutes.ledger, minutes.capture, **given)

    return run


def test_segments_of_other_times_are_not_read(minutes: Scene, verify: Callable[..., Any]) -> None:
    """Seconds 50 to 180 are read: clocks may differ by ten seconds, and copies take up to a minute."""
    write_capture(minutes)
    for number in (1, 3, 19, 23):
        path = minutes.capture / f"main-{number:06d}.cap"
        data = bytearray(path.read_bytes())
        data[-60] ^= 1  # in the last unit
        path.write_bytes(data)
    verdict = verify()
    assert (verdict.exit_code, inprocess.counts(verdict)) == (0, {"events": 60, "ok": 60})
    assert (verdict.capture["segments"], verdict.capture["skipped"]) == (24, 10)
    assert verdict.capture["complete"] and not verdict.problems
    everything = inprocess.run(minutes.ledger, minutes.capture)
    assert everything.capture["skipped"] == 0 and not everything.capture["complete"]


@pytest.mark.parametrize("place", [10, 239])
def test_event_that_arrived_at_another_time_is_found(
    minutes: Scene, verify: Callable[..., Any], place: int
) -> None:
    """Where an event was not seen, all segments are read: it is not lost, but reordered."""
    write_capture(minutes, {100: place})
    verdict = verify()
    assert (verdict.counts.ok, verdict.counts.reordered > 0) == (60, True)
    assert verdict.capture["skipped"] == 0


def test_lost_event_is_lost(minutes: Scene, verify: Callable[..., Any]) -> None:
    write_capture(minutes, {100: 0})
    verdict = verify()
    assert (verdict.exit_code, inprocess.counts(verdict)) == (1, {"events": 60, "ok": 59, "lost": 1})
    assert inprocess.found(minutes.out)["lost"] == {(P, 100)}


def test_missing_segment_of_another_time_is_no_doubt(minutes: Scene, verify: Callable[..., Any]) -> None:
    write_capture(minutes)
    (minutes.capture / "main-000002.cap").unlink()
    verdict = verify()
    assert (verdict.exit_code, verdict.counts.ok) == (0, 60)


def test_capture_that_ended_before_is_read(minutes: Scene, verify: Callable[..., Any]) -> None:
    """Nobody knows when the last unit of a segment was received that no other one follows."""
    write_capture(minutes)
    for number in range(8, 25):
        (minutes.capture / f"main-{number:06d}.cap").unlink()
    verdict = verify(since=200, until=220)
    assert (verdict.exit_code, inprocess.counts(verdict)) == (3, {"events": 20, "unknown": 20})


@pytest.mark.parametrize(
    ("begins", "skipped"),
    [
        ([1, 2, 3, 60, 61, 171, 180, 190], [0, 1, 5, 6, 7]),
        ([1, 0, 3, 60, 61, 0, 180, 190], [1, 6, 7]),  # nobody knows when the second one begins, or ends
        ([1, 2, 70, 45, 61, 171, 180, 190], [0, 5, 6, 7]),  # the clock was set back
        ([1, 2, 3, 60, 180, 61, 180, 190], [0, 1, 6, 7]),
        ([0, 0, 0], []),
        ([], []),
    ],
)
def test_segments_are_chosen_by_when_they_begin(begins: list[int], skipped: list[int]) -> None:
    """For events of second 60 to 110. The one that begins before that may reach into it."""
    head = captures.Header("r", "lumberjack", "main", "", 1, 1)
    headers = [head._replace(first_us=at * 1_000_000) for at in begins]
    places = [segments.Segment("main", i, f"/{i}.cap", 9) for i in range(len(begins))]
    entries = [(place, 0, 0, "lumberjack") for place in places]
    survey = captures.Survey(entries, [], [], headers)
    found = survey.find_outside(Selection(60_000_000, 110_000_000))
    assert [report.number for report in found] == skipped
    carried = [(place, 0, 0, "plog") for place in places]
    found = survey._replace(entries=carried).find_outside(Selection(60_000_000, 110_000_000))
    # An event may have a part in the segment before.
    assert [report.number for report in found if report.number < 4] == [
        i for i in skipped if i < 4 and i + 1 in skipped
    ]


@pytest.mark.parametrize("step", [1, 3, 1 << 15])
def test_lines_of_other_times_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The events that are selected have rows, each at its place, wherever a stretch of files begins."""
    monkeypatch.setattr(ledger_lines, "STEP", step)
    monkeypatch.setattr(ledger_lines, "READ_BYTES", 300)
    monkeypatch.setattr(ledger_rows, "PIECE", 5)
    for seed in range(20):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        listed = {}
        for name in [f"{rng.getrandbits(80):020x}" for _ in range(rng.choice((1, 4)))]:
            sequence = at = 0
            parts: list[list[Any]] = [[files.open_line(name)]]
            for _ in range(rng.choice((1, 8, 30))):
                events = []
                for _ in range(rng.choice((1, 4))):
                    sequence += rng.choice((1, 1, 3))
                    at += rng.randrange(1000)
                    events.append((sequence, at, rng.getrandbits(64)))
                    listed[name, sequence] = events[-1][1:]
                parts[-1].append(files.batch_line(events))
                if rng.random() < 0.2:
                    parts.append([files.open_line(name, len(parts) + 1)])
            for number, part in enumerate(parts, 1):
                files.write_part(folder, name, number, part)
        times = sorted(at for at, _ in listed.values())
        since, until = sorted(rng.choices(times, k=2))
        selection = Selection(since, until + 1)
        read = ledgers.Ledgers.read(folder, 3, rng.choice((1, 3, 100)), selection)
        facts = read.facts
        found = {}
        for row in read.rows():
            bucket = ledgers.lay_out(facts, row.key, ledgers.Workspace())
            for place, hash_, at in ledgers.events_of(row):
                i = int(np.searchsorted(bucket.starts, place, side="right")) - 1
                sequence = int(bucket.firsts[i] + place - bucket.starts[i])
                assert bucket.listed[place]
                found[facts.name(int(bucket.producers[i])), sequence] = (at, hash_)
        wanted = {
            key: (at, hash_) for key, (at, hash_) in listed.items() if selection.place(np.int64(at)) == 0
        }
        assert wanted.items() <= found.items() <= listed.items()
        # Times rise, so there is nothing else than what is selected.
        assert found == wanted
        shutil.rmtree(folder)
