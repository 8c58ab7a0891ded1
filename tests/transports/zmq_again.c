/* A libzmq whose zmq_send refuses one frame, once: as the real one does when a connection goes in the
 * middle of a message. The frames of a message are kept until it is whole, then all of them are sent. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SNDMORE = 2 };

static int (*real_send)(void *, const void *, size_t, int);
static struct { void *data; size_t size; } kept[16];
static int frames, refused_with;
static long sent, refuse_at = -1;

/* Refuse the frame with this number, from 0, with this error. */
void again_set(const char *library, long at, int error) {
    real_send = dlsym(dlopen(library, RTLD_NOW), "zmq_send");
    frames = 0;
    sent = 0;
    refuse_at = at;
    refused_with = error;
}

int again_left(void) { return refuse_at >= 0; }

int zmq_send(void *socket, const void *data, size_t size, int flags) {
    int more = flags & SNDMORE, place;
    if (sent++ == refuse_at) {
        refuse_at = -1;
        errno = refused_with;
        while (refused_with == EAGAIN && frames) free(kept[--frames].data);
        return -1;
    }
    if (!more) {
        /* The first frame decides whether the socket has room for the message. */
        for (place = 0; place < frames; place++)
            if (real_send(socket, kept[place].data, kept[place].size, flags | SNDMORE) < 0 && place == 0) {
                while (frames) free(kept[--frames].data);
                return -1; /* the test leaves room */
            }
        while (frames) free(kept[--frames].data);
        return real_send(socket, data, size, flags);
    }
    kept[frames].data = malloc(size + 1);
    memcpy(kept[frames].data, data, size);
    kept[frames++].size = size;
    return (int)size;
}
