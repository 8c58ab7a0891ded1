"""The rows that the steps of a comparison exchange. All rows of one key go to one task.

Rows are short and carry whole columns of some events as binary values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.evidence.arrays import I32, I64, starts_of
from logclient.evidence.reports import SegmentReport
from logclient.verify.schema import FACT

Batches = Iterable[pa.RecordBatch]
Rows = Iterator[pa.RecordBatch]
LEDGER = -1  # the listener of rows from ledgers, which come before all arrivals of their key

ROWS = pa.schema(
    [
        ("part", pa.int32()),  # the partition that the row goes to
        ("key", pa.int64()),  # a bucket, or a negative key of `schema`
        ("listener", pa.int64()),  # with the device, see `schema.DEVICE_BITS`; or LEDGER
        ("position", pa.int64()),  # the first of `positions`
        ("base", pa.int64()),  # microseconds since 1970
        ("places", pa.binary()),  # int32, in the bucket; of a ledger's row int64 pairs: ranges of places
        ("hashes", pa.binary()),  # uint64, of the bodies
        ("positions", pa.binary()),  # rising: int64, or uint32 distances from the one before
        ("times", pa.binary()),  # uint32, received at base + time; of a ledger's row made at
    ]
)

# What is judged, for the driver.
RESULTS = pa.schema(
    [
        ("kind", pa.string()),
        ("head", pa.string()),  # JSON
        ("keys", pa.binary()),
        ("values", pa.binary()),
    ]
)


def blobs(column: npt.NDArray[Any], edges: I64) -> pa.Array:
    """Return the slices between some edges of a column as binary values, without a copy."""
    offsets = edges * column.itemsize
    if int(offsets[-1]) >= 1 << 31:  # there are 32 bits with a sign for them
        raise OverflowError("more than 2 GiB in one batch of rows")
    buffers = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, *buffers])


def distances(positions: I64, edges: I64) -> npt.NDArray[Any]:
    """Return rising positions as 32-bit distances inside each row, or as they are where one is larger."""
    if not len(positions):
        return positions
    steps = np.empty(len(positions), np.int64)
    np.subtract(positions[1:], positions[:-1], out=steps[1:])
    steps[edges[:-1]] = 0
    fits = int(steps.min()) >= 0 and int(steps.max()) < 1 << 32  # without an order they do not rise
    return steps.astype(np.uint32) if fits else positions


def row_batch(n: int, schema: pa.Schema = ROWS, **columns: Any) -> pa.RecordBatch:
    """Return `n` rows. A column is an array, or one value for all rows; without one it is null."""
    arrays = []
    for field in schema:
        value: Any = columns.get(field.name)
        if not isinstance(value, pa.Array):
            scalar = np.ndim(value) == 0
            value = pa.repeat(pa.scalar(value, field.type), n) if scalar else pa.array(value, field.type)
        arrays.append(value)
    return pa.record_batch(arrays, schema=schema)


def rows_of_keys(
    partition: Callable[[I64], I32],
    keys: I64,
    listener: int,
    positions: I64,
    base: int = 0,
    **columns: npt.NDArray[Any],
) -> pa.RecordBatch:
    """Return a row of `ROWS` for each key, with the positions and columns of its events in their order."""
    order = np.argsort(keys, kind="stable")
    keys, positions = keys[order], positions[order]
    starts = starts_of(keys)
    edges = np.append(starts, len(order))
    return row_batch(
        len(starts),
        part=partition(keys[starts]),
        key=keys[starts],
        listener=listener,
        position=positions[starts],
        base=base,
        positions=blobs(positions, edges),
        **{name: blobs(column[order], edges) for name, column in columns.items()},
    )


def report_row(report: SegmentReport) -> pa.RecordBatch:
    """Return the row of a report, for the driver."""
    text = json.dumps(vars(report)).encode()
    return row_batch(1, part=0, key=FACT, listener=0, position=0, places=[text])


class Row(NamedTuple):
    """One of the rows of a batch of `ROWS`."""

    batch: pa.RecordBatch
    i: int
    key: int
    listener: int

    def value(self, name: str) -> int:
        """Return a number."""
        return int(self.batch.column(name)[self.i].as_py())

    def array(self, name: str, dtype: Any) -> npt.NDArray[Any]:
        """Return a column, valid as long as the batch; empty where the row has none."""
        value = self.batch.column(name)[self.i]
        return np.frombuffer(value.as_buffer(), dtype) if value.is_valid else np.empty(0, dtype)

    def positions(self, n: int) -> I64:
        """Return the positions of the row's `n` events."""
        value = self.batch.column("positions")[self.i].as_buffer()
        if len(value) == 8 * n:
            return np.frombuffer(value, np.int64)
        found = np.cumsum(np.frombuffer(value, np.uint32), dtype=np.int64)
        found += self.value("position")
        return found

    def report(self) -> dict[str, Any]:
        """Return the fields of the report in a `report_row`."""
        found: dict[str, Any] = json.loads(self.batch.column("places")[self.i].as_py())
        return found


def result_row(kind: str, head: Any = None, keys: bytes = b"", values: bytes = b"") -> dict[str, Any]:
    """Return a row of `RESULTS`."""
    return dict(zip(RESULTS.names, (kind, json.dumps(head), keys, values), strict=True))
