# Rearrangement of the application's fields in Python objects, for the few documents with fields that could be
# taken for ours or with names that conflict.

cdef frozenset ECS_OBJECTS = frozenset(
    lc_names[i].text[:lc_names[i].n].decode() for i in range(<int> LC_NAMES)
    if lc_names[i].what in (NAME_OBJECT, NAME_FILLED, NAME_LABELS, KEY_EVENTS))
cdef tuple RECORD_NAMES = tuple([lc_keys[i].text[2:2 + lc_keys[i].n].decode()
                                 for i in range(<int> KEY_METADATA)])
cdef frozenset OURS_IN_RECORDS = frozenset(("@timestamp", "log.level"))


cdef dict _as_dict(Document *doc, object value):
    """Return a mapping as a dict with keys that are strings; None for anything else."""
    cdef uint8_t reason = doc.reason
    if not _is_mapping(value):
        try:
            if not hasattr(type(value), "__dataclass_fields__"):
                return None
            value = _plain_value(value, 1)
        except Exception:
            return None
    cdef dict found = _clean_dict(doc, value, None)
    doc.reason = reason
    return found


cdef object _snapshot(Document *doc, object value, int depth=1):
    """Return a value that is written as it is now, even if its ``__str__`` changes later."""
    if value is None or isinstance(value, (bool, float, list, tuple, set, frozenset)) or _is_mapping(value):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, str):
        return _exact_str(value)
    try:
        found = _plain_value(value, 1)
        if found is value:
            return _text_of(doc, value)
        # Beyond the last level the value stays as it is.
        return found if depth >= MAX_DEPTH else _snapshot(doc, found, depth + 1)
    except Exception:
        return _unprintable(doc, value)


cdef bint _looks_like_our_id(object value) except -1:
    """Return whether it looks like an id of ours: in JSON, 32 lower-case hex digits."""
    if type(value) is int:
        return 10 ** 31 <= value < 10 ** 32
    if type(value) is not str:
        return False
    cdef str text = value
    return len(text) == 32 and all([c in "0123456789abcdef" for c in text])


cdef set _names_above(names):
    # Return what is before a dot in names, for each of their dots.
    cdef set found = set()
    cdef str name
    cdef Py_ssize_t at
    for name in names:
        at = name.find(".")
        while at >= 0:
            found.add(name[:at])
            at = name.find(".", at + 1)
    return found


cdef frozenset RECORD_NAME_SET = frozenset(RECORD_NAMES)
cdef frozenset ABOVE_RECORD_NAMES = frozenset(_names_above(RECORD_NAMES))


cdef dict _merge_message_fields(Encoder encoder, Document *doc, dict attributes, Py_ssize_t extra,
                                object msg):
    """Merge the fields of a message that is a mapping (as structlog's) over those of ``extra``."""
    cdef dict fields = {}
    cdef dict own = _clean_dict(doc, msg, None)
    if own is None:
        doc.reason = <uint8_t> R_NONE
        own = {"message": _unprintable(doc, msg)}
    if extra >= 0:
        fields = _clean_dict(doc, attributes, encoder.standard)
        if fields is None:
            return None
        # structlog passes these to its own formatter.
        fields.pop("_logger", None)
        fields.pop("_name", None)
        fields = encoder._placed(fields, True)
    if "message" not in own and isinstance(own.get("event"), str):
        # structlog calls the message `event`, which is an object in ECS.
        own = {"message" if key == "event" else key: value for key, value in own.items()}
    fields.update(encoder._placed(own, False))
    return fields


cdef tuple _take_error(dict event):
    """Return an event dict of structlog without its exception, and that as arguments of `_write_error`."""
    cdef dict rest = dict(event)
    cdef object exc_info = rest.pop("exc_info", None)
    cdef object trace, stack
    if type(exc_info) is bool or type(exc_info) is int:
        exc_info = sys.exc_info()[1] if exc_info else None
    elif exc_info is not None and not isinstance(exc_info, (BaseException, tuple)):
        rest["exc_info"] = exc_info
        exc_info = None
    trace, stack = [rest.pop(name) if isinstance(rest.get(name), str) else None
                    for name in ("exception", "stack")]
    if exc_info is None and trace is None and stack is None:
        return rest, None
    return rest, (exc_info, trace, stack)


cdef dict _rearrange(Encoder encoder, Document *doc, dict fields, bint record):
    # Move or drop the application's fields that could be taken for ours, or whose names conflict. None stays.
    cdef dict made = {}
    cdef list moving = []
    cdef set reserved = set(OURS_IN_RECORDS if record else ())     # the names that are ours alone
    cdef object own = None
    if doc.mode != WHOLE:
        reserved.add("log.flags")
    doc.rearranged = True
    if fields is not None and doc.redacted != NULL:
        fields = _without_secrets(doc, fields, 0)
    if fields is None or not encoder.checks_names and doc.mode == WHOLE:
        return fields
    for key, value in fields.items():
        if encoder.lumberjack and (key == "@metadata" or key.startswith("@metadata.")):
            own = _keep_metadata(encoder, doc, made, key, value) or own
        elif encoder.sets_event_id and key == "event.id":
            value = _snapshot(doc, value)
            if _keep_event_id(encoder, doc, moving, key, value):
                made[key] = value
        elif encoder.sets_event_id and key.startswith("event.id."):
            moving.append((key, value))
        elif encoder.reserved is not None and key in encoder.reserved or key in reserved:
            moving.append((key, value))
        elif encoder.ecs and key in ECS_OBJECTS:
            value = None if encoder.flat else _as_dict(doc, value)
            if value is None:
                moving.append((key, fields[key]))
                continue
            if key == "event" and encoder.sets_event_id:
                _take_event_id(encoder, doc, moving, value)
            made[key] = value
        else:
            made[key] = value
    if encoder.ecs:
        made = _resolve_name_conflicts(encoder, doc, made, moving, reserved, record)
    _move_to_labels(encoder, doc, made, moving)
    if own:
        made["@metadata"] = {**encoder.metadata, **own}      # last, as the id is inserted at its end
        if not encoder.sets_event_id:
            doc.flags |= <uint8_t> K_ID1_TAKEN
        elif not encoder.pairs and not doc.flags & K_ID1_TAKEN:
            doc.flags |= <uint8_t> K_METADATA_OPEN
    if encoder.identity == "own" and doc.flags & (K_ID1_TAKEN | K_ID2_TAKEN):
        doc.flags = <uint8_t> (K_ID1_TAKEN | K_ID2_TAKEN)
    return made


cdef object _keep_metadata(Encoder encoder, Document *doc, dict made, str key, object value):
    """Return the part of the application's ``@metadata`` to keep, or put a field below it into `made`."""
    if key != "@metadata" or encoder.pairs:
        if encoder.trust_metadata and not (encoder.sets_event_id and key == "@metadata._id"):
            made[key] = value
        else:
            doc.moved += 1
        return None
    cdef dict found = _as_dict(doc, value)
    if found is None:
        doc.moved += 1
        return None
    value = found.pop("_id", None)
    if value is not None and encoder.identity != "id":
        if encoder.identity == "own":
            doc.flags |= <uint8_t> K_ID1_TAKEN
        found = {"_id": value, **found} if encoder.trust_metadata else {"_id": value}
    elif not encoder.trust_metadata:
        doc.moved += 1
        return None
    elif value is not None:
        doc.moved += 1
    return found or None


cdef bint _keep_event_id(Encoder encoder, Document *doc, list moving, str name, object value) except -1:
    """Return whether the application's ``event.id`` stays; add it to `moving` if it has to move."""
    if value is None:
        return False
    if encoder.identity == "id" and (encoder.pairs or _looks_like_our_id(value)):
        moving.append((name, value))
        return False
    doc.flags |= <uint8_t> K_ID2_TAKEN
    return True


cdef int _take_event_id(Encoder encoder, Document *doc, list moving, dict event) except -1:
    """Remove the id from the application's ``event``, unless it stays."""
    if "id" in event:
        value = event["id"] = _snapshot(doc, event["id"])
        if not _keep_event_id(encoder, doc, moving, "event.id", value):
            del event["id"]
    for name in [name for name in event if name.startswith("id.")]:
        moving.append(("event." + name, event.pop(name)))
    return 0


cdef dict _resolve_name_conflicts(Encoder encoder, Document *doc, dict made, list moving, set reserved,
                                  bint record):
    """Merge mappings with fields of the same prefix, and move scalars that are a prefix of another field."""
    cdef object ours = RECORD_NAME_SET if record else reserved
    cdef object above_ours = ABOVE_RECORD_NAMES if record else _names_above(reserved)
    cdef set heads, below
    cdef dict wide, source
    cdef int level
    for level in range(<int> MAX_MERGE_LEVELS + 1):
        # Those that are before a dot in another name, and those that have one of ours before a dot.
        heads = _names_above(made)
        below = set() if heads.isdisjoint(ours) else {
            name for name in made if name not in ours and not ours.isdisjoint(_names_above((name,)))}
        heads.update(above_ours)
        if not below and heads.isdisjoint(made):
            return made
        wide = {name: _as_dict(doc, made[name]) for name in made if name in heads}
        if level == <int> MAX_MERGE_LEVELS or not any(wide.values()):
            break
        source, made = made, {}
        for name, value in source.items():
            if not wide.get(name):
                made[name] = value
                continue
            for key, deep in wide[name].items():
                path = f"{name}.{key}"
                if path in made or path in source or path in reserved:
                    moving.append((path, deep))
                else:
                    made[path] = deep
    for name in list(made):
        if name in heads or name in below:
            source = _as_dict(doc, made[name])
            if name in below or source is None or source:
                value = made.pop(name)
                moving.append((name, value if source is None else source))
    return made


cdef int _move_to_labels(Encoder encoder, Document *doc, dict made, list moving) except -1:
    """Put fields below ``labels``, under names that are free."""
    cdef dict counts = {}
    cdef Py_ssize_t n = len(encoder.labels)
    if not moving:
        return 0
    if "labels" in made and not _is_mapping(made["labels"]):
        moving.append(("labels", made.pop("labels")))
    # The names below `labels` that are the prefix of another field.
    cdef set heads = {name[:name.index(".", n)] for name in made
                      if name.startswith(encoder.labels) and "." in name[n:]}
    inside = made.get("labels", ())
    for name, value in moving:
        plain = base = name.replace(".", "_")
        while encoder.labels + plain in made or encoder.labels + plain in heads or plain in inside:
            counts[base] = counts.get(base, 1) + 1
            plain = f"{base}_{counts[base]}"
        made[encoder.labels + plain] = value
        doc.moved += 1
    return 0
