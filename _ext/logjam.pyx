# Logjam, compiled: the client behind lc_hot, the decoder of captures, compressions.
#
#   message    [app-env, topic, body, meta]; a request has an empty frame before them
#   meta       u16 0xCABD, u8 compression, u8 version 1, u32 device, u64 created ms, u64 sequence: 24 bytes,
#              big-endian. The producer text says u16 for the device: the real servers refuse that
#   reply      [app-env, "202 Accepted" | "400 Bad Request"], without an id: first in, first out
#   ping       ["", "ping", app-env, body, meta] -> ["ping", "200 OK", host] | ["ping", "400 Bad Request"]
#
# In a buffer (hot.pxd, lc_wire) a frame is a u32 head and its bytes. What a client could send that hangs or
# aborts the real servers (an empty first frame, other counts of frames, bodies that unpack to more than
# 64 MiB, other framings of a compression, topics that are dropped without a word) cannot be built here.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.blocks cimport (
    COMPRESSIONS,
    LZ4,
    NO_COMPRESSION,
    SNAPPY,
    UNPACK_MISSING,
    ZLIB,
    lc_packer,
    lc_unpacker,
    pack_body,
    packer_close,
    packer_needs_gil,
    packer_open,
    unpack_body,
    unpacker_close,
    unpacker_open,
)
from logclient._ext.decoder cimport NO_MEMORY, BatchDecoder, Events, clear_id, identify, scan_body
from logclient._ext.deflate cimport BY_ISAL, BY_LIBZ, INFLATE_MEMORY, INFLATE_TOO_LARGE
from logclient._ext.handing cimport (
    handing_add,
    handing_close,
    handing_forget,
    handing_open,
    handing_room,
    handing_took,
    lc_handing,
)
from logclient._ext.hash cimport HASH_LANES, SEED, xxh64_lanes, xxh64_of
from logclient._ext.hot cimport (
    ACKED,
    FAILED,
    FRAME_MORE,
    FRAME_SIZE,
    INFLIGHT,
    K_DOCUMENT,
    K_ID1_TAKEN,
    K_MASK,
    K_TOPIC_SHIFT,
    PENDING,
    R_NONE,
    R_NOT_JSON,
    R_REJECTED,
    R_TOO_LARGE,
    R_UNENCODABLE,
    STOP_MEMORY,
    STOP_PROTOCOL,
    lc_batch,
    lc_get_frame,
    lc_outcomes,
    lc_put_frame,
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
    keep_user_id,
    lc_get32,
    lc_get64,
    lc_id,
    lc_put32,
    lc_put64,
    lc_put_digits,
    lc_rows,
    lc_spell,
    trim,
)
from logclient._ext.jsonscan cimport (
    SCAN_PAD,
    copy_object,
    find_braces,
    lc_object,
    lc_span,
    scan_object,
)

MAX_BODY = <int> BODY_LIMIT

cdef enum:
    BODY_LIMIT = 64 << 20        # what the importer unpacks
    META_SIZE = 24
    TAIL_MOST = 49               # bytes that an id adds to a body
    TAIL_END = 14                # ... the last of them: 12 digits and `"}`
    TOPICS = 6
    ROUND = 2048                 # messages encoded at once
    PINGS = 16                   # without a reply at one time
    REPLY_LIMIT = 4096           # bytes of a reply, heads and all
    REPLY_FRAMES = 3
    WRONG_SHOWN = 120
    ROOM_KEPT = 1 << 22


# ---------------------------------------------------------------------------------------------------
# The client
# ---------------------------------------------------------------------------------------------------

cdef enum:
    WRONG_NONE = 0
    WRONG_SHAPE                  # too long, or too many frames
    WRONG_REPLY                  # not to the oldest request
    WRONG_PONG                   # not to the oldest request, which was a ping
    WRONG_TIME                   # nothing was awaited


# What is the same in all messages of a topic.
ctypedef struct lc_topic:
    const uint8_t *head          # the frames before the body
    size_t head_size
    const uint8_t *tail          # the id's carrier, zeros for the sequence, and the closing brace
    size_t tail_size
    bint uuid                    # the carrier's name: "uuid", or "request_id"


# All that the nogil half needs. `self` of lc_hot.
ctypedef struct lc_client:
    bint request
    bint identity
    bint check
    uint32_t inflight
    uint64_t batch_bytes
    size_t compress_over
    double silence
    const uint8_t *app_env
    size_t app_env_size
    lc_topic topics[TOPICS]
    uint64_t number              # of the next message
    uint64_t *ring               # engine sequences without a reply; 0 is a ping
    uint32_t room
    uint32_t head
    uint32_t count
    uint32_t pings
    lc_handing handing           # async: what ZeroMQ has not taken yet
    double now
    double last_sign
    lc_wire partial              # of a reply
    lc_wire pongs                # u32 size and the host; the size alone, all ones: refused
    int wrong
    uint8_t wrong_bytes[WRONG_SHOWN]
    size_t wrong_size
    lc_packer packer
    lc_wire packed


# Messages that may be encoded now.
cdef inline uint32_t client_room(lc_client *w) noexcept nogil:
    if not w.request:
        return handing_room(&w.handing)
    return w.inflight - w.count if w.count < w.inflight else 0     # pings are beyond it


cdef void client_credit(void *self, double now, uint32_t *events, uint64_t *size) noexcept nogil:
    cdef lc_client *w = <lc_client *> self
    cdef uint32_t room = client_room(w)
    w.now = now
    # Replies come a few at a time: a line of the ledger and a round of work for each few would cost more
    # than the wait for a quarter.
    if w.wrong or (w.request and w.count and room < (w.inflight + 3) // 4):
        events[0] = 0
        size[0] = 0
    else:
        events[0] = room
        size[0] = w.batch_bytes


cdef inline void put_meta(lc_client *w, uint8_t *p, uint8_t compression, int64_t created_us) noexcept nogil:
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


# One body, to p, with TAIL_MOST + SCAN_PAD bytes of room behind it: checked, id in.
# Its new size; 0 when it is no JSON object; STOP_MEMORY. Documents are looked through as well: of the
# fields that they have, the flags tell only those of another protocol.
cdef inline int64_t finish_body(lc_client *w, lc_batch *batch, uint32_t i, lc_topic *topic, uint8_t *p,
                                size_t size) noexcept nogil:
    cdef uint8_t kind = batch.kind[i]
    cdef lc_object o
    cdef lc_span *own
    cdef bint taken
    cdef uint8_t *start
    cdef uint8_t *close
    if w.check or kind & K_MASK == K_DOCUMENT:
        if copy_object(p, batch.body[i], size, &o) < 0:
            return 0
        taken = (o.uuid.at if topic.uuid else o.request_id.at) != NULL
    else:
        memcpy(p, batch.body[i], size)
        if find_braces(p, size, &o) < 0:
            return 0
        taken = kind & K_ID1_TAKEN != 0
        if taken and w.identity and scan_object(p, p + size, &o) < 0:
            return 0
    start = <uint8_t *> o.start
    close = <uint8_t *> o.close
    if w.identity:
        if taken:
            own = &o.uuid if topic.uuid else &o.request_id
            if keep_user_id(batch, i, own) < 0:
                return STOP_MEMORY
        else:
            # without the comma where there is nothing to divide
            memcpy(close, topic.tail + o.empty, topic.tail_size - o.empty)
            close += topic.tail_size - o.empty - 1
            lc_put_digits(close + 1 - TAIL_END, lc_spell(batch.seq[i]))
    size = close + 1 - start
    if start != p:
        memmove(p, start, size)
    return size


cdef int client_encode(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                       lc_outcomes *out) noexcept nogil:
    cdef lc_client *w = <lc_client *> self
    cdef lc_topic *topic
    cdef uint8_t *p
    cdef size_t begin = wire.size, size, body, taken = 0
    cdef size_t at[HASH_LANES]       # bodies on the wire, not hashed yet
    cdef size_t sizes[HASH_LANES]
    cdef uint32_t index[HASH_LANES]
    cdef uint32_t waiting = 0, lanes = xxh64_lanes()
    cdef uint32_t i, limit, n = 0
    cdef uint8_t compression
    cdef int64_t done
    if w.wrong:
        return 0
    limit = client_room(w)
    if events > limit:
        events = limit
    for i in range(batch.cursor, batch.n):
        if n == events:
            break
        if batch.fate[i] != PENDING:
            continue
        size = batch.size[i]
        if n and taken + size > w.batch_bytes:
            break
        if size > BODY_LIMIT - TAIL_MOST:
            batch.fate[i] = FAILED
            batch.reason[i] = R_TOO_LARGE
            continue
        if batch.kind[i] >> K_TOPIC_SHIFT >= TOPICS:
            batch.fate[i] = FAILED
            batch.reason[i] = R_UNENCODABLE
            continue
        topic = &w.topics[batch.kind[i] >> K_TOPIC_SHIFT]
        done = STOP_MEMORY
        body = wire.size + topic.head_size + 4
        p = wire_reserve(wire, topic.head_size + 4 + size + TAIL_MOST + SCAN_PAD + 4 + META_SIZE)
        if p != NULL:
            p += topic.head_size + 4
            done = finish_body(w, batch, i, topic, p, size)
        if done == 0:
            batch.fate[i] = FAILED
            batch.reason[i] = R_NOT_JSON
            continue
        compression = NO_COMPRESSION
        if done > 0 and w.packer.method and <size_t> done >= w.compress_over:
            batch.hash[i] = xxh64_of(p, done, SEED)
            w.packed.size = 0
            if pack_body(&w.packer, p, done, &w.packed) < 0:
                done = STOP_MEMORY
            elif w.packed.size < <size_t> done:
                compression = <uint8_t> w.packer.method
                done = w.packed.size
                memcpy(p, w.packed.data, done)
            w.packed.size = 0
            trim(&w.packed, ROOM_KEPT)
        elif done > 0:
            at[waiting] = body
            sizes[waiting] = done
            index[waiting] = i
            waiting += 1
            if waiting == lanes:
                hash_bodies(batch, wire.data, at, sizes, index, waiting)
                waiting = 0
        if done < 0:
            if n:
                break            # what there is goes; the pump hears of it at the next turn
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
        batch.fate[i] = INFLIGHT
        if w.request:
            if w.count == 0:
                w.last_sign = now    # nothing was awaited before
            w.ring[(w.head + w.count) % w.room] = batch.seq[i]
            w.count += 1
        else:
            handing_add(&w.handing, batch.seq[i], wire.size - begin)
    if waiting:
        hash_bodies(batch, wire.data, at, sizes, index, waiting)
    w.handing.written += wire.size - begin
    return n


# The same for a compressor that is called in Python: the GIL is waited for once, not for each message.
cdef int client_encode_held(void *self, lc_batch *batch, uint32_t events, double now, lc_wire *wire,
                            lc_outcomes *out) noexcept with gil:
    return client_encode(self, batch, events, now, wire, out)


cdef int client_wrong(lc_client *w, int what, const uint8_t *p, size_t size) noexcept nogil:
    w.wrong = what
    w.wrong_size = size if size < WRONG_SHOWN else <size_t> WRONG_SHOWN
    memcpy(w.wrong_bytes, p, w.wrong_size)
    return STOP_PROTOCOL


cdef inline bint says(const lc_span *frame, const char *words, size_t size) noexcept nogil:
    return frame.size == size and memcmp(frame.at, words, size) == 0


# One whole reply, at p.
cdef int take_reply(lc_client *w, const uint8_t *p, size_t size, lc_span *frames, int n,
                    lc_outcomes *out) noexcept nogil:
    cdef uint64_t seq
    cdef uint8_t *to
    cdef bint good
    out.alive += 1
    if w.count == 0:
        return client_wrong(w, WRONG_TIME, p, size)
    seq = w.ring[w.head]
    if seq == 0:
        good = n == 3 and says(&frames[1], b"200 OK", 6)
        if not says(&frames[0], b"ping", 4) or not good and not (
                n == 2 and says(&frames[1], b"400 Bad Request", 15)):
            return client_wrong(w, WRONG_PONG, p, size)
        to = wire_reserve(&w.pongs, 4 + (frames[2].size if good else 0))
        if to == NULL:
            return STOP_MEMORY
        lc_put32(to, <uint32_t> frames[2].size if good else 0xFFFFFFFF)
        w.pongs.size += 4
        if good:
            memcpy(to + 4, frames[2].at, frames[2].size)
            w.pongs.size += frames[2].size
        w.pings -= 1
        out.heard += 1
    else:
        good = n == 2 and says(&frames[1], b"202 Accepted", 12)
        if (not good and not (n == 2 and says(&frames[1], b"400 Bad Request", 15))
                or not says(&frames[0], <const char *> w.app_env, w.app_env_size)):
            return client_wrong(w, WRONG_REPLY, p, size)
        if outcome_add(out, seq, seq, ACKED if good else FAILED, R_NONE if good else R_REJECTED) < 0:
            return STOP_MEMORY
        out.progress += 1
    w.head = (w.head + 1) % w.room
    w.count -= 1
    return 0


# Async: ZeroMQ has taken so many bytes of messages.
cdef void client_sent(void *self, size_t size, lc_outcomes *out) noexcept nogil:
    handing_took(&(<lc_client *> self).handing, size, out)


# The message at p: 1 whole, `used` bytes; 0 not yet; STOP_PROTOCOL.
cdef int next_reply(lc_client *w, const uint8_t *p, size_t left, lc_span *frames, int *n,
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
    cdef lc_client *w = <lc_client *> self
    cdef lc_span frames[REPLY_FRAMES]
    cdef size_t used = 0
    cdef bint kept = w.partial.size > 0
    cdef uint8_t *to
    cdef int n = 0, done
    if w.wrong:
        return STOP_PROTOCOL
    if size == 0:
        return 0
    w.now = w.last_sign = now
    if kept:
        to = wire_reserve(&w.partial, size)
        if to == NULL:
            return STOP_MEMORY
        memcpy(to, data, size)
        w.partial.size += size
        data = w.partial.data
        size = w.partial.size
    while True:
        done = next_reply(w, data, size, frames, &n, &used)
        if done > 0:
            done = take_reply(w, data, used, frames, n, out)
            if done == 0:
                data += used
                size -= used
                continue
        break
    if done < 0:
        return done
    # what is left of a message is short, or it would be wrong
    if kept:
        memmove(w.partial.data, data, size)
        w.partial.size = size
        trim(&w.partial, ROOM_KEPT)
    elif size:
        to = wire_reserve(&w.partial, size)
        if to == NULL:
            return STOP_MEMORY
        memcpy(to, data, size)
        w.partial.size = size
    return 0


cdef double client_deadline(void *self) noexcept nogil:
    cdef lc_client *w = <lc_client *> self
    return w.last_sign + w.silence if w.count else 0


cdef void forget(lc_client *w) noexcept nogil:
    w.head = w.count = w.pings = 0
    handing_forget(&w.handing)
    w.partial.size = 0
    w.pongs.size = 0


cdef bytes frame_of(bytes content, bint more):
    cdef uint8_t head[4]
    lc_put_frame(head, <uint32_t> len(content) | (FRAME_MORE if more else 0))
    return (<bytes> head[:4]) + content


@cython.final
cdef class Hot(CodecBase):
    """The client; see the stub."""

    cdef lc_client w
    cdef object package          # of the compressor
    cdef list kept               # bytes that w.topics points into
    cdef bytes app_env

    def __cinit__(self):
        memset(&self.w, 0, sizeof(lc_client))

    def __init__(self, bytes producer, bytes app_env, topics, *, bint request=True, int inflight=256,
                 int64_t batch_bytes=1 << 20, int compression=0, int level=3, int64_t compress_over=1024,
                 bint identity=True, bint check=True, double silence=30.0, uint64_t number=1):
        cdef lc_client *w = &self.w
        cdef lc_topic *topic
        cdef int i
        if w.ring != NULL:
            raise TypeError("already made")
        topics = [bytes(name) for name in topics]
        if len(producer) != 10:
            raise ValueError(f"producer: 10 bytes, not {len(producer)}")
        # an empty first frame makes a message a request, and "ping" a request a ping
        if not 1 <= len(app_env) <= 255 or app_env == b"ping":
            raise ValueError(f"app_env: 1 to 255 bytes, not {len(app_env)}")
        if len(topics) != TOPICS or not all(0 < len(name) < 1024 for name in topics):
            raise ValueError("topics: six names of 1 to 1023 bytes")
        for name_of, value, low, high in (
            ("inflight", inflight, 1, 65536), ("batch_bytes", batch_bytes, 1, BODY_LIMIT),
            ("compression", compression, 0, COMPRESSIONS - 1), ("level", level, 1, 9),
            ("compress_over", compress_over, 0, BODY_LIMIT), ("number", number, 1, (1 << 64) - 1),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name_of}: {low} to {high}, not {value}")
        if not silence > 0:
            raise ValueError(f"silence: more than 0 seconds, not {silence}")
        self.package = packer_open(&w.packer, compression, level)
        w.request = request
        w.identity = identity
        w.check = check
        w.inflight = inflight
        w.batch_bytes = batch_bytes
        w.compress_over = compress_over
        w.silence = silence
        w.number = number
        w.room = inflight + PINGS
        w.ring = <uint64_t *> calloc(w.room, sizeof(uint64_t))
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
            tail = (b',"uuid":"' if topic.uuid else b',"request_id":"') + producer.hex().encode() + (
                b"0" * (ID_SIZE - PRODUCER_SIZE) + b'"}')
            self.kept += [head, tail]
            topic.head = <const uint8_t *> PyBytes_AS_STRING(head)
            topic.head_size = len(head)
            topic.tail = <const uint8_t *> PyBytes_AS_STRING(tail)
            topic.tail_size = len(tail)
        self.hot.self = w
        self.hot.credit = client_credit
        self.hot.encode = client_encode_held if packer_needs_gil(&w.packer) else client_encode
        self.hot.receive = client_receive
        self.hot.deadline = client_deadline
        if not request:
            self.hot.sent = client_sent

    def __dealloc__(self):
        free(self.w.ring)
        handing_close(&self.w.handing)
        free(self.w.partial.data)
        free(self.w.pongs.data)
        free(self.w.packed.data)
        packer_close(&self.w.packer)

    @property
    def compressor(self):
        cdef lc_packer *k = &self.w.packer
        if k.method == ZLIB:
            name = {BY_ISAL: "isal", BY_LIBZ: "zlib"}.get(k.deflater.by, "python zlib")
            return f"{name} {k.deflater.level}"
        name = {NO_COMPRESSION: "none", SNAPPY: "snappy", LZ4: "lz4"}[k.method]
        return f"python {name}" if k.python != NULL else name

    @property
    def holds_gil(self):
        return packer_needs_gil(&self.w.packer)

    @property
    def requests(self):
        return self.w.count

    @property
    def error(self):
        cdef lc_client *w = &self.w
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
        forget(&self.w)
        self.w.wrong = WRONG_NONE
        self.w.now = self.w.last_sign = now
        CodecBase.sent(self)

    def connection_lost(self):
        cdef uint32_t requests = self.w.count
        forget(&self.w)
        CodecBase.sent(self)
        return requests

    def sent(self, uint64_t rest=0):
        cdef lc_handing *h = &self.w.handing
        CodecBase.sent(self)
        if not self.w.request and rest <= h.written - h.taken:
            handing_took(h, h.written - h.taken - rest, &self.out)

    def ping(self):
        cdef lc_client *w = &self.w
        cdef uint8_t meta[META_SIZE]
        cdef bytes message
        cdef uint8_t *to
        self.made()
        if w.pings == PINGS:
            raise ValueError(f"ping: {PINGS} of them have no reply yet")
        put_meta(w, meta, NO_COMPRESSION, 0)
        message = b"".join([
            frame_of(b"", True), frame_of(b"ping", True), frame_of(self.app_env, True), frame_of(b"{}", True),
            frame_of(<bytes> meta[:META_SIZE], False),
        ])
        if self.box.views:
            self.full.append(self.box)
            self.box = type(self.box)()
        to = wire_reserve(&self.box.wire, len(message))
        if to == NULL:
            raise MemoryError()
        memcpy(to, <const uint8_t *> PyBytes_AS_STRING(message), len(message))
        self.box.wire.size += len(message)
        w.handing.written += len(message)
        if w.count == 0:
            w.last_sign = w.now
        w.ring[(w.head + w.count) % w.room] = 0
        w.count += 1
        w.pings += 1

    def pongs(self):
        cdef lc_wire *w = &self.w.pongs
        cdef size_t at = 0
        cdef uint32_t size
        hosts = []
        while at < w.size:
            size = lc_get32(w.data + at)
            at += 4
            if size == 0xFFFFFFFF:
                hosts.append(None)
            else:
                hosts.append(PyBytes_FromStringAndSize(<const char *> w.data + at, size))
                at += size
        w.size = 0
        return hosts


# The frames of a message that may be cut, for words.
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


# ---------------------------------------------------------------------------------------------------
# Compressions
# ---------------------------------------------------------------------------------------------------

def pack(int compression, body, /, *, int level=3):
    """A body as it is carried; see the stub."""
    cdef lc_packer packer
    cdef lc_wire out
    cdef bytes data = bytes(body)
    cdef const uint8_t *p
    cdef size_t size
    cdef int done = 0
    if not 0 <= compression < COMPRESSIONS:
        raise ValueError(f"compression: 0 to {COMPRESSIONS - 1}, not {compression}")
    if compression == NO_COMPRESSION:
        return data
    memset(&out, 0, sizeof(out))
    p = <const uint8_t *> PyBytes_AS_STRING(data)
    size = len(data)
    package = packer_open(&packer, compression, level)
    try:
        with nogil:
            done = pack_body(&packer, p, size, &out)
        if done < 0:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
    finally:
        free(out.data)
        packer_close(&packer)
        del package


@cython.final
cdef class Unpacker:
    """Opens compressed bodies; see the stub."""

    cdef lc_unpacker k
    cdef object packages
    cdef size_t limit

    def __cinit__(self):
        memset(&self.k, 0, sizeof(lc_unpacker))

    def __init__(self, size_t max_unpacked=BODY_LIMIT):
        if self.packages is not None:
            raise TypeError("already made")
        self.packages = unpacker_open(&self.k)
        self.limit = max_unpacked

    def __dealloc__(self):
        unpacker_close(&self.k)

    def unpack(self, int compression, body, /):
        cdef lc_wire out
        cdef bytes data = bytes(body)
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef size_t size = len(data)
        cdef int done = 0
        if self.packages is None:
            raise TypeError("not made")
        if not 0 <= compression < COMPRESSIONS:
            raise ValueError(f"unknown compression {compression}")
        if compression == NO_COMPRESSION:
            if <size_t> len(data) > self.limit:
                raise ValueError(f"a body of {len(data)} bytes; {self.limit} are the most")
            return data
        memset(&out, 0, sizeof(out))
        try:
            with nogil:
                done = unpack_body(&self.k, compression, p, size, &out, self.limit)
            if done == INFLATE_MEMORY:
                raise MemoryError()
            name = ("", "zlib stream", "snappy block", "LZ4 block behind a big-endian length")[compression]
            if done == INFLATE_TOO_LARGE:
                raise ValueError(f"a body that unpacks to more than {self.limit} bytes")
            if done == UNPACK_MISSING:
                raise ValueError(f"{'snappy' if compression == SNAPPY else 'lz4'} is not installed")
            if done < 0:
                raise ValueError(f"no {name}")
            return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
        finally:
            free(out.data)


# ---------------------------------------------------------------------------------------------------
# The decoder of captures
# ---------------------------------------------------------------------------------------------------

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON
    S_TORN
    S_BAD_FRAMES
    S_NO_META
    S_OLD_META
    S_BAD_META
    S_BAD_APP_ENV
    S_BAD_TOPIC
    S_BAD_COMPRESSION
    S_BAD_ZLIB
    S_BAD_SNAPPY
    S_BAD_LZ4
    S_TOO_LARGE
    S_NO_LIBRARY
    S_PING
    S_HEARTBEAT

OK = <int> S_OK
FOREIGN = <int> S_FOREIGN
NO_ID = <int> S_NO_ID
NOT_JSON = <int> S_NOT_JSON
TORN = <int> S_TORN
BAD_FRAMES = <int> S_BAD_FRAMES
NO_META = <int> S_NO_META
OLD_META = <int> S_OLD_META
BAD_META = <int> S_BAD_META
BAD_APP_ENV = <int> S_BAD_APP_ENV
BAD_TOPIC = <int> S_BAD_TOPIC
BAD_COMPRESSION = <int> S_BAD_COMPRESSION
BAD_ZLIB = <int> S_BAD_ZLIB
BAD_SNAPPY = <int> S_BAD_SNAPPY
BAD_LZ4 = <int> S_BAD_LZ4
TOO_LARGE = <int> S_TOO_LARGE
NO_LIBRARY = <int> S_NO_LIBRARY
PING = <int> S_PING
HEARTBEAT = <int> S_HEARTBEAT
STATUS_NAMES = (
    "ok", "foreign", "no_id", "not_json", "torn", "bad_frames", "no_meta", "old_meta", "bad_meta",
    "bad_app_env", "bad_topic", "bad_compression", "bad_zlib", "bad_snappy", "bad_lz4", "too_large",
    "no_library", "ping", "heartbeat",
)

cdef enum:
    C_REQUEST = C_OWN
    C_APP_OFFSET
    C_APP_LENGTH
    C_TOPIC_OFFSET
    C_TOPIC_LENGTH
    C_COMPRESSION
    C_DEVICE
    C_CREATED
    C_NUMBER
    OLD_META_SIZE = 22
    FRAMES_MOST = 5


# What is known of a message, as far as it was read.
ctypedef struct lc_message:
    lc_span frames[FRAMES_MOST]
    int n
    bint request
    const uint8_t *begin
    lc_span *app_env
    lc_span *topic
    lc_span *body
    uint8_t compression
    uint32_t device
    uint64_t created
    uint64_t number


@cython.final
cdef class Decoded(Events):
    """Decoded messages, a row each; rows from `TORN` on are faults.

    `offset` and `length` are those of the unpacked body in the unit as `expand` returns it.
    """

    @property
    def request(self):
        """uint8: 1 when the first frame is empty."""
        return self.columns[<int> C_REQUEST]

    @property
    def app_env_offset(self):
        """int32: where the app-env begins in the unit."""
        return self.columns[<int> C_APP_OFFSET]

    @property
    def app_env_length(self):
        """int32: bytes of the app-env; 0 without one."""
        return self.columns[<int> C_APP_LENGTH]

    @property
    def topic_offset(self):
        """int32: where the topic begins in the unit."""
        return self.columns[<int> C_TOPIC_OFFSET]

    @property
    def topic_length(self):
        """int32: bytes of the topic; 0 without one."""
        return self.columns[<int> C_TOPIC_LENGTH]

    @property
    def compression(self):
        """uint8: the compression method in the meta info."""
        return self.columns[<int> C_COMPRESSION]

    @property
    def device(self):
        """uint32: the device number; 0 from a client."""
        return self.columns[<int> C_DEVICE]

    @property
    def created_ms(self):
        """uint64: milliseconds since 1970."""
        return self.columns[<int> C_CREATED]

    @property
    def number(self):
        """uint64: the message's sequence number, from 1; a device's shows gaps."""
        return self.columns[<int> C_NUMBER]


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, a message each, with or without the empty frame of a request.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an id counts when it begins with
            one of these, else it is hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        max_unpacked: bound on the bytes of one body.
    """

    cdef size_t max_unpacked
    cdef lc_unpacker unpacker
    cdef lc_wire unpacked
    cdef object packages         # keeps the compressors loaded

    def __init__(self, producers=b"", *, bint identity=True, size_t max_unpacked=BODY_LIMIT):
        self.begin(Decoded, b"BiiiiBIQQ", producers, identity)
        self.packages = unpacker_open(&self.unpacker)
        self.max_unpacked = max_unpacked

    def __dealloc__(self):
        free(self.unpacked.data)
        unpacker_close(&self.unpacker)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef lc_message m
        cdef lc_id id_
        cdef int status = read_message(p, size, &m)
        cdef const uint8_t *body = NULL
        cdef size_t length = 0
        cdef int64_t offset = m.body.at - p if m.body != NULL else 0
        cdef uint64_t hash
        clear_id(&id_)
        if status == S_OK:
            status = open_body(self, &m, &body, &length)
            if status < 0:
                return -1
        if status != S_OK:
            return add_row(self, status, &id_, 0, &m, offset, m.body.size if m.body != NULL else size)
        hash = xxh64_of(body, length, SEED)
        status = S_NO_ID
        if self.identity:
            status = search_id(self, body, length, not starts(m.topic, b"logs", 4), &id_)
            if status < 0:
                return -1
        return add_row(self, status, &id_, hash, &m, offset, length)


cdef inline bint starts(const lc_span *s, const char *words, size_t size) noexcept nogil:
    return s.size >= size and memcmp(s.at, words, size) == 0


# As the device looks at it: printing ASCII (and DEL), a dash somewhere.
cdef inline bint good_app_env(const lc_span *s) noexcept nogil:
    cdef bint dash = False
    cdef size_t i
    for i in range(s.size):
        if s.at[i] < 32 or s.at[i] > 127:
            return False
        if s.at[i] == c'-':
            dash = True
    return dash


# As the device looks at it: how it begins.
cdef inline bint good_topic(const lc_span *s) noexcept nogil:
    return (starts(s, b"logs", 4) or starts(s, b"events", 6) or starts(s, b"frontend.page", 13)
            or starts(s, b"frontend.ajax", 13) or starts(s, b"javascript", 10) or starts(s, b"mobile", 6))


# Tag and version; 0xBDCA, the tag byte-swapped, passes at the device too.
cdef inline bint has_tag(const uint8_t *p) noexcept nogil:
    return p[3] == 1 and (p[0] == 0xCA and p[1] == 0xBD or p[0] == 0xBD and p[1] == 0xCA)


# Take a message apart. S_OK, or what is wrong with it; nothing is said of its body.
cdef Status read_message(const uint8_t *p, size_t size, lc_message *m) noexcept nogil:
    cdef size_t at = 0, length
    cdef uint32_t head = FRAME_MORE
    cdef lc_span *meta
    cdef int first
    memset(m, 0, sizeof(lc_message))
    m.begin = p
    while head & FRAME_MORE:
        if size - at < 4:
            return S_TORN
        head = lc_get_frame(p + at)
        length = head & FRAME_SIZE
        at += 4
        if size - at < length:
            return S_TORN
        if m.n < FRAMES_MOST:
            m.frames[m.n].at = p + at
            m.frames[m.n].size = length
        m.n += 1
        at += length
    if at != size:
        return S_TORN
    m.request = m.frames[0].size == 0
    first = 1 if m.request else 0
    if m.n == 3 and not m.request:
        m.app_env, m.topic, m.body = &m.frames[0], &m.frames[1], &m.frames[2]
        return S_NO_META
    if m.n != first + 4:
        return S_BAD_FRAMES
    m.app_env, m.topic, m.body = &m.frames[first], &m.frames[first + 1], &m.frames[first + 2]
    meta = &m.frames[first + 3]
    if meta.size == OLD_META_SIZE and has_tag(meta.at):
        return S_OLD_META
    if meta.size != META_SIZE or not has_tag(meta.at):
        return S_BAD_META
    m.compression = meta.at[2]
    m.device = lc_get32(meta.at + 4)
    m.created = lc_get64(meta.at + 8)
    m.number = lc_get64(meta.at + 16)
    if m.request and says(m.app_env, b"ping", 4):
        return S_PING
    if not m.request and says(m.app_env, b"heartbeat", 9) and starts(m.topic, b"tcp://", 6):
        return S_HEARTBEAT
    if not good_app_env(m.app_env):
        return S_BAD_APP_ENV
    if not good_topic(m.topic):
        return S_BAD_TOPIC
    return S_OK


cdef inline int add_row(Decoder d, int status, const lc_id *id_, uint64_t hash, lc_message *m,
                        int64_t offset, size_t length) noexcept nogil:
    cdef lc_rows *r = &d.rows
    cdef size_t i = r.n
    if add_common(r, <uint8_t> status, id_, hash, d.unit, offset, length) < 0:
        return -1
    (<uint8_t *> r.at[C_REQUEST])[i] = m.request
    (<int32_t *> r.at[C_APP_OFFSET])[i] = <int32_t> (m.app_env.at - m.begin) if m.app_env != NULL else 0
    (<int32_t *> r.at[C_APP_LENGTH])[i] = <int32_t> m.app_env.size if m.app_env != NULL else 0
    (<int32_t *> r.at[C_TOPIC_OFFSET])[i] = <int32_t> (m.topic.at - m.begin) if m.topic != NULL else 0
    (<int32_t *> r.at[C_TOPIC_LENGTH])[i] = <int32_t> m.topic.size if m.topic != NULL else 0
    (<uint8_t *> r.at[C_COMPRESSION])[i] = m.compression
    (<uint32_t *> r.at[C_DEVICE])[i] = m.device
    (<uint64_t *> r.at[C_CREATED])[i] = m.created
    (<uint64_t *> r.at[C_NUMBER])[i] = m.number
    return 0


# The body of a message, unpacked: S_OK, or what is wrong with it. -1: out of memory.
cdef int open_body(Decoder d, lc_message *m, const uint8_t **p, size_t *size) noexcept nogil:
    cdef int done
    p[0] = m.body.at
    size[0] = m.body.size
    if m.compression == NO_COMPRESSION:
        return S_OK if size[0] <= d.max_unpacked else S_TOO_LARGE
    if m.compression >= COMPRESSIONS:
        return S_BAD_COMPRESSION
    d.unpacked.size = 0
    trim(&d.unpacked, ROOM_KEPT)
    done = unpack_body(&d.unpacker, m.compression, p[0], size[0], &d.unpacked, d.max_unpacked)
    if done == INFLATE_MEMORY:
        return -1
    if done == INFLATE_TOO_LARGE:
        return S_TOO_LARGE
    if done == UNPACK_MISSING:
        return S_NO_LIBRARY
    if done < 0:
        return S_BAD_ZLIB if m.compression == ZLIB else S_BAD_SNAPPY if m.compression == SNAPPY else S_BAD_LZ4
    p[0] = d.unpacked.data
    size[0] = d.unpacked.size
    return S_OK


# The id of a body: in "request_id" where the topic is logs, else in "uuid". -1: out of memory.
cdef int search_id(Decoder d, const uint8_t *p, size_t size, bint uuid, lc_id *id_) noexcept nogil:
    cdef lc_object o
    cdef lc_span *own
    cdef int bad = scan_body(d, p, size, &o)
    if bad:
        return -1 if bad == NO_MEMORY else S_NOT_JSON
    own = &o.uuid if uuid else &o.request_id
    return S_NO_ID if own.at == NULL else identify(d, own, id_)


def expand(unit, size_t max_unpacked=BODY_LIMIT):
    """The unit with its body unpacked; see the stub."""
    cdef bytes raw = bytes(unit)
    cdef lc_message m
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(raw)
    cdef Status status = read_message(p, len(raw), &m)
    cdef Py_ssize_t at
    if status != S_OK or m.compression == NO_COMPRESSION:
        return raw
    at = m.body.at - p
    try:
        body = Unpacker(max_unpacked).unpack(m.compression, raw[at:at + m.body.size])
    except ValueError:
        return raw
    return raw[:at - 4] + frame_of(body, True) + raw[at + m.body.size:]
