"""Submitted events: their deliveries and outcomes, callers that wait for these, and the callbacks' thread."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient import threads
from logclient.delivery import lifecycle
from logclient.delivery.contract import LONGEST
from logclient.errors import described
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.queue import EventQueue, Ticket

IDLE_TIMEOUT = 1.0
"""Seconds that an idle callback thread waits for more."""

SLICE = 0.05
"""Seconds between two checks of a thread that waits for callbacks to run."""

MAX_UNREPORTED_DELIVERIES = 100_000
"""Submitted events, in addition to `max_events`, whose outcome or callback is still due."""


class Outcome(NamedTuple):
    """The final state of an event.

    Attributes:
        status: ``acked``, ``handed``, ``failed`` or ``dropped``; ``stored`` when the client ended and left
            the event in its spool.
        reason: why it failed or was dropped (docs/operations.md); empty otherwise. ``before_send`` for an
            event that this option held back.
    """

    status: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was acked or handed."""
        return self.status in ("acked", "handed")

    @property
    def details(self) -> Mapping[str, Any]:
        """Further fields that the server has sent about the event; ignored when outcomes are compared.

        For a Logux action that was undone: the reason and the other fields of the undo.
        """
        return _NOTHING


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Detailed(Outcome):
    """An outcome with `details`."""

    details: Mapping[str, Any] = _NOTHING


class Delivery:
    """The delivery of one submitted event. ``Client.submit`` makes it.

    A failed event raises no exception; its outcome tells the reason.

    Args:
        seq: the event's sequence.
        runner: the thread for callbacks.

    Attributes:
        seq: the event's sequence; 0 if it was dropped at once.
    """

    __slots__ = ("_callbacks", "_details", "_done", "_outcome", "_runner", "seq")

    # Hundreds of thousands may be pending when a server is dead: parts that only a waiter needs are made on
    # demand, and all deliveries of a client share one lock.
    def __init__(self, seq: int, runner: CallbackThread) -> None:
        self.seq = seq
        self._outcome: Outcome | None = None
        self._details: Mapping[str, Any] | None = None
        self._done: threads.Event | None = None
        self._callbacks: tuple[Callable[[Delivery], object], ...] = ()
        self._runner = runner

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the outcome.

        Inside a callback of the event loop of gevent, and in the thread that delivers, this does not wait.

        Args:
            timeout: seconds; None: no limit, but for ``atexit_timeout`` while the process ends.

        Returns:
            The outcome, or None if there is none within `timeout`.
        """
        waiting = timeout is None or timeout > 0
        if self._outcome is not None or not waiting or lifecycle.cannot_wait(0):
            return self._outcome
        done = threads.Event()
        with self._runner.lock:
            if self._outcome is not None:
                return self._outcome
            done = self._done = self._done or done
        self._request_flush()
        sender = self._runner.sender()
        if sender is not None:  # else nothing brings an outcome any more
            sender.waiter.delivered(self, done, timeout)
        return self._outcome

    def stored(self, timeout: float | None = None) -> bool:
        """Wait until the disk has the event, so that it survives the end of the machine.

        Args:
            timeout: seconds; None: no limit.

        Returns:
            Whether the disk has it, or the server, or it was handed over. False when it failed or was
            dropped, after `timeout`, and once the spool writes no log any more.

        Raises:
            ValueError: the client has no ``spool_sync``.
        """
        if self._outcome is None:
            sender = self._runner.sender()
            waits = sender is not None and not lifecycle.cannot_wait(0)
            there = waits and sender.engine.submissions.wait_stored(self.seq, timeout)
            if not there and self._outcome is None:
                return False
        outcome = self._outcome
        return outcome is None or outcome.status not in ("failed", "dropped")

    def _request_flush(self) -> None:
        """Have the event sent, and its outcome reported, without delay: a caller waits for it."""
        sender = self._runner.sender()
        if sender is not None and self._outcome is None:
            sender.engine.submissions.request_flush(self.seq)

    def cancel(self) -> bool:
        """Return False: an event cannot be taken back."""
        return False

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once there is an outcome, on the client's callback thread.

        If there is an outcome already and too many callbacks are waiting, the calling thread runs the
        callback: memory stays bounded, and no callback is lost.

        Args:
            callback: takes this delivery. Its result is ignored, and its exceptions are reported in the error
                log.
        """
        with self._runner.lock:
            if self._outcome is None:
                self._callbacks += (callback,)
                return
        self._runner.queue_or_run(callback, self)

    def _settle(self, outcome: Outcome) -> None:
        if self._details is not None:
            outcome = _Detailed(*outcome)
            outcome.details = self._details
        with self._runner.lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            callbacks, self._callbacks = self._callbacks, ()
            done = self._done
        if done is not None:
            done.set()
        for callback in callbacks:
            self._runner.queue(callback, self)

    def __repr__(self) -> str:
        state = "pending" if self._outcome is None else " ".join(filter(None, self._outcome))
        return f"<Delivery {self.seq} {state}>"


class CallbackThread:
    """Runs callbacks one after the other on a thread of its own, started by the first of them.

    The sender never waits for user code. The thread ends after a second without work. An exception of a
    callback is reported, and the next one runs. ``sender()`` returns the client's; None: it is gone.
    """

    def __init__(
        self,
        report: Callable[[str, str], object],
        sender: Callable[[], Any] = lambda: None,
    ) -> None:
        self.sender = sender
        self._report = report
        self.renew()

    def renew(self) -> None:
        """Be without thread and callbacks: at first, and in a forked child, where deliveries hold this."""
        # Re-entrant: a signal handler may submit, or ask for a result, while this thread does.
        self.lock = threads.RLock()
        self._more = threads.Event()  # cleared and set with the lock held, waited for without
        self._fewer = threads.Event()
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = 0
        self._helpers: set[int] = set()  # threads of the application that run one meanwhile
        self._alone = False  # no thread can be started, now or ever: the interpreter ends
        self._thread: threads.AnyThread | None = None
        self._idle_timeout = IDLE_TIMEOUT

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + self._running

    @property
    def here(self) -> bool:
        """Whether the calling thread is running a callback."""
        return self._in_thread or threads.caller_ident() in self._helpers

    @property
    def _in_thread(self) -> bool:
        thread = self._thread
        return thread is not None and thread.ident == threads.get_ident()

    def queue(self, callback: Callable[..., object], *given: Any) -> None:
        """Queue a callback. Never waits, never runs it in the calling thread."""
        with self.lock:
            self._waiting.append((callback, given))
            self._idle_timeout = IDLE_TIMEOUT
            self._start()
            self._more.set()

    def queue_or_run(self, callback: Callable[..., object], *given: Any) -> None:
        """Queue a callback; or run it here, if too many wait or no thread can run it."""
        sender = self.sender()
        if sender is not None and sender.engine.submissions.is_crowded() and not self.here:
            with self.lock:
                self._running += 1
            self._run_here(callback, given)
            return
        self.queue(callback, *given)
        if self._alone:
            self.wait_for_all(float("inf"))

    def ensure_thread(self) -> None:
        if self._waiting:
            with self.lock:
                self._start()

    def wait_for_all(self, deadline: float) -> int:
        """Wait until all callbacks have run, or until `deadline`; return how many have not run to their end.

        Where no thread can be started, the calling thread runs them. A callback cannot wait for itself, and
        always gets 0.
        """
        if self.here:
            return 0
        while True:
            job = None
            with self.lock:
                left = deadline - time.monotonic()
                unfinished = self.unfinished
                if not unfinished or left <= 0:
                    return unfinished
                if self._running or self._start():
                    self._fewer.clear()
                else:
                    job = self._waiting.popleft()
                    self._running += 1
            if job is not None:
                self._run_here(*job)
            else:
                self._fewer.wait(min(left, SLICE))

    def park(self) -> None:
        """Ask the thread to end before a fork, if it only waits for more."""
        thread = self._thread
        if thread is not None and not self._in_thread:
            with self.lock:
                self._idle_timeout = 0.0
                self._more.set()

    def wait_parked(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None and not self._in_thread and thread.is_alive():
            threads.join(thread, max(0.0, timeout))

    def _start(self) -> bool:
        """Have a thread, unless none can be started; the caller holds the lock."""
        thread = self._thread
        # One that has not begun has no ident yet.
        if thread is not None and (thread.ident is None or thread.is_alive()):
            return True
        self._thread = None
        # Before Python 3.12 a thread started while the interpreter ends is waited for, and never runs.
        self._alone = lifecycle.forks_unseen() or sys.is_finalizing()
        if self._alone:
            return False
        self._thread = thread = threads.make_thread(self._work, threads.CALLBACKS)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            # The interpreter ends, or it is only out of threads: then the sender tries again.
            self._alone = "shutdown" in str(error)
            return False
        except BaseException:  # such as Ctrl-C while this thread waits for the other to begin
            if thread.ident is None:
                self._thread = None
            raise
        return True

    def _work(self) -> None:
        try:
            while self._one():
                pass
        finally:
            with self.lock:
                if self._in_thread:
                    self._thread = None
                    if self._waiting:  # this thread was ended from outside
                        self._start()

    def _one(self) -> bool:
        """Run the next callback, or wait for one; return whether to go on."""
        with self.lock:
            if not self._in_thread:
                return False
            job = self._waiting.popleft() if self._waiting else None
            idle_timeout = self._idle_timeout
            if job is not None:
                self._running += 1
            elif idle_timeout:
                self._more.clear()
            else:
                self._thread = None
                return False
        if job is not None:
            self._call(*job)
        elif not self._more.wait(idle_timeout):
            with self.lock:
                if not self._waiting:
                    self._idle_timeout = 0.0
        return True

    def _run_here(self, callback: Callable[..., object], given: tuple[Any, ...]) -> None:
        """Run a callback in the calling thread; `_running` counts it already."""
        ident = threads.caller_ident()
        self._helpers.add(ident)
        try:
            self._call(callback, given)
        finally:
            self._helpers.discard(ident)

    def _call(self, callback: Callable[..., object], given: tuple[Any, ...]) -> None:
        try:
            callback(*given)
        except BaseException as error:
            # Ctrl-C in a thread of the application does not belong to the callback.
            if isinstance(error, KeyboardInterrupt) and not self._in_thread:
                raise
            with suppress(BaseException):  # a handler of the application writes it
                self._report("callback", f"a callback raised {described(error)}")
        finally:
            with self.lock:
                self._running -= 1
                self._fewer.set()


class Submissions:
    """The submitted events of one client, whose `callbacks` are run by that thread.

    ``poke()`` makes the pump return soon. With `has_log` callers can wait for the disk: the spool has a log.
    """

    def __init__(
        self,
        queue: EventQueue,
        max_events: int,
        callbacks: CallbackThread,
        poke: Callable[[], object],
        has_log: bool = False,
    ) -> None:
        self._queue = queue
        self.has_log = has_log
        self._most = max_events + MAX_UNREPORTED_DELIVERIES
        self.callbacks = callbacks
        self.deliveries: dict[int, Delivery] = {}
        self._watched: dict[object, tuple[int, Callable[[], object]]] = {}
        self._flush_target = 0
        self._poke = poke
        # What was settled while an event was being pushed, by the push. No lock: a signal handler that waits
        # for the sender may interrupt the push.
        self._pushing: dict[int, list[tuple[int, int, str, str]]] = {}

    def is_crowded(self) -> bool:
        """Return whether too many submitted events have no outcome, or callbacks that are due."""
        return len(self.deliveries) + self.callbacks.waiting >= self._most

    def push(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, ticket: Ticket | None = None
    ) -> int:
        """Queue an event, followed by `delivery` if there is one; return what ``EventQueue.push`` does."""
        if delivery is None:
            return self._queue.push(body, level, kind, 0, ticket)
        early = self._pushing.setdefault(id(delivery), [])
        try:
            seq = self._queue.push(body, level, kind, 0, ticket)
            if seq > 0:
                delivery.seq = seq
                self.deliveries[seq] = delivery
        finally:
            del self._pushing[id(delivery)]
        # Either the sender has found the delivery, or what it has settled is here.
        self.settle(early)
        return seq

    def request_flush(self, seq: int) -> None:
        """Report the outcome of this event as soon as it is there: a caller waits for it."""
        if self._queue.forked:  # the parent's
            return
        self._flush_target = max(self._flush_target, seq)
        self._queue.set_flush_target(seq)
        if self._queue.settled >= seq:
            self._poke()  # it is there, and was not reported yet
        self._queue.wake()

    def wait_stored(self, seq: int, timeout: float | None) -> bool:
        """Wait until the disk has every event up to this one; see ``Delivery.stored``."""
        if self._queue.forked:
            return False
        if not self.has_log:
            raise ValueError("stored: needs spool_sync=interval or batch")
        if threads.is_green():
            return bool(threads.wait_until(lambda: self._queue.wait_settled(seq, 0.0, stored=True), timeout))
        return self._queue.wait_settled(seq, LONGEST if timeout is None else timeout, stored=True)

    def restore_flush_target(self) -> None:
        """Set the target of `request_flush` again: the queue has one at a time."""
        if self._flush_target > self._queue.settled:
            self._queue.set_flush_target(self._flush_target)

    def settle(self, outcomes: list[tuple[int, int, str, str]]) -> None:
        """Settle deliveries: each outcome is (first sequence, last sequence, status, reason)."""
        for early in [*self._pushing.values()]:
            early += outcomes
        for first, last, status, reason in outcomes:
            if last - first < len(self.deliveries):
                found = [seq for seq in range(first, last + 1) if seq in self.deliveries]
            else:
                found = [seq for seq in [*self.deliveries] if first <= seq <= last]
            outcome = Outcome(status, reason)
            for seq in found:
                delivery = self.deliveries.get(seq)
                if delivery is not None:  # another thread may have settled it meanwhile
                    delivery._settle(outcome)
                # Removed afterwards: in the child of a fork in between, it fails.
                self.deliveries.pop(seq, None)

    def fail_rest(self) -> None:
        """Fail all that have no outcome: delivery is over."""
        self.settle([(1, 1 << 48, "failed", "closed")])

    def fail_those_of(self, parent: Submissions) -> None:
        """In a forked child, fail the deliveries of the parent, which goes on with its own."""
        for delivery in parent.deliveries.values():
            delivery._done = None  # a thread of the parent may have waited for it
            delivery._settle(Outcome("failed", "forked"))

    def explain(self, seq: int, details: Mapping[str, Any]) -> None:
        """Add details to the outcome of an event that is not settled yet. Called by the sender."""
        delivery = self.deliveries.get(seq)
        if delivery is not None:
            delivery._details = details

    def watch(self, target: int, callback: Callable[[], object]) -> object:
        """Call ``callback()`` once every event up to `target` has its outcome: by the sender, or at once.

        It must be quick, and not raise. The result is the key for ``unwatch``.
        """
        key = object()
        self._watched[key] = (target, callback)
        self._queue.set_flush_target(target)
        self._queue.wake()
        self.notify_watchers()
        return key

    def unwatch(self, key: object) -> None:
        self._watched.pop(key, None)

    def notify_watchers(self) -> None:
        if not self._watched:
            return
        settled = self._queue.settled
        for key, (target, callback) in [*self._watched.items()]:
            if target <= settled and self._watched.pop(key, None) is not None:
                callback()
        if left := [target for target, _ in [*self._watched.values()]]:
            self._queue.set_flush_target(min(left))
