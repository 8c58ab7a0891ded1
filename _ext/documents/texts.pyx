# Columns of texts, and the reading of JSON strings, numbers and times.


cdef void forget_wire(lc_wire *w) noexcept nogil:
    free(w.data)
    memset(w, 0, sizeof(lc_wire))


cdef memoryview take_wire(lc_wire *w, size_t item, char code):
    cdef memoryview column = make_column(<void **> &w.data, w.size // item, item, code)
    memset(w, 0, sizeof(lc_wire))
    return column


cdef tuple take_texts(lc_texts *t):
    return take_wire(&t.data, 1, c'B'), take_wire(&t.ends, 4, c'i'), take_wire(&t.valid, 1, c'B')


# Room for `size` bytes; NULL when memory is out.
cdef inline uint8_t *room_for(DocumentReader d, lc_wire *to, size_t size) noexcept nogil:
    cdef uint8_t *room = NULL if d.failed else wire_reserve(to, size)
    d.failed = room == NULL
    return room


cdef inline void append_bytes(DocumentReader d, lc_wire *to, const void *p, size_t size) noexcept nogil:
    if size == 0:
        return                   # an empty wire has no memory
    cdef uint8_t *room = room_for(d, to, size)
    if room != NULL:
        memcpy(room, p, size)
        to.size += size


cdef inline void append_byte(DocumentReader d, lc_wire *to, uint8_t value) noexcept nogil:
    append_bytes(d, to, &value, 1)


cdef inline void append_end(DocumentReader d, lc_wire *to, size_t end) noexcept nogil:
    cdef int32_t value = <int32_t> end
    append_bytes(d, to, &value, 4)


# End the text of a row, whose bytes are in t.data.
cdef inline void end_text(DocumentReader d, lc_texts *t, bint valid) noexcept nogil:
    append_end(d, &t.ends, t.data.size)
    append_byte(d, &t.valid, valid)


# Whether text is UTF-8. Behind it is what may be read, and at the end of all a 0.
cdef bint is_utf8(const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef uint64_t word
    while p != NULL and p < end:
        if end - p >= 8:
            memcpy(&word, p, 8)
            if word & 0x8080808080808080ULL == 0:
                p += 8
                continue
        p = p + 1 if p[0] < 0x80 else utf8_end(p)
    return p == end


# Append any bytes, with a 0 behind them, as text: each byte that is not part of a character of UTF-8 becomes
# U+FFFD.
cdef void append_repaired(DocumentReader d, lc_wire *to, const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef const uint8_t *after
    if is_utf8(p, size):
        append_bytes(d, to, p, size)
        return
    while p < end:
        after = p + 1 if p[0] < 0x80 else utf8_end(p)
        if after != NULL:
            append_bytes(d, to, p, after - p)
            p = after
        else:
            append_bytes(d, to, b"\xef\xbf\xbd", 3)
            p += 1


# The letters of escapes, and the characters that they stand for.
cdef const char *ESCAPES = b'"\\/bfnrt'
cdef const char *ESCAPED = b'"\\/\b\f\n\r\t'


# Append the characters between the quotes of a string, with escapes undone. A lone surrogate, and an escape
# that JSON does not have, becomes U+FFFD. The result is not longer, but for such.
cdef void append_string(DocumentReader d, lc_wire *to, const uint8_t *p, size_t size) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef const uint8_t *slash = <const uint8_t *> memchr(p, c'\\', size) if size else NULL
    cdef const char *letter
    cdef int c, low, surrogate = 0
    if slash == NULL:
        append_bytes(d, to, p, size)
        return
    # A wrong escape has at least two bytes: they become U+FFFD, three bytes, and the second character.
    cdef uint8_t *out = room_for(d, to, 2 * size + 4)
    if out == NULL:
        return
    while p < end:
        if slash == NULL:
            slash = end
        memcpy(out, p, slash - p)
        out += slash - p
        p = slash
        if p == end:
            break
        c = 0xFFFD
        if end - p < 2:
            p += 1
        elif p[1] == c'u':
            c = hex4(p + 2) if end - p >= 6 else -1
            p += 6 if c >= 0 else 2
            if 0xD800 <= c < 0xDC00 and end - p >= 6 and p[0] == c'\\' and p[1] == c'u':
                low = hex4(p + 2)
                if 0xDC00 <= low < 0xE000:
                    c = 0x10000 + ((c - 0xD800) << 10) + low - 0xDC00
                    p += 6
            if c < 0:
                c = 0xFFFD
        else:
            letter = <const char *> memchr(ESCAPES, p[1], 8)
            if letter != NULL:
                c = ESCAPED[letter - ESCAPES]
            p += 1 if letter == NULL else 2
        if c < 0x80:
            out[0] = <uint8_t> c
            out += 1
        else:
            out = lc_put_wide(out, <uint32_t> c, &surrogate)     # which it makes U+FFFD
        slash = <const uint8_t *> memchr(p, c'\\', end - p) if p < end else NULL
    to.size = out - to.data


# Append a value as text: a string without its quotes, anything else as it stands.
cdef inline void append_value(DocumentReader d, lc_wire *to, const lc_value *v) noexcept nogil:
    if not v.pair and v.text.size >= 2 and v.text.at[0] == c'"':
        append_string(d, to, v.text.at + 1, v.text.size - 2)
    else:
        append_bytes(d, to, v.text.at, v.text.size)


# Read exactly `digits` digits; -1: there are other characters.
cdef inline int64_t read_digits(const uint8_t *p, int digits) noexcept nogil:
    cdef int64_t value = 0
    cdef int i
    for i in range(digits):
        if not c'0' <= p[i] <= c'9':
            return -1
        value = value * 10 + p[i] - c'0'
    return value


# The days from 1970 to a date of the Gregorian calendar.
cdef inline int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    cdef int64_t y = year - (month <= 2)
    cdef int64_t era = (y if y >= 0 else y - 399) // 400
    cdef int64_t of_era = y - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int64_t month_days(int64_t year, int64_t month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


# Read a time as in RFC 3339 as microseconds since 1970; further digits are cut. Without an offset it is UTC.
cdef bint read_time_text(const uint8_t *p, size_t size, int64_t *us) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef int64_t year, month, day, hour, minute, second, fraction = 0, scale = 100000, offset = 0, h, m
    if size < 19 or p[4] != c'-' or p[7] != c'-' or p[13] != c':' or p[16] != c':':
        return False
    if p[10] != c'T' and p[10] != c't' and p[10] != c' ':
        return False
    year, month, day = read_digits(p, 4), read_digits(p + 5, 2), read_digits(p + 8, 2)
    hour, minute, second = read_digits(p + 11, 2), read_digits(p + 14, 2), read_digits(p + 17, 2)
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= month_days(year, month):
        return False
    if not 0 <= hour <= 23 or not 0 <= minute <= 59 or not 0 <= second <= 60:
        return False
    p += 19
    if p < end and (p[0] == c'.' or p[0] == c','):
        p += 1
        if p == end or not c'0' <= p[0] <= c'9':
            return False
        while p < end and c'0' <= p[0] <= c'9':
            fraction += (p[0] - c'0') * scale
            scale //= 10
            p += 1
    if p < end:
        if p[0] == c'Z' or p[0] == c'z':
            p += 1
        elif p[0] == c'+' or p[0] == c'-':
            if end - p != 6 and end - p != 5 or end - p == 6 and p[3] != c':':
                return False
            h = read_digits(p + 1, 2)
            m = read_digits(end - 2, 2)
            if not 0 <= h <= 23 or not 0 <= m <= 59:
                return False
            offset = (h * 60 + m) * (-60 if p[0] == c'-' else 60)
            p = end
    if p != end:
        return False
    us[0] = ((days_of(year, month, day) * 24 + hour) * 60 + minute) * 60 + second - offset
    us[0] = us[0] * 1000000 + fraction
    return True


# Read a number of milliseconds since 1970, with a fraction or none, as microseconds.
cdef bint read_time_number(const uint8_t *p, size_t size, int64_t *us) noexcept nogil:
    cdef const uint8_t *end = p + size
    cdef bint negative = size > 0 and p[0] == c'-'
    cdef int64_t ms = 0, fraction = 0, scale = 100
    p += negative
    if p == end:
        return False
    while p < end and c'0' <= p[0] <= c'9':
        ms = ms * 10 + p[0] - c'0'
        if ms > LAST_MS:
            return False
        p += 1
    if p < end and p[0] == c'.':
        p += 1
        while p < end and c'0' <= p[0] <= c'9':
            fraction += (p[0] - c'0') * scale
            scale //= 10
            p += 1
    if p != end or (negative and -ms < FIRST_MS):
        return False
    us[0] = ms * 1000 + fraction
    if negative:
        us[0] = -us[0]
    return True


# Read a value as a time. False: it is none.
cdef inline bint read_time(const lc_value *v, int64_t *us) noexcept nogil:
    if v.pair:
        return read_time_text(v.text.at, v.text.size, us)
    if v.text.size >= 2 and v.text.at[0] == c'"':
        return read_time_text(v.text.at + 1, v.text.size - 2, us)
    return read_time_number(v.text.at, v.text.size, us)
