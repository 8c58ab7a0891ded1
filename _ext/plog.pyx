"""plog: the client (a pump's codec), fragments and their reassembly, the decoder of captures.

docs/protocols/plog.md has the datagrams. Only the last fragment of a message has tags; they count in neither
its size nor the total. The client boxes messages that may not travel unboxed: servers drop messages that
begin with a byte below 32, and read an empty datagram as the one before it. Over TCP (`lines`) each message
is a line, without header and tags. Bytes to send and bytes received are *runs* of datagrams (codec.pxd).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove, memset

from logclient._ext.codec_base cimport CodecBase
from logclient._ext.decoder cimport *
from logclient._ext.hash cimport HASH_LANES, murmur3_many, murmur3_of
from logclient._ext.codec cimport *
from logclient._ext.ids cimport *
from logclient._ext.jsonscan cimport *

cdef extern from "bits.h":
    uint64_t lc_ones(uint64_t v) noexcept nogil

HEADER = <int> HEADER_SIZE           # 24: bytes of a fragment before its tags and payload
MAX_DATAGRAM = <int> DATAGRAM_MOST   # 65,507: bytes of the largest datagram over IPv4
MAX_MESSAGE = <int> MESSAGE_MOST     # 2**31 - 1 bytes

cdef enum:
    HEADER_SIZE = 24
    DATAGRAM_MOST = 65507        # the limit of IPv4
    DATAGRAM_LEAST = 25
    FRAGMENTS_MOST = 65535
    MESSAGE_MOST = 0x7FFFFFFF
    ID_MOST = 0x7FFFFFFF         # servers count negative ids under another port
    TAIL_SIZE = 42               # bytes that an id adds to a body
    TAIL_END = 14                # the last of them: 12 digits and `"}`
    ROUND = 2048                 # messages encoded at once
    REPLIES_MOST = 1 << 20       # bytes of replies that wait to be read
    UNTIL_GRANT = 1000           # seconds, longer than any run of a pump: a grant comes between two of them
    SCRATCH_MOST = 1 << 21       # bytes of messages that wait to be hashed; a larger one waits alone
    K_TAGGED = 1                 # nibble of a kind: u16 and as many bytes of tags precede the body

include "plog/fragments.pyx"
include "plog/pacing.pyx"
include "plog/client.pyx"
include "plog/reassembler.pyx"
include "plog/decoder.pyx"
