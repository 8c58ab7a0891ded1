/* Descriptors that are known again. The program that we are guests of may close every number, as a program does
 * that becomes a daemon, and use it for a file of its own. Only the file behind a number tells whose it is. */
#ifndef LOGCLIENT_DESCRIPTORS_H
#define LOGCLIENT_DESCRIPTORS_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int fd; /* -1: none */
    uint64_t device;
    uint64_t inode;
} lc_file;

static inline int lc_is_ours(const lc_file *f) {
    struct stat found;
    return f->fd >= 0 && fstat(f->fd, &found) == 0 && (uint64_t)found.st_dev == f->device
           && (uint64_t)found.st_ino == f->inode;
}
/* Close the descriptor if it is ours still, and forget it. */
static inline void lc_close(lc_file *f) {
    if (lc_is_ours(f)) close(f->fd);
    f->fd = -1;
}
/* Note the file behind a descriptor: 0, or -1 with errno, and none is noted. */
static inline int lc_look(lc_file *f, int fd) {
    struct stat found;
    f->fd = -1;
    if (fstat(fd, &found) < 0) return -1;
    f->fd = fd;
    f->device = (uint64_t)found.st_dev;
    f->inode = (uint64_t)found.st_ino;
    return 0;
}
/* Note a descriptor that was just opened, and move it above those of standard input, output and errors: 0, or -1
 * with errno, and it is closed. */
static inline int lc_own(lc_file *f, int fd) {
    int low = fd;
    f->fd = -1;
    if (fd >= 0 && fd < 3) {
        fd = fcntl(low, F_DUPFD_CLOEXEC, 3);
        close(low);
    }
    if (fd < 0) return -1;
    if (lc_look(f, fd) < 0) {
        close(fd);
        return -1;
    }
    return 0;
}

#endif
