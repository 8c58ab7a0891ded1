# The codecs as Python sees them: a core's compiled half, bytes to be moved, columns of what was decoded.

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
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from logclient._ext.hot cimport lc_batch
from logclient._ext.ids cimport (
    C_HASH,
    C_HIGH,
    C_LENGTH,
    C_LOW,
    C_OFFSET,
    C_PRODUCER,
    C_SEQUENCE,
    C_STATUS,
    C_UNIT,
)

cdef extern from *:
    """
    static char lc_format_bytes[] = "B";
    """
    char *lc_format_bytes


# Bytes that wait to be moved. A view of them keeps them; a new one is begun when a view is held.
@cython.final
cdef class Outbox:
    """Bytes to be moved; see the stub."""

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


cdef void release_hot(object capsule) noexcept:
    Py_DECREF(<object> PyCapsule_GetContext(capsule))


cdef class Writer:
    """A core's compiled half, driven from Python through the same functions; see the stub."""

    def __cinit__(self):
        memset(&self.hot, 0, sizeof(lc_hot))
        memset(&self.out, 0, sizeof(lc_outcomes))
        self.box = Outbox()
        self.full = []

    def __dealloc__(self):
        free(self.out.items)

    @property
    def capsule(self):
        self.made()
        capsule = PyCapsule_New(&self.hot, b"logclient.hot", NULL)
        Py_INCREF(self)
        PyCapsule_SetContext(capsule, <void *> self)
        PyCapsule_SetDestructor(capsule, <PyCapsule_Destructor> release_hot)
        return capsule

    cdef int made(self) except -1:
        if self.hot.self == NULL:
            raise TypeError("not made")
        return 0

    def credit(self, double now):
        cdef uint32_t events
        cdef uint64_t size
        self.made()
        self.hot.credit(self.hot.self, now, &events, &size)
        return events, size

    def encode(self, batch, uint32_t events, double now):
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef int n
        if self.box.views:
            self.full.append(self.box)
            self.box = Outbox()
        self.made()
        with nogil:
            n = self.hot.encode(self.hot.self, b, events, now, &self.box.wire, &self.out)
        return n

    def buffers(self):
        boxes = self.full if self.box.wire.size == 0 else [*self.full, self.box]
        return [memoryview(box) for box in boxes]

    def sent(self):
        self.full.clear()
        if self.box.views:
            self.box = Outbox()
        self.box.wire.size = 0

    def receive(self, data, double now):
        cdef Py_buffer view
        cdef int stop
        self.made()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        with nogil:
            stop = self.hot.receive(self.hot.self, <const uint8_t *> view.buf, view.len, now, &self.out)
        PyBuffer_Release(&view)
        return stop

    def deadline(self):
        self.made()
        return self.hot.deadline(self.hot.self)

    def outcomes(self):
        cdef lc_outcomes *out = &self.out
        cdef uint32_t i
        ranges = [(out.items[i].first, out.items[i].last, <int> out.items[i].status,
                   <int> out.items[i].reason)
                  for i in range(out.n)]
        result = ranges, out.alive, out.progress
        out.n = out.alive = out.progress = 0
        return result


@cython.final
cdef class Column:
    """One column of a `Decoded`; see the stub."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.n

    @property
    def format(self):
        return (<bytes> self.code).decode()

    def __getitem__(self, Py_ssize_t index, /):
        return memoryview(self)[index]

    def tolist(self):
        return memoryview(self).tolist()

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("read-only")
        if self.item == 0:
            raise BufferError("made by a decoder")
        view.buf = self.data if self.data != NULL else <void *> self.code
        view.len = self.n * self.item
        view.itemsize = self.item
        view.format = self.code if flags & PyBUF_FORMAT else NULL
        view.ndim = 1
        view.shape = &self.n if flags & PyBUF_ND else NULL
        view.strides = &self.item if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.readonly = 1
        view.internal = NULL
        view.obj = self


cdef Column column(void **data, size_t n, size_t item, char code):
    cdef Column c = Column.__new__(Column)
    c.data = data[0]
    data[0] = NULL
    c.n = n
    c.item = item
    c.code[0] = code
    c.code[1] = 0
    return c


cdef class Events:
    """The columns that every decoder gives; see the stub."""

    def __len__(self):
        return self.n

    cdef int fill(self, lc_rows *r) except -1:
        # takes the memory of the columns
        cdef uint64_t *hashes
        cdef size_t i
        self.n = r.n
        self.status = column(&r.at[C_STATUS], r.n, 1, c'B')
        self.producer = column(&r.at[C_PRODUCER], r.n, 4, c'i')
        self.prefix_high = column(&r.at[C_HIGH], r.n, 8, c'Q')
        self.prefix_low = column(&r.at[C_LOW], r.n, 2, c'H')
        self.sequence = column(&r.at[C_SEQUENCE], r.n, 8, c'q')
        self.hash = column(&r.at[C_HASH], r.n, 8, c'Q')
        self.unit = column(&r.at[C_UNIT], r.n, 4, c'i')
        self.offset = column(&r.at[C_OFFSET], r.n, 8, c'q')
        self.length = column(&r.at[C_LENGTH], r.n, 4, c'i')
        # zeros that nobody looks at cost nothing: the pages come when they are touched
        hashes = <uint64_t *> calloc(r.n + 1, 2 * sizeof(uint64_t))
        if hashes == NULL:
            raise MemoryError()
        for i in range(r.foreigners):
            hashes[2 * r.foreign[3 * i]] = r.foreign[3 * i + 1]
            hashes[2 * r.foreign[3 * i] + 1] = r.foreign[3 * i + 2]
        self.id_hash = column(<void **> &hashes, 2 * r.n, 8, c'Q')
        return 0


# A simple buffer, given back when this goes. Simple: numpy, array, mmap and pyarrow disagree on the names of
# items.
@cython.final
cdef class Lent:
    """A buffer of bytes, whatever its type."""

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.b, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.b)


# How many units these columns tell of; the third may be left out.
cdef Py_ssize_t units_of(Lent offsets, Lent lengths, Lent more) except -1:
    cdef Py_ssize_t size = offsets.b.len
    if size % 8 or lengths.b.len != size or more is not None and more.b.len != size:
        raise ValueError(f"offsets, lengths and the like must be int64, equally many: {size}, {lengths.b.len}"
                         f"{'' if more is None else f', {more.b.len}'} bytes")
    return size // 8
