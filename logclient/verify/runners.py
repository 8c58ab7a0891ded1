"""The runners of a comparison: the same three steps on Spark, or in this process."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from logclient.evidence.selection import Selection
from logclient.verify import arrival_rows, judge, ledger_lines, ledger_rows, records, worker
from logclient.verify.rows import RESULTS, ROWS
from logclient.verify.spark import is_local, no_pandas

if TYPE_CHECKING:
    from logclient.evidence.ledger_files import Parts
    from logclient.verify.ledger_facts import LedgerFacts
    from logclient.verify.plan import Plan
    from logclient.verify.records import Source
    from logclient.verify.spark import Session

GROUP_BYTES = 32 << 20  # of ledgers in one task
HERE_FILES, HERE_BYTES = 1 << 10, 1 << 30  # of ledgers that are surveyed without a job
_ORDER = ("key", "listener", "position")
_ROWS = 64  # in a batch from the JVM: each may have a megabyte

Rows = Iterator[pa.RecordBatch]
Buckets = frozenset[int] | None  # for a second pass, those to compare
Later = dict[tuple[int, int], int] | None  # for a second pass, see `judge.judge_rows`


def ledger_groups(parts: Parts) -> list[tuple[int, int]]:
    """Return the first and the next index of each group of ledger files that a task reads."""
    return [(group[0], group[-1] + 1) for group in share_out(parts.sizes, GROUP_BYTES)]


class LocalRunner:
    """All steps in this process, without Spark and Java."""

    cores = 1
    small = True  # whether one task compares little data in less time than a shuffle takes

    def survey(self, parts: Parts, selection: Selection) -> Iterator[dict[str, Any]]:
        """Yield what `ledger_lines.survey` says about each group of ledger files."""
        for low, high in ledger_groups(parts):
            yield ledger_lines.survey(parts[low:high], selection)

    def judge(
        self, parts: Parts, facts: LedgerFacts, plan: Plan, only: Buckets = None, later: Later = None
    ) -> Iterable[pa.RecordBatch]:
        """Compare, and return batches of `rows.RESULTS`."""
        batches: list[pa.RecordBatch] = []
        for number, (low, high) in enumerate(plan.groups):
            batches += ledger_rows.event_rows(parts[low:high], number, facts, plan, only)
        for task in plan.tasks:
            batches += arrival_rows.segment_rows(task, facts, plan, only)
        return judge.judge_rows(_sorted(batches), facts, plan, later)


def _sorted(batches: list[pa.RecordBatch]) -> Rows:
    """Yield the rows of some batches in the order that `judge.judge_rows` needs, without a copy."""
    table = pa.Table.from_batches(batches, ROWS)
    key, listener, position = (table[name].to_numpy() for name in _ORDER)
    which = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    first = np.cumsum([0, *(len(batch) for batch in batches)])
    order = np.lexsort((position, listener, key))
    for row, i in zip(order.tolist(), which[order].tolist(), strict=True):
        yield batches[i].slice(row - int(first[i]), 1)


# -- on Spark: each function takes its last argument, and yields batches, for mapInArrow


def _task(function: Callable[..., Rows], *first: Any) -> Callable[[Iterable[Any]], Rows]:
    """Bind all arguments but the last. Spark's plan shows the name."""
    task = partial(function, *first)
    task.__name__ = function.__name__.strip("_")  # type: ignore[attr-defined]
    return task


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    worker.prepare()
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _survey_ledgers(
    parts: Parts, selection: Selection, groups: list[tuple[int, int]], batches: Iterable[pa.RecordBatch]
) -> Rows:
    for number in _numbers(batches):
        found = ledger_lines.survey(parts[slice(*groups[number])], selection)
        yield pa.record_batch([[number], [pickle.dumps(found, 5)]], names=["number", "survey"])


def _read_files(
    parts: Parts, facts: LedgerFacts, plan: Plan, only: Buckets, batches: Iterable[pa.RecordBatch]
) -> Rows:
    for number in _numbers(batches):
        if number < len(plan.groups):
            group = parts[slice(*plan.groups[number])]
            yield from ledger_rows.event_rows(group, number, facts, plan, only)
        else:
            task = plan.tasks[number - len(plan.groups)]
            yield from arrival_rows.segment_rows(task, facts, plan, only)


def _read_records(facts: LedgerFacts, plan: Plan, only: Buckets, batches: Iterable[pa.RecordBatch]) -> Rows:
    worker.prepare()
    yield from records.record_rows(batches, facts, plan, only)


def _judge_buckets(facts: LedgerFacts, plan: Plan, later: Later, batches: Iterable[pa.RecordBatch]) -> Rows:
    worker.prepare()
    yield from judge.judge_rows(batches, facts, plan, later)


def _compare(*given: Any) -> Rows:
    worker.prepare()
    for _ in given[-1]:
        yield from LocalRunner().judge(*given[:-1])


def _ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "string": "string", "binary": "binary"}
    return ", ".join(f"`{field.name}` {names[str(field.type)]}" for field in schema)


class SparkRunner:
    """All steps on a Spark session."""

    def __init__(self, session: Session, source: Source | None = None) -> None:
        self.session = session
        self.source = source
        self.cores = 16  # tasks that run at a time, as far as Spark tells
        self.small = False
        if session.context is not None:
            self.cores = session.context.defaultParallelism
            self.small = is_local(session.context.master) and source is None

    def _over(self, n: int, function: Any, ddl: str) -> Any:
        """Return a frame with the rows of `n` tasks, each of which receives its number."""
        with no_pandas():
            return self.session.spark.range(0, n, 1, n).mapInArrow(function, ddl)

    def survey(self, parts: Parts, selection: Selection) -> Iterable[dict[str, Any]]:
        """Yield what `ledger_lines.survey` says about each group of ledger files."""
        if len(parts) <= HERE_FILES and sum(parts.sizes) <= HERE_BYTES:
            return LocalRunner().survey(parts, selection)
        groups = ledger_groups(parts)
        task = _task(_survey_ledgers, parts, selection, groups)
        found = self._over(len(groups), task, "number bigint, survey binary").collect()
        return (pickle.loads(row.survey) for row in sorted(found, key=lambda row: int(row.number)))

    def judge(
        self, parts: Parts, facts: LedgerFacts, plan: Plan, only: Buckets = None, later: Later = None
    ) -> Iterable[pa.RecordBatch]:
        """Compare, as `LocalRunner.judge` does."""
        if self.small and plan.partitions == 1:
            # Frames need Spark's planner, whose start takes longer than a small comparison.
            whole = _task(_compare, parts, facts, plan, only, later)
            return list(self.session.context.parallelize([0], 1).mapPartitions(whole).collect())
        read = _task(_read_files, parts, facts, plan, only)
        rows = self._over(len(plan.groups) + len(plan.tasks), read, _ddl(ROWS))
        if self.source is not None:
            with no_pandas():
                own = self.source.frame.mapInArrow(_task(_read_records, facts, plan, only), _ddl(ROWS))
            rows = rows.union(own)
        if hasattr(rows, "repartitionById"):
            rows = rows.repartitionById(plan.partitions, "part")
        else:  # PySpark 4.0: by a hash of the same number, slightly less even
            rows = rows.repartition(plan.partitions, "part")
        with no_pandas():
            rows = rows.sortWithinPartitions(*_ORDER)
            judged = rows.mapInArrow(_task(_judge_buckets, facts, plan, later), _ddl(RESULTS))
        with self._batches(_ROWS if self.source is None else records.RECORDS):
            table: pa.Table = judged.toArrow()
        batches: list[pa.RecordBatch] = table.cast(RESULTS).to_batches()
        return batches

    @contextlib.contextmanager
    def _batches(self, rows: int) -> Iterator[None]:
        """Get batches of some rows from the JVM, and of some megabytes where Spark has the setting."""
        conf = self.session.spark.conf
        keys = {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
            "spark.sql.execution.arrow.maxBytesPerBatch": str(records.BATCH_BYTES),
        }
        before = {key: conf.get(key, None) for key in keys}
        for key, value in keys.items():
            conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    conf.unset(key)
                else:
                    conf.set(key, old)


def share_out(sizes: list[int], limit: int) -> list[list[int]]:
    """Group consecutive files so that each group has about `limit` bytes, or one file, and at most 512."""
    groups: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not groups or room < size or len(groups[-1]) >= 512:
            groups.append([])
            room = limit
        groups[-1].append(index)
        room -= size
    return groups
