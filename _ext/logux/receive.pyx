# Receiving: the messages that arrive for actions and pings. Every other message is read by the core, and so
# are these in other forms than JavaScript gives them.

# Pass over a meta, {"id":n,"time":n,"subprotocol":n}, as servers write it.
cdef inline bint skip_meta(const uint8_t **p, const uint8_t *end) noexcept nogil:
    cdef int64_t n
    if not skip_text(p, end, b'{"id":', 6):
        return False
    if p[0] < end and p[0][0] == c'[':
        p[0] += 1
        if not (read_integer(p, end, DIGITS, &n) and skip_text(p, end, b",", 1)
                and read_integer(p, end, DIGITS, &n)
                and skip_text(p, end, b"]", 1)):
            return False
    elif not read_integer(p, end, DIGITS, &n):
        return False
    if not (skip_text(p, end, b',"time":', 8) and read_integer(p, end, DIGITS, &n)):
        return False
    if skip_text(p, end, b',"subprotocol":', 15) and not read_integer(p, end, DIGITS, &n):
        return False
    return skip_text(p, end, b"}", 1)


cdef inline bint take_id(lc_logux *w, const uint8_t **p, const uint8_t *end, int64_t *ms,
                         int64_t *counter) noexcept nogil:
    return (read_integer(p, end, DIGITS, ms) and skip_text(p, end, b" ", 1)
            and skip_text(p, end, <const char *> w.node, w.node_size)
            and skip_text(p, end, b" ", 1) and read_integer(p, end, DIGITS, counter) and counter[0] >= 0)


# Answer a sync of the server. -1: memory is out.
cdef inline int add_answer(lc_logux *w, int64_t added) noexcept nogil:
    if say_number(w, b'["synced",', 10, added) < 0:
        return -1
    w.received = max(w.received, added)
    return 0


# Read the object of an undo: a copy, with its last brace before `end`, whose byte and SCAN_PAD bytes from
# there on may be changed. Returns whether it is one of an action that we may have sent, and nothing in it
# needs the core.
cdef bint read_undo(lc_logux *w, uint8_t *p, uint8_t *end, int64_t *ms, int64_t *counter,
                    uint8_t *reason) noexcept nogil:
    cdef lc_object o
    cdef lc_member m
    cdef const uint8_t *at = p
    cdef const uint8_t *v
    cdef const uint8_t *after
    cdef size_t n
    cdef uint8_t kept = end[0]
    cdef bint is_undo = False, is_ours = False
    end[0] = 0
    cdef int found = scan_object(p, end, &o)
    end[0] = kept
    if found < 0:
        return False
    reason[0] = R_REJECTED
    m.value.at = NULL
    while True:
        found = next_member(&at, end - 1, &m)
        if found == 0:
            return is_undo and is_ours
        if found < 0 or m.escaped:
            return False
        v = m.value.at
        n = m.value.size
        if key_is(m.key.at, m.key.size, False, b"length", 6):
            if v[0] == c'-' or c'0' <= v[0] <= c'9':
                return False
        elif key_is(m.key.at, m.key.size, False, b"type", 4):
            is_undo = n == 12 and memcmp(v, b'"logux/undo"', 12) == 0
        elif key_is(m.key.at, m.key.size, False, b"id", 2):
            after = v + 1
            is_ours = v[0] == c'"' and take_id(w, &after, v + n - 1, ms, counter) and after == v + n - 1
        elif key_is(m.key.at, m.key.size, False, b"reason", 6):
            if v[0] == c'"' and memchr(v, c'\\', n) != NULL:
                return False
            if n == 7 and memcmp(v, b'"error"', 7) == 0:
                reason[0] = R_ERROR
            elif n == 8 and memcmp(v, b'"denied"', 8) == 0:
                reason[0] = R_DENIED
            elif n == 13 and memcmp(v, b'"unknownType"', 13) == 0:
                reason[0] = R_UNKNOWN_TYPE
            else:
                reason[0] = R_REJECTED


# Keep the message with an undo for the core, which reads it at the pump's next return. -1: memory is out.
cdef int keep_undone(lc_logux *w, uint64_t seq, const uint8_t *message, size_t size) noexcept nogil:
    if (wire_reserve(&w.undone, 8 + HEAD + size) == NULL
            or append_bytes(&w.undone, <const uint8_t *> &seq, 8) < 0
            or append_message(&w.undone, message, size) < 0):
        return -1
    if w.undone.size >= UNDONE_MOST:
        w.out.events += 1
    return 0


# Take a sync of one undo, from its object at p on. 1: taken; 0: it is for the core; STOP_MEMORY.
cdef int receive_undo(lc_logux *w, const uint8_t *message, size_t size, const uint8_t *p, int64_t added,
                      double now) noexcept nogil:
    cdef const uint8_t *end = message + size
    cdef const uint8_t *after = nested_after(p, end)
    cdef int64_t ms = 0, counter = 0
    cdef uint8_t reason = R_NONE
    cdef uint64_t seq
    if after == NULL:
        return 0
    cdef size_t object_size = after - p
    if not (skip_text(&after, end, b",", 1) and skip_meta(&after, end) and skip_text(&after, end, b"]", 1)
            and after == end):
        return 0
    w.scratch.size = 0
    cdef uint8_t *copy = wire_reserve(&w.scratch, object_size + SCAN_PAD)
    if copy == NULL:
        return STOP_MEMORY
    memcpy(copy, p, object_size)
    memset(copy + object_size, 0, SCAN_PAD)
    cdef bint read = read_undo(w, copy, copy + object_size, &ms, &counter, &reason)
    trim(&w.scratch, ROOM_KEPT)
    if not read:
        return 0
    if add_answer(w, added) < 0:
        return STOP_MEMORY
    cdef uint32_t i = find(w, ms, <uint64_t> counter)
    if i == NONE:
        return 1
    seq = w.actions[i].seq
    cdef int what = take_undone(w, i, reason, now)
    if what < 0 or what == U_FAILED and keep_undone(w, seq, message, size) < 0:
        return STOP_MEMORY
    return 1


# Take `["<type>",<number>]` from the number on. Returns whether that is what stands there.
cdef inline bint take_number(const uint8_t **p, const uint8_t *end, int64_t *number) noexcept nogil:
    return read_integer(p, end, DIGITS, number) and skip_text(p, end, b"]", 1) and p[0] == end


# Take a message if it is one of those for actions and pings, written as servers write them. 1: taken; 0: it
# is for the core; STOP_MEMORY.
cdef int receive_message(lc_logux *w, const uint8_t *message, size_t size, double now) noexcept nogil:
    cdef const uint8_t *p = message
    cdef const uint8_t *end = p + size
    cdef int64_t added = 0, ms = 0, counter = 0
    cdef bint is_ping
    cdef int done
    if w.state != SYNCHRONIZED:
        return 0
    if not skip_text(&p, end, b'["sync",', 8):
        if skip_text(&p, end, b'["synced",', 10):
            if not take_number(&p, end, &added) or added > w.added:
                return 0
            return 1 if take_synced(w, <double> added, now) == 0 else STOP_MEMORY
        is_ping = skip_text(&p, end, b'["ping",', 8)
        if not ((is_ping or skip_text(&p, end, b'["pong",', 8)) and take_number(&p, end, &added)):
            return 0
        w.received = max(w.received, added)
        done = say_number(w, b'["pong",', 8, w.added) if is_ping else take_pong(w)
        return 1 if done == 0 else STOP_MEMORY
    if not (read_integer(&p, end, DIGITS, &added) and skip_text(&p, end, b",{", 2)):
        return 0
    cdef const uint8_t *action = p - 1
    if skip_text(&p, end, b'"id":"', 6):
        if not (take_id(w, &p, end, &ms, &counter)
                and skip_text(&p, end, b'","type":"logux/processed"},', 28)):
            return receive_undo(w, message, size, action, added, now)
    elif not (skip_text(&p, end, b'"type":"logux/processed","id":"', 31)
              and take_id(w, &p, end, &ms, &counter) and skip_text(&p, end, b'"},', 3)):
        return receive_undo(w, message, size, action, added, now)
    if not (skip_meta(&p, end) and skip_text(&p, end, b"]", 1) and p == end):
        return 0
    if add_answer(w, added) < 0:
        return STOP_MEMORY
    cdef uint32_t i = find(w, ms, <uint64_t> counter)
    if i == NONE:
        return 1
    return 1 if acknowledge(w, i, now) == 0 else STOP_MEMORY
