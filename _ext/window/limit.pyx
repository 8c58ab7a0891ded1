# How much may be in flight, in Lumberjack, Logjam and Logux; windows stand for what a protocol sends at once.
# First the limit: how many windows, by round trips.
#
# A distant reader needs as many windows as fit into the round trip. A slow one acknowledges late, too, but
# there each window waits behind the one before it. So the limit grows by half while round trips stay as short
# as the shortest of the connection, and a growth that makes them longer is taken back. Round trips over a
# second, keep-alives and partial acknowledgements mean a slow reader.
#
# A round is as many windows as the limit allows, all sent after the last decision. It ends in a decision. At
# the start of a connection that would take too long: there the limit grows by one with each window that used
# it up and came back as fast. That ends with the first window that did not, or at the most.

cdef const double FOREVER = 1e18
cdef const double LEAST_TRIP = 0.005     # seconds; below this round trip two windows are enough
cdef const double MOST_TRIP = 1.0        # above it the reader is slow
cdef const double REST = 10.0            # seconds without a window, after which the next one measures anew
cdef const double SHORT = 1.25           # times the shortest round trip: no window waits for another
cdef const double LONG = 1.5             # windows wait ...
cdef const double LATE = 2.0             # ... most of the time
cdef const double SLOW = 10.0            # seconds: a window that is under way for longer is too large
cdef const double QUICK = 5.0            # one that was under way for less may grow

cdef enum:
    MOST_WINDOWS = 16
    EVENT_HEAD = 24              # bytes that the queue adds to a body's size
    START_BYTES = 1 << 17        # in flight, until it is known how fast the path is
    FIRST_PAUSE = 8              # rounds after a growth that was taken back; doubled each time
    LAST_PAUSE = 1024


ctypedef struct lc_limit:
    uint32_t least               # the limit at the beginning of a connection
    uint32_t most                # `least` when it never changes
    uint32_t now                 # the limit
    uint32_t before              # ... before it grew at the last decision; 0: it did not
    uint32_t round               # number of the round
    uint32_t acked               # windows of this round that are acknowledged
    uint32_t pause               # rounds until the limit may grow again
    uint32_t next_pause
    bint starting                # the limit grows with each window
    double base                  # the shortest round trip of the connection
    double shortest              # ... of this round
    double shortest_full         # ... of its windows that were held back by the limit
    double freed                 # when an acknowledgement ended a wait for the limit
    double sent                  # when the last window was sent
    double seen                  # when a window was sent or acknowledged last


ctypedef struct lc_trip:
    double sent
    uint32_t round
    bint full                    # it used the limit up, as soon as that was possible


# The size of a window. One under way until the patience of the server ends, or ours, would be sent again for
# ever. So windows begin small, grow with acknowledgements of those that left us quickly, and shrink when one
# was under way for long, or when a connection ends without an acknowledgement: down to one event. Logjam so
# bounds all that is in flight, and begins without a bound.
ctypedef struct lc_piece:
    uint64_t size                # bytes of its events, each as `queue_bytes`; of bodies in Logjam
    uint64_t most
    double moved                 # when the peer's TCP was seen to acknowledge more; 0: it is unknown
    bint acked                   # the peer has acknowledged something on this connection


# How many bytes an event is in the queue, whose batches a window is to hold.
cdef inline uint64_t queue_bytes(size_t size) noexcept nogil:
    return EVENT_HEAD + (size + 7 & ~<size_t> 7)


cdef inline void piece_open(lc_piece *p, uint64_t most, uint64_t start) noexcept nogil:
    p.most = most
    p.size = min(most, start)


cdef inline void piece_begin(lc_piece *p) noexcept nogil:
    p.moved = 0
    p.acked = False


# Note that a window was acknowledged that was sent then. Only one that was about as large as allowed says
# something about that.
cdef inline void piece_acked(lc_piece *p, uint64_t size, double sent, double now) noexcept nogil:
    if 2 * size >= p.size:
        if (p.moved if p.moved else now) - sent < QUICK:
            p.size = min(p.most, p.size + size)
        elif p.moved - sent > SLOW and size <= p.size:
            p.size = max(<uint64_t> 1, p.size // 2)


# Note that the connection has ended with this window in flight, the oldest. One event says nothing of others:
# it may be tried alone because it may be poison.
cdef inline void piece_lost(lc_piece *p, uint32_t events, uint64_t size) noexcept nogil:
    if events > 1 and not p.acked:
        p.size = max(<uint64_t> 1, min(p.size, size) // 2)


cdef void limit_reset(lc_limit *l) noexcept nogil:
    l.now = l.least
    l.before = 0
    l.round += 1
    l.acked = 0
    l.pause = 0
    l.next_pause = FIRST_PAUSE
    l.starting = True
    l.base = l.shortest = l.shortest_full = FOREVER
    l.freed = l.sent = l.seen = -FOREVER


# Note a window that is sent as number `count` of those in flight.
cdef void limit_sent(lc_limit *l, lc_trip *trip, uint32_t count, double now) noexcept nogil:
    if count == 1 and now - l.seen >= REST:
        limit_reset(l)
    trip.sent = now
    trip.round = l.round
    # A window that follows at once, behind another, shows whether the reader lets it wait.
    trip.full = count >= l.now and l.base < FOREVER and now - max(l.freed, l.sent) <= l.base / 2
    l.sent = l.seen = now


cdef inline void limit_next_round(lc_limit *l) noexcept nogil:
    l.round += 1
    l.acked = 0
    l.shortest = l.shortest_full = FOREVER


cdef void limit_decide(lc_limit *l) noexcept nogil:
    cdef uint32_t before = l.before, now = l.now
    l.before = 0
    if l.pause:
        l.pause -= 1
    if l.base < LEAST_TRIP:
        l.now = l.least
    elif before and SHORT * l.base < l.shortest_full < FOREVER:
        l.now = before
        l.pause = l.next_pause
        l.next_pause = min(2 * l.next_pause, <uint32_t> LAST_PAUSE)
    elif l.shortest > LATE * l.base:
        l.now = max(l.least, l.now // 2)
    elif l.shortest > LONG * l.base:
        l.now = max(l.least, l.now - 1)
    elif l.shortest_full <= SHORT * l.base:
        if before:
            l.next_pause = FIRST_PAUSE
        if not l.starting and l.pause == 0 and l.now < l.most and l.base <= MOST_TRIP:
            l.before = l.now
            l.now = min(l.most, l.now + max(<uint32_t> 1, l.now // 2))
    if l.now < now:
        l.starting = False
    limit_next_round(l)


# Grow during the start, or end it: the next round decides whether half of its growth is taken back.
cdef void limit_start(lc_limit *l, double trip_time) noexcept nogil:
    if trip_time <= SHORT * l.base:
        l.now = min(l.now + 1, l.most)
        if l.now < l.most:
            return
    l.starting = False
    l.before = max(l.least, l.now // 2)
    limit_next_round(l)


# Note the acknowledgement of a whole window, which was one of `count` in flight.
cdef void limit_acked(lc_limit *l, const lc_trip *trip, uint32_t count, double now) noexcept nogil:
    cdef double trip_time = now - trip.sent
    l.seen = now
    if count >= l.now:
        l.freed = now
    l.base = min(l.base, trip_time)
    if l.starting and trip.full and LEAST_TRIP <= l.base <= MOST_TRIP:
        limit_start(l, trip_time)
    if trip.round != l.round:
        return
    l.acked += 1
    l.shortest = min(l.shortest, trip_time)
    if trip.full:
        l.shortest_full = min(l.shortest_full, trip_time)
    if l.acked >= l.now:
        limit_decide(l)


# Note that the reader works on a window: it is slow, and more windows would only wait for it.
cdef void limit_busy(lc_limit *l) noexcept nogil:
    l.now = l.least
    l.before = 0
    l.starting = False
    l.pause = l.next_pause = LAST_PAUSE
    limit_next_round(l)
