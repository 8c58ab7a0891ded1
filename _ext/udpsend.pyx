"""The sender for UDP: runs of datagrams into a connected, non-blocking socket, single ones out of it.

Three ways, the first that the system takes: ``gso`` gives a whole run to the kernel, which cuts it up
(UDP_SEGMENT), many runs to a call; ``mmsg`` gives many datagrams to a call; ``send`` one.

The form of runs is told in hot.pxd. A full socket buffer is back-pressure: what was not taken stays.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from logclient._ext.handoff cimport lc_wake_fd
from logclient._ext.hot cimport lc_get_frame, lc_put_frame
from logclient._ext.pump cimport (
    LINK_BROKEN,
    WOKEN_BY_CALLER,
    WOKEN_BY_PEER,
    CompiledPump,
    ssize_t,
)


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <poll.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #ifdef LC_LIKE_MACOS
    #undef MSG_NOSIGNAL
    #endif
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #if defined(__linux__) && !defined(LC_LIKE_MACOS)
    #define LC_MMSG 1
    #else
    #define LC_MMSG 0
    #endif
    #define LC_UDP_CALL 64              /* messages given to the kernel at once */
    typedef struct {
        struct iovec iov[LC_UDP_CALL];
        int n;
    #if LC_MMSG
        struct mmsghdr msg[LC_UDP_CALL];
        union { char room[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } control[LC_UDP_CALL];
    #endif
    } lc_udp_call;

    /* One message more; a segment makes the kernel cut it up. */
    static inline void lc_udp_add(lc_udp_call *c, const uint8_t *at, size_t size, uint32_t segment) {
        int i = c->n++;
        c->iov[i].iov_base = (void *)at;
        c->iov[i].iov_len = size;
    #if LC_MMSG
        struct msghdr *h = &c->msg[i].msg_hdr;
        memset(h, 0, sizeof *h);
        h->msg_iov = &c->iov[i];
        h->msg_iovlen = 1;
        if (segment && segment < size) {
            struct cmsghdr *m;
            uint16_t value = (uint16_t)segment;
            h->msg_control = c->control[i].room;
            h->msg_controllen = sizeof c->control[i].room;
            m = CMSG_FIRSTHDR(h);
            m->cmsg_level = 17;         /* SOL_UDP */
            m->cmsg_type = 103;         /* UDP_SEGMENT */
            m->cmsg_len = CMSG_LEN(sizeof value);
            memcpy(CMSG_DATA(m), &value, sizeof value);
        }
    #endif
    }

    /* How many of them were taken; -1 and errno when none was. */
    static inline int lc_udp_send(int fd, lc_udp_call *c, int many) {
    #if LC_MMSG
        if (many)
            return sendmmsg(fd, c->msg, (unsigned)c->n, MSG_DONTWAIT | MSG_NOSIGNAL);
    #endif
        return send(fd, c->iov[0].iov_base, c->iov[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 1;
    }
    static inline int lc_udp_errno(void) { return errno; }
    """
    ctypedef struct lc_udp_call:
        int n
    void lc_udp_add(lc_udp_call *call, const uint8_t *at, size_t size, uint32_t segment) noexcept nogil
    int lc_udp_send(int fd, lc_udp_call *call, int many) noexcept nogil
    int lc_udp_errno() noexcept nogil
    const int LC_MMSG
    enum: LC_UDP_CALL
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long n, int timeout) nogil
    ssize_t recv(int fd, void *data, size_t size, int flags) nogil
    int POLLIN, POLLOUT, EAGAIN, EWOULDBLOCK, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS, ENOSYS, EOPNOTSUPP
    int MSG_DONTWAIT, MSG_TRUNC

cdef enum:
    HEAD = 8                 # of a run: its bytes, its segment

# How datagrams are given to the kernel.
cdef enum:
    ONE
    MANY
    RUNS

WAYS = ("send", "mmsg", "gso")


cdef class UdpPump(CompiledPump):
    """See ``_ext.pump``. Links have a ``fileno()`` and a ``way``.

    ``way`` is the one of `WAYS` that is in use; what the system refuses is not tried again on this socket.
    """

    cdef int fd
    cdef int by
    cdef size_t inside           # of the run at the front: bytes that are gone already
    cdef bint crowded            # the system has no buffers, whatever the socket says
    cdef int late                # an error that came behind what was taken
    cdef lc_udp_call call

    @property
    def way(self):
        return WAYS[self.by]

    def connected(self):
        CompiledPump.connected(self)
        self.inside = 0
        self.late = 0
        self.by = -1

    cdef int _take(self, link) except -1:
        self.fd = link.fileno()
        if self.by < 0:
            self.by = WAYS.index(link.way)
            if not LC_MMSG:
                self.by = ONE
        return 0

    # Messages for the next call, from `data` on.
    cdef void _gather(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t at = 0, done = self.inside, most = <size_t> (LC_UDP_CALL if self.by else 1)
        cdef size_t run, segment
        self.call.n = 0
        while at < size and <size_t> self.call.n < most:
            run = lc_get_frame(data + at)
            segment = lc_get_frame(data + at + 4)
            while done < run and <size_t> self.call.n < most:
                if self.by == RUNS:
                    lc_udp_add(&self.call, data + at + HEAD + done, run - done, <uint32_t> segment)
                    done = run
                else:
                    lc_udp_add(&self.call, data + at + HEAD + done, min(segment, run - done), 0)
                    done += segment
            at += HEAD + run
            done = 0

    cdef ssize_t _write(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t gone = 0         # whole runs
        cdef size_t run, segment
        cdef int n, error, _taken
        if self.late:
            self.error = self.late
            self.late = 0
            return LINK_BROKEN
        while gone < size:
            self._gather(data + gone, size - gone)
            n = lc_udp_send(self.fd, &self.call, self.by)
            if n < 0:
                error = lc_udp_errno()
                if error == EINTR:
                    continue
                if self.by == RUNS and error in (EINVAL, EIO, EOPNOTSUPP, EMSGSIZE):
                    self.by = MANY   # this system, this device or this size: the rest one by one
                    continue
                if self.by == MANY and error == ENOSYS:
                    self.by = ONE
                    continue
                self.crowded = error == ENOBUFS
                if self.crowded or error in (EAGAIN, EWOULDBLOCK):
                    return <ssize_t> gone
                if gone:
                    self.late = error
                    return <ssize_t> gone
                self.error = error
                return LINK_BROKEN
            for _taken in range(n):
                run = lc_get_frame(data + gone)
                segment = lc_get_frame(data + gone + 4)
                self.inside = run if self.by == RUNS else self.inside + segment
                if self.inside >= run:
                    gone += HEAD + run
                    self.inside = 0
        return <ssize_t> gone

    cdef ssize_t _read(self, uint8_t *data, size_t size) noexcept nogil:
        cdef ssize_t n
        while True:
            n = recv(self.fd, data + HEAD, size - HEAD, MSG_DONTWAIT | MSG_TRUNC)
            if n > 0 and <size_t> n <= size - HEAD:
                lc_put_frame(data, <uint32_t> n)
                lc_put_frame(data + 4, <uint32_t> n)
                return n + HEAD
            if n >= 0 or lc_udp_errno() == EINTR:
                continue             # empty, or longer than any
            self.error = lc_udp_errno()
            return 0 if self.error in (EAGAIN, EWOULDBLOCK) else LINK_BROKEN

    cdef int _sleep(self, bint full, int timeout) noexcept nogil:
        cdef pollfd fds[2]
        memset(fds, 0, sizeof(fds))
        fds[0].fd = self.fd
        fds[0].events = <short> (POLLIN | POLLOUT) if full and not self.crowded else <short> POLLIN
        fds[1].fd = lc_wake_fd(&self.flight.f.handoff.wake)
        fds[1].events = <short> POLLIN
        # Nobody tells when the system has buffers again.
        poll(fds, 2, min(timeout, 1) if full and self.crowded else timeout)
        return (WOKEN_BY_PEER if fds[0].revents else 0) | (WOKEN_BY_CALLER if fds[1].revents else 0)
