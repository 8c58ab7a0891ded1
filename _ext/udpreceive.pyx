"""Receives datagrams outside Python: a thread without the GIL empties the socket into memory.

The kernel usually keeps a few hundred datagrams for a socket. A Python thread that waits for the GIL, or for
a disk, loses those beyond. Linux only (recvmmsg, eventfd).
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from logclient._ext.codec cimport append_bytes, lc_begin_use, lc_end_use, lc_wire
from logclient._ext.queue cimport *

cdef extern from "udpreceive/receive.h":
    enum: LC_AT_ONCE, LC_ROOM, LC_ADDRESS
    ctypedef struct lc_receive_call:
        uint8_t *room
        uint8_t (*from_ "from")[28]
        size_t size[64]
    int lc_receive(int fd, lc_receive_call *call) noexcept nogil
    void lc_await(int fd, int other) noexcept nogil
    void lc_notify(int fd) noexcept nogil


cdef enum:
    DATA = 0                     # datagrams one behind the other, and with an item for each:
    ENDS                         # int64
    TIMES                        # int64
    SOURCES                      # LC_ADDRESS bytes
    COLUMNS
    KEPT = 1 << 20               # bytes of memory that are kept for reuse
    OVERHEAD = 64                # bytes at most that a datagram takes besides its own


ctypedef struct lc_pile:
    lc_wire at[COLUMNS]


cdef inline size_t memory_of(const lc_pile *p) noexcept nogil:
    return p.at[DATA].size + p.at[ENDS].size // sizeof(int64_t) * OVERHEAD


cdef void free_pile(lc_pile *p) noexcept nogil:
    cdef int i
    for i in range(COLUMNS):
        free(p.at[i].data)
    memset(p, 0, sizeof(lc_pile))


# Append a datagram; return -1 when memory is out.
cdef int pile_add(lc_pile *p, const uint8_t *data, size_t size, const uint8_t *source,
                  int64_t now) noexcept nogil:
    cdef int64_t end = <int64_t> (p.at[DATA].size + size)
    if (append_bytes(&p.at[DATA], data, size) < 0
            or append_bytes(&p.at[TIMES], <const uint8_t *> &now, sizeof(now)) < 0
            or append_bytes(&p.at[SOURCES], source, LC_ADDRESS) < 0):
        return -1
    return append_bytes(&p.at[ENDS], <const uint8_t *> &end, sizeof(end))


@cython.final
cdef class Receiver:
    """Keeps the datagrams of a socket in memory until they are taken.

    Args:
        fd: a bound UDP socket; it stays the caller's, as do the next two.
        ready: an eventfd that is written to when there is something to take.
        wake: an eventfd for `stop`.
        capacity: bytes that may wait, 64 for each datagram besides its own; 4 MiB at least. Datagrams beyond
            it stay with the kernel. The caller of ``take`` may hold as many again.
    """

    cdef lc_mutex mutex
    cdef lc_cond taken
    cdef lc_pile pile            # being filled, under the mutex
    cdef lc_pile spare           # the consumer's
    cdef lc_receive_call *call
    cdef int fd, ready, wake
    cdef bint stopping, running, taking
    cdef size_t capacity

    def __cinit__(self, int fd, int ready, int wake, *, size_t capacity=16 << 20):
        lc_mutex_init(&self.mutex)
        lc_cond_init(&self.taken)
        if capacity < LC_AT_ONCE * (LC_ROOM + OVERHEAD):
            raise ValueError(f"capacity: at least {LC_AT_ONCE * (LC_ROOM + OVERHEAD)} bytes, not {capacity}")
        self.fd, self.ready, self.wake, self.capacity = fd, ready, wake, capacity
        self.call = <lc_receive_call *> calloc(1, sizeof(lc_receive_call))
        if self.call != NULL:
            self.call.room = <uint8_t *> calloc(LC_AT_ONCE, LC_ROOM)
        if self.call == NULL or self.call.room == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free_pile(&self.pile)
        free_pile(&self.spare)
        if self.call != NULL:
            free(self.call.room)
            free(self.call)

    cdef int keep(self, int n) noexcept nogil:
        cdef int64_t now = lc_wall_us()
        cdef int i, failed = 0
        lc_mutex_lock(&self.mutex)
        cdef bint first = self.pile.at[ENDS].size == 0
        for i in range(n):
            if pile_add(&self.pile, self.call.room + <size_t> i * LC_ROOM, self.call.size[i],
                        self.call.from_[i], now) < 0:
                failed = -1
                break
        lc_mutex_unlock(&self.mutex)
        if first:
            lc_notify(self.ready)
        return failed

    # Wait until there is room for the datagrams of one call.
    cdef void make_room(self) noexcept nogil:
        lc_mutex_lock(&self.mutex)
        while memory_of(&self.pile) + LC_AT_ONCE * (LC_ROOM + OVERHEAD) > self.capacity and not self.stopping:
            lc_cond_wait(&self.taken, &self.mutex, 1.0)
        lc_mutex_unlock(&self.mutex)

    def run(self):
        """Receive until ``stop``, and then the datagrams that have arrived. Call in a thread of its own."""
        cdef int n = 0
        if not lc_begin_use(&self.running):
            raise RuntimeError("another thread receives these datagrams")
        with nogil:
            while True:
                self.make_room()
                n = lc_receive(self.fd, self.call)
                if n > 0:
                    if self.keep(n) < 0:
                        n = -12          # ENOMEM
                        break
                    if self.stopping and memory_of(&self.pile) > self.capacity:
                        break
                elif n < 0 or self.stopping:
                    break
                else:
                    lc_await(self.fd, self.wake)
            lc_notify(self.ready)
        lc_end_use(&self.running)
        if n < 0:
            raise OSError(-n, "recvmmsg")

    def stop(self):
        """End ``run``, from any thread."""
        lc_mutex_lock(&self.mutex)
        self.stopping = True
        lc_cond_wake_all(&self.taken)
        lc_mutex_unlock(&self.mutex)
        lc_notify(self.wake)

    def take(self) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Return the datagrams received since the last call; None: none.

        Returns:
            The datagrams one behind the other. Columns with an item for each: where it ends (int64), when it
            arrived, in microseconds since 1970 (int64), and its source, the 28 bytes of a sockaddr.
        """
        if not lc_begin_use(&self.taking):
            raise RuntimeError("another thread takes these datagrams")
        try:
            return self._take()
        finally:
            lc_end_use(&self.taking)

    cdef _take(self):
        cdef lc_pile *p = &self.spare
        cdef int i
        with nogil:
            lc_mutex_lock(&self.mutex)
            self.pile, p[0] = p[0], self.pile
            lc_cond_wake_all(&self.taken)
            lc_mutex_unlock(&self.mutex)
        if p.at[ENDS].size == 0:
            return None
        found = tuple([PyBytes_FromStringAndSize(<const char *> p.at[i].data, <Py_ssize_t> p.at[i].size)
                       for i in range(COLUMNS)])
        for i in range(COLUMNS):
            p.at[i].size = 0
        if p.at[DATA].capacity > KEPT:
            free_pile(p)
        return found
