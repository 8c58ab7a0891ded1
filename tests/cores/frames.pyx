"""``plain.Frames``, compiled."""

include "imports.pxi"


cdef inline void put_head(uint8_t *p, uint32_t size, bint more) noexcept nogil:
    p[0] = <uint8_t> size
    p[1] = <uint8_t> (size >> 8)
    p[2] = <uint8_t> (size >> 16)
    p[3] = <uint8_t> (size >> 24) | (0x80 if more else 0)


cdef int encode(void *self, lc_batch *b, uint32_t events, double now,
                lc_wire *wire, lc_outcomes *out) noexcept nogil:
    cdef State *s = <State *> self
    cdef uint8_t *p
    cdef uint32_t i
    cdef int size
    cdef int n = 0
    if s.n == 0:
        s.last_sign = now
    for i in range(b.cursor, b.n):
        if <uint32_t> n == events:
            break
        if b.status[i] != PENDING:
            continue
        p = wire_reserve(wire, 9 + 32 + <size_t> b.size[i])
        if p == NULL:
            return STOP_MEMORY
        size = carry(s, b, i, p + 9)
        if size == 0:
            continue
        put_head(p, 1, True)
        p[4] = c"E"
        put_head(p + 5, <uint32_t> size, False)
        wire.size += 9 + <size_t> size
        s.seqs[s.n] = b.seq[i]
        s.n += 1
        n += 1
    return n


cdef int receive(void *self, const uint8_t *data, size_t size, double now,
                 lc_outcomes *out) noexcept nogil:
    cdef State *s = <State *> self
    cdef size_t i = 0
    cdef uint32_t done = 0
    if s.over:
        return s.over
    s.last_sign = now
    while i < size:
        # A word is a message of one frame of one byte.
        if size - i < 5 or data[i] != 1 or data[i + 1] or data[i + 2] or data[i + 3]:
            s.over = STOP_PROTOCOL
            break
        i += 4
        if data[i] == c".":
            pass
        elif data[i] == c"!":
            s.over = REFUSED
        elif data[i] not in (c"k", c"n", c"r") or done == s.n:
            s.over = STOP_PROTOCOL
        elif give(s.seqs[done], data[i], out) < 0:
            return STOP_MEMORY
        else:
            done += 1
        if s.over:
            break
        i += 1
    s.n -= done
    memmove(s.seqs, s.seqs + done, s.n * sizeof(uint64_t))
    return s.over


include "codec.pxi"
