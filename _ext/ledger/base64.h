/* Padded base64 (RFC 4648) as bytes, or as the numbers of 32 bits that these are. */
#ifndef LOGCLIENT_BASE64_H
#define LOGCLIENT_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "bits.h"

/* Four characters, four lookups; a character outside of the alphabet sets the highest bit. */
static uint32_t lc_b64[4][256];

static void lc_b64_init(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 256; i++)
        for (int t = 0; t < 4; t++) lc_b64[t][i] = 0x80000000u;
    for (uint32_t i = 0; i < 64; i++)
        for (int t = 0; t < 4; t++) lc_b64[t][(uint8_t)digits[i]] = i << (18 - 6 * t);
}

/* Decode `size` bytes from the characters that encode as many, with padding. -1: they are not base64. */
static int lc_unbase64(const uint8_t *p, uint8_t *out, size_t size) {
    uint32_t bad = 0, x;
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

/* Decode n numbers of 32 bits, each plus `base`, and extend `range`, which has the least and the greatest. */
static int lc_unbase64_times(const uint8_t *p, size_t n, int64_t base, int64_t *out, int32_t *range) {
    uint8_t some[3072];         /* stays in the nearest cache; a multiple of 3 and of 4 bytes */
    int32_t low = range[0], high = range[1];
    while (n) {
        size_t i, k = n < sizeof(some) / 4 ? n : sizeof(some) / 4;
        if (lc_unbase64(p, some, 4 * k) < 0) return -1;
        for (i = 0; i < k; i++) {
            int32_t v = (int32_t)lc_le32(some + 4 * i);
            low = v < low ? v : low;
            high = v > high ? v : high;
            out[i] = base + v;
        }
        p += sizeof(some) / 3 * 4;
        out += k;
        n -= k;
    }
    range[0] = low;
    range[1] = high;
    return 0;
}

#endif
