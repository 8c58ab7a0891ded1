# Fields whose values are left out of documents: they are found by their names, at any depth.
#
# Each name to leave out is compared with the last part of a field's name, letters in either case
# (``str.casefold``); ``*`` in it stands for any characters. ``message`` is the text of an event and stays.
# Names after an empty one are those of fields only: what becomes text is not searched for them.

REDACTED = "[redacted]"     # shared with Python
cdef object REDACTED_TEXT = REDACTED

cdef enum:
    MAY_BE = 2048            # bytes of a table


cdef inline Py_ssize_t _may_be_at(uint32_t first, uint32_t last, Py_ssize_t length) noexcept nogil:
    # Return the place of a name in the table, which is the same for both cases of a letter.
    return ((first & 31) << 6 ^ (last & 31) << 1 ^ length * 29) & (MAY_BE - 1)


cdef tuple _entries_of(list names, tuple texts):
    """Return exact strings, those with stars first, then the entries for what becomes text, then a table.

    The table says for names by their first and last character and their length whether they may be an entry
    without stars. One more byte stands behind it for each entry with a star.
    """
    cdef list stars = [name for name in names if "*" in name]
    cdef object may_be = bytearray(MAY_BE + len(stars))
    cdef str name
    names = [name for name in names if "*" not in name]
    for name in names:
        may_be[_may_be_at(ord(name[0]), ord(name[len(name) - 1]), len(name))] = 1
    return (*stars, *names, texts, bytes(may_be))


cdef tuple _redaction_of(tuple names):
    cdef list folded = [str(name).casefold() for name in names]
    cdef list texts = folded[:folded.index("")] if "" in folded else folded
    return _entries_of([name for name in folded if name], _entries_of(texts, ()))


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
    cdef PyObject *may_be = PyTuple_GET_ITEM(entries, PyTuple_GET_SIZE(entries) - 1)
    cdef Py_ssize_t most = PyBytes_GET_SIZE(<object> may_be) - MAY_BE
    if at < n and PyBytes_AS_STRING(<object> may_be)[_may_be_at(data[at], data[n - 1], n - at)]:
        most = PyTuple_GET_SIZE(entries) - 2
    return (most > 0 and not (n - at == 7 and memcmp(data + at, b"message", 7) == 0)
            and _any_fits(entries, name, at, most))


cdef bint _covers_folded(PyObject *entries, str name) noexcept:
    # Allocates strings only: no collection of garbage begins here.
    cdef str last
    try:
        last = name[name.rfind(".") + 1:]
        if last == "message":
            return False
        last = last.casefold()
        return lc_ready(<PyObject *> last) < 0 or _any_fits(entries, <PyObject *> last, 0,
                                                          PyTuple_GET_SIZE(entries) - 2)
    except MemoryError:
        return True


cdef bint _any_fits(PyObject *entries, PyObject *name, Py_ssize_t at, Py_ssize_t n) noexcept nogil:
    # Return whether one of the first `n` entries fits.
    cdef Py_ssize_t i
    for i in range(n):
        if _fits(PyTuple_GET_ITEM(entries, i), name, at):
            return True
    return False


cdef dict _without_secrets(Document *doc, dict fields, int depth):
    """Return a copy of fields without the values to leave out, before names are changed."""
    cdef dict deep, made = {}
    for name, value in fields.items():
        if _is_among(doc.redacted, name):
            made[name] = REDACTED_TEXT
        else:
            deep = None
            if depth < MAX_MERGE_LEVELS and not _is_inert(<PyObject *> value):
                deep = _as_dict(doc, value)
            made[name] = value if deep is None else _without_secrets(doc, deep, depth + 1)
    return made


cdef bint _is_among(PyObject *entries, object name) except -1:
    """Return whether the value of this name is left out; `name` may be anything."""
    cdef str exact
    if isinstance(name, (bytes, bytearray)):
        exact = str(name, "utf-8", "replace")
    elif isinstance(name, str):
        exact = _exact_str(name)
    elif _is_instance(name, "enum", "Enum"):
        return _is_among(entries, name.name) or _is_among(entries, name.value)
    else:
        return False
    return _covers(entries, <PyObject *> exact)


# What is redacted where values become text. The text of an exception is left to the option `redact_text`.

cdef enum:
    MAX_PARTS = 1000         # a value with more is not searched for names
cdef tuple WITHOUT_NAMES = (str, bytes, int, float, complex, type, type(sys), BaseException)
cdef tuple COLLECTIONS = (ValuesView, ItemsView, list, tuple, set, frozenset, deque)


cdef inline PyObject *_text_entries(PyObject *entries) noexcept:
    # Return the entries for what becomes text, or NULL if there are none.
    cdef PyObject *found
    if entries == NULL:
        return NULL
    found = PyTuple_GET_ITEM(entries, PyTuple_GET_SIZE(entries) - 2)
    return found if PyTuple_GET_SIZE(found) > 2 else NULL


cdef bint _has_names(object v) except -1:
    fields = getattr(type(v), "_fields", None)
    return isinstance(v, tuple) and isinstance(fields, tuple) and len(fields) == len(v)


cdef object _parts(object v):
    """Return what the text of a value may show, as pairs of a name or None and a value."""
    cdef object kind = type(v)
    cdef dict found
    if isinstance(v, WITHOUT_NAMES):
        return ()
    if _has_names(v):
        return zip(kind._fields, v)
    if isinstance(v, COLLECTIONS):
        return [(v[0] if i and len(v) == 2 and isinstance(v, (list, tuple)) else None, inner)
                for i, inner in enumerate(v)]
    if _is_mapping(v):
        return _dict_of(v).items()
    if kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__:
        return ()
    if _is_instance(v, "types", "MethodType"):
        return ((None, v.__self__),)
    if _is_instance(v, "functools", "partial"):
        return ((None, v.args), (None, v.keywords))
    found = dict.fromkeys(v.keys()) if hasattr(kind, "keys") else {}
    found.update(getattr(v, "__dict__", ()))
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            found.update([(name, getattr(v, name, None)) for name, member in vars(base).items()
                          if type(member) is MemberDescriptorType])
    # Without what makes a name private.
    return [(name.lstrip("_").rpartition("__")[2] if isinstance(name, str) else name, inner)
            for name, inner in found.items()]


cdef bint _shows_secret(PyObject *entries, object v) except -1:
    """Return whether the text of a value may show what is left out. One that cannot be searched may."""
    cdef list found = [v]
    cdef set seen = set()
    try:
        for v in found:
            if id(v) in seen:
                continue
            seen.add(id(v))
            for name, inner in _parts(v):
                if _is_among(entries, name):
                    return True
                found.append(inner)
            if len(found) > MAX_PARTS:
                return True
    except Exception:
        return True
    return False


cdef object _shown(Document *doc, object v, tuple above=()):
    """Return a value whose text shows nothing that is left out: itself, a copy, or the name of its class."""
    cdef list made
    cdef bint mapping
    cdef PyObject *entries = _text_entries(doc.redacted)
    if entries == NULL or not _shows_secret(entries, v):
        return v
    if len(above) >= MAX_DEPTH or any([v is other for other in above]):
        return "..."
    try:
        mapping = _is_mapping(v)
        if not mapping and (_has_names(v) or not isinstance(v, COLLECTIONS)):
            return f"<{type(v).__name__}>"
        above += (v,)
        made = [(name, REDACTED_TEXT if _is_among(entries, name) else _shown(doc, inner, above))
                for name, inner in _parts(v)]
        if mapping:
            return dict(made)
        return (type(v) if type(v) in COLLECTIONS[2:] else list)([inner for _, inner in made])
    except Exception:
        return _unprintable(doc, v)
