"""Many runs: two at a time, judged in one Spark session, one line of JSON for each in a file of results."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tests.nemesis.judge import Result, judge
from tests.nemesis.scene import Evidence, Scene, Trouble
from tests.nemesis.schedule import KINDS, LINK, Schedule

ATTEMPTS = 3
"""The number of attempts at a run that cannot be made."""


class Batch:
    """A runner of schedules.

    Args:
        spark: a session.
        keep: folder for the files of failed runs.
        jobs: runs at a time.
        progress: called with a line for each attempt that could not be made.
    """

    def __init__(
        self, spark: Any, keep: Path, *, jobs: int = 2, progress: Callable[[str], object] = lambda text: None
    ) -> None:
        self.spark = spark
        self.keep = keep
        self.jobs = jobs
        self.progress = progress
        self._verdicts = threading.Lock()

    def one(self, schedule: Schedule) -> Result:
        """Run a schedule once, with further attempts if the run cannot be made."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(schedule)
            except Trouble as trouble:
                result = _troubled(schedule, str(trouble))
                self.progress(f"seed {schedule.seed}: attempt {attempt}: {trouble}")
        return result

    def _attempt(self, schedule: Schedule) -> Result:
        begin = time.monotonic()
        self.keep.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"seed-{schedule.seed}-", dir=self.keep))
        kept = False
        try:
            schedule.save(folder / "schedule.json")
            evidence: Evidence = Scene(schedule, folder).run()
            # One at a time: the jobs of one session share its settings.
            with self._verdicts:
                result = judge(schedule, evidence, self.spark, time.monotonic() - begin)
            kept = result.failed
            if kept:
                (folder / "result.json").write_text(result.line() + "\n")
                result.violations.append(f"evidence: {folder}")
        finally:
            if not kept:
                shutil.rmtree(folder, ignore_errors=True)
        return result

    def all(self, schedules: Iterable[Schedule], until: float | None = None) -> Iterator[Result]:
        """Yield the results of all schedules; no run starts after the monotonic second `until`."""
        rest = iter(schedules)
        with ThreadPoolExecutor(self.jobs) as pool:
            running: set[Future[Result]] = set()
            try:
                while True:
                    while len(running) < self.jobs and (until is None or time.monotonic() < until):
                        schedule = next(rest, None)
                        if schedule is None:
                            break
                        running.add(pool.submit(self.one, schedule))
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                for future in running:
                    future.cancel()


def _troubled(schedule: Schedule, why: str) -> Result:
    return Result(schedule.seed, schedule.lane, [], why, 3, {}, 0, 0, 0, 0, 0, {}, {}, 0.0)


def summary(results: list[Result]) -> str:
    """Summarize many runs: events, words, and the hits of each kind of fault."""
    total: dict[str, int] = {}
    for result in results:
        for word, n in result.counts.items():
            total[word] = total.get(word, 0) + n
    failed = [result.seed for result in results if result.failed]
    troubled = [result.seed for result in results if result.trouble]
    lanes: dict[str, int] = {}
    for result in results:
        lanes[result.lane] = lanes.get(result.lane, 0) + 1
    sums = ("snapshots", "breaks", "resent")
    snapshots, breaks, resent = (sum(getattr(result, name) for result in results) for name in sums)
    tops = ("rss", "descriptors")
    rss, descriptors = (max((getattr(result, name) for result in results), default=0) for name in tops)
    lines = [
        f"{len(results)} runs: {', '.join(f'{n} {lane}' for lane, n in sorted(lanes.items()))}",
        ", ".join(f"{n:,} {word}" for word, n in total.items()),
        f"{snapshots:,} snapshots, {breaks:,} breaks, {resent:,} resent",
        f"a producer grew by {rss >> 20} MiB at most, and had {descriptors} descriptors at most",
        f"{'fault':16} {'runs':>5} {'runs with something in flight':>30} {'strikes':>8} {'hits':>6}",
    ]
    for kind in KINDS + LINK:
        runs = sum(kind in result.strikes for result in results)
        hit = sum(kind in result.hits for result in results)
        strikes = sum(result.strikes.get(kind, 0) for result in results)
        hits = sum(result.hits.get(kind, 0) for result in results)
        lines.append(f"{kind:16} {runs:5} {hit:30} {strikes:8} {hits:6}")
    lines.append(f"failed: {failed or 'none'}" + (f"; no verdict: {troubled}" if troubled else ""))
    return "\n".join(lines)
