# Links and cores that are written in Python, for the loop: each call takes the GIL once for a batch.

cdef class LinkPump(CompiledPump):
    """Pumps over any ``delivery.contract.Link``; see ``CompiledPump``."""

    cdef object link
    cdef object raised           # by the link
    cdef bint unacknowledged     # then only what the link has passed on counts as taken
    cdef bint messages           # each one of the codec's is a `send` of its own
    cdef size_t given            # bytes that the link has and did not pass on, as far as is known

    def connected(self):
        CompiledPump.connected(self)
        self.raised = None
        self.given = 0

    cdef int _use_link(self, link) except -1:
        self.link = link
        self.unacknowledged = link.drains_on_close
        self.messages = link.takes_messages
        self.coalesce = link.coalesce_bytes
        self.gather_ms = <int> (link.ack_coalesce_delay * 1000.0 + 0.999)
        return CompiledPump._use_link(self, link)

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept with gil:
        # Return how many bytes were taken. Those that the link keeps are not: they are named again.
        cdef bint done = False
        cdef size_t taken = 0
        if self.raised is None:
            try:
                done = self.link.flush() if self.given else self._send_new(data, size)
            except BaseException as error:
                self.raised = error
            if done:
                taken = self.given
            elif self.unacknowledged:
                # A link that broke has passed these on: their events are not sent again.
                taken = self.given - min(self.given, <size_t> self.link.unsent)
            self.given -= taken
        return LINK_BROKEN if taken == 0 and self.raised is not None else <ssize_t> taken

    cdef bint _send_new(self, const uint8_t *data, size_t size) except -1:
        cdef size_t length
        cdef bint done = True
        if not self.messages:
            self.given = size
            return self.link.send([PyMemoryView_FromMemory(<char *> data, <Py_ssize_t> size, PyBUF_READ)])
        while done and self.given < size:
            length = lc_get_frame(data + self.given) & <uint32_t> FRAME_SIZE
            message = PyMemoryView_FromMemory(
                <char *> data + self.given + MESSAGE_HEAD, <Py_ssize_t> length, PyBUF_READ)
            self.given += MESSAGE_HEAD + length
            done = self.link.send([message])
        return done

    cdef int _receive(self, double now) noexcept with gil:
        cdef bytes data
        cdef const uint8_t *at
        cdef size_t size
        cdef int end, _reads
        for _reads in range(MAX_READS_PER_TURN):
            if self.raised is not None:
                return -END_ERROR
            try:
                data = self.link.receive()
            except BaseException as error:
                self.raised = error
                return -END_ERROR
            if data is None:
                self.drained = _reads > 0
                return 0
            at = <const uint8_t *> PyBytes_AS_STRING(data)
            size = <size_t> PyBytes_GET_SIZE(data)
            if size == 0:
                return -END_CLOSED
            with nogil:
                end = self._feed(at, size, now)
            if end < 0 or self.has_events:
                return end
        return 0

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept with gil:
        cdef double seconds
        cdef int n = 0
        if self.raised is not None:
            return True
        try:
            reading, writing, seconds = self.link.waits_for(full)
            for fd in {*reading, *writing}:
                if n == LINK_FDS:
                    raise ValueError(f"a link waits for more than {LINK_FDS} descriptors")
                fds[n].fd = fd
                fds[n].events = <short> ((POLLIN if fd in reading else 0) | (POLLOUT if fd in writing else 0))
                n += 1
        except BaseException as error:
            self.raised = error
            return True
        limit[0] = min(limit[0], lc_monotonic() + seconds)
        return seconds <= 0

    cdef int _finish(self, int end) except -1:
        if end == END_ERROR and isinstance(self.raised, MemoryError):
            end = END_MEMORY
        elif end == END_ERROR and not isinstance(self.raised, OSError):
            error, self.raised = self.raised, None
            raise error
        return CompiledPump._finish(self, end)

    cdef object _find_failure(self):
        self.error = self.raised.errno or 0
        return self.raised


cdef class CoreCodec:
    """A codec that calls any ``delivery.contract.Core``; a pump takes it for the core."""

    cdef lc_codec functions
    cdef object core
    cdef InflightBatches in_flight
    cdef list found              # events of the core that the pump has not taken
    cdef object fatal
    cdef bint closed
    cdef uint32_t progress       # what the codec has not told the pump
    cdef object raised           # by the core

    def __cinit__(self, core: Any, InflightBatches in_flight not None):
        self.core = core
        self.in_flight = in_flight
        self.found = []
        self.functions.self = <void *> self
        self.functions.credit = core_credit
        self.functions.encode = core_encode
        self.functions.receive = core_receive
        self.functions.deadline = core_deadline
        self.functions.answers = core_answers
        self.functions.timeout = core_timeout

    @property
    def codec(self) -> object:
        """The codec, in a capsule "logclient.codec"; valid as long as this object."""
        return PyCapsule_New(&self.functions, b"logclient.codec", NULL)

    def receive_eof(self):
        """Note that the peer has closed its side."""
        self.core.receive_eof()

    def take_events(self, in_flight: InflightBatches) -> tuple[list[Any], Any, bool, int]:
        """See ``Core.take_events``."""
        error, self.raised = self.raised, None
        if error is not None:
            raise error
        self._collect()
        taken = self.found, self.fatal, self.closed, 0
        self.found, self.fatal, self.closed = [], None, False
        return taken

    cdef int _collect(self) except -1:
        found, fatal, closed, progress = self.core.take_events(self.in_flight)
        self.found += found
        self.fatal = self.fatal or fatal
        self.closed = self.closed or closed
        self.progress += <uint32_t> progress
        return 0

    cdef bint _has_events(self):
        return bool(self.found) or self.fatal is not None or self.closed

    cdef int _failed(self, error):
        if isinstance(error, MemoryError):
            return STOP_MEMORY
        self.raised = error
        return STOP_PROTOCOL


cdef void core_credit(void *codec, double now, uint32_t *events, uint64_t *size) noexcept with gil:
    self = <CoreCodec> codec
    events[0] = 0
    size[0] = 0
    try:
        found, room = self.core.credit(now)
        events[0] = <uint32_t> min(found, 0xFFFFFFFF)
        size[0] = <uint64_t> room
    except BaseException as error:
        self._failed(error)


cdef int core_encode(void *codec, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                     lc_outcomes *out) noexcept with gil:
    cdef int done
    self = <CoreCodec> codec
    try:
        done = self.core.encode(self.in_flight._batch(batch), events, now)
        append_ready(self.core, wire)
        self.core.sent()
        return done
    except BaseException as error:
        return self._failed(error)


cdef int core_receive(void *codec, const uint8_t *data, size_t size, double now,
                      lc_outcomes *out) noexcept with gil:
    self = <CoreCodec> codec
    try:
        self.core.receive_data(data[:size], now)
        self._collect()
        out.progress += self.progress
        self.progress = 0
        if self._has_events():
            out.events += 1
        return 0
    except BaseException as error:
        return self._failed(error)


cdef double core_deadline(void *codec) noexcept with gil:
    self = <CoreCodec> codec
    try:
        found = self.core.next_timeout(lc_monotonic())
        return 0 if found is None else found
    except BaseException as error:
        self._failed(error)
        return 0


cdef int core_answers(void *codec, lc_wire *wire) noexcept with gil:
    self = <CoreCodec> codec
    try:
        self._collect()
        append_ready(self.core, wire)
        self.core.sent()
        return self._has_events()
    except BaseException as error:
        self._failed(error)
        return STOP_MEMORY


cdef int core_timeout(void *codec, double now) noexcept with gil:
    self = <CoreCodec> codec
    try:
        self.core.handle_timeout(now)
        self._collect()
        if self.fatal is None:
            return 0
        return 1 if isinstance(self.fatal.error, TimeoutError) else STOP_PROTOCOL
    except BaseException as error:
        return self._failed(error)
