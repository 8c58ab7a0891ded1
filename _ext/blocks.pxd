# The four compressions of Logjam: none, zlib (deflate.pxd), snappy (a raw block), LZ4 (u32 big-endian
# length and a raw block).
#
# LZ4 works without the GIL when the extension of the lz4 package exports its functions, as its wheels do.
# They are looked up in the loaded library, like those of libz. python-snappy exports none: snappy works
# without the GIL through the system's libsnappy (snappy-c.h), and otherwise through the package, with the
# GIL. A codec that needs the GIL takes it once for each encode call (see `packer_needs_gil`), not for each
# message. With four busy Python threads that has a fifth of the throughput of a compressor without the GIL.
#
# The announced size of a body is believed only as far as its compressed bytes can hold that much.

from libc.stdint cimport uint8_t, uint32_t

from logclient._ext.deflate cimport (
    BY_PYTHON,
    INFLATE_BAD,
    INFLATE_MEMORY,
    INFLATE_TOO_LARGE,
    deflate_window,
    deflater_close,
    deflater_open,
    inflate_frame,
    inflater_close,
    inflater_open,
    lc_deflater,
    lc_inflater,
    path_of,
)
from logclient._ext.codec cimport lc_wire, wire_reserve
from logclient._ext.ids cimport lc_get32, lc_put32


cdef enum Compression:
    NO_COMPRESSION = 0
    ZLIB = 1
    SNAPPY = 2
    LZ4 = 3
    COMPRESSIONS = 4

cdef enum:
    UNPACK_MISSING = -4          # the package is not installed
    LZ4_MOST = 0x7E000000
    LZ4_RATIO = 255              # a block holds at most this many times its size ...
    SNAPPY_RATIO = 32            # ... (a copy of 64 bytes takes 3)

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct {
        int (*compress)(const char *, char *, int, int);
        int (*decompress)(const char *, char *, int, int);
    } lc_lz4;
    typedef struct {
        int (*compress)(const char *, size_t, char *, size_t *);
        int (*uncompress)(const char *, size_t, char *, size_t *);
    } lc_snappy;
    #if defined(_WIN32) || defined(LC_LIKE_WINDOWS)
    static int lc_snappy_find(lc_snappy *z) { (void)z; return -1; }
    static int lc_lz4_find(lc_lz4 *z, const char *path) { (void)z; (void)path; return -1; }
    #else
    #include <dlfcn.h>
    static int lc_lz4_find(lc_lz4 *z, const char *path) {
        void *so = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!so) return -1;
        *(void **)&z->compress = dlsym(so, "LZ4_compress_default");
        *(void **)&z->decompress = dlsym(so, "LZ4_decompress_safe");
        return z->compress && z->decompress ? 0 : -1;
    }
    #ifdef __APPLE__
    #define LC_LIBSNAPPY "libsnappy.1.dylib"
    #else
    #define LC_LIBSNAPPY "libsnappy.so.1"
    #endif
    static int lc_snappy_find(lc_snappy *z) {
        void *so = dlopen(LC_LIBSNAPPY, RTLD_LAZY);
        if (!so) return -1;
        *(void **)&z->compress = dlsym(so, "snappy_compress");
        *(void **)&z->uncompress = dlsym(so, "snappy_uncompress");
        return z->compress && z->uncompress ? 0 : -1;
    }
    #endif
    """
    ctypedef struct lc_snappy:
        int (*compress)(const char *source, size_t size, char *to, size_t *room) noexcept nogil
        int (*uncompress)(const char *source, size_t size, char *to, size_t *room) noexcept nogil
    int lc_snappy_find(lc_snappy *z) noexcept nogil
    ctypedef struct lc_lz4:
        int (*compress)(const char *source, char *to, int size, int room) noexcept nogil
        int (*decompress)(const char *source, char *to, int size, int room) noexcept nogil
    int lc_lz4_find(lc_lz4 *z, const char *path) noexcept nogil


ctypedef struct lc_packer:
    int method
    lc_deflater deflater
    lc_lz4 lz4
    lc_snappy snappy
    void *python                 # borrowed: snappy or lz4.block, when there is no C function


ctypedef struct lc_unpacker:
    lc_inflater inflater
    lc_lz4 lz4
    lc_snappy libsnappy
    void *snappy                 # borrowed; NULL: not installed
    void *lz4_block


# The package for a method, or None.
cdef inline object block_module(int method):
    try:
        if method == SNAPPY:
            import snappy
            return snappy
        from lz4 import block
        return block
    except (ImportError, AttributeError):
        return None


cdef inline bint lz4_open(lc_lz4 *z, module) except -1:
    path = path_of(module._block) if hasattr(module, "_block") else None
    if path is None or lc_lz4_find(z, <const char *> path) < 0:
        z.compress = NULL
        z.decompress = NULL
        return False
    return True


cdef inline bint snappy_open(lc_snappy *z) noexcept:
    if lc_snappy_find(z) < 0:
        z.compress = NULL
        z.uncompress = NULL
        return False
    return True


# The owner must keep the returned package, or None.
cdef inline object packer_open(lc_packer *k, int method, int level):
    memset(k, 0, sizeof(lc_packer))
    k.method = method
    if method == ZLIB:
        deflater_open(&k.deflater, level)
        import zlib
        return zlib
    if method == NO_COMPRESSION or method == SNAPPY and snappy_open(&k.snappy):
        return None
    module = block_module(method)
    if module is None:
        missing = "neither python-snappy nor libsnappy is" if method == SNAPPY else "lz4 is not"
        raise ValueError(f"compression: {missing} installed")
    if method == SNAPPY or not lz4_open(&k.lz4, module):
        k.python = <void *> module
    return module


cdef inline void packer_close(lc_packer *k) noexcept:
    deflater_close(&k.deflater)
    memset(k, 0, sizeof(lc_packer))


cdef inline bint packer_needs_gil(lc_packer *k) noexcept nogil:
    return k.python != NULL or k.deflater.by == BY_PYTHON


cdef inline int python_pack(lc_packer *k, const uint8_t *data, size_t size, lc_wire *out) noexcept with gil:
    cdef bytes small
    cdef uint8_t *to
    cdef object module = <object> k.python
    try:
        if k.method == SNAPPY:
            small = module.compress(<bytes> data[:size])
        else:
            small = module.compress(<bytes> data[:size], store_size=False)
    except BaseException:            # out of memory, or an interrupt
        return -1
    to = wire_reserve(out, len(small) + 1)
    if to == NULL:
        return -1
    memcpy(to, <const uint8_t *> small, len(small))
    out.size += len(small)
    return 0


# Append a packed body. -1: out of memory; out.size is then undefined.
cdef inline int pack_body(lc_packer *k, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    cdef uint8_t *to
    cdef size_t room
    cdef int done
    if k.method == ZLIB:
        return deflate_window(&k.deflater, data, size, out)
    if k.method == LZ4:
        if size > LZ4_MOST:
            return -1
        to = wire_reserve(out, 4)
        if to == NULL:
            return -1
        lc_put32(to, <uint32_t> size)
        out.size += 4
        if k.python == NULL:
            room = size + size // 255 + 16
            to = wire_reserve(out, room)
            if to == NULL:
                return -1
            done = k.lz4.compress(<const char *> data, <char *> to, <int> size, <int> room)
            if done <= 0:
                return -1
            out.size += done
            return 0
    if k.method == SNAPPY and k.python == NULL:
        room = 32 + size + size // 6         # the most that a block takes
        to = wire_reserve(out, room)
        if to == NULL or k.snappy.compress(<const char *> data, size, <char *> to, &room) != 0:
            return -1
        out.size += room
        return 0
    return python_pack(k, data, size, out)


# The owner must keep the returned packages.
cdef inline object unpacker_open(lc_unpacker *k):
    memset(k, 0, sizeof(lc_unpacker))
    import zlib
    inflater_open(&k.inflater)
    k.inflater.whole = True
    snappy = None if snappy_open(&k.libsnappy) else block_module(SNAPPY)
    lz4_block = block_module(LZ4)
    if snappy is not None:
        k.snappy = <void *> snappy
    if lz4_block is not None:
        lz4_open(&k.lz4, lz4_block)
        k.lz4_block = <void *> lz4_block
    return zlib, snappy, lz4_block


cdef inline void unpacker_close(lc_unpacker *k) noexcept:
    inflater_close(&k.inflater)
    memset(k, 0, sizeof(lc_unpacker))


cdef inline int python_unpack(lc_unpacker *k, int method, const uint8_t *data, size_t size, uint8_t *to,
                              size_t room) noexcept with gil:
    cdef bytes large
    try:
        if method == SNAPPY:
            large = (<object> k.snappy).uncompress(<bytes> data[:size])
        else:
            large = (<object> k.lz4_block).decompress(<bytes> data[:size], uncompressed_size=room)
    except MemoryError:
        return INFLATE_MEMORY
    except BaseException:            # each package has errors of its own
        return INFLATE_BAD
    if <size_t> len(large) != room:
        return INFLATE_BAD
    memcpy(to, <const uint8_t *> large, room)
    return 0


# Append an unpacked body. 0, or INFLATE_BAD, INFLATE_TOO_LARGE (more than limit), INFLATE_MEMORY,
# UNPACK_MISSING.
cdef inline int unpack_body(lc_unpacker *k, int method, const uint8_t *data, size_t size, lc_wire *out,
                            size_t limit) noexcept nogil:
    cdef size_t room = 0, at = 0
    cdef int shift = 0, done
    cdef uint8_t *to
    if method == ZLIB:
        return inflate_frame(&k.inflater, data, size, out, limit)
    if method == SNAPPY:
        # a varint: the size of the unpacked body
        while True:
            if at == size or shift > 28 or (shift == 28 and data[at] > 15):
                return INFLATE_BAD
            room |= <size_t> (data[at] & 127) << shift
            at += 1
            if data[at - 1] < 128:
                break
            shift += 7
        if room > limit:
            return INFLATE_TOO_LARGE
        if room // SNAPPY_RATIO > size:
            return INFLATE_BAD
    else:
        if size < 5:
            return INFLATE_BAD
        room = lc_get32(data)
        if room > limit:
            return INFLATE_TOO_LARGE
        data += 4
        size -= 4
        if room // LZ4_RATIO > size:
            return INFLATE_BAD
    if method == SNAPPY and k.snappy == NULL and k.libsnappy.uncompress == NULL:
        return UNPACK_MISSING
    if method == LZ4 and k.lz4_block == NULL:
        return UNPACK_MISSING
    to = wire_reserve(out, room + 1)
    if to == NULL:
        return INFLATE_MEMORY
    if method == LZ4 and k.lz4.decompress != NULL:
        done = 0 if size < LZ4_MOST and k.lz4.decompress(
            <const char *> data, <char *> to, <int> size, <int> room) == <int> room else INFLATE_BAD
    elif method == SNAPPY and k.libsnappy.uncompress != NULL:
        at = room
        done = 0 if k.libsnappy.uncompress(<const char *> data, size, <char *> to, &at) == 0 and at == room \
            else INFLATE_BAD
    else:
        done = python_unpack(k, method, data, size, to, room)
    if done == 0:
        out.size += room
    return done


from libc.string cimport memcpy, memset
