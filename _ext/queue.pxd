# The C side of the queue: for the formatter (put), the batches (take) and the senders (wake, linger).

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from logclient._ext.codec cimport lc_outcome, lc_outcomes
from logclient._ext.constants cimport FILTER_COUNT


cdef extern from "platform.h" nogil:
    ctypedef struct lc_mutex:
        pass
    ctypedef struct lc_cond:
        pass
    ctypedef struct lc_wake:
        pass
    void lc_at_fork(void (*forked)() noexcept nogil)
    void lc_mutex_init(lc_mutex *m)
    void lc_mutex_lock "pthread_mutex_lock"(lc_mutex *m)
    void lc_mutex_unlock "pthread_mutex_unlock"(lc_mutex *m)
    void lc_cond_init(lc_cond *c)
    void lc_cond_wake_all "pthread_cond_broadcast"(lc_cond *c)
    void lc_cond_wait(lc_cond *c, lc_mutex *m, double seconds)
    double lc_monotonic()
    int64_t lc_wall_us()
    uint64_t lc_ticks()
    void lc_publish(uint64_t *word, uint64_t value)
    uint64_t LC_SOON
    void *lc_pages(size_t size)
    void lc_pages_free(void *p, size_t size)
    void lc_wake_init(lc_wake *w)
    bint lc_wake_is_open(const lc_wake *w)
    void lc_wake_open(lc_wake *w)
    void lc_wake_set(lc_wake *w)
    void lc_wake_clear(lc_wake *w)
    int LC_UNWOKEN_MS
    void lc_wake_wait(lc_wake *w, double seconds)
    int lc_wake_fd(lc_wake *w)
    void lc_wake_close(lc_wake *w)
    ctypedef struct lc_shared:
        uint64_t used
        uint64_t limit
        uint64_t generation
    uint64_t lc_shared_get(uint64_t *word)
    void lc_shared_add(uint64_t *word, uint64_t value)
    bint lc_shared_claim(lc_shared *s, uint64_t before, uint64_t after, uint64_t slack)


# How many forks lie between the first process and this one. There is this counter and no other: whoever
# compares a generation, in whatever extension, reads the one that the fork's hook increments.
cdef uint64_t lc_forks

cdef enum:
    SLOT = 65536             # bytes of a slot in a spool
    SLOTS = 64               # of a segment
    CHUNK_HEAD = 64          # bytes of a slot that are no event's
    SEGMENT_HEAD = 4096      # bytes before its first slot
    JOURNAL_AT = 1024        # where its journal begins
    OUTCOMES = 120           # that a journal has room for
    EVENT_SETTLED = 0x80     # a flag of an event's level: it has its outcome

# The header of each body in a chunk. Bodies are padded to 8 bytes, the last one of a full chunk to its end:
# no other event can use that room, so it counts. In a spool `seq` is stored last, and that of the slot
# behind it is 0 before that: so a reader finds whole events only, whenever this process is killed.
ctypedef struct lc_event:
    uint64_t seq
    int64_t created_us
    uint32_t size
    uint8_t level
    uint8_t kind
    uint16_t pad             # beyond the 8 bytes

# A block of events, oldest first: `count` of them between `read` and `used`. Once it is detached, `owners`
# counts the batches and lists that point into it.
ctypedef struct lc_chunk:
    lc_chunk *next
    uint32_t capacity
    uint32_t used
    uint32_t read
    uint32_t last            # where the newest event begins
    uint32_t count
    uint32_t owners
    uint32_t slot            # in a spool: 1 + its first slot, counted over all segments; 0: in memory
    uint32_t logged          # in a spool with a log: bytes that the log has
    uint32_t log_before      # of the chunks that the log has not whole: the slots of the neighbours; 0: none
    uint32_t log_behind
    uint8_t size_class       # SIZE_CLASSES: freed once it is empty, not reused
    uint8_t kept             # of the list `kept`
    uint8_t stays            # left in the spool for another process: its slots are not used again
    uint8_t to_log           # in the list of the log
    uint64_t live            # in a spool: the next sequence when it was begun, stored last; 0: free

ctypedef struct lc_list:
    lc_chunk *head
    lc_chunk *tail

# A segment of a spool: a file that is mapped, with 64 slots for chunks.
ctypedef struct lc_segment:
    uint8_t *base            # of the file; NULL: not mapped
    uint64_t free            # bit i: slot i is free
    uint64_t touched         # bytes whose pages are there: a store into others costs a page fault
    uint8_t whole            # all of them

# Outcomes since the ledger was written, in the head of a spool's first segment.
ctypedef struct lc_journal:
    uint64_t n               # stored last
    uint64_t full            # some outcomes found no room
    uint64_t unspooled       # 1: some events are in memory only
    lc_outcome items[OUTCOMES]

# The memory of a queue in mapped files (spool.pyx). Protected by the queue's mutex.
ctypedef struct lc_spool:
    lc_segment *segments
    uint32_t most            # entries of `segments`
    uint32_t limit           # segments that may be mapped: fewer than `most` once the disk was full
    uint32_t mapped          # segments that are mapped
    uint32_t untouched       # of these, how many are not whole
    uint32_t free_slots
    uint32_t free_touched    # in whole segments
    uint32_t least_free      # the lowest free_slots since it was looked at
    uint32_t ready           # free touched slots below which more are prepared
    uint8_t always           # every event goes here; else only what memory_bytes cannot take
    uint8_t asked            # more slots are wanted
    uint8_t wanted           # a segment: no free slots in a row were enough for an event
    uint8_t closed           # no segment will be added
    uint8_t woken            # its thread is to look around
    uint8_t awaited          # AWAIT_: what callers wait for, because memory is full and no slot is free
    uint8_t logs             # a log is written, for what the machine's end would take
    uint8_t logs_first       # nothing is sent before the log has it
    uint32_t first_to_log    # chunks that the log has not whole: slots; 0: none
    uint32_t last_to_log
    uint64_t logged          # every event up to this sequence is on the disk
    lc_outcomes to_log       # outcomes that the log has not
    int (*write_log)(lc_spool *s) noexcept nogil
    void *log                # of spool.pyx
    uint32_t log_waiters     # callers that wait until the disk has their event
    uint8_t log_asked        # one of them, at once
    lc_journal *journal      # NULL: no segment is mapped
    uint64_t memory_bytes    # bound on the chunks in memory
    uint64_t chunk_bytes     # of the chunks in memory that are used
    lc_cond more             # `asked`, `log_asked`, `woken` or `closed` was set

# The place in line of a caller that waits for room. Granted room counts as held.
ctypedef struct lc_ticket:
    lc_ticket *behind
    uint64_t room
    uint8_t state

# Copies of the events that are lost, until the sender takes them. It is locked last, also beside the queue.
ctypedef struct lc_lost:
    lc_mutex mutex
    uint8_t *data            # of each event: its head, whose `pad` is reason << 8 | status, and its body
    size_t used
    size_t room
    lc_outcomes bare         # the events that found no room
    uint64_t omitted         # events that are in neither

cdef enum:
    TICKET_NONE = 0
    TICKET_WAITS = 1
    TICKET_GRANTED = 2
    AWAIT_NOTHING = 0
    AWAIT_SLOT = 1           # a segment, or a chunk of this queue
    AWAIT_SHARED = 2         # room in the bound of all queues
    SIZE_CLASSES = 81        # of chunks that are reused: 64 KiB, and in steps of 1/16 up to 2 MiB
    SENDER_IDLE = 0          # asleep until woken
    SENDER_LINGERING = 1     # will look again soon; woken only by an error or a full window
    SENDER_BUSY = 2          # awake: needs no wake-up
    DROP_OLDEST = 0
    DROP_NEW = 1
    BLOCK = 2
    RAISE = 3

# What a queue is made with. A fork makes the child's of the parent's.
ctypedef struct lc_queue_options:
    uint64_t max_events
    uint64_t max_bytes
    uint32_t max_event_bytes
    uint8_t policy
    uint8_t keep_level       # events of this level and above are dropped last
    uint64_t full_events     # a full window: wakes a lingering sender
    uint64_t full_bytes
    double free_after        # seconds until unneeded free chunks are freed


ctypedef struct lc_queue:
    lc_mutex mutex
    lc_cond changed          # an outcome was given, or room was made
    lc_wake wake
    uint64_t generation      # lc_forks when this was made
    lc_list ordinary
    lc_list kept             # events at keep_level and above: dropped last
    lc_chunk *free[SIZE_CLASSES]
    uint64_t free_bytes
    uint64_t free_least      # the lowest free_bytes since free_since: these were not needed
    double free_since
    lc_chunk *surplus        # chunks beyond the limit: freed after the mutex is released
    uint64_t queued_events
    uint64_t queued_bytes
    uint64_t kept_events     # of the queued: those in `kept`
    uint64_t kept_bytes
    uint64_t held_events     # detached and without an outcome; and granted room
    uint64_t held_bytes      # of whole batches, until the last of their events is settled; and granted room
    uint64_t granted_events  # of the held: room granted to callers that have waited for it
    uint64_t granted_bytes
    lc_queue_options options
    uint64_t max_events      # the bounds, also of a spool and of `shared`
    uint64_t max_bytes
    lc_shared *shared        # the bound of several queues; NULL: none
    uint64_t claimed         # of it, by this queue
    uint32_t max_event_bytes
    lc_spool *spool          # NULL: none
    lc_lost *lost            # NULL: nobody wants copies of them
    uint8_t unopened         # the spool is to be opened before the next event
    uint8_t full_reason      # of events that are dropped at a bound
    uint8_t closed
    uint8_t sender_state
    uint8_t urgent_wake_used     # an error has ended a linger early: the next one lasts its full time
    uint8_t released         # there will be no sender any more: `wake` is closed once no caller writes to it
    uint8_t fork_safe        # the sender sleeps and touches nothing that a forked child would use
    uint8_t fork_paused      # a fork is prepared: a fork-safe sender goes on sleeping
    uint32_t waking          # callers that are about to write to `wake`
    int needs_sender         # != 0: the caller must call Producer.wake() after a put
    uint64_t clock_ticks     # when clock_us was read
    int64_t clock_us         # wall clock, a few microseconds old at most
    uint64_t next_seq
    uint64_t settled         # every event up to this sequence has its outcome
    uint64_t flush_target    # a caller waits until settled >= flush_target; 0: none does
    uint32_t waiters         # callers that wait for outcomes; the target is the lowest of theirs
    lc_ticket *first_ticket      # callers that wait for room, in the order of arrival
    uint64_t inflight        # of the held: sent, without an outcome
    uint64_t acked
    uint64_t handed
    uint64_t stored
    uint64_t resent
    uint64_t sanitized
    uint64_t moved_fields
    uint64_t ignored
    uint64_t filtered[FILTER_COUNT]
    uint64_t failed[24]
    uint64_t dropped[24]

# Queue a copy of one body; created_us 0: now. Return its sequence, or a PUT_ code (0 or less).
cdef int64_t lc_put(lc_queue *h, const uint8_t *body, size_t size, uint8_t level, uint8_t kind,
                    int64_t created_us, lc_ticket *ticket) noexcept nogil
cdef bint lc_grant_room(lc_queue *h) noexcept nogil
cdef void lc_lose(lc_queue *h, uint64_t seq, const uint8_t *body, uint32_t size, uint8_t kind, uint8_t status,
                  uint8_t reason) noexcept nogil
cdef size_t lc_lost_room(lc_queue *h) noexcept nogil
cdef void lc_release_chunk(lc_queue *h, lc_chunk *chunk) noexcept nogil
cdef void lc_trim_free(lc_queue *h, double now) noexcept nogil
cdef void lc_free_chunks(lc_chunk *chain) noexcept nogil
cdef void lc_unlock(lc_queue *h) noexcept nogil
cdef void lc_leave_fork_safe(lc_queue *h) noexcept nogil

cdef void lc_begin_to_log(lc_spool *s, lc_chunk *c) noexcept nogil
cdef void lc_end_to_log(lc_spool *s, lc_chunk *c) noexcept nogil
cdef void lc_free_slots(lc_spool *s, uint32_t first, uint32_t n) noexcept nogil
cdef bint lc_keep_chunk(lc_queue *h, lc_chunk *c) noexcept nogil

# Return the chunk that begins at a slot, counted over all segments from 0.
cdef inline lc_chunk *chunk_at(lc_spool *s, uint32_t slot) noexcept nogil:
    return <lc_chunk *> (s.segments[slot // SLOTS].base + SEGMENT_HEAD + <size_t> (slot % SLOTS) * SLOT)

cdef inline uint8_t *chunk_data(lc_chunk *c) noexcept nogil:
    return <uint8_t *> (c + 1)

cdef inline lc_chunk *take_chunk(lc_list *list) noexcept nogil:
    cdef lc_chunk *c = list.head
    list.head = c.next
    if list.head == NULL:
        list.tail = NULL
    c.next = NULL
    return c

cdef inline void append_chunk(lc_list *list, lc_chunk *c) noexcept nogil:
    if list.tail == NULL:
        list.head = c
    else:
        list.tail.next = c
    list.tail = c

cdef inline uint64_t event_room(uint32_t size) noexcept nogil:
    return sizeof(lc_event) + ((<uint64_t> size + 7) & ~(<uint64_t> 7))

cdef inline uint64_t event_takes(lc_event *e) noexcept nogil:
    return event_room(e.size) + e.pad

cdef inline lc_event *first_event(lc_list *list) noexcept nogil:
    return <lc_event *> (chunk_data(list.head) + list.head.read) if list.head != NULL else NULL

# Count events, and bytes of them, that a list of the queue has got; negative: that have left it. Mutex held.
cdef inline void count_queued(lc_queue *h, lc_list *list, int64_t events, int64_t size) noexcept nogil:
    h.queued_events += events
    h.queued_bytes += size
    if list == &h.kept:
        h.kept_events += events
        h.kept_bytes += size


cdef class SharedBound:
    cdef lc_shared *s
    cdef lc_shared *here(self) noexcept


cdef class EventQueue:
    cdef lc_queue *h
    cdef SharedBound shared       # keeps `h.shared` alive
    cdef int _make(self, const lc_queue_options *options, lc_lost *lost) except -1
    cdef void _share(self) noexcept
