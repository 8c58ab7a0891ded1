"""Logux: the options of a core."""

from __future__ import annotations

from typing import NamedTuple

from logclient.config import Secret
from logclient.logux.config import LoguxConfig

__all__ = ["Options"]


class Options(NamedTuple):
    """Options of a Logux core."""

    token: Secret | str | None = None
    user: str = "false"
    """First part of the node id; ``false``: there are no users."""
    subprotocol: int | str = 1
    """0: none. A version in SemVer with `strict_spec`."""
    strict_spec: bool = False
    """Follow the protocol's text to the letter: the subprotocol is SemVer, an unknown message is answered."""
    ack: str = "processed"
    """When an action counts as acked: ``processed``, or ``synced`` (the server has received it)."""
    on_doubt: str = "new_client"
    """``new_client``: add again under a new client id; ``same``: under the same; ``drop``: failed(doubt)."""
    action_type: str = "log/add"
    inflight: int = 4
    """Syncs in flight at most: those with actions without an outcome."""
    window: int = 100
    """Actions in a sync."""
    window_bytes: int = 256 << 10
    """Bytes of bodies in a sync; a larger body travels alone."""
    identity: str = "id"
    """``id``: insert the id into each action; ``none``: leave actions unchanged."""
    check: bool = True
    """Check that raw bodies are one JSON object in UTF-8."""
    silence: float = 30.0
    """Seconds without a message, while one is awaited, after which the server counts as dead."""
    ping: float = 10.0
    """Seconds without a message in either direction after which a ping is sent."""
    processing_timeout: float = 20.0
    """Seconds without an outcome of the oldest sync, which the server has received, after which its queue
    counts as jammed."""
    state: str | None = None
    """The file of the client's state. With one, the core reports which actions it has received."""

    @classmethod
    def from_config(cls, config: LoguxConfig) -> Options:
        """Take the options of a URL, which have the same names."""
        return cls(*(getattr(config, name) for name in cls._fields))
