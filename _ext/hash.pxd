# XXH64 and MurmurHash3 (x86, 32 bits), inline and nogil, for every extension that hashes a body.
#
# XXH64 is used with seed 42: Spark's xxhash64() of the same bytes is the same number. MurmurHash3 is used
# with seed 0, as in plog. Spark's hash() takes the last bytes one by one, as signed numbers.

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "processor.h":
    int lc_has_avx512() noexcept nogil

cdef extern from "hash.h":
    void lc_xxh64_four(const uint8_t **p, size_t stripes, uint64_t seed, uint64_t (*lanes)[4]) noexcept nogil
    void lc_murmur_four(const uint8_t **p, size_t blocks, uint32_t *h) noexcept nogil
    uint32_t lc_murmur_rest(uint32_t h, const uint8_t *p, size_t size, size_t done) noexcept nogil
    uint64_t lc_le64(const uint8_t *p) noexcept nogil
    uint32_t lc_le32(const uint8_t *p) noexcept nogil
    uint64_t lc_rotl64(uint64_t v, int by) noexcept nogil


cdef enum:
    SEED = 42
    HASH_LANES = 4           # the most texts that are hashed at once


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


# XXH64 of up to HASH_LANES texts, side by side: while one waits for its multiplications the others go on.
cdef inline void xxh64_each(const uint8_t **p, const size_t *sizes, uint32_t count, uint64_t seed,
                            uint64_t *hashes) noexcept nogil:
    cdef lc_lanes lanes[HASH_LANES]
    cdef size_t stripes = sizes[0] >> 5 if count else 0, at
    cdef uint32_t i
    for i in range(count):
        stripes = min(stripes, sizes[i] >> 5)
        lanes[i] = xxh64_begin(seed)
    if count == 4 and stripes and lc_has_avx512():
        lc_xxh64_four(p, stripes, seed, <uint64_t (*)[4]> lanes)
    else:
        for at in range(stripes):
            for i in range(count):
                xxh64_stripe(&lanes[i], p[i] + 32 * at)
    for i in range(count):
        if stripes:
            hashes[i] = xxh64_from(lanes[i], p[i] + 32 * stripes, (sizes[i] >> 5) - stripes, sizes[i])
        else:
            hashes[i] = xxh64_of(p[i], sizes[i], seed)


# MurmurHash3 x86 32 of p[0:size], seed 0.
cdef inline uint32_t murmur3_of(const uint8_t *p, size_t size) noexcept nogil:
    return lc_murmur_rest(0, p, size, 0)


# The same of up to HASH_LANES texts.
cdef inline void murmur3_many(const uint8_t **p, const size_t *sizes, uint32_t count,
                              uint32_t *hashes) noexcept nogil:
    cdef size_t blocks
    cdef uint32_t i
    if count == 4:
        hashes[0] = hashes[1] = hashes[2] = hashes[3] = 0
        blocks = min(min(sizes[0], sizes[1]), min(sizes[2], sizes[3])) >> 2
        lc_murmur_four(p, blocks, hashes)
        for i in range(4):
            hashes[i] = lc_murmur_rest(hashes[i], p[i], sizes[i], blocks)
        return
    for i in range(count):
        hashes[i] = murmur3_of(p[i], sizes[i])
