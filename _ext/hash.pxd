# XXH64 and MurmurHash3 (x86, 32 bits), inline and nogil, for every extension that hashes a body.
#
# XXH64 is used with seed 42: Spark's xxhash64() of the same bytes is the same number. MurmurHash3 is used
# with seed 0, as in plog. Spark's hash() takes the last bytes one by one, as signed numbers.

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "hash.h":
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


# XXH64 of p[0:size].
cdef inline uint64_t xxh64_of(const uint8_t *p, size_t size, uint64_t seed) noexcept nogil:
    cdef const uint8_t *end = p + (size & ~<size_t> 31)
    cdef uint64_t h, a, b, c, d
    if size < 32:
        return xxh64_finish(seed + 0x27D4EB2F165667C5ULL, p, size)
    a = seed + 0x9E3779B185EBCA87ULL + 0xC2B2AE3D27D4EB4FULL
    b = seed + 0xC2B2AE3D27D4EB4FULL
    c = seed
    d = seed - 0x9E3779B185EBCA87ULL
    while p < end:
        a = xxh64_round(a, lc_le64(p))
        b = xxh64_round(b, lc_le64(p + 8))
        c = xxh64_round(c, lc_le64(p + 16))
        d = xxh64_round(d, lc_le64(p + 24))
        p += 32
    h = lc_rotl64(a, 1) + lc_rotl64(b, 7) + lc_rotl64(c, 12) + lc_rotl64(d, 18)
    h = xxh64_merge(xxh64_merge(xxh64_merge(xxh64_merge(h, a), b), c), d)
    return xxh64_finish(h, p, size)


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
