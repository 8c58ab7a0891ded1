cdef object INFO = 20        # CPython has one object for each small int: compare by identity
cdef enum:
    INFO_LEVEL = 2


cdef class FastClient:
    """Base of ``logclient.Client`` with a compiled ``send``."""

    cdef readonly Encoder encoder
    cdef readonly EventQueue queue
    cdef object sink             # a `client.Sink`
    cdef bint revises            # events go through its `revise`

    def _bind(self, Encoder encoder not None, sink: Sink, *, bint revises):
        """Attach the encoder, which has a queue; called once, by ``__init__``."""
        if self.queue is not None:
            raise TypeError(f"{type(self).__name__}: __init__ has run already")
        if encoder.queue is None:
            raise TypeError("encoder: needs a queue")
        self.encoder = encoder
        self.queue = encoder.queue
        self.sink = sink
        self.revises = revises

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def send(self, event: Mapping[str, Any] | str | bytes, level: int | str = 20) -> int:
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. If an exception is raised about an event, it has a sequence,
        too, and becomes ``failed`` in its turn.

        Args:
            event: what to send.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Returns:
            The event's sequence, or 0 if it was dropped at once: the queue is full and ``overflow`` is
            ``drop_new``, the client is closed, or ``before_send`` has held it back.

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a mapping that cannot be read, too large, or sent within another
                one, that within another, and so on (a ValueError).
            ConfigError: there is no such level (a ValueError).
            QueueFull: with ``overflow=raise``.
            TypeError: ``__init__`` has not run.
        """
        cdef int64_t seq
        cdef Py_ssize_t size
        cdef int nested
        cdef lc_here *thread = lc_this_thread()
        cdef uint8_t reason = <uint8_t> R_TOO_LARGE
        cdef uint8_t kept = <uint8_t> INFO_LEVEL if level is INFO else self._kept_level(level)
        if self.queue is None:
            raise TypeError(f"{type(self).__name__}: __init__ has not run")
        if PyBytes_Check(event) and self.encoder.pairs:
            self._fail(bytes_refused(), kept)
        if PyBytes_Check(event):
            size = PyBytes_GET_SIZE(event)
            if <size_t> size > self.encoder.max_event_bytes:
                seq = NOT_ENCODED
            else:
                seq = lc_put(self.queue.h, <const uint8_t *> PyBytes_AS_STRING(event), <size_t> size,
                             kept, <uint8_t> K_RAW, 0, NULL)
        else:
            nested = lc_enter(thread, True)
            if nested < 0:
                self._fail(_error(<uint8_t> R_UNENCODABLE, event, 0), kept)
            try:
                if self.revises:
                    return self.sink.revise(event, kept)
                seq = (<put_document_function> _put_document)(self.encoder, event, kept, thread, &reason)
            finally:
                lc_leave(thread, nested)
        if seq <= 0 or self.queue.h.needs_sender:
            if seq == NOT_MADE:
                self._fail_as_raised(kept)
            if seq == NOT_ENCODED:
                self._fail(_error(reason, event, self.encoder.max_event_bytes), kept)
            return self.sink.send_slowly(seq, event, kept)
        return seq

    cdef uint8_t _kept_level(self, object level) except 255:
        try:
            return level_index(level)
        except ValueError as error:
            if self.queue is not None:
                self._fail(error, <uint8_t> INFO_LEVEL)
            raise

    cdef int _fail_as_raised(self, uint8_t level) except -1:
        try:
            return lc_raise_current()
        except Exception as error:
            return self._fail(error, level)

    cdef int _fail(self, error, uint8_t level) except -1:
        self.sink.lost(error, level)
        raise error
