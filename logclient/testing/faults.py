"""Faults of a collector: the grammar of their specification, and the units to which each fault applies.

docs/testing.md describes both. Each fault has a separate random stream, with one draw per unit.
"""

from __future__ import annotations

import json
import os
import re
from random import Random
from typing import Any, NamedTuple

from logclient.errors import ConfigError, LedgerError

#: Faults of data, in the order of precedence; the fault log names the events. At most one applies to a unit.
DATA_FAULTS = ("drop", "discard", "swap", "reorder", "duplicate", "corrupt", "garble", "add")
#: Faults of the connection, which decide whether a unit is answered. At most one applies to a unit.
CONNECTION_FAULTS = (
    "cut-before-write", "cut-before-ack", "partial-cut", "cut-after-ack", "stall", "no-reply",
)  # fmt: skip
#: Faults of the form of the ack; several may apply together.
ACK_FAULTS = ("partial-ack", "delay-ack", "keepalive")

_CAPTURE_FAULTS = ("discard", "swap", "duplicate", "corrupt", "add")
#: The faults of each protocol.
NAMES = {
    "lumberjack": (*_CAPTURE_FAULTS, *(one for one in CONNECTION_FAULTS if one != "no-reply"), *ACK_FAULTS),
    "logjam": (*_CAPTURE_FAULTS, *(one for one in CONNECTION_FAULTS if one != "partial-cut"), "delay-ack"),
    "logux": (*_CAPTURE_FAULTS, *CONNECTION_FAULTS, "delay-ack"),
    "plog": DATA_FAULTS,
}

_MAX_KEEPALIVES = 10_000  # before one ack; they are all made at once
_COUNTS = {"every": "every", "from": "first", "max": "limit"}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


class Fault(NamedTuple):
    """One item of a specification."""

    name: str
    every: int = 0  # 0: by probability
    p: float = 0.0
    first: int = 1
    limit: int = 0  # 0: none
    per_connection: bool = False
    value: float = 0.0  # seconds, events or number of keep-alives; stall: 1 = alive


class Act(NamedTuple):
    """A fault that applies to the current unit."""

    fault: Fault
    scope: int  # number of the connection, 0 when counted over all
    seed: str  # for random choices inside the unit

    @property
    def random(self) -> Random:
        """A new generator that makes the same choices each time."""
        return Random(self.seed)


class Plan(NamedTuple):
    """The faults that apply to one unit."""

    data: Act | None = None  # one of DATA_FAULTS
    connection: Act | None = None  # one of CONNECTION_FAULTS
    partial: Act | None = None
    delay: Act | None = None
    keepalive: Act | None = None


class Faults:
    """The faults of one collector, by their specification (see the module): call `plan` for each unit."""

    def __init__(self, spec: str = "", protocol: str = "lumberjack") -> None:
        names = NAMES[protocol]
        self.seed = 0
        self.faults: list[Fault] = []
        for item in filter(None, (item.strip() for item in spec.split(","))):
            name, equals, terms = item.partition("=")
            if name == "seed":
                self.seed = _whole("seed", terms, 0)
            elif name not in names:
                fault, _, term = name.partition(":")
                if fault in names:
                    rule = f"terms follow the =, as in {fault}=every:5:{term}"
                    raise ConfigError(f"faults: {name!r} is not a fault; {rule}")
                raise ConfigError(f"faults: {name!r} is not a fault: {', '.join(names)}, or seed")
            elif any(fault.name == name for fault in self.faults):
                raise ConfigError(f"faults: {name} is given twice")
            elif not equals or not terms:
                raise ConfigError(f"faults: {name} needs a term, as in {name}=every:5")
            else:
                self.faults.append(_fault(name, terms.split(":")))
        self._units: dict[int, int] = {}  # scope -> units seen
        self._done: dict[tuple[str, int], int] = {}
        self._streams: dict[tuple[str, int], Random] = {}

    def __bool__(self) -> bool:
        return bool(self.faults)

    @property
    def done(self) -> dict[str, int]:
        """The number of times that each fault was applied."""
        totals = {fault.name: 0 for fault in self.faults}
        for (name, _), times in self._done.items():
            totals[name] += times
        return totals

    def plan(self, connection: int, *, paired: bool = False) -> Plan:
        """Return the faults that apply to the next unit of a connection.

        The second unit of a swap (`paired`) has no other data faults and no connection faults.
        """
        for scope in (0, connection):
            self._units[scope] = self._units.get(scope, 0) + 1
        found: dict[str, Act] = {}
        for fault in self.faults:
            act = self._applies(fault, connection if fault.per_connection else 0)
            if act is not None:
                found[fault.name] = act
        data = end = None
        if not paired:
            data = next((found[name] for name in DATA_FAULTS if name in found), None)
            if data is None:
                end = next((found[name] for name in CONNECTION_FAULTS if name in found), None)
        plan = Plan(data, end, found.get("partial-ack"), found.get("delay-ack"), found.get("keepalive"))
        for act in plan:
            if act is not None:
                key = act.fault.name, act.scope
                self._done[key] = self._done.get(key, 0) + 1
        return plan

    def withdraw(self, act: Act) -> None:
        """Take back a fault that is impossible with its unit, so that it does not count for ``max``."""
        self._done[act.fault.name, act.scope] -= 1

    def _applies(self, fault: Fault, scope: int) -> Act | None:
        count = self._units[scope] - fault.first + 1
        if count < 1:
            return None
        if fault.every:
            applies = count % fault.every == 0
        else:
            if (fault.name, scope) not in self._streams:
                self._streams[fault.name, scope] = Random(f"{self.seed} {fault.name} {scope}")
            applies = self._streams[fault.name, scope].random() < fault.p
        if not applies or (fault.limit and self._done.get((fault.name, scope), 0) >= fault.limit):
            return None
        return Act(fault, scope, f"{self.seed} {fault.name} {scope} {count}")


def _whole(field: str, text: str, least: int, most: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= (most or 10**18):
        bound = f" and at most {most}" if most else ""
        raise ConfigError(f"faults: {field}: {text!r} must be a whole number of at least {least}{bound}")
    return int(text)


def _time(field: str, text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConfigError(f"faults: {field}: {text!r} must be a time such as 200ms or 1.5s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _fault(name: str, terms: list[str]) -> Fault:
    fault = Fault(name, value=1.0 if name in ("swap", "reorder", "keepalive") else 0.0)
    given: set[str] = set()
    rest = iter(terms)
    for term in rest:
        field = f"{name}: {term}" if term else name
        kind = term if term in (*_COUNTS, "p", "per-connection") else "value"
        if kind in given:
            raise ConfigError(f"faults: {field} is given twice")
        given.add(kind)
        if kind == "per-connection":
            fault = fault._replace(per_connection=True)
        elif kind in _COUNTS:
            count: Any = {_COUNTS[kind]: _whole(field, next(rest, ""), 1)}
            fault = fault._replace(**count)
        elif kind == "p":
            text = next(rest, "")
            if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) <= 1:
                raise ConfigError(f"faults: {field}: {text!r} must be a number over 0 and at most 1")
            fault = fault._replace(p=float(text))
        elif name in ("delay-ack", "swap", "reorder"):
            fault = fault._replace(value=_time(name, term))
        elif name in ("keepalive", "partial-ack", "partial-cut"):
            most = _MAX_KEEPALIVES if name == "keepalive" else 0
            fault = fault._replace(value=_whole(name, term, 1, most))
        elif name == "stall" and term == "alive":
            fault = fault._replace(value=1.0)
        else:
            terms_are = "every:N, p:X, from:N, max:N, per-connection"
            raise ConfigError(f"faults: {name}: {term!r} is none of its terms: {terms_are}")
    if {"p", "every"} <= given:
        raise ConfigError(f"faults: {name}: every and p exclude each other")
    if not {"p", "every"} & given:
        fault = fault._replace(every=1)
    if name == "delay-ack" and "value" not in given:
        raise ConfigError("faults: delay-ack needs a time, as in delay-ack=p:0.1:200ms")
    return fault


class FaultLog:
    """A file with one JSON line ``{"fault", "ids", ...}`` for each data fault that was applied."""

    def __init__(self, path: str | os.PathLike[str], capture: str | os.PathLike[str] | None = None) -> None:
        self.path = os.fspath(path)
        if capture is not None:
            inside = os.path.realpath(capture)
            if os.path.commonpath([inside, os.path.realpath(self.path)]) == inside:
                raise ConfigError(f"fault_log: {self.path} must be outside the capture")
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"fault_log: {self.path}: {error.strerror}") from error

    def write(self, fault: str, ids: list[str], **more: str | int) -> None:
        """Append a line with the ids of the changed events."""
        line = json.dumps({"fault": fault, "ids": ids, **more}, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
