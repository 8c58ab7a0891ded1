"""A bounded queue of encoded events between the callers' threads and the sender.

One mutex protects it. It is held for a copy and a few pointer moves, never while Python code runs: a log call
inside a destructor or a signal handler can interrupt any Python code, but never code that holds the mutex.
Events lie one after the other in chunks of 64 KiB. The sender detaches whole chunks (``inflight.pyx``) and
works on them outside the mutex. ``drop_oldest`` moves the head of the first chunk. Events at ``keep_level``
and above lie in a list of their own and are dropped last.

After a fork the child makes a new C struct and leaks the old one on purpose: another thread of the parent may
have held its mutex. The Python object stays the same.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport SIZE_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from logclient._ext.codec cimport outcome_add
from logclient._ext.constants cimport *
from logclient._ext.descriptors cimport lc_file, lc_look
from logclient._ext.sockets cimport lc_recv, lc_send

from logclient._ext.constants import FILTERS, REASONS, STATUSES

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef uint64_t lc_forks = 0


cdef void _count_fork() noexcept nogil:
    global lc_forks
    lc_forks += 1


lc_at_fork(&_count_fork)

include "queue/memory.pyx"
include "queue/slots.pyx"
include "queue/lost.pyx"
include "queue/put.pyx"
include "queue/ticket.pyx"

POLICIES = {"drop_oldest": DROP_OLDEST, "drop_new": DROP_NEW, "block": BLOCK, "raise": RAISE}


def monotonic() -> float:
    """Return the clock of the queue and of the senders, in seconds; on POSIX that of ``time.monotonic()``."""
    return lc_monotonic()


def socket_identity(int fd) -> tuple[int, int] | None:
    """Return device and inode of a socket; None: it is not open.

    ``descriptors.identity`` lets other threads run meanwhile, in which the program may close the socket.
    """
    cdef lc_file file
    return None if lc_look(&file, fd) < 0 else (file.device, file.inode)


def socket_send(int fd, identity: tuple[int, int], const uint8_t[::1] data, int flags) -> int:
    """Send on a socket that does not block, as ``socket.send``; OSError: also if its file is another one.

    No other thread of Python runs between the look and its use: in Python one may run after each call.
    """
    cdef lc_file file
    cdef ssize_t n
    file.fd = fd
    file.device, file.inode = identity
    n = lc_send(&file, &data[0], <size_t> data.shape[0], flags) if data.shape[0] else 0
    if n < 0:
        PyErr_SetFromErrno(OSError)
    return n


def socket_recv(int fd, identity: tuple[int, int], Py_ssize_t size) -> bytes:
    """Receive from a socket that does not block, as ``socket.recv``; else as `socket_send`."""
    cdef lc_file file
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef ssize_t n
    file.fd = fd
    file.device, file.inode = identity
    n = lc_recv(&file, PyBytes_AS_STRING(data), <size_t> size, 0)
    if n < 0:
        PyErr_SetFromErrno(OSError)
    return data[:n]


cdef inline lc_queue *_lock(EventQueue queue) noexcept:
    lc_mutex_lock(&queue.h.mutex)
    return queue.h


cdef inline uint64_t _body_within(uint64_t bound) noexcept nogil:
    # Return the size of the largest body whose event takes no more than `bound` bytes, and fits into a chunk,
    # which counts its bytes in 32 bits.
    return max(min(bound, <uint64_t> 0xFFFF0000), sizeof(lc_event)) - sizeof(lc_event) & ~(<uint64_t> 7)


@cython.final
cdef class SharedBound:
    """A bound on the bytes of several queues together.

    Each queue claims bytes of it before it uses them, without a lock. In a forked child it counts from 0.

    Args:
        limit: bytes.
    """

    def __cinit__(self, uint64_t limit):
        self.s = <lc_shared *> calloc(1, sizeof(lc_shared))
        if self.s == NULL:
            raise MemoryError
        self.s.limit = limit
        self.s.generation = lc_forks

    def __dealloc__(self):
        free(self.s)

    cdef lc_shared *here(self) noexcept:
        # In a forked child, forget what the parent's queues have claimed: they are not used here.
        if self.s.generation != lc_forks:
            self.s.used = 0                      # first: another thread may claim at once
            self.s.generation = lc_forks
        return self.s

    @property
    def used(self) -> int:
        """Bytes that all queues have claimed."""
        return lc_shared_get(&self.here().used)

    @property
    def limit(self) -> int:
        """Bytes that they may claim. After a change call ``EventQueue.share`` for each queue."""
        return lc_shared_get(&self.s.limit)

    @limit.setter
    def limit(self, uint64_t value):
        self.s.limit = value


cdef inline bint _is_logged(lc_spool *s, uint64_t seq) noexcept nogil:
    # Return whether the disk has every event up to `seq`. Events in memory are not logged. Mutex held.
    return s != NULL and s.logged >= seq and s.chunk_bytes == 0


@cython.no_gc_clear
cdef class EventQueue:
    """A bounded queue of encoded events.

    Args:
        max_events: bound over all events that are queued, in flight or kept for a resend.
        max_bytes: bound over their bytes. An event counts with its body rounded up to 8 bytes and 24 for its
            header. The empty end of a chunk, into which the next event did not fit, counts with the last one.
        max_event_bytes: a longer body fails with the reason ``too_large``, as does one that exceeds
            `max_bytes`.
        policy: the behaviour at a bound: ``drop_oldest``, ``drop_new``, ``block`` or ``raise``.
        keep_level: events at this ``levelno // 10`` and above are dropped last.
        full_events: so many queued events end the linger of the sender, and so do `full_bytes`.
        free_after: seconds after which unused memory is freed; 4 MiB are never freed.
    """

    def __cinit__(self, *, uint64_t max_events=250_000, uint64_t max_bytes=64 << 20,
                  uint32_t max_event_bytes=1 << 20, str policy="drop_new", uint8_t keep_level=4,
                  uint64_t full_events=2048, uint64_t full_bytes=1 << 20,
                  double free_after=10.0):
        cdef lc_queue_options options
        options.max_events = max_events
        options.max_bytes = max_bytes
        # A larger event would find no room in an empty queue, and a caller that blocks for it would never
        # wake.
        options.max_event_bytes = <uint32_t> min(<uint64_t> max_event_bytes, _body_within(max_bytes))
        options.policy = POLICIES[policy]
        options.keep_level = keep_level
        options.full_events = full_events
        options.full_bytes = full_bytes
        options.free_after = free_after
        self._make(&options, NULL)

    # `lost`: of the parent, whose child keeps as many copies of lost events; or NULL.
    cdef int _make(self, const lc_queue_options *options, lc_lost *lost) except -1:
        cdef lc_queue *h = <lc_queue *> calloc(1, sizeof(lc_queue))
        if h == NULL:
            raise MemoryError
        try:
            if lost != NULL:
                h.lost = _new_lost(lost.room)
        except BaseException:
            free(h)
            raise
        lc_wake_init(&h.wake)
        lc_mutex_init(&h.mutex)
        lc_cond_init(&h.changed)
        h.generation = lc_forks
        h.options = options[0]
        h.max_events = options.max_events
        h.max_bytes = options.max_bytes
        h.max_event_bytes = options.max_event_bytes
        h.next_seq = 1
        h.needs_sender = 1
        h.sender_state = SENDER_BUSY
        h.full_reason = <uint8_t> R_OVERFLOW
        self.h = h
        self._share()
        return 0

    cdef void _share(self) noexcept:
        # Give back what is claimed of the present bound, and claim it of `shared`.
        cdef lc_queue *h = self.h
        cdef lc_shared *s = NULL if self.shared is None else self.shared.here()
        lc_mutex_lock(&h.mutex)
        if h.shared != NULL:
            lc_shared_add(&h.shared.used, 0 - h.claimed)
        h.shared = s
        h.claimed = 0
        h.max_event_bytes = h.options.max_event_bytes
        if s != NULL:
            h.max_event_bytes = <uint32_t> min(
                <uint64_t> h.options.max_event_bytes, _body_within(lc_shared_get(&s.limit)))
        lc_unlock(h)

    def share(self, SharedBound bound: SharedBound | None):
        """Count the bytes of this queue in a bound of several queues as well.

        Events in a spool's files do not count, only chunks of it in memory. A caller that waits for room sees
        what other queues free within 50 ms.

        Args:
            bound: the bound; None: no more. Call it again after `bound` has got another limit.
        """
        cdef SharedBound _before = self.shared      # lives until `h` does not refer to it any more
        self.shared = bound
        if self.h.generation == lc_forks:     # else the mutex may be held for ever: `renew` does this
            self._share()

    @property
    def memory_used(self) -> int:
        """Bytes that count in the bound of several queues, and room that was granted to waiting callers."""
        cdef lc_queue *h
        cdef uint64_t size
        if self.h.generation != lc_forks:
            return 0
        h = _lock(self)
        size = _memory_used(h)
        lc_mutex_unlock(&h.mutex)
        return size

    def __dealloc__(self):
        cdef lc_queue *h = self.h
        if h == NULL:
            return
        # No sender is left: its batches would hold a reference.
        if h.shared != NULL and h.generation == lc_forks:
            lc_shared_add(&h.shared.used, 0 - h.claimed)
        lc_free_chunks(h.ordinary.head)
        lc_free_chunks(h.kept.head)
        lc_free_chunks(h.surplus)
        for i in range(<int> SIZE_CLASSES):
            lc_free_chunks(h.free[i])
        lc_wake_close(&h.wake)
        if h.spool != NULL:
            free(h.spool.segments)
            free(h.spool.to_log.items)
            free(h.spool)
        _free_lost(h.lost)
        free(h)

    def push(self, bytes body not None, uint8_t level=2, uint8_t kind=0, int64_t created_us=0,
             Ticket ticket=None) -> int:
        """Queue a copy of one body. Never block and never raise; safe in signal handlers.

        Args:
            level: ``levelno // 10``, at most 5.
            kind: a ``K_`` number.
            created_us: wall clock in microseconds since 1970; 0: now.
            ticket: the place of a caller that has waited. Without one no room is found while callers wait.

        Returns:
            The sequence, 0 when the event was dropped, or a negative ``PUT_`` code.
        """
        cdef lc_queue *h = self.h
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(body)
        if ticket is not None and ticket.h != h:       # made before a fork: no place in this line
            ticket.ticket.state = TICKET_NONE
            ticket.h = h
        return lc_put(h, data, <size_t> PyBytes_GET_SIZE(body), level, kind, created_us,
                      NULL if ticket is None else &ticket.ticket)

    def ticket(self, uint64_t size) -> Ticket:
        """Return a `Ticket` for an event of `size` bytes; its first ``wait`` or ``is_ready`` gets in line."""
        return Ticket(self, size)

    def renew(self):
        """In a forked child, start with an empty queue of the same bounds, and leave the parent's alone."""
        cdef lc_queue *parents = self.h
        lc_wake_close(&parents.wake)       # this process's copies of the descriptors
        self._make(&parents.options, parents.lost)

    def open_wake(self):
        """Open what wakes the sender, which calls this first, and again: the program may have closed it."""
        cdef lc_queue *h
        if lc_wake_is_open(&self.h.wake):
            return
        h = _lock(self)
        if not h.released and not h.waking:
            lc_wake_open(&h.wake)
        lc_mutex_unlock(&h.mutex)

    @property
    def forked(self) -> bool:
        """Whether this process was forked since the queue was made."""
        return self.h.generation != lc_forks

    def open_first(self, bint on):
        """Say whether the spool is to be opened before the next event: a push returns ``PUT_UNOPENED``."""
        self.h.unopened = on

    @property
    def needs_sender(self) -> bool:
        """Whether each put must be followed by ``Producer.ensure_sender()``."""
        return self.h.needs_sender != 0

    @needs_sender.setter
    def needs_sender(self, bint value):
        self.h.needs_sender = value

    @property
    def next_seq(self) -> int:
        """The sequence of the next event; to be set to a higher one only before there is a sender."""
        return lc_shared_get(&self.h.next_seq)

    @next_seq.setter
    def next_seq(self, uint64_t value):
        self.h.next_seq = value

    @property
    def queued(self) -> tuple[int, int]:
        """Events and bytes that no batch has taken, as a pair."""
        cdef uint64_t events, size
        cdef lc_queue *h = _lock(self)
        events = h.queued_events
        size = h.queued_bytes
        lc_mutex_unlock(&h.mutex)
        return events, size

    @property
    def free_bytes(self) -> int:
        """Bytes of memory kept for reuse, in addition to that of queued events and events in flight."""
        return lc_shared_get(&self.h.free_bytes)

    @property
    def settled(self) -> int:
        """The last sequence up to which every event has its outcome."""
        return lc_shared_get(&self.h.settled)

    def fits(self, uint64_t size) -> bool:
        """Return whether an event of `size` bytes would be taken now."""
        cdef bint answer
        cdef lc_queue *h = _lock(self)
        answer = h.closed or not _is_over(h, event_room(<uint32_t> min(size, h.max_event_bytes)))
        lc_unlock(h)
        return answer

    @property
    def waiting_callers(self) -> int:
        """The number of callers that wait for room."""
        cdef lc_queue *h = _lock(self)
        cdef lc_ticket *ticket = h.first_ticket
        cdef uint64_t count = 0
        while ticket != NULL:
            count += 1
            ticket = ticket.behind
        lc_mutex_unlock(&h.mutex)
        return count

    def refuse(self, bytes body not None=b"", uint8_t kind=0):
        """Count an event that found no room in time as dropped (``overflow``), with a sequence of its own."""
        cdef lc_queue *h = _lock(self)
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(body)
        cdef uint32_t size = <uint32_t> min(PyBytes_GET_SIZE(body), <Py_ssize_t> h.max_event_bytes + 1)
        if size > h.max_event_bytes:
            size = 0                     # it would have failed: only its number is kept
        if h.closed:
            _refuse(h, data, size, kind)
        else:
            _drop(h, PUT_DROPPED, data, size, kind)
        lc_mutex_unlock(&h.mutex)

    def keep_lost(self, size_t room):
        """Keep copies of lost events, `room` bytes of them at most, until ``take_lost``; call it once."""
        if self.h.lost != NULL:
            raise RuntimeError("lost events are kept already")
        self.h.lost = _new_lost(room)

    def take_lost(
        self,
    ) -> tuple[list[tuple[int, str, str, int, bytes]], list[tuple[int, int, str, str]], int]:
        """Return the events that were lost since the last call, and those whose copies found no room.

        Returns:
            (sequence, status, reason, kind, body) of each; 0 is the sequence of an
            event after ``close``. (first, last, status, reason) of the others, and how many are in neither.
        """
        cdef lc_lost *lost = self.h.lost
        cdef lc_lost *fresh
        cdef lc_lost old
        cdef uint32_t i
        if lost == NULL or not lost.used and not lost.bare.n:
            return [], [], 0
        fresh = _new_lost(lost.room)         # objects are made without the lock: they can run Python code
        lc_mutex_lock(&lost.mutex)
        old = lost[0]
        lost.data = fresh.data
        lost.bare = fresh.bare
        lost.used = lost.omitted = 0
        lc_mutex_unlock(&lost.mutex)
        free(fresh)
        try:
            bare = [(old.bare.items[i].first, old.bare.items[i].last, STATUSES[old.bare.items[i].status],
                     REASONS[old.bare.items[i].reason]) for i in range(old.bare.n)]
            return _read_lost(old.data, old.used), bare, old.omitted
        finally:
            free(old.data)
            free(old.bare.items)

    def close(self):
        """Take no more events: later ones are dropped with the reason ``closed``."""
        cdef lc_queue *h = _lock(self)
        h.closed = True
        lc_cond_wake_all(&h.changed)
        lc_mutex_unlock(&h.mutex)
        self.wake()

    def release(self):
        """Give back the descriptor and the free memory; later events are dropped and counted."""
        cdef lc_queue *h = _lock(self)
        h.closed = True
        h.released = True
        _close_wake(h)
        _shrink_free(h, h.free_bytes)
        lc_unlock(h)

    def wake(self):
        """Wake the sender, whatever it waits for."""
        cdef bint wake
        cdef lc_queue *h = _lock(self)
        h.sender_state = SENDER_BUSY
        wake = _begin_wake(h)
        lc_mutex_unlock(&h.mutex)
        if wake:
            _wake(h)

    def wait_for_wake(self, double seconds, *, bint for_event=False):
        """Sleep, without the GIL, until woken or until `seconds` are over: the sender's wait.

        Args:
            for_event: an event wakes it, too; while one is queued there is no sleep.
        """
        cdef lc_queue *h = self.h
        if h.released:
            return
        lc_mutex_lock(&h.mutex)
        if for_event and h.queued_events:
            seconds = 0
        elif for_event:
            h.sender_state = SENDER_IDLE
        h.fork_safe = True
        lc_mutex_unlock(&h.mutex)
        with nogil:
            lc_wake_wait(&h.wake, seconds)
        self.leave_fork_safe()

    def enter_fork_safe(self):
        """Announce a sleep of the sender in which it touches nothing that a forked child would use."""
        cdef lc_queue *h = _lock(self)
        h.fork_safe = True
        lc_mutex_unlock(&h.mutex)

    def leave_fork_safe(self):
        """End the state begun by ``enter_fork_safe``, once no fork is prepared, and consume the wake-up."""
        cdef lc_queue *h = self.h
        with nogil:
            lc_mutex_lock(&h.mutex)
            lc_leave_fork_safe(h)
            h.sender_state = SENDER_BUSY
            lc_mutex_unlock(&h.mutex)
            if not h.released:
                lc_wake_clear(&h.wake)

    def pause_for_fork(self) -> bool:
        """Keep a fork-safe sender asleep until ``resume_after_fork``; return False if it is working."""
        cdef bint safe
        cdef lc_queue *h = _lock(self)
        safe = h.fork_paused = h.fork_safe
        lc_mutex_unlock(&h.mutex)
        return safe

    def resume_after_fork(self):
        """End ``pause_for_fork``, in the parent."""
        cdef lc_queue *h = _lock(self)
        h.fork_paused = False
        lc_cond_wake_all(&h.changed)
        lc_mutex_unlock(&h.mutex)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable on a wake-up; -1: there is none."""
        return -1 if self.h.released else lc_wake_fd(&self.h.wake)

    def set_flush_target(self, uint64_t seq):
        """Make the pump return as soon as every event up to `seq` has its outcome."""
        cdef lc_queue *h = _lock(self)
        if h.settled < seq and (h.flush_target == 0 or seq < h.flush_target):
            h.flush_target = seq
        lc_mutex_unlock(&h.mutex)

    def wait_settled(self, uint64_t seq, double seconds, *, bint stored=False) -> bool:
        """Sleep, without the GIL, until events up to `seq` have outcomes; return False when time is up.

        Args:
            stored: it is enough that the disk has them. Without a log, return at once whether they have
                outcomes.
        """
        cdef lc_queue *h = self.h
        cdef lc_spool *s = h.spool if stored else NULL
        cdef uint32_t *waiters = &h.waiters if s == NULL else &s.log_waiters
        cdef double end = lc_monotonic() + seconds
        cdef double left
        cdef bint done, waits
        while True:
            if h.generation != lc_forks:       # by a signal handler: another thread may have had the mutex
                return False
            left = end - lc_monotonic()
            with nogil:
                lc_mutex_lock(&h.mutex)
                done = h.settled >= seq or _is_logged(s, seq)
                waits = not done and (not stored or (s != NULL and s.logs))
                if waits and s != NULL:
                    s.log_asked = True       # without time, for whoever looks again
                    lc_cond_wake_all(&s.more)
                elif waits and left > 0 and (h.flush_target == 0 or seq < h.flush_target):
                    h.flush_target = seq
                    if h.sender_state == SENDER_LINGERING and not h.released:
                        h.sender_state = SENDER_BUSY
                        lc_wake_set(&h.wake)
                if waits and left > 0:
                    waiters[0] += 1
                    lc_cond_wait(&h.changed, &h.mutex, min(left, SIGNAL_CHECK_MS / 1000.0))
                    waiters[0] -= 1
                    done = h.settled >= seq or _is_logged(s, seq)
                lc_mutex_unlock(&h.mutex)
            if done or not waits or left <= 0:
                return done
            PyErr_CheckSignals()

    def count_changed(self, uint64_t sanitized=0, uint64_t moved=0):
        """Count the values that encoding replaced, and the fields that it renamed or left out."""
        if self.h.generation != lc_forks:
            return           # these are the parent's counters, and its mutex may be held for ever
        cdef lc_queue *h = _lock(self)
        h.sanitized += sanitized
        h.moved_fields += moved
        lc_mutex_unlock(&h.mutex)

    def count_ignored(self):
        """Count records that the sender itself caused and that are never shipped."""
        if self.h.generation != lc_forks:
            return
        cdef lc_queue *h = _lock(self)
        h.ignored += 1
        lc_mutex_unlock(&h.mutex)

    def count_filtered(self, int why):
        """Count an event that a filter held back, by its place in ``FILTERS``; it gets no sequence."""
        if not 0 <= why < <int> FILTER_COUNT:
            raise ValueError(f"why: must be from 0 to {FILTER_COUNT - 1}")
        if self.h.generation != lc_forks:
            return
        cdef lc_queue *h = _lock(self)
        h.filtered[why] += 1
        lc_mutex_unlock(&h.mutex)

    def counters(self) -> dict[str, Any]:
        """Return a consistent snapshot of every counter; see ``delivery.stats.Stats``."""
        cdef lc_queue now
        cdef lc_queue *h = _lock(self)
        memcpy(&now, h, sizeof(lc_queue))
        lc_mutex_unlock(&h.mutex)
        return {
            "sent": now.next_seq - 1,
            "queued": now.queued_events + now.held_events - now.granted_events - now.inflight,
            "queued_bytes": now.queued_bytes + now.held_bytes - now.granted_bytes,
            "inflight": now.inflight,
            "acked": now.acked,
            "handed": now.handed,
            "stored": now.stored,
            "failed": {REASONS[i]: now.failed[i] for i in range(<int> R_COUNT) if now.failed[i]},
            "dropped": {REASONS[i]: now.dropped[i] for i in range(<int> R_COUNT) if now.dropped[i]},
            "resent": now.resent,
            "sanitized": now.sanitized,
            "moved": now.moved_fields,
            "ignored": now.ignored,
            "filtered": {FILTERS[i]: now.filtered[i] for i in range(<int> FILTER_COUNT) if now.filtered[i]},
            "settled": now.settled,
        }
