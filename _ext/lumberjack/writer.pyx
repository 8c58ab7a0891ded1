ctypedef struct lc_sequences:
    uint64_t first               # engine sequences first .. first + count - 1
    uint32_t count


ctypedef struct lc_window:
    uint32_t n
    uint32_t acked
    uint32_t runs
    uint32_t run                 # the run in which the next acknowledgement begins ...
    uint32_t used                # ... and how many of its events are acknowledged
    uint64_t size                # bytes of its events, as the queue counts them
    lc_trip trip
    lc_sequences *items                # room for one run per event


cdef enum:
    WRONG_NONE = 0
    WRONG_FRAME = 1              # not an ack frame
    WRONG_NUMBER = 2             # higher than the size of the window
    WRONG_TIME = 3               # nothing was in flight


# A field with the id, zeros for the sequence, which is copied with all its room.
ctypedef struct lc_field:
    uint8_t text[FIELD_ROOM]
    size_t size
    size_t digits                # where the sequence is


ctypedef struct lc_writer:
    uint8_t version              # '1' or '2'
    bint json                    # bodies are JSON, not pair blocks
    bint literal                 # the fields marked L are in use
    bint announced               # L: this connection has its window frame
    uint32_t first               # L: number of the first frame of a connection
    uint32_t next                # L: number of the next frame
    uint32_t last_acked          # L: the last number that was acknowledged
    uint32_t unacked             # L: frames sent and not acknowledged
    uint64_t acked               # L: frames acknowledged on this connection
    bint identity
    bint check
    bint compress
    uint32_t window
    uint64_t window_bytes
    double silence
    lc_limit limit
    lc_piece piece
    lc_window *windows           # a ring of `limit.most`
    lc_sequences *runs                 # of all windows
    uint32_t head
    uint32_t count
    uint64_t bytes               # of the events in flight
    uint64_t most_bytes          # bound on them beyond `limit.least` windows
    uint32_t careful
    double last_sign
    uint8_t partial[6]           # of an ack
    uint32_t partial_size
    int wrong
    uint32_t wrong_number
    uint32_t wrong_window
    uint8_t wrong_bytes[6]
    uint32_t wrong_size
    lc_wire raw                  # frames, before compression
    lc_deflater deflater
    lc_field metadata            # the id fields of a JSON body
    lc_field dotted
    lc_field event
    lc_field in_metadata         # ... inside of objects that are open
    lc_field in_event
    uint8_t pair[PAIR_SIZE]      # ... of a pair block
    const uint8_t *constants     # ,"@metadata":{ with the entries of all events, not closed
    size_t constants_size        # 0: there are none, and `metadata` opens the object
    uint8_t scanned_kinds        # flags of documents whose ids, or "@metadata", are looked for


cdef inline bint has_room(lc_writer *w) noexcept nogil:
    if w.careful:
        return w.count == 0
    if w.count >= w.limit.now:
        return False
    return w.count < w.limit.least or w.bytes + w.window_bytes <= w.most_bytes


# Running numbers go from 1 to 4,294,967,295, and then to 1 again.
cdef inline uint32_t number_after(uint32_t number) noexcept nogil:
    return 1 if number == NUMBER_LAST else number + 1


cdef inline uint32_t number_before(uint32_t number) noexcept nogil:
    return <uint32_t> NUMBER_LAST if number == 1 else number - 1


# The distance from `start` forward to `number`.
cdef inline uint32_t numbers_between(uint32_t start, uint32_t number) noexcept nogil:
    return number - start if number >= start else number - start - 1


cdef void writer_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    if w.wrong or not has_room(w):
        events[0] = 0
        size[0] = 0
    else:
        events[0] = w.window
        size[0] = w.piece.size


cdef int make_field(lc_field *field, bytes begin, bytes id_, bytes end) except -1:
    cdef bytes text = begin + id_ + end
    memcpy(field.text, <const uint8_t *> text, len(text))
    field.size = len(text)
    field.digits = len(begin) + PRODUCER_SIZE
    return 0


# Copy a field to `to`, whose sequence gets these digits; return the place behind it.
cdef inline uint8_t *put_field(uint8_t *to, const lc_field *field, lc_digits digits) noexcept nogil:
    memcpy(to, field.text, FIELD_ROOM)
    lc_put_digits(to + field.digits, digits)
    return to + field.size


# Write one JSON body to p, checked, with its id and the constant entries of "@metadata". Behind it p has room
# for these, for 2 * FIELD_ROOM and SCAN_PAD bytes.
# Returns its new size, 0 when it is not a JSON object, or STOP_MEMORY.
cdef inline int64_t finish_json(lc_writer *w, lc_batch *batch, uint32_t i, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i]
    cdef uint8_t *end = p + size
    cdef uint8_t *start
    cdef uint8_t *close
    cdef uint8_t *place
    cdef uint8_t kept
    cdef lc_object o
    cdef bint scanned = w.check and (kind & K_MASK == K_RAW or kind & K_MASK == K_BYTES)
    cdef bint empty, first, second, alone
    cdef lc_digits digits
    if open_object(p, batch.body[i], size, scanned, &o) < 0:
        return 0
    if scanned:
        kind |= carriers_taken(&o)
    else:
        scanned = kind & w.scanned_kinds != 0
        if scanned and scan_object(p, end, &o) < 0:
            return 0
        if w.identity and scanned and kind & K_ID1_TAKEN == 0 and user_id(&o).at != NULL:
            # for readers that no longer see "@metadata"
            if keep_id(&batch.id_hash, batch.n, i, user_id(&o)) < 0:
                return STOP_MEMORY
    first = w.identity and kind & K_ID1_TAKEN == 0
    second = w.identity and kind & K_ID2_TAKEN == 0
    # The application's own "@metadata" stays as it is.
    alone = w.constants_size and not first and not (scanned and o.has_metadata)
    if w.identity and not first and not second:      # it is scanned
        if keep_id(&batch.id_hash, batch.n, i, user_id(&o)) < 0:
            return STOP_MEMORY
        if second_id(&o) != NULL and keep_id(&batch.id_second, batch.n, i, second_id(&o)) < 0:
            return STOP_MEMORY
    start = <uint8_t *> o.start
    close = <uint8_t *> o.close
    empty = o.empty
    if first or second or alone:
        digits = lc_spell(batch.seq[i])
        place = close - empty
        kept = place[0]
        close = place
        if kind & K_METADATA_OPEN and first:     # it is closed after the id
            (close - 1)[0] = c','
            close = put_field(close, &w.in_metadata, digits)
            first = False
        elif kind & K_EVENT_OPEN and second:
            (close - 1)[0] = c','    # likewise "event"
            close = put_field(close, &w.in_event, digits)
            second = False
        if w.constants_size and (first or alone):
            memcpy(close, w.constants, w.constants_size)
            close += w.constants_size
        if first:
            close = put_field(close, &w.metadata, digits)
        elif alone:
            close[0] = c'}'
            close += 1
        if second:
            close = put_field(close, &w.event if kind & K_NESTED else &w.dotted, digits)
        close[0] = c'}'
        if empty:
            place[0] = kept          # no comma after the opening brace
    size = close + 1 - start
    if start != p:
        memmove(p, start, size)
    return size


# Add the id to the pair block at p, which has room behind it. Returns its new size, 0 when it is not a pair
# block or empty, or STOP_MEMORY. The lengths are always checked: readers find the end of the frame by them.
cdef inline int64_t finish_pairs(lc_writer *w, lc_batch *batch, uint32_t i, uint8_t *p,
                                 size_t size) noexcept nogil:
    cdef lc_span own
    if scan_pairs(p, size, &own) < 0:
        return 0
    cdef bint taken = own.at != NULL or batch.kind[i] & (K_ID1_TAKEN | K_ID2_TAKEN) != 0
    if w.identity and not taken:
        memcpy(p + size, w.pair, PAIR_SIZE)
        lc_put_digits(p + size + PAIR_SIZE - 12, lc_spell(batch.seq[i]))
        lc_put32(p, lc_get32(p) + 1)
        return size + PAIR_SIZE
    if lc_get32(p) == 0:
        return 0                 # Logstash drops the connection over an empty map
    if w.identity and keep_id(&batch.id_hash, batch.n, i, &own) < 0:
        return STOP_MEMORY
    return size


cdef int writer_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    cdef lc_window *window
    cdef lc_sequences *run = NULL
    cdef lc_wire *to
    cdef uint8_t *p
    cdef size_t begin = wire.size, size, room, taken = 0, body = 0
    cdef int64_t done
    cdef uint32_t i, n = 0
    cdef uint32_t number = w.next if w.literal else 1
    cdef uint32_t head = 0 if w.announced else 6     # of the window frame
    if w.wrong or not has_room(w):
        return 0
    events = min(events, w.window)
    window = &w.windows[(w.head + w.count) % w.limit.most]
    window.n = window.acked = window.runs = window.run = window.used = 0
    if w.compress:
        to = &w.raw
        to.size = 0
    else:
        to = wire
        if wire_reserve(wire, 6) == NULL:
            return STOP_MEMORY
        wire.size += head
    for i in range(batch.cursor, batch.n):
        if batch.status[i] != PENDING:
            continue
        size = batch.size[i]
        room = queue_bytes(size)
        if n == events or (n and taken + room > w.piece.size):
            break
        if size > BODY_LIMIT:
            fail_event(batch, i, R_TOO_LARGE)
            continue
        done = STOP_MEMORY
        p = wire_reserve(to, FRAME_HEAD + size + w.constants_size + 2 * FIELD_ROOM + SCAN_PAD)
        if p != NULL:
            p[0] = w.version
            lc_put32(p + 2, number)
            if w.json:
                p[1] = c'J'
                done = finish_json(w, batch, i, p + FRAME_HEAD, size)
                if done > 0:
                    lc_put32(p + 6, <uint32_t> done)
                    body = FRAME_HEAD
            else:
                p[1] = c'D'
                memcpy(p + 6, batch.body[i], size)
                done = finish_pairs(w, batch, i, p + 6, size)
                body = 6
        if done < 0:
            if n:
                break            # send the encoded events; the next call reports the failure
            wire.size = begin
            return STOP_MEMORY
        if done == 0:
            fail_event(batch, i, R_NOT_JSON if w.json else R_UNENCODABLE)
            continue
        keep_hash(batch, i, p + body, done)
        to.size += body + done
        taken += room
        batch.status[i] = INFLIGHT
        if run != NULL and run.first + run.count == batch.seq[i]:
            run.count += 1
        else:
            run = &window.items[window.runs]
            run.first = batch.seq[i]
            run.count = 1
            window.runs += 1
        n += 1
        number = number_after(number)
    if n == 0:
        wire.size = begin
        return 0
    if w.compress:
        p = wire_reserve(wire, head + 6)
        if p != NULL:
            wire.size += head + 6
            if deflate_window(&w.deflater, w.raw.data, w.raw.size, wire) < 0:
                p = NULL
        if p == NULL:
            for n in range(window.runs):     # undo the changes to the batch
                for i in range(batch.cursor, batch.n):
                    if 0 <= <int64_t> (batch.seq[i] - window.items[n].first) < window.items[n].count:
                        batch.status[i] = PENDING
            wire.size = begin
            return STOP_MEMORY
        p = wire.data + begin + head
        p[0] = w.version
        p[1] = c'C'
        lc_put32(p + 2, <uint32_t> (wire.size - begin - head - 6))
        w.raw.size = 0
        trim(&w.raw, ROOM_KEPT + 2 * w.window_bytes)
    if head:
        p = wire.data + begin
        p[0] = w.version
        p[1] = c'W'
        lc_put32(p + 2, w.window * w.limit.least if w.literal else n)
    if w.literal:
        w.announced = True
        w.next = number
        w.unacked += n
    window.n = n
    window.size = taken
    if w.count == 0:
        w.last_sign = now        # the reader owed nothing until now
    w.count += 1
    w.bytes += taken
    limit_sent(&w.limit, &window.trip, w.count, now)
    return n


# Report so many more events of a window, by their sequences.
cdef int give_acked(lc_window *window, uint32_t left, lc_outcomes *out) noexcept nogil:
    cdef lc_sequences *run
    cdef uint32_t some
    while left:
        run = &window.items[window.run]
        some = min(run.count - window.used, left)
        if outcome_add(out, run.first + window.used, run.first + window.used + some - 1, ACKED, R_NONE) < 0:
            return STOP_MEMORY
        left -= some
        window.acked += some
        window.used += some
        if window.used == run.count:
            window.run += 1
            window.used = 0
    return 0


cdef int writer_wrong(lc_writer *w, int what, const uint8_t *data, size_t size) noexcept nogil:
    w.wrong = what
    w.wrong_size = <uint32_t> min(size, 6)
    memcpy(w.wrong_bytes, data, w.wrong_size)
    return STOP_PROTOCOL


cdef void pop_window(lc_writer *w, double now) noexcept nogil:
    cdef lc_window *window = &w.windows[w.head]
    limit_acked(&w.limit, &window.trip, w.count, now)
    piece_acked(&w.piece, window.size, window.trip.sent, now)
    w.bytes -= window.size
    w.head = (w.head + 1) % w.limit.most
    w.count -= 1
    if w.careful:
        w.careful -= 1


cdef int take_ack(lc_writer *w, const uint8_t *p, double now, lc_outcomes *out) noexcept nogil:
    cdef uint32_t number = lc_get32(p + 2), left, some
    cdef lc_window *window = &w.windows[w.head]
    if number == 0:
        if w.count:
            limit_busy(&w.limit)
        return 0
    w.wrong_number = number
    if w.literal:                # it covers all frames up to this number, in one or more windows
        left = numbers_between(w.last_acked, number)
        if left > w.unacked or left == 0:
            if numbers_between(number, w.last_acked) < w.acked:
                return 0         # already acknowledged
            return writer_wrong(w, WRONG_NUMBER if w.unacked else WRONG_TIME, p, 6)
        w.unacked -= left
        w.acked += left
        w.last_acked = number
    else:
        if w.count == 0:
            return writer_wrong(w, WRONG_TIME, p, 6)
        if number > window.n:
            w.wrong_window = window.n
            return writer_wrong(w, WRONG_NUMBER, p, 6)
        if number <= window.acked:
            return 0             # already acknowledged
        left = number - window.acked
    while left:
        window = &w.windows[w.head]
        some = min(left, window.n - window.acked)
        if give_acked(window, some, out) < 0:
            return STOP_MEMORY
        left -= some
        if window.acked == window.n:
            pop_window(w, now)
        else:
            limit_busy(&w.limit)
    w.piece.acked = True
    out.progress += 1
    return 0


cdef int writer_receive(void *self, const uint8_t *data, size_t size, double now,
                        lc_outcomes *out) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    cdef const uint8_t *end = data + size
    cdef uint32_t some
    cdef int stop
    if w.wrong:
        return STOP_PROTOCOL
    if size:
        w.last_sign = now
    while data < end:
        some = min(6 - w.partial_size, <uint32_t> min(end - data, 6))
        memcpy(w.partial + w.partial_size, data, some)
        w.partial_size += some
        data += some
        # Fail before six bytes are there: the greeting of another protocol may be shorter.
        if (w.partial[0] != c'2' and w.partial[0] != c'1') or (w.partial_size > 1 and w.partial[1] != c'A'):
            return writer_wrong(w, WRONG_FRAME, w.partial, w.partial_size)
        if w.partial_size < 6:
            break
        w.partial_size = 0
        stop = take_ack(w, w.partial, now, out)
        if stop < 0:
            return stop
    return 0


cdef double writer_deadline(void *self) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    return max(w.last_sign, w.piece.moved) + w.silence if w.count else 0


cdef void forget_windows(lc_writer *w) noexcept nogil:
    w.count = w.unacked = w.partial_size = 0
    w.bytes = 0


@cython.final
cdef class Codec(CodecBase):
    """The writer: windows out, acknowledgements in, driven by a pump without the GIL through `capsule`.

    ``logclient.lumberjack.config`` describes and checks the options of users.

    Args:
        window_bytes: bound on the bodies of one window, each rounded up to 8 bytes and 24 more, as the queue
            counts them, so that a batch of that size is one window. A larger event travels alone.
        inflight_bytes: bound on the bytes of unacknowledged events beyond `inflight` windows, counted alike.
        silence: seconds without a byte from the reader, and without one that it takes, after which the
            connection counts as dead.
        frames: ``json`` or ``data``; empty for the version's own, or ``json`` with `strict_spec`.
        first: with `strict_spec`, the number of the first frame of each connection.
        metadata: JSON members without braces, which all events have in ``@metadata``.
    """

    cdef lc_writer w
    cdef object package          # of the compressor
    cdef bytes constants         # of `w`

    def __cinit__(self, bytes producer, *, int version=2, int window=2048, int64_t window_bytes=1 << 20,
                  int inflight=2, int compression=3, bint identity=True, bint check=True,
                  double silence=30.0, str frames="", bint strict_spec=False, uint32_t first=1,
                  bint adaptive=False, int64_t inflight_bytes=1 << 25, bytes metadata=b""):
        cdef lc_writer *w = &self.w
        cdef int i, most = <int> MOST_WINDOWS if adaptive else inflight
        cdef bytes id_ = blank_id(producer)
        assert 1 <= window <= WINDOW_LIMIT and 0 < window_bytes <= BODY_LIMIT // 4 and 0 < inflight <= 1024
        assert 0 <= compression <= 9 and silence > 0 and first > 0
        assert version == 1 or version == 2 and not strict_spec
        assert frames in ("", "json" if version == 2 else "data") or strict_spec and frames == "json"
        w.version = b"12"[version - 1]
        w.json = (frames or ("data" if version == 1 and not strict_spec else "json")) == "json"
        w.literal = strict_spec
        w.first = first
        w.window = window
        w.window_bytes = window_bytes
        w.identity = identity
        w.check = check
        w.silence = silence
        assert not adaptive or inflight <= most and inflight_bytes >= 0 and not strict_spec
        w.windows = <lc_window *> calloc(most, sizeof(lc_window))
        w.runs = <lc_sequences *> malloc(<size_t> most * window * sizeof(lc_sequences))
        if w.windows == NULL or w.runs == NULL:
            raise MemoryError()
        w.limit.least = inflight
        w.limit.most = most
        w.most_bytes = inflight_bytes
        limit_reset(&w.limit)
        piece_open(&w.piece, window_bytes, START_BYTES // inflight if adaptive else window_bytes)
        for i in range(most):
            w.windows[i].items = w.runs + i * window
        w.compress = version == 1 and not strict_spec or compression > 0
        if w.compress:
            self.package = deflater_open(&w.deflater, compression)
        assert w.json or not metadata
        begin = b',"@metadata":{'
        if metadata:
            self.constants = begin + metadata
            w.constants = self.constants
            w.constants_size = <size_t> len(self.constants)
            begin = b","
        if identity:
            w.scanned_kinds = <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
        elif metadata:
            w.scanned_kinds = <uint8_t> (K_ID1_TAKEN | K_METADATA_OPEN)
        make_field(&w.metadata, begin + b'"_id":"', id_, b'"}')
        make_field(&w.dotted, b',"event.id":"', id_, b'"')
        make_field(&w.event, b',"event":{"id":"', id_, b'"}')
        make_field(&w.in_metadata, b'"_id":"', id_, b'"}')
        make_field(&w.in_event, b'"id":"', id_, b'"}')
        pair = b"\0\0\0\x08event.id\0\0\0\x20" + id_
        memcpy(w.pair, <const uint8_t *> pair, PAIR_SIZE)
        self.codec.self = w
        self.codec.credit = writer_credit
        self.codec.encode = writer_encode
        self.codec.receive = writer_receive
        self.codec.deadline = writer_deadline
        self.codec.moved = &w.piece.moved

    def __dealloc__(self):
        free(self.w.windows)
        free(self.w.runs)
        free(self.w.raw.data)
        deflater_close(&self.w.deflater)

    @property
    def compressor(self) -> str:
        """The compressor: ``none``, ``isal 1``, ``zlib 3``; after ``python``, one with the GIL."""
        return deflater_name(&self.w.deflater) if self.w.compress else "none"

    @property
    def windows(self) -> int:
        """The number of windows in flight."""
        return self.w.count

    @property
    def limit(self) -> int:
        """How many windows may be in flight now."""
        return 1 if self.w.careful else self.w.limit.now

    @property
    def error(self) -> str | None:
        """The reader's violation of the protocol, or None; kept until the next `connected`."""
        cdef lc_writer *w = &self.w
        if w.wrong == WRONG_NONE:
            return None
        if w.wrong == WRONG_NUMBER and w.literal:
            return (f"ack {w.wrong_number} although the frames sent and not acknowledged are "
                    f"{number_after(w.last_acked)} to {number_before(w.next)}")
        if w.wrong == WRONG_NUMBER:
            return f"ack {w.wrong_number} for a window of {w.wrong_window} events"
        if w.wrong == WRONG_TIME:
            return f"ack {w.wrong_number} although no window is in flight"
        got = <bytes> w.wrong_bytes[:w.wrong_size]
        if got.startswith(b"\x15\x03"):  # an alert
            return f"the server speaks TLS, the URL must begin with lumberjack+tls: received {got!r}"
        return f"expected an ack frame ('1' or '2', 'A', 32-bit sequence), received {got!r}"

    def connected(self, double now):
        """Begin a connection."""
        self.begin_use()
        forget_windows(&self.w)
        limit_reset(&self.w.limit)
        self.w.announced = False
        self.w.next = self.w.first
        self.w.last_acked = number_before(self.w.first)
        self.w.acked = 0
        self.w.wrong = WRONG_NONE
        self.w.last_sign = now
        piece_begin(&self.w.piece)
        self.end_use()

    def connection_lost(self):
        """Forget the windows in flight."""
        self.begin_use()
        cdef lc_window *window = &self.w.windows[self.w.head]
        # With several windows out, the break may have come from Logstash's idle timer for the second one. The
        # same windows, sent the same way, would break the connection again.
        if self.w.count > 1:
            self.w.careful = CAREFUL_WINDOWS
        if self.w.count:
            piece_lost(&self.w.piece, window.n, window.size)
        forget_windows(&self.w)
        self.end_use()
