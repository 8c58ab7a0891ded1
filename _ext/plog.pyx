# plog, compiled: the client behind lc_hot, fragments put together again, the decoder of captures.
#
#   unboxed    the message itself; its first byte is not 0 to 31
#   command    0, 0, four letters, anything
#   fragment   0, 1, u16 count, u16 index, u16 size, i32 id, i32 total, u32 MurmurHash3 of the message,
#              u16 length of the tags, u16 0: 24 bytes, big-endian; then the tags, then the payload.
#              The text says zeroes where the tags' length is: it is older than they are
#
# `size` is the payload of each fragment but the last, whose payload is the rest. Tags are in the last one
# only, and count in neither size nor total. The client boxes what may not travel unboxed: what begins with
# a byte below 32 is dropped by the server, an empty datagram is read as what came before it.
#
# Over TCP (`lines`) a message is a line, without header and tags.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport (
    NO_MEMORY,
    BatchDecoder,
    BorrowedBuffer,
    Column,
    Events,
    clear_id,
    count_units,
    identify,
    make_column,
    scan_body,
)
from logclient._ext.handing cimport (
    handing_add,
    handing_close,
    handing_forget,
    handing_open,
    handing_room,
    handing_took,
    lc_handing,
)
from logclient._ext.hash cimport HASH_LANES, SEED, murmur3_many, murmur3_of, xxh64_lanes, xxh64_of
from logclient._ext.hot cimport (
    FAILED,
    INFLIGHT,
    K_BYTES,
    K_DOCUMENT,
    K_MASK,
    K_TOPIC_SHIFT,
    PENDING,
    R_TOO_LARGE,
    R_UNENCODABLE,
    RUN_MOST,
    RUN_SEGMENTS,
    STOP_MEMORY,
    lc_batch,
    lc_get_frame,
    lc_outcomes,
    lc_put_frame,
    lc_wire,
    wire_reserve,
)
from logclient._ext.ids cimport (
    C_OWN,
    ID_SIZE,
    PRODUCER_SIZE,
    add_common,
    hash_bodies,
    keep_foreign,
    keep_user_id,
    lc_get32,
    lc_id,
    lc_put32,
    lc_put_digits,
    lc_rows,
    lc_spell,
    trim,
)
from logclient._ext.jsonscan cimport SCAN_PAD, copy_object, find_braces, lc_object, lc_span

cdef extern from *:
    """
    #ifdef _MSC_VER
    static __inline uint64_t lc_ones(uint64_t v) {
        v = v - (v >> 1 & 0x5555555555555555ULL);
        v = (v & 0x3333333333333333ULL) + (v >> 2 & 0x3333333333333333ULL);
        return ((v + (v >> 4)) & 0x0F0F0F0F0F0F0F0FULL) * 0x0101010101010101ULL >> 56;
    }
    #else
    #define lc_ones(v) ((uint64_t)__builtin_popcountll(v))
    #endif
    """
    uint64_t lc_ones(uint64_t v) noexcept nogil

HEADER = <int> HEADER_SIZE
MAX_DATAGRAM = <int> DATAGRAM_MOST
MAX_FRAGMENTS = <int> FRAGMENTS_MOST
MAX_MESSAGE = <int> MESSAGE_MOST
MAX_ID = <int> ID_MOST

cdef enum:
    HEADER_SIZE = 24
    DATAGRAM_MOST = 65507        # what IPv4 carries
    DATAGRAM_LEAST = 25
    FRAGMENTS_MOST = 65535
    MESSAGE_MOST = 0x7FFFFFFF
    ID_MOST = 0x7FFFFFFF         # a negative one is counted under another port
    RUN_HEAD = 8
    TAIL_SIZE = 42               # bytes that an id adds to a body
    TAIL_END = 14                # ... the last of them: 12 digits and `"}`
    ROUND = 2048                 # messages encoded at once
    HEARD_MOST = 1 << 20         # bytes of replies that wait to be looked at
    ROOM_KEPT = 1 << 22
    SCRATCH_MOST = 1 << 21       # bytes of messages that wait for their hashes; a larger one waits alone
    K_TAGGED = 1                 # the nibble of a kind: u16 and as many bytes of tags before the body


# ---------------------------------------------------------------------------------------------------
# Fragments
# ---------------------------------------------------------------------------------------------------

cdef inline void put16(uint8_t *p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t> (v >> 8)
    p[1] = <uint8_t> v


# How a message is cut: `count` fragments, each but the last with `size` bytes of it.
ctypedef struct lc_cut:
    uint32_t count
    uint32_t size
    uint32_t last


# Cut a message that travels boxed in datagrams of at most `room`. -1: it takes too many.
#
# The last fragment has the tags beside the rest of the payload. Where they do not fit behind it there is one
# fragment more; its payload may be empty, and where the others would then be longer than the payload (which
# throws in the Java client), they are made shorter.
cdef inline int cut_message(uint64_t total, uint32_t tags, uint32_t room, lc_cut *cut) noexcept nogil:
    cdef uint64_t most = room - HEADER_SIZE
    cdef uint64_t whole, size, last
    if total > MESSAGE_MOST or tags > most:
        return -1
    whole = (total + tags + most - 1) // most
    whole = whole - 1 if whole else 0        # fragments before the last
    if whole == 0:
        cut.count = 1
        cut.size = <uint32_t> most
        cut.last = <uint32_t> total
        return 0
    while whole < FRAGMENTS_MOST:
        size = min(total // whole, most)
        last = total - size * whole
        if last + tags <= most:
            cut.count = <uint32_t> whole + 1
            cut.size = <uint32_t> size
            cut.last = <uint32_t> last
            return 0
        whole += 1
    return -1


cdef inline void put_header(uint8_t *p, const lc_cut *cut, uint32_t id_, uint32_t total,
                            uint32_t hash_) noexcept nogil:
    p[0] = 0
    p[1] = 1
    put16(p + 2, cut.count)
    put16(p + 4, 0)
    put16(p + 6, cut.size)
    lc_put32(p + 8, id_)
    lc_put32(p + 12, total)
    lc_put32(p + 16, hash_)
    lc_put32(p + 20, 0)


# The run at the end of a wire, while datagrams are added.
ctypedef struct lc_run:
    size_t at                    # of its head
    uint32_t size                # bytes in it; 0: there is none
    uint32_t segment
    uint32_t count
    bint full                    # its last datagram is shorter


cdef inline bint run_takes(const lc_run *run, uint32_t size) noexcept nogil:
    return (run.size and not run.full and size <= run.segment and run.count < RUN_SEGMENTS
            and run.size + size <= RUN_MOST)


# A datagram of this size comes next: where its bytes go, as an offset. There is room.
cdef inline size_t run_add(lc_run *run, lc_wire *wire, uint32_t size) noexcept nogil:
    cdef size_t at
    if not run_takes(run, size):
        run.at = wire.size
        run.size = run.count = 0
        run.segment = size
        lc_put_frame(wire.data + run.at + 4, size)
        wire.size += RUN_HEAD
    at = wire.size
    run.size += size
    run.count += 1
    run.full = size < run.segment
    lc_put_frame(wire.data + run.at, run.size)
    wire.size += size
    return at


# Where a message's first datagram is in a wire, and the head of the run that it is in.
ctypedef struct lc_place:
    size_t run
    size_t at


# All fragments of a message at p, which is not in wire. -1 when memory is out.
cdef int put_fragments(lc_wire *wire, lc_run *run, const uint8_t *p, uint32_t total, const lc_cut *cut,
                       uint32_t id_, uint32_t hash_, const uint8_t *tags, uint32_t tags_size,
                       lc_place *place) noexcept nogil:
    cdef uint8_t header[HEADER_SIZE]
    cdef uint8_t *to
    cdef size_t at
    cdef uint32_t i
    if wire_reserve(wire, <size_t> cut.count * (RUN_HEAD + HEADER_SIZE) + total + tags_size) == NULL:
        return -1
    put_header(header, cut, id_, total, hash_)
    for i in range(cut.count - 1):
        put16(header + 4, i)
        at = run_add(run, wire, HEADER_SIZE + cut.size)
        if i == 0:
            place.run = run.at
            place.at = at
        to = wire.data + at
        memcpy(to, header, HEADER_SIZE)
        memcpy(to + HEADER_SIZE, p, cut.size)
        p += cut.size
    put16(header + 4, cut.count - 1)
    put16(header + 20, tags_size)
    at = run_add(run, wire, HEADER_SIZE + tags_size + cut.last)
    if cut.count == 1:
        place.run = run.at
        place.at = at
    to = wire.data + at
    memcpy(to, header, HEADER_SIZE)
    memcpy(to + HEADER_SIZE, tags, tags_size)
    memcpy(to + HEADER_SIZE + tags_size, p, cut.last)
    return 0


# The hash into the headers of a message's datagrams.
cdef inline void put_hash(uint8_t *data, lc_place place, const lc_cut *cut, uint32_t hash_) noexcept nogil:
    cdef size_t at = place.at, end = place.run + RUN_HEAD + lc_get_frame(data + place.run)
    cdef uint32_t _i
    for _i in range(cut.count):
        if at == end:                # the run is over, the next begins
            end += RUN_HEAD + lc_get_frame(data + at)
            at += RUN_HEAD
        lc_put32(data + at + 16, hash_)
        at += HEADER_SIZE + cut.size


def fragments(payload, int64_t id, *, int64_t datagram=DATAGRAM_MOST, bytes tags=b""):
    """The datagrams of one boxed message; see the stub."""
    cdef bytes message = bytes(payload)
    cdef lc_wire wire
    cdef lc_run run
    cdef lc_cut cut
    cdef lc_place place
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(message)
    if not 0 <= id <= ID_MOST:
        raise ValueError(f"id: 0 to {ID_MOST}, not {id}")
    if not DATAGRAM_LEAST <= datagram <= DATAGRAM_MOST:
        raise ValueError(f"datagram: {DATAGRAM_LEAST} to {DATAGRAM_MOST} bytes, not {datagram}")
    if len(tags) > datagram - HEADER_SIZE:
        raise ValueError(f"tags: {len(tags)} bytes, and a datagram has room for {datagram - HEADER_SIZE}")
    if len(message) > MESSAGE_MOST:
        raise ValueError(f"payload: {len(message)} bytes; {MESSAGE_MOST} are the most")
    if cut_message(len(message), <uint32_t> len(tags), <uint32_t> datagram, &cut) < 0:
        raise ValueError(f"payload: {len(message)} bytes need more than {FRAGMENTS_MOST} fragments "
                         f"in datagrams of {datagram}")
    memset(&wire, 0, sizeof(wire))
    memset(&run, 0, sizeof(run))
    try:
        if put_fragments(&wire, &run, p, <uint32_t> len(message), &cut, <uint32_t> id,
                         murmur3_of(p, len(message)),
                         <const uint8_t *> PyBytes_AS_STRING(tags), <uint32_t> len(tags), &place) < 0:
            raise MemoryError()
        return split_runs(wire.data, wire.size)
    finally:
        free(wire.data)


# The datagrams in whole runs, each a copy; None: it is no such thing.
cdef list split_runs(const uint8_t *p, size_t left):
    cdef uint32_t size, segment, at
    found = []
    while left:
        if left < RUN_HEAD:
            return None
        size = lc_get_frame(p)
        segment = lc_get_frame(p + 4)
        p += RUN_HEAD
        left -= RUN_HEAD
        if size > left or segment == 0 and size:
            return None
        if size == 0:
            found.append(b"")
            continue
        for at in range(0, size, segment):
            found.append(PyBytes_FromStringAndSize(<const char *> p + at, min(segment, size - at)))
        p += size
        left -= size
    return found


def datagrams(runs, /):
    """The datagrams in whole runs; see the stub."""
    cdef bytes data = bytes(runs)
    found = split_runs(<const uint8_t *> PyBytes_AS_STRING(data), len(data))
    if found is None:
        raise ValueError("no whole runs of datagrams")
    return found


def join_runs(datagrams, /):
    """Datagrams as runs, as many in one as go; see the stub."""
    cdef lc_wire wire
    cdef lc_run run
    cdef bytes one
    cdef size_t at
    memset(&wire, 0, sizeof(wire))
    memset(&run, 0, sizeof(run))
    try:
        for datagram in datagrams:
            one = bytes(datagram)
            if len(one) > DATAGRAM_MOST:
                raise ValueError(f"datagram: {len(one)} bytes; {DATAGRAM_MOST} are the most")
            if wire_reserve(&wire, RUN_HEAD + len(one)) == NULL:
                raise MemoryError()
            at = run_add(&run, &wire, <uint32_t> len(one))
            memcpy(wire.data + at, <const uint8_t *> PyBytes_AS_STRING(one), len(one))
        return PyBytes_FromStringAndSize(<const char *> wire.data, wire.size)
    finally:
        free(wire.data)


# ---------------------------------------------------------------------------------------------------
# The client
# ---------------------------------------------------------------------------------------------------

# A bucket of tokens: `rate` a second flow in, `most` are in it at most. It may be overdrawn: a message goes
# whole, and the next one waits until the debt is paid.
ctypedef struct lc_bucket:
    double rate                  # 0: no bound
    double most
    double level


cdef inline void bucket_fill(lc_bucket *b, double seconds) noexcept nogil:
    b.level = min(b.level + seconds * b.rate, b.most)


# Seconds until `quantum` is in it.
cdef inline double bucket_wait(const lc_bucket *b, double quantum) noexcept nogil:
    return (quantum - b.level) / b.rate if b.rate and b.level < quantum else 0


# All that the nogil half needs. `self` of lc_hot.
ctypedef struct lc_plog:
    bint identity
    bint check
    bint unboxed
    uint32_t room                # bytes of a datagram at most
    uint64_t most                # bytes of a message at most
    uint64_t batch_bytes
    const uint8_t *tail          # the id's carrier, zeros for the sequence, and the closing brace
    const uint8_t *tags          # of messages that have none of their own
    uint32_t tags_size
    uint32_t id_                 # of the next boxed message
    lc_bucket packets
    lc_bucket size
    double filled                # when the buckets were
    bint drained                 # wait until there is a quantum, not for each packet
    lc_wire scratch              # messages that go in several datagrams, whole, until they are hashed
    lc_handing handing           # what the kernel has not taken yet
    lc_wire heard                # runs from the server
    uint64_t lost                # replies that found no room
    uint64_t boxed
    uint64_t simple
    uint64_t datagrams


cdef inline double quantum_of(const lc_bucket *b) noexcept nogil:
    # five milliseconds, half a bucket at most: to wake for each packet would cost more than it takes
    return max(min(b.rate * 0.005, b.most / 2), 1.0)


cdef void plog_fill(lc_plog *w, double now) noexcept nogil:
    if now > w.filled:
        bucket_fill(&w.packets, now - w.filled)
        bucket_fill(&w.size, now - w.filled)
        w.filled = now
    if w.drained:
        w.drained = (bucket_wait(&w.packets, quantum_of(&w.packets)) > 0
                     or bucket_wait(&w.size, quantum_of(&w.size)) > 0)


# Whether nothing may go now.
cdef inline bint is_drained(lc_plog *w) noexcept nogil:
    if w.packets.rate and w.packets.level < 1 or w.size.rate and w.size.level < 1:
        w.drained = True
    return w.drained


cdef void plog_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    plog_fill(w, now)
    events[0] = 0
    size[0] = 0
    if is_drained(w):
        return
    events[0] = handing_room(&w.handing)
    if w.packets.rate and w.packets.level < events[0]:
        events[0] = <uint32_t> w.packets.level
    size[0] = w.batch_bytes


cdef double plog_ready(void *self, double now) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    plog_fill(w, now)
    if not is_drained(w):
        return 0
    # a microsecond late, where rounding would make it a moment early
    return now + 1e-6 + max(bucket_wait(&w.packets, quantum_of(&w.packets)),
                            bucket_wait(&w.size, quantum_of(&w.size)))


cdef void plog_pace(void *self, double now, double packets, double size) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    plog_fill(w, now)
    w.packets.rate = packets
    w.size.rate = size


# One body, to p, with TAIL_SIZE + SCAN_PAD bytes of room behind it, the id in where it is an event document.
# Its new size, or STOP_MEMORY. What is no document is carried as it is, and told by its hash.
cdef inline int64_t finish_body(lc_plog *w, lc_batch *batch, uint32_t i, const uint8_t *body, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i] & K_MASK
    cdef lc_object o
    cdef lc_span own
    cdef uint8_t *start
    cdef uint8_t *close
    cdef bint object_
    if not w.identity:
        memcpy(p, body, size)
        return size
    if w.check or kind == K_DOCUMENT or kind == K_BYTES:
        object_ = copy_object(p, body, size, &o) == 0
    else:
        memcpy(p, body, size)
        object_ = size > 1 and find_braces(p, size, &o) == 0
        o.uuid.at = NULL
    own.at = p
    own.size = size
    if object_ and o.uuid.at != NULL:
        own = o.uuid
    elif object_ and kind != K_BYTES:
        start = <uint8_t *> o.start
        close = <uint8_t *> o.close
        # without the comma where there is nothing to divide
        memcpy(close, w.tail + o.empty, TAIL_SIZE + 1 - o.empty)
        close += TAIL_SIZE - o.empty
        lc_put_digits(close + 1 - TAIL_END, lc_spell(batch.seq[i]))
        size = close + 1 - start
        if start != p:
            memmove(p, start, size)
        return size
    return STOP_MEMORY if keep_user_id(batch, i, &own) < 0 else <int64_t> size


# Messages on the wire whose hashes are not there yet: they are made side by side. Places are offsets, as
# buffers move.
ctypedef struct lc_unhashed:
    uint32_t count
    uint32_t lanes
    size_t at[HASH_LANES]
    size_t size[HASH_LANES]
    uint32_t index[HASH_LANES]
    bint boxed[HASH_LANES]
    lc_place place[HASH_LANES]
    lc_cut cut[HASH_LANES]


# `data`: where the messages are whole.
cdef inline void hash_them(lc_batch *batch, const uint8_t *data, uint8_t *wire,
                           lc_unhashed *u) noexcept nogil:
    cdef uint32_t hashes[HASH_LANES]
    cdef const uint8_t *p[HASH_LANES]
    cdef uint32_t i
    if u.count == 0:
        return
    hash_bodies(batch, data, u.at, u.size, u.index, u.count)
    for i in range(u.count):
        p[i] = data + u.at[i]
    murmur3_many(p, u.size, u.count, hashes)
    for i in range(u.count):
        if u.boxed[i]:
            put_hash(wire, u.place[i], &u.cut[i], hashes[i])
    u.count = 0


# Those in several datagrams, which lie in the scratch.
cdef inline void hash_large(lc_plog *w, lc_batch *batch, lc_wire *wire, lc_unhashed *u) noexcept nogil:
    hash_them(batch, w.scratch.data, wire.data, u)
    w.scratch.size = 0
    trim(&w.scratch, ROOM_KEPT)


# Whether a message may go without a box.
cdef inline bint goes_unboxed(lc_plog *w, uint8_t first, uint64_t size, uint32_t tags) noexcept nogil:
    return w.unboxed and tags == 0 and 0 < size <= w.room and first > 31


cdef int plog_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                     lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    cdef lc_run run
    cdef lc_cut cut
    cdef lc_place place
    cdef lc_unhashed small, large
    cdef lc_unhashed *u
    cdef const uint8_t *body
    cdef const uint8_t *tags
    cdef uint32_t tags_size, head, length, i, n = 0
    cdef uint64_t size, guess, taken = 0
    cdef size_t begin = wire.size, at
    cdef int64_t done
    cdef bint simple, tagged, several
    cdef uint8_t *p
    memset(&run, 0, sizeof(run))
    small.count = large.count = 0
    small.lanes = large.lanes = xxh64_lanes()
    plog_fill(w, now)
    events = min(events, handing_room(&w.handing))
    for i in range(batch.cursor, batch.n):
        if n == events or is_drained(w):
            break
        if batch.fate[i] != PENDING:
            continue
        size = batch.size[i]
        if n and taken + size > w.batch_bytes:
            break
        body = batch.body[i]
        tags = w.tags
        tags_size = w.tags_size
        tagged = batch.kind[i] >> K_TOPIC_SHIFT != 0
        if tagged:
            if batch.kind[i] >> K_TOPIC_SHIFT != K_TAGGED or size < 2 or size - 2 < (
                    <uint64_t> body[0] << 8 | body[1]):
                batch.fate[i] = FAILED
                batch.reason[i] = R_UNENCODABLE
                continue
            tags_size = <uint32_t> body[0] << 8 | body[1]
            tags = body + 2
            body += 2 + tags_size
            size -= 2 + tags_size
        # The size is not known before the body is there: it goes where it most likely belongs. What may need
        # several datagrams goes into the scratch: it is hashed as a whole.
        guess = size + (TAIL_SIZE if w.identity and batch.kind[i] & K_MASK != K_BYTES else 0)
        simple = size > 0 and goes_unboxed(w, body[0], guess, tags_size)
        several = not simple and HEADER_SIZE + tags_size + guess > w.room
        at = 0
        if several:
            if large.count and w.scratch.size + guess > SCRATCH_MOST:
                hash_large(w, batch, wire, &large)
            p = wire_reserve(&w.scratch, size + TAIL_SIZE + SCAN_PAD)
        else:
            head = 0 if simple else HEADER_SIZE + tags_size
            at = (0 if run_takes(&run, head + <uint32_t> guess) else RUN_HEAD) + head
            p = wire_reserve(wire, RUN_HEAD + HEADER_SIZE + tags_size + size + TAIL_SIZE + SCAN_PAD)
        done = STOP_MEMORY
        if p != NULL:
            done = finish_body(w, batch, i, body, p + at, size)
        if done >= 0 and (<uint64_t> done > w.most or cut_message(done, tags_size, w.room, &cut) < 0):
            batch.fate[i] = FAILED
            batch.reason[i] = R_TOO_LARGE
            continue
        if done >= 0:
            p += at
            simple = done > 0 and goes_unboxed(w, p[0], done, tags_size)
            if simple:
                cut.count = 1
            u = &small if cut.count == 1 else &large
            at = w.scratch.size
            length = <uint32_t> done
            if cut.count > 1:
                length += cut.count * HEADER_SIZE + tags_size
                if put_fragments(wire, &run, p, <uint32_t> done, &cut, w.id_, 0, tags, tags_size, &place) < 0:
                    done = STOP_MEMORY
                else:
                    w.scratch.size += done
            elif several and wire_reserve(wire, RUN_HEAD + HEADER_SIZE + tags_size + done) == NULL:
                done = STOP_MEMORY
            else:
                head = 0 if simple else HEADER_SIZE + tags_size
                length += head
                at = wire.size + (0 if run_takes(&run, length) else RUN_HEAD) + head
                if wire.data + at != p:
                    memmove(wire.data + at, p, done)
                place.at = run_add(&run, wire, length)
                place.run = run.at
                if not simple:
                    put_header(wire.data + place.at, &cut, w.id_, <uint32_t> done, 0)
                    put16(wire.data + place.at + 20, tags_size)
                    memcpy(wire.data + place.at + HEADER_SIZE, tags, tags_size)
        if done < 0:
            if n:
                break            # what there is goes; the pump hears of it at the next turn
            return STOP_MEMORY
        u.at[u.count] = at
        u.size[u.count] = done
        u.index[u.count] = i
        u.boxed[u.count] = not simple
        u.place[u.count] = place
        u.cut[u.count] = cut
        u.count += 1
        if small.count == small.lanes:
            hash_them(batch, wire.data, wire.data, &small)
        if large.count == large.lanes:
            hash_large(w, batch, wire, &large)
        batch.fate[i] = INFLIGHT
        handing_add(&w.handing, batch.seq[i], wire.size - begin)
        n += 1
        taken += size
        w.datagrams += cut.count
        if simple:
            w.simple += 1
        else:
            w.boxed += 1
            w.id_ = w.id_ + 1 if w.id_ < ID_MOST else 1
        if w.packets.rate:
            w.packets.level -= cut.count
        if w.size.rate:
            w.size.level -= length
    hash_them(batch, wire.data, wire.data, &small)
    hash_large(w, batch, wire, &large)
    w.handing.written += wire.size - begin
    return n


# Over TCP: a message is a line. One with a line end in it, or a CR before that, would arrive as another.
cdef int lines_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                      lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    cdef size_t at[HASH_LANES]       # messages on the wire, not hashed yet
    cdef size_t sizes[HASH_LANES]
    cdef uint32_t index[HASH_LANES]
    cdef uint32_t waiting = 0, lanes = xxh64_lanes()
    cdef uint32_t i, n = 0
    cdef uint64_t size, taken = 0
    cdef size_t begin = wire.size
    cdef int64_t done
    cdef uint8_t *p
    plog_fill(w, now)
    events = min(events, handing_room(&w.handing))
    for i in range(batch.cursor, batch.n):
        if n == events:
            break
        if batch.fate[i] != PENDING:
            continue
        size = batch.size[i]
        if n and taken + size > w.batch_bytes:
            break
        done = STOP_MEMORY
        p = wire_reserve(wire, size + TAIL_SIZE + SCAN_PAD + 1)
        if p != NULL:
            done = finish_body(w, batch, i, batch.body[i], p, size)
        if done < 0:
            if n:
                break            # what there is goes; the pump hears of it at the next turn
            return STOP_MEMORY
        if <uint64_t> done > w.most:
            batch.fate[i] = FAILED
            batch.reason[i] = R_TOO_LARGE
            continue
        if (batch.kind[i] >> K_TOPIC_SHIFT or memchr(p, c'\n', done) != NULL
                or done and p[done - 1] == c'\r'):
            batch.fate[i] = FAILED
            batch.reason[i] = R_UNENCODABLE
            continue
        p[done] = c'\n'
        at[waiting] = wire.size
        sizes[waiting] = done
        index[waiting] = i
        waiting += 1
        if waiting == lanes:
            hash_bodies(batch, wire.data, at, sizes, index, waiting)
            waiting = 0
        wire.size += done + 1
        batch.fate[i] = INFLIGHT
        handing_add(&w.handing, batch.seq[i], wire.size - begin)
        n += 1
        taken += size
    if waiting:
        hash_bodies(batch, wire.data, at, sizes, index, waiting)
    w.simple += n
    w.handing.written += wire.size - begin
    return n


# Over TCP nobody answers.
cdef int lines_receive(void *self, const uint8_t *data, size_t size, double now,
                       lc_outcomes *out) noexcept nogil:
    out.alive += size > 0
    return 0


# The kernel has taken so many bytes of the wire.
cdef void plog_sent(void *self, size_t size, lc_outcomes *out) noexcept nogil:
    handing_took(&(<lc_plog *> self).handing, size, out)


cdef int plog_receive(void *self, const uint8_t *data, size_t size, double now,
                      lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    cdef uint8_t *to
    if size == 0:
        return 0
    plog_fill(w, now)
    out.alive += 1
    out.heard += 1
    if w.heard.size + size > HEARD_MOST:
        w.lost += 1              # nobody asks so much at a time: a stranger talks
        return 0
    to = wire_reserve(&w.heard, size)
    if to == NULL:
        return STOP_MEMORY
    memcpy(to, data, size)
    w.heard.size += size
    return 0


# Nothing is awaited that would mean a connection: there is none.
cdef double plog_deadline(void *self) noexcept nogil:
    return 0


@cython.final
cdef class Hot(CodecBase):
    """The client; see the stub."""

    cdef lc_plog w
    cdef bytes tail
    cdef bytes kept_tags
    cdef uint32_t first

    def __cinit__(self):
        memset(&self.w, 0, sizeof(lc_plog))

    def __init__(self, bytes producer, *, int64_t datagram=1452, bytes tags=b"", bint unboxed=False,
                 int64_t max_message=262144, int64_t batch_bytes=1 << 20, bint identity=True, bint check=True,
                 double packets=10000.0, double burst=64.0, double size=67108864.0,
                 double size_burst=131072.0, int64_t number=1, bint lines=False):
        cdef lc_plog *w = &self.w
        if w.tail != NULL:
            raise TypeError("already made")
        if len(producer) != 10:
            raise ValueError(f"producer: 10 bytes, not {len(producer)}")
        for name, value, low, high in (
            ("max_message", max_message, 0, MESSAGE_MOST), ("batch_bytes", batch_bytes, 1, 1 << 30),
            ("number", number, 1, ID_MOST), ("burst", burst, 1.0, 1e9), ("size_burst", size_burst, 1.0, 1e12),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name}: {low} to {high}, not {value}")
        if handing_open(&w.handing, ROUND) < 0:
            raise MemoryError()
        self.kept_tags = tags
        self.datagram = datagram
        self.rates(packets, size)
        self.tail = b',"uuid":"' + producer.hex().encode() + b"0" * (ID_SIZE - PRODUCER_SIZE) + b'"}'
        w.tail = <const uint8_t *> PyBytes_AS_STRING(self.tail)
        w.tags = <const uint8_t *> PyBytes_AS_STRING(tags)
        w.tags_size = <uint32_t> len(tags)
        w.identity = identity
        w.check = check
        w.unboxed = unboxed
        w.most = max_message
        w.batch_bytes = batch_bytes
        w.id_ = self.first = <uint32_t> number
        w.packets.level = w.packets.most = burst
        w.size.level = w.size.most = size_burst
        self.hot.self = w
        self.hot.credit = plog_credit
        self.hot.encode = lines_encode if lines else plog_encode
        self.hot.sent = plog_sent
        self.hot.receive = lines_receive if lines else plog_receive
        self.hot.deadline = plog_deadline
        self.hot.ready = plog_ready
        self.hot.pace = plog_pace

    def __dealloc__(self):
        free(self.w.scratch.data)
        free(self.w.heard.data)
        handing_close(&self.w.handing)

    @property
    def unsent(self):
        return self.w.handing.count

    @property
    def compressor(self):
        return "none"

    @property
    def error(self):
        return None

    @property
    def datagram(self):
        return self.w.room

    @datagram.setter
    def datagram(self, int64_t size):
        if not DATAGRAM_LEAST <= size <= DATAGRAM_MOST:
            raise ValueError(f"datagram: {DATAGRAM_LEAST} to {DATAGRAM_MOST} bytes, not {size}")
        if len(self.kept_tags) > size - HEADER_SIZE:
            raise ValueError(f"tags: {len(self.kept_tags)} bytes, and a datagram has room for "
                             f"{size - HEADER_SIZE}")
        self.w.room = <uint32_t> size

    cdef int rates(self, double packets, double size) except -1:
        for name, value in (("packets", packets), ("size", size)):
            if not 0 <= value <= 1e15:
                raise ValueError(f"{name}: 0 (no bound) or more a second, not {value}")
        self.w.packets.rate = packets
        self.w.size.rate = size
        return 0

    def pace(self, double now, double packets, double size, *, burst=None, size_burst=None):
        self.made()
        plog_fill(&self.w, now)
        self.rates(packets, size)
        for bucket_most, name in ((burst, "burst"), (size_burst, "size_burst")):
            if bucket_most is not None and not 1 <= bucket_most <= 1e12:
                raise ValueError(f"{name}: 1 or more, not {bucket_most}")
        if burst is not None:
            self.w.packets.most = burst
        if size_burst is not None:
            self.w.size.most = size_burst

    def ready(self, double now):
        self.made()
        return self.hot.ready(self.hot.self, now)

    @property
    def now(self):
        return self.w.filled

    @property
    def counts(self):
        return self.w.boxed, self.w.simple, self.w.datagrams

    def connected(self, double now):
        # a new socket may begin anew: the server counts by the port
        self.w.id_ = self.first
        self.w.filled = now
        self.w.heard.size = 0
        handing_forget(&self.w.handing)
        CodecBase.sent(self)

    def connection_lost(self):
        self.w.heard.size = 0
        handing_forget(&self.w.handing)
        CodecBase.sent(self)

    def sent(self, uint64_t rest=0):
        cdef lc_handing *h = &self.w.handing
        CodecBase.sent(self)
        if rest <= h.written - h.taken:
            handing_took(h, h.written - h.taken - rest, &self.out)

    def command(self, bytes datagram):
        cdef lc_run run
        self.made()
        if not 0 < len(datagram) <= <Py_ssize_t> self.w.room:
            raise ValueError(f"command: 1 to {self.w.room} bytes, not {len(datagram)}")
        if self.box.views:
            self.full.append(self.box)
            self.box = type(self.box)()
        memset(&run, 0, sizeof(run))
        if wire_reserve(&self.box.wire, RUN_HEAD + len(datagram)) == NULL:
            raise MemoryError()
        memcpy(self.box.wire.data + run_add(&run, &self.box.wire, <uint32_t> len(datagram)),
               <const uint8_t *> PyBytes_AS_STRING(datagram), len(datagram))
        self.w.handing.written += RUN_HEAD + len(datagram)

    def heard(self):
        found = split_runs(self.w.heard.data, self.w.heard.size)
        self.w.heard.size = 0
        trim(&self.w.heard, 65536)
        return found or []


# ---------------------------------------------------------------------------------------------------
# Fragments put together again, as the real server judges them
# ---------------------------------------------------------------------------------------------------

cdef enum Verdict:
    V_MESSAGE = 0                # all of a boxed message is there
    V_SIMPLE                     # an unboxed message
    V_FRAGMENT                   # kept: others are missing
    V_COMMAND
    V_EMPTY                      # faults from here on
    V_BAD_VERSION
    V_BAD_TYPE
    V_BAD_HEADER
    V_OUT_OF_BOUNDS
    V_BAD_FRAGMENT
    V_BAD_CHECKSUM
    V_TOO_LARGE

MESSAGE = <int> V_MESSAGE
SIMPLE = <int> V_SIMPLE
FRAGMENT = <int> V_FRAGMENT
COMMAND = <int> V_COMMAND
EMPTY = <int> V_EMPTY
BAD_VERSION = <int> V_BAD_VERSION
BAD_TYPE = <int> V_BAD_TYPE
BAD_HEADER = <int> V_BAD_HEADER
OUT_OF_BOUNDS = <int> V_OUT_OF_BOUNDS
BAD_FRAGMENT = <int> V_BAD_FRAGMENT
BAD_CHECKSUM = <int> V_BAD_CHECKSUM
TOO_LARGE = <int> V_TOO_LARGE
VERDICT_NAMES = (
    "message", "simple", "fragment", "command", "empty", "bad_version", "bad_type", "bad_header",
    "out_of_bounds", "bad_fragment", "bad_checksum", "too_large",
)

cdef enum:
    RECEIVE_SIZE = 65536         # the buffer of the real server: beyond it a read is out of bounds
    BUCKETS = 17
    OPEN_LEAST = 1024            # places of the table to begin with
    MEMORY_LEAST = 16384         # room for one message besides its bytes


# What is known of a message of which not all has come. In one piece with the bits and the payload.
cdef struct lc_open:
    lc_open *next                # in the same place of the table
    lc_open *older
    lc_open *newer
    uint64_t stream
    uint32_t id_
    uint32_t count
    uint32_t size
    uint32_t total
    uint32_t hash_
    uint32_t got
    double touched
    size_t charge
    uint64_t *bits               # of fragments that are there
    uint8_t *payload
    uint8_t *tags
    uint32_t tags_size


# What a server counts; the names are those of its STAT.
ctypedef struct lc_stat:
    uint64_t udp_simple_messages
    uint64_t udp_invalid_version
    uint64_t v0_invalid_type
    uint64_t v0_invalid_multipart_header
    uint64_t v0_commands
    uint64_t exceptions
    uint64_t empty
    uint64_t evictions
    uint64_t hits
    uint64_t misses
    uint64_t v0_fragments[BUCKETS]
    uint64_t v0_invalid_checksum[BUCKETS]
    uint64_t v0_invalid_fragments[BUCKETS][BUCKETS]
    uint64_t dropped_fragments[BUCKETS][BUCKETS]


ctypedef struct lc_defrag:
    uint64_t max_message
    size_t max_bytes
    double expire
    lc_open **table
    size_t places                # a power of two
    size_t n
    size_t bytes
    lc_open *oldest
    lc_open *newest
    lc_open *done                # delivered last; freed by the next datagram
    lc_stat stat


# One datagram, judged.
ctypedef struct lc_judged:
    Verdict verdict
    bint opened                  # the first that was seen of its message
    bint whole                   # of several fragments: the payload is not in the datagram
    uint32_t id_
    uint32_t count
    uint32_t index
    const uint8_t *payload
    size_t size
    const uint8_t *tags
    uint32_t tags_size


cdef inline uint32_t get16(const uint8_t *p) noexcept nogil:
    return <uint32_t> p[0] << 8 | p[1]


# 0: 0, 1: 1, 2: 2 and 3, 3: 4 to 7 ...
cdef inline uint32_t bucket_of(uint32_t n) noexcept nogil:
    cdef uint32_t k = 0
    while n:
        n >>= 1
        k += 1
    return k


cdef inline size_t place_of(const lc_defrag *d, uint64_t stream, uint32_t id_) noexcept nogil:
    cdef uint64_t h = (stream ^ <uint64_t> id_ << 32 ^ id_) * 0x9E3779B185EBCA87ULL
    return <size_t> (h >> 32) & (d.places - 1)


cdef inline void unlink_age(lc_defrag *d, lc_open *m) noexcept nogil:
    if m.older != NULL:
        m.older.newer = m.newer
    else:
        d.oldest = m.newer
    if m.newer != NULL:
        m.newer.older = m.older
    else:
        d.newest = m.older


cdef inline void link_newest(lc_defrag *d, lc_open *m) noexcept nogil:
    m.newer = NULL
    m.older = d.newest
    if d.newest != NULL:
        d.newest.newer = m
    else:
        d.oldest = m
    d.newest = m


cdef void free_open(lc_open *m) noexcept nogil:
    if m != NULL:
        free(m.tags)
        free(m)


# Out of the table and the ages; it is the caller's.
cdef void take_out(lc_defrag *d, lc_open *m) noexcept nogil:
    cdef lc_open **at = &d.table[place_of(d, m.stream, m.id_)]
    while at[0] != m:
        at = &at[0].next
    at[0] = m.next
    unlink_age(d, m)
    d.n -= 1
    d.bytes -= m.charge


# Count the fragments that never came, by the word: 65,535 of them are no more work than 1,024.
cdef void count_dropped(lc_defrag *d, const lc_open *m) noexcept nogil:
    cdef uint64_t *to = d.stat.dropped_fragments[bucket_of(m.count - 1)]
    cdef uint32_t words = (m.count + 63) >> 6, w, i
    cdef uint64_t missing
    for w in range(words):
        missing = ~m.bits[w]
        if w == words - 1 and m.count & 63:
            missing &= (<uint64_t> 1 << (m.count & 63)) - 1
        if w == 0:
            for i in range(64):
                to[bucket_of(i)] += missing >> i & 1
        else:
            to[bucket_of(64 * w)] += lc_ones(missing)


cdef void evict(lc_defrag *d, lc_open *m) noexcept nogil:
    count_dropped(d, m)
    d.stat.evictions += 1
    take_out(d, m)
    free_open(m)


cdef void expire_old(lc_defrag *d, double now) noexcept nogil:
    while d.oldest != NULL and now - d.oldest.touched >= d.expire:
        evict(d, d.oldest)


cdef void make_room(lc_defrag *d, const lc_open *kept) noexcept nogil:
    cdef lc_open *m = d.oldest
    cdef lc_open *newer
    while d.bytes > d.max_bytes and m != NULL:
        newer = m.newer
        if m != kept:
            evict(d, m)
        m = newer


cdef int grow_table(lc_defrag *d) noexcept nogil:
    cdef size_t places = d.places * 2 if d.places else OPEN_LEAST
    cdef lc_open **table = <lc_open **> calloc(places, sizeof(lc_open *))
    cdef lc_open *m
    cdef size_t place
    if table == NULL:
        return -1
    free(d.table)
    d.table = table
    d.places = places
    m = d.oldest
    while m != NULL:
        place = place_of(d, m.stream, m.id_)
        m.next = table[place]
        table[place] = m
        m = m.newer
    return 0


cdef inline lc_open *find_open(lc_defrag *d, uint64_t stream, uint32_t id_) noexcept nogil:
    cdef lc_open *m = d.table[place_of(d, stream, id_)] if d.places else NULL
    while m != NULL and (m.stream != stream or m.id_ != id_):
        m = m.next
    return m


# NULL when memory is out.
cdef lc_open *add_open(lc_defrag *d, uint64_t stream, const lc_judged *v, uint32_t size, uint32_t total,
                       uint32_t hash_) noexcept nogil:
    cdef size_t bits = ((v.count + 63) >> 6) * sizeof(uint64_t)
    cdef size_t charge = sizeof(lc_open) + bits + total
    cdef lc_open *m
    cdef size_t place
    if d.n >= d.places and grow_table(d) < 0:
        return NULL
    m = <lc_open *> malloc(charge)
    if m == NULL:
        return NULL
    memset(m, 0, sizeof(lc_open) + bits)
    m.bits = <uint64_t *> (m + 1)
    m.payload = <uint8_t *> m.bits + bits
    m.stream = stream
    m.id_ = v.id_
    m.count = v.count
    m.size = size
    m.total = total
    m.hash_ = hash_
    m.charge = charge
    place = place_of(d, stream, v.id_)
    m.next = d.table[place]
    d.table[place] = m
    link_newest(d, m)
    d.n += 1
    d.bytes += charge
    return m


# A fragment of a message of several. -1 when memory is out.
cdef int judge_part(lc_defrag *d, const uint8_t *p, uint64_t stream, double now,
                    lc_judged *v) noexcept nogil:
    cdef uint32_t size = get16(p + 6), total = lc_get32(p + 12), hash_ = lc_get32(p + 16)
    cdef uint32_t wide = bucket_of(v.count - 1)
    cdef uint64_t at = <uint64_t> size * v.index
    cdef lc_open *m
    cdef uint8_t *tags
    cdef uint64_t bit = <uint64_t> 1 << (v.index & 63)
    cdef bint last = v.index == v.count - 1
    cdef bint good
    expire_old(d, now)
    m = find_open(d, stream, v.id_)
    v.opened = m == NULL
    if m == NULL:
        d.stat.misses += 1
    else:
        d.stat.hits += 1
        unlink_age(d, m)
        link_newest(d, m)
        m.touched = now
        good = m.count == v.count and m.size == size and m.hash_ == hash_
        if not good:
            v.verdict = V_BAD_FRAGMENT
            d.stat.v0_invalid_fragments[wide][bucket_of(v.index)] += 1
            return 0
        total = m.total          # whatever this one says
    good = <int64_t> v.size == (<int64_t> total - <int64_t> at if last else <int64_t> size)
    v.verdict = V_FRAGMENT
    if not good:
        v.verdict = V_BAD_FRAGMENT
        d.stat.v0_invalid_fragments[wide][bucket_of(v.index)] += 1
    elif at + v.size > total:
        v.verdict = V_OUT_OF_BOUNDS
        d.stat.exceptions += 1
        return 0
    if m == NULL:
        if total > d.max_message:
            # it would be pushed out at once, and by each of its fragments again
            v.verdict = V_TOO_LARGE
            d.stat.evictions += 1
            count_absent(d, v, good)
            return 0
        m = add_open(d, stream, v, size, total, hash_)
        if m == NULL:
            return -1
        m.touched = now
        make_room(d, m)
    if not good:
        return 0
    memcpy(m.payload + at, v.payload, v.size)
    if v.tags_size:
        tags = <uint8_t *> realloc(m.tags, v.tags_size)
        if tags == NULL:
            return -1
        memcpy(tags, v.tags, v.tags_size)
        m.tags = tags
        m.charge += v.tags_size
        m.charge -= m.tags_size
        d.bytes += v.tags_size
        d.bytes -= m.tags_size
        m.tags_size = v.tags_size
        make_room(d, m)
    if not m.bits[v.index >> 6] & bit:
        m.bits[v.index >> 6] |= bit
        m.got += 1
    if m.got < m.count:
        return 0
    take_out(d, m)
    d.done = m
    v.payload = m.payload
    v.size = m.total
    v.tags = m.tags
    v.tags_size = m.tags_size
    v.whole = True
    v.verdict = V_MESSAGE
    if murmur3_of(m.payload, m.total) != m.hash_:
        v.verdict = V_BAD_CHECKSUM
        d.stat.v0_invalid_checksum[wide] += 1
    return 0


# The fragments of a message that was not kept, all but this one where it was good.
cdef void count_absent(lc_defrag *d, const lc_judged *v, bint good) noexcept nogil:
    cdef uint64_t *to = d.stat.dropped_fragments[bucket_of(v.count - 1)]
    cdef uint32_t k = 0, low = 0, high = 1
    while low < v.count:
        to[k] += min(high, v.count) - low
        low = high
        high *= 2
        k += 1
    if good:
        to[bucket_of(v.index)] -= 1


# One datagram. -1 when memory is out.
cdef int judge(lc_defrag *d, const uint8_t *p, size_t size, uint64_t stream, double now,
               lc_judged *v) noexcept nogil:
    cdef uint32_t tags
    memset(v, 0, sizeof(lc_judged))
    free_open(d.done)
    d.done = NULL
    v.payload = p
    v.size = size
    if size == 0:
        v.verdict = V_EMPTY      # the real server takes what an earlier one has left in its buffer
        d.stat.empty += 1
        return 0
    if p[0] > 31:
        v.verdict = V_SIMPLE
        d.stat.udp_simple_messages += 1
        return 0
    if p[0]:
        v.verdict = V_BAD_VERSION
        d.stat.udp_invalid_version += 1
        return 0
    if size == 1 or p[1] > 1:
        v.verdict = V_BAD_TYPE
        d.stat.v0_invalid_type += 1
        return 0
    if p[1] == 0:
        v.verdict = V_COMMAND
        v.payload = p + 2
        v.size = size - 2
        d.stat.v0_commands += 1
        return 0
    v.verdict = V_BAD_HEADER
    if size >= HEADER_SIZE:
        v.count = get16(p + 2)
        v.index = get16(p + 4)
        v.id_ = lc_get32(p + 8)
    if size < HEADER_SIZE or v.index >= v.count or lc_get32(p + 12) > MESSAGE_MOST:
        d.stat.v0_invalid_multipart_header += 1
        return 0
    tags = get16(p + 20)
    if tags > size - HEADER_SIZE:
        if tags > RECEIVE_SIZE - HEADER_SIZE:
            v.verdict = V_OUT_OF_BOUNDS
            d.stat.exceptions += 1
        else:
            d.stat.v0_invalid_multipart_header += 1
        return 0
    v.tags = p + HEADER_SIZE
    v.tags_size = tags
    v.payload = v.tags + tags
    v.size = size - HEADER_SIZE - tags
    d.stat.v0_fragments[bucket_of(v.index)] += 1
    if v.count > 1:
        return judge_part(d, p, stream, now, v)
    # alone: only the hash is looked at
    v.opened = True
    v.verdict = V_MESSAGE
    if murmur3_of(v.payload, v.size) != lc_get32(p + 16):
        v.verdict = V_BAD_CHECKSUM
        d.stat.v0_invalid_checksum[0] += 1
    return 0


cdef int open_defrag(lc_defrag *d, object max_message, object max_bytes, double expire) except -1:
    if not 0 <= max_message <= MESSAGE_MOST:
        raise ValueError(f"max_message: 0 to {MESSAGE_MOST} bytes, not {max_message}")
    if not max_message + MEMORY_LEAST <= max_bytes <= 1 << 40:
        raise ValueError(f"max_bytes: at least max_message and {MEMORY_LEAST}, not {max_bytes}")
    if not expire > 0:
        raise ValueError(f"expire: more than 0 seconds, not {expire}")
    memset(d, 0, sizeof(lc_defrag))
    d.max_message = max_message
    d.max_bytes = max_bytes
    d.expire = expire
    return 0


cdef void close_defrag(lc_defrag *d) noexcept nogil:
    cdef lc_open *m = d.oldest
    cdef lc_open *newer
    while m != NULL:
        newer = m.newer
        free_open(m)
        m = newer
    free_open(d.done)
    free(d.table)
    memset(d, 0, sizeof(lc_defrag))


cdef list opens_of(lc_defrag *d):
    cdef lc_open *m = d.oldest
    found = []
    while m != NULL:
        found.append((m.stream, m.id_, m.got, m.count))
        m = m.newer
    return found


cdef enum:
    JUDGED_COLUMNS = 9

cdef const char *JUDGED_ITEMS = b"\x01\x01\x04\x02\x02\x08\x04\x08\x04"
cdef const char *JUDGED_CODES = b"BBIHHqiqi"


# Columns of datagrams that were judged, one place for each, in the order of these.
ctypedef struct lc_judgements:
    uint8_t *verdict
    uint8_t *opened
    uint32_t *id_
    uint16_t *count
    uint16_t *index
    int64_t *begin
    int32_t *length
    int64_t *tags_begin
    int32_t *tags_length


# The number judged: fewer than n when the next leaves the data; -1 when memory is out.
cdef Py_ssize_t judge_all(lc_defrag *d, const uint8_t *p, Py_ssize_t total, const int64_t *at,
                          const int64_t *size, const uint64_t *streams, Py_ssize_t n, double now,
                          lc_judgements *j, lc_wire *bodies) noexcept nogil:
    cdef lc_judged v
    cdef uint8_t *to
    cdef Py_ssize_t i
    for i in range(n):
        if at[i] < 0 or size[i] < 0 or at[i] > total or size[i] > total - at[i]:
            return i
        if judge(d, p + at[i], <size_t> size[i], streams[i], now, &v) < 0:
            return -1
        j.verdict[i] = v.verdict
        j.opened[i] = v.opened
        j.id_[i] = v.id_
        j.count[i] = <uint16_t> v.count
        j.index[i] = <uint16_t> v.index
        j.length[i] = <int32_t> v.size
        j.tags_length[i] = <int32_t> v.tags_size
        if v.whole:
            # behind the data: below zero, from -1 down
            to = wire_reserve(bodies, v.size + v.tags_size)
            if to == NULL:
                return -1
            memcpy(to, v.payload, v.size)
            if v.tags_size:
                memcpy(to + v.size, v.tags, v.tags_size)
            j.begin[i] = -1 - <int64_t> bodies.size
            j.tags_begin[i] = j.begin[i] - <int64_t> v.size
            bodies.size += v.size + v.tags_size
        else:
            j.begin[i] = v.payload - p
            j.tags_begin[i] = v.tags - p if v.tags != NULL else 0
    return n


@cython.final
cdef class Judged:
    """Datagrams, judged, a row each; see the stub."""

    cdef readonly Column verdict, opened, id, count, index, begin, length, tags_begin, tags_length
    cdef object data
    cdef bytes bodies
    cdef Py_ssize_t n

    def __len__(self):
        return self.n

    cdef bytes piece(self, Py_ssize_t row, Column begin, Column length):
        cdef int64_t at
        cdef int32_t size
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} of {self.n}")
        at = (<int64_t *> begin.data)[row]
        size = (<int32_t *> length.data)[row]
        if at < 0:
            return self.bodies[-1 - at:-1 - at + size]
        return bytes(self.data[at:at + size])

    def payload(self, Py_ssize_t row):
        return self.piece(row, self.begin, self.length)

    def tags(self, Py_ssize_t row):
        return self.piece(row, self.tags_begin, self.tags_length)


@cython.final
cdef class Reassembler:
    """Judges datagrams and puts messages together; see the stub."""

    cdef lc_defrag d

    def __cinit__(self):
        memset(&self.d, 0, sizeof(lc_defrag))

    def __init__(self, *, max_message=262144, max_bytes=1 << 20, double expire=10.0):
        if self.d.max_bytes:
            raise TypeError("already made")
        open_defrag(&self.d, max_message, max_bytes, expire)

    def __dealloc__(self):
        close_defrag(&self.d)

    def feed(self, data, offsets, lengths, streams, double now):
        cdef BorrowedBuffer view = BorrowedBuffer(data), at = BorrowedBuffer(offsets)
        cdef BorrowedBuffer size = BorrowedBuffer(lengths), stream = BorrowedBuffer(streams)
        cdef Py_ssize_t n = count_units(at, size, stream), i = 0
        cdef lc_judgements j
        cdef void **columns = <void **> &j
        cdef lc_wire bodies
        cdef Judged out = Judged.__new__(Judged)
        if not self.d.max_bytes:
            raise TypeError("not made")
        memset(&bodies, 0, sizeof(bodies))
        memset(&j, 0, sizeof(j))
        try:
            for i in range(JUDGED_COLUMNS):
                columns[i] = malloc(n * JUDGED_ITEMS[i] + 1)
                if columns[i] == NULL:
                    raise MemoryError()
            with nogil:
                i = judge_all(&self.d, <const uint8_t *> view.b.buf, view.b.len, <const int64_t *> at.b.buf,
                              <const int64_t *> size.b.buf, <const uint64_t *> stream.b.buf, n, now, &j,
                              &bodies)
            if i < 0:
                raise MemoryError()
            if i < n:
                raise ValueError(f"datagram {i} leaves the data of {view.b.len} bytes")
            out.n = n
            out.data = memoryview(data).cast("B")
            out.bodies = PyBytes_FromStringAndSize(<const char *> bodies.data, bodies.size)
            found = [make_column(&columns[i], n, JUDGED_ITEMS[i], JUDGED_CODES[i])
                     for i in range(JUDGED_COLUMNS)]
            (out.verdict, out.opened, out.id, out.count, out.index, out.begin, out.length, out.tags_begin,
             out.tags_length) = found
            return out
        finally:
            free(bodies.data)
            for i in range(JUDGED_COLUMNS):
                free(columns[i])

    def expire(self, double now):
        expire_old(&self.d, now)

    @property
    def open(self):
        return opens_of(&self.d)

    @property
    def held(self):
        return self.d.bytes

    def counters(self):
        cdef lc_stat *s = &self.d.stat
        cdef int i, k
        return {
            "udp_simple_messages": s.udp_simple_messages,
            "udp_invalid_version": s.udp_invalid_version,
            "v0_invalid_type": s.v0_invalid_type,
            "v0_invalid_multipart_header": s.v0_invalid_multipart_header,
            "v0_commands": s.v0_commands,
            "exceptions": s.exceptions,
            "empty": s.empty,
            "v0_fragments": [s.v0_fragments[i] for i in range(BUCKETS)],
            "v0_invalid_checksum": [s.v0_invalid_checksum[i] for i in range(BUCKETS)],
            "v0_invalid_fragments": [
                [s.v0_invalid_fragments[i][k] for k in range(i + 1)] for i in range(BUCKETS)],
            "dropped_fragments": [[s.dropped_fragments[i][k] for k in range(i + 1)] for i in range(BUCKETS)],
            "defragmenter": {"evictions": s.evictions, "hits": s.hits, "misses": s.misses},
        }


# ---------------------------------------------------------------------------------------------------
# The decoder of captures
# ---------------------------------------------------------------------------------------------------

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON                   # never: a body may be anything
    # the faults are those of Verdict, from V_EMPTY on
    S_COMMAND = V_TOO_LARGE + 1

OK = <int> S_OK
FOREIGN = <int> S_FOREIGN
NO_ID = <int> S_NO_ID
STATUS_NAMES = ("ok", "foreign", "no_id", "not_json", *VERDICT_NAMES[<int> V_EMPTY:], "command")

cdef enum:
    C_SIMPLE = C_OWN
    C_FRAGMENTS
    C_NUMBER


@cython.final
cdef class Decoded(Events):
    """Decoded datagrams: a row for each whole message, and one for each fault and command.

    `offset` and `length` are those of the body in the unit. For a message of several fragments `length` is
    that of the whole, `unit` the one that completed it, and `offset` where the last part of it begins.
    """

    @property
    def simple(self):
        """uint8: 1 when the message was unboxed."""
        return self.columns[<int> C_SIMPLE]

    @property
    def fragments(self):
        """uint16: fragments of the message; 0 when it was unboxed."""
        return self.columns[<int> C_FRAGMENTS]

    @property
    def number(self):
        """uint32: the message's id, by which servers count holes; 0 when it was unboxed."""
        return self.columns[<int> C_NUMBER]


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured datagrams, and keeps the fragments of incomplete messages between calls.

    Use one decoder for each listener.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an id counts when it begins with
            one of these. Without them any 32 hex digits in ``uuid`` are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        datagrams: False when units are bodies, as in a Kafka topic.
        max_message, max_bytes, expire: as for `Reassembler`. None for max_bytes: 64 MiB, or one message if
            that is larger.
    """

    cdef bint datagrams
    cdef lc_defrag defrag
    # of the units at hand
    cdef const uint64_t *streams
    cdef const int64_t *times

    def __init__(self, producers=b"", *, bint identity=True, bint datagrams=True, max_message=64 << 20,
                 max_bytes=None, double expire=10.0):
        self.unmade()
        open_defrag(&self.defrag, max_message,
                    max(64 << 20, max_message + MEMORY_LEAST) if max_bytes is None else max_bytes, expire)
        self.begin(Decoded, b"BHI", producers, identity)
        self.datagrams = datagrams

    def __dealloc__(self):
        close_defrag(&self.defrag)

    def decode(self, data, offsets, lengths, streams=None, received_us=None):
        """Decode the units ``data[offset:offset + length]``, without the GIL.

        Args:
            data: the bytes of all units.
            offsets: int64, where each unit begins.
            lengths: int64, the bytes of each unit.
            streams: uint64, the sender of each unit; None: one sender.
            received_us: int64, the time of arrival of each unit in microseconds; None: nothing expires.

        Raises:
            ValueError: the columns differ in size, or a unit is not inside `data`.
        """
        cdef BorrowedBuffer view = BorrowedBuffer(data)
        cdef BorrowedBuffer at = BorrowedBuffer(offsets), size = BorrowedBuffer(lengths)
        cdef BorrowedBuffer stream = None if streams is None else BorrowedBuffer(streams)
        cdef BorrowedBuffer time = None if received_us is None else BorrowedBuffer(received_us)
        count_units(at, size, stream)
        count_units(at, size, time)
        self.streams = NULL
        self.times = NULL
        if stream is not None:
            self.streams = <const uint64_t *> stream.b.buf
        if time is not None:
            self.times = <const int64_t *> time.b.buf
        return self.decode_buffers(view, at, size)

    @property
    def open(self):
        """As `Reassembler.open`."""
        return opens_of(&self.defrag)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef lc_judged v
        cdef lc_rows *r = &self.rows
        cdef lc_id id_
        cdef int status = S_OK
        cdef uint64_t hash_ = 0
        cdef int64_t offset
        cdef size_t i
        clear_id(&id_)
        if self.datagrams:
            if judge(&self.defrag, p, size, self.streams[self.unit] if self.streams != NULL else 0,
                     <double> self.times[self.unit] * 1e-6 if self.times != NULL else 0, &v) < 0:
                return -1
            if v.verdict == V_FRAGMENT:
                return 0
        else:
            memset(&v, 0, sizeof(v))
            v.payload = p
            v.size = size
        offset = HEADER_SIZE + <int64_t> get16(p + 20) if v.whole else v.payload - p
        if v.verdict == V_MESSAGE or v.verdict == V_SIMPLE:
            hash_ = xxh64_of(v.payload, v.size, SEED)
            status = decode_body(self, v.payload, v.size, &id_)
            if status < 0:
                return -1
        else:
            status = S_COMMAND if v.verdict == V_COMMAND else <int> v.verdict
        if add_common(r, <uint8_t> status, &id_, hash_, self.unit, offset, v.size) < 0:
            return -1
        i = r.n - 1
        (<uint8_t *> r.at[C_SIMPLE])[i] = v.verdict == V_SIMPLE
        (<uint16_t *> r.at[C_FRAGMENTS])[i] = <uint16_t> v.count
        (<uint32_t *> r.at[C_NUMBER])[i] = v.id_
        return 0


# The status of a body. -1: out of memory.
cdef int decode_body(Decoder d, const uint8_t *p, size_t size, lc_id *id_) noexcept nogil:
    cdef lc_object o
    cdef lc_span own
    cdef int bad
    if not d.identity:
        return S_NO_ID
    own.at = p
    own.size = size
    bad = scan_body(d, p, size, &o)
    if bad == NO_MEMORY:
        return -1
    if bad == 0 and o.uuid.at != NULL:
        return identify(d, &o.uuid, id_)
    # A body without an id is known by its hash, as in the ledger.
    return -1 if keep_foreign(&d.rows, &own) < 0 else S_FOREIGN


def expand(unit):
    """Return the unit as bytes: nothing in it is compressed."""
    return bytes(unit)
