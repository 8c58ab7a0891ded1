"""An answer of a plog server to STAT."""

import json
from typing import Any

STAT: dict[str, Any] = {
    "version": "1.0", "uptime": 5000, "udp_simple_messages": 1, "udp_invalid_version": 2,
    "v0_invalid_type": 3, "v0_invalid_multipart_header": 4, "unknown_command": 5, "v0_commands": 6,
    "exceptions": 7,
    "unhandled_objects": 8, "holes_from_dead_port": 9, "holes_from_new_message": 10,
    "v0_fragments": [11, 1, *[0] * 15], "v0_invalid_checksum": [0] * 17,
    "v0_invalid_fragments": [[0] * (i + 1) for i in range(17)],
    "dropped_fragments": [[0] * (i + 1) for i in range(17)],
    "defragmenter": {"evictions": 1, "hits": 2, "misses": 3},
    "handlers": [{"name": "kafka", "seen_messages": 12, "failed_to_send": 1, "x_y": 0.5}],
}  # fmt: skip


def stat_of(**changes: Any) -> bytes:
    """Make the answer with some fields changed."""
    return json.dumps({**STAT, **changes}).encode()
