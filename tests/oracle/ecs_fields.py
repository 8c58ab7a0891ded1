"""The published fields of ECS: their types, and what Elasticsearch takes for each type.

`TYPES` is read from tests/vectors/ecs-fields.txt, which names its source. The documents may be nested, dotted
or both: `tree` makes one form of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from tests.support import ROOT

FILE = ROOT / "tests" / "vectors" / "ecs-fields.txt"
TYPES: dict[str, str] = dict(
    line.split() for line in FILE.read_text("ascii").splitlines() if not line.startswith("#")
)
HOLDS_OBJECTS = ("object", "nested", "flattened")
ABOVE = frozenset(
    name[:at] for name in TYPES for at, character in enumerate(name) if character == "."
) - frozenset(TYPES)
"""Names that have fields below them, and no type of their own: objects."""

_DATE = re.compile(
    r"[+-]?\d{4,9}(?:-\d\d(?:-\d\d(?:T\d\d(?::\d\d(?::\d\d(?:[.,]\d{1,9})?)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?)?)?"
)
_POINT = re.compile(r"-?\d+(?:\.\d+)?,\s*-?\d+(?:\.\d+)?")


class Conflict(Exception):
    """A name occurs twice, or is both a value and an object."""


class Object(dict[str, Any]):
    """An object in a `tree`: its members by one part of their names."""


def tree(document: Mapping[str, Any]) -> Object:
    """Return a document with each dot of a name as a level of objects. Raise `Conflict`."""
    top = Object()
    _grow(top, document, "")
    return top


def _grow(into: Object, members: Mapping[str, Any], path: str) -> None:
    for name, value in members.items():
        *parts, last = name.split(".")
        at = into
        for part in parts:
            below = at.setdefault(part, Object())
            if not isinstance(below, Object):
                raise Conflict(f"{path}{name}: {part} is a value as well")
            at = below
        if isinstance(value, Mapping):
            below = at.setdefault(last, Object())
            if not isinstance(below, Object):
                raise Conflict(f"{path}{name} is a value and an object")
            _grow(below, value, f"{path}{name}.")
        elif last in at:
            raise Conflict(f"{path}{name} occurs twice")
        else:
            at[last] = value


def nodes(top: Object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return each value and object of a tree with its whole name, objects before what is below them."""
    for name, value in top.items():
        yield path + name, value
        if isinstance(value, Object):
            yield from nodes(value, f"{path}{name}.")


def flatten(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a document by their whole names. Raise `Conflict`."""
    return {name: value for name, value in nodes(tree(document)) if value == {} or not _is_object(value)}


def type_of(name: str) -> str | None:
    """Return the type of a field; None: ECS does not define it."""
    return TYPES.get(name) or ("object" if name in ABOVE else None)


def faults(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that Elasticsearch refuses for the field that ECS defines. Raise `Conflict`."""
    found = {}
    for name, value in nodes(tree(document)):
        kind = type_of(name)
        if kind is not None and not accepts(kind, value):
            found[name] = value
    return found


def accepts(kind: str, value: Any) -> bool:
    """Return whether Elasticsearch takes a JSON value for a field of a type."""
    if value is None:
        return True
    if isinstance(value, (list, tuple)):
        whole = kind == "geo_point" and len(value) in (2, 3) and all(map(_is_number, value))
        return whole or all(accepts(kind, one) for one in value)
    if kind in HOLDS_OBJECTS:
        return _is_object(value)
    if _is_object(value):
        return kind == "geo_point" and set(value) == {"lat", "lon"} and all(map(_is_number, value.values()))
    return _ACCEPTS[kind](value)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_number(value: Any) -> bool:
    """Return whether it is a number, or the text of one: Elasticsearch converts that."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return math.isfinite(float(value))
    except (OverflowError, ValueError):
        return False


def _is_long(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, float):
        return value.is_integer() and -(2.0**63) <= value < 2.0**63
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d{1,19}", value, re.ASCII):
        return False
    return -(2**63) <= int(value) < 2**63


def _is_date(value: Any) -> bool:
    """Return whether it is a date of ISO 8601, or milliseconds since 1970."""
    if isinstance(value, str):
        return bool(_DATE.fullmatch(value))
    return not isinstance(value, bool) and _is_long(value)


def _is_ip(value: Any) -> bool:
    try:
        return isinstance(value, str) and "%" not in value and bool(ip_address(value))
    except ValueError:
        return False


_ACCEPTS = {
    **dict.fromkeys(("keyword", "constant_keyword", "match_only_text", "wildcard"), lambda value: True),
    "long": _is_long,
    "float": _is_number,
    "scaled_float": _is_number,
    "boolean": lambda value: isinstance(value, bool) or value in ("true", "false", ""),
    "date": _is_date,
    "ip": _is_ip,
    "geo_point": lambda value: isinstance(value, str) and bool(_POINT.fullmatch(value)),
}
"""What a type takes that is no list, object or null. A keyword also takes numbers and booleans."""
