# ``plain.ById``, compiled (without its pings). The including file defines LENGTH: the bytes before an event
# that are its length, for transports of messages.


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
        p = wire_reserve(wire, LENGTH + 13 + 32 + <size_t> b.size[i])
        if p == NULL:
            return STOP_MEMORY
        size = carry(s, b, i, p + LENGTH + 13)
        if size == 0:
            continue
        s.number += 1
        if LENGTH:
            lc_put_frame(p, 13 + <uint32_t> size)
            p += <int> LENGTH
        p[0] = c"E"
        put_be(p + 1, s.number, 8)
        put_be(p + 9, <uint64_t> size, 4)
        wire.size += LENGTH + 13 + <size_t> size
        s.seqs[s.n] = b.seq[i]
        s.numbers[s.n] = s.number
        s.n += 1
        n += 1
    return n


cdef int reply(State *s, lc_outcomes *out) noexcept nogil:
    cdef uint64_t number = 0
    cdef uint64_t seq
    cdef uint32_t i
    for i in range(1, 9):
        number = number << 8 | s.word[i]
    for i in range(s.n):
        if s.numbers[i] == number:
            seq = s.seqs[i]
            s.n -= 1
            memmove(s.seqs + i, s.seqs + i + 1, (s.n - i) * sizeof(uint64_t))
            memmove(s.numbers + i, s.numbers + i + 1, (s.n - i) * sizeof(uint64_t))
            return give(seq, s.word[0], out)
    s.over = STOP_PROTOCOL
    return 0


cdef int receive(void *self, const uint8_t *data, size_t size, double now,
                 lc_outcomes *out) noexcept nogil:
    cdef State *s = <State *> self
    cdef size_t i
    if s.over:
        return s.over
    s.last_sign = now
    for i in range(size):
        if s.word_size == 0:
            if data[i] == c".":
                continue
            if data[i] == c"!":
                s.over = REFUSED
            elif data[i] not in (c"k", c"n", c"r"):
                s.over = STOP_PROTOCOL
            if s.over:
                break
        s.word[s.word_size] = data[i]
        s.word_size += 1
        if s.word_size == 9:
            s.word_size = 0
            if reply(s, out) < 0:
                return STOP_MEMORY
            if s.over:
                break
    return s.over


include "codec.pxi"
