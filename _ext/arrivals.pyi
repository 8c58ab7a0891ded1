"""Arrivals of a verification, joined with the ledger's events; see ``logclient/verify/buckets.py``."""

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
