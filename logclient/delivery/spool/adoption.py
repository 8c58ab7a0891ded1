"""What a dead owner left: its segments, its journal, and its ledger, which is continued."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.constants import REASONS, STATUSES
from logclient._ext.queue import EventQueue
from logclient._ext.spool import HEAD, SEGMENT, LogReader, Segments
from logclient.delivery.bookkeeping import History, merged
from logclient.delivery.spool.owner_files import LOG_MAGIC, Head, Journal, OwnerFiles
from logclient.errors import is_shortage
from logclient.files import open_regular

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.delivery.diagnostics import Diagnostics

Ranges = list[tuple[int, int]]

Outcome = tuple[int, int, str, str]
"""First and last sequence, status, reason."""


class Estate(NamedTuple):
    """What a dead owner left.

    Attributes:
        files: locked by this process.
        producer: 10 bytes.
        segments: (number, descriptor); whoever takes the estate closes them.
        journal: outcomes that its ledger may not have.
        whole: whether every event that it had is there, in the journal, or in its ledger.
    """

    files: OwnerFiles
    producer: bytes
    segments: list[tuple[int, int]]
    journal: Journal
    whole: bool

    def close(self) -> None:
        """Close the descriptors; the lock stays."""
        for _, fd in self.segments:
            os.close(fd)
        self.segments.clear()


def read_estate(files: OwnerFiles, boot: bytes, ledger: str | None) -> tuple[Estate | None, str]:
    """Read the heads of a dead owner's segments; after another boot, make new ones from its log.

    Segments that were written since this machine started are what their owner left: the page cache has them.
    After another start, or in a copy, only what a checksum of the log confirms is used.

    Args:
        files: locked.
        boot: of this machine.
        ledger: the directory of ledgers; None: there is none.

    Returns:
        What it left, or None, and words about what could not be used.

    Raises:
        OSError: a file cannot be read, or the disk is full.
        ValueError: a file is damaged, or of a newer version.
    """
    words = ""
    outcomes: list[Outcome] = []
    logs = _read_logs(files)
    try:
        old = any(head.boot != boot for head, _, _ in logs)
        if old and files.restored() != boot:
            known = False  # whatever the power cut has made of the segments
        else:
            known = all(
                head is None or (head.boot, head.device, head.inode) == (boot, found.st_dev, found.st_ino)
                for head, found in _read_heads(files).values()
            )
        if not known and files.restored() != boot:
            settled = read_record(ledger, files.producer).settled if ledger is not None else []
            outcomes, words = _restore(files, boot, logs, settled)
        heads = _read_heads(files)
    finally:
        for _, fd, _ in logs:
            os.close(fd)
    whole = files.restored() != boot
    estate = Estate(files, bytes.fromhex(files.producer), [], Journal(outcomes, True, False), whole)
    try:
        for number, (head, _) in heads.items():
            if head is None:
                files.remove_segment(number)
                continue
            fd = open_regular(files.segment_path(number), os.O_RDWR)
            estate.segments.append((number, fd))
            if number == 0 and not outcomes:
                estate = estate._replace(journal=Journal.decode(os.pread(fd, HEAD, 0)))
    except BaseException:
        estate.close()
        raise
    return (estate if estate.segments else None), words


def _read_heads(files: OwnerFiles) -> dict[int, tuple[Head | None, os.stat_result]]:
    """Return the head of each segment; None: its owner was killed before it used it."""
    found: dict[int, tuple[Head | None, os.stat_result]] = {}
    for number in files.segments():
        path = files.segment_path(number)
        fd = open_regular(path)
        try:
            data, place = os.pread(fd, HEAD, 0), os.fstat(fd)
        finally:
            os.close(fd)
        if not any(data[:8]):
            found[number] = None, place
            continue
        name = os.path.basename(path)
        try:
            head = Head.decode(data)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if place.st_size != SEGMENT or head.number != number or head.producer.hex() != files.producer:
            raise ValueError(f"{name} is not what its head says")
        found[number] = head, place
    return found


def _read_logs(files: OwnerFiles) -> list[tuple[Head, int, int]]:
    """Open the log's files up to the first whose head is not whole: (head, descriptor, bytes)."""
    found: list[tuple[Head, int, int]] = []
    for number in files.logs():
        fd = open_regular(files.log_path(number))
        try:
            head = Head.decode(os.pread(fd, HEAD, 0), LOG_MAGIC)
        except ValueError as error:
            os.close(fd)
            if "newer" in str(error):
                for _, other, _ in found:
                    os.close(other)
                raise ValueError(f"{os.path.basename(files.log_path(number))} {error}") from None
            continue  # the machine ended before its first sync
        found.append((head, fd, os.fstat(fd).st_size))
    return found


def _restore(
    files: OwnerFiles, boot: bytes, logs: list[tuple[Head, int, int]], settled: Ranges
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
    reader = LogReader([(fd, size, head.salt) for head, fd, size in logs])
    size = sum(size for _, _, size in logs)
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    most = 2 * size // SEGMENT + 8
    producer = bytes.fromhex(files.producer)
    segments = Segments(queue, files.directory, producer, boot, os.getpid(), most, True, 0)
    try:
        reader.write(segments, merged([*settled, *((first, last) for first, last, _, _ in reader.settled)]))
    finally:
        segments.close()
    files.mark_restored(boot)
    return [(first, last, STATUSES[s], REASONS[r]) for first, last, s, r in reader.settled], ""


class Adoption:
    """The events of a dead owner in the queue of the engine that sends them.

    Args:
        queue: empty; the events are queued there.
        record: what its ledger says; None: it has none.
        age: seconds after which an event is dropped; None: never.

    Attributes:
        unlisted: outcomes that its ledger has not, by status and reason.
        history: all outcomes before the adoption.
    """

    def __init__(
        self,
        estate: Estate,
        queue: EventQueue,
        in_flight: InflightBatches,
        record: Record | None,
        diagnostics: Diagnostics,
        age: float | None,
    ) -> None:
        self._files = estate.files
        journal = estate.journal
        most = estate.segments[-1][0] + 1
        boot = bytes(16)  # no segment is added
        self._segments = Segments(
            queue, estate.files.directory, estate.producer, boot, os.getpid(), most, True, 0
        )
        settled = [(first, last) for first, last, _, _ in journal.outcomes]
        last = max([0, *(end for _, end in settled)])
        if record is not None:
            last = max(last, record.last)
        try:
            oldest = 0 if age is None else int((time.time() - age) * 1e6)
            pending, expired, damaged = self._segments.restore(estate.segments, settled, last, oldest)
        finally:
            estate.close()
        in_flight.adopt(record.listed if record is not None else 0)
        in_flight.commit()
        if damaged:
            path = estate.files.lock_path
            text = f"{diagnostics.url}: spool: {damaged} damaged chunks beside {path}: their events are lost"
            diagnostics.complain(text, "adoption")
        last = queue.next_seq - 1
        self.unlisted, self.history = settle(estate, record, pending, expired, last, damaged > 0)

    @property
    def directory(self) -> str:
        """Where the files are."""
        return self._files.directory

    @property
    def events(self) -> int:
        """Events that lie in the files now."""
        return self._segments.events

    @property
    def error(self) -> str:
        """Nothing stops it."""
        return ""

    @property
    def is_open(self) -> bool:
        """Whether events can be left in the files: they stay where they are, unless somebody removed them."""
        return self._files.locked and self._files.exist()

    def close(self, deadline: float) -> None:
        """Remove the files, or leave them, with the events that were not sent."""
        used = self._segments.is_used
        self._segments.close()
        if used:
            self._files.unlock()
        else:
            self._files.remove()

    def abandon(self) -> None:
        """In a forked child, let go of the files, which the parent goes on with."""
        self._segments.close()
        self._files.unlock()

    def nothing(self, *_: Any) -> None:
        """Do nothing: files and events are there, there is no thread, and its engine moves and closes."""

    open = make_room = leave = start = move = park = wait_parked = unpark = nothing


class Record(NamedTuple):
    """What the ledger of a dead owner says.

    Attributes:
        parts: how many there are.
        last: the highest sequence that it lists.
        listed: the highest sequence that went on the wire.
        settled: the sequences with an outcome, merged.
        counts: the number of events by status and reason.
        size: bytes of all parts.
    """

    parts: int
    last: int
    listed: int
    settled: Ranges
    counts: dict[tuple[str, str], int]
    size: int


def read_record(directory: str, producer: str) -> Record:
    """Read the parts of a ledger as far as they are whole; the last line may be torn.

    A last part without a line does not count: its owner was killed before it wrote one.

    Raises:
        OSError: there is no descriptor or memory left; a later attempt may succeed.
    """
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
                with suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    ranges = [(int(first), int(end)) for first, end in entry["seqs"]]
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


def settle(
    estate: Estate, record: Record | None, pending: Ranges, expired: Ranges, last: int, damaged: bool
) -> tuple[dict[tuple[str, str], Ranges], History]:
    """Find out what became of a dead owner's events.

    Args:
        estate: what it left.
        record: what its ledger says; None: it has none.
        pending: sequences without an outcome.
        expired: sequences that are dropped, because they are too old.
        last: the highest sequence that is known.
        damaged: whether some events could not be read.

    Returns:
        Outcomes that its ledger has not, by status and reason, and all outcomes.
    """
    journal = estate.journal
    complete = estate.whole and journal.complete and not journal.unspooled and not damaged
    known = record.settled if record is not None else []
    unlisted: dict[tuple[str, str], Ranges] = {}
    for first, end, status, reason in journal.outcomes:
        if fresh := without([(first, end)], known):
            unlisted.setdefault((status, reason), []).extend(fresh)
    if expired:
        unlisted[("dropped", "max_age")] = merged(expired)
    if complete:
        # Whatever is neither here nor listed was dropped, and the owner had no time to say so.
        settled = [(first, end) for first, end, _, _ in journal.outcomes]
        gone = merged([*known, *settled, *pending, *expired])
        if missing := without([(1, last)] if last else [], gone):
            unlisted.setdefault(("dropped", "spool_full"), []).extend(missing)
    counts = dict(record.counts) if record is not None else {}
    for kind, ranges in unlisted.items():
        counts[kind] = counts.get(kind, 0) + sum(end - first + 1 for first, end in ranges)
    return unlisted, History(counts, complete)


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """Return the parts of merged ranges that are in no range of `taken`, which is merged too."""
    found: Ranges = []
    for first, last in ranges:
        for begin, end in taken:
            if end < first:
                continue
            if begin > last:
                break
            if begin > first:
                found.append((first, begin - 1))
            first = end + 1
            if first > last:
                break
        if first <= last:
            found.append((first, last))
    return found
