# Logjam's document of a record that was logged outside of any request.
#
# It is written without Python code if the record is an ordinary one. All others are left to
# `logclient.logjam.Agent`, which has the rules: it makes the same bytes of an ordinary record.

cdef enum:
    LINE_LIMIT = 2048        # bytes of an ordinary line, in JSON; no line so short is ever cut
    NAME_LIMIT = 1000        # bytes of an ordinary name
    FIXED_SIZE = 512         # bytes of the fixed fields at most, without names and `place`
    LAST_SECOND = 253402214400   # the last day of the year 9999

# Results of writing.
cdef enum:
    NOT_ORDINARY = 2         # the record is left to the agent
    NEEDS_SECOND = 3         # the texts of its second are not known
    # ... or NEEDS_PYTHON: its message needs Python code

# A second of the wall clock, and its texts in the importer's time zone.
ctypedef struct Second:
    int64_t whole            # since 1970; -1: none
    uint8_t size             # of `started`
    char started[40]         # started_at: 2026-01-01T12:34:56+01:00
    char begin[19]           # of the time of a line: 2026-01-01T12:34:56


cdef inline bint _is_visible(PyObject *v, Py_ssize_t most, uint8_t but, uint8_t nor) noexcept nogil:
    # Return whether it is 1 to `most` ASCII characters, none of them a control character or one of these.
    cdef Py_ssize_t i
    if v == NULL or not PyUnicode_CheckExact(v) or not PyUnicode_IS_COMPACT_ASCII(v):
        return False
    cdef const uint8_t *s = <const uint8_t *> PyUnicode_DATA(v)
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(v)
    if n == 0 or n > most:
        return False
    for i in range(n):
        if s[i] < c' ' or s[i] == 0x7F or s[i] == but or s[i] == nor:
            return False
    return True


cdef bint _is_action(PyObject *v) noexcept nogil:
    # Return whether it may be a part of an action as it is. A `#` at the end means that there is no method.
    return (_is_visible(v, 128, c' ', c' ')
            and (<const char *> PyUnicode_DATA(v))[PyUnicode_GET_LENGTH(v) - 1] != c'#')


cdef bint _names_a_number(PyObject *k) noexcept nogil:
    # Return whether the importer takes the value of this name for a number.
    cdef const char *s = <const char *> PyUnicode_DATA(k)
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(k)
    return (n >= 5 and memcmp(s + n - 5, b"_time", 5) == 0 or n >= 6 and memcmp(s + n - 6, b"_calls", 6) == 0)


cdef bint _has_nul(const uint8_t *p, const uint8_t *end) noexcept nogil:
    # Return whether a string of a JSON text has a NUL.
    while True:
        p = <const uint8_t *> memchr(p, c'\\', <size_t> (end - p))
        if p == NULL:
            return False
        if memcmp(p, b"\\u0000", 6) == 0:    # an escape never ends a document
            return True
        p += 2


cdef bint _split_time(PyObject *v, int64_t *whole, uint32_t *us, int64_t *ms) noexcept nogil:
    # Split seconds since 1970 as `datetime` does; return whether they are ordinary.
    cdef double second = 0
    if v == NULL or not PyFloat_CheckExact(v):
        return False
    cdef double seconds = PyFloat_AS_DOUBLE(v)
    if not (seconds >= 0 and seconds < LAST_SECOND):
        return False
    cdef double part = rint(modf(seconds, &second) * 1e6)
    whole[0] = <int64_t> second
    us[0] = <uint32_t> part
    ms[0] = <int64_t> (seconds * 1000)
    return us[0] < 1000000                           # else it is the next second for `datetime` only


cdef inline long long _natural(PyObject *v) noexcept nogil:
    # Return the value of a small int that is not negative, or -1.
    return lc_compact_value(v) if v != NULL and PyLong_CheckExact(v) and lc_compact(v) else -1


cdef str _message_of(PyObject *msg, PyObject *args):
    # Return the message as `LogRecord.getMessage` does, or None if that fails or is no plain str.
    cdef object text = <object> msg
    cdef object given = <object> args
    try:
        text = str(text)
        if given:
            text = text % given
    except Exception:
        _note_recursion()
        return None
    return text if type(text) is str else None


@cython.final
cdef class LineEncoder:
    """Encoder of log records as Logjam's documents, each with one line.

    It encodes ordinary records only, and leaves the others to ``logclient.logjam.Agent``. A record is
    ordinary if it is a LogRecord itself, without an exception or a stack; no request is running; its texts
    need neither change nor cut; additional fields are scalars with names that may stay; the document is no
    longer than 8 KiB.
    """

    cdef Encoder encoder     # of JSON objects; the largest size of a document is its
    cdef object request      # the context variable with the running request
    cdef object texts        # texts(whole seconds since 1970): `started_at`, and the time up to the seconds
    cdef bytes place         # fields that name the machine; owns the next
    cdef const char *place_text
    cdef size_t place_size
    cdef dict reserved       # names that no additional field may have
    cdef readonly uint8_t kind       # of the documents, as the queue keeps it
    cdef Second second       # the last one; access it in a critical section

    def __cinit__(self, Encoder encoder not None, *, request: ContextVar[Any],
                  texts: Callable[[int], tuple[str, str]], dict place not None: dict[str, str],
                  reserved: Iterable[str], uint8_t kind):
        self.encoder = encoder
        self.request = request
        self.texts = texts
        made = encoder.encode(place)[0]
        self.place = b"," + made[1:len(made) - 1] if place else b""      # without the braces
        self.place_text = PyBytes_AS_STRING(self.place)
        self.place_size = <size_t> len(self.place)
        self.reserved = dict.fromkeys(reserved)
        self.kind = kind
        self.second.whole = -1

    def encode(self, record: logging.LogRecord, text: str | None = None) -> tuple[bytes, int] | None:
        """Encode an ordinary record; `text` is that of the line, None: the record's message.

        Returns:
            The body, and the level as the queue keeps it; None if the record is not an ordinary one.
        """
        cdef uint8_t stack[STACK]
        cdef Document doc
        cdef uint8_t level = 0
        doc.heap = NULL
        try:
            if not self.write(&doc, stack, record, text, &level):
                return None
            return PyBytes_FromStringAndSize(<char *> doc.base, doc.p - doc.base), level
        finally:
            free(doc.heap)

    cdef bint write(self, Document *doc, uint8_t *stack, object record, object text,
                    uint8_t *level) except -1:
        # Write the document of a record; return whether it is an ordinary one. The caller frees `doc.heap`,
        # which must be NULL before.
        cdef Attributes s
        cdef Second second
        cdef object made
        cdef dict attributes
        cdef int status
        cdef bint asked = False
        cdef size_t limit = min(self.encoder.max_event_bytes, <size_t> STACK)
        if (type(record) is not self.encoder.record_type or text is not None and type(text) is not str
                or get_value(self.request) is not None):
            return False
        with cython.critical_section(self):
            second = self.second
        while True:
            # No Python code runs from here until the document is written, so references may be borrowed.
            made = PyObject_GenericGetDict(record, NULL)
            if type(made) is not dict:
                return False
            attributes = PyDict_Copy(made) if LC_SHARED else made
            self.encoder._read_attributes(<PyObject *> self.encoder.standard, <PyObject *> attributes, &s)
            free(doc.heap)
            self.encoder.begin(doc, stack)
            doc.limit = limit
            status = self._write_line(doc, s.values, NULL if text is None else <PyObject *> text, &second,
                                      level)
            if status == 0:
                return self._write_fields(doc, <PyObject *> attributes, &s)
            # Python code may change the record: begin again after it.
            if status == NEEDS_PYTHON:
                text = _message_of(s.values[A_MSG], s.values[A_ARGS])
                if text is None:
                    return False
            elif status == NEEDS_SECOND and not asked:
                asked = True
                if not self._ask_texts(&second):
                    return False
            else:
                return False

    cdef bint _ask_texts(self, Second *second) except -1:
        # Complete a second, of which `whole` is known; return whether that was possible.
        cdef bytes started, begin
        try:
            started, begin = [text.encode("ascii") for text in self.texts(second.whole)]
        except Exception:
            return False
        if len(started) > 40 or len(begin) != 19:
            return False
        second.size = <uint8_t> len(started)
        memcpy(second.started, PyBytes_AS_STRING(started), <size_t> len(started))
        memcpy(second.begin, PyBytes_AS_STRING(begin), 19)
        with cython.critical_section(self):
            self.second = second[0]
        return True

    cdef int _write_line(self, Document *doc, PyObject **values, PyObject *text, Second *second,
                         uint8_t *level) noexcept nogil:
        # Write all but the additional fields; return 0, NOT_ORDINARY, NEEDS_PYTHON or NEEDS_SECOND.
        cdef PyObject *name = values[A_NAME]
        cdef PyObject *function = values[A_FUNCNAME]
        cdef PyObject *message = values[A_MSG] if text == NULL else text
        cdef PyObject *args = values[A_ARGS]
        cdef long long number = _natural(values[A_LEVELNO])
        cdef long long process = _natural(values[A_PROCESS])
        cdef int64_t whole = 0, ms = 0
        cdef uint32_t us = 0
        cdef int status = 1
        cdef uint8_t *p
        if (values[A_EXC_INFO] != Py_None or values[A_EXC_TEXT] != Py_None or values[A_STACK_INFO] != Py_None
                or number < 0 or process <= 0 or message == NULL or args == NULL
                or not _is_action(name) or not _is_action(function) or _is_own_logger(name)
                or not _split_time(values[A_CREATED], &whole, &us, &ms)):
            return NOT_ORDINARY
        if second.whole != whole:
            second.whole = whole
            return NEEDS_SECOND
        if text == NULL and (not PyUnicode_CheckExact(message)
                             or args != Py_None and not PyTuple_CheckExact(args)):
            return NEEDS_PYTHON
        level[0] = <uint8_t> min(number // 10, 5)
        cdef uint8_t severity = 0 if number < 20 else level[0] - 1
        if _reserve(doc, 2 * LC_WORST * 128 + self.place_size + FIXED_SIZE) < 0:
            return NOT_ORDINARY
        p = _put_text(doc.p, b',"action":"')
        p = lc_quote_short(p, <uint8_t *> PyUnicode_DATA(name), <size_t> PyUnicode_GET_LENGTH(name))
        p[0] = c'#'
        p = lc_quote_short(p + 1, <uint8_t *> PyUnicode_DATA(function),
                           <size_t> PyUnicode_GET_LENGTH(function))
        p = _put_text(p, b'","started_at":"')
        memcpy(p, second.started, 40)
        p = _put_text(p + second.size, b'","started_ms":')
        p = _put_text(lc_int(p, ms), b',"total_time":1.0,"code":')
        p = _put_text(p, b"500" if severity >= 3 else b"200")
        p = _put_text(p, b',"severity":')
        p[0] = c'0' + severity
        p += 1
        memcpy(p, self.place_text, self.place_size)
        p = _put_text(p + self.place_size, b',"process_id":')
        p = _put_text(lc_int(p, process), b',"lines":[[')
        p[0] = c'0' + severity
        p = _put_text(p + 1, b',"')
        memcpy(p, second.begin, 19)
        p[19] = c'.'
        p = _put_text(lc_micro(p + 20, us), b'","')
        doc.p = p
        cdef size_t start = <size_t> (p - doc.base)
        if text != NULL or args == Py_None or PyTuple_GET_SIZE(args) == 0:
            if _write_chars(doc, message) < 0:
                return NOT_ORDINARY
        else:
            status = _write_percent_format(doc, message, args)
            if status == 0:
                return NEEDS_PYTHON
        if status < 0 or <size_t> (doc.p - doc.base) - start > LINE_LIMIT or _reserve(doc, LC_SLACK) < 0:
            return NOT_ORDINARY
        doc.p = _put_text(doc.p, b'"]]')
        return 0

    cdef bint _write_fields(self, Document *doc, PyObject *attributes, Attributes *s) except -1:
        # Write the additional fields and end the document; return whether all was ordinary.
        cdef PyObject *standard = <PyObject *> self.encoder.standard
        cdef PyObject *k
        cdef PyObject *v
        cdef Py_ssize_t at = s.first_extra
        cdef int overflow = 0
        while at >= 0 and PyDict_Next(attributes, &at, &k, &v):
            if s.extras_mixed and PyUnicode_CheckExact(k) and lc_find(standard, k) != NULL:
                continue
            # The importer would change other names.
            if not _is_visible(k, NAME_LIMIT, c'.', c'$') or lc_find(<PyObject *> self.reserved, k) != NULL:
                return False
            if PyLong_CheckExact(v):
                _int_value(v, &overflow)
                if overflow:
                    return False
            elif not PyFloat_CheckExact(v) and (
                    _names_a_number(k)
                    or not PyUnicode_CheckExact(v) and v != Py_None and v != Py_True and v != Py_False):
                return False
            if _append(doc, b",", 1) < 0 or _write_string(doc, k) < 0 or _append(doc, b":", 1) < 0:
                return False
            if PyFloat_CheckExact(v):
                if _write_float(doc, PyFloat_AS_DOUBLE(v) + 0.0) < 0:     # -0.0 becomes 0.0
                    return False
            elif _write_value(doc, v, 1) < 0:
                return False
        return _finish_document(doc) == 0 and doc.sanitized == 0 and not _has_nul(doc.base, doc.p)
