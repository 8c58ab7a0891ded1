"""Counters of the collectors: those of all collectors, and those of collectors that acknowledge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["AckCounts", "Counts"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """A snapshot of a collector's counters since its creation."""

    connections: int = 0
    open: int = 0  # connections now
    bytes: int = 0  # received
    events: int = 0  # received in whole units
    captured_events: int = 0
    idle_closes: int = 0
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        """Connections that faults have cut."""
        return 0

    @classmethod
    def zeros(cls) -> dict[str, Any]:
        """Return a mutable counter for each field."""
        return cls().as_dict()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, without `cuts`, which is a sum of some of them."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class AckCounts(Counts):
    """The counters of a collector that acknowledges units, with faults that cut or stall a connection."""

    acks: int = 0
    cuts_before_write: int = 0
    cuts_before_ack: int = 0
    cuts_after_ack: int = 0
    stalls: int = 0

    @property
    def cuts(self) -> int:
        """Connections that faults have cut."""
        return self.cuts_before_write + self.cuts_before_ack + self.cuts_after_ack
