/* The differences between systems: a mutex, a condition with a deadline, a descriptor that wakes a sleeping
 * sender, two clocks, and a hook that runs in the child of every fork.
 *
 * Included by the queue, and by the receiver of datagrams; pumps reach it through queue.pxd.
 *
 * LC_LIKE_MACOS removes features that macOS lacks, so that its code can be tested elsewhere (setup.py,
 * LOGCLIENT_LIKE). */
#ifndef LOGCLIENT_PLATFORM_H
#define LOGCLIENT_PLATFORM_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pthread.h>

typedef pthread_mutex_t lc_mutex;
typedef pthread_cond_t lc_cond;
static inline void lc_mutex_init(lc_mutex *m) { pthread_mutex_init(m, NULL); }
static inline void lc_cond_init(lc_cond *c) {
    pthread_condattr_t a;
    pthread_condattr_init(&a);
#ifndef __APPLE__
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}
static inline void lc_cond_wait(lc_cond *c, lc_mutex *m, double seconds) {
    struct timespec t;
    if (seconds > 4e6) seconds = 4e6;
#ifdef __APPLE__
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    pthread_cond_timedwait_relative_np(c, m, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec += 1;
        t.tv_nsec -= 1000000000L;
    }
    pthread_cond_timedwait(c, m, &t);
#endif
}
/* The clock of time.monotonic(), because deadlines come from Python. On macOS that clock stops while the
 * machine sleeps, and CLOCK_MONOTONIC does not. */
static inline double lc_monotonic(void) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &t);
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static inline int64_t lc_wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
/* A fork from C code runs no Python hook, but it runs this one, in the child. */
static inline void lc_at_fork(void (*forked)(void)) { pthread_atfork(NULL, NULL, forked); }

/* Memory for chunks, directly from the system and back to it. An allocator keeps freed memory below memory
 * that is still used, so that the process would never shrink after a burst of events. Sanitizers check only
 * memory that they allocate themselves. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define LC_PAGES 0
#endif
#endif
#if !defined(LC_PAGES) && defined(__SANITIZE_ADDRESS__)
#define LC_PAGES 0
#endif
#ifdef LC_PAGES
static inline void *lc_pages(size_t size) { return malloc(size); }
static inline void lc_pages_free(void *p, size_t size) { (void)size; free(p); }
#else
#include <sys/mman.h>
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
static inline void *lc_pages(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}
static inline void lc_pages_free(void *p, size_t size) {
    if (munmap(p, size) < 0) madvise(p, size, MADV_DONTNEED); /* one mapping more than the limit */
}
#endif

/* Wakes a sleeping sender: a pipe, so that it can wait for its socket at the same time. An eventfd would not be
 * known again, because all of them have the same inode. The sender opens it, and whoever wakes it only writes. */
#include <poll.h>
#include "descriptors.h"
typedef struct {
    lc_file in;
    lc_file out;
} lc_wake;
static inline void lc_wake_init(lc_wake *w) { w->in.fd = w->out.fd = -1; }
static inline int lc_wake_is_open(const lc_wake *w) { return lc_is_ours(&w->in) && lc_is_ours(&w->out); }
static inline void lc_wake_close(lc_wake *w) {
    lc_close(&w->in);
    lc_close(&w->out);
}
/* Without a descriptor left it stays closed, and its sender looks for work by itself. */
static inline void lc_wake_open(lc_wake *w) {
    int p[2], failed;
    lc_wake_close(w);
#if defined(__linux__) && !defined(LC_LIKE_MACOS)
    if (pipe2(p, O_NONBLOCK | O_CLOEXEC) < 0) return;
#else
    if (pipe(p) < 0) return;
    for (int i = 0; i < 2; i++) {
        fcntl(p[i], F_SETFL, O_NONBLOCK);
        fcntl(p[i], F_SETFD, FD_CLOEXEC);
    }
#endif
    failed = lc_own(&w->in, p[0]);
    if (lc_own(&w->out, p[1]) < 0 || failed) lc_wake_close(w);
}
static inline void lc_wake_set(lc_wake *w) {
    ssize_t n = lc_is_ours(&w->out) ? write(w->out.fd, "", 1) : 0; /* full: already set */
    (void)n;
}
static inline void lc_wake_clear(lc_wake *w) {
    char sink[128];
    if (!lc_is_ours(&w->in)) w->in.fd = -1;
    else while (read(w->in.fd, sink, sizeof sink) == (ssize_t)sizeof sink) {}
}
/* Without a descriptor no caller can end the sleep: its end comes by itself. */
#define LC_UNWOKEN_MS 50
static inline void lc_wake_wait(lc_wake *w, double seconds) {
    struct pollfd p = {w->in.fd, POLLIN, 0};
    if (w->in.fd < 0 && seconds > LC_UNWOKEN_MS / 1000.0) seconds = LC_UNWOKEN_MS / 1000.0;
    if (seconds > 0) poll(&p, 1, seconds > 2e6 ? -1 : (int)(seconds * 1000.0 + 0.999));
}
static inline int lc_wake_fd(lc_wake *w) { return w->in.fd; }

/* Store a word after everything that was stored before it, for whoever reads the memory once this process is
 * gone. */
static inline void lc_publish(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* A bound on the bytes of several queues together. `used` is the sum of what each of them has claimed. */
typedef struct {
    uint64_t used;
    uint64_t limit;
    uint64_t generation; /* lc_forks of the process that it counts for */
} lc_shared;

static inline uint64_t lc_shared_get(uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void lc_shared_add(uint64_t *word, uint64_t value) { __atomic_fetch_add(word, value, __ATOMIC_RELAXED); }

/* Replace a claim of `before` bytes by one of `after`, unless the sum would exceed the limit and `slack`. */
static inline int lc_shared_claim(lc_shared *s, uint64_t before, uint64_t after, uint64_t slack) {
    uint64_t used = lc_shared_get(&s->used), sum;
    do {
        sum = used - before + after;
        if (sum > lc_shared_get(&s->limit) + slack) return 0;
    } while (!__atomic_compare_exchange_n(&s->used, &used, sum, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 1;
}

/* Fill at most 256 bytes with random ones: 0, or -1. The C library may be older than its getentropy. */
#if defined(__linux__) && !defined(LC_LIKE_MACOS)
#include <sys/syscall.h>
#define lc_random(to, size) (syscall(SYS_getrandom, to, size, 0) == (long)(size) ? 0 : -1)
#else
#include <sys/random.h>
#define lc_random getentropy
#endif

/* A counter that is cheap to read and only tells whether a few microseconds have passed: reading the wall
 * clock costs as much as the rest of a put. LC_SOON ticks are about 5 to 20 us; 0: there is no counter, and
 * the clock is always read. */
#if defined(__x86_64__)
#define LC_SOON 20000
static inline uint64_t lc_ticks(void) { return __builtin_ia32_rdtsc(); }
#elif defined(__aarch64__)
#define LC_SOON 250
static inline uint64_t lc_ticks(void) {
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
#else
#define LC_SOON 0
static inline uint64_t lc_ticks(void) { return 0; }
#endif
#endif
