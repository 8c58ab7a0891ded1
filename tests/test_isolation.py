"""The search for a poison, against servers that are themselves unreliable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logclient.delivery.isolation import ASIDE, POISON, Isolation


class World:
    """Some servers, and a sender that does what `Isolation` says. Windows are acknowledged one by one.

    Args:
        count: events, numbered from 1.
        poison: those that no server can take.
        window: events in a window, at most.
        down: for each connection, whether its server ends it whatever comes; then all servers are well.
    """

    def __init__(self, count: int, poison: set[int], window: int, servers: int, down: list[bool]) -> None:
        self.isolation = Isolation(servers)
        self.pending = list(range(1, count + 1))
        self.poison = poison
        self.window = window
        self.down = down
        self.acked: list[int] = []
        self.failed: list[int] = []
        self.breaks = 0

    def run(self) -> None:
        connection = 0
        while self.pending:
            dead = self.down[connection] if connection < len(self.down) else False
            connection += 1
            self._connection(dead)
            if connection >= len(self.down) and self.poison.issuperset(self.pending):
                return  # nothing left that could prove anything

    def _connection(self, dead: bool) -> None:
        """Send windows until the server ends it, or all is sent."""
        isolation = self.isolation
        while True:
            rest = self.pending[isolation.aside :]
            window = rest[: min(self.window, isolation.limit or self.window)]
            if not window:
                return
            if dead or self.poison & set(window):
                self.breaks += 1
                verdict = isolation.broke(window[0], window[-1], len(window), len(self.pending) - len(window))
                assert (verdict == ASIDE) == (isolation.aside > 0)
                assert not isolation.aside or isolation.aside < len(self.pending)
                if verdict == POISON:
                    self.failed.append(window[0])
                    self.pending.remove(window[0])
                return
            self.acked += window
            self.pending = [event for event in self.pending if event not in window]
            isolation.moved(self._settled())
            assert not isolation.aside

    def _settled(self) -> int:
        return self.pending[0] - 1 if self.pending else 1 << 48


SIZES = st.integers(1, 64)


@given(
    count=st.integers(1, 300),
    poison=st.sets(st.integers(1, 300), max_size=6) | st.builds(range, SIZES, SIZES).map(set),
    window=SIZES,
    servers=st.integers(1, 4),
    down=st.lists(st.booleans(), max_size=40),
)
def test_every_poison_is_found_and_nothing_else(
    count: int, poison: set[int], window: int, servers: int, down: list[bool]
) -> None:
    world = World(count, poison, window, servers, down)
    world.run()
    real = {event for event in poison if event <= count}
    assert sorted(world.acked) == [event for event in range(1, count + 1) if event not in real]
    assert down or world.acked == sorted(world.acked)
    # The last ones wait for an event that can be taken.
    assert world.failed + world.pending == sorted(real)


@given(count=SIZES, window=SIZES, servers=st.integers(1, 4), breaks=st.integers(1, 100))
def test_an_outage_condemns_nothing(count: int, window: int, servers: int, breaks: int) -> None:
    """Even one that ends in the worst moment: with an event aside, and the next one is taken."""
    world = World(count, set(), window, servers, [True] * breaks)
    world.run()
    assert world.breaks == breaks
    assert not world.failed
    ahead = [event for place, event in enumerate(world.acked, 1) if event > place]
    assert sorted(world.acked) == list(range(1, count + 1)) and len(ahead) <= 1


@given(window=st.integers(1, 10_000), place=st.integers(0, 9_999))
def test_a_window_takes_few_breaks(window: int, place: int) -> None:
    world = World(window + 1, {1 + place % window}, window, 1, [])
    world.run()
    assert len(world.failed) == 1
    assert world.breaks <= 2 + 4 + 3 + 1
