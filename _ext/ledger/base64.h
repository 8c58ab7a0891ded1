/* Padded base64 (RFC 4648), decoded 32 characters at a time where the processor has AVX2. */
#ifndef LOGCLIENT_BASE64_H
#define LOGCLIENT_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "bits.h"
#include "processor.h"

/* Four characters, four lookups; a character outside of the alphabet sets the highest bit. */
static uint32_t lc_b64[4][256];

static void lc_b64_init(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 256; i++)
        for (int t = 0; t < 4; t++) lc_b64[t][i] = 0x80000000u;
    for (uint32_t i = 0; i < 64; i++)
        for (int t = 0; t < 4; t++) lc_b64[t][(uint8_t)digits[i]] = i << (18 - 6 * t);
}

#if LC_X86_64

/* A table of 16 bytes, in both halves of a register. */
#define LC_TABLE(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

/* Decode blocks of 32 characters to 24 bytes while `size` has room for the 32 bytes that are written.
   Returns the number of blocks; -1 when a character is not of the alphabet. */
__attribute__((target("avx2")))
static ptrdiff_t lc_unbase64_blocks(const uint8_t *p, uint8_t *out, size_t size) {
    /* The upper four bits of a character choose the rows of the alphabet that it may be in, as bits. Its
       lower four bits choose the rows that have a character there. 1: + and /; 2: digits; 4: A-O and a-o;
       8: P-Z and p-z. */
    const __m256i rows = LC_TABLE(0, 0, 1, 2, 4, 8, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i columns = LC_TABLE(10, 14, 14, 14, 14, 14, 14, 14, 14, 14, 12, 5, 4, 4, 4, 5);
    /* What is added to a character, by its upper four bits; one less for the slash. */
    const __m256i shifts = LC_TABLE(0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0);
    /* The three bytes of each 32 bits, the highest first. */
    const __m256i bytes = LC_TABLE(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1);
    const __m256i halves = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    const __m256i four_bits = _mm256_set1_epi8(15), slash = _mm256_set1_epi8('/');
    __m256i wrong = _mm256_setzero_si256();
    ptrdiff_t blocks = 0;
    for (; size >= 32; p += 32, out += 24, size -= 24, blocks++) {
        __m256i c = _mm256_loadu_si256((const __m256i *)p);
        __m256i high = _mm256_and_si256(_mm256_srli_epi32(c, 4), four_bits);
        __m256i row = _mm256_shuffle_epi8(rows, high);
        __m256i column = _mm256_shuffle_epi8(columns, _mm256_and_si256(c, four_bits));
        __m256i value;
        wrong = _mm256_or_si256(
            wrong, _mm256_cmpeq_epi8(_mm256_and_si256(row, column), _mm256_setzero_si256()));
        high = _mm256_add_epi8(high, _mm256_cmpeq_epi8(c, slash));
        value = _mm256_add_epi8(c, _mm256_shuffle_epi8(shifts, high));
        value = _mm256_maddubs_epi16(value, _mm256_set1_epi16(0x0140));       /* two of 6 bits: 12 */
        value = _mm256_madd_epi16(value, _mm256_set1_epi32(0x00011000));      /* two of 12 bits: 24 */
        value = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(value, bytes), halves);
        _mm256_storeu_si256((__m256i *)out, value);
    }
    return _mm256_testz_si256(wrong, wrong) ? blocks : -1;
}

#undef LC_TABLE
#else
static ptrdiff_t lc_unbase64_blocks(const uint8_t *p, uint8_t *out, size_t size) {
    (void)p; (void)out; (void)size;
    return 0;
}
#endif

/* Decode `size` bytes from the characters that encode as many, with padding. -1: they are not base64.
   `wide`: use AVX2, which this processor has. */
static int lc_unbase64(const uint8_t *p, uint8_t *out, size_t size, int wide) {
    uint32_t bad = 0, x;
    if (wide) {
        ptrdiff_t blocks = lc_unbase64_blocks(p, out, size);
        if (blocks < 0) return -1;
        p += 32 * blocks;
        out += 24 * blocks;
        size -= 24 * (size_t)blocks;
    }
    for (; size >= 3; size -= 3, p += 4, out += 3) {
        x = lc_b64[0][p[0]] | lc_b64[1][p[1]] | lc_b64[2][p[2]] | lc_b64[3][p[3]];
        bad |= x;
        out[0] = (uint8_t)(x >> 16);
        out[1] = (uint8_t)(x >> 8);
        out[2] = (uint8_t)x;
    }
    if (size) {
        x = lc_b64[0][p[0]] | lc_b64[1][p[1]] | (size == 2 ? lc_b64[2][p[2]] : 0);
        bad |= x | (p[3] != '=' || (size == 1 && p[2] != '=') ? 0x80000000u : 0);
        out[0] = (uint8_t)(x >> 16);
        if (size == 2) out[1] = (uint8_t)(x >> 8);
    }
    return bad & 0x80000000u ? -1 : 0;
}

/* Write n numbers of 32 bits, each plus `base`, and extend `range`, which has the least and the greatest. */
static inline __attribute__((always_inline)) void lc_widen(const uint8_t *p, size_t n, int64_t base,
                                                           int64_t *restrict out, int32_t *range) {
    int32_t low = range[0], high = range[1];
    size_t i;
    for (i = 0; i < n; i++) {
        int32_t v = (int32_t)lc_le32(p + 4 * i);
        low = v < low ? v : low;
        high = v > high ? v : high;
        out[i] = base + v;
    }
    range[0] = low;
    range[1] = high;
}
#if LC_X86_64
/* The same, which the compiler makes wide. */
__attribute__((target("avx2")))
static void lc_widen_avx2(const uint8_t *p, size_t n, int64_t base, int64_t *out, int32_t *range) {
    lc_widen(p, n, base, out, range);
}
#else
#define lc_widen_avx2 lc_widen
#endif

/* Decode n numbers of 32 bits, as lc_unbase64 and lc_widen. */
static int lc_unbase64_times(const uint8_t *p, size_t n, int64_t base, int64_t *out, int32_t *range,
                             int wide) {
    uint8_t some[3072];         /* stays in the nearest cache; a multiple of 3 and of 4 bytes */
    while (n) {
        size_t k = n < sizeof(some) / 4 ? n : sizeof(some) / 4;
        if (lc_unbase64(p, some, 4 * k, wide) < 0) return -1;
        if (wide) lc_widen_avx2(some, k, base, out, range);
        else lc_widen(some, k, base, out, range);
        p += sizeof(some) / 3 * 4;
        out += k;
        n -= k;
    }
    return 0;
}

#endif
