/* A Logux server at almost no cost: WebSocket without extensions, protocol 5, no authentication.
 *
 * It answers a sync like @logux/server 0.14 with an action type that accepts everything: `synced` at once, then
 * for each action a separate `sync` with logux/processed. It keeps nothing and builds no JSON: it scans the
 * text for ids and times in each meta. It also counts the answers to its syncs.
 *
 *   wssink [--libssl FILE --tls CERTIFICATE]
 *
 * --tls: all connections are TLS with this certificate (and its key, PEM), decrypted in this process by the OpenSSL
 * in --libssl. Counted are the bytes in it.
 *
 * The first line on stdout is {"port": N}. Then comes a line of totals for each line of stdin. After the end of
 * stdin the exit code is 0 (2: a peer broke the protocol).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "stream.h"

enum { PEERS = 64, INPUT = 8 << 20, NODE = 128, REPLIES = 1 << 20, ROOM = 512 };

typedef struct {
    Stream stream;
    int upgraded;
    uint8_t *input;
    size_t have;
    char node[NODE];
    int64_t base, last;     /* of its own ids: ms since `base`, and the counter in that ms */
    unsigned counter;
} Peer;

static struct {
    uint64_t connections, events, syncs, answered, bytes, reads, errors;
    double first, last;     /* CLOCK_MONOTONIC of the first and the last byte */
    const char *cipher;     /* of the connection that has sent the last byte; empty: plain */
} total = {.cipher = ""};

static Peer peers[PEERS];
static int n_peers;
static uint8_t replies[REPLIES];
static size_t replies_size;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int64_t wall(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void report(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"connections\": %llu, \"events\": %llu, \"syncs\": %llu, \"answered\": %llu, \"bytes\": %llu, "
           "\"reads\": %llu, \"errors\": %llu, \"first\": %.6f, \"last\": %.6f, \"user\": %.6f, \"system\": %.6f, "
           "\"cipher\": \"%s\"}\n",
           (unsigned long long)total.connections, (unsigned long long)total.events,
           (unsigned long long)total.syncs, (unsigned long long)total.answered, (unsigned long long)total.bytes,
           (unsigned long long)total.reads, (unsigned long long)total.errors, total.first, total.last,
           used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6, used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6,
           total.cipher);
    fflush(stdout);
}

static int broken(const char *why) {
    fprintf(stderr, "wssink: %s\n", why);
    total.errors++;
    return -1;
}

/* -- the handshake: SHA-1 and base64 of one short string */

static uint32_t rotate(uint32_t x, int n) { return x << n | x >> (32 - n); }

static void block(uint32_t h[5], const uint8_t *p) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC
                              : (b ^ c ^ d) + 0xCA62C1D6;
        uint32_t next = rotate(a, 5) + f + e + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

static void accepted(const char *key, size_t size, char *out) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t h[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    uint8_t text[128] = {0}, sum[21] = {0};
    memcpy(text, key, size);
    memcpy(text + size, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36);
    text[size + 36] = 0x80;
    text[126] = (size + 36) * 8 >> 8;
    text[127] = (size + 36) * 8;
    block(h, text);
    block(h, text + 64);
    for (int i = 0; i < 20; i++)
        sum[i] = h[i / 4] >> (24 - i % 4 * 8);
    for (int i = 0; i < 7; i++) {
        uint32_t three = sum[3 * i] << 16 | sum[3 * i + 1] << 8 | sum[3 * i + 2];
        for (int j = 0; j < 4; j++)
            out[4 * i + j] = letters[three >> (18 - 6 * j) & 63];
    }
    out[27] = '=';
    out[28] = 0;
}

/* -- output */

static int flush_replies(Peer *peer) {
    size_t size = replies_size;
    replies_size = 0;
    return size ? stream_write(&peer->stream, replies, size) : 0;
}

/* Write a frame with the `size` bytes in `text`. */
static int frame(Peer *peer, int opcode, const char *text, size_t size) {
    if (replies_size + size + 4 > REPLIES && flush_replies(peer) < 0)
        return -1;
    uint8_t *p = replies + replies_size;
    *p++ = 0x80 | opcode;
    if (size < 126) {
        *p++ = size;
    } else {
        *p++ = 126;
        *p++ = size >> 8;
        *p++ = size;
    }
    memcpy(p, text, size);
    replies_size = p + size - replies;
    return 0;
}

static char *number(char *p, int64_t value) {
    char digits[20];
    int n = 0;
    uint64_t left = value < 0 ? (*p++ = '-', 0 - (uint64_t)value) : (uint64_t)value;
    do
        digits[n++] = '0' + left % 10;
    while (left /= 10);
    while (n)
        *p++ = digits[--n];
    return p;
}

static char *text(char *p, const char *from, size_t size) {
    memcpy(p, from, size);
    return p + size;
}
#define TEXT(p, literal) text(p, literal, sizeof literal - 1)

/* -- input: JSON, of which only the bounds are checked */

typedef const char *At;

static At blank(At p, At end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* Return the end of the string that begins at `p`; NULL: it has no end. */
static At string(At p, At end) {
    for (p++; p < end; p++) {
        At quote = memchr(p, '"', end - p);
        if (!quote)
            return NULL;
        At back = quote;
        while (back > p && back[-1] == '\\')
            back--;
        p = quote;
        if ((quote - back) % 2 == 0)
            return quote + 1;
    }
    return NULL;
}

/* Return the end of any value. */
static At value(At p, At end) {
    int depth = 0;
    do {
        if (p >= end)
            return NULL;
        switch (*p) {
        case '"':
            if (!(p = string(p, end)))
                return NULL;
            continue;
        case '{':
        case '[':
            depth++;
            break;
        case '}':
        case ']':
            depth--;
            break;
        default:
            if (!depth) {
                while (p < end && *p != ',' && *p != ']' && *p != '}')
                    p++;
                return p;
            }
        }
        p++;
    } while (depth);
    return p;
}

static At integer(At p, At end, int64_t *out) {
    int minus = p < end && *p == '-';
    int64_t n = 0;
    At start = p += minus;
    while (p < end && *p >= '0' && *p <= '9' && p - start < 18)
        n = n * 10 + (*p++ - '0');
    *out = minus ? -n : n;
    return p == start || (p < end && (*p == '.' || *p == 'e' || *p == 'E')) ? NULL : p;
}

/* Read a meta; `id` is the beginning of the id's text. */
static At meta(At p, At end, At *id) {
    *id = NULL;
    if (p >= end || *p != '{')
        return NULL;
    p = blank(p + 1, end);
    while (p < end && *p != '}') {
        At key = p, stop;
        if (*p != '"' || !(stop = string(p, end)))
            return NULL;
        p = blank(stop, end);
        if (p >= end || *p != ':')
            return NULL;
        p = blank(p + 1, end);
        if (stop - key == 4 && !memcmp(key, "\"id\"", 4))
            *id = p;
        if (!(p = value(p, end)))
            return NULL;
        p = blank(p, end);
        if (p < end && *p == ',')
            p = blank(p + 1, end);
    }
    return p < end && *id ? p + 1 : NULL;
}

/* Write logux/processed for the action with this id. */
static int processed(Peer *peer, At id, At end, int64_t shift) {
    int64_t ms, counter = 0;
    const char *node = peer->node;
    size_t node_size = strlen(node);
    if (*id == '[') {
        if (!(id = integer(blank(id + 1, end), end, &ms)))
            return broken("an id without a time");
        id = blank(blank(id, end) + 1, end);
        if (id < end && *id == '"') {
            node = id + 1;
            if (!(id = string(id, end)) || (node_size = id - node - 1) >= NODE)
                return broken("an id of a node without an end");
            id = blank(blank(id, end) + 1, end);
        }
        if (!integer(id, end, &counter))
            return broken("an id without a counter");
    } else if (!integer(id, end, &ms)) {
        return broken("an id without a time");
    }
    char out[ROOM], *p = out;
    p = TEXT(p, "[\"sync\",0,{\"id\":\"");
    p = number(p, ms + peer->base);
    *p++ = ' ';
    p = text(p, node, node_size);
    *p++ = ' ';
    p = number(p, counter);
    p = TEXT(p, "\",\"type\":\"logux/processed\"},{\"id\":");
    if (shift > peer->last) {
        peer->last = shift;
        peer->counter = 0;
        p = number(p, shift);
    } else {
        *p++ = '[';
        p = number(p, shift);
        *p++ = ',';
        p = number(p, ++peer->counter);
        *p++ = ']';
    }
    p = TEXT(p, ",\"time\":");
    p = number(p, shift);
    p = TEXT(p, ",\"subprotocol\":1}]");
    total.events++;
    return frame(peer, 1, out, p - out);
}

static int is(At p, At end, const char *name) {
    size_t size = strlen(name);
    return (size_t)(end - p) >= size && !memcmp(p, name, size);
}

static int synced(Peer *peer, At p, At end) {
    char out[64], *q = out;
    At added = p = blank(p, end);
    if (!(p = value(p, end)) || p - added > 24)
        return broken("a sync without its number");
    q = TEXT(q, "[\"synced\",");
    q = text(q, added, p - added);
    *q++ = ']';
    total.syncs++;
    if (frame(peer, 1, out, q - out) < 0)
        return -1;
    int64_t shift = wall() - peer->base;
    for (p = blank(p, end); p < end && *p == ','; p = blank(p, end)) {
        At id;
        p = blank(p + 1, end);
        if (p >= end || *p != '{' || !(p = value(p, end)))
            return broken("a sync without an action");
        p = blank(p, end);
        if (p >= end || *p != ',' || !(p = meta(blank(p + 1, end), end, &id)))
            return broken("an action without a meta");
        if (processed(peer, id, end, shift) < 0)
            return -1;
    }
    return p < end && *p == ']' ? 0 : broken("a sync that does not end");
}

static int connected(Peer *peer, At p, At end) {
    char out[ROOM], *q = out;
    if (!(p = value(p, end)) || p >= end || *(p = blank(p + 1, end)) != '"')
        return broken("connect without a node id");
    At node = p + 1;
    if (!(p = string(p, end)) || p - node - 1 >= NODE)
        return broken("connect with too long a node id");
    memcpy(peer->node, node, p - node - 1);
    peer->node[p - node - 1] = 0;
    peer->base = wall();
    peer->last = -1;
    q = TEXT(q, "[\"connected\",5,\"server:stub\",[");
    q = number(q, peer->base);
    *q++ = ',';
    q = number(q, peer->base);
    q = TEXT(q, "],{\"subprotocol\":1}]");
    return frame(peer, 1, out, q - out);
}

static int message(Peer *peer, At p, At end) {
    if (is(p, end, "[\"sync\","))
        return synced(peer, p + 8, end);
    if (is(p, end, "[\"synced\",")) {
        total.answered++;
        return 0;
    }
    if (is(p, end, "[\"connect\","))
        return connected(peer, blank(p + 11, end), end);
    if (is(p, end, "[\"ping\","))
        return frame(peer, 1, "[\"pong\",0]", 10);
    if (is(p, end, "[\"headers\",") || is(p, end, "[\"pong\","))
        return 0;
    return broken("a message that no row sends");
}

static int upgrade(Peer *peer, size_t *used) {
    uint8_t *end = memmem(peer->input, peer->have, "\r\n\r\n", 4);
    if (!end)
        return 0;
    *end = 0;
    *used = end + 4 - peer->input;
    char *key = strcasestr((char *)peer->input, "\r\nSec-WebSocket-Key:");
    if (!key)
        return broken("no upgrade to WebSocket");
    key += 20;
    key += strspn(key, " ");
    size_t size = strcspn(key, " \r");
    if (size != 24)
        return broken("an invalid key");
    char sum[29], out[ROOM];
    accepted(key, size, sum);
    int n = snprintf(out, sizeof out, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                     "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", sum);
    memcpy(replies + replies_size, out, n);
    replies_size += n;
    peer->upgraded = 1;
    return 1;
}

/* Read the whole frames in the input; -1: the connection has ended. */
static int walk(Peer *peer) {
    size_t at = 0;
    if (!peer->upgraded) {
        int done = upgrade(peer, &at);
        if (done <= 0)
            return done;
    }
    while (peer->have - at >= 2) {
        uint8_t *p = peer->input + at;
        size_t size = p[1] & 127, head = 2, left = peer->have - at;
        if ((p[0] & 0xF0) != 0x80 || !(p[1] & 0x80))
            return broken("a frame in parts, with an extension, or without a mask");
        if (left < 6)
            break;
        if (size == 126) {
            size = p[2] << 8 | p[3];
            head = 4;
        } else if (size == 127) {
            if (left < 14)
                break;
            size = 0;
            for (int i = 2; i < 10; i++)
                size = size << 8 | p[i];
            head = 10;
        }
        if (size > INPUT - 14)
            return broken("a frame that is too long");
        if (left < head + 4 + size)
            break;
        uint8_t *data = p + head + 4;
        uint32_t mask;
        memcpy(&mask, p + head, 4);
        uint64_t wide = (uint64_t)mask << 32 | mask;
        size_t i = 0;
        for (; i + 8 <= size; i += 8) {
            uint64_t word;
            memcpy(&word, data + i, 8);
            word ^= wide;
            memcpy(data + i, &word, 8);
        }
        for (; i < size; i++)
            data[i] ^= p[head + i % 4];
        at += head + 4 + size;
        int opcode = p[0] & 15, gone = 0;
        if (opcode == 1 || opcode == 2)
            gone = message(peer, (At)data, (At)data + size);
        else if (opcode == 9)
            gone = frame(peer, 10, (char *)data, size < 126 ? size : 0);
        else if (opcode == 8)
            gone = frame(peer, 8, (char *)data, size < 126 ? size : 0) < 0 || flush_replies(peer) < 2;
        if (gone)
            return -1;
    }
    memmove(peer->input, peer->input + at, peer->have -= at);
    return flush_replies(peer);
}

static void hang_up(int i) {
    stream_close(&peers[i].stream);
    free(peers[i].input);
    peers[i] = peers[--n_peers];
    replies_size = 0;
}

int main(int argc, char **argv) {
    const char *library = NULL, *certificate = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--libssl"))
            library = argv[i + 1];
        else if (!strcmp(argv[i], "--tls"))
            certificate = argv[i + 1];
    }
    if (certificate && stream_server(library, certificate))
        return 1;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in where = {.sin_family = AF_INET};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    if (bind(listener, (struct sockaddr *)&where, sizeof where) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&where, &length)) {
        perror("wssink");
        return 1;
    }
    printf("{\"port\": %d}\n", ntohs(where.sin_port));
    fflush(stdout);
    for (;;) {
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
            perror("wssink: poll");
            return 1;
        }
        for (int i = known - 1; i >= 0; i--) {  /* backwards: hang_up moves the last peer here */
            Peer *peer = &peers[i];
            if (!polled[i + 2].revents && !peer->stream.more)
                continue;
            ssize_t n = stream_read(&peer->stream, peer->input + peer->have, INPUT - peer->have);
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
            total.cipher = peer->stream.cipher;
            peer->have += n;
            if (walk(peer) < 0)
                hang_up(i);
        }
        if (polled[1].revents) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                peers[n_peers++] = (Peer){.stream = stream_open(fd), .input = malloc(INPUT)};
                total.connections++;
            }
        }
        if (polled[0].revents) {    /* after the sockets: what had arrived is in the totals */
            char line[64];
            if (read(0, line, sizeof line) <= 0)
                break;
            report();
        }
    }
    return total.errors ? 2 : 0;
}
