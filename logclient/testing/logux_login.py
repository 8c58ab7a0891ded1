"""Logux: what a server reads of a client that logs in, its node id and its subprotocol."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from logclient.logux.messages import Error

__all__ = ["WRONG_CREDENTIALS", "Identity", "falls_below", "parse_id"]

WRONG_CREDENTIALS = Error("wrong-credentials")

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class Identity(NamedTuple):
    """The parts of a node id."""

    user: str | None
    client: str  # user and client, by which servers distinguish clients: ``user:client``
    tab: str  # empty if the node id has none


def parse_id(text: str) -> Identity:
    """Split a node id (``user:client:tab``), or the one in an action's id."""
    node_id = text.split(" ")[1] if " " in text else text
    parts = node_id.split(":", 2)
    if len(parts) == 1:
        return Identity(None, node_id, "")
    return Identity(parts[0], f"{parts[0]}:{parts[1]}", parts[2] if len(parts) == 3 else "")


def falls_below(used: Any, minimum: int | str, strict_spec: bool = False) -> bool:
    """Return whether an application's subprotocol, of any type, is too old.

    With `strict_spec`, versions are texts in SemVer (protocol text, "connect"). Otherwise they are compared
    as by the released server, with JavaScript's ``<``: no value that is not numeric is less than 3.
    """
    if strict_spec:
        return _semver(used) < _semver(minimum)
    if used is None or used == "":
        used = 0
    if type(used) is str and type(minimum) is str:
        return used < minimum
    return _to_number(used) < _to_number(minimum)


def _to_number(value: Any) -> float:
    """Convert like JavaScript's Number(): values that are not numeric give NaN, so comparisons are false."""
    if isinstance(value, list):
        value = ",".join("" if one is None else one if isinstance(one, str) else str(one) for one in value)
    if isinstance(value, str):
        value = value.strip()
        if not value:
            return 0.0
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII):
            return int(value, 16) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,13}", value) else math.nan
    try:
        return float(value)
    except (TypeError, OverflowError):
        return math.nan


def _semver(version: Any) -> tuple[Any, ...]:
    """Return a sort key of a version; an integer is a major version."""
    if type(version) is int:
        version = f"{version}.0.0"
    match = _SEMVER.fullmatch(version[:256]) if type(version) is str else None
    if match is None:
        return (-1,)
    major, minor, patch, before = match.groups()
    return int(major), int(minor), int(patch), *_precedence(before)


def _precedence(before: str | None) -> tuple[Any, ...]:
    """Return a sort key of a pre-release; a version without one comes last."""
    if before is None:
        return (1,)
    return 0, tuple((0, int(one), "") if one.isdigit() else (1, 0, one) for one in before.split("."))
