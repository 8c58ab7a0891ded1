"""Scan of a capture segment (docs/formats.md) without the GIL.

Every length is bounded before use and the CRC-32 of every record is checked. Wire units come out as columns;
the codecs decode them. logclient/files/capture.py reads the same files in plain Python, and is the
reference of the tests.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from cpython.bytes cimport PyBytes_FromStringAndSize


cdef extern from *:
    """
    #include <stddef.h>
    #include "bits.h"

    /* zlib's CRC-32 (reflected 0x04C11DB7). Where the processor multiplies polynomials, 64 bytes a step are
       folded onto the next 64 (x^512 apart), then 16 bytes onto the next 16, at last as many as the message
       has beyond that; the 16 that remain are as good as the whole message and go through the tables, which
       spares the two constants of a Barrett step. */
    static uint32_t lc_crc_table[8][256];

    static void lc_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
            lc_crc_table[0][i] = c;
        }
        for (int t = 1; t < 8; t++)
            for (int i = 0; i < 256; i++) {
                uint32_t c = lc_crc_table[t - 1][i];
                lc_crc_table[t][i] = (c >> 8) ^ lc_crc_table[0][c & 0xFF];
            }
    }

    /* Eight bytes a step; `c` is the inner state (not inverted). */
    static uint32_t lc_crc_tables(uint32_t c, const uint8_t *p, size_t n) {
        for (; n >= 8; p += 8, n -= 8) {
            uint32_t a = lc_le32(p) ^ c, b = lc_le32(p + 4);
            c = lc_crc_table[7][a & 0xFF] ^ lc_crc_table[6][a >> 8 & 0xFF]
              ^ lc_crc_table[5][a >> 16 & 0xFF] ^ lc_crc_table[4][a >> 24]
              ^ lc_crc_table[3][b & 0xFF] ^ lc_crc_table[2][b >> 8 & 0xFF]
              ^ lc_crc_table[1][b >> 16 & 0xFF] ^ lc_crc_table[0][b >> 24];
        }
        for (; n; p++, n--) c = (c >> 8) ^ lc_crc_table[0][(c ^ *p) & 0xFF];
        return c;
    }

    #if defined(__x86_64__) && defined(__GNUC__) && !defined(LC_NO_SIMD)
    #define LC_CRC_FOLDS 1
    #include <immintrin.h>
    __attribute__((target("sse4.1,pclmul")))
    static uint32_t lc_crc_fold(uint32_t c, const uint8_t *p, size_t n) {
        const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);  /* x^(512-32), x^(512+32) */
        const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);  /* x^(128-32), x^(128+32) */
        const __m128i first = _mm_cvtsi32_si128((int)c);
        uint8_t rest[48];
        __m128i x, y;
        #define LC_LOAD(q) _mm_loadu_si128((const __m128i *)(q))
        #define LC_FOLD(v, k, next) _mm_xor_si128(_mm_xor_si128( \\
            _mm_clmulepi64_si128(v, k, 0x00), _mm_clmulepi64_si128(v, k, 0x11)), next)
        x = _mm_xor_si128(LC_LOAD(p), first);
        if (n >= 64) {
            __m128i x1 = LC_LOAD(p + 16), x2 = LC_LOAD(p + 32), x3 = LC_LOAD(p + 48);
            for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
                x = LC_FOLD(x, by512, LC_LOAD(p));
                x1 = LC_FOLD(x1, by512, LC_LOAD(p + 16));
                x2 = LC_FOLD(x2, by512, LC_LOAD(p + 32));
                x3 = LC_FOLD(x3, by512, LC_LOAD(p + 48));
            }
            y = LC_FOLD(x, by128, x1);
            y = LC_FOLD(y, by128, x2);
            x = LC_FOLD(y, by128, x3);
        } else {
            p += 16;
            n -= 16;
        }
        for (; n >= 16; p += 16, n -= 16) x = LC_FOLD(x, by128, LC_LOAD(p));
        if (n) {  /* the first n bytes of x, behind zeros, onto the 16 that end the message */
            _mm_storeu_si128((__m128i *)rest, _mm_setzero_si128());
            _mm_storeu_si128((__m128i *)(rest + 16), x);
            memcpy(rest + 32, p, n);
            x = LC_FOLD(LC_LOAD(rest + n), by128, LC_LOAD(rest + 16 + n));
        }
        _mm_storeu_si128((__m128i *)rest, x);
        return lc_crc_tables(0, rest, 16);
        #undef LC_LOAD
        #undef LC_FOLD
    }
    static int lc_crc_can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    #define lc_crc_fold lc_crc_tables
    static int lc_crc_can_fold(void) { return 0; }
    #endif

    static inline uint32_t lc_crc32(uint32_t crc, const uint8_t *p, size_t n, int folds) {
        uint32_t c = ~crc;
        c = folds && n >= 16 ? lc_crc_fold(c, p, n) : lc_crc_tables(c, p, n);
        return ~c;
    }
    """
    void lc_crc_init() noexcept nogil
    int lc_crc_can_fold() noexcept nogil
    uint32_t lc_crc32(uint32_t crc, const uint8_t *p, size_t n, int folds) noexcept nogil
    uint32_t lc_le32(const uint8_t *p) noexcept nogil
    uint64_t lc_le64(const uint8_t *p) noexcept nogil


MAX_RECORD = 1 << 30

SEGMENT = 1
STREAM = 2
UNIT = 3
END = 4
BAD_CRC = -1
BAD_RECORD = -2

MORE = 0
LIMIT = 1
LENGTH = 2

cdef enum:
    _MAX_RECORD = 1 << 30
    _HEAD = 8            # length, CRC
    _UNIT_HEAD = 27      # type, direction, flags, stream, arrival, received_us
    _OTHERS = 65536      # other records per call, which bounds the memory that a damaged file takes

# The columns of units.
cdef enum:
    OFFSET, LENGTH_OF, ARRIVAL, STREAM_OF, RECEIVED, DIRECTION, COLUMNS

# Written once, at import.
lc_crc_init()
cdef int _FOLDS = lc_crc_can_fold()

CRC_FOLDS = bool(_FOLDS)


def crc32(const uint8_t[::1] data not None, uint32_t value=0, *, bint fold=True):
    """Compute ``zlib.crc32(data, value)``; with ``fold=False`` by tables on any processor."""
    cdef size_t n = <size_t> data.shape[0]
    cdef const uint8_t *p = &data[0] if n else NULL
    cdef uint32_t crc
    with nogil:
        crc = lc_crc32(value, p, n, _FOLDS and fold)
    return crc


cdef struct Table:
    void *at[COLUMNS]
    size_t count
    size_t capacity


cdef struct Other:
    int64_t offset
    int64_t length
    int kind


# Bytes of a value.
cdef inline size_t _width(int column) noexcept nogil:
    return 1 if column == DIRECTION else 8


cdef int _grow(Table *t) noexcept nogil:
    cdef size_t capacity = t.capacity * 2 if t.capacity else 1024
    cdef void *p
    cdef int i
    for i in range(<int> COLUMNS):
        p = realloc(t.at[i], capacity * _width(i))
        if p == NULL:
            return -1
        t.at[i] = p
    t.capacity = capacity
    return 0


# Return whether a record may have this type and length. Arrivals are from 1 to 2 ** 63 - 1.
cdef inline bint _sound(int kind, const uint8_t *payload, uint32_t length) noexcept nogil:
    if kind == 3:
        return length >= _UNIT_HEAD and payload[1] <= 1 and <int64_t> lc_le64(payload + 11) > 0
    if kind == 4:
        return length >= 9 and <int64_t> lc_le64(payload + 1) > 0
    if kind == 1:
        return length >= 5
    return kind == 2 and length >= 9


# Scan the records of data[start:size]. Returns 0 (MORE), 1 (LIMIT), 2 (LENGTH) or -1 without memory;
# position[0] is where it stopped. `skip`: pass over units without looking at them. `streams`: list the
# records of streams; those behind the end are always listed.
cdef int _walk(const uint8_t *data, size_t size, size_t *position, size_t limit, Table *t,
               Other *others, size_t *others_count, bint skip, bint streams) noexcept nogil:
    cdef size_t at = position[0]
    cdef uint32_t length
    cdef const uint8_t *payload
    cdef int kind
    cdef int result = 0
    while True:
        position[0] = at
        if size - at < _HEAD:
            break
        if t.count == limit or others_count[0] == _OTHERS:
            result = 1
            break
        length = lc_le32(data + at)
        if length == 0 or length > _MAX_RECORD:
            result = 2
            break
        if size - at - _HEAD < length:
            break
        payload = data + at + _HEAD
        if skip and payload[0] == 3:
            at += _HEAD + length
            continue
        if lc_crc32(0, payload, length, _FOLDS) != lc_le32(data + at + 4):
            kind = -1
        else:
            kind = payload[0]
            if not _sound(kind, payload, length):
                kind = -2
        if kind == 3:
            if t.count == t.capacity and _grow(t) < 0:
                return -1
            (<uint64_t *> t.at[OFFSET])[t.count] = at + _HEAD + _UNIT_HEAD
            (<uint64_t *> t.at[LENGTH_OF])[t.count] = length - _UNIT_HEAD
            (<uint64_t *> t.at[STREAM_OF])[t.count] = lc_le64(payload + 3)
            (<uint64_t *> t.at[ARRIVAL])[t.count] = lc_le64(payload + 11)
            (<uint64_t *> t.at[RECEIVED])[t.count] = lc_le64(payload + 19)
            (<uint8_t *> t.at[DIRECTION])[t.count] = payload[1]
            t.count += 1
        elif kind != 2 or streams:
            if kind == 4:
                streams = True
            others[others_count[0]].kind = kind
            others[others_count[0]].offset = <int64_t> at
            others[others_count[0]].length = length
            others_count[0] += 1
        at += _HEAD + length
    return result


cdef class Walk:
    """Units of a segment, in the order of the file: one column per property, as bytes of native integers."""

    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t end
    cdef readonly int stop
    cdef readonly bytes offset
    cdef readonly bytes length
    cdef readonly bytes arrival
    cdef readonly bytes stream
    cdef readonly bytes received_us
    cdef readonly bytes direction
    cdef readonly list others

    def __len__(self):
        return self.count


def walk(const uint8_t[::1] data not None, Py_ssize_t start=0, *, Py_ssize_t limit=0, bint skip=False,
         bint streams=True):
    """Scan the records of ``data[start:]``, without the GIL.

    Args:
        data: bytes of a segment.
        start: offset of a record.
        limit: stop after so many units; 0: no limit.
        skip: pass over units without checking them. There are only the other records then.
        streams: False: records that name a stream are checked and not listed, but for those behind the end.

    Raises:
        ValueError: `start` is not in the data.
    """
    cdef size_t size = <size_t> data.shape[0]
    cdef const uint8_t *p = &data[0] if size else NULL
    cdef size_t most = <size_t> limit if limit > 0 else size
    cdef size_t at = <size_t> start
    cdef size_t others_count = 0
    cdef size_t i
    cdef Table t
    cdef int stop
    cdef Walk result
    if start < 0 or at > size:
        raise ValueError(f"start: {start} must lie in the data, 0 to {size}")
    cdef Other *others = <Other *> realloc(NULL, _OTHERS * sizeof(Other))
    if others == NULL:
        raise MemoryError
    memset(&t, 0, sizeof(t))
    try:
        with nogil:
            stop = _walk(p, size, &at, most, &t, others, &others_count, skip, streams)
        if stop < 0:
            raise MemoryError
        result = Walk.__new__(Walk)
        result.count = <Py_ssize_t> t.count
        result.end = <Py_ssize_t> at
        result.stop = stop
        (result.offset, result.length, result.arrival, result.stream, result.received_us,
         result.direction) = [
            PyBytes_FromStringAndSize(<char *> t.at[i], result.count * <Py_ssize_t> _width(i))
            for i in range(<size_t> COLUMNS)]
        result.others = [(others[i].kind, others[i].offset, others[i].length) for i in range(others_count)]
        return result
    finally:
        free(others)
        for i in range(<size_t> COLUMNS):
            free(t.at[i])
