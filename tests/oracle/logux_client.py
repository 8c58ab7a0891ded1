"""Logux's client in plain Python: actions, ids, quickly read messages, and the clock of an event."""

from __future__ import annotations

import json
import re
import struct
from typing import NamedTuple

from logclient._ext.constants import K_DOCUMENT
from tests.oracle.logjam import look
from tests.oracle.lumberjack import SPACE, _members, _skip
from tests.oracle.xxh64 import words

NO_TIME = -(2**63)


class Text(NamedTuple):
    text: bytes
    own: tuple[int, int] = (0, 0)  # hash words of the user's id
    time: int | None = None
    subprotocol: int = -1


def action(body: bytes, kind: int, seq: int, producer: bytes, *, type: str = "log/add",
           identity: bool = True, check: bool = True) -> Text | str:  # fmt: skip
    """Return an event's action as carried, or the reason why it fails."""
    nibble = kind >> 4
    time, subprotocol = None, -1
    if nibble > 2 or (nibble == 2 and len(body) < 16):
        return "unencodable"
    if nibble == 2:
        time, subprotocol = struct.unpack("<qq", body[:16])
        time = None if time == NO_TIME else time
        body = body[16:]
    if check and kind & 3 != K_DOCUMENT and look(body, "") is None:
        return "not_json"
    text = body.strip(SPACE.encode())
    if not (len(text) > 1 and text[:1] == b"{" and text[-1:] == b"}"):
        return "not_json"
    id = f'"id":"{producer.hex()}{seq:012x}"'.encode()
    if nibble == 0:
        head = b'{"type":' + json.dumps(type, ensure_ascii=False).encode() + b',"data":'
        return Text(head + text + (b"," + id if identity else b"") + b"}")
    found = dict.fromkeys(("type", "length", "id"), "")
    for key, raw, _ in list(_members(text.decode(), _skip(text.decode(), 0)))[:-1]:
        found[key] = raw
    if not found["type"].startswith('"') or found["length"][:1] in tuple("-0123456789"):
        return "unencodable"
    own = found["id"]
    if not identity or own:
        raw = own[1:-1] if own.startswith('"') else own
        return Text(text, words(raw.encode()) if identity else (0, 0), time, subprotocol)
    return Text(text[:-1] + b"," + id + b"}", (0, 0), time, subprotocol)


def sync(added: int, actions: list[tuple[bytes, int, int, int, int]], base: int) -> bytes:
    """Return the sync message of (text, ms, counter, time, subprotocol), with `added`."""
    parts = [b'["sync",%d' % (added + len(actions))]
    for text, ms, counter, time, subprotocol in actions:
        shift = ms - base
        meta = {"id": [shift, counter] if counter else shift, "time": time}
        if subprotocol >= 0:
            meta["subprotocol"] = subprotocol
        parts += [text, json.dumps(meta, separators=(",", ":")).encode()]
    return b",".join(parts) + b"]"


class Ids:
    """A source of ascending ids, even if the clock goes back."""

    def __init__(self) -> None:
        self.ms, self.counter = -1, 0

    def next(self, ms: int) -> tuple[int, int]:
        if ms > self.ms:
            self.ms, self.counter = ms, 0
        else:
            self.counter += 1
        return self.ms, self.counter


NUMBER = rb"(-?[1-9][0-9]{0,14}|0)"
ID = rb"(-?[1-9][0-9]{0,14}|0) %s ([1-9][0-9]{0,14}|0)"
META = rb'\{"id":(?:N|\[N,N\]),"time":N(?:,"subprotocol":N)?\}'.replace(b"N", rb"(?:-?[1-9][0-9]{0,14}|0)")
SYNCED = re.compile(rb'\["synced",' + NUMBER + rb"\]")


def recognise(message: bytes, node: str) -> tuple[int, ...] | None:
    """Read the common messages.

    Returns:
        (n,) of ``synced``; (added, ms, counter) of a sync with one ``logux/processed``; None: another form.
    """
    if match := SYNCED.fullmatch(message):
        return (int(match[1]),)
    id = ID % re.escape(json.dumps(node, ensure_ascii=False)[1:-1].encode())
    for action in (rb'\{"id":"%s","type":"logux/processed"\}', rb'\{"type":"logux/processed","id":"%s"\}'):
        if match := re.fullmatch(rb'\["sync",' + NUMBER + b"," + action % id + b"," + META + rb"\]", message):
            return int(match[1]), int(match[2]), int(match[3])
    return None


SLEW, SLACK, KEPT = 0.02, 0.1, 8


class Clocks:
    """The observed offsets of the wall clock: [ahead, first seen, last seen]."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []
        self.maybe: tuple[float, float] | None = None
        self.since = 0.0
        self.last = (0, 0.0)

    def look(self, now: float, wall: float) -> None:
        ahead = wall - now
        first = now
        if self.seen:
            newest = self.seen[-1]
            if abs(ahead - newest[0]) <= SLEW:
                newest[0], newest[2] = ahead, now
                self.maybe = None
                return
            if ahead > newest[0]:
                if self.maybe is None or abs(ahead - self.maybe[0]) > SLEW:
                    self.maybe = ahead, now
                    return
                if now <= self.maybe[1]:
                    return
                ahead = min(ahead, self.maybe[0])
            if self.maybe is not None:
                first = self.maybe[1]
        else:
            self.since = now
        if len(self.seen) == KEPT:
            self.since = self.seen.pop(0)[2]
        self.seen.append([ahead, first, now])
        self.maybe = None

    def when(self, us: int, now: float, seq: int) -> float:
        wall = us * 1e-6
        before = self.last[1] if seq > self.last[0] else -1e300
        candidates = []
        until = now
        for place in range(len(self.seen) - 1, -1, -1):
            since = self.seen[place - 1][2] if place else self.since
            candidates.append((wall - self.seen[place][0], since, until))
            until = self.seen[place][1]
        if self.maybe is not None:
            candidates.append((wall - self.maybe[0], self.seen[-1][2], now))

        def misfit(at: float, since: float, until: float) -> float:
            off = 0.0
            if at < since - SLEW:
                off = since - at
            elif at > until + SLEW:
                off = at - until
            return off + (before - at if at < before - SLACK else 0.0)

        best = min(candidates, key=lambda c: misfit(*c), default=(now, 0.0, 0.0))[0]
        best = min(best, now)
        if seq > self.last[0]:
            self.last = seq, best
        return best
