"""Joining 65,536 arrivals with the events of a bucket; run by `make bench ROW=functions`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logclient._ext.arrivals import join

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


@pytest.mark.benchmark(group="join 65,536 arrivals")
@pytest.mark.parametrize("way", ["ours", "numpy"])
def test_join(benchmark: Any, way: str) -> None:
    given, wrong = columns(), np.empty(N, np.int32)
    if way == "numpy":
        assert benchmark(with_numpy, *given) == (N, 0)
    else:
        found = benchmark(join, PLACES, HASHES[:N], POSITIONS, AFTER, 7, 0, HASHES, LISTED, *given, wrong)
        assert found == (N, 0)
