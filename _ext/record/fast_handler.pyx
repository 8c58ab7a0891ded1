def mark_sender_thread(bint own=True) -> bool:
    """Mark or unmark the calling thread as a sender's, whose own log records are ignored.

    Returns:
        Whether it was marked before.
    """
    cdef bint before = lc_this_thread().own
    lc_this_thread().own = own
    return before


cdef bint _in_destructor() except -1:
    # Return whether a `__del__` or a callback of `weakref.finalize` is on the stack. A garbage collection in
    # the sender's thread runs those of the application there, and their log records must be shipped.
    cdef object weakref = sys.modules.get("weakref")
    cdef object finalize = None if weakref is None else weakref.finalize.__call__.__code__
    cdef object frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code is finalize:
            return True
        frame = frame.f_back
    return False


cdef inline bint _is_or_below(const char *s, Py_ssize_t n, const char *name, Py_ssize_t own) noexcept nogil:
    return n >= own and memcmp(s, name, <size_t> own) == 0 and (n == own or s[own] == c'.')


cdef bint _is_own_logger(PyObject *name) noexcept nogil:
    # Return whether it is one of these, or below one of them.
    if name == NULL or not PyUnicode_CheckExact(name) or not PyUnicode_IS_COMPACT_ASCII(name):
        return False
    cdef const char *s = <const char *> PyUnicode_DATA(name)
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(name)
    return (_is_or_below(s, n, b"logclient", 9) or _is_or_below(s, n, b"zmq", 3)
            or _is_or_below(s, n, b"websockets", 10))


cdef object _attribute(object record, str name):
    # Return an attribute of a record, or None if it has none or a property raises.
    try:
        return getattr(record, name, None)
    except Exception:
        return None


cdef class FastHandler:
    """Base of ``logclient.Handler`` with a compiled ``handle`` that takes no lock.

    It must be the first base, before ``logging.Handler``.
    """

    cdef readonly Encoder encoder
    cdef EventQueue queue
    cdef object sink                 # a `delivery.producer.Producer`
    cdef object ship                 # ship(record, made) of another protocol; None: our own document
    cdef LineEncoder line_encoder    # ... without Python code, for ordinary records; may be None
    cdef object own_formatter        # the value of `formatter` while the application has set none
    cdef bint own_emit               # a subclass overrides emit()
    cdef bint own_format             # ... format()
    cdef bint json                   # text that a formatter returns is a JSON object, if it looks like one
    # A `records.sampling.Sampling`; None: all are shipped. Once set it is never replaced, but changed.
    cdef public object sampling
    sampling: Sampling | None
    # The next two change while other threads log: access them in a critical section of this object.
    cdef object user_formatter       # None: our document
    cdef object other_filters        # None: `own_filters` apply
    # The list that logging.Filterer makes. `handle` reads it outside: without the GIL it is never replaced.
    cdef list own_filters
    cdef bint direct                 # bound and not customised, but for `own_filters`

    def _bind(self, Encoder encoder not None, sink: Producer, *,
              ship: Callable[[logging.LogRecord, str | dict[str, Any] | None], object] | None,
              line_encoder: LineEncoder | None, formatter: logging.Formatter, bint own_emit,
              bint own_format, bint json=False, sampling: Sampling | None = None):
        """Attach the encoder, which has a queue; called once, before ``logging.Handler.__init__``."""
        if self.encoder is not None:
            raise TypeError(f"{type(self).__name__}: __init__ has run already")
        if encoder.queue is None:
            raise TypeError("encoder: needs a queue")
        self.queue = encoder.queue
        self.sink = sink
        self.ship = ship
        self.line_encoder = line_encoder
        self.own_formatter = formatter
        self.own_emit = own_emit
        self.own_format = own_format
        self.json = json
        self.sampling = sampling
        self.encoder = encoder
        self.formatter = None

    cdef void _update_direct(self) noexcept:
        # Recompute `direct`, inside the critical section.
        self.direct = (self.encoder is not None and self.own_filters is not None
                       and self.other_filters is None and self.user_formatter is None
                       and not self.own_emit and not self.own_format)

    cdef inline bint is_direct(self) noexcept:
        # Return whether a record becomes our document, and no filter is asked.
        return self.direct and PyList_GET_SIZE(<PyObject *> self.own_filters) == 0

    cdef object _filters(self):
        with cython.critical_section(self):
            return self.own_filters if self.other_filters is None else self.other_filters

    @property
    def filters(self) -> list[Any]:
        """The list of ``logging.Filterer``."""
        return self._filters()

    @filters.setter
    def filters(self, value: list[Any]):
        with cython.critical_section(self):
            if type(value) is list and (self.own_filters is None or not LC_SHARED):
                self.own_filters = value
                self.other_filters = None
            else:
                self.other_filters = None if value is self.own_filters else value
            self._update_direct()

    @property
    def formatter(self) -> logging.Formatter | None:
        """The application's formatter, or the one that stands for our own documents."""
        with cython.critical_section(self):
            return self.own_formatter if self.user_formatter is None else self.user_formatter

    @formatter.setter
    def formatter(self, value: logging.Formatter | None):
        if value is not None and type(value) is type(self.own_formatter):
            for name in ("fields", "error_fingerprint"):
                if getattr(value, name, None):
                    raise ConfigError(f"formatter: give its {name} to the handler, as the option {name}")
        with cython.critical_section(self):
            self.user_formatter = None if value is None or type(value) is type(self.own_formatter) else value
            self._update_direct()

    @cython.binding(False)           # a plain method descriptor costs a third per call
    @cython.always_allow_keywords(False)
    @cython.embedsignature.format("clinic")
    def handle(self, record: logging.LogRecord) -> Any:
        """Ship a record unless a filter refuses it.

        Never raises an ``Exception``. Ignores records before ``__init__``.

        Returns:
            The record, or False if it was refused.
        """
        cdef lc_here *thread = lc_this_thread()
        cdef int nested = lc_enter(thread, True)
        if nested < 0:
            self._refuse(_attribute(record, "levelno"))
            return record
        cdef object returned = record
        try:
            if self.sampling is None and self.is_direct():
                self._ship(record, NULL, None)
            else:
                returned = self._handle_generic(record)
            if thread.refuses and not nested:
                self._report_recursion(record)
        finally:
            lc_leave(thread, nested)
        return returned

    @cython.binding(False)
    def handle_beside(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Ship a record of this level or above, unless a logger passes it to a handler of ours."""
        cdef object at = logger
        if record.levelno < self.level:
            return
        while at is not None:
            for handler in at.handlers:
                if isinstance(handler, FastHandler):
                    return
            at = at.parent if at.propagate else None
        self.handle(record)

    @cython.embedsignature(False)
    def emit(self, record: logging.LogRecord):
        """Ship a record without asking the filters. Ignores records before ``__init__``."""
        cdef int nested = lc_enter(lc_this_thread(), True)
        if nested < 0:
            self._refuse(_attribute(record, "levelno"))
            return
        try:
            self._ship_formatted(record)
        finally:
            lc_leave(lc_this_thread(), nested)

    cdef object _handle_generic(self, object record):
        if self.encoder is None:
            return False
        if self._filters():
            try:
                verdict = self.filter(record)
            except Exception:
                # The filter may have been there to remove secrets: do not ship the record.
                self._put_tombstone(record, <uint8_t> R_UNENCODABLE, 2)
                self._report_error(record)
                return False
            if not verdict:
                return False
            if isinstance(verdict, logging.LogRecord):     # since 3.12 filters may replace it
                record = verdict
        if self.sampling is not None:
            try:
                verdict = self.sampling.record(record)
            except Exception:
                self._report_error(record)
            else:
                if verdict is None:
                    return False
                record = verdict
        if not self.own_emit:
            self._ship_formatted(record)
            return record
        try:
            self.emit(record)
        except Exception:
            self._report_error(record)
        return record

    cdef int _ship_formatted(self, object record) except -1:
        # Ship a record with the application's formatter, or the format() of a subclass.
        cdef object name, made = None
        if self.encoder is None:
            return 0
        if self.user_formatter is None and not self.own_format or lc_this_thread().own:
            return self._ship(record, NULL, None)
        name = _attribute(record, "name")
        if _is_own_logger(<PyObject *> name):
            return self._ship(record, NULL, None)
        try:
            made = self.format(record)
            if self.json and isinstance(made, str):
                made = self._read_json(_exact_str(made))
            if isinstance(made, bytes):
                if not self.encoder.pairs:
                    return self._ship_bytes(record, bytes(made))
                made = made.decode("utf-8", "replace")
            elif not isinstance(made, (str, dict)):
                made = str(made)
        except Exception:
            # Ship our own document: a broken formatter must not lose records.
            self._report_error(record)
            made = None
        return self._ship(record, NULL, made)

    cdef object _read_json(self, str text):
        """Return what to send for the text of a formatter that writes JSON; text that is no object stays."""
        if self.ship is not None or self.encoder.pairs or _text_entries(self.encoder.entries) != NULL:
            from json import loads

            try:
                found = loads(text)
            except ValueError:
                return text
            return found if isinstance(found, dict) else text
        cdef bytes body = text.encode("utf-8", "replace")
        cdef bytes padded = body + bytes(SCAN_PAD)
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(padded)
        cdef lc_object object_
        return body if scan_object(p, p + PyBytes_GET_SIZE(body), &object_) == 0 else text

    cdef int _ship_bytes(self, object record, bytes body) except -1:
        cdef object level = _attribute(record, "levelno")
        cdef object created = _attribute(record, "created")
        return self._put(record, <const uint8_t *> PyBytes_AS_STRING(body), <size_t> PyBytes_GET_SIZE(body),
                         _level_index(<PyObject *> level), <uint8_t> K_RAW, _created_us(<PyObject *> created))

    # `call`: NULL, or the values of a log call that has no record; then `record` is a dict with its fields.
    cdef int _ship(self, object record, Attributes *call, object made) except -1:
        cdef Document doc
        cdef int status
        cdef lc_here *thread = lc_this_thread() if call == NULL else call.thread
        cdef uint8_t *heap = NULL
        cdef uint8_t *stack
        if thread.own and not _in_destructor():
            self.queue.count_ignored()
            return 0
        stack = lc_place(thread, heap, STACK)
        doc.heap = NULL
        try:
            if self.ship is not None:
                return self._ship_by_protocol(&doc, stack, record, made)
            status = (<encode_record_function> _encode_record)(
                self.encoder, &doc, stack, thread, record, call, made, True)
            if call != NULL:
                call.created_us = doc.created_us     # for the next handler
            if status == 0:
                if doc.sanitized or doc.moved:
                    self.queue.count_changed(doc.sanitized, doc.moved)
                return self._put(record if call == NULL else None, doc.base, <size_t> (doc.p - doc.base),
                                 doc.level, <uint8_t> K_DOCUMENT | doc.flags, doc.created_us)
        finally:
            free(doc.heap)
            free(heap)
        if status == 1:
            self.queue.count_ignored()
            return 0
        try:
            if status == -1:
                raise _error(doc.reason, record, self.encoder.max_event_bytes)
            doc.reason = <uint8_t> R_UNENCODABLE
            lc_raise_current()
        except Exception:
            if call != NULL:
                record = _record_of(call, record)
            self._report_error(record)
        return self._put_tombstone(record, doc.reason, doc.level)

    cdef int _ship_call(self, Attributes *call, dict fields) except -1:
        """Ship a log call that has no record. The caller holds references to all values."""
        cdef long held
        if self.sampling is not None:
            try:
                held = self.sampling.call(<object> call.values[A_NAME], <object> call.values[A_LEVELNO],
                                          <object> call.values[A_MSG], <object> call.values[A_ARGS],
                                          _or_none(call.values[A_EXC_INFO]))
            except Exception:
                self._report_error(_record_of(call, fields))
            else:
                if held < 0:
                    return 0
                if held > 0:
                    fields = {**(fields or {}), "labels.suppressed": held}
        call.first_extra = 0 if fields else -1
        return self._ship(fields, call, None)

    cdef int _ship_by_protocol(self, Document *doc, uint8_t *stack, object record, object made) except -1:
        # Ship a record of another protocol: its document, or a line of the current request.
        cdef object name
        cdef uint8_t level = 0
        try:
            if self.line_encoder is not None and self.line_encoder.write(doc, stack, record, made, &level):
                return self._put(record, doc.base, <size_t> (doc.p - doc.base), level,
                                 self.line_encoder.kind, 0)
            name = _attribute(record, "name")
            if _is_own_logger(<PyObject *> name):
                self.queue.count_ignored()
                return 0
            self.ship(record, made)
        except Exception as error:
            self._report_error(record)
            name = _attribute(record, "levelno")
            return self._put_tombstone(record, failure_reason(error), _level_index(<PyObject *> name))
        return 0

    cdef inline int _put(self, object record, const uint8_t *body, size_t size, uint8_t level, uint8_t kind,
                         int64_t created_us) except -1:
        cdef int64_t seq = lc_put(self.queue.h, body, size, level, kind, created_us, NULL)
        if seq == PUT_FORKED or seq == PUT_FULL or seq == PUT_UNOPENED or self.queue.h.needs_sender:
            self._finish_put(record, seq, body, size, level, kind)
        return 0

    cdef int _finish_put(self, object record, int64_t seq, const uint8_t *body, size_t size, uint8_t level,
                     uint8_t kind) except -1:
        try:
            if seq == PUT_FORKED or seq == PUT_FULL or seq == PUT_UNOPENED:
                self.sink.put_slowly(seq, PyBytes_FromStringAndSize(<const char *> body, size), level, kind)
            else:
                self.sink.ensure_sender()
        except Exception:
            self._report_error(record)
        return 0

    cdef int _put_tombstone(self, object record, uint8_t reason, uint8_t level) except -1:
        return self._put(record, &reason, 1, level, <uint8_t> K_TOMB, 0)

    cdef int _refuse(self, object level) except -1:
        # Count a call that must not be made within another one. The outermost reports it.
        if self.encoder is None:
            return 0
        return self._put_tombstone(None, <uint8_t> R_UNENCODABLE, _level_index(<PyObject *> level))

    cdef int _report_recursion(self, object record) except -1:
        try:
            raise RecursionError("log calls within this one, each within another, reached a limit")
        except RecursionError:
            return self._report_error(record)

    cdef int _report_error(self, object record) except -1:
        _note_recursion()
        try:
            self.handleError(record)
        except Exception:
            pass
        return 0
