"""What a captured unit of each protocol is: the table by which the verifier and ``logclient decode`` read it.

A protocol without a row can be sent, and not verified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from logclient._ext import logjam, logux, lumberjack, plog
from logclient.evidence.frames import Bytes, Frame
from logclient.evidence.frames.logjam import expand as logjam_expand
from logclient.evidence.frames.logjam import frames as logjam_frames
from logclient.evidence.frames.logux import frames as logux_frames
from logclient.evidence.frames.lumberjack import expand as lumberjack_expand
from logclient.evidence.frames.lumberjack import frames as lumberjack_frames
from logclient.evidence.frames.plog import frames as plog_frames
from logclient.logjam.messages import Meta, unit

_PENDING_BYTES = 64 << 20  # of incomplete plog messages, the same as the decoder keeps


class Wire(NamedTuple):
    """How the units of one protocol are read."""

    codec: ModuleType  # the compiled module, with ``Decoder`` and ``STATUS_NAMES``
    frames: Callable[[Bytes], Iterator[Frame]]
    """Describes the bytes of one direction for people."""
    expand: Callable[[bytes], bytes] = bytes  # unpacks what is compressed in a unit, in its place
    columns: Mapping[str, str] = {}  # that only this decoder has: name -> NumPy type
    options: Mapping[str, int] = {}  # arguments of the decoder
    reassembler: Callable[[], Any] | None = None
    """Makes an object that joins events which came in several units, and keeps the same incomplete ones as
    the decoder. All units of a listener must then go through one decoder, in order, each with its stream and
    time. None: an event is in one unit."""
    body_option: str = ""
    """The decoder's argument that is False for bodies without a unit around them."""
    wrap_body: Callable[[bytes], bytes] | None = None
    """Makes a unit that carries only this body, where the decoder has no such argument."""
    lines: tuple[str, ...] = ()  # schemes of the protocol whose unit is a body
    frame_head: int | None = None
    """Bytes of a frame before its content, where offsets count in the unit as it came; None where they count
    with compressed frames inflated in place."""


def _wrap_in_logjam(body: bytes) -> bytes:
    """Return a Logjam message of this one event.

    The topic decides which field has the id. A body alone has no topic, so its fields tell.
    """
    topic = b"logs"
    if b'"uuid"' in body and not (b'"request_id"' in body and _has_request_id(body)):
        topic = b"events"
    return unit([b"app-env", topic, body, Meta().pack()])


def _has_request_id(body: bytes) -> bool:
    """Return whether the document has the field at its top level, or cannot be read."""
    try:
        return "request_id" in json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return True


WIRES = {
    "logjam": Wire(
        logjam,
        logjam_frames,
        expand=logjam_expand,
        columns={
            "request": "u1",
            "app_env_offset": "i4",
            "app_env_length": "i4",
            "topic_offset": "i4",
            "topic_length": "i4",
            "device": "u4",
            "created_ms": "u8",
            "number": "u8",
        },
        wrap_body=_wrap_in_logjam,
        frame_head=4,  # the length before a frame
    ),
    "logux": Wire(logux, logux_frames, body_option="messages", frame_head=0),
    "lumberjack": Wire(lumberjack, lumberjack_frames, expand=lumberjack_expand, body_option="windows"),
    "plog": Wire(
        plog,
        plog_frames,
        options={"max_message": (1 << 31) - 1},  # no limit here: a client may have been configured with any
        reassembler=lambda: plog.Reassembler(
            max_message=plog.MAX_MESSAGE, max_bytes=plog.MAX_MESSAGE + _PENDING_BYTES
        ),
        body_option="datagrams",
        lines=("plog+tcp",),
    ),
}
