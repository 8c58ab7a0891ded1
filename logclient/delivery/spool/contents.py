"""What lies in the files of a spool, for people: read, not mapped. Only `purge` changes them.

The files of an owner that is alive change while they are read: its figures are those of a moment, and its
events are not tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from logclient._ext.spool import SEGMENT, SUPPORTED
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.events import Event, LogEvents, Outcome, read_journal, read_segment, waiting
from logclient.delivery.spool.owner_files import LOG_MAGIC, VERSION
from logclient.delivery.spool.replay import settle
from logclient.errors import LedgerError
from logclient.files import open_regular, private_directory
from logclient.files.ledger import Ranges, make_ledger, merged, read_record
from logclient.standard import json, os

_ABOUT = ("protocol", "url", "identity", "mode", "host")
"""Fields of an ``open`` line that later parts repeat."""

_ALL = "all events of its owner stay unsent"


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


class _Found:
    """What is in the segments of one owner, or in its log."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.events: list[tuple[int, int, int]] = []  # of those that wait: sequence, time, size
        self.last = 0  # the highest sequence

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self.last = max(self.last, event.seq)
            if not event.settled:
                self.events.append((event.seq, event.created_us, event.size))


class _Reader:
    """Reads the files of one owner."""

    def __init__(self, files: owner_files.OwnerFiles, boot: bytes, alive: bool) -> None:
        self.files = files
        self.boot = boot
        self.alive = alive
        self.size = 0
        self.damages: list[Damage] = []
        self.head: owner_files.Head | None = None
        self.copied = ""  # a segment of another start of the machine, or one that was copied
        self.log = _Found()
        self.segments = _Found()

    def damage(self, path: str, what: str, lost: str, newer: bool = False) -> None:
        mend = "read it with that logclient" if newer else "drain the rest, then purge it"
        if not newer and lost == _ALL:
            mend = "restore the file, or purge this owner"
        self.damages.append(Damage(path, what, lost, mend))

    def read_file(self, path: str, magic: bytes) -> tuple[owner_files.Head, bytes, os.stat_result] | None:
        """Return what a file has; None: it is gone, not used yet, or cannot be read."""
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                self.size += status.st_blocks * 512
                # No more of what is too long to be a segment.
                data = file.read(-1 if magic == LOG_MAGIC else SEGMENT + 1)
        except FileNotFoundError:  # the owner, or its replayer, goes on
            return None
        except OSError as error:
            self.damage(path, error.strerror or str(error), _ALL)
            return None
        if magic != LOG_MAGIC and not any(data[:8]):
            return None
        try:
            return owner_files.Head.decode(data, magic), data, status
        except ValueError as error:
            self.damage(path, str(error), _ALL, isinstance(error, owner_files.NewerVersionError))
            return None

    def read_segment(self, number: int) -> None:
        path = self.files.segment_path(number)
        found = self.read_file(path, owner_files.MAGIC)
        if found is None:
            return
        head, data, status = found
        what = ""
        if len(data) != SEGMENT:
            what = f"has {status.st_size} bytes, not {SEGMENT}"
        elif head.number != number or head.producer.hex() != self.files.producer:
            what = "is not what its head says: it was renamed"
        if what:
            self.damage(path, what, _ALL)
            return
        if (head.boot, head.device, head.inode) != (self.boot, status.st_dev, status.st_ino):
            self.copied = self.copied or path
        self.head = self.head or head
        if number == 0:
            self.segments.outcomes, complete, _ = read_journal(data)
            if not complete and not self.alive:
                self.damage(path, "its journal is full or makes no sense", "some outcomes")
        events, faults = read_segment(data)
        self.segments.add(events)
        for at, capacity in faults if not self.alive else ():
            if capacity is None:
                self.damage(path, f"an event at {at} makes no sense", "it and those behind it are lost")
            else:
                what = f"the chunk at {at} has an impossible size, {capacity}"
                self.damage(path, what, "its events are lost")

    def read_log(self, number: int) -> None:
        path = self.files.log_path(number)
        found = self.read_file(path, LOG_MAGIC)
        if found is None:
            return
        head, data, _ = found
        self.head = self.head or head
        events = LogEvents(data, head.salt)
        self.log.add(events)
        self.log.outcomes += events.outcomes
        if events.at != len(data) and not self.alive:
            what = f"the block at {events.at} fails its checksum"
            self.damage(path, what, "what was not synced is lost if the machine ended, else nothing")

    def result(self) -> Owner:
        found = self.log if self.copied else self.segments
        settled = merged((first, last) for first, last, _, _ in found.outcomes)
        events = waiting(found.events, settled, itemgetter(0))
        head = self.head
        return Owner(
            producer=self.files.producer,
            alive=self.alive,
            version=VERSION if head is not None else 0,
            pid=head.pid if head is not None else 0,
            mode="" if head is None else "always" if head.always else "overflow",
            boot="" if head is None else "earlier" if self.copied else "this",
            segments=len(self.files.segments()),
            logs=len(self.files.logs()),
            bytes=self.size,
            events=len(events),
            body_bytes=sum(size for _, _, size in events),
            oldest_us=min((created_us for _, created_us, _ in events), default=0),
            pending=merged((seq, seq) for seq, _, _ in events),
            last=max([found.last, *(last for _, last, _, _ in found.outcomes)]),
            damages=self.damages,
        )


def read_owner(files: owner_files.OwnerFiles, boot: bytes, alive: bool) -> Owner:
    """Read the files of one owner.

    Segments of this start of the machine say what waits. After another start, or in a copy, the log does.
    """
    reader = _Reader(files, boot, alive)
    for number in files.logs():
        reader.read_log(number)
    for number in files.segments():
        reader.read_segment(number)
    if reader.copied and not files.logs():
        what = "was written before this machine started, or copied, and no log confirms what it holds"
        reader.damages.append(Damage(reader.copied, what, "its events are lost", "purge this owner"))
    return reader.result()


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
