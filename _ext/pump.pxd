# The compiled pump's C side, for the senders.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from logclient._ext.flight cimport Flight
from logclient._ext.hot cimport lc_hot, lc_outcomes, lc_wire


cdef extern from *:
    """
    #include <sys/types.h>
    """
    ctypedef long ssize_t


# What a sender's `_write` and `_read` return besides a number of bytes; 0 is: not now.
cdef enum:
    LINK_BROKEN = -1         # `error` says how
    LINK_CLOSED = -2         # by the peer

# What a sender's `_sleep` was ended by.
cdef enum:
    WOKEN_BY_PEER = 1        # something to read, room to write, or the connection is over
    WOKEN_BY_CALLER = 2      # the hand-off's wake


cdef class CompiledPump:
    cdef readonly Flight flight
    cdef object core
    cdef lc_hot *hot
    cdef lc_wire wire
    cdef size_t offset
    cdef lc_outcomes out
    cdef uint8_t *inbox
    cdef uint32_t batch_events
    cdef uint64_t batch_bytes
    cdef double nap
    cdef double no_progress
    cdef double nap_end
    cdef bint waited         # no more could be sent until the peer had answered: that ends a nap
    cdef double last_report
    cdef double last_progress
    cdef int stopping
    cdef int poked
    cdef bint heard_something
    cdef int ledger_fd
    cdef int ledger_errno
    cdef uint64_t ledger_bytes
    cdef int error           # the system's number behind an end `error`
    cdef readonly uint64_t windows
    cdef readonly uint64_t bytes_sent
    cdef readonly uint64_t progress

    # A sender's own. `_take` keeps what it needs of a link until the next call.
    cdef int _take(self, link) except -1
    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil
    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil
    cdef int _sleep(self, bint full, int timeout) noexcept nogil

    cdef void _write_ledger(self) noexcept nogil
    cdef bint _due(self, double now) noexcept nogil
    cdef int _send(self, double now) noexcept nogil
    cdef int _receive(self, double now) noexcept nogil
    cdef int _run(self, double until) noexcept nogil
