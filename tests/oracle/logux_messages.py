"""The rules of Logux messages and ids, written for reading, not for speed."""

from __future__ import annotations

import json
import math
from typing import Any


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53


def thing(value: Any) -> bool:
    """Return whether a value is an object for the real server: one with a number as length is not."""
    if not isinstance(value, dict):
        return False
    length = value.get("length")
    return not isinstance(length, int | float) or isinstance(length, bool)


def node_id(value: Any) -> bool:
    return isinstance(value, str) and " " not in value


def relative_id(value: Any) -> bool:
    if isinstance(value, list):
        if len(value) == 2:
            return number(value[0]) and number(value[1])
        return len(value) == 3 and number(value[0]) and node_id(value[1]) and number(value[2])
    return number(value)


def shape(message: Any) -> str:
    """Classify a message: ``ok``, ``unknown`` or ``wrong``."""
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        return "wrong"
    kind, rest = message[0], message[1:]
    if kind in ("connect", "connected"):
        good = len(rest) in (3, 4) and number(rest[0]) and node_id(rest[1])
        good = good and (len(rest) == 3 or thing(rest[3]))
        if kind == "connect":
            good = good and number(rest[2])
        else:
            good = good and isinstance(rest[2], list) and len(rest[2]) == 2 and all(map(number, rest[2]))
    elif kind in ("ping", "pong", "synced"):
        good = len(rest) == 1 and number(rest[0])
    elif kind == "headers":
        good = len(rest) == 1 and thing(rest[0])
    elif kind == "debug":
        good = len(rest) == 2 and rest[0] == "error" and isinstance(rest[1], str)
    elif kind == "error":
        good = len(rest) in (1, 2) and isinstance(rest[0], str)
    elif kind == "sync":
        good = len(rest) % 2 == 1 and number(rest[0])
        for action in rest[1::2]:
            good = good and thing(action) and isinstance(action.get("type"), str)
        for meta in rest[2::2]:
            good = good and thing(meta) and number(meta.get("time")) and relative_id(meta.get("id"))
    else:
        return "unknown"
    return "ok" if good else "wrong"


def nesting(text: str) -> int:
    """Return the depth of nested arrays and objects."""
    depth = most = 0
    inside = escaped = False
    for character in text:
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            most = max(most, depth)
        elif character in "]}":
            depth -= 1
    return most


def finite(text: str) -> bool:
    """Return whether all numbers are finite."""
    beyond: list[float] = []

    def read(number_text: str) -> float:
        value = float(number_text)
        if not math.isfinite(value):
            beyond.append(value)
        return value

    json.loads(text, parse_float=read, parse_constant=read)
    return not beyond


def absolute_id(relative: Any, base: int, sender: str) -> str:
    shift, node, counter = relative, sender, 0
    if isinstance(relative, list):
        shift, counter = relative[0], relative[-1]
        if len(relative) == 3:
            node = relative[1]
    return " ".join([str(base + shift), node, str(counter)])


def order(version: str) -> list[Any]:
    """Return the sort key of a SemVer version without a build."""
    numbers, _, before = version.partition("-")
    key: list[Any] = [int(part) for part in numbers.split(".")]
    if not before:
        return [*key, "release"]
    return [*key, *(("number", int(p)) if p.isdigit() else ("text", p) for p in before.split("."))]
