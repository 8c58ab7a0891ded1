from logclient._ext.codec cimport lc_codec, lc_outcomes, lc_wire


cdef class CodecBase:
    cdef lc_codec codec              # filled by the codec
    cdef lc_outcomes out             # of calls from Python
    cdef lc_wire wire                # likewise
    cdef bint busy                   # such a call is on its way, perhaps without the GIL

    cdef int begin_use(self) except -1
    # After the last use of what the codec keeps. Return `done`; below 0: out of memory.
    cdef int end_use(self, int done=*) except -1
