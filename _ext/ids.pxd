# Ids, and the rows that decoders fill, for all codecs.
#
# An id is 32 lower-case hex digits: 20 of the producer (10 random bytes), 12 of the sequence.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset, strlen

from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.codec cimport STOP_MEMORY, append_bytes, lc_batch, lc_span, lc_wire, wire_free


cdef enum:
    ID_SIZE = 32                 # hex digits of an id
    PRODUCER_SIZE = 20           # of them the producer's
    _MOST_BITS = 20              # of a producer, by which it is found
    FORESEEN = 8                 # units between the look for an id and its use
    FEW_NAMES = 1 << 11          # so many producers stay in the cache

cdef extern from "ids.h":
    ctypedef struct lc_digits:
        pass
    lc_digits lc_spell(uint64_t sequence) noexcept nogil
    void lc_put_digits(uint8_t *p, lc_digits digits) noexcept nogil
    void lc_put32(uint8_t *p, uint32_t v) noexcept nogil
    uint32_t lc_get32(const uint8_t *p) noexcept nogil
    void lc_put64(uint8_t *p, uint64_t v) noexcept nogil
    uint64_t lc_get64(const uint8_t *p) noexcept nogil
    uint64_t lc_read_hex16(const uint8_t *p, uint64_t *bad) noexcept nogil
    uint64_t lc_read_hex12(const uint8_t *p, uint64_t *bad) noexcept nogil
    uint64_t lc_read_hex4(const uint8_t *p, uint64_t *bad) noexcept nogil
    void lc_fetch(const void *p) noexcept nogil


# -- writers ---------------------------------------------------------------------------------------

# An id of a producer as text, with zeros for the sequence.
cdef inline bytes blank_id(bytes producer):
    if len(producer) != 10:
        raise ValueError(f"producer: 10 bytes, not {len(producer)}")
    return producer.hex().encode() + b"0" * (ID_SIZE - PRODUCER_SIZE)


# Name a user's own id, for the ledger and the verifier. An id with the form of ours (32 lower-case hex
# digits, not all of them 0) is named by its number, which shows whose id it could be; any other by its hash.
cdef inline void name_user_id(const lc_span *own, uint64_t *words) noexcept nogil:
    cdef uint64_t bad = 0
    if own.size == ID_SIZE:
        words[0] = lc_read_hex16(own.at, &bad)
        words[1] = lc_read_hex16(own.at + 16, &bad)
        if bad == 0 and words[0] | words[1]:
            return
    words[0] = xxh64_of(own.at, own.size, SEED)
    words[1] = xxh64_of(own.at, own.size, SEED + 1)


# An id of the user's own for event i of n, among `names`: `id_hash` or `id_second` of a batch.
cdef inline int keep_id(uint64_t **names, uint32_t n, uint32_t i, const lc_span *own) noexcept nogil:
    if names[0] == NULL:
        names[0] = <uint64_t *> calloc(n, 2 * sizeof(uint64_t))
        if names[0] == NULL:
            return STOP_MEMORY
    name_user_id(own, names[0] + 2 * i)
    return 0


# Hash the body of event i, if the batch wants that.
cdef inline void keep_hash(lc_batch *batch, uint32_t i, const uint8_t *p, size_t size) noexcept nogil:
    if not batch.unhashed:
        batch.hash[i] = xxh64_of(p, size, SEED)


# -- decoders --------------------------------------------------------------------------------------

ctypedef struct lc_id:
    uint64_t high
    uint64_t low                 # 16 bits
    int64_t sequence
    int32_t producer             # index, or -1
    bint good                    # 32 hex digits


# The producers whose ids are looked for.
ctypedef struct lc_names:
    const uint8_t *producers     # 10 bytes each, ascending
    const uint32_t *firsts       # by their first bits: the first producer with these or higher ones
    int bits
    Py_ssize_t count
    uint8_t last[PRODUCER_SIZE]  # hex digits of the producer seen last, and its index
    bint last_good
    lc_id last_id


# Look for these: 10 bytes each, joined. The owner keeps the returned objects.
cdef inline tuple checked_names(lc_names *d, producers):
    cdef bytes names = bytes(producers)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(names)
    cdef Py_ssize_t count = len(names) // 10, i, key
    if len(names) % 10:
        raise ValueError(f"producers: 10 bytes each, not {len(names)} in all")
    for i in range(1, count):
        if memcmp(p + 10 * i - 10, p + 10 * i, 10) >= 0:
            raise ValueError("producers: not ascending and distinct")
    d.producers = p
    d.count = count
    d.bits = 1
    while d.bits < _MOST_BITS and <Py_ssize_t> 1 << d.bits < count:
        d.bits += 1
    cdef bytes table = PyBytes_FromStringAndSize(NULL, ((<Py_ssize_t> 1 << d.bits) + 1) * sizeof(uint32_t))
    cdef uint32_t *firsts = <uint32_t *> <void *> PyBytes_AS_STRING(table)
    i = 0
    for key in range((<Py_ssize_t> 1 << d.bits) + 1):
        while i < count and lc_get64(p + 10 * i) >> (64 - d.bits) < <uint64_t> key:
            i += 1
        firsts[key] = <uint32_t> i
    d.firsts = firsts
    return names, table


# Fetch the place where the producer of an id at `p` is found. Anything else has a place, too.
cdef inline void foresee_id(const lc_names *d, const uint8_t *p) noexcept nogil:
    cdef uint64_t bad = 0
    lc_fetch(d.producers + 10 * <size_t> d.firsts[lc_read_hex16(p, &bad) >> (64 - d.bits)])


cdef inline int32_t find_producer(lc_names *d, uint64_t high, uint64_t low) noexcept nogil:
    cdef const uint32_t *first = d.firsts + (high >> (64 - d.bits))
    cdef const uint8_t *p
    cdef uint32_t i
    for i in range(first[0], first[1]):
        p = d.producers + 10 * <size_t> i
        if lc_get64(p) == high and (<uint64_t> p[8] << 8 | p[9]) == low:
            return <int32_t> i
    return -1


# The id of a row that has none.
cdef inline void clear_id(lc_id *id_) noexcept nogil:
    memset(id_, 0, sizeof(lc_id))
    id_.producer = -1


# Read 32 characters as an id.
cdef inline void read_id(lc_names *d, const uint8_t *p, lc_id *id_) noexcept nogil:
    cdef uint64_t bad = 0
    if d.last_good and memcmp(p, d.last, PRODUCER_SIZE) == 0:
        id_[0] = d.last_id
    else:
        memset(id_, 0, sizeof(lc_id))
        id_.high = lc_read_hex16(p, &bad)
        id_.low = lc_read_hex4(p + 16, &bad)
        if bad == 0:
            id_.producer = find_producer(d, id_.high, id_.low)
            memcpy(d.last, p, PRODUCER_SIZE)
            d.last_id = id_[0]
            d.last_good = True
    id_.sequence = <int64_t> lc_read_hex12(p + PRODUCER_SIZE, &bad)
    id_.good = bad == 0
    if bad:
        clear_id(id_)


cdef inline bint is_ours(lc_names *d, lc_id *id_) noexcept nogil:
    return id_.good and (id_.producer >= 0 or d.count == 0)


# Columns of every decoder; a codec's own follow from C_OWN on.
cdef enum:
    C_STATUS = 0
    C_PRODUCER
    C_HIGH
    C_LOW
    C_SEQUENCE
    C_HASH
    C_UNIT
    C_OFFSET
    C_LENGTH
    C_OWN
    C_MOST = 20


ctypedef struct lc_rows:
    size_t n
    size_t capacity
    int columns
    size_t item[C_MOST]          # bytes of one value
    char code[C_MOST]            # its struct code
    void *at[C_MOST]
    lc_wire foreign              # of rows with an id that is the user's own: row, and its name in two words


# `common`, `own`: the struct codes of the columns.
cdef inline void open_rows(lc_rows *r, const char *common, const char *own) noexcept nogil:
    cdef size_t i, n = strlen(common)
    cdef char code
    memset(r, 0, sizeof(lc_rows))
    r.columns = <int> (n + strlen(own))
    for i in range(<size_t> r.columns):
        r.code[i] = code = common[i] if i < n else own[i - n]
        r.item[i] = 1 if code == c'B' else 2 if code == c'H' else 4 if code == c'i' or code == c'I' else 8


cdef inline int grow_rows(lc_rows *r) noexcept nogil:
    cdef size_t capacity = r.capacity * 2 if r.capacity else 1024
    cdef void *p
    cdef int i
    for i in range(r.columns):
        p = realloc(r.at[i], capacity * r.item[i])
        if p == NULL:
            return -1
        r.at[i] = p
    r.capacity = capacity
    return 0


cdef inline void free_rows(lc_rows *r) noexcept nogil:
    cdef int i
    for i in range(r.columns):
        free(r.at[i])
        r.at[i] = NULL
    wire_free(&r.foreign)
    r.n = r.capacity = 0


# The columns that every decoder has; the caller fills its own of row r.n - 1. 0, or -1: no memory.
cdef inline int add_common(lc_rows *r, uint8_t status, const lc_id *id_, uint64_t hash, int32_t unit,
                           int64_t offset, size_t length) noexcept nogil:
    cdef size_t i = r.n
    if i == r.capacity and grow_rows(r) < 0:
        return -1
    (<uint8_t *> r.at[C_STATUS])[i] = status
    (<int32_t *> r.at[C_PRODUCER])[i] = id_.producer
    (<uint64_t *> r.at[C_HIGH])[i] = id_.high
    (<uint16_t *> r.at[C_LOW])[i] = <uint16_t> id_.low
    (<int64_t *> r.at[C_SEQUENCE])[i] = id_.sequence
    (<uint64_t *> r.at[C_HASH])[i] = hash
    (<int32_t *> r.at[C_UNIT])[i] = unit
    (<int64_t *> r.at[C_OFFSET])[i] = offset
    (<int32_t *> r.at[C_LENGTH])[i] = <int32_t> length if length <= 0x7FFFFFFF else 0x7FFFFFFF
    r.n = i + 1
    return 0


# The user's own id, of the row that is added next. 0, or -1: no memory.
cdef inline int keep_foreign(lc_rows *r, const lc_span *own) noexcept nogil:
    cdef uint64_t words[3]
    words[0] = r.n
    name_user_id(own, words + 1)
    return append_bytes(&r.foreign, <const uint8_t *> words, sizeof(words))
