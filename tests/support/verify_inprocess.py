"""The verifier in this process, without Spark, with sizes that tests make small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from logclient.evidence.arrays import starts_of
from logclient.verify import job, judge, runners
from logclient.verify.rows import ROWS
from logclient.verify.tuning import Tuning
from logclient.verify.violation_files import violation_ids


def run(
    ledger_folder: Any,
    capture_folder: Any,
    *,
    bits: int = 18,
    task_places: int = 0,
    units: int = 1 << 18,
    chunk: int = 4 << 20,
    **options: Any,
) -> Any:
    """Run `job.run` in this process, without limits but those given. The sizes are those of `Tuning`.

    With `task_places` events are compared in tasks of about so many, as Spark does.
    """
    tuning = Tuning(bits, task_places or 1 << 22, units, chunk, together_bytes=0 if task_places else 1 << 40)
    given = {"max_missing": None, "max_dropped": None, "tuning": tuning, **options}
    runner = InTasks if task_places else runners.LocalRunner
    with mock.patch.object(runners, "LocalRunner", runner):
        return job.run(ledger_folder, capture_folder, runner="local", **given)


class InTasks(runners.LocalRunner):
    """A runner that judges the rows of each partition alone, as the tasks of Spark do."""

    def judge(self, parts: Any, facts: Any, plan: Any, later: Any = None) -> Iterator[Any]:
        found: list[Any] = []

        def keep(batches: Any, *_: Any) -> list[Any]:
            found.extend(batches)
            return []

        with mock.patch.object(judge, "judge_rows", keep):
            super().judge(parts, facts, plan, later)
        rows = pa.Table.from_batches(found, ROWS)
        part = rows["part"].to_numpy()
        order = np.argsort(part, kind="stable")
        rows = rows.take(order)
        edges = np.append(starts_of(part[order]), len(order)).tolist()
        for low, high in itertools.pairwise(edges):
            yield from judge.judge_rows(rows.slice(low, high - low).to_batches(), facts, plan, later)


def counts(verdict: Any) -> dict[str, int]:
    """Return the words that a verdict has, and their numbers."""
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def found(out: Path) -> dict[str, set[tuple[str, int]]]:
    """Return word -> (producer, sequence) of a verdict's violations, without ids that are not ours."""
    ids: dict[str, set[tuple[str, int]]] = {}
    for word, ident in violation_ids(out):
        if not ident.startswith("~"):
            ids.setdefault(word, set()).add((ident[:20], int(ident[20:], 16)))
    return ids
