"""The fault gate: for each unit, what is captured, answered and closed."""

from __future__ import annotations

from random import Random

import pytest

from logclient.testing.fault_gate import (
    ALIVE,
    NEVER,
    SILENT,
    Captured,
    Changed,
    FaultGate,
    Peer,
    Reply,
    ReplyPlan,
    Unit,
)
from logclient.testing.faults import Faults

pytestmark = pytest.mark.unit


def whole(text: str) -> Captured:
    return Captured(text.encode(), len(text))


class Text(Unit[str]):
    """A unit whose events are the letters of a word; one without letters expects no answer."""

    def __init__(self, text: str, answered: bool = True) -> None:
        Unit.__init__(self, whole(text), None)
        self.text = text
        self.answered = answered

    @property
    def is_answered(self) -> bool:
        return self.answered

    def ids(self) -> list[str]:
        return list(self.text)

    def corrupted(self, random: Random) -> Changed | None:
        return ([whole(self.text.upper())], [self.text[0]]) if self.text.islower() else None

    def with_added(self, random: Random) -> Changed:
        return [self.whole, whole("+")], ["+"]

    def replies(self, plan: ReplyPlan) -> list[Reply[str]]:
        if plan.fault == "no-reply" or not self.answered:
            return []
        before = [Reply("alive", "")] * plan.keepalives
        part = [Reply(self.text[: plan.partial], "")] if plan.partial else []
        if plan.fault == "partial-cut":
            return before + part
        return [*before, *part, Reply(self.text, "acks", plan.due)]


def texts(captured: list[Captured]) -> list[str]:
    return [one.raw.decode() for one in captured]


class Gate:
    """A gate with its counters and its fault log."""

    def __init__(self, spec: str, protocol: str = "lumberjack") -> None:
        self.faults = Faults(spec, protocol)
        self.count = {"stalls": 0, "unanswered": 0}
        self.log: list[tuple[str, list[str]]] = []
        self.gate: FaultGate[Peer[str], str] = FaultGate(
            self.faults, self.count, lambda fault, ids: self.log.append((fault, ids))
        )
        self.peer: Peer[str] = Peer(1)

    def admit(self, text: str, now: float = 0.0, answered: bool = True) -> tuple[list[str], list[str | None]]:
        """Return what is captured and what is replied; None stands for the end of the connection."""
        decision = self.gate.admit(self.peer, Text(text, answered), now)
        self.replies = decision.replies
        return texts(decision.captured), [reply.data for reply in decision.replies]


@pytest.mark.parametrize(
    ("spec", "captured", "replies"),
    [
        ("", ["ab"], ["ab"]),
        ("cut-before-write=every:1", [], [None]),
        ("cut-before-ack=every:1", ["ab"], [None]),
        ("cut-after-ack=every:1", ["ab"], ["ab", None]),
        ("partial-cut=every:1", ["ab"], ["a", None]),
        ("partial-ack=every:1", ["ab"], ["a", "ab"]),
        ("keepalive=every:1:2", ["ab"], ["alive", "alive", "ab"]),
        ("stall=every:1", ["ab"], []),
        ("discard=every:1", [], ["ab"]),
        ("duplicate=every:1", ["ab", "ab"], ["ab"]),
        ("corrupt=every:1", ["AB"], ["ab"]),
        ("add=every:1", ["ab", "+"], ["ab"]),
    ],
)
def test_each_fault_changes_captures_and_answers(
    spec: str, captured: list[str], replies: list[str | None]
) -> None:
    assert Gate(spec).admit("ab") == (captured, replies)


@pytest.mark.parametrize(
    ("spec", "ids"),
    [("discard", ["a", "b"]), ("duplicate", ["a", "b"]), ("corrupt", ["a"]), ("add", ["+"])],
)
def test_a_data_fault_is_recorded_with_its_ids(spec: str, ids: list[str]) -> None:
    gate = Gate(f"{spec}=every:1")
    gate.admit("ab")
    assert gate.log == [(spec, ids)]


class TestStall:
    def test_a_stall_ends_all_answers(self) -> None:
        gate = Gate("stall=every:2:max:1")
        assert [gate.admit(text)[1] for text in ("a", "b", "c")] == [["a"], [], []]
        assert (gate.peer.stalled, gate.count["stalls"]) == (SILENT, 1)

    def test_a_stall_may_send_keepalives(self) -> None:
        gate = Gate("stall=every:1:max:1:alive")
        gate.admit("a")
        assert gate.peer.stalled == ALIVE

    def test_a_cut_ends_a_stall(self) -> None:
        gate = Gate("stall=every:1:max:1,cut-before-ack=from:2:every:1")
        assert [gate.admit(text)[1] for text in ("a", "b")] == [[], [None]]


class TestWithdrawn:
    @pytest.mark.parametrize("spec", ["partial-cut=every:1", "partial-ack=every:1", "partial-cut=every:1:5"])
    def test_partial_faults_of_one_event_are_withdrawn(self, spec: str) -> None:
        gate = Gate(spec)
        assert gate.admit("a") == (["a"], ["a"])
        assert set(gate.faults.done.values()) == {0}

    def test_a_partial_ack_before_a_partial_cut_is_withdrawn(self) -> None:
        gate = Gate("partial-cut=every:1:max:1,partial-ack=every:1:max:1")
        assert gate.admit("ab") == (["ab"], ["a", None])
        assert gate.faults.done == {"partial-cut": 1, "partial-ack": 0}
        assert gate.admit("ab") == (["ab"], ["a", "ab"])

    def test_an_impossible_corruption_is_withdrawn(self) -> None:
        gate = Gate("corrupt=every:1")
        assert gate.admit("A") == (["A"], ["A"])
        assert (gate.faults.done, gate.log) == ({"corrupt": 0}, [])

    @pytest.mark.parametrize("spec", ["stall=every:1", "no-reply=every:1", "delay-ack=every:1:1s"])
    def test_answer_faults_without_an_answer_are_withdrawn(self, spec: str) -> None:
        gate = Gate(spec, "logjam")
        assert gate.admit("a", answered=False) == (["a"], [])
        assert set(gate.faults.done.values()) == {0}
        assert gate.peer.stalled == 0


class TestSwap:
    def test_a_swapped_unit_is_captured_after_the_next(self) -> None:
        gate = Gate("swap=every:2")
        assert gate.admit("a")[0] == ["a"]
        captured, replies = gate.admit("b")
        held = gate.replies[-1]
        assert (captured, replies, held.due) == ([], ["b"], NEVER)
        assert gate.admit("c") == (["c", "b"], ["c"])
        assert (held.due, gate.log, gate.faults.done) == (0.0, [("swap", ["b"])], {"swap": 1})

    def test_a_swap_ends_without_a_partner_in_time(self) -> None:
        gate = Gate("swap=every:1:2s")
        gate.admit("a", now=10.0)
        held = gate.replies[-1]
        assert gate.gate.due == 12.0
        assert gate.gate.expire(11.9) == []
        assert gate.gate.expire(12.0) == [(gate.peer, whole("a"))]
        assert (held.due, gate.gate.due, gate.log, gate.faults.done) == (0.0, NEVER, [], {"swap": 0})

    def test_a_swap_ends_with_its_connection(self) -> None:
        gate = Gate("swap=every:1")
        gate.admit("a")
        assert gate.gate.holds(gate.peer)
        assert gate.gate.abort_swap(gate.peer) == [whole("a")]
        assert gate.gate.abort_swap(gate.peer) == []
        assert not gate.gate.holds(gate.peer)

    def test_each_peer_has_its_own_swap(self) -> None:
        gate = Gate("swap=every:1")
        gate.admit("a")
        assert gate.gate.admit(Peer(2), Text("b"), 0.0).captured == []
        assert gate.admit("c")[0] == ["c", "a"]


def test_a_delayed_ack_may_become_a_delayed_cut() -> None:
    gate = Gate("delay-ack=every:1:3s,cut-before-ack=every:2")
    assert gate.admit("a", now=10.0) == (["a"], ["a"])
    assert gate.replies[-1].due == 13.0
    assert gate.admit("b", now=20.0) == (["b"], [None])
    assert gate.replies[-1].due == 23.0
