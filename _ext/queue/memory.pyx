# Chunks: blocks of memory that hold events, and their reuse. Included by queue.pyx.
#
# Empty chunks are kept for reuse. Pages fresh from the system are zeroed one by one, which makes a push of
# 300 bytes three times and one of 64 KiB eight times as expensive. Together with the events that are queued
# and held, free chunks take no more than max_bytes, or KEPT_FREE. With a bound of all queues they take no
# more than KEPT_FREE. Chunks that were not needed for `free_after` seconds go back to the system, except for
# KEPT_FREE.

cdef enum:
    CHUNK = SLOT - CHUNK_HEAD    # bytes of events in a chunk of 64 KiB
    KEPT_FREE = 1 << 22       # bytes of free chunks that are never freed
    BODIES = SLOTS * SLOT - CHUNK_HEAD    # bytes of events that a segment has room for, in one chunk
    AHEAD = 8 << 20           # bytes before memory is full at which a spool prepares its files, and beyond


cdef inline uint32_t _class_of(uint64_t room, uint64_t *size) noexcept nogil:
    # Return the size class of a chunk with so much room; size[0] is the size of a chunk of the class.
    # SIZE_CLASSES means that the chunk is not reused.
    cdef uint64_t last = room + CHUNK_HEAD - 1
    cdef uint32_t step = 12
    if last < 65536:
        size[0] = 65536
        return 0
    if last >= 65536 << (SIZE_CLASSES - 1) // 16:
        size[0] = last + 1
        return SIZE_CLASSES
    while last >> step >= 32:
        step += 1
    size[0] = (last >> step) + 1 << step
    return 1 + 16 * (step - 12) + <uint32_t> (last >> step) - 16


cdef inline uint64_t _size_of(const lc_chunk *c) noexcept nogil:
    # Return the bytes of the chunk's class, however much of it the chunk uses.
    cdef uint64_t size
    _class_of(c.capacity, &size)
    return size


cdef lc_chunk *_pop_free(lc_queue *h, uint32_t size_class) noexcept nogil:
    cdef lc_chunk *c = h.free[size_class]
    if c != NULL:
        h.free[size_class] = c.next
        h.free_bytes -= _size_of(c)
        h.free_least = min(h.free_least, h.free_bytes)
    return c


cdef void _shrink_free(lc_queue *h, uint64_t size) noexcept nogil:
    # Give up so many bytes of free chunks, the largest chunks first.
    cdef lc_chunk *c
    cdef uint32_t k = SIZE_CLASSES
    cdef uint64_t until = h.free_bytes - size if size < h.free_bytes else 0
    while k and h.free_bytes > until:
        c = _pop_free(h, k - 1)
        if c == NULL:
            k -= 1
        else:
            c.next = h.surplus
            h.surplus = c


cdef inline uint64_t _memory_used(lc_queue *h) noexcept nogil:
    # Return the bytes of events in memory; with a spool those of their chunks.
    return h.queued_bytes + h.held_bytes if h.spool == NULL else h.spool.chunk_bytes


cdef inline uint64_t _memory_bound(lc_queue *h) noexcept nogil:
    return h.max_bytes if h.spool == NULL else h.spool.memory_bytes


# The bound of all queues. Each queue claims bytes before it uses them, so that the sum never exceeds the
# limit, and corrects its claim before it releases its mutex.

cdef inline bint _claim(lc_queue *h, uint64_t more, uint64_t slack) noexcept nogil:
    # Claim what this queue uses and `more` bytes; return False if all queues together have no room for it.
    # Mutex held.
    cdef uint64_t after = _memory_used(h) + more
    if h.shared == NULL:
        return True
    if not lc_shared_claim(h.shared, h.claimed, after, slack):
        return False
    h.claimed = after
    return True


cdef inline bint _claim_chunk(lc_queue *h, uint64_t room, uint64_t slack) noexcept nogil:
    # The same for a chunk in memory, of a queue with a spool.
    cdef uint64_t size
    _class_of(room, &size)
    return _claim(h, size, slack)


cdef inline bint _is_nearly_full(lc_queue *h, uint64_t room) noexcept nogil:
    # Return whether memory will be full soon, for a queue with a spool.
    cdef lc_spool *s = h.spool
    return s.chunk_bytes + room + AHEAD > s.memory_bytes or (
        h.shared != NULL and lc_shared_get(&h.shared.used) + room + AHEAD > lc_shared_get(&h.shared.limit))


cdef lc_chunk *_new_chunk(lc_queue *h, uint64_t room, bint kept) noexcept nogil:
    # Return a free chunk or a fresh one, in the spool where it goes first; NULL when there is no memory and
    # no slot for it. Call with the mutex held.
    cdef lc_chunk *c
    cdef lc_spool *s = h.spool
    if s == NULL:
        return _chunk_in_memory(h, room, kept)
    if s.always:
        c = _take_slots(h, room, kept)
        if c != NULL or not _is_incomplete(s):
            return c
        # A caller that may wait gets memory: its event is within max_bytes.
        if s.chunk_bytes + room > s.memory_bytes and h.options.policy != BLOCK and h.options.policy != RAISE:
            return NULL
        return _chunk_in_memory(h, room, kept) if _claim_chunk(h, room, 0) else NULL
    if s.free_touched < s.ready and _is_nearly_full(h, room):
        _ask(s)
    if s.chunk_bytes + room <= s.memory_bytes and _claim_chunk(h, room, 0):
        return _chunk_in_memory(h, room, kept)
    c = _take_slots(h, room, kept)
    if c != NULL:
        return c
    if _is_segment_coming(s) and room <= BODIES:
        if s.chunk_bytes + room <= s.memory_bytes + AHEAD and _claim_chunk(h, room, AHEAD):
            return _chunk_in_memory(h, room, kept)
    elif (h.options.policy == BLOCK or h.options.policy == RAISE) and _claim_chunk(h, room, 0):
        return _chunk_in_memory(h, room, kept)    # its event is within max_bytes
    return NULL


cdef inline bint _is_incomplete(lc_spool *s) noexcept nogil:
    # Return whether the disk did not take all segments, or the spool has ended.
    return s.limit < s.most or s.closed


cdef inline bint _is_segment_coming(lc_spool *s) noexcept nogil:
    return s.mapped < s.limit and not s.closed


cdef lc_chunk *_chunk_in_memory(lc_queue *h, uint64_t room, bint kept) noexcept nogil:
    # Return a free chunk of the heap or a fresh one; NULL when memory is out. Call with the mutex held.
    cdef lc_chunk *c = NULL
    cdef uint64_t size, all_
    cdef uint32_t size_class = _class_of(room, &size)
    if size_class < SIZE_CLASSES:
        c = _pop_free(h, size_class)
    if c == NULL:
        all_ = _memory_used(h) + h.free_bytes + size
        if all_ > _memory_bound(h) and h.free_bytes > KEPT_FREE:
            _shrink_free(h, min(all_ - _memory_bound(h), h.free_bytes - KEPT_FREE))
        c = <lc_chunk *> lc_pages(size)
        if c == NULL:
            return NULL
        c.size_class = <uint8_t> size_class
    # The rest of a larger class stays unused: it would count as waste.
    c.capacity = <uint32_t> (CHUNK if size_class == 0 else room)
    c.slot = 0
    _begin_chunk(c, kept)
    if h.spool != NULL:
        h.spool.chunk_bytes += _size_of(c)
    return c


cdef inline void _begin_chunk(lc_chunk *c, bint kept) noexcept nogil:
    c.next = NULL
    c.used = c.read = c.count = c.owners = 0
    c.kept = kept
    c.stays = c.to_log = 0


cdef void lc_release_chunk(lc_queue *h, lc_chunk *c) noexcept nogil:
    # Keep an empty chunk for reuse, or add it to the surplus. Call with the mutex held; see lc_unlock.
    cdef uint64_t free_
    if h.spool != NULL:
        h.spool.awaited = AWAIT_NOTHING
    if c.slot:
        if c.to_log and not c.stays:
            lc_end_to_log(h.spool, c)
        if not c.stays:
            lc_free_slots(h.spool, c.slot - 1, (c.capacity + CHUNK_HEAD) // SLOT)
        return
    free_ = h.free_bytes + _size_of(c)
    if h.spool != NULL:
        h.spool.chunk_bytes -= _size_of(c)
        if h.spool.chunk_bytes == 0 and h.spool.journal != NULL:
            h.spool.journal.unspooled = 0    # what became of them is in the journal, or in the ledger
    if c.size_class < SIZE_CLASSES and (
            free_ <= KEPT_FREE or (h.shared == NULL and _memory_used(h) + free_ <= _memory_bound(h))):
        c.next = h.free[c.size_class]
        h.free[c.size_class] = c
        h.free_bytes = free_
    else:
        c.next = h.surplus
        h.surplus = c


cdef void lc_trim_free(lc_queue *h, double now) noexcept nogil:
    # Give up free chunks that were not needed for a while. Call regularly, with the mutex held.
    if now - h.free_since < h.options.free_after:
        return
    if h.free_least > KEPT_FREE:
        _shrink_free(h, h.free_least - KEPT_FREE)
    h.free_since = now
    h.free_least = h.free_bytes


cdef void lc_free_chunks(lc_chunk *chain) noexcept nogil:
    cdef lc_chunk *following
    while chain != NULL:
        following = chain.next
        if chain.slot == 0:         # the others are a spool's
            lc_pages_free(chain, _size_of(chain))
        chain = following


cdef void lc_unlock(lc_queue *h) noexcept nogil:
    # Claim exactly what this queue uses, release the mutex, and free the surplus.
    cdef lc_chunk *surplus = h.surplus
    cdef uint64_t used = _memory_used(h)
    h.surplus = NULL
    if h.shared != NULL and used != h.claimed:
        lc_shared_add(&h.shared.used, used - h.claimed)
        h.claimed = used
    lc_mutex_unlock(&h.mutex)
    lc_free_chunks(surplus)
