# The actions in flight, for the core.

@cython.final
cdef class ActionTracker(OutcomeList):
    """The actions in flight: their syncs, ids, times and outcomes, and the answers to the server.

    An action in flight is identified by the two numbers of its id, (ms, counter). ``logclient.logux.core``
    handles every other message.

    Args:
        producer: the 10 bytes that begin every id.
        action_type: JSON of the type of the actions that are made from bodies.
        window: actions in a sync, at most.
        window_bytes: bytes of bodies in a sync, at most; a larger body travels alone.
        inflight: syncs in flight, at most.
        identity: insert the id.
        check: check that raw bodies are one JSON object in UTF-8.
        synced: an action is acknowledged when its sync is.
    """

    cdef lc_client w
    cdef bytes head, node
    cdef list texts              # the messages of the syncs in flight

    def __cinit__(self):
        memset(&self.w, 0, sizeof(lc_client))
        self.w.out = &self.out

    def __init__(self, bytes producer, bytes action_type, *, int64_t window=100, int64_t window_bytes=1 << 18,
                 int64_t inflight=4, bint identity=True, bint check=True, bint synced=False):
        cdef lc_client *w = &self.w
        cdef size_t buckets = 1
        cdef bytes tail
        if w.syncs != NULL:
            raise TypeError("__init__ has run already")
        if len(producer) != 10:
            raise ValueError(f"producer: 10 bytes, not {len(producer)}")
        assert 1 <= window <= 10_000 and 1 <= window_bytes <= BODY_LIMIT and 1 <= inflight <= 64
        assert 3 <= len(action_type) <= 4096
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
        free(self.w.wire.data)

    cdef int ensure_initialized(self) except -1:
        if self.w.buckets == NULL:
            raise TypeError("__init__ has not run")
        return 0

    # -- clocks

    def sample_clocks(self, double now, double wall):
        """Sample the clocks: `wall`, and the monotonic `now` or a little later, in seconds."""
        self.ensure_initialized()
        sample_clocks(&self.w.clocks, now, wall)

    def made_at(self, int64_t us, double now, uint64_t seq):
        """Return the monotonic second at which an event was made.

        Of the offsets seen between the clocks, the newest plausible one is used: one that dates the event
            neither in the future, nor when another offset was seen, nor long before the preceding event.

        Args:
            us: the wall clock at that time, in microseconds since 1970.
            now: monotonic seconds.
            seq: the sequence of the event.
        """
        self.ensure_initialized()
        return made_at(&self.w.clocks, us, now, seq)

    def to_wall(self, double relative):
        """Convert ms relative to the base time into ms since 1970 of this host's clock."""
        cdef lc_client *w = &self.w
        cdef double at = w.began + (relative - w.lead) * 1e-3
        self.ensure_initialized()
        return (at + clock_ahead(&w.clocks)) * 1e3

    # -- connections

    def connected(self, bytes node, int64_t base, double now, double lead):
        """Begin a connection, after the server's `connected`.

        Args:
            node: our node id, as it stands in JSON.
            base: the base time, in ms since 1970 of the server's clock.
            now: when the message arrived, in monotonic seconds.
            lead: how far the server's clock was after `base` then, in ms.
        """
        cdef lc_client *w = &self.w
        self.ensure_initialized()
        forget(w)
        self.node = node
        w.node = <const uint8_t *> PyBytes_AS_STRING(node)
        w.node_size = len(node)
        w.base = base
        w.began = w.progress_at = now
        w.lead = lead
        w.ready = True

    def connection_lost(self, *, bint keep=False, bint drop=False):
        """Forget the actions in flight.

        Args:
            keep: they will be encoded again with the same ids.
            drop: they are failed(doubt).

        Returns:
            Their number, and ranges of outcomes as from `outcomes`.
        """
        cdef lc_client *w = &self.w
        cdef uint32_t k, i, doubts = w.open
        cdef size_t n = 0, most = DOUBTS * <size_t> w.window * w.inflight
        cdef lc_doubt *all_ = NULL
        self.ensure_initialized()
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
                    outcome_add(w.out, w.actions[i].seq, w.actions[i].seq, FAILED, R_DOUBT)
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

    # -- sending

    def credit(self, uint32_t most):
        """Return how many actions the next sync may have, with `most` in flight altogether."""
        cdef lc_client *w = &self.w
        self.ensure_initialized()
        if not w.ready or w.open >= most or free_sync(w) == NONE:
            return 0
        return min(w.window, most - w.open)

    def encode(self, batch, uint32_t events, double now, double wall, uint64_t last=<uint64_t> -1):
        """Encode pending events of a batch as one sync.

        Args:
            batch: a capsule of an ``lc_batch *``.
            events: how many at most.
            now: monotonic seconds.
            wall: the wall clock, in seconds.
            last: no event beyond this sequence is encoded.

        Returns:
            How many actions the sync has, its message, and whether an event beyond `last` ended it.

        Raises:
            MemoryError: nothing was encoded.
        """
        cdef lc_client *w = &self.w
        cdef lc_batch *b = <lc_batch *> PyCapsule_GetPointer(batch, b"logclient.batch")
        cdef uint32_t k = free_sync(w) if w.buckets != NULL else NONE
        cdef size_t begin = 0
        cdef bint held = False
        cdef int n
        self.ensure_initialized()
        with nogil:
            n = encode_sync(w, b, events, now, <int64_t> (wall * 1e3), last, &begin, &held)
        if n < 0:
            raise MemoryError("no room for a sync")
        if n == 0:
            return 0, b"", held
        text = PyBytes_FromStringAndSize(<const char *> w.wire.data + begin, w.wire.size - begin)
        w.wire.size = 0
        trim(&w.wire, ROOM_KEPT)
        self.texts[k] = text
        return n, text, held

    def encode_alone(
        self, uint64_t seq, bytes text, int64_t time, int64_t subprotocol, double now, double wall
    ):
        """Encode a sync of one action that `remove` has returned, under a new id.

        Args:
            seq: as `remove` has returned it, like the next three.
            text: the action.
            time: of its meta.
            subprotocol: of its meta; -1: none.
            now: monotonic seconds.
            wall: the wall clock, in seconds.

        Raises:
            ValueError: there is no room in flight.
        """
        cdef lc_client *w = &self.w
        cdef uint32_t k = free_sync(w)
        cdef lc_action *a
        cdef size_t begin
        cdef uint8_t *p
        self.ensure_initialized()
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

    # -- receiving

    def receive(self, data, double now):
        """Take a message if it is ``synced``, or a ``sync`` of one ``logux/processed``, as JavaScript writes
        them.

        Returns:
            Whether it was taken.
        """
        cdef Py_buffer view
        cdef int done
        self.ensure_initialized()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        done = receive_message(&self.w, <const uint8_t *> view.buf, view.len, now)
        PyBuffer_Release(&view)
        if done < 0:
            raise MemoryError("out of memory for an outcome")
        return done == 1

    def synced(self, double added, double now):
        """Take an answer: the server has received all syncs up to this one."""
        self.ensure_initialized()
        if take_synced(&self.w, added, now) < 0:
            raise MemoryError("out of memory for an outcome")

    def add_answer(self, int64_t added):
        """Queue the answer to a sync of the server."""
        self.ensure_initialized()
        if add_answer(&self.w, added) < 0:
            raise MemoryError("out of memory for an answer")
        self.w.received = max(self.w.received, added)

    def acknowledge(self, int64_t ms, int64_t counter, double now):
        """Acknowledge the action with this id; return whether it was in flight."""
        cdef uint32_t i
        self.ensure_initialized()
        i = find(&self.w, ms, <uint64_t> counter)
        if i == NONE:
            return False
        if acknowledge(&self.w, i, now) < 0:
            raise MemoryError("out of memory for an outcome")
        return True

    def remove(self, int64_t ms, int64_t counter, double now):
        """Take the action with this id out of those in flight.

        Returns:
            Its sequence, text, time, subprotocol (or -1) and the `added` of its sync; None: it is not in
            flight.
        """
        cdef lc_client *w = &self.w
        cdef uint32_t i
        cdef lc_action *a
        cdef bytes text
        self.ensure_initialized()
        i = find(w, ms, <uint64_t> counter)
        if i == NONE:
            return None
        a = &w.actions[i]
        text = self.texts[i // w.window]
        found = (a.seq, text[a.at:a.at + a.size], a.time, a.subprotocol, w.syncs[i // w.window].added)
        settle(w, i, now)
        return found

    def outcomes(self):
        """Return the outcomes since the last call; see `OutcomeList.outcomes`."""
        cdef uint32_t k
        for k in range(self.w.inflight):
            if self.w.syncs[k].open == 0 and self.texts[k] is not None:
                self.texts[k] = None         # many MiB must not be held until another text takes the place
        return OutcomeList.outcomes(self)

    def drain_answers(self):
        """Return the answers that wait to be sent, and forget them."""
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
        """Answers that wait to be sent."""
        return self.w.answer_count

    @property
    def open(self):
        """Actions in flight."""
        return self.w.open

    @property
    def oldest_added(self):
        """``added`` of the oldest sync in flight; 0: there is none."""
        return self.w.oldest.added if self.w.oldest != NULL else 0

    @property
    def oldest_synced(self):
        """Whether the server has answered the oldest sync in flight."""
        return self.w.oldest != NULL and self.w.oldest.synced

    @property
    def progress_at(self):
        """When the oldest sync in flight last got an outcome or its answer, or became the oldest."""
        return self.w.progress_at

    @property
    def added(self):
        """Actions sent so far: the last ``added``."""
        return self.w.added

    @property
    def processed(self):
        """Actions acknowledged so far."""
        return self.w.processed

    @property
    def unmatched(self):
        """Outcomes taken by `receive` for actions that are not in flight."""
        return self.w.unmatched

    @property
    def received(self):
        """The highest ``added`` of the server in messages that `receive` took."""
        return self.w.received
