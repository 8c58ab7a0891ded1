"""XXH64, the hash of an event's body as carried (seed 42 = Spark's ``xxhash64``)."""

from _typeshed import ReadableBuffer, WriteableBuffer

def xxh64(data: ReadableBuffer, seed: int = 42) -> int:
    """XXH64 of `data`, 0..2**64-1."""

def xxh64_many(
    data: ReadableBuffer,
    offsets: ReadableBuffer,
    lengths: ReadableBuffer,
    out: WriteableBuffer,
    seed: int = 42,
) -> None:
    """XXH64 of many slices of one buffer, without the GIL.

    Args:
        offsets, lengths: int64 each, in bytes, equally many.
        out: uint64, as many; written.

    Raises:
        ValueError: sizes differ, or a slice leaves `data`.
    """
