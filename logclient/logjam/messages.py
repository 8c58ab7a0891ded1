"""Logjam's messages on the wire: frames, the meta frame, bodies. No I/O.

A captured unit is one ZeroMQ message, in the form of ``lc_wire`` (``_ext/codec.pxd``).
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from logclient._ext.logjam import pack as compress
from logclient._ext.logjam import unpack
from logclient.delivery.contract import find_frames
from logclient.delivery.contract import join_frames as unit
from logclient.errors import MissingExtra, ProtocolError

__all__ = [
    "COMPRESSIONS", "LZ4", "METHODS", "NONE", "SEQUENCE_MAX", "SNAPPY", "ZLIB", "Meta", "compress",
    "decompress", "frames", "is_app_env", "is_topic", "read_meta", "require_library", "unit",
]  # fmt: skip

NONE, ZLIB, SNAPPY, LZ4 = range(4)
METHODS = {"none": NONE, "zlib": ZLIB, "snappy": SNAPPY, "lz4": LZ4}
COMPRESSIONS = tuple(METHODS)
"""Names of the compression methods, by their numbers on the wire."""
SEQUENCE_MAX = (1 << 64) - 1

_META = struct.Struct(">HBBIQQ")
_TAGS = (0xCABD, 0xBDCA)  # the device takes the tag in either order of its bytes, all else only big-endian
_TOPICS = (b"logs", b"javascript", b"events", b"frontend.page", b"frontend.ajax", b"mobile")
_APP_ENV = re.compile(rb"[\x20-\x7f]*-[\x20-\x7f]*")
_PACKAGES = {SNAPPY: "snappy", LZ4: "lz4"}


class Meta(NamedTuple):
    """The meta frame: 24 bytes, big-endian. `device` has 4 bytes, unlike in the producer text."""

    compression: int = NONE
    device: int = 0
    created_ms: int = 0  # milliseconds since 1970; 0: not given
    sequence: int = 0

    def pack(self) -> bytes:
        return _META.pack(_TAGS[0], self.compression, 1, self.device, self.created_ms, self.sequence)


def read_meta(frame: bytes) -> tuple[Meta, bool]:
    """Parse a meta frame; True: its size, tag and version are valid. Nothing else is checked."""
    if len(frame) != _META.size:
        return Meta(), False
    tag, compression, version, device, created_ms, sequence = _META.unpack(frame)
    return Meta(compression, device, created_ms, sequence), tag in _TAGS and version == 1


def is_app_env(app_env: bytes) -> bool:
    """Return whether the device takes this as an app-env: printable ASCII (and DEL) with a dash."""
    return _APP_ENV.fullmatch(app_env) is not None


def is_topic(topic: bytes) -> bool:
    """Return whether the device takes this as a topic; it looks at the beginning only."""
    return topic.startswith(_TOPICS)


def frames(raw: bytes) -> list[bytes]:
    """Return the frames of one captured unit; ValueError: it is not one whole message."""
    spans = find_frames(raw)
    end = spans[-1][1]
    if end != len(raw):
        raise ValueError(f"unit: {len(raw) - end} bytes after the last frame")
    return [raw[begin:end] for begin, end in spans]


def require_library(method: int) -> None:
    """Check that there is a library for a compression method: one that is linked, or a package."""
    if method not in _PACKAGES:
        return
    try:
        compress(method, b"")
    except ValueError as error:
        raise MissingExtra(_PACKAGES[method], "logjam") from error


def decompress(method: int, body: bytes, limit: int) -> bytes:
    """Return a body as it was before it was compressed, of `limit` bytes at most.

    Raises:
        ProtocolError: an unknown method, another framing, damage, or more than `limit` bytes.
        MissingExtra: snappy or lz4 is not installed.
    """
    if method == NONE and len(body) <= limit:
        return body
    try:
        return unpack(method, body, limit)
    except ValueError as error:
        require_library(method)
        raise ProtocolError(f"body: {error}") from error
