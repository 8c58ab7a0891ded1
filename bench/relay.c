/* A relay for row `delay`: TCP connections to another port, with each byte some time later.
 *
 *   relay PORT DELAY_US
 *
 * PORT is that of the server on 127.0.0.1. Each direction is delayed by DELAY_US microseconds, so the round trip
 * is longer by twice that. A direction has a buffer for the bytes on their way, larger than any window in flight,
 * so that the delay is the only limit: `full` counts how often it was not.
 *
 * The first line on stdout is {"port": N}. Then comes a line of totals for each line of stdin. The relay ends
 * with its stdin.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 32, ROOM = 64 << 20, PIECES = 1 << 14, READ = 256 << 10 };

/* Bytes that were read together. */
typedef struct {
    uint64_t end;           /* bytes of the direction up to its last one */
    int64_t due;            /* ns of CLOCK_MONOTONIC */
} Piece;

/* A direction: a ring of bytes, and a ring of pieces of it. */
typedef struct {
    uint8_t *data;
    Piece pieces[PIECES];
    uint32_t first, count;
    uint64_t in, out;       /* bytes read and written */
    int ended, blocked;     /* the source has closed; the target is full */
} Way;

typedef struct {
    int fds[2];             /* client, server */
    Way *ways[2];           /* from client, from server */
} Pair;

static Pair pairs[PAIRS];
static int n_pairs;
static int64_t delay;
static uint64_t total, fulls, late_most;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int reserve(struct iovec *v, uint8_t *data, uint64_t at, uint64_t size) {
    uint64_t from = at % ROOM, some = size < ROOM - from ? size : ROOM - from;
    v[0] = (struct iovec){data + from, some};
    v[1] = (struct iovec){data, size - some};
    return v[1].iov_len ? 2 : 1;
}

static int has_room(const Way *w) { return !w->ended && w->count < PIECES && w->in - w->out + READ <= ROOM; }

/* Return -1 when the pair is over. */
static int take(int fd, Way *w, int64_t time) {
    struct iovec v[2];
    if (!has_room(w))
        return 0;
    ssize_t n = readv(fd, v, reserve(v, w->data, w->in, READ));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0)
        w->ended = 1;
    w->in += n;
    total += n;
    w->pieces[(w->first + w->count++) % PIECES] = (Piece){w->in, time + delay};
    return 0;
}

/* Write what is due; return -1 when the pair is over. */
static int give(int fd, Way *w, int64_t time) {
    struct iovec v[2];
    w->blocked = 0;
    while (w->count) {
        uint64_t due = w->out;
        uint32_t i = 0;
        for (; i < w->count && w->pieces[(w->first + i) % PIECES].due <= time; i++)
            due = w->pieces[(w->first + i) % PIECES].end;
        if (!i)
            return 0;
        uint64_t late = time - w->pieces[w->first].due;
        late_most = late > late_most ? late : late_most;
        if (due > w->out) {
            ssize_t n = writev(fd, v, reserve(v, w->data, w->out, due - w->out));
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return -1;
            w->out += n > 0 ? n : 0;
        }
        while (w->count && w->pieces[w->first].end <= w->out && w->pieces[w->first].due <= time) {
            w->first = (w->first + 1) % PIECES;
            w->count--;
        }
        if (w->out < due) {
            w->blocked = 1;
            return 0;
        }
    }
    return w->ended ? -1 : 0;
}

static Way *way(void) {
    Way *w = calloc(1, sizeof *w);
    if (!w)
        fail("memory");
    w->data = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->data == MAP_FAILED)
        fail("memory");
    return w;
}

static void end_pair(int i) {
    for (int k = 0; k < 2; k++) {
        close(pairs[i].fds[k]);
        munmap(pairs[i].ways[k]->data, ROOM);
        free(pairs[i].ways[k]);
    }
    pairs[i] = pairs[--n_pairs];
}

static void begin_pair(int listener, const struct sockaddr_in *to) {
    int one = 1, near = accept4(listener, NULL, NULL, SOCK_NONBLOCK), far;
    if (near < 0)
        return;
    far = socket(AF_INET, SOCK_STREAM, 0);
    if (n_pairs == PAIRS || connect(far, (const struct sockaddr *)to, sizeof *to) < 0)
        fail("connect");
    if (ioctl(far, FIONBIO, &one) < 0)
        fail("FIONBIO");
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pairs[n_pairs++] = (Pair){{near, far}, {way(), way()}};
}

static void report(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"bytes\": %llu, \"full\": %llu, \"late\": %.6f, \"cpu\": %.6f}\n", (unsigned long long)total,
           (unsigned long long)fulls, late_most / 1e9,
           used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    fflush(stdout);
    late_most = 0;
}

int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, us = to;
    socklen_t size = sizeof us;
    if (argc != 3)
        return 2;
    to.sin_port = htons(atoi(argv[1]));
    delay = atoll(argv[2]) * 1000;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (struct sockaddr *)&us, sizeof us) < 0 || listen(listener, 16) < 0 ||
        getsockname(listener, (struct sockaddr *)&us, &size) < 0)
        fail("listen");
    printf("{\"port\": %d}\n", ntohs(us.sin_port));
    fflush(stdout);
    for (;;) {
        struct pollfd fds[2 + 2 * PAIRS] = {{.fd = 0, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        int64_t first = INT64_MAX, time = now();
        for (int i = 0; i < n_pairs; i++)
            for (int k = 0; k < 2; k++) {
                Way *in = pairs[i].ways[k], *out = pairs[i].ways[!k];
                fulls += !in->ended && !has_room(in);
                short events = (has_room(in) ? POLLIN : 0) | (out->blocked ? POLLOUT : 0);
                fds[2 + 2 * i + k] = (struct pollfd){.fd = events ? pairs[i].fds[k] : -1, .events = events};
                if (in->count && !in->blocked && in->pieces[in->first].due < first)
                    first = in->pieces[in->first].due;
            }
        int64_t left = first > time ? first - time : 0;
        struct timespec wait = {left / 1000000000, left % 1000000000};
        if (ppoll(fds, 2 + 2 * n_pairs, first == INT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR)
            fail("ppoll");
        time = now();
        if (fds[0].revents) {
            char line[64];
            if (read(0, line, sizeof line) <= 0)
                return 0;
            report();
        }
        for (int i = n_pairs - 1; i >= 0; i--) {
            int over = 0;
            for (int k = 0; k < 2 && !over; k++) {
                if (fds[2 + 2 * i + k].revents)
                    over |= take(pairs[i].fds[k], pairs[i].ways[k], time) < 0;
                over |= give(pairs[i].fds[!k], pairs[i].ways[k], time) < 0;
            }
            if (over)
                end_pair(i);
        }
        if (fds[1].revents)
            begin_pair(listener, &to);
    }
}
