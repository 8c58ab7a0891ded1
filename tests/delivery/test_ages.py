"""Expiry of old events: by the sender's monotonic clock, whatever happens to the wall clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.delivery.engine import MARKS, Ages

pytestmark = pytest.mark.unit

steps = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.sampled_from([0, 0, 1, 5, 1000])), min_size=1, max_size=200
)


@given(steps=steps, max_age=st.floats(0.1, 20.0))
def test_events_expire_after_max_age_and_not_before(steps: list[tuple[float, int]], max_age: float) -> None:
    """At any rate of looks, an event fails after `max_age`, and no later than the looks and marks allow."""
    ages = Ages(max_age)
    now, newest, expired = 1000.0, 0, 0
    seen: list[tuple[float, int]] = []  # (time of the look, newest then)
    for pause, more in steps:
        now += pause
        newest += more
        old = ages.look(now, newest)
        assert old == 0 or old > expired
        expired = max(expired, old)
        seen.append((now, newest))
        for when, seq in seen:
            if seq and now - when > max_age:
                # It was there at that look. A note is made then, or one `max_age / MARKS` later.
                later = [t for t, _ in seen if t >= when + max_age / MARKS]
                assert seq <= expired or not later or now - later[0] <= max_age
            elif 0 < seq <= expired:
                # Whatever failed was there at some look more than max_age ago.
                assert any(s >= seq and now - t > max_age for t, s in seen)
        assert len(ages._marks) <= MARKS + 2


def test_an_idle_queue_leaves_no_marks() -> None:
    ages = Ages(600.0)
    for n in range(100_000):
        assert ages.look(n * 1.0, 7) == (7 if n == 601 else 0)
    assert not ages._marks
