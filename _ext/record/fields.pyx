# Fields at the top of a document.
#
# Every field of a JSON object begins with a comma; in the end the opening brace overwrites the first one.

cdef inline void _end_pair(Document *doc) noexcept nogil:
    lc_put32(doc.base + doc.value_start - 4, <uint32_t> (<size_t> (doc.p - doc.base) - doc.value_start))


# Write one of our keys and, for a `text` in an object, the opening quote. LC_SLACK bytes must be reserved.
cdef inline void _open_field(Document *doc, int key, bint text) noexcept nogil:
    cdef const lc_key *k = &lc_inner_keys[key] if doc.in_error else &lc_keys[key]
    if doc.pair_block:
        lc_put32(doc.p, k.n)
        memcpy(doc.p + 4, k.text + 2, k.n)
        doc.p += k.n + 8
        doc.value_start = <size_t> (doc.p - doc.base)
        doc.pairs += 1
    else:
        memcpy(doc.p, k.text, LC_SLACK)        # a constant size compiles to two registers
        doc.starts[key] = <uint32_t> (doc.p - doc.base) + k.n + 4
        doc.p += k.n + 4 + text


# End a field. _write_chars and _write_int leave room for this.
cdef inline int _close_field(Document *doc, bint text) noexcept nogil:
    if doc.pair_block:
        _end_pair(doc)
    elif text:
        doc.p[0] = c'"'
        doc.p += 1
    return 0


cdef int _write_plain_field(Document *doc, int key, PyObject *v) noexcept nogil:
    # Write a str or an int; return 0, -1 or NEEDS_PYTHON.
    cdef int overflow = 0
    cdef long long number = 0
    if v == NULL or v == Py_None or doc.overridden >> key & 1:
        return 0
    cdef bint text = PyUnicode_CheckExact(v)
    if not text:
        if not PyLong_CheckExact(v):
            return NEEDS_PYTHON
        number = _int_value(v, &overflow)
        if overflow:
            return NEEDS_PYTHON
    if _reserve(doc, 3 * LC_SLACK) < 0:
        return -1
    _open_field(doc, key, text)
    if not text:
        doc.p = lc_int(doc.p, number)
    elif _write_chars(doc, v) < 0:
        return -1
    return _close_field(doc, text)


cdef int _write_any_field(Document *doc, int key, PyObject *v) except -2:
    # Write a field of ours, of whatever type; the caller holds a reference to `v`.
    cdef int status = _write_plain_field(doc, key, v)
    if status != NEEDS_PYTHON:
        return status
    if _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    _open_field(doc, key, False)
    status = _write_field_value(doc, v)
    return status if status < 0 else _close_field(doc, False)


cdef int _write_message_chars(Document *doc, PyObject *s) noexcept nogil:
    # Write the message, or as much of it as the mode asks for.
    cdef Py_ssize_t i
    cdef size_t size, room = doc.message_room
    cdef uint32_t c
    cdef int bad = 0
    if doc.mode == WHOLE:
        return _write_chars(doc, s)
    if _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    if lc_ready(s) < 0:
        doc.reason = <uint8_t> R_UNENCODABLE
        return -1
    if doc.mode == MEASURE:
        return 0
    for i in range(PyUnicode_GET_LENGTH(s)):
        if _reserve(doc, 3 * LC_SLACK) < 0:
            return -1
        c = PyUnicode_READ(PyUnicode_KIND(s), PyUnicode_DATA(s), i)
        size = <size_t> (lc_characters(doc.p, &c, 4, 1, not doc.unquoted, &bad) - doc.p)
        if size > room:
            break
        room -= size
        doc.p += size
    if bad:
        doc.sanitized += 1
    return 0


cdef int _write_time(Document *doc) noexcept nogil:
    if _reserve(doc, 4 * LC_SLACK) < 0:
        return -1
    _open_field(doc, KEY_TIMESTAMP, True)
    doc.p = lc_time(doc.p, doc.created_us, doc.thread)
    return _close_field(doc, True)


# Return whether a value is a time of RFC 3339 as most are: in UTC, of a day that every month has.
cdef inline bint _is_plain_time(PyObject *given) noexcept nogil:
    return (PyUnicode_CheckExact(given) and PyUnicode_IS_COMPACT_ASCII(given)
            and lc_is_plain_time(<const uint8_t *> PyUnicode_DATA(given),
                                 <size_t> PyUnicode_GET_LENGTH(given)))


cdef int _write_timestamp(Document *doc, dict source) except -2:
    """Give a mapping the time of now, unless it has a field of that name or below it; run no Python code."""
    cdef str name
    if doc.stamped:
        return 0
    if doc.rearranged or doc.parent_bits & _name_bit(<const uint8_t *> b"@timestamp", 10):
        for name in source:
            if name.startswith("@timestamp."):
                return 0
    if doc.created_us == 0:
        doc.created_us = lc_wall_us()
    return _write_time(doc)


cdef int _mark_truncated(Document *doc) noexcept nogil:
    # Add the flag with which Filebeat marks a line that it cut.
    if doc.mode == WHOLE:
        return 0
    if _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    _open_field(doc, KEY_FLAGS, False)
    if _append(doc, b'["truncated"]', 13) < 0:
        return -1
    return _close_field(doc, False)


# Write the key of a field of the application; one that moves goes below `labels`. Returns 1 if it is no valid
# string.
cdef int _write_key(Document *doc, PyObject *key, bint moves) noexcept nogil:
    cdef uint32_t sanitized = doc.sanitized
    if _append(doc, b',"xx', 4 if doc.pair_block else 2) < 0:
        return -1
    doc.value_start = <size_t> (doc.p - doc.base)
    # Only names of ECS objects move: short, with nothing to escape.
    if moves and _append(doc, b"labels.", 7) < 0 or _write_chars(doc, key) < 0:
        return -1
    if doc.sanitized != sanitized:
        return 1
    if doc.nested or doc.rules != NULL:
        doc.names += <size_t> (doc.p - doc.base) - doc.value_start + BRACES
    if not doc.pair_block:
        return _append(doc, b'":', 2)
    _end_pair(doc)
    doc.p += 4
    doc.value_start = <size_t> (doc.p - doc.base)
    doc.pairs += 1
    return 0


# Why fields cannot be written as they are. NEEDS_PYTHON: see `_write_plain_field`.
cdef enum:
    NEEDS_REARRANGING = 1    # _clean_dict or _rearrange
    NEEDS_NESTING = 2        # their objects cannot be written at once
    NEEDS_TIME = 3           # their @timestamp has to be corrected


# Write the application's fields: those of a mapping, or of a record's __dict__ from `at` on.
# `standard`: NULL, or the names to skip. Returns a status of `NEEDS_...` where they cannot be written so.
cdef int _write_user_fields(Encoder e, Document *doc, PyObject *d, Py_ssize_t at, PyObject *standard,
                            bint record) except -2:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t start = at
    cdef uint32_t moved = doc.moved
    # _scan_fields has checked those of a record, and has seen whether any moves.
    cdef bint checks = e.checks_names and not doc.rearranged and (not record or doc.seen & SEEN_MOVING)
    cdef bint moves
    cdef CachedName *cached
    # Names with lower traits are written from the cache, unchecked.
    cdef bint cut = doc.pair_block or doc.mode != WHOLE
    cdef uint8_t stops = 0 if cut else SEEN_CHECK_VALUE if checks else SEEN_UNKNOWN_TEXT
    cdef uint8_t seen = 0
    cdef uint64_t names = 0, above = 0
    cdef CachedName uncached
    cdef int place, status
    cdef Objects objects
    cdef uint8_t *p
    cdef size_t n
    cdef Py_ssize_t count = 0
    cdef const lc_entry *entries = NULL
    objects.n = objects.open = 0
    objects.bits = 0
    if doc.no_python and e.reads_entries:        # nothing changes the dict
        entries = lc_entries(d, &count)
    while lc_next(d, entries, count, &at, &k, &v):
        cached = _place_of(e.cache, k)
        if cached.key != k and not PyUnicode_CheckExact(k):
            return NEEDS_REARRANGING
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        if doc.places:
            k = _place(e, doc, k) if record else _judge_place(e, doc, d, start, k, v)
            if k == NULL:
                return NEEDS_REARRANGING
            cached = _place_of(e.cache, k)
        if cached.key != k:
            cached = e.learn_name(k, cached, &uncached)
        if cached.redacted:
            v = <PyObject *> REDACTED_TEXT
        if cached.what == KEY_TIMESTAMP:
            if doc.judges_time and not _is_plain_time(v):
                return NEEDS_TIME
            doc.stamped = True
        if cached.traits < stops:
            # Room for the name, its braces, and a number or a string of one segment.
            n = <size_t> -1
            if PyUnicode_CheckExact(v) and PyUnicode_IS_COMPACT_ASCII(v):
                n = <size_t> PyUnicode_GET_LENGTH(v)
            if _reserve(doc, 6 * LC_SLACK + (LC_WORST * n if n <= SEGMENT else 0)
                        + (0 if cached.size else 4 * <size_t> PyUnicode_GET_LENGTH(k))) < 0:
                return -1
            p = doc.p
            if cached.size and not (doc.direct and (cached.objects_around or objects.n)):
                memcpy(p, cached.text, 32)
                p += cached.size
            elif doc.direct:
                p = _open_objects(&objects, doc, cached, k, names, d, start, at)
                if p == NULL:
                    if cached.objects_around != IN_EVENT:
                        return NEEDS_NESTING
                    doc.event_waits = True
                    objects.bits |= cached.head_bit
                    seen |= cached.traits
                    names |= cached.own_bit
                    above |= cached.parent_bits
                    continue
            else:
                p = _put_name(p, <const uint8_t *> PyUnicode_DATA(k), <size_t> PyUnicode_GET_LENGTH(k), False)
            doc.names += <size_t> PyUnicode_GET_LENGTH(k) + BRACES
            seen |= cached.traits
            names |= cached.own_bit
            above |= cached.parent_bits
            if n <= SEGMENT:
                doc.p = lc_put_string(p, b'"', v)
            elif PyLong_CheckExact(v) and lc_compact(v):
                doc.p = lc_int(p, lc_compact_value(v))
            else:
                doc.p = p
                if not _is_inert(v):
                    doc.seen |= SEEN_MAPPING
                status = _write_field_value(doc, v)
                if status < 0 or _reserve(doc, LC_SLACK) < 0:
                    return status if status < 0 else -1
            continue
        moves = False
        if checks:
            place = e.placement(doc, cached, v, record)
            if place == REARRANGE and not record:
                return NEEDS_REARRANGING
            moves = place == MOVE
            doc.moved += moves
        if doc.direct:
            if moves or _makes_objects(cached.what) or objects.bits & cached.own_bit:
                return NEEDS_NESTING
            names |= cached.own_bit
            if _reserve(doc, LC_SLACK) < 0:
                return -1
            doc.p = _close_objects(&objects, doc.p, 0)
        status = _write_key(doc, k, moves)
        if status:
            return status
        if checks and not _is_inert(v):
            doc.seen |= SEEN_MAPPING
        if doc.mode != WHOLE and PyUnicode_Check(v) and cached.what == KEY_MESSAGE:
            if not doc.pair_block:
                doc.p[0] = c'"'
                doc.p += 1
            if _write_message_chars(doc, v) < 0:
                return -1
            _close_field(doc, True)
            continue
        status = _write_field_value(doc, v)
        if status < 0:
            return status
        if doc.pair_block:
            _end_pair(doc)
    if objects.open:
        if _reserve(doc, LC_SLACK) < 0:
            return -1
        doc.p = _close_objects(&objects, doc.p, 0)
    doc.seen |= seen
    doc.dotted_heads = objects.bits
    doc.name_bits |= names
    doc.parent_bits |= above
    return checks and not record and _must_rearrange(e, doc, doc.moved != moved, d, start, NULL)


# Write the object `event` of names such as `event.action`, after all other fields. `d`, `at`, `standard`: as
# for `_write_user_fields`.
cdef int _write_event_fields(Encoder e, Document *doc, PyObject *d, Py_ssize_t at,
                             PyObject *standard) except -2:
    cdef PyObject *k
    cdef PyObject *v
    cdef CachedName *cached
    cdef CachedName uncached
    cdef int status
    cdef size_t n, start
    if _append(doc, b',"event":', 9) < 0:
        return -1
    start = <size_t> (doc.p - doc.base)
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k) or standard != NULL and lc_find(standard, k) != NULL:
            continue
        k = _place(e, doc, k)
        cached = e.find_name(k, &uncached)
        if cached.traits >= SEEN_CHECK_VALUE or cached.objects_around != IN_EVENT:
            continue
        n = <size_t> PyUnicode_GET_LENGTH(k)
        if _reserve(doc, n + LC_SLACK) < 0:
            return -1
        doc.p = _put_name(doc.p, <const uint8_t *> PyUnicode_DATA(k) + 6, n - 6, False)
        status = _write_field_value(doc, <PyObject *> REDACTED_TEXT if cached.redacted else v)
        if status < 0:
            return status
    doc.base[start] = c'{'
    if doc.id_inside:
        doc.flags |= <uint8_t> K_EVENT_OPEN
    return _append(doc, b'}', 1)


cdef int _finish_document(Document *doc) noexcept:
    # Write the braces or the count, and check the size.
    if doc.pair_block:
        lc_put32(doc.base, doc.pairs)
    else:
        if _reserve(doc, LC_SLACK) < 0:
            return -1
        if doc.p == doc.base:
            doc.p += 1
        doc.base[0] = c'{'
        doc.p[0] = c'}'
        doc.p += 1
        if doc.dotted_from >= 0 or doc.rules != NULL:
            if _arrange(doc) < 0:
                return -1
        elif doc.id_inside and not doc.flags & K_EVENT_OPEN:
            doc.flags |= <uint8_t> K_NESTED
    if <size_t> (doc.p - doc.base) > doc.limit:
        doc.reason = <uint8_t> R_TOO_LARGE
        return -1
    return 0
