# Objects in place of names with dots: `log.origin.function` becomes {"log":{"origin":{"function":...}}}.
#
# The fields of an ordinary record are written as objects at once (`_write_origin`, `_write_process`). The
# application's fields are written with their dots. If there are any, the last members of the document are
# arranged here. By then no name is both a value and the prefix of another.

cdef enum:
    MEMBERS = 64             # members for which there is room on the stack
    BRACES = 8               # bytes around a member that is merged with others
    MAX_DOTS = 32            # a name with more stays as it is
    MOST_MEMBERS = 4096      # a document with more keeps its dots: each object takes a look at all members

ctypedef struct Member:
    const uint8_t *name
    const uint8_t *value
    size_t name_n
    size_t value_n
    bint whole               # the name keeps its dots
    bint written

ctypedef struct Members:
    Member *items
    uint32_t n
    uint8_t *p               # where the next byte goes


# Return whether a name keeps its dots: `log.level` and `ecs.version`, as in other libraries for ECS; names of
# the protocol; and names with an empty part.
cdef bint _keeps_dots(const uint8_t *s, size_t n) noexcept nogil:
    cdef size_t i
    cdef uint32_t dots = 0
    if n == 0 or s[0] == c'@' or s[0] == c'.' or s[n - 1] == c'.':
        return True
    for i in range(n):
        if s[i] == c'.':
            dots += 1
            if s[i + 1] == c'.':
                return True
    return (dots > MAX_DOTS or n == 9 and memcmp(s, b"log.level", 9) == 0
            or n == 11 and memcmp(s, b"ecs.version", 11) == 0)


# Return whether a name is below the object `path`.
cdef inline bint _is_below(const Member *m, const uint8_t *path, size_t n) noexcept nogil:
    return not m.whole and m.name_n > n and m.name[n] == c'.' and memcmp(m.name, path, n) == 0


# Return whether it is an object with the name `path`.
cdef inline bint _is_object_at(const Member *m, const uint8_t *path, size_t n) noexcept nogil:
    return not m.whole and m.value[0] == c'{' and m.name_n == n and memcmp(m.name, path, n) == 0


cdef inline void _put(Members *all, const uint8_t *text, size_t n) noexcept nogil:
    memcpy(all.p, text, n)
    all.p += n


# Write the object `path`, whose members come after `first`.
cdef void _put_object(Members *all, uint32_t first, const uint8_t *path, size_t n) noexcept nogil:
    cdef uint8_t *start = all.p
    cdef Member *m
    cdef uint32_t i
    for i in range(first, all.n):
        m = &all.items[i]
        if m.written:
            continue
        if _is_object_at(m, path, n):
            m.written = True
            if m.value_n > 2:
                all.p[0] = c','
                all.p += 1
                _put(all, m.value + 1, m.value_n - 2)
        elif _is_below(m, path, n):
            _put_member(all, i, n + 1)
    if all.p == start:
        all.p += 1
    start[0] = c'{'
    all.p[0] = c'}'
    all.p += 1


# Write a member, or the object that it is in; its name begins `at` bytes behind that of the current object.
cdef void _put_member(Members *all, uint32_t i, size_t at) noexcept nogil:
    cdef Member *m = &all.items[i]
    cdef const uint8_t *dot = NULL
    cdef size_t n = m.name_n
    cdef uint32_t j
    cdef bint joined = False
    if not m.whole:
        dot = <const uint8_t *> memchr(m.name + at, c'.', n - at)
    if dot != NULL:
        n = <size_t> (dot - m.name)
        joined = True
    elif m.value[0] == c'{' and not m.whole:
        for j in range(i + 1, all.n):
            joined |= not all.items[j].written and _is_below(&all.items[j], m.name, n)
    all.p[0] = c','
    all.p[1] = c'"'
    all.p += 2
    _put(all, m.name + at, n - at)
    all.p[0] = c'"'
    all.p[1] = c':'
    all.p += 2
    if joined:
        _put_object(all, i, m.name, n)
    else:
        m.written = True
        _put(all, m.value, m.value_n)


# Find the members to arrange. Return 0; 1: there are too many; or -1: no memory. `room` is for MEMBERS;
# dots[0] counts those in names.
# The document is our own: well-formed, and without spaces.
cdef int _find_members(Document *doc, Members *all, Member *room, size_t *dots) noexcept nogil:
    cdef const uint8_t *p = doc.base + doc.dotted_from
    cdef const uint8_t *end = doc.p - 1
    cdef const uint8_t *q
    cdef Member *m
    cdef Member *more
    cdef lc_block block
    cdef bint escaped = False
    cdef uint32_t capacity = MEMBERS
    cdef size_t i
    all.items = room
    all.n = 0
    dots[0] = 0
    block.at = p
    block.special = lc_special(p)
    while p + 1 < end:                       # at the comma, or the brace, before a member
        if all.n == MOST_MEMBERS:
            return 1
        if all.n == capacity:
            capacity *= 2
            more = <Member *> realloc(NULL if all.items == room else all.items, capacity * sizeof(Member))
            if more == NULL:
                return -1
            if all.items == room:
                memcpy(more, room, MEMBERS * sizeof(Member))
            all.items = more
        m = &all.items[all.n]
        all.n += 1
        m.name = p + 2
        q = string_end(&block, p + 2, &escaped)
        m.name_n = <size_t> (q - m.name)
        p = q + 2
        m.value = p
        if p[0] == c'"':
            p = string_end(&block, p + 1, &escaped) + 1
        else:
            p = value_after(p, end)
        m.value_n = <size_t> (p - m.value)
        m.whole = _keeps_dots(m.name, m.name_n)
        m.written = False
        if not m.whole:
            for i in range(m.name_n):
                dots[0] += m.name[i] == c'.'
    return 0


# Arrange the last members of a document that is whole otherwise. `event` comes last, so that the id can go
# into it; only `@metadata` may follow.
cdef int _nest(Document *doc) noexcept nogil:
    cdef uint8_t stack[STACK]
    cdef Member room[MEMBERS]
    cdef Members all
    cdef Member *m
    cdef uint8_t *made = stack
    cdef uint8_t *event
    cdef size_t dots, need
    cdef uint32_t i, first_event, metadata
    doc.event_at = -1
    if _reserve(doc, SCAN_PAD) < 0:
        return -1
    cdef int status = _find_members(doc, &all, room, &dots)
    if status == 0:
        # A dot becomes ":{ and }.
        need = <size_t> (doc.p - doc.base - doc.dotted_from) + 4 * dots + LC_SLACK
        if need > sizeof(stack):
            made = <uint8_t *> realloc(NULL, need)
            status = -(made == NULL)
    if status == 0:
        first_event = metadata = all.n
        all.p = made
        for i in range(all.n):
            m = &all.items[i]
            if m.written:
                continue
            if _is_object_at(m, b"event", 5) or _is_below(m, b"event", 5):
                first_event = min(first_event, i)
            elif doc.id_inside and m.name_n == 9 and memcmp(m.name, b"@metadata", 9) == 0:
                metadata = i
            else:
                _put_member(&all, i, 0)
        if first_event < all.n:
            event = all.p
            _put(&all, b',"event":', 9)
            _put_object(&all, first_event, b"event", 5)
            if all.p - event == 11:
                all.p = event                # it is empty
            else:
                doc.event_at = doc.dotted_from + (event - made)
        if metadata < all.n:
            _put_member(&all, metadata, 0)
        if doc.dotted_from == 0:
            if all.p == made:
                all.p += 1
            made[0] = c'{'
        all.p[0] = c'}'
        all.p += 1
        if doc.id_inside and doc.event_at < 0:
            doc.flags |= <uint8_t> K_NESTED
        elif doc.id_inside and metadata == all.n:
            doc.flags |= <uint8_t> K_EVENT_OPEN
        need = <size_t> (all.p - made)
        doc.p = doc.base + doc.dotted_from
        status = _append(doc, <const char *> made, need)
    elif status == 1:
        status = 0
    elif doc.reason == R_NONE:
        doc.reason = <uint8_t> R_UNENCODABLE
    if made != stack:
        free(made)
    if all.items != room:
        free(all.items)
    return status
