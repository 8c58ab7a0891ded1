"""Records with odd values, and what JSON of ours and of others makes of these values."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from logclient.files.capture import CaptureReader
from logclient.testing.lumberjack import decode
from tests.support.documents import dotted

RECORDS = 2000
OURS = ("@metadata", "event.id", "@timestamp", "ecs.version")


class Broken:
    """An object without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Thing:
    """An object that has no JSON."""

    def __repr__(self) -> str:
        return "Thing()"


class Difference(NamedTuple):
    """A value for which our JSON differs from that of others, on purpose.

    Attributes:
        value: of a field.
        ours: what we send.
        why: the reason.
    """

    value: Any
    ours: Any
    why: str


LOCAL = datetime.datetime(2026, 1, 2, 3, 4, 5)

DIFFERENCES = (
    Difference(math.nan, None, "NaN is no JSON: servers refuse the whole document"),
    Difference(math.inf, None, "as NaN"),
    Difference(b"ab\xff", "ab\ufffd", "text can be searched; a repr has quotes and escapes"),
    Difference({1}, [1], "a list"),
    Difference(LOCAL, LOCAL.astimezone().isoformat(), "Elasticsearch finds dates, and takes them for UTC"),
    Difference(datetime.timedelta(seconds=90), 90.0, "a number can be compared"),
    Difference(decimal.Decimal("1.50"), "1.50", "exact, and without the name of its class"),
    Difference(uuid.UUID(int=7), str(uuid.UUID(int=7)), "as above"),
    Difference(Path("/srv/a"), str(Path("/srv/a")), "as above"),
    Difference(Thing(), "Thing()", "the same text"),
    Difference(Broken(), "<unprintable Broken>", "one value must not lose its record"),
    Difference("\ud800", "\ufffd", "a lone surrogate has no UTF-8"),
    Difference(2**1100, str(2**1100), "servers refuse a number beyond every double"),
)

PLAIN: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: draw.randrange(-(10**12), 10**12),
    lambda draw: draw.uniform(-1e9, 1e9),
    lambda draw: draw.choice([True, False, None]),
    lambda draw: "".join(draw.choices('ab"\\\n\x00\x1f é€😀\u2028', k=draw.randrange(30))),
    lambda draw: {"a": draw.randrange(9), "b": [1, "x", None], "c": {"d": 2.5}},
    lambda draw: [draw.randrange(9), {"k": "v"}],
    lambda draw: "m" * draw.choice((0, 300, 20_000)),
)
NAMES = ("order", "user_id", "größe", "http.method", "n", "items", "a.b", "flag")
MOVED = ("user", "host", "service")
"""Names of ECS objects: what is no object moves to ``labels``."""


def draw_fields(draw: random.Random, odd: bool = True) -> dict[str, Any]:
    """Return some fields with values of all kinds."""
    fields = {}
    for name in draw.sample(NAMES, draw.randrange(4)):
        fields[name] = draw.choice(PLAIN)(draw)
    if odd and draw.random() < 0.3:
        fields["odd"] = draw.choice(DIFFERENCES).value
    if draw.random() < 0.1:
        fields[draw.choice(MOVED)] = draw.randrange(100)
    return fields


def expected_field(name: str, value: Any, theirs: Any) -> tuple[str, Any]:
    """Return the name and value that a field has in our document.

    Args:
        name: of the field.
        value: what the program gave.
        theirs: what the library's own JSON has.
    """
    if name in MOVED and not isinstance(value, dict):
        name = f"labels.{name}"
    for difference in DIFFERENCES:
        if value is difference.value:
            return name, difference.ours
    return name, theirs


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """Return the flat fields of a document that are not `OURS`."""
    return {name: value for name, value in dotted(document).items() if name not in (*OURS, "@metadata._id")}


def fail(draw: random.Random, kinds: int = 4) -> None:
    """Raise an exception of one of the first kinds; the last one has no text."""
    kind = draw.randrange(kinds)
    if kind == 0:
        raise ValueError("grüße\n😀")
    if kind == 1:
        try:
            json.loads("{")
        except ValueError as error:
            raise KeyError("outer") from error
    if kind == 2:
        raise ExceptionGroup("several", [ValueError(1), TypeError("two")])

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Silent


def arrived(capture: Path) -> list[dict[str, Any]]:
    """Return what the collector has received, in order."""
    units = (unit for unit in CaptureReader(capture) if unit.direction == 0)
    return [event for unit in units for event in decode(unit.raw)]
