"""The files of one owner in a spool's directory: names, lock, heads of segments (docs/formats.md).

An owner is a producer: one client in one process. Its lock dies with its process, so that another client can
take over what it left.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from logclient._ext.constants import REASONS, STATUSES
from logclient._ext.hash import xxh64
from logclient._ext.spool import CHUNK_STRUCT, HEAD, JOURNAL, SEGMENT
from logclient.files import open_regular

MAGIC = b"lcspool\x01"
LOG_MAGIC = bytes.fromhex("6c6373706c6f6701")
VERSION = 1
BYTE_ORDER = 0x01020304

_HEAD = struct.Struct("=8sII16s10s6xQQIIIIQQQQ")
_SUM = struct.Struct("=Q")
_JOURNAL = struct.Struct("=QQQ")
_ITEM = struct.Struct("=QQBB6x")
_LOCK = re.compile(r"([0-9a-f]{20})\.lock")

REMOTE = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")
)
"""File systems that other machines may have, whose locks and mappings do not hold across them."""

COPYING = frozenset(("bcachefs", "btrfs", "zfs"))
"""File systems that write a page to a new place: space that was allocated may be missing then."""


class Head(NamedTuple):
    """The head of a segment.

    Attributes:
        boot: the boot of the machine on which it was written: 16 bytes.
        producer: its owner: 10 bytes.
        device: of the file's file system, and
        inode: of the file: a copy of the file has others.
        number: of the segment.
        always: whether every event of the owner was spooled.
        pid: of the owner's process, for people.
        salt: of a log: the seed of its checksums.
        created_us: microseconds since 1970.
    """

    boot: bytes
    producer: bytes
    device: int
    inode: int
    number: int
    always: bool
    pid: int
    salt: int
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
            raise ValueError(f"has version {version}, newer than {VERSION}: a newer logclient can read it")
        if _SUM.unpack_from(data, _HEAD.size)[0] != xxh64(packed):
            raise ValueError("has a damaged head")
        if (head, size, chunk) != (HEAD, SEGMENT if magic == MAGIC else 0, CHUNK_STRUCT):
            raise ValueError("was written by a machine with other sizes of words")
        return cls(boot, producer, device, inode, number, bool(always), pid, salt, made)


class Journal(NamedTuple):
    """Outcomes that the owner had not written to its ledger.

    Attributes:
        outcomes: (first sequence, last sequence, status, reason).
        complete: whether it has all of them.
        unspooled: whether the owner had events in memory only.
    """

    outcomes: list[tuple[int, int, str, str]]
    complete: bool
    unspooled: bool

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """Read it from the head of the first segment; items that make no sense are left out."""
        n, full, unspooled = _JOURNAL.unpack_from(data, JOURNAL)
        at = JOURNAL + _JOURNAL.size
        room = (HEAD - at) // _ITEM.size
        found = decode_outcomes(data[at : at + min(n, room) * _ITEM.size])
        return cls(found, not full and len(found) == n, bool(unspooled))


def decode_outcomes(data: bytes) -> list[tuple[int, int, str, str]]:
    """Read outcomes as the journal and the log have them; those that make no sense are left out."""
    return [
        (first, last, STATUSES[status], REASONS[reason])
        for first, last, status, reason in _ITEM.iter_unpack(data[: len(data) // _ITEM.size * _ITEM.size])
        if 0 < first <= last and status < len(STATUSES) and reason < len(REASONS)
    ]


class OwnerFiles:
    """The files of one owner.

    Args:
        directory: of the spool.
        producer: of the owner: 20 hexadecimal digits.
    """

    def __init__(self, directory: str, producer: str) -> None:
        self.directory = directory
        self.producer = producer
        self._fd = -1

    @property
    def locked(self) -> bool:
        """Whether this process has the lock."""
        return self._fd >= 0

    def exist(self) -> bool:
        """Return whether the lock file is there still: without it nobody finds the others."""
        return os.path.exists(self.lock_path)

    @property
    def lock_path(self) -> str:
        """The lock file, which is never mapped."""
        return os.path.join(self.directory, f"{self.producer}.lock")

    def segment_path(self, number: int) -> str:
        """Return the path of a segment."""
        return os.path.join(self.directory, f"{self.producer}.{number:06d}.seg")

    def create(self) -> None:
        """Make the lock file, and lock it: its name appears only once it is locked.

        Raises:
            OSError: it cannot be made.
        """
        fresh = self.lock_path + ".new"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(fresh, self.lock_path)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                os.unlink(fresh)
            raise
        self._fd = fd

    def lock(self) -> bool:
        """Lock the files of an owner that has ended; return whether they are ours now."""
        try:
            fd = open_regular(self.lock_path, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another client may have adopted the files and removed the lock while we opened it.
            if os.path.samestat(os.fstat(fd), os.stat(self.lock_path)):
                self._fd, fd = fd, -1
        except OSError:
            pass
        finally:
            if fd >= 0:
                os.close(fd)
        return self.locked

    def unlock(self) -> None:
        """Give the files to whoever locks them next."""
        # Closed, never unlocked: a forked child has the lock too.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def restored(self) -> bytes:
        """Return the boot in which the segments were made from the log, as `mark_restored` noted it."""
        return os.pread(self._fd, 16, 0)

    def mark_restored(self, boot: bytes) -> None:
        """Note, in the lock file, that the segments were made from the log in this boot, and are whole."""
        os.pwrite(self._fd, boot, 0)

    def remove_segment(self, number: int) -> None:
        """Remove a segment, if it is there."""
        with suppress(OSError):
            os.unlink(self.segment_path(number))

    def log_path(self, number: int) -> str:
        """Return the path of a file of the log."""
        return os.path.join(self.directory, f"{self.producer}.{number:06d}.log")

    def segments(self) -> list[int]:
        """Return the numbers of the segments that are there, rising."""
        return self._numbers("seg")

    def logs(self) -> list[int]:
        """Return the numbers of the files of the log, rising."""
        return self._numbers("log")

    def _numbers(self, kind: str) -> list[int]:
        pattern = re.compile(rf"{re.escape(self.producer)}\.(\d{{6}})\.{kind}")
        found = (pattern.fullmatch(name) for name in os.listdir(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def remove(self) -> None:
        """Remove all files, the lock last."""
        with suppress(OSError):
            for number in self.segments():
                self.remove_segment(number)
            for number in self.logs():
                os.unlink(self.log_path(number))
        with suppress(OSError):
            os.unlink(self.lock_path)
        self.unlock()


def owners(directory: str) -> Iterator[OwnerFiles]:
    """Yield the files of all owners in a spool's directory, the oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
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
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == name:
                return after.split()[0]
    return ""


def refusal(directory: str) -> str:
    """Return why no spool can lie in a directory, by its file system; empty when it can."""
    kind = file_system(directory)
    if kind.partition(".")[0] in REMOTE:
        return f"{kind} may be shared by machines, whose locks do not hold across it: use a local directory"
    if kind in COPYING:
        return f"{kind} copies pages when they are written, so a full disk would end the process"
    return ""
