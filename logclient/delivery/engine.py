"""What happens to your event: the engine takes it from the hand-off to its fate.

One sender at a time holds the *role* and drives ``turn``: normally a daemon thread, started by the
first event; at interpreter exit, where no thread can be started any more, the caller's own. A turn
connects when there is something to send, lets a pump move bytes (without the GIL, where the core and
the transport allow it) and books what the pump reports: ledger, deliveries, counters.

States of the connection::

    idle ──event──> connecting ──ok──> pumping ──peer closed, nothing in flight──> idle
                        │                 │
                        └──── failed ─────┴── lost: requeue, wait (full jitter) ──> connecting

Who listens to what the server says of its own accord (``stay``) is never idle: that connects again, too.

A first acknowledgement resets the wait. Who does not accept our credentials, or shows some that we do
not accept, is told of once and waited for at a slower pace, each endpoint by itself: the others are
tried as usual. Fatal errors of configuration or version end in ``fatal``: everything fails with that
reason, at once and for ever.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import random
from typing import Any, NamedTuple, Protocol

from logclient._ext.flight import Flight
from logclient._ext.handoff import REASONS, Handoff
from logclient._ext.record import own_thread
from logclient.delivery import lifecycle
from logclient.delivery.calls import Calls
from logclient.delivery.isolation import ASIDE, NOTHING, POISON, Isolation
from logclient.delivery.ledger import Ledger
from logclient.delivery.outcomes import CallbackThread, Delivery, Outcome
from logclient.delivery.pump import FATE, REPORT_EVERY, Link, Pump, PythonPump
from logclient.delivery.report import Reporter
from logclient.delivery.retry import Backoff
from logclient.delivery.stats import Stats
from logclient.errors import ConnectFailed, CredentialError
from logclient.protocols.core import Core, CoreEvent
from logclient.protocols.core import Outcome as Settled

PUT_FORKED, PUT_FULL, PUT_MEMORY = -1, -2, -3

R_CLOSED = REASONS.index("closed")
R_MAX_AGE = REASONS.index("max_age")
R_FATAL = REASONS.index("fatal")
R_POISON = REASONS.index("poison")

TURN = 1.0
"""Seconds after which a pump comes back even when nothing happened."""

SLICE = 0.05
"""Seconds between two looks at whether what a caller drives for has come."""

UNTOLD = 100_000
"""Submitted events, beyond `max_events`, whose outcome is still to be told, at most."""

PARK = 0.05
"""Seconds a fork waits for the sender to let go."""


class Limits(NamedTuple):
    """What the engine needs of a configuration. Seconds, bytes."""

    max_events: int = 250_000
    max_bytes: int = 64 << 20
    max_event_bytes: int = 1 << 20
    overflow: str = "drop_new"
    block_timeout: float | None = None
    keep_level: int = 4
    batch_events: int = 2048
    batch_bytes: int = 1 << 20
    nap: float = 0.005
    no_progress: float = 300.0
    backoff_min: float = 0.1
    backoff_max: float = 30.0
    slow_min: float = 30.0
    slow_max: float = 300.0
    max_age: float | None = None
    atexit_timeout: float = 2.0


class Transport(Protocol):
    def connect(self, endpoint: Any, stopped: Callable[[], bool]) -> Link: ...
    def pump(self, flight: Flight, core: Core, **limits: Any) -> Pump | None: ...


class _Slow:
    """An endpoint with which something must be mended first."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.not_before = 0.0
        self.said: tuple[object, ...] = ()


class Engine:
    """Delivery of one client.

    Args:
        make_core: a new core for a producer (10 bytes).
        transport: where links and compiled pumps come from.
        endpoints: where to connect, tried in turn, the one that worked again first.
        limits: bounds and deadlines.
        ledger: (directory, what its ``open`` lines say) or None.
        url: redacted, for stats.
        heard: called by the sender with replies and what the peer says of its own accord.
    """

    def __init__(
        self,
        make_core: Callable[[bytes], Core],
        transport: Transport,
        endpoints: tuple[Any, ...],
        limits: Limits,
        *,
        ledger: tuple[str, dict[str, Any]] | None = None,
        url: str = "",
        reporter: Reporter | None = None,
        heard: Callable[[CoreEvent], object] = lambda event: None,
    ) -> None:
        self.limits = limits
        self.url = url
        self.reporter = reporter or Reporter()
        self.heard = heard
        self.handoff = Handoff(
            max_events=limits.max_events,
            max_bytes=limits.max_bytes,
            max_event_bytes=limits.max_event_bytes,
            policy=limits.overflow,
            keep_level=limits.keep_level,
            full_events=limits.batch_events,
            full_bytes=limits.batch_bytes,
        )
        self.flight = Flight(self.handoff)
        self.stays = False
        self.closed = False
        self.exiting = lifecycle.shutting_down()  # then events are pumped in the call
        self._make_core = make_core
        self._transport = transport
        self._endpoints = endpoints
        self._ledger_place = ledger
        self._begin()
        lifecycle.watch(self)

    def _begin(self) -> None:
        """What is new for every process: a client starts empty after a fork."""
        self.producer = os.urandom(10)
        self.core = self._make_core(self.producer)
        # Of a core that says when an event was made by a server's clock: it follows what ours does meanwhile.
        self._look: Callable[[float], object] | None = getattr(self.core, "look", None)
        if self._look is not None:
            self.core.wall = time.time  # type: ignore[attr-defined]
        # Of a core that looks how fast it may send, between two runs of the pump.
        self._regulate: Callable[[float], tuple[float, bool]] | None = getattr(self.core, "regulate", None)
        self.pump = self._new_pump()
        self.ledger: Ledger | None = None
        if self._ledger_place is not None:
            directory, about = self._ledger_place
            self.ledger = Ledger(directory, self.producer.hex(), {**about, "pid": os.getpid()})
        self.link: Link | None = None
        self.deliveries: dict[int, Delivery] = {}
        # Weakly: an engine that nobody holds any more, at exit too, goes at once.
        self.callbacks = CallbackThread(self.reporter.complain, weakref.WeakMethod(self.hurry))
        self._hurried = 0
        self.sender_ident = 0
        self.fatal: Exception | None = None
        self._notes: dict[str, Any] = {}
        self.last_error = ""
        self.connects = 0
        self.disconnects = 0
        self.turns = 0
        self._submitting = 0
        self._recent: list[tuple[int, int, str, str]] = []
        self._follow = threading.RLock()
        self._role = threading.Lock()
        self._ended = False
        self._forking = False
        self._linger_until = 0.0
        self._connected_at = 0.0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running = False
        self._stopping = False
        self._orphaned = False
        self._no_threads = False
        self._patience = self.limits.atexit_timeout  # seconds that calls may still wait at exit
        self._endpoint = 0
        self._backoff = Backoff(self.limits.backoff_min, self.limits.backoff_max, random)
        self._not_before = 0.0
        self._isolation = Isolation(len(self._endpoints))
        self.calls = Calls()
        self._slow: dict[int, _Slow] = {}  # by the endpoint's place
        self._tls = ""
        self._acked_progress = 0
        self._progress_before = 0
        self._windows_before = 0
        self._handed_before = 0
        self.in_doubt = 0

    def _new_pump(self) -> Pump:
        limits = self.limits
        sizes: dict[str, Any] = {
            "batch_events": limits.batch_events,
            "batch_bytes": limits.batch_bytes,
            "nap": limits.nap,
            "no_progress": limits.no_progress,
        }
        pump = self._transport.pump(self.flight, self.core, **sizes)
        return pump if pump is not None else PythonPump(self.flight, self.core, **sizes)

    # -- the caller's side ------------------------------------------------------------------------

    def put(self, body: bytes, level: int, kind: int) -> int:
        """Queue one encoded event: its sequence, or 0 when it was dropped."""
        seq = self.handoff.push(body, level, kind)
        if seq < 0:
            return self.put_slowly(seq, body, level, kind)
        if self.handoff.needs_attention:
            self.attend()
        return seq

    def put_slowly(self, code: int, body: bytes, level: int, kind: int) -> int:
        """The rest of a put that could not be done at once: `code` is what the hand-off said."""
        if code == PUT_FORKED:
            self.after_fork()
            code = self.handoff.push(body, level, kind)
        if code == PUT_FULL and self.limits.overflow == "block":
            self.attend()
            deadline = None
            if self.limits.block_timeout is not None:
                deadline = time.monotonic() + self.limits.block_timeout
            while code == PUT_FULL:
                left = 3600.0 if deadline is None else deadline - time.monotonic()
                if left <= 0 or not self._wait_room(len(body), left):
                    break
                code = self.handoff.push(body, level, kind)
        if code == PUT_FULL:
            self.handoff.refuse()
        if self.handoff.needs_attention:
            self.attend()
        return max(code, 0)

    def _wait_room(self, size: int, seconds: float) -> bool:
        if lifecycle.must_not_block(self.sender_ident):
            return False
        if self._inline:
            # There is no other thread to make room.
            return self._drive(lambda: self.handoff.fits(size), min(seconds, self._patience))
        return self.handoff.wait_room(size, seconds)

    def attend(self) -> None:
        """Called after a put while the hand-off asks for it: start a sender, or be one."""
        if self.handoff.forked:
            self.after_fork()
        if self.closed:
            return
        if not self._inline and (self._start() or not self._no_threads):
            return
        if not lifecycle.must_not_block(self.sender_ident):
            self._drive_to(self.handoff.next_seq - 1, self._patience)

    @property
    def _inline(self) -> bool:
        return self._no_threads or self.exiting or lifecycle.forks_unseen()

    def _start(self, wait: bool = False) -> bool:
        """Start the sender's thread unless it runs; False when none can be started."""
        # Between the fork's two hooks no thread may be born. And a log call in a destructor or signal
        # handler may come while this very thread starts one.
        if self._forking or not self._starting.acquire(blocking=wait):
            return True
        try:
            # First: a sender that ends meanwhile sets it again.
            self.handoff.needs_attention = False
            if self._running:
                return True
            lifecycle.at_first_event()
            if lifecycle.threads_starve():
                self._complain(
                    "uwsgi runs no threads between requests, so records wait for the next one: "
                    "set enable-threads = true",
                    "uwsgi",
                )
            self._stopping = False
            self.pump.resume()
            thread = threading.Thread(target=self._run, name="logclient-sender", daemon=True)
            self._running = True
            try:
                thread.start()
            except RuntimeError as error:
                self._running = False
                self.handoff.needs_attention = True
                # Shut down for good, or only out of threads: then the next event tries again.
                self._no_threads = "shutdown" in str(error)
                if not self._no_threads:
                    self._complain(f"{self.url}: no sender: {error}", "sender")
                return False
            self._thread = thread
            return True
        finally:
            self._starting.release()

    def submit(self, body: bytes, level: int, kind: int) -> Delivery:
        """Queue one event and follow it."""
        # Its outcome may be booked before put even returns: while a submit is under way the sender
        # keeps what it books in `_recent`. The lock is held for a look-up only, and re-entrant: a
        # signal handler may submit too.
        with self._follow:
            self._submitting += 1
        seq = 0
        try:
            if len(self.deliveries) < self.limits.max_events + UNTOLD:
                seq = self.put(body, level, kind)
            else:
                self.handoff.refuse()  # the sender is stuck in a name look-up, and tells no drops
        finally:
            with self._follow:
                delivery = Delivery(seq, self.callbacks)
                self._submitting -= 1
                outcome = next((Outcome(s, r) for a, b, s, r in self._recent if a <= seq <= b), None)
                if not self._submitting:
                    self._recent.clear()
                if seq and outcome is None:
                    self.deliveries[seq] = delivery
        if not seq:
            outcome = Outcome("dropped", "closed" if self.closed else "overflow")
        if outcome is not None:
            delivery.settle(outcome)
        return delivery

    def hurry(self, seq: int) -> None:
        """Somebody waits for the fate of this event: it is told as soon as it is there."""
        if self.handoff.forked:  # the parent's
            return
        self._hurried = max(self._hurried, seq)
        self.handoff.aim(seq)
        if self.handoff.settled >= seq:
            self.pump.poke()  # it is there, and was not told yet
        self.handoff.wake()

    def call(self, kind: str, payload: Any, timeout: float) -> tuple[Any, float]:
        """Ask the server something, and wait: (its answer, seconds that it took).

        Raises:
            ConnectFailed: there is no answer in time, or no connection.
            ValueError: the protocol has no such question.
        """
        if self.handoff.forked:
            self.after_fork()
        if self.closed or lifecycle.must_not_block(self.sender_ident):
            raise ConnectFailed(f"{kind}: the client is closed" if self.closed else f"{kind}: not from here")
        call = self.calls.add(kind, payload)
        if not self._inline and self._start():
            self.pump.poke()
            self.handoff.wake()
            call.wait(timeout)
        else:
            self._drive(lambda: call.done, timeout)
        why = self.last_error or "silence"
        call.settle(error=ConnectFailed(f"{kind}: no answer in {timeout:g} s: {why}"))
        if call.error is not None:
            raise call.error
        return call.reply, call.seconds

    def note(self, kind: str, payload: Any) -> None:
        """Have the core do what nobody waits for: now, or before the next connection. Of several of one
        kind the last counts."""
        self._notes[kind] = payload
        if self._running:
            self.pump.poke()
            self.handoff.wake()

    def stay(self, on: bool) -> None:
        """From now on be connected though there is nothing to send, or no more. A forked child is so again
        from its first event on."""
        self.stays = on
        if on:
            if self.handoff.forked:
                self.after_fork()
            if not self.closed and not self._inline and self._start():
                self.handoff.wake()

    # -- waiting ----------------------------------------------------------------------------------

    def flush(self, timeout: float) -> int:
        """Wait until all sent before this call is settled; how many events still are not."""
        if self.handoff.forked:
            self.after_fork()
        if self.exiting:
            timeout = min(timeout, self._patience)
        target = self.handoff.next_seq - 1
        if self._settled_by(target, timeout):
            return 0
        # Acks may come in any order: what lies beyond `settled` may have its fate too.
        counts = self.handoff.counters()
        return int(max(0, min(target - counts["settled"], counts["queued"] + counts["inflight"])))

    def _settled_by(self, target: int, timeout: float) -> bool:
        if self.handoff.settled >= target:
            return True
        if lifecycle.in_sender(self.sender_ident):
            return False  # the sender cannot wait for itself
        if not self._inline and self._start():
            self.handoff.wake()
            return self.handoff.wait_settled(target, timeout)
        return self._drive_to(target, timeout)

    def _drive_to(self, target: int, timeout: float) -> bool:
        def done() -> bool:
            self.handoff.aim(target)
            return self.handoff.settled >= target

        return self._drive(done, timeout)

    def _drive(self, done: Callable[[], bool], timeout: float) -> bool:
        """Be the sender until `done`; for when there is no thread to be it."""
        begin = time.monotonic()
        deadline = begin + timeout
        self.handoff.wake()  # whoever naps: a caller waits
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with _held(self._role, min(left, 0.05)) as held:
                if not held:
                    # A thread has it still, and does the work.
                    self.handoff.wake()
                    continue
                self.sender_ident = threading.get_ident()
                own = own_thread(True)
                try:
                    self.turn(min(deadline, time.monotonic() + SLICE))
                    if self.exiting:
                        if done():
                            self._let_out(deadline)
                        self._total_ledger()
                finally:
                    own_thread(own)
                    self.sender_ident = 0
        if self._inline:
            self._patience = max(0.0, self._patience - (time.monotonic() - begin))
        return done()

    def close(self, timeout: float) -> int:
        """Take nothing more, deliver what is there, end; how many events were given up.

        While the interpreter exits, only what is there is delivered: events still may come from
        later exit handlers, and are pumped in their call.
        """
        if self.handoff.forked:
            self.after_fork()
        if self.exiting:
            left = self.flush(min(timeout, self._patience))
            with _held(self._role, 0.05) as held:
                if held:
                    self._total_ledger()
            return left
        if self.closed:
            return 0
        self.closed = True
        deadline = time.monotonic() + timeout
        self.handoff.close()
        self.retry_now()
        self._settled_by(self.handoff.next_seq - 1, timeout)
        before = self.handoff.counters()["failed"].get("closed", 0)
        self._linger_until = deadline
        self._stop_thread(max(1.0, deadline - time.monotonic()))
        with _held(self._role, 1.0) as held:
            if held:
                self._end()
            # Else the sender is stuck in a name look-up: it ends itself when it comes back.
        return int(self.handoff.counters()["failed"].get("closed", 0) - before)

    def _end(self) -> None:
        """What has no fate by now fails; the caller holds the role."""
        if self._ended:
            return
        self._ended = True
        self.flight.fail(R_CLOSED)
        self.flight.commit()
        self._book()
        self._hang_up(self._linger_until)
        self._total_ledger()
        if self.ledger is not None:
            self.pump.set_ledger(-1)
            self.ledger.close()
        with self._follow:
            left = list(self.deliveries.values())
            self.deliveries.clear()
        for delivery in left:
            delivery.settle(Outcome("failed", "closed"))

    def _hang_up(self, deadline: float) -> None:
        """End the connection; what the transport still holds has until then to get away."""
        link, self.link = self.link, None
        if link is not None:
            link.close(max(0.0, deadline - time.monotonic()))
            self.calls.lost()

    def _let_out(self, deadline: float) -> None:
        """At exit: nobody closes a client then, so what its transport has taken and holds is waited for
        now. Later events make a connection of their own."""
        if self.link is not None and self.link.lingers:
            self._hang_up(deadline)

    def _stop_thread(self, timeout: float) -> bool:
        self._stopping = True
        self.pump.stop()
        self.handoff.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            return not thread.is_alive()
        return True

    def orphan(self) -> None:
        """Nobody holds the client any more: deliver what is queued, then end."""
        self._orphaned = True
        if self._running:
            self.handoff.wake()  # the sender's thread ends us
        elif not self._inline and not self.settled_all:
            self._start()
        else:
            with _held(self._role, 0.0) as held:
                if held:
                    self.closed = True
                    self.handoff.close()
                    self._end()

    def retry_now(self) -> None:
        """Do not wait out the back-off: the caller has no time for it."""
        self._not_before = 0.0
        self.handoff.wake()

    # -- fork and exit (called by lifecycle) --------------------------------------------------------

    def park(self) -> None:
        """Before a fork: ask the sender's thread to end, so that the child is not born beside it.

        Everything it works on stays; the next event (or ``unpark``) starts another.
        """
        self._forking = True
        self.handoff.needs_attention = True
        if not lifecycle.in_sender(self.sender_ident):
            self._stop_thread(PARK)
        self.callbacks.park(PARK)

    def unpark(self) -> None:
        """In the parent, after a fork."""
        self._forking = False
        self._stopping = False
        self.pump.resume()
        if not self.closed and (self.stays or not self.settled_all):
            self.attend()

    def after_fork(self) -> None:
        """In the child: empty hand-off, new producer, no connection. The parent keeps all."""
        link, ledger, deliveries = self.link, self.ledger, self.deliveries
        self.reporter.after_fork()
        self.handoff.renew()
        self.flight.renew()
        self._begin()
        if self.closed:
            self.handoff.close()
        if link is not None:
            link.abandon()
        if ledger is not None:
            ledger.abandon()
        for delivery in deliveries.values():
            delivery.after_fork(Outcome("failed", "forked"))

    def finish(self, deadline: float) -> None:
        """At exit: deliver what is there until the monotonic `deadline`; what then is left fails.

        The sender's thread ends here. Later events are pumped in the call that logs them.
        """
        if self.handoff.forked:
            self.after_fork()
        if self.closed or self.exiting:
            return
        self.retry_now()
        self._settled_by(self.handoff.next_seq - 1, max(0.0, deadline - time.monotonic()))
        self.exiting = True
        self.handoff.needs_attention = True
        self._patience = max(0.0, deadline - time.monotonic())
        self._stop_thread(max(0.05, self._patience))
        self._stopping = False
        self.pump.resume()
        # Daemon threads may log on: what they logged meanwhile is ours, from now on it is theirs.
        target = self.handoff.next_seq - 1
        left = 0
        if not self._drive_to(target, self._patience):
            left = target - self.handoff.settled  # all of it, if the sender is stuck in a name look-up
        with _held(self._role, 0.05) as held:
            if held and left:
                left = self.flight.fail(R_CLOSED)
                self.flight.commit()
            if held:
                self._let_out(deadline)
                self._book()
                self._total_ledger()
        if left:
            self.reporter.complain("exit", f"{self.url}: {left} events were not delivered before exit", 40)

    # -- the sender's side --------------------------------------------------------------------------

    def _run(self) -> None:
        with self._role:
            self.sender_ident = threading.get_ident()
            own_thread(True)
            try:
                while not self._stopping:
                    self.turn(time.monotonic() + (REPORT_EVERY if self.deliveries else TURN))
                    if self._orphaned and self.settled_all:
                        self.closed = True
                        self.handoff.close()
                        break
            except BaseException as error:
                # A bug of ours must not end in silence; the next event starts a new sender.
                self._complain(f"the sender stopped: {type(error).__name__}: {error}", "sender")
                raise
            finally:
                self.sender_ident = 0
                if self.closed:
                    self._end()
                self._running = False
                self.handoff.needs_attention = True
        # Told to stop for a fork, and the fork is over already?
        if not self._stopping and not self.closed and (self.stays or not self.settled_all):
            self._start(wait=True)

    def turn(self, until: float) -> None:
        """One step, until the monotonic second `until` at most; the caller holds the role."""
        self.turns += 1
        if self._look is not None:
            self._look(time.monotonic())
        if self.limits.max_age is not None:
            self.flight.expire(time.time_ns() // 1000 - int(self.limits.max_age * 1e6))
        if self.fatal is not None:
            self.flight.fail(R_FATAL)
            self.flight.commit()
            self._book()
            self._rest(until)
            return
        noted = self._take_notes()
        if self.link is None and not self._connect(until):
            self.flight.gaps()
            self.flight.commit()
            self._book()
            return
        assert self.link is not None
        self._open_ledger()
        posts = self.calls.ask(self.core) or noted
        if self._regulate is not None:
            look, asks = self._regulate(time.monotonic())
            until, posts = min(until, look), posts or asks
        if posts:
            self.pump.post()
        end = self.pump.run(self.link, until)
        if self.pump.progress != self._acked_progress:
            self._acked_progress = self.pump.progress
            self._backoff.reset()
            self._moved()
            self._slow.pop(self._endpoint % len(self._endpoints), None)
        elif self._backoff.attempts and self._proven():
            self._backoff.reset()
        if end not in ("until", "report", "target", "stopped"):
            self._lost(end)
        self.flight.gaps()
        self._book()

    def _take_notes(self) -> bool:
        """Whether there were any."""
        noted = bool(self._notes)
        while self._notes:
            kind, payload = self._notes.popitem()
            try:
                self.core.call(kind, payload)
            except ValueError as error:
                self._complain(f"{self.url}: {error}", kind)
        return noted

    def _rest(self, until: float) -> None:
        """Sleep until an event comes, somebody wakes us, or `until`."""
        if self.handoff.doze(True):
            self.handoff.wait_for_wake(max(0.0, until - time.monotonic()))
        self.handoff.rouse()

    def _connect(self, until: float) -> bool:
        """Have a connection if there is a use for one and the back-off is over."""
        listens = self.stays and not self.closed and not self._orphaned
        if not self._unsent() and not self.calls.waiting and not listens:
            if self._isolation.aside:  # the others were dropped meanwhile
                self._give_back()
            else:
                self._rest(until)
            return False
        now = time.monotonic()
        if now < self._not_before:
            self.handoff.wait_for_wake(min(until, self._not_before) - now)
            if time.monotonic() < self._not_before:
                return False
        self._skip_slow(now)
        endpoint = self._endpoints[self._endpoint % len(self._endpoints)]
        try:
            link = self._transport.connect(endpoint, self._called_off)
        except CredentialError as error:
            self._give_back()
            self._refused(f"{self.url}: {_name(endpoint)}", error)
            return False
        except OSError as error:
            if self._stopping:
                return False
            self._give_back()
            self._endpoint += 1
            self._failed(f"{self.url}: cannot connect to {_name(endpoint)}: {_words(error)}", "connect")
            return False
        self.connects += 1
        self.link = link
        self._tls = link.tls
        self._connected_at = time.monotonic()
        self._progress_before = self.pump.progress
        self._windows_before = self.pump.windows
        self._handed_before = self.handoff.counters()["handed"]
        mtu = getattr(link, "mtu", 0)
        if mtu:  # datagrams: how large they may be is a matter of the way there
            self.core.path_mtu(mtu, link.headers)  # type: ignore[attr-defined]
        if self._regulate is not None:
            self.core.receiver = getattr(link, "receiver", None)  # type: ignore[attr-defined]
        self.core.connected(time.monotonic(), random)
        self.pump.connected()
        return True

    def _proven(self) -> bool:
        """Whether this connection is as good as one with an acknowledgement, where there are none: it has
        taken something, or need not, owes no word, and has lasted longer than the longest wait before it."""
        lasted = time.monotonic() - self._connected_at
        return (
            (self.stays or self.pump.windows > self._windows_before)
            and not self.flight.inflight
            and lasted > self._backoff.bound
        )

    def _called_off(self) -> bool:
        """Asked many times a second while a connection is made: whether to stop. An attempt may take
        long, so what is dropped meanwhile is told here."""
        self.flight.gaps()
        self.flight.commit()
        self._book()
        return self._stopping

    def _lost(self, end: str) -> None:
        """The connection is over: what had no word yet is sent again on the next one."""
        assert self.link is not None
        peer, lingers = self.link.peer, self.link.lingers
        self._hang_up(0.0)
        self.disconnects += 1
        # Nothing under way: that is how servers end an idle connection. But one that took nothing
        # and ended at once is a failure, or we would connect in a loop.
        used = self.pump.progress > self._progress_before or time.monotonic() - self._connected_at > 1.0
        idle = not self.flight.inflight and not self.flight.waiting and not self.stays
        quiet = used and idle and end in ("closed", "error")
        words, error, forever = self._why(end, lingers)
        flying = self.flight.flying
        self.core.connection_lost()
        for event in self.core.events_received():  # what a core rather gives up than sends again
            if isinstance(event, Settled):
                self.flight.apply(event.ranges, FATE[event.status], REASONS.index(event.reason))
        self._requeue()
        refused = isinstance(error, CredentialError)
        # Where nothing is ever acknowledged, what is in flight has not even been taken by the transport.
        at_once = self._suspect("" if refused or lingers else end, *flying)
        self.flight.commit()
        if lingers:
            self.in_doubt += self.handoff.counters()["handed"] - self._handed_before
        if forever:
            self.fatal = error
            self._complain(f"{self.url}: {peer}: {words}; nothing more will be sent", "fatal")
        elif at_once:
            self._complain(f"{self.url}: {peer}: {words}", end)
        elif isinstance(error, CredentialError):
            self._refused(f"{self.url}: {peer}", error)
        elif not quiet:
            self._endpoint += 1
            self._failed(f"{self.url}: {peer}: {words}", end)

    # A poison: see delivery.isolation.

    def _suspect(self, end: str, first: int, last: int, events: int) -> bool:
        """After a break, and the requeue: whether the same server is to be tried again at once."""
        if self._isolation.aside:
            self._give_back()
            return False
        if not events or end not in ("closed", "error"):
            return False
        verdict = self._isolation.broke(first, last, events, self._unsent() - events)
        self.flight.limit = self._isolation.limit
        if verdict == POISON:
            size = self.flight.condemn(R_POISON)
            # A kind of its own: one line for each poison, and no other line holds it back.
            self._complain(
                f"{self.url}: the server ends the connection on event {self.producer.hex()}{first:012x} "
                f"({size} bytes) and takes others: it failed (poison)",
                f"poison {first}",
            )
        elif verdict == ASIDE:
            self.flight.put_aside(self._isolation.aside)
        return verdict != NOTHING

    def _moved(self) -> None:
        """After an acknowledgement."""
        aside = self._isolation.aside
        self._isolation.moved(self.handoff.settled)
        self.flight.limit = self._isolation.limit
        if aside:
            self.flight.give_back()

    def _give_back(self) -> None:
        if self._isolation.aside:
            self._isolation.no_proof()
            self.flight.give_back()

    def _unsent(self) -> int:
        """How many events wait to be sent (again), but for those held back."""
        return int(self.flight.waiting + self.handoff.queued[0])

    def _requeue(self) -> None:
        self.flight.requeue()

    def _why(self, end: str, lingers: bool) -> tuple[str, Exception | None, bool]:
        """The words for an end, the error behind it, and whether that is for ever."""
        if end == "protocol":
            fatal = getattr(self.pump, "fatal", None)
            for event in self.core.events_received() if fatal is None else ():
                fatal = event if hasattr(event, "forever") else fatal
            if fatal is None:
                return "the server broke the protocol", None, False
            return str(fatal.error), fatal.error, fatal.forever
        if end == "error":
            failure = getattr(self.pump, "failure", None)
            if failure is not None:
                return _words(failure), failure, False
            number = self.pump.errno
            return os.strerror(number).lower() if number else "the connection broke", None, False
        return (
            {
                "closed": "the server closed the connection"
                if lingers or not self.flight.inflight
                else "the server closed the connection before it acknowledged anything"
                if self.pump.progress == self._progress_before
                else "the server closed the connection before it acknowledged everything",
                "silence": "no sign of life from the server in time",
                "stalled": "the server lives, but acknowledges nothing",
                "memory": "out of memory",
            }.get(end, end),
            None,
            False,
        )

    def _failed(self, text: str, kind: str) -> None:
        """Something went wrong that another attempt may mend: say so, wait, try the next endpoint."""
        delay = self._backoff.delay()
        self._not_before = time.monotonic() + delay
        self._complain(text, kind)

    def _refused(self, who: str, error: CredentialError) -> None:
        """Somebody has to mend something: say so once, and try this endpoint at the slow pace."""
        place = self._endpoint % len(self._endpoints)
        limits = self.limits
        slow = self._slow.get(place)
        if slow is None:
            slow = self._slow[place] = _Slow(Backoff(limits.slow_min, limits.slow_max, random, 0.5))
        delay = slow.backoff.delay()
        slow.not_before = time.monotonic() + delay
        self._endpoint += 1
        # With another endpoint that may do, the usual pace; else until the first of them is due.
        others = len(self._slow) < len(self._endpoints)
        self._not_before = time.monotonic() + self._backoff.delay() if others else self._first_slow()
        words = f"{who}: {error}; nothing is sent there until that is mended"
        if slow.said != error.args:
            slow.said = error.args
            soon = f"{delay:.0f}" if delay >= 10 else f"{delay:.2g}"
            self._complain(f"{words}; next try in {soon} s", f"credentials {who} {error}")
        self.last_error = words

    def _first_slow(self) -> float:
        return min(slow.not_before for slow in self._slow.values())

    def _skip_slow(self, now: float) -> None:
        """Go on to the next endpoint that may be tried now."""
        for _ in self._endpoints:
            slow = self._slow.get(self._endpoint % len(self._endpoints))
            if slow is None or slow.not_before <= now:
                break
            self._endpoint += 1

    def _complain(self, text: str, kind: str) -> None:
        self.last_error = text
        self.reporter.complain(kind, text)

    def _open_ledger(self) -> None:
        if self.ledger is not None and self.ledger.fd < 0 and not self.ledger.stopped:
            self.pump.set_ledger(self.ledger.open())
            if self.ledger.stopped:
                self._complain_ledger()

    def _complain_ledger(self) -> None:
        assert self.ledger is not None
        self._complain(f"the ledger stopped, delivery goes on: {self.ledger.stopped}", "ledger")

    def _book(self) -> None:
        """Write down what happened since the last call: ledger lines, deliveries."""
        ledger = self.ledger
        if ledger is not None and ledger.fd >= 0:
            size, error = self.pump.take_ledger()
            if size or error:
                before = ledger.fd
                ledger.wrote(size, error)
                if ledger.fd != before:
                    self.pump.set_ledger(ledger.fd)
                if ledger.stopped:
                    self._complain_ledger()
        for event in self.pump.heard():
            if not self.calls.heard(event):
                self.heard(event)
        fates = self.flight.report()
        if not fates:
            return
        if self._hurried > self.handoff.settled:
            self.handoff.aim(self._hurried)  # there is one target at a time
        if ledger is not None and not ledger.stopped:
            self._open_ledger()
            lines: dict[tuple[str, str], list[tuple[int, int]]] = {}
            for first, last, status, reason in fates:
                lines.setdefault((status, reason), []).append((first, last))
            for (status, reason), seqs in lines.items():
                kind = {"reason": reason} if status == "dropped" else {"status": status, "reason": reason}
                ledger.write("dropped" if status == "dropped" else "outcome", **kind, seqs=_merged(seqs))
            if ledger.stopped:
                self.pump.set_ledger(-1)
                self._complain_ledger()
        if self.deliveries or self._submitting:
            self._settle(fates)

    def _settle(self, fates: list[tuple[int, int, str, str]]) -> None:
        done: list[tuple[Delivery, Outcome]] = []
        with self._follow:
            if self._submitting:
                self._recent.extend(fates)
            for first, last, status, reason in fates:
                if last - first < len(self.deliveries):
                    found = [seq for seq in range(first, last + 1) if seq in self.deliveries]
                else:
                    found = [seq for seq in self.deliveries if first <= seq <= last]
                outcome = Outcome(status, reason)
                done.extend((self.deliveries.pop(seq), outcome) for seq in found)
        for delivery, outcome in done:
            delivery.settle(outcome)

    def _total_ledger(self) -> None:
        """Write the `close` line; a process that still logs while it exits writes another."""
        ledger = self.ledger
        if ledger is None or ledger.fd < 0:
            return
        counts = self.handoff.counters()
        ledger.write(
            "close",
            last=counts["sent"],
            acked=counts["acked"],
            handed=counts["handed"],
            failed=counts["failed"],
            dropped={r: n for r, n in counts["dropped"].items() if r != "closed"},
        )

    @property
    def refused(self) -> bool:
        """Whether no endpoint accepts our credentials, or we none of theirs."""
        return len(self._slow) >= len(self._endpoints)

    @property
    def settled_all(self) -> bool:
        return self.handoff.settled >= self.handoff.next_seq - 1

    # -- looking in ---------------------------------------------------------------------------------

    def stats(self) -> Stats:
        if self.handoff.forked:  # from C: the parent's mutex may be held for ever
            self.after_fork()
        counts = self.handoff.counters()
        dropped = dict(counts["dropped"])
        return Stats(
            sent=counts["sent"],
            queued=counts["queued"],
            queued_bytes=counts["queued_bytes"],
            inflight=counts["inflight"],
            acked=counts["acked"],
            handed=counts["handed"],
            failed=counts["failed"],
            refused=dropped.pop("closed", 0),
            dropped=dropped,
            resent=counts["resent"],
            mangled=counts["mangled"],
            ignored=counts["ignored"],
            connects=self.connects,
            disconnects=self.disconnects,
            in_doubt=self.in_doubt,
            windows=self.pump.windows,
            bytes_sent=self.pump.bytes_sent,
            turns=self.turns,
            last_error=self.last_error,
            ledger_error=self.ledger.stopped if self.ledger is not None else "",
            url=self.url,
            tls=self._tls,
            compressor=getattr(self.core, "compressor", ""),
            producer=self.producer.hex(),
        )


@contextmanager
def _held(lock: threading.Lock, seconds: float) -> Iterator[bool]:
    """Hold `lock` if it can be had in time; whether it was."""
    held = lock.acquire(timeout=max(0.0, seconds))
    try:
        yield held
    finally:
        if held:
            lock.release()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In rising order, neighbours joined: acks may come in any order."""
    ranges.sort()
    found = ranges[:1]
    for first, last in ranges[1:]:
        if first == found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def _name(endpoint: Any) -> str:
    return ":".join(str(part) for part in endpoint) if isinstance(endpoint, tuple) else str(endpoint)


def _words(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else str(error) or type(error).__name__
