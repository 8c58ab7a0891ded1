cdef class TcpPump(CompiledPump):
    """Pumps over stream sockets without TLS: links that have a ``file``; see ``CompiledPump``."""

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n = lc_send(&self.file, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
        return n if n >= 0 else self._failed(errno)

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n = lc_recv(&self.file, data, size, MSG_DONTWAIT)
        if n == 0:
            return LINK_CLOSED
        return n if n > 0 else self._failed(errno)

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        fds[0].fd = self.file.fd
        fds[0].events = <short> (POLLIN | POLLOUT if full else POLLIN)
        return False
