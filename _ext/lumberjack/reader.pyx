# The reader: bytes in, whole windows out. For collectors.

@cython.final
cdef class Window:
    """One whole window of a writer; in the literal form one 'D', 'J' or 'C' frame with its events."""

    cdef readonly int version    # 1 or 2
    cdef readonly uint32_t ack   # acknowledges all of it
    cdef readonly bytes unit     # as received, from the W frame to the last frame; literal: the one frame
    cdef readonly list events    # the bodies: JSON texts, or pair blocks of version 1 (u32 count, the pairs)
    events: list[bytes]
    cdef readonly list sequences     # for partial acknowledgements
    sequences: list[int]
    cdef readonly str types      # a letter for each event: J for a JSON text, D for a pair block

    def __len__(self):
        """Number of events."""
        return len(self.events)

    def __repr__(self):
        return f"<Window: version {self.version}, {len(self)} events, {len(self.unit)} bytes>"


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

    cdef uint32_t max_window
    cdef uint32_t max_frame
    cdef size_t max_unit
    cdef size_t max_inflated
    cdef bint literal
    cdef readonly object error   # the writer's violation of the protocol in one line, or None
    error: str | None
    cdef readonly object window_size     # literal: the number in the last window frame; None before the first
    window_size: int | None
    cdef uint64_t unacked        # literal: events that we have not acknowledged
    cdef lc_wire data
    cdef size_t base             # where the window begins in data
    cdef size_t at               # the first byte not examined
    cdef bint inside             # a window frame has been read, but not all of its events
    cdef uint8_t version
    cdef uint32_t n              # events of the window; literal: the most in a unit
    cdef list events
    cdef list sequences
    cdef list types
    cdef uint64_t texts_left     # keys and values missing from a 'data' frame that is not whole yet ...
    cdef size_t texts_at         # ... and how far it has been walked; 0: not begun
    cdef lc_wire inflated[2]     # by depth
    cdef size_t inflated_size    # of the window
    cdef lc_inflater inflater
    cdef object package          # of the inflater
    cdef bint busy               # a call is on its way, perhaps without the GIL

    def __cinit__(self, *, uint32_t max_window=WINDOW_LIMIT, uint32_t max_frame=16777216,
                  uint32_t max_unit=67108864, uint32_t max_inflated=67108864, bint strict_spec=False):
        self.max_window = max_window
        self.max_frame = max_frame
        self.max_unit = max_unit
        self.max_inflated = max_inflated
        self.literal = strict_spec
        self.version = c'1'
        self.n = max_window
        self._clear()
        self.package = inflater_open(&self.inflater)

    def __dealloc__(self):
        free(self.data.data)
        free(self.inflated[0].data)
        free(self.inflated[1].data)
        inflater_close(&self.inflater)

    @cython.critical_section
    def receive_data(self, data: ReadableBuffer, /) -> list[Window]:
        """Take bytes, and return the windows that they complete. After an `error` all bytes are ignored."""
        cdef BorrowedBuffer view = BorrowedBuffer(data)
        cdef list windows = []
        cdef int i
        if self.error is not None:
            return windows
        if not lc_begin_use(&self.busy):
            raise RuntimeError("another thread uses this reader")
        try:
            if append_bytes(&self.data, <const uint8_t *> view.b.buf, view.b.len) < 0:
                raise MemoryError()
            while self._read():
                windows.append(self._window())
        except ValueError as fault:
            self._stop(str(fault))
        except MemoryError:
            self._stop("out of memory")
            raise
        finally:
            lc_end_use(&self.busy)
        for i in range(2):
            self.inflated[i].size = 0
            trim(&self.inflated[i], ROOM_KEPT)
        if self.base:
            memmove(self.data.data, self.data.data + self.base, self.data.size - self.base)
            self.data.size -= self.base
            self.at -= self.base
            self.base = 0
            trim(&self.data, ROOM_KEPT)
        return windows

    cdef int _clear(self) except -1:
        self.events = []
        self.sequences = []
        self.types = []
        self.inflated_size = 0
        return 0

    cdef int _stop(self, str words) except -1:
        self.error = f"{words} (byte {self.at - self.base} of the window)"
        return 0

    # Read on; return whether a window is whole.
    cdef bint _read(self) except -1:
        cdef const uint8_t *p
        cdef size_t left, used
        while not (self.inside and <uint32_t> len(self.events) == self.n):
            p = self.data.data + self.at
            left = self.data.size - self.at
            if left == 0:
                return False
            if not self.inside:
                self.base = self.at
                self._clear()
            if self.inside or self.literal:
                used = self._read_frame(p, left, 0)
            else:
                used = self._read_head(p, left)
            if used == 0:
                return False
            self.at += used
            self._check_unit(0)
            if self.literal:
                if self.events:
                    return True
                self.base = self.at      # a window frame, or a compressed one without events
        return True

    # Read the window frame at p. Return its size, or 0 when it is not whole.
    cdef size_t _read_head(self, const uint8_t *p, size_t left) except? 0:
        if p[0] != c'1' and p[0] != c'2':
            self._refuse_version(p[0])
        if left < 2:
            return 0
        self.version = p[0]
        if p[1] != c'W':
            if memchr(b"JDC", p[1], 3) == NULL:
                self._refuse_type(p[1])
            raise ValueError(f"a '{p[1]:c}' frame without a window frame before it")
        if left < 6:
            return 0
        self.n = lc_get32(p + 2)
        if self.n > self.max_window:
            raise ValueError(f"a window of {self.n} events; the limit is {self.max_window}")
        self.inside = True
        return 6

    # Read the frame at p, of a unit or, with a depth, of inflated bytes. Return its size, or 0 when it is not
    # whole.
    cdef size_t _read_frame(self, const uint8_t *p, size_t left, int depth) except? 0:
        cdef size_t size
        if p[0] != self.version:
            self._refuse_version(p[0])
        if left < 2:
            return 0
        if p[1] == c'J' and (self.version == c'2' or self.literal):
            if left < FRAME_HEAD:
                return 0
            size = lc_get32(p + 6)
            if size == 0:
                raise ValueError("a 'J' frame of length 0")
            self._check_frame(size)
            if depth == 0:
                self._check_unit(FRAME_HEAD + size)
            if left - FRAME_HEAD < size:
                return 0
            self._add_event(p + FRAME_HEAD, size, lc_get32(p + 2), "J")
            return FRAME_HEAD + size
        if p[1] == c'D' and self.version == c'1':
            size = self._walk_pairs(p, left)
            if size:
                self._add_event(p + 6, size - 6, lc_get32(p + 2), "D")
            elif depth == 0:
                self._check_unit(left)
            return size
        if p[1] == c'C':
            # servers accept a compressed frame in a compressed frame; deeper nesting has hung one of them
            if depth == 2:
                raise ValueError("a compressed frame nested more than once")
            if left < 6:
                return 0
            size = lc_get32(p + 2)
            if size == 0:
                raise ValueError("a 'C' frame of length 0")
            if depth == 0:
                self._check_unit(6 + size)
            if left - 6 < size:
                return 0
            self._inflate(p + 6, size, depth)
            return 6 + size
        if p[1] == c'W' and self.literal:
            if left < 6:
                return 0
            self.window_size = lc_get32(p + 2)
            return 6
        if p[1] == c'W':
            raise ValueError("a window frame in a compressed frame" if depth else
                             f"a window frame after {len(self.events)} of {self.n} events")
        self._refuse_type(p[1])

    # Return the size of the 'data' frame at p, or 0 when it is not whole yet. Keeps its place between calls,
    # so that a frame that arrives byte by byte is walked once.
    cdef size_t _walk_pairs(self, const uint8_t *p, size_t left) except? 0:
        cdef size_t at
        cdef uint32_t length
        if self.texts_at == 0:
            if left < FRAME_HEAD:
                return 0
            self.texts_left = 2 * <uint64_t> lc_get32(p + 6)
            self._check_frame(4 * self.texts_left)
            self.texts_at = FRAME_HEAD
        while self.texts_left:
            at = self.texts_at + 4
            if left < at:
                return 0
            length = lc_get32(p + at - 4)
            self._check_frame(at + length)
            if left - at < length:
                return 0
            self.texts_at = at + length
            self.texts_left -= 1
        at = self.texts_at
        self.texts_at = 0
        return at

    cdef int _add_event(self, const uint8_t *p, size_t size, uint32_t sequence, str letter) except -1:
        if <uint32_t> len(self.events) == self.n:
            raise ValueError(f"more than {self.n} events in a compressed frame" if self.literal else
                             f"more than the {self.n} events of the window in its compressed frame")
        if self.window_size is not None and self.unacked >= <uint64_t> self.window_size:
            raise ValueError(f"more than the {self.window_size} frames without an acknowledgement that its "
                             "window allows")
        self.unacked += self.literal
        self.events.append(PyBytes_FromStringAndSize(<const char *> p, <Py_ssize_t> size))
        self.sequences.append(sequence)
        self.types.append(letter)
        return 0

    # Read all frames in a compressed one.
    cdef int _inflate(self, const uint8_t *p, size_t size, int depth) except -1:
        cdef lc_wire *to = &self.inflated[depth]
        cdef size_t at = 0, used, most = self.max_inflated - self.inflated_size
        cdef int done
        to.size = 0
        with nogil:
            done = inflate_frame(&self.inflater, p, size, to, most)
        if done == INFLATE_MEMORY:
            raise MemoryError()
        if done < 0:
            raise ValueError("a compressed frame that is no zlib stream" if done == INFLATE_BAD else
                             f"compressed frames that inflate to more than {self.max_inflated} bytes")
        self.inflated_size += to.size
        while at < to.size:
            used = self._read_frame(to.data + at, to.size - at, depth + 1)
            if used == 0:
                raise ValueError("a compressed frame that ends inside a frame")
            at += used
        return 0

    cdef int _check_frame(self, uint64_t size) except -1:
        if size > self.max_frame:
            raise ValueError(f"a frame of {size} bytes; the limit is {self.max_frame}")
        return 0

    # Check the size that a unit has, or will have with so many more bytes.
    cdef int _check_unit(self, size_t more) except -1:
        if self.at - self.base + more > self.max_unit:
            raise ValueError(f"a window of more than {self.max_unit} bytes")
        return 0

    # Refuse the byte after a frame of another version, or of no frame at all.
    cdef int _refuse_version(self, uint8_t version) except -1:
        if self.literal:
            raise ValueError(f"expected version '1', received byte 0x{version:02x}")
        if self.inside and (version == c'1' or version == c'2'):
            raise ValueError(f"a frame of version '{version:c}' in a window of the other")
        raise ValueError(f"expected version '1' or '2', received byte 0x{version:02x}")

    cdef int _refuse_type(self, uint8_t type) except -1:
        raise ValueError(f"frame type 0x{type:02x} from a writer of version {self.version:c}")

    cdef Window _window(self):
        cdef Window w = Window.__new__(Window)
        w.version = self.version - c'0'
        w.unit = PyBytes_FromStringAndSize(<const char *> self.data.data + self.base, self.at - self.base)
        w.events = self.events
        w.sequences = self.sequences
        w.types = "".join(self.types)
        if self.events:
            # The protocol text acknowledges the last event. Logstash answers with the highest number,
            # go-lumber with the count. A writer that begins each window at 1 gets the same number from both.
            # Running numbers need the highest; numbers that Logstash reads as negative, and never
            # acknowledges, get the count.
            highest = max([number for number in self.sequences if number <= 0x7FFFFFFF], default=0)
            last = self.sequences[len(self.sequences) - 1]
            w.ack = last if self.literal else highest or len(self.events)
        self.inside = False
        self.base = self.at
        self._clear()
        return w

    def receive_eof(self):
        """Note that the writer has closed: an unfinished window becomes an `error`."""
        if self.error is None and (self.inside or self.at < self.data.size):
            self._stop(f"closed after {len(self.events)} of {self.n} events" if self.inside else
                       "closed inside a frame" if self.literal else "closed inside a window frame")

    def acknowledge(self, uint32_t events, /):
        """Allow the writer this many more unacknowledged events (literal form)."""
        self.unacked -= min(<uint64_t> events, self.unacked)

    @property
    def pending(self) -> int:
        """Bytes held of the unfinished window."""
        return self.data.size - self.base


def encode_ack(int version, uint32_t number, /) -> bytes:
    """Encode an 'ack' frame; `number` 0 is a keep-alive."""
    if not 1 <= version <= 2:
        raise ValueError(f"version: 1 or 2, not {version}")
    return b"%dA" % version + (<object> number).to_bytes(4, "big")
