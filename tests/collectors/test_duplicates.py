"""The count of duplicates equals that of a plain counter of ids."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.testing.duplicates import DuplicateCounter

pytestmark = pytest.mark.unit


class Columns(NamedTuple):
    """The ids of a unit's events, as a decoder returns them; sequence 0: none."""

    prefix_high: array[int]
    prefix_low: array[int]
    sequence: array[int]


# Two producers that differ in 16 bits only; sequences on both sides of a page's border.
RUNS = st.tuples(st.sampled_from([1, 2]), st.integers(1000, 2100), st.integers(1, 2500))


def columns(ids: list[tuple[int, int]]) -> Columns:
    return Columns(
        array("Q", [7] * len(ids)), array("H", [low for low, _ in ids]), array("Q", [at for _, at in ids])
    )


@given(st.lists(RUNS, max_size=6), st.randoms(use_true_random=False))
def test_counts_of_units_equal_a_plain_counter(runs, random):
    counter, seen = DuplicateCounter(), Counter()
    for low, first, count in runs:
        ids = [(low, sequence) for sequence in range(first, first + count)]
        if random.random() < 0.3:
            random.shuffle(ids)
            del ids[100:]
            ids.append((low, 0))
        counter.add(columns(ids))
        seen.update(one for one in ids if one[1])
    assert counter.copies == sum(times - 1 for times in seen.values())
    assert counter.duplicates == sum(times > 1 for times in seen.values())


@given(st.lists(st.integers(0, 3000) | st.integers(0, (1 << 128) - 1), max_size=200))
def test_counts_of_single_ids_equal_a_plain_counter(ids):
    counter, seen = DuplicateCounter(), Counter(ids)
    for one in ids:
        counter.add_id(f"{one:032x}")
    assert counter.copies == len(ids) - len(seen)
    assert counter.duplicates == sum(times > 1 for times in seen.values())


def test_ids_of_units_and_single_ids_are_the_same():
    counter = DuplicateCounter()
    counter.add(columns([(2, 5)]))
    counter.add_id(f"{7:016x}{2:04x}{5:012x}")
    assert (counter.duplicates, counter.copies) == (1, 1)
