"""What travelled, as lines for people: the one way from wire bytes to a screen or a page.

A protocol's ``frames`` (named in ``registry.py``) walks the bytes and yields `Frame`; `lines` and
`fields` write them. No character that a terminal or a browser could obey comes out of here.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["BODY_KEPT", "Bytes", "Frame", "around", "escape", "fields", "hexdump", "lines", "shown"]

BODY_SHOWN = 200
"""Bytes of a body in a line."""
BODY_KEPT = 1 << 20
"""Bytes of a body in a `Frame`, and of each key and value."""

_BEFORE, _AFTER = 16, 48  # bytes shown around what is wrong

Bytes = bytes | bytearray | memoryview
Pairs = Sequence[tuple[bytes, bytes]]


class Frame(NamedTuple):
    """One frame, or what stands where one should be."""

    offset: int
    """Of its first byte, in the bytes given; of an inner frame: in what the frame around it holds."""
    depth: int
    """How many frames it lies in."""
    size: int
    """Bytes, head and all."""
    title: str
    """What it is, in words; empty where the bytes are no frame."""
    fields: dict[str, Any]
    """The same for programs."""
    body: bytes | Pairs = b""
    """What it carries, as far as it is there and the first `BODY_KEPT` bytes of it, or its pairs."""
    length: int = 0
    """Bytes of the body in all; it ends where the frame does."""
    wrong: str = ""
    """What the protocol does not allow."""
    around: bytes = b""
    """Where something is wrong: the bytes around `offset` ..."""
    around_at: int = 0
    """... and where they begin."""


def around(data: memoryview, offset: int) -> tuple[bytes, int]:
    """Of what is wrong at `offset`: the bytes to show, and where they begin (a multiple of 16)."""
    begin = max(0, offset - _BEFORE) & ~15
    return bytes(data[begin : offset + _AFTER]), begin


def escape(text: str) -> str:
    r"""The text with everything escaped that does not print as itself.

    That is controls (C0, C1, ESC), line ends, what turns the direction of writing, surrogates.
    ``\x1b`` below U+0080 and ``\u{202e}`` above: JSON has neither, so both are told apart from an
    escape that is part of a JSON text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" if c < "\x80" else f"\\u{{{ord(c):x}}}" for c in text
    )


def shown(body: bytes, limit: int = BODY_SHOWN, length: int = 0) -> str:
    r"""Bytes in one line: escaped, what is no UTF-8 as ``\xff``, cut after `limit` of them.

    Args:
        length: how many there are, where `body` is only the first of them.
    """
    length = max(length, len(body))
    if length <= limit:
        return escape(body.decode("utf-8", "backslashreplace"))
    # Not final: a character that is cut in two is left out, not shown as damage.
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
        left -= len(key) + len(value) + 1  # an empty pair takes room too
    return ", ".join(parts)


def hexdump(data: bytes, begin: int = 0) -> list[str]:
    """Rows of 16 bytes: offset from `begin`, hexadecimal, and the printable ASCII of them."""
    rows = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in row)
        rows.append(f"{begin + at:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{text}|")
    return rows


def lines(frame: Frame, limit: int = BODY_SHOWN) -> list[str]:
    """A frame for people: one line, and where something is wrong the reason and a hexdump.

    Args:
        limit: bytes of a body to show, at most.
    """
    indent = " " * 10 + "    " * frame.depth
    out = []
    if frame.title:
        if isinstance(frame.body, bytes):
            body = shown(frame.body, limit, frame.length) if frame.body else ""
        else:
            body = _pairs(frame.body, limit, frame.length)
        title = escape(frame.title)  # it may quote what travelled
        out.append(f"{frame.offset:>{len(indent) - 2}}  {title}{': ' if body else ''}{body}")
    if frame.wrong:
        out.append(f"{indent}WRONG at byte {frame.offset}: {escape(frame.wrong)}")
        out += [f"{indent}{row}" for row in hexdump(frame.around, frame.around_at)]
    return out


def fields(frame: Frame, limit: int = BODY_KEPT) -> dict[str, Any]:
    """A frame for programs: ``offset``, ``depth``, ``size``, its own fields, then ``body`` (text, or
    ``body_hex`` where it is no UTF-8) or ``pairs``, and ``wrong`` (None when nothing is)."""
    found: dict[str, Any] = {"offset": frame.offset, "depth": frame.depth, "size": frame.size, **frame.fields}
    if not isinstance(frame.body, bytes):
        found["pairs"] = [[_text(key, limit), _text(value, limit)] for key, value in frame.body]
    elif frame.body:
        try:
            found["body"] = codecs.getincrementaldecoder("utf-8")().decode(
                frame.body[:limit], final=min(limit, len(frame.body)) >= frame.length
            )
        except UnicodeDecodeError:
            found["body_hex"] = frame.body[:limit].hex()
    found["wrong"] = frame.wrong or None
    return found


def _text(data: bytes, limit: int) -> str:
    return data[:limit].decode("utf-8", "backslashreplace")
