# The client's side of a WebSocket connection for pumps: see websocket.pyx.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from logclient._ext.codec cimport lc_wire
from logclient._ext.deflate cimport lc_zstream


# How the connection ended.
cdef enum:
    OVER_NOT = 0
    OVER_CLOSED = 1              # by a close frame of the peer
    OVER_BROKEN = 2              # the peer broke the protocol
    OVER_TOO_BIG = 3             # a message of more than max_message bytes
    OVER_ENDED = 4               # the peer ended the connection without a close frame
    OVER_MEMORY = 5

cdef enum:
    KEYS = 4096                  # random bytes requested at once: masks of four bytes
    HEAD = 10                    # bytes of the longest head of a server's frame
    CONTROL = 125                # bytes of the longest payload of a control frame
    NO_STATUS = 1005             # stands for a close frame without a code


ctypedef struct lc_frames:
    # To send: frames, and the answer to the last ping.
    lc_wire out
    size_t sent                  # bytes of them that the carrier has taken
    uint8_t keys[KEYS]
    uint32_t key                 # where the next mask begins
    uint8_t pong[CONTROL]
    int pong_size                # -1: no ping awaits its answer
    bint close_sent
    # Received: the frame that has begun, and the message that it belongs to.
    uint64_t max_message
    uint8_t head[HEAD]
    uint32_t head_size
    uint64_t left                # bytes of its payload that are missing
    bint in_payload
    bint unfinished              # a fragmented message has begun
    bint packed                  # the message is compressed
    bint delivered               # `message` was returned, and may be used again
    lc_wire message
    uint8_t control[CONTROL]
    uint32_t control_size
    # The end.
    int over                     # an OVER_ number
    uint16_t code                # the peer's, or ours for what it broke
    uint8_t reason[CONTROL]
    uint32_t reason_size
    # Compression; NULL: not negotiated, or by Python's zlib (then `python`).
    bint deflates
    bint keeps_sent              # of the context of earlier messages (RFC 7692, section 7.1.1)
    bint keeps_received
    lc_zstream *packer
    lc_zstream *unpacker
    lc_wire squeezed
    void *python                 # borrowed: the ClientFrames that has Python's objects


# Frame a text message, to be sent. After the end it is discarded. Return -1 when memory or randomness is out.
cdef int frames_add(lc_frames *f, const uint8_t *data, size_t size) noexcept nogil
# Find the bytes to send, among them the answer to the last ping; return their number, or -1 as above.
cdef Py_ssize_t frames_output(lc_frames *f, const uint8_t **data) noexcept nogil
# Note that so many of them are sent.
cdef void frames_taken(lc_frames *f, size_t size) noexcept nogil
# Take the bytes from `at` on, and move `at`. Return 1 with a message, valid until the next call; 0 when
# all bytes are taken; -1 when the connection is over.
cdef int frames_next(lc_frames *f, const uint8_t **at, const uint8_t *end, const uint8_t **message,
                     size_t *size) noexcept nogil
# Note that the peer ended the connection.
cdef void frames_ended(lc_frames *f) noexcept nogil


cdef class ClientFrames:
    cdef lc_frames f
    cdef bytes input             # the bytes from `input_at` on are not taken
    cdef const uint8_t *input_data
    cdef size_t input_size
    cdef size_t input_at
    cdef object zlib
    cdef object python_packer
    cdef object python_unpacker
    cdef int window_sent

    cdef _set_input(self, bytes data)
