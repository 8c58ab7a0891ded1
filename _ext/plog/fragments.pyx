cdef inline void put16(uint8_t *p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t> (v >> 8)
    p[1] = <uint8_t> v


# The division of a message into `count` fragments: each but the last has `size` bytes of it.
ctypedef struct lc_cut:
    uint32_t count
    uint32_t size
    uint32_t last


# Cut a boxed message into datagrams of at most `room` bytes. -1: it takes too many.
#
# The last fragment has the tags and the rest of the payload. If they do not fit together, there is one more
# fragment, whose payload may be empty. The others are made shorter where they would be longer than the
# payload otherwise, at which the Java client throws.
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


ctypedef struct lc_datagrams:
    size_t at                    # where its head begins
    uint32_t size                # bytes in it; 0: there is no run
    uint32_t segment
    uint32_t count
    bint full                    # its last datagram is shorter: nothing may follow


# Add a datagram of this size to the run or to a new one. There must be room. Returns where its bytes begin.
cdef inline size_t run_add(lc_datagrams *run, lc_wire *wire, uint32_t size) noexcept nogil:
    cdef size_t at
    if not (run.size and not run.full and size <= run.segment and run.count < RUN_SEGMENTS
            and run.size + size <= RUN_MOST):
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


# Where a message's first datagram begins in a wire, and where the head of its run does.
ctypedef struct lc_place:
    size_t run
    size_t at


# Write all fragments of a message at p, which is not in the wire. -1: out of memory.
cdef int put_fragments(lc_wire *wire, lc_datagrams *run, const uint8_t *p, uint32_t total, const lc_cut *cut,
                       uint32_t id_, const uint8_t *tags, uint32_t tags_size, lc_place *place) noexcept nogil:
    cdef uint8_t header[HEADER_SIZE]
    cdef uint8_t *to
    cdef uint32_t i, size = cut.size, own = 0
    if wire_reserve(wire, <size_t> cut.count * (RUN_HEAD + HEADER_SIZE) + total + tags_size) == NULL:
        return -1
    memset(header, 0, HEADER_SIZE)           # the hash is put there later
    header[1] = 1
    put16(header + 2, cut.count)
    put16(header + 6, cut.size)
    lc_put32(header + 8, id_)
    lc_put32(header + 12, total)
    for i in range(cut.count):
        if i == cut.count - 1:
            size = cut.last
            own = tags_size
        put16(header + 4, i)
        put16(header + 20, own)
        to = wire.data + run_add(run, wire, HEADER_SIZE + own + size)
        if i == 0:
            place.run = run.at
            place.at = to - wire.data
        memcpy(to, header, HEADER_SIZE)
        memcpy(to + HEADER_SIZE, tags, own)
        memcpy(to + HEADER_SIZE + own, p, size)
        p += size
    return 0


cdef inline void put_hash(uint8_t *data, lc_place place, const lc_cut *cut, uint32_t hash_) noexcept nogil:
    cdef size_t at = place.at, end = place.run + RUN_HEAD + lc_get_frame(data + place.run)
    cdef uint32_t _i
    for _i in range(cut.count):
        if at == end:                # the next run begins
            end += RUN_HEAD + lc_get_frame(data + at)
            at += RUN_HEAD
        lc_put32(data + at + 16, hash_)
        at += HEADER_SIZE + cut.size


def fragments(payload: ReadableBuffer, int64_t id, *, int64_t datagram=DATAGRAM_MOST,
              bytes tags=b"") -> list[bytes]:
    """Cut a boxed message with this number into datagrams of at most so many bytes, with tags."""
    cdef bytes message = bytes(payload)
    cdef lc_wire wire
    cdef lc_datagrams run
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
        raise ValueError(f"payload: {len(message)} bytes; the limit is {MESSAGE_MOST}")
    if cut_message(len(message), <uint32_t> len(tags), <uint32_t> datagram, &cut) < 0:
        raise ValueError(f"payload: {len(message)} bytes need more than {FRAGMENTS_MOST} fragments "
                         f"in datagrams of {datagram}")
    memset(&wire, 0, sizeof(wire))
    memset(&run, 0, sizeof(run))
    try:
        if put_fragments(&wire, &run, p, <uint32_t> len(message), &cut, <uint32_t> id,
                         <const uint8_t *> PyBytes_AS_STRING(tags), <uint32_t> len(tags), &place) < 0:
            raise MemoryError()
        put_hash(wire.data, place, &cut, murmur3_of(p, len(message)))
        return split_runs(wire.data, wire.size)
    finally:
        free(wire.data)


cdef list split_runs(const uint8_t *p, size_t left):
    cdef uint32_t size = 0, segment = 0, at
    found = []
    while left:
        if left >= RUN_HEAD:
            size = lc_get_frame(p)
            segment = lc_get_frame(p + 4)
        if left < RUN_HEAD or size > left - RUN_HEAD or size and segment == 0:
            raise ValueError("no whole runs of datagrams")
        p += RUN_HEAD
        left -= RUN_HEAD
        if size == 0:
            found.append(b"")
            continue
        for at in range(0, size, segment):
            found.append(PyBytes_FromStringAndSize(<const char *> p + at, min(segment, size - at)))
        p += size
        left -= size
    return found


def datagrams(const uint8_t[::1] runs: ReadableBuffer, /) -> list[bytes]:
    """Return the datagrams in whole runs."""
    return split_runs(&runs[0], runs.shape[0])
