"""Captures as streams: which bytes each batch has, so that every row comes exactly once."""

from __future__ import annotations

import copy
from operator import itemgetter
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from logclient.errors import ConfigError, LedgerError, LogclientError
from logclient.evidence import decode, segments, storage
from logclient.evidence.arrays import expand, subtract, union
from logclient.evidence.segments import MIN_UNIT, Batch, Header, Segment, SegmentReader
from logclient.verify.dataframes import pieces
from logclient.verify.dataframes.pieces import CaptureReader, Part

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # PySpark 4.0 and 4.1 read all there is
    limits = None  # type: ignore[assignment, unused-ignore]

_AvailableNow: Any = getattr(limits, "SupportsTriggerAvailableNow", object)
WHOLE = 1 << 62  # the position in a segment that was read to its end record

_Offset = dict[str, dict[str, Any]]


class StreamReader(CaptureReader, DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """Reads a capture as a stream.

    An offset has an entry for each series of segments, under the name that they share (with the folder where
    there are several): ``{"main": {"read": [[1, 41]], "at": {"42": 4096}, "open": [41, 2048]}}``.

    - ``read``: ranges of the numbers of segments that were read to their end records. A segment that comes
      late, between others, is still read. So an offset has a few numbers, however many segments there are.
    - ``at``: bytes of whole records that were read of other segments.
    - ``open``: number and byte of the first unit that belongs to an incomplete event, where events may come
      in several units. The next batch is decoded from there, and has the rows behind its own start.
    """

    def __init__(self, source: Any, schema: StructType | None) -> None:
        super().__init__(source, schema)
        if limits is None and self.trigger_bytes is not None:
            raise ConfigError("maxBytesPerTrigger: it needs PySpark 4.2 or newer")
        self._several = len(self.folders) > 1 or storage.is_pattern(self.folders[0])
        self._reached: _Offset = {}
        self._target: dict[str, int] | None = None  # of a query that ends with the data that is there
        # Found by this reader so far. A reader that continues a query finds it again.
        self._headers: dict[str, Header] = {}
        self._listed: tuple[_Offset, list[pieces.Series]] = {}, []  # the last offset, and what was there
        self._peers: dict[str, tuple[int, dict[int, str]]] = {}  # by segment: up to a byte
        self._open: dict[tuple[str, str], _OpenMessages] = {}  # by listener

    def initialOffset(self) -> _Offset:
        """Return the offset before everything."""
        return {}

    def getDefaultReadLimit(self) -> Any:
        """Return the bound on a batch."""
        most = self.trigger_bytes
        return limits.ReadAllAvailable() if most is None else limits.ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there: such a query ends with it."""
        self._target = {one.path: one.size for series in self._find({}) for one in series.segments}

    def latestOffset(self, start: _Offset | None = None, limit: Any = None) -> _Offset:
        """Return where the next batch ends: up to there it is read, at most one record beyond the limit."""
        begin = self._reached if start is None else start
        end = copy.deepcopy(begin)
        left: int = getattr(limit, "max_bytes", WHOLE)
        every = self._find(begin)
        waiting = [(n, series) for series in every if (n := self._new(series, begin))]
        # A busy listener leaves room for the others: the one with the fewest new bytes comes first.
        for i, (_, series) in enumerate(sorted(waiting, key=itemgetter(0))):
            share = max(left // (len(waiting) - i), 1)
            left = max(left - self._advance(series, begin, end, share), 0)
            if (carried := self._open.get(_listener(series))) is not None:
                place = min(carried.places.values(), default=None)
                for segment in series.segments:
                    end.get(self._key(segment), {}).pop("open", None)
                for segment in series.segments:
                    if place is not None and segment.number == place[0]:
                        end.setdefault(self._key(segment), {})["open"] = list(place)
        self._reached = end
        self._listed = end, every
        return end

    def partitions(self, start: _Offset, end: _Offset) -> list[InputPartition]:
        """Return the partitions of a batch."""
        parts: list[pieces.Series] = []
        due = {(key, number) for key in end for number in self._due(start.get(key, {}), end[key])}
        nothing_open = segments.MAX_NUMBER, 0
        for series in (self._listed[1] if self._listed[0] == end else self._find(start)) if end else []:
            carried = pieces.carries(series.protocol, self.columns)
            number, at = self._open_at(series, start, nothing_open) if carried else nothing_open
            chosen = []
            for segment in series.segments:
                due.discard((self._key(segment), segment.number))
                low, high = (min(self._position(offset, segment), segment.size) for offset in (start, end))
                begin = low if segment.number < number else at if segment.number == number else 0
                if high > begin:
                    known, peers = self._peers.get(segment.path, (0, {}))
                    before = {} if not begin else peers if known >= begin else None
                    chosen.append(pieces.Piece(segment, begin, high, low, before))
            if any(piece.end > piece.tell for piece in chosen):
                parts.append(series._replace(pieces=chosen))
        for key, number in sorted(due)[:1]:
            raise LedgerError(f"capture: {key}-{number:06d}.cap is gone, and a batch needs it again")
        return [Part(part) for part in pieces.share(parts, self.columns, self.partition_bytes)]

    def _find(self, start: _Offset) -> list[pieces.Series]:
        """Return the segments that are there. Only the headers of new ones are read."""
        if not all(isinstance(entry, dict) for entry in start.values()):
            raise ConfigError("checkpointLocation: it is of an older version of logclient: take a new one")
        try:
            return self.find(self._headers)[0]
        except LogclientError:
            if start or self.wanted.strict:
                raise
            return []  # there is no capture yet

    def _key(self, segment: Segment) -> str:
        """Return the name of a segment's series in offsets."""
        name = storage.display_name(segment.path) if self._several else segment.name
        return name.rpartition("-")[0]

    def _position(self, offset: _Offset, segment: Segment) -> int:
        """Return how many bytes of a segment were read; `WHOLE`: all."""
        entry = offset.get(self._key(segment), {})
        if any(first <= segment.number <= last for first, last in entry.get("read", ())):
            return WHOLE
        return int(entry.get("at", {}).get(str(segment.number), 0))

    @staticmethod
    def _due(start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        """Return the numbers of the segments of a series that a batch has bytes of."""
        before, after = (np.array(entry.get("read", ()), np.int64).reshape(-1, 2) for entry in (start, end))
        known = start.get("at", {})
        parts = [int(n) for n, at in end.get("at", {}).items() if at > known.get(n, 0)]
        return [*expand(subtract(after, before)).tolist(), *parts]

    def _size(self, segment: Segment) -> int:
        if self._target is None:
            return segment.size
        return min(segment.size, self._target.get(segment.path, 0))

    def _open_at(self, series: pieces.Series, start: _Offset, default: tuple[int, int]) -> tuple[int, int]:
        """Return segment and byte of the first unit of an incomplete event of a listener."""
        found = (start.get(self._key(segment), {}).get("open") for segment in series.segments)
        number, at = next(filter(None, found), default)
        return number, at

    def _new(self, series: pieces.Series, begin: _Offset) -> int:
        new = 0
        for segment in series.segments:
            at = self._position(begin, segment)
            if at == WHOLE:
                self._peers.pop(segment.path, None)
            elif segment.size < at:
                raise LedgerError(
                    f"capture: {segment.name} has {segment.size} bytes, and {at} were read: "
                    "it was cut or replaced"
                )
            new += max(self._size(segment) - at, 0)
        return new

    def _advance(self, series: pieces.Series, begin: _Offset, end: _Offset, share: int) -> int:
        """Set the ends of a listener's segments, and return how many bytes they are ahead.

        At least one record is taken, however long it is.
        """
        taken = 0
        for segment in series.segments:
            at, size = self._position(begin, segment), self._size(segment)
            room = share - taken
            if size <= at:
                continue
            if room <= 0:
                break
            reached, ended = self._walk(series, segment, begin, at, min(at + room, size))
            while reached == at and at + room < size and not taken:
                room *= 2
                reached, ended = self._walk(series, segment, begin, at, min(at + room, size))
            if reached > at:
                entry = end.setdefault(self._key(segment), {})
                places = {**entry.pop("at", {}), str(segment.number): reached}
                if ended and reached == segment.size:
                    del places[str(segment.number)]
                    numbers = [*entry.get("read", ()), [segment.number, segment.number]]
                    entry["read"] = union(np.array(numbers, np.int64)).tolist()
                entry |= {"at": places} if places else {}
                taken += reached - at
            if at + room < size:
                break  # records are taken in their order: the next one is in this segment
        return taken

    def _walk(
        self, series: pieces.Series, segment: Segment, begin: _Offset, low: int, high: int
    ) -> tuple[int, bool]:
        """Read whole records, and return where the last one ends, and whether one is an end record."""
        carried = None
        if pieces.carries(series.protocol, self.columns):
            carried = self._open.get(_listener(series))
            if carried is None or carried.at > (segment.number, low):
                carried = self._open[_listener(series)] = self._again(series, segment, begin, low)
        known, peers = self._peers.get(segment.path, (0, {}))
        reader = SegmentReader(segment, start=low, end=high)
        for batch in reader:
            if carried is not None:
                carried.take(batch, segment.number)
        if known == low:
            self._peers[segment.path] = reader.position, {**peers, **reader.peers}
        if carried is not None:
            carried.at = segment.number, reader.position
        for problem in reader.problems:
            if self.wanted.strict and problem.kind == "damage":
                raise LedgerError(f"capture: {problem.place}: {problem.kind}: {problem.reason}")
        return reader.position, bool(reader.closed)

    def _again(self, series: pieces.Series, segment: Segment, begin: _Offset, low: int) -> _OpenMessages:
        """Find the incomplete messages at a byte of a segment again, from the first of them on."""
        carried = _OpenMessages(series.protocol)
        number, at = self._open_at(series, begin, (segment.number, low))
        for one in series.segments:
            if number <= one.number <= segment.number:
                first = at if one.number == number else 0
                last = low if one.number == segment.number else min(self._position(begin, one), one.size)
                for batch in SegmentReader(one, start=first, end=last):
                    carried.take(batch, one.number)
        return carried


def _listener(series: pieces.Series) -> tuple[str, str]:
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
            begin = number, batch.base + int(batch.offset[0]) - MIN_UNIT
            found = self._incomplete(batch.take(inbound))
            self.places = {message: self.places.get(message, begin) for message in found}
