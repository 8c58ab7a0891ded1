# XXH64 and MurmurHash3 (x86, 32 bits), inline and nogil, for every extension that hashes a body.
#
# XXH64 is used with seed 42, as in Spark: its xxhash64() of the same bytes is the same number, so a verifier
# with the body in a column needs none of this code. MurmurHash3 is used with seed 0, as in plog. It differs
# from Spark's hash(), which takes the last bytes one by one, as signed numbers.

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include "bits.h"
    static inline uint64_t lc_rotl64(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }
    static inline uint32_t lc_rotl32(uint32_t v, int by) { return (v << by) | (v >> (32 - by)); }

    #define LC_MURMUR_BLOCK(h, k) \\
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
    static inline void lc_murmur_two(const uint8_t *const *p, size_t blocks, uint32_t *h) {
        uint32_t a = h[0], b = h[1];
        size_t i;
        for (i = 0; i < blocks; i++) {
            LC_MURMUR_BLOCK(a, lc_le32(p[0] + 4 * i));
            LC_MURMUR_BLOCK(b, lc_le32(p[1] + 4 * i));
        }
        h[0] = a; h[1] = b;
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
    /* The stripes of four texts, each at least `stripes` long, side by side where the machine multiplies
       64-bit lanes; else not there. `lanes`: the accumulators of each; `rounds`: one round of them from 0. */
    #if defined(__x86_64__) && defined(__GNUC__) && !defined(LC_NO_SIMD)
    #include <immintrin.h>
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
        if (__builtin_cpu_supports("avx2"))
            lc_murmur_mixed(p, blocks, h);
        else
            lc_murmur_rest_of_four(p, 0, blocks, h);
    }
    __attribute__((target("avx512f,avx512dq,avx512vl")))
    static void lc_xxh64_four(const uint8_t *const *p, size_t stripes, uint64_t seed, uint64_t (*lanes)[4]) {
        const __m256i p1 = _mm256_set1_epi64x((long long)0x9E3779B185EBCA87ULL);
        const __m256i p2 = _mm256_set1_epi64x((long long)0xC2B2AE3D27D4EB4FULL);
        __m256i a = _mm256_add_epi64(_mm256_set1_epi64x((long long)seed), _mm256_set_epi64x(
            (long long)(0 - 0x9E3779B185EBCA87ULL), 0, (long long)0xC2B2AE3D27D4EB4FULL,
            (long long)(0x9E3779B185EBCA87ULL + 0xC2B2AE3D27D4EB4FULL)));
        __m256i b = a, c = a, d = a;
        size_t i;
        #define LC_ROUND(x, q) x = _mm256_mullo_epi64(_mm256_rol_epi64(_mm256_add_epi64(x, \\
            _mm256_mullo_epi64(_mm256_loadu_si256((const __m256i *)((q) + 32 * i)), p2)), 31), p1)
        for (i = 0; i < stripes; i++) {
            LC_ROUND(a, p[0]);
            LC_ROUND(b, p[1]);
            LC_ROUND(c, p[2]);
            LC_ROUND(d, p[3]);
        }
        #undef LC_ROUND
        _mm256_storeu_si256((__m256i *)lanes[0], a);
        _mm256_storeu_si256((__m256i *)lanes[1], b);
        _mm256_storeu_si256((__m256i *)lanes[2], c);
        _mm256_storeu_si256((__m256i *)lanes[3], d);
    }
    static inline int lc_can_four(void) {
        return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
    #else
    static inline void lc_murmur_four(const uint8_t *const *p, size_t blocks, uint32_t *h) {
        lc_murmur_rest_of_four(p, 0, blocks, h);
    }
    static inline void lc_xxh64_four(const uint8_t *const *p, size_t stripes, uint64_t seed,
                                     uint64_t (*lanes)[4]) {
        (void)p; (void)stripes; (void)seed; (void)lanes;
    }
    static inline int lc_can_four(void) { return 0; }
    #endif
    #undef LC_MURMUR_BLOCK
    """
    void lc_xxh64_four(const uint8_t **p, size_t stripes, uint64_t seed, uint64_t (*lanes)[4]) noexcept nogil
    int lc_can_four() noexcept nogil
    void lc_murmur_four(const uint8_t **p, size_t blocks, uint32_t *h) noexcept nogil
    void lc_murmur_two(const uint8_t **p, size_t blocks, uint32_t *h) noexcept nogil
    uint32_t lc_murmur_rest(uint32_t h, const uint8_t *p, size_t size, size_t done) noexcept nogil
    uint64_t lc_le64(const uint8_t *p) noexcept nogil
    uint32_t lc_le32(const uint8_t *p) noexcept nogil
    uint64_t lc_rotl64(uint64_t v, int by) noexcept nogil


cdef enum:
    SEED = 42
    HASH_LANES = 4           # the most that xxh64_each takes at once


cdef inline uint64_t xxh64_round(uint64_t acc, uint64_t lane) noexcept nogil:
    return lc_rotl64(acc + lane * 0xC2B2AE3D27D4EB4FULL, 31) * 0x9E3779B185EBCA87ULL


cdef inline uint64_t xxh64_merge(uint64_t h, uint64_t acc) noexcept nogil:
    return (h ^ xxh64_round(0, acc)) * 0x9E3779B185EBCA87ULL + 0x85EBCA77C2B2AE63ULL


# Hash the rest after the whole stripes, the last size % 32 bytes at p. Then mix.
cdef inline uint64_t xxh64_finish(uint64_t h, const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + (size & 31)
    h += size
    while end - p >= 8:
        h = lc_rotl64(h ^ xxh64_round(0, lc_le64(p)), 27) * 0x9E3779B185EBCA87ULL + 0x85EBCA77C2B2AE63ULL
        p += 8
    if end - p >= 4:
        h ^= <uint64_t> lc_le32(p) * 0x9E3779B185EBCA87ULL
        h = lc_rotl64(h, 23) * 0xC2B2AE3D27D4EB4FULL + 0x165667B19E3779F9ULL
        p += 4
    while p < end:
        h = lc_rotl64(h ^ (<uint64_t> p[0] * 0x27D4EB2F165667C5ULL), 11) * 0x9E3779B185EBCA87ULL
        p += 1
    h = (h ^ (h >> 33)) * 0xC2B2AE3D27D4EB4FULL
    h = (h ^ (h >> 29)) * 0x165667B19E3779F9ULL
    return h ^ (h >> 32)


ctypedef struct lc_lanes:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline lc_lanes xxh64_begin(uint64_t seed) noexcept nogil:
    cdef lc_lanes s
    s.a = seed + 0x9E3779B185EBCA87ULL + 0xC2B2AE3D27D4EB4FULL
    s.b = seed + 0xC2B2AE3D27D4EB4FULL
    s.c = seed
    s.d = seed - 0x9E3779B185EBCA87ULL
    return s


cdef inline void xxh64_stripe(lc_lanes *s, const uint8_t *p) noexcept nogil:
    s.a = xxh64_round(s.a, lc_le64(p))
    s.b = xxh64_round(s.b, lc_le64(p + 8))
    s.c = xxh64_round(s.c, lc_le64(p + 16))
    s.d = xxh64_round(s.d, lc_le64(p + 24))


# Hash the last `stripes` stripes of a text, which begin at p, and its rest.
cdef inline uint64_t xxh64_from(lc_lanes s, const uint8_t *p, size_t stripes, size_t size) noexcept nogil:
    while stripes:
        xxh64_stripe(&s, p)
        p += 32
        stripes -= 1
    cdef uint64_t h = lc_rotl64(s.a, 1) + lc_rotl64(s.b, 7) + lc_rotl64(s.c, 12) + lc_rotl64(s.d, 18)
    h = xxh64_merge(xxh64_merge(xxh64_merge(xxh64_merge(h, s.a), s.b), s.c), s.d)
    return xxh64_finish(h, p, size)


# XXH64 of p[0:size].
cdef inline uint64_t xxh64_of(const uint8_t *p, size_t size, uint64_t seed) noexcept nogil:
    if size < 32:
        return xxh64_finish(seed + 0x27D4EB2F165667C5ULL, p, size)
    return xxh64_from(xxh64_begin(seed), p, size >> 5, size)


# Hash two at once. Each waits for its own multiplications, so the second costs little more than the first.
cdef inline void xxh64_two(const uint8_t *p, size_t size, const uint8_t *q, size_t length, uint64_t seed,
                           uint64_t *first, uint64_t *second) noexcept nogil:
    cdef size_t both = min(size, length) >> 5, stripes = both
    cdef lc_lanes one = xxh64_begin(seed), two = one
    if both == 0:
        first[0] = xxh64_of(p, size, seed)
        second[0] = xxh64_of(q, length, seed)
        return
    while stripes:
        xxh64_stripe(&one, p)
        xxh64_stripe(&two, q)
        p += 32
        q += 32
        stripes -= 1
    first[0] = xxh64_from(one, p, (size >> 5) - both, size)
    second[0] = xxh64_from(two, q, (length >> 5) - both, length)


# The best number of texts for xxh64_each: four, if the lanes of four fit one register.
cdef inline uint32_t xxh64_lanes() noexcept nogil:
    return 4 if lc_can_four() else 2


# XXH64 of up to HASH_LANES texts.
cdef inline void xxh64_each(const uint8_t **p, const size_t *sizes, uint32_t count, uint64_t seed,
                            uint64_t *hashes) noexcept nogil:
    cdef lc_lanes lanes[HASH_LANES]
    cdef size_t stripes
    cdef uint32_t i = 0
    if count == 4 and lc_can_four():
        stripes = min(min(sizes[0], sizes[1]), min(sizes[2], sizes[3])) >> 5
        if stripes:
            lc_xxh64_four(p, stripes, seed, <uint64_t (*)[4]> lanes)
            for i in range(4):
                hashes[i] = xxh64_from(lanes[i], p[i] + 32 * stripes, (sizes[i] >> 5) - stripes, sizes[i])
            return
    while count - i >= 2:
        xxh64_two(p[i], sizes[i], p[i + 1], sizes[i + 1], seed, &hashes[i], &hashes[i + 1])
        i += 2
    if count - i:
        hashes[i] = xxh64_of(p[i], sizes[i], seed)


# MurmurHash3 x86 32 of p[0:size], seed 0.
cdef inline uint32_t murmur3_of(const uint8_t *p, size_t size) noexcept nogil:
    return lc_murmur_rest(0, p, size, 0)


# The same of up to HASH_LANES texts.
cdef inline void murmur3_many(const uint8_t **p, const size_t *sizes, uint32_t count,
                              uint32_t *hashes) noexcept nogil:
    cdef size_t blocks
    cdef uint32_t i = 0
    if count == 4:
        hashes[0] = hashes[1] = hashes[2] = hashes[3] = 0
        blocks = min(min(sizes[0], sizes[1]), min(sizes[2], sizes[3])) >> 2
        lc_murmur_four(p, blocks, hashes)
        for i in range(4):
            hashes[i] = lc_murmur_rest(hashes[i], p[i], sizes[i], blocks)
        return
    while count - i >= 2:
        hashes[i] = hashes[i + 1] = 0
        blocks = min(sizes[i], sizes[i + 1]) >> 2
        lc_murmur_two(p + i, blocks, hashes + i)
        hashes[i] = lc_murmur_rest(hashes[i], p[i], sizes[i], blocks)
        hashes[i + 1] = lc_murmur_rest(hashes[i + 1], p[i + 1], sizes[i + 1], blocks)
        i += 2
    if count - i:
        hashes[i] = murmur3_of(p[i], sizes[i])
