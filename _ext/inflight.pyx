"""Batches that are detached from the queue, until each of their events has an outcome.

Only the sender, the thread that holds the engine's role, touches them, so nothing here is locked. Counts
reach the queue in ``commit``, under its mutex, so that a snapshot always adds up.

A batch keeps the bodies as the caller gave them, and a resend frames them anew: partial acknowledgements, a
poison event or another server make other windows of the same events.
"""

from collections import namedtuple

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_New
from libc.errno cimport EINTR, errno
from libc.stdint cimport SIZE_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.unistd cimport write

from logclient._ext.codec cimport *
from logclient._ext.descriptors cimport *
from logclient._ext.queue cimport *

from logclient._ext.constants import REASONS, STATUSES

include "inflight/batches.pyx"
include "inflight/ledger_lines.pyx"


class Event(namedtuple("Event", ("seq", "created_us", "level", "kind", "body"))):
    """One event of a batch, as a codec written in Python sees it."""

    __slots__ = ()
    seq: int
    created_us: int
    level: int
    kind: int
    body: bytes


cdef class Batch:
    """A view of a batch for Python: for codecs in Python, and for tests.

    It does not own the batch: once every event has its outcome the batch is gone, and any use raises
    ``LookupError``.
    """

    cdef lc_batch *find(self) except NULL:
        cdef lc_batch *b
        if self.borrowed != NULL:
            return self.borrowed
        if self.in_flight is None:
            raise LookupError("the batch was lent for one call of encode")
        if self.in_flight.f.alone != NULL and self.in_flight.f.alone.serial == self.serial:
            return self.in_flight.f.alone
        b = self.in_flight.f.head
        while b != NULL:
            if b.serial == self.serial:
                return b
            b = b.next
        raise LookupError("every event of this batch has its outcome")

    @property
    def capsule(self) -> object:
        """The C batch for a codec, as a capsule; valid until the next ``apply``."""
        return PyCapsule_New(self.find(), b"logclient.batch", NULL)

    def __len__(self):
        return self.find().n

    def pending(self, limit: int | None = None) -> list[Event]:
        """Return the first `limit` pending events as `Event` tuples, in rising sequence."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        cdef list found = []
        for i in range(b.cursor, b.n):
            if limit is not None and len(found) >= limit:
                break
            if b.status[i] == PENDING:
                body = PyBytes_FromStringAndSize(<const char *> b.body[i], b.size[i])
                found.append(Event(b.seq[i], b.created_us[i], b.level[i], b.kind[i], body))
        return found

    def mark(self, uint64_t seq, uint8_t status, uint8_t reason=0, uint64_t hash=0):
        """Set the status of a pending event, as ``encode`` does: ``INFLIGHT``, ``HANDED`` or ``FAILED``.

        Raises:
            LookupError: the event is not pending in this batch.
            ValueError: there is no such status or reason.
        """
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        if status != INFLIGHT and status != HANDED and status != FAILED or reason >= R_COUNT:
            raise ValueError("status: must be INFLIGHT, HANDED or FAILED, with a reason of R_*")
        for i in range(b.cursor, b.n):
            if b.seq[i] == seq and b.status[i] == PENDING:
                b.status[i] = status
                b.reason[i] = reason
                b.hash[i] = hash
                return
        raise LookupError(f"no pending event {seq} in this batch")

    def statuses(self) -> dict[int, str]:
        """Return the name of each event's status by sequence."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        return {b.seq[i]: STATUSES[b.status[i] & ~SETTLED] for i in range(b.n)}

    def hashes(self) -> dict[int, int]:
        """Return the hash of each body as carried by sequence; 0 before it was encoded."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        return {b.seq[i]: b.hash[i] for i in range(b.n)}


cdef Batch borrow_batch(lc_batch *b):
    cdef Batch view = Batch.__new__(Batch)
    view.borrowed = b
    return view


@cython.no_gc_clear              # `main` is needed to the end
cdef class InflightBatches:
    """The batches that are not settled, for one connection at a time.

    The engine and tests call these methods; pumps call the C functions behind them. The methods ``fail``,
    ``expire``, ``commit`` and ``take_report`` and the property ``listed`` are about all connections with the
    same queue, as is the ledger of the main one; the others are about one.

    Args:
        main: takes from the same queue, for another connection of the same sender; None: there is none.
    """

    def __cinit__(self, EventQueue queue not None, InflightBatches main=None):
        self.queue = queue
        self.main = main
        self._begin()

    cdef void _begin(self):
        memset(&self.f, 0, sizeof(lc_inflight))
        self.f.queue = self.queue.h
        self.f.ledger.fd = -1
        self.f.expected = 1
        self.f.allowance = NO_LIMIT
        self.f.main = self.f.beside = &self.f
        if self.main is not None:
            self.f.main = &self.main.f
            self.f.beside = self.main.f.beside
            self.main.f.beside = &self.f

    def __dealloc__(self):
        cdef lc_inflight *f = self.f.beside
        cdef lc_batch *b = self.f.head
        cdef lc_batch *following
        if f == NULL:            # it was not made
            return
        while f.beside != &self.f:
            f = f.beside
        f.beside = self.f.beside
        if b == NULL:
            b = self.f.quarantine
        else:
            self.f.tail.next = self.f.quarantine
        while b != NULL:
            following = b.next
            _free_batch(&self.f, b)
            b = following
        while self.f.ordinary.head != NULL:
            _disown(&self.f, take_chunk(&self.f.ordinary))
        while self.f.kept.head != NULL:
            _disown(&self.f, take_chunk(&self.f.kept))
        lc_free_chunks(self.f.emptied)
        free(self.f.spare)
        free(self.f.report.items)
        free(self.f.taken.items)
        free(self.f.line.data)
        free(self.f.packed.data)

    def renew(self):
        """In a forked child, after ``EventQueue.renew``, start without batches; the parent's are leaked.

        The one that others were made with goes first.
        """
        self._begin()

    def pending(self) -> Batch | None:
        """Return the oldest batch with events to send or resend, or None."""
        return self._batch(inflight_pending(&self.f))

    def take(self, uint32_t events, uint64_t size) -> Batch | None:
        """Detach a batch of at most `events` and `size` bytes, or one event; None: there is none."""
        return self._batch(inflight_take(&self.f, events, size))

    cdef _batch(self, lc_batch *b):
        cdef Batch view
        if b == NULL:
            return None
        view = Batch.__new__(Batch)
        view.in_flight = self
        view.serial = b.serial
        return view

    def encoded(self, Batch batch not None) -> bytes:
        """Count the effects of ``encode``; return the ledger lines to write first, none for a resend."""
        cdef lc_batch *b = batch.find()
        inflight_encoded(&self.f, b)
        self.f.line.size = 0
        if inflight_ledger(&self.f, b) < 0:
            raise MemoryError
        return PyBytes_FromStringAndSize(<const char *> self.f.line.data, <Py_ssize_t> self.f.line.size)

    def apply(self, ranges: Iterable[tuple[int, int]], uint8_t status, uint8_t reason=0):
        """Set the status of the events in flight in these ranges: ``ACKED``, ``HANDED``, ``FAILED``.

        ``PENDING`` puts them back.
        """
        cdef lc_outcome item
        cdef lc_outcomes out
        for first, last in ranges:
            item.first = first
            item.last = last
            item.status = status
            item.reason = reason
            out.items = &item
            out.n = 1
            inflight_apply(&self.f, &out)

    def requeue(self):
        """Make every event in flight pending again, in order, after a connection was lost."""
        _change(&self.f, self.f.head, NO_LIMIT, NO_SEQ, 1 << INFLIGHT, PENDING, R_NONE)
        if self.f.alone != NULL:
            _change(&self.f, self.f.alone, 1, NO_SEQ, 1 << INFLIGHT, PENDING, R_NONE)

    cdef list _merged(self, uint8_t status):
        # Return the events of its batches with this status, as (first, last), merged.
        cdef lc_batch *b = self.f.head
        cdef list found = []
        cdef uint64_t first = 0, last = 0
        cdef uint32_t i
        while b != NULL:
            for i in range(b.low, b.n if b.pending or b.inflight else 0):
                if b.status[i] != status:
                    continue
                if first and b.seq[i] != last + 1:
                    found.append((first, last))
                    first = 0
                first = first if first else b.seq[i]
                last = b.seq[i]
            b = b.next
        if first:
            found.append((first, last))
        return found

    @property
    def inflight_range(self) -> tuple[int, int, int]:
        """(first sequence, last sequence, number) of the events in flight; zeros when there are none."""
        if self.f.alone != NULL and self.f.alone.inflight:
            return self.f.alone.seq[0], self.f.alone.seq[0], self.f.inflight
        found = self._merged(INFLIGHT) or [(0, 0)]
        return found[0][0], found[len(found) - 1][1], self.f.inflight

    def steer(self, uint32_t most, bint prompt):
        """Bound the events in flight while poison is sought, and end ``drain``.

        Args:
            most: so many events; 0: the core's credit alone decides.
            prompt: the pump returns at the first outcome, and sends nothing more before that.
        """
        self.f.max_inflight = most
        self.f.prompt = prompt
        self.f.draining = False

    def drain(self, bint on=True):
        """Send nothing more, or go on; the pump returns ``target`` once nothing is in flight."""
        self.f.draining = on

    @property
    def drained(self) -> bool:
        """Whether the connection can be ended: ``drain`` was called, and nothing is in flight."""
        return self.f.draining and self.f.inflight == 0

    def use_queue(self, *, bint takes, bint notes):
        """Say how events are taken from the queue.

        Args:
            takes: False: not at all, only events that are detached already are sent.
            notes: ``drain_taken`` returns those that are taken.
        """
        self.f.takes_none = not takes
        self.f.notes_taken = notes

    def drain_taken(self) -> list[tuple[int, int]]:
        """Return the events taken from the queue since the last call, as (first, last)."""
        cdef list found = [(self.f.taken.items[i].first, self.f.taken.items[i].last)
                           for i in range(self.f.taken.n)]
        self.f.taken.n = 0
        return found

    def allow(self, events: int | None):
        """Let so many more events be sent, not counting those from quarantine; None: any."""
        self.f.allowance = NO_LIMIT if events is None else events

    @property
    def outcomes(self) -> int:
        """Number of events in flight that got their outcome so far."""
        return self.f.outcomes

    @property
    def listed(self) -> int:
        """The highest sequence with a line for the ledger; 0: there is none."""
        cdef lc_inflight *f = &self.f
        cdef uint64_t last = 0
        while f != NULL:
            last = max(last, f.listed)
            f = _beside(f, &self.f)
        return last

    def set_ledger(self, int fd):
        """Write ``batch`` lines to this descriptor; -1: write none."""
        lc_look(&self.f.ledger, fd)
        self.f.ledger_errno = 0

    def take_ledger(self) -> tuple[int, int]:
        """Return (bytes written since the last call, errno of the write that failed or 0)."""
        answer = (self.f.ledger_bytes, self.f.ledger_errno)
        self.f.ledger_bytes = 0
        return answer

    @property
    def reached(self) -> int:
        """The last sequence, as of ``commit``, up to which every event is settled or in quarantine."""
        return self.f.reached

    @property
    def withheld(self) -> int:
        """Number of events that are held back while others are tried."""
        return self.f.withheld

    def limit_credit(self, uint32_t events) -> int:
        """Return how many of the `events` of the core's credit may be encoded now."""
        inflight_limit_credit(&self.f, &events)
        return events

    def withhold(self, uint64_t events):
        """Hold back the first `events` pending events, in their places, until one of the next two calls."""
        self.f.withheld = _change(&self.f, self.f.head, events, NO_SEQ, 1 << PENDING, WITHHELD, R_NONE)

    def release_withheld(self):
        """Make the withheld events pending again."""
        _change(&self.f, self.f.head, self.f.withheld, NO_SEQ, 1 << WITHHELD, PENDING, R_NONE)
        self.f.withheld = 0

    def quarantine(self) -> list[int]:
        """Move the withheld events out of their batches into quarantine; return their sequences, rising.

        Each becomes a batch of its own, so that it keeps no neighbour's memory. If there is no memory for
        that, the event is pending again.
        """
        cdef lc_batch *b = self.f.head
        cdef lc_batch *own
        cdef list moved = []
        cdef uint32_t i
        while b != NULL and self.f.withheld:
            for i in range(b.low, b.n):
                if b.status[i] == WITHHELD and self.f.withheld:
                    own = _copy_to_quarantine(&self.f, b, i)
                    if own != NULL:
                        b.status[i] = <uint8_t> WITHHELD | <uint8_t> SETTLED
                        moved.append(b.seq[i])
                        self.f.withheld -= 1
            inflight_encoded(&self.f, b)
            b = b.next
        self.release_withheld()
        return moved

    @property
    def quarantined(self) -> list[int]:
        """The sequences in quarantine, rising."""
        cdef lc_batch *b = self.f.quarantine
        cdef list found = []
        while b != NULL:
            found.append(b.seq[0])
            b = b.next
        return found

    cdef lc_batch *_find_quarantined(self, uint64_t seq) except NULL:
        cdef lc_batch *b = self.f.quarantine
        while b != NULL and b.seq[0] != seq:
            b = b.next
        if b == NULL:
            raise LookupError(f"no event {seq} in quarantine")
        return b

    def send_alone(self, uint64_t seq):
        """Send one event of the quarantine and nothing else; 0: send ordinary events again.

        Raises:
            LookupError: there is no such event in quarantine.
        """
        cdef lc_batch *b = self.f.alone
        if b != NULL and b.status[0] == PENDING:
            b.status[0] = <uint8_t> WITHHELD
            inflight_encoded(&self.f, b)
        self.f.alone = NULL
        if seq:
            b = self._find_quarantined(seq)
            b.status[0] = <uint8_t> PENDING
            inflight_encoded(&self.f, b)
            self.f.alone = b

    def fail_quarantined(self, uint64_t seq, uint8_t reason) -> int:
        """Fail one event of the quarantine; return the size of its body in bytes.

        Raises:
            LookupError: there is no such event in quarantine.
        """
        cdef lc_batch *b = self._find_quarantined(seq)
        cdef uint32_t size = b.size[0]
        if b.status[0] == WITHHELD or b.status[0] == PENDING:
            b.status[0] = <uint8_t> FAILED
            b.reason[0] = reason
            inflight_encoded(&self.f, b)
            _free_settled_suspects(&self.f)
        return size

    def fail(self, uint8_t reason) -> int:
        """Fail the events that are detached or queued; return their number.

        Where lost events are copied (`EventQueue.keep_lost`), these are as many as find room at a time.
        """
        cdef lc_inflight *f = &self.f
        cdef uint64_t count = 0
        while inflight_take(f, 2048, 1 << 20) != NULL:
            pass
        while f != NULL:
            count += _change(f, f.head, NO_LIMIT, NO_SEQ, UNSETTLED, FAILED, reason)
            count += _change(f, f.quarantine, NO_LIMIT, NO_SEQ, UNSETTLED, FAILED, reason)
            _free_settled_suspects(f)
            f = _beside(f, &self.f)
        self.report_gaps()
        return count

    def keep(self, bint fails=True) -> bool:
        """Leave every event without an outcome in the spool, for another client; all are settled then.

        Events in memory are copied there. Those that find no place fail with the reason ``closed``, or end
        this call, unless it `fails` them.

        Returns:
            Whether all are settled.
        """
        inflight_commit(&self.f)           # marks those that have their outcome
        while inflight_take(&self.f, 2048, 1 << 20) != NULL:
            pass
        if not (_keep(&self.f, self.f.head, fails) and _keep(&self.f, self.f.quarantine, fails)):
            return False
        _free_settled_suspects(&self.f)
        self.report_gaps()
        return True

    def adopt(self, uint64_t listed_before):
        """Take the queue's events for those of another process, whose ledger lists them up to a sequence."""
        cdef lc_journal *journal = self.f.queue.spool.journal if self.f.queue.spool != NULL else NULL
        if journal != NULL:
            self.f.journal_base = <uint32_t> min(journal.n, <uint64_t> OUTCOMES)
        self.f.adopted = True
        self.f.listed_before = listed_before

    def expire(self, uint64_t seq, bint drop=False) -> int:
        """Fail the events up to `seq` that are not in flight, with the reason ``max_age``, or drop them.

        Returns:
            Their number; as with `fail`, there can be more.
        """
        cdef uint8_t status = <uint8_t> (DROPPED if drop else FAILED)
        cdef lc_queue *h = self.f.queue
        cdef lc_inflight *f = &self.f
        cdef lc_inflight *m = f.main
        cdef uint64_t first, count = 0
        while True:
            # Detach only old events; the others stay where overflow can still drop them.
            first = min(_first_seq(&m.ordinary), _first_seq(&m.kept))
            lc_mutex_lock(&h.mutex)
            first = min(first, _first_seq(&h.ordinary), _first_seq(&h.kept))
            lc_mutex_unlock(&h.mutex)
            if first > seq or inflight_take(f, 2048, 1 << 20) == NULL:
                break
        while f != NULL:
            count += _change(f, f.head, NO_LIMIT, seq, 1 << PENDING, status, R_MAX_AGE)
            count += _change(f, f.quarantine, NO_LIMIT, seq, 1 << PENDING | 1 << WITHHELD, status, R_MAX_AGE)
            _free_settled_suspects(f)
            f = _beside(f, &self.f)
        return count

    def report_gaps(self):
        """Report as dropped the sequences between the last event taken and the first that is queued."""
        cdef lc_queue *h = self.f.queue
        cdef lc_inflight *m = self.f.main
        cdef uint64_t first
        lc_mutex_lock(&h.mutex)
        first = min(_first_seq(&h.ordinary), _first_seq(&h.kept), h.next_seq)
        lc_mutex_unlock(&h.mutex)
        first = min(first, _first_seq(&m.ordinary), _first_seq(&m.kept))
        if first > m.expected:
            if not m.adopted:
                outcome_add(&m.report, m.expected, first - 1, <uint8_t> DROPPED, h.full_reason)
            m.expected = first

    def commit(self) -> bool:
        """Free settled batches and commit the counts; return whether the flush target was reached."""
        return inflight_commit(&self.f)

    def take_report(self) -> list[tuple[int, int, str, str]]:
        """Return the outcomes since the last call as (first, last, status, reason) with names, merged."""
        cdef list found = []
        cdef lc_inflight *f = &self.f
        cdef lc_outcome *o
        cdef uint32_t i
        if self.f.queue.spool != NULL and self.f.queue.spool.logs and self.f.report.n:
            lc_mutex_lock(&self.f.queue.mutex)
            _pass_to_log(&self.f)
            lc_mutex_unlock(&self.f.queue.mutex)
        self.f.passed = 0
        while f != NULL:
            for i in range(f.report.n):
                o = &f.report.items[i]
                found.append((o.first, o.last, STATUSES[o.status], REASONS[o.reason]))
            f.report.n = 0
            f = _beside(f, &self.f)
        self.f.journal_base += self.f.mirrored
        self.f.mirrored = 0
        return found

    def recorded(self):
        """Note that the ledger has all outcomes that were taken: a spool need not keep them any longer."""
        if self.f.queue.spool != NULL and self.f.queue.spool.journal != NULL:
            self.f.queue.spool.journal.n = 0
            self.f.queue.spool.journal.full = 0
        self.f.journal_base = 0
        self.f.mirrored = 0

    @property
    def inflight(self) -> int:
        """Number of events in flight."""
        return self.f.inflight

    @property
    def to_send(self) -> list[tuple[int, int]]:
        """The events of its batches to send or resend, as (first, last), merged."""
        return self._merged(PENDING)

    @property
    def waiting(self) -> int:
        """Number of detached events to send or resend, in a batch or not yet."""
        cdef lc_batch *b = self.f.head
        cdef uint64_t n = self.f.main.staged_events
        while b != NULL:
            n += b.pending
            b = b.next
        return n
