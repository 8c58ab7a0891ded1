# The pump for ZeroMQ: moves whole batches of messages through the libzmq that pyzmq has loaded.
#
# The functions are looked up in the library that pyzmq uses, because a second copy in the process could not
# use its sockets, and only where its version is the one that pyzmq reports. Otherwise there is no such pump,
# and the messages go through pyzmq. Messages consist of frames, each behind its head (codec.pxd).
#
# libzmq delivers whole messages and keeps the part of one that has arrived, so a peer that never completes
# one would make it grow without bound. Linux reports how many bytes a connection has received (TCP_INFO). A
# connection that received more than `OVERSIZED` bytes without a message, heartbeats apart, is ended.

cdef enum:
    ZMQ_DONTWAIT = 1
    ZMQ_SNDMORE = 2
    ZMQ_RCVMORE = 13
    ZMQ_EVENTS = 15
    ZMQ_POLLIN = 1
    ZMQ_POLLOUT = 2
    ZMQ_EVENT_CLOSED = 0x0080
    ZMQ_EVENT_DISCONNECTED = 0x0200
    CHECK_MS = 100               # milliseconds between two looks at the bytes received
    OVERSIZED = 4 << 20          # bytes without a message that end a connection
    HEARTBEAT_BYTES = 256        # bytes a second that count as ZeroMQ's own heartbeats


# In the order of ZMQ_FUNCTIONS.
ctypedef struct lc_zmq:
    int (*send)(void *, const void *, size_t, int) noexcept nogil
    int (*recv)(void *, void *, size_t, int) noexcept nogil
    int (*getsockopt)(void *, int, void *, size_t *) noexcept nogil
    int (*errno_)() noexcept nogil
    void (*version)(int *, int *, int *) noexcept nogil

ZMQ_FUNCTIONS = (b"zmq_send", b"zmq_recv", b"zmq_getsockopt", b"zmq_errno", b"zmq_version")


cdef class ZmqPump(CompiledPump):
    """Pumps over links that have a ``socket`` and a ``monitor`` of pyzmq; see ``CompiledPump``."""

    cdef lc_zmq zmq
    cdef void *socket
    cdef void *monitor
    cdef bint reads              # a PUSH socket has nothing to read
    cdef bint torn               # the connection was lost in the middle of a message
    cdef bint monitor_ready      # the monitor may have events
    cdef int fd
    cdef int monitor_fd
    cdef double baseline         # bytes received up to the last message, and heartbeats since
    cdef double checked_at       # monotonic seconds of the last look
    cdef bint oversized
    cdef double received         # what the last look has found
    cdef bint quiet              # nothing arrived between the last two

    @classmethod
    def find(cls, in_flight: InflightBatches, core: Any, str library, **limits: Any) -> ZmqPump:
        """Make a pump on the libzmq that pyzmq's extension at the path `library` has loaded.

        Raises:
            ImportError: that libzmq cannot be used.
        """
        cdef ZmqPump pump
        cdef void *found
        cdef int major = 0, minor = 0, patch = 0
        from zmq import zmq_version_info

        name = library.encode()
        found = dlopen(name, RTLD_NOLOAD | RTLD_NOW) if name else NULL
        if found == NULL:
            raise ImportError("pyzmq's libzmq cannot be reached")
        pump = cls(in_flight, core, **limits)
        if find_functions(found, ZMQ_FUNCTIONS, <void **> &pump.zmq) is not None:
            raise ImportError("pyzmq's libzmq lacks a function")
        pump.zmq.version(&major, &minor, &patch)
        if (major, minor, patch) != tuple(zmq_version_info()) or (major, minor) < (4, 2):
            raise ImportError("pyzmq's libzmq has another version than pyzmq reports, or is older than 4.2")
        return pump

    def connected(self):
        CompiledPump.connected(self)
        self.torn = self.oversized = self.quiet = False
        self.baseline = self.received = 0
        self.checked_at = lc_monotonic()

    cdef int _use_link(self, link) except -1:
        if self.zmq.send == NULL:
            raise TypeError("made by ZmqPump.find")
        self.socket = <void *> <size_t> link.socket.underlying
        self.monitor = <void *> <size_t> link.monitor.underlying
        self.reads = link.reads
        self.monitor_ready = True
        self.fd = link.socket.FD
        self.monitor_fd = link.monitor.FD
        return CompiledPump._use_link(self, link)

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0          # whole messages
        cdef size_t at = 0
        cdef uint32_t head
        cdef int flags
        while at < size and not self.torn:
            head = lc_get_frame(data + at)
            flags = <int> ZMQ_DONTWAIT | (<int> ZMQ_SNDMORE if head & FRAME_MORE else 0)
            if self.zmq.send(self.socket, data + at + MESSAGE_HEAD, head & ~FRAME_MORE, flags) < 0:
                if self.zmq.errno_() == EINTR:
                    continue
                # On a live connection only the first frame of a message can be refused. A later one is
                # refused when the connection is gone: libzmq drops the frames before it, and would drop the
                # next, too.
                self.torn = at > done and self.zmq.errno_() == EAGAIN
                if done or self.torn:
                    break
                return self._failed(self.zmq.errno_())
            at += MESSAGE_HEAD + (head & ~FRAME_MORE)
            if not head & FRAME_MORE:
                done = at
        if done or not self.torn:
            return <ssize_t> done    # taken before the failure: not to be sent again
        self.error = ECONNRESET
        return LINK_BROKEN

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0
        cdef ssize_t n
        while self.reads and done < size // 2:
            n = self._message(self.socket, data + done, size - done)
            if n < 0:
                return n
            if n == 0:
                break
            done += <size_t> n
        if done:
            self.oversized = False
            self.baseline = self._bytes_received()
            return <ssize_t> done
        if self.monitor_ready:
            if self._connection_over(data, size):
                return LINK_CLOSED
            self.monitor_ready = False    # read to its end: the next event makes its descriptor readable
        if self._is_oversized():
            self.error = EMSGSIZE
            return LINK_BROKEN
        return 0

    cdef double _bytes_received(self) noexcept nogil:
        cdef lc_path path
        return <double> path.received if lc_look_at_path(&self.file, &path) == 0 else 0.0

    cdef bint _is_oversized(self) noexcept nogil:
        # Return whether too many bytes have arrived without a message.
        cdef double now = lc_monotonic()
        cdef double received
        if now - self.checked_at < CHECK_MS / 1000.0:
            return self.oversized
        received = self._bytes_received()
        self.quiet = received == self.received
        self.received = received
        self.baseline = min(received, self.baseline + HEARTBEAT_BYTES * (now - self.checked_at))
        self.checked_at = now
        self.oversized = received - self.baseline > OVERSIZED
        return self.oversized

    cdef ssize_t _message(self, void *socket, uint8_t *data, size_t room) noexcept nogil:
        # Read the next message, each frame behind its head. Return its size, 0 when there is none, or
        # LINK_BROKEN.
        cdef size_t done = 0
        cdef int n
        cdef bint more
        while room - done >= MESSAGE_HEAD:
            n = self.zmq.recv(socket, data + done + MESSAGE_HEAD, room - done - MESSAGE_HEAD, ZMQ_DONTWAIT)
            if n < 0:
                if self.zmq.errno_() == EINTR:
                    continue
                return self._failed(self.zmq.errno_())
            if <size_t> n > room - done - MESSAGE_HEAD:
                break                # it was cut
            more = self._option(socket, ZMQ_RCVMORE) != 0
            lc_put_frame(data + done, <uint32_t> n | (FRAME_MORE if more else 0))
            done += MESSAGE_HEAD + <size_t> n
            if not more:
                return <ssize_t> done
        self.error = EMSGSIZE
        return LINK_BROKEN

    cdef bint _connection_over(self, uint8_t *scratch, size_t size) noexcept nogil:
        # Read the monitor's events; return whether the connection is over.
        cdef uint16_t event
        while self._option(self.monitor, ZMQ_EVENTS) & <int> ZMQ_POLLIN:
            if self._message(self.monitor, scratch, size) < <ssize_t> MESSAGE_HEAD + 6:
                return True
            # u16 event, u32 value, in the byte order of this machine.
            memcpy(&event, scratch + MESSAGE_HEAD, sizeof(event))
            if event & (<int> ZMQ_EVENT_CLOSED | <int> ZMQ_EVENT_DISCONNECTED):
                return True
        return False

    cdef int _option(self, void *socket, int option) noexcept nogil:
        # Return the value of an option; if it cannot be had, that there is something to read.
        cdef int value = 0
        cdef size_t size = sizeof(int)
        if self.zmq.getsockopt(socket, option, &value, &size) < 0:
            return ZMQ_POLLIN
        return value

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        # ZeroMQ's descriptors are edge-triggered, and re-armed by asking for the state of the socket.
        cdef int wanted = <int> ZMQ_POLLIN | (<int> ZMQ_POLLOUT if full else 0)
        fds[0].fd = self.fd
        fds[1].fd = self.monitor_fd
        fds[0].events = fds[1].events = <short> POLLIN
        if self._option(self.socket, ZMQ_EVENTS) & wanted or self.monitor_ready:
            return True
        if self.file.fd >= 0:
            if self._is_oversized():
                return True
            if self.quiet and self.in_flight.f.inflight == 0:
                fds[2].fd = self.file.fd        # no look before something arrives; libzmq reads it
                fds[2].events = <short> POLLIN
            else:
                limit[0] = min(limit[0], lc_monotonic() + CHECK_MS / 1000.0)
        return False

    cdef bint _is_readable(self, const pollfd *fds) noexcept nogil:
        if fds[1].revents:
            self.monitor_ready = True
        if fds[2].revents:
            self.quiet = False
        return CompiledPump._is_readable(self, fds)
