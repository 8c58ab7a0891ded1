"""The data sources: tables of events, of arrivals, of ledgers, and of events with their words.

The Python workers read and decode segments, and only columns go to the JVM. That is four times cheaper than
sending raw bytes through the JVM to a second Python stage.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import captures, decode, ledger_files, storage
from logclient.evidence.segments import binary
from logclient.evidence.storage import Folder
from logclient.verify import worker
from logclient.verify.dataframes.columns import ARRIVALS, LOGS, UNITS, Columns, Rows, select
from logclient.verify.dataframes.ledgers import EVENTS, LEDGER, MOST_PRODUCERS, rows_of
from logclient.verify.dataframes.segment_rows import PATHS, SegmentRowReader, folders_of
from logclient.verify.plan import TASK_BYTES, share_out
from logclient.verify.spark import no_pandas
from logclient.verify.violation_files import violations


def register(spark: SparkSession) -> SparkSession:
    """Register ``logclient-capture``, ``logclient-ledger`` and ``logclient-events``, and return the session.

    May be called again. The data source ``logclient`` needs no call: Spark finds it by itself.
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
        A DataFrame with the columns of docs/verify-spark.md.

    Raises:
        LedgerError: the folders hold no capture.
        ConfigError: `rows` is neither of the two.
    """
    _columns_of(rows)
    captures.choose(storage.expand(capture, "capture"))
    source = register(spark).read.format(CaptureSource.name()).option("rows", rows)
    return source.option(PATHS, _as_option(capture, "capture")).load()


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


def events(
    spark: SparkSession,
    ledger: Folder | Sequence[Folder],
    capture: Folder | Sequence[Folder],
    *,
    columns: Sequence[str] = ("received", "listener", "peer"),
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
    possible = {*LOGS, "protocol", "segment"} - {*EVENTS.names}
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
    logs = spark.read.format("logclient").option("columns", names).option(PATHS, folders).load()
    # As SQL: PySpark's functions are for one kind of session, and this may be one of Connect.
    query = f"""SELECT {", ".join((*EVENTS.names, *(f"first.{name}" for name in columns)))}
        FROM {{judged}} LEFT JOIN (
            SELECT producer, sequence,
                min_by(struct({", ".join(columns)}), struct({", ".join(order)})) AS first
            FROM {{logs}} WHERE error IS NULL AND sequence IS NOT NULL GROUP BY producer, sequence
        ) USING (producer, sequence)"""
    return spark.sql(query, judged=judged, logs=logs)


_FOUND = Columns(("producer", "sequence", "hash", "size", "own_id", "error"))


def decoded(frame: DataFrame, protocol: str, *, body: str = "value") -> DataFrame:
    """Decode the bodies in a column of a DataFrame, batch or stream.

    Args:
        frame: a DataFrame of a session whose workers run this Python (``spark.pyspark.python``).
        protocol: the protocol of the bodies, such as ``logjam``.
        body: the name of the column, of type binary or text.

    Returns:
        The DataFrame with the further columns ``producer``, ``sequence``, ``hash``, ``size``, ``own_id`` and
        ``error``, as in `arrivals`. ``error`` is ``no_value`` for a row without a body.

    Raises:
        ConfigError: there is no such protocol or column, the column has another type, or the DataFrame has
            one of the further columns already.
    """
    decode.body_decoder(protocol)
    types = dict(frame.dtypes)
    if types.get(body) not in ("binary", "string"):
        raise ConfigError(f"body: {body!r} must be a column of binary or text")
    if twice := [name for name in _FOUND.names if name in types]:
        raise ConfigError(f"frame: it has a column {twice[0]} already")

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        find = decode.body_decoder(protocol)
        for batch in batches:
            values = batch.column(body).cast(pa.binary())
            empty = values.is_null()
            has = ~empty.to_numpy(zero_copy_only=False)
            rows = pa.array(np.cumsum(has) - 1, mask=~has)
            events = find(*binary(values.drop_null()))
            *others, error = _FOUND.batch(Rows(None, events.unit, None, "", events)).take(rows).columns
            error = pc.if_else(empty, pa.scalar(decode.NO_VALUE), error)
            schema = pa.schema([*batch.schema, *_FOUND.schema])
            yield pa.record_batch([*batch.columns, *others, error], schema=schema)

    with no_pandas():
        return frame.mapInArrow(run, StructType([*frame.schema.fields, *from_arrow_schema(_FOUND.schema)]))


# -- options


def _as_option(folders: Folder | Sequence[Folder], what: str) -> str:
    return json.dumps(storage.resolve_all(folders, what))


def _columns_of(rows: str) -> tuple[str, ...]:
    if rows not in ("events", "units"):
        raise ConfigError(f"rows: {rows!r} must be events or units")
    return ARRIVALS if rows == "events" else UNITS


class _Table(DataSource):
    """A table with options that are checked."""

    _name: str
    _known: tuple[str, ...]

    @classmethod
    def name(cls) -> str:
        return cls._name

    def check_options(self) -> None:
        names = {name.lower() for name in (*self._known, "path", PATHS)}
        if wrong := sorted(name for name in self.options if name.lower() not in names):
            raise ConfigError(f"{wrong[0]}: there is no such option: there are {', '.join(self._known)}")

    @property
    def strict(self) -> bool:
        """Whether what is damaged is an error."""
        mode = str(self.options.get("mode", "PERMISSIVE"))
        if mode.upper() not in ("PERMISSIVE", "FAILFAST"):
            raise ConfigError(f"mode: {mode!r} must be PERMISSIVE or FAILFAST")
        return mode.upper() == "FAILFAST"


# -- captures


class LogSource(_Table):
    """The data source ``logclient``: a row for each event. Its options are in docs/verify-spark.md."""

    quiet = False
    _name = "logclient"
    _known: tuple[str, ...] = ("path", "protocol", "columns", "mode")

    def _default(self) -> Columns:
        return Columns(LOGS)

    def columns(self, schema: StructType | None = None) -> Columns:
        """Return the columns that the options ask for, or the schema of a user."""
        default = self._default()
        possible = default.possible()
        names = tuple(re.findall(r"[^\s,]+", str(self.options.get("columns", ""))))
        for name in names:
            if name not in possible.names:
                raise ConfigError(f"columns: there is no column {name!r}: {', '.join(possible.names)}")
        return Columns((names or default.names) if schema is None else select(schema, possible))

    def schema(self) -> StructType:
        return from_arrow_schema(self.columns().schema)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        return SegmentRowReader(self, schema)


class CaptureSource(LogSource):
    """The data source ``logclient-capture``. It also has the option ``rows``: ``events`` or ``units``."""

    quiet = True
    _name = "logclient-capture"
    _known = (*LogSource._known, "rows")

    def _default(self) -> Columns:
        return Columns(_columns_of(str(self.options.get("rows", "events"))))


# -- ledgers


@dataclasses.dataclass
class _LedgerPart(InputPartition):
    """The ledger files of one task, of whole producers, and their part of a verdict's violations."""

    files: list[ledger_files.Part]
    words: pa.Table | None


class LedgerSource(_Table):
    """The data source ``logclient-ledger``: a row for each event that a producer listed or dropped."""

    _name = "logclient-ledger"
    _known: tuple[str, ...] = ("ledger", "mode")
    _schema = LEDGER

    def schema(self) -> StructType:
        return from_arrow_schema(self._schema)

    def reader(self, schema: StructType | None) -> DataSourceReader:
        return _LedgerReader(self, schema)


class EventSource(LedgerSource):
    """The data source ``logclient-events``: a row for each event of ledgers and captures, with its verdict.

    Both are compared when a query is planned, as by ``logclient verify --local``.
    """

    _name = "logclient-events"
    _known = ("ledger", "capture", "mode")
    _schema = EVENTS


class _LedgerReader(DataSourceReader):
    def __init__(self, source: LedgerSource, schema: StructType | None) -> None:
        source.check_options()
        options, names = source.options, source._schema.names
        self.columns = list(names if schema is None else select(schema, source._schema))
        self.ledger = folders_of(options, "ledger", "ledger", "path", PATHS)
        self.strict = source.strict
        self.capture = folders_of(options, "capture", "capture") if "capture" in source._known else None

    def partitions(self) -> list[InputPartition]:
        found = ledger_files.find_ledgers(storage.expand(self.ledger, "ledger"))
        if self.strict and found.unread:
            raise LedgerError(f"ledger: {found.unread[0]} is not read")
        owned = (list(files) for _, files in itertools.groupby(found.parts, lambda part: part.producer))
        sized = ((files, sum(part.size for part in files), 1) for files in owned)
        groups = [[*itertools.chain(*some)] for some in share_out(sized, TASK_BYTES, MOST_PRODUCERS)]
        if self.capture is None:
            return [_LedgerPart(files, None) for files in groups]
        from logclient.verify import job

        with tempfile.TemporaryDirectory(prefix="logclient-events-") as out:
            job.run(self.ledger, self.capture, out=out, runner="local")
            words = violations(out).sort_by("producer")
        # Violations of other producers, and of none, go to the task whose producers come before them.
        names = pc.fill_null(words["producer"], "~").to_numpy(zero_copy_only=False)
        firsts = [files[0].producer for files in groups[1:]]
        edges = [0, *np.searchsorted(names.astype(str), firsts).tolist(), len(names)]
        shares = (words.take(np.arange(low, high)) for low, high in itertools.pairwise(edges))
        return [_LedgerPart(files, share) for files, share in zip(groups, shares, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _LedgerPart):
            return
        worker.prepare_in_task()
        for batch in rows_of(partition.files, partition.words, strict=self.strict):
            yield batch.select(self.columns)
