"""Logjam's messages as they travel: frames, the meta frame, bodies. No socket in here.

A captured unit is one ZeroMQ message: for each frame a ``u32`` head, little-endian, and its bytes. The
head is the frame's length, with the highest bit set when another frame of the message follows.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Any, NamedTuple

from logclient.errors import MissingExtra, ProtocolError

__all__ = [
    "LZ4", "METHODS", "NONE", "SEQUENCE_MAX", "SNAPPY", "ZLIB", "Meta",
    "compressed", "frames", "opened", "read_meta", "unit", "well_formed", "well_known",
]  # fmt: skip

NONE, ZLIB, SNAPPY, LZ4 = range(4)
METHODS = {"none": NONE, "zlib": ZLIB, "snappy": SNAPPY, "lz4": LZ4}
SEQUENCE_MAX = (1 << 64) - 1

_MORE = 0x80000000
_U32 = struct.Struct("<I")
_LENGTH = struct.Struct(">I")  # before an lz4 block
_META = struct.Struct(">HBBIQQ")
_TAGS = (0xCABD, 0xBDCA)  # the device takes the tag in either order of its bytes, all else only big-endian
_TOPICS = (b"logs", b"javascript", b"events", b"frontend.page", b"frontend.ajax", b"mobile")
_APP_ENV = re.compile(rb"[\x20-\x7f]*-[\x20-\x7f]*")
_SNAPPY_LENGTH = re.compile(rb"[\x80-\xff]{0,4}[\x00-\x7f]")


class Meta(NamedTuple):
    """The meta frame: 24 bytes, big-endian (producer text, "Data frames", but for the device's 4 bytes)."""

    compression: int = NONE
    device: int = 0
    created_ms: int = 0
    """Milliseconds since 1970; 0: not said."""
    sequence: int = 0

    def pack(self) -> bytes:
        return _META.pack(_TAGS[0], self.compression, 1, self.device, self.created_ms, self.sequence)


def read_meta(frame: bytes) -> tuple[Meta, bool]:
    """What a meta frame says, and whether it is valid: its size, its tag and its version, nothing else."""
    if len(frame) != _META.size:
        return Meta(), False
    tag, compression, version, device, created_ms, sequence = _META.unpack(frame)
    return Meta(compression, device, created_ms, sequence), tag in _TAGS and version == 1


def well_formed(app_env: bytes) -> bool:
    """As the device looks at it: printable ASCII (and DEL) with a dash."""
    return _APP_ENV.fullmatch(app_env) is not None


def well_known(topic: bytes) -> bool:
    """As the device looks at it: how the topic begins, not where its word ends."""
    return topic.startswith(_TOPICS)


def unit(parts: list[bytes]) -> bytes:
    """The frames of one message as one captured unit."""
    out = []
    last = len(parts) - 1
    for index, part in enumerate(parts):
        out.append(_U32.pack(len(part) | _MORE if index < last else len(part)))
        out.append(part)
    return b"".join(out)


def frames(raw: bytes) -> list[bytes]:
    """The frames of one captured unit.

    Raises:
        ValueError: it is not one whole message.
    """
    parts: list[bytes] = []
    at, more = 0, True
    while more:
        if len(raw) - at < 4:
            raise ValueError(f"unit: no head of a frame at offset {at}")
        (head,) = _U32.unpack_from(raw, at)
        more, end = bool(head & _MORE), at + 4 + (head & ~_MORE)
        if end > len(raw):
            raise ValueError(f"unit: a frame at offset {at} of {head & ~_MORE} bytes is not whole")
        parts.append(raw[at + 4 : end])
        at = end
    if at != len(raw):
        raise ValueError(f"unit: {len(raw) - at} bytes behind the last frame")
    return parts


def _snappy() -> Any:
    try:
        import snappy
    except ImportError as error:
        raise MissingExtra("snappy", "logjam") from error
    return snappy


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise MissingExtra("lz4", "logjam") from error
    return lz4.block


def compressed(method: int, body: bytes) -> bytes:
    """A body in the framing of its method: RFC 1950; a raw snappy block; u32 length and a raw lz4 block."""
    if method == ZLIB:
        return zlib.compress(body)
    if method == SNAPPY:
        return bytes(_snappy().compress(body))
    if method == LZ4:
        return _LENGTH.pack(len(body)) + bytes(_lz4().compress(body, store_size=False))
    return body


def opened(method: int, body: bytes, limit: int) -> bytes:
    """A body as it was before it was compressed, never more than `limit` bytes of it in memory.

    Raises:
        ProtocolError: an unknown method, another framing, damage, or more than `limit` bytes.
        MissingExtra: snappy or lz4 is not installed.
    """
    if method == NONE:
        if len(body) > limit:
            raise ProtocolError(f"body: {len(body)} bytes, more than {limit}")
        return body
    if method == ZLIB:
        return _zlib_opened(body, limit)
    if method == SNAPPY:
        said = _SNAPPY_LENGTH.match(body)
        if said is None:
            raise ProtocolError("body: no snappy block")
        length = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(said[0]))
        _bounded(length, limit)
        snappy = _snappy()
        try:
            plain = bytes(snappy.uncompress(body))
        except Exception as error:  # python-snappy has had several classes for it
            raise ProtocolError("body: no snappy block") from error
    elif method == LZ4:
        if len(body) < 4:
            raise ProtocolError("body: no length before an lz4 block")
        (length,) = _LENGTH.unpack_from(body)
        _bounded(length, limit)
        block = _lz4()
        try:
            plain = bytes(block.decompress(body[4:], uncompressed_size=length))
        except Exception as error:  # lz4.block.LZ4BlockError, ValueError, OverflowError
            raise ProtocolError("body: no lz4 block of the length before it") from error
    else:
        raise ProtocolError(f"compression: {method} is none of {', '.join(METHODS)}")
    if len(plain) != length:
        raise ProtocolError(f"body: {len(plain)} bytes where {length} were announced")
    return plain


def _bounded(length: int, limit: int) -> None:
    if length > limit:
        raise ProtocolError(f"body: {length} bytes unpacked, more than {limit}")


def _zlib_opened(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise ProtocolError("body: no zlib stream") from error
    if len(plain) > limit:
        raise ProtocolError(f"body: more than {limit} bytes unpacked")
    if not stream.eof:
        raise ProtocolError("body: the zlib stream does not end")
    return plain
