# Frames to send (RFC 6455, section 5).

# Return an unpredictable mask (section 10.3); NULL: the system has no generator.
cdef inline const uint8_t *next_key(lc_frames *f) noexcept nogil:
    if f.key == KEYS:
        if lc_random(f.keys, KEYS) < 0:
            return NULL
        f.key = 0
    f.key += 4
    return &f.keys[f.key - 4]


cdef inline void copy_masked(uint8_t *to, const uint8_t *data, size_t size,
                             const uint8_t *key) noexcept nogil:
    cdef uint64_t mask, word
    cdef size_t i = 0
    memcpy(&mask, key, 4)
    memcpy(<uint8_t *> &mask + 4, key, 4)
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        word ^= mask
        memcpy(to + i, &word, 8)
        i += 8
    while i < size:
        to[i] = data[i] ^ key[i & 3]
        i += 1


# Append a frame; -1: memory or randomness is out.
cdef int add_frame(lc_frames *f, uint8_t first, const uint8_t *data, size_t size) noexcept nogil:
    cdef const uint8_t *key = next_key(f)
    cdef size_t head = 2 if size < 126 else 4 if size < 65536 else 10
    cdef size_t i
    if key == NULL:
        return -1
    cdef uint8_t *to = wire_reserve(&f.out, head + 4 + size)
    if to == NULL:
        return -1
    to[0] = first
    to[1] = <uint8_t> (MASKED | (size if head == 2 else 126 if head == 4 else 127))
    for i in range(2, head):
        to[i] = <uint8_t> (<uint64_t> size >> 8 * (head - 1 - i))
    memcpy(to + head, key, 4)
    copy_masked(to + head + 4, data, size, key)
    f.out.size += head + 4 + size
    return 0


cdef int add_pong(lc_frames *f) noexcept nogil:
    cdef size_t size = <size_t> f.pong_size
    f.pong_size = -1
    return add_frame(f, FIN | PONG, f.pong, size)


# Append a close frame behind the answer to the last ping: nothing follows it (section 5.5.1).
cdef int add_close(lc_frames *f, uint16_t code, const uint8_t *reason, size_t size) noexcept nogil:
    cdef uint8_t data[CONTROL]
    if f.close_sent:
        return 0
    if f.pong_size >= 0 and add_pong(f) < 0:
        return -1
    f.close_sent = True
    if code == NO_STATUS:
        return add_frame(f, FIN | CLOSE, f.reason, 0)
    size = min(size, <size_t> CONTROL - 2)
    data[0] = <uint8_t> (code >> 8)
    data[1] = <uint8_t> code
    if size:
        memcpy(data + 2, reason, size)
    return add_frame(f, FIN | CLOSE, data, size + 2)


# Frame a text message, to be sent. After the end it is discarded. Return -1 when memory or randomness is out.
cdef int frames_add(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil:
    if f.close_sent or f.over != OVER_NOT:
        return 0
    if f.packer == NULL:
        return add_frame(f, FIN | TEXT, data, size)
    if pack(f, data, size) < 0:
        return -1
    return add_frame(f, FIN | PACKED | TEXT, f.squeezed.data, f.squeezed.size)


# Find the bytes to send, among them the answer to the last ping; return their number, or -1 as above.
cdef Py_ssize_t frames_output(lc_frames *f, const uint8_t **data) noexcept nogil:
    if f.sent == f.out.size and f.pong_size >= 0 and add_pong(f) < 0:
        return -1
    data[0] = f.out.data + f.sent
    return <Py_ssize_t> (f.out.size - f.sent)


cdef void frames_taken(lc_frames *f, size_t size) noexcept nogil:
    f.sent += size
    if f.sent == f.out.size:
        f.sent = f.out.size = 0
        trim(&f.out, ROOM_KEPT)
