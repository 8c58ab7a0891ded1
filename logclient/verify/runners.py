"""The runners of a comparison: the same three steps on Spark, or in this process."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from logclient.verify import judge, ledger_lines, ledger_rows, records, worker
from logclient.verify.arrival_rows import BucketWriter
from logclient.verify.plan import FILES, share_out
from logclient.verify.rows import RESULTS, ROWS, Batches, Rows
from logclient.verify.spark import is_local, no_pandas

if TYPE_CHECKING:
    from logclient.evidence.ledger_files import Parts
    from logclient.verify.ledger_facts import LedgerFacts
    from logclient.verify.order import Later
    from logclient.verify.plan import Buckets, Plan
    from logclient.verify.records import FrameSource
    from logclient.verify.spark import Session
    from logclient.verify.tables import TableSource

GROUP_BYTES = 32 << 20  # of ledgers in one task
HERE_FILES, HERE_BYTES = 1 << 10, 1 << 30  # of ledgers that are surveyed without a job
_ORDER = {"key": False, "listener": True, "position": True}  # which of them ascend
_ROWS = 64  # in a batch from the JVM: each may have a megabyte
_CONNECTED = threading.Lock()  # held while the settings of a Spark Connect session are changed


def ledger_groups(parts: Parts) -> list[tuple[int, int]]:
    """Return the first and the next index of each group of ledger files that a task reads."""
    sized = ((i, size, 1) for i, size in enumerate(parts.sizes))
    return [(group[0], group[-1] + 1) for group in share_out(sized, GROUP_BYTES, FILES)]


class LocalRunner:
    """All steps in this process, without Spark and Java."""

    cores = 1
    small = True  # whether one task compares little data in less time than a shuffle takes

    def __init__(self, source: TableSource | None = None) -> None:
        self.source = source

    def survey(self, parts: Parts, *given: Any) -> Iterator[dict[str, Any]]:
        """Return what `ledger_lines.survey` says about each group of ledger files."""
        return (ledger_lines.survey(parts[low:high], *given) for low, high in ledger_groups(parts))

    def judge(self, parts: Parts, facts: LedgerFacts, plan: Plan, later: Later | None = None) -> Batches:
        """Compare, and return batches of `rows.RESULTS`."""
        tasks = pa.record_batch([range(len(plan.groups) + len(plan.tasks))], names=["id"])
        only = later.buckets if later is not None else None
        batches = [*_read_files([tasks], parts, facts, plan, only)]
        for rows in self.source.parts() if self.source is not None else ():
            batches += records.record_rows(rows, facts, plan, only)
        return judge.judge_rows(_sorted(batches), facts, plan, later)


def _sorted(batches: list[pa.RecordBatch]) -> Rows:
    """Yield the rows of some batches in the order that `judge.judge_rows` needs, without a copy."""
    table = pa.Table.from_batches(batches, ROWS)
    key, listener, position = (table[name].to_numpy() for name in _ORDER)
    which = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    first = np.cumsum([0, *(len(batch) for batch in batches)])
    order = np.lexsort((position, listener, -key))
    for row, i in zip(order.tolist(), which[order].tolist(), strict=True):
        yield batches[i].slice(row - int(first[i]), 1)


# -- on Spark: functions for mapInArrow, from batches to batches


def _task(name: str, function: Callable[..., Rows], *given: Any) -> Callable[[Iterable[Any]], Rows]:
    """Bind all arguments but the first. Spark's plan shows the name."""

    def task(batches: Iterable[Any]) -> Rows:
        worker.prepare()
        yield from function(batches, *given)

    task.__name__ = name
    return task


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _survey_ledgers(batches: Batches, parts: Parts, groups: list[Any], given: Sequence[Any]) -> Rows:
    for number in _numbers(batches):
        found = ledger_lines.survey(parts[slice(*groups[number])], *given)
        yield pa.record_batch([[number], [pickle.dumps(found, 5)]], names=["number", "survey"])


def _read_files(batches: Batches, parts: Parts, facts: LedgerFacts, plan: Plan, only: Buckets) -> Rows:
    for number in _numbers(batches):
        if number < len(plan.groups):
            group = parts[slice(*plan.groups[number])]
            yield from ledger_rows.event_rows(group, number, facts, plan, only)
        else:
            writer = BucketWriter(plan, facts, only)
            for segment in plan.tasks[number - len(plan.groups)]:
                yield from writer.segment(*plan.segments[segment])


def _compare(partition: Iterable[int], *given: Any) -> Rows:
    for _ in partition:
        yield from LocalRunner().judge(*given)


def _judge_buckets(batches: Batches, *given: Any) -> Rows:
    """Judge rows, as compressed streams of the results: Spark limits what a driver gets."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for batch in judge.judge_rows(batches, *given):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RESULTS, options=options) as writer:
            writer.write_batch(batch)
        yield pa.record_batch([[sink.getvalue().to_pybytes()]], names=["results"])


def _over(spark: Any, n: int, function: Any, columns: Any) -> Any:
    """Return a frame with the rows of `n` tasks, each of which receives its number."""
    with no_pandas():
        return spark.range(0, n, 1, n).mapInArrow(function, columns)


class SparkRunner:
    """All steps on a Spark session."""

    def __init__(self, session: Session, source: FrameSource | None = None) -> None:
        self.session = session
        self.source = source
        self.cores = 16  # tasks that run at a time, as far as Spark tells
        self.small = False
        if session.context is not None:
            self.cores = session.context.defaultParallelism
            self.small = is_local(session.context.master) and source is None

    def survey(self, parts: Parts, *given: Any) -> Iterable[dict[str, Any]]:
        """Yield what `ledger_lines.survey` says about each group of ledger files."""
        if len(parts) <= HERE_FILES and sum(parts.sizes) <= HERE_BYTES:
            return LocalRunner().survey(parts, *given)
        groups = ledger_groups(parts)
        task = _task("survey_ledgers", _survey_ledgers, parts, groups, given)
        found = _over(self.session.spark, len(groups), task, "number bigint, survey binary").collect()
        return (pickle.loads(row.survey) for row in sorted(found, key=lambda row: int(row.number)))

    def judge(self, parts: Parts, facts: LedgerFacts, plan: Plan, later: Later | None = None) -> Batches:
        """Compare, as `LocalRunner.judge` does."""
        if self.small and plan.partitions == 1:
            # Frames need Spark's planner, whose start takes longer than a small comparison.
            whole = _task("compare", _compare, parts, facts, plan, later)
            return list(self.session.context.parallelize([0], 1).mapPartitions(whole).collect())
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(ROWS)
        given = facts, plan, later.buckets if later is not None else None
        with self._sized() as spark, no_pandas():
            read = _task("read_files", _read_files, parts, *given)
            rows = _over(spark, len(plan.groups) + len(plan.tasks), read, columns)
            if self.source is not None:
                read = _task("read_records", records.record_rows, *given)
                rows = rows.union(self.source.frame.mapInArrow(read, columns))
            # PySpark 4.0 has only the other one: by a hash of the same number, slightly less even.
            divide = rows.repartitionById if hasattr(rows, "repartitionById") else rows.repartition
            rows = divide(plan.partitions, "part").sortWithinPartitions(*_ORDER, ascending=[*_ORDER.values()])
            judging = _task("judge_buckets", _judge_buckets, facts, plan, later)
            found = rows.mapInArrow(judging, "results binary").toArrow()["results"]
        return itertools.chain.from_iterable(pa.ipc.open_stream(one.as_buffer()) for one in found)

    @contextlib.contextmanager
    def _sized(self) -> Iterator[Any]:
        """Give a session like the user's, but with batches of our sizes from the JVM.

        Spark Connect cannot combine frames of two sessions. There the user's own settings change for that
        long, in one comparison at a time.
        """
        spark = self.session.spark
        sizes = {
            "spark.sql.execution.arrow.maxRecordsPerBatch": _ROWS if self.source is None else records.RECORDS,
            # Not every Spark has this one.
            "spark.sql.execution.arrow.maxBytesPerBatch": records.BATCH_BYTES,
        }
        if self.session.context is not None:
            own = spark.newSession()
            for name, value in {**spark.conf.getAll, **sizes}.items():
                if own.conf.isModifiable(name):
                    own.conf.set(name, str(value))
            yield own
            return
        with _CONNECTED:
            before = {name: spark.conf.get(name, None) for name in sizes}
            try:
                for name, size in sizes.items():
                    spark.conf.set(name, str(size))
                yield spark
            finally:
                for name, old in before.items():
                    if old is None:
                        spark.conf.unset(name)
                    else:
                        spark.conf.set(name, old)
