"""What a dead owner left: its segments, its journal, and its ledger, which is continued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logclient._ext.queue import EventQueue
from logclient._ext.spool import Segments
from logclient.files.ledger import History, Ranges, merged, without
from logclient.standard import os, time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.delivery.error_log import Diagnostics
    from logclient.delivery.spool.owner_files import OrphanSpool


class Replay:
    """The events of a dead owner in the queue of the engine that sends them.

    Those that are older than `age` seconds are dropped.

    Attributes:
        unlisted: outcomes that its ledger has not, by status and reason.
        history: all outcomes before the adoption.
    """

    def __init__(
        self,
        orphan: OrphanSpool,
        queue: EventQueue,
        in_flight: InflightBatches,
        diagnostics: Diagnostics,
        age: float | None,
    ) -> None:
        self._files = orphan.files
        self.directory = orphan.files.directory
        self.error = ""  # nothing stops it
        journal, record = orphan.journal, orphan.record
        most = orphan.segments[-1][0] + 1
        boot = bytes(16)  # no segment is added
        self._segments = Segments(
            queue, orphan.files.directory, orphan.producer, boot, os.getpid(), most, True, 0
        )
        settled = merged((first, last) for first, last, _, _ in journal.outcomes)
        last = max([0 if record is None else record.last, *(end for _, end in settled)])
        try:
            oldest = 0 if age is None else int((time.time() - age) * 1e6)
            pending, expired, damaged = self._segments.restore(orphan.segments, settled, last, oldest)
        finally:
            orphan.close()
        in_flight.adopt(record.listed if record is not None else 0)
        in_flight.commit()
        if damaged:
            path = orphan.files.lock_path
            words = f"spool: {damaged} damaged chunks beside {path}: their events are lost"
            diagnostics.report("adoption", words)
        last = queue.next_seq - 1
        self.unlisted, self.history = settle(orphan, pending, expired, last, damaged > 0)

    @property
    def events(self) -> int:
        """Events that lie in the files now."""
        return self._segments.events

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
        """Do nothing: files and events are there, there is no thread, and its engine closes."""

    open = store = keep_used = start = park = wait_parked = unpark = nothing


def settle(
    orphan: OrphanSpool, pending: Ranges, expired: Ranges, last: int, damaged: bool
) -> tuple[dict[tuple[str, str], Ranges], History]:
    """Find out what became of a dead owner's events: outcomes that its ledger has not, and all outcomes.

    Of the sequences up to `last`, those in `pending` have no outcome, and those in `expired` are too old
    and dropped. `damaged`: some events could not be read.
    """
    journal, record = orphan.journal, orphan.record
    complete = orphan.whole and journal.complete and not journal.unspooled and not damaged
    known = record.settled if record is not None else []
    unlisted: dict[tuple[str, str], Ranges] = {}
    for first, end, status, reason in journal.outcomes:
        if fresh := without([(first, end)], known):
            unlisted.setdefault((status, reason), []).extend(fresh)
    if expired:
        unlisted[("dropped", "max_age")] = merged(expired)
    if complete:
        # Whatever is neither here nor listed was dropped, and the owner had no time to say so. But one
        # without a ledger may have delivered it: its journal has the newest outcomes alone.
        settled = [(first, end) for first, end, _, _ in journal.outcomes]
        gone = merged([*known, *settled, *pending, *expired])
        missing = without([(1, last)] if last else [], gone)
        if record is not None and not record.parts:
            complete = last > 0 and not missing
        elif missing:
            unlisted.setdefault(("dropped", "spool_full"), []).extend(missing)
    counts = dict(record.counts) if record is not None else {}
    for kind, ranges in unlisted.items():
        counts[kind] = counts.get(kind, 0) + sum(end - first + 1 for first, end in ranges)
    return unlisted, History(counts, complete)
