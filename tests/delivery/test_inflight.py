"""Queue and in-flight batches equal their reference in Python: every count, outcome and ledger line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logclient._ext.constants import (
    ACKED,
    DROPPED,
    FAILED,
    INFLIGHT,
    K_TOMB,
    PENDING,
    R_CLOSED,
    R_POISON,
    STATUSES,
)
from logclient._ext.constants import R_REJECTED as REJECTED
from logclient._ext.inflight import Batch, InflightBatches
from logclient._ext.queue import EventQueue, SharedBound, Ticket
from tests.oracle import queue as plain

pytestmark = pytest.mark.unit

T0 = 1_700_000_000_000_000

sizes = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([8000, 30_000, 65_432, 70_000]))
levels = st.sampled_from([0, 2, 2, 2, 4, 5])
mixed = st.lists(st.sampled_from([INFLIGHT, INFLIGHT, INFLIGHT, INFLIGHT, 3, 4]), min_size=1, max_size=4)


class Machine(RuleBasedStateMachine):
    """One producer and one sender, in any order of steps."""

    @initialize(
        max_events=st.sampled_from([1, 5, 40, 10_000]),
        max_bytes=st.sampled_from([200, 5000, 150_000, 64 << 20]),
        max_event_bytes=st.sampled_from([100, 5000, 1 << 20]),
        policy=st.sampled_from(["drop_oldest", "drop_oldest", "drop_new", "block", "raise"]),
        keep_level=st.sampled_from([0, 4, 4, 6]),
        shared=st.sampled_from([None, None, 200, 5000, 150_000]),
    )
    def begin(self, shared: int | None, **bounds: Any) -> None:
        self.real = EventQueue(**bounds)
        self.bound = plain.SharedBound(shared) if shared is not None else None
        self.model = plain.EventQueue(**bounds, shared=self.bound)
        self.real_bound = None
        if self.bound is not None:
            self.real_bound = SharedBound(self.bound.limit)
            self.begin_neighbour(self.bound, self.real_bound)
        self.in_flight = InflightBatches(self.real)
        self.plain = plain.InflightBatches(self.model)
        self.now = T0
        self.n = 0
        self.waiting: list[tuple[Ticket, plain.Ticket, int, int]] = []

    # -- the producer

    def put(
        self,
        size: int,
        level: int,
        kind: int,
        tickets: tuple[Ticket | None, plain.Ticket | None] = (None, None),
    ) -> None:
        self.n += 1
        body = (b"%d " % self.n * (size // 2 + 1))[:size]
        if kind == K_TOMB:
            body = bytes([3 + self.n % 2])
        real, model = tickets
        assert self.real.push(body, level, kind, self.now, real) == self.model.push(
            body, level, kind, self.now, model
        )

    @rule(n=st.integers(1, 60), size=sizes, levels=st.lists(levels, min_size=1, max_size=5))
    def push(self, n: int, size: int, levels: list[int]) -> None:
        for i in range(n):
            self.put(size, levels[i % len(levels)], i % 2)

    @rule(n=st.integers(20, 200), size=st.integers(0, 600), levels=st.lists(levels, min_size=2, max_size=5))
    def push_many(self, n: int, size: int, levels: list[int]) -> None:
        for i in range(n):
            self.put(size, levels[i % len(levels)], 0)

    # -- another queue of the same bound

    def begin_neighbour(self, bound: plain.SharedBound, real: SharedBound) -> None:
        bounds = {"max_events": 1000, "max_bytes": 1 << 20, "max_event_bytes": 1 << 20, "keep_level": 4}
        self.neighbour = EventQueue(policy="drop_oldest", **bounds)
        self.neighbour_model = plain.EventQueue(policy="drop_oldest", **bounds, shared=bound)
        self.real.share(real)
        self.neighbour.share(real)
        self.neighbour_in_flight = InflightBatches(self.neighbour)
        self.neighbour_plain = plain.InflightBatches(self.neighbour_model)

    @precondition(lambda self: self.bound)
    @rule(n=st.integers(1, 60), size=sizes, level=levels)
    def neighbour_pushes(self, n: int, size: int, level: int) -> None:
        for _ in range(n):
            real = self.neighbour.push(bytes(size), level, 0, self.now)
            assert real == self.neighbour_model.push(bytes(size), level, 0, self.now)

    @precondition(lambda self: self.bound)
    @rule()
    def neighbour_delivers(self) -> None:
        assert self.neighbour_in_flight.fail(2) == self.neighbour_plain.fail(2)
        self.neighbour_in_flight.commit()
        self.neighbour_plain.commit()

    # -- callers that wait for room

    @precondition(lambda self: self.model.policy == "block")
    @rule(size=sizes, level=levels)
    def wait(self, size: int, level: int) -> None:
        """Another caller comes, and looks whether there is room."""
        self.waiting.append((self.real.ticket(size), plain.Ticket(self.model, size), size, level))
        self.look(len(self.waiting) - 1)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 20))
    def look(self, which: int) -> None:
        """One of them looks again, and pushes if there is room, which is reserved for it."""
        which %= len(self.waiting)
        real, model, size, level = self.waiting[which]
        assert real.is_ready() == model.look()
        ready = real.wait(0.0)  # the second look of a newcomer: it may have room granted to those before it
        assert ready == model.look()
        if ready:
            before = self.model.next_seq
            self.put(size, level, 0, (real, model))
            assert self.model.next_seq > before or self.model.closed, "no room in spite of the grant"
            del self.waiting[which]

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 20), collect=st.booleans())
    def give_up(self, which: int, collect: bool) -> None:
        real, model, _, _ = self.waiting.pop(which % len(self.waiting))
        if not collect:
            real.leave()
            real.leave()
        model.leave()

    # -- the sender

    @rule(
        events=st.integers(1, 50),
        size=st.sampled_from([1, 1000, 100_000, 1 << 20]),
        k=st.integers(0, 60),
        outcomes=mixed,
    )
    def send(self, events: int, size: int, k: int, outcomes: list[int]) -> None:
        """Take a batch; a core frames the first k pending events of the oldest that has any."""
        taken, model = self.in_flight.take(events, size), self.plain.take(events, size)
        assert (taken is None) == (model is None)
        if taken is not None and model is not None:
            assert len(taken) == len(model.events)
        self.encode(k, outcomes)

    @rule(k=st.integers(1, 60), outcomes=mixed)
    def encode(self, k: int, outcomes: list[int]) -> None:
        real, model = self.in_flight.pending(), self.plain.pending()
        assert (real is None) == (model is None)
        if real is None or model is None:
            return
        found = real.pending(k)
        wanted = model.pending()[:k]
        assert [(e.seq, e.created_us, e.level, e.kind, e.body) for e in found] == [
            (e.seq, e.created_us, e.level, e.kind, e.body) for e in wanted
        ]
        marks = {}
        for i, event in enumerate(found):
            outcome = outcomes[i % len(outcomes)]
            failed = outcome == FAILED
            mark = (outcome, REJECTED if failed else 0, 0 if failed else event.seq * 7919)
            marks[event.seq] = mark
            real.mark(event.seq, *mark)
        assert self.in_flight.encoded(real) == self.plain.encoded(model, marks)
        assert real.statuses() == {e.seq: STATUSES[e.outcome] for e in model.events}
        assert real.hashes() == {e.seq: e.hash for e in model.events}

    def apply(self, ranges: list[tuple[int, int]], outcome: int) -> None:
        reason = REJECTED if outcome == FAILED else 0
        self.in_flight.apply(ranges, outcome, reason)
        self.plain.apply(ranges, outcome, reason)

    @rule(
        starts=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 80)), min_size=1, max_size=4),
        outcome=st.sampled_from([PENDING, ACKED, ACKED, ACKED, FAILED]),
    )
    def answer(self, starts: list[tuple[int, int]], outcome: int) -> None:
        """Ranges that begin with something in flight, and may go on over what is not."""
        seqs = [e.seq for b in self.plain.batches for e in b.events if e.outcome == INFLIGHT]
        begins = [(seqs[i % len(seqs)], n) for i, n in starts] if seqs else []
        self.apply([(begin, begin + n) for begin, n in begins], outcome)

    @rule(k=st.integers(1, 60))
    def acknowledge(self, k: int) -> None:
        """The oldest in flight."""
        self.apply(
            [(e.seq, e.seq) for b in self.plain.batches for e in b.events if e.outcome == INFLIGHT][:k], ACKED
        )

    @rule(
        n=st.integers(0, 40),
        level=levels,
        k=st.integers(1, 40),
        first=st.integers(0, 30),
        more=st.integers(0, 60),
        outcome=st.sampled_from([PENDING, ACKED, ACKED, FAILED]),
        lost=st.booleans(),
    )
    def turn(self, n: int, level: int, k: int, first: int, more: int, outcome: int, lost: bool) -> None:
        """All of it in one step, so that each run of the machine gets far."""
        self.push_many(n, 20, [level, 2])
        self.send(n + 1, 1 << 20, k, [INFLIGHT])
        self.answer([(first, more)], outcome)
        if lost:
            self.in_flight.requeue()
            self.plain.requeue()
            self.encode(k, [INFLIGHT])
        self.commit()

    @rule()
    def commit(self) -> None:
        assert self.in_flight.commit() is False
        self.plain.commit()

    @rule(
        what=st.sampled_from(
            [
                "tomb",
                "refuse",
                "clock",
                "requeue",
                "requeue",
                "expire",
                "gaps",
                "report",
                "foreign",
                "fail",
                "close",
            ]
        ),
        n=st.integers(0, 1000),
    )
    def now_and_then(self, what: str, n: int) -> None:
        match what:
            case "tomb":
                self.put(0, n % 6, K_TOMB)
            case "refuse":
                self.real.refuse()
                self.model.refuse()
            case "clock":
                self.now += [1, 1000, -5000, 3600_000_000, 0x3FFFFFFF][n % 5]
            case "requeue":
                self.in_flight.requeue()
                self.plain.requeue()
            case "expire":
                old = self.model.next_seq - 1 - [0, 5, 50][n % 3]
                self.in_flight.expire(max(0, old))
                self.plain.expire(old)
            case "gaps":
                self.in_flight.report_gaps()
                self.plain.gaps()
            case "report":
                assert self.in_flight.take_report() == self.plain.report()
            case "foreign":
                self.apply([(n, n + 20)], ACKED)
            case "fail" if n % 4 == 0:
                assert self.in_flight.fail(2) == self.plain.fail(2)
            case "close" if n % 4 == 0:
                self.real.close()
                self.model.closed = True

    # -- always

    @invariant()
    def assert_same_state(self) -> None:
        if not hasattr(self, "real"):
            return
        counts = self.real.counters()
        assert counts == self.model.counters()
        assert self.real.queued == self.model.queued()
        assert self.in_flight.inflight == self.plain.inflight
        assert self.in_flight.waiting == self.plain.waiting
        assert self.real.fits(100) == self.model.fits(100)
        assert self.real.waiting_callers == len(self.model.line)
        # Between two commits too: nothing is counted twice, nothing not at all.
        dropped = sum(n for reason, n in counts["dropped"].items() if reason != "closed")
        given = counts["acked"] + counts["handed"] + sum(counts["failed"].values()) + dropped
        assert counts["sent"] == counts["queued"] + counts["inflight"] + given
        assert counts["queued"] >= 0 and counts["queued_bytes"] <= self.model.max_bytes
        assert self.real.memory_used == self.model.used
        if self.bound is not None and self.real_bound is not None:
            assert self.real_bound.used == self.bound.used <= self.bound.limit
            assert self.neighbour.counters() == self.neighbour_model.counters()

    def teardown(self) -> None:
        """At the end every event gets an outcome, and both report the same."""
        if not hasattr(self, "real"):
            return
        while self.waiting:
            self.give_up(0, False)
        self.in_flight.fail(2)
        self.plain.fail(2)
        self.in_flight.commit()
        self.plain.commit()
        assert self.in_flight.take_report() == self.plain.report()
        counts = self.real.counters()
        assert counts == self.model.counters()
        assert counts["settled"] == counts["sent"] and counts["queued_bytes"] == 0
        if self.real_bound is not None:
            self.neighbour_delivers()
            assert self.real_bound.used == 0


Machine.TestCase.settings = settings(stateful_step_count=40)
TestMachine = Machine.TestCase


# -- what the machine does not show ------------------------------------------------------------------


def inflight_with(n: int, size: int = 10, **bounds: Any) -> InflightBatches:
    queue = EventQueue(**bounds)
    for i in range(n):
        assert queue.push(b"%*d" % (size, i)) > 0
    return InflightBatches(queue)


def taken(in_flight: InflightBatches, events: int = 100_000, size: int = 1 << 40) -> Batch:
    batch = in_flight.take(events, size)
    assert batch is not None
    return batch


def send(in_flight: InflightBatches, batch: Batch, k: int | None = None) -> bytes:
    for event in batch.pending(k):
        batch.mark(event.seq, INFLIGHT, 0, event.seq)
    return in_flight.encoded(batch)


def test_partial_acknowledgements_add_up() -> None:
    in_flight = inflight_with(10)
    send(in_flight, taken(in_flight))
    in_flight.apply([(1, 4)], ACKED)
    in_flight.commit()
    counts = in_flight.queue.counters()
    assert (counts["sent"], counts["acked"], counts["inflight"], counts["queued"]) == (10, 4, 6, 0)
    assert counts["settled"] == 4


def test_bodies_stay_until_the_whole_batch_is_settled() -> None:
    in_flight = inflight_with(10)
    batch = taken(in_flight)
    send(in_flight, batch)
    before = in_flight.queue.counters()["queued_bytes"]
    in_flight.apply([(1, 9)], ACKED)
    in_flight.commit()
    assert in_flight.queue.counters()["queued_bytes"] == before
    in_flight.requeue()
    assert [e.seq for e in batch.pending()] == [10]
    send(in_flight, batch)
    in_flight.apply([(10, 10)], ACKED)
    in_flight.commit()
    assert in_flight.queue.counters()["queued_bytes"] == 0
    with pytest.raises(LookupError, match="has its outcome"):
        batch.pending()


def test_detached_events_outside_a_batch_count_as_waiting() -> None:
    # They are no longer queued and in no batch yet: a sender must still know that there is work.
    in_flight = inflight_with(10)
    batch = taken(in_flight, 4)
    send(in_flight, batch)
    in_flight.apply([(1, 4)], ACKED)
    in_flight.commit()
    assert in_flight.queue.queued == (0, 0)
    assert in_flight.waiting == 6


def test_detached_events_outside_a_batch_expire() -> None:
    queue = EventQueue()
    for i in range(10):
        queue.push(b"%d" % i)
    in_flight = InflightBatches(queue)
    batch = taken(in_flight, 4)
    send(in_flight, batch)
    in_flight.apply([(1, 4)], ACKED)
    in_flight.expire(8)
    in_flight.commit()
    assert queue.counters()["failed"] == {"max_age": 4}


def test_events_in_flight_do_not_expire() -> None:
    in_flight = inflight_with(3)
    send(in_flight, taken(in_flight))
    in_flight.expire(1 << 62)
    in_flight.commit()
    assert in_flight.inflight == 3
    assert in_flight.queue.counters()["failed"] == {}


def test_kept_events_are_merged_by_sequence() -> None:
    queue = EventQueue()
    for i in range(3000):
        queue.push(b"x" * 100, 4 if i % 7 == 0 else 2)
    in_flight = InflightBatches(queue)
    seqs: list[int] = []
    while (batch := in_flight.take(100, 1 << 20)) is not None:
        seqs += [e.seq for e in batch.pending()]
    assert seqs == list(range(1, 3001))


def test_queued_errors_can_still_be_dropped() -> None:
    """Only as many kept events are detached as a batch needs; the others can still be dropped."""
    queue = EventQueue(policy="drop_oldest", max_bytes=1 << 20)
    for _ in range(5000):
        assert queue.push(b"x" * 100, 4) > 0
    in_flight = InflightBatches(queue)
    send(in_flight, taken(in_flight, 10))
    queued, _ = queue.queued
    assert queued > 4000
    for _ in range(10_000):
        assert queue.push(b"y" * 100, 4) > 0
    assert queue.counters()["dropped"]["overflow"] > 5000


def test_gaps_are_reported_as_drops() -> None:
    queue = EventQueue(policy="drop_oldest", max_events=5)
    for _ in range(12):
        queue.push(b"x")
    in_flight = InflightBatches(queue)
    taken(in_flight)
    queue.refuse()
    in_flight.report_gaps()
    assert in_flight.take_report() == [(1, 7, "dropped", "overflow"), (13, 13, "dropped", "overflow")]
    in_flight.report_gaps()
    assert in_flight.take_report() == []


def test_resent_counts_only_events_that_were_sent_before() -> None:
    in_flight = inflight_with(6)
    batch = taken(in_flight)
    send(in_flight, batch, 4)
    in_flight.requeue()
    send(in_flight, batch, 2)
    send(in_flight, batch)
    in_flight.commit()
    assert in_flight.queue.counters()["resent"] == 4


def test_ledger_lines_are_written_once() -> None:
    in_flight = inflight_with(6)
    batch = taken(in_flight)
    first = json.loads(send(in_flight, batch, 4))
    assert first["seqs"] == [[1, 4]] and first["n"] == 4
    in_flight.requeue()
    assert json.loads(send(in_flight, batch))["seqs"] == [[5, 6]]
    in_flight.requeue()
    assert send(in_flight, batch) == b""


def test_a_batch_has_at_least_one_event() -> None:
    # At least one event comes, however small the bound.
    in_flight = inflight_with(2, size=5000)
    assert len(taken(in_flight, 10, 1)) == 1
    assert len(taken(in_flight, 0, 1)) == 1
    assert in_flight.take(10, 1) is None
    assert in_flight.take(0, 1) is None


def test_only_events_in_flight_are_acknowledged() -> None:
    in_flight = inflight_with(4)
    send(in_flight, taken(in_flight), 2)
    in_flight.apply([(1, 4)], ACKED)
    in_flight.commit()
    assert in_flight.queue.counters()["acked"] == 2 and in_flight.waiting == 2


@pytest.mark.parametrize("status", [ACKED, FAILED, DROPPED])
def test_a_reason_that_does_not_exist_is_none(status: int) -> None:
    in_flight = inflight_with(60)
    send(in_flight, taken(in_flight))
    in_flight.apply([(seq, seq) for seq in range(1, 61)], status, 195)
    in_flight.commit()
    assert [(first, last, reason) for first, last, _, reason in in_flight.take_report()] == [(1, 60, "")]


def test_an_outcome_is_final() -> None:
    in_flight = inflight_with(2)
    batch = taken(in_flight)
    send(in_flight, batch)
    in_flight.apply([(1, 1)], ACKED)
    in_flight.apply([(1, 1)], FAILED, REJECTED)
    in_flight.apply([(1, 1)], PENDING)
    assert batch.statuses() == {1: "acked", 2: "inflight"}
    with pytest.raises(LookupError):
        batch.mark(1, INFLIGHT)
    for wrong in ((ACKED, 0), (PENDING, 0), (0x80 | FAILED, REJECTED), (FAILED, 99)):
        with pytest.raises(ValueError, match="status: must be"):
            batch.mark(2, *wrong)
    in_flight.apply([(1, 1_000_000)], ACKED)  # what was never sent, too
    in_flight.commit()
    assert in_flight.queue.counters()["acked"] == 2


# -- the quarantine -----------------------------------------------------------------------------------


def send_pending(in_flight: InflightBatches, events: int = 1) -> list[int]:
    """Send up to `events` pending events; return their sequences."""
    batch = in_flight.pending()
    if batch is None:
        return []
    found = [event.seq for event in batch.pending(in_flight.limit_credit(events))]
    for seq in found:
        batch.mark(seq, INFLIGHT, 0, seq)
    in_flight.encoded(batch)
    return found


def with_quarantine(bodies: list[bytes], first: int = 1) -> tuple[EventQueue, InflightBatches]:
    """Return these events as one batch whose first `first` events are in quarantine."""
    queue = EventQueue()
    for body in bodies:
        queue.push(body)
    in_flight = InflightBatches(queue)
    assert in_flight.take(len(bodies), 1 << 20) is not None
    assert send_pending(in_flight, len(bodies)) == list(range(1, len(bodies) + 1))
    in_flight.requeue()
    in_flight.withhold(first)
    assert in_flight.quarantine() == in_flight.quarantined == list(range(1, first + 1))
    assert in_flight.withheld == 0
    return queue, in_flight


def test_a_suspect_is_sent_alone() -> None:
    queue, in_flight = with_quarantine([b"suspect", bytes(100_000), b"three"])
    assert send_pending(in_flight, 9) == [2, 3], "the neighbours go on"
    in_flight.apply([(2, 3)], ACKED)
    in_flight.commit()
    counts = queue.counters()
    assert (counts["acked"], counts["queued"], counts["settled"]) == (2, 1, 0)
    assert counts["queued_bytes"] == 32, "none of its neighbours' memory"
    assert in_flight.reached == 3 and in_flight.outcomes == 2
    queue.push(b"four")
    in_flight.take(10, 1 << 20)
    in_flight.send_alone(1)
    assert in_flight.inflight_range == (0, 0, 0)
    assert send_pending(in_flight, 9) == [1]
    assert in_flight.limit_credit(9) == 0 and in_flight.pending() is None, "nothing else before its outcome"
    assert in_flight.inflight_range == (1, 1, 1)
    in_flight.apply([(1, 1)], ACKED)
    in_flight.commit()
    assert in_flight.quarantined == []
    assert send_pending(in_flight, 9) == [4]
    in_flight.apply([(4, 4)], ACKED)
    in_flight.commit()
    counts = queue.counters()
    assert (counts["acked"], counts["queued_bytes"], counts["settled"], counts["resent"]) == (4, 0, 4, 3)


def test_a_suspect_stays_behind_after_a_break() -> None:
    _, in_flight = with_quarantine([b"one", b"two", b"three"], 2)
    in_flight.send_alone(2)
    assert send_pending(in_flight) == [2]
    in_flight.requeue()
    in_flight.send_alone(0)
    assert in_flight.quarantined == [1, 2] and in_flight.inflight == 0
    assert send_pending(in_flight, 9) == [3]
    with pytest.raises(LookupError, match="no event 3 in quarantine"):
        in_flight.send_alone(3)


def test_suspects_settle_like_all_events() -> None:
    """They are condemned, expired, or given up with the client."""
    queue, in_flight = with_quarantine([b"one", b"two", b"three", b"four"], 3)
    assert in_flight.fail_quarantined(2, R_POISON) == 3
    with pytest.raises(LookupError, match="no event 2 in quarantine"):
        in_flight.fail_quarantined(2, R_POISON)
    in_flight.commit()
    assert queue.counters()["failed"] == {"poison": 1}
    in_flight.send_alone(1)
    send_pending(in_flight)
    assert in_flight.fail(R_CLOSED) == 3
    in_flight.commit()
    counts = queue.counters()
    assert counts["failed"] == {"poison": 1, "closed": 3}
    assert counts["queued_bytes"] == counts["inflight"] == 0
    assert in_flight.quarantined == []
    queue, in_flight = with_quarantine([b"one", b"two"], 1)
    in_flight.expire(2)
    in_flight.commit()
    assert queue.counters()["failed"] == {"max_age": 2}


def test_withheld_events_come_back_in_order() -> None:
    queue, in_flight = with_quarantine([b"one", b"two", b"three", b"four"], 0)
    in_flight.withhold(2)
    assert send_pending(in_flight) == [3]
    in_flight.requeue()
    in_flight.release_withheld()
    assert send_pending(in_flight, 9) == [1, 2, 3, 4]
    assert queue.counters()["settled"] == 0


def test_the_allowance_limits_the_events_sent() -> None:
    _, in_flight = with_quarantine([b"%d" % n for n in range(10)], 1)
    in_flight.allow(3)
    assert send_pending(in_flight, 9) == [2, 3, 4]
    assert in_flight.limit_credit(9) == 0
    in_flight.send_alone(1)
    assert in_flight.limit_credit(9) == 9, "a suspect needs none"
    in_flight.send_alone(0)
    in_flight.allow(None)
    assert len(send_pending(in_flight, 9)) == 6


def test_draining_ends_with_the_last_acknowledgement() -> None:
    _, in_flight = with_quarantine([b"one", b"two", b"three"], 1)
    assert send_pending(in_flight) == [2]
    in_flight.drain()
    assert in_flight.limit_credit(9) == 0 and not in_flight.drained
    in_flight.apply([(2, 2)], ACKED)
    assert in_flight.drained
