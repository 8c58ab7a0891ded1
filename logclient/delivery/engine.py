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
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logclient import threads
from logclient._ext.constants import PUT_FORKED, PUT_FULL, R_CLOSED, R_FATAL, R_POISON, REASONS, STATUSES
from logclient._ext.flight import Flight
from logclient._ext.handoff import Handoff, Turn
from logclient._ext.record import own_thread
from logclient.delivery import lifecycle, report
from logclient.delivery.ages import Ages
from logclient.delivery.calls import Call, Calls
from logclient.delivery.doubt import Doubt
from logclient.delivery.isolation import ASIDE, NOTHING, TRIAL, Isolation, Suspect
from logclient.delivery.ledger import Ledger
from logclient.delivery.outcomes import CallbackThread, Delivery, Outcome
from logclient.delivery.pump import REPORT_EVERY, Link, Pump, PythonPump
from logclient.delivery.report import Reporter
from logclient.delivery.retry import Backoff
from logclient.delivery.stats import Stats
from logclient.errors import ConnectFailed, CredentialError, is_shortage
from logclient.protocols.core import Core, CoreEvent, TakesNotes
from logclient.protocols.core import Outcome as Settled
from logclient.transports.attempt import LOOK, Attempt, sleep

if TYPE_CHECKING:
    from threading import Lock

# Not the generator that everybody shares: who has seeded that one keeps its sequence.
random = SystemRandom().random

TURN = 1.0
"""Seconds after which a pump comes back even when nothing happened."""

SLICE = 0.05
"""Seconds between two looks at whether what a caller drives for has come."""

UNTOLD = 100_000
"""Submitted events, beyond `max_events`, whose outcome or callback is still due, at most."""

GRACE = 0.1
"""Seconds that callbacks have to run in when `close` has used up its time."""

START_AGAIN = 0.1
"""Seconds between two attempts to start a sender for which there is no thread."""

PROVEN = 1.0
"""Seconds after which a connection that works has proved that its server is up."""

LAST = 50.0
"""Seconds in which a client that its owner has dropped, or whose handler was closed, delivers what it has."""

OVERTIME = 1.0
"""Seconds for a sender to end beyond the deadline that it was given."""

HOPE = 1.0
"""Seconds after which an attempt to connect is not waited for by a caller that has no time."""

LONGEST = 4e6
"""Seconds of the longest wait, some 46 days: what is asked beyond that may overflow in the system."""

FOREVER = float("inf")


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
    poison: str = "fail"
    atexit_timeout: float = 2.0


class Transport(Protocol):
    def connect(self, endpoint: Any, attempt: Attempt) -> Link: ...
    def pump(self, flight: Flight, core: Core, **limits: Any) -> Pump | None: ...


class _Attempt(Attempt):
    """One that ends its sleep when it is worth to ask again whether to stop."""

    def __init__(self, handoff: Handoff, stopped: Callable[[], bool]) -> None:
        super().__init__(stopped)
        self._handoff = handoff
        self._waits_for: list[int] = []

    def rest(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        wake = self._handoff.fileno()
        if wake >= 0:
            self._waits_for = reading + writing
            self._handoff.rest()
            try:
                sleep([*reading, wake], writing, min(seconds, LOOK))
            finally:
                self._handoff.rested()
                self._waits_for = []
            # First: whoever wakes us from now on is noticed by the next sleep.
            self._handoff.rouse()
            seconds = 0.0
        return super().rest(reading, writing, seconds)

    def abandon(self) -> None:
        """In a forked child: let go of the connection that the parent is making, or the peer would not see
        its end there. The number stays taken, as it belongs to an object whose thread is not here."""
        for fd in self._waits_for:
            with suppress(OSError), open(os.devnull, "rb") as nothing:  # out of descriptors
                os.dup2(nothing.fileno(), fd, inheritable=False)


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

    Raises:
        ConfigError: no native thread can be had in this process.
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
        threads.check()
        self.limits = limits
        self.url = url
        self.reporter = reporter or report.process
        self.heard = heard
        self.ended: Callable[[], object] = lambda: None
        """Called when the client has ended, before its last callbacks have run."""
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
        self.closed = False  # takes no more events; `_ended`: and every one of them has its fate
        self.exiting = lifecycle.shutting_down()  # then events are pumped in the call
        self._most_followed = limits.max_events + UNTOLD
        # Weakly: an engine that nobody holds any more, at exit too, goes at once.
        self.callbacks = CallbackThread(
            self.reporter.complain, weakref.WeakMethod(self.hurry), weakref.WeakMethod(self._crowded)
        )
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
            self._look(time.monotonic())  # nothing is made before
        # Of a core that looks how fast it may send, between two runs of the pump.
        self._regulate: Callable[[float], tuple[float, bool]] | None = getattr(self.core, "regulate", None)
        self.pump = self._new_pump()
        self.ledger: Ledger | None = None
        if self._ledger_place is not None:
            directory, about = self._ledger_place
            self.ledger = Ledger(directory, self.producer.hex(), {**about, "pid": os.getpid()})
        self.link: Link | None = None
        self.deliveries: dict[int, Delivery] = {}
        self._watched: dict[object, tuple[int, Callable[[], object]]] = {}
        self._hurried = 0
        self.sender_ident = 0
        self.fatal: Exception | None = None
        self.last_error = ""
        self.connects = 0
        self.disconnects = 0
        self.turns = 0
        self._follow = threads.RLock()
        self._role = threads.Lock()
        self._ended = False
        self._forking = False
        self._leave_by = FOREVER  # when the sender stops trying, and ends
        self._no_trials_from = FOREVER  # then the rest of the time is the neighbours' of suspects
        self._leave_at = 0  # the sequence with whose fate it may end before that; 0: the last
        self._drive_by = FOREVER
        self._part_at = FOREVER
        self._parting = False
        self.at_exit = False
        self.given_up = 0
        self._said_closed = False
        self._connected_at = 0.0
        self._starting = threads.Lock()
        self._thread: threads.AnyThread | None = None
        self._gone = threads.Event()
        self._running = False
        self._stopping = False
        self._orphaned = False
        self._no_threads = False
        self._start_again = 0.0
        self._patience = self.limits.atexit_timeout  # seconds that calls may still wait at exit
        self._endpoint = 0
        self._backoff = Backoff(self.limits.backoff_min, self.limits.backoff_max, random)
        self._not_before = 0.0
        self._ages = None if self.limits.max_age is None else Ages(self.limits.max_age)
        limits = self.limits
        self._isolation = Isolation(
            len(self._endpoints),
            random,
            pace=limits.backoff_min,
            longest=limits.backoff_max,
            slow=(limits.slow_min, limits.slow_max),
            keep=limits.poison == "keep",
        )
        self._outcomes = 0
        self.calls = Calls()
        self._slow: dict[int, _Slow] = {}  # by the endpoint's place
        self._tls = ""
        self._acked_progress = 0
        self._progress_before = 0
        self._windows_before = 0
        self._handed_before = 0
        self._doubt = Doubt()
        self._failing = False  # the last attempt to connect has failed
        self._bypassed = False  # the end of the process gave up its events while it looked a name up
        self._attempt: _Attempt | None = None  # to connect, while it is under way
        self._attempt_at = 0.0  # when it began; 0: none is

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

    def put_slowly(
        self,
        code: int,
        body: bytes,
        level: int,
        kind: int,
        delivery: Delivery | None = None,
        deadline: float | None = None,
    ) -> int:
        """The rest of a put that could not be done at once: `code` is what the hand-off said.

        Args:
            delivery: to be told the event's fate.
            deadline: the monotonic second at which ``block`` gives up; None: `block_timeout` from now.
        """
        if code == PUT_FORKED:
            self.after_fork()
            code = self._push(body, level, kind, delivery)
        if code == PUT_FULL and self.limits.overflow == "block":
            self.attend()
            if deadline is None:
                deadline = self._block_until()
            code = self._push_in_turn(body, level, kind, delivery, deadline)
        if code == PUT_FULL:
            self.handoff.refuse()
        if self.handoff.needs_attention:
            self.attend()
        return max(code, 0)

    def _push(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, turn: Turn | None = None
    ) -> int:
        if delivery is None:
            return self.handoff.push(body, level, kind, 0, turn)
        # The sender looks for the delivery under this lock: never before it is there.
        with self._follow:
            seq = self.handoff.push(body, level, kind, 0, turn)
            if seq > 0:
                delivery.seq = seq
                self.deliveries[seq] = delivery
        return seq

    def _push_in_turn(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, deadline: float
    ) -> int:
        """Wait for room until the monotonic second `deadline`, first come, first served; what the hand-off
        then says. A caller that must not wait goes first, if there is room."""
        turn = self.handoff.turn(len(body))
        try:
            if lifecycle.must_not_block(self.sender_ident):
                return self._push(body, level, kind, delivery, turn)
            while (left := deadline - time.monotonic()) > 0 and self._wait_room(turn, len(body), left):
                code = self._push(body, level, kind, delivery, turn)
                if code == PUT_FORKED:  # a signal handler has forked, from C
                    self.after_fork()
                elif code != PUT_FULL:
                    return code
            return PUT_FULL
        finally:
            turn.leave()

    def _wait_room(self, turn: Turn, size: int, seconds: float) -> bool:
        """Wait until a push with this turn finds room; whether to try it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._inline:  # there is no other thread to make room
                return self._drive(lambda: self.handoff.fits(size), min(left, self._patience))
            # In slices: the process may begin to exit meanwhile, or the sender has ended.
            slice_ = min(left, TURN)
            if threads.wait_until(turn.look, slice_) if threads.is_green() else turn.wait(slice_):
                return True
            self.attend()
        return False

    def _block_until(self) -> float:
        """When ``block`` gives up that begins to wait now: a monotonic second."""
        timeout = self.limits.block_timeout
        return float("inf") if timeout is None else time.monotonic() + timeout

    def attend(self) -> None:
        """Called after a put while the hand-off asks for it: start a sender, or be one."""
        if self.handoff.forked:
            self.after_fork()
        report.catch_up()
        if self.closed:
            self._say_closed()
            return
        if not self._inline and (self._start() or not self._no_threads):
            return
        if not lifecycle.must_not_block(self.sender_ident):
            self._drive_to(self.handoff.next_seq - 1, self._patience)

    def _say_closed(self) -> None:
        """Say once that events are dropped because they come after ``close``."""
        if self._ended:
            self.handoff.needs_attention = False
        if not self._said_closed and self.handoff.counters()["dropped"].get("closed"):
            self._said_closed = True
            self._complain(
                f"{self.url}: closed, so what is logged now is dropped (stats count it as refused)", "refused"
            )

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
            if time.monotonic() < self._start_again:
                self.handoff.needs_attention = True
                return False
            lifecycle.at_first_event()
            if lifecycle.threads_starve():
                self._complain(
                    "uwsgi runs no threads between requests, so records wait for the next one: "
                    "set enable-threads = true",
                    "uwsgi",
                )
            self._stopping = False
            self.pump.resume()
            thread = threads.make_thread(self._run, threads.SENDER)
            self._thread = thread
            self._gone = threads.Event()
            self._running = True
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                self._running = False
                self.handoff.needs_attention = True
                # Shut down for good, or only out of threads: then the next event tries again.
                self._no_threads = "shutdown" in str(error)
                if not self._no_threads:
                    # An attempt is dear, and may be made in each log call.
                    self._start_again = time.monotonic() + START_AGAIN
                    self._complain(f"{self.url}: no sender: {error}", "sender")
                return False
            except BaseException:  # Ctrl-C; the thread may have begun
                self._running = thread.is_alive()
                self.handoff.needs_attention = True
                raise
            return True
        finally:
            self._starting.release()

    def submit(self, body: bytes, level: int, kind: int) -> Delivery:
        """Queue one event and follow it."""
        if self.handoff.forked:
            self.after_fork()
        delivery = Delivery(0, self.callbacks)
        seq, deadline = 0, None
        crowded = self._crowded() and not self.callbacks.here  # a callback makes room by its end
        if crowded and self.limits.overflow == "block":
            deadline = self._block_until()
            crowded = not self._wait_uncrowded(deadline)
        if crowded:
            self.handoff.refuse()
        else:
            seq = self._push(body, level, kind, delivery)
            if seq < 0:
                seq = self.put_slowly(seq, body, level, kind, delivery, deadline)
            elif self.handoff.needs_attention:
                self.attend()
        if not seq:
            delivery._settle(Outcome("dropped", "closed" if self.closed else "overflow"))
        return delivery

    def _crowded(self) -> bool:
        """Whether too many submitted events have no outcome, or callbacks that wait to be run."""
        return len(self.deliveries) + self.callbacks.waiting >= self._most_followed

    def _wait_uncrowded(self, deadline: float) -> bool:
        """Wait until one more event may be submitted; whether it may."""
        if lifecycle.must_not_block(self.sender_ident):
            return False
        left = deadline - time.monotonic()
        if self._inline:  # there may be no other thread to run them
            self.callbacks.drain(time.monotonic() + min(left, self._patience))
            return self.closed or not self._crowded()
        self.attend()  # a sender that ended has outcomes to tell
        return threads.wait_until(lambda: self.closed or not self._crowded(), left)

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
        if lifecycle.must_not_block(self.sender_ident):
            raise ConnectFailed(f"{kind}: not from here")
        call, begun = self.ask(kind, payload)
        if begun:
            call.wait(timeout)
        else:
            self._drive(lambda: call.done, timeout)
        return self.answer(call, timeout)

    def ask(
        self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None
    ) -> tuple[Call, bool]:
        """Ask the server something; whether there is a sender, which calls `when_done` after the answer.

        Raises:
            ConnectFailed: the client is closed.
        """
        if self.handoff.forked:
            self.after_fork()
        if self.closed:
            raise ConnectFailed(f"{kind}: the client is closed")
        call = self.calls.add(kind, payload, when_done)
        begun = not self._inline and self._start()
        if begun:
            self.pump.poke()
            self.handoff.wake()
        return call, begun

    def answer(self, call: Call, timeout: float) -> tuple[Any, float]:
        """The answer, and the seconds that it took, of a question that was waited for `timeout` seconds.

        Raises:
            ConnectFailed, ValueError: see ``call``.
        """
        why = self.last_error or "silence"
        call.settle(error=ConnectFailed(f"{call.kind}: no answer in {timeout:g} s: {why}"))
        if call.error is not None:
            raise call.error
        return call.reply, call.seconds

    def note(self, kind: str, payload: Any) -> None:
        """Have the core do what nobody waits for, in line with events: after those that were put, before the
        next. By one thread at a time.

        Raises:
            ValueError: the core does not take it.
        """
        if self.handoff.forked:
            self.after_fork()
        if not isinstance(self.core, TakesNotes):
            raise ValueError(f"note: this protocol has no {kind!r}")
        self.core.note(kind, payload, self.handoff.next_seq, self.flight)
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
        settled = self._settled_by(target, timeout)
        report.catch_up()
        return 0 if settled else self.unsettled(target)

    def unsettled(self, target: int) -> int:
        """How many events up to this sequence have no fate."""
        # Acks may come in any order: what lies beyond `settled` may have its fate too.
        counts = self.handoff.counters()
        return int(max(0, min(target - counts["settled"], counts["queued"] + counts["inflight"])))

    def watch(self, target: int, told: Callable[[], object]) -> object:
        """Have ``told()`` called once every event up to `target` has its fate: by the sender, or at once.

        It must be quick, and not raise. Returns what ``unwatch`` takes.
        """
        key = object()
        with self._follow:
            self._watched[key] = (target, told)
        self.handoff.aim(target)
        self.handoff.wake()
        self._tell_watchers()
        return key

    def unwatch(self, key: object) -> None:
        """Call it no more."""
        with self._follow:
            self._watched.pop(key, None)

    def _tell_watchers(self) -> None:
        if not self._watched:
            return
        settled = self.handoff.settled
        with self._follow:
            due = [key for key, (target, _) in self._watched.items() if target <= settled]
            found = [self._watched.pop(key)[1] for key in due]
            if self._watched:
                self.handoff.aim(min(target for target, _ in self._watched.values()))
        for told in found:
            told()

    @property
    def running(self) -> bool:
        """Whether there is a sender."""
        return self._running

    @property
    def drives(self) -> bool:
        """Whether callers deliver what they wait for: the interpreter ends, no thread can be started."""
        return self._inline

    def flush_while_hopeful(self, timeout: float) -> int:
        """The same, but for a server that cannot be reached: that is not waited for."""
        if self.handoff.forked:
            self.after_fork()
        if self.exiting:
            timeout = min(timeout, self._patience)
        deadline = time.monotonic() + timeout
        target = self.handoff.next_seq - 1
        while not self._settled_by(target, max(0.0, min(deadline - time.monotonic(), SLICE))):
            if time.monotonic() >= deadline or not self.hopeful:
                return self.flush(0.0)
        return 0

    @property
    def hopeful(self) -> bool:
        """Whether the server is there, as far as we know, or was not tried yet."""
        if self.link is not None or self.fatal is not None:
            return True
        begun = self._attempt_at
        return not self._failing and (not begun or time.monotonic() - begun < HOPE)

    def _settled_by(self, target: int, timeout: float) -> bool:
        if self.handoff.settled >= target:
            return True
        if lifecycle.cannot_wait(self.sender_ident):
            return False
        if not self._inline and self._start():
            self.handoff.wake()
            if threads.is_green():
                return threads.wait_until(lambda: self._reached(target), timeout)
            return self.handoff.wait_settled(target, timeout)
        return self._drive_to(target, timeout)

    def _reached(self, target: int) -> bool:
        """Whether every event up to `target` has its fate; if not, the pump comes back when it has."""
        self.handoff.aim(target)
        return self.handoff.settled >= target

    def _drive_to(self, target: int, timeout: float) -> bool:
        return self._drive(lambda: self._reached(target), timeout)

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
                self.sender_ident = threads.get_ident()
                own = own_thread(True)
                self._drive_by = deadline
                try:
                    self.turn(min(deadline, time.monotonic() + SLICE))
                    if self.exiting:
                        if done():
                            self._let_out(deadline)
                        self._total_ledger()
                finally:
                    self._drive_by = FOREVER
                    own_thread(own)
                    self.sender_ident = 0
        if self._inline:
            self.callbacks.drain(deadline)
            self._patience = max(0.0, self._patience - (time.monotonic() - begin))
        return done()

    def close(self, timeout: float) -> int:
        """Take nothing more, deliver what is there, end; how many events were given up.

        A call that was interrupted may be made again: it goes on. Until then the sender goes on by
        itself, and the end of the process waits for it.

        While the interpreter exits, only what is there is delivered: events still may come from
        later exit handlers, and are pumped in their call.
        """
        if self.handoff.forked:
            self.after_fork()
        timeout = max(0.0, min(timeout, LONGEST))
        if self.exiting and not self.closed:
            left = self.flush(min(timeout, self._patience))
            with _held(self._role, 0.05) as held:
                if held:
                    self._total_ledger()
            return left
        if not self._ended:
            self.retire(timeout)
            if not lifecycle.cannot_wait(self.sender_ident):
                self.left(self._leave_by, OVERTIME)
                self.drain_callbacks(max(self._leave_by, time.monotonic() + GRACE), "when close() ended")
        return self.remaining

    @property
    def remaining(self) -> int:
        """How many events were given up, or have no fate yet."""
        counts = self.handoff.counters()
        # A sender that is stuck in a name look-up ends when it comes back.
        return int(self.given_up + counts["queued"] + counts["inflight"])

    def begin_close(self, timeout: float) -> bool:
        """Begin what ``close`` does, without waiting; whether there is something to wait for."""
        if self.handoff.forked:
            self.after_fork()
        if not self._ended:
            self.retire(max(0.0, min(timeout, LONGEST)))
        return not self._ended

    def end_idle(self) -> None:
        """The end of ``begin_close`` where there is no sender: all is settled, or the time is over."""
        if not self._running:
            self.left(time.monotonic(), 0.0)

    def retire(self, seconds: float) -> None:
        """Take nothing more, and have the sender deliver what is there, for so long at most, and end."""
        self.closed = True
        self.handoff.close()
        self._leave(time.monotonic() + seconds)

    def retire_in_background(self, patience: float) -> None:
        """The same for a caller that may not wait for a server: `patience` seconds at most, for what ends
        by itself within them."""
        if self.handoff.forked:
            self.after_fork()
        if self.exiting or self._ended:
            return
        self.retire(LAST)
        if self._inline:
            self.left(time.monotonic() + patience, 0.0)
        elif self.hopeful:
            self._join(patience)

    def _leave(self, by: float) -> None:
        """Have the sender end once everything has its fate, or at the monotonic second `by`."""
        self._leave_by = by
        now = time.monotonic()
        self._no_trials_from = now + (by - now) / 2.0
        self._not_before = 0.0
        if not self._running and not self._inline and not self.settled_all:
            self._start()
        self.pump.poke()
        self.handoff.wake()

    def _may_leave(self) -> bool:
        """Whether the sender is to end now."""
        if self._leave_by == FOREVER:
            return False
        target = self._leave_at or self.handoff.next_seq - 1
        if self.handoff.settled >= target or time.monotonic() >= min(self._part_at, self._leave_by):
            return True
        self.handoff.aim(target)
        return False

    def left(self, by: float, grace: float) -> bool:
        """Wait for the end of a sender that was told to leave `by` a monotonic second; be the sender when
        no thread is. Whether it has ended."""
        if self._running:
            self._join(by - time.monotonic() + grace)
        if not self._ended and not self.exiting:
            with _held(self._role, 0.05) as held:
                if held:
                    self._leave_inline(by)
        return self._ended or self.exiting

    def _leave_inline(self, by: float) -> None:
        """The rest of a sender's life, in the calling thread, which holds the role."""
        self.sender_ident = threads.get_ident()
        own = own_thread(True)
        self._drive_by = by
        self._part_at = FOREVER  # or one client would take the time of the next
        try:
            while not self._may_leave() and (now := time.monotonic()) < by:
                self.turn(min(by, now + SLICE))
            if self._may_leave():
                self._go()
        finally:
            self._drive_by = FOREVER
            own_thread(own)
            self.sender_ident = 0

    def _go(self) -> None:
        """The last acts of a sender that leaves; the caller holds the role."""
        if self._parting:
            self._part()
        else:
            self.closed = True
            self.handoff.close()
            self._end()

    def drain_callbacks(self, deadline: float, when: str = "before exit") -> int:
        """Have callbacks run until the monotonic `deadline`; how many have not, which is reported."""
        left = self.callbacks.drain(deadline)
        if left:
            calls = "callback" if left == 1 else "callbacks"
            words = "did not run" if when == "before exit" else "had not run"
            more = "" if when == "before exit" else "; that goes on while the process lives"
            self.reporter.complain("callbacks", f"{self.url}: {left} {calls} {words} {when}{more}", 40)
        return left

    def _end(self) -> None:
        """What has no fate by now fails; the caller holds the role."""
        if self._ended:
            return
        left = self.flight.fail(R_CLOSED)
        self.flight.commit()
        self._book()
        with self._follow:
            unsettled = list(self.deliveries)
        self._settle_deliveries([(seq, Outcome("failed", "closed")) for seq in unsettled])
        self._total_ledger()
        if self.ledger is not None:
            self.pump.set_ledger(-1)
            self.ledger.close()
        self._give_up(left)
        self._hang_up(self._leave_by)
        # Of a transport that keeps something between its connections.
        close_transport: Callable[[], object] | None = getattr(self._transport, "close", None)
        if close_transport is not None:
            close_transport()
        self._ended = True
        self.handoff.needs_attention = True
        self.handoff.release()
        self.ended()

    def _part(self) -> None:
        """At exit: from now on callers deliver what they log; what is there has the rest of the time."""
        self.exiting = True
        self.handoff.needs_attention = True
        # Daemon threads may log on: what they logged meanwhile is ours, from now on it is theirs.
        target = self.handoff.next_seq - 1
        while self.handoff.settled < target and (now := time.monotonic()) < self._leave_by:
            self.handoff.aim(target)
            self.turn(min(self._leave_by, now + SLICE))
        if self.handoff.settled < target:
            left = self.flight.fail(R_CLOSED)
            self.flight.commit()
            self._give_up(left)
        self._let_out(self._leave_by)
        self._book()
        self._total_ledger()
        self._patience = max(0.0, self._leave_by - time.monotonic())
        self._leave_by = FOREVER
        self._parting = False

    def _give_up(self, events: int) -> None:
        """Count events that were not delivered in time, and say so; at exit, one line for all clients."""
        self.given_up += events
        if events and not self.at_exit:
            what = report.counted(events, "event")
            text = f"{self.url}: {what} given up: the client ended before delivery"
            self.last_error = text
            lifecycle.given_up(self, events, text)

    def _hang_up(self, deadline: float) -> None:
        """End the connection; what the transport still holds has until then to get away."""
        link, self.link = self.link, None
        if link is not None:
            link.close(max(0.0, min(deadline - time.monotonic(), LONGEST)))
            self.calls.lost()

    def _let_out(self, deadline: float) -> None:
        """At exit: nobody closes a client then, so what its transport has taken and holds is waited for
        now. Later events make a connection of their own."""
        if self.link is not None and self.link.lingers:
            self._hang_up(deadline)

    def _join(self, timeout: float) -> bool:
        """Wait for the end of the sender's thread; whether it has ended."""
        thread = self._thread
        if thread is None or thread.ident == threads.get_ident():
            return not self._running
        # Not `join` alone: before Python 3.13 a join that is interrupted takes the thread for ended.
        deadline = time.monotonic() + max(0.0, min(timeout, LONGEST))
        if self._gone.wait(deadline - time.monotonic()):
            threads.join(thread, max(0.0, deadline - time.monotonic()))
        return not self._running

    def orphan(self) -> None:
        """Nobody holds the client any more: deliver what is queued, within `LAST` seconds, then end."""
        self._orphaned = True
        if self._ended or self.exiting:
            return
        if self._running or not (self._inline or self.settled_all):
            self._leave(min(self._leave_by, time.monotonic() + LAST))
        else:
            with _held(self._role, 0.0) as held:
                if held:
                    self._go()

    # -- fork and exit (called by lifecycle) --------------------------------------------------------

    def park(self, pause: bool) -> None:
        """Before a fork: ask the sender's thread to end, so that the child is not born beside its work.

        Everything it works on stays; the next event (or ``unpark``) starts another. With `pause` a sender
        that only waits is kept waiting instead, which costs next to nothing.
        """
        self._forking = True
        self.handoff.needs_attention = True
        if not (lifecycle.in_sender(self.sender_ident) or (pause and self.handoff.pause())):
            self._stopping = True
            self.pump.stop()
            if self._running:
                self.handoff.wake()
        self.callbacks.park()

    def parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        if self._stopping:
            self._join(deadline - time.monotonic())
        self.callbacks.parked(deadline - time.monotonic())

    def unpark(self) -> bool:
        """In the parent, after a fork; whether a sender has work."""
        self._forking = False
        self._stopping = False
        self.pump.resume()
        self.handoff.go_on()
        return self._has_work

    @property
    def _has_work(self) -> bool:
        """Whether a sender is needed though no event comes."""
        if self._ended or self.exiting:
            return False
        return not self.settled_all or self._leave_by < FOREVER or (self.stays and not self.closed)

    def restart(self) -> bool:
        """Have a sender again; whether its thread was started."""
        if self._inline:
            self.attend()
            return False
        return not self._running and self._start() and self._running

    def after_fork(self) -> None:
        """In the child: empty hand-off, new producer, no connection. The parent keeps all."""
        link, ledger, deliveries = self.link, self.ledger, self.deliveries
        attempt = self._attempt
        self.reporter.after_fork()
        self.callbacks.after_fork()
        self.handoff.renew()
        self.flight.renew()
        self._begin()
        if self.closed:
            self.handoff.close()
            self.handoff.release()
            self._ended = True
        if link is not None:
            link.abandon()
        if attempt is not None:
            attempt.abandon()
        if ledger is not None:
            ledger.abandon()
        for delivery in deliveries.values():
            delivery._after_fork(Outcome("failed", "forked"))

    def finish(self, deadline: float) -> None:
        """At exit: deliver what is there until the monotonic `deadline`; what then is left fails.

        The sender's thread ends here. Later events are pumped in the call that logs them.
        """
        lifecycle.finish([self], lambda engine: deadline)

    def leave(self, deadline: float) -> bool:
        """At exit, first for all clients: have the sender end by then. Whether there is one to wait for."""
        if self.handoff.forked:
            self.after_fork()
        if self._ended or self.exiting:
            return False
        self.at_exit = True
        if not self.closed and not self._orphaned:
            self._parting = True
            self._leave_at = self.handoff.next_seq - 1
            # Daemon threads that log on can be faster than delivery: half of the time without them.
            self._part_at = (time.monotonic() + deadline) / 2
        # Often a client is dropped just before, by a function that ends the program.
        self._leave(deadline if self._orphaned else min(self._leave_by, deadline))
        return True

    @property
    def has_thread(self) -> bool:
        """Whether a thread is the sender."""
        return self._running

    def undelivered(self, before: int) -> int:
        """After the wait at exit: how many events were given up since `given_up` was `before`."""
        if self._ended or self.exiting:
            return self.given_up - before
        # Its thread is stuck in a name look-up. What is logged from now on is pumped in the call.
        self.exiting = True
        self.handoff.needs_attention = True
        self._patience = 0.0
        left = int(self.handoff.next_seq - 1 - self.handoff.settled)
        self._parting = False
        if self._attempt_at:
            # There it touches nothing else, and it will not again: its events end here, and are listed.
            self._bypassed = True
            left = self.flight.fail(R_CLOSED)
            self.flight.commit()
            self._open_ledger()
            self._book()
            self._total_ledger()
        return left

    # -- the sender's side --------------------------------------------------------------------------

    def _run(self) -> None:
        lifecycle.start_next()
        with self._role:
            self.sender_ident = threads.get_ident()
            own_thread(True)
            leaves = False
            try:
                while not self._stopping and not self._ended and (self._parting or not self.exiting):
                    leaves = self._may_leave()
                    if leaves:
                        break
                    pause = REPORT_EVERY if self.deliveries else TURN
                    self.turn(min(time.monotonic() + pause, self._part_at, self._leave_by))
            except BaseException as error:
                # A bug of ours must not end in silence; the next event starts a new sender.
                self._complain(f"the sender stopped: {type(error).__name__}: {error}", "sender")
                leaves = self._leave_by < FOREVER
                raise
            finally:
                try:
                    if leaves:
                        self._go()
                finally:
                    self.sender_ident = 0
                    self._running = False
                    self.handoff.needs_attention = True
                    self._gone.set()
        # Told to stop for a fork, and the fork is over already?
        if not self._stopping and self._has_work:
            self._start(wait=True)

    def turn(self, until: float) -> None:
        """One step, until the monotonic second `until` at most; the caller holds the role.

        Being out of descriptors, threads or memory ends the connection at worst, never the sender.
        """
        try:
            self._turn(until)
        except (OSError, MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            if self.link is not None:
                self._lost(_words(error))
            else:
                self._failed(f"{self.url}: {_words(error)}", "shortage")

    def _turn(self, until: float) -> None:
        self.turns += 1
        self.callbacks.attend()
        self.handoff.mend()
        if self._look is not None:
            self._look(time.monotonic())
        if self._ages is not None:
            until = self._expire(self._ages, until)
        if self.fatal is not None:
            self.flight.fail(R_FATAL)
            self.flight.commit()
            self._book()
            self._rest(until)
            return
        if self.link is None and not self._connect(until):
            self.flight.gaps()
            self.flight.commit()
            self._book()
            return
        assert self.link is not None
        posts = self.calls.ask(self.core)
        if self._regulate is not None:
            look, asks = self._regulate(time.monotonic())
            until, posts = min(until, look), posts or asks
        if posts:
            self.pump.post()
        if self._isolation.suspects:
            until = self._plan_trial(until)
        end = self.pump.run(self.link, until)
        if self.link.lingers:
            self._doubt.look(time.monotonic(), self.handoff.counters()["handed"])
        if self.flight.outcomes != self._outcomes:
            self._outcomes = self.flight.outcomes
            self._settled_here()
        if self.pump.progress != self._acked_progress:
            self._acked_progress = self.pump.progress
            self._backoff.reset()
            self._slow.pop(self._endpoint % len(self._endpoints), None)
        elif self._backoff.attempts and self._proven():
            self._backoff.reset()
        if end not in ("until", "report", "target", "stopped"):
            self._lost(end)
        elif self.flight.drained:
            self._leave_for_trial()
        self.flight.gaps()
        self._book()

    def _expire(self, ages: Ages, until: float) -> float:
        """Fail what has waited too long; until when not to look again, `until` at most."""
        now = time.monotonic()
        old = ages.look(now, self.handoff.next_seq - 1)
        if old:
            self.flight.expire(old)
        return min(until, now + ages.every) if self._unsent() else until

    def _rest(self, until: float) -> None:
        """Sleep until an event comes, somebody wakes us, or `until`."""
        if self.handoff.doze(True):
            self.handoff.wait_for_wake(max(0.0, until - time.monotonic()))
        self.handoff.rouse()

    def _connect(self, until: float) -> bool:
        """Have a connection if there is a use for one and the back-off is over."""
        listens = self.stays and not self.closed and not self._orphaned
        now = time.monotonic()
        if not self._unsent() and not self.calls.waiting and not listens and not self._suspect_due(now):
            if self._isolation.aside:  # the others were dropped meanwhile
                self._give_back()
            else:
                trial = self._isolation.next_trial(0)
                self._rest(until if trial is None else min(until, trial))
            return False
        if now < self._not_before:
            self.handoff.wait_for_wake(min(until, self._not_before) - now)
            if time.monotonic() < self._not_before:
                return False
        if not self._open_ledger():
            return False
        self._skip_slow(now)
        endpoint = self._endpoints[self._endpoint % len(self._endpoints)]
        self._attempt_at = now
        try:
            self._attempt = _Attempt(self.handoff, self._called_off)
            link = self._transport.connect(endpoint, self._attempt)
        except CredentialError as error:
            self._failing = True
            self._give_back()
            self._refused(f"{self.url}: {_name(endpoint)}", error)
            return False
        except (OSError, MemoryError, RuntimeError) as error:
            if self._stopped and isinstance(error, OSError):
                return False
            if not isinstance(error, OSError) and not is_shortage(error):
                raise
            self._failing = True
            self._give_back()
            self._endpoint += 1
            self._failed(f"{self.url}: cannot connect to {_name(endpoint)}: {_words(error)}", "connect")
            return False
        finally:
            self._attempt = None  # it holds us
            self._attempt_at = 0.0
        if self._bypassed:
            link.close()
            return False
        self._failing = False
        self.connects += 1
        self.link = link
        self._tls = link.tls
        self._connected_at = time.monotonic()
        self._progress_before = self.pump.progress
        self._windows_before = self.pump.windows
        self._handed_before = self.handoff.counters()["handed"]
        self._doubt.connected(self._connected_at, self._handed_before, self.pump.bytes_sent)
        mtu = getattr(link, "mtu", 0)
        if mtu:  # datagrams: how large they may be is a matter of the way there
            self.core.path_mtu(mtu, link.headers)  # type: ignore[attr-defined]
        if self._regulate is not None:
            self.core.receiver = getattr(link, "receiver", None)  # type: ignore[attr-defined]
        self.core.connected(time.monotonic(), random)
        self.pump.connected()
        self._outcomes = self.flight.outcomes
        now = time.monotonic()
        if self._isolation.suspects:
            self._isolation.forget(self.flight.quarantined)
        others = self._unsent()
        self.flight.send_alone(self._isolation.connected(now, others, self._trials(now, others)))
        self._steer()
        return True

    def _proven(self) -> bool:
        """Whether this connection is as good as one with an acknowledgement, where there are none.

        It has taken something, or need not and owes no word; and it has lasted longer than the next wait
        could be, or than `PROVEN` seconds, however long the waits are by now: so a server that takes and
        drops connections at once sees few of them, and one that is up is not kept waiting for earlier cuts.
        """
        if self.handoff.counters()["handed"] == self._handed_before:
            took = self.stays or self.pump.windows > self._windows_before
            if not took or self.flight.inflight:
                return False
        return time.monotonic() - self._connected_at > min(self._backoff.bound, PROVEN)

    def _called_off(self) -> bool:
        """Asked many times a second while a connection is made: whether to stop. An attempt may take
        long, so what is dropped meanwhile is told here."""
        if self._bypassed:
            return True
        self.flight.gaps()
        self.flight.commit()
        self._book()
        return self._stopped

    @property
    def _stopped(self) -> bool:
        """Whether the sender must not go on with what takes long."""
        return self._stopping or time.monotonic() >= min(self._leave_by, self._drive_by)

    def _lost(self, end: str) -> None:
        """The connection is over: what had no word yet is sent again on the next one."""
        assert self.link is not None
        peer, lingers, doubt = self.link.peer, self.link.lingers, self.link.doubt
        holds = self.link.holds
        waited = bool(self.flight.inflight)
        self._hang_up(0.0)
        self.disconnects += 1
        # Nothing under way: that is how servers end an idle connection. But one that took nothing
        # and ended at once is a failure, or we would connect in a loop.
        used = self.pump.progress > self._progress_before or time.monotonic() - self._connected_at > 1.0
        idle = not self.flight.inflight and not self.flight.waiting and not self.stays
        quiet = used and idle and end in ("closed", "error")
        words, error, forever = self._why(end, lingers)
        if doubt and end in ("closed", "error") and not self.pump.progress:
            words = f"{words}; {doubt}"
        flying = self.flight.flying
        self.core.connection_lost()
        for event in self.core.events_received():  # what a core rather gives up than sends again
            if isinstance(event, Settled):
                self.flight.apply(event.ranges, STATUSES.index(event.status), REASONS.index(event.reason))
        self._requeue()
        refused = isinstance(error, CredentialError)
        # Where nothing is ever acknowledged, what is in flight has not even been taken by the transport.
        verdict = self._judge("" if refused or lingers else end, *flying)
        self.flight.commit()
        if lingers:
            handed = self.handoff.counters()["handed"]
            self._doubt.broke(time.monotonic(), handed, self.pump.bytes_sent, holds, waited)
        if forever:
            self.fatal = error
            self._complain(f"{self.url}: {peer}: {words}; nothing more will be sent", "fatal")
        elif verdict == TRIAL:
            # It was to be expected: the next trial comes soon, unless the server takes nothing at all.
            self._not_before = time.monotonic() + self._backoff.bound * random()
        elif verdict == ASIDE:
            self._complain(f"{self.url}: {peer}: {words}", end)
        elif isinstance(error, CredentialError):
            self._refused(f"{self.url}: {peer}", error)
        elif not quiet:
            self._endpoint += 1
            self._failed(f"{self.url}: {peer}: {words}", end)

    # Events that the server cannot take: see delivery.isolation.

    def _trials(self, now: float, others: int) -> bool:
        """Whether there is time for trials: towards the end the `others` go before the suspects."""
        return not others or (now < self._no_trials_from and not self.exiting)

    def _steer(self) -> None:
        """Tell the pump what this connection is for."""
        isolation, flight = self._isolation, self.flight
        others = self._unsent()
        flight.limit = isolation.limit
        flight.prompt = isolation.trying
        flight.hold = False
        reserve = isolation.reserve() if self._trials(time.monotonic(), others) else 0
        flight.allowance = max(0, others - reserve) if reserve and not isolation.trying else None

    def _plan_trial(self, until: float) -> float:
        """With suspects in quarantine: leave this connection for the next trial when that is due.

        Returns:
            Until when the pump may run before this is asked again.
        """
        now = time.monotonic()
        isolation = self._isolation
        others = self._unsent()
        for suspect in isolation.undecided(now):
            self._report_undecided(suspect)
        trials = self._trials(now, others)
        if trials and isolation.due(now, others):
            isolation.leave(now, others)
            self.flight.hold = True
            return until
        self._steer()
        if not trials:
            return until
        trial = isolation.next_trial(others) or until
        return min(until, self._no_trials_from, max(trial, now + 0.001))

    def _suspect_due(self, now: float) -> bool:
        """Whether a suspect is to be tried though nothing else waits."""
        if not self._isolation.suspects:
            return False
        self._isolation.forget(self.flight.quarantined)
        return self._isolation.due(now, 0)

    def _leave_for_trial(self) -> None:
        """Leave a connection on which all is well, for a trial on a fresh one."""
        self._isolation.ended(time.monotonic())
        self.core.connection_lost()
        for _ in self.core.events_received():
            pass
        self._hang_up(0.0)
        self.disconnects += 1

    def _settled_here(self) -> None:
        """An event in flight got its outcome: go on with its neighbours, and draw the conclusions."""
        isolation = self._isolation
        now = time.monotonic()
        findings = isolation.settled(now, self.flight.reached)
        if findings.quarantined:
            seqs = self.flight.quarantine()
            isolation.quarantine(seqs, now)
            if self.ledger is not None and not self.ledger.stopped:
                self.ledger.write("deferred", seqs=_merged([(seq, seq) for seq in seqs]))
        for seq in findings.condemned:
            self._condemn(seq)
        if self.link is not None:
            self._steer()

    def _condemn(self, seq: int) -> None:
        event = f"event {self.producer.hex()}{seq:012x}"
        what = f"{self.url}: the server ends the connection on {event}"
        # A kind of its own: one line for each poison, and no other line holds it back.
        if self.limits.poison == "keep":
            self._complain(f"{what} and takes others: it stays in quarantine (poison=keep)", f"poison {seq}")
        else:
            size = self.flight.condemn(seq, R_POISON)
            self._complain(f"{what} ({size} bytes) and takes others: it failed (poison)", f"poison {seq}")

    def _report_undecided(self, suspect: Suspect) -> None:
        self._complain(
            f"{self.url}: event {self.producer.hex()}{suspect.seq:012x} ended {suspect.trials} connections, "
            f"other events {suspect.control_breaks} of {suspect.controls}: undecided, it stays in quarantine "
            "and is tried now and then",
            "undecided",
        )

    def _judge(self, end: str, first: int, last: int, events: int) -> int:
        """After a break, and the requeue: what it means (see delivery.isolation)."""
        now = time.monotonic()
        verdict = NOTHING
        if end in ("closed", "error"):
            others = max(0, self._unsent() - events)
            verdict = self._isolation.broke(first, last, events, others, now)
        else:
            self._isolation.ended(now)
        self.flight.send_alone(0)
        if verdict == ASIDE:
            self.flight.put_aside(self._isolation.aside)
        elif self.flight.aside:
            self.flight.give_back()
        return verdict

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
        if report.behind():
            self.handoff.needs_attention = True

    def _open_ledger(self) -> bool:
        """Open the ledger unless it is open or has stopped; False when the machine has no descriptor for it.

        Then nothing may be sent: what arrives without being listed looks like something nobody sent.
        """
        ledger = self.ledger
        if ledger is None or ledger.fd >= 0 or ledger.stopped:
            return True
        try:
            self.pump.set_ledger(ledger.open())
        except OSError as error:
            words = f"{self.url}: nothing is sent, the ledger cannot be opened: {_words(error)}"
            self._failed(words, "ledger")
            return False
        if ledger.stopped:
            self._complain_ledger()
        return True

    def _complain_ledger(self) -> None:
        assert self.ledger is not None
        self._complain(f"the ledger stopped, delivery goes on: {self.ledger.stopped}", "ledger")

    def _book(self) -> None:
        """Write down what happened since the last call: ledger lines, deliveries."""
        self._book_fates()
        self._tell_watchers()

    def _take_ledger(self) -> None:
        """Count what the pump wrote to the ledger by itself."""
        ledger = self.ledger
        if ledger is None or ledger.fd < 0:
            return
        size, error = self.pump.take_ledger()
        if size or error:
            before = ledger.fd
            ledger.wrote(size, error)
            if ledger.fd != before:
                self.pump.set_ledger(ledger.fd)
            if ledger.stopped:
                self._complain_ledger()

    def _book_fates(self) -> None:
        ledger = self.ledger
        self._take_ledger()
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
        if self.deliveries:
            self._settle(fates)

    def _settle(self, fates: list[tuple[int, int, str, str]]) -> None:
        done: list[tuple[int, Outcome]] = []
        with self._follow:
            for first, last, status, reason in fates:
                if last - first < len(self.deliveries):
                    found = [seq for seq in range(first, last + 1) if seq in self.deliveries]
                else:
                    found = [seq for seq in self.deliveries if first <= seq <= last]
                outcome = Outcome(status, reason)
                done.extend((seq, outcome) for seq in found)
        self._settle_deliveries(done)

    def explain(self, seq: int, details: Mapping[str, Any]) -> None:
        """The sender has heard more of an event than its fate, which is not told yet."""
        with self._follow:
            delivery = self.deliveries.get(seq)
        if delivery is not None:
            delivery._explain(details)

    def _settle_deliveries(self, done: list[tuple[int, Outcome]]) -> None:
        """Settle the deliveries of these sequences."""
        deliveries = self.deliveries  # a child has others: a signal handler may fork meanwhile
        for seq, outcome in done:
            deliveries[seq]._settle(outcome)
        # Removed afterwards: in the child of a fork in between, what is still here fails.
        with self._follow:
            for seq, _ in done:
                del deliveries[seq]

    def _total_ledger(self) -> None:
        """Write the `close` line; a process that still logs while it exits writes another.

        Its totals are of the sequences that have their fate: what a caller has just put while the process
        exits is delivered, listed and totalled in its own call, if the process lives so long.
        """
        self._take_ledger()
        ledger = self.ledger
        if ledger is None or ledger.fd < 0:
            return
        counts = self.handoff.counters()
        if counts["inflight"]:
            return  # listed, and its caller is not done
        ledger.write(
            "close",
            last=counts["settled"],
            acked=counts["acked"],
            handed=counts["handed"],
            failed=counts["failed"],
            dropped={r: n for r, n in counts["dropped"].items() if r != "closed"},
            bytes=ledger.size,
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
            moved=counts["moved"],
            ignored=counts["ignored"],
            callbacks=self.callbacks.waiting,
            connects=self.connects,
            disconnects=self.disconnects,
            in_doubt=self._doubt.events,
            in_doubt_estimate=self._doubt.estimate,
            quarantined=len(self._isolation.suspects),
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
def _held(lock: Lock, seconds: float) -> Iterator[bool]:
    """Hold `lock` if it can be had in time; whether it was."""
    held = threads.acquire(lock, seconds)
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


def _words(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    words = error.strerror if isinstance(error, OSError) else None
    return words.lower() if words else str(error) or type(error).__name__
