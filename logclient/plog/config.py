"""Options of plog."""

from __future__ import annotations

from typing import ClassVar

from logclient.config.common import Config
from logclient.config.option import Option, option
from logclient.config.readers import boolean, choice, integer, optional, size, text

MAX_DATAGRAM = 65_507
"""Bytes of the largest datagram over IPv4, and more than any event's tags."""

_DATAGRAMS = frozenset(("mtu", "unboxed", "topic", "tags", "pace", "pace_bytes", "feedback"))
"""Options without a meaning for lines over TCP."""


class PlogConfig(Config):
    """The configuration of a plog client."""

    title = "plog"
    burst: ClassVar[tuple[float, float]] = (64.0, 0.0064)
    """What is sent at once after a pause: this many packets, or those of so many seconds at the pace."""

    max_event_bytes: int = option(
        size(64, (1 << 31) - 1),
        "256KiB",
        "Largest size of an encoded event with its id, without tags; a longer one fails as too_large. "
        "Servers accept more only if their defrag.max_size is raised.",
    )
    event_type: str = option(
        text, "log", "Type in event documents; a server's pipeline may accept only certain types."
    )
    mtu: int | None = option(
        optional(integer(576, 65_535)),
        "none",
        "Largest IP packet in bytes; longer events are sent in fragments.",
        shown="the path's",
    )
    unboxed: bool = option(
        boolean,
        "false",
        "Send events without a header where possible; the server then neither notices lost events nor "
        "checks a hash.",
    )
    topic: str = option(text, "", "Kafka topic of each event (tag kt:).", shown="the server's")
    tags: str = option(text, "", "Further tags of each event, separated by commas.")
    pace: int = option(integer(0, 1_000_000_000), "10000", "Packets per second; 0: no limit.")
    pace_bytes: int = option(size(0, 1 << 50), "64MiB", "Bytes per second; 0: no limit.")
    feedback: str = option(
        choice("none", "auto", "stat"),
        "none",
        "auto: the pace follows the server's receive queue on the same machine, else its counters (STAT); "
        "stat: its counters, down to one packet a second; none: a fixed pace after a slow start.",
    )

    @property
    def queued_event_bytes(self) -> int:
        """With the tags, which are in the body until the event is encoded."""
        return self.max_event_bytes + 2 + MAX_DATAGRAM

    @classmethod
    def refusal(cls, option: Option, scheme: str) -> str:
        if scheme == "plog+tcp" and option.name in _DATAGRAMS:
            return "only for datagrams, which plog+tcp does not send"
        return super().refusal(option, scheme)
