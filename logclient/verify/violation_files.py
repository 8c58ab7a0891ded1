"""The Parquet files with every fault of a verdict: tasks make them, and the driver writes them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logclient.errors import LedgerError
from logclient.evidence import storage
from logclient.verify.output import create_file, errors_named, violation_files
from logclient.verify.rows import row_batch
from logclient.verify.schema import VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from logclient.evidence.arrays import I64
    from logclient.verify.ledger_facts import LedgerFacts

FILE_ROWS = 1 << 20  # in one file, about
_GROUP = 1 << 8  # batches in a group of rows


class ViolationWriter:
    """A writer of faults as Parquet files in memory, which go to the driver, if they are wanted."""

    def __init__(self, wanted: bool, facts: LedgerFacts) -> None:
        self.wanted = wanted
        self.facts = facts
        self._rows: list[pa.RecordBatch] = []
        self._count = 0

    def add(self, kind: str, p: I64 | int, first: I64, last: I64, copies: I64 | int, sent: bool) -> None:
        """Add inclusive ranges of sequences of one producer, or of one for each, with a word.

        `sent` tells whether the ledger lists the events.
        """
        if self.wanted and len(first):
            producers, which = np.unique(np.broadcast_to(p, len(first)), return_inverse=True)
            names = _names_of(self.facts, producers).take(pa.array(which))
            self._add(kind, names, first, last, copies, sent, None)

    def add_unknown(
        self, kind: str, ids: list[tuple[str | None, int | None, str | None]], copies: I64
    ) -> None:
        """Add ids of no known producer: producer, sequence and other of each, as in `VIOLATIONS`."""
        if self.wanted and ids:
            names, sequences, others = zip(*ids, strict=True)
            self._add(kind, names, sequences, sequences, copies, False, others)

    def _add(self, *columns: Any) -> None:
        named = dict(zip(VIOLATIONS.names, columns, strict=True))
        self._rows.append(row_batch(len(named["first"]), VIOLATIONS, **named))
        self._count += len(self._rows[-1])

    def take(self, least: int = 1) -> bytes:
        """Return a file with the faults so far; empty: there are fewer than `least`."""
        if self._count < least:
            return b""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, VIOLATIONS, compression="zstd") as out:
            for low in range(0, len(self._rows), _GROUP):
                out.write_table(pa.Table.from_batches(self._rows[low : low + _GROUP], VIOLATIONS))
        self._rows, self._count = [], 0
        return bytes(sink.getvalue())


def publish(folder: str, files: Iterable[bytes], facts: LedgerFacts, doubtful: set[str]) -> None:
    """Write the files of all tasks into the verdict's folder of violations.

    The lost and missing events of `doubtful` protocols, whose capture is incomplete, become unknown if they
    were sent.
    """
    which = [i for i, family in enumerate(facts.families) if family in doubtful]
    touched = _names_of(facts, np.flatnonzero(np.isin(facts.family, which)))
    for number, data in enumerate(files, 1):
        with create_file(storage.join(folder, f"part-{number:05d}.parquet")) as sink:
            if not len(touched):
                sink.write(data)
                continue
            table = pq.read_table(pa.BufferReader(data))
            unseen = pc.and_(pc.is_in(table["kind"], pa.array(["lost", "missing"])), table["sent"])
            unseen = pc.and_(unseen, pc.is_in(table["producer"], touched))
            kind = pc.if_else(unseen, "unknown", table["kind"])
            pq.write_table(table.set_column(0, "kind", kind).cast(VIOLATIONS), sink, compression="zstd")


def _names_of(facts: LedgerFacts, producers: I64) -> pa.Array:
    n = len(producers)
    digits = pa.py_buffer(facts.rows["prefix"][producers].tobytes().hex().encode())
    return pa.StringArray.from_buffers(n, pa.py_buffer(np.arange(0, 20 * n + 1, 20, dtype=np.int32)), digits)


def violations(out: storage.Folder, spark: SparkSession | None = None) -> Any:
    """Return every event of a verdict that is not ``ok``, and every duplicated or reordered one, as ranges.

    The columns are those of docs/verify.md.

    Args:
        out: the folder that `run` has written, its argument `out`: a path or a URL.
        spark: a session whose workers see the folder: the result is a DataFrame, which is read when it is
            used. Without one it is a `pyarrow.Table`.

    Raises:
        LedgerError: there is no verdict, or a file of it is damaged.
    """
    folder = storage.resolve(out, "out")
    with errors_named(folder):
        places = [storage.join(folder, "violations", name) for name in violation_files(folder)]
    if spark is None:
        return pa.Table.from_batches((batch for place in places for batch in _read(place)), VIOLATIONS)
    from pyspark.sql.pandas.types import from_arrow_schema

    from logclient.verify.spark import no_pandas

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _read(places[number])

    with no_pandas():
        numbers = spark.range(0, len(places), 1, max(len(places), 1))
        return numbers.mapInArrow(read, from_arrow_schema(VIOLATIONS))


def _read(place: str) -> Iterator[pa.RecordBatch]:
    raw = storage.open_file(place, "out")
    try:
        with io.BufferedReader(raw, 1 << 20) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches():
                yield batch.cast(VIOLATIONS)
    except pa.ArrowException as error:
        raise LedgerError(f"out: {place}: {str(error)[:300]}") from error


def violation_ids(out: storage.Folder, kind: str | None = None) -> Iterator[tuple[str, str]]:
    """Iterate over every event of a verdict that is not ``ok``, and every duplicated or reordered one.

    Args:
        out: as for `violations`.
        kind: only this word, such as ``lost``; None: all.

    Yields:
        Word and id. An id has 32 hex digits. For other events it is ``~`` and the hash of the own id
        (32 digits) or of its body (16 digits).
    """
    for batch in violations(out).to_batches():
        columns = (column.to_pylist() for column in batch.columns)
        for word, producer, first, last, _, _, other in zip(*columns, strict=True):
            if kind is not None and word != kind:
                continue
            if producer is None:
                yield word, "~" + other
                continue
            for sequence in range(first, last + 1):
                yield word, f"{producer}{sequence:012x}"
