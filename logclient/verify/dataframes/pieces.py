"""Pieces of segments: how the bytes of a capture are shared out over tasks, and how a task reads its share.

A cut may lie anywhere: a piece has the records that are whole at its end and were not at its start. The task
finds the first of them by reading the lengths from the beginning of the segment, so that bytes that only look
like a record never count as one, and it meets the names of peers on its way.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from logclient._ext import documents
from logclient.errors import ConfigError, LedgerError
from logclient.evidence import captures, decode, storage
from logclient.evidence.segments import Batch, Header, Problem, Segment, SegmentReader
from logclient.verify import worker
from logclient.verify.dataframes.columns import BODIES, DOCUMENTS, IDENTITY, Columns, Rows
from logclient.verify.plan import share_out

# Bytes of a partition. A whole segment is read with the least work: a collector closes it at 256 MiB.
MOST_BYTES, LEAST_BYTES = 272 << 20, 8 << 20
TASKS = 64  # that a capture has before partitions become larger
PIECES = 512  # in one partition
UNITS = 1 << 14  # read at a time
ROWS = 1 << 14  # in one batch, and as many as its last unit has
BODY_BYTES = 8 << 20  # likewise

_Find = Callable[[Batch], Iterator[tuple[decode.Events, decode.Kept]]]


class Piece(NamedTuple):
    """Some records of one segment."""

    segment: Segment
    start: int  # any byte, if peers is None; else where a record begins
    end: int  # any byte
    tell: int  # rows begin here: units before it are decoded for events that end behind it
    peers: dict[int, str] | None = None  # of the streams that were announced before `start`; None: not known


class Series(NamedTuple):
    """Segments of one listener, or pieces of them, in order."""

    listener: str
    protocol: str  # empty: not known
    pieces: list[Piece]

    @property
    def segments(self) -> list[Segment]:
        """The segment of each piece."""
        return [piece.segment for piece in self.pieces]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(piece.end - piece.start for piece in self.pieces)


class Wanted(NamedTuple):
    """The rows that are asked for. Others may be left out, and need not be."""

    received: tuple[int, int] | None = None  # first and last microsecond
    listeners: frozenset[str] | None = None
    producers: frozenset[str] | None = None
    quiet: bool = True  # pings, heartbeats and the like are rows
    strict: bool = False  # what is damaged is an error, not a row

    def of_units(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Return which units of a batch may have such rows."""
        if self.received is None:
            return np.ones(len(batch.offset), bool)
        first, last = self.received
        return (first <= batch.received_us) & (batch.received_us <= last)

    def of_events(self, events: decode.Events) -> npt.NDArray[np.bool_]:
        """Return which rows are such."""
        keep = np.ones(len(events.unit), bool)
        if not self.quiet:
            silent = [i for i, name in enumerate(events.names) if name in decode.QUIET]
            keep &= ~np.isin(events.status, silent)
        if self.producers is not None:
            which = np.zeros(len(keep), bool)
            for name in filter(re.compile("[0-9a-f]{20}").fullmatch, self.producers):
                high, low = np.uint64(int(name[:16], 16)), np.uint16(int(name[16:], 16))
                which |= (events.high == high) & (events.low == low)
            keep &= which
        return keep


def find_series(
    folders: Sequence[str], protocol: str = "", known: dict[str, Header] | None = None
) -> tuple[list[Series], list[captures.LeftOut]]:
    """Find the segments that the verifier would compare, and unreadable files whose rows no other one has."""
    found: dict[str, Series] = {}
    chosen, left_out = captures.choose(storage.expand(folders, "capture"), known)
    for segment, header in chosen:
        one = found.get(segment.listener, Series(segment.listener, "", []))
        if header is not None and not one.protocol and captures.decodable(header.protocol):
            one = one._replace(protocol=header.protocol)
        one.pieces.append(Piece(segment, 0, segment.size, 0, {}))
        found[segment.listener] = one
    unread = [one for one in left_out if one.doubt]
    if not protocol:
        return [*found.values()], unread
    wanted = decode.protocol_of(protocol)
    series = [one for one in found.values() if decode.protocol_of(one.protocol) == wanted]
    return series, [one for one in unread if decode.protocol_of(one.protocol) in (wanted, "")]


def carries(protocol: str, columns: Columns) -> bool:
    """Return whether rows of these columns need all units of a listener, in order."""
    return not columns.of_units and bool(protocol) and decode.carries(protocol)


def share(series: Sequence[Series], columns: Columns, limit: int | None) -> list[list[Series]]:
    """Share out the pieces over partitions of `limit` bytes. A series that must stay whole may have more.

    Without a limit the size of the capture alone decides: the driver is not the cluster.
    """
    if limit is None:
        limit = min(MOST_BYTES, max(-(-sum(one.size for one in series) // TASKS), LEAST_BYTES))
    parts = (
        (part, part.size, len(part.pieces))
        for one in series
        for part in ([one] if carries(one.protocol, columns) else _cut(one, limit))
        if any(piece.end > piece.tell for piece in part.pieces)
    )
    return share_out(parts, limit, PIECES)


def _cut(series: Series, limit: int) -> Iterator[Series]:
    for piece in series.pieces:
        size = piece.end - piece.start
        n = max(-(-size // limit), 1)
        for low, high in itertools.pairwise(piece.start + i * size // n for i in range(n + 1)):
            peers = piece.peers if low == piece.start else None
            yield series._replace(pieces=[Piece(piece.segment, low, high, low, peers)])


def read(series: Iterable[Series], columns: Columns, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition."""
    new = functools.partial(
        decode.bounded_decoder,
        rows=ROWS,
        body_bytes=BODY_BYTES if columns.any_of(BODIES) else 0,
        identity=columns.any_of(IDENTITY) or wanted.producers is not None or wanted.strict,
        hashes=columns.any_of({"hash"}),
    )
    shared = functools.cache(new)
    for one in series:
        find = reader = None
        if one.protocol and not columns.of_units:
            find = (new if decode.carries(one.protocol) else shared)(one.protocol)
            if columns.any_of(DOCUMENTS):
                whole = documents.DocumentReader(**decode.wire(one.protocol).DOCUMENT)
                reader = functools.partial(whole.read, fields=columns.any_of({"fields"}))
        for piece in one.pieces:
            yield from _read_piece(piece, one.protocol, find, reader, columns, wanted)


def _read_piece(
    piece: Piece, protocol: str, find: _Find | None, reader: Any, columns: Columns, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    opened, first = _open(piece)
    if opened is None:
        return
    carried = find is not None and decode.carries(protocol)
    for batch in opened:
        if columns.of_units:
            if len(take := np.flatnonzero(wanted.of_units(batch))):
                yield columns.batch(Rows(batch, take, opened, protocol))
            continue
        inbound = batch.direction == 0
        take = np.flatnonzero(inbound if carried else inbound & wanted.of_units(batch))
        if find is None or not len(take):
            continue
        if len(take) < len(inbound):
            batch = batch.take(take)
        for events, kept in find(batch):
            keep = wanted.of_events(events)
            if carried:
                keep &= wanted.of_units(batch)[events.unit]
                if piece.tell > piece.start:
                    keep &= batch.base + batch.offset[events.unit] >= piece.tell
            if keep.any():
                rows = Rows(batch, events.unit, opened, protocol, events, kept, reader)
                if wanted.strict:
                    _check(rows, keep)
                yield columns.batch(rows, keep)
    for problem in _problems(opened, protocol, piece, first):
        if wanted.strict:
            raise LedgerError(f"capture: {problem.place}: {problem.kind}: {problem.reason}")
        if not columns.of_units:
            yield columns.problem(piece.segment, protocol, problem)


def _check(rows: Rows, keep: npt.NDArray[np.bool_]) -> None:
    """Raise an error that names the first of the rows that is no event and should be one."""
    names = rows.events.names
    wrong = [i for i, name in enumerate(names) if i >= decode.NOT_JSON and name not in decode.QUIET]
    for row in np.flatnonzero(np.isin(rows.events.status, wrong) & keep)[:1]:
        at, word = int(rows.batch.offset[rows.unit[row]]), names[rows.events.status[row]]
        raise LedgerError(f"capture: {rows.source.segment.name} at byte {rows.batch.base + at}: {word}")


def _open(piece: Piece) -> tuple[SegmentReader | None, int]:
    """Return a reader of a piece (None: there is nothing to read in it), and where its rows begin."""
    start, first, peers = piece.start, piece.tell, piece.peers
    if peers is None:
        before = SegmentReader(piece.segment, end=start, skip=True)
        for _ in before:
            pass
        if any(problem.offset >= before.position for problem in before.problems if problem.kind == "damage"):
            return None, 0  # nothing can be read from there on, which the piece before has said
        first = before.position if first == start else first  # the rows before it were in an earlier batch
        start = before.position
        peers = before.peers
    reader = SegmentReader(piece.segment, start=start, end=piece.end, units=UNITS)
    reader.peers.update(peers)
    return reader, first


def _problems(reader: SegmentReader, protocol: str, piece: Piece, first: int) -> Iterator[Problem]:
    """Yield the places of a piece that cannot be read, from byte `first` on."""
    name = piece.segment.name
    if not protocol and not piece.tell:
        yield Problem("unknown_protocol", name, 0, "its header names no protocol that is known")
    wrong = [problem for problem in reader.problems if problem.kind in ("unread", "damage")]
    for problem in wrong:
        if problem.kind == "unread" or problem.offset >= first:
            yield problem
    explained = any(problem.kind == "unread" or problem.offset >= reader.position for problem in wrong)
    if piece.end == piece.segment.size and reader.position < piece.end and not explained:
        yield Problem("torn_record", name, reader.position, "the record is not whole")


# -- options

PATHS = "paths"  # the option in which Spark, too, passes several paths, as JSON


def folders_of(options: Any, what: str, *names: str) -> list[str]:
    """Return the places of some options, each of them a place or a list of them as JSON."""
    given: list[str] = []
    for name in names:
        text = str(options.get(name) or "")
        found: Any = [text] if text else []
        if text and (name == PATHS or text.startswith("[")):
            try:
                found = json.loads(text)
            except ValueError:
                found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{name}: it must be a list of paths as JSON: give them to load()")
        given += found
    if not given:
        raise ConfigError(f"{names[0]}: the folder of a {what} must be given")
    return storage.resolve_all(given, what)


def bytes_of(name: str, options: Any) -> int | None:
    """Return a number of bytes; None: the option is not given."""
    if (given := options.get(name)) is None:
        return None
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", str(given).strip(), re.IGNORECASE)
    size = int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ") if match else 0
    if not size:
        raise ConfigError(f"{name}: {given!r} must be a number of bytes such as 67108864 or 64m")
    return size


def choice_of(name: str, options: Any, *choices: str) -> bool:
    """Return whether an option has the second of two values; the first one is the default."""
    given = str(options.get(name, choices[0]))
    if given.upper() not in (choice.upper() for choice in choices):
        raise ConfigError(f"{name}: {given!r} must be {' or '.join(choices)}")
    return given.upper() == choices[1].upper()


# -- readers of Spark


@dataclasses.dataclass
class Part(InputPartition):
    """The pieces of one task, and files that are only named."""

    series: list[Series]
    left_out: Sequence[captures.LeftOut] = ()


class CaptureReader:
    """What the readers of batches and of streams have in common."""

    def __init__(self, source: Any, schema: StructType | None) -> None:
        source._check_options()
        options: Any = source.options
        self.columns = source._columns(schema)
        self.wanted = Wanted(quiet=source._quiet, strict=source._strict)
        self.folders = folders_of(options, "capture", "path", PATHS)
        self.protocol = str(options.get("protocol", ""))
        if self.protocol:
            decode.wire(self.protocol)
        self.partition_bytes = bytes_of("maxPartitionBytes", options)
        self.trigger_bytes = bytes_of("maxBytesPerTrigger", options)

    def find(self, known: dict[str, Header]) -> tuple[list[Series], list[captures.LeftOut]]:
        """Find the segments, and the files that cannot be read, see `find_series`."""
        series, left_out = find_series(self.folders, self.protocol, known)
        if left_out and self.wanted.strict:
            raise LedgerError(f"capture: {left_out[0].segment}: {left_out[0].reason}")
        return series, left_out

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        if not isinstance(partition, Part):  # Spark makes one when there are none
            return
        worker.prepare_in_task()
        for one in partition.left_out:
            yield self.columns.problem(Segment("", 0, "", 0, one.segment), one.protocol, one.problem())
        yield from read(partition.series, self.columns, self.wanted)
