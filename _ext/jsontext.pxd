# JSON text, byte by byte, for the scanner (jsonscan.pyx) and for others that read JSON.
#
# No bounds are checked: the byte after the text is 0, which JSON allows nowhere, and SCAN_PAD bytes after the
# text may be read.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from logclient._ext.codec cimport lc_span


cdef extern from "jsonscan.h":
    uint64_t lc_special(const uint8_t *p) noexcept nogil
    unsigned int lc_ctz64(uint64_t v) noexcept nogil


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
        if d & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80 or (c == 0xE0 and d < 0xA0) or (c == 0xED and d > 0x9F):
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
    while q < end and c'0' <= q[0] <= c'9' and q - first < digits:
        v = v * 10 + q[0] - c'0'
        q += 1
    if q == first or (q < end and c'0' <= q[0] <= c'9') or (first[0] == c'0' and (q - first > 1 or negative)):
        return False
    p[0] = q
    value[0] = -v if negative else v
    return True
