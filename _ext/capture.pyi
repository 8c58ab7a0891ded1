"""Walks the records of a capture segment; the format is in ``docs/formats.md``, "Capture"."""

from typing import Final, final

from _typeshed import ReadableBuffer

MAX_RECORD: Final[int]
"""A longer record is damage."""

SEGMENT: Final = 1
STREAM: Final = 2
UNIT: Final = 3
END: Final = 4
BAD_CRC: Final = -1
"""Not a type: a record whose CRC-32 is wrong. The next one was looked for behind its length."""
BAD_RECORD: Final = -2
"""Not a type: a record of an unknown type, shorter than its type needs, or with an arrival that cannot be."""

MORE: Final = 0
"""The walk stopped because the rest of the data is no whole record."""
LIMIT: Final = 1
"""... because `limit` units, or 65,536 other records, were found."""
LENGTH: Final = 2
"""... because a record says it is empty or longer than `MAX_RECORD`: it cannot be walked over."""

CRC_FOLDS: Final[bool]
"""Whether this processor multiplies polynomials (PCLMULQDQ); tables otherwise."""

def crc32(data: ReadableBuffer, value: int = 0, *, fold: bool = True) -> int:
    """``zlib.crc32(data, value)``. `fold` False takes the tables whatever the processor can."""

def unbase64(data: ReadableBuffer, size: int) -> bytes:
    """What `data` encodes: base64 of exactly `size` bytes, with its padding.

    Raises:
        ValueError: it is not.
    """

@final
class Walk:
    """What was found, a row a unit, in the order of the file; columns are bytes of little machine words.

    ``numpy.frombuffer(walk.offset, "int64")`` makes no copy.
    """

    @property
    def count(self) -> int:
        """Number of units; also ``len(walk)``."""
    @property
    def end(self) -> int:
        """Where the first record that was not read starts."""
    @property
    def stop(self) -> int:
        """`MORE`, `LIMIT` or `LENGTH`."""
    @property
    def offset(self) -> bytes:
        """int64: where the raw bytes of the unit start in the data."""
    @property
    def length(self) -> bytes:
        """int64: how many there are."""
    @property
    def arrival(self) -> bytes:
        """uint64."""
    @property
    def stream(self) -> bytes:
        """uint64."""
    @property
    def received_us(self) -> bytes:
        """int64, microseconds since 1970."""
    @property
    def direction(self) -> bytes:
        """uint8: 0 from the peer, 1 to the peer."""
    @property
    def others(self) -> list[tuple[int, int, int]]:
        """(type or `BAD_CRC` or `BAD_RECORD`, offset of the record, length of its payload) of the rest."""
    def __len__(self) -> int: ...

def walk(data: ReadableBuffer, start: int = 0, *, limit: int = 0) -> Walk:
    """Walk the records of ``data[start:]``, which begins with one; the GIL is let go of.

    Args:
        limit: at most so many units, 0 = all there are.

    Raises:
        ValueError: `start` is not in the data.
    """
