"""One connection after the other for a core: begin it, use it, and draw the conclusions from its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from logclient.delivery.backoff import random
from logclient.delivery.connection import ConnectionRecord
from logclient.delivery.contract import GOES_ON, Settled
from logclient.delivery.diagnostics import describe_endpoint, describe_error, explain_end
from logclient.delivery.isolation import TRIAL, WITHHOLD
from logclient.errors import CredentialError, is_shortage

if TYPE_CHECKING:
    from typing import Any

    from logclient._ext.inflight import InflightBatches
    from logclient.delivery.contract import Core, Link, Pump
    from logclient.delivery.diagnostics import Diagnostics
    from logclient.delivery.endpoints import Endpoints
    from logclient.delivery.trials import Trials

MOVE_WAIT = 5.0
"""Seconds that a connection is kept for events in flight when the client moves to another server."""


class Connections:
    """The connections of one core, one at a time. A base class of `Engine`.

    Attributes:
        keeps_connected: connect even if there is nothing to send.
        fatal: nothing can be delivered any more, for this reason.
        connects: connections that were established.
        disconnects: connections that ended.
    """

    in_flight: InflightBatches
    core: Core
    pump: Pump
    link: Link | None
    endpoints: Endpoints
    trials: Trials
    diagnostics: Diagnostics
    connection: ConnectionRecord
    keeps_connected: bool = False
    fatal: Exception | None
    connects: int
    disconnects: int
    _attempt: Any

    def _begin_connections(self) -> None:
        """Start anew, with a new core and a new pump."""
        self.link = None
        self.fatal = None
        self.connects = 0
        self.disconnects = 0
        self.connection = ConnectionRecord(self.in_flight, self.pump)
        self._tls = ""
        self._outcomes = 0  # of events in flight, that were looked at
        self._progress = 0  # the pump's, that was looked at
        self._attempt = None  # to connect, while it is under way

    # Implemented by subclasses.

    @property
    def _is_moving(self) -> bool:
        """Whether this connection is to be left for another server."""
        raise NotImplementedError

    def _gives_up(self) -> bool:
        """Return whether an attempt to connect ended because it was called off."""
        raise NotImplementedError

    def _disconnect(self, deadline: float) -> None:
        """Close the link; data that the transport holds may drain until `deadline`."""
        raise NotImplementedError

    # -- a connection begins -----------------------------------------------------------------------

    def _try(self, endpoint: Any, connect: Callable[[], Link]) -> Link | None:
        """Connect with ``connect()``; report a failure."""
        try:
            return connect()
        except CredentialError as error:
            self.endpoints.failing = True
            self.trials.give_back()
            self.endpoints.refused(f"{self.diagnostics.url}: {describe_endpoint(endpoint)}", error)
        except (OSError, MemoryError, RuntimeError) as error:
            if self._gives_up() and isinstance(error, OSError):
                return None
            if not isinstance(error, OSError) and not is_shortage(error):
                raise
            self.endpoints.failing = True
            self.trials.give_back()
            self.endpoints.advance()
            what = f"cannot connect to {describe_endpoint(endpoint)}: {describe_error(error)}"
            self.endpoints.failed(f"{self.diagnostics.url}: {what}", "connect")
        return None

    def _connected(self, link: Link) -> None:
        self.endpoints.failing = False
        self.connects += 1
        self.link = link
        self._tls = link.tls
        self.connection.begin()
        if link.mtu:
            self.core.path_mtu(link.mtu, link.headers)
        self.core.watch_receiver(link.receiver)
        self.core.connected(time.monotonic(), random)
        self.pump.connected()
        self._outcomes = self.in_flight.outcomes
        self.trials.connected()

    # -- a connection is used ----------------------------------------------------------------------

    def _regulate(self, until: float, requested: bool) -> float:
        """Prepare a run of the pump; return when it is to end, `until` at most.

        Args:
            until: monotonic seconds.
            requested: whether the core has something to send that is no event.
        """
        look, regulates = self.core.regulate(time.monotonic())
        until = min(until, look)
        if requested or regulates:
            self.pump.send_ready()
        if self.trials.suspects:
            until = self.trials.plan(until)
        if self._is_moving:
            self.in_flight.draining = True
        return until

    def _conclude(self, link: Link, end: str) -> None:
        """Draw the conclusions from a run of the pump."""
        backoff = self.endpoints.backoff
        if link.drains_on_close:
            self.connection.look()
        if self.in_flight.outcomes != self._outcomes:
            self._outcomes = self.in_flight.outcomes
            self.trials.settled()
        if self.pump.progress != self._progress:
            self._progress = self.pump.progress
            self.endpoints.acknowledged()
        elif backoff.attempts and self.connection.proven(self.keeps_connected, backoff.bound):
            backoff.reset()
        if end not in GOES_ON:
            self._lost(link, end)
        elif self.in_flight.drained:
            if self._is_moving:
                self._leave_link(link)
            else:
                self._leave_for_trial()

    # -- a connection ends -------------------------------------------------------------------------

    def _lost(self, link: Link, end: str) -> None:
        """End a connection that broke: events without an outcome are sent again on the next one."""
        peer, unacknowledged = f"{self.diagnostics.url}: {link.peer}", link.drains_on_close
        waited = bool(self.in_flight.inflight)
        self._disconnect(0.0)
        self.disconnects += 1
        # With nothing under way: that is how servers end an idle connection. But one that took nothing
        # and ended at once is a failure, or we would connect in a loop.
        idle = not self.in_flight.inflight and not self.in_flight.waiting and not self.keeps_connected
        quiet = self.connection.used and idle and end in ("closed", "error")
        unanswered = 0 if unacknowledged else self.in_flight.inflight
        words, error, forever = explain_end(
            end, self.core, self.pump, unanswered, self.connection.acknowledged
        )
        if link.hint and end in ("closed", "error") and not self.pump.progress:
            words = f"{words}; {link.hint}"
        flying = self.in_flight.inflight_range
        self._take_back()
        refused = isinstance(error, CredentialError)
        # Without acknowledgements, events in flight have not even been taken by the transport.
        verdict = self.trials.broke("" if refused or unacknowledged else end, *flying)
        self.in_flight.commit()
        if unacknowledged:
            self.connection.broke(link.max_buffered, waited)
        if forever:
            self.fatal = error
            self.diagnostics.complain(f"{peer}: {words}; nothing more will be sent", "fatal")
        elif verdict == TRIAL:
            # It was to be expected: the next trial comes soon, unless the server takes nothing at all.
            self.endpoints.retry_soon()
        elif verdict == WITHHOLD:
            self.diagnostics.complain(f"{peer}: {words}", end)
        elif isinstance(error, CredentialError):
            self.endpoints.refused(peer, error)
        elif not quiet:
            self.endpoints.advance()
            self.endpoints.failed(f"{peer}: {words}", end)

    def _take_back(self) -> None:
        """End the connection for the core; events that it does not fail are sent again."""
        self.core.connection_lost()
        for event in self.core.events_received():  # events that the core fails rather than sends again
            if isinstance(event, Settled):
                event.apply(self.in_flight)
        self._requeue()

    def _requeue(self) -> None:
        """Have events without an outcome sent again."""
        self.in_flight.requeue()

    def _leave_for_trial(self) -> None:
        """Close a connection that works, for a trial on a fresh one."""
        self.trials.isolation.ended(time.monotonic())
        self.core.connection_lost()
        for _ in self.core.events_received():
            pass
        self._disconnect(0.0)
        self.disconnects += 1

    def _leave_link(self, link: Link) -> None:
        """Close a connection that works; events without an outcome are sent again."""
        flying = self.in_flight.inflight_range
        self._disconnect(time.monotonic() + (MOVE_WAIT if link.drains_on_close else 0.0))
        self.disconnects += 1
        self._take_back()
        self.trials.broke("", *flying)
        self.in_flight.draining = False
        self.in_flight.commit()
