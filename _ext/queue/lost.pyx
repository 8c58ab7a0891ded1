# Copies of lost events, for a fallback and for functions of the application. Included by queue.pyx.

cdef enum:
    BARE = 4096               # ranges of events without a copy


cdef lc_lost *_new_lost(size_t room) except NULL:
    cdef lc_lost *lost = <lc_lost *> calloc(1, sizeof(lc_lost))
    if lost != NULL:
        lost.data = <uint8_t *> malloc(room)
    if lost == NULL or lost.data == NULL:
        free(lost)
        raise MemoryError
    lc_mutex_init(&lost.mutex)
    lost.room = room
    return lost


cdef void _free_lost(lc_lost *lost) noexcept nogil:
    if lost != NULL:
        free(lost.data)
        free(lost.bare.items)
        free(lost)


cdef void lc_lose(lc_queue *h, uint64_t seq, const uint8_t *body, uint32_t size, uint8_t kind, uint8_t status,
                  uint8_t reason) noexcept nogil:
    # Keep a copy of an event that is lost, if somebody wants it; a tombstone has no body.
    cdef lc_lost *lost = h.lost
    cdef lc_event *e
    if lost == NULL:
        return
    if kind & K_MASK == K_TOMB:
        size = 0
    lc_mutex_lock(&lost.mutex)
    if event_room(size) <= lost.room - lost.used:
        e = <lc_event *> (lost.data + lost.used)
        e.seq = seq
        e.size = size
        e.kind = kind
        e.pad = <uint16_t> (reason << 8 | status)
        memcpy(e + 1, body, size)
        lost.used += event_room(size)
    elif lost.bare.n >= BARE or outcome_add(&lost.bare, seq, seq, status, reason) < 0:
        lost.omitted += 1
    lc_mutex_unlock(&lost.mutex)


cdef size_t lc_lost_room(lc_queue *h) noexcept nogil:
    # Return how many bytes of lost events can be copied now.
    cdef size_t room = SIZE_MAX
    if h.lost != NULL:
        lc_mutex_lock(&h.lost.mutex)
        room = h.lost.room - h.lost.used
        lc_mutex_unlock(&h.lost.mutex)
    return room


cdef list _read_lost(const uint8_t *data, size_t size):
    cdef const lc_event *e
    cdef size_t at = 0
    cdef list found = []
    while at < size:
        e = <const lc_event *> (data + at)
        body = PyBytes_FromStringAndSize(<const char *> (e + 1), e.size)
        found.append((e.seq, STATUSES[e.pad & 0xFF], REASONS[e.pad >> 8], e.kind, body))
        at += event_room(e.size)
    return found
