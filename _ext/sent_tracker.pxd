# Tracks the events sent without acknowledgements: an event is `handed` once the transport has taken
# its last byte.

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from logclient._ext.constants cimport HANDED, R_NONE
from logclient._ext.codec cimport lc_outcomes, outcome_add


# A ring of events in wire order. Bytes are counted from the beginning of the connection.
ctypedef struct lc_handing:
    uint64_t *seq
    uint64_t *end                # the byte at which each ends
    uint32_t room
    uint32_t head
    uint32_t count
    uint64_t written             # bytes that were encoded
    uint64_t taken               # of them, bytes that the transport has taken


# Make room for so many events; return -1 when memory is out.
cdef inline int handing_open(lc_handing *h, uint32_t room) noexcept nogil:
    h.seq = <uint64_t *> calloc(room, sizeof(uint64_t))
    h.end = <uint64_t *> calloc(room, sizeof(uint64_t))
    h.room = room
    return 0 if h.seq != NULL and h.end != NULL else -1


cdef inline void handing_close(lc_handing *h) noexcept nogil:
    free(h.seq)
    free(h.end)


# Forget everything for a new connection: it is sent again.
cdef inline void handing_forget(lc_handing *h) noexcept nogil:
    h.head = h.count = 0
    h.written = h.taken = 0


# Return how many more events there is room for.
cdef inline uint32_t handing_room(const lc_handing *h) noexcept nogil:
    return h.room - h.count


# Add an event whose last byte is `size` bytes behind the bytes written so far.
cdef inline void handing_add(lc_handing *h, uint64_t seq, uint64_t size) noexcept nogil:
    cdef uint32_t i = h.head + h.count
    if i >= h.room:
        i -= h.room
    h.seq[i] = seq
    h.end[i] = h.written + size
    h.count += 1


# Settle the events that are complete once the transport has taken so many more bytes. When memory is out, the
# others stay in flight until the connection ends, and are sent again.
cdef inline void handing_took(lc_handing *h, uint64_t size, lc_outcomes *out) noexcept nogil:
    h.taken += size
    while h.count and h.end[h.head] <= h.taken:
        if outcome_add(out, h.seq[h.head], h.seq[h.head], HANDED, R_NONE) < 0:
            return
        h.head = h.head + 1 if h.head + 1 < h.room else 0
        h.count -= 1
