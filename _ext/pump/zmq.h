/* How many bytes a TCP connection has received; 0: unknown. */
#ifndef LOGCLIENT_PUMP_ZMQ_H
#define LOGCLIENT_PUMP_ZMQ_H

#include <stdint.h>
#ifdef __linux__
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
/* tcpi_bytes_received is at 128 of Linux's struct tcp_info since 4.1; the headers of a C library may lack it. */
static uint64_t lc_bytes_received(int fd) {
    unsigned char info[136];
    uint64_t bytes;
    socklen_t size = sizeof(info);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) < 0 || size < sizeof(info)) return 0;
    memcpy(&bytes, info + 128, 8);
    return bytes;
}
#else
static uint64_t lc_bytes_received(int fd) { (void)fd; return 0; }
#endif

#endif
