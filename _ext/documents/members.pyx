# The members of a document: which of them give a column, and all of them as fields.


cdef inline bint same(const lc_span *a, const uint8_t *p, size_t size) noexcept nogil:
    return a.size == size and memcmp(a.at, p, size) == 0


# Read the rows of one document.
cdef void read_document(DocumentReader d, const uint8_t *p, size_t size) noexcept nogil:
    cdef lc_object checked
    cdef bint valid = False
    forget_found(d)
    d.unescaped.size = 0
    # Keys with escapes are not longer than the document: their buffer stays where it is.
    if room_for(d, &d.unescaped, 2 * size + 8) == NULL or room_for(d, &d.checked, size + SCAN_PAD) == NULL:
        return
    cdef bint is_object = copy_object(d.checked.data, p, size, &checked) == 0
    p = d.checked.data
    if d.pairs and size and p[0] < PAIR_COUNT:
        valid = read_pairs(d, p, size)
    elif is_object:
        valid = read_object(d, checked.start, checked.close, False, NULL)
    if valid:
        add_message(d)
    else:
        forget_found(d)
        if d.text:
            append_repaired(d, &d.texts[MESSAGES].data, p, size)
        end_text(d, &d.texts[MESSAGES], d.text and size > 0)
    add_time(d)
    add_level(d)
    add_fields(d, valid)


cdef void forget_found(DocumentReader d) noexcept nogil:
    cdef int i
    for i in range(3):
        d.ranks[i] = 2 * MOST_NAMES
        d.found[i].text.at = NULL
    d.n_fields = 0


# Take the members of an object, unless it is none.
#
# `inner`: it is the nested object. `prefix`: the name of the member that it is, when only names with a dot
# are looked for in it; NULL: every member is a field.
cdef bint read_object(DocumentReader d, const uint8_t *p, const uint8_t *end, bint inner,
                      const lc_span *prefix) noexcept nogil:
    cdef lc_member m
    cdef lc_value value
    cdef lc_span key
    cdef const uint8_t *at = p
    cdef size_t before
    cdef int more
    m.value.at = NULL
    value.pair = False
    while True:
        more = next_member(&at, end, &m)
        if more <= 0:
            return more == 0
        key = m.key
        if m.escaped:
            before = d.unescaped.size
            append_string(d, &d.unescaped, m.key.at, m.key.size)
            key.at = d.unescaped.data + before
            key.size = d.unescaped.size - before
        value.text = m.value
        take_value(d, &key, &value, inner, prefix)
        if prefix != NULL:
            continue
        if m.value.at[0] == c'{' and m.value.size >= 2:
            if not inner and d.nested.size and same(&key, d.nested.at, d.nested.size):
                if read_object(d, m.value.at, m.value.at + m.value.size - 1, True, NULL):
                    continue
            elif is_prefix(d, &key):
                read_object(d, m.value.at, m.value.at + m.value.size - 1, inner, &key)
        if d.want_fields:
            add_field(d, &key, &value, inner)


# Whether a wanted name begins with this key and a dot.
cdef inline bint is_prefix(DocumentReader d, const lc_span *key) noexcept nogil:
    cdef int i, k
    for i in range(3):
        for k in range(d.wanted[i].n):
            if (<size_t> (d.wanted[i].dots[k]) == key.size
                    and memcmp(d.wanted[i].names[k].at, key.at, key.size) == 0):
                return True
    return False


# Keep a value whose name is wanted. The last one of a name counts.
cdef inline void take_value(DocumentReader d, const lc_span *key, const lc_value *value, bint inner,
                            const lc_span *prefix) noexcept nogil:
    cdef const lc_span *name
    cdef size_t skip = 0
    cdef int i, k, rank
    cdef int64_t us
    cdef bint braces = not value.pair and value.text.at[0] == c'{'
    if not value.pair and value.text.at[0] == c'n':
        return                   # null
    if prefix != NULL:
        skip = prefix.size + 1
    for i in range(3):
        for k in range(d.wanted[i].n):
            name = &d.wanted[i].names[k]
            if name.size != key.size + skip or memcmp(name.at + skip, key.at, key.size) != 0:
                continue
            if skip and (d.wanted[i].dots[k] != <Py_ssize_t> prefix.size
                         or memcmp(name.at, prefix.at, prefix.size) != 0):
                continue
            rank = 2 * k + (not inner)
            if rank > d.ranks[i]:
                continue
            if i == 0 and not read_time(value, &us):
                continue
            # Objects under the name of the nested one are fields, not a message.
            if braces and (i == 1 or i == 2 and same(key, d.nested.at, d.nested.size)):
                continue
            d.ranks[i] = rank
            d.found[i] = value[0]


# -- the columns

cdef inline void add_time(DocumentReader d) noexcept nogil:
    cdef int64_t us = 0
    cdef bint valid = d.found[0].text.at != NULL and read_time(&d.found[0], &us)
    append_bytes(d, &d.times, &us, 8)
    append_byte(d, &d.times_valid, valid)


# Levels are lower-case ASCII; numbers have the names that the reader was given.
cdef void add_level(DocumentReader d) noexcept nogil:
    cdef const lc_value *v = &d.found[1]
    cdef size_t before = d.texts[LEVELS].data.size, i
    cdef uint8_t *p
    if v.text.at == NULL:
        end_text(d, &d.texts[LEVELS], False)
        return
    cdef int number = v.text.at[0] - c'0' if v.text.size == 1 and not v.pair else -1
    if 0 <= number < d.n_levels:
        append_bytes(d, &d.texts[LEVELS].data, d.levels[number].at, d.levels[number].size)
    else:
        append_value(d, &d.texts[LEVELS].data, v)
        p = d.texts[LEVELS].data.data
        for i in range(before, d.texts[LEVELS].data.size):
            if c'A' <= p[i] <= c'Z':
                p[i] |= 0x20
    end_text(d, &d.texts[LEVELS], True)


cdef void add_message(DocumentReader d) noexcept nogil:
    cdef const lc_value *v = &d.found[2]
    cdef int done = 0
    if v.text.at != NULL:
        if v.text.at[0] == c'[' and not v.pair:
            done = add_lines(d, v.text.at + 1, v.text.at + v.text.size - 1)
        if done == 0:
            append_value(d, &d.texts[MESSAGES].data, v)
    end_text(d, &d.texts[MESSAGES], v.text.at != NULL and done != 2)


# Append the third elements of the lists in a list, in lines. 1; 2: the list is empty; 0: it is no such list.
cdef int add_lines(DocumentReader d, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef size_t before = d.texts[MESSAGES].data.size
    cdef lc_span line
    cdef lc_value element
    cdef const uint8_t *inner
    cdef bint first = True
    cdef int _i
    element.pair = False
    if space_after(p, end) == end:
        return 2
    while next_element(&p, end, &line) and line.at[0] == c'[':
        inner = line.at + 1
        for _i in range(3):
            if not next_element(&inner, line.at + line.size - 1, &element.text):
                element.text.at = line.at
                break
        if element.text.at[0] != c'"':
            break
        if not first:
            append_byte(d, &d.texts[MESSAGES].data, c'\n')
        append_value(d, &d.texts[MESSAGES].data, &element)
        first = False
        if p == end:
            return 1
    d.texts[MESSAGES].data.size = before
    return 0


# Read the next element of a list, and go to behind the comma. False: there is none.
cdef bint next_element(const uint8_t **at, const uint8_t *end, lc_span *element) noexcept nogil:
    cdef const uint8_t *p = space_after(at[0], end)
    if p >= end:
        return False
    element.at = p
    p = value_after(p, end)
    if p == NULL:
        return False
    element.size = p - element.at
    p = space_after(p, end)
    if p < end:
        if p[0] != c',':
            return False
        p += 1
    at[0] = p
    return True


# -- the fields

cdef inline lc_field *field_at(DocumentReader d, size_t i) noexcept nogil:
    return <lc_field *> d.fields.data + i


# Take a field. Of equal names the last one counts, and one inside the nested object before one outside.
cdef void add_field(DocumentReader d, const lc_span *key, const lc_value *value, bint inner) noexcept nogil:
    cdef lc_field *f = NULL
    cdef uint32_t *slot = NULL
    cdef uint64_t hash_ = 0
    cdef size_t i
    if d.n_fields >= PLAIN_KEYS:
        hash_ = xxh64_of(key.at, key.size, d.seed)
        if d.n_fields == PLAIN_KEYS:
            begin_table(d)
        if d.failed:
            return
        slot = slot_of(d, key, hash_)
        if slot[0]:
            f = field_at(d, slot[0] - 1)
    else:
        for i in range(d.n_fields):
            if same(&field_at(d, i).key, key.at, key.size):
                f = field_at(d, i)
                break
    if f != NULL:
        if inner or not f.inner:
            f.value = value[0]
            f.inner = inner
        return
    d.fields.size = d.n_fields * sizeof(lc_field)
    if room_for(d, &d.fields, sizeof(lc_field)) == NULL:
        return
    f = field_at(d, d.n_fields)
    f.key = key[0]
    f.value = value[0]
    f.hash = hash_
    f.inner = inner
    d.n_fields += 1
    if d.n_fields > PLAIN_KEYS:
        slot[0] = <uint32_t> d.n_fields
        if 2 * d.n_fields > d.slots:
            begin_table(d)


# The slot of the field with this name, or the empty one where it belongs.
cdef inline uint32_t *slot_of(DocumentReader d, const lc_span *key, uint64_t hash_) noexcept nogil:
    cdef uint32_t *table = <uint32_t *> d.table.data
    cdef size_t at = hash_ & (d.slots - 1)
    cdef lc_field *f
    while table[at]:
        f = field_at(d, table[at] - 1)
        if f.hash == hash_ and same(&f.key, key.at, key.size):
            break
        at = (at + 1) & (d.slots - 1)
    return table + at


# Make a table of the fields so far, with room for as many again.
cdef void begin_table(DocumentReader d) noexcept nogil:
    cdef size_t i, slots = 64
    cdef lc_field *f
    while slots < 4 * (d.n_fields + 1):
        slots *= 2
    d.table.size = 0
    if room_for(d, &d.table, slots * 4) == NULL:
        return
    d.slots = slots
    memset(d.table.data, 0, slots * 4)
    for i in range(d.n_fields):
        f = field_at(d, i)
        f.hash = xxh64_of(f.key.at, f.key.size, d.seed)
        slot_of(d, &f.key, f.hash)[0] = <uint32_t> (i + 1)


# Write the fields of the document.
cdef void add_fields(DocumentReader d, bint valid) noexcept nogil:
    cdef lc_field *f
    cdef size_t i
    cdef bint null
    for i in range(d.n_fields):
        f = field_at(d, i)
        null = not f.value.pair and f.value.text.size == 4 and memcmp(f.value.text.at, b"null", 4) == 0
        append_bytes(d, &d.texts[KEYS].data, f.key.at, f.key.size)
        end_text(d, &d.texts[KEYS], True)
        if not null:
            append_value(d, &d.texts[VALUES].data, &f.value)
        end_text(d, &d.texts[VALUES], not null)
    append_end(d, &d.field_ends, d.texts[KEYS].valid.size)
    append_byte(d, &d.fields_valid, valid)


# -- blocks of pairs

# Read a block of pairs: a count, then length and bytes of each name and value. False: it is no such block.
cdef bint read_pairs(DocumentReader d, const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef lc_span key
    cdef lc_value value
    if size < 4:
        return False
    cdef uint64_t count = lc_get32(p)
    p += 4
    value.pair = True
    while count:
        if not next_text(&p, end, &key) or not next_text(&p, end, &value.text):
            return False
        take_value(d, &key, &value, True, NULL)
        if d.want_fields:
            add_field(d, &key, &value, False)
        count -= 1
    return p == end


cdef inline bint next_text(const uint8_t **at, const uint8_t *end, lc_span *text) noexcept nogil:
    cdef const uint8_t *p = at[0]
    if end - p < 4 or <size_t> (end - p - 4) < lc_get32(p):
        return False
    text.size = lc_get32(p)
    text.at = p + 4
    at[0] = p + 4 + text.size
    return is_utf8(text.at, text.size)
