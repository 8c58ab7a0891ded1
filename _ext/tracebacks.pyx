"""Texts of exceptions, equal to those of `logging.Formatter.formatException`, from frames seen before.

The text of a frame depends on code, instruction and source alone, so it is kept.

======================= ==============================================================================
key of a kept frame     its code, by a weak reference, its instruction, and the line of its traceback
holds while             the code lives, and `linecache` has the lines that the text was made of
checked                 by `linecache.checkcache`, once for each file of a traceback, as usual
made by                 the standard library: `extract_tb` and `format_frame_summary`, for missing frames
bound                   1024 frames, none above 4 KiB with all that it refers to: 4 MiB
======================= ==============================================================================

What a text was made of is compared as text: the file may be edited, deleted or loaded again.

All else goes the standard way, from the beginning: exception groups, classes that override what the standard
library reads, `sys.tracebacklimit`, any error here, and a build without the GIL. Last lines with notes,
suggestions or a syntax error are those of `TracebackException`.

Whoever replaces a part of `traceback` or `linecache` wants other texts. Therefore their namespaces are
compared with those at the last look before each use. After a change, the functions must still be at home in
their modules, or everything goes the standard way until the next change. A few samples must equal the
standard texts, too, or the next look is after a while.

No lock is taken. Python code may run in between, and may come back here: a frame is never changed once it is
made, whoever uses it has a reference, and a place in the table changes its frame without running any code.
"""

cimport cython
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

import linecache
import logging
import sys
import traceback
import weakref
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
    WrapperDescriptorType,
)

from logclient._ext.hash import xxh64

cdef extern from "tracebacks/objects.h":
    bint LC_SHARED
    bint lc_is_traceback(object o)
    PyObject *lc_next_of(object o)
    int lc_lasti_of(object o)
    int lc_lineno_of(object o)
    object lc_code_of(object o)
    object lc_globals_of(object o)
    PyObject *lc_file_of(object code)
    size_t lc_chars(object s)
    PyObject *lc_referent(object reference) noexcept
    object lc_namespace(object type)
    uint64_t lc_dict_tag(PyObject *dict) nogil
    bint lc_is_usual(PyObject *type) noexcept
    PyObject *Py_TYPE(object o)
    void Py_INCREF(PyObject *o)
    void Py_XDECREF(PyObject *o)

cdef enum:
    WAYS = 8                 # places in which a frame may be
    SETS = 128
    LARGEST = 4096           # bytes of a frame
    MAX_LINES = 100          # source lines that the text of a frame may depend on
    MOST_CREDIT = 15
    MAX_DOUBTS = 12          # then every 4096th exception
    MAX_WAITS = 4096
    SHOWN = 3                # equal lines before the others are folded
    OBJECT_BYTES = 64        # more than the head of a string, of a tuple or of a weak reference takes
    FRAME_BYTES = 480        # ... and a frame with its place, three strings, a tuple and a weak reference

cdef enum:
    UNKNOWN, LOOKING, CACHED, STANDARD

cdef enum:
    ODD, ORDINARY, SPECIAL   # how an exception is formatted: all, nothing or its last lines the standard way

cdef str CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
cdef str CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
cdef str UNPRINTABLE = "<exception str() failed>"
cdef str HEAD = "Traceback (most recent call last):\n"

# Those for which this Python has suggestions, or more than one line.
cdef tuple WITH_MORE_LINES
if sys.version_info < (3, 12):
    WITH_MORE_LINES = (SyntaxError,)
elif sys.version_info < (3, 15):
    WITH_MORE_LINES = (SyntaxError, NameError, AttributeError, ImportError)
else:
    WITH_MORE_LINES = (BaseException,)

# The attributes of an exception that the standard library reads, as BaseException has them.
cdef tuple USUAL = tuple([
    (name, getattr(BaseException, name))
    for name in ("__cause__", "__context__", "__suppress_context__", "__traceback__")])

# Objects in a namespace that may be called, and make no texts themselves.
cdef tuple HARMLESS = (type, ModuleType, GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType)

# The classes of `traceback` that make texts.
cdef tuple CLASSES = ("StackSummary", "FrameSummary", "TracebackException")

# Exceptions in all forms that are put together here.
cdef str SAMPLES = """\
class Failure(Exception):
    pass

class Broken(Exception):
    def __str__(self):
        raise ValueError

def fall(depth, error):
    if depth:
        fall(depth - 1, error)
    else:
        raise error

def chain(first, second, explicit):
    try:
        fall(5, first)
    except BaseException as error:
        if explicit:
            raise second from error
        fall(4, second)

def samples(handled):
    for call in (lambda: fall(0, Failure("one line")), lambda: fall(2, ValueError()),
                 lambda: fall(5, KeyError("\\n")), lambda: fall(4, Failure("a\\nb\\n")),
                 lambda: chain(Failure(1), ValueError(2), True), lambda: fall(1, Broken()),
                 lambda: chain(KeyError(1), Failure(), False)):
        try:
            call()
        except Exception as error:
            one = error
            while one.__context__ is not None and one.__context__ is not handled:
                one = one.__context__
            one.__context__ = None
            yield error
"""


@cython.final
@cython.internal
@cython.no_gc                # it refers to strings, and weakly to a code
cdef class Frame:
    """The text of one frame, and what it was made of. It never changes."""

    cdef object code         # a weak reference
    cdef str text
    cdef str file
    cdef str name
    cdef long line           # -1: unknown; such a line equals no other
    cdef tuple lines         # the source from that line on; "" where there is none
    cdef size_t size


cdef struct Place:
    PyObject *frame          # NULL: empty
    PyObject *code           # not a reference: compared only
    int lasti
    int lineno
    uint8_t credit           # rises with each use; 0: not used since it is here
    uint64_t born            # the later, the higher


cdef inline bint _is_of(Place *place, PyObject *code, int lasti, int lineno) noexcept:
    return place.code == code and place.lasti == lasti and place.lineno == lineno and place.frame != NULL


@cython.final
@cython.no_gc_clear          # it may be used until its end; what it refers to does not refer to it
cdef class ExceptionFormatter:
    """A formatter of exceptions that keeps the texts of frames."""

    cdef object formatter            # the standard way
    cdef Place *places               # SETS times WAYS; NULL: not needed yet
    cdef int state
    cdef uint64_t born               # frames kept so far
    cdef uint64_t looks              # how often the namespaces were looked at
    cdef uint32_t doubts             # how often samples had another text, since a namespace has changed
    cdef uint32_t rest               # exceptions until the next look
    cdef tuple spaces                # the namespaces
    cdef tuple values                # of all of them, at the last look
    cdef uint64_t tags               # the sum of their tags when all were compared; 0: compare them
    cdef dict sources                # linecache.cache
    cdef dict interactive            # sources of what was typed; empty in programs
    cdef dict system                 # vars(sys)

    def __cinit__(self):
        self.formatter = logging.Formatter()
        self.system = vars(sys)
        self.interactive = {}
        self.spaces = self.values = ()

    def __dealloc__(self):
        self.clear()
        free(self.places)

    @property
    def cached(self) -> bool:
        """Whether frames are kept: nobody has replaced a part of ``traceback``."""
        return not LC_SHARED and self._ready()

    def sizes(self) -> list[int]:
        """Return the bytes of each frame that is kept, with all that it refers to."""
        cdef int i
        return [(<Frame> self.places[i].frame).size for i in range(<int> (SETS * WAYS))
                if self.places != NULL and self.places[i].frame != NULL]

    cpdef void clear(self):
        """Forget all frames."""
        cdef int i
        cdef PyObject *before
        if self.places == NULL:
            return
        for i in range(<int> (SETS * WAYS)):
            before = self.places[i].frame
            self.places[i].frame = NULL
            Py_XDECREF(before)

    def format(self, exc_info: Any) -> str:
        """Return the text of an exception, as ``logging.Formatter().formatException(exc_info)`` does."""
        cdef str text = None
        if not LC_SHARED and type(exc_info) is tuple and PyTuple_GET_SIZE(exc_info) == 3:
            try:
                if PyDict_GetItem(self.system, "tracebacklimit") is NULL and self._ready():
                    text = self._format(exc_info[1], exc_info[2])
            except Exception:
                text = None
        return self.formatter.formatException(exc_info) if text is None else text

    def fingerprint(self, exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
        """Return 16 hex digits that are the same for exceptions of the same type from the same functions.

        They are XXH64 with seed 42 of these lines, without an end of the last: ``module.class`` of the
        exception, then ``module:function`` of each of its frames, outermost first, equal ones in a row once;
        then the same of the exceptions that the text shows before it, in turn. The module of a frame is its
        ``__name__``, or the name of its file if there is none.

        Args:
            exc_info: type, exception and traceback.
        """
        cdef list lines = []
        cdef set seen = set()
        cdef str before, where
        kind, value, tb = exc_info
        while value is not None:
            kind = type(value)
            lines.append(f"{kind.__module__}.{kind.__qualname__}")
            before = None
            while tb is not None:
                code = tb.tb_frame.f_code
                where = f"{tb.tb_frame.f_globals.get('__name__') or code.co_filename}:{code.co_qualname}"
                if where != before:
                    lines.append(where)
                before = where
                tb = tb.tb_next
            value, _ = _earlier(value, seen)
            tb = None if value is None else value.__traceback__
        hashed = xxh64("\n".join(lines).encode("utf-8", "surrogatepass"))
        return f"{hashed:016x}"

    # The texts.

    cdef str _format(self, object value, object tb):
        """Return the text, or None: the standard way."""
        cdef list chain = []         # exceptions, the outermost first, and why there is one before it
        cdef set seen = set()
        cdef list stack, parts
        cdef list texts = []
        cdef object summary = None
        cdef int how, manner = ORDINARY
        cdef PyObject *found
        cdef str text
        found = PyDict_GetItem(<object> PyTuple_GET_ITEM(self.spaces, 0), "_interactive_cache")
        self.interactive = <dict> found if found is not NULL and type(<object> found) is dict else {}
        one = value
        while one is not None or not chain:
            how = _manner(one)
            if how == ODD:
                return None
            manner = max(manner, how)
            before, link = _earlier(one, seen)
            chain.append((one, link))
            one = before
        if manner == SPECIAL:
            summary = traceback.TracebackException(type(value), value, tb, limit=0, compact=True)
        for one, link in chain:
            if one is not value:
                tb = one.__traceback__
            parts = [] if link is None else [link]
            if tb is not None:
                stack = self._stack(tb)
                if stack is None:
                    return None
                parts.append(HEAD)
                _fold(stack, parts)
            if manner == SPECIAL:
                if summary is None:
                    return None
                parts.extend(summary.format_exception_only())
                if link is not None:
                    summary = summary.__cause__ if link is CAUSE else summary.__context__
            else:
                text = _last_line(one)
                if text is None:
                    return None
                parts.append(text)
            texts.append("".join(parts))
        texts.reverse()
        text = "".join(texts) if len(texts) > 1 else texts[0]
        return text[:len(text) - 1] if text.endswith("\n") else text

    cdef list _stack(self, object tb):
        """Return the frames of a traceback with their texts, or None: the standard way."""
        cdef list nodes = []
        cdef list stack = []
        cdef list missing = []
        cdef dict files = {}         # name -> whether a frame of it was found; then its lines
        cdef list lines = None
        cdef str file, last = None
        cdef Frame frame
        cdef Py_ssize_t i
        cdef uint64_t looks = self.looks
        while tb is not None:
            if not lc_is_traceback(tb):
                return None
            code = lc_code_of(tb)
            name = <object> lc_file_of(code)
            if type(name) is not str:
                return None
            file = name
            frame = self._find(code, lc_lasti_of(tb), lc_lineno_of(tb), file)
            if file is not last:
                last = file
                if file not in files:
                    files[file] = False
            if frame is not None:
                files[file] = True
            if PyDict_GetItem(self.sources, file) is NULL:
                linecache.lazycache(file, lc_globals_of(tb))
            nodes.append(tb)
            stack.append(frame)
            tb = <object> lc_next_of(tb) if lc_next_of(tb) != NULL else None
        for name in list(files):
            if files[name] and PyDict_GetItem(self.sources, name) is not NULL:
                linecache.checkcache(name)
        for name in files:
            files[name] = self._source(name)
            if files[name] is None:
                return None
        last = None
        for i in range(PyList_GET_SIZE(stack)):
            frame = <Frame> PyList_GET_ITEM(stack, i)
            if frame is not None and frame.file is not last:
                last = frame.file
                lines = files[last]
            if frame is None or not _holds(frame, lines):
                missing.append(i)
        if missing and not self._complete(nodes, stack, missing, files, looks):
            return None
        return stack

    # The lines that `linecache` has of a file; None: it has not loaded them.
    cdef object _lines(self, str file):
        cdef PyObject *entry = PyDict_GetItem(self.sources, file)
        if entry is not NULL and type(<object> entry) is tuple and PyTuple_GET_SIZE(<object> entry) == 4:
            return <object> PyTuple_GET_ITEM(<object> entry, 2)
        return None

    # The lines of a file as they are now; None: not as a list.
    cdef list _source(self, str file):
        lines = self._lines(file)
        if lines is None:
            lines = linecache.getlines(file)
        return lines if type(lines) is list else None

    # Whether the lines are still those that `linecache` has: it has not read the file again.
    cdef bint _is_still(self, str file, list lines):
        if PyDict_GetItem(self.sources, file) is NULL:
            return PyList_GET_SIZE(lines) == 0
        return self._lines(file) is lines

    cdef bint _complete(self, list nodes, list stack, list missing, dict files, uint64_t looks) except -1:
        """Let the standard library format the missing frames, and keep them. False: the standard way."""
        cdef dict chosen = {}        # code, instruction and line -> the first of the frames; then its text
        cdef list keys = []
        cdef Frame frame
        only = None
        for i in missing:
            tb = nodes[i]
            keys.append((id(tb.tb_frame.f_code), lc_lasti_of(tb), lc_lineno_of(tb)))
            chosen.setdefault(keys[len(keys) - 1], tb)
        for tb in reversed(chosen.values()):
            only = TracebackType(only, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
        summaries = traceback.extract_tb(only)
        if len(summaries) != len(chosen):
            return False
        for key, summary in zip(list(chosen), summaries):
            frame = self._make(chosen[key], summary, summaries.format_frame_summary(summary), files, looks)
            if frame is None:
                return False
            chosen[key] = frame
        for i, key in zip(missing, keys):
            stack[i] = chosen[key]
        return True

    cdef Frame _make(self, object tb, object summary, object text, dict files, uint64_t looks):
        """Make the frame of a text, and keep it if it may come again. None: the standard way."""
        cdef Frame frame = Frame.__new__(Frame)
        cdef object code = lc_code_of(tb)
        cdef list lines = files[summary.filename]
        cdef list used = []
        cdef Py_ssize_t n
        if type(text) is not str or type(summary.name) is not str:
            return None
        frame.text = text
        frame.file = summary.filename
        frame.name = summary.name
        frame.line = -1
        frame.size = <size_t> FRAME_BYTES + lc_chars(text) + lc_chars(frame.file) + lc_chars(frame.name)
        first, end = summary.lineno, summary.end_lineno
        if first is not None:
            if type(first) is not int or not 0 <= first < 1 << 30:
                return None
            frame.line = first
            if end is None or end < first:
                end = first
            if end - first >= MAX_LINES:
                return frame
            for n in range(<Py_ssize_t> first, <Py_ssize_t> end + 1):
                line = lines[n - 1] if 1 <= n <= PyList_GET_SIZE(lines) else ""
                if type(line) is not str:
                    return frame
                used.append(line)
                frame.size += OBJECT_BYTES + lc_chars(line)
        frame.lines = tuple(used)
        frame.code = weakref.ref(code)
        if (frame.size <= LARGEST and looks == self.looks and self.state != STANDARD
                and not self._is_typed(frame.file) and self._is_still(frame.file, lines)):
            self._keep(<PyObject *> code, lc_lasti_of(tb), lc_lineno_of(tb), frame)
        return frame

    # Whether there may be a source for this one code only, which somebody has typed.
    cdef inline bint _is_typed(self, str file):
        return len(self.interactive) != 0 and file[:1] == "<"

    # The table.

    cdef inline Place *_set(self, PyObject *code, int lasti) noexcept:
        cdef uint64_t mixed = ((<uint64_t> <uintptr_t> code >> 4) + <uint64_t> lasti) * 0x9E3779B97F4A7C15ULL
        return self.places + <size_t> (mixed >> 57) * WAYS

    cdef inline Frame _find(self, object code, int lasti, int lineno, str file):
        cdef Place *places = self._set(<PyObject *> code, lasti)
        cdef Place *place
        cdef int i
        cdef Frame frame
        for i in range(<int> WAYS):
            place = places + i
            if _is_of(place, <PyObject *> code, lasti, lineno):
                frame = <Frame> place.frame
                if (lc_referent(frame.code) != <PyObject *> code or frame.file is not file
                        or self._is_typed(file)):
                    return None
                if place.credit < MOST_CREDIT:
                    place.credit += 1
                return frame
        return None

    cdef void _keep(self, PyObject *code, int lasti, int lineno, Frame frame):
        # A new frame takes an empty place, that of a dead code, or the oldest of those not used since they
        # came. If there is none, it wears down the least used one instead: code that raises only once takes
        # one place of a set from the others. For new code that comes to stay, each eighth of such frames
        # wears down another place.
        cdef Place *places = self._set(code, lasti)
        cdef Place *place
        cdef Place *chosen = NULL    # not used
        cdef Place *weakest = NULL   # of those that were
        cdef int i
        cdef uint8_t credit = 0
        for i in range(<int> WAYS):
            place = places + i
            if _is_of(place, code, lasti, lineno):
                chosen = place
                credit = place.credit
                break
            if place.frame == NULL or lc_referent((<Frame> place.frame).code) == NULL:
                place.credit = 0
                place.born = 0
            if place.credit:
                if weakest == NULL or place.credit < weakest.credit or (
                        place.credit == weakest.credit and place.born > weakest.born):
                    weakest = place
            elif chosen == NULL or place.born < chosen.born:
                chosen = place
        if chosen == NULL:
            weakest.credit -= 1
            return
        self.born += 1
        if weakest != NULL and chosen.born and self.born % 8 == 0:
            weakest.credit -= 1
        cdef PyObject *before = chosen.frame
        Py_INCREF(<PyObject *> frame)
        chosen.frame = <PyObject *> frame
        chosen.code = code
        chosen.lasti = lasti
        chosen.lineno = lineno
        chosen.credit = credit
        chosen.born = self.born
        Py_XDECREF(before)

    # Who else has a hand in the texts.

    cdef inline bint _ready(self) except -1:
        """Return whether texts of frames may be kept and used."""
        if self.state != LOOKING and not self._unchanged():
            self.doubts = 0
            self._look()
        elif self.state <= LOOKING:
            # LOOKING: somebody else does, we are called from there, or a thread did before a fork.
            if self.rest:
                self.rest -= 1
            else:
                self._look()
        return self.state == CACHED

    cdef bint _unchanged(self) noexcept:
        cdef Py_ssize_t i, at, n = 0, count = PyTuple_GET_SIZE(self.values)
        cdef PyObject *k
        cdef PyObject *v
        cdef uint64_t tags = 0
        for i in range(PyTuple_GET_SIZE(self.spaces)):
            tags += lc_dict_tag(PyTuple_GET_ITEM(self.spaces, i))
        if tags and tags == self.tags:
            return True
        for i in range(PyTuple_GET_SIZE(self.spaces)):
            at = 0
            while PyDict_Next(<object> PyTuple_GET_ITEM(self.spaces, i), &at, &k, &v):
                if n == count or <PyObject *> PyTuple_GET_ITEM(self.values, n) != v:
                    return False
                n += 1
        if n == count:
            self.tags = tags
        return n == count

    cdef int _look(self) except -1:
        """Find out whether the standard library formats exceptions as it came."""
        cdef int found = UNKNOWN
        self.state = LOOKING
        self.rest = MAX_WAITS
        self.looks += 1
        try:
            self.clear()
            if self.places == NULL:
                self.places = <Place *> calloc(SETS * WAYS, sizeof(Place))
                if self.places == NULL:
                    raise MemoryError
            classes = [vars(traceback).get(name) for name in CLASSES]
            spaces = [vars(linecache), vars(traceback), lc_namespace(logging.Formatter)]
            spaces += [lc_namespace(one) for one in classes if isinstance(one, type)]
            self.tags = 0
            self.spaces = tuple(spaces)
            self.values = tuple([value for space in spaces for value in space.values()])
            if not _is_original(classes):
                found = STANDARD
            else:
                self.sources = linecache.cache
                if self._agrees():
                    found = CACHED
        finally:
            # Samples may disagree, or fail, near the end of the stack or of the memory.
            self.rest = <uint32_t> 1 << self.doubts
            self.doubts = min(self.doubts + 1, MAX_DOUBTS) if found == UNKNOWN else 0
            self.clear()
            self.state = found
        return 0

    cdef bint _agrees(self) except -1:
        """Return whether samples have the same text in both ways: frames new, and seen before."""
        space = {"__name__": "samples"}
        exec(compile(SAMPLES, "<samples>", "exec"), space)
        for error in space["samples"](sys.exc_info()[1]):
            standard = self.formatter.formatException((type(error), error, error.__traceback__))
            for _ in range(2):
                if self._format(error, error.__traceback__) != standard:
                    return False
        return True


cdef tuple _earlier(object value, set seen):
    """Return the exception that is shown before this one, or None, and the words between them."""
    cause, context = value.__cause__, value.__context__
    if cause is None and context is None:
        return None, None
    seen.add(id(value))
    if cause is not None and id(cause) not in seen:
        return cause, CAUSE
    if context is None or value.__suppress_context__ or id(context) in seen:
        return None, None
    return context, CONTEXT


cdef int _manner(object value) except -1:
    """Return how an exception is to be formatted."""
    kind = type(value)
    if not issubclass(kind, BaseException) or not lc_is_usual(Py_TYPE(value)):
        return ODD
    for name, usual in USUAL:
        if getattr(kind, name) is not usual:
            return ODD
    if (isinstance(value, BaseExceptionGroup) or type(kind.__qualname__) is not str
            or type(kind.__module__) is not str):
        return ODD
    if issubclass(kind, WITH_MORE_LINES) or getattr(value, "__notes__", None) is not None:
        return SPECIAL
    return ORDINARY


cdef bint _is_original(list classes) except -1:
    """Return whether the functions and classes that make texts are those of their own modules."""
    home = vars(traceback)
    if home.get("linecache") is not linecache or vars(logging).get("traceback") is not traceback:
        return False
    if type(vars(linecache).get("cache")) is not dict:
        return False
    spaces = [(vars(linecache), vars(linecache)), (home, home)]
    for one in classes:
        if type(one) is not type or one.__module__ != traceback.__name__:
            return False
        spaces.append((vars(one), home))
    for space, owner in spaces:
        if not all([_is_at_home(value, owner) for value in space.values()]):
            return False
    return (_is_function(home.get("extract_tb"), home) and _is_function(home.get("print_exception"), home)
            and _is_function(vars(logging.Formatter).get("formatException"), vars(logging)))


cdef bint _is_function(object value, dict home):
    return type(value) is FunctionType and value.__globals__ is home


cdef bint _is_at_home(object value, dict home) except -1:
    if type(value) is property:
        return all([one is None or _is_function(one, home) for one in (value.fget, value.fset, value.fdel)])
    if type(value) in (classmethod, staticmethod):
        return _is_function(value.__func__, home)
    if type(value) is FunctionType:
        return value.__globals__ is home
    return isinstance(value, HARMLESS) or not callable(value)


cdef bint _holds(Frame frame, list lines):
    """Return whether the lines that a frame's text was made of are still the same."""
    cdef Py_ssize_t i, n
    cdef PyObject *now
    cdef object held
    for i in range(PyTuple_GET_SIZE(frame.lines)):
        held = <object> PyTuple_GET_ITEM(frame.lines, i)
        n = frame.line + i
        if n < 1 or n > PyList_GET_SIZE(lines):
            if held != "":
                return False
            continue
        now = <PyObject *> PyList_GET_ITEM(lines, n - 1)
        if now is not <PyObject *> held and (type(<object> now) is not str or <object> now != held):
            return False
    return True


cdef int _fold(list stack, list parts) except -1:
    """Append the texts of frames; of equal ones in a row the first three, and how many there are more."""
    cdef Frame frame
    cdef Frame last = None
    cdef Py_ssize_t i, count = 0
    for i in range(PyList_GET_SIZE(stack)):
        frame = <Frame> PyList_GET_ITEM(stack, i)
        if frame is not last and (last is None or frame.line != last.line or frame.file != last.file
                                  or frame.name != last.name) or frame.line < 0:
            _tell_rest(count - SHOWN, parts)
            last = frame
            count = 0
        count += 1
        if count <= SHOWN:
            parts.append(frame.text)
    _tell_rest(count - SHOWN, parts)
    return 0


cdef int _tell_rest(Py_ssize_t more, list parts) except -1:
    if more > 0:
        parts.append(f"  [Previous line repeated {more} more time{'s' if more > 1 else ''}]\n")
    return 0


cdef str _last_line(object value):
    """Return type and text of an exception, or None: the standard way."""
    try:
        text = str(value)
    except BaseException:            # as the standard library does
        text = UNPRINTABLE
    kind = type(value)
    name, module = kind.__qualname__, kind.__module__
    if type(text) is not str:
        return None
    if module != "__main__" and module != "builtins":
        name = f"{module}.{name}"
    return f"{name}: {text}\n" if text else f"{name}\n"
