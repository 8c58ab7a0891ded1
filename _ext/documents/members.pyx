# The members of a document: which of them give a column, and all of them as fields.


cdef inline bint same(const lc_span *a, const uint8_t *p, size_t size) noexcept nogil:
    return a.size == size and memcmp(a.at, p, size) == 0


# Read the rows of one document. -1: out of memory.
cdef int read_document(DocumentReader d, const uint8_t *p, size_t size) noexcept nogil:
    cdef lc_object checked
    cdef int done = 0, i
    for i in range(3):
        d.found[i].rank = 2 * MOST_NAMES
        d.found[i].value.at = NULL
    d.n_fields = 0
    d.unescaped.size = 0
    if d.pairs and size and p[0] < PAIR_COUNT:
        done = read_pairs(d, p, size)
    else:
        # Keys with escapes are not longer than the document: their buffer stays where it is.
        if (wire_reserve(&d.unescaped, 2 * size + 8) == NULL
                or wire_reserve(&d.checked, size + SCAN_PAD) == NULL):
            return -1
        if copy_object(d.checked.data, p, size, &checked) == 0:
            done = read_object(d, checked.start, checked.close, False, NULL)
    if done < 0:
        return -1
    if done == 0:
        for i in range(3):
            d.found[i].value.at = NULL
        d.n_fields = 0
        if d.text and size:
            if append_repaired(&d.message.data, p, size) < 0 or end_text(&d.message, True) < 0:
                return -1
        elif end_text(&d.message, False) < 0:
            return -1
    elif add_message(d) < 0:
        return -1
    if add_time(d) < 0 or add_level(d) < 0:
        return -1
    return add_fields(d, done != 0)


# Take the members of an object. 1: it is one; 0: it is none; -1: out of memory.
#
# `inner`: it is the nested object. `prefix`: the name of the member that it is, when only names with a dot
# are looked for in it; NULL: every member is a field.
cdef int read_object(DocumentReader d, const uint8_t *p, const uint8_t *end, bint inner,
                     const lc_span *prefix) noexcept nogil:
    cdef lc_member m
    cdef lc_span key
    cdef const uint8_t *at = p
    cdef size_t before
    cdef int done
    m.value.at = NULL
    while True:
        done = next_member(&at, end, &m)
        if done <= 0:
            return done == 0
        key = m.key
        if m.escaped:
            before = d.unescaped.size
            if append_string(&d.unescaped, m.key.at, m.key.size) < 0:
                return -1
            key.at = d.unescaped.data + before
            key.size = d.unescaped.size - before
        take_member(d, &key, &m.value, inner, prefix)
        if prefix != NULL:
            continue
        if m.value.at[0] == c'{' and m.value.size >= 2:
            if not inner and d.nested.size and same(&key, d.nested.at, d.nested.size):
                done = read_object(d, m.value.at, m.value.at + m.value.size - 1, True, NULL)
                if done < 0:
                    return -1
                if done == 1:
                    continue
            elif is_prefix(d, &key):
                if read_object(d, m.value.at, m.value.at + m.value.size - 1, inner, &key) < 0:
                    return -1
        if d.want_fields and add_field(d, &key, &m.value, inner, False) < 0:
            return -1


# Whether a wanted name begins with this key and a dot.
cdef inline bint is_prefix(DocumentReader d, const lc_span *key) noexcept nogil:
    cdef int i, k
    for i in range(3):
        for k in range(d.wanted[i].n):
            if (<size_t> (d.wanted[i].dots[k]) == key.size
                    and memcmp(d.wanted[i].names[k].at, key.at, key.size) == 0):
                return True
    return False


# Keep the value of a member whose name is wanted. The last one of a name counts.
cdef inline void take_member(DocumentReader d, const lc_span *key, const lc_span *value, bint inner,
                             const lc_span *prefix) noexcept nogil:
    cdef const lc_span *name
    cdef size_t skip = 0
    cdef int i, k, rank
    cdef int64_t us
    if value.at[0] == c'n':
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
            if rank > d.found[i].rank:
                continue
            if i == 0 and not read_time(value, &us):
                continue
            if value.at[0] == c'{' and i == 1:
                continue
            # Objects under the name of the nested one are fields, not a message.
            if i == 2 and value.at[0] == c'{' and same(key, d.nested.at, d.nested.size):
                continue
            d.found[i].rank = rank
            d.found[i].value = value[0]
            d.found[i].pair = False


# -- the columns

cdef inline int add_time(DocumentReader d) noexcept nogil:
    cdef const lc_found *f = &d.found[0]
    cdef int64_t us = 0
    cdef bint valid = f.value.at != NULL
    if valid:
        valid = read_time_text(f.value.at, f.value.size, &us) if f.pair else read_time(&f.value, &us)
    if append_bytes(&d.times, <const uint8_t *> &us, 8) < 0:
        return -1
    return append_byte(&d.times_valid, valid)


# Append a value as text. -1: out of memory.
cdef inline int append_found(lc_wire *to, const lc_found *f) noexcept nogil:
    return append_bytes(to, f.value.at, f.value.size) if f.pair else append_value(to, &f.value)


# Levels are lower-case ASCII; numbers have the names that the reader was given.
cdef int add_level(DocumentReader d) noexcept nogil:
    cdef const lc_found *f = &d.found[1]
    cdef size_t before = d.level.data.size, i
    cdef uint8_t *p
    cdef int number
    if f.value.at == NULL:
        return end_text(&d.level, False)
    number = f.value.at[0] - c'0' if f.value.size == 1 and not f.pair else -1
    if 0 <= number < d.n_levels:
        if append_bytes(&d.level.data, d.levels[number].at, d.levels[number].size) < 0:
            return -1
        return end_text(&d.level, True)
    if append_found(&d.level.data, f) < 0:
        return -1
    p = d.level.data.data
    for i in range(before, d.level.data.size):
        if c'A' <= p[i] <= c'Z':
            p[i] |= 0x20
    return end_text(&d.level, True)


cdef int add_message(DocumentReader d) noexcept nogil:
    cdef const lc_found *f = &d.found[2]
    cdef int done
    if f.value.at == NULL:
        return end_text(&d.message, False)
    if f.value.at[0] == c'[' and not f.pair:
        done = add_lines(d, f.value.at + 1, f.value.at + f.value.size - 1)
        if done:
            return -1 if done < 0 else end_text(&d.message, done == 1)
    if append_found(&d.message.data, f) < 0:
        return -1
    return end_text(&d.message, True)


# Append the third elements of the lists in a list, in lines. 1; 2: the list is empty; 0: it is no such list;
# -1: out of memory.
cdef int add_lines(DocumentReader d, const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef size_t before = d.message.data.size
    cdef lc_span line, element
    cdef const uint8_t *inner
    cdef bint first = True
    cdef int _i
    if space_after(p, end) == end:
        return 2
    while next_element(&p, end, &line) and line.at[0] == c'[':
        inner = line.at + 1
        for _i in range(3):
            if not next_element(&inner, line.at + line.size - 1, &element):
                element.at = line.at
                break
        if element.at[0] != c'"':
            break
        if not first and append_byte(&d.message.data, c'\n') < 0:
            return -1
        if append_value(&d.message.data, &element) < 0:
            return -1
        first = False
        if p == end:
            return 1
    d.message.data.size = before
    return 0


# Read the next element of a list, and go to behind the comma. False: there is none.
cdef bint next_element(const uint8_t **at, const uint8_t *end, lc_span *element) noexcept nogil:
    cdef const uint8_t *p = space_after(at[0], end)
    cdef bint ignored = False
    if p >= end:
        return False
    element.at = p
    if p[0] == c'"':
        p = string_after(p, end, &ignored)
    elif p[0] == c'{' or p[0] == c'[':
        p = nested_after(p, end)
    else:
        while p < end and p[0] != c',' and p[0] > c' ':
            p += 1
    if p == NULL or p == element.at:
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
cdef int add_field(DocumentReader d, const lc_span *key, const lc_span *value, bint inner,
                   bint pair) noexcept nogil:
    cdef lc_field *f
    cdef uint64_t hash_ = 0
    cdef size_t i
    if d.n_fields >= PLAIN_KEYS:
        hash_ = xxh64_of(key.at, key.size, d.seed)
        if d.n_fields == PLAIN_KEYS and begin_table(d) < 0:
            return -1
        f = find_hashed(d, key, hash_)
    else:
        f = NULL
        for i in range(d.n_fields):
            if same(&field_at(d, i).key, key.at, key.size):
                f = field_at(d, i)
                break
    if f != NULL:
        if inner or not f.inner:
            f.value = value[0]
            f.inner = inner
            f.pair = pair
        return 0
    d.fields.size = d.n_fields * sizeof(lc_field)
    if wire_reserve(&d.fields, sizeof(lc_field)) == NULL:
        return -1
    f = field_at(d, d.n_fields)
    f.key = key[0]
    f.value = value[0]
    f.hash = hash_
    f.inner = inner
    f.pair = pair
    d.n_fields += 1
    if d.n_fields > PLAIN_KEYS:
        if 2 * d.n_fields > d.slots:
            return begin_table(d)
        put_hashed(d, d.n_fields - 1)
    return 0


cdef inline void put_hashed(DocumentReader d, size_t i) noexcept nogil:
    cdef uint32_t *table = <uint32_t *> d.table.data
    cdef size_t at = field_at(d, i).hash & (d.slots - 1)
    while table[at]:
        at = (at + 1) & (d.slots - 1)
    table[at] = <uint32_t> (i + 1)


cdef inline lc_field *find_hashed(DocumentReader d, const lc_span *key, uint64_t hash_) noexcept nogil:
    cdef const uint32_t *table = <const uint32_t *> d.table.data
    cdef size_t at = hash_ & (d.slots - 1)
    cdef lc_field *f
    while table[at]:
        f = field_at(d, table[at] - 1)
        if f.hash == hash_ and same(&f.key, key.at, key.size):
            return f
        at = (at + 1) & (d.slots - 1)
    return NULL


# Make a table of the fields so far, with room for as many again. -1: out of memory.
cdef int begin_table(DocumentReader d) noexcept nogil:
    cdef size_t i
    cdef lc_field *f
    d.slots = 64
    while d.slots < 4 * (d.n_fields + 1):
        d.slots *= 2
    d.table.size = 0
    if wire_reserve(&d.table, d.slots * 4) == NULL:
        return -1
    memset(d.table.data, 0, d.slots * 4)
    for i in range(d.n_fields):
        f = field_at(d, i)
        f.hash = xxh64_of(f.key.at, f.key.size, d.seed)
        put_hashed(d, i)
    return 0


# Write the fields of the document. -1: out of memory.
cdef int add_fields(DocumentReader d, bint valid) noexcept nogil:
    cdef lc_field *f
    cdef size_t i
    cdef bint null
    for i in range(d.n_fields):
        f = field_at(d, i)
        null = not f.pair and f.value.size == 4 and memcmp(f.value.at, b"null", 4) == 0
        if append_bytes(&d.keys.data, f.key.at, f.key.size) < 0 or end_text(&d.keys, True) < 0:
            return -1
        if not null:
            if f.pair:
                if append_bytes(&d.values.data, f.value.at, f.value.size) < 0:
                    return -1
            elif append_value(&d.values.data, &f.value) < 0:
                return -1
        if end_text(&d.values, not null) < 0:
            return -1
    if append_end(&d.field_ends, d.keys.valid.size) < 0:
        return -1
    return append_byte(&d.fields_valid, valid)


# -- blocks of pairs

# Read a block of pairs: a count, then length and bytes of each name and value. 1; 0: it is no such block; -1:
# out of memory.
cdef int read_pairs(DocumentReader d, const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef lc_span key, value
    cdef uint64_t count
    if size < 4:
        return 0
    count = lc_get32(p)
    p += 4
    while count:
        if not next_text(&p, end, &key) or not next_text(&p, end, &value):
            return 0
        take_pair(d, &key, &value)
        if d.want_fields and add_field(d, &key, &value, False, True) < 0:
            return -1
        count -= 1
    return 1 if p == end else 0


cdef inline bint next_text(const uint8_t **at, const uint8_t *end, lc_span *text) noexcept nogil:
    cdef const uint8_t *p = at[0]
    if end - p < 4 or <size_t> (end - p - 4) < lc_get32(p):
        return False
    text.size = lc_get32(p)
    text.at = p + 4
    at[0] = p + 4 + text.size
    return is_utf8(text.at, text.size)


cdef inline void take_pair(DocumentReader d, const lc_span *key, const lc_span *value) noexcept nogil:
    cdef int i, k
    cdef int64_t us
    for i in range(3):
        for k in range(d.wanted[i].n):
            if same(&d.wanted[i].names[k], key.at, key.size) and 2 * k <= d.found[i].rank:
                if i or read_time_text(value.at, value.size, &us):
                    d.found[i].rank = 2 * k
                    d.found[i].value = value[0]
                    d.found[i].pair = True
