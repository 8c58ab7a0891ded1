"""The delivery of one client's events: from the queue to their outcomes.

An engine has a queue, a sender, lanes, an ending and books. Callers put events into the queue. One sender at
a time, normally a daemon thread, drives ``Engine.turn``: the lanes connect when there is something to send,
the loop moves bytes, and its report is recorded: ledger, deliveries, counters. ``delivery.ending`` has the
states in which delivery ends; ``delivery.lifecycle`` calls this around forks and at exit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient._ext.constants import PUT_FORKED, PUT_FULL, PUT_UNOPENED, R_CLOSED
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import PumpGroup
from logclient._ext.queue import EventQueue
from logclient.delivery import error_log, lifecycle, memory
from logclient.delivery.ages import Ages
from logclient.delivery.books import TURN, Books, Request
from logclient.delivery.contract import FOREVER, LONGEST, TEST_PRODUCERS, Core, Transport
from logclient.delivery.ending import Ending
from logclient.delivery.lanes import Lanes
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.sender import SLICE, Sender
from logclient.delivery.stats import COUNTED, Stats
from logclient.errors import ConnectFailed, is_shortage
from logclient.files.ledger import make_ledger
from logclient.standard import os, time

if TYPE_CHECKING:
    from logclient._ext.queue import Ticket
    from logclient.config.common import Config
    from logclient.delivery.spool.owner import Spool
    from logclient.delivery.spool.owner_files import OrphanSpool
    from logclient.delivery.spool.replay import Replay

CHECK = 1.0
"""Seconds after which a caller that waits checks whether there is still a sender."""

ORPHAN_TIMEOUT = 50.0
"""Seconds in which a client without references, or with a closed handler, delivers its events."""

OVERTIME = 1.0
"""Seconds for a sender to end beyond the deadline that it was given."""

LOST_BYTES = 8 << 20
"""Bytes of lost events that wait for the fallback and `on_drop`, which get them once a second or sooner."""

REPLAY_DRAIN_S = 30.0
"""How long an engine for a dead owner's events waits for what the transport holds, once all are handed."""


class Engine:
    """Delivery of one client.

    Args:
        make_core: makes a core for a producer (10 bytes).
        transports: make links and compiled pumps: one for each endpoint, to connect to all of them at a time;
            or one, to try them in turn, beginning with the last one that worked.
        endpoints: where to connect.
        limits: the configuration, which has all bounds and deadlines.
        ledger: (directory, fields of its ``open`` lines) or None.
        url: redacted, for stats and messages.
        log: the error log; None: that of the process.
        make_replayer: makes an engine for what a dead owner left in the spool.
        orphan: what a dead owner left: this engine sends that, and nothing else.

    Attributes:
        given_up: events that were not delivered in time.
        why: what kept the last of them from that, in words.
        on_end: called when the client has ended, before its last callbacks have run.

    Raises:
        ConfigError: no native thread can be started in this process.
    """

    spool: Spool | Replay | None

    def __init__(
        self,
        make_core: Callable[[bytes], Core],
        transports: list[Transport],
        endpoints: tuple[Any, ...],
        limits: Config,
        *,
        ledger: tuple[str, dict[str, Any]] | None = None,
        url: str = "",
        log: error_log.ErrorLog | None = None,
        make_replayer: Callable[[OrphanSpool], Engine] | None = None,
        orphan: OrphanSpool | None = None,
    ) -> None:
        threads.check()
        self.limits = limits
        self._blocks = limits.policy == "block"
        self.error_log = log or error_log.process
        self.on_end: Callable[[], object] = lambda: None
        batch_events, batch_bytes = limits.batch_limits
        self.queue = EventQueue(
            max_events=limits.max_events,
            max_bytes=limits.max_bytes,
            max_event_bytes=limits.queued_event_bytes,
            policy=limits.policy,
            keep_level=limits.keep_level // 10,
            full_events=batch_events,
            full_bytes=batch_bytes,
        )
        self.in_flight = InflightBatches(self.queue)
        self.books = Books(self.in_flight, limits, url, self.error_log)
        if self.books.keeps_lost:
            self.queue.keep_lost(LOST_BYTES)
        self.diagnostics = self.books.diagnostics
        self.submissions = self.books.submissions
        self.submissions.waiter = weakref.WeakMethod(self.wait_delivered)
        self.ending = Ending(limits.atexit_timeout, handed=lifecycle.shutting_down())
        self._make_core = make_core
        self._transports = transports
        self._endpoints = endpoints
        self._ledger_target = ledger
        self._make_replayer = make_replayer
        self._orphan = orphan
        self._keeps_connected = False
        self._begin([self.in_flight])
        if orphan is not None:
            self.spool = self._begin_replay(orphan)
        elif limits.spool is not None:
            self._open_spool()
        lifecycle.watch(self)
        memory.join(self.queue)

    def _begin(self, batches: list[InflightBatches]) -> None:
        """Start anew: in a new client, and in the child of a fork."""
        limits, ending, books = self.limits, self.ending, self.books
        self.given_up = 0
        self.why = ""
        self.turns = 0
        self.producer = self._draw_producer() if self._orphan is None else self._orphan.producer
        self.pump = PumpGroup()
        record = None if self._orphan is None else self._orphan.record
        earlier = () if record is None else (record.parts, record.size)
        ledger = make_ledger(self._ledger_target, self.producer, *earlier)
        books.begin(self.producer.hex(), ledger, self.pump)
        self.sender = Sender(ending, self.queue, self.pump, books)
        make_core = partial(_new_core, self._make_core, self.producer)  # without the engine, which is to end
        self.lanes = Lanes(
            self._endpoints,
            self._transports,
            batches,
            make_core,
            self.pump,
            limits,
            self.sender,
            books,
            self._keeps_connected,
        )
        books.event_of, books.dates_events = self.core.event_of, self.core.dates_events
        self._ages = None if limits.max_age is None else Ages(limits.max_age)
        self._spool_ages = None if limits.spool is None else Ages(limits.spool_age)
        self._refusal_reported = False
        self._begin_spool()

    def _draw_producer(self) -> bytes:
        if self.limits.only_tests:
            return TEST_PRODUCERS + os.urandom(10 - len(TEST_PRODUCERS))
        while (drawn := os.urandom(10)).startswith(TEST_PRODUCERS):
            pass
        return drawn

    # -- state -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where events go, redacted."""
        return self.diagnostics.url

    @property
    def core(self) -> Core:
        """The core that answers requests."""
        return self.lanes.first.core

    @property
    def closed(self) -> bool:
        """Whether no more events are taken."""
        return self.ending.closed

    @property
    def ended(self) -> bool:
        """Whether the client has ended."""
        return self.ending.is_ended

    @property
    def running(self) -> bool:
        """Whether a thread is the sender."""
        return self.ending.running

    @property
    def inline(self) -> bool:
        """Whether callers deliver the events that they wait for, because there is no thread for it."""
        return self.sender.inline

    @property
    def settled_all(self) -> bool:
        """Whether every event has its outcome."""
        return self.queue.settled >= self._last

    @property
    def has_work(self) -> bool:
        """Whether a sender is needed even if no event comes."""
        if not self.ending.is_open:
            return False
        return not self.settled_all or self.ending.is_draining or self._keeps_connected

    @property
    def _last(self) -> int:
        """The sequence of the last event."""
        return self.queue.next_seq - 1

    def stats(self) -> Stats:
        """Take a snapshot of all counts that adds up."""
        self._notice_fork()  # from C: the parent's mutex may be held for ever
        counts = self.queue.counters()
        dropped = dict(counts["dropped"])
        ledger = self.books.ledger
        lanes = list(self.lanes)
        return Stats(
            **{name: counts[name] for name in COUNTED},
            refused=dropped.pop("closed", 0),
            dropped=dropped,
            callbacks=self.submissions.callbacks.waiting,
            connects=sum(lane.connects for lane in lanes),
            disconnects=sum(lane.disconnects for lane in lanes),
            in_doubt=sum(lane.connection.in_doubt for lane in lanes),
            missing=sum(lane.core.missing for lane in lanes),
            quarantined=sum(lane.trials.suspects for lane in lanes),
            batches=self.pump.windows,
            bytes_sent=self.pump.bytes_sent,
            turns=self.turns,
            last_error=self.diagnostics.last_error,
            ledger_error=ledger.stopped if ledger is not None else "",
            spooled=self.spool.events if self.spool is not None else 0,
            spool_error=self.spool.error if self.spool is not None else "",
            url=self.url,
            tls=next((lane.tls for lane in lanes if lane.tls), ""),
            pump=f"python: {why}" if (why := lanes[0].pump.why) else "compiled",
            compressor=self.core.compressor,
            producer=self.producer.hex(),
        )

    # -- callers: events ---------------------------------------------------------------------------

    def put(self, body: bytes, level: int, kind: int) -> int:
        """Queue one encoded event; return its sequence, or 0 when it was dropped."""
        seq = self.queue.push(body, level, kind)
        if seq < 0:
            return self.put_contended(seq, body, level, kind)
        if self.queue.needs_sender:
            self.ensure_sender()
        return seq

    def put_contended(
        self,
        code: int,
        body: bytes,
        level: int,
        kind: int,
        delivery: Delivery | None = None,
        deadline: float | None = None,
    ) -> int:
        """Finish a put that the queue did not take at once, for the reason `code`; return as ``put`` does.

        A ``block`` gives up at the monotonic second `deadline`; None: as the options say.
        """
        if code == PUT_FORKED:
            self.after_fork()
            code = self.submissions.push(body, level, kind, delivery)
        if code == PUT_UNOPENED:
            self._open_spool()
            code = self.submissions.push(body, level, kind, delivery)
        if code == PUT_FULL and self._blocks:
            self.ensure_sender()
            if deadline is None:
                deadline = self._block_until()
            code = self._push_in_turn(body, level, kind, delivery, deadline)
        if code in (PUT_FULL, PUT_UNOPENED):  # a signal handler logs while the spool is opened
            self.queue.refuse(body, kind)
        if self.queue.needs_sender:
            self.ensure_sender()
        return max(code, 0)

    def _push_in_turn(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, deadline: float
    ) -> int:
        """Wait for room until `deadline`, first come, first served; return what ``EventQueue.push`` does.

        A caller that must not wait goes first, if there is room.
        """
        ticket = self.queue.ticket(len(body))
        try:
            if lifecycle.must_not_block(self.sender.ident):
                return self.submissions.push(body, level, kind, delivery, ticket)
            while (left := deadline - time.monotonic()) > 0 and self._wait_room(ticket, len(body), left):
                code = self.submissions.push(body, level, kind, delivery, ticket)
                if code == PUT_FORKED:  # a signal handler has forked, from C
                    self.after_fork()
                elif code != PUT_FULL:
                    return code
            return PUT_FULL
        finally:
            ticket.leave()

    def _wait_room(self, ticket: Ticket, size: int, seconds: float) -> bool:
        """Wait until a push with this ticket finds room; return whether to try it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.inline:  # there is no other thread to make room
                return self.sender.drive(self, lambda: self.queue.fits(size), min(left, self.ending.patience))
            # In slices: the process may begin to exit meanwhile, or the sender has ended.
            slice_ = min(left, CHECK)
            if threads.wait_until(ticket.is_ready, slice_) if threads.is_green() else ticket.wait(slice_):
                return True
            self.ensure_sender()
        return False

    def _block_until(self) -> float:
        """Return when a ``block`` gives up that begins now: a monotonic second."""
        timeout = self.limits.block_seconds
        return FOREVER if timeout is None else time.monotonic() + timeout

    def ensure_sender(self) -> None:
        """Start a sender, or be one. Called after a put while the queue asks for it."""
        self._notice_fork()
        error_log.write_deferred()
        if self.closed:
            self._report_refusal()
            return
        if not self.inline and (self.start_sender() or not self.ending.threadless):
            return
        if not lifecycle.must_not_block(self.sender.ident):
            target = self._last
            self.sender.drive(self, lambda: self._reached(target), self.ending.patience)

    def _report_refusal(self) -> None:
        """Report once that events are dropped because they come after ``close``."""
        if self.books.keeps_lost:
            self.books.save_lost_later()
        elif not self.running and self.ended:
            self.queue.needs_sender = False
        if not self._refusal_reported and self.queue.counters()["dropped"].get("closed"):
            self._refusal_reported = True
            text = f"{self.url}: closed, so later events are dropped (stats count them as refused)"
            self.diagnostics.warn_limited("refused", text)

    def submit(self, body: bytes, level: int, kind: int) -> Delivery:
        """Queue one event and follow it."""
        self._notice_fork()
        submissions = self.submissions
        delivery = Delivery(0, submissions.callbacks)
        seq, deadline = 0, None
        # A callback makes room by its end.
        crowded = submissions.is_crowded() and not submissions.callbacks.here
        if crowded and self._blocks:
            deadline = self._block_until()
            crowded = not self._wait_uncrowded(deadline)
        if crowded:
            self.queue.refuse(body, kind)
        else:
            seq = submissions.push(body, level, kind, delivery)
            if seq < 0:
                seq = self.put_contended(seq, body, level, kind, delivery, deadline)
            elif self.queue.needs_sender:
                self.ensure_sender()
        if not seq:
            full = "overflow" if self.spool is None else "spool_full"
            delivery._settle(Outcome("dropped", "closed" if self.closed else full))
        return delivery

    def refuse(self, reason: str) -> Delivery:
        """Return the delivery of an event that was dropped before it was queued."""
        delivery = Delivery(0, self.submissions.callbacks)
        delivery._settle(Outcome("dropped", reason))
        return delivery

    def _wait_uncrowded(self, deadline: float) -> bool:
        """Wait until one more event may be submitted; return whether it may."""
        if lifecycle.must_not_block(self.sender.ident):
            return False
        crowded = self.submissions.is_crowded
        left = deadline - time.monotonic()
        if self.inline:  # there may be no other thread to run them
            self.submissions.callbacks.drain(time.monotonic() + min(left, self.ending.patience))
            return self.closed or not crowded()
        self.ensure_sender()  # a sender that ended has outcomes to report
        return threads.wait_until(lambda: self.closed or not crowded(), left)

    # -- callers: waiting --------------------------------------------------------------------------

    def flush(self, timeout: float) -> int:
        """Wait until all events sent before this call are settled; return how many are not."""
        self._notice_fork()
        if self.ending.is_handed:
            timeout = min(timeout, self.ending.patience)
        target = self._last
        settled = self._wait_settled(target, timeout)
        error_log.write_deferred()
        return 0 if settled else self.unsettled(target)

    def flush_if_reachable(self, timeout: float) -> int:
        """Flush, but do not wait for a server that cannot be reached."""
        self._notice_fork()
        if self.ending.is_handed:
            timeout = min(timeout, self.ending.patience)
        deadline = time.monotonic() + timeout
        target = self._last
        while not self._wait_settled(target, max(0.0, min(deadline - time.monotonic(), SLICE))):
            reachable = self.lanes.may_be_reachable and not lifecycle.cannot_wait(self.sender.ident)
            if time.monotonic() >= deadline or not reachable:
                return self.flush(0.0)
        return 0

    def unsettled(self, target: int) -> int:
        """Return how many events up to this sequence have no outcome."""
        # Acks may come in any order: events beyond `settled` may have their outcome, too.
        counts = self.queue.counters()
        return int(max(0, min(target - counts["settled"], counts["queued"] + counts["inflight"])))

    def _wait_settled(self, target: int, timeout: float) -> bool:
        def wait(seconds: float) -> bool:
            if threads.is_green():
                return threads.wait_until(lambda: self._reached(target), seconds)
            return self.queue.wait_settled(target, seconds)

        return self.queue.settled >= target or self._wait(lambda: self._reached(target), wait, timeout)

    def _wait(self, done: Callable[[], bool], wait: Callable[[float], bool], timeout: float) -> bool:
        """Wait for what the sender does; be the sender where no thread can be, and not the sender itself.

        ``wait(seconds)`` returns whether it was done within them.
        """
        if lifecycle.cannot_wait(self.sender.ident):
            return done()
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if self.inline:
                return self.sender.drive(self, done, left)
            slice_ = min(left, CHECK)  # the sender may end meanwhile, and Python notices signals in between
            if self.start_sender():
                self.queue.wake()
                found = wait(slice_)
            else:
                found = self.sender.drive(self, done, slice_)
            if found or left <= slice_:
                return found

    def wait_delivered(self, delivery: Delivery, done: threads.Event, timeout: float | None) -> None:
        """Wait for the outcome of a delivery, which sets `done`; None: while the process lives."""
        self._notice_fork()
        seconds = FOREVER if timeout is None else timeout
        if self.inline:
            seconds = min(seconds, self.ending.patience)
        self._wait(delivery.done, done.wait, seconds)

    def _reached(self, target: int) -> bool:
        """Return whether every event up to `target` has its outcome; if not, the pump returns when it has."""
        self.queue.set_flush_target(target)
        return self.queue.settled >= target

    # -- callers: requests -------------------------------------------------------------------------

    def request(self, kind: str, payload: Any, timeout: float) -> tuple[Any, float]:
        """Ask the server something, and wait `timeout` seconds at most; return its answer and its seconds.

        Raises:
            ConnectFailed: there is no answer in time, or no connection.
            ValueError: the protocol has no such question.
        """
        if lifecycle.must_not_block(self.sender.ident):
            raise ConnectFailed(f"{kind}: not from here")
        request, _ = self.begin_request(kind, payload)
        self._wait(lambda: request.done, request.wait, timeout)
        return self.finish_request(request, timeout)

    def begin_request(
        self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None
    ) -> tuple[Request, bool]:
        """Ask the server something, without waiting; return the request, and whether there is a sender.

        Raises:
            ConnectFailed: the client is closed.
        """
        self._notice_fork()
        if self.closed:
            raise ConnectFailed(f"{kind}: the client is closed")
        request = self.books.requests.add(kind, payload, when_done)
        begun = not self.inline and self.start_sender()
        if begun:
            self._wake()
        return request, begun

    def finish_request(self, request: Request, timeout: float) -> tuple[Any, float]:
        """End a request that was waited for `timeout` seconds; return and raise as ``request`` does."""
        why = self.diagnostics.last_error or "silence"
        request.settle(error=ConnectFailed(f"{request.kind}: no answer in {timeout:g} s: {why}"))
        if request.error is not None:
            raise request.error
        return request.reply, request.seconds

    def post_command(self, kind: str, payload: Any) -> None:
        """Give the core a command, which has no answer.

        It holds from the next event on; events that were put before go before it. By one thread at a time.

        Raises:
            ValueError: the core does not take it.
        """
        self._notice_fork()
        self.core.post_command(kind, payload, self.queue.next_seq, self.in_flight)
        if self.running:
            self._wake()

    def keep_connected(self, on: bool) -> None:
        """Begin or stop keeping a connection even if there is nothing to send.

        In a forked child this holds from its first event on.
        """
        if on:
            self._notice_fork()
        self._keeps_connected = on and not self.closed
        self.lanes.keep_connected(self._keeps_connected)
        if self._keeps_connected and not self.inline and self.start_sender():
            self.queue.wake()

    def _wake(self) -> None:
        """Have the sender look at once."""
        self.pump.poke()
        self.queue.wake()

    # -- the sender --------------------------------------------------------------------------------

    def start_sender(self, wait: bool = False) -> bool:
        """Start the sender's thread unless it runs; return False when none can be started."""
        started = self.sender.start(self, wait)
        if self.spool is not None and not self.ending.forking and not self.ending.is_draining:
            self.spool.start()
        return started

    def step(self) -> bool:
        """Deliver for a while; return False, without doing that, when draining is over."""
        if self._drained():
            return False
        pause = self.books.pause
        if not self.settled_all and self.lanes.connected:
            pause = min(pause, TURN)
        self.turn(min(time.monotonic() + pause, self.ending.hand_off_at, self.ending.deadline))
        return True

    def _drained(self) -> bool:
        """Return whether draining is over; if not, the pump returns when it is."""
        ending = self.ending
        if ending.is_over(self.queue.settled, self._last, time.monotonic()):
            return True
        if ending.is_draining:
            self.queue.set_flush_target(ending.goal(self._last))
        return False

    def turn(self, until: float) -> None:
        """Deliver, until the monotonic second `until` at most; the caller holds the role.

        A shortage of descriptors, threads or memory ends the connection at worst, never the sender.
        """
        try:
            self.turns += 1
            self.submissions.callbacks.ensure_thread()
            self.queue.open_wake()
            for lane in self.lanes:
                lane.core.sample_clocks(time.monotonic())
            if self._ages is not None:
                until = self._expire(self._ages, until, drop=False)
            if self._spool_ages is not None:
                until = self._expire(self._spool_ages, until, drop=True)
            self.lanes.deliver(self.books.say_alive(until))
        except (OSError, MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            self.lanes.run_short(error)

    def _expire(self, ages: Ages, until: float, drop: bool) -> float:
        """Fail or drop events that have waited too long; return when to look again, `until` at most."""
        now = time.monotonic()
        old = ages.look(now, self._last)
        while old and self.in_flight.expire(old, drop):
            self.books.save_lost()
        waiting = any(lane.trials.unsent for lane in self.lanes)
        return min(until, now + ages.every) if waiting else until

    # -- the spool ---------------------------------------------------------------------------------

    def _begin_spool(self) -> None:
        """In a new client or a forked child, have the spool opened before the first event."""
        self.spool = None
        if self.limits.spool is not None and self._orphan is None and not self.closed:
            from logclient.delivery.spool.owner import Spool  # only Linux has it

            assert self._make_replayer is not None
            ledger = self._ledger_target[0] if self._ledger_target is not None else None
            self.spool = Spool(self.limits, self.queue, self.diagnostics, self._make_replayer, ledger)
            self.queue.open_first(True)

    def _open_spool(self) -> None:
        if self.spool is not None:
            self.spool.open(self.producer)

    def _begin_replay(self, orphan: OrphanSpool) -> Replay:
        """Queue what a dead owner left, and continue its ledger."""
        from logclient.delivery.spool.replay import Replay

        age = self.limits.spool_age
        replay = Replay(orphan, self.queue, self.in_flight, self.diagnostics, age)
        self.books.take_over(replay.unlisted, replay.history)
        self.core.take_over(os.urandom(10))
        return replay

    def begin_replay(self) -> None:
        """Send what a dead owner left, then end."""
        for lane in self.lanes:
            lane.drain_timeout = REPLAY_DRAIN_S
        self.retire(LONGEST)
        self.end_idle()

    # -- close -------------------------------------------------------------------------------------

    def close(self, timeout: float) -> int:
        """Take no more events, deliver the queued ones, and end; return how many events were given up.

        A call that was interrupted may be made again: it goes on. Until then the sender goes on by
        itself, and the end of the process waits for it.

        While the interpreter exits, only the queued events are delivered: more may come from
        later exit handlers, and are delivered in their call.
        """
        self._notice_fork()
        timeout = max(0.0, min(timeout, LONGEST))
        if self.ending.is_handed and not self.closed:
            left = self.flush(min(timeout, self.ending.patience))
            with self.sender.role(SLICE) as has_role:
                if has_role:
                    self.books.write_totals()
            return left
        if not self.ended:
            self.retire(timeout)
            if not lifecycle.cannot_wait(self.sender.ident):
                deadline = self.ending.deadline
                self.wait_left(deadline, OVERTIME)
                self.drain_callbacks(max(deadline, time.monotonic() + OVERTIME), "when close() ended")
        return self.remaining

    @property
    def remaining(self) -> int:
        """The number of events that were given up, or have no outcome yet."""
        counts = self.queue.counters()
        # A sender that is stuck in a name look-up ends when it comes back.
        return int(self.given_up + counts["queued"] + counts["inflight"])

    def begin_close(self, timeout: float) -> bool:
        """Begin to close, without waiting; return whether there is something to wait for."""
        self._notice_fork()
        self.retire(max(0.0, min(timeout, LONGEST)))
        return not self.ended

    def end_idle(self) -> None:
        """Finish ``begin_close`` where there is no sender: all is settled, or the time is over."""
        if not self.running:
            self.wait_left(time.monotonic(), 0.0)

    def retire(self, seconds: float) -> None:
        """Take no more events; have the sender deliver the queued ones, for `seconds` at most, and end."""
        self._retire(self.ending.close(time.monotonic() + seconds))

    def _retire(self, begun: bool) -> None:
        if begun:
            self.queue.close()
            self._keeps_connected = False
            self.lanes.keep_connected(False)
            self._begin_draining()

    def _begin_draining(self) -> None:
        """Have the sender deliver what is left by the deadline."""
        self.lanes.plan_end(self.ending.deadline)
        if not self.running and not self.inline and not self.settled_all:
            self.start_sender()
        self._wake()

    def retire_in_background(self, patience: float) -> None:
        """Retire for a caller that may not wait for a server: only for a sender that ends by itself.

        The `patience` is 0 seconds in finalizers, which run in any thread.
        """
        self._notice_fork()
        if not self.ending.is_open:
            return
        self._retire(self.ending.close_in_background(time.monotonic() + ORPHAN_TIMEOUT))
        if self.inline:
            if patience:
                self.wait_left(time.monotonic() + patience, 0.0)
            return
        self._start_for_files()
        if self.spool is None and all(lane.link is None for lane in self.lanes):  # nothing waits below
            self._leave_idle()
        if patience and self.lanes.may_be_reachable:
            self.sender.join(patience)

    def finalize(self) -> None:
        """Deliver the queued events within `ORPHAN_TIMEOUT` seconds, then end: the client is unreferenced."""
        if not self.ending.is_open:
            return
        self._retire(self.ending.close_in_background(time.monotonic() + ORPHAN_TIMEOUT))
        if not self.inline:
            self._start_for_files()
        self._leave_idle()

    def _leave_idle(self) -> None:
        """End where there is no sender, and nothing for one to do."""
        if not self.running and (self.inline or self.settled_all):
            with self.sender.role(0.0) as has_role:
                if has_role:
                    self.leave()

    def _start_for_files(self) -> None:
        """Start a sender although nothing is queued: files of the spool have to go, and that takes long."""
        if not self.running and self.spool is not None:
            self.start_sender()

    def wait_left(self, by: float, grace: float) -> bool:
        """Wait until `by`, and `grace` seconds more, for the end of a sender; return whether it has ended.

        Be the sender when no thread is.
        """
        if self.running:
            self.sender.join(by - time.monotonic() + grace)
        if self.ending.is_open:
            with self.sender.role(SLICE) as has_role:
                if has_role:
                    with self.sender.acting(by):
                        self.ending.finish_alone()  # or one client would take the time of the next
                        while not self._drained() and (now := time.monotonic()) < by:
                            self.turn(min(by, now + SLICE))
                        if self._drained():
                            self.leave()
        return not self.ending.is_open

    def leave(self) -> None:
        """End, or leave the role to callers at exit. The caller holds the role."""
        if not self.ending.is_open:
            return
        if self.ending.hand_over():
            self._hand_over()
        else:
            self._end()

    def _end(self) -> None:
        """End, and fail the events without an outcome."""
        deadline = self.ending.deadline
        self.queue.close()
        left = self._settle_rest()
        self.books.record()
        self.submissions.settle([(1, 1 << 48, "failed", "closed")])  # those that are left
        self.books.close()
        self._give_up(left)
        self.lanes.close(deadline)
        if self.spool is not None:
            self.spool.close(deadline)
        self.ending.end()
        self.queue.needs_sender = True
        self.queue.release()
        self.on_end()

    def _settle_rest(self) -> int:
        """Leave the events that have no outcome in the spool, or fail them; return how many failed."""
        self.why = self.lanes.why
        if self.spool is None or not self.spool.is_open:
            return self.lanes.fail(R_CLOSED)
        self.spool.make_room()
        before = self.queue.counters()
        self.in_flight.keep()
        self.in_flight.commit()
        after = self.queue.counters()
        if stored := after["stored"] - before["stored"]:
            what = error_log.counted(stored, "event")
            where = self.spool.directory
            how = f"the next client that opens it sends them, or: logclient spool drain {where} --to URL"
            text = f"{self.url}: {what} left in the spool {where}: {how}"
            self.diagnostics.warn_limited("stored", text)
        return int(after["failed"].get("closed", 0) - before["failed"].get("closed", 0))

    def _give_up(self, events: int) -> None:
        """Count and report events that were not delivered in time; at exit, one line for all clients."""
        self.given_up += events
        if events and self.ending.exit_by == FOREVER:
            what = error_log.counted(events, "event")
            text = f"{self.url}: {what} given up: the client ended before delivery"
            self.diagnostics.last_error = text
            lifecycle.given_up(self.error_log, events, text)

    def drain_callbacks(self, deadline: float, when: str = "before exit") -> int:
        """Have callbacks run until the monotonic `deadline`; report and return how many have not."""
        left = self.submissions.callbacks.drain(deadline)
        if left:
            calls = "callback" if left == 1 else "callbacks"
            words = "did not run" if when == "before exit" else "had not run"
            more = "" if when == "before exit" else "; that goes on while the process lives"
            self.error_log.warn_limited("callbacks", f"{self.url}: {left} {calls} {words} {when}{more}", 40)
        return left

    # -- exit (called by lifecycle) ----------------------------------------------------------------

    def begin_exit(self, deadline: float) -> bool:
        """Have the sender end by the monotonic `deadline`; return whether there is one to wait for.

        Called for all clients first.
        """
        self._notice_fork()
        begun = self.ending.exit(deadline, time.monotonic(), self._last)
        if begun:
            self._begin_draining()
        return begun

    def _hand_over(self) -> None:
        """Leave the role to callers at exit; queued events have the rest of the time."""
        deadline = self.ending.deadline
        self._let_callers_deliver()
        # Daemon threads may log on: this thread delivers their events so far, they deliver later ones.
        target = self._last
        while not self._reached(target) and (now := time.monotonic()) < deadline:
            self.turn(min(deadline, now + SLICE))
        if self.queue.settled < target:
            self._give_up(self._settle_rest())
        self.lanes.drain(deadline)
        self.books.record()
        self.books.write_totals()
        self.ending.handed_over(time.monotonic())

    def _let_callers_deliver(self) -> None:
        for lane in self.lanes:
            lane.trials.stopped = True
        self.queue.needs_sender = True

    def turned_at_exit(self, done: Callable[[], bool], deadline: float) -> None:
        """Finish a turn of a caller that delivers while the process ends."""
        if done():
            self.lanes.drain(deadline)
        self.books.write_totals()
        if self.spool is not None and self.settled_all:
            self.spool.leave()

    def leave_spool(self) -> None:
        """Keep only the files of the spool that events lie in. Called when delivery at exit is over."""
        if self.spool is not None and not self.ended:
            with self.sender.role(0.0) as has_role:
                if has_role:
                    self.spool.leave()

    def undelivered(self, before: int) -> int:
        """Return how many events were given up since `given_up` was `before`, after the wait at exit."""
        self.books.report_dropped(at_end=True)
        if not self.ending.is_open:
            return self.given_up - before
        # Its thread is stuck in a name look-up. Later events are delivered in the call that logs them.
        stuck = self.lanes.holds_sender
        self.ending.abandon(stuck)
        self._let_callers_deliver()
        left = self._last - self.queue.settled
        if stuck:
            # It touches nothing else: its events fail here, and are listed.
            left = self._settle_rest()
            self.books.open()
            self.books.record()
            self.books.write_totals()
        return left

    # -- a fork (called by lifecycle) --------------------------------------------------------------

    def park(self, pause: bool) -> None:
        """Before a fork: ask all threads to end; see ``Sender.park``."""
        if self.spool is not None:
            self.spool.park()
        self.sender.park(pause)
        self.submissions.callbacks.park()
        for lane in self.lanes:
            lane.park()

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        self.sender.wait_parked(deadline - time.monotonic())
        self.submissions.callbacks.wait_parked(deadline - time.monotonic())
        if self.spool is not None:
            self.spool.wait_parked(deadline - time.monotonic())
        for lane in self.lanes:
            lane.wait_parked(deadline - time.monotonic())

    def unpark(self) -> bool:
        """Go on in the parent after a fork; return whether a sender has work."""
        self.sender.unpark()
        has_work = self.has_work
        if self.spool is not None:
            self.spool.unpark()
        return has_work

    def restart(self) -> bool:
        """Have a sender again after a fork; return whether its thread was started."""
        if self.inline:
            self.ensure_sender()
            return False
        return not self.running and self.start_sender() and self.running

    def _notice_fork(self) -> None:
        """Start anew in the child of a fork that no hook has seen."""
        if self.queue.forked:
            self.after_fork()

    def after_fork(self) -> None:
        """Start anew in the child: empty queue, new producer, no connection. The parent keeps its own."""
        ledger, deliveries, parents = self.books.ledger, self.submissions.deliveries, list(self.lanes)
        batches = self.lanes.batches
        self.error_log.after_fork()
        self.submissions.callbacks.begin()
        if self.spool is not None:
            self.spool.abandon()
        self.queue.renew()
        for in_flight in batches:
            in_flight.renew()
        self.ending = Ending(self.limits.atexit_timeout, closed=self.closed, handed=self.ending.is_handed)
        self._begin(batches)
        if self.closed:
            self.queue.close()
            self.queue.release()
        for lane in parents:
            lane.abandon()
        if ledger is not None:
            ledger.close()
        for delivery in deliveries.values():
            delivery._done = None  # a thread of the parent may have waited for it
            delivery._settle(Outcome("failed", "forked"))


def _new_core(make_core: Callable[[bytes], Core], producer: bytes) -> Core:
    core = make_core(producer)
    core.set_wall_clock(time.time)
    core.sample_clocks(time.monotonic())  # before the first event
    return core
