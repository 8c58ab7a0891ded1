"""Captures: the wire units that arrived at a collector, in order.

The format is in ``docs/formats.md``: append-only segments of records with length and CRC. This module needs
only the standard library, for the pytest fixture. The verifier has its own compiled reader; in tests this
reader is the reference.

Two rules make a capture evidence. A unit is handed to the operating system before its ack is sent, so an
acknowledged unit survives ``kill -9`` of the collector (but not a power cut: nothing is fsynced). And
``arrival`` has no gaps over segments and restarts, so that a missing unit is noticed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple
from zlib import crc32

from logclient.descriptors import File, lifted
from logclient.errors import ConfigError, LedgerError
from logclient.files import open_regular, private_directory

__all__ = ["CaptureReader", "CaptureWriter", "Header", "Problem", "Unit", "read_header"]

VERSION = 1
SEGMENT, STREAM, UNIT, END = 1, 2, 3, 4
FROM_PEER, TO_PEER = 0, 1
SOURCES = ("producers", "devices")

#: A longer record counts as damage, not as torn.
MAX_RECORD = 1 << 30
SEGMENT_BYTES = 256 << 20
#: Upper bound of arrivals and of segment numbers.
MANY = 1 << 63

_RECORD = struct.Struct("<II")  # length of payload, CRC-32 of payload
_UNIT = struct.Struct("<BBBQQq")  # type, direction, flags, stream, arrival, received_us
_STREAM = struct.Struct("<BQ")  # type, stream
_END = struct.Struct("<BQ")  # type, next_arrival
_HEAD = struct.Struct("<BI")  # type, version
_NAME = re.compile(r"(?P<listener>.+)-(?P<number>\d{6,})\.cap")
_IOV_MAX = 1024


class Unit(NamedTuple):
    """One wire unit: received (``direction`` 0) or sent as an answer (1)."""

    listener: str
    protocol: str
    segment: str  # file name
    offset: int  # byte offset of its record in the segment
    direction: int
    stream: int
    peer: str
    arrival: int
    received_us: int
    raw: bytes


class Problem(NamedTuple):
    """A reason why a capture may lack events that arrived.

    ``kind`` is ``damage`` (bytes that are not a record, or an unreadable file), ``gap`` (`arrival` jumps),
    ``unclosed`` (no end record: the collector was killed, or still runs) or a kind of the verifier.
    """

    kind: str
    segment: str
    offset: int  # byte in the segment; -1: it concerns the whole
    reason: str

    @property
    def place(self) -> str:
        """The segment, and the byte in it."""
        return self.segment if self.offset < 0 else f"{self.segment} at byte {self.offset}"


class Header(NamedTuple):
    """The first record of a segment."""

    run: str
    protocol: str
    listener: str
    url: str
    number: int
    first_arrival: int
    host: str = ""  # of the collector; empty: not known
    source: str = ""  # one of `SOURCES`, whose order it has; empty: not known
    first_us: int = 0  # when the first unit was received; 0: not known. The record does not have it


class _Record(NamedTuple):
    offset: int
    end: int  # the start of the next record; the end of the file if that is unknown
    payload: bytes  # empty: unreadable, see `problem`
    problem: str  # "", "torn" (the end of the record is missing) or a description of the damage


def _records(file: BinaryIO) -> Iterator[_Record]:
    """Yield the records of one segment, up to damage that hides the start of the next one."""
    size = os.fstat(file.fileno()).st_size
    offset = 0
    while offset < size:
        head = file.read(_RECORD.size)
        if len(head) < _RECORD.size:
            yield _Record(offset, size, b"", "torn")
            return
        length, crc = _RECORD.unpack(head)
        if length == 0 or length > MAX_RECORD:
            # A crash of the machine may leave zeros at the end of the file.
            rest = iter(lambda: file.read(1 << 20), b"")
            zeros = length == 0 and crc == 0 and not any(some.strip(b"\0") for some in rest)
            yield _Record(offset, size, b"", "torn" if zeros else f"a record of {length} bytes")
            return
        # A torn head may claim any length: allocate no more than the file has.
        payload = file.read(min(length, size - offset))
        if len(payload) < length:
            yield _Record(offset, size, b"", "torn")
            return
        end = offset + _RECORD.size + length
        if crc32(payload) != crc:
            yield _Record(offset, end, b"", f"CRC of a record of {length} bytes is wrong")
        elif not _is_valid(payload):
            yield _Record(offset, end, b"", f"an impossible record of {length} bytes, type {payload[0]}")
        else:
            yield _Record(offset, end, payload, "")
        offset = end


def _is_valid(payload: bytes) -> bool:
    head = {SEGMENT: _HEAD, STREAM: _STREAM, UNIT: _UNIT, END: _END}.get(payload[0])
    if head is None or len(payload) < head.size:
        return False
    fields = head.unpack_from(payload)
    if fields[0] == UNIT:
        return fields[1] in (FROM_PEER, TO_PEER) and bool(0 < fields[4] < MANY)
    return fields[0] != END or bool(0 < fields[1] < MANY)


def _segments(directory: str) -> dict[str, list[tuple[int, str]]]:
    """Return the segments of each listener as (number, file name), in ascending order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match:
            found.setdefault(match["listener"], []).append((int(match["number"]), name))
    for segments in found.values():
        segments.sort()
    return found


def _record(payload: bytes) -> bytes:
    return _RECORD.pack(len(payload), crc32(payload)) + payload


class CaptureWriter:
    """A writer of the capture of one listener. Not thread-safe: one thread writes.

    The writer continues the capture of an earlier collector, and its ``arrival``. If that collector was
    killed, the torn record is cut off and its segment gets ``end(recovered)``. If it closed the segment, the
    end record becomes ``end(resumed)``. So the end of each segment except the last announces a next one.

    The listener's name is the same over restarts, and the first part of segment names; several URLs are
    joined by commas. The `source` has the order of units: ``producers`` that sent them, or ``devices`` that
    published them.

    A segment ends when it has `segment_bytes`, or a unit that is `segment_seconds` old: call ``rotate`` at
    the monotonic second `due`.

    Raises:
        ConfigError: the listener's name cannot be a file name.
        LedgerError: the directory or a segment is not usable: owner, mode, another collector in it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        listener: str,
        protocol: str,
        *,
        url: str = "",
        run: str | None = None,
        source: str = "producers",
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = math.inf,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", listener):
            raise ConfigError(f"listener: {listener!r} must be letters, digits, '.', '_', '-' (at most 200)")
        self.directory = os.path.abspath(directory)
        self.listener = listener
        self._protocol = protocol
        self._url = url
        self._run = run if run is not None else time.strftime(f"%Y%m%dT%H%M%SZ-{os.getpid()}", time.gmtime())
        self._source = source
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self.due = math.inf
        self._file = File()
        self._number = 0
        self._next = 1  # arrival of the next unit
        self._written_next = 1  # the same for units that are in the file
        self._size = 0  # bytes of the segment in the file
        self._pending: list[bytes | memoryview] = []
        self._streams = 0
        self._peers: dict[int, str] = {}
        self._announced: set[int] = set()  # streams with a record in this segment
        private_directory(self.directory, "capture")
        self._closed_at = -1  # offset of the end record of a segment that was closed before
        previous = -1
        try:
            previous = self._take_over()
            self._written_next = self._next
            self._begin()
            if self._closed_at >= 0:
                os.lseek(previous, self._closed_at, os.SEEK_SET)
                os.write(previous, self._end("resumed"))
        except OSError as error:
            if isinstance(error, LedgerError):
                raise
            self.close()
            raise LedgerError(f"capture: {self.directory}: {error.strerror}") from error
        finally:
            if previous >= 0:
                os.close(previous)

    @property
    def pending(self) -> bool:
        """Whether units wait for ``flush``."""
        return bool(self._pending)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _open(self, name: str, flags: int) -> int:
        """Open a segment and lock it, so that no second collector writes the same capture."""
        path = self._path(name)
        try:
            if flags & os.O_CREAT:
                fd = lifted(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            else:
                fd = open_regular(path, flags)
        except FileExistsError as error:
            raise LedgerError(f"capture: {path} is in use by another collector") from error
        except OSError as error:
            raise LedgerError(f"capture: {path}: {error.strerror}") from error
        try:
            owner = os.fstat(fd).st_uid
            if owner != os.geteuid():
                raise LedgerError(f"capture: {path} belongs to uid {owner}, not to this user")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LedgerError(f"capture: {path} is in use by another collector") from error
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _take_over(self) -> int:
        """Close the last segment of an earlier collector; return the descriptor with its lock, or -1."""
        segments = _segments(self.directory).get(self.listener, [])
        while segments:
            number, name = segments.pop()
            fd = self._open(name, os.O_RDWR)
            try:
                if self._recover(fd, name):
                    self._number = number
                    return fd
                # An incomplete header: the segment is empty, and its number is used again.
                os.unlink(self._path(name))  # while it is locked
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        return -1

    def _recover(self, fd: int, name: str) -> bool:
        """Find the next arrival of a segment, and close it if necessary; return False if it is empty."""
        end = 0
        closed_at = -1
        reason = b""
        seen = False
        with open(os.dup(fd), "rb") as file:
            file.seek(0)
            for record in _records(file):
                if record.problem == "torn":
                    break
                end = record.end
                if record.problem:  # keep damage, for the reader to report
                    seen = True
                    continue
                kind = record.payload[0]
                closed_at = record.offset if kind == END else -1
                if kind == SEGMENT:
                    header = read_header(record.payload)
                    if isinstance(header, str) and header.startswith("version"):
                        raise LedgerError(f"capture: {self._path(name)} has {header}")
                    seen = True
                    if not isinstance(header, str):
                        self._continue_at(header.first_arrival)
                elif kind == UNIT:
                    self._continue_at(_UNIT.unpack_from(record.payload)[4] + 1)
                elif kind == END:
                    self._continue_at(_END.unpack_from(record.payload)[1])
                    reason = record.payload[_END.size :]
        if not seen:
            return False
        if closed_at >= 0 and reason == b"closed":
            self._closed_at = closed_at
        if closed_at < 0:
            os.ftruncate(fd, end)
            os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, self._end("recovered"))
        return True

    def _continue_at(self, arrival: int) -> None:
        """Set the next arrival to one that was found, unless it is implausibly high."""
        if arrival < MANY >> 1:
            self._next = arrival

    def _end(self, reason: str) -> bytes:
        return _record(_END.pack(END, self._next) + reason.encode())

    def _begin(self) -> None:
        number = self._number + 1
        name = f"{self.listener}-{number:06d}.cap"
        header = {
            "run": self._run,
            "protocol": self._protocol,
            "host": socket.gethostname(),
            "listener": self.listener,
            "url": self._url,
            "source": self._source,
            "segment": number,
            "first_arrival": self._written_next,
        }
        fd = self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            size = _write(fd, [_record(_HEAD.pack(SEGMENT, VERSION) + json.dumps(header).encode())])
        except OSError as error:
            os.close(fd)
            os.unlink(self._path(name))
            raise LedgerError(f"capture: {self._path(name)}: {error.strerror}") from error
        self._file, self._number, self._size = File(fd), number, size
        self.due = math.inf
        # Stream numbers are then unique in the whole capture, without reading older segments.
        if not self._streams:
            self._streams = number << 32

    def stream(self, peer: str) -> int:
        """Return the number of a new stream from `peer`, unique in this capture."""
        self._streams += 1
        self._peers[self._streams] = peer
        return self._streams

    def end_stream(self, stream: int) -> None:
        """Forget a stream that has ended."""
        self._peers.pop(stream, None)
        self._announced.discard(stream)

    def unit(
        self, stream: int, raw: bytes | memoryview, direction: int = FROM_PEER, received_us: int = 0
    ) -> int:
        """Append one whole wire unit, which is written by ``flush`` and must not change before.

        The time is in microseconds since 1970; 0: now. Return the unit's arrival, from 1 and without gaps.
        """
        if stream not in self._announced:
            self._announced.add(stream)
            peer = self._peers.get(stream, "").encode("utf-8", "replace")
            self._pending.append(_record(_STREAM.pack(STREAM, stream) + peer))
        arrival = self._next
        self._next += 1
        head = _UNIT.pack(UNIT, direction, 0, stream, arrival, received_us or time.time_ns() // 1000)
        crc = crc32(raw, crc32(head))
        self._pending.append(_RECORD.pack(len(head) + len(raw), crc) + head)
        self._pending.append(raw)
        return arrival

    def flush(self) -> None:
        """Hand all appended units to the operating system. Acks may only be sent afterwards.

        Raises:
            LedgerError: the disk is full or gone. None of the units is in the file, the next units get their
                arrivals, and the file ends with a whole record.
        """
        pending = self._pending
        if not pending:
            return
        self._pending = []
        try:
            if not self._file.is_ours:  # a rotation failed, or the program has closed the descriptor
                self._begin()
                self._announced.clear()
            self._size += self._append(pending)
        except OSError:
            self._next = self._written_next
            self._announced.clear()
            raise
        self._written_next = self._next
        now = time.monotonic() if self._segment_seconds < math.inf else 0.0
        self.due = min(self.due, now + self._segment_seconds)
        if self._size >= self._segment_bytes or now >= self.due:
            self._rotate()

    def rotate(self) -> None:
        """Write the units that wait, and begin a new segment if it is time."""
        self.flush()
        if self._file.is_ours and time.monotonic() >= self.due:
            self._rotate()

    def _rotate(self) -> None:
        # The units are in the file. The next flush begins a segment, or says why it cannot.
        self.due = math.inf
        self._announced.clear()
        with suppress(OSError):
            self._finish("rotated")
            self._begin()

    def _append(self, parts: list[bytes | memoryview]) -> int:
        """Write all parts, or leave the file as it was; return the number of bytes."""
        try:
            return _write(self._file.use(), parts)
        except OSError as error:
            try:
                os.ftruncate(self._file.use(), self._size)
            except OSError:
                pass  # keep the torn record: the reader reports it, and the next start cuts it off
            raise LedgerError(f"capture: {self.directory}: {error.strerror}") from error

    def _finish(self, reason: str) -> None:
        try:
            self._append([self._end(reason)])
        finally:
            self._file.close()

    def close(self, reason: str = "closed") -> None:
        """Write the pending units and the end record. Idempotent."""
        if self._file.fd < 0 and not self._pending:
            return
        try:
            self.flush()
        finally:
            if self._file.is_ours:
                self._finish(reason)


def _write(fd: int, parts: list[bytes | memoryview]) -> int:
    """Write all parts, in as many calls as the kernel needs; return the number of bytes."""
    total = 0
    first = 0
    skip = 0  # bytes of parts[first] already written
    while first < len(parts):
        batch = parts[first : first + _IOV_MAX]
        if skip:
            batch[0] = memoryview(batch[0])[skip:]
        written = os.writev(fd, batch) if len(batch) > 1 else os.write(fd, batch[0])
        total += written
        skip += written
        while first < len(parts) and skip >= len(parts[first]):
            skip -= len(parts[first])
            first += 1
    return total


def read_header(payload: bytes) -> Header | str:
    """Return the first record of a segment, or a description of its error."""
    version = _HEAD.unpack_from(payload)[1]
    if version != VERSION:
        return f"version {version}: only {VERSION} is known"
    try:
        given = json.loads(payload[_HEAD.size :])
    except (ValueError, RecursionError):
        return "the header is not JSON"
    if not isinstance(given, dict):
        return "the header is not a JSON object"
    fields = {"host": "", "source": "", **given, "number": given.get("segment"), "first_us": 0}
    for name in ("run", "protocol", "listener", "url", "host", "source"):
        if not isinstance(fields.get(name), str):
            return f"{name} of the header is no text" if name in fields else f"the header has no {name}"
    for name in ("segment", "first_arrival"):
        number = fields.get(name)
        if type(number) is not int or not 0 < number < MANY:
            return f"{name} of the header is not a number from 1 to 2**63 - 1"
    if fields["source"] not in (*SOURCES, ""):
        return "source of the header is unknown"
    return Header(*(fields[name] for name in Header._fields))


class CaptureReader:
    """An iterator over the units of a capture, listener by listener in the order of arrival.

    It skips unreadable parts and lists them in ``problems``, which is complete after the iteration. It can
    read a capture that is still being written; the last segment is then unclosed. `path` is a capture's
    directory, or one segment.

    Raises:
        LedgerError: there is no such file, or it is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = os.fspath(path)
        self.problems: list[Problem] = []
        try:
            if os.path.isdir(path):
                self._directory = path
                self._listeners = _segments(path)
            else:
                os.close(open_regular(path))
                self._directory, name = os.path.split(path)
                match = _NAME.fullmatch(name)
                if match is None:
                    raise LedgerError(f"capture: {path} is no segment: its name is <listener>-<nnnnnn>.cap")
                self._listeners = {match["listener"]: [(int(match["number"]), name)]}
        except OSError as error:
            if isinstance(error, LedgerError):
                raise
            raise LedgerError(f"capture: {path}: {error.strerror}") from error
        self._whole = os.path.isdir(path)

    @property
    def listeners(self) -> list[str]:
        """The names of the listeners, in the order of reading."""
        return sorted(self._listeners)

    def __iter__(self) -> Iterator[Unit]:
        self.problems.clear()
        for listener in self.listeners:
            expected = 1 if self._whole else 0  # 0: any
            for _, name in self._listeners[listener]:
                expected = yield from self._segment(listener, name, expected)

    def _expect(self, name: str, offset: int, expected: int, arrival: int) -> None:
        if expected and arrival != expected:
            reason = f"arrival {arrival} where {expected} was due"
            self.problems.append(Problem("gap", name, offset, reason))

    def _segment(self, listener: str, name: str, expected: int) -> Generator[Unit, None, int]:
        """Yield the units of a segment; return the next expected arrival."""
        protocol = ""
        peers: dict[int, str] = {}
        closed = False
        offset = 0
        try:
            fd = open_regular(os.path.join(self._directory, name))
        except OSError as error:
            self.problems.append(Problem("damage", name, 0, error.strerror or str(error)))
            return expected
        with open(fd, "rb") as file:
            for offset, _, payload, problem in _records(file):
                if problem:
                    if problem != "torn":
                        self.problems.append(Problem("damage", name, offset, problem))
                    continue
                kind = payload[0]
                if closed:
                    self.problems.append(Problem("damage", name, offset, "a record after the end record"))
                if kind == SEGMENT:
                    header = read_header(payload)
                    if isinstance(header, str):
                        self.problems.append(Problem("damage", name, offset, header))
                        continue
                    protocol = header.protocol
                    self._expect(name, offset, expected, header.first_arrival)
                    expected = header.first_arrival
                elif kind == STREAM:
                    stream = _STREAM.unpack_from(payload)[1]
                    peers[stream] = payload[_STREAM.size :].decode("utf-8", "replace")
                elif kind == UNIT:
                    _, direction, _, stream, arrival, at = _UNIT.unpack_from(payload)
                    self._expect(name, offset, expected, arrival)
                    expected = arrival + 1
                    peer, raw = peers.get(stream, ""), payload[_UNIT.size :]
                    yield Unit(listener, protocol, name, offset, direction, stream, peer, arrival, at, raw)
                else:
                    closed = True
                    arrival = _END.unpack_from(payload)[1]
                    self._expect(name, offset, expected, arrival)
                    expected = arrival
        if not closed:
            reason = "no end record: it is still being written, or its writer was killed"
            self.problems.append(Problem("unclosed", name, offset, reason))
        return expected
