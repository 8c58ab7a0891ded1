# Batches: detach events from the queue, count the effects of encode, apply outcomes, commit. Included by
# inflight.pyx. Everything here runs without the GIL, in the sender.

cdef enum:
    COLUMNS = 5 * 8 + 4 + 4  # bytes of an event's columns
    UNSETTLED = 1 << PENDING | 1 << INFLIGHT | 1 << WITHHELD

cdef const uint64_t NO_SEQ = <uint64_t> -1
cdef const uint64_t NO_LIMIT = <uint64_t> -1


cdef inline lc_inflight *_beside(lc_inflight *f, lc_inflight *first) noexcept nogil:
    # Return the next one in the ring; NULL: that is the first again.
    return f.beside if f.beside != first else NULL


cdef void _disown(lc_inflight *f, lc_chunk *c) noexcept nogil:
    c.owners -= 1
    if c.owners == 0:
        c.next = f.emptied
        f.emptied = c


cdef void _release_emptied(lc_inflight *f) noexcept nogil:
    # Return to the queue the chunks that are used up. Mutex held.
    cdef lc_chunk *c
    while f.emptied != NULL:
        c = f.emptied
        f.emptied = c.next
        lc_release_chunk(f.queue, c)


cdef inline uint64_t _first_seq(lc_list *list) noexcept nogil:
    cdef lc_event *e = first_event(list)
    return e.seq if e != NULL else NO_SEQ


cdef void _stage(lc_inflight *f, uint64_t events, uint64_t size) noexcept nogil:
    # Detach whole chunks from the queue, lowest sequence first, until so many events or bytes are staged. No
    # more than that, because overflow can no longer drop detached events.
    cdef lc_queue *h = f.queue
    cdef lc_list *source
    cdef lc_chunk *c
    cdef uint64_t queued, kept, low
    cdef bint waits
    low = min(_first_seq(&f.ordinary), _first_seq(&f.kept))
    lc_mutex_lock(&h.mutex)
    _release_emptied(f)
    while True:
        queued = _first_seq(&h.ordinary)
        kept = _first_seq(&h.kept)
        # Nothing beyond the first event that stays queued may be taken.
        f.horizon = min(queued, kept, h.next_seq)
        if queued == kept == NO_SEQ or (
                low < f.horizon and (f.staged_events >= events or f.staged_bytes >= size)):
            break
        low = min(low, f.horizon)
        source = &h.ordinary if queued < kept else &h.kept
        c = take_chunk(source)
        f.staged_events += c.count
        f.staged_bytes += c.used - c.read
        count_queued(h, source, -<int64_t> c.count, <int64_t> c.read - c.used)
        h.held_events += c.count
        h.held_bytes += c.used - c.read
        c.owners = 1                     # of the staging list
        append_chunk(&f.ordinary if queued < kept else &f.kept, c)
    waits = h.spool != NULL and h.spool.logs_first and f.staged_events and h.spool.logged + 1 < h.next_seq
    lc_unlock(h)
    if waits and min(_first_seq(&f.ordinary), _first_seq(&f.kept)) > h.spool.logged:
        h.spool.write_log(h.spool)           # spool_sync=batch: the disk has it before the server
    if waits and h.spool.logs_first:
        f.horizon = min(f.horizon, h.spool.logged + 1)


cdef lc_event *_next_event(lc_inflight *f, lc_list **source) noexcept nogil:
    # Return the next staged event and its list, or NULL when a lower one is still queued.
    cdef lc_event *e
    source[0] = &f.ordinary if _first_seq(&f.ordinary) < _first_seq(&f.kept) else &f.kept
    e = first_event(source[0])
    return e if e != NULL and e.seq < f.horizon else NULL


cdef void _free_batch(lc_inflight *f, lc_batch *b) noexcept nogil:
    cdef uint32_t i
    for i in range(b.chunk_count):
        _disown(f, <lc_chunk *> b.chunks[i])
    free(b.id_hash)
    free(b.id_second)
    free(f.spare)
    f.spare = b


cdef lc_batch *_allocate(uint32_t n, size_t behind) noexcept nogil:
    # Allocate a batch in one piece: the struct, then the columns, the widest first, and so many bytes.
    cdef lc_batch *b = <lc_batch *> malloc(sizeof(lc_batch) + <size_t> n * COLUMNS + behind)
    if b != NULL:
        _lay_out(b, n)
    return b


cdef void _lay_out(lc_batch *b, uint32_t n) noexcept nogil:
    cdef uint8_t *p
    memset(b, 0, sizeof(lc_batch))
    b.room = n
    p = <uint8_t *> (b + 1)
    b.seq = <uint64_t *> p
    b.created_us = <int64_t *> (p + 8 * <size_t> n)
    b.hash = <uint64_t *> (p + 16 * <size_t> n)
    b.body = <const uint8_t **> (p + 24 * <size_t> n)
    b.chunks = <void **> (p + 32 * <size_t> n)
    b.size = <uint32_t *> (p + 40 * <size_t> n)
    b.kind = p + 44 * <size_t> n
    b.level = p + 45 * <size_t> n
    b.status = p + 46 * <size_t> n
    b.reason = p + 47 * <size_t> n


cdef lc_batch *inflight_take(lc_inflight *f, uint32_t events, uint64_t size) noexcept nogil:
    # Detach a new batch of at most `events` events and `size` bytes, but at least one event. Return NULL when
    # nothing is queued or memory is out.
    cdef lc_inflight *m = f.main
    cdef lc_batch *b
    cdef lc_list *source = NULL
    cdef lc_event *e
    cdef lc_chunk *c
    cdef uint64_t taken = 0, room
    cdef uint32_t n = 0
    events = max(events, <uint32_t> 1)
    _stage(m, events, size)
    e = _next_event(m, &source)
    if e == NULL:
        return NULL
    b = f.spare
    if b != NULL and b.room >= events:
        f.spare = NULL
        _lay_out(b, b.room)
    else:
        b = _allocate(events, 0)
        if b == NULL:
            return NULL
    while e != NULL and n < events:
        room = event_takes(e)
        if n and taken + room > size:
            break
        if e.seq > m.expected and not f.adopted:
            if outcome_add(&f.report, m.expected, e.seq - 1, <uint8_t> DROPPED, f.queue.full_reason) < 0:
                break
        if f.notes_taken and outcome_add(&f.taken, e.seq, e.seq, <uint8_t> PENDING, <uint8_t> R_NONE) < 0:
            break
        m.expected = e.seq + 1
        c = source.head
        if b.chunk_count == 0 or (b.chunks[b.chunk_count - 1] != c and not (
                b.chunk_count > 1 and b.chunks[b.chunk_count - 2] == c)):
            b.chunks[b.chunk_count] = c
            b.chunk_count += 1
            c.owners += 1
        b.seq[n] = e.seq
        b.created_us[n] = e.created_us
        b.body[n] = <uint8_t *> (e + 1)
        b.size[n] = e.size
        b.kind[n] = e.kind
        b.level[n] = e.level
        b.hash[n] = 0
        b.status[n] = <uint8_t> PENDING
        b.reason[n] = <uint8_t> R_NONE
        if e.kind & K_MASK == K_TOMB:
            b.status[n] = <uint8_t> FAILED
            b.reason[n] = b.body[n][0] if e.size else <uint8_t> R_UNENCODABLE
        if e.seq <= f.listed_before:
            b.listed = n + 1
        n += 1
        taken += room
        c.read += <uint32_t> room
        c.count -= 1
        if c.read == c.used:
            _disown(f, take_chunk(source))
        e = _next_event(m, &source)
    if n == 0:                                   # memory is out
        free(b)
        return NULL
    b.n = n
    b.pending = n
    b.bytes = taken
    m.staged_events -= n
    m.staged_bytes -= taken
    f.serial += 1
    b.serial = f.serial
    if f.tail == NULL:
        f.head = b
    else:
        f.tail.next = b
    f.tail = b
    inflight_encoded(f, b)     # settles the tombstones
    return b


cdef uint64_t inflight_bytes(lc_inflight *f) noexcept nogil:
    cdef lc_batch *b = f.head
    cdef uint64_t size = 0
    while b != NULL:
        if b.inflight:
            size += b.bytes
        b = b.next
    return size


cdef void inflight_limit_credit(lc_inflight *f, uint32_t *events) noexcept nogil:
    # Reduce the core's credit while poison is sought, and send nothing else with a suspect. In a trial the
    # engine must see the first outcome before another event is sent.
    if f.draining or (f.alone != NULL and f.alone.pending == 0):
        events[0] = 0
    elif f.max_inflight:
        events[0] = 0 if f.inflight or (f.prompt and f.report.n) else min(events[0], f.max_inflight)
    if f.allowance < events[0] and f.alone == NULL:
        events[0] = <uint32_t> f.allowance


cdef lc_batch *inflight_pending(lc_inflight *f) noexcept nogil:
    cdef lc_batch *b = f.head
    if f.alone != NULL:
        return f.alone if f.alone.pending else NULL
    while b != NULL and b.pending == 0:
        b = b.next
    return b


cdef void _settle(lc_inflight *f, lc_batch *b, uint32_t i) noexcept nogil:
    cdef uint8_t status = b.status[i]
    cdef uint8_t reason = b.reason[i]
    if reason >= R_COUNT:                        # of a codec in Python
        reason = <uint8_t> R_NONE
    f.freed_events += 1
    b.unmarked += 1
    if status == ACKED:
        f.acked += 1
    elif status == HANDED:
        f.handed += 1
    elif status == STORED:
        f.stored += 1
    elif status == DROPPED:
        f.dropped[reason] += 1
    else:
        status = <uint8_t> FAILED
        f.failed[reason] += 1
    if status == FAILED or status == DROPPED:
        lc_lose(f.queue, b.seq[i], b.body[i], b.size[i], b.kind[i], status, reason)
    outcome_add(&f.report, b.seq[i], b.seq[i], status, reason)
    b.status[i] = status | SETTLED


cdef void inflight_encoded(lc_inflight *f, lc_batch *b) noexcept nogil:
    # Recount the batch after encode or take, and settle the events that encode gave an outcome.
    cdef uint32_t i, pending = 0, inflight = 0, new = 0, cursor = b.n
    cdef uint8_t status
    for i in range(b.low, b.n):
        status = b.status[i]
        if status == PENDING:
            if pending == 0:
                cursor = i
            pending += 1
        elif status == INFLIGHT:
            inflight += 1
            if i >= b.listed:
                new += 1
        elif not status & SETTLED and status != WITHHELD:
            _settle(f, b, i)
    f.inflight += inflight
    f.inflight -= b.inflight
    if inflight > b.inflight and f.allowance != NO_LIMIT:
        f.allowance -= min(f.allowance, <uint64_t> (inflight - b.inflight))
    # An event before `listed` was sent before: this is a resend.
    if inflight > b.inflight + new:
        f.resent += inflight - b.inflight - new
    b.pending = pending
    b.inflight = inflight
    b.cursor = cursor
    while b.low < b.n and b.status[b.low] & SETTLED:
        b.low += 1


cdef void _apply(lc_inflight *f, lc_batch *b, lc_outcome *o) noexcept nogil:
    cdef uint32_t i, mid, lo = b.low, hi = b.n
    if b.inflight == 0 or b.seq[b.n - 1] < o.first:
        return
    while lo < hi:                       # the first event at or after o.first
        mid = (lo + hi) // 2
        if b.seq[mid] < o.first:
            lo = mid + 1
        else:
            hi = mid
    for i in range(lo, b.n):
        if b.seq[i] > o.last:
            break
        if b.status[i] != INFLIGHT:
            continue
        b.inflight -= 1
        f.inflight -= 1
        if o.status == PENDING:
            b.status[i] = <uint8_t> PENDING
            b.pending += 1
            if i < b.cursor:
                b.cursor = i
        else:
            b.status[i] = o.status
            b.reason[i] = o.reason
            f.outcomes += 1
            _settle(f, b, i)
    while b.low < b.n and b.status[b.low] & SETTLED:
        b.low += 1


cdef void inflight_apply(lc_inflight *f, lc_outcomes *out) noexcept nogil:
    # Set the status of these sequences where they are in flight; PENDING puts them back.
    cdef uint32_t k
    cdef lc_outcome *o
    cdef lc_batch *b
    for k in range(out.n):
        o = &out.items[k]
        if f.alone != NULL and f.alone.seq[0] <= o.last:
            _apply(f, f.alone, o)
        b = f.head
        while b != NULL and b.seq[0] <= o.last:
            _apply(f, b, o)
            b = b.next
    out.n = 0


cdef bint _write_journal(lc_inflight *f) noexcept nogil:
    # Copy the outcomes that the ledger has not into the spool, before their events are marked or leave it:
    # whoever adopts the spool lists them. Return whether half of the journal is full. Mutex not held: only
    # the sender writes it.
    cdef lc_journal *j = f.queue.spool.journal
    cdef uint32_t i = f.mirrored - 1 if f.mirrored else 0     # the last one may have grown
    if j == NULL:
        return False
    while i < f.report.n:
        if f.journal_base + i >= OUTCOMES:
            j.full = 1
            break
        j.items[f.journal_base + i] = f.report.items[i]
        i += 1
    f.mirrored = i
    lc_publish(&j.n, <uint64_t> (f.journal_base + i))
    return f.journal_base + i > OUTCOMES // 2


cdef void _pass_to_log(lc_inflight *f) noexcept nogil:
    # Give the spool's log the outcomes since the last call. Those that find no memory are not in it: after
    # the end of the machine their events are sent again. Mutex held.
    cdef lc_outcome *o
    cdef uint64_t first
    cdef uint32_t i = f.passed - 1 if f.passed else 0     # the last one may have grown
    while i < f.report.n:
        o = &f.report.items[i]
        first = f.passed_to + 1 if f.passed and i == f.passed - 1 else o.first
        if o.status != STORED and first <= o.last:
            outcome_add(&f.queue.spool.to_log, first, o.last, o.status, o.reason)
        f.passed_to = o.last
        i += 1
    f.passed = i


cdef void _mark_settled(lc_batch *b) noexcept nogil:
    # Mark the events that have their outcome, in the queue's memory: nobody is to send them again.
    cdef lc_event *e
    cdef uint32_t i
    cdef uint8_t status
    for i in range(b.n):
        status = b.status[i] & ~SETTLED
        # WITHHELD: it is in quarantine.
        if b.status[i] & SETTLED and status != STORED and status != WITHHELD:
            e = <lc_event *> b.body[i] - 1
            e.level |= EVENT_SETTLED
    b.unmarked = 0


cdef lc_batch *_free_settled(lc_inflight *f, lc_batch **at) noexcept nogil:
    # Free the batches of a list whose events have their outcome. Return the last one that stays.
    cdef lc_batch *b
    cdef lc_batch *last = NULL
    while at[0] != NULL:
        b = at[0]
        if f.queue.spool != NULL and b.unmarked:
            _mark_settled(b)
        if b.low < b.n:
            last = b
            at = &b.next
            continue
        at[0] = b.next
        if f.alone == b:
            f.alone = NULL
        f.freed_bytes += b.bytes
        _free_batch(f, b)
    return last


cdef void _free_settled_suspects(lc_inflight *f) noexcept nogil:
    if f.queue.spool != NULL:
        _write_journal(f)
    _free_settled(f, &f.quarantine)


cdef void _count(lc_inflight *f) noexcept nogil:
    # Add the counts to the queue's. Mutex held.
    cdef lc_queue *h = f.queue
    cdef uint32_t i
    h.held_events -= f.freed_events
    h.held_bytes -= f.freed_bytes
    _release_emptied(f)
    h.inflight += f.inflight
    h.acked += f.acked
    h.handed += f.handed
    h.stored += f.stored
    h.resent += f.resent
    for i in range(<uint32_t> R_COUNT):
        h.failed[i] += f.failed[i]
        h.dropped[i] += f.dropped[i]
        f.failed[i] = f.dropped[i] = 0
    f.acked = f.handed = f.stored = f.resent = f.freed_events = f.freed_bytes = 0


cdef bint inflight_commit(lc_inflight *f) noexcept nogil:
    # Free settled batches, add the counts to the queue's, wake the callers that wait for them. Return whether
    # the flush target was reached. For all connections of a queue at once, so that a snapshot adds up.
    cdef lc_queue *h = f.queue
    cdef lc_inflight *g = f
    cdef uint64_t first, untaken
    cdef double now = lc_monotonic()
    cdef bint reached = False, granted = False
    if h.spool != NULL:
        reached = _write_journal(f)
    while g != NULL:
        if g.alone != NULL and g.alone.low == g.alone.n:
            _free_settled(g, &g.quarantine)
        g.tail = _free_settled(g, &g.head)
        g = _beside(g, f)
    untaken = min(_first_seq(&f.main.ordinary), _first_seq(&f.main.kept))
    lc_mutex_lock(&h.mutex)
    if h.spool != NULL and h.spool.logs:
        _pass_to_log(f)
    untaken = min(untaken, _first_seq(&h.ordinary), _first_seq(&h.kept), h.next_seq)
    first = untaken
    h.inflight = 0
    g = f
    while g != NULL:
        g.reached = min(untaken, NO_SEQ if g.head == NULL else g.head.seq[g.head.low]) - 1
        first = min(first, g.reached + 1)
        if g.quarantine != NULL:
            first = min(first, g.quarantine.seq[0])
        _count(g)
        g = _beside(g, f)
    lc_trim_free(h, now)
    h.settled = first - 1
    if h.flush_target and h.settled >= h.flush_target:
        h.flush_target = 0
        reached = True
    # Callers that wait for room get an eighth of the queue at once, because a wake-up costs more than a put.
    # If the first of them needs more, the others wait for it.
    if h.first_ticket != NULL and 8 * (h.queued_bytes + h.held_bytes) <= 7 * h.max_bytes and (
            8 * (h.queued_events + h.held_events) <= 7 * h.max_events):
        granted = lc_grant_room(h)
    if h.waiters and reached or granted:
        lc_cond_wake_all(&h.changed)
    lc_unlock(h)
    return reached


cdef uint64_t _change(lc_inflight *f, lc_batch *b, uint64_t events, uint64_t seq, uint32_t those,
                      uint8_t status, uint8_t reason) noexcept nogil:
    # Change the status of the first `events` events, up to this sequence, from batch b on. `those`: a bit for
    # each status that is changed. Of events that are lost, change no more than can be copied. Return how many
    # there were.
    cdef size_t room = lc_lost_room(f.queue) if status == FAILED or status == DROPPED else SIZE_MAX
    cdef uint64_t done = 0
    cdef uint32_t i
    while b != NULL and done < events:
        for i in range(b.low, b.n):
            if b.status[i] < SETTLED and those >> b.status[i] & 1 and b.seq[i] <= seq and done < events:
                if event_room(b.size[i]) > room and done:
                    events = done
                    break
                room -= min(room, event_room(b.size[i]))
                b.status[i] = status
                b.reason[i] = reason
                done += 1
        inflight_encoded(f, b)
        b = b.next
    return done


cdef lc_chunk *_chunk_of(lc_batch *b, uint32_t i) noexcept nogil:
    cdef lc_chunk *c = NULL
    cdef uint32_t k
    for k in range(b.chunk_count):
        c = <lc_chunk *> b.chunks[k]
        if chunk_data(c) <= b.body[i] <= chunk_data(c) + c.capacity:
            break
    return c


cdef bint _keep(lc_inflight *f, lc_batch *b, bint fails) noexcept nogil:
    # Leave the events without an outcome, from batch b on, in the spool. Without a place for one, let it
    # fail, or return False.
    cdef lc_chunk *c
    cdef uint32_t i
    while b != NULL:
        for i in range(b.low, b.n):
            if b.status[i] & SETTLED:
                continue
            c = _chunk_of(b, i)
            if c.stays or lc_keep_chunk(f.queue, c):
                b.status[i] = <uint8_t> STORED
            elif fails:
                b.status[i] = <uint8_t> FAILED
                b.reason[i] = <uint8_t> R_CLOSED
            else:
                inflight_encoded(f, b)
                return False
        inflight_encoded(f, b)
        b = b.next
    return True


cdef lc_batch *_copy_to_quarantine(lc_inflight *f, lc_batch *b, uint32_t i) noexcept nogil:
    # Put a batch of one event, with a copy of its body, into its place in the quarantine. Return NULL when
    # memory is out. With a spool the event stays in its chunk, which lives longer than this process.
    cdef uint64_t room = event_room(b.size[i])   # the waste at the end of its chunk stays with the batch
    cdef bint copies = f.queue.spool == NULL
    cdef lc_batch *own = _allocate(1, b.size[i] if copies else 0)
    cdef lc_batch **at = &f.quarantine
    if own == NULL:
        return NULL
    own.body[0] = <uint8_t *> (own + 1) + COLUMNS if copies else b.body[i]
    if copies:
        memcpy(<void *> own.body[0], b.body[i], b.size[i])
    else:
        own.chunks[0] = _chunk_of(b, i)
        own.chunk_count = 1
        (<lc_chunk *> own.chunks[0]).owners += 1
    own.n = 1
    own.bytes = room
    own.seq[0] = b.seq[i]
    own.created_us[0] = b.created_us[i]
    own.hash[0] = b.hash[i]
    own.size[0] = b.size[i]
    own.kind[0] = b.kind[i]
    own.level[0] = b.level[i]
    own.status[0] = <uint8_t> WITHHELD
    own.reason[0] = <uint8_t> R_NONE
    own.listed = 1                               # it was sent before, so it is in the ledger
    own.cursor = 1
    f.serial += 1
    own.serial = f.serial
    b.bytes -= room
    while at[0] != NULL and at[0].seq[0] < own.seq[0]:
        at = &at[0].next
    own.next = at[0]
    at[0] = own
    return own
