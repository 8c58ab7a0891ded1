/* What this processor can do beyond its architecture: whatever has a faster way asks here. */
#ifndef LOGCLIENT_PROCESSOR_H
#define LOGCLIENT_PROCESSOR_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(LC_NO_SIMD)
#define LC_X86_64 1
#include <immintrin.h>
static inline int lc_has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }
/* Whether it multiplies polynomials. */
static inline int lc_has_clmul(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
#define LC_X86_64 0
static inline int lc_has_avx2(void) { return 0; }
static inline int lc_has_clmul(void) { return 0; }
#endif

#endif
