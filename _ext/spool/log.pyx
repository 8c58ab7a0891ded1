# The log of a spool: what is to survive the end of the machine, in files that are appended to and synced.
# Included by spool.pyx.
#
# The mapped segments are never synced: a caller that stores into a page which the kernel writes would wait
# for the disk. Instead a thread, or the sender before it sends, copies what is new under the queue's mutex,
# at most SLICE bytes at a time, and writes and syncs it without. Each block has a checksum, whose seed is
# the file's: nothing that applications log can look like a block.

cdef enum:
    SLICE = 1 << 18          # bytes that are copied while callers wait
    LOG_FILES = 64           # files at most
    CLOSED = -1              # in place of an errno: the log was closed
    BLOCK_EVENTS = 1         # kinds of blocks: events, as they lie in a chunk
    BLOCK_OUTCOMES = 2       # lc_outcome items


ctypedef struct lc_log_block:
    uint64_t sum             # XXH64 of all that follows in the block, the file's salt as seed
    uint32_t size            # bytes behind this head
    uint32_t kind

ctypedef struct lc_log_file:
    uint32_t number
    uint64_t size
    uint64_t last            # no event in it has a higher sequence

ctypedef struct lc_log:
    lc_queue *queue
    lc_mutex mutex           # of the one who writes
    char *prefix             # of the names of the files
    lc_head head
    lc_file newest           # of the files
    int error                # the errno that ended the log, or CLOSED; 0: it goes on
    uint32_t files
    lc_log_file file[LOG_FILES]
    uint64_t bound           # bytes of all files beyond which they are written anew
    uint64_t rotate          # bytes of one file
    lc_wire buffer


cdef bint _write_all(int fd, const uint8_t *data, size_t size) noexcept nogil:
    cdef ssize_t n
    while size:
        n = write(fd, data, size)
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            return False
        data += n
        size -= <size_t> n
    return True


cdef void _log_path(lc_log *g, uint32_t number, char *path) noexcept nogil:
    snprintf(path, PATH, b"%s%06u.log", g.prefix, number)


cdef uint64_t _log_size(lc_log *g) noexcept nogil:
    cdef uint64_t size = 0
    cdef uint32_t i
    for i in range(g.files):
        size += g.file[i].size
    return size


cdef int _next_file(lc_log *g) noexcept nogil:
    cdef char path[PATH]
    cdef uint32_t number = g.file[g.files - 1].number + 1 if g.files else 0
    cdef lc_file made
    _log_path(g, number, path)
    if lc_create(path, &made) < 0:
        return errno
    g.head.device = made.device
    g.head.inode = made.inode
    g.head.number = number
    g.head.salt = lc_salt()
    g.head.created_us = <uint64_t> lc_wall_us()
    g.head.sum = xxh64_of(<const uint8_t *> &g.head, sizeof(lc_head) - 8, 42)
    if not _write_all(made.fd, <const uint8_t *> &g.head, sizeof(lc_head)):
        lc_close(&made)
        unlink(path)
        return errno or EIO
    lc_close(&g.newest)
    g.newest = made
    g.file[g.files].number = number
    g.file[g.files].size = sizeof(lc_head)
    g.file[g.files].last = 0
    g.files += 1
    return 0


cdef void _drop_files(lc_log *g, uint32_t count) noexcept nogil:
    cdef char path[PATH]
    cdef uint32_t i
    for i in range(count):
        _log_path(g, g.file[i].number, path)
        unlink(path)
    for i in range(count, g.files):
        g.file[i - count] = g.file[i]
    g.files -= count


cdef lc_log_block *_begin_block(lc_log *g, size_t size, uint32_t kind) noexcept nogil:
    # Append the head of a block to the buffer; return it, with the room behind it, or NULL.
    cdef lc_log_block *b = <lc_log_block *> wire_reserve(&g.buffer, sizeof(lc_log_block) + size)
    if b != NULL:
        b.size = <uint32_t> size
        b.kind = kind
        g.buffer.size += sizeof(lc_log_block) + size
    return b


cdef int _copy_slice(lc_log *g, uint64_t target) noexcept nogil:
    # Copy events up to `target` that the log has not into the buffer; return 1 if there may be more,
    # 0 if not, -1 without memory. Queue's mutex held. Sums are made later.
    cdef lc_queue *h = g.queue
    cdef lc_spool *s = h.spool
    cdef lc_chunk *c
    cdef lc_log_block *b
    cdef uint32_t at = s.first_to_log, following
    g.buffer.size = 0
    if s.to_log.n:
        b = _begin_block(g, s.to_log.n * sizeof(lc_outcome), BLOCK_OUTCOMES)
        if b == NULL:
            return -1
        memcpy(b + 1, s.to_log.items, s.to_log.n * sizeof(lc_outcome))
        s.to_log.n = 0
    while at:
        c = chunk_at(s, at - 1)
        following = c.log_behind
        if c.live > target:
            return 0
        if c.logged < c.used:
            if g.buffer.size > SLICE:
                return 1
            if (<lc_event *> (chunk_data(c) + c.logged)).seq <= target:
                b = _begin_block(g, c.used - c.logged, BLOCK_EVENTS)
                if b == NULL:
                    return -1
                memcpy(b + 1, chunk_data(c) + c.logged, c.used - c.logged)
                c.logged = c.used
        if c.logged >= c.used and c != h.ordinary.tail and c != h.kept.tail:
            lc_end_to_log(s, c)              # nothing more will be stored there
        at = following
    return 0


cdef int _write_slice(lc_log *g) noexcept nogil:
    cdef size_t at = 0
    cdef lc_log_block *b
    if g.buffer.size == 0:
        return 0
    while at < g.buffer.size:
        b = <lc_log_block *> (g.buffer.data + at)
        b.sum = xxh64_of(<const uint8_t *> b + 8, sizeof(lc_log_block) - 8 + b.size, g.head.salt)
        at += sizeof(lc_log_block) + b.size
    if not _write_all(g.newest.fd, g.buffer.data, g.buffer.size):
        return errno or EIO
    g.file[g.files - 1].size += g.buffer.size
    return 0


cdef void _log_all_again(lc_spool *s) noexcept nogil:
    # Have every chunk written to the log anew. Mutex held.
    cdef uint32_t i, p
    cdef lc_chunk *c
    for i in range(s.most):
        p = 0
        while s.segments[i].base != NULL and p < SLOTS:
            if s.segments[i].free >> p & 1:
                p += 1
                continue
            c = chunk_at(s, i * SLOTS + p)
            c.logged = 0
            if not c.to_log:
                lc_begin_to_log(s, c)
            p += (c.capacity + CHUNK_HEAD) // SLOT


cdef int _log_up_to_now(lc_log *g) noexcept nogil:
    # Write what the log has not, sync it, remove files that are not needed; return 0, or an errno.
    cdef lc_queue *h = g.queue
    cdef lc_spool *s = h.spool
    cdef uint64_t target, settled, size
    cdef uint32_t i, old
    cdef bint anew = False, some = False
    cdef int error = 0, more = 1
    size = _log_size(g)
    if not lc_is_ours(&g.newest) or g.file[g.files - 1].size > g.rotate or size > g.bound:
        if g.files == LOG_FILES:
            _drop_files(g, 1)
        error = _next_file(g)
        if error:
            return error
        some = True
        anew = size > g.bound
    old = g.files - 1
    lc_mutex_lock(&h.mutex)
    target = h.next_seq - 1
    if anew:
        _log_all_again(s)
    while more:
        more = _copy_slice(g, target)
        lc_mutex_unlock(&h.mutex)
        some = some or g.buffer.size > 0
        error = ENOMEM if more < 0 else _write_slice(g)
        if error:
            return error
        lc_mutex_lock(&h.mutex)
    settled = h.settled
    lc_mutex_unlock(&h.mutex)
    if some and lc_sync(g.newest.fd) < 0:
        return errno
    g.file[g.files - 1].last = target
    lc_mutex_lock(&h.mutex)
    s.logged = target
    if s.log_waiters:
        lc_cond_wake_all(&h.changed)
    lc_mutex_unlock(&h.mutex)
    if anew:
        _drop_files(g, old)
    i = 0
    while i + 1 < g.files and g.file[i].last <= settled:
        i += 1
    _drop_files(g, i)
    return 0


cdef int _write_log(lc_spool *s) noexcept nogil:
    # Bring the log up to now, for the sender and for the thread; return 0, or the errno that ended the log.
    cdef lc_log *g = <lc_log *> s.log
    cdef int error
    lc_mutex_lock(&g.mutex)
    if g.error == 0:
        g.error = _log_up_to_now(g)
        if g.error:
            lc_mutex_lock(&g.queue.mutex)
            s.logs = False
            s.logs_first = False
            if s.log_waiters:
                lc_cond_wake_all(&g.queue.changed)
            lc_mutex_unlock(&g.queue.mutex)
    error = g.error
    lc_mutex_unlock(&g.mutex)
    return error


cdef class Log:
    """The log of one owner's spool, for what the end of the machine would take.

    Args:
        segments: of the owner.
        first: nothing is sent before the log has it (``spool_sync=batch``).
        size: bytes of all files, beyond which what is still needed is written anew.
    """

    cdef Segments segments
    cdef lc_log *g

    def __cinit__(self, Segments segments not None, bint first, uint64_t size):
        cdef lc_log *g = <lc_log *> calloc(1, sizeof(lc_log))
        if g == NULL:
            raise MemoryError
        self.segments = segments
        self.g = g
        lc_mutex_init(&g.mutex)
        g.queue = segments.h
        g.prefix = segments.prefix
        g.head = segments.head
        memcpy(g.head.magic, b"lcsplog\x01", 8)
        g.head.size = 0
        g.newest.fd = -1
        g.bound = size
        g.rotate = max(size // 16, <uint64_t> 1 << 20)
        segments.s.log = g
        segments.s.write_log = &_write_log
        lc_mutex_lock(&segments.h.mutex)
        segments.s.logs = True
        segments.s.logs_first = first
        lc_mutex_unlock(&segments.h.mutex)

    def __dealloc__(self):
        if self.g != NULL:
            free(self.g.buffer.data)
            free(self.g)

    def write(self):
        """Bring the log up to now, on the disk, without the GIL.

        Raises:
            OSError: it cannot be written; it has ended.
        """
        cdef int error
        with nogil:
            error = _write_log(self.segments.s)
        if error:
            raise OSError(error, strerror(error).decode(), self.segments.directory)

    def write_all(self):
        """Do as ``write`` with everything that is in the segments: the client ends."""
        lc_mutex_lock(&self.segments.h.mutex)
        _log_all_again(self.segments.s)
        lc_mutex_unlock(&self.segments.h.mutex)
        self.write()

    def serve(self, double seconds, double every):
        """Do as ``write`` every so many seconds, for `seconds` or until woken."""
        cdef lc_queue *h = self.segments.h
        cdef lc_spool *s = self.segments.s
        cdef double now = lc_monotonic()
        cdef double end = now + seconds
        cdef double begun
        cdef int error = 0
        with nogil:
            while error == 0 and now < end and not s.closed and not s.woken:
                begun = now
                error = _write_log(s)
                lc_mutex_lock(&h.mutex)
                s.log_asked = False
                while not s.closed and not s.woken and not s.log_asked:
                    now = lc_monotonic()
                    if now >= begun + every:
                        break
                    lc_cond_wait(&s.more, &h.mutex, begun + every - now)
                lc_mutex_unlock(&h.mutex)
                now = lc_monotonic()
        if error > 0:
            raise OSError(error, strerror(error).decode(), self.segments.directory)

    def close(self, bint keep):
        """End the log; remove its files unless they are to stay."""
        cdef lc_log *g = self.g
        cdef lc_spool *s = self.segments.s
        with nogil:
            lc_mutex_lock(&g.mutex)
            s.logs = False
            s.logs_first = False
            g.error = g.error or CLOSED
            lc_close(&g.newest)
            if not keep:
                _drop_files(g, g.files)
            lc_mutex_unlock(&g.mutex)

    def abandon(self):
        """In a forked child, close the parent's file."""
        lc_close(&self.g.newest)
