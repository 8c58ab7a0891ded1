"""The plan of a comparison: the facts that all tasks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64
from logclient.evidence.selection import CLOCKS_US, EVERYTHING, Selection
from logclient.verify.schema import EVENT_BITS, NEVER

if TYPE_CHECKING:
    from logclient.evidence.arrays import Workspace
    from logclient.evidence.captures import LeftOutFile
    from logclient.evidence.segments import Segment
    from logclient.verify.ledger_facts import LedgerFacts
    from logclient.verify.order import Later, Stretches
    from logclient.verify.overview import Grid, TimeCounts
    from logclient.verify.violation_files import ViolationWriter

FILES = 512  # the most of one task
TASK_BYTES = 64 << 20  # bytes of files in one task
MAX_TASKS = 1 << 13  # tasks of a stage; they are larger when there would be more

_T = TypeVar("_T")
Buckets = frozenset[int] | None  # for a second pass, those to compare


class Plan(NamedTuple):
    """The facts that all tasks of a comparison share."""

    bits: int  # a bucket has at most 2 ** bits places
    units: int  # in one batch
    chunk: int  # bytes of one read
    examples: int
    partitions: int
    edges: list[int]  # the first bucket of each partition but the first
    anonymous_shares: int  # 0: every event has an id
    segments: list[tuple[Segment, int, int, str]]  # index of the listener, number of the first unit, protocol
    tasks: list[list[int]]  # of each task the segments that it reads, as indices
    groups: list[tuple[int, int]]  # of ledger files: the first of each, and the next one's first
    violations: bool  # whether every fault is wanted
    grid: Grid
    families: int  # number of protocols
    app_envs: list[str]  # of the Logjam producers; empty: not known
    ordered: bool = True  # arrivals have an order, and it is judged
    by_id: bool = False  # bodies are not compared
    others: str = "break"  # one of `verdict.OTHERS`
    timed: bool = True  # arrivals have a time
    records: dict[str, Any] | None = None  # set when records arrived, not a capture: records.Source.plan
    listeners: list[dict[str, Any]] = []  # see captures.Survey; empty with records
    left_out: list[LeftOutFile] = []
    unjudged: list[int] = []  # listeners at which order is not judged
    published: list[str] = []  # protocols captured only behind a device, where order is no promise
    selection: Selection = EVERYTHING

    def without_segments(self, names: set[str]) -> Plan:
        """Return a plan that leaves out the segments with some file names."""
        skip = {i for i, entry in enumerate(self.segments) if entry[0].name in names}
        return self._replace(tasks=[[i for i in task if i not in skip] for task in self.tasks])

    def is_before_end(self, received: I64) -> npt.NDArray[np.bool_]:
        """Return which events arrived before the end of the selected time, so that they were made before."""
        until_us = self.selection.until_us
        return received < (NEVER if until_us is None else until_us - CLOCKS_US)

    def partition(self, keys: I64) -> npt.NDArray[np.int32]:
        """Return the partitions of some keys: neighbouring buckets together, all others in turn."""
        near = np.searchsorted(np.array(self.edges, np.int64), keys, side="right")
        return np.where(keys >= 0, near, -keys % self.partitions).astype(np.int32)

    def segments_of(self, listener: int, positions: I64) -> I64:
        """Return the segments that have some positions of one listener, as indices of `segments`."""
        own = np.array([i for i, entry in enumerate(self.segments) if entry[1] == listener], np.int64)
        first = np.array([self.segments[i][2] for i in own.tolist()], np.int64)
        found: I64 = own[np.searchsorted(first, positions >> EVENT_BITS, side="right") - 1]
        return found


class Task(NamedTuple):
    """What a task has in common for all keys that it judges."""

    plan: Plan
    facts: LedgerFacts
    writer: ViolationWriter
    times: TimeCounts
    space: Workspace
    later: Later | None
    stretches: Stretches


def share_out(sized: Iterable[tuple[_T, int, int]], limit: int, most: int) -> list[list[_T]]:
    """Group consecutive things, each with its bytes and parts, by about `limit` bytes and `most` parts."""
    groups: list[list[_T]] = []
    room = parts = 0
    for one, size, n in sized:
        if not groups or room < size or parts >= most:
            groups.append([])
            room, parts = limit, 0
        groups[-1].append(one)
        room, parts = room - size, parts + n
    return groups


def share_evenly(costs: I64, owners: I64, cores: int, limit: int) -> list[int]:
    """Divide buckets into contiguous ranges of about equal cost, and return where all but the first begin.

    There are four for each core, and more when each would cost more than `limit`. Those of an owner stay
    together unless they cost more than such a range.
    """
    if not len(costs):
        return []
    reach = np.cumsum(costs)
    total = int(reach[-1])
    n = max(4 * cores, min(total // limit, MAX_TASKS))
    # The bucket that has the middle of its cost behind a boundary belongs to the next range.
    at = np.searchsorted(reach - costs // 2, np.arange(1, n) * total // n)
    at = at[at < len(costs)]
    first, end = (np.searchsorted(owners, owners[at], side) for side in ("left", "right"))
    before = np.append(0, reach)
    back, on = before[at] - before[first], before[end] - before[at]
    near = np.where(back < on, first, end)
    at = np.where(np.minimum(back, on) > total // (2 * n), at, near)
    return sorted(set(at.tolist()) - {0, len(costs)})
