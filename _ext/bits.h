/* Bit scans of one name for each width, for every compiler. */
#ifndef LOGCLIENT_BITS_H
#define LOGCLIENT_BITS_H

#include <stdint.h>

/* The number of the lowest bit that is set. The argument must not be 0. */
#ifdef _MSC_VER
#include <intrin.h>
static __inline unsigned lc_ctz32(uint32_t bits) { unsigned long i; _BitScanForward(&i, bits); return i; }
static __inline unsigned lc_ctz64(uint64_t bits) { unsigned long i; _BitScanForward64(&i, bits); return i; }
#else
#define lc_ctz32(bits) ((unsigned)__builtin_ctz(bits))
#define lc_ctz64(bits) ((unsigned)__builtin_ctzll(bits))
#endif

#endif
