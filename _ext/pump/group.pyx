"""Drive several compiled pumps in one thread, over a connection each, without the GIL.

They take from one queue, batch by batch: the next one goes where the fewest bytes are in flight, and among
equals to the connection whose last batch is the oldest. A server that is slow has more in flight, so it gets
less.
"""

from libc.stdint cimport uint64_t

from logclient._ext.constants cimport END_REPORT
from logclient._ext.inflight cimport inflight_bytes, inflight_commit
from logclient._ext.queue cimport (
    SENDER_BUSY,
    SENDER_IDLE,
    SENDER_LINGERING,
    lc_leave_fork_safe,
    lc_monotonic,
    lc_mutex_lock,
    lc_mutex_unlock,
    lc_queue,
    lc_wake_clear,
    lc_wake_fd,
)
from logclient._ext.pump.base cimport AGAIN, MORE, NO_END, POLLIN, UNREAD, CompiledPump, poll, pollfd

from logclient._ext.constants import ENDS

cdef enum:
    MOST = 64                # pumps
    SENDS_PER_TURN = 64      # batches of each pump between two checks of acknowledgements, stop and clock

cdef struct lc_member:
    void *pump
    bint used                # it has a connection in this run
    bint busy                # it may send more in this turn
    bint takes               # it has credit for another batch
    int full                 # its link takes no more now
    int end
    uint64_t sent            # when it sent its last batch: a number that rises with every batch of the group


cdef class PumpGroup:
    """Pumps whose batches come from one queue; the members are those of ``CompiledPump``, for all of them."""

    cdef readonly tuple pumps    # own what `members` refers to
    cdef lc_member members[MOST]
    cdef int n
    cdef uint64_t sent
    cdef int stopping
    cdef int poked
    cdef int ledger_fd

    def __cinit__(self):
        self.pumps = ()
        self.ledger_fd = -1

    def add(self, CompiledPump pump not None):
        """Add a pump.

        Raises:
            ValueError: there are too many.
        """
        if self.n == MOST:
            raise ValueError(f"more than {MOST} pumps")
        pump.set_ledger(self.ledger_fd)
        self.pumps = (*self.pumps, pump)
        self.members[self.n].pump = <void *> pump
        self.members[self.n].sent = 0
        self.n += 1

    @property
    def windows(self):
        return sum([pump.windows for pump in self.pumps])

    @property
    def bytes_sent(self):
        return sum([pump.bytes_sent for pump in self.pumps])

    def stop(self):
        self.stopping = True

    def resume(self):
        self.stopping = False

    def poke(self):
        self.poked = True

    def drain_events(self):
        return [event for pump in self.pumps for event in pump.drain_events()]

    def set_ledger(self, int fd):
        self.ledger_fd = fd
        for pump in self.pumps:
            pump.set_ledger(fd)

    def take_ledger(self):
        found = [pump.take_ledger() for pump in self.pumps]
        return sum([size for size, _ in found]), next((error for _, error in found if error), 0)

    def run(self, links, double until):
        """Move bytes until the monotonic second `until`, or until there is something to report.

        Args:
            links: for each pump its connection, or None.
            until: when to return at the latest.

        Returns:
            For each pump the name of the end; see ``delivery.pump.Pump``. It is ``report`` for one without a
            connection.

        Raises:
            ValueError: there is no pump, or another number of links.
        """
        cdef CompiledPump pump
        cdef int i
        cdef list found = []
        if len(links) != self.n:
            raise ValueError("links: one for each pump")
        if self.n == 0:
            raise ValueError("a group without a pump")
        for i in range(self.n):
            pump = self.pumps[i]
            self.members[i].used = links[i] is not None
            self.members[i].end = NO_END
            if self.members[i].used:
                pump._use_link(links[i])
        with nogil:
            self._run(until)
        for i in range(self.n):
            pump = self.pumps[i]
            end = self.members[i].end if self.members[i].end != NO_END else END_REPORT
            found.append(ENDS[pump._finish(end)] if self.members[i].used else "report")
        return found

    cdef void _send(self, double now) noexcept nogil:
        # Fill the links, one batch after the other.
        cdef lc_member *m
        cdef lc_member *best
        cdef uint64_t size, windows
        cdef uint64_t least = 0
        cdef int i, result, _sends
        for i in range(self.n):
            self.members[i].busy = self.members[i].used
            self.members[i].full = 0
        for _sends in range(SENDS_PER_TURN * self.n):
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
            result = (<CompiledPump> best.pump)._send(now, 1)
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
        # Find the ends of this run, and decide how long to sleep. Return the number of ends, or AGAIN.
        cdef lc_member *m
        cdef int i, end
        cdef int ends = 0
        cdef bint again = False
        for i in range(self.n):
            m = &self.members[i]
            if not m.used:
                continue
            if m.end == NO_END:
                m.takes = False
                end = (<CompiledPump> m.pump)._look(now, until, reached)
                if end == NO_END:
                    end = (<CompiledPump> m.pump)._plan(now, m.full, &m.takes, limit)
                if end == AGAIN:
                    again = True
                else:
                    m.end = end
                m.takes = m.takes and not (<CompiledPump> m.pump).in_flight.f.takes_none
            ends += m.end != NO_END
        return AGAIN if again and not ends else ends

    cdef void _run(self, double until) noexcept nogil:
        cdef lc_queue *h = (<CompiledPump> self.members[0].pump).in_flight.f.queue
        cdef double now, limit, lingers
        cdef int i, ends
        cdef bint sleep, reached, woken, takes
        cdef pollfd fds[MOST + 1]
        cdef bint unread[MOST]
        while True:
            now = lc_monotonic()
            self._send(now)
            reached = inflight_commit(&(<CompiledPump> self.members[0].pump).in_flight.f)
            takes = False
            limit = until
            ends = self._check(now, until, reached, &limit)
            if ends > 0 or self.stopping or self.poked:
                self.poked = False
                return
            if ends == AGAIN:
                continue
            for i in range(self.n):
                takes = takes or (self.members[i].used and self.members[i].takes)
            lingers = (<CompiledPump> self.members[0].pump).linger_end
            sleep = True
            lc_mutex_lock(&h.mutex)
            if not takes:
                h.sender_state = SENDER_BUSY     # only the peers or the time can change anything
            elif (h.queued_events or self._staged()) and self._should_take(now):
                sleep = False
            elif now < lingers:
                h.sender_state = SENDER_LINGERING
                limit = min(limit, lingers)
            else:
                h.sender_state = SENDER_IDLE
            h.fork_safe = True
            lc_mutex_unlock(&h.mutex)
            for i in range(self.n):
                fds[i].fd = -1                   # poll leaves it out
                fds[i].events = fds[i].revents = 0
                unread[i] = False
                if self.members[i].used:
                    ends = (<CompiledPump> self.members[i].pump)._interest(self.members[i].full, &fds[i].fd)
                    fds[i].events = <short> (ends & ~UNREAD)
                    unread[i] = ends & UNREAD != 0
                    sleep = sleep and not unread[i]
            fds[self.n].fd = lc_wake_fd(&h.wake)
            fds[self.n].events = <short> POLLIN
            fds[self.n].revents = 0
            # Rounded up: waking a moment early would spin.
            poll(fds, <unsigned long> self.n + 1,
                 <int> (min(limit - now, 1000.0) * 1000.0 + 0.999) if sleep and limit > now else 0)
            woken = fds[self.n].revents != 0
            now = lc_monotonic()
            lc_mutex_lock(&h.mutex)
            lc_leave_fork_safe(h)
            h.sender_state = SENDER_BUSY
            if not woken and now >= lingers:
                h.urgent_wake_used = False   # a full linger: an error may end the next one early
            lc_mutex_unlock(&h.mutex)
            if woken:
                lc_wake_clear(&h.wake)
                self._set_linger(0)
            if not self._receive(now, fds, unread):
                inflight_commit(&(<CompiledPump> self.members[0].pump).in_flight.f)
                return

    cdef uint64_t _staged(self) noexcept nogil:
        return (<CompiledPump> self.members[0].pump).in_flight.f.main.staged_events

    cdef bint _receive(self, double now, pollfd *fds, bint *unread) noexcept nogil:
        # Read the bytes that have arrived. Return whether all connections go on.
        cdef bint goes_on = True
        cdef int i, end
        for i in range(self.n):
            if not fds[i].revents and not unread[i]:
                continue
            end = (<CompiledPump> self.members[i].pump)._receive(now)
            if end < 0:
                self.members[i].end = -end
                goes_on = False
        return goes_on
