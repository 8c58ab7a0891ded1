"""The pump for ZeroMQ: moves whole batches of messages through the libzmq that pyzmq has loaded.

Sending a message takes a few calls of ``zmq_send`` and no Python between them. The functions are looked up in
the library that pyzmq uses, because a second copy in the process could not use its sockets, and only where
its version is the one that pyzmq reports. Otherwise there is no such pump, and the messages go through pyzmq.

Messages consist of frames, each behind its head; the form is described in ``codec.pxd``.

libzmq delivers whole messages and keeps the part of one that has arrived, so a peer that never completes
one would make it grow without bound. Linux reports how many bytes a connection has received (TCP_INFO). A
connection that received more than `OVERSIZED` bytes without a message, heartbeats apart, is ended.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from logclient._ext.codec cimport lc_get_frame, lc_put_frame
from logclient._ext.constants cimport FRAME_MORE
from logclient._ext.queue cimport lc_monotonic
from logclient._ext.pump.base cimport LINK_BROKEN, LINK_CLOSED, POLLIN, CompiledPump, pollfd


cdef extern from "pump/zmq.h":
    ctypedef struct lc_zmq_msg:
        pass
    uint64_t lc_bytes_received(int fd) nogil
    void *dlopen(const char *name, int flags) nogil
    void *dlsym(void *library, const char *name) nogil
    int EAGAIN, ECONNRESET, EINTR, EMSGSIZE, RTLD_NOLOAD, RTLD_NOW

ctypedef int (*lc_zmq_send)(void *, const void *, size_t, int) noexcept nogil
ctypedef int (*lc_zmq_getsockopt)(void *, int, void *, size_t *) noexcept nogil
ctypedef int (*lc_zmq_msg_int)(lc_zmq_msg *) noexcept nogil
ctypedef int (*lc_zmq_msg_recv)(lc_zmq_msg *, void *, int) noexcept nogil
ctypedef void *(*lc_zmq_msg_data)(lc_zmq_msg *) noexcept nogil
ctypedef size_t (*lc_zmq_msg_size)(const lc_zmq_msg *) noexcept nogil
ctypedef int (*lc_zmq_errno)() noexcept nogil
ctypedef void (*lc_zmq_version)(int *, int *, int *) noexcept nogil

# zmq.h
cdef enum:
    ZMQ_DONTWAIT = 1
    ZMQ_SNDMORE = 2
    ZMQ_EVENTS = 15
    ZMQ_POLLIN = 1
    ZMQ_POLLOUT = 2
    ZMQ_EVENT_CLOSED = 0x0080
    ZMQ_EVENT_DISCONNECTED = 0x0200

cdef enum:
    HEAD = 4                     # bytes of a frame's head
    CHECK_MS = 100               # milliseconds between two looks at the bytes received
    OVERSIZED = 4 << 20          # bytes without a message that end a connection
    HEARTBEAT_BYTES = 256        # bytes a second that count as ZeroMQ's own heartbeats


ctypedef struct lc_zmq:
    lc_zmq_send send
    lc_zmq_getsockopt getsockopt
    lc_zmq_msg_int msg_init
    lc_zmq_msg_int msg_close
    lc_zmq_msg_int msg_more
    lc_zmq_msg_recv msg_recv
    lc_zmq_msg_data msg_data
    lc_zmq_msg_size msg_size
    lc_zmq_errno errno_


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
    cdef int tcp                 # the descriptor of the connection; -1 where bytes received are unknown
    cdef double baseline         # bytes received up to the last message, and heartbeats since
    cdef double checked_at       # monotonic seconds of the last look
    cdef bint oversized

    @classmethod
    def find(cls, in_flight: InflightBatches, core: Any, str library, **limits: Any) -> ZmqPump:
        """Make a pump on the libzmq that pyzmq has loaded.

        Args:
            in_flight: the batches.
            core: see `CompiledPump`.
            library: the path of pyzmq's extension.
            **limits: see `CompiledPump`.

        Raises:
            ImportError: that libzmq cannot be used.
        """
        cdef ZmqPump pump
        cdef void *found
        cdef lc_zmq *z
        cdef lc_zmq_version version
        cdef int major = 0
        cdef int minor = 0
        cdef int patch = 0
        from zmq import zmq_version_info

        name = library.encode()
        found = dlopen(name, RTLD_NOLOAD | RTLD_NOW) if name else NULL
        if found == NULL:
            raise ImportError("pyzmq's libzmq cannot be reached")
        pump = cls(in_flight, core, **limits)
        z = &pump.zmq
        version = <lc_zmq_version> dlsym(found, b"zmq_version")
        z.send = <lc_zmq_send> dlsym(found, b"zmq_send")
        z.getsockopt = <lc_zmq_getsockopt> dlsym(found, b"zmq_getsockopt")
        z.msg_init = <lc_zmq_msg_int> dlsym(found, b"zmq_msg_init")
        z.msg_close = <lc_zmq_msg_int> dlsym(found, b"zmq_msg_close")
        z.msg_more = <lc_zmq_msg_int> dlsym(found, b"zmq_msg_more")
        z.msg_recv = <lc_zmq_msg_recv> dlsym(found, b"zmq_msg_recv")
        z.msg_data = <lc_zmq_msg_data> dlsym(found, b"zmq_msg_data")
        z.msg_size = <lc_zmq_msg_size> dlsym(found, b"zmq_msg_size")
        z.errno_ = <lc_zmq_errno> dlsym(found, b"zmq_errno")
        if (version == NULL or z.send == NULL or z.getsockopt == NULL or z.msg_init == NULL
                or z.msg_close == NULL or z.msg_more == NULL or z.msg_recv == NULL or z.msg_data == NULL
                or z.msg_size == NULL or z.errno_ == NULL):
            raise ImportError("pyzmq's libzmq lacks a function")
        version(&major, &minor, &patch)
        if (major, minor, patch) != tuple(zmq_version_info()) or (major, minor) < (4, 2):
            raise ImportError("pyzmq's libzmq has another version than pyzmq reports, or is older than 4.2")
        return pump

    def connected(self):
        CompiledPump.connected(self)
        self.torn = False
        self.oversized = False
        self.baseline = 0
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
        self.tcp = link.tcp
        return 0

    cdef ssize_t _failed(self) noexcept nogil:
        # Return the meaning of a failed call: 0 for not now, or LINK_BROKEN.
        self.error = self.zmq.errno_()
        return 0 if self.error == EAGAIN else LINK_BROKEN

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0          # whole messages
        cdef size_t at = 0
        cdef uint32_t head
        cdef int flags
        while at < size and not self.torn:
            head = lc_get_frame(data + at)
            flags = <int> ZMQ_DONTWAIT | (<int> ZMQ_SNDMORE if head & FRAME_MORE else 0)
            if self.zmq.send(self.socket, data + at + HEAD, head & ~FRAME_MORE, flags) < 0:
                if self.zmq.errno_() == EINTR:
                    continue
                # On a live connection only the first frame of a message can be refused. A later one is
                # refused when the connection is gone: libzmq drops the frames before it, and would drop the
                # next, too.
                self.torn = at > done and self.zmq.errno_() == EAGAIN
                if done or self.torn:
                    break
                return self._failed()
            at += HEAD + (head & ~FRAME_MORE)
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
            self.baseline = <double> lc_bytes_received(self.tcp)
            return <ssize_t> done
        if self.monitor_ready:
            if self._connection_over(data, size):
                return LINK_CLOSED
            self.monitor_ready = False    # read to its end: the next event makes its descriptor readable
        if self._is_oversized():
            self.error = EMSGSIZE
            return LINK_BROKEN
        return 0

    cdef bint _is_oversized(self) noexcept nogil:
        # Return whether too many bytes have arrived without a message.
        cdef double now = lc_monotonic()
        cdef double received
        if now - self.checked_at < CHECK_MS / 1000.0:
            return self.oversized
        received = <double> lc_bytes_received(self.tcp)
        self.baseline = min(received, self.baseline + HEARTBEAT_BYTES * (now - self.checked_at))
        self.checked_at = now
        self.oversized = received - self.baseline > OVERSIZED
        return self.oversized

    cdef ssize_t _message(self, void *socket, uint8_t *data, size_t room) noexcept nogil:
        # Read the next message, each frame behind its head. Return its size, 0 when there is none, or
        # LINK_BROKEN.
        cdef lc_zmq_msg part
        cdef size_t done = 0
        cdef size_t n
        cdef bint more = True
        while more:
            self.zmq.msg_init(&part)
            while self.zmq.msg_recv(&part, socket, ZMQ_DONTWAIT) < 0:
                if self.zmq.errno_() != EINTR:
                    self.zmq.msg_close(&part)
                    return self._failed()
            n = self.zmq.msg_size(&part)
            more = self.zmq.msg_more(&part) != 0
            if n > room - done or room - done - n < HEAD:
                self.zmq.msg_close(&part)
                self.error = EMSGSIZE
                return LINK_BROKEN
            lc_put_frame(data + done, <uint32_t> n | (FRAME_MORE if more else 0))
            memcpy(data + done + HEAD, self.zmq.msg_data(&part), n)
            self.zmq.msg_close(&part)
            done += HEAD + n
        return <ssize_t> done

    cdef bint _connection_over(self, uint8_t *scratch, size_t size) noexcept nogil:
        # Read the monitor's events; return whether the connection is over.
        cdef uint16_t event
        while self._events(self.monitor) & <int> ZMQ_POLLIN:
            if self._message(self.monitor, scratch, size) < <ssize_t> HEAD + 6:
                return True
            # u16 event, u32 value, in the byte order of this machine.
            memcpy(&event, scratch + HEAD, sizeof(event))
            if event & (<int> ZMQ_EVENT_CLOSED | <int> ZMQ_EVENT_DISCONNECTED):
                return True
        return False

    cdef int _events(self, void *socket) noexcept nogil:
        cdef int events = 0
        cdef size_t size = sizeof(int)
        if self.zmq.getsockopt(socket, ZMQ_EVENTS, &events, &size) < 0:
            return ZMQ_POLLIN
        return events

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        # ZeroMQ's descriptors are edge-triggered, and re-armed by asking for the state of the socket.
        cdef int wanted = <int> ZMQ_POLLIN | (<int> ZMQ_POLLOUT if full else 0)
        fds[0].fd = self.fd
        fds[1].fd = self.monitor_fd
        fds[0].events = fds[1].events = <short> POLLIN
        if self._events(self.socket) & wanted or self.monitor_ready:
            return True
        if self.tcp >= 0:
            if self._is_oversized():
                return True
            limit[0] = min(limit[0], lc_monotonic() + CHECK_MS / 1000.0)
        return False

    cdef bint _is_readable(self, const pollfd *fds) noexcept nogil:
        if fds[1].revents:
            self.monitor_ready = True
        return CompiledPump._is_readable(self, fds)
