from logclient._ext.hot cimport lc_hot, lc_outcomes, lc_wire


cdef class Outbox:
    cdef lc_wire wire
    cdef Py_ssize_t views


cdef class CodecBase:
    cdef lc_hot hot              # filled by the codec
    cdef lc_outcomes out
    cdef Outbox box
    cdef list full

    cdef int made(self) except -1
