"""plog datagrams for the verifier. See `logclient.evidence.decode.Wire`."""

from __future__ import annotations

from logclient._ext import plog

codec = plog
COLUMNS: dict[str, str] = {}
OPTIONS = {"max_message": (1 << 31) - 1}  # no limit here: a client may have been configured with any
CARRIES = True
LINES: tuple[str, ...] = ("plog+tcp",)
BODY_OPTION = "datagrams"
FRAME_HEAD: int | None = None

_PENDING_BYTES = 64 << 20  # of incomplete messages, the same as the decoder keeps


def wrap_body(body: bytes) -> bytes:
    """Return `body`: the decoder takes bodies as they are (`BODY_OPTION`)."""
    return body


def reassembler() -> codec.Reassembler:
    """Return a reassembler that keeps the same incomplete messages as the decoder does."""
    return codec.Reassembler(max_message=codec.MAX_MESSAGE, max_bytes=codec.MAX_MESSAGE + _PENDING_BYTES)
