"""A spool: the memory of a queue in mapped files, so that events outlive the process that queued them.

A segment is a file of 4 MiB and a head. It has 64 slots of 64 KiB, into which the queue puts its chunks
(``queue/slots.pyx``). What a caller stored there is in the page cache: the kernel writes it, however the
process ends. docs/formats.md describes the file; ``logclient/delivery/spool`` names, locks and removes it.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EINTR, EIO, ENOENT, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcpy, strerror
from posix.mman cimport munmap
from posix.unistd cimport F_OK, access, unlink, write

from logclient._ext.codec cimport *
from logclient._ext.descriptors cimport *
from logclient._ext.queue cimport *
from logclient._ext.queue cimport EventQueue
from logclient._ext.hash cimport xxh64_of

cdef extern from "bits.h" nogil:
    uint64_t lc_ones(uint64_t v)

cdef extern from "spool.h" nogil:
    const int LC_MAPS
    int lc_allocate(int fd, size_t size)
    void *lc_map(int fd, size_t size)
    int lc_touch(uint8_t *p, size_t size)
    void lc_touch_to_read(uint8_t *p, size_t size)
    int lc_create(const char *path, lc_file *f)
    int lc_sync(int fd)
    uint64_t lc_salt()
    void lc_static_assert(bint holds)

# The first bytes of a segment, in the order of bytes of the machine (docs/formats.md).
ctypedef struct lc_head:
    uint8_t magic[8]         # stored last
    uint32_t order
    uint32_t version
    uint8_t boot[16]
    uint8_t producer[16]     # the last six are 0
    uint64_t device
    uint64_t inode
    uint32_t number
    uint32_t head
    uint32_t size
    uint32_t chunk
    uint64_t always
    uint64_t pid
    uint64_t salt            # of a log: the seed of its checksums
    uint64_t created_us
    uint64_t sum             # XXH64 of all bytes before it, seed 42

cdef enum:
    LEVELS = 5               # the highest level of an event
    SEQUENCE_BITS = 48       # what an id has room for
    FILE_SIZE = SEGMENT_HEAD + SLOTS * SLOT
    TOUCHED = 4 * SLOT       # bytes that are touched at a time
    PATH = 4096              # bytes of a path at most
    READY = 4 * SLOTS        # free touched slots below which more are prepared
    VERSION = 1
    BYTE_ORDER = 0x01020304


HEAD = SEGMENT_HEAD                  # bytes before the first slot of a segment
SEGMENT = FILE_SIZE                  # bytes of a segment
SUPPORTED = LC_MAPS != 0             # this system can map files for a spool

# As in docs/formats.md.
lc_static_assert(sizeof(lc_head) == 120)
lc_static_assert(sizeof(lc_chunk) == CHUNK_HEAD)
lc_static_assert(sizeof(lc_event) == 24)
lc_static_assert(sizeof(lc_log_block) == 16)
lc_static_assert(sizeof(lc_outcome) == 24)


cdef uint32_t _slots_of(const lc_chunk *c, uint32_t left) noexcept nogil:
    # Return how many slots a chunk takes; 0: its slot is free, or it is not possible with so many left.
    cdef uint64_t size = <uint64_t> c.capacity + CHUNK_HEAD
    return <uint32_t> (size // SLOT) if c.live and size % SLOT == 0 and size // SLOT <= left else 0


cdef bint _is_in(const uint64_t *ranges, Py_ssize_t n, uint64_t seq) noexcept nogil:
    # Return whether a sequence is in one of the ranges, which are merged.
    cdef Py_ssize_t low = 0, middle
    while low < n:
        middle = (low + n) // 2
        if ranges[2 * middle] <= seq:
            low = middle + 1
        else:
            n = middle
    return low > 0 and seq <= ranges[2 * low - 1]


cdef class Segments:
    """The mapped segments of one owner, from which its queue takes memory.

    One thread at a time adds segments.

    Args:
        queue: it keeps the bounds below until the process ends.
        directory: of the files.
        producer: the owner's, 10 bytes.
        boot: identifies the boot of this machine: 16 bytes.
        pid: of this process, for people.
        most: segments at most.
        always: every event goes into a segment; else only events for which `memory_bytes` has no room.
        memory_bytes: bound on the memory that events take beside the segments.
    """

    cdef EventQueue queue
    cdef lc_queue *h
    cdef lc_spool *s
    cdef double trim_at
    cdef str directory
    cdef lc_head head
    cdef char prefix[PATH - 16]
    cdef char lock_path[PATH]

    def __cinit__(self, EventQueue queue not None, str directory not None, bytes producer not None,
                  bytes boot not None, uint64_t pid, uint32_t most, bint always, uint64_t memory_bytes):
        cdef lc_spool *s
        path = os.fsencode(os.path.join(directory, producer.hex())) + b"."
        if len(path) >= PATH - 16 or len(producer) != 10 or len(boot) != 16:
            raise ValueError(f"spool: {directory}: the path is too long")
        strcpy(self.prefix, path)
        snprintf(self.lock_path, PATH, b"%slock", self.prefix)
        self.directory = directory
        memcpy(self.head.magic, b"lcspool\x01", 8)
        memcpy(self.head.boot, PyBytes_AS_STRING(boot), 16)
        memcpy(self.head.producer, PyBytes_AS_STRING(producer), 10)
        self.head.order = BYTE_ORDER
        self.head.version = VERSION
        self.head.head = SEGMENT_HEAD
        self.head.size = FILE_SIZE
        self.head.chunk = sizeof(lc_chunk)
        self.head.always = always
        self.head.pid = pid
        s = <lc_spool *> calloc(1, sizeof(lc_spool))
        if s != NULL:
            s.segments = <lc_segment *> calloc(most, sizeof(lc_segment))
        if s == NULL or s.segments == NULL:
            free(s)
            raise MemoryError
        self.queue = queue
        self.h = queue.h
        self.s = s
        s.most = most
        s.limit = most
        s.ready = READY
        s.always = always
        s.memory_bytes = memory_bytes
        lc_cond_init(&s.more)
        lc_mutex_lock(&self.h.mutex)
        self.h.spool = s
        self.h.max_events = <uint64_t> 1 << 62
        self.h.full_reason = <uint8_t> R_SPOOL_FULL
        self._set_bounds()
        lc_unlock(self.h)

    cdef void _set_bounds(self) noexcept nogil:
        # Bound the events by what the segments and the memory may hold. A few slots are left for the ends of
        # both lists, and for chunks that one event holds. Mutex held.
        cdef lc_spool *s = self.s
        cdef uint64_t slots = <uint64_t> s.limit * SLOTS
        cdef uint64_t size = (slots - min(slots // 8, <uint64_t> 8)) * (SLOT - CHUNK_HEAD)
        if not s.always or s.limit < s.most:
            size += s.memory_bytes
        self.h.max_bytes = size

    cdef int _grow(self) noexcept nogil:
        # Make, allocate and map the segment with the lowest free number, and give its slots to the queue;
        # return 0, or an errno. Pages are touched later: callers that come first touch them, 2 us for each.
        cdef lc_spool *s = self.s
        cdef uint32_t number = 0
        cdef char path[PATH]
        cdef lc_head head = self.head
        cdef uint8_t *base = NULL
        cdef lc_file made
        cdef int error
        while s.segments[number].base != NULL:
            number += 1
        if access(self.lock_path, F_OK):
            return ENOENT
        snprintf(path, sizeof(path), b"%s%06u.seg", self.prefix, number)
        if lc_create(path, &made) < 0:
            return errno
        head.device = made.device
        head.inode = made.inode
        error = lc_allocate(made.fd, FILE_SIZE)
        if error == 0:
            base = <uint8_t *> lc_map(made.fd, FILE_SIZE)
            error = errno if base == NULL else lc_touch(base, SEGMENT_HEAD)
        lc_close(&made)
        if error:
            if base != NULL:
                munmap(base, FILE_SIZE)
            unlink(path)
            return error
        head.number = number
        head.created_us = <uint64_t> lc_wall_us()
        head.sum = xxh64_of(<const uint8_t *> &head, sizeof(lc_head) - 8, 42)
        memcpy(base + 8, <const uint8_t *> &head + 8, sizeof(lc_head) - 8)
        lc_publish(<uint64_t *> base, (<const uint64_t *> &head)[0])
        lc_mutex_lock(&self.h.mutex)
        s.segments[number].base = base
        s.segments[number].free = ~(<uint64_t> 0)
        s.segments[number].touched = SEGMENT_HEAD
        s.segments[number].whole = False
        s.mapped += 1
        s.free_slots += SLOTS
        s.untouched += 1
        s.wanted = False
        if number == 0:
            s.journal = <lc_journal *> (base + JOURNAL_AT)
            s.journal.unspooled = s.chunk_bytes > 0
        s.limit = max(s.limit, s.mapped)
        self._set_bounds()
        self._end_wait()
        lc_unlock(self.h)
        return 0

    cdef void _end_wait(self) noexcept nogil:
        # Let callers that wait for a segment try again. Mutex held.
        if self.s.awaited:
            self.s.awaited = 0
            if lc_grant_room(self.h):
                lc_cond_wake_all(&self.h.changed)

    cdef void _touch(self) noexcept nogil:
        # Touch the pages of the lowest segment that is not whole, as long as callers find a slot.
        cdef lc_spool *s = self.s
        cdef lc_segment *g
        cdef uint32_t i
        for i in range(s.most):
            g = &s.segments[i]
            if g.base == NULL or g.whole:
                continue
            while g.touched < FILE_SIZE and (s.free_slots >= SLOTS or s.mapped >= s.limit):
                lc_touch(g.base + g.touched, TOUCHED)
                g.touched += TOUCHED
            if g.touched >= FILE_SIZE:
                lc_mutex_lock(&self.h.mutex)
                g.whole = True
                s.untouched -= 1
                s.free_touched += <uint32_t> lc_ones(g.free)
                lc_mutex_unlock(&self.h.mutex)
            return

    cdef int _prepare(self) noexcept nogil:
        # Do a part of what callers asked for; return 0, or an errno.
        cdef lc_spool *s = self.s
        cdef int error = 0
        if s.mapped < s.limit and (s.untouched == 0 or s.free_slots < SLOTS):
            error = self._grow()
        elif s.untouched:
            self._touch()
        lc_mutex_lock(&self.h.mutex)
        s.asked = (s.free_touched < s.ready or s.wanted) and (s.untouched or s.mapped < s.limit)
        lc_mutex_unlock(&self.h.mutex)
        return error

    def grow(self) -> bool:
        """Add a segment, unless all are there; return whether one was added. Its pages are touched later.

        Raises:
            OSError: the disk is full, the file system cannot allocate or map, or the lock file is gone.
        """
        cdef int error
        if self.s.mapped >= self.s.limit:
            return False
        with nogil:
            error = self._grow()
        if error:
            raise OSError(error, strerror(error).decode(), self.directory)
        return True

    def limit(self, bint on):
        """Let the queue go on with the segments that it has (the disk is full), or let it have all again."""
        cdef lc_spool *s = self.s
        lc_mutex_lock(&self.h.mutex)
        s.limit = s.mapped if on else s.most
        s.asked = False
        self._set_bounds()
        self._end_wait()
        lc_unlock(self.h)

    def serve(self, double seconds, double trim_every):
        """Add segments whenever they are wanted, without the GIL, for so many seconds or until woken.

        Args:
            trim_every: seconds between two looks for a segment that is not needed.

        Raises:
            OSError: see ``grow``.
        """
        cdef lc_spool *s = self.s
        cdef double now = lc_monotonic()
        cdef double end = now + seconds
        cdef int error = 0
        cdef bint more, over = False
        with nogil:
            if s.always and s.free_touched < s.ready and s.untouched:
                s.asked = True               # before the first event
            while error == 0 and not over:
                if s.asked and not s.woken:
                    error = self._prepare()
                    continue
                lc_mutex_lock(&self.h.mutex)
                now = lc_monotonic()
                if not s.asked and not s.closed and not s.woken and now < end:
                    lc_cond_wait(&s.more, &self.h.mutex, min(end - now, max(self.trim_at - now, 0.001)))
                    now = lc_monotonic()
                over = s.closed or s.woken or now >= end
                s.woken = False
                lc_mutex_unlock(&self.h.mutex)
                if now >= self.trim_at:
                    # Remove a segment that was not needed since the last look. As many free slots as a burst
                    # needs stay, one segment without events for a large one, and in the mode `always` all.
                    self.trim_at = now + trim_every
                    lc_mutex_lock(&self.h.mutex)
                    more = (not s.always and s.least_free >= READY + 2 * SLOTS
                            and self._free_segments() > 1)
                    s.least_free = s.free_slots
                    lc_mutex_unlock(&self.h.mutex)
                    if more:
                        self._remove_free(1)
        if error:
            raise OSError(error, strerror(error).decode(), self.directory)

    def wake(self):
        """End a ``serve``, or the next one."""
        lc_mutex_lock(&self.h.mutex)
        self.s.woken = True
        lc_cond_wake_all(&self.s.more)
        lc_mutex_unlock(&self.h.mutex)

    cdef uint32_t _free_segments(self) noexcept nogil:
        # Return how many segments no event lies in. Mutex held.
        cdef uint32_t i, n = 0
        for i in range(self.s.most):
            n += self.s.segments[i].free == ~(<uint64_t> 0)
        return n

    cdef void _remove_free(self, uint32_t most) noexcept nogil:
        # Remove so many segments at most, the last ones first, that no event lies in. The first one stays.
        cdef lc_spool *s = self.s
        cdef lc_segment *g
        cdef char path[PATH]
        cdef uint8_t *base
        cdef uint32_t i
        for i in range(s.most - 1, 0, -1):
            if most == 0:
                return
            g = &s.segments[i]
            base = NULL
            lc_mutex_lock(&self.h.mutex)
            if g.base != NULL and g.free == ~(<uint64_t> 0):
                base = g.base
                g.base = NULL
                g.free = 0
                s.mapped -= 1
                s.free_slots -= SLOTS
                s.least_free = min(s.least_free, s.free_slots)
                if g.whole:
                    s.free_touched -= SLOTS
                else:
                    s.untouched -= 1
            lc_mutex_unlock(&self.h.mutex)
            if base != NULL:
                munmap(base, FILE_SIZE)
                snprintf(path, sizeof(path), b"%s%06u.seg", self.prefix, i)
                unlink(path)
                most -= 1

    def shrink(self):
        """Remove all segments that no event lies in but the first, which has the journal, and add none."""
        with nogil:
            self._remove_free(self.s.most)
        self.limit(True)

    def let_go(self) -> bool:
        """If no event lies in the segments, have the next one wait for ``reopen``; return whether that is so.

        ``close`` may be called then, although the queue goes on.
        """
        cdef lc_queue *h = self.h
        cdef bint free_
        lc_mutex_lock(&h.mutex)
        free_ = (self.s.free_slots == self.s.mapped * SLOTS and h.queued_events == 0 and h.held_events == 0
                 and h.first_ticket == NULL)
        if free_:
            h.unopened = True
        lc_mutex_unlock(&h.mutex)
        return free_

    def reopen(self):
        """Take segments again after ``let_go`` and ``close``."""
        cdef lc_spool *s = self.s
        lc_mutex_lock(&self.h.mutex)
        s.closed = False
        s.untouched = 0
        s.free_touched = 0
        s.limit = s.most
        self._set_bounds()
        lc_mutex_unlock(&self.h.mutex)

    @property
    def is_used(self) -> bool:
        """Whether any chunk lies in the segments."""
        return self.s.free_slots < self.s.mapped * SLOTS

    @property
    def events(self) -> int:
        """Events that lie in the segments; while others are in memory, without those in flight."""
        cdef lc_queue *h = self.h
        cdef lc_chunk *c
        cdef uint64_t n = 0
        cdef uint32_t k
        lc_mutex_lock(&h.mutex)
        if self.s.mapped and self.s.chunk_bytes == 0:
            n = h.queued_events + h.held_events - h.granted_events
        elif self.s.mapped:
            for k in range(2):
                c = h.kept.head if k else h.ordinary.head
                while c != NULL:
                    n += c.count if c.slot else 0
                    c = c.next
        lc_mutex_unlock(&h.mutex)
        return n

    def close(self):
        """Unmap all segments, in the end or in the child of a fork. The queue must be empty, or renewed."""
        cdef lc_spool *s = self.s
        cdef uint32_t i
        cdef bint own = self.h.generation == lc_forks
        if own:
            lc_mutex_lock(&self.h.mutex)
        s.closed = True
        s.awaited = 0
        s.journal = NULL
        s.free_slots = 0
        for i in range(s.most):
            s.segments[i].free = 0
            if s.segments[i].base != NULL:
                munmap(s.segments[i].base, FILE_SIZE)
                s.segments[i].base = NULL
        s.mapped = 0
        s.first_to_log = s.last_to_log = 0
        if own:
            # Of what is left there, nothing may be touched any more.
            self.h.ordinary.head = self.h.ordinary.tail = NULL
            self.h.kept.head = self.h.kept.tail = NULL
            lc_cond_wake_all(&s.more)
            lc_mutex_unlock(&self.h.mutex)

    def restore(self, list fds not None: list[tuple[int, int]], list settled not None: list[tuple[int, int]],
                uint64_t after,
                int64_t oldest_us=0) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
        """Map the segments of a dead owner, and queue the events without an outcome that lie there.

        Args:
            fds: (number, descriptor) of its segments, whose heads are checked.
            settled: (first, last) sequences that have their outcome, in addition to those that are marked;
                merged.
            after: the highest sequence that is known otherwise.
            oldest_us: events made before that, in microseconds since 1970, are dropped.

        Returns:
            The (first, last) sequences that were queued, those that were dropped, and the number of chunks
            that make no sense.

        Raises:
            OSError: a file cannot be mapped.
            ValueError: a number is none of a segment here, or comes twice.
        """
        cdef lc_spool *s = self.s
        cdef lc_queue *h = self.h
        # first sequence and slot of each chunk, the sequences that wait there, and whether it is damaged
        cdef list found = []
        cdef uint32_t damaged = 0
        cdef bint good, fault
        cdef uint32_t i, p, k
        cdef int fd
        cdef uint8_t *base
        cdef lc_chunk *c
        cdef uint64_t *ranges = <uint64_t *> calloc(2 * len(settled) + 1, 8)
        cdef Py_ssize_t count = len(settled)
        cdef uint64_t last = after
        cdef list pending = []
        cdef list expired = []
        if ranges == NULL:
            raise MemoryError
        try:
            for k in range(<uint32_t> count):
                ranges[2 * k], ranges[2 * k + 1] = settled[k]
            for i, fd in fds:
                if i >= s.most or s.segments[i].base != NULL:
                    raise ValueError(f"segment {i} is not one of {s.most}")
                base = <uint8_t *> lc_map(fd, FILE_SIZE)
                if base == NULL:
                    raise OSError(errno, strerror(errno).decode())
                with nogil:
                    lc_touch_to_read(base, FILE_SIZE)
                s.segments[i].base = base
                s.segments[i].whole = True
                s.mapped += 1
                if i == 0:
                    s.journal = <lc_journal *> (base + JOURNAL_AT)
                p = 0
                while p < SLOTS:
                    c = chunk_at(s, i * SLOTS + p)
                    k = _slots_of(c, SLOTS - p)
                    good = False
                    fault = c.live != 0
                    if k:
                        waiting = []
                        fault = self._read_chunk(c, 1 + i * SLOTS + p, ranges, count, &last, oldest_us,
                                                 waiting, expired)
                        good = c.count > 0
                    damaged += fault
                    k = max(k, <uint32_t> 1)
                    if good:
                        found.append(((<lc_event *> (chunk_data(c) + c.read)).seq, i * SLOTS + p, waiting,
                                      fault))
                    else:
                        lc_free_slots(s, i * SLOTS + p, k)
                    p += k
            for _, p, waiting, fault in sorted(found):
                c = chunk_at(s, p)
                lc_mutex_lock(&h.mutex)
                good = self._link(c)
                if not good:
                    lc_free_slots(s, p, (c.capacity + CHUNK_HEAD) // SLOT)
                lc_mutex_unlock(&h.mutex)
                if good:
                    pending += waiting
                else:
                    damaged += not fault
            h.next_seq = last + 1
            return pending, expired, damaged
        finally:
            free(ranges)

    cdef int _read_chunk(self, lc_chunk *c, uint32_t slot, const uint64_t *ranges, Py_ssize_t n,
                         uint64_t *last, int64_t oldest_us, list pending, list expired) except -1:
        # Find the events of a chunk that have no outcome and are not too old, and make its head anew: of what
        # the file has there only `capacity`, which is checked, `kept` and `live` are used. The room of the
        # others goes to the event before them. Return whether something that makes no sense is behind the
        # last event.
        cdef lc_chunk head
        cdef lc_event *e
        cdef lc_event *before = NULL
        cdef uint64_t at = 0
        cdef uint64_t seq = c.live - 1
        cdef uint64_t room
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef bint settled
        memset(&head, 0, sizeof(lc_chunk))
        head.capacity = c.capacity
        head.slot = slot
        head.size_class = <uint8_t> SIZE_CLASSES
        head.kept = c.kept != 0
        head.live = c.live
        c[0] = head
        while at + sizeof(lc_event) <= c.capacity:
            e = <lc_event *> (chunk_data(c) + at)
            room = event_room(e.size)
            # The owner trusted its own memory, and so does this; but a file may be damaged.
            if (e.seq <= seq or e.seq >> SEQUENCE_BITS or room > c.capacity - at
                    or (e.level & ~EVENT_SETTLED) > LEVELS):
                break
            seq = e.seq
            last[0] = max(last[0], seq)
            if e.pad:                # a store would make the page dirty
                e.pad = 0
            settled = e.level & EVENT_SETTLED or _is_in(ranges, n, seq)
            if not settled and e.created_us < oldest_us:
                expired.append((seq, seq))
                settled = True
            if settled:
                e.level |= EVENT_SETTLED
                if before != NULL:
                    if before.pad + room > 0xFFFF:
                        break
                    before.pad += <uint16_t> room
            else:
                if before == NULL:
                    c.read = <uint32_t> at
                before = e
                c.last = <uint32_t> at
                c.count += 1
                if first and seq != end + 1:
                    pending.append((first, end))
                    first = 0
                first = first or seq
                end = seq
            at += room
        c.used = <uint32_t> at
        if first:
            pending.append((first, end))
        return c.capacity - at >= 8 and (<const uint64_t *> (chunk_data(c) + at))[0] != 0

    cdef bint _link(self, lc_chunk *c) noexcept nogil:
        # Append a chunk to its list, unless its events are not behind those before. Mutex held.
        cdef lc_queue *h = self.h
        cdef lc_list *list = &h.kept if c.kept else &h.ordinary
        if list.tail != NULL and (<lc_event *> (chunk_data(list.tail) + list.tail.last)).seq >= (
                <lc_event *> (chunk_data(c) + c.read)).seq:
            return False
        append_chunk(list, c)
        count_queued(h, list, c.count, c.used - c.read)
        return True


include "spool/log.pyx"
