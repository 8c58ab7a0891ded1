from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from logclient._ext.queue cimport EventQueue, lc_chunk, lc_queue, lc_list
from logclient._ext.codec cimport lc_batch, lc_outcomes, lc_wire
from logclient._ext.descriptors cimport lc_file

ctypedef struct lc_inflight:
    lc_queue *queue
    lc_inflight *main        # the one that detaches chunks from the queue; itself, if it is alone
    lc_inflight *beside      # the next one with the same queue, in a ring; itself, if it is alone
    lc_batch *head           # oldest first, sequences rising
    lc_batch *tail
    uint64_t serial
    lc_list ordinary         # staged: detached chunks that no batch has used up
    lc_list kept
    uint64_t staged_events   # in those two
    uint64_t staged_bytes
    uint64_t horizon         # a staged event at or beyond it waits for the next detach: a lower one is queued
    lc_chunk *emptied        # used up; returned to the queue the next time it is locked
    lc_batch *spare          # the last freed batch, for reuse: fresh memory would cost page faults
    uint64_t expected        # the next sequence; a later one leaves a gap: dropped events
    uint64_t listed          # the highest sequence with a line in the ledger
    uint64_t inflight        # events in flight, over all batches
    uint64_t withheld        # events held back while others are tried
    uint32_t max_inflight    # bound on the events in flight while poison is sought; 0: none
    uint8_t prompt           # the engine wants the first outcome at once, before anything else is sent
    uint8_t draining         # nothing more is sent: the connection is to be ended
    uint8_t takes_none       # nothing is taken from the queue: only its own batches are sent
    uint8_t notes_taken      # events that are taken from the queue are noted in `taken`
    lc_outcomes taken
    uint64_t allowance       # events that may still be encoded
    lc_batch *quarantine     # batches of one suspect each, sequences rising
    lc_batch *alone          # of these, the one that is sent, and nothing else; or NULL
    uint64_t outcomes        # events in flight that got their outcome so far
    uint64_t reached         # every event up to this sequence is settled or in quarantine
    uint64_t resent          # since the last commit, as are the next six
    uint64_t acked
    uint64_t handed
    uint64_t failed[24]
    uint64_t dropped[24]     # that grew too old
    uint64_t freed_events
    uint64_t freed_bytes
    lc_outcomes report       # outcomes since the last report, merged
    uint32_t mirrored        # of these, how many are in the spool's journal
    uint32_t passed          # of these, how many were given to the spool's log
    uint64_t passed_to       # the last sequence of the last of them
    uint32_t journal_base    # where in the journal they begin
    uint64_t stored
    uint64_t listed_before   # events up to this sequence are in the ledger of the process that queued them
    uint8_t adopted          # another process has queued the events: gaps are its own
    lc_file ledger           # of the main one: where `batch` lines go, of all
    int ledger_errno         # of the write that failed, since when there is no ledger
    uint64_t ledger_bytes    # written since they were asked for
    lc_wire line             # scratch: ledger lines
    lc_wire packed           # scratch: their packed columns

cdef uint64_t inflight_bytes(lc_inflight *f) noexcept nogil
cdef void inflight_limit_credit(lc_inflight *f, uint32_t *events) noexcept nogil
cdef lc_batch *inflight_pending(lc_inflight *f) noexcept nogil
cdef lc_batch *inflight_take(lc_inflight *f, uint32_t events, uint64_t size) noexcept nogil
cdef void inflight_encoded(lc_inflight *f, lc_batch *b) noexcept nogil
cdef bint inflight_lost_ledger(lc_inflight *f) noexcept nogil
cdef int inflight_write_ledger(lc_inflight *f, lc_batch *b) noexcept nogil
cdef void inflight_apply(lc_inflight *f, lc_outcomes *out) noexcept nogil
cdef bint inflight_commit(lc_inflight *f) noexcept nogil


cdef class InflightBatches:
    cdef lc_inflight f
    cdef readonly EventQueue queue
    cdef InflightBatches main
    cdef void _begin(self)
    cdef list _merged(self, uint8_t status)
    cdef object _batch(self, lc_batch *b)
    cdef lc_batch *_find_quarantined(self, uint64_t seq) except NULL


cdef class Batch:
    cdef InflightBatches in_flight
    cdef uint64_t serial
    cdef lc_batch *borrowed      # for a call of a codec in Python, which has no other way to it
    cdef lc_batch *find(self) except NULL


# A view for one call, which sets `borrowed` to NULL behind it.
cdef Batch borrow_batch(lc_batch *b)
