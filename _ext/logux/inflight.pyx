# Actions in flight. The two numbers of its id, (ms, counter), identify one: its node id is always ours.

# An action in flight. Those of a sync are neighbours.
ctypedef struct lc_action:
    uint64_t seq                 # 0: it has its outcome
    int64_t ms
    uint64_t counter
    int64_t time                 # as its meta says
    int64_t subprotocol          # or -1
    uint32_t next                # action in the same bucket
    uint32_t at                  # where its text begins in the sync's
    uint32_t size


ctypedef struct lc_sync:
    int64_t added
    uint32_t count               # actions
    uint32_t open                # actions without an outcome; 0: this place is free
    bint synced
    uint64_t size                # bytes of its actions, as the queue counts them
    lc_trip trip
    lc_wire text                 # of its actions, for those that are sent again


# An action in doubt when a connection ended, to be sent again with the same id.
ctypedef struct lc_doubt:
    uint64_t seq
    int64_t ms
    uint64_t counter
    bint again                   # it was sent again


# An action for which others may have been undone. It waits to be sent alone.
ctypedef struct lc_suspect:
    uint64_t seq
    int64_t time
    int64_t subprotocol
    uint8_t *text
    uint32_t size


cdef enum State:
    DISCONNECTED = 0
    CONNECTING                   # `connect` was sent
    SYNCHRONIZED                 # `connected` was received

cdef enum Wrong:
    WRONG_NONE = 0
    WRONG_ANSWERS                # the server asks for answers and does not read them
    WRONG_JAM


# The runs of undone actions: see turns.pyx.
ctypedef struct lc_runs:
    lc_wire suspects             # lc_suspect items
    uint32_t count
    uint64_t alone               # the sequence of the suspect in flight; 0: none is
    bint offered                 # there was room for the innocent since the last `encode`
    bint drained                 # none of the innocent is left
    uint64_t last_innocent       # the last sequence that is sent before the suspects
    int64_t added                # up to here, an action that is undone with the reason error is collateral
    int64_t processed            # actions processed when the run began
    uint32_t limit               # of actions in flight; 0: none but `most`
    uint64_t limit_processed
    uint32_t most                # actions in flight, at most


# The detection of a jam: see turns.pyx.
ctypedef struct lc_jam:
    double after                 # seconds without an outcome to wait at first
    double patience              # and now
    double waited                # before the last jam
    double synchronized_at
    int64_t processed            # actions processed when a connection was closed for a jam; -1: none was
    int64_t added                # the `added` of the last jammed action, once it is sent again


ctypedef struct lc_headers:
    uint64_t first
    uint64_t last                # lowered by other threads
    uint64_t wanted              # the event whose headers are to be sent; 0: none
    bint blocked                 # until nothing is in flight


ctypedef struct lc_logux:
    bint identity
    bint check
    bint synced_mode
    uint32_t window
    uint32_t inflight            # syncs, for which there is room
    lc_limit limit               # of the syncs in flight
    lc_piece piece
    double silence
    double ping_after
    const uint8_t *head          # {"type":...,"data":
    size_t head_size
    uint8_t tail[TAIL_SIZE]      # the id as a member, with zeros for the sequence, and the closing brace
    const uint8_t *node
    size_t node_size
    # of this connection
    State state
    Wrong wrong                  # why it ends
    bint over                    # nothing more is sent or read
    int64_t base
    double began                 # when `connected` arrived, in monotonic seconds
    double lead                  # how far the server's clock was after base then, in ms
    double connect_at            # when `connect` was sent
    double received_at           # the last message
    double sent_at
    double awaited_since
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
    uint32_t flying              # syncs
    uint64_t bytes               # of the actions in flight
    lc_sync *oldest              # sync in flight
    lc_doubt *doubts
    size_t doubt_count
    lc_runs runs
    lc_jam jam
    lc_headers headers
    # received
    lc_outcomes *out             # of the call under way
    double progress_at           # when the oldest sync got an outcome or its answer, or became the oldest
    uint64_t processed
    int64_t received             # the highest `added` of the server
    lc_wire pings                # tokens of pings without a pong, u64; 0: our own
    # for the core
    bint stopped                 # the first message in `inbox` is one for the core
    lc_wire inbox                # messages behind their size, u32
    size_t inbox_at
    lc_wire undone               # undos that failed an action: its sequence, u64, size, u32, and message
    lc_wire replies              # tokens of pings that were answered, u64
    lc_clocks clocks
    double wall
    lc_wire ready                # messages to send that are no events, each behind its size
    uint32_t ready_count
    lc_wire scratch


cdef inline uint32_t bucket_of(lc_logux *w, int64_t ms, uint64_t counter) noexcept nogil:
    cdef uint64_t h = (<uint64_t> ms * 0x9E3779B97F4A7C15ULL + counter) * 0xD1B54A32D192ED03ULL
    return <uint32_t> (h >> 32) & w.mask


cdef inline uint32_t free_sync(lc_logux *w) noexcept nogil:
    cdef uint32_t i
    for i in range(w.inflight):
        if w.syncs[i].open == 0:
            return i
    return NONE


cdef inline uint32_t find(lc_logux *w, int64_t ms, uint64_t counter) noexcept nogil:
    cdef uint32_t i = w.buckets[bucket_of(w, ms, counter)]
    while i != NONE and (w.actions[i].counter != counter or w.actions[i].ms != ms):
        i = w.actions[i].next
    return i


# Note progress of a sync. Servers process syncs in order, so later ones show no progress of the oldest.
cdef inline void note_progress(lc_logux *w, lc_sync *s, double now) noexcept nogil:
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


cdef void settle(lc_logux *w, uint32_t i, double now) noexcept nogil:
    cdef lc_action *a = &w.actions[i]
    cdef lc_sync *s = &w.syncs[i // w.window]
    cdef uint32_t *p = &w.buckets[bucket_of(w, a.ms, a.counter)]
    while p[0] != i:
        p = &w.actions[p[0]].next
    p[0] = a.next
    a.seq = 0
    w.open -= 1
    s.open -= 1
    w.piece.acked = True
    if s.open == 0:
        limit_acked(&w.limit, &s.trip, w.flying, now)
        piece_acked(&w.piece, s.size, s.trip.sent, now)
        w.flying -= 1
        w.bytes -= s.size
        s.text.size = 0
        trim(&s.text, TEXT_KEPT)         # many MiB must not be held until another text takes the place
    note_progress(w, s, now)


cdef int acknowledge(lc_logux *w, uint32_t i, double now) noexcept nogil:
    if outcome_add(w.out, w.actions[i].seq, w.actions[i].seq, ACKED, R_NONE) < 0:
        return STOP_MEMORY
    settle(w, i, now)
    w.processed += 1
    w.out.progress += 1
    return 0


# Take an answer: the server has received all syncs up to this one.
cdef int take_synced(lc_logux *w, double added, double now) noexcept nogil:
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


# Keep the ids of the actions in flight for the next connection, or fail the actions. -1: memory is out.
cdef int keep_doubts(lc_logux *w, bint keep, bint drop) noexcept nogil:
    cdef size_t n = 0, i, most = DOUBTS * <size_t> w.window * w.inflight
    cdef lc_doubt *doubts = NULL
    cdef const lc_action *a
    cdef uint32_t k
    if keep and w.doubt_count + w.open:
        doubts = <lc_doubt *> calloc(w.doubt_count + w.open, sizeof(lc_doubt))
        if doubts == NULL:
            return -1
        for i in range(w.doubt_count):
            if not w.doubts[i].again:
                doubts[n] = w.doubts[i]
                n += 1
    for k in range(w.inflight):
        if w.syncs[k].open == 0:
            continue
        for i in range(k * w.window, k * w.window + w.syncs[k].count):
            a = &w.actions[i]
            if a.seq == 0:
                continue
            if keep:
                doubts[n].seq = a.seq
                doubts[n].ms = a.ms
                doubts[n].counter = a.counter
                n += 1
            elif drop and outcome_add(w.out, a.seq, a.seq, FAILED, R_DOUBT) < 0:
                return -1
    free(w.doubts)
    w.doubts = doubts
    w.doubt_count = n
    if n:
        qsort(doubts, n, sizeof(lc_doubt), by_seq)
    if n > most:
        memmove(doubts, doubts + n - most, most * sizeof(lc_doubt))
        w.doubt_count = most
    return 0


# Forget what is in flight and what was received, but neither ids, clocks nor doubts.
cdef void forget(lc_logux *w) noexcept nogil:
    cdef uint32_t k
    for k in range(w.inflight):
        w.syncs[k].open = w.syncs[k].count = 0
        w.syncs[k].text.size = 0
        trim(&w.syncs[k].text, TEXT_KEPT)
    memset(w.buckets, 0xFF, (<size_t> w.mask + 1) * sizeof(uint32_t))
    w.open = w.flying = 0
    w.bytes = 0
    w.oldest = NULL
    w.pings.size = 0
    w.inbox.size = w.inbox_at = w.undone.size = w.replies.size = w.ready.size = 0
    w.ready_count = 0
    trim(&w.inbox, ROOM_KEPT)
    trim(&w.undone, ROOM_KEPT)
    trim(&w.ready, ROOM_KEPT)
    w.stopped = False
    w.over = False
    w.wrong = WRONG_NONE
    w.headers.wanted = 0
    w.headers.blocked = False
    forget_runs(&w.runs)
