# Logux, compiled: what a client does for each action; the decoder of captures.
#
#   message    a JSON text, [type, ...], whole in one WebSocket message
#   sync       ["sync", added, action, meta, action, meta, ...]; added: actions sent in all, with these
#   meta       {"id": shift | [shift, n] | [shift, "node id", n], "time": ms[, "subprotocol": n]}; shift, time
#              from the connection's base, the second time of `connected`
#   answer     ["synced", added], at once; later, for each action,
#              ["sync", n, {"id": "<ms> <node id> <n>", "type": "logux/processed"}, meta]

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport llround
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from logclient._ext.decoder cimport BatchDecoder, Events, clear_id, identify, scan_room
from logclient._ext.hash cimport HASH_LANES, SEED, xxh64_lanes, xxh64_of
from logclient._ext.hot cimport (
    ACKED,
    FAILED,
    INFLIGHT,
    K_DOCUMENT,
    K_MASK,
    K_TOPIC_SHIFT,
    PENDING,
    R_DOUBT,
    R_NONE,
    R_NOT_JSON,
    R_TOO_LARGE,
    R_UNENCODABLE,
    STOP_MEMORY,
    lc_batch,
    lc_outcomes,
    lc_wire,
    outcome_add,
    wire_reserve,
)
from logclient._ext.ids cimport (
    ID_SIZE,
    PRODUCER_SIZE,
    add_common,
    hash_bodies,
    keep_user_id,
    lc_id,
    lc_put_digits,
    lc_rows,
    lc_spell,
    trim,
)
from logclient._ext.jsonscan cimport (
    SCAN_PAD,
    copy_object,
    find_braces,
    key_is,
    lc_block,
    lc_object,
    lc_span,
    lc_special,
    number_end,
    skip_space,
    string_end,
)

# ---------------------------------------------------------------------------------------------------
# The client
# ---------------------------------------------------------------------------------------------------
#
# An action in flight is told by (ms, n), the two numbers of its id: the node id is the same in all of them.

cdef enum:
    BODY_LIMIT = 64 << 20        # bytes of an action before its id
    PREFIX_ROOM = 32             # ["sync",<19 digits>
    META_ROOM = 160              # commas, id, time, subprotocol, brackets
    TAIL_SIZE = 41               # ,"id":"<32 digits>"}
    CLOCKS = 8                   # offsets kept
    HEAD_SIZE = 16               # of a body with a time of its own
    DOUBTS = 4                   # times what may be in flight: older ones are of events dropped since
    DIGITS = 15                  # of a number that is read here; JavaScript counts no further
    ROOM_KEPT = 1 << 22
    WHOLE = 1                    # nibbles of kinds: the body is an action; ... behind a head
    TIMED = 2

cdef extern from *:
    """
    #include <stdint.h>
    #define LC_NO_TIME INT64_MIN
    """
    const int64_t NO_TIME "LC_NO_TIME"

cdef const uint32_t NONE = 0xFFFFFFFF

# Seconds. By so much the wall clock may be corrected without counting as set anew; by so much the events of
# two threads may be out of order.
cdef const double SLEW = 0.02
cdef const double SLACK = 0.1


# One action in flight. Those of a sync stand together.
ctypedef struct lc_action:
    uint64_t seq                 # 0: it has its outcome
    int64_t ms
    uint64_t counter
    int64_t time                 # as its meta says
    int64_t subprotocol          # ... or -1
    uint32_t next                # in its bucket
    uint32_t at                  # where its text is in the message
    uint32_t size


ctypedef struct lc_sync:
    int64_t added
    uint32_t count               # of actions
    uint32_t open                # ... without an outcome; 0: the place is free
    bint synced


# How far the wall clock was ahead of the monotonic one, and when that was seen: monotonic seconds.
ctypedef struct lc_clock:
    double ahead
    double first
    double last


# What was in doubt when a connection ended, to go under the same id.
ctypedef struct lc_doubt:
    uint64_t seq
    int64_t ms
    uint64_t counter
    bint again                   # it is on the wire again


# So many equal answers.
ctypedef struct lc_answer:
    int64_t added
    uint64_t count


ctypedef struct lc_client:
    bint identity
    bint check
    bint synced_mode
    uint32_t window
    uint32_t inflight
    uint64_t window_bytes
    const uint8_t *head          # {"type":...,"data":
    size_t head_size
    uint8_t tail[TAIL_SIZE]      # the id, zeros for the sequence, and the closing brace
    const uint8_t *node
    size_t node_size
    # of this connection
    bint ready                   # after `connected`
    int64_t base
    double began                 # when `connected` came, and what the server's clock was then: ms beyond base
    double lead
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
    lc_sync *oldest              # of the syncs in flight
    lc_doubt *doubts
    size_t doubt_count
    # what came
    lc_outcomes out
    lc_answer *answers
    size_t answer_runs
    size_t answer_room
    uint64_t answer_count
    double progress_at                 # when the oldest sync got an outcome, or its answer, or became it
    uint64_t processed
    uint64_t unmatched
    int64_t received             # the highest `added` of the server's
    # clocks, the newest last
    lc_clock clocks[CLOCKS]
    int clock_count
    double since                 # nothing was made earlier under the oldest of them
    lc_clock maybe               # seen once
    bint maybe_count
    uint64_t last_seq            # of the events whose time was told
    double last_time             # monotonic
    lc_wire wire


# -- clocks ----------------------------------------------------------------------------------------

# The wall clock showed `wall` when the monotonic one was at `now` or a little beyond: what is found too late
# by is never too little, so more than before must be seen twice.
cdef void look_at_clocks(lc_client *w, double now, double wall) noexcept nogil:
    cdef double ahead = wall - now
    cdef lc_clock *c
    if w.clock_count:
        c = &w.clocks[w.clock_count - 1]
        if -SLEW <= ahead - c.ahead <= SLEW:
            c.ahead = ahead
            c.last = now
            w.maybe_count = 0
            return
        if ahead > c.ahead:
            if not w.maybe_count or not -SLEW <= ahead - w.maybe.ahead <= SLEW:
                w.maybe_count = 1
                w.maybe.ahead = ahead
                w.maybe.first = now
                return
            if now <= w.maybe.first:
                return           # the same look
            ahead = min(ahead, w.maybe.ahead)
        if w.clock_count == CLOCKS:
            w.since = w.clocks[0].last
            memmove(&w.clocks[0], &w.clocks[1], (CLOCKS - 1) * sizeof(lc_clock))
            w.clock_count -= 1
    else:
        w.since = now
    c = &w.clocks[w.clock_count]
    c.ahead = ahead
    c.first = w.maybe.first if w.maybe_count else now
    c.last = now
    w.maybe_count = 0
    w.clock_count += 1


# How far from possible it is that an event was made at the monotonic second `at`, when the clock was seen
# otherwise until `since` and from `until` on, and the event before was made at `before`.
cdef inline double misfit(double at, double since, double until, double before) noexcept nogil:
    cdef double off = 0
    if at < since - SLEW:
        off = since - at
    elif at > until + SLEW:
        off = at - until
    if at < before - SLACK:
        off += before - at
    return off


# The monotonic second at which an event was made that the wall clock then called `us`. Of the offsets that
# the clock had, the newest under which that is possible; else the one under which it nearly is.
cdef double made_at(lc_client *w, int64_t us, double now, uint64_t seq) noexcept nogil:
    cdef double wall = <double> us * 1e-6
    cdef double before = w.last_time if seq > w.last_seq else -1e300
    cdef double best = now, least = 1e300, until = now, at, off
    cdef int i
    for i in range(w.clock_count - 1, -1, -1):
        if least == 0:
            break
        at = wall - w.clocks[i].ahead
        off = misfit(at, w.clocks[i - 1].last if i else w.since, until, before)
        if off < least:
            least = off
            best = at
        until = w.clocks[i].first
    if least > 0 and w.maybe_count:
        at = wall - w.maybe.ahead
        if misfit(at, w.clocks[w.clock_count - 1].last, now, before) < least:
            best = at
    best = min(best, now)
    if seq > w.last_seq:
        w.last_seq = seq
        w.last_time = best
    return best


# -- in flight -------------------------------------------------------------------------------------

cdef inline uint32_t bucket_of(lc_client *w, int64_t ms, uint64_t counter) noexcept nogil:
    cdef uint64_t h = (<uint64_t> ms * 0x9E3779B97F4A7C15ULL + counter) * 0xD1B54A32D192ED03ULL
    return <uint32_t> (h >> 32) & w.mask


# The place for another sync, or NONE.
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


# The server works through syncs in their order: what it says of later ones is no sign of life of this one.
cdef inline void move_on(lc_client *w, lc_sync *s, double now) noexcept nogil:
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


# Action i has its outcome.
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
    move_on(w, s, now)


cdef int acknowledge(lc_client *w, uint32_t i, double now) noexcept nogil:
    if outcome_add(&w.out, w.actions[i].seq, w.actions[i].seq, ACKED, R_NONE) < 0:
        return STOP_MEMORY
    settle(w, i, now)
    w.processed += 1
    w.out.progress += 1
    return 0


# The server has got all syncs up to this one.
cdef int take_synced(lc_client *w, double added, double now) noexcept nogil:
    cdef uint32_t k, i
    cdef lc_sync *s
    for k in range(w.inflight):
        s = &w.syncs[k]
        if not s.open or s.synced or s.added > added:
            continue
        s.synced = True
        move_on(w, s, now)
        if not w.synced_mode:
            continue
        for i in range(k * w.window, k * w.window + s.count):
            if w.actions[i].seq and acknowledge(w, i, now) < 0:
                return STOP_MEMORY
    return 0


# -- encoding --------------------------------------------------------------------------------------

# What the server must find in an action, and must not; its fields are looked through once.
ctypedef struct lc_look:
    bint typed                   # "type" is a string
    bint long_                   # "length" is a number: no object to JavaScript's eyes
    lc_span id


# The byte after the string that begins at p (its opening quote), or NULL.
cdef inline const uint8_t *past_string(const uint8_t *p, const uint8_t *end, bint *escaped) noexcept nogil:
    p += 1
    while p < end:
        if p[0] == c'"':
            return p + 1
        if p[0] == c'\\':
            escaped[0] = True
            p += 1
        p += 1
    return NULL


cdef inline const uint8_t *past_space(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


# ... after the array or object that begins at p.
cdef inline const uint8_t *past_nested(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint32_t depth = 0
    cdef bint escaped = False
    while p < end:
        if p[0] == c'"':
            p = past_string(p, end, &escaped)
            if p == NULL:
                return NULL
            continue
        if p[0] == c'{' or p[0] == c'[':
            depth += 1
        elif p[0] == c'}' or p[0] == c']':
            depth -= 1
            if depth == 0:
                return p + 1
        p += 1
    return NULL


# The members of an object, p at its opening and end at its closing brace. 0, or -1: it is none. Of equal keys
# the last counts.
cdef int look_through(const uint8_t *p, const uint8_t *end, lc_look *o) noexcept nogil:
    cdef const uint8_t *k
    cdef const uint8_t *q
    cdef bint escaped, other
    cdef size_t size
    memset(o, 0, sizeof(lc_look))
    p = past_space(p + 1, end)
    while p < end:
        if p[0] != c'"':
            return -1
        k = p + 1
        escaped = other = False
        p = past_string(p, end, &escaped)
        if p == NULL:
            return -1
        size = p - 1 - k
        p = past_space(p, end)
        if p == end or p[0] != c':':
            return -1
        p = past_space(p + 1, end)
        if p == end:
            return -1
        q = p
        if p[0] == c'"':
            p = past_string(p, end, &other)
        elif p[0] == c'{' or p[0] == c'[':
            p = past_nested(p, end)
        else:
            while p < end and p[0] != c',' and p[0] > c' ':
                p += 1
        if p == NULL or p == q:
            return -1
        if escaped or k[0] == c't' or k[0] == c'l' or k[0] == c'i':
            if key_is(k, size, escaped, b"type", 4):
                o.typed = q[0] == c'"'
            elif key_is(k, size, escaped, b"length", 6):
                o.long_ = q[0] == c'-' or c'0' <= q[0] <= c'9'
            elif key_is(k, size, escaped, b"id", 2):
                # of a string, what is between its quotes
                o.id.at = q + (q[0] == c'"')
                o.id.size = p - q - 2 * (q[0] == c'"')
        p = past_space(p, end)
        if p == end:
            return 0
        if p[0] != c',':
            return -1
        p = past_space(p + 1, end)
        if p == end:
            return -1
    return 0


cdef inline uint8_t *put_number(uint8_t *p, int64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef uint64_t v = <uint64_t> value
    cdef int n = 0
    if value < 0:
        p[0] = c'-'
        p += 1
        v = 0 - v
    while True:
        digits[n] = <uint8_t> (c'0' + v % 10)
        n += 1
        v //= 10
        if v == 0:
            break
    while n:
        n -= 1
        p[0] = digits[n]
        p += 1
    return p


cdef inline uint8_t *put_text(uint8_t *p, const char *text, size_t n) noexcept nogil:
    memcpy(p, text, n)
    return p + n


cdef inline uint8_t *put_meta(lc_client *w, uint8_t *p, const lc_action *a) noexcept nogil:
    p = put_text(p, b',{"id":', 7)
    if a.counter:
        p[0] = c'['
        p = put_number(p + 1, a.ms - w.base)
        p[0] = c','
        p = put_number(p + 1, <int64_t> a.counter)
        p[0] = c']'
        p += 1
    else:
        p = put_number(p, a.ms - w.base)
    p = put_text(p, b',"time":', 8)
    p = put_number(p, a.time)
    if a.subprotocol >= 0:
        p = put_text(p, b',"subprotocol":', 15)
        p = put_number(p, a.subprotocol)
    p[0] = c'}'
    return p + 1


# The text of event i's action, to p, with room behind it: checked, id in. Its size; 0 and batch.fate: it has
# none; STOP_MEMORY.
cdef int64_t put_action(lc_client *w, lc_batch *batch, uint32_t i, uint8_t *p, int nibble) noexcept nogil:
    cdef const uint8_t *body = batch.body[i]
    cdef size_t size = batch.size[i]
    cdef uint8_t *to = p
    cdef uint8_t *close
    cdef lc_object o
    cdef lc_look look
    cdef bint checked = w.check and batch.kind[i] & K_MASK != K_DOCUMENT
    cdef size_t tail
    if nibble == TIMED:
        body += HEAD_SIZE
        size -= HEAD_SIZE
    elif nibble == 0:
        memcpy(p, w.head, w.head_size)
        to += w.head_size
    if checked:
        if copy_object(to, body, size, &o) < 0:
            batch.reason[i] = R_NOT_JSON
            return 0
    else:
        memcpy(to, body, size)
        if find_braces(to, size, &o) < 0:
            batch.reason[i] = R_NOT_JSON
            return 0
    tail = TAIL_SIZE if w.identity else 1
    if nibble:
        if look_through(o.start, o.close, &look) < 0:
            batch.reason[i] = R_NOT_JSON
            return 0
        if not look.typed or look.long_:
            batch.reason[i] = R_UNENCODABLE
            return 0
        if look.id.at != NULL and w.identity:
            if keep_user_id(batch, i, &look.id) < 0:
                return STOP_MEMORY
            tail = 1
    size = o.close - o.start
    if o.start != to:
        memmove(to, o.start, size)
    close = to + size
    if nibble == 0:              # the brace is the data's
        close[0] = c'}'
        close += 1
    if tail == 1:
        close[0] = c'}'
        return close + 1 - p
    memcpy(close, w.tail, TAIL_SIZE)
    lc_put_digits(close + TAIL_SIZE - 14, lc_spell(batch.seq[i]))
    return close + TAIL_SIZE - p


cdef inline lc_doubt *find_doubt(lc_client *w, uint64_t seq) noexcept nogil:
    cdef size_t low = 0, high = w.doubt_count, middle
    while low < high:
        middle = (low + high) // 2
        if w.doubts[middle].seq < seq:
            low = middle + 1
        else:
            high = middle
    if low < w.doubt_count and w.doubts[low].seq == seq and not w.doubts[low].again:
        return &w.doubts[low]
    return NULL


# A new id at `ms` of the wall clock. When that goes back, the old one stays and counts on.
cdef inline void new_id(lc_client *w, lc_action *a, int64_t ms) noexcept nogil:
    if ms > w.ms:
        w.ms = ms
        w.counter = 0
    else:
        w.counter += 1
    a.ms = w.ms
    a.counter = w.counter


cdef inline int64_t server_time(lc_client *w, double at) noexcept nogil:
    cdef double ms = (at - w.began) * 1e3 + w.lead
    if not -9e15 < ms < 9e15:
        return 0
    return llround(ms)


cdef inline void enlist(lc_client *w, uint32_t i) noexcept nogil:
    cdef uint32_t b = bucket_of(w, w.actions[i].ms, w.actions[i].counter)
    w.actions[i].next = w.buckets[b]
    w.buckets[b] = i


cdef inline void open_sync(lc_client *w, uint32_t k, uint32_t n, double now) noexcept nogil:
    cdef lc_sync *s = &w.syncs[k]
    if w.open == 0:
        w.oldest = s
        w.progress_at = now
    w.added += n
    s.added = w.added
    s.count = s.open = n
    s.synced = False
    w.open += n


# The prefix goes before what begins at `room` bytes; where the message begins.
cdef inline size_t put_prefix(lc_client *w) noexcept nogil:
    cdef uint8_t prefix[PREFIX_ROOM]
    cdef size_t size = put_number(put_text(prefix, b'["sync",', 8), w.added) - prefix
    memcpy(w.wire.data + PREFIX_ROOM - size, prefix, size)
    return PREFIX_ROOM - size


# One sync message into w.wire, from `begin` on; how many actions it has, or STOP_MEMORY. `held`: it ended
# before an event beyond `upto`.
cdef int encode_sync(lc_client *w, lc_batch *batch, uint32_t events, double now, int64_t ms, uint64_t upto,
                     size_t *begin, bint *held) noexcept nogil:
    cdef uint32_t k = free_sync(w)
    cdef uint32_t i, n = 0, waiting = 0, lanes = xxh64_lanes()
    cdef size_t at[HASH_LANES]       # actions not hashed yet
    cdef size_t sizes[HASH_LANES]
    cdef uint32_t index[HASH_LANES]
    cdef uint64_t taken = 0
    cdef int64_t done
    cdef int64_t own[2]
    cdef size_t size
    cdef uint8_t *p
    cdef lc_action *a
    cdef lc_doubt *doubt
    cdef int nibble
    if not w.ready or k == NONE:
        return 0
    w.wire.size = 0
    if wire_reserve(&w.wire, PREFIX_ROOM) == NULL:
        return STOP_MEMORY
    w.wire.size = PREFIX_ROOM
    for i in range(batch.cursor, batch.n):
        if n == events or n == w.window:
            break
        if batch.fate[i] != PENDING:
            continue
        if batch.seq[i] > upto:
            held[0] = True
            break
        size = batch.size[i]
        nibble = batch.kind[i] >> K_TOPIC_SHIFT
        if n and taken + size > w.window_bytes:
            break
        if size > BODY_LIMIT:
            batch.fate[i] = FAILED
            batch.reason[i] = R_TOO_LARGE
            continue
        if nibble > TIMED or nibble == TIMED and size < HEAD_SIZE:
            batch.fate[i] = FAILED
            batch.reason[i] = R_UNENCODABLE
            continue
        done = STOP_MEMORY
        p = wire_reserve(&w.wire, w.head_size + size + TAIL_SIZE + SCAN_PAD + META_ROOM)
        if p != NULL:
            p[0] = c','
            done = put_action(w, batch, i, p + 1, nibble)
        if done == 0:
            batch.fate[i] = FAILED
            continue
        if done < 0:
            if n:
                break
            return STOP_MEMORY
        a = &w.actions[k * w.window + n]
        a.seq = batch.seq[i]
        a.at = <uint32_t> (w.wire.size + 1)
        a.size = <uint32_t> done
        a.subprotocol = -1
        own[0] = NO_TIME
        if nibble == TIMED:
            memcpy(own, batch.body[i], HEAD_SIZE)
            a.subprotocol = own[1]
        if own[0] != NO_TIME and w.clock_count:
            a.time = server_time(w, <double> own[0] * 1e-3 - w.clocks[w.clock_count - 1].ahead)
        else:
            a.time = server_time(w, made_at(w, batch.created_us[i], now, batch.seq[i]))
        doubt = find_doubt(w, batch.seq[i]) if w.doubt_count else NULL
        if doubt != NULL:
            doubt.again = True
            a.ms = doubt.ms
            a.counter = doubt.counter
        else:
            new_id(w, a, ms)
        enlist(w, k * w.window + n)
        at[waiting] = w.wire.size + 1
        sizes[waiting] = done
        index[waiting] = i
        waiting += 1
        if waiting == lanes:
            hash_bodies(batch, w.wire.data, at, sizes, index, waiting)
            waiting = 0
        w.wire.size = put_meta(w, p + 1 + done, a) - w.wire.data
        batch.fate[i] = INFLIGHT
        taken += size
        n += 1
    if n == 0:
        return 0
    if waiting:
        hash_bodies(batch, w.wire.data, at, sizes, index, waiting)
    w.wire.data[w.wire.size] = c']'          # META_ROOM has it
    w.wire.size += 1
    open_sync(w, k, n, now)
    begin[0] = put_prefix(w)
    for i in range(k * w.window, k * w.window + n):
        w.actions[i].at -= <uint32_t> begin[0]
    return n


# -- what comes ------------------------------------------------------------------------------------

cdef inline bint skip(const uint8_t **p, const uint8_t *end, const char *text, size_t n) noexcept nogil:
    if <size_t> (end - p[0]) < n or memcmp(p[0], text, n) != 0:
        return False
    p[0] += n
    return True


# A whole number, as JavaScript writes it.
cdef inline bint read_number(const uint8_t **p, const uint8_t *end, int64_t *value) noexcept nogil:
    cdef const uint8_t *q = p[0]
    cdef const uint8_t *first
    cdef bint negative = q < end and q[0] == c'-'
    cdef int64_t v = 0
    q += negative
    first = q
    while q < end and c'0' <= q[0] <= c'9' and q - first <= DIGITS:
        v = v * 10 + q[0] - c'0'
        q += 1
    if q == first or q - first > DIGITS or (first[0] == c'0' and (q - first > 1 or negative)):
        return False
    p[0] = q
    value[0] = -v if negative else v
    return True


# {"id":n,"time":n,"subprotocol":n}, as the server writes them.
cdef inline bint skip_meta(const uint8_t **p, const uint8_t *end) noexcept nogil:
    cdef int64_t n
    if not skip(p, end, b'{"id":', 6):
        return False
    if p[0] < end and p[0][0] == c'[':
        p[0] += 1
        if not (read_number(p, end, &n) and skip(p, end, b",", 1) and read_number(p, end, &n)
                and skip(p, end, b"]", 1)):
            return False
    elif not read_number(p, end, &n):
        return False
    if not (skip(p, end, b',"time":', 8) and read_number(p, end, &n)):
        return False
    if skip(p, end, b',"subprotocol":', 15) and not read_number(p, end, &n):
        return False
    return skip(p, end, b"}", 1)


cdef inline bint take_id(lc_client *w, const uint8_t **p, const uint8_t *end, int64_t *ms,
                         int64_t *counter) noexcept nogil:
    return (read_number(p, end, ms) and skip(p, end, b" ", 1)
            and skip(p, end, <const char *> w.node, w.node_size)
            and skip(p, end, b" ", 1) and read_number(p, end, counter) and counter[0] >= 0)


cdef int add_answer(lc_client *w, int64_t added) noexcept nogil:
    cdef lc_answer *p
    cdef size_t room
    if w.answer_runs and w.answers[w.answer_runs - 1].added == added:
        w.answers[w.answer_runs - 1].count += 1
        w.answer_count += 1
        return 0
    if w.answer_runs == w.answer_room:
        room = w.answer_room * 2 if w.answer_room else 64
        p = <lc_answer *> realloc(w.answers, room * sizeof(lc_answer))
        if p == NULL:
            return STOP_MEMORY
        w.answers = p
        w.answer_room = room
    w.answers[w.answer_runs].added = added
    w.answers[w.answer_runs].count = 1
    w.answer_runs += 1
    w.answer_count += 1
    return 0


# The two messages that come all the time, to the letter: 1 and done; 0: look closer; STOP_MEMORY.
cdef int receive_message(lc_client *w, const uint8_t *p, size_t size, double now) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef int64_t added = 0, ms = 0, counter = 0
    cdef uint32_t i
    if not w.ready:
        return 0
    if skip(&p, end, b'["synced",', 10):
        if not (read_number(&p, end, &added) and skip(&p, end, b"]", 1) and p == end):
            return 0
        w.out.alive += 1
        return 1 if take_synced(w, <double> added, now) == 0 else STOP_MEMORY
    if not (skip(&p, end, b'["sync",', 8) and read_number(&p, end, &added) and skip(&p, end, b",{", 2)):
        return 0
    if skip(&p, end, b'"id":"', 6):
        if not (take_id(w, &p, end, &ms, &counter)
                and skip(&p, end, b'","type":"logux/processed"},', 28)):
            return 0
    elif not (skip(&p, end, b'"type":"logux/processed","id":"', 31)
              and take_id(w, &p, end, &ms, &counter) and skip(&p, end, b'"},', 3)):
        return 0
    if not (skip_meta(&p, end) and skip(&p, end, b"]", 1) and p == end):
        return 0
    if add_answer(w, added) < 0:
        return STOP_MEMORY
    w.out.alive += 1
    w.received = max(w.received, added)
    i = find(w, ms, <uint64_t> counter)
    if i == NONE:
        w.unmatched += 1
        return 1
    return 1 if acknowledge(w, i, now) == 0 else STOP_MEMORY


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


@cython.final
cdef class ActionTracker:
    """The client; see the stub."""

    cdef lc_client w
    cdef bytes head, node
    cdef list texts              # of the syncs in flight

    def __cinit__(self):
        memset(&self.w, 0, sizeof(lc_client))

    def __init__(self, bytes producer, bytes action_type, *, int64_t window=100, int64_t window_bytes=1 << 18,
                 int64_t inflight=4, bint identity=True, bint check=True, bint synced=False):
        cdef lc_client *w = &self.w
        cdef size_t buckets = 1
        cdef bytes tail
        if w.syncs != NULL:
            raise TypeError("already made")
        if len(producer) != 10:
            raise ValueError(f"producer: 10 bytes, not {len(producer)}")
        for name, value, low, high in (
            ("window", window, 1, 10_000), ("window_bytes", window_bytes, 1, BODY_LIMIT),
            ("inflight", inflight, 1, 64), ("action_type", len(action_type), 3, 4096),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name}: {low} to {high}, not {value}")
        w.window = <uint32_t> window
        w.window_bytes = window_bytes
        w.inflight = <uint32_t> inflight
        w.identity = identity
        w.check = check
        w.synced_mode = synced
        self.head = b'{"type":' + action_type + b',"data":'
        w.head = <const uint8_t *> PyBytes_AS_STRING(self.head)
        w.head_size = len(self.head)
        tail = b',"id":"' + producer.hex().encode() + b"0" * (ID_SIZE - PRODUCER_SIZE) + b'"}'
        memcpy(w.tail, PyBytes_AS_STRING(tail), TAIL_SIZE)
        while buckets < 2 * <size_t> (window * inflight):
            buckets *= 2
        w.mask = <uint32_t> (buckets - 1)
        w.syncs = <lc_sync *> calloc(inflight, sizeof(lc_sync))
        w.actions = <lc_action *> calloc(window * inflight, sizeof(lc_action))
        w.buckets = <uint32_t *> calloc(buckets, sizeof(uint32_t))
        if w.syncs == NULL or w.actions == NULL or w.buckets == NULL:
            raise MemoryError()
        self.texts = [None] * inflight
        w.ms = -1
        forget(w)

    def __dealloc__(self):
        free(self.w.syncs)
        free(self.w.actions)
        free(self.w.buckets)
        free(self.w.doubts)
        free(self.w.answers)
        free(self.w.out.items)
        free(self.w.wire.data)

    cdef int made(self) except -1:
        if self.w.buckets == NULL:
            raise TypeError("not made")
        return 0

    # -- clocks

    def sample_clocks(self, double now, double wall):
        self.made()
        look_at_clocks(&self.w, now, wall)

    def made_at(self, int64_t us, double now, uint64_t seq):
        self.made()
        return made_at(&self.w, us, now, seq)

    def to_wall(self, double relative):
        cdef lc_client *w = &self.w
        cdef double at = w.began + (relative - w.lead) * 1e-3
        self.made()
        return (at + (w.clocks[w.clock_count - 1].ahead if w.clock_count else 0)) * 1e3

    # -- connections

    def connected(self, bytes node, int64_t base, double now, double lead):
        cdef lc_client *w = &self.w
        self.made()
        forget(w)
        self.node = node
        w.node = <const uint8_t *> PyBytes_AS_STRING(node)
        w.node_size = len(node)
        w.base = base
        w.began = w.progress_at = now
        w.lead = lead
        w.ready = True

    def connection_lost(self, *, bint keep=False, bint drop=False):
        cdef lc_client *w = &self.w
        cdef uint32_t k, i, doubts = w.open
        cdef size_t n = 0, most = DOUBTS * <size_t> w.window * w.inflight
        cdef lc_doubt *all_ = NULL
        self.made()
        w.out.n = 0
        if keep and w.doubt_count + w.open:
            all_ = <lc_doubt *> calloc(w.doubt_count + w.open, sizeof(lc_doubt))
            if all_ == NULL:
                raise MemoryError()
            for i in range(<uint32_t> w.doubt_count):
                if not w.doubts[i].again:
                    all_[n] = w.doubts[i]
                    n += 1
        for k in range(w.inflight):
            if w.syncs[k].open == 0:
                continue
            for i in range(k * w.window, k * w.window + w.syncs[k].count):
                if w.actions[i].seq == 0:
                    continue
                if keep:
                    all_[n].seq = w.actions[i].seq
                    all_[n].ms = w.actions[i].ms
                    all_[n].counter = w.actions[i].counter
                    n += 1
                elif drop:
                    outcome_add(&w.out, w.actions[i].seq, w.actions[i].seq, FAILED, R_DOUBT)
        free(w.doubts)
        w.doubts = all_
        w.doubt_count = n
        if n:
            qsort(all_, n, sizeof(lc_doubt), by_seq)
        if n > most:
            memmove(all_, all_ + n - most, most * sizeof(lc_doubt))
            w.doubt_count = most
        dropped, _, _ = self.outcomes()
        forget(w)
        for k in range(w.inflight):
            self.texts[k] = None
        return doubts, dropped

    # -- out

    def credit(self, uint32_t most):
        cdef lc_client *w = &self.w
        self.made()
        if not w.ready or w.open >= most or free_sync(w) == NONE:
            return 0
        return min(w.window, most - w.open)

    def encode(self, batch, uint32_t events, double now, double wall, uint64_t upto=<uint64_t> -1):
        cdef lc_client *w = &self.w
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef uint32_t k = free_sync(w) if w.buckets != NULL else NONE
        cdef size_t begin = 0
        cdef bint held = False
        cdef int n
        self.made()
        with nogil:
            n = encode_sync(w, b, events, now, <int64_t> (wall * 1e3), upto, &begin, &held)
        if n < 0:
            raise MemoryError("no room for a sync")
        if n == 0:
            return 0, b"", held
        text = PyBytes_FromStringAndSize(<const char *> w.wire.data + begin, w.wire.size - begin)
        w.wire.size = 0
        trim(&w.wire, ROOM_KEPT)
        self.texts[k] = text
        return n, text, held

    def encode_alone(self, uint64_t seq, bytes text, int64_t time, int64_t subprotocol, double now, double wall):
        cdef lc_client *w = &self.w
        cdef uint32_t k = free_sync(w)
        cdef lc_action *a
        cdef size_t begin
        cdef uint8_t *p
        self.made()
        if k == NONE or not w.ready:
            raise ValueError("encode_alone: no room in flight")
        w.wire.size = 0
        if wire_reserve(&w.wire, PREFIX_ROOM + len(text) + META_ROOM) == NULL:
            raise MemoryError()
        p = w.wire.data + PREFIX_ROOM
        p[0] = c','
        memcpy(p + 1, PyBytes_AS_STRING(text), len(text))
        a = &w.actions[k * w.window]
        a.seq = seq
        a.time = time
        a.subprotocol = subprotocol
        new_id(w, a, <int64_t> (wall * 1e3))
        enlist(w, k * w.window)
        p = put_meta(w, p + 1 + len(text), a)
        p[0] = c']'
        w.wire.size = p + 1 - w.wire.data
        open_sync(w, k, 1, now)
        begin = put_prefix(w)
        a.at = <uint32_t> (PREFIX_ROOM + 1 - begin)
        a.size = <uint32_t> len(text)
        message = PyBytes_FromStringAndSize(<const char *> w.wire.data + begin, w.wire.size - begin)
        w.wire.size = 0
        trim(&w.wire, ROOM_KEPT)
        self.texts[k] = message
        return message

    # -- in

    def receive(self, data, double now):
        cdef Py_buffer view
        cdef int done
        self.made()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        done = receive_message(&self.w, <const uint8_t *> view.buf, view.len, now)
        PyBuffer_Release(&view)
        if done < 0:
            raise MemoryError("no room for an outcome")
        return done == 1

    def synced(self, double added, double now):
        self.made()
        if take_synced(&self.w, added, now) < 0:
            raise MemoryError("no room for an outcome")

    def add_answer(self, int64_t added):
        self.made()
        if add_answer(&self.w, added) < 0:
            raise MemoryError("no room for an answer")
        self.w.received = max(self.w.received, added)

    def acknowledge(self, int64_t ms, int64_t counter, double now):
        cdef uint32_t i
        self.made()
        i = find(&self.w, ms, <uint64_t> counter)
        if i == NONE:
            return False
        if acknowledge(&self.w, i, now) < 0:
            raise MemoryError("no room for an outcome")
        return True

    def remove(self, int64_t ms, int64_t counter, double now):
        cdef lc_client *w = &self.w
        cdef uint32_t i
        cdef lc_action *a
        cdef bytes text
        self.made()
        i = find(w, ms, <uint64_t> counter)
        if i == NONE:
            return None
        a = &w.actions[i]
        text = self.texts[i // w.window]
        found = (a.seq, text[a.at:a.at + a.size], a.time, a.subprotocol, w.syncs[i // w.window].added)
        settle(w, i, now)
        return found

    def outcomes(self):
        cdef lc_outcomes *out = &self.w.out
        cdef uint32_t i, k
        for k in range(self.w.inflight):
            if self.w.syncs[k].open == 0 and self.texts[k] is not None:
                self.texts[k] = None         # many MiB must not be held until another text takes the place
        ranges = [(out.items[i].first, out.items[i].last, <int> out.items[i].fate, <int> out.items[i].reason)
                  for i in range(out.n)]
        result = ranges, out.alive, out.progress
        out.n = out.alive = out.progress = 0
        return result

    def drain_answers(self):
        cdef lc_client *w = &self.w
        cdef size_t i
        found = []
        for i in range(w.answer_runs):
            text = b'["synced",%d]' % w.answers[i].added
            found += [text] * <Py_ssize_t> w.answers[i].count
        w.answer_runs = 0
        w.answer_count = 0
        return found

    @property
    def answers_waiting(self):
        return self.w.answer_count

    @property
    def open(self):
        return self.w.open

    @property
    def oldest_added(self):
        return self.w.oldest.added if self.w.oldest != NULL else 0

    @property
    def oldest_synced(self):
        return self.w.oldest != NULL and self.w.oldest.synced

    @property
    def progress_at(self):
        return self.w.progress_at

    @property
    def added(self):
        return self.w.added

    @property
    def processed(self):
        return self.w.processed

    @property
    def unmatched(self):
        return self.w.unmatched

    @property
    def received(self):
        return self.w.received


# ---------------------------------------------------------------------------------------------------
# The decoder of captures
# ---------------------------------------------------------------------------------------------------
#
# A unit is a message, [type, ...]; of a sync each action is a row. The text is read once, without recursion:
# what is directly in the message, in its objects and in an id of a meta is looked at, all else is only JSON.
# The grammar is that of the checking pass (jsonscan.pxd); what each message must be like is what the server's
# core 0.10 asks for.

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON
    S_BAD_JSON
    S_BAD_MESSAGE
    S_UNKNOWN_MESSAGE
    S_BAD_SYNC
    S_BAD_ACTION
    S_BAD_META
    S_PING
    S_CONTROL

OK = <int> S_OK
FOREIGN = <int> S_FOREIGN
NO_ID = <int> S_NO_ID
NOT_JSON = <int> S_NOT_JSON
BAD_JSON = <int> S_BAD_JSON
BAD_MESSAGE = <int> S_BAD_MESSAGE
UNKNOWN_MESSAGE = <int> S_UNKNOWN_MESSAGE
BAD_SYNC = <int> S_BAD_SYNC
BAD_ACTION = <int> S_BAD_ACTION
BAD_META = <int> S_BAD_META
PING = <int> S_PING
CONTROL = <int> S_CONTROL
STATUS_NAMES = (
    "ok", "foreign", "no_id", "not_json", "bad_json", "bad_message", "unknown_message", "bad_sync",
    "bad_action", "bad_meta", "ping", "control",
)

cdef enum Kind:
    J_NONE = 0
    J_NUMBER
    J_STRING
    J_OBJECT
    J_LIST
    J_OTHER                      # true, false, null

cdef enum:
    MESSAGE_DEPTH = 1024         # a body of 1,000 levels fits, with what is around it
    MESSAGE_WORDS = 16           # of 64 levels each
    SHAPE_PAIR = J_NUMBER << 3 | J_NUMBER                          # [1, 0]
    SHAPE_TRIPLE = J_NUMBER << 6 | J_STRING << 3 | J_NUMBER        # [1, "10:uuid", 0]
    SHAPE_MORE = 1 << 12

# Messages: what must stand at 1, 2, ... and how many there are in all, of which `least`.
cdef enum Message:
    M_NONE = 0
    M_SYNC
    M_PING
    M_OTHER

MAX_DEPTH = <int> MESSAGE_DEPTH


# A value, as far as it is looked at.
ctypedef struct lc_value:
    int kind
    uint32_t shape               # of a list: the kinds of what is in it, three bits each
    lc_span text                 # of a string without its quotes


# What is directly in the message; of an object the last members of these names.
ctypedef struct lc_element:
    lc_value value
    bint escaped
    const uint8_t *at
    lc_value type
    lc_value id
    lc_value time
    lc_value length


# What is known of a message, as far as it was read.
ctypedef struct lc_message:
    const uint8_t *begin
    const uint8_t *close         # where its list ends
    bint is_list
    uint32_t index               # of the element that comes
    Message type
    const char *rest             # of others: a letter for each element; an upper-case one may be left out
    Status status                # what is wrong first ...
    const uint8_t *fault         # ... and where
    const uint8_t *stop          # where the text is no JSON
    int kind                     # of the whole, where it is a body
    const uint8_t *action
    size_t action_size
    lc_value id                  # the action's


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, a message each: a row for each action of a sync, one for any other message.

    A sync with anything wrong in it has one row, as servers reject all of it. `offset` and `length` are those
    of the action's text, or of the rest of the unit from the fault on.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an ``id`` counts when it begins
            with one of these, else it is hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        messages: False when a unit is the text of an action and nothing else.
    """

    cdef bint messages

    def __init__(self, producers=b"", *, bint identity=True, bint messages=True):
        self.begin(Events, b"", producers, identity)
        self.messages = messages

    cdef int decode_unit(self, const uint8_t *unit, size_t size) noexcept nogil:
        cdef lc_message m
        cdef lc_rows *r = &self.rows
        cdef lc_id nobody
        cdef size_t rows = r.n, foreigners = r.foreigners
        cdef uint8_t *p
        cdef const uint8_t *where
        cdef Status status
        cdef int done
        memset(&m, 0, sizeof(m))
        clear_id(&nobody)
        p = scan_room(self, size)
        if p == NULL:
            return -1
        memcpy(p, unit, size)
        m.begin = p
        if not self.messages:
            done = scan_message(self, &m, p, p + size, 0) if self.identity else 1
            if self.identity and (done == 0 or m.kind != J_OBJECT):
                return add_common(r, S_NOT_JSON, &nobody, xxh64_of(p, size, SEED), self.unit, 0, size)
            return add_action(self, p, p, size, &m.id)
        done = scan_message(self, &m, p, p + size, 1)
        if done < 0:
            return -1
        where = m.close
        status = m.status
        if done == 0:
            status = S_BAD_JSON
            where = m.stop
        elif not m.is_list:
            status = S_BAD_MESSAGE
            where = skip_space(p)
        elif m.status != S_OK:
            where = m.fault
        elif m.index == 0:
            status = S_BAD_MESSAGE
        elif m.type == M_SYNC:
            if m.index >= 2 and m.index & 1 == 0:
                return 0
            status = S_BAD_SYNC
        elif m.rest[0] >= c'a':
            status = S_BAD_MESSAGE
        else:
            status = S_PING if m.type == M_PING else S_CONTROL
            where = p
        r.n = rows                   # a server takes all of a message or nothing
        r.foreigners = foreigners
        return add_common(r, status, &nobody, 0, self.unit, where - p, p + size - where)


cdef inline bint is_text(const lc_element *e, const char *words, size_t size) noexcept nogil:
    return key_is(e.value.text.at, e.value.text.size, e.escaped, words, size)


# n: number, s: string, o: object that has no number as its length, p: two numbers, e: "error", a: anything
cdef inline void find_type(lc_message *m, const lc_element *e) noexcept nogil:
    m.type = M_OTHER
    if is_text(e, b"sync", 4):
        m.type = M_SYNC
        m.rest = b""
    elif is_text(e, b"ping", 4) or is_text(e, b"pong", 4):
        m.type = M_PING
        m.rest = b"n"
    elif is_text(e, b"synced", 6):
        m.rest = b"n"
    elif is_text(e, b"connect", 7):
        m.rest = b"nsnO"
    elif is_text(e, b"connected", 9):
        m.rest = b"nspO"
    elif is_text(e, b"headers", 7):
        m.rest = b"o"
    elif is_text(e, b"error", 5):
        m.rest = b"sA"
    elif is_text(e, b"debug", 5):
        m.rest = b"es"
    elif is_text(e, b"duilian", 7):
        m.rest = b"s"
    else:
        m.type = M_NONE


cdef inline bint is_object(const lc_element *e) noexcept nogil:
    return e.value.kind == J_OBJECT and e.length.kind != J_NUMBER


cdef inline bint is_what(const lc_element *e, char what) noexcept nogil:
    what |= 0x20
    if what == c'n':
        return e.value.kind == J_NUMBER
    if what == c's':
        return e.value.kind == J_STRING
    if what == c'o':
        return is_object(e)
    if what == c'p':
        return e.value.kind == J_LIST and e.value.shape == SHAPE_PAIR
    if what == c'e':
        return e.value.kind == J_STRING and is_text(e, b"error", 5)
    return what == c'a'


cdef inline bint is_meta(const lc_element *e) noexcept nogil:
    if not is_object(e) or e.time.kind != J_NUMBER:
        return False
    if e.id.kind == J_LIST:
        return e.id.shape == SHAPE_PAIR or e.id.shape == SHAPE_TRIPLE
    return e.id.kind == J_NUMBER


# A row for the action at p, whose own id is this. -1: out of memory.
cdef inline int add_action(Decoder d, const uint8_t *begin, const uint8_t *p, size_t size,
                           lc_value *own) noexcept nogil:
    cdef lc_id id_
    cdef int status = S_NO_ID
    clear_id(&id_)
    if d.identity and own.kind != J_NONE:
        status = identify(d, &own.text, &id_)
        if status < 0:
            return -1
    return add_common(&d.rows, <uint8_t> status, &id_, xxh64_of(p, size, SEED), d.unit, p - begin, size)


cdef inline void blame(lc_message *m, Status status, const uint8_t *where) noexcept nogil:
    if m.status == S_OK:
        m.status = status
        m.fault = where


# What is directly in the message, one after the other. -1 when memory is out.
cdef int take_element(Decoder d, lc_message *m, lc_element *e) noexcept nogil:
    cdef uint32_t i = m.index
    m.index += 1
    if m.status != S_OK:
        return 0
    if i == 0:
        if e.value.kind != J_STRING:
            blame(m, S_BAD_MESSAGE, e.at)
            return 0
        find_type(m, e)
        if m.type == M_NONE:
            blame(m, S_UNKNOWN_MESSAGE, e.at)
    elif m.type != M_SYNC:
        if m.rest[0] == 0 or not is_what(e, m.rest[0]):
            blame(m, S_BAD_MESSAGE, e.at)
            return 0
        m.rest += 1
    elif i == 1:
        if e.value.kind != J_NUMBER:
            blame(m, S_BAD_SYNC, e.at)
    elif i & 1 == 0:
        if not is_object(e) or e.type.kind != J_STRING:
            blame(m, S_BAD_ACTION, e.at)
            return 0
        m.action = e.at
        m.action_size = e.value.text.size
        m.id = e.id
    else:
        if not is_meta(e):
            blame(m, S_BAD_META, e.at)
            return 0
        return add_action(d, m.begin, m.action, m.action_size, &m.id)
    return 0


cdef inline void add_shape(lc_value *v, int kind) noexcept nogil:
    v.shape = SHAPE_MORE if v.shape >= SHAPE_MORE >> 3 else v.shape << 3 | <uint32_t> kind


# Read p[0:end-p]; end[0] is 0 and SCAN_PAD bytes from there on are readable. What lies at level `base` is an
# element, taken when it ends. 1: it is JSON; 0: it is none, and where is m.stop; -1: memory is out.
cdef int scan_message(Decoder d, lc_message *m, const uint8_t *p, const uint8_t *end,
                      uint32_t base) noexcept nogil:
    cdef lc_block block
    cdef uint64_t stack[MESSAGE_WORDS]          # a bit for each level: is what is around it an object?
    cdef uint32_t depth = 0
    cdef bint in_object = False, escaped
    cdef lc_element e
    cdef lc_value *member = NULL                # of the element, an object: where its value goes
    cdef const uint8_t *at                      # where the value begins
    cdef const uint8_t *member_at = NULL        # ... and one that is open
    cdef const uint8_t *q
    cdef int kind
    cdef uint8_t c
    memset(&e, 0, sizeof(e))
    block.at = p
    block.special = lc_special(p)
    p = skip_space(p)
    m.is_list = p[0] == c'['
    while True:
        # a member of an object, or an element of a list
        m.stop = p
        if in_object:
            if p[0] != c'"':
                return 0
            escaped = False
            q = string_end(&block, p + 1, &escaped)
            if q == NULL:
                return 0
            if depth == base + 1:
                member = NULL
                at = p + 1
                if escaped or at[0] == c't' or at[0] == c'i' or at[0] == c'l':
                    if key_is(at, q - at, escaped, b"type", 4):
                        member = &e.type
                    elif key_is(at, q - at, escaped, b"id", 2):
                        member = &e.id
                    elif key_is(at, q - at, escaped, b"time", 4):
                        member = &e.time
                    elif key_is(at, q - at, escaped, b"length", 6):
                        member = &e.length
            p = skip_space(q + 1)
            if p[0] != c':':
                m.stop = p
                return 0
            p = skip_space(p + 1)
            m.stop = p
        elif depth == base:
            memset(&e, 0, sizeof(e))
        # its value
        c = p[0]
        at = p
        if c == c'"':
            escaped = False
            q = string_end(&block, p + 1, &escaped)
            if q == NULL:
                return 0
            p = q + 1
            # the common case, before the general one below
            if in_object and (depth > base + 1 or member == NULL) and p[0] == c',' and p[1] == c'"':
                p += 1
                continue
            kind = J_STRING
            if depth == base:
                e.escaped = escaped
        elif c == c'{' or c == c'[':
            if depth == MESSAGE_DEPTH:
                return 0
            kind = J_OBJECT if c == c'{' else J_LIST
            q = skip_space(p + 1)
            if q[0] != (c'}' if c == c'{' else c']'):
                if depth == base:
                    e.at = p
                    member = NULL
                elif depth == base + 1:
                    member_at = p
                    if member != NULL:
                        member.shape = 0
                if in_object:
                    stack[depth >> 6] |= <uint64_t> 1 << (depth & 63)
                else:
                    stack[depth >> 6] &= ~(<uint64_t> 1 << (depth & 63))
                depth += 1
                in_object = c == c'{'
                p = q
                continue
            if member != NULL and depth == base + 1:
                member.shape = 0
            p = q + 1
            m.close = q
        else:
            if c == c'-' or c'0' <= c <= c'9':
                kind = J_NUMBER
                p = number_end(p)
                if p == NULL:
                    return 0
            else:
                kind = J_OTHER
                if c == c't' and memcmp(p, b"true", 4) == 0 or c == c'n' and memcmp(p, b"null", 4) == 0:
                    p += 4
                elif c == c'f' and memcmp(p, b"false", 5) == 0:
                    p += 5
                else:
                    return 0
        while True:
            # a value ends at p
            if depth <= base + 2:
                if depth == base:
                    e.at = at
                    e.value.kind = kind
                    e.value.text.at = at + (kind == J_STRING)
                    e.value.text.size = p - at - 2 * (kind == J_STRING)
                    if base == 0:
                        m.kind = kind
                        m.id = e.id
                    elif m.is_list and take_element(d, m, &e) < 0:
                        return -1
                elif depth == base + 1:
                    if not in_object:
                        add_shape(&e.value, kind)
                    elif member != NULL:
                        member.kind = kind
                        member.text.at = at + (kind == J_STRING)
                        member.text.size = p - at - 2 * (kind == J_STRING)
                elif depth == base + 2 and not in_object and member == &e.id:
                    add_shape(member, kind)
            # what follows it: the next one, or the end of one or more levels
            p = skip_space(p)
            if depth == 0:
                if p == end:
                    return 1
                m.stop = p
                return 0
            c = p[0]
            if c == c',':
                p = skip_space(p + 1)
                break
            if c != (c'}' if in_object else c']'):
                m.stop = p
                return 0
            kind = J_OBJECT if in_object else J_LIST
            m.close = p
            p += 1
            depth -= 1
            in_object = (stack[depth >> 6] >> (depth & 63)) & 1
            if depth == base:
                at = e.at
            elif depth == base + 1:
                at = member_at


def expand(unit):
    """The unit; see the stub."""
    return bytes(unit)
