# Compressed messages (RFC 7692): raw deflate streams that end with an empty block, whose last four bytes are
# not sent.

cdef extern from "libraries.h":
    int lc_deflate_init_raw(lc_zstream *s, int bits) noexcept nogil
    int lc_inflate_init_raw(lc_zstream *s, int bits) noexcept nogil
    int lc_deflate_sync(lc_zstream *s) noexcept nogil

cdef enum:
    MOST = 1 << 30               # bytes that zlib gets at once: its counts have 32 bits
    TAIL = 4
    # Of the window, which suits every server: with less, what zlib accepts of one that exceeds its window
    # depends on how the bytes arrive.
    UNPACK_BITS = 15

cdef const uint8_t *TAIL_BYTES = <const uint8_t *> b"\x00\x00\xff\xff"


# Compress a message to `squeezed`; -1: memory is out.
cdef int pack(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    cdef uint8_t *to
    cdef size_t room = size + (size >> 8) + 64
    f.squeezed.size = 0
    if size == 0:                    # zlib writes nothing for nothing; an empty block stands for it
        return append_bytes(&f.squeezed, <const uint8_t *> b"\0", 1)
    if f.python != NULL:
        return python_pack(f, data, size)
    if size >= MOST or not f.keeps_sent and lc_deflate_reset(f.packer) != Z_OK:
        return -1
    trim(&f.squeezed, ROOM_KEPT)
    f.packer.next_in = data
    f.packer.avail_in = <unsigned int> size
    while True:
        to = wire_reserve(&f.squeezed, room)
        if to == NULL:
            return -1
        f.packer.next_out = to
        f.packer.avail_out = <unsigned int> room
        lc_deflate_sync(f.packer)                # "no progress" once everything is written
        f.squeezed.size += room - f.packer.avail_out
        if f.packer.avail_out:
            f.squeezed.size -= TAIL
            return 0


# Append the content of `size` bytes of a compressed message to `message`. Return 0 or an INFLATE_ number.
# A stream may end with a final block (section 7.2.3.4): another one follows then.
cdef int unpack(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    cdef lc_zstream *s = f.unpacker
    cdef int done = 0
    if f.python != NULL:
        return python_unpack(f, data, size)
    if size >= MOST:
        return INFLATE_MEMORY
    s.next_in = data
    s.avail_in = <unsigned int> size
    while done == 0 or done == INFLATE_END and s.avail_in:
        done = inflate_more(s, &f.message, f.max_message)
        if done < 0:
            return done
        if done == INFLATE_END and lc_inflate_reset(s) != Z_OK:
            return INFLATE_MEMORY
    return 0


# Begin a compressed message: with the context of those before, if that was agreed.
cdef int begin_unpack(lc_frames *f) noexcept nogil:
    if f.keeps_received:
        return 0
    if f.python != NULL:
        with gil:
            (<ClientFrames> f.python).python_unpacker = None
        return 0
    return 0 if lc_inflate_reset(f.unpacker) == Z_OK else INFLATE_MEMORY


cdef int python_pack(lc_frames *f, const uint8_t *data, size_t size) noexcept with gil:
    cdef ClientFrames self = <ClientFrames> f.python
    cdef bytes small
    try:
        zlib = self.zlib
        if self.python_packer is None or not f.keeps_sent:
            self.python_packer = zlib.compressobj(wbits=-self.window_sent, memLevel=5)
        small = self.python_packer.compress(<bytes> data[:size]) + self.python_packer.flush(zlib.Z_SYNC_FLUSH)
    except BaseException:            # out of memory, or an interrupt: either way no frame
        return -1
    trim(&f.squeezed, ROOM_KEPT)
    return append_bytes(&f.squeezed, small, <size_t> len(small) - TAIL)


cdef int python_unpack(lc_frames *f, const uint8_t *data, size_t size) noexcept with gil:
    cdef ClientFrames self = <ClientFrames> f.python
    cdef size_t rest = size
    cdef int done = INFLATE_END
    while done == INFLATE_END and rest:
        data += size - rest
        size = rest
        try:
            if self.python_unpacker is None:
                self.python_unpacker = self.zlib.decompressobj(wbits=-UNPACK_BITS)
        except BaseException:
            return INFLATE_MEMORY
        done = python_inflate_all(self.zlib, self.python_unpacker, data, size, &f.message, f.max_message,
                                  &rest)
        if done == INFLATE_END:
            self.python_unpacker = None
    return min(done, 0)
