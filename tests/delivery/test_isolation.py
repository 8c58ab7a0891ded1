"""The search for events that end connections, against servers that break for other reasons, too."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery.ending import Ending
from logclient.delivery.isolation import (
    CERTAIN,
    CONTROL,
    FLOW,
    NOTHING,
    PROBE,
    SUSPECT,
    TRIAL,
    WITHHOLD,
    Isolation,
)
from logclient.delivery.trials import Trials
from tests.support.breaks import BLIND, at_random, by_connection
from tests.support.configs import config_for

CONFIG = config_for("lumberjack")
CONNECT = 0.001
WINDOW = 0.001


class Simulation:
    """Servers, a supply of events and a sender that does what `Isolation` says, in virtual time.

    Args:
        server: breaks without looking at events.
        poison: whether an event ends its connection.
        window: events in a window, at most.
        rate: events a second that the application makes; 0: all of them are there at the start.
    """

    def __init__(
        self,
        server: Iterator[Iterator[bool]],
        random: Random,
        *,
        poison: Callable[[int], bool] = lambda seq: False,
        window: int = 64,
        servers: int = 1,
        count: int = 1 << 60,
        rate: float = 10_000.0,
    ) -> None:
        self.random = random
        self.isolation = Isolation(servers, random.random, CONFIG)
        self.server = server
        self.poison = poison
        self.window = window
        self.count = count
        self.rate = rate
        self.now = 1.0
        self.made = 0
        self.pending: deque[int] = deque()
        self.aside: list[int] = []
        self.quarantine: dict[int, float] = {}
        self.deferred: set[int] = set()
        self.acked: list[int] = []
        self.condemned: list[int] = []
        self.settled_in: list[float] = []
        self.breaks = 0
        self.attempts = 0
        self.flowing = 0.0  # seconds on connections that carry the queue

    def run(self, until: Callable[[Simulation], bool]) -> Simulation:
        self.until = until
        while not until(self):
            self._make()
            if not self.pending and not self.quarantine:
                if self.made >= self.count:
                    break
                self._idle()
                continue
            self._connection(next(self.server))
        return self

    @property
    def done(self) -> bool:
        return self.made >= self.count and not (self.pending or self.quarantine or self.aside)

    def _make(self) -> None:
        want = self.count if not self.rate else min(self.count, int((self.now - 1.0) * self.rate) + 1)
        while self.made < want and len(self.pending) < 5000:
            self.made += 1
            self.pending.append(self.made)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self._make()

    def _connection(self, breaks: Iterator[bool]) -> None:
        """Send windows until the server ends the connection, or it is left for a trial."""
        isolation = self.isolation
        self.now += CONNECT
        alone = isolation.connected(self.now, len(self.pending))
        kind = isolation.kind
        while not self.until(self):
            self._make()
            if self.now >= isolation.next_trial(len(self.pending)):
                isolation.leave(self.now, len(self.pending))
                isolation.ended(self.now)
                return
            window = self._next_window(alone)
            if not window:
                if self.made >= self.count and not self.quarantine and not self.pending:
                    return
                self._idle()
                continue
            took = WINDOW + len(window) / 100_000.0
            self.now += took
            if any(map(self.poison, window)) or next(breaks):
                self._broke(window, alone)
                return
            self.attempts = 0
            if kind == FLOW or not isolation.trying:
                self.flowing += took
            self._acked(window, alone)
            alone = 0

    def _idle(self) -> None:
        """Until a trial is due or the application makes another event."""
        trial = self.isolation.next_trial(len(self.pending))
        more = 1.0 + self.made / self.rate if self.rate and self.made < self.count else None
        self.now = max(self.now + 0.0001, min(t for t in (trial, more, self.now + 1000.0) if t is not None))

    def _next_window(self, alone: int) -> list[int]:
        if alone:
            return [alone]
        isolation = self.isolation
        size = isolation.limit or self.window
        if not isolation.trying:
            size = max(0, min(size, len(self.pending) - isolation.reserve()))
        return list(itertools.islice(self.pending, size))

    def _broke(self, window: list[int], alone: int) -> None:
        isolation = self.isolation
        self.breaks += 1
        others = len(self.pending) - (0 if alone else len(window))
        verdict = isolation.broke(window[0], window[-1], len(window), others, self.now)
        if verdict == WITHHOLD:
            assert 0 < isolation.withheld <= others and not self.aside
            self.aside = [self.pending.popleft() for _ in range(isolation.withheld)]
            return
        if self.aside:
            self.pending.extendleft(reversed(self.aside))
            self.aside = []
        bound = min(30.0, 0.1 * 3.0 ** min(self.attempts, 20))
        if verdict != TRIAL:
            self.attempts += 1
        self._wait(bound * self.random.random())

    def _acked(self, window: list[int], alone: int) -> None:
        isolation = self.isolation
        self.acked += window
        if alone:
            del self.quarantine[alone]
        else:
            for _ in window:
                self.pending.popleft()
        waiting = [*self.aside[:1], *itertools.islice(self.pending, 1)]
        if isolation.kind == PROBE:
            isolation.quarantine(self.aside)
            self.quarantine |= dict.fromkeys(self.aside, self.now)
            self.deferred |= set(self.aside)
            self.aside = []
        seq = isolation.settled(self.now, min(waiting) - 1 if waiting else self.made)
        if seq:
            self.condemned.append(seq)
            self.settled_in.append(self.now - self.quarantine.pop(seq))
        assert set(isolation.suspects) == set(self.quarantine)


# -- servers that never look at events ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", BLIND)
def test_a_blind_server_condemns_no_event(name: str) -> None:
    random = Random(name)
    world = Simulation(BLIND[name](random), random).run(lambda w: w.breaks >= 1500)
    assert not world.condemned


def test_an_event_that_is_too_long_under_way_is_set_aside_and_not_condemned() -> None:
    """The server's patience ends before it has the event, each time that it is sent alone."""
    isolation = Isolation(1, Random(1).random, CONFIG)
    now, controls, trials = 1.0, 0, 0
    assert isolation.connected(now, 9) == 0
    assert isolation.broke(5, 5, 1, 9, now, True) == WITHHOLD  # at once: it would be under way as long again
    isolation.connected(now, 9)
    assert isolation.kind == PROBE
    isolation.quarantine([5])
    assert isolation.settled(now, 4) == 0
    for _ in range(20 * CERTAIN):
        now += 1000.0
        isolation.connected(now, 9)
        if isolation.kind == SUSPECT:
            trials += 1
            assert isolation.broke(5, 5, 1, 9, now, True) == TRIAL
        else:
            controls += isolation.kind == CONTROL
            assert isolation.settled(now, 4) == 0
    assert trials > CERTAIN < controls


def test_a_break_while_several_events_move_says_nothing() -> None:
    books: Any = SimpleNamespace(diagnostics=None)
    trials = Trials(InflightBatches(EventQueue()), CONFIG, 1, books, Ending(1.0))
    for moving, limit in ((True, 0), (False, 8)):
        for _ in range(3):
            trials.connected()
            assert trials.broke("closed", 5, 68, 64, moving) == NOTHING
        assert trials.isolation.limit == limit


@pytest.mark.long
def test_a_million_breaks_condemn_no_event() -> None:
    breaks = taken = 0
    for name in BLIND:
        for seed in range(8):
            random = Random(f"{name} {seed}")
            world = Simulation(BLIND[name](random), random, window=random.choice((1, 4, 64)))
            world.run(lambda w: w.breaks >= 1_000_000 // (8 * len(BLIND)) + 1)
            assert not world.condemned, (name, seed)
            breaks += world.breaks
            taken += len(world.acked)
    print(f"{breaks} breaks, {taken} events taken, none condemned")
    assert breaks >= 1_000_000


@pytest.mark.parametrize("innocent", [0.0, 0.2])
@pytest.mark.parametrize("often", [1, 3])
def test_each_poison_is_found(innocent: float, often: int) -> None:
    """`often` is the number of poison events in 10,000."""
    random = Random(f"{innocent} {often}")
    bad = {seq for seq in range(1, 20_001) if random.random() < often / 10_000} | {7, 8, 9000}
    world = Simulation(at_random(innocent, random), random, poison=bad.__contains__, count=20_000, rate=0)
    world.run(lambda w: w.made >= w.count and not w.pending and not w.aside and len(w.condemned) == len(bad))
    assert sorted(world.condemned) == sorted(bad)
    assert sorted(world.acked) == [seq for seq in range(1, 20_001) if seq not in bad]
    assert max(world.settled_in) < 300.0


def test_neighbours_flow_at_half_rate_during_trials() -> None:
    """While a suspect is tested on a server that is well."""
    random = Random(1)
    world = Simulation(at_random(0.0, random), random, poison={5000}.__contains__, rate=50_000.0)
    world.run(lambda w: bool(w.quarantine))
    began, flowed, taken = world.now, world.flowing, len(world.acked)
    world.run(lambda w: bool(w.condemned))
    spent = world.now - began
    assert world.flowing - flowed > 0.5 * spent
    # Some 40,000 a second go through this world's wire.
    assert len(world.acked) - taken > 0.5 * spent * 20_000


def test_order_is_kept_except_for_suspects() -> None:
    random = Random(2)
    bad = {100, 101, 2500}
    world = Simulation(at_random(0.0, random), random, poison=bad.__contains__, count=5000, rate=0)
    world.run(lambda w: len(w.condemned) == 3)
    assert world.acked == sorted(world.acked)


def test_consecutive_poison_events_are_all_found() -> None:
    random = Random(3)
    bad = set(range(200, 240))
    world = Simulation(at_random(0.0, random), random, poison=bad.__contains__, rate=1_000.0)
    world.run(lambda w: len(w.condemned) == 40 or w.breaks > 5000)
    assert sorted(world.condemned) == sorted(bad)


def test_poison_without_neighbours_waits_for_them() -> None:
    random = Random(4)
    world = Simulation(at_random(0.0, random), random, poison=lambda seq: seq == 1, count=3, rate=0)
    world.run(lambda w: w.breaks >= 40)
    assert sorted(world.acked) == [2, 3] and not world.condemned
    assert set(world.quarantine) == {1}
    world.count = 200
    world.run(lambda w: w.condemned == [1])


@pytest.mark.slow
def test_a_suspect_is_decided_although_most_connections_take_nothing() -> None:
    """Nine of ten: few controls are taken, too."""
    random = Random(6)
    world = Simulation(by_connection(0.9, random), random, poison={300}.__contains__, rate=1000.0)
    world.run(lambda w: bool(w.condemned) or w.now > 20_000.0)
    assert world.condemned == [300]


def test_suspects_have_their_turns_while_nothing_else_waits() -> None:
    """A poison does not keep those behind it from being found innocent."""
    search = Isolation(1, Random(1).random, CONFIG)
    search.quarantine([7, 8, 9])
    now, tried = 1.0, []
    while len(search.suspects) > 1 and len(tried) < 10:
        now = max(now + 0.001, search.next_trial(0))
        tried.append(search.connected(now, 0))
        if tried[-1] == 7:
            assert search.broke(7, 7, 1, 0, now) == TRIAL
        else:
            assert search.settled(now, 6) == 0
    assert tried == [7, 8, 9]


def test_one_suspect_after_the_other_is_decided() -> None:
    random = Random(7)
    search = Isolation(1, random.random, CONFIG)
    search.quarantine([7, 8, 9])
    now, condemned, tried = 1.0, [], set()
    while search.suspects:
        now += 100.0
        seq = search.connected(now, 1000)
        if seq:
            tried.add(seq)
            assert tried == {*condemned, seq}
            search.broke(seq, seq, 1, 1000, now)
        elif found := search.settled(now, 6):
            condemned.append(found)
    assert condemned == [7, 8, 9]


def test_a_suspect_that_was_settled_meanwhile_is_not_condemned() -> None:
    """It grew too old while its last control was under way."""
    lot = Draws()
    search = with_suspect(lot)
    for n in range(1, CERTAIN):
        assert run_trial(search, lot, 100.0 * n, False, True) == 0
    assert search.connected(100.0 * CERTAIN, 1000) == 0 and search.kind == CONTROL
    search.forget([])
    assert search.settled(100.0 * CERTAIN, 0) == 0


SIZES = st.integers(1, 64)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    poison=st.sets(st.integers(1, 300), max_size=6) | st.builds(range, SIZES, SIZES).map(set),
    window=SIZES,
    servers=st.integers(1, 4),
    down=st.lists(st.booleans(), max_size=40),
    seed=st.integers(0, 1 << 32),
)
def test_exactly_the_poison_events_are_condemned(
    poison: set[int], window: int, servers: int, down: list[bool], seed: int
) -> None:
    """After some breaks that no event causes, while there are events for comparison."""
    outage = itertools.chain(map(itertools.repeat, down), itertools.repeat(itertools.repeat(False)))
    world = Simulation(
        outage, Random(seed), poison=poison.__contains__, window=window, servers=servers, rate=500.0
    )
    world.run(
        lambda w: (
            (len(w.acked) >= 300 and len(w.condemned) >= len(poison) and not (w.quarantine or w.aside))
            or w.now > 3600.0
        )
    )
    assert sorted(world.condemned) == sorted(poison)
    reached = max(world.acked)
    assert sorted(world.acked) == [event for event in range(1, reached + 1) if event not in poison]


@given(count=SIZES, window=SIZES, servers=st.integers(1, 4), breaks=st.integers(1, 100))
def test_an_outage_condemns_no_event(count: int, window: int, servers: int, breaks: int) -> None:
    """Not even one that ends at the worst moment: an event is withheld and the next one is taken."""
    outage = itertools.chain(
        (itertools.repeat(True) for _ in range(breaks)), itertools.repeat(itertools.repeat(False))
    )
    world = Simulation(outage, Random(0), window=window, servers=servers, count=count, rate=0)
    world.run(lambda w: w.done)
    assert world.breaks == breaks
    assert not world.condemned
    assert sorted(world.acked) == list(range(1, count + 1))
    others = [event for event in world.acked if event not in world.deferred]
    assert others == sorted(others)


@given(window=st.integers(1, 10_000), place=st.integers(0, 9_999))
def test_a_suspect_is_found_within_ten_breaks(window: int, place: int) -> None:
    bad = 1 + place % window
    random = Random(0)
    world = Simulation(
        at_random(0.0, random), random, poison={bad}.__contains__, window=window, count=window + 1, rate=0
    )
    world.run(lambda w: bad in w.quarantine)
    assert world.breaks <= 2 + 4 + 3 + 1


class Draws:
    """The next draw of a trial: True a suspect, False a control."""

    def __init__(self) -> None:
        self.suspect = False

    def __call__(self) -> float:
        return 0.0 if self.suspect else 0.999999


def with_suspect(lot: Draws) -> Isolation:
    """Return an isolation with event 1 in quarantine."""
    isolation = Isolation(1, lot, CONFIG)
    isolation.quarantine([1])
    return isolation


def run_trial(isolation: Isolation, lot: Draws, now: float, suspect: bool, taken: bool) -> int:
    """Run one trial as drawn, with many events waiting; return the event that it condemns, or 0."""
    lot.suspect = suspect
    assert now >= isolation.next_trial(1000)
    assert isolation.connected(now, 1000) == (1 if suspect else 0) and isolation.limit == 1
    if taken:
        return isolation.settled(now, 0)
    assert isolation.broke(1 if suspect else int(now), 1, 1, 1000, now) != WITHHOLD
    return 0


def test_the_random_draw_chooses_suspect_or_control() -> None:
    lot = Draws()
    isolation = with_suspect(lot)
    for n, suspect in enumerate([True, True, False, False, True, False, False, True]):
        run_trial(isolation, lot, 100.0 * (n + 1), suspect, not suspect)


@pytest.mark.parametrize("broken", [0, 30])
def test_an_event_is_condemned_after_enough_proof(broken: int) -> None:
    """That is thirty controls taken: less than a chance of 1 in 10⁹ for a blind server. No break counts."""
    lot = Draws()
    isolation = with_suspect(lot)
    now = taken = 0
    for n in itertools.count():
        now += 100
        if n < broken:
            assert not run_trial(isolation, lot, float(now), False, False)
            continue
        for _ in range(3):
            assert not run_trial(isolation, lot, float(now), True, False)
            now += 100
        taken += 1
        if run_trial(isolation, lot, float(now), False, True):
            break
    assert taken == CERTAIN and 2**taken > 1e9 > 2 ** (taken - 1)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("suspects", [1, 3])
def test_evidence_against_a_suspect_of_a_blind_server_is_fair(broken: bool, suspects: int) -> None:
    """After a trial, its mean over the two draws is 1, as before: a martingale."""
    for suspect in range(1, suspects + 1):
        evidence = []
        for draw in (0.25, 0.75):  # a suspect, or a control
            isolation = Isolation(1, lambda draw=draw: draw, CONFIG)
            isolation.quarantine(list(range(1, suspects + 1)))
            alone = isolation.connected(100.0, 1000) or 1000
            if broken:
                isolation.broke(alone, alone, 1, 1000, 100.0)
            else:
                isolation.settled(100.0, 0)
            left = isolation.suspects.get(suspect)
            evidence.append(0.0 if left is None else 2.0**left.evidence)
        assert sum(evidence) / 2 == 1.0
