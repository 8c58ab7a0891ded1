"""An incomplete ledger proves neither that all is well nor that something is broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
counts = inprocess.counts
tallies = pytest.importorskip("logclient.verify.tally")

ALL, HALF = list(range(1, 21)), list(range(1, 11))
STOPPED = {"t": "stopped", "reason": "No space left"}


@pytest.fixture
def verify(scene: Scene) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out, **options)
        # The violations agree with the counts.
        found = inprocess.found(scene.out) if verdict.counts.events < 1 << 20 else None
        mine = {x.producer for x in verdict.producers}
        for word in ("lost", "missing", "unknown", "pending", "dropped", "corrupted"):
            count = sum(getattr(x.counts, word) for x in verdict.producers if x.producer)
            assert found is None or sum(p in mine for p, _ in found.get(word, ())) == count, word
        return verdict

    return run


def ledger_of(scene: Scene, producer: str = P, part: int = 1) -> Path:
    return scene.ledger / f"{producer}-{part:04d}.ledger"


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def events_of_other_producer(scene: Scene) -> dict[int, bytes]:
    return {seq: files.body(files.event_id(Q, seq), f"other {seq}") for seq in ALL}


class TestExitCode0:
    """Exit code 0 needs every ledger whole."""

    def test_whole_ledger_is_ok(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
        assert (verdict.ledger["complete"], verdict.producers[0].ledger) == (True, "whole")

    def test_stopped_ledger_is_exit_code_3(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Nothing says what was made after the disk was full."""
        scene.write_ledger(tail=[STOPPED]).write_capture()
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20})
        assert P in verdict.sentence and "No space left" in verdict.sentence
        assert (verdict.ledger["complete"], verdict.producers[0].ledger) == (False, "stopped")
        assert verify(allow_open=True).exit_code == 3

    def test_unclosed_ledger_is_ok_only_when_allowed(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger(tail=[]).write_capture()
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20})
        assert f"the ledger of {P} (host h, pid 1) has no end" in verdict.sentence
        allowed = verify(allow_open=True)
        assert (allowed.exit_code, counts(allowed)) == (0, {"events": 20, "ok": 20})
        assert "1 ledger is still open" in allowed.sentence
        assert not allowed.ledger["complete"]

    @pytest.mark.parametrize("options", [{}, {"allow_open": True}])
    def test_unseen_event_of_an_unclosed_ledger_is_unknown(
        self, scene: Scene, verify: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        """Its acknowledgement may be in a line that was never written."""
        scene.write_ledger(outcomes={"acked": HALF}, tail=[]).write_capture(HALF)
        verdict = verify(**options)
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 10, "unknown": 10})
        assert "10 of 20 events are unknown" in verdict.sentence

    def test_unseen_undecided_event_of_a_whole_ledger_is_missing(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        scene.write_ledger(outcomes={"acked": HALF}).write_capture(HALF)
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 10, "missing": 10})

    @pytest.mark.parametrize(
        "data", [b"", b"\n", b'{"t":"open"', files.encode_line(files.open_line(P))], ids=repr
    )
    def test_empty_ledger_file_is_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any], data: bytes
    ) -> None:
        scene.write_capture([])
        scene.ledger.mkdir()
        ledger_of(scene).write_bytes(data)
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {})
        assert verify(allow_open=True).exit_code == 0

    @pytest.mark.parametrize("without", ["batch", "ids", "outcome", "dropped", "deferred"])
    def test_lost_line_makes_holes_and_no_fault(
        self, scene: Scene, verify: Callable[..., Any], without: str
    ) -> None:
        """Whichever line it is, no event is called lost, unexpected or corrupted."""
        mine = files.body(None, "mine", user="my-own-id")
        scene.bodies[7] = mine
        del scene.bodies[13]
        events = [(seq, 1000 * seq, files.xxh64(raw)) for seq, raw in sorted(scene.bodies.items())]
        lines = [
            files.open_line(P),
            files.batch_line(events[:10], own=[7]),
            files.ids_line([(7, "my-own-id")]),
            files.batch_line(events[10:]),
            files.deferred_line([5]),
            files.dropped_line([13]),
            files.outcome_line("acked", scene.bodies),
            files.close_line(20),
        ]
        path = files.write_part(scene.ledger, P, 1, lines)
        scene.write_capture([1, 2, 3, 4, 6, 7, 8, 5, *(seq for seq in range(9, 21) if seq != 13)])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 19, "dropped": 1})
        whole = lines_of(path)
        at = next(i for i, line in enumerate(whole) if line.startswith(b'{"t":"%s"' % without.encode()))
        path.write_bytes(b"".join(whole[:at] + whole[at + 1 :]))
        verdict = verify()
        assert verdict.exit_code == 3, (verdict.sentence, verdict.problems)
        assert verdict.producers[0].ledger == "holes"
        assert verdict.counts.lost == verdict.counts.unexpected == verdict.counts.corrupted == 0

    def test_totals_show_a_lost_outcome_line(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """The acknowledgements of ten events that never arrived are lost."""
        tail = [files.close_line(20, acked=20)]
        scene.write_ledger(outcomes={"acked": HALF}, tail=tail).write_capture(HALF)
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 10, "unknown": 10})
        assert any("20 acked" in problem and "10" in problem for problem in verdict.problems)

    @pytest.mark.parametrize("word", ["acked", "handed", "failed", "dropped"])
    def test_each_total_is_compared(self, scene: Scene, verify: Callable[..., Any], word: str) -> None:
        totals = {"acked": 20} | {word: 21 if word == "acked" else 1}
        scene.write_ledger(tail=[files.close_line(20, **totals)]).write_capture()
        assert verify().exit_code == 3

    def test_sequence_without_any_line_is_unknown(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger(tail=[files.close_line((1 << 48) - 1, acked=20)]).write_capture()
        verdict = verify()
        assert verdict.exit_code == 3
        assert (verdict.counts.missing, verdict.counts.unknown) == (0, (1 << 48) - 21)

    def test_close_line_with_a_lower_last_is_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        scene.write_ledger(tail=[files.close_line(19, acked=20)]).write_capture()
        assert verify().exit_code == 3

    def test_event_of_a_lost_last_part_is_unknown(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger(tail=[]).write_capture()
        more = {21: files.body(files.event_id(P, 21), "more")}
        scene.write_capture([*ALL, *more.values()])
        verdict = verify(allow_open=True)
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20, "unknown": 1})


class TestExitCode1:
    """Exit code 1 needs proof that the promise is broken."""

    def test_events_of_a_lost_batch_line_are_unknown(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """The outcome lines show that they were acknowledged."""
        some = {seq: scene.bodies[seq] for seq in HALF}
        scene.write_ledger(bodies=some, outcomes={"acked": ALL}, tail=[files.close_line(20, acked=20)])
        scene.write_capture()
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 10, "unknown": 10})
        assert any("in no batch line" in problem for problem in verdict.problems)
        assert P in verdict.sentence

    def test_lines_after_the_close_reopen_the_ledger(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """A process that logs while it exits writes on after its close, and may be killed there."""
        some = {seq: scene.bodies[seq] for seq in HALF}
        eleventh = files.batch_line([(11, 11_000, files.xxh64(scene.bodies[11]))])
        tail = [files.outcome_line("acked", HALF), files.close_line(10), eleventh, b'{"t":"batch","se']
        scene.write_ledger(bodies=some, outcomes={}, tail=tail).write_capture(range(1, 13))
        verdict = verify()
        assert verdict.exit_code == 3
        assert counts(verdict) == {"events": 11, "ok": 10, "recovered": 1, "unknown": 1}
        assert not verdict.producers[0].closed

    def test_second_close_line_counts(self, scene: Scene, verify: Callable[..., Any]) -> None:
        tail = [files.close_line(20), files.outcome_line("acked", [20]), files.close_line(20)]
        scene.write_ledger(outcomes={"acked": range(1, 20)}, tail=tail).write_capture()
        assert verify().exit_code == 0

    @pytest.mark.parametrize("kept", [True, False])
    def test_two_ledgers_in_one_file_are_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any], kept: bool
    ) -> None:
        theirs = events_of_other_producer(scene)
        scene.write_ledger().write_ledger(producer=Q, bodies=theirs)
        ledger_of(scene).write_bytes(ledger_of(scene).read_bytes() + ledger_of(scene, Q).read_bytes())
        if not kept:
            ledger_of(scene, Q).unlink()
        scene.write_capture([*ALL, *theirs.values()])
        verdict = verify()
        assert verdict.exit_code == 3
        assert counts(verdict) == (
            {"events": 40, "ok": 40} if kept else {"events": 20, "ok": 20, "unknown": 20}
        )
        assert any("line 5" in problem and Q in problem for problem in verdict.problems), verdict.problems

    @pytest.mark.parametrize("identity", ["id", "none"])
    def test_doubled_ledger_file_is_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any], identity: str
    ) -> None:
        if identity == "none":
            scene.bodies = {seq: files.body(None, f"event {seq}") for seq in ALL}
        scene.write_ledger(identity=identity).write_capture()
        ledger_of(scene).write_bytes(2 * ledger_of(scene).read_bytes())
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20})

    @pytest.mark.parametrize("identity", ["id", "none"])
    def test_copied_part_is_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any], identity: str
    ) -> None:
        if identity == "none":
            scene.bodies = {seq: files.body(None, f"event {seq}") for seq in ALL}
        scene.write_ledger(identity=identity).write_capture()
        shutil.copy(ledger_of(scene), ledger_of(scene, part=2))
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20})
        assert any("part 1" in problem and "0002" in problem for problem in verdict.problems)

    def test_ledger_under_another_name_is_not_read(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        shutil.move(ledger_of(scene), ledger_of(scene, Q))
        verdict = verify()
        assert verdict.exit_code == 3
        assert counts(verdict) == {"unknown": 20}

    @pytest.mark.parametrize("identity", ["id", "none"])
    def test_doubled_batch_line_makes_its_events_unknown(
        self, scene: Scene, verify: Callable[..., Any], identity: str
    ) -> None:
        if identity == "none":
            scene.bodies = {seq: files.body(None, f"event {seq}") for seq in ALL}
        scene.write_ledger(identity=identity, per_batch=10).write_capture()
        whole = lines_of(ledger_of(scene))
        ledger_of(scene).write_bytes(b"".join([*whole[:2], *whole[1:]]))
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.ok) == (3, 10)
        assert verdict.counts.lost == verdict.counts.unexpected == 0
        assert any("more than one batch line" in problem for problem in verdict.problems)

    @pytest.mark.parametrize("name", ["{}.gz", "a/b/{}.gz", "old-{}", "{}~", "link"])
    def test_events_of_unread_ledgers_are_unknown(
        self, scene: Scene, verify: Callable[..., Any], name: str
    ) -> None:
        """They match no ledger that is read, and may well have been sent."""
        theirs = events_of_other_producer(scene)
        scene.write_ledger().write_ledger(producer=Q, bodies=theirs)
        scene.write_capture([*ALL, *theirs.values()])
        path = scene.ledger / name.format(ledger_of(scene, Q).name)
        if name == "link":
            ledger_of(scene, Q).rename(scene.ledger.parent / "elsewhere")
            ledger_of(scene, Q).symlink_to(scene.ledger.parent / "elsewhere")
            path = ledger_of(scene, Q)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            ledger_of(scene, Q).rename(path)
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20, "unknown": 20})
        assert any(path.name in problem for problem in verdict.problems), verdict.problems
        assert (verdict.ledger["unread"], verdict.ledger["complete"]) == (1, False)
        assert "not read" in verdict.sentence

    def test_other_files_are_no_unread_ledgers(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        (scene.ledger / "note.txt").write_text("hello")
        (scene.ledger / "logs").mkdir()
        (scene.ledger / "logs" / "more.txt").write_text("hello")
        assert verify().exit_code == 0

    def test_copy_of_an_unlisted_event_with_a_shared_id(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """The line of one event is lost: its copy is not taken for the other one."""
        first, second = (files.body(None, text, user="same") for text in ("one", "two"))
        events = [(1, 1000, files.xxh64(first)), (2, 2000, files.xxh64(second))]
        lines = [
            files.open_line(P),
            files.batch_line(events[:1], own=[1]),
            files.ids_line([(1, "same")]),
            files.outcome_line("acked", [1]),
        ]
        files.write_part(scene.ledger, P, 1, lines)
        scene.write_capture([first, second])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 1, "unknown": 1, "duplicated": 1})

    def test_doubled_ids_line_is_one_event(self, scene: Scene, verify: Callable[..., Any]) -> None:
        raw = files.body(None, "one", user="mine")
        ids = files.ids_line([(1, "mine")])
        lines = [files.open_line(P), files.batch_line([(1, 1000, files.xxh64(raw))], own=[1]), ids, ids]
        files.write_part(scene.ledger, P, 1, [*lines, files.outcome_line("acked", [1])])
        scene.write_capture([raw])
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 1, "ok": 1})

    def test_order_in_a_ledger_with_holes_is_exit_code_3(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        scene.write_ledger(extra=[b"damage\n"]).write_capture([2, 1, *range(3, 21)])
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.reordered) == (3, 1)

    def test_undecided_event_is_not_reordered(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """It may have been deferred where the ledger ends."""
        scene.write_ledger(outcomes={"acked": range(2, 21)}, tail=[]).write_capture([*range(2, 21), 1])
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.reordered) == (3, 0)

    def test_fault_is_found_in_an_unclosed_ledger(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """What the ledger does say counts."""
        scene.write_ledger(tail=[]).write_capture([1, 3, 2, *range(5, 21)])
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.lost, verdict.counts.reordered) == (1, 1, 1)
        assert P in verdict.sentence

    def test_unlisted_failed_event_that_arrived_is_unknown(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        some = {seq: scene.bodies[seq] for seq in range(1, 20)}
        scene.write_ledger(bodies=some, outcomes={"acked": range(1, 20), "failed": [20]}, tail=[
            files.close_line(20, acked=19, failed=1)
        ]).write_capture()  # fmt: skip
        verdict = verify()
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 19, "unknown": 1})


class DriverRows:
    """Bytes that the tasks of the second stage return to the driver, for each kind of row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[str, int] = {}
        take = tallies.Tally.add_row

        def watched(tally: Any, row: dict[str, Any]) -> None:
            size = len(row["head"]) + len(row["keys"]) + len(row["values"])
            self.of[row["kind"]] = self.of.get(row["kind"], 0) + size
            take(tally, row)

        monkeypatch.setattr(tallies.Tally, "add_row", watched)


@pytest.mark.parametrize(("events", "buckets"), [(20, 1), (120, 2)])
def test_driver_gets_no_arrivals(
    scene: Scene, verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, events: int, buckets: int
) -> None:
    """It gets some numbers of each task, however many events are in order."""
    bodies = {}
    names = [f"{i:020x}" for i in range(1, 21)]
    for name in names:
        bodies[name] = {s: files.body(files.event_id(name, s), "x") for s in range(1, events + 1)}
        scene.write_ledger(producer=name, bodies=bodies[name])
    scene.write_capture([raw for mine in bodies.values() for raw in mine.values()], size=50)
    rows = DriverRows(monkeypatch)
    verdict = verify(bits=6, task_places=1)
    assert counts(verdict) == {"events": 20 * events, "ok": 20 * events}
    assert rows.of.get("order", 0) <= 20 * buckets * 100
    assert ("order" in rows.of) is (buckets > 1)
