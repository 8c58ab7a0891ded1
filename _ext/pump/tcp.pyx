"""The compiled pump for TCP: moves bytes over a connected, non-blocking stream socket without TLS."""

from libc.stdint cimport uint8_t

from logclient._ext.pump.base cimport (
    LINK_BROKEN,
    LINK_CLOSED,
    POLLIN,
    POLLOUT,
    CompiledPump,
    ssize_t,
)


cdef extern from *:
    """
    #include <errno.h>
    #include <sys/socket.h>
    #ifdef LC_LIKE_MACOS
    #undef MSG_NOSIGNAL
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0      /* macOS: the transport sets SO_NOSIGPIPE */
    #endif
    static inline int lc_errno(void) { return errno; }
    """
    ssize_t send(int fd, const void *data, size_t size, int flags) nogil
    ssize_t recv(int fd, void *data, size_t size, int flags) nogil
    int lc_errno() nogil
    int EAGAIN, EWOULDBLOCK, EINTR, MSG_NOSIGNAL, MSG_DONTWAIT


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

    cdef int _interest(self, bint full, int *fd) noexcept nogil:
        fd[0] = self.fd
        return POLLIN | POLLOUT if full else POLLIN
