# Actions in flight. The two numbers of its id, (ms, counter), identify one: its node id is always ours.

# An action in flight. Those of a sync are neighbours.
ctypedef struct lc_action:
    uint64_t seq                 # 0: it has its outcome
    int64_t ms
    uint64_t counter
    int64_t time                 # as its meta says
    int64_t subprotocol          # or -1
    uint32_t next                # action in the same bucket
    uint32_t at                  # where its text begins in the message
    uint32_t size


ctypedef struct lc_sync:
    int64_t added
    uint32_t count               # actions
    uint32_t open                # actions without an outcome; 0: this place is free
    bint synced


# An action in doubt when a connection ended, to be sent again with the same id.
ctypedef struct lc_doubt:
    uint64_t seq
    int64_t ms
    uint64_t counter
    bint again                   # it was sent again


# A run of equal answers.
ctypedef struct lc_answer:
    int64_t added
    uint64_t count


# The state of an `ActionTracker`.
ctypedef struct lc_client:
    bint identity
    bint check
    bint synced_mode
    uint32_t window
    uint32_t inflight
    uint64_t window_bytes
    const uint8_t *head          # {"type":...,"data":
    size_t head_size
    uint8_t tail[TAIL_SIZE]      # the id as a member, with zeros for the sequence, and the closing brace
    const uint8_t *node
    size_t node_size
    # of this connection
    bint ready                   # after `connected`
    int64_t base
    double began                 # when `connected` arrived, in monotonic seconds
    double lead                  # how far the server's clock was after base then, in ms
    # ids
    int64_t ms
    uint64_t counter
    int64_t added
    # in flight
    lc_sync *syncs
    lc_action *actions           # `window` for each sync
    uint32_t *buckets
    uint32_t mask
    uint32_t open
    lc_sync *oldest              # sync in flight
    lc_doubt *doubts
    size_t doubt_count
    # received
    lc_outcomes *out
    lc_answer *answers
    size_t answer_runs
    size_t answer_room
    uint64_t answer_count
    double progress_at           # when the oldest sync got an outcome or its answer, or became the oldest
    uint64_t processed
    uint64_t unmatched
    int64_t received             # the highest `added` of the server
    lc_clocks clocks
    lc_wire wire


cdef inline uint32_t bucket_of(lc_client *w, int64_t ms, uint64_t counter) noexcept nogil:
    cdef uint64_t h = (<uint64_t> ms * 0x9E3779B97F4A7C15ULL + counter) * 0xD1B54A32D192ED03ULL
    return <uint32_t> (h >> 32) & w.mask


# A free place for a sync, or NONE.
cdef inline uint32_t free_sync(lc_client *w) noexcept nogil:
    cdef uint32_t i
    for i in range(w.inflight):
        if w.syncs[i].open == 0:
            return i
    return NONE


cdef inline uint32_t find(lc_client *w, int64_t ms, uint64_t counter) noexcept nogil:
    cdef uint32_t i = w.buckets[bucket_of(w, ms, counter)]
    while i != NONE and (w.actions[i].counter != counter or w.actions[i].ms != ms):
        i = w.actions[i].next
    return i


# Note progress of a sync. Servers process syncs in order, so later ones show no progress of the oldest.
cdef inline void note_progress(lc_client *w, lc_sync *s, double now) noexcept nogil:
    cdef uint32_t k
    if s != w.oldest:
        return
    w.progress_at = now
    if s.open:
        return
    w.oldest = NULL
    for k in range(w.inflight):
        if w.syncs[k].open and (w.oldest == NULL or w.syncs[k].added < w.oldest.added):
            w.oldest = &w.syncs[k]


# Remove action i: it has its outcome.
cdef void settle(lc_client *w, uint32_t i, double now) noexcept nogil:
    cdef lc_action *a = &w.actions[i]
    cdef lc_sync *s = &w.syncs[i // w.window]
    cdef uint32_t *p = &w.buckets[bucket_of(w, a.ms, a.counter)]
    while p[0] != i:
        p = &w.actions[p[0]].next
    p[0] = a.next
    a.seq = 0
    w.open -= 1
    s.open -= 1
    note_progress(w, s, now)


cdef int acknowledge(lc_client *w, uint32_t i, double now) noexcept nogil:
    if outcome_add(w.out, w.actions[i].seq, w.actions[i].seq, ACKED, R_NONE) < 0:
        return STOP_MEMORY
    settle(w, i, now)
    w.processed += 1
    w.out.progress += 1
    return 0


# Take an answer: the server has received all syncs up to this one.
cdef int take_synced(lc_client *w, double added, double now) noexcept nogil:
    cdef uint32_t k, i
    cdef lc_sync *s
    for k in range(w.inflight):
        s = &w.syncs[k]
        if not s.open or s.synced or s.added > added:
            continue
        s.synced = True
        note_progress(w, s, now)
        if not w.synced_mode:
            continue
        for i in range(k * w.window, k * w.window + s.count):
            if w.actions[i].seq and acknowledge(w, i, now) < 0:
                return STOP_MEMORY
    return 0


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const lc_doubt *> a).seq, y = (<const lc_doubt *> b).seq
    return (x > y) - (x < y)


cdef void forget(lc_client *w) noexcept nogil:
    memset(w.syncs, 0, w.inflight * sizeof(lc_sync))
    memset(w.buckets, 0xFF, (<size_t> w.mask + 1) * sizeof(uint32_t))
    w.ready = False
    w.open = 0
    w.oldest = NULL
    w.out.n = w.out.alive = w.out.progress = 0
    w.answer_runs = 0
    w.answer_count = 0
