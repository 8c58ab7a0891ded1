"""Logjam: the client (a pump's codec), compression, the decoder of captures.

=======  ==================================================================
message  [app-env, topic, body, meta]; a request has an empty frame before them
meta     24 bytes, big-endian: u16 0xCABD, u8 compression, u8 version 1, u32 device, u64 created (ms), u64
         sequence. The producer text says u16 for the device; the real servers refuse that
reply    [app-env, "202 Accepted" | "400 Bad Request"], without an id: the first is for the oldest request
ping     ["", "ping", app-env, body, meta], answered by ["ping", "200 OK", host]
         or ["ping", "400 Bad Request"]
=======  ==================================================================

In a buffer (``lc_wire``) a frame is a u32 head, little-endian, and its bytes; the top bit of the head is set
when another frame of the same message follows. Messages that hang or abort the real servers cannot be built
here: an empty first frame, other numbers of frames, bodies that unpack to more than 64 MiB, other framings of
a compression, topics that are dropped silently.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove

from logclient._ext.blocks cimport *
from logclient._ext.codec_base cimport CodecBase, Outbox
from logclient._ext.decoder cimport *
from logclient._ext.deflate cimport *
from logclient._ext.sent_tracker cimport *
from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.codec cimport *
from logclient._ext.ids cimport *
from logclient._ext.jsonscan cimport *

MAX_BODY = <int> BODY_LIMIT
"""64 MiB: the importer's limit. Beyond it one server loops for ever and another aborts."""

cdef enum:
    BODY_LIMIT = 64 << 20        # the importer's limit
    META_SIZE = 24
    TAIL_MOST = 49               # bytes that an id adds to a body
    TAIL_END = 14                # ... the last of them: 12 digits and `"}`
    TOPICS = 6
    ROUND = 2048                 # messages encoded at once
    PINGS = 16                   # without a reply at one time
    REPLY_LIMIT = 4096           # bytes of a reply, heads and all
    REPLY_FRAMES = 3
    WRONG_SHOWN = 120
    ROOM_KEPT = 1 << 22

include "logjam/client.pyx"
include "logjam/compression.pyx"
include "logjam/decoder.pyx"
