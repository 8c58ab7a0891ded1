# zlib streams (RFC 1950).
#
# A build that is linked to zlib and ISA-L (libraries.h) calls them without the GIL. In other builds Python's
# packages stand in, one for one: isal for ISA-L, zlib for zlib. They are called with the GIL taken.

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from logclient._ext.codec cimport lc_wire, wire_reserve


cdef extern from "libraries.h":
    bint LC_HAS_ZLIB
    bint LC_HAS_ISAL

    int Z_OK, Z_STREAM_END, Z_BUF_ERROR, Z_MEM_ERROR
    ctypedef struct lc_zstream:
        const uint8_t *next_in
        unsigned int avail_in
        uint8_t *next_out
        unsigned int avail_out
    int lc_deflate_init(lc_zstream *s, int level) noexcept nogil
    int lc_deflate(lc_zstream *s) noexcept nogil
    int lc_deflate_reset(lc_zstream *s) noexcept nogil
    int lc_deflate_end(lc_zstream *s) noexcept nogil
    int lc_inflate_init(lc_zstream *s) noexcept nogil
    int lc_inflate(lc_zstream *s) noexcept nogil
    int lc_inflate_reset(lc_zstream *s) noexcept nogil
    int lc_inflate_end(lc_zstream *s) noexcept nogil

    int COMP_OK, IGZIP_ZLIB, NO_FLUSH, ISAL_DEF_LVL1_DEFAULT
    ctypedef struct lc_istream:
        uint8_t *next_in
        uint32_t avail_in
        uint8_t *next_out
        uint32_t avail_out
        uint32_t level
        uint32_t level_buf_size
        uint8_t *level_buf
        uint16_t end_of_stream
        uint16_t flush
        uint16_t gzip_flag
    void lc_isal_init(lc_istream *s) noexcept nogil
    void lc_isal_reset(lc_istream *s) noexcept nogil
    int lc_isal_deflate(lc_istream *s) noexcept nogil


cdef enum:
    PIECE = 1 << 16                  # of a stream that Python's zlib inflates
    INFLATE_BAD = -1
    INFLATE_TOO_LARGE = -2
    INFLATE_MEMORY = -3


# A compressor whose state lives as long as its owner and is reset for each stream.
ctypedef struct lc_deflater:
    int level
    bint isal                        # ISA-L compresses, else zlib
    void *python                     # borrowed: the package isal.isal_zlib or zlib; NULL: the linked library
    lc_zstream *zstream
    lc_istream *istream
    uint8_t *level_room


ctypedef struct lc_inflater:
    bint whole                       # a stream without its end is INFLATE_BAD
    void *python                     # borrowed: the package zlib; NULL: the linked library
    lc_zstream *zstream


# The isal package, or None.
cdef inline object isal_package():
    try:
        from isal import isal_zlib
        return isal_zlib
    except Exception:                # an optional speed-up that is missing or broken is not used
        return None


# Open the fastest compressor for a level of zlib's, 0..9. ISA-L's level 1 stands for 1..3: it is
# several times faster than any of them and its output between those of 1 and 2.
# The owner must keep the returned package, or None.
cdef inline object deflater_open(lc_deflater *d, int level):
    cdef int done
    memset(d, 0, sizeof(lc_deflater))
    d.level = level
    package = None
    if 1 <= level <= 3:
        if not LC_HAS_ISAL:
            package = isal_package()
        if LC_HAS_ISAL or package is not None:
            d.isal = True
            d.level = 1
    if LC_HAS_ISAL and d.isal:
        d.istream = <lc_istream *> calloc(1, sizeof(lc_istream))
        d.level_room = <uint8_t *> malloc(ISAL_DEF_LVL1_DEFAULT)
        if d.istream == NULL or d.level_room == NULL:
            raise MemoryError()
        lc_isal_init(d.istream)
    elif LC_HAS_ZLIB and package is None:
        d.zstream = zstream_new()
        done = lc_deflate_init(d.zstream, level)
        if done != Z_OK:
            free(d.zstream)
            d.zstream = NULL
            zstream_refused(done)
    else:
        if package is None:
            import zlib as package
        d.python = <void *> package
    return package


cdef inline lc_zstream *zstream_new() except NULL:
    cdef lc_zstream *s = <lc_zstream *> calloc(1, sizeof(lc_zstream))
    if s == NULL:
        raise MemoryError()
    return s


cdef inline int zstream_refused(int done) except -1:
    if done == Z_MEM_ERROR:
        raise MemoryError()
    raise RuntimeError(f"zlib here is not the one that logclient was built with: error {done}")


cdef inline void deflater_close(lc_deflater *d) noexcept:
    if d.zstream != NULL:
        lc_deflate_end(d.zstream)
        free(d.zstream)
    free(d.istream)
    free(d.level_room)
    memset(d, 0, sizeof(lc_deflater))


# The compressor, as `stats()` shows it: "isal 1", "zlib 3"; with "python " before it, it needs the GIL.
cdef inline str deflater_name(const lc_deflater *d):
    return f"{'' if d.python == NULL else 'python '}{'isal' if d.isal else 'zlib'} {d.level}"


cdef inline int isal_deflate_window(lc_deflater *d, const uint8_t *data, size_t size,
                                    lc_wire *out) noexcept nogil:
    cdef lc_istream *s = d.istream
    cdef uint8_t *to
    cdef size_t room
    lc_isal_reset(s)
    s.level = 1
    s.level_buf = d.level_room
    s.level_buf_size = ISAL_DEF_LVL1_DEFAULT
    s.gzip_flag = IGZIP_ZLIB
    s.flush = NO_FLUSH
    s.end_of_stream = 1
    s.next_in = <uint8_t *> data
    s.avail_in = <uint32_t> size
    room = size + (size >> 3) + 512
    while True:
        to = wire_reserve(out, room)
        if to == NULL:
            return -1
        s.next_out = to
        s.avail_out = <uint32_t> room
        if lc_isal_deflate(s) != COMP_OK:
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
    if lc_deflate_reset(s) != Z_OK:
        return -1
    s.next_in = data
    s.avail_in = <unsigned int> size
    while True:
        to = wire_reserve(out, room)
        if to == NULL:
            return -1
        s.next_out = to
        s.avail_out = <unsigned int> room
        done = lc_deflate(s)
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
    if d.python != NULL:
        return python_deflate(d, data, size, out)
    if LC_HAS_ISAL and d.isal:
        return isal_deflate_window(d, data, size, out)
    return libz_deflate(d, data, size, out)


# The owner must keep the returned package, or None.
cdef inline object inflater_open(lc_inflater *d):
    cdef int done
    memset(d, 0, sizeof(lc_inflater))
    if not LC_HAS_ZLIB:
        import zlib
        d.python = <void *> zlib     # sys.modules may lose it
        return zlib
    d.zstream = zstream_new()
    done = lc_inflate_init(d.zstream)
    if done != Z_OK:
        free(d.zstream)
        d.zstream = NULL
        zstream_refused(done)
    return None


cdef inline bint inflater_is_open(const lc_inflater *d) noexcept:
    return d.zstream != NULL or d.python != NULL


cdef inline void inflater_close(lc_inflater *d) noexcept:
    if d.zstream != NULL:
        lc_inflate_end(d.zstream)
        free(d.zstream)
    memset(d, 0, sizeof(lc_inflater))


cdef inline int libz_inflate(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                             size_t limit) noexcept nogil:
    cdef lc_zstream *s = d.zstream
    cdef uint8_t *to
    cdef size_t room, left = limit
    cdef int done
    if lc_inflate_reset(s) != Z_OK:
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
        done = lc_inflate(s)
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


# In pieces: Python's zlib would hold large output twice, beside `out`.
cdef inline int python_inflate(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                               size_t limit) noexcept with gil:
    cdef bytes piece = b""
    cdef uint8_t *to
    cdef size_t at = 0, end, left = limit, most = PIECE
    cdef object zlib = <object> d.python
    try:
        inflater = zlib.decompressobj()
        tail = b""
        while not inflater.eof and (at < size or tail or <size_t> len(piece) == most):
            if not tail and <size_t> len(piece) < most:
                end = min(size, at + PIECE)
                tail = <bytes> data[at:end]
                at = end
            most = min(left + 1, <size_t> PIECE)
            piece = inflater.decompress(tail, most)
            tail = inflater.unconsumed_tail
            if <size_t> len(piece) > left:
                return INFLATE_TOO_LARGE
            left -= len(piece)
            to = wire_reserve(out, len(piece) + 1)       # it may be empty
            if to == NULL:
                return INFLATE_MEMORY
            memcpy(to, <const uint8_t *> piece, len(piece))
            out.size += len(piece)
    except zlib.error:
        return INFLATE_BAD
    except BaseException:            # out of memory, or an interrupt
        return INFLATE_MEMORY
    return INFLATE_BAD if d.whole and not inflater.eof else 0


# Append the content of a stream to out: at most limit bytes, else INFLATE_TOO_LARGE. Unless `whole`, a stream
# without its end is taken as far as it goes; bytes behind the end are ignored: Lumberjack's servers do so.
cdef inline int inflate_frame(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                              size_t limit) noexcept nogil:
    if d.python != NULL:
        return python_inflate(d, data, size, out, limit)
    return libz_inflate(d, data, size, out, limit)


from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
