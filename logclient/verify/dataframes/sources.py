"""The data sources: tables of log events, of arrivals, of ledgers, and of events with their words.

Those of captures are selections of the columns of ``columns.py``, and are read by ``pieces.py``: the Python
workers read and decode the segments, and only columns go to the JVM. That is four times cheaper than sending
raw bytes through the JVM to a second Python stage.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import captures, decode, ledger_files, storage
from logclient.evidence.captures import LeftOut
from logclient.evidence.ledger_files import Part as LedgerPart
from logclient.evidence.segments import Header
from logclient.evidence.storage import Folder
from logclient.verify import worker
from logclient.verify.dataframes import pieces
from logclient.verify.dataframes.columns import ARRIVALS, LOGS, UNITS, Columns, select, spark_schema
from logclient.verify.dataframes.ledgers import EVENTS, LEDGER, MOST_PRODUCERS, rows_of
from logclient.verify.dataframes.pieces import Series, Wanted
from logclient.verify.violation_files import violations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> SparkSession:
    """Register ``logclient-capture``, ``logclient-ledger`` and ``logclient-events``. May be called again.

    The data source ``logclient`` needs no call: Spark finds it by itself.

    Returns:
        The same session.
    """
    for source in (CaptureSource, LedgerSource, EventSource):
        spark.dataSource.register(source)
    return spark


def arrivals(spark: SparkSession, capture: Folder | Sequence[Folder], *, rows: str = "events") -> DataFrame:
    """Return the content of a capture as a DataFrame.

    Args:
        spark: a session whose workers run this Python (``spark.pyspark.python``) and see the folders.
        capture: the folder of a capture, or several: paths, URLs and patterns, as for `logclient.verify.run`.
        rows: ``events`` for a row per event or undecoded unit; ``units`` for a row per wire unit.

    Returns:
        A DataFrame with the columns of docs/dataframes.md.

    Raises:
        LedgerError: the folders hold no capture.
        ConfigError: `rows` is neither of the two.
    """
    _columns_of(rows)
    captures.choose(storage.expand(capture, "capture"))
    source = register(spark).read.format(CaptureSource.name()).option("rows", rows)
    return source.option(_PATHS, _as_option(capture, "capture")).load()


def ledger(spark: SparkSession, path: Folder | Sequence[Folder]) -> DataFrame:
    """Return the events of ledgers as a DataFrame: a row for each. Nothing is read before it is used.

    Args:
        spark: as for `arrivals`.
        path: the folders of the producers' ledgers: paths or URLs, as for `logclient.verify.run`.

    Returns:
        A DataFrame with the columns `LEDGER`. An event that was dropped has no time and no hash.
    """
    source = register(spark).read.format(LedgerSource.name())
    return source.option("ledger", _as_option(path, "ledger")).load()


ARRIVAL = ("received", "listener", "peer")


def events(
    spark: SparkSession,
    ledger: Folder | Sequence[Folder],
    capture: Folder | Sequence[Folder],
    *,
    columns: Sequence[str] = ARRIVAL,
) -> DataFrame:
    """Return a DataFrame with a row for each event of ledgers or of a capture, and its verdict.

    Nothing is read before it is used. Ids and bodies in no ledger have a row, too.

    Args:
        spark: as for `arrivals`.
        ledger: the folders of the producers' ledgers, as for `logclient.verify.run`.
        capture: likewise of the collectors' captures.
        columns: of the data source ``logclient``, for the first copy of each event. Events with an id of the
            application's own, and those without one, have none. Without `columns` the capture is read only
            once.

    Returns:
        A DataFrame with the columns `EVENTS`, and these.

    Raises:
        ConfigError: there is no such column.
    """
    possible = {*LOGS, "document", "protocol", "segment"} - {*EVENTS.names}
    for name in columns:
        if name not in possible:
            raise ConfigError(f"columns: {name!r} is no column of the capture that can be added")
    source = register(spark).read.format(EventSource.name()).option("ledger", _as_option(ledger, "ledger"))
    folders = _as_option(capture, "capture")
    judged = source.option("capture", folders).load()
    if not columns:
        return judged
    # The place breaks ties: copies may arrive in the same microsecond.
    order = ("received", "arrival", "listener")
    names = ", ".join(dict.fromkeys(("producer", "sequence", "error", *order, *columns)))
    logs = spark.read.format("logclient").option("columns", names).option(_PATHS, folders).load()
    # As SQL: PySpark's functions are for one kind of session, and this may be one of Connect.
    query = f"""SELECT {", ".join((*EVENTS.names, *(f"first.{name}" for name in columns)))}
        FROM {{judged}} LEFT JOIN (
            SELECT producer, sequence,
                min_by(struct({", ".join(columns)}), struct({", ".join(order)})) AS first
            FROM {{logs}} WHERE error IS NULL AND sequence IS NOT NULL GROUP BY producer, sequence
        ) USING (producer, sequence)"""
    return spark.sql(query, judged=judged, logs=logs)


# -- options

_PATHS = "paths"  # the option in which Spark, too, passes several paths, as JSON


def _as_option(folders: Folder | Sequence[Folder], what: str) -> str:
    return json.dumps(storage.resolve_all(folders, what))


def _columns_of(rows: str) -> tuple[str, ...]:
    if rows not in ("events", "units"):
        raise ConfigError(f"rows: {rows!r} must be events or units")
    return ARRIVALS if rows == "events" else UNITS


def _folders(options: Any, what: str, *names: str) -> list[str]:
    """Return the places of some options, each of them a place or a list of them as JSON."""
    given: list[str] = []
    for name in names:
        text = str(options.get(name) or "")
        if name != _PATHS and not text.startswith("["):
            given += [text] * bool(text)
        elif text:
            try:
                found = json.loads(text)
            except ValueError:
                found = None
            if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
                raise ConfigError(f"{name}: it must be a list of paths as JSON: give them to load()")
            given += found
    if not given:
        raise ConfigError(f"{names[0]}: the folder of a {what} must be given")
    return storage.resolve_all(given, what)


_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def _bytes(name: str, options: Any) -> int | None:
    """Return a number of bytes; None: the option is not given."""
    if (given := options.get(name)) is None:
        return None
    match = _SIZE.fullmatch(str(given).strip())
    size = int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ") if match else 0
    if not size:
        raise ConfigError(f"{name}: {given!r} must be a number of bytes such as 67108864 or 64m")
    return size


def _one_of(name: str, options: Any, *choices: str) -> bool:
    """Return whether an option has the second of two values; the first one is the default."""
    given = str(options.get(name, choices[0]))
    if given.upper() not in (choice.upper() for choice in choices):
        raise ConfigError(f"{name}: {given!r} must be {' or '.join(choices)}")
    return given.upper() == choices[1].upper()


class _Table(DataSource):
    """A table with options that are checked."""

    _name: str
    _known: tuple[str, ...]

    @classmethod
    def name(cls) -> str:
        return cls._name

    def _check_options(self) -> None:
        names = {name.lower() for name in (*self._known, "path", _PATHS)}
        if wrong := sorted(name for name in self.options if name.lower() not in names):
            raise ConfigError(f"{wrong[0]}: there is no such option: there are {', '.join(self._known)}")

    @property
    def _strict(self) -> bool:
        return _one_of("mode", self.options, "PERMISSIVE", "FAILFAST")


# -- captures


class Options:
    """The options of a table of a capture, with the columns that are asked for."""

    def __init__(self, options: Any, columns: Columns, quiet: bool, strict: bool) -> None:
        self.columns = columns
        self.folders = _folders(options, "capture", "path", _PATHS)
        self.protocol = str(options.get("protocol", ""))
        if self.protocol:
            decode.wire(self.protocol)
        self.partition_bytes = _bytes("maxPartitionBytes", options)
        self.trigger_bytes = _bytes("maxBytesPerTrigger", options)
        self.push = _one_of("pushFilters", options, "false", "true")
        self.wanted = Wanted(quiet=quiet, strict=strict)

    def find(self, known: dict[str, Header] | None = None) -> tuple[list[Series], list[LeftOut]]:
        """Find the segments, and the files that cannot be read, see `pieces.find_series`."""
        series, left_out = pieces.find_series(self.folders, self.protocol, known)
        for one in left_out:
            if self.wanted.strict:
                raise LedgerError(f"capture: {one.segment}: {one.reason}")
        return series, left_out


@dataclasses.dataclass
class Part(InputPartition):
    """The pieces of one task, and files that are only named."""

    series: list[Series]
    left_out: Sequence[LeftOut] = ()


class _CaptureTable(_Table):
    _quiet = False
    _known: tuple[str, ...] = (
        "path", "protocol", "columns", "mode", "maxPartitionBytes", "maxBytesPerTrigger", "pushFilters",
    )  # fmt: skip

    @property
    def _default(self) -> Columns:
        return Columns(LOGS)

    @property
    def _columns(self) -> Columns:
        names = [name for name in re.split(r"[\s,]+", str(self.options.get("columns", ""))) if name]
        possible = self._default.possible().names
        for name in names:
            if name not in possible:
                raise ConfigError(f"columns: there is no column {name!r}: {', '.join(possible)}")
        return Columns(tuple(names)) if names else self._default

    def schema(self) -> StructType:
        return spark_schema(self._columns.schema)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        return BatchReader(self._options(schema))

    def streamReader(self, schema: StructType | None) -> DataSourceStreamReader:
        from logclient.verify.dataframes.streams import StreamReader

        return StreamReader(self._options(schema))

    def _options(self, schema: StructType | None) -> Options:
        self._check_options()
        columns = self._columns
        if schema is not None:
            columns = Columns(select(schema, self._default.possible()))
        return Options(self.options, columns, self._quiet, self._strict)


class LogSource(_CaptureTable):
    """The data source ``logclient``: a row for each event, with its body and what is in it.

    Its options are in docs/dataframes.md.
    """

    _name = "logclient"


class CaptureSource(_CaptureTable):
    """The data source ``logclient-capture``.

    Its options are those of `LogSource` and ``rows`` (``events`` or ``units``).
    """

    _name = "logclient-capture"
    _quiet = True
    _known = (*_CaptureTable._known, "rows")

    @property
    def _default(self) -> Columns:
        return Columns(_columns_of(str(self.options.get("rows", "events"))))


class BatchReader(DataSourceReader):
    """Reads a capture once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.pushFilters = _Pushdown(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Keep what filters tell about the rows. Spark applies all of them again.

        Only if the option ``pushFilters`` is set: PySpark 4.1 to 4.3 keep the partitions of a filtered query
        in its DataFrame, and use them for the next query of it without a filter, too.
        """
        given = list(filters)
        if self.options.push:
            self.options.wanted = narrow(self.options.wanted, given)
        return given

    def partitions(self) -> list[InputPartition]:
        """Return the partitions, by bytes."""
        options = self.options
        series, left_out = options.find()
        if (only := options.wanted.listeners) is not None:
            series = [one for one in series if one.listener in only]
        limit = options.partition_bytes or pieces.fair_bytes(series)
        parts = [Part(part) for part in pieces.share(series, options.columns, limit)]
        if left_out and not options.columns.of_units:
            parts.append(Part([], left_out))
        return list(parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        if not isinstance(partition, Part):  # Spark makes one when there are none
            return iter(())
        freeze_in_task()
        columns = self.options.columns
        return itertools.chain(
            pieces.rows_of(partition.left_out, columns),
            pieces.read(partition.series, columns, self.options.wanted),
        )


def freeze_in_task() -> None:
    """Exempt what is imported from garbage collection, in a task of Spark, see `worker.prepare`."""
    if TaskContext.get() is not None:
        worker.prepare()


class _Pushdown:
    """A method `pushFilters` that may stay unused.

    PySpark refuses a reader that overrides `pushFilters` while ``spark.sql.python.filterPushdown.enabled`` is
    false, which is the default. It looks at the function of the method, and this one shows the inherited one.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self._push = push

    def __call__(self, filters: Iterable[Any]) -> Iterable[Any]:
        return self._push(filters)


def narrow(wanted: Wanted, filters: Iterable[Any]) -> Wanted:
    """Return the rows that are wanted under some filters of ``pyspark.sql.datasource``, or a few more."""
    for one in filters:
        kind = type(one).__name__
        name = getattr(one, "attribute", ("",))
        value: Any = getattr(one, "value", None)
        if name in (("listener",), ("producer",)) and kind in ("EqualTo", "EqualNullSafe", "In"):
            values: frozenset[str] = frozenset(value if kind == "In" else [value])
            if None in values:
                continue
            before = wanted.listeners if name == ("listener",) else wanted.producers
            both: Any = {f"{name[0]}s": values if before is None else before & values}
            wanted = wanted._replace(**both)
        elif name == ("received",) and isinstance(value, datetime.datetime):
            since = value.astimezone(datetime.UTC) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            us = since // datetime.timedelta(microseconds=1)
            if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo", "EqualNullSafe"):
                wanted = wanted._replace(first_us=max(us, us if wanted.first_us is None else wanted.first_us))
            if kind in ("LessThan", "LessThanOrEqual", "EqualTo", "EqualNullSafe"):
                wanted = wanted._replace(last_us=min(us, us if wanted.last_us is None else wanted.last_us))
    if wanted.producers is not None:
        known = frozenset(name for name in wanted.producers if re.fullmatch("[0-9a-f]{20}", name))
        wanted = wanted._replace(producers=known)
    return wanted


# -- ledgers

LEDGER_BYTES = 64 << 20  # of ledgers in one task; a producer is read by one


@dataclasses.dataclass
class _LedgerPart(InputPartition):
    """The ledger files of one task, of whole producers, and their part of a verdict's violations."""

    files: list[LedgerPart]
    words: pa.Table | None


class LedgerSource(_Table):
    """The data source ``logclient-ledger``: a row for each event that a producer listed or dropped.

    Its options are ``ledger`` (or a path), ``mode`` and ``maxPartitionBytes``.
    """

    _name = "logclient-ledger"
    _known: tuple[str, ...] = ("ledger", "mode", "maxPartitionBytes")
    _schema = LEDGER

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return spark_schema(self._schema)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """Return the reader of a batch."""
        self._check_options()
        columns = self._schema.names if schema is None else select(schema, self._schema)
        folders = _folders(self.options, "ledger", "ledger", "path", _PATHS)
        limit = _bytes("maxPartitionBytes", self.options) or LEDGER_BYTES
        return LedgerReader(folders, list(columns), limit, self._strict, self._capture())

    def _capture(self) -> list[str] | None:
        return None


class EventSource(LedgerSource):
    """The data source ``logclient-events``: a row for each event of ledgers and captures, with its verdict.

    Its options are those of `LedgerSource` and ``capture``. Ledgers and captures are compared when a query is
    planned, as by ``logclient verify --local``.
    """

    _name = "logclient-events"
    _known = ("ledger", "capture", "mode", "maxPartitionBytes")
    _schema = EVENTS

    def _capture(self) -> list[str]:
        return _folders(self.options, "capture", "capture")


@dataclasses.dataclass
class LedgerReader(DataSourceReader):
    """Reads ledgers, with the words of their events if there is a capture."""

    folders: list[str]
    columns: list[str]
    limit: int  # bytes in one task
    strict: bool
    capture: list[str] | None

    def partitions(self) -> list[InputPartition]:
        """Return the partitions, each with whole producers."""
        found = ledger_files.find_ledgers(storage.expand(self.folders, "ledger"))
        if self.strict and found.unread:
            raise LedgerError(f"ledger: {found.unread[0]} is not read")
        groups: list[list[LedgerPart]] = []
        room = producers = 0
        for _, files in itertools.groupby(found.parts, lambda part: part.producer):
            own = list(files)
            size = sum(part.size for part in own)
            if not groups or size > room or producers >= MOST_PRODUCERS:
                groups.append([])
                room, producers = self.limit, 0
            groups[-1] += own
            room, producers = room - size, producers + 1
        if self.capture is None:
            return [_LedgerPart(group, None) for group in groups]
        # Violations of other producers, and of none, go to the task whose producers come before them.
        words = judge(self.folders, self.capture).sort_by("producer")
        names = pc.fill_null(words["producer"], "~").to_numpy(zero_copy_only=False)
        firsts = [group[0].producer for group in groups[1:]]
        edges = [0, *np.searchsorted(names.astype(str), firsts).tolist(), len(names)]
        shares = (words.take(np.arange(low, high)) for low, high in itertools.pairwise(edges))
        return [_LedgerPart(group, share) for group, share in zip(groups, shares, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        if not isinstance(partition, _LedgerPart):
            return
        freeze_in_task()
        for batch in rows_of(partition.files, partition.words, strict=self.strict):
            yield batch.select(self.columns)


def judge(ledger: list[str], capture: list[str]) -> pa.Table:
    """Return the violations of a verdict, which is made in this process."""
    from logclient.verify import job

    with tempfile.TemporaryDirectory(prefix="logclient-events-") as out:
        job.run(ledger, capture, out=out, runner="local")
        return violations(out)
