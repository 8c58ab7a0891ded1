"""Numbers that compiled code and Python share, and their names.

The numbers are defined in ``constants.pxd``; the names stand here in their order.
"""

STATUSES = ("pending", "inflight", "acked", "handed", "failed", "dropped", "withheld", "stored")
REASONS = (
    "", "overflow", "closed", "too_large", "unencodable", "not_json", "rejected", "max_age", "forked",
    "fatal", "poison", "denied", "unknown_type", "error", "doubt",
    "spool_full", "purged",
)
FILTERS = ("before_send", "sample", "rate_limit", "dedupe")
ENDS = (
    "until", "report", "target", "stopped", "closed", "error", "protocol", "silence", "stalled", "memory",
)
UDP_METHODS = ("send", "mmsg", "gso")

# A macro of C, because it is too large for an enum.
globals()["FRAME_MORE"] = FRAME_MORE
