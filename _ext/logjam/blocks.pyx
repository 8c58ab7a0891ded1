# The four compressions of Logjam: none, zlib (deflate.pxd), snappy (a raw block), LZ4 (u32 big-endian
# length and a raw block).
#
# A build that is linked to LZ4 and snappy (libraries.h) calls them without the GIL. In other builds the
# packages lz4 and python-snappy stand in. A codec that needs the GIL takes it once for each encode call (see
# `packer_needs_gil`), not for each message.
#
# The announced size of a body is believed only as far as its compressed bytes can hold that much.

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

cdef extern from "libraries.h" nogil:
    bint LC_HAS_LZ4
    int lc_lz4_bound "LZ4_compressBound"(int size)
    int lc_lz4_compress "LZ4_compress_default"(const char *source, char *to, int size, int room)
    int lc_lz4_decompress "LZ4_decompress_safe"(const char *source, char *to, int size, int room)
    bint LC_HAS_SNAPPY
    size_t lc_snappy_bound "snappy_max_compressed_length"(size_t size)
    int lc_snappy_compress "snappy_compress"(const char *source, size_t size, char *to, size_t *room)
    int lc_snappy_uncompress "snappy_uncompress"(const char *source, size_t size, char *to, size_t *room)


ctypedef struct lc_packer:
    int method
    lc_deflater deflater
    void *python                 # borrowed: a function of snappy or lz4.block; NULL: the linked library


ctypedef struct lc_unpacker:
    lc_inflater inflater
    void *python[COMPRESSIONS]   # borrowed; NULL: the linked library, or not installed


cdef object block_module(int method):
    try:
        if method == SNAPPY:
            import snappy
            return snappy
        from lz4 import block
        return block
    except (ImportError, AttributeError):
        return None


cdef bint is_linked(int method) noexcept nogil:
    return LC_HAS_SNAPPY if method == SNAPPY else LC_HAS_LZ4


# The owner must keep the returned function, or None.
cdef object packer_open(lc_packer *k, int method, int level):
    memset(k, 0, sizeof(lc_packer))
    k.method = method
    if method == ZLIB:
        return deflater_open(&k.deflater, level)
    if method == NO_COMPRESSION or is_linked(method):
        return None
    module = block_module(method)
    if module is None:
        raise ValueError(f"compression: {'python-snappy' if method == SNAPPY else 'lz4'} is not installed")
    compress = module.compress if method == SNAPPY else partial(module.compress, store_size=False)
    k.python = <void *> compress
    return compress


cdef void packer_close(lc_packer *k) noexcept:
    deflater_close(&k.deflater)
    memset(k, 0, sizeof(lc_packer))


cdef bint packer_needs_gil(lc_packer *k) noexcept nogil:
    return k.python != NULL or k.deflater.python != NULL


# Append a packed body. -1: out of memory; out.size is then undefined.
cdef int pack_body(lc_packer *k, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    cdef uint8_t *to
    cdef size_t room
    cdef int done
    if k.method == ZLIB:
        return deflate_window(&k.deflater, data, size, out)
    if k.method == LZ4:
        if size > LZ4_MOST:
            return -1
        room = lc_lz4_bound(<int> size)
        to = wire_reserve(out, 4 + room)
        if to == NULL:
            return -1
        lc_put32(to, <uint32_t> size)
        out.size += 4
        if k.python == NULL:
            done = lc_lz4_compress(<const char *> data, <char *> to + 4, <int> size, <int> room)
            if done <= 0:
                return -1
            out.size += done
            return 0
    elif k.python == NULL:
        room = lc_snappy_bound(size)
        to = wire_reserve(out, room)
        if to == NULL or lc_snappy_compress(<const char *> data, size, <char *> to, &room) != 0:
            return -1
        out.size += room
        return 0
    return python_pack(k.python, data, size, out)


# The owner must keep the returned packages.
cdef object unpacker_open(lc_unpacker *k):
    cdef int method
    memset(k, 0, sizeof(lc_unpacker))
    packages = [inflater_open(&k.inflater)]
    k.inflater.whole = True
    for method in (SNAPPY, LZ4):
        module = None if is_linked(method) else block_module(method)
        if module is not None:
            packages.append(module)
            k.python[method] = <void *> module
    return packages


cdef void unpacker_close(lc_unpacker *k) noexcept:
    inflater_close(&k.inflater)
    memset(k, 0, sizeof(lc_unpacker))


cdef int python_unpack(lc_unpacker *k, int method, const uint8_t *data, size_t size, uint8_t *to,
                              size_t room) noexcept with gil:
    cdef bytes large
    try:
        if method == SNAPPY:
            large = (<object> k.python[method]).uncompress(<bytes> data[:size])
        else:
            large = (<object> k.python[method]).decompress(<bytes> data[:size], uncompressed_size=room)
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
cdef int unpack_body(lc_unpacker *k, int method, const uint8_t *data, size_t size, lc_wire *out,
                            size_t limit) noexcept nogil:
    cdef size_t room = 0, at = 0
    cdef int shift = 0, done
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
    if not is_linked(method) and k.python[method] == NULL:
        return UNPACK_MISSING
    cdef uint8_t *to = wire_reserve(out, room + 1)
    if to == NULL:
        return INFLATE_MEMORY
    if not is_linked(method):
        done = python_unpack(k, method, data, size, to, room)
    elif method == LZ4:
        done = 0 if size < LZ4_MOST and lc_lz4_decompress(
            <const char *> data, <char *> to, <int> size, <int> room) == <int> room else INFLATE_BAD
    else:
        at = room
        done = 0 if lc_snappy_uncompress(<const char *> data, size, <char *> to, &at) == 0 and at == room \
            else INFLATE_BAD
    if done == 0:
        out.size += room
    return done
