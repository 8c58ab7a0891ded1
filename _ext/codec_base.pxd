from logclient._ext.codec cimport lc_codec, lc_handing, lc_outcomes, lc_wire


cdef class CodecBase:
    cdef lc_codec codec              # filled by the codec
    cdef lc_handing *handing         # of a codec without acknowledgements, else NULL
    cdef lc_outcomes out
    cdef lc_wire wire                # encoded bytes that wait to be sent
