"""plog: the options of a core."""

from __future__ import annotations

from typing import NamedTuple

from logclient.plog.config import PlogConfig
from logclient.plog.messages import kafka_tags

__all__ = ["Options"]


class Options(NamedTuple):
    """Options of a plog core."""

    mtu: int | None = None
    """Bytes of an IP packet at most; None: the MTU of the path, if the transport knows it."""
    unboxed: bool = False
    """Send messages without a box where the format allows it: shorter, but without number and checksum."""
    tags: tuple[str, ...] = ()
    """Tags of each message that has none of its own; see `kafka_tags`."""
    max_message: int = 262_144
    """Bytes of a message at most: the default limit of servers."""
    pace: float = 10_000.0
    """Packets per second; 0: unlimited."""
    burst: int | None = None
    """Packets sent at once after a pause, also to catch up when the sender slept. None: 6.4 ms of the pace,
    at least 64."""
    pace_bytes: float = 64 << 20
    """Bytes per second; 0: unlimited."""
    identity: str = "id"
    """``id``: insert the id into each event document; ``none``: leave events unchanged."""
    check: bool = True
    """Check that raw bytes are one JSON object in UTF-8 before the id is inserted. Without the check, text in
    braces counts as one."""
    reply_timeout: float = 2.0
    """Seconds that a command waits for its reply."""
    feedback: str = "none"
    """``none``: the given pace after a slow start; ``auto``: by the server's receive queue where the
    transport can see it, else by STAT; ``stat``: by STAT. See ``pacing``."""
    batch_bytes: int = 1 << 20
    """Bytes of messages encoded at once, at most; a larger message is encoded alone."""

    @classmethod
    def from_config(cls, config: PlogConfig) -> Options:
        """Take the options of a URL."""
        return cls(
            mtu=config.mtu,
            unboxed=config.unboxed,
            tags=(*kafka_tags(config.topic), *(tag for tag in config.tags.split(",") if tag)),
            max_message=config.max_event_bytes,
            pace=config.pace,
            burst=config.burst,
            pace_bytes=config.pace_bytes,
            identity=config.identity,
            check=config.check,
            feedback=config.feedback,
        )
