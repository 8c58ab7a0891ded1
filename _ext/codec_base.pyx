# The base class of the codecs, and the buffers of encoded bytes.

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.pycapsule cimport (
    PyCapsule_Destructor,
    PyCapsule_GetContext,
    PyCapsule_GetPointer,
    PyCapsule_New,
    PyCapsule_SetContext,
    PyCapsule_SetDestructor,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from logclient._ext.codec cimport lc_batch

cdef extern from *:
    """
    static char lc_format_bytes[] = "B";
    """
    char *lc_format_bytes


@cython.final
cdef class Outbox:
    """Encoded bytes that wait to be sent, as a read-only buffer.

    Nothing is appended while a view of them exists: the codec begins another outbox.
    """

    def __cinit__(self):
        memset(&self.wire, 0, sizeof(lc_wire))

    def __dealloc__(self):
        free(self.wire.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("read-only")
        view.buf = self.wire.data
        view.len = self.wire.size
        view.itemsize = 1
        view.format = lc_format_bytes if flags & PyBUF_FORMAT else NULL
        view.ndim = 1
        view.shape = &view.len if flags & PyBUF_ND else NULL
        view.strides = &view.itemsize if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.readonly = 1
        view.internal = NULL
        view.obj = self
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1


cdef void release_codec(object capsule) noexcept:
    Py_DECREF(<object> PyCapsule_GetContext(capsule))


cdef class OutcomeList:
    """The outcomes and signs of life that were received; base class of the objects that track events in
    flight."""

    def __cinit__(self):
        memset(&self.out, 0, sizeof(lc_outcomes))

    def __dealloc__(self):
        free(self.out.items)

    def outcomes(self):
        """Return the outcomes and signs of life since the last call.

        Returns:
            Ranges of sequences as (first, last, status, reason), the number of signs of life from the peer,
            and the number of acknowledgements of progress.
        """
        cdef lc_outcomes *out = &self.out
        cdef uint32_t i
        ranges = [(out.items[i].first, out.items[i].last, <int> out.items[i].status,
                   <int> out.items[i].reason) for i in range(out.n)]
        result = ranges, out.alive, out.progress
        out.n = out.alive = out.progress = 0
        return result


cdef class CodecBase(OutcomeList):
    """The compiled half of a core: C functions for pumps, and methods that call them from Python."""

    def __cinit__(self):
        memset(&self.codec, 0, sizeof(lc_codec))
        self.box = Outbox()
        self.full = []

    @property
    def capsule(self):
        """An ``lc_codec *`` in a capsule named "logclient.codec", which keeps this object alive."""
        self.ensure_initialized()
        capsule = PyCapsule_New(&self.codec, b"logclient.codec", NULL)
        Py_INCREF(self)
        PyCapsule_SetContext(capsule, <void *> self)
        PyCapsule_SetDestructor(capsule, <PyCapsule_Destructor> release_codec)
        return capsule

    cdef int ensure_initialized(self) except -1:
        if self.codec.self == NULL:
            raise TypeError("__init__ has not run")
        return 0

    def credit(self, double now):
        """Return how many events, and how many bytes of them, may be encoded now.

        Args:
            now: seconds of the monotonic clock, as everywhere here.
        """
        cdef uint32_t events
        cdef uint64_t size
        self.ensure_initialized()
        self.codec.credit(self.codec.self, now, &events, &size)
        return events, size

    def encode(self, batch, uint32_t events, double now):
        """Encode pending events of a batch into `buffers`.

        Args:
            batch: a capsule of an ``lc_batch *``.
            events: at most this many.
            now: seconds of the monotonic clock.

        Returns:
            How many events were encoded, or a negative ``Stop``.
        """
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef int n
        if self.box.views:
            self.full.append(self.box)
            self.box = Outbox()
        self.ensure_initialized()
        with nogil:
            n = self.codec.encode(self.codec.self, b, events, now, &self.box.wire, &self.out)
        return n

    def buffers(self):
        """Return views of the bytes encoded since the last `sent`."""
        boxes = self.full if self.box.wire.size == 0 else [*self.full, self.box]
        return [memoryview(box) for box in boxes]

    def sent(self):
        """Forget the bytes in `buffers`: the transport has taken them."""
        self.full.clear()
        if self.box.views:
            self.box = Outbox()
        self.box.wire.size = 0

    def receive(self, data, double now):
        """Take bytes or a message from the peer.

        Returns:
            0, or a negative ``Stop``.
        """
        cdef Py_buffer view
        cdef int stop
        self.ensure_initialized()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        with nogil:
            stop = self.codec.receive(self.codec.self, <const uint8_t *> view.buf, view.len, now, &self.out)
        PyBuffer_Release(&view)
        return stop

    def deadline(self):
        """Return when the codec must be called even if nothing arrives, in seconds of the monotonic clock."""
        self.ensure_initialized()
        return self.codec.deadline(self.codec.self)
