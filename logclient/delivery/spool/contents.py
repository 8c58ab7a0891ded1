"""What lies in the files of a spool, for people: read with ``pread``; nothing is mapped or changed.

The files of an owner that is alive change while they are read: its figures are those of a moment, and its
events are not tested. docs/formats.md ("Spool") has the offsets.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from logclient._ext.hash import xxh64
from logclient._ext.spool import CHUNK_STRUCT, HEAD, SEGMENT, SUPPORTED
from logclient.delivery.bookkeeping import merged
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.adoption import Outcome, Ranges, without
from logclient.delivery.spool.owner_files import (
    LOG_MAGIC,
    VERSION,
    Head,
    Journal,
    OwnerFiles,
    decode_outcomes,
)
from logclient.errors import LedgerError
from logclient.files import open_regular

SLOT = 65536
SETTLED = 0x80
LEVELS = 5
LAST_SEQUENCE = (1 << 48) - 1
"""What an id has room for."""

LOG_HEAD = 120
EVENTS, OUTCOMES = 1, 2
"""Kinds of blocks in a log."""

_CAPACITY = struct.Struct("=I")
_LIVE = struct.Struct("=Q")
_EVENT = struct.Struct("=QqIBBH")
_BLOCK = struct.Struct("=QII")


class Event(NamedTuple):
    """An event in a file.

    Attributes:
        seq: its sequence.
        created_us: microseconds since 1970.
        size: bytes of its body.
        settled: whether it is marked as one that has its outcome.
    """

    seq: int
    created_us: int
    size: int
    settled: bool


class Damage(NamedTuple):
    """Something that cannot be read.

    Attributes:
        path: of the file.
        what: the rule that is broken.
        lost: what cannot be sent.
        mend: what to do.
    """

    path: str
    what: str
    lost: str
    mend: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.path}: {self.what}; {self.lost}; {self.mend}"


class Owner(NamedTuple):
    """What one owner has in the spool.

    Attributes:
        producer: 20 hexadecimal digits.
        alive: whether a process holds its lock.
        version: of its files; 0: none is readable.
        pid: of its process; 0: unknown.
        mode: ``always``, ``overflow``, or empty: unknown.
        boot: ``this`` or an ``earlier`` start of the machine, or empty: unknown.
        segments: how many there are.
        logs: how many files its log has.
        bytes: of all files on the disk.
        events: that wait.
        body_bytes: of these events.
        oldest_us: when the oldest was made, in microseconds since 1970; 0: there is none.
        pending: sequences of these events.
        last: the highest sequence that is known.
        outcomes: that its ledger may not have.
        damages: what cannot be read.
    """

    producer: str
    alive: bool
    version: int
    pid: int
    mode: str
    boot: str
    segments: int
    logs: int
    bytes: int
    events: int
    body_bytes: int
    oldest_us: int
    pending: Ranges
    last: int
    outcomes: list[Outcome]
    damages: list[Damage]


def check_directory(directory: str) -> None:
    """Refuse what can be no spool.

    Raises:
        LedgerError: this system has no spools.
        OSError: the directory cannot be read.
    """
    if not SUPPORTED:
        raise LedgerError("spool: only Linux can map its files")
    os.listdir(directory)


def read(directory: str) -> Iterator[Owner]:
    """Read the files of all owners, the oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
    boot = owner_files.boot_id()
    for files in owner_files.owners(directory):
        yield read_owner(files, boot, is_alive(files))


def is_alive(files: OwnerFiles) -> bool:
    """Return whether a process holds the lock, by a try that is given back at once."""
    if files.locked:
        return False
    free = files.lock()
    files.unlock()
    return not free


class _Reader:
    """Reads the files of one owner."""

    def __init__(self, files: OwnerFiles, boot: bytes, alive: bool) -> None:
        self.files = files
        self.boot = boot
        self.alive = alive
        self.size = 0
        self.damages: list[Damage] = []
        self.head: Head | None = None
        self.is_copy = False
        self.place = 0, 0  # device and inode of the file that was read last
        self.outcomes: list[Outcome] = []
        self.found: dict[int, Event] = {}

    def damage(self, path: str, what: str, lost: str, newer: bool = False) -> None:
        mend = "read it with that logclient" if newer else "drain the rest, then purge it"
        if not newer and lost.startswith("all"):
            mend = "restore the file, or purge this owner"
        self.damages.append(Damage(path, what, lost, mend))

    def read_file(self, path: str) -> bytes | None:
        """Return what a file has; None: it is gone, or cannot be read."""
        try:
            fd = open_regular(path)
        except FileNotFoundError:  # the owner, or its adopter, goes on
            return None
        except OSError as error:
            self.damage(path, error.strerror or str(error), "all events of its owner stay unsent")
            return None
        try:
            place = os.fstat(fd)
            self.place = place.st_dev, place.st_ino
            self.size += place.st_blocks * 512
            data = bytearray()
            while part := os.pread(fd, 1 << 22, len(data)):
                data += part
        except OSError as error:
            self.damage(path, error.strerror or str(error), "all events of its owner stay unsent")
            return None
        finally:
            os.close(fd)
        return bytes(data)

    def read_head(self, path: str, data: bytes, magic: bytes) -> Head | None:
        try:
            return Head.decode(data, magic)
        except ValueError as error:
            self.damage(path, str(error), "all events of its owner stay unsent", "newer" in str(error))
            return None

    def read_segment(self, number: int) -> None:
        path = self.files.segment_path(number)
        data = self.read_file(path)
        if data is None or not any(data[:8]):  # its owner has not used it yet
            return
        head = self.read_head(path, data, owner_files.MAGIC)
        if head is None:
            return
        what = ""
        if len(data) != SEGMENT:
            what = f"has {len(data)} bytes, not {SEGMENT}"
        elif head.number != number or head.producer.hex() != self.files.producer:
            what = "is not what its head says: it was renamed"
        if what:
            self.damage(path, what, "all events of its owner stay unsent")
            return
        self.is_copy |= (head.boot, head.device, head.inode) != (self.boot, *self.place)
        self.head = self.head or head
        if number == 0:
            journal = Journal.decode(data)
            self.outcomes += journal.outcomes
            if not journal.complete and not self.alive:
                self.damage(path, "its journal is full or makes no sense", "some outcomes", newer=False)
        for event in self.read_slots(path, data):
            self.found[event.seq] = event

    def read_slots(self, path: str, data: bytes) -> Iterator[Event]:
        """Yield the events of all slots, and note those chunks that make no sense."""
        slots = (SEGMENT - HEAD) // SLOT
        slot = 0
        while slot < slots:
            base = HEAD + slot * SLOT
            (live,) = _LIVE.unpack_from(data, base + CHUNK_STRUCT - 8)
            (capacity,) = _CAPACITY.unpack_from(data, base + 8)
            taken, rest = divmod(capacity + CHUNK_STRUCT, SLOT)
            if live == 0:
                slot += 1
                continue
            if rest or not 0 < taken <= slots - slot:
                if not self.alive:
                    what = f"the chunk at {base} has an impossible size, {capacity}"
                    self.damage(path, what, "its events are lost")
                slot += 1
                continue
            end = yield from read_events(data, base + CHUNK_STRUCT, base + CHUNK_STRUCT + capacity, live - 1)
            left = base + CHUNK_STRUCT + capacity - end
            if not self.alive and left >= 8 and any(data[end : end + 8]):
                self.damage(path, f"an event at {end} makes no sense", "it and those behind it are lost")
            slot += taken

    def read_log(self, number: int) -> None:
        path = self.files.log_path(number)
        data = self.read_file(path)
        if data is None:
            return
        head = self.read_head(path, data, LOG_MAGIC)
        if head is None:
            return
        self.head = self.head or head
        at = LOG_HEAD
        while len(data) - at >= _BLOCK.size:
            total, size, kind = _BLOCK.unpack_from(data, at)
            end = at + _BLOCK.size + size
            if end > len(data) or size % 8 or xxh64(data[at + 8 : end], head.salt) != total:
                break
            begin = at + _BLOCK.size
            if kind == OUTCOMES:
                self.outcomes += decode_outcomes(data[begin:end])
            elif kind == EVENTS:
                for event in read_events(data, begin, end, 0):
                    self.found.setdefault(event.seq, event)
            at = end
        if at != len(data) and not self.alive:
            what = f"the block at {at} fails its checksum"
            self.damage(path, what, "what was not synced is lost if the machine ended, else nothing")

    def result(self) -> Owner:
        settled = merged((first, last) for first, last, _, _ in self.outcomes)
        open_events = merged((seq, seq) for seq, event in self.found.items() if not event.settled)
        pending = without(open_events, settled)
        waiting = [self.found[seq] for first, last in pending for seq in range(first, last + 1)]
        head = self.head
        return Owner(
            producer=self.files.producer,
            alive=self.alive,
            version=VERSION if head is not None else 0,
            pid=head.pid if head is not None else 0,
            mode="" if head is None else "always" if head.always else "overflow",
            boot="" if head is None else "earlier" if self.is_copy else "this",
            segments=len(self.files.segments()),
            logs=len(self.files.logs()),
            bytes=self.size,
            events=len(waiting),
            body_bytes=sum(event.size for event in waiting),
            oldest_us=min((event.created_us for event in waiting), default=0),
            pending=pending,
            last=max([0, *self.found, *(last for _, last, _, _ in self.outcomes)]),
            outcomes=self.outcomes,
            damages=self.damages,
        )


def read_owner(files: OwnerFiles, boot: bytes, alive: bool) -> Owner:
    """Read the files of one owner.

    Segments of this start of the machine say what waits. After another start, or in a copy, the log does.
    """
    reader = _Reader(files, boot, alive)
    for number in files.logs():
        reader.read_log(number)
    logged = reader.found, reader.outcomes
    reader.found, reader.outcomes = {}, []
    for number in files.segments():
        reader.read_segment(number)
    if reader.is_copy:
        reader.found, reader.outcomes = logged
        if not files.logs():
            what = "was written before this machine started, or copied, and no log confirms what it holds"
            path = files.segment_path(files.segments()[0])
            reader.damages.append(Damage(path, what, "its events are lost", "purge this owner"))
    return reader.result()


def read_events(data: bytes, at: int, end: int, last: int) -> Generator[Event, None, int]:
    """Yield events that lie one behind the other; the generator's value is where they end.

    Args:
        data: of a file.
        at: where the first begins.
        end: where the last one ends at most.
        last: a sequence below that of the first.
    """
    while end - at >= _EVENT.size:
        seq, created_us, size, level, _, _ = _EVENT.unpack_from(data, at)
        room = _EVENT.size + (size + 7 & ~7)
        if not last < seq <= LAST_SEQUENCE or room > end - at or level & ~SETTLED > LEVELS:
            break
        last = seq
        yield Event(seq, created_us, size, bool(level & SETTLED))
        at += room
    return at
