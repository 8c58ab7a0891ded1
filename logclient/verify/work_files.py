"""Files in the work folder by which tasks pass data to each other and to the driver.

Each attempt of a task writes files with new names. A failed, repeated or speculative attempt can therefore
never change the files of another one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.verify.arrays import I64
from logclient.verify.schema import RESULTS

__all__ = [
    "StretchReader",
    "TailWriter",
    "read_results",
    "read_tail",
    "result_batch",
    "result_row",
    "save_results",
    "write_results",
]


def result_row(
    kind: str,
    key: int,
    listener: int = -1,
    text: str = "",
    keys: bytes = b"",
    values: bytes = b"",
    p: int = -1,
) -> dict[str, Any]:
    """Return a row of `RESULTS`."""
    return {
        "kind": kind,
        "key": key,
        "p": p,
        "listener": listener,
        "head": text,
        "keys": keys,
        "values": values,
    }


def result_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows of `RESULTS` as a batch."""
    return pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def write_results(work: str, batches: Iterable[pa.RecordBatch]) -> str:
    """Write batches of `RESULTS` to a new file, and return its name."""
    name = f"{uuid.uuid4().hex}.results"
    with open(os.path.join(work, name), "xb") as file, pa.ipc.new_stream(file, RESULTS) as out:
        for batch in batches:
            out.write_batch(batch)
    return name


def save_results(work: str, rows: list[dict[str, Any]]) -> str:
    """Write rows of `RESULTS` to a new file, and return its name."""
    return write_results(work, [result_batch(rows)])


def read_results(work: str, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Read the rows of some result files, a few hundred at a time."""
    for name in names:
        with open(os.path.join(work, name), "rb") as file, pa.ipc.open_stream(file) as rows:
            yield from rows


class StretchReader:
    """A reader of the columns that rows of `ARRIVALS` refer to, with some files kept open."""

    OPEN = 64  # files at a time

    def __init__(self, work: str) -> None:
        self.work = work
        self._files: dict[str, IO[bytes]] = {}

    def read(self, row: dict[str, Any], column: str, dtype: Any) -> npt.NDArray[Any]:
        """Read one column of a row.

        Args:
            row: of `ARRIVALS`.
            column: its name.
            dtype: the type of its values.

        Returns:
            ``row["n"]`` values; empty: the row has no such column.

        Raises:
            EOFError: the file has been truncated.
        """
        at = row[column]
        if at is None:
            return np.empty(0, dtype)
        file = self._files.get(row["file"])
        if file is None:
            if len(self._files) >= self.OPEN:
                self.close()
            file = open(os.path.join(self.work, row["file"]), "rb", buffering=0)  # noqa: SIM115
            self._files[row["file"]] = file
        size = row["n"] * np.dtype(dtype).itemsize
        file.seek(at)
        data = file.read(size)
        if len(data) != size:
            raise EOFError(f"{row['file']}: {len(data)} bytes at {at} where {size} were written")
        return np.frombuffer(data, dtype)

    def close(self) -> None:
        """Close all files. A further read opens its file again."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class TailWriter:
    """A writer of the latest arrivals of buckets to a file for the driver. The first write makes the file."""

    def __init__(self, work: str) -> None:
        self.name = f"{uuid.uuid4().hex}.tails"
        self._path = os.path.join(work, self.name)
        self._file: IO[bytes] | None = None

    def write(self, offsets: I64, positions: I64) -> int:
        """Append one tail.

        Args:
            offsets: sequences, as distances from the first of the bucket.
            positions: the position of the first copy of each.

        Returns:
            The byte in the file at which it begins, for `read_tail`.
        """
        if self._file is None:
            self._file = open(self._path, "xb")  # noqa: SIM115
        at = self._file.tell()
        self._file.write(np.stack((offsets, positions)).astype(np.int64).tobytes())
        return at

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def read_tail(work: str, name: str, at: int, n: int) -> tuple[I64, I64]:
    """Read a tail that `TailWriter` wrote: offsets in the bucket, and positions."""
    offsets, positions = np.fromfile(os.path.join(work, name), np.int64, 2 * n, offset=at).reshape(2, n)
    return offsets, positions
