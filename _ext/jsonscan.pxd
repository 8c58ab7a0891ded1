# The JSON scanner: is a body one JSON object, and where are the fields that can carry an id?
#
# The grammar is that of RFC 8259 with valid UTF-8, and without anything for which a real server refuses an
# event (and with it, for ever, its window): nesting beyond 1,000 levels and numbers beyond 1,000 characters
# (Logstash's parser), numbers that no double can hold (go-lumber). Escaped lone surrogates pass, as they do
# there, and so do equal keys, of which the last one counts.
#
# Most bodies are one flat object without escapes and in ASCII. While such a body is copied, its quotes become
# bits of a map, and scan_plain goes from bit to bit. All other bodies are for scan_object.
#
# No bounds are checked: the byte after the text is 0, which JSON allows nowhere, and SCAN_PAD bytes after the
# text may be read.

from libc.float cimport DBL_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod, strtol


cdef enum:
    SCAN_PAD = 64            # bytes that must be readable from the text's end on
    SCAN_DEPTH = 1000
    SCAN_DIGITS = 1000
    SCAN_WORDS = 16          # of 64 levels each
    MAP_LEAST = 64           # bytes of a body that is mapped while it is copied
    MAP_MOST = 8192
    MAP_WORDS = 128          # of 64 bytes each


cdef extern from "jsonscan.h":
    uint64_t lc_special(const uint8_t *p) noexcept nogil
    bint lc_copy_map(uint8_t *to, const uint8_t *from_, size_t n, uint64_t *quotes) noexcept nogil
    unsigned int lc_ctz64(uint64_t v) noexcept nogil


# Some bytes of a body; for a string, those between the quotes. NULL: there is no such value.
ctypedef struct lc_span:
    const uint8_t *at
    size_t size


ctypedef struct lc_object:
    const uint8_t *start     # the opening brace
    const uint8_t *close     # the closing brace
    bint empty
    bint has_metadata        # a key "@metadata" with any value
    bint flat_event          # a key "event" whose value is not an object
    lc_span metadata_id      # "@metadata": {"_id": ...}
    lc_span dotted_id        # "event.id": ...
    lc_span event_id         # "event": {"id": ...}
    lc_span request_id       # "request_id": ...
    lc_span uuid             # "uuid": ...


cdef inline int hex_value(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    return -1


# The number of four hex digits; -1: other characters.
cdef inline int hex4(const uint8_t *p) noexcept nogil:
    cdef int a = hex_value(p[0]), b = hex_value(p[1]), c = hex_value(p[2]), d = hex_value(p[3])
    return -1 if a < 0 or b < 0 or c < 0 or d < 0 else a << 12 | b << 8 | c << 4 | d


cdef inline bint is_space(uint8_t c) noexcept nogil:
    return c == c' ' or c == c'\n' or c == c'\r' or c == c'\t'


cdef inline const uint8_t *skip_space(const uint8_t *p) noexcept nogil:
    while p[0] <= 0x20 and is_space(p[0]):
        p += 1
    return p


# The byte after one character of UTF-8 beyond ASCII (RFC 3629: no surrogates, nothing overlong), or NULL.
cdef inline const uint8_t *utf8_end(const uint8_t *p) noexcept nogil:
    cdef uint8_t c = p[0]
    if c < 0xC2:
        return NULL
    cdef uint8_t d = p[1]
    if c < 0xE0:
        return p + 2 if d & 0xC0 == 0x80 else NULL
    if c < 0xF0:
        if (d & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80
                or (c == 0xE0 and d < 0xA0) or (c == 0xED and d > 0x9F)):
            return NULL
        return p + 3
    if (c > 0xF4 or d & 0xC0 != 0x80 or (c == 0xF0 and d < 0x90) or (c == 0xF4 and d > 0x8F)
            or p[2] & 0xC0 != 0x80 or p[3] & 0xC0 != 0x80):
        return NULL
    return p + 4


# 64 bytes of the text, and which of them end a run of plain characters.
ctypedef struct lc_block:
    const uint8_t *at
    uint64_t special


# Find the first special byte from p on; p never goes back.
cdef inline const uint8_t *next_special(lc_block *block, const uint8_t *p) noexcept nogil:
    cdef uint64_t special
    while True:
        while p - block.at >= 64:
            block.at += 64
            block.special = lc_special(block.at)
        special = block.special >> (p - block.at)
        if special:
            return p + lc_ctz64(special)
        p = block.at + 64


# Find the closing quote of a string from its first special byte on, or NULL. Sets escaped, never clears it.
cdef inline const uint8_t *string_rest(lc_block *block, const uint8_t *p, bint *escaped) noexcept nogil:
    cdef uint8_t c
    while True:
        c = p[0]
        if c == c'"':
            return p
        if c >= 0x80:
            p = utf8_end(p)
            if p == NULL:
                return NULL
        elif c == c'\\':
            escaped[0] = True
            c = p[1]
            if c == c'u':
                if hex4(p + 2) < 0:
                    return NULL
                p += 6
            elif (c == c'n' or c == c'"' or c == c'\\' or c == c't' or c == c'/' or c == c'r' or c == c'b'
                    or c == c'f'):
                p += 2
            else:
                return NULL
        else:
            return NULL
        p = next_special(block, p)


# Find the closing quote of the string whose first character is at p. Inline for strings without specials.
cdef inline const uint8_t *string_end(lc_block *block, const uint8_t *p, bint *escaped) noexcept nogil:
    p = next_special(block, p)
    return p if p[0] == c'"' else string_rest(block, p, escaped)


# Read a key and its colon, and go to the value. Returns the closing quote; NULL: p[0] is where it is wrong.
cdef inline const uint8_t *key_end(lc_block *block, const uint8_t **p, bint *escaped) noexcept nogil:
    cdef const uint8_t *quote
    escaped[0] = False
    if p[0][0] != c'"':
        return NULL
    quote = string_end(block, p[0] + 1, escaped)
    if quote == NULL:
        return NULL
    p[0] = skip_space(quote + 1)
    if p[0][0] != c':':
        return NULL
    p[0] = skip_space(p[0] + 1)
    return quote


# Note for a level whether it is in an object.
cdef inline void push_level(uint64_t *stack, uint32_t depth, bint in_object) noexcept nogil:
    cdef uint64_t bit = <uint64_t> 1 << (depth & 63)
    stack[depth >> 6] = (stack[depth >> 6] | bit) if in_object else (stack[depth >> 6] & ~bit)


# Return whether a number, well-formed and of SCAN_DIGITS characters at most, is too large for a double.
cdef inline bint number_overflows(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef char text[SCAN_DIGITS + 32]     # without the decimal point: which one strtod reads is a setting
    cdef int n = 0, fraction = 0
    cdef long exponent = 0
    cdef bint behind = False
    p += p[0] == c'-'
    while p < end and p[0] | 0x20 != c'e':
        if p[0] == c'.':
            behind = True
        else:
            text[n] = <char> p[0]
            n += 1
            fraction += behind
        p += 1
    if p < end:
        exponent = min(max(strtol(<const char *> p + 1, NULL, 10), -100000), 100000)
    snprintf(text + n, 32, b"e%ld", exponent - fraction)
    return strtod(text, NULL) > DBL_MAX


# The byte after some digits, or NULL.
cdef inline const uint8_t *digits_end(const uint8_t *p) noexcept nogil:
    cdef const uint8_t *start = p
    while c'0' <= p[0] <= c'9':
        p += 1
    return p if p != start else NULL


# The byte after a number, or NULL.
cdef inline const uint8_t *number_end(const uint8_t *p) noexcept nogil:
    cdef const uint8_t *start = p
    cdef bint large
    p += p[0] == c'-'
    cdef const uint8_t *digits = p
    p = p + 1 if p[0] == c'0' else digits_end(p)
    large = p - digits > 308
    if p != NULL and p[0] == c'.':
        p = digits_end(p + 1)
    if p != NULL and p[0] | 0x20 == c'e':
        large = True
        p += 1
        p = digits_end(p + (p[0] == c'+' or p[0] == c'-'))
    if p == NULL or p - start > SCAN_DIGITS or large and number_overflows(start, p):
        return NULL
    return p


# The byte after a number, true, false or null; or NULL.
cdef inline const uint8_t *scalar_end(const uint8_t *p) noexcept nogil:
    if p[0] == c'-' or c'0' <= p[0] <= c'9':
        return number_end(p)
    if memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0:
        return p + 4
    return p + 5 if memcmp(p, b"false", 5) == 0 else NULL


# Return whether the string p[0:size], with its escapes undone, equals these ASCII letters.
cdef inline bint key_is(const uint8_t *p, size_t size, bint escaped, const char *name,
                        size_t length) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef size_t i = 0
    cdef int c
    if not escaped:
        return size == length and memcmp(p, name, length) == 0
    while p < end:
        c = p[0]
        if c != c'\\':
            p += 1
        elif p[1] == c'u':
            c = hex4(p + 2)
            p += 6
        else:
            return False         # of the short escapes none spells a letter of these names
        if i == length or c != name[i]:
            return False
        i += 1
    return i == length


# -- unchecked text, with nothing readable behind its end -------------------------------------------

# One member of an object.
ctypedef struct lc_member:
    lc_span key
    bint escaped                 # the key contains a backslash
    lc_span value                # with the quotes of a string


# The byte after the string that begins at p, or NULL. Sets escaped, never clears it.
cdef inline const uint8_t *string_after(const uint8_t *p, const uint8_t *end, bint *escaped) noexcept nogil:
    p += 1
    while p < end:
        if p[0] == c'"':
            return p + 1
        if p[0] == c'\\':
            escaped[0] = True
            p += 1
        p += 1
    return NULL


cdef inline const uint8_t *space_after(const uint8_t *p, const uint8_t *end) noexcept nogil:
    while p < end and is_space(p[0]):
        p += 1
    return p


# The byte after the list or object that begins at p, or NULL.
cdef inline const uint8_t *nested_after(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint32_t depth = 0
    cdef bint escaped = False
    while p < end:
        if p[0] == c'"':
            p = string_after(p, end, &escaped)
            if p == NULL:
                return NULL
            continue
        if p[0] == c'{' or p[0] == c'[':
            depth += 1
        elif p[0] == c'}' or p[0] == c']':
            depth -= 1
            if depth == 0:
                return p + 1
        p += 1
    return NULL


# The byte after the value that begins at p, or NULL. A number or a word ends at a comma or a space.
cdef inline const uint8_t *value_after(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *start = p
    cdef bint ignored = False
    if p[0] == c'"':
        return string_after(p, end, &ignored)
    if p[0] == c'{' or p[0] == c'[':
        return nested_after(p, end)
    while p < end and p[0] != c',' and p[0] > c' ':
        p += 1
    return p if p != start else NULL


# Read the next member of an object. Begin with at[0] at its opening brace and m.value.at NULL; `end` is its
# closing brace. Values are not checked. 1: a member; 0: there are no more; -1: not an object.
cdef inline int next_member(const uint8_t **at, const uint8_t *end, lc_member *m) noexcept nogil:
    cdef bint first = m.value.at == NULL
    cdef const uint8_t *p = at[0]
    if not first:
        if p == end:
            return 0
        if p[0] != c',':
            return -1
    p = space_after(p + 1, end)
    if p == end:
        return 0 if first else -1
    if p[0] != c'"':
        return -1
    m.key.at = p + 1
    m.escaped = False
    p = string_after(p, end, &m.escaped)
    if p == NULL:
        return -1
    m.key.size = p - 1 - m.key.at
    p = space_after(p, end)
    if p == end or p[0] != c':':
        return -1
    p = space_after(p + 1, end)
    if p == end:
        return -1
    m.value.at = p
    p = value_after(p, end)
    if p == NULL:
        return -1
    m.value.size = p - m.value.at
    at[0] = space_after(p, end)
    return 1


# Skip this text. False: another one is there.
cdef inline bint skip_text(const uint8_t **p, const uint8_t *end, const char *text, size_t n) noexcept nogil:
    if <size_t> (end - p[0]) < n or memcmp(p[0], text, n) != 0:
        return False
    p[0] += n
    return True


# Read an integer of at most `digits` digits (18 fit), without leading zeros. False: there is none.
cdef inline bint read_integer(const uint8_t **p, const uint8_t *end, int digits,
                              int64_t *value) noexcept nogil:
    cdef const uint8_t *q = p[0]
    cdef bint negative = q < end and q[0] == c'-'
    cdef int64_t v = 0
    q += negative
    cdef const uint8_t *first = q
    while q < end and c'0' <= q[0] <= c'9' and q - first <= digits:
        v = v * 10 + q[0] - c'0'
        q += 1
    if q == first or q - first > digits or (first[0] == c'0' and (q - first > 1 or negative)):
        return False
    p[0] = q
    value[0] = -v if negative else v
    return True


# -- the checking pass -----------------------------------------------------------------------------

# Scan p[0:end-p]; end[0] must be 0 and SCAN_PAD bytes from end on readable. 0, or -1: not one object.
cdef inline int scan_object(const uint8_t *p, const uint8_t *end, lc_object *o) noexcept nogil:
    cdef lc_block block
    cdef uint64_t stack[SCAN_WORDS]             # a bit for each level: is it an object?
    cdef uint32_t depth = 1
    cdef bint in_object = True, escaped
    cdef int inside = 0                           # of level 2: 1 in "@metadata", 2 in "event"
    cdef int key = 0
    cdef lc_span *span = NULL                     # the place of the next value
    cdef lc_span *open_span = NULL                # ... when it is an object or a list
    cdef uint32_t open_depth = 0
    cdef const uint8_t *k
    cdef const uint8_t *q
    cdef uint8_t c
    memset(o, 0, sizeof(lc_object))
    p = skip_space(p)
    if p[0] != c'{':
        return -1
    o.start = p
    stack[0] = 0
    block.at = p
    block.special = lc_special(p)
    p = skip_space(p + 1)
    if p[0] == c'}':
        o.empty = True
        o.close = p
        return 0 if skip_space(p + 1) == end else -1
    while True:
        # a member of an object, or an element of a list
        if in_object:
            k = p + 1
            q = key_end(&block, &p, &escaped)
            if q == NULL:
                return -1
            if depth == 1:
                key = 0
                if escaped or k[0] == c'@' or k[0] == c'e' or k[0] == c'r' or k[0] == c'u':
                    if key_is(k, q - k, escaped, b"@metadata", 9):
                        key = 1
                        o.has_metadata = True
                        o.metadata_id.at = NULL
                    elif key_is(k, q - k, escaped, b"event.id", 8):
                        span = &o.dotted_id
                    elif key_is(k, q - k, escaped, b"event", 5):
                        key = 2
                        o.event_id.at = NULL
                        o.flat_event = p[0] != c'{'
                    elif key_is(k, q - k, escaped, b"request_id", 10):
                        span = &o.request_id
                    elif key_is(k, q - k, escaped, b"uuid", 4):
                        span = &o.uuid
            elif depth == 2 and inside:
                if inside == 1:
                    if key_is(k, q - k, escaped, b"_id", 3):
                        span = &o.metadata_id
                elif key_is(k, q - k, escaped, b"id", 2):
                    span = &o.event_id
        # its value
        c = p[0]
        k = p
        if c == c'"':
            escaped = False
            q = string_end(&block, p + 1, &escaped)
            if q == NULL:
                return -1
            p = q + 1
            # the common case, before the general one below
            if span == NULL and in_object and p[0] == c',' and p[1] == c'"':
                p += 1
                continue
        elif c == c'{' or c == c'[':
            q = skip_space(p + 1)
            if depth == SCAN_DEPTH:
                return -1
            if q[0] == (c'}' if c == c'{' else c']'):
                p = q + 1
            else:
                if span != NULL:
                    span.at = p
                    open_span = span
                    open_depth = depth
                    span = NULL
                if depth == 1:
                    inside = key if c == c'{' else 0
                push_level(stack, depth, in_object)
                depth += 1
                in_object = c == c'{'
                p = q
                continue
        else:
            p = scalar_end(p)
            if p == NULL:
                return -1
        if span != NULL:
            span.at = k + (c == c'"')
            span.size = p - k - 2 * (c == c'"')
            span = NULL
        # after it: the next one, or the end of one or more levels
        while True:
            p = skip_space(p)
            c = p[0]
            p += 1
            if c == c',':
                p = skip_space(p)
                break
            if c != (c'}' if in_object else c']'):
                return -1
            depth -= 1
            if depth == 0:
                o.close = p - 1
                return 0 if skip_space(p) == end else -1
            in_object = (stack[depth >> 6] >> (depth & 63)) & 1
            if open_span != NULL and depth == open_depth:
                open_span.size = p - open_span.at
                open_span = NULL


# The quotes of a text as bits, and the position in them.
ctypedef struct lc_map:
    const uint8_t *at            # the text of `bits`
    const uint64_t *word
    const uint64_t *last
    uint64_t bits                # those not yet taken


# Take the next quote; NULL: there is none.
cdef inline const uint8_t *take_quote(lc_map *m) noexcept nogil:
    while m.bits == 0:
        if m.word == m.last:
            return NULL
        m.word += 1
        m.at += 64
        m.bits = m.word[0]
    cdef const uint8_t *p = m.at + lc_ctz64(m.bits)
    m.bits &= m.bits - 1
    return p


# Scan p[0:n], copied and mapped, in which only quotes end runs of plain characters, with the same bytes after
# its end as for scan_object. True: a flat object without an id that Lumberjack knows; False: ask scan_object.
cdef inline bint scan_plain(const uint8_t *p, size_t n, const uint64_t *quotes, lc_object *o) noexcept nogil:
    cdef lc_map m
    cdef const uint8_t *end = p + n
    cdef const uint8_t *k
    cdef lc_span *span
    cdef size_t size
    if p[0] != c'{' or p[1] != c'"':
        return False
    memset(o, 0, sizeof(lc_object))
    o.start = p
    m.at = p
    m.word = quotes
    m.last = quotes + ((n - 1) >> 6)
    m.bits = quotes[0]
    while True:
        # Between two quotes taken every byte was looked at: the next of the map is the one expected.
        k = take_quote(&m)
        p = take_quote(&m)
        if p == NULL or p[1] != c':':
            return False
        size = p - k - 1
        if (size == 9 and memcmp(k + 1, b"@metadata", 9) == 0
                or size == 8 and memcmp(k + 1, b"event.id", 8) == 0):
            return False
        span = NULL
        if size == 10 and memcmp(k + 1, b"request_id", 10) == 0:
            span = &o.request_id
        elif size == 4 and memcmp(k + 1, b"uuid", 4) == 0:
            span = &o.uuid
        elif size == 5 and memcmp(k + 1, b"event", 5) == 0:
            o.flat_event = True
        p += 2
        if p[0] == c' ':
            p += 1
        k = p
        if p[0] == c'"':
            take_quote(&m)
            p = take_quote(&m)
            if p == NULL:
                return False
            p += 1
        else:
            p = scalar_end(p)
            if p == NULL:
                return False
        if span != NULL:
            span.at = k + (k[0] == c'"')
            span.size = p - k - 2 * (k[0] == c'"')
        if p[0] != c',':
            o.close = p
            return p[0] == c'}' and p + 1 == end
        p += 1
        if p[0] == c' ':
            p += 1
        if p[0] != c'"':
            return False


# Copy a body to `to`, with SCAN_PAD bytes of room behind it, and scan it there as scan_object does.
cdef inline int copy_object(uint8_t *to, const uint8_t *source, size_t n, lc_object *o) noexcept nogil:
    cdef uint64_t quotes[MAP_WORDS]
    cdef bint plain = False
    if MAP_LEAST <= n <= MAP_MOST:
        plain = lc_copy_map(to, source, n, quotes)
    else:
        memcpy(to, source, n)
    to[n] = 0
    if plain and scan_plain(to, n, quotes, o):
        return 0
    return scan_object(to, to + n, o)


# Find the outer braces of p[0:size], which has room for one more byte. 0, or -1: there are none.
cdef inline int find_braces(uint8_t *p, size_t size, lc_object *o) noexcept nogil:
    cdef const uint8_t *close = p + size - 1
    p[size] = 0
    o.start = skip_space(p)
    while close > o.start and is_space(close[0]):
        close -= 1
    o.close = close
    if close <= o.start or o.start[0] != c'{' or close[0] != c'}':
        return -1
    o.empty = skip_space(o.start + 1) == close
    return 0


# The user's own id: the first of "@metadata"._id, "event.id" and "event".id.
cdef inline lc_span *user_id(lc_object *o) noexcept nogil:
    if o.metadata_id.at != NULL:
        return &o.metadata_id
    if o.dotted_id.at != NULL:
        return &o.dotted_id
    return &o.event_id


# The other id that a reader finds when "@metadata" is gone, or NULL.
cdef inline const lc_span *second_id(const lc_object *o) noexcept nogil:
    cdef const lc_span *own = &o.dotted_id if o.dotted_id.at != NULL else &o.event_id
    if o.metadata_id.at == NULL or own.at == NULL:
        return NULL
    if own.size == o.metadata_id.size and memcmp(own.at, o.metadata_id.at, own.size) == 0:
        return NULL
    return own


from libc.string cimport memcmp, memcpy, memset
