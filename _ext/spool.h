/* Mapped files of a spool: space allocated ahead, so that a store into the mapping cannot fail for a full
 * disk, and pages touched, so that a caller's store makes no page fault. Linux only. */
#ifndef LOGCLIENT_SPOOL_H
#define LOGCLIENT_SPOOL_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "platform.h"

/* What is in files has its sizes from docs/formats.md. A statement, for structures that Cython defines. */
#define lc_static_assert(holds) _Static_assert(holds, #holds)

/* Make an empty file in place of one that a failed attempt left: 0, or -1 with errno. */
static inline int lc_create(const char *path, lc_file *f) {
    unlink(path);
    return lc_own(f, open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
}
static inline void *lc_map(int fd, size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

#if defined(__linux__) && !defined(LC_LIKE_MACOS)
#include <sys/syscall.h>
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define LC_MAPS 1
#define lc_sync fdatasync
static inline uint64_t lc_salt(void) {
    uint64_t salt = 0;
    if (lc_random(&salt, sizeof salt) < 0) salt = (uint64_t)(uintptr_t)&salt;
    return salt;
}
/* Not posix_fallocate: where a file system cannot allocate, that writes every page. */
static inline int lc_allocate(int fd, size_t size) {
    return syscall(SYS_fallocate, fd, 0, (long)0, (long)size) < 0 ? errno : 0;
}
static inline int lc_touch(uint8_t *p, size_t size) {
    if (madvise(p, size, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    return 0; /* older than Linux 5.14: each page is touched when it is used first */
}
#define lc_touch_to_read(p, size) madvise(p, size, MADV_POPULATE_READ)
#else
#define LC_MAPS 0
#define lc_sync fsync
#define lc_salt() 0
#define lc_allocate(fd, size) ENOSYS
#define lc_touch(p, size) ENOSYS
#define lc_touch_to_read(p, size) ((void)0)
#endif
#endif
