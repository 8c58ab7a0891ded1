from logclient._ext.hot cimport lc_hot, lc_outcomes, lc_wire


cdef class Outbox:
    cdef lc_wire wire
    cdef Py_ssize_t views


cdef class OutcomeList:
    cdef lc_outcomes out


cdef class CodecBase(OutcomeList):
    cdef lc_hot hot              # filled by the codec
    cdef Outbox box
    cdef list full

    cdef int made(self) except -1
