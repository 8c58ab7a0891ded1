/* What libzmq and a socket below it need. */
#ifndef LOGCLIENT_PUMP_ZMQ_H
#define LOGCLIENT_PUMP_ZMQ_H

#include <dlfcn.h>
#include <errno.h>
/* zmq_msg_t: 64 bytes, aligned like a pointer, since 4.2. */
typedef union { unsigned char _[64]; void *p; } lc_zmq_msg;
_Static_assert(sizeof(lc_zmq_msg) == 64, "zmq.h");
#ifndef RTLD_NOLOAD
#define RTLD_NOLOAD 0
#endif
/* Return the bytes that a TCP connection has received; 0: unknown. tcpi_bytes_received is at 128 of
   Linux's struct tcp_info since 4.1; the headers of a C library may lack it. */
#ifdef __linux__
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
static uint64_t lc_bytes_received(int fd) {
    unsigned char info[136];
    uint64_t bytes;
    socklen_t size = sizeof(info);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) < 0 || size < sizeof(info)) return 0;
    memcpy(&bytes, info + 128, 8);
    return bytes;
}
#else
#include <stdint.h>
static uint64_t lc_bytes_received(int fd) { (void)fd; return 0; }
#endif

#endif
