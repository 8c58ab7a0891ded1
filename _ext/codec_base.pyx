"""The base class of the codecs."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport *
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from logclient._ext.codec cimport lc_batch, lc_begin_use, lc_end_use


cdef void release_codec(object capsule) noexcept:
    Py_DECREF(<object> PyCapsule_GetContext(capsule))


cdef class CodecBase:
    """The functions of a codec, for pumps in `capsule`, and as methods for Python.

    A method has the name and the meaning of the function that it calls: ``_ext/codec.pxd`` describes them.
    What these add is kept here: bytes until `take_bytes`, outcomes until `outcomes`. ``logclient.codec``
    drives a whole connection.

    `now` is the time in seconds of the monotonic clock, in all codecs.
    """

    compressor = "none"
    """The compressor: ``none``, ``isal 1``, ``zlib 3``; after ``python``, one with the GIL."""
    error = None
    """The peer's violation of the protocol, in words."""
    error: str | None

    def __cinit__(self, *_options: object, **_more: object):
        if type(self) is CodecBase:
            raise TypeError("a codec without a protocol")

    def __dealloc__(self):
        free(self.out.items)
        free(self.wire.data)

    @property
    def capsule(self) -> object:
        """An ``lc_codec *`` in a capsule named "logclient.codec", which keeps this object alive."""
        capsule = PyCapsule_New(&self.codec, b"logclient.codec", NULL)
        Py_INCREF(self)
        PyCapsule_SetContext(capsule, <void *> self)
        PyCapsule_SetDestructor(capsule, <PyCapsule_Destructor> release_codec)
        return capsule

    cdef int begin_use(self) except -1:
        if not lc_begin_use(&self.busy):
            raise RuntimeError("another thread uses this codec")
        return 0

    cdef int end_use(self, int done=0) except -1:
        lc_end_use(&self.busy)
        if done < 0:
            raise MemoryError()
        return done

    def credit(self, double now) -> tuple[int, int]:
        """Return how many events, and how many bytes of them, may be encoded now."""
        cdef uint32_t events = 0
        cdef uint64_t size = 0
        self.begin_use()
        self.codec.credit(self.codec.self, now, &events, &size)
        lc_end_use(&self.busy)
        return events, size

    def encode(self, batch: object, uint32_t events, double now) -> int:
        """Encode pending events of a batch, given as its capsule; return how many, or a negative ``Stop``."""
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef int n
        self.begin_use()
        with nogil:
            n = self.codec.encode(self.codec.self, b, events, now, &self.wire, &self.out)
        lc_end_use(&self.busy)
        return n

    def answers(self) -> int:
        """Add the messages that wait and are not events; return 0, 1 for events, or a negative ``Stop``."""
        self.begin_use()
        cdef int waits = 0 if self.codec.answers == NULL else self.codec.answers(self.codec.self, &self.wire)
        lc_end_use(&self.busy)
        return waits

    def take_bytes(self) -> bytes:
        """Return the bytes added since the last call."""
        self.begin_use()
        try:
            return PyBytes_FromStringAndSize(<const char *> self.wire.data, <Py_ssize_t> self.wire.size)
        finally:
            self.wire.size = 0
            lc_end_use(&self.busy)

    def sent(self, size_t size):
        """Note that the transport has taken so many more bytes."""
        self.begin_use()
        if self.codec.sent != NULL:
            self.codec.sent(self.codec.self, size, &self.out)
        lc_end_use(&self.busy)

    def receive(self, const uint8_t[::1] data: ReadableBuffer, double now) -> int:
        """Take bytes or a message from the peer; return 0, or a negative ``Stop``."""
        cdef int stop
        self.begin_use()
        with nogil:
            stop = self.codec.receive(self.codec.self, &data[0], data.shape[0], now, &self.out)
        lc_end_use(&self.busy)
        return stop

    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """Return (first, last, status, reason) of each range since the last call, progress, events."""
        cdef lc_outcomes *out = &self.out
        cdef uint32_t i
        self.begin_use()
        try:
            ranges = [(out.items[i].first, out.items[i].last, <int> out.items[i].status,
                       <int> out.items[i].reason) for i in range(out.n)]
            result = ranges, out.progress, out.events
            out.n = out.progress = out.events = 0
            return result
        finally:
            lc_end_use(&self.busy)

    def deadline(self) -> float:
        """Return the second at which `timeout` is due; 0: none."""
        return self.codec.deadline(self.codec.self)

    def timeout(self, double now) -> int:
        """Act on the deadline, which is over; return 0, 1 for a silence, or a negative ``Stop``."""
        self.begin_use()
        cdef int done = 1 if self.codec.timeout == NULL else self.codec.timeout(self.codec.self, now)
        lc_end_use(&self.busy)
        return done

    def ready(self, double now) -> float:
        """Return the second at which credit comes back by itself; 0: now."""
        return 0 if self.codec.ready == NULL else self.codec.ready(self.codec.self, now)

    def moved(self, double now):
        """Note that the peer's TCP has acknowledged more bytes of this connection."""
        if self.codec.moved != NULL:
            self.codec.moved[0] = now

    def sample(self, double now, double wall):
        """Take the wall clock that belongs to `now`, in seconds since 1970."""
        if self.codec.sample != NULL:
            self.codec.sample(self.codec.self, now, wall)
