"""Text that a terminal and a browser show and do not obey."""

from __future__ import annotations


def escape(text: str) -> str:
    r"""Escape all characters that are not printable.

    These are controls (C0, C1, ESC), line ends, marks of the writing direction, and surrogates. They become
    ``\x1b`` below U+0080 and ``\u{202e}`` above. JSON has neither form, so they cannot be mistaken for
    escapes of a JSON text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" if c < "\x80" else f"\\u{{{ord(c):x}}}" for c in text
    )
