/* Unpredictable bytes of the system's generator, for masks (RFC 6455, section 10.3), without the GIL. */
#ifndef LC_MASKS_H
#define LC_MASKS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__OpenBSD__) || defined(__NetBSD__)
#include <stdlib.h>
static int lc_random_bytes(uint8_t *to, size_t size) { arc4random_buf(to, size); return 0; }
#else
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <sys/types.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#ifndef O_CLOEXEC
#define O_CLOEXEC 0
#endif
/* Return 0, or -1 where there is no generator. The C library may be older than its function getrandom. */
static int lc_random_bytes(uint8_t *to, size_t size) {
    ssize_t n;
    int fd;
#ifdef SYS_getrandom
    while (size) {
        n = (ssize_t) syscall(SYS_getrandom, to, size, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;              /* a kernel before 3.17, or a filter of system calls */
        to += n;
        size -= (size_t) n;
    }
#endif
    if (!size) return 0;
    fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    while (size) {
        n = read(fd, to, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        to += n;
        size -= (size_t) n;
    }
    close(fd);
    return size ? -1 : 0;
}
#endif

#endif
