"""The plan of a comparison: the facts that all tasks share, as JSON in the work folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from logclient.evidence import storage
from logclient.evidence.arrays import I64, true_runs
from logclient.evidence.segments import Segment
from logclient.evidence.selection import EVERYTHING
from logclient.verify.schema import EVENT_BITS

__all__ = ["MAX_TASKS", "Plan", "share_evenly"]

TASK_COST = 1 << 22  # of the buckets of one task, in places: about a second's work
MAX_TASKS = 1 << 13  # tasks of a stage; they are larger when there would be more


class Plan(NamedTuple):
    """The facts that all tasks of a comparison share."""

    work: str
    bits: int  # a bucket has at most 2 ** bits places
    units: int  # in one batch
    chunk: int  # bytes of one read
    tail: int
    examples: int
    partitions: int
    edges: list[int]  # the first bucket of each partition but the first
    anonymous_shares: int  # 0: every event has an id
    segments: list[list[Any]]  # segments.Segment, index of the listener, number of the first unit, protocol
    tasks: list[dict[str, list[int]]]  # "segments": [...] or "anonymous": [file, ...], and "live": [from, to]
    violations: str  # a folder; empty: not wanted
    grid: list[int]  # overview.Grid
    families: int  # number of protocols
    app_envs: list[str]  # of the Logjam producers; empty: not known
    ordered: bool = True  # arrivals have an order
    timed: bool = True  # arrivals have a time
    records: dict[str, Any] | None = None  # set when records arrived, not a capture: records.Source.plan
    listeners: list[dict[str, Any]] = []  # see captures.Survey; empty with records
    left_out: list[list[Any]] = []  # captures.LeftOut
    unjudged: list[int] = []  # listeners at which order is not judged
    published: list[str] = []  # protocols captured only behind a device, where order is no promise
    selection: list[Any] = [*EVERYTHING]  # see `selection.Selection`
    other_runs: list[int] = []  # segments of runs that are not selected
    left_out_producers: list[list[int]] = []  # ranges of producers whose events belong to those
    presence: bool = False  # only find out which producers have events in which segment

    def without_segments(self, names: set[str]) -> Plan:
        """Return a plan that leaves out some segments.

        Args:
            names: file names of the segments.
        """
        skip = {i for i, entry in enumerate(self.segments) if Segment(*entry[0]).name in names}
        tasks = [dict(task) for task in self.tasks]
        for task in tasks:
            task["segments"] = [i for i in task.get("segments", ()) if i not in skip]
        return self._replace(tasks=tasks)

    def without_other_runs(self, present: Mapping[str, dict[str, Any]], n: int) -> Plan:
        """Return a plan that leaves out producers whose events all arrived in runs that are not selected.

        Segments of such runs without an event of the ledgers are not read again.

        Args:
            present: name of a segment -> its facts, with ``present``: ranges of the producers of its events.
            n: the number of producers.
        """
        here, there = np.zeros(n, bool), np.zeros(n, bool)
        names = {Segment(*self.segments[i][0]).name for i in self.other_runs}
        for name, fact in present.items():
            found = there if name in names else here
            for first, last in fact["present"]:
                found[first : last + 1] = True
        left_out = there & ~here
        useless = {name for name in names & present.keys() if not present[name]["present"]}
        ranges = np.stack(true_runs(left_out), axis=1).tolist()
        return self.without_segments(useless)._replace(left_out_producers=ranges)

    def segments_of(self, listener: int, positions: I64) -> I64:
        """Return the segments that have some positions, as indices of `segments`.

        Args:
            listener: the listener of all positions.
            positions: see `schema.EVENT_BITS`.
        """
        own = np.array([i for i, entry in enumerate(self.segments) if entry[1] == listener], np.int64)
        first = np.array([self.segments[i][2] for i in own.tolist()], np.int64)
        found: I64 = own[np.searchsorted(first, positions >> EVENT_BITS, side="right") - 1]
        return found

    def save(self) -> None:
        """Write the plan to the work folder."""
        place = storage.join(self.work, "plan.json")
        if not storage.is_url(place):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        with storage.create(place, "work") as file:
            file.write(json.dumps(self._asdict()).encode())

    @classmethod
    def load(cls, work: str) -> Plan:
        """Read the plan from the work folder."""
        with storage.open_buffered(storage.join(work, "plan.json"), "work") as file:
            return _parse(file.read())


@functools.lru_cache(maxsize=1)
def _parse(text: bytes) -> Plan:
    """Return a saved plan. A worker parses it once for all of its tasks, because it names all segments."""
    return Plan(**json.loads(text))


def share_evenly(costs: I64, cores: int, limit: int = TASK_COST) -> list[int]:
    """Divide buckets into contiguous ranges of about equal cost.

    There are four for each core, and more when the total is large. So a task reads neighbouring parts of the
    packed ledgers.

    Args:
        costs: of each bucket.
        cores: how many tasks run at a time.
        limit: the cost of a range, from which on there are more.

    Returns:
        Where each range but the first begins.
    """
    if not len(costs):
        return []
    reach = np.cumsum(costs)
    n = max(4 * cores, min(int(reach[-1]) // limit, MAX_TASKS))
    # The bucket that has the middle of its cost behind a boundary belongs to the next range.
    at = np.searchsorted(reach - costs // 2, np.arange(1, n) * int(reach[-1]) // n)
    return sorted(set(at.tolist()) - {0, len(costs)})
