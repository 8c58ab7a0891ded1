/* Bit scans and counts of one name for each width, and loads of little-endian numbers, for every compiler; memory
 * that is cleared. */
#ifndef LOGCLIENT_BITS_H
#define LOGCLIENT_BITS_H

#include <stdint.h>
#include <string.h>

/* The number of the lowest bit that is set. The argument must not be 0. */
#define lc_ctz32(bits) ((unsigned)__builtin_ctz(bits))
#define lc_ctz64(bits) ((unsigned)__builtin_ctzll(bits))
/* How many bits a number has without the zeros at its front. The argument must not be 0. */
#define lc_width64(v) (64 - (unsigned)__builtin_clzll(v))

/* How many bits are set. */
#define lc_ones(bits) ((uint64_t)__builtin_popcountll(bits))

/* Unaligned little-endian loads: memcpy is one instruction where the machine has it. */
static inline uint64_t lc_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}
static inline uint32_t lc_le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap32(v);
#endif
    return v;
}

/* Clear `n` bytes. Of one memset of a constant size, GCC makes a string instruction, which takes longer to begin
 * than all these stores. */
static inline void lc_clear(void *to, size_t n) {
    char *p = (char *)to;
    size_t at = 0;
    for (; at + 64 <= n; at += 64)
        memset(p + at, 0, 64);
    memset(p + n / 64 * 64, 0, n % 64);
}

/* Note that a call uses an object; 0: another one does already, perhaps in another thread. */
static inline int lc_begin_use(int *used) { return !__atomic_exchange_n(used, 1, __ATOMIC_ACQUIRE); }
static inline void lc_end_use(int *used) { __atomic_store_n(used, 0, __ATOMIC_RELEASE); }

#endif
