# zlib streams (RFC 1950).
#
# A build that is linked to zlib and ISA-L (libraries.h) calls them without the GIL. In other builds Python's
# packages stand in, one for one: isal for ISA-L, zlib for zlib. They are called with the GIL taken.

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from logclient._ext.codec cimport append_bytes, lc_wire, wire_reserve


cdef extern from "libraries.h":
    bint LC_HAS_ZLIB
    bint LC_HAS_ISAL

    int Z_OK, Z_STREAM_END, Z_BUF_ERROR, Z_MEM_ERROR
    ctypedef struct lc_zstream:
        const uint8_t *next_in
        unsigned int avail_in
        uint8_t *next_out
        unsigned int avail_out
    int lc_deflate_init "deflateInit"(lc_zstream *s, int level) noexcept nogil
    int lc_deflate(lc_zstream *s) noexcept nogil
    void lc_deflate_reset "deflateReset"(lc_zstream *s) noexcept nogil   # of an open stream: it cannot fail
    int lc_deflate_end "deflateEnd"(lc_zstream *s) noexcept nogil
    int lc_inflate_init "inflateInit"(lc_zstream *s) noexcept nogil
    int lc_inflate(lc_zstream *s) noexcept nogil
    void lc_inflate_reset "inflateReset"(lc_zstream *s) noexcept nogil   # likewise
    int lc_inflate_end "inflateEnd"(lc_zstream *s) noexcept nogil

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
    void lc_isal_init "isal_deflate_init"(lc_istream *s) noexcept nogil
    void lc_isal_reset "isal_deflate_reset"(lc_istream *s) noexcept nogil
    int lc_isal_deflate "isal_deflate"(lc_istream *s) noexcept nogil


cdef enum:
    PYTHON_PIECE = 1 << 20           # bytes that Python's zlib gets and gives at once
    INFLATE_ALL = 1                  # the input is used up
    INFLATE_END = 2                  # the stream is over
    INFLATE_BAD = -1
    INFLATE_TOO_LARGE = -2
    INFLATE_MEMORY = -3


# A compressor whose state lives as long as its owner and is reset for each stream.
ctypedef struct lc_deflater:
    int level
    bint isal                        # ISA-L compresses, else zlib
    void *python                     # borrowed: isal's or zlib's `compress`; NULL: the linked library
    lc_zstream *zstream
    lc_istream *istream
    uint8_t *level_room


ctypedef struct lc_inflater:
    bint whole                       # a stream without its end is INFLATE_BAD
    void *python                     # borrowed: the package zlib; NULL: the linked library
    lc_zstream *zstream


cdef inline void deflater_close(lc_deflater *d) noexcept:
    if d.zstream != NULL:
        lc_deflate_end(d.zstream)
        free(d.zstream)
    free(d.istream)
    free(d.level_room)
    memset(d, 0, sizeof(lc_deflater))


# Open the fastest compressor for a level of zlib's, 0..9. ISA-L's level 1 stands for 1..3: it is
# several times faster than any of them and its output between those of 1 and 2.
# The owner must keep the returned function, or None.
cdef inline object deflater_open(lc_deflater *d, int level):
    cdef int done
    memset(d, 0, sizeof(lc_deflater))
    d.level = level
    package = None
    if 1 <= level <= 3:
        if not LC_HAS_ISAL:
            try:
                from isal import isal_zlib as package
            except Exception:        # an optional speed-up that is missing or broken is not used
                pass
        d.isal = LC_HAS_ISAL or package is not None
    if d.isal:
        d.level = 1
    if LC_HAS_ISAL and d.isal:
        d.istream = <lc_istream *> calloc(1, sizeof(lc_istream))
        d.level_room = <uint8_t *> malloc(ISAL_DEF_LVL1_DEFAULT)
        if d.istream == NULL or d.level_room == NULL:
            deflater_close(d)
            raise MemoryError()
        lc_isal_init(d.istream)
    elif LC_HAS_ZLIB and package is None:
        d.zstream = zstream_new()
        done = lc_deflate_init(d.zstream, level)
        if done != Z_OK:
            zstream_refused(done)
    else:
        if package is None:
            import zlib as package
        from functools import partial
        compress = partial(package.compress, level=d.level)
        d.python = <void *> compress
        return compress
    return None


cdef inline lc_zstream *zstream_new() except NULL:
    cdef lc_zstream *s = <lc_zstream *> calloc(1, sizeof(lc_zstream))
    if s == NULL:
        raise MemoryError()
    return s


cdef inline int zstream_refused(int done) except -1:
    if done == Z_MEM_ERROR:
        raise MemoryError()
    raise RuntimeError(f"zlib here is not the one that logclient was built with: error {done}")


# The compressor, as `stats()` shows it: "isal 1", "zlib 3"; with "python " before it, it needs the GIL.
cdef inline str deflater_name(const lc_deflater *d):
    return f"{'' if d.python == NULL else 'python '}{'isal' if d.isal else 'zlib'} {d.level}"


cdef inline int isal_deflate_window(lc_deflater *d, const uint8_t *data, size_t size,
                                    lc_wire *out) noexcept nogil:
    cdef lc_istream *s = d.istream
    cdef uint8_t *to
    lc_isal_reset(s)
    s.level = 1
    s.level_buf = d.level_room
    s.level_buf_size = ISAL_DEF_LVL1_DEFAULT
    s.gzip_flag = IGZIP_ZLIB
    s.flush = NO_FLUSH
    s.end_of_stream = 1
    s.next_in = <uint8_t *> data
    s.avail_in = <uint32_t> size
    cdef size_t room = size + (size >> 3) + 512
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
    lc_deflate_reset(s)
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


# Append what a function of Python makes of these bytes.
cdef inline int python_pack(void *compress, const uint8_t *data, size_t size, lc_wire *out) noexcept with gil:
    cdef bytes small
    try:
        small = (<object> compress)(<bytes> data[:size])
    except BaseException:            # out of memory, or an interrupt: either way no stream
        return -1
    return append_bytes(out, small, len(small))


# Append data as one whole stream to out; -1 when memory is out (out.size is then anything).
cdef inline int deflate_window(lc_deflater *d, const uint8_t *data, size_t size, lc_wire *out) noexcept nogil:
    if d.python != NULL:
        return python_pack(d.python, data, size, out)
    if LC_HAS_ISAL and d.isal:
        return isal_deflate_window(d, data, size, out)
    return libz_deflate(d, data, size, out)


# The owner must keep the returned package, or None.
cdef inline object inflater_open(lc_inflater *d):
    memset(d, 0, sizeof(lc_inflater))
    if not LC_HAS_ZLIB:
        import zlib
        d.python = <void *> zlib     # sys.modules may lose it
        return zlib
    d.zstream = zstream_new()
    cdef int done = lc_inflate_init(d.zstream)
    if done != Z_OK:
        zstream_refused(done)
    return None


cdef inline void inflater_close(lc_inflater *d) noexcept:
    if d.zstream != NULL:
        lc_inflate_end(d.zstream)
        free(d.zstream)
    memset(d, 0, sizeof(lc_inflater))


# Inflate more of the input, into at most `most` bytes of out. 0: there may be more; else an INFLATE_ number.
cdef inline int inflate_more(lc_zstream *s, lc_wire *out, size_t most) noexcept nogil:
    cdef size_t room = max(4 * <size_t> s.avail_in + 4096, out.size)
    # one byte more than allowed, to tell the last allowed one from the next
    room = min(min(room, most - out.size), (<size_t> 1 << 30) - 1) + 1
    cdef uint8_t *to = wire_reserve(out, room)
    if to == NULL:
        return INFLATE_MEMORY
    s.next_out = to
    s.avail_out = <unsigned int> room
    cdef int done = lc_inflate(s)
    out.size += room - s.avail_out
    if done == Z_MEM_ERROR:
        return INFLATE_MEMORY
    if done != Z_OK and done != Z_STREAM_END and done != Z_BUF_ERROR:
        return INFLATE_BAD           # before the size, as Python's object does
    if out.size > most:
        return INFLATE_TOO_LARGE
    if done == Z_STREAM_END:
        return INFLATE_END
    return INFLATE_ALL if s.avail_out else 0


# The same, of all input, by Python's zlib.
cdef inline int python_inflate(void *zlib, const uint8_t *data, size_t size, lc_wire *out,
                               size_t most) noexcept with gil:
    cdef bytes piece, rest
    cdef size_t room
    try:
        inflater = (<object> zlib).decompressobj()
        rest = b""
        while True:
            if not rest:                 # in pieces: what is not used yet is copied each time
                rest = <bytes> data[:min(size, <size_t> PYTHON_PIECE)]
                data += len(rest)
                size -= <size_t> len(rest)
            room = min(most - out.size, <size_t> PYTHON_PIECE - 1) + 1
            piece = inflater.decompress(rest, room)
            if append_bytes(out, piece, len(piece)) < 0:
                return INFLATE_MEMORY
            if out.size > most:
                return INFLATE_TOO_LARGE
            if inflater.eof:
                return INFLATE_END
            rest = inflater.unconsumed_tail
            if not rest and not size and <size_t> len(piece) < room:
                return INFLATE_ALL
    except (<object> zlib).error:
        return INFLATE_BAD
    except BaseException:            # out of memory, or an interrupt
        return INFLATE_MEMORY


# Append the content of a stream to out: at most limit bytes, else INFLATE_TOO_LARGE. Unless `whole`, a stream
# without its end is taken as far as it goes; bytes behind the end are ignored: Lumberjack's servers do so.
cdef inline int inflate_frame(lc_inflater *d, const uint8_t *data, size_t size, lc_wire *out,
                              size_t limit) noexcept nogil:
    cdef lc_zstream *s = d.zstream
    cdef size_t most = out.size + min(limit, <size_t> -1 - out.size)
    cdef int done = 0
    if d.python != NULL:
        done = python_inflate(d.python, data, size, out, most)
    else:
        lc_inflate_reset(s)
        s.next_in = data
        s.avail_in = <unsigned int> size
        while done == 0:
            done = inflate_more(s, out, most)
    if done < 0:
        return done
    return INFLATE_BAD if d.whole and done == INFLATE_ALL else 0
