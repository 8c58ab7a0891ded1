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

=========  ==================================================  ====================
           first carrier of the id                             second carrier
=========  ==================================================  ====================
version 2  ``"@metadata": {"_id": ...}``                       ``"event.id"``
version 1  the pair ``event.id`` (either flag leaves it out)
=========  ==================================================  ====================

All the work is done in ``logclient._ext.lumberjack``; this class gives it the words of
``protocols.core``, and the compiled pump drives the same object through ``hot``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from logclient._ext.lumberjack import MAX_WINDOW, Hot, Reader, Window, decode_acks, encode_ack
from logclient.errors import ConfigError, ProtocolError
from logclient.protocols.core import (
    Alive,
    Batch,
    CloseWanted,
    CoreEvent,
    Fatal,
    Outcome,
    Progress,
    Wire,
)

__all__ = [
    "MAX_WINDOW",
    "Lumberjack",
    "Options",
    "Reader",
    "Window",
    "decode_acks",
    "encode_ack",
    "pair_block",
]

STOP_MEMORY = -1
STATUS = {2: "acked", 4: "failed"}
NO_REASON = ""


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


class _CapsuleBatch(Protocol):
    @property
    def capsule(self) -> object: ...


class Lumberjack:
    """The writer's side of one connection at a time. See ``protocols.core.Core``.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        if options.identity not in ("id", "none"):
            raise ConfigError(f"identity: id or none, not {options.identity!r}")
        self.options = options
        try:
            self._hot = Hot(
                producer,
                version=options.version,
                window=options.window,
                window_bytes=options.window_bytes,
                inflight=options.inflight,
                compression=options.compression,
                identity=options.identity == "id",
                check=options.check,
                silence=options.silence,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._events: list[CoreEvent] = []
        self._told = False  # that the connection is broken
        self._closing = False

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Lumberjack:
        """From whatever has the options as attributes (a ``logclient.config.Config``)."""
        return cls(Options(*(getattr(config, name) for name in Options._fields)), producer)

    @property
    def hot(self) -> object:
        """The compiled half for the pump: a capsule "logclient.hot"."""
        return self._hot.capsule

    @property
    def compressor(self) -> str:
        """What compresses: ``none``, ``isal 1``, ``zlib 3``, ..."""
        return self._hot.compressor

    @property
    def windows(self) -> int:
        """Windows in flight."""
        return self._hot.windows

    @property
    def careful(self) -> int:
        """Windows that still go one at a time."""
        return self._hot.careful

    def connected(self, now: float, random: Callable[[], float] | None = None) -> None:
        self._reset()
        self._hot.connected(now)

    def connection_lost(self) -> None:
        """Forget what was in flight: it has no fate, and is to be sent again."""
        self._reset()
        self._hot.connection_lost()

    def _reset(self) -> None:
        self._hot.outcomes()
        self._events.clear()
        self._told = self._closing = False

    def credit(self, now: float) -> tuple[int, int]:
        return (0, 0) if self._closing else self._hot.credit(now)

    def encode(self, batch: Batch | _CapsuleBatch, events: int, now: float) -> int:
        """Frame a window of `batch` (an ``_ext.flight.Batch``); failures are marked in it.

        Raises:
            MemoryError: and nothing was framed.
        """
        done = self._hot.encode(batch.capsule, events, now)  # type: ignore[union-attr]
        if done == STOP_MEMORY:
            raise MemoryError("no room for a window")
        return done

    def call(self, kind: str, payload: Any) -> int:
        raise ValueError(f"call: Lumberjack has no {kind!r}")

    def data_to_send(self) -> list[Wire]:
        return [Wire([buffer]) for buffer in self._hot.buffers()]

    def sent(self) -> None:
        self._hot.sent()

    def receive_data(self, data: bytes, now: float) -> None:
        if self._hot.receive(data, now) == STOP_MEMORY:
            raise MemoryError("no room for the outcome of an ack")

    def receive_eof(self) -> None:
        """Nothing to learn from it: what is in flight is pending again once the connection is lost."""

    def events_received(self) -> Iterator[CoreEvent]:
        outcomes, alive, progress = self._hot.outcomes()
        ranges: dict[int, list[tuple[int, int]]] = {}
        for first, last, fate, _ in outcomes:
            ranges.setdefault(fate, []).append((first, last))
        for fate, found in ranges.items():
            yield Outcome(STATUS[fate], NO_REASON, found)
        if progress:
            yield Progress()
        elif alive:
            yield Alive()
        events, self._events = self._events, []
        yield from events
        if not self._told and self._hot.error is not None:
            self._told = True
            yield Fatal(ProtocolError(self._hot.error))
        if self._closing and not self._told and self._hot.windows == 0:
            self._told = True
            yield CloseWanted()

    def next_timeout(self, now: float) -> float | None:
        """When the reader's silence becomes too long; None when nothing is awaited."""
        return self._hot.deadline() or None

    def handle_timeout(self, now: float) -> None:
        deadline = self._hot.deadline()
        if deadline and now >= deadline and not self._told:
            self._told = True
            waiting = self._hot.windows
            self._events.append(
                Fatal(
                    TimeoutError(
                        f"silence: no byte from the reader in time, with {waiting} "
                        f"window{'s'[: waiting != 1]} in flight"
                    )
                )
            )

    def begin_close(self, now: float) -> None:
        """Encode no more; ``CloseWanted`` follows when every window is acknowledged.

        Never shut one direction down first: both real servers drop the acks then.
        """
        self._closing = True


def pair_block(fields: Mapping[str, str]) -> bytes:
    """Version 1's body: u32 count, then u32 length and bytes of each key and value (UTF-8)."""
    parts = [len(fields).to_bytes(4, "big")]
    for text in (text for pair in fields.items() for text in pair):
        data = text.encode("utf-8", "replace")
        parts += [len(data).to_bytes(4, "big"), data]
    return b"".join(parts)
