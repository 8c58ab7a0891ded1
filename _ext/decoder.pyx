# The part that the decoders of all protocols share: the loop over units, and columns of decoded rows.

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
from libc.stdint cimport int64_t, uint8_t, uint64_t
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
    FEW_NAMES,
    FORESEEN,
    checked_names,
    free_rows,
    lc_fetch,
    line_of_id,
    open_rows,
)


@cython.final
cdef class Column:
    """One column of `Events`: a read-only, C-contiguous buffer that owns its memory.

    ``numpy.frombuffer(column, dtype)`` makes no copy and keeps the column alive.
    """

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.n

    @property
    def format(self):
        """The struct code of its items."""
        return (<bytes> self.code).decode()

    def __getitem__(self, Py_ssize_t index, /):
        return memoryview(self)[index]

    def tolist(self):
        """Return the items as a list."""
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


# A column of n items of `item` bytes, which takes over the memory at data[0].
cdef Column make_column(void **data, size_t n, size_t item, char code):
    cdef Column c = Column.__new__(Column)
    c.data = data[0]
    data[0] = NULL
    c.n = n
    c.item = item
    c.code[0] = code
    c.code[1] = 0
    return c


cdef class Events:
    """Decoded units, in order: a row for each event, and a row for each fault.

    All decoders have these columns; a subclass adds those of its protocol.
    """

    def __len__(self):
        return self.n

    # Make the columns, which take over the memory of the rows.
    cdef int take_rows(self, lc_rows *r) except -1:
        cdef uint64_t *hashes
        cdef size_t i
        cdef int k
        columns = []
        for k in range(r.columns):
            columns.append(make_column(&r.at[k], r.n, r.item[k], r.code[k]))
        # Most rows have no hash of an id: the zeros of calloc cost nothing until they are touched.
        hashes = <uint64_t *> calloc(r.n + 1, 2 * sizeof(uint64_t))
        if hashes == NULL:
            raise MemoryError()
        for i in range(r.foreigners):
            hashes[2 * r.foreign[3 * i]] = r.foreign[3 * i + 1]
            hashes[2 * r.foreign[3 * i] + 1] = r.foreign[3 * i + 2]
        self.id_hash = make_column(<void **> &hashes, 2 * r.n, 8, c'Q')
        self.columns = tuple(columns)
        self.n = r.n
        return 0

    # Make the columns of what was kept, which take over its memory.
    cdef int take_bodies(self, lc_kept *k) except -1:
        self.bodies = make_column(<void **> &k.bodies.data, k.bodies.size, 1, c'B')
        self.own_ids = make_column(<void **> &k.own_ids.data, k.own_ids.size, 1, c'B')
        self.own_id_ends = make_column(<void **> &k.own_ends.data, k.own_ends.size // 8, 8, c'q')
        clear_kept(k)
        return 0

    @property
    def status(self):
        """uint8: index into the decoder's ``STATUS_NAMES``. All decoders share 0 (ok) to 3."""
        return self.columns[<int> C_STATUS]

    @property
    def producer(self):
        """int32: index into the decoder's producers; -1 when it is none of them, or none were given."""
        return self.columns[<int> C_PRODUCER]

    @property
    def prefix_high(self):
        """uint64: bytes 0..7 of the id, big-endian; 0 without an id."""
        return self.columns[<int> C_HIGH]

    @property
    def prefix_low(self):
        """uint16: bytes 8..9 of the id; 0 without an id."""
        return self.columns[<int> C_LOW]

    @property
    def sequence(self):
        """int64: the last 48 bits of the id; 0 without an id."""
        return self.columns[<int> C_SEQUENCE]

    @property
    def hash(self):
        """uint64: XXH64 of the body as carried, seed 42; 0 for a fault, and where none is asked for."""
        return self.columns[<int> C_HASH]

    @property
    def unit(self):
        """int32: index of the unit."""
        return self.columns[<int> C_UNIT]

    @property
    def offset(self):
        """int64: where the body, or the fault, begins in the unit as ``expand`` returns it."""
        return self.columns[<int> C_OFFSET]

    @property
    def length(self):
        """int32: bytes of the body."""
        return self.columns[<int> C_LENGTH]


# Bytes only: numpy, array, mmap and pyarrow disagree on the struct codes of items.
@cython.final
cdef class BorrowedBuffer:
    """A view of an object's bytes, whatever the type of its items; released with this object."""

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.b, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.b)


# Return the number of units that these columns describe. `more`, another column of 8-byte items, may be None.
cdef Py_ssize_t count_units(BorrowedBuffer offsets, BorrowedBuffer lengths, BorrowedBuffer more) except -1:
    cdef Py_ssize_t size = offsets.b.len
    if size % 8 or lengths.b.len != size or more is not None and more.b.len != size:
        raise ValueError(f"offsets, lengths and the like must be int64, equally many: {size}, {lengths.b.len}"
                         f"{'' if more is None else f', {more.b.len}'} bytes")
    return size // 8


# Forget what was kept.
cdef void clear_kept(lc_kept *k) noexcept nogil:
    free(k.bodies.data)
    free(k.own_ids.data)
    free(k.own_ends.data)
    memset(&k.bodies, 0, sizeof(lc_wire))
    memset(&k.own_ids, 0, sizeof(lc_wire))
    memset(&k.own_ends, 0, sizeof(lc_wire))


cdef class BatchDecoder:
    """The base class of decoders."""

    def __dealloc__(self):
        free(self.scratch.data)
        free_rows(&self.rows)
        clear_kept(&self.kept)

    def limit(self, Py_ssize_t rows, Py_ssize_t body_bytes=0, *, bint hashes=True):
        """Bound the result of each call of `decode`, and choose whether it has bodies and their hashes.

        A call ends behind the first unit that reaches a bound; ``Events.units`` tells how far it came.

        Args:
            rows: the bound on rows; 0: none.
            body_bytes: the bound on the bytes of bodies, which are then in ``Events.bodies``; 0: they are not
                kept.
            hashes: False: bodies are not hashed, and ``Events.hash`` is 0.

        Raises:
            ValueError: a bound is negative.
        """
        if rows < 0 or body_bytes < 0:
            raise ValueError(f"rows and body_bytes must not be negative: {rows}, {body_bytes}")
        self.kept.most_rows = rows
        self.kept.most_bytes = body_bytes
        self.kept.unhashed = not hashes

    cdef int ensure_initialized(self) except -1:
        if self.producers is None:
            raise TypeError("__init__ has not run")
        return 0

    cdef int ensure_uninitialized(self) except -1:
        if self.producers is not None:
            raise TypeError("__init__ has run already")
        return 0

    # To be called by __init__. `codes`: a struct code for each column that the protocol adds.
    cdef int begin(self, type result, const char *codes, producers, bint identity) except -1:
        self.ensure_uninitialized()
        open_rows(&self.rows, codes)
        self.result = result
        self.identity = identity
        self.producers = checked_names(&self.names, producers)
        return 0

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        return 0

    # The number of units decoded: less than n at a bound, or when the next one is not inside the data.
    # -1: out of memory.
    cdef Py_ssize_t decode_units(self, const uint8_t *p, Py_ssize_t total, const int64_t *at,
                                 const int64_t *size, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i, next, ahead = n
        if self.id_from_end and self.names.count > FEW_NAMES:
            ahead = FORESEEN
        for i in range(n):
            if is_full(&self.kept, self.rows.n):
                return i
            next = i + ahead
            if next < n and self.id_from_end <= size[next] <= total and 0 <= at[next] <= total - size[next]:
                lc_fetch(line_of_id(&self.names, p + at[next] + size[next] - self.id_from_end))
            if at[i] < 0 or size[i] < 0 or at[i] > total or size[i] > total - at[i]:
                return i
            self.unit = <int32_t> i
            if self.decode_unit(p + at[i], <size_t> size[i]) < 0:
                return -1
        return n

    def decode(self, data, offsets, lengths):
        """Decode the units ``data[offset:offset + length]``, without the GIL.

        Args:
            data: the bytes of all units.
            offsets: int64, where each unit begins.
            lengths: int64, the bytes of each unit.

        Raises:
            ValueError: `offsets` and `lengths` differ in size, or a unit is not inside `data`.
            RuntimeError: another thread is in `decode`.
        """
        return self.decode_buffers(BorrowedBuffer(data), BorrowedBuffer(offsets), BorrowedBuffer(lengths))

    cdef Events decode_buffers(self, BorrowedBuffer data, BorrowedBuffer at, BorrowedBuffer size):
        cdef Py_ssize_t n, i
        cdef Events events
        self.ensure_initialized()
        n = count_units(at, size, None)
        if self.busy:
            raise RuntimeError("another thread uses this decoder")
        self.busy = True
        try:
            with nogil:
                i = self.decode_units(<const uint8_t *> data.b.buf, data.b.len, <const int64_t *> at.b.buf,
                                      <const int64_t *> size.b.buf, n)
            if i < 0:
                raise MemoryError()
            if i < n and not is_full(&self.kept, self.rows.n):
                raise ValueError(f"unit {i} leaves the data of {data.b.len} bytes")
            events = self.result.__new__(self.result)
            events.units = i
            events.take_rows(&self.rows)
            events.take_bodies(&self.kept)
            return events
        finally:
            free_rows(&self.rows)
            clear_kept(&self.kept)
            self.busy = False
