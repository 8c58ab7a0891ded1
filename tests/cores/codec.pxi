# The common part of the compiled cores. The including file defines State, and the nogil functions credit,
# encode, receive, deadline and begin (a new connection, or none).


cdef class Codec(CodecBase):
    """The compiled half."""

    cdef State state

    def __cinit__(self, bytes producer not None, uint32_t inflight, double silence):
        cdef bytes text = producer.hex().encode()
        memset(&self.state, 0, sizeof(State))
        memcpy(self.state.producer, <const char *> text, 20)
        self.state.limit = inflight
        self.state.silence = silence
        self.state.seqs = <uint64_t *> calloc(inflight, sizeof(uint64_t))
        self.state.numbers = <uint64_t *> calloc(inflight, sizeof(uint64_t))
        if self.state.seqs == NULL or self.state.numbers == NULL:
            raise MemoryError
        self.codec.self = &self.state
        self.codec.credit = credit
        self.codec.encode = encode
        self.codec.receive = receive
        self.codec.deadline = deadline

    def __dealloc__(self):
        free(self.state.seqs)
        free(self.state.numbers)

    @property
    def error(self):
        return "no reply" if self.state.over == STOP_PROTOCOL else None

    @property
    def refused(self):
        return self.state.over == REFUSED

    def take_replies(self):
        return []

    def connected(self, double now):
        begin(&self.state, now)

    def connection_lost(self):
        begin(&self.state, 0.0)


cdef inline int carry(State *s, lc_batch *b, uint32_t i, uint8_t *p) noexcept nogil:
    # The payload of event i at p (32 bytes more than the body); its size, or 0 when it is poison.
    cdef uint64_t seq = b.seq[i]
    cdef int k
    if b.size[i] and b.body[i][0] == 0xFF:
        b.status[i] = <uint8_t> FAILED
        b.reason[i] = <uint8_t> R_NOT_JSON
        return 0
    memcpy(p, s.producer, 20)
    for k in range(12):
        p[31 - k] = b"0123456789abcdef"[seq >> (4 * k) & 15]
    memcpy(p + 32, b.body[i], b.size[i])
    b.hash[i] = xxh64_of(p, 32 + b.size[i], SEED)
    b.status[i] = <uint8_t> INFLIGHT
    return 32 + <int> b.size[i]


cdef inline int give(uint64_t seq, uint8_t word, lc_outcomes *out) noexcept nogil:
    if word == c"r":
        return outcome_add(out, seq, seq, <uint8_t> PENDING, 0)
    out.progress += 1
    if word == c"k":
        return outcome_add(out, seq, seq, <uint8_t> ACKED, 0)
    return outcome_add(out, seq, seq, <uint8_t> FAILED, <uint8_t> R_REJECTED)


cdef inline void put_be(uint8_t *p, uint64_t value, int size) noexcept nogil:
    while size:
        size -= 1
        p[size] = <uint8_t> value
        value >>= 8
