# Links and codecs that are written in Python, for the loop: each call takes the GIL once for a batch.

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


class Outcomes:
    """An ``lc_outcomes`` for codecs in Python; its items are (first, last, status, reason)."""

    def __init__(self):
        self.items = []
        self.progress = self.events = 0
    items: list[tuple[int, int, int, int]]
    progress: int
    events: int


cdef class PythonCodec(CodecBase):
    """A codec whose functions call the methods of a Python object, for prototypes.

    They have the names, the arguments and the meaning of the functions in ``_ext/codec.pxd``, but for what
    Python has no pointers for; docs/codec.md lists them. The core needs ``connected``, ``connection_lost``
    and ``error``, too.
    """

    cdef readonly object target
    target: Any
    cdef object raised           # by a method, until the core asks for `error`

    def __cinit__(self, target: Any):
        self.target = target
        self.codec.self = <void *> self
        self.codec.credit = python_credit
        self.codec.encode = python_encode
        self.codec.receive = python_receive
        self.codec.deadline = python_deadline
        self.codec.answers = python_answers
        if hasattr(target, "sent"):
            self.codec.sent = python_sent
        if hasattr(target, "timeout"):
            self.codec.timeout = python_timeout
        if hasattr(target, "sample"):
            self.codec.sample = python_sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    @property
    def error(self) -> str | None:
        """What the object says; an exception of one of its methods is raised."""
        error, self.raised = self.raised, None
        if error is not None:
            raise error
        return self.target.error

    cdef object call(self, name, tuple arguments, lc_wire *wire=NULL, lc_outcomes *out=NULL):
        # Return the result, or a STOP_ number.
        cdef bytearray data = bytearray()
        found = Outcomes()
        arguments += ((data,) if wire != NULL else ()) + ((found,) if out != NULL else ())
        try:
            result = getattr(self.target, name)(*arguments)
            if wire != NULL and append_bytes(wire, <uint8_t *> PyByteArray_AS_STRING(data), len(data)) < 0:
                return STOP_MEMORY
            for first, last, status, reason in found.items:
                if outcome_add(out, first, last, status, reason) < 0:
                    return STOP_MEMORY
            if out != NULL:
                out.progress += <uint32_t> found.progress
                out.events += <uint32_t> found.events
            return 0 if result is None else result
        except MemoryError:
            return STOP_MEMORY
        except BaseException as error:
            self.raised = error
            return STOP_PROTOCOL


cdef void python_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept with gil:
    found = (<PythonCodec> self).call("credit", (now,))
    events[0], size[0] = found if isinstance(found, tuple) else (0, 0)

cdef int python_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept with gil:
    cdef Batch view = borrow_batch(batch)
    cdef int encoded
    try:
        encoded = (<PythonCodec> self).call("encode", (view, events, now), wire, out)
        if encoded > 0 and batch.status[batch.cursor] == PENDING:     # it would be sent again and again
            words = f"encode: {encoded} events, but the first one that waits is not marked"
            (<PythonCodec> self).raised = RuntimeError(words)
            return STOP_PROTOCOL
        return encoded
    finally:
        view.borrowed = NULL

cdef int python_receive(void *self, const uint8_t *data, size_t size, double now,
                        lc_outcomes *out) noexcept with gil:
    return (<PythonCodec> self).call("receive", (<bytes> data[:size], now), NULL, out)

cdef double python_deadline(void *self) noexcept with gil:
    return (<PythonCodec> self).call("deadline", ())

cdef int python_answers(void *self, lc_wire *wire) noexcept with gil:
    codec = <PythonCodec> self
    if codec.raised is not None:
        return 1                 # by a function that cannot tell
    return codec.call("answers", (), wire) if hasattr(codec.target, "answers") else 0

cdef void python_sent(void *self, size_t size, lc_outcomes *out) noexcept with gil:
    (<PythonCodec> self).call("sent", (size,), NULL, out)

cdef int python_timeout(void *self, double now) noexcept with gil:
    return (<PythonCodec> self).call("timeout", (now,))

cdef void python_sample(void *self, double now, double wall) noexcept with gil:
    (<PythonCodec> self).call("sample", (now, wall))
