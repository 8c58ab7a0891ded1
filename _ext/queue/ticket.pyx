# The place of a caller that waits for room. Included by queue.pyx.

@cython.final
@cython.no_gc_clear
cdef class Ticket:
    """The place in line of a caller that waits for room.

    While callers wait, a push without a ticket finds no room. Free room is granted in the order of arrival,
    to as many callers as it suffices for, and reserved until they push. So a large event waits no longer than
    the events before it, and no caller is woken for each event of the others.

    A ticket belongs to one thread, and is for a body of `size` bytes. Leave it if nothing is pushed; a
    collected ticket leaves by itself.
    """

    cdef EventQueue queue    # keeps `h` alive, which after a fork is the parent's
    cdef lc_queue *h
    cdef lc_ticket ticket

    def __cinit__(self, EventQueue queue not None, uint64_t size):
        self.queue = queue
        self.h = queue.h
        self.ticket.room = event_room(<uint32_t> min(size, <uint64_t> self.h.max_event_bytes))

    def __dealloc__(self):
        self.leave()

    cpdef void leave(self) noexcept:
        """Give up the place, or the room that was granted; do nothing if that is done, or after a push."""
        cdef lc_queue *h = self.h
        if h == NULL or self.ticket.state == TICKET_NONE or h.generation != lc_forks:
            return
        lc_mutex_lock(&h.mutex)
        _leave_line(h, &self.ticket)
        if lc_grant_room(h):
            lc_cond_wake_all(&h.changed)
        lc_unlock(h)

    cdef bint _try(self) noexcept nogil:
        # Get in line, and grant room if there is any; return whether to push now. Mutex held.
        cdef lc_queue *h = self.h
        cdef lc_ticket *ticket = &self.ticket
        cdef lc_ticket **at = &h.first_ticket
        if ticket.state == TICKET_NONE and not h.closed:
            ticket.state = TICKET_WAITS
            while at[0] != NULL:
                at = &at[0].behind
            at[0] = ticket
            ticket.behind = NULL
            if h.first_ticket != ticket:
                return False       # those before it are granted room when an eighth of it is free
        if h.shared != NULL and ticket.state == TICKET_WAITS:
            # The limit may be lower now: such an event fails as too large, and takes less.
            ticket.room = min(ticket.room, event_room(h.max_event_bytes))
        if ticket.state == TICKET_WAITS and lc_grant_room(h):
            lc_cond_wake_all(&h.changed)
        return ticket.state == TICKET_GRANTED or h.closed

    def is_ready(self) -> bool:
        """Return whether to push now: there is room, the queue is closed, or this is a forked child."""
        return self.wait(0)

    def wait(self, double seconds) -> bool:
        """Sleep, without the GIL, until `is_ready` or `seconds` are over; return the last `is_ready`."""
        cdef lc_queue *h = self.h
        cdef double end = lc_monotonic() + seconds
        cdef double left
        cdef bint ready
        while True:
            if h.generation != lc_forks:       # by a signal handler
                return True
            left = end - lc_monotonic()
            with nogil:
                lc_mutex_lock(&h.mutex)
                ready = self._try()
                if not ready and left > 0:
                    lc_cond_wait(&h.changed, &h.mutex, min(left, SIGNAL_CHECK_MS / 1000.0))
                    ready = self.ticket.state == TICKET_GRANTED or h.closed
                lc_unlock(h)
            if ready or left <= 0:
                return ready
            try:
                PyErr_CheckSignals()
            except BaseException:
                self.leave()
                raise
