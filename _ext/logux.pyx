"""Logux: the client (a pump's codec), the decoder of captures.

docs/protocols/logux.md has the messages. The high nibble of an event's kind gives the form of its body:

=====  ============================================  ===================================================
0      a JSON object                                 ``{"type":<action_type>,"data":<body>,"id":"<32 hex>"}``
1      an action: a JSON object with a ``type``      unchanged, with the id before its closing brace
2      an action behind ``<qq``: its time in ms      the same; `meta` has that time (wall clock) and that
       since 1970 or -2**63, subprotocol or -1       subprotocol
=====  ============================================  ===================================================
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport llround
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport bsearch, calloc, free, malloc, qsort
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport *
from logclient._ext.codec cimport *
from logclient._ext.ids cimport *
from logclient._ext.jsonscan cimport *
from logclient._ext.jsontext cimport *

cdef enum:
    BODY_LIMIT = 64 << 20        # bytes of an action before its id
    HEAD = 4                     # bytes of the size before each message
    TOKEN = 8                    # bytes of the token of a ping
    SYNC_HEAD = 4 + 32           # the size, and ["sync",<19 digits>
    META_ROOM = 160              # commas, id, time, subprotocol, brackets
    TAIL_SIZE = 41               # ,"id":"<32 digits>"}
    CLOCKS = 8                   # offsets of the clocks that are kept
    HEAD_SIZE = 16               # of the head of a body with a time of its own
    MOST_ACTIONS = 6400          # in flight, where it follows the round trip
    DOUBTS = 4                   # times the limit in flight; older doubts belong to events dropped since
    DIGITS = 15                  # of a number that is read here; JavaScript has no larger integers
    TEXT_KEPT = 1 << 20          # larger memory for the texts of a sync is freed
    MAX_ANSWERS = 100000        # messages that wait to be sent; servers that want more are disconnected
    UNDONE_MOST = 1 << 20        # bytes of undos that wait for the pump's next return
    NARROW = 8                   # the most by which the limit of actions in flight is divided at a time
    MAX_PATIENCE = 8             # the longest wait for a jam, in units of the first one
    WHOLE = 1                    # nibble of a kind: the body is an action
    TIMED = 2                    # ... an action behind a head

cdef extern from "text.h" nogil:
    uint8_t *lc_int(uint8_t *to, int64_t v)

cdef extern from "stdint.h":
    const int64_t NO_TIME "INT64_MIN"

cdef const uint32_t NONE = 0xFFFFFFFF

include "window/limit.pyx"
include "logux/clocks.pyx"
include "logux/inflight.pyx"
include "logux/encode.pyx"
include "logux/turns.pyx"
include "logux/receive.pyx"
include "logux/codec.pyx"
include "logux/decoder.pyx"
