"""Lumberjack windows for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

from typing import Any

from logclient._ext import lumberjack

codec = lumberjack
COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = ""
DOCUMENT: dict[str, Any] = {
    "time": ("@timestamp",),
    "level": ("log.level", "level"),
    "message": ("message", "line"),
    "pairs": True,
}
FRAME_HEAD: int | None = None  # offsets count with compressed frames inflated in place


def wrap_body(body: bytes) -> bytes:
    """Return a window of this one event."""
    return b"2W\0\0\0\x012J\0\0\0\x01" + len(body).to_bytes(4, "big") + body
