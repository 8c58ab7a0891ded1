/* What both hashes rotate, and MurmurHash3 of one text, or of four side by side. */
#ifndef LOGCLIENT_HASH_H
#define LOGCLIENT_HASH_H

#include <stdint.h>
#include <string.h>
#include "bits.h"
#include "processor.h"

static inline uint64_t lc_rotl64(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }
static inline uint32_t lc_rotl32(uint32_t v, int by) { return (v << by) | (v >> (32 - by)); }

#define LC_MURMUR_BLOCK(h, k) \
    h = lc_rotl32(h ^ lc_rotl32((k) * 0xcc9e2d51u, 15) * 0x1b873593u, 13) * 5 + 0xe6546b64u
/* Blocks of four texts, each at least `blocks` long, side by side: each waits for its own
   multiplications. */
static inline void lc_murmur_rest_of_four(const uint8_t *const *p, size_t i, size_t blocks, uint32_t *h) {
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    for (; i < blocks; i++) {
        LC_MURMUR_BLOCK(a, lc_le32(p[0] + 4 * i));
        LC_MURMUR_BLOCK(b, lc_le32(p[1] + 4 * i));
        LC_MURMUR_BLOCK(c, lc_le32(p[2] + 4 * i));
        LC_MURMUR_BLOCK(d, lc_le32(p[3] + 4 * i));
    }
    h[0] = a; h[1] = b; h[2] = c; h[3] = d;
}
/* Hash the rest of a text after its first `done` blocks, and mix. */
static inline uint32_t lc_murmur_rest(uint32_t h, const uint8_t *p, size_t size, size_t done) {
    size_t blocks = size >> 2;
    uint32_t k = 0;
    for (; done < blocks; done++)
        LC_MURMUR_BLOCK(h, lc_le32(p + 4 * done));
    p += 4 * blocks;
    switch (size & 3) {
    case 3: k = (uint32_t)p[2] << 16; /* fall through */
    case 2: k |= (uint32_t)p[1] << 8; /* fall through */
    case 1: h ^= lc_rotl32((k | p[0]) * 0xcc9e2d51u, 15) * 0x1b873593u;
    }
    h ^= (uint32_t)size;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}
#if LC_X86_64
/* A block is mixed by itself before it meets the hash: eight at a time, while the eight before them are
   folded in one by one. Only that chain stays serial, so it must stay in ordinary registers. */
__attribute__((target("avx2"), unused))
static void lc_murmur_mixed(const uint8_t *const *p, size_t blocks, uint32_t *h) {
    const __m256i first = _mm256_set1_epi32((int)0xcc9e2d51u), second = _mm256_set1_epi32(0x1b873593);
    uint32_t mixed[2][4][8] __attribute__((aligned(32)));
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3];
    size_t i = 0;
    int t, j, now = 0;
    #define LC_MIX(to, q) do { \
        __m256i k = _mm256_mullo_epi32(_mm256_loadu_si256((const __m256i *)(q)), first); \
        k = _mm256_or_si256(_mm256_slli_epi32(k, 15), _mm256_srli_epi32(k, 17)); \
        _mm256_store_si256((__m256i *)(to), _mm256_mullo_epi32(k, second)); } while (0)
    #define LC_FOLD(h, k) do { \
        h = lc_rotl32(h ^ (k), 13); \
        __asm__("" : "+r"(h)); \
        h = h * 5 + 0xe6546b64u; } while (0)
    if (blocks >= 16)
        for (t = 0; t < 4; t++)
            LC_MIX(mixed[0][t], p[t]);
    for (; i + 16 <= blocks; i += 8, now ^= 1) {
        for (t = 0; t < 4; t++)
            LC_MIX(mixed[now ^ 1][t], p[t] + 4 * (i + 8));
        for (j = 0; j < 8; j++) {
            LC_FOLD(a, mixed[now][0][j]);
            LC_FOLD(b, mixed[now][1][j]);
            LC_FOLD(c, mixed[now][2][j]);
            LC_FOLD(d, mixed[now][3][j]);
        }
    }
    #undef LC_FOLD
    #undef LC_MIX
    h[0] = a; h[1] = b; h[2] = c; h[3] = d;
    lc_murmur_rest_of_four(p, i, blocks, h);
}
static inline void lc_murmur_four(const uint8_t *const *p, size_t blocks, uint32_t *h) {
    if (lc_has_avx2())
        lc_murmur_mixed(p, blocks, h);
    else
        lc_murmur_rest_of_four(p, 0, blocks, h);
}
#else
static inline void lc_murmur_four(const uint8_t *const *p, size_t blocks, uint32_t *h) {
    lc_murmur_rest_of_four(p, 0, blocks, h);
}
#endif
#undef LC_MURMUR_BLOCK

#endif
