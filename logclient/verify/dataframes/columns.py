"""The columns of a capture, and the selections of them that its tables have.

Each column has a type and a function that makes it from some decoded rows. A column that nobody asks for
costs nothing: bodies are kept, hashed and searched for ids only for the columns that need it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from logclient.errors import ConfigError
from logclient.evidence import decode
from logclient.evidence.segments import Segment
from logclient.files.capture import Problem
from logclient.verify.dataframes import arrow
from logclient.verify.rows import row_batch


@dataclasses.dataclass
class Rows:
    """Some decoded rows of one batch of units."""

    batch: Any  # `Batch`; None: bodies that came without units
    unit: npt.NDArray[Any]  # of each row
    source: Any  # the `SegmentReader` of the units
    protocol: str  # empty: not known
    events: Any = None  # `decode.Events`, one for each row; None: a row is a unit
    kept: Any = None  # `decode.Kept`, their bodies

    @cached_property
    def is_event(self) -> npt.NDArray[np.bool_]:
        """Whether each row is an event, not a fault."""
        return np.asarray(self.events.status <= decode.NOT_JSON, bool)

    @cached_property
    def has_id(self) -> npt.NDArray[np.bool_]:
        """Whether each row has an id of 32 hex digits."""
        events = self.events
        return np.asarray((events.high | events.low | events.sequence.astype(np.uint64)) != 0, bool)


def _peer(rows: Rows) -> pa.Array:
    streams, which = np.unique(rows.batch.stream, return_inverse=True)
    peers = pa.array([rows.source.peers.get(int(stream)) for stream in streams], pa.string())
    return peers.take(pa.array(which[rows.unit]))


def _id(rows: Rows) -> pa.Array:
    events, kept = rows.events, rows.kept
    ours = arrow.ids(events.high, events.low, events.sequence, rows.has_id)
    if not len(kept.own_id_rows):
        return ours
    edges = kept.own_id_edges
    theirs = arrow.variable(pa.binary(), kept.own_ids, edges, np.diff(edges) > 0)
    texts = [raw and raw.decode("utf-8", "replace") for raw in theirs.to_pylist()]
    own = np.zeros(len(rows.unit), np.int64)
    own[kept.own_id_rows] = np.arange(1, len(texts) + 1)
    return pc.coalesce(ours, pa.array([None, *texts], pa.string()).take(pa.array(own)))


def _producer(rows: Rows) -> pa.Array:
    return arrow.hex_text(rows.has_id, rows.events.high.astype(">u8"), rows.events.low.astype(">u2"))


def _error(rows: Rows) -> pa.Array:
    events = rows.events
    names = [None if i < decode.NOT_JSON else name for i, name in enumerate(events.names)]
    error = pa.array(names, pa.string()).take(pa.array(events.status))
    if len(rows.unit) and int(events.length.max()) > decode.BODY_MOST and rows.kept is not None:
        large = pa.array(rows.is_event & (events.length > decode.BODY_MOST))
        error = pc.if_else(large, pa.scalar("too_large"), error)
    return error


def _own_id(rows: Rows) -> pa.Array:
    own = (rows.events.status == decode.FOREIGN) & ~rows.has_id
    return arrow.hex_text(own, *(rows.events.id_hash[:, i].astype(">u8") for i in (0, 1)))


def _body(rows: Rows) -> pa.Array:
    valid = rows.is_event & (rows.events.length <= decode.BODY_MOST)
    return arrow.variable(pa.binary(), rows.kept.data, rows.kept.edges, valid)


def _logjam(name: str, rows: Rows) -> pa.Array:
    events, own = rows.events, rows.events.own
    if "app_env_offset" not in own:
        return pa.nulls(len(rows.unit), LOGJAM[name])
    lacks = (own["app_env_length"] == 0) | (events.status == events.names.index("ping"))
    if name in ("app_env", "topic"):
        return pa.array(_texts(rows, name), LOGJAM[name], mask=lacks)
    if name == "request":
        return pa.array(own["request"] != 0, LOGJAM[name], mask=lacks)
    lacks |= np.isin(events.status, [events.names.index(word) for word in _NO_META])
    if name == "created":
        created = own["created_ms"]
        known = (created > 0) & (created <= arrow.LAST_US // 1000)
        return arrow.times(created.view(np.int64) * 1000, ~lacks & known)
    values = own["number"].view(np.int64) if name == "device_seq" else own["device"].astype(np.int64)
    return pa.array(values, LOGJAM[name], mask=lacks)


def _texts(rows: Rows, name: str) -> list[str]:
    """Return an app-env or a topic of each row, at most its first `_NAME_BYTES`."""
    own = rows.events.own
    first = rows.batch.offset[rows.unit] + own[f"{name}_offset"]
    end = first + np.minimum(own[f"{name}_length"], _NAME_BYTES)
    read = cache(lambda raw: raw.decode("utf-8", "backslashreplace"))  # there are few different ones
    places = zip(first.tolist(), end.tolist(), strict=True)
    return [read(bytes(rows.batch.data[low:high])) for low, high in places]


def _raw(rows: Rows) -> pa.Array:
    first = rows.batch.offset[rows.unit]
    edges = np.column_stack((first, first + rows.batch.length[rows.unit])).ravel()
    # Units, and what is between them, in turn.
    every = arrow.variable(pa.binary(), rows.batch.data, edges, np.ones(len(edges) - 1, bool))
    return every.take(pa.array(np.arange(0, len(every), 2)))


# Only for Logjam; null where a message could not be parsed up to this field. A producer is device 0, and
# `device_seq`, that of the meta frame, has a sign.
LOGJAM = {"app_env": pa.string(), "topic": pa.string(), "request": pa.bool_()}
LOGJAM |= {"device": pa.int64(), "device_seq": pa.int64(), "created": arrow.TIME}
_NO_META = ("no_meta", "old_meta", "bad_meta")
_NAME_BYTES = 1024  # of an app-env or a topic that are kept

COLUMNS: dict[str, tuple[pa.DataType, Callable[[Rows], pa.Array]]] = {
    "listener": (pa.string(), lambda rows: pa.repeat(rows.source.segment.listener, len(rows.unit))),
    "protocol": (pa.string(), lambda rows: pa.repeat(rows.protocol, len(rows.unit))),
    "stream": (pa.int64(), lambda rows: pa.array(rows.batch.stream[rows.unit].view(np.int64))),
    "peer": (pa.string(), _peer),
    "arrival": (pa.int64(), lambda rows: pa.array(rows.batch.arrival[rows.unit].view(np.int64))),
    "received": (arrow.TIME, lambda rows: arrow.times(rows.batch.received_us[rows.unit])),
    "segment": (pa.string(), lambda rows: pa.repeat(rows.source.segment.name, len(rows.unit))),
    # Byte of the unit in the segment.
    "unit_at": (pa.int64(), lambda rows: pa.array(rows.batch.base + rows.batch.offset[rows.unit])),
    # Of a unit.
    "direction": (pa.int32(), lambda rows: pa.array(rows.batch.direction[rows.unit].astype(np.int32))),
    "raw": (pa.binary(), _raw),
    # Of an event or a fault. `index` is that of the row in its unit.
    "index": (pa.int64(), lambda rows: pa.array(rows.events.within)),
    "id": (pa.string(), _id),
    "producer": (pa.string(), _producer),  # 20 hex digits; null without an id of 32
    "sequence": (pa.int64(), lambda rows: pa.array(rows.events.sequence, mask=~rows.has_id)),
    "hash": (pa.int64(), lambda rows: pa.array(rows.events.hash.view(np.int64), mask=~rows.is_event)),
    # Of the body or the error, in the unit with compressed frames inflated.
    "offset": (pa.int64(), lambda rows: pa.array(rows.events.offset)),
    "size": (pa.int32(), lambda rows: pa.array(rows.events.length, mask=~rows.is_event)),
    "own_id": (pa.string(), _own_id),  # 32 hex digits: the hash of an id that the application chose
    "error": (pa.string(), _error),  # null for an event
    "body": (pa.binary(), _body),
    **{name: (kind, partial(_logjam, name)) for name, kind in LOGJAM.items()},
}

BODIES = {"body", "id"}  # columns that need bodies
IDENTITY = {"id", "producer", "sequence", "own_id", "error"}
"""Columns for which bodies must be searched for ids, or checked to be JSON."""
_OF_UNITS = {"direction", "raw"}
_PLACE = ("listener", "protocol", "stream", "peer", "arrival", "received", "segment", "unit_at")

LOGS = ("id", "producer", "sequence", "received", "peer", "listener", "body", "hash", "error")
"""The columns of the format ``logclient``."""
ARRIVALS = (*_PLACE, "index", "producer", "sequence", "hash", "offset", "size", "own_id", "error", *LOGJAM)
"""The columns of ``logclient-capture``."""
UNITS = (*_PLACE, "direction", "raw")  # the columns of ``logclient-capture`` with a row for each unit


class Columns(NamedTuple):
    """The columns that are asked for, in their order."""

    names: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, COLUMNS[name][0]) for name in self.names])

    @property
    def of_units(self) -> bool:
        return self.any_of(_OF_UNITS)

    def any_of(self, some: set[str]) -> bool:
        return not some.isdisjoint(self.names)

    def possible(self) -> pa.Schema:
        """Return the columns that a table with such rows can have."""
        units = self.of_units
        names = [name for name in COLUMNS if name in self.names or (not units and name not in _OF_UNITS)]
        return Columns(tuple(names)).schema

    def batch(self, rows: Rows, keep: npt.NDArray[np.bool_] | None = None) -> pa.RecordBatch:
        """Return the rows, or those to keep, as a batch of Arrow."""
        made = pa.record_batch([COLUMNS[name][1](rows) for name in self.names], schema=self.schema)
        return made if keep is None or keep.all() else made.filter(pa.array(keep))

    def problem(self, segment: Segment, protocol: str, found: Problem) -> pa.RecordBatch:
        """Return a row for a place of a segment that cannot be read."""
        place = {"listener": segment.listener or None, "protocol": protocol, "segment": segment.name}
        return row_batch(1, self.schema, **place, unit_at=max(found.offset, 0), error=found.kind)


def select(asked: StructType, possible: pa.Schema) -> tuple[str, ...]:
    types = {field.name: field.dataType.simpleString() for field in from_arrow_schema(possible)}
    for field in asked:
        if field.name not in types:
            raise ConfigError(f"schema: there is no column {field.name!r}: {', '.join(types)}")
        if (theirs := field.dataType.simpleString()) != types[field.name]:
            raise ConfigError(f"schema: {field.name} has the type {types[field.name]}, not {theirs}")
    return tuple(asked.names)
