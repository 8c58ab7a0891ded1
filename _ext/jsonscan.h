/* The parts of the JSON scanner (jsonscan.pxd) that look at many bytes at once. */
#ifndef LOGCLIENT_JSONSCAN_H
#define LOGCLIENT_JSONSCAN_H

#include <stdint.h>
#include <string.h>

#include "bits.h"
#include "processor.h"

/* A bit for each of 64 bytes that is a quote, a backslash, below 0x20 or above 0x7f. */
#if defined(__SSE2__) && !defined(LC_NO_SIMD)
#include <emmintrin.h>
static inline uint64_t lc_special16(const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    /* signed: bytes above 0x7f are below 0x20 too */
    __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')),
                                            _mm_cmpeq_epi8(v, _mm_set1_epi8(92))),
                               _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
    return (uint64_t)(unsigned)_mm_movemask_epi8(hit);
}
static inline uint64_t lc_special(const uint8_t *p) {
    return lc_special16(p) | lc_special16(p + 16) << 16 | lc_special16(p + 32) << 32
        | lc_special16(p + 48) << 48;
}
#else
static inline uint64_t lc_special(const uint8_t *p) {
    const uint64_t ones = 0x0101010101010101ULL, high = 0x8080808080808080ULL;
    uint64_t mask = 0;
    int i;
    for (i = 0; i < 8; i++) {
        uint64_t v = lc_le64(p + 8 * i);
        uint64_t quote = v ^ ones * '"', slash = v ^ ones * 92;
        uint64_t plain = (((quote & ~high) + ~high) | quote)       /* high bit: no quote */
            & (((slash & ~high) + ~high) | slash)                  /* no backslash */
            & ((v & ~high) + ones * 0x60) & ~v;                    /* 0x20 to 0x7f */
        /* gather the eight high bits */
        mask |= (((~plain & high) >> 7) * 0x0102040810204080ULL >> 56) << 8 * i;
    }
    return mask;
}
#endif
/* Copy n bytes, at least 64, and nothing beyond them. A bit of `quotes` for each that is a quote.
   1 when none is a backslash, below 0x20 or above 0x7f: then quotes begin and end strings. */
#if defined(__SSE2__) && !defined(LC_NO_SIMD)
static int lc_copy_map_16(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8(92), space = _mm_set1_epi8(0x20);
    __m128i odd = _mm_setzero_si128();
    size_t at = 0, rest = n & 63;
    int i;
    for (;;) {
        uint64_t mask = 0;
        if (at + 64 > n) {      /* the rest, from the end backwards */
            if (!rest) break;
            at = n - 64;
        }
        for (i = 0; i < 4; i++) {
            __m128i v = _mm_loadu_si128((const __m128i *)(from + at) + i);
            _mm_storeu_si128((__m128i *)(to + at) + i, v);
            mask |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(v, quote)) << 16 * i;
            odd = _mm_or_si128(odd, _mm_or_si128(_mm_cmpeq_epi8(v, slash), _mm_cmplt_epi8(v, space)));
        }
        *quotes++ = at & 63 ? mask >> (64 - rest) : mask;
        at += 64;
        if (at == n) break;
    }
    return _mm_movemask_epi8(odd) == 0;
}
#endif
#if LC_X86_64
__attribute__((target("avx2")))
static int lc_copy_map_32(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8(92);
    const __m256i space = _mm256_set1_epi8(0x20);
    __m256i odd = _mm256_setzero_si256();
    size_t at = 0, rest = n & 63;
    for (;;) {
        __m256i v, w;
        uint64_t mask;
        if (at + 64 > n) {
            if (!rest) break;
            at = n - 64;
        }
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
        if (at == n) break;
    }
    return _mm256_testz_si256(odd, odd);
}
static inline int lc_copy_map(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    return lc_has_avx2() ? lc_copy_map_32(to, from, n, quotes) : lc_copy_map_16(to, from, n, quotes);
}
#elif defined(__SSE2__) && !defined(LC_NO_SIMD)
#define lc_copy_map lc_copy_map_16
#else
static int lc_copy_map(uint8_t *to, const uint8_t *from, size_t n, uint64_t *quotes) {
    const uint64_t ones = 0x0101010101010101ULL, high = 0x8080808080808080ULL;
    uint64_t plain = high, mask = 0;
    size_t at;
    memcpy(to, from, n);
    for (at = 0; at < n; at += 8) {
        size_t back = at + 8 > n ? at + 8 - n : 0;
        uint64_t v = lc_le64(from + at - back);
        uint64_t quote = v ^ ones * '"', slash = v ^ ones * 92;
        plain &= (((slash & ~high) + ~high) | slash) & ((v & ~high) + ones * 0x60) & ~v;
        quote = ~(((quote & ~high) + ~high) | quote) & high;
        mask |= ((quote >> 7) * 0x0102040810204080ULL >> 56) >> back << (at & 63);
        if ((at & 63) == 56 || at + 8 >= n) {
            *quotes++ = mask;
            mask = 0;
        }
    }
    return plain == high;
}
#endif
/* 2**1024 - 2**970: from here on a double rounds to infinity. 309 digits. */
static const char lc_too_big[310] =
    "17976931348623158079372897140530341507993413271003782693617377898044496829276475094664901797758720709633"
    "02864166928879109465555478519404026306574886715058206819089020007083836762738548458177115317644757302700"
    "69855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904174497792";

#endif
