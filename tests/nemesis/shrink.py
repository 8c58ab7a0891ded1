"""Reduce a failing schedule to the faults that it needs to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.nemesis.schedule import Fault, Schedule

RUNS = 10
ENOUGH = 3
"""The number of failures in `RUNS` runs with which a schedule counts as failing."""


def fails(schedule: Schedule, failed: Callable[[Schedule], bool]) -> bool:
    """Return whether at least `ENOUGH` of `RUNS` runs fail, with as few runs as possible."""
    failures = 0
    for run in range(RUNS):
        failures += failed(schedule)
        if failures >= ENOUGH:
            return True
        if failures + RUNS - run - 1 < ENOUGH:
            return False
    return False


def shrink(
    schedule: Schedule, failed: Callable[[Schedule], bool], progress: Callable[[str], object] = print
) -> Schedule | None:
    """Find a small schedule that still fails; None: the whole one does not fail often enough.

    Faults are removed in halves, quarters and so on down to single ones (delta debugging), then the
    collectors' own faults, then time.
    """
    if not fails(schedule, failed):
        return None

    def still(candidate: Schedule) -> bool:
        holds = fails(candidate, failed)
        progress(f"{len(candidate.faults)} faults: {'fails' if holds else 'holds'}")
        return holds

    faults = _fewest(schedule.faults, lambda rest: still(schedule._replace(faults=tuple(rest))))
    schedule = schedule._replace(faults=tuple(faults))
    smaller: list[dict[str, Any]] = [
        {"injected": ""},
        {"ending": "close"},
        {"seconds": round(max((f.at + f.seconds for f in schedule.faults), default=0.0) + 0.5, 2)},
        {"events": schedule.events // 4},
    ]
    for change in smaller:
        candidate = schedule._replace(**change)
        if candidate != schedule and still(candidate):
            schedule = candidate
    return schedule


def _fewest(faults: Sequence[Fault], still: Callable[[Sequence[Fault]], bool]) -> Sequence[Fault]:
    parts = 2
    while faults:
        size = -(-len(faults) // parts)
        for begin in range(0, len(faults), size):
            rest = [*faults[:begin], *faults[begin + size :]]
            if still(rest):
                faults, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(faults), 2 * parts)
    return faults
