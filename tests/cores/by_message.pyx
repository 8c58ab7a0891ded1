"""``plain.ById``, compiled, for transports of messages: each event is one, behind its length (``codec.pxd``)."""

include "imports.pxi"

cdef enum:
    LENGTH = 4

include "by_id.pxi"
