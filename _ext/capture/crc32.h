/* CRC-32 as in zlib. Only capture.pyx includes this: its tables are one variable. */
#ifndef LOGCLIENT_CAPTURE_CRC32_H
#define LOGCLIENT_CAPTURE_CRC32_H

#include <stddef.h>
#include "bits.h"
#include "processor.h"

/* zlib's CRC-32 (reflected 0x04C11DB7). Where the processor multiplies polynomials, 64 bytes a step are
   folded onto the next 64 (x^512 apart), then 16 bytes onto the next 16, at last as many as the message
   has beyond that; the 16 that remain are as good as the whole message and go through the tables, which
   spares the two constants of a Barrett step. */
static uint32_t lc_crc_table[8][256];

static void lc_crc_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
        lc_crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = lc_crc_table[t - 1][i];
            lc_crc_table[t][i] = (c >> 8) ^ lc_crc_table[0][c & 0xFF];
        }
}

/* Eight bytes a step; `c` is the inner state (not inverted). */
static uint32_t lc_crc_tables(uint32_t c, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t a = lc_le32(p) ^ c, b = lc_le32(p + 4);
        c = lc_crc_table[7][a & 0xFF] ^ lc_crc_table[6][a >> 8 & 0xFF]
          ^ lc_crc_table[5][a >> 16 & 0xFF] ^ lc_crc_table[4][a >> 24]
          ^ lc_crc_table[3][b & 0xFF] ^ lc_crc_table[2][b >> 8 & 0xFF]
          ^ lc_crc_table[1][b >> 16 & 0xFF] ^ lc_crc_table[0][b >> 24];
    }
    for (; n; p++, n--) c = (c >> 8) ^ lc_crc_table[0][(c ^ *p) & 0xFF];
    return c;
}

#if LC_X86_64
__attribute__((target("sse4.1,pclmul")))
static uint32_t lc_crc_fold(uint32_t c, const uint8_t *p, size_t n) {
    const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);  /* x^(512-32), x^(512+32) */
    const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);  /* x^(128-32), x^(128+32) */
    const __m128i first = _mm_cvtsi32_si128((int)c);
    uint8_t rest[48];
    __m128i x, y;
    #define LC_LOAD(q) _mm_loadu_si128((const __m128i *)(q))
    #define LC_FOLD(v, k, next) _mm_xor_si128(_mm_xor_si128( \
        _mm_clmulepi64_si128(v, k, 0x00), _mm_clmulepi64_si128(v, k, 0x11)), next)
    x = _mm_xor_si128(LC_LOAD(p), first);
    if (n >= 64) {
        __m128i x1 = LC_LOAD(p + 16), x2 = LC_LOAD(p + 32), x3 = LC_LOAD(p + 48);
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            x = LC_FOLD(x, by512, LC_LOAD(p));
            x1 = LC_FOLD(x1, by512, LC_LOAD(p + 16));
            x2 = LC_FOLD(x2, by512, LC_LOAD(p + 32));
            x3 = LC_FOLD(x3, by512, LC_LOAD(p + 48));
        }
        y = LC_FOLD(x, by128, x1);
        y = LC_FOLD(y, by128, x2);
        x = LC_FOLD(y, by128, x3);
    } else {
        p += 16;
        n -= 16;
    }
    for (; n >= 16; p += 16, n -= 16) x = LC_FOLD(x, by128, LC_LOAD(p));
    if (n) {  /* the first n bytes of x, behind zeros, onto the 16 that end the message */
        _mm_storeu_si128((__m128i *)rest, _mm_setzero_si128());
        _mm_storeu_si128((__m128i *)(rest + 16), x);
        memcpy(rest + 32, p, n);
        x = LC_FOLD(LC_LOAD(rest + n), by128, LC_LOAD(rest + 16 + n));
    }
    _mm_storeu_si128((__m128i *)rest, x);
    return lc_crc_tables(0, rest, 16);
    #undef LC_LOAD
    #undef LC_FOLD
}
#else
#define lc_crc_fold lc_crc_tables
#endif

static inline uint32_t lc_crc32(const uint8_t *p, size_t n, int folds) {
    return ~(folds && n >= 16 ? lc_crc_fold(~0u, p, n) : lc_crc_tables(~0u, p, n));
}

#endif
