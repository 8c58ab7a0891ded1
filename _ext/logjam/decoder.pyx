# The decoder of captured messages.

cpdef enum:
    OK = 0
    FOREIGN
    NO_ID
    NOT_JSON
    TORN                         # faults from here on
    BAD_FRAMES
    NO_META
    OLD_META
    BAD_META
    BAD_APP_ENV
    BAD_TOPIC
    BAD_COMPRESSION
    BAD_ZLIB
    BAD_SNAPPY
    BAD_LZ4
    TOO_LARGE
    NO_LIBRARY
    PING                         # no faults, and no events
    HEARTBEAT

STATUS_NAMES = (
    "ok", "foreign", "no_id", "not_json", "torn", "bad_frames", "no_meta", "old_meta", "bad_meta",
    "bad_app_env", "bad_topic", "bad_compression", "bad_zlib", "bad_snappy", "bad_lz4", "too_large",
    "no_library", "ping", "heartbeat",
)
"""Their names in reports."""

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


# A message, as far as it was read.
ctypedef struct lc_logjam_message:
    bint request
    const uint8_t *begin
    lc_span app_env              # of size 0 if it is missing, as the topic
    lc_span topic
    lc_span body                 # the unit if it is missing
    uint8_t compression
    uint32_t device
    uint64_t created
    uint64_t number


@cython.final
cdef class Decoded(Events):
    """Decoded messages, a row each; rows from `TORN` on are faults.

    `offset` and `length` are those of the body in the unit with its body unpacked in place.
    """

    cdef readonly memoryview request  # uint8: 1 when the first frame is empty
    cdef readonly memoryview app_env_offset  # int32: where the app-env begins in the unit
    cdef readonly memoryview app_env_length  # int32: 0 without one
    cdef readonly memoryview topic_offset  # int32: where the topic begins in the unit
    cdef readonly memoryview topic_length  # int32: 0 without one
    cdef readonly memoryview compression  # uint8: the method in the meta info
    cdef readonly memoryview device  # uint32: the device number; 0 from a client
    cdef readonly memoryview created_ms  # uint64: milliseconds since 1970
    cdef readonly memoryview number  # uint64: the message's sequence number, from 1; a device's shows gaps

    cdef list take_rows(self, lc_rows *r):
        own = Events.take_rows(self, r)
        (self.request, self.app_env_offset, self.app_env_length, self.topic_offset, self.topic_length,
         self.compression, self.device, self.created_ms, self.number) = own
        return own


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, a message each, with or without the empty frame of a request.

    `max_unpacked` bounds the bytes of one body.
    """

    cdef size_t max_unpacked
    cdef lc_unpacker unpacker
    cdef lc_wire unpacked
    cdef object packages         # keeps the compressors loaded

    def __cinit__(self, producers: ReadableBuffer = b"", *, bint identity=True,
                  size_t max_unpacked=BODY_LIMIT):
        self.begin(Decoded, b"BiiiiBIQQ", producers, identity)
        self.packages = unpacker_open(&self.unpacker)
        self.max_unpacked = max_unpacked

    def __dealloc__(self):
        free(self.unpacked.data)
        unpacker_close(&self.unpacker)

    cdef int decode_unit(self, const uint8_t *p, size_t size) noexcept nogil:
        cdef lc_logjam_message m
        cdef lc_id id_
        cdef lc_object o
        cdef lc_span *own
        cdef int bad
        cdef int status = read_message(p, size, &m)
        cdef const uint8_t *body = NULL
        cdef size_t length = 0
        cdef int64_t offset = m.body.at - p
        cdef uint64_t hash
        clear_id(&id_)
        if status == OK:
            status = open_body(self, &m, &body, &length)
            if status < 0:
                return -1
        if status != OK:
            return add_row(self, status, &id_, 0, &m, offset, m.body.size)
        hash = hash_body(self, body, length)
        status = NO_ID
        if self.identity:
            bad = scan_body(self, body, length, &o)
            own = &o.request_id if starts(&m.topic, b"logs", 4) else &o.uuid
            if bad:
                status = NOT_JSON
            elif own.at != NULL:
                status = identify(self, own, &id_)
            if status < 0 or bad == NO_MEMORY:
                return -1
        if keep_body(self, body, length) < 0:
            return -1
        return add_row(self, status, &id_, hash, &m, offset, length)


cdef inline bint starts(const lc_span *s, const char *words, size_t size) noexcept nogil:
    return s.size >= size and memcmp(s.at, words, size) == 0


# The rule of the device: printing ASCII (and DEL), with a dash somewhere.
cdef inline bint good_app_env(const lc_span *s) noexcept nogil:
    cdef bint dash = False
    cdef size_t i
    for i in range(s.size):
        if s.at[i] < 32 or s.at[i] > 127:
            return False
        if s.at[i] == c'-':
            dash = True
    return dash


# The rule of the device: one of these beginnings.
cdef inline bint good_topic(const lc_span *s) noexcept nogil:
    return (starts(s, b"logs", 4) or starts(s, b"events", 6) or starts(s, b"frontend.page", 13)
            or starts(s, b"frontend.ajax", 13) or starts(s, b"javascript", 10) or starts(s, b"mobile", 6))


# Check tag and version. The device accepts 0xBDCA, the tag byte-swapped, too.
cdef inline bint has_tag(const uint8_t *p) noexcept nogil:
    return p[3] == 1 and (p[0] == 0xCA and p[1] == 0xBD or p[0] == 0xBD and p[1] == 0xCA)


# Take a message apart. Returns OK or its fault; the body is not examined.
cdef int read_message(const uint8_t *p, size_t size, lc_logjam_message *m) noexcept nogil:
    cdef size_t at = 0, length
    cdef uint32_t head = FRAME_MORE
    cdef lc_span frames[FRAMES_MOST]
    cdef lc_span *frame = frames         # the app-env
    cdef int n = 0
    m.begin = m.app_env.at = m.topic.at = m.body.at = p
    m.app_env.size = m.topic.size = 0
    m.body.size = size
    m.request = False
    m.compression = 0
    m.device = 0
    m.created = m.number = 0
    while head & FRAME_MORE:
        if size - at < 4:
            return TORN
        head = lc_get_frame(p + at)
        length = head & FRAME_SIZE
        at += 4
        if size - at < length:
            return TORN
        if n < FRAMES_MOST:
            frames[n].at = p + at
            frames[n].size = length
        n += 1
        at += length
    if at != size:
        return TORN
    m.request = frames[0].size == 0
    frame += m.request
    n -= m.request
    if n != 4 and (n != 3 or m.request):
        return BAD_FRAMES
    m.app_env, m.topic, m.body = frame[0], frame[1], frame[2]
    if n == 3:
        return NO_META
    cdef lc_span *meta = &frame[3]
    if meta.size == OLD_META_SIZE and has_tag(meta.at):
        return OLD_META
    if meta.size != META_SIZE or not has_tag(meta.at):
        return BAD_META
    m.compression = meta.at[2]
    m.device = lc_get32(meta.at + 4)
    m.created = lc_get64(meta.at + 8)
    m.number = lc_get64(meta.at + 16)
    if m.request and says(&m.app_env, b"ping", 4):
        return PING
    if not m.request and says(&m.app_env, b"heartbeat", 9) and starts(&m.topic, b"tcp://", 6):
        return HEARTBEAT
    if not good_app_env(&m.app_env):
        return BAD_APP_ENV
    if not good_topic(&m.topic):
        return BAD_TOPIC
    return OK


cdef inline int add_row(Decoder d, int status, const lc_id *id_, uint64_t hash, lc_logjam_message *m,
                        int64_t offset, size_t length) noexcept nogil:
    cdef lc_rows *r = &d.rows
    cdef size_t i = r.n
    if add_common(r, <uint8_t> status, id_, hash, d.unit, offset, length) < 0:
        return -1
    (<uint8_t *> r.at[C_REQUEST])[i] = m.request
    (<int32_t *> r.at[C_APP_OFFSET])[i] = <int32_t> (m.app_env.at - m.begin)
    (<int32_t *> r.at[C_APP_LENGTH])[i] = <int32_t> m.app_env.size
    (<int32_t *> r.at[C_TOPIC_OFFSET])[i] = <int32_t> (m.topic.at - m.begin)
    (<int32_t *> r.at[C_TOPIC_LENGTH])[i] = <int32_t> m.topic.size
    (<uint8_t *> r.at[C_COMPRESSION])[i] = m.compression
    (<uint32_t *> r.at[C_DEVICE])[i] = m.device
    (<uint64_t *> r.at[C_CREATED])[i] = m.created
    (<uint64_t *> r.at[C_NUMBER])[i] = m.number
    return 0


# Unpack the body of a message. OK, or its fault; -1: out of memory.
cdef int open_body(Decoder d, lc_logjam_message *m, const uint8_t **p, size_t *size) noexcept nogil:
    p[0] = m.body.at
    size[0] = m.body.size
    if m.compression == NO_COMPRESSION:
        return OK if size[0] <= d.max_unpacked else TOO_LARGE
    if m.compression >= COMPRESSIONS:
        return BAD_COMPRESSION
    d.unpacked.size = 0
    trim(&d.unpacked, ROOM_KEPT)
    cdef int done = unpack_body(&d.unpacker, m.compression, p[0], size[0], &d.unpacked, d.max_unpacked)
    if done == INFLATE_MEMORY:
        return -1
    if done == INFLATE_TOO_LARGE:
        return TOO_LARGE
    if done == UNPACK_MISSING:
        return NO_LIBRARY
    if done < 0:
        return BAD_ZLIB if m.compression == ZLIB else BAD_SNAPPY if m.compression == SNAPPY else BAD_LZ4
    p[0] = d.unpacked.data
    size[0] = d.unpacked.size
    return OK
