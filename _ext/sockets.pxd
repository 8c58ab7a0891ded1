# Calls on sockets. Two of the numbers of errors may be equal, so that they are no enum as in libc.errno.

from libc.errno cimport errno  # no-cython-lint

from logclient._ext.descriptors cimport lc_file


cdef extern from "sockets.h" nogil:
    ssize_t lc_send(const lc_file *f, const void *data, size_t size, int flags)
    ssize_t lc_recv(const lc_file *f, void *data, size_t size, int flags)
    int EAGAIN, EBADF, ECONNRESET, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS, ENOSYS, EOPNOTSUPP, EWOULDBLOCK
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_TRUNC
