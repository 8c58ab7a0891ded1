# The hashes as Python functions; hash.pxd has the code.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


def xxh64(data, uint64_t seed=SEED):
    """Return the XXH64 hash of `data`, 0 to 2**64 - 1."""
    cdef Py_buffer view
    cdef uint64_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = xxh64_of(<const uint8_t *> view.buf, view.len, seed)
    PyBuffer_Release(&view)
    return h


def xxh64_many(data, offsets, lengths, out, uint64_t seed=SEED):
    """Hash many slices of one buffer with XXH64, without the GIL.

    Args:
        data: the bytes.
        offsets: int64, where each slice begins.
        lengths: int64, the bytes of each slice.
        out: uint64, as many; filled with the hashes.
        seed: XXH64's.

    Raises:
        ValueError: sizes differ, or a slice is not inside `data`.
    """
    cdef Py_buffer view, at, size, to
    cdef Py_ssize_t n, i
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &at, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(lengths, &size, PyBUF_SIMPLE)
            try:
                PyObject_GetBuffer(out, &to, PyBUF_SIMPLE | PyBUF_WRITABLE)
                try:
                    n = at.len // 8
                    if at.len % 8 or size.len != at.len or to.len != at.len:
                        raise ValueError(f"offsets, lengths and out must be int64, equally many: "
                                         f"{at.len}, {size.len}, {to.len} bytes")
                    with nogil:
                        i = hash_slices(<const uint8_t *> view.buf, view.len, <const int64_t *> at.buf,
                                        <const int64_t *> size.buf, <uint64_t *> to.buf, n, seed)
                    if i < n:
                        raise ValueError(f"slice {i} leaves the data of {view.len} bytes")
                finally:
                    PyBuffer_Release(&to)
            finally:
                PyBuffer_Release(&size)
        finally:
            PyBuffer_Release(&at)
    finally:
        PyBuffer_Release(&view)


# The number of slices hashed: fewer than n when the next one leaves the data.
cdef Py_ssize_t hash_slices(const uint8_t *p, Py_ssize_t total, const int64_t *at, const int64_t *size,
                            uint64_t *to, Py_ssize_t n, uint64_t seed) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if at[i] < 0 or size[i] < 0 or at[i] > total or size[i] > total - at[i]:
            return i
        if i & 1:
            xxh64_two(p + at[i - 1], size[i - 1], p + at[i], size[i], seed, &to[i - 1], &to[i])
    if n & 1:
        to[n - 1] = xxh64_of(p + at[n - 1], size[n - 1], seed)
    return n


def murmur3(data):
    """Return plog's hash of a message: MurmurHash3, x86, 32 bits, seed 0. It is not Spark's ``hash()``."""
    cdef Py_buffer view
    cdef uint32_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = murmur3_of(<const uint8_t *> view.buf, view.len)
    PyBuffer_Release(&view)
    return h
