"""Arrivals of a verification: sorted into buckets, joined with the ledger's events, and judged.

See ``logclient/verify/gather.py`` and ``logclient/verify/buckets.py``.
"""

import numpy as np
import numpy.typing as npt

def join(
    places: npt.NDArray[np.int32],
    hashes: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    after: npt.NDArray[np.uint32],
    received_us: int,
    shift: int,
    expected: npt.NDArray[np.uint64],
    listed: npt.NDArray[np.uint8],
    copies: npt.NDArray[np.int32],
    first: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    wrong: npt.NDArray[np.int32],
) -> tuple[int, int]:
    """Join arrivals with the events of a bucket, without the GIL.

    Args:
        places: of each arrival its event.
        hashes: of their bodies.
        positions: of the arrivals.
        after: when they arrived: at ``received_us + (after << shift)``. ``2**32 - 1`` stands for an unknown
            time.
        received_us: microseconds since 1970.
        shift: from 0 to 30.
        expected: of each event the hash of its body.
        listed: whether the ledger lists the event.
        copies: how often each event arrived; counted up.
        first: the lowest position of each event; lowered.
        received: when each event arrived first; lowered.
        wrong: with room for all arrivals; filled with the indices of those whose hash differs.

    Returns:
        How many arrivals belong to listed events, and how many have another hash.

    Raises:
        ValueError: the columns differ in length, or an argument is out of range. Columns may then be changed
            in part.
    """

def locate(
    producers: npt.NDArray[np.int64],
    sequences: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    bases: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int32],
    bits: int,
    buckets: npt.NDArray[np.int64],
    places: npt.NDArray[np.int32],
) -> int:
    """Find the bucket of each event and its place there, without the GIL.

    Args:
        producers: of each event its producer; none where it is no row of the tables.
        sequences: of the events.
        last: of each producer, its highest sequence.
        bases: of each producer, the bucket of its first sequence.
        starts: of each producer, the place of that sequence.
        bits: a bucket has ``2**bits`` sequences of a producer; from 0 to 30.
        buckets: filled; -1 where the producer has no such sequence.
        places: filled.

    Returns:
        How many events have a bucket.

    Raises:
        ValueError: the columns differ in length, or `bits` is out of range.
    """

def measure(
    buckets: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    low: int,
    counts: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
) -> None:
    """Count the events of each bucket, and find the range of their times, without the GIL.

    Args:
        buckets: of each event; -1: it does not count.
        received: when each arrived; ``2**63 - 1``: unknown.
        low: the lowest bucket, which is row 0 of the tables.
        counts: of each bucket; counted up.
        first: of each bucket the first time; lowered.
        last: of each bucket the last time; raised.

    Raises:
        ValueError: the columns differ in length, or a bucket is not in the tables.
    """

def spread(
    buckets: npt.NDArray[np.int64],
    places: npt.NDArray[np.int32],
    hashes: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    low: int,
    edges: npt.NDArray[np.int64],
    base: npt.NDArray[np.int64],
    shift: npt.NDArray[np.int32],
    to_places: npt.NDArray[np.int32],
    to_hashes: npt.NDArray[np.uint64],
    to_positions: npt.NDArray[np.int64],
    after: npt.NDArray[np.uint32],
) -> None:
    """Sort columns by bucket, keeping the order in each, without the GIL.

    Args:
        buckets: of each event; -1: it is left out.
        places: a column.
        hashes: a column.
        positions: a column.
        received: when each event arrived; ``2**63 - 1``: unknown.
        low: the lowest bucket, which is row 0 of the tables.
        edges: where the rows of each bucket begin in the columns to fill; moved to their ends.
        base: of each bucket, its first time.
        shift: of each bucket, from 0 to 63.
        to_places: filled.
        to_hashes: filled.
        to_positions: filled.
        after: filled with ``(received - base) >> shift``, which must be below ``2**32 - 1``; that number
            stands for an unknown time.

    Raises:
        ValueError: the columns differ in length, or there is no room for a bucket.
    """

def paint(
    ranges: npt.NDArray[np.int64], values: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]
) -> None:
    """Set ranges of a column to a value each, without the GIL. Where ranges overlap, the last one counts.

    Args:
        ranges: rows of a first and a last index, inclusive.
        values: one for each range.
        out: changed.

    Raises:
        ValueError: `values` has another length, or a range is empty or out of bounds.
    """

def copy_ranges(
    source: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64],
    ranges: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
) -> None:
    """Copy ranges of a column into another one, without the GIL.

    Args:
        source: a column.
        at: where each range begins in it.
        ranges: rows of a first and a last index in `out`, inclusive.
        out: another column, changed.

    Raises:
        ValueError: `at` has another length, or a range is empty or out of bounds.
    """

def judge(
    copies: npt.NDArray[np.int32],
    marks: npt.NDArray[np.uint16],
    starts: npt.NDArray[np.int64],
    common: npt.NDArray[np.uint16],
    newer: npt.NDArray[np.int64],
    rules: npt.NDArray[np.uint8],
    judgements: npt.NDArray[np.uint8],
    counts: npt.NDArray[np.int64],
    odd: npt.NDArray[np.int64],
    repeated: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Judge the events of a bucket but for their order, without the GIL.

    Args:
        copies: how often each event arrived.
        marks: of each event, see ``logclient/verify/rules.py``.
        starts: where the events of each producer begin, ascending from 0.
        common: of each producer, marks of all its events.
        newer: of each producer, the place from which on its events have the mark ``NEW``.
        rules: for each combination of marks the judgement.
        judgements: of each event; filled.
        counts: of each producer a row, with the number of its events in each state; counted up. State 0 has
            no fault, and the last two states are not judged.
        odd: with room for all events; filled with the indices of those in other states.
        repeated: with room for all events; filled with the indices of counted events with several copies.

    Returns:
        How many are in `odd`, and how many in `repeated`.

    Raises:
        ValueError: the columns differ in length, `starts` is out of order, or a rule names a state that
            `counts` has no column for. Columns may then be changed in part.
    """

def find_late(
    first: npt.NDArray[np.int64], judgements: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """Find the events that arrived after a later event of their producer, without the GIL.

    Args:
        first: the position at which each event arrived; ``2**63 - 1``: it did not.
        judgements: of each event; those with ``ORDERED`` are compared, and late ones get ``LATE``.
        starts: where the events of each producer begin, ascending from 0.

    Returns:
        How many of the compared events arrived, how many of these are late, and the lowest position.

    Raises:
        ValueError: the columns differ in length, or `starts` is out of order.
    """

def find_last(
    first: npt.NDArray[np.int64],
    judgements: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> int:
    """Find the last events of a producer that arrived before all later ones, without the GIL.

    Args:
        first: the position at which each event arrived; ``2**63 - 1``: it did not.
        judgements: of each event.
        places: with room for the most events; the end is filled with their indices, ascending.
        positions: likewise, with their positions.

    Returns:
        How many there are.

    Raises:
        ValueError: the columns differ in length.
    """

def count_arrived(
    first: npt.NDArray[np.int64],
    judgements: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> None:
    """Count the events of each producer that arrived at a listener, without the GIL.

    Args:
        first: the position at which each event arrived; ``2**63 - 1``: it did not.
        judgements: of each event; those with ``COUNTED`` count.
        starts: where the events of each producer begin, ascending from 0.
        counts: of each producer; counted up.

    Raises:
        ValueError: the columns differ in length, or `starts` is out of order.
    """

def count_latencies(
    created: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    judgements: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    families: npt.NDArray[np.int32],
    start_us: int,
    width_us: int,
    words: npt.NDArray[np.int64],
    latency: npt.NDArray[np.int64],
    extremes: npt.NDArray[np.int64],
    owners: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
) -> int:
    """Count the latencies of events, over time and by producer, without the GIL.

    A latency has one of 4,096 cells: 0 for less than 1 µs, and 64 for each octave above.

    Args:
        created: when each event was made, microseconds since 1970.
        received: when it arrived; ``2**63 - 1``: unknown.
        judgements: of each event; those with ``TIMED`` count.
        starts: where the events of each producer begin, ascending from 0.
        families: of each producer, its row in `words` and `latency`.
        start_us: the begin of the first time step.
        width_us: the length of a step.
        words: by family, step and word; word 0 is counted up for each event.
        latency: by family, step and cell; counted up.
        extremes: of each producer a row of three; filled with the longest latency, the number of events that
            arrived before they were made, and the longest such time. These events have no latency.
        owners: with room for all events; filled with producers.
        cells: likewise; filled with the cells that have latencies of these.
        counts: likewise; filled with their number.

    Returns:
        How many rows `owners`, `cells` and `counts` have.

    Raises:
        ValueError: the columns differ in length, `starts` is out of order, or an event was made in none of
            the steps. Columns may then be changed in part.
    """
