"""The delivery of one client's events: from the queue to their outcomes.

One sender at a time, normally a daemon thread, drives ``Engine.turn``. A turn connects when there is
something to send, lets a pump move bytes, and records its report: ledger, deliveries, counters.

States of the connection::

    idle ──event──> connecting ──ok──> pumping ──peer closed, nothing in flight──> idle
                        │                 │
                        └──── failed ─────┴── lost: requeue, wait (full jitter) ──> connecting

With `keeps_connected` set (a client has listeners), the engine reconnects even when the queue is empty.

The first acknowledgement resets the back-off. Credential errors, the server's or ours, are reported once and
retried at a slower pace, each endpoint on its own. Fatal errors of configuration or version end in ``fatal``:
from then on every event fails with that reason.

The parts: the caller's side in ``delivery.intake``, deliveries in ``delivery.submissions``, the thread in
``delivery.sender``, ends in ``delivery.shutdown``, connections in ``delivery.connections``, endpoints and
back-off in ``delivery.endpoints``, outcomes in ``delivery.bookkeeping``, the search for poison in
``delivery.trials``. ``delivery.balance`` has the engine with several connections at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient import threads
from logclient._ext.constants import R_FATAL
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery import error_log, lifecycle, memory
from logclient.delivery.ages import Ages
from logclient.delivery.bookkeeping import Bookkeeper
from logclient.delivery.connections import MOVE_WAIT, Connections
from logclient.delivery.contract import (
    FOREVER,
    LONGEST,
    TEST_PRODUCERS,
    Core,
    CoreEvent,
    Link,
    Pump,
    Transport,
)
from logclient.delivery.diagnostics import Diagnostics, describe_error
from logclient.delivery.endpoints import Endpoints, WakingAttempt
from logclient.delivery.intake import Intake
from logclient.delivery.pump import describe_pump, make_pump
from logclient.delivery.requests import Requests
from logclient.delivery.stats import COUNTED, Stats
from logclient.delivery.submissions import Submissions
from logclient.delivery.trials import Trials
from logclient.delivery.watching import Watcher
from logclient.errors import is_shortage
from logclient.files.ledger import make_ledger

if TYPE_CHECKING:
    from logclient.config import Config
    from logclient.delivery.spool.adoption import Adoption, Estate
    from logclient.delivery.spool.owner import Spool


ADOPTER_LINGER_S = 30.0
"""How long an engine for a dead owner's events waits for what the transport holds, once all are handed."""


class Move(NamedTuple):
    """A change of the server that was asked for, and by when the old connection ends."""

    endpoints: tuple[Any, ...]
    transports: tuple[Transport, ...]
    url: str
    deadline: float


class Engine(Intake, Connections):
    """Delivery of one client.

    Args:
        make_core: makes a core for a producer (10 bytes).
        transport: makes links and compiled pumps.
        endpoints: where to connect. They are tried in turn, beginning with the last one that worked.
        limits: the configuration, which has all bounds and deadlines.
        ledger: (directory, fields of its ``open`` lines) or None.
        url: redacted, for stats and messages.
        log: the error log; None: that of the process.
        make_adopter: makes an engine for what a dead owner left in the spool.
        estate: what a dead owner left: this engine sends that, and nothing else.
        on_event: called by the sender with unsolicited messages of the peer.

    Raises:
        ConfigError: no native thread can be started in this process.
    """

    def __init__(
        self,
        make_core: Callable[[bytes], Core],
        transport: Transport,
        endpoints: tuple[Any, ...],
        limits: Config,
        *,
        ledger: tuple[str, dict[str, Any]] | None = None,
        url: str = "",
        log: error_log.ErrorLog | None = None,
        make_adopter: Callable[[Estate], Engine] | None = None,
        estate: Estate | None = None,
        on_event: Callable[[CoreEvent], object] = lambda event: None,
    ) -> None:
        threads.check()
        self.limits = limits
        self.url = url
        self.error_log = log or error_log.process
        self.on_end = lambda: None
        self.on_start: Callable[[], object] = lambda: None
        batch_events, batch_bytes = limits.batch_limits
        self.queue = EventQueue(
            max_events=limits.max_events,
            max_bytes=limits.max_bytes,
            max_event_bytes=limits.queued_event_bytes,
            policy=limits.overflow,
            keep_level=limits.keep_level // 10,
            full_events=batch_events,
            full_bytes=batch_bytes,
        )
        self.in_flight = InflightBatches(self.queue)
        self.diagnostics = Diagnostics(url, self.error_log, self.queue)
        has_log = limits.spool is not None and limits.spool_sync != "none"
        self.submissions = Submissions(self.queue, limits.max_events, self.error_log, has_log)
        self.requests = Requests(on_event)
        if limits.on_delivery or limits.on_drop or limits.on_error:
            self.diagnostics.watcher = Watcher(limits, self.submissions.callbacks)
        self.keeps_connected = False
        self.closed = False
        self.exiting = lifecycle.shutting_down()
        self._make_core = make_core
        self._transport = transport
        self._endpoints = endpoints
        self._ledger_place = ledger
        self._make_adopter = make_adopter
        self._estate = estate
        self.spool: Spool | Adoption | None = None
        self._move: Move | None = None
        self._begin()
        if estate is not None:
            self.spool = self._adopt(estate)
        elif limits.spool is not None:
            self._open_spool()
        lifecycle.watch(self)
        memory.join(self.queue)

    def _begin(self) -> None:
        super()._begin()
        limits, endpoints = self.limits, self._endpoints
        self.producer = self._draw_producer() if self._estate is None else self._estate.producer
        self.core = self._new_core()
        self.pump = self._new_pump()
        self._begin_connections()
        self.diagnostics.last_error = ""
        self.submissions.begin(self.pump.poke)
        if self.diagnostics.watcher is not None:
            self.diagnostics.watcher.begin()
        self.requests.begin()
        self.endpoints = Endpoints(endpoints, limits, self.diagnostics)
        self._begin_books()
        self.trials = Trials(
            self.in_flight, limits, len(endpoints), self.producer, self.books, self.diagnostics, self.exiting
        )
        self.turns = 0
        self._ages = None if limits.max_age is None else Ages(limits.max_age)
        self._spool_ages = None if limits.spool is None else Ages(limits.spool_age)
        self._begin_spool()

    def _draw_producer(self) -> bytes:
        if self.limits.only_tests:
            return TEST_PRODUCERS + os.urandom(10 - len(TEST_PRODUCERS))
        while (drawn := os.urandom(10)).startswith(TEST_PRODUCERS):
            pass
        return drawn

    def _new_core(self) -> Core:
        core = self._make_core(self.producer)
        core.set_wall_clock(time.time)
        core.sample_clocks(time.monotonic())  # before the first event
        return core

    def _new_pump(self) -> Pump:
        return make_pump(self._transport, self.in_flight, self.core, self.limits)

    def _begin_books(self) -> None:
        record = None
        if self._estate is not None and self._ledger_place is not None:
            from logclient.delivery.spool.adoption import read_record

            record = read_record(self._ledger_place[0], self.producer.hex())
        self._record = record
        ledger = make_ledger(
            self._ledger_place, self.producer, *((record.parts, record.size) if record else ())
        )
        self.books = Bookkeeper(
            ledger,
            self.in_flight,
            self.pump,
            self.submissions,
            self.requests,
            self.endpoints,
            self.diagnostics,
            self.producer.hex(),
        )

    @property
    def lanes(self) -> Sequence[Connections]:
        """What has connections: this engine itself, which has one at a time."""
        return (self,)

    # -- the spool ---------------------------------------------------------------------------------

    def _begin_spool(self) -> None:
        """In a new client or a forked child, have the spool opened before the first event."""
        self.spool = None
        if self.limits.spool is not None and self._estate is None and not self.closed:
            from logclient.delivery.spool.owner import Spool  # only Linux has it

            assert self._make_adopter is not None
            ledger = self._ledger_place[0] if self._ledger_place is not None else None
            self.spool = Spool(self.limits, self.queue, self.diagnostics, self._make_adopter, ledger)
            self.queue.unopened = True

    def _open_spool(self) -> None:
        if self.spool is not None:
            self.spool.open(self.producer)

    def _adopt(self, estate: Estate) -> Adoption:
        """Queue what a dead owner left, and continue its ledger."""
        from logclient.delivery.spool.adoption import Adoption

        age = self.limits.spool_age
        adoption = Adoption(estate, self.queue, self.in_flight, self._record, self.diagnostics, age)
        self.books.take_over(adoption.unlisted, adoption.history)
        self.core.take_over(os.urandom(10))
        return adoption

    def move(self, endpoints: tuple[Any, ...], make_transport: Callable[[], Transport], url: str) -> None:
        """Deliver to other endpoints from now on. May be called from any thread.

        Events in flight get their outcomes first, within `MOVE_WAIT` seconds; what has none then is sent
        again to the new endpoints. What `make_transport` raises is raised here, and nothing has changed.
        """
        transports = tuple(make_transport() for _ in range(self._needed_transports(endpoints)))
        self._move = Move(endpoints, transports, url, time.monotonic() + MOVE_WAIT)
        if self.spool is not None:
            self.spool.move(endpoints, make_transport, url)
        self.pump.poke()
        self.queue.wake()

    def _needed_transports(self, endpoints: tuple[Any, ...]) -> int:
        return 1

    def begin_adoption(self) -> None:
        """Send what a dead owner left, then end."""
        self.closed = True
        self.queue.close()
        self._leave_until(time.monotonic() + LONGEST)
        self._most_linger = ADOPTER_LINGER_S
        self.end_idle()

    @property
    def ended(self) -> bool:
        """Whether the client has ended."""
        return self._ended

    def _start(self, wait: bool = False) -> bool:
        self.on_start()
        started = super()._start(wait)
        if self.spool is not None and not self._forking and self._leave_by == FOREVER:
            self.spool.start()
        return started

    def park(self, pause: bool) -> None:
        """Before a fork: ask all threads to end; see ``Sender.park``."""
        if self.spool is not None:
            self.spool.park()
        super().park(pause)

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        super().wait_parked(deadline)
        if self.spool is not None:
            self.spool.wait_parked(deadline - time.monotonic())

    def unpark(self) -> bool:
        """Go on in the parent after a fork; return whether a sender has work."""
        has_work = super().unpark()
        if self.spool is not None:
            self.spool.unpark()
        return has_work

    # -- a turn ------------------------------------------------------------------------------------

    def turn(self, until: float) -> None:
        """Deliver, until the monotonic second `until` at most; the caller holds the role.

        A shortage of descriptors, threads or memory ends the connection at worst, never the sender.
        """
        try:
            self._turn(until)
        except (OSError, MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            lost = [lane for lane in self.lanes if lane.link is not None]
            for lane in lost:
                assert lane.link is not None
                lane._lost(lane.link, describe_error(error))
            if not lost:
                self.endpoints.failed(f"{self.url}: {describe_error(error)}", "shortage")

    def _turn(self, until: float) -> None:
        self.turns += 1
        self.submissions.callbacks.ensure_thread()
        self.queue.reopen_wake()
        for lane in self.lanes:
            lane.core.sample_clocks(time.monotonic())
        if self._move is not None:
            until = self._plan_move(self._move, until)
        if self._ages is not None:
            until = self._expire(self._ages, until, drop=False)
        if self._spool_ages is not None:
            until = self._expire(self._spool_ages, until, drop=True)
        if self.fatal is not None:
            self.in_flight.fail(R_FATAL)
            self.in_flight.commit()
            self.books.record()
            self._rest(until)
            return
        self._deliver(until)

    def _deliver(self, until: float) -> None:
        """Connect if there is a use for it, and move bytes until the monotonic second `until` at most."""
        link = self.link if self.link is not None else self._connect(until)
        if link is None:
            self._commit_gaps()
            return
        until = self._regulate(until, self.requests.start(self.core))
        self._conclude(link, self.pump.run(link, until))
        self.in_flight.report_gaps()
        self.books.record()

    @property
    def _is_moving(self) -> bool:
        return self._move is not None

    def _plan_move(self, move: Move, until: float) -> float:
        """Leave the old endpoints once that is possible; return when to ask again, `until` at most."""
        now = time.monotonic()
        waits = False
        for lane in self.lanes:
            if lane.link is not None and lane.in_flight.inflight and now < move.deadline:
                waits = True
            elif lane.link is not None:
                lane._leave_link(lane.link)
        if waits:
            return min(until, move.deadline)
        if self._move is move:
            self._move = None
        self._apply_move(move)
        return until

    def _apply_move(self, move: Move) -> None:
        self._transport.close()
        self._transport, self._endpoints = move.transports[0], move.endpoints
        self.url = self.diagnostics.url = move.url
        self.endpoints.replace(move.endpoints)
        self.fatal = None

    def _commit_gaps(self) -> None:
        """Record events that were dropped from the queue."""
        self.in_flight.report_gaps()
        self.in_flight.commit()
        self.books.record()

    def _expire(self, ages: Ages, until: float, drop: bool) -> float:
        """Fail or drop events that have waited too long; return when to look again, `until` at most."""
        now = time.monotonic()
        old = ages.look(now, self.queue.next_seq - 1)
        if old:
            self.in_flight.expire(old, drop)
        waiting = any(lane.trials.unsent for lane in self.lanes)
        return min(until, now + ages.every) if waiting else until

    def _rest(self, until: float) -> None:
        """Sleep until an event comes, a caller wakes the sender, or `until`."""
        if self.queue.prepare_wait(True):
            self.queue.wait_for_wake(max(0.0, until - time.monotonic()))
        self.queue.finish_wait()

    # -- connecting ---------------------------------------------------------------------------------

    def _connect(self, until: float) -> Link | None:
        """Connect if there is a use for it and the back-off is over."""
        now = time.monotonic()
        if not self._wants_connection(now):
            if self.trials.isolation.withheld:  # the others were dropped meanwhile
                self.trials.give_back()
            else:
                trial = self.trials.isolation.next_trial(0)
                self._rest(until if trial is None else min(until, trial))
            return None
        if now < self.endpoints.not_before:
            self.queue.wait_for_wake(min(until, self.endpoints.not_before) - now)
            if time.monotonic() < self.endpoints.not_before:
                return None
        if not self.books.open():
            return None
        link = self._attempt_connection(now)
        if link is None:
            return None
        if self._bypassed:
            link.close()
            return None
        self._connected(link)
        return link

    def _wants_connection(self, now: float) -> bool:
        if self.trials.unsent or self.requests.waiting:
            return True
        return (self.keeps_connected and not self.closed and not self._orphaned) or self.trials.is_due(now)

    def _attempt_connection(self, now: float) -> Link | None:
        """Try the next endpoint."""
        self.endpoints.skip_refused(now)
        endpoint = self.endpoints.current
        self.endpoints.attempt_at = now
        try:
            warn = partial(self.diagnostics.warn, self.url)
            self._attempt = WakingAttempt(self.queue, self._called_off, warn)
            return self._try(endpoint, partial(self._transport.connect, endpoint, self._attempt))
        finally:
            self._attempt = None  # it holds us
            self.endpoints.attempt_at = 0.0

    def _called_off(self) -> bool:
        """Return whether to stop connecting. Asked many times a second.

        An attempt may take long, so events that are dropped meanwhile are recorded here.
        """
        if self._bypassed:
            return True
        self._commit_gaps()
        return self._gives_up()

    def _gives_up(self) -> bool:
        return self._stopped or self._move is not None

    # -- state -------------------------------------------------------------------------------------

    @property
    def may_be_reachable(self) -> bool:
        """Whether the server is reachable as far as is known; True before the first attempt."""
        return self.link is not None or self.fatal is not None or self.endpoints.hopeful

    def stats(self) -> Stats:
        """Take a snapshot of all counts that adds up."""
        if self.queue.forked:  # from C: the parent's mutex may be held for ever
            self.after_fork()
        counts = self.queue.counters()
        dropped = dict(counts["dropped"])
        ledger = self.books.ledger
        return Stats(
            **{name: counts[name] for name in COUNTED},
            refused=dropped.pop("closed", 0),
            dropped=dropped,
            callbacks=self.submissions.callbacks.waiting,
            connects=sum(lane.connects for lane in self.lanes),
            disconnects=sum(lane.disconnects for lane in self.lanes),
            in_doubt=self.connection.doubt.events,
            in_doubt_estimate=self.connection.doubt.estimate,
            quarantined=sum(lane.trials.suspects for lane in self.lanes),
            batches=self.pump.windows,
            bytes_sent=self.pump.bytes_sent,
            turns=self.turns,
            last_error=self.diagnostics.last_error,
            ledger_error=ledger.stopped if ledger is not None else "",
            spooled=self.spool.events if self.spool is not None else 0,
            spool_error=self.spool.error if self.spool is not None else "",
            url=self.url,
            tls=next((lane._tls for lane in self.lanes if lane._tls), ""),
            pump=describe_pump(self.pump),
            compressor=self.core.compressor,
            producer=self.producer.hex(),
        )
