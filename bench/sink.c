/* The server of the benchmark rows: a reader of Lumberjack or ZMTP that counts and acknowledges.
 *
 * It is a separate process, so that its CPU can be measured, and does the least work of a reader:
 * it walks the frames of a window, counts them, and acknowledges the window with its last sequence number
 * (like Logstash; go-lumber's clients number windows from 1, so the number suits both). Payloads
 * are skipped, not copied, except with --dump. It reads versions 1 and 2 of W, J and C frames, and
 * refuses D frames, which no row sends. C frames need zlib (-DSINK_ZLIB -lz).
 *
 *   sink [--port N] [--buffer BYTES] [--dump FILE] [--peek 1] [--zmtp 1] [--libssl FILE --tls CERTIFICATE]
 *
 * --zmtp: read Logjam like a ROUTER for DEALER sockets and a PULL for PUSH sockets (ZMTP 3.0, no security),
 * without libzmq, whose two threads would use more of a core than a sink may. An event is a message of four
 * frames, the last one 24 bytes with the tag; a message with an empty frame before them is a request and
 * answered 202.
 *
 * --peek: inflate only the first header of each C frame, which has the number for the ack, and trust the W
 * frame for the rest: a row about compression does not measure decompression.
 *
 * --tls: all connections are TLS with this certificate (and its key, PEM), decrypted in this process by the OpenSSL
 * in --libssl. Counted are the bytes in it.
 *
 * The first line on stdout is {"port": N, "zlib": 0|1}. Then comes a line of totals for each line of
 * stdin. After the end of stdin, SIGTERM or SIGINT comes a last line of totals, and exit code 0 (2: a peer
 * broke the protocol).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef SINK_ZLIB
#include <zlib.h>
#endif

#include "stream.h"

enum { PEERS = 64, HEAD = 10, INFLATED = 256 * 1024 };

/* --zmtp */
enum { GREETING = 64, MORE = 1, LONG = 2, COMMAND = 4, KEPT = 256, REPLIES = 64 * 1024 };

/* One level of framing: that of the socket, or of the content of a C frame. */
typedef struct {
    uint8_t head[HEAD];     /* a header cut by the end of the input */
    uint32_t have;          /* bytes in it */
    uint64_t skip;          /* payload bytes still to come */
    int kind;               /* 'J' or 'C' while skip > 0 */
} Walk;

/* --zmtp: the same for its frames; the first bytes of a frame are kept until its end. */
typedef struct {
    uint8_t head[9];
    uint32_t have;
    int flags;
    uint64_t left;          /* content still to come */
    uint8_t kept[KEPT];
    uint32_t kept_size;
    int greeted, ready;
    int frame, request;     /* of the current message: number of the frame; whether the first frame is empty */
    uint8_t app_env[KEPT];
    uint32_t app_env_size;
} Zmtp;

typedef struct {
    Stream stream;
    Zmtp z;
    uint32_t window, seen, last;    /* of the current window */
    uint8_t version;
    Walk outer, inner;
#ifdef SINK_ZLIB
    z_stream zip;
    int unzipping;
    uint8_t peeked[HEAD];   /* --peek: the first bytes of a C frame */
#endif
} Peer;

static struct {
    uint64_t connections, windows, events, acks, reads, bytes, payload, compressed, errors;
    uint64_t open_windows;      /* incomplete windows of ended connections */
    double first, last;         /* CLOCK_MONOTONIC of the first and the last byte */
    const char *cipher;         /* of the connection that has sent the last byte; empty: plain */
} total = {.cipher = ""};

static Peer peers[PEERS];
static int n_peers;
static FILE *dump;
static int peek, zmtp;
static uint8_t *buffer, *inflated;
static uint8_t replies[REPLIES];    /* to the bytes of one recv */
static size_t replies_size;
static volatile sig_atomic_t stop;

static void on_signal(int number) { (void)number; stop = 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint32_t be32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return ntohl(value);
}

static void report(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double user = used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6;
    double system = used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6;
    printf("{\"connections\": %llu, \"windows\": %llu, \"events\": %llu, \"acks\": %llu, \"reads\": %llu, "
           "\"bytes\": %llu, \"payload\": %llu, \"compressed\": %llu, \"errors\": %llu, \"open_windows\": %llu, "
           "\"first\": %.6f, \"last\": %.6f, \"user\": %.6f, \"system\": %.6f, "
           "\"cipher\": \"%s\"}\n",
           (unsigned long long)total.connections, (unsigned long long)total.windows,
           (unsigned long long)total.events, (unsigned long long)total.acks, (unsigned long long)total.reads,
           (unsigned long long)total.bytes, (unsigned long long)total.payload,
           (unsigned long long)total.compressed, (unsigned long long)total.errors,
           (unsigned long long)total.open_windows, total.first, total.last, user, system,
           total.cipher);
    if (dump)
        fflush(dump);
    fflush(stdout);
}

static int broken(const char *why) {
    fprintf(stderr, "sink: %s\n", why);
    total.errors++;
    return -1;
}

static int acknowledge(Peer *peer) {
    uint8_t ack[6] = {peer->version, 'A'};
    uint32_t sequence = htonl(peer->last);
    memcpy(ack + 2, &sequence, 4);
    total.windows++;
    peer->window = peer->seen = 0;
    if (stream_write(&peer->stream, ack, 6) < 0)
        return -1;      /* the writer has closed the connection, which does not break the protocol */
    total.acks++;
    return 0;
}

static void payload(const uint8_t *data, size_t size, int whole) {
    if (!dump)
        return;
    fwrite(data, 1, size, dump);
    if (whole)
        fputc('\n', dump);
}

#ifdef SINK_ZLIB
static int walk(Peer *peer, Walk *w, const uint8_t *data, size_t size);

/* Read a piece of a C frame; `ends`: it includes the last byte. */
static int unzip(Peer *peer, const uint8_t *data, size_t size, int ends) {
    int done = 0;
    if (!peer->unzipping) {
        memset(&peer->zip, 0, sizeof peer->zip);
        if (inflateInit(&peer->zip) != Z_OK)
            return broken("no memory for zlib");
        peer->unzipping = 1;
    }
    peer->zip.next_in = (uint8_t *)data;
    peer->zip.avail_in = size;
    do {
        peer->zip.next_out = inflated;
        peer->zip.avail_out = INFLATED;
        int rc = inflate(&peer->zip, Z_NO_FLUSH);
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return broken("a C frame that does not inflate");
        if (walk(peer, &peer->inner, inflated, INFLATED - peer->zip.avail_out) < 0)
            return -1;
        done = rc == Z_STREAM_END;
    } while (!done && (peer->zip.avail_in || !peer->zip.avail_out));
    if (ends) {
        inflateEnd(&peer->zip);
        peer->unzipping = 0;
        if (!done || peer->inner.have || peer->inner.skip)
            return broken("a C frame that ends early");
    }
    return 0;
}
#endif

#ifdef SINK_ZLIB
/* The same for --peek: inflate the first ten bytes, then only wait for the end. */
static int look(Peer *peer, const uint8_t *data, size_t size, int ends) {
    if (peer->unzipping == 0) {
        memset(&peer->zip, 0, sizeof peer->zip);
        if (inflateInit(&peer->zip) != Z_OK)
            return broken("no memory for zlib");
        peer->zip.next_out = peer->peeked;
        peer->zip.avail_out = HEAD;
        peer->unzipping = 1;
    }
    if (peer->zip.avail_out) {
        peer->zip.next_in = (uint8_t *)data;
        peer->zip.avail_in = size;
        int rc = inflate(&peer->zip, Z_SYNC_FLUSH);
        if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
            return broken("a C frame that does not inflate");
    }
    if (!ends)
        return 0;
    inflateEnd(&peer->zip);
    peer->unzipping = 0;
    if (peer->zip.avail_out || peer->peeked[1] != 'J' || !peer->window || peer->seen)
        return broken("a C frame without a window of J frames");
    peer->last = be32(peer->peeked + 2) + peer->window - 1;
    peer->seen = peer->window;
    total.events += peer->window;
    return acknowledge(peer);
}
#endif

/* Read the frames of one level. The last frame of a window is acknowledged at once. */
static int walk(Peer *peer, Walk *w, const uint8_t *data, size_t size) {
    const uint8_t *end = data + size;
    while (data < end) {
        if (w->skip) {
            size_t part = (uint64_t)(end - data) < w->skip ? (size_t)(end - data) : w->skip;
            int ends = part == w->skip;
#ifdef SINK_ZLIB
            if (w->kind == 'C') {
                if ((peek ? look(peer, data, part, ends) : unzip(peer, data, part, ends)) < 0)
                    return -1;
            } else
#endif
                payload(data, part, ends);
            data += part;
            w->skip -= part;
            if (!w->skip && w->kind == 'J' && peer->seen == peer->window && acknowledge(peer) < 0)
                return -1;
            continue;
        }
        /* Usually the header is read in place; a cut header is joined in w->head. */
        const uint8_t *p = data;
        size_t room = end - data;
        if (w->have || room < HEAD) {
            uint32_t need = w->have < 2 ? 2 : w->head[1] == 'J' ? 10 : 6;
            if (w->have < need) {
                w->head[w->have++] = *data++;
                need = w->have < 2 ? 2 : w->head[1] == 'J' ? 10 : 6;
                if (w->have < need)
                    continue;
            }
            p = w->head;
        }
        if ((p[0] != '2' && p[0] != '1'))
            return broken("not a Lumberjack version");
        size_t used = 6;
        switch (p[1]) {
        case 'W':
            if (w != &peer->outer || peer->window)
                return broken("a W frame inside a window");
            peer->version = p[0];
            peer->window = be32(p + 2);
            if (!peer->window)
                return broken("an empty window");
            break;
        case 'J':
            used = 10;
            if (peer->seen >= peer->window)
                return broken("an event outside a window");
            peer->last = be32(p + 2);
            w->skip = be32(p + 6);
            w->kind = 'J';
            if (!w->skip)
                return broken("an empty event");
            __builtin_prefetch(data + used + w->skip);      /* the next header, if it has arrived */
            peer->seen++;
            total.events++;
            total.payload += w->skip;
            break;
        case 'C':
#ifdef SINK_ZLIB
            if (w != &peer->outer)
                return broken("a C frame inside a C frame");
            w->skip = be32(p + 2);
            w->kind = 'C';
            if (!w->skip)
                return broken("an empty C frame");
            total.compressed++;
            break;
#else
            return broken("a C frame, and this sink was built without zlib");
#endif
        default:
            return broken("a frame that no row sends");
        }
        if (p == w->head)
            w->have = 0;
        else
            data += used;
    }
    return 0;
}

static int reply(Peer *peer) {
    size_t size = replies_size;
    replies_size = 0;
    return size ? stream_write(&peer->stream, replies, size) : 0;
}

static int put(Peer *peer, int flags, const void *data, size_t size) {
    if (replies_size + 2 + size > REPLIES && reply(peer) < 0)
        return -1;
    replies[replies_size++] = flags;
    replies[replies_size++] = size;
    memcpy(replies + replies_size, data, size);
    replies_size += size;
    return 0;
}

/* Answer the peer's READY command with ours, which names the matching kind of socket. */
static int shake(Peer *peer, const Zmtp *z) {
    static const char router[] = "\5READY\13Socket-Type\0\0\0\6ROUTER";
    static const char pull[] = "\5READY\13Socket-Type\0\0\0\4PULL";
    if (z->kept_size < 6 || memcmp(z->kept, "\5READY", 6))
        return broken("no READY command");
    if (memmem(z->kept, z->kept_size, "\0\0\0\6DEALER", 10))
        return put(peer, COMMAND, router, sizeof router - 1);
    if (memmem(z->kept, z->kept_size, "\0\0\0\4PUSH", 8))
        return put(peer, COMMAND, pull, sizeof pull - 1);
    return broken("neither a DEALER nor a PUSH");
}

/* Handle the end of a frame, whose facts are in `z`. */
static int framed(Peer *peer, Zmtp *z) {
    if (z->flags & COMMAND) {
        if (z->ready)
            return 0;
        z->ready = 1;
        return shake(peer, z);
    }
    if (z->frame == 0)
        z->request = z->kept_size == 0;
    if (z->frame == 1 && z->request) {
        memcpy(z->app_env, z->kept, z->kept_size);
        z->app_env_size = z->kept_size;
    }
    z->frame++;
    if (z->flags & MORE)
        return 0;
    if (z->frame != 4 + z->request || z->kept_size != 24 || memcmp(z->kept, "\xCA\xBD", 2))
        return broken("a message that is not Logjam");
    z->frame = 0;
    total.events++;
    if (!z->request)
        return 0;
    total.acks++;
    return put(peer, MORE, z->app_env, z->app_env_size) < 0 ? -1 : put(peer, 0, "202 Accepted", 12);
}

static int walk_zmtp(Peer *peer, const uint8_t *data, size_t size) {
    Zmtp *z = &peer->z;
    const uint8_t *end = data + size;
    while (data < end) {
        if (!z->left) {
            z->head[z->have++] = *data++;
            if (z->have < (z->head[0] & LONG ? 9 : 2))
                continue;
            z->flags = z->head[0];
            z->left = z->flags & LONG ? (uint64_t)be32(z->head + 1) << 32 | be32(z->head + 5) : z->head[1];
            z->have = z->kept_size = 0;
            if (z->flags & ~(MORE | LONG | COMMAND) || z->left > 1 << 30)
                return broken("not a ZMTP frame");
        } else {
            size_t part = (uint64_t)(end - data) < z->left ? (size_t)(end - data) : z->left;
            if (z->frame == 2 + z->request && !(z->flags & COMMAND)) {
                payload(data, part, part == z->left);
                total.payload += part;
            } else {
                size_t keep = part < KEPT - z->kept_size ? part : KEPT - z->kept_size;
                memcpy(z->kept + z->kept_size, data, keep);
                z->kept_size += keep;
            }
            data += part;
            z->left -= part;
        }
        if (z->left)
            continue;
        if (z->greeted) {
            if (framed(peer, z) < 0)
                return -1;
        } else {
            if (z->kept[0] != 0xFF || z->kept[10] < 3)
                return broken("not ZMTP 3");
            z->greeted = 1;
        }
    }
    return reply(peer);
}

static void greet(Peer *peer) {
    uint8_t greeting[GREETING] = {0xFF, [9] = 0x7F, 3, 0, 'N', 'U', 'L', 'L'};
    peer->z.left = GREETING;
    if (stream_write(&peer->stream, greeting, sizeof greeting) < 0)
        total.errors++;
}

static void hang_up(int i) {
    Peer *peer = &peers[i];
    total.open_windows += peer->window != 0;
#ifdef SINK_ZLIB
    if (peer->unzipping)
        inflateEnd(&peer->zip);
#endif
    stream_close(&peer->stream);
    *peer = peers[--n_peers];
}

int main(int argc, char **argv) {
    int port = 0, one = 1;
    const char *library = NULL, *certificate = NULL;
    size_t capacity = 128 * 1024;   /* stays in the second-level cache */
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port"))
            port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--buffer"))
            capacity = strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--peek"))
            peek = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--zmtp"))
            zmtp = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--libssl"))
            library = argv[i + 1];
        else if (!strcmp(argv[i], "--tls"))
            certificate = argv[i + 1];
        else if (!strcmp(argv[i], "--dump")) {
            if (!(dump = fopen(argv[i + 1], "wb"))) {
                perror("sink: --dump");
                return 1;
            }
        }
    }
    if (certificate && stream_server(library, certificate))
        return 1;
    buffer = malloc(capacity);
    inflated = malloc(INFLATED);
    struct sigaction act = {.sa_handler = on_signal};   /* no SA_RESTART: poll must return */
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    socklen_t length = sizeof where;
    if (!buffer || !inflated || bind(listener, (struct sockaddr *)&where, sizeof where) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&where, &length)) {
        perror("sink");
        return 1;
    }
#ifdef SINK_ZLIB
    printf("{\"port\": %d, \"zlib\": 1}\n", ntohs(where.sin_port));
#else
    printf("{\"port\": %d, \"zlib\": 0}\n", ntohs(where.sin_port));
#endif
    fflush(stdout);

    while (!stop) {
        struct pollfd polled[PEERS + 2] = {{.fd = 0, .events = POLLIN},
                                           {.fd = n_peers < PEERS ? listener : -1, .events = POLLIN}};
        int known = n_peers, more = 0;
        for (int i = 0; i < n_peers; i++) {
            polled[i + 2] = (struct pollfd){.fd = peers[i].stream.fd, .events = POLLIN};
            more |= peers[i].stream.more;
        }
        if (poll(polled, known + 2, more ? 0 : -1) < 0) {
            if (errno == EINTR)
                continue;
            perror("sink: poll");
            return 1;
        }
        for (int i = known - 1; i >= 0; i--) {   /* backwards: hang_up moves the last peer here */
            if (!polled[i + 2].revents && !peers[i].stream.more)
                continue;
            ssize_t n = stream_read(&peers[i].stream, buffer, capacity);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (n <= 0) {
                hang_up(i);
                continue;
            }
            total.last = now();
            if (!total.bytes)
                total.first = total.last;
            total.reads++;
            total.bytes += n;
            total.cipher = peers[i].stream.cipher;
            if ((zmtp ? walk_zmtp(&peers[i], buffer, n) : walk(&peers[i], &peers[i].outer, buffer, n)) < 0)
                hang_up(i);
        }
        if (polled[1].revents) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                peers[n_peers++] = (Peer){.stream = stream_open(fd)};
                total.connections++;
                if (zmtp)
                    greet(&peers[n_peers - 1]);
            }
        }
        if (polled[0].revents) {    /* after the sockets: what had arrived is in the totals */
            char line[64];
            if (read(0, line, sizeof line) <= 0)
                break;
            report();
        }
    }
    while (n_peers)
        hang_up(0);
    report();
    if (dump)
        fclose(dump);
    return total.errors ? 2 : 0;
}
