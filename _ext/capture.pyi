"""Scan of a capture segment; ``docs/formats.md`` describes the format under "Capture"."""

from typing import Final, final

from _typeshed import ReadableBuffer

MAX_RECORD: Final[int]
"""Largest record in bytes; a longer one is damage."""

SEGMENT: Final = 1
STREAM: Final = 2
UNIT: Final = 3
END: Final = 4
BAD_CRC: Final = -1
"""Not a type: a record with a wrong CRC-32. The scan goes on after its length."""
BAD_RECORD: Final = -2
"""Not a type: a record of an unknown type, too short for its type, or with an impossible arrival number."""

MORE: Final = 0
"""Reason to stop: the rest of the data is not a whole record."""
LIMIT: Final = 1
"""Reason to stop: `limit` units or 65,536 other records were found."""
LENGTH: Final = 2
"""Reason to stop: the length of a record is 0 or more than `MAX_RECORD`, so the next one cannot be found."""

CRC_FOLDS: Final[bool]
"""True if this processor multiplies polynomials (PCLMULQDQ); otherwise tables are used."""

def crc32(data: ReadableBuffer, value: int = 0, *, fold: bool = True) -> int:
    """Compute ``zlib.crc32(data, value)``; with ``fold=False`` by tables on any processor."""

@final
class Walk:
    """Units of a segment, in the order of the file: one column per property, as bytes of native integers.

    ``numpy.frombuffer(walk.offset, "int64")`` makes no copy.
    """

    @property
    def count(self) -> int:
        """Number of units; also ``len(walk)``."""
    @property
    def end(self) -> int:
        """Offset of the first record that was not read."""
    @property
    def stop(self) -> int:
        """`MORE`, `LIMIT` or `LENGTH`."""
    @property
    def offset(self) -> bytes:
        """int64: offset of the unit's raw bytes in the data."""
    @property
    def length(self) -> bytes:
        """int64: number of raw bytes."""
    @property
    def arrival(self) -> bytes:
        """uint64: number of the arrival at the listener."""
    @property
    def stream(self) -> bytes:
        """uint64: number of the stream."""
    @property
    def received_us(self) -> bytes:
        """int64, microseconds since 1970."""
    @property
    def direction(self) -> bytes:
        """uint8: 0 from the peer, 1 to the peer."""
    @property
    def others(self) -> list[tuple[int, int, int]]:
        """Type (or `BAD_CRC`, `BAD_RECORD`), offset and payload length of each other record."""
    def __len__(self) -> int: ...

def walk(
    data: ReadableBuffer, start: int = 0, *, limit: int = 0, skip: bool = False, streams: bool = True
) -> Walk:
    """Scan the records of ``data[start:]``, without the GIL.

    Args:
        data: bytes of a segment.
        start: offset of a record.
        limit: stop after so many units; 0: no limit.
        skip: pass over units without checking them. There are only the other records then.
        streams: False: records that name a stream are checked and not listed, but for those behind the end.

    Raises:
        ValueError: `start` is not in the data.
    """
