/* The compression libraries that this build is linked to: zlib, ISA-L, LZ4 and snappy.
 *
 * setup.py defines LC_ZLIB, LC_ISAL, LC_LZ4 and LC_SNAPPY for those that pkg-config knows (tools/libraries.py).
 * Cython translates the code for every library: where one is not linked, what stands here in its place lets
 * the C compile, is never called, and LC_HAS_... lets the compiler leave it out.
 */
#ifndef LC_LIBRARIES_H
#define LC_LIBRARIES_H

#include <stdint.h>

#ifdef LC_ZLIB
#define ZLIB_CONST
#include <zlib.h>
#define LC_HAS_ZLIB 1
typedef z_stream lc_zstream;
#define lc_deflate(s) deflate(s, Z_FINISH)
#define lc_inflate(s) inflate(s, Z_NO_FLUSH)
/* WebSocket: raw streams, with little memory for the window of earlier messages */
#define lc_deflate_init_raw(s, bits) deflateInit2(s, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -(bits), 5, Z_DEFAULT_STRATEGY)
#define lc_inflate_init_raw(s, bits) inflateInit2(s, -(bits))
#define lc_deflate_sync(s) deflate(s, Z_SYNC_FLUSH)
#else
#define LC_HAS_ZLIB 0
enum { Z_OK = 0, Z_STREAM_END = 1, Z_MEM_ERROR = -4, Z_BUF_ERROR = -5 };
typedef struct {
    const uint8_t *next_in;
    uint8_t *next_out;
    unsigned int avail_in, avail_out;
} lc_zstream;
#define deflateInit(s, level) Z_MEM_ERROR
#define lc_deflate(s) Z_MEM_ERROR
#define deflateReset(s) Z_MEM_ERROR
#define deflateEnd(s) Z_MEM_ERROR
#define inflateInit(s) Z_MEM_ERROR
#define lc_inflate(s) Z_MEM_ERROR
#define inflateReset(s) Z_MEM_ERROR
#define inflateEnd(s) Z_MEM_ERROR
#define lc_deflate_init_raw(s, bits) Z_MEM_ERROR
#define lc_inflate_init_raw(s, bits) Z_MEM_ERROR
#define lc_deflate_sync(s) Z_MEM_ERROR
#endif

#ifdef LC_ISAL
#include <isa-l/igzip_lib.h>
#define LC_HAS_ISAL 1
typedef struct isal_zstream lc_istream;
#else
#define LC_HAS_ISAL 0
enum { COMP_OK = 0, IGZIP_ZLIB = 0, NO_FLUSH = 0, ISAL_DEF_LVL1_DEFAULT = 1 };
typedef struct {
    uint8_t *next_in, *next_out, *level_buf;
    uint32_t avail_in, avail_out, level, level_buf_size;
    uint16_t end_of_stream, flush, gzip_flag;
} lc_istream;
#define isal_deflate_init(s) ((void) 0)
#define isal_deflate_reset(s) ((void) 0)
#define isal_deflate(s) (-1)
#endif

#ifdef LC_LZ4
#include <lz4.h>
#define LC_HAS_LZ4 1
#else
#define LC_HAS_LZ4 0
#define LZ4_compressBound(size) 0
#define LZ4_compress_default(from, to, size, room) 0
#define LZ4_decompress_safe(from, to, size, room) (-1)
#endif

#ifdef LC_SNAPPY
#include <snappy-c.h>
#define LC_HAS_SNAPPY 1
#else
#define LC_HAS_SNAPPY 0
#define snappy_max_compressed_length(size) 0
#define snappy_compress(from, size, to, room) (-1)
#define snappy_uncompress(from, size, to, room) (-1)
#endif

#endif
