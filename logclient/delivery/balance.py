"""Several connections at a time for one client: ``balance=true``.

The client has one queue, one sender and one ledger, and a *lane* for each endpoint: a core, a pump, a
back-off, a search for poison, and the batches that went over its connections. One pump group drives all
connections. It gives the next batch to the lane with the fewest bytes in flight.

States of a lane::

    away ──an event, and the back-off is over──> connecting ──ok──> at home: takes batches from the queue
     ^                                               │                │
     │                                               │ failed         │ broken
     └───────────────────────────────────────────────┴────────────────┘
         with events that have no outcome: the other endpoints are tried, too

What a broken connection leaves without an outcome stays with its lane, which sends it again over a short
connection of its own to the next server that can be reached: as a *guest*. A guest takes nothing from the
queue, unless it needs other events to find poison, and goes home when its events have their outcome. So the
search for poison is that of a client with one connection. The ledger lists these events as ``deferred``,
because others overtake them.

An attempt to connect runs in a thread of its own: a server that does not answer delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient._ext.inflight import InflightBatches
from logclient.delivery.attempt import Attempt
from logclient.delivery.connections import Connections
from logclient.delivery.contract import FOREVER, Link, Transport
from logclient.delivery.endpoints import Endpoints
from logclient.delivery.engine import Engine, Move
from logclient.delivery.pump import PythonPump, make_pump
from logclient.delivery.trials import Trials
from logclient.errors import ConfigError

if TYPE_CHECKING:
    from logclient._ext.queue import EventQueue
    from logclient.config import Config
    from logclient.delivery.bookkeeping import Bookkeeper
    from logclient.delivery.contract import Core
    from logclient.delivery.diagnostics import Diagnostics

__all__ = ["BalancedEngine"]

MOST_ENDPOINTS = 64
"""As many as a pump group has room for."""

SOONEST = 0.01
"""Seconds between two questions whether a trial is due."""

SHARE = 0.25
"""Seconds for an attempt to connect in a caller's thread while another server is connected."""

ALONE = 1.0
"""Seconds for it while none is, and there are others to try."""


class BackgroundAttempt(Attempt):
    """An attempt to connect, in a thread of its own where one can be started.

    Args:
        wake: called when the attempt has ended.
    """

    def __init__(
        self, connect: Callable[[Attempt], Link], wake: Callable[[], object], warn: Callable[[str], object]
    ) -> None:
        self._off = threads.Event()
        super().__init__(self._off.is_set, warn)
        self._connect = connect
        self._wake = wake
        self._thread: threads.AnyThread | None = None
        self._link: Link | None = None
        self._error: BaseException | None = None
        self.done = False

    def start(self) -> bool:
        """Begin in a new thread; return False when none can be started."""
        thread = threads.make_thread(self._run, threads.CONNECT)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            return False
        self._thread = thread
        return True

    def run_here(self, stopped: Callable[[], bool]) -> None:
        """Connect in this thread, until ``stopped()``."""
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
            self._wake()

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
    def called_off(self) -> bool:
        """Whether it was to end."""
        return self._off.is_set()

    def join(self, timeout: float) -> None:
        """Wait for the end of its thread."""
        if self._thread is not None:
            threads.join(self._thread, max(0.0, timeout))

    def abandon(self) -> None:
        """In a forked child, release the connection that the parent is making, without sending anything."""
        if self._link is not None:
            self._link.abandon()
        super().abandon()


class Lane(Connections):
    """The connections for one endpoint.

    Attributes:
        transport: connects; it is the lane's own.
        due: the monotonic second of the next attempt to connect; FOREVER: there is none.
    """

    def __init__(
        self,
        core: Core,
        in_flight: InflightBatches,
        transport: Transport,
        limits: Config,
        diagnostics: Diagnostics,
        poke: Callable[[], object],
    ) -> None:
        self.core = core
        self.in_flight = in_flight
        self.diagnostics = diagnostics
        self.pump = make_pump(transport, in_flight, core, limits)
        self._queue = in_flight.queue
        self.transport = transport
        self._poke = poke
        self._begin_connections()
        self.is_moving = False
        self.due = FOREVER
        self._has_home = True
        self._at_home = False
        self._seen = self._queue.next_seq  # a later event is a reason to connect

    def begin(self, endpoints: Endpoints, trials: Trials, books: Bookkeeper) -> None:
        """Take the parts that need this one."""
        self.endpoints = endpoints
        self.trials = trials
        self._books = books

    def move(self, endpoints: tuple[Any, ...], has_home: bool, transport: Transport) -> None:
        """Connect to other endpoints from now on; without a home, only to send what it has."""
        self.endpoints.replace(endpoints)
        self._has_home = has_home
        self.transport = transport
        self.fatal = None
        self.is_moving = False
        self._seen = self._queue.next_seq

    @property
    def may_be_reachable(self) -> bool:
        """Whether its server is reachable as far as is known; True before the first attempt."""
        return self.link is not None or self.fatal is not None or self.endpoints.hopeful

    @property
    def waits(self) -> bool:
        """Whether an attempt to connect is under way, or will be."""
        return self._attempt is not None or self.due < FOREVER

    # -- connecting --------------------------------------------------------------------------------

    def look(self, now: float, engine: BalancedEngine) -> Link | None:
        """Begin or end a connection where that is due; return the connection, if there is one."""
        self.due = FOREVER
        if self.link is not None and self._is_idle_guest():
            self._leave_link(self.link)
        if self.link is None:
            self._connect(now, engine)
        if self.link is not None:
            self.in_flight.notes_taken = not self._at_home
            self.in_flight.takes_none = not self._at_home and not self._searches
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

    def _connect(self, now: float, engine: BalancedEngine) -> None:
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = self._begin_attempt(now, engine)
        if attempt is None or not attempt.done:
            return
        self._attempt = None
        self.endpoints.attempt_at = 0.0
        if attempt.called_off:
            self._seen = 0  # there is still a use for it
            return
        link = self._try(self.endpoints.current, attempt.take)
        if link is not None:
            self._connected(link)
            self._at_home = self._has_home and self.endpoints.at_first

    def _begin_attempt(self, now: float, engine: BalancedEngine) -> BackgroundAttempt | None:
        """Begin to connect if there is a use for it and the back-off is over."""
        if engine.holds_attempts:
            return None
        if not self._wants_connection(now):
            if self.trials.isolation.withheld:  # the others were dropped meanwhile
                self.trials.give_back()
            trial = self.trials.isolation.next_trial(0)
            self.due = FOREVER if trial is None else max(trial, now + SOONEST)
            return None
        self.due = self._choose(now)
        if now < self.due:
            return None
        if not engine.books.open():
            self.due = engine.endpoints.not_before
            return None
        self.due = FOREVER
        self._seen = self._queue.next_seq
        self.endpoints.attempt_at = now
        attempt = BackgroundAttempt(
            partial(self.transport.connect, self.endpoints.current),  # no lane, which may end before it
            _waker(self._queue, self._poke),
            partial(engine.diagnostics.warn, engine.url),
        )
        if engine.inline or not attempt.start():
            attempt.run_here(lambda: _is_over(attempt, engine, now))
        return attempt

    def _wants_connection(self, now: float) -> bool:
        if self.in_flight.to_send or self.trials.is_due(now):
            return True
        return self._has_home and (self._queue.next_seq > self._seen or self.trials.unsent > 0)

    def _choose(self, now: float) -> float:
        """Choose the endpoint to try next; return the monotonic second from which on."""
        if self.in_flight.to_send or self._searches:
            self.endpoints.skip_refused(now)
            return self.endpoints.not_before
        return max(self.endpoints.not_before, self.endpoints.return_to_first())

    def _gives_up(self) -> bool:
        return False

    def call_off(self) -> None:
        """Have an attempt to connect end soon, for a move, a fork or the end."""
        if self._attempt is not None:
            self._attempt.call_off()

    def join(self, timeout: float) -> None:
        """Wait for the end of an attempt."""
        if self._attempt is not None:
            self._attempt.join(timeout)

    # -- a connection is used, and ends --------------------------------------------------------------

    @property
    def _is_moving(self) -> bool:
        return self.is_moving

    def plan(self, until: float) -> float:
        """Prepare a run of the pump; return when it is to end, `until` at most."""
        return self._regulate(until, False)

    def conclude(self, link: Link, end: str) -> None:
        """Draw the conclusions from a run of the pump."""
        taken = self.in_flight.drain_taken()
        if taken:  # a guest's: the home lane of this server overtakes them
            self._books.deferred(taken)
        self._conclude(link, end)

    def _take_back(self) -> None:
        super()._take_back()
        ranges = self.in_flight.to_send
        if ranges:
            self._books.deferred(ranges)

    def _disconnect(self, deadline: float) -> None:
        link, self.link = self.link, None
        self._at_home = False
        self._seen = self._queue.next_seq
        if link is not None:
            link.close(0.0)


def _waker(queue: EventQueue, poke: Callable[[], object]) -> Callable[[], object]:
    """Return the function that has the sender look at once."""

    def wake() -> None:
        poke()
        queue.wake()

    return wake


def _is_over(attempt: BackgroundAttempt, engine: BalancedEngine, began: float) -> bool:
    """Return whether an attempt in a caller's thread is to end."""
    if engine.holds_attempts:
        attempt.call_off()
    return attempt.called_off or engine.is_late(began)


class BalancedEngine(Engine):
    """Delivery of one client over several connections at a time, one for each endpoint.

    Args:
        make_transport: makes a transport for each lane after the first, which has that of the engine.
        arguments: see `Engine`; it has no spool.

    Raises:
        ConfigError: connections of this kind have no compiled pump on this system.
    """

    pump: Any  # a PumpGroup

    def __init__(self, make_transport: Callable[[], Transport], *arguments: Any, **options: Any) -> None:
        self._make_transport = make_transport
        self._lanes: list[Lane] = []
        super().__init__(*arguments, **options)

    @staticmethod
    def check(endpoints: tuple[Any, ...]) -> None:
        """Check that each endpoint can have a connection.

        Raises:
            ConfigError: there are too many, or one twice.
        """
        if len(endpoints) > MOST_ENDPOINTS:
            raise ConfigError(f"balance: for {MOST_ENDPOINTS} servers at most")
        if len(set(endpoints)) < len(endpoints):
            raise ConfigError("balance: each server once")

    def _begin(self) -> None:
        self.check(self._endpoints)
        before, self._lanes = self._lanes, []
        super()._begin()
        for place in range(max(len(before), len(self._endpoints))):
            if place < len(before):
                in_flight, transport = before[place].in_flight, before[place].transport
            else:
                in_flight = self._new_batches()
                transport = self._make_transport() if place else self._transport
            self._add_lane(in_flight, transport)

    def _new_pump(self) -> Any:
        from logclient._ext.pump.group import PumpGroup

        return PumpGroup()

    def _new_batches(self) -> InflightBatches:
        return InflightBatches(self.queue, self.in_flight) if self._lanes else self.in_flight

    def _add_lane(self, in_flight: InflightBatches, transport: Transport) -> None:
        place = len(self._lanes)
        core = self._new_core() if place else self.core
        lane = Lane(core, in_flight, transport, self.limits, self.diagnostics, self.pump.poke)
        if isinstance(lane.pump, PythonPump):
            raise ConfigError(f"balance: needs a compiled pump, but {lane.pump.why}")
        endpoints = Endpoints(self._endpoints, self.limits, self.diagnostics)
        trials = Trials(
            in_flight,
            self.limits,
            len(self._endpoints),
            self.producer,
            self.books,
            self.diagnostics,
            self.exiting,
        )
        lane.begin(endpoints, trials, self.books)
        lane.move(*self._seen_from(place), transport)
        self.pump.add(lane.pump)
        self._lanes.append(lane)

    def _seen_from(self, place: int) -> tuple[tuple[Any, ...], bool]:
        """Return the endpoints in the order of one lane, and whether the first is its home."""
        found = self._endpoints
        first = place % len(found)
        return found[first:] + found[:first], place < len(found)

    @property
    def lanes(self) -> Sequence[Lane]:
        """What has connections: a lane for each endpoint."""
        return tuple(self._lanes)

    @property
    def may_be_reachable(self) -> bool:
        """Whether a server is reachable as far as is known; True before the first attempt."""
        return self.fatal is not None or any(lane.may_be_reachable for lane in self.lanes)

    # -- a turn ------------------------------------------------------------------------------------

    def _deliver(self, until: float) -> None:
        now = time.monotonic()
        lanes = self.lanes
        links = [lane.look(now, self) for lane in lanes]
        until = min([until, *(lane.due for lane in lanes)])
        if not any(links):
            self._commit_gaps()
            if any(lane.waits for lane in lanes):
                self.queue.wait_for_wake(max(0.0, until - time.monotonic()))
            else:
                self._rest(until)
            return
        reserve = max(lane.trials.reserve for lane in lanes)
        for lane, link in zip(lanes, links, strict=True):
            if link is not None:
                until = lane.plan(until)
                if not lane.trials.suspects:
                    lane.trials.hold_back(reserve)  # controls for the trials of another lane
        ends = self.pump.run(links, until)
        for lane, link, end in zip(lanes, links, ends, strict=True):
            if link is not None:
                lane.conclude(link, end)
                self.fatal = self.fatal or lane.fatal
        if self.fatal is not None:
            for lane in lanes:
                if lane.link is not None:
                    lane._leave_link(lane.link)
        self.in_flight.report_gaps()
        self.books.record()

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt to connect may begin, or go on."""
        return self._bypassed or self._gives_up()

    def is_late(self, began: float) -> bool:
        """Return whether an attempt in a caller's thread takes the time of other servers."""
        if len(self._lanes) == 1:
            return False
        some = any(lane.link is not None for lane in self._lanes)
        return time.monotonic() - began > (SHARE if some else ALONE)

    # -- a move ------------------------------------------------------------------------------------

    def _needed_transports(self, endpoints: tuple[Any, ...]) -> int:
        self.check(endpoints)
        return max(len(self._lanes), len(endpoints))

    def _plan_move(self, move: Move, until: float) -> float:
        for lane in self.lanes:
            lane.call_off()
            lane.is_moving = True
        return super()._plan_move(move, until)

    def _apply_move(self, move: Move) -> None:
        super()._apply_move(move)
        for place, transport in enumerate(move.transports):
            if place == len(self._lanes):
                self._add_lane(self._new_batches(), transport)
                continue
            lane = self._lanes[place]
            if place:
                lane.transport.close()
            lane.move(*self._seen_from(place), transport)

    # -- ends --------------------------------------------------------------------------------------

    def _disconnect(self, deadline: float) -> None:
        for lane in self.lanes:
            lane.call_off()
            lane._disconnect(deadline)

    def _end(self) -> None:
        super()._end()
        for lane in self.lanes[1:]:
            lane.transport.close()

    def park(self, pause: bool) -> None:
        """Before a fork: ask all threads to end; see ``Sender.park``."""
        super().park(pause)
        for lane in self.lanes:
            lane.call_off()

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        super().wait_parked(deadline)
        for lane in self.lanes:
            lane.join(deadline - time.monotonic())
