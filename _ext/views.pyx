# Memory of the codecs that Python may look at: bytes to be moved, columns of what was decoded.

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

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
