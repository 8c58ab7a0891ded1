# Calls on sockets. Two of the numbers of errors may be equal, so that they are no enum as in libc.errno.

from libc.errno cimport errno  # no-cython-lint


cdef extern from "sockets.h" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int EAGAIN, ECONNRESET, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS, ENOSYS, EOPNOTSUPP, EWOULDBLOCK
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_TRUNC
