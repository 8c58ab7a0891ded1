"""The sender for ZeroMQ: whole batches of messages through the libzmq that pyzmq has loaded.

Four calls of ``zmq_send`` a message and no Python between them. The functions are found in the copy
that pyzmq uses (a second one in the process could not take its sockets), and only where its version is
the one that pyzmq says; else there is no compiled pump, and ``delivery.pump`` goes through pyzmq.

Messages are frames, each behind its head: u32 little-endian length, top bit when more follow.

libzmq gives a message when it is whole, and holds what there is of it until then: a peer that never ends
one would make it grow for ever. Linux says how much came over a connection (TCP_INFO); one that brings
more than `SWOLLEN` bytes, heartbeats apart, and no message is over.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from logclient._ext.constants cimport FRAME_MORE
from logclient._ext.handoff cimport lc_monotonic, lc_wake_fd
from logclient._ext.pump cimport (
    LINK_BROKEN,
    LINK_CLOSED,
    WOKEN_BY_CALLER,
    WOKEN_BY_PEER,
    CompiledPump,
    ssize_t,
)


cdef extern from *:
    """
    #include <dlfcn.h>
    #include <errno.h>
    #include <poll.h>
    /* zmq_msg_t: 64 bytes, aligned like a pointer, since 4.2. */
    typedef union { unsigned char _[64]; void *p; } lc_zmq_msg;
    typedef int (*lc_zmq_send)(void *, const void *, size_t, int);
    typedef int (*lc_zmq_getsockopt)(void *, int, void *, size_t *);
    typedef int (*lc_zmq_msg_int)(lc_zmq_msg *);
    typedef int (*lc_zmq_msg_recv)(lc_zmq_msg *, void *, int);
    typedef void *(*lc_zmq_msg_data)(lc_zmq_msg *);
    typedef size_t (*lc_zmq_msg_size)(const lc_zmq_msg *);
    typedef int (*lc_zmq_errno)(void);
    typedef void (*lc_zmq_version)(int *, int *, int *);
    #ifndef RTLD_NOLOAD
    #define RTLD_NOLOAD 0
    #endif
    /* Bytes that came over a TCP connection; 0 where nobody says. tcpi_bytes_received is at 128 of Linux's
       struct tcp_info since 4.1; the headers of a C library may lack it. */
    #ifdef __linux__
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    static uint64_t lc_brought(int fd) {
        unsigned char info[136];
        uint64_t bytes;
        socklen_t size = sizeof(info);
        if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) < 0 || size < sizeof(info)) return 0;
        memcpy(&bytes, info + 128, 8);
        return bytes;
    }
    #else
    #include <stdint.h>
    static uint64_t lc_brought(int fd) { (void)fd; return 0; }
    #endif
    """
    ctypedef struct lc_zmq_msg:
        pass
    ctypedef int (*lc_zmq_send)(void *, const void *, size_t, int) noexcept nogil
    ctypedef int (*lc_zmq_getsockopt)(void *, int, void *, size_t *) noexcept nogil
    ctypedef int (*lc_zmq_msg_int)(lc_zmq_msg *) noexcept nogil
    ctypedef int (*lc_zmq_msg_recv)(lc_zmq_msg *, void *, int) noexcept nogil
    ctypedef void *(*lc_zmq_msg_data)(lc_zmq_msg *) noexcept nogil
    ctypedef size_t (*lc_zmq_msg_size)(const lc_zmq_msg *) noexcept nogil
    ctypedef int (*lc_zmq_errno)() noexcept nogil
    ctypedef void (*lc_zmq_version)(int *, int *, int *) noexcept nogil
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout) nogil
    uint64_t lc_brought(int fd) nogil
    void *dlopen(const char *name, int flags) nogil
    void *dlsym(void *library, const char *name) nogil
    int POLLIN, EAGAIN, ECONNRESET, EINTR, EMSGSIZE, RTLD_NOLOAD, RTLD_NOW

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
    HEAD = 4
    LOOK = 100                   # milliseconds between two looks at what has come
    SWOLLEN = 4 << 20
    PULSE = 256                  # bytes a second that are ZeroMQ's own heartbeats


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


cdef inline uint32_t _head(const uint8_t *p) noexcept nogil:
    return p[0] | (<uint32_t> p[1] << 8) | (<uint32_t> p[2] << 16) | (<uint32_t> p[3] << 24)


cdef class ZmqPump(CompiledPump):
    """See ``_ext.pump``. Links have a ``socket`` and a ``monitor`` of pyzmq's."""

    cdef lc_zmq zmq
    cdef void *socket
    cdef void *monitor
    cdef bint reads              # a PUSH socket has nothing to read
    cdef bint torn               # the connection went in the middle of a message
    cdef bint told               # the monitor may have something to tell
    cdef int fd
    cdef int monitor_fd
    cdef int tcp                 # the connection's own; -1 where it says nothing
    cdef double before           # bytes: what it had brought with the last message, and heartbeats since
    cdef double looked
    cdef bint swollen

    @classmethod
    def find(cls, flight, core, str library, **limits):
        """A pump on the libzmq that `library` (pyzmq's extension) has loaded, or None without one."""
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
            return None
        pump = cls(flight, core, **limits)
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
            return None
        version(&major, &minor, &patch)
        if (major, minor, patch) != tuple(zmq_version_info()) or (major, minor) < (4, 2):
            return None
        return pump

    def connected(self):
        CompiledPump.connected(self)
        self.torn = False
        self.swollen = False
        self.before = 0
        self.looked = lc_monotonic()

    cdef int _take(self, link) except -1:
        self.socket = <void *> <size_t> link.socket.underlying
        self.monitor = <void *> <size_t> link.monitor.underlying
        self.reads = link.reads
        self.told = True
        self.fd = link.socket.FD
        self.monitor_fd = link.monitor.FD
        self.tcp = link.tcp
        return 0

    cdef ssize_t _fault(self) noexcept nogil:
        self.error = self.zmq.errno_()
        return 0 if self.error == EAGAIN else LINK_BROKEN

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0          # whole messages
        cdef size_t at = 0
        cdef uint32_t head
        cdef int flags
        while at < size and not self.torn:
            head = _head(data + at)
            flags = <int> ZMQ_DONTWAIT | (<int> ZMQ_SNDMORE if head & FRAME_MORE else 0)
            if self.zmq.send(self.socket, data + at + HEAD, head & ~FRAME_MORE, flags) < 0:
                if self.zmq.errno_() == EINTR:
                    continue
                # Of a whole connection only a message's first frame can be refused. Of one that is gone a
                # later one is: libzmq drops those before it, and would drop what it is given next, too.
                self.torn = at > done and self.zmq.errno_() == EAGAIN
                if done or self.torn:
                    break
                return self._fault()
            at += HEAD + (head & ~FRAME_MORE)
            if not head & FRAME_MORE:
                done = at
        if done or not self.torn:
            return <ssize_t> done    # whatever came after them: these were taken, and are not sent again
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
            self.swollen = False
            self.before = <double> lc_brought(self.tcp)
            return <ssize_t> done
        if self.told:
            if self._over(data, size):
                return LINK_CLOSED
            self.told = False    # and is read to its end: what comes next makes its descriptor readable
        if self._swollen():
            self.error = EMSGSIZE
            return LINK_BROKEN
        return 0

    # Whether much came, and no message.
    cdef bint _swollen(self) noexcept nogil:
        cdef double now = lc_monotonic()
        cdef double brought
        if now - self.looked < LOOK / 1000.0:
            return self.swollen
        brought = <double> lc_brought(self.tcp)
        self.before = min(brought, self.before + PULSE * (now - self.looked))
        self.looked = now
        self.swollen = brought - self.before > SWOLLEN
        return self.swollen

    # The next message, all its frames behind their heads: its size, 0 when there is none, or a fault.
    cdef ssize_t _message(self, void *socket, uint8_t *data, size_t room) noexcept nogil:
        cdef lc_zmq_msg part
        cdef size_t done = 0
        cdef size_t n
        cdef uint32_t head
        cdef bint more = True
        while more:
            self.zmq.msg_init(&part)
            while self.zmq.msg_recv(&part, socket, ZMQ_DONTWAIT) < 0:
                if self.zmq.errno_() != EINTR:
                    self.zmq.msg_close(&part)
                    return self._fault()
            n = self.zmq.msg_size(&part)
            more = self.zmq.msg_more(&part) != 0
            if n > room - done or room - done - n < HEAD:
                self.zmq.msg_close(&part)
                self.error = EMSGSIZE
                return LINK_BROKEN
            head = <uint32_t> n | (FRAME_MORE if more else 0)
            data[done] = <uint8_t> head
            data[done + 1] = <uint8_t> (head >> 8)
            data[done + 2] = <uint8_t> (head >> 16)
            data[done + 3] = <uint8_t> (head >> 24)
            memcpy(data + done + HEAD, self.zmq.msg_data(&part), n)
            self.zmq.msg_close(&part)
            done += HEAD + n
        return <ssize_t> done

    # Whether the monitor has told that the connection is over.
    cdef bint _over(self, uint8_t *scratch, size_t size) noexcept nogil:
        cdef uint16_t event
        while self._events(self.monitor) & <int> ZMQ_POLLIN:
            if self._message(self.monitor, scratch, size) < <ssize_t> HEAD + 6:
                return True
            # In the machine's own order: u16 event, u32 value.
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

    cdef int _sleep(self, bint full, int timeout) noexcept nogil:
        # ZeroMQ's descriptors tell changes only, and asking for its state is what makes them do so.
        cdef pollfd fds[3]
        cdef int wanted = <int> ZMQ_POLLIN | (<int> ZMQ_POLLOUT if full else 0)
        cdef int woken = 0
        if self._events(self.socket) & wanted or self.told:
            woken = WOKEN_BY_PEER
            timeout = 0
        elif self.tcp >= 0:
            if self._swollen():
                return WOKEN_BY_PEER
            if timeout > LOOK:
                timeout = LOOK
        fds[0].fd = self.fd
        fds[1].fd = self.monitor_fd
        fds[2].fd = lc_wake_fd(&self.flight.f.handoff.wake)
        fds[0].events = fds[1].events = fds[2].events = <short> POLLIN
        fds[0].revents = fds[1].revents = fds[2].revents = 0
        poll(fds, 3, timeout)
        if fds[1].revents:
            self.told = True
        if fds[0].revents or fds[1].revents:
            woken |= <int> WOKEN_BY_PEER
        if fds[2].revents:
            woken |= <int> WOKEN_BY_CALLER
        return woken
