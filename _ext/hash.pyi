"""XXH64, the hash of an event's body as carried (seed 42 = Spark's ``xxhash64``); plog's MurmurHash3."""

from _typeshed import ReadableBuffer, WriteableBuffer

def xxh64(data: ReadableBuffer, seed: int = 42) -> int:
    """Return the XXH64 hash of `data`, 0 to 2**64 - 1."""

def xxh64_many(
    data: ReadableBuffer,
    offsets: ReadableBuffer,
    lengths: ReadableBuffer,
    out: WriteableBuffer,
    seed: int = 42,
) -> None:
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

def murmur3(data: ReadableBuffer) -> int:
    """Return plog's hash of a message: MurmurHash3, x86, 32 bits, seed 0. It is not Spark's ``hash()``."""
