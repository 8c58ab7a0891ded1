# The part that the decoders of all protocols share. A decoder is a subclass of BatchDecoder. It supplies
# `decode_unit`, which appends rows, and the struct codes of its columns, which its Events name.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from logclient._ext.codec cimport ROOM_KEPT, append_bytes, lc_span, lc_wire, trim, wire_reserve
from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.ids cimport ID_SIZE, is_ours, keep_foreign, lc_id, lc_names, lc_rows, read_id
from logclient._ext.jsonscan cimport SCAN_PAD, copy_object, lc_object


cdef enum:
    # The statuses that all decoders have; see each decoder for the others.
    STATUS_OK = 0
    STATUS_FOREIGN = 1
    BODY_KEPT = 1 << 28          # larger bodies are not kept: no table has room for them
    SCAN_FAILED = -1             # not one JSON object
    NO_MEMORY = -2


# The bodies of events, and the ids that are the users' own, in the order of the rows.
ctypedef struct lc_kept:
    size_t most_rows             # a call ends after so many rows, or so many bytes; 0: no bound
    size_t most_bytes            # 0: bodies are not kept
    bint unhashed                # bodies are not hashed
    lc_wire bodies
    lc_wire own_ids
    lc_wire own_ends             # int64: where each of these ids ends


cdef memoryview make_column(void **data, size_t n, size_t item, char code)


cdef class Events:
    cdef Py_ssize_t n
    cdef readonly memoryview status  # uint8: index into STATUS_NAMES; all decoders share 0 (ok) to 3
    cdef readonly memoryview producer  # int32: index into the decoder's producers; -1: none of them
    cdef readonly memoryview prefix_high  # uint64: bytes 0..7 of the id, big-endian; 0 without an id
    cdef readonly memoryview prefix_low  # uint16: bytes 8..9 of the id; 0 without an id
    cdef readonly memoryview sequence  # int64: the last 48 bits of the id; 0 without an id
    cdef readonly memoryview hash  # uint64: XXH64 of the body as carried, seed 42; 0: a fault, or unasked
    cdef readonly memoryview unit  # int32: index of the unit
    cdef readonly memoryview offset  # int64: where it begins in the unit, unpacked in place
    cdef readonly memoryview length  # int32: bytes of the body
    cdef readonly memoryview id_hash  # uint64, two a row: XXH64 of a FOREIGN id, seeds 42 and 43; else 0
    cdef readonly memoryview bodies  # uint8: the bodies of all events, joined; not those over 256 MiB
    cdef readonly memoryview own_ids  # uint8: the users' own ids as they stand in the bodies, joined
    cdef readonly memoryview own_id_ends  # int64: where each of these ends; one a FOREIGN row
    cdef readonly Py_ssize_t units  # decoded; fewer than given: a bound of `limit` ended it

    cdef list take_rows(self, lc_rows *r)
    cdef int take_bodies(self, lc_kept *k) except -1


cdef class BorrowedBuffer:
    cdef Py_buffer b


cdef Py_ssize_t count_units(BorrowedBuffer offsets, BorrowedBuffer lengths, BorrowedBuffer more) except -1


cdef class BatchDecoder:
    cdef lc_names names
    cdef lc_rows rows
    cdef lc_wire scratch         # a body and SCAN_PAD bytes behind it
    cdef lc_kept kept
    cdef int32_t unit            # index of the current unit
    cdef bint busy               # a call is on its way, without the GIL
    cdef bint identity
    cdef Py_ssize_t id_from_end  # where a unit's last id begins if our producer wrote it; 0: anywhere
    cdef tuple producers         # owns the memory that `names` points to
    cdef type result             # Events or a subclass

    cdef int begin_use(self) except -1
    cdef int begin(self, type result, const char *codes, producers, bint identity) except -1
    # Append the rows of one unit. Negative: out of memory.
    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil
    cdef Py_ssize_t decode_units(self, const uint8_t *p, Py_ssize_t total, const int64_t *at,
                                 const int64_t *size, Py_ssize_t n) noexcept nogil
    # To be called between `begin_use` and `lc_end_use`.
    cdef Events decode_buffers(self, BorrowedBuffer data, BorrowedBuffer at, BorrowedBuffer size)


# Decide whose id `own` is. A producer's: STATUS_OK. The user's: STATUS_FOREIGN, and its hash is kept for the
# next row. -1: out of memory.
cdef inline int identify(BatchDecoder d, const lc_span *own, lc_id *id_) noexcept nogil:
    if own.size == ID_SIZE:
        read_id(&d.names, own.at, id_)
        if is_ours(&d.names, id_):
            return STATUS_OK
    if d.kept.most_bytes and keep_own_id(&d.kept, own.at, own.size) < 0:
        return -1
    return -1 if keep_foreign(&d.rows, own) < 0 else STATUS_FOREIGN


# Whether a call has reached its bound.
cdef inline bint is_full(const lc_kept *k, size_t rows) noexcept nogil:
    return (k.most_rows and rows >= k.most_rows) or (k.most_bytes and k.bodies.size >= k.most_bytes)


# The hash of a body, if hashes are wanted; else 0.
cdef inline uint64_t hash_body(BatchDecoder d, const uint8_t *p, size_t size) noexcept nogil:
    return 0 if d.kept.unhashed else xxh64_of(p, size, SEED)


# Keep the body of the next row, if bodies are wanted. -1: out of memory.
cdef inline int keep_body(BatchDecoder d, const uint8_t *p, size_t size) noexcept nogil:
    if d.kept.most_bytes == 0 or size > BODY_KEPT:
        return 0
    return append_bytes(&d.kept.bodies, p, size)


cdef inline int keep_own_id(lc_kept *k, const uint8_t *p, size_t size) noexcept nogil:
    if append_bytes(&k.own_ids, p, size) < 0:
        return -1
    cdef int64_t end = <int64_t> k.own_ids.size
    return append_bytes(&k.own_ends, <const uint8_t *> &end, sizeof(end))


# Scratch memory for `size` bytes, with SCAN_PAD zeros behind them for the scanner. NULL: out of memory.
cdef inline uint8_t *scan_room(BatchDecoder d, size_t size) noexcept nogil:
    d.scratch.size = 0
    trim(&d.scratch, ROOM_KEPT)
    cdef uint8_t *room = wire_reserve(&d.scratch, size + SCAN_PAD)
    if room != NULL:
        memset(room + size, 0, SCAN_PAD)
    return room


# Scan a copy of a body, into which the spans of `o` point. 0, SCAN_FAILED or NO_MEMORY.
cdef inline int scan_body(BatchDecoder d, const uint8_t *p, size_t size, lc_object *o) noexcept nogil:
    cdef uint8_t *copy = scan_room(d, size)
    if copy == NULL:
        return NO_MEMORY
    return SCAN_FAILED if copy_object(copy, p, size, o) < 0 else 0
