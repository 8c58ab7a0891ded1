# Putting events into the queue: bounds, overflow, callers that wait for room, waking the sender. Included by
# queue.pyx. Everything here runs without the GIL; functions with "mutex held" in their comment lock
# nothing.

cdef enum:
    ERROR_LEVEL = 4           # logging.ERROR // 10
    SIGNAL_CHECK_MS = 50      # a waiting caller looks for signals this often


cdef int _drop_oldest(lc_queue *h, lc_list *list) noexcept nogil:
    # Drop the oldest event of a list; return 1, or 0 when there is none. Mutex held.
    cdef lc_chunk *c = list.head
    cdef lc_event *e = first_event(list)
    if e == NULL:
        return 0
    lc_lose(h, e.seq, <const uint8_t *> (e + 1), e.size, e.kind, <uint8_t> DROPPED, h.full_reason)
    if h.spool != NULL:
        e.level |= EVENT_SETTLED
    c.read += <uint32_t> event_takes(e)
    c.count -= 1
    count_queued(h, list, -1, -<int64_t> event_takes(e))
    h.dropped[h.full_reason] += 1
    if c.read == c.used:
        lc_release_chunk(h, take_chunk(list))
    return 1


cdef inline bint _is_over_own(lc_queue *h, uint64_t room) noexcept nogil:
    # Return whether an event of this room would exceed a bound of this queue.
    return (h.queued_bytes + h.held_bytes + room > h.max_bytes
            or h.queued_events + h.held_events >= h.max_events)


cdef inline bint _is_over(lc_queue *h, uint64_t room) noexcept nogil:
    # Return whether an event of this room would exceed a bound.
    # With a bound of all queues the room is claimed if there is some: correct the claim before the mutex is
    # released.
    if _is_over_own(h, room):
        return True
    if h.spool == NULL:
        return h.shared != NULL and not _claim(h, room, 0)
    if h.spool.awaited == AWAIT_SHARED and _claim_chunk(h, room, 0):
        h.spool.awaited = AWAIT_NOTHING
    return h.spool.awaited != AWAIT_NOTHING


cdef inline bint _cannot_fit(lc_queue *h, uint64_t room, bint keep) noexcept nogil:
    # Return whether dropping every event that this one may displace would still not make room.
    cdef uint64_t size = h.held_bytes + room
    cdef uint64_t events = h.held_events
    if not keep:
        size += h.kept_bytes
        events += h.kept_events
    if size > h.max_bytes or events >= h.max_events:
        return True
    # Of the bound of all queues, what the others have claimed stays.
    return h.shared != NULL and h.spool == NULL and (
        lc_shared_get(&h.shared.used) - h.claimed + size > lc_shared_get(&h.shared.limit))


cdef inline uint64_t _waste(lc_list *list, uint64_t room) noexcept nogil:
    # Return the bytes that stay empty at the end of the last chunk if an event of this room needs a new one.
    cdef lc_chunk *c = list.tail
    if c == NULL or c.capacity - c.used >= room:
        return 0
    return c.capacity - c.used


cdef inline void _end_last(lc_queue *h, lc_list *list, uint64_t room) noexcept nogil:
    # Before a new chunk takes an event of this room, count the empty end of the last one with its newest
    # event: no other event can use that memory.
    cdef lc_chunk *c = list.tail
    cdef uint64_t size
    if c == NULL:
        return
    size = min(_waste(list, room), h.max_bytes - h.queued_bytes - h.held_bytes - room) & ~<uint64_t> 7
    if size and (h.spool != NULL or _claim(h, room + size, 0)):
        (<lc_event *> (chunk_data(c) + c.last)).pad = <uint16_t> size
        c.used += <uint32_t> size
        count_queued(h, list, 0, size)


cdef int64_t _drop(lc_queue *h, int64_t code, const uint8_t *body, uint32_t size,
                   uint8_t kind) noexcept nogil:
    # Drop a new event; return the code. The sequence is used up: its gap records the drop, in the ledger too.
    lc_lose(h, h.next_seq, body, size, kind, <uint8_t> DROPPED, h.full_reason)
    h.next_seq += 1
    h.dropped[h.full_reason] += 1
    return code


cdef int64_t _refuse(lc_queue *h, const uint8_t *body, uint32_t size, uint8_t kind) noexcept nogil:
    # Drop an event that comes after `close`: it gets no sequence.
    lc_lose(h, 0, body, size, kind, <uint8_t> DROPPED, <uint8_t> R_CLOSED)
    h.dropped[<int> R_CLOSED] += 1
    return PUT_DROPPED


cdef void _leave_line(lc_queue *h, lc_ticket *ticket) noexcept nogil:
    # Give up the place in the line, or the room that was granted. Mutex held.
    cdef lc_ticket **at
    if ticket.state == TICKET_GRANTED:
        h.held_events -= 1
        h.held_bytes -= ticket.room
        h.granted_events -= 1
        h.granted_bytes -= ticket.room
    elif ticket.state == TICKET_WAITS:
        at = &h.first_ticket
        while at[0] != ticket:
            at = &at[0].behind
        at[0] = ticket.behind
    ticket.state = TICKET_NONE


cdef bint lc_grant_room(lc_queue *h) noexcept nogil:
    # Grant room to waiting callers, first come, first served. Return whether to wake them all. Mutex held.
    # Granted room counts as held, so that a later put cannot take it.
    cdef lc_ticket *ticket
    cdef bint some = False
    while h.first_ticket != NULL and not _is_over(h, h.first_ticket.room):
        ticket = h.first_ticket
        _leave_line(h, ticket)
        ticket.state = TICKET_GRANTED
        h.held_events += 1
        h.held_bytes += ticket.room
        h.granted_events += 1
        h.granted_bytes += ticket.room
        some = True
    return some


# The wake-up descriptor is closed with the client while callers may still refer to it. A caller therefore
# announces a write first; without that, the number could be another file's by then.

cdef inline bint _begin_wake(lc_queue *h) noexcept nogil:
    # Announce a wake-up; return whether there is a sender. If so, call _wake after releasing the mutex.
    if h.released or lc_wake_fd(&h.wake) < 0:
        return False
    h.waking += 1
    return True


cdef void _wake(lc_queue *h) noexcept nogil:
    lc_wake_set(&h.wake)
    lc_mutex_lock(&h.mutex)
    h.waking -= 1
    _close_wake(h)
    lc_mutex_unlock(&h.mutex)


cdef inline void _close_wake(lc_queue *h) noexcept nogil:
    # Close the descriptor once no caller can write to it any more. Mutex held.
    if h.released and not h.waking:
        lc_wake_close(&h.wake)


cdef inline bint _ends_sleep(lc_queue *h, uint8_t level) noexcept nogil:
    # Return whether the event that was just queued wakes the sender: then call _wake. Mutex held.
    if h.sender_state == SENDER_LINGERING:
        if level >= ERROR_LEVEL and not h.urgent_wake_used:
            # A wake-up costs the caller a system call: one for each linger, however many errors there are.
            h.urgent_wake_used = True
        elif h.queued_events < h.options.full_events and h.queued_bytes < h.options.full_bytes:
            return False
    elif h.sender_state != SENDER_IDLE:
        return False
    h.sender_state = SENDER_BUSY
    return _begin_wake(h)


cdef int64_t lc_put(lc_queue *h, const uint8_t *body, size_t size, uint8_t level, uint8_t kind,
                    int64_t created_us, lc_ticket *ticket) noexcept nogil:
    # With a ticket, use the room that was granted to it, or any other room; never overtake waiting callers.
    cdef uint64_t ticks
    cdef int64_t result
    cdef uint8_t tomb
    cdef bint wake
    if h.generation != lc_forks:
        return PUT_FORKED
    if size > h.max_event_bytes and (kind & K_MASK) != K_TOMB:
        # A tombstone takes its place, so that the event is counted and listed like any other.
        tomb = <uint8_t> R_TOO_LARGE
        body = &tomb
        size = 1
        kind = <uint8_t> K_TOMB
    ticks = lc_ticks() if created_us == 0 else 0
    lc_mutex_lock(&h.mutex)
    if created_us == 0:
        if ticks - h.clock_ticks >= LC_SOON:
            h.clock_ticks = ticks
            h.clock_us = lc_wall_us()
        created_us = h.clock_us
    if ticket != NULL and not h.unopened:
        _leave_line(h, ticket)
    if h.unopened:
        result = PUT_UNOPENED
    elif h.closed:
        result = _refuse(h, body, <uint32_t> size, kind)
    elif h.first_ticket != NULL and ticket == NULL:
        result = PUT_FULL
    else:
        result = _append(h, body, <uint32_t> size, level, kind, created_us)
    wake = result > 0 and _ends_sleep(h, level)
    if h.surplus == NULL and h.shared == NULL:
        lc_mutex_unlock(&h.mutex)
    else:
        lc_unlock(h)
    if wake:
        _wake(h)
    return result


cdef int64_t _make_room(lc_queue *h, lc_list *list, uint64_t room, bint keep) noexcept nogil:
    # Make the last chunk of a list have room for an event, within all bounds. Return 1, or a PUT_ code.
    cdef bint waits = h.options.policy == BLOCK or h.options.policy == RAISE
    cdef lc_chunk *c
    if _is_over(h, room + _waste(list, room)):
        if h.options.policy == DROP_OLDEST and not _cannot_fit(h, room, keep):
            # Ordinary events go first; a kept one is displaced only by another kept one.
            while _is_over(h, room + _waste(list, room)) and _drop_oldest(h, &h.ordinary):
                pass
            while _is_over(h, room + (_waste(list, room) if keep else 0)) and _drop_oldest(h, &h.kept):
                pass
        if _is_over(h, room):
            return PUT_FULL if waits else PUT_DROPPED
    c = list.tail
    if c != NULL and c.capacity - c.used >= room:
        return 1
    c = _new_chunk(h, room, keep)
    while c == NULL and h.spool != NULL and h.options.policy == DROP_OLDEST and (
            _drop_oldest(h, &h.ordinary) or (keep and _drop_oldest(h, &h.kept))):
        # There is room, but no slot: none is large enough, or chunks are held by their last event.
        c = _new_chunk(h, room, keep)
    if c == NULL and waits and h.spool != NULL:
        if _is_segment_coming(h.spool) or (
                h.spool.always and room <= BODIES and not _is_incomplete(h.spool)):
            h.spool.awaited = AWAIT_SLOT
        elif not _claim_chunk(h, room, 0):
            h.spool.awaited = AWAIT_SHARED
        else:
            h.spool.awaited = AWAIT_NOTHING
            c = _new_chunk(h, room, keep)     # another queue has just made room
        if h.spool.awaited:
            return PUT_FULL
    if c == NULL:
        return PUT_MEMORY
    _end_last(h, list, room)
    append_chunk(list, c)
    return 1


cdef inline int64_t _append(lc_queue *h, const uint8_t *body, uint32_t size, uint8_t level, uint8_t kind,
                            int64_t created_us) noexcept nogil:
    # Store an event; return its sequence, or a PUT_ code. Mutex held.
    cdef bint keep = level >= h.options.keep_level
    cdef lc_list *list = &h.kept if keep else &h.ordinary
    cdef uint64_t room = event_room(size)
    cdef int64_t made
    cdef uint64_t seq
    cdef lc_chunk *c = list.tail
    cdef lc_event *e
    # Most events fit into the last chunk, and within the bounds.
    if (c == NULL or c.capacity - c.used < room or h.shared != NULL
            or h.spool != NULL and h.spool.awaited != AWAIT_NOTHING or _is_over_own(h, room)):
        made = _make_room(h, list, room, keep)
        if made <= 0:
            return PUT_FULL if made == PUT_FULL else _drop(h, made, body, size, kind)
        c = list.tail
    seq = h.next_seq
    h.next_seq = seq + 1
    e = <lc_event *> (chunk_data(c) + c.used)
    e.created_us = created_us
    e.size = size
    e.level = level
    e.kind = kind
    e.pad = 0
    c.last = c.used
    memcpy(<uint8_t *> (e + 1), body, size)
    c.used += <uint32_t> room
    if c.slot:
        if c.capacity - c.used >= 8:
            (<lc_event *> (chunk_data(c) + c.used)).seq = 0
    elif h.spool != NULL and h.spool.journal != NULL:
        h.spool.journal.unspooled = 1
    lc_publish(&e.seq, seq)
    c.count += 1
    count_queued(h, list, 1, room)
    return <int64_t> seq


cdef void lc_leave_fork_safe(lc_queue *h) noexcept nogil:
    # End the time in which a fork is safe, but not while a fork is prepared. Mutex held.
    while h.fork_paused:
        lc_cond_wait(&h.changed, &h.mutex, SIGNAL_CHECK_MS / 1000.0)
    h.fork_safe = False
