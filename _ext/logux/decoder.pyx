# The decoder of captured messages, [type, ...]. The text is read once, without recursion. The elements of the
# message, the members of its objects, and the id of a meta are examined; everything else only has to be JSON,
# as in jsonscan.pyx. The rules for each message are those of the server's core 0.10.

cpdef enum:
    OK = 0
    FOREIGN
    NO_ID
    NOT_JSON
    BAD_JSON                     # faults from here on
    BAD_MESSAGE
    UNKNOWN_MESSAGE
    BAD_SYNC
    BAD_ACTION
    BAD_META
    PING                         # no faults, and no events
    CONTROL

STATUS_NAMES = (
    "ok", "foreign", "no_id", "not_json", "bad_json", "bad_message", "unknown_message", "bad_sync",
    "bad_action", "bad_meta", "ping", "control",
)
"""Lower-case names of these, for reports."""

cdef enum Kind:
    J_NONE = 0
    J_NUMBER
    J_STRING
    J_OBJECT
    J_LIST
    J_OTHER                      # true, false, null

cdef enum:
    MESSAGE_DEPTH = 1024         # a body of 1,000 levels fits, with the levels around it
    MESSAGE_WORDS = 16           # of 64 levels each
    SHAPE_PAIR = J_NUMBER << 3 | J_NUMBER                          # [1, 0]
    SHAPE_TRIPLE = J_NUMBER << 6 | J_STRING << 3 | J_NUMBER        # [1, "10:uuid", 0]
    SHAPE_MORE = 1 << 12                                           # any other list

# The types of messages, as far as they are treated differently.
cdef enum Message:
    M_NONE = 0
    M_SYNC
    M_PING
    M_OTHER


# The properties of a value that are kept.
ctypedef struct lc_value:
    int kind
    uint32_t shape               # of a list: the kinds of its elements, three bits each
    lc_span text                 # a string without its quotes


# An element of the message; of an object also the last members of these names.
ctypedef struct lc_element:
    lc_value value
    bint escaped
    const uint8_t *at
    lc_value type
    lc_value id
    lc_value time
    lc_value length


# A message, as far as it was read.
ctypedef struct lc_logux_message:
    const uint8_t *begin
    const uint8_t *close         # where its list ends
    bint is_list
    uint32_t index               # of the next element
    Message type
    const char *rest             # the elements that must follow, a letter for each, upper-case if optional
    uint8_t status               # the first fault
    const uint8_t *fault         # where it is
    const uint8_t *stop          # where the text stops being JSON
    int kind                     # of the whole text, if it is a body
    const uint8_t *action
    size_t action_size
    lc_value id                  # of the action


@cython.final
cdef class Decoder(BatchDecoder):
    """Decodes captured units, a message each: a row for each action of a sync, one for any other message.

    A sync with anything wrong in it has one row, as servers reject all of it. `offset` and `length` are those
    of the action's text, or of the rest of the unit from the fault on. Without `messages` a unit is the text
    of an action.
    """

    cdef bint messages

    def __cinit__(self, producers: ReadableBuffer = b"", *, bint identity=True, bint messages=True):
        self.begin(Events, b"", producers, identity)
        self.messages = messages

    cdef int decode_unit(self, const uint8_t *unit, size_t size) noexcept nogil:
        cdef lc_logux_message m
        cdef lc_rows *r = &self.rows
        cdef lc_id no_id
        cdef size_t rows = r.n, foreigners = r.foreign.size
        cdef size_t bodies = self.kept.bodies.size, own_ids = self.kept.own_ids.size
        cdef size_t own_ends = self.kept.own_ends.size
        cdef uint8_t *p
        cdef const uint8_t *where
        cdef uint8_t status
        cdef int done
        clear_id(&no_id)
        p = scan_room(self, size)
        if p == NULL:
            return -1
        memcpy(p, unit, size)
        begin_message(&m, p)
        if not self.messages:
            done = scan_message(self, &m, p, p + size, 0) if self.identity else 1
            status = NOT_JSON if self.identity and (done == 0 or m.kind != J_OBJECT) else NO_ID
            return add_action(self, p, p, size, status, &m.id)
        done = scan_message(self, &m, p, p + size, 1)
        if done < 0:
            return -1
        where = m.close
        status = m.status
        if done == 0:
            status = BAD_JSON
            where = m.stop
        elif not m.is_list:
            status = BAD_MESSAGE
            where = skip_space(p)
        elif m.status != OK:
            where = m.fault
        elif m.index == 0:
            status = BAD_MESSAGE
        elif m.type == M_SYNC:
            if m.index >= 2 and m.index & 1 == 0:
                return 0
            status = BAD_SYNC
        elif m.rest[0] >= c'a':
            status = BAD_MESSAGE
        else:
            status = PING if m.type == M_PING else CONTROL
            where = p
        r.n = rows                   # servers reject the whole message
        r.foreign.size = foreigners
        self.kept.bodies.size = bodies
        self.kept.own_ids.size = own_ids
        self.kept.own_ends.size = own_ends
        return add_common(r, status, &no_id, 0, self.unit, where - p, p + size - where)


# The fields one by one: setting all bytes to 0 for each message is a tenth of the work.
cdef inline void begin_message(lc_logux_message *m, const uint8_t *p) noexcept nogil:
    m.begin = m.close = m.fault = m.stop = m.action = p
    m.index = 0
    m.type = M_NONE
    m.rest = b""
    m.status = OK
    m.kind = J_NONE
    m.action_size = 0
    m.id.kind = J_NONE


# `shape` and `text` of a value count only with a kind that has them.
cdef inline void clear_element(lc_element *e) noexcept nogil:
    e.value.kind = e.type.kind = e.id.kind = e.time.kind = e.length.kind = J_NONE
    e.value.shape = 0
    e.escaped = False


cdef inline bint is_text(const lc_element *e, const char *words, size_t size) noexcept nogil:
    return key_is(e.value.text.at, e.value.text.size, e.escaped, words, size)


# The types of messages, the usual first, each with the elements that must follow. n: a number, s: a string,
# o: an object without a number as its length, p: two numbers, e: "error", a: anything.
cdef const char *TYPES = (
    b"sync\0\0" b"ping\0n\0" b"pong\0n\0" b"synced\0n\0" b"connect\0nsnO\0" b"connected\0nspO\0"
    b"headers\0o\0" b"error\0sA\0" b"debug\0es\0" b"duilian\0s\0"
)


cdef inline void find_type(lc_logux_message *m, const lc_element *e) noexcept nogil:
    cdef const char *name = TYPES
    cdef size_t size = strlen(name)
    while size and not is_text(e, name, size):
        name += size + 1
        name += strlen(name) + 1
        size = strlen(name)
    if size:
        m.rest = name + size + 1
        m.type = M_SYNC if name == TYPES else M_PING if size == 4 else M_OTHER


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


# Append a row for the action at p, which has the id `own` if the status is NO_ID. -1: out of memory.
cdef inline int add_action(Decoder d, const uint8_t *begin, const uint8_t *p, size_t size, int status,
                           lc_value *own) noexcept nogil:
    cdef lc_id id_
    clear_id(&id_)
    if status == NO_ID and d.identity and own.kind != J_NONE:
        status = identify(d, &own.text, &id_)
        if status < 0:
            return -1
    if keep_body(d, p, size) < 0:
        return -1
    return add_common(&d.rows, <uint8_t> status, &id_, hash_body(d, p, size), d.unit, p - begin, size)


cdef inline void blame(lc_logux_message *m, uint8_t status, const uint8_t *where) noexcept nogil:
    if m.status == OK:
        m.status = status
        m.fault = where


# Take the next element of the message. -1: out of memory.
cdef int take_element(Decoder d, lc_logux_message *m, lc_element *e) noexcept nogil:
    cdef uint32_t i = m.index
    m.index += 1
    if m.status != OK:
        return 0
    if i == 0:
        if e.value.kind != J_STRING:
            blame(m, BAD_MESSAGE, e.at)
            return 0
        find_type(m, e)
        if m.type == M_NONE:
            blame(m, UNKNOWN_MESSAGE, e.at)
    elif m.type != M_SYNC:
        if m.rest[0] == 0 or not is_what(e, m.rest[0]):
            blame(m, BAD_MESSAGE, e.at)
            return 0
        m.rest += 1
    elif i == 1:
        if e.value.kind != J_NUMBER:
            blame(m, BAD_SYNC, e.at)
    elif i & 1 == 0:
        if not is_object(e) or e.type.kind != J_STRING:
            blame(m, BAD_ACTION, e.at)
            return 0
        m.action = e.at
        m.action_size = e.value.text.size
        m.id = e.id
    else:
        if not is_meta(e):
            blame(m, BAD_META, e.at)
            return 0
        return add_action(d, m.begin, m.action, m.action_size, NO_ID, &m.id)
    return 0


cdef inline void add_shape(lc_value *v, int kind) noexcept nogil:
    v.shape = SHAPE_MORE if v.shape >= SHAPE_MORE >> 3 else v.shape << 3 | <uint32_t> kind


# Scan p[0:end-p]; end[0] must be 0 and SCAN_PAD bytes from there on readable. A value at level `base` is an
# element, which is taken when it ends. 1: JSON; 0: not JSON, from m.stop on; -1: out of memory.
cdef int scan_message(Decoder d, lc_logux_message *m, const uint8_t *p, const uint8_t *end,
                      uint32_t base) noexcept nogil:
    cdef lc_block block
    cdef uint64_t stack[MESSAGE_WORDS]          # a bit for each level: is it inside an object?
    cdef uint32_t depth = 0
    cdef bint in_object = False, escaped
    cdef lc_element e
    cdef lc_value *member = NULL                # where the value of this member of the element is kept
    cdef const uint8_t *at                      # where the current value begins
    cdef const uint8_t *member_at = NULL        # where the open value of a member begins
    cdef const uint8_t *q
    cdef int kind
    cdef uint8_t c
    clear_element(&e)
    block.at = p
    block.special = lc_special(p)
    p = skip_space(p)
    m.is_list = p[0] == c'['
    while True:
        # The next member of an object, or element of a list.
        m.stop = p
        if in_object:
            at = p + 1
            q = key_end(&block, &p, &escaped)
            m.stop = p
            if q == NULL:
                return 0
            if depth == base + 1:
                member = NULL
                if escaped or at[0] == c't' or at[0] == c'i' or at[0] == c'l':
                    if key_is(at, q - at, escaped, b"type", 4):
                        member = &e.type
                    elif key_is(at, q - at, escaped, b"id", 2):
                        member = &e.id
                    elif key_is(at, q - at, escaped, b"time", 4):
                        member = &e.time
                    elif key_is(at, q - at, escaped, b"length", 6):
                        member = &e.length
        elif depth == base:
            clear_element(&e)
        # Its value.
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
                push_level(stack, depth, in_object)
                depth += 1
                in_object = c == c'{'
                p = q
                continue
            if member != NULL and depth == base + 1:
                member.shape = 0
            p = q + 1
            m.close = q
        else:
            kind = J_NUMBER if c == c'-' or c'0' <= c <= c'9' else J_OTHER
            p = scalar_end(p)
            if p == NULL:
                return 0
        while True:
            # A value ends at p.
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
            # The next value follows, or the end of one or more levels.
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
