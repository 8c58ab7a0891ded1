# Which way the calls of a logger go.
#
# The standard library's own functions define what a log call does. While none of them is replaced and every
# handler on the way up is ours, the result is a document in the queue, so it is made from the arguments.
# `Route` holds what that was decided from: versions of the dicts and classes, items of the lists.

cdef extern from "record/watching.h":
    ctypedef int PyDict_WatchEvent
    uint64_t lc_dict_version(PyObject *d, uint64_t changes) nogil
    int lc_add_watcher(int (*f)(PyDict_WatchEvent, PyObject *, PyObject *, PyObject *)) except -1
    int lc_watch(int watcher, PyObject *d) except -1
    void lc_call_as_method(PyObject *type, Py_ssize_t offset)
    uint32_t lc_class_version(PyObject *kind) nogil
    PyObject *lc_class "(PyObject *)Py_TYPE"(PyObject *o) nogil
    PyObject *lc_dict_of(PyObject *o) nogil
    PyObject *lc_attribute_of(PyObject *o, PyObject *name)

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil
    tuple PyTuple_New(Py_ssize_t n)
    void *PyCFunction_GET_FUNCTION(PyObject *function) nogil
    void PyTuple_SET_ITEM(object t, Py_ssize_t i, PyObject *o)

cdef enum:
    MAX_OWNERS = 16          # loggers on the way up, and handlers
    MAX_HANDLERS = 4
    MAX_ITEMS = 16           # handlers of all loggers, of whatever kind
    WATCHED_DICTS = 10
    CACHE = 1                # of them: the logger's levels, behind those of the module
    WATCHED_CLASSES = 12

cdef enum:
    M_DEBUG, M_INFO, M_WARNING, M_ERROR, M_CRITICAL, M_EXCEPTION, M_LOG, M_ENABLED
    METHOD_COUNT

# The methods in that order, and their levels.
cdef tuple METHOD_NAMES = (
    "debug", "info", "warning", "error", "critical", "exception", "log", "isEnabledFor")
cdef tuple METHOD_LEVELS = (10, 20, 30, 40, 50, 40)
# The names that `extra` must not have: attributes of a record, and those that an encoder reads or leaves out.
cdef frozenset TAKEN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))).union(
    ("message", "asctime", "color_message"), INSTRUMENTED_NAMES)
cdef tuple LOGGER_STATE = ("name", "handlers", "filters", "propagate", "parent", "disabled", "_cache")
cdef frozenset RECORD_HOOKS = frozenset(("__new__", "__getattribute__", "__getattr__", "__setattr__"))
cdef dict MODULES = sys.modules
cdef object MULTIPROCESSING = "multiprocessing"
cdef object LEVEL = "level"
cdef object MAIN_PROCESS = "MainProcess"
cdef object FUNCTION = type(logging.getLevelName)
cdef object BUILTIN = type(len)
cdef object THREAD = logging.threading.Thread
cdef object MAIN_THREAD = logging.threading._MainThread

# The clocks that a record may read, and their functions in C, which time-machine replaces.
cdef object TIME = logging.time.time
cdef object TIME_NS = logging.time.time_ns
cdef void *TIME_FUNCTION = NULL
cdef void *TIME_NS_FUNCTION = NULL
if type(TIME) is BUILTIN and type(TIME_NS) is BUILTIN:
    TIME_FUNCTION = PyCFunction_GET_FUNCTION(<PyObject *> TIME)
    TIME_NS_FUNCTION = PyCFunction_GET_FUNCTION(<PyObject *> TIME_NS)


cdef inline bint _is_clock_own() noexcept:
    return (TIME_FUNCTION != NULL and PyCFunction_GET_FUNCTION(<PyObject *> TIME) == TIME_FUNCTION
            and PyCFunction_GET_FUNCTION(<PyObject *> TIME_NS) == TIME_NS_FUNCTION)


# Counts the changes of all watched dicts from CPython 3.12 on, where a dict has no version.
cdef uint64_t CHANGES = 0


cdef int _count_change(PyDict_WatchEvent event, PyObject *d, PyObject *key, PyObject *value) noexcept:
    global CHANGES
    CHANGES += 1
    return 0


cdef int _add_watcher():
    # Return the number of our watcher of dicts; -1: the process has no more of them.
    try:
        return lc_add_watcher(&_count_change)
    except RuntimeError:
        return -1

cdef int WATCHER = _add_watcher()


# A logger on the way up, or a handler: borrowed, as all that lies in it. It is alive while the owners before
# it are as they were.
ctypedef struct Owner:
    PyObject *object
    PyObject *kind
    PyObject *dict
    uint64_t version         # of the dict
    PyObject *level          # of a handler that is not ours: no other attribute matters. Or NULL
    PyObject *list           # the handlers of a logger, or NULL
    Py_ssize_t size


@cython.final
@cython.no_gc_clear          # a destructor may log
cdef class Route:
    """The way that the calls of a logger go, and what it was decided from."""

    cdef str why             # what keeps them off the fast way; empty: nothing
    cdef tuple ordinary      # the functions of the ordinary way, by M_...; None: logging.Logger's
    cdef dict cache          # of the logger: level -> whether it is enabled
    cdef bint checks_levels  # the functions that decide about a level are those of the standard library
    cdef PyObject *enabled[M_LOG]    # by method, what `cache` has: True, False or NULL
    cdef object in_progress  # the threading.local by which newer Pythons drop calls in the middle of another
    cdef tuple level_names   # by method
    cdef object name         # of the logger
    cdef object pid
    cdef uint64_t forks      # of which the process is the result
    cdef object processes    # the module multiprocessing, or None
    cdef object process_name
    cdef bint own_clock      # the clock is that of the system
    cdef dict threads        # identifier -> Thread; None: `threading` must be asked
    cdef int count           # of handlers; 0: the ordinary way, but for `idle`
    cdef bint idle           # all handlers are of the URL none:, and ignore what they get
    cdef PyObject *handlers[MAX_HANDLERS]
    cdef long levels[MAX_HANDLERS]
    cdef long long below     # calls from this level on are for handlers that are not ours, too
    cdef list other_levels   # keeps the levels of these: another number may not get the place of one
    # In the order in which they are looked at:
    cdef int owners_n
    cdef int items_n
    cdef int dicts_n
    cdef int classes_n
    cdef Owner owners[MAX_OWNERS]
    cdef PyObject *items[MAX_ITEMS]          # of all their lists
    cdef PyObject *filters   # of the logger
    cdef Py_ssize_t filters_n
    cdef PyObject *dicts[WATCHED_DICTS]
    cdef uint64_t dict_versions[WATCHED_DICTS]
    cdef PyObject *classes[WATCHED_CLASSES]
    cdef uint32_t class_versions[WATCHED_CLASSES]

    cdef bint holds(self) noexcept:
        cdef Py_ssize_t i, j, at = 0
        cdef Owner *one
        if self.forks != lc_forks or self.own_clock != _is_clock_own():
            return False
        if lc_find(<PyObject *> MODULES, <PyObject *> MULTIPROCESSING) != (
                NULL if self.processes is None else <PyObject *> self.processes):
            return False
        for i in range(self.owners_n):
            one = &self.owners[i]
            if lc_class(one.object) != one.kind:
                return False
            if one.level != NULL:
                if lc_attribute_of(one.object, <PyObject *> LEVEL) != one.level:
                    return False
            elif lc_dict_of(one.object) != one.dict or lc_dict_version(one.dict, CHANGES) != one.version:
                return False
            if one.list != NULL:
                if PyList_GET_SIZE(one.list) != one.size:
                    return False
                for j in range(one.size):
                    if PyList_GET_ITEM(one.list, j) != self.items[at + j]:
                        return False
                at += one.size
        if self.filters != NULL and PyList_GET_SIZE(self.filters) != self.filters_n:
            return False
        for i in range(self.dicts_n):
            if lc_dict_version(self.dicts[i], CHANGES) != self.dict_versions[i]:
                return False
        for i in range(self.classes_n):
            if lc_class_version(self.classes[i]) != self.class_versions[i]:
                return False
        return True

    cdef Owner *add_owner(self, object one) except NULL:
        # Watch the class of an object.
        cdef Owner *made = &self.owners[self.owners_n]
        if self.owners_n == MAX_OWNERS:
            raise _Obstacle("too many loggers or handlers")
        made.object = <PyObject *> one
        made.kind = lc_class(made.object)
        self.owners_n += 1
        self.watch_class(type(one))
        return made

    cdef int watch_owner(self, object one, list handlers) except -1:
        # Watch the attributes and the class of an object, and the list of a logger.
        cdef Owner *made = self.add_owner(one)
        made.dict = lc_dict_of(made.object)
        lc_watch(WATCHER, made.dict)
        made.version = lc_dict_version(made.dict, CHANGES)
        if handlers is not None:
            if self.items_n + len(handlers) > MAX_ITEMS:
                raise _Obstacle("too many handlers")
            made.list = <PyObject *> handlers
            made.size = len(handlers)
            for item in handlers:
                self.items[self.items_n] = <PyObject *> item
                self.items_n += 1
        return 0

    cdef bint watch_level(self, object one, object least) except -1:
        # Watch the level of a handler that is not ours. Return whether it is above `least`.
        cdef PyObject *found = NULL
        if type(one).__getattribute__ is object.__getattribute__ and not hasattr(type(one), LEVEL):
            found = lc_attribute_of(<PyObject *> one, <PyObject *> LEVEL)
        if found == NULL or type(<object> found) is not int:
            self.watch_owner(one, None)
            return False
        level = <object> found
        self.other_levels.append(level)
        self.add_owner(one).level = <PyObject *> level
        if level <= least:
            return False
        self.below = min(self.below, level)
        return True

    cdef int watch_dict(self, dict one) except -1:
        if self.dicts_n == WATCHED_DICTS:
            raise _Obstacle("too many modules")
        self.dicts[self.dicts_n] = <PyObject *> one
        lc_watch(WATCHER, <PyObject *> one)
        self.dict_versions[self.dicts_n] = lc_dict_version(<PyObject *> one, CHANGES)
        self.dicts_n += 1
        return 0

    cdef int watch_class(self, object kind) except -1:
        cdef int i
        for i in range(self.classes_n):
            if self.classes[i] == <PyObject *> kind:
                return 0
        getattr(kind, "__init__", None)      # a look-up in its dict gives it a version
        if self.classes_n == WATCHED_CLASSES or lc_class_version(<PyObject *> kind) == 0:
            raise _Obstacle("its class, or one of a logger or handler, changes too often")
        self.classes[self.classes_n] = <PyObject *> kind
        self.class_versions[self.classes_n] = lc_class_version(<PyObject *> kind)
        self.classes_n += 1
        return 0

    cdef inline bint is_disabled(self, int method) noexcept:
        # Return whether a method's level is off, by the logger's own cache. Nothing else matters then.
        cdef Owner *own = &self.owners[0]
        return (self.checks_levels and self.enabled[method] == Py_False
                and lc_dict_version(self.dicts[CACHE], CHANGES) == self.dict_versions[CACHE]
                and lc_class(own.object) == own.kind
                and lc_class_version(own.kind) == self.class_versions[0]
                and lc_dict_of(own.object) == own.dict and lc_dict_version(own.dict, CHANGES) == own.version)

    cdef inline bint is_in_progress(self) except -1:
        # Return whether the standard library drops the calls of this thread, as it handles a record.
        return self.in_progress is not None and getattr(self.in_progress, "in_progress", False)

    # Make the documents of a call that is enabled. Return False, before anything is done, if the call has to
    # go the ordinary way. No Python code may run between `holds` and the references to the handlers.
    cdef bint log(self, State state, object level, object level_name, PyObject **args, Py_ssize_t n,
                  object exc_info, dict extra, long depth, bint stack_info) except -1:
        cdef PyObject *handlers[MAX_HANDLERS]
        cdef PyObject *frame
        cdef lc_here *thread = lc_this_thread()
        cdef int i, nested, overflow = 0, count = self.count
        cdef long long number = PyLong_AsLongLongAndOverflow(<PyObject *> level, &overflow)
        if overflow or number >= self.below or extra is not None and not _may_be_extra(extra):
            return False
        if self.idle:
            return True
        for i in range(count):
            handlers[i] = self.handlers[i]
            if not (<FastHandler> handlers[i]).is_direct():
                return False
        for i in range(count):               # another thread may remove one meanwhile
            Py_INCREF(handlers[i])
        try:
            frame = PyEval_GetFrame()        # which it may have to make: a garbage collection can follow
            if frame == NULL:
                return False
            if level_name is None:
                level_name = logging.getLevelName(level)
            nested = lc_enter(thread, True)
            if nested < 0:
                for i in range(count):
                    if number >= self.levels[i]:
                        (<FastHandler> handlers[i])._refuse(level)
                return True
            try:
                return self.log_to(handlers, number, state, level, level_name, thread, frame, args, n,
                                   exc_info, extra, depth, stack_info)
            finally:
                lc_leave(thread, nested)
        finally:
            for i in range(count):
                Py_DECREF(handlers[i])

    cdef bint log_to(self, PyObject **handlers, long long number, State state, object level,
                     object level_name, lc_here *thread, PyObject *frame, PyObject **args, Py_ssize_t n,
                     object exc_info, dict extra, long depth, bint stack_info) except -1:
        cdef Attributes s
        cdef Site *site
        cdef int i
        cdef object message = <object> args[0], given = _arguments(args, n), stack = None
        cdef object caller, ident, owner, thread_name, path, file, line, function
        if n == 2 and not _is_inert(args[1]) and isinstance(<object> args[1], Mapping) and <object> args[1]:
            given = <object> args[1]         # as LogRecord does
        if exc_info:
            if isinstance(exc_info, BaseException):
                exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
            elif not isinstance(exc_info, tuple):
                exc_info = sys.exc_info()
        if state.ident is None or state.thread != PyThread_get_thread_ident():
            state.ident = PyThread_get_thread_ident()
            state.thread = PyThread_get_thread_ident()
        ident = state.ident
        owner = None if self.threads is None else self.threads.get(ident)
        if type(owner) is THREAD or type(owner) is MAIN_THREAD:
            thread_name = owner._name
        else:
            ident = logging.threading.get_ident()
            thread_name = logging.threading.current_thread().name
        if extra:
            extra = PyDict_Copy(extra)
        site = _find_site(state, frame)
        if site.internal or depth > 1 or stack_info:
            caller = _find_frame(state, <object> frame, depth)
            if stack_info:
                try:
                    stack = _stack_text(caller)
                except ValueError:       # a path that the system cannot have: the caller is unknown
                    return False
            site = _find_site(state, <PyObject *> caller)
        path = <object> site.path
        file = <object> site.file
        line = <object> site.line
        function = <object> site.function
        if site.name != <PyObject *> self.name:
            _name_site(site, self.name)      # which may end the name before it, and so run Python code
        lc_clear(&s, sizeof(s))
        s.held = True                        # all values, by this function
        s.thread = thread
        s.site = site
        s.values[A_NAME] = <PyObject *> self.name
        s.values[A_FILENAME] = <PyObject *> file
        s.values[A_LINENO] = <PyObject *> line
        s.values[A_FUNCNAME] = <PyObject *> function
        s.values[A_PROCESS] = <PyObject *> self.pid
        s.values[A_PROCESSNAME] = <PyObject *> self.process_name
        s.values[A_THREAD] = <PyObject *> ident
        s.values[A_THREADNAME] = <PyObject *> thread_name
        s.values[A_MSG] = <PyObject *> message
        s.values[A_ARGS] = <PyObject *> given
        s.values[A_LEVELNAME] = <PyObject *> level_name
        s.values[A_LEVELNO] = <PyObject *> level
        s.values[A_UNUSED] = <PyObject *> path       # for `_record_of`
        if exc_info is not None:
            s.values[A_EXC_INFO] = <PyObject *> exc_info
        if stack is not None:
            s.values[A_STACK_INFO] = <PyObject *> stack
        if self.in_progress is not None:
            self.in_progress.in_progress = True
        try:
            for i in range(self.count):
                if number >= self.levels[i]:
                    (<FastHandler> handlers[i])._ship_call(&s, extra)
            if thread.refuses and thread.calls == 1:
                (<FastHandler> handlers[0])._report_recursion(_record_of(&s, extra))
        finally:
            if self.in_progress is not None:
                self.in_progress.in_progress = False
        return True


cdef bint _may_be_extra(dict fields) except -1:
    # Return whether `makeRecord` takes these fields, and a document has them as they are.
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t at = 0
    while PyDict_Next(<PyObject *> fields, &at, &key, &value):
        if not PyUnicode_CheckExact(key) or <object> key in TAKEN:
            return False
    return True


class _Obstacle(Exception):
    """What keeps a logger off the fast way."""


cdef object _record_of(Attributes *call, dict fields):
    record = logging.LogRecord(
        <object> call.values[A_NAME], <object> call.values[A_LEVELNO], <object> call.values[A_UNUSED],
        <object> call.values[A_LINENO], <object> call.values[A_MSG], (), _or_none(call.values[A_EXC_INFO]),
        <object> call.values[A_FUNCNAME])
    record.args = <object> call.values[A_ARGS]       # a mapping is what it is
    record.__dict__.update(fields or {})
    return record


cdef tuple _arguments(PyObject **args, Py_ssize_t n):
    # Return those behind the message.
    cdef tuple made = PyTuple_New(n - 1)
    cdef Py_ssize_t i
    for i in range(1, n):
        Py_INCREF(args[i])
        PyTuple_SET_ITEM(made, i - 1, args[i])
    return made


cdef bint _is_own(object function, str name, str file) except -1:
    # Return whether it is the standard library's own function of this name, from this file.
    if type(function) is not FUNCTION:
        return False
    cdef object code = function.__code__
    return code.co_qualname == name and os.path.normcase(code.co_filename) == file


cdef bint _is_builtin(object module, str name) except -1:
    # Return whether it is a function in C of this name.
    cdef object function = getattr(module, name)
    return type(function) is BUILTIN and function.__name__ == name


cdef Route _make_route(State state):
    cdef object logger = <object> state.logger
    cdef Route route = Route.__new__(Route)
    cdef list mro = list(type(logger).__mro__)
    if LOGGER in mro:
        del mro[:mro.index(LOGGER) + 1]
        route.ordinary = tuple([next((kind.__dict__[name] for kind in mro if name in kind.__dict__), None)
                                for name in METHOD_NAMES])
    route.forks = lc_forks
    route.own_clock = _is_clock_own()
    route.processes = MODULES.get(MULTIPROCESSING)
    route.pid = os.getpid()
    route.below = LLONG_MAX
    route.other_levels = []
    route.why = ""
    try:
        _decide(route, logger)
    except Exception as error:
        route.why = str(error) if isinstance(error, _Obstacle) else f"{type(error).__name__}: {error}"
    state.route = route
    if not route.holds():            # something has changed meanwhile: decide again at the next call
        route.count = 0
        route.idle = False
        route.checks_levels = False
    return route


cdef int _decide(Route route, object logger) except -1:
    # Decide which way the calls of a logger go, and watch all that is looked at.
    cdef str file = logging._srcfile
    cdef FastHandler handler
    cdef list handlers = [], ours = []
    cdef bint idle = False
    cdef object kind = type(logger), record = logging.LogRecord, at = logger, other = None
    if route.ordinary is None:
        raise _Obstacle("its class is another one")
    if WATCHER < 0:
        raise _Obstacle("other extensions have taken all watchers of dicts")
    if sys.version_info[:3] == (3, 13, 0):       # gh-125608
        raise _Obstacle("CPython 3.13.0 does not tell of all changes of attributes")
    while at is not None:
        own = at.__dict__.get("handlers")
        route.watch_owner(at, own if type(own) is list else None)
        if (type(own) is not list or type(at).__getattribute__ is not object.__getattribute__
                or any([hasattr(type(at), name) or name not in at.__dict__ for name in LOGGER_STATE])):
            raise _Obstacle("it, or one above it, has a property or something else in place of an attribute")
        if hasattr(type(at), "__bool__") or hasattr(type(at), "__len__"):
            raise _Obstacle("it, or one above it, may be false")
        handlers.extend(own)
        at = at.parent if at.propagate else None
    cdef object beside = getattr(kind.callHandlers, "beside", None)      # the handler of `logclient run`
    if beside is not None and not handlers:
        handlers.append(logging.lastResort)
    if type(logger.filters) is not list:
        raise _Obstacle("its filters are no list")
    route.filters = <PyObject *> logger.filters
    route.filters_n = len(logger.filters)
    # Not called if it is replaced: a program may count its calls.
    own = "getEffectiveLevel" not in logger.__dict__ and _is_own(
        kind.getEffectiveLevel, "Logger.getEffectiveLevel", file)
    cdef object least = logger.getEffectiveLevel() if own else 0
    for one in handlers:
        if isinstance(one, FastHandler):
            route.watch_owner(one, None)
            handler = one
            if (handler.encoder is None and type(one).handle is FastHandler.handle
                    and "handle" not in one.__dict__):
                idle = True
            else:
                ours.append(one)
        elif type(one) is logging.NullHandler:       # as libraries add
            route.watch_owner(one, None)
            if "handle" in one.__dict__ or not _is_own(type(one).handle, "NullHandler.handle", file):
                other = one
        elif not route.watch_level(one, least):
            other = one
    route.watch_dict(logging.__dict__)
    route.watch_class(record)
    if not file:
        raise _Obstacle("logging._srcfile is unset")
    for i, name in enumerate(METHOD_NAMES):
        if not _is_own(route.ordinary[i], f"Logger.{name}", file):
            raise _Obstacle(f"Logger.{name} is replaced")
    for name in ("isEnabledFor", "error"):       # which others call
        if name in logger.__dict__ or getattr(kind, name) is not COMPILED[name]:
            raise _Obstacle(f"its {name} is replaced")
    if logger.disabled or type(logger._cache) is not dict:
        raise _Obstacle("it is disabled")
    if hasattr(kind, "_is_disabled"):
        if "_is_disabled" in logger.__dict__ or not _is_own(kind._is_disabled, "Logger._is_disabled", file):
            raise _Obstacle("its _is_disabled is replaced")
        route.in_progress = kind._tls
    route.cache = logger._cache
    route.watch_dict(route.cache)
    for i, level in enumerate(METHOD_LEVELS):
        route.enabled[i] = lc_find(<PyObject *> route.cache, <PyObject *> level)
    route.checks_levels = True
    for name in ("handle", "callHandlers", "makeRecord", "_log", "findCaller"):
        function = getattr(kind, name)
        if beside is not None and name == "callHandlers":
            function = function.__wrapped__
        if name in logger.__dict__ or not _is_own(function, f"Logger.{name}", file):
            raise _Obstacle(f"its {name} is replaced")
    if logger.filters:
        raise _Obstacle("it has a filter")
    if "filter" in logger.__dict__ or not _is_own(kind.filter, "Filterer.filter", file):
        raise _Obstacle("its filter is replaced")
    if logging._logRecordFactory is not record:
        raise _Obstacle("a record factory is set")
    if not RECORD_HOOKS.isdisjoint(vars(record)) or not _is_own(
            record.__init__, "LogRecord.__init__", file) or not _is_own(
            record.getMessage, "LogRecord.getMessage", file):
        raise _Obstacle("logging.LogRecord is changed")
    for name, qualified in (("getLevelName", "getLevelName"), ("currentframe", "<lambda>"),
                            ("_is_internal_frame", "_is_internal_frame")):
        if not _is_own(getattr(logging, name), qualified, file):
            raise _Obstacle(f"logging.{name} is replaced")
    if not (logging.logThreads and logging.logMultiprocessing and logging.logProcesses):
        raise _Obstacle("logging.logThreads, logMultiprocessing or logProcesses is unset")
    route.watch_dict(logging._levelToName)
    route.level_names = tuple([logging.getLevelName(level) for level in METHOD_LEVELS])
    route.name = logger.name
    _find_names(route)
    if other is not None:
        raise _Obstacle(f"{type(other).__qualname__} is no logclient.Handler")
    if beside is not None and not ours and not idle:
        route.watch_owner(beside, None)
        ours.append(beside)
    if not ours and not idle:
        raise _Obstacle("it has no handler of ours" if handlers else "it has no handler")
    if len(ours) > MAX_HANDLERS:
        raise _Obstacle(f"it has more than {MAX_HANDLERS} handlers of ours")
    for i, one in enumerate(ours):
        name = type(one).__qualname__
        handler = one
        if (type(one).handle is not FastHandler.handle or "handle" in one.__dict__
                or type(one).__getattribute__ is not object.__getattribute__):
            raise _Obstacle(f"{name}.handle is replaced")
        if hasattr(type(one), "level"):
            raise _Obstacle(f"{name}.level is a property or something else in place of an attribute")
        if handler.ship is not None:
            raise _Obstacle("its handler is of Logjam or plog, or has before_send")
        route.handlers[i] = <PyObject *> one
        route.levels[i] = one.level
    route.count = <int> len(ours)
    route.idle = not ours
    return 0


cdef int _find_names(Route route) except -1:
    # Find where the names of threads and of the process are, and whether the clock and the id of the process
    # are those of the system.
    cdef object threads = logging.threading, processes = route.processes
    cdef str file = os.path.normcase(threads.Thread.run.__code__.co_filename)
    for module in (logging.time, logging.os, threads):
        route.watch_dict(module.__dict__)
    for module, name in ((logging.time, "time"), (logging.time, "time_ns"), (logging.os, "getpid")):
        if not _is_builtin(module, name):
            raise _Obstacle(f"{module.__name__}.{name} is replaced")
    if not route.own_clock:
        raise _Obstacle("time.time or time.time_ns is replaced")
    route.watch_class(MAIN_THREAD)
    if _is_builtin(threads, "get_ident") and _is_own(
            threads.current_thread, "current_thread", file) and _is_own(
            THREAD.name.fget, "Thread.name", file) and MAIN_THREAD.name is THREAD.name:
        route.threads = threads._active
    route.process_name = MAIN_PROCESS
    if processes is None:
        return 0
    route.watch_dict(processes.__dict__)
    if not hasattr(processes, "current_process"):
        return 0                     # it is being loaded
    route.watch_dict(processes.process.__dict__)
    file = os.path.normcase(processes.process.__file__)
    if not _is_own(processes.current_process, "current_process", file):
        raise _Obstacle("multiprocessing.current_process is replaced")
    current = processes.current_process()
    route.watch_dict(current.__dict__)
    route.watch_class(type(current))
    if not _is_own(type(current).name.fget, "BaseProcess.name", file):
        raise _Obstacle("the name of the process is replaced")
    route.process_name = current.name
    return 0
