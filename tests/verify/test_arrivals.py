"""Sorting arrivals into buckets and joining them with the ledger's events, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.arrivals import join, locate, measure, spread
from tests.oracle import arrivals as oracle
from tests.support.examples import examples

pytestmark = pytest.mark.unit

FAR = oracle.FAR
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


producer = st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 7))


@examples(200)
@given(
    st.lists(st.tuples(st.integers(-2, 4), st.integers(-1, 41) | st.just(2**63 - 1)), max_size=30),
    st.lists(producer, max_size=4),
    st.integers(0, 6),
)
def test_places_equal_the_reference(events: Any, producers: Any, bits: int) -> None:
    who, sequences = columns(events, "<i8", "<i8")
    last, bases, starts = columns(producers, "<i8", "<i8", "<i4")
    buckets, places = np.empty(len(who), np.int64), np.empty(len(who), np.int32)

    known = locate(who, sequences, last, bases, starts, bits, buckets, places)

    tables = last.tolist(), bases.tolist(), starts.tolist()
    expected = oracle.locate(who.tolist(), sequences.tolist(), *tables, bits)
    assert list(zip(buckets.tolist(), places.tolist(), strict=True)) == expected
    assert known == sum(bucket >= 0 for bucket, _ in expected)


row = st.tuples(
    st.integers(-1, 5), st.integers(0, 99), st.integers(0, 2**64 - 1), st.integers(0, 2**62),
    st.integers(0, 2**31) | st.just(FAR),
)  # fmt: skip


@examples(200)
@given(st.lists(row, max_size=40), st.integers(0, 5), st.integers(0, 3))
def test_sorted_columns_equal_the_reference(rows: Any, low: int, shift: int) -> None:
    rows = [(bucket if bucket < 0 else bucket + low, *rest) for bucket, *rest in rows]
    given_columns = columns(rows, "<i8", "<i4", "<u8", "<i8", "<i8")
    buckets, *three, received = given_columns
    sizes, first, last = np.zeros(6, np.int64), np.full(6, FAR), np.zeros(6, np.int64)

    measure(buckets, received, low, sizes, first, last)

    lists = [column.tolist() for column in given_columns]
    expected = oracle.measure(lists[0], lists[-1])
    found = zip(sizes.tolist(), first.tolist(), last.tolist(), strict=True)
    assert {low + i: numbers for i, numbers in enumerate(found) if numbers[0]} == expected

    first[first == FAR] = 0
    edges = np.cumsum(sizes) - sizes
    n = int(sizes.sum())
    filled = [np.empty(n, kind) for kind in ("<i4", "<u8", "<i8", "<u4")]
    spread(buckets, *three, received, low, edges, first, np.full(6, shift, np.int32), *filled)

    base = {low + i: time for i, time in enumerate(first.tolist())}
    assert [x.tolist() for x in filled] == oracle.spread(lists[0], lists[1:4], lists[4], base, shift)
    assert edges.tolist() == np.cumsum(sizes).tolist()


def test_bucket_out_of_range_is_refused() -> None:
    one, none = np.ones(1, np.int64), np.zeros(1, np.int64)
    for bucket in (0, 2):
        buckets = np.array([bucket])
        with pytest.raises(ValueError, match=f"{bucket} is not one of 1 from 1"):
            measure(buckets, none, 1, none.copy(), none.copy(), none.copy())
        with pytest.raises(ValueError, match=f"no room for {bucket}"):
            spread(
                buckets, np.zeros(1, np.int32), np.zeros(1, np.uint64), none, none, 1, none.copy(), none,
                np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.uint64), none.copy(),
                np.zeros(1, np.uint32),
            )  # fmt: skip
    with pytest.raises(ValueError, match="no room for 1"):
        spread(
            one, np.zeros(1, np.int32), np.zeros(1, np.uint64), none, none, 1, one.copy(), none,
            np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.uint64), none.copy(),
            np.zeros(1, np.uint32),
        )  # fmt: skip
    with pytest.raises(ValueError, match="bits"):
        locate(none, none, one, none, np.zeros(1, np.int32), 31, none.copy(), np.zeros(1, np.int32))
