"""Captures that are not what they should be: files copied, renamed, merged or of another run, missing
segments and listeners, headers that somebody made up."""

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
from tests import verify_files as files
from tests.damage.damages import records_of
from tests.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.verify_inprocess")
captures = pytest.importorskip("logclient.verify.captures")
endpoints = pytest.importorskip("logclient.verify.endpoints")

Run = Callable[..., Any]
HEADER = b"\x01" + struct.pack("<I", 1)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path).write_ledger()


@pytest.fixture
def run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda **options: inprocess.run(monkeypatch, scene.ledger, scene.capture, out=scene.out, **options)


def nonzero(verdict: Any) -> dict[str, int]:
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def named(verdict: Any, *words: str) -> bool:
    return any(all(word in problem for word in words) for problem in verdict.problems)


def check_right(verdict: Any) -> None:
    assert verdict.exit_code == ExitCode.OK
    assert nonzero(verdict) == {"events": 20, "ok": 20}


def check_unknown(verdict: Any, unknown: int) -> None:
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts == type(verdict.counts)(events=20, ok=20 - unknown, unknown=unknown)
    assert "the capture is not complete" in verdict.sentence


def check_broken(verdict: Any, **counts: int) -> None:
    assert verdict.exit_code == ExitCode.BROKEN
    assert nonzero(verdict) == {"events": 20, **counts}


# -- segments that are missing


@pytest.mark.parametrize("end", ["rotated", "recovered", "resumed"])
def test_a_last_segment_behind_which_there_was_another(scene: Scene, run: Run, end: str) -> None:
    scene.write_capture(range(1, 11), end=end)
    verdict = run()
    check_unknown(verdict, 10)
    assert named(verdict, "main-000001.cap", f"it was {end}, and the segment that follows is missing")


def test_a_closed_one_has_none_behind_it(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), end="closed")
    check_broken(run(), ok=10, lost=10)


# -- order


@pytest.mark.parametrize("torn", [False, True])
def test_order_in_a_capture_whose_records_changed_places(scene: Scene, run: Run, torn: bool) -> None:
    """What the collector wrote first stands behind: nobody's promise is broken. An end that is missing
    changes no order."""
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
    assert named(verdict, "gap: arrival 3 where 1 was due") == torn


# -- names


def test_a_copy_under_another_name_is_not_counted_twice(scene: Scene, run: Run) -> None:
    scene.write_capture(per_segment=4)
    first = scene.capture / "main-000001.cap"
    for name in ("other-000001.cap", "main-000009.cap", "b.main-000001.cap", "main.cap"):
        shutil.copy(first, scene.capture / name)
    verdict = run()
    check_right(verdict)
    for name in ("other-000001.cap", "main-000009.cap", "b.main-000001.cap", "main.cap"):
        assert named(verdict, f"{name}: copy: it is a copy of main-000001.cap")
    assert verdict.capture["segments"] == 3


def test_a_copy_does_not_hide_a_loss(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11))
    shutil.copy(scene.capture / "main-000001.cap", scene.capture / "x-000001.cap")
    check_broken(run(), ok=10, lost=10)


def test_an_older_copy_of_a_segment_that_has_grown(scene: Scene, run: Run) -> None:
    scene.write_capture()
    whole = (scene.capture / "main-000001.cap").read_bytes()
    (scene.capture / "old-000001.cap").write_bytes(whole[: len(whole) // 2])
    verdict = run()
    check_right(verdict)
    assert named(verdict, "old-000001.cap: copy")


@pytest.mark.parametrize("name", ["x-000001.cap", "main-000007.cap", "main-copy.cap", "h-main-000001.cap"])
def test_a_renamed_segment(scene: Scene, run: Run, name: str) -> None:
    scene.write_capture()
    (scene.capture / "main-000001.cap").rename(scene.capture / name)
    verdict = run()
    check_unknown(verdict, 20)
    assert named(verdict, f"{name}: misnamed: its header says that it is main-000001.cap", "<host>.main")


def test_two_segments_with_each_others_names(scene: Scene, run: Run) -> None:
    scene.write_capture(per_segment=4)
    first, second, aside = (scene.capture / name for name in ("main-000001.cap", "main-000002.cap", "x"))
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.lost == verdict.counts.duplicated == 0
    assert named(verdict, "main-000002.cap: misnamed")


def test_a_name_that_is_no_segment_and_a_header_that_is_none(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11))
    (scene.capture / "notes.cap").write_text("what a day")
    verdict = run()
    check_unknown(verdict, 10)
    assert named(verdict, "notes.cap: misnamed: its name is not <listener>-<nnnnnn>.cap")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_what_is_no_file_is_refused(scene: Scene, run: Run) -> None:
    """Nobody writes to the FIFO: who opened it would wait for ever."""
    scene.write_capture(range(1, 11))
    os.mkfifo(scene.capture / "f-000001.cap")
    os.symlink(scene.capture / "main-000001.cap", scene.capture / "l-000001.cap")
    os.symlink("/nowhere", scene.capture / "d-000001.cap")
    verdict = run()
    check_unknown(verdict, 10)
    assert named(verdict, "f-000001.cap: unread: is a FIFO, not a regular file")
    assert named(verdict, "l-000001.cap: unread: is a link, not a regular file")
    assert named(verdict, "d-000001.cap: unread: is a link, not a regular file")


# -- two hosts


def test_listeners_of_one_name_on_two_hosts_are_merged_by_a_prefix(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), host="a")
    (scene.capture / "main-000001.cap").rename(scene.capture / "a.main-000001.cap")
    scene.write_capture(range(11, 21), host="b")
    (scene.capture / "main-000001.cap").rename(scene.capture / "b.main-000001.cap")
    verdict = run()
    check_right(verdict)
    assert verdict.problems == ()
    assert verdict.capture["listeners"] == ["a.main", "b.main"]
    assert [(row["listener"], row["host"], row["events"]) for row in verdict.capture["runs"]] == [
        ("a.main", "a", 10), ("b.main", "b", 10)
    ]  # fmt: skip


def test_what_two_hosts_have_alike_is_no_copy(scene: Scene, run: Run) -> None:
    """Neither says its host, and both were given one name for the run."""
    scene.write_capture(range(1, 11))
    (scene.capture / "main-000001.cap").rename(scene.capture / "b.main-000001.cap")
    scene.write_capture(range(11, 21))
    check_right(run())


def test_a_segment_of_another_host_in_a_series(scene: Scene, run: Run) -> None:
    """Its arrivals do not follow: a hole on either side."""
    scene.write_capture(range(1, 11), host="a", run="1")
    scene.write_capture(range(11, 17), host="b", run="2", first=2, arrival=3)
    verdict = run()
    check_unknown(verdict, 4)
    assert named(verdict, "main-000002.cap", "arrival 3 where 7 was due")
    assert [(row["host"], row["run"]) for row in verdict.capture["runs"]] == [("a", "1"), ("b", "2")]


# -- runs


def others() -> list[bytes]:
    return [files.body(files.event_id(Q, seq), "of another run") for seq in range(1, 11)]


def test_a_collector_that_was_restarted_has_another_run(scene: Scene, run: Run) -> None:
    scene.write_capture(range(1, 11), run="1", end="resumed")
    scene.write_capture(range(11, 21), run="2", first=2, arrival=7)
    verdict = run()
    check_right(verdict)
    assert verdict.problems == ()
    assert [(row["run"], row["events"], row["ours"]) for row in verdict.capture["runs"]] == [
        ("1", 10, True), ("2", 10, True)
    ]  # fmt: skip


def test_a_listener_of_another_run(scene: Scene, run: Run) -> None:
    """Its events are nobody's here, which proves nothing; what this run lost is lost all the same."""
    scene.write_capture(others(), listener="old", run="1", host="a")
    scene.write_capture(run="2", host="a")
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 10}
    assert named(verdict, "old-000001.cap: other run: it is of run 1 of host a", "10 not compared")
    assert [(row["run"], row["ours"]) for row in verdict.capture["runs"]] == [("2", True), ("1", False)]
    assert list(inprocess.violations(scene.out)) == []
    page = (scene.out / "report.html").read_text()
    assert "1 (another run: not compared)" in page
    assert verdict.capture["events"] == 20

    scene.write_capture(range(1, 20), run="2", host="a")
    check_broken(run(), ok=19, lost=1, unknown=10)


def test_an_earlier_run_of_the_same_listener(scene: Scene, run: Run) -> None:
    scene.write_capture(others(), run="1", end="resumed")
    scene.write_capture(run="2", first=2, arrival=7)
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 10}
    assert not named(verdict, "gap")
    (scene.capture / "main-000001.cap").write_bytes(b"")  # whatever it held
    assert named(run(), "main-000001.cap", "unclosed")


def test_nothing_but_another_run(scene: Scene, run: Run) -> None:
    """The wrong folder: it says nothing of what was sent."""
    scene.write_capture(others())
    verdict = run()
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "unknown": 30}


def test_a_stranger_in_this_run_is_unexpected(scene: Scene, run: Run) -> None:
    scene.write_capture([*range(1, 21), others()[0]])
    check_broken(run(), ok=20, unexpected=1)


def test_an_earlier_run_of_events_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All before the first event of this run was made, beside a run that was not."""
    scene = Scene(tmp_path)
    scene.bodies = {seq: files.body(None, f"event {seq}") for seq in range(1, 21)}
    scene.write_ledger(identity="none")
    old = [files.body(None, f"old {n}") for n in range(9)]
    scene.write_capture(old, listener="old", run="1", received=lambda _: 5)
    for own in (50_000, 7):  # its clock may be behind: it is the only run there is
        scene.write_capture(run="2", received=lambda unit, own=own: own + unit)  # type: ignore[misc]
        verdict = inprocess.run(monkeypatch, scene.ledger, scene.capture)
        if own == 50_000:
            assert verdict.exit_code == ExitCode.UNREACHABLE
            assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 9}
        (scene.capture / "old-000001.cap").unlink(missing_ok=True)
    check_right(verdict)


def test_another_run_of_events_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later than this one, too: nothing in it has a hash of the ledgers."""
    scene = Scene(tmp_path)
    scene.bodies = {seq: files.body(None, f"event {seq}") for seq in range(1, 21)}
    scene.write_ledger(identity="none")
    theirs = [*(files.body(None, f"other {n}") for n in range(9)), *others()]
    scene.write_capture(theirs, listener="old", run="1")
    verdict = inprocess.run(monkeypatch, scene.ledger, scene.capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "unknown": 39}
    scene.write_capture(run="2")
    verdict = inprocess.run(monkeypatch, scene.ledger, scene.capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert nonzero(verdict) == {"events": 20, "ok": 20, "unknown": 19}

    # One that has is of these producers, wherever the first copy of it arrived.
    for listener, run in (("a", "3"), ("z", "4")):
        scene.write_capture([*theirs[:3], scene.bodies[7]], listener=listener, run=run)
        verdict = inprocess.run(monkeypatch, scene.ledger, scene.capture)
        assert {row["run"] for row in verdict.capture["runs"] if row["ours"]} == {"2", run}
        check_broken(verdict, ok=20, duplicated=1, unexpected=3, unknown=19)
        (scene.capture / f"{listener}-000001.cap").unlink()


def test_a_run_of_others_beside_a_producer_that_sent_nothing(scene: Scene, run: Run) -> None:
    """Its events would have no ids: nothing that arrived can be any of them."""
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
def test_endpoints_that_no_listener_has(sent_to: str, listeners: list[str], missing: list[str]) -> None:
    rows = [
        {"name": str(i), "protocol": text.partition(":")[0] or "lumberjack", "urls": [text], "source": ""}
        for i, text in enumerate(listeners)
    ]
    [route] = endpoints.routes([("lumberjack", url(sent_to), False)], rows)
    assert (route.family, route.missing) == ("lumberjack", missing)
    led = [listener for _, listener in route.endpoints]
    # Each endpoint that is not missing leads to a listener of its own.
    assert led.count("") == len(missing)
    assert len({*led} - {""}) == len(led) - len(missing)


def test_endpoints_behind_other_addresses() -> None:
    """By a proxy, or by a port that is published as another: any listener may be the one."""
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
    # A consumer has what came by any device.
    consumer = {"name": "x", "protocol": "logjam", "urls": ["tcp://d:9606"], "source": "devices"}
    device = ("logjam", url("d:9604", protocol="logjam"), False)
    assert route(device, consumer) == ("logjam", [("d:9604", "x")], [])
    assert route(device, consumer, consumer | {"name": "y"}) == ("logjam", [("d:9604", "")], [])


def test_a_listener_whose_capture_is_missing(scene: Scene, run: Run) -> None:
    lines = [files.open_line(P) | {"url": "lumberjack://127.0.0.1:5044,127.0.0.1:5045"}]
    lines += [files.batch_line([(s, 1000 * s, files.xxh64(raw)) for s, raw in scene.bodies.items()])]
    lines += [files.outcome_line("acked", range(1, 21)), files.close_line(20, acked=20)]
    files.write_part(scene.ledger, P, 1, lines)
    scene.write_capture(range(1, 11))
    verdict = run()
    check_unknown(verdict, 10)
    assert named(verdict, "127.0.0.1:5045: endpoint: it is in a ledger of lumberjack", "no listener")
    scene.write_capture(range(11, 20), listener="b", url="lumberjack://127.0.0.1:5045")
    check_broken(run(), ok=19, lost=1)


# -- hostile headers and records


def header(text: bytes) -> bytes:
    return files.record(HEADER + text)


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
        files.header_record("main", 1, 1, source="nobody"),
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
def test_hostile_segments_are_damage_with_its_place(scene: Scene, run: Run, evil: bytes) -> None:
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
        assert named(verdict, "main-000001.cap")


def test_a_folder_without_any(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    with pytest.raises(LedgerError, match="no segment"):
        captures.survey(str(tmp_path))
