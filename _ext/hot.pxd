# The C meeting point of codecs and senders (design: hot halves).
#
# A codec (lumberjack.pyx, ...) fills an lc_hot and hands it out in a capsule named
# "logclient.hot"; a pump (tcpsend.pyx, ...) drives it without the GIL. Neither imports the other:
# all they share is this header. Every function here is nogil and noexcept.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


# Also for those who cimport this file: the numbers are part of the contract.
from logclient._ext.constants cimport (  # no-cython-lint
    ACKED,
    DROPPED,
    FAILED,
    FRAME_MORE,
    FRAME_SIZE,
    HANDED,
    INFLIGHT,
    K_BYTES,
    K_DOCUMENT,
    K_ID1_TAKEN,
    K_ID2_TAKEN,
    K_MASK,
    K_METADATA_OPEN,
    K_RAW,
    K_TOMB,
    K_TOPIC_SHIFT,
    PENDING,
    RUN_MOST,
    RUN_SEGMENTS,
    R_CLOSED,
    R_COUNT,
    R_DENIED,
    R_DOUBT,
    R_ERROR,
    R_FATAL,
    R_FORKED,
    R_MAX_AGE,
    R_NONE,
    R_NOT_JSON,
    R_OVERFLOW,
    R_POISON,
    R_REJECTED,
    R_TOO_LARGE,
    R_UNENCODABLE,
    R_UNKNOWN_TYPE,
    SETTLED,
    STOP_FATAL,
    STOP_MEMORY,
    STOP_PROTOCOL,
    WITHHELD,
)


# Events detached from the hand-off; they stay here, body without id, until each has a fate.
# Arrays are parallel, n long, in rising sequence; body points into chunks the batch owns.
ctypedef struct lc_batch:
    uint32_t n
    uint32_t pending         # events whose fate is PENDING
    uint32_t inflight        # events whose fate is INFLIGHT
    uint32_t cursor          # no event before this index is PENDING
    uint32_t listed          # events before this index have had their ledger line
    uint64_t bytes           # what they count in max_bytes
    uint64_t *seq
    int64_t *created_us      # wall clock, microseconds since 1970
    const uint8_t **body
    uint32_t *size
    uint8_t *kind            # Kind
    uint8_t *level           # logging level // 10, at most 5
    uint8_t *fate            # Fate; the flight adds SETTLED once it is counted
    uint8_t *reason          # Reason
    uint64_t *hash           # XXH64(body as carried, seed 42), written by encode
    uint64_t *id_hash        # 2 words an event: the name of the user's own id, 0, 0 = ours; NULL until needed
    uint64_t *id_second      # ... of the id that is found where the first one's carrier is dropped on the way
    lc_batch *next
    uint64_t serial          # the flight's name for it
    uint32_t low             # events before this index have their fate
    uint32_t chunk_count
    void **chunks            # the hand-off's
    uint32_t room            # events that the arrays have room for


# A reused output buffer. encode appends; the pump resets size when all is sent. For ZeroMQ it holds
# whole messages, each frame behind a u32 in little-endian order: its length, and the top bit when
# another frame of the same message follows. What `receive` gets is of the same form.
#
# For UDP it holds runs of datagrams, each run behind its head: u32 bytes of the run, u32 `segment`, both in
# little-endian order. A run is what one send with UDP_SEGMENT (GSO) can take: each of its datagrams is
# `segment` bytes, the last may be shorter; at most RUN_SEGMENTS of them, at most RUN_MOST bytes in all. Who
# has no GSO cuts it up. A segment of 0 is not possible, an empty datagram is none. A sender that stops
# inside a run keeps how far it came and reports the run once it is gone: what is counted is whole runs.
# `receive` gets the same: a datagram is a run of one, and what GRO gave in one piece a run of more.
ctypedef struct lc_wire:
    uint8_t *data
    size_t size
    size_t capacity


# Engine sequences first..last got this fate (holes in the range are not meant).
# PENDING means: send these again.
ctypedef struct lc_outcome:
    uint64_t first
    uint64_t last
    uint8_t fate
    uint8_t reason


ctypedef struct lc_outcomes:
    lc_outcome *items
    uint32_t n
    uint32_t capacity
    uint32_t alive           # signs of life seen (keep-alives too)
    uint32_t progress        # acknowledgements that moved something
    uint32_t heard           # answers to calls, and what else the Python core has to tell


ctypedef struct lc_hot:
    void *self
    # How many events and bytes may be encoded now. 0 events = wait for an ack.
    void (*credit)(void *self, double now, uint32_t *events, uint64_t *bytes) noexcept nogil
    # Encode up to `events` PENDING events of the batch, from its cursor on, to the end of wire: sets
    # their fate to INFLIGHT, HANDED or FAILED (with a reason) and nothing else of the batch's counts;
    # the flight settles them. Returns the number that went on the wire, or a negative Stop.
    int (*encode)(void *self, lc_batch *batch, uint32_t events, double now,
                  lc_wire *wire, lc_outcomes *out) noexcept nogil
    # The transport has taken so many bytes more of the wire, whole messages or runs: fates of a protocol
    # without acknowledgements (handing.pxd). NULL where they come from the peer.
    void (*sent)(void *self, size_t size, lc_outcomes *out) noexcept nogil
    # Bytes from the peer. Returns 0, or a negative Stop; the Python core then has the words.
    int (*receive)(void *self, const uint8_t *data, size_t size, double now,
                   lc_outcomes *out) noexcept nogil
    # The monotonic second at which the silence deadline falls, or 0 when nothing is awaited.
    double (*deadline)(void *self) noexcept nogil
    # NULL unless the core paces: the monotonic second at which credit comes back by itself; 0 when there is
    # some now.
    double (*ready)(void *self, double now) noexcept nogil
    # NULL unless the core paces: packets and bytes a second from now on, 0: no bound. For whoever learns
    # how fast the receiver is; called between two calls of the others, never beside them.
    void (*pace)(void *self, double now, double packets, double size) noexcept nogil


cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    static inline void lc_put_frame(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); p[2] = (uint8_t)(v >> 16); p[3] = (uint8_t)(v >> 24);
    }
    static inline uint32_t lc_get_frame(const uint8_t *p) {
        return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
    }
    """
    void lc_put_frame(uint8_t *p, uint32_t head) noexcept nogil
    uint32_t lc_get_frame(const uint8_t *p) noexcept nogil


# Room for `more` bytes at the end of wire; NULL when memory is out. wire.size does not move.
cdef inline uint8_t *wire_reserve(lc_wire *wire, size_t more) noexcept nogil:
    cdef size_t want = wire.size + more
    cdef size_t capacity
    cdef uint8_t *data
    if want > wire.capacity:
        capacity = wire.capacity if wire.capacity else 65536
        while capacity < want:
            capacity *= 2
        data = <uint8_t *> realloc(wire.data, capacity)
        if data == NULL:
            return NULL
        wire.data = data
        wire.capacity = capacity
    return wire.data + wire.size


# Append an outcome, merged with the last one where it continues it; -1 when memory is out.
cdef inline int outcome_add(lc_outcomes *out, uint64_t first, uint64_t last,
                            uint8_t fate, uint8_t reason) noexcept nogil:
    cdef lc_outcome *o
    cdef uint32_t capacity
    if out.n:
        o = &out.items[out.n - 1]
        if o.last + 1 == first and o.fate == fate and o.reason == reason:
            o.last = last
            return 0
    if out.n == out.capacity:
        capacity = out.capacity * 2 if out.capacity else 64
        o = <lc_outcome *> realloc(out.items, capacity * sizeof(lc_outcome))
        if o == NULL:
            return -1
        out.items = o
        out.capacity = capacity
    o = &out.items[out.n]
    o.first = first
    o.last = last
    o.fate = fate
    o.reason = reason
    out.n += 1
    return 0


from libc.stdlib cimport realloc
