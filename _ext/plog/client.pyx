ctypedef struct lc_plog:
    bint identity
    bint check
    bint unboxed
    uint32_t room                # bytes of a datagram at most
    uint64_t most                # bytes of a message at most
    uint64_t batch_bytes
    const uint8_t *tail          # the id as a member, with zeros for the sequence, and the closing brace
    const uint8_t *tags          # for messages that have none of their own
    uint32_t tags_size
    uint32_t id_                 # the number of the next boxed message
    lc_pace pace
    lc_wire scratch              # whole messages of several datagrams, until they are hashed
    lc_handing handing           # events that the kernel has not taken yet
    lc_wire commands             # runs that wait to be sent
    lc_wire replies              # runs from the server
    uint64_t boxed
    uint64_t simple
    uint64_t datagrams


cdef void plog_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    pace_fill(&w.pace, now)
    events[0] = 0
    size[0] = 0
    if is_drained(&w.pace):
        return
    events[0] = handing_room(&w.handing)
    if w.pace.packets.rate and w.pace.packets.level < events[0]:
        events[0] = <uint32_t> w.pace.packets.level
    if w.pace.room_most:         # one at least: the queue is not crowded
        events[0] = <uint32_t> min(<double> events[0], max(1.0, w.pace.room / charge_of(1, 0)))
    size[0] = w.batch_bytes


cdef double plog_ready(void *self, double now) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    pace_fill(&w.pace, now)
    if is_crowded(&w.pace):
        return now + UNTIL_GRANT
    # A microsecond late, because rounding could make it early.
    return now + 1e-6 + pace_wait(&w.pace) if is_drained(&w.pace) else 0


# Copy a body to p, with TAIL_SIZE + SCAN_PAD bytes of room behind it, and insert the id into an event
# document. Other bodies travel unchanged; the ledger identifies them by their hash. Returns the new size or
# STOP_MEMORY.
cdef inline int64_t finish_body(lc_plog *w, lc_batch *batch, uint32_t i, const uint8_t *body, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i] & K_MASK
    cdef lc_object o
    cdef lc_span own
    cdef uint8_t *start
    cdef uint8_t *close
    cdef bint object_
    if not w.identity:
        memcpy(p, body, size)
        return size
    o.uuid.at = NULL
    object_ = open_object(p, body, size, w.check or kind == K_DOCUMENT or kind == K_BYTES, &o) == 0
    own.at = p
    own.size = size
    if object_ and o.uuid.at != NULL:
        own = o.uuid
    elif object_ and kind != K_BYTES:
        start = <uint8_t *> o.start
        close = <uint8_t *> o.close
        # Without the comma in an empty object.
        memcpy(close, w.tail + o.empty, TAIL_SIZE + 1 - o.empty)
        close += TAIL_SIZE - o.empty
        lc_put_digits(close + 1 - TAIL_END, lc_spell(batch.seq[i]))
        size = close + 1 - start
        if start != p:
            memmove(p, start, size)
        return size
    return STOP_MEMORY if keep_id(&batch.id_hash, batch.n, i, &own) < 0 else <int64_t> size


# Messages with headers, whose hash these get several at a time: while one waits for its multiplications the
# others go on.
ctypedef struct lc_messages:
    uint32_t count
    size_t at[HASH_LANES]        # offsets in the buffer
    size_t sizes[HASH_LANES]
    lc_place place[HASH_LANES]   # of the headers in the wire
    lc_cut cut[HASH_LANES]


# Hash the messages, which are whole in `data`, and write the hashes into the headers in `wire`.
cdef inline void hash_messages(const uint8_t *data, uint8_t *wire, lc_messages *m) noexcept nogil:
    cdef uint32_t hashes[HASH_LANES]
    cdef const uint8_t *p[HASH_LANES]
    cdef uint32_t i
    for i in range(m.count):
        p[i] = data + m.at[i]
    murmur3_many(p, m.sizes, m.count, hashes)
    for i in range(m.count):
        put_hash(wire, m.place[i], &m.cut[i], hashes[i])
    m.count = 0


# Hash the messages of several datagrams, which are whole in the scratch memory.
cdef inline void hash_large(lc_plog *w, lc_wire *wire, lc_messages *m) noexcept nogil:
    hash_messages(w.scratch.data, wire.data, m)
    w.scratch.size = 0
    trim(&w.scratch, ROOM_KEPT)


cdef int plog_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                     lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    cdef lc_datagrams run
    cdef lc_cut cut
    cdef lc_place place
    cdef lc_messages small, large
    cdef lc_messages *m
    cdef const uint8_t *body
    cdef const uint8_t *tags
    cdef uint32_t tags_size, head, length, i = batch.cursor - 1, n = 0
    cdef uint64_t size, guess, taken = 0
    cdef size_t begin = wire.size
    cdef int64_t done
    cdef bint simple
    cdef uint8_t *p
    memset(&run, 0, sizeof(run))
    small.count = large.count = 0
    pace_fill(&w.pace, now)
    events = min(events, handing_room(&w.handing))
    while next_event(batch, &i, n, events, taken, w.batch_bytes) and not is_drained(&w.pace):
        size = batch.size[i]
        body = batch.body[i]
        tags = w.tags
        tags_size = w.tags_size
        if batch.kind[i] >> K_TOPIC_SHIFT:
            if batch.kind[i] >> K_TOPIC_SHIFT != K_TAGGED or size < 2 or size - 2 < (
                    <uint64_t> body[0] << 8 | body[1]):
                fail_event(batch, i, R_UNENCODABLE)
                continue
            tags_size = <uint32_t> body[0] << 8 | body[1]
            tags = body + 2
            body += 2 + tags_size
            size -= 2 + tags_size
        guess = size + (TAIL_SIZE if w.identity and batch.kind[i] & K_MASK != K_BYTES else 0)
        if w.pace.room_most and cut_message(guess, tags_size, w.room, &cut) == 0 and overruns(
                &w.pace, charge_of(cut.count, guess + tags_size + cut.count * HEADER_SIZE)):
            break
        if large.count and w.scratch.size + guess > SCRATCH_MOST:
            hash_large(w, wire, &large)
        done = STOP_MEMORY
        p = wire_reserve(&w.scratch, size + TAIL_SIZE + SCAN_PAD)
        if p != NULL:
            done = finish_body(w, batch, i, body, p, size)
        if done >= 0 and (<uint64_t> done > w.most or cut_message(done, tags_size, w.room, &cut) < 0):
            fail_event(batch, i, R_TOO_LARGE)
            continue
        if done >= 0:
            simple = w.unboxed and tags_size == 0 and 0 < done <= w.room and p[0] > 31
            if simple:
                cut.count = 1
            head = 0 if simple else cut.count * HEADER_SIZE + tags_size
            length = <uint32_t> done + head
            if not simple:
                if put_fragments(wire, &run, p, <uint32_t> done, &cut, w.id_, tags, tags_size, &place) < 0:
                    done = STOP_MEMORY
            elif wire_reserve(wire, RUN_HEAD + length) == NULL:
                done = STOP_MEMORY
            else:
                place.at = run_add(&run, wire, length)
                place.run = run.at
                memcpy(wire.data + place.at, p, done)
        if done < 0:
            if n:
                break            # send the encoded events; the next call reports the failure
            return STOP_MEMORY
        keep_hash(batch, i, p, done)
        if not simple:
            m = &small if cut.count == 1 else &large
            m.at[m.count] = place.at + head
            if cut.count > 1:            # hashed whole, in the scratch memory
                m.at[m.count] = w.scratch.size
                w.scratch.size += done
            m.sizes[m.count] = done
            m.place[m.count] = place
            m.cut[m.count] = cut
            m.count += 1
            if small.count == HASH_LANES:
                hash_messages(wire.data, wire.data, &small)
            if large.count == HASH_LANES:
                hash_large(w, wire, &large)
        batch.status[i] = INFLIGHT
        handing_add(&w.handing, batch.seq[i], wire.size - begin)
        n += 1
        taken += size
        w.datagrams += cut.count
        if simple:
            w.simple += 1
        else:
            w.boxed += 1
            w.id_ = w.id_ + 1 if w.id_ < ID_MOST else 1
        if w.pace.packets.rate:
            w.pace.packets.level -= cut.count
        if w.pace.size.rate:
            w.pace.size.level -= length
        w.pace.room -= charge_of(cut.count, length)
    hash_messages(wire.data, wire.data, &small)
    hash_large(w, wire, &large)
    w.handing.written += wire.size - begin
    return n


# Encode lines for TCP. A message with a line end in it, or a CR at its end, would arrive as another one.
cdef int lines_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                      lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    cdef uint32_t i = batch.cursor - 1, n = 0
    cdef uint64_t size, taken = 0
    cdef size_t begin = wire.size
    cdef int64_t done
    cdef uint8_t *p
    events = min(events, handing_room(&w.handing))
    while next_event(batch, &i, n, events, taken, w.batch_bytes):
        size = batch.size[i]
        done = STOP_MEMORY
        p = wire_reserve(wire, size + TAIL_SIZE + SCAN_PAD + 1)
        if p != NULL:
            done = finish_body(w, batch, i, batch.body[i], p, size)
        if done < 0:
            if n:
                break            # send the encoded events; the next call reports the failure
            return STOP_MEMORY
        if <uint64_t> done > w.most:
            fail_event(batch, i, R_TOO_LARGE)
            continue
        if (batch.kind[i] >> K_TOPIC_SHIFT or memchr(p, c'\n', done) != NULL
                or done and p[done - 1] == c'\r'):
            fail_event(batch, i, R_UNENCODABLE)
            continue
        p[done] = c'\n'
        keep_hash(batch, i, p, done)
        wire.size += done + 1
        batch.status[i] = INFLIGHT
        handing_add(&w.handing, batch.seq[i], wire.size - begin)
        n += 1
        taken += size
    w.simple += n
    w.handing.written += wire.size - begin
    return n


# Servers do not answer over TCP.
cdef int lines_receive(void *self, const uint8_t *data, size_t size, double now,
                       lc_outcomes *out) noexcept nogil:
    return 0


cdef void plog_sent(void *self, size_t size, lc_outcomes *out) noexcept nogil:
    handing_took(&(<lc_plog *> self).handing, size, out)


cdef int plog_receive(void *self, const uint8_t *data, size_t size, double now,
                      lc_outcomes *out) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    if size == 0:
        return 0
    pace_fill(&w.pace, now)
    out.events += 1
    if w.replies.size + size > REPLIES_MOST:
        return 0                 # more than the answers to our commands: another host sends these datagrams
    return append_bytes(&w.replies, data, size)


# The core may have the answer to a command that has none on the wire.
cdef int plog_answers(void *self, lc_wire *wire) noexcept nogil:
    cdef lc_plog *w = <lc_plog *> self
    if w.commands.size == 0:
        return 0
    if append_bytes(wire, w.commands.data, w.commands.size) < 0:
        return STOP_MEMORY
    w.handing.written += w.commands.size
    w.commands.size = 0
    return 1


# There is no connection that could be silent.
cdef double plog_deadline(void *self) noexcept nogil:
    return 0


@cython.final
cdef class Codec(CodecBase):
    """The client: encodes events as runs of datagrams or as lines, and takes replies.

    An event whose kind has the high nibble 1 has its own tags before its body: u16 big-endian, and as many
    bytes. The id is inserted as ``uuid`` into one JSON object without it, unless the kind says bytes. Other
    bodies travel unchanged, and the ledger keeps the hash of the user's ``uuid`` or of the body.

    ``logclient.plog.config`` describes and checks the options of users.

    Args:
        tags: for messages that have none of their own, as they travel.
        unboxed: send messages without a box where possible: no tags, one datagram, a first byte above 31.
        packets: packets per second; 0: unlimited. `burst` of them are sent at once after a pause.
        size: bytes of datagrams per second, and `size_burst`, likewise.
        number: number of the first message of each socket; 2**31 - 1 is followed by 1.
        lines: for TCP: each message is a line, without box and tags.
    """

    cdef lc_plog w
    cdef bytes tail
    cdef bytes kept_tags
    cdef uint32_t first

    def __cinit__(self, bytes producer, *, int64_t datagram=1452, bytes tags=b"", bint unboxed=False,
                  int64_t max_message=262144, int64_t batch_bytes=1 << 20, bint identity=True,
                  bint check=True, double packets=10000.0, double burst=64.0, double size=67108864.0,
                  double size_burst=131072.0, int64_t number=1, bint lines=False):
        cdef lc_plog *w = &self.w
        assert 0 <= max_message <= MESSAGE_MOST and 1 <= batch_bytes <= 1 << 30 and 1 <= number <= ID_MOST
        assert 1 <= burst <= 1e9 and 1 <= size_burst <= 1e12
        if handing_open(&w.handing, ROUND) < 0:
            raise MemoryError()
        self.kept_tags = tags
        self.datagram = datagram
        self.pace(0.0, packets, size, burst=burst, size_burst=size_burst)
        self.tail = b',"uuid":"' + blank_id(producer) + b'"}'
        w.tail = <const uint8_t *> PyBytes_AS_STRING(self.tail)
        w.tags = <const uint8_t *> PyBytes_AS_STRING(tags)
        w.tags_size = <uint32_t> len(tags)
        w.identity = identity
        w.check = check
        w.unboxed = unboxed
        w.most = max_message
        w.batch_bytes = batch_bytes
        w.id_ = self.first = <uint32_t> number
        w.pace.packets.level = burst
        w.pace.size.level = size_burst
        self.codec.self = w
        self.codec.credit = plog_credit
        self.codec.encode = lines_encode if lines else plog_encode
        self.codec.sent = plog_sent
        self.codec.receive = lines_receive if lines else plog_receive
        self.codec.deadline = plog_deadline
        self.codec.ready = plog_ready
        if not lines:
            self.codec.answers = plog_answers

    def __dealloc__(self):
        free(self.w.scratch.data)
        free(self.w.commands.data)
        free(self.w.replies.data)
        free(self.w.handing.items)

    @property
    def datagram(self) -> int:
        """Bytes of a datagram at most, from now on; 25 to 65,507, with room for the tags."""
        return self.w.room

    @datagram.setter
    def datagram(self, int64_t size):
        if not DATAGRAM_LEAST <= size <= DATAGRAM_MOST:
            raise ValueError(f"datagram: {DATAGRAM_LEAST} to {DATAGRAM_MOST} bytes, not {size}")
        if len(self.kept_tags) > size - HEADER_SIZE:
            raise ValueError(f"tags: {len(self.kept_tags)} bytes, and a datagram has room for "
                             f"{size - HEADER_SIZE}")
        self.w.room = <uint32_t> size

    def pace(self, double now, double packets, double size, *, burst: float | None = None,
             size_burst: float | None = None):
        """Set the pace, in units as of the options. Call it between two calls of a pump, never during one."""
        assert 0 <= packets <= 1e15 and 0 <= size <= 1e15
        pace_fill(&self.w.pace, now)
        self.w.pace.packets.rate = packets
        self.w.pace.size.rate = size
        if burst is not None:
            assert 1 <= burst <= 1e12
            self.w.pace.packets.most = burst
        if size_burst is not None:
            assert 1 <= size_burst <= 1e12
            self.w.pace.size.most = size_burst

    @property
    def room(self) -> float:
        """What the receiver's queue may still be charged; below 0 after a message larger than that."""
        return self.w.pace.room

    def grant(self, double room, double most):
        """Set what the receiver's queue may be charged until the next grant, and if it is empty (0: any).

        Call it between two calls of a pump, never during one.
        """
        assert room <= 1e15 and 0 <= most <= 1e15
        self.w.pace.room = room
        self.w.pace.room_most = most
        self.w.pace.crowded = False

    @property
    def now(self) -> float:
        """The latest time that was passed to a method, in seconds of the monotonic clock."""
        return self.w.pace.filled

    @property
    def counts(self) -> tuple[int, int, int]:
        """Boxed messages, unboxed messages, and datagrams of both, encoded so far."""
        return self.w.boxed, self.w.simple, self.w.datagrams

    def connected(self, double now):
        """Begin with a new socket."""
        self.connection_lost()
        # The server counts messages by the port, so their numbers begin again.
        self.w.id_ = self.first
        self.w.pace.filled = now
        self.grant(0.0, 0.0)

    def connection_lost(self):
        """Forget everything in flight and everything received."""
        self.begin_use()
        self.w.commands.size = self.w.replies.size = 0
        handing_forget(&self.w.handing)
        self.end_use()

    def command(self, bytes datagram):
        """Have a datagram sent, regardless of the pace."""
        cdef lc_datagrams run
        cdef lc_wire *wire = &self.w.commands
        if not 0 < len(datagram) <= <Py_ssize_t> self.w.room:
            raise ValueError(f"command: 1 to {self.w.room} bytes, not {len(datagram)}")
        memset(&run, 0, sizeof(run))
        self.begin_use()
        cdef int done = -1 if wire_reserve(wire, RUN_HEAD + len(datagram)) == NULL else 0
        if done == 0:
            memcpy(wire.data + run_add(&run, wire, <uint32_t> len(datagram)), <const uint8_t *> datagram,
                   len(datagram))
        self.end_use(done)

    def take_replies(self) -> list[bytes]:
        """Return the datagrams received since the last call; of more than 1 MiB the later ones are lost."""
        self.begin_use()
        try:
            return split_runs(self.w.replies.data, self.w.replies.size)
        except ValueError:
            return []
        finally:
            self.w.replies.size = 0
            trim(&self.w.replies, 65536)
            self.end_use()
