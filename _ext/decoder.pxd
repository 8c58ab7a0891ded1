# The part that the decoders of all protocols share: the loop over units, the rows, the columns made of them.
#
# A decoder is a subclass of BatchDecoder. It supplies `decode_unit`, which appends rows, and the struct codes
# of its own columns; its subclass of Events names these columns.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from logclient._ext.codec cimport lc_wire, wire_reserve
from logclient._ext.ids cimport ID_SIZE, is_ours, keep_foreign, lc_id, lc_names, lc_rows, read_id, trim
from logclient._ext.jsonscan cimport SCAN_PAD, copy_object, lc_object, lc_span


cdef enum:
    # The statuses that all decoders have; see each decoder for the others.
    STATUS_OK = 0
    STATUS_FOREIGN = 1
    SCRATCH_KEPT = 1 << 22       # larger scratch memory is freed
    SCAN_FAILED = -1             # not one JSON object
    NO_MEMORY = -2


cdef class Column:
    cdef void *data
    cdef Py_ssize_t n
    cdef Py_ssize_t item
    cdef char code[2]


cdef Column make_column(void **data, size_t n, size_t item, char code)


cdef class Events:
    cdef Py_ssize_t n
    cdef tuple columns           # by C_STATUS and so on
    cdef readonly Column id_hash

    cdef int take_rows(self, lc_rows *r) except -1


cdef class BorrowedBuffer:
    cdef Py_buffer b


cdef Py_ssize_t count_units(BorrowedBuffer offsets, BorrowedBuffer lengths, BorrowedBuffer more) except -1


cdef class BatchDecoder:
    cdef lc_names names
    cdef lc_rows rows
    cdef lc_wire scratch         # a body and SCAN_PAD bytes behind it
    cdef int32_t unit            # index of the current unit
    cdef bint identity
    cdef bytes producers         # owns the memory that `names` points to
    cdef type result             # Events or a subclass

    cdef int ensure_initialized(self) except -1
    cdef int ensure_uninitialized(self) except -1
    cdef int begin(self, type result, const char *codes, producers, bint identity) except -1
    # Append the rows of one unit. Negative: out of memory.
    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil
    cdef Py_ssize_t decode_units(self, const uint8_t *p, Py_ssize_t total, const int64_t *at,
                                 const int64_t *size, Py_ssize_t n) noexcept nogil
    cdef Events decode_buffers(self, BorrowedBuffer data, BorrowedBuffer at, BorrowedBuffer size)


# The id of a row that has none.
cdef inline void clear_id(lc_id *id_) noexcept nogil:
    memset(id_, 0, sizeof(lc_id))
    id_.producer = -1


# Decide whose id `own` is. A producer's: STATUS_OK. The user's: STATUS_FOREIGN, and its hash is kept for the
# next row. -1: out of memory.
cdef inline int identify(BatchDecoder d, const lc_span *own, lc_id *id_) noexcept nogil:
    if own.size == ID_SIZE:
        read_id(&d.names, own.at, id_)
        if is_ours(&d.names, id_):
            return STATUS_OK
    return -1 if keep_foreign(&d.rows, own) < 0 else STATUS_FOREIGN


# Scratch memory for `size` bytes, with SCAN_PAD zeros behind them for the scanner. NULL: out of memory.
cdef inline uint8_t *scan_room(BatchDecoder d, size_t size) noexcept nogil:
    cdef uint8_t *room
    d.scratch.size = 0
    trim(&d.scratch, SCRATCH_KEPT)
    room = wire_reserve(&d.scratch, size + SCAN_PAD)
    if room != NULL:
        memset(room + size, 0, SCAN_PAD)
    return room


# Scan a copy of a body, into which the spans of `o` point. 0, SCAN_FAILED or NO_MEMORY.
cdef inline int scan_body(BatchDecoder d, const uint8_t *p, size_t size, lc_object *o) noexcept nogil:
    cdef uint8_t *copy = scan_room(d, size)
    if copy == NULL:
        return NO_MEMORY
    return SCAN_FAILED if copy_object(copy, p, size, o) < 0 else 0
