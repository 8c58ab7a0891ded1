# The checking pass: whether the protocol can carry a body, and which places for the id it leaves.

# The user's own id: the first of "@metadata"._id, "event.id" and "event".id.
cdef inline lc_span *user_id(lc_object *o) noexcept nogil:
    if o.metadata_id.at != NULL:
        return &o.metadata_id
    if o.dotted_id.at != NULL:
        return &o.dotted_id
    return &o.event_id


# The other id that a reader finds when "@metadata" is gone, or NULL.
cdef inline const lc_span *second_id(const lc_object *o) noexcept nogil:
    cdef const lc_span *own = &o.dotted_id if o.dotted_id.at != NULL else &o.event_id
    if o.metadata_id.at == NULL or own.at == NULL:
        return NULL
    if own.size == o.metadata_id.size and memcmp(own.at, o.metadata_id.at, own.size) == 0:
        return NULL
    return own


# Walk the pair block of version 1: u32 count, then the pairs. Finds the last "event.id". Returns the size of
# the block; 0: it is not whole.
cdef size_t walk_pairs(const uint8_t *p, size_t left, lc_span *event_id) noexcept nogil:
    cdef size_t at = 4
    cdef uint64_t i
    cdef uint32_t length
    cdef bint named = False      # the text before was "event.id"
    event_id.at = NULL
    event_id.size = 0
    if left < 4:
        return 0
    for i in range(2 * <uint64_t> lc_get32(p)):      # keys and values in turn
        if left - at < 4:
            return 0
        length = lc_get32(p + at)
        at += 4
        if left - at < length:
            return 0
        if i & 1 and named:
            event_id.at = p + at
            event_id.size = length
        named = length == 8 and memcmp(p + at, b"event.id", 8) == 0
        at += length
    return at


# Find the last "event.id" of a block. 0, or -1: it does not end with the last pair.
cdef inline int scan_pairs(const uint8_t *p, size_t size, lc_span *event_id) noexcept nogil:
    return 0 if size and walk_pairs(p, size, event_id) == size else -1


# The fields that cannot carry our id in this raw body. A body with an id of its own is sent as it is. Beside
# an "event" that is not an object, "event.id" would be a conflict, unless the id fits nowhere else.
cdef inline uint8_t carriers_taken(lc_object *o) noexcept nogil:
    if user_id(o).at != NULL:
        return <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
    if o.has_metadata:
        return <uint8_t> K_ID1_TAKEN
    return <uint8_t> K_ID2_TAKEN if o.flat_event else 0


def check_json(body: ReadableBuffer, /) -> tuple[int, int, int, bytes | None] | None:
    """Check a body as the writer does.

    Returns:
        None when the body is not one JSON object in UTF-8, else (start, end, taken, user_id): the object is
        ``body[start:end]``; `taken` has ``K_ID1_TAKEN`` when ``@metadata`` cannot carry our id,
        ``K_ID2_TAKEN`` when ``event.id`` cannot; `user_id` is the body's own id, as its raw bytes, or None.
    """
    cdef BorrowedBuffer view = BorrowedBuffer(body)
    cdef lc_wire scratch
    cdef lc_object o
    cdef lc_span *own
    memset(&scratch, 0, sizeof(scratch))
    if wire_reserve(&scratch, view.b.len + SCAN_PAD) == NULL:
        raise MemoryError()
    try:
        memset(scratch.data + view.b.len, 0, SCAN_PAD)
        if copy_object(scratch.data, <const uint8_t *> view.b.buf, view.b.len, &o) < 0:
            return None
        own = user_id(&o)
        return (o.start - scratch.data, o.close + 1 - scratch.data, <int> carriers_taken(&o),
                None if own.at == NULL else <bytes> own.at[:own.size])
    finally:
        free(scratch.data)
