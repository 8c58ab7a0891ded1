# The members of an action that servers require or refuse, and its own id.
ctypedef struct lc_look:
    bint typed                   # "type" is a string
    bint has_length              # "length" is a number: servers disconnect
    lc_span id


# Look through the members of an object from its opening brace to its closing brace, `end`. Of equal keys the
# last counts. 0; -1: not an object.
cdef int look_through(const uint8_t *p, const uint8_t *end, lc_look *o) noexcept nogil:
    cdef lc_member m
    cdef const uint8_t *v
    cdef int found
    memset(o, 0, sizeof(lc_look))
    m.value.at = NULL
    while True:
        found = next_member(&p, end, &m)
        if found <= 0:
            return found
        if m.escaped or m.key.at[0] == c't' or m.key.at[0] == c'l' or m.key.at[0] == c'i':
            v = m.value.at
            if key_is(m.key.at, m.key.size, m.escaped, b"type", 4):
                o.typed = v[0] == c'"'
            elif key_is(m.key.at, m.key.size, m.escaped, b"length", 6):
                o.has_length = v[0] == c'-' or c'0' <= v[0] <= c'9'
            elif key_is(m.key.at, m.key.size, m.escaped, b"id", 2):
                # without the quotes of a string
                o.id.at = v + (v[0] == c'"')
                o.id.size = m.value.size - 2 * (v[0] == c'"')


cdef inline uint8_t *put_text(uint8_t *p, const char *text, size_t n) noexcept nogil:
    memcpy(p, text, n)
    return p + n


cdef inline uint8_t *put_meta(lc_logux *w, uint8_t *p, const lc_action *a) noexcept nogil:
    p = put_text(p, b',{"id":', 7)
    if a.counter:
        p[0] = c'['
        p = lc_int(p + 1, a.ms - w.base)
        p[0] = c','
        p = lc_int(p + 1, <int64_t> a.counter)
        p[0] = c']'
        p += 1
    else:
        p = lc_int(p, a.ms - w.base)
    p = put_text(p, b',"time":', 8)
    p = lc_int(p, a.time)
    if a.subprotocol >= 0:
        p = put_text(p, b',"subprotocol":', 15)
        p = lc_int(p, a.subprotocol)
    p[0] = c'}'
    return p + 1


# Write the action of event i to p, with room behind it: checked, and with the id. Returns its size; 0: it
# cannot be encoded, see batch.reason; STOP_MEMORY.
cdef int64_t put_action(lc_logux *w, lc_batch *batch, uint32_t i, uint8_t *p, int nibble) noexcept nogil:
    cdef const uint8_t *body = batch.body[i]
    cdef size_t size = batch.size[i]
    cdef uint8_t *to = p
    cdef uint8_t *close
    cdef lc_object o
    cdef lc_look look
    cdef bint checked = w.check and batch.kind[i] & K_MASK != K_DOCUMENT
    if nibble == TIMED:
        body += HEAD_SIZE
        size -= HEAD_SIZE
    elif nibble == 0:
        memcpy(p, w.head, w.head_size)
        to += w.head_size
    if open_object(to, body, size, checked, &o) < 0 or nibble and look_through(o.start, o.close, &look) < 0:
        batch.reason[i] = R_NOT_JSON
        return 0
    cdef size_t tail = TAIL_SIZE if w.identity else 1
    if nibble:
        if not look.typed or look.has_length:
            batch.reason[i] = R_UNENCODABLE
            return 0
        if look.id.at != NULL and w.identity:
            if keep_id(&batch.id_hash, batch.n, i, &look.id) < 0:
                return STOP_MEMORY
            tail = 1
    size = o.close - o.start
    if o.start != to:
        memmove(to, o.start, size)
    close = to + size
    if nibble == 0:              # this brace ends the data
        close[0] = c'}'
        close += 1
    if tail == 1:
        close[0] = c'}'
        return close + 1 - p
    memcpy(close, w.tail, TAIL_SIZE)
    lc_put_digits(close + TAIL_SIZE - 14, lc_spell(batch.seq[i]))
    return close + TAIL_SIZE - p


cdef inline lc_doubt *find_doubt(lc_logux *w, uint64_t seq) noexcept nogil:
    cdef lc_doubt key
    key.seq = seq
    cdef lc_doubt *found = <lc_doubt *> bsearch(&key, w.doubts, w.doubt_count, sizeof(lc_doubt), by_seq)
    return found if found != NULL and not found.again else NULL


# Give an action a new id at `ms` of the wall clock. If that went back, the last ms stays and the counter
# grows.
cdef inline void new_id(lc_logux *w, lc_action *a, int64_t ms) noexcept nogil:
    if ms > w.ms:
        w.ms = ms
        w.counter = 0
    else:
        w.counter += 1
    a.ms = w.ms
    a.counter = w.counter


cdef inline int64_t server_time(lc_logux *w, double at) noexcept nogil:
    cdef double ms = (at - w.began) * 1e3 + w.lead
    if not -9e15 < ms < 9e15:
        return 0
    return llround(ms)


# Add action i, whose text begins behind the comma at p, at the end of the wire: to its sync, with its meta.
# There is room for both.
cdef inline void place_action(lc_logux *w, lc_wire *wire, uint32_t i, uint8_t *p,
                              uint32_t size) noexcept nogil:
    cdef lc_action *a = &w.actions[i]
    cdef lc_sync *s = &w.syncs[i // w.window]
    cdef uint32_t b = bucket_of(w, a.ms, a.counter)
    p[0] = c','
    a.next = w.buckets[b]
    w.buckets[b] = i
    a.at = <uint32_t> s.text.size
    a.size = size
    append_bytes(&s.text, p + 1, size)
    wire.size = put_meta(w, p + 1 + size, a) - wire.data


cdef inline void open_sync(lc_logux *w, uint32_t k, uint32_t n, uint64_t size, double now) noexcept nogil:
    cdef lc_sync *s = &w.syncs[k]
    if w.open == 0:
        w.oldest = s
        w.progress_at = now
    w.added += n
    s.added = w.added
    s.count = s.open = n
    s.synced = False
    s.size = size
    w.open += n
    w.bytes += size
    w.flying += 1
    limit_sent(&w.limit, &s.trip, w.flying, now)


# Finish the sync that begins at `begin` of the wire, and its actions SYNC_HEAD bytes later. Its last byte is
# in META_ROOM.
cdef void end_sync(lc_logux *w, lc_wire *wire, size_t begin) noexcept nogil:
    cdef uint8_t *p = wire.data + begin
    cdef uint8_t *to = lc_int(put_text(p + HEAD, b'["sync",', 8), w.added)
    wire.data[wire.size] = c']'
    wire.size += 1
    memmove(to, p + SYNC_HEAD, wire.size - begin - SYNC_HEAD)
    wire.size -= p + SYNC_HEAD - to
    lc_put_frame(p, <uint32_t> (wire.size - begin - HEAD))


# Append a sync message to the wire. Returns how many actions it has, or STOP_MEMORY. `held` is set if an
# event beyond `last` ended it.
cdef int encode_sync(lc_logux *w, lc_batch *batch, uint32_t events, double now, uint64_t last,
                     lc_wire *wire, bint *held) noexcept nogil:
    cdef uint32_t k = free_sync(w)
    cdef uint32_t i = batch.cursor - 1, n = 0
    cdef uint64_t taken = 0
    cdef int64_t done, ms = <int64_t> (w.wall * 1e3)
    cdef int64_t own[2]
    cdef size_t size, room, begin = wire.size
    cdef uint8_t *p
    cdef lc_action *a
    cdef lc_doubt *doubt
    cdef int nibble
    if k == NONE:
        return 0
    events = min(events, w.window)
    w.syncs[k].text.size = 0
    if wire_reserve(wire, SYNC_HEAD) == NULL:
        return STOP_MEMORY
    wire.size += SYNC_HEAD
    while next_event(batch, &i, n, events, taken, w.piece.size):
        if batch.seq[i] > last:
            held[0] = True
            break
        size = batch.size[i]
        nibble = batch.kind[i] >> K_TOPIC_SHIFT
        if size > BODY_LIMIT:
            fail_event(batch, i, R_TOO_LARGE)
            continue
        if nibble > TIMED or nibble == TIMED and size < HEAD_SIZE:
            fail_event(batch, i, R_UNENCODABLE)
            continue
        done = STOP_MEMORY
        room = w.head_size + size + TAIL_SIZE + SCAN_PAD + META_ROOM
        p = wire_reserve(wire, room)
        if p != NULL and wire_reserve(&w.syncs[k].text, room) != NULL:
            done = put_action(w, batch, i, p + 1, nibble)
        if done == 0:
            batch.status[i] = FAILED
            continue
        if done < 0:
            if n:
                break
            wire.size = begin
            return STOP_MEMORY
        a = &w.actions[k * w.window + n]
        a.seq = batch.seq[i]
        a.subprotocol = -1
        own[0] = NO_TIME
        if nibble == TIMED:
            memcpy(own, batch.body[i], HEAD_SIZE)
            a.subprotocol = own[1]
        if own[0] != NO_TIME and w.clocks.count:
            a.time = server_time(w, <double> own[0] * 1e-3 - clock_ahead(&w.clocks))
        else:
            a.time = server_time(w, made_at(&w.clocks, batch.created_us[i], now, batch.seq[i]))
        doubt = find_doubt(w, batch.seq[i]) if w.doubt_count else NULL
        if doubt != NULL:
            doubt.again = True
            a.ms = doubt.ms
            a.counter = doubt.counter
        else:
            new_id(w, a, ms)
        keep_hash(batch, i, p + 1, done)
        place_action(w, wire, k * w.window + n, p, <uint32_t> done)
        batch.status[i] = INFLIGHT
        taken += queue_bytes(size)
        n += 1
    if n == 0:
        wire.size = begin
        return 0
    open_sync(w, k, n, taken, now)
    end_sync(w, wire, begin)
    return <int> n


# Append a sync of one suspect, under a new id. 1; 0: there is no place for it; STOP_MEMORY.
cdef int encode_alone(lc_logux *w, const lc_suspect *one, double now, lc_wire *wire) noexcept nogil:
    cdef uint32_t k = free_sync(w)
    cdef size_t begin = wire.size
    if k == NONE:
        return 0
    cdef uint8_t *p = wire_reserve(wire, SYNC_HEAD + 1 + one.size + META_ROOM)
    if p == NULL or wire_reserve(&w.syncs[k].text, one.size) == NULL:
        return STOP_MEMORY
    p += SYNC_HEAD
    memcpy(p + 1, one.text, one.size)
    cdef lc_action *a = &w.actions[k * w.window]
    a.seq = one.seq
    a.time = one.time
    a.subprotocol = one.subprotocol
    new_id(w, a, <int64_t> (w.wall * 1e3))
    place_action(w, wire, k * w.window, p, one.size)
    open_sync(w, k, 1, queue_bytes(one.size), now)
    end_sync(w, wire, begin)
    return 1
