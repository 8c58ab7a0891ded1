"""The ledger: a producer's record of its events and their outcomes (docs/formats.md).

Only the sender writes it. The pump writes the ``batch`` lines, formatted in C and without the GIL, before the
first byte of their events is sent; the rest is written here, to the same descriptor. A ledger that cannot be
written is reported and never stops delivery.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from operator import itemgetter
from typing import Any, NamedTuple

from logclient.descriptors import File
from logclient.errors import is_shortage
from logclient.files import open_regular
from logclient.standard import os, time

Ranges = list[tuple[int, int]]
"""First and last sequence of each."""

ROTATE_AT = 256 << 20
"""Bytes of a part after which a new one is begun."""

SILENCE = 60.0
"""Seconds without a line that has its time, after which ``alive`` says that the process goes on."""

LAST_SEQUENCE = (1 << 48) - 1
"""What an id has room for."""


def make_ledger(
    target: tuple[str, dict[str, Any]] | None, producer: bytes, parts: int | None = None, size: int = 0
) -> Ledger | None:
    """Make the ledger of a producer, or continue one of so many parts and bytes of another process.

    Its target is the directory, and the fields of the ``open`` lines; None: there is no ledger.
    """
    if target is None:
        return None
    directory, about = target
    if parts is not None:
        about = {**about, "continues": True}
    return Ledger(directory, producer.hex(), {**about, "pid": os.getpid()}, parts or 0, size)


class Ledger:
    """One producer's ledger: one part at a time, created when the first line is written.

    `about` has the fields of the ``open`` lines; `stopped` is the reason for which no more is written, empty
    while it goes on.
    """

    def __init__(
        self, directory: str, producer: str, about: dict[str, Any], parts: int = 0, size: int = 0
    ) -> None:
        self.directory = directory
        self.producer = producer
        self._file = File()
        self.stopped = ""
        # Now, in the caller's thread: a child forked while the sender imports never gets that module.
        from logclient.standard import json

        self._dumps = json.dumps
        self._about = about
        self._part = parts
        self._size = 0
        self._earlier = size
        self._line_at = 0.0
        self._locked = False

    @property
    def fd(self) -> int:
        """The descriptor of the part; -1 if there is none."""
        return self._file.fd

    @property
    def is_ours(self) -> bool:
        """Whether the descriptor is still that of the part: the program may have closed it."""
        return self._file.is_ours

    def open(self) -> int:
        """Return the descriptor to write to, opening the first part if there is none; -1 once stopped.

        Raises:
            OSError: there is no descriptor left; a later attempt may succeed.
        """
        if self.fd < 0 and not self.stopped:
            self._next()
        return self.fd

    def _next(self) -> None:
        path = f"{self.directory}/{self.producer}-{self._part + 1:04d}.ledger"
        try:
            _remove_empty(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            file = File(os.open(path, flags, 0o600))
        except OSError as error:
            if is_shortage(error):
                raise
            self.close()
            self.stopped = f"{path}: {error.strerror}"
            return
        if self.is_ours:
            self.write("continued")
        if self.stopped:
            file.close()
            return
        self.close()
        self._file, self._locked = file, False
        self._part += 1
        self._earlier += self._size
        self._size = 0
        self.write("open", version=1, producer=self.producer, part=self._part, locked=True, **self._about)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line; a failure stops the ledger."""
        if self.fd >= 0 and not self.is_ours:
            self._begin_anew()
        if self.fd < 0:
            return
        if not self._locked:
            # By this lock ``push`` sees that the process lives. ``push`` takes it for a moment, too.
            with suppress(OSError):
                flock(self.fd, LOCK_EX | LOCK_NB)
                self._locked = True
        self._line_at = time.monotonic()
        made = {"t": kind, "at_us": time.time_ns() // 1000, **fields}
        view = memoryview(self._dumps(made, separators=(",", ":")).encode() + b"\n")
        try:
            while view:
                written = os.write(self._file.use(), view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self.stop(error.errno or 0)

    def _begin_anew(self) -> None:
        """Begin a new part. Without a descriptor for it, the present one grows on; stop if that is lost."""
        try:
            self._next()
        except OSError as error:
            if not self.is_ours:
                self.stop(error.errno or 0)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return self._earlier + self._size

    def wrote(self, size: int, error: int) -> None:
        """Count the bytes written by the pump; stop by its errno, or begin a new part where that is due."""
        self._size += size
        if error:
            self.stop(error)
        elif self._size >= ROTATE_AT or not self.is_ours:
            self._begin_anew()

    def say_alive(self, until: float, waiting: int) -> float:
        """Write an ``alive`` line at the end of a silence; return when to look again, `until` at most.

        Both times are monotonic seconds. `waiting` events have no outcome yet.
        """
        if self.fd < 0:
            return until
        if time.monotonic() >= self._line_at + SILENCE:
            self.write("alive", waiting=waiting)
        return min(until, self._line_at + SILENCE)

    def write_outcomes(self, outcomes: dict[tuple[str, str], Ranges]) -> None:
        """Write the lines of outcomes, by status and reason."""
        for (status, reason), seqs in outcomes.items():
            if status == "dropped":
                self.write("dropped", reason=reason, seqs=merged(seqs))
            elif status != "stored":  # whoever sends those lists their outcome
                self.write("outcome", status=status, reason=reason, seqs=merged(seqs))

    def write_close(self, last: int, counts: dict[str, Any]) -> None:
        """Write the ``close`` line: the counters of a queue, for the events up to `last`."""
        self.write(
            "close",
            last=last,
            acked=counts["acked"],
            handed=counts["handed"],
            failed=counts["failed"],
            dropped={r: n for r, n in counts["dropped"].items() if r != "closed"},
            bytes=self.size,
        )

    def stop(self, error: int) -> None:
        """Stop writing; note that in the ledger if it still takes a line."""
        self.stopped = os.strerror(error)
        if self.fd >= 0:
            try:
                # A newline first: the line that failed may be torn.
                os.write(self._file.use(), b'\n{"t":"stopped","reason":"write failed"}\n')
            except OSError:
                pass
        self.close()

    def close(self) -> None:
        """Close the part; in a forked child, the parent's file."""
        self._file.close()


def _remove_empty(path: str) -> None:
    """Remove a part without a line: a process was killed between making and writing it."""
    try:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            os.unlink(path)
    except OSError:
        pass


class History(NamedTuple):
    """What happened to a producer's events before this process took them over."""

    counts: dict[tuple[str, str], int]  # by status and reason
    complete: bool  # every event that is not queued here is among them

    def add_to(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Return the counters of a queue with these added."""
        total = {**counts, "failed": dict(counts["failed"]), "dropped": dict(counts["dropped"])}
        for (status, reason), n in self.counts.items():
            if status in ("failed", "dropped"):
                total[status][reason] = total[status].get(reason, 0) + n
            elif status in total:
                total[status] += n
        return total


class Record(NamedTuple):
    """What the ledger of a dead owner says."""

    parts: int
    last: int  # the highest sequence that it lists
    listed: int  # the highest sequence that went on the wire
    settled: Ranges  # merged
    counts: dict[tuple[str, str], int]  # by status and reason
    size: int  # bytes of all parts


def read_record(directory: str, producer: str) -> Record:
    """Read the parts of a ledger as far as they are whole; the last line may be torn, any may be damaged.

    A last part without a line does not count: its owner was killed before it wrote one.

    Raises:
        OSError: there is no descriptor or memory left; a later attempt may succeed.
    """
    from json import loads  # only who takes over a spool needs it

    parts = listed = last = size = part_size = 0
    settled: Ranges = []
    counts: dict[tuple[str, str], int] = {}
    while True:
        path = os.path.join(directory, f"{producer}-{parts + 1:04d}.ledger")
        try:
            fd = open_regular(path)
        except OSError as error:
            if is_shortage(error):
                raise
            break
        parts += 1
        part_size = 0
        with os.fdopen(fd, "rb") as file:
            for line in file:
                part_size += len(line)
                if not line.endswith(b"\n"):
                    break
                # Other kinds of lines are long, and of no use here.
                if not line.startswith((b'{"t":"batch"', b'{"t":"outcome"', b'{"t":"dropped"')):
                    continue
                with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    entry = loads(line)
                    ranges = [(int(first), int(end)) for first, end in entry["seqs"]]
                    if not all(0 < first <= end <= LAST_SEQUENCE for first, end in ranges):
                        continue
                    highest = max((end for _, end in ranges), default=0)
                    last = max(last, highest)
                    if entry["t"] == "batch":
                        listed = max(listed, highest)
                        continue
                    kind = ("dropped" if entry["t"] == "dropped" else entry["status"], entry["reason"])
                    counts[kind] = counts.get(kind, 0) + sum(end - first + 1 for first, end in ranges)
                    settled += ranges
        size += part_size
    if parts and not part_size:
        parts -= 1
    return Record(parts, last, listed, merged(settled), counts, size)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and join those that touch or overlap: acknowledgements may come in any order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """Return the parts of merged ranges that are in no range of `taken`, which is merged too."""
    found: Ranges = []
    for first, last in ranges:
        at = bisect_left(taken, first, key=itemgetter(1))
        while at < len(taken) and taken[at][0] <= last:
            if taken[at][0] > first:
                found.append((first, taken[at][0] - 1))
            first = taken[at][1] + 1
            at += 1
        if first <= last:
            found.append((first, last))
    return found
