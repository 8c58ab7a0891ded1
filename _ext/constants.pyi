"""Numbers that compiled code and Python share, and their names.

The numbers are defined in ``constants.pxd``; the names stand in ``constants.pyx`` in their order.
"""

from typing import Final

PENDING: Final[int]
INFLIGHT: Final[int]
ACKED: Final[int]
HANDED: Final[int]
FAILED: Final[int]
DROPPED: Final[int]
WITHHELD: Final[int]
STORED: Final[int]
SETTLED: Final[int]

R_NONE: Final[int]
R_OVERFLOW: Final[int]
R_CLOSED: Final[int]
R_TOO_LARGE: Final[int]
R_UNENCODABLE: Final[int]
R_NOT_JSON: Final[int]
R_REJECTED: Final[int]
R_MAX_AGE: Final[int]
R_FORKED: Final[int]
R_FATAL: Final[int]
R_POISON: Final[int]
R_DENIED: Final[int]
R_UNKNOWN_TYPE: Final[int]
R_ERROR: Final[int]
R_DOUBT: Final[int]
R_SPOOL_FULL: Final[int]
R_PURGED: Final[int]
R_COUNT: Final[int]

FILTER_BEFORE_SEND: Final[int]
FILTER_SAMPLE: Final[int]
FILTER_RATE_LIMIT: Final[int]
FILTER_DEDUPE: Final[int]
FILTER_COUNT: Final[int]

K_DOCUMENT: Final[int]
K_RAW: Final[int]
K_BYTES: Final[int]
K_TOMB: Final[int]
K_MASK: Final[int]
K_ID1_TAKEN: Final[int]
K_ID2_TAKEN: Final[int]
K_METADATA_OPEN: Final[int]
K_NESTED: Final[int]
K_EVENT_OPEN: Final[int]
K_TOPIC_SHIFT: Final[int]

PUT_DROPPED: Final[int]
PUT_FORKED: Final[int]
PUT_FULL: Final[int]
PUT_MEMORY: Final[int]
PUT_UNOPENED: Final[int]

STOP_MEMORY: Final[int]
STOP_PROTOCOL: Final[int]
STOP_FATAL: Final[int]

END_UNTIL: Final[int]
END_REPORT: Final[int]
END_TARGET: Final[int]
END_STOPPED: Final[int]
END_CLOSED: Final[int]
END_ERROR: Final[int]
END_PROTOCOL: Final[int]
END_SILENCE: Final[int]
END_STALLED: Final[int]
END_MEMORY: Final[int]

UDP_ONE: Final[int]
UDP_MANY: Final[int]
UDP_RUNS: Final[int]

FRAME_MORE: Final[int]
"""In the head of a ZeroMQ frame: more frames of the same message follow."""

STATUSES: Final[tuple[str, ...]]
"""Names of the statuses of an event, by number."""
REASONS: Final[tuple[str, ...]]
FILTERS: Final[tuple[str, ...]]
"""Names of the reasons of an outcome, by number; the first is empty."""
ENDS: Final[tuple[str, ...]]
"""Names of the ends of a pump's run, by number."""
UDP_METHODS: Final[tuple[str, ...]]
"""Names of the methods to send datagrams, by number."""
