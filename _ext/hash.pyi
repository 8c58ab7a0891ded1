"""XXH64, the hash of an event's body as carried (seed 42 = Spark's ``xxhash64``); plog's MurmurHash3."""

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

def murmur3(data: ReadableBuffer) -> int:
    """MurmurHash3 x86 32 of `data`, seed 0, 0..2**32-1: plog's hash of a message. It is not Spark's ``hash()``."""
