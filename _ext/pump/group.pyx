# The loop of the sender: it drives pumps over a connection each, in one thread, without the GIL.
#
# A sender that takes the GIL once for each window waits 5 to 10 ms each time while other Python threads are
# busy, and then cannot keep up. So the loop returns to Python only when there is something to report and the
# last report is 100 ms old, when the flush target is reached, when a connection is over, or at its deadline.
#
# Several pumps take from one queue, batch by batch: the next one goes where the fewest bytes are in flight,
# and among equals to the connection whose last batch is the oldest. A server that is slow gets less.

cdef enum:
    MOST = 64                # pumps
    STOPPED_S = 1            # seconds for which this process did not run although it could have

cdef struct lc_group_member:
    void *pump
    bint used                # it has a connection in this run
    bint busy                # it may send more in this turn
    bint takes               # it has credit for another batch
    bint full                # its link takes no more now
    bint unread              # there is something to read without a wait
    bint gathers             # the peer's answers may gather during this sleep
    int end
    uint64_t sent            # when it sent its last batch: a number that rises with every batch of the group


cdef class PumpGroup:
    """Pumps whose batches come from one queue, and the loop that drives them."""

    cdef readonly tuple pumps    # own what `members` refers to
    pumps: tuple[CompiledPump, ...]
    cdef lc_group_member members[MOST]
    cdef int n
    cdef int used                # how many have a connection in this run
    cdef uint64_t sent
    cdef int stopping
    cdef int poked
    cdef double expected         # when this loop was to run again

    def __cinit__(self):
        self.pumps = ()
        self.expected = float("inf")

    def add(self, CompiledPump pump not None):
        """Add a pump."""
        if self.n == MOST:
            raise ValueError(f"more than {MOST} pumps")
        self.pumps = (*self.pumps, pump)
        self.members[self.n].pump = <void *> pump
        self.n += 1

    def stop(self):
        """Make ``run`` return soon, and at once when called again, until ``resume``."""
        self.stopping = True

    def resume(self):
        """Undo ``stop``."""
        self.stopping = False

    def poke(self):
        """Make ``run`` return soon, once."""
        self.poked = True

    def run(self, links: Sequence[Any], double until, *, bint idle=False) -> list[str]:
        """Move bytes until the monotonic second `until`, or until there is something to report.

        Args:
            links: for each pump its connection, or None.
            until: when to return at the latest.
            idle: whether to return when there may be an event, too: it was planned without any.

        Returns:
            For each pump the reason; ``report`` for one without a connection.

            ============  ============================================================
            ``until``     the deadline
            ``report``    outcomes or replies are due, or ``poke`` was called
            ``target``    the events are settled that a caller waits for
            ``stopped``   ``stop`` was called
            ``closed``    the peer closed the connection, or `CloseWanted`
            ``error``     the system reports an error: see the pump's `failure` and `error`
            ``protocol``  the peer broke the protocol, or the core gave up: see the pump's `fatal`
            ``silence``   no byte from a peer that owes an answer
            ``stalled``   no progress
            ``memory``    out of memory
            ============  ============================================================
        """
        cdef CompiledPump pump
        cdef int i
        cdef list found = []
        if len(links) != self.n:
            raise ValueError("links: one for each pump")
        if self.n == 0:
            raise ValueError("a group without a pump")
        self.used = 0
        for i in range(self.n):
            pump = self.pumps[i]
            self.members[i].used = links[i] is not None
            self.members[i].end = NO_END
            if self.members[i].used:
                self.used += 1
                pump._use_link(links[i])
        with nogil:
            self._run(until, idle)
        for i in range(self.n):
            pump = self.pumps[i]
            end = self.members[i].end if self.members[i].end != NO_END else END_REPORT
            found.append(ENDS[pump._finish(end)] if self.members[i].used else "report")
        return found

    cdef void _send(self, double now) noexcept nogil:
        # Fill the links, one batch after the other.
        cdef lc_group_member *m
        cdef lc_group_member *best
        cdef uint64_t size, windows
        cdef uint64_t least = 0
        cdef int i, result, _sends
        for i in range(self.n):
            self.members[i].busy = self.members[i].used
            self.members[i].full = False
        for _sends in range(MAX_SENDS_PER_TURN * self.n):
            best = NULL
            for i in range(self.n):
                m = &self.members[i]
                if m.busy:
                    size = inflight_bytes(&(<CompiledPump> m.pump).in_flight.f)
                    if best == NULL or size < least or (size == least and m.sent < best.sent):
                        best = m
                        least = size
            if best == NULL:
                return
            windows = (<CompiledPump> best.pump).windows
            result = (<CompiledPump> best.pump)._send(now, 1 if self.used > 1 else <uint64_t> ALL)
            if (<CompiledPump> best.pump).windows != windows:
                self.sent += 1
                best.sent = self.sent
                self._set_linger((<CompiledPump> best.pump).linger_end)
            best.busy = result == MORE
            best.full = result == 1
            if result < 0:
                best.end = -result

    cdef void _set_linger(self, double end) noexcept nogil:
        # They look at the queue together, or the batches would be small.
        cdef int i
        for i in range(self.n):
            (<CompiledPump> self.members[i].pump).linger_end = end

    cdef bint _should_take(self, double now) noexcept nogil:
        cdef int i
        for i in range(self.n):
            if self.members[i].used and self.members[i].takes and (
                    (<CompiledPump> self.members[i].pump)._should_take(now)):
                return True
        return False

    cdef int _check(self, double now, double until, bint reached, double *limit) noexcept nogil:
        # Find the ends of this run, and decide how long to sleep. Return the number of ends.
        cdef lc_group_member *m
        cdef int i, end
        cdef int common = NO_END     # the end for all
        cdef int ends = 0
        if reached:
            common = END_TARGET
        elif self.stopping:
            common = END_STOPPED
        elif now >= until:
            common = END_UNTIL
        elif self.poked:
            self.poked = False
            common = END_REPORT
        for i in range(self.n):
            m = &self.members[i]
            if not m.used:
                continue
            if m.end == NO_END:
                m.takes = False
                end = (<CompiledPump> m.pump)._check_end(now, common)
                if end == NO_END:
                    end = (<CompiledPump> m.pump)._sleep_until(now, m.full, &m.takes, limit)
                if end == AGAIN:
                    limit[0] = now           # but read what has arrived
                else:
                    m.end = end
                m.takes = m.takes and not (<CompiledPump> m.pump).in_flight.f.takes_none
            ends += m.end != NO_END
        return max(ends, <int> (common != NO_END))

    cdef void _run(self, double until, bint idle) noexcept nogil:
        cdef double now, limit
        cdef int ends = 0
        cdef bint reached
        while ends == 0:
            now = lc_monotonic()
            self._notice_a_stop(now)
            self._send(now)
            reached = inflight_commit(&(<CompiledPump> self.members[0].pump).in_flight.f)
            limit = until
            ends = self._check(now, until, reached, &limit)
            if ends == 0 and not self._sleep(now, limit, idle):
                inflight_commit(&(<CompiledPump> self.members[0].pump).in_flight.f)
                return

    cdef void _notice_a_stop(self, double now) noexcept nogil:
        # If this process stood still, answers wait, perhaps: give the threads of links time to read them.
        cdef int i
        if now > self.expected + STOPPED_S:
            for i in range(self.n):
                (<CompiledPump> self.members[i].pump).patience = now + UNREAD_S
        self.expected = now

    cdef bint _sleep(self, double now, double limit, bint idle) noexcept nogil:
        # Sleep until there may be something to do, and read what has arrived. Return whether all connections
        # go on.
        cdef lc_inflight *f = &(<CompiledPump> self.members[0].pump).in_flight.f
        cdef lc_queue *h = f.queue
        cdef double lingers = (<CompiledPump> self.members[0].pump).linger_end
        cdef pollfd fds[PUMP_FDS * MOST + 1]
        cdef pollfd *wake = &fds[PUMP_FDS * self.n]
        cdef lc_group_member *m
        cdef int i, timeout
        cdef bint takes = False
        cdef bint sleep = True
        cdef bint found = False      # there may be an event
        for i in range(PUMP_FDS * self.n):
            fds[i].fd = -1                   # poll leaves it out
            fds[i].events = fds[i].revents = 0
        for i in range(self.n):
            m = &self.members[i]
            if m.used:
                m.unread = (<CompiledPump> m.pump)._interest(m.full, &fds[PUMP_FDS * i], &limit)
                sleep = sleep and not m.unread
                takes = takes or m.takes
        lc_mutex_lock(&h.mutex)
        if not takes:
            h.sender_state = SENDER_BUSY     # only the peers or the time can change anything
        elif (h.queued_events or f.main.staged_events) and self._should_take(now):
            sleep = False
            found = True
        elif now < lingers:
            found = True
            h.sender_state = SENDER_LINGERING
            limit = min(limit, lingers)
        else:
            h.sender_state = SENDER_IDLE
        h.fork_safe = True
        lc_mutex_unlock(&h.mutex)
        # Rounded up: waking a moment early would spin.
        timeout = <int> (min(limit - now, 1000.0) * 1000.0 + 0.999) if sleep and limit > now else 0
        for i in range(self.n):
            m = &self.members[i]
            m.gathers = m.used and (<CompiledPump> m.pump)._gathers(&fds[PUMP_FDS * i], timeout)
            if m.gathers:
                fds[PUMP_FDS * i].fd = fds[PUMP_FDS * i + 1].fd = -1
                timeout = (<CompiledPump> m.pump).gather_ms
        wake.fd = lc_wake_fd(&h.wake)
        if wake.fd < 0:
            timeout = min(timeout, LC_UNWOKEN_MS)
        wake.events = <short> POLLIN
        wake.revents = 0
        poll(fds, <unsigned long> (PUMP_FDS * self.n + 1), timeout)
        self.expected = now + timeout / 1000.0
        now = lc_monotonic()
        self._notice_a_stop(now)
        lc_mutex_lock(&h.mutex)
        lc_leave_fork_safe(h)
        h.sender_state = SENDER_BUSY
        if not wake.revents and now >= lingers:
            h.urgent_wake_used = False       # a full linger: an error may end the next one early
        lc_mutex_unlock(&h.mutex)
        if wake.revents:
            lc_wake_clear(&h.wake)
            self._set_linger(0)
        found = found or wake.revents != 0
        return self._receive(now, fds, wake.revents != 0) and not (found and idle)

    cdef bint _receive(self, double now, const pollfd *fds, bint woken) noexcept nogil:
        # Read the bytes that have arrived. Return whether all connections go on.
        cdef lc_group_member *m
        cdef bint goes_on = True
        cdef int i, end
        for i in range(self.n):
            m = &self.members[i]
            if not m.used or (m.gathers and woken):
                continue                     # it goes on gathering
            (<CompiledPump> m.pump).drained = False
            if m.gathers or not ((<CompiledPump> m.pump)._is_readable(&fds[PUMP_FDS * i]) or m.unread):
                continue
            end = (<CompiledPump> m.pump)._receive(now)
            if end < 0:
                m.end = -end
                goes_on = False
        return goes_on
