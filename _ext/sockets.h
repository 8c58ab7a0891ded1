/* The flags of calls on sockets; 0 where a system has none. */
#ifndef LOGCLIENT_SOCKETS_H
#define LOGCLIENT_SOCKETS_H

#include <errno.h>
#include <sys/socket.h>
#include "descriptors.h"
#ifdef LC_LIKE_MACOS
#undef MSG_NOSIGNAL
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: the transport sets SO_NOSIGPIPE */
#endif
#ifndef MSG_MORE
#define MSG_MORE 0 /* only Linux has it */
#endif

/* As send and recv, again after a signal, on a descriptor that is ours still; else EBADF. */
static inline ssize_t lc_send(const lc_file *f, const void *data, size_t size, int flags) {
    while (lc_is_ours(f)) {
        ssize_t n = send(f->fd, data, size, flags);
        if (n >= 0 || errno != EINTR) return n;
    }
    errno = EBADF;
    return -1;
}
static inline ssize_t lc_recv(const lc_file *f, void *data, size_t size, int flags) {
    while (lc_is_ours(f)) {
        ssize_t n = recv(f->fd, data, size, flags);
        if (n >= 0 || errno != EINTR) return n;
    }
    errno = EBADF;
    return -1;
}

#endif
