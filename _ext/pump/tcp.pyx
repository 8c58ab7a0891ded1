cdef class TcpPump(CompiledPump):
    """Pumps over stream sockets without TLS: links that have a ``fileno()``; see ``CompiledPump``."""

    cdef int fd

    cdef int _use_link(self, link) except -1:
        self.fd = link.fileno()
        return 0

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        while True:
            n = send(self.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n >= 0 or errno != EINTR:
                return n if n >= 0 else self._failed(errno)

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        while True:
            n = recv(self.fd, data, size, MSG_DONTWAIT)
            if n == 0:
                return LINK_CLOSED
            if n > 0 or errno != EINTR:
                return n if n > 0 else self._failed(errno)

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        fds[0].fd = self.fd
        fds[0].events = <short> (POLLIN | POLLOUT if full else POLLIN)
        return False
