"""The pump for TLS: encrypts and moves bytes over links that have a ``tls_socket``."""

from libc.stdint cimport uint8_t

from logclient._ext.pump.base cimport POLLIN, POLLOUT, CompiledPump, pollfd
from logclient._ext.tls cimport TO_READ, TO_WRITE


cdef class TlsPump(CompiledPump):
    """Pumps over links of ``transports.tls_pump``; see ``CompiledPump``."""

    cdef int _use_link(self, link) except -1:
        self.tls = link.tls_socket
        self.link = link
        return 0

    cdef object _find_failure(self):
        return self.link.failure()

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        return self.tls.write(data, size)

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        return self.tls.read(data, size)

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        cdef int wanted = self.tls.interest(full)
        fds[0].fd = self.tls.fd
        fds[0].events = <short> ((POLLIN if wanted & TO_READ else 0) | (POLLOUT if wanted & TO_WRITE else 0))
        return self.tls.unread
