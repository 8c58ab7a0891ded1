"""Segments, the files of a capture, read as batches of whole wire units; see ``docs/formats.md``.

They are read in chunks of some megabytes with plain reads. A memory map would kill the process when a
restarted collector truncates a torn record during the read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from logclient._ext import capture as walker
from logclient.errors import LedgerError
from logclient.evidence import storage
from logclient.evidence.arrays import I64, U8, U64
from logclient.evidence.libraries import np, npt
from logclient.evidence.storage import display_name
from logclient.files import capture
from logclient.files.capture import Header, Problem

YEAR_2255 = 1 << 53  # microseconds; a later time of arrival, or one before 1970, is taken as unknown
MAX_PROBLEMS = 20  # problems of one kind in one segment that are kept; the rest is counted
_NAME = re.compile(r"(.+)-(\d{6,})\.cap")
_ALIKE = re.compile(r"\.cap(?![a-z0-9])", re.IGNORECASE)  # also of an upload under way, or compressed
_RECORD_HEAD = 8
_UNIT_HEAD = 27
BATCH_UNITS, CHUNK_BYTES = 1 << 18, 4 << 20  # units of a batch and bytes of a read, by default
MIN_UNIT = _RECORD_HEAD + _UNIT_HEAD  # bytes of the record of a unit without data


class Segment(NamedTuple):
    """One file of a capture."""

    listener: str
    number: int
    path: str  # or a URL
    size: int
    label: str = ""  # its name where several folders are read: with its folder

    @property
    def name(self) -> str:
        """The name of the file as text, even if it is not UTF-8."""
        return display_name(self.label or storage.base_name(self.path))


class Batch(NamedTuple):
    """Whole wire units of one segment, in the order of the file. Valid until the next batch is read."""

    data: memoryview
    base: int  # where `data` begins in the file
    ordinal: int  # number of units in the segment before the first one here
    offset: I64  # of the units in `data`
    length: I64
    arrival: U64
    stream: U64
    received_us: I64
    direction: U8

    def take(self, which: npt.NDArray[np.intp]) -> Batch:
        """Return some of the units. `ordinal` is not changed."""
        return Batch(*self[:3], *(column[which] for column in self[3:]))  # type: ignore[arg-type]


def binary(column: Any) -> tuple[memoryview, I64, I64]:
    """Return the bytes of an Arrow array without nulls: the data of all values, offset and length of each."""
    _, edges, data = column.buffers()
    first = column.offset
    at = np.frombuffer(edges, np.int32)[first : first + len(column) + 1].astype(np.int64)
    return memoryview(b"" if data is None else data), at[:-1], at[1:] - at[:-1]


def list_segments(places: Sequence[str]) -> tuple[list[Segment], list[Problem]]:
    """List what may be a segment below some folders, and the folders that may have more and are not read.

    Entries with another name than a segment's, such as ``main-000001.cap.gz``, have their whole name as
    listener, and number 0. Entries that are no regular files are listed too.
    """
    kind = "segment", "<listener>-<nnnnnn>.cap"
    found, unread = storage.find_files(
        places, "capture", kind, fits=lambda name: name.endswith(".cap"), alike=_ALIKE.search
    )
    segments = []
    for folder, entries in found.items():
        for name, entry in entries.items():
            match = _NAME.fullmatch(entry.name)
            listener, number = (match[1], int(match[2])) if match else (entry.name, 0)
            path, label = storage.join(folder, entry.name), "" if name == entry.name else name
            segments.append(Segment(listener, number, path, entry.size, label))
    problems = [Problem("unread", display_name(name), -1, f"it is {what}") for name, what in unread.items()]
    return sorted(segments), problems


def read_header(segment: Segment) -> Header | None:
    """Read the header of a segment, and when its first unit was received."""
    data = storage.read_at(segment.path, "capture", 0, min(segment.size, _RECORD_HEAD + 65536))
    walk = walker.walk(data, limit=1)
    for kind, offset, length in walk.others[:1]:
        if kind == walker.SEGMENT:
            header = capture.read_header(data[offset + _RECORD_HEAD : offset + _RECORD_HEAD + length])
            first_us = int.from_bytes(walk.received_us[:8], "little", signed=True)
            known = 0 < first_us < YEAR_2255
            return header._replace(first_us=first_us * known) if isinstance(header, Header) else None
    return None


def unit_at(segment: Segment, offset: int) -> bytes:
    """Return the unit whose bytes begin at `offset` of a segment; shorter if the file was truncated."""
    with storage.open_file(segment.path, "capture") as file:
        file.seek(offset - MIN_UNIT)
        length = int.from_bytes(storage.read_exactly(file, _RECORD_HEAD)[:4], "little")
        return storage.read_exactly(file, length)[_UNIT_HEAD:]


class SegmentReader:
    """An iterator over a segment in batches of at most `units`, which also records problems and the end.

    It reads up to the size of the file when it was found, `chunk` bytes at a time, more when a record is
    longer. A segment may have very many peers: False leaves them.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        units: int = BATCH_UNITS,
        chunk: int = CHUNK_BYTES,
        peers: bool = True,
    ) -> None:
        self.segment = segment
        self.header: Header | None = None
        self.peers: dict[int, str] = {}  # by stream
        self.problems: list[Problem] = []  # at most `MAX_PROBLEMS` of each kind
        self.counts = {"damage": 0, "gap": 0, "unclosed": 0, "unread": 0}
        self.units = 0
        self.closed = ""  # the reason in the end record; empty: there is none
        self.position = 0  # end of the last record that was read
        self.first_arrival = 0  # not known
        self.next_arrival = 0  # that would follow the last unit
        self._chunk = max(chunk, 64)
        self._walk = partial(walker.walk, limit=units, streams=peers)
        self._end_at = -1  # where the end record ends

    def _problem(self, kind: str, offset: int, reason: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= MAX_PROBLEMS:
            self.problems.append(Problem(kind, self.segment.name, offset, reason))

    def __iter__(self) -> Iterator[Batch]:
        try:
            file = storage.open_file(self.segment.path, "capture")
        except LedgerError:
            raise  # a server, which may fail for all of them
        except OSError as error:
            self._problem("unread", -1, error.strerror or str(error))
            return
        with file:
            yield from self._read(file)
        if 0 <= self._end_at < self.position:
            self._problem("damage", self._end_at, "records after the end record")
        if self._end_at < 0:
            self._problem("unclosed", self.segment.size, "no end record")

    def _read(self, file: io.RawIOBase) -> Iterator[Batch]:
        base = 0
        left = self.segment.size
        buffer = bytearray(min(self._chunk, max(left, 1)))
        filled = 0
        while True:
            view = memoryview(buffer)
            while left and filled < len(buffer):
                n = file.readinto(view[filled : filled + left]) or 0
                filled += n
                left -= n or left  # nothing: the file was truncated meanwhile
            data = view[:filled]
            at = 0
            while True:
                walk = self._walk(data, at)
                at = walk.end
                self.position = base + at
                yield from self._take(data, base, walk)
                if walk.stop != walker.LIMIT:
                    break
            rest = filled - at
            need = _RECORD_HEAD + (int.from_bytes(data[at : at + 4], "little") if rest >= 4 else 0)
            if walk.stop == walker.LENGTH or not left or need > rest + left:
                self._judge_rest(file, data[at:], left, base + at)
                return
            tail = bytes(data[at:])
            if need > len(buffer):
                buffer = bytearray(need)
            buffer[:rest] = tail
            base += at
            filled = rest

    def _judge_rest(self, file: io.RawIOBase, data: memoryview, left: int, offset: int) -> None:
        """Judge the bytes behind the last whole record, from `offset` on: `data`, and `left` bytes more.

        A crash of the machine leaves a torn record, or zeros up to the end of the file. Anything else is
        damage, and so is a torn record behind the end.
        """
        head = bytes(data[:4])
        while len(head) < 4 and (more := file.read(min(4 - len(head), left))):
            head += more
            left -= len(more)
        length = int.from_bytes(head, "little")
        if (len(head) == 4 and 0 < length <= walker.MAX_RECORD) or (length and len(head) < 4):
            if self._end_at >= 0:
                self._problem("damage", offset, "bytes after the end record")
            return
        while length == 0 and not any(data) and (data := memoryview(file.read(min(left, 1 << 20)) or b"")):
            left -= len(data)
        if length or any(data):
            self._problem("damage", offset, f"a record of {length} bytes: the rest cannot be read")

    def _take(self, data: memoryview, base: int, walk: walker.Walk) -> Iterator[Batch]:
        offset, lengths, received_us = (
            np.frombuffer(column, np.int64) for column in (walk.offset, walk.length, walk.received_us)
        )
        arrival, stream = (np.frombuffer(column, np.uint64) for column in (walk.arrival, walk.stream))
        ends = []
        for kind, at, length in walk.others:
            where = base + at
            payload = data[at + _RECORD_HEAD : at + _RECORD_HEAD + length]
            if kind == walker.STREAM:
                self.peers[int.from_bytes(payload[1:9], "little")] = str(payload[9:], "utf-8", "replace")
            elif kind == walker.SEGMENT:
                header = "a second header" if where else capture.read_header(bytes(payload))
                if isinstance(header, str):
                    self._problem("damage", where, header)
                else:
                    self.header = header
                    self.first_arrival = self.next_arrival = header.first_arrival
            elif kind == walker.END:
                if self._end_at < 0:
                    self._end_at = where + _RECORD_HEAD + length
                self.closed = str(payload[9:], "utf-8", "replace")
                ends.append((where, int.from_bytes(payload[1:9], "little")))
            elif kind == walker.BAD_CRC:
                self._problem("damage", where, f"CRC of a record of {length} bytes is wrong")
            else:
                self._problem("damage", where, f"an impossible record of {length} bytes, type {payload[0]}")
        if len(arrival):
            # One unsigned comparison finds jumps forward and back. The header names the first arrival.
            expected = np.empty_like(arrival)
            expected[0] = self.next_arrival or int(arrival[0])
            expected[1:] = arrival[:-1] + np.uint64(1)
            for i in np.flatnonzero(arrival != expected):
                at = base + int(offset[i]) - MIN_UNIT
                self._problem("gap", at, f"arrival {arrival[i]} where {expected[i]} was due")
            self.first_arrival = self.first_arrival or int(arrival[0])
            self.next_arrival = int(arrival[-1]) + 1
            ordinal = self.units
            self.units += len(arrival)
            direction = np.frombuffer(walk.direction, np.uint8)
            yield Batch(data, base, ordinal, offset, lengths, arrival, stream, received_us, direction)
        for at, following in ends:
            self.first_arrival = self.first_arrival or following  # nothing before it could be read
            if self.next_arrival and following != self.next_arrival:
                self._problem("gap", at, f"the end has arrival {following} where {self.next_arrival} was due")
            self.next_arrival = following
