# zlib streams (RFC 1950) without the GIL, by the fastest library that is already in the process.
#
# Python's own zlib module is linked to a libz, and the isal package carries Intel's ISA-L: both are
# looked up among the libraries that the interpreter has loaded (RTLD_NOLOAD, no second copy) and called by
# their public C interface. Nothing is linked at build time. Where neither can be found (a libz
# without exported names, Windows) Python's zlib is called with the GIL taken.
#
# libz guards its own structure: deflateInit2_ compares version and size. ISA-L does not, so its
# stream is probed once (isal_open): the public head has the documented values after its init, a
# sample survives the round trip, and nothing is written behind the room it is given.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from logclient._ext.codec cimport lc_wire, wire_reserve


cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>

    /* zlib.h, as far as it is needed: the stream and the calls are a stable interface since 1.0. */
    typedef struct {
        const uint8_t *next_in;
        unsigned int avail_in;
        unsigned long total_in;
        uint8_t *next_out;
        unsigned int avail_out;
        unsigned long total_out;
        const char *msg;
        void *state;
        void *zalloc;
        void *zfree;
        void *opaque;
        int data_type;
        unsigned long adler;
        unsigned long reserved;
    } lc_zstream;

    typedef struct {
        const char *(*version)(void);
        int (*deflate_init)(lc_zstream *, int, int, int, int, int, const char *, int);
        int (*deflate)(lc_zstream *, int);
        int (*deflate_reset)(lc_zstream *);
        int (*deflate_end)(lc_zstream *);
        int (*inflate_init)(lc_zstream *, const char *, int);
        int (*inflate)(lc_zstream *, int);
        int (*inflate_reset)(lc_zstream *);
        int (*inflate_end)(lc_zstream *);
    } lc_libz;

    /* The head of ISA-L's stream (igzip_lib.h, version 2); its working memory follows. */
    typedef struct {
        const uint8_t *next_in;
        uint32_t avail_in;
        uint32_t total_in;
        uint8_t *next_out;
        uint32_t avail_out;
        uint32_t total_out;
        void *hufftables;
        uint32_t level;
        uint32_t level_buf_size;
        uint8_t *level_buf;
        uint16_t end_of_stream;
        uint16_t flush;
        uint16_t gzip_flag;
        uint16_t hist_bits;
    } lc_istream;

    typedef struct {
        void (*init)(lc_istream *);
        void (*reset)(lc_istream *);
        int (*deflate)(lc_istream *);
    } lc_isal;

    #if defined(_WIN32) || defined(LC_LIKE_WINDOWS)
    static int lc_libz_find(lc_libz *z, const char *path) { (void)z; (void)path; return -1; }
    static int lc_isal_find(lc_isal *z, const char *path) { (void)z; (void)path; return -1; }
    static int lc_isal_trusted(const lc_isal *z) { (void)z; return 0; }
    static void lc_isal_trust(const lc_isal *z) { (void)z; }
    #else
    #include <dlfcn.h>
    #ifndef RTLD_NOLOAD
    #define RTLD_NOLOAD 0
    #endif
    static int lc_libz_find(lc_libz *z, const char *path) {
        void *so = dlopen(path, path ? RTLD_LAZY | RTLD_NOLOAD : RTLD_LAZY);
        if (!so) return -1;
        *(void **)&z->version = dlsym(so, "zlibVersion");
        *(void **)&z->deflate_init = dlsym(so, "deflateInit2_");
        *(void **)&z->deflate = dlsym(so, "deflate");
        *(void **)&z->deflate_reset = dlsym(so, "deflateReset");
        *(void **)&z->deflate_end = dlsym(so, "deflateEnd");
        *(void **)&z->inflate_init = dlsym(so, "inflateInit_");
        *(void **)&z->inflate = dlsym(so, "inflate");
        *(void **)&z->inflate_reset = dlsym(so, "inflateReset");
        *(void **)&z->inflate_end = dlsym(so, "inflateEnd");
        /* the handle stays open: the functions are used as long as the process lives */
        return z->version && z->deflate_init && z->deflate && z->deflate_reset && z->deflate_end
            && z->inflate_init && z->inflate && z->inflate_reset && z->inflate_end ? 0 : -1;
    }
    static int lc_isal_find(lc_isal *z, const char *path) {
        void *so = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!so) return -1;
        *(void **)&z->init = dlsym(so, "isal_deflate_init");
        *(void **)&z->reset = dlsym(so, "isal_deflate_reset");
        *(void **)&z->deflate = dlsym(so, "isal_deflate");
        return z->init && z->reset && z->deflate ? 0 : -1;
    }
    /* The library that has passed isal_sound, by one of its functions; both are of the whole process. */
    static void *lc_isal_tested = 0;
    static int lc_isal_trusted(const lc_isal *z) {
        return __atomic_load_n(&lc_isal_tested, __ATOMIC_RELAXED) == *(void *const *)&z->deflate;
    }
    static void lc_isal_trust(const lc_isal *z) {
        __atomic_store_n(&lc_isal_tested, *(void *const *)&z->deflate, __ATOMIC_RELAXED);
    }
    #endif
    """
    ctypedef struct lc_zstream:
        const uint8_t *next_in
        unsigned int avail_in
        unsigned long total_in
        uint8_t *next_out
        unsigned int avail_out
        unsigned long total_out
    ctypedef struct lc_libz:
        const char *(*version)() noexcept nogil
        int (*deflate_init)(lc_zstream *, int, int, int, int, int, const char *, int) noexcept nogil
        int (*deflate)(lc_zstream *, int) noexcept nogil
        int (*deflate_reset)(lc_zstream *) noexcept nogil
        int (*deflate_end)(lc_zstream *) noexcept nogil
        int (*inflate_init)(lc_zstream *, const char *, int) noexcept nogil
        int (*inflate)(lc_zstream *, int) noexcept nogil
        int (*inflate_reset)(lc_zstream *) noexcept nogil
        int (*inflate_end)(lc_zstream *) noexcept nogil
    ctypedef struct lc_istream:
        const uint8_t *next_in
        uint32_t avail_in
        uint32_t total_in
        uint8_t *next_out
        uint32_t avail_out
        uint32_t total_out
        void *hufftables
        uint32_t level
        uint32_t level_buf_size
        uint8_t *level_buf
        uint16_t end_of_stream
        uint16_t flush
        uint16_t gzip_flag
        uint16_t hist_bits
    ctypedef struct lc_isal:
        void (*init)(lc_istream *) noexcept nogil
        void (*reset)(lc_istream *) noexcept nogil
        int (*deflate)(lc_istream *) noexcept nogil
    int lc_libz_find(lc_libz *z, const char *path) noexcept nogil
    int lc_isal_find(lc_isal *z, const char *path) noexcept nogil
    bint lc_isal_trusted(const lc_isal *z) noexcept nogil
    void lc_isal_trust(const lc_isal *z) noexcept nogil


cdef enum:
    BY_NONE = 0
    BY_ISAL = 1
    BY_LIBZ = 2
    BY_PYTHON = 3

    Z_NO_FLUSH = 0
    Z_FINISH = 4
    Z_OK = 0
    Z_STREAM_END = 1
    Z_BUF_ERROR = -5
    Z_MEM_ERROR = -4

    ISAL_ZLIB = 3                    # its gzip_flag: header and trailer of RFC 1950
    ISAL_ROOM = 1 << 18              # its stream is 82 KiB; the bytes behind it must stay unchanged
    ISAL_TAIL = 1 << 16
    ISAL_LEVEL_ROOM = (4 + 2 * 8 + 4 * 64) << 10   # level 1, the size its authors recommend

    INFLATE_BAD = -1
    INFLATE_TOO_LARGE = -2
    INFLATE_MEMORY = -3


# A compressor whose state lives as long as its owner and is reset for each stream.
ctypedef struct lc_deflater:
    int by
    int level
    lc_libz libz
    lc_zstream *zstream
    lc_isal isal
    void *isal_room
    lc_istream *istream              # in isal_room, on a cache line
    uint8_t *level_room
    void *python                     # borrowed: the zlib module


ctypedef struct lc_inflater:
    int by
    bint whole                       # a stream without its end is INFLATE_BAD
    lc_libz libz
    lc_zstream *zstream
    void *python


# The path of an extension module for dlopen, or None: it is part of the program itself.
cdef inline object path_of(module):
    import os
    path = getattr(module, "__file__", None)
    return os.fsencode(path) if path else None


cdef inline bint libz_open(lc_libz *libz, module) except -1:
    cdef object path = path_of(module)
    return lc_libz_find(libz, <const char *> path if path is not None else NULL) == 0


cdef inline bint isal_open(lc_deflater *d) except -1:
    cdef bytes path
    if sizeof(void *) != 8:
        return False
    try:
        import isal
        from isal import igzip_lib
        if isal.ISAL_MAJOR_VERSION != 2:
            return False
        path = path_of(igzip_lib)
    except Exception:                # an optional speed-up that is missing or broken is not used
        return False
    if path is None or lc_isal_find(&d.isal, path) < 0:
        return False
    d.isal_room = malloc(ISAL_ROOM + 64)
    d.level_room = <uint8_t *> malloc(ISAL_LEVEL_ROOM)
    if d.isal_room == NULL or d.level_room == NULL:
        raise MemoryError()
    d.istream = <lc_istream *> ((<uintptr_t> d.isal_room + 63) & ~<uintptr_t> 63)
    if lc_isal_trusted(&d.isal):
        d.isal.init(d.istream)
        return True
    if not isal_sound(d):
        return False
    lc_isal_trust(&d.isal)
    return True


# Return whether the library's stream has the form of lc_istream, compresses, and stays in its memory. It
# takes 5 ms.
cdef inline bint isal_sound(lc_deflater *d) except -1:
    cdef lc_istream *s = d.istream
    cdef lc_wire out
    cdef const uint8_t *tail = <const uint8_t *> s + ISAL_ROOM - ISAL_TAIL
    cdef bytes sample
    cdef int i, _
    memset(s, 0xA5, ISAL_ROOM)
    d.isal.init(s)
    if (s.total_in or s.total_out or s.level or s.level_buf_size or s.level_buf != NULL or s.end_of_stream
            or s.flush or s.gzip_flag or s.hist_bits):
        return False
    import zlib
    sample = b"".join([b'{"n":%d,"square":"%x"}\n' % (i, i * i) for i in range(3000)])
    memset(&out, 0, sizeof(out))
    try:
        for _ in range(2):
            out.size = 0
            if isal_deflate(d, <const uint8_t *> sample, len(sample), &out) < 0:
                return False
            if zlib.decompress(<bytes> out.data[:out.size]) != sample:
                return False
    except zlib.error:
        return False
    finally:
        free(out.data)
    for i in range(ISAL_TAIL):
        if tail[i] != 0xA5:
            return False
    return True


# Open the fastest compressor for a level of zlib's, 0..9. ISA-L's level 1 stands for 1..3: it is
# several times faster than any of them and its output between those of 1 and 2.
cdef inline int deflater_open(lc_deflater *d, int level) except -1:
    memset(d, 0, sizeof(lc_deflater))
    import zlib
    d.level = level
    if 1 <= level <= 3 and isal_open(d):
        d.by = BY_ISAL
        d.level = 1
        return 0
    if libz_open(&d.libz, zlib):
        d.zstream = <lc_zstream *> calloc(1, sizeof(lc_zstream))
        if d.zstream == NULL:
            raise MemoryError()
        if d.libz.deflate_init(d.zstream, level, 8, 15, 8, 0, d.libz.version(), sizeof(lc_zstream)) == Z_OK:
            d.by = BY_LIBZ
            return 0
        free(d.zstream)
        d.zstream = NULL
    d.by = BY_PYTHON
    d.python = <void *> zlib         # sys.modules may lose it: the owner keeps a reference
    return 0


cdef inline void deflater_close(lc_deflater *d) noexcept:
    if d.zstream != NULL:
        d.libz.deflate_end(d.zstream)
        free(d.zstream)
    free(d.isal_room)
    free(d.level_room)
    memset(d, 0, sizeof(lc_deflater))


cdef inline int isal_deflate(lc_deflater *d, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    cdef lc_istream *s = d.istream
    cdef uint8_t *to
    cdef size_t room
    d.isal.reset(s)
    s.level = 1
    s.level_buf = d.level_room
    s.level_buf_size = ISAL_LEVEL_ROOM
    s.gzip_flag = ISAL_ZLIB
    s.flush = 0
    s.end_of_stream = 1
    s.next_in = data
    s.avail_in = <uint32_t> size
    room = size + (size >> 3) + 512
    while True:
        to = wire_reserve(out, room)
        if to == NULL:
            return -1
        s.next_out = to
        s.avail_out = <uint32_t> room
        if d.isal.deflate(s) != 0:
            return -1
        out.size += room - s.avail_out
        if s.avail_out:
            return 0 if s.avail_in == 0 else -1
        room = 65536


cdef inline int libz_deflate(lc_deflater *d, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    cdef lc_zstream *s = d.zstream
    cdef uint8_t *to
    cdef size_t room = size + (size >> 8) + 128
    cdef int done
    if d.libz.deflate_reset(s) != Z_OK:
        return -1
    s.next_in = data
    s.avail_in = <unsigned int> size
    while True:
        to = wire_reserve(out, room)
        if to == NULL:
            return -1
        s.next_out = to
        s.avail_out = <unsigned int> room
        done = d.libz.deflate(s, Z_FINISH)
        out.size += room - s.avail_out
        if done == Z_STREAM_END:
            return 0
        if done != Z_OK and done != Z_BUF_ERROR or s.avail_out:
            return -1
        room = 65536


cdef inline int python_deflate(lc_deflater *d, const uint8_t *data, size_t size,
                               lc_wire *out) noexcept with gil:
    cdef bytes small
    cdef uint8_t *to
    try:
        small = (<object> d.python).compress(<bytes> data[:size], d.level)
    except BaseException:            # out of memory, or an interrupt: either way no stream
        return -1
    to = wire_reserve(out, len(small))
    if to == NULL:
        return -1
    memcpy(to, <const uint8_t *> small, len(small))
    out.size += len(small)
    return 0


# Append data as one whole stream to out; -1 when memory is out (out.size is then anything).
cdef inline int deflate_window(lc_deflater *d, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    if d.by == BY_ISAL:
        return isal_deflate(d, data, size, out)
    if d.by == BY_LIBZ:
        return libz_deflate(d, data, size, out)
    return python_deflate(d, data, size, out)


cdef inline int inflater_open(lc_inflater *d) except -1:
    memset(d, 0, sizeof(lc_inflater))
    import zlib
    if libz_open(&d.libz, zlib):
        d.zstream = <lc_zstream *> calloc(1, sizeof(lc_zstream))
        if d.zstream == NULL:
            raise MemoryError()
        if d.libz.inflate_init(d.zstream, d.libz.version(), sizeof(lc_zstream)) == Z_OK:
            d.by = BY_LIBZ
            return 0
        free(d.zstream)
        d.zstream = NULL
    d.by = BY_PYTHON
    d.python = <void *> zlib
    return 0


cdef inline void inflater_close(lc_inflater *d) noexcept:
    if d.zstream != NULL:
        d.libz.inflate_end(d.zstream)
        free(d.zstream)
    memset(d, 0, sizeof(lc_inflater))


cdef inline int libz_inflate(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                             size_t limit) noexcept nogil:
    cdef lc_zstream *s = d.zstream
    cdef uint8_t *to
    cdef size_t room, left = limit
    cdef int done
    if d.libz.inflate_reset(s) != Z_OK:
        return INFLATE_MEMORY
    s.next_in = data
    s.avail_in = <unsigned int> size
    room = size * 4 + 4096
    while True:
        # one byte more than allowed, to tell the last allowed one from the next
        if room > left + 1:
            room = left + 1
        if room > 1 << 30:
            room = 1 << 30
        to = wire_reserve(out, room)
        if to == NULL:
            return INFLATE_MEMORY
        s.next_out = to
        s.avail_out = <unsigned int> room
        done = d.libz.inflate(s, Z_NO_FLUSH)
        room -= s.avail_out
        out.size += room
        if room > left:
            return INFLATE_TOO_LARGE
        left -= room
        if done == Z_STREAM_END:
            return 0
        if done == Z_MEM_ERROR:
            return INFLATE_MEMORY
        if done != Z_OK and done != Z_BUF_ERROR:
            return INFLATE_BAD
        if s.avail_out:
            return INFLATE_BAD if d.whole else 0     # the input is used up, the stream unfinished
        room = out.size * 2 + 4096


cdef inline int python_inflate(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                               size_t limit) noexcept with gil:
    cdef bytes large
    cdef uint8_t *to
    cdef object zlib = <object> d.python
    try:
        inflater = zlib.decompressobj()
        large = inflater.decompress(<bytes> data[:size], limit + 1)
    except zlib.error:
        return INFLATE_BAD
    except BaseException:
        return INFLATE_MEMORY
    if <size_t> len(large) > limit:
        return INFLATE_TOO_LARGE
    if d.whole and not inflater.eof:
        return INFLATE_BAD
    to = wire_reserve(out, len(large) + 1)       # it may be empty
    if to == NULL:
        return INFLATE_MEMORY
    memcpy(to, <const uint8_t *> large, len(large))
    out.size += len(large)
    return 0


# Append the content of a stream to out: at most limit bytes, else INFLATE_TOO_LARGE. Unless `whole`, a stream
# without its end is taken as far as it goes; bytes behind the end are ignored: Lumberjack's servers do so.
cdef inline int inflate_frame(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                              size_t limit) noexcept nogil:
    if d.by == BY_LIBZ:
        return libz_inflate(d, data, size, out, limit)
    return python_inflate(d, data, size, out, limit)


from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
