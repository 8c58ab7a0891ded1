# The hand-off's C side: for the formatter (put), the flight (take) and the senders (wake, nap).

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "platform.h" nogil:
    ctypedef struct lc_mutex:
        pass
    ctypedef struct lc_cond:
        pass
    ctypedef struct lc_wake:
        pass
    uint64_t lc_forks
    void lc_watch_forks()
    void lc_mutex_init(lc_mutex *m)
    void lc_mutex_lock(lc_mutex *m)
    void lc_mutex_unlock(lc_mutex *m)
    void lc_cond_init(lc_cond *c)
    void lc_cond_wake_all(lc_cond *c)
    void lc_cond_wait(lc_cond *c, lc_mutex *m, double seconds)
    double lc_monotonic()
    int64_t lc_wall_us()
    uint64_t lc_ticks()
    uint64_t LC_SOON
    const char *LC_WAKE
    void *lc_pages(size_t size)
    void lc_pages_free(void *p, size_t size)
    int lc_wake_open(lc_wake *w)
    void lc_wake_set(lc_wake *w)
    void lc_wake_clear(lc_wake *w)
    void lc_wake_wait(lc_wake *w, double seconds)
    int lc_wake_fd(lc_wake *w)
    void lc_wake_mend(lc_wake *w)
    void lc_wake_close(lc_wake *w)


# What precedes each body in a chunk; bodies are padded to 8 bytes, the last of a full chunk to its end:
# that room is lost for others, so it counts.
ctypedef struct lc_event:
    uint64_t seq
    int64_t created_us
    uint32_t size
    uint8_t level
    uint8_t kind
    uint16_t pad             # beyond the 8 bytes

# A block of events, oldest first: `count` of them between `read` and `used`. `owners` counts who still
# points into it once it is detached.
ctypedef struct lc_chunk:
    lc_chunk *next
    uint32_t capacity
    uint32_t used
    uint32_t read
    uint32_t last            # where the newest event begins
    uint32_t count
    uint32_t owners
    uint32_t size_class      # SIZE_CLASSES: none, it is freed once it is empty

ctypedef struct lc_list:
    lc_chunk *head
    lc_chunk *tail

# The place of a caller that waits for room. Once it is granted, the room is counted as held for it.
ctypedef struct lc_turn:
    lc_turn *before
    lc_turn *behind
    uint64_t room
    uint8_t state

cdef enum:
    TURN_NONE = 0
    TURN_WAITS = 1
    TURN_GRANTED = 2

cdef enum:
    SIZE_CLASSES = 81        # of chunks that are used again: 64 KiB, and each 1/16 up to 2 MiB

cdef enum:
    SENDER_IDLE = 0      # asleep until woken
    SENDER_NAP = 1       # looks again within the nap; woken only by an ERROR or a full window
    SENDER_BUSY = 2      # awake: no wake needed

cdef enum:
    DROP_OLDEST = 0
    DROP_NEW = 1
    BLOCK = 2
    RAISE = 3

ctypedef struct lc_handoff:
    lc_mutex mutex
    lc_cond moved            # a fate was given, or room was made
    lc_wake wake
    uint64_t generation      # lc_forks when it was made
    lc_list queue            # ordinary events
    lc_list kept             # events at keep_level and above: dropped last
    lc_chunk *free[SIZE_CLASSES]
    uint64_t free_bytes
    uint64_t free_least      # of them: what nobody has needed since free_since
    double free_since
    double keep              # seconds
    lc_chunk *surplus        # more than is kept: freed once the mutex is let go
    uint64_t queued_events
    uint64_t queued_bytes
    uint64_t kept_events     # of the queued: those in `kept`
    uint64_t kept_bytes
    uint64_t held_events     # detached (in a batch or between) and without a fate; and granted
    uint64_t held_bytes      # of whole batches: until the last of their events has its fate; and granted
    uint64_t granted_events  # of the held: room for callers that have waited for it
    uint64_t granted_bytes
    uint64_t max_events
    uint64_t max_bytes
    uint32_t max_event_bytes
    uint64_t full_events     # a full window: worth waking a napping sender
    uint64_t full_bytes
    uint8_t policy
    uint8_t keep_level
    uint8_t closed
    uint8_t state
    uint8_t urged            # an ERROR has cut a nap short: the next one is slept through
    uint8_t released         # there will be no sender any more: `wake` is closed, once nobody writes to it
    uint8_t wake_closed
    uint8_t resting          # the sender sleeps and touches nothing that a forked child would use
    uint8_t paused           # for a fork: a sender that rests goes on resting
    uint32_t waking          # callers that are about to write to `wake`
    int attention            # != 0: the caller must call Client._attend() after a put
    uint64_t clock_ticks     # when clock_us was read
    int64_t clock_us         # wall clock, a few microseconds old at most
    uint64_t next_seq
    uint64_t settled         # every sequence up to here has its fate
    uint64_t target          # somebody waits until settled >= target; 0 = nobody
    uint32_t waiters         # for fates; their target is never above what the first of them waits for
    lc_turn *line            # of callers that wait for room: who came first
    lc_turn *line_end
    uint64_t inflight        # of the held: on the wire, no word yet
    uint64_t acked
    uint64_t handed
    uint64_t resent
    uint64_t mangled
    uint64_t moved_fields
    uint64_t ignored
    uint64_t failed[16]
    uint64_t dropped[16]

cdef int64_t lc_put(lc_handoff *h, const uint8_t *body, uint32_t size, uint8_t level, uint8_t kind,
                    int64_t created_us, lc_turn *turn) noexcept nogil
cdef bint lc_grant(lc_handoff *h) noexcept nogil
cdef void lc_release(lc_handoff *h, lc_chunk *chunk) noexcept nogil
cdef void lc_tidy(lc_handoff *h, double now) noexcept nogil
cdef lc_chunk *lc_surplus(lc_handoff *h) noexcept nogil
cdef void lc_free(lc_chunk *chain) noexcept nogil
cdef void lc_rested(lc_handoff *h) noexcept nogil

cdef inline uint8_t *chunk_data(lc_chunk *c) noexcept nogil:
    return <uint8_t *> (c + 1)

cdef inline uint64_t event_room(uint32_t size) noexcept nogil:
    return sizeof(lc_event) + ((<uint64_t> size + 7) & ~(<uint64_t> 7))

cdef inline uint64_t event_takes(lc_event *e) noexcept nogil:
    return event_room(e.size) + e.pad


cdef class Handoff:
    cdef lc_handoff *h
    # For compiled callers: > 0 the sequence, else a PUT_ code; created_us 0 means now.
    cdef int64_t put(self, const uint8_t *body, uint32_t size, uint8_t level, uint8_t kind,
                     int64_t created_us) noexcept nogil
    cdef int attention(self) noexcept nogil
    cdef int _make(self, lc_handoff *like) except -1


cdef class Turn:
    cdef Handoff handoff     # keeps the memory of `h`, which after a fork is the parent's
    cdef lc_handoff *h
    cdef lc_turn turn
    cdef void _give_up(self) noexcept nogil
    cdef bint _look(self) noexcept nogil
