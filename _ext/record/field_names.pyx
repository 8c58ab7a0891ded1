# Names of the application's fields: their meaning in ECS and for the protocol, and their conflicts.
#
# Elasticsearch refuses a document in which a name is both a value and an object: `a` beside `a.b`, or a
# string named `host`. Such fields move to `labels.<name>`. The common case is decided in one pass from cached
# names; `_rearrange` handles the rest in Python.

# Placement of a field.
cdef enum:
    STAY, MOVE, REARRANGE

# Properties of the fields of a document.
cdef enum:
    SEEN_MAPPING = 1
    SEEN_LABELS = 2          # `labels` or a name below it
    SEEN_BELOW = 4           # <object of ECS>.<name>
    SEEN_MOVING = 8          # a field of a record that moves
    SEEN_DOTS = 16           # a name with a dot, or the object `event`
    SEEN_FILLED = 32         # ... below an object into which records write
    SEEN_CHECK_VALUE = 64    # the placement of the name depends on the value
    SEEN_UNKNOWN_TEXT = 128  # the encoded text of the name is not cached

cdef enum:
    CACHE_SLOTS = 256        # names that an encoder remembers
    CACHE_PLACES = 4         # where one of them may be
    MAX_COMPARED_NAMES = 64  # `_has_name_conflict` compares up to so many names
    MAX_NAME_CHARS = 256     # longer ones are not remembered
    MAX_MERGE_LEVELS = 4     # levels of a mapping that are merged with fields of the same prefix
    NO_OBJECTS = 255
    IN_EVENT = 254           # a field of the object `event`, which comes last
    MAX_OBJECT_NAMES = 32    # names that are compared while their objects are written
    MAX_SPLICES = 16         # encoders for which the fields of a context are kept encoded


# Return NAME_... or KEY_... of an exact str, whatever the protocol.
cdef int _classify_name(PyObject *key) noexcept nogil:
    if not PyUnicode_IS_COMPACT_ASCII(key):
        return NAME_PLAIN if lc_ready(key) == 0 and PyUnicode_FindChar(
            key, c'.', 0, PyUnicode_GET_LENGTH(key), 1) < 0 else NAME_DOTTED
    cdef const char *s = <const char *> PyUnicode_DATA(key)
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef int what = lc_what(s, n)
    if what != NAME_PLAIN:
        return what
    cdef const char *dot = <const char *> memchr(s, c'.', n)
    if dot == NULL:
        return NAME_PLAIN
    cdef size_t head = <size_t> (dot - s)
    what = lc_what(s, head)
    if what == KEY_METADATA or (what == KEY_EVENTS and n > 8 and memcmp(s, b"event.id.", 9) == 0):
        return NAME_BELOW_ID
    if what == NAME_LABELS:
        return NAME_BELOW_LABELS
    if what == KEY_MESSAGE or what == KEY_TIMESTAMP:
        return NAME_BELOW_OURS
    if memchr(dot + 1, c'.', n - head - 1) != NULL:
        return NAME_BELOW_OURS if what == NAME_FILLED else NAME_DOTTED
    if what == NAME_FILLED:
        return NAME_BELOW_FILLED
    return NAME_BELOW if what == NAME_OBJECT or what == KEY_EVENTS else NAME_DOTTED


# Return whether a mapping may have an `id`, or a name below it.
cdef bint _may_hold_id(PyObject *d) noexcept nogil:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t at = 0
    cdef const char *s
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k) or _has_surrogate(k):
            return True
        if PyUnicode_IS_COMPACT_ASCII(k) and PyUnicode_GET_LENGTH(k) >= 2:
            s = <const char *> PyUnicode_DATA(k)
            if s[0] == c'i' and s[1] == c'd' and (s[2] == c'.' or s[2] == 0):
                return True
    return False


# The cached properties of a field's name.
ctypedef struct CachedName:
    PyObject *key            # a strong reference, or NULL
    uint8_t what             # NAME_... or KEY_...
    uint8_t traits           # SEEN_... if it stays in every mapping; else SEEN_CHECK_VALUE or more
    uint8_t size             # of `text`; 0: the name is too long for it
    bint redacted            # the value is left out
    char text[32]            # ,"key":
    char objects[32]         # the same with objects in place of dots: ,"a":{"b":
    uint8_t objects_size     # 0: too long for it
    uint8_t head_n           # characters before the first dot
    uint8_t objects_around   # how many these are; NO_OBJECTS, IN_EVENT: `objects` is not to be used
    uint64_t head_bit        # of these characters
    uint64_t own_bit         # one of 64 bits, by a hash of the name
    uint64_t parent_bits     # those of the names it conflicts with: `a` and `a.b` for `a.b.c`


# Return the place of a name, or, where it has none, the first place that it may get. Names in programs are
# the same objects at each call, so they are found by address.
cdef inline CachedName *_place_of(CachedName *cache, PyObject *key) noexcept nogil:
    cdef CachedName *first = cache + ((<size_t> key >> 4 ^ <size_t> key >> 12) & (CACHE_SLOTS - 1))
    cdef int i
    if first.key != key:
        for i in range(1, CACHE_PLACES):
            if first[i].key == key:
                return first + i
    return first


cdef inline bint _is_object(int what) noexcept nogil:
    return what == NAME_OBJECT or what == NAME_FILLED or what == NAME_LABELS or what == KEY_EVENTS


# Return whether a name is written as objects in a document that has them.
cdef inline bint _makes_objects(int what) noexcept nogil:
    if what < KEYS:
        return what != KEY_MESSAGE and what != KEY_TIMESTAMP and what != KEY_LEVEL and what != KEY_ECS
    return what >= NAME_BELOW


# Write the text of a name that needs no escapes, ,"key": or, with objects in place of its dots, ,"a":{"b":
cdef uint8_t *_put_name(uint8_t *to, const uint8_t *name, size_t n, bint objects) noexcept nogil:
    cdef size_t i
    memcpy(to, b',"', 2)
    to += 2
    for i in range(n):
        if objects and name[i] == c'.':
            memcpy(to, b'":{"', 4)
            to += 4
        else:
            to[0] = name[i]
            to += 1
    memcpy(to, b'":', 2)
    return to + 2


# Find out how a name is written with objects in place of its dots.
cdef void _learn_objects(Encoder e, CachedName *cached, const uint8_t *name, size_t n) noexcept nogil:
    cdef size_t i
    cached.objects_around = 0
    cached.head_n = <uint8_t> n
    cached.objects_size = cached.size
    memcpy(cached.objects, cached.text, 32)
    if not e.nested or not _makes_objects(cached.what):
        return
    cached.objects_around = NO_OBJECTS
    if _keeps_dots(name, n) or cached.what == KEY_EVENTS:
        return
    if n > 6 and memcmp(name, b"event.", 6) == 0:
        if memchr(name + 6, c'.', n - 6) == NULL:
            cached.objects_around = IN_EVENT
            cached.head_bit = _name_bit(name, 5)
        return
    cached.objects_around = 0
    for i in range(n):
        if name[i] == c'.':
            cached.objects_around += 1
            cached.head_n = min(cached.head_n, <uint8_t> i)
    cached.head_bit = _name_bit(name, cached.head_n)
    cached.objects_size = 0
    if n + 3 * cached.objects_around + 4 <= sizeof(cached.objects):
        cached.objects_size = <uint8_t> (
            _put_name(<uint8_t *> cached.objects, name, n, True) - <uint8_t *> cached.objects)


# The names with dots that a document has so far. Those from `first` on are below the same name, and the
# objects around the last one are open.
ctypedef struct Objects:
    const uint8_t *names[MAX_OBJECT_NAMES]   # each ends with a zero
    uint8_t head_sizes[MAX_OBJECT_NAMES]     # characters before the first dot
    uint64_t bits                # of these characters
    uint32_t n
    uint32_t first
    uint8_t open                 # how many objects


cdef bint _is_head(Objects *o, const uint8_t *s, size_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(o.n):
        if o.head_sizes[i] == n and memcmp(o.names[i], s, n) == 0:
            return True
    return False


# Close the objects around the last name that the name `key` is not in, and write this up to its value, with
# objects in place of its dots. There is room for LC_SLACK bytes more.
# Return where the value goes; NULL: an object would have to be opened again, or there are too many names.
# `bits`: of the names before it in `d`, between `start` and `at`.
cdef uint8_t *_open_objects(Objects *o, Document *doc, CachedName *cached, PyObject *key, uint64_t bits,
                            PyObject *d, Py_ssize_t start, Py_ssize_t at) noexcept nogil:
    cdef PyObject *k
    cdef PyObject *v
    cdef const uint8_t *s = <const uint8_t *> PyUnicode_DATA(key)
    cdef const uint8_t *last
    cdef size_t i, n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef size_t shared = 0               # characters of the part that it shares with the last one
    cdef uint32_t j
    cdef uint8_t objects = 0             # and dots
    cdef uint8_t *p
    if cached.objects_around == 0:
        if o.bits & cached.own_bit and _is_head(o, s, cached.head_n):
            return NULL
    elif cached.objects_around >= IN_EVENT or o.n == MAX_OBJECT_NAMES:
        return NULL
    elif o.open and o.head_sizes[o.first] == cached.head_n and memcmp(o.names[o.first], s,
                                                                      cached.head_n) == 0:
        last = o.names[o.n - 1]
        for i in range(n):
            if s[i] != last[i]:
                break
            if s[i] == c'.':
                objects += 1
                shared = i + 1
        for i in range(shared, n):
            if s[i] == c'.':             # it opens an object, which none but the last may have opened
                for j in range(o.first, o.n):
                    if strncmp(<const char *> o.names[j], <const char *> s, i + 1) == 0:
                        return NULL
                break
    else:
        if doc.places and bits & cached.head_bit:
            return NULL
        if o.bits & cached.head_bit and _is_head(o, s, cached.head_n):
            return NULL
        while bits & cached.head_bit and PyDict_Next(d, &start, &k, &v) and start < at:
            if (<size_t> PyUnicode_GET_LENGTH(k) == cached.head_n and PyUnicode_IS_COMPACT_ASCII(k)
                    and memcmp(PyUnicode_DATA(k), s, cached.head_n) == 0):
                return NULL
        o.first = o.n
    p = _close_objects(o, doc.p, objects)
    if cached.objects_around:
        o.names[o.n] = s
        o.head_sizes[o.n] = cached.head_n
        o.n += 1
        o.bits |= cached.head_bit
        o.open = cached.objects_around
    if shared == 0 and cached.objects_size:
        memcpy(p, cached.objects, 32)
        return p + cached.objects_size
    return _put_name(p, s + shared, n - shared, True)


# Close open objects but for the outermost ones.
cdef inline uint8_t *_close_objects(Objects *o, uint8_t *p, uint8_t outermost) noexcept nogil:
    memset(p, c'}', MAX_DOTS)
    p += o.open - outermost
    o.open = outermost
    return p


# What names of fields are looked up in: `rename`; for records also names with the prefix.
cdef enum:
    PLACES = 1
    PLACES_RECORD = 2


# Return the name that the options give a field that has been judged.
cdef inline PyObject *_place(Encoder e, Document *doc, PyObject *k) noexcept nogil:
    cdef PyObject *place = NULL
    if doc.places:
        place = lc_find(<PyObject *> e.rename, k)
        if place == NULL and doc.places == PLACES_RECORD:
            place = lc_find(<PyObject *> e.below, k)
    return k if place == NULL else place


# Return the same for the fields in `d` from `start` on; NULL: `Encoder._placed` has to judge.
cdef PyObject *_judge_place(Encoder e, Document *doc, PyObject *d, Py_ssize_t start, PyObject *name,
                            PyObject *value) noexcept:
    cdef PyObject *place = lc_find(<PyObject *> e.rename, name)
    cdef PyObject *k
    cdef PyObject *v
    if place == NULL:
        place = _place(e, doc, name)
        return place if place != name or doc.places == PLACES else e.learn_below(name)
    if not _is_inert(value) or doc.redacted != NULL and _covers(doc.redacted, name):
        return NULL
    while PyDict_Next(d, &start, &k, &v):
        if not PyUnicode_CheckExact(k) or PyUnicode_Compare(k, place) == 0:
            return NULL
    return place


# Return the bits that a name adds to `seen` with any value, SEEN_CHECK_VALUE or SEEN_UNKNOWN_TEXT. Find out
# its text.
cdef uint8_t _traits_of(Encoder e, CachedName *cached, PyObject *key) noexcept nogil:
    cdef uint8_t quoted[LC_WORST * MAX_NAME_CHARS + 2 * LC_SLACK]
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef const uint8_t *name = <const uint8_t *> PyUnicode_DATA(key)
    cdef Document doc
    if n >= MAX_NAME_CHARS or not PyUnicode_IS_COMPACT_ASCII(key):
        return SEEN_UNKNOWN_TEXT
    if lc_quote1(quoted, name, n) != quoted + n:
        return SEEN_UNKNOWN_TEXT
    cached.size = 0
    if n + 4 <= sizeof(cached.text):
        cached.size = <uint8_t> (_put_name(<uint8_t *> cached.text, name, n, False) - <uint8_t *> cached.text)
    _learn_objects(e, cached, name, n)
    doc.seen = 0
    # If a scalar stays, a mapping does, too.
    if cached.what != NAME_PLAIN and _placement(e, &doc, cached.what, Py_None, False) != STAY:
        return SEEN_CHECK_VALUE
    return doc.seen


# Return the placement of a field whose name is not NAME_PLAIN.
cdef int _placement(Encoder e, Document *doc, int what, PyObject *v, bint record) noexcept nogil:
    if what == NAME_CARRIER:
        return REARRANGE
    if not e.ecs:
        return STAY
    if _is_object(what):
        if PyDict_CheckExact(v) and not e.flat:
            if what == NAME_LABELS:
                doc.seen |= SEEN_LABELS
            elif what == KEY_EVENTS:
                doc.seen |= SEEN_DOTS
            if what == NAME_FILLED and record or what == KEY_EVENTS and e.sets_event_id and _may_hold_id(v):
                return REARRANGE
            return STAY
        if (_is_inert(v) or v == Py_True or v == Py_False or PyList_CheckExact(v) or PyTuple_CheckExact(v)
                or PyDict_CheckExact(v)):
            return MOVE
        return REARRANGE
    if what < KEYS:
        if what == KEY_METADATA:
            return REARRANGE if e.lumberjack else STAY
        if what == KEY_EVENT_ID and e.sets_event_id:
            return REARRANGE
        if record and (what == KEY_TIMESTAMP or what == KEY_LEVEL):
            return REARRANGE
        if what == KEY_LEVEL or what == KEY_ECS:
            doc.seen |= SEEN_BELOW           # these keep their dots
        elif what != KEY_MESSAGE and what != KEY_TIMESTAMP:
            doc.seen |= SEEN_BELOW | SEEN_DOTS | SEEN_FILLED
        return STAY
    if (what == NAME_BELOW_ID and e.lumberjack
            or record and (what == NAME_BELOW_FILLED or what == NAME_BELOW_OURS)):
        return REARRANGE
    doc.seen |= SEEN_BELOW | SEEN_DOTS
    if what == NAME_BELOW_LABELS:
        doc.seen |= SEEN_LABELS
    return STAY


cdef inline uint64_t _name_bit(const uint8_t *s, size_t n) noexcept nogil:
    if n == 0:
        return 1
    return <uint64_t> 1 << ((n * 5 + s[0] * 3 + s[n - 1]) & 63)


# Compute the bits of a name. Objects of ECS are never scalars, so names below them do not conflict.
cdef void _set_bits(CachedName *cached, PyObject *key) noexcept nogil:
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef bint first = True
    cached.own_bit = cached.parent_bits = 0
    if not PyUnicode_IS_COMPACT_ASCII(key):
        cached.own_bit = ~<uint64_t> 0              # could be any
        if cached.what == NAME_DOTTED:
            cached.parent_bits = ~<uint64_t> 0
        return
    cdef const uint8_t *s = <const uint8_t *> PyUnicode_DATA(key)
    cached.own_bit = _name_bit(s, n)
    if cached.what == NAME_PLAIN:
        return
    cdef const uint8_t *dot = <const uint8_t *> memchr(s, c'.', n)
    while dot != NULL:
        if dot == s or not (first and _is_object(lc_what(s, <size_t> (dot - s)))):
            cached.parent_bits |= _name_bit(s, <size_t> (dot - s))
        first = False
        dot = <const uint8_t *> memchr(dot + 1, c'.', <size_t> (s + n - dot - 1))


# Return whether one name is a prefix of another up to a dot, or there are too many names to compare.
# `standard`: NULL, or the names to skip.
cdef bint _has_name_conflict(Encoder e, Document *doc, PyObject *d, Py_ssize_t at,
                             PyObject *standard) noexcept nogil:
    cdef const char *names[MAX_COMPARED_NAMES]
    cdef size_t sizes[MAX_COMPARED_NAMES]
    cdef uint64_t own[MAX_COMPARED_NAMES]
    cdef uint64_t above[MAX_COMPARED_NAMES]
    cdef uint64_t there = 0
    cdef CachedName *cached
    cdef PyObject *k
    cdef PyObject *v
    cdef uint32_t count = 0, i, j
    while PyDict_Next(d, &at, &k, &v):
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        k = _place(e, doc, k)
        if count == MAX_COMPARED_NAMES or not PyUnicode_IS_COMPACT_ASCII(k):
            return True
        names[count] = <const char *> PyUnicode_DATA(k)
        sizes[count] = <size_t> PyUnicode_GET_LENGTH(k)
        cached = _place_of(e.cache, k)
        if cached.key == k and not doc.seen & SEEN_MAPPING:
            own[count] = cached.own_bit
            above[count] = cached.parent_bits
        else:                                # not known, or an object of ECS may be there, too
            own[count] = above[count] = ~<uint64_t> 0
        there |= above[count]
        count += 1
    for i in range(count):
        for j in range(count if own[i] & there else 0):
            if (own[i] & above[j] and sizes[i] < sizes[j] and names[j][sizes[i]] == c'.'
                    and memcmp(names[i], names[j], sizes[i]) == 0):
                return True
    return False


# Return whether the fields need _rearrange, now that all have been seen.
cdef inline bint _must_rearrange(Encoder e, Document *doc, bint moves, PyObject *d, Py_ssize_t at,
                            PyObject *standard) noexcept nogil:
    if moves and doc.seen & SEEN_LABELS:
        return True
    if doc.name_bits & doc.parent_bits or doc.seen & SEEN_BELOW and doc.seen & SEEN_MAPPING:
        return _has_name_conflict(e, doc, d, at, standard)
    return False


# Return the bits of our keys that the application's fields replace; set *rearrange if they need _rearrange.
# `standard`: NULL, or the names to skip.
cdef uint32_t _scan_fields(Encoder e, Document *doc, PyObject *d, Py_ssize_t at, PyObject *standard,
                     bint *rearrange) noexcept:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t start = at
    cdef uint32_t bits = 0
    cdef int place
    cdef CachedName uncached
    cdef CachedName *cached
    rearrange[0] = False
    doc.seen = 0
    doc.name_bits = doc.parent_bits = 0
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k) or _has_surrogate(k):
            rearrange[0] = True
            return bits
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        if doc.places:
            k = _judge_place(e, doc, d, start, k, v)
            if k == NULL:
                rearrange[0] = True
                return bits
        cached = e.find_name(k, &uncached)
        if cached.redacted:
            v = <PyObject *> REDACTED_TEXT
        if cached.what < KEYS:
            bits |= <uint32_t> 1 << cached.what
        if e.checks_names and not doc.rearranged:
            place = e.placement(doc, cached, v, True)
            if place == REARRANGE:
                rearrange[0] = True
                return bits
            if place == MOVE:
                doc.seen |= SEEN_MOVING
        if not _is_inert(v):
            doc.seen |= SEEN_MAPPING
    if e.checks_names and not doc.rearranged:
        rearrange[0] = _must_rearrange(e, doc, doc.seen & SEEN_MOVING != 0, d, start, standard)
    return bits
