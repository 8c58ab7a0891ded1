# Received frames (RFC 6455, section 5), read in one pass however they are cut.


# End the connection because of the peer: send a close frame. The words are those of `websockets`, so that
# logs of both read alike.
cdef int fail(lc_frames *f, int over, uint16_t code, const char *words, size_t size) noexcept nogil:
    f.over = over
    f.code = code
    f.reason_size = <uint32_t> size
    memcpy(f.reason, words, size)
    add_close(f, code, f.reason, size)       # without memory: then without it
    return -1


cdef inline int violated(lc_frames *f, const char *words) noexcept nogil:
    return fail(f, OVER_BROKEN, PROTOCOL_ERROR, words, strlen(words))


cdef int not_unpacked(lc_frames *f, int why) noexcept nogil:
    if why == INFLATE_TOO_LARGE:
        return fail(f, OVER_TOO_BIG, MESSAGE_TOO_BIG, b"", 0)
    if why == INFLATE_BAD:
        return violated(f, b"decompression failed")
    f.over = OVER_MEMORY
    return -1


# Take bytes of a head until it has so many; return whether it has.
cdef inline bint fill_head(lc_frames *f, const uint8_t **at, const uint8_t *end,
                           uint32_t size) noexcept nogil:
    while f.head_size < size and at[0] < end:
        f.head[f.head_size] = at[0][0]
        f.head_size += 1
        at[0] += 1
    return f.head_size >= size


# Check the first two bytes of a head; return the bytes of the whole, or -1.
cdef int head_length(lc_frames *f) noexcept nogil:
    cdef int opcode = f.head[0] & 15
    if opcode > BINARY and not CLOSE <= opcode <= PONG:
        return violated(f, b"invalid opcode")
    if f.head[1] & MASKED:
        return violated(f, b"incorrect masking")
    return 4 if f.head[1] == 126 else 10 if f.head[1] == 127 else 2


# Check a whole head, and begin its payload. Return 0 or -1.
cdef int begin_payload(lc_frames *f) noexcept nogil:
    cdef uint8_t first = f.head[0]
    cdef int opcode = first & 15
    cdef uint64_t length = f.head[1]
    cdef uint64_t room
    cdef bint packed
    cdef uint32_t i
    if length > 125:
        length = 0
        for i in range(2, f.head_size):
            length = length << 8 | f.head[i]
    if opcode >= CLOSE:
        if first & RESERVED:
            return violated(f, b"reserved bits must be 0")
        if length > CONTROL:
            return violated(f, b"control frame too long")
        if not first & FIN:
            return violated(f, b"fragmented control frame")
        f.control_size = 0
    else:
        room = f.max_message - f.message.size
        packed = f.packer != NULL and first & PACKED != 0
        if opcode == CONTINUATION:
            packed = f.unfinished and f.packed
        if packed:
            room += (room >> 8) + 64         # what cannot be compressed gets longer; unpacking checks again
        if length > room:
            return fail(f, OVER_TOO_BIG, MESSAGE_TOO_BIG, b"", 0)
        if opcode == CONTINUATION:
            if f.unfinished and f.packed and first & PACKED:
                return violated(f, b"RSV1 bit set in continuation frame")
            if first & RESERVED:
                return violated(f, b"reserved bits must be 0")
            if not f.unfinished:
                return violated(f, b"unexpected continuation frame")
        else:
            if first & (RESERVED & ~PACKED if f.packer != NULL else RESERVED):
                return violated(f, b"reserved bits must be 0")
            if f.unfinished:
                return violated(f, b"expected a continuation frame")
            f.packed = packed
            f.unfinished = True
            if f.packed and not f.keeps_received:
                lc_inflate_reset(f.unpacker)
    f.left = length
    f.in_payload = True
    return 0


# Check that the reason of the peer's close frame is text. Return 0 or -1.
cdef int check_reason(lc_frames *f) noexcept with gil:
    cdef bytes words
    try:
        (<bytes> f.control[2:f.control_size]).decode()
        return 0
    except UnicodeDecodeError as error:
        words = f"{error.reason} at position {error.start}".encode()
        return fail(f, OVER_BROKEN, INVALID_DATA, words, len(words))
    except BaseException:
        f.over = OVER_MEMORY
        return -1


# Take the peer's close frame (section 5.5.1). Always returns -1.
cdef int take_close(lc_frames *f) noexcept nogil:
    cdef uint16_t code = NO_STATUS
    if f.control_size == 1:
        return violated(f, b"close frame too short")
    if f.control_size:
        code = <uint16_t> (f.control[0] << 8 | f.control[1])
        if check_reason(f) < 0:
            return -1
        if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code < 5000):
            return violated(f, b"invalid status code")
    if f.unfinished:
        return violated(f, b"incomplete fragmented message")
    f.over = OVER_CLOSED
    f.code = code
    f.reason_size = f.control_size - 2 if f.control_size else 0
    memcpy(f.reason, f.control + 2, f.reason_size)
    add_close(f, code, f.reason, f.reason_size)
    return -1


# Take bytes of a control frame's payload, all of it: act on the frame. Return 0 or -1.
cdef int take_control(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    cdef int opcode = f.head[0] & 15
    memcpy(f.control + f.control_size, data, size)
    f.control_size += <uint32_t> size
    f.left -= size
    if f.left:
        return 0
    end_frame(f)
    if opcode == CLOSE:
        return take_close(f)
    if opcode == PING and not f.close_sent:
        memcpy(f.pong, f.control, f.control_size)
        f.pong_size = <int> f.control_size
    return 0


cdef inline void end_frame(lc_frames *f) noexcept nogil:
    f.in_payload = False
    f.head_size = 0


# Take bytes of a message's payload. Return 1 with the message if it is complete, 0 or -1.
cdef int take_payload(lc_frames *f, const uint8_t *data, size_t size, const uint8_t **message,
                      size_t *length) noexcept nogil:
    cdef bint last = f.head[0] & FIN != 0
    cdef int done
    f.left -= size
    if last and f.left == 0 and f.message.size == 0 and not f.packed:
        message[0] = data            # whole, and where it arrived
        length[0] = size
    else:
        if f.packed:
            done = unpack(f, data, size)
            if done == 0 and last and f.left == 0:
                done = unpack(f, TAIL_BYTES, TAIL)
            if done < 0:
                return not_unpacked(f, done)
        elif append_bytes(&f.message, data, size) < 0:
            f.over = OVER_MEMORY
            return -1
        if f.left:
            return 0
        if not last:
            end_frame(f)
            return 0
        message[0] = f.message.data
        length[0] = f.message.size
        f.delivered = True
    end_frame(f)
    f.unfinished = False
    if length[0] == 0:
        message[0] = <const uint8_t *> b" "      # no bytes would mean the end
        length[0] = 1
    return 1


# Take the bytes from `at` on, and move `at`. Return 1 with a message, valid until the next call; 0 when
# all bytes are taken; -1 when the connection is over.
cdef int frames_next(lc_frames *f, const uint8_t **at, const uint8_t *end, const uint8_t **message,
                     size_t *size) noexcept nogil:
    cdef size_t n
    cdef int done
    if f.delivered:
        f.delivered = False
        f.message.size = 0
        trim(&f.message, ROOM_KEPT)
    while f.over == OVER_NOT:
        if not f.in_payload:
            if not fill_head(f, at, end, 2):
                return 0
            done = head_length(f)
            if done < 0:
                return -1
            if not fill_head(f, at, end, <uint32_t> done):
                return 0
            if begin_payload(f) < 0:
                return -1
        n = <size_t> (end - at[0])
        if n > f.left:
            n = <size_t> f.left
        at[0] += n
        if f.head[0] & 15 >= CLOSE:
            done = take_control(f, at[0] - n, n)
        else:
            done = take_payload(f, at[0] - n, n, message, size)
        if done:
            return done
        if f.in_payload:
            return 0
    return -1
