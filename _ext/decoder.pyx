"""The part that the decoders of all protocols share: the loop over units, and columns of decoded rows."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from logclient._ext.codec cimport lc_begin_use, lc_end_use, wire_free
from logclient._ext.ids cimport *


@cython.final
cdef class Memory:
    """The memory of a column, which lives as long as a view of it."""

    cdef void *data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        # pyarrow ends the process at NULL, even if nothing is there
        PyBuffer_FillInfo(view, self, self.data if self.data != NULL else <void *> self, self.size, 1, flags)


# A column of n items of `item` bytes and this struct code, which takes over the memory at data[0].
cdef memoryview make_column(void **data, size_t n, size_t item, char code):
    cdef Memory memory = Memory.__new__(Memory)
    memory.data = data[0]
    memory.size = n * item
    data[0] = NULL
    return memoryview(memory).cast(chr(code))


cdef class Events:
    """Decoded units, in order: a row for each event, and a row for each fault.

    All decoders have these columns (decoder.pxd); a subclass adds those of its protocol.
    """

    def __len__(self):
        return self.n

    # Make the columns, which take over the memory of the rows. Returns those that the protocol adds.
    cdef list take_rows(self, lc_rows *r):
        cdef const uint64_t *foreign = <const uint64_t *> r.foreign.data
        cdef size_t i
        cdef int k
        cdef list columns = [make_column(&r.at[k], r.n, r.item[k], r.code[k]) for k in range(r.columns)]
        # Most rows have no hash of an id: the zeros of calloc cost nothing until they are touched.
        cdef uint64_t *hashes = <uint64_t *> calloc(r.n + 1, 2 * sizeof(uint64_t))
        if hashes == NULL:
            raise MemoryError()
        for i in range(r.foreign.size // 24):
            hashes[2 * foreign[3 * i]] = foreign[3 * i + 1]
            hashes[2 * foreign[3 * i] + 1] = foreign[3 * i + 2]
        try:
            self.id_hash = make_column(<void **> &hashes, 2 * r.n, 8, c'Q')
        finally:
            free(hashes)         # NULL once the column has it
        (self.status, self.producer, self.prefix_high, self.prefix_low, self.sequence, self.hash, self.unit,
         self.offset, self.length) = columns[:<int> C_OWN]
        self.n = r.n
        return columns[<int> C_OWN:]

    # Make the columns of what was kept, which take over its memory.
    cdef int take_bodies(self, lc_kept *k) except -1:
        self.bodies = make_column(<void **> &k.bodies.data, k.bodies.size, 1, c'B')
        self.own_ids = make_column(<void **> &k.own_ids.data, k.own_ids.size, 1, c'B')
        self.own_id_ends = make_column(<void **> &k.own_ends.data, k.own_ends.size // 8, 8, c'q')
        return 0


# Bytes only: numpy, array, mmap and pyarrow disagree on the struct codes of items.
@cython.final
cdef class BorrowedBuffer:
    """A view of an object's bytes, whatever the type of its items; released with this object."""

    def __cinit__(self, data: ReadableBuffer):
        PyObject_GetBuffer(data, &self.b, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.b)


# Return the number of units that these columns describe. `more`, another column of 8-byte items, may be None.
cdef Py_ssize_t count_units(BorrowedBuffer offsets, BorrowedBuffer lengths, BorrowedBuffer more) except -1:
    cdef Py_ssize_t size = offsets.b.len
    if size % 8 or lengths.b.len != size or more is not None and more.b.len != size:
        raise ValueError(f"offsets, lengths and the like must be int64, equally many: {size}, {lengths.b.len}"
                         f"{'' if more is None else f', {more.b.len}'} bytes")
    # The address of a column without items may be any.
    if size and (<size_t> offsets.b.buf | <size_t> lengths.b.buf
                 | (0 if more is None else <size_t> more.b.buf)) % 8:
        raise ValueError("offsets, lengths and the like must begin at an address that 8 divides")
    return size // 8


# Forget what was kept.
cdef void clear_kept(lc_kept *k) noexcept nogil:
    wire_free(&k.bodies)
    wire_free(&k.own_ids)
    wire_free(&k.own_ends)


cdef class BatchDecoder:
    """The base class of decoders.

    A decoder keeps scratch memory between calls: use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. An id that begins with one of these is
            theirs, any other is the user's own, and is hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
    """

    def __dealloc__(self):
        free(self.scratch.data)
        free_rows(&self.rows)
        clear_kept(&self.kept)

    def limit(self, Py_ssize_t rows, Py_ssize_t body_bytes=0, *, bint hashes=True):
        """End each call of `decode` behind the unit that reaches a bound on rows, or on bytes of bodies.

        Bodies are kept only with a bound on their bytes, and hashed only with `hashes`.
        """
        if rows < 0 or body_bytes < 0:
            raise ValueError(f"rows and body_bytes must not be negative: {rows}, {body_bytes}")
        self.kept.most_rows = rows
        self.kept.most_bytes = body_bytes
        self.kept.unhashed = not hashes

    cdef int begin_use(self) except -1:
        if not lc_begin_use(&self.busy):
            raise RuntimeError("another thread uses this decoder")
        return 0

    # To be called by __cinit__. `codes`: a struct code for each column that the protocol adds.
    cdef int begin(self, type result, const char *codes, producers, bint identity) except -1:
        open_rows(&self.rows, b"BiQHqQiqi", codes)
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
                foresee_id(&self.names, p + at[next] + size[next] - self.id_from_end)
            if at[i] < 0 or size[i] < 0 or at[i] > total or size[i] > total - at[i]:
                return i
            self.unit = <int32_t> i
            if self.decode_unit(p + at[i], <size_t> size[i]) < 0:
                return -1
        return n

    def decode(self, data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer) -> _Events:
        """Decode the units ``data[offset:offset + length]`` (int64), without the GIL."""
        cdef BorrowedBuffer view = BorrowedBuffer(data)
        cdef BorrowedBuffer at = BorrowedBuffer(offsets), size = BorrowedBuffer(lengths)
        self.begin_use()
        try:
            return self.decode_buffers(view, at, size)
        finally:
            lc_end_use(&self.busy)

    cdef Events decode_buffers(self, BorrowedBuffer data, BorrowedBuffer at, BorrowedBuffer size):
        cdef Py_ssize_t n = count_units(at, size, None), i
        cdef Events events
        if self.producers is None:
            raise TypeError("a decoder without a protocol")
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
