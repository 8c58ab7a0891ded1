# The lines of the ledger that are written before events are sent (docs/formats.md). Included by inflight.pyx.

cdef enum:
    SPAN_US = 0x3FFFFFFF      # microseconds either way from a line's first event: differences fit 32 bits

cdef const char *B64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef int _base64(lc_wire *w, const uint8_t *p, size_t n) noexcept nogil:
    cdef size_t size = (n + 2) // 3 * 4, i, _padding
    cdef uint8_t *q = wire_reserve(w, size)
    cdef uint32_t v
    if q == NULL:
        return -1
    for i in range(0, n, 3):
        v = <uint32_t> p[i] << 16
        if i + 2 < n:
            v |= (<uint32_t> p[i + 1] << 8) | p[i + 2]
        elif i + 1 < n:
            v |= <uint32_t> p[i + 1] << 8
        q[0] = B64[v >> 18]
        q[1] = B64[(v >> 12) & 63]
        q[2] = B64[(v >> 6) & 63]
        q[3] = B64[v & 63]
        q += 4
    for _padding in range(size // 4 * 3 - n):
        q -= 1
        q[0] = 61
    w.size += size
    return 0


cdef int _print(lc_wire *w, const char *form, long long one, long long other) noexcept nogil:
    cdef char text[64]
    return append_bytes(w, <const uint8_t *> text, <size_t> snprintf(text, sizeof(text), form, one, other))


cdef inline bint _named(const uint64_t *names, uint32_t i) noexcept nogil:
    return names != NULL and (names[2 * i] or names[2 * i + 1])


cdef inline bint _listed(lc_batch *b, uint32_t i) noexcept nogil:
    # Return whether event i belongs into the ledger: it went on the wire.
    cdef uint8_t status = b.status[i] & ~SETTLED
    return status == INFLIGHT or status == HANDED


cdef int _ranges(lc_wire *w, lc_batch *b, uint32_t start, uint32_t stop,
                 const uint64_t *names) noexcept nogil:
    # Append the listed sequences of start..stop as ranges: those with a name, or all when `names` is NULL.
    cdef const char *form = b"[%lld,%lld]"
    cdef uint64_t first = 0, last = 0
    cdef uint32_t i
    for i in range(start, stop):
        if not _listed(b, i) or (names != NULL and not _named(names, i)):
            continue
        if first and b.seq[i] != last + 1:
            if _print(w, form, first, last) < 0:
                return -1
            form = b",[%lld,%lld]"
            first = 0
        first = first if first else b.seq[i]
        last = b.seq[i]
    return _print(w, form, first, last) if first else 0


cdef int _line(lc_inflight *f, lc_batch *b, uint32_t start, uint32_t stop) noexcept nogil:
    # Append one `batch` line for the events of start..stop that went on the wire.
    cdef lc_wire *w = &f.line
    cdef size_t n = 0, own = 0
    cdef int64_t base = 0
    cdef int32_t delta
    cdef uint32_t i
    cdef uint8_t *hashes
    cdef uint8_t *deltas = wire_reserve(&f.packed, <size_t> (stop - start) * 12)
    if deltas == NULL:
        return -1
    hashes = deltas + 4 * <size_t> (stop - start)
    for i in range(start, stop):
        if _listed(b, i):
            base = base if n else b.created_us[i]
            delta = <int32_t> (b.created_us[i] - base)
            memcpy(deltas + 4 * n, &delta, 4)
            memcpy(hashes + 8 * n, b.hash + i, 8)
            n += 1
            own += _named(b.id_hash, i)
    if n == 0:
        return 0
    if (_print(w, b'{"t":"batch","seqs":[', 0, 0) < 0 or _ranges(w, b, start, stop, NULL) < 0
            or _print(w, b'],"n":%lld', <long long> n, 0) < 0):
        return -1
    if own and (_print(w, b',"own":[', 0, 0) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0
                or _print(w, b"]", 0, 0) < 0):
        return -1
    if (_print(w, b',"base":%lld,"created":"', base, 0) < 0 or _base64(w, deltas, 4 * n) < 0
            or _print(w, b'","hashes":"', 0, 0) < 0 or _base64(w, hashes, 8 * n) < 0):
        return -1
    return _print(w, b'"}\n', 0, 0)


cdef int64_t _names(lc_inflight *f, lc_batch *b, uint32_t start, uint32_t stop,
                    const uint64_t *names) noexcept nogil:
    # Pack the names of the listed events of start..stop. Return how many there are, -1 when memory is out.
    cdef uint8_t *to = wire_reserve(&f.packed, 16 * <size_t> (stop - start))
    cdef uint32_t i, n = 0
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
    cdef int64_t n = _names(f, b, start, stop, b.id_hash)
    if n <= 0:
        return <int> n
    if (_print(w, b'{"t":"ids","seqs":[', 0, 0) < 0 or _ranges(w, b, start, stop, b.id_hash) < 0
            or _print(w, b'],"n":%lld,"ids":"', n, 0) < 0
            or _base64(w, f.packed.data, 16 * <size_t> n) < 0):
        return -1
    if b.id_second != NULL:
        n = _names(f, b, start, stop, b.id_second)
        if n < 0:
            return -1
        if n and (_print(w, b'","beside":[', 0, 0) < 0 or _ranges(w, b, start, stop, b.id_second) < 0
                  or _print(w, b'],"second":"', 0, 0) < 0
                  or _base64(w, f.packed.data, 16 * <size_t> n) < 0):
            return -1
    return _print(w, b'"}\n', 0, 0)


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


cdef bint inflight_lost_ledger(lc_inflight *f) noexcept nogil:
    # Return whether the ledger's descriptor is not ours any more. Then nothing may be sent until Python has
    # opened another part: an event that arrives without being listed looks like one that was never sent.
    return f.main.ledger.fd >= 0 and not lc_is_ours(&f.main.ledger)


cdef int inflight_write_ledger(lc_inflight *f, lc_batch *b) noexcept nogil:
    # Write those lines to the ledger, if there is one. Return 0, or -1 when memory is out.
    cdef lc_inflight *m = f.main
    cdef size_t done = 0
    cdef ssize_t n
    if m.ledger.fd < 0:
        b.listed = max(b.listed, b.cursor)
        return 0
    f.line.size = 0
    if inflight_ledger(f, b) < 0:
        return -1
    while done < f.line.size:
        n = write(m.ledger.fd, f.line.data + done, f.line.size - done)
        if n < 0 and errno == EINTR:
            continue
        if n < 0:                    # delivery goes on without the ledger; Python reports that
            m.ledger_errno = errno
            m.ledger.fd = -1
            break
        done += <size_t> n
        m.ledger_bytes += <uint64_t> n
    return 0
