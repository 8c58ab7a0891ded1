"""Decompression of Snappy and LZ4 blocks in plain Python, after their format descriptions, without a library.

snappy: google/snappy, format_description.txt. LZ4: lz4/lz4, doc/lz4_Block_format.md.
"""

from __future__ import annotations


class _Bytes:
    """A reader of bytes that raises ValueError at their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        if len(self.data) - self.at < n:
            raise ValueError("cut")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, n: int) -> int:
        return int.from_bytes(self.take(n), "little")

    @property
    def over(self) -> bool:
        return self.at == len(self.data)


def _copy(out: bytearray, back: int, n: int) -> None:
    """Append `n` bytes from `back` bytes before the end; the two ranges may overlap."""
    if not 0 < back <= len(out):
        raise ValueError(f"a copy from {back} bytes before, of {len(out)}")
    start = len(out) - back
    for i in range(n):
        out.append(out[start + i])


def snappy_block(data: bytes) -> bytes:
    """Decompress a snappy block.

    Raises:
        ValueError: it is not a snappy block.
    """
    source = _Bytes(data)
    size = shift = 0
    while True:
        byte = source.number(1)
        size |= (byte & 127) << shift
        if size >= 1 << 32:
            raise ValueError("a length over 32 bits")
        shift += 7
        if byte < 128:
            break
    out = bytearray()
    while not source.over:
        tag = source.number(1)
        kind, rest = tag & 3, tag >> 2
        if kind == 0:
            n = rest + 1 if rest < 60 else source.number(rest - 59) + 1
            out += source.take(n)
        elif kind == 1:
            _copy(out, (tag >> 5) << 8 | source.number(1), (rest & 7) + 4)
        else:
            _copy(out, source.number(2 if kind == 2 else 4), rest + 1)
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes, {size} were announced")
    return bytes(out)


def lz4_block(data: bytes, size: int) -> bytes:
    """Decompress an LZ4 block to `size` bytes.

    Raises:
        ValueError: it is not such a block.
    """
    source = _Bytes(data)

    def length(nibble: int) -> int:
        while nibble >= 15:
            byte = source.number(1)
            nibble += byte
            if byte < 255:
                break
        return nibble

    out = bytearray()
    while True:
        token = source.number(1)
        out += source.take(length(token >> 4))
        if source.over:
            break  # the last sequence has only literals
        back = source.number(2)
        _copy(out, back, length(token & 15) + 4)
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes, not {size}")
    return bytes(out)
