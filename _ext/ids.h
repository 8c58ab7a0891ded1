/* The digits of ids, and integers in big-endian order. */
#ifndef LOGCLIENT_IDS_H
#define LOGCLIENT_IDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* Not in a function of its own: compilers take that for one without an effect. */
#define lc_fetch(p) __builtin_prefetch(p)
/* Eight hex digits of v as they are written: eight nibbles spread over eight bytes, all at once. */
static inline uint64_t lc_hex8(uint32_t v) {
    uint64_t x = v;
    x = (x | x << 16) & 0x0000FFFF0000FFFFULL;
    x = (x | x << 8) & 0x00FF00FF00FF00FFULL;
    x = (x | x << 4) & 0x0F0F0F0F0F0F0F0FULL;
    return x + 0x3030303030303030ULL + ((x + 0x0606060606060606ULL) >> 4 & 0x0101010101010101ULL) * 39;
}
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define lc_big32(v) (v)
#define lc_big64(v) (v)
#else
#define lc_big32(v) __builtin_bswap32(v)
#define lc_big64(v) __builtin_bswap64(v)
#endif
/* A sequence as the twelve digits of an id. */
typedef struct { uint32_t high; uint64_t low; } lc_digits;
static inline lc_digits lc_spell(uint64_t sequence) {
    lc_digits d;
    d.high = lc_big32((uint32_t)lc_hex8((uint32_t)(sequence >> 32)));
    d.low = lc_big64(lc_hex8((uint32_t)sequence));
    return d;
}
static inline void lc_put_digits(uint8_t *p, lc_digits d) {
    memcpy(p, &d.high, 4);
    memcpy(p + 4, &d.low, 8);
}
static inline void lc_put32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
}
static inline uint32_t lc_get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline void lc_put64(uint8_t *p, uint64_t v) { v = lc_big64(v); memcpy(p, &v, 8); }
static inline uint64_t lc_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return lc_big64(v); }
/* Eight lower-case hex digits as a number, all at once. Anything else leaves a bit in *bad. */
static inline uint64_t lc_unhex8(uint64_t digits, uint64_t *bad) {
    uint64_t x = (digits & 0x0F0F0F0F0F0F0F0FULL) + (digits >> 6 & 0x0101010101010101ULL) * 9;
    uint64_t letters = (x + 0x0606060606060606ULL) >> 4 & 0x0101010101010101ULL;
    uint64_t same = x + 0x3030303030303030ULL + letters * 39;
    *bad |= (same ^ digits) | (x & 0xF0F0F0F0F0F0F0F0ULL);
    x = (x | x >> 4) & 0x00FF00FF00FF00FFULL;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFULL;
    return (uint32_t)(x | x >> 16);
}
static inline uint64_t lc_read_hex16(const uint8_t *p, uint64_t *bad) {
    uint64_t high = lc_unhex8(lc_get64(p), bad);
    return high << 32 | lc_unhex8(lc_get64(p + 8), bad);
}
static inline uint64_t lc_read_hex12(const uint8_t *p, uint64_t *bad) {
    uint64_t high = lc_unhex8(0x3030303000000000ULL | lc_get32(p), bad);
    return high << 32 | lc_unhex8(lc_get64(p + 4), bad);
}
static inline uint64_t lc_read_hex4(const uint8_t *p, uint64_t *bad) {
    return lc_unhex8(0x3030303000000000ULL | lc_get32(p), bad);
}

#endif
