"""The Parquet files with every fault of a verdict: tasks write them, and the driver publishes them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logclient.evidence import storage
from logclient.verify.output import create_file, violation_files
from logclient.verify.schema import VIOLATIONS

if TYPE_CHECKING:
    from logclient.evidence.arrays import I64
    from logclient.verify.packed_ledger import PackedLedger

__all__ = ["ViolationWriter", "publish", "violations"]


class ViolationWriter:
    """A writer of faults to a new Parquet file.

    Args:
        folder: the folder of the file; empty: write nothing.
        packed: the ledgers.
    """

    def __init__(self, folder: str, packed: PackedLedger) -> None:
        self.folder = folder
        self.name = ""
        self.packed = packed
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[pa.RecordBatch] = []
        self._count = 0

    def add(self, kind: str, p: I64 | int, first: I64, last: I64, copies: I64 | int, sent: bool) -> None:
        """Add ranges of sequences.

        Args:
            kind: a word of the verdict.
            p: the producer's number: one for all, or one for each.
            first: of each range.
            last: of each range, inclusive.
            copies: how many copies of each event arrived.
            sent: whether the events are listed in the ledger.
        """
        if not self.folder or not len(first):
            return
        n = len(first)
        self._add(
            [
                pa.repeat(pa.scalar(kind), n),
                self._names(p, n),
                pa.array(first, pa.int64()),
                pa.array(last, pa.int64()),
                pa.array(np.broadcast_to(np.asarray(copies, np.int64), n)),
                pa.repeat(pa.scalar(sent), n),
                pa.nulls(n, pa.string()),
            ]
        )

    def _names(self, p: I64 | int, n: int) -> pa.Array:
        """Return the names of `n` producers."""
        if isinstance(p, int):
            return pa.repeat(pa.scalar(self.packed.name(p)), n)
        producers, which = np.unique(p, return_inverse=True)
        return _names_of(self.packed, producers).take(pa.array(which))

    def add_unknown(self, kind: str, rows: list[tuple[str | None, int | None, str | None, int]]) -> None:
        """Add ids that belong to no producer of the ledgers.

        Args:
            kind: a word of the verdict.
            rows: producer, sequence, other and copies, as in `VIOLATIONS`.
        """
        if not self.folder or not rows:
            return
        producer, sequence, other, copies = zip(*rows, strict=True)
        n = len(rows)
        self._add(
            [
                pa.repeat(pa.scalar(kind), n),
                pa.array(producer, pa.string()),
                pa.array(sequence, pa.int64()),
                pa.array(sequence, pa.int64()),
                pa.array(copies, pa.int64()),
                pa.repeat(pa.scalar(False), n),
                pa.array(other, pa.string()),
            ]
        )

    def _add(self, columns: list[pa.Array]) -> None:
        self._rows.append(pa.record_batch(columns, schema=VIOLATIONS))
        self._count += len(columns[0])
        if self._count >= 1 << 17:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            # A new name for each attempt: the driver takes only the files of successful attempts.
            self.name = f"{uuid.uuid4().hex}.parquet"
            self._file = storage.open_new(storage.join(self.folder, self.name), "work")
            self._writer = pq.ParquetWriter(self._file, VIOLATIONS, compression="zstd")
        self._writer.write_table(pa.Table.from_batches(self._rows, VIOLATIONS))
        self._rows.clear()
        self._count = 0

    def close(self) -> str:
        """Finish the file.

        Returns:
            The name of the file; empty: there were no faults.
        """
        if self._rows:
            self._flush()
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.close()
        return self.name


def publish(work: str, folder: str, names: set[str], packed: PackedLedger, doubtful: set[str]) -> None:
    """Copy the files of successful attempts to the verdict's folder.

    Args:
        work: the folder of the tasks' files.
        folder: the verdict's folder of violations.
        names: the files of successful attempts.
        packed: the ledgers.
        doubtful: protocols with an incomplete capture. Their lost and missing events that were sent become
            unknown.
    """
    touched = _producer_names(packed, doubtful)
    for number, name in enumerate(sorted(names - {""}), 1):
        final = storage.join(folder, f"part-{number:05d}.parquet")
        with (
            storage.open_buffered(storage.join(work, name), "work") as source,
            create_file(final) as sink,
        ):
            if not len(touched):
                shutil.copyfileobj(source, sink, 1 << 20)
                continue
            with (
                pq.ParquetFile(source) as file,
                pq.ParquetWriter(sink, VIOLATIONS, compression="zstd") as out,
            ):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    unseen = pc.and_(
                        pc.and_(pc.is_in(table["kind"], pa.array(["lost", "missing"])), table["sent"]),
                        pc.is_in(table["producer"], touched),
                    )
                    kind = pc.if_else(unseen, "unknown", table["kind"])
                    out.write_table(table.set_column(0, "kind", kind).cast(VIOLATIONS))


def _producer_names(packed: PackedLedger, families: set[str]) -> pa.Array:
    """Return the names of all producers of some protocols."""
    which = np.isin(packed.family, [i for i, family in enumerate(packed.families) if family in families])
    return _names_of(packed, np.flatnonzero(which))


def _names_of(packed: PackedLedger, producers: I64) -> pa.Array:
    """Return the names of some producers."""
    n = len(producers)
    digits = pa.py_buffer(packed.rows["prefix"][producers].tobytes().hex().encode())
    return pa.StringArray.from_buffers(n, pa.py_buffer(np.arange(0, 20 * n + 1, 20, dtype=np.int32)), digits)


def violations(out: storage.Folder, kind: str | None = None) -> Iterator[tuple[str, str]]:
    """Iterate over every event of a verdict that is not ``ok``, and every duplicated or reordered one.

    Args:
        out: the folder that `run` has written, its argument `out`: a path or a URL.
        kind: only this word, such as ``lost``; None: all.

    Yields:
        Word and id. An id has 32 hex digits. For other events it is ``~`` and the hash of the own id
        (32 digits) or of its body (16 digits).
    """
    folder = storage.resolve(out, "out")
    for name in violation_files(folder):
        place = storage.join(folder, "violations", name)
        with storage.open_buffered(place, "out") as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    if kind is not None and row["kind"] != kind:
                        continue
                    if row["producer"] is None:
                        yield row["kind"], "~" + row["other"]
                        continue
                    for sequence in range(row["first"], row["last"] + 1):
                        yield row["kind"], f"{row['producer']}{sequence:012x}"
