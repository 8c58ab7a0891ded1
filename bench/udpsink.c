/* A receiver of plog over UDP that counts datagrams, bytes, and complete messages.
 *
 * Each line of stdin is answered with a line of totals; the end of stdin ends the sink. The receive buffer is
 * as large as the system allows, so that it holds a whole run.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, ROOM = 65536, PORTS = 65536 };

static uint8_t room[BATCH][ROOM];
static struct {
    uint32_t id, next;       /* the number of the open message, and its next fragment */
} open_[PORTS];
static uint64_t datagrams, bytes, messages, simple, torn, payload;
static double last;

static uint32_t be(const uint8_t *p, int n) {
    uint32_t value = 0;
    while (n--)
        value = value << 8 | *p++;
    return value;
}

static void take(const uint8_t *p, size_t size, uint16_t port) {
    datagrams++;
    bytes += size;
    if (!size || p[0] >= 32) {
        simple++;
        messages++;
        payload += size;
        return;
    }
    if (size < 24 || p[0] != 0 || p[1] != 1) {
        torn++;
        return;
    }
    uint32_t count = be(p + 2, 2), index = be(p + 4, 2), id = be(p + 8, 4);
    if (index == 0) {
        open_[port].id = id;
        open_[port].next = 0;
    }
    if (open_[port].id != id || open_[port].next != index) {
        torn++;
        return;
    }
    open_[port].next++;
    payload += size - 24 - be(p + 20, 2);
    if (index + 1 == count)
        messages++;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double seconds(struct timeval t) { return t.tv_sec + t.tv_usec * 1e-6; }

int main(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), large = 1 << 29, given = 0;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from[BATCH];
    socklen_t length = sizeof at, four = sizeof given;
    struct mmsghdr got[BATCH];
    struct iovec part[BATCH];
    char line[256];
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof large) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large);
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &given, &four);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || getsockname(fd, (struct sockaddr *)&at, &length) < 0)
        return 1;
    printf("{\"port\": %d, \"buffer\": %d}\n", ntohs(at.sin_port), given);
    fflush(stdout);
    for (;;) {
        struct pollfd fds[2] = {{fd, POLLIN, 0}, {0, POLLIN, 0}};
        poll(fds, 2, -1);
        for (;;) {
            for (int i = 0; i < BATCH; i++) {
                part[i] = (struct iovec){room[i], ROOM};
                got[i].msg_hdr = (struct msghdr){
                    .msg_name = &from[i], .msg_namelen = sizeof from[i], .msg_iov = &part[i], .msg_iovlen = 1};
            }
            int n = recvmmsg(fd, got, BATCH, MSG_DONTWAIT, NULL);
            if (n <= 0)
                break;
            for (int i = 0; i < n; i++)
                take(room[i], got[i].msg_len, ntohs(from[i].sin_port));
            last = now();
        }
        if (fds[1].revents) {
            struct rusage used;
            if (read(0, line, sizeof line) <= 0)
                return 0;
            getrusage(RUSAGE_SELF, &used);
            printf("{\"events\": %llu, \"datagrams\": %llu, \"bytes\": %llu, \"payload\": %llu, \"simple\": %llu, "
                   "\"torn\": %llu, \"last\": %.9f, \"cpu\": %.6f}\n",
                   (unsigned long long)messages, (unsigned long long)datagrams, (unsigned long long)bytes,
                   (unsigned long long)payload, (unsigned long long)simple, (unsigned long long)torn, last,
                   seconds(used.ru_utime) + seconds(used.ru_stime));
            fflush(stdout);
        }
    }
}
