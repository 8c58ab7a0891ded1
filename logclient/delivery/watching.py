"""Functions of the application that are told of outcomes and errors: `on_delivery`, `on_drop`, `on_error`.

They run on the client's thread for callbacks, one at a time: the sender never waits for them. While one runs,
what happens meanwhile is gathered for its next call, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient import threads

if TYPE_CHECKING:
    from logclient.config.common import Config
    from logclient.delivery.outcomes import CallbackThread

__all__ = ["Settlement", "Watcher"]

LARGEST = 65_536
"""Settlements, and errors, that wait for a call; later ones are left out."""

BODIES = 16 << 20
"""Bytes of bodies that wait for a call; later ones are left out."""


class Settlement(NamedTuple):
    """What became of consecutive events.

    Attributes:
        producer: the first 20 hexadecimal digits of their ids.
        first: sequence of the first of them, as ``send`` has returned it.
        last: and of the last one.
        status: ``acked``, ``handed``, ``failed``, ``dropped`` or ``stored``; see `Outcome`.
        reason: why they failed or were dropped; empty otherwise.
        body: in `on_drop`: the event, the only one of this settlement; None: there is no copy of it.
    """

    producer: str
    first: int
    last: int
    status: str
    reason: str
    body: bytes | None = None

    @property
    def events(self) -> int:
        """How many there are."""
        return self.last - self.first + 1


class Watcher:
    """Tells the functions of one client, those that it has."""

    def __init__(self, config: Config, callbacks: CallbackThread) -> None:
        self._config = config
        self._callbacks = callbacks
        self._lock = threads.RLock()
        self._settled: list[Settlement] = []
        self._lost: list[Settlement] = []
        self._bytes = 0
        self._errors: list[str] = []
        self._queued = False

    def settled(self, outcomes: Iterable[Settlement]) -> None:
        """Tell of outcomes."""
        if self._config.on_delivery is not None:
            self._add(self._settled, [*outcomes])

    def lost(self, events: list[Settlement]) -> None:
        """Tell of events that were lost."""
        if self._config.on_drop is not None:
            with self._lock:
                self._bytes += sum(len(one.body or b"") for one in events)
                if self._bytes > BODIES:
                    events = [one._replace(body=None) for one in events]
            self._add(self._lost, events)

    def failed(self, text: str) -> None:
        """Tell of an error."""
        if self._config.on_error is not None:
            self._add(self._errors, [text])

    def _add(self, to: list[Any], some: list[Any]) -> None:
        if not some:
            return
        with self._lock:
            to += some[: max(0, LARGEST - len(to))]
            if self._queued:
                return
            self._queued = True
        self._callbacks.queue(self._tell)

    def _tell(self) -> None:
        with self._lock:
            settled, lost, errors = self._settled[:], self._lost[:], self._errors[:]
            self._settled.clear()
            self._lost.clear()
            self._errors.clear()
            self._bytes = 0
            self._queued = False
        # Each call is one of its own: what one raises is reported, and keeps nothing from the others.
        config, run = self._config, self._callbacks.queue
        if settled and config.on_delivery is not None:
            run(config.on_delivery, settled)
        if lost and config.on_drop is not None:
            run(config.on_drop, lost)
        if config.on_error is not None:
            for text in errors:
                run(config.on_error, text)
