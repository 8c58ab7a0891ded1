"""Arrivals of a verification: sorted into buckets, and joined with the ledger's events.

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
