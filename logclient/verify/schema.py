"""Keys of rows, numbers of words, and the schema of faults."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

# Keys of shuffled rows. Keys from 0 on are buckets. Negative keys are facts, then unlisted ids, then events
# without an id.
FACT = -1
UNLISTED_SHARES = 64
UNLISTED = -2  # down to UNLISTED - UNLISTED_SHARES + 1
ANONYMOUS = UNLISTED - UNLISTED_SHARES  # down to ANONYMOUS - plan.anonymous_shares + 1

# Substitutes for the number of a producer, for ids that belong to none of the ledgers: an id of ours from an
# unknown producer, an id that an application chose, and a body without any id.
UNKNOWN_PRODUCER, APPLICATION_ID, WITHOUT_ID = -1, -2, -3

# The position of an arrival: one number that rises with the order of arrival at a listener. In the high bits
# is the number of its unit, for which each segment of the listener before counts as many units as its size
# allows. In the low bits is the event in the unit.
EVENT_BITS = 23
NEVER = np.iinfo(np.int64).max
NO_TIME = (1 << 32) - 1  # instead of a time, in 32 bits

# The listener of a row, as one number: in the low bits the Logjam device whose publications it received, and
# above them the listener. Each pair has a separate order. Devices beyond the first DEVICES of a batch are
# counted as OTHERS, and their order is not judged: peers choose these numbers, and each one costs rows.
DEVICE_BITS = 33
DEVICE = (1 << DEVICE_BITS) - 1
DEVICES, OTHERS = 64, 1 << 32

VIOLATIONS = pa.schema(
    [
        ("kind", pa.string()),
        ("producer", pa.string()),  # 20 hex digits; null for an id that is not ours
        ("first", pa.int64()),  # sequences, inclusive
        ("last", pa.int64()),
        ("copies", pa.int64()),  # how many copies of each arrived
        ("sent", pa.bool_()),  # listed in a ledger
        ("other", pa.string()),  # without an id of ours: 32 hex of the own id's hash, or 16 of the body's
    ]
)
"""The Parquet files of faults. See ``docs/verify.md``."""

# Each sequence has exactly one state.
STATES = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending")
OK, LOST, MISSING, RECOVERED, CORRUPTED, DROPPED_STATE, UNEXPECTED, UNKNOWN, PENDING = range(9)
EXCLUDED = 9  # not selected, or compared by hash and counted there


class Example(NamedTuple):
    """One event with a fault, and its place in the capture."""

    producer: str | None
    sequence: int | None
    other: str | None  # for an id that is not ours, as in `VIOLATIONS`
    listener: int = -1  # -1: it never arrived
    position: int = 0
    copies: int = 0
    sent: bool = True
    hash: int | None = None  # of the body that was sent; None: it is not listed
    created_us: int | None = None
