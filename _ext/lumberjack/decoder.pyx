# The decoder of captured windows.

cpdef enum:
    OK = 0
    FOREIGN
    NO_ID
    NOT_JSON                     # version 1: no block of pairs
    TORN                         # faults from here on
    BAD_ZLIB
    BAD_FRAME

STATUS_NAMES = ("ok", "foreign", "no_id", "not_json", "torn", "bad_zlib", "bad_frame")
"""Their names in reports."""


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, one window each: its W frame to its last frame. Rows from `TORN` on are faults.

    A unit that begins with a 'J', 'D' or 'C' frame of version 1 has the literal form: its number of events is
    not announced, and it may have 'json' frames.

    The id is ``@metadata._id``, ``event.id`` or ``id`` of ``event``, the first that is there. `max_inflated`
    bounds the bytes of one unit. Without `windows` a unit is the JSON text of an event.
    """

    cdef bint windows
    cdef size_t max_inflated
    cdef lc_wire inflated[2]     # by depth
    cdef lc_inflater inflater
    cdef object package          # of the inflater
    # of the current unit
    cdef size_t inflated_size
    cdef uint8_t version
    cdef bint literal            # it begins without a window frame: `n` is not a count
    cdef uint32_t n
    cdef uint32_t got
    cdef int64_t at              # in the unit, expanded

    def __cinit__(self, producers: ReadableBuffer = b"", *, bint identity=True, size_t max_inflated=67108864,
                  bint windows=True):
        self.begin(Events, b"", producers, identity)
        self.windows = windows
        self.id_from_end = TAIL_SIZE - TAIL_ID1
        self.max_inflated = max_inflated
        self.package = inflater_open(&self.inflater)

    def __dealloc__(self):
        free(self.inflated[0].data)
        free(self.inflated[1].data)
        inflater_close(&self.inflater)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef int done
        if not self.windows:
            return decode_body(self, p, size, False, 0)
        self.at = 0
        self.got = 0
        self.inflated_size = 0
        self.literal = size > 1 and p[0] == c'1' and (p[1] == c'J' or p[1] == c'D' or p[1] == c'C')
        if size and p[0] != c'1' and p[0] != c'2' or size > 1 and p[1] != c'W' and not self.literal:
            return add_fault(self, BAD_FRAME, size)
        if size < 6:
            return add_fault(self, TORN, size)
        self.version = p[0]
        self.n = 0
        if not self.literal:
            self.n = lc_get32(p + 2)
            self.at = 6
        done = decode_region(self, p + self.at, size - <size_t> self.at, 0)
        if done == 0 and self.got < self.n:
            return add_fault(self, TORN, 0)
        return done


# Add a row for a fault at the place reached. 1: that ends the unit; -1: out of memory.
cdef int add_fault(Decoder d, int status, size_t length) noexcept nogil:
    cdef lc_id none
    clear_id(&none)
    return -1 if add_common(&d.rows, <uint8_t> status, &none, 0, d.unit, d.at, length) < 0 else 1


# The id of a body: the first of "@metadata"._id, "event.id" and "event".id that is there, as the writer
# chooses it; an id added further back names no other event. -1: out of memory.
cdef int search_id(Decoder d, const uint8_t *p, size_t size, bint pairs, lc_id *id_) noexcept nogil:
    cdef lc_object o
    cdef lc_span own
    cdef int bad
    if pairs:
        bad = scan_pairs(p, size, &own)
    else:
        bad = scan_body(d, p, size, &o)
        if bad == 0:
            own = user_id(&o)[0]
    if bad:
        return -1 if bad == NO_MEMORY else NOT_JSON
    return NO_ID if own.at == NULL else identify(d, &own, id_)


# The two id fields, of `tail_size` bytes, at the end of a body; NULL: there is something else.
cdef inline const uint8_t *id_fields(const uint8_t *p, size_t size, size_t tail_size, size_t id2,
                                     const char *second_key) noexcept nogil:
    cdef const uint8_t *tail = p + size - tail_size
    cdef const uint8_t *behind = tail + id2 + ID_SIZE
    if (size >= tail_size
            and memcmp(tail + 1, b'"@metadata":{"_id":"', TAIL_ID1 - 1) == 0
            and (tail[0] == c',' or (tail == p and tail[0] == c'{'))
            and memcmp(tail + TAIL_ID1, tail + id2, ID_SIZE) == 0
            and memcmp(tail + TAIL_ID1 + ID_SIZE, second_key, id2 - TAIL_ID1 - ID_SIZE) == 0
            and behind[0] == c'"' and behind[1] == c'}'):
        return tail
    return NULL


# Add the row of one event. 0, or -1: out of memory.
cdef inline int decode_body(Decoder d, const uint8_t *p, size_t size, bint pairs,
                            int64_t offset) noexcept nogil:
    cdef uint64_t hash = hash_body(d, p, size)
    cdef const uint8_t *tail
    cdef lc_id id_
    cdef int status = NO_ID
    clear_id(&id_)
    d.got += 1
    if d.identity:
        # exactly the end that our writer adds: only both id fields at the top level look like this
        if not pairs and size >= 2 and p[size - 1] == c'}':
            if p[size - 2] == c'"':
                tail = id_fields(p, size, TAIL_SIZE, TAIL_ID2, b'"},"event.id":"')
            else:
                tail = id_fields(p, size, NESTED_SIZE, NESTED_ID2, b'"},"event":{"id":"')
            if tail != NULL:
                read_id(&d.names, tail + TAIL_ID1, &id_)
                if is_ours(&d.names, &id_):
                    status = OK
        if status != OK:
            status = search_id(d, p, size, pairs, &id_)
            if status < 0:
                return -1
    if keep_body(d, p, size) < 0:
        return -1
    return add_common(&d.rows, <uint8_t> status, &id_, hash, d.unit, offset, size)


# The size of the frame at p, or 0: it is not whole, or of another type.
cdef inline size_t frame_size(const uint8_t *p, size_t left) noexcept nogil:
    cdef lc_span id_
    cdef size_t size = 0
    if left < 6:
        return 0
    if p[1] == c'J' and left >= FRAME_HEAD:
        size = FRAME_HEAD + <size_t> lc_get32(p + 6)
    elif p[1] == c'D':
        size = walk_pairs(p + 6, left - 6, &id_)
        size += 6 if size else 0
    elif p[1] == c'C':
        size = 6 + <size_t> lc_get32(p + 2)
    elif p[1] == c'W':
        size = 6
    return size if size <= left else 0


# Decode the frames of one region. 0: all of it; 1: a fault, which ends the unit; -1: out of memory.
cdef int decode_region(Decoder d, const uint8_t *p, size_t left, int depth) noexcept nogil:
    cdef size_t frame
    cdef int done
    cdef lc_wire *to
    while left:
        if d.got == d.n and not d.literal or p[0] != d.version:
            return add_fault(d, BAD_FRAME, left)
        if left < 2:
            return add_fault(d, TORN, left)
        if not (p[1] == c'J' and (d.version == c'2' or d.literal) or p[1] == c'D' and d.version == c'1'
                or p[1] == c'C' and depth < 2 or p[1] == c'W' and d.literal):
            return add_fault(d, BAD_FRAME, left)
        frame = frame_size(p, left)
        if frame == 0:
            return add_fault(d, TORN, left)
        if p[1] == c'C':
            to = &d.inflated[depth]
            to.size = 0
            done = inflate_frame(&d.inflater, p + 6, frame - 6, to, d.max_inflated - d.inflated_size)
            if done == INFLATE_MEMORY:
                return -1
            if done < 0:
                return add_fault(d, BAD_ZLIB, frame)
            d.inflated_size += to.size
            done = decode_region(d, to.data, to.size, depth + 1)
            if done:
                return done
        else:
            if p[1] == c'J':
                done = decode_body(d, p + FRAME_HEAD, frame - FRAME_HEAD, False, d.at + FRAME_HEAD)
            else:
                done = decode_body(d, p + 6, frame - 6, True, d.at + 6) if p[1] == c'D' else 0
            if done < 0:
                return -1
            d.at += frame
        p += frame
        left -= frame
    return 0
