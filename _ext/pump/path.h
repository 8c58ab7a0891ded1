/* What the system knows of the path to a peer. */
#ifndef LOGCLIENT_PUMP_PATH_H
#define LOGCLIENT_PUMP_PATH_H

#include <string.h>
#include <sys/socket.h>
#if defined(__linux__) && !defined(LC_LIKE_MACOS)
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#endif
#include "../descriptors.h"

typedef struct {
    int waiting;      /* bytes that the peer's TCP has not acknowledged */
    uint64_t acked;   /* bytes that it has */
    uint64_t received; /* bytes that it has sent */
    double ack_age;   /* seconds since its last acknowledgement */
    int owes;         /* whether it owes one: not while it has no room, and answers to questions for that */
    int gap;          /* whether it has later bytes than the first that is not acknowledged */
    uint32_t segment; /* bytes of a packet of full size, without headers */
} lc_path;

/* Look at a TCP connection: 0, or -1: it is gone, or the system does not tell. */
static inline int lc_look_at_path(const lc_file *f, lc_path *p) {
#if defined(__linux__) && !defined(LC_LIKE_MACOS)
    /* Places in Linux's struct tcp_info; the headers of a C library may lack the later ones. */
    enum { PROBES = 3, SEGMENT = 16, UNACKED = 24, SACKED = 28, ACK_AGE = 56, ACKED = 120, RECEIVED = 128,
           WINDOW = 228, END = 232 };
    unsigned char info[END];
    uint32_t room, sacked, milliseconds;
    socklen_t size = sizeof(info);
    if (!lc_is_ours(f) || getsockopt(f->fd, IPPROTO_TCP, TCP_INFO, info, &size) < 0 || size < RECEIVED + 8
        || ioctl(f->fd, SIOCOUTQ, &p->waiting) < 0) return -1;
    memcpy(&p->acked, info + ACKED, 8);
    memcpy(&p->received, info + RECEIVED, 8);
    memcpy(&p->segment, info + SEGMENT, 4);
    memcpy(&sacked, info + SACKED, 4);
    memcpy(&milliseconds, info + ACK_AGE, 4);
    /* Before Linux 5.4, a peer to which no packet is under way has no room. */
    memcpy(&room, info + (size < END ? UNACKED : WINDOW), 4);
    p->owes = room || info[PROBES] > 1;
    p->gap = sacked > 0;
    p->ack_age = milliseconds / 1000.0;
    return 0;
#else
    (void)f, (void)p;
    return -1;
#endif
}

/* Have the last close of a connection reset it. */
static inline void lc_discard(const lc_file *f) {
    struct linger none = {1, 0};
    if (lc_is_ours(f)) setsockopt(f->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

#endif
