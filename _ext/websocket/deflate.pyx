# Compressed messages (RFC 7692): raw deflate streams that end with an empty block, whose last four bytes are
# not sent.

cdef extern from "libraries.h":
    int lc_deflate_init_raw(lc_zstream *s, int bits) noexcept nogil
    int lc_inflate_init_raw(lc_zstream *s, int bits) noexcept nogil
    int lc_deflate_sync(lc_zstream *s) noexcept nogil

cdef enum:
    PIECE = 1 << 24              # bytes that zlib gets at once: its counts have 32 bits
    TAIL = 4
    UNPACK_BITS = 15             # of the window

cdef enum:
    UNPACK_MEMORY = -1
    UNPACK_BAD = -2
    UNPACK_TOO_BIG = -3

cdef const uint8_t *TAIL_BYTES = <const uint8_t *> b"\x00\x00\xff\xff"


# Compress a message to `squeezed`; -1: memory is out.
cdef int pack(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    cdef uint8_t *to
    cdef size_t room, some
    f.squeezed.size = 0
    if size == 0:                    # zlib writes nothing for nothing; an empty block stands for it
        to = wire_reserve(&f.squeezed, 1)
        if to == NULL:
            return -1
        to[0] = 0
        f.squeezed.size = 1
        return 0
    if f.python != NULL:
        return python_pack(f, data, size)
    if not f.keeps_sent and lc_deflate_reset(f.packer) != Z_OK:
        return -1
    trim(&f.squeezed, ROOM_KEPT)
    while True:
        some = min(size, <size_t> PIECE)
        f.packer.next_in = data
        f.packer.avail_in = <unsigned int> some
        room = some + (some >> 8) + 64
        while True:
            to = wire_reserve(&f.squeezed, room)
            if to == NULL:
                return -1
            f.packer.next_out = to
            f.packer.avail_out = <unsigned int> room
            lc_deflate_sync(f.packer)            # "no progress" once everything is written
            f.squeezed.size += room - f.packer.avail_out
            if f.packer.avail_out:
                break
        data += some
        size -= some
        if size == 0:
            f.squeezed.size -= TAIL
            return 0


# Append the content of `size` bytes of a compressed message to `message`. Return 0 or an UNPACK_ number.
# A stream may end with a final block (section 7.2.3.4): another one follows then.
cdef int unpack(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    cdef lc_zstream *s = f.unpacker
    cdef uint8_t *to
    cdef size_t room, some
    cdef int done
    if f.python != NULL:
        return python_unpack(f, data, size)
    while size:
        some = min(size, <size_t> PIECE)
        s.next_in = data
        s.avail_in = <unsigned int> some
        data += some
        size -= some
        while True:
            # One byte more than allowed, to tell the last allowed one from the next.
            room = min(<size_t> (f.max_message - f.message.size) + 1, max(4 * some, f.message.size) + 256)
            room = min(room, <size_t> PIECE)
            to = wire_reserve(&f.message, room)
            if to == NULL:
                return UNPACK_MEMORY
            s.next_out = to
            s.avail_out = <unsigned int> room
            done = lc_inflate(s)
            f.message.size += room - s.avail_out
            if f.message.size > f.max_message:
                return UNPACK_TOO_BIG
            if done == Z_MEM_ERROR:
                return UNPACK_MEMORY
            if done == Z_STREAM_END:
                if lc_inflate_reset(s) != Z_OK:
                    return UNPACK_MEMORY
                if s.avail_in == 0:
                    break
            elif done != Z_OK and done != Z_BUF_ERROR:
                return UNPACK_BAD
            elif s.avail_out:
                break                # the input is used up
    return 0


# Begin a compressed message: with the context of those before, if that was agreed.
cdef int begin_unpack(lc_frames *f) noexcept nogil:
    if f.keeps_received:
        return 0
    if f.python != NULL:
        return python_forget(f)
    return 0 if lc_inflate_reset(f.unpacker) == Z_OK else UNPACK_MEMORY


cdef int python_forget(lc_frames *f) noexcept with gil:
    (<ClientFrames> f.python).python_unpacker = None
    return 0


cdef int python_pack(lc_frames *f, const uint8_t *data, size_t size) noexcept with gil:
    cdef ClientFrames self = <ClientFrames> f.python
    cdef bytes small
    cdef uint8_t *to
    try:
        zlib = self.zlib
        if self.python_packer is None or not f.keeps_sent:
            self.python_packer = zlib.compressobj(wbits=-self.window_sent, memLevel=5)
        small = self.python_packer.compress(<bytes> data[:size]) + self.python_packer.flush(zlib.Z_SYNC_FLUSH)
    except BaseException:            # out of memory, or an interrupt: either way no frame
        return -1
    trim(&f.squeezed, ROOM_KEPT)
    to = wire_reserve(&f.squeezed, len(small))
    if to == NULL:
        return -1
    memcpy(to, <const uint8_t *> small, len(small))
    f.squeezed.size = <size_t> len(small) - TAIL
    return 0


cdef int python_unpack(lc_frames *f, const uint8_t *data, size_t size) noexcept with gil:
    cdef ClientFrames self = <ClientFrames> f.python
    cdef bytes piece
    cdef uint8_t *to
    cdef size_t room
    zlib = self.zlib
    try:
        tail = <bytes> data[:size]
        while True:
            if self.python_unpacker is None:
                self.python_unpacker = zlib.decompressobj(wbits=-UNPACK_BITS)
            room = min(<size_t> (f.max_message - f.message.size) + 1, <size_t> 1 << 16)
            piece = self.python_unpacker.decompress(tail, room)
            to = wire_reserve(&f.message, <size_t> len(piece) + 1)     # it may be empty
            if to == NULL:
                return UNPACK_MEMORY
            memcpy(to, <const uint8_t *> piece, len(piece))
            f.message.size += <size_t> len(piece)
            if f.message.size > f.max_message:
                return UNPACK_TOO_BIG
            if self.python_unpacker.eof:
                tail = self.python_unpacker.unused_data
                self.python_unpacker = None
                if not tail:
                    return 0
            else:
                tail = self.python_unpacker.unconsumed_tail
                if not tail and <size_t> len(piece) < room:
                    return 0
    except zlib.error:
        return UNPACK_BAD
    except BaseException:            # out of memory, or an interrupt
        return UNPACK_MEMORY
