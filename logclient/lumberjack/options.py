"""Lumberjack: the options of a core."""

from __future__ import annotations

from typing import NamedTuple

from logclient.lumberjack.config import LumberjackConfig

__all__ = ["Options"]


class Options(NamedTuple):
    """The options of a Lumberjack core."""

    version: int = 2
    """2: 'json' frames; 1: 'data' frames, always in a compressed frame."""
    window: int = 2048
    """Bound on the events in a window; 1 to 10,000."""
    inflight: int = 2
    """Bound on the unacknowledged windows; with `adaptive`, where it begins."""
    compression: int = 3
    """0: none (version 1: stored blocks in an envelope); 1 to 9: zlib's levels."""
    identity: str = "id"
    """``id`` or ``own``: insert an id into each event; ``none``: do not."""
    check: bool = True
    """Check that the protocol can carry raw bodies."""
    silence: float = 30.0
    """Seconds without a byte from the reader after which it counts as dead."""
    window_bytes: int = 1 << 20
    """Bound on the bytes in a window before compression; a longer event travels alone."""
    frames: str = ""
    """``json`` or ``data``; empty: the version's own, or ``json`` with `strict_spec`."""
    strict_spec: bool = False
    """Write the literal form, in version 1."""
    adaptive: bool = False
    """Let the bound on unacknowledged windows follow the round trip, up to 16."""
    inflight_bytes: int = 1 << 25
    """Bound on the bytes of unacknowledged events, beyond `inflight` windows; with `adaptive`."""

    @classmethod
    def from_config(cls, config: LumberjackConfig) -> Options:
        """Take the options of a URL."""
        return cls(
            version=config.version,
            window=config.window,
            inflight=config.inflight,
            compression=int(config.compression),
            identity=config.identity,
            check=config.check,
            silence=config.silence,
            window_bytes=config.window_bytes,
            frames=config.frames,
            strict_spec=config.strict_spec,
            adaptive="inflight" not in config.given and not config.strict_spec,
            inflight_bytes=config.max_bytes // 2,
        )
