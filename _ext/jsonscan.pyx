# The JSON scanner: is a body one JSON object, and where are the fields that can carry an id?
#
# The grammar is that of RFC 8259 with valid UTF-8, and without anything for which a real server refuses an
# event (and with it, for ever, its window): nesting beyond 1,000 levels and numbers beyond 1,000 characters
# (Logstash's parser), numbers that no double can hold (go-lumber). Escaped lone surrogates pass, as they do
# there, and so do equal keys, of which the last one counts.
#
# Most bodies are one flat object without escapes and in ASCII. While such a body is copied, its quotes become
# bits of a map, and scan_plain goes from bit to bit. All other bodies are for scan_object.

from libc.float cimport DBL_MAX
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod, strtol
from libc.string cimport memcmp, memcpy

from logclient._ext.jsontext cimport *


cdef enum:
    SCAN_DEPTH = 1000
    SCAN_DIGITS = 1000
    SCAN_WORDS = 16          # of 64 levels each
    MAP_LEAST = 64           # bytes of a body that is mapped while it is copied
    MAP_MOST = 8192
    MAP_WORDS = 128          # of 64 bytes each


cdef extern from "bits.h":
    void lc_clear(void *to, size_t n) noexcept nogil

cdef extern from "jsonscan.h":
    bint lc_copy_map(uint8_t *to, const uint8_t *from_, size_t n, uint64_t *quotes) noexcept nogil


# Return whether a number, well-formed and of SCAN_DIGITS characters at most, is too large for a double.
cdef bint number_overflows(const uint8_t *p, const uint8_t *end) noexcept nogil:
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
        p = digits_end(p + 1 + (p[1] == c'+' or p[1] == c'-'))
    if p == NULL or p - start > SCAN_DIGITS or large and number_overflows(start, p):
        return NULL
    return p


# The byte after a number, true, false or null; or NULL.
cdef const uint8_t *scalar_end(const uint8_t *p) noexcept nogil:
    if p[0] == c'-' or c'0' <= p[0] <= c'9':
        return number_end(p)
    if memcmp(p, b"true", 4) == 0 or memcmp(p, b"null", 4) == 0:
        return p + 4
    return p + 5 if memcmp(p, b"false", 5) == 0 else NULL


# Scan p[0:end-p]; end[0] must be 0 and SCAN_PAD bytes from end on readable. 0, or -1: not one object.
cdef int scan_object(const uint8_t *p, const uint8_t *end, lc_object *o) noexcept nogil:
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
    lc_clear(o, sizeof(lc_object))
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
cdef bint scan_plain(const uint8_t *p, size_t n, const uint64_t *quotes, lc_object *o) noexcept nogil:
    cdef lc_map m
    cdef const uint8_t *end = p + n
    cdef const uint8_t *k
    cdef lc_span *span
    cdef size_t size
    if p[0] != c'{' or p[1] != c'"':
        return False
    lc_clear(o, sizeof(lc_object))
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
cdef int copy_object(uint8_t *to, const uint8_t *source, size_t n, lc_object *o) noexcept nogil:
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
cdef int find_braces(uint8_t *p, size_t size, lc_object *o) noexcept nogil:
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
