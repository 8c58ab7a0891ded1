"""Files in the work folder by which tasks pass data to each other and to the driver.

The work folder is a path, which all machines share, or a URL. Behind a URL each file is an object, and
reading a small range of one takes 50 ms. The columns of arrivals, which are read in small ranges, then travel
in the rows of the shuffle.

Each attempt of a task writes files with new names. A failed, repeated or speculative attempt can therefore
never change the files of another one.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.evidence import storage
from logclient.evidence.arrays import I64
from logclient.verify.schema import RESULTS

__all__ = [
    "StretchReader",
    "StretchWriter",
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
    place = storage.join(work, name)
    with storage.create(place, "work") as file, pa.ipc.new_stream(file, RESULTS) as out:
        for batch in batches:
            out.write_batch(batch)
    return name


def save_results(work: str, rows: list[dict[str, Any]]) -> str:
    """Write rows of `RESULTS` to a new file, and return its name."""
    return write_results(work, [result_batch(rows)])


def read_results(work: str, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Read the rows of some result files, a few hundred at a time."""
    for name in names:
        with (
            storage.open_buffered(storage.join(work, name), "work") as file,
            pa.ipc.open_stream(file) as rows,
        ):
            yield from rows


class StretchWriter:
    """A writer of columns that rows of `ARRIVALS` refer to. A context manager.

    Args:
        work: the work folder.
        prefix: of the name of the file.

    Attributes:
        name: of the file; None: the columns go into the rows.
    """

    def __init__(self, work: str, prefix: str = "") -> None:
        # Each attempt has a new file. Rows name the file that they refer to.
        self.name = None if storage.is_url(work) else f"{prefix}{uuid.uuid4().hex}.arrivals"
        self._file: IO[bytes] | None = None
        self._end = 0
        if self.name is not None:
            self._file = open(storage.join(work, self.name), "xb", buffering=0)  # noqa: SIM115

    def __enter__(self) -> StretchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, edges: I64, columns: list[npt.NDArray[Any]]) -> tuple[list[I64], pa.Array]:
        """Write the columns of some rows.

        Args:
            edges: where each row begins in the columns, and the end of the last one.
            columns: the values of all rows.

        Returns:
            For each column the byte at which that of each row begins; and column ``data`` of the rows.
        """
        n = len(edges) - 1
        if self._file is not None:
            places = [self._append(column) + edges[:-1] * column.itemsize for column in columns]
            return places, pa.nulls(n, pa.binary())
        sizes = np.diff(edges)
        places = []
        at = np.zeros(n, np.int64)
        for column in columns:
            places.append(at)
            at = (at + sizes * column.itemsize + 7) & ~7  # aligned
        data = [
            b"".join(part + bytes(-len(part) % 8) for part in (column[a:b].tobytes() for column in columns))
            for a, b in pairwise(edges.tolist())
        ]
        return places, pa.array(data, pa.binary())

    def _append(self, values: npt.NDArray[Any]) -> int:
        """Append values to the file, and return where they begin."""
        assert self._file is not None
        data = np.ascontiguousarray(values).view(np.uint8).data
        at = self._end
        while len(data):
            done = self._file.write(data)
            self._end += done
            data = data[done:]
        return at


@functools.cache
def _open_files() -> int:
    """Return how many files this process may open, where the system has a limit; else an assumption."""
    try:
        import resource
    except ImportError:
        return 256
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


class StretchReader:
    """A reader of the columns that rows of `ARRIVALS` refer to, with some files kept open."""

    OPEN = 256  # files at a time, at most

    def __init__(self, work: str) -> None:
        self.work = work
        self.most = min(self.OPEN, _open_files() // 4)
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
        if row["data"] is not None:
            return np.frombuffer(row["data"], dtype, row["n"], offset=at)
        file = self._files.get(row["file"])
        if file is None:
            if len(self._files) >= self.most:
                self.close()
            file = open(storage.join(self.work, row["file"]), "rb", buffering=0)  # noqa: SIM115
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
        self._place = storage.join(work, self.name)
        self._file: IO[bytes] | None = None

    def write(self, offsets: I64, positions: I64) -> int:
        """Append one tail.

        Args:
            offsets: sequences, as distances from the first of the bucket; inverted (`~`): late there.
            positions: the position of the first copy of each.

        Returns:
            The byte in the file at which it begins, for `read_tail`.
        """
        if self._file is None:
            self._file = storage.open_new(self._place, "work")
        at = self._file.tell()
        self._file.write(np.stack((offsets, positions)).astype(np.int64).tobytes())
        return at

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def read_tail(work: str, name: str, at: int, n: int) -> tuple[I64, I64]:
    """Read a tail that `TailWriter` wrote: offsets in the bucket, and positions."""
    data = storage.read_at(storage.join(work, name), "work", at, 16 * n)
    offsets, positions = np.frombuffer(data, np.int64).reshape(2, n)
    return offsets, positions
