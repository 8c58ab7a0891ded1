"""Lumberjack windows for the verifier. See `logclient.verify.decode.Wire`."""

from __future__ import annotations

from logclient._ext import lumberjack as codec

__all__ = ["BODY_OPTION", "CARRIES", "COLUMNS", "FRAME_HEAD", "LINES", "OPTIONS", "codec", "wrap_body"]

COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = ""
FRAME_HEAD: int | None = None  # offsets count with compressed frames inflated in place


def wrap_body(body: bytes) -> tuple[bytes, bytes]:
    """Return the bytes before and behind `body` in a window of this one event."""
    return b"2W\0\0\0\x012J\0\0\0\x01" + len(body).to_bytes(4, "big"), b""
