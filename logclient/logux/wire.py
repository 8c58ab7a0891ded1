"""Logux messages for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

from typing import Any

from logclient._ext import logux

codec = logux
COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = "messages"
DOCUMENT: dict[str, Any] = {
    "time": ("@timestamp",),
    "level": ("log.level", "level"),
    "message": ("message",),
    "nested": "data",
}
FRAME_HEAD: int | None = 0


def wrap_body(body: bytes) -> bytes:
    """Return `body`: the decoder takes bodies as they are (`BODY_OPTION`)."""
    return body
