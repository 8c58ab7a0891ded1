"""The join of arrivals with the events of a bucket, against its reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.arrivals import join
from tests.oracle import arrivals as oracle
from tests.support.examples import examples

pytestmark = pytest.mark.unit

FAR = 2**63 - 1
times = st.integers(0, 2**32 - 1) | st.just(oracle.NO_TIME)
arrival = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2**60), times)
event = st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3), st.integers(0, 2**60) | st.just(FAR))


def columns(rows: list[Any], *kinds: str) -> list[np.ndarray[Any, Any]]:
    """Return the fields of some rows as columns."""
    fields = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return [np.array(values, kind) for values, kind in zip(fields, kinds, strict=True)]


@examples(300)
@given(
    st.lists(arrival, max_size=30),
    st.lists(event, min_size=5, max_size=5),
    st.integers(0, 2**60),
    st.integers(0, 22),
)
@example([(0, 1, 5, oracle.NO_TIME), (0, 2, 4, 0)], [(1, True, 0, FAR)] * 5, 7, 0)
def test_joins_equal_the_reference(arrivals: Any, events: Any, received_us: int, shift: int) -> None:
    given_columns = columns(arrivals, "<i4", "<u8", "<i8", "<u4")
    hashes, listed, copies, received = columns(events, "<u8", "u1", "<i4", "<i8")
    first = received // 2
    wrong = np.empty(len(arrivals), np.int32)
    ours = [copies.copy(), first.copy(), received.copy()]
    theirs = [copies.tolist(), first.tolist(), received.tolist()]

    n, differing = join(*given_columns, received_us, shift, hashes, listed, *ours, wrong)

    expected = oracle.join(
        *(x.tolist() for x in given_columns), received_us, shift, hashes.tolist(), listed.tolist(), *theirs
    )
    assert (n, wrong[:differing].tolist()) == expected
    assert [x.tolist() for x in ours] == theirs


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda x: x.update(places=np.array([3], np.int32)), "places"),
        (lambda x: x.update(places=np.array([-1], np.int32)), "places"),
        (lambda x: x.update(hashes=np.zeros(2, np.uint64)), "hashes"),
        (lambda x: x.update(wrong=np.zeros(0, np.int32)), "wrong"),
        (lambda x: x.update(copies=np.zeros(2, np.int32)), "copies"),
        (lambda x: x.update(shift=31), "shift"),
    ],
)
def test_columns_that_do_not_fit_are_refused(change: Callable[[dict[str, Any]], None], named: str) -> None:
    arguments = {
        "places": np.zeros(1, np.int32), "hashes": np.zeros(1, np.uint64), "positions": np.zeros(1, np.int64),
        "after": np.zeros(1, np.uint32), "received_us": 0, "shift": 0, "expected": np.zeros(3, np.uint64),
        "listed": np.ones(3, np.uint8), "copies": np.zeros(3, np.int32), "first": np.zeros(3, np.int64),
        "received": np.zeros(3, np.int64), "wrong": np.zeros(1, np.int32),
    }  # fmt: skip
    change(arguments)
    with pytest.raises(ValueError, match=named):
        join(**arguments)
