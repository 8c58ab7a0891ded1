# Fields whose values are left out of documents: they are found by their names, at any depth.

REDACTED = "[redacted]"     # shared with Python
cdef object REDACTED_TEXT = REDACTED


@cython.final
cdef class Redaction:
    """The names of the fields to leave out.

    Each is compared with the last part of a field's name, letters in either case (``str.casefold``); ``*`` in
    it stands for any characters. ``message`` is the text of an event and stays.
    """

    cdef tuple entries       # exact strings, folded

    def __cinit__(self, names: Iterable[str]):
        self.entries = tuple([str(name).casefold() for name in names])

    def covers(self, str name not None) -> bool:
        """Return whether the value of a field of this name is left out."""
        cdef str exact = _exact_str(name)
        return _covers(<PyObject *> self.entries, <PyObject *> exact)


cdef inline uint32_t _lower_char(int kind, void *data, Py_ssize_t i) noexcept nogil:
    cdef uint32_t c = PyUnicode_READ(kind, data, i)
    return c | 0x20 if c'A' <= c <= c'Z' else c


# Return whether the entry fits the name from `at` on. After a star the shortest text is tried first; only the
# last star is ever taken up again, so this takes at most the product of both lengths.
cdef bint _fits(PyObject *entry, PyObject *name, Py_ssize_t at) noexcept nogil:
    cdef int entry_kind = PyUnicode_KIND(entry), kind = PyUnicode_KIND(name)
    cdef void *entry_data = PyUnicode_DATA(entry)
    cdef void *data = PyUnicode_DATA(name)
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(entry), end = PyUnicode_GET_LENGTH(name)
    cdef Py_ssize_t i = 0, star = -1, again = 0
    while at < end:
        if i < n and _lower_char(entry_kind, entry_data, i) == c'*':
            star = i
            again = at
            i += 1
        elif i < n and _lower_char(entry_kind, entry_data, i) == _lower_char(kind, data, at):
            i += 1
            at += 1
        elif star >= 0:
            again += 1
            at = again
            i = star + 1
        else:
            return False
    while i < n and _lower_char(entry_kind, entry_data, i) == c'*':
        i += 1
    return i == n


cdef bint _covers(PyObject *entries, PyObject *name) noexcept:
    # `name` is an exact str; nothing here runs Python code.
    cdef Py_ssize_t at, n
    if lc_ready(name) < 0:
        return True
    if not PyUnicode_IS_COMPACT_ASCII(name):
        return _covers_folded(entries, <object> name)
    cdef char *data = <char *> PyUnicode_DATA(name)
    n = at = PyUnicode_GET_LENGTH(name)
    while at > 0 and data[at - 1] != c'.':
        at -= 1
    return not (n - at == 7 and memcmp(data + at, b"message", 7) == 0) and _any_fits(entries, name, at)


cdef bint _covers_folded(PyObject *entries, str name) noexcept:
    # Allocates strings only: no collection of garbage begins here.
    cdef str last
    try:
        last = name[name.rfind(".") + 1:]
        if last == "message":
            return False
        last = last.casefold()
        return lc_ready(<PyObject *> last) < 0 or _any_fits(entries, <PyObject *> last, 0)
    except MemoryError:
        return True


cdef bint _any_fits(PyObject *entries, PyObject *name, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(entries)):
        if _fits(PyTuple_GET_ITEM(entries, i), name, at):
            return True
    return False


cdef dict _without_secrets(Encoder e, Document *doc, dict fields, int depth):
    """Return a copy of fields without the values to leave out, before names are changed."""
    cdef dict deep, made = {}
    for name, value in fields.items():
        if isinstance(name, str) and e.redaction.covers(_exact_str(name)):
            made[name] = REDACTED_TEXT
        else:
            deep = _as_dict(doc, value) if depth < MAX_MERGE_LEVELS else None
            made[name] = value if deep is None else _without_secrets(e, doc, deep, depth + 1)
    return made


cdef object _redacted_args(Document *doc, object args):
    """Return the arguments of a message, those by name without the values to leave out."""
    if doc.redacted == NULL or not isinstance(args, Mapping):
        return args
    try:
        return _redacted(doc, args, ())
    except Exception:
        return _unprintable(doc, args)


cdef object _redacted(Document *doc, object value, tuple above):
    """Return a copy of a mapping, list or tuple without the values to leave out, and anything else itself."""
    cdef str exact
    cdef dict made
    cdef bint plain = type(value) in (list, tuple)
    if not plain and not isinstance(value, Mapping):
        return value
    if len(above) >= MAX_DEPTH or any([value is other for other in above]):
        return "..."
    above += (value,)
    if plain:
        return type(value)([_redacted(doc, item, above) for item in value])
    made = dict(value)
    for name, item in made.items():
        exact = _exact_str(name) if isinstance(name, str) else None
        if exact is not None and _covers(doc.redacted, <PyObject *> exact):
            made[name] = REDACTED_TEXT
        else:
            made[name] = _redacted(doc, item, above)
    return made
