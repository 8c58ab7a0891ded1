# The compiled contract between pumps and codecs.
#
# A codec (lumberjack.pyx, ...) fills an lc_codec and hands it out in a capsule "logclient.codec". A pump
# (pump/tcp.pyx, ...) drives it without the GIL. Neither imports the other: all they share is this header.
# Every function here is nogil and noexcept. `CodecBase` calls them from Python, under the same names, and
# `PythonCodec` (pump/adapters.pyx) fills an lc_codec with functions that call the methods of a Python object.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from logclient._ext.constants cimport *


cdef enum:
    ROOM_KEPT = 1 << 22      # larger buffers are freed, see `trim`


# Events detached from the queue. They stay here, bodies without id, until each has an outcome. The arrays are
# parallel, n long, in rising sequence; bodies point into chunks that the batch owns.
ctypedef struct lc_batch:
    uint32_t n
    uint32_t pending         # events with status PENDING
    uint32_t inflight        # events with status INFLIGHT
    uint32_t cursor          # no event before this index is PENDING
    uint32_t listed          # events before this index have their ledger line
    uint64_t bytes           # the bytes that they count in max_bytes
    uint64_t *seq
    int64_t *created_us      # wall clock, microseconds since 1970
    const uint8_t **body
    uint32_t *size
    uint8_t *kind            # K_ numbers
    uint8_t *level           # logging level // 10, at most 5
    uint8_t *status          # PENDING ... FAILED; the batches add SETTLED once it is counted
    uint8_t *reason          # R_ numbers
    uint64_t *hash           # XXH64(body as carried, seed 42), written by encode unless `unhashed`
    uint64_t *id_hash        # 2 words an event: the name of the user's own id, 0, 0 = ours; NULL until needed
    uint64_t *id_second      # the same for an id in the second carrier, used where the first is not kept
    lc_batch *next
    uint64_t serial          # identifies the batch in Python
    uint32_t low             # events before this index have their outcome
    uint32_t unmarked        # events with an outcome that a spool does not know of
    uint32_t chunk_count
    void **chunks            # of the queue
    uint32_t room            # events that the arrays have room for
    bint unhashed            # the next encode need not hash: no ledger is open


# An output buffer that is reused. encode appends to it; the pump resets its size when all is sent. Its bytes
# are a stream (TCP), or units in a row, each behind its head:
#
# Messages (ZeroMQ, WebSocket) are frames. The head of a frame is its length as u32 little-endian, with the
# top bit set when another frame of the same message follows.
#
# Datagrams (UDP) are runs: datagrams of `segment` bytes back to back, of which the last may be shorter. The
# head of a run is its bytes and its segment, u32 little-endian each. One send with UDP GSO takes a whole run.
# A run has at most RUN_SEGMENTS datagrams and RUN_MOST bytes; none is empty. Without GSO the pump cuts it up,
# remembers how far it came, and reports the run once all of it is sent.
#
# `receive` takes the same forms: a datagram is a run of one, and datagrams that GRO delivered at once are a
# longer run. Only messages of WebSocket arrive one at a time, without a head.
ctypedef struct lc_wire:
    uint8_t *data
    size_t size
    size_t capacity


# Some bytes of a body; for a string, those between the quotes. NULL: there is no such value.
ctypedef struct lc_span:
    const uint8_t *at
    size_t size


# The events first..last have this outcome; the range has no holes. PENDING means: send these again.
ctypedef struct lc_outcome:
    uint64_t first
    uint64_t last
    uint8_t status
    uint8_t reason


ctypedef struct lc_outcomes:
    lc_outcome *items
    uint32_t n
    uint32_t capacity
    uint32_t progress        # acknowledgements that settled something
    uint32_t events          # replies and other events that the core will give to Python


ctypedef struct lc_codec:
    void *self
    # Set how many events and bytes may be encoded now. 0 events: wait for an acknowledgement.
    void (*credit)(void *self, double now, uint32_t *events, uint64_t *bytes) noexcept nogil
    # Append up to `events` PENDING events of the batch, from its cursor on, to the wire. Set the status of
    # each to INFLIGHT, HANDED or FAILED (with a reason), and change no count of the batch: the caller settles
    # them. Return the number of events on the wire, or a STOP_ number.
    int (*encode)(void *self, lc_batch *batch, uint32_t events, double now,
                  lc_wire *wire, lc_outcomes *out) noexcept nogil
    # Note that the transport has taken so many more bytes, whole messages or runs. Protocols without
    # acknowledgements settle events here. NULL if the peer acknowledges.
    void (*sent)(void *self, size_t size, lc_outcomes *out) noexcept nogil
    # Take bytes from the peer. Return 0, or a STOP_ number; the Python core then has the error.
    int (*receive)(void *self, const uint8_t *data, size_t size, double now, lc_outcomes *out) noexcept nogil
    # Return the monotonic second of the silence deadline, or 0 when no answer is owed.
    double (*deadline)(void *self) noexcept nogil
    # Return the monotonic second at which credit comes back by itself, or 0 when there is some now. NULL
    # unless the core limits its rate.
    double (*ready)(void *self, double now) noexcept nogil
    # Append the messages that wait and are not events (answers, pings) to the wire, which is empty. Called
    # after `credit`, which may add some. Return 0, 1 when the core has events, or STOP_MEMORY. NULL: there
    # are none.
    int (*answers)(void *self, lc_wire *wire) noexcept nogil
    # Act on the deadline, which is over. Return 0 when that was all, 1 when the peer was silent for too long,
    # or a STOP_ number. NULL: it was always too long.
    int (*timeout)(void *self, double now) noexcept nogil
    # When the peer's TCP was seen to acknowledge more bytes of this connection, which is a sign of life: the
    # pump writes it, where the system tells. It looks once a second while events are in flight, and when the
    # deadline is over. NULL: only what the peer sends is a sign of life.
    double *moved
    # Take the wall clock, in seconds since 1970, that belongs to `now`. Called before `credit` and `encode`.
    # NULL unless the core dates events.
    void (*sample)(void *self, double now, double wall) noexcept nogil


cdef extern from "bits.h":
    uint32_t lc_get_frame "lc_le32"(const uint8_t *p) noexcept nogil
    bint lc_begin_use(bint *used) noexcept nogil
    void lc_end_use(bint *used) noexcept nogil


cdef inline void lc_put_frame(uint8_t *p, uint32_t head) noexcept nogil:
    p[0] = <uint8_t> head
    p[1] = <uint8_t> (head >> 8)
    p[2] = <uint8_t> (head >> 16)
    p[3] = <uint8_t> (head >> 24)


# Return room for `more` bytes at the end of the wire, without moving wire.size; NULL when memory is out.
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


# Append bytes to the wire. 0, or -1 (STOP_MEMORY): memory is out.
cdef inline int append_bytes(lc_wire *wire, const uint8_t *p, size_t size) noexcept nogil:
    if size == 0:
        return 0                 # an empty wire has no memory
    cdef uint8_t *room = wire_reserve(wire, size)
    if room == NULL:
        return -1
    memcpy(room, p, size)
    wire.size += size
    return 0


cdef inline void wire_free(lc_wire *wire) noexcept nogil:
    free(wire.data)
    memset(wire, 0, sizeof(lc_wire))


# Free the memory of an unusually large unit.
cdef inline void trim(lc_wire *wire, size_t kept) noexcept nogil:
    if wire.size == 0 and wire.capacity > kept:
        wire_free(wire)


# Move `i` behind its place to the next event to encode, after `n` of at most `events`, and `taken` of at most
# `size` bytes. Return whether there is one; the first may be larger.
cdef inline bint next_event(const lc_batch *batch, uint32_t *i, uint32_t n, uint32_t events, uint64_t taken,
                            uint64_t size) noexcept nogil:
    i[0] += 1
    while i[0] < batch.n and batch.status[i[0]] != PENDING:
        i[0] += 1
    return i[0] < batch.n and n < events and (n == 0 or taken + batch.size[i[0]] <= size)


cdef inline void fail_event(lc_batch *batch, uint32_t i, uint8_t reason) noexcept nogil:
    batch.status[i] = FAILED
    batch.reason[i] = reason


# Append an outcome, merged with the last one if it continues that; return -1 when memory is out.
cdef inline int outcome_add(lc_outcomes *out, uint64_t first, uint64_t last,
                            uint8_t status, uint8_t reason) noexcept nogil:
    cdef lc_outcome *o
    cdef uint32_t capacity
    if out.n:
        o = &out.items[out.n - 1]
        if o.last + 1 == first and o.status == status and o.reason == reason:
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
    o.status = status
    o.reason = reason
    out.n += 1
    return 0


# Events sent without acknowledgements: each is `handed` once the transport has taken its last byte. A ring of
# events in wire order. Bytes are counted from the beginning of the connection.
ctypedef struct lc_handed:
    uint64_t seq
    uint64_t end                 # the byte at which it ends


ctypedef struct lc_handing:
    lc_handed *items
    uint32_t room
    uint32_t head
    uint32_t count
    uint64_t written             # bytes that were encoded
    uint64_t taken               # of them, bytes that the transport has taken


# Make room for so many events; free `items` in the end. -1: memory is out.
cdef inline int handing_open(lc_handing *h, uint32_t room) noexcept nogil:
    h.items = <lc_handed *> calloc(room, sizeof(lc_handed))
    h.room = room
    return 0 if h.items != NULL else -1


cdef inline void handing_forget(lc_handing *h) noexcept nogil:
    h.head = h.count = 0
    h.written = h.taken = 0


cdef inline uint32_t handing_room(const lc_handing *h) noexcept nogil:
    return h.room - h.count


# Add an event whose last byte is `size` bytes behind the bytes written so far.
cdef inline void handing_add(lc_handing *h, uint64_t seq, uint64_t size) noexcept nogil:
    cdef uint32_t i = h.head + h.count
    if i >= h.room:
        i -= h.room
    h.items[i].seq = seq
    h.items[i].end = h.written + size
    h.count += 1


# Settle the events that are complete once the transport has taken so many more bytes. When memory is out, the
# others stay in flight until the connection ends, and are sent again.
cdef inline void handing_took(lc_handing *h, uint64_t size, lc_outcomes *out) noexcept nogil:
    h.taken += size
    while h.count and h.items[h.head].end <= h.taken:
        if outcome_add(out, h.items[h.head].seq, h.items[h.head].seq, HANDED, R_NONE) < 0:
            return
        h.head = h.head + 1 if h.head + 1 < h.room else 0
        h.count -= 1
