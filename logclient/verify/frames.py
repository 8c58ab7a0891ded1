"""What arrived, as Spark DataFrames: the Python data source ``logclient-capture``, batch and stream.

::

    df = arrivals(spark, "run/capture")                       # a row an event
    df = arrivals(spark, "run/capture", rows="units")         # a row a wire unit, with its bytes
    df = register(spark).readStream.format("logclient-capture").option("path", "run/capture").load()

Segments are read and decoded in the Python workers, and only columns go to the JVM: four times cheaper than
sending it raw bytes to be decoded elsewhere. A unit that does not decode stays as a row with its reason
(``error``) and where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from logclient.errors import ConfigError, LogclientError
from logclient.verify import captures, decode, sources
from logclient.verify.sources import I64

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CaptureSource", "arrivals", "decoded", "register"]

_PLACE = [
    ("listener", pa.string()),
    ("protocol", pa.string()),
    ("stream", pa.int64()),
    ("peer", pa.string()),
    ("arrival", pa.int64()),
    ("received_us", pa.int64()),
    ("segment", pa.string()),
    ("unit_at", pa.int64()),  # byte offset of the unit in the segment
]
EVENTS = pa.schema(
    [
        *_PLACE,
        ("index", pa.int64()),  # of the row in its unit
        ("producer", pa.string()),  # 20 hex digits; null without an id of 32
        ("seq", pa.int64()),
        ("hash", pa.int64()),  # Spark's xxhash64(body)
        (
            "offset",
            pa.int64(),
        ),  # of the body, or of what is wrong, in the unit with compressed frames inflated
        ("size", pa.int32()),
        ("own_id", pa.string()),  # 32 hex digits: the name of an id that is the user's own
        ("error", pa.string()),  # null for an event
        # Logjam's; null where the protocol is another, or a message was not taken apart so far.
        ("app_env", pa.string()),
        ("topic", pa.string()),
        ("request", pa.bool_()),
        ("device", pa.int64()),  # 0: from a producer
        ("device_seq", pa.int64()),  # the meta frame's number; from 2 ** 63 on, negative
        ("created_ms", pa.int64()),  # likewise
    ]
)
_OWN = 6  # of the columns are Logjam's
_NO_META = ("no_meta", "old_meta", "bad_meta")
UNITS = pa.schema([*_PLACE, ("direction", pa.int32()), ("raw", pa.binary())])


def register(spark: SparkSession) -> SparkSession:
    """Make ``logclient-capture`` known to a session. May be called again."""
    spark.dataSource.register(CaptureSource)
    return spark


def arrivals(spark: SparkSession, capture: str | os.PathLike[str], *, rows: str = "events") -> DataFrame:
    """What arrived: a row an event (or a thing that did not decode), or with ``rows="units"`` a wire unit.

    Args:
        spark: a session whose workers run this Python (``spark.pyspark.python``) and see the folder.
        capture: folder of a capture.

    Raises:
        LedgerError: nothing of a capture there.
        ConfigError: `rows` is neither of the two.
    """
    folder = os.path.abspath(capture)
    _kind(rows)
    captures.choose(folder)
    return (
        register(spark).read.format(CaptureSource.name()).option("path", folder).option("rows", rows).load()
    )


def _kind(rows: str) -> pa.Schema:
    if rows not in ("events", "units"):
        raise ConfigError(f"rows: {rows!r} must be events or units")
    return EVENTS if rows == "events" else UNITS


class _Piece(NamedTuple):
    """Some records of one segment."""

    segment: sources.Segment
    start: int  # what is before `tell` is decoded for what comes behind it
    end: int
    tell: int  # from here on there are rows
    peers: dict[int, str]  # of the streams that were named before `start`


class _Part(InputPartition):
    """One piece, or the pieces of a listener whose events may come in several units, in order."""

    def __init__(self, pieces: list[_Piece], protocol: str) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.protocol = protocol


class CaptureSource(DataSource):
    """``spark.read.format("logclient-capture")``; options ``path`` and ``rows`` (``events`` or ``units``)."""

    @classmethod
    def name(cls) -> str:
        return "logclient-capture"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        found: StructType = from_arrow_schema(_kind(self._rows))
        return found

    @property
    def _rows(self) -> str:
        return str(self.options.get("rows", "events"))

    @property
    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise ConfigError("path: the folder of a capture must be given")
        return str(path)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Batch(self._path, self._rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Stream(self._path, self._rows)


class _Batch(DataSourceReader):
    def __init__(self, path: str, rows: str) -> None:
        self.path = path
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        parts: list[InputPartition] = []
        for protocol, segments in _series(self.path):
            pieces = [_Piece(segment, 0, segment.size, 0, {}) for segment in segments]
            parts += _parts(pieces, protocol, self.rows)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark's own, where there are none of ours
            return iter(())
        return _read(partition, self.rows)


class _Stream(DataSourceStreamReader):
    """Offsets are the bytes of whole records in each segment: ``{"main-000001.cap": 4096}``.

    Where events may come in several units, ``"open"`` says of a listener in which segment, and where, the
    first unit is of those that are not whole: ``{"open": {"main": [1, 2048]}}``. The next batch is decoded
    from there, and has the rows behind its own start.
    """

    def __init__(self, path: str, rows: str) -> None:
        self.path = path
        self.rows = rows
        # What was found so far, so that a segment is walked only once by this reader.
        self._walked: dict[str, tuple[int, dict[int, str]]] = {}
        self._open: dict[str, _Open] = {}  # by listener

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def _walk(self, segment: sources.Segment, protocol: str = "", end: int | None = None) -> int:
        start, peers = self._walked.get(segment.name, (0, {}))
        carried = None
        if _carries(protocol, self.rows):
            carried = self._open.setdefault(segment.listener, _Open(protocol))
        reader = sources.SegmentReader(segment, start=start, end=end)
        for batch in reader:
            if carried is not None:
                carried.take(batch, segment.number)
        self._walked[segment.name] = reader.position, {**peers, **reader.peers}
        return reader.position

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as in Spark 4.0; 4.2 takes both
        try:
            found = _series(self.path)
        except LogclientError:
            return {}  # not begun yet
        ends: dict[str, Any] = {
            segment.name: self._walk(segment, protocol)
            for protocol, segments in found
            for segment in segments
        }
        first = {listener: carried.first for listener, carried in self._open.items() if carried.places}
        return {**ends, "open": first} if first else ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        if not end:
            return parts
        for protocol, segments in _series(self.path):
            pieces = []
            number, at = start.get("open", {}).get(segments[0].listener, (sources.MANY, 0))
            for segment in segments:
                low, high = start.get(segment.name, 0), end.get(segment.name, 0)
                if high and segment.name not in self._walked:  # where an earlier query stopped
                    self._walk(segment, protocol, high)
                begin = low if segment.number < number else at if segment.number == number else 0
                if high > begin:
                    pieces.append(_Piece(segment, begin, high, low, self._walked[segment.name][1]))
            if any(piece.end > piece.tell for piece in pieces):
                parts += _parts(pieces, protocol, self.rows)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        return _read(partition, self.rows)


def _series(path: str) -> list[tuple[str, list[sources.Segment]]]:
    """The segments that a verdict is about, see ``captures.py``: of each listener, with its protocol."""
    found: dict[str, tuple[str, list[sources.Segment]]] = {}
    for segment, header in captures.choose(path)[0]:
        protocol, segments = found.get(segment.listener, ("", []))
        if header is not None and not protocol and captures.decodable(header.protocol):
            protocol = header.protocol
        found[segment.listener] = protocol, [*segments, segment]
    return list(found.values())


def _carries(protocol: str, rows: str) -> bool:
    return rows == "events" and bool(protocol) and decode.carries(protocol)


def _parts(pieces: list[_Piece], protocol: str, rows: str) -> list[InputPartition]:
    """Pieces of one listener: each for itself, unless events may reach from one into the next."""
    if _carries(protocol, rows):
        return [_Part(pieces, protocol)]
    return [_Part([piece], protocol) for piece in pieces if piece.end > piece.tell]


class _Open:
    """Where the first units are of those of a listener that wait for others."""

    def __init__(self, protocol: str) -> None:
        self.waiting = decode.waiting(protocol)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}  # message -> segment, byte

    def take(self, batch: sources.Batch, number: int) -> None:
        mine = np.flatnonzero(batch.direction == 0)
        if len(mine):
            # No finer than batches: what is decoded twice costs little.
            begin = number, sources.record_at(batch, 0)
            found = self.waiting(batch.take(mine))
            self.places = {message: self.places.get(message, begin) for message in found}

    @property
    def first(self) -> list[int]:
        return list(min(self.places.values()))


def _read(part: _Part, rows: str) -> Iterator[pa.RecordBatch]:
    find = decode.decoder(part.protocol) if rows == "events" and part.protocol else None
    for piece in part.pieces:
        # One batch of rows is what goes to the JVM at a time.
        reader = sources.SegmentReader(piece.segment, start=piece.start, end=piece.end, units=1 << 14)
        reader.peers.update(piece.peers)
        for batch in reader:
            if rows == "units":
                yield _units(batch, reader, part.protocol)
                continue
            mine = np.flatnonzero(batch.direction == 0)
            if len(mine) and find is not None:
                batch = batch.take(mine)
                events = find(batch)
                if piece.tell > piece.start:
                    places = batch.base + batch.offset[events.unit]
                    events = events.part(slice(int(np.searchsorted(places, piece.tell)), len(places)))
                yield _events(batch, events, reader, part.protocol)


def _place(batch: sources.Batch, unit: I64, reader: sources.SegmentReader, protocol: str) -> list[pa.Array]:
    n = len(unit)
    streams, which = np.unique(batch.stream, return_inverse=True)
    peers = pa.array([reader.peers.get(int(stream)) for stream in streams], pa.string())
    return [
        pa.repeat(pa.scalar(reader.segment.listener), n),
        pa.repeat(pa.scalar(protocol), n),
        pa.array(batch.stream[unit].view(np.int64)),
        peers.take(pa.array(which[unit])),
        pa.array(batch.arrival[unit].view(np.int64)),
        pa.array(batch.received_us[unit]),
        pa.repeat(pa.scalar(reader.segment.name), n),
        pa.array(batch.base + batch.offset[unit]),
    ]


def _units(batch: sources.Batch, reader: sources.SegmentReader, protocol: str) -> pa.RecordBatch:
    unit = np.arange(len(batch.offset))
    raw = [
        bytes(batch.data[at : at + size])
        for at, size in zip(batch.offset.tolist(), batch.length.tolist(), strict=True)
    ]
    return pa.record_batch(
        [
            *_place(batch, unit, reader, protocol),
            pa.array(batch.direction.astype(np.int32)),
            pa.array(raw, pa.binary()),
        ],
        schema=UNITS,
    )


def _events(
    batch: sources.Batch, events: decode.Events, reader: sources.SegmentReader, protocol: str
) -> pa.RecordBatch:
    producer, sequence, hashes, size, own_id, error = _found(events)
    return pa.record_batch(
        [
            *_place(batch, events.unit.astype(np.int64), reader, protocol),
            pa.array(events.within),
            producer,
            sequence,
            hashes,
            pa.array(events.offset),
            size,
            own_id,
            error,
            *_messages(batch, events),
        ],
        schema=EVENTS,
    )


FOUND = ("producer", "seq", "hash", "size", "own_id", "error")


def _found(events: decode.Events) -> list[pa.Array]:
    """The columns `FOUND`."""
    is_event = events.status <= decode.NOT_JSON
    looks = (events.high | events.low | events.sequence.astype(np.uint64)) != 0
    own = (events.status == decode.FOREIGN) & ~looks
    names = pa.array(
        [None if i < decode.NOT_JSON else name for i, name in enumerate(events.names)], pa.string()
    )
    return [
        pa.array(_hex(events.high.astype(">u8"), events.low.astype(">u2")), mask=~looks),
        pa.array(events.sequence, mask=~looks),
        pa.array(events.hash.view(np.int64), mask=~is_event),
        pa.array(events.length, mask=~is_event),
        pa.array(_hex(events.id_hash[:, 0].astype(">u8"), events.id_hash[:, 1].astype(">u8")), mask=~own),
        names.take(pa.array(events.status)),
    ]


def decoded(frame: DataFrame, protocol: str, *, body: str = "value") -> DataFrame:
    """A DataFrame, batch or stream, with what the bodies in one of its columns are.

    Added are ``producer``, ``seq``, ``hash``, ``size``, ``own_id`` and ``error``, as `arrivals` has them;
    ``error`` is ``no_value`` where there is none.

    Args:
        frame: in a session whose workers run this Python (``spark.pyspark.python``).
        protocol: of the bodies.
        body: a column of binary or text.

    Raises:
        ConfigError: no such protocol or column, one of another type, or one that would be added twice.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from logclient.verify.spark import no_pandas

    decode.bodies(protocol)
    types = dict(frame.dtypes)
    if types.get(body) not in ("binary", "string"):
        raise ConfigError(f"body: {body!r} must be a column of binary or text")
    if twice := [name for name in FOUND if name in types]:
        raise ConfigError(f"frame: it has a column {twice[0]} already")
    added = from_arrow_schema(pa.schema([EVENTS.field(name) for name in FOUND]))
    schema = StructType([*frame.schema.fields, *added.fields])
    with no_pandas():
        return frame.mapInArrow(_decode_in(protocol, body), schema)


def _decode_in(protocol: str, body: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import decode, frames

        find = decode.bodies(protocol)
        for batch in batches:
            yield frames.with_found(batch, body, find)

    return run


def with_found(batch: pa.RecordBatch, body: str, find: Callable[..., decode.Events]) -> pa.RecordBatch:
    """A batch with the columns `FOUND` behind its own."""
    bodies = batch.column(body).cast(pa.binary())
    empty = bodies.is_null()
    has = ~empty.to_numpy(zero_copy_only=False)
    columns = _found(find(*sources.binary(bodies.drop_null())))
    rows = pa.array(np.cumsum(has) - 1, mask=~has)
    *others, error = [column.take(rows) for column in columns]
    error = pc.if_else(empty, pa.scalar(decode.NO_VALUE), error)
    fields = [*batch.schema, *(EVENTS.field(name) for name in FOUND)]
    return pa.record_batch([*batch.columns, *others, error], schema=pa.schema(fields))


_NAME = 1024  # bytes of an app-env or a topic that are kept


def _messages(batch: sources.Batch, events: decode.Events) -> list[pa.Array]:
    """The columns that only Logjam has."""
    own = events.own
    if not own:
        return [pa.nulls(len(events.unit), field.type) for field in list(EVENTS)[-_OWN:]]
    status = events.status
    lacks = (own["app_env_length"] == 0) | (status == events.names.index("ping"))
    no_meta = lacks | np.isin(status, [events.names.index(name) for name in _NO_META])
    return [
        _words(batch, events, "app_env", lacks),
        _words(batch, events, "topic", lacks),
        pa.array(own["request"] != 0, mask=lacks),
        pa.array(own["device"].astype(np.int64), mask=no_meta),
        pa.array(own["number"].view(np.int64), mask=no_meta),
        pa.array(own["created_ms"].view(np.int64), mask=no_meta),
    ]


def _words(batch: sources.Batch, events: decode.Events, name: str, lacks: Any) -> pa.Array:
    begin = batch.offset[events.unit] + events.own[f"{name}_offset"]
    end = begin + np.minimum(events.own[f"{name}_length"], _NAME)
    known: dict[bytes, str] = {}  # few are told apart
    found = []
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        raw = bytes(batch.data[low:high])
        text = known.get(raw)
        if text is None:
            text = known[raw] = raw.decode("utf-8", "backslashreplace")
        found.append(text)
    return pa.array(found, pa.string(), mask=lacks)


def _hex(high: Any, low: Any) -> Any:
    """Hex digits of pairs of words, as numpy strings."""
    joined = np.empty(len(high), np.dtype([("high", high.dtype), ("low", low.dtype)]))
    joined["high"], joined["low"] = high, low
    digits = 2 * joined.dtype.itemsize
    text = joined.tobytes().hex().encode()
    return np.frombuffer(text, f"S{digits}").astype(f"U{digits}") if len(high) else np.empty(0, f"U{digits}")
