# The decoder of captured datagrams.

cpdef enum:
    OK = 0
    FOREIGN
    NO_ID

# 3 is not used: a body may be anything. The faults have the numbers of their verdicts.
STATUS_NAMES = ("ok", "foreign", "no_id", "not_json", *VERDICT_NAMES[<int> EMPTY:], "command")
"""Their names in reports."""

cdef enum:
    STATUS_COMMAND = TOO_LARGE + 1


@cython.final
cdef class Decoder(Defragmenter):
    """Decodes captured datagrams: a row for each whole message, and one for each fault and command.

    `offset` and `length` are those of the body in the unit. For a message of several fragments `length` is
    that of the whole, `unit` the one that completed it, and `offset` where the last part of it begins. Use
    one decoder for each listener.

    Without `datagrams` units are bodies, as in a Kafka topic. `max_message`, `max_bytes` and `expire` are
    those of `Reassembler`; None for max_bytes: 64 MiB, or one message if that is larger.
    """

    cdef bint datagrams

    def __cinit__(self, producers: ReadableBuffer = b"", *, bint identity=True, bint datagrams=True,
                  max_message: int = 64 << 20, max_bytes: int | None = None, double expire=10.0):
        open_defrag(&self.defrag, max_message,
                    max(64 << 20, max_message + MEMORY_LEAST) if max_bytes is None else max_bytes, expire)
        self.defrag.jumps = True     # a capture has the wall clock
        self.begin(Events, b"", producers, identity)
        self.datagrams = datagrams

    def decode(self, data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer,
               streams: ReadableBuffer | None = None, received_us: ReadableBuffer | None = None) -> Events:
        """Decode the units ``data[offset:offset + length]`` (int64), without the GIL.

        `streams` has the sender of each unit (uint64; None: one sender), and `received_us` the time of its
        arrival in microseconds (int64; None: nothing expires).
        """
        return self.judge_units(data, offsets, lengths, streams, received_us)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef lc_judged v
        cdef lc_id id_
        cdef int status = OK
        cdef uint64_t hash_ = 0
        cdef int64_t offset
        clear_id(&id_)
        if self.datagrams:
            if judge(&self.defrag, p, size, self.stream_of_unit(),
                     <double> self.times[self.unit] * 1e-6 if self.times != NULL else 0, &v) < 0:
                return -1
            if v.verdict == FRAGMENT:
                return 0
        else:
            memset(&v, 0, sizeof(v))
            v.payload = p
            v.size = size
        offset = HEADER_SIZE + <int64_t> get16(p + 20) if v.whole else v.payload - p
        if v.verdict == MESSAGE or v.verdict == SIMPLE:
            hash_ = hash_body(self, v.payload, v.size)
            status = decode_body(self, v.payload, v.size, &id_)
            if status < 0 or keep_body(self, v.payload, v.size) < 0:
                return -1
        else:
            status = STATUS_COMMAND if v.verdict == COMMAND else <int> v.verdict
        return add_common(&self.rows, <uint8_t> status, &id_, hash_, self.unit, offset, v.size)


# The status of a body. -1: out of memory.
cdef int decode_body(Decoder d, const uint8_t *p, size_t size, lc_id *id_) noexcept nogil:
    cdef lc_object o
    cdef lc_span own
    if not d.identity:
        return NO_ID
    own.at = p
    own.size = size
    cdef int bad = scan_body(d, p, size, &o)
    if bad == NO_MEMORY:
        return -1
    if bad == 0 and o.uuid.at != NULL:
        return identify(d, &o.uuid, id_)
    # A body without an id is known by its hash, as in the ledger.
    if d.kept.most_bytes and keep_own_id(&d.kept, p, 0) < 0:
        return -1
    return -1 if keep_foreign(&d.rows, &own) < 0 else FOREIGN
