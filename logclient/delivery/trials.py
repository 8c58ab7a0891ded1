"""Steer connections in the search for events that a server cannot take.

``delivery.isolation`` draws the conclusions, as data; this applies them to the batches in flight: the
limits of a connection, its end for a trial, and the outcome of suspects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient._ext.constants import R_POISON
from logclient.delivery.backoff import random
from logclient.delivery.contract import FOREVER
from logclient.delivery.isolation import NOTHING, PROBE, WITHHOLD, Isolation
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.config.common import Config
    from logclient.delivery.books import Books
    from logclient.delivery.ending import Ending


class Trials:
    """The search for poison of one client."""

    def __init__(
        self,
        in_flight: InflightBatches,
        config: Config,
        endpoints: int,
        books: Books,
        ending: Ending,
    ) -> None:
        self.deadline = FOREVER
        """The monotonic second from which other events go before trials."""
        self.isolation = Isolation(endpoints, random, config)
        self._in_flight = in_flight
        self._books = books
        self._diagnostics = books.diagnostics
        self._ending = ending

    @property
    def suspects(self) -> int:
        return len(self.isolation.suspects)

    @property
    def unsent(self) -> int:
        """Events that wait to be sent (again), except those held back."""
        return int(self._in_flight.waiting + self._in_flight.queue.queued[0])

    def _allowed(self, now: float, others: int) -> bool:
        """Return whether there is time for trials.

        Towards the end, and while callers wait for what they log, `others` go before the suspects.
        """
        return not others or (now < self.deadline and not self._ending.callers_deliver)

    def connected(self) -> None:
        now = time.monotonic()
        self._forget_settled()
        others = self.unsent
        self._in_flight.send_alone(self.isolation.connected(now, others, self._allowed(now, others)))
        self._steer()

    def _forget_settled(self) -> None:
        """Forget suspects that were settled in other ways, such as by their age."""
        if self.suspects:
            self.isolation.forget(self._in_flight.quarantined)

    def _steer(self) -> None:
        """Limit the events in flight to the purpose of this connection."""
        isolation = self.isolation
        self._in_flight.steer(isolation.limit, isolation.trying)
        self.hold_back(0 if isolation.trying else self.reserve)

    @property
    def reserve(self) -> int:
        return self.isolation.reserve() if self._allowed(time.monotonic(), self.unsent) else 0

    def hold_back(self, events: int) -> None:
        """Leave so many of the events that wait where they are; 0: none."""
        self._in_flight.allow(max(0, self.unsent - events) if events else None)

    def plan(self, until: float) -> float:
        """Leave this connection when the next trial is due; return when to ask again, `until` at most."""
        now = time.monotonic()
        isolation = self.isolation
        others = self.unsent
        allowed = self._allowed(now, others)
        trial = isolation.next_trial(others)
        if allowed and now >= trial:
            isolation.leave(now, others)
            self._in_flight.drain()
            return until
        self._steer()
        return min(until, self.deadline, trial) if allowed else until

    def is_due(self, now: float) -> bool:
        """Return whether a suspect is to be tried though nothing else waits."""
        self._forget_settled()
        return now >= self.isolation.next_trial(0)

    def settled(self) -> None:
        """Draw the conclusions after an event in flight got its outcome, and go on with its neighbours."""
        isolation = self.isolation
        now = time.monotonic()
        self._forget_settled()
        if isolation.kind == PROBE:
            seqs = self._in_flight.quarantine()
            isolation.quarantine(seqs)
            self._books.deferred([(seq, seq) for seq in seqs])
        condemned = isolation.settled(now, self._in_flight.reached)
        if condemned:
            self._condemn(condemned)
        self._steer()

    def broke(self, end: str, first: int, last: int, events: int, moving: bool = False) -> int:
        """Draw the conclusions from the end of a connection, after the requeue: see ``Isolation.broke``.

        `end` is the result of ``PumpGroup.run``; empty: it has nothing to do with events. `moving`: after
        some time, while the server was still taking them. It lost its patience, and most often has none.
        """
        now = time.monotonic()
        verdict = NOTHING
        if end in ("closed", "error") and not (moving and events > 1):
            others = max(0, self.unsent - events)
            verdict = self.isolation.broke(first, last, events, others, now, moving)
        else:
            self.isolation.ended(now)
        self._in_flight.send_alone(0)
        if verdict == WITHHOLD:
            self._in_flight.withhold(self.isolation.withheld)
        elif self._in_flight.withheld:
            self._in_flight.release_withheld()
        return verdict

    def give_back(self) -> None:
        """Release the withheld events, because nothing was sent instead of them."""
        if self.isolation.withheld:
            self.isolation.no_proof()
            self._in_flight.release_withheld()

    def _condemn(self, seq: int) -> None:
        size = self._in_flight.fail_quarantined(seq, R_POISON)
        # A kind of its own: one line for each poison, and no other line holds it back.
        self._diagnostics.report(
            f"poison {seq}",
            f"the server ends the connection on event "
            f"{self._books.producer}{seq:012x} ({size} bytes) and takes others: it failed (poison)",
        )
