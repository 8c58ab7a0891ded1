# The pump for WebSocket: messages of a codec as frames, over the pump of the connection below.
#
# The codec gives its messages each behind its length (codec.pxd), and gets each received message by itself,
# an empty one as a space. The frames are in a `ClientFrames` of the link, which goes on with it when the
# connection is closed. The bytes move through another pump, the carrier.
#
# Short messages are gathered and written when nothing else is to be done, or when there are many. The peer's
# answers may gather for a moment, too, unless events wait, and answers come so fast that the peer would soon
# wait for us. When a write fails, what the peer had sent is received first: it may explain the end.

cdef enum:
    MAX_BUFFERED = 65536         # bytes of frames that are gathered for one write
    GATHER_MS = 1                # for answers to gather


cdef class WebSocketPump(CompiledPump):
    """Pumps over links of ``transports.websocket``; see ``CompiledPump``."""

    cdef CompiledPump carrier
    cdef object link
    cdef ClientFrames frames
    cdef bint broken             # a write has failed
    cdef const uint8_t *rest     # received bytes that wait until the core has taken its events
    cdef const uint8_t *rest_end

    @classmethod
    def over(cls, carrier: Callable[..., Any], in_flight: InflightBatches, core: Any, **limits: Any) -> Self:
        """Make a pump over that of the connection below, which `carrier` makes."""
        cdef WebSocketPump pump = cls(in_flight, core, **limits)
        pump.carrier = carrier(in_flight, core, **limits)
        pump.gather_ms = GATHER_MS
        return pump

    def connected(self):
        CompiledPump.connected(self)
        self.carrier.connected()
        self.broken = False
        self.rest = self.rest_end = NULL

    cdef object _find_failure(self):
        if self.frames.f.over != OVER_NOT:
            return self.link.error
        self.error = self.carrier.error
        return self.carrier._find_failure()

    cdef int _use_link(self, link) except -1:
        self.link = link
        self.frames = link.frames
        self.carrier._use_link(link.inner)
        return CompiledPump._use_link(self, link)

    cdef bint _flush(self) noexcept nogil:
        # Write the frames; return whether nothing is left.
        cdef const uint8_t *data = NULL
        cdef ssize_t n
        while not self.broken:
            n = frames_output(&self.frames.f, &data)
            if n == 0:
                return True
            if n > 0:
                n = self.carrier._write(data, <size_t> n)
                if n == 0:
                    return False
            if n < 0:
                self.broken = True
            else:
                frames_taken(&self.frames.f, <size_t> n)
        return True

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0
        cdef uint32_t length
        if self.frames.f.out.size >= MAX_BUFFERED and not self._flush():
            return 0
        while done < size and not self.broken and self.frames.f.out.size < MAX_BUFFERED:
            length = lc_get_frame(data + done) & <uint32_t> FRAME_SIZE
            if frames_add(&self.frames.f, data + done + MESSAGE_HEAD, length) < 0:
                self.broken = True
                break
            done += MESSAGE_HEAD + length
        return <ssize_t> (size if self.broken else done)    # the rest is discarded: its events are sent again

    cdef int _send(self, double now, uint64_t batches) noexcept nogil:
        cdef int done = CompiledPump._send(self, now, batches)
        if done >= 0 and not self._flush():
            return 1
        return done

    cdef int _receive(self, double now) noexcept nogil:
        cdef ssize_t n
        cdef int end = 0, _reads
        cdef const uint8_t *begin = self.frames.input_data
        cdef const uint8_t *at = begin + self.frames.input_at
        if self.frames.input_at < self.frames.input_size:    # what came with the answer to the handshake
            end = self._take(&at, begin + self.frames.input_size, now)
            self.frames.input_at = <size_t> (at - begin)
        elif self.rest < self.rest_end:
            end = self._take(&self.rest, self.rest_end, now)
        for _reads in range(MAX_READS_PER_TURN):
            if end < 0 or self.has_events:
                return end
            self._flush()            # one write for each read, however fast messages arrive
            n = self.carrier._read(self.inbox, RECEIVE)
            if n == 0:
                self.drained = _reads > 0
                return -END_ERROR if self.broken else 0
            if n < 0:
                if n == LINK_CLOSED and not self.broken and self.frames.f.over == OVER_NOT:
                    self.frames.f.over = OVER_ENDED
                return -END_ERROR
            self.rest = self.inbox
            self.rest_end = self.inbox + n
            end = self._take(&self.rest, self.rest_end, now)
        return end

    cdef int _take(self, const uint8_t **at, const uint8_t *end, double now) noexcept nogil:
        # Give the messages in these bytes to the codec, up to one that it leaves to the core: unpacked, the
        # others may be much longer. Return 0, or a negative end.
        cdef const uint8_t *message = NULL
        cdef size_t size = 0
        cdef int done
        while True:
            done = frames_next(&self.frames.f, at, end, &message, &size)
            if done == 0:
                return 0
            if done < 0:
                break
            done = self._feed(message, size, now)
            if done < 0 or self.has_events:
                return done
        if self.frames.f.over == OVER_MEMORY:
            return -END_MEMORY
        self._flush()                # our close frame
        if self.frames.f.over == OVER_CLOSED and self.frames.f.code == NO_STATUS:
            return -END_CLOSED
        return -END_ERROR

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        return (self.carrier._interest(full, fds, limit) or self.broken or self.rest < self.rest_end
                or self.frames.input_at < self.frames.input_size)
