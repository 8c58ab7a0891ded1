cdef extern from "pump/path.h" nogil:
    ctypedef struct lc_path:
        int waiting, owes, gap
        uint64_t acked, received
        double ack_age
        uint32_t segment
    int lc_look_at_path(const lc_file *f, lc_path *p)
    void lc_discard(const lc_file *f)

cdef enum:
    NO_END = -2              # of `_check_end` and `_sleep_until`: the connection goes on
    AGAIN = -3               # there may be something to send: look again at once
    ALL = -1                 # of `_send`: as many batches as the credit allows
    MORE = 2                 # of `_send`: it has sent so many batches, and the link may take another
    LINK_FDS = 2             # descriptors that a link waits for, at most
    PUMP_FDS = 3             # and a pump
    MAX_SENDS_PER_TURN = 64  # windows sent between two checks of acknowledgements, stop and clock
    GATHER_LEAST = 64        # events in flight from which on answers are gathered
    LOOK_S = 1               # seconds between two looks at what the peer's TCP has acknowledged
    GATHER_SHARE = 4         # they are not when more than a fourth of those is settled meanwhile
    UNREAD_S = 1             # seconds to read what has arrived while this process stood still


cdef object find_functions(void *library, names, void **to):
    cdef int i
    for i, name in enumerate(names):
        to[i] = dlsym(library, name)
        if to[i] == NULL:
            return name
    return None


cdef class CompiledPump:
    """Drives the codec of one core over one connection at a time; a subclass moves the bytes.

    Args:
        in_flight: the batches; new ones come from its queue.
        core: a ``delivery.contract.Core``; it is kept alive.
        batch_events: of the largest batch that is taken from the queue at once.
        batch_bytes: of it.
        linger: seconds between two looks at the queue while events flow.
        progress_timeout: seconds without an acknowledgement that settles something; then it is stalled.
        report_every: seconds between two reports to the engine.
    """

    failure: OSError | None
    fatal: Any

    cdef int _use_link(self, link) except -1:
        self.file.fd, self.file.device, self.file.inode = link.file
        return 0

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        return LINK_BROKEN

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        return LINK_BROKEN

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        # Set for which events of which descriptors to wait, `PUMP_FDS` at most, and `limit` to when to look
        # again at the latest. Return whether there is something to read already.
        return False

    cdef bint _is_readable(self, const pollfd *fds) noexcept nogil:
        # Return whether a wait has shown that there may be something to read.
        return fds[0].revents or fds[1].revents

    cdef object _find_failure(self):
        # Return the exception behind the end `error`; None: there is only `error`.
        return None

    cdef ssize_t _failed(self, int error) noexcept nogil:
        # Return the meaning of a failed call: 0 for not now, or LINK_BROKEN.
        self.error = error
        return 0 if error == EAGAIN or error == EWOULDBLOCK else LINK_BROKEN

    def __cinit__(self, InflightBatches in_flight not None, core: Any, *, uint32_t batch_events=2048,
                  uint64_t batch_bytes=1 << 20, double linger=0.005, double progress_timeout=300.0,
                  double report_every=0.1):
        self.in_flight = in_flight
        self.core = core
        self.codec = <lc_codec *> PyCapsule_GetPointer(core.codec.capsule, b"logclient.codec")
        self.batch_events = batch_events
        self.batch_bytes = batch_bytes
        self.linger = linger
        self.progress_timeout = progress_timeout
        self.report_every = report_every
        self.why = ""
        self.found = []
        self.inbox = <uint8_t *> malloc(RECEIVE)
        if self.inbox == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.wire.data)
        free(self.out.items)
        free(self.inbox)

    def connected(self):
        """Begin a new connection: forget partly sent bytes, and restart the deadlines."""
        self.wire.size = 0
        self.offset = 0
        self.waited_for_credit = self.drained = self.fast = False
        self.linger_end = self.patience = self.looked_at = 0
        self.acked = 0
        self.last_progress = lc_monotonic()
        self.found = []
        self.fatal = self.failure = None

    def tcp_state(self) -> tuple[int, int, float, bool, bool, int] | None:
        """Look at the TCP connection: see ``delivery.path.TcpState``; None: it is gone, or unknown."""
        cdef lc_path p
        if lc_look_at_path(&self.file, &p) < 0:
            return None
        return p.waiting, p.acked, p.ack_age, p.owes != 0, p.gap != 0, p.segment

    def discard(self):
        """Have the link's end reset its connection: what the kernel holds is sent again over the next."""
        lc_discard(&self.file)

    def drain_events(self) -> list[Any]:
        """Return what was received besides outcomes: replies, and unsolicited messages of the peer."""
        if self.has_events:
            self._take_events()
        found = self.found
        self.found = []
        return found

    cdef int _take_events(self) except -1:
        # Have the core read what the codec left to it. Return the end that this means, or -2.
        self.has_events = False
        events, self.fatal, closed, progress = self.core.take_events(self.in_flight)
        self.found += events
        if progress:
            self.progress += <uint64_t> progress
            self.last_progress = lc_monotonic()
        if self.fatal is not None:
            return END_PROTOCOL
        return END_CLOSED if closed else NO_END

    cdef int _finish(self, int end) except -1:
        # Have the core read what a run left to it. Return the end that follows.
        cdef int found
        if end == END_ERROR:
            self.failure = self._find_failure()      # a link that is closed cannot tell it any more
        if end == END_CLOSED:
            self.core.receive_eof()
        # A codec with messages of its own also has reports that are not worth a return.
        if self.has_events or end == END_CLOSED or end == END_PROTOCOL or self.codec.answers != NULL:
            found = self._take_events()
            if inflight_commit(&self.in_flight.f) and end == END_REPORT:
                end = END_TARGET
            if found != NO_END and end != END_MEMORY and end != END_SILENCE:
                end = found
        return end

    cdef bint _should_take(self, double now) noexcept nogil:
        # Return whether to take events from the queue. The reads race with callers and may be a moment old.
        cdef lc_inflight *m = self.in_flight.f.main
        cdef lc_queue *h = m.queue
        return not self.in_flight.f.takes_none and (
            self.waited_for_credit or now >= self.linger_end
            or h.queued_events + m.staged_events >= h.options.full_events
            or h.queued_bytes + m.staged_bytes >= h.options.full_bytes
            or m.expected <= h.flush_target)     # a caller waits for an event that no batch has taken

    cdef int _ask_credit(self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
        # Set how much may be encoded, and take the messages that are not events. Return 0, or STOP_MEMORY.
        cdef int waits = 0
        if self.codec.sample != NULL:
            self.codec.sample(self.codec.self, now, <double> lc_wall_us() * 1e-6)
        self.codec.credit(self.codec.self, now, events, size)
        if self.codec.answers != NULL:
            waits = self.codec.answers(self.codec.self, &self.wire)
            if waits > 0:
                self.has_events = True
        return min(waits, 0)

    cdef int _send(self, double now, uint64_t batches) noexcept nogil:
        # Fill the link, with so many batches at most. Return 0 when there is nothing more to do now, 1 when
        # the link is full, MORE, or a negative end.
        cdef lc_inflight *f = &self.in_flight.f
        cdef lc_batch *b
        cdef ssize_t n
        cdef int encoded = 0
        cdef uint32_t events = 0
        cdef uint64_t size = 0
        cdef uint64_t last = self.windows + batches
        cdef int _sends
        for _sends in range(MAX_SENDS_PER_TURN):
            # Where a write is expensive, another window goes into the same one.
            while self.offset < self.wire.size and (
                    encoded == 0 or self.wire.size >= self.coalesce or self.windows == last):
                n = self._write(self.wire.data + self.offset, self.wire.size - self.offset)
                if n > 0:
                    self.offset += <size_t> n
                    self.bytes_sent += <uint64_t> n
                    if self.codec.sent != NULL:
                        self.codec.sent(self.codec.self, <size_t> n, &self.out)
                        inflight_apply(f, &self.out)
                        self.last_progress = now
                elif n == 0:
                    return 1
                else:
                    return -(END_CLOSED if n == LINK_CLOSED else END_ERROR)
            if self.offset == self.wire.size:
                self.wire.size = self.offset = 0
            encoded = 0
            if self.windows == last:
                return MORE
            if self._ask_credit(now, &events, &size) < 0:
                return -END_MEMORY
            inflight_limit_credit(f, &events)
            if events == 0:
                self.waited_for_credit = True
                b = NULL
            else:
                b = inflight_pending(f)
                if b == NULL and self._should_take(now):
                    self.waited_for_credit = False
                    b = inflight_take(f, min(events, self.batch_events), min(size, self.batch_bytes))
            if b == NULL or b.pending == 0:
                if b == NULL and self.wire.size == 0:
                    return 0
                continue
            if inflight_lost_ledger(f):
                return -END_REPORT
            # Its descriptor changes between runs only, so a line has the hashes of this call.
            b.unhashed = f.main.ledger.fd < 0
            # A codec measures round trips, and encoding the windows before may have taken long.
            encoded = self.codec.encode(self.codec.self, b, events, lc_monotonic(), &self.wire, &self.out)
            self.out.n = 0       # inflight_encoded finds the same in the batch
            if f.inflight == 0:
                self.last_progress = now
            inflight_encoded(f, b)     # also before an end: encoded events are in flight, and are requeued
            if encoded < 0:
                return -(END_MEMORY if encoded == STOP_MEMORY else END_PROTOCOL)
            if inflight_write_ledger(f, b) < 0:
                return -END_MEMORY
            if encoded:
                self.windows += 1
                self.linger_end = now + self.linger
            elif self.out.events:
                self.out.events = 0      # it waits for the core
                self.has_events = True
                if self.wire.size == 0:
                    return 0
        return 0                 # the last window may not be sent yet: see `_sleep_until`

    cdef int _receive(self, double now) noexcept nogil:
        # Read the bytes that have arrived. Return 0, or a negative end.
        cdef ssize_t n
        cdef int end, _reads
        for _reads in range(MAX_READS_PER_TURN):
            n = self._read(self.inbox, RECEIVE)
            if n == 0:
                return 0
            if n < 0:
                return -(END_CLOSED if n == LINK_CLOSED else END_ERROR)
            end = self._feed(self.inbox, <size_t> n, now)
            if end < 0:
                return end
            if n < RECEIVE:
                break
        return 0

    cdef int _feed(self, const uint8_t *data, size_t size, double now) noexcept nogil:
        # Give received bytes to the codec. Return 0, or a negative end.
        cdef int stop = self.codec.receive(self.codec.self, data, size, now, &self.out)
        if self.out.progress:
            self.last_progress = now
            self.progress += self.out.progress
        if self.out.events:
            self.has_events = True
        self.out.progress = self.out.events = 0
        # Acknowledgements from before a violation of the protocol stay valid.
        inflight_apply(&self.in_flight.f, &self.out)
        if stop < 0:
            return -(END_MEMORY if stop == STOP_MEMORY else END_PROTOCOL)
        return 0

    cdef bint _gathers(self, const pollfd *fds, int timeout) noexcept nogil:
        # Return whether the peer's answers may gather during this sleep: each would be a wake-up of its own.
        # They may not if more than a window of events waits for a peer that is fast.
        return (self.gather_ms and self.drained and timeout > self.gather_ms
                and not (fds[0].events | fds[1].events) & POLLOUT
                and self.in_flight.f.inflight >= GATHER_LEAST
                and not (self._is_fast() and self.in_flight.f.queue.queued_events
                         + self.in_flight.f.main.staged_events > self.in_flight.f.queue.options.full_events))

    cdef bint _is_fast(self) noexcept nogil:
        # Return whether gathering would leave the peer with too little to do.
        cdef double now = lc_monotonic()
        cdef double turns = (now - self.counted_at) * 1000.0 / self.gather_ms
        if turns >= 1.0:
            self.fast = (<double> (self.progress - self.counted) * GATHER_SHARE
                         > turns * self.in_flight.f.inflight)
            self.counted_at = now
            self.counted = self.progress
        return self.fast

    cdef int _check_end(self, double now, int common) noexcept nogil:
        # Return the end if a run is over, AGAIN, or NO_END. `common` is the end for all pumps of the loop.
        cdef lc_inflight *f = &self.in_flight.f
        cdef double deadline
        cdef lc_path path
        cdef int end
        if f.draining and f.inflight == 0:
            return END_TARGET
        if common != NO_END and common != END_REPORT:
            return common
        if (common == END_REPORT or self.has_events
                or f.report.n and (f.prompt or now - self.last_report >= self.report_every)):
            self.last_report = now
            return END_REPORT
        deadline = self.codec.deadline(self.codec.self)
        if deadline > 0 and self.codec.moved != NULL and (
                now >= deadline or f.inflight and now - self.looked_at >= LOOK_S):
            self.looked_at = now
            if lc_look_at_path(&self.file, &path) == 0 and path.acked != self.acked:
                self.acked = path.acked
                self.codec.moved[0] = now
                deadline = self.codec.deadline(self.codec.self)
        if now < self.patience:
            return NO_END
        if deadline > 0 and now >= deadline:
            if self.codec.timeout == NULL:
                return END_SILENCE
            end = self.codec.timeout(self.codec.self, now)
            if end == 0:
                return AGAIN
            return END_SILENCE if end > 0 else END_MEMORY if end == STOP_MEMORY else END_PROTOCOL
        if f.inflight and now - self.last_progress >= self.progress_timeout:
            return END_STALLED
        return NO_END

    cdef int _sleep_until(self, double now, bint full, bint *takes, double *limit) noexcept nogil:
        # Decide how long to sleep, and whether a batch may be taken then. Return an end, AGAIN, or NO_END.
        cdef lc_inflight *f = &self.in_flight.f
        cdef double deadline = self.codec.deadline(self.codec.self)
        cdef uint32_t events = 0
        cdef uint64_t size = 0
        if f.report.n:
            limit[0] = min(limit[0], self.last_report + self.report_every)
        if deadline > 0:
            limit[0] = min(limit[0], max(deadline, self.patience))
        if f.inflight:
            limit[0] = min(limit[0], max(self.patience, self.last_progress + self.progress_timeout))
            if deadline > 0 and self.codec.moved != NULL and self.file.fd >= 0:
                limit[0] = min(limit[0], self.looked_at + LOOK_S)
        if not full:
            if self._ask_credit(now, &events, &size) < 0:
                return END_MEMORY
            if self.wire.size or self.has_events:
                return AGAIN
            if events == 0 and self.codec.ready != NULL:
                limit[0] = min(limit[0], self.codec.ready(self.codec.self, now))
            inflight_limit_credit(f, &events)
        takes[0] = not full and events != 0
        return NO_END
