from libc.stdint cimport uint8_t, uint32_t, uint64_t

from logclient._ext.inflight cimport InflightBatches
from logclient._ext.codec cimport lc_codec, lc_outcomes, lc_wire
from logclient._ext.descriptors cimport lc_file


# Results of `_write` and `_read` besides a number of bytes; 0 means: not now.
cdef enum:
    LINK_BROKEN = -1         # see `error`
    LINK_CLOSED = -2         # by the peer
    MESSAGE_HEAD = 4         # bytes of a message's or frame's length
    RECEIVE = 65536          # bytes of one receive
    MAX_READS_PER_TURN = 16  # receives between two checks of stop and clock

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *name, int flags)
    void *dlsym(void *library, const char *name)
    int RTLD_NOLOAD, RTLD_NOW

# Look functions up in a library, for the pointers from `to` on. Return the name of a missing one, or None.
cdef object find_functions(void *library, names, void **to)

cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout)
    int POLLIN, POLLOUT


cdef class CompiledPump:
    cdef readonly InflightBatches in_flight
    cdef object core
    cdef lc_codec *codec
    cdef lc_wire wire
    cdef size_t offset
    cdef lc_outcomes out
    cdef uint8_t *inbox
    cdef uint32_t batch_events
    cdef uint64_t batch_bytes
    cdef double linger
    cdef double progress_timeout
    cdef double report_every
    cdef size_t coalesce     # bytes of windows for one write, where each is expensive; 0: each is one
    cdef int gather_ms       # milliseconds for answers to gather; 0: none
    cdef double linger_end
    cdef bint waited_for_credit     # credit was used up since the last batch: then the sender does not linger
    cdef bint drained        # something was received, and nothing is left
    cdef bint fast           # the peer settles events too fast to gather its answers
    cdef double counted_at   # when that was found, and how much progress there was then
    cdef uint64_t counted
    cdef double last_report
    cdef readonly double last_progress   # monotonic seconds
    cdef double patience     # until then what has arrived is being read, so that no wait is over
    cdef lc_file file        # the link's socket, where it is known
    cdef double looked_at    # when the system was asked what the peer's TCP has acknowledged ...
    cdef uint64_t acked      # ... and what it was
    cdef bint has_events
    cdef list found          # events of the core that the engine has not taken
    cdef readonly int error  # errno behind the end `error`
    cdef readonly object failure
    cdef readonly object fatal
    cdef readonly uint64_t windows
    cdef readonly uint64_t bytes_sent
    cdef readonly uint64_t progress
    cdef public str why

    # Implemented by subclasses. `_use_link` keeps what is needed of a link until the next call.
    cdef int _use_link(self, link) except -1
    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil
    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil
    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil
    cdef bint _is_readable(self, const pollfd *fds) noexcept nogil
    cdef object _find_failure(self)

    cdef ssize_t _failed(self, int error) noexcept nogil
    cdef bint _should_take(self, double now) noexcept nogil
    cdef int _take_events(self) except -1
    cdef int _ask_credit(self, double now, uint32_t *events, uint64_t *size) noexcept nogil
    cdef int _send(self, double now, uint64_t batches) noexcept nogil
    cdef int _receive(self, double now) noexcept nogil
    cdef int _feed(self, const uint8_t *data, size_t size, double now) noexcept nogil
    cdef bint _gathers(self, const pollfd *fds, int timeout) noexcept nogil
    cdef bint _is_fast(self) noexcept nogil
    cdef int _check_end(self, double now, int common) noexcept nogil
    cdef int _sleep_until(self, double now, bint full, bint *takes, double *limit) noexcept nogil
    cdef int _finish(self, int end) except -1
