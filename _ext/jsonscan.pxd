# The JSON scanner: jsonscan.pyx has the code.

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from logclient._ext.codec cimport lc_span


cdef enum:
    SCAN_PAD = 64            # bytes that must be readable from the text's end on

ctypedef struct lc_object:
    const uint8_t *start     # the opening brace
    const uint8_t *close     # the closing brace
    bint empty
    bint has_metadata        # a key "@metadata" with any value
    bint flat_event          # a key "event" whose value is not an object
    lc_span metadata_id      # "@metadata": {"_id": ...}
    lc_span dotted_id        # "event.id": ...
    lc_span event_id         # "event": {"id": ...}
    lc_span request_id       # "request_id": ...
    lc_span uuid             # "uuid": ...


cdef int scan_object(const uint8_t *p, const uint8_t *end, lc_object *o) noexcept nogil
cdef int copy_object(uint8_t *to, const uint8_t *source, size_t n, lc_object *o) noexcept nogil
cdef int find_braces(uint8_t *p, size_t size, lc_object *o) noexcept nogil
cdef const uint8_t *scalar_end(const uint8_t *p) noexcept nogil


# Copy a body to `to`, and scan it or only find its braces; then the spans of `o` stay as they are. 0, or -1:
# it is not one object, as far as was looked.
cdef inline int open_object(uint8_t *to, const uint8_t *source, size_t n, bint scanned,
                            lc_object *o) noexcept nogil:
    if scanned:
        return copy_object(to, source, n, o)
    memcpy(to, source, n)
    return find_braces(to, n, o)
