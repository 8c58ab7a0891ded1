"""How many events a broken connection without acknowledgements may have lost, of those handed over it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.delivery.doubt import KERNEL, Doubt

pytestmark = pytest.mark.unit

SIZE = 100  # bytes of an event


def after(
    *moments: tuple[float, int], at: float, holds: int = 1000, size: int = SIZE, waited: bool = False
) -> tuple[int, int]:
    """(events in doubt, the estimate) of a connection over which so many were handed by these moments."""
    doubt = Doubt()
    doubt.connected(0.0, 0, 0)
    for now, handed in moments:
        doubt.look(now, handed)
    handed = moments[-1][1] if moments else 0
    doubt.broke(at, handed, handed * size, holds, waited)
    return doubt.events, doubt.estimate


class TestEstimate:
    def test_a_steady_flow_is_in_doubt_for_its_last_second(self) -> None:
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 601)]
        assert after(*flow, at=60.0) == (240_000, 4_000)

    def test_a_pause_before_the_break_changes_nothing(self) -> None:
        """What was handed last may be what was never read, however long ago that is."""
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 101)]
        assert after(*flow, at=500.0) == after(*flow, at=10.0) == (40_000, 4_000)

    def test_no_more_than_transport_and_kernel_hold(self) -> None:
        flow = [(tenth / 10, tenth * 100_000) for tenth in range(1, 101)]
        assert after(*flow, at=10.0) == (10_000_000, 1000 + KERNEL // SIZE)
        assert after(*flow, at=10.0, size=1 << 20, holds=20) == (10_000_000, 24)

    def test_what_waited_shows_that_both_were_full(self) -> None:
        flow = [(tenth / 10, tenth * 400) for tenth in range(1, 601)]
        assert after(*flow, at=60.0, waited=True) == (240_000, 1000 + KERNEL // SIZE)
        assert after((0.1, 7), at=60.0, waited=True) == (7, 7)

    def test_nothing_handed_nothing_in_doubt(self) -> None:
        assert after(at=5.0) == after(at=5.0, waited=True) == (0, 0)

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
    def test_never_more_than_were_handed(
        self, steps: list[tuple[float, int]], pause: float, holds: int, size: int, waited: bool
    ) -> None:
        now, handed = 0.0, 0
        moments = []
        for seconds, more in steps:
            now, handed = now + seconds, handed + more
            moments.append((now, handed))
        events, estimate = after(*moments, at=now + pause, holds=holds, size=size, waited=waited)
        assert events == handed
        assert 0 <= estimate <= events
        assert not handed or holds == 0 or estimate > 0
