"""Lumberjack, versions 1 and 2: the writer's core, and the reader for whoever plays the server.

States of a connection, as the writer sees it::

    state     in flight      encode            ack 0     ack 1..n of the oldest   any other ack
    IDLE      0              -> WAITING        alive     broken                   broken
    WAITING   1 .. limit-1   -> WAITING, FULL  alive     k < n: same state        broken
                                                         n: -> WAITING, IDLE
    FULL      limit          refused           alive     n: -> WAITING, IDLE      broken
    BROKEN    as it was      refused           ignored   ignored                  ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the windows are forgotten
    limit: `inflight`, or 1 for the next 10 windows after a break with more than one out

A window is ``W n`` and n frames, numbered from 1 in each window; compressed, all of them in exactly
one ``C`` frame. Acks of different windows look alike, so they are matched first in, first out, and
after any doubt the connection is dropped.

With ``strict_spec`` frames are written as the protocol's text has them, which no released server reads.
The one ``W`` of a connection says how many frames may be without an ack: `window` times `inflight`.
Numbers run on over the connection, and after 4,294,967,295 comes 1, as an ack of 0 stays a keep-alive. An
ack is for all frames up to its number: one that was acknowledged before is ignored, any other that is not
awaited is BROKEN.

=========  ==================================================  ====================
           first carrier of the id                             second carrier
=========  ==================================================  ====================
version 2  ``"@metadata": {"_id": ...}``                       ``"event.id"``
version 1  the pair ``event.id`` (either flag leaves it out)
=========  ==================================================  ====================

All the work is done in ``logclient._ext.lumberjack``; this class gives it the words of
``delivery.contract``, and the compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logclient._ext.lumberjack import Hot
from logclient.config import options_of
from logclient.delivery.compiled import CompiledCore
from logclient.errors import ConfigError
from logclient.lumberjack.frames import Probe, frames

__all__ = ["Lumberjack", "Options", "Probe", "frames", "pair_block"]


class Options(NamedTuple):
    """What a Lumberjack core can be told."""

    version: int = 2
    """2: 'json' frames; 1: 'data' frames, always in a compressed frame."""
    window: int = 2048
    """Events in a window, at most; 1 to 10,000."""
    inflight: int = 2
    """Windows without an ack at one time."""
    compression: int = 3
    """0: none (version 1: an envelope of stored blocks); 1 to 9: zlib's levels."""
    identity: str = "id"
    """``id``: splice the id into each event; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are what the protocol carries."""
    silence: float = 30.0
    """Seconds without a byte from the reader before it counts as dead."""
    window_bytes: int = 1 << 20
    """Bytes in a window before compression, at most; a longer event travels alone."""
    frames: str = ""
    """``json`` or ``data``; empty: as the version has it, and ``json`` with `strict_spec`."""
    strict_spec: bool = False
    """Write the literal form, in version 1."""


class Lumberjack(CompiledCore):
    """The writer's side of one connection at a time. See ``delivery.contract.Core``.

    When ``begin_close`` has been asked for, never shut one direction down before ``CloseWanted``: both real
    servers drop the acks then.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        if options.identity not in ("id", "own", "none"):
            raise ConfigError(f"identity: id, own or none, not {options.identity!r}")
        self.options = options
        try:
            hot = Hot(
                producer,
                version=options.version,
                window=options.window,
                window_bytes=options.window_bytes,
                inflight=options.inflight,
                compression=options.compression,
                identity=options.identity != "none",
                check=options.check,
                silence=options.silence,
                frames=options.frames,
                strict_spec=options.strict_spec,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(hot)

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Lumberjack:
        """From whatever has the options as attributes (a ``logclient.config.Config``)."""
        return cls(options_of(Options, config), producer)

    @property
    def windows(self) -> int:
        """Windows in flight."""
        return int(self._hot.windows)

    @property
    def careful(self) -> int:
        """Windows that still go one at a time."""
        return int(self._hot.careful)

    @property
    def awaited(self) -> int:
        return self.windows

    def silent(self) -> str:
        waiting = self.windows
        return (
            f"silence: no byte from the reader in time, with {waiting} window{'s'[: waiting != 1]} in flight"
        )

    def call(self, kind: str, payload: Any) -> int:
        raise ValueError(f"call: Lumberjack has no {kind!r}")


def pair_block(fields: Mapping[str, str]) -> bytes:
    """Version 1's body: u32 count, then u32 length and bytes of each key and value (UTF-8)."""
    parts = [len(fields).to_bytes(4, "big")]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)
