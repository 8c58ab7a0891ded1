"""The core of a protocol with a codec: the methods of ``delivery.contract.Core`` around a ``Codec``.

A protocol adds its options, the number of its units that are awaited, and the description of silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logclient._ext.constants import PENDING, REASONS, STATUSES, STOP_MEMORY
from logclient.delivery.contract import (
    Alive,
    Batch,
    CloseWanted,
    Core,
    CoreEvent,
    Fatal,
    Progress,
    Retry,
    Settled,
    Wire,
)
from logclient.errors import ConfigError, ProtocolError


def has_ids(identity: str) -> bool:
    """Return whether events get ids, for a value of the option ``identity``.

    Raises:
        ConfigError: another value.
    """
    if identity not in ("id", "own", "none"):
        raise ConfigError(f"identity: id, own or none, not {identity!r}")
    return identity != "none"


class CompiledCore(Core):
    """A core around the ``Codec`` of a protocol."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._events: list[CoreEvent] = []
        self._ended = False  # `Fatal` or `CloseWanted` was reported
        self._closing = False

    @property
    def codec(self) -> object:
        """The codec for a compiled pump: a capsule "logclient.codec"."""
        return self._codec.capsule

    @property
    def compressor(self) -> str:
        """The compressor in use: ``none``, ``isal 1``, ``zlib 3``, ..."""
        return str(self._codec.compressor)

    @property
    def awaited(self) -> int:
        """Units of the protocol without an answer yet."""
        raise NotImplementedError

    def describe_silence(self) -> str:
        """Describe a silence that has lasted too long."""
        raise NotImplementedError

    def connected(self, now: float, random: Callable[[], float] | None = None) -> None:
        """Begin a new connection, on which nothing is in flight."""
        self._reset()
        self._codec.connected(now)

    def connection_lost(self) -> None:
        """Forget everything in flight: it has no outcome and is to be sent again."""
        self._reset()
        self._codec.connection_lost()

    def _reset(self) -> None:
        self._codec.outcomes()
        self._events.clear()
        self._ended = self._closing = False

    def credit(self, now: float) -> tuple[int, int]:
        """Return how many (events, bytes) may be encoded now."""
        events, size = (0, 0) if self._closing else self._codec.credit(now)
        return events, size

    def encode(self, batch: Batch, events: int, now: float) -> int:
        """Encode events of `batch`; failures are marked in it."""
        done = int(self._codec.encode(batch.capsule, events, now))
        if done == STOP_MEMORY:
            raise MemoryError("out of memory for encoded events")
        return done

    def data_to_send(self) -> list[Wire]:
        """Return the framed bytes; valid until ``sent()``."""
        return [Wire([buffer]) for buffer in self._codec.buffers()]

    def sent(self, rest: int = 0) -> None:
        """Reuse the output buffers."""
        self._codec.sent()

    def receive_data(self, data: bytes, now: float) -> None:
        """Take bytes from the peer."""
        if self._codec.receive(data, now) == STOP_MEMORY:
            raise MemoryError("out of memory for an outcome")

    def events_received(self) -> Iterator[CoreEvent]:
        """Return the events that received bytes and timeouts caused, and forget them."""
        outcomes, alive, progress = self._codec.outcomes()
        yield from self._settled(outcomes)
        if progress:
            yield Progress()
        elif alive:
            yield Alive()
        yield from self._replies()
        events, self._events = self._events, []
        yield from events
        if not self._ended and self._codec.error is not None:
            self._ended = True
            yield Fatal(ProtocolError(self._codec.error))
        if self._closing and not self._ended and self.awaited == 0:
            self._ended = True
            yield CloseWanted()

    def _settled(self, outcomes: Iterable[tuple[int, int, int, int]]) -> Iterator[CoreEvent]:
        """Return outcomes of the codec as events."""
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, last, status, reason in outcomes:
            ranges.setdefault((status, reason), []).append((first, last))
        for (status, reason), found in ranges.items():
            if status == PENDING:
                yield Retry(found, "undone with another")
            else:
                yield Settled(STATUSES[status], REASONS[reason], found)

    def _replies(self) -> Iterator[CoreEvent]:
        """Return the answers to ``call``, and forget them."""
        return iter(())

    def next_timeout(self, now: float) -> float | None:
        """Return when silence becomes too long; None: nothing is awaited."""
        return self._codec.deadline() or None

    def handle_timeout(self, now: float) -> None:
        """Report a silence that has lasted too long as `Fatal`."""
        deadline = self._codec.deadline()
        if deadline and now >= deadline and not self._ended:
            self._ended = True
            self._events.append(Fatal(TimeoutError(self.describe_silence())))

    def begin_close(self, now: float) -> None:
        """Encode no more; `CloseWanted` follows when nothing is awaited."""
        self._closing = True
