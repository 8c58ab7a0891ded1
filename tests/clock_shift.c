/* Another wall clock for one process: LD_PRELOAD it, with CLOCK_SHIFT the name of a file that has the
 * nanoseconds to add as one 64-bit number; who writes to the file sets the clock. The monotonic clock is
 * left alone. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void look(void) {
    const char *name = getenv("CLOCK_SHIFT");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) shift = found;
        close(file);
    }
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    if (!failed && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *shift;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec fine;
    if (clock_gettime(CLOCK_REALTIME, &fine)) return (time_t)-1;
    if (now) *now = fine.tv_sec;
    return fine.tv_sec;
}
