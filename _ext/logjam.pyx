"""Logjam: the client (a pump's codec), compression, the decoder of captures.

docs/protocols/logjam.md has the messages: [app-env, topic, body, meta], and an empty frame before them in a
request. A reply has no id: the first is for the oldest request.

In a buffer (``lc_wire``) a frame is a u32 head, little-endian, and its bytes; the top bit of the head is set
when another frame of the same message follows. Messages that hang or abort the real servers cannot be built
here: an empty first frame, other numbers of frames, bodies that unpack to more than 64 MiB, other framings of
a compression, topics that are dropped silently.
"""

from functools import partial

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport *
from logclient._ext.deflate cimport *
from logclient._ext.codec cimport *
from logclient._ext.ids cimport *
from logclient._ext.jsonscan cimport *

cdef enum:
    BODY_LIMIT = 64 << 20        # the importer's limit
    META_SIZE = 24
    TAIL_MOST = 49               # bytes that an id adds to a body
    TAIL_END = 14                # ... the last of them: 12 digits and `"}`
    TOPICS = 6
    MOST_QUARTERS = 15           # of `inflight`: the sockets of servers hold 1000 replies, and drop more
    ROUND = 2048                 # messages encoded at once
    PINGS = 16                   # without a reply at one time
    REPLY_LIMIT = 4096           # bytes of a reply, heads and all
    REPLY_FRAMES = 3
    WRONG_SHOWN = 120

include "window/limit.pyx"
include "logjam/blocks.pyx"
include "logjam/client.pyx"
include "logjam/compression.pyx"
include "logjam/decoder.pyx"
