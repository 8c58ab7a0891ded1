"""The data sources of captures: ``logclient``, a table of log events, and ``logclient-capture``, of arrivals.

Both are selections of the columns of ``columns.py``, and are read by ``pieces.py``: the Python workers read
and decode the segments, and only columns go to the JVM. That is four times cheaper than sending raw bytes
through the JVM to a second Python stage.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from logclient.errors import ConfigError
from logclient.evidence import captures, decode, storage
from logclient.evidence.captures import LeftOut
from logclient.evidence.storage import Folder
from logclient.verify import worker
from logclient.verify.dataframes import pieces
from logclient.verify.dataframes.columns import ARRIVALS, LOGS, UNITS, Columns, select
from logclient.verify.dataframes.pieces import Series, Wanted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CaptureSource", "LogSource", "Options", "Part", "arrivals", "freeze_in_task", "register"]


def register(spark: SparkSession) -> SparkSession:
    """Register the data source ``logclient-capture`` with a session. May be called again.

    Its options are ``path``, as for ``logclient``, and ``rows``, as for `arrivals`. The data source
    ``logclient`` needs no call: Spark finds it by itself.

    Args:
        spark: the session.

    Returns:
        The same session.
    """
    spark.dataSource.register(CaptureSource)
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
    return source.option(PATHS, paths_option(capture)).load()


PATHS = "paths"  # the option in which Spark, too, passes several paths, as JSON


def paths_option(folders: Folder | Sequence[Folder]) -> str:
    """Return folders as the value of the option `PATHS`."""
    return json.dumps(storage.resolve_all(folders, "capture"))


def _columns_of(rows: str) -> tuple[str, ...]:
    if rows not in ("events", "units"):
        raise ConfigError(f"rows: {rows!r} must be events or units")
    return ARRIVALS if rows == "events" else UNITS


def _folders(options: Any) -> list[str]:
    """Return the places of the option ``path``, or of several paths, which Spark passes as JSON."""
    given = [str(options["path"])] if options.get("path") else []
    if several := options.get(PATHS):
        try:
            found = json.loads(several)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{PATHS}: it must be a list of paths as JSON: give them to load()")
        given += found
    if not given:
        raise ConfigError("path: the folder of a capture must be given")
    return storage.resolve_all(given, "capture")


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


class Options:
    """The options of a data source.

    Args:
        options: by name, in any case of letters.
        known: the names of the options that there are.
        default: the columns of its table.
        quiet: whether pings and the like are rows.
        schema: the columns that are asked for, if not all.
    """

    def __init__(
        self,
        options: Any,
        known: tuple[str, ...],
        default: tuple[str, ...],
        quiet: bool,
        schema: StructType | None = None,
    ) -> None:
        names = {name.lower() for name in (*known, PATHS)}
        if wrong := sorted(name for name in options if name.lower() not in names):
            raise ConfigError(f"{wrong[0]}: there is no such option: there are {', '.join(known)}")
        self.folders = _folders(options)
        self.protocol = str(options.get("protocol", ""))
        if self.protocol:
            decode.wire(self.protocol)
        self.partition_bytes = _bytes("maxPartitionBytes", options)
        self.trigger_bytes = _bytes("maxBytesPerTrigger", options)
        push = str(options.get("pushFilters", "false")).lower()
        if push not in ("true", "false"):
            raise ConfigError(f"pushFilters: {push!r} must be true or false")
        self.push = push == "true"
        self.wanted = Wanted(quiet=quiet)
        if schema is None:
            self.columns = Columns(default)
        else:
            self.columns = select(((field.name, field.dataType.simpleString()) for field in schema), default)


class Part(InputPartition):
    """The pieces of one task, and files that are only named."""

    def __init__(self, series: list[Series], left_out: Sequence[LeftOut] = ()) -> None:
        super().__init__(None)
        self.series = series
        self.left_out = left_out


class _CaptureTable(DataSource):
    """A table of a capture."""

    @property
    def _default(self) -> tuple[str, ...]:
        """Its columns."""
        return LOGS

    _quiet = False
    _known: tuple[str, ...] = (
        "path", "protocol", "maxPartitionBytes", "maxBytesPerTrigger", "pushFilters",
    )  # fmt: skip

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        from pyspark.sql.pandas.types import from_arrow_schema

        found: StructType = from_arrow_schema(Columns(self._default).schema)
        return found

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """Return the reader of a batch."""
        return BatchReader(self._options(schema))

    def streamReader(self, schema: StructType | None) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from logclient.verify.dataframes.streams import StreamReader

        return StreamReader(self._options(schema))

    def _options(self, schema: StructType | None) -> Options:
        return Options(self.options, self._known, self._default, self._quiet, schema)


class LogSource(_CaptureTable):
    """The data source ``logclient``: a row for each event, with its body and what is in it.

    Options are ``path``, ``protocol``, ``maxPartitionBytes``, ``maxBytesPerTrigger`` and ``pushFilters``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "logclient"


class CaptureSource(_CaptureTable):
    """The data source ``logclient-capture``.

    Its options are those of `LogSource` and ``rows`` (``events`` or ``units``).
    """

    _quiet = True
    _known = (*_CaptureTable._known, "rows")

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "logclient-capture"

    @property
    def _default(self) -> tuple[str, ...]:
        return _columns_of(str(self.options.get("rows", "events")))


class BatchReader(DataSourceReader):
    """Reads a capture once.

    Args:
        options: of the data source.
    """

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
        series, left_out = pieces.find_series(options.folders, options.protocol)
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
    """Return the rows that are wanted under some filters of Spark as well, or a few more.

    Args:
        wanted: the rows without them.
        filters: of ``pyspark.sql.datasource``; other than those that are used here are ignored.
    """
    for one in filters:
        kind = type(one).__name__
        name = getattr(one, "attribute", ("",))
        value: Any = getattr(one, "value", None)
        if name in (("listener",), ("producer",)) and kind in ("EqualTo", "EqualNullSafe", "In"):
            values: frozenset[str] = frozenset(value if kind == "In" else [value])
            if None in values:
                continue
            if name == ("listener",):
                wanted = wanted._replace(listeners=_both(wanted.listeners, values))
            else:
                wanted = wanted._replace(producers=_both(wanted.producers, values))
        elif name == ("received",) and isinstance(value, datetime.datetime):
            wanted = _narrow_time(wanted, kind, _us(value))
    if wanted.producers is not None:
        known = frozenset(name for name in wanted.producers if re.fullmatch("[0-9a-f]{20}", name))
        wanted = wanted._replace(producers=known)
    return wanted


def _both(a: frozenset[str] | None, b: frozenset[str]) -> frozenset[str]:
    return b if a is None else a & b


def _us(at: datetime.datetime) -> int:
    since = at.astimezone(datetime.UTC) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)


def _narrow_time(wanted: Wanted, kind: str, us: int) -> Wanted:
    if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo", "EqualNullSafe"):
        first = us if wanted.first_us is None else max(us, wanted.first_us)
        wanted = wanted._replace(first_us=first)
    if kind in ("LessThan", "LessThanOrEqual", "EqualTo", "EqualNullSafe"):
        last = us if wanted.last_us is None else min(us, wanted.last_us)
        wanted = wanted._replace(last_us=last)
    return wanted
