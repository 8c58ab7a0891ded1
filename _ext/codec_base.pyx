"""The base class of the codecs."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport *
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from logclient._ext.codec cimport lc_batch


cdef void release_codec(object capsule) noexcept:
    Py_DECREF(<object> PyCapsule_GetContext(capsule))


cdef class CodecBase:
    """The compiled half of a core: C functions for pumps, and methods that call them from Python.

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

    def credit(self, double now) -> tuple[int, int]:
        """Return how many events, and how many bytes of them, may be encoded now."""
        cdef uint32_t events
        cdef uint64_t size
        self.codec.credit(self.codec.self, now, &events, &size)
        return events, size

    def encode(self, batch: object, uint32_t events, double now) -> int:
        """Encode pending events of a batch into `buffers`; return how many, or a negative ``Stop``."""
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef int n
        with nogil:
            n = self.codec.encode(self.codec.self, b, events, now, &self.wire, &self.out)
        return n

    def buffers(self) -> list[bytes]:
        """Return the bytes encoded since the last `sent`."""
        if self.wire.size == 0:
            return []
        return [PyBytes_FromStringAndSize(<const char *> self.wire.data, <Py_ssize_t> self.wire.size)]

    def sent(self, uint64_t rest=0):
        """Forget the bytes in `buffers`: the transport has taken all but the last `rest`, which it keeps."""
        cdef lc_handing *h = self.handing
        self.wire.size = 0
        if h != NULL and rest <= h.written - h.taken:
            self.codec.sent(self.codec.self, h.written - h.taken - rest, &self.out)

    def receive(self, const uint8_t[::1] data: ReadableBuffer, double now) -> int:
        """Take bytes or a message from the peer; return 0, or a negative ``Stop``."""
        cdef int stop
        with nogil:
            stop = self.codec.receive(self.codec.self, &data[0], data.shape[0], now, &self.out)
        return stop

    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """Return (first, last, status, reason) of each range since the last call, signs of life, progress."""
        cdef lc_outcomes *out = &self.out
        cdef uint32_t i
        ranges = [(out.items[i].first, out.items[i].last, <int> out.items[i].status,
                   <int> out.items[i].reason) for i in range(out.n)]
        result = ranges, out.alive, out.progress
        out.n = out.alive = out.progress = 0
        return result

    def moved(self, double now):
        """Note that the peer's TCP has acknowledged more bytes of this connection."""
        self.codec.moved[0] = now

    def deadline(self) -> float:
        """Return when the codec must be called even if nothing arrives."""
        return self.codec.deadline(self.codec.self)
