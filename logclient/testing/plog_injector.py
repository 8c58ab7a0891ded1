"""Faults on datagrams: those that a network makes, and those of a server that does not keep its messages.

docs/testing.md describes the lines of the fault log.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from logclient._ext.hash import murmur3
from logclient._ext.plog import FRAGMENT, HEADER, MESSAGE, SIMPLE, Decoder, Judged, Reassembler
from logclient.testing.duplicates import decode_units, event_ids
from logclient.testing.fault_gate import HeldUnits, flip_bit, under_foreign_id
from logclient.testing.faults import Act, Faults
from logclient.testing.plog_datagrams import batch_of

_PENDING_MAX = 100_000  # incomplete messages with a fault

Record = Callable[..., None]


class Datagram(NamedTuple):
    """A datagram and its sender."""

    raw: bytes
    peer: Any  # with its `number`, counted from 1 within the collector, and its UDP `port`
    source: Any = None  # its address


class _Applied(NamedTuple):
    fault: str
    fragment: int  # its index
    fragments: int  # of the message; 0: an unboxed message


class _Held(NamedTuple):
    datagram: Datagram
    event: str
    applied: _Applied

    @property
    def reordered(self) -> bool:
        """True when the server gets it late, too; with a swap only the capture does."""
        return self.applied.fault == "reorder"


class Injector:
    """Apply the faults to the datagrams of one listener, and record each as `FaultLog.write` does."""

    def __init__(self, faults: Faults, record: Record, max_message: int, max_bytes: int) -> None:
        self._faults = faults
        self._record = record
        # It gets the datagrams as they came, before any fault.
        self._reassembler = Reassembler(max_message=max_message, max_bytes=max_bytes)
        self._decoder = Decoder(datagrams=False)
        self._pending: dict[tuple[int, int], list[_Applied]] = {}  # of incomplete messages
        self._held: HeldUnits[_Held] = HeldUnits(faults)
        self._served: list[Datagram] = []
        self._kept: list[Datagram] = []

    @property
    def due(self) -> float:
        return self._held.due

    def feed(self, incoming: list[Datagram], now: float) -> tuple[list[Datagram], list[Datagram]]:
        """Apply faults to datagrams, in order; return those for the server, and those for the capture."""
        batch = batch_of([one.raw for one in incoming], [])
        ports = array("Q", [one.peer.port for one in incoming])
        judged = self._reassembler.feed(batch.data, batch.offsets, batch.lengths, ports, now)
        for row, one in enumerate(incoming):
            self._apply_plan(one, judged, row, now)
        return self._taken()

    def expire(self, now: float, everything: bool = False) -> tuple[list[Datagram], list[Datagram]]:
        """Release the datagrams that were held too long, unchanged; return them as `feed` does.

        With `everything` release all, and record the faults on messages that will never be whole.
        """
        for number in self._held.expired(float("inf") if everything else now):
            self._abort(number)
        if everything:
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

    def _apply_plan(self, one: Datagram, judged: Judged, row: int, now: float) -> None:
        verdict, count = judged.verdict[row], judged.count[row]
        number = one.peer.number
        if verdict not in (MESSAGE, SIMPLE, FRAGMENT):  # a command, or nothing that could be an event
            self._both(one)
            return
        key = one.peer.port, judged.id[row]
        if judged.opened[row] and count > 1:
            self._resolve(key, "")  # a new message with the same id
        held = self._held.get(number)
        plan = self._faults.plan(number, paired=held is not None)
        act = plan.data
        single = count <= 1
        if held is not None and not held.reordered and not single:
            self._abort(number)
            held = None
        event = None
        if verdict != FRAGMENT and (act is not None or held is not None or not single):
            [event] = event_ids(decode_units(self._decoder, [judged.payload(row)]))
        applied = act is not None and self._apply(one, act, judged, row, event, key, now)
        if act is not None and not applied:
            self._faults.withdraw(act)
        if not applied:
            self._both(one)
        if held is not None:
            overtaken = self._held.release(number)
            self._let_pass(overtaken)
            alone = overtaken.event and single and overtaken.applied.fragments <= 1
            self._record_applied(overtaken.applied, [overtaken.event] if alone else [], overtaken.event)
        if verdict == MESSAGE and not single:
            self._resolve(key, event or "")

    def _apply(
        self, one: Datagram, act: Act, judged: Judged, row: int, event: str | None, key: tuple[int, int],
        now: float,
    ) -> bool:  # fmt: skip
        """Apply a fault to a datagram; return False where that is impossible."""
        name, count = act.fault.name, judged.count[row]
        applied = _Applied(name, judged.index[row], count)
        ids = [event] if event else []
        if name in ("swap", "corrupt", "add") and count > 1:
            return False
        if name in ("swap", "reorder"):
            self._held.hold(one.peer.number, _Held(one, event or "", applied), act, now)
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
                return False
            self._both(one._replace(raw=damaged))
        elif name == "corrupt":
            changed = flip_bit(judged.payload(row), act.random, _parse, ("uuid",))
            if changed is None:
                return False
            self._served.append(one)
            self._kept.append(one._replace(raw=_reboxed(one.raw, judged.length[row], changed)))
        else:
            assert name == "add"
            if not event:
                return False
            payload, ids = under_foreign_id(judged.payload(row), event, act.random)
            self._both(one)
            self._kept.append(one._replace(raw=_reboxed(one.raw, judged.length[row], payload)))
        if count <= 1:
            self._record_applied(applied, ids, event or "")
        elif len(self._pending) < _PENDING_MAX:
            self._pending.setdefault(key, []).append(applied)
        return True

    def _resolve(self, key: tuple[int, int], event: str) -> None:
        """Record the faults on a message that is whole now, or that will never be."""
        for applied in self._pending.pop(key, ()):
            decided = event and applied.fault not in ("duplicate", "reorder")
            self._record_applied(applied, [event] if decided else [], event)

    def _record_applied(self, applied: _Applied, ids: list[str], event: str) -> None:
        self._record(applied.fault, ids, event=event, index=applied.fragment, count=applied.fragments)

    def _abort(self, number: int) -> None:
        held = self._held.abort(number)
        if held is not None:
            self._let_pass(held)

    def _let_pass(self, held: _Held) -> None:
        self._kept.append(held.datagram)
        if held.reordered:
            self._served.append(held.datagram)


def _garbled(raw: bytes, random: Random) -> bytes | None:
    """Flip a bit of a datagram's payload; of an unboxed message, after its first byte."""
    first = 1 if raw[0] else HEADER + int.from_bytes(raw[20:22], "big")
    if first >= len(raw):
        return None
    at = random.randrange(first, len(raw))
    return raw[:at] + bytes((raw[at] ^ 1 << random.randrange(8),)) + raw[at + 1 :]


def _reboxed(raw: bytes, length: int, payload: bytes) -> bytes:
    """Return the datagram of a whole message with another payload, and a matching length and hash."""
    if length == len(raw):
        return payload
    head = raw[: len(raw) - length]
    total, hash_ = (number.to_bytes(4, "big") for number in (len(payload), murmur3(payload)))
    return head[:12] + total + hash_ + head[20:] + payload


def _parse(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload
