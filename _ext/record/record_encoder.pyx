@cython.final
cdef class Encoder:
    """Encoder of log records and mappings, and the way into the queue.

    A document is a JSON object (Lumberjack version 2 and the other protocols) or a pair block (Lumberjack
    version 1): a 32-bit count, then that many keys and values, each behind its 32-bit length.
    """

    cdef readonly EventQueue queue   # that `put` writes to; None if only bytes are wanted
    queue: EventQueue | None
    cdef readonly size_t max_event_bytes     # of a document; a longer one fails as too_large
    cdef readonly bint truncate      # cut the message of such a document, and mark it in `log.flags`
    cdef readonly bint pairs         # write pair blocks instead of JSON objects
    # Move fields to labels.<name> that ECS refuses: those that have the name of an ECS object but are no
    # mapping, and scalars whose name is the prefix of another field's.
    cdef readonly bint ecs
    cdef readonly tuple carriers     # fields that may carry the id; `@metadata`: the two of Lumberjack
    carriers: tuple[str, ...]
    # The application's values in these fields: `id`: move to `labels`, so that no one mistakes them for ours;
    # `own`: stay and are the event's id; `none`: stay, and events have no id.
    cdef readonly str identity
    cdef readonly bint trust_metadata        # keep the application's `@metadata`, all but its `_id`
    cdef dict metadata               # what the writer puts into every `@metadata` but the application's
    cdef readonly bint flat          # the protocol turns mappings into text, so they are not objects
    cdef readonly str labels         # the prefix of fields that move
    cdef dict rename                 # names of fields, and those that they get; None: as they are
    cdef str extra_prefix            # the object for the fields of records, or ""
    cdef dict below                  # names of such fields, and those with the prefix
    cdef list held                   # the new names, once more: `lc_lasting`
    # Write objects in place of names with dots, but for `log.level` and `ecs.version`; in ECS, if not flat.
    cdef readonly bint nested
    cdef readonly Form form          # of the documents; None: that of ECS
    form: Form | None
    cdef readonly bint timestamp     # give mappings an `@timestamp`, unless they have it
    cdef readonly bint fingerprint   # give records with an exception an `error.fingerprint`
    cdef bint checks_names           # some names need a check
    cdef bint lumberjack             # `@metadata` is not the application's
    cdef bint sets_event_id          # ... and `event.id` may be ours
    cdef dict reserved               # another protocol: its carriers, which are ours; or None
    cdef CachedName cache[CACHE_SLOTS + CACHE_PLACES - 1]
    cdef object text                 # text(str): the mapping for it; None: {"message": ...}
    cdef object complete             # complete(dict): a copy with what the protocol requires; None: as it is
    cdef object correct              # `records.times.corrected`, of mappings with a time; None: as it is
    cdef dict standard               # name of every attribute that is no field -> A_...
    cdef object order                # owns the names below
    cdef PyObject *names[ORDER]      # in the order of LogRecord.__init__, so that one pass finds them all
    cdef uint8_t slots[ORDER]        # A_... of each
    cdef int count                   # of names
    cdef dict first                  # the attributes of a record, whose keys the class LogRecord shares
    cdef void *keys                  # these keys, while names[i] is that of value i in them; or NULL
    cdef bint reads_entries          # `lc_entries` has the layout of this Python
    cdef PyObject *texts[NAME_SLOTS]     # that were read last, by `read` and `read_record`; or NULL
    cdef object record_type
    cdef object get_message
    cdef readonly object exceptions  # ExceptionFormatter
    exceptions: ExceptionFormatter
    cdef Shared shared               # the fields of every document; read by `_own_shared`
    cdef object bound                # context variable of further fields, which win; None: there is none
    cdef tuple recent                # bound fields that were found last, and their Shared; None: nothing
    cdef object spans                # `records.spans.Spans`, or None
    cdef object span_variable        # the context variable of `spans`, or None
    cdef PyObject *entries           # of the names of fields that are left out: `_redaction_of`; or NULL
    cdef list redactions             # these, and earlier ones, which other threads may still read

    def __cinit__(self, EventQueue queue=None, *, size_t max_event_bytes=1 << 20, bint truncate=False,
                  bint pairs=False, text: Callable[[str], dict[str, Any]] | None = None,
                  complete: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None,
                  correct: Callable[[dict[Any, Any], str], tuple[dict[Any, Any], int]] | None = None,
                  bint ecs=True,
                  tuple carriers: tuple[str, ...] = ("@metadata",), str identity="id",
                  bint trust_metadata=False, dict metadata: dict[str, str] | None = None, bint flat=False,
                  str labels="labels.", bint nested=False,
                  dict rename: dict[str, str] | None = None, str extra_prefix="",
                  Form form=None,
                  bint timestamp=False, bint fingerprint=False, fields: dict[str, Any] | None = None,
                  bound: ContextVar[Any] | None = None, spans: Spans | None = None,
                  tuple redact: tuple[str, ...] = ()):
        memset(self.cache, 0, sizeof(self.cache))
        memset(self.texts, 0, sizeof(self.texts))
        self.ecs = ecs
        self.carriers = carriers
        self.identity = identity
        self.trust_metadata = trust_metadata
        self.metadata = metadata or {}
        self.flat = flat or pairs
        self.labels = labels
        self.rename = rename or ({} if extra_prefix else None)
        self.extra_prefix = extra_prefix
        self.below = {}
        self.held = [*self.rename.values()] if rename else []
        self.form = form
        self.nested = nested and ecs and not self.flat and form is None
        self.timestamp = timestamp
        self.fingerprint = fingerprint
        self.lumberjack = "@metadata" in carriers
        self.sets_event_id = self.lumberjack and identity != "none"
        if carriers and not self.lumberjack and identity == "id":
            self.reserved = dict.fromkeys(carriers)
        self.checks_names = ecs or self.reserved is not None
        self.queue = queue
        self.max_event_bytes = max_event_bytes
        self.truncate = truncate
        self.pairs = pairs
        self.text = text
        self.complete = complete
        self.correct = correct
        self.record_type = logging.LogRecord
        self.get_message = logging.LogRecord.getMessage
        self.exceptions = ExceptionFormatter()
        slots = {name: i for i, name in enumerate(ATTRIBUTE_NAMES)}
        self.first = vars(logging.LogRecord("", 0, "", 0, "", (), None))
        self.order = list(self.first)[:ORDER]
        # color_message: uvicorn's copy of the message, with terminal escapes.
        skipped = ("message", "asctime", "color_message")
        self.standard = {name: slots.get(name, A_UNUSED) for name in self.order}
        self.standard.update(dict.fromkeys(skipped, A_SKIPPED))
        if ecs:
            for i, name in enumerate(INSTRUMENTED_NAMES):
                self.standard[name] = A_TRACE + i if A_TRACE + i < A_UNUSED else A_SKIPPED
        for i, name in enumerate(self.order):
            self.names[i] = <PyObject *> self.order[i]
            self.slots[i] = self.standard[name]
        self.count = len(self.order)
        self._learn_keys()
        self.bound = bound
        self.redactions = [_redaction_of(redact)] if redact else []
        self.entries = <PyObject *> self.redactions[0] if redact else NULL
        self.spans = spans
        self.span_variable = None if spans is None else spans.variable
        self.shared = _make_shared(self, self._placed(dict(fields), False) if fields else {})

    def set_fields(self, fields: Mapping[str, Any]):
        """Replace the fields of every document; see ``Client.reconfigure``.

        Other threads may encode meanwhile: each document has the old fields, or the new ones.
        """
        cdef Shared shared = _make_shared(self, self._placed(dict(fields), False))
        with cython.critical_section(self):
            self.shared = shared     # under it, splices of bound fields are made anew
        self.recent = None

    def set_redact(self, tuple names: tuple[str, ...]):
        """Replace the names of the fields that are left out; see ``Client.reconfigure`` and `set_fields`."""
        cdef int i
        cdef tuple entries = _redaction_of(names)
        self.redactions.append(entries)
        self.entries = <PyObject *> entries if names else NULL
        for i in range(<int> CACHE_SLOTS + <int> CACHE_PLACES - 1):
            if self.cache[i].key != NULL:
                self.cache[i].redacted = names and _covers(self.entries, self.cache[i].key)
        self.set_fields(self._own_shared().fields)

    cdef inline Shared _own_shared(self):
        # Where threads run at once, `set_fields` may free what is read here: one thread at a time.
        cdef Shared shared
        with cython.critical_section(self):
            shared = self.shared
        return shared

    def __dealloc__(self):
        cdef int i
        for i in range(<int> CACHE_SLOTS + <int> CACHE_PLACES - 1):
            Py_XDECREF(self.cache[i].key)
        for i in range(<int> NAME_SLOTS):
            Py_XDECREF(self.texts[i])

    # Return the properties of an exact str, cached or in `uncached`.
    cdef inline CachedName *find_name(self, PyObject *key, CachedName *uncached) noexcept:
        cdef CachedName *cached = _place_of(self.cache, key)
        return cached if cached.key == key else self.learn_name(key, cached, uncached)

    # The same for a name that is not cached. `first`: the first of its places.
    cdef CachedName *learn_name(self, PyObject *key, CachedName *first, CachedName *uncached) noexcept:
        cdef bint keep = not LC_SHARED and lc_lasting(key) and PyUnicode_GET_LENGTH(key) < MAX_NAME_CHARS
        cdef CachedName *cached = first if keep else uncached
        cdef int i
        for i in range(<int> CACHE_PLACES if keep else 0):
            if first[i].key == NULL:
                cached = first + i
                break
        cached.what = <uint8_t> _classify_name(key)
        cached.redacted = self.entries != NULL and _covers(self.entries, key)
        if self.reserved is not None and lc_find(<PyObject *> self.reserved, key) != NULL:
            cached.what = NAME_CARRIER
        if self.ecs:
            _set_bits(cached, key)
        else:
            cached.own_bit = cached.parent_bits = 0
        cached.traits = _traits_of(self, cached, key)
        if keep:
            lc_keep(&cached.key, key)
        return cached

    # Return STAY, MOVE or REARRANGE.
    cdef inline int placement(self, Document *doc, CachedName *cached, PyObject *v,
                              bint record) noexcept nogil:
        doc.name_bits |= cached.own_bit
        doc.parent_bits |= cached.parent_bits
        return STAY if cached.what == NAME_PLAIN else _placement(self, doc, cached.what, v, record)

    def encode(self, obj: Mapping[Any, Any] | str) -> tuple[bytes, int, int, int]:
        """Encode a mapping or a string.

        Returns:
            The body, its kind (``K_DOCUMENT`` and flags), how many values were sanitized and fields moved.

        Raises:
            EncodeError: a mapping that cannot be read, or a document that is too large.
            EncodeTypeError: it is neither.
        """
        return self._encode(obj, False, None, None)

    def encode_record(self, record: logging.LogRecord) -> tuple[bytes, int, int, int]:
        """Encode a LogRecord as ``encode`` does."""
        return self._encode(record, True, None, None)

    def read(self, obj: Mapping[Any, Any] | str,
             scan: Callable[[str, int], tuple[Any, int]]) -> tuple[dict[str, Any], int, int]:
        """Return the document of a mapping or a string, as ``json.loads`` reads that of ``encode``.

        `scan` is ``raw_decode`` of a ``json.JSONDecoder``. The other results are the last two of ``encode``.
        """
        return self._encode(obj, False, None, scan)

    def read_record(self, record: logging.LogRecord, scan: Callable[[str, int], tuple[Any, int]],
                    made: str | dict[str, Any] | None = None) -> tuple[dict[str, Any], int, int]:
        """Return the document of a LogRecord as ``read`` does.

        `made` is a formatter's result for it: its message, or a dict with its fields; None: there is none.
        """
        return self._encode(record, True, made, scan)

    def put_mapping(self, obj: Mapping[Any, Any], uint8_t level) -> int:
        """Encode a mapping into the queue; return a sequence, or a code as ``EventQueue.push``.

        Raises:
            EncodeError: as for ``encode``.
        """
        cdef lc_here *thread = lc_this_thread()
        cdef uint8_t reason = <uint8_t> R_UNENCODABLE
        cdef int64_t seq = NOT_ENCODED
        if self.queue is None:
            raise ValueError("the encoder has no queue")
        cdef int nested = lc_enter(thread, False)
        if nested >= 0:
            try:
                seq = _put_document(self, obj, level, thread, &reason)
            finally:
                lc_leave(thread, nested)
        if seq == NOT_ENCODED:
            raise _error(reason, obj, self.max_event_bytes)
        return seq

    cdef object _encode(self, object obj, bint is_record, object made, object scan):
        cdef Document doc
        cdef int status
        cdef uint8_t *heap = NULL
        cdef uint8_t *stack
        cdef lc_here *thread = lc_this_thread()
        cdef int nested = lc_enter(thread, False)
        if nested < 0:
            raise _error(<uint8_t> R_UNENCODABLE, obj, 0)
        stack = lc_place(thread, heap, STACK)
        doc.heap = NULL
        try:
            if is_record:
                status = _encode_record(self, &doc, stack, thread, obj, NULL, made, False)
            else:
                status = self._encode_mapping(&doc, stack, thread, obj)
            if status < 0 or scan is not None and _reserve(&doc, SCAN_PAD) < 0:
                raise _error(doc.reason, obj, self.max_event_bytes)
            if scan is not None:
                return _read_document(self, &doc, scan), doc.sanitized, doc.moved
            return (PyBytes_FromStringAndSize(<char *> doc.base, doc.p - doc.base),
                    <int> K_DOCUMENT | doc.flags, doc.sanitized, doc.moved)
        finally:
            free(doc.heap)
            free(heap)
            lc_leave(thread, nested)

    cdef inline void begin(self, Document *doc, uint8_t *stack) noexcept nogil:
        doc.limit = self.max_event_bytes
        doc.pair_block = self.pairs
        doc.skip_own = False
        doc.nested = self.nested
        doc.rules = NULL if self.form is None else &self.form.rules
        doc.id_inside = self.lumberjack and (self.nested or doc.rules != NULL and doc.rules.nested)
        doc.redacted = self.entries
        _start_document(doc, stack, WHOLE, 0)

    cdef dict _placed(self, dict fields, bint extra):
        """Return fields under the names of `rename`; those of a record (`extra`) may be below a prefix."""
        cdef dict made = {}
        cdef object place
        cdef PyObject *entries = self.entries
        if self.rename is None or fields is None:
            return fields
        for name, value in fields.items():
            place = self.rename.get(name)
            if place is None or place in fields or _is_mapping(value) and place.startswith(name + "."):
                place = f"{self.extra_prefix}.{name}" if extra and self.extra_prefix else name
            elif entries != NULL and _is_among(entries, name):
                value = REDACTED_TEXT
            made[place] = value
        return made

    cdef PyObject *learn_below(self, PyObject *key) noexcept:
        # Return the name of a record's field below `extra_prefix`; NULL: it cannot be remembered.
        if LC_SHARED or not lc_lasting(key) or len(self.below) >= CACHE_SLOTS:
            return NULL
        try:
            name = self.below.setdefault(<object> key, f"{self.extra_prefix}.{<object> key}")
            self.held.append(name)
            return <PyObject *> name             # held by the dict
        except MemoryError:
            return NULL

    cdef inline Shared _current_shared(self):
        cdef object fields = None if self.bound is None else get_value(self.bound)
        return self._own_shared() if fields is None else self._bound_shared(fields)

    cdef Shared _bound_shared(self, object bound):
        cdef tuple recent = self.recent
        if not LC_SHARED and recent is not None and recent[0] is bound:
            return <Shared> recent[1]
        # Other threads may do the same at the same time: either result is right.
        cdef dict made = bound.made
        cdef Shared own = self._own_shared()
        cdef object found = made.get(own)
        if found is None:
            found = _make_shared(self, {**own.fields, **self._placed(bound.fields, False)})
            if len(made) >= MAX_SPLICES:
                made.clear()         # of clients that are gone
            made[own] = found
        elif not LC_SHARED and own is self.shared:
            self.recent = (bound, found)
        return <Shared> found

    cdef inline Splice _current_splice(self, Document *doc, Shared shared):
        # Return the splice for a document that is made now; None: there is none. It runs Python code.
        return shared.plain if self.spans is None else self._span_splice(doc, shared)

    cdef Splice _span_splice(self, Document *doc, Shared shared):
        cdef SpanFound found
        cdef object context = self.spans.context() if self.span_variable is None else get_value(
            self.span_variable)
        if isinstance(context, dict) and not <dict> context:
            return shared.plain
        cdef object key = <size_t> <PyObject *> context
        found = <SpanFound> shared.spans.get(key)
        if found is None or found.context() is not context:
            found = self._find_span(shared, context)
            if len(shared.spans) >= MAX_SPLICES:
                shared.spans.clear()     # most of these contexts are gone
            shared.spans[key] = found
        memcpy(doc.ids, found.ids, IDS)
        return found.splice

    cdef SpanFound _find_span(self, Shared shared, object context):
        cdef SpanFound found = SpanFound.__new__(SpanFound)
        cdef object span = self.spans.find(context)
        cdef object splice = shared.plain
        if span is not None:
            trace, ids, service = span
            if (_copy_id(found.ids, <PyObject *> trace, TRACE_DIGITS)
                    and _copy_id(found.ids + TRACE_DIGITS, <PyObject *> ids, IDS - TRACE_DIGITS)):
                splice = shared.with_ids.get(service)
                if splice is None:
                    splice = _make_span_splice(self, shared, service, True)
        found.splice = <Splice> splice
        try:
            found.context = weakref.ref(context)
        except TypeError:
            found.context = type(None)       # returns None: look again next time
        return found

    cdef Splice _instrumented_splice(self, Document *doc, Shared shared, Attributes *s, bint make):
        # Return the splice of a record that has the ids of its span in its attributes. If there is none yet:
        # `make` it, which runs Python code, or return None.
        cdef PyObject *name = s.values[A_SERVICE]
        cdef bint ids = (_copy_id(doc.ids, s.values[A_TRACE], TRACE_DIGITS)
                         and _copy_id(doc.ids + TRACE_DIGITS, s.values[A_SPAN], IDS - TRACE_DIGITS))
        cdef object service = <object> name if name != NULL and PyUnicode_CheckExact(name) else ""
        if not ids and not service:
            return shared.plain
        cdef object found = (shared.with_ids if ids else shared.without_ids).get(service)
        if found is None and make:
            found = _make_span_splice(self, shared, service, ids)
        return <Splice> found

    # Mappings.

    cdef int _encode_mapping(self, Document *doc, uint8_t *stack, lc_here *thread, object obj) except -2:
        cdef dict d
        self.begin(doc, stack)
        doc.thread = thread
        doc.created_us = 0
        if type(obj) is dict:
            d = obj
        elif isinstance(obj, str):
            d = {"message": obj} if self.text is None else <dict?> self.text(obj)
        elif _is_mapping(obj):
            try:
                d = _dict_of(obj)
            except Exception:
                doc.reason = <uint8_t> R_UNENCODABLE
                return -1
        else:
            return -1                    # for no reason (R_NONE)
        if self.complete is not None and not isinstance(obj, str):
            d = <dict?> self.complete(d)
        cdef Splice splice = self._current_splice(doc, self._current_shared())
        # Its names are looked at again once the values are written, so nothing may change it meanwhile: where
        # Python code has to run, the document is begun again from a copy.
        d = d.copy() if LC_SHARED else d
        doc.no_python = not LC_SHARED
        doc.judges_time = self.correct is not None
        cdef int status = self._write_mapping(doc, d, splice)
        return self._write_again(doc, stack, d, splice, status) if status else 0

    # Write a mapping that the first attempt could not write.
    cdef int _write_again(self, Document *doc, uint8_t *stack, dict d, Splice splice, int status) except -2:
        cdef uint32_t moved = 0
        if self.correct is not None and "@timestamp" in d:
            d, moved = self.correct(d, self.labels + "timestamp")
        d = d if LC_SHARED else d.copy()
        if status == NEEDS_TIME or status == -1 and doc.reason == R_NONE:
            _restart_document(doc, stack, WHOLE)
            status = self._write_mapping(doc, d, splice)
        if status == NEEDS_REARRANGING:
            _restart_document(doc, stack, WHOLE)
            status = self._write_rearranged(doc, d, splice)
        if status == -1 and doc.reason == R_TOO_LARGE and self.truncate:
            # It gets a field of ours, with which others may conflict.
            for mode in (MEASURE, CUT):
                _restart_document(doc, stack, mode)
                status = self._write_rearranged(doc, d, splice)
                if status < 0:
                    break
        doc.moved += moved
        return status

    # Return 0, -1, NEEDS_REARRANGING or NEEDS_TIME.
    cdef int _write_mapping(self, Document *doc, dict d, Splice splice) except -2:
        doc.places = 0 if self.rename is None else PLACES
        doc.direct = doc.nested and (splice is None or splice.objects is not None)
        cdef int status = _write_user_fields(self, doc, <PyObject *> d, 0, NULL, False)
        if status == NEEDS_NESTING or (
                status == 0 and splice is not None and doc.dotted_heads & splice.head_bits):
            doc.p = doc.base
            doc.sanitized = doc.moved = 0
            doc.seen = 0
            doc.name_bits = doc.parent_bits = doc.dotted_heads = 0
            doc.direct = doc.event_waits = False
            status = _write_user_fields(self, doc, <PyObject *> d, 0, NULL, False)
        if not doc.direct:
            doc.dotted_from = _dotted_from(doc, splice, 0)
        if status == 0 and self.timestamp:
            status = _write_timestamp(doc, d)
        if status == 0 and splice is not None:
            if _conflicts_with_splice(self, doc, splice, <PyObject *> d, 0, NULL):
                return NEEDS_REARRANGING
            status = _write_splice(doc, splice)
            if status == 0:
                status = _write_event(doc, splice)
        if status == 0 and doc.event_waits:
            status = _write_event_fields(self, doc, <PyObject *> d, 0, NULL)
        return _finish_document(doc) if status == 0 else status

    cdef int _write_rearranged(self, Document *doc, dict d, Splice splice) except -2:
        cdef dict source = self._placed(_clean_dict(doc, d, None), False)
        doc.dotted_from = 0 if doc.nested else -1
        if splice is not None and source is not None:
            source = {**splice.fields_of(doc), **source}
        source = _rearrange(self, doc, source, False)
        if source is None:
            return -1
        # First: nothing may follow @metadata, whose end stays open for the id.
        doc.stamped = "@timestamp" in source
        if self.timestamp and _write_timestamp(doc, source) < 0:
            return -1
        cdef int status = _write_user_fields(self, doc, <PyObject *> source, 0, NULL, False)
        if status == 0:
            status = _mark_truncated(doc)
        return status if status else _finish_document(doc)

    # Records.

    cdef int _learn_keys(self) except -1:
        # Find out whether the values of records, and the entries of other dicts, lie in the order of `names`.
        cdef PyObject **values
        cdef const lc_entry *entries
        cdef dict own
        cdef Py_ssize_t n = 0
        cdef int i
        for name in self.first:
            self.first[name] = object()
        self.keys = lc_class_keys(<PyObject *> self.first)
        values = lc_class_values(<PyObject *> self.first, self.keys, self.count)
        for i in range(self.count):
            if values == NULL or values[i] != <PyObject *> self.first[self.order[i]]:
                self.keys = NULL
                break
        own = dict(list(self.first.items()))
        entries = lc_entries(<PyObject *> own, &n)
        self.reads_entries = entries != NULL and n == self.count
        for i in range(self.count if self.reads_entries else 0):
            if entries[i].key != self.names[i] or entries[i].value != <PyObject *> own[self.order[i]]:
                self.reads_entries = False
        return 0

    cdef inline void _read_attributes(self, PyObject *standard, PyObject *d, Attributes *s) noexcept nogil:
        # Find the attributes in the record's __dict__ in one pass. `standard` is the encoder's.
        cdef PyObject *k
        cdef PyObject *v
        cdef PyObject *place
        cdef const lc_entry *entries
        cdef Py_ssize_t at = 0, before = 0, n = 0, slot
        cdef int i = 0
        s.first_extra = -1
        s.extras_mixed = False
        lc_clear(s.values, ATTRIBUTES * sizeof(PyObject *))
        cdef PyObject **values = lc_class_values(d, self.keys, self.count)
        if values != NULL:
            for i in range(self.count):
                if values[i] == NULL:
                    values, i = NULL, 0
                    break
                s.values[self.slots[i]] = values[i]
                lc_prefetch(values[i])
            else:
                # What others have added follows, unless some of these were deleted and set again.
                i, at, before = self.count, self.count, self.count
        elif self.reads_entries and (entries := lc_entries(d, &n)) != NULL and n >= self.count:
            for i in range(self.count):
                if entries[i].key != self.names[i] or entries[i].value == NULL:
                    break
                s.values[self.slots[i]] = entries[i].value
                lc_prefetch(entries[i].value)
            else:
                i = self.count
                if PyDict_GET_SIZE(d) > i and entries[i].key == <PyObject *> MESSAGE:
                    i += 1               # as a formatter leaves it
            at = before = i
        if at == PyDict_GET_SIZE(d):
            return                       # there are no other attributes
        while PyDict_Next(d, &at, &k, &v):
            if i < self.count and k == self.names[i]:
                s.values[self.slots[i]] = v
                lc_prefetch(v)
                i += 1
            elif k == <PyObject *> MESSAGE:
                s.extras_mixed = s.first_extra >= 0
            else:
                place = lc_find(standard, k) if PyUnicode_CheckExact(k) else NULL
                if place != NULL:
                    slot = lc_compact_value(place)
                    if values != NULL and (slot < A_TRACE or slot == A_UNUSED):
                        values, i, at, before, s.first_extra = NULL, 0, 0, 0, -1
                        continue
                    s.values[slot] = v
                    s.extras_mixed = s.first_extra >= 0
                elif s.first_extra < 0:
                    s.first_extra = before
                    i = self.count       # look up all names that follow
            before = at

    cdef dict _take_references(self, dict attributes, Attributes *s):
        # Take references to the attributes, before Python code runs that could drop them. Return the
        # dictionary to read from now on: a copy if it has fields of the application.
        cdef Attributes again
        cdef int i
        if s.held:
            return attributes
        for i in range(<int> A_UNUSED):
            Py_XINCREF(s.values[i])
        s.held = True
        if s.first_extra >= 0 and not LC_SHARED:
            attributes = PyDict_Copy(attributes)
            self._read_attributes(<PyObject *> self.standard, <PyObject *> attributes, &again)
            s.first_extra = again.first_extra
            s.extras_mixed = again.extras_mixed
        return attributes

    cdef int _write_record(self, Document *doc, object record, object override) except -2:
        cdef Attributes s
        cdef object made = PyObject_GenericGetDict(record, NULL)
        cdef dict attributes = PyDict_Copy(made) if LC_SHARED or type(made) is not dict else made
        cdef Shared shared = self._current_shared()
        cdef Splice splice = self._current_splice(doc, shared)
        cdef int i
        self._read_attributes(<PyObject *> self.standard, <PyObject *> attributes, &s)
        if s.values[A_LEVELNO] == NULL:
            attributes = _with_members(record, attributes)
            self._read_attributes(<PyObject *> self.standard, <PyObject *> attributes, &s)
        s.held = False
        s.site = NULL
        if doc.skip_own and _is_own_logger(s.values[A_NAME]):
            return 1
        try:
            if s.values[A_TRACE] != NULL:
                splice = self._instrumented_splice(doc, shared, &s, False)
                if splice is None:
                    attributes = self._take_references(attributes, &s)
                    splice = self._instrumented_splice(doc, shared, &s, True)
            return self._write_attributes(doc, record, attributes, &s, splice, override)
        finally:
            if s.held:
                for i in range(<int> A_UNUSED):
                    Py_XDECREF(s.values[i])

    cdef int _write_call(self, Document *doc, dict fields, Attributes *call) except -2:
        # Write a log call that has no record. The caller holds references to all values.
        cdef Splice splice = self._current_splice(doc, self._current_shared())
        if _is_own_logger(call.values[A_NAME]):
            return 1
        return self._write_attributes(doc, None, fields, call, splice, None)

    # `record`: None for a log call that has none; then `attributes` are its fields.
    cdef int _write_attributes(self, Document *doc, object record, dict attributes, Attributes *s,
                               Splice splice, object override) except -2:
        cdef PyObject *standard = <PyObject *> self.standard
        cdef PyObject *chosen = NULL     # the message, if it is not the record's
        cdef dict fields = None          # the application's, if not written from the record
        cdef tuple error = None          # of the event dict of structlog
        cdef object text = None
        cdef PyObject *given = NULL      # has the fields of the application, from `at` on but for `skipped`
        cdef PyObject *skipped = NULL
        cdef Py_ssize_t at = 0
        cdef bint subclass = False       # the record may override getMessage()
        cdef bint rearrange = False
        cdef int status, step = 0
        doc.level = _level_index(s.values[A_LEVELNO])
        if record is None:
            doc.created_us = doc.created_us or lc_wall_us()
        elif not _timestamp_us(s.values[A_CREATED], &doc.created_us):
            attributes = self._take_references(attributes, s)
            doc.created_us = _created_us(s.values[A_CREATED])

        # Find out which of our fields the application replaces before the first one is written.
        if override is None:
            subclass = record is not None and type(record) is not self.record_type
            if s.values[A_MSG] != NULL and not PyUnicode_CheckExact(s.values[A_MSG]):
                attributes = self._take_references(attributes, s)
                if ((s.values[A_ARGS] == NULL or not <object> s.values[A_ARGS])
                        and _is_mapping(<object> s.values[A_MSG])):
                    override = <object> s.values[A_MSG]
        if override is not None and not isinstance(override, str):
            attributes = self._take_references(attributes, s)
            if type(override) is dict and attributes is not None and "_logger" in attributes:
                override, error = _take_error(override)
            fields = _merge_message_fields(self, doc, attributes, s.first_extra, override)
            if fields is None:
                return -1
        else:
            text = override
        cdef bint by_message = fields is not None
        if fields is None and self.rename is not None:
            doc.places = PLACES_RECORD if self.extra_prefix else PLACES
        if fields is not None:
            given = <PyObject *> fields
        elif s.first_extra >= 0:
            given = <PyObject *> attributes
            at = s.first_extra
            skipped = standard if s.extras_mixed else NULL
        if given != NULL:
            doc.overridden = _scan_fields(self, doc, given, at, skipped, &rearrange)
            if doc.mode != WHOLE or rearrange or splice is not None and _conflicts_with_splice(
                    self, doc, splice, given, at, skipped):
                attributes = self._take_references(attributes, s)
                if fields is None:
                    fields = self._placed(_clean_dict(doc, attributes, self.standard), True)
                    doc.places = 0
                if splice is not None and fields is not None:
                    fields = {**splice.fields_of(doc), **fields}
                    splice = None
                fields = _rearrange(self, doc, fields, True)
                if fields is None:
                    return -1
        if fields is not None:
            if by_message and isinstance(fields.get("message"), str):
                text = fields.pop("message")         # to its place
            doc.overridden = _scan_fields(self, doc, <PyObject *> fields, 0, NULL, &rearrange)
            if by_message and text is None:
                doc.overridden |= <uint32_t> 1 << KEY_MESSAGE
        if text is not None:
            chosen = <PyObject *> text
        if doc.nested and (fields is not None or doc.mode != WHOLE or doc.seen & SEEN_FILLED
                           or splice is not None and splice.objects is None):
            doc.dotted_from = 0

        while True:
            status = _write_steps(doc, s, chosen, subclass, &step)
            if status != NEEDS_PYTHON:
                break
            attributes = self._take_references(attributes, s)
            status = self._write_step_in_python(doc, record, s.values, step)
            if status < 0:
                break
            step += 1
        if status < 0:
            return status
        if error is not None:
            status = self._write_error(doc, None, error[0], error[1], error[2])
            if status < 0:
                return status
        elif _given(s.values[A_EXC_INFO]) or _given(s.values[A_EXC_TEXT]) or _given(s.values[A_STACK_INFO]):
            attributes = self._take_references(attributes, s)
            status = self._write_error(doc, record, _or_none(s.values[A_EXC_INFO]),
                                       _or_none(s.values[A_EXC_TEXT]), _or_none(s.values[A_STACK_INFO]))
            if status < 0:
                return status
        if _mark_truncated(doc) < 0:
            return -1
        doc.own_end = <size_t> (doc.p - doc.base)
        if fields is None and s.first_extra >= 0 and doc.seen & SEEN_MAPPING:
            attributes = self._take_references(attributes, s)    # such values may run Python code
        given = skipped = NULL
        if fields is not None:
            given = <PyObject *> fields
            at = 0
        elif s.first_extra >= 0:
            given = <PyObject *> attributes
            at = s.first_extra
            skipped = standard if s.extras_mixed else NULL
        status = NEEDS_NESTING
        if (doc.nested and doc.dotted_from != 0 and doc.seen & (SEEN_DOTS | SEEN_MOVING) == SEEN_DOTS
                and (splice is None or splice.objects is not None)):
            status = self._write_objects(doc, given, at, skipped, splice)
        if status == NEEDS_NESTING:
            if doc.dotted_from != 0:
                doc.dotted_from = _dotted_from(doc, splice, doc.p - doc.base)
            if splice is not None and _write_splice(doc, splice) < 0:
                return -1
            status = 0 if given == NULL else _write_user_fields(self, doc, given, at, skipped, True)
            if status == 0 and splice is not None:
                status = _write_event(doc, splice)
        if status > 0:                   # it would be taken for one of our own records, and vanish
            doc.reason = <uint8_t> R_UNENCODABLE
            return -1
        return status if status else _finish_document(doc)

    cdef int _write_objects(self, Document *doc, PyObject *fields, Py_ssize_t at, PyObject *skipped,
                            Splice splice) except -2:
        # Write the application's fields of a record, with objects in place of names with dots, and what all
        # documents have. NEEDS_NESTING: nothing is written.
        cdef size_t start = <size_t> (doc.p - doc.base)
        cdef uint32_t sanitized = doc.sanitized, moved = doc.moved
        cdef int status = 0
        doc.direct = True
        if splice is not None and _write_splice(doc, splice) < 0:
            return -1
        status = _write_user_fields(self, doc, fields, at, skipped, True)
        if status == NEEDS_NESTING or (
                status == 0 and splice is not None and doc.dotted_heads & splice.head_bits):
            doc.p = doc.base + start
            doc.sanitized = sanitized
            doc.moved = moved
            doc.direct = doc.event_waits = False
            return NEEDS_NESTING
        if status == 0 and splice is not None:
            status = _write_event(doc, splice)
        if status == 0 and doc.event_waits:
            status = _write_event_fields(self, doc, fields, at, skipped)
        return status

    cdef int _write_step_in_python(self, Document *doc, object record, PyObject **values, int step) except -2:
        # Write a step that runs Python code. The caller holds references to the attributes.
        cdef object text
        if step == KEY_LEVEL:
            text = <object> values[A_LEVELNAME]
            text = _exact_str(text).lower() if isinstance(text, str) else text
            return _write_any_field(doc, KEY_LEVEL, <PyObject *> text)
        if step != KEY_MESSAGE:
            return _write_any_field(doc, step, values[step - KEY_LOGGER])
        if record is not None and type(record) is not self.record_type and \
                getattr(type(record), "getMessage", None) is not self.get_message:
            text = _call_get_message(doc, record)
        else:
            text = _format_message(doc, <object> values[A_MSG] if values[A_MSG] != NULL else "",
                                   _or_none(values[A_ARGS]))
        if _reserve(doc, 2 * LC_SLACK) < 0:
            return -1
        _open_field(doc, KEY_MESSAGE, True)
        if _write_message_chars(doc, <PyObject *> text) < 0:
            return -1
        return _close_field(doc, True)

    cdef int _write_error(self, Document *doc, object record, object exc_info, object exc_text,
                          object stack_info) except -2:
        # Write the object `error`, or fields of that name.
        if not doc.nested or doc.dotted_from == 0:
            return self._write_error_fields(doc, record, exc_info, exc_text, stack_info)
        if _append(doc, b',"error":', 9) < 0 or _reserve(doc, LC_SLACK) < 0:
            return -1
        cdef size_t start = <size_t> (doc.p - doc.base)
        doc.in_error = True
        cdef int status = self._write_error_fields(doc, record, exc_info, exc_text, stack_info)
        doc.in_error = False
        if status < 0:
            return status
        if <size_t> (doc.p - doc.base) == start:
            doc.p -= 9
            return 0
        doc.base[start] = c'{'
        return _append(doc, b'}', 1)

    cdef int _write_error_fields(self, Document *doc, object record, object exc_info, object exc_text,
                           object stack_info) except -2:
        cdef int status
        cdef str name, message = None, trace = None, fingerprint = None
        cdef object kind = None
        try:
            if isinstance(exc_info, BaseException):
                exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
            if isinstance(exc_info, tuple) and len(exc_info) == 3 and exc_info[0] is not None:
                kind = exc_info[0]
                try:
                    message = _exact_str(str(exc_info[1]))
                except Exception:
                    message = _unprintable(doc, exc_info[1])
                if not exc_text:
                    exc_text = self.exceptions.format(exc_info)
                    if record is not None:
                        record.exc_text = exc_text       # as logging.Formatter does, for the next handler
        except Exception:
            exc_text = f"<no stack trace: {sys.exc_info()[0].__name__}>"
            doc.sanitized += 1
        if kind is not None:
            name = _exact_str(getattr(kind, "__name__", "")) or "?"
            status = _write_any_field(doc, KEY_ERROR_TYPE, <PyObject *> name)
            if status < 0:
                return status
            status = _write_any_field(doc, KEY_ERROR_MESSAGE, <PyObject *> message)
            if status < 0:
                return status
        if isinstance(exc_text, str) and exc_text:
            trace = _exact_str(exc_text)
        if isinstance(stack_info, str) and stack_info:
            trace = _exact_str(stack_info) if trace is None else f"{trace}\n{stack_info}"
        status = _write_any_field(doc, KEY_STACK_TRACE, <PyObject *> trace)
        if status < 0 or kind is None or not self.fingerprint:
            return status
        try:
            fingerprint = self.exceptions.fingerprint(exc_info)
        except Exception:
            doc.sanitized += 1
        return _write_any_field(doc, KEY_FINGERPRINT, <PyObject *> fingerprint)


cdef int _encode_record(Encoder encoder, Document *doc, uint8_t *stack, lc_here *thread, object record,
                        Attributes *call, object override, bint skip_own) except -2:
    # Return 0, -1 (to be counted as failed) or 1 (a record of our own, to be ignored). `call`: NULL, or the
    # values of a log call that has no record; then `record` is a dict with its fields.
    cdef uint8_t mode = WHOLE
    cdef int status
    encoder.begin(doc, stack)
    doc.skip_own = skip_own
    doc.thread = thread
    doc.created_us = 0 if call == NULL else call.created_us
    doc.level = 0
    while True:
        if call == NULL:
            status = encoder._write_record(doc, record, override)
        else:
            status = encoder._write_call(doc, record, call)
        if mode == CUT or (status != 0 if mode == MEASURE else
                           status != -1 or doc.reason != R_TOO_LARGE or not encoder.truncate):
            return status
        mode += 1
        _restart_document(doc, stack, mode)


cdef int64_t _put_document(Encoder e, object obj, uint8_t level, lc_here *thread,
                           uint8_t *reason) except? -9:
    # Encode a mapping or a string into the queue. Returns NOT_ENCODED, with the reason, if it cannot be.
    cdef Document doc
    cdef int64_t seq
    cdef uint8_t *heap = NULL
    cdef uint8_t *stack = lc_place(thread, heap, STACK)
    doc.heap = NULL
    try:
        if e._encode_mapping(&doc, stack, thread, obj) < 0:
            reason[0] = doc.reason
            return NOT_ENCODED
        seq = lc_put(e.queue.h, doc.base, <size_t> (doc.p - doc.base), level,
                     <uint8_t> K_DOCUMENT | doc.flags, doc.created_us, NULL)
        if doc.sanitized or doc.moved:
            e.queue.count_changed(doc.sanitized, doc.moved)
    finally:
        free(doc.heap)
        free(heap)
    return seq


# A cast to one of these types makes a Python exception come back as -2 or NOT_MADE, unchecked: that saves
# 20 ns a call.
ctypedef int (*encode_record_function)(Encoder encoder, Document *doc, uint8_t *stack, lc_here *thread,
                                       object record, Attributes *call, object override,
                                       bint skip_own) noexcept
ctypedef int64_t (*put_document_function)(Encoder e, object obj, uint8_t level, lc_here *thread,
                                          uint8_t *reason) noexcept


cdef enum:
    NOT_ENCODED = -8         # beside the results of `EventQueue.put`
    NOT_MADE = -9            # an exception was raised


cdef object _error(uint8_t reason, object obj, size_t limit):
    if reason == R_TOO_LARGE:
        error = EncodeError(f"event: longer than max_event_bytes ({limit})")
        error.reason = "too_large"
        return error
    if reason == R_UNENCODABLE:
        return EncodeError("event: a mapping that cannot be read, or events sent within others until a limit "
                           "was reached")
    return EncodeTypeError(f"event: must be a mapping or a string, got {type(obj).__name__}")


def bytes_refused() -> Exception:
    """Return the error of bytes, a JSON object, that are to become pairs of strings."""
    return EncodeError("event: bytes go into JSON frames; version=1 and frames=data take mappings")


cpdef uint8_t failure_reason(object error: BaseException | None) except 255:
    """Return the reason, one of ``R_*``, under which an event fails that this exception is about."""
    if isinstance(error, EncodeError) and error.reason == "too_large":
        return <uint8_t> R_TOO_LARGE
    return <uint8_t> R_UNENCODABLE


cpdef uint8_t level_index(object level: int | str) except 255:
    """Return a level of ``logging``, a number or a name, as the queue keeps it: 0 to 5."""
    cdef int overflow = 0
    cdef bint known = False
    if isinstance(level, str):
        names = logging.getLevelNamesMapping()
        level = names.get(level, names.get(level.upper()))
    if isinstance(level, int) and not isinstance(level, bool):
        PyLong_AsLongLongAndOverflow(<PyObject *> level, &overflow)
        known = overflow == 0
    if not known:
        number = "a number of 64 bits" if overflow else "a number"
        raise ConfigError(f"level: must be {number}, or the name of a level such as ERROR")
    return _level_index(<PyObject *> level)


def record_level(levelno: object) -> int:
    """Return the ``levelno`` of a record, whatever it is, as the queue keeps it: 0 to 5."""
    return _level_index(<PyObject *> levelno)
