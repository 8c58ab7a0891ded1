# The decoder of captured datagrams.

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON                   # not used: a body may be anything
    # The faults are those of Verdict, from V_EMPTY on.
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
    # of the current units
    cdef const uint64_t *streams
    cdef const int64_t *times

    def __init__(self, producers=b"", *, bint identity=True, bint datagrams=True, max_message=64 << 20,
                 max_bytes=None, double expire=10.0):
        self.ensure_uninitialized()
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
            hash_ = hash_body(self, v.payload, v.size)
            status = decode_body(self, v.payload, v.size, &id_)
            if status < 0 or keep_body(self, v.payload, v.size) < 0:
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
    if d.kept.most_bytes and keep_own_id(&d.kept, p, 0) < 0:
        return -1
    return -1 if keep_foreign(&d.rows, &own) < 0 else S_FOREIGN


def expand(unit):
    """Return the unit as bytes: nothing in it is compressed."""
    return bytes(unit)
