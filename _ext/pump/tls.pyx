"""The compiled pump for TLS: encrypts and moves bytes over links that have a ``tls_socket``."""

from libc.stdint cimport uint8_t

from logclient._ext.queue cimport lc_wake_fd
from logclient._ext.pump.base cimport WOKEN_BY_CALLER, WOKEN_BY_PEER, CompiledPump, ssize_t
from logclient._ext.tls cimport TO_READ, TO_WRITE


cdef extern from *:
    """
    #include <poll.h>
    """
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout) nogil
    int POLLIN, POLLOUT


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

    cdef int _sleep(self, bint full, int timeout) noexcept nogil:
        cdef pollfd fds[2]
        cdef int wanted = self.tls.interest(full)
        fds[0].fd = self.tls.fd
        fds[0].events = <short> ((POLLIN if wanted & TO_READ else 0) | (POLLOUT if wanted & TO_WRITE else 0))
        fds[0].revents = 0
        fds[1].fd = lc_wake_fd(&self.in_flight.f.queue.wake)
        fds[1].events = <short> POLLIN
        fds[1].revents = 0
        poll(fds, 2, 0 if self.tls.unread else timeout)
        return ((WOKEN_BY_PEER if fds[0].revents or self.tls.unread else 0)
                | (WOKEN_BY_CALLER if fds[1].revents else 0))
