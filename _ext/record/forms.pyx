# The form in which a document is sent. A document is written with the names of ECS and their dots, all but
# fields of records that become objects at once (`_write_origin`, `_write_process`). Then its last members, or
# with a `Form` all of them, are read here and written as the form wants them: as objects, or by rules.
# By then no name is both a value and the prefix of another.

cdef enum:
    MEMBERS = 64             # members for which there is room on the stack
    BRACES = 8               # bytes around a member that is merged with others
    MAX_DOTS = 32            # a name with more stays as it is
    MAX_RULES = 64           # rules of a form, names that it knows, and levels
    NAME_SLOTS = 256         # places in which a name of a form is looked up
    MAX_KEPT_TEXT = 64       # bytes of a text that is kept when a document is read
    NODES = 64               # ... and an object of a document, on the stack
    OTHER = 0                # the source of a name without a rule
    OURS = 255               # ... of one that a rule gives to another field

# What becomes of the value of a field. Those from HOST on write a member for a field that is missing, too.
cdef enum:
    AS_IT_IS                 # the value
    LEFT_OUT                 # nothing
    UPPER                    # text in capitals
    SEVERITY                 # OpenTelemetry's number of a level, if it has one
    SYSLOG                   # syslog's number
    OTHER_LEVEL              # as PLAIN, a level without a number
    PLAIN                    # text and numbers; any other value but null as the text of its JSON
    FULL_MESSAGE             # the message, and this text on the next line
    HOST                     # this text, or the name of this machine
    SHORT_MESSAGE            # this text, or a dash
    NANOSECONDS              # a time, as text
    SECONDS                  # a time, as a number
    BODY                     # the value, or null
    CONSTANT                 # what the rule says

cdef tuple CONVERSIONS = (
    "", "leave out", "upper", "severity", "syslog", "other level", "plain", "full message", "host",
    "short message", "nanoseconds", "seconds", "body", "constant",
)

ctypedef struct Rule:
    uint8_t source           # index of the name in ECS, from 1 on
    uint8_t how              # AS_IT_IS ...
    uint8_t place            # index of the object that it goes into; 0: the top
    uint8_t n                # bytes of `text`
    char text[48]            # ,"name":

# A name that a form knows.
ctypedef struct Known:
    const uint8_t *at
    size_t n
    uint8_t source           # index, or OURS

ctypedef struct Level:
    const uint8_t *at        # in lower case
    size_t n
    uint8_t severity
    uint8_t syslog

ctypedef struct Rules:
    Rule rules[MAX_RULES]
    Rule places[MAX_RULES]
    Known known[MAX_RULES]
    Level levels[MAX_RULES]
    const uint8_t *host      # of this machine, quoted
    size_t host_n
    uint8_t slots[NAME_SLOTS]    # index of a known name, and 1
    uint8_t keys[KEYS]       # the source of each of our fields
    uint8_t rule_count, source_count, known_count, level_count
    uint8_t message, level   # the sources of these
    uint8_t others           # the place of all other fields
    bint nested              # they become objects
    bint ids                 # `event.id` and `@metadata` stay where they are
    bint moves               # those that are named as one of ours, or below it, move to `labels`
    bint prefixed            # they have names of GELF: an underscore, and another for each odd character


@cython.final
cdef class Form:
    """A form of documents other than ECS, made from a table; see ``logclient.records.formats``."""

    cdef Rules rules
    cdef list kept           # owns the texts

    def __cinit__(self, rules: Iterable[tuple[str, str, str]], *, str host: str,
                  dict levels: dict[str, tuple[int, int]] | None = None, str others="", bint nested=False,
                  bint moves=False, bint prefixed=False):
        cdef Rules *r = &self.rules
        cdef dict places = {"": 0}
        cdef dict sources = {}
        cdef Rule *rule
        cdef bytes text
        memset(r, 0, sizeof(Rules))
        self.kept = []
        r.nested = nested
        r.moves = moves
        r.prefixed = prefixed
        r.ids = not (others or prefixed)
        text = self.keep(host)
        r.host = <const uint8_t *> PyBytes_AS_STRING(text)
        r.host_n = <size_t> PyBytes_GET_SIZE(text)
        for source, target, how in rules:
            place, _, name = target.rpartition("/")
            if place not in places:
                _set_rule(&r.places[len(places)], f',"{place}":')
                places[place] = len(places)
            if source and source not in sources:
                sources[source] = len(sources) + 1
                self.know(source, sources[source])
            rule = &r.rules[r.rule_count]
            r.rule_count += 1
            rule.source = sources.get(source, 0)
            rule.how = CONVERSIONS.index(how)
            rule.place = places[place]
            _set_rule(rule, f",{name}" if rule.how == CONSTANT else f',"{name}":')
        r.others = places[others]
        r.message = sources["message"]
        r.level = sources["log.level"]
        r.source_count = len(sources)
        for i in range(<int> KEY_METADATA):
            r.keys[i] = sources.get(RECORD_NAMES[i], 0)
        for source, target, how in rules:
            place, _, name = target.rpartition("/")
            if place == others and name != source and how not in ("leave out", "constant"):
                self.know(name[1:] if prefixed else name, OURS)
        for name, (severity, syslog) in ({} if levels is None else levels).items():
            text = self.keep(name)
            r.levels[r.level_count] = Level(<const uint8_t *> PyBytes_AS_STRING(text),
                                            <size_t> PyBytes_GET_SIZE(text), severity, syslog)
            r.level_count += 1

    cdef bytes keep(self, str text):
        cdef bytes made = text.encode()
        self.kept.append(made)
        return made

    cdef int know(self, str name, uint8_t source) except -1:
        cdef Rules *r = &self.rules
        cdef bytes text = self.keep(name)
        cdef const uint8_t *s = <const uint8_t *> PyBytes_AS_STRING(text)
        cdef size_t n = <size_t> PyBytes_GET_SIZE(text)
        if n == 0 or _source_of(r, s, n) != OTHER:
            return 0
        r.known[r.known_count] = Known(s, n, source)
        r.known_count += 1
        cdef uint32_t slot = _slot_of(s, n)
        while r.slots[slot]:
            slot = (slot + 1) % NAME_SLOTS
        r.slots[slot] = r.known_count
        return 0


cdef int _set_rule(Rule *rule, str text) except -1:
    cdef bytes made = text.encode("ascii")
    if len(made) > <Py_ssize_t> sizeof(rule.text):
        raise ValueError(f"too long for a rule: {text}")
    memcpy(rule.text, PyBytes_AS_STRING(made), <size_t> len(made))
    rule.n = <uint8_t> len(made)
    return 0


cdef inline uint32_t _slot_of(const uint8_t *s, size_t n) noexcept nogil:
    return (n * 31 + s[0] * 7 + s[n >> 1] * 3 + s[n - 1] * 13) % NAME_SLOTS


cdef uint8_t _source_of(const Rules *r, const uint8_t *s, size_t n) noexcept nogil:
    cdef const Known *known
    if n == 0:
        return OTHER
    cdef uint32_t slot = _slot_of(s, n)
    while r.slots[slot]:
        known = &r.known[r.slots[slot] - 1]
        if known.n == n and memcmp(known.at, s, n) == 0:
            return known.source
        slot = (slot + 1) % NAME_SLOTS
    return OTHER


# Reading.

ctypedef struct Value:
    const uint8_t *at        # NULL: there is none
    size_t n

ctypedef struct Node

# A field without a rule.
ctypedef struct Member:
    Value name
    Value value
    Node *top                # the object at the top that it is in, or is; NULL: it keeps its dots

# What has a name in a document with objects: an object, or the value of a field.
ctypedef struct Node:
    Value path               # its name behind those of the objects around
    const Member *member     # NULL: names with dots make it
    const Node *before       # the last object in it when the member came
    Node *first              # those in it
    Node *last
    Node *next               # in the same object
    bint written

ctypedef struct Arranger:
    const Rules *rules       # NULL: names with dots become objects, and that is all
    Document out             # is written
    Value values[MAX_RULES]  # of the fields with rules, by source
    const Level *level       # the event's, or NULL
    int64_t created_us       # the time that we gave it, or 0
    Member *members
    Member *room             # for MEMBERS
    Node *nodes
    size_t mask              # one less than the places for nodes
    uint32_t n, capacity     # members
    uint32_t names           # of nodes, at most
    bint renames             # some names may be taken
    uint8_t place            # where `out` is
    size_t brace             # offset of the brace that opens this object


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


# Read the member behind the comma at p, without spaces; return the byte after it.
cdef inline const uint8_t *_read_member(lc_block *block, const uint8_t *p, const uint8_t *end,
                                        Member *m) noexcept nogil:
    cdef bint escaped = False
    cdef const uint8_t *q = string_end(block, p + 2, &escaped)
    m.name = Value(p + 2, <size_t> (q - p - 2))
    p = q + 2
    q = string_end(block, p + 1, &escaped) + 1 if p[0] == c'"' else value_after(p, end)
    m.value = Value(p, <size_t> (q - p))
    return q


cdef inline bint _is(const Value *v, const char *text, size_t n) noexcept nogil:
    return v.n == n and memcmp(v.at, text, n) == 0


cdef inline size_t _first_part(const Value *name) noexcept nogil:
    cdef const uint8_t *dot = <const uint8_t *> memchr(name.at, c'.', name.n)
    return name.n if dot == NULL else <size_t> (dot - name.at)


# Return whether the name of a field may be that of another.
cdef bint _may_be_taken(const Rules *r, const Value *name) noexcept nogil:
    cdef size_t i
    cdef uint8_t c
    if not r.prefixed:
        return _source_of(r, name.at, _first_part(name) if r.moves else name.n) == OURS
    for i in range(name.n):
        c = name.at[i]
        if not (c'a' <= c <= c'z' or c'A' <= c <= c'Z' or c'0' <= c <= c'9' or c == c'_' or c == c'.'
                or c == c'-'):
            return True
    return _is(name, b"id", 2) or _source_of(r, name.at, name.n) == OURS


# Return the value of one of our own fields, which a record begins with, and go to the end of the one before
# it. They are not read: where they begin is known.
cdef inline Value _take_own(const Document *doc, int key, const uint8_t **end) noexcept nogil:
    cdef const uint8_t *at = doc.base + doc.starts[key]
    cdef size_t n = <size_t> (end[0] - at)
    end[0] = at - lc_keys[key].n - 4
    return Value(at, n)


# Find the members from `start` on. The document is our own: well-formed, and without spaces.
cdef int _find_members(Document *doc, Arranger *a, size_t start) noexcept nogil:
    cdef const Rules *r = a.rules
    cdef const uint8_t *p
    cdef const uint8_t *end = doc.p - 1
    cdef Member *m
    cdef Member *more
    cdef Value own
    cdef lc_block block
    cdef uint8_t source
    cdef int key
    if r != NULL and doc.own_end:
        start = doc.own_end
        p = doc.base + start
        for key in range(<int> KEY_METADATA - 1, -1, -1):
            if doc.starts[key] == 0:
                continue
            own = _take_own(doc, key, &p)
            if r.keys[key] == OTHER:
                a.members[a.n].name = Value(own.at - lc_keys[key].n - 2, lc_keys[key].n)
                a.members[a.n].value = own
                a.n += 1
            else:
                a.values[r.keys[key]] = own
    p = doc.base + start
    block.at = p
    block.special = lc_special(p)
    while p + 1 < end:                       # at the comma, or the brace, before a member
        if a.n == a.capacity:
            more = <Member *> realloc(NULL if a.members == a.room else a.members,
                                      2 * a.capacity * sizeof(Member))
            if more == NULL:
                return -1
            if a.members == a.room:
                memcpy(more, a.room, MEMBERS * sizeof(Member))
            a.members = more
            a.capacity *= 2
        m = &a.members[a.n]
        p = _read_member(&block, p, end, m)
        if r != NULL:
            source = _source_of(r, m.name.at, m.name.n)
            # Names below a message that is an empty object go into it: it is a member as they are.
            if source != OTHER and source != OURS and not (
                    r.nested and source == r.message and _is(&m.value, b"{}", 2)):
                a.values[source] = m.value
                continue
            if r.prefixed and m.value.at[0] == c'n':
                continue                     # null
            a.renames = a.renames or _may_be_taken(r, &m.name)
        a.n += 1
    return 0


# Give each field of the application a name that no other field has. `kept` owns these names. Return how many
# fields have moved. The names of JSON stay escaped; no code of the application runs here.
cdef int64_t _rename(Arranger *a, list kept) except -1:
    cdef const Rules *r = a.rules
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef const Rule *rule
    cdef Member *m
    cdef Member inner
    cdef lc_block block
    cdef set taken = set()
    cdef dict counts = {}
    cdef str name, free
    cdef bytes made
    cdef uint32_t i
    cdef int64_t moved = 0
    for i in range(0 if r.moves else r.rule_count):
        rule = &r.rules[i]
        if rule.place == r.others and _is_written(a, rule.how, &a.values[rule.source]):
            taken.add(PyUnicode_DecodeUTF8(rule.text + 2, rule.n - 4, NULL))
    for i in range(a.n if r.moves else 0):
        m = &a.members[i]
        if _is(&m.name, b"labels", 6) and m.value.at[0] == c'{':
            p = block.at = m.value.at
            end = p + m.value.n - 1
            block.special = lc_special(p)
            while p + 1 < end:
                p = _read_member(&block, p, end, &inner)
                taken.add(_text(&inner.name))
        elif m.name.n > 7 and memcmp(m.name.at, b"labels.", 7) == 0:
            taken.add(_text(&m.name).split(".")[1])
    for i in range(a.n):
        m = &a.members[i]
        if r.moves and not _may_be_taken(r, &m.name):
            continue
        name = _text(&m.name)
        if r.moves:
            name = name.replace(".", "_")
            moved += 1
        elif r.prefixed:
            name = "_" + ODD_CHARACTER.sub("_", name)
            name = "_id_" if name == "_id" else name
        free = name
        while free in taken:
            counts[name] = counts.get(name, 1) + 1
            free = f"{name}_{counts[name]}"
        taken.add(free)
        made = f"labels.{free}".encode() if r.moves else free.encode()
        kept.append(made)
        m.name = Value(<const uint8_t *> PyBytes_AS_STRING(made), <size_t> PyBytes_GET_SIZE(made))
    return moved


cdef object ESCAPE = re.compile(r"(\\u.{4}|\\.)")
cdef object ODD_CHARACTER = re.compile(ESCAPE.pattern + r"|[^\w.-]", re.ASCII)


cdef inline str _text(const Value *v):
    return PyUnicode_DecodeUTF8(<const char *> v.at, <Py_ssize_t> v.n, NULL)


# Objects.

# Return the node of a path, which has this hash; a new one has no path yet.
cdef Node *_node_of(Arranger *a, const uint8_t *s, size_t n, size_t h) noexcept nogil:
    cdef Node *node
    h ^= h >> 16
    while True:
        node = &a.nodes[h & a.mask]
        if node.path.at == NULL or node.path.n == n and memcmp(node.path.at, s, n) == 0:
            return node
        h += 1


cdef void _add_to_objects(Arranger *a, Member *m) noexcept nogil:
    cdef Node *node
    cdef Node *parent = NULL
    cdef uint32_t h = 2166136261             # FNV-1a
    cdef size_t i
    for i in range(m.name.n + 1):
        if i == m.name.n or m.name.at[i] == c'.':
            node = _node_of(a, m.name.at, i, h)
            if parent == NULL:
                m.top = node
            elif node.path.at == NULL:
                if parent.first == NULL:
                    parent.first = node
                else:
                    parent.last.next = node
                parent.last = node
            node.path = Value(m.name.at, i)
            parent = node
        h = (h ^ m.name.at[i]) * 16777619
    parent.member = m
    parent.before = parent.last


cdef int _make_objects(Arranger *a, Node *room) noexcept nogil:
    cdef size_t i, j, places = 1
    cdef Member *m
    for i in range(a.n):
        m = &a.members[i]
        m.top = NULL
        if m.value.at[0] == c'{' or memchr(m.name.at, c'.', m.name.n) != NULL:
            a.names += 1
            for j in range(m.name.n):
                a.names += m.name.at[j] == c'.'
    while places < 2 * <size_t> a.names:
        places *= 2
    a.nodes = room if places <= NODES else <Node *> realloc(NULL, places * sizeof(Node))
    if a.nodes == NULL:
        return -1
    memset(a.nodes, 0, places * sizeof(Node))
    a.mask = places - 1
    for i in range(a.n):
        m = &a.members[i]
        if m.value.at[0] == c'{' or memchr(m.name.at, c'.', m.name.n) != NULL:
            if not _keeps_dots(m.name.at, m.name.n):
                _add_to_objects(a, m)
    return 0


# Values.

# Write a value for which there is room, and for LC_SLACK bytes.
cdef inline void _copy_value(Document *out, const Value *v) noexcept nogil:
    if v.n <= LC_SLACK:
        memcpy(out.p, v.at, LC_SLACK)        # as many can be read: SCAN_PAD
    else:
        memcpy(out.p, v.at, v.n)
    out.p += v.n


cdef inline int _put_value(Document *out, const Value *v) noexcept nogil:
    if _reserve(out, v.n + LC_SLACK) < 0:
        return -1
    _copy_value(out, v)
    return 0


# Write the characters of a text, or of the JSON of another value, with a space behind commas and colons.
cdef int _put_chars(Document *out, const Value *v) noexcept nogil:
    cdef bint text = v.at[0] == c'"', inside = False, escapes = False
    cdef size_t i
    cdef uint8_t c
    if text:
        return _append(out, <const char *> v.at + 1, v.n - 2)
    if _reserve(out, 2 * v.n + LC_SLACK) < 0:
        return -1
    for i in range(v.n):
        c = v.at[i]
        if c == c'"' or c == c'\\':
            out.p[0] = c'\\'
            out.p += 1
        out.p[0] = c
        out.p += 1
        inside ^= c == c'"' and not escapes
        escapes = c == c'\\' and not escapes
        if not inside and (c == c',' or c == c':'):
            out.p[0] = c' '
            out.p += 1
    return 0


# Write text in capitals; its escapes stay.
cdef int _put_upper(Document *out, const Value *v) noexcept:
    cdef size_t i
    cdef uint8_t c
    cdef list parts
    cdef bytes made
    if _put_value(out, v) < 0 or v.at[0] != c'"':
        return -(out.reason != R_NONE)
    out.p -= v.n
    for i in range(v.n):
        c = v.at[i]
        if c >= 0x80 or c == c'\\':
            break
        out.p[i] = c - (0x20 if c'a' <= c <= c'z' else 0)
    else:
        out.p += v.n
        return 0
    try:
        parts = ESCAPE.split(_text(v))
        parts[::2] = [part.upper() for part in parts[::2]]
        made = "".join(parts).encode()
    except MemoryError:
        return -1
    return _append(out, PyBytes_AS_STRING(made), <size_t> PyBytes_GET_SIZE(made))


cdef const Level *_level_of(const Rules *r, const Value *v) noexcept nogil:
    cdef size_t i
    cdef uint32_t j
    for j in range(r.level_count if v.at != NULL else 0):
        if v.n == r.levels[j].n + 2:
            for i in range(r.levels[j].n):
                if v.at[i + 1] | 0x20 != r.levels[j].at[i]:
                    break
            else:
                return &r.levels[j]
    return NULL


# Return whether a value is true for Python.
cdef bint _is_true(const Value *v) noexcept nogil:
    cdef size_t i
    if v.at[0] == c'"' or v.at[0] == c'[' or v.at[0] == c'{':
        return v.n > 2
    for i in range(v.n):
        if c'1' <= v.at[i] <= c'9':
            return True
    return v.at[0] == c't'


# Return whether a rule writes a value as it is.
cdef inline bint _is_kept(uint8_t how, const Value *v) noexcept nogil:
    return v.at != NULL and (how == AS_IT_IS or how == BODY or how == PLAIN and (
        v.at[0] == c'"' or v.at[0] == c'-' or c'0' <= v.at[0] <= c'9'))


# Return whether a rule writes something for a value.
cdef inline bint _is_written(Arranger *a, uint8_t how, const Value *v) noexcept nogil:
    if v.at == NULL or how >= HOST:
        return how >= HOST
    if how == AS_IT_IS or how == UPPER:
        return True
    if how == SEVERITY or how == SYSLOG:
        return a.level != NULL
    return how != LEFT_OUT and v.at[0] != c'n' and (how != OTHER_LEVEL or a.level == NULL)


cdef int _put_by_rule(Arranger *a, uint8_t how, const Value *v) noexcept:
    cdef const Rules *r = a.rules
    cdef Document *out = &a.out
    cdef const Value *message = &a.values[r.message]
    cdef int64_t us = 0
    if _is_kept(PLAIN if how == OTHER_LEVEL else how, v):
        return _put_value(out, v)
    if how == UPPER:
        return _put_upper(out, v)
    if how == BODY:
        return _append(out, b"null", 4)
    if how == HOST and (v.at == NULL or not _is_true(v)):
        return _append(out, <const char *> r.host, r.host_n)
    if _reserve(out, 2 * LC_SLACK) < 0:
        return -1
    if how == SEVERITY or how == SYSLOG:
        out.p = lc_uint(out.p, a.level.severity if how == SEVERITY else a.level.syslog)
        return 0
    if how == NANOSECONDS or how == SECONDS:
        us = a.created_us
        if us == 0 and (v.at == NULL or v.at[0] != c'"' or not lc_read_time(v.at + 1, v.n - 2, &us)):
            us = lc_wall_us()
        if how == NANOSECONDS:
            out.p[0] = c'"'
            out.p = _put_text(lc_int(out.p + 1, us), b'000"' if us else b'"')
            return 0
        out.p[0] = c'-'
        out.p = lc_uint(out.p + (us < 0), <uint64_t> abs(us) // 1000000)
        out.p[0] = c'.'
        out.p = lc_micro(out.p + 1, <uint32_t> (abs(us) % 1000000))
        return 0
    out.p[0] = c'"'
    out.p += 1
    if how == SHORT_MESSAGE or how == FULL_MESSAGE:
        if message.at == NULL or message.at[0] == c'n' or _is(message, b'""', 2):
            out.p[0] = c'-'
            out.p += 1
        elif _put_chars(out, message) < 0:
            return -1
    if how == FULL_MESSAGE:
        out.copies = 2
        if _append(out, b"\\n", 2) < 0:
            return -1
    if how != SHORT_MESSAGE and _put_chars(out, v) < 0:
        return -1
    return _append(out, b'"', 1)


# Writing.

# Go to the object of a place. It is opened by the comma of its first member.
cdef int _enter_place(Arranger *a, uint8_t place) noexcept nogil:
    if a.place:
        a.out.base[a.brace] = c'{'
        if _append(&a.out, b"}", 1) < 0:
            return -1
    a.place = place
    if place and _append(&a.out, a.rules.places[place].text, a.rules.places[place].n) < 0:
        return -1
    a.brace = <size_t> (a.out.p - a.out.base)
    return 0


cdef int _put_name_and_colon(Document *out, const uint8_t *name, size_t n) noexcept nogil:
    if _reserve(out, n + LC_SLACK) < 0:
        return -1
    memcpy(out.p, b',"', 2)
    memcpy(out.p + 2, name, n)
    memcpy(out.p + 2 + n, b'":', 2)
    out.p += n + 4
    return 0


# Write the fields of a member that is an object.
cdef inline int _put_inner(Document *out, const Member *m) noexcept nogil:
    if m.value.n <= 2:
        return 0
    if _append(out, b",", 1) < 0:
        return -1
    return _append(out, <const char *> m.value.at + 1, m.value.n - 2)


# Write an object or a value. Its name begins `at` bytes behind that of the object around.
cdef int _put_node(Document *out, Node *node, size_t at) noexcept nogil:
    cdef Node *inner = node.first
    cdef size_t start
    node.written = True
    if _put_name_and_colon(out, node.path.at + at, node.path.n - at) < 0:
        return -1
    if inner == NULL:
        return _put_value(out, &node.member.value)
    start = <size_t> (out.p - out.base)
    if node.member != NULL and node.before == NULL and _put_inner(out, node.member) < 0:
        return -1
    while inner != NULL:
        if _put_node(out, inner, node.path.n + 1) < 0 or (
                node.member != NULL and node.before == inner and _put_inner(out, node.member) < 0):
            return -1
        inner = inner.next
    out.base[start] = c'{'
    return _append(out, b"}", 1)


# Write the fields without a rule. `event` comes last, so that the id can go into it; only `@metadata` may
# follow.
cdef int _put_others(Document *doc, Arranger *a) noexcept:
    cdef const Rules *r = a.rules
    cdef Document *out = &a.out
    cdef Member *m
    cdef Node *event = NULL
    cdef Member *metadata = NULL
    cdef uint32_t i
    cdef size_t start
    for i in range(a.n):
        m = &a.members[i]
        if m.top != NULL:
            if _is(&m.top.path, b"event", 5):
                event = m.top
            elif not m.top.written and _put_node(out, m.top, 0) < 0:
                return -1
        elif doc.id_inside and _is(&m.name, b"@metadata", 9):
            metadata = m
        elif r != NULL and r.prefixed:
            if _append(out, b',"_', 2 if a.renames else 3) < 0 or _append(
                    out, <const char *> m.name.at, m.name.n) < 0 or _append(
                    out, b'":', 2) < 0 or _put_by_rule(a, PLAIN, &m.value) < 0:
                return -1
        elif _put_name_and_colon(out, m.name.at, m.name.n) < 0 or _put_value(out, &m.value) < 0:
            return -1
    if event != NULL:
        start = <size_t> (out.p - out.base)
        if _put_node(out, event, 0) < 0:
            return -1
        if <size_t> (out.p - out.base) == start + 11:
            out.p = out.base + start         # it is empty
        else:
            doc.event_at = max(doc.dotted_from, 0) + <Py_ssize_t> start
    if metadata != NULL and (_put_name_and_colon(out, metadata.name.at, metadata.name.n) < 0
                             or _put_value(out, &metadata.value) < 0):
        return -1
    if doc.id_inside and doc.event_at < 0:
        doc.flags |= <uint8_t> K_NESTED
    elif doc.id_inside and metadata == NULL:
        doc.flags |= <uint8_t> K_EVENT_OPEN
    return 0


cdef int _put_all(Document *doc, Arranger *a) noexcept:
    cdef const Rules *r = a.rules
    cdef Document *out = &a.out
    cdef const Rule *rule
    cdef const Value *v
    cdef uint32_t i
    cdef bint kept
    for i in range(0 if r == NULL else r.rule_count):
        rule = &r.rules[i]
        v = &a.values[rule.source]
        kept = _is_kept(rule.how, v)         # then it is written
        if not kept and not _is_written(a, rule.how, v):
            continue
        if rule.place != a.place and _enter_place(a, rule.place) < 0:
            return -1
        if _reserve(out, sizeof(rule.text) + LC_SLACK + (v.n if kept else 0)) < 0:
            return -1
        memcpy(out.p, rule.text, sizeof(rule.text))
        out.p += rule.n
        if kept:
            _copy_value(out, v)
        elif rule.how != CONSTANT and _put_by_rule(a, rule.how, v) < 0:
            return -1
    if r != NULL and r.others != a.place and a.n and _enter_place(a, r.others) < 0:
        return -1
    if _put_others(doc, a) < 0 or a.place and _enter_place(a, 0) < 0 or _reserve(out, LC_SLACK) < 0:
        return -1
    if doc.dotted_from <= 0:
        out.p += out.p == out.base
        out.base[0] = c'{'
    out.p[0] = c'}'
    out.p += 1
    return 0


# Arrange a document that is whole otherwise: the members from `dotted_from` on, or with a form all of them.
cdef int _arrange(Document *doc) noexcept:
    cdef uint8_t stack[STACK]
    cdef Member room[MEMBERS]
    cdef Node nodes[NODES]
    cdef Arranger a
    cdef int64_t moved = 0
    cdef int status
    cdef uint32_t i
    cdef size_t start = <size_t> max(doc.dotted_from, 0)
    cdef list names = None
    doc.event_at = -1
    if _reserve(doc, SCAN_PAD) < 0:
        return -1
    a.rules = doc.rules
    a.members = a.room = room
    a.capacity = MEMBERS
    a.nodes = nodes
    a.created_us = doc.created_us if doc.starts[<int> KEY_TIMESTAMP] else 0
    a.renames = False
    a.n = a.names = a.place = 0
    a.out.heap = NULL
    a.out.limit = doc.limit
    a.out.pair_block = False
    _start_document(&a.out, stack, WHOLE, 0)
    if a.rules != NULL:
        # A little more than needed, in whole steps of lc_clear.
        lc_clear(a.values, ((a.rules.source_count + 1) * sizeof(Value) + 63) & ~<size_t> 63)
    status = _find_members(doc, &a, start)
    if a.rules != NULL:
        a.level = _level_of(a.rules, &a.values[a.rules.level])
    if status == 0 and a.renames:
        try:
            names = []
            moved = _rename(&a, names)
        except MemoryError:
            status = -1
    if status == 0 and (a.rules == NULL or a.rules.nested):
        status = _make_objects(&a, nodes)
    else:
        for i in range(a.n):
            a.members[i].top = NULL
    if status == 0:
        status = _put_all(doc, &a)
    if status == 0:
        if a.rules != NULL and not a.rules.ids:
            doc.flags = 0
        doc.moved += <uint32_t> moved
        doc.copies = a.out.copies
        doc.p = doc.base + start
        status = _append(doc, <const char *> a.out.base, <size_t> (a.out.p - a.out.base))
    elif doc.reason == R_NONE:
        doc.reason = a.out.reason or <uint8_t> R_UNENCODABLE
    free(a.out.heap)
    if a.nodes != nodes:
        free(a.nodes)
    if a.members != room:
        free(a.members)
    return status


# Documents as dicts.

cdef class Encoder


# Return a text without escapes. Short ones come again, names above all: an encoder keeps those it has read.
cdef str _kept_text(Encoder e, const uint8_t *s, size_t n):
    cdef PyObject **place
    if LC_SHARED or n == 0 or n > MAX_KEPT_TEXT:
        return PyUnicode_DecodeUTF8(<const char *> s, <Py_ssize_t> n, NULL)
    place = &e.texts[_slot_of(s, n)]
    if (place[0] != NULL and <size_t> PyUnicode_GET_LENGTH(place[0]) == n
            and memcmp(PyUnicode_DATA(place[0]), s, n) == 0):
        return <str> place[0]
    cdef str text = PyUnicode_DecodeUTF8(<const char *> s, <Py_ssize_t> n, NULL)
    if PyUnicode_IS_COMPACT_ASCII(<PyObject *> text):
        lc_keep(place, <PyObject *> text)
    return text


# Return the object that JSON stands for; `scan` reads what is neither plain text nor a short integer.
cdef object _object_of(Encoder e, const Value *v, object scan):
    cdef size_t i, negative = v.at[0] == c'-'
    cdef int64_t number = 0
    if v.at[0] == c'"' and memchr(v.at, c'\\', v.n) == NULL:
        return _kept_text(e, v.at + 1, v.n - 2)
    for i in range(negative, v.n):
        if not c'0' <= v.at[i] <= c'9' or i > 17:
            return scan(_text(v), 0)[0]
        number = number * 10 + v.at[i] - c'0'
    return -number if negative else number


# Return a document as a dict. SCAN_PAD bytes behind it can be read.
cdef dict _read_document(Encoder e, Document *doc, object scan):
    cdef dict made = {}
    cdef const uint8_t *p = doc.base
    cdef const uint8_t *end = doc.p - 1
    cdef const uint8_t *end_of_own
    cdef Value own[KEY_METADATA]
    cdef Value name
    cdef lc_block block
    cdef Member m
    cdef int key
    if doc.own_end and not doc.nested and doc.rules == NULL:     # they lie where they were written
        p += doc.own_end
        end_of_own = p
        for key in range(<int> KEY_METADATA - 1, -1, -1):
            if doc.starts[key]:
                own[key] = _take_own(doc, key, &end_of_own)
        for key in range(<int> KEY_METADATA):
            if doc.starts[key]:
                made[RECORD_NAMES[key]] = _object_of(e, &own[key], scan)
    block.at = p
    block.special = lc_special(p)
    while p + 1 < end:
        p = _read_member(&block, p, end, &m)
        name = Value(m.name.at - 1, m.name.n + 2)
        made[_object_of(e, &name, scan)] = _object_of(e, &m.value, scan)
    return made
