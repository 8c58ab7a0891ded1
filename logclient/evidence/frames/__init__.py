"""Captured bytes for people: frames as lines and fields, bytes as escaped text and as hexdumps.

This package has a module for each protocol, whose function ``frames`` walks the bytes of one direction and
yields `Frame`; `lines` and `fields` write them. The output has no control character that a terminal or a
browser would obey.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple

from logclient.readable import escape

BODY_SHOWN = 200
"""Bytes of a body that a line shows."""
BODY_KEPT = 1 << 20
"""Bytes that a `Frame` keeps of a body, and of each key and value."""

_BEFORE, _AFTER = 16, 48  # bytes shown around an error

Bytes = bytes | bytearray | memoryview
Pairs = Sequence[tuple[bytes, bytes]]


class Frame(NamedTuple):
    """One frame, or bytes in the place of a frame that are not one."""

    offset: int  # of the first byte in the given bytes; of an inner frame: in the content of the outer frame
    depth: int  # the number of frames around it
    size: int  # bytes, with the header
    title: str  # a description of the kind of frame; empty: the bytes are not a frame
    fields: dict[str, Any]  # the same for programs
    body: bytes | Pairs = b""  # the content or its pairs, at most the first `BODY_KEPT` bytes
    length: int = 0  # bytes of the whole body, which ends where the frame ends
    wrong: str = ""  # the frame's violation of the protocol; empty: there is none
    around: bytes = b""  # if something is wrong: the bytes around `offset`
    around_at: int = 0  # the offset where these bytes begin

    def marked(self, wrong: str, view: memoryview) -> Frame:
        """Return the frame with its violation, and the bytes of `view` around it; without one as it is."""
        if not wrong:
            return self
        data, begin = around(view, self.offset)
        return self._replace(wrong=wrong, around=data, around_at=begin)


def counted(n: int, noun: str) -> str:
    """Return ``1 byte`` or ``2,000 bytes``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def around(data: memoryview, offset: int) -> tuple[bytes, int]:
    """Cut out the bytes around an error; return them, and the offset where they begin, a multiple of 16."""
    begin = max(0, offset - _BEFORE) & ~15
    return bytes(data[begin : offset + _AFTER]), begin


def shown(body: bytes, limit: int = BODY_SHOWN, length: int = 0) -> str:
    r"""Write bytes in one line: escaped, and invalid UTF-8 as ``\xff``; `length` of them are there in all."""
    length = max(length, len(body))
    if length <= limit:
        return escape(body.decode("utf-8", "backslashreplace"))
    # Not final: a character that the limit cuts is left out, not shown as invalid.
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return f"{escape(decoder.decode(body[:limit]))} ... of {length:,} bytes"


def _pairs(pairs: Pairs, limit: int, length: int) -> str:
    parts = []
    left = limit
    for key, value in pairs:
        if left <= 0:
            parts.append(f"... of {length:,} bytes")
            break
        parts.append(f"{shown(key, limit)}={shown(value, limit)}")
        left -= len(key) + len(value) + 1  # an empty pair counts, too
    return ", ".join(parts)


def hexdump(data: bytes, begin: int = 0) -> list[str]:
    """Write rows of 16 bytes: the offset from `begin`, hexadecimal digits, and printable ASCII."""
    rows = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in row)
        rows.append(f"{begin + at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{text}|")
    return rows


def lines(frame: Frame, limit: int = BODY_SHOWN) -> list[str]:
    """Write a frame for people: one line, and for an error its reason and a hexdump."""
    indent = " " * 10 + "    " * frame.depth
    out = []
    if frame.title:
        if isinstance(frame.body, bytes):
            body = shown(frame.body, limit, frame.length) if frame.body else ""
        else:
            body = _pairs(frame.body, limit, frame.length)
        title = escape(frame.title)  # it may contain text from the wire
        out.append(f"{frame.offset:>{len(indent) - 2}}  {title}{': ' if body else ''}{body}")
    if frame.wrong:
        out.append(f"{indent}WRONG at byte {frame.offset}: {escape(frame.wrong)}")
        out += [f"{indent}{row}" for row in hexdump(frame.around, frame.around_at)]
    return out


def fields(frame: Frame, limit: int = BODY_KEPT) -> dict[str, Any]:
    """Write a frame for programs.

    ``offset``, ``depth``, ``size``, the frame's own fields, ``body`` (text; else ``body_hex``) or ``pairs``,
    and ``wrong`` (None: nothing is).
    """
    found: dict[str, Any] = {"offset": frame.offset, "depth": frame.depth, "size": frame.size, **frame.fields}
    if not isinstance(frame.body, bytes):
        found["pairs"] = [[text_of(key, limit), text_of(value, limit)] for key, value in frame.body]
    elif frame.body:
        try:
            found["body"] = codecs.getincrementaldecoder("utf-8")().decode(
                frame.body[:limit], final=min(limit, len(frame.body)) >= frame.length
            )
        except UnicodeDecodeError:
            found["body_hex"] = frame.body[:limit].hex()
    found["wrong"] = frame.wrong or None
    return found


def text_of(data: bytes, limit: int) -> str:
    r"""Return the first bytes as text, and invalid UTF-8 as ``\xff``."""
    return data[:limit].decode("utf-8", "backslashreplace")
