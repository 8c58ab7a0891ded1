"""Sorting arrivals into buckets, joining them with the ledger's events, judging: as the reference does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient._ext.arrivals import (
    copy_ranges,
    count_arrived,
    count_latencies,
    join,
    judge,
    judge_order,
    locate,
    measure,
    paint,
    spread,
)
from logclient.verify import overview
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
)
@example([(0, 1, 5, oracle.NO_TIME), (0, 2, 4, 0)], [(1, True, 0, FAR)] * 5, 7)
def test_joins_equal_the_reference(arrivals: Any, events: Any, received_us: int) -> None:
    given_columns = columns(arrivals, "<i4", "<u8", "<i8", "<u4")
    hashes, listed, copies, received = columns(events, "<u8", "u1", "<i4", "<i8")
    first = np.where(received == FAR, FAR, received // 2)
    before = np.flatnonzero(first != FAR)
    wrong, touched = np.empty(len(arrivals), np.int32), np.empty(5, np.int32)
    touched[: len(before)] = before
    ours = [copies.copy(), first.copy(), received.copy()]
    theirs = [copies.tolist(), first.tolist(), received.tolist()]

    n, differing, several = join(
        *given_columns, received_us, hashes, listed, *ours, wrong, touched, len(before)
    )

    expected = oracle.join(
        *(x.tolist() for x in given_columns), received_us, hashes.tolist(), listed.tolist(), *theirs
    )
    assert (n, wrong[:differing].tolist(), touched[len(before) : several].tolist()) == expected
    assert touched[: len(before)].tolist() == before.tolist()
    assert [x.tolist() for x in ours] == theirs


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda x: x.update(places=np.array([3], np.int32)), "places"),
        (lambda x: x.update(places=np.array([-1], np.int32)), "places"),
        (lambda x: x.update(hashes=np.zeros(2, np.uint64)), "hashes"),
        (lambda x: x.update(wrong=np.zeros(0, np.int32)), "wrong"),
        (lambda x: x.update(copies=np.zeros(2, np.int32)), "copies"),
        (lambda x: x.update(touched=np.zeros(2, np.int32)), "touched"),
        (lambda x: x.update(several=4), "several: 4"),
        (lambda x: x.update(several=-1), "several: -1"),
        (lambda x: x.update(several=3, first=np.full(3, FAR)), "touched: it has no room"),
    ],
)
def test_columns_that_do_not_fit_are_refused(change: Callable[[dict[str, Any]], None], named: str) -> None:
    arguments = {
        "places": np.zeros(1, np.int32), "hashes": np.zeros(1, np.uint64), "positions": np.zeros(1, np.int64),
        "after": np.zeros(1, np.uint32), "received_us": 0, "expected": np.zeros(3, np.uint64),
        "listed": np.ones(3, np.uint8), "copies": np.zeros(3, np.int32), "first": np.zeros(3, np.int64),
        "received": np.zeros(3, np.int64), "wrong": np.zeros(1, np.int32),
        "touched": np.zeros(3, np.int32), "several": 0,
    }  # fmt: skip
    change(arguments)
    with pytest.raises(ValueError, match=named):
        join(**arguments)


producer = st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 9), st.integers(0, 7))


@examples(200)
@given(
    st.lists(st.tuples(st.integers(-2, 4), st.integers(-1, 41) | st.just(2**63 - 1)), max_size=30),
    st.lists(producer, max_size=4),
    st.integers(0, 6),
)
@example([(p, s) for p in (-1, 0, 1, 2) for s in (0, 1, 7, 8, 9, 40, 41)], [(0, 40, 3, 2), (1, 8, 9, 0)], 3)
def test_places_equal_the_reference(events: Any, producers: Any, bits: int) -> None:
    who, sequences = columns(events, "<i8", "<i8")
    before, size, bases, starts = columns(producers, "<i8", "<i8", "<i8", "<i4")
    buckets, places = np.empty(len(who), np.int64), np.empty(len(who), np.int32)

    known = locate(who, sequences, before, size, bases, starts, bits, buckets, places)

    tables = before.tolist(), size.tolist(), bases.tolist(), starts.tolist()
    expected = oracle.locate(who.tolist(), sequences.tolist(), *tables, bits)
    assert list(zip(buckets.tolist(), places.tolist(), strict=True)) == expected
    assert known == sum(bucket >= 0 for bucket, _ in expected)


row = st.tuples(
    st.integers(-1, 5), st.integers(0, 99), st.integers(0, 2**64 - 1), st.integers(0, 2**62),
    st.integers(0, 2**31) | st.just(FAR),
)  # fmt: skip


@examples(200)
@given(st.lists(row, max_size=40), st.integers(0, 5))
def test_sorted_columns_equal_the_reference(rows: Any, low: int) -> None:
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
    spread(buckets, *three, received, low, edges, first, *filled)

    base = {low + i: time for i, time in enumerate(first.tolist())}
    assert [x.tolist() for x in filled] == oracle.spread(lists[0], lists[1:4], lists[4], base)
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
                np.zeros(1, np.int32), np.zeros(1, np.uint64), none.copy(),
                np.zeros(1, np.uint32),
            )  # fmt: skip
    with pytest.raises(ValueError, match="no room for 1"):
        spread(
            one, np.zeros(1, np.int32), np.zeros(1, np.uint64), none, none, 1, one.copy(), none,
            np.zeros(1, np.int32), np.zeros(1, np.uint64), none.copy(),
            np.zeros(1, np.uint32),
        )  # fmt: skip
    with pytest.raises(ValueError, match="bits"):
        locate(none, none, none, one, none, np.zeros(1, np.int32), 31, none.copy(), np.zeros(1, np.int32))


span = st.tuples(st.integers(0, 29), st.integers(0, 29)).map(sorted)


@pytest.mark.slow
@examples(300)
@given(st.lists(st.tuples(span, st.integers(1, 3)), max_size=20), st.booleans())
@example([([0, 9], 1), ([2, 3], 1), ([4, 12], 1), ([1, 1], 2), ([0, 5], 1)], False)
def test_painted_ranges_equal_the_reference(rows: Any, ascending: bool) -> None:
    if ascending:
        rows.sort(key=lambda row: (row[1], row[0]))
    ranges, values = [row[0] for row in rows], [row[1] for row in rows]
    ours, theirs = np.zeros(30, np.uint8), [0] * 30

    paint(np.array(ranges, np.int64).reshape(-1, 2), np.array(values, np.uint8), ours)

    oracle.paint(ranges, values, theirs)
    assert ours.tolist() == theirs


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 40), span), max_size=9))
def test_copied_ranges_equal_the_reference(rows: Any) -> None:
    at, ranges = [row[0] for row in rows], [row[1] for row in rows]
    ours, theirs = np.zeros(30, np.int64), [0] * 30

    copy_ranges(np.arange(70), np.array(at, np.int64), np.array(ranges, np.int64).reshape(-1, 2), ours)

    oracle.copy_ranges([*range(70)], at, ranges, theirs)
    assert ours.tolist() == theirs


def owners_of(events: list[Any]) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Return where the events of each owner begin, and the owner of each event, the first field."""
    owners = sorted(event[0] for event in events)
    return np.searchsorted(np.array(owners, np.int64), np.arange(4)), owners


owner = st.integers(0, 3)
judgement = st.integers(0, 255)


@examples(300)
@given(
    st.lists(st.tuples(owner, st.integers(0, 3), st.integers(0, 2**13 - 1), judgement), max_size=30),
    st.lists(st.tuples(st.integers(0, 2**13 - 1), st.integers(-5, 35)), min_size=4, max_size=4),
    st.lists(st.builds(int.__or__, st.integers(0, 10), st.sampled_from([0, 16, 48, 64])), min_size=40),
)
def test_judgements_equal_the_reference(events: Any, producers: Any, some_rules: list[int]) -> None:
    starts, owners = owners_of(events)
    _, copies, marks, judgements = columns(events, "<i8", "<i4", "<u2", "u1")
    before = judgements.tolist()
    common, newer = columns(producers, "<u2", "<i8")
    rules = np.resize(np.array(some_rules, np.uint8), 1 << 14)
    n = len(events)
    counts = np.zeros((4, 11), np.int64)
    odd, repeated = np.empty(n, np.int64), np.empty(n, np.int64)

    sizes = judge(copies, marks, starts, common, newer, rules, judgements, counts, odd, repeated)

    tables = common.tolist(), newer.tolist(), rules.tolist(), before
    expected = oracle.judge(copies.tolist(), marks.tolist(), owners, *tables, states=11)
    found = judgements, counts, odd[: sizes[0]], repeated[: sizes[1]]
    assert tuple(column.tolist() for column in found) == expected


arrived = st.tuples(owner, st.integers(0, 40), judgement, st.booleans(), st.sampled_from([-1, 3, 4]))


@examples(300)
@given(st.lists(arrived, max_size=30), st.integers(0, 41) | st.just(FAR))
@example([(0, 1, 64, True, -1), (0, 1, 64, True, -1), (0, 3, 64, True, -1), (1, 2, 64, True, -1)], FAR)
@example([(0, 1, 64, True, -1), (0, 5, 64, True, -1), (0, 7, 0, True, -1), (0, 6, 64, False, -1)], 5)
def test_order_equals_the_reference(events: Any, limit: int) -> None:
    starts, owners = owners_of(events)
    _, first, judgements, there, at = columns(events, "<i8", "<i8", "u1", "?", "<i4")
    touched = np.flatnonzero(there).astype(np.int32)
    lists = touched.tolist(), first.tolist(), judgements.tolist(), owners
    counts = np.zeros(4, np.int64)
    arrivals = at.astype(np.int64) * 100
    positions, listeners = np.full(len(first), 77), at.copy()
    theirs = [[a, 77, x] for a, x in zip(arrivals.tolist(), at.tolist(), strict=True)]
    counted = [0] * 4

    count_arrived(touched, first, judgements, starts, 300, 3, counts, arrivals, positions, listeners)

    oracle.count_arrived(*lists, 300, 3, counted, theirs)
    assert counts.tolist() == counted
    columns_ = (column.tolist() for column in (arrivals, positions, listeners))
    assert [[*row] for row in zip(*columns_, strict=True)] == theirs

    late, lowest, last = judge_order(touched, first, judgements, starts, limit)

    expected = oracle.judge_order(*lists, limit)
    assert (late, lowest, last) == (len(expected[0]), *expected[1:])
    assert judgements.tolist() == [
        x | (oracle.LATE if i in expected[0] else 0) for i, x in enumerate(lists[2])
    ]


BEGIN = 1_700_000_000_000_000
timed = st.tuples(
    owner,
    st.integers(0, 999),
    st.integers(0, 2000) | st.integers(0, 2**60) | st.integers(1000, 2**60).map(lambda x: 999 - x)
    | st.just(FAR),
    judgement,
)  # fmt: skip


@examples(300)
@given(st.lists(timed, max_size=30), st.integers(1, 1000))
@example([(0, 5, 5 + took, 32) for took in (0, 1, 2, 3, 63, 64, 65, 2**20 - 1, 2**20)], 10)
def test_latencies_equal_the_reference(events: Any, width: int) -> None:
    starts, owners = owners_of(events)
    _, created, received, judgements = columns(events, "<i8", "<i8", "<i8", "u1")
    n, steps = len(events), 999 // width + 1
    words, latency = np.zeros((3, steps, 13), np.int64), np.zeros((3, steps, 4096), np.int64)
    families = np.array([1, 0, 1, 2], np.int32)
    extremes = np.full((4, 3), -1)
    some: list[Any] = [np.empty(n, kind) for kind in ("<i4", "<i4", "<i8")]
    times = BEGIN + created, np.where(received == FAR, FAR, BEGIN + received)

    used = count_latencies(
        *times, judgements, starts, families, BEGIN, width, words, latency, extremes, *some
    )

    lists = created.tolist(), received.tolist(), judgements.tolist()
    by_step, by_cell, expected = oracle.count_latencies(*lists, owners, width)
    for family in range(3):
        mine = [i for i in range(4) if families[i] == family]
        for step in range(steps):
            assert words[family, step, 0] == sum(by_step.get((i, step), 0) for i in mine)
        sums = np.zeros((steps, 4096), np.int64)
        for (i, step, cell), count in by_cell.items():
            sums[step, cell] += count * (i in mine)
        assert (latency[family] == sums).all()
    assert not words[:, :, 1:].any()
    assert extremes.tolist() == [expected.get(i, [0, 0, 0]) for i in range(4)]
    found = [tuple(row) for row in zip(*(column[:used].tolist() for column in some), strict=True)]
    of_owners: dict[tuple[int, int], int] = {}
    for (i, _, cell), count in by_cell.items():
        of_owners[i, cell] = of_owners.get((i, cell), 0) + count
    assert sorted(found) == sorted((*key, count) for key, count in of_owners.items())


def test_cells_are_those_of_the_histogram() -> None:
    """The middle of a cell lies at most half a cell, 0.8 %, beside its latencies."""
    for took in (1, 2, 3, 100, 2**30 - 1, 2**30, 10**15):
        assert overview.cell_value(oracle.cell(took)) == pytest.approx(took, rel=0.008)


def three() -> dict[str, Any]:
    """Return arguments for three events of one owner."""
    return {"starts": np.zeros(1, np.int64), "judgements": np.full(3, 255, np.uint8)}


def for_paint() -> dict[str, Any]:
    return {"ranges": np.array([[0, 2]]), "values": np.ones(1, np.uint8), "out": np.zeros(3, np.uint8)}


def for_copy() -> dict[str, Any]:
    columns = {"source": np.zeros(9, np.int64), "out": np.zeros(3, np.int64)}
    return columns | {"at": np.array([6]), "ranges": np.array([[0, 2]])}


def for_judge() -> dict[str, Any]:
    return three() | {
        "copies": np.ones(3, np.int32), "marks": np.zeros(3, np.uint16), "common": np.zeros(1, np.uint16),
        "newer": np.zeros(1, np.int64), "rules": np.zeros(1 << 14, np.uint8),
        "counts": np.zeros((1, 11), np.int64), "odd": np.zeros(3, np.int64),
        "repeated": np.zeros(3, np.int64),
    }  # fmt: skip


def for_order() -> dict[str, Any]:
    return three() | {"touched": np.arange(3, dtype=np.int32), "first": np.zeros(3, np.int64), "limit": FAR}


def for_counts() -> dict[str, Any]:
    tables = {"counts": np.zeros(1, np.int64), "arrivals": np.zeros(3, np.int64)}
    tables |= {"positions": np.zeros(3, np.int64), "listeners": np.zeros(3, np.int32)}
    order = for_order()
    del order["limit"]
    return order | tables | {"arrival": 3, "listener": 3}


def for_latencies() -> dict[str, Any]:
    return three() | {
        "created": np.full(3, 50), "received": np.full(3, 60), "families": np.zeros(1, np.int32),
        "start_us": 50, "width_us": 1, "words": np.zeros((1, 1, 13), np.int64),
        "latency": np.zeros((1, 1, 4096), np.int64), "extremes": np.zeros((1, 3), np.int64),
        "owners": np.zeros(3, np.int32), "cells": np.zeros(3, np.int32), "counts": np.zeros(3, np.int64),
    }  # fmt: skip


@pytest.mark.parametrize(
    "function, fitting, change, named",
    [
        (paint, for_paint, {"values": np.ones(2, np.uint8)}, "values"),
        (paint, for_paint, {"ranges": np.array([[0, 3]])}, "0 to 3"),
        (paint, for_paint, {"ranges": np.array([[-1, 2]])}, "-1 to 2"),
        (paint, for_paint, {"ranges": np.array([[2, 1]])}, "2 to 1"),
        (paint, for_paint, {"ranges": np.array([[0, 1, 2]])}, "ranges"),
        (copy_ranges, for_copy, {"at": np.array([6, 6])}, "at"),
        (copy_ranges, for_copy, {"at": np.array([7])}, "7 is too near"),
        (copy_ranges, for_copy, {"at": np.array([-1])}, "-1"),
        (copy_ranges, for_copy, {"ranges": np.array([[1, 3]])}, "1 to 3"),
        (judge, for_judge, {"marks": np.zeros(2, np.uint16)}, "marks"),
        (judge, for_judge, {"odd": np.zeros(2, np.int64)}, "odd"),
        (judge, for_judge, {"newer": np.zeros(2, np.int64)}, "newer"),
        (judge, for_judge, {"rules": np.zeros(4095, np.uint8)}, "rules"),
        (judge, for_judge, {"rules": np.full(1 << 14, 11, np.uint8)}, "11 is no state below 11"),
        (judge, for_judge, {"starts": np.array([1])}, "starts"),
        (judge, for_judge, {"starts": np.array([4])}, "4 is not from 0 to 3"),
        (judge_order, for_order, {"first": np.zeros(2, np.int64)}, "judgements"),
        (judge_order, for_order, {"starts": np.array([0, 2, 1])}, "1 is not from 2 to 3"),
        (judge_order, for_order, {"starts": np.zeros(0, np.int64)}, "starts"),
        (judge_order, for_order, {"touched": np.array([0, 3], np.int32)}, "touched: 3 is not below 3"),
        (judge_order, for_order, {"touched": np.array([1, 1], np.int32)}, "touched: 1 is not below 1"),
        (judge_order, for_order, {"touched": np.array([-1], np.int32)}, "touched: -1"),
        (count_arrived, for_counts, {"first": np.zeros(2, np.int64)}, "judgements"),
        (count_arrived, for_counts, {"positions": np.zeros(2, np.int64)}, "positions"),
        (count_arrived, for_counts, {"listeners": np.zeros(2, np.int32)}, "listeners"),
        (count_arrived, for_counts, {"counts": np.zeros(2, np.int64)}, "counts"),
        (count_arrived, for_counts, {"touched": np.array([0, 3], np.int32)}, "touched: 3 is not above 0"),
        (count_arrived, for_counts, {"touched": np.array([1, 1], np.int32)}, "touched: 1 is not above 1"),
        (count_latencies, for_latencies, {"received": np.zeros(2, np.int64)}, "received"),
        (count_latencies, for_latencies, {"cells": np.zeros(2, np.int32)}, "cells"),
        (count_latencies, for_latencies, {"families": np.ones(1, np.int32)}, "families"),
        (count_latencies, for_latencies, {"extremes": np.zeros((1, 2), np.int64)}, "extremes"),
        (count_latencies, for_latencies, {"latency": np.zeros((1, 1, 4095), np.int64)}, "latency"),
        (count_latencies, for_latencies, {"width_us": 0}, "width_us"),
        (count_latencies, for_latencies, {"start_us": 51}, "created: 50"),
        (count_latencies, for_latencies, {"start_us": 49}, "created: 50"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    function: Callable[..., Any], fitting: Callable[[], dict[str, Any]], change: dict[str, Any], named: str
) -> None:
    arguments = fitting()
    function(**arguments)
    with pytest.raises(ValueError, match=named):
        function(**{**fitting(), **change})
