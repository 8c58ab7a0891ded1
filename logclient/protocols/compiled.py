"""What is the same for every core with a compiled half: the words of ``protocols.core`` around a ``Hot``.

A protocol adds its options, how many of its units are awaited, and the words for silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from logclient._ext.constants import REASONS, STATUSES, STOP_MEMORY
from logclient.errors import ConfigError, ProtocolError
from logclient.protocols.core import Alive, Batch, CloseWanted, CoreEvent, Fatal, Outcome, Progress, Wire


class CapsuleBatch(Protocol):
    @property
    def capsule(self) -> object: ...


def has_ids(identity: str) -> bool:
    """Return whether events get ids, for a value of the option ``identity``.

    Raises:
        ConfigError: it is none of its values.
    """
    if identity not in ("id", "own", "none"):
        raise ConfigError(f"identity: id, own or none, not {identity!r}")
    return identity != "none"


class CompiledCore:
    """See ``protocols.core.Core``; `hot` is the protocol's ``Hot``."""

    def __init__(self, hot: Any) -> None:
        self._hot = hot
        self._events: list[CoreEvent] = []
        self._told = False  # that the connection is over
        self._closing = False

    @property
    def hot(self) -> object:
        """The compiled half for the pump: a capsule "logclient.hot"."""
        return self._hot.capsule

    @property
    def compressor(self) -> str:
        """What compresses: ``none``, ``isal 1``, ``zlib 3``, ..."""
        return str(self._hot.compressor)

    @property
    def awaited(self) -> int:
        """Units of the protocol without a word yet."""
        raise NotImplementedError

    def silent(self) -> str:
        """The words for a peer that says nothing for too long."""
        raise NotImplementedError

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
        events, size = (0, 0) if self._closing else self._hot.credit(now)
        return events, size

    def encode(self, batch: Batch | CapsuleBatch, events: int, now: float) -> int:
        """Encode events of `batch` (an ``_ext.flight.Batch``); failures are marked in it.

        Raises:
            MemoryError: and nothing was encoded.
        """
        done = int(self._hot.encode(batch.capsule, events, now))  # type: ignore[union-attr]
        if done == STOP_MEMORY:
            raise MemoryError("no room for what was encoded")
        return done

    def data_to_send(self) -> list[Wire]:
        return [Wire([buffer]) for buffer in self._hot.buffers()]

    def sent(self, rest: int = 0) -> None:
        self._hot.sent()

    def receive_data(self, data: bytes, now: float) -> None:
        if self._hot.receive(data, now) == STOP_MEMORY:
            raise MemoryError("no room for an outcome")

    def receive_eof(self) -> None:
        """Nothing to learn from it: what is in flight is pending again once the connection is lost."""

    def events_received(self) -> Iterator[CoreEvent]:
        outcomes, alive, progress = self._hot.outcomes()
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, last, fate, reason in outcomes:
            ranges.setdefault((fate, reason), []).append((first, last))
        for (fate, reason), found in ranges.items():
            yield Outcome(STATUSES[fate], REASONS[reason], found)
        if progress:
            yield Progress()
        elif alive:
            yield Alive()
        yield from self._replies()
        events, self._events = self._events, []
        yield from events
        if not self._told and self._hot.error is not None:
            self._told = True
            yield Fatal(ProtocolError(self._hot.error))
        if self._closing and not self._told and self.awaited == 0:
            self._told = True
            yield CloseWanted()

    def _replies(self) -> Iterator[CoreEvent]:
        """Answers to ``call``."""
        return iter(())

    def next_timeout(self, now: float) -> float | None:
        """When the peer's silence becomes too long; None when nothing is awaited."""
        return self._hot.deadline() or None

    def handle_timeout(self, now: float) -> None:
        deadline = self._hot.deadline()
        if deadline and now >= deadline and not self._told:
            self._told = True
            self._events.append(Fatal(TimeoutError(self.silent())))

    def begin_close(self, now: float) -> None:
        """Encode no more; ``CloseWanted`` follows when nothing is awaited any more."""
        self._closing = True
