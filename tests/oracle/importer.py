"""The real importer's treatment of a body, by the observed facts (`decompress_frame`).

It judges bytes on the wire, independently of our code.
"""

from __future__ import annotations

import zlib

from tests.oracle.blocks import lz4_block, snappy_block

MOST = 64 << 20
TAKEN, DROPPED, HANGS, ABORTS = "taken", "dropped", "hangs", "aborts"


def treatment(method: int, body: bytes) -> tuple[str, bytes]:
    """Return what the importer does with a body, and the content if it accepts it."""
    if method == 0:
        return TAKEN, body
    if method == 1:
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(body, MOST + 1)
        except zlib.error:
            return HANGS, b""  # gzip, raw deflate, anything
        if len(content) > MOST or not inflater.eof:
            return HANGS, b""
        return TAKEN, content  # bytes behind the stream are ignored
    if method == 2:
        try:
            if _varint(body) > MOST:
                return ABORTS, b""
            return TAKEN, snappy_block(body)
        except ValueError:
            return DROPPED, b""
    if method == 3:
        size = int.from_bytes(body[:4], "big")
        if len(body) < 4:
            return DROPPED, b""
        if size > MOST:
            return ABORTS, b""  # the lengths of other framings, read as this one
        try:
            return TAKEN, lz4_block(body[4:], size)
        except ValueError:
            return DROPPED, b""
    return DROPPED, b""


def _varint(body: bytes) -> int:
    size = 0
    for place, byte in enumerate(body[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            break
    else:
        raise ValueError("no length")
    if size >= 1 << 32:
        raise ValueError("no length")
    return size
