# A reader of files that an owner has or has left: for the recovery from a log, and for people. Included by
# spool.pyx.

ctypedef struct lc_found:
    lc_event event           # its head
    const uint8_t *body


cdef int _by_seq(const void *one, const void *other) noexcept nogil:
    cdef uint64_t x = (<const lc_found *> one).event.seq
    cdef uint64_t y = (<const lc_found *> other).event.seq
    return (x > y) - (x < y)


cdef list _read_outcomes(const uint8_t *data, size_t size):
    # Return outcomes as the journal and the log have them, without those that make no sense.
    cdef const lc_outcome *o
    cdef list found = []
    cdef size_t i
    for i in range(size // sizeof(lc_outcome)):
        o = <const lc_outcome *> data + i
        if 0 < o.first <= o.last and o.status <= STORED and o.reason < R_COUNT:
            found.append((o.first, o.last, STATUSES[o.status], REASONS[o.reason]))
    return found


def read_journal(const uint8_t[::1] head not None) -> tuple[list[tuple[int, int, str, str]], bool, bool]:
    """Read, in the head of the first segment, the outcomes that an owner had not written to its ledger.

    Returns:
        Each as (first sequence, last, status, reason), whether these are all, and whether the owner had
        events in memory only.
    """
    cdef const lc_journal *j
    cdef list found
    if head.shape[0] < SEGMENT_HEAD:
        raise ValueError(f"the head of a segment has {SEGMENT_HEAD} bytes, not {head.shape[0]}")
    j = <const lc_journal *> (&head[0] + JOURNAL_AT)
    found = _read_outcomes(<const uint8_t *> j.items, min(j.n, <uint64_t> OUTCOMES) * sizeof(lc_outcome))
    return found, not j.full and <uint64_t> len(found) == j.n, j.unspooled != 0


cdef class FileReader:
    """Collects the events without an outcome in segments and in files of a log, whose heads were checked.

    It changes no file. Whatever the files hold, it looks at nothing behind their ends.

    Args:
        keeps: what was read stays in memory, for ``write``; else 32 bytes for each event.

    Attributes:
        outcomes: (first sequence, last, status, reason) of the outcomes in logs, in no order.
        last: the highest sequence of an event.
    """

    cdef readonly list outcomes
    outcomes: list[tuple[int, int, str, str]]
    cdef readonly uint64_t last
    cdef bint keeps
    cdef list kept
    cdef lc_wire found       # lc_found items

    def __cinit__(self, *, bint keeps):
        self.keeps = keeps
        self.outcomes = []
        self.kept = []

    def __dealloc__(self):
        free(self.found.data)

    def read_log(self, const uint8_t[::1] data not None, uint64_t salt) -> int:
        """Read the blocks of a file up to the first that is not whole: what was synced lies before it.

        Returns:
            Where that block begins; the size of the file: all are whole.
        """
        cdef size_t size = <size_t> data.shape[0]
        cdef size_t at = sizeof(lc_head)
        cdef const lc_log_block *b
        if size <= at:
            return size
        if self.keeps:
            self.kept.append(data)
        while size - at >= sizeof(lc_log_block):
            b = <const lc_log_block *> (&data[0] + at)
            if b.size > size - at - sizeof(lc_log_block) or b.size % 8 or (
                    xxh64_of(<const uint8_t *> b + 8, sizeof(lc_log_block) - 8 + b.size, salt) != b.sum):
                break
            if b.kind == BLOCK_OUTCOMES:
                self.outcomes += _read_outcomes(<const uint8_t *> (b + 1), b.size)
            elif b.kind == BLOCK_EVENTS:
                self._read_events(<const uint8_t *> (b + 1), b.size, 0)
            at += sizeof(lc_log_block) + b.size
        return at

    def read_segment(self, const uint8_t[::1] data not None) -> list[tuple[int, int | None]]:
        """Read the events in all slots of a segment.

        Returns:
            What makes no sense: (offset, capacity) of a chunk with an impossible capacity, and (offset, None)
            of what is behind the last event of a chunk.
        """
        cdef list faults = []
        cdef const lc_chunk *c
        cdef size_t at
        cdef uint64_t end
        cdef uint32_t k, p = 0
        if data.shape[0] != FILE_SIZE:
            raise ValueError(f"a segment has {FILE_SIZE} bytes, not {data.shape[0]}")
        if self.keeps:
            self.kept.append(data)
        while p < SLOTS:
            at = SEGMENT_HEAD + <size_t> p * SLOT
            c = <const lc_chunk *> (&data[0] + at)
            k = _slots_of(c, SLOTS - p)
            if k:
                at += CHUNK_HEAD
                end = self._read_events(&data[at], c.capacity, c.live - 1)
                if c.capacity - end >= 8 and (<const uint64_t *> &data[at + end])[0]:
                    faults.append((at + end, None))
            elif c.live:
                faults.append((at, c.capacity))
            p += max(k, <uint32_t> 1)
        return faults

    cdef uint64_t _read_events(self, const uint8_t *data, uint64_t size, uint64_t last) except? -1:
        # Find the events that lie one behind the other, with sequences above `last`. Return where they end.
        cdef lc_found one
        cdef uint64_t at = 0
        while at + sizeof(lc_event) <= size:
            one.event = (<const lc_event *> (data + at))[0]
            if not _makes_sense(&one.event, last, size - at):
                break                # the unused end of a chunk
            one.body = data + at + sizeof(lc_event)
            last = one.event.seq
            self.last = max(self.last, last)
            at += event_room(one.event.size)
            if not one.event.level & EVENT_SETTLED and (
                    append_bytes(&self.found, <const uint8_t *> &one, sizeof(one)) < 0):
                raise MemoryError
        return at

    cdef size_t _keep_waiting(self, list settled) except? -1:
        # Sort the events, and forget copies and those that have an outcome. Return how many are left.
        cdef lc_found *f = <lc_found *> self.found.data
        cdef size_t i, n = self.found.size // sizeof(lc_found), left = 0
        cdef uint64_t last = 0, first_settled = 0, last_settled = 0
        ranges = iter(settled)
        if n:
            qsort(f, n, sizeof(lc_found), &_by_seq)
        for i in range(n):
            while last_settled < f[i].event.seq:
                first_settled, last_settled = next(ranges, (<uint64_t> -1, <uint64_t> -1))
            if f[i].event.seq != last and f[i].event.seq < first_settled:
                last = f[i].event.seq
                f[left] = f[i]
                left += 1
        self.found.size = left * sizeof(lc_found)
        return left

    def waiting(self, list settled not None: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Return the events that have no outcome, by their sequences.

        Each is (sequence, microseconds since 1970, bytes of the body).

        Args:
            settled: (first, last) sequences that have their outcome, rising.
        """
        cdef size_t i, n = self._keep_waiting(settled)
        cdef const lc_found *f = <const lc_found *> self.found.data
        return [(f[i].event.seq, f[i].event.created_us, f[i].event.size) for i in range(n)]

    def write(self, Segments segments not None, list settled not None: list[tuple[int, int]]) -> int:
        """Write the events that have no outcome into new segments.

        Args:
            segments: of the owner, with an empty queue.
            settled: (first, last) sequences that have their outcome, rising.

        Returns:
            How many events were written.

        Raises:
            OSError: see ``Segments.grow``.
            ValueError: the bodies were not kept.
        """
        cdef lc_queue *h = segments.h
        cdef const lc_found *f
        cdef size_t i, n
        if not self.keeps:
            raise ValueError("the bodies were not kept")
        n = self._keep_waiting(settled)
        for i in range(n):
            f = <const lc_found *> self.found.data + i
            while not lc_has_slots(segments.s, event_room(f.event.size)) and segments.grow():
                pass
            h.next_seq = f.event.seq
            if lc_put(h, f.body, f.event.size, f.event.level, f.event.kind, f.event.created_us, NULL) <= 0:
                raise OSError(ENOSPC, strerror(ENOSPC).decode(), segments.directory)
        return n
