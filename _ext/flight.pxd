# The flight's C side, for the senders.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from logclient._ext.handoff cimport Handoff, lc_chunk, lc_handoff, lc_list
from logclient._ext.hot cimport lc_batch, lc_outcomes, lc_wire

ctypedef struct lc_flight:
    lc_handoff *handoff
    lc_batch *head           # oldest first, sequences rising
    lc_batch *tail
    uint32_t batches
    uint64_t serial
    lc_list ordinary         # detached chunks that no batch has used up yet
    lc_list kept
    uint64_t staged_events   # in those two
    uint64_t staged_bytes
    uint64_t horizon         # an event of `kept` at or beyond it must wait for the next detach
    lc_chunk *dead           # used up; handed back at the next lock
    lc_batch *spare          # one that is done, for the next: its pages would be fresh ones else
    uint64_t expected        # the sequence that comes next; a later one leaves a gap: dropped
    uint64_t inflight        # events on the wire, over all batches
    uint64_t aside           # events held back while one other event is tried
    uint32_t limit           # events on the wire at one time, while a poison is sought; 0: as the core says
    uint8_t prompt           # the engine wants the first outcome at once, before anything else is sent
    uint8_t hold             # nothing new is sent: the connection is to be left
    uint64_t allowance       # events that may still be encoded
    lc_batch *quarantine     # batches of one suspect each, sequences rising
    lc_batch *alone          # of these: the one that may be sent, and nothing else; or NULL
    uint64_t outcomes        # events in flight that got their fate, ever
    uint64_t reached         # every sequence up to here has its fate or is in quarantine
    uint64_t resent          # since the last commit
    uint64_t acked
    uint64_t handed
    uint64_t failed[16]
    uint64_t freed_events
    uint64_t freed_bytes
    lc_outcomes report       # fates since the last report, merged
    lc_wire line             # scratch: ledger lines
    lc_wire packed           # scratch: their packed columns

cdef bint flight_awaited(lc_flight *f) noexcept nogil
cdef void flight_bound(lc_flight *f, uint32_t *events) noexcept nogil
cdef lc_batch *flight_pending(lc_flight *f) noexcept nogil
cdef lc_batch *flight_take(lc_flight *f, uint32_t events, uint64_t size) noexcept nogil
cdef int flight_encoded(lc_flight *f, lc_batch *b) noexcept nogil
cdef int flight_ledger(lc_flight *f, lc_batch *b) noexcept nogil
cdef int flight_apply(lc_flight *f, lc_outcomes *out) noexcept nogil
cdef bint flight_commit(lc_flight *f) noexcept nogil
cdef void flight_requeue(lc_flight *f) noexcept nogil


cdef class Flight:
    cdef lc_flight f
    cdef readonly Handoff handoff
    cdef void _begin(self)
    cdef object _batch(self, lc_batch *b)
    cdef uint64_t _swap(self, uint64_t events, uint8_t old, uint8_t new, uint8_t reason)
    cdef lc_batch *_suspect(self, uint64_t seq) except NULL
