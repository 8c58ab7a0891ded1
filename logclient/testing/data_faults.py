"""Changes that data faults make to the body of an event, for all protocols."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

__all__ = ["flip_bit", "foreign_id"]

_TRIES = 100


def flip_bit(
    body: bytes, random: Random, parse: Callable[[bytes], Any], keep: Collection[str]
) -> bytes | None:
    """Flip a bit of one letter or digit, so that the body still parses and only a value changes.

    `parse` returns a JSON value, or the body itself if it is not JSON. It rejects an attempt by a ValueError
    or RecursionError. The members `keep` of a JSON object do not change. None: all of 100 attempts were
    rejected.
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
            if _differs_in_a_value(before, parse(tried), keep):
                return tried
        except (ValueError, RecursionError):
            continue
    return None


def _differs_in_a_value(before: Any, after: Any, keep: Collection[str]) -> bool:
    if isinstance(before, bytes):
        return isinstance(after, bytes) and before != after and before[:1] == after[:1]
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() != after.keys():
        return False
    return before != after and all(before.get(name) == after.get(name) for name in keep)


def foreign_id(old: str, random: Random) -> str:
    """Return an id that was never sent: of the same producer far ahead, or of an unknown producer."""
    if random.random() < 0.5:
        return old[:20] + f"{(1 << 48) - 1 - random.getrandbits(20):012x}"
    return f"{random.getrandbits(80):020x}{random.randrange(1, 1000):012x}"
