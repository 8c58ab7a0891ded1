"""``plain.ById``, compiled, for streams of bytes."""

include "imports.pxi"

cdef enum:
    LENGTH = 0

include "by_id.pxi"
