"""What became of one event, for who asked: ``Delivery``, and the thread its callbacks run on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from logclient import threads
from logclient.delivery import lifecycle

LINGER = 1.0
"""Seconds that an idle callback thread waits for more."""

SLICE = 0.05
"""Seconds between two looks of a thread that waits for callbacks to run."""


class Outcome(NamedTuple):
    """``status`` is ``acked``, ``handed``, ``failed`` or ``dropped``; ``reason`` says why the last two."""

    status: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status in ("acked", "handed")

    @property
    def details(self) -> Mapping[str, Any]:
        """What else the server has said of the event: of a Logux action that was undone, the reason and the
        other fields of the undo. It does not count when outcomes are compared."""
        return _NOTHING


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Detailed(Outcome):
    """An outcome with `details`."""

    details: Mapping[str, Any] = _NOTHING

    @classmethod
    def of(cls, outcome: Outcome, details: Mapping[str, Any]) -> _Detailed:
        made = cls(*outcome)
        made.details = details
        return made


class Delivery:
    """One submitted event on its way. Never raises for a failed event: look at the outcome."""

    __slots__ = ("_callbacks", "_details", "_done", "_outcome", "_runner", "seq")

    # Hundreds of thousands may be pending when a server is dead: what only a waiter needs is made for it,
    # and all of a client share one lock.
    def __init__(self, seq: int, runner: CallbackThread) -> None:
        self.seq = seq
        self._outcome: Outcome | None = None
        self._details: Mapping[str, Any] | None = None
        self._done: threads.Event | None = None
        self._callbacks: tuple[Callable[[Delivery], object], ...] = ()
        self._runner = runner

    def done(self) -> bool:
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the outcome, at most `timeout` seconds; None when there is none yet.

        In a callback of the event loop of gevent or eventlet itself it does not wait.
        """
        if self._outcome is not None or lifecycle.cannot_wait(0):
            return self._outcome
        with self._runner.lock:
            if self._outcome is not None:
                return self._outcome
            if self._done is None:
                self._done = threads.Event()
            done = self._done
        if timeout is None or timeout > 0:
            self._hurry()
        done.wait(timeout)
        return self._outcome

    def _hurry(self) -> None:
        """Somebody waits for the outcome: no nap before it is sent, none before it is told."""
        if self._outcome is None:
            self._runner.hurry(self.seq)

    def cancel(self) -> bool:
        """False: what was sent cannot be taken back."""
        return False

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once there is an outcome, on the client's callback thread.

        If there is an outcome already, and as many callbacks wait as may wait, the calling thread runs
        it: memory stays bounded, and none is lost.
        """
        with self._runner.lock:
            if self._outcome is None:
                self._callbacks += (callback,)
                return
        self._runner.run_or_help(callback, self)

    def _explain(self, details: Mapping[str, Any]) -> None:
        """Before it is settled: the `details` of the outcome to come."""
        self._details = details

    def _settle(self, outcome: Outcome) -> None:
        if self._details is not None:
            outcome = _Detailed.of(outcome, self._details)
        with self._runner.lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            callbacks, self._callbacks = self._callbacks, ()
            done = self._done
        if done is not None:
            done.set()
        for callback in callbacks:
            self._runner.run(callback, self)

    def _after_fork(self, outcome: Outcome) -> None:
        """In the child: a thread of the parent may have waited for it."""
        self._done = None
        self._settle(outcome)

    def __repr__(self) -> str:
        state = "pending" if self._outcome is None else " ".join(filter(None, self._outcome))
        return f"<Delivery {self.seq} {state}>"


class CallbackThread:
    """Runs callbacks one after the other on a thread of its own, started by the first of them.

    The sender never waits for user code. The thread ends after a second without work. Whatever a callback
    raises is reported, and the next one runs.

    Args:
        report: called with (kind, text) of an exception that a callback has raised.
        hurry: gives what is to be called with the sequence of an event whose outcome somebody waits for.
        crowded: gives what says whether ``run_or_help`` has to run a callback in the calling thread.
    """

    def __init__(
        self,
        report: Callable[[str, str], object],
        hurry: Callable[[], Callable[[int], object] | None] = lambda: None,
        crowded: Callable[[], Callable[[], bool] | None] = lambda: None,
    ) -> None:
        self._report = report
        self._hurry = hurry
        self._crowded = crowded
        self._begin()

    def _begin(self) -> None:
        # Re-entrant: a signal handler may submit, or ask for a result, while this thread does.
        self.lock = threads.RLock()
        self._more = threads.Event()  # cleared and set with the lock held, waited for without
        self._fewer = threads.Event()
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = 0
        self._helpers: set[int] = set()  # threads of the application's that run one meanwhile
        self._alone = False  # no thread can be started, now or ever: the interpreter ends
        self._thread: threads.AnyThread | None = None
        self._linger = LINGER

    def after_fork(self) -> None:
        """In the child: the thread, and the callbacks that wait for it, are the parent's."""
        self._begin()

    def hurry(self, seq: int) -> None:
        hurry = self._hurry()
        if hurry is not None:
            hurry(seq)

    @property
    def waiting(self) -> int:
        """Callbacks that are due and have not begun."""
        return len(self._waiting)

    @property
    def here(self) -> bool:
        """Whether the calling thread is running a callback."""
        return self._in_thread or threads.caller() in self._helpers

    @property
    def _in_thread(self) -> bool:
        thread = self._thread
        return thread is not None and thread.ident == threads.get_ident()

    def run(self, callback: Callable[..., object], *given: Any) -> None:
        """Queue a callback. Never waits, never runs it in the calling thread."""
        with self.lock:
            self._waiting.append((callback, given))
            self._linger = LINGER
            self._start()
            self._more.set()

    def run_or_help(self, callback: Callable[..., object], *given: Any) -> None:
        """Queue a callback; or run it here, where too many wait or no thread will ever run it."""
        crowded = self._crowded()
        if crowded is not None and crowded() and not self.here:
            with self.lock:
                self._running += 1
            self._help(callback, given)
            return
        self.run(callback, *given)
        if self._alone:
            self.drain(float("inf"))

    def attend(self) -> None:
        """Called by the sender now and then: start the thread if callbacks wait and there is none."""
        if self._waiting:
            with self.lock:
                self._start()

    def drain(self, deadline: float) -> int:
        """Wait until all callbacks have run, until the monotonic second `deadline` at most.

        Where no thread can be started, the calling thread runs them.

        Returns:
            How many have not run to their end. Always 0 in a callback, which cannot wait for itself.
        """
        if self.here:
            return 0
        while True:
            job = None
            with self.lock:
                left = deadline - time.monotonic()
                unfinished = len(self._waiting) + self._running
                if not unfinished or left <= 0:
                    return unfinished
                if self._running or self._start():
                    self._fewer.clear()
                else:
                    job = self._waiting.popleft()
                    self._running += 1
            if job is not None:
                self._help(*job)
            else:
                self._fewer.wait(min(left, SLICE))

    def park(self) -> None:
        """Before a fork: ask the thread to end, if it only waits for more."""
        thread = self._thread
        if thread is not None and not self._in_thread:
            with self.lock:
                self._linger = 0.0
                self._more.set()

    def parked(self, timeout: float) -> None:
        """Wait for that."""
        thread = self._thread
        if thread is not None and not self._in_thread and thread.is_alive():
            threads.join(thread, max(0.0, timeout))

    def _start(self) -> bool:
        """With the lock held: have a thread, unless none can be started."""
        thread = self._thread
        # One that has not begun has no ident yet.
        if thread is not None and (thread.ident is None or thread.is_alive()):
            return True
        self._thread = None
        self._alone = lifecycle.forks_unseen()
        if self._alone:
            return False
        self._thread = thread = threads.make_thread(self._work, threads.CALLBACKS)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            # Shut down for good, or only out of threads: then the sender tries again.
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
        """Run the next callback, or wait for one; whether to go on."""
        with self.lock:
            if not self._in_thread:
                return False
            job = self._waiting.popleft() if self._waiting else None
            linger = self._linger
            if job is not None:
                self._running += 1
            elif linger:
                self._more.clear()
            else:
                self._thread = None
                return False
        if job is not None:
            self._call(*job)
        elif not self._more.wait(linger):
            with self.lock:
                if not self._waiting:
                    self._linger = 0.0
        return True

    def _help(self, callback: Callable[..., object], given: tuple[Any, ...]) -> None:
        """Run one in the calling thread; `_running` counts it already."""
        ident = threads.caller()
        self._helpers.add(ident)
        try:
            self._call(callback, given)
        finally:
            self._helpers.discard(ident)

    def _call(self, callback: Callable[..., object], given: tuple[Any, ...]) -> None:
        try:
            callback(*given)
        except BaseException as error:
            # Ctrl-C in a thread of the application's is not the callback's own.
            if isinstance(error, KeyboardInterrupt) and not self._in_thread:
                raise
            with suppress(BaseException):  # a handler of the application's says it
                self._report("callback", f"a callback raised {described(error)}")
        finally:
            with self.lock:
                self._running -= 1
                self._fewer.set()


def described(error: BaseException) -> str:
    """Name and text of what user code has raised; its ``__str__`` is user code, too."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
