# Pacing: token buckets of packets and of bytes, and the room in the receiver's queue.

# A token bucket. It may be overdrawn: a message is sent whole, and the next one waits until the debt is paid.
ctypedef struct lc_bucket:
    double rate                  # tokens a second; 0: unlimited
    double most
    double level


ctypedef struct lc_pace:
    lc_bucket packets
    lc_bucket size               # in bytes
    double filled                # when the buckets were filled last
    bint drained                 # wait for a quantum, not for the next packet
    double room                  # what the receiver's queue may be charged until the next grant
    double room_most             # the room of the empty queue; 0: unlimited
    bint crowded                 # the next message has to wait for a grant


cdef inline void bucket_fill(lc_bucket *b, double seconds) noexcept nogil:
    b.level = min(b.level + seconds * b.rate, b.most)


# Seconds until a bucket has five milliseconds of its rate, half of the bucket at most. A wake-up for each
# packet would cost more than sending it.
cdef inline double bucket_wait(const lc_bucket *b) noexcept nogil:
    cdef double quantum = max(min(b.rate * 0.005, b.most / 2), 1.0)
    return (quantum - b.level) / b.rate if b.rate and b.level < quantum else 0


cdef inline double pace_wait(const lc_pace *p) noexcept nogil:
    return max(bucket_wait(&p.packets), bucket_wait(&p.size))


cdef void pace_fill(lc_pace *p, double now) noexcept nogil:
    if now > p.filled:
        bucket_fill(&p.packets, now - p.filled)
        bucket_fill(&p.size, now - p.filled)
        p.filled = now
    if p.drained:
        p.drained = pace_wait(p) > 0


# What a receive queue is charged for datagrams, at most. Linux charges for allocated memory: the payload and
# up to 412 bytes of headers and tail, rounded up to a power of two, and 256 bytes beside it.
cdef inline double charge_of(uint32_t datagrams, uint64_t size) noexcept nogil:
    return 1080.0 * datagrams + 2.0 * size


# Return whether a message has to wait for a grant. One that is larger than the queue may enter the empty one.
cdef inline bint overruns(lc_pace *p, double charge) noexcept nogil:
    if charge > p.room and p.room < p.room_most:
        p.crowded = True
    return p.crowded


# Return whether no message of any size may enter the queue before the next grant.
cdef inline bint is_crowded(const lc_pace *p) noexcept nogil:
    return p.crowded or p.room_most and p.room < min(p.room_most, charge_of(1, 0))


cdef inline bint is_drained(lc_pace *p) noexcept nogil:
    if p.packets.rate and p.packets.level < 1 or p.size.rate and p.size.level < 1:
        p.drained = True
    return p.drained or is_crowded(p)
