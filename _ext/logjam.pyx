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

The parts of this extension are in the folder `logjam/`:

=============  ============================================================
`client`       events to messages, replies to outcomes: `Codec`
`compression`  bodies packed and unpacked: `pack`, `Unpacker`
`decoder`      captured messages to columns, for the verifier: `Decoder`, `expand`
=============  ============================================================
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from logclient._ext.blocks cimport (
    COMPRESSIONS,
    LC_HAS_LZ4,
    LC_HAS_SNAPPY,
    LZ4,
    NO_COMPRESSION,
    SNAPPY,
    UNPACK_MISSING,
    ZLIB,
    lc_packer,
    lc_unpacker,
    pack_body,
    packer_close,
    packer_needs_gil,
    packer_open,
    unpack_body,
    unpacker_close,
    unpacker_open,
)
from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport (
    NO_MEMORY,
    BatchDecoder,
    Events,
    clear_id,
    hash_body,
    identify,
    keep_body,
    scan_body,
)
from logclient._ext.deflate cimport INFLATE_MEMORY, INFLATE_TOO_LARGE, LC_HAS_ISAL, LC_HAS_ZLIB, deflater_name
from logclient._ext.sent_tracker cimport (
    handing_add,
    handing_close,
    handing_forget,
    handing_open,
    handing_room,
    handing_took,
    lc_handing,
)
from logclient._ext.hash cimport SEED, xxh64_of
from logclient._ext.codec cimport (
    ACKED,
    FAILED,
    FRAME_MORE,
    FRAME_SIZE,
    INFLIGHT,
    K_DOCUMENT,
    K_ID1_TAKEN,
    K_MASK,
    K_TOPIC_SHIFT,
    PENDING,
    R_NONE,
    R_NOT_JSON,
    R_REJECTED,
    R_TOO_LARGE,
    R_UNENCODABLE,
    STOP_MEMORY,
    STOP_PROTOCOL,
    fail_event,
    lc_batch,
    lc_get_frame,
    lc_outcomes,
    lc_put_frame,
    lc_wire,
    outcome_add,
    trim,
    wire_reserve,
)
from logclient._ext.ids cimport (
    C_OWN,
    ID_SIZE,
    PRODUCER_SIZE,
    add_common,
    add_hash,
    begin_hashes,
    finish_hashes,
    keep_user_id,
    lc_get32,
    lc_get64,
    lc_id,
    lc_put32,
    lc_put64,
    lc_put_digits,
    lc_rows,
    lc_spell,
    lc_unhashed,
)
from logclient._ext.jsonscan cimport (
    SCAN_PAD,
    copy_object,
    find_braces,
    lc_object,
    lc_span,
    scan_object,
)

MAX_BODY = <int> BODY_LIMIT

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
