# The pump for UDP: moves runs of datagrams (codec.pxd) over a connected, non-blocking socket.
#
# Of three methods to send it uses the first that the system supports. `gso` gives whole runs to the kernel,
# many to a call, and the kernel cuts them into datagrams (UDP_SEGMENT). `mmsg` gives many datagrams to a
# call, `send` one. A full socket buffer is back-pressure: the other datagrams wait.

cdef extern from "pump/udp.h":
    ctypedef struct lc_udp_call:
        int n
    void lc_udp_add(lc_udp_call *call, const uint8_t *at, size_t size, uint32_t segment) noexcept nogil
    int lc_udp_send(int fd, lc_udp_call *call, int many) noexcept nogil
    const int LC_MMSG
    enum: LC_UDP_CALL


cdef class UdpPump(CompiledPump):
    """Pumps over links that have a ``file`` and a ``send_method``; see ``CompiledPump``.

    A method that the system refuses is not tried again on the same socket.
    """

    cdef int method              # UDP_ONE, UDP_MANY or UDP_RUNS; below 0: chosen by the next link
    cdef size_t inside           # bytes of the first run that are sent already
    cdef bint no_buffers         # the system is out of buffers, although the socket is writable
    cdef int late_error          # errno of a failure after part of a write was taken
    cdef lc_udp_call call

    @property
    def send_method(self) -> str:
        """The method by which datagrams are sent now: one of `UDP_METHODS`."""
        return UDP_METHODS[self.method]

    def connected(self):
        CompiledPump.connected(self)
        self.inside = self.late_error = 0
        self.method = -1

    cdef int _use_link(self, link) except -1:
        if self.method < 0:
            self.method = UDP_METHODS.index(link.send_method)
            if not LC_MMSG:
                self.method = UDP_ONE
        return CompiledPump._use_link(self, link)

    cdef void _gather(self, const uint8_t *data, size_t size) noexcept nogil:
        # Collect the messages of the next call, from `data` on.
        cdef size_t at = 0, done = self.inside, most = <size_t> (LC_UDP_CALL if self.method else 1)
        cdef size_t run, segment
        self.call.n = 0
        while at < size and <size_t> self.call.n < most:
            run = lc_get_frame(data + at)
            segment = lc_get_frame(data + at + 4)
            while done < run and <size_t> self.call.n < most:
                if self.method == UDP_RUNS:
                    lc_udp_add(&self.call, data + at + RUN_HEAD + done, run - done, <uint32_t> segment)
                    done = run
                else:
                    lc_udp_add(&self.call, data + at + RUN_HEAD + done, min(segment, run - done), 0)
                    done += segment
            at += RUN_HEAD + run
            done = 0

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t done = 0         # bytes of whole runs
        cdef size_t run, segment
        cdef int n, error, _taken
        if self.late_error:
            self.error = self.late_error
            self.late_error = 0
            return LINK_BROKEN
        while done < size:
            self._gather(data + done, size - done)
            # At once before the use: the program may close our number in another thread.
            n = lc_udp_send(self.file.fd, &self.call, self.method) if lc_is_ours(&self.file) else -EBADF
            if n < 0:
                error = EBADF if n == -EBADF else errno
                if error == EINTR:
                    continue
                if self.method == UDP_RUNS and error in (EINVAL, EIO, EOPNOTSUPP, EMSGSIZE):
                    self.method = UDP_MANY   # not here or not at this size: the rest one by one
                    continue
                if self.method == UDP_MANY and error == ENOSYS:
                    self.method = UDP_ONE
                    continue
                self.no_buffers = error == ENOBUFS
                if self.no_buffers or error in (EAGAIN, EWOULDBLOCK):
                    return <ssize_t> done
                if done:
                    self.late_error = error
                    return <ssize_t> done
                self.error = error
                return LINK_BROKEN
            for _taken in range(n):
                run = lc_get_frame(data + done)
                segment = lc_get_frame(data + done + 4)
                self.inside = run if self.method == UDP_RUNS else self.inside + segment
                if self.inside >= run:
                    done += RUN_HEAD + run
                    self.inside = 0
        return <ssize_t> done

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        cdef int _reads
        for _reads in range(MAX_READS_PER_TURN):
            n = lc_recv(&self.file, data + RUN_HEAD, size - RUN_HEAD, MSG_DONTWAIT | MSG_TRUNC)
            if n > 0 and <size_t> n <= size - RUN_HEAD:
                lc_put_frame(data, <uint32_t> n)
                lc_put_frame(data + 4, <uint32_t> n)
                return n + RUN_HEAD
            if n >= 0:
                continue             # empty, or longer than any valid one
            return self._failed(errno)
        return self._failed(EAGAIN)

    cdef bint _interest(self, bint full, pollfd *fds, double *limit) noexcept nogil:
        fds[0].fd = self.file.fd
        fds[0].events = <short> POLLIN
        if full and self.no_buffers:         # no event reports that the system has some again
            limit[0] = min(limit[0], lc_monotonic() + 0.001)
        elif full:
            fds[0].events = <short> (POLLIN | POLLOUT)
        return False
