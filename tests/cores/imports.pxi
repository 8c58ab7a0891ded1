from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.codec cimport (
    ACKED,
    FAILED,
    INFLIGHT,
    PENDING,
    R_NOT_JSON,
    R_REJECTED,
    STOP_MEMORY,
    STOP_PROTOCOL,
    lc_batch,
    lc_codec,
    lc_outcomes,
    lc_put_frame,
    lc_wire,
    outcome_add,
    wire_reserve,
)

cdef enum:
    REFUSED = -3             # permanently

# seqs[0..n-1] are in flight, oldest first; numbers are `by_id`'s own.
ctypedef struct State:
    char producer[20]
    uint64_t *seqs
    uint64_t *numbers
    uint64_t number
    uint32_t n
    uint32_t limit
    double silence
    double last_sign
    int over                 # STOP_PROTOCOL or REFUSED
    uint8_t word[9]          # a reply that has not come whole
    uint32_t word_size


cdef void begin(State *s, double now) noexcept nogil:
    s.n = 0
    s.number = 0
    s.over = 0
    s.word_size = 0
    s.last_sign = now


cdef void credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef State *s = <State *> self
    events[0] = 0 if s.over else s.limit - s.n
    size[0] = 1 << 30


cdef double deadline(void *self) noexcept nogil:
    cdef State *s = <State *> self
    return s.last_sign + s.silence if s.n and not s.over else 0.0
