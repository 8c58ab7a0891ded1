/* The parts of the JSON scanner (jsonscan.pyx, jsontext.pxd) that look at many bytes at once. */
#ifndef LOGCLIENT_JSONSCAN_H
#define LOGCLIENT_JSONSCAN_H

#include <stdint.h>
#include <string.h>

#include "bits.h"
#include "processor.h"

/* A bit for each of 64 bytes that is a quote, a backslash, below 0x20 or above 0x7f; and for the quotes. */
#if defined(__SSE2__) && !defined(LC_NO_SIMD)
#include <emmintrin.h>
static inline uint64_t lc_marks16(const uint8_t *p, uint64_t *quotes, int shift) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i quote = _mm_cmpeq_epi8(v, _mm_set1_epi8('"'));
    /* signed: bytes above 0x7f are below 0x20 too */
    __m128i hit = _mm_or_si128(_mm_or_si128(quote, _mm_cmpeq_epi8(v, _mm_set1_epi8(92))),
                               _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
    *quotes |= (uint64_t)(unsigned)_mm_movemask_epi8(quote) << shift;
    return (uint64_t)(unsigned)_mm_movemask_epi8(hit) << shift;
}
static inline uint64_t lc_marks(const uint8_t *p, uint64_t *quotes) {
    *quotes = 0;
    return lc_marks16(p, quotes, 0) | lc_marks16(p + 16, quotes, 16) | lc_marks16(p + 32, quotes, 32)
        | lc_marks16(p + 48, quotes, 48);
}
#else
/* The high bits of eight bytes, gathered. */
static inline uint64_t lc_gather(uint64_t v) {
    return ((v & 0x8080808080808080ULL) >> 7) * 0x0102040810204080ULL >> 56;
}
static inline uint64_t lc_marks(const uint8_t *p, uint64_t *quotes) {
    const uint64_t ones = 0x0101010101010101ULL, high = 0x8080808080808080ULL;
    uint64_t mask = 0;
    int i;
    *quotes = 0;
    for (i = 0; i < 64; i += 8) {
        uint64_t v = lc_le64(p + i), quote = v ^ ones * '"', slash = v ^ ones * 92;
        uint64_t other = ((quote & ~high) + ~high) | quote;        /* high bit: no quote */
        uint64_t plain = other & (((slash & ~high) + ~high) | slash)      /* no backslash */
            & ((v & ~high) + ones * 0x60) & ~v;                           /* 0x20 to 0x7f */
        *quotes |= lc_gather(~other) << i;
        mask |= lc_gather(~plain) << i;
    }
    return mask;
}
#endif
static inline uint64_t lc_special(const uint8_t *p) {
    uint64_t quotes;
    return lc_marks(p, &quotes);
}
/* Copy n bytes, at least 64, and nothing beyond them. A bit of `quotes` for each that is a quote.
   1 when none is a backslash, below 0x20 or above 0x7f: then quotes begin and end strings. */
static int lc_copy_map_any(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    uint64_t odd = 0;
    size_t at = 0, rest = n & 63;
    while (at < n) {
        uint64_t mask;
        if (at + 64 > n) at = n - 64;      /* the rest, from the end backwards */
        memcpy(to + at, from + at, 64);
        odd |= lc_marks(from + at, &mask) ^ mask;
        *quotes++ = at & 63 ? mask >> (64 - rest) : mask;
        at += 64;
    }
    return odd == 0;
}
#if LC_X86_64
__attribute__((target("avx2")))
static int lc_copy_map_32(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8(92);
    const __m256i space = _mm256_set1_epi8(0x20);
    __m256i odd = _mm256_setzero_si256();
    size_t at = 0, rest = n & 63;
    while (at < n) {
        __m256i v, w;
        uint64_t mask;
        if (at + 64 > n) at = n - 64;
        v = _mm256_loadu_si256((const __m256i *)(from + at));
        w = _mm256_loadu_si256((const __m256i *)(from + at + 32));
        _mm256_storeu_si256((__m256i *)(to + at), v);
        _mm256_storeu_si256((__m256i *)(to + at + 32), w);
        mask = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, quote))
            | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(w, quote)) << 32;
        odd = _mm256_or_si256(odd, _mm256_or_si256(
            _mm256_or_si256(_mm256_cmpeq_epi8(v, slash), _mm256_cmpgt_epi8(space, v)),
            _mm256_or_si256(_mm256_cmpeq_epi8(w, slash), _mm256_cmpgt_epi8(space, w))));
        *quotes++ = at & 63 ? mask >> (64 - rest) : mask;
        at += 64;
    }
    return _mm256_testz_si256(odd, odd);
}
#define lc_copy_map(...) (lc_has_avx2() ? lc_copy_map_32(__VA_ARGS__) : lc_copy_map_any(__VA_ARGS__))
#else
#define lc_copy_map lc_copy_map_any
#endif

#endif
