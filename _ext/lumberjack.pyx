"""Lumberjack: the writer (a pump's codec), the decoder of captures, the checking pass.

docs/protocols/lumberjack.md has the frames. The writer numbers the events of each window from 1: the only
numbering on which Logstash (which acknowledges the highest sequence) and go-lumber (which acknowledges the
count) agree. Version 1 is always compressed: Logstash misreads a 'data' frame that is split over two reads.

The literal form (``strict_spec``) follows the protocol text, which no released server does. It has ``J`` in
version 1 too; ``W`` is sent once, is no part of a unit, and has the most frames without an acknowledgement.
Sequences run over the whole connection, from 1 to 4,294,967,295, and an ``A`` acknowledges all up to its own;
0 is always a keep-alive. A unit is one 'D', 'J' or 'C' frame as it was sent and captured.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport *
from logclient._ext.deflate cimport *
from logclient._ext.codec cimport *
from logclient._ext.ids cimport *
from logclient._ext.jsonscan cimport *


cdef enum:
    WINDOW_LIMIT = 10_000        # go-lumber refuses more
    BODY_LIMIT = 0x7FFFFF00      # lengths are signed on the other side
    FIELD_ROOM = 64              # more than any field with the id takes
    TAIL_SIZE = 102              # both fields with the id, and the closing brace
    TAIL_ID1 = 21                # offsets of the ids
    TAIL_ID2 = 68
    NESTED_SIZE = 106            # the same with the second field in an object
    NESTED_ID2 = 71
    PAIR_SIZE = 48               # the pair with the id in version 1
    CAREFUL_WINDOWS = 10         # sent one at a time after a break
    NUMBER_LAST = 0xFFFFFFFF
    FRAME_HEAD = 10              # version, type, sequence, length

include "lumberjack/check.pyx"
include "window/limit.pyx"
include "lumberjack/writer.pyx"
include "lumberjack/decoder.pyx"
