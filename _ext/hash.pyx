# The hashes as Python functions; hash.pxd has the code.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


def xxh64(data: ReadableBuffer, uint64_t seed=SEED) -> int:
    """Return the XXH64 hash of `data`, 0 to 2**64 - 1."""
    cdef Py_buffer view
    cdef uint64_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = xxh64_of(<const uint8_t *> view.buf, view.len, seed)
    PyBuffer_Release(&view)
    return h


def xxh64_many(const uint8_t[::1] data not None, const int64_t[::1] offsets not None,
               const int64_t[::1] lengths not None, uint64_t[::1] out not None, uint64_t seed=SEED):
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
    cdef Py_ssize_t total = data.shape[0], n = offsets.shape[0], i
    cdef const uint8_t *p = &data[0] if total else NULL
    if lengths.shape[0] != n or out.shape[0] != n:
        raise ValueError(f"offsets, lengths and out must be equally many, not {n}, {lengths.shape[0]} "
                         f"and {out.shape[0]}")
    for i in range(n):
        if offsets[i] < 0 or lengths[i] < 0 or offsets[i] > total or lengths[i] > total - offsets[i]:
            raise ValueError(f"slice {i} leaves the data of {total} bytes")
    with nogil:
        for i in range(1, n, 2):
            xxh64_two(p + offsets[i - 1], lengths[i - 1], p + offsets[i], lengths[i], seed, &out[i - 1],
                      &out[i])
        if n & 1:
            out[n - 1] = xxh64_of(p + offsets[n - 1], lengths[n - 1], seed)


def murmur3(data: ReadableBuffer) -> int:
    """Return plog's hash of a message: MurmurHash3, x86, 32 bits, seed 0. It is not Spark's ``hash()``."""
    cdef Py_buffer view
    cdef uint32_t h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        h = murmur3_of(<const uint8_t *> view.buf, view.len)
    PyBuffer_Release(&view)
    return h
