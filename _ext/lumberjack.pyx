# Lumberjack, compiled: the writer behind lc_hot, the reader, the decoder of captures, the checking pass.
#
#   frame         version '1' or '2', type, payload; integers big-endian
#   'W'           u32 events of the window that follows (servers read it as an exact count)
#   'D' (1 only)  u32 sequence, u32 count, count times (u32 length, key, u32 length, value)
#   'J' (2 only)  u32 sequence, u32 length, JSON object
#   'C'           u32 length, zlib stream of whole frames
#   'A'           u32 sequence; 0 is a keep-alive
#
# The writer numbers the events of each window from 1: the only numbering on which Logstash (acks
# the highest sequence) and go-lumber (acks the count) agree. Version 1 always compresses: Logstash
# misreads a 'data' frame that is split over two reads.
#
# The literal form (strict_spec) follows the protocol text, which no released server does:
#
#   'J'           in version 1 too; the text has no other version
#   'W'           the most frames without an acknowledgement; sent once, and no part of a unit
#   sequence      runs over the whole connection, from 4,294,967,295 to 1; 0 stays a keep-alive's
#   'A'           acknowledges all frames up to this number
#   a unit        one 'D', 'J' or 'C' frame on its way, as it is captured

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport NO_MEMORY, BatchDecoder, Events, clear_id, identify, scan_body
from logclient._ext.deflate cimport (
    BY_ISAL,
    BY_LIBZ,
    BY_PYTHON,
    INFLATE_BAD,
    INFLATE_MEMORY,
    INFLATE_TOO_LARGE,
    deflate_window,
    deflater_close,
    deflater_open,
    inflate_frame,
    inflater_close,
    inflater_open,
    lc_deflater,
    lc_inflater,
)
from logclient._ext.hash cimport HASH_LANES, SEED, xxh64_lanes, xxh64_of
from logclient._ext.hot cimport (
    ACKED,
    FAILED,
    INFLIGHT,
    K_BYTES,
    K_ID1_TAKEN,
    K_ID2_TAKEN,
    K_MASK,
    K_METADATA_OPEN,
    K_RAW,
    PENDING,
    R_NONE,
    R_NOT_JSON,
    R_TOO_LARGE,
    R_UNENCODABLE,
    STOP_MEMORY,
    STOP_PROTOCOL,
    lc_batch,
    lc_outcomes,
    lc_wire,
    outcome_add,
    wire_reserve,
)
from logclient._ext.ids cimport (
    C_OWN,
    ID_SIZE,
    PRODUCER_SIZE,
    add_common,
    hash_bodies,
    is_ours,
    keep_second_id,
    keep_user_id,
    lc_digits,
    lc_get32,
    lc_id,
    lc_put32,
    lc_put_digits,
    lc_spell,
    read_id,
    trim,
)
from logclient._ext.jsonscan cimport (
    SCAN_DEPTH,
    SCAN_DIGITS,
    SCAN_PAD,
    copy_object,
    find_braces,
    lc_object,
    lc_span,
    scan_object,
    second_id,
    user_id,
)

MAX_WINDOW = WINDOW_LIMIT
MAX_DEPTH = SCAN_DEPTH
MAX_DIGITS = SCAN_DIGITS

cdef enum:
    WINDOW_LIMIT = 10_000        # go-lumber refuses more
    BODY_LIMIT = 0x7FFFFF00      # lengths are signed on the other side
    TAIL_SIZE = 102              # both carriers and the closing brace
    TAIL_METADATA = 55           # of them the first carrier
    TAIL_BRACE = 13              # where the object that it is opens
    TAIL_ID1 = 21                # where the ids are in it
    TAIL_ID2 = 68
    PAIR_SIZE = 48               # version 1's carrier
    CAREFUL_WINDOWS = 10
    NUMBER_LAST = 0xFFFFFFFF
    FRAME_HEAD = 10              # version, type, sequence, length
    EVENT_HEAD = 24              # what the hand-off counts beside a body: a batch of it is one window
    ROOM_KEPT = 1 << 22

# ---------------------------------------------------------------------------------------------------
# The checking pass
# ---------------------------------------------------------------------------------------------------

# Version 1's pair block: u32 count, then the pairs, to the last byte. Finds the last "event.id".
# 0, or -1 when the lengths do not add up.
cdef int scan_pairs(const uint8_t *p, size_t size, lc_span *event_id) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef const uint8_t *k
    cdef uint32_t count, length, key
    event_id.at = NULL
    event_id.size = 0
    if size < 4:
        return -1
    count = lc_get32(p)
    p += 4
    while count:
        if end - p < 4:
            return -1
        key = lc_get32(p)
        p += 4
        if <size_t> (end - p) < key:
            return -1
        k = p
        p += key
        if end - p < 4:
            return -1
        length = lc_get32(p)
        p += 4
        if <size_t> (end - p) < length:
            return -1
        if key == 8 and memcmp(k, b"event.id", 8) == 0:
            event_id.at = p
            event_id.size = length
        p += length
        count -= 1
    return 0 if p == end else -1


# The carriers that a raw body leaves no room for. One with an id of its own is carried as it is; beside an
# "event" that is no object "event.id" would be one too many, unless there is nowhere else for the id.
cdef inline uint8_t carriers_taken(lc_object *o) noexcept nogil:
    if user_id(o).at != NULL:
        return <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
    if o.has_metadata:
        return <uint8_t> K_ID1_TAKEN
    return <uint8_t> K_ID2_TAKEN if o.flat_event else 0


def check_json(body, /):
    """What the checking pass finds in a body; see the stub."""
    cdef Py_buffer view
    cdef lc_wire scratch
    cdef lc_object o
    cdef lc_span *own
    cdef const uint8_t *base
    cdef int bad
    memset(&scratch, 0, sizeof(scratch))
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    with nogil:
        bad = -1
        if wire_reserve(&scratch, view.len + SCAN_PAD) != NULL:
            memset(scratch.data + view.len, 0, SCAN_PAD)
            bad = copy_object(scratch.data, <const uint8_t *> view.buf, view.len, &o)
    PyBuffer_Release(&view)
    try:
        if scratch.data == NULL:
            raise MemoryError()
        if bad:
            return None
        base = scratch.data
        own = user_id(&o)
        return (o.start - base, o.close + 1 - base, <int> carriers_taken(&o),
                None if own.at == NULL else <bytes> own.at[:own.size])
    finally:
        free(scratch.data)


def check_pairs(body, /):
    """The same for version 1's pair block; see the stub."""
    cdef Py_buffer view
    cdef lc_span own
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if scan_pairs(<const uint8_t *> view.buf, view.len, &own) < 0:
            return None
        if own.at == NULL:
            return 0, None
        return <int> K_ID2_TAKEN, <bytes> own.at[:own.size]
    finally:
        PyBuffer_Release(&view)


# ---------------------------------------------------------------------------------------------------
# The writer
# ---------------------------------------------------------------------------------------------------

ctypedef struct lc_run:
    uint64_t first               # engine sequences first .. first + count - 1
    uint32_t count


ctypedef struct lc_window:
    uint32_t n
    uint32_t acked
    uint32_t runs
    uint32_t run                 # the run that the next acknowledgement begins in,
    uint32_t used                # and how many of it are acknowledged
    bint behind                  # it was sent while another was in flight
    lc_run *items                # room for a run an event


cdef enum:
    WRONG_NONE = 0
    WRONG_FRAME = 1              # no ack frame
    WRONG_NUMBER = 2             # more than the window has
    WRONG_TIME = 3               # nothing was awaited


# All that the nogil half needs. `self` of lc_hot.
ctypedef struct lc_writer:
    uint8_t version              # '1' or '2'
    bint json                    # bodies are JSON, not pair blocks
    bint literal                 # the fields marked L are in use
    bint announced               # L: this connection has its window frame
    uint32_t first               # L: number of the first frame of a connection
    uint32_t next                # L: number of the next frame
    uint32_t last_acked          # L: the last number that was acknowledged
    uint32_t unacked             # L: frames that are not
    uint64_t acked               # L: frames that are, on this connection
    bint identity
    bint check
    bint compress
    uint32_t window
    uint64_t window_bytes
    uint32_t inflight
    double silence
    lc_window *windows           # a ring of `inflight`
    uint32_t head
    uint32_t count
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
    uint8_t tail[TAIL_SIZE]      # the carriers of a JSON body, zeros for the sequence
    uint8_t pair[PAIR_SIZE]      # ... of a pair block


cdef inline uint32_t allowed_windows(lc_writer *w) noexcept nogil:
    return 1 if w.careful else w.inflight


# Running numbers: a circle of 1 to 4,294,967,295, without 0.
cdef inline uint32_t number_after(uint32_t number) noexcept nogil:
    return 1 if number == NUMBER_LAST else number + 1


cdef inline uint32_t number_before(uint32_t number) noexcept nogil:
    return <uint32_t> NUMBER_LAST if number == 1 else number - 1


# How many numbers `number` is ahead of `start`.
cdef inline uint32_t numbers_between(uint32_t start, uint32_t number) noexcept nogil:
    return number - start if number >= start else number - start - 1


cdef void writer_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    if w.wrong or w.count >= allowed_windows(w):
        events[0] = 0
        size[0] = 0
    else:
        events[0] = w.window
        size[0] = w.window_bytes


# One JSON body, to p, with TAIL_SIZE + SCAN_PAD bytes of room behind it: checked, id in.
# Its new size; 0 when it is no JSON object; STOP_MEMORY.
cdef inline int64_t finish_json(lc_writer *w, lc_batch *batch, uint32_t i, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i]
    cdef uint8_t *end = p + size
    cdef uint8_t *start
    cdef uint8_t *close
    cdef lc_object o
    cdef bint scanned = False, empty, first, second
    cdef lc_digits digits
    cdef uint8_t comma = 0
    if w.check and (kind & K_MASK == K_RAW or kind & K_MASK == K_BYTES):
        if copy_object(p, batch.body[i], size, &o) < 0:
            return 0
        scanned = True
        kind |= carriers_taken(&o)
    else:
        memcpy(p, batch.body[i], size)
        if find_braces(p, size, &o) < 0:
            return 0
        if w.identity and kind & (K_ID1_TAKEN | K_ID2_TAKEN):
            if scan_object(p, end, &o) < 0:
                return 0
            scanned = True
            if kind & K_ID1_TAKEN == 0 and user_id(&o).at != NULL:
                # beside ours: for who sees the event where "@metadata" is gone
                if keep_user_id(batch, i, user_id(&o)) < 0:
                    return STOP_MEMORY
    start = <uint8_t *> o.start
    close = <uint8_t *> o.close
    empty = o.empty
    if w.identity:
        first = kind & K_ID1_TAKEN == 0
        second = kind & K_ID2_TAKEN == 0
        if first or second:
            digits = lc_spell(batch.seq[i])
            if empty:                    # no comma: there is nothing to divide
                close -= 1
                comma = close[0]
            if kind & K_METADATA_OPEN:
                close -= 1               # what is there ends behind the id
                memcpy(close, w.tail + TAIL_BRACE, TAIL_METADATA - TAIL_BRACE)
                close[0] = c','
                lc_put_digits(close + TAIL_ID1 - TAIL_BRACE + PRODUCER_SIZE, digits)
                close += TAIL_METADATA - TAIL_BRACE
                close[0] = c'}'
                end = close + 1
                if second:
                    memcpy(close, w.tail + TAIL_METADATA, TAIL_SIZE - TAIL_METADATA)
                    lc_put_digits(close + TAIL_ID2 - TAIL_METADATA + PRODUCER_SIZE, digits)
                    end = close + TAIL_SIZE - TAIL_METADATA
            elif first and second:
                memcpy(close, w.tail, TAIL_SIZE)
                lc_put_digits(close + TAIL_ID1 + PRODUCER_SIZE, digits)
                lc_put_digits(close + TAIL_ID2 + PRODUCER_SIZE, digits)
                end = close + TAIL_SIZE
            elif first:
                memcpy(close, w.tail, TAIL_METADATA)
                lc_put_digits(close + TAIL_ID1 + PRODUCER_SIZE, digits)
                close[TAIL_METADATA] = c'}'
                end = close + TAIL_METADATA + 1
            else:
                memcpy(close, w.tail + TAIL_METADATA, TAIL_SIZE - TAIL_METADATA)
                lc_put_digits(close + TAIL_ID2 - TAIL_METADATA + PRODUCER_SIZE, digits)
                end = close + TAIL_SIZE - TAIL_METADATA
            if empty:
                close[0] = comma
            close = end - 1
        else:
            if not scanned and scan_object(p, end, &o) < 0:
                return 0
            if keep_user_id(batch, i, user_id(&o)) < 0:
                return STOP_MEMORY
            if second_id(&o) != NULL and keep_second_id(batch, i, second_id(&o)) < 0:
                return STOP_MEMORY
    size = close + 1 - start
    if start != p:
        memmove(p, start, size)
    return size


# One pair block, at p already, room behind it. Its new size; 0 when it is none, or empty; STOP_MEMORY.
# Its lengths are checked whoever made it: nothing else tells a reader where the frame ends.
cdef inline int64_t finish_pairs(lc_writer *w, lc_batch *batch, uint32_t i, uint8_t *p,
                                 size_t size) noexcept nogil:
    cdef bint taken
    cdef lc_span own
    if scan_pairs(p, size, &own) < 0:
        return 0
    taken = own.at != NULL or batch.kind[i] & (K_ID1_TAKEN | K_ID2_TAKEN) != 0
    if w.identity and not taken:
        memcpy(p + size, w.pair, PAIR_SIZE)
        lc_put_digits(p + size + PAIR_SIZE - 12, lc_spell(batch.seq[i]))
        lc_put32(p, lc_get32(p) + 1)
        return size + PAIR_SIZE
    if lc_get32(p) == 0:
        return 0                 # Logstash drops the connection over an empty map
    if w.identity and keep_user_id(batch, i, &own) < 0:
        return STOP_MEMORY
    return size


# Take back what an encode has done to the batch.
cdef void undo(lc_batch *batch, uint32_t i, lc_window *window) noexcept nogil:
    cdef uint32_t r, k
    for r in range(window.runs):
        for k in range(window.items[r].count):
            while batch.seq[i] != window.items[r].first + k:
                i += 1
            batch.fate[i] = PENDING


cdef int writer_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    cdef lc_window *window
    cdef lc_run *run = NULL
    cdef lc_wire *to
    cdef uint8_t *p
    cdef size_t begin = wire.size, size, room, taken = 0, body = 0
    cdef size_t at[HASH_LANES]       # bodies on the wire, not hashed yet
    cdef size_t sizes[HASH_LANES]
    cdef uint32_t index[HASH_LANES]
    cdef uint32_t waiting = 0, lanes = xxh64_lanes()
    cdef int64_t done
    cdef uint32_t i, n = 0
    cdef uint32_t number = w.next if w.literal else 1
    cdef uint32_t head = 0 if w.announced else 6     # of the window frame
    if w.wrong or w.count >= allowed_windows(w):
        return 0
    if events > w.window:
        events = w.window
    window = &w.windows[(w.head + w.count) % w.inflight]
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
        if batch.fate[i] != PENDING:
            continue
        size = batch.size[i]
        room = EVENT_HEAD + (size + 7 & ~<size_t> 7)
        if n == events or (n and taken + room > w.window_bytes):
            break
        if size > BODY_LIMIT:
            batch.fate[i] = FAILED
            batch.reason[i] = R_TOO_LARGE
            continue
        done = STOP_MEMORY
        p = wire_reserve(to, FRAME_HEAD + size + TAIL_SIZE + SCAN_PAD)
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
                break            # what there is goes; the pump hears of it at the next turn
            wire.size = begin
            return STOP_MEMORY
        if done == 0:
            batch.fate[i] = FAILED
            batch.reason[i] = R_NOT_JSON if w.json else R_UNENCODABLE
            continue
        at[waiting] = to.size + body
        sizes[waiting] = done
        index[waiting] = i
        waiting += 1
        if waiting == lanes:
            hash_bodies(batch, to.data, at, sizes, index, waiting)
            waiting = 0
        to.size += body + done
        taken += room
        batch.fate[i] = INFLIGHT
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
    hash_bodies(batch, to.data, at, sizes, index, waiting)
    if w.compress:
        p = wire_reserve(wire, head + 6)
        if p != NULL:
            wire.size += head + 6
            if deflate_window(&w.deflater, w.raw.data, w.raw.size, wire) < 0:
                p = NULL
        if p == NULL:
            undo(batch, batch.cursor, window)
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
        lc_put32(p + 2, w.window * w.inflight if w.literal else n)
    if w.literal:
        w.announced = True
        w.next = number
        w.unacked += n
    window.n = n
    window.behind = w.count > 0
    if w.count == 0:
        w.last_sign = now        # nothing was awaited before
    w.count += 1
    return n


# Events acked+1 .. number of a window, as engine sequences.
cdef int give_acked(lc_window *window, uint32_t number, lc_outcomes *out) noexcept nogil:
    cdef lc_run *run
    cdef uint32_t left = number - window.acked, some
    while left:
        run = &window.items[window.run]
        some = run.count - window.used
        if some > left:
            some = left
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
    w.wrong_size = 6 if size > 6 else <uint32_t> size
    memcpy(w.wrong_bytes, data, w.wrong_size)
    return STOP_PROTOCOL


cdef void pop_window(lc_writer *w) noexcept nogil:
    w.head = (w.head + 1) % w.inflight
    w.count -= 1
    if w.careful:
        w.careful -= 1


# One ack of the literal form: all frames up to this number, in however many windows they are.
cdef int take_running_ack(lc_writer *w, const uint8_t *p, uint32_t number, lc_outcomes *out) noexcept nogil:
    cdef uint32_t left = numbers_between(w.last_acked, number), some
    cdef lc_window *window
    if left > w.unacked or left == 0:
        if numbers_between(number, w.last_acked) < w.acked:
            return 0             # nothing is taken back
        return writer_wrong(w, WRONG_NUMBER if w.unacked else WRONG_TIME, p, 6)
    w.unacked -= left
    w.acked += left
    w.last_acked = number
    while left:
        window = &w.windows[w.head]
        some = min(left, window.n - window.acked)
        if give_acked(window, window.acked + some, out) < 0:
            return STOP_MEMORY
        left -= some
        if window.acked == window.n:
            pop_window(w)
    out.progress += 1
    return 0


# One whole ack frame.
cdef int take_ack(lc_writer *w, const uint8_t *p, lc_outcomes *out) noexcept nogil:
    cdef uint32_t number = lc_get32(p + 2)
    cdef lc_window *window
    out.alive += 1
    if number == 0:
        return 0
    w.wrong_number = number
    if w.literal:
        return take_running_ack(w, p, number, out)
    if w.count == 0:
        return writer_wrong(w, WRONG_TIME, p, 6)
    window = &w.windows[w.head]
    if number > window.n:
        w.wrong_window = window.n
        return writer_wrong(w, WRONG_NUMBER, p, 6)
    if number <= window.acked:
        return 0                 # nothing is taken back
    if give_acked(window, number, out) < 0:
        return STOP_MEMORY
    out.progress += 1
    if number == window.n:
        pop_window(w)
    return 0


cdef int writer_receive(void *self, const uint8_t *data, size_t size, double now,
                        lc_outcomes *out) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    cdef const uint8_t *end = data + size
    cdef int stop
    if w.wrong:
        return STOP_PROTOCOL
    if size:
        w.last_sign = now
    while data < end:
        if w.partial_size == 0 and end - data >= 6:
            if (data[0] != c'2' and data[0] != c'1') or data[1] != c'A':
                return writer_wrong(w, WRONG_FRAME, data, end - data)
            stop = take_ack(w, data, out)
            data += 6
        else:
            w.partial[w.partial_size] = data[0]
            w.partial_size += 1
            data += 1
            # said at once, not when six bytes are there: a greeting may be shorter
            if (w.partial[0] != c'2' and w.partial[0] != c'1') or (w.partial_size > 1
                                                                  and w.partial[1] != c'A'):
                while data < end and w.partial_size < 6:
                    w.partial[w.partial_size] = data[0]
                    w.partial_size += 1
                    data += 1
                return writer_wrong(w, WRONG_FRAME, w.partial, w.partial_size)
            if w.partial_size < 6:
                continue
            w.partial_size = 0
            stop = take_ack(w, w.partial, out)
        if stop < 0:
            return stop
    return 0


# A window sent behind another may be at a Logstash that has stopped its keep-alives (it does so
# after each ack) and still works on it: that one gets twice the time.
cdef double writer_deadline(void *self) noexcept nogil:
    cdef lc_writer *w = <lc_writer *> self
    if w.count == 0:
        return 0
    return w.last_sign + (2 * w.silence if w.windows[w.head].behind else w.silence)


cdef void forget_windows(lc_writer *w) noexcept nogil:
    # With several windows out, the break may have been Logstash's own idle timer over the second:
    # the same windows again would break again.
    if w.count > 1:
        w.careful = CAREFUL_WINDOWS
    w.count = 0
    w.unacked = 0
    w.partial_size = 0


@cython.final
cdef class Hot(CodecBase):
    """The writer; see the stub."""

    cdef lc_writer w
    cdef object zlib

    def __cinit__(self):
        memset(&self.w, 0, sizeof(lc_writer))

    def __init__(self, bytes producer, *, int version=2, int window=2048, int64_t window_bytes=1 << 20,
                 int inflight=2, int compression=3, bint identity=True, bint check=True,
                 double silence=30.0, str frames="", bint strict_spec=False, uint32_t first=1):
        cdef lc_writer *w = &self.w
        cdef int i
        cdef bytes name = producer.hex().encode()
        if w.windows != NULL:
            raise TypeError("already made")
        if len(producer) != 10:
            raise ValueError(f"producer: 10 bytes, not {len(producer)}")
        for name_of, value, low, high in (
            ("version", version, 1, 2), ("window", window, 1, WINDOW_LIMIT),
            ("window_bytes", window_bytes, 1, BODY_LIMIT // 4), ("inflight", inflight, 1, 1024),
            ("compression", compression, 0, 9),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name_of}: {low} to {high}, not {value}")
        if not silence > 0:
            raise ValueError(f"silence: more than 0 seconds, not {silence}")
        if strict_spec and version != 1:
            raise ValueError(f"version: the protocol's text has 1 alone (strict_spec), not {version}")
        if frames not in ("", "json", "data"):
            raise ValueError(f"frames: json or data, not {frames!r}")
        if frames == "json" and version == 1 and not strict_spec:
            raise ValueError("frames: json in version 1 needs strict_spec")
        if frames == "data" and version == 2:
            raise ValueError("frames: version 2 has json alone")
        if not first:
            raise ValueError("first: 1 to 4294967295, not 0")
        w.version = b"12"[version - 1]
        w.json = (frames or ("data" if version == 1 and not strict_spec else "json")) == "json"
        w.literal = strict_spec
        w.first = first
        w.window = window
        w.window_bytes = window_bytes
        w.identity = identity
        w.check = check
        w.silence = silence
        w.windows = <lc_window *> calloc(inflight, sizeof(lc_window))
        if w.windows == NULL:
            raise MemoryError()
        w.inflight = inflight
        for i in range(inflight):
            w.windows[i].items = <lc_run *> malloc(window * sizeof(lc_run))
            if w.windows[i].items == NULL:
                raise MemoryError()
        # memory that is there need not be asked for
        w.compress = version == 1 and not strict_spec or compression > 0
        if w.compress:
            import zlib
            self.zlib = zlib
            deflater_open(&w.deflater, compression)
        id_ = name + b"0" * 12
        tail = b',"@metadata":{"_id":"' + id_ + b'"},"event.id":"' + id_ + b'"}'
        memcpy(w.tail, <const uint8_t *> tail, TAIL_SIZE)
        pair = b"\0\0\0\x08event.id\0\0\0\x20" + id_
        memcpy(w.pair, <const uint8_t *> pair, PAIR_SIZE)
        self.hot.self = w
        self.hot.credit = writer_credit
        self.hot.encode = writer_encode
        self.hot.receive = writer_receive
        self.hot.deadline = writer_deadline

    def __dealloc__(self):
        cdef uint32_t i
        if self.w.windows != NULL:
            for i in range(self.w.inflight):
                free(self.w.windows[i].items)
            free(self.w.windows)
        free(self.w.raw.data)
        deflater_close(&self.w.deflater)

    @property
    def compressor(self):
        cdef int level = self.w.deflater.level
        if not self.w.compress:
            return "none"
        return {BY_ISAL: "isal", BY_LIBZ: "zlib", BY_PYTHON: "python zlib"}[self.w.deflater.by] + f" {level}"

    @property
    def windows(self):
        return self.w.count

    @property
    def careful(self):
        return self.w.careful

    @property
    def error(self):
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
        got = (<bytes> w.wrong_bytes[:w.wrong_size])
        if got.startswith(b"\x15\x03"):  # an alert
            return f"the server speaks TLS, the URL must begin with lumberjack+tls: received {got!r}"
        return f"expected an ack frame ('1' or '2', 'A', 32-bit sequence), received {got!r}"

    def connected(self, double now):
        self.w.count = 0
        self.w.announced = False
        self.w.next = self.w.first
        self.w.last_acked = number_before(self.w.first)
        self.w.unacked = 0
        self.w.acked = 0
        self.w.partial_size = 0
        self.w.wrong = WRONG_NONE
        self.w.last_sign = now
        self.sent()

    def connection_lost(self):
        cdef uint32_t windows = self.w.count
        forget_windows(&self.w)
        self.sent()
        return windows


# ---------------------------------------------------------------------------------------------------
# Acks
# ---------------------------------------------------------------------------------------------------

def encode_ack(int version, uint32_t number, /):
    """An 'ack' frame; see the stub."""
    cdef uint8_t frame[6]
    if not 1 <= version <= 2:
        raise ValueError(f"version: 1 or 2, not {version}")
    frame[0] = c'0' + version
    frame[1] = c'A'
    lc_put32(frame + 2, number)
    return <bytes> frame[:6]


def decode_acks(data, /):
    """Whole 'ack' frames as (version, number); see the stub."""
    cdef bytes copy = bytes(data)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(copy)
    cdef Py_ssize_t i
    acks = []
    for i in range(0, len(copy), 6):
        if len(copy) - i < 6 or (p[i] != c'1' and p[i] != c'2') or p[i + 1] != c'A':
            raise ValueError(f"no ack frame at byte {i}: {copy[i:i + 6]!r}")
        acks.append((p[i] - c'0', lc_get32(p + i + 2)))
    return acks


# ---------------------------------------------------------------------------------------------------
# The reader
# ---------------------------------------------------------------------------------------------------

# Where an event's body is: in the unit as carried, or in what its compressed frames inflate to.
ctypedef struct lc_entry:
    size_t at
    uint32_t size
    uint32_t sequence
    bint inflated
    bint pairs                   # of a 'data' frame


cdef enum Fault:
    FAULT_NONE = 0
    FAULT_MEMORY
    FAULT_VERSION            # the first byte of a frame is neither '1' nor '2'
    FAULT_NO_WINDOW          # a frame without a window before it
    FAULT_WINDOW_SIZE
    FAULT_MIXED              # not the version of the window
    FAULT_EARLY_WINDOW       # the window before is not full
    FAULT_INNER_WINDOW       # in a compressed frame
    FAULT_TYPE
    FAULT_EMPTY              # a length of 0
    FAULT_FRAME_SIZE
    FAULT_UNIT_SIZE
    FAULT_CUT                # a compressed frame ends inside a frame
    FAULT_EXTRA              # a compressed frame has more events than the window
    FAULT_ZLIB
    FAULT_INFLATED_SIZE
    FAULT_NESTED
    FAULT_CREDIT             # more frames without an acknowledgement than the window allows
    FAULT_EOF


ctypedef struct lc_reader:
    uint32_t max_window
    uint32_t max_frame
    size_t max_unit
    size_t max_inflated
    lc_wire data
    size_t base              # where the window begins in data
    size_t at                # the first byte not looked at
    bint inside              # a window frame has been read, and not yet all of its events
    bint literal             # the fields marked L are in use; `n` is the most events in a unit
    bint announced           # L: a window frame has come
    uint32_t credit          # L: what it said
    uint64_t unacked         # L: events that we have not acknowledged
    uint8_t version
    uint32_t n
    uint32_t got
    int32_t highest          # sequence, signed: as Logstash counts
    uint32_t pairs_left      # of a 'data' frame that is not whole yet,
    size_t pairs_at          # and how far it is known; 0 = not begun
    lc_entry *entries
    uint32_t capacity
    lc_wire inflated
    lc_wire scratch
    lc_inflater inflater
    Fault fault
    uint64_t fault_value
    size_t fault_at


cdef int reader_fault(lc_reader *r, Fault fault, uint64_t value) noexcept nogil:
    r.fault = fault
    r.fault_value = value
    r.fault_at = r.at - r.base
    return -1


cdef int reader_event(lc_reader *r, size_t at, size_t size, uint32_t sequence, bint inflated,
                      bint pairs) noexcept nogil:
    cdef lc_entry *e
    cdef uint32_t capacity
    if r.got == r.n:
        return reader_fault(r, FAULT_EXTRA, r.n)
    if r.announced and r.unacked >= r.credit:
        return reader_fault(r, FAULT_CREDIT, r.credit)
    r.unacked += r.literal
    if r.got == r.capacity:
        # as events come, not as many as were announced
        capacity = r.capacity * 2 if r.capacity else 64
        e = <lc_entry *> realloc(r.entries, capacity * sizeof(lc_entry))
        if e == NULL:
            return reader_fault(r, FAULT_MEMORY, 0)
        r.entries = e
        r.capacity = capacity
    e = &r.entries[r.got]
    e.at = at
    e.size = <uint32_t> size
    e.sequence = sequence
    e.inflated = inflated
    e.pairs = pairs
    r.got += 1
    if <int32_t> sequence > r.highest:
        r.highest = <int32_t> sequence
    return 1


# The size of the 'data' frame at p, of which `left` bytes are there; 0 when it is not whole yet. Keeps
# its place between calls, so that a frame that comes byte by byte is not walked again for each.
cdef int64_t reader_pairs(lc_reader *r, const uint8_t *p, size_t left) noexcept nogil:
    cdef size_t at
    cdef uint32_t key, value
    if r.pairs_at == 0:
        if left < FRAME_HEAD:
            return 0
        r.pairs_left = lc_get32(p + 6)
        if <uint64_t> r.pairs_left * 8 > r.max_frame:
            return reader_fault(r, FAULT_FRAME_SIZE, <uint64_t> r.pairs_left * 8)
        r.pairs_at = FRAME_HEAD
    while r.pairs_left:
        at = r.pairs_at
        if left - at < 4:
            return 0
        key = lc_get32(p + at)
        at += 4
        if at + key > r.max_frame:
            return reader_fault(r, FAULT_FRAME_SIZE, at + key)
        if left < at + key + 4:
            return 0
        at += key
        value = lc_get32(p + at)
        at += 4
        if at + value > r.max_frame:
            return reader_fault(r, FAULT_FRAME_SIZE, at + value)
        if left < at + value:
            return 0
        r.pairs_at = at + value
        r.pairs_left -= 1
    at = r.pairs_at
    r.pairs_at = 0
    return at


# One frame at p, which is offset `at` of the unit (depth 0) or of what was inflated.
# 1: taken, `used` bytes; 0: not whole yet; -1: a fault.
cdef int reader_frame(lc_reader *r, const uint8_t *p, size_t left, size_t at, int depth,
                      size_t *used) noexcept nogil:
    cdef uint32_t size
    cdef int64_t pairs
    cdef int done
    cdef size_t begin
    cdef uint8_t *to
    if p[0] != r.version:
        return reader_fault(r, FAULT_MIXED if (p[0] == c'1' or p[0] == c'2') and not r.literal
                            else FAULT_VERSION, p[0])
    if left < 2:
        return 0
    if p[1] == c'J' and (r.version == c'2' or r.literal):
        if left < FRAME_HEAD:
            return 0
        size = lc_get32(p + 6)
        if size == 0:
            return reader_fault(r, FAULT_EMPTY, c'J')
        if size > r.max_frame:
            return reader_fault(r, FAULT_FRAME_SIZE, size)
        if depth == 0 and r.at - r.base + FRAME_HEAD + size > r.max_unit:
            return reader_fault(r, FAULT_UNIT_SIZE, 0)
        if left - FRAME_HEAD < size:
            return 0
        used[0] = FRAME_HEAD + <size_t> size
        return reader_event(r, at + FRAME_HEAD, size, lc_get32(p + 2), depth > 0, False)
    if p[1] == c'D' and r.version == c'1':
        pairs = reader_pairs(r, p, left)
        if depth == 0 and pairs == 0 and r.at - r.base + left > r.max_unit:
            return reader_fault(r, FAULT_UNIT_SIZE, 0)
        if pairs <= 0:
            return <int> pairs
        used[0] = <size_t> pairs
        return reader_event(r, at + 6, pairs - 6, lc_get32(p + 2), depth > 0, True)
    if p[1] == c'C':
        # servers take a compressed frame in a compressed frame; deeper nesting has hung one of them
        if depth == 2:
            return reader_fault(r, FAULT_NESTED, 0)
        if left < 6:
            return 0
        size = lc_get32(p + 2)
        if size == 0:
            return reader_fault(r, FAULT_EMPTY, c'C')
        if depth == 0 and r.at - r.base + 6 + size > r.max_unit:
            return reader_fault(r, FAULT_UNIT_SIZE, 0)
        if left - 6 < size:
            return 0
        begin = r.inflated.size
        if depth == 0:
            done = inflate_frame(&r.inflater, p + 6, size, &r.inflated, r.max_inflated - begin)
        else:
            # what is read stands in the buffer that is written, which may move
            r.scratch.size = 0
            done = inflate_frame(&r.inflater, p + 6, size, &r.scratch, r.max_inflated - begin)
            if done == 0:
                to = wire_reserve(&r.inflated, r.scratch.size)
                if to == NULL:
                    done = INFLATE_MEMORY
                else:
                    memcpy(to, r.scratch.data, r.scratch.size)
                    r.inflated.size += r.scratch.size
        if done < 0:
            return reader_fault(r, FAULT_ZLIB if done == INFLATE_BAD else FAULT_INFLATED_SIZE
                                if done == INFLATE_TOO_LARGE else FAULT_MEMORY, r.max_inflated)
        used[0] = 6 + <size_t> size
        return reader_region(r, begin, r.inflated.size, depth + 1)
    if p[1] == c'W' and r.literal:
        if left < 6:
            return 0
        r.announced = True
        r.credit = lc_get32(p + 2)
        used[0] = 6
        return 1
    if p[1] == c'W':
        return reader_fault(r, FAULT_INNER_WINDOW if depth else FAULT_EARLY_WINDOW, 0)
    return reader_fault(r, FAULT_TYPE, p[1])


# All the frames of inflated[at:end].
cdef int reader_region(lc_reader *r, size_t at, size_t end, int depth) noexcept nogil:
    cdef size_t used = 0
    cdef int done
    while at < end:
        done = reader_frame(r, r.inflated.data + at, end - at, at, depth, &used)
        if done < 0:
            return -1
        if done == 0:
            return reader_fault(r, FAULT_CUT, 0)
        at += used
    return 1


# The same for the literal form: 1 a unit is whole.
cdef int reader_step_literal(lc_reader *r) noexcept nogil:
    cdef size_t used = 0
    cdef int done
    while r.at < r.data.size:
        r.base = r.at
        r.got = 0
        r.inflated.size = 0
        done = reader_frame(r, r.data.data + r.at, r.data.size - r.at, 0, 0, &used)
        if done <= 0:
            return done
        r.at += used
        if used > r.max_unit:
            return reader_fault(r, FAULT_UNIT_SIZE, 0)
        if r.got:
            return 1
        r.base = r.at            # a window frame, or a compressed one without events
    return 0


# Go on: 1 a window is whole, 0 more bytes are needed, -1 a fault.
cdef int reader_step(lc_reader *r) noexcept nogil:
    cdef const uint8_t *p
    cdef size_t left, used = 0
    cdef int done
    while True:
        if r.inside and r.got == r.n:
            return 1
        p = r.data.data + r.at
        left = r.data.size - r.at
        if left == 0:
            return 0
        if not r.inside:
            r.base = r.at
            if p[0] != c'1' and p[0] != c'2':
                return reader_fault(r, FAULT_VERSION, p[0])
            if left < 2:
                return 0
            r.version = p[0]
            if p[1] != c'W':
                return reader_fault(r, FAULT_NO_WINDOW if memchr(b"JDC", p[1], 3) else FAULT_TYPE, p[1])
            if left < 6:
                return 0
            r.n = lc_get32(p + 2)
            if r.n > r.max_window:
                return reader_fault(r, FAULT_WINDOW_SIZE, r.n)
            r.inside = True
            r.got = 0
            r.highest = -1
            r.inflated.size = 0
            r.at += 6
        else:
            done = reader_frame(r, p, left, r.at - r.base, 0, &used)
            if done <= 0:
                return done
            r.at += used
            if r.at - r.base > r.max_unit:
                return reader_fault(r, FAULT_UNIT_SIZE, 0)


@cython.final
cdef class Window:
    """One whole window from a writer; see the stub."""

    cdef lc_entry *entries
    cdef uint32_t n
    cdef readonly int version
    cdef readonly uint32_t ack
    cdef readonly bytes unit
    cdef bytes content           # what its compressed frames held
    cdef readonly Py_ssize_t inflated

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.n

    @property
    def events(self):
        cdef uint32_t i
        cdef lc_entry *e
        cdef list found = []
        for i in range(self.n):
            e = &self.entries[i]
            found.append(PyBytes_FromStringAndSize(
                PyBytes_AS_STRING(self.content if e.inflated else self.unit) + e.at, e.size))
        return found

    @property
    def sequences(self):
        cdef uint32_t i
        return [self.entries[i].sequence for i in range(self.n)]

    @property
    def types(self):
        cdef uint32_t i
        return "".join(["D" if self.entries[i].pairs else "J" for i in range(self.n)])

    def __repr__(self):
        return f"<Window: version {self.version}, {self.n} events, {len(self.unit)} bytes>"


@cython.final
cdef class Reader:
    """Sans-IO reader: bytes in, windows out; see the stub."""

    cdef lc_reader r
    cdef object zlib

    def __cinit__(self):
        memset(&self.r, 0, sizeof(lc_reader))

    def __init__(self, *, uint32_t max_window=WINDOW_LIMIT, uint32_t max_frame=16777216,
                 uint32_t max_unit=67108864, uint32_t max_inflated=67108864, bint strict_spec=False):
        if self.zlib is not None:
            raise TypeError("already made")
        import zlib
        self.zlib = zlib
        self.r.max_window = max_window
        self.r.max_frame = max_frame
        self.r.max_unit = max_unit
        self.r.max_inflated = max_inflated
        self.r.literal = strict_spec
        if strict_spec:
            self.r.version = c'1'
            self.r.n = max_window
        inflater_open(&self.r.inflater)

    def __dealloc__(self):
        free(self.r.data.data)
        free(self.r.inflated.data)
        free(self.r.scratch.data)
        free(self.r.entries)
        inflater_close(&self.r.inflater)

    def receive_data(self, data, /):
        cdef lc_reader *r = &self.r
        cdef Py_buffer view
        cdef uint8_t *to
        cdef int done
        cdef list windows = []
        if self.zlib is None:
            raise TypeError("not made")
        if r.fault:
            return windows
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        to = wire_reserve(&r.data, view.len + 1)     # nothing may come, and nothing be there
        if to != NULL:
            memcpy(to, view.buf, view.len)
            r.data.size += view.len
        PyBuffer_Release(&view)
        if to == NULL:
            raise MemoryError()
        while True:
            with nogil:
                done = reader_step_literal(r) if r.literal else reader_step(r)
            if done <= 0:
                break
            windows.append(self.window())
        if r.fault:
            r.inflated.size = r.scratch.size = 0
            trim(&r.inflated, ROOM_KEPT)
            trim(&r.scratch, ROOM_KEPT)
        if r.fault == FAULT_MEMORY:
            raise MemoryError()
        if r.base:
            memmove(r.data.data, r.data.data + r.base, r.data.size - r.base)
            r.data.size -= r.base
            r.at -= r.base
            r.base = 0
            trim(&r.data, ROOM_KEPT)
            if not r.inside:
                r.inflated.size = 0
                trim(&r.inflated, ROOM_KEPT)
        return windows

    cdef Window window(self):
        cdef lc_reader *r = &self.r
        cdef Window w = Window.__new__(Window)
        cdef uint32_t i
        w.version = r.version - c'0'
        w.unit = PyBytes_FromStringAndSize(<const char *> r.data.data + r.base, r.at - r.base)
        if r.inflated.size:
            w.content = PyBytes_FromStringAndSize(<const char *> r.inflated.data, r.inflated.size)
        w.n = r.got
        if r.got:
            w.entries = <lc_entry *> malloc(r.got * sizeof(lc_entry))
            if w.entries == NULL:
                raise MemoryError()
            memcpy(w.entries, r.entries, r.got * sizeof(lc_entry))
            # The text acknowledges the last event. Logstash answers with the highest number, go-lumber
            # with the count: whoever begins each window at 1 gets the same from both, a running number
            # wants the first, and numbers that Logstash reads as negative (it never acknowledges them) get
            # the second.
            w.ack = (r.entries[r.got - 1].sequence if r.literal
                     else r.highest if r.highest > 0 else r.got)
        for i in range(r.got):
            w.inflated += (6 if r.entries[i].pairs else FRAME_HEAD) + r.entries[i].size
        r.inside = False
        r.base = r.at
        return w

    def receive_eof(self):
        cdef lc_reader *r = &self.r
        if not r.fault and (r.inside or r.at < r.data.size):
            reader_fault(r, FAULT_EOF, 0)

    def acknowledge(self, uint32_t events, /):
        self.r.unacked -= min(<uint64_t> events, self.r.unacked)

    @property
    def window_size(self):
        return self.r.credit if self.r.announced else None

    @property
    def pending(self):
        return self.r.data.size - self.r.base

    @property
    def error(self):
        cdef lc_reader *r = &self.r
        if r.fault == FAULT_NONE:
            return None
        return f"{self.words(r.fault, r.fault_value)} (byte {r.fault_at} of the window)"

    cdef str words(self, Fault fault, uint64_t value):
        cdef lc_reader *r = &self.r
        if fault == FAULT_VERSION and r.literal:
            return f"expected version '1', received byte 0x{value:02x}"
        if fault == FAULT_VERSION:
            return f"expected version '1' or '2', received byte 0x{value:02x}"
        if fault == FAULT_NO_WINDOW:
            return f"a '{chr(value)}' frame without a window frame before it"
        if fault == FAULT_WINDOW_SIZE:
            return f"a window of {value} events; {r.max_window} is the most"
        if fault == FAULT_MIXED:
            return f"a frame of version '{chr(value)}' in a window of the other"
        if fault == FAULT_EARLY_WINDOW:
            return f"a window frame after {r.got} of {r.n} events"
        if fault == FAULT_INNER_WINDOW:
            return "a window frame in a compressed frame"
        if fault == FAULT_TYPE:
            return f"frame type 0x{value:02x} from a writer of version {r.version - c'0'}"
        if fault == FAULT_EMPTY:
            return f"a '{chr(value)}' frame of length 0"
        if fault == FAULT_FRAME_SIZE:
            return f"a frame of {value} bytes; {r.max_frame} is the most"
        if fault == FAULT_UNIT_SIZE:
            return f"a window of more than {r.max_unit} bytes"
        if fault == FAULT_CUT:
            return "a compressed frame that ends inside a frame"
        if fault == FAULT_EXTRA and r.literal:
            return f"more than {r.n} events in a compressed frame"
        if fault == FAULT_CREDIT:
            return f"more than the {value} frames without an acknowledgement that its window allows"
        if fault == FAULT_EXTRA:
            return f"more than the {r.n} events of the window in its compressed frame"
        if fault == FAULT_ZLIB:
            return "a compressed frame that is no zlib stream"
        if fault == FAULT_INFLATED_SIZE:
            return f"compressed frames that inflate to more than {r.max_inflated} bytes"
        if fault == FAULT_NESTED:
            return "a compressed frame nested more than once"
        if fault == FAULT_EOF and r.inside:
            return f"closed after {r.got} of {r.n} events"
        if fault == FAULT_EOF:
            return "closed inside a frame" if r.literal else "closed inside a window frame"
        return "out of memory"


# ---------------------------------------------------------------------------------------------------
# The decoder of captures
# ---------------------------------------------------------------------------------------------------

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON
    S_TORN
    S_BAD_ZLIB
    S_BAD_FRAME

OK = <int> S_OK
FOREIGN = <int> S_FOREIGN
NO_ID = <int> S_NO_ID
NOT_JSON = <int> S_NOT_JSON
TORN = <int> S_TORN
BAD_ZLIB = <int> S_BAD_ZLIB
BAD_FRAME = <int> S_BAD_FRAME
STATUS_NAMES = ("ok", "foreign", "no_id", "not_json", "torn", "bad_zlib", "bad_frame")

cdef extern from *:
    """
    static const char lc_metadata_key[] = ",\\"@metadata\\":{\\"_id\\":\\"";
    static const char lc_event_key[] = "\\"},\\"event.id\\":\\"";
    """
    const char *lc_metadata_key
    const char *lc_event_key

cdef enum:
    C_WIRE = C_OWN


@cython.final
cdef class Decoded(Events):
    """Decoded windows; rows from `TORN` on are faults."""

    @property
    def wire_sequence(self):
        """uint32: the sequence number in the frame."""
        return self.columns[<int> C_WIRE]


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, one window each: its W frame to its last frame.

    A unit that begins with a 'J', 'D' or 'C' frame of version 1 has the literal form (``strict_spec``):
    its number of events is not announced, and it may have 'json' frames.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them ``@metadata._id`` is
            the id when it begins with one of these, else ``event.id``, else the user's own id is
            hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        max_inflated: bound on the inflated bytes of one unit.
    """

    cdef size_t max_inflated
    cdef lc_wire inflated[2]     # by depth
    cdef lc_inflater inflater
    cdef object zlib
    # of the unit at hand
    cdef size_t inflated_size
    cdef uint8_t version
    cdef bint literal            # no window frame leads it: `n` is no count
    cdef uint32_t n
    cdef uint32_t got
    cdef int64_t at              # in the unit, expanded

    def __init__(self, producers=b"", *, bint identity=True, size_t max_inflated=67108864):
        self.begin(Decoded, b"I", producers, identity)
        import zlib
        self.zlib = zlib
        self.max_inflated = max_inflated
        inflater_open(&self.inflater)

    def __dealloc__(self):
        free(self.inflated[0].data)
        free(self.inflated[1].data)
        inflater_close(&self.inflater)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef int done
        self.at = 0
        self.got = 0
        self.inflated_size = 0
        self.literal = size > 1 and is_literal(p)
        if size and p[0] != c'1' and p[0] != c'2' or size > 1 and p[1] != c'W' and not self.literal:
            return add_fault(self, S_BAD_FRAME, size)
        if size < 6:
            return add_fault(self, S_TORN, size)
        self.version = p[0]
        self.n = 0
        if not self.literal:
            self.n = lc_get32(p + 2)
            self.at = 6
        done = decode_region(self, p + self.at, size - <size_t> self.at, 0)
        if done == 0 and self.got < self.n:
            return add_fault(self, S_TORN, 0)
        return done


cdef inline int add_row(Decoder d, int status, lc_id *id_, uint64_t hash, uint32_t wire,
                        int64_t offset, size_t length) noexcept nogil:
    if add_common(&d.rows, <uint8_t> status, id_, hash, d.unit, offset, length) < 0:
        return -1
    (<uint32_t *> d.rows.at[C_WIRE])[d.rows.n - 1] = wire
    return 0


# Something wrong at the place reached: the unit ends here. 1, or -1 when memory is out.
cdef int add_fault(Decoder d, Status status, size_t length) noexcept nogil:
    cdef lc_id none
    clear_id(&none)
    return -1 if add_row(d, status, &none, 0, 0, d.at, length) < 0 else 1


# The id of a body: the first of "@metadata"._id, "event.id" and "event".id that is there, as the writer
# chooses it; an id added further back names no other event. -1: out of memory.
cdef int search_id(Decoder d, const uint8_t *p, size_t size, bint pairs, lc_id *id_) noexcept nogil:
    cdef lc_object o
    cdef lc_span pair
    cdef lc_span *own
    cdef int bad
    if not pairs:
        bad = scan_body(d, p, size, &o)
        if bad == NO_MEMORY:
            return -1
        own = user_id(&o)
    else:
        bad = scan_pairs(p, size, &pair)
        own = &pair
    if bad:
        return S_NOT_JSON
    return S_NO_ID if own.at == NULL else identify(d, own, id_)


# One event. 0, or -1 when memory is out.
cdef inline int decode_body(Decoder d, const uint8_t *p, size_t size, bint pairs, uint32_t wire,
                            int64_t offset) noexcept nogil:
    cdef uint64_t hash = xxh64_of(p, size, SEED)
    cdef const uint8_t *tail
    cdef lc_id id_
    cdef int status = S_NO_ID
    clear_id(&id_)
    d.got += 1
    if d.identity:
        # our own writer's ending, exactly: nothing but both carriers at the top level reads so
        tail = p + size - TAIL_SIZE
        if (not pairs and size >= TAIL_SIZE
                and memcmp(tail + 1, lc_metadata_key + 1, TAIL_ID1 - 1) == 0
                and (tail[0] == c',' or (tail == p and tail[0] == c'{'))
                and memcmp(tail + TAIL_ID1, tail + TAIL_ID2, ID_SIZE) == 0
                and memcmp(tail + TAIL_ID1 + ID_SIZE, lc_event_key, TAIL_ID2 - TAIL_ID1 - ID_SIZE) == 0
                and tail[TAIL_SIZE - 2] == c'"' and tail[TAIL_SIZE - 1] == c'}'):
            read_id(&d.names, tail + TAIL_ID1, &id_)
            if is_ours(&d.names, &id_):
                status = S_OK
        if status != S_OK:
            status = search_id(d, p, size, pairs, &id_)
            if status < 0:
                return -1
    return add_row(d, status, &id_, hash, wire, offset, size)


# The size of the 'data' frame at p; 0 when it is not whole.
cdef size_t pairs_size(const uint8_t *p, size_t left) noexcept nogil:
    cdef uint32_t length
    cdef size_t at = FRAME_HEAD
    cdef uint64_t count
    if left < FRAME_HEAD:
        return 0
    count = 2 * <uint64_t> lc_get32(p + 6)
    while count:
        if left - at < 4:
            return 0
        length = lc_get32(p + at)
        at += 4
        if left - at < length:
            return 0
        at += length
        count -= 1
    return at


# The frames of one region. 0: used up; 1: something was wrong, the unit ends; -1: memory.
cdef int decode_region(Decoder d, const uint8_t *p, size_t left, int depth) noexcept nogil:
    cdef uint32_t size
    cdef size_t frame, limit
    cdef int done
    cdef lc_wire *to
    while left:
        if d.got == d.n and not d.literal:
            return add_fault(d, S_BAD_FRAME, left)
        if p[0] != d.version:
            return add_fault(d, S_BAD_FRAME, left)
        if left < 2:
            return add_fault(d, S_TORN, left)
        if p[1] == c'J' and (d.version == c'2' or d.literal):
            if left < FRAME_HEAD:
                return add_fault(d, S_TORN, left)
            size = lc_get32(p + 6)
            if left - FRAME_HEAD < size:
                return add_fault(d, S_TORN, left)
            frame = FRAME_HEAD + <size_t> size
            if decode_body(d, p + FRAME_HEAD, size, False, lc_get32(p + 2), d.at + FRAME_HEAD) < 0:
                return -1
            d.at += frame
        elif p[1] == c'D' and d.version == c'1':
            frame = pairs_size(p, left)
            if frame == 0:
                return add_fault(d, S_TORN, left)
            if decode_body(d, p + 6, frame - 6, True, lc_get32(p + 2), d.at + 6) < 0:
                return -1
            d.at += frame
        elif p[1] == c'C' and depth < 2:
            if left < 6:
                return add_fault(d, S_TORN, left)
            size = lc_get32(p + 2)
            if left - 6 < size:
                return add_fault(d, S_TORN, left)
            frame = 6 + <size_t> size
            to = &d.inflated[0] if depth == 0 else &d.inflated[1]
            to.size = 0
            limit = d.max_inflated - d.inflated_size
            done = inflate_frame(&d.inflater, p + 6, size, to, limit)
            if done == INFLATE_MEMORY:
                return -1
            if done < 0:
                return add_fault(d, S_BAD_ZLIB, frame)
            d.inflated_size += to.size
            done = decode_region(d, to.data, to.size, depth + 1)
            if done:
                return done
        elif p[1] == c'W' and d.literal:
            if left < 6:
                return add_fault(d, S_TORN, left)
            frame = 6
            d.at += frame
        else:
            return add_fault(d, S_BAD_FRAME, left)
        p += frame
        left -= frame
    return 0


# Whether two bytes begin a unit of the literal form.
cdef inline bint is_literal(const uint8_t *p) noexcept nogil:
    return p[0] == c'1' and (p[1] == c'J' or p[1] == c'D' or p[1] == c'C')


def expand(unit, Py_ssize_t max_inflated=67108864):
    """The unit with its compressed frames inflated in place; see the stub."""
    cdef bytes raw = bytes(unit)
    cdef bint literal = len(raw) > 1 and is_literal(<const uint8_t *> PyBytes_AS_STRING(raw))
    cdef Py_ssize_t head = 0 if literal else 6
    parts = [raw[:head]]
    expand_region(raw[head:], 0, max_inflated, parts, literal)
    return b"".join(parts)


# What is left of max_inflated, or -1: something was wrong, the rest is there as it is.
cdef Py_ssize_t expand_region(bytes region, int depth, Py_ssize_t max_inflated, list parts,
                              bint literal) except? -2:
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(region)
    cdef size_t left = len(region), at = 0, size
    cdef bytes content
    import zlib
    while left >= 6:
        size = 0
        if p[at + 1] == c'J' and left >= FRAME_HEAD:
            size = FRAME_HEAD + <size_t> lc_get32(p + at + 6)
        elif p[at + 1] == c'D':
            size = pairs_size(p + at, left)
        elif p[at + 1] == c'C' and depth < 2:
            size = 6 + <size_t> lc_get32(p + at + 2)
        elif p[at + 1] == c'W' and literal:
            size = 6
        if size == 0 or size > left:
            break
        if p[at + 1] == c'C':
            try:
                content = zlib.decompressobj().decompress(region[at + 6:at + size], max_inflated + 1)
            except zlib.error:
                break
            if len(content) > max_inflated:
                break
            max_inflated = expand_region(content, depth + 1, max_inflated - len(content), parts, literal)
            if max_inflated < 0:
                return -1
        else:
            parts.append(region[at:at + size])
        at += size
        left -= size
    if left:
        parts.append(region[at:])
        return -1
    return max_inflated
