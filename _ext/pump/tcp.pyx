"""The compiled pump for TCP: moves bytes over a connected, non-blocking stream socket without TLS."""

from libc.stdint cimport uint8_t

from logclient._ext.queue cimport lc_wake_fd
from logclient._ext.pump.base cimport (
    LINK_BROKEN,
    LINK_CLOSED,
    WOKEN_BY_CALLER,
    WOKEN_BY_PEER,
    CompiledPump,
    ssize_t,
)


cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #ifdef LC_LIKE_MACOS
    #undef MSG_NOSIGNAL
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0      /* macOS: the transport sets SO_NOSIGPIPE */
    #endif
    static inline int lc_errno(void) { return errno; }
    """
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout) nogil
    ssize_t send(int fd, const void *data, size_t size, int flags) nogil
    ssize_t recv(int fd, void *data, size_t size, int flags) nogil
    int lc_errno() nogil
    int POLLIN, POLLOUT, EAGAIN, EWOULDBLOCK, EINTR, MSG_NOSIGNAL, MSG_DONTWAIT


cdef class TcpPump(CompiledPump):
    """Pumps over links that have a ``fileno()``; see ``CompiledPump``."""

    cdef int _use_link(self, link) except -1:
        self.fd = link.fileno()
        return 0

    cdef ssize_t _failed(self) noexcept nogil:
        # Return the meaning of a failed call: 0 for not now, or LINK_BROKEN.
        if lc_errno() == EAGAIN or lc_errno() == EWOULDBLOCK:
            return 0
        self.error = lc_errno()
        return LINK_BROKEN

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        while True:
            n = send(self.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n >= 0 or lc_errno() != EINTR:
                return n if n >= 0 else self._failed()

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        while True:
            n = recv(self.fd, data, size, MSG_DONTWAIT)
            if n == 0:
                return LINK_CLOSED
            if n > 0 or lc_errno() != EINTR:
                return n if n > 0 else self._failed()

    cdef int _sleep(self, bint full, int timeout) noexcept nogil:
        cdef pollfd fds[2]
        fds[0].fd = self.fd
        fds[0].events = <short> (POLLIN | POLLOUT) if full else <short> POLLIN
        fds[0].revents = 0
        fds[1].fd = lc_wake_fd(&self.in_flight.f.queue.wake)
        fds[1].events = <short> POLLIN
        fds[1].revents = 0
        poll(fds, 2, timeout)
        return (WOKEN_BY_PEER if fds[0].revents else 0) | (WOKEN_BY_CALLER if fds[1].revents else 0)
