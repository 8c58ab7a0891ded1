"""The nemesis: its parts, a short run, and the schedules that once failed."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient._ext.spool import SUPPORTED
from logclient.testing.faults import DATA_FAULTS, Faults
from tests.nemesis import judge, mutants, schedule
from tests.nemesis.__main__ import STORED, schemes, seeds
from tests.nemesis.batch import Batch, summary
from tests.nemesis.judge import Result
from tests.nemesis.scene import Life, Strike
from tests.nemesis.schedule import (
    LANES,
    LINK,
    LONG,
    SHORT,
    Fault,
    Schedule,
    kinds_of,
    make,
    with_link,
    with_spool,
)
from tests.nemesis.shrink import ENOUGH, RUNS, fails, shrink
from tests.support import ROOT
from tests.support.networks import why_not

pytestmark = pytest.mark.slow

SPOOL_SEEDS = (2, 8, 3)
"""Of the short form: with `always`, and with `overflow`."""

LINK_SEEDS = (0, 4)
"""Of the short form: flows that are forgotten, and one way that is cut."""

SEEDS = (22, 9, 17, 6, 4, 7, 5)
"""Of the short form: one for each lane."""

STORED_SCHEDULES = sorted(STORED.glob("*.json"))


class TestSchedule:
    def test_a_seed_determines_the_schedule(self) -> None:
        assert [make(seed) for seed in range(20)] == [make(seed) for seed in range(20)]
        assert len({make(seed).text() for seed in range(20)}) == 20

    def test_a_saved_schedule_is_read_back(self, tmp_path: Path) -> None:
        for seed in range(20):
            made = make(seed, SHORT)
            made.save(tmp_path / "schedule.json")
            assert Schedule.load(tmp_path / "schedule.json") == made

    @pytest.mark.parametrize("lane", LANES)
    def test_every_kind_of_fault_strikes_its_lanes(self, lane: str) -> None:
        made = [s for s in map(make, range(1, 101)) if s.lane == lane]
        assert {fault.kind for s in made for fault in s.faults} == set(kinds_of(lane))

    def test_every_tenth_schedule_exhausts_descriptors_longer(self) -> None:
        for seed in range(1, 101):
            long = [f for f in make(seed).faults if f.kind == "descriptors" and f.seconds == LONG.exhausted]
            assert len(long) == (seed % 10 == 0)

    def test_collectors_know_the_scheduled_faults(self) -> None:
        for seed in range(1, 101):
            made = make(seed)
            given = Faults(made.injected, made.lane.partition("+")[0])
            changes = [fault.name for fault in given.faults if fault.name in DATA_FAULTS]
            assert changes == [], "what is acknowledged is kept"

    def test_schedules_use_the_given_schemes_in_turn(self) -> None:
        given = schemes("logux,lumberjack+tls")
        assert [make(seed, LONG, given).lane for seed in range(4)] == 2 * given
        with pytest.raises(argparse.ArgumentTypeError, match="lumbermill: known are lumberjack, logjam,"):
            schemes("logux,lumbermill")

    def test_a_spool_changes_only_what_it_adds(self) -> None:
        for seed in range(1, 101):
            made = make(seed)
            spooled = with_spool(made)
            assert with_spool(make(seed)) == spooled
            assert set(made.faults) <= set(spooled.faults)
            assert made.options.items() <= spooled.options.items()
            assert {fault.kind for fault in set(spooled.faults) - set(made.faults)} == {"kill-producer"}

    def test_spools_have_all_modes_and_some_small_disks(self) -> None:
        plans = [with_spool(make(seed)) for seed in range(1, 101)]
        ways = {(plan.options["spool_mode"], plan.options["spool_sync"]) for plan in plans}
        assert len(ways) == 4
        assert 5 < sum(plan.disk > 0 for plan in plans) < 40
        assert all(plan.spooled for plan in plans)
        assert 20 < sum(plan.durable for plan in plans) < 80

    def test_a_link_adds_faults_and_bounds_events(self) -> None:
        plans = [(make(seed), with_link(make(seed))) for seed in range(1, 101)]
        for made, linked in plans:
            assert with_link(made) == linked
            assert linked.events <= made.events
            most = {fault: min(fault.amount, linked.events) for fault in made.faults if fault.kind == "burst"}
            kept = {fault._replace(amount=most.get(fault, fault.amount)) for fault in made.faults}
            assert kept <= set(linked.faults)
            assert {fault.kind for fault in set(linked.faults) - kept} <= set(LINK)
        assert {fault.kind for _, linked in plans for fault in linked.faults} >= set(LINK)

    def test_lists_of_seeds_are_read(self) -> None:
        assert seeds("3,7,20-22") == [3, 7, 20, 21, 22]


def life(**known: Any) -> Life:
    report = {
        "snapshots": 1, "wrong": [], "left": 0, "stuck": [], "callbacks": [1, 1], "untold": 0,
        "children": [], "descriptors": 0, "threads": ["MainThread"], "clients": [],
    }  # fmt: skip
    report |= {name: known.pop(name) for name in list(known) if name in report}
    life = Life("one-1", 1, 0, False, 0, 0, "", report, Path("nothing"))
    return life._replace(**known)


class TestJudge:
    """A process that ended as planned has violated nothing; each of these cases is a violation."""

    plan = make(1, SHORT)._replace(ending="close")
    client = {"failed": {}, "ledger_error": "", "last_error": ""}

    def test_an_orderly_end_is_no_violation(self) -> None:
        assert judge.of_process(life(), self.plan) == []
        assert judge.of_process(life(code=-9, killed=True, report=None), self.plan) == []
        assert judge.of_process(life(clients=[{**self.client, "failed": {"closed": 3}}]), self.plan) == []

    @pytest.mark.parametrize(
        "known",
        [
            {"code": 1},
            {"code": None},
            {"said": "Traceback (most recent call last):"},
            {"rss": 1 << 30},
            {"descriptors": 10_000},
            {"left": 1},
            {"wrong": ["counts do not add up"]},
            {"stuck": ["send"]},
            {"callbacks": [2, 1]},
            {"untold": 1},
            {"report": None},
            {"threads": ["MainThread", "logclient-sender"]},
            {"children": [{"pid": 2, "how": "close", "status": 1}]},
            {"children": [{"pid": 2, "how": "exit", "status": "hangs"}]},
            {"clients": [{**client, "failed": {"poison": 1}}]},
            {"clients": [{**client, "ledger_error": "too many open files"}]},
        ],
    )
    def test_each_violation_is_found(self, known: dict[str, Any]) -> None:
        assert len(judge.of_process(life(**known), self.plan)) == 1

    def test_a_strike_hits_events_in_flight_at_its_time(self, tmp_path: Path) -> None:
        ms = 1_000_000
        samples = tmp_path / "samples"
        taken = [(10, "0 0 5"), (20, "3 0 5"), (30, "0 2 8"), (40, "0 0 8")]
        samples.write_text("".join(f"{at * ms} {rest}\n" for at, rest in taken) + "50 0 0")
        lives = [life(samples=samples)]
        strikes = [Strike("cut", at * ms, ("one-1",)) for at in (5, 15, 25, 35, 45, 900)]
        assert judge.in_flight(strikes, lives, one_way=False) == ({"cut": 6}, {"cut": 1})
        # Without acknowledgements, what waits and what was just handed over count too.
        assert judge.in_flight(strikes, lives, one_way=True) == ({"cut": 6}, {"cut": 2})

    def test_a_result_is_written_as_a_line(self) -> None:
        struck = {"cut": 2}, {"cut": 1}
        result = Result(1, "plog", ["3 lost"], "", 1, {"events": 3}, 2, 0, 0, 0, 0, *struck, 1.5)
        assert Result.read(result.line()) == result
        assert "failed: [1]" in summary([result])


class TestShrink:
    faults = tuple(Fault(float(i), kind, "all") for i, kind in enumerate(schedule.KINDS))

    def plan(self) -> Schedule:
        return make(1)._replace(faults=self.faults, injected="stall=p:0.1", ending="exit")

    def test_shrinking_keeps_the_faults_that_matter(self) -> None:
        def failed(candidate: Schedule) -> bool:
            return {"cut", "fork"} <= {fault.kind for fault in candidate.faults}

        small = shrink(self.plan(), failed, progress=lambda text: None)
        assert small is not None
        assert [fault.kind for fault in small.faults] == ["cut", "fork"]
        assert (small.injected, small.ending) == ("", "close")

    def test_a_rare_failure_is_not_shrunk(self) -> None:
        assert shrink(self.plan(), lambda _: False) is None

    @pytest.mark.parametrize("failures", range(RUNS + 1))
    def test_three_failures_of_ten_are_enough(self, failures: int) -> None:
        # The failures come last, the worst place for who stops early.
        outcomes = iter([False] * (RUNS - failures) + [True] * failures)
        assert fails(self.plan(), lambda _: next(outcomes)) == (failures >= ENOUGH)


@pytest.mark.spark
@pytest.mark.tree
@pytest.mark.timeout(900)
class TestRuns:
    @pytest.fixture
    def run(
        self, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> Callable[[list[Schedule]], list[Result]]:
        pytest.importorskip("websockets")
        pytest.importorskip("zmq")

        def run(schedules: list[Schedule]) -> list[Result]:
            results = list(Batch(spark, tmp_path, jobs=4).all(schedules))
            with capsys.disabled():
                print("\n" + "\n".join([result.text() for result in results] + [summary(results)]))
            assert not [result.trouble for result in results if result.trouble]
            return results

        return run

    def test_a_short_run_finds_no_violation(self, run: Callable[[list[Schedule]], list[Result]]) -> None:
        results = run([make(seed, SHORT) for seed in SEEDS])
        assert {result.lane for result in results} == set(LANES)
        assert [text for result in results for text in result.violations] == []
        # Something was at stake.
        assert sum(result.breaks for result in results) >= len(SEEDS)
        assert sum(result.resent for result in results) >= 50
        assert len({kind for result in results for kind in result.hits}) >= 8

    @pytest.mark.skipif(not SUPPORTED, reason="only Linux has spools")
    def test_a_short_run_with_spools_finds_no_violation(
        self, run: Callable[[list[Schedule]], list[Result]]
    ) -> None:
        plans = [with_spool(make(seed, SHORT)) for seed in SPOOL_SEEDS]
        assert [plan.durable for plan in plans] == [True, True, False]
        results = run(plans)
        assert [text for result in results for text in result.violations] == []
        assert sum(result.hits.get("kill-producer", 0) for result in results) >= len(plans)

    @pytest.mark.slow
    def test_a_short_run_over_a_link_finds_no_violation(
        self, run: Callable[[list[Schedule]], list[Result]]
    ) -> None:
        if reason := why_not():
            pytest.skip(reason)
        results = run([with_link(make(seed, SHORT)) for seed in LINK_SEEDS])
        assert [text for result in results for text in result.violations] == []
        assert sum(result.strikes.get(kind, 0) for result in results for kind in LINK) >= len(results)

    @pytest.mark.long
    @pytest.mark.timeout(3600)
    def test_stored_schedules_pass_now(self, run: Callable[[list[Schedule]], list[Result]]) -> None:
        if not STORED_SCHEDULES:
            return  # none has been stored yet
        results = run([Schedule.load(path) for path in STORED_SCHEDULES for _ in range(RUNS)])
        assert [text for result in results for text in result.violations] == []


@pytest.mark.tree
@pytest.mark.parametrize("spool", [False, True])
def test_every_mutant_still_applies(spool: bool) -> None:
    found = mutants.listed(spool=spool)
    assert len(found) >= 10
    assert not [m.name for m in found if (ROOT / m.file).read_text().count(m.old) != 1]


def test_stored_schedules_can_be_read() -> None:
    assert all(Schedule.load(path).faults for path in STORED_SCHEDULES)


def test_a_killed_producer_needs_no_final_report() -> None:
    plan = make(1)._replace(ending="sigterm")
    assert judge.of_process(life(code=-signal.SIGTERM), plan) == []
    assert judge.of_process(life(code=0), plan) != []
