"""``make nemesis``: seeded faults over all protocols, with the verifier's verdict on each run.

    python -m tests.nemesis --seeds 1-100 --minutes 75

A seed determines the schedule of faults, not the kernel's timing: a failing seed is run again, and its
failure rate is printed. Exit code: 0 no violation, 1 violations, 3 a run could not be made.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.nemesis.batch import Batch, summary
from tests.nemesis.judge import Result
from tests.nemesis.schedule import LANES, LONG, SHORT, Form, Schedule, balanced, make, with_link, with_spool
from tests.nemesis.shrink import shrink
from tests.support import ROOT

FOLDER = ROOT / "build" / "nemesis"
STORED = Path(__file__).parent / "schedules"
AGAIN = 20
MOST_REPEATED = 5
"""The most failing seeds of a batch that are run again."""


def seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def schemes(text: str) -> list[str]:
    found = text.split(",")
    if unknown := set(found).difference(LANES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(LANES)}")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default="1-100", help="as in 1-100 or 3,7,20-29")
    parser.add_argument("--schemes", type=schemes, default=list(LANES), help="as in lumberjack+tls,logux+tls")
    parser.add_argument("--minutes", type=float, help="start no run after this time")
    parser.add_argument("--events", type=int, help="of each run")
    parser.add_argument("--spool", action="store_true", help="give all producers a spool, and kill more")
    parser.add_argument("--balance", action="store_true", help="balance=true; only schemes of Lumberjack")
    parser.add_argument("--link", action="store_true", help="an emulated link to the servers, and its faults")
    parser.add_argument("--short", action="store_true", help="the short form")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="earlier results: skip their seeds")
    parser.add_argument("--again", type=int, default=AGAIN, help="runs of each failing seed")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this schedule --again times")
    parser.add_argument("--shrink", action="store_true", help="shrink the schedules, and store them")
    parser.add_argument("--show", action="store_true", help="only print the schedules")
    parser.add_argument("--stop", action="store_true", help="start no more runs after a failure")
    parser.add_argument("--mutants", nargs="*", metavar="WORD", help="find the seed that catches each mutant")
    return parser.parse_args()


def form_of(given: argparse.Namespace) -> Form:
    form = SHORT if given.short else LONG
    return form._replace(events=given.events) if given.events else form


def main() -> int:
    given = arguments()
    schedules = [make(seed, form_of(given), given.schemes) for seed in given.seeds]
    if given.balance:
        schedules = [balanced(one) for one in schedules if one.lane.startswith("lumberjack")]
    if given.spool:
        schedules = [with_spool(schedule) for schedule in schedules]
    if given.link:
        schedules = [with_link(schedule) for schedule in schedules]
    if given.replay:
        schedules = [Schedule.load(given.replay)]
    if given.show:
        print("\n".join(schedule.text() for schedule in schedules))
        return 0
    if given.mutants is not None:
        from tests.nemesis import mutants

        return mutants.run(given.mutants, given.seeds, given.jobs, given.spool)
    from logclient.verify.job import Session

    folder = given.resume or FOLDER
    with Session("local[2]") as session:
        batch = Batch(session.spark, folder / "failed", jobs=given.jobs, progress=print_progress)
        if given.shrink:
            return shrink_all(batch, schedules)
        if given.replay:
            return run_again(batch, schedules[0], given.again)
        return whole(batch, schedules, folder, given)


def print_progress(text: str) -> None:
    print(text, flush=True)


def whole(batch: Batch, schedules: list[Schedule], folder: Path, given: argparse.Namespace) -> int:
    begin = time.monotonic()
    path = folder / "results.jsonl"
    results: dict[int, Result] = {}
    if given.resume and path.exists():
        results = {result.seed: result for result in map(Result.read, path.read_text().splitlines())}
    rest = [schedule for schedule in schedules if schedule.seed not in results]
    until = begin + 60 * given.minutes if given.minutes else None
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("a" if given.resume else "w") as file:
        for result in batch.all(rest, until):
            results[result.seed] = result
            print_progress(result.text())
            if not result.trouble:
                file.write(result.line() + "\n")
                file.flush()
            if result.failed and given.stop:
                break
    wanted = {schedule.seed for schedule in schedules}
    mine = [result for seed, result in sorted(results.items()) if seed in wanted]
    failed = {result.seed for result in mine if result.failed}
    for schedule in [s for s in rest if s.seed in failed][:MOST_REPEATED] if given.again else []:
        run_again(batch, schedule, given.again)
    print(summary(mine))
    print(f"{time.monotonic() - begin:.0f} s; {len(wanted) - len(mine)} of {len(wanted)} runs are left to do")
    return 1 if failed else 3 if any(result.trouble for result in mine) else 0


def run_again(batch: Batch, schedule: Schedule, times: int) -> int:
    """Run one schedule several times, and print the number of failures."""
    failures = 0
    for result in batch.all([schedule] * times):
        failures += result.failed
        print_progress(result.text())
    print(f"seed {schedule.seed}: {failures} of {times} runs failed")
    return 1 if failures else 0


def shrink_all(batch: Batch, schedules: list[Schedule]) -> int:
    for schedule in schedules:
        small = shrink(schedule, lambda candidate: batch.one(candidate).failed)
        if small is None:
            print(f"seed {schedule.seed} does not fail often enough to be shrunk")
            continue
        STORED.mkdir(exist_ok=True)
        path = STORED / f"seed-{schedule.seed}.json"
        small.save(path)
        print(f"{small.text()}\nstored as {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
