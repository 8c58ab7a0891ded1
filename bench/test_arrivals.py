"""Passes over the arrivals and events of a bucket, against NumPy; run by `make bench ROW=functions`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logclient._ext.arrivals import (
    count_arrived,
    count_latencies,
    join,
    judge,
    judge_order,
    locate,
    measure,
    spread,
)
from logclient.verify import rules

N = 65536
SIZE = 1 << 18
FAR = np.iinfo(np.int64).max
PLACES = np.arange(N, dtype=np.int32)
HASHES = np.arange(SIZE, dtype=np.uint64)
POSITIONS = np.arange(N, dtype=np.int64)
AFTER = np.arange(N, dtype=np.uint32)
LISTED = np.ones(SIZE, np.uint8)


def columns() -> list[Any]:
    return [np.zeros(SIZE, np.int32), np.full(SIZE, FAR), np.full(SIZE, FAR)]


def with_numpy(copies: Any, first: Any, received: Any) -> tuple[int, int]:
    """Join any arrivals, also those that came twice."""
    np.add.at(copies, PLACES, 1)
    np.minimum.at(first, PLACES, POSITIONS)
    np.minimum.at(received, PLACES, 7 + AFTER.astype(np.int64))
    wrong = np.flatnonzero(HASHES[PLACES] != HASHES[:N])
    return int(LISTED[PLACES].sum()), len(wrong)


def choose(benchmark: Any, way: str, *ways: Any) -> Any:
    return benchmark(ways[WAYS.index(way)])


WAYS = ["ours", "numpy"]
both = pytest.mark.parametrize("way", WAYS)


@pytest.mark.benchmark(group="join 65,536 arrivals")
@both
def test_join(benchmark: Any, way: str) -> None:
    given, wrong, touched = columns(), np.empty(N, np.int32), np.empty(SIZE, np.int32)
    if way == "numpy":
        assert benchmark(with_numpy, *given) == (N, 0)
    else:
        arrivals = PLACES, HASHES[:N], POSITIONS, AFTER, 7, HASHES, LISTED
        found = benchmark(join, *arrivals, *given, wrong, touched, 0)
        assert found[:2] == (N, 0)


# Sorting 65,536 arrivals of 100 producers, which log in turn, into buckets of one producer each.

PRODUCERS = 100
WHO = np.arange(N) % PRODUCERS
SEQUENCES = np.arange(N) // PRODUCERS + 1
BEFORE, LAST = np.zeros(PRODUCERS, np.int64), np.full(PRODUCERS, SIZE)
BASES = np.arange(PRODUCERS)
ROOM = np.bincount(WHO)
STARTS = np.cumsum(ROOM) - ROOM
RECEIVED = 1_700_000_000_000_000 + np.arange(N)


@pytest.mark.benchmark(group="locate 65,536 arrivals")
@both
def test_locate(benchmark: Any, way: str) -> None:
    starts = np.zeros(PRODUCERS, np.int32)

    def ours() -> Any:
        buckets, places = np.empty(N, np.int64), np.empty(N, np.int32)
        locate(WHO, SEQUENCES, BEFORE, LAST, BASES, starts, 18, buckets, places)
        return buckets, places

    def numpy() -> Any:
        at = SEQUENCES - BEFORE[WHO]
        known = (at >= 1) & (LAST[WHO] >= at)
        buckets = np.where(known, BASES[WHO] + ((at - 1) >> 18), -1)
        return buckets, np.where(known, ((at - 1) & (SIZE - 1)) + starts[WHO], 0)

    found = choose(benchmark, way, ours, numpy)
    assert (found[0] == WHO).all() and (found[1] == SEQUENCES - 1).all()


@pytest.mark.benchmark(group="measure 65,536 arrivals")
@both
def test_measure(benchmark: Any, way: str) -> None:
    def ours() -> Any:
        sizes, last = np.zeros(PRODUCERS, np.int64), np.zeros(PRODUCERS, np.int64)
        first = np.full(PRODUCERS, FAR)
        measure(WHO, RECEIVED, 0, sizes, first, last)
        return sizes, first

    def numpy() -> Any:
        first, last = np.full(PRODUCERS, FAR), np.zeros(PRODUCERS, np.int64)
        np.minimum.at(first, WHO, RECEIVED)
        np.maximum.at(last, WHO, RECEIVED)
        return np.bincount(WHO, minlength=PRODUCERS), first

    found = choose(benchmark, way, ours, numpy)
    assert (found[0] == ROOM).all() and (found[1] == RECEIVED[:PRODUCERS]).all()


@pytest.mark.benchmark(group="sort 65,536 arrivals into 100 buckets")
@both
def test_spread(benchmark: Any, way: str) -> None:
    places = np.arange(N, dtype=np.int32)
    base = RECEIVED[:PRODUCERS].copy()

    def ours() -> Any:
        out: list[Any] = [np.empty(N, kind) for kind in ("<i4", "<u8", "<i8", "<u4")]
        spread(WHO, places, HASHES[:N], POSITIONS, RECEIVED, 0, STARTS.copy(), base, *out)
        return out

    def numpy() -> Any:
        order = np.argsort(WHO.astype(np.uint16), kind="stable")
        after = (RECEIVED[order] - base[WHO[order]]).astype(np.uint32)
        return places[order], HASHES[order], POSITIONS[order], after

    found = choose(benchmark, way, ours, numpy)
    assert found[2][:3].tolist() == [0, 100, 200] and found[3][:3].tolist() == [0, 100, 200]


# Judging the 262,144 events of a bucket, of which one in 128 arrived late.

ONE = np.zeros(1, np.int64)
FIRST = np.arange(SIZE) * 4
FIRST[::128] += 4000
MARKS = np.full(SIZE, rules.LISTED + 3, np.uint16)
JUDGED = np.full(SIZE, rules.COUNTED | rules.TIMED | rules.ORDERED, np.uint8)
CREATED = 1_700_000_000_000_000 + FIRST
TOOK = 1000 + np.arange(SIZE) % 997


@pytest.mark.benchmark(group="judge 262,144 events")
@both
def test_judge(benchmark: Any, way: str) -> None:
    copies = np.ones(SIZE, np.int32)

    def ours() -> Any:
        judgements, counts = np.zeros(SIZE, np.uint8), np.zeros((1, 11), np.int64)
        odd, repeated = np.empty(SIZE, np.int64), np.empty(SIZE, np.int64)
        none = np.zeros(1, np.uint16)
        judge(copies, MARKS, ONE, none, np.array([SIZE]), rules.RULES, judgements, counts, odd, repeated)
        return judgements, counts

    def numpy() -> Any:
        judgements = rules.RULES[MARKS | np.where(copies > 0, rules.SEEN, 0)]
        state = judgements & rules.STATE
        np.flatnonzero(state), np.flatnonzero((copies > 1) & (judgements & rules.COUNTED > 0))
        return judgements, np.bincount(state, minlength=11)[None, :]

    found = choose(benchmark, way, ours, numpy)
    assert (found[0] == JUDGED).all() and found[1][0, 0] == SIZE


TOUCHED = np.arange(SIZE, dtype=np.int32)


@pytest.mark.benchmark(group="order of 262,144 events")
@both
def test_judge_order(benchmark: Any, way: str) -> None:
    def ours() -> Any:
        return judge_order(TOUCHED, FIRST, JUDGED.copy(), ONE, FAR)

    def numpy() -> Any:
        which = np.flatnonzero((JUDGED & rules.ORDERED > 0) & (FIRST != FAR))
        arrived = FIRST[which]
        earliest = np.minimum.accumulate(arrived[::-1])[::-1]
        late = np.count_nonzero(arrived[:-1] >= earliest[1:])
        return late, arrived.min(), arrived[-1]

    found = choose(benchmark, way, ours, numpy)
    assert found == (SIZE // 128, 4, 4 * SIZE - 4)


@pytest.mark.benchmark(group="count 262,144 events that arrived")
@both
def test_count_arrived(benchmark: Any, way: str) -> None:
    def tables() -> list[Any]:
        return [np.full(SIZE, -1), np.empty(SIZE, np.int64), np.full(SIZE, -1, np.int32)]

    def ours() -> Any:
        counts = np.zeros(1, np.int64)
        count_arrived(TOUCHED, FIRST, JUDGED, ONE, 1, 1, counts, *tables())
        return counts[0]

    def numpy() -> Any:
        arrivals, positions, listeners = tables()
        new = arrivals[TOUCHED] < 0
        arrivals[TOUCHED[new]], positions[TOUCHED[new]] = 1, FIRST[TOUCHED[new]]
        other = TOUCHED[listeners[TOUCHED] != 1]
        listeners[other] = 1
        return np.count_nonzero(JUDGED[other] & rules.COUNTED)

    assert choose(benchmark, way, ours, numpy) == SIZE


@pytest.mark.benchmark(group="latencies of 262,144 events")
@both
def test_count_latencies(benchmark: Any, way: str) -> None:
    steps, begin = 240, int(CREATED.min())
    received = CREATED + TOOK
    some: list[Any] = [np.empty(SIZE, kind) for kind in ("<i4", "<i4", "<i8")]

    def ours() -> Any:
        words, latency = np.zeros((1, steps, 13), np.int64), np.zeros((1, steps, 4096), np.int64)
        extremes = np.empty((1, 3), np.int64)
        families = np.zeros(1, np.int32)
        tables = words, latency, extremes
        count_latencies(CREATED, received, JUDGED, ONE, families, begin, 5000, *tables, *some)
        return latency[0], extremes[0, 0]

    def numpy() -> Any:
        took = received - CREATED
        cells = np.maximum((took.astype(np.float64).view(np.int64) >> 46) - (1023 << 6) + 1, 0)
        keys = (CREATED - begin) // 5000 * 4096 + cells
        return np.bincount(keys, minlength=steps * 4096).reshape(steps, 4096), took.max()

    found = choose(benchmark, way, ours, numpy)
    assert found[0].sum() == SIZE and found[1] == 1996
