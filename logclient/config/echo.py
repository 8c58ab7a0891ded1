"""Values as errors show them."""

from __future__ import annotations

__all__ = ["echo"]

_LONGEST = 40


def echo(value: object) -> str:
    """Write a value for an error: short, and without the possible password of a URL."""
    text = repr(value)
    before, at, after = text.rpartition("@")
    if at:
        scheme, mark, _ = before.partition("://")
        text = f"{scheme + mark if mark else before[:1]}***@{after}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
