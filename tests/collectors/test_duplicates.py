"""The count of duplicates equals that of a plain counter of ids."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.testing.duplicates import DuplicateCounter, decode_units, event_ids

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


@pytest.mark.slow
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
    ids = [one for one in ids if one & 0xFFFFFFFFFFFF]
    counter, seen = DuplicateCounter(), Counter(ids)
    for one in ids:
        high, low, sequence = one >> 64, one >> 48 & 0xFFFF, one & 0xFFFFFFFFFFFF
        counter.add(Columns(array("Q", [high]), array("H", [low]), array("Q", [sequence])))
    assert counter.copies == len(ids) - len(seen)
    assert counter.duplicates == sum(times > 1 for times in seen.values())


class Echo:
    """A decoder of units that are the hexadecimal digits of an id."""

    @staticmethod
    def decode(data, offsets, lengths):
        assert list(lengths) == [32] * len(offsets)
        units = [data[at : at + 32].decode() for at in offsets]
        return Columns(
            array("Q", [int(one[:16], 16) for one in units]),
            array("H", [int(one[16:20], 16) for one in units]),
            array("Q", [int(one[20:], 16) for one in units]),
        )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_ids_of_separate_units_are_in_order(count):
    units = [f"{at:016x}{9:04x}{at + 1:012x}".encode() for at in range(count)]
    assert event_ids(decode_units(Echo, units)) == [unit.decode() for unit in units]
    assert event_ids(decode_units(Echo, [b"0" * 32])) == [""]
