"""Changes that data faults make to the body of an event, for all protocols."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["flip_bit", "foreign_id"]

_TRIES = 100


def flip_bit(
    body: bytes, random: Random, parse: Callable[[bytes], Any], acceptable: Callable[[Any, Any], bool]
) -> bytes | None:
    """Flip a bit of one letter or digit in a body.

    Args:
        body: the event's body.
        random: where to flip.
        parse: reads a body; a ValueError or RecursionError rejects the attempt.
        acceptable: compares the parsed body before and after; False rejects the attempt.

    Returns:
        The changed body, or None when each of 100 attempts was rejected.
    """
    try:
        before = parse(body)
    except (ValueError, RecursionError):
        return None
    for at in random.choices(range(len(body)), k=_TRIES) if body else ():
        changed = bytes((body[at] ^ 1,))
        if not (body[at : at + 1].isalnum() and changed.isalnum()):
            continue
        tried = body[:at] + changed + body[at + 1 :]
        try:
            if acceptable(before, parse(tried)):
                return tried
        except (ValueError, RecursionError):
            continue
    return None


def foreign_id(old: str, random: Random) -> str:
    """Return an id that was never sent: of the same producer far ahead, or of an unknown producer."""
    if random.random() < 0.5:
        return old[:20] + f"{(1 << 48) - 1 - random.getrandbits(20):012x}"
    return f"{random.getrandbits(80):020x}{random.randrange(1, 1000):012x}"
