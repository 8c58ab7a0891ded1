"""Ledgers of a folder, as the verifier reads them: what they say, and the rows of their events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logclient.evidence import ledger_files
from logclient.evidence.arrays import Workspace, expand
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.verify import ledger_lines, ledger_merge, ledger_rows
from logclient.verify.ledger_buckets import LedgerBucket, lay_out
from logclient.verify.overview import Grid
from logclient.verify.plan import Plan
from logclient.verify.rows import Row


def make_plan(bits: int, anonymous_shares: int = 0) -> Plan:
    """Return a plan of a comparison in one task, of ledgers alone."""
    return Plan(
        bits=bits, units=100, chunk=1 << 20, examples=3, partitions=1, edges=[],
        anonymous_shares=anonymous_shares, segments=[], tasks=[], groups=[], violations=False,
        grid=Grid(0, 1, 1), families=1, app_envs=[],
    )  # fmt: skip


@dataclass
class Ledgers:
    """The ledgers of a folder.

    Attributes:
        groups: their files, as tasks read them.
        facts: what they say.
    """

    groups: list[list[Any]]
    facts: Any

    @classmethod
    def read(
        cls, folder: Path, bits: int, group: int = 1 << 20, selection: Selection = EVERYTHING
    ) -> Ledgers:
        """Read all files of a folder, `group` of them in each task."""
        parts = ledger_files.find_ledgers([str(folder)]).parts
        groups = [parts[low : low + group] for low in range(0, len(parts), group)]
        surveys = [ledger_lines.survey(some, selection) for some in groups]
        return cls(groups, ledger_merge.merge(surveys, bits, selection=selection))

    def rows(self, plan: Plan | None = None, only: frozenset[int] | None = None) -> Iterator[Row]:
        """Yield the rows of all events."""
        plan = plan or make_plan(self.facts.bits)
        for number, group in enumerate(self.groups):
            for batch in ledger_rows.event_rows(group, number, self.facts, plan, only):
                batch.validate(full=True)
                keys, listeners = (batch.column(name).to_pylist() for name in ("key", "listener"))
                yield from (Row(batch, i, keys[i], listeners[i]) for i in range(len(batch)))

    def bucket(self, key: int) -> LedgerBucket:
        """Return the content of a bucket, with the hashes and times of its rows."""
        found = lay_out(self.facts, key, Workspace())
        for row in self.rows(only=frozenset([key])):
            for place, hash_, created in events_of(row):
                found.hashes[place], found.created_us[place] = hash_, created
        return found


def events_of(row: Row) -> list[tuple[int, int, int]]:
    """Return place, hash and time of each event in a row of a bucket."""
    places = expand(row.array("places", np.int64).reshape(-1, 2)).tolist()
    hashes = row.array("hashes", np.uint64).tolist()
    wide = len(row.array("times", np.uint8)) == 8 * len(hashes)
    times = row.array("times", np.int64 if wide else np.uint32).tolist()
    return [(p, h, t + row.value("base")) for p, h, t in zip(places, hashes, times, strict=True)]
