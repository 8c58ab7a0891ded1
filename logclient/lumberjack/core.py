"""Lumberjack, versions 1 and 2: the writer without I/O.

States of a connection::

    state     in flight      encode            ack 0     ack 1..n of the oldest   any other ack
    IDLE      0              -> WAITING        alive     broken                   broken
    WAITING   1 .. limit-1   -> WAITING, FULL  alive     k < n: same state        broken
                                                         n: -> WAITING, IDLE
    FULL      limit          refused           alive     n: -> WAITING, IDLE      broken
    BROKEN    as it was      refused           ignored   ignored                  ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the windows are forgotten
    limit: `inflight`, or 1 for the next 10 windows after a break with more than one out

A window is ``W n`` and n frames, numbered from 1 in each window. With compression all of them are in one
``C`` frame. Acks of different windows look alike, so they are matched first in, first out, and after any
doubt the connection is dropped.

With ``strict_spec`` frames are written as the protocol text describes them, which no released server reads.
The one ``W`` of a connection announces how many frames may be unacknowledged: `window` times `inflight`.
Frames are numbered over the whole connection, and 1 follows 4,294,967,295, because an ack of 0 is always a
keep-alive. An ack covers all frames up to its number. A number that was acknowledged before is ignored; any
other that is not in flight leads to BROKEN.

=========  ==================================================  ====================
           first field with the id                             second field
=========  ==================================================  ====================
version 2  ``"@metadata": {"_id": ...}``                       ``"event.id"``
version 1  the pair ``event.id`` (either flag leaves it out)
=========  ==================================================  ====================

``logclient._ext.lumberjack`` does the work. `Lumberjack` gives it the interface of ``protocols.core``; a
compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logclient._ext.lumberjack import Hot
from logclient.lumberjack.frames import Probe, frames
from logclient.protocols.compiled import CompiledCore, has_ids

__all__ = ["Lumberjack", "Options", "Probe", "frames", "pair_block"]


class Options(NamedTuple):
    """The options of a Lumberjack core."""

    version: int = 2
    """2: 'json' frames; 1: 'data' frames, always in a compressed frame."""
    window: int = 2048
    """Bound on the events in a window; 1 to 10,000."""
    inflight: int = 2
    """Bound on the unacknowledged windows."""
    compression: int = 3
    """0: none (version 1: stored blocks in an envelope); 1 to 9: zlib's levels."""
    identity: str = "id"
    """``id`` or ``own``: insert an id into each event; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are what the protocol carries."""
    silence: float = 30.0
    """Seconds without a byte from the reader after which it counts as dead."""
    window_bytes: int = 1 << 20
    """Bound on the bytes in a window before compression; a longer event travels alone."""
    frames: str = ""
    """``json`` or ``data``; empty: the version's own, or ``json`` with `strict_spec`."""
    strict_spec: bool = False
    """Write the literal form, in version 1."""


class Lumberjack(CompiledCore):
    """The writer's side of one connection at a time. See ``protocols.core.Core``.

    After ``begin_close``, do not shut down one direction before ``CloseWanted``: both real servers drop the
    acknowledgements then.

    Args:
        options: see `Options`; their ranges are checked where users write them (``logclient.config``).
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: `identity` is none of its values.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        self.options = options
        hot = Hot(
            producer,
            version=options.version,
            window=options.window,
            window_bytes=options.window_bytes,
            inflight=options.inflight,
            compression=options.compression,
            identity=has_ids(options.identity),
            check=options.check,
            silence=options.silence,
            frames=options.frames,
            strict_spec=options.strict_spec,
        )
        super().__init__(hot)

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Lumberjack:
        """Make a core from an object with the options as attributes (a ``logclient.config.Config``)."""
        return cls(Options(*(getattr(config, name) for name in Options._fields)), producer)

    @property
    def windows(self) -> int:
        """The number of windows in flight."""
        return int(self._hot.windows)

    @property
    def careful(self) -> int:
        """How many more windows are sent one at a time."""
        return int(self._hot.careful)

    @property
    def awaited(self) -> int:
        """See ``CompiledCore.awaited``."""
        return self.windows

    def silent(self) -> str:
        """See ``CompiledCore.silent``."""
        waiting = self.windows
        return (
            f"silence: no byte from the reader in time, with {waiting} window{'s'[: waiting != 1]} in flight"
        )

    def call(self, kind: str, payload: Any) -> int:
        """Refuse the question: Lumberjack has none.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"call: Lumberjack has no {kind!r}")


def pair_block(fields: Mapping[str, str]) -> bytes:
    """Encode the body of version 1: u32 count, then u32 length and bytes of each key and value (UTF-8)."""
    parts = [len(fields).to_bytes(4, "big")]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)
