"""Scan of a capture segment (docs/formats.md) without the GIL.

Every length is bounded before use and the CRC-32 of every record is checked. Wire units come out as columns;
the codecs decode them.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.bytes cimport PyBytes_FromStringAndSize

from logclient._ext.codec cimport append_bytes, lc_wire
from logclient._ext.ids cimport free_rows, grow_rows, lc_rows, open_rows

cdef extern from "processor.h":
    int lc_has_clmul() noexcept nogil

cdef extern from "capture/crc32.h":
    void lc_crc_init() noexcept nogil
    uint32_t lc_crc32(const uint8_t *p, size_t n, int folds) noexcept nogil
    uint32_t lc_le32(const uint8_t *p) noexcept nogil
    uint64_t lc_le64(const uint8_t *p) noexcept nogil


# The types of records; the first two are none.
cpdef enum:
    BAD_RECORD = -2      # of an unknown type, too short for its type, or with an impossible arrival number
    BAD_CRC = -1         # the scan goes on after the length of such a record
    SEGMENT = 1
    STREAM = 2
    UNIT = 3
    END = 4
    MAX_RECORD = 1 << 30     # bytes of a record; a longer one is damage

# Reasons to stop.
cpdef enum:
    MORE = 0             # the rest of the data is not a whole record
    LIMIT = 1            # `limit` units or 65,536 other records were found
    LENGTH = 2           # the length of a record is 0 or more than MAX_RECORD: the next one cannot be found

cdef enum:
    _HEAD = 8            # length, CRC
    _UNIT_HEAD = 27      # type, direction, flags, stream, arrival, received_us
    _OTHERS = 65536      # other records per call, which bounds the memory that a damaged file takes

# The columns of units.
cdef enum:
    OFFSET, LENGTH_OF, ARRIVAL, STREAM_OF, RECEIVED, DIRECTION

# Written once, at import.
lc_crc_init()
cdef int _FOLDS = lc_has_clmul()

CRC_FOLDS = bool(_FOLDS)
"""True if this processor multiplies polynomials (PCLMULQDQ); otherwise tables are used."""


cdef struct Other:
    int64_t offset
    int64_t length
    int kind


# Return whether a record may have this type and length. Arrivals are from 1 to 2 ** 63 - 1.
cdef inline bint _sound(int kind, const uint8_t *payload, uint32_t length) noexcept nogil:
    if kind == UNIT:
        return length >= _UNIT_HEAD and payload[1] <= 1 and <int64_t> lc_le64(payload + 11) > 0
    if kind == END:
        return length >= 9 and <int64_t> lc_le64(payload + 1) > 0
    return kind == SEGMENT and length >= 5 or kind == STREAM and length >= 9


# Scan records from position[0] on, which becomes where it stopped. Returns why, or -1 without memory.
# `streams`: list the records of streams; those behind the end are always listed.
cdef int _walk(const uint8_t *data, size_t size, size_t *position, size_t limit, lc_rows *t,
               lc_wire *others, bint streams) noexcept nogil:
    cdef size_t at = position[0]
    cdef uint32_t length
    cdef const uint8_t *payload
    cdef int kind, result = MORE
    cdef Other other
    while True:
        position[0] = at
        if size - at < _HEAD:
            break
        if t.n == limit or others.size == _OTHERS * sizeof(Other):
            result = LIMIT
            break
        length = lc_le32(data + at)
        if length == 0 or length > MAX_RECORD:
            result = LENGTH
            break
        if size - at - _HEAD < length:
            break
        payload = data + at + _HEAD
        if lc_crc32(payload, length, _FOLDS) != lc_le32(data + at + 4):
            kind = BAD_CRC
        else:
            kind = payload[0]
            if not _sound(kind, payload, length):
                kind = BAD_RECORD
        if kind == UNIT:
            if t.n == t.capacity and grow_rows(t) < 0:
                return -1
            (<uint64_t *> t.at[OFFSET])[t.n] = at + _HEAD + _UNIT_HEAD
            (<uint64_t *> t.at[LENGTH_OF])[t.n] = length - _UNIT_HEAD
            (<uint64_t *> t.at[STREAM_OF])[t.n] = lc_le64(payload + 3)
            (<uint64_t *> t.at[ARRIVAL])[t.n] = lc_le64(payload + 11)
            (<uint64_t *> t.at[RECEIVED])[t.n] = lc_le64(payload + 19)
            (<uint8_t *> t.at[DIRECTION])[t.n] = payload[1]
            t.n += 1
        elif kind != STREAM or streams:
            if kind == END:
                streams = True
            other.kind = kind
            other.offset = <int64_t> at
            other.length = length
            if append_bytes(others, <const uint8_t *> &other, sizeof(Other)) < 0:
                return -1
        at += _HEAD + length
    return result


cdef class Walk:
    """Units of a segment, in the order of the file: one column per property, as bytes of native integers.

    ``numpy.frombuffer(walk.offset, "int64")`` makes no copy.
    """

    cdef readonly Py_ssize_t end     # where the first record begins that was not read
    cdef readonly int stop           # MORE, LIMIT or LENGTH
    cdef readonly bytes offset       # int64: where the unit's raw bytes begin in the data
    cdef readonly bytes length       # int64: number of raw bytes
    cdef readonly bytes arrival      # uint64: number of the arrival at the listener
    cdef readonly bytes stream       # uint64: number of the stream
    cdef readonly bytes received_us  # int64: microseconds since 1970
    cdef readonly bytes direction    # uint8: 0 from the peer, 1 to the peer
    cdef readonly list others        # type (or BAD_CRC, BAD_RECORD), offset and payload length of each other
    others: list[tuple[int, int, int]]


def walk(const uint8_t[::1] data not None, Py_ssize_t start=0, *, Py_ssize_t limit=0,
         bint streams=True) -> Walk:
    """Scan the records of ``data[start:]``, without the GIL.

    Args:
        limit: stop after so many units; 0: no limit.
        streams: False: records that name a stream are checked and not listed, but for those behind the end.

    Raises:
        ValueError: `start` is not in the data.
    """
    cdef size_t size = <size_t> data.shape[0]
    cdef const uint8_t *p = &data[0] if size else NULL
    cdef size_t most = <size_t> limit if limit > 0 else size
    cdef size_t at = <size_t> start
    cdef size_t i
    cdef lc_wire wire
    cdef Other *others
    cdef lc_rows t
    cdef int stop
    cdef Walk result
    if start < 0 or at > size:
        raise ValueError(f"start: {start} must lie in the data, 0 to {size}")
    memset(&wire, 0, sizeof(wire))
    open_rows(&t, b"QQQQqB", b"")
    try:
        with nogil:
            stop = _walk(p, size, &at, most, &t, &wire, streams)
        if stop < 0:
            raise MemoryError
        result = Walk.__new__(Walk)
        result.end = <Py_ssize_t> at
        result.stop = stop
        (result.offset, result.length, result.arrival, result.stream, result.received_us,
         result.direction) = [
            PyBytes_FromStringAndSize(<char *> t.at[i], <Py_ssize_t> (t.n * t.item[i])) for i in range(6)]
        others = <Other *> wire.data
        result.others = [(others[i].kind, others[i].offset, others[i].length)
                         for i in range(wire.size // sizeof(Other))]
        return result
    finally:
        free(wire.data)
        free_rows(&t)
