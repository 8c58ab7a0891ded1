# Compression of bodies, as Python calls it.

LINKED = tuple(name for name, linked in (
    ("zlib", LC_HAS_ZLIB), ("isal", LC_HAS_ISAL), ("lz4", LC_HAS_LZ4), ("snappy", LC_HAS_SNAPPY)
) if linked)


def pack(int compression, body, /, *, int level=3):
    """Pack a body as messages carry it.

    Raises:
        ValueError: there is no such compression, or it is not installed.
    """
    cdef lc_packer packer
    cdef lc_wire out
    cdef bytes data = bytes(body)
    cdef const uint8_t *p
    cdef size_t size
    cdef int done = 0
    if not 0 <= compression < COMPRESSIONS:
        raise ValueError(f"compression: 0 to {COMPRESSIONS - 1}, not {compression}")
    if compression == NO_COMPRESSION:
        return data
    memset(&out, 0, sizeof(out))
    p = <const uint8_t *> PyBytes_AS_STRING(data)
    size = len(data)
    package = packer_open(&packer, compression, level)
    try:
        with nogil:
            done = pack_body(&packer, p, size, &out)
        if done < 0:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
    finally:
        free(out.data)
        packer_close(&packer)
        del package


@cython.final
cdef class Unpacker:
    """Unpacks compressed bodies of at most `max_unpacked` bytes. Use one per thread.

    Memory is allocated only as far as the compressed bytes can hold that much, whatever length they announce.
    """

    cdef lc_unpacker k
    cdef object packages
    cdef size_t limit

    def __cinit__(self):
        memset(&self.k, 0, sizeof(lc_unpacker))

    def __init__(self, size_t max_unpacked=BODY_LIMIT):
        if self.packages is not None:
            raise TypeError("__init__ has run already")
        self.packages = unpacker_open(&self.k)
        self.limit = max_unpacked

    def __dealloc__(self):
        unpacker_close(&self.k)

    def unpack(self, int compression, body, /):
        """Return the unpacked body.

        Raises:
            ValueError: it is damaged; the message names the fault.
        """
        cdef lc_wire out
        cdef bytes data = bytes(body)
        cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef size_t size = len(data)
        cdef int done = 0
        if self.packages is None:
            raise TypeError("__init__ has not run")
        if not 0 <= compression < COMPRESSIONS:
            raise ValueError(f"unknown compression {compression}")
        if compression == NO_COMPRESSION:
            if <size_t> len(data) > self.limit:
                raise ValueError(f"a body of {len(data)} bytes; the limit is {self.limit}")
            return data
        memset(&out, 0, sizeof(out))
        try:
            with nogil:
                done = unpack_body(&self.k, compression, p, size, &out, self.limit)
            if done == INFLATE_MEMORY:
                raise MemoryError()
            name = ("", "zlib stream", "snappy block", "LZ4 block behind a big-endian length")[compression]
            if done == INFLATE_TOO_LARGE:
                raise ValueError(f"a body that unpacks to more than {self.limit} bytes")
            if done == UNPACK_MISSING:
                raise ValueError(f"{'snappy' if compression == SNAPPY else 'lz4'} is not installed")
            if done < 0:
                raise ValueError(f"no {name}")
            return PyBytes_FromStringAndSize(<const char *> out.data, out.size)
        finally:
            free(out.data)
