# The places in a program from which log calls are made.

cdef extern from "Python.h":
    PyObject *PyEval_GetFrame()              # borrowed; NULL: no Python code runs
    PyObject *PyFrame_GetCode(PyObject *frame)
    int PyFrame_GetLasti(PyObject *frame)

cdef enum:
    SITES = 64               # that a logger remembers


cdef void _forget_site(Site *site) noexcept:
    Py_XDECREF(site.code)
    Py_XDECREF(site.path)
    Py_XDECREF(site.file)
    Py_XDECREF(site.line)
    Py_XDECREF(site.function)
    Py_XDECREF(site.name)
    free(site.text)


cdef int _learn_site(Site *site, object code, int at, object line) except -1:
    cdef object path = code.co_filename
    cdef object normal = os.path.normcase(path)
    cdef bint internal = normal == logging._srcfile or "importlib" in normal and "_bootstrap" in normal
    cdef object file = os.path.basename(path)
    cdef object function = code.co_name
    cdef Site before
    for item in (code, path, file, line, function):
        Py_INCREF(<PyObject *> item)
    before = site[0]         # now: a destructor may have logged from another site in this slot
    site.name = NULL
    site.text = NULL
    site.code = <PyObject *> code
    site.path = <PyObject *> path
    site.file = <PyObject *> file
    site.line = <PyObject *> line
    site.function = <PyObject *> function
    site.instruction = at
    site.internal = internal
    _forget_site(&before)
    return 0


# Return the site of a frame, valid until Python code runs.
cdef Site *_find_site(State state, PyObject *frame) except NULL:
    cdef PyObject *code = PyFrame_GetCode(frame)
    cdef int at = PyFrame_GetLasti(frame)
    cdef Site *site
    Py_DECREF(code)          # the frame has it
    if state.sites == NULL:
        state.sites = <Site *> calloc(SITES, sizeof(Site))
        if state.sites == NULL:
            raise MemoryError
    site = &state.sites[(<size_t> code >> 4 ^ <size_t> code >> 12 ^ <size_t> at * 5) & (SITES - 1)]
    while site.code != code or site.instruction != at:
        _learn_site(site, <object> code, at, (<object> frame).f_lineno)
    return site


cdef int _name_site(Site *site, object name) except -1:
    # Note the name of the logger; what was written with another one goes.
    cdef PyObject *before = site.name
    Py_INCREF(<PyObject *> name)
    site.name = <PyObject *> name
    free(site.text)
    site.text = NULL
    Py_XDECREF(before)
    return 0


cdef object _find_frame(State state, object frame, long depth):
    # Return the frame of the call as `Logger.findCaller` does.
    depth -= not _find_site(state, <PyObject *> frame).internal
    while depth > 0:
        back = frame.f_back
        if back is None:
            break
        frame = back
        depth -= not _find_site(state, <PyObject *> frame).internal
    return frame


cdef str _stack_text(object frame):
    # Return what `Logger.findCaller` makes for `stack_info`.
    from traceback import format_stack

    return "Stack (most recent call last):\n" + "".join(format_stack(frame)).removesuffix("\n")
