"""Ordinary WebSocket frames (RFC 6455, section 5.2): whole messages, neither fragmented nor compressed.

All other frames, forbidden ones included, are left to a strict implementation of the protocol.

The GIL is kept: a call takes microseconds, and taking the GIL again while other threads are busy may take
milliseconds.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

__all__ = ["seal", "split"]

cdef enum:
    FIN_TEXT = 0x81
    FIN_BINARY = 0x82
    MASKED = 0x80


def split(data, size_t at, size_t limit, bint unfinished, list messages):
    """Take whole messages out of the frames of a server.

    Args:
        data: frames; the last one may be incomplete.
        at: where the first of them begins.
        limit: bytes of the largest payload.
        unfinished: whether a fragmented message has begun; then no frame is ordinary.
        messages: the payloads, text and binary alike, are appended to it; an empty one as a space.

    Returns:
        Where the first frame begins that is not ordinary or not complete, and its bytes, or how many bytes
        are needed to tell. Once so many are there, pass the frame to the protocol. A frame that the protocol
        can refuse early (masked, or over `limit`) is not waited for.

    Raises:
        ValueError: `at` is beyond the end.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef size_t end, head, left
    cdef uint64_t length
    cdef int i
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = <size_t>view.len
        if at > end:
            raise ValueError("at: beyond the end")
        while True:
            p = <const uint8_t *>view.buf + at
            left = end - at
            if left < 2 or p[1] & MASKED:
                return at, 2
            length = p[1]
            head = 2
            if length == 126:
                head = 4
                if left < head:
                    return at, head
                length = p[2] << 8 | p[3]
            elif length == 127:
                head = 10
                if left < head:
                    return at, head
                length = 0
                for i in range(2, 10):
                    length = length << 8 | p[i]
            if length > limit:
                return at, head
            if unfinished or left - head < length or (p[0] != FIN_TEXT and p[0] != FIN_BINARY):
                return at, head + <size_t>length
            if length:
                messages.append(PyBytes_FromStringAndSize(<const char *>p + head, <Py_ssize_t>length))
            else:
                messages.append(b" ")
            at += head + <size_t>length
    finally:
        PyBuffer_Release(&view)


def seal(data, bytes keys, size_t at):
    """Make a client's frame with a whole text message.

    Args:
        data: the message; it is not checked for UTF-8.
        keys: unpredictable random bytes (section 5.3).
        at: where the four bytes begin that mask this frame.

    Raises:
        ValueError: there are no four bytes.
    """
    cdef Py_buffer view
    cdef uint8_t *p
    cdef const uint8_t *key
    cdef size_t length, i, head = 6
    cdef uint64_t mask, word
    if at + 4 > <size_t>len(keys):
        raise ValueError("keys: four bytes are needed")
    key = <const uint8_t *>PyBytes_AS_STRING(keys) + at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        length = <size_t>view.len
        if length > 125:
            head = 8 if length < 65536 else 14
        frame = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(head + length))
        p = <uint8_t *>PyBytes_AS_STRING(frame)
        p[0] = FIN_TEXT
        if head == 6:
            p[1] = MASKED | <uint8_t>length
        elif head == 8:
            p[1] = MASKED | 126
            p[2] = <uint8_t>(length >> 8)
            p[3] = <uint8_t>length
        else:
            p[1] = MASKED | 127
            for i in range(8):
                p[2 + i] = <uint8_t>(<uint64_t>length >> (56 - 8 * i))
        memcpy(p + head - 4, key, 4)
        p += head
        memcpy(p, view.buf, length)
        memcpy(&mask, key, 4)
        memcpy(<uint8_t *>&mask + 4, key, 4)
        i = 0
        while i + 8 <= length:
            memcpy(&word, p + i, 8)
            word ^= mask
            memcpy(p + i, &word, 8)
            i += 8
        while i < length:
            p[i] ^= key[i & 3]
            i += 1
    finally:
        PyBuffer_Release(&view)
    return frame
