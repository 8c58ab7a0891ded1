/* Bit scans, and numbers in little-endian bytes. */
#ifndef LOGCLIENT_BITS_H
#define LOGCLIENT_BITS_H

#include <stdint.h>
#include <string.h>

/* The index of the lowest bit that is set; undefined for 0. */
#ifdef _MSC_VER
#include <intrin.h>
static __inline int lc_ctz32(uint32_t v) { unsigned long i; _BitScanForward(&i, v); return (int)i; }
static __inline int lc_ctz64(uint64_t v) { unsigned long i; _BitScanForward64(&i, v); return (int)i; }
#else
#define lc_ctz32(v) __builtin_ctz(v)
#define lc_ctz64(v) __builtin_ctzll(v)
#endif

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
#endif
