"""One connection after the other for a core: begin it, use it, and draw the conclusions from its end.

States of a lane::

    away ──an event, and the back-off is over──> connecting ──ok──> connected: takes from the queue
     ^                                               │                │
     │                                               │ failed         │ lost: what has no outcome goes again
     └───────────────────────────────────────────────┴────────────────┘

The first acknowledgement resets the back-off. Credential errors, the server's or ours, are reported once and
retried at a slower pace, each endpoint on its own. Fatal errors of configuration or version end in `fatal`.

A client has one lane, which tries its endpoints in turn; with ``balance`` it has one for each endpoint, its
*home*. What a broken connection leaves without an outcome stays with its lane, which sends it again over a
short connection to the next server that can be reached: as a *guest*. A guest takes nothing from the queue,
unless it needs other events to find poison, and goes home when its events have their outcome. So the search
for poison is that of a client with one connection. The ledger lists these events as ``deferred``, because
others overtake them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from logclient import threads
from logclient.delivery.attempt import STOP_CHECK_S, Attempt, sleep
from logclient.delivery.backoff import random
from logclient.delivery.connection import ConnectionRecord
from logclient.delivery.contract import FOREVER, GOES_ON, Core, Link, Settled, Transport
from logclient.delivery.diagnostics import describe_endpoint, describe_error, explain_end
from logclient.delivery.endpoints import Endpoints
from logclient.delivery.isolation import TRIAL, WITHHOLD
from logclient.delivery.pump import make_pump
from logclient.delivery.trials import Trials
from logclient.errors import CredentialError, is_shortage

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.queue import EventQueue
    from logclient.config import Config
    from logclient.delivery.bookkeeping import Bookkeeper
    from logclient.delivery.diagnostics import Diagnostics
    from logclient.delivery.requests import Requests

MOVE_WAIT = 5.0
"""Seconds that a connection is kept for events in flight when the client moves to another server."""

SOONEST = 0.01
"""Seconds between two questions whether a trial is due."""


class Surroundings(Protocol):
    """What a lane asks of its group: see ``delivery.lanes.Lanes``."""

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt to connect may begin, or go on."""

    def is_late(self, began: float) -> bool:
        """Return whether an attempt in the sender's thread takes the time of other servers."""

    def needs_thread(self) -> bool:
        """Return whether an attempt is to have a thread of its own."""

    def record_gaps(self) -> None:
        """Record events that were dropped from the queue."""


class LaneAttempt(Attempt):
    """An attempt to connect: in the sender's thread, or in one of its own."""

    def __init__(
        self,
        connect: Callable[[Attempt], Link],
        queue: EventQueue,
        poke: Callable[[], object],
        warn: Callable[[str], object],
    ) -> None:
        self._off = threads.Event()
        super().__init__(self._off.is_set, warn)
        self._connect = connect
        self._queue = queue
        self._poke = poke
        self._thread: threads.AnyThread | None = None
        self._link: Link | None = None
        self._error: BaseException | None = None
        self.done = False

    def start(self) -> bool:
        """Begin in a new thread; return False when none can be started."""
        self._thread = threads.make_thread(self._run, threads.CONNECT)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):
            self._thread = None
        return self._thread is not None

    def run_here(self, stopped: Callable[[], bool]) -> None:
        """Connect in the sender's thread, until ``stopped()``."""
        before, self.stopped = self.stopped, stopped
        try:
            self._run()
        finally:
            self.stopped = before

    def _run(self) -> None:
        try:
            self._link = self._connect(self)
        except BaseException as error:
            self._error = error
        finally:
            if self._link is not None and self._off.is_set():
                self._link.close()
            self.done = True
            if self._thread is not None:
                self._poke()
                self._queue.wake()

    def wait(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        """Sleep until a descriptor is ready, it is time to ask ``stopped``, or a caller wakes the sender."""
        wake = self._queue.fileno()
        if self._thread is None and wake >= 0:
            self._waits_for = reading + writing
            self._queue.enter_fork_safe()
            try:
                sleep([*reading, wake], writing, min(seconds, STOP_CHECK_S))
            finally:
                self._queue.leave_fork_safe()
                self._waits_for = []
            # First, so that a wake-up from now on is noticed by the next sleep.
            self._queue.finish_wait()
            seconds = 0.0
        return super().wait(reading, writing, seconds)

    def take(self) -> Link:
        """Return the connection, or raise what has prevented it."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._link is not None
        return self._link

    def call_off(self) -> None:
        """Have the attempt end soon; its connection is closed."""
        self._off.set()
        if self.done and self._link is not None:
            self._link.close()

    @property
    def is_called_off(self) -> bool:
        """Whether it was to end."""
        return self._off.is_set()

    @property
    def has_thread(self) -> bool:
        """Whether it has a thread of its own."""
        return self._thread is not None

    def join(self, timeout: float) -> None:
        """Wait for the end of its thread."""
        if self._thread is not None:
            threads.join(self._thread, max(0.0, timeout))

    def abandon(self) -> None:
        """In a forked child, release the connection that the parent is making, without sending anything."""
        if self._link is not None:
            self._link.abandon()
        super().abandon()


class Lane:
    """The connections of one core, one at a time.

    Args:
        alone: it is the only one of its client, so every endpoint is its home.
        has_home: its first endpoint is its home; without one, it only sends what it has.
        handed: the process ends, so there are no trials while other events wait.

    Attributes:
        keeps_connected: connect even if there is nothing to send.
        fatal: nothing can be delivered any more, for this reason.
        connects: connections that were established.
        disconnects: connections that ended.
        is_moving: the connection is to be left for another server.
        due: the monotonic second at which to look again; FOREVER: when an event comes.
        waits: only the time, or an attempt under way, can bring a connection.
    """

    def __init__(
        self,
        core: Core,
        in_flight: InflightBatches,
        transport: Transport,
        endpoints: tuple[Any, ...],
        limits: Config,
        producer: bytes,
        books: Bookkeeper,
        requests: Requests,
        diagnostics: Diagnostics,
        poke: Callable[[], object],
        *,
        alone: bool,
        has_home: bool,
        handed: bool,
        keeps_connected: bool,
    ) -> None:
        self.core = core
        self.in_flight = in_flight
        self.transport = transport
        self.pump = make_pump(transport, in_flight, core, limits)
        self.endpoints = Endpoints(endpoints, limits, diagnostics)
        self.trials = Trials(in_flight, limits, len(endpoints), producer, books, diagnostics, handed)
        self.connection = ConnectionRecord(in_flight, self.pump)
        self.link: Link | None = None
        self.tls = ""
        self.fatal: Exception | None = None
        self.connects = self.disconnects = 0
        self.keeps_connected = keeps_connected
        self.is_moving = False
        self.due = FOREVER
        self.waits = False
        self.drain_timeout = FOREVER
        self._queue = in_flight.queue
        self._books = books
        self._requests = requests
        self._diagnostics = diagnostics
        self._poke = poke
        self._alone = alone
        self._has_home = has_home
        self._at_home = False
        self._seen = self._queue.next_seq  # a later event is a reason to connect
        self._outcomes = 0  # of events in flight, that were looked at
        self._progress = 0  # the pump's, that was looked at
        self._attempt: LaneAttempt | None = None

    def move(self, endpoints: tuple[Any, ...], has_home: bool, transport: Transport) -> None:
        """Connect to other endpoints from now on; without a home, only to send what it has."""
        self.endpoints.replace(endpoints)
        self.transport = transport
        self.fatal = None
        self.is_moving = False
        self._has_home = has_home
        self._seen = self._queue.next_seq

    @property
    def may_be_reachable(self) -> bool:
        """Whether its server is reachable as far as is known; True before the first attempt."""
        return self.link is not None or self.fatal is not None or self.endpoints.hopeful

    # -- connecting --------------------------------------------------------------------------------

    def look(self, now: float, group: Surroundings) -> Link | None:
        """Begin or end a connection where that is due; return the connection, if there is one."""
        self.due, self.waits = FOREVER, False
        if self.link is not None and self._is_idle_guest():
            self.leave(self.link)
        if self.link is None:
            self._connect(now, group)
        if self.link is not None:
            self.in_flight.use_queue(takes=self._at_home or self._searches, notes=not self._at_home)
        return self.link

    @property
    def _searches(self) -> bool:
        """Whether it needs connections and other events to find poison."""
        isolation = self.trials.isolation
        return isolation.trying or bool(isolation.withheld or isolation.reserve())

    def _is_idle_guest(self) -> bool:
        """Return whether this connection is to a server of another lane, and is not needed any more."""
        if self._at_home or self.in_flight.inflight or self._searches:
            return False
        return not self.in_flight.to_send

    def _connect(self, now: float, group: Surroundings) -> None:
        if self._attempt is None and not self._begin_attempt(now, group):
            return
        attempt = self._attempt
        assert attempt is not None
        if not attempt.done:
            self.waits = True
            return
        self._attempt = None
        self.endpoints.attempt_at = 0.0
        self.due, self.waits = now, True  # at once: the attempt may have taken a wake-up of the sender
        if attempt.is_called_off:
            self._seen = 0  # there is still a use for it
            return
        link = self._try(attempt)
        if link is not None:
            self.due = FOREVER
            self._connected(link)

    def _begin_attempt(self, now: float, group: Surroundings) -> bool:
        """Begin to connect if there is a use for it and the back-off is over; return whether it has."""
        if group.holds_attempts:
            return False
        if not self._wants_connection(now):
            if self.trials.isolation.withheld:  # the others were dropped meanwhile
                self.trials.give_back()
            trial = self.trials.isolation.next_trial(0)
            self.due = FOREVER if trial is None else max(trial, now + SOONEST)
            return False
        self.due, self.waits = self._choose(now), True
        if now < self.due:
            return False
        if not self._books.open():
            self.due = self._books.not_before
            return False
        self.due = FOREVER
        self._seen = self._queue.next_seq
        self.endpoints.attempt_at = now
        # No lane in it, which may end before the attempt does.
        connect = partial(self.transport.connect, self.endpoints.current)
        warn = partial(self._diagnostics.warn, self._diagnostics.url)
        attempt = self._attempt = LaneAttempt(connect, self._queue, self._poke, warn)
        if not (group.needs_thread() and attempt.start()):
            attempt.run_here(partial(_is_over, attempt, group, now))
        return True

    def _wants_connection(self, now: float) -> bool:
        if self._requests.waiting or self.keeps_connected or self.trials.is_due(now):
            return True
        if self._has_home and self.trials.unsent:
            return True
        # Another lane may have taken what came since this one lost its connection.
        is_home = self._has_home and not self._alone
        return bool(self.in_flight.to_send) or (is_home and self._queue.next_seq > self._seen)

    def _choose(self, now: float) -> float:
        """Choose the endpoint to try next; return the monotonic second from which on."""
        if self._alone or self.in_flight.to_send or self._searches:
            self.endpoints.skip_refused(now)
            return self.endpoints.not_before
        return max(self.endpoints.not_before, self.endpoints.return_to_first())

    def _try(self, attempt: LaneAttempt) -> Link | None:
        """Take the connection of an attempt that is over; report a failure."""
        peer = describe_endpoint(self.endpoints.current)
        try:
            return attempt.take()
        except CredentialError as error:
            self.endpoints.failing = True
            self.trials.give_back()
            self.endpoints.refused(f"{self._diagnostics.url}: {peer}", error)
        except (OSError, MemoryError, RuntimeError) as error:
            if not isinstance(error, OSError) and not is_shortage(error):
                raise
            self.endpoints.failing = True
            self.trials.give_back()
            self.endpoints.advance()
            what = f"cannot connect to {peer}: {describe_error(error)}"
            self.endpoints.failed(f"{self._diagnostics.url}: {what}", "connect")
        return None

    def _connected(self, link: Link) -> None:
        self.endpoints.failing = False
        self.connects += 1
        self.link = link
        self.tls = link.tls
        self._at_home = self._alone or (self._has_home and self.endpoints.at_first)
        self.connection.begin()
        if link.mtu:
            self.core.path_mtu(link.mtu, link.headers)
        self.core.watch_receiver(link.receiver)
        self.core.connected(time.monotonic(), random)
        self.pump.connected()
        self._outcomes = self.in_flight.outcomes
        self.trials.connected()

    @property
    def holds_sender(self) -> bool:
        """Whether the sender's thread is in an attempt to connect."""
        return self._attempt is not None and not self._attempt.has_thread

    def park(self) -> None:
        """Have an attempt in a thread of its own end soon, for a move, a fork or the end."""
        if self._attempt is not None and self._attempt.has_thread:
            self._attempt.call_off()

    def wait_parked(self, timeout: float) -> None:
        """Wait for the end of such an attempt."""
        if self._attempt is not None:
            self._attempt.join(timeout)

    def abandon(self) -> None:
        """In a forked child, let go of what the parent goes on with."""
        if self.link is not None:
            self.link.abandon()
        if self._attempt is not None:
            self._attempt.abandon()

    # -- a connection is used ----------------------------------------------------------------------

    def plan(self, until: float, requested: bool) -> float:
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
        if self.is_moving:
            self.in_flight.drain()
        return until

    def conclude(self, link: Link, end: str) -> None:
        """Draw the conclusions from a run of the pump."""
        taken = self.in_flight.drain_taken()
        if taken:  # a guest's: the home lane of this server overtakes them
            self._books.deferred(taken)
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
            self.lost(link, end)
        elif self.in_flight.drained:
            if self.is_moving:
                self.leave(link)
            else:
                self._leave_for_trial()

    # -- a connection ends -------------------------------------------------------------------------

    def disconnect(self, deadline: float) -> None:
        """Close the link; data that the transport holds may drain until `deadline`."""
        link, self.link = self.link, None
        self._at_home = False
        self._seen = self._queue.next_seq
        if link is not None:
            link.close(max(0.0, min(deadline - time.monotonic(), self.drain_timeout)))
            self._requests.connection_lost()

    def lost(self, link: Link, end: str) -> None:
        """End a connection that broke: events without an outcome are sent again on the next one."""
        peer, unacknowledged = f"{self._diagnostics.url}: {link.peer}", link.drains_on_close
        waited = bool(self.in_flight.inflight)
        self.disconnect(0.0)
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
            self._diagnostics.complain(f"{peer}: {words}; nothing more will be sent", "fatal")
        elif verdict == TRIAL:
            # It was to be expected: the next trial comes soon, unless the server takes nothing at all.
            self.endpoints.retry_soon()
        elif verdict == WITHHOLD:
            self._diagnostics.complain(f"{peer}: {words}", end)
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
        self.in_flight.requeue()
        if not self._alone and (ranges := self.in_flight.to_send):
            self._books.deferred(ranges)

    def _leave_for_trial(self) -> None:
        """Close a connection that works, for a trial on a fresh one."""
        self.trials.isolation.ended(time.monotonic())
        self.core.connection_lost()
        for _ in self.core.events_received():
            pass
        self.disconnect(0.0)
        self.disconnects += 1

    def leave(self, link: Link) -> None:
        """Close a connection that works; events without an outcome are sent again."""
        flying = self.in_flight.inflight_range
        self.disconnect(time.monotonic() + (MOVE_WAIT if link.drains_on_close else 0.0))
        self.disconnects += 1
        self._take_back()
        self.trials.broke("", *flying)
        self.in_flight.drain(False)
        self.in_flight.commit()


def _is_over(attempt: LaneAttempt, group: Surroundings, began: float) -> bool:
    """Return whether an attempt in the sender's thread is to end. Asked many times a second.

    It may take long, so events that are dropped meanwhile are recorded here.
    """
    if group.holds_attempts:
        attempt.call_off()
    else:
        group.record_gaps()
    return attempt.is_called_off or group.is_late(began)
