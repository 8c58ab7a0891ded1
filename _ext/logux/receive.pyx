# Receiving: the two messages that arrive for each sync. Every other message is read by the core.

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


cdef inline bint take_id(lc_client *w, const uint8_t **p, const uint8_t *end, int64_t *ms,
                         int64_t *counter) noexcept nogil:
    return (read_integer(p, end, DIGITS, ms) and skip_text(p, end, b" ", 1)
            and skip_text(p, end, <const char *> w.node, w.node_size)
            and skip_text(p, end, b" ", 1) and read_integer(p, end, DIGITS, counter) and counter[0] >= 0)


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


# Take a message if it is one of the two, written as servers write it. 1: taken; 0: not one of them;
# STOP_MEMORY.
cdef int receive_message(lc_client *w, const uint8_t *p, size_t size, double now) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef int64_t added = 0, ms = 0, counter = 0
    cdef uint32_t i
    if not w.ready:
        return 0
    if skip_text(&p, end, b'["synced",', 10):
        if not (read_integer(&p, end, DIGITS, &added) and skip_text(&p, end, b"]", 1) and p == end):
            return 0
        w.out.alive += 1
        return 1 if take_synced(w, <double> added, now) == 0 else STOP_MEMORY
    if not (skip_text(&p, end, b'["sync",', 8) and read_integer(&p, end, DIGITS, &added)
            and skip_text(&p, end, b",{", 2)):
        return 0
    if skip_text(&p, end, b'"id":"', 6):
        if not (take_id(w, &p, end, &ms, &counter)
                and skip_text(&p, end, b'","type":"logux/processed"},', 28)):
            return 0
    elif not (skip_text(&p, end, b'"type":"logux/processed","id":"', 31)
              and take_id(w, &p, end, &ms, &counter) and skip_text(&p, end, b'"},', 3)):
        return 0
    if not (skip_meta(&p, end) and skip_text(&p, end, b"]", 1) and p == end):
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
