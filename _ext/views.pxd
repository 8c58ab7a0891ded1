from logclient._ext.hot cimport lc_hot, lc_outcomes, lc_wire
from logclient._ext.ids cimport lc_rows


cdef class Outbox:
    cdef lc_wire wire
    cdef Py_ssize_t views


cdef class Writer:
    cdef lc_hot hot              # filled by the codec
    cdef lc_outcomes out
    cdef Outbox box
    cdef list full

    cdef int made(self) except -1


cdef class Column:
    cdef void *data
    cdef Py_ssize_t n
    cdef Py_ssize_t item
    cdef char code[2]


cdef Column column(void **data, size_t n, size_t item, char code)


cdef class Events:
    cdef Py_ssize_t n
    cdef readonly Column status, producer, prefix_high, prefix_low, sequence, hash
    cdef readonly Column unit, offset, length, id_hash

    cdef int fill(self, lc_rows *r) except -1


cdef class Lent:
    cdef Py_buffer b


cdef Py_ssize_t units_of(Lent offsets, Lent lengths, Lent more) except -1
