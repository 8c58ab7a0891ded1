# Logux, compiled: the decoder of captures.
#
#   message    a JSON text, [type, ...], whole in one WebSocket message
#   sync       ["sync", added, action, meta, action, meta, ...]
#   meta       {"id": shift | [shift, n] | [shift, "node id", n], "time": ms}, both from the connection's base

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.hot cimport lc_wire, wire_reserve
from logclient._ext.ids cimport (
    ID_SIZE,
    add_common,
    checked_names,
    free_rows,
    is_ours,
    keep_foreign,
    lc_id,
    lc_names,
    lc_rows,
    open_rows,
    read_id,
    trim,
)
from logclient._ext.jsonscan cimport (
    SCAN_PAD,
    key_is,
    lc_block,
    lc_span,
    lc_special,
    number_end,
    skip_space,
    string_end,
)
from logclient._ext.views cimport Events


# ---------------------------------------------------------------------------------------------------
# The decoder of captures
# ---------------------------------------------------------------------------------------------------
#
# A unit is a message, [type, ...]; of a sync each action is a row. The text is read once, without recursion:
# what is directly in the message, in its objects and in an id of a meta is looked at, all else is only JSON.
# The grammar is that of the checking pass (jsonscan.pxd); what each message must be like is what the server's
# core 0.10 asks for.

cdef enum Status:
    S_OK = 0
    S_FOREIGN
    S_NO_ID
    S_NOT_JSON
    S_BAD_JSON
    S_BAD_MESSAGE
    S_UNKNOWN_MESSAGE
    S_BAD_SYNC
    S_BAD_ACTION
    S_BAD_META
    S_PING
    S_CONTROL

OK = <int> S_OK
FOREIGN = <int> S_FOREIGN
NO_ID = <int> S_NO_ID
NOT_JSON = <int> S_NOT_JSON
BAD_JSON = <int> S_BAD_JSON
BAD_MESSAGE = <int> S_BAD_MESSAGE
UNKNOWN_MESSAGE = <int> S_UNKNOWN_MESSAGE
BAD_SYNC = <int> S_BAD_SYNC
BAD_ACTION = <int> S_BAD_ACTION
BAD_META = <int> S_BAD_META
PING = <int> S_PING
CONTROL = <int> S_CONTROL
STATUS_NAMES = (
    "ok", "foreign", "no_id", "not_json", "bad_json", "bad_message", "unknown_message", "bad_sync",
    "bad_action", "bad_meta", "ping", "control",
)

cdef enum Kind:
    J_NONE = 0
    J_NUMBER
    J_STRING
    J_OBJECT
    J_LIST
    J_OTHER                      # true, false, null

cdef enum:
    MESSAGE_DEPTH = 1024         # a body of 1,000 levels fits, with what is around it
    MESSAGE_WORDS = 16           # of 64 levels each
    SHAPE_PAIR = J_NUMBER << 3 | J_NUMBER                          # [1, 0]
    SHAPE_TRIPLE = J_NUMBER << 6 | J_STRING << 3 | J_NUMBER        # [1, "10:uuid", 0]
    SHAPE_MORE = 1 << 12
    UNIT_KEPT = 1 << 22          # room for one large unit is not held for ever

# Messages: what must stand at 1, 2, ... and how many there are in all, of which `least`.
cdef enum Message:
    M_NONE = 0
    M_SYNC
    M_PING
    M_OTHER

MAX_DEPTH = <int> MESSAGE_DEPTH


# A value, as far as it is looked at.
ctypedef struct lc_value:
    int kind
    uint32_t shape               # of a list: the kinds of what is in it, three bits each
    lc_span text                 # of a string without its quotes


# What is directly in the message; of an object the last members of these names.
ctypedef struct lc_element:
    lc_value value
    bint escaped
    const uint8_t *at
    lc_value type
    lc_value id
    lc_value time
    lc_value length


ctypedef struct lc_decoder:
    lc_names names
    bint identity
    bint messages
    lc_wire scratch
    lc_rows rows
    int32_t unit


# What is known of a message, as far as it was read.
ctypedef struct lc_message:
    const uint8_t *begin
    const uint8_t *close         # where its list ends
    bint is_list
    uint32_t index               # of the element that comes
    Message type
    const char *rest             # of others: a letter for each element; an upper-case one may be left out
    Status status                # what is wrong first ...
    const uint8_t *fault         # ... and where
    const uint8_t *stop          # where the text is no JSON
    int kind                     # of the whole, where it is a body
    const uint8_t *action
    size_t action_size
    lc_value id                  # the action's


cdef inline bint is_text(const lc_element *e, const char *words, size_t size) noexcept nogil:
    return key_is(e.value.text.at, e.value.text.size, e.escaped, words, size)


# n: number, s: string, o: object that has no number as its length, p: two numbers, e: "error", a: anything
cdef inline void find_type(lc_message *m, const lc_element *e) noexcept nogil:
    m.type = M_OTHER
    if is_text(e, b"sync", 4):
        m.type = M_SYNC
        m.rest = b""
    elif is_text(e, b"ping", 4) or is_text(e, b"pong", 4):
        m.type = M_PING
        m.rest = b"n"
    elif is_text(e, b"synced", 6):
        m.rest = b"n"
    elif is_text(e, b"connect", 7):
        m.rest = b"nsnO"
    elif is_text(e, b"connected", 9):
        m.rest = b"nspO"
    elif is_text(e, b"headers", 7):
        m.rest = b"o"
    elif is_text(e, b"error", 5):
        m.rest = b"sA"
    elif is_text(e, b"debug", 5):
        m.rest = b"es"
    elif is_text(e, b"duilian", 7):
        m.rest = b"s"
    else:
        m.type = M_NONE


cdef inline bint is_object(const lc_element *e) noexcept nogil:
    return e.value.kind == J_OBJECT and e.length.kind != J_NUMBER


cdef inline bint is_what(const lc_element *e, char what) noexcept nogil:
    what |= 0x20
    if what == c'n':
        return e.value.kind == J_NUMBER
    if what == c's':
        return e.value.kind == J_STRING
    if what == c'o':
        return is_object(e)
    if what == c'p':
        return e.value.kind == J_LIST and e.value.shape == SHAPE_PAIR
    if what == c'e':
        return e.value.kind == J_STRING and is_text(e, b"error", 5)
    return what == c'a'


cdef inline bint is_meta(const lc_element *e) noexcept nogil:
    if not is_object(e) or e.time.kind != J_NUMBER:
        return False
    if e.id.kind == J_LIST:
        return e.id.shape == SHAPE_PAIR or e.id.shape == SHAPE_TRIPLE
    return e.id.kind == J_NUMBER


# A row for the action at p, whose own id is this. -1 when memory is out.
cdef inline int add_action(lc_decoder *d, const uint8_t *begin, const uint8_t *p, size_t size,
                           lc_value *own) noexcept nogil:
    cdef lc_id id_
    cdef Status status = S_NO_ID
    memset(&id_, 0, sizeof(id_))
    id_.producer = -1
    if d.identity and own.kind != J_NONE:
        status = S_FOREIGN
        if own.text.size == ID_SIZE:
            read_id(&d.names, own.text.at, &id_)
            if is_ours(&d.names, &id_):
                status = S_OK
        if status != S_OK and keep_foreign(&d.rows, &own.text) < 0:
            return -1
    return add_common(&d.rows, status, &id_, xxh64_of(p, size, SEED), d.unit, p - begin, size)


cdef inline void blame(lc_message *m, Status status, const uint8_t *where) noexcept nogil:
    if m.status == S_OK:
        m.status = status
        m.fault = where


# What is directly in the message, one after the other. -1 when memory is out.
cdef int take_element(lc_decoder *d, lc_message *m, lc_element *e) noexcept nogil:
    cdef uint32_t i = m.index
    m.index += 1
    if m.status != S_OK:
        return 0
    if i == 0:
        if e.value.kind != J_STRING:
            blame(m, S_BAD_MESSAGE, e.at)
            return 0
        find_type(m, e)
        if m.type == M_NONE:
            blame(m, S_UNKNOWN_MESSAGE, e.at)
    elif m.type != M_SYNC:
        if m.rest[0] == 0 or not is_what(e, m.rest[0]):
            blame(m, S_BAD_MESSAGE, e.at)
            return 0
        m.rest += 1
    elif i == 1:
        if e.value.kind != J_NUMBER:
            blame(m, S_BAD_SYNC, e.at)
    elif i & 1 == 0:
        if not is_object(e) or e.type.kind != J_STRING:
            blame(m, S_BAD_ACTION, e.at)
            return 0
        m.action = e.at
        m.action_size = e.value.text.size
        m.id = e.id
    else:
        if not is_meta(e):
            blame(m, S_BAD_META, e.at)
            return 0
        return add_action(d, m.begin, m.action, m.action_size, &m.id)
    return 0


cdef inline void add_shape(lc_value *v, int kind) noexcept nogil:
    v.shape = SHAPE_MORE if v.shape >= SHAPE_MORE >> 3 else v.shape << 3 | <uint32_t> kind


# Read p[0:end-p]; end[0] is 0 and SCAN_PAD bytes from there on are readable. What lies at level `base` is an
# element, taken when it ends. 1: it is JSON; 0: it is none, and where is m.stop; -1: memory is out.
cdef int scan_message(lc_decoder *d, lc_message *m, const uint8_t *p, const uint8_t *end,
                      uint32_t base) noexcept nogil:
    cdef lc_block block
    cdef uint64_t stack[MESSAGE_WORDS]          # a bit for each level: is what is around it an object?
    cdef uint32_t depth = 0
    cdef bint in_object = False, escaped
    cdef lc_element e
    cdef lc_value *member = NULL                # of the element, an object: where its value goes
    cdef const uint8_t *at                      # where the value begins
    cdef const uint8_t *member_at = NULL        # ... and one that is open
    cdef const uint8_t *q
    cdef int kind
    cdef uint8_t c
    memset(&e, 0, sizeof(e))
    block.at = p
    block.special = lc_special(p)
    p = skip_space(p)
    m.is_list = p[0] == c'['
    while True:
        # a member of an object, or an element of a list
        m.stop = p
        if in_object:
            if p[0] != c'"':
                return 0
            escaped = False
            q = string_end(&block, p + 1, &escaped)
            if q == NULL:
                return 0
            if depth == base + 1:
                member = NULL
                at = p + 1
                if escaped or at[0] == c't' or at[0] == c'i' or at[0] == c'l':
                    if key_is(at, q - at, escaped, b"type", 4):
                        member = &e.type
                    elif key_is(at, q - at, escaped, b"id", 2):
                        member = &e.id
                    elif key_is(at, q - at, escaped, b"time", 4):
                        member = &e.time
                    elif key_is(at, q - at, escaped, b"length", 6):
                        member = &e.length
            p = skip_space(q + 1)
            if p[0] != c':':
                m.stop = p
                return 0
            p = skip_space(p + 1)
            m.stop = p
        elif depth == base:
            memset(&e, 0, sizeof(e))
        # its value
        c = p[0]
        at = p
        if c == c'"':
            escaped = False
            q = string_end(&block, p + 1, &escaped)
            if q == NULL:
                return 0
            p = q + 1
            # the common case, before the general one below
            if in_object and (depth > base + 1 or member == NULL) and p[0] == c',' and p[1] == c'"':
                p += 1
                continue
            kind = J_STRING
            if depth == base:
                e.escaped = escaped
        elif c == c'{' or c == c'[':
            if depth == MESSAGE_DEPTH:
                return 0
            kind = J_OBJECT if c == c'{' else J_LIST
            q = skip_space(p + 1)
            if q[0] != (c'}' if c == c'{' else c']'):
                if depth == base:
                    e.at = p
                    member = NULL
                elif depth == base + 1:
                    member_at = p
                    if member != NULL:
                        member.shape = 0
                if in_object:
                    stack[depth >> 6] |= <uint64_t> 1 << (depth & 63)
                else:
                    stack[depth >> 6] &= ~(<uint64_t> 1 << (depth & 63))
                depth += 1
                in_object = c == c'{'
                p = q
                continue
            if member != NULL and depth == base + 1:
                member.shape = 0
            p = q + 1
            m.close = q
        else:
            if c == c'-' or c'0' <= c <= c'9':
                kind = J_NUMBER
                p = number_end(p)
                if p == NULL:
                    return 0
            else:
                kind = J_OTHER
                if c == c't' and memcmp(p, b"true", 4) == 0 or c == c'n' and memcmp(p, b"null", 4) == 0:
                    p += 4
                elif c == c'f' and memcmp(p, b"false", 5) == 0:
                    p += 5
                else:
                    return 0
        while True:
            # a value ends at p
            if depth <= base + 2:
                if depth == base:
                    e.at = at
                    e.value.kind = kind
                    e.value.text.at = at + (kind == J_STRING)
                    e.value.text.size = p - at - 2 * (kind == J_STRING)
                    if base == 0:
                        m.kind = kind
                        m.id = e.id
                    elif m.is_list and take_element(d, m, &e) < 0:
                        return -1
                elif depth == base + 1:
                    if not in_object:
                        add_shape(&e.value, kind)
                    elif member != NULL:
                        member.kind = kind
                        member.text.at = at + (kind == J_STRING)
                        member.text.size = p - at - 2 * (kind == J_STRING)
                elif depth == base + 2 and not in_object and member == &e.id:
                    add_shape(member, kind)
            # what follows it: the next one, or the end of one or more levels
            p = skip_space(p)
            if depth == 0:
                if p == end:
                    return 1
                m.stop = p
                return 0
            c = p[0]
            if c == c',':
                p = skip_space(p + 1)
                break
            if c != (c'}' if in_object else c']'):
                m.stop = p
                return 0
            kind = J_OBJECT if in_object else J_LIST
            m.close = p
            p += 1
            depth -= 1
            in_object = (stack[depth >> 6] >> (depth & 63)) & 1
            if depth == base:
                at = e.at
            elif depth == base + 1:
                at = member_at


# One unit. -1 when memory is out.
cdef int decode_unit(lc_decoder *d, const uint8_t *unit, size_t size) noexcept nogil:
    cdef lc_message m
    cdef lc_rows *r = &d.rows
    cdef lc_id nobody
    cdef size_t rows = r.n, foreigners = r.foreigners
    cdef uint8_t *p
    cdef const uint8_t *where
    cdef Status status
    cdef int done
    memset(&m, 0, sizeof(m))
    memset(&nobody, 0, sizeof(nobody))
    nobody.producer = -1
    d.scratch.size = 0
    trim(&d.scratch, UNIT_KEPT)
    p = wire_reserve(&d.scratch, size + SCAN_PAD)
    if p == NULL:
        return -1
    memcpy(p, unit, size)
    memset(p + size, 0, SCAN_PAD)
    m.begin = p
    if not d.messages:
        done = scan_message(d, &m, p, p + size, 0) if d.identity else 1
        if d.identity and (done == 0 or m.kind != J_OBJECT):
            return add_common(r, S_NOT_JSON, &nobody, xxh64_of(p, size, SEED), d.unit, 0, size)
        return add_action(d, p, p, size, &m.id)
    done = scan_message(d, &m, p, p + size, 1)
    if done < 0:
        return -1
    where = m.close
    status = m.status
    if done == 0:
        status = S_BAD_JSON
        where = m.stop
    elif not m.is_list:
        status = S_BAD_MESSAGE
        where = skip_space(p)
    elif m.status != S_OK:
        where = m.fault
    elif m.index == 0:
        status = S_BAD_MESSAGE
    elif m.type == M_SYNC:
        if m.index >= 2 and m.index & 1 == 0:
            return 0
        status = S_BAD_SYNC
    elif m.rest[0] >= c'a':
        status = S_BAD_MESSAGE
    else:
        status = S_PING if m.type == M_PING else S_CONTROL
        where = p
    r.n = rows                   # a server takes all of a message or nothing
    r.foreigners = foreigners
    return add_common(r, status, &nobody, 0, d.unit, where - p, p + size - where)


# -1 when memory is out, else the number of units decoded: fewer than n when the next leaves the data.
cdef Py_ssize_t decode_units(lc_decoder *d, const uint8_t *p, Py_ssize_t total, const int64_t *at,
                             const int64_t *size, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if at[i] < 0 or size[i] < 0 or at[i] > total or size[i] > total - at[i]:
            return i
        d.unit = <int32_t> i
        if decode_unit(d, p + at[i], <size_t> size[i]) < 0:
            return -1
    return n


@cython.final
cdef class Decoder:
    """Decodes captured messages; see the stub."""

    cdef lc_decoder d
    cdef bytes producers

    def __cinit__(self):
        memset(&self.d, 0, sizeof(lc_decoder))
        open_rows(&self.d.rows, NULL, 0)

    def __init__(self, producers=b"", *, bint identity=True, bint messages=True):
        if self.producers is not None:
            raise TypeError("already made")
        self.producers = checked_names(&self.d.names, producers)
        self.d.identity = identity
        self.d.messages = messages

    def __dealloc__(self):
        free(self.d.scratch.data)
        free_rows(&self.d.rows)

    def decode(self, data, offsets, lengths):
        cdef Py_buffer view, at, size
        cdef Py_ssize_t n, i
        cdef Events out
        if self.producers is None:
            raise TypeError("not made")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(offsets, &at, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(lengths, &size, PyBUF_SIMPLE)
                try:
                    n = at.len // 8
                    if at.len % 8 or size.len != at.len:
                        raise ValueError(f"offsets and lengths must be int64, equally many: "
                                         f"{at.len} and {size.len} bytes")
                    with nogil:
                        i = decode_units(&self.d, <const uint8_t *> view.buf, view.len,
                                         <const int64_t *> at.buf, <const int64_t *> size.buf, n)
                finally:
                    PyBuffer_Release(&size)
            finally:
                PyBuffer_Release(&at)
            if 0 <= i < n:
                raise ValueError(f"unit {i} leaves the data of {view.len} bytes")
            if i < 0:
                raise MemoryError()
            out = Events.__new__(Events)
            out.fill(&self.d.rows)
            return out
        finally:
            free_rows(&self.d.rows)
            PyBuffer_Release(&view)


def decode_messages(data, offsets, lengths, producers=b"", *, bint identity=True):
    """``Decoder(producers, ...).decode(...)`` in one call."""
    return Decoder(producers, identity=identity).decode(data, offsets, lengths)


def expand(unit):
    """The unit; see the stub."""
    return bytes(unit)
