"""NumPy columns as Arrow arrays, without a Python object for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.evidence.arrays import I64, U64

TIME = pa.timestamp("us", tz="UTC")
_FIRST_US, LAST_US = -62135596800000000, 253402300799999999  # the years 1 to 9999, as Spark has them


def _bitmap(valid: npt.NDArray[Any]) -> pa.Buffer | None:
    """Return the validity of rows as Arrow keeps it; None: all are valid."""
    return None if bool(valid.all()) else pa.py_buffer(np.packbits(valid != 0, bitorder="little"))


def variable(kind: pa.DataType, data: Any, edges: npt.NDArray[Any], valid: npt.NDArray[Any]) -> pa.Array:
    """Return texts or bytes, joined in `data`, that begin and end at 32-bit `edges`; null where not valid."""
    buffers = [_bitmap(valid), pa.py_buffer(edges.astype(np.int32, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(valid), buffers)


def times(us: I64, valid: npt.NDArray[np.bool_] | bool = True) -> pa.Array:
    """Return times in microseconds since 1970. Those outside the years 1 to 9999 become null."""
    inside = (us >= _FIRST_US) & (us <= LAST_US)
    return pa.Array.from_buffers(TIME, len(us), [_bitmap(valid & inside), pa.py_buffer(us)])


def hex_text(valid: npt.NDArray[np.bool_], *words: npt.NDArray[Any]) -> pa.Array:
    """Return numbers as hex digits."""
    rows = np.rec.fromarrays(words)
    size = 2 * rows.dtype.itemsize
    edges = np.arange(0, size * len(rows) + 1, size, dtype=np.int32)
    return variable(pa.string(), rows.tobytes().hex().encode(), edges, valid)


def ids(high: U64, low: npt.NDArray[np.uint16], sequence: I64, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Return ids of events as 32 hex digits."""
    halves = (sequence >> 32).astype(">u2"), sequence.astype(">u4")
    return hex_text(valid, high.astype(">u8"), low.astype(">u2"), *halves)
