"""Documents: a LogRecord or a mapping becomes the bytes that travel, in the caller's thread.

One pass in C writes the document into a buffer on the stack (longer ones move to the heap) and puts it
into the hand-off. No lock is taken and nothing is shared between two calls, so a log call in a
destructor or a signal handler, in the middle of another one, finds nothing half done.

Any Python code that runs meanwhile (a `__str__`, a destructor that the garbage collector calls) may
replace or delete what a document is made of. So the usual attributes of a record are read and written by
functions that are `nogil`: the compiler accepts nothing in them that could run Python code, and borrowed
references stay good. Before anything else runs, `Encoder._hold` takes references of its own.

Two forms of the same document: a JSON object (Lumberjack version 2), and the pair block of Lumberjack
version 1: a 32-bit count, then that many keys and values, each behind its 32-bit length.

What has no encoding of its own is changed and counted as mangled: NaN and infinities become null,
lone surrogates U+FFFD, bytes text with U+FFFD for what is no UTF-8, keys strings, unknown objects
``str()``. A cycle, or nesting deeper than 128, has none at all: the event fails as unencodable.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from logclient._ext.constants cimport PUT_FORKED, PUT_FULL
from logclient._ext.handoff cimport Handoff
from logclient._ext.hot cimport (
    K_DOCUMENT,
    K_ID1_TAKEN,
    K_ID2_TAKEN,
    K_METADATA_OPEN,
    K_RAW,
    K_TOMB,
    R_NONE,
    R_TOO_LARGE,
    R_UNENCODABLE,
)

import logging
import sys
from collections.abc import Mapping

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        const char *tp_name
    PyTypeObject *Py_TYPE(PyObject *o) nogil
    void Py_INCREF(PyObject *o)
    void Py_XINCREF(PyObject *o)
    void Py_XDECREF(PyObject *o)
    void Py_DECREF(PyObject *o)
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    int PyUnicode_CheckExact(PyObject *o) nogil
    int PyUnicode_Check(PyObject *o) nogil
    int PyLong_CheckExact(PyObject *o) nogil
    int PyLong_Check(PyObject *o) nogil
    int PyFloat_CheckExact(PyObject *o) nogil
    int PyFloat_Check(PyObject *o) nogil
    double PyFloat_AS_DOUBLE(PyObject *o) nogil
    int PyDict_CheckExact(PyObject *o) nogil
    int PyDict_Check(PyObject *o) nogil
    int PyList_CheckExact(PyObject *o) nogil
    int PyList_Check(PyObject *o) nogil
    int PyTuple_CheckExact(PyObject *o) nogil
    int PyTuple_Check(PyObject *o) nogil
    Py_ssize_t PyList_GET_SIZE(PyObject *o) nogil
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t i) nogil
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o) nogil
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i) nogil
    int PyDict_Next(PyObject *d, Py_ssize_t *pos, PyObject **key, PyObject **value) nogil
    long long PyLong_AsLongLongAndOverflow(PyObject *o, int *overflow) nogil     # never fails for an int
    double PyFloat_AsDouble(object o) except? -1
    char *PyOS_double_to_string(double v, char code, int precision, int flags, int *kind) except NULL
    void PyMem_Free(void *p)
    dict PyDict_Copy(object o)
    object PyObject_GenericGetDict(object o, void *context)
    object PyUnicode_FromObject(object o)
    object PyUnicode_DecodeUTF8(const char *s, Py_ssize_t n, const char *errors)

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030C0000
    /* A string of the old C API may not be in its final form. */
    static inline int lc_ready(PyObject *s) {
        if (PyUnicode_READY(s) == 0) return 0;
        PyErr_Clear();
        return -1;
    }
    #else
    #define lc_ready(s) 0
    #endif
    #ifdef Py_GIL_DISABLED
    #define LC_SHARED 1
    #else
    #define LC_SHARED 0
    #endif
    #define lc_raise_what_is_set() (-1)
    /* What an exact string stands for in a dict whose keys are exact strings: no Python code runs. */
    static inline PyObject *lc_find(PyObject *dict, PyObject *key) {
        return PyDict_GetItemWithError(dict, key);
    }
    /* Whether more than one dict holds it: then a program has it, and it comes again. */
    #define lc_lasting(s) (Py_REFCNT(s) > 1)
    /* Hold an exact str in place of another one: no Python code runs. */
    static inline void lc_keep(PyObject **place, PyObject *s) {
        PyObject *before = *place;
        Py_INCREF(s);
        *place = s;
        Py_XDECREF(before);
    }
    /* An int that is small enough (they nearly all are), without a call; else 0. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define lc_compact(v) PyUnstable_Long_IsCompact((PyLongObject *)(v))
    #define lc_compact_value(v) ((long long)PyUnstable_Long_CompactValue((PyLongObject *)(v)))
    #else
    #define lc_compact(v) ((size_t)Py_SIZE(v) <= 1)
    #define lc_compact_value(v) (Py_SIZE(v) ? (long long)((PyLongObject *)(v))->ob_digit[0] : 0LL)
    #endif
    """
    bint lc_compact(PyObject *v) nogil
    long long lc_compact_value(PyObject *v) nogil
    int lc_raise_what_is_set() except -1
    int lc_ready(PyObject *s) nogil
    PyObject *lc_find(PyObject *dict, PyObject *key) nogil
    bint lc_lasting(PyObject *s) nogil
    void lc_keep(PyObject **place, PyObject *s) nogil
    bint LC_SHARED           # another thread may change a container while it is read
    bint PyUnicode_IS_COMPACT_ASCII(PyObject *s) nogil
    int PyUnicode_KIND(PyObject *s) nogil
    void *PyUnicode_DATA(PyObject *s) nogil
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject *s) nogil
    enum: Py_DTSF_ADD_DOT_0
    enum: PyUnicode_1BYTE_KIND
    enum: PyUnicode_2BYTE_KIND

cdef extern from "text.h" nogil:
    enum: LC_SLACK
    enum: LC_WORST
    enum:
        KEY_TIMESTAMP, KEY_LEVEL, KEY_MESSAGE, KEY_ECS, KEY_LOGGER, KEY_FILE, KEY_LINE, KEY_FUNCTION, KEY_PID
        KEY_PROCESS, KEY_THREAD_ID, KEY_THREAD, KEY_ERROR_TYPE, KEY_ERROR_MESSAGE, KEY_STACK_TRACE, KEY_FLAGS
        KEY_METADATA, KEY_EVENT_ID, KEY_EVENTS, KEYS
    enum:
        NAME_OBJECT, NAME_FILLED, NAME_LABELS, NAME_PLAIN, NAME_CARRIER, NAME_BELOW, NAME_BELOW_FILLED
        NAME_BELOW_LABELS, NAME_BELOW_ID, NAME_BELOW_OURS, NAME_DOTTED
    enum: LC_NAMES
    ctypedef struct lc_name:
        const char *text
        uint8_t n
        uint8_t what
    const lc_name *lc_names
    int lc_what(const void *text, size_t n)
    ctypedef struct lc_key:
        const char *text
        uint8_t n
    const lc_key *lc_keys
    ctypedef struct lc_here:
        int own
        int64_t pid
        int64_t thread
        uint32_t size
        uint8_t process_n
        uint8_t thread_n
        char process_name[32]
        char thread_name[32]
        char text[256]
    lc_here lc_this_thread
    uint8_t *lc_quote1(uint8_t *to, const uint8_t *source, size_t n)
    uint8_t *lc_quote_short(uint8_t *to, const uint8_t *source, size_t n)
    uint8_t *lc_field(uint8_t *to, int key, const void *source, size_t n)
    uint8_t *lc_quote2(uint8_t *to, const uint16_t *source, size_t n, int *bad)
    uint8_t *lc_quote4(uint8_t *to, const uint32_t *source, size_t n, int *bad)
    uint8_t *lc_plain(uint8_t *to, const void *source, int kind, size_t n, int *bad)
    uint8_t *lc_int(uint8_t *to, int64_t v)
    uint8_t *lc_float(uint8_t *to, double v)
    uint8_t *lc_time(uint8_t *to, int64_t us, lc_here *last)
    void lc_prefetch(const void *p)
    long long llrint(double v)
    int isfinite(double v)

ECS_VERSION = "8.11.0"       # also inside the literal in _fill

cdef enum:
    STACK = 8192
    SEGMENT = 1024           # characters for which room is made at once
    MAX_DEPTH = 128
    NUMBER_BITS = 1023       # integers no double can hold make a real server refuse the whole window
    FIRST_US = -62135596800000000     # the years 1 ...
    LAST_US = 253402300799999999      # ... to 9999

# The attributes of a record that a document needs.
cdef enum:
    S_NAME, S_MSG, S_ARGS, S_LEVELNAME, S_LEVELNO, S_FILENAME, S_EXC_INFO, S_EXC_TEXT, S_STACK_INFO, S_LINENO
    S_FUNCNAME, S_CREATED, S_THREAD, S_THREADNAME, S_PROCESSNAME, S_PROCESS
    S_UNUSED
    SLOTS
    ORDER = 32

# What a record's document is made of, in this order, up to its error and the user's fields.
cdef enum:
    STEP_TIME, STEP_LEVEL, STEP_MESSAGE, STEP_ECS
    STEP_LOGGER, STEP_FILE, STEP_LINE, STEP_FUNCTION
    STEP_PID, STEP_PROCESS, STEP_THREAD_ID, STEP_THREAD
    STEPS

cdef enum:
    ODD = 1                  # it takes Python code to write this

# The attributes of a record. The references are borrowed until they are held, and good until then, for no
# Python code has run.
ctypedef struct Slots:
    PyObject *of[SLOTS]
    Py_ssize_t extra         # where the first attribute is that logging did not make, or -1
    bint mixed               # some of logging's are behind it
    bint held

cdef tuple SLOT_NAMES = (
    "name", "msg", "args", "levelname", "levelno", "filename", "exc_info", "exc_text", "stack_info", "lineno",
    "funcName", "created", "thread", "threadName", "processName", "process",
)

# What becomes of a field of the user's.
cdef enum:
    STAYS, MOVES, ARRANGES

# What was seen among the user's fields.
cdef enum:
    SEEN_MAPPING = 1
    SEEN_LABELS = 2          # `labels`, or what is below
    SEEN_BELOW = 4           # <object of ECS>.<name>
    SEEN_MOVING = 8          # one that moves, in a record
    SEEN_MORE = 64           # a name that has to be looked at each time
    SEEN_UNTOLD = 128        # ... and one whose text is not known

cdef enum:
    KNOWN = 256              # names of fields whose meaning an encoder remembers
    FEW = 64                 # fields among which `_tangled` looks itself
    SHORT = 256              # ... of names up to this
    ROUNDS = 4               # levels of a mapping that are merged with fields beside it

cdef enum:
    WHOLE = 0
    BLANK = 1                # to find out what the rest of the document takes
    CUT = 2


# A document being written. Functions that write return 0, -1 when the event fails (`reason` says why, no
# Python error is set) or -2 with a Python error set that is not ours to keep (KeyboardInterrupt).
ctypedef struct Out:
    uint8_t *p
    uint8_t *end
    uint8_t *base
    uint8_t *heap            # NULL while `base` is on the stack
    size_t limit
    size_t room              # for the message, in state CUT
    size_t value             # offset of the value of the pair being written
    uint32_t mangled
    uint32_t taken           # 1 << KEY_…: the user's own value for one of our keys replaces ours
    uint32_t pairs           # written so far
    uint32_t moved           # fields of the user's that got another name, or none
    uint8_t flags            # K_ID1_TAKEN | K_ID2_TAKEN | K_METADATA_OPEN
    uint8_t reason
    uint8_t cut
    uint8_t seen             # SEEN_...
    uint64_t names           # of the user's fields: Known.alone
    uint64_t above           # ... Known.above
    bint arranged            # the user's fields need no further look
    bint block               # a pair block, not a JSON object
    bint plain               # strings are written as they are: directly in a pair block
    bint guard               # refuse records of our own loggers
    lc_here *here            # records only


cdef inline void _begin(Out *o, uint8_t *stack, size_t size, size_t limit, bint block, uint8_t cut,
                        size_t room) noexcept nogil:
    o.p = o.base = stack
    o.end = stack + size
    o.heap = NULL
    o.limit = limit
    o.room = room
    o.value = 0
    o.mangled = 0
    o.taken = 0
    o.pairs = 0
    o.moved = 0
    o.flags = 0
    o.seen = 0
    o.names = o.above = 0
    o.arranged = False
    o.reason = <uint8_t> R_NONE
    o.cut = cut
    o.block = block
    o.plain = block
    o.guard = False
    if block:
        o.p += 4


cdef int _grow(Out *o, size_t more) noexcept nogil:
    cdef size_t used = <size_t> (o.p - o.base)
    cdef size_t want = 2 * <size_t> (o.end - o.base)
    cdef uint8_t *heap
    if used > o.limit:
        o.reason = <uint8_t> R_TOO_LARGE
        return -1
    if want < used + more:
        want = used + more
    heap = <uint8_t *> realloc(o.heap, want)
    if heap == NULL:
        o.reason = <uint8_t> R_UNENCODABLE
        return -1
    if o.heap == NULL:
        memcpy(heap, o.base, used)
    o.heap = o.base = heap
    o.p = heap + used
    o.end = heap + want
    return 0


cdef inline int _reserve(Out *o, size_t more) noexcept nogil:
    if <size_t> (o.end - o.p) < more:
        return _grow(o, more)
    return 0


cdef inline int _raw(Out *o, const char *text, size_t n) noexcept nogil:
    if _reserve(o, n + LC_SLACK) < 0:
        return -1
    memcpy(o.p, text, n)
    o.p += n
    return 0


# -- strings and numbers

cdef int _chars_wide(Out *o, PyObject *s) noexcept nogil:
    # Any string, a segment at a time: room for the worst case of a megabyte would be six.
    cdef size_t n, step, at = 0
    cdef int kind, bad = 0
    cdef uint8_t *data
    if lc_ready(s) < 0:
        o.reason = <uint8_t> R_UNENCODABLE
        return -1
    n = <size_t> PyUnicode_GET_LENGTH(s)
    kind = PyUnicode_KIND(s)
    data = <uint8_t *> PyUnicode_DATA(s)
    if n > o.limit:
        o.reason = <uint8_t> R_TOO_LARGE
        return -1
    while at < n:
        step = n - at
        if step > SEGMENT:
            step = SEGMENT
        if _reserve(o, LC_WORST * step + 2 * LC_SLACK) < 0:
            return -1
        if o.plain:
            o.p = lc_plain(o.p, data + at * kind, kind, step, &bad)
        elif kind == PyUnicode_1BYTE_KIND:
            o.p = lc_quote1(o.p, data + at, step)
        elif kind == PyUnicode_2BYTE_KIND:
            o.p = lc_quote2(o.p, <uint16_t *> data + at, step, &bad)
        else:
            o.p = lc_quote4(o.p, <uint32_t *> data + at, step, &bad)
        at += step
    if bad:
        o.mangled += 1
    return 0


# The characters of a str, without quotes. Leaves room for the closing quote.
cdef inline int _chars(Out *o, PyObject *s) noexcept nogil:
    cdef size_t n
    if PyUnicode_IS_COMPACT_ASCII(s) and not o.plain:
        n = <size_t> PyUnicode_GET_LENGTH(s)
        if n <= SEGMENT:
            if _reserve(o, LC_WORST * n + 2 * LC_SLACK) < 0:
                return -1
            o.p = lc_quote1(o.p, <uint8_t *> PyUnicode_DATA(s), n)
            return 0
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    return _chars_wide(o, s)


cdef int _string(Out *o, PyObject *s) noexcept nogil:
    cdef size_t n
    cdef uint8_t *p
    if o.plain:
        return _chars(o, s)
    if PyUnicode_IS_COMPACT_ASCII(s):
        n = <size_t> PyUnicode_GET_LENGTH(s)
        if n <= SEGMENT:
            if _reserve(o, LC_WORST * n + 2 * LC_SLACK) < 0:
                return -1
            o.p[0] = c'"'
            p = lc_quote_short(o.p + 1, <uint8_t *> PyUnicode_DATA(s), n)
            p[0] = c'"'
            o.p = p + 1
            return 0
    if _raw(o, b'"', 1) < 0 or _chars(o, s) < 0:
        return -1
    return _raw(o, b'"', 1)


cdef inline long long _number(PyObject *v, int *overflow) noexcept nogil:
    # Of an int (or of a subclass: by its value).
    if lc_compact(v):
        return lc_compact_value(v)
    return PyLong_AsLongLongAndOverflow(v, overflow)


cdef int _integer(Out *o, PyObject *v) except -2:
    cdef int overflow = 0
    cdef long long value = _number(v, &overflow)
    if overflow == 0:
        if _reserve(o, 24) < 0:
            return -1
        o.p = lc_int(o.p, value)
        return 0
    return _huge(o, v)


cdef int _huge(Out *o, PyObject *number) except -2:
    cdef object v = <object> number      # a reference of our own: a garbage collection may happen here
    cdef str text
    try:
        text = int.__repr__(v)
    except ValueError:       # longer than sys.get_int_max_str_digits()
        text = hex(v)
    if int.bit_length(v) > NUMBER_BITS:
        o.mangled += 1
        return _string(o, <PyObject *> text)
    if _reserve(o, <size_t> len(text) + LC_SLACK) < 0:
        return -1
    o.p = lc_quote1(o.p, <uint8_t *> PyUnicode_DATA(<PyObject *> text), <size_t> len(text))
    return 0


cdef int _float(Out *o, double v) except -2:
    cdef uint8_t *p
    cdef char *text
    cdef int status = 0
    if _reserve(o, 40) < 0:
        return -1
    p = lc_float(o.p, v)
    if p != NULL:
        o.p = p
        return 0
    if not isfinite(v):
        o.mangled += 1
        return _raw(o, b"null", 4)
    text = PyOS_double_to_string(v, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    p = <uint8_t *> text
    while p[0]:
        p += 1
    status = _raw(o, text, <size_t> (p - <uint8_t *> text))
    PyMem_Free(text)
    return status


# -- values

cdef inline bint _simple(PyObject *v) noexcept nogil:
    # Encoded without running any Python code: nobody can take the object away meanwhile.
    return PyUnicode_CheckExact(v) or PyLong_CheckExact(v) or PyFloat_CheckExact(v) or v == Py_None


cdef int _value(Out *o, PyObject *v, int depth) except -2:
    if PyUnicode_CheckExact(v):
        return _string(o, v)
    if PyLong_CheckExact(v):
        return _integer(o, v)
    if v == Py_None:
        return _raw(o, b"null", 4)
    if v == Py_True:
        return _raw(o, b"true", 4)
    if v == Py_False:
        return _raw(o, b"false", 5)
    if PyFloat_CheckExact(v):
        return _float(o, PyFloat_AS_DOUBLE(v))
    if PyDict_CheckExact(v):
        return _dict(o, v, depth)
    if PyList_CheckExact(v) or PyTuple_CheckExact(v):
        return _list(o, v, depth)
    return _other(o, <object> v, depth)


cdef int _nested(Out *o, PyObject *v, int depth) except -2:
    # A value of a container that could lose it while Python code runs.
    if _simple(v):
        return _value(o, v, depth)
    Py_INCREF(v)
    try:
        return _value(o, v, depth)
    finally:
        Py_DECREF(v)


cdef int _dict(Out *o, PyObject *d, int depth) except -2:
    cdef bint plain = o.plain
    cdef size_t start
    cdef uint32_t mangled = o.mangled
    cdef int status
    cdef dict copy
    if depth >= MAX_DEPTH:
        o.reason = <uint8_t> R_UNENCODABLE
        return -1
    if _reserve(o, LC_SLACK) < 0:
        return -1
    o.plain = False
    start = <size_t> (o.p - o.base)
    if LC_SHARED:
        copy = dict(<object> d)
        status = _items(o, <PyObject *> copy, depth)
    else:
        status = _items(o, d, depth)
    if status == 1:
        # A key that is no string, or no proper one: it becomes one, and might then be there twice.
        o.p = o.base + start
        o.mangled = mangled
        copy = _normal(o, <object> d, None)
        if copy is None:
            return -1
        status = _items(o, <PyObject *> copy, depth)
        if status == 1:
            o.reason = <uint8_t> R_UNENCODABLE
            status = -1
    o.plain = plain
    return status


# 0, or 1 for a key that needs _normal.
cdef int _items(Out *o, PyObject *d, int depth) except -2:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t at = 0
    cdef size_t start = <size_t> (o.p - o.base)
    cdef uint32_t mangled
    cdef int status
    o.p[0] = c'{'
    o.p += 1
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k):
            return 1
        mangled = o.mangled
        if _string(o, k) < 0 or _reserve(o, LC_SLACK) < 0:
            return -1
        if o.mangled != mangled:
            return 1
        o.p[0] = c':'
        o.p += 1
        status = _nested(o, v, depth + 1)
        if status < 0:
            return status
        if _reserve(o, LC_SLACK) < 0:
            return -1
        o.p[0] = c','
        o.p += 1
    if <size_t> (o.p - o.base) > start + 1:
        o.p -= 1
    o.p[0] = c'}'
    o.p += 1
    return 0


cdef int _list(Out *o, PyObject *items, int depth) except -2:
    cdef bint plain = o.plain
    cdef bint is_list = PyList_Check(items)
    cdef PyObject *v
    cdef object copy
    cdef Py_ssize_t i = 0
    cdef int status
    if depth >= MAX_DEPTH:
        o.reason = <uint8_t> R_UNENCODABLE
        return -1
    if LC_SHARED and is_list:
        copy = tuple(<object> items)
        items = <PyObject *> copy
        is_list = False
    if _raw(o, b"[", 1) < 0:
        return -1
    o.plain = False
    while i < (PyList_GET_SIZE(items) if is_list else PyTuple_GET_SIZE(items)):
        v = PyList_GET_ITEM(items, i) if is_list else PyTuple_GET_ITEM(items, i)
        status = _nested(o, v, depth + 1)
        if status < 0:
            return status
        if _raw(o, b",", 1) < 0:
            return -1
        i += 1
    o.plain = plain
    if i:
        o.p -= 1
    return _raw(o, b"]", 1)


cdef int _other(Out *o, object v, int depth) except -2:
    # Subclasses of the plain types by their value; what has another form by that; the rest by str().
    cdef object other
    if isinstance(v, str):
        return _string(o, <PyObject *> v)
    if isinstance(v, int):
        return _integer(o, <PyObject *> v)
    if isinstance(v, float):
        return _float(o, PyFloat_AS_DOUBLE(<PyObject *> v))
    try:
        if isinstance(v, (list, tuple)):
            other = tuple(v)
        elif isinstance(v, (set, frozenset)):
            other = list(v)
        elif isinstance(v, Mapping):
            other = dict(v)
        else:
            other = _text(o, v)
    except Exception:
        other = _unprintable(o, v)
    return _value(o, <PyObject *> other, depth)


cdef bint _known(object v) except -1:
    # Types whose str() is their proper text. Modules that were never imported have no instances.
    cdef tuple row
    for row in (("uuid", "UUID"), ("decimal", "Decimal"), ("enum", "Enum"), ("pathlib", "PurePath")):
        module = sys.modules.get(row[0])
        if module is not None:
            kind = getattr(module, row[1], None)
            if isinstance(kind, type) and isinstance(v, kind):
                return True
    return False


cdef str _text(Out *o, object v):
    cdef str text
    if isinstance(v, (bytes, bytearray, memoryview)):
        text = str(bytes(v), "utf-8", "replace")
        o.mangled += 1
        return text
    module = sys.modules.get("datetime")
    if module is not None and isinstance(v, (module.date, module.time)):
        # ISO 8601 with its T, which is what makes Elasticsearch see a date.
        return _exact(v.isoformat())
    text = _exact(str(v))
    if not _known(v):
        o.mangled += 1
    return text


cdef inline str _exact(object text):
    return text if type(text) is str else PyUnicode_FromObject(text)


cdef str _unprintable(Out *o, object v):
    o.mangled += 1
    return f"<unprintable {type(v).__name__}>"


# -- keys

cdef bint _has_surrogate(PyObject *text) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t c
    cdef int kind
    cdef void *data
    if lc_ready(text) < 0:
        return True
    kind = PyUnicode_KIND(text)
    if kind == PyUnicode_1BYTE_KIND:
        return False
    data = PyUnicode_DATA(text)
    for i in range(PyUnicode_GET_LENGTH(text)):
        c = (<uint16_t *> data)[i] if kind == PyUnicode_2BYTE_KIND else (<uint32_t *> data)[i]
        if 0xD800 <= c <= 0xDFFF:
            return True
    return False


cdef str _key(Out *o, object key):
    cdef str text
    if type(key) is str:
        text = key
    elif isinstance(key, str):
        text = PyUnicode_FromObject(key)
    else:
        o.mangled += 1
        try:
            if isinstance(key, (bytes, bytearray)):
                text = str(bytes(key), "utf-8", "replace")
            else:
                text = _exact(str(key))
        except Exception:
            text = f"<unprintable {type(key).__name__}>"
    if _has_surrogate(<PyObject *> text):
        o.mangled += 1
        text = "".join(["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text])
    return text


cdef dict _normal(Out *o, object d, dict without):
    """The mapping with keys that are proper strings, the last of equal ones; None: it cannot be read."""
    cdef dict copy = {}
    try:
        for key, value in list(d.items()):
            if without is None or key not in without:
                copy[_key(o, key)] = value
    except Exception:
        o.reason = <uint8_t> R_UNENCODABLE
        return None
    return copy


cdef inline int _own_key(PyObject *key) noexcept nogil:
    # KEY_... of a key that means something to us, or -1. `key` is an exact str.
    cdef int what
    if not PyUnicode_IS_COMPACT_ASCII(key):
        return -1
    what = lc_what(PyUnicode_DATA(key), <size_t> PyUnicode_GET_LENGTH(key))
    return what if what < KEYS else -1


cdef bint _has_dot(PyObject *text) noexcept nogil:
    cdef Py_ssize_t i
    cdef int kind
    cdef void *data
    if lc_ready(text) < 0:
        return True
    kind = PyUnicode_KIND(text)
    data = PyUnicode_DATA(text)
    if kind == PyUnicode_1BYTE_KIND:
        return memchr(data, c'.', <size_t> PyUnicode_GET_LENGTH(text)) != NULL
    for i in range(PyUnicode_GET_LENGTH(text)):
        if c'.' == ((<uint16_t *> data)[i] if kind == PyUnicode_2BYTE_KIND else (<uint32_t *> data)[i]):
            return True
    return False


# NAME_... or KEY_... of an exact str; a field that carries the id in another protocol is none to it.
cdef int _meaning(PyObject *key) noexcept nogil:
    cdef const char *s
    cdef const char *dot
    cdef size_t n, head
    cdef int what
    if not PyUnicode_IS_COMPACT_ASCII(key):
        return NAME_DOTTED if _has_dot(key) else NAME_PLAIN
    s = <const char *> PyUnicode_DATA(key)
    n = <size_t> PyUnicode_GET_LENGTH(key)
    what = lc_what(s, n)
    if what != NAME_PLAIN:
        return what
    dot = <const char *> memchr(s, c'.', n)
    if dot == NULL:
        return NAME_PLAIN
    head = <size_t> (dot - s)
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


# Whether a mapping has keys that its `id` may be made of.
cdef bint _has_id(PyObject *d) noexcept nogil:
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


# The name of a field that comes again, and what is known of it.
ctypedef struct Known:
    PyObject *key            # held, or NULL
    uint8_t what             # NAME_... or KEY_...
    uint8_t signs            # what is seen in it in a mapping where it always stays; or SEEN_MORE
    uint8_t size
    char text[32]            # ,"key":
    uint64_t alone           # a bit of 64 for the name,
    uint64_t above           # and one for each that would conflict with it: `a` and `a.b` of `a.b.c`


cdef class Encoder


cdef inline size_t _place_of(PyObject *key) noexcept nogil:
    return (<size_t> key >> 4 ^ <size_t> key >> 12) & (KNOWN - 1)


cdef inline bint _is_object(int what) noexcept nogil:
    return what == NAME_OBJECT or what == NAME_FILLED or what == NAME_LABELS or what == KEY_EVENTS


# What is seen in a name whatever stands there; or SEEN_MORE, or SEEN_UNTOLD.
cdef uint8_t _signs(Encoder e, Known *known, PyObject *key) noexcept nogil:
    cdef uint8_t quoted[LC_WORST * 32 + 2 * LC_SLACK]
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef Out o
    known.size = 0
    if n > 28 or not PyUnicode_IS_COMPACT_ASCII(key):
        return SEEN_UNTOLD
    if lc_quote1(quoted, <uint8_t *> PyUnicode_DATA(key), n) != quoted + n:
        return SEEN_UNTOLD
    known.size = <uint8_t> n + 4
    memcpy(known.text, b',"', 2)
    memcpy(known.text + 2, quoted, n)
    memcpy(known.text + 2 + n, b'":', 2)
    o.seen = 0
    # Where a scalar stays, a mapping does.
    if known.what != NAME_PLAIN and _place(e, &o, known.what, Py_None, False) != STAYS:
        return SEEN_MORE
    return o.seen


# What becomes of a field with a name that means something.
cdef int _place(Encoder e, Out *o, int what, PyObject *v, bint record) noexcept nogil:
    if what == NAME_CARRIER:
        return ARRANGES
    if not e.ecs:
        return STAYS
    if _is_object(what):
        if PyDict_CheckExact(v) and not e.flat:
            if what == NAME_LABELS:
                o.seen |= SEEN_LABELS
            elif what == NAME_FILLED and record or what == KEY_EVENTS and e.carries and _has_id(v):
                return ARRANGES
            return STAYS
        if (_simple(v) or v == Py_True or v == Py_False or PyList_CheckExact(v) or PyTuple_CheckExact(v)
                or PyDict_CheckExact(v)):
            return MOVES
        return ARRANGES
    if what < KEYS:
        if what == KEY_METADATA:
            return ARRANGES if e.beats else STAYS
        if what == KEY_EVENT_ID and e.carries:
            return ARRANGES
        if record and (what == KEY_TIMESTAMP or what == KEY_LEVEL):
            return ARRANGES
        if what != KEY_MESSAGE and what != KEY_TIMESTAMP:
            o.seen |= SEEN_BELOW
        return STAYS
    if what == NAME_BELOW_ID and e.beats or record and (what == NAME_BELOW_FILLED or what == NAME_BELOW_OURS):
        return ARRANGES
    o.seen |= SEEN_LABELS if what == NAME_BELOW_LABELS else SEEN_BELOW
    return STAYS


cdef inline uint64_t _bit(const uint8_t *s, size_t n) noexcept nogil:
    return <uint64_t> 1 << ((n * 5 + s[0] * 3 + s[n - 1]) & 63)


# The bits of a name. An object of ECS is no scalar, so a name may be below it.
cdef void _note_bits(Known *known, PyObject *key) noexcept nogil:
    cdef const uint8_t *s
    cdef const uint8_t *dot
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(key)
    cdef bint first = True
    known.alone = known.above = 0
    if n == 0:
        return
    if not PyUnicode_IS_COMPACT_ASCII(key):
        if known.what == NAME_DOTTED:
            known.above = ~<uint64_t> 0      # who knows
        return
    s = <const uint8_t *> PyUnicode_DATA(key)
    known.alone = _bit(s, n)
    if known.what == NAME_PLAIN:
        return
    dot = <const uint8_t *> memchr(s, c'.', n)
    while dot != NULL:
        if dot > s and not (first and _is_object(lc_what(s, <size_t> (dot - s)))):
            known.above |= _bit(s, <size_t> (dot - s))
        first = False
        dot = <const uint8_t *> memchr(dot + 1, c'.', <size_t> (s + n - dot - 1))


# Whether one of these names is what stands before a dot in another one; or there are too many to tell.
# `standard`: NULL, or what is not the user's.
cdef bint _tangled(PyObject *d, Py_ssize_t start, PyObject *standard) noexcept nogil:
    cdef const uint8_t *names[FEW]
    cdef uint16_t sizes[FEW]
    cdef const uint8_t *dot
    cdef const uint8_t *end
    cdef uint64_t there = 0
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t at = start
    cdef uint32_t count = 0, i, j, n
    while PyDict_Next(d, &at, &k, &v):
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        n = <uint32_t> min(PyUnicode_GET_LENGTH(k), <Py_ssize_t> SHORT)
        if count == FEW or n >= SHORT or not PyUnicode_IS_COMPACT_ASCII(k):
            return True
        if n == 0:
            continue
        names[count] = <const uint8_t *> PyUnicode_DATA(k)
        sizes[count] = <uint16_t> n
        there |= _bit(names[count], n)
        count += 1
    for i in range(count):
        end = names[i] + sizes[i]
        dot = <const uint8_t *> memchr(names[i] + 1, c'.', sizes[i] - 1)
        while dot != NULL:
            n = <uint32_t> (dot - names[i])
            if there & _bit(names[i], n):
                for j in range(count):
                    if sizes[j] == n and memcmp(names[i], names[j], n) == 0:
                        return True
            dot = <const uint8_t *> memchr(dot + 1, c'.', <size_t> (end - dot - 1))
    return False


# Whether the fields that were all looked at must be arranged after all.
cdef inline bint _conflicts(Out *o, bint moves, PyObject *d, Py_ssize_t at,
                            PyObject *standard) noexcept nogil:
    if moves and o.seen & SEEN_LABELS:
        return True
    if o.names & o.above or o.seen & SEEN_BELOW and o.seen & SEEN_MAPPING:
        return _tangled(d, at, standard)
    return False


# -- fields at the top of a document
#
# The first comma of an object is overwritten by its opening brace in the end.

cdef inline void _big(uint8_t *p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t> (v >> 24)
    p[1] = <uint8_t> (v >> 16)
    p[2] = <uint8_t> (v >> 8)
    p[3] = <uint8_t> v


cdef inline void _close_pair(Out *o) noexcept nogil:
    _big(o.base + o.value - 4, <uint32_t> (<size_t> (o.p - o.base) - o.value))


# A key of ours and, in an object, the quote that opens a `text`. There must be room for LC_SLACK bytes.
cdef inline void _open(Out *o, int key, bint text) noexcept nogil:
    cdef const lc_key *k = &lc_keys[key]
    if o.block:
        _big(o.p, k.n)
        memcpy(o.p + 4, k.text + 2, k.n)
        o.p += k.n + 8
        o.value = <size_t> (o.p - o.base)
        o.pairs += 1
    else:
        memcpy(o.p, k.text, LC_SLACK)        # more than it is, and always the same: two registers
        o.p += k.n + 4 + text


# _chars and _integer leave room for this.
cdef inline int _close(Out *o, bint text) noexcept nogil:
    if o.block:
        _close_pair(o)
    elif text:
        o.p[0] = c'"'
        o.p += 1
    return 0


cdef int _plain_text(Out *o, int key, PyObject *v) noexcept nogil:
    # 0, -1 or ODD.
    if v == NULL or v == Py_None or o.taken >> key & 1:
        return 0
    if not PyUnicode_CheckExact(v):
        return ODD
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    _open(o, key, True)
    if _chars(o, v) < 0:
        return -1
    return _close(o, True)


cdef int _plain_number(Out *o, int key, PyObject *v) noexcept nogil:
    cdef int overflow = 0
    cdef long long number
    if v == NULL or v == Py_None or o.taken >> key & 1:
        return 0
    if not PyLong_CheckExact(v):
        return ODD
    number = _number(v, &overflow)
    if overflow:
        return ODD
    if _reserve(o, 3 * LC_SLACK) < 0:
        return -1
    _open(o, key, False)
    o.p = lc_int(o.p, number)
    return _close(o, False)


# `v` must be held.
cdef int _text_field(Out *o, int key, PyObject *v) except -2:
    cdef int status = _plain_text(o, key, v)
    return _odd_field(o, key, v) if status == ODD else status


cdef int _odd_field(Out *o, int key, PyObject *v) except -2:
    # Somebody put something of their own into an attribute of the record.
    cdef int status
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    _open(o, key, False)
    status = _nested(o, v, 1)
    if status < 0:
        return status
    return _close(o, False)


cdef int _message_chars(Out *o, PyObject *s) noexcept nogil:
    # The message, of which only so much is written as the document has room for.
    cdef Py_ssize_t i, n
    cdef size_t room = o.room
    cdef uint8_t *p
    cdef uint32_t c
    cdef int bad = 0, kind
    cdef void *data
    if o.cut == WHOLE:
        return _chars(o, s)
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    if lc_ready(s) < 0:
        o.reason = <uint8_t> R_UNENCODABLE
        return -1
    if o.cut == BLANK:
        return 0
    n = PyUnicode_GET_LENGTH(s)
    kind = PyUnicode_KIND(s)
    data = PyUnicode_DATA(s)
    for i in range(n):
        if _reserve(o, 3 * LC_SLACK) < 0:
            return -1
        if kind == PyUnicode_1BYTE_KIND:
            c = (<uint8_t *> data)[i]
        elif kind == PyUnicode_2BYTE_KIND:
            c = (<uint16_t *> data)[i]
        else:
            c = (<uint32_t *> data)[i]
        p = lc_plain(o.p, &c, 4, 1, &bad) if o.plain else lc_quote4(o.p, &c, 1, &bad)
        if <size_t> (p - o.p) > room:
            break
        room -= <size_t> (p - o.p)
        o.p = p
    if bad:
        o.mangled += 1
    return 0


cdef int _mark(Out *o) noexcept nogil:
    # What Filebeat says of a line that it cut.
    if o.cut == WHOLE:
        return 0
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    _open(o, KEY_FLAGS, False)
    if _raw(o, b'["truncated"]', 13) < 0:
        return -1
    return _close(o, False)


# The user's fields: of a mapping, or of a record's dictionary from `at` on without what `standard` has.
# 0, or 1: they must be made other ones before (a key that is no proper string, a field with a name of ours).
cdef int _fields(Encoder e, Out *o, PyObject *d, Py_ssize_t at, dict standard, bint record) except -2:
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t start = at
    cdef uint32_t mangled
    cdef uint32_t moved = o.moved
    # A record's were looked at before: what moves among them is still to be done.
    cdef bint looks = e.watches and not o.arranged and (not record or o.seen & SEEN_MOVING)
    cdef bint moves
    cdef Known *known
    # Names whose text is known, and that stay: written without a look at them.
    cdef uint8_t stops = 0 if o.block or o.cut != WHOLE else SEEN_MORE if looks else SEEN_UNTOLD
    cdef uint8_t seen = 0
    cdef uint64_t names = 0, above = 0
    cdef Known passing
    cdef int own = NAME_PLAIN, place, status
    cdef uint8_t *p
    while PyDict_Next(d, &at, &k, &v):
        known = &e.known[_place_of(k)]
        if known.key == k and known.signs < stops and standard is None:
            if _reserve(o, 3 * LC_SLACK) < 0:
                return -1
            memcpy(o.p, known.text, 32)
            o.p += known.size
            seen |= known.signs
            names |= known.alone
            above |= known.above
            if _simple(v):
                if _value(o, v, 1) < 0:
                    return -1
                continue
            o.seen |= SEEN_MAPPING
            status = _nested(o, v, 1)
            if status < 0:
                return status
            continue
        if not PyUnicode_CheckExact(k):
            return 1
        if standard is not None and lc_find(<PyObject *> standard, k) != NULL:
            continue
        moves = False
        if looks:
            place = e.judge(o, e.know(k, &passing), v, record)
            if place == ARRANGES and not record:
                return 1
            moves = place == MOVES
        if o.cut != WHOLE:
            own = _own_key(k)
        if moves:
            # One of the names of ECS's objects: short, and without anything to escape.
            o.moved += 1
            if _move(o, k) < 0:
                return -1
        elif not o.block and PyUnicode_IS_COMPACT_ASCII(k) and PyUnicode_GET_LENGTH(k) <= SEGMENT:
            if _reserve(o, LC_WORST * <size_t> PyUnicode_GET_LENGTH(k) + 2 * LC_SLACK) < 0:
                return -1
            o.p[0] = c','
            o.p[1] = c'"'
            p = lc_quote_short(o.p + 2, <uint8_t *> PyUnicode_DATA(k), <size_t> PyUnicode_GET_LENGTH(k))
            p[0] = c'"'
            p[1] = c':'
            o.p = p + 2
            if _simple(v) and o.cut == WHOLE:
                if _value(o, v, 1) < 0:
                    return -1
                continue
        elif o.block:
            if _reserve(o, 4 + 2 * LC_SLACK) < 0:
                return -1
            o.p += 4
            o.value = <size_t> (o.p - o.base)
            mangled = o.mangled
            if _chars(o, k) < 0:
                return -1
            if o.mangled != mangled:
                return 1
            _close_pair(o)
            o.p += 4
            o.value = <size_t> (o.p - o.base)
            o.pairs += 1
        else:
            mangled = o.mangled
            if _raw(o, b',"', 2) < 0 or _chars(o, k) < 0 or _raw(o, b'":', 2) < 0:
                return -1
            if o.mangled != mangled:
                return 1
        if looks and not _simple(v):
            o.seen |= SEEN_MAPPING
        if o.cut != WHOLE and own == KEY_MESSAGE and PyUnicode_Check(v):
            if not o.block:
                o.p[0] = c'"'
                o.p += 1
            if _message_chars(o, v) < 0:
                return -1
            _close(o, True)
            continue
        status = _nested(o, v, 1)
        if status < 0:
            return status
        if o.block:
            _close_pair(o)
    o.seen |= seen
    o.names |= names
    o.above |= above
    return looks and not record and _conflicts(o, o.moved != moved, d, start, NULL)


# The key of a field that moves below `labels`.
cdef int _move(Out *o, PyObject *k) noexcept nogil:
    cdef size_t n = <size_t> PyUnicode_GET_LENGTH(k)
    if _reserve(o, n + 2 * LC_SLACK) < 0:
        return -1
    if o.block:
        _big(o.p, <uint32_t> n + 7)
        memcpy(o.p + 4, b"labels.", 7)
        memcpy(o.p + 11, PyUnicode_DATA(k), n)
        o.p += n + 15
        o.value = <size_t> (o.p - o.base)
        o.pairs += 1
    else:
        memcpy(o.p, b',"labels.', 9)
        memcpy(o.p + 9, PyUnicode_DATA(k), n)
        o.p += n + 9
        memcpy(o.p, b'":', 2)
        o.p += 2
    return 0


cdef int _end(Out *o) noexcept nogil:
    # Brace or count; the last check of the size.
    if o.block:
        _big(o.base, o.pairs)
    else:
        if _reserve(o, LC_SLACK) < 0:
            return -1
        if o.p == o.base:
            o.p += 1
        o.base[0] = c'{'
        o.p[0] = c'}'
        o.p += 1
    if <size_t> (o.p - o.base) > o.limit:
        o.reason = <uint8_t> R_TOO_LARGE
        return -1
    return 0


# -- the message

cdef int _format(Out *o, PyObject *msg, PyObject *args) noexcept nogil:
    """`msg % args` for %s and %d of plain values: 1; 0 for anything else (what was written is void)."""
    cdef const uint8_t *p
    cdef const uint8_t *q
    cdef const uint8_t *end
    cdef PyObject *v
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t given = PyTuple_GET_SIZE(args)
    cdef size_t n
    cdef int overflow = 0
    cdef long long number
    cdef uint8_t c
    cdef uint8_t *to
    if not PyUnicode_IS_COMPACT_ASCII(msg) or o.plain or o.cut != WHOLE:
        return 0
    n = <size_t> PyUnicode_GET_LENGTH(msg)
    if n > SEGMENT:
        return 0
    p = <uint8_t *> PyUnicode_DATA(msg)
    end = p + n
    while True:
        if _reserve(o, LC_WORST * <size_t> (end - p) + 2 * LC_SLACK + 40) < 0:
            return -1
        q = <const uint8_t *> memchr(p, c'%', <size_t> (end - p))
        if q == NULL:
            o.p = lc_quote1(o.p, p, <size_t> (end - p))
            return used == given
        if q + 1 >= end:
            return 0
        o.p = lc_quote1(o.p, p, <size_t> (q - p))
        p = q + 2
        c = q[1]
        if c == c'%':
            o.p[0] = c'%'
            o.p += 1
            continue
        if used == given:
            return 0
        v = PyTuple_GET_ITEM(args, used)
        used += 1
        if PyLong_CheckExact(v) and (c == c's' or c == c'd'):
            number = _number(v, &overflow)
            if overflow:
                return 0
            o.p = lc_int(o.p, number)
        elif c != c's':
            return 0
        elif PyUnicode_CheckExact(v):
            if _chars(o, v) < 0:
                return -1
        elif PyFloat_CheckExact(v):
            to = lc_float(o.p, PyFloat_AS_DOUBLE(v))
            if to == NULL:
                return 0
            o.p = to
        elif v == Py_None:
            memcpy(o.p, b"None", 4)
            o.p += 4
        else:
            return 0


cdef str _message(Out *o, object msg, object args):
    """What ``LogRecord.getMessage`` gives; arguments that do not fit are shown beside the message."""
    cdef str text
    try:
        text = _exact(msg if type(msg) is str else str(msg))
    except Exception:
        text = _unprintable(o, msg)
    try:
        if args:
            text = _exact(text % args)
    except Exception:
        o.mangled += 1
        try:
            text = f"{text} % {args!r}"
        except Exception:
            text = f"{text} % <unprintable arguments>"
    return text


cdef str _get_message(Out *o, object record):
    """The message of a record whose class has its own ``getMessage``."""
    try:
        return _exact(record.getMessage())
    except Exception:
        return _message(o, getattr(record, "msg", ""), getattr(record, "args", None))


# -- the encoder

def own_thread(bint own=True):
    """Mark (or unmark) the calling thread as one of a sender's: what it logs is ignored.

    Returns what it was before.
    """
    cdef bint before = lc_this_thread.own
    lc_this_thread.own = own
    return before


cdef bint _in_destructor() except -1:
    # Whether a `__del__` or a callback of `weakref.finalize` is on the stack: a garbage collection that
    # happens in the sender's thread runs the application's there, and what they log is the application's.
    cdef object weakref = sys.modules.get("weakref")
    cdef object finalize = None if weakref is None else weakref.finalize.__call__.__code__
    cdef object frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code is finalize:
            return True
        frame = frame.f_back
    return False


cdef bint _own_logger(PyObject *name) noexcept nogil:
    # "logclient", "zmq", "websockets" and what is below them.
    cdef const char *s
    cdef Py_ssize_t n, own
    if name == NULL or not PyUnicode_CheckExact(name) or not PyUnicode_IS_COMPACT_ASCII(name):
        return False
    s = <const char *> PyUnicode_DATA(name)
    n = PyUnicode_GET_LENGTH(name)
    if s[0] == c'l':
        own = 9
        if n < own or memcmp(s, b"logclient", 9) != 0:
            return False
    elif s[0] == c'z':
        own = 3
        if n < own or memcmp(s, b"zmq", 3) != 0:
            return False
    elif s[0] == c'w':
        own = 10
        if n < own or memcmp(s, b"websockets", 10) != 0:
            return False
    else:
        return False
    return n == own or s[own] == c'.'


@cython.final
cdef class Encoder:
    """Makes documents, and puts them into a hand-off.

    Parameters
    ----------
    handoff
        Where ``send`` and ``log`` put the documents; None when only bytes are wanted.
    max_event_bytes
        A longer document fails as too_large.
    truncate
        Cut the message of such a document instead, and mark it with ``"log.flags": ["truncated"]``.
    pairs
        Make pair blocks (Lumberjack version 1) instead of JSON objects.
    text
        What makes a mapping of a string; None: ``{"message": ...}``.
    complete
        What adds to a dictionary what the protocol asks for, in a copy; None: nothing does.
    ecs
        The documents are those of ECS: what is no mapping and has the name of one of its objects moves to
        ``labels.<name>``, and no scalar stays beside a field below it.
    carriers
        The fields that may carry the event's id; ``@metadata``: Lumberjack's two. What an application has
        there moves to `labels`, so that it cannot be taken for an id of ours.
    identity
        ``own``: it stays there, and is the event's id; ``none``: it stays, no event has an id.
    trust_metadata
        Keep ``@metadata`` of the application's, all but its ``_id``.
    flat
        Mappings become text in the end, and are no objects.
    labels
        What the names of fields that move begin with.
    """

    cdef readonly Handoff handoff
    cdef readonly size_t max_event_bytes
    cdef readonly bint truncate
    cdef readonly bint pairs
    cdef readonly bint ecs
    cdef readonly tuple carriers
    cdef readonly str identity
    cdef readonly bint trust_metadata
    cdef readonly bint flat
    cdef readonly str labels
    cdef bint watches                # names of fields matter at all
    cdef bint beats                  # Lumberjack: `@metadata` is not the application's
    cdef bint carries                # ... and its `event.id` may be ours
    cdef bint replaces               # another protocol: the fields that may carry the id are ours alone
    cdef Known known[KNOWN]
    cdef object text
    cdef object complete
    cdef dict standard               # every attribute that is not the user's -> its slot
    cdef object order                # keeps the names alive
    cdef PyObject *names[ORDER]      # as LogRecord.__init__ makes them, so that one pass finds them all
    cdef uint8_t slots[ORDER]
    cdef int count
    cdef object record_type
    cdef object get_message
    cdef object format_exception

    def __cinit__(self, Handoff handoff=None, *, size_t max_event_bytes=1 << 20, bint truncate=False,
                  bint pairs=False, text=None, complete=None, bint ecs=True, tuple carriers=("@metadata",),
                  str identity="id", bint trust_metadata=False, bint flat=False, str labels="labels."):
        memset(self.known, 0, sizeof(self.known))
        self.ecs = ecs
        self.carriers = carriers
        self.identity = identity
        self.trust_metadata = trust_metadata
        self.flat = flat or pairs
        self.labels = labels
        self.beats = "@metadata" in carriers
        self.carries = self.beats and identity != "none"
        self.replaces = len(carriers) and not self.beats and identity == "id"
        self.watches = ecs or self.replaces
        self.handoff = handoff
        self.max_event_bytes = max_event_bytes
        self.truncate = truncate
        self.pairs = pairs
        self.text = text
        self.complete = complete
        self.record_type = logging.LogRecord
        self.get_message = logging.LogRecord.getMessage
        self.format_exception = logging.Formatter().formatException
        slots = {name: i for i, name in enumerate(SLOT_NAMES)}
        self.order = list(vars(logging.LogRecord("", 0, "", 0, "", (), None)))[:ORDER]
        self.standard = {name: slots.get(name, S_UNUSED) for name in (*self.order, "message", "asctime")}
        for i, name in enumerate(self.order):
            self.names[i] = <PyObject *> self.order[i]
            self.slots[i] = self.standard[name]
        self.count = len(self.order)

    def __dealloc__(self):
        cdef int i
        for i in range(<int> KNOWN):
            Py_XDECREF(self.known[i].key)

    # What is known of an exact str. Names that stand in programs are the same objects at each call; one that
    # is not kept is noted in `passing`.
    cdef inline Known *know(self, PyObject *key, Known *passing) noexcept nogil:
        cdef Known *known = &self.known[_place_of(key)]
        return known if known.key == key else self._look_up(key, known, passing)

    cdef Known *_look_up(self, PyObject *key, Known *known, Known *passing) noexcept nogil:
        cdef bint keep = not LC_SHARED and lc_lasting(key) and PyUnicode_GET_LENGTH(key) < SHORT
        if not keep:
            known = passing
        known.what = <uint8_t> _meaning(key)
        if self.replaces and _is_among(key, <PyObject *> self.carriers):
            known.what = NAME_CARRIER
        if self.ecs:
            _note_bits(known, key)
        else:
            known.alone = known.above = 0
        if keep:
            known.signs = _signs(self, known, key)
            lc_keep(&known.key, key)
        return known

    # STAYS, MOVES or ARRANGES.
    cdef inline int judge(self, Out *o, Known *known, PyObject *v, bint record) noexcept nogil:
        o.names |= known.alone
        o.above |= known.above
        return STAYS if known.what == NAME_PLAIN else _place(self, o, known.what, v, record)

    def encode(self, obj):
        """(body, kind, mangled values, moved fields) of a mapping or a string.

        Raises EncodeError (a ValueError) for a cycle or a document that is too large, EncodeTypeError
        for what is neither.
        """
        return self._encode(obj, None, False)

    def encode_record(self, record):
        """(body, kind, mangled values, moved fields) of a LogRecord. Raises EncodeError."""
        return self._encode(None, record, True)

    cdef int64_t put(self, object obj, uint8_t level) except? -9:
        # A mapping or a string into the hand-off. Raises after the event was counted as failed.
        cdef uint8_t stack[STACK]
        cdef Out o
        cdef int64_t seq
        cdef uint8_t reason
        o.heap = NULL
        try:
            if self._mapping(&o, stack, obj) < 0:
                reason = o.reason if o.reason != R_NONE else <uint8_t> R_UNENCODABLE
                if self.handoff.put(&reason, 1, level, <uint8_t> K_TOMB, 0) == PUT_FULL:
                    self.handoff.refuse()
                raise _error(o.reason, obj, self.max_event_bytes)
            seq = self.handoff.put(o.base, <uint32_t> (o.p - o.base), level,
                                   <uint8_t> K_DOCUMENT | o.flags, 0)
            if o.mangled or o.moved:
                self.handoff.count_changed(o.mangled, o.moved)
        finally:
            free(o.heap)
        return seq

    cdef object _encode(self, object obj, object record, bint is_record):
        cdef uint8_t stack[STACK]
        cdef Out o
        cdef int64_t created_us
        cdef uint8_t level
        cdef int status
        o.heap = NULL
        try:
            if is_record:
                status = _record(self, &o, stack, &lc_this_thread, record, None, False, &created_us, &level)
            else:
                status = self._mapping(&o, stack, obj)
            if status < 0:
                raise _error(o.reason, record if is_record else obj, self.max_event_bytes)
            return (PyBytes_FromStringAndSize(<char *> o.base, o.p - o.base), <int> K_DOCUMENT | o.flags,
                    o.mangled, o.moved)
        finally:
            free(o.heap)

    # -- mappings

    cdef int _mapping(self, Out *o, uint8_t *stack, object obj) except -2:
        cdef int status
        cdef dict d
        _begin(o, stack, STACK, self.max_event_bytes, self.pairs, WHOLE, 0)
        if type(obj) is dict:
            d = obj
        elif isinstance(obj, str):
            d = {"message": obj} if self.text is None else <dict?> self.text(obj)
        elif isinstance(obj, Mapping):
            try:
                d = dict(obj)
            except Exception:
                o.reason = <uint8_t> R_UNENCODABLE
                return -1
        else:
            o.reason = <uint8_t> R_NONE
            return -1
        if self.complete is not None and not isinstance(obj, str):
            d = <dict?> self.complete(d)
        status = self._mapping_once(o, d)
        if status == -1 and o.reason == R_TOO_LARGE and self.truncate:
            for cut in (BLANK, CUT):
                if cut == CUT and status < 0:
                    break
                _again(o, stack, cut, self.pairs)
                status = self._mapping_once(o, d)
        return status

    cdef int _mapping_once(self, Out *o, dict d) except -2:
        cdef int status
        cdef size_t start = <size_t> (o.p - o.base)
        cdef dict source = d.copy() if LC_SHARED else d
        # One that is cut has a field of ours.
        status = 1 if o.cut != WHOLE else _fields(self, o, <PyObject *> source, 0, None, False)
        if status == 1:
            o.p = o.base + start
            o.mangled = o.pairs = o.moved = 0
            source = self._arranged(o, _normal(o, d, None), False)
            if source is None:
                return -1
            status = _fields(self, o, <PyObject *> source, 0, None, False)
            if status == 1:
                o.reason = <uint8_t> R_UNENCODABLE
                return -1
        if status < 0:
            return status
        if _mark(o) < 0:
            return -1
        return _end(o)

    # -- records

    cdef inline void _walk(self, PyObject *standard, PyObject *d, Slots *s) noexcept nogil:
        # One pass over the record's dictionary. `standard` is the encoder's.
        cdef PyObject *k
        cdef PyObject *v
        cdef PyObject *place
        cdef Py_ssize_t at = 0, before = 0
        cdef int i = 0
        s.extra = -1
        s.mixed = False
        memset(s.of, 0, SLOTS * sizeof(PyObject *))
        while PyDict_Next(d, &at, &k, &v):
            if i < self.count and k == self.names[i]:
                s.of[self.slots[i]] = v
                lc_prefetch(v)
                i += 1
            else:
                place = lc_find(standard, k) if PyUnicode_CheckExact(k) else NULL
                if place != NULL:
                    s.of[lc_compact_value(place)] = v
                    s.mixed = s.extra >= 0
                elif s.extra < 0:
                    s.extra = before
            before = at

    cdef dict _hold(self, dict attributes, Slots *s):
        """Before any Python code runs: what it can take away no longer.

        Returns the dictionary to go on with: a copy, when fields of the user's are to be read from it.
        """
        cdef Slots again
        cdef int i
        if s.held:
            return attributes
        for i in range(<int> S_UNUSED):
            Py_XINCREF(s.of[i])
        s.held = True
        if s.extra >= 0 and not LC_SHARED:
            attributes = PyDict_Copy(attributes)
            self._walk(<PyObject *> self.standard, <PyObject *> attributes, &again)
            s.extra = again.extra
            s.mixed = again.mixed
        return attributes

    cdef int _fill(self, Out *o, object record, object override, int64_t *created_us,
                   uint8_t *level) except -2:
        cdef Slots s
        cdef object made = PyObject_GenericGetDict(record, NULL)
        cdef dict attributes = PyDict_Copy(made) if LC_SHARED or type(made) is not dict else made
        cdef int i
        self._walk(<PyObject *> self.standard, <PyObject *> attributes, &s)
        s.held = False
        if o.guard and _own_logger(s.of[S_NAME]):
            return 1
        try:
            return self._write(o, record, attributes, &s, override, created_us, level)
        finally:
            if s.held:
                for i in range(<int> S_UNUSED):
                    Py_XDECREF(s.of[i])

    cdef int _write(self, Out *o, object record, dict attributes, Slots *s, object override,
                    int64_t *created_us, uint8_t *level) except -2:
        cdef PyObject *standard = <PyObject *> self.standard
        cdef PyObject *chosen = NULL     # the text of the message, when it is not the record's
        cdef dict fields = None          # the user's, when they cannot be taken from the record as they are
        cdef object text = None
        cdef bint own_message = False    # the record may have a getMessage() of its own
        cdef bint odd = False
        cdef int status, step = 0
        level[0] = _level(s.of[S_LEVELNO])
        if not _plain_time(s.of[S_CREATED], created_us):
            attributes = self._hold(attributes, s)
            created_us[0] = _created(s.of[S_CREATED])

        # What of ours the user replaces has to be known before the first of it is written.
        if override is None:
            own_message = type(record) is not self.record_type
            if s.of[S_MSG] != NULL and PyDict_Check(s.of[S_MSG]):
                attributes = self._hold(attributes, s)
                if s.of[S_ARGS] == NULL or not <object> s.of[S_ARGS]:
                    fields = self._merged(o, attributes, s.extra, <object> s.of[S_MSG])
                    if fields is None:
                        return -1
        elif isinstance(override, dict):
            attributes = self._hold(attributes, s)
            fields = self._merged(o, attributes, s.extra, override)
            if fields is None:
                return -1
        else:
            text = override
        if fields is None and s.extra >= 0:
            o.taken = _taken(self, o, <PyObject *> attributes, s.extra, standard if s.mixed else NULL, &odd)
            if odd or o.cut != WHOLE:
                attributes = self._hold(attributes, s)
                fields = self._arranged(o, _normal(o, attributes, self.standard), True)
                if fields is None:
                    return -1
                o.taken = _taken(self, o, <PyObject *> fields, 0, NULL, &odd)
        elif fields is not None:
            o.taken = _taken(self, o, <PyObject *> fields, 0, NULL, &odd)
            if odd or o.cut != WHOLE:
                fields = self._arranged(o, fields, True)
            if isinstance(fields.get("message"), str):
                text = fields.pop("message")         # to its place
            o.taken = _taken(self, o, <PyObject *> fields, 0, NULL, &odd)
            if text is None:
                o.taken |= <uint32_t> 1 << KEY_MESSAGE
        if text is not None:
            chosen = <PyObject *> text

        while True:
            status = _plainly(o, s.of, chosen, own_message, created_us[0], &step)
            if status != ODD:
                break
            attributes = self._hold(attributes, s)
            status = self._oddly(o, record, s.of, step)
            if status < 0:
                break
            step += 1
        if status < 0:
            return status
        if _given(s.of[S_EXC_INFO]) or _given(s.of[S_EXC_TEXT]) or _given(s.of[S_STACK_INFO]):
            attributes = self._hold(attributes, s)
            status = self._error_fields(o, record, _or_none(s.of[S_EXC_INFO]), _or_none(s.of[S_EXC_TEXT]),
                                        _or_none(s.of[S_STACK_INFO]))
            if status < 0:
                return status
        if _mark(o) < 0:
            return -1
        if fields is not None:
            status = _fields(self, o, <PyObject *> fields, 0, None, True)
        elif s.extra >= 0:
            status = _fields(self, o, <PyObject *> attributes, s.extra, self.standard if s.mixed else None,
                             True)
        else:
            status = 0
        if status == 1:
            o.reason = <uint8_t> R_UNENCODABLE
            return -1
        if status < 0:
            return status
        return _end(o)

    cdef int _oddly(self, Out *o, object record, PyObject **slot, int step) except -2:
        """One step of a document that takes Python code. The attributes are held."""
        cdef object text
        cdef PyObject *v
        cdef int key
        if step == STEP_LEVEL:
            text = _lower(<object> slot[S_LEVELNAME])
            return _text_field(o, KEY_LEVEL, <PyObject *> text)
        if step != STEP_MESSAGE:
            v = _of_step(slot, step, &key)
            return _odd_field(o, key, v)
        if type(record) is not self.record_type and \
                getattr(type(record), "getMessage", None) is not self.get_message:
            text = _get_message(o, record)
        else:
            text = _message(o, <object> slot[S_MSG] if slot[S_MSG] != NULL else "", _or_none(slot[S_ARGS]))
        if _reserve(o, 2 * LC_SLACK) < 0:
            return -1
        _open(o, KEY_MESSAGE, True)
        if _message_chars(o, <PyObject *> text) < 0:
            return -1
        return _close(o, True)

    cdef dict _merged(self, Out *o, dict attributes, Py_ssize_t extra, object msg):
        """The fields of a message that is a mapping (structlog's way), over those of `extra`."""
        cdef dict fields = {}
        cdef dict own = _normal(o, msg, None)
        if own is None:
            return None
        if extra >= 0:
            fields = _normal(o, attributes, self.standard)
            if fields is None:
                return None
            # What structlog passes to its own formatter.
            fields.pop("_logger", None)
            fields.pop("_name", None)
        if "message" not in own and isinstance(own.get("event"), str):
            # structlog's name for it; `event` is an object in ECS.
            own = {"message" if key == "event" else key: value for key, value in own.items()}
        fields.update(own)
        return fields

    cdef dict _arranged(self, Out *o, dict fields, bint record):
        """The user's fields without what could be taken for ours; None, if `fields` is.

        Slow, for the few documents that need it: ids, `@metadata`, conflicting names.
        """
        cdef dict made = {}
        cdef list moving = []
        cdef set reserved = _reserved(o, record)
        cdef object own = None
        o.arranged = True
        if fields is None or not self.watches and o.cut == WHOLE:
            return fields
        for key, value in fields.items():
            if self.beats and (key == "@metadata" or key.startswith("@metadata.")):
                own = self._metadata(o, made, key, value) or own
            elif self.carries and key == "event.id":
                value = _settled(o, value)
                if self._is_own(o, moving, key, value):
                    made[key] = value
            elif self.carries and key.startswith("event.id."):
                moving.append((key, value))
            elif self.replaces and key in self.carriers or key in reserved:
                moving.append((key, value))
            elif self.ecs and key in ECS_OBJECTS:
                value = None if self.flat else _as_mapping(o, value)
                if value is None:
                    moving.append((key, fields[key]))
                    continue
                if key == "event" and self.carries:
                    self._event(o, moving, value)
                made[key] = value
            else:
                made[key] = value
        if self.ecs:
            made = self._untangled(o, made, moving, reserved, record)
        self._move_all(o, made, moving)
        if own:
            made["@metadata"] = own          # the last: the id goes in
            if self.carries and not self.pairs and not o.flags & K_ID1_TAKEN:
                o.flags |= <uint8_t> K_METADATA_OPEN
        if self.identity == "own" and o.flags & (K_ID1_TAKEN | K_ID2_TAKEN):
            o.flags = <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
        return made

    cdef object _metadata(self, Out *o, dict made, str key, object value):
        """What stays of the application's `@metadata`, or of a field below: the mapping, or None."""
        cdef dict found
        if key != "@metadata" or self.pairs:
            if self.trust_metadata and not (self.carries and key == "@metadata._id"):
                made[key] = value
            else:
                o.moved += 1
            return None
        found = _as_mapping(o, value)
        if found is None:
            o.moved += 1
            return None
        value = found.pop("_id", None)
        if value is not None and self.identity != "id":
            if self.identity == "own":
                o.flags |= <uint8_t> K_ID1_TAKEN
            found = {"_id": value, **found} if self.trust_metadata else {"_id": value}
        elif not self.trust_metadata:
            o.moved += 1
            return None
        elif value is not None:
            o.moved += 1
        return found or None

    cdef bint _is_own(self, Out *o, list moving, str name, object value) except -1:
        """Whether the application's `event.id` stays; else it is not there, or moves."""
        if value is None:
            return False
        if self.identity == "id" and (self.pairs or _looks_like_ours(value)):
            moving.append((name, value))
            return False
        o.flags |= <uint8_t> K_ID2_TAKEN
        return True

    cdef int _event(self, Out *o, list moving, dict event) except -1:
        """Take the id out of the application's `event`, unless it stays."""
        if "id" in event:
            value = event["id"] = _settled(o, event["id"])
            if not self._is_own(o, moving, "event.id", value):
                del event["id"]
        for name in [name for name in event if name.startswith("id.")]:
            moving.append(("event." + name, event.pop(name)))
        return 0

    cdef dict _untangled(self, Out *o, dict made, list moving, set reserved, bint record):
        """No scalar beside a field below it: mappings are merged with such fields, scalars move."""
        cdef set ours = set(RECORD_NAMES) if record else reserved
        cdef set heads, below
        cdef dict wide, source
        for _ in range(<int> ROUNDS):
            heads, below = _heads(made, ours)
            wide = {name: _as_mapping(o, made[name]) for name in made if name in heads}
            if not any(wide.values()):
                break
            source, made = made, {}
            for name, value in source.items():
                if not wide.get(name):
                    made[name] = value
                    continue
                for key, deep in wide[name].items():
                    path = f"{name}.{key}"
                    if path in made or path in source or path in reserved:
                        moving.append((path, deep))
                    else:
                        made[path] = deep
        heads, below = _heads(made, ours)
        for name in list(made):
            if name in heads or name in below:
                source = _as_mapping(o, made[name])
                if name in below or source is None or source:
                    value = made.pop(name)
                    moving.append((name, value if source is None else source))
        return made

    cdef int _move_all(self, Out *o, dict made, list moving) except -1:
        """Below `labels`, under a name that is free."""
        cdef dict counts = {}
        cdef set heads
        cdef Py_ssize_t n = len(self.labels)
        if not moving:
            return 0
        if "labels" in made and not isinstance(made["labels"], Mapping):
            moving.append(("labels", made.pop("labels")))
        # What fields below `labels` have before their next dot, whether it is a field or not.
        heads = {name[:name.index(".", n)] for name in made
                 if name.startswith(self.labels) and "." in name[n:]}
        inside = made.get("labels", ())
        for name, value in moving:
            plain = base = name.replace(".", "_")
            while self.labels + plain in made or self.labels + plain in heads or plain in inside:
                counts[base] = counts.get(base, 1) + 1
                plain = f"{base}_{counts[base]}"
            made[self.labels + plain] = value
            o.moved += 1
        return 0

    cdef int _error_fields(self, Out *o, object record, object exc_info, object exc_text,
                           object stack_info) except -2:
        cdef int status
        cdef str name, message = None, trace = None
        cdef object kind = None
        try:
            if isinstance(exc_info, BaseException):
                exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
            if isinstance(exc_info, tuple) and len(exc_info) == 3 and exc_info[0] is not None:
                kind = exc_info[0]
                if not exc_text:
                    exc_text = self.format_exception(exc_info)
                    record.exc_text = exc_text       # as logging.Formatter does, for the next handler
        except Exception:
            exc_text = f"<no stack trace: {sys.exc_info()[0].__name__}>"
            o.mangled += 1
        if kind is not None:
            name = _exact(getattr(kind, "__name__", "")) or "?"
            try:
                message = _exact(str(exc_info[1]))
            except Exception:
                message = _unprintable(o, exc_info[1])
            status = _text_field(o, KEY_ERROR_TYPE, <PyObject *> name)
            if status < 0:
                return status
            status = _text_field(o, KEY_ERROR_MESSAGE, <PyObject *> message)
            if status < 0:
                return status
        if isinstance(exc_text, str) and exc_text:
            trace = _exact(exc_text)
        if isinstance(stack_info, str) and stack_info:
            trace = _exact(stack_info) if trace is None else f"{trace}\n{stack_info}"
        return _text_field(o, KEY_STACK_TRACE, <PyObject *> trace)


cdef frozenset ECS_OBJECTS = frozenset(
    lc_names[i].text[:lc_names[i].n].decode() for i in range(<int> LC_NAMES)
    if lc_names[i].what in (NAME_OBJECT, NAME_FILLED, NAME_LABELS, KEY_EVENTS))
cdef tuple RECORD_NAMES = tuple([lc_keys[i].text[2:2 + lc_keys[i].n].decode()
                                 for i in range(<int> KEY_METADATA)])
cdef frozenset OURS_IN_RECORDS = frozenset(("@timestamp", "log.level"))


cdef set _reserved(Out *o, bint record):
    """The names that only we may use."""
    cdef set names = set(OURS_IN_RECORDS if record else ())
    if o.cut != WHOLE:
        names.add("log.flags")
    return names


cdef dict _as_mapping(Out *o, object value):
    """A mapping as a dict with keys that are strings, or None."""
    cdef uint8_t reason = o.reason
    cdef dict found
    if not isinstance(value, Mapping):
        return None
    found = _normal(o, value, None)
    o.reason = reason
    return found


cdef object _settled(Out *o, object value):
    """A value that is written as it is looked at, whatever its `__str__` says next."""
    if value is None or isinstance(value, (bool, float, list, tuple, set, frozenset, Mapping)):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        return _exact(value)
    try:
        return _text(o, value)
    except Exception:
        return _unprintable(o, value)


cdef bint _looks_like_ours(object value) except -1:
    """Whether it could be taken for an id of ours: as JSON, 32 characters that are lower-case hex digits."""
    cdef str text
    if type(value) is int:
        return 10 ** 31 <= value < 10 ** 32
    if type(value) is not str:
        return False
    text = value
    return len(text) == 32 and all([c in "0123456789abcdef" for c in text])


cdef tuple _heads(dict made, set ours):
    """The names that others continue behind a dot; and those of `made` that continue one of `ours`."""
    cdef list above = []
    cdef set heads = set(), below = set()
    cdef str last
    for _, name in sorted([(name.split("."), name) for name in {**made, **dict.fromkeys(ours)}]):
        while above:
            last = above.pop()
            if name.startswith(last + "."):
                above.append(last)
                heads.add(last)
                if name not in ours and not ours.isdisjoint(above):
                    below.add(name)
                break
        above.append(name)
    return heads, below


cdef int _record(Encoder encoder, Out *o, uint8_t *stack, lc_here *here, object record, object override,
                 bint guard, int64_t *created_us, uint8_t *level) except -2:
    # 0, -1 (a tombstone is due), or 1: a record of our own, to be ignored.
    cdef int status
    _begin(o, stack, STACK, encoder.max_event_bytes, encoder.pairs, WHOLE, 0)
    o.guard = guard
    o.here = here
    status = encoder._fill(o, record, override, created_us, level)
    if status == -1 and o.reason == R_TOO_LARGE and encoder.truncate:
        for cut in (BLANK, CUT):
            if cut == CUT and status < 0:
                break
            _again(o, stack, cut, encoder.pairs)
            status = encoder._fill(o, record, override, created_us, level)
    return status


# Called so, a Python error comes back as -2 and nothing is set up to catch it: 20 ns a call.
ctypedef int (*record_function)(Encoder encoder, Out *o, uint8_t *stack, lc_here *here, object record,
                                object override, bint guard, int64_t *created_us, uint8_t *level) noexcept


cdef inline bint _is_short(PyObject *v) noexcept nogil:
    return (v != NULL and PyUnicode_CheckExact(v) and PyUnicode_IS_COMPACT_ASCII(v)
            and PyUnicode_GET_LENGTH(v) <= 128)


# What log.origin.* and its neighbours mostly are, with room made once: 1; 0: not so simple.
cdef int _origin(Out *o, PyObject **slot) noexcept nogil:
    cdef PyObject *name = slot[S_NAME]
    cdef PyObject *file = slot[S_FILENAME]
    cdef PyObject *line = slot[S_LINENO]
    cdef PyObject *function = slot[S_FUNCNAME]
    cdef uint8_t *p
    if (o.taken or o.block or not _is_short(name) or not _is_short(file) or not _is_short(function)
            or line == NULL or not PyLong_CheckExact(line) or not lc_compact(line)):
        return 0
    if _reserve(o, LC_WORST * 3 * 128 + 8 * LC_SLACK) < 0:
        return -1
    p = o.p
    memcpy(p, b',"ecs.version":"8.11.0"', 23)
    p = lc_field(p + 23, KEY_LOGGER, PyUnicode_DATA(name), <size_t> PyUnicode_GET_LENGTH(name))
    p = lc_field(p, KEY_FILE, PyUnicode_DATA(file), <size_t> PyUnicode_GET_LENGTH(file))
    memcpy(p, lc_keys[<int> KEY_LINE].text, LC_SLACK)
    p = lc_int(p + lc_keys[<int> KEY_LINE].n + 4, lc_compact_value(line))
    o.p = lc_field(p, KEY_FUNCTION, PyUnicode_DATA(function), <size_t> PyUnicode_GET_LENGTH(function))
    return 1


cdef inline PyObject *_of_step(PyObject **slot, int step, int *key) noexcept nogil:
    # From STEP_LOGGER on: the attribute and its key.
    if step == STEP_LOGGER:
        key[0] = KEY_LOGGER
        return slot[S_NAME]
    if step == STEP_FILE:
        key[0] = KEY_FILE
        return slot[S_FILENAME]
    if step == STEP_LINE:
        key[0] = KEY_LINE
        return slot[S_LINENO]
    if step == STEP_FUNCTION:
        key[0] = KEY_FUNCTION
        return slot[S_FUNCNAME]
    if step == STEP_PID:
        key[0] = KEY_PID
        return slot[S_PROCESS]
    if step == STEP_PROCESS:
        key[0] = KEY_PROCESS
        return slot[S_PROCESSNAME]
    if step == STEP_THREAD_ID:
        key[0] = KEY_THREAD_ID
        return slot[S_THREAD]
    key[0] = KEY_THREAD
    return slot[S_THREADNAME]


# These steps from *step on, up to `end`: 0, -1, or ODD and where.
cdef int _plain_steps(Out *o, PyObject **slot, int *step, int end) noexcept nogil:
    cdef PyObject *v
    cdef int key = 0, status
    while step[0] < end:
        v = _of_step(slot, step[0], &key)
        if key == KEY_LINE or key == KEY_PID or key == KEY_THREAD_ID:
            status = _plain_number(o, key, v)
        else:
            status = _plain_text(o, key, v)
        if status:
            return status
        step[0] += 1
    return 0


# process.*: of a thread they are nearly always the same, so its last ones are kept as text. 0, -1 or ODD.
cdef int _process(Out *o, PyObject **slot, int *step) noexcept nogil:
    cdef PyObject *process_name = slot[S_PROCESSNAME]
    cdef PyObject *thread_name = slot[S_THREADNAME]
    cdef int status, overflow = 0
    cdef int64_t pid = 0, thread = 0
    cdef size_t start, process_n = 0, thread_n = 0
    cdef lc_here *last = NULL
    if (o.taken == 0 and not o.block and _is_short(process_name) and _is_short(thread_name)
            and slot[S_PROCESS] != NULL and PyLong_CheckExact(slot[S_PROCESS])
            and slot[S_THREAD] != NULL and PyLong_CheckExact(slot[S_THREAD])):
        pid = _number(slot[S_PROCESS], &overflow)
        if overflow == 0:
            thread = _number(slot[S_THREAD], &overflow)
        process_n = <size_t> PyUnicode_GET_LENGTH(process_name)
        thread_n = <size_t> PyUnicode_GET_LENGTH(thread_name)
        if overflow == 0 and process_n <= 32 and thread_n <= 32:
            last = o.here
            if (last.size and last.thread == thread and last.pid == pid
                    and last.process_n == process_n and last.thread_n == thread_n
                    and memcmp(last.process_name, PyUnicode_DATA(process_name), process_n) == 0
                    and memcmp(last.thread_name, PyUnicode_DATA(thread_name), thread_n) == 0):
                if _reserve(o, sizeof(last.text) + LC_SLACK) < 0:
                    return -1
                memcpy(o.p, last.text, last.size)
                o.p += last.size
                return 0
    start = <size_t> (o.p - o.base)
    status = _plain_steps(o, slot, step, STEPS)
    if status:
        return status
    if last != NULL:
        start = <size_t> (o.p - o.base) - start
        last.size = 0
        if start <= sizeof(last.text):
            last.pid = pid
            last.thread = thread
            last.process_n = <uint8_t> process_n
            last.thread_n = <uint8_t> thread_n
            memcpy(last.process_name, PyUnicode_DATA(process_name), process_n)
            memcpy(last.thread_name, PyUnicode_DATA(thread_name), thread_n)
            memcpy(last.text, o.p - start, start)
            last.size = <uint32_t> start
    return 0


cdef int _plain_level(Out *o, PyObject *v) noexcept nogil:
    # 0, -1 or ODD.
    cdef size_t start
    cdef uint8_t *p
    if v == NULL or v == Py_None or o.taken >> KEY_LEVEL & 1:
        return 0
    if not PyUnicode_CheckExact(v) or not PyUnicode_IS_COMPACT_ASCII(v):
        return ODD
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    _open(o, KEY_LEVEL, True)
    start = <size_t> (o.p - o.base)
    if _chars(o, v) < 0:
        return -1
    p = o.base + start
    while p < o.p:
        if c'A' <= p[0] <= c'Z':
            p[0] |= 0x20
        p += 1
    return _close(o, True)


# `text`: the message, if it is not the record's; `own`: the record's class may have its own getMessage().
cdef int _plain_message(Out *o, PyObject **slot, PyObject *text, bint own) noexcept nogil:
    # 0, -1 or ODD.
    cdef PyObject *v = slot[S_MSG] if text == NULL else text
    cdef PyObject *args = NULL
    cdef size_t start
    cdef uint32_t mangled
    cdef int status
    if o.taken >> KEY_MESSAGE & 1:
        return 0
    if text == NULL:
        if own or v == NULL or not PyUnicode_CheckExact(v):
            return ODD
        args = slot[S_ARGS]
        if args == Py_None:
            args = NULL
        elif args != NULL:
            if not PyTuple_CheckExact(args):
                return ODD
            if PyTuple_GET_SIZE(args) == 0:
                args = NULL
            elif o.block:
                return ODD               # _format cannot write there
    if _reserve(o, 2 * LC_SLACK) < 0:
        return -1
    start = <size_t> (o.p - o.base)
    mangled = o.mangled
    _open(o, KEY_MESSAGE, True)
    if args == NULL:
        if _message_chars(o, v) < 0:
            return -1
    else:
        status = _format(o, v, args)
        if status < 0:
            return -1
        if status == 0:
            o.p = o.base + start
            o.mangled = mangled
            return ODD
        if o.mangled > mangled:
            o.mangled = mangled + 1      # the message is one value
    return _close(o, True)


# The steps of a document from *step on, as far as no Python code has to run: 0: it has them all; -1; or ODD,
# and *step is the one that it takes Python code to write.
cdef int _plainly(Out *o, PyObject **slot, PyObject *text, bint own, int64_t created_us,
                  int *step) noexcept nogil:
    cdef int status
    if step[0] <= STEP_TIME and not o.taken >> KEY_TIMESTAMP & 1:
        if _reserve(o, 4 * LC_SLACK) < 0:
            return -1
        _open(o, KEY_TIMESTAMP, True)
        o.p = lc_time(o.p, created_us, o.here)
        _close(o, True)
    if step[0] <= STEP_LEVEL:
        status = _plain_level(o, slot[S_LEVELNAME])
        if status:
            step[0] = STEP_LEVEL
            return status
    if step[0] <= STEP_MESSAGE:
        status = _plain_message(o, slot, text, own)
        if status:
            step[0] = STEP_MESSAGE
            return status
    if step[0] <= STEP_ECS:
        status = _origin(o, slot)
        if status < 0:
            return -1
        step[0] = STEP_PID
        if status == 0:
            step[0] = STEP_LOGGER
            if not o.taken >> KEY_ECS & 1:
                if _reserve(o, 3 * LC_SLACK) < 0:
                    return -1
                _open(o, KEY_ECS, True)
                memcpy(o.p, b"8.11.0", 6)
                o.p += 6
                _close(o, True)
    status = _plain_steps(o, slot, step, STEP_PID)
    if status:
        return status
    if step[0] == STEP_PID:
        return _process(o, slot, step)
    return _plain_steps(o, slot, step, STEPS)


cdef inline object _or_none(PyObject *v):
    return None if v == NULL else <object> v


cdef inline bint _given(PyObject *v) noexcept:
    return v != NULL and v != Py_None


cdef void _again(Out *o, uint8_t *stack, uint8_t cut, bint block) noexcept nogil:
    # The document has turned out too large: once more, to see how much is left for the message, and then
    # with so much of it.
    cdef size_t used = <size_t> (o.p - o.base)
    cdef size_t limit = o.limit
    free(o.heap)
    _begin(o, stack, STACK, limit, block, cut, limit - used if cut == CUT else 0)


# `standard`: NULL, or what is not the user's.
cdef uint32_t _taken(Encoder e, Out *o, PyObject *d, Py_ssize_t at, PyObject *standard,
                     bint *odd) noexcept nogil:
    # The bits of our keys that are among the user's; *odd: there is one that must be made another before.
    cdef PyObject *k
    cdef PyObject *v
    cdef Py_ssize_t start = at
    cdef uint32_t bits = 0
    cdef int place
    cdef Known passing
    cdef Known *known
    odd[0] = False
    o.seen = 0
    o.names = o.above = 0
    while PyDict_Next(d, &at, &k, &v):
        if not PyUnicode_CheckExact(k) or _has_surrogate(k):
            odd[0] = True
            return bits
        if standard != NULL and lc_find(standard, k) != NULL:
            continue
        known = e.know(k, &passing)
        if known.what < KEYS:
            bits |= <uint32_t> 1 << known.what
        if e.watches and not o.arranged:
            place = e.judge(o, known, v, True)
            if place == ARRANGES:
                odd[0] = True
                return bits
            if place == MOVES:
                o.seen |= SEEN_MOVING
        if not _simple(v):
            o.seen |= SEEN_MAPPING
    if e.watches and not o.arranged:
        odd[0] = _conflicts(o, o.seen & SEEN_MOVING != 0, d, start, standard)
    return bits


cdef bint _is_among(PyObject *text, PyObject *some) noexcept nogil:
    # Whether a str is one of these, which are ASCII.
    cdef PyObject *one
    cdef Py_ssize_t i, n = PyUnicode_GET_LENGTH(text)
    cdef void *data = PyUnicode_DATA(text)
    if not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    for i in range(PyTuple_GET_SIZE(some)):
        one = PyTuple_GET_ITEM(some, i)
        if PyUnicode_GET_LENGTH(one) == n and memcmp(PyUnicode_DATA(one), data, <size_t> n) == 0:
            return True
    return False


cdef inline bint _plain_time(PyObject *v, int64_t *us) noexcept nogil:
    # Whether it is a float that can be written as it is; then its microseconds.
    cdef double seconds
    if v == NULL or not PyFloat_CheckExact(v):
        return False
    seconds = PyFloat_AS_DOUBLE(v)
    if not (seconds * 1e6 >= FIRST_US and seconds * 1e6 < LAST_US):
        return False
    us[0] = llrint(seconds * 1e6)
    return us[0] != 0


cdef int64_t _created(PyObject *v) noexcept:
    # Of any object, which must be held; now, when it has no time.
    cdef double seconds = 0
    cdef int64_t us
    if _plain_time(v, &us):
        return us
    if v != NULL:
        try:
            seconds = PyFloat_AsDouble(<object> v)
        except Exception:
            seconds = 0
    if seconds * 1e6 >= FIRST_US and seconds * 1e6 < LAST_US:
        us = llrint(seconds * 1e6)
        if us:
            return us
    import time
    return <int64_t> (time.time_ns() // 1000)


cdef uint8_t _level(PyObject *v) noexcept nogil:
    # What the hand-off keeps of it: levelno // 10, at most 5.
    cdef int overflow = 0
    cdef long long number
    if v == NULL or not PyLong_Check(v):
        return 0
    number = PyLong_AsLongLongAndOverflow(v, &overflow)
    if overflow > 0 or number >= 50:
        return 5
    if overflow < 0 or number < 0:
        return 0
    return <uint8_t> (number // 10)


cdef object _lower(object name):
    return _exact(name).lower() if isinstance(name, str) else name


cdef object INFO = 20  # small numbers are one object each, so that `is` tells
cdef enum:
    INFO_TENS = 2


cdef class Sender:
    """The compiled half of ``logclient.Client``: ``send`` in one call."""

    cdef readonly Encoder encoder
    cdef readonly Handoff handoff
    cdef object slowly

    def _bind(self, Encoder encoder not None, slowly):
        """Once: `slowly(seq, event, level)` goes on where the hand-off wants more than a put."""
        if self.handoff is not None:
            raise TypeError(f"{type(self).__name__}: __init__ has run already")
        if encoder.handoff is None:
            raise TypeError("encoder: needs a hand-off")
        self.encoder = encoder
        self.handoff = encoder.handoff
        self.slowly = slowly

    @cython.binding(False)
    def send(self, event, level=20):
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. What cannot be encoded is counted as failed, then
        raised. Returns the event's sequence, or 0 when it was dropped at once (a full queue with
        ``overflow=drop_new``, a closed client).

        Args:
            event: what to send.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a cycle, too deep, too large (a ValueError).
            ConfigError: there is no such level (a ValueError).
            QueueFull: with ``overflow=raise``.
        """
        cdef int64_t seq
        cdef Py_ssize_t size
        cdef uint8_t kept = <uint8_t> INFO_TENS if level is INFO else tens(level)
        if self.handoff is None:
            raise TypeError(f"{type(self).__name__}: __init__ has not run")
        if PyBytes_Check(event):
            size = PyBytes_GET_SIZE(event)
            # One that is too large becomes a tombstone, of which no byte is read.
            seq = self.handoff.put(<const uint8_t *> PyBytes_AS_STRING(event),
                                   <uint32_t> min(size, <Py_ssize_t> 0xFFFFFFF0), kept, <uint8_t> K_RAW, 0)
            if <size_t> size > self.encoder.max_event_bytes:
                self._too_large(seq, event)
        else:
            seq = self.encoder.put(event, kept)
        if seq <= 0 or self.handoff.attention():
            return self.slowly(seq, event, kept)
        return seq

    cdef int _too_large(self, int64_t seq, event) except -1:
        if seq == PUT_FULL:
            self.handoff.refuse()
        raise _error(<uint8_t> R_TOO_LARGE, event, self.encoder.max_event_bytes)


cdef object _attribute(object record, str name):
    # Of a record, or None: it may be a property, and that may raise.
    try:
        return getattr(record, name, None)
    except Exception:
        return None


cdef class Emitter:
    """The compiled half of ``logclient.Handler``: ``handle`` in one call, without the handler's lock.

    It comes first among the handler's bases; ``logging.Handler`` brings the rest.
    """

    cdef readonly Encoder encoder
    cdef Handoff handoff
    cdef object attend               # Client._attend()
    cdef object put_slowly           # Client._put_slowly(code, body, level, kind)
    cdef object maker                # maker(record, made): ships it; None: our own document is made here
    cdef object own_formatter
    cdef bint own_emit               # a subclass has an emit() of its own
    cdef bint own_format             # ... a format()
    # Set at any time while other threads log: read and written in a critical section of this object.
    cdef object user_formatter       # None: our document
    cdef object other_filters        # None: `own_filters` are those in force
    # The list that logging.Filterer makes. Without the GIL it is never replaced: `handle` looks into it.
    cdef list own_filters
    cdef bint direct                 # bound, and none of these has a say, but for `own_filters`

    def _bind(self, Encoder encoder not None, attend, put_slowly, maker, formatter, bint own_emit,
              bint own_format):
        """Once, before ``logging.Handler.__init__``: where events go, and what a subclass has of its own."""
        if self.encoder is not None:
            raise TypeError(f"{type(self).__name__}: __init__ has run already")
        if encoder.handoff is None:
            raise TypeError("encoder: needs a hand-off")
        self.handoff = encoder.handoff
        self.attend = attend
        self.put_slowly = put_slowly
        self.maker = maker
        self.own_formatter = formatter
        self.own_emit = own_emit
        self.own_format = own_format
        self.encoder = encoder
        self.formatter = None

    cdef void _look(self) noexcept:
        # Inside the critical section.
        self.direct = (self.encoder is not None and self.own_filters is not None
                       and self.other_filters is None and self.user_formatter is None
                       and not self.own_emit and not self.own_format)

    cdef object _filters(self):
        with cython.critical_section(self):
            return self.own_filters if self.other_filters is None else self.other_filters

    @property
    def filters(self):
        """logging.Filterer's list."""
        return self._filters()

    @filters.setter
    def filters(self, value):
        with cython.critical_section(self):
            if type(value) is list and (self.own_filters is None or not LC_SHARED):
                self.own_filters = value
                self.other_filters = None
            else:
                self.other_filters = None if value is self.own_filters else value
            self._look()

    @property
    def formatter(self):
        """The formatter; without one of the user's, the one of our own documents."""
        with cython.critical_section(self):
            return self.own_formatter if self.user_formatter is None else self.user_formatter

    @formatter.setter
    def formatter(self, value):
        with cython.critical_section(self):
            self.user_formatter = None if value is None or type(value) is type(self.own_formatter) else value
            self._look()

    @cython.binding(False)           # a plain method descriptor: a third of the price of a call
    @cython.always_allow_keywords(False)
    def handle(self, record):
        """Ship a record unless a filter refuses it: the record, or False. Never raises an Exception.

        Before `__init__` a record is ignored.
        """
        if self.direct and PyList_GET_SIZE(<PyObject *> self.own_filters) == 0:
            self._ship(record, None)
            return record
        return self._handle_slowly(record)

    def emit(self, record):
        """Ship a record, whatever the filters say. Before `__init__` it is ignored."""
        self._ship_formatted(record)

    cdef object _handle_slowly(self, object record):
        if self.encoder is None:
            return False
        if self._filters():
            try:
                verdict = self.filter(record)
            except Exception:
                # Not shipped: it may be the filter that takes secrets out.
                self._put_tomb(record, <uint8_t> R_UNENCODABLE, 2)
                self._complain(record)
                return False
            if not verdict:
                return False
            if isinstance(verdict, logging.LogRecord):     # since 3.12 filters may replace it
                record = verdict
        if not self.own_emit:
            self._ship_formatted(record)
            return record
        try:
            self.emit(record)
        except Exception:
            self._complain(record)
        return record

    cdef int _ship_formatted(self, object record) except -1:
        # With the formatter that the user has set, or the format() of a subclass.
        cdef object name
        cdef object made = None
        if self.encoder is None:
            return 0
        if self.user_formatter is None and not self.own_format or lc_this_thread.own:
            return self._ship(record, None)
        name = _attribute(record, "name")
        if _own_logger(<PyObject *> name):
            return self._ship(record, None)
        try:
            made = self.format(record)
            if isinstance(made, bytes):
                if not self.encoder.pairs:
                    return self._ship_bytes(record, made)
                made = made.decode("utf-8", "replace")
            elif not isinstance(made, (str, dict)):
                made = str(made)
        except Exception:
            # Our own document then: a broken formatter loses nothing.
            self._complain(record)
            made = None
        return self._ship(record, made)

    cdef int _ship_bytes(self, object record, bytes body) except -1:
        cdef object level = _attribute(record, "levelno")
        cdef object created = _attribute(record, "created")
        return self._put(record, <const uint8_t *> PyBytes_AS_STRING(body), <size_t> PyBytes_GET_SIZE(body),
                         _level(<PyObject *> level), <uint8_t> K_RAW, _created(<PyObject *> created))

    cdef int _ship(self, object record, object made) except -1:
        cdef uint8_t stack[STACK]
        cdef Out o
        cdef int64_t created_us = 0
        cdef uint8_t level = 0
        cdef int status
        cdef lc_here *here = &lc_this_thread
        if here.own and not _in_destructor():
            self.handoff.count_ignored()
            return 0
        if self.maker is not None:
            return self._ship_made(record, made)
        status = (<record_function> _record)(self.encoder, &o, stack, here, record, made, True, &created_us,
                                                &level)
        if status == 0:
            if o.mangled or o.moved:
                self.handoff.count_changed(o.mangled, o.moved)
            if o.heap == NULL:
                return self._put(record, o.base, <size_t> (o.p - o.base), level,
                                 <uint8_t> K_DOCUMENT | o.flags, created_us)
            try:
                return self._put(record, o.base, <size_t> (o.p - o.base), level,
                                 <uint8_t> K_DOCUMENT | o.flags, created_us)
            finally:
                free(o.heap)
        free(o.heap)
        if status == 1:
            self.handoff.count_ignored()
        elif status == -1:
            try:
                raise _error(o.reason, record, self.encoder.max_event_bytes)
            except Exception:
                self._complain(record)
            return self._put_tomb(record, o.reason, level)
        else:
            try:
                lc_raise_what_is_set()
            except Exception:
                self._complain(record)
                return self._put_tomb(record, <uint8_t> R_UNENCODABLE, level)
        return 0

    cdef int _ship_made(self, object record, object made) except -1:
        # A document that is not made here: a line of a request, or what another protocol wants.
        cdef object name = _attribute(record, "name")
        if _own_logger(<PyObject *> name):
            self.handoff.count_ignored()
            return 0
        try:
            self.maker(record, made)
        except Exception:
            self._complain(record)
            return self._put_tomb(record, <uint8_t> R_UNENCODABLE, 2)
        return 0

    cdef inline int _put(self, object record, const uint8_t *body, size_t size, uint8_t level, uint8_t kind,
                         int64_t created_us) except -1:
        cdef int64_t seq
        if size > 0xFFFFFFF0:
            size = 0xFFFFFFF0        # over any max_event_bytes: becomes a tombstone, the bytes are not read
        seq = self.handoff.put(body, <uint32_t> size, level, kind, created_us)
        if seq == PUT_FORKED or seq == PUT_FULL or self.handoff.attention():
            self._attend(record, seq, body, size, level, kind)
        return 0

    cdef int _attend(self, object record, int64_t seq, const uint8_t *body, size_t size, uint8_t level,
                     uint8_t kind) except -1:
        try:
            if seq == PUT_FORKED or seq == PUT_FULL:
                self.put_slowly(seq, PyBytes_FromStringAndSize(<const char *> body, size), level, kind)
            else:
                self.attend()
        except Exception:
            self._complain(record)
        return 0

    cdef int _put_tomb(self, object record, uint8_t reason, uint8_t level) except -1:
        return self._put(record, &reason, 1, level, <uint8_t> K_TOMB, 0)

    cdef int _complain(self, object record) except -1:
        try:
            self.handleError(record)
        except Exception:
            pass
        return 0


cdef object _error(uint8_t reason, object obj, size_t limit):
    from logclient.errors import EncodeError, EncodeTypeError

    if reason == R_TOO_LARGE:
        return EncodeError(f"event: longer than max_event_bytes ({limit})")
    if reason == R_UNENCODABLE:
        return EncodeError(f"event: a cycle, more than {MAX_DEPTH} levels, or a mapping that cannot be read")
    return EncodeTypeError(f"event: must be a mapping or a string, got {type(obj).__name__}")


cpdef uint8_t tens(object level) except 255:
    """A level of ``logging``, a number or a name, as the hand-off keeps it: 0 to 5."""
    cdef long number
    if isinstance(level, str):
        names = logging.getLevelNamesMapping()
        level = names.get(level, names.get(level.upper()))
    if not isinstance(level, int):
        from logclient.errors import ConfigError

        raise ConfigError("level: must be a number, or the name of a level such as ERROR")
    number = level
    return <uint8_t> max(0, min(5, number // 10))


def encode_mapping(obj, size_t max_bytes=1 << 20):
    """What ``Encoder.encode`` makes of a mapping or a string: a JSON object."""
    return Encoder(None, max_event_bytes=max_bytes).encode(obj)


def encode_pairs(obj, size_t max_bytes=1 << 20):
    """What ``Encoder.encode`` makes of a mapping or a string: a pair block."""
    return Encoder(None, max_event_bytes=max_bytes, pairs=True).encode(obj)
