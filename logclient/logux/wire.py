"""Logux messages for the verifier. See `logclient.verify.decode.Wire`."""

from __future__ import annotations

from logclient._ext import logux as codec

__all__ = ["BODY_OPTION", "CARRIES", "COLUMNS", "FRAME_HEAD", "LINES", "OPTIONS", "codec", "wrap_body"]

COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = "messages"
FRAME_HEAD: int | None = 0


def wrap_body(body: bytes) -> tuple[bytes, bytes]:
    """Return nothing: the decoder takes bodies as they are (`BODY_OPTION`)."""
    return b"", b""
