# The codec: what a pump calls without the GIL, and what the core calls.
#
# Messages in other forms than JavaScript gives them, and messages that are rare, are left to the core. It
# must read them in order, so from such a message on all are kept, and nothing is sent, until the core has
# read it.

cdef void client_sample(void *self, double now, double wall) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    w.wall = wall
    sample_clocks(&w.clocks, now, wall)
    look_at_jam(w)


cdef void client_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    cdef lc_headers *h = &w.headers
    events[0] = 0
    size[0] = 0
    if w.state != SYNCHRONIZED or w.over or w.stopped or h.wanted:
        return
    if h.blocked:
        if w.open:
            return
        h.blocked = False
    cdef int64_t step = next_step(w)
    if step < 0:
        send_suspect(w, now)
    else:
        events[0] = <uint32_t> step
        size[0] = w.piece.size


cdef int client_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    cdef lc_runs *r = &w.runs
    cdef lc_headers *h = &w.headers
    cdef uint64_t seq, last, allowed
    cdef uint32_t i = batch.cursor
    cdef bint held = False
    if w.state != SYNCHRONIZED or w.over or w.stopped or h.wanted or h.blocked:
        return 0
    if move_ready(w, wire) < 0:
        return STOP_MEMORY
    r.offered = False
    allowed = last = r.last_innocent if r.count else <uint64_t> -1
    while i < batch.n and batch.status[i] != PENDING:
        i += 1
    if i == batch.n:
        return 0
    seq = batch.seq[i]
    if seq <= allowed:
        if not h.first <= seq <= h.last:
            h.wanted = seq
            out.events += 1
            return 0
        last = min(last, h.last)
    begin_wait(w, now)
    cdef int n = encode_sync(w, batch, events, now, last, wire, &held)
    if n == 0 and held and last == allowed:
        r.drained = True
    if n > 0:
        w.sent_at = now
    return n


cdef int client_receive(void *self, const uint8_t *data, size_t size, double now,
                        lc_outcomes *out) noexcept nogil:
    cdef lc_logux *w = <lc_logux *> self
    cdef int done = 0
    w.received_at = now
    w.out = out
    if w.over:
        return 0
    if not w.stopped:
        done = receive_message(w, data, size, now)
        if done < 0:
            return done
        if w.over:
            return STOP_PROTOCOL
    if done == 0:
        if append_message(&w.inbox, data, size) < 0:
            return STOP_MEMORY
        w.stopped = True
        out.events += 1
    return 0


@cython.final
cdef class Codec(CodecBase):
    """The client: actions out, their outcomes in, driven by a pump without the GIL through `capsule`.

    ``logclient.logux.core`` does the rest: the beginning of a connection, headers, and every message that is
    rare or has an unusual form.

    Args:
        action_type: JSON of the type of the actions that are made from bodies.
        window: actions in a sync, at most.
        inflight: syncs in flight, at most.
        synced: an action is acknowledged when its sync is.
        silence, ping, processing_timeout: seconds; see ``logclient.logux.config``.
    """

    cdef lc_logux w
    cdef bytes head, node

    def __cinit__(self, bytes producer, bytes action_type, *, int64_t window=100,
                  int64_t window_bytes=1 << 18, int64_t inflight=4, bint identity=True, bint check=True,
                  bint synced=False, double silence=30.0, double ping=10.0, double processing_timeout=20.0,
                  bint adaptive=False):
        cdef lc_logux *w = &self.w
        cdef size_t buckets = 1
        cdef bytes tail = b',"id":"' + blank_id(producer) + b'"}'
        assert 1 <= window <= 10_000 and 1 <= window_bytes <= BODY_LIMIT and 1 <= inflight <= 64
        assert 3 <= len(action_type) <= 4096
        assert silence > 0 and ping > 0 and processing_timeout > 0
        w.window = <uint32_t> window
        w.limit.least = <uint32_t> inflight
        if adaptive:             # as many actions as 64 messages of the usual size
            inflight = max(inflight, min(<int64_t> 64, MOST_ACTIONS // window))
        w.inflight = w.limit.most = <uint32_t> inflight
        limit_reset(&w.limit)
        piece_open(&w.piece, window_bytes, START_BYTES // w.limit.least if adaptive else window_bytes)
        w.identity = identity
        w.check = check
        w.synced_mode = synced
        w.silence = silence
        w.ping_after = ping
        w.jam.after = w.jam.patience = processing_timeout
        w.jam.processed = -1
        w.runs.most = <uint32_t> (window * w.limit.least)
        self.head = b'{"type":' + action_type + b',"data":'
        w.head = <const uint8_t *> PyBytes_AS_STRING(self.head)
        w.head_size = len(self.head)
        memcpy(w.tail, PyBytes_AS_STRING(tail), TAIL_SIZE)
        while buckets < 2 * <size_t> (window * inflight):
            buckets *= 2
        w.mask = <uint32_t> (buckets - 1)
        w.syncs = <lc_sync *> calloc(inflight, sizeof(lc_sync))
        w.actions = <lc_action *> calloc(window * inflight, sizeof(lc_action))
        w.buckets = <uint32_t *> calloc(buckets, sizeof(uint32_t))
        if w.syncs == NULL or w.actions == NULL or w.buckets == NULL:
            raise MemoryError()
        w.ms = -1
        w.headers.last = <uint64_t> -1
        w.out = &self.out
        forget(w)
        self.codec.self = w
        self.codec.credit = client_credit
        self.codec.encode = client_encode
        self.codec.receive = client_receive
        self.codec.deadline = next_timeout
        self.codec.moved = &w.piece.moved
        self.codec.answers = move_ready
        self.codec.timeout = act_on_timeout
        self.codec.sample = client_sample

    def __dealloc__(self):
        cdef lc_logux *w = &self.w
        cdef uint32_t k
        if w.syncs != NULL:
            for k in range(w.inflight):
                free(w.syncs[k].text.data)
        forget_runs(&w.runs)
        free(w.runs.suspects.data)
        free(w.syncs)
        free(w.actions)
        free(w.buckets)
        free(w.doubts)
        free(w.pings.data)
        free(w.inbox.data)
        free(w.undone.data)
        free(w.replies.data)
        free(w.ready.data)
        free(w.scratch.data)

    def __sizeof__(self):
        """Return the bytes of memory, with those of messages that are kept."""
        cdef lc_logux *w = &self.w
        cdef size_t size = sizeof(lc_logux), k
        size += w.inbox.capacity + w.undone.capacity + w.ready.capacity + w.scratch.capacity
        for k in range(w.inflight):
            size += w.syncs[k].text.capacity
        return size

    def made_at(self, int64_t us, double now, uint64_t seq) -> float:
        """Return the monotonic second at which event `seq` was made, when the wall clock showed `us`."""
        return made_at(&self.w.clocks, us, now, seq)

    def to_wall(self, double relative) -> float:
        """Convert ms relative to the base time into ms since 1970 of this host's clock."""
        cdef lc_logux *w = &self.w
        cdef double at = w.began + (relative - w.lead) * 1e-3
        return (at + clock_ahead(&w.clocks)) * 1e3

    def connecting(self, double now):
        """Begin a connection: the core sends `connect`."""
        cdef lc_logux *w = &self.w
        self.outcomes()
        self.begin_use()
        forget(w)
        w.state = CONNECTING
        w.connect_at = w.received_at = w.sent_at = now
        limit_reset(&w.limit)
        piece_begin(&w.piece)
        w.awaited_since = 0
        self.end_use()

    def connected(self, bytes node not None, int64_t base, double now, double lead):
        """Synchronize, after the server's `connected`, which has arrived `now`.

        `node` is our node id as it stands in JSON, `base` the base time in ms since 1970 of its clock,
        `lead` how far that clock was after `base` then, in ms.
        """
        cdef lc_logux *w = &self.w
        self.begin_use()
        self.node = node
        w.node = <const uint8_t *> PyBytes_AS_STRING(node)
        w.node_size = len(node)
        w.base = base
        w.began = w.progress_at = w.jam.synchronized_at = now
        w.lead = lead
        w.state = SYNCHRONIZED
        self.end_use()

    def connection_lost(self, *, bint keep=False, bint drop=False) -> int:
        """Forget the actions in flight: `keep` their ids for the next connection, or `drop` them as in doubt.

        Return their number. Those that are dropped have an outcome.
        """
        cdef lc_logux *w = &self.w
        self.outcomes()
        self.begin_use()
        cdef uint32_t doubts = w.open
        if w.oldest != NULL and w.wrong != WRONG_JAM:
            piece_lost(&w.piece, w.oldest.count, w.oldest.size)
        w.out = &self.out
        cdef int done = keep_doubts(w, keep, drop)
        if done == 0:
            forget(w)
            w.state = DISCONNECTED
        self.end_use(done)
        return doubts

    def end(self):
        """Send and read nothing more on this connection: the core ends it."""
        self.w.over = True

    @property
    def state(self) -> str:
        """``disconnected``, ``connecting``, ``synchronized``, or ``sending``: an outcome is awaited."""
        cdef lc_logux *w = &self.w
        if w.state != SYNCHRONIZED:
            return "connecting" if w.state == CONNECTING else "disconnected"
        return "sending" if w.open or w.runs.count else "synchronized"

    @property
    def over(self) -> bool:
        """Whether nothing more is sent and read on this connection."""
        return bool(self.w.over)

    @property
    def error(self) -> str | None:
        """Why the codec has ended the connection, but for a silence; None: it has not."""
        if self.w.wrong == WRONG_ANSWERS:
            return "the server asks for answers and does not read them"
        if self.w.wrong == WRONG_JAM:
            return (f"jam: the server has got {self.w.open} actions and processes none of the first for "
                    f"{self.w.jam.waited:g} s; going on under a new client id")
        return None

    @property
    def jammed(self) -> bool:
        """Whether the codec has ended the connection after a jam."""
        return self.w.wrong == WRONG_JAM

    def say(self, bytes text not None):
        """Add a message to those to send."""
        self.begin_use()
        self.end_use(say(&self.w, <const uint8_t *> PyBytes_AS_STRING(text), len(text)))

    def ping(self, uint64_t token, double now):
        """Send a ping; see `pongs`."""
        self.begin_use()
        self.end_use(send_ping(&self.w, token, now))

    def set_headers(self, uint64_t first, uint64_t last):
        """Note that the headers sent last are those of the events `first` to `last`."""
        cdef lc_headers *h = &self.w.headers
        h.first = first
        h.last = last
        h.wanted = 0

    def hold_before(self, uint64_t first):
        """Note, in any thread, that the event `first` and later ones have other headers."""
        cdef lc_headers *h = &self.w.headers
        h.last = min(h.last, first - 1 if first else 0)

    def block(self):
        """Encode nothing until no action is in flight."""
        self.w.headers.wanted = 0
        self.w.headers.blocked = True

    @property
    def wanted(self) -> int:
        """The sequence of an event whose headers must be sent before it; 0: none waits for its headers."""
        return self.w.headers.wanted

    def next_message(self) -> bytes | None:
        """Return the oldest message that the core must read, or None. Then call `read_on`."""
        cdef lc_logux *w = &self.w
        cdef const uint8_t *p
        cdef uint32_t size
        self.begin_use()
        try:
            if not w.stopped or w.inbox_at >= w.inbox.size:
                return None
            p = w.inbox.data + w.inbox_at
            size = lc_get_frame(p)
            w.inbox_at += HEAD + size
            return PyBytes_FromStringAndSize(<const char *> p + HEAD, size)
        finally:
            self.end_use()

    def read_on(self):
        """Take the messages that were kept, up to the next one for the core."""
        cdef lc_logux *w = &self.w
        cdef const uint8_t *p
        cdef uint32_t size
        cdef int done = 1
        self.begin_use()
        w.out = &self.out
        w.stopped = False
        while done > 0 and w.inbox_at < w.inbox.size and not w.over:
            p = w.inbox.data + w.inbox_at
            size = lc_get_frame(p)
            done = receive_message(w, p + HEAD, size, w.received_at)
            w.stopped = done == 0
            if done:
                w.inbox_at += HEAD + size
        if done and (w.inbox_at >= w.inbox.size or w.over):
            w.inbox.size = w.inbox_at = 0
            trim(&w.inbox, ROOM_KEPT)
        self.end_use(done)

    def undos(self) -> list[tuple[int, bytes]]:
        """Return (sequence, message) of the syncs that failed an action, since the last call."""
        cdef lc_wire *u = &self.w.undone
        cdef size_t at = 0
        cdef uint64_t seq
        cdef uint32_t size
        found = []
        self.begin_use()
        try:
            while at < u.size:
                memcpy(&seq, u.data + at, 8)
                size = lc_get_frame(u.data + at + 8)
                found.append((seq, PyBytes_FromStringAndSize(<const char *> u.data + at + 12, size)))
                at += 12 + size
            u.size = 0
            trim(u, ROOM_KEPT)
            return found
        finally:
            self.end_use()

    def pongs(self) -> list[int]:
        """Return the tokens of pings that were answered since the last call."""
        cdef lc_wire *r = &self.w.replies
        cdef size_t at
        cdef uint64_t token
        found = []
        self.begin_use()
        try:
            for at in range(0, r.size, 8):
                memcpy(&token, r.data + at, 8)
                found.append(token)
            r.size = 0
            return found
        finally:
            self.end_use()

    def pong(self):
        """Take an answer to the oldest ping."""
        self.begin_use()
        self.w.out = &self.out
        self.end_use(take_pong(&self.w))

    def synced(self, double added, double now):
        """Take an answer: the server has received all syncs up to this one."""
        self.begin_use()
        self.w.out = &self.out
        self.end_use(take_synced(&self.w, added, now))

    def add_answer(self, int64_t added):
        """Answer a sync of the server."""
        self.begin_use()
        self.end_use(add_answer(&self.w, added))

    def acknowledge(self, int64_t ms, int64_t counter, double now):
        """Acknowledge the action with this id, if it is in flight."""
        self.begin_use()
        cdef uint32_t i = find(&self.w, ms, <uint64_t> counter)
        self.w.out = &self.out
        self.end_use(acknowledge(&self.w, i, now) if i != NONE else 0)

    def undo(self, int64_t ms, int64_t counter, int reason, double now) -> tuple[int, bool]:
        """Take an undo of the action with this id; `reason`: ``R_ERROR`` if it may be undone with another.

        Return the sequence of the action, 0 if it is not in flight, and whether it has failed.
        """
        cdef lc_logux *w = &self.w
        self.begin_use()
        cdef uint32_t i = find(w, ms, <uint64_t> counter)
        cdef uint64_t seq = w.actions[i].seq if i != NONE else 0
        w.out = &self.out
        return seq, self.end_use(take_undone(w, i, <uint8_t> reason, now) if i != NONE else 0) == U_FAILED

    @property
    def open(self) -> int:
        """Actions in flight."""
        return self.w.open

    @property
    def suspects(self) -> int:
        """Actions that wait to be sent alone, because others may have been undone for them."""
        return self.w.runs.count

    @property
    def added(self) -> int:
        """Actions sent so far: the last ``added``."""
        return self.w.added

    @property
    def received(self) -> int:
        """The highest whole ``added`` of the server."""
        return self.w.received

    @property
    def received_at(self) -> float:
        """When the last message arrived, in monotonic seconds."""
        return self.w.received_at
