# Log calls that make no LogRecord, and those that the standard library makes.

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char *ml_name
        void *ml_meth
        int ml_flags
        const char *ml_doc
    enum: METH_FASTCALL
    enum: METH_KEYWORDS
    object PyDescr_NewMethod(object kind, PyMethodDef *method)
    object PyObject_Vectorcall(object function, PyObject **args, size_t n, PyObject *names)

cdef enum:
    PLAIN_ARGS = 12          # arguments of a call of the ordinary way that are copied on the stack


cdef object _ordinary(Route route, int method, FastLogger logger, PyObject **args, Py_ssize_t n,
                      PyObject *names):
    # Call the standard library's method.
    cdef PyObject *all[PLAIN_ARGS]
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef object function = route.ordinary[method]
    if function is None:
        raise AttributeError(f"logging.Logger.{METHOD_NAMES[method]} was deleted")
    if n + named < PLAIN_ARGS:
        all[0] = <PyObject *> logger
        for i in range(n + named):
            all[i + 1] = args[i]
        return PyObject_Vectorcall(function, all, <size_t> n + 1, names)
    return function(logger, *[<object> args[i] for i in range(n)],
                    **{<object> PyTuple_GET_ITEM(names, i): <object> args[n + i] for i in range(named)})


cdef inline Route _route_of(FastLogger logger):
    cdef Route route = logger.route
    return route if route is not None and route.holds() else _make_route(logger)


cdef object _call(object self, int method, PyObject **args, Py_ssize_t n, PyObject *names):
    # Any of the methods that log.
    cdef FastLogger logger = self
    cdef Route route = logger.route
    if method != M_LOG and n > 0 and route is not None and route.is_disabled(method):
        return None
    route = _route_of(logger)
    cdef object level = None, exc_info = None, extra = None
    cdef Py_ssize_t i, first = method == M_LOG
    cdef long depth = 1
    cdef bint fast = route.count > 0 or route.idle, stack_info = False
    cdef PyObject *found = NULL
    if n > first and route.checks_levels:
        if method != M_LOG:
            level = METHOD_LEVELS[method]
            found = route.enabled[method]
        elif PyLong_CheckExact(args[0]):
            level = <object> args[0]
            found = lc_find(<PyObject *> route.cache, <PyObject *> level)
    if found == Py_False:
        return None
    if found != Py_True or route.is_in_progress():
        return _ordinary(route, method, logger, args, n, names)
    if method == M_EXCEPTION:
        exc_info = True
    if names != NULL and fast:
        for i in range(PyTuple_GET_SIZE(names)):
            name = <object> PyTuple_GET_ITEM(names, i)
            value = <object> args[n + i]
            if name == "extra" and (value is None or type(value) is dict):
                extra = value
            elif name == "exc_info":
                exc_info = value
            elif name == "stacklevel" and type(value) is int and 1 <= value < 1000:
                depth = value
            elif name == "stack_info" and type(value) is bool:
                stack_info = value
            else:
                fast = False
    if fast:
        level_name = None if method == M_LOG else route.level_names[method]
        fast = route.log(logger, level, level_name, args + first, n - first, exc_info, extra, depth,
                         stack_info)
    return None if fast else _ordinary(route, method, logger, args, n, names)


cdef object _call_debug(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_DEBUG, args, n, names)


cdef object _call_info(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_INFO, args, n, names)


cdef object _call_warning(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_WARNING, args, n, names)


cdef object _call_error(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_ERROR, args, n, names)


cdef object _call_critical(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_CRITICAL, args, n, names)


cdef object _call_exception(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_EXCEPTION, args, n, names)


cdef object _call_log(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_LOG, args, n, names)


cdef object _call_is_enabled_for(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    cdef Route route = _route_of(self)
    cdef PyObject *found = NULL
    if (n == 1 and names == NULL and PyLong_CheckExact(args[0]) and route.checks_levels
            and not route.is_in_progress()):
        found = lc_find(<PyObject *> route.cache, args[0])
    return <object> found if found != NULL else _ordinary(route, M_ENABLED, self, args, n, names)


cdef class FastLogger:
    """Base of ``logclient.Logger``, whose methods `compiled_methods` returns."""

    cdef dict __dict__           # a dict of its own: calls find their methods faster than beside shared keys
    cdef Route route             # None: to be decided
    cdef Site *sites             # a table of SITES; NULL: none was seen

    def __dealloc__(self):
        cdef int i
        if self.sites != NULL:
            for i in range(<int> SITES):
                _forget_site(&self.sites[i])
            free(self.sites)

    def obstacle(self) -> str:
        """Return what keeps its calls off the fast way; empty: nothing."""
        cdef Route route
        cdef int i
        if LC_SHARED:
            return "this Python has no GIL"
        route = _route_of(self)
        for i in range(route.count):
            if not (<FastHandler> route.handlers[i]).is_direct():
                return f"{type(<object> route.handlers[i]).__qualname__} has a filter or formatter"
        return route.why


# As PyDescr_NewMethod keeps them.
cdef PyMethodDef DEFINITIONS[METHOD_COUNT]
cdef dict COMPILED = {}      # the methods by name
cdef tuple DEFINED = tuple([name.encode() for name in METHOD_NAMES])
DEFINITIONS[0].ml_meth, DEFINITIONS[1].ml_meth = <void *> _call_debug, <void *> _call_info
DEFINITIONS[2].ml_meth, DEFINITIONS[3].ml_meth = <void *> _call_warning, <void *> _call_error
DEFINITIONS[4].ml_meth, DEFINITIONS[5].ml_meth = <void *> _call_critical, <void *> _call_exception
DEFINITIONS[6].ml_meth, DEFINITIONS[7].ml_meth = <void *> _call_log, <void *> _call_is_enabled_for


lc_let_dict_be_set(<PyObject *> FastLogger)


def compiled_methods() -> dict[str, Any]:
    """Return the methods of ``logclient.Logger`` by name: none without a GIL, on which they rely."""
    cdef int i
    if LC_SHARED:
        return {}
    for i in range(<int> METHOD_COUNT):
        DEFINITIONS[i].ml_name = PyBytes_AS_STRING(DEFINED[i])
        DEFINITIONS[i].ml_flags = METH_FASTCALL | METH_KEYWORDS
        COMPILED[METHOD_NAMES[i]] = PyDescr_NewMethod(FastLogger, &DEFINITIONS[i])
    return dict(COMPILED)
