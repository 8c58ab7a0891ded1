"""The verifier's stages in this process, without Spark: the same tasks, and a sort for the shuffle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logclient.evidence import ledger_files
from logclient.evidence.selection import Selection
from logclient.verify import compare, gather, job, ledger_pack, schema
from logclient.verify.tuning import Tuning
from logclient.verify.violation_files import violations


class InProcess:
    """Stands in for `stages.SparkStages`."""

    cores = 2
    local = False

    def check_visible(self, places: list[tuple[str, str]]) -> None:
        pass

    def pack(self, parts: ledger_files.Parts, work: str, selection: Selection) -> list[str]:
        groups = [parts[i : i + 3] for i in range(0, len(parts), 3)]
        return [ledger_pack.pack(group, index, work, selection) for index, group in enumerate(groups)]

    def compare(
        self, plan: Any, only: frozenset[int] | None = None, later: dict[tuple[int, int], int] | None = None
    ) -> list[str]:
        batches = [b for task in range(len(plan.tasks)) for b in gather.map_task(plan.work, task, only)]
        table = pa.Table.from_batches(batches, schema.ARRIVALS)
        names = []
        for part in range(plan.partitions):
            rows = table.filter(pc.equal(table["part"], part))
            order = [("key", "ascending"), ("listener", "ascending"), ("position", "ascending")]
            rows = rows.sort_by(order)
            names.append(compare.reduce_to_file(rows.to_batches(max_chunksize=7), plan.work, later))
        return names


class NoJobs:
    """Stands in for `jobs.Jobs`."""

    def begin(self) -> None:
        pass

    end = next_stage = cancel = begin

    def share(self) -> None:
        return None


class Session:
    """Stands in for `job.Session`."""

    stops = True

    def __init__(self, *_: Any, meanwhile: Callable[[], None] = lambda: None, **__: Any) -> None:
        meanwhile()
        self.spark = self.context = None
        self.jobs = NoJobs()

    def stop(self, **_: Any) -> None:
        pass


def run(
    monkeypatch: Any,
    ledger_folder: Any,
    capture_folder: Any,
    *,
    bits: int = 18,
    tail: int = 4096,
    units: int = 1 << 18,
    chunk: int = 4 << 20,
    **options: Any,
) -> Any:
    """Run `job.run` without Spark. The sizes are those of `Tuning`."""
    monkeypatch.setattr(job, "Session", Session)
    monkeypatch.setattr(job, "SparkStages", lambda *_: InProcess())
    return job.run(ledger_folder, capture_folder, tuning=Tuning(bits, tail, units, chunk), **options)


def counts(verdict: Any) -> dict[str, int]:
    """Return the words that a verdict has, and their numbers."""
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def found(out: Path) -> dict[str, set[tuple[str, int]]]:
    """Return word -> (producer, sequence) of a verdict's violations, without ids that are not ours."""
    ids: dict[str, set[tuple[str, int]]] = {}
    for word, ident in violations(out):
        if not ident.startswith("~"):
            ids.setdefault(word, set()).add((ident[:20], int(ident[20:], 16)))
    return ids
