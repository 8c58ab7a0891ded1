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
    if size >= MOST:
        return -1
    if not f.keeps_sent:
        lc_deflate_reset(f.packer)
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
    if size >= MOST:
        return INFLATE_MEMORY
    s.next_in = data
    s.avail_in = <unsigned int> size
    while done == 0 or done == INFLATE_END and s.avail_in:
        done = inflate_more(s, &f.message, f.max_message)
        if done < 0:
            return done
        if done == INFLATE_END:
            lc_inflate_reset(s)
    return 0
