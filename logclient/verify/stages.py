"""The Spark jobs of a verification, and the functions that its workers run.

Functions made here are sent to the workers by value, and import their modules there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from logclient.errors import LedgerError
from logclient.evidence import storage
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.verify.daemon import freeze_imports
from logclient.verify.spark import is_local, no_pandas

if TYPE_CHECKING:
    import pyarrow as pa

    from logclient.evidence.ledger_files import Parts
    from logclient.verify.plan import Plan
    from logclient.verify.records import Source
    from logclient.verify.spark import Session

__all__ = ["SparkStages", "not_visible", "share_out"]

PACK_BYTES = 32 << 20  # of ledgers in one task
HERE_FILES, HERE_BYTES = 64, 64 << 20  # of ledgers that are packed without a job, in less than 0.1 s
CORES = 1024  # the largest number of cores that can be counted

_ORDER = ("key", "listener", "position")  # of the arrivals that a reduce task gets
_ROWS = 1 << 10  # in a batch for it


def _visibility_task(places: list[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def find_invisible(batches: Iterable[Any]) -> Iterator[Any]:
        import socket

        import pyarrow as pa

        for _ in batches:
            pass
        row = ["", "", socket.gethostname(), ""]
        for what, place in places:
            try:
                storage.check_reachable(place, what)
            except LedgerError as error:
                # A path is named with a remedy; the error of a server says what is wrong.
                row = [what, place, row[2], str(error) if storage.is_url(place) else ""]
                break
        yield pa.record_batch([[value] for value in row], names=["what", "place", "host", "why"])

    return find_invisible


def _pack_task(
    jobs: list[tuple[int, int]], work: str, selection: Selection
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def pack(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from logclient.evidence import ledger_files
        from logclient.verify import ledger_pack

        freeze_imports()
        for batch in batches:
            for job in batch.column(0).to_pylist():
                low, high = jobs[job]
                group = ledger_files.Parts.load(work, slice(low, high))
                stem = ledger_pack.pack(group, job, work, selection)
                yield pa.record_batch([[job], [stem]], names=["job", "stem"])

    return pack


def _map_task(work: str, only: frozenset[int] | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_map(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import gather

        freeze_imports()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from gather.map_task(work, task, only)

    return run_map


def _records_task(work: str, only: frozenset[int] | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_records(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import records

        freeze_imports()
        yield from records.map_task(work, batches, only)

    return run_records


def _reduce_task(
    work: str, later: dict[tuple[int, int], int] | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_reduce(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from logclient.verify import compare

        freeze_imports()
        yield pa.record_batch([[compare.reduce_to_file(batches, work, later)]], names=["name"])

    return run_reduce


def _whole_task(
    work: str, only: frozenset[int] | None, later: dict[tuple[int, int], int] | None
) -> Callable[[Iterable[Any]], Iterator[str]]:
    def run_whole(numbers: Iterable[Any]) -> Iterator[str]:
        import pyarrow as pa

        from logclient.verify import compare, gather
        from logclient.verify.schema import ARRIVALS

        freeze_imports()
        for task in numbers:
            rows = pa.Table.from_batches(gather.map_task(work, task, only), ARRIVALS)
            rows = rows.sort_by([(name, "ascending") for name in _ORDER])
            yield compare.reduce_to_file(rows.to_batches(max_chunksize=_ROWS), work, later)

    return run_whole


def _zeros_task(schema: pa.Schema) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def yield_zeros(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        empty = {pa.string(): "", pa.binary(): b""}
        row = {field.name: empty.get(field.type, 0) for field in schema}
        yield pa.RecordBatch.from_pylist([row], schema=schema)

    return yield_zeros


def _ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "string": "string", "binary": "binary"}
    return ", ".join(f"`{field.name}` {names[str(field.type)]}" for field in schema)


class SparkStages:
    """The jobs of a verification on a Spark session.

    Args:
        session: a session.
        source: the records that arrived; None: a capture.

    Attributes:
        cores: how many tasks run at a time; 0: not known yet.
        local: whether they run on this machine, in processes of one JVM.
    """

    def __init__(self, session: Session, source: Source | None = None) -> None:
        self.session = session
        self.source = source
        self.cores = 0
        self.local = False
        if session.context is not None:
            self.cores = session.context.defaultParallelism
            self.local = is_local(session.context.master)

    def check_visible(self, places: list[tuple[str, str]]) -> None:
        """Check that workers on other machines see the folders that they read and write.

        Where Spark does not tell the number of its cores, this counts them.

        Args:
            places: what each folder is, and the place of it.

        Raises:
            LedgerError: a worker does not see a folder. Without this check every task would fail later.
        """
        if self.local:
            return
        frame = self.session.spark.range(CORES)  # in as many tasks as there are cores
        ddl = "what string, place string, host string, why string"
        with no_pandas():
            found = frame.mapInArrow(_visibility_task(places), ddl)
        rows = found.collect()
        for row in rows:
            worker = f"the worker on {row.host}"
            if row.why:
                raise LedgerError(f"{row.why} (seen by {worker})")
            if row.what:
                raise not_visible(row.what, row.place, worker)
        self.cores = self.cores or len(rows)

    def _over(self, n: int, function: Any, ddl: str) -> Any:
        """Return a frame with the rows of `n` tasks, each of which receives its number."""
        with no_pandas():
            return self.session.spark.range(0, n, 1, n).mapInArrow(function, ddl)

    def pack(self, parts: Parts, work: str, selection: Selection = EVERYTHING) -> list[str]:
        """Pack the ledger files. See `ledger_pack.pack`.

        Returns:
            The stems of the packed files, in the order of the parts.
        """
        if len(parts) <= HERE_FILES and sum(parts.sizes) <= HERE_BYTES:
            from logclient.verify import ledger_pack

            return [ledger_pack.pack(parts[:], 0, work, selection)]
        jobs = [(group[0], group[-1] + 1) for group in share_out(parts.sizes, PACK_BYTES)]
        parts.save(work)
        task = _pack_task(jobs, work, selection)
        rows = self._over(len(jobs), task, "job bigint, stem string").collect()
        return [row.stem for row in sorted(rows, key=lambda row: int(row.job))]

    def compare(
        self,
        plan: Plan,
        only: frozenset[int] | None = None,
        later: dict[tuple[int, int], int] | None = None,
    ) -> list[str]:
        """Run map and reduce, in one task if the plan has one task and one partition.

        Args:
            plan: saved in the work folder.
            only: for a second pass, the buckets to compare.
            later: for a second pass, see `compare.reduce_task`.

        Returns:
            The names of the result files in the work folder, see `work_files.read_results`.
        """
        if self.local and self.source is None and len(plan.tasks) == plan.partitions == 1:
            return self._in_one_task(_whole_task(plan.work, only, later))
        from logclient.verify.schema import ARRIVALS

        arrivals = self._over(len(plan.tasks), _map_task(plan.work, only), _ddl(ARRIVALS))
        if self.source is not None:
            with no_pandas():
                records = self.source.frame.mapInArrow(_records_task(plan.work, only), _ddl(ARRIVALS))
            arrivals = arrivals.union(records)
        results = self._reduce(arrivals, plan.partitions, _reduce_task(plan.work, later))
        with self._in_large_batches(inline=storage.is_url(plan.work)):
            return [row.name for row in results.collect()]

    def _in_one_task(self, function: Any) -> list[Any]:
        """Return the results of a task of its own, which receives the number 0.

        Frames need a SparkSession and Spark's planner, whose start takes longer than a small comparison.
        """
        found: list[Any] = self.session.context.parallelize([0], 1).mapPartitions(function).collect()
        return found

    def _reduce(self, arrivals: Any, partitions: int, task: Any) -> Any:
        """Return a frame with the rows of a task over each partition of the arrivals, in order."""
        if hasattr(arrivals, "repartitionById"):
            spread = arrivals.repartitionById(partitions, "part")
        else:  # PySpark 4.0: by a hash of the same number, slightly less even
            spread = arrivals.repartition(partitions, "part")
        with no_pandas():
            return spread.sortWithinPartitions(*_ORDER).mapInArrow(task, "name string")

    def exercise(self) -> None:
        """Run the jobs of a verification on made-up rows, so that the JVM loads all of their classes."""
        import pyarrow as pa

        from logclient.verify.schema import ARRIVALS

        if self.local:
            self._in_one_task(list)
        packed = pa.schema({"job": pa.int64(), "stem": pa.string()})
        self._over(2, _zeros_task(packed), _ddl(packed)).collect()
        arrivals = self._over(2, _zeros_task(ARRIVALS), _ddl(ARRIVALS))
        self._reduce(arrivals, 2, _zeros_task(pa.schema({"name": pa.string()}))).collect()

    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """Fetch records by listener and number. See `records.Source.pick`."""
        assert self.source is not None
        with no_pandas(), self._in_large_batches():
            return self.source.pick(wanted)

    @contextlib.contextmanager
    def _in_large_batches(self, inline: bool = False) -> Iterator[None]:
        """Get records from the JVM by the thousand; the default suits our own frames of a few rows.

        Args:
            inline: whether our rows have their data with them, so that a few of them are large.
        """
        from logclient.verify.records import BATCH_BYTES, RECORDS

        conf = self.session.spark.conf
        settings = {"maxRecordsPerBatch": RECORDS, "maxBytesPerBatch": BATCH_BYTES} if self.source else {}
        if inline:
            settings["maxBytesPerBatch"] = BATCH_BYTES
        before = {}
        for name, value in settings.items():
            key = f"spark.sql.execution.arrow.{name}"
            before[key] = conf.get(key, None)
            conf.set(key, str(value))
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    conf.unset(key)
                else:
                    conf.set(key, old)


def not_visible(what: str, folder: str, worker: str) -> LedgerError:
    """Return the error for a folder that a worker does not see, with a remedy."""
    if what == "work":
        how = "give --work (work=) a folder that all machines share"
    else:
        how = "workers read it themselves: put it on storage that all machines share"
    return LedgerError(f"{what}: {worker} cannot see {folder}: {how}")


def share_out(sizes: list[int], limit: int) -> list[list[int]]:
    """Group consecutive indices so that each group has about `limit` bytes.

    Args:
        sizes: bytes of each file.
        limit: bytes of a group; a larger file is a group of its own.

    Returns:
        Lists of indices into `sizes`, in order, at most 512 in each.
    """
    groups: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not groups or room < size or len(groups[-1]) >= 512:
            groups.append([])
            room = limit
        groups[-1].append(index)
        room -= size
    return groups
