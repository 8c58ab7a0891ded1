"""Ledgers as DataFrames: a row for each event, alone (`ledger`) or with its verdict (`events`).

Both need the ledgers packed, as for a verdict, in a folder that stays until the process ends. A worker
expands one stretch of sequences at a time. The words of `events` are not found again: they are the violations
that the verdict itself has written, spread over the stretches.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import storage
from logclient.evidence.arrays import I64, union
from logclient.evidence.arrays import expand as expand_ranges
from logclient.verify import output
from logclient.verify.dataframes import arrow
from logclient.verify.packed_ledger import NONE, OUTCOMES, PackedLedger, map_table
from logclient.verify.spark import Session, no_pandas
from logclient.verify.stages import SparkStages
from logclient.verify.start import remove
from logclient.verify.tuning import Tuning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from logclient.evidence.storage import Folder

__all__ = ["EVENTS", "LEDGER", "events", "ledger"]

STRETCHES = "stretches"  # a table of those with events, in the work folder
BITS = 16  # a stretch has 2 ** BITS sequences of one producer
MOST_EVENTS = 1 << 40  # sequences that no line explains may be as many as a damaged number says
TASK_EVENTS = 1 << 20
TASK_STRETCHES = 1 << 11
ROWS = 1 << 14  # in one batch
NO_STRETCH = -1  # the key of what belongs to no sequence of a ledger

LEDGER = pa.schema(
    [
        ("producer", pa.string()),  # 20 hex digits
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("sequence", pa.int64()),
        ("created", arrow.TIME),  # null: no line lists the event
        ("hash", pa.int64()),  # Spark's xxhash64(body); likewise
        ("outcome", pa.string()),
        ("reason", pa.string()),
    ]
)
"""The columns of `ledger`."""
EVENTS = pa.schema(
    [
        ("id", pa.string()),  # 32 hex digits; else ~ and the hash of the own id or the body
        *LEDGER,
        ("verdict", pa.string()),
        ("copies", pa.int64()),  # how often it arrived; null where that is not known
        ("reordered", pa.bool_()),
    ]
)
"""The columns of `events`, without those of the capture."""
_FAULTS = pa.schema(
    [
        ("part", pa.int32()),
        ("key", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("kind", pa.string()),  # null: the row only announces the stretch
        ("copies", pa.int64()),
        ("producer", pa.string()),
        ("other", pa.string()),
    ]
)
_COPIES = {"lost": 0, "missing": 0, "dropped": 0, "recovered": 1, "corrupted": 1}  # at least
ARRIVAL = ("received", "listener", "peer")


def ledger(
    spark: SparkSession, path: Folder | Sequence[Folder], *, work: Folder | None = None
) -> DataFrame:
    """Return the events of ledgers as a DataFrame: a row for each.

    The ledgers are packed at once, as they are now. The rows are made when the DataFrame is used.

    Args:
        spark: a session whose workers run this Python (``spark.pyspark.python``) and see the folders.
        path: the folders of the producers' ledgers: paths or URLs, as for `logclient.verify.run`.
        work: a folder or URL for 16 bytes per event, until the process ends. On a cluster it must be shared,
            or a URL. The default is the system's temporary folder.

    Returns:
        A DataFrame with the columns `LEDGER`. An event that was dropped has no time and no hash.

    Raises:
        LedgerError: a folder cannot be read, has no ledger, or is not visible to workers.
    """
    from logclient.evidence import ledger_files
    from logclient.verify import ledger_merge

    folders = storage.expand(path, "ledger")
    found = ledger_files.find_ledgers(folders)
    own = _work(work)
    stages = SparkStages(Session(spark=spark))
    stages.check_visible([("work", own), *(("ledger", folder) for folder in folders)])
    stems = stages.pack(found.parts, own)
    packed = ledger_merge.merge(stems, own, Tuning().bucket_bits, found.unread, found.copies)
    tasks = _plan(packed, BITS)
    with no_pandas():
        numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
        return numbers.mapInArrow(_expand_task(own, BITS, tasks), _schema(LEDGER))


def events(
    spark: SparkSession,
    ledger: Folder | Sequence[Folder],
    capture: Folder | Sequence[Folder],
    *,
    columns: Sequence[str] = ARRIVAL,
    work: Folder | None = None,
    **options: Any,
) -> DataFrame:
    """Compare ledgers with a capture, and return a DataFrame with a row for each event and its verdict.

    Everything is compared at once. The rows are made when the DataFrame is used. Ids and bodies in no ledger
    have a row, too.

    Args:
        spark: as for `ledger`.
        ledger: the folders of the producers' ledgers, as for `logclient.verify.run`.
        capture: likewise of the collectors' captures.
        columns: of the data source ``logclient``, for the first copy of each event. Events with an id of the
            application's own, and those without one, have none. Without `columns` the capture is read only
            once.
        work: as for `ledger`, 16 bytes more for each fault.
        **options: of `logclient.verify.run`, such as ``allow_open``.

    Returns:
        A DataFrame with the columns `EVENTS`, and these.

    Raises:
        ConfigError: there is no such column, or an option selects a part of the events.
        LedgerError: a folder cannot be read, or a ledger's numbers are beyond all bounds.
        LogclientError: the comparison fails, see `logclient.verify.run`.
    """
    from logclient.verify import job
    from logclient.verify.dataframes.columns import COLUMNS, LOGS

    for name in columns:
        if name not in COLUMNS or name in EVENTS.names or name not in (*LOGS, "protocol", "segment"):
            raise ConfigError(f"columns: {name!r} is no column of the capture that can be added")
    for name in ("run", "since", "until"):
        if options.get(name) is not None:
            raise ConfigError(f"{name}: the table has all events: select its rows by the column created")
    own = _work(work)
    out = storage.join(own, "verdict")
    verdict = job.run(ledger, capture, out=out, spark=spark, work=own, keep_work=True, **options)
    if verdict.counts.events > MOST_EVENTS:
        raise LedgerError(f"ledger: {verdict.counts.events} sequences are too many for a table")
    folder = _left_behind(own)
    packed = PackedLedger(folder, Tuning().bucket_bits)
    tasks = _plan(packed, BITS)
    with no_pandas():
        rows = spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(
            _announce_task(folder, tasks), _schema(_FAULTS)
        )
        if faults := [storage.join(out, "violations", name) for name in output.violation_files(out)]:
            found = spark.range(0, len(faults), 1, len(faults))
            rows = rows.union(found.mapInArrow(_spread_task(folder, BITS, tasks, faults), _schema(_FAULTS)))
        spread = rows.repartition(max(len(tasks), 1), "part").sortWithinPartitions("key", "first")
        judged = spread.mapInArrow(_judge_task(folder, BITS), _schema(EVENTS))
    return _with_arrivals(spark, judged, capture, columns) if columns else judged


def _left_behind(own: str) -> str:
    """Return the work folder of the comparison, without the largest files, which nobody needs any more."""
    for name, entries in storage.list_folders(own, "work"):
        if name.startswith("logclient-verify-"):
            folder = storage.join(own, name)
            for entry in entries:
                if entry.name.endswith(".arrivals"):  # in a folder, never behind a URL
                    os.unlink(storage.join(folder, entry.name))
            return folder
    raise AssertionError("the comparison keeps its work folder")


def _with_arrivals(
    spark: SparkSession, judged: DataFrame, capture: Folder | Sequence[Folder], columns: Sequence[str]
) -> DataFrame:
    """Add columns of the first copy of each event."""
    from pyspark.sql import functions as sql
    from pyspark.sql.pandas.types import from_arrow_schema

    from logclient.verify.dataframes.columns import Columns
    from logclient.verify.dataframes.sources import PATHS, paths_option

    # The place breaks ties: copies may arrive in the same microsecond.
    order = ("received", "arrival", "listener")
    keys = ("producer", "sequence")
    names = list(dict.fromkeys((*keys, "error", *order, *columns)))
    source = spark.read.format("logclient").schema(from_arrow_schema(Columns(tuple(names)).schema))
    found = source.option(PATHS, paths_option(capture)).load()
    arrived = found.where("error is null and sequence is not null")
    first = sql.min_by(sql.struct(*columns), sql.struct(*order)).alias("first")
    firsts = arrived.groupBy(*keys).agg(first)
    joined = judged.join(firsts, [*keys], "left")
    return joined.select(*EVENTS.names, *(sql.col(f"first.{name}").alias(name) for name in columns))


def _work(work: Folder | None) -> str:
    """Make a work folder that is deleted when the process ends."""
    place = storage.resolve(work, "work") if work is not None else tempfile.gettempdir()
    if storage.is_url(place):
        storage.check_writable(place, "work")
        folder = storage.join(place, f"logclient-frame-{uuid.uuid4().hex}")
        atexit.register(storage.remove_all, folder)
        return folder
    try:
        folder = os.path.abspath(tempfile.mkdtemp(prefix="logclient-frame-", dir=place))
    except OSError as error:
        raise LedgerError(f"work: {place}: {error.strerror}") from error
    atexit.register(remove, folder)
    return folder


def _schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


class Stretches:
    """The sequences of all producers in stretches of ``2 ** BITS``, which tasks expand one at a time.

    Args:
        packed: the ledgers.
        bits: of the length.
    """

    def __init__(self, packed: PackedLedger, bits: int) -> None:
        self.packed = packed
        self.bits = bits
        self.bases = np.concatenate(([0], np.cumsum(-(-packed.last >> bits))))  # the first of each producer

    def owner(self, key: int) -> int:
        """Return the producer of a stretch."""
        return int(np.searchsorted(self.bases, key, side="right")) - 1

    def first(self, key: int) -> int:
        """Return the first sequence of a stretch."""
        return ((key - int(self.bases[self.owner(key)])) << self.bits) + 1

    def key(self, p: int, sequence: int) -> int:
        """Return the stretch of a sequence."""
        return int(self.bases[p]) + ((sequence - 1) >> self.bits)


def _plan(packed: PackedLedger, bits: int) -> list[tuple[int, int]]:
    """Share out the stretches in which a producer says something of an event, and save them.

    Returns:
        For each task the first stretch, and the one behind its last, as places in the saved list.
    """
    stretches = Stretches(packed, bits)
    found = [np.empty(0, np.int64)]
    # Sequences without a line of their own have an outcome at most: dropped ones.
    for table in (packed.spans, packed.outcomes):
        for low in range(0, len(table), 1 << 16):
            rows = table[low : low + (1 << 16)]
            base = stretches.bases[rows[:, 0]]
            first, last = base + ((rows[:, 1] - 1) >> bits), base + ((rows[:, 2] - 1) >> bits)
            if int((last - first).sum()) > MOST_EVENTS >> bits:
                raise LedgerError("ledger: it has outcomes of more events than a table can hold")
            found.append(expand_ranges(union(np.stack((first, last), axis=1))))
    keys = np.unique(np.concatenate(found))
    with storage.create(storage.join(packed.work, STRETCHES + ".rows"), "work") as file:
        file.write(keys.astype(np.int64).tobytes())
    if not len(keys):
        return []
    owner = np.searchsorted(stretches.bases, keys, side="right") - 1
    sizes = np.minimum(packed.last[owner] - ((keys - stretches.bases[owner]) << bits), 1 << bits)
    # A task has so many events, or so many nearly empty stretches.
    cost = np.cumsum(np.maximum(sizes, TASK_EVENTS // TASK_STRETCHES)) // TASK_EVENTS
    edges = np.flatnonzero(np.concatenate(([True], cost[1:] != cost[:-1]))).tolist()
    return list(zip(edges, [*edges[1:], len(keys)], strict=True))


_Task = Callable[[Iterable[Any]], Iterator[Any]]


def _expand_task(work: str, bits: int, tasks: list[tuple[int, int]]) -> _Task:
    def expand(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify.dataframes import ledgers

        stretches = Stretches(PackedLedger(work, Tuning().bucket_bits), bits)
        keys = map_table(work, STRETCHES)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for key in keys[slice(*tasks[number])].tolist():
                    yield from ledgers.expand(stretches, key)

    return expand


def _announce_task(work: str, tasks: list[tuple[int, int]]) -> _Task:
    def announce(batches: Iterable[Any]) -> Iterator[Any]:
        keys = map_table(work, STRETCHES)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                some = np.array(keys[slice(*tasks[number])])
                n = len(some)
                nulls = [pa.nulls(n, field.type) for field in list(_FAULTS)[2:]]
                part = pa.array(np.full(n, number, np.int32))
                yield pa.record_batch([part, pa.array(some), *nulls], schema=_FAULTS)

    return announce


def _spread_task(work: str, bits: int, tasks: list[tuple[int, int]], faults: list[str]) -> _Task:
    def spread(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify.dataframes import ledgers

        stretches = Stretches(PackedLedger(work, Tuning().bucket_bits), bits)
        keys = map_table(work, STRETCHES)
        starts = np.array([low for low, _ in tasks], np.int64)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # Read here and not by Spark, which needs more packages for a URL.
                with storage.open_buffered(faults[number], "work") as source, pq.ParquetFile(source) as file:
                    for found in file.iter_batches(ROWS):
                        yield from ledgers.spread(stretches, keys, starts, found)

    return spread


def _judge_task(work: str, bits: int) -> _Task:
    def judge(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify.dataframes import ledgers

        packed = PackedLedger(work, Tuning().bucket_bits)
        yield from ledgers.judge(Stretches(packed, bits), batches)

    return judge


def expand(stretches: Stretches, key: int) -> Iterator[pa.RecordBatch]:
    """Yield the events of a stretch, with the columns `LEDGER`."""
    content = _Content(stretches, key)
    which = np.flatnonzero(content.known)
    for low in range(0, len(which), ROWS):
        yield pa.record_batch(content.columns(which[low : low + ROWS]), schema=LEDGER)


def spread(stretches: Stretches, keys: I64, starts: I64, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield violations as rows of `_FAULTS`, each in one stretch.

    Args:
        stretches: of the ledgers.
        keys: the stretches with events.
        starts: for each task, the place of its first stretch.
        batch: of `schema.VIOLATIONS`.
    """
    packed = stretches.packed
    rows: list[dict[str, Any]] = []

    def add(key: int, row: dict[str, Any], first: int | None, last: int | None) -> None:
        at = int(np.searchsorted(keys, key)) if key >= 0 else (first or 0) % max(len(keys), 1)
        part = max(int(np.searchsorted(starts, at, side="right")) - 1, 0)
        named = {name: row[name] for name in ("kind", "copies", "producer", "other")}
        rows.append({"part": part, "key": key, "first": first, "last": last, **named})

    found: dict[str, int] = {}
    for row in batch.to_pylist():
        name, first, last = row["producer"], row["first"], row["last"]
        if name is not None and name not in found:
            found[name] = packed.find(name)
        p = -1 if name is None else found[name]
        if first != last and row["kind"] != "duplicated":
            # Along a range the number may differ: more than one copy is `duplicated`, too, if it is listed.
            row["copies"] = _COPIES.get(row["kind"])
        inside = p >= 0 and first >= 1 and last <= int(packed.last[p])
        if not inside:
            add(NO_STRETCH, row, first, last)
        while inside and first <= last:
            key = stretches.key(p, first)
            end = stretches.first(key) + (1 << stretches.bits) - 1
            add(key, row, first, min(last, end))
            first = end + 1
            if len(rows) >= ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=_FAULTS)
                rows.clear()
    yield pa.RecordBatch.from_pylist(rows, schema=_FAULTS)


def judge(stretches: Stretches, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some stretches with their words, with the columns `EVENTS`.

    Args:
        stretches: of the ledgers.
        batches: of `_FAULTS`, sorted by stretch.
    """
    current: _Judged | None = None
    for batch in batches:
        for row in batch.to_pylist():
            key = row["key"]
            if key == NO_STRETCH:
                yield from _strangers(row)
                continue
            if current is None or current.content.key != key:
                if current is not None:
                    yield from current.rows()
                current = _Judged(stretches, key)
            if row["kind"] is not None:
                current.add(row["kind"], row["first"], row["last"], row["copies"])
    if current is not None:
        yield from current.rows()


def _strangers(row: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield rows for ids and bodies that belong to no sequence of a ledger."""
    name = row["producer"]
    first, last = (row["first"], row["last"]) if name is not None else (0, 0)
    for low in range(first, last + 1, ROWS):
        found = [
            {
                "id": f"~{row['other']}" if name is None else f"{name}{sequence:012x}",
                "producer": name,
                "sequence": None if name is None else sequence,
                "verdict": row["kind"],
                "copies": row["copies"],
                "reordered": False,
            }
            for sequence in range(low, min(low + ROWS, last + 1))
        ]
        yield pa.RecordBatch.from_pylist(found, schema=EVENTS)


class _Content:
    """What a ledger says of the sequences of a stretch."""

    def __init__(self, stretches: Stretches, key: int) -> None:
        self.packed = packed = stretches.packed
        self.key = key
        p = stretches.owner(key)
        self.first = stretches.first(key)
        n = min(1 << stretches.bits, int(packed.last[p]) - self.first + 1)
        self.hashes = np.zeros(n, np.uint64)
        self.created_us = np.zeros(n, np.int64)
        self.listed = np.zeros(n, bool)
        for _, first, last, position, file in self._overlapping(packed.spans_of(p), n):
            low, high = max(first, self.first), min(last, self.first + n - 1)
            where = slice(low - self.first, high - self.first + 1)
            self.hashes[where], self.created_us[where] = packed.read(
                file, position + low - first, high - low + 1
            )
            self.listed[where] = True
        self.outcome = np.full(n, NONE, np.uint8)
        self.reason = np.full(n, len(packed.reasons), np.int32)
        for _, first, last, outcome, reason in self._overlapping(packed.outcomes_of(p), n):
            where = slice(max(first - self.first, 0), last - self.first + 1)
            self.outcome[where], self.reason[where] = outcome, reason  # the strongest comes last
        self.known = self.listed | (self.outcome != NONE)
        self.about = packed.producers[p]

    def _overlapping(self, rows: I64, n: int) -> list[list[int]]:
        found: list[list[int]] = rows[(rows[:, 1] < self.first + n) & (rows[:, 2] >= self.first)].tolist()
        return found

    def columns(self, which: npt.NDArray[np.intp]) -> list[pa.Array]:
        """Return the columns `LEDGER` of some sequences, as distances from the first."""
        about, n = self.about, len(which)
        listed = self.listed[which]
        outcomes, reasons = pa.array(OUTCOMES), pa.array([*self.packed.reasons, ""])
        return [
            arrow.constant(about.producer, n),
            arrow.constant(about.host or None, n),
            pa.repeat(pa.scalar(about.pid or None, pa.int64()), n),
            pa.array(self.first + which),
            arrow.times(self.created_us[which], listed),
            pa.array(self.hashes[which].view(np.int64), mask=~listed),
            outcomes.take(pa.array(self.outcome[which])),
            reasons.take(pa.array(self.reason[which])),
        ]


class _Judged:
    """A stretch with the words of its events."""

    def __init__(self, stretches: Stretches, key: int) -> None:
        self.content = _Content(stretches, key)
        n = len(self.content.known)
        self.words = ["ok"]
        self.word = np.zeros(n, np.int8)
        self.copies = np.where(self.content.listed, 1, 0)
        self.twice = np.zeros(n, np.int64)
        self.reordered = np.zeros(n, bool)

    def add(self, kind: str, first: int, last: int, copies: int | None) -> None:
        """Take a violation."""
        base = self.content.first
        where = slice(first - base, last - base + 1)
        known = -1 if copies is None else copies
        if kind == "reordered":
            self.reordered[where] = True
        elif kind == "duplicated":
            self.twice[where] = known
        else:
            if kind not in self.words:
                self.words.append(kind)
            self.word[where] = self.words.index(kind)
            self.copies[where] = known

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the events of the stretch."""
        content, name = self.content, self.content.about.producer
        which = np.flatnonzero(content.known | (self.word > 0))
        high, low = int(name[:16], 16), int(name[16:], 16)
        words = pa.array(self.words)
        copies = np.where(self.twice > 0, self.twice, self.copies)
        for at in range(0, len(which), ROWS):
            some = which[at : at + ROWS]
            n = len(some)
            ids = arrow.ids(
                np.full(n, high, np.uint64),
                np.full(n, low, np.uint16),
                content.first + some,
                np.ones(n, bool),
            )
            yield pa.record_batch(
                [
                    ids,
                    *content.columns(some),
                    words.take(pa.array(self.word[some])),
                    pa.array(copies[some], mask=copies[some] < 0),
                    pa.array(self.reordered[some]),
                ],
                schema=EVENTS,
            )
