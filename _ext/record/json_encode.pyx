# The buffer that a document is written to, and JSON values.

cdef enum:
    STACK = 8192             # bytes of the first buffer (`lc_place`); longer documents move to the heap
    SEGMENT = 1024           # characters for which space is reserved at once
    MAX_DEPTH = 128
    MAX_CLASSES = 4          # levels down to which dataclasses are mappings
    TRACE_DIGITS = 32        # of the id of a trace
    IDS = 48                 # digits of the ids of a trace and of a span


# How much of the message is written.
cdef enum:
    WHOLE = 0
    MEASURE = 1              # nothing, to measure the rest of the document
    CUT = 2                  # as much as fits into `message_room`


# A value that is being written, and those that it is inside of.
ctypedef struct Outer:
    PyObject *value
    Outer *next


# A document being written.
#
# Functions that write return 0; -1 if the event fails (`reason` is set, no Python exception is); or -2 with a
# Python exception set that must reach the caller (KeyboardInterrupt).
ctypedef struct Document:
    uint8_t *p               # where the next byte goes
    uint8_t *end
    uint8_t *base
    uint8_t *heap            # NULL while `base` is on the stack
    size_t message_room      # bytes for the message, in mode CUT
    size_t value_start       # offset of the value of the current pair
    uint32_t sanitized       # values that were replaced
    uint32_t overridden      # 1 << KEY_...: the application's value replaces ours
    uint32_t pairs           # pairs written
    uint32_t moved           # fields of the application that were renamed or dropped
    uint8_t flags            # K_ID1_TAKEN | K_ID2_TAKEN | K_METADATA_OPEN | K_NESTED | K_EVENT_OPEN
    uint8_t reason           # R_...
    uint8_t mode             # WHOLE, MEASURE or CUT
    uint8_t seen             # SEEN_...
    uint64_t name_bits       # union of CachedName.own_bit
    uint64_t parent_bits     # union of CachedName.parent_bits
    size_t names             # bytes of names, by which _arrange may make the document shorter
    size_t own_end           # behind the fields of ours of a record
    uint32_t[KEYS] starts    # offsets of their values
    uint64_t dotted_heads    # those of the names that were written as objects, of their first parts
    bint rearranged          # the fields are checked already
    uint8_t places           # PLACES...: their names are not yet those that options give them; or 0
    bint unquoted            # write strings unescaped: at the top of a pair block
    Py_ssize_t dotted_from   # offset of members that have still to be arranged so, or -1: _arrange
    bint direct              # ... and are written at once, unless two names share one
    bint event_waits         # ... but for the object `event`
    bint in_error            # inside the object `error`
    Py_ssize_t event_at      # offset of the object `event`, or -1; set by _arrange
    uint8_t copies           # of the message, if it is there more than once; set by _arrange
    bint stamped             # one of the fields is @timestamp
    bint judges_time         # NEEDS_TIME where it is not plain
    bint no_python           # fail, for no reason (R_NONE), where Python code would run
    Outer *outer             # what the next value is inside of, if cycles are looked for; or NULL
    # These stay when the document is begun again:
    size_t limit             # max_event_bytes
    bint pair_block          # a pair block, not a JSON object
    bint skip_own            # refuse records of our own loggers
    bint nested              # has objects in place of names with dots
    bint id_inside           # ... and `event` gets the id
    const Rules *rules       # those of a Form that is made of the document, or NULL
    PyObject *redacted       # the encoder's `entries`, or NULL
    lc_here *thread          # the thread's cache; records, and mappings that get a time
    int64_t created_us       # the time of a record, or that we gave a mapping; 0: none
    uint8_t level            # of a record, as the queue keeps it
    char ids[IDS]            # of the trace and of the span, for a splice that wants them


cdef inline void _start_document(Document *doc, uint8_t *stack, uint8_t mode,
                                 size_t message_room) noexcept nogil:
    lc_clear(doc, <size_t> (<uint8_t *> &doc.limit - <uint8_t *> doc))
    doc.p = doc.base = stack
    doc.end = stack + STACK
    doc.message_room = message_room
    doc.mode = mode
    doc.unquoted = doc.pair_block
    doc.dotted_from = -1
    if doc.pair_block:
        doc.p += 4


cdef int _grow(Document *doc, size_t more) noexcept nogil:
    cdef size_t used = <size_t> (doc.p - doc.base)
    cdef size_t want = 2 * <size_t> (doc.end - doc.base)
    cdef uint8_t *heap
    # _arrange may make the document shorter; our own names are less than a segment. _finish_document decides.
    if used > doc.limit and used - doc.limit > doc.names + SEGMENT:
        doc.reason = <uint8_t> R_TOO_LARGE
        return -1
    if want < used + more:
        want = used + more
    heap = <uint8_t *> realloc(doc.heap, want)
    if heap == NULL:
        doc.reason = <uint8_t> R_UNENCODABLE
        return -1
    if doc.heap == NULL:
        memcpy(heap, doc.base, used)
    doc.heap = doc.base = heap
    doc.p = heap + used
    doc.end = heap + want
    return 0


cdef inline int _reserve(Document *doc, size_t more) noexcept nogil:
    if <size_t> (doc.end - doc.p) < more:
        return _grow(doc, more)
    return 0


cdef inline int _append(Document *doc, const char *text, size_t n) noexcept nogil:
    if _reserve(doc, n + LC_SLACK) < 0:
        return -1
    memcpy(doc.p, text, n)
    doc.p += n
    return 0


# Strings and numbers.

cdef int _write_chars_wide(Document *doc, PyObject *s) noexcept nogil:
    # Write any string in segments: reserving the worst case at once takes six times its size.
    cdef size_t step, at = 0
    cdef int bad = 0
    if lc_ready(s) < 0:
        doc.reason = <uint8_t> R_UNENCODABLE
        return -1
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(s)
    cdef int kind = PyUnicode_KIND(s)
    cdef uint8_t *data = <uint8_t *> PyUnicode_DATA(s)
    if n > doc.limit:
        doc.reason = <uint8_t> R_TOO_LARGE
        return -1
    while at < n:
        step = min(n - at, <size_t> SEGMENT)
        if _reserve(doc, LC_WORST * step + 2 * LC_SLACK) < 0:
            return -1
        if kind == PyUnicode_1BYTE_KIND and not doc.unquoted:
            doc.p = lc_quote1(doc.p, data + at, step)
        else:
            doc.p = lc_characters(doc.p, data + at * kind, kind, step, not doc.unquoted, &bad)
        at += step
    if bad:
        doc.sanitized += 1
    return 0


# Reserve space for an ASCII string of one segment, quoted, and for what follows it. Return 1; 0: it is none;
# or -1.
cdef inline int _reserve_ascii(Document *doc, PyObject *s) noexcept nogil:
    if doc.unquoted or not PyUnicode_IS_COMPACT_ASCII(s) or PyUnicode_GET_LENGTH(s) > SEGMENT:
        return 0
    return 1 if _reserve(doc, LC_WORST * <size_t> PyUnicode_GET_LENGTH(s) + 2 * LC_SLACK) == 0 else -1


# Write the characters of a str without quotes; leave room for the closing quote.
cdef int _write_chars(Document *doc, PyObject *s) noexcept nogil:
    cdef int quick = _reserve_ascii(doc, s)
    if quick > 0:
        doc.p = lc_quote_short(doc.p, <uint8_t *> PyUnicode_DATA(s), <size_t> PyUnicode_GET_LENGTH(s))
        return 0
    if quick < 0 or _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    return _write_chars_wide(doc, s)


cdef int _write_string(Document *doc, PyObject *s) noexcept nogil:
    cdef int quick = _reserve_ascii(doc, s)
    if quick > 0:
        doc.p = lc_put_string(doc.p, b'"', s)
        return 0
    if quick < 0:
        return -1
    cdef bint quoted = not doc.unquoted
    if _append(doc, b'"', quoted) < 0 or _write_chars_wide(doc, s) < 0:
        return -1
    return _append(doc, b'"', quoted)


cdef inline long long _int_value(PyObject *v, int *overflow) noexcept nogil:
    # Return the value of an int or of an instance of a subclass.
    if lc_compact(v):
        return lc_compact_value(v)
    return PyLong_AsLongLongAndOverflow(v, overflow)


cdef int _write_int(Document *doc, PyObject *v) except -2:
    cdef int overflow = 0
    cdef long long value = _int_value(v, &overflow)
    if overflow == 0:
        if _reserve(doc, 24) < 0:
            return -1
        doc.p = lc_int(doc.p, value)
        return 0
    return _write_big_int(doc, v)


cdef int _write_big_int(Document *doc, PyObject *number) except -2:
    # Elasticsearch refuses a document with an integer beyond 64 bits; and a large one exceeds every double.
    cdef object v = <object> number      # a strong reference: a garbage collection may run here
    cdef str text
    if doc.no_python:
        return -1
    try:
        text = int.__repr__(v)
    except ValueError:       # longer than sys.get_int_max_str_digits()
        text = hex(v)
    doc.sanitized += 1
    return _write_string(doc, <PyObject *> text)


cdef int _write_float(Document *doc, double v) except -2:
    cdef uint8_t *p
    if _reserve(doc, 40) < 0:
        return -1
    p = lc_float(doc.p, v)
    if p != NULL:
        doc.p = p
        return 0
    if not isfinite(v):
        doc.sanitized += 1
        return _append(doc, b"null", 4)
    cdef char *text = PyOS_double_to_string(v, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    cdef int status = _append(doc, text, strlen(text))
    PyMem_Free(text)
    return status


# Values.

cdef inline bint _is_inert(PyObject *v) noexcept nogil:
    # Return whether encoding it runs no Python code, so that a borrowed reference stays valid.
    return (PyUnicode_CheckExact(v) or PyLong_CheckExact(v) or PyFloat_CheckExact(v) or v == Py_None
            or PyBool_Check(v))


cdef int _write_value(Document *doc, PyObject *v, int depth) except -2:
    if PyUnicode_CheckExact(v):
        return _write_string(doc, v)
    if PyLong_CheckExact(v):
        return _write_int(doc, v)
    if v == Py_None:
        return _append(doc, b"null", 4)
    if v == Py_True:
        return _append(doc, b"true", 4)
    if v == Py_False:
        return _append(doc, b"false", 5)
    if PyFloat_CheckExact(v):
        return _write_float(doc, PyFloat_AS_DOUBLE(v))
    if PyDict_CheckExact(v):
        return _write_dict(doc, v, depth)
    if PyList_CheckExact(v) or PyTuple_CheckExact(v):
        return _write_list(doc, v, depth)
    return _write_other(doc, <object> v, depth)


cdef inline int _write_held(Document *doc, PyObject *v, int depth) except -2:
    # Write a value of a container that may drop it while Python code runs.
    return _write_value(doc, v, depth) if _is_inert(v) else _write_object(doc, v, depth)


cdef int _write_object(Document *doc, PyObject *v, int depth) except -2:
    # If cycles are looked for, a value that is inside itself is a text.
    cdef object held = <object> v     # an argument that is cast is not held
    cdef Outer here
    cdef Outer *outer = doc.outer
    if outer == NULL:
        return _write_value(doc, <PyObject *> held, depth)
    here.value = v
    here.next = outer
    while outer != NULL:
        if outer.value == v:
            doc.sanitized += 1
            return _write_string(doc, <PyObject *> CYCLE)
        outer = outer.next
    doc.outer = &here
    cdef int status = _write_value(doc, <PyObject *> held, depth)
    doc.outer = here.next
    return status


cdef str CYCLE = "<cycle>"
cdef str TOO_DEEP = "<too deep>"


cdef inline int _write_field_value(Document *doc, PyObject *v) except -2:
    # Write the value of a field. If it has too many levels, it is written again: cycles are looked for then.
    return _write_value(doc, v, 1) if _is_inert(v) else _write_whole(doc, <object> v)


cdef int _write_whole(Document *doc, object v) except -2:
    cdef size_t start = <size_t> (doc.p - doc.base)
    cdef uint32_t sanitized = doc.sanitized
    cdef bint plain = doc.unquoted
    cdef Outer top
    cdef int status = _write_value(doc, <PyObject *> v, 1)
    if status != -1 or doc.reason != R_UNENCODABLE:
        return status
    top.value = NULL
    top.next = NULL
    doc.outer = &top
    for value in (v, TOO_DEEP):          # the same value in many places may have no end
        doc.p = doc.base + start
        doc.sanitized = sanitized
        doc.unquoted = plain
        doc.reason = <uint8_t> R_NONE
        status = _write_object(doc, <PyObject *> value, 1)
        if status != -1 or doc.reason == R_NONE:
            break
        sanitized += 1
    doc.outer = NULL
    return status


cdef int _write_too_deep(Document *doc) noexcept nogil:
    if doc.outer == NULL:
        doc.reason = <uint8_t> R_UNENCODABLE
        return -1
    doc.sanitized += 1
    return _write_string(doc, <PyObject *> TOO_DEEP)


cdef bint _all_inert(PyObject *d) noexcept nogil:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t at = 0
    while PyDict_Next(d, &at, &k, &v):
        if not _is_inert(v):
            return False
    return True


cdef int _write_dict(Document *doc, PyObject *d, int depth) except -2:
    cdef bint plain = doc.unquoted
    cdef uint32_t sanitized = doc.sanitized
    cdef int status
    cdef dict copy
    if depth >= MAX_DEPTH:
        return _write_too_deep(doc)
    doc.unquoted = False
    cdef size_t start = <size_t> (doc.p - doc.base)
    if LC_SHARED or not doc.no_python and not _all_inert(d):
        copy = PyDict_Copy(<object> d)
        d = <PyObject *> copy
    status = _write_items(doc, d, depth)
    if status == 1:
        if doc.no_python:
            return -1
        # A key is not a valid string. Replaced keys may be equal to others, so build a new dict first.
        doc.p = doc.base + start
        doc.sanitized = sanitized
        copy = _clean_dict(doc, <object> d, None)
        if copy is None:
            return -1
        status = _write_items(doc, <PyObject *> copy, depth)
    doc.unquoted = plain
    return status


# Write a dict; return 1 at a key that needs _clean_dict.
cdef int _write_items(Document *doc, PyObject *d, int depth) except -2:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t at = 0
    cdef size_t start = <size_t> (doc.p - doc.base)
    cdef uint32_t sanitized
    cdef int status
    if _append(doc, b"{", 1) < 0:
        return -1
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k):
            return 1
        sanitized = doc.sanitized
        if _write_string(doc, k) < 0 or _append(doc, b":", 1) < 0:
            return -1
        if doc.sanitized != sanitized:
            return 1
        if doc.redacted != NULL and _covers(doc.redacted, k):
            v = <PyObject *> REDACTED_TEXT
        status = _write_held(doc, v, depth + 1)
        if status < 0:
            return status
        if _append(doc, b",", 1) < 0:
            return -1
    if <size_t> (doc.p - doc.base) > start + 1:
        doc.p -= 1
    return _append(doc, b"}", 1)


cdef int _is_name_of_secret(Document *doc, PyObject *name) noexcept:
    # Return whether the first of two items is the name of a secret, the other one; -1: Python code would run.
    # One that cannot be asked may be.
    if PyUnicode_CheckExact(name):
        return _covers(doc.redacted, name)
    if _is_inert(name) or PyDict_CheckExact(name) or PyList_CheckExact(name) or PyTuple_CheckExact(name):
        return False
    if doc.no_python:
        return -1
    try:
        return _is_among(doc.redacted, <object> name)
    except Exception:
        return True


cdef int _write_list(Document *doc, PyObject *items, int depth) except -2:
    cdef bint plain = doc.unquoted
    cdef int hides
    cdef bint is_list = PyList_Check(items)
    cdef PyObject *v
    cdef object copy
    cdef Py_ssize_t i = 0
    cdef int status
    if depth >= MAX_DEPTH:
        return _write_too_deep(doc)
    if LC_SHARED and is_list:
        copy = tuple(<object> items)
        items = <PyObject *> copy
        is_list = False
    if _append(doc, b"[", 1) < 0:
        return -1
    doc.unquoted = False
    while i < (PyList_GET_SIZE(items) if is_list else PyTuple_GET_SIZE(items)):
        hides = 0
        if i == 1 and doc.redacted != NULL and len(<object> items) == 2:
            v = PyList_GET_ITEM(items, 0) if is_list else PyTuple_GET_ITEM(items, 0)
            hides = _is_name_of_secret(doc, v)
            if hides < 0:
                return -1
            if is_list and PyList_GET_SIZE(items) < 2:
                break                            # that ran code which has removed the value
        v = PyList_GET_ITEM(items, i) if is_list else PyTuple_GET_ITEM(items, i)
        if hides:
            v = <PyObject *> REDACTED_TEXT
        status = _write_held(doc, v, depth + 1)
        if status < 0:
            return status
        if _append(doc, b",", 1) < 0:
            return -1
        i += 1
    doc.unquoted = plain
    if i:
        doc.p -= 1
    return _append(doc, b"]", 1)


cdef int _write_other(Document *doc, object v, int depth) except -2:
    # Write subclasses of built-in types by value, containers as lists and dicts, what `_plain_value` knows,
    # and the rest as str().
    cdef object other
    if doc.no_python:
        return -1
    if isinstance(v, str):
        return _write_string(doc, <PyObject *> v)
    if isinstance(v, int):
        return _write_int(doc, <PyObject *> v)
    if isinstance(v, float):
        return _write_float(doc, PyFloat_AS_DOUBLE(<PyObject *> v))
    try:
        if isinstance(v, (list, tuple)):
            other = tuple(v)
            if doc.redacted != NULL and _has_names(v):
                other = tuple([REDACTED_TEXT if _is_among(doc.redacted, name) else item
                               for name, item in _parts(v)])
        elif isinstance(v, (set, frozenset)):
            other = list(v)
        elif _is_mapping(v):
            other = _dict_of(v)
        else:
            other = _plain_value(v, depth)
            if other is v:
                other = _text_of(doc, v)
            elif type(other) is not dict:
                depth += 1           # it may stand for another of its kind, and so on
    except Exception:
        other = _unprintable(doc, v)
    if depth > MAX_DEPTH:
        return _write_too_deep(doc)
    return _write_value(doc, <PyObject *> other, depth)


cdef object _plain_value(object v, int depth):
    """Return what an object of a known kind stands for, or the object itself.

    A member of an Enum stands for its value, a scalar of numpy for Python's, a timedelta for its seconds, and
    a dataclass for a mapping of its fields, except for those that its ``repr`` leaves out. Dataclasses that
    lie deeper than MAX_CLASSES levels are text, because they may refer to each other in a circle.
    """
    cdef object found
    if _is_instance(v, "enum", "Enum"):
        return v.value
    if depth <= MAX_CLASSES and hasattr(type(v), "__dataclass_fields__"):
        return {field.name: getattr(v, field.name) for field in sys.modules["dataclasses"].fields(v)
                if field.repr}
    if _is_instance(v, "numpy", "generic"):
        found = v.item()
        if v.dtype.str.endswith(("ns]", "ps]", "fs]", "as]")):   # of which it makes a number
            found = v.astype(v.dtype.kind + "8[us]").item()
        if _is_instance(found, "datetime", "datetime"):
            return found.replace(tzinfo=sys.modules["datetime"].timezone.utc)
        return v if isinstance(found, (bytes, complex)) or type(found) is type(v) else found
    if _is_instance(v, "datetime", "timedelta"):
        return v.total_seconds()
    return v


cdef bint _is_instance(object v, str module, str name) except -1:
    # A module that is not imported has no instances.
    cdef object kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(v, kind)


# The types whose str() loses nothing.
cdef tuple PROPER = (("uuid", "UUID"), ("decimal", "Decimal"), ("pathlib", "PurePath"))


cdef str _text_of(Document *doc, object v):
    cdef str text
    if isinstance(v, (bytes, bytearray, memoryview)):
        doc.sanitized += 1
        return str(bytes(v), "utf-8", "replace")
    module = sys.modules.get("datetime")
    if module is not None and isinstance(v, (module.date, module.time)):
        # ISO 8601 with a T: Elasticsearch detects it as a date.
        return _exact_str((_zoned(v, module) if isinstance(v, module.datetime) else v).isoformat())
    if any([_is_instance(v, module, name) for module, name in PROPER]):
        return _exact_str(str(v))
    text = _exact_str(str(_shown(doc, v)))
    doc.sanitized += 1
    return text


cdef object _zoned(object v, module):
    # A datetime without a zone is local, and RFC 3339 has no offsets with seconds.
    try:
        v = module.datetime.astimezone(v) if v.utcoffset() is None else v    # that of pandas raises
        return v.astimezone(module.timezone.utc) if v.utcoffset() % module.timedelta(minutes=1) else v
    except (OverflowError, ValueError, OSError):     # in the first or the last year
        return v.replace(tzinfo=module.timezone.utc)


cdef inline str _exact_str(object text):
    return text if type(text) is str else PyUnicode_FromObject(text)


cdef int _note_recursion() except -1:
    # After an error: a limit of the recursion that was reached in a call within another one would be reached
    # again by each that follows, which takes for ever if a document has several that each make several.
    if lc_this_thread().calls > 1 and isinstance(sys.exc_info()[1], RecursionError):
        lc_this_thread().refuses = True
    return 0


cdef str _unprintable(Document *doc, object v):
    _note_recursion()
    doc.sanitized += 1
    return f"<unprintable {type(v).__name__}>"


# Mappings and their keys.

# The methods by which classes of many libraries return all values of a name.
cdef tuple MULTIPLE = ("multi_items", "getlist", "getall", "get_all")


cdef inline bint _is_multiple(object kind) except -1:
    return any([hasattr(kind, name) for name in MULTIPLE])


cdef bint _is_mapping(object v) except -1:
    # The class of a lazy object may be unknown until a query has been made, which may fail.
    cdef object kind = type(v)
    try:
        return (isinstance(v, Mapping)
                or hasattr(kind, "keys") and hasattr(kind, "items") and _is_multiple(kind))
    except Exception:
        return False


cdef dict _dict_of(object v):
    """Return a mapping as a new dict, with a list of all values of a name where there are several."""
    cdef object kind = type(v)
    cdef dict made = {}
    if kind is dict or not _is_multiple(kind):
        return dict(v)
    if hasattr(kind, "lists"):
        made = {name: list(values) for name, values in v.lists()}
    else:
        for name, value in v.multi_items() if hasattr(kind, "multi_items") else v.items():
            made.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in made.items()}


cdef bint _has_surrogate(PyObject *text) noexcept nogil:
    cdef Py_ssize_t i
    if lc_ready(text) < 0:
        return True
    if PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND:
        return False
    for i in range(PyUnicode_GET_LENGTH(text)):
        if 0xD800 <= PyUnicode_READ(PyUnicode_KIND(text), PyUnicode_DATA(text), i) <= 0xDFFF:
            return True
    return False


cdef str _clean_key(Document *doc, object key):
    cdef str text
    if isinstance(key, str):
        text = _exact_str(key)
    else:
        try:
            is_bytes = isinstance(key, (bytes, bytearray))
            text = str(key, "utf-8", "replace") if is_bytes else _exact_str(str(key))
            doc.sanitized += 1
        except Exception:
            text = _unprintable(doc, key)
    if _has_surrogate(<PyObject *> text):
        doc.sanitized += 1
        text = "".join(["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text])
    return text


cdef dict _clean_dict(Document *doc, object d, dict without):
    # Copy a mapping but for the keys in `without`, with keys that are valid strings; of equal keys the last
    # stays, and each other one is counted. None: it cannot be read.
    cdef dict copy = {}
    cdef str text
    try:
        for key, value in _dict_of(d).items():
            if without is None or key not in without:
                text = _clean_key(doc, key)
                doc.sanitized += text in copy
                copy[text] = value
    except Exception:
        doc.reason = <uint8_t> R_UNENCODABLE
        return None
    return copy
