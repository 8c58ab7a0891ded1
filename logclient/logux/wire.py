"""Logux messages for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

from logclient._ext import logux

codec = logux
COLUMNS: dict[str, str] = {}
OPTIONS: dict[str, int] = {}
CARRIES = False
LINES: tuple[str, ...] = ()
BODY_OPTION = "messages"
FRAME_HEAD: int | None = 0


def wrap_body(body: bytes) -> bytes:
    """Return `body`: the decoder takes bodies as they are (`BODY_OPTION`)."""
    return body
