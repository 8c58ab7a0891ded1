# The reader: bytes in, whole windows out. For collectors.

# The place of an event's body: in the unit as received, or in the inflated content of its compressed frames.
ctypedef struct lc_entry:
    size_t at
    uint32_t size
    uint32_t sequence
    bint inflated
    bint pairs                   # of a 'data' frame


ctypedef struct lc_reader:
    uint32_t max_window
    uint32_t max_frame
    size_t max_unit
    size_t max_inflated
    lc_wire data
    size_t base              # where the window begins in data
    size_t at                # the first byte not examined
    bint inside              # a window frame has been read, but not all of its events
    bint literal             # the fields marked L are in use; `n` is the most events in a unit
    bint announced           # L: a window frame has arrived
    uint32_t credit          # L: the number in it
    uint64_t unacked         # L: events that we have not acknowledged
    uint8_t version
    uint32_t n
    uint32_t got
    int32_t highest          # the highest sequence, signed, as in Logstash
    uint32_t pairs_left      # pairs missing from a 'data' frame that is not whole yet ...
    size_t pairs_at          # ... and how far it has been walked; 0: not begun
    lc_entry *entries
    uint32_t capacity
    lc_wire inflated
    lc_wire scratch
    lc_inflater inflater
    const char *fault        # its words, with the fields that `Reader.error` fills in; NULL: there is none
    uint64_t fault_value
    bint no_memory           # ... and that was the fault
    size_t fault_at


cdef int reader_fault(lc_reader *r, const char *fault, uint64_t value) noexcept nogil:
    r.fault = fault
    r.fault_value = value
    r.fault_at = r.at - r.base
    return -1


cdef int out_of_memory(lc_reader *r) noexcept nogil:
    r.no_memory = True
    return reader_fault(r, b"out of memory", 0)


cdef int frame_too_large(lc_reader *r, uint64_t size) noexcept nogil:
    return reader_fault(r, b"a frame of {value} bytes; the limit is {max_frame}", size)


cdef int unit_too_large(lc_reader *r) noexcept nogil:
    return reader_fault(r, b"a window of more than {max_unit} bytes", 0)


# The byte after a frame of another version, or of no frame at all.
cdef int wrong_version(lc_reader *r, uint8_t version) noexcept nogil:
    if r.literal:
        return reader_fault(r, b"expected version '1', received byte 0x{value:02x}", version)
    if r.inside and (version == c'1' or version == c'2'):
        return reader_fault(r, b"a frame of version '{value:c}' in a window of the other", version)
    return reader_fault(r, b"expected version '1' or '2', received byte 0x{value:02x}", version)


cdef int wrong_type(lc_reader *r, uint8_t type) noexcept nogil:
    return reader_fault(r, b"frame type 0x{value:02x} from a writer of version {version:c}", type)


cdef int too_many_events(lc_reader *r) noexcept nogil:
    return reader_fault(r, b"more than {n} events in a compressed frame" if r.literal else
                        b"more than the {n} events of the window in its compressed frame", 0)


cdef int reader_event(lc_reader *r, size_t at, size_t size, uint32_t sequence, bint inflated,
                      bint pairs) noexcept nogil:
    cdef lc_entry *e
    cdef uint32_t capacity
    if r.got == r.n:
        return too_many_events(r)
    if r.announced and r.unacked >= r.credit:
        return reader_fault(
            r, b"more than the {value} frames without an acknowledgement that its window allows", r.credit)
    r.unacked += r.literal
    if r.got == r.capacity:
        # grow with the events that arrive, not with the number announced
        capacity = r.capacity * 2 if r.capacity else 64
        e = <lc_entry *> realloc(r.entries, capacity * sizeof(lc_entry))
        if e == NULL:
            return out_of_memory(r)
        r.entries = e
        r.capacity = capacity
    e = &r.entries[r.got]
    e.at = at
    e.size = <uint32_t> size
    e.sequence = sequence
    e.inflated = inflated
    e.pairs = pairs
    r.got += 1
    if <int32_t> sequence > r.highest:
        r.highest = <int32_t> sequence
    return 1


# The size of the 'data' frame at p, of which `left` bytes are there, or 0 when it is not whole yet. Keeps its
# place between calls, so that a frame that arrives byte by byte is walked once.
cdef int64_t reader_pairs(lc_reader *r, const uint8_t *p, size_t left) noexcept nogil:
    cdef size_t at
    cdef uint32_t key, value
    if r.pairs_at == 0:
        if left < FRAME_HEAD:
            return 0
        r.pairs_left = lc_get32(p + 6)
        if <uint64_t> r.pairs_left * 8 > r.max_frame:
            return frame_too_large(r, <uint64_t> r.pairs_left * 8)
        r.pairs_at = FRAME_HEAD
    while r.pairs_left:
        at = r.pairs_at
        if left - at < 4:
            return 0
        key = lc_get32(p + at)
        at += 4
        if at + key > r.max_frame:
            return frame_too_large(r, at + key)
        if left < at + key + 4:
            return 0
        at += key
        value = lc_get32(p + at)
        at += 4
        if at + value > r.max_frame:
            return frame_too_large(r, at + value)
        if left < at + value:
            return 0
        r.pairs_at = at + value
        r.pairs_left -= 1
    at = r.pairs_at
    r.pairs_at = 0
    return at


# Read one frame at p, which is at offset `at` of the unit (depth 0) or of the inflated bytes.
# 1: done, `used` bytes; 0: not whole yet; -1: a fault.
cdef int reader_frame(lc_reader *r, const uint8_t *p, size_t left, size_t at, int depth,
                      size_t *used) noexcept nogil:
    cdef uint32_t size
    cdef int64_t pairs
    cdef int done
    cdef size_t begin
    if p[0] != r.version:
        return wrong_version(r, p[0])
    if left < 2:
        return 0
    if p[1] == c'J' and (r.version == c'2' or r.literal):
        if left < FRAME_HEAD:
            return 0
        size = lc_get32(p + 6)
        if size == 0:
            return reader_fault(r, b"a 'J' frame of length 0", 0)
        if size > r.max_frame:
            return frame_too_large(r, size)
        if depth == 0 and r.at - r.base + FRAME_HEAD + size > r.max_unit:
            return unit_too_large(r)
        if left - FRAME_HEAD < size:
            return 0
        used[0] = FRAME_HEAD + <size_t> size
        return reader_event(r, at + FRAME_HEAD, size, lc_get32(p + 2), depth > 0, False)
    if p[1] == c'D' and r.version == c'1':
        pairs = reader_pairs(r, p, left)
        if depth == 0 and pairs == 0 and r.at - r.base + left > r.max_unit:
            return unit_too_large(r)
        if pairs <= 0:
            return <int> pairs
        used[0] = <size_t> pairs
        return reader_event(r, at + 6, pairs - 6, lc_get32(p + 2), depth > 0, True)
    if p[1] == c'C':
        # servers accept a compressed frame in a compressed frame; deeper nesting has hung one of them
        if depth == 2:
            return reader_fault(r, b"a compressed frame nested more than once", 0)
        if left < 6:
            return 0
        size = lc_get32(p + 2)
        if size == 0:
            return reader_fault(r, b"a 'C' frame of length 0", 0)
        if depth == 0 and r.at - r.base + 6 + size > r.max_unit:
            return unit_too_large(r)
        if left - 6 < size:
            return 0
        begin = r.inflated.size
        if depth == 0:
            done = inflate_frame(&r.inflater, p + 6, size, &r.inflated, r.max_inflated - begin)
        else:
            # the input is in the buffer that is being written, which may move
            r.scratch.size = 0
            done = inflate_frame(&r.inflater, p + 6, size, &r.scratch, r.max_inflated - begin)
            if done == 0 and append_bytes(&r.inflated, r.scratch.data, r.scratch.size) < 0:
                done = INFLATE_MEMORY
        if done == INFLATE_MEMORY:
            return out_of_memory(r)
        if done < 0:
            return reader_fault(r, b"a compressed frame that is no zlib stream" if done == INFLATE_BAD else
                                b"compressed frames that inflate to more than {max_inflated} bytes", 0)
        used[0] = 6 + <size_t> size
        return reader_region(r, begin, r.inflated.size, depth + 1)
    if p[1] == c'W' and r.literal:
        if left < 6:
            return 0
        r.announced = True
        r.credit = lc_get32(p + 2)
        used[0] = 6
        return 1
    if p[1] == c'W':
        return reader_fault(r, b"a window frame in a compressed frame" if depth else
                            b"a window frame after {got} of {n} events", 0)
    return wrong_type(r, p[1])


# Read all frames in inflated[at:end].
cdef int reader_region(lc_reader *r, size_t at, size_t end, int depth) noexcept nogil:
    cdef size_t used = 0
    cdef int done
    while at < end:
        done = reader_frame(r, r.inflated.data + at, end - at, at, depth, &used)
        if done < 0:
            return -1
        if done == 0:
            return reader_fault(r, b"a compressed frame that ends inside a frame", 0)
        at += used
    return 1


# Read on in the literal form. 1: a unit is whole, 0: more bytes are needed, -1: a fault.
cdef int reader_step_literal(lc_reader *r) noexcept nogil:
    cdef size_t used = 0
    cdef int done
    while r.at < r.data.size:
        r.base = r.at
        r.got = 0
        r.inflated.size = 0
        done = reader_frame(r, r.data.data + r.at, r.data.size - r.at, 0, 0, &used)
        if done <= 0:
            return done
        r.at += used
        if used > r.max_unit:
            return unit_too_large(r)
        if r.got:
            return 1
        r.base = r.at            # a window frame, or a compressed one without events
    return 0


# Read on. 1: a window is whole, 0: more bytes are needed, -1: a fault.
cdef int reader_step(lc_reader *r) noexcept nogil:
    cdef const uint8_t *p
    cdef size_t left, used = 0
    cdef int done
    while True:
        if r.inside and r.got == r.n:
            return 1
        p = r.data.data + r.at
        left = r.data.size - r.at
        if left == 0:
            return 0
        if not r.inside:
            r.base = r.at
            if p[0] != c'1' and p[0] != c'2':
                return wrong_version(r, p[0])
            if left < 2:
                return 0
            r.version = p[0]
            if p[1] != c'W':
                if memchr(b"JDC", p[1], 3) == NULL:
                    return wrong_type(r, p[1])
                return reader_fault(r, b"a '{value:c}' frame without a window frame before it", p[1])
            if left < 6:
                return 0
            r.n = lc_get32(p + 2)
            if r.n > r.max_window:
                return reader_fault(r, b"a window of {value} events; the limit is {max_window}", r.n)
            r.inside = True
            r.got = 0
            r.highest = -1
            r.inflated.size = 0
            r.at += 6
        else:
            done = reader_frame(r, p, left, r.at - r.base, 0, &used)
            if done <= 0:
                return done
            r.at += used
            if r.at - r.base > r.max_unit:
                return unit_too_large(r)


@cython.final
cdef class Window:
    """One whole window of a writer; in the literal form one 'D', 'J' or 'C' frame with its events.

    Attributes:
        version: 1 or 2.
        ack: the number that acknowledges all of it. That is the highest sequence number, as in Logstash, or
            in the literal form the last one.
        unit: the bytes as received, from the W frame to the last frame; in the literal form the one frame.
    """

    cdef lc_entry *entries
    cdef uint32_t n
    cdef readonly int version
    cdef readonly uint32_t ack
    cdef readonly bytes unit
    cdef bytes content           # the inflated content of its compressed frames

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        """Number of events."""
        return self.n

    @property
    def events(self) -> list[bytes]:
        """The bodies: JSON texts, or pair blocks of version 1 (u32 count and the pairs)."""
        cdef uint32_t i
        cdef lc_entry *e
        cdef list found = []
        for i in range(self.n):
            e = &self.entries[i]
            found.append(PyBytes_FromStringAndSize(
                PyBytes_AS_STRING(self.content if e.inflated else self.unit) + e.at, e.size))
        return found

    @property
    def sequences(self) -> list[int]:
        """The frames' sequence numbers, for partial acknowledgements."""
        cdef uint32_t i
        return [self.entries[i].sequence for i in range(self.n)]

    @property
    def types(self) -> str:
        """A letter for each event: ``J`` for a JSON text, ``D`` for a pair block."""
        cdef uint32_t i
        return "".join(["D" if self.entries[i].pairs else "J" for i in range(self.n)])

    def __repr__(self):
        return f"<Window: version {self.version}, {self.n} events, {len(self.unit)} bytes>"


@cython.final
cdef class Reader:
    """Sans-IO reader: bytes in, windows out, versions 1 and 2 on one connection.

    It accepts everything that Logstash or go-lumber accept, except where that would lose events. At anything
    else it stops, and `error` has the reason. Lengths are checked before memory is allocated for them.

    Args:
        max_window: bound on the events in a window; in the literal form, in one compressed frame.
        max_frame: bound on the bytes of one event.
        max_unit: bound on the bytes of a window as received.
        max_inflated: bound on the bytes of a window, uncompressed.
        strict_spec: read the literal form. Before its first window frame any number may be unacknowledged.
    """

    cdef lc_reader r
    cdef object package          # of the inflater
    cdef bint busy               # a call is on its way, without the GIL

    def __cinit__(self, *, uint32_t max_window=WINDOW_LIMIT, uint32_t max_frame=16777216,
                  uint32_t max_unit=67108864, uint32_t max_inflated=67108864, bint strict_spec=False):
        self.r.max_window = max_window
        self.r.max_frame = max_frame
        self.r.max_unit = max_unit
        self.r.max_inflated = max_inflated
        self.r.literal = strict_spec
        if strict_spec:
            self.r.version = c'1'
            self.r.n = max_window
        self.package = inflater_open(&self.r.inflater)

    def __dealloc__(self):
        free(self.r.data.data)
        free(self.r.inflated.data)
        free(self.r.scratch.data)
        free(self.r.entries)
        inflater_close(&self.r.inflater)

    def receive_data(self, data: ReadableBuffer, /) -> list[Window]:
        """Take bytes, and return the windows that they complete. After an `error` all bytes are ignored."""
        if self.busy:
            raise RuntimeError("another thread uses this reader")
        self.busy = True
        try:
            return self._receive(data)
        finally:
            self.busy = False

    cdef list _receive(self, data):
        cdef lc_reader *r = &self.r
        cdef BorrowedBuffer view = BorrowedBuffer(data)
        cdef int done
        cdef list windows = []
        if r.fault != NULL:
            return windows
        if append_bytes(&r.data, <const uint8_t *> view.b.buf, view.b.len) < 0:
            raise MemoryError()
        while True:
            with nogil:
                done = reader_step_literal(r) if r.literal else reader_step(r)
            if done <= 0:
                break
            windows.append(self.window())
        if r.fault != NULL:
            r.inflated.size = r.scratch.size = 0
            trim(&r.inflated, ROOM_KEPT)
            trim(&r.scratch, ROOM_KEPT)
        if r.no_memory:
            raise MemoryError()
        if r.base:
            memmove(r.data.data, r.data.data + r.base, r.data.size - r.base)
            r.data.size -= r.base
            r.at -= r.base
            r.base = 0
            trim(&r.data, ROOM_KEPT)
            if not r.inside:
                r.inflated.size = 0
                trim(&r.inflated, ROOM_KEPT)
        return windows

    cdef Window window(self):
        cdef lc_reader *r = &self.r
        cdef Window w = Window.__new__(Window)
        w.version = r.version - c'0'
        w.unit = PyBytes_FromStringAndSize(<const char *> r.data.data + r.base, r.at - r.base)
        if r.inflated.size:
            w.content = PyBytes_FromStringAndSize(<const char *> r.inflated.data, r.inflated.size)
        w.n = r.got
        if r.got:
            w.entries = <lc_entry *> malloc(r.got * sizeof(lc_entry))
            if w.entries == NULL:
                raise MemoryError()
            memcpy(w.entries, r.entries, r.got * sizeof(lc_entry))
            # The protocol text acknowledges the last event. Logstash answers with the highest number,
            # go-lumber with the count. A writer that begins each window at 1 gets the same number from both.
            # Running numbers need the highest; numbers that Logstash reads as negative, and never
            # acknowledges, get the count.
            w.ack = (r.entries[r.got - 1].sequence if r.literal
                     else r.highest if r.highest > 0 else r.got)
        r.inside = False
        r.base = r.at
        return w

    def receive_eof(self):
        """Note that the writer has closed: an unfinished window becomes an `error`."""
        cdef lc_reader *r = &self.r
        if r.fault == NULL and (r.inside or r.at < r.data.size):
            reader_fault(r, b"closed after {got} of {n} events" if r.inside else
                         b"closed inside a frame" if r.literal else b"closed inside a window frame", 0)

    def acknowledge(self, uint32_t events, /):
        """Allow the writer this many more unacknowledged events (literal form)."""
        self.r.unacked -= min(<uint64_t> events, self.r.unacked)

    @property
    def window_size(self) -> int | None:
        """The number in the last window frame (literal form); None before the first."""
        return self.r.credit if self.r.announced else None

    @property
    def pending(self) -> int:
        """Bytes held of the unfinished window."""
        return self.r.data.size - self.r.base

    @property
    def error(self) -> str | None:
        """The writer's violation of the protocol in one line, or None."""
        cdef lc_reader *r = &self.r
        if r.fault == NULL:
            return None
        words = (<bytes> r.fault).decode().format(
            value=r.fault_value, version=r.version, n=r.n, got=r.got, max_window=r.max_window,
            max_frame=r.max_frame, max_unit=r.max_unit, max_inflated=r.max_inflated)
        return f"{words} (byte {r.fault_at} of the window)"


def encode_ack(int version, uint32_t number, /) -> bytes:
    """Encode an 'ack' frame; `number` 0 is a keep-alive."""
    if not 1 <= version <= 2:
        raise ValueError(f"version: 1 or 2, not {version}")
    return b"%dA" % version + (<object> number).to_bytes(4, "big")
