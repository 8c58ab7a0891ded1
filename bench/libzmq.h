/* The functions of libzmq for the benchmarks, looked up in pyzmq's copy, which comes without zmq.h. */
#ifndef BENCH_LIBZMQ_H
#define BENCH_LIBZMQ_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef union { unsigned char bytes[64]; void *aligned; } zmq_msg_t;
typedef struct { void *socket; int fd; short events, revents; } zmq_pollitem_t;

enum { ZMQ_PULL = 7, ZMQ_ROUTER = 6 };
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2, ZMQ_POLLIN = 1 };
enum { ZMQ_LINGER = 17, ZMQ_SNDHWM = 23, ZMQ_RCVHWM = 24, ZMQ_LAST_ENDPOINT = 32 };

#define EACH_FUNCTION(X) \
    X(void *, ctx_new, (void)) \
    X(void *, socket, (void *, int)) \
    X(int, bind, (void *, const char *)) \
    X(int, setsockopt, (void *, int, const void *, size_t)) \
    X(int, getsockopt, (void *, int, void *, size_t *)) \
    X(int, poll, (zmq_pollitem_t *, int, long)) \
    X(int, errno, (void)) \
    X(int, send, (void *, const void *, size_t, int)) \
    X(int, recv, (void *, void *, size_t, int)) \
    X(int, msg_init, (zmq_msg_t *)) \
    X(int, msg_close, (zmq_msg_t *)) \
    X(int, msg_recv, (zmq_msg_t *, void *, int)) \
    X(int, msg_send, (zmq_msg_t *, void *, int)) \
    X(int, msg_more, (const zmq_msg_t *)) \
    X(void *, msg_data, (zmq_msg_t *)) \
    X(size_t, msg_size, (const zmq_msg_t *))

static struct {
#define MEMBER(type, name, arguments) type(*name##_) arguments;
    EACH_FUNCTION(MEMBER)
#undef MEMBER
} zmq;

/* Load the library at `path`; return 0, or -1 with an error on stderr. */
static int load_zmq(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "libzmq: %s\n", dlerror());
        return -1;
    }
#define FIND(type, name, arguments) \
    *(void **)&zmq.name##_ = dlsym(library, "zmq_" #name); \
    if (!zmq.name##_) { \
        fprintf(stderr, "libzmq: no zmq_" #name "\n"); \
        return -1; \
    }
    EACH_FUNCTION(FIND)
#undef FIND
    return 0;
}

#endif
