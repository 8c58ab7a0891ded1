"""The client's side of WebSocket (RFC 6455) after the opening handshake, without I/O.

Bytes of the server go in, messages come out; messages to send go in, masked frames come out. A link in
Python (``transports.websocket``) and the compiled pump (``pump.websocket``) drive the same object, the pump
without the GIL, so that one can go on where the other stopped.

- A message is received in any fragments and any pieces. Text is not checked for UTF-8: JSON parsers do that.
- Only the last ping that awaits an answer is answered (section 5.5.3).
- A close frame is answered once, and ends everything. So does a frame that breaks the protocol: a close frame
  with the reason is sent. The limit of a message is checked with the head of each frame, and while it is
  unpacked, before there is memory for it.
- Compression (RFC 7692) needs a build that is linked to zlib.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strlen

from logclient._ext.codec cimport *
from logclient._ext.deflate cimport *
from logclient._ext.pump cimport *

cdef extern from "platform.h" nogil:
    int lc_random(void *to, size_t size)

LINKED = bool(LC_HAS_ZLIB)

cdef enum:
    FIN = 0x80
    PACKED = 0x40                # RSV1, of the first frame of a compressed message
    RESERVED = 0x70
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10
    MASKED = 0x80
    NORMAL_CLOSURE = 1000
    PROTOCOL_ERROR = 1002
    INVALID_DATA = 1007
    MESSAGE_TOO_BIG = 1009
    # How the connection ended.
    OVER_NOT = 0
    OVER_CLOSED = 1              # by a close frame of the peer
    OVER_BROKEN = 2              # the peer broke the protocol
    OVER_TOO_BIG = 3             # a message of more than max_message bytes
    OVER_ENDED = 4               # the peer ended the connection without a close frame
    OVER_MEMORY = 5
    KEYS = 256                   # random bytes requested at once: masks of four bytes
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
    # Compression; NULL: not negotiated.
    bint keeps_sent              # of the context of earlier messages (RFC 7692, section 7.1.1)
    bint keeps_received
    lc_zstream *packer
    lc_zstream *unpacker
    lc_wire squeezed


include "websocket/deflate.pyx"
include "websocket/send.pyx"
include "websocket/receive.pyx"


cdef class ClientFrames:
    """The state of one connection whose opening handshake is done.

    Args:
        max_message: bytes of the largest message from the server, unpacked.
        deflate: what was negotiated for permessage-deflate: whether we keep the context between messages,
            the bits of our window, and the same two of the server; None: no compression.
    """

    cdef lc_frames f
    cdef bytes input             # the bytes from `input_at` on are not taken
    cdef const uint8_t *input_data
    cdef size_t input_size
    cdef size_t input_at

    def __cinit__(self, uint64_t max_message, *, deflate: tuple[bool, int, bool, int] | None = None):
        self.f.max_message = max_message
        self.f.key = KEYS
        self.f.pong_size = -1
        self._set_input(b"")
        if deflate is not None:
            self._begin_deflate(*deflate)

    def _begin_deflate(self, bint keeps_sent, int window_sent, bint keeps_received, int window_received):
        if not 9 <= window_sent <= 15 or not 8 <= window_received <= 15:
            raise ValueError("deflate: a window has 9 to 15 bits, the server's 8 to 15")
        self.f.keeps_sent = keeps_sent
        self.f.keeps_received = keeps_received
        self.f.packer = zstream_new()
        cdef int done = lc_deflate_init_raw(self.f.packer, window_sent)
        if done == Z_OK:
            self.f.unpacker = zstream_new()
            done = lc_inflate_init_raw(self.f.unpacker, UNPACK_BITS)
        if done != Z_OK:
            zstream_refused(done)

    def __dealloc__(self):
        if self.f.packer != NULL:
            lc_deflate_end(self.f.packer)
            free(self.f.packer)
        if self.f.unpacker != NULL:
            lc_inflate_end(self.f.unpacker)
            free(self.f.unpacker)
        free(self.f.out.data)
        free(self.f.message.data)
        free(self.f.squeezed.data)

    def send(self, data: bytes | bytearray | memoryview):
        """Frame a text message, which is not checked for UTF-8; after the end it is discarded."""
        cdef Py_buffer view
        cdef int done
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            done = frames_add(&self.f, <const uint8_t *> view.buf, <size_t> view.len)
        finally:
            PyBuffer_Release(&view)
        if done < 0:
            raise MemoryError

    def close(self, uint16_t code=NORMAL_CLOSURE):
        """Send a close frame with this code behind everything else, unless one is sent already."""
        if add_close(&self.f, code, NULL, 0) < 0:
            raise MemoryError

    @property
    def unsent(self) -> int:
        """Bytes of frames to send; an answer to a ping counts as soon as it is due."""
        return self.f.out.size - self.f.sent + (<size_t> self.f.pong_size + 6 if self.f.pong_size >= 0 else 0)

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        cdef const uint8_t *data = NULL
        parts = []
        while True:
            size = frames_output(&self.f, &data)
            if size < 0:
                raise MemoryError
            if size == 0:
                return b"".join(parts)
            parts.append(PyBytes_FromStringAndSize(<const char *> data, size))
            frames_taken(&self.f, <size_t> size)

    cdef _set_input(self, bytes data):
        self.input = data
        self.input_at = 0
        self.input_data = <const uint8_t *> PyBytes_AS_STRING(data)
        self.input_size = <size_t> len(data)

    def receive_data(self, bytes data):
        """Take bytes of the server; `next_message` returns the messages in them."""
        rest = self.input[self.input_at:]
        self._set_input(rest + data if rest else data)

    def receive_eof(self):
        """Note that the server ended the connection."""
        if self.f.over == OVER_NOT:
            self.f.over = OVER_ENDED

    @property
    def ready(self) -> bool:
        """Whether there are received bytes that `next_message` has not looked at."""
        return self.f.over == OVER_NOT and self.input_at < self.input_size

    def next_message(self) -> bytes | None:
        """Return the next message, an empty one as a space; None: there is none, or all is over."""
        cdef const uint8_t *at = self.input_data + self.input_at
        cdef const uint8_t *message = NULL
        cdef size_t size = 0
        cdef int done = frames_next(&self.f, &at, self.input_data + self.input_size, &message, &size)
        self.input_at = <size_t> (at - self.input_data)
        found = None
        if done > 0:
            found = PyBytes_FromStringAndSize(<const char *> message, <Py_ssize_t> size)
        if self.input_at == self.input_size:
            self._set_input(b"")
        if self.f.over == OVER_MEMORY:
            raise MemoryError
        return found

    @property
    def over(self) -> str:
        """How the connection ended: "" while it has not, ``closed``, ``broken``, ``too big`` or ``ended``."""
        return ("", "closed", "broken", "too big", "ended", "memory")[self.f.over]

    @property
    def code(self) -> int:
        """The close code of the server, or ours for what it broke; 1005: its close frame has none."""
        return self.f.code

    @property
    def reason(self) -> bytes:
        """The reason behind the code, as bytes."""
        return PyBytes_FromStringAndSize(<const char *> self.f.reason, self.f.reason_size)


include "websocket/pump.pyx"
