"""The record of a connection: its progress, and its losses when it breaks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logclient.delivery.doubt import Doubt

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.pump import CompiledPump

PROVEN = 1.0
"""Seconds after which a connection that works has proved that its server is up."""

USED = 1.0
"""Seconds after which the end of a connection without traffic is no failure."""


class ConnectionRecord:
    """The record of one connection after the other.

    Attributes:
        doubt: the estimated losses of connections that broke.
    """

    def __init__(self, in_flight: InflightBatches, pump: CompiledPump) -> None:
        self.doubt = Doubt()
        self._in_flight = in_flight
        self._pump = pump
        self._began = 0.0
        self._progress = self._windows = self._handed = 0

    def begin(self) -> None:
        """Begin the record of a new connection."""
        self._began = time.monotonic()
        self._progress = self._pump.progress
        self._windows = self._pump.windows
        self._handed = self._handed_so_far
        self.doubt.connected(self._began, self._handed, self._pump.bytes_sent)

    @property
    def _handed_so_far(self) -> int:
        handed: int = self._in_flight.queue.counters()["handed"]
        return handed

    @property
    def acknowledged(self) -> bool:
        """Whether the server has acknowledged something."""
        return self._pump.progress > self._progress

    @property
    def used(self) -> bool:
        """Whether the server has acknowledged something, or the connection has lasted."""
        return self.acknowledged or time.monotonic() - self._began > USED

    def proven(self, keeps_connected: bool, bound: float) -> bool:
        """Return whether it counts as proven, where there are no acknowledgements.

        It has sent something or need not, owes no answer, and has lasted longer than the next wait could be,
        or than `PROVEN` seconds, however long the waits are by now. So a server that accepts and drops
        connections at once sees few of them, and one that is up is not kept waiting for earlier breaks.

        Args:
            keeps_connected: whether it is there although nothing is sent.
            bound: seconds of the next wait at most.
        """
        if self._handed_so_far == self._handed:
            sent = keeps_connected or self._pump.windows > self._windows
            if not sent or self._in_flight.inflight:
                return False
        return time.monotonic() - self._began > min(bound, PROVEN)

    def look(self) -> None:
        """Note how many events were handed over by now. Called in every turn."""
        self.doubt.look(time.monotonic(), self._handed_so_far)

    def broke(self, max_buffered: int, waited: bool) -> None:
        """Estimate the loss of a connection without acknowledgements that broke; see ``Doubt.broke``."""
        self.doubt.broke(time.monotonic(), self._handed_so_far, self._pump.bytes_sent, max_buffered, waited)
