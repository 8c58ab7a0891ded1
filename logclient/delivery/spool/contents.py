"""What lies in the files of a spool, for people: read, not mapped. Only `purge` changes them.

The files of an owner that is alive change while they are read: its figures are those of a moment, and its
events are not tested. docs/formats.md ("Spool") has the offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from logclient._ext.hash import xxh64
from logclient._ext.spool import CHUNK_STRUCT, HEAD, SEGMENT, SUPPORTED
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.owner_files import LOG_MAGIC, VERSION
from logclient.delivery.spool.replay import settle
from logclient.errors import LedgerError
from logclient.files import open_regular, private_directory
from logclient.files.ledger import LAST_SEQUENCE, Ranges, make_ledger, merged, read_record, without
from logclient.standard import json, os

SLOT = 65536
SETTLED = 0x80
LEVELS = 5

_ABOUT = ("protocol", "url", "identity", "mode", "host")
"""Fields of an ``open`` line that later parts repeat."""

_ALL = "all events of its owner stay unsent"

LOG_HEAD = 120
EVENTS, OUTCOMES = 1, 2
"""Kinds of blocks in a log."""

_CAPACITY = struct.Struct("=I")
_LIVE = struct.Struct("=Q")
_EVENT = struct.Struct("=QqIBBH")
_BLOCK = struct.Struct("=QII")


class Event(NamedTuple):
    """An event in a file."""

    seq: int
    created_us: int
    size: int  # bytes of its body
    settled: bool  # it is marked as one that has its outcome


class Damage(NamedTuple):
    """Something that cannot be read."""

    path: str
    what: str  # the rule that is broken
    lost: str  # what cannot be sent
    mend: str  # what to do

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.path}: {self.what}; {self.lost}; {self.mend}"


class Owner(NamedTuple):
    """What one owner has in the spool."""

    producer: str  # 20 hexadecimal digits
    alive: bool  # a process holds its lock
    version: int  # of its files; 0: none is readable
    pid: int  # 0: unknown
    mode: str  # always, overflow, or empty: unknown
    boot: str  # this, an earlier one, or empty: unknown
    segments: int
    logs: int  # files of its log
    bytes: int  # of all files on the disk
    events: int  # that wait
    body_bytes: int  # of these events
    oldest_us: int  # when the oldest was made; 0: there is none
    pending: Ranges  # sequences of these events
    last: int  # the highest sequence that is known
    outcomes: list[owner_files.Outcome]  # that its ledger may not have
    damages: list[Damage]


def check_directory(directory: str) -> None:
    """Refuse what can be no spool, by LedgerError or OSError."""
    if not SUPPORTED:
        raise LedgerError("spool: only Linux can map its files")
    os.listdir(directory)


def read(directory: str) -> Iterator[Owner]:
    """Read the files of all owners, the oldest first."""
    boot = owner_files.boot_id()
    for files in owner_files.owners(directory):
        yield read_owner(files, boot, is_alive(files))


def is_alive(files: owner_files.OwnerFiles) -> bool:
    """Return whether a process holds the lock, by a try that is given back at once."""
    if files.locked:
        return False
    free = files.lock()
    files.unlock()
    return not free


class _Reader:
    """Reads the files of one owner."""

    def __init__(self, files: owner_files.OwnerFiles, boot: bytes, alive: bool) -> None:
        self.files = files
        self.boot = boot
        self.alive = alive
        self.size = 0
        self.damages: list[Damage] = []
        self.head: owner_files.Head | None = None
        self.is_copy = False
        self.file_id = 0, 0  # device and inode of the file that was read last
        self.outcomes: list[owner_files.Outcome] = []
        self.found: dict[int, Event] = {}

    def damage(self, path: str, what: str, lost: str, newer: bool = False) -> None:
        mend = "read it with that logclient" if newer else "drain the rest, then purge it"
        if not newer and lost == _ALL:
            mend = "restore the file, or purge this owner"
        self.damages.append(Damage(path, what, lost, mend))

    def read_file(self, path: str) -> bytes | None:
        """Return what a file has; None: it is gone, or cannot be read."""
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                self.file_id = status.st_dev, status.st_ino
                self.size += status.st_blocks * 512
                return file.read()
        except FileNotFoundError:  # the owner, or its replayer, goes on
            pass
        except OSError as error:
            self.damage(path, error.strerror or str(error), _ALL)
        return None

    def read_head(self, path: str, data: bytes, magic: bytes) -> owner_files.Head | None:
        try:
            return owner_files.Head.decode(data, magic)
        except ValueError as error:
            self.damage(path, str(error), _ALL, "newer" in str(error))
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
            self.damage(path, what, _ALL)
            return
        self.is_copy |= (head.boot, head.device, head.inode) != (self.boot, *self.file_id)
        self.head = self.head or head
        if number == 0:
            journal = owner_files.Journal.decode(data)
            self.outcomes += journal.outcomes
            if not journal.complete and not self.alive:
                self.damage(path, "its journal is full or makes no sense", "some outcomes")
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
                self.outcomes += owner_files.decode_outcomes(data[begin:end])
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


def read_owner(files: owner_files.OwnerFiles, boot: bytes, alive: bool) -> Owner:
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
    """Yield events that lie one behind the other, with rising sequences above `last`.

    The generator's value is where they end.
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


def purge(files: owner_files.OwnerFiles, directory: str | None) -> tuple[bool, str]:
    """Remove the files of a dead owner, once its events are listed as dropped in the ledgers' directory.

    Returns:
        Whether they are gone, and words about what could not be done.

    Raises:
        LedgerError: the directory of the ledgers is refused.
    """
    if not files.lock():
        gone = not os.path.exists(files.lock_path)
        return gone, "" if gone else f"{files.lock_path}: is locked by now: its files stay"
    try:
        words = "" if directory is None else _list_dropped(files, private_directory(directory, "ledger"))
        if words.startswith("the ledger"):
            return False, f"{files.lock_path}: {words}: its files stay"
        files.remove()
        return not os.path.exists(files.lock_path), f"{files.lock_path}: {words}" if words else ""
    finally:
        files.unlock()


def _list_dropped(files: owner_files.OwnerFiles, directory: str) -> str:
    """Continue the ledger of a dead owner: list events without an outcome as dropped; return what failed."""
    record = read_record(directory, files.producer)
    if not record.parts:
        return f"{directory} has no ledger of it: its events are listed nowhere"
    try:
        orphan, _ = owner_files.read_orphan(files, owner_files.boot_id(), directory)
    except (OSError, ValueError) as error:
        return f"its events are not listed, {error}"
    if orphan is None:
        return ""
    try:
        owner = read_owner(files, owner_files.boot_id(), alive=False)
        last = max([record.last, *(end for _, end in owner.pending), owner.last])
        kinds, history = settle(orphan, owner.pending, [], last, bool(owner.damages))
    finally:
        orphan.close()
    ledger = make_ledger(
        (directory, _about(directory, files.producer)), orphan.producer, record.parts, record.size
    )
    assert ledger is not None
    if ledger.open() >= 0:
        ledger.write_outcomes(kinds)
        if owner.pending:
            purged = "dropped", "purged"
            ledger.write_outcomes({purged: owner.pending})
            history.counts[purged] = sum(end - first + 1 for first, end in owner.pending)
        if history.complete:
            none: dict[str, Any] = {"acked": 0, "handed": 0, "stored": 0, "failed": {}, "dropped": {}}
            ledger.write_close(last, history.add_to(none))
    ledger.close()
    return f"the ledger stopped: {ledger.stopped}" if ledger.stopped else ""


def _about(directory: str, producer: str) -> dict[str, Any]:
    """Return what the ``open`` line of the first part says of the producer."""
    fd = open_regular(os.path.join(directory, f"{producer}-0001.ledger"))
    fields = None
    with os.fdopen(fd, "rb") as file, suppress(ValueError, RecursionError):
        fields = json.loads(file.readline())
    return {name: fields[name] for name in _ABOUT if name in fields} if isinstance(fields, dict) else {}
