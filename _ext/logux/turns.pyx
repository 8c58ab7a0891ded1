# Whose turn it is: new actions, actions that were undone with others, suspects, headers, pings.
#
# When one action fails, the server undoes everything that it has queued behind it, with the reason `error`.
# The first action of such a run is the suspect. The others are added again at once, under new ids. When all
# of them have an outcome, the suspect is added again, alone: if it is undone once more, it is failed(error).
# Meanwhile nothing new is sent. No more actions are sent at a time than were processed between two runs, as
# the server would undo the others; down to one, and more again once these are processed.

cdef enum Undone:
    U_SUSPECT = 0                # it waits to be sent alone
    U_FAILED                     # it has its outcome
    U_AGAIN                      # it is sent again with others


cdef void forget_runs(lc_runs *r) noexcept nogil:
    cdef uint32_t i
    for i in range(r.count):
        free((<lc_suspect *> r.suspects.data)[i].text)
    r.suspects.size = r.count = 0
    r.alone = 0
    r.offered = r.drained = False
    r.last_innocent = 0
    r.added = r.processed = -1
    r.limit = 0
    r.limit_processed = 0


# Begin a run: actions sent before this point may be undone together with this one.
cdef void begin_run(lc_logux *w) noexcept nogil:
    cdef lc_runs *r = &w.runs
    cdef uint32_t limit = r.limit if r.limit else r.most
    cdef int64_t between = <int64_t> w.processed - r.processed
    if r.processed >= 0 and between < limit:
        r.limit = max(1, limit // NARROW, <uint32_t> between)
        r.limit_processed = w.processed
    r.added = w.added
    r.processed = <int64_t> w.processed


cdef int add_suspect(lc_logux *w, const lc_action *a, const uint8_t *text) noexcept nogil:
    cdef lc_suspect s
    s.size = a.size
    s.seq = a.seq
    s.time = a.time
    s.subprotocol = a.subprotocol
    s.text = <uint8_t *> malloc(a.size)
    if s.text == NULL or append_bytes(&w.runs.suspects, <const uint8_t *> &s, sizeof(s)) < 0:
        free(s.text)
        return -1
    memcpy(s.text, text, a.size)
    w.runs.count += 1
    return 0


# Take action i, which the server has undone: `reason` is an R_ number, R_ERROR if it may have been undone
# with another. Returns what becomes of it, or STOP_MEMORY.
cdef int take_undone(lc_logux *w, uint32_t i, uint8_t reason, double now) noexcept nogil:
    cdef lc_runs *r = &w.runs
    cdef lc_action *a = &w.actions[i]
    cdef lc_sync *s = &w.syncs[i // w.window]
    cdef uint64_t seq = a.seq
    cdef bint collateral
    if reason == R_ERROR and seq != r.alone:
        collateral = s.added <= r.added and <int64_t> w.processed == r.processed
        if collateral:
            if outcome_add(w.out, seq, seq, PENDING, R_NONE) < 0:
                return STOP_MEMORY
            r.last_innocent = max(r.last_innocent, seq)
            r.offered = r.drained = False
        else:
            if add_suspect(w, a, s.text.data + a.at) < 0:
                return STOP_MEMORY
            begin_run(w)
        settle(w, i, now)
        return U_AGAIN if collateral else U_SUSPECT
    if outcome_add(w.out, seq, seq, FAILED, reason) < 0:
        return STOP_MEMORY
    if reason == R_DENIED or reason == R_UNKNOWN_TYPE:
        begin_run(w)
    settle(w, i, now)
    return U_FAILED


cdef uint32_t sync_room(lc_logux *w) noexcept nogil:
    cdef lc_runs *r = &w.runs
    cdef uint32_t most
    if r.limit and w.processed - r.limit_processed >= r.limit:
        r.limit_processed = w.processed
        r.limit = 2 * r.limit if 2 * r.limit < r.most else 0
    most = r.limit if r.limit else w.window * w.limit.now
    if w.open >= most or w.flying >= w.limit.now:
        return 0
    # A pong of ours goes behind all this.
    if w.flying and w.bytes >= w.piece.size * w.limit.now:
        return 0
    return min(w.window, most - w.open)


# Decide about the next sync. While there are suspects: first the innocent, then each suspect alone. Returns
# how many actions the next sync may have; -1: send the first suspect.
cdef int64_t next_step(lc_logux *w) noexcept nogil:
    cdef lc_runs *r = &w.runs
    cdef uint32_t room
    if not r.count and not r.alone:
        return sync_room(w)
    if r.count and not r.alone and not r.drained:
        room = sync_room(w)
        if room and r.offered:
            r.drained = True     # there was room, and no innocent action came
        else:
            r.offered = room > 0
            return room
    if w.open:
        return 0
    r.alone = 0
    if not r.count:
        r.drained = False
        return sync_room(w)
    return -1


# Start the clock of silence, unless it runs; called before something is sent that has an answer.
cdef inline void begin_wait(lc_logux *w, double now) noexcept nogil:
    if not w.open and not w.pings.size:
        w.awaited_since = now


# Add the first suspect to the messages to send. The headers sent last are its own: events with other headers
# wait until no suspect is left.
cdef void send_suspect(lc_logux *w, double now) noexcept nogil:
    cdef lc_runs *r = &w.runs
    cdef lc_suspect *one = <lc_suspect *> r.suspects.data
    begin_wait(w, now)
    if encode_alone(w, one, now, &w.ready) != 1:
        return                   # no memory: the next call tries again
    r.alone = one.seq
    free(one.text)
    r.count -= 1
    r.suspects.size -= sizeof(lc_suspect)
    memmove(one, one + 1, r.suspects.size)
    w.ready_count += 1
    w.sent_at = now


# Append a message behind its size. -1: memory is out.
cdef int append_message(lc_wire *wire, const uint8_t *text, size_t size) noexcept nogil:
    cdef uint8_t *p = wire_reserve(wire, HEAD + size)
    if p == NULL:
        return -1
    lc_put_frame(p, <uint32_t> size)
    memcpy(p + HEAD, text, size)
    wire.size += HEAD + size
    return 0


cdef int say(lc_logux *w, const uint8_t *text, size_t size) noexcept nogil:
    if w.over or w.ready_count >= MAX_ANSWERS:
        if not w.over:
            w.wrong = WRONG_ANSWERS
            w.over = True
        return 0
    if append_message(&w.ready, text, size) < 0:
        return -1
    w.ready_count += 1
    return 0


# The same for `["<type>",<number>]`.
cdef inline int say_number(lc_logux *w, const char *type, size_t size, int64_t number) noexcept nogil:
    cdef uint8_t text[48]
    cdef uint8_t *p = lc_int(put_text(text, type, size), number)
    p[0] = c']'
    return say(w, text, p + 1 - text)


cdef int send_ping(lc_logux *w, uint64_t token, double now) noexcept nogil:
    if wire_reserve(&w.pings, TOKEN) == NULL or say_number(w, b'["ping",', 8, w.added) < 0:
        return -1
    begin_wait(w, now)
    return append_bytes(&w.pings, <const uint8_t *> &token, TOKEN)


# Take a pong: the answer to the oldest ping. -1: memory is out.
cdef int take_pong(lc_logux *w) noexcept nogil:
    cdef uint64_t token
    if not w.pings.size:
        return 0
    memcpy(&token, w.pings.data, TOKEN)
    if token:
        if append_bytes(&w.replies, <const uint8_t *> &token, TOKEN) < 0:
            return -1
        w.out.events += 1
    w.pings.size -= TOKEN
    memmove(w.pings.data, w.pings.data + TOKEN, w.pings.size)
    return 0


cdef int move_ready(void *self, lc_wire *wire) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    if append_bytes(wire, w.ready.data, w.ready.size) < 0:
        return -1
    w.ready.size = 0
    w.ready_count = 0
    trim(&w.ready, ROOM_KEPT)
    return 0


# -- a jam of the server's queue --------------------------------------------------------------------
#
# A server can jam on a duplicate of an action that it keeps: it answers `synced`, and processes nothing more
# of that client id. A server that is merely slow looks the same for a while, so the wait doubles with each
# jam that did not end quickly under another client id.

# When the queue counts as jammed; 0 while the server has not received the oldest sync.
cdef inline double jam_deadline(lc_logux *w) noexcept nogil:
    return w.progress_at + w.jam.patience if w.oldest != NULL and w.oldest.synced else 0


# Reset the wait if the jammed actions were processed quickly on the new connection.
cdef inline void look_at_jam(lc_logux *w) noexcept nogil:
    cdef lc_jam *j = &w.jam
    if j.processed < 0 or <int64_t> w.processed == j.processed:
        return
    if w.oldest != NULL and 0 < w.oldest.added <= j.added:
        return
    j.processed = -1
    if w.progress_at - j.synchronized_at <= j.after:
        j.patience = j.after


# When the server counts as dead: it has sent nothing, and its TCP has taken nothing.
cdef inline double silent_at(lc_logux *w) noexcept nogil:
    return max(max(w.received_at, w.awaited_since), w.piece.moved) + w.silence


# When something is due: a ping, or the end after a silence or a jam. 0: nothing is.
cdef double next_timeout(void *self) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    cdef double timeout, jam
    cdef double idle = max(w.received_at, w.sent_at) + w.ping_after
    if w.state == DISCONNECTED:
        return 0
    if w.state == CONNECTING:
        return w.connect_at + w.silence
    if not w.open and not w.pings.size:
        return idle
    timeout = silent_at(w)
    jam = jam_deadline(w)
    if jam > 0:
        timeout = min(timeout, jam)
    return timeout if w.pings.size else min(timeout, idle)


# Send a ping, or end, if it is time. 0: that was all; 1: silence for too long; or a STOP_ number.
cdef int act_on_timeout(void *self, double now) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    cdef lc_jam *j = &w.jam
    cdef double timeout = next_timeout(w), jam
    if w.over or timeout == 0 or now < timeout:
        return 0
    if w.state == CONNECTING or (w.open or w.pings.size) and now >= silent_at(w):
        w.over = True
        return 1
    jam = jam_deadline(w)
    if jam > 0 and now >= jam:
        w.over = True
        w.wrong = WRONG_JAM
        j.waited = j.patience
        j.patience = min(2 * j.patience, MAX_PATIENCE * j.after)
        j.processed = <int64_t> w.processed
        j.added = w.added + w.open
        return STOP_PROTOCOL
    if send_ping(w, 0, now) < 0:
        return STOP_MEMORY
    w.sent_at = now
    return 0
