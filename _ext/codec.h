/* The head of a frame: an integer in little-endian order. */
#ifndef LOGCLIENT_CODEC_H
#define LOGCLIENT_CODEC_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static inline void lc_put_frame(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v; p[1] = (uint8_t)(v >> 8); p[2] = (uint8_t)(v >> 16); p[3] = (uint8_t)(v >> 24);
}
static inline uint32_t lc_get_frame(const uint8_t *p) {
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

#endif
