"""Captures with wrong files: copied, renamed, merged, of another run, missing, or with forged headers."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ExitCode, LedgerError
from tests import support
from tests.damage.damages import records_of
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene
from tests.verify.page import read_page

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
captures = pytest.importorskip("logclient.evidence.captures")
endpoints = pytest.importorskip("logclient.verify.endpoints")
examples = pytest.importorskip("logclient.verify.examples")
storage = pytest.importorskip("logclient.evidence.storage")

Run = Callable[..., Any]
HEADER = b"\x01" + struct.pack("<I", 1)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger()


@pytest.fixture
def run(scene: Scene) -> Run:
    return lambda **options: inprocess.run(scene.ledger, scene.capture, out=scene.out, **options)


def nonzero(verdict: Any) -> dict[str, int]:
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def has_problem(verdict: Any, *words: str) -> bool:
    return any(all(word in problem for word in words) for problem in verdict.problems)


def assert_ok(verdict: Any) -> None:
    assert verdict.exit_code == ExitCode.OK
    assert nonzero(verdict) == {"events": 20, "ok": 20}


def assert_unknown(verdict: Any, unknown: int) -> None:
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts == type(verdict.counts)(events=20, ok=20 - unknown, unknown=unknown)
    assert "the capture is incomplete" in verdict.sentence


def assert_broken(verdict: Any, **counts: int) -> None:
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict) == {"events": 20, **counts}


# -- segments that are missing


@pytest.mark.parametrize("end", ["rotated", "recovered", "resumed"])
def test_rotated_last_segment_lacks_its_successor(scene: Scene, run: Run, end: str) -> None:
    scene.write_capture(range(1, 11), end=end)
    verdict = run()
    assert_unknown(verdict, 10)
    assert has_problem(verdict, "main-000001.cap", f"it was {end}, and the segment that follows is missing")


def test_closed_last_segment_is_complete(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), end="closed")
    assert_broken(run(), ok=10, lost=10)


# -- order


@pytest.mark.parametrize("torn", [False, True])
def test_order_in_a_damaged_capture_breaks_no_promise(scene: Scene, run: Run, torn: bool) -> None:
    """Records that changed places are reordered without blame; a missing end changes no order."""
    scene.write_capture(closed=False)
    path = scene.capture / "main-000001.cap"
    records = records_of(path.read_bytes())
    if torn:
        records[2], records[4] = records[4], records[2]
    else:
        scene.write_capture([5, 6, 7, 8, 1, 2, 3, 4, *range(9, 21)], closed=False)
        records = records_of(path.read_bytes())
    path.write_bytes(b"".join(records))
    verdict = run()
    assert nonzero(verdict) == {"events": 20, "ok": 20, "reordered": 4}
    assert verdict.exit_code == (ExitCode.UNREACHABLE if torn else ExitCode.BROKEN)
    assert verdict.producers[0].breaks == (() if torn else ("reordered",))
    assert has_problem(verdict, "gap: arrival 3 where 1 was due") == torn


def test_unknown_protocol_of_a_segment_is_a_doubt_about_order(scene: Scene, run: Run) -> None:
    """Whatever it holds, it may have been decoded elsewhere: as with a header that cannot be read."""
    scene.write_capture([2, 1, *range(3, 21)])
    assert run().exit_code == ExitCode.BROKEN
    scene.write_capture([], listener="other", protocol="gopher")
    verdict = run()
    assert (verdict.exit_code, verdict.counts.reordered) == (ExitCode.UNREACHABLE, 1)
    assert has_problem(verdict, "other-000001.cap at byte 0: damage: its header names the unknown protocol")


def test_unknown_protocol_of_a_renamed_segment_is_a_doubt_about_all(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 20))
    assert_broken(run(), ok=19, lost=1)
    scene.write_capture([], listener="other", protocol="gopher")
    (scene.capture / "other-000001.cap").rename(scene.capture / "renamed-000001.cap")
    assert_unknown(run(), 1)


# -- names


def test_copied_segment_is_not_counted_twice(scene: Scene, run: Run) -> None:
    scene.write_capture(per_segment=4)
    first = scene.capture / "main-000001.cap"
    for name in ("other-000001.cap", "main-000009.cap", "b.main-000001.cap", "main.cap"):
        shutil.copy(first, scene.capture / name)
    verdict = run()
    assert_ok(verdict)
    for name in ("other-000001.cap", "main-000009.cap", "b.main-000001.cap", "main.cap"):
        assert has_problem(verdict, f"{name}: copy: it is a copy of main-000001.cap")
    assert verdict.capture["segments"] == 3


def test_copied_segment_hides_no_loss(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11))
    shutil.copy(scene.capture / "main-000001.cap", scene.capture / "x-000001.cap")
    assert_broken(run(), ok=10, lost=10)


def test_shorter_copy_of_a_segment_is_a_copy(scene: Scene, run: Run) -> None:
    scene.write_capture()
    whole = (scene.capture / "main-000001.cap").read_bytes()
    (scene.capture / "old-000001.cap").write_bytes(whole[: len(whole) // 2])
    verdict = run()
    assert_ok(verdict)
    assert has_problem(verdict, "old-000001.cap: copy")


def test_the_longer_of_two_copies_is_compared(scene: Scene, run: Run) -> None:
    """Even if its name is longer: the other one is of an upload that was cut."""
    scene.write_capture()
    whole = (scene.capture / "main-000001.cap").read_bytes()
    (scene.capture / "h1.main-000001.cap").write_bytes(whole)
    (scene.capture / "main-000001.cap").write_bytes(whole[: len(whole) // 2])
    verdict = run()
    assert_ok(verdict)
    assert has_problem(verdict, "main-000001.cap: copy: it is a copy of h1.main-000001.cap")


def test_misnamed_copy_is_found_among_segments_with_the_same_header(scene: Scene, run: Run) -> None:
    """Two runs may have one name: a copy may be of either."""
    bodies = [*scene.bodies.values()]
    scene.write_capture(bodies[15:])
    (scene.capture / "main-000001.cap").rename(scene.capture / "b.main-000001.cap")
    scene.write_capture(bodies[:15])
    for name, copy in (("main-000001.cap", "x-000001.cap"), ("b.main-000001.cap", "y-000001.cap")):
        shutil.copy(scene.capture / name, scene.capture / copy)
    verdict = run()
    assert_ok(verdict)
    assert has_problem(verdict, "x-000001.cap: copy: it is a copy of main-000001.cap")
    assert has_problem(verdict, "y-000001.cap: copy: it is a copy of b.main-000001.cap")


def test_events_of_a_producer_that_began_after_the_listing_are_unknown(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in no line that was read, but a ledger of theirs exists: they are not unexpected."""
    bodies = {seq: files.body(files.event_id(Q, seq), "q") for seq in range(1, 4)}
    scene.write_capture([*scene.bodies, *bodies.values()])
    survey = captures.survey

    def begin(*given: Any) -> Any:
        scene.write_ledger(producer=Q, bodies=bodies)
        return survey(*given)

    monkeypatch.setattr(captures, "survey", begin)
    verdict = run()
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 3}
    assert verdict.exit_code == ExitCode.UNREACHABLE


def test_ledger_that_goes_after_the_listing_is_named(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_capture()
    path = scene.ledger / f"{Q}-0001.ledger"
    survey, read_at = captures.survey, storage.read_at

    def begin(*given: Any) -> Any:
        scene.write_ledger(producer=Q)
        return survey(*given)

    def read_when_gone(place: str, *given: Any) -> bytes:
        if place == str(path):
            path.unlink()
        return read_at(place, *given)

    monkeypatch.setattr(captures, "survey", begin)
    monkeypatch.setattr(storage, "read_at", read_when_gone)
    with pytest.raises(LedgerError, match=f"^ledger: {path}: No such file or directory$"):
        run()


def test_segment_that_goes_after_the_comparison_costs_only_its_bytes(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_capture([*range(1, 21), b"[]"], size=21)
    explain = examples.explain_undecoded

    def explain_when_gone(*given: Any) -> None:
        shutil.rmtree(scene.capture)
        explain(*given)

    monkeypatch.setattr(examples, "explain_undecoded", explain_when_gone)
    verdict = run()
    assert nonzero(verdict) == {"events": 20, "ok": 20}
    [row] = verdict.undecoded
    assert (row["segment"], "bytes" in row) == ("main-000001.cap", False)
    assert f"{row['reason']} at byte {row['offset']:,}" in read_page(scene).text


@pytest.mark.parametrize("name", ["x-000001.cap", "main-000007.cap", "main-copy.cap", "h-main-000001.cap"])
def test_renamed_segment_is_not_compared(scene: Scene, run: Run, name: str) -> None:
    scene.write_capture()
    (scene.capture / "main-000001.cap").rename(scene.capture / name)
    verdict = run()
    assert_unknown(verdict, 20)
    assert has_problem(verdict, f"{name}: misnamed: its header names it main-000001.cap", "<host>.main")


def test_renamed_segment_beside_another_makes_events_unknown(scene: Scene, run: Run, tmp_path: Path) -> None:
    bodies = [*scene.bodies.values()]
    scene.write_capture(bodies[15:])
    (scene.capture / "main-000001.cap").rename(tmp_path / "spare")
    scene.write_capture(bodies[:15])
    (tmp_path / "spare").rename(scene.capture / "other-000001.cap")
    verdict = run()
    assert_unknown(verdict, 5)
    assert has_problem(verdict, "other-000001.cap: misnamed")


def test_swapped_segment_names_make_events_unknown(scene: Scene, run: Run) -> None:
    scene.write_capture(per_segment=4)
    first, second, spare = (scene.capture / name for name in ("main-000001.cap", "main-000002.cap", "x"))
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.lost == verdict.counts.duplicated == 0
    assert has_problem(verdict, "main-000002.cap: misnamed")


def test_cap_file_that_is_no_segment_is_misnamed(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11))
    (scene.capture / "notes.cap").write_text("what a day")
    verdict = run()
    assert_unknown(verdict, 10)
    assert has_problem(verdict, "notes.cap: misnamed: its name is not <listener>-<nnnnnn>.cap")
    assert "unknown" in verdict.producers[0].when and "lost" not in verdict.producers[0].when


@pytest.mark.parametrize(
    "name", ["main-000002.cap.gz", "main-000002.CAP", "main-000002.cap.part", ".main-000002.cap.Xy12"]
)
def test_file_that_looks_like_a_segment_makes_events_unknown(scene: Scene, run: Run, name: str) -> None:
    """It is compressed, under way, or of a system that ignores case: it may have what is missing."""
    scene.write_capture(range(1, 11))
    (scene.capture / name).write_bytes(b"\x1f\x8b\x08")
    (scene.capture / "main.caption").touch()
    verdict = run()
    assert_unknown(verdict, 10)
    assert has_problem(verdict, f"{name}: misnamed: its name is not <listener>-<nnnnnn>.cap")
    assert not has_problem(verdict, "caption")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_fifo_and_links_are_not_read(scene: Scene, run: Run) -> None:
    """Opening the FIFO would block for ever."""
    scene.write_capture(range(1, 11))
    os.mkfifo(scene.capture / "f-000001.cap")
    os.symlink(scene.capture / "main-000001.cap", scene.capture / "l-000001.cap")
    os.symlink("/nowhere", scene.capture / "d-000001.cap")
    verdict = run()
    assert_unknown(verdict, 10)
    assert has_problem(verdict, "f-000001.cap: unread: is a FIFO, not a regular file")
    assert has_problem(verdict, "l-000001.cap: unread: is a link, not a regular file")
    assert has_problem(verdict, "d-000001.cap: unread: is a link, not a regular file")


# -- two hosts


def test_prefix_separates_equal_listeners_of_two_hosts(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), host="a")
    (scene.capture / "main-000001.cap").rename(scene.capture / "a.main-000001.cap")
    scene.write_capture(range(11, 21), host="b")
    (scene.capture / "main-000001.cap").rename(scene.capture / "b.main-000001.cap")
    verdict = run()
    assert_ok(verdict)
    assert verdict.problems == ()
    assert verdict.capture["listeners"] == ["a.main", "b.main"]
    assert [(row["listener"], row["host"], row["events"]) for row in verdict.capture["runs"]] == [
        ("a.main", "a", 10), ("b.main", "b", 10)
    ]  # fmt: skip


def test_equal_names_without_host_are_no_copies(scene: Scene, run: Run) -> None:
    """Neither segment names its host, and both have the same run."""
    scene.write_capture(range(1, 11))
    (scene.capture / "main-000001.cap").rename(scene.capture / "b.main-000001.cap")
    scene.write_capture(range(11, 21))
    assert_ok(run())


def test_segment_of_another_host_leaves_a_gap(scene: Scene, run: Run) -> None:
    """Its arrivals do not continue those of the first."""
    scene.write_capture(range(1, 11), host="a", run="1")
    scene.write_capture(range(11, 17), host="b", run="2", first=2, arrival=3)
    verdict = run()
    assert_unknown(verdict, 4)
    assert has_problem(verdict, "main-000002.cap", "arrival 3 where 7 was due")
    assert [(row["host"], row["run"]) for row in verdict.capture["runs"]] == [("a", "1"), ("b", "2")]


def reasons(scene: Scene) -> str:
    return read_page(scene).text.partition("Events by word")[0]


def test_gap_is_named_before_copies_and_clocks(
    scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write_ledger(created=lambda _: 90_000)  # later than they arrive
    scene.write_capture(per_segment=2)
    (scene.capture / "main-000003.cap").unlink()
    for n in range(5):
        shutil.copytree(scene.capture, scene.capture.parent / f"copy{n}")
    for copy in scene.capture.parent.glob("copy?"):
        copy.rename(scene.capture / copy.name)
    monkeypatch.setattr("logclient.verify.summary.MAX_NAMED", 10)
    verdict = run()
    assert "segment 4 where 3 was due" in verdict.problems[0]
    assert (len(verdict.problems), verdict.harmless) == (10, 8)
    assert "segment 4 where 3 was due" in reasons(scene)
    assert ": copy:" not in reasons(scene) and "clocks:" not in reasons(scene)


def test_ledger_that_may_be_open_is_no_reason(scene: Scene, run: Run) -> None:
    scene.write_ledger(outcomes={"acked": range(1, 20)}, tail=[]).write_capture(range(1, 20), closed=False)
    run()
    assert "has no end: it was not closed" in reasons(scene)
    assert "1 ledger without an end" in reasons(scene)
    verdict = run(allow_open=True)
    assert (verdict.ledger["still_open"], verdict.harmless) == (1, 1)
    assert has_problem(verdict, P, "has no end: it was not closed")
    assert "unclosed" in reasons(scene) and "has no end" not in reasons(scene)
    assert "1 ledger without an end" not in reasons(scene)
    scene.write_capture(range(1, 20))
    run(allow_open=True)
    assert "1 ledger without an end" in reasons(scene)  # nothing else makes an event unknown


# -- runs


def events_of_other_run() -> list[bytes]:
    return [files.body(files.event_id(Q, seq), "of another run") for seq in range(1, 11)]


def test_restarted_collector_has_a_second_run(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), run="1", end="resumed")
    scene.write_capture(range(11, 21), run="2", first=2, arrival=7)
    verdict = run()
    assert_ok(verdict)
    assert verdict.problems == ()
    assert [(row["run"], row["events"], row["ours"]) for row in verdict.capture["runs"]] == [
        ("1", 10, True), ("2", 10, True)
    ]  # fmt: skip


def test_listener_of_another_run_is_not_compared(scene: Scene, run: Run) -> None:
    """Its events prove nothing, and hide no loss of this run."""
    scene.write_capture(events_of_other_run(), listener="old", run="1", host="a")
    scene.write_capture(run="2", host="a")
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 10}
    assert has_problem(verdict, "old-000001.cap: other run: it belongs to run 1 of host a", "10 not compared")
    assert [(row["run"], row["ours"]) for row in verdict.capture["runs"]] == [("2", True), ("1", False)]
    assert list(inprocess.violation_ids(scene.out)) == []
    page = (scene.out / "report.html").read_text()
    assert "1 (another run: not compared)" in page
    assert verdict.sentence == (
        "The promise is unproven, because the capture is incomplete, "
        "and 10 arrived events are in none of these ledgers."
    )
    assert verdict.capture["events"] == 20

    scene.write_capture(range(1, 20), run="2", host="a")
    assert_broken(run(), ok=19, lost=1, unknown=10)


def test_share_of_unknown_events_is_without_those_of_other_runs(scene: Scene, run: Run) -> None:
    scene.write_capture([*events_of_other_run(), *events_of_other_run()], listener="old", run="1")
    scene.write_capture(range(1, 18), run="2", closed=False)
    verdict = run()
    assert verdict.counts.unknown == 23
    assert "unproven: 3 of 20 events are unknown, because" in verdict.sentence
    assert verdict.sentence.endswith(", and 20 arrived events are in none of these ledgers.")
    cells = [text for _, text in read_page(scene).cells]
    assert cells[cells.index("unknown") + 1 :][:2] == ["23", "15 %"]


def test_arrived_event_that_an_open_ledger_lacks_is_not_of_its_events(scene: Scene, run: Run) -> None:
    some = {seq: raw for seq, raw in scene.bodies.items() if seq < 20}
    scene.write_ledger(bodies=some, tail=[]).write_capture()
    verdict = run(allow_open=True)
    assert verdict.counts.unknown == 1
    assert verdict.sentence == (
        "The promise is unproven, because a ledger is still open or not here, "
        "and 1 arrived event is in none of these ledgers."
    )


def test_earlier_run_of_the_same_listener_is_not_compared(scene: Scene, run: Run) -> None:
    scene.write_capture(events_of_other_run(), run="1", end="resumed")
    scene.write_capture(run="2", first=2, arrival=7)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 10}
    assert not has_problem(verdict, "gap")
    (scene.capture / "main-000001.cap").write_bytes(b"")
    assert has_problem(run(), "main-000001.cap", "unclosed")


def test_capture_of_another_run_alone_proves_nothing(scene: Scene, run: Run) -> None:
    scene.write_capture(events_of_other_run())
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "unknown": 30}


def test_foreign_event_in_this_run_is_unexpected(scene: Scene, run: Run) -> None:
    scene.write_capture([*range(1, 21), events_of_other_run()[0]])
    assert_broken(run(), ok=20, unexpected=1)


def test_earlier_run_without_ids_is_known_by_its_time(tmp_path: Path) -> None:
    """All of it arrived before the first event of this run was made."""
    scene = Scene(tmp_path)
    scene.bodies = {seq: files.body(None, f"event {seq}") for seq in range(1, 21)}
    scene.write_ledger(identity="none")
    old = [files.body(None, f"old {n}") for n in range(9)]
    scene.write_capture(old, listener="old", run="1", received=lambda _: 5)
    for own in (50_000, 7):  # with 7 its clock is behind, and it is the only run
        scene.write_capture(run="2", received=lambda unit, own=own: own + unit)  # type: ignore[misc]
        verdict = inprocess.run(scene.ledger, scene.capture)
        if own == 50_000:
            assert verdict.exit_code == ExitCode.UNREACHABLE
            assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 9}
        (scene.capture / "old-000001.cap").unlink(missing_ok=True)
    assert_ok(verdict)


def test_other_run_without_ids_has_no_hash_of_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.bodies = {seq: files.body(None, f"event {seq}") for seq in range(1, 21)}
    scene.write_ledger(identity="none")
    theirs = [*(files.body(None, f"other {n}") for n in range(9)), *events_of_other_run()]
    scene.write_capture(theirs, listener="old", run="1")
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "unknown": 39}
    scene.write_capture(run="2")
    verdict = inprocess.run(scene.ledger, scene.capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 19}

    # A run with such a hash is of these producers, wherever the first copy arrived.
    for listener, run in (("a", "3"), ("z", "4")):
        scene.write_capture([*theirs[:3], scene.bodies[7]], listener=listener, run=run)
        verdict = inprocess.run(scene.ledger, scene.capture)
        assert {row["run"] for row in verdict.capture["runs"] if row["ours"]} == {"2", run}
        assert_broken(verdict, ok=20, duplicated=1, unexpected=3, unknown=19)
        (scene.capture / f"{listener}-000001.cap").unlink()


def test_empty_ledger_without_ids_owns_no_arrival(scene: Scene, run: Run) -> None:
    scene.write_ledger(bodies={}, identity="none")
    scene.write_capture([files.body(None, f"old {n}") for n in range(9)])
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"unknown": 9}


# -- endpoints


def url(*places: str, protocol: str = "lumberjack") -> str:
    return f"{protocol}://{','.join(places)}?window=9"


@pytest.mark.parametrize(
    ("sent_to", "listeners", "missing"),
    [
        ("a:1", ["lumberjack://a:1"], []),
        ("a:1", ["lumberjack://0.0.0.0:1"], []),
        ("a:1", ["lumberjack://10.0.0.1:1"], []),  # a name may be any address
        ("10.0.0.2:1", ["lumberjack://[::]:1"], []),
        ("a:1", [""], []),  # it does not say
        ("a", ["lumberjack://a:5044"], []),
        ("a:1,b:1", ["lumberjack://0.0.0.0:1"], ["b:1"]),
        ("a:1,b:1", ["lumberjack://0.0.0.0:1", "lumberjack://0.0.0.0:1"], []),
        ("a:1,a:2", ["lumberjack://a:2"], ["a:1"]),
        ("a:1,b:2", ["lumberjack://b:2", "lumberjack://x:1"], []),
        ("[::1]:1", ["lumberjack://[::2]:1"], ["[::1]:1"]),
        ("10.0.0.1:1,10.0.0.2:1", ["lumberjack://10.0.0.2:1", "lumberjack://10.0.0.3:1"], ["10.0.0.1:1"]),
        ("a:1", [], ["a:1"]),
        ("a:1", ["plog://a:1"], ["a:1"]),
        ("a:1", ["lumberjack://a:9,lumberjack://a:1"], []),
        ("a:x", ["lumberjack://a:9"], []),
        ("", ["lumberjack://a:9"], []),  # a ledger without an open line that counts
    ],
)
def test_endpoints_without_a_listener_are_missing(
    sent_to: str, listeners: list[str], missing: list[str]
) -> None:
    rows = [
        {"name": str(i), "protocol": text.partition(":")[0] or "lumberjack", "urls": [text], "source": ""}
        for i, text in enumerate(listeners)
    ]
    [route] = endpoints.routes([("lumberjack", url(sent_to), False)], rows)
    assert (route.family, route.missing) == ("lumberjack", missing)
    listeners_found = [listener for _, listener in route.endpoints]
    # Each endpoint that is not missing leads to a listener of its own.
    assert listeners_found.count("") == len(missing)
    assert len({*listeners_found} - {""}) == len(listeners_found) - len(missing)


def test_any_listener_may_be_behind_a_proxy() -> None:
    """A proxy or a published port hides the address of the listener."""
    listener = {"name": "x", "protocol": "lumberjack", "urls": ["lumberjack://0.0.0.0:5044"], "source": ""}
    ledger = ("lumberjack+tls", url("proxy:443"), True)

    def route(ledger: Any, *listeners: Any) -> Any:
        [found] = endpoints.routes([ledger], listeners)
        return found

    assert route(ledger, listener) == ("lumberjack", [("proxy:443", "")], [])
    assert route((*ledger[:2], False), listener).missing == ["proxy:443"]
    two = ("lumberjack", url("proxy:443", "proxy:444"), True)
    assert len(route(two, listener).missing) == 2
    assert route(two, listener, listener | {"name": "y"}).missing == []
    # A consumer receives from any device.
    consumer = {"name": "x", "protocol": "logjam", "urls": ["tcp://d:9606"], "source": "devices"}
    device = ("logjam", url("d:9604", protocol="logjam"), False)
    assert route(device, consumer) == ("logjam", [("d:9604", "x")], [])
    assert route(device, consumer, consumer | {"name": "y"}) == ("logjam", [("d:9604", "")], [])


def test_missing_listener_makes_events_unknown(scene: Scene, run: Run) -> None:
    lines = [files.open_line(P) | {"url": "lumberjack://127.0.0.1:5044,127.0.0.1:5045"}]
    lines += [files.batch_line([(s, 1000 * s, files.xxh64(raw)) for s, raw in scene.bodies.items()])]
    lines += [files.outcome_line("acked", range(1, 21)), files.close_line(20, acked=20)]
    files.write_part(scene.ledger, P, 1, lines)
    scene.write_capture(range(1, 11))
    verdict = run()
    assert_unknown(verdict, 10)
    assert has_problem(verdict, "127.0.0.1:5045: endpoint: it is in a ledger of lumberjack", "no listener")
    scene.write_capture(range(11, 20), listener="b", url="lumberjack://127.0.0.1:5045")
    assert_broken(run(), ok=19, lost=1)


def test_a_producer_without_events_asks_for_no_listener(scene: Scene, run: Run) -> None:
    scene.write_ledger()
    scene.write_capture(range(1, 21))
    other = P[:-1] + ("0" if P[-1] != "0" else "1")
    lines = [files.open_line(other) | {"url": "lumberjack://127.0.0.1:5045"}, files.close_line(0)]
    files.write_part(scene.ledger, other, 1, lines)
    verdict = run()
    assert (verdict.counts.ok, verdict.counts.unknown) == (20, 0)
    assert verdict.capture["complete"], verdict.problems


# -- hostile headers and records


def header(text: bytes) -> bytes:
    return files.record(HEADER + text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "evil",
    [
        header(b"[" * 60_000),
        header(b"[]"),
        header(b"5"),
        header(b"\xff{"),
        *(files.header_record("main", 1, first) for first in (-1, 0, 1 << 63, 1 << 70)),
        header(
            b'{"run":"r","protocol":"lumberjack","listener":"main","url":"","segment":1,"first_arrival":Infinity}'
        ),
        files.header_record("main", 1, 1, run=1),  # type: ignore[arg-type]
        files.header_record("main", 1, 1, source="unknown"),
        files.header_record("main", 1, 1, host=None),
        files.header_record("main", 1, 1, protocol="no-such\n\x1b[31m"),
        files.header_record("main", 1, 1) + files.record(b"\x03\0\0"),
        files.header_record("main", 1, 1) + files.record(b"\x04"),
        files.header_record("main", 1, 1) + files.record(b"\x02\0"),
        files.record(b"\x01"),
        files.header_record("main", 1, 1) + files.unit_record((1 << 64) - 1, b"x"),
        files.header_record("main", 1, 1) + files.unit_record((1 << 63) - 1, b"x") + files.record(b"\x07"),
        files.header_record("main", 1, 1) + files.end_record(1 << 63),
    ],
)
def test_hostile_segment_is_named_damage(scene: Scene, run: Run, evil: bytes) -> None:
    scene.write_capture(range(1, 11))
    path = scene.capture / "main-000001.cap"
    listed = path.read_bytes()
    first = 8 + struct.unpack_from("<I", listed)[0]
    path.write_bytes(evil + listed[first:])
    for units in (0, 1):
        verdict = run(units=units)
        assert verdict.exit_code == ExitCode.UNREACHABLE
        assert verdict.counts.lost == verdict.counts.unexpected == 0
        assert verdict.counts.unknown >= 10
        assert has_problem(verdict, "main-000001.cap")


def test_folder_without_segments_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(LedgerError, match="no segment"):
        captures.survey([str(tmp_path)])


# -- captures that go on


@pytest.mark.parametrize("ending", [{"closed": False}, {"end": "rotated"}])
def test_event_that_was_acknowledged_before_the_last_unit_is_lost(
    scene: Scene, run: Run, ending: dict[str, Any]
) -> None:
    """The last unit is received at 50.004 ms: what is acknowledged ten seconds before may still arrive."""
    acked = {-9_949_997: range(1, 19), -9_949_996: [19], 60_000: [20]}
    lines = [files.outcome_line("acked", seqs, at_us=at) for at, seqs in acked.items()]
    scene.write_ledger(outcomes={}, extra=lines, tail=[files.close_line(20, acked=20)])
    scene.write_capture([*range(1, 18), *range(1, 4)], **ending)
    verdict = run()
    assert verdict.exit_code == ExitCode.BROKEN
    assert (verdict.counts.lost, verdict.counts.unknown) == (1, 2)
    found = inprocess.found(scene.out)
    assert (found["lost"], found["unknown"]) == ({(P, 18)}, {(P, 19), (P, 20)})


def test_capture_that_goes_on_and_has_all_is_no_doubt(scene: Scene, run: Run) -> None:
    scene.write_ledger().write_capture(closed=False)
    assert run().exit_code == ExitCode.OK
