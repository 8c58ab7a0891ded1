/* The allocator of fuzzed codecs. One allocation can be made to fail. A very large allocation aborts the
   process, because it was made without a bound: the limits of targets are far below. */

#include <stdio.h>
#include <stdlib.h>

#define MOST (8u << 20)

static unsigned long left;      /* allocations until one fails; 0: none */

void lc_fail_at(unsigned long n) { left = n; }

static int fails(size_t size) {
    if (size > MOST) {
        fprintf(stderr, "ERROR: allocation of %zu bytes, at most %u are allowed\n", size, MOST);
        abort();
    }
    return left && --left == 0;
}

void *lc_malloc(size_t size) { return fails(size) ? NULL : malloc(size); }
void *lc_calloc(size_t n, size_t size) { return fails(n * size) ? NULL : calloc(n, size); }
void *lc_realloc(void *p, size_t size) { return fails(size) ? NULL : realloc(p, size); }
