/* The lower bound of the kernel: boxed plog messages of one body, by sendmmsg or with UDP_SEGMENT.
 *
 * Each message is hashed (MurmurHash3), its headers are written and its payload is copied, like by any client;
 * with GSO also without the hash, to show its price. A call sends 64 datagrams, or as many as fit in 64 KiB.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { BATCH = 64, MOST = 65507, HEADER = 24, SOL_UDP_ = 17, UDP_SEGMENT_ = 103 };

static uint8_t room[BATCH * MOST];
static struct mmsghdr calls[BATCH];
static struct iovec parts[BATCH];

static void put(uint8_t *p, uint32_t value, int bytes) {
    while (bytes--) {
        p[bytes] = (uint8_t)value;
        value >>= 8;
    }
}

static uint32_t turn(uint32_t x, int by) { return x << by | x >> (32 - by); }

static uint32_t murmur3(const uint8_t *p, size_t size) {
    uint32_t h = 0, k;
    for (size_t i = 0; i + 4 <= size; i += 4) {
        memcpy(&k, p + i, 4);
        h = turn(h ^ turn(k * 0xcc9e2d51u, 15) * 0x1b873593u, 13) * 5 + 0xe6546b64u;
    }
    k = 0;
    for (size_t i = size & ~(size_t)3, by = 0; i < size; i++, by += 8)
        k |= (uint32_t)p[i] << by;
    h ^= turn(k * 0xcc9e2d51u, 15) * 0x1b873593u;
    h ^= (uint32_t)size;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

static size_t fragment(uint8_t *to, const uint8_t *body, size_t size, size_t each, uint32_t count, uint32_t index,
                       uint32_t id, uint32_t hash) {
    size_t begin = (size_t)index * each, length = index + 1 == count ? size - begin : each;
    to[0] = 0;
    to[1] = 1;
    put(to + 2, count, 2);
    put(to + 4, index, 2);
    put(to + 6, (uint32_t)each, 2);
    put(to + 8, id, 4);
    put(to + 12, (uint32_t)size, 4);
    put(to + 16, hash, 4);
    put(to + 20, 0, 4);
    memcpy(to + HEADER, body + begin, length);
    return HEADER + length;
}

static int all(int fd, int n) {
    for (int done = 0; done < n;) {
        int sent = sendmmsg(fd, calls + done, (unsigned)(n - done), 0);
        if (sent < 0 && errno != EINTR && errno != ENOBUFS)
            return -1;
        done += sent > 0 ? sent : 0;
    }
    return 0;
}

static long by_mmsg(int fd, const uint8_t *body, size_t size, size_t datagram, long n, uint32_t id) {
    size_t each = datagram - HEADER;
    uint32_t count = (uint32_t)((size + each - 1) / each);
    int filled = 0;
    for (long i = 0; i < n; i++) {
        uint32_t hash = murmur3(body, size);
        for (uint32_t f = 0; f < count; f++) {
            uint8_t *at = room + (size_t)filled * MOST;
            parts[filled] = (struct iovec){at, fragment(at, body, size, each, count, f, id + (uint32_t)i, hash)};
            calls[filled].msg_hdr = (struct msghdr){.msg_iov = &parts[filled], .msg_iovlen = 1};
            if (++filled == BATCH) {
                if (all(fd, filled) < 0)
                    return i;
                filled = 0;
            }
        }
    }
    return filled && all(fd, filled) < 0 ? n - 1 : n;
}

static int cut(int fd, size_t size, size_t segment) {
    union {
        char room[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {room, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (size > segment) {
        uint16_t value = (uint16_t)segment;
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_UDP_;
        head->cmsg_type = UDP_SEGMENT_;
        head->cmsg_len = CMSG_LEN(sizeof value);
        memcpy(CMSG_DATA(head), &value, sizeof value);
    }
    while (sendmsg(fd, &message, 0) < 0)
        if (errno != EINTR && errno != ENOBUFS)
            return -1;
    return 0;
}

static long by_gso(int fd, const uint8_t *body, size_t size, size_t datagram, long n, uint32_t id, int hashed) {
    size_t each = datagram - HEADER, filled = 0, segment = 0, pieces = 0;
    uint32_t count = (uint32_t)((size + each - 1) / each);
    for (long i = 0; i < n; i++) {
        uint32_t hash = hashed ? murmur3(body, size) : 0;
        for (uint32_t f = 0; f < count; f++) {
            size_t next = HEADER + (f + 1 == count ? size - (size_t)f * each : each);
            /* A shorter datagram ends a run, and longer ones are not allowed. */
            if (pieces && (next > segment || filled + next > MOST || pieces == 64 || filled % segment)) {
                if (cut(fd, filled, segment) < 0)
                    return i;
                filled = pieces = 0;
            }
            if (!pieces)
                segment = next;
            filled += fragment(room + filled, body, size, each, count, f, id + (uint32_t)i, hash);
            pieces++;
        }
    }
    return filled && cut(fd, filled, segment) < 0 ? n - 1 : n;
}

/* Send `n` messages with numbers from `id` on; return the number of messages sent. */
long run(int fd, const uint8_t *body, size_t size, size_t datagram, long n, uint32_t id, int gso, int hashed) {
    return gso ? by_gso(fd, body, size, datagram, n, id, hashed) : by_mmsg(fd, body, size, datagram, n, id);
}
