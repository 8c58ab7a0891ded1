cdef class TlsPump(CompiledPump):
    """Pumps over links of ``transports.tls_pump``; see ``CompiledPump``."""

    cdef object link
    cdef TlsSocket tls

    cdef int _use_link(self, link) except -1:
        self.tls = link.tls_socket
        self.link = link
        return CompiledPump._use_link(self, link)

    cdef object _find_failure(self):
        return self.link.failure()

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        return self.tls.write(data, size)

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        return self.tls.read(data, size)

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        fds[0].fd = self.tls.file.fd
        fds[0].events = <short> self.tls.interest(full)
        return self.tls.has_unread
