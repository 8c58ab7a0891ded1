"""The compiled pump for TLS: encrypts and moves bytes over links that have a ``tls_socket``."""

from libc.stdint cimport uint8_t

from logclient._ext.pump.base cimport POLLIN, POLLOUT, UNREAD, CompiledPump
from logclient._ext.tls cimport TO_READ, TO_WRITE


cdef class TlsPump(CompiledPump):
    """Pumps over links of ``transports.tls_pump``; see ``CompiledPump``."""

    cdef int _use_link(self, link) except -1:
        self.tls = link.tls_socket
        self.link = link
        return 0

    @property
    def errno(self):
        """0: `failure` has the reason."""
        return 0

    @property
    def failure(self):
        """The exception behind the end ``error``, in the words of the link; None: there is no failure."""
        return None if self.link is None else self.link.failure()

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        return self.tls.write(data, size)

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        return self.tls.read(data, size)

    cdef int _interest(self, bint full, int *fd) noexcept nogil:
        cdef int wanted = self.tls.interest(full)
        fd[0] = self.tls.fd
        return ((POLLIN if wanted & TO_READ else 0) | (POLLOUT if wanted & TO_WRITE else 0)
                | (UNREAD if self.tls.unread else 0))
