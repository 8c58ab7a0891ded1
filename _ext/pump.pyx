"""The compiled pump: detach, encode, write the ledger, send, receive, scan acks, all without the GIL.

It comes back to Python when there is something to say and the last report is 100 ms old, when a
waiter's target is reached, when the connection is over, or at its deadline. A sender that takes the
GIL once per window waits for busy Python threads 5 to 10 ms each time, and then loses the load.

How bytes are moved is left to the senders built on it (``tcpsend``, ``zmqsend``): three functions.

POSIX only; elsewhere ``delivery.pump.PythonPump`` does the same with the same verbs.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from logclient._ext.constants cimport (
    END_CLOSED,
    END_ERROR,
    END_MEMORY,
    END_PROTOCOL,
    END_REPORT,
    END_SILENCE,
    END_STALLED,
    END_STOPPED,
    END_TARGET,
    END_UNTIL,
    STOP_MEMORY,
)
from logclient._ext.flight cimport (
    Flight,
    flight_apply,
    flight_awaited,
    flight_bound,
    flight_commit,
    flight_encoded,
    flight_ledger,
    flight_pending,
    flight_take,
    lc_flight,
)
from logclient._ext.handoff cimport (
    SENDER_BUSY,
    SENDER_IDLE,
    SENDER_NAP,
    lc_handoff,
    lc_monotonic,
    lc_mutex_lock,
    lc_mutex_unlock,
    lc_rested,
    lc_wake_clear,
)
from logclient._ext.hot cimport lc_batch, wire_reserve

from logclient._ext.constants import ENDS


cdef extern from *:
    """
    #include <errno.h>
    #include <unistd.h>
    static inline int lc_errno(void) { return errno; }
    """
    ssize_t write(int fd, const void *data, size_t size) nogil
    int lc_errno() nogil
    int EINTR

cdef enum:
    RECEIVE = 65536
    REPORT_MS = 100          # between two reports to Python
    SPREE = 64               # windows sent between two looks at acks, stop and clock
    GULP = 16                # pieces received between two such looks


cdef class CompiledPump:
    """Drives one core's compiled half over one connection at a time; a sender says how bytes move.

    Parameters
    ----------
    flight
        The batches; its hand-off is where new ones come from.
    core
        Any object whose ``hot`` is a ``logclient.hot`` capsule; it is kept alive.
    batch_events, batch_bytes
        The largest batch detached at once.
    nap, no_progress
        Seconds: between two looks at a flowing queue; without an ack that moves something.
    """

    # -- what a sender says ------------------------------------------------------------------------

    cdef int _take(self, link) except -1:
        raise NotImplementedError

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        return LINK_BROKEN

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        return LINK_BROKEN

    cdef int _sleep(self, bint full, int timeout) noexcept nogil:
        return 0

    # -- the same for all --------------------------------------------------------------------------

    def __cinit__(self, Flight flight not None, core, *, uint32_t batch_events=2048,
                  uint64_t batch_bytes=1 << 20, double nap=0.005, double no_progress=300.0):
        self.flight = flight
        self.core = core
        self.hot = <lc_hot *> PyCapsule_GetPointer(core.hot, b"logclient.hot")
        self.batch_events = batch_events
        self.batch_bytes = batch_bytes
        self.nap = nap
        self.no_progress = no_progress
        self.ledger_fd = -1
        memset(&self.wire, 0, sizeof(lc_wire))
        memset(&self.out, 0, sizeof(lc_outcomes))
        self.inbox = <uint8_t *> malloc(RECEIVE)
        if self.inbox == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.wire.data)
        free(self.out.items)
        free(self.inbox)

    def connected(self):
        """A new connection: nothing half-sent, the deadlines start anew."""
        self.wire.size = 0
        self.offset = 0
        self.waited = False
        self.nap_end = 0
        self.last_progress = lc_monotonic()

    def stop(self):
        """Make ``run`` return soon (and at once when called again); ``resume`` undoes it."""
        self.stopping = True

    def resume(self):
        self.stopping = False

    def poke(self):
        """Make ``run`` return soon, once: there is a call to make."""
        self.poked = True

    def post(self):
        """Send what the core has to send of its own, in its turn."""
        cdef const uint8_t[::1] view
        cdef uint8_t *to
        for ready in self.core.data_to_send():
            for buffer in ready.buffers:
                view = buffer
                to = wire_reserve(&self.wire, <size_t> view.shape[0])
                if to == NULL:
                    raise MemoryError
                memcpy(to, &view[0], <size_t> view.shape[0])
                self.wire.size += <size_t> view.shape[0]
        self.core.sent(self.wire.size - self.offset)
        self.heard_something = True      # not every question has an answer that must come first

    def heard(self):
        """What came besides fates: answers to calls, and what the peer said of its own accord."""
        if not self.heard_something:
            return []
        self.heard_something = False
        return list(self.core.events_received())

    def set_ledger(self, int fd):
        """The descriptor that ``batch`` lines go to, or -1."""
        self.ledger_fd = fd
        self.ledger_errno = 0

    def take_ledger(self):
        """(bytes written since the last call, errno of the write that failed or 0)."""
        answer = (self.ledger_bytes, self.ledger_errno)
        self.ledger_bytes = 0
        return answer

    @property
    def errno(self):
        """The system's error number behind an end ``error``."""
        return self.error

    def run(self, link, double until):
        """Pump until the monotonic second `until` or an earlier end; the its name in ``ENDS``."""
        cdef int end
        self._take(link)
        with nogil:
            end = self._run(until)
        return ENDS[end]

    cdef void _write_ledger(self) noexcept nogil:
        cdef lc_wire *line = &self.flight.f.line
        cdef size_t done = 0
        cdef ssize_t n
        while done < line.size:
            n = write(self.ledger_fd, line.data + done, line.size - done)
            if n < 0:
                if lc_errno() == EINTR:
                    continue
                # Delivery goes on without the ledger; Python says so at the next report.
                self.ledger_errno = lc_errno()
                self.ledger_fd = -1
                return
            done += <size_t> n
            self.ledger_bytes += <uint64_t> n

    cdef bint _due(self, double now) noexcept nogil:
        # Is it time to look at the queue? The reads race with producers and may be a moment old.
        cdef lc_flight *f = &self.flight.f
        cdef lc_handoff *h = f.handoff
        return (self.waited or now >= self.nap_end or h.queued_events + f.staged_events >= h.full_events
                or h.queued_bytes + f.staged_bytes >= h.full_bytes
                or flight_awaited(f))

    # Fill the link: 0 = go on (nothing more to do now), 1 = the link is full, negative = an end.
    cdef int _send(self, double now) noexcept nogil:
        cdef lc_flight *f = &self.flight.f
        cdef lc_batch *b
        cdef ssize_t n
        cdef int encoded
        cdef uint32_t events = 0
        cdef uint64_t size = 0
        cdef int _spree
        for _spree in range(SPREE):
            while self.offset < self.wire.size:
                n = self._write(self.wire.data + self.offset, self.wire.size - self.offset)
                if n > 0:
                    self.offset += <size_t> n
                    self.bytes_sent += <uint64_t> n
                    if self.hot.sent != NULL:
                        self.hot.sent(self.hot.self, <size_t> n, &self.out)
                        flight_apply(f, &self.out)
                        self.last_progress = now
                elif n == 0:
                    return 1
                else:
                    return -(END_CLOSED if n == LINK_CLOSED else END_ERROR)
            self.wire.size = 0
            self.offset = 0
            self.hot.credit(self.hot.self, now, &events, &size)
            flight_bound(f, &events)
            if events == 0:
                self.waited = True
                return 0
            b = flight_pending(f)
            if b == NULL:
                if not self._due(now):
                    return 0
                self.waited = False
                b = flight_take(f, min(events, self.batch_events), min(size, self.batch_bytes))
                if b == NULL:
                    return 0
                if b.pending == 0:
                    continue
            encoded = self.hot.encode(self.hot.self, b, events, now, &self.wire, &self.out)
            self.out.n = 0       # what encode settled, flight_encoded finds in the batch
            if f.inflight == 0:
                self.last_progress = now
            flight_encoded(f, b)     # also before an end: what it took is in flight, and requeued
            if encoded < 0:
                return -(END_MEMORY if encoded == STOP_MEMORY else END_PROTOCOL)
            if self.ledger_fd < 0:
                b.listed = b.cursor if b.cursor > b.listed else b.listed
            else:
                f.line.size = 0
                if flight_ledger(f, b) < 0:
                    return -END_MEMORY
                self._write_ledger()
            if encoded:
                self.windows += 1
                self.nap_end = now + self.nap
        # The last window may not be on its way yet: come back when the socket takes it.
        return 1 if self.offset < self.wire.size else 0

    # Read what is there: 0, or a negative end.
    cdef int _receive(self, double now) noexcept nogil:
        cdef ssize_t n
        cdef int stop, _gulp
        for _gulp in range(GULP):
            n = self._read(self.inbox, RECEIVE)
            if n == 0:
                return 0
            if n < 0:
                return -(END_CLOSED if n == LINK_CLOSED else END_ERROR)
            stop = self.hot.receive(self.hot.self, self.inbox, <size_t> n, now, &self.out)
            if self.out.progress:
                self.last_progress = now
                self.progress += self.out.progress
            if self.out.heard:
                self.heard_something = True
            self.out.alive = self.out.progress = self.out.heard = 0
            # What was acknowledged before the peer broke the rules stays acknowledged.
            flight_apply(&self.flight.f, &self.out)
            if stop < 0:
                return -(END_MEMORY if stop == STOP_MEMORY else END_PROTOCOL)
            if n < RECEIVE:
                break
        return 0

    cdef int _run(self, double until) noexcept nogil:
        cdef lc_flight *f = &self.flight.f
        cdef lc_handoff *h = f.handoff
        cdef double now, limit, deadline
        cdef int full, end, timeout, woken
        cdef bint sleep, napping, reached
        cdef uint32_t events = 0
        cdef uint64_t size = 0
        while True:
            now = lc_monotonic()
            full = self._send(now)
            reached = flight_commit(f)
            if full < 0:
                return -full
            if reached or (f.hold and f.inflight == 0):
                return END_TARGET
            if self.stopping:
                return END_STOPPED
            if now >= until:
                return END_UNTIL
            if (self.poked or self.heard_something
                    or f.report.n and (f.prompt or now - self.last_report >= REPORT_MS / 1000.0)):
                self.poked = False
                self.last_report = now
                return END_REPORT
            deadline = self.hot.deadline(self.hot.self)
            if deadline > 0 and now >= deadline:
                return END_SILENCE
            if f.inflight and now - self.last_progress >= self.no_progress:
                return END_STALLED

            # How long to sleep, and who may wake us.
            limit = until
            if f.report.n:
                limit = min(limit, self.last_report + REPORT_MS / 1000.0)
            if deadline > 0:
                limit = min(limit, deadline)
            if f.inflight:
                limit = min(limit, self.last_progress + self.no_progress)
            sleep = True
            self.hot.credit(self.hot.self, now, &events, &size)
            if events == 0 and not full and self.hot.ready != NULL:
                limit = min(limit, self.hot.ready(self.hot.self, now))
            flight_bound(f, &events)
            lc_mutex_lock(&h.mutex)
            if full or events == 0:
                h.state = SENDER_BUSY        # only the peer can move us, or the time
            else:
                napping = now < self.nap_end
                if (h.queued_events or f.staged_events) and self._due(now):
                    sleep = False
                elif napping:
                    h.state = SENDER_NAP
                    limit = min(limit, self.nap_end)
                else:
                    h.state = SENDER_IDLE
            h.resting = True
            lc_mutex_unlock(&h.mutex)
            timeout = 0
            if sleep and limit > now:
                # Rounded up: waking a moment early would spin.
                timeout = <int> (min(limit - now, 1000.0) * 1000.0 + 0.999)
            woken = self._sleep(full, timeout)
            now = lc_monotonic()
            lc_mutex_lock(&h.mutex)
            lc_rested(h)
            h.state = SENDER_BUSY
            if not woken & WOKEN_BY_CALLER and now >= self.nap_end:
                h.urged = False          # a nap slept through: an ERROR may cut the next one short
            lc_mutex_unlock(&h.mutex)
            if woken & WOKEN_BY_CALLER:
                lc_wake_clear(&h.wake)
                self.nap_end = 0
            if woken & WOKEN_BY_PEER:
                end = self._receive(now)
                if end < 0:
                    flight_commit(f)
                    return -end
