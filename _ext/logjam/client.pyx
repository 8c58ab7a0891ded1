cdef enum:
    WRONG_NONE = 0
    WRONG_SHAPE                  # too long, or too many frames
    WRONG_REPLY                  # not a reply to the oldest request
    WRONG_PONG                   # not a reply to the oldest request, which was a ping
    WRONG_TIME                   # no request was in flight


# The parts that all messages of a topic share.
ctypedef struct lc_topic:
    const uint8_t *head          # the frames before the body
    size_t head_size
    const uint8_t *tail          # the field with the id, zeros for the sequence, and the closing brace
    size_t tail_size
    bint uuid                    # that field is "uuid", not "request_id"


# A request without a reply. The last one of those that were encoded together measures their round trip.
ctypedef struct lc_request:
    uint64_t seq                 # of the engine; 0 is a ping
    uint32_t size
    bint last
    lc_trip trip


ctypedef struct lc_logjam:
    bint request
    bint identity
    bint check
    uint32_t inflight
    uint32_t quarter             # of them
    lc_limit limit               # of the quarters in flight
    lc_piece piece               # bounds all that is in flight
    uint64_t bytes               # of the events in flight
    uint64_t batch_bytes
    size_t compress_over
    double silence
    const uint8_t *app_env
    size_t app_env_size
    lc_topic topics[TOPICS]
    uint64_t number              # of the next message
    lc_request *ring
    uint32_t room
    uint32_t head
    uint32_t count
    uint32_t pings
    lc_handing handing           # async: events that ZeroMQ has not taken yet
    double now
    double last_sign
    lc_wire partial              # of a reply
    lc_wire asked                # pings that wait to be sent
    lc_wire pongs                # replies to pings
    int wrong
    uint8_t wrong_bytes[WRONG_SHOWN]
    size_t wrong_size
    lc_packer packer
    lc_wire packed


cdef inline uint32_t client_room(lc_logjam *w) noexcept nogil:
    cdef uint32_t most = w.inflight + w.quarter * (w.limit.now - w.limit.least)
    if not w.request:
        return handing_room(&w.handing)
    if w.count and w.bytes >= w.piece.size:
        return 0
    return most - w.count if w.count < most else 0     # pings may exceed it


# How many quarters are in flight.
cdef inline uint32_t quarters(lc_logjam *w) noexcept nogil:
    return (w.count + w.quarter - 1) // w.quarter


cdef void client_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_logjam *w = <lc_logjam *> self
    cdef uint32_t room = client_room(w)
    w.now = now
    # Replies come a few at a time. To wait until a quarter is free costs less than a ledger line and a turn
    # of the pump for each of them.
    if w.wrong or (w.request and w.count and (room < w.quarter or 4 * w.bytes > 3 * w.piece.size)):
        events[0] = 0
        size[0] = 0
    else:
        # A distant server gets no more than that at once, each with a round trip of its own.
        events[0] = room
        if w.limit.most > w.limit.least and LEAST_TRIP <= w.limit.base < FOREVER:
            events[0] = min(room, w.quarter)
        size[0] = min(w.batch_bytes, w.piece.size - w.bytes)


cdef inline void put_meta(lc_logjam *w, uint8_t *p, uint8_t compression, int64_t created_us) noexcept nogil:
    p[0] = 0xCA
    p[1] = 0xBD
    p[2] = compression
    p[3] = 1                     # the version
    lc_put32(p + 4, 0)           # the device: 0 is "no device"
    lc_put64(p + 8, <uint64_t> (created_us // 1000) if created_us > 0 else 0)
    lc_put64(p + 16, w.number)
    w.number += 1
    if w.number == 0:
        w.number = 1


# Write one body to p, checked and with its id; p has TAIL_MOST + SCAN_PAD bytes of room behind the body.
# Returns its new size, 0 when it is not a JSON object, or STOP_MEMORY. Documents are scanned too: their flags
# are about the fields of another protocol.
cdef inline int64_t finish_body(lc_logjam *w, lc_batch *batch, uint32_t i, lc_topic *topic, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i]
    cdef lc_object o
    cdef lc_span *own = &o.uuid if topic.uuid else &o.request_id
    cdef bint taken, scanned = w.check or kind & K_MASK == K_DOCUMENT
    cdef uint8_t *start
    cdef uint8_t *close
    if open_object(p, batch.body[i], size, scanned, &o) < 0:
        return 0
    if scanned:
        taken = own.at != NULL
    else:
        taken = kind & K_ID1_TAKEN != 0
        if taken and w.identity and scan_object(p, p + size, &o) < 0:
            return 0
    start = <uint8_t *> o.start
    close = <uint8_t *> o.close
    if w.identity:
        if taken:
            if keep_id(&batch.id_hash, batch.n, i, own) < 0:
                return STOP_MEMORY
        else:
            # no comma in an empty object
            memcpy(close, topic.tail + o.empty, topic.tail_size - o.empty)
            close += topic.tail_size - o.empty - 1
            lc_put_digits(close + 1 - TAIL_END, lc_spell(batch.seq[i]))
    size = close + 1 - start
    if start != p:
        memmove(p, start, size)
    return size


cdef int client_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept nogil:
    cdef lc_logjam *w = <lc_logjam *> self
    cdef lc_topic *topic
    cdef uint8_t *p
    cdef size_t begin = wire.size, size, body, taken = 0
    cdef uint32_t i = batch.cursor - 1, n = 0
    cdef uint64_t most
    cdef lc_request *one = NULL
    cdef uint8_t compression
    cdef int64_t done
    if w.wrong:
        return 0
    events = min(events, client_room(w))
    most = min(w.batch_bytes, w.piece.size - w.bytes)
    while next_event(batch, &i, n, events, taken, most):
        size = batch.size[i]
        if size > BODY_LIMIT - TAIL_MOST:
            fail_event(batch, i, R_TOO_LARGE)
            continue
        if batch.kind[i] >> K_TOPIC_SHIFT >= TOPICS:
            fail_event(batch, i, R_UNENCODABLE)
            continue
        topic = &w.topics[batch.kind[i] >> K_TOPIC_SHIFT]
        done = STOP_MEMORY
        body = wire.size + topic.head_size + 4
        p = wire_reserve(wire, topic.head_size + 4 + size + TAIL_MOST + SCAN_PAD + 4 + META_SIZE)
        if p != NULL:
            p += topic.head_size + 4
            done = finish_body(w, batch, i, topic, p, size)
        if done == 0:
            fail_event(batch, i, R_NOT_JSON)
            continue
        compression = NO_COMPRESSION
        if done > 0:
            keep_hash(batch, i, p, done)
        if done > 0 and w.packer.method and <size_t> done >= w.compress_over:
            w.packed.size = 0
            if pack_body(&w.packer, p, done, &w.packed) < 0:
                done = STOP_MEMORY
            elif w.packed.size < <size_t> done:
                compression = <uint8_t> w.packer.method
                done = w.packed.size
                memcpy(p, w.packed.data, done)
            w.packed.size = 0
            trim(&w.packed, ROOM_KEPT)
        if done < 0:
            if n:
                break            # send the encoded events; the next call reports the failure
            wire.size = begin
            return STOP_MEMORY
        memcpy(p - 4 - topic.head_size, topic.head, topic.head_size)
        lc_put_frame(p - 4, <uint32_t> done | FRAME_MORE)
        p += done
        lc_put_frame(p, META_SIZE)
        put_meta(w, p + 4, compression, batch.created_us[i])
        wire.size = body + done + 4 + META_SIZE
        taken += size
        n += 1
        batch.status[i] = INFLIGHT
        if w.request:
            if w.count == 0:
                w.last_sign = now    # the server owed nothing until now
            one = &w.ring[(w.head + w.count) % w.room]
            one.seq = batch.seq[i]
            one.size = <uint32_t> size
            one.last = False
            w.bytes += size
            w.count += 1
        else:
            handing_add(&w.handing, batch.seq[i], wire.size - begin)
    w.handing.written += wire.size - begin
    if one != NULL:
        one.last = True
        limit_sent(&w.limit, &one.trip, quarters(w), now)
    return n


# The same for a compressor that must be called in Python: take the GIL once, not for each message.
cdef int client_encode_held(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                            lc_outcomes *out) noexcept with gil:
    return client_encode(self, batch, events, now, wire, out)


cdef int client_wrong(lc_logjam *w, int what, const uint8_t *p, size_t size) noexcept nogil:
    w.wrong = what
    w.wrong_size = min(size, <size_t> WRONG_SHOWN)
    memcpy(w.wrong_bytes, p, w.wrong_size)
    return STOP_PROTOCOL


cdef inline bint says(const lc_span *frame, const char *words, size_t size) noexcept nogil:
    return frame.size == size and memcmp(frame.at, words, size) == 0


cdef int take_reply(lc_logjam *w, const uint8_t *p, size_t size, lc_span *frames, int n,
                    lc_outcomes *out) noexcept nogil:
    cdef bint good
    if w.count == 0:
        return client_wrong(w, WRONG_TIME, p, size)
    cdef lc_request *one = &w.ring[w.head]
    cdef uint64_t seq = one.seq
    if seq == 0:
        good = n == 3 and says(&frames[1], b"200 OK", 6)
        if not says(&frames[0], b"ping", 4) or not good and not (
                n == 2 and says(&frames[1], b"400 Bad Request", 15)):
            return client_wrong(w, WRONG_PONG, p, size)
        if append_bytes(&w.pongs, p, size) < 0:
            return STOP_MEMORY
        w.pings -= 1
        out.events += 1
    else:
        good = n == 2 and says(&frames[1], b"202 Accepted", 12)
        if (not good and not (n == 2 and says(&frames[1], b"400 Bad Request", 15))
                or not says(&frames[0], <const char *> w.app_env, w.app_env_size)):
            return client_wrong(w, WRONG_REPLY, p, size)
        if outcome_add(out, seq, seq, ACKED if good else FAILED, R_NONE if good else R_REJECTED) < 0:
            return STOP_MEMORY
        w.piece.acked = True
        out.progress += 1
        if one.last:
            limit_acked(&w.limit, &one.trip, quarters(w), w.now)
        if 2 * w.bytes >= w.piece.size:      # it was used up, or nearly so
            w.piece.size = min(w.piece.most, w.piece.size + one.size)
        w.bytes -= one.size
    w.head = (w.head + 1) % w.room
    w.count -= 1
    return 0


cdef void client_sent(void *self, size_t size, lc_outcomes *out) noexcept nogil:
    handing_took(&(<lc_logjam *> self).handing, size, out)


cdef int client_answers(void *self, lc_wire *wire) noexcept nogil:
    cdef lc_logjam *w = <lc_logjam *> self
    if append_bytes(wire, w.asked.data, w.asked.size) < 0:
        return STOP_MEMORY
    w.handing.written += w.asked.size
    w.asked.size = 0
    return 0


# Find the frames of the message at p. 1: it is whole, of `used` bytes; 0: not yet; STOP_PROTOCOL.
cdef inline int next_reply(lc_logjam *w, const uint8_t *p, size_t left, lc_span *frames, int *n,
                           size_t *used) noexcept nogil:
    cdef size_t at = 0, size
    cdef uint32_t head
    n[0] = 0
    while True:
        if left - at < 4:
            return 0
        head = lc_get_frame(p + at)
        size = head & FRAME_SIZE
        if n[0] == REPLY_FRAMES or at + 4 + size > REPLY_LIMIT:
            return client_wrong(w, WRONG_SHAPE, p, left)
        if left - at - 4 < size:
            return 0
        frames[n[0]].at = p + at + 4
        frames[n[0]].size = size
        n[0] += 1
        at += 4 + size
        if not head & FRAME_MORE:
            used[0] = at
            return 1


cdef int client_receive(void *self, const uint8_t *data, size_t size, double now,
                        lc_outcomes *out) noexcept nogil:
    cdef lc_logjam *w = <lc_logjam *> self
    cdef lc_span frames[REPLY_FRAMES]
    cdef size_t used = 0
    cdef bint kept = w.partial.size > 0
    cdef int n = 0, done
    if w.wrong:
        return STOP_PROTOCOL
    if size == 0:
        return 0
    w.now = w.last_sign = now
    if kept:
        if append_bytes(&w.partial, data, size) < 0:
            return STOP_MEMORY
        data = w.partial.data
        size = w.partial.size
    while True:
        done = next_reply(w, data, size, frames, &n, &used)
        if done == 0:
            break
        if done > 0:
            done = take_reply(w, data, used, frames, n, out)
        if done < 0:
            return done
        data += used
        size -= used
    # The rest is part of a message, and bounded by REPLY_LIMIT.
    if kept:
        memmove(w.partial.data, data, size)
        w.partial.size = size
        trim(&w.partial, ROOM_KEPT)
        return 0
    return append_bytes(&w.partial, data, size)


cdef double client_deadline(void *self) noexcept nogil:
    cdef lc_logjam *w = <lc_logjam *> self
    return max(w.last_sign, w.piece.moved) + w.silence if w.count else 0


cdef bytes frame_of(bytes content, bint more):
    cdef uint8_t head[4]
    lc_put_frame(head, <uint32_t> len(content) | (FRAME_MORE if more else 0))
    return (<bytes> head[:4]) + content


@cython.final
cdef class Codec(CodecBase):
    """The client: messages out, replies in, driven by a pump without the GIL through `capsule`.

    ``logclient.logjam.config`` describes and checks the options of users.

    Args:
        app_env: the first frame of each message, 1 to 255 bytes.
        topics: six names, by the high nibble of an event's kind. The id goes into ``request_id`` when the
            topic begins with ``logs``, else into ``uuid``.
        request: ask for a reply to each message. Otherwise events are ``handed`` once ZeroMQ has taken them.
        compression: 0 for none, 1 for zlib, 2 for snappy, 3 for LZ4.
        number: sequence number of the first message; after 2**64 - 1 comes 1.
    """

    cdef lc_logjam w
    cdef object package          # of the compressor
    cdef list kept               # bytes that w.topics points into
    cdef bytes app_env

    def __cinit__(self, bytes producer, bytes app_env, topics: Sequence[bytes], *, bint request=True,
                  int inflight=256, int64_t batch_bytes=1 << 20, int compression=0, int level=3,
                  int64_t compress_over=1024, bint identity=True, bint check=True, double silence=30.0,
                  uint64_t number=1, bint adaptive=False):
        cdef lc_logjam *w = &self.w
        cdef lc_topic *topic
        cdef int i
        cdef bytes id_ = blank_id(producer)
        topics = [bytes(name) for name in topics]
        # An empty first frame would make a message a request, and "ping" a request a ping.
        assert 1 <= len(app_env) <= 255 and app_env != b"ping"
        assert len(topics) == TOPICS and all(0 < len(name) < 1024 for name in topics)
        assert 1 <= inflight <= 65536 and 1 <= batch_bytes <= BODY_LIMIT
        assert 0 <= compression < COMPRESSIONS and 1 <= level <= 9 and 0 <= compress_over <= BODY_LIMIT
        assert number > 0 and silence > 0
        self.package = packer_open(&w.packer, compression, level)
        w.request = request
        w.identity = identity
        w.check = check
        w.inflight = inflight
        w.batch_bytes = batch_bytes
        w.compress_over = compress_over
        w.silence = silence
        w.number = number
        w.quarter = (inflight + 3) // 4
        w.limit.least = 4
        w.limit.most = MOST_QUARTERS if adaptive else 4
        limit_reset(&w.limit)
        w.room = inflight + w.quarter * (w.limit.most - 4) + PINGS
        piece_open(&w.piece, <uint64_t> 1 << 62, <uint64_t> 1 << 62)
        w.ring = <lc_request *> calloc(w.room, sizeof(lc_request))
        if w.ring == NULL or handing_open(&w.handing, ROUND) < 0:
            raise MemoryError()
        self.app_env = app_env
        w.app_env = <const uint8_t *> PyBytes_AS_STRING(app_env)
        w.app_env_size = len(app_env)
        self.kept = []
        for i in range(TOPICS):
            name = topics[i]
            topic = &w.topics[i]
            topic.uuid = not name.startswith(b"logs")
            head = (frame_of(b"", True) if request else b"") + frame_of(app_env, True) + frame_of(name, True)
            tail = (b',"uuid":"' if topic.uuid else b',"request_id":"') + id_ + b'"}'
            self.kept += [head, tail]
            topic.head = <const uint8_t *> PyBytes_AS_STRING(head)
            topic.head_size = len(head)
            topic.tail = <const uint8_t *> PyBytes_AS_STRING(tail)
            topic.tail_size = len(tail)
        self.codec.self = w
        self.codec.credit = client_credit
        self.codec.encode = client_encode_held if packer_needs_gil(&w.packer) else client_encode
        self.codec.receive = client_receive
        self.codec.deadline = client_deadline
        self.codec.moved = &w.piece.moved
        self.codec.answers = client_answers
        if not request:
            self.codec.sent = client_sent

    def __dealloc__(self):
        free(self.w.ring)
        free(self.w.handing.items)
        free(self.w.partial.data)
        free(self.w.asked.data)
        free(self.w.pongs.data)
        free(self.w.packed.data)
        packer_close(&self.w.packer)

    @property
    def compressor(self) -> str:
        """The compressor: ``none``, ``isal 1``, ``zlib 3``, ``lz4``; after ``python``, one with the GIL."""
        cdef lc_packer *k = &self.w.packer
        if k.method == ZLIB:
            return deflater_name(&k.deflater)
        name = {NO_COMPRESSION: "none", SNAPPY: "snappy", LZ4: "lz4"}[k.method]
        return f"python {name}" if k.python != NULL else name

    @property
    def holds_gil(self) -> bool:
        """Whether `encode` holds the GIL, because the compressor must be called in Python."""
        return packer_needs_gil(&self.w.packer)

    @property
    def error(self) -> str | None:
        """The server's violation of the protocol, or None; kept until the next `connected`."""
        cdef lc_logjam *w = &self.w
        if w.wrong == WRONG_NONE:
            return None
        got = <bytes> w.wrong_bytes[:w.wrong_size]
        if w.wrong == WRONG_SHAPE:
            return f"a reply of more than {REPLY_FRAMES} frames or {REPLY_LIMIT} bytes: {got!r}"
        frames = frames_shown(got)
        if w.wrong == WRONG_TIME:
            return f"a reply although no request waits for one: {frames}"
        if w.wrong == WRONG_PONG:
            return f"expected the reply [b'ping', b'200 OK', host], received {frames}"
        return (f"expected the reply [{self.app_env!r}, b'202 Accepted' or b'400 Bad Request'], "
                f"received {frames}")

    def connected(self, double now):
        """Begin a connection."""
        self.connection_lost()
        self.w.wrong = WRONG_NONE
        self.w.now = self.w.last_sign = now
        limit_reset(&self.w.limit)
        piece_begin(&self.w.piece)

    def connection_lost(self):
        """Forget everything in flight."""
        cdef lc_logjam *w = &self.w
        self.begin_use()
        if w.count > w.pings and w.wrong == WRONG_NONE:
            piece_lost(&w.piece, w.count - w.pings, w.bytes)
        w.head = w.count = w.pings = 0
        w.bytes = 0
        handing_forget(&w.handing)
        w.partial.size = w.asked.size = w.pongs.size = 0
        self.end_use()

    def ping(self, double now):
        """Have a ping sent; a ValueError: too many of them wait for a reply."""
        cdef lc_logjam *w = &self.w
        cdef uint8_t meta[META_SIZE]
        cdef bytes message
        self.begin_use()
        try:
            if w.pings == PINGS:
                raise ValueError(f"ping: {PINGS} of them have no reply yet")
            put_meta(w, meta, NO_COMPRESSION, 0)
            message = b"".join([
                frame_of(b"", True), frame_of(b"ping", True), frame_of(self.app_env, True),
                frame_of(b"{}", True), frame_of(<bytes> meta[:META_SIZE], False),
            ])
            if append_bytes(&w.asked, message, len(message)) < 0:
                raise MemoryError()
            if w.count == 0:
                w.last_sign = max(w.now, now)
            w.ring[(w.head + w.count) % w.room].seq = 0
            w.count += 1
            w.pings += 1
        finally:
            self.end_use()

    def pongs(self) -> list[bytes | None]:
        """Return the replies to pings since the last call: the server's name, or None for a bad request."""
        cdef lc_wire *r = &self.w.pongs
        cdef lc_span frames[REPLY_FRAMES]
        cdef size_t at = 0, used = 0
        cdef int n = 0
        hosts = []
        self.begin_use()
        try:
            while at < r.size:
                next_reply(&self.w, r.data + at, r.size - at, frames, &n, &used)
                hosts.append(<bytes> frames[2].at[:frames[2].size] if n == 3 else None)
                at += used
            r.size = 0
            return hosts
        finally:
            self.end_use()


# Show the frames of a message, which may be cut, for an error text.
cdef str frames_shown(bytes data):
    parts = []
    at = 0
    while len(data) - at >= 4:
        head = int.from_bytes(data[at:at + 4], "little")
        size = head & FRAME_SIZE
        parts.append(repr(data[at + 4:at + 4 + size]))
        at += 4 + size
        if not head & FRAME_MORE:
            break
    return f"[{', '.join(parts)}{', ...' if at > len(data) else ''}]"
