"""Captures as streams: which bytes each batch has, so that every row comes exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from logclient.errors import ConfigError, LedgerError, LogclientError
from logclient.evidence import decode, storage
from logclient.evidence.segments import (
    MAX_NUMBER,
    Batch,
    Segment,
    SegmentReader,
    display_name,
    record_at,
)
from logclient.verify.dataframes import pieces
from logclient.verify.dataframes.pieces import Piece, Series

if TYPE_CHECKING:
    from logclient.verify.dataframes.sources import Options

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # PySpark 4.0 and 4.1 read all there is
    limits = None  # type: ignore[assignment, unused-ignore]

__all__ = ["StreamReader"]

_Offset = dict[str, Any]
_Bases: Any = (
    (DataSourceStreamReader,)
    if limits is None
    else (DataSourceStreamReader, limits.SupportsTriggerAvailableNow)
)


class StreamReader(*_Bases):  # type: ignore[misc]
    """Reads a capture as a stream.

    Offsets are the bytes of whole records in each segment: ``{"main-000001.cap": 4096}``. They never go back:
    a segment that became shorter, or one whose bytes a batch still needs and that is gone, is an error. One
    that is gone otherwise keeps its offset. Segments of several folders have their paths as names, because
    there may be more folders in the next batch.

    Where events may come in several units, ``"open"`` has, for each listener, the segment and byte of the
    first unit that belongs to an incomplete event: ``{"open": {"main-000001.cap": 2048}}``. The next batch is
    decoded from there, and has the rows behind its own start.

    Args:
        options: of the data source.

    Raises:
        ConfigError: this PySpark knows no limit of a batch, and one is given.
    """

    def __init__(self, options: Options) -> None:
        if limits is None and options.trigger_bytes is not None:
            raise ConfigError("maxBytesPerTrigger: it needs PySpark 4.2 or newer")
        self.options = options
        self._several = len(options.folders) > 1 or storage.is_pattern(options.folders[0])
        self._reached: _Offset = {}
        self._target: dict[str, int] | None = None  # of a query that ends with the data that is there
        # Found by this reader so far. A reader that continues a query finds it again.
        self._peers: dict[str, tuple[int, dict[int, str]]] = {}  # by segment: up to a byte
        self._open: dict[tuple[str, str], _OpenMessages] = {}  # by listener

    def initialOffset(self) -> _Offset:
        """Return the offset before everything."""
        return {}

    def getDefaultReadLimit(self) -> Any:
        """Return the bound on a batch."""
        if self.options.trigger_bytes is None:
            return limits.ReadAllAvailable()
        return limits.ReadMaxBytes(self.options.trigger_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there: such a query ends with it."""
        self._target = {
            self._name(piece.segment): piece.segment.size
            for series in self._found({})
            for piece in series.pieces
        }

    def latestOffset(self, start: _Offset | None = None, limit: Any = None) -> _Offset:
        """Return where the next batch ends.

        Args:
            start: where it begins; None, in PySpark 4.0 and 4.1: where the last one ended.
            limit: its bound.

        Returns:
            The offset. Only the bytes up to there are read, and at most one record more than the limit.

        Raises:
            LedgerError: a segment became shorter.
        """
        begin = self._reached if start is None else start
        end: _Offset = {name: at for name, at in begin.items() if name != "open"}
        first: dict[str, int] = dict(begin.get("open", {}))
        left = getattr(limit, "max_bytes", None)
        found = [(series, self._new(series, begin)) for series in self._found(begin)]
        # A busy listener leaves room for the others: the one with the fewest new bytes comes first.
        waiting = sorted((entry for entry in found if entry[1]), key=lambda entry: entry[1])
        for i, (series, _) in enumerate(waiting):
            share = None if left is None else max(left // (len(waiting) - i), 1)
            taken = self._advance(series, begin, end, share)
            if left is not None:
                left = max(left - taken, 0)
            if (carried := self._open.get(_key(series))) is not None:
                place = carried.first
                for segment in (piece.segment for piece in series.pieces):
                    first.pop(self._name(segment), None)
                    if place is not None and segment.number == place[0]:
                        first[self._name(segment)] = place[1]
        self._reached = {**end, "open": first} if first else end
        return self._reached

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Return the partitions of a batch."""
        from logclient.verify.dataframes.sources import Part

        options = self.options
        parts: list[Series] = []
        missing = {name for name, at in end.items() if name != "open" and at > start.get(name, 0)}
        for series in self._found(start) if end else []:
            number, at = self._open_at(series, start) or (MAX_NUMBER, 0)
            carried = pieces.carries(series.protocol, options.columns)
            chosen = []
            for segment in (piece.segment for piece in series.pieces):
                name = self._name(segment)
                missing.discard(name)
                low, high = start.get(name, 0), end.get(name, 0)
                begin = low
                if carried and segment.number >= number:
                    begin = at if segment.number == number else 0
                if high > begin:
                    chosen.append(Piece(segment, begin, high, low, self._known_peers(segment, begin)))
            if any(piece.end > piece.tell for piece in chosen):
                parts.append(series._replace(pieces=chosen))
        for name in sorted(missing):
            raise LedgerError(
                f"capture: {name} is gone, and bytes {start.get(name, 0)} to {end[name]} of it are due"
            )
        limit = options.partition_bytes or pieces.fair_bytes(parts)
        return [Part(part) for part in pieces.share(parts, options.columns, limit)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition."""
        from logclient.verify.dataframes.sources import Part, freeze_in_task

        if not isinstance(partition, Part):
            return iter(())
        freeze_in_task()
        return pieces.read(partition.series, self.options.columns, self.options.wanted)

    def _found(self, start: _Offset) -> list[Series]:
        """Return the segments that are there."""
        try:
            return pieces.find_series(self.options.folders, self.options.protocol)[0]
        except LogclientError:
            if start:
                raise
            return []  # there is no capture yet

    def _name(self, segment: Segment) -> str:
        """Return the name of a segment in offsets."""
        return display_name(segment.path) if self._several else segment.name

    def _size(self, segment: Segment) -> int:
        """Return how many bytes of a segment may be read."""
        if self._target is None:
            return segment.size
        return min(segment.size, self._target.get(self._name(segment), 0))

    def _open_at(self, series: Series, start: _Offset) -> tuple[int, int] | None:
        """Return segment and byte of the first unit of an incomplete event of a listener."""
        known = start.get("open", {})
        for segment in (piece.segment for piece in series.pieces):
            if (at := known.get(self._name(segment))) is not None:
                return segment.number, at
        return None

    def _new(self, series: Series, begin: _Offset) -> int:
        """Return the number of new bytes of a listener."""
        new = 0
        for piece in series.pieces:
            segment = piece.segment
            at = begin.get(self._name(segment), 0)
            if segment.size < at:
                raise LedgerError(
                    f"capture: {self._name(segment)} has {segment.size} bytes, and {at} were read: "
                    "it was cut or replaced"
                )
            new += max(self._size(segment) - at, 0)
        return new

    def _advance(self, series: Series, begin: _Offset, end: _Offset, share: int | None) -> int:
        """Set the ends of a listener's segments, and return how many bytes they are ahead.

        At least one record is taken, however long it is.
        """
        taken = 0
        for piece in series.pieces:
            segment = piece.segment
            at, size = begin.get(self._name(segment), 0), self._size(segment)
            room = size - at if share is None else share - taken
            if size <= at:
                continue
            if room <= 0:
                break
            reached = self._walk(series, segment, begin, at, min(at + room, size))
            while reached == at and at + room < size and not taken:
                room *= 2
                reached = self._walk(series, segment, begin, at, min(at + room, size))
            if reached > at:
                end[self._name(segment)] = reached
                taken += reached - at
            if at + room < size:
                break  # records are taken in their order: the next one is in this segment
        return taken

    def _walk(self, series: Series, segment: Segment, begin: _Offset, low: int, high: int) -> int:
        """Read whole records from `low` to `high`, and return where the last one ends."""
        carried = None
        if pieces.carries(series.protocol, self.options.columns):
            carried = self._open.get(_key(series))
            if carried is None or carried.at > (segment.number, low):
                carried = self._open[_key(series)] = self._again(series, segment, begin, low)
        known, peers = self._peers.get(segment.path, (0, {}))
        reader = SegmentReader(segment, start=low, end=high)
        for batch in reader:
            if carried is not None:
                carried.take(batch, segment.number)
        if known == low:
            self._peers[segment.path] = reader.position, {**peers, **reader.peers}
        if carried is not None:
            carried.at = segment.number, reader.position
        return reader.position

    def _again(self, series: Series, segment: Segment, begin: _Offset, low: int) -> _OpenMessages:
        """Find the incomplete messages at a byte of a segment again, from the first of them on."""
        carried = _OpenMessages(series.protocol)
        number, at = self._open_at(series, begin) or (segment.number, low)
        for piece in series.pieces:
            if number <= piece.segment.number <= segment.number:
                first = at if piece.segment.number == number else 0
                same = piece.segment.number == segment.number
                last = low if same else begin.get(self._name(piece.segment), 0)
                for batch in SegmentReader(piece.segment, start=first, end=last):
                    carried.take(batch, piece.segment.number)
        return carried

    def _known_peers(self, segment: Segment, start: int) -> dict[int, str] | None:
        """Return the peers that were announced before a byte, and perhaps later ones; None: not known."""
        if not start:
            return {}
        known, peers = self._peers.get(segment.path, (0, {}))
        return peers if known >= start else None


def _key(series: Series) -> tuple[str, str]:
    """Return a key of a listener: with more folders, its name may become that of another one."""
    return series.listener, storage.folder_of(series.pieces[0].segment.path)


class _OpenMessages:
    """The places of the first units of a listener's incomplete messages."""

    def __init__(self, protocol: str) -> None:
        self._incomplete = decode.incomplete_messages(protocol)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}  # message -> segment, byte
        self.at = (0, 0)  # segment and byte up to which units were taken

    def take(self, batch: Batch, number: int) -> None:
        """Take the units of a batch of segment `number`."""
        inbound = np.flatnonzero(batch.direction == 0)
        if len(inbound):
            # The beginning of the batch is exact enough: decoding a few units twice is cheap.
            begin = number, record_at(batch, 0)
            found = self._incomplete(batch.take(inbound))
            self.places = {message: self.places.get(message, begin) for message in found}

    @property
    def first(self) -> tuple[int, int] | None:
        """The first of these places; None: no message is incomplete."""
        return min(self.places.values(), default=None)
