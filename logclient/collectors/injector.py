"""Faults on datagrams: what a network does to them, and what a liar keeps of them.

Each act is a line of the witness file: ``fault``; ``event``, the id of the event that the datagram carried
a part of ("" when it has none, or never came whole); ``index`` and ``count`` of the fragment, 0 and 0
without a box; and ``ids``, those whose verdict the act alone decides: ``missing`` for drop, discard and
garble (``corrupted`` without a box), ``duplicated``, ``reordered``, ``corrupted``, ``unexpected`` for
the others. A second copy of one fragment of several changes nothing, so it has none.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from logclient._ext.hash import murmur3
from logclient._ext.plog import FRAGMENT, HEADER, MESSAGE, SIMPLE, Decoder, Judged, Reassembler
from logclient.collectors.datagrams import batch_of
from logclient.collectors.faults import Act, Faults
from logclient.collectors.lies import flipped, foreign_id

__all__ = ["Datagram", "Injector", "event_id"]

_PENDING_MAX = 100_000  # messages that were struck and are not whole

Testify = Callable[..., None]


class Datagram(NamedTuple):
    """One, and who sent it."""

    raw: bytes
    peer: Any  # has `number` and `port`


class _Struck(NamedTuple):
    fault: str
    place: tuple[int, int]  # index of the fragment, and how many there are


class _Held(NamedTuple):
    """It waits for the next of its peer."""

    datagram: Datagram
    act: Act
    until: float
    event: str
    struck: _Struck


def event_id(payload: bytes, decoder: Decoder | None = None) -> str:
    """The id an event carries, "" when it has none of our form."""
    decoder = decoder or Decoder(datagrams=False)
    found = decoder.decode(payload, array("q", [0]), array("q", [len(payload)]))
    sequence = found.sequence[0]
    return f"{found.prefix_high[0]:016x}{found.prefix_low[0]:04x}{sequence:012x}" if sequence else ""


class Injector:
    """Commits the faults on the datagrams of one listener.

    Args:
        testify: told of each act: `Witness.write`.
        max_message, max_bytes: as of the `Reassembler` that finds out whose datagrams they are.
    """

    def __init__(self, faults: Faults, testify: Testify, max_message: int, max_bytes: int) -> None:
        self._faults = faults
        self._testify = testify
        # Of what came, before anything is done to it.
        self._truth = Reassembler(max_message=max_message, max_bytes=max_bytes)
        self._decoder = Decoder(datagrams=False)
        self._pending: dict[tuple[int, int], list[_Struck]] = {}
        self._held: dict[int, _Held] = {}
        self._served: list[Datagram] = []
        self._kept: list[Datagram] = []

    @property
    def lies(self) -> bool:
        """What is kept may be something else than what the server sees."""
        return any(fault.name in ("discard", "swap", "corrupt", "add") for fault in self._faults.faults)

    @property
    def due(self) -> float:
        """When the next one that waits is given up."""
        return min((held.until for held in self._held.values()), default=float("inf"))

    def feed(self, incoming: list[Datagram], now: float) -> tuple[list[Datagram], list[Datagram]]:
        """What the server gets to see of them, and what is kept; the same but for lies."""
        batch = batch_of([one.raw for one in incoming], [])
        ports = array("Q", [one.peer.port for one in incoming])
        judged = self._truth.feed(batch.data, batch.offsets, batch.lengths, ports, now)
        for row, one in enumerate(incoming):
            self._one(one, judged, row, now)
        return self._taken()

    def expire(self, now: float, all_of_them: bool = False) -> tuple[list[Datagram], list[Datagram]]:
        """No next one came: those that waited come as if nothing had been."""
        for number, held in list(self._held.items()):
            if all_of_them or held.until <= now:
                self._unhold(number)
        if all_of_them:
            for key in list(self._pending):
                self._resolve(key, "")
        return self._taken()

    def _taken(self) -> tuple[list[Datagram], list[Datagram]]:
        served, self._served = self._served, []
        kept, self._kept = self._kept, []
        return served, kept

    def _both(self, *datagrams: Datagram) -> None:
        self._served += datagrams
        self._kept += datagrams

    def _one(self, one: Datagram, judged: Judged, row: int, now: float) -> None:
        verdict, count = judged.verdict[row], judged.count[row]
        number = one.peer.number
        if verdict not in (MESSAGE, SIMPLE, FRAGMENT):  # a command, or nothing that could be an event
            self._both(one)
            return
        key = one.peer.port, judged.id[row]
        if judged.opened[row] and count > 1:
            self._resolve(key, "")  # another message of that number
        held = self._held.get(number)
        plan = self._faults.plan(number, paired=held is not None)
        act = plan.lie
        single = count <= 1
        if held is not None and held.act.fault.name == "swap" and not single:
            self._unhold(number)
            held = None
        event = None
        if act is not None or held is not None or (verdict == MESSAGE and not single):
            event = event_id(judged.payload(row), self._decoder) if verdict != FRAGMENT else None
        if act is None or not self._strike(one, act, judged, row, event, key, now):
            self._both(one)
        if held is not None:
            self._overtaken(number, held, single)
        if verdict == MESSAGE and not single:
            self._resolve(key, event or "")

    def _strike(
        self, one: Datagram, act: Act, judged: Judged, row: int, event: str | None, key: tuple[int, int],
        now: float,
    ) -> bool:  # fmt: skip
        """Do to it what the fault says; False when it cannot be done to this one."""
        name, count = act.fault.name, judged.count[row]
        struck = _Struck(name, (judged.index[row], count))
        ids = [event] if event else []
        if name in ("swap", "corrupt", "add") and count > 1:
            self._faults.give_back(act)
            return False
        if name in ("swap", "reorder"):
            self._held[one.peer.number] = _Held(one, act, now + act.fault.value, event or "", struck)
            if name == "swap":
                self._served.append(one)
            return True
        if name == "drop":
            pass
        elif name == "discard":
            self._served.append(one)
        elif name == "duplicate":
            self._both(one, one)
        elif name == "garble":
            damaged = _garbled(one.raw, act.random)
            if damaged is None:
                self._faults.give_back(act)
                return False
            self._both(one._replace(raw=damaged))
        elif name == "corrupt":
            changed = flipped(judged.payload(row), act.random, _read, _altered)
            if changed is None:
                self._faults.give_back(act)
                return False
            self._served.append(one)
            self._kept.append(one._replace(raw=_reboxed(one.raw, judged.length[row], changed)))
        else:
            assert name == "add"
            if not event:
                self._faults.give_back(act)
                return False
            new = foreign_id(event, act.random)
            payload = judged.payload(row).replace(event.encode(), new.encode())
            self._both(one)
            self._kept.append(one._replace(raw=_reboxed(one.raw, judged.length[row], payload)))
            ids = [new]
        if count <= 1:
            self._told(struck, ids, event or "")
        elif len(self._pending) < _PENDING_MAX:
            self._pending.setdefault(key, []).append(struck)
        return True

    def _resolve(self, key: tuple[int, int], event: str) -> None:
        """The message is whole, or will never be."""
        for struck in self._pending.pop(key, ()):
            decided = event and struck.fault not in ("duplicate", "reorder")
            self._told(struck, [event] if decided else [], event)

    def _told(self, struck: _Struck, ids: list[str], event: str) -> None:
        index, count = struck.place
        self._testify(struck.fault, ids, event=event, index=index, count=count)

    def _overtaken(self, number: int, held: _Held, single: bool) -> None:
        self._held.pop(number)
        self._kept.append(held.datagram)
        if held.act.fault.name == "reorder":
            self._served.append(held.datagram)
        alone = single and held.struck.place[1] <= 1
        self._told(held.struck, [held.event] if held.event and alone else [], held.event)

    def _unhold(self, number: int) -> None:
        held = self._held.pop(number)
        self._faults.give_back(held.act)
        self._kept.append(held.datagram)
        if held.act.fault.name == "reorder":
            self._served.append(held.datagram)


def _garbled(raw: bytes, random: Random) -> bytes | None:
    """A bit of its payload flipped, or of an unboxed message behind its first byte."""
    first = 1 if raw[0] else HEADER + int.from_bytes(raw[20:22], "big")
    if first >= len(raw):
        return None
    at = random.randrange(first, len(raw))
    return raw[:at] + bytes((raw[at] ^ 1 << random.randrange(8),)) + raw[at + 1 :]


def _reboxed(raw: bytes, length: int, payload: bytes) -> bytes:
    """The datagram of a whole message with another payload, its total and its hash right."""
    if length == len(raw):
        return payload
    head = raw[: len(raw) - length]
    total, hash_ = (number.to_bytes(4, "big") for number in (len(payload), murmur3(payload)))
    return head[:12] + total + hash_ + head[20:] + payload


def _read(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload


def _altered(before: Any, after: Any) -> bool:
    """Something changed, but neither a name nor what carries the id."""
    if isinstance(before, bytes):
        return isinstance(after, bytes) and before != after and before[:1] == after[:1]
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() != after.keys():
        return False
    return before != after and before.get("uuid") == after.get("uuid")
