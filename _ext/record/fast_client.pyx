cdef object INFO = 20        # CPython has one object for each small int: compare by identity
cdef enum:
    INFO_LEVEL = 2


cdef class FastClient:
    """Base of ``logclient.Client`` with a compiled ``send``."""

    cdef readonly Encoder encoder
    cdef readonly EventQueue queue
    cdef object fallback         # fallback(seq, event, level): when the queue needs more than a put
    cdef object revise           # revise(event): a dict to send instead, or None; None: nothing is revised

    def _bind(self, Encoder encoder not None, fallback, revise=None):
        """Attach the encoder; called once, by ``__init__``.

        Args:
            encoder: an encoder with a queue.
            fallback: called as ``fallback(sequence, event, level)`` when the queue is full, closed or forked,
                or its sender has to be woken; its result is that of ``send``.
            revise: called with each event that is not bytes; returns the dict to send, or None for nothing.
                It counts what it holds back and what it cannot encode.
        """
        if self.queue is not None:
            raise TypeError(f"{type(self).__name__}: __init__ has run already")
        if encoder.queue is None:
            raise TypeError("encoder: needs a queue")
        self.encoder = encoder
        self.queue = encoder.queue
        self.fallback = fallback
        self.revise = revise

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def send(self, event, level=20):
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. An event that cannot be encoded is counted as failed before
        the exception is raised.

        Args:
            event: what to send.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Returns:
            The event's sequence, or 0 if it was dropped at once: the queue is full and ``overflow`` is
            ``drop_new``, the client is closed, or ``before_send`` has held it back.

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a cycle, too deep, too large (a ValueError).
            ConfigError: there is no such level (a ValueError).
            QueueFull: with ``overflow=raise``.
            TypeError: ``__init__`` has not run.
        """
        cdef int64_t seq
        cdef Py_ssize_t size
        cdef uint8_t kept = <uint8_t> INFO_LEVEL if level is INFO else level_index(level)
        if self.queue is None:
            raise TypeError(f"{type(self).__name__}: __init__ has not run")
        if PyBytes_Check(event):
            size = PyBytes_GET_SIZE(event)
            # The queue makes a tombstone of one that is too large, and reads none of its bytes.
            seq = self.queue.put(<const uint8_t *> PyBytes_AS_STRING(event),
                                   <uint32_t> min(size, <Py_ssize_t> 0xFFFFFFF0), kept, <uint8_t> K_RAW, 0)
            if <size_t> size > self.encoder.max_event_bytes:
                self._too_large(seq, event)
        else:
            if self.revise is not None:
                event = self.revise(event)
                if event is None:
                    return 0
            seq = self.encoder.put(event, kept)
        if seq <= 0 or self.queue.sender_needed():
            return self.fallback(seq, event, kept)
        return seq

    cdef int _too_large(self, int64_t seq, event) except -1:
        if seq == PUT_FULL:
            self.queue.refuse()
        raise _error(<uint8_t> R_TOO_LARGE, event, self.encoder.max_event_bytes)
