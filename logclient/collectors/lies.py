"""What a lying collector does to a body, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["flipped", "foreign_id"]


def flipped(
    body: bytes, random: Random, read: Callable[[bytes], Any], altered: Callable[[Any, Any], bool]
) -> bytes | None:
    """The body with a bit of one letter or digit flipped; None when none of 100 tries would do.

    Args:
        read: what it says; errors of it are those of a try that would not do.
        altered: of what it said and says: something changed, and nothing that may not.
    """
    try:
        before = read(body)
    except (ValueError, RecursionError):
        return None
    for at in random.choices(range(len(body)), k=100) if body else ():
        changed = bytes((body[at] ^ 1,))
        if not (body[at : at + 1].isalnum() and changed.isalnum()):
            continue
        tried = body[:at] + changed + body[at + 1 :]
        try:
            if altered(before, read(tried)):
                return tried
        except (ValueError, RecursionError):
            continue
    return None


def foreign_id(old: str, random: Random) -> str:
    """An id that was never sent."""
    if random.random() < 0.5:  # of this producer, from the far end of its sequences
        return old[:20] + f"{(1 << 48) - 1 - random.getrandbits(20):012x}"
    return f"{random.getrandbits(80):020x}{random.randrange(1, 1000):012x}"
