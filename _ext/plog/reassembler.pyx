# The reassembler: datagrams to messages, judged as the real server does.

cpdef enum:
    MESSAGE = 0                  # a boxed message is complete
    SIMPLE                       # an unboxed message
    FRAGMENT                     # kept: other fragments are missing
    COMMAND
    EMPTY                        # faults from here on
    BAD_VERSION
    BAD_TYPE
    BAD_HEADER
    OUT_OF_BOUNDS
    BAD_FRAGMENT
    BAD_CHECKSUM
    TOO_LARGE

VERDICT_NAMES = (
    "message", "simple", "fragment", "command", "empty", "bad_version", "bad_type", "bad_header",
    "out_of_bounds", "bad_fragment", "bad_checksum", "too_large",
)
"""Their names in reports."""

cdef enum:
    RECEIVE_SIZE = 65536         # the buffer of the real server; it throws when it reads beyond
    BUCKETS = 17
    PLACES = 1 << 16             # of the table of open messages
    MEMORY_LEAST = 16384         # room for a message besides its bytes
    C_OPENED = C_OWN
    C_ID
    C_COUNT
    C_INDEX
    C_TAGS_OFFSET
    C_TAGS_LENGTH


# An incomplete message. The bits and the payload follow in the same allocation.
cdef struct lc_open:
    lc_open *next                # in the same bucket of the table
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
    uint64_t *bits               # one for each fragment: whether it has arrived
    uint8_t *payload
    uint8_t *tags
    uint32_t tags_size


# The counters of a server, under the names of its STAT.
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
    bint jumps                   # the clock may jump: only the next fragment of a message shows its age
    lc_open **table
    size_t bytes
    lc_open *oldest
    lc_open *newest
    lc_open *done                # the message delivered last; freed with the next datagram
    lc_stat stat


# A datagram after the judgement.
ctypedef struct lc_judged:
    uint8_t verdict
    bint opened                  # no fragment of its message was kept: servers count a new message
    bint whole                   # reassembled: the payload is not in the datagram
    uint32_t id_
    uint32_t count
    uint32_t index
    const uint8_t *payload
    size_t size
    const uint8_t *tags
    uint32_t tags_size


cdef inline uint32_t get16(const uint8_t *p) noexcept nogil:
    return <uint32_t> p[0] << 8 | p[1]


# The place of a counter by size: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, ...
cdef inline uint32_t bucket_of(uint32_t n) noexcept nogil:
    cdef uint32_t k = 0
    while n:
        n >>= 1
        k += 1
    return k


cdef inline size_t place_of(uint64_t stream, uint32_t id_) noexcept nogil:
    cdef uint64_t h = (stream ^ <uint64_t> id_ << 32 ^ id_) * 0x9E3779B185EBCA87ULL
    return <size_t> (h >> 32) & (PLACES - 1)


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


# Remove a message from the table and the list by age. The caller owns it then.
cdef void take_out(lc_defrag *d, lc_open *m) noexcept nogil:
    cdef lc_open **at = &d.table[place_of(m.stream, m.id_)]
    while at[0] != m:
        at = &at[0].next
    at[0] = m.next
    unlink_age(d, m)
    d.bytes -= m.charge


# Count all fragments of a message as missing.
cdef void count_absent(lc_defrag *d, uint32_t count) noexcept nogil:
    cdef uint64_t *to = d.stat.dropped_fragments[bucket_of(count - 1)]
    cdef uint32_t low = 0, high = 1
    while low < count:
        to[0] += min(high, count) - low
        low = high
        high *= 2
        to += 1


# Count the fragments that did not arrive, a word at a time: 65,535 cost no more than 1,024.
cdef void count_dropped(lc_defrag *d, const lc_open *m) noexcept nogil:
    cdef uint64_t *to = d.stat.dropped_fragments[bucket_of(m.count - 1)]
    cdef uint32_t w, i
    count_absent(d, m.count)
    for i in range(64):
        to[bucket_of(i)] -= m.bits[0] >> i & 1
    for w in range(1, (m.count + 63) >> 6):
        to[bucket_of(64 * w)] -= lc_ones(m.bits[w])


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


cdef inline lc_open *find_open(lc_defrag *d, uint64_t stream, uint32_t id_) noexcept nogil:
    cdef lc_open *m = d.table[place_of(stream, id_)] if d.table != NULL else NULL
    while m != NULL and (m.stream != stream or m.id_ != id_):
        m = m.next
    return m


# Begin a message. NULL: out of memory.
cdef lc_open *add_open(lc_defrag *d, uint64_t stream, const lc_judged *v, uint32_t size, uint32_t total,
                       uint32_t hash_) noexcept nogil:
    cdef size_t bits = ((v.count + 63) >> 6) * sizeof(uint64_t)
    cdef size_t charge = sizeof(lc_open) + bits + total
    if d.table == NULL:
        d.table = <lc_open **> calloc(PLACES, sizeof(lc_open *))
    cdef lc_open *m = <lc_open *> malloc(charge) if d.table != NULL else NULL
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
    cdef size_t place = place_of(stream, v.id_)
    m.next = d.table[place]
    d.table[place] = m
    link_newest(d, m)
    d.bytes += charge
    return m


# Give a verdict, and count it. Returns 0.
cdef inline int conclude(lc_judged *v, uint8_t verdict, uint64_t *counter) noexcept nogil:
    v.verdict = verdict
    counter[0] += 1
    return 0


# Judge a fragment of a message of several. -1: out of memory.
cdef int judge_part(lc_defrag *d, const uint8_t *p, uint64_t stream, double now, lc_judged *v) noexcept nogil:
    cdef uint32_t size = get16(p + 6), total = lc_get32(p + 12), hash_ = lc_get32(p + 16)
    cdef uint32_t wide = bucket_of(v.count - 1)
    cdef uint64_t at = <uint64_t> size * v.index
    cdef uint8_t *tags
    cdef uint64_t bit = <uint64_t> 1 << (v.index & 63)
    cdef bint last = v.index == v.count - 1
    cdef uint64_t *invalid = &d.stat.v0_invalid_fragments[wide][bucket_of(v.index)]
    if not d.jumps:
        expire_old(d, now)
    cdef lc_open *m = find_open(d, stream, v.id_)
    if m != NULL and now - m.touched >= d.expire:
        evict(d, m)
        m = NULL
    v.opened = m == NULL
    if m == NULL:
        d.stat.misses += 1
    else:
        d.stat.hits += 1
        unlink_age(d, m)
        link_newest(d, m)
        m.touched = now
        if m.count != v.count or m.size != size or m.hash_ != hash_:
            return conclude(v, BAD_FRAGMENT, invalid)
        total = m.total          # whatever this fragment says
    cdef bint good = <int64_t> v.size == (<int64_t> total - <int64_t> at if last else <int64_t> size)
    v.verdict = FRAGMENT
    if not good:
        conclude(v, BAD_FRAGMENT, invalid)
    elif at + v.size > total:
        return conclude(v, OUT_OF_BOUNDS, &d.stat.exceptions)
    if m == NULL:
        if total > d.max_message:
            # It would be evicted at once, and again with each of its fragments.
            count_absent(d, v.count)
            d.stat.dropped_fragments[wide][bucket_of(v.index)] -= good
            return conclude(v, TOO_LARGE, &d.stat.evictions)
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
    v.verdict = MESSAGE
    if murmur3_of(m.payload, m.total) != m.hash_:
        conclude(v, BAD_CHECKSUM, &d.stat.v0_invalid_checksum[wide])
    return 0


# Judge a datagram. -1: out of memory.
cdef int judge(lc_defrag *d, const uint8_t *p, size_t size, uint64_t stream, double now,
               lc_judged *v) noexcept nogil:
    memset(v, 0, sizeof(lc_judged))
    free_open(d.done)
    d.done = NULL
    v.payload = p
    v.size = size
    if size == 0:        # the real server reads the rest of an earlier datagram in its buffer
        return conclude(v, EMPTY, &d.stat.empty)
    if p[0] > 31:
        return conclude(v, SIMPLE, &d.stat.udp_simple_messages)
    if p[0]:
        return conclude(v, BAD_VERSION, &d.stat.udp_invalid_version)
    if size == 1 or p[1] > 1:
        return conclude(v, BAD_TYPE, &d.stat.v0_invalid_type)
    if p[1] == 0:
        v.payload = p + 2
        v.size = size - 2
        return conclude(v, COMMAND, &d.stat.v0_commands)
    if size >= HEADER_SIZE:
        v.count = get16(p + 2)
        v.index = get16(p + 4)
        v.id_ = lc_get32(p + 8)
    if size < HEADER_SIZE or v.index >= v.count or lc_get32(p + 12) > MESSAGE_MOST:
        return conclude(v, BAD_HEADER, &d.stat.v0_invalid_multipart_header)
    cdef uint32_t tags = get16(p + 20)
    if tags > size - HEADER_SIZE:
        if tags > RECEIVE_SIZE - HEADER_SIZE:
            return conclude(v, OUT_OF_BOUNDS, &d.stat.exceptions)
        return conclude(v, BAD_HEADER, &d.stat.v0_invalid_multipart_header)
    v.tags = p + HEADER_SIZE
    v.tags_size = tags
    v.payload = v.tags + tags
    v.size = size - HEADER_SIZE - tags
    d.stat.v0_fragments[bucket_of(v.index)] += 1
    if v.count > 1:
        return judge_part(d, p, stream, now, v)
    # A single fragment: servers check only the hash.
    v.opened = True
    if murmur3_of(v.payload, v.size) != lc_get32(p + 16):
        conclude(v, BAD_CHECKSUM, &d.stat.v0_invalid_checksum[0])
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
    cdef lc_open *m
    while d.oldest != NULL:
        m = d.oldest
        take_out(d, m)
        free_open(m)
    free_open(d.done)
    free(d.table)
    memset(d, 0, sizeof(lc_defrag))


@cython.final
cdef class Judged(Events):
    """Judged datagrams: a row for each, in order."""

    cdef readonly memoryview verdict  # uint8: MESSAGE and so on
    cdef readonly memoryview opened  # uint8: 1 if no fragment of its message was kept before
    cdef readonly memoryview id  # uint32: the id of the message; 0 without one
    cdef readonly memoryview count  # uint16: fragments of the message; 0 if it is not a fragment
    cdef readonly memoryview index  # uint16: the index of the fragment
    cdef readonly memoryview tags_length  # int32: bytes of the tags
    cdef memoryview tags_offset
    cdef memoryview data

    cdef list take_rows(self, lc_rows *r):
        own = Events.take_rows(self, r)
        self.verdict = self.status
        self.opened, self.id, self.count, self.index, self.tags_offset, self.tags_length = own
        return own

    # Bytes of the data, or, from -1 down, of what was reassembled.
    cdef bytes piece(self, Py_ssize_t row, memoryview offset, memoryview length):
        cdef int64_t at
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} of {self.n}")
        at = offset[row]
        return bytes(self.bodies[-1 - at:-1 - at + length[row]] if at < 0 else self.data[at:at + length[row]])

    def payload(self, Py_ssize_t row) -> bytes:
        """Return the payload of a row, reassembled if it had several fragments; the data must still exist."""
        return self.piece(row, self.offset, self.length)

    def tags(self, Py_ssize_t row) -> bytes:
        """Return the tags of a row as they travelled: of several fragments with tags, the last that came."""
        return self.piece(row, self.tags_offset, self.tags_length)


cdef class Defragmenter(BatchDecoder):
    """A decoder that keeps the fragments of incomplete messages between calls."""

    cdef lc_defrag defrag
    # of the current call
    cdef const uint8_t *data
    cdef const uint64_t *streams
    cdef const int64_t *times
    cdef double now

    def __dealloc__(self):
        close_defrag(&self.defrag)

    cdef uint64_t stream_of_unit(self) noexcept nogil:
        return self.streams[self.unit] if self.streams != NULL else 0

    cdef Events judge_units(self, data, offsets, lengths, streams, times, double now=0):
        cdef BorrowedBuffer view = BorrowedBuffer(data)
        cdef BorrowedBuffer at = BorrowedBuffer(offsets), size = BorrowedBuffer(lengths)
        cdef BorrowedBuffer stream = None if streams is None else BorrowedBuffer(streams)
        cdef BorrowedBuffer time = None if times is None else BorrowedBuffer(times)
        count_units(at, size, stream)
        count_units(at, size, time)
        self.begin_use()
        self.now = now
        self.data = <const uint8_t *> view.b.buf
        self.streams = NULL if stream is None else <const uint64_t *> stream.b.buf
        self.times = NULL if time is None else <const int64_t *> time.b.buf
        try:
            return self.decode_buffers(view, at, size)
        finally:
            self.streams = NULL
            self.times = NULL
            lc_end_use(&self.busy)

    @property
    def open(self) -> list[tuple[int, int, int, int]]:
        """(stream, id, fragments arrived, fragments in all) of incomplete messages, by last touch."""
        cdef lc_open *m
        found = []
        self.begin_use()
        try:
            m = self.defrag.oldest
            while m != NULL:
                found.append((m.stream, m.id_, m.got, m.count))
                m = m.newer
            return found
        finally:
            lc_end_use(&self.busy)


@cython.final
cdef class Reassembler(Defragmenter):
    """Judges datagrams as the real server does, and reassembles messages.

    Fragments may arrive in any order and more than once. A complete message is forgotten: a second copy of it
    is delivered again, and a surplus fragment begins a message that is never complete.

    Args:
        max_message: bytes of a message of several fragments, at most.
        max_bytes: bytes of all incomplete messages, by their announced sizes, 1/8 byte for each fragment, and
            their tags. The message that was not touched for longest is evicted first, never the one that has
            just got a fragment: its tags may exceed the bound by 64 KiB.
        expire: seconds after which an untouched message is evicted.
    """

    def __cinit__(self, *, max_message: int = 262144, max_bytes: int = 1 << 20, double expire=10.0):
        open_defrag(&self.defrag, max_message, max_bytes, expire)
        self.begin(Judged, b"BIHHqi", b"", False)

    def feed(self, data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer,
             streams: ReadableBuffer, double now) -> Judged:
        """Judge the datagrams ``data[offset:offset + length]`` (int64) in order, without the GIL.

        `streams` has their senders (uint64), `now` is in seconds of any monotonic clock.
        """
        cdef Judged judged = self.judge_units(data, offsets, lengths, streams, None, now)
        judged.data = memoryview(data).cast("B")
        return judged

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef lc_judged v
        cdef lc_rows *r = &self.rows
        cdef lc_wire *bodies = &self.kept.bodies
        cdef lc_id none
        cdef size_t i = r.n
        cdef int64_t at, tags
        clear_id(&none)
        if judge(&self.defrag, p, size, self.stream_of_unit(), self.now, &v) < 0:
            return -1
        at = v.payload - self.data
        tags = v.tags - self.data if v.tags != NULL else 0
        if v.whole:
            at = -1 - <int64_t> bodies.size
            tags = at - <int64_t> v.size
            if append_bytes(bodies, v.payload, v.size) < 0 or append_bytes(bodies, v.tags, v.tags_size) < 0:
                return -1
        if add_common(r, v.verdict, &none, 0, self.unit, at, v.size) < 0:
            return -1
        (<uint8_t *> r.at[C_OPENED])[i] = v.opened
        (<uint32_t *> r.at[C_ID])[i] = v.id_
        (<uint16_t *> r.at[C_COUNT])[i] = <uint16_t> v.count
        (<uint16_t *> r.at[C_INDEX])[i] = <uint16_t> v.index
        (<int64_t *> r.at[C_TAGS_OFFSET])[i] = tags
        (<int32_t *> r.at[C_TAGS_LENGTH])[i] = <int32_t> v.tags_size
        return 0

    def expire(self, double now):
        """Evict messages that were not touched for long; `feed` does so too."""
        self.begin_use()
        expire_old(&self.defrag, now)
        lc_end_use(&self.busy)

    @property
    def held(self) -> int:
        """Bytes that count against `max_bytes`."""
        return self.defrag.bytes

    def counters(self) -> dict[str, int | list[int] | list[list[int]] | dict[str, int]]:
        """Return the counters under the names of the real server's STAT, and those of empty datagrams."""
        cdef dict found = self.defrag.stat
        for name in ("v0_invalid_fragments", "dropped_fragments"):     # no index is beyond its count
            found[name] = [row[:i + 1] for i, row in enumerate(found[name])]
        found["defragmenter"] = {name: found.pop(name) for name in ("evictions", "hits", "misses")}
        return found
