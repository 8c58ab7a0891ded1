# Fields that many documents have: those of the client, those that the program has bound to its context, and
# those of the active span. They are encoded once, and copied into each document as bytes; then the ids of the
# span are put in their places. A document with a field of the same name, or with one that conflicts, is made
# from Python objects instead: its own fields win.

cdef frozenset NOT_SPLICED = frozenset((*RECORD_NAMES, "log.flags"))
cdef frozenset SHARED_OBJECTS = frozenset(("ecs", "error", "event", "log", "process"))
# Those that records write.
cdef frozenset FILLED_OBJECTS = SHARED_OBJECTS - {"event"}
# Stand for the ids of a trace and a span while a splice is made, where these are wanted; no field has them.
cdef str ANY_TRACE = os.urandom(TRACE_DIGITS // 2).hex()
cdef str ANY_SPAN = os.urandom((IDS - TRACE_DIGITS) // 2).hex()


@cython.final
cdef class Splice:
    """Fields as the bytes of a document."""

    cdef dict fields         # by name, for documents that need them one by one
    cdef tuple names         # as given, and as written
    cdef bytes text          # ,"name":value for each; in a pair block the pairs
    cdef uint32_t pairs
    cdef uint32_t sanitized
    cdef uint32_t moved
    cdef uint8_t seen        # SEEN_...
    cdef bint wide           # some names are not ASCII
    cdef bint has_labels
    cdef uint64_t name_bits
    cdef uint64_t parent_bits
    cdef uint64_t head_bits  # of all that is before a dot in a name
    cdef Py_ssize_t trace_at  # where the ids belong in `text`, or -1
    cdef Py_ssize_t span_at
    # With objects in place of names with dots:
    cdef bytes objects       # None: a record has fields of its own in these objects
    cdef bytes event         # ... the object `event`, the last one of a document
    cdef Py_ssize_t objects_trace_at
    cdef Py_ssize_t objects_span_at

    cdef dict fields_of(self, Document *doc):
        """Return the fields with the ids of a document."""
        if self.trace_at < 0:
            return self.fields
        return {**self.fields, "trace.id": PyUnicode_DecodeUTF8(doc.ids, TRACE_DIGITS, NULL),
                "span.id": PyUnicode_DecodeUTF8(doc.ids + TRACE_DIGITS, IDS - TRACE_DIGITS, NULL)}


@cython.final
cdef class Shared:
    """Fields that many documents have, and what an encoder has made of them.

    The dictionaries are caches: another thread that adds an entry at the same time adds an equal one.
    """

    cdef dict fields
    cdef Splice plain        # None: there are no fields
    cdef dict with_ids       # fields about the service -> Splice with the ids of a span
    cdef dict without_ids    # ... -> Splice
    cdef dict spans          # id of a context of OpenTelemetry -> SpanFound


@cython.final
cdef class SpanFound:
    """What was found in a context of OpenTelemetry."""

    cdef object context      # a weak reference, as a context may hold a whole request
    cdef Splice splice       # None: no fields
    cdef char ids[IDS]


cdef int _add_spliceable(Encoder e, Document *doc, dict made, str name, object value, int depth) except -1:
    """Add a field under a name that is free in every record: others are set for each event anew."""
    cdef str head = name.partition(".")[0]
    cdef dict found = None
    if head in SHARED_OBJECTS and _is_mapping(value) and depth < MAX_MERGE_LEVELS:
        found = _clean_dict(doc, value, None)
    if found is not None:
        for key, deep in found.items():
            _add_spliceable(e, doc, made, f"{name}.{key}", deep, depth + 1)
        return 0
    if (name in NOT_SPLICED or name in e.carriers or head in ("@metadata", "@timestamp")
            or f"{name}.".startswith("event.id.")):
        name = e.labels + name.replace(".", "_").lstrip("@")
    made[name] = value
    return 0


cdef bint _can_encode(Encoder e, object name, object value) except -1:
    cdef uint8_t stack[STACK]
    cdef Document doc
    cdef dict alone = {name: value}
    doc.heap = NULL
    try:
        e.begin(&doc, stack)
        doc.nested = False
        doc.rearranged = True
        return _write_user_fields(e, &doc, <PyObject *> alone, 0, NULL, False) == 0
    except Exception:
        return False
    finally:
        free(doc.heap)


cdef Splice _make_splice(Encoder e, dict fields):
    # Encode fields; a value without an encoding becomes null, and is counted in each document.
    cdef uint8_t stack[STACK]
    cdef Document doc
    cdef Splice made = Splice.__new__(Splice)
    cdef CachedName *cached
    cdef CachedName uncached
    cdef size_t start
    cdef int status
    cdef uint32_t lost = 0
    e.begin(&doc, stack)
    made.fields = {}
    cdef dict written = _clean_dict(&doc, fields, None)
    if doc.redacted != NULL:
        written = _without_secrets(&doc, written, 0)
    for name, value in written.items():
        _add_spliceable(e, &doc, made.fields, name, value, 0)
    for name, value in list(made.fields.items()):
        if not _is_inert(<PyObject *> value) and not _can_encode(e, name, value):
            made.fields[name] = None
            lost += 1
    try:
        e.begin(&doc, stack)
        doc.nested = False
        start = <size_t> (doc.p - doc.base)
        written = _rearrange(e, &doc, made.fields.copy(), True)
        status = _write_user_fields(e, &doc, <PyObject *> written, 0, NULL, False)
        if status != 0:
            raise _error(doc.reason, fields, e.max_event_bytes)
        made.text = PyBytes_FromStringAndSize(<char *> doc.base + start, doc.p - doc.base - start)
        made.pairs = doc.pairs
        made.sanitized = doc.sanitized + lost
        made.moved = doc.moved
    finally:
        free(doc.heap)
    made.trace_at = made.text.find(ANY_TRACE.encode())
    made.span_at = made.text.find(ANY_SPAN.encode())
    if e.nested and not any([name.partition(".")[0] in FILLED_OBJECTS for name in written]):
        _nest_splice(made)
    made.names = tuple({**made.fields, **written})
    for name in made.names:
        made.wide |= not name.isascii()
        made.has_labels |= name == "labels" or name.startswith(e.labels)
        cached = e.find_name(<PyObject *> name, &uncached)
        made.name_bits |= cached.own_bit
        made.parent_bits |= cached.parent_bits
        made.head_bits |= _head_bits(<PyObject *> name)
    for name, value in written.items():
        if "." in name:
            made.seen |= SEEN_BELOW
        if not _is_inert(<PyObject *> value):
            made.seen |= SEEN_MAPPING
    return made


cdef int _nest_splice(Splice s) except -1:
    cdef uint8_t stack[STACK]
    cdef Document doc
    cdef Py_ssize_t at
    cdef bytes made
    try:
        memset(&doc, 0, sizeof(Document))
        doc.limit = <size_t> -1
        doc.nested = True
        _start_document(&doc, stack, WHOLE, 0)
        doc.dotted_from = 0
        if (_append(&doc, PyBytes_AS_STRING(s.text), <size_t> PyBytes_GET_SIZE(s.text)) < 0
                or _finish_document(&doc) < 0):
            raise MemoryError()
        made = PyBytes_FromStringAndSize(<char *> doc.base + 1, doc.p - doc.base - 2)
        at = doc.event_at
    finally:
        free(doc.heap)
    made = b"," + made if made else made
    s.objects = made if at < 0 else made[:at]
    s.event = None if at < 0 else made[at:]
    s.objects_trace_at = s.objects.find(ANY_TRACE.encode())
    s.objects_span_at = s.objects.find(ANY_SPAN.encode())
    return 0


# Return from where on the members of a document have to be arranged: from `at`, or nowhere (-1).
cdef inline Py_ssize_t _dotted_from(Document *doc, Splice splice, Py_ssize_t at) noexcept:
    if doc.nested and (doc.moved or doc.seen & (SEEN_DOTS | SEEN_MOVING)
                       or splice is not None and splice.objects is None):
        return at
    return -1


cdef uint64_t _head_bits(PyObject *name) noexcept nogil:
    cdef const uint8_t *s
    cdef size_t i
    cdef uint64_t bits = 0
    if PyUnicode_IS_COMPACT_ASCII(name):
        s = <const uint8_t *> PyUnicode_DATA(name)
        for i in range(<size_t> PyUnicode_GET_LENGTH(name)):
            if s[i] == c'.':
                bits |= _name_bit(s, i)
    return bits


# Return whether a field of the application has the name of a spliced one, or one name is the prefix of the
# other up to a dot. `standard`: NULL, or the names to skip.
cdef bint _meets_splice(Encoder e, Document *doc, Splice s, PyObject *d, Py_ssize_t at,
                        PyObject *standard) noexcept nogil:
    cdef PyObject *names = <PyObject *> s.names
    cdef uint64_t bits = s.name_bits | s.head_bits
    cdef PyObject *k
    cdef PyObject *v
    cdef const char *one
    cdef const char *two
    cdef Py_ssize_t i, n, m
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k) or not PyUnicode_IS_COMPACT_ASCII(k):
            return True
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        k = _place(e, doc, k)
        one = <const char *> PyUnicode_DATA(k)
        n = PyUnicode_GET_LENGTH(k)
        if not bits & _name_bit(<const uint8_t *> one, <size_t> n) and memchr(one, c'.', <size_t> n) == NULL:
            continue
        for i in range(PyTuple_GET_SIZE(names)):
            two = <const char *> PyUnicode_DATA(PyTuple_GET_ITEM(names, i))
            m = PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(names, i))
            if memcmp(one, two, <size_t> min(n, m)) == 0 and (
                    n == m or (one[m] == c'.' if n > m else two[n] == c'.')):
                return True
    return False


# Return whether fields that stay where they are conflict with spliced ones. They have been seen: `doc` has
# the bits of their names.
cdef bint _conflicts_with_splice(Encoder e, Document *doc, Splice s, PyObject *d, Py_ssize_t at,
                                 PyObject *standard) noexcept nogil:
    cdef uint8_t seen = doc.seen | s.seen
    if s.wide or s.has_labels and (doc.moved or doc.seen & SEEN_MOVING):
        return True
    if (not e.ecs or doc.name_bits & (s.name_bits | s.parent_bits) or doc.parent_bits & s.name_bits
            or seen & SEEN_BELOW and seen & SEEN_MAPPING):
        return _meets_splice(e, doc, s, d, at, standard)
    return False


cdef Shared _make_shared(Encoder e, dict fields):
    cdef Shared made = Shared.__new__(Shared)
    made.fields = fields
    made.plain = _make_splice(e, fields) if fields else None
    made.with_ids = {}
    made.without_ids = {}
    made.spans = {}
    return made


cdef Splice _make_span_splice(Encoder e, Shared shared, object service, bint ids):
    # Encode the fields of a span with those that all documents have. `service`: a tuple of (name, value), or
    # the name of the service. The client's and bound fields win over it, and the span's ids over these.
    cdef dict found = shared.with_ids if ids else shared.without_ids
    cdef dict fields = {}
    if service and "service" not in shared.fields:
        fields = dict(service) if type(service) is tuple else {"service.name": service}
    fields.update(shared.fields)
    if ids:
        fields["trace.id"] = ANY_TRACE
        fields["span.id"] = ANY_SPAN
    cdef Splice made = _make_splice(e, fields) if fields else None
    if len(found) >= MAX_SPLICES:
        found.clear()
    found[service] = made
    return made


cdef inline bint _copy_id(char *to, PyObject *v, Py_ssize_t n) noexcept nogil:
    # Copy an id of n digits; return whether it is one.
    cdef Py_ssize_t i
    if (v == NULL or not PyUnicode_CheckExact(v) or not PyUnicode_IS_COMPACT_ASCII(v)
            or PyUnicode_GET_LENGTH(v) != n):
        return False
    memcpy(to, PyUnicode_DATA(v), <size_t> n)
    for i in range(n):
        if not (c'0' <= to[i] <= c'9' or c'a' <= to[i] <= c'f'):
            return False
    return True


cdef int _write_splice(Document *doc, Splice s) except -2:
    cdef bint objects = doc.nested and doc.dotted_from < 0
    cdef bytes text = s.objects if objects else s.text
    cdef Py_ssize_t trace_at = s.objects_trace_at if objects else s.trace_at
    cdef Py_ssize_t span_at = s.objects_span_at if objects else s.span_at
    cdef size_t n = <size_t> PyBytes_GET_SIZE(text)
    if _append(doc, PyBytes_AS_STRING(text), n) < 0:
        return -1
    if doc.rules != NULL or doc.nested and not objects:
        doc.names += n
    if trace_at >= 0:
        memcpy(doc.p - n + trace_at, doc.ids, TRACE_DIGITS)
    if span_at >= 0:         # one may be null, where memory was out
        memcpy(doc.p - n + span_at, doc.ids + TRACE_DIGITS, IDS - TRACE_DIGITS)
    doc.pairs += s.pairs
    doc.sanitized += s.sanitized
    doc.moved += s.moved
    return 0


# End the document with the object `event` of a splice.
cdef int _write_event(Document *doc, Splice s) except -2:
    if not doc.nested or doc.dotted_from >= 0 or s.event is None:
        return 0
    if doc.id_inside:
        doc.flags |= <uint8_t> K_EVENT_OPEN
    return _append(doc, PyBytes_AS_STRING(s.event), <size_t> PyBytes_GET_SIZE(s.event))
