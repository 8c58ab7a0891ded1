"""The plan of a comparison: the facts that all tasks share, as JSON in the work folder."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from logclient.verify.segments import Segment

__all__ = ["Plan"]


class Plan(NamedTuple):
    """The facts that all tasks of a comparison share."""

    work: str
    bits: int  # a bucket has 2 ** bits sequences
    units: int  # in one batch
    chunk: int  # bytes of one read
    tail: int
    examples: int
    partitions: int
    anonymous_shares: int  # 0: every event has an id
    segments: list[list[Any]]  # segments.Segment, index of the listener, rank, protocol
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

    def save(self) -> None:
        """Write the plan to the work folder."""
        with open(os.path.join(self.work, "plan.json"), "w") as file:
            json.dump(self._asdict(), file)

    @classmethod
    def load(cls, work: str) -> Plan:
        """Read the plan from the work folder."""
        with open(os.path.join(work, "plan.json")) as file:
            return cls(**json.load(file))
