/* The lower bound of libzmq: a loop in C over a socket of pyzmq, with bodies encoded beforehand.
 *
 * A message takes four zmq_send, which copy each frame; meta is written for each message. The loop waits where
 * libzmq waits.
 */
#include <errno.h>

#include "libzmq.h"

static void put_be(uint8_t *p, uint64_t value, int bytes) {
    while (bytes--) {
        p[bytes] = (uint8_t)value;
        value >>= 8;
    }
}

static int frame(void *socket, const void *data, size_t size, int flags) {
    while (zmq.send_(socket, data, size, flags) < 0)
        if (zmq.errno_() != EINTR)
            return -1;
    return 0;
}

/* Read all frames of one reply; return 0 for 202 Accepted. */
static int accepted(void *socket) {
    zmq_msg_t part;
    int n = 0, good = 0, more = 1;
    for (; more; n++) {
        zmq.msg_init_(&part);
        while (zmq.msg_recv_(&part, socket, 0) < 0)
            if (zmq.errno_() != EINTR)
                return -1;
        good = zmq.msg_size_(&part) == 12 && !memcmp(zmq.msg_data_(&part), "202 Accepted", 12);
        more = zmq.msg_more_(&part);
        zmq.msg_close_(&part);
    }
    return n == 2 && good ? 0 : -1;
}

int load(const char *path) { return load_zmq(path); }

/* Send `n` messages, at most `window` of them unanswered (0: no replies); return the number of messages sent. */
long run(void *socket, const char *app_env, const char *topic, const uint8_t *body, size_t size,
         uint64_t created, uint64_t first, long n, long window) {
    uint8_t meta[24] = {0xCA, 0xBD, 0, 1};
    size_t app_size = strlen(app_env), topic_size = strlen(topic);
    long waiting = 0;
    put_be(meta + 8, created, 8);
    for (long i = 0; i < n; i++) {
        if (window && waiting == window) {
            if (accepted(socket) < 0)
                return i;
            waiting--;
        }
        put_be(meta + 16, first + i, 8);
        if ((window && frame(socket, "", 0, ZMQ_SNDMORE) < 0) ||
            frame(socket, app_env, app_size, ZMQ_SNDMORE) < 0 ||
            frame(socket, topic, topic_size, ZMQ_SNDMORE) < 0 ||
            frame(socket, body, size, ZMQ_SNDMORE) < 0 || frame(socket, meta, sizeof meta, 0) < 0)
            return i;
        waiting++;
    }
    for (; window && waiting; waiting--)
        if (accepted(socket) < 0)
            return n - waiting;
    return n;
}
