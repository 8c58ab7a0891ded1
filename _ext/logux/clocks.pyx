# The time at which an event was made. Events carry the time that the wall clock showed. It may have been set
# since, so its offsets to the monotonic clock are kept, and the most plausible one is used.

# Seconds. SLEW: smaller corrections of the wall clock are drift, larger ones mean that it was set. SLACK: how
# far the events of two threads may be out of order.
cdef const double SLEW = 0.02
cdef const double SLACK = 0.1


# An offset: how far the wall clock was ahead of the monotonic one, and when that was seen, in monotonic
# seconds.
ctypedef struct lc_offset:
    double ahead
    double first
    double last


ctypedef struct lc_clocks:
    lc_offset offsets[CLOCKS]    # the newest last
    int count
    double since                 # no event was made earlier with the oldest of them
    lc_offset candidate          # seen once
    bint has_candidate
    uint64_t last_seq            # of the events that were dated
    double last_time             # monotonic seconds


# Sample the clocks: the wall clock showed `wall` when the monotonic one was at `now` or a little later. A
# delay between the two readings makes an offset too large, never too small. So a larger offset must be seen
# twice.
cdef void sample_clocks(lc_clocks *c, double now, double wall) noexcept nogil:
    cdef double ahead = wall - now
    cdef lc_offset *o
    if c.count:
        o = &c.offsets[c.count - 1]
        if -SLEW <= ahead - o.ahead <= SLEW:
            o.ahead = ahead
            o.last = now
            c.has_candidate = 0
            return
        if ahead > o.ahead:
            if not c.has_candidate or not -SLEW <= ahead - c.candidate.ahead <= SLEW:
                c.has_candidate = 1
                c.candidate.ahead = ahead
                c.candidate.first = now
                return
            if now <= c.candidate.first:
                return           # the same sample
            ahead = min(ahead, c.candidate.ahead)
        if c.count == CLOCKS:
            c.since = c.offsets[0].last
            memmove(&c.offsets[0], &c.offsets[1], (CLOCKS - 1) * sizeof(lc_offset))
            c.count -= 1
    else:
        c.since = now
    o = &c.offsets[c.count]
    o.ahead = ahead
    o.first = c.candidate.first if c.has_candidate else now
    o.last = now
    c.has_candidate = 0
    c.count += 1


# The penalty, in seconds, for dating an event at the monotonic second `at`: the offset used was valid in
# [since, until) only, and the event before was made at `before`.
cdef inline double date_penalty(double at, double since, double until, double before) noexcept nogil:
    cdef double penalty = 0
    if at < since - SLEW:
        penalty = since - at
    elif at > until + SLEW:
        penalty = at - until
    if at < before - SLACK:
        penalty += before - at
    return penalty


# The monotonic second at which an event was made, for which the wall clock showed `us`. Uses the newest
# offset without a penalty, else the one with the smallest.
cdef double made_at(lc_clocks *c, int64_t us, double now, uint64_t seq) noexcept nogil:
    cdef double wall = <double> us * 1e-6
    cdef double before = c.last_time if seq > c.last_seq else -1e300
    cdef double best = now, least = 1e300, until = now, at, penalty
    cdef int i
    for i in range(c.count - 1, -1, -1):
        if least == 0:
            break
        at = wall - c.offsets[i].ahead
        penalty = date_penalty(at, c.offsets[i - 1].last if i else c.since, until, before)
        if penalty < least:
            least = penalty
            best = at
        until = c.offsets[i].first
    if least > 0 and c.has_candidate:
        at = wall - c.candidate.ahead
        if date_penalty(at, c.offsets[c.count - 1].last, now, before) < least:
            best = at
    best = min(best, now)
    if seq > c.last_seq:
        c.last_seq = seq
        c.last_time = best
    return best


# How far the wall clock is ahead now; 0 before the first sample.
cdef inline double clock_ahead(const lc_clocks *c) noexcept nogil:
    return c.offsets[c.count - 1].ahead if c.count else 0
