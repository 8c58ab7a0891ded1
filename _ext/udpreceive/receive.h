/* Receive datagrams, many to a system call. Linux only. */
#ifndef LOGCLIENT_UDPRECEIVE_RECEIVE_H
#define LOGCLIENT_UDPRECEIVE_RECEIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#define LC_AT_ONCE 64               /* datagrams of one system call */
#define LC_ROOM 65536               /* bytes for one datagram */
#define LC_ADDRESS 28               /* bytes of sockaddr_in6, the longer address */
_Static_assert(sizeof(struct sockaddr_in6) == LC_ADDRESS, "netinet/in.h");
typedef struct {
    uint8_t from[LC_AT_ONCE][LC_ADDRESS];
    size_t size[LC_AT_ONCE];
    uint8_t *room;
} lc_receive_call;

/* Return how many datagrams were received; 0: none; below 0: -errno. */
static inline int lc_receive(int fd, lc_receive_call *c) {
#ifdef __linux__
    struct mmsghdr msg[LC_AT_ONCE];
    struct iovec iov[LC_AT_ONCE];
    int i, n;
    memset(msg, 0, sizeof msg);
    memset(c->from, 0, sizeof c->from);
    for (i = 0; i < LC_AT_ONCE; i++) {
        iov[i].iov_base = c->room + (size_t)i * LC_ROOM;
        iov[i].iov_len = LC_ROOM;
        msg[i].msg_hdr.msg_iov = &iov[i];
        msg[i].msg_hdr.msg_iovlen = 1;
        msg[i].msg_hdr.msg_name = c->from[i];
        msg[i].msg_hdr.msg_namelen = LC_ADDRESS;
    }
    n = recvmmsg(fd, msg, LC_AT_ONCE, MSG_DONTWAIT, NULL);
    for (i = 0; i < n; i++) c->size[i] = msg[i].msg_len;
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNREFUSED
        ? 0 : -errno;
#else
    (void)fd; (void)c;
    return -ENOSYS;
#endif
}
/* Sleep until one of the descriptors is readable. */
static inline void lc_await(int fd, int other) {
    struct pollfd fds[2] = {{fd, POLLIN, 0}, {other, POLLIN, 0}};
    poll(fds, 2, -1);              /* one below 0 is left out */
}
static inline void lc_notify(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) return;    /* full: already set */
}

#endif
