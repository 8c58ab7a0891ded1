# Slots: memory for chunks in the mapped files of a spool (spool.pyx). Included by queue.pyx.
#
# A caller takes a slot that is mapped, and nothing else: no file is opened, no space allocated. The spool's
# thread touches pages ahead of need, so that a store makes no page fault. Slots are taken from the lowest
# segment that has one, so that few pages of the files change.

cdef extern from "bits.h":
    uint32_t lc_lowest_bit "lc_ctz64"(uint64_t v) nogil


cdef inline uint64_t _runs(uint64_t free_, uint32_t n) noexcept nogil:
    # Return the bits at which `n` free slots in a row begin.
    cdef uint32_t step
    while n > 1 and free_:
        step = n // 2
        free_ &= free_ >> step
        n -= step
    return free_


cdef inline uint64_t _mask(uint32_t first, uint32_t n) noexcept nogil:
    return (~(<uint64_t> 0) if n >= SLOTS else ((<uint64_t> 1) << n) - 1) << first


cdef void _ask(lc_spool *s) noexcept nogil:
    # Ask the spool's thread to prepare slots. Mutex held.
    if not s.asked and not s.closed and (s.untouched or s.mapped < s.limit):
        s.asked = True
        lc_cond_wake_all(&s.more)


cdef uint64_t _find_slots(lc_spool *s, uint64_t room, uint32_t *n, uint32_t *segment) noexcept nogil:
    # Find the lowest segment with `n` free slots in a row, which hold a chunk of this room. Return the bits
    # at which they begin, or 0.
    cdef uint64_t found
    cdef uint32_t i
    n[0] = <uint32_t> ((room + CHUNK_HEAD + SLOT - 1) // SLOT)
    for i in range(s.most if n[0] <= SLOTS else 0):
        found = _runs(s.segments[i].free, n[0])
        if found:
            segment[0] = i
            return found
    return 0


cdef lc_chunk *_take_slots(lc_queue *h, uint64_t room, bint kept) noexcept nogil:
    # Return a chunk in the spool, or NULL when it has no such slots now. Mutex held.
    cdef lc_spool *s = h.spool
    cdef lc_chunk *c
    cdef uint32_t n, i = 0, first, segment
    cdef uint64_t found = _find_slots(s, room, &n, &i)
    if not found:
        if n <= SLOTS:
            s.wanted = True
            _ask(s)
        return NULL
    first = lc_lowest_bit(found)
    s.segments[i].free &= ~_mask(first, n)
    s.free_slots -= n
    s.least_free = min(s.least_free, s.free_slots)
    if s.segments[i].whole:
        s.free_touched -= n
    if n > 1 and not _find_slots(s, room, &n, &segment):
        s.wanted = True                          # ahead: free slots are in pieces, the next one finds none
        _ask(s)
    if s.free_touched < s.ready:
        _ask(s)
    c = chunk_at(s, i * SLOTS + first)
    c.size_class = <uint8_t> SIZE_CLASSES
    c.capacity = n * SLOT - CHUNK_HEAD
    c.slot = 1 + i * SLOTS + first
    _begin_chunk(c, kept)
    c.logged = 0
    if s.logs:
        lc_begin_to_log(s, c)
    (<lc_event *> chunk_data(c)).seq = 0
    lc_publish(&c.live, h.next_seq)
    return c


cdef void lc_begin_to_log(lc_spool *s, lc_chunk *c) noexcept nogil:
    # Append a chunk to those that the log has not whole. Mutex held.
    c.to_log = 1
    c.log_before = s.last_to_log
    c.log_behind = 0
    if s.last_to_log:
        chunk_at(s, s.last_to_log - 1).log_behind = c.slot
    else:
        s.first_to_log = c.slot
    s.last_to_log = c.slot


cdef void lc_end_to_log(lc_spool *s, lc_chunk *c) noexcept nogil:
    # Take a chunk out of that list. Mutex held.
    c.to_log = 0
    if c.log_before:
        chunk_at(s, c.log_before - 1).log_behind = c.log_behind
    else:
        s.first_to_log = c.log_behind
    if c.log_behind:
        chunk_at(s, c.log_behind - 1).log_before = c.log_before
    else:
        s.last_to_log = c.log_before


cdef void lc_free_slots(lc_spool *s, uint32_t first, uint32_t n) noexcept nogil:
    # Give back the slots of a chunk, of which the first is counted over all segments. Mutex held.
    cdef uint32_t i
    # Bodies lay where other chunks may begin: there is none, for whoever reads the file.
    for i in range(1, n):
        chunk_at(s, first + i).live = 0
    if chunk_at(s, first).live:
        lc_publish(&chunk_at(s, first).live, 0)
    s.segments[first // SLOTS].free |= _mask(first % SLOTS, n)
    s.free_slots += n
    if s.segments[first // SLOTS].whole:
        s.free_touched += n


cdef bint lc_keep_chunk(lc_queue *h, lc_chunk *c) noexcept nogil:
    # Leave a chunk to whoever opens the spool next: as it is, or, from memory, as a copy. Return whether it
    # found its slots. Mutex not held.
    cdef lc_chunk *copy
    cdef lc_event *first = <lc_event *> chunk_data(c)
    cdef lc_event *target
    cdef uint64_t end
    if c.slot == 0:
        lc_mutex_lock(&h.mutex)
        copy = _take_slots(h, c.used, c.kept != 0)
        lc_mutex_unlock(&h.mutex)
        if copy == NULL:
            return False
        copy.stays = 1
        copy.used = c.used
        target = <lc_event *> chunk_data(copy)
        memcpy(<uint8_t *> target + 8, <uint8_t *> first + 8, c.used - 8)
        # Behind the last event, not behind `used`: the unused end of a chunk in memory has anything.
        end = c.last + event_room((<lc_event *> (chunk_data(c) + c.last)).size)
        if copy.capacity - end >= 8:
            (<lc_event *> (chunk_data(copy) + end)).seq = 0
        lc_publish(&copy.live, first.seq)
        lc_publish(&target.seq, first.seq)
    c.stays = 1
    return True
