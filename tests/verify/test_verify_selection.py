"""The selection of one time, or of some runs, out of evidence that has more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Q, Scene
from tests.verify.histories import World, differences, overview_differences

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
counts = inprocess.counts
report = pytest.importorskip("logclient.verify.report")
arrival_rows = pytest.importorskip("logclient.verify.arrival_rows")

R = "0c" * 10
ALL = list(range(1, 21))


@pytest.fixture
def verify(scene: Scene) -> Callable[..., Any]:
    def run(**options: Any) -> Any:
        return inprocess.run(scene.ledger, scene.capture, out=scene.out, **options)

    return run


def bodies_of(producer: str, seqs: Any = ALL) -> dict[int, bytes]:
    return {seq: files.body(files.event_id(producer, seq), f"event {seq}") for seq in seqs}


def alive(at_us: int, waiting: int = 0) -> dict[str, Any]:
    return {"t": "alive", "at_us": at_us, "waiting": waiting}


class TestTime:
    """The events of a scene are made in milliseconds 1 to 20, and received from millisecond 50 on."""

    def test_only_events_of_the_time_are_judged(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Everything is lost, but only what was made from 5 ms to 10 ms counts."""
        scene.write_ledger(at_us=1).write_capture([1, 2, 5])
        verdict = verify(since=0.005, until=0.010)
        assert (verdict.exit_code, counts(verdict)) == (1, {"events": 5, "ok": 1, "lost": 4})
        assert inprocess.found(scene.out)["lost"] == {(P, seq) for seq in (6, 7, 8, 9)}
        assert verdict.selection == {
            "since_us": 5000, "until_us": 10_000, "runs": [],
            "left_out": {"producers": 0, "events": 15, "without_id": 0},
        }  # fmt: skip
        assert verdict.to_json()["selection"] == verdict.selection

    def test_bounds(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """An event made at `since` is selected, and one made at `until` is not."""
        scene.write_ledger().write_capture()
        assert verify(since=0.020).counts.events == 1
        assert verify(until=0.002).counts.events == 1
        assert verify(since=0.002, until=0.003).counts.events == 1
        assert verify().selection is None

    def test_words_of_the_verdict_name_the_time(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        verdict = verify(since="1970-01-01T01:00:00.005+01:00", until=0.010)
        words = "events made from 1970-01-01T00:00:00.005000Z to 1970-01-01T00:00:00.010000Z"
        assert verdict.sentence == f"The promise holds: 5 of 5 {words} arrived intact."
        assert f"selected: {words}; 15 others are left out" in report.text(verdict)
        assert f"{words}; 15 others are left out" in report.page(verdict)
        assert "made since 1970" in verify(since=0.010).sentence
        assert "made until 1970" in verify(until=0.010).sentence
        assert "made" not in verify().sentence

    def test_without_selection_no_event_is_looked_up(
        self, scene: Scene, verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.write_ledger().write_capture()
        looked_up = []
        monkeypatch.setattr(arrival_rows.BucketWriter, "_outside", lambda *_: looked_up.append(1))
        assert verify().counts.ok == 20
        assert not looked_up
        verify(since=0)
        assert looked_up

    @pytest.mark.parametrize("never", [[], [0]])
    def test_ledger_of_a_later_time_need_not_be_whole(
        self, scene: Scene, verify: Callable[..., Any], never: list[int]
    ) -> None:
        """It was begun before, but all its events are made later: sequence 0 is left out with them."""
        theirs = bodies_of(Q, [1, 2, 3])
        later = {"created": lambda seq: 15_000 + seq, "tail": [b"damage\n"]}
        scene.write_ledger(producer=Q, bodies=theirs, at_us=1, **later)
        scene.write_ledger().write_capture([*ALL, *theirs.values(), *bodies_of(Q, never).values()])
        verdict = verify(until=0.010)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 9, "ok": 9})
        assert verdict.selection["left_out"]["producers"] == 1
        assert verify(until=0.016).exit_code == (1 if never else 3)

    def test_ledger_of_which_nothing_is_judged_need_not_be_whole(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """The only events of the selected time share an id, and the others are made later."""
        raw = files.body(None, "one", user="same")
        events = [(1, 1000, files.xxh64(raw)), (2, 2000, files.xxh64(raw)), (3, 15_000, 3)]
        lines = [files.open_line(Q), files.batch_line(events, own=[1, 2]), b"damage\n"]
        lines += [files.ids_line([(1, "same"), (2, "same")]), files.outcome_line("acked", [1, 2])]
        files.write_part(scene.ledger, Q, 1, lines)
        scene.write_ledger().write_capture([*ALL, raw])
        verdict = verify(until=0.010)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 9, "ok": 9})
        assert verify(until=0.016).exit_code == 3

    @pytest.mark.parametrize("tail", [[], [b"damage\n"], [{"t": "stopped", "reason": "no space"}]])
    def test_damage_of_a_ledger_that_is_left_out_is_not_forgotten(
        self, scene: Scene, verify: Callable[..., Any], tail: list[Any]
    ) -> None:
        """What was damaged may be the line that lists the id of an arrival."""
        stranger, close = files.body(None, "late", user="order 17"), files.close_line(2) | {"at_us": 4_000}
        scene.write_ledger(producer=Q, bodies=bodies_of(Q, [1, 2]), at_us=1, tail=[*tail, close])
        scene.write_ledger().write_capture([*ALL, *bodies_of(Q, [1, 2]).values(), stranger])
        verdict = verify(since=0.005)
        word, code = ("unknown", 3) if tail else ("unexpected", 1)
        assert counts(verdict) == {"events": 16, "ok": 16, word: 1}
        assert verdict.exit_code == code
        assert verdict.selection["left_out"]["producers"] == 1

    def test_nothing_selected_is_said(self, scene: Scene, verify: Callable[..., Any]) -> None:
        scene.write_ledger().write_capture()
        verdict = verify(since=1.0)
        assert (verdict.exit_code, counts(verdict), verdict.producers) == (3, {}, ())
        words = "the ledgers have no events made since 1970-01-01T00:00:01Z"
        assert verdict.sentence == f"The promise is unproven: {words}."
        assert verdict.problems == (f"selection: {words}",)

    def test_late_arrival_is_an_arrival(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """All events arrive after the end of the selected time."""
        scene.write_ledger().write_capture(list(range(1, 11)))
        verdict = verify(until=0.011)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 10, "ok": 10})

    def test_left_out_events_have_no_faults(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Before and after: copies, changed bodies, a wrong order, sequences that were never sent."""
        wrong = [files.body(files.event_id(P, seq), "changed") for seq in (2, 18)]
        never = [files.body(files.event_id(P, seq), "never") for seq in (0, 21, 40)]
        scene.write_ledger(at_us=500, tail=[files.close_line(20) | {"at_us": 21_000}])
        scene.write_capture([3, 1, *wrong, 1, *range(5, 16), 20, 19, 20, *never])
        verdict = verify(since=0.005, until=0.016)
        # Nothing says that 21 and 40 were made after 20, but sequences behind an event have its place.
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 11, "ok": 11})
        assert inprocess.found(scene.out) == {}
        assert verify().exit_code == 1

    @pytest.mark.parametrize(
        ("since", "until", "dropped"),
        [(0.002, 0.008, 3), (0.009, None, 4), (0.005, 0.009, 3), (None, 0.004, 0)],
    )
    def test_unlisted_sequences_have_the_place_of_their_neighbours(
        self, scene: Scene, verify: Callable[..., Any], since: float | None, until: float | None, dropped: int
    ) -> None:
        """5 to 7 are dropped between 4 and 8, and 21 to 24 behind 20."""
        gone = [5, 6, 7, 21, 22, 23, 24]
        some = {seq: raw for seq, raw in scene.bodies.items() if seq not in gone}
        tail = [files.dropped_line(gone), files.close_line(24, acked=17, dropped=7) | {"at_us": 30_000}]
        scene.write_ledger(bodies=some, outcomes={"acked": sorted(some)}, tail=tail)
        scene.write_capture(sorted(some))
        verdict = verify(since=since, until=until)
        assert verdict.counts.dropped == dropped
        assert verdict.exit_code == 0

    def test_sequences_between_before_and_after_are_selected(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """Nothing is listed in the selected time, but what was dropped may have been made there."""
        some = {1: scene.bodies[1], 4: scene.bodies[4]}
        tail = [files.dropped_line([2, 3]), files.close_line(4, acked=2, dropped=2)]
        scene.write_ledger(bodies=some, outcomes={"acked": [1, 4]}, tail=tail).write_capture([1, 4])
        assert counts(verify(since=0.002, until=0.003)) == {"events": 2, "dropped": 2}

    @pytest.mark.parametrize(("since", "dropped"), [(0.0, 0), (1.0, 2), (2.0, 0), (3.0, 2), (4.0, 0)])
    def test_sequences_at_which_a_clock_was_set_back_have_both_places(
        self, scene: Scene, verify: Callable[..., Any], since: float, dropped: int
    ) -> None:
        some = {1: scene.bodies[1], 4: scene.bodies[4]}
        tail = [files.dropped_line([2, 3]), files.close_line(4, acked=2, dropped=2) | {"at_us": 1_900_000}]
        made = {1: 3_500_000, 4: 1_500_000}
        scene.write_ledger(
            bodies=some, outcomes={"acked": [1, 4]}, created=made.get, at_us=3_400_000, tail=tail
        )
        scene.write_capture([1, 4])
        assert verify(since=since, until=since + 1.0).counts.dropped == dropped

    def test_old_closed_ledger_does_not_count(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """It has holes, but it was closed before the selected time."""
        scene.write_ledger(tail=[b"damage\n", files.close_line(20) | {"at_us": 21_000}])
        later = bodies_of(Q)
        scene.write_ledger(producer=Q, bodies=later, created=lambda seq: 2_000_000 + seq, at_us=1_999_999)
        scene.write_capture([*ALL, *later.values()])
        assert verify().exit_code == 3
        verdict = verify(since=1.0)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
        assert [x.producer for x in verdict.producers] == [Q]
        assert verdict.selection["left_out"] == {"producers": 1, "events": 20, "without_id": 0}
        assert verdict.ledger["complete"] and verdict.ledger["producers"] == 1
        verdict = verify(until=1.0)
        assert (verdict.exit_code, [x.producer for x in verdict.producers]) == (3, [P])

    def test_open_ledger_that_goes_on_needs_no_allow_open(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        scene.write_ledger(tail=[]).write_capture()
        assert verify().exit_code == 3
        verdict = verify(until=0.011)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 10, "ok": 10})
        assert "open" not in verdict.sentence
        # Nothing shows that this one had made all its events by then.
        assert verify(until=1.0).exit_code == 3

    def test_unassigned_events_are_selected_by_their_arrival(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """Received in milliseconds 51 to 54: an id of another producer, two of an application, and none."""
        foreign = [files.body(files.event_id(Q, 1), "x"), files.body(None, "x", user="y")]
        foreign += [files.body(None, "x", user="z"), files.body(None, "x")]
        scene.write_ledger(tail=[files.close_line(20) | {"at_us": 1_000_000}])
        scene.write_capture([*ALL, *foreign], size=1, received=lambda unit: 1000 * (unit + 31))
        assert verify().counts.unexpected == 4
        assert verify(since=0.052).counts.unexpected == 2
        assert verify(until=0.052).counts.unknown == 1  # a client may have made this id
        assert verify(since=0.054, until=0.055).counts.unexpected == 0

    def test_events_without_ids_are_left_out(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Two events with one body: the first one arrived after the selected time, the second one failed."""
        raw = files.body(None, "the same")
        scene.write_ledger(
            bodies={1: raw, 2: raw},
            identity="none",
            created=lambda seq: 2_000_000 * seq - 1_000_000,
            outcomes={"acked": [1], "failed": [2]},
            tail=[files.close_line(2) | {"at_us": 4_000_000}],
        )
        named = bodies_of(Q)
        scene.write_ledger(producer=Q, bodies=named)
        scene.write_capture([*named.values(), raw], received=lambda unit: 2_500_000)
        assert verify().exit_code == 0
        for options in ({"until": 2.0}, {"until": 3.5}, {"since": 0}):
            verdict = verify(**options)
            assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
            assert [x.producer for x in verdict.producers] == [Q]
            assert verdict.selection["left_out"] == {"producers": 1, "events": 2, "without_id": 2}
            [line] = [line for line in report.text(verdict).splitlines() if "have no id of their own" in line]
            assert "2 because they" in line

    def test_events_that_share_an_id_are_left_out(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Events 1 and 2 have one id, 3 is outside the time as well; nothing of them arrived."""
        bodies = {seq: files.body(None, f"event {seq}", user="order") for seq in (1, 2, 3)}
        bodies |= {4: scene.bodies[4], 5: scene.bodies[5]}
        events = [(seq, 1000 * seq, files.xxh64(raw)) for seq, raw in bodies.items()]
        files.write_part(
            scene.ledger, P, 1,
            [
                files.open_line(P), files.batch_line(events, own=(1, 2, 3)),
                files.ids_line([(seq, "order") for seq in (1, 2, 3)]),
                files.outcome_line("acked", bodies), files.close_line(5),
            ],
        )  # fmt: skip
        # Strangers with the id or the body of such an event are left out; one with another id is not.
        same = [files.body(None, "else", user="order"), bodies[2], files.body(None, "stranger")]
        scene.write_capture([4, 5, *same])
        assert verify().exit_code == 1
        verdict = verify(until=0.003)
        assert (verdict.exit_code, counts(verdict)) == (3, {})
        verdict = verify(since=0.003)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 2, "ok": 2})
        assert verdict.selection["left_out"] == {"producers": 0, "events": 3, "without_id": 3}
        scene.write_capture([4, 5, *same, files.body(None, "else", user="another")])
        verdict = verify(since=0.003)
        assert counts(verdict) == {"events": 2, "ok": 2, "unexpected": 1}

    def test_body_of_an_event_without_id_is_no_stranger(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """It arrives with a foreign id, in a run of its own, whose segments so belong to the ledgers."""
        raw = files.body(files.event_id(R, 1), "the same")
        scene.write_ledger().write_ledger(producer=Q, bodies={1: raw}, identity="none")
        scene.write_capture(end="resumed", run="one")
        units = [(files.window([raw]), 0, 90_000)]
        files.write_segments(scene.capture, "main", units, run="two", first=2, arrival=11)
        verdict = verify(since=0)
        assert (verdict.exit_code, counts(verdict)) == (0, {"events": 20, "ok": 20})
        assert [x["ours"] for x in verdict.capture["runs"]] == [True, True]

    def test_pending_needs_no_allow_open(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """An open ledger does not list 21 yet, which may have been made after the selected time."""
        raw = files.body(files.event_id(P, 21), "new")
        scene.write_ledger(tail=[]).write_capture([*ALL, raw])
        verdict = verify(until=1.0)
        assert (verdict.exit_code, counts(verdict)) == (3, {"events": 20, "ok": 20, "pending": 1})
        assert verify(until=1.0, allow_open=True).exit_code == 3, "it has no line of that time"
        assert verify(since=0.001, allow_open=True).counts.unknown == 1
        scene.write_ledger(tail=[alive(1_000_000)])
        verdict = verify(until=1.0)
        assert verdict.exit_code == 0 and "1 pending" in verdict.sentence

    def test_open_ledger_must_have_a_line_of_the_end(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Otherwise its last lines may not be copied yet, or its process may not run any more."""
        scene.write_ledger(tail=[alive(999_999)]).write_capture()
        for allow_open in (False, True):
            verdict = verify(until=1.0, allow_open=allow_open)
            assert verdict.exit_code == 3
            assert "was not closed; its last line is of 1970-01-01T00:00:00.999999Z" in verdict.sentence
        scene.write_ledger(tail=[alive(1_000_000)])
        assert verify(until=1.0).exit_code == verify(allow_open=True).exit_code == 0
        scene.write_ledger(tail=[alive(1_000_000, waiting=3)])
        verdict = verify(until=1.0, allow_open=True)
        assert verdict.exit_code == 3 and "when 3 events waited" in verdict.sentence

    def test_ledger_of_a_killed_process_has_all_its_lines(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """So later times need no line of it, and nothing that it does not list is an event of it."""
        raw = files.body(files.event_id(P, 21), "never made")
        scene.write_ledger(tail=[alive(999_999, waiting=3), {"t": "ended", "at_us": 1_000_000}])
        scene.write_capture()
        assert verify(until=9000.0).exit_code == verify(allow_open=True).exit_code == 0
        verdict = verify()
        assert verdict.exit_code == 3 and "its process was killed" in verdict.sentence
        scene.write_capture([*ALL, raw])
        assert verify(until=1.0).counts.unexpected == 1
        scene.write_ledger(outcomes={"acked": range(1, 20)}, tail=[{"t": "ended", "at_us": 1_000_000}])
        scene.write_capture(range(1, 20))
        assert counts(verify(until=0.0195)) == {"events": 19, "ok": 19}
        assert counts(verify(until=1.0)) == {"events": 20, "ok": 19, "unknown": 1}

    def test_part_that_follows_is_missing(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """The last line of a part says that another one follows, which may list any later event."""
        scene.write_ledger(tail=[{"t": "continued", "at_us": 1_000_000}]).write_capture()
        verdict = verify(allow_open=True)
        assert verdict.exit_code == 3 and f"{P}-0002.ledger, which is not here" in verdict.sentence
        assert verify(until=1.0).exit_code == 0
        assert verify(until=1.000001, allow_open=True).exit_code == 3
        lines = [files.open_line(P, 2), files.close_line(20, acked=20)]
        files.write_part(scene.ledger, P, 2, lines)
        assert verify().exit_code == 0

    def test_event_that_arrived_before_the_end_is_not_pending(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """It cannot be made after the selected time; clocks may differ by ten seconds."""
        more = [files.body(files.event_id(P, seq), "new") for seq in (21, 5000)]
        scene.write_ledger(tail=[]).write_capture([*ALL, *more], size=1)  # at 50.020 and 50.021 ms
        found = [verify(until=until).counts for until in (10.050020, 10.050021, 10.050022)]
        assert [(x.pending, x.unknown) for x in found] == [(2, 0), (1, 1), (0, 2)]

    @pytest.mark.parametrize("seq", [10, 21, 5000])
    def test_event_that_arrived_before_a_line_of_its_ledger_is_unexpected(
        self, scene: Scene, verify: Callable[..., Any], seq: int
    ) -> None:
        """An event is listed before it is sent, so an open ledger lacks none of those; nor do others."""
        some = {s: raw for s, raw in scene.bodies.items() if s != seq}
        arrived = [*some, files.body(files.event_id(P, seq), "never made")]
        at_us = 10_050_000 + len(arrived) - 1
        scene.write_ledger(bodies=some, tail=[alive(at_us)]).write_capture(arrived, size=1)
        scene.write_ledger(producer=Q, bodies={}, tail=[])
        verdict = verify(allow_open=True)
        assert (verdict.exit_code, verdict.counts.unexpected) == (1, 1)
        scene.write_ledger(bodies=some, tail=[alive(at_us - 1)])
        assert verify(allow_open=True).counts.unknown == 1

    def test_ledger_that_is_not_copied_yet_is_no_fault(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """Nobody knows of a producer that has just begun but by its events. Other ids are unexpected."""
        scene.write_ledger().write_capture([*ALL, files.body(files.event_id(R, 1), "x")])
        assert verify().counts.unexpected == 1
        verdict = verify(until=1.0)
        assert (verdict.exit_code, verdict.counts.unknown) == (3, 1)
        assert any(f"{R}-0001.ledger is not here" in problem for problem in verdict.problems)
        scene.write_capture([*ALL, files.body("0123456789abcdef" * 2, "x")])
        assert verify(until=1.0).counts.unexpected == 1

    def test_id_of_no_ledger_is_unexpected_once_all_have_later_lines(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """The ledger of any producer may list the id of an application."""
        raws = [files.body(files.event_id(R, 1), "x"), files.body(None, "y", user="y")]
        scene.write_ledger().write_capture([*ALL, *raws], size=1)
        scene.write_ledger(producer=Q, bodies={}, tail=[alive(10_050_020)])
        counts = verify(allow_open=True).counts
        assert (counts.unexpected, counts.unknown) == (1, 1)
        scene.write_ledger(producer=Q, bodies={}, tail=[alive(10_050_021)])
        assert verify(allow_open=True).counts.unexpected == 2

    def test_undecided_event_made_before_the_time_is_not_pending(
        self, scene: Scene, verify: Callable[..., Any]
    ) -> None:
        """The last one that the open ledger lists: it is not newer than the selected time."""
        scene.write_ledger(outcomes={"acked": range(1, 20)}, tail=[]).write_capture(range(1, 20))
        assert counts(verify(until=1.0)) == {"events": 20, "ok": 19, "unknown": 1}

    @pytest.mark.parametrize("line", [{"t": "stopped", "reason": "No space left"}, b"damage\n"])
    def test_damaged_ledger_has_no_pending_events(
        self, scene: Scene, verify: Callable[..., Any], line: Any
    ) -> None:
        raw = files.body(files.event_id(P, 21), "new")
        scene.write_ledger(tail=[line]).write_capture([*ALL, raw])
        verdict = verify(until=1.0, allow_open=True)
        assert (verdict.exit_code, verdict.counts.pending, verdict.counts.unknown) == (3, 0, 1)

    def test_damage_before_the_time_is_no_doubt(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """The second segment begins at 52 ms; the first one has damage."""
        scene.write_ledger(created=lambda seq: 100_000 + 1000 * seq)
        scene.write_capture(ALL[:19], received=lambda unit: 50_000 + 50_000 * unit, per_segment=4)
        path = scene.capture / "main-000001.cap"
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
        assert verify().counts.unknown
        assert verify(since=0.111).counts.unknown
        scene.write_ledger(created=lambda seq: 200_000 + 1000 * seq)
        verdict = verify(since=0.2)
        assert (verdict.counts.unknown, verdict.counts.lost) == (0, 1)
        assert any("damage" in problem for problem in verdict.problems)

    def test_run_of_another_time_is_no_doubt(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """The first run has only events of a producer without a ledger, received before the selected time."""
        scene.write_capture([*bodies_of(Q).values()], run="one", end="resumed")
        units = [(files.window([scene.bodies[seq]]), 0, 90_000 + seq) for seq in ALL]
        files.write_segments(scene.capture, "main", units, run="two", first=2, arrival=11)
        scene.write_ledger(created=lambda seq: 70_000 + seq)
        verdict = verify()
        assert (verdict.exit_code, verdict.counts.unknown) == (3, 20)
        verdict = verify(since=0.070)
        assert (verdict.exit_code, counts(verdict), verdict.problems) == (0, {"events": 20, "ok": 20}, ())

    @pytest.mark.parametrize("since", ["@0.005", 0.005, "1970-01-01T00:00:00.005", "19700101T000000.005Z"])
    def test_forms_of_a_time(self, scene: Scene, verify: Callable[..., Any], since: float | str) -> None:
        scene.write_ledger().write_capture()
        assert verify(since=since).counts.events == 16

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"until": "yesterday"}, "until: 'yesterday' must be a time such as 2026-05-01T12:00:00Z"),
            ({"since": "12:00"}, "since: '12:00'"),
            ({"until": float("nan")}, "until"),
            ({"since": "1e99"}, "since"),
            ({"since": "@1e9"}, "since"),
            ({"since": "@99999999999999"}, "since"),
            ({"since": "@" + "9" * 5000}, "since"),
            ({"since": 10**400}, "since"),
            ({"until": "20260501"}, "until: '20260501' is a number alone: .*@1767225600"),
            ({"until": "2026"}, "until: '2026' is a number alone"),
            ({"since": "1700000000.5"}, "since: '1700000000.5' is a number alone: .*@1767225600"),
            ({"since": " 2026 "}, "since: ' 2026 ' is a number alone"),
            ({"since": "-1"}, "since: '-1' is a number alone"),
            ({"since": 2, "until": 2}, "since: it must be before until"),
        ],
    )
    def test_wrong_time_is_a_config_error(
        self, scene: Scene, verify: Callable[..., Any], options: dict[str, Any], words: str
    ) -> None:
        scene.write_ledger().write_capture()
        with pytest.raises(ConfigError, match=words):
            verify(**options)
        assert not scene.out.exists()


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "users": {"users": 0.2},
    "anonymous": {"anonymous": 0.3, "users": 0.05},
    "whole": {"whole": True, "anonymous": 0.1},
    "unclosed": {"unclosed": "b", "anonymous": 0.1},
}
SELECTIONS: dict[str, dict[str, Any]] = {
    "since": {"since": 1.3},
    "until": {"until": 1.2},
    "both": {"since": 1.0, "until": 1.9},
    "open": {"since": 0.9, "until": 1.7, "allow_open": True},
    "more": {"since": 0.7, "until": 2.2},
}


def assert_equals_reference(world: World, verdict: Any, out: Path, options: dict[str, Any]) -> None:
    micro = {name: round(options[name] * 1e6) for name in ("since", "until") if name in options}
    expected = world.expected(**micro, allow_open=options.get("allow_open", False))
    found = {
        word: {event for event in events if event[0] in expected.counts}
        for word, events in inprocess.found(out).items()
    }
    wrong = differences(expected, verdict, found) + overview_differences(expected, verdict)
    left_out = {
        "producers": sum(not mine.selected for mine in expected.facts.values()),
        "events": sum(mine.left_out for mine in expected.facts.values()),
        "without_id": expected.without_id,
    }
    if verdict.selection["left_out"] != left_out:
        wrong.append(f"left out: {verdict.selection['left_out']}, the reference has {left_out}")
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:20])
    assert verdict.counts.events and left_out["events"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_random_histories_equal_the_reference(tmp_path: Path, kind: str, selection: str) -> None:
    options = SELECTIONS[selection]
    seed = 100 * [*KINDS].index(kind) + [*SELECTIONS].index(selection)
    world = World(seed, 60, runs=("r1", "r2", "r3"), **KINDS[kind])
    ledger, capture = world.write(tmp_path, segments=6)
    out = tmp_path / "out"
    bits, task_places = ((2, 1), (3, 4096), (4, 1), (9, 0))[seed % 4]
    verdict = inprocess.run(ledger, capture, out=out, bits=bits, task_places=task_places, units=7, **options)
    assert_equals_reference(world, verdict, out, options)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("selection", ["both", "more"])
def test_random_histories_on_spark_equal_the_reference(spark: Any, tmp_path: Path, selection: str) -> None:
    options = SELECTIONS[selection]
    world = World(7, 200, runs=("r1", "r2", "r3"), anonymous=0.1, users=0.1)
    ledger, capture = world.write(tmp_path, segments=6)
    for name, together in (("tasks", 0), ("one task", 1 << 30)):
        out = tmp_path / name
        tuning = Tuning(3, 1 << 15, 500, together_bytes=together)
        verdict = job.run(ledger, capture, out=out, spark=spark, tuning=tuning, **options)
        assert_equals_reference(world, verdict, out, options)
