# The lines of the ledger that are written before events are sent (docs/formats.md). Included by inflight.pyx.

cdef enum:
    SPAN_US = 0x3FFFFFFF      # microseconds either way from a line's first event: differences fit 32 bits

cdef const char *B64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int _base64(lc_wire *w, const uint8_t *p, size_t n) noexcept nogil:
    cdef uint8_t *q = wire_reserve(w, (n + 2) // 3 * 4)
    cdef size_t i = 0
    cdef uint32_t v
    if q == NULL:
        return -1
    while i + 3 <= n:
        v = (<uint32_t> p[i] << 16) | (<uint32_t> p[i + 1] << 8) | p[i + 2]
        q[0] = B64[v >> 18]
        q[1] = B64[(v >> 12) & 63]
        q[2] = B64[(v >> 6) & 63]
        q[3] = B64[v & 63]
        q += 4
        i += 3
    if i < n:
        v = <uint32_t> p[i] << 16
        if i + 1 < n:
            v |= <uint32_t> p[i + 1] << 8
        q[0] = B64[v >> 18]
        q[1] = B64[(v >> 12) & 63]
        q[2] = B64[(v >> 6) & 63] if i + 1 < n else 61
        q[3] = 61
    w.size += (n + 2) // 3 * 4
    return 0


cdef int _text(lc_wire *w, const char *text, size_t n) noexcept nogil:
    cdef uint8_t *q = wire_reserve(w, n)
    if q == NULL:
        return -1
    memcpy(q, text, n)
    w.size += n
    return 0


cdef int _range(lc_wire *w, uint64_t first, uint64_t last, bint more) noexcept nogil:
    cdef char tmp[64]
    cdef int n = snprintf(tmp, sizeof(tmp), b"%s[%llu,%llu]", <const char *> (b"," if more else b""),
                          <unsigned long long> first, <unsigned long long> last)
    return _text(w, tmp, <size_t> n)


cdef inline bint _listed(lc_batch *b, uint32_t i) noexcept nogil:
    # Return whether event i belongs into the ledger: it went on the wire.
    cdef uint8_t status = b.status[i] & ~SETTLED
    return status == INFLIGHT or status == HANDED


cdef inline bint _named(const uint64_t *names, uint32_t i) noexcept nogil:
    return names != NULL and (names[2 * i] or names[2 * i + 1])


cdef int _ranges(lc_wire *w, lc_batch *b, uint32_t start, uint32_t stop,
                 const uint64_t *names) noexcept nogil:
    # Append the listed sequences of start..stop as ranges: those with a name, or all when `names` is NULL.
    cdef uint32_t i
    cdef bint some = False, more = False
    cdef uint64_t first = 0, last = 0
    for i in range(start, stop):
        if not _listed(b, i) or (names != NULL and not _named(names, i)):
            continue
        if some and b.seq[i] == last + 1:
            last = b.seq[i]
            continue
        if some:
            if _range(w, first, last, more) < 0:
                return -1
            more = True
        some = True
        first = last = b.seq[i]
    return _range(w, first, last, more) if some else 0


cdef int _line(lc_inflight *f, lc_batch *b, uint32_t start, uint32_t stop) noexcept nogil:
    # Append one `batch` line for the events of start..stop that went on the wire.
    cdef lc_wire *w = &f.line
    cdef lc_wire *t = &f.packed
    cdef char tmp[96]
    cdef uint32_t i, n = 0, k = 0, own = 0
    cdef int64_t base = 0
    cdef int32_t delta
    cdef uint8_t *hashes
    cdef uint8_t *deltas
    for i in range(start, stop):
        if _listed(b, i):
            if n == 0:
                base = b.created_us[i]
            n += 1
            own += _named(b.id_hash, i)
    if n == 0:
        return 0
    t.size = 0
    deltas = wire_reserve(t, <size_t> n * 12)
    if deltas == NULL:
        return -1
    hashes = deltas + 4 * <size_t> n
    if _text(w, b'{"t":"batch","seqs":[', 21) < 0 or _ranges(w, b, start, stop, NULL) < 0:
        return -1
    for i in range(start, stop):
        if not _listed(b, i):
            continue
        delta = <int32_t> (b.created_us[i] - base)
        memcpy(deltas + 4 * <size_t> k, &delta, 4)
        memcpy(hashes + 8 * <size_t> k, b.hash + i, 8)
        k += 1
    k = <uint32_t> snprintf(tmp, sizeof(tmp), b'],"n":%u', n)
    if _text(w, tmp, k) < 0:
        return -1
    if own and (_text(w, b',"own":[', 8) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0
                or _text(w, b']', 1) < 0):
        return -1
    k = <uint32_t> snprintf(tmp, sizeof(tmp), b',"base":%lld,"created":"', <long long> base)
    if _text(w, tmp, k) < 0 or _base64(w, deltas, 4 * <size_t> n) < 0:
        return -1
    if _text(w, b'","hashes":"', 12) < 0 or _base64(w, hashes, 8 * <size_t> n) < 0:
        return -1
    return _text(w, b'"}\n', 3)


cdef int64_t _names(lc_inflight *f, lc_batch *b, uint32_t start, uint32_t stop,
                    const uint64_t *names) noexcept nogil:
    # Pack the names of the listed events of start..stop. Return how many there are, -1 when memory is out.
    cdef lc_wire *t = &f.packed
    cdef uint8_t *to
    cdef uint32_t i, n = 0
    t.size = 0
    to = wire_reserve(t, 16 * <size_t> (stop - start))
    if to == NULL:
        return -1
    for i in range(start, stop):
        if _listed(b, i) and _named(names, i):
            memcpy(to + 16 * <size_t> n, names + 2 * <size_t> i, 16)
            n += 1
    return n


cdef int _ids_line(lc_inflight *f, lc_batch *b, uint32_t start, uint32_t stop) noexcept nogil:
    # Append one `ids` line for the events of start..stop that went on the wire with an id of the user's.
    cdef lc_wire *w = &f.line
    cdef lc_wire *t = &f.packed
    cdef char tmp[64]
    cdef int64_t n = _names(f, b, start, stop, b.id_hash)
    cdef int k
    if n <= 0:
        return <int> n
    if _text(w, b'{"t":"ids","seqs":[', 19) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0:
        return -1
    k = snprintf(tmp, sizeof(tmp), b'],"n":%lld,"ids":"', <long long> n)
    if _text(w, tmp, k) < 0 or _base64(w, t.data, 16 * <size_t> n) < 0:
        return -1
    if b.id_second != NULL:
        n = _names(f, b, start, stop, b.id_second)
        if n < 0:
            return -1
        if n and (_text(w, b'","beside":[', 12) < 0 or _ranges(w, b, start, stop, b.id_second) < 0
                  or _text(w, b'],"second":"', 12) < 0 or _base64(w, t.data, 16 * <size_t> n) < 0):
            return -1
    return _text(w, b'"}\n', 3)


cdef int inflight_ledger(lc_inflight *f, lc_batch *b) noexcept nogil:
    # Append to f.line the lines that the ledger needs before the first byte of these events is sent: none for
    # a resend. Call once after each inflight_encoded. Long spans of time make several lines.
    cdef uint32_t start = b.listed, i
    cdef int64_t base
    if b.cursor <= b.listed:
        return 0
    base = b.created_us[start]
    for i in range(start, b.cursor):
        if not -SPAN_US <= b.created_us[i] - base <= SPAN_US:
            if _line(f, b, start, i) < 0:
                return -1
            start = i
            base = b.created_us[i]
    if _line(f, b, start, b.cursor) < 0:
        return -1
    if b.id_hash != NULL and _ids_line(f, b, b.listed, b.cursor) < 0:
        return -1
    b.listed = b.cursor
    f.listed = max(f.listed, b.seq[b.listed - 1])
    return 0
