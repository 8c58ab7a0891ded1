"""The hand-off: a bounded queue of bytes between the caller's thread and the sender.

One mutex, held for a memcpy and a few pointer moves, never while Python runs: a log call inside a
destructor or a signal handler can interrupt any Python code, but never code that holds the mutex.
Events lie one after the other in 64 KiB chunks; the sender detaches whole chunks (``flight.pyx``) and
works on them outside the mutex. ``drop_oldest`` moves the head; events at ``keep_level`` and above
lie in a list of their own and go last.

The C struct is renewed after a fork, and the old one leaked on purpose: another thread of the parent
may have held its mutex. The Python object stays the same.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EMFILE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from logclient._ext.constants cimport (
    K_MASK,
    K_TOMB,
    PUT_DROPPED,
    PUT_FORKED,
    PUT_FULL,
    PUT_MEMORY,
    R_CLOSED,
    R_COUNT,
    R_OVERFLOW,
    R_TOO_LARGE,
)

from logclient._ext.constants import REASONS

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    CHUNK = 65536 - 64        # its own header is inside the 64 KiB
    KEEP = 1 << 22            # bytes of empty chunks kept however long nobody needs them
    ERROR_LEVEL = 4
    SLICE_MS = 50             # a waiting caller looks for signals this often

WAKE = LC_WAKE.decode()
POLICIES = {"drop_oldest": DROP_OLDEST, "drop_new": DROP_NEW, "block": BLOCK, "raise": RAISE}


def monotonic():
    """The clock of the hand-off and of the senders, in seconds; on POSIX that of time.monotonic()."""
    return lc_monotonic()


# Empty chunks are kept for those to come: pages fresh from the system are zeroed one by one, which makes a
# push of 300 bytes three times as dear and one of 64 KiB eight times. With what is queued and held they are
# no more than max_bytes, and KEEP; what nobody needed for `keep` seconds is given back, but for KEEP.

cdef inline uint32_t _class_of(uint64_t room, uint64_t *size) noexcept nogil:
    # The class of a chunk with so much room, and what a chunk of it takes; SIZE_CLASSES: none.
    cdef uint64_t last = room + (65536 - CHUNK) - 1
    cdef uint32_t step = 12
    if last < 65536:
        size[0] = 65536
        return 0
    if last >= 65536 << (SIZE_CLASSES - 1) // 16:
        size[0] = last + 1
        return SIZE_CLASSES
    while last >> step >= 32:
        step += 1
    size[0] = (last >> step) + 1 << step
    return 1 + 16 * (step - 12) + <uint32_t> (last >> step) - 16


cdef inline uint64_t _size_of(const lc_chunk *c) noexcept nogil:
    # The class's, whatever of it this chunk uses.
    cdef uint64_t size
    _class_of(c.capacity, &size)
    return size


cdef lc_chunk *_pop(lc_handoff *h, uint32_t size_class) noexcept nogil:
    cdef lc_chunk *c = h.free[size_class]
    if c != NULL:
        h.free[size_class] = c.next
        h.free_bytes -= _size_of(c)
        h.free_least = min(h.free_least, h.free_bytes)
    return c


cdef void _shed(lc_handoff *h, uint64_t size) noexcept nogil:
    # Give up so many bytes of empty chunks, the largest first.
    cdef lc_chunk *c
    cdef uint32_t k = SIZE_CLASSES
    cdef uint64_t until = h.free_bytes - size if size < h.free_bytes else 0
    while k and h.free_bytes > until:
        c = _pop(h, k - 1)
        if c == NULL:
            k -= 1
        else:
            c.next = h.surplus
            h.surplus = c


cdef lc_chunk *_new_chunk(lc_handoff *h, uint64_t room) noexcept nogil:
    # Called with the mutex held. A chunk that was used before, or a fresh one.
    cdef lc_chunk *c = NULL
    cdef uint64_t size, all_
    cdef uint32_t size_class = _class_of(room, &size)
    if size_class < SIZE_CLASSES:
        c = _pop(h, size_class)
    if c == NULL:
        all_ = h.queued_bytes + h.held_bytes + h.free_bytes + size
        if all_ > h.max_bytes and h.free_bytes > KEEP:
            _shed(h, min(all_ - h.max_bytes, h.free_bytes - KEEP))
        c = <lc_chunk *> lc_pages(size)
        if c == NULL:
            return NULL
        c.size_class = size_class
    # What a larger class has beyond it is not used: it would count as wasted.
    c.capacity = <uint32_t> (CHUNK if size_class == 0 else room)
    c.next = NULL
    c.used = 0
    c.read = 0
    c.count = 0
    c.owners = 0
    return c


cdef void lc_release(lc_handoff *h, lc_chunk *c) noexcept nogil:
    # Called with the mutex held; see lc_surplus.
    cdef uint64_t free_ = h.free_bytes + _size_of(c)
    if c.size_class < SIZE_CLASSES and (
            free_ <= KEEP or h.queued_bytes + h.held_bytes + free_ <= h.max_bytes):
        c.next = h.free[c.size_class]
        h.free[c.size_class] = c
        h.free_bytes = free_
    else:
        c.next = h.surplus
        h.surplus = c


cdef void lc_tidy(lc_handoff *h, double now) noexcept nogil:
    # Called with the mutex held, now and then.
    if now - h.free_since < h.keep:
        return
    if h.free_least > KEEP:
        _shed(h, h.free_least - KEEP)
    h.free_since = now
    h.free_least = h.free_bytes


cdef lc_chunk *lc_surplus(lc_handoff *h) noexcept nogil:
    # Called with the mutex held: what is to be freed once it no longer is.
    cdef lc_chunk *chain = h.surplus
    h.surplus = NULL
    return chain


cdef void lc_free(lc_chunk *chain) noexcept nogil:
    cdef lc_chunk *following
    while chain != NULL:
        following = chain.next
        lc_pages_free(chain, _size_of(chain))
        chain = following


cdef int _drop_head(lc_handoff *h, lc_list *list) noexcept nogil:
    # Push out the oldest event of a list: 1, or 0 when there is none.
    cdef lc_chunk *c = list.head
    cdef lc_event *e
    cdef uint64_t room
    if c == NULL:
        return 0
    e = <lc_event *> (chunk_data(c) + c.read)
    room = event_takes(e)
    c.read += <uint32_t> room
    c.count -= 1
    h.queued_events -= 1
    h.queued_bytes -= room
    if list == &h.kept:
        h.kept_events -= 1
        h.kept_bytes -= room
    h.dropped[<int> R_OVERFLOW] += 1
    if c.read == c.used:
        list.head = c.next
        if list.head == NULL:
            list.tail = NULL
        lc_release(h, c)
    return 1


cdef inline bint _over(lc_handoff *h, uint64_t room) noexcept nogil:
    return (h.queued_bytes + h.held_bytes + room > h.max_bytes
            or h.queued_events + h.held_events >= h.max_events)


cdef inline bint _hopeless(lc_handoff *h, uint64_t room, bint keep) noexcept nogil:
    # Whether pushing out all that this event may push out would still not be enough.
    cdef uint64_t size = h.held_bytes + room
    cdef uint64_t events = h.held_events
    if not keep:
        size += h.kept_bytes
        events += h.kept_events
    return size > h.max_bytes or events >= h.max_events


cdef inline uint64_t _waste(lc_list *list, uint64_t room) noexcept nogil:
    # What stays empty at the end of the list's last chunk when an event of this room needs another.
    cdef lc_chunk *c = list.tail
    if c == NULL or c.capacity - c.used >= room:
        return 0
    return c.capacity - c.used


cdef inline void _pad(lc_handoff *h, lc_list *list, uint64_t size) noexcept nogil:
    # Count what stays empty with the newest event: memory that nobody else can use.
    cdef lc_chunk *c = list.tail
    cdef lc_event *e = <lc_event *> (chunk_data(c) + c.last)
    e.pad = <uint16_t> size
    c.used += <uint32_t> size
    h.queued_bytes += size
    if list == &h.kept:
        h.kept_bytes += size


cdef void _leave(lc_handoff *h, lc_turn *turn) noexcept nogil:
    # Called with the mutex held: give up the place in the line, or the room that was granted.
    if turn.state == TURN_GRANTED:
        h.held_events -= 1
        h.held_bytes -= turn.room
        h.granted_events -= 1
        h.granted_bytes -= turn.room
    elif turn.state == TURN_WAITS:
        if turn.before != NULL:
            turn.before.behind = turn.behind
        else:
            h.line = turn.behind
        if turn.behind != NULL:
            turn.behind.before = turn.before
        else:
            h.line_end = turn.before
    turn.state = TURN_NONE


cdef bint lc_grant(lc_handoff *h) noexcept nogil:
    # Called with the mutex held: room for those that wait, first come, first served. True: wake them all.
    # What is granted counts as held, so that a put which comes now cannot take it.
    cdef lc_turn *turn
    cdef bint some = False
    while h.line != NULL and not _over(h, h.line.room):
        turn = h.line
        _leave(h, turn)
        turn.state = TURN_GRANTED
        h.held_events += 1
        h.held_bytes += turn.room
        h.granted_events += 1
        h.granted_bytes += turn.room
        some = True
    return some


# The descriptor that wakes the sender is closed with the client, while callers may still refer to it: who
# is about to write to it says so first, or it could be another file's by then.

cdef inline bint _begin_wake(lc_handoff *h) noexcept nogil:
    # Called with the mutex held: whether there is somebody to wake; then _wake follows, without it.
    if h.released:
        return False
    h.waking += 1
    return True


cdef void _wake(lc_handoff *h) noexcept nogil:
    lc_wake_set(&h.wake)
    lc_mutex_lock(&h.mutex)
    h.waking -= 1
    _close_wake(h)
    lc_mutex_unlock(&h.mutex)


cdef inline void _close_wake(lc_handoff *h) noexcept nogil:
    # Called with the mutex held.
    if h.released and not h.waking and not h.wake_closed:
        h.wake_closed = True
        lc_wake_close(&h.wake)


cdef int64_t lc_put(lc_handoff *h, const uint8_t *body, uint32_t size, uint8_t level, uint8_t kind,
                    int64_t created_us, lc_turn *turn) noexcept nogil:
    # With a turn: the room that was granted to it, or what there is; never behind those that wait.
    cdef uint64_t room, waste, seq, ticks
    cdef lc_list *list
    cdef lc_chunk *c
    cdef lc_chunk *surplus
    cdef lc_event *e
    cdef uint8_t tomb
    cdef bint keep = level >= h.keep_level
    cdef bint wake = False
    if h.generation != lc_forks:
        return PUT_FORKED
    if size > h.max_event_bytes and (kind & K_MASK) != K_TOMB:
        # A tombstone takes its place, so that the event is counted and listed like any other.
        tomb = <uint8_t> R_TOO_LARGE
        body = &tomb
        size = 1
        kind = <uint8_t> K_TOMB
    room = event_room(size)
    ticks = lc_ticks()
    lc_mutex_lock(&h.mutex)
    if created_us == 0:
        if ticks - h.clock_ticks >= LC_SOON:
            h.clock_ticks = ticks
            h.clock_us = lc_wall_us()
        created_us = h.clock_us
    if turn != NULL:
        _leave(h, turn)
    if h.closed:
        h.dropped[<int> R_CLOSED] += 1
        lc_mutex_unlock(&h.mutex)
        return PUT_DROPPED
    if h.line != NULL and turn == NULL:
        lc_mutex_unlock(&h.mutex)
        return PUT_FULL
    list = &h.kept if keep else &h.queue
    if _over(h, room + _waste(list, room)):
        if h.policy == DROP_OLDEST and not _hopeless(h, room, keep):
            # Ordinary events go first; a kept one is pushed out only by another kept one.
            while _over(h, room + _waste(list, room)) and _drop_head(h, &h.queue):
                pass
            while _over(h, room + (_waste(list, room) if keep else 0)) and _drop_head(h, &h.kept):
                pass
        if _over(h, room):
            if h.policy == BLOCK or h.policy == RAISE:
                lc_mutex_unlock(&h.mutex)
                return PUT_FULL
            # The sequence is used up all the same: the gap is the drop, in the ledger too.
            h.next_seq += 1
            h.dropped[<int> R_OVERFLOW] += 1
            lc_mutex_unlock(&h.mutex)
            return PUT_DROPPED
    waste = _waste(list, room)
    c = list.tail
    if c == NULL or c.capacity - c.used < room:
        c = _new_chunk(h, room)
        if c == NULL:
            h.next_seq += 1
            h.dropped[<int> R_OVERFLOW] += 1
            lc_mutex_unlock(&h.mutex)
            return PUT_MEMORY
        if list.tail == NULL:
            list.head = c
        else:
            if waste:
                _pad(h, list, min(waste, h.max_bytes - h.queued_bytes - h.held_bytes - room))
            list.tail.next = c
        list.tail = c
    seq = h.next_seq
    h.next_seq = seq + 1
    e = <lc_event *> (chunk_data(c) + c.used)
    e.seq = seq
    e.created_us = created_us
    e.size = size
    e.level = level
    e.kind = kind
    e.pad = 0
    c.last = c.used
    memcpy(<uint8_t *> (e + 1), body, size)
    c.used += <uint32_t> room
    c.count += 1
    h.queued_events += 1
    h.queued_bytes += room
    if keep:
        h.kept_events += 1
        h.kept_bytes += room
    if h.state == SENDER_IDLE:
        wake = True
    elif h.state == SENDER_NAP:
        if level >= ERROR_LEVEL and not h.urged:
            # Waking costs the caller a system call: one a nap, however many errors there are.
            h.urged = True
            wake = True
        elif h.queued_events >= h.full_events or h.queued_bytes >= h.full_bytes:
            wake = True
    if wake:
        h.state = SENDER_BUSY
    surplus = lc_surplus(h)
    if wake:
        wake = _begin_wake(h)
    lc_mutex_unlock(&h.mutex)
    if wake:
        _wake(h)
    lc_free(surplus)
    return <int64_t> seq


# With the mutex held: the end of a rest, not before that of a pause.
cdef void lc_rested(lc_handoff *h) noexcept nogil:
    while h.paused:
        lc_cond_wait(&h.moved, &h.mutex, SLICE_MS / 1000.0)
    h.resting = False


cdef class Handoff:
    """A bounded queue of encoded events.

    Parameters
    ----------
    max_events, max_bytes
        Bounds over everything undelivered: queued, in flight and kept for a resend. The bytes of an
        event are its body rounded up to 8, and 24 for its header; what stays empty at the end of a
        chunk, because the next event did not fit, counts with the last one in it.
    max_event_bytes
        A longer body is counted failed(too_large); so is one that `max_bytes` could never hold.
    policy
        ``drop_oldest``, ``drop_new``, ``block`` or ``raise``: what happens when a bound is reached.
    keep_level
        Events at this ``levelno // 10`` and above are dropped last.
    full_events, full_bytes
        A full window: wakes a sender out of its nap.
    keep
        Seconds that memory is kept for reuse when nothing needs it; 4 MiB of it are kept for good.
    """

    def __cinit__(self, *, uint64_t max_events=250_000, uint64_t max_bytes=64 << 20,
                  uint32_t max_event_bytes=1 << 20, str policy="drop_new", uint8_t keep_level=4,
                  uint64_t full_events=2048, uint64_t full_bytes=1 << 20,
                  double keep=10.0):
        cdef lc_handoff like
        lc_watch_forks()
        like.max_events = max_events
        like.max_bytes = max_bytes
        # Else it would find no room in an empty queue, and whoever blocks for it would never wake.
        like.max_event_bytes = <uint32_t> min(
            <uint64_t> max_event_bytes, max(max_bytes, sizeof(lc_event)) - sizeof(lc_event) & ~(<uint64_t> 7))
        like.policy = POLICIES[policy]
        like.keep_level = keep_level
        like.full_events = full_events
        like.full_bytes = full_bytes
        like.keep = keep
        self._make(&like)

    cdef int _make(self, lc_handoff *like) except -1:
        cdef lc_handoff *h = <lc_handoff *> calloc(1, sizeof(lc_handoff))
        if h == NULL:
            raise MemoryError
        if lc_wake_open(&h.wake) < 0 and self.h == NULL:
            free(h)
            raise OSError(EMFILE, "no descriptor left to wake the sender with")
        lc_mutex_init(&h.mutex)
        lc_cond_init(&h.moved)
        h.generation = lc_forks
        h.max_events = like.max_events
        h.max_bytes = like.max_bytes
        h.max_event_bytes = like.max_event_bytes
        h.policy = like.policy
        h.keep_level = like.keep_level
        h.full_events = like.full_events
        h.full_bytes = like.full_bytes
        h.keep = like.keep
        h.next_seq = 1
        h.attention = 1
        h.state = SENDER_BUSY
        self.h = h
        return 0

    def __dealloc__(self):
        cdef lc_handoff *h = self.h
        if h == NULL:
            return
        # Only here when no sender holds a reference any more (the flight keeps one).
        lc_free(h.queue.head)
        lc_free(h.kept.head)
        lc_free(h.surplus)
        for i in range(<int> SIZE_CLASSES):
            lc_free(h.free[i])
        if not h.wake_closed:
            lc_wake_close(&h.wake)
        free(h)

    cdef int64_t put(self, const uint8_t *body, uint32_t size, uint8_t level, uint8_t kind,
                     int64_t created_us) noexcept nogil:
        return lc_put(self.h, body, size, level, kind, created_us, NULL)

    cdef int attention(self) noexcept nogil:
        return self.h.attention

    def push(self, bytes body not None, uint8_t level=2, uint8_t kind=0, int64_t created_us=0,
             Turn turn=None):
        """Queue one body; the sequence, 0 when it was dropped, or a negative ``PUT_`` code.

        The body is copied. Never blocks and never raises; thread-safe; safe in signal handlers. While
        callers wait for room (``turn``), a push without a turn finds none.
        """
        cdef lc_handoff *h = self.h
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(body)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        if size > 0xFFFFFFF0:
            size = 0xFFFFFFF0       # far over any max_event_bytes: a tombstone, its bytes are not read
        if turn is not None and turn.h != h:       # forked meanwhile: it is nobody's here
            turn.turn.state = TURN_NONE
            turn.h = h
        return lc_put(h, data, <uint32_t> size, level, kind, created_us, NULL if turn is None else &turn.turn)

    def turn(self, uint64_t size):
        """A place in the line for room of `size` bytes. Nobody stands in it before the first ``wait``."""
        return Turn(self, size)

    def renew(self):
        """In a forked child: an empty hand-off with the same bounds; the parent's is left alone."""
        cdef lc_handoff *parents = self.h
        if not parents.wake_closed:
            lc_wake_close(&parents.wake)   # our copy of the descriptor; the memory is left as it is
        self._make(parents)

    def mend(self):
        """Open what wakes the sender, in a child for which there was no descriptor when it was forked."""
        lc_wake_mend(&self.h.wake)

    @property
    def forked(self):
        """Whether this process was forked off since the hand-off was made."""
        return self.h.generation != lc_forks

    @property
    def needs_attention(self):
        """Set while a put must be followed by ``Client._attend()``."""
        return self.h.attention != 0

    @needs_attention.setter
    def needs_attention(self, bint value):
        self.h.attention = value

    @property
    def next_seq(self):
        """The sequence the next event will get."""
        cdef lc_handoff *h = self.h
        cdef uint64_t value
        lc_mutex_lock(&h.mutex)
        value = h.next_seq
        lc_mutex_unlock(&h.mutex)
        return value

    @property
    def queued(self):
        """Events and bytes that no batch has taken yet."""
        cdef lc_handoff *h = self.h
        cdef uint64_t events, size
        lc_mutex_lock(&h.mutex)
        events = h.queued_events
        size = h.queued_bytes
        lc_mutex_unlock(&h.mutex)
        return events, size

    @property
    def spare(self):
        """Bytes of memory kept for reuse, beside what is queued and in flight."""
        cdef lc_handoff *h = self.h
        cdef uint64_t size
        lc_mutex_lock(&h.mutex)
        size = h.free_bytes
        lc_mutex_unlock(&h.mutex)
        return size

    @property
    def settled(self):
        """Every sequence up to this one has its fate."""
        cdef lc_handoff *h = self.h
        cdef uint64_t value
        lc_mutex_lock(&h.mutex)
        value = h.settled
        lc_mutex_unlock(&h.mutex)
        return value

    def fits(self, uint64_t size):
        """Whether an event of this many bytes would be taken now."""
        cdef lc_handoff *h = self.h
        cdef bint answer
        lc_mutex_lock(&h.mutex)
        answer = h.closed or not _over(h, event_room(<uint32_t> min(size, h.max_event_bytes)))
        lc_mutex_unlock(&h.mutex)
        return answer

    @property
    def line(self):
        """How many callers wait for room."""
        cdef lc_handoff *h = self.h
        cdef lc_turn *turn
        cdef uint64_t count = 0
        lc_mutex_lock(&h.mutex)
        turn = h.line
        while turn != NULL:
            count += 1
            turn = turn.behind
        lc_mutex_unlock(&h.mutex)
        return count

    def refuse(self):
        """Count an event that found no room in time: its sequence is used up, dropped(overflow)."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        if h.closed:
            h.dropped[<int> R_CLOSED] += 1
        else:
            h.next_seq += 1
            h.dropped[<int> R_OVERFLOW] += 1
        lc_mutex_unlock(&h.mutex)

    def close(self):
        """Take nothing more: from now on dropped(closed)."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        h.closed = True
        lc_cond_wake_all(&h.moved)
        lc_mutex_unlock(&h.mutex)
        self.wake()

    def release(self):
        """Give back the descriptor and the memory: there is no sender any more, and never will be. What is
        put later is dropped and counted."""
        cdef lc_handoff *h = self.h
        cdef lc_chunk *surplus
        lc_mutex_lock(&h.mutex)
        h.closed = True
        h.released = True
        _close_wake(h)
        _shed(h, h.free_bytes)
        surplus = lc_surplus(h)
        lc_mutex_unlock(&h.mutex)
        lc_free(surplus)

    def wake(self):
        """Wake the sender, whatever it waits for."""
        cdef lc_handoff *h = self.h
        cdef bint wake
        lc_mutex_lock(&h.mutex)
        h.state = SENDER_BUSY
        wake = _begin_wake(h)
        lc_mutex_unlock(&h.mutex)
        if wake:
            _wake(h)

    def wait_for_wake(self, double seconds):
        """Sleep, without the GIL, until woken or `seconds` are over (the sender's rest in back-off)."""
        cdef lc_handoff *h = self.h
        if h.released:
            return
        self.rest()
        with nogil:
            lc_wake_wait(&h.wake, seconds)
        self.rested()

    def rest(self):
        """Announce a sleep of the sender, in which it touches nothing that a child would use: a fork needs
        not wait for its end."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        h.resting = True
        lc_mutex_unlock(&h.mutex)

    def rested(self):
        """The end of a ``rest``, once there is no ``pause``."""
        cdef lc_handoff *h = self.h
        with nogil:
            lc_mutex_lock(&h.mutex)
            lc_rested(h)
            lc_mutex_unlock(&h.mutex)

    def pause(self):
        """Before a fork: keep a sender that rests where it is; False when it is at work.

        Whatever wakes it, it touches nothing before ``go_on``.
        """
        cdef lc_handoff *h = self.h
        cdef bint rests
        lc_mutex_lock(&h.mutex)
        rests = h.resting
        h.paused = rests
        lc_mutex_unlock(&h.mutex)
        return rests

    def go_on(self):
        """The end of a ``pause``, in the parent."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        if h.paused:
            h.paused = False
            lc_cond_wake_all(&h.moved)
        lc_mutex_unlock(&h.mutex)

    def fileno(self):
        """The descriptor that becomes readable on a wake, or -1 where there is none (Windows; released)."""
        return -1 if self.h.released else lc_wake_fd(&self.h.wake)

    def doze(self, bint idle):
        """Announce a sleep that the caller does itself on ``fileno()``: False when there is work already."""
        cdef lc_handoff *h = self.h
        cdef bint sleep
        lc_mutex_lock(&h.mutex)
        sleep = not (idle and h.queued_events > 0)
        if sleep:
            h.state = SENDER_IDLE if idle else SENDER_NAP
        lc_mutex_unlock(&h.mutex)
        return sleep

    def woken(self):
        """Whether somebody ended a ``doze``: an event that must not wait, a flush, a stop."""
        cdef lc_handoff *h = self.h
        cdef bint answer
        lc_mutex_lock(&h.mutex)
        answer = h.state == SENDER_BUSY
        lc_mutex_unlock(&h.mutex)
        return answer

    def rouse(self):
        """The end of a ``doze``."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        if h.state == SENDER_NAP:
            h.urged = False         # slept through: an ERROR may cut the next one short
        h.state = SENDER_BUSY
        lc_mutex_unlock(&h.mutex)
        if not h.released:
            lc_wake_clear(&h.wake)

    def aim(self, uint64_t seq):
        """Have the pump come back as soon as every event up to `seq` has its fate."""
        cdef lc_handoff *h = self.h
        lc_mutex_lock(&h.mutex)
        if h.settled < seq and (h.target == 0 or seq < h.target):
            h.target = seq
        lc_mutex_unlock(&h.mutex)

    def wait_settled(self, uint64_t seq, double seconds):
        """Sleep, without the GIL, until every event up to `seq` has its fate; whether it has."""
        cdef lc_handoff *h = self.h
        cdef double end = lc_monotonic() + seconds
        cdef double left
        cdef bint done
        while True:
            left = end - lc_monotonic()
            with nogil:
                lc_mutex_lock(&h.mutex)
                if h.settled < seq and left > 0:
                    if h.target == 0 or seq < h.target:
                        h.target = seq
                        if h.state == SENDER_NAP and not h.released:
                            h.state = SENDER_BUSY
                            lc_wake_set(&h.wake)
                    h.waiters += 1
                    lc_cond_wait(&h.moved, &h.mutex, min(left, SLICE_MS / 1000.0))
                    h.waiters -= 1
                done = h.settled >= seq
                lc_mutex_unlock(&h.mutex)
            if done or left <= 0:
                return done
            PyErr_CheckSignals()

    def count_changed(self, uint64_t mangled=0, uint64_t moved=0):
        """Values that had to be changed to have an encoding (a NaN, a lone surrogate), and fields that got
        another name, or none."""
        cdef lc_handoff *h = self.h
        if h.generation != lc_forks:
            return           # the parent's, and its mutex may be held for ever
        lc_mutex_lock(&h.mutex)
        h.mangled += mangled
        h.moved_fields += moved
        lc_mutex_unlock(&h.mutex)

    def count_ignored(self, uint64_t n=1):
        """Records of the sender's own doing, which are never shipped."""
        cdef lc_handoff *h = self.h
        if h.generation != lc_forks:
            return
        lc_mutex_lock(&h.mutex)
        h.ignored += n
        lc_mutex_unlock(&h.mutex)

    def counters(self):
        """One consistent snapshot of every count; see ``delivery.stats.Stats``."""
        cdef lc_handoff *h = self.h
        cdef lc_handoff now
        lc_mutex_lock(&h.mutex)
        memcpy(&now, h, sizeof(lc_handoff))
        lc_mutex_unlock(&h.mutex)
        return {
            "sent": now.next_seq - 1,
            "queued": now.queued_events + now.held_events - now.granted_events - now.inflight,
            "queued_bytes": now.queued_bytes + now.held_bytes - now.granted_bytes,
            "inflight": now.inflight,
            "acked": now.acked,
            "handed": now.handed,
            "failed": {REASONS[i]: now.failed[i] for i in range(<int> R_COUNT) if now.failed[i]},
            "dropped": {REASONS[i]: now.dropped[i] for i in range(<int> R_COUNT) if now.dropped[i]},
            "resent": now.resent,
            "mangled": now.mangled,
            "moved": now.moved_fields,
            "ignored": now.ignored,
            "settled": now.settled,
        }


@cython.no_gc_clear
cdef class Turn:
    """The place of a caller that waits for room: first come, first served.

    While callers wait, a push without a turn finds no room. When there is some, it is granted to them in
    the order in which they came, to as many as it is enough for, and kept until they push. So a large
    event waits no longer than those before it, and nobody is woken for each event of the others.

    For one thread. Whoever does not push must ``leave``; a turn that is collected does so, too.
    """

    def __cinit__(self, Handoff handoff not None, uint64_t size):
        self.handoff = handoff
        self.h = handoff.h
        self.turn.room = event_room(<uint32_t> min(size, <uint64_t> self.h.max_event_bytes))

    def __dealloc__(self):
        self._give_up()

    cdef void _give_up(self) noexcept nogil:
        cdef lc_handoff *h = self.h
        if h == NULL or self.turn.state == TURN_NONE or h.generation != lc_forks:
            return
        lc_mutex_lock(&h.mutex)
        _leave(h, &self.turn)
        if lc_grant(h):
            lc_cond_wake_all(&h.moved)
        lc_mutex_unlock(&h.mutex)

    def leave(self):
        """Give up the place, or the room that was granted. May be called again, and after a push."""
        self._give_up()

    cdef bint _look(self) noexcept nogil:
        # Called with the mutex held: whether to push now.
        cdef lc_handoff *h = self.h
        cdef lc_turn *turn = &self.turn
        if turn.state == TURN_NONE and not h.closed:
            turn.state = TURN_WAITS
            turn.before = h.line_end
            turn.behind = NULL
            if h.line_end != NULL:
                h.line_end.behind = turn
            else:
                h.line = turn
            h.line_end = turn
            if h.line != turn:
                return False       # those before it are granted room when an eighth of it is free
        if turn.state == TURN_WAITS and lc_grant(h):
            lc_cond_wake_all(&h.moved)
        return turn.state == TURN_GRANTED or h.closed

    def look(self):
        """Whether to push now: there is room for this event, the hand-off is closed, or this is a child."""
        cdef lc_handoff *h = self.h
        cdef bint ready
        if h.generation != lc_forks:
            return True
        lc_mutex_lock(&h.mutex)
        ready = self._look()
        lc_mutex_unlock(&h.mutex)
        return ready

    def wait(self, double seconds):
        """Sleep, without the GIL, until ``look`` says yes or `seconds` are over; what it said last."""
        cdef lc_handoff *h = self.h
        cdef double end = lc_monotonic() + seconds
        cdef double left
        cdef bint ready
        while True:
            if h.generation != lc_forks:       # by a signal handler
                return True
            left = end - lc_monotonic()
            with nogil:
                lc_mutex_lock(&h.mutex)
                ready = self._look()
                if not ready and left > 0:
                    lc_cond_wait(&h.moved, &h.mutex, min(left, SLICE_MS / 1000.0))
                    ready = self.turn.state == TURN_GRANTED or h.closed
                lc_mutex_unlock(&h.mutex)
            if ready or left <= 0:
                return ready
            try:
                PyErr_CheckSignals()
            except BaseException:
                self._give_up()
                raise
