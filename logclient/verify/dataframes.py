"""Captures as Spark DataFrames: the data source ``logclient-capture``, batch and stream.

::

    df = arrivals(spark, "run/capture")                       # a row per event
    df = arrivals(spark, "run/capture", rows="units")         # a row per wire unit, with its bytes
    df = register(spark).readStream.format("logclient-capture").option("path", "run/capture").load()

The Python workers read and decode the segments, and only columns go to the JVM. That is four times cheaper
than sending raw bytes through the JVM to a second Python stage. A unit that cannot be decoded has a row with
the reason (``error``) and its place.
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
from logclient.verify import captures, decode
from logclient.verify.arrays import I64
from logclient.verify.segments import MAX_NUMBER, Batch, Segment, SegmentReader, binary, record_at

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
        # Of the body or the error, in the unit with compressed frames inflated.
        ("offset", pa.int64()),
        ("size", pa.int32()),
        ("own_id", pa.string()),  # 32 hex digits: the hash of an id that the application chose
        ("error", pa.string()),  # null for an event
        # Only for Logjam; null where a message could not be parsed up to this field.
        ("app_env", pa.string()),
        ("topic", pa.string()),
        ("request", pa.bool_()),
        ("device", pa.int64()),  # 0: from a producer
        ("device_seq", pa.int64()),  # the number in the meta frame, as a signed integer
        ("created_ms", pa.int64()),  # as a signed integer
    ]
)
_LOGJAM_COLUMNS = 6  # the last ones
UNITS = pa.schema([*_PLACE, ("direction", pa.int32()), ("raw", pa.binary())])


def register(spark: SparkSession) -> SparkSession:
    """Register the data source ``logclient-capture`` with a session. May be called again.

    Its options are ``path``, the folder of a capture, and ``rows``, as for `arrivals`.

    Args:
        spark: the session.

    Returns:
        The same session.
    """
    spark.dataSource.register(CaptureSource)
    return spark


def arrivals(spark: SparkSession, capture: str | os.PathLike[str], *, rows: str = "events") -> DataFrame:
    """Return the content of a capture as a DataFrame.

    Args:
        spark: a session whose workers run this Python (``spark.pyspark.python``) and see the folder.
        capture: the folder of a capture.
        rows: ``events`` for a row per event or undecoded unit; ``units`` for a row per wire unit.

    Returns:
        A DataFrame with the columns of docs/verify.md.

    Raises:
        LedgerError: the folder holds no capture.
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

    segment: Segment
    start: int  # decoding begins here, because units before `tell` may belong to events behind it
    end: int
    tell: int  # rows begin here
    peers: dict[int, str]  # of the streams that were announced before `start`


class _Part(InputPartition):
    """One piece, or all pieces of a listener in order if events may come in several units."""

    def __init__(self, pieces: list[_Piece], protocol: str) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.protocol = protocol


class CaptureSource(DataSource):
    """The data source ``logclient-capture``, with options ``path`` and ``rows`` (``events`` or ``units``)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "logclient-capture"

    def schema(self) -> StructType:
        """Return the columns of the rows."""
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
        """Return the reader of a batch."""
        return _Batch(self._path, self._rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return _Stream(self._path, self._rows)


class _Batch(DataSourceReader):
    def __init__(self, path: str, rows: str) -> None:
        self.path = path
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        parts: list[InputPartition] = []
        for protocol, found in _series(self.path):
            pieces = [_Piece(segment, 0, segment.size, 0, {}) for segment in found]
            parts += _parts(pieces, protocol, self.rows)
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark makes one when there are none
            return iter(())
        return _read(partition, self.rows)


class _Stream(DataSourceStreamReader):
    """Reads a capture as a stream.

    Offsets are the bytes of whole records in each segment: ``{"main-000001.cap": 4096}``. Where events may
    come in several units, ``"open"`` has, for each listener, segment and byte of the first unit that belongs
    to an incomplete event: ``{"open": {"main": [1, 2048]}}``. The next batch is decoded from there, and has
    the rows behind its own start.
    """

    def __init__(self, path: str, rows: str) -> None:
        self.path = path
        self.rows = rows
        # What was found so far, so that a segment is read only once.
        self._walked: dict[str, tuple[int, dict[int, str]]] = {}
        self._open: dict[str, _OpenMessages] = {}  # by listener

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def _walk(self, segment: Segment, protocol: str = "", end: int | None = None) -> int:
        start, peers = self._walked.get(segment.name, (0, {}))
        carried = None
        if _carries(protocol, self.rows):
            carried = self._open.setdefault(segment.listener, _OpenMessages(protocol))
        reader = SegmentReader(segment, start=start, end=end)
        for batch in reader:
            if carried is not None:
                carried.take(batch, segment.number)
        self._walked[segment.name] = reader.position, {**peers, **reader.peers}
        return reader.position

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as in Spark 4.0; 4.2 takes both
        try:
            found = _series(self.path)
        except LogclientError:
            return {}  # there is no capture yet
        ends: dict[str, Any] = {
            segment.name: self._walk(segment, protocol) for protocol, series in found for segment in series
        }
        first = {listener: carried.first for listener, carried in self._open.items() if carried.places}
        return {**ends, "open": first} if first else ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        if not end:
            return parts
        for protocol, series in _series(self.path):
            pieces = []
            number, at = start.get("open", {}).get(series[0].listener, (MAX_NUMBER, 0))
            for segment in series:
                low, high = start.get(segment.name, 0), end.get(segment.name, 0)
                if high and segment.name not in self._walked:  # a restarted query
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


def _series(path: str) -> list[tuple[str, list[Segment]]]:
    """Return for each listener its protocol and the segments to compare, see ``captures.py``."""
    found: dict[str, tuple[str, list[Segment]]] = {}
    for segment, header in captures.choose(path)[0]:
        protocol, series = found.get(segment.listener, ("", []))
        if header is not None and not protocol and captures.decodable(header.protocol):
            protocol = header.protocol
        found[segment.listener] = protocol, [*series, segment]
    return list(found.values())


def _carries(protocol: str, rows: str) -> bool:
    return rows == "events" and bool(protocol) and decode.carries(protocol)


def _parts(pieces: list[_Piece], protocol: str, rows: str) -> list[InputPartition]:
    """Return the partitions for the pieces of one listener: one for all if events may span pieces."""
    if _carries(protocol, rows):
        return [_Part(pieces, protocol)]
    return [_Part([piece], protocol) for piece in pieces if piece.end > piece.tell]


class _OpenMessages:
    """The places of the first units of a listener's incomplete messages."""

    def __init__(self, protocol: str) -> None:
        self._incomplete = decode.incomplete_messages(protocol)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}  # message -> segment, byte

    def take(self, batch: Batch, number: int) -> None:
        inbound = np.flatnonzero(batch.direction == 0)
        if len(inbound):
            # The beginning of the batch is exact enough: decoding a few units twice is cheap.
            begin = number, record_at(batch, 0)
            found = self._incomplete(batch.take(inbound))
            self.places = {message: self.places.get(message, begin) for message in found}

    @property
    def first(self) -> list[int]:
        return list(min(self.places.values()))


def _read(part: _Part, rows: str) -> Iterator[pa.RecordBatch]:
    find = decode.decoder(part.protocol) if rows == "events" and part.protocol else None
    for piece in part.pieces:
        # Each batch of rows goes to the JVM at once, so keep it small.
        reader = SegmentReader(piece.segment, start=piece.start, end=piece.end, units=1 << 14)
        reader.peers.update(piece.peers)
        for batch in reader:
            if rows == "units":
                yield _units(batch, reader, part.protocol)
                continue
            inbound = np.flatnonzero(batch.direction == 0)
            if len(inbound) and find is not None:
                batch = batch.take(inbound)
                events = find(batch)
                if piece.tell > piece.start:
                    places = batch.base + batch.offset[events.unit]
                    events = events.part(slice(int(np.searchsorted(places, piece.tell)), len(places)))
                yield _events(batch, events, reader, part.protocol)


def _place(batch: Batch, unit: I64, reader: SegmentReader, protocol: str) -> list[pa.Array]:
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


def _units(batch: Batch, reader: SegmentReader, protocol: str) -> pa.RecordBatch:
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


def _events(batch: Batch, events: decode.Events, reader: SegmentReader, protocol: str) -> pa.RecordBatch:
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
            *_logjam_columns(batch, events),
        ],
        schema=EVENTS,
    )


FOUND = ("producer", "seq", "hash", "size", "own_id", "error")


def _found(events: decode.Events) -> list[pa.Array]:
    """Return the columns `FOUND`."""
    is_event = events.status <= decode.NOT_JSON
    has_id = (events.high | events.low | events.sequence.astype(np.uint64)) != 0
    own = (events.status == decode.FOREIGN) & ~has_id
    names = pa.array(
        [None if i < decode.NOT_JSON else name for i, name in enumerate(events.names)], pa.string()
    )
    return [
        pa.array(_hex(events.high.astype(">u8"), events.low.astype(">u2")), mask=~has_id),
        pa.array(events.sequence, mask=~has_id),
        pa.array(events.hash.view(np.int64), mask=~is_event),
        pa.array(events.length, mask=~is_event),
        pa.array(_hex(events.id_hash[:, 0].astype(">u8"), events.id_hash[:, 1].astype(">u8")), mask=~own),
        names.take(pa.array(events.status)),
    ]


def decoded(frame: DataFrame, protocol: str, *, body: str = "value") -> DataFrame:
    """Decode the bodies in a column of a DataFrame, batch or stream.

    Args:
        frame: a DataFrame of a session whose workers run this Python (``spark.pyspark.python``).
        protocol: the protocol of the bodies, such as ``logjam``.
        body: the name of the column, of type binary or text.

    Returns:
        The DataFrame with the further columns ``producer``, ``seq``, ``hash``, ``size``, ``own_id`` and
        ``error``, as in `arrivals`. ``error`` is ``no_value`` for a row without a body.

    Raises:
        ConfigError: there is no such protocol or column, the column has another type, or the DataFrame has
            one of the further columns already.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    from logclient.verify.spark import no_pandas

    decode.body_decoder(protocol)
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
        from logclient.verify import dataframes, decode

        find = decode.body_decoder(protocol)
        for batch in batches:
            yield dataframes.with_found(batch, body, find)

    return run


def with_found(batch: pa.RecordBatch, body: str, find: Callable[..., decode.Events]) -> pa.RecordBatch:
    """Return a batch with the columns `FOUND` behind its own."""
    bodies = batch.column(body).cast(pa.binary())
    empty = bodies.is_null()
    has = ~empty.to_numpy(zero_copy_only=False)
    columns = _found(find(*binary(bodies.drop_null())))
    rows = pa.array(np.cumsum(has) - 1, mask=~has)
    *others, error = [column.take(rows) for column in columns]
    error = pc.if_else(empty, pa.scalar(decode.NO_VALUE), error)
    fields = [*batch.schema, *(EVENTS.field(name) for name in FOUND)]
    return pa.record_batch([*batch.columns, *others, error], schema=pa.schema(fields))


def _hex(high: Any, low: Any) -> Any:
    """Return the hex digits of pairs of words, as NumPy strings."""
    joined = np.empty(len(high), np.dtype([("high", high.dtype), ("low", low.dtype)]))
    joined["high"], joined["low"] = high, low
    digits = 2 * joined.dtype.itemsize
    text = joined.tobytes().hex().encode()
    return np.frombuffer(text, f"S{digits}").astype(f"U{digits}") if len(high) else np.empty(0, f"U{digits}")


def _logjam_columns(batch: Batch, events: decode.Events) -> list[pa.Array]:
    """Return the columns that only Logjam has."""
    fields = list(EVENTS)[-_LOGJAM_COLUMNS:]
    if not events.own:
        return [pa.nulls(len(events.unit), field.type) for field in fields]
    from logclient.logjam import wire as wire_logjam

    begin = batch.offset[events.unit]
    columns = wire_logjam.message_columns(batch.data, begin, events.own, events.status, events.names)
    return [
        pa.array(values, field.type, mask=mask) for field, (values, mask) in zip(fields, columns, strict=True)
    ]
