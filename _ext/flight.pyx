"""The flight: batches detached from the hand-off, until each of their events has a fate.

Only the sender (whoever holds the engine's role) touches a flight, so nothing here is locked; counts
reach the hand-off in ``commit``, under its mutex, so that a snapshot always adds up.

A batch keeps the bodies as the caller gave them. A resend frames them anew: partial acks, a poison
event or another server make other windows of the same events.
"""

from collections import namedtuple

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from logclient._ext.constants cimport (
    ACKED,
    DROPPED,
    FAILED,
    HANDED,
    INFLIGHT,
    K_MASK,
    K_TOMB,
    PENDING,
    R_COUNT,
    R_MAX_AGE,
    R_NONE,
    R_OVERFLOW,
    SETTLED,
    WITHHELD,
)
from logclient._ext.handoff cimport (
    Handoff,
    chunk_data,
    event_room,
    event_takes,
    lc_chunk,
    lc_cond_wake_all,
    lc_event,
    lc_free,
    lc_grant,
    lc_handoff,
    lc_list,
    lc_monotonic,
    lc_mutex_lock,
    lc_mutex_unlock,
    lc_release,
    lc_surplus,
    lc_tidy,
)
from logclient._ext.hot cimport lc_batch, lc_outcome, lc_outcomes, lc_wire, outcome_add, wire_reserve

from logclient._ext.constants import REASONS, STATUSES

# One event of a batch, as a core written in Python sees it.
Event = namedtuple("Event", ("seq", "created_us", "level", "kind", "body"))

cdef enum:
    SPAN_US = 0x3FFFFFFF      # of a ledger line, either way from its first event: differences fit 32 bits

cdef const uint64_t NO_SEQ = <uint64_t> -1
cdef const uint64_t NO_LIMIT = <uint64_t> -1


cdef inline lc_event *_first(lc_list *list) noexcept nogil:
    return <lc_event *> (chunk_data(list.head) + list.head.read) if list.head != NULL else NULL


cdef inline bint _upto(lc_event *e, uint64_t seq) noexcept nogil:
    return e != NULL and e.seq <= seq


cdef void _let_go(lc_flight *f, lc_chunk *c) noexcept nogil:
    c.owners -= 1
    if c.owners == 0:
        c.next = f.dead
        f.dead = c


cdef void _shift(lc_list *source, lc_list *target) noexcept nogil:
    cdef lc_chunk *c = source.head
    source.head = c.next
    if source.head == NULL:
        source.tail = NULL
    c.next = NULL
    c.owners = 1             # of the staging list
    if target.tail == NULL:
        target.head = c
    else:
        target.tail.next = c
    target.tail = c


cdef inline uint64_t _first_seq(lc_list *list) noexcept nogil:
    cdef lc_event *e = _first(list)
    return e.seq if e != NULL else NO_SEQ


cdef void _stage(lc_flight *f, uint64_t events, uint64_t size) noexcept nogil:
    # Detach whole chunks, lowest sequence first, until there are `events` or `size` bytes between
    # hand-off and batch: no more, because what is detached can no longer be dropped.
    cdef lc_handoff *h = f.handoff
    cdef lc_chunk *c
    cdef lc_chunk *surplus
    cdef uint64_t queued, kept, low
    low = min(_first_seq(&f.ordinary), _first_seq(&f.kept))
    lc_mutex_lock(&h.mutex)
    while f.dead != NULL:
        c = f.dead
        f.dead = c.next
        lc_release(h, c)
    while True:
        queued = _first_seq(&h.queue)
        kept = _first_seq(&h.kept)
        # Beyond the first event that stays behind nothing may be taken.
        f.horizon = min(queued, kept, h.next_seq)
        if queued == kept or (low < f.horizon and (f.staged_events >= events or f.staged_bytes >= size)):
            break            # equal only when there is neither
        low = min(low, f.horizon)
        c = h.queue.head if queued < kept else h.kept.head
        f.staged_events += c.count
        f.staged_bytes += c.used - c.read
        h.queued_events -= c.count
        h.queued_bytes -= c.used - c.read
        h.held_events += c.count
        h.held_bytes += c.used - c.read
        if queued < kept:
            _shift(&h.queue, &f.ordinary)
        else:
            h.kept_events -= c.count
            h.kept_bytes -= c.used - c.read
            _shift(&h.kept, &f.kept)
    surplus = lc_surplus(h)
    lc_mutex_unlock(&h.mutex)
    lc_free(surplus)


cdef lc_event *_peek(lc_flight *f, lc_list **source) noexcept nogil:
    cdef lc_event *e
    source[0] = &f.ordinary if _first_seq(&f.ordinary) < _first_seq(&f.kept) else &f.kept
    e = _first(source[0])
    return e if e != NULL and e.seq < f.horizon else NULL


cdef void _free_batch(lc_flight *f, lc_batch *b) noexcept nogil:
    cdef uint32_t i
    for i in range(b.chunk_count):
        _let_go(f, <lc_chunk *> b.chunks[i])
    free(b.id_hash)
    free(b.id_second)
    free(f.spare)
    f.spare = b


cdef lc_batch *_new_batch(lc_flight *f, uint32_t n) noexcept nogil:
    cdef lc_batch *b = f.spare
    if b == NULL or b.room < n:
        return _room(n)
    f.spare = NULL
    _lay_out(b, b.room)
    return b


cdef lc_batch *_room(uint32_t n) noexcept nogil:
    # One allocation: the struct, then the columns, widest first.
    cdef lc_batch *b = <lc_batch *> malloc(sizeof(lc_batch) + <size_t> n * (5 * 8 + 4 + 4))
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
    b.fate = p + 46 * <size_t> n
    b.reason = p + 47 * <size_t> n


cdef lc_batch *flight_take(lc_flight *f, uint32_t events, uint64_t size) noexcept nogil:
    # A new batch of at most `events` events and `size` bytes (but at least one event); NULL when
    # nothing is queued or memory is out.
    cdef lc_batch *b
    cdef lc_list *source = NULL
    cdef lc_event *e
    cdef lc_chunk *c
    cdef uint64_t taken = 0
    cdef uint64_t room
    cdef uint32_t n = 0
    _stage(f, events, size)
    e = _peek(f, &source)
    if e == NULL:
        return NULL
    b = _new_batch(f, events)
    if b == NULL:
        return NULL
    while e != NULL and n < events:
        room = event_takes(e)
        if n and taken + room > size:
            break
        if e.seq > f.expected:
            if outcome_add(&f.report, f.expected, e.seq - 1, <uint8_t> DROPPED, <uint8_t> R_OVERFLOW) < 0:
                break
        f.expected = e.seq + 1
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
        b.fate[n] = <uint8_t> PENDING
        b.reason[n] = <uint8_t> R_NONE
        if e.kind & K_MASK == K_TOMB:
            b.fate[n] = <uint8_t> FAILED
            b.reason[n] = b.body[n][0]
        n += 1
        taken += room
        c.read += <uint32_t> room
        c.count -= 1
        if c.read == c.used:
            source.head = c.next
            if source.head == NULL:
                source.tail = NULL
            _let_go(f, c)
        e = _peek(f, &source)
    b.n = n
    b.pending = n
    b.bytes = taken
    f.staged_events -= n
    f.staged_bytes -= taken
    f.serial += 1
    b.serial = f.serial
    if f.tail == NULL:
        f.head = b
    else:
        f.tail.next = b
    f.tail = b
    f.batches += 1
    flight_encoded(f, b)     # settles the tombstones
    return b


cdef bint flight_awaited(lc_flight *f) noexcept nogil:
    # Whether somebody waits for the fate of an event that no batch has taken: then a nap is none. Read
    # without the mutex it may be a moment old.
    return f.expected <= f.handoff.target


cdef void flight_bound(lc_flight *f, uint32_t *events) noexcept nogil:
    # While a poison is sought: a bound on the core's credit, and nothing beside it on the wire.
    # In a trial the engine must see the first outcome before any other event is sent.
    if f.hold or (f.alone != NULL and f.alone.pending == 0):
        events[0] = 0
    elif f.limit:
        events[0] = 0 if f.inflight or (f.prompt and f.report.n) else min(events[0], f.limit)
    if f.allowance < events[0] and f.alone == NULL:
        events[0] = <uint32_t> f.allowance


cdef lc_batch *flight_pending(lc_flight *f) noexcept nogil:
    # The oldest batch with events to send (again).
    cdef lc_batch *b = f.head
    if f.alone != NULL:
        return f.alone if f.alone.pending else NULL
    while b != NULL and b.pending == 0:
        b = b.next
    return b


cdef void _count(lc_flight *f, lc_batch *b, uint32_t i) noexcept nogil:
    cdef uint8_t fate = b.fate[i]
    cdef uint8_t reason = b.reason[i]
    f.freed_events += 1
    if fate == ACKED:
        f.acked += 1
    elif fate == HANDED:
        f.handed += 1
    else:
        fate = <uint8_t> FAILED
        if reason >= R_COUNT:
            reason = <uint8_t> R_NONE
        f.failed[reason] += 1
    outcome_add(&f.report, b.seq[i], b.seq[i], fate, reason)
    b.fate[i] = fate | SETTLED


cdef int flight_encoded(lc_flight *f, lc_batch *b) noexcept nogil:
    # After encode (or take): recount the batch, settle what encode gave a final fate.
    cdef uint32_t i
    cdef uint32_t pending = 0
    cdef uint32_t inflight = 0
    cdef uint32_t new = 0
    cdef uint32_t cursor = b.n
    cdef uint8_t fate
    for i in range(b.low, b.n):
        fate = b.fate[i]
        if fate == PENDING:
            if pending == 0:
                cursor = i
            pending += 1
        elif fate == INFLIGHT:
            inflight += 1
            if i >= b.listed:
                new += 1
        elif not fate & SETTLED and fate != WITHHELD:
            _count(f, b, i)
    f.inflight += inflight
    f.inflight -= b.inflight
    if inflight > b.inflight and f.allowance != NO_LIMIT:
        f.allowance -= min(f.allowance, <uint64_t> (inflight - b.inflight))
    # An event before `listed` was on the wire before: it is there again.
    if inflight > b.inflight + new:
        f.resent += inflight - b.inflight - new
    b.pending = pending
    b.inflight = inflight
    b.cursor = cursor
    while b.low < b.n and b.fate[b.low] & SETTLED:
        b.low += 1
    return 0


cdef void _apply(lc_flight *f, lc_batch *b, lc_outcome *o) noexcept nogil:
    cdef uint32_t i, mid
    cdef uint32_t lo = b.low
    cdef uint32_t hi = b.n
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
        if b.fate[i] != INFLIGHT:
            continue
        b.inflight -= 1
        f.inflight -= 1
        if o.fate == PENDING:
            b.fate[i] = <uint8_t> PENDING
            b.pending += 1
            if i < b.cursor:
                b.cursor = i
        else:
            b.fate[i] = o.fate
            b.reason[i] = o.reason
            f.outcomes += 1
            _count(f, b, i)
    while b.low < b.n and b.fate[b.low] & SETTLED:
        b.low += 1


cdef int flight_apply(lc_flight *f, lc_outcomes *out) noexcept nogil:
    # Give these sequences their fate: only those in flight; PENDING puts them back.
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
    return 0


cdef void _free_suspect(lc_batch *b) noexcept nogil:
    free(<void *> b.body[0])
    free(b.id_hash)
    free(b.id_second)
    free(b)


cdef void _free_suspects(lc_flight *f) noexcept nogil:
    # Of the quarantine: what has its fate.
    cdef lc_batch **at = &f.quarantine
    cdef lc_batch *b
    while at[0] != NULL:
        b = at[0]
        if b.low < b.n:
            at = &b.next
            continue
        at[0] = b.next
        if f.alone == b:
            f.alone = NULL
        f.freed_bytes += b.bytes
        _free_suspect(b)


cdef bint flight_commit(lc_flight *f) noexcept nogil:
    # Free the batches that are done, bring the counts to the hand-off, wake who waits for them.
    # Returns whether a waiter's target was reached.
    cdef lc_handoff *h = f.handoff
    cdef lc_batch *b = f.head
    cdef lc_batch *before = NULL
    cdef lc_batch *following
    cdef lc_chunk *c
    cdef lc_chunk *surplus
    cdef uint64_t first
    cdef uint32_t i
    cdef double now = lc_monotonic()
    cdef bint reached = False
    cdef bint granted = False
    if f.alone != NULL and f.alone.low == f.alone.n:
        _free_suspects(f)
    while b != NULL:
        following = b.next
        if b.low == b.n:
            f.freed_bytes += b.bytes
            if before == NULL:
                f.head = following
            else:
                before.next = following
            if following == NULL:
                f.tail = before
            f.batches -= 1
            _free_batch(f, b)
        else:
            before = b
        b = following
    if f.head != NULL:
        first = f.head.seq[f.head.low]
    else:
        first = min(_first_seq(&f.ordinary), _first_seq(&f.kept))
    lc_mutex_lock(&h.mutex)
    h.held_events -= f.freed_events
    h.held_bytes -= f.freed_bytes
    while f.dead != NULL:
        c = f.dead
        f.dead = c.next
        lc_release(h, c)
    lc_tidy(h, now)
    surplus = lc_surplus(h)
    first = min(first, _first_seq(&h.queue), _first_seq(&h.kept), h.next_seq)
    f.reached = first - 1
    if f.quarantine != NULL:
        first = min(first, f.quarantine.seq[0])
    h.inflight = f.inflight
    h.acked += f.acked
    h.handed += f.handed
    h.resent += f.resent
    for i in range(<uint32_t> R_COUNT):
        h.failed[i] += f.failed[i]
        f.failed[i] = 0
    f.acked = f.handed = f.resent = f.freed_events = f.freed_bytes = 0
    h.settled = first - 1
    if h.target and h.settled >= h.target:
        h.target = 0
        reached = True
    # Callers that wait for room get an eighth of the queue at once: to be woken is dearer than to put an
    # event. If the first of them needs more, the others wait for it.
    if h.line != NULL and 8 * (h.queued_bytes + h.held_bytes) <= 7 * h.max_bytes and (
            8 * (h.queued_events + h.held_events) <= 7 * h.max_events):
        granted = lc_grant(h)
    if h.waiters and reached or granted:
        lc_cond_wake_all(&h.moved)
    lc_mutex_unlock(&h.mutex)
    lc_free(surplus)
    return reached


cdef void _requeue(lc_batch *b) noexcept nogil:
    cdef uint32_t i
    if b.inflight:
        for i in range(b.low, b.n):
            if b.fate[i] == INFLIGHT:
                b.fate[i] = <uint8_t> PENDING
        b.pending += b.inflight
        b.inflight = 0
        b.cursor = b.low


cdef void flight_requeue(lc_flight *f) noexcept nogil:
    # The connection is gone: all that had no word yet is sent again, in order.
    cdef lc_batch *b = f.head
    while b != NULL:
        _requeue(b)
        b = b.next
    if f.alone != NULL:
        _requeue(f.alone)
    f.inflight = 0


cdef lc_batch *_extract(lc_flight *f, lc_batch *b, uint32_t i) noexcept nogil:
    # A batch of one event with a copy of its body, in its place in the quarantine; NULL when memory is out.
    cdef uint64_t room = event_room(b.size[i])   # what its chunk has beyond that stays with the batch
    cdef lc_batch *own = _room(1)
    cdef uint8_t *body = <uint8_t *> malloc(b.size[i] + 1)
    cdef lc_batch **at = &f.quarantine
    if own == NULL or body == NULL:
        free(own)
        free(body)
        return NULL
    memcpy(body, b.body[i], b.size[i])
    own.n = 1
    own.bytes = room
    own.seq[0] = b.seq[i]
    own.created_us[0] = b.created_us[i]
    own.hash[0] = b.hash[i]
    own.body[0] = body
    own.size[0] = b.size[i]
    own.kind[0] = b.kind[i]
    own.level[0] = b.level[i]
    own.fate[0] = <uint8_t> WITHHELD
    own.reason[0] = <uint8_t> R_NONE
    own.listed = 1                               # it was on the wire before: its ids are in the ledger
    own.cursor = 1
    f.serial += 1
    own.serial = f.serial
    b.bytes -= room
    while at[0] != NULL and at[0].seq[0] < own.seq[0]:
        at = &at[0].next
    own.next = at[0]
    at[0] = own
    return own


# --- ledger lines (docs/formats.md) --------------------------------------------------------------

cdef const char *B64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int _base64(lc_wire *w, const uint8_t *p, size_t n) noexcept nogil:
    cdef uint8_t *q = wire_reserve(w, (n + 2) // 3 * 4)
    cdef size_t i = 0
    cdef uint32_t v
    if q == NULL:
        return -1
    while i + 3 <= n:
        v = (<uint32_t> p[i] << 16) | (<uint32_t> p[i + 1] << 8) | p[i + 2]
        q[0] = B64[v >> 18]
        q[1] = B64[(v >> 12) & 63]
        q[2] = B64[(v >> 6) & 63]
        q[3] = B64[v & 63]
        q += 4
        i += 3
    if i < n:
        v = <uint32_t> p[i] << 16
        if i + 1 < n:
            v |= <uint32_t> p[i + 1] << 8
        q[0] = B64[v >> 18]
        q[1] = B64[(v >> 12) & 63]
        q[2] = B64[(v >> 6) & 63] if i + 1 < n else 61
        q[3] = 61
    w.size += (n + 2) // 3 * 4
    return 0


cdef int _text(lc_wire *w, const char *text, size_t n) noexcept nogil:
    cdef uint8_t *q = wire_reserve(w, n)
    if q == NULL:
        return -1
    memcpy(q, text, n)
    w.size += n
    return 0


cdef int _range(lc_wire *w, uint64_t first, uint64_t last, bint more) noexcept nogil:
    cdef char tmp[64]
    cdef int n = snprintf(tmp, sizeof(tmp), b"%s[%llu,%llu]", <const char *> (b"," if more else b""),
                          <unsigned long long> first, <unsigned long long> last)
    return _text(w, tmp, <size_t> n)


cdef inline bint _listed(lc_batch *b, uint32_t i) noexcept nogil:
    cdef uint8_t fate = b.fate[i] & ~SETTLED
    return fate == INFLIGHT or fate == HANDED


cdef inline bint _named(const uint64_t *names, uint32_t i) noexcept nogil:
    return names != NULL and (names[2 * i] or names[2 * i + 1])


cdef int _ranges(lc_wire *w, lc_batch *b, uint32_t start, uint32_t stop,
                 const uint64_t *names) noexcept nogil:
    # The listed sequences of start..stop as ranges: those that have a name, or all when `names` is NULL.
    cdef uint32_t i
    cdef bint some = False
    cdef bint more = False
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    for i in range(start, stop):
        if not _listed(b, i) or (names != NULL and not _named(names, i)):
            continue
        if some and b.seq[i] == last + 1:
            last = b.seq[i]
            continue
        if some:
            if _range(w, first, last, more) < 0:
                return -1
            more = True
        some = True
        first = last = b.seq[i]
    return _range(w, first, last, more) if some else 0


cdef int _line(lc_flight *f, lc_batch *b, uint32_t start, uint32_t stop) noexcept nogil:
    # One `batch` line for the events start..stop that went on the wire.
    cdef lc_wire *w = &f.line
    cdef lc_wire *t = &f.packed
    cdef char tmp[96]
    cdef uint32_t i
    cdef uint32_t n = 0
    cdef uint32_t k = 0
    cdef uint32_t own = 0
    cdef int64_t base = 0
    cdef int32_t delta
    cdef uint8_t *hashes
    cdef uint8_t *deltas
    for i in range(start, stop):
        if _listed(b, i):
            if n == 0:
                base = b.created_us[i]
            n += 1
            own += _named(b.id_hash, i)
    if n == 0:
        return 0
    t.size = 0
    deltas = wire_reserve(t, <size_t> n * 12)
    if deltas == NULL:
        return -1
    hashes = deltas + 4 * <size_t> n
    if _text(w, b'{"t":"batch","seqs":[', 21) < 0 or _ranges(w, b, start, stop, NULL) < 0:
        return -1
    for i in range(start, stop):
        if not _listed(b, i):
            continue
        delta = <int32_t> (b.created_us[i] - base)
        memcpy(deltas + 4 * <size_t> k, &delta, 4)
        memcpy(hashes + 8 * <size_t> k, b.hash + i, 8)
        k += 1
    k = <uint32_t> snprintf(tmp, sizeof(tmp), b'],"n":%u', n)
    if _text(w, tmp, k) < 0:
        return -1
    if own and (_text(w, b',"own":[', 8) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0
                or _text(w, b']', 1) < 0):
        return -1
    k = <uint32_t> snprintf(tmp, sizeof(tmp), b',"base":%lld,"created":"', <long long> base)
    if _text(w, tmp, k) < 0 or _base64(w, deltas, 4 * <size_t> n) < 0:
        return -1
    if _text(w, b'","hashes":"', 12) < 0 or _base64(w, hashes, 8 * <size_t> n) < 0:
        return -1
    return _text(w, b'"}\n', 3)


cdef int64_t _names(lc_flight *f, lc_batch *b, uint32_t start, uint32_t stop,
                    const uint64_t *names) noexcept nogil:
    # Pack the names that the listed events start..stop have; how many. -1 when memory is out.
    cdef lc_wire *t = &f.packed
    cdef uint8_t *to
    cdef uint32_t i, n = 0
    t.size = 0
    to = wire_reserve(t, 16 * <size_t> (stop - start))
    if to == NULL:
        return -1
    for i in range(start, stop):
        if _listed(b, i) and _named(names, i):
            memcpy(to + 16 * <size_t> n, names + 2 * <size_t> i, 16)
            n += 1
    return n


cdef int _ids_line(lc_flight *f, lc_batch *b, uint32_t start, uint32_t stop) noexcept nogil:
    # One `ids` line for the events start..stop that went on the wire with ids of their own.
    cdef lc_wire *w = &f.line
    cdef lc_wire *t = &f.packed
    cdef char tmp[64]
    cdef int64_t n = _names(f, b, start, stop, b.id_hash)
    cdef int k
    if n <= 0:
        return <int> n
    if _text(w, b'{"t":"ids","seqs":[', 19) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0:
        return -1
    k = snprintf(tmp, sizeof(tmp), b'],"n":%lld,"ids":"', <long long> n)
    if _text(w, tmp, k) < 0 or _base64(w, t.data, 16 * <size_t> n) < 0:
        return -1
    if b.id_second != NULL:
        n = _names(f, b, start, stop, b.id_second)
        if n < 0:
            return -1
        if n and (_text(w, b'","beside":[', 12) < 0 or _ranges(w, b, start, stop, b.id_second) < 0
                  or _text(w, b'],"second":"', 12) < 0 or _base64(w, t.data, 16 * <size_t> n) < 0):
            return -1
    return _text(w, b'"}\n', 3)


cdef int flight_ledger(lc_flight *f, lc_batch *b) noexcept nogil:
    # Once after each flight_encoded. Append to f.line what the ledger must know before the first byte of
    # these events is sent; nothing for a resend. Longer spans of time make more lines.
    cdef uint32_t start = b.listed
    cdef uint32_t i
    cdef int64_t base
    if b.cursor <= b.listed:
        return 0
    base = b.created_us[start]
    for i in range(start, b.cursor):
        if not -SPAN_US <= b.created_us[i] - base <= SPAN_US:
            if _line(f, b, start, i) < 0:
                return -1
            start = i
            base = b.created_us[i]
    if _line(f, b, start, b.cursor) < 0:
        return -1
    if b.id_hash != NULL and _ids_line(f, b, b.listed, b.cursor) < 0:
        return -1
    b.listed = b.cursor
    return 0


# --- for Python -----------------------------------------------------------------------------------

cdef class Batch:
    """A batch as Python sees it: a core's ``encode`` and the tests.

    It names the batch, it does not own it: once every event has its fate the batch is gone, and any
    use raises ``LookupError``.
    """

    cdef Flight flight
    cdef uint64_t serial

    cdef lc_batch *find(self) except NULL:
        cdef lc_batch *b
        if self.flight is None:
            raise TypeError("made by Flight.take")
        if self.flight.f.alone != NULL and self.flight.f.alone.serial == self.serial:
            return self.flight.f.alone
        b = self.flight.f.head
        while b != NULL:
            if b.serial == self.serial:
                return b
            b = b.next
        raise LookupError("every event of this batch has its fate")

    @property
    def capsule(self):
        """The C batch for a compiled core; valid until the next ``apply``."""
        return PyCapsule_New(self.find(), b"logclient.batch", NULL)

    def __len__(self):
        return self.find().n

    def pending(self, limit=None):
        """The first `limit` events that wait to be sent, as (seq, created_us, level, kind, body)."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        cdef list found = []
        for i in range(b.cursor, b.n):
            if limit is not None and len(found) >= limit:
                break
            if b.fate[i] == PENDING:
                body = PyBytes_FromStringAndSize(<const char *> b.body[i], b.size[i])
                found.append(Event(b.seq[i], b.created_us[i], b.level[i], b.kind[i], body))
        return found

    def mark(self, uint64_t seq, uint8_t fate, uint8_t reason=0, uint64_t hash=0):
        """Set the fate of a pending event, and the hash of its body as carried."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        for i in range(b.cursor, b.n):
            if b.seq[i] == seq and b.fate[i] == PENDING:
                b.fate[i] = fate
                b.reason[i] = reason
                b.hash[i] = hash
                return
        raise LookupError(f"no pending event {seq} in this batch")

    def fates(self):
        """{seq: fate} by name."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        return {b.seq[i]: STATUSES[b.fate[i] & ~SETTLED] for i in range(b.n)}

    def hashes(self):
        """{seq: hash of the body as carried}, 0 before it was encoded."""
        cdef lc_batch *b = self.find()
        cdef uint32_t i
        return {b.seq[i]: b.hash[i] for i in range(b.n)}


cdef class Flight:
    """Batches on their way, for one sender.

    The Python pump and the tests use these methods; a compiled pump the C functions behind them.
    """

    def __cinit__(self, Handoff handoff not None):
        self.handoff = handoff
        self._begin()

    cdef void _begin(self):
        memset(&self.f, 0, sizeof(lc_flight))
        self.f.handoff = self.handoff.h
        self.f.expected = 1
        self.f.allowance = NO_LIMIT

    def __dealloc__(self):
        cdef lc_batch *b = self.f.head
        cdef lc_batch *following
        cdef lc_chunk *c
        cdef lc_chunk *later
        cdef lc_chunk *chains[3]
        cdef uint32_t i
        while b != NULL:
            following = b.next
            _free_batch(&self.f, b)
            b = following
        b = self.f.quarantine
        while b != NULL:
            following = b.next
            _free_suspect(b)
            b = following
        chains[0] = self.f.ordinary.head
        chains[1] = self.f.kept.head
        for i in range(2):
            c = chains[i]
            while c != NULL:
                later = c.next
                _let_go(&self.f, c)
                c = later
        lc_free(self.f.dead)
        free(self.f.spare)
        free(self.f.report.items)
        free(self.f.line.data)
        free(self.f.packed.data)

    def renew(self):
        """In a forked child, after ``Handoff.renew``: nothing in flight; the parent's batches leak."""
        self._begin()

    def pending(self):
        """The oldest batch with events to send again, or None."""
        return self._batch(flight_pending(&self.f))

    def take(self, uint32_t events, uint64_t size):
        """Detach a new batch of at most `events` events and `size` bytes (at least one event), or None."""
        return self._batch(flight_take(&self.f, events, size))

    cdef _batch(self, lc_batch *b):
        cdef Batch view
        if b == NULL:
            return None
        view = Batch.__new__(Batch)
        view.flight = self
        view.serial = b.serial
        return view

    def encoded(self, Batch batch not None):
        """After a core's ``encode``: count the fates it set; the ledger lines due before the send."""
        cdef lc_batch *b = batch.find()
        flight_encoded(&self.f, b)
        self.f.line.size = 0
        if flight_ledger(&self.f, b) < 0:
            raise MemoryError
        return PyBytes_FromStringAndSize(<const char *> self.f.line.data, <Py_ssize_t> self.f.line.size)

    def apply(self, ranges, uint8_t fate, uint8_t reason=0):
        """Give these ranges of sequences a fate; PENDING puts them back. Others than in flight stay."""
        cdef lc_outcome item
        cdef lc_outcomes out
        for first, last in ranges:
            item.first = first
            item.last = last
            item.fate = fate
            item.reason = reason
            out.items = &item
            out.n = 1
            flight_apply(&self.f, &out)

    def requeue(self):
        """The connection is gone: what had no word yet is pending again, in order."""
        flight_requeue(&self.f)

    @property
    def flying(self):
        """(first, last, number) of the events on the wire without a word yet; zeros when there are none."""
        cdef lc_batch *b = self.f.head
        cdef uint64_t first = 0
        cdef uint64_t last = 0
        cdef uint32_t i
        if self.f.alone != NULL and self.f.alone.inflight:
            first = last = self.f.alone.seq[0]
        while b != NULL:
            if b.inflight:
                for i in range(b.low, b.n):
                    if b.fate[i] == INFLIGHT:
                        first = first if first else b.seq[i]
                        last = b.seq[i]
            b = b.next
        return first, last, self.f.inflight

    @property
    def limit(self):
        """Events on the wire at one time, while a poison is sought; 0: as the core's credit says."""
        return self.f.limit

    @limit.setter
    def limit(self, uint32_t events):
        self.f.limit = events

    @property
    def prompt(self):
        """Whether the pump comes back at the first outcome, and sends nothing more before that."""
        return self.f.prompt != 0

    @prompt.setter
    def prompt(self, bint on):
        self.f.prompt = on

    @property
    def hold(self):
        """Whether nothing new is sent; the pump comes back (``target``) once nothing is in flight."""
        return self.f.hold != 0

    @hold.setter
    def hold(self, bint on):
        self.f.hold = on

    @property
    def drained(self):
        """Whether the connection can be left: nothing new is sent, and nothing is in flight."""
        return self.f.hold and self.f.inflight == 0

    @property
    def allowance(self):
        """Events that may still be sent, None: any number. An event of the quarantine needs none."""
        return None if self.f.allowance == NO_LIMIT else self.f.allowance

    @allowance.setter
    def allowance(self, events):
        self.f.allowance = NO_LIMIT if events is None else events

    @property
    def outcomes(self):
        """How many events in flight got their fate so far."""
        return self.f.outcomes

    @property
    def reached(self):
        """Every sequence up to this one has its fate or is in quarantine, as of the last ``commit``."""
        return self.f.reached

    @property
    def aside(self):
        """How many events are held back while another one is tried."""
        return self.f.aside

    def bound(self, uint32_t events):
        """How many of the `events` that the core would take may be encoded now."""
        flight_bound(&self.f, &events)
        return events

    def put_aside(self, uint64_t events):
        """Hold the first pending events back: they keep their places until `give_back` or `quarantine`."""
        self.f.aside = self._swap(events, PENDING, <uint8_t> WITHHELD, <uint8_t> R_NONE)

    def give_back(self):
        """What was put aside is pending again."""
        self._swap(self.f.aside, <uint8_t> WITHHELD, PENDING, <uint8_t> R_NONE)
        self.f.aside = 0

    def quarantine(self):
        """Move what was put aside to the quarantine, out of its batches: their sequences.

        Each becomes a batch of its own, so that it keeps no neighbour's memory. One for which there
        is no memory is pending again.
        """
        cdef lc_batch *b = self.f.head
        cdef lc_batch *own
        cdef list moved = []
        cdef uint32_t i
        while b != NULL and self.f.aside:
            for i in range(b.low, b.n):
                if b.fate[i] == WITHHELD and self.f.aside:
                    own = _extract(&self.f, b, i)
                    if own != NULL:
                        b.fate[i] = <uint8_t> WITHHELD | <uint8_t> SETTLED
                        moved.append(b.seq[i])
                        self.f.aside -= 1
            flight_encoded(&self.f, b)
            b = b.next
        self.give_back()
        return moved

    @property
    def quarantined(self):
        """The sequences in quarantine, rising."""
        cdef lc_batch *b = self.f.quarantine
        cdef list found = []
        while b != NULL:
            found.append(b.seq[0])
            b = b.next
        return found

    cdef lc_batch *_suspect(self, uint64_t seq) except NULL:
        cdef lc_batch *b = self.f.quarantine
        while b != NULL and b.seq[0] != seq:
            b = b.next
        if b == NULL:
            raise LookupError(f"no event {seq} in quarantine")
        return b

    def send_alone(self, uint64_t seq):
        """Send this event of the quarantine and nothing else; 0: the quarantine stays behind.

        Raises:
            LookupError: there is no such event in quarantine.
        """
        cdef lc_batch *b = self.f.alone
        if b != NULL and b.fate[0] == PENDING:
            b.fate[0] = <uint8_t> WITHHELD
            flight_encoded(&self.f, b)
        self.f.alone = NULL
        if seq:
            b = self._suspect(seq)
            b.fate[0] = <uint8_t> PENDING
            flight_encoded(&self.f, b)
            self.f.alone = b

    def condemn(self, uint64_t seq, uint8_t reason):
        """Fail this event of the quarantine. Returns its size in bytes."""
        cdef lc_batch *b = self._suspect(seq)
        cdef uint32_t size = b.size[0]
        if b.fate[0] == WITHHELD or b.fate[0] == PENDING:
            b.fate[0] = <uint8_t> FAILED
            b.reason[0] = reason
            flight_encoded(&self.f, b)
            _free_suspects(&self.f)
        return size

    # The first `events` of this fate get another one; how many there were.
    cdef uint64_t _swap(self, uint64_t events, uint8_t old, uint8_t new, uint8_t reason):
        cdef lc_batch *b = self.f.head
        cdef uint64_t done = 0
        cdef uint32_t i
        while b != NULL and done < events:
            for i in range(b.low, b.n):
                if b.fate[i] == old and done < events:
                    b.fate[i] = new
                    b.reason[i] = reason
                    done += 1
            flight_encoded(&self.f, b)
            b = b.next
        return done

    def fail(self, uint8_t reason):
        """Give up everything detached and queued: failed(reason). Returns how many events that were."""
        cdef lc_batch *b
        cdef uint32_t i
        cdef uint64_t count = 0
        while flight_take(&self.f, 2048, 1 << 20) != NULL:
            pass
        b = self.f.head
        while b != NULL:
            for i in range(b.low, b.n):
                if not b.fate[i] & SETTLED:
                    b.fate[i] = <uint8_t> FAILED
                    b.reason[i] = reason
                    count += 1
            flight_encoded(&self.f, b)
            b = b.next
        b = self.f.quarantine
        while b != NULL:
            if not b.fate[0] & SETTLED:
                b.fate[0] = <uint8_t> FAILED
                b.reason[0] = reason
                count += 1
            flight_encoded(&self.f, b)
            b = b.next
        _free_suspects(&self.f)
        self.gaps()
        return count

    def expire(self, uint64_t seq):
        """Fail the events up to this sequence that are not on the wire: max_age."""
        cdef lc_handoff *h = self.f.handoff
        cdef lc_batch *b
        cdef uint32_t i
        cdef bint old
        while True:
            # Detach only what is old; the rest stays where overflow can still drop it.
            old = _upto(_first(&self.f.ordinary), seq) or _upto(_first(&self.f.kept), seq)
            lc_mutex_lock(&h.mutex)
            old = old or _upto(_first(&h.queue), seq) or _upto(_first(&h.kept), seq)
            lc_mutex_unlock(&h.mutex)
            if not old or flight_take(&self.f, 2048, 1 << 20) == NULL:
                break
        b = self.f.head
        while b != NULL:
            if b.pending:
                for i in range(b.low, b.n):
                    if b.fate[i] == PENDING and b.seq[i] <= seq:
                        b.fate[i] = <uint8_t> FAILED
                        b.reason[i] = <uint8_t> R_MAX_AGE
                flight_encoded(&self.f, b)
            b = b.next
        b = self.f.quarantine
        while b != NULL:
            if b.seq[0] <= seq and b.inflight == 0 and not b.fate[0] & SETTLED:
                b.fate[0] = <uint8_t> FAILED
                b.reason[0] = <uint8_t> R_MAX_AGE
                flight_encoded(&self.f, b)
            b = b.next
        if self.f.quarantine != NULL:
            _free_suspects(&self.f)

    def gaps(self):
        """Report what was dropped since the last event taken, as far as the queue tells."""
        cdef lc_handoff *h = self.f.handoff
        cdef uint64_t first
        lc_mutex_lock(&h.mutex)
        first = min(_first_seq(&h.queue), _first_seq(&h.kept), h.next_seq)
        lc_mutex_unlock(&h.mutex)
        first = min(first, _first_seq(&self.f.ordinary), _first_seq(&self.f.kept))
        if first > self.f.expected:
            outcome_add(&self.f.report, self.f.expected, first - 1, <uint8_t> DROPPED, <uint8_t> R_OVERFLOW)
            self.f.expected = first

    def commit(self):
        """Free what is done and bring the counts to the hand-off; whether a waiter's target was reached."""
        return flight_commit(&self.f)

    def report(self):
        """The fates given since the last call: (first, last, fate, reason) by name, merged."""
        cdef uint32_t i
        cdef lc_outcome *o
        cdef lc_outcomes *out = &self.f.report
        cdef list found = []
        for i in range(out.n):
            o = &out.items[i]
            found.append((o.first, o.last, STATUSES[o.fate], REASONS[o.reason]))
        out.n = 0
        return found

    @property
    def reported(self):
        """Whether ``report()`` would return anything."""
        return self.f.report.n > 0

    @property
    def inflight(self):
        """Events on the wire without a word yet."""
        return self.f.inflight

    @property
    def awaited(self):
        """Whether somebody waits for the fate of an event that no batch has taken."""
        return flight_awaited(&self.f)

    @property
    def waiting(self):
        """Events detached that must be sent (again), in a batch or not yet."""
        cdef lc_batch *b = self.f.head
        cdef uint64_t n = self.f.staged_events
        while b != NULL:
            n += b.pending
            b = b.next
        return n

    @property
    def queued(self):
        """Events and bytes that no batch has taken yet, whether in the hand-off or detached."""
        events, size = self.handoff.queued
        return events + self.f.staged_events, size + self.f.staged_bytes
