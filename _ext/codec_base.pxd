from logclient._ext.codec cimport lc_codec, lc_outcomes, lc_wire


cdef class CodecBase:
    cdef lc_codec codec              # filled by the codec
    cdef lc_outcomes out             # of calls from Python
    cdef lc_wire wire                # likewise
