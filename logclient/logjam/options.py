"""Logjam: the options of a core."""

from __future__ import annotations

from typing import NamedTuple

from logclient.logjam.config import LogjamConfig

__all__ = ["Options"]


class Options(NamedTuple):
    """The options of a Logjam core."""

    app_env: str
    """``<app>-<env>``, as in ``shop-production``."""
    topic: str = ""
    """The topic of events without another one; empty: ``logs.<app>.<env>``."""
    mode: str = "request"
    """``request``: each message is answered; ``async``: none is."""
    push: bool = False
    """The socket is a PUSH socket: ``async`` only, and nothing ever comes back."""
    inflight: int = 256
    """Bound on the requests without a reply."""
    compression: str = "auto"
    """``auto`` (see ``core.AUTO``), ``none``, ``zlib``, ``snappy``, ``lz4``."""
    compress_over: int = 1024
    """Compress bodies of at least this many bytes, if that makes them smaller."""
    identity: str = "id"
    """``id`` or ``own``: insert an id into each event; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are one JSON object in UTF-8."""
    silence: float = 30.0
    """Seconds without a reply after which the server counts as dead."""
    batch_bytes: int = 1 << 20
    """Bodies encoded at once, at most; a larger one is encoded alone."""

    @classmethod
    def from_config(cls, config: LogjamConfig) -> Options:
        """Take the options of a URL. Over ``logjam+push`` the mode is ``async`` unless it was given."""
        push = config.scheme == "logjam+push"
        return cls(
            app_env=config.path[1:],
            topic=config.topic,
            mode="async" if push and "mode" not in config.given else config.mode,
            push=push,
            inflight=config.inflight,
            compression=str(config.compression),
            compress_over=config.compress_over,
            identity=config.identity,
            check=config.check,
            silence=config.silence,
        )
