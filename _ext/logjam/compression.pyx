LINKED = tuple(name for name, linked in (
    ("zlib", LC_HAS_ZLIB), ("isal", LC_HAS_ISAL), ("lz4", LC_HAS_LZ4), ("snappy", LC_HAS_SNAPPY)
) if linked)
"""The libraries that this build is linked to, of ``zlib``, ``isal``, ``lz4`` and ``snappy``. They are called
without the GIL; Python's packages stand in for the others."""


def pack(int compression, const uint8_t[::1] body: ReadableBuffer, /, *, int level=3) -> bytes:
    """Pack a body as messages carry it; a ValueError: there is no such compression, or not installed."""
    cdef lc_packer packer
    cdef lc_wire out
    cdef int done
    if not 0 <= compression < COMPRESSIONS:
        raise ValueError(f"compression: 0 to {COMPRESSIONS - 1}, not {compression}")
    if compression == NO_COMPRESSION:
        return bytes(body)
    memset(&out, 0, sizeof(out))
    _package = packer_open(&packer, compression, level)
    with nogil:
        done = pack_body(&packer, &body[0], body.shape[0], &out)
    packer_close(&packer)
    try:
        if done < 0:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
    finally:
        free(out.data)


def unpack(int compression, const uint8_t[::1] body: ReadableBuffer, size_t most=BODY_LIMIT, /) -> bytes:
    """Return the unpacked body, of at most so many bytes; a ValueError names what is wrong with it.

    Memory is allocated only as far as the compressed bytes can hold that much, whatever length they announce.
    """
    cdef lc_unpacker unpacker
    cdef lc_wire out
    cdef size_t size = body.shape[0]
    cdef int done
    if not 0 <= compression < COMPRESSIONS:
        raise ValueError(f"unknown compression {compression}")
    if compression == NO_COMPRESSION:
        if size > most:
            raise ValueError(f"a body of {size} bytes; the limit is {most}")
        return bytes(body)
    memset(&out, 0, sizeof(out))
    _packages = unpacker_open(&unpacker)
    with nogil:
        done = unpack_body(&unpacker, compression, &body[0], size, &out, most)
    unpacker_close(&unpacker)
    try:
        if done == INFLATE_MEMORY:
            raise MemoryError()
        if done == INFLATE_TOO_LARGE:
            raise ValueError(f"a body that unpacks to more than {most} bytes")
        if done == UNPACK_MISSING:
            raise ValueError(f"{'snappy' if compression == SNAPPY else 'lz4'} is not installed")
        if done < 0:
            name = ("", "zlib stream", "snappy block", "LZ4 block behind a big-endian length")[compression]
            raise ValueError(f"no {name}")
        return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
    finally:
        free(out.data)
