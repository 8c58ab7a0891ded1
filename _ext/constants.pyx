"""Numbers that compiled code and Python share, and their names.

The numbers are defined in ``constants.pxd``; the names stand here in their order.
"""

STATUSES = ("pending", "inflight", "acked", "handed", "failed", "dropped", "withheld", "stored")
"""Names of the statuses of an event, by number."""
REASONS = (
    "", "overflow", "closed", "too_large", "unencodable", "not_json", "rejected", "max_age", "forked",
    "fatal", "poison", "denied", "unknown_type", "error", "doubt", "spool_full", "purged",
)
"""Names of the reasons of an outcome, by number; the first is empty."""
FILTERS = ("before_send", "sample", "rate_limit", "dedupe", "hold_below")
"""Names of the filters that hold events back, by number."""
ENDS = ("until", "report", "target", "stopped", "closed", "error", "protocol", "silence", "stalled", "memory")
"""Names of the ends of a pump's run, by number."""
UDP_METHODS = ("send", "mmsg", "gso")
"""Names of the methods to send datagrams, by number."""

# A macro of C, because it is too large for an enum.
globals()["FRAME_MORE"] = FRAME_MORE
"""In the head of a ZeroMQ frame: more frames of the same message follow."""
