"""The effect of faults on each wire unit: the captured units, the replies, and the end of the connection.

No I/O and no clock. A collector passes each whole unit to `FaultGate.admit` and carries out the `Decision`.
plog, which has neither acks nor connections, only uses `HeldUnits`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from logclient.testing.duplicates import decode_units, event_ids
from logclient.testing.faults import Act, Faults, Plan

NEVER = float("inf")

#: Values of `Peer.stalled`: the peer gets no more bytes, or only keep-alives.
SILENT, ALIVE = 1, 2

T = TypeVar("T")
D = TypeVar("D")  # the data of a reply


@dataclass(slots=True, eq=False)
class Reply(Generic[D]):
    """One step for a peer: send `data`, or close its connection if `data` is None."""

    data: D | None
    count: str  # the counter that the step increases; empty: none
    due: float = 0.0  # the earliest time of the step, in monotonic seconds
    rows: tuple[bytes, ...] = ()  # the records of the step in the capture
    settles: int = 0  # the number of events whose outcome it reports


@dataclass(eq=False)
class Peer(Generic[D]):
    """One peer of a collector, usually a connection. Its number counts from 1 within the collector."""

    number: int
    stream: int = field(default=0, init=False)  # in the capture
    replies: deque[Reply[D]] = field(default_factory=deque, init=False)  # carried out in order
    closing: bool = field(default=False, init=False)  # reading has ended, and the replies precede a close
    stalled: int = field(default=0, init=False)  # SILENT or ALIVE


class ReplyPlan(NamedTuple):
    """The plan for the replies to a unit."""

    fault: str = ""  # the connection fault
    partial: int = 0  # events to acknowledge before the rest, or only these with ``partial-cut``; 0: none
    keepalives: int = 0  # before the ack
    due: float = 0.0  # of the ack, monotonic seconds


class Captured(NamedTuple):
    """A unit in the form of the capture."""

    raw: bytes
    events: int = 1
    message: Any = None  # what the protocol made of it


Changed = tuple[list[Captured], list[str]]
"""What is captured in place of a unit, and the id of the event in it that is not as it was sent, if any."""


@dataclass(slots=True, eq=False)
class Unit(Generic[D]):
    """One whole unit of a protocol, with the operations that faults need."""

    whole: Captured
    decoder: Any  # finds the ids in it

    @property
    def answers(self) -> int:
        """The number of events that can be acknowledged one by one."""
        return self.whole.events

    @property
    def is_answered(self) -> bool:
        """Whether the peer waits for an answer."""
        return True

    def ids(self) -> list[str]:
        """Return the id of each event; "" where it has none."""
        return event_ids(decode_units(self.decoder, [self.whole.raw]))

    def known_ids(self) -> list[str]:
        return list(filter(None, self.ids()))

    def corrupted(self, random: Random) -> Changed | None:
        """Return the unit with one event changed; None: impossible."""
        raise NotImplementedError

    def with_added(self, random: Random) -> Changed | None:
        """Return the unit with an event that was never sent; None: impossible."""
        raise NotImplementedError

    def replies(self, plan: ReplyPlan) -> list[Reply[D]]:
        """Return the replies to the unit. The last one is the ack, if there is one."""
        raise NotImplementedError


class Decision(NamedTuple, Generic[D]):
    """The result for a unit. The last reply has no data if the connection is to be closed."""

    captured: list[Captured]
    replies: list[Reply[D]]
    fault: str = ""  # the connection fault


class HeldUnits(Generic[T]):
    """Units to be overtaken by the next one of their peer, at most one for each peer."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._held: dict[int, tuple[T, Act, float]] = {}  # peer: unit, fault, until when

    def get(self, number: int) -> T | None:
        return self._held[number][0] if number in self._held else None

    def hold(self, number: int, unit: T, act: Act, now: float) -> None:
        """Hold a unit until `release`, or until the time of the fault has passed."""
        self._held[number] = unit, act, now + act.fault.value

    def release(self, number: int) -> T:
        """Release the held unit of a peer after its next one."""
        return self._held.pop(number)[0]

    def abort(self, number: int) -> T | None:
        """Release the held unit of a peer, if any, and withdraw the fault: no next unit came."""
        if number not in self._held:
            return None
        unit, act, _ = self._held.pop(number)
        self._faults.withdraw(act)
        return unit

    @property
    def due(self) -> float:
        """The monotonic time at which the next held unit expires."""
        return min((until for _, _, until in self._held.values()), default=NEVER)

    def expired(self, now: float) -> list[int]:
        """Return the numbers of the peers whose unit was held long enough."""
        return [number for number, (_, _, until) in self._held.items() if until <= now]


P = TypeVar("P", bound=Peer[Any])


class _Swapped(NamedTuple, Generic[P, D]):
    peer: P
    unit: Unit[D]
    ack: Reply[D] | None  # waits until the unit is captured


class FaultGate(Generic[P, D]):
    """The gate that applies the faults of one collector to its units."""

    def __init__(
        self, faults: Faults, count: dict[str, Any], record: Callable[[str, list[str]], None]
    ) -> None:
        self._faults = faults
        self._count = count
        self._record = record
        self._held: HeldUnits[_Swapped[P, D]] = HeldUnits(faults)

    @property
    def due(self) -> float:
        return self._held.due

    def holds(self, peer: P) -> bool:
        return self._held.get(peer.number) is not None

    def admit(self, peer: P, unit: Unit[D], now: float) -> Decision[D]:
        """Decide on the next unit of a peer."""
        if not self._faults:
            return Decision([unit.whole], unit.replies(ReplyPlan()))
        waiting = self._held.get(peer.number)
        plan = self._faults.plan(peer.number, paired=waiting is not None)
        if plan.connection is not None and plan.connection.fault.name == "cut-before-write":
            return Decision([], [Reply(None, "cuts_before_write")], "cut-before-write")
        how = self._reply_plan(peer, plan, unit, now)
        replies = [] if peer.stalled or how.fault == "cut-before-ack" else unit.replies(how)
        captured = self._capture(peer, unit, plan.data, replies, now)
        if waiting is not None:
            self._record("swap", waiting.unit.known_ids())
            captured.append(self._let_pass(self._held.release(peer.number)))
        if how.fault in ("cut-before-ack", "partial-cut"):
            replies.append(Reply(None, "cuts_before_ack", how.due))
        elif how.fault == "cut-after-ack":
            replies.append(Reply(None, "cuts_after_ack"))
        return Decision(captured, replies, how.fault)

    def abort_swap(self, peer: P) -> list[Captured]:
        """Release the unit of this peer that a swap holds, for capture without a swap."""
        swapped = self._held.abort(peer.number)
        return [] if swapped is None else [self._let_pass(swapped)]

    def expire(self, now: float) -> list[tuple[P, Captured]]:
        """Release the units that were held for too long, for capture without a swap."""
        swaps = [self._held.abort(number) for number in self._held.expired(now)]
        return [(swapped.peer, self._let_pass(swapped)) for swapped in swaps if swapped is not None]

    def _reply_plan(self, peer: P, plan: Plan, unit: Unit[D], now: float) -> ReplyPlan:
        """Withdraw the faults that are impossible with this unit, and return the rest."""
        end = plan.connection
        if end is not None and not unit.is_answered and end.fault.name in ("stall", "no-reply"):
            self._faults.withdraw(end)
            end = None
        due = 0.0
        if plan.delay is not None:
            if unit.is_answered:
                due = now + plan.delay.fault.value
            else:
                self._faults.withdraw(plan.delay)
        partial = 0
        part = plan.partial
        if end is not None and end.fault.name == "partial-cut":
            if part is not None:  # nothing follows that part
                self._faults.withdraw(part)
            part = end
        if part is not None:
            partial = int(part.fault.value) or unit.whole.events // 2
            if not 0 < partial < unit.answers:  # a part of one event cannot be acknowledged
                self._faults.withdraw(part)
                partial, end = 0, None if part is end else end
        fault = "" if end is None else end.fault.name
        if end is not None and fault == "stall":
            peer.stalled = ALIVE if end.fault.value else SILENT
            self._count["stalls"] += 1
        elif fault == "no-reply":
            self._count["unanswered"] += 1
        return ReplyPlan(fault, partial, int(plan.keepalive.fault.value) if plan.keepalive else 0, due)

    def _capture(
        self, peer: P, unit: Unit[D], act: Act | None, replies: list[Reply[D]], now: float
    ) -> list[Captured]:
        if act is None:
            return [unit.whole]
        name = act.fault.name
        changed: Changed | None
        if name == "swap":
            # The ack waits until the unit is captured, because the fault only changes the order.
            ack = replies[-1] if replies else None
            if ack is not None:
                ack.due = NEVER
            self._held.hold(peer.number, _Swapped(peer, unit, ack), act, now)
            return []
        if name == "discard":
            changed = [], unit.known_ids()
        elif name == "duplicate":
            changed = [unit.whole] * 2, unit.known_ids()
        elif name == "corrupt":
            changed = unit.corrupted(act.random)
        else:
            changed = unit.with_added(act.random)
        if changed is None:
            self._faults.withdraw(act)
            return [unit.whole]
        captured, ids = changed
        self._record(name, ids)
        return captured

    @staticmethod
    def _let_pass(swapped: _Swapped[P, D]) -> Captured:
        if swapped.ack is not None:
            swapped.ack.due = 0.0
        return swapped.unit.whole


_TRIES = 100


def flip_bit(
    body: bytes, random: Random, parse: Callable[[bytes], Any], keep: Collection[str]
) -> bytes | None:
    """Flip a bit of one letter or digit, so that the body still parses and only a value changes.

    `parse` returns a JSON value, or the body itself if it is not JSON, and rejects an attempt by an error.
    The members `keep` of a JSON object do not change. None: all of 100 attempts were rejected.
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


def under_foreign_id(body: bytes, old: str, random: Random) -> tuple[bytes, list[str]]:
    """Return the body of an event under an id that was never sent, and that id; without an id, as it is.

    It is one of the same producer far ahead, or of an unknown producer.
    """
    if not old:
        return body, []
    if random.random() < 0.5:
        new = old[:20] + f"{(1 << 48) - 1 - random.getrandbits(20):012x}"
    else:
        new = f"{random.getrandbits(80):020x}{random.randrange(1, 1000):012x}"
    return body.replace(old.encode(), new.encode()), [new]
