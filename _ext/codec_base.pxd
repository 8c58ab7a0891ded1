from logclient._ext.codec cimport lc_codec, lc_outcomes, lc_wire
from logclient._ext.sent_tracker cimport lc_handing


cdef class Outbox:
    cdef lc_wire wire
    cdef Py_ssize_t views


cdef class OutcomeList:
    cdef lc_outcomes out


cdef class CodecBase(OutcomeList):
    cdef lc_codec codec              # filled by the codec
    cdef lc_handing *handing         # of a codec without acknowledgements, else NULL
    cdef Outbox box
    cdef list full

    cdef int ensure_initialized(self) except -1
    cdef lc_wire *wire(self) except NULL
