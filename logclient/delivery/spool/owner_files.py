"""The files of one owner in a spool's directory: names, lock, heads of segments (docs/formats.md).

An owner is a producer: one client in one process. Its lock dies with its process, so that another client can
take over what it left.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from logclient._ext.hash import xxh64
from logclient._ext.queue import EventQueue
from logclient._ext.spool import HEAD, SEGMENT, Segments
from logclient.delivery.spool import events
from logclient.delivery.spool.events import Journal, Outcome
from logclient.descriptors import File
from logclient.files import open_regular
from logclient.files.ledger import Ranges, Record, merged, read_record
from logclient.standard import open, os

MAGIC = b"lcspool\x01"
LOG_MAGIC = bytes.fromhex("6c6373706c6f6701")
VERSION = 1
BYTE_ORDER = 0x01020304

_HEAD = struct.Struct("=8sII16s10s6xQQIIIIQQQQ")
_SUM = struct.Struct("=Q")
_LOCK = re.compile(r"([0-9a-f]{20})\.lock")

REMOTE = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")
)
"""File systems that other machines may have, whose locks and mappings do not hold across them."""

COPYING = frozenset(("bcachefs", "btrfs", "zfs"))
"""File systems that write a page to a new place: space that was allocated may be missing then."""


class NewerVersionError(ValueError):
    """A file of a spool that only a newer logclient can read; the text says why."""


class Head(NamedTuple):
    """The head of a segment, or of a file of the log."""

    boot: bytes  # of the machine: 16 bytes
    producer: bytes  # its owner: 10 bytes
    device: int  # of the file's file system
    inode: int  # a copy of the file has another
    number: int
    always: bool  # every event of the owner was spooled
    pid: int  # for people
    salt: int  # of a log: the seed of its checksums
    created_us: int

    @classmethod
    def decode(cls, data: bytes, magic: bytes = MAGIC) -> Head:
        """Read the first bytes of a segment, or of a log.

        Raises:
            ValueError: they are not the head of a segment that this version can read; the text says why.
        """
        if len(data) < _HEAD.size + _SUM.size or data[:7] != magic[:7]:
            raise ValueError("is no file of a spool")
        packed = data[: _HEAD.size]
        found, order, version, *rest = _HEAD.unpack(packed)
        boot, producer, device, inode, number, head, size, chunk, always, pid, salt, made = rest
        if order != BYTE_ORDER:
            raise ValueError("was written by a machine with another byte order")
        if found != magic or version > VERSION:
            words = f"has version {version}, newer than {VERSION}: a newer logclient can read it"
            raise NewerVersionError(words)
        if _SUM.unpack_from(data, _HEAD.size)[0] != xxh64(packed):
            raise ValueError("has a damaged head")
        if (head, size, chunk) != (HEAD, SEGMENT if magic == MAGIC else 0, events.CHUNK_HEAD):
            raise ValueError("was written by a machine with other sizes of words")
        return cls(boot, producer, device, inode, number, bool(always), pid, salt, made)


class OwnerFiles:
    """The files of one owner in the directory of a spool."""

    def __init__(self, directory: str, producer: str) -> None:
        self.directory = directory
        self.producer = producer
        self._file = File()

    @property
    def locked(self) -> bool:
        """Whether this process has the lock: it is lost with its descriptor."""
        return self._file.is_ours

    def exist(self) -> bool:
        """Return whether the lock file is there still: without it nobody finds the others."""
        return os.path.exists(self.lock_path)

    @property
    def lock_path(self) -> str:
        """The lock file, which is never mapped."""
        return os.path.join(self.directory, f"{self.producer}.lock")

    def segment_path(self, number: int) -> str:
        return os.path.join(self.directory, f"{self.producer}.{number:06d}.seg")

    def create(self) -> None:
        """Make the lock file, and lock it: its name appears only once it is locked."""
        fresh = self.lock_path + ".new"
        file = File(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(fresh, self.lock_path)
        except OSError:
            file.close()
            with suppress(OSError):
                os.unlink(fresh)
            raise
        self._file = file

    def lock(self) -> bool:
        """Lock the files of an owner that has ended; return whether they are ours now."""
        try:
            file = File(open_regular(self.lock_path, os.O_RDWR))
        except OSError:
            return False
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another client may have adopted the files and removed the lock while we opened it.
            if os.path.samestat(os.fstat(file.fd), os.stat(self.lock_path)):
                self._file, file = file, File()
        except OSError:
            pass
        finally:
            file.close()
        return self.locked

    def unlock(self) -> None:
        """Give the files to whoever locks them next."""
        # Closed, never unlocked: a forked child has the lock too.
        self._file.close()

    def restored(self) -> bytes:
        """Return the boot in which the segments were made from the log, as `mark_restored` noted it."""
        return os.pread(self._file.use(), 16, 0)

    def mark_restored(self, boot: bytes) -> None:
        """Note, in the lock file, that the segments were made from the log in this boot, and are whole."""
        os.pwrite(self._file.use(), boot, 0)

    def remove_segment(self, number: int) -> None:
        with suppress(OSError):
            os.unlink(self.segment_path(number))

    def log_path(self, number: int) -> str:
        return os.path.join(self.directory, f"{self.producer}.{number:06d}.log")

    def segments(self) -> list[int]:
        return self._numbers("seg")

    def logs(self) -> list[int]:
        return self._numbers("log")

    def _numbers(self, kind: str) -> list[int]:
        pattern = re.compile(rf"{re.escape(self.producer)}\.(\d{{6}})\.{kind}")
        found = (pattern.fullmatch(name) for name in os.listdir(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def remove(self) -> None:
        """Remove all files, the lock last."""
        with suppress(OSError):  # the lock stays beside what cannot be removed: it is found by it
            segments, logs = map(self.segment_path, self.segments()), map(self.log_path, self.logs())
            for path in (*segments, *logs, self.lock_path):
                os.unlink(path)
        self.unlock()


def owners(directory: str) -> Iterator[OwnerFiles]:
    """Yield the files of all owners in a spool's directory, the oldest first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if match := _LOCK.fullmatch(entry.name):
                with suppress(OSError):
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, match[1]))
    for _, producer in sorted(found):
        yield OwnerFiles(directory, producer)


def boot_id() -> bytes:
    """Return what identifies the boot of this machine: 16 bytes."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def file_system(directory: str) -> str:
    """Return the type of the file system of a directory, such as ``ext4``; empty when it is unknown."""
    # By the number of its mount: the device of a subvolume of btrfs is that of no mount.
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
                mount = next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                for line in file:
                    before, _, after = line.partition(" - ")
                    if before.split()[0] == mount:
                        return after.split()[0]
    finally:
        os.close(fd)
    return ""


def refusal(directory: str) -> str:
    """Return why no spool can lie in a directory, by its file system; empty when it can."""
    kind = file_system(directory)
    if kind.partition(".")[0] in REMOTE:
        return f"{kind} may be shared by machines, whose locks do not hold across it: use a local directory"
    if kind in COPYING:
        return f"{kind} copies pages when they are written, so a full disk would end the process"
    return ""


class OrphanSpool(NamedTuple):
    """What a dead owner left."""

    files: OwnerFiles  # locked by this process
    producer: bytes
    segments: list[tuple[int, int]]  # number, descriptor; whoever takes the orphan closes them
    journal: Journal
    whole: bool  # every event that it had is there, in the journal, or in its ledger
    record: Record | None  # what its ledger says

    def close(self) -> None:
        for _, fd in self.segments:
            os.close(fd)
        self.segments.clear()


def read_orphan(files: OwnerFiles, boot: bytes, ledger: str | None) -> tuple[OrphanSpool | None, str]:
    """Read the heads of a dead owner's segments; after another boot, make new ones from its log.

    Segments that were written since this machine started are what their owner left: the page cache has them.
    After another start, or in a copy, only what a checksum of the log confirms is used. The files are locked.

    Returns:
        What it left, or None, and words about what could not be used.

    Raises:
        OSError: a file cannot be read, or the disk is full.
        ValueError: a file is damaged, or of a newer version.
    """
    words = ""
    outcomes: list[Outcome] = []
    record = None if ledger is None else read_record(ledger, files.producer)
    logs = _read_logs(files)
    # A log of an earlier boot decides alone, whatever the power cut has made of the segments.
    if files.restored() != boot and (
        any(head.boot != boot for head, _ in logs)
        or not all(
            head is None or (head.boot, head.device, head.inode) == (boot, found.st_dev, found.st_ino)
            for head, found in _read_heads(files).values()
        )
    ):
        outcomes, words = _restore(files, boot, logs, [] if record is None else record.settled)
    heads = _read_heads(files)
    whole = files.restored() != boot
    journal = Journal(outcomes, True, False)
    orphan = OrphanSpool(files, bytes.fromhex(files.producer), [], journal, whole, record)
    try:
        for number, (head, _) in heads.items():
            if head is None:
                files.remove_segment(number)
                continue
            fd = open_regular(files.segment_path(number), os.O_RDWR)
            orphan.segments.append((number, fd))
            if number == 0 and not outcomes:
                orphan = orphan._replace(journal=events.read_journal(os.pread(fd, HEAD, 0)))
    except BaseException:
        orphan.close()
        raise
    return (orphan if orphan.segments else None), words


def _read_heads(files: OwnerFiles) -> dict[int, tuple[Head | None, os.stat_result]]:
    """Return the head of each segment; None: its owner was killed before it used it."""
    found: dict[int, tuple[Head | None, os.stat_result]] = {}
    for number in files.segments():
        path = files.segment_path(number)
        with os.fdopen(open_regular(path), "rb") as file:
            data, status = file.read(HEAD), os.fstat(file.fileno())
        if not any(data[:8]):
            found[number] = None, status
            continue
        name = os.path.basename(path)
        try:
            head = Head.decode(data)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if status.st_size != SEGMENT or head.number != number or head.producer.hex() != files.producer:
            raise ValueError(f"{name} is not what its head says")
        found[number] = head, status
    return found


def _read_logs(files: OwnerFiles) -> list[tuple[Head, mmap.mmap]]:
    """Map the files of the log whose head is whole."""
    found: list[tuple[Head, mmap.mmap]] = []
    for number in files.logs():
        path = files.log_path(number)
        with os.fdopen(open_regular(path), "rb") as file:
            try:
                head = Head.decode(file.read(HEAD), LOG_MAGIC)
            except NewerVersionError as error:
                raise ValueError(f"{os.path.basename(path)} {error}") from None
            except ValueError:  # the machine ended before the first sync of this file
                continue
            found.append((head, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    return found


def _restore(
    files: OwnerFiles, boot: bytes, logs: list[tuple[Head, mmap.mmap]], settled: Ranges
) -> tuple[list[Outcome], str]:
    """Put new segments, made from the log, in place of those of an earlier boot.

    Returns:
        The outcomes that the log has, and words about what is lost.
    """
    old = files.segments()
    for number in old:
        files.remove_segment(number)
    if not logs:
        files.mark_restored(boot)
        return [], f"{len(old)} segments of an earlier boot are lost: no log confirms what they hold"
    outcomes: list[Outcome] = []
    # Of each event its sequence, its log, and where it begins there, as one number: there may be millions.
    found: list[int] = []
    for i, (head, data) in enumerate(logs):
        read = events.LogEvents(data, head.salt)
        found += [(event.seq << 24 | i) << 40 | event.begin for event in read if not event.settled]
        outcomes += read.outcomes
    ranges = merged([*settled, *((first, last) for first, last, _, _ in outcomes)])
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    most = 2 * sum(len(data) for _, data in logs) // SEGMENT + 8
    producer = bytes.fromhex(files.producer)
    segments = Segments(queue, files.directory, producer, boot, os.getpid(), most, True, 0)
    try:
        for item in events.waiting(found, ranges, lambda item: item >> 64):
            seq, at, data = item >> 64, item & ~(-1 << 40), logs[item >> 40 & 0xFF_FFFF][1]
            event = next(events.read_events(data, at, len(data)))
            body = data[event.body : event.body + event.size]
            queue.next_seq = seq
            while queue.push(body, event.level, event.kind, event.created_us) <= 0:
                if not segments.grow():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), files.directory)
                queue.next_seq = seq
    finally:
        segments.close()
    files.mark_restored(boot)
    return outcomes, ""
