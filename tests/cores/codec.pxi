# The common part of the compiled cores. The including file defines State, and the nogil functions credit,
# encode, receive, deadline and begin (a new connection, or none).

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New


cdef class Codec:
    """The compiled half; the caller keeps it alive as long as the capsule is used."""

    cdef State state
    cdef lc_codec codec
    cdef lc_wire wire
    cdef lc_outcomes out

    def __cinit__(self, bytes producer not None, uint32_t inflight, double silence):
        cdef bytes text = producer.hex().encode()
        memset(&self.state, 0, sizeof(State))
        memset(&self.wire, 0, sizeof(lc_wire))
        memset(&self.out, 0, sizeof(lc_outcomes))
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
        free(self.wire.data)
        free(self.out.items)

    @property
    def capsule(self):
        return PyCapsule_New(&self.codec, b"logclient.codec", NULL)

    @property
    def awaited(self):
        return self.state.n

    @property
    def over(self):
        return self.state.over

    def begin(self, double now):
        begin(&self.state, now)
        self.wire.size = 0
        self.out.n = 0

    def credit(self, double now):
        cdef uint32_t events
        cdef uint64_t size
        credit(&self.state, now, &events, &size)
        return events, size

    def encode(self, batch, uint32_t events, double now):
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        return encode(&self.state, b, events, now, &self.wire, &self.out)

    def data(self):
        return PyBytes_FromStringAndSize(<char *> self.wire.data, <Py_ssize_t> self.wire.size)

    def sent(self):
        self.wire.size = 0

    def receive(self, data, double now):
        cdef Py_buffer view
        cdef int stop
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        stop = receive(&self.state, <const uint8_t *> view.buf, <size_t> view.len, now, &self.out)
        PyBuffer_Release(&view)
        return stop

    def deadline(self):
        return deadline(&self.state)

    def outcomes(self):
        cdef lc_outcomes *out = &self.out
        cdef uint32_t i
        found = [(out.items[i].first, out.items[i].last, <int> out.items[i].status) for i in range(out.n)]
        answer = found, out.alive, out.progress
        out.n = out.alive = out.progress = 0
        return answer


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
