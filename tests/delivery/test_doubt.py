"""Events in doubt: how many events a broken connection without acknowledgements may have lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.delivery.connection import KERNEL, Doubt

pytestmark = pytest.mark.unit

SIZE = 100  # bytes of an event


def doubt_after(
    *moments: tuple[float, int], at: float, holds: int = 1000, size: int = SIZE, waited: bool = False
) -> tuple[int, int]:
    """Return (events in doubt, estimate) of a connection that had sent so many events at these moments."""
    doubt = Doubt()
    doubt.connected(0.0, 0, 0)
    for now, handed in moments:
        doubt.look(now, handed)
    handed = moments[-1][1] if moments else 0
    doubt.broke(at, handed, handed * size, holds, waited)
    return doubt.events, doubt.estimate


class TestEstimate:
    def test_a_steady_flow_is_in_doubt_for_one_second(self) -> None:
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 601)]
        assert doubt_after(*flow, at=60.0) == (240_000, 4_000)

    def test_a_pause_before_the_break_changes_nothing(self) -> None:
        """The events that were sent last may be unread, however long ago that was."""
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 101)]
        assert doubt_after(*flow, at=500.0) == doubt_after(*flow, at=10.0) == (40_000, 4_000)

    def test_the_estimate_is_bounded_by_transport_and_kernel(self) -> None:
        flow = [(tenth / 10, tenth * 100_000) for tenth in range(1, 101)]
        assert doubt_after(*flow, at=10.0) == (10_000_000, 1000 + KERNEL // SIZE)
        assert doubt_after(*flow, at=10.0, size=1 << 20, holds=20) == (10_000_000, 24)

    def test_a_waiting_write_shows_that_both_buffers_were_full(self) -> None:
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 601)]
        assert doubt_after(*flow, at=60.0, waited=True) == (240_000, 1000 + KERNEL // SIZE)
        assert doubt_after((0.1, 7), at=60.0, waited=True) == (7, 7)

    def test_without_events_nothing_is_in_doubt(self) -> None:
        assert doubt_after(at=5.0) == doubt_after(at=5.0, waited=True) == (0, 0)

    def test_connections_add_up(self) -> None:
        doubt = Doubt()
        for life in range(3):
            begin = life * 100.0
            doubt.connected(begin, life * 5000, life * 5000 * SIZE)
            doubt.look(begin + 1.0, life * 5000 + 4990)
            doubt.broke(begin + 10.0, life * 5000 + 5000, (life + 1) * 5000 * SIZE, 1000, False)
        assert (doubt.events, doubt.estimate) == (15_000, 30)

    @given(
        st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 5000)), max_size=50),
        st.floats(0.0, 100.0), st.integers(0, 2000), st.integers(0, 10_000), st.booleans(),
    )  # fmt: skip
    def test_the_estimate_never_exceeds_the_events_handed(
        self, steps: list[tuple[float, int]], pause: float, holds: int, size: int, waited: bool
    ) -> None:
        now, handed = 0.0, 0
        moments = []
        for seconds, more in steps:
            now, handed = now + seconds, handed + more
            moments.append((now, handed))
        events, estimate = doubt_after(*moments, at=now + pause, holds=holds, size=size, waited=waited)
        assert events == handed
        assert 0 <= estimate <= events
        assert not handed or holds == 0 or estimate > 0
