# The checking pass: which bodies does the protocol carry, and which places of the id do they use?

# Version 1's pair block: u32 count, then the pairs, to the last byte. Finds the last "event.id".
# 0, or -1 when the lengths do not add up.
cdef int scan_pairs(const uint8_t *p, size_t size, lc_span *event_id) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef const uint8_t *k
    cdef uint32_t count, length, key
    event_id.at = NULL
    event_id.size = 0
    if size < 4:
        return -1
    count = lc_get32(p)
    p += 4
    while count:
        if end - p < 4:
            return -1
        key = lc_get32(p)
        p += 4
        if <size_t> (end - p) < key:
            return -1
        k = p
        p += key
        if end - p < 4:
            return -1
        length = lc_get32(p)
        p += 4
        if <size_t> (end - p) < length:
            return -1
        if key == 8 and memcmp(k, b"event.id", 8) == 0:
            event_id.at = p
            event_id.size = length
        p += length
        count -= 1
    return 0 if p == end else -1


# The carriers that a raw body leaves no room for. One with an id of its own is carried as it is; beside an
# "event" that is no object "event.id" would be one too many, unless there is nowhere else for the id.
cdef inline uint8_t carriers_taken(lc_object *o) noexcept nogil:
    if user_id(o).at != NULL:
        return <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
    if o.has_metadata:
        return <uint8_t> K_ID1_TAKEN
    return <uint8_t> K_ID2_TAKEN if o.flat_event else 0


def check_json(body, /):
    """What the checking pass finds in a body; see the stub."""
    cdef Py_buffer view
    cdef lc_wire scratch
    cdef lc_object o
    cdef lc_span *own
    cdef const uint8_t *base
    cdef int bad
    memset(&scratch, 0, sizeof(scratch))
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    with nogil:
        bad = -1
        if wire_reserve(&scratch, view.len + SCAN_PAD) != NULL:
            memset(scratch.data + view.len, 0, SCAN_PAD)
            bad = copy_object(scratch.data, <const uint8_t *> view.buf, view.len, &o)
    PyBuffer_Release(&view)
    try:
        if scratch.data == NULL:
            raise MemoryError()
        if bad:
            return None
        base = scratch.data
        own = user_id(&o)
        return (o.start - base, o.close + 1 - base, <int> carriers_taken(&o),
                None if own.at == NULL else <bytes> own.at[:own.size])
    finally:
        free(scratch.data)


def check_pairs(body, /):
    """The same for version 1's pair block; see the stub."""
    cdef Py_buffer view
    cdef lc_span own
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if scan_pairs(<const uint8_t *> view.buf, view.len, &own) < 0:
            return None
        if own.at == NULL:
            return 0, None
        return <int> K_ID2_TAKEN, <bytes> own.at[:own.size]
    finally:
        PyBuffer_Release(&view)
