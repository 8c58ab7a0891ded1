"""Lumberjack windows for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

from logclient._ext import lumberjack

codec = lumberjack
COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = "windows"
FRAME_HEAD: int | None = None  # offsets count with compressed frames inflated in place


def wrap_body(body: bytes) -> bytes:
    """Return `body`: the decoder takes bodies as they are (`BODY_OPTION`)."""
    return body
