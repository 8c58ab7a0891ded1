# Recovery from a log, after the end of the machine: only what a checksum confirms. Included by spool.pyx.

cdef int _by_seq(const void *one, const void *other) noexcept nogil:
    cdef uint64_t x = (<lc_event **> one)[0].seq
    cdef uint64_t y = (<lc_event **> other)[0].seq
    return (x > y) - (x < y)


cdef class LogReader:
    """The log of a dead owner.

    Args:
        files: (descriptor, bytes, salt) of each file whose head is whole, in the order of their numbers.

    Attributes:
        settled: (first sequence, last, status, reason) of the outcomes, in no order.
        whole: whether each file ends with a whole block.

    Raises:
        OSError: a file cannot be mapped.
    """

    cdef readonly list settled
    settled: list[tuple[int, int, int, int]]
    cdef readonly bint whole
    cdef list maps           # keep the files mapped
    cdef lc_wire found       # lc_event pointers

    def __cinit__(self, list files not None: list[tuple[int, int, int]]):
        from mmap import ACCESS_READ, mmap
        cdef const uint8_t[::1] view
        self.settled = []
        self.maps = []
        self.whole = True
        for fd, size, salt in files:
            if size > <Py_ssize_t> sizeof(lc_head):
                view = mmap(fd, size, access=ACCESS_READ)
                self.maps.append(view)
                self._read(&view[0], size, salt)

    def __dealloc__(self):
        free(self.found.data)

    cdef int _read(self, const uint8_t *data, size_t size, uint64_t salt) except -1:
        # Read the blocks of a file up to the first that is not whole: what was synced lies before it.
        cdef size_t at = sizeof(lc_head)
        cdef const lc_block *b
        cdef const lc_outcome *o
        cdef uint32_t i
        while size - at >= sizeof(lc_block):
            b = <const lc_block *> (data + at)
            if b.size > size - at - sizeof(lc_block) or b.size % 8 or (
                    xxh64_of(<const uint8_t *> b + 8, sizeof(lc_block) - 8 + b.size, salt) != b.sum):
                break
            if b.kind == BLOCK_OUTCOMES:
                for i in range(b.size // <uint32_t> sizeof(lc_outcome)):
                    o = <const lc_outcome *> (b + 1) + i
                    if 0 < o.first <= o.last and o.status <= STORED and o.reason < R_COUNT:
                        self.settled.append((o.first, o.last, <int> o.status, <int> o.reason))
            elif b.kind == BLOCK_EVENTS:
                self._read_events(<const uint8_t *> (b + 1), b.size)
            at += sizeof(lc_block) + b.size
        if at != size:
            self.whole = False
        return 0

    cdef int _read_events(self, const uint8_t *data, uint32_t size) except -1:
        # Find the events of a block, which lie there as in their chunk.
        cdef lc_event *e
        cdef uint64_t at = 0, last = 0
        while at + sizeof(lc_event) <= size:
            e = <lc_event *> (data + at)
            if not _makes_sense(e, last, size - at):
                break                # the unused end of a chunk
            last = e.seq
            at += event_room(e.size)
            if not e.level & EVENT_SETTLED and (
                    append_bytes(&self.found, <const uint8_t *> &e, sizeof(e)) < 0):
                raise MemoryError
        return 0

    def write(self, Segments segments not None, list settled not None: list[tuple[int, int]]) -> int:
        """Write the events that have no outcome into new segments.

        Args:
            segments: of the owner, with an empty queue.
            settled: (first, last) sequences that have their outcome, rising.

        Returns:
            How many events were written.

        Raises:
            OSError: see ``Segments.grow``.
        """
        cdef lc_queue *h = segments.h
        cdef const lc_event *e
        cdef uint64_t last = 0, first_settled = 0, last_settled = 0
        cdef size_t i, n = self.found.size // sizeof(e)
        cdef uint64_t count = 0
        cdef uint32_t need
        ranges = iter(settled)
        if n:
            qsort(self.found.data, n, sizeof(e), &_by_seq)
        for i in range(n):
            e = (<const lc_event **> self.found.data)[i]
            while last_settled < e.seq:
                first_settled, last_settled = next(ranges, (<uint64_t> -1, <uint64_t> -1))
            if e.seq == last or e.seq >= first_settled:
                continue
            last = e.seq
            need = <uint32_t> (event_room(e.size) // SLOT + 2)
            while segments.s.free_slots < need and segments.s.mapped < segments.s.most:
                segments.grow()
            h.next_seq = e.seq
            if lc_put(h, <const uint8_t *> (e + 1), e.size, e.level, e.kind, e.created_us, NULL) <= 0:
                raise OSError(ENOSPC, strerror(ENOSPC).decode(), segments.directory)
            count += 1
        return count
