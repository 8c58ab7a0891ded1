# The hashes as Python functions; hash.pxd has the code.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t


def xxh64(data: ReadableBuffer, uint64_t seed=SEED) -> int:
    """Return the XXH64 hash of `data`, 0 to 2**64 - 1."""
    cdef Py_buffer view
    cdef uint64_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = xxh64_of(<const uint8_t *> view.buf, view.len, seed)
    PyBuffer_Release(&view)
    return h


def murmur3(data: ReadableBuffer) -> int:
    """Return plog's hash of a message: MurmurHash3, x86, 32 bits, seed 0. It is not Spark's ``hash()``."""
    cdef Py_buffer view
    cdef uint32_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = murmur3_of(<const uint8_t *> view.buf, view.len)
    PyBuffer_Release(&view)
    return h
