# Log calls that make no LogRecord, and those that the standard library makes.

cdef extern from "Python.h":
    object PyObject_Vectorcall(object function, PyObject **args, size_t n, PyObject *names)
    Py_ssize_t PyVectorcall_NARGS(size_t n) nogil

cdef enum:
    RECENT = 1024            # states that are found without a look into `STATES`


@cython.final
@cython.no_gc_clear          # a destructor may log
cdef class State:
    """What is remembered of a logger; not in it, so that its layout is that of every logger in Python."""

    cdef PyObject *logger        # borrowed: the state goes away before it
    cdef object reference        # the weak reference that calls `end`
    cdef Route route             # None: to be decided
    cdef Site *sites             # a table of SITES; NULL: none was seen
    cdef unsigned long thread    # the identifier of the last one that called it, and the same as an object
    cdef object ident

    def __dealloc__(self):
        cdef int i
        if self.sites != NULL:
            for i in range(<int> SITES):
                _forget_site(&self.sites[i])
            free(self.sites)

    def end(self, _reference: object):
        """Forget the logger."""
        cdef PyObject **place = _recent_place(self.logger)
        if place[0] == <PyObject *> self:
            place[0] = NULL
        STATES.pop(<size_t> self.logger, None)


cdef object LOGGER = logging.Logger      # later `logclient.Logger`
cdef dict STATES = {}                    # address of a logger -> its State
cdef PyObject *RECENT_STATES[RECENT]
memset(RECENT_STATES, 0, sizeof(RECENT_STATES))


cdef inline PyObject **_recent_place(PyObject *logger) noexcept:
    return &RECENT_STATES[(<size_t> logger >> 4 ^ <size_t> logger >> 14) & (RECENT - 1)]


cdef inline State _state_of(PyObject *logger):
    cdef PyObject *found = _recent_place(logger)[0]
    if found != NULL and (<State> found).logger == logger:
        return <State> found
    return _find_state(logger)


cdef State _find_state(PyObject *logger):
    # Return the state of a logger, or None: it is none of ours.
    cdef State state
    if not issubclass(type(<object> logger), LOGGER):
        return None
    state = STATES.get(<size_t> logger)
    if state is None:
        state = State.__new__(State)
        state.logger = logger
        state.reference = weakref.ref(<object> logger, state.end)
        state = STATES.setdefault(<size_t> logger, state)    # a destructor may have logged meanwhile
    _recent_place(logger)[0] = <PyObject *> state
    return state


cdef object _ordinary(Route route, int method, PyObject **args, Py_ssize_t n, PyObject *names):
    # Call the standard library's method. `args`: the logger, and what it was called with.
    cdef object function, name = METHOD_NAMES[method]
    if route is None or route.ordinary is None:      # a logger of another class
        function = getattr(logging.Logger, name)
    else:
        function = route.ordinary[method]
        if type(function) is not FUNCTION:           # it binds in its own way, or was deleted
            function = getattr(super(LOGGER, <object> args[0]), name)
            args += 1
            n -= 1
    return PyObject_Vectorcall(function, args, <size_t> n, names)


cdef inline Route _route_of(State state):
    cdef Route route = state.route
    return route if route is not None and route.holds() else _make_route(state)


cdef object _call(object called, PyObject **all, size_t size, PyObject *names):
    # Any of the methods that log. Those of a level that is off are most, and need nothing more than this.
    cdef int method = (<Method> called).number
    cdef Py_ssize_t n = PyVectorcall_NARGS(size)
    cdef PyObject *found = NULL if n == 0 else _recent_place(all[0])[0]
    if (found != NULL and (<State> found).logger == all[0] and n > 1 and method != M_LOG
            and (<State> found).route is not None and (<State> found).route.is_disabled(method)):
        return None
    return _call_in_full(method, all, n, names)


cdef object _call_in_full(int method, PyObject **all, Py_ssize_t n, PyObject *names):
    # A call whose level is on, as far as is known.
    cdef State state = _state_of(all[0]) if n > 0 else None
    if state is None:
        return _ordinary(None, method, all, n, names)
    cdef Route route = _route_of(state)
    cdef PyObject **args = all + 1
    n -= 1
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
        return _ordinary(route, method, all, n + 1, names)
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
        fast = route.log(state, level, level_name, args + first, n - first, exc_info, extra, depth,
                         stack_info)
    return None if fast else _ordinary(route, method, all, n + 1, names)


cdef object _call_is_enabled_for(object called, PyObject **all, size_t size, PyObject *names):
    cdef Py_ssize_t n = PyVectorcall_NARGS(size)
    cdef State state = _state_of(all[0]) if n > 0 else None
    cdef Route route = None if state is None else _route_of(state)
    cdef PyObject *found = NULL
    if (n == 2 and names == NULL and route is not None and PyLong_CheckExact(all[1]) and route.checks_levels
            and not route.is_in_progress()):
        found = lc_find(<PyObject *> route.cache, all[1])
    return <object> found if found != NULL else _ordinary(route, M_ENABLED, all, n, names)


@cython.final
cdef class Method:
    # A method of `logclient.Logger`. It binds as functions do, and says that it is one: all else that a
    # program asks of it is answered by the standard library's.
    cdef void *function          # its vectorcall
    cdef int number              # M_...
    cdef dict __dict__
    cdef object __weakref__

    def __get__(self, instance, owner):
        return self if instance is None else BOUND(self, instance)

    def __getattr__(self, name):
        return getattr(getattr(logging.Logger, METHOD_NAMES[self.number]), name)

    def __reduce__(self):
        return getattr, (LOGGER, METHOD_NAMES[self.number])

    def __repr__(self):
        return f"<function {self.__qualname__} at {<size_t> <PyObject *> self:#x}>"

    @property
    def __class__(self):
        return FUNCTION

    @property
    def __doc__(self):
        return self.__getattr__("__doc__")

    @property
    def __module__(self):
        return self.__getattr__("__module__")


cdef object BOUND = type(logging.root.info)
cdef dict COMPILED = {}      # the methods by name


def compile_methods(logger: type[logging.Logger]) -> None:
    """Give a class its compiled methods: none without a GIL, on which they rely."""
    global LOGGER
    cdef Method method
    cdef int i
    LOGGER = logger
    if LC_SHARED:
        return
    for i in range(<int> METHOD_COUNT):
        method = Method.__new__(Method)
        method.number = i
        method.function = <void *> _call_is_enabled_for if i == M_ENABLED else <void *> _call
        COMPILED[METHOD_NAMES[i]] = method
        setattr(logger, METHOD_NAMES[i], method)
    lc_call_as_method(<PyObject *> Method, <char *> &method.function - <char *> <PyObject *> method)


def obstacle(logger: logging.Logger) -> str:
    """Return what keeps the calls of a logger of that class off the fast way; empty: nothing."""
    cdef Route route
    cdef int i
    if LC_SHARED:
        return "this Python has no GIL"
    route = _route_of(_state_of(<PyObject *> logger))
    for i in range(route.count):
        if not (<FastHandler> route.handlers[i]).is_direct():
            return f"{type(<object> route.handlers[i]).__qualname__} has a filter or formatter"
    return route.why
