# The attributes of a LogRecord and the fields made of them, as far as no Python code has to run.

ECS_VERSION = "8.11.0"       # also in the literals of _write_origin and _write_steps

cdef enum:
    FIRST_US = -62135596800000000     # the year 1
    LAST_US = 253402300799999999      # the end of the year 9999

# The attributes that a document needs; the first are those of the fields from KEY_LOGGER on.
cdef enum:
    A_NAME, A_FILENAME, A_LINENO, A_FUNCNAME, A_PROCESS, A_PROCESSNAME, A_THREAD, A_THREADNAME
    A_MSG, A_ARGS, A_LEVELNAME, A_LEVELNO, A_EXC_INFO, A_EXC_TEXT, A_STACK_INFO, A_CREATED
    A_TRACE, A_SPAN, A_SERVICE
    A_UNUSED
    A_SKIPPED                # what others add to a record, and is no field
    ATTRIBUTES
    ORDER = 32

cdef enum:
    NEEDS_PYTHON = 1         # a status: the object cannot be written without running Python code

# A place in a program from which a logger is called.
ctypedef struct Site:
    PyObject *code           # a strong reference, as are the next; or NULL
    PyObject *path
    PyObject *file           # its last part
    PyObject *line
    PyObject *function
    PyObject *name           # of the logger
    uint8_t *text            # the fields of these, as `_write_origin` writes objects; or NULL
    size_t n                 # its bytes
    int instruction
    bint internal            # in logging itself, or in the import system

# The attributes of one record. The references are borrowed until `held`: until then no Python code runs.
ctypedef struct Attributes:
    PyObject *values[ATTRIBUTES]
    Py_ssize_t first_extra   # position of the first attribute that logging did not make, or -1
    bint extras_mixed        # some of logging's own come after it
    bint held
    int64_t created_us       # of a log call that has no record; 0: not known yet
    lc_here *thread          # in which it is made
    Site *site               # ... and where; it may be of another call meanwhile. NULL: not known

cdef tuple ATTRIBUTE_NAMES = (
    "name", "filename", "lineno", "funcName", "process", "processName", "thread", "threadName",
    "msg", "args", "levelname", "levelno", "exc_info", "exc_text", "stack_info", "created",
)
cdef str MESSAGE = "message"     # the attribute that formatters add
# What LoggingInstrumentor of OpenTelemetry adds, from A_TRACE on.
cdef tuple INSTRUMENTED_NAMES = ("otelTraceID", "otelSpanID", "otelServiceName", "otelTraceSampled")


cdef dict _with_members(object record, dict attributes):
    # Return the attributes of a record that has those of logging as members in C, as one of picologging: its
    # dictionary has the others.
    cdef dict found = {}
    for name in ATTRIBUTE_NAMES:
        try:
            found[name] = getattr(record, name)
        except Exception:
            pass
    found.update(attributes)
    return found


# The message.

cdef int _write_percent_format(Document *doc, PyObject *msg, PyObject *args) noexcept nogil:
    # Write `msg % args` if it has only %s, %d and %% and values of built-in types. Return 1; 0 if it has
    # anything else (the caller discards the bytes written); or -1.
    cdef const uint8_t *q
    cdef PyObject *v
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t given = PyTuple_GET_SIZE(args)
    cdef int overflow = 0
    cdef long long number
    cdef uint8_t c
    cdef uint8_t *to
    if not PyUnicode_IS_COMPACT_ASCII(msg) or doc.unquoted or doc.mode != WHOLE:
        return 0
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(msg)
    if n > SEGMENT:
        return 0
    cdef const uint8_t *p = <uint8_t *> PyUnicode_DATA(msg)
    cdef const uint8_t *end = p + n
    while True:
        if _reserve(doc, LC_WORST * <size_t> (end - p) + 2 * LC_SLACK + 40) < 0:
            return -1
        q = <const uint8_t *> memchr(p, c'%', <size_t> (end - p))
        if q == NULL:
            doc.p = lc_quote1(doc.p, p, <size_t> (end - p))
            return used == given
        if q + 1 >= end:
            return 0
        doc.p = lc_quote1(doc.p, p, <size_t> (q - p))
        p = q + 2
        c = q[1]
        if c == c'%':
            doc.p[0] = c'%'
            doc.p += 1
            continue
        if used == given:
            return 0
        v = PyTuple_GET_ITEM(args, used)
        used += 1
        if PyLong_CheckExact(v) and (c == c's' or c == c'd'):
            number = _int_value(v, &overflow)
            if overflow:
                return 0
            doc.p = lc_int(doc.p, number)
        elif c != c's':
            return 0
        elif PyUnicode_CheckExact(v):
            if _write_chars(doc, v) < 0:
                return -1
        elif PyFloat_CheckExact(v):
            to = lc_float(doc.p, PyFloat_AS_DOUBLE(v))
            if to == NULL:
                return 0
            doc.p = to
        elif v == Py_None:
            memcpy(doc.p, b"None", 4)
            doc.p += 4
        else:
            return 0


cdef str _format_message(Document *doc, object msg, object args):
    """Return the message as ``LogRecord.getMessage`` does; append arguments that do not fit the format."""
    cdef str text
    try:
        text = _exact_str(msg if type(msg) is str else str(_shown(doc, msg)))
    except Exception:
        text = _unprintable(doc, msg)
    try:
        if args:
            args = tuple([_shown(doc, one) for one in args]) if type(args) is tuple else _shown(doc, args)
            text = _exact_str(text % args)
    except Exception:
        _note_recursion()
        doc.sanitized += 1
        try:
            text = f"{text} % {args!r}"
        except Exception:
            _note_recursion()
            text = f"{text} % <unprintable arguments>"
    return text


cdef str _call_get_message(Document *doc, object record):
    """Return the message of a record whose class overrides ``getMessage``."""
    try:
        return _exact_str(record.getMessage())
    except Exception:
        _note_recursion()
        return _format_message(doc, getattr(record, "msg", ""), getattr(record, "args", None))


cdef inline bint _is_short(PyObject *v) noexcept nogil:
    return (v != NULL and PyUnicode_CheckExact(v) and PyUnicode_IS_COMPACT_ASCII(v)
            and PyUnicode_GET_LENGTH(v) <= 128)


cdef inline uint8_t *_put_text(uint8_t *p, const char *text) noexcept nogil:
    cdef size_t n = strlen(text)         # of a literal: computed by the compiler
    memcpy(p, text, n)
    return p + n


cdef inline uint8_t *_put_field(Document *doc, uint8_t *p, int key, PyObject *v) noexcept nogil:
    doc.starts[key] = <uint32_t> (p - doc.base) + lc_keys[key].n + 4
    return lc_field(p, key, PyUnicode_DATA(v), <size_t> PyUnicode_GET_LENGTH(v))


# Write ecs.version, log.logger and log.origin.* with one reservation; return 0 if they are not short strings.
cdef int _write_origin(Document *doc, Attributes *s) noexcept nogil:
    cdef PyObject *name = s.values[A_NAME]
    cdef PyObject *file = s.values[A_FILENAME]
    cdef PyObject *line = s.values[A_LINENO]
    cdef PyObject *function = s.values[A_FUNCNAME]
    cdef bint objects = doc.nested and doc.dotted_from != 0
    cdef bint keeps = s.site != NULL and objects and (
        s.site.name == name and s.site.file == file and s.site.line == line and s.site.function == function)
    cdef uint8_t *p
    if doc.overridden or doc.pair_block:
        return 0
    if keeps and s.site.text != NULL:
        return 1 if _append(doc, <const char *> s.site.text, s.site.n) == 0 else -1
    if (not _is_short(name) or not _is_short(file)
            or not _is_short(function) or line == NULL or not PyLong_CheckExact(line)
            or not lc_compact(line)):
        return 0
    if _reserve(doc, LC_WORST * 3 * 128 + 10 * LC_SLACK) < 0:
        return -1
    p = _put_text(doc.p, b',"ecs.version":"8.11.0"')
    if objects:
        p = lc_put_string(p, b',"log":{"logger":"', name)
        p = lc_put_string(p, b',"origin":{"file":{"name":"', file)
        p = lc_int(_put_text(p, b',"line":'), lc_compact_value(line))
        p = _put_text(lc_put_string(p, b'},"function":"', function), b'}}')
        if keeps:
            s.site.n = <size_t> (p - doc.p)
            s.site.text = <uint8_t *> realloc(NULL, s.site.n)
            if s.site.text != NULL:
                memcpy(s.site.text, doc.p, s.site.n)
        doc.p = p
        return 1
    doc.starts[<int> KEY_ECS] = <uint32_t> (p - doc.base) - 8
    p = _put_field(doc, _put_field(doc, p, KEY_LOGGER, name), KEY_FILE, file)
    memcpy(p, lc_keys[<int> KEY_LINE].text, LC_SLACK)
    p += lc_keys[<int> KEY_LINE].n + 4
    doc.starts[<int> KEY_LINE] = <uint32_t> (p - doc.base)
    doc.p = _put_field(doc, lc_int(p, lc_compact_value(line)), KEY_FUNCTION, function)
    return 1


# Write the fields from *step to `end`. Returns 0, -1, or NEEDS_PYTHON with *step at the field in question.
cdef int _write_plain_steps(Document *doc, PyObject **values, int *step, int end) noexcept nogil:
    cdef int status
    while step[0] < end:
        status = _write_plain_field(doc, step[0], values[step[0] - KEY_LOGGER])
        if status:
            return status
        step[0] += 1
    return 0


cdef int _write_process_object(Document *doc, int64_t pid, PyObject *process_name, int64_t thread,
                               PyObject *thread_name) noexcept nogil:
    cdef uint8_t *p
    if _reserve(doc, LC_WORST * 2 * 32 + 8 * LC_SLACK) < 0:
        return -1
    p = lc_int(_put_text(doc.p, b',"process":{"pid":'), pid)
    p = lc_put_string(p, b',"name":"', process_name)
    p = lc_int(_put_text(p, b',"thread":{"id":'), thread)
    doc.p = _put_text(lc_put_string(p, b',"name":"', thread_name), b'}}')
    return 0


# Write process.*. They rarely change within a thread, so it caches their text. Returns 0, -1 or NEEDS_PYTHON.
cdef int _write_process(Document *doc, PyObject **values, int *step) noexcept nogil:
    cdef PyObject *process_name = values[A_PROCESSNAME]
    cdef PyObject *thread_name = values[A_THREADNAME]
    cdef int i, status, overflow = 0
    cdef int64_t pid = 0, thread = 0
    cdef size_t process_n = 0, thread_n = 0
    cdef bint objects = False
    cdef lc_here *last = NULL
    if (doc.overridden == 0 and not doc.pair_block and _is_short(process_name) and _is_short(thread_name)
            and values[A_PROCESS] != NULL and PyLong_CheckExact(values[A_PROCESS])
            and values[A_THREAD] != NULL and PyLong_CheckExact(values[A_THREAD])):
        pid = _int_value(values[A_PROCESS], &overflow)
        if overflow == 0:
            thread = _int_value(values[A_THREAD], &overflow)
        process_n = <size_t> PyUnicode_GET_LENGTH(process_name)
        thread_n = <size_t> PyUnicode_GET_LENGTH(thread_name)
        if overflow == 0 and process_n <= 32 and thread_n <= 32:
            last = doc.thread
            objects = doc.nested and doc.dotted_from != 0
            if (last.size and last.nested == objects and last.thread == thread and last.pid == pid
                    and last.process_n == process_n and last.thread_n == thread_n
                    and memcmp(last.process_name, PyUnicode_DATA(process_name), process_n) == 0
                    and memcmp(last.thread_name, PyUnicode_DATA(thread_name), thread_n) == 0):
                if _reserve(doc, sizeof(last.text) + LC_SLACK) < 0:
                    return -1
                memcpy(doc.p, last.text, last.size)
                for i in range(4):
                    doc.starts[KEY_PID + i] = <uint32_t> (doc.p - doc.base) + last.starts[i]
                doc.p += last.size
                return 0
    cdef size_t start = <size_t> (doc.p - doc.base)
    if objects:
        if _write_process_object(doc, pid, process_name, thread, thread_name) < 0:
            return -1
    else:
        if doc.nested:
            doc.dotted_from = 0
        status = _write_plain_steps(doc, values, step, KEY_ERROR_TYPE)
        if status:
            return status
    if last != NULL:
        start = <size_t> (doc.p - doc.base) - start
        last.size = 0
        if start <= sizeof(last.text):
            last.nested = objects
            for i in range(4):
                last.starts[i] = <uint8_t> (doc.starts[KEY_PID + i] - (<size_t> (doc.p - doc.base) - start))
            last.pid = pid
            last.thread = thread
            last.process_n = <uint8_t> process_n
            last.thread_n = <uint8_t> thread_n
            memcpy(last.process_name, PyUnicode_DATA(process_name), process_n)
            memcpy(last.thread_name, PyUnicode_DATA(thread_name), thread_n)
            memcpy(last.text, doc.p - start, start)
            last.size = <uint32_t> start
    return 0


cdef int _write_level(Document *doc, PyObject *v) noexcept nogil:
    # Write the level's name in lower case; return 0, -1 or NEEDS_PYTHON.
    cdef uint8_t *p
    if v == NULL or v == Py_None or doc.overridden >> KEY_LEVEL & 1:
        return 0
    if not PyUnicode_CheckExact(v) or not PyUnicode_IS_COMPACT_ASCII(v):
        return NEEDS_PYTHON
    if _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    _open_field(doc, KEY_LEVEL, True)
    cdef size_t start = <size_t> (doc.p - doc.base)
    if _write_chars(doc, v) < 0:
        return -1
    p = doc.base + start
    while p < doc.p:
        if c'A' <= p[0] <= c'Z':
            p[0] |= 0x20
        p += 1
    return _close_field(doc, True)


# Write the message; return 0, -1 or NEEDS_PYTHON. `text`: NULL, or the message to use in place of the
# record's; `subclass`: the record's class may override getMessage().
cdef int _write_message(Document *doc, PyObject **values, PyObject *text, bint subclass) noexcept nogil:
    cdef PyObject *v = values[A_MSG] if text == NULL else text
    cdef PyObject *args = NULL
    cdef uint32_t sanitized
    cdef int status
    if doc.overridden >> KEY_MESSAGE & 1:
        return 0
    if text == NULL:
        if subclass or v == NULL or not PyUnicode_CheckExact(v):
            return NEEDS_PYTHON
        args = values[A_ARGS]
        if args == Py_None:
            args = NULL
        elif args != NULL:
            if not PyTuple_CheckExact(args):
                return NEEDS_PYTHON
            if PyTuple_GET_SIZE(args) == 0:
                args = NULL
            elif doc.pair_block:
                return NEEDS_PYTHON               # _write_percent_format cannot write there
    if _reserve(doc, 2 * LC_SLACK) < 0:
        return -1
    cdef size_t start = <size_t> (doc.p - doc.base)
    sanitized = doc.sanitized
    _open_field(doc, KEY_MESSAGE, True)
    if args == NULL:
        if _write_message_chars(doc, v) < 0:
            return -1
    else:
        status = _write_percent_format(doc, v, args)
        if status < 0:
            return -1
        if status == 0:
            doc.p = doc.base + start
            doc.sanitized = sanitized
            return NEEDS_PYTHON
        if doc.sanitized > sanitized:
            doc.sanitized = sanitized + 1      # the message counts as one value
    return _close_field(doc, True)


# Write the fields of a record from *step on, until one needs Python code. Returns 0 after the last one; -1;
# or NEEDS_PYTHON with *step at the field in question.
cdef int _write_steps(Document *doc, Attributes *s, PyObject *text, bint subclass, int *step) noexcept nogil:
    cdef PyObject **values = s.values
    cdef int status
    if step[0] <= KEY_TIMESTAMP and not doc.overridden >> KEY_TIMESTAMP & 1:
        if _write_time(doc) < 0:
            return -1
    if step[0] <= KEY_LEVEL:
        status = _write_level(doc, values[A_LEVELNAME])
        if status:
            step[0] = KEY_LEVEL
            return status
    if step[0] <= KEY_MESSAGE:
        status = _write_message(doc, values, text, subclass)
        if status:
            step[0] = KEY_MESSAGE
            return status
    if step[0] <= KEY_ECS:
        status = _write_origin(doc, s)
        if status < 0:
            return -1
        step[0] = KEY_PID
        if status == 0:
            step[0] = KEY_LOGGER
            if doc.nested:
                doc.dotted_from = 0
            if not doc.overridden >> KEY_ECS & 1:
                if _reserve(doc, 3 * LC_SLACK) < 0:
                    return -1
                _open_field(doc, KEY_ECS, True)
                doc.p = _put_text(doc.p, b"8.11.0")
                _close_field(doc, True)
    status = _write_plain_steps(doc, values, step, KEY_PID)
    if status:
        return status
    if step[0] == KEY_PID:
        return _write_process(doc, values, step)
    return _write_plain_steps(doc, values, step, KEY_ERROR_TYPE)


cdef inline object _or_none(PyObject *v):
    return None if v == NULL else <object> v


cdef inline bint _given(PyObject *v) noexcept:
    return v != NULL and v != Py_None


cdef void _restart_document(Document *doc, uint8_t *stack, uint8_t mode) noexcept nogil:
    # Start a document again: where it has to be written in another way; or one that is too large, first to
    # measure the room left for the message, then with as much of the message.
    cdef size_t used = <size_t> (doc.p - doc.base)
    free(doc.heap)
    _start_document(doc, stack, mode, (doc.limit - used) // max(doc.copies, 1) if mode == CUT else 0)


cdef inline bint _timestamp_us(PyObject *v, int64_t *us) noexcept nogil:
    # Return whether it is a float in range, and its microseconds.
    if v == NULL or not PyFloat_CheckExact(v):
        return False
    cdef double seconds = PyFloat_AS_DOUBLE(v)
    if not (seconds * 1e6 >= FIRST_US and seconds * 1e6 < LAST_US):
        return False
    us[0] = llrint(seconds * 1e6)
    return us[0] != 0


cdef int64_t _created_us(PyObject *v) noexcept:
    # Return the microseconds of any object, or those of the clock. The caller holds a reference to it.
    cdef object seconds
    cdef int64_t us
    if _timestamp_us(v, &us):
        return us
    if v != NULL:
        try:
            seconds = PyFloat_AsDouble(<object> v)
            if _timestamp_us(<PyObject *> seconds, &us):
                return us
        except Exception:
            pass
    import time
    return <int64_t> (time.time_ns() // 1000)


cdef uint8_t _level_index(PyObject *v) noexcept nogil:
    # Return the level as the queue keeps it: levelno // 10, at most 5.
    cdef int overflow = 0
    cdef long long number
    if v == NULL or not PyLong_Check(v):
        return 0
    number = _int_value(v, &overflow)
    if overflow > 0 or number >= 50:
        return 5
    if overflow < 0 or number < 0:
        return 0
    return <uint8_t> (number // 10)
