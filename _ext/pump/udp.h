/* Send datagrams, many to a system call where there is sendmmsg. */
#ifndef LOGCLIENT_PUMP_UDP_H
#define LOGCLIENT_PUMP_UDP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include "sockets.h"
#if defined(__linux__) && !defined(LC_LIKE_MACOS)
#define LC_MMSG 1
#else
#define LC_MMSG 0
#endif
#define LC_UDP_CALL 64              /* messages of one system call */
typedef struct {
    struct iovec iov[LC_UDP_CALL];
    int n;
#if LC_MMSG
    struct mmsghdr msg[LC_UDP_CALL];
    union { char room[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } control[LC_UDP_CALL];
#endif
} lc_udp_call;

/* Add a message; with a segment the kernel cuts it into datagrams. */
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

/* Return how many messages were taken; -1 with errno when none was. */
static inline int lc_udp_send(int fd, lc_udp_call *c, int many) {
#if LC_MMSG
    if (many)
        return sendmmsg(fd, c->msg, (unsigned)c->n, MSG_DONTWAIT | MSG_NOSIGNAL);
#endif
    return send(fd, c->iov[0].iov_base, c->iov[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 1;
}

#endif
