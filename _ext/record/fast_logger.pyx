# Log calls that make no LogRecord.
#
# The standard library's own functions define what a log call does. While none of them is replaced and every
# handler on the way up is ours, the result is a document in the queue, so it is made from the arguments.
# `Route` holds what that was decided from: versions of the dicts and classes, items of the lists.

cdef extern from "record/watching.h":
    uint64_t lc_dict_version(PyObject *d) nogil
    int lc_watch(PyObject *d) except -1
    uint32_t lc_class_version(PyObject *kind) nogil
    PyObject *lc_class "(PyObject *)Py_TYPE"(PyObject *o) nogil
    PyObject *lc_dict_of(PyObject *o) nogil

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char *ml_name
        void *ml_meth
        int ml_flags
        const char *ml_doc
    enum: METH_FASTCALL
    enum: METH_KEYWORDS
    object PyDescr_NewMethod(object kind, PyMethodDef *method)
    PyObject *PyEval_GetFrame()              # borrowed; NULL: no Python code runs
    PyObject *PyFrame_GetBack(PyObject *frame)
    PyObject *PyFrame_GetCode(PyObject *frame)
    int PyFrame_GetLasti(PyObject *frame)
    int PyFrame_GetLineNumber(PyObject *frame)
    unsigned long PyThread_get_thread_ident() nogil
    object PyObject_Vectorcall(object function, PyObject **args, size_t n, PyObject *names)
    object PyObject_VectorcallMethod(object name, PyObject **args, size_t n, PyObject *names)
    tuple PyTuple_New(Py_ssize_t n)
    void PyTuple_SET_ITEM(object t, Py_ssize_t i, PyObject *o)

cdef enum:
    WATCHED_DICTS = 24
    WATCHED_CLASSES = 8
    WATCHED_LISTS = 16
    WATCHED_ITEMS = 16
    MAX_HANDLERS = 4
    SITES = 1024
    PLAIN_ARGS = 12          # arguments of a call of the ordinary way that are copied on the stack

# The methods, in the order of `METHODS`.
cdef enum:
    M_DEBUG, M_INFO, M_WARNING, M_ERROR, M_CRITICAL, M_EXCEPTION, M_LOG, M_ENABLED
    METHOD_COUNT

cdef tuple METHOD_NAMES = (
    "debug", "info", "warning", "error", "critical", "exception", "log", "isEnabledFor")
cdef tuple METHOD_LEVELS = (10, 20, 30, 40, 50, 40)
cdef object TRUE = True


# A place in a program from which a log call is made.
ctypedef struct Site:
    PyObject *code           # a strong reference, as are the next; or NULL
    PyObject *path
    PyObject *file           # its last part
    PyObject *line
    PyObject *function
    int instruction
    bint internal            # in logging itself, or in the import system


@cython.final
cdef class Sites:
    """The sites that were seen last."""

    cdef Site table[SITES]

    def __cinit__(self):
        memset(self.table, 0, sizeof(self.table))

    def __dealloc__(self):
        cdef int i
        for i in range(<int> SITES):
            _forget_site(&self.table[i])

    # Return the site of a frame. It is valid until Python code runs.
    cdef Site *find(self, PyObject *frame) except NULL:
        cdef PyObject *code = PyFrame_GetCode(frame)
        cdef int at = PyFrame_GetLasti(frame)
        cdef Site *site = &self.table[(<size_t> code >> 4 ^ <size_t> code >> 14 ^ <size_t> at * 5) & (SITES - 1)]
        Py_DECREF(code)                      # the frame has it
        while site.code != code or site.instruction != at:
            _learn_site(site, <object> code, at, PyFrame_GetLineNumber(frame))
        return site


cdef int _learn_site(Site *site, object code, int at, object line) except -1:
    cdef object path = code.co_filename
    cdef object normal = os.path.normcase(path)
    cdef bint internal = normal == logging._srcfile or "importlib" in normal and "_bootstrap" in normal
    cdef object file = os.path.basename(path)
    cdef object function = code.co_name
    cdef Site before
    for item in (code, path, file, line, function):
        Py_INCREF(<PyObject *> item)
    before = site[0]
    site.code = <PyObject *> code
    site.path = <PyObject *> path
    site.file = <PyObject *> file
    site.line = <PyObject *> line
    site.function = <PyObject *> function
    site.instruction = at
    site.internal = internal
    _forget_site(&before)
    return 0


cdef void _forget_site(Site *site) noexcept:
    Py_XDECREF(site.code)
    Py_XDECREF(site.path)
    Py_XDECREF(site.file)
    Py_XDECREF(site.line)
    Py_XDECREF(site.function)


cdef Sites SEEN = Sites()


cdef object _find_frame(object frame, long depth):
    # Return the frame of the call as `Logger.findCaller` does.
    depth -= not SEEN.find(<PyObject *> frame).internal
    while depth > 0:
        back = frame.f_back
        if back is None:
            break
        frame = back
        depth -= not SEEN.find(<PyObject *> frame).internal
    return frame


cdef str _stack_text(object frame):
    # Return what `Logger.findCaller` makes for `stack_info`.
    from traceback import format_stack

    return "Stack (most recent call last):\n" + "".join(format_stack(frame)).removesuffix("\n")


@cython.final
cdef class Route:
    """The way that the calls of a logger go, and what it was decided from.

    Attributes:
        why: what keeps them off the fast way; empty: nothing.
    """

    cdef readonly str why
    cdef tuple handlers          # FastHandler; None: the ordinary way
    cdef tuple ordinary          # the functions of the ordinary way, by M_...
    cdef dict cache              # of the logger: level -> whether it is enabled
    cdef tuple level_names       # of the levels of the methods
    cdef object name             # of the logger
    cdef object process_name     # None: `multiprocessing` was not loaded yet
    cdef dict threads            # identifier -> Thread; None: look for the current thread as `threading` does
    cdef object pid
    cdef uint64_t forks          # of which this process is the result
    cdef list kept               # owns what is watched
    cdef long levels[MAX_HANDLERS]
    cdef PyObject *owner_classes[WATCHED_DICTS]
    cdef PyObject *owners[WATCHED_DICTS]     # of the first dicts: loggers and handlers
    cdef int owners_n
    cdef bint checks_levels      # the functions that decide about a level are those of the standard library
    cdef PyObject *enabled[M_LOG]            # by method, as in `cache`: True, False or NULL
    cdef int dicts_n
    cdef int classes_n
    cdef int lists_n
    cdef int items_n
    cdef PyObject *dicts[WATCHED_DICTS]
    cdef uint64_t dict_versions[WATCHED_DICTS]
    cdef PyObject *classes[WATCHED_CLASSES]
    cdef uint32_t class_versions[WATCHED_CLASSES]
    cdef PyObject *lists[WATCHED_LISTS]
    cdef Py_ssize_t sizes[WATCHED_LISTS]
    cdef PyObject *items[WATCHED_ITEMS]      # of all lists

    cdef bint holds(self) noexcept:
        cdef Py_ssize_t i, j, at = 0
        if self.forks != lc_fork_count() or (
                self.process_name is None and lc_find(<PyObject *> MODULES, <PyObject *> MULTIPROCESSING) != NULL):
            return False
        for i in range(self.owners_n):
            if lc_class(self.owners[i]) != self.owner_classes[i] or lc_dict_of(self.owners[i]) != self.dicts[i]:
                return False
        for i in range(self.dicts_n):
            if lc_dict_version(self.dicts[i]) != self.dict_versions[i]:
                return False
        for i in range(self.classes_n):
            if lc_class_version(self.classes[i]) != self.class_versions[i]:
                return False
        for i in range(self.lists_n):
            if PyList_GET_SIZE(self.lists[i]) != self.sizes[i]:
                return False
            for j in range(self.sizes[i]):
                if PyList_GET_ITEM(self.lists[i], j) != self.items[at]:
                    return False
                at += 1
        return True

    # Make the documents of a call that is enabled; return False if that has to go the ordinary way.
    cdef bint log(self, object level, object level_name, PyObject **args, Py_ssize_t n, object exc_info,
                  dict extra, long depth, bint stack_info) except -1:
        cdef PyObject *frame = PyEval_GetFrame()
        cdef Attributes s
        cdef Site *site
        cdef Py_ssize_t i
        cdef object given, message, thread, thread_name, stack = None
        cdef int overflow = 0
        cdef long long number = PyLong_AsLongLongAndOverflow(<PyObject *> level, &overflow)
        if frame == NULL or overflow or extra is not None and not TAKEN.isdisjoint(extra):
            return False
        for i in range(PyTuple_GET_SIZE(<PyObject *> self.handlers)):
            if not (<FastHandler> PyTuple_GET_ITEM(<PyObject *> self.handlers, i)).is_direct():
                return False
        message = <object> args[0]
        given = PyTuple_New(n - 1)
        for i in range(1, n):
            Py_INCREF(args[i])
            PyTuple_SET_ITEM(given, i - 1, args[i])
        cdef tuple all = given
        if n == 2 and not _is_inert(args[1]) and isinstance(<object> args[1], Mapping) and <object> args[1]:
            given = <object> args[1]         # as LogRecord does
        if exc_info:
            if isinstance(exc_info, BaseException):
                exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
            elif not isinstance(exc_info, tuple):
                exc_info = sys.exc_info()
        ident = PyThread_get_thread_ident()
        thread = None if self.threads is None else self.threads.get(ident)
        if type(thread) is THREAD or type(thread) is MAIN_THREAD:
            thread_name = thread._name
        else:
            ident = logging.threading.get_ident()
            thread_name = logging.threading.current_thread().name
        memset(&s, 0, sizeof(s))
        s.held = True                        # all values, by this function
        if extra:
            extra = PyDict_Copy(extra)
        site = SEEN.find(frame)
        if site.internal or depth > 1 or stack_info:
            found_frame = _find_frame(<object> frame, depth)
            if stack_info:
                stack = _stack_text(found_frame)
            site = SEEN.find(<PyObject *> found_frame)
        cdef object path = <object> site.path, line = <object> site.line
        cdef object file = <object> site.file, function = <object> site.function
        s.values[A_NAME] = <PyObject *> self.name
        s.values[A_FILENAME] = <PyObject *> file
        s.values[A_LINENO] = <PyObject *> line
        s.values[A_FUNCNAME] = <PyObject *> function
        s.values[A_PROCESS] = <PyObject *> self.pid
        s.values[A_PROCESSNAME] = <PyObject *> (MAIN_PROCESS if self.process_name is None else self.process_name)
        s.values[A_THREAD] = <PyObject *> ident
        s.values[A_THREADNAME] = <PyObject *> thread_name
        s.values[A_MSG] = <PyObject *> message
        s.values[A_ARGS] = <PyObject *> given
        s.values[A_LEVELNAME] = <PyObject *> level_name
        s.values[A_LEVELNO] = <PyObject *> level
        s.values[A_UNUSED] = <PyObject *> path       # for `_record_of`
        if exc_info:
            s.values[A_EXC_INFO] = <PyObject *> exc_info
        if stack is not None:
            s.values[A_STACK_INFO] = <PyObject *> stack
        for i in range(PyTuple_GET_SIZE(<PyObject *> self.handlers)):
            if number >= self.levels[i]:
                (<FastHandler> PyTuple_GET_ITEM(<PyObject *> self.handlers, i))._ship_call(&s, extra)
        return True

    cdef int watch_state(self, object one) except -1:
        # Watch the attributes of an object, and its class.
        if self.owners_n != self.dicts_n:
            raise _TooMany("orders")
        self.watch(one.__dict__)
        self.watch(type(one))
        self.kept.append(one)
        self.owners[self.owners_n] = <PyObject *> one
        self.owner_classes[self.owners_n] = lc_class(<PyObject *> one)
        self.owners_n += 1
        return 0

    cdef int watch(self, object one) except -1:
        # Watch a dict, a class or a list.
        self.kept.append(one)
        if isinstance(one, type):
            for i in range(self.classes_n):
                if self.classes[i] == <PyObject *> one:
                    return 0
            if self.classes_n == WATCHED_CLASSES:
                raise _TooMany("classes")
            getattr(one, "__name__", None)   # which gives it a version
            self.classes[self.classes_n] = <PyObject *> one
            self.class_versions[self.classes_n] = lc_class_version(<PyObject *> one)
            if self.class_versions[self.classes_n] == 0:
                raise _TooMany("changes of a class")
            self.classes_n += 1
            return 0
        if isinstance(one, dict):
            if self.dicts_n == WATCHED_DICTS:
                raise _TooMany("loggers")
            lc_watch(<PyObject *> one)
            self.dicts[self.dicts_n] = <PyObject *> one
            self.dict_versions[self.dicts_n] = lc_dict_version(<PyObject *> one)
            self.dicts_n += 1
            return 0
        if self.lists_n == WATCHED_LISTS or self.items_n + len(one) > WATCHED_ITEMS:
            raise _TooMany("handlers")
        self.lists[self.lists_n] = <PyObject *> one
        self.sizes[self.lists_n] = len(one)
        self.lists_n += 1
        for item in one:
            self.kept.append(item)
            self.items[self.items_n] = <PyObject *> item
            self.items_n += 1
        return 0


class _TooMany(Exception):
    """There is more to watch than a `Route` has room for."""


cdef object _record_of(Attributes *call, dict fields):
    # Return the record of a log call.
    record = logging.LogRecord(
        <object> call.values[A_NAME], <object> call.values[A_LEVELNO], <object> call.values[A_UNUSED],
        <object> call.values[A_LINENO], <object> call.values[A_MSG], <object> call.values[A_ARGS],
        _or_none(call.values[A_EXC_INFO]), <object> call.values[A_FUNCNAME])
    record.__dict__.update(fields or {})
    return record


cdef bint _is_own(object function, str name, str file) except -1:
    # Return whether it is the standard library's own function of this name, from this file.
    if type(function) is not FUNCTION:
        return False
    cdef object code = function.__code__
    return code.co_qualname == name and os.path.normcase(code.co_filename) == file


cdef Route _make_route(FastLogger logger):
    cdef Route route = Route.__new__(Route)
    route.kept = []
    route.forks = lc_fork_count()
    route.pid = os.getpid()
    cdef list mro = list(type(logger).__mro__)
    del mro[:mro.index(FastLogger) + 1]
    route.ordinary = tuple([
        next(kind.__dict__[name] for kind in mro if name in kind.__dict__) for name in METHOD_NAMES])
    route.cache = logger._cache if type(logger.__dict__.get("_cache")) is dict else {}
    try:
        route.why = _obstacle(route, logger)
    except _TooMany as error:
        route.why = f"too many {error}"
    if route.why:
        route.handlers = None
    logger.route = route
    return route


cdef str _obstacle(Route route, object logger):
    """Decide what keeps a logger off the fast way, and have `route` watch all that is looked at."""
    cdef str file = logging._srcfile
    cdef FastHandler handler
    cdef list handlers = []
    cdef object kind = type(logger)
    at = logger
    while at is not None:
        if any([hasattr(type(at), name) for name in LOGGER_STATE]):
            return f"{type(at).__qualname__} has a property in place of an attribute"
        route.watch_state(at)
        route.watch(at.handlers)
        handlers.extend(at.handlers)
        if at is logger:
            route.watch(at.filters)
        at = at.parent if at.propagate else None
    for one in handlers:
        if isinstance(one, FastHandler):
            route.watch_state(one)
    route.watch(logging.__dict__)
    route.watch(logging.LogRecord)
    if kind.__getattribute__ is not object.__getattribute__:
        return "its class has a __getattribute__"
    if logger.__dict__.get("_cache") is route.cache:
        route.watch(route.cache)
    if LC_SHARED:
        return "this Python has no GIL"
    if not file:
        return "logging._srcfile is unset"
    for i, name in enumerate(METHOD_NAMES):
        if not _is_own(route.ordinary[i], f"Logger.{name}", file):
            return f"Logger.{name} is replaced"
    if logger.disabled or logger.__dict__.get("_cache") is not route.cache or "isEnabledFor" in logger.__dict__:
        return "it is disabled"
    route.checks_levels = True
    for i, level in enumerate(METHOD_LEVELS):
        route.enabled[i] = lc_find(<PyObject *> route.cache, <PyObject *> level)
    for name in ("handle", "callHandlers", "makeRecord", "_log", "findCaller"):
        if name in logger.__dict__ or not _is_own(getattr(kind, name), f"Logger.{name}", file):
            return f"its {name} is replaced"
    if "filter" in logger.__dict__ or not _is_own(kind.filter, "Filterer.filter", file):
        return "its filter is replaced"
    if logger.filters:
        return "it has a filter"
    record = logging.LogRecord
    if logging._logRecordFactory is not record:
        return "a record factory is set"
    if not RECORD_HOOKS.isdisjoint(vars(record)) or not _is_own(
            record.__init__, "LogRecord.__init__", file) or not _is_own(
            record.getMessage, "LogRecord.getMessage", file):
        return "logging.LogRecord is changed"
    if not _is_own(logging.getLevelName, "getLevelName", file):
        return "logging.getLevelName is replaced"
    if not (logging.logThreads and logging.logMultiprocessing and logging.logProcesses):
        return "logging.logThreads, logMultiprocessing or logProcesses is unset"
    route.watch(logging.time.__dict__)
    if type(logging.time.time) is not type(len) or type(logging.time.time_ns) is not type(len):
        return "time.time is replaced"
    route.watch(logging._levelToName)
    route.level_names = tuple([logging.getLevelName(level) for level in METHOD_LEVELS])
    route.name = logger.name
    obstacle = _find_names(route)
    if obstacle:
        return obstacle
    if not handlers:
        return "it has no handler"
    if len(handlers) > MAX_HANDLERS:
        return "it has more than 4 handlers"
    for i, one in enumerate(handlers):
        name = type(one).__qualname__
        if not isinstance(one, FastHandler):
            return f"{name} is no logclient.Handler"
        handler = one
        if type(one).handle is not FastHandler.handle or "handle" in one.__dict__:
            return f"{name}.handle is replaced"
        if handler.ship is not None:
            return "the protocol or before_send wants records"
        route.levels[i] = one.level
    route.handlers = tuple(handlers)
    return ""


cdef str _find_names(Route route):
    # Find where the names of threads and of the process are; return an obstacle, or "".
    cdef object module = logging.threading
    cdef str file = os.path.normcase(module.Thread.run.__code__.co_filename)
    route.watch(module.__dict__)
    route.watch(module.Thread)
    if type(module.get_ident) is type(len) and _is_own(module.current_thread, "current_thread", file) and _is_own(
            module.Thread.name.fget, "Thread.name", file):
        route.threads = module._active
    route.watch(logging.os.__dict__)
    if type(logging.os.getpid) is not type(len):
        return "os.getpid is replaced"
    module = sys.modules.get("multiprocessing")
    if module is None:
        return ""
    route.watch(module.__dict__)
    route.process_name = MAIN_PROCESS
    if not hasattr(module, "current_process"):
        return ""                    # it is being loaded
    file = os.path.normcase(sys.modules["multiprocessing.process"].__file__)
    if not _is_own(module.current_process, "current_process", file):
        return "multiprocessing.current_process is replaced"
    current = module.current_process()
    route.watch(current.__dict__)
    route.watch(sys.modules["multiprocessing.process"].__dict__)
    route.process_name = current.name
    return ""


cdef object _ordinary(Route route, int method, FastLogger logger, PyObject **args, Py_ssize_t n, PyObject *names):
    # Call the standard library's method.
    cdef PyObject *all[PLAIN_ARGS]
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef object function = route.ordinary[method]
    if n + named < PLAIN_ARGS:
        all[0] = <PyObject *> logger
        for i in range(n + named):
            all[i + 1] = args[i]
        return PyObject_Vectorcall(function, all, <size_t> n + 1, names)
    return function(logger, *[<object> args[i] for i in range(n)],
                    **{<object> PyTuple_GET_ITEM(names, i): <object> args[n + i] for i in range(named)})


cdef object _enabled_ordinary(Route route, int method, FastLogger logger, object level, PyObject **args, Py_ssize_t n,
                              PyObject *names):
    # Do what the standard library's method does for an enabled level.
    cdef PyObject *all[PLAIN_ARGS]
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names), first = 4
    cdef tuple given
    if named > PLAIN_ARGS - 5 or level is None:
        return _ordinary(route, method, logger, args, n, names)
    args += method == M_LOG
    n -= method == M_LOG
    given = PyTuple_New(n - 1)
    for i in range(1, n):
        Py_INCREF(args[i])
        PyTuple_SET_ITEM(given, i - 1, args[i])
    all[0] = <PyObject *> logger
    all[1] = <PyObject *> level
    all[2] = args[0]
    all[3] = <PyObject *> given
    if method == M_EXCEPTION:
        for i in range(named):
            if <object> PyTuple_GET_ITEM(names, i) == "exc_info":
                break
        else:
            all[4] = Py_True
            first = 5
    for i in range(named):
        all[first + i] = args[n + i]
    PyObject_VectorcallMethod("_log", all, <size_t> first, names)
    return None


cdef inline Route _route_of(FastLogger logger):
    cdef Route route = logger.route
    return route if route is not None and route.holds() else _make_route(logger)


cdef object _call(object self, int method, PyObject **args, Py_ssize_t n, PyObject *names):
    # Any of the methods that log.
    cdef FastLogger logger = self
    cdef Route route = _route_of(logger)
    cdef object level = None, exc_info = None, extra = None
    cdef Py_ssize_t i, first = method == M_LOG
    cdef long depth = 1
    cdef bint fast = route.handlers is not None, stack_info = False
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
    if found != Py_True:
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
        level_name = logging.getLevelName(level) if method == M_LOG else route.level_names[method]
        fast = route.log(level, level_name, args + first, n - first, exc_info, extra, depth, stack_info)
    return None if fast else _enabled_ordinary(route, method, logger, level, args, n, names)


cdef object _debug(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_DEBUG, args, n, names)


cdef object _info(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_INFO, args, n, names)


cdef object _warning(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_WARNING, args, n, names)


cdef object _error_(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_ERROR, args, n, names)


cdef object _critical(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_CRITICAL, args, n, names)


cdef object _exception(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_EXCEPTION, args, n, names)


cdef object _log(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    return _call(self, M_LOG, args, n, names)


cdef object _is_enabled_for(object self, PyObject **args, Py_ssize_t n, PyObject *names):
    cdef Route route = _route_of(self)
    cdef PyObject *found = NULL
    if n == 1 and names == NULL and PyLong_CheckExact(args[0]) and route.checks_levels:
        found = lc_find(<PyObject *> route.cache, args[0])
    return <object> found if found != NULL else _ordinary(route, M_ENABLED, self, args, n, names)


cdef class FastLogger:
    """Base of ``logclient.Logger``; its methods are in `METHODS`."""

    cdef Route route

    def obstacle(self) -> str:
        """Return what keeps its calls off the fast way; empty: nothing."""
        return _route_of(self).why


cdef PyMethodDef DEFINITIONS[METHOD_COUNT]
DEFINITIONS[0].ml_meth, DEFINITIONS[1].ml_meth = <void *> _debug, <void *> _info
DEFINITIONS[2].ml_meth, DEFINITIONS[3].ml_meth = <void *> _warning, <void *> _error_
DEFINITIONS[4].ml_meth, DEFINITIONS[5].ml_meth = <void *> _critical, <void *> _exception
DEFINITIONS[6].ml_meth, DEFINITIONS[7].ml_meth = <void *> _log, <void *> _is_enabled_for


def compiled_methods() -> dict[str, Any]:
    """Return the methods of ``logclient.Logger`` by name."""
    cdef int i
    cdef bytes name, doc
    made = {}
    for i in range(<int> METHOD_COUNT):
        DOCS.append(METHOD_NAMES[i].encode())
        DEFINITIONS[i].ml_name = PyBytes_AS_STRING(DOCS[len(DOCS) - 1])
        DEFINITIONS[i].ml_flags = METH_FASTCALL | METH_KEYWORDS
        DEFINITIONS[i].ml_doc = NULL
        made[METHOD_NAMES[i]] = PyDescr_NewMethod(FastLogger, &DEFINITIONS[i])
    return made


cdef list DOCS = []
cdef dict MODULES = sys.modules
# The names that `extra` must not have.
cdef frozenset TAKEN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}
cdef object MULTIPROCESSING = "multiprocessing"
cdef object MAIN_PROCESS = "MainProcess"
cdef object FUNCTION = type(logging.getLevelName)
cdef tuple LOGGER_STATE = ("name", "handlers", "filters", "propagate", "parent", "disabled", "_cache")
cdef frozenset RECORD_HOOKS = frozenset(("__new__", "__getattribute__", "__getattr__", "__setattr__"))
cdef object THREAD = logging.threading.Thread
cdef object MAIN_THREAD = logging.threading._MainThread
