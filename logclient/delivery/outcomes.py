"""What became of one event, for who asked: ``Delivery``, and the thread its callbacks run on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

LINGER = 1.0
"""Seconds that an idle callback thread waits for more."""


class Outcome(NamedTuple):
    """``status`` is ``acked``, ``handed``, ``failed`` or ``dropped``; ``reason`` says why the last two."""

    status: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status in ("acked", "handed")


class Delivery:
    """One submitted event on its way. Never raises for a failed event: look at the outcome."""

    __slots__ = ("_callbacks", "_done", "_lock", "_outcome", "_runner", "seq")

    # Hundreds of thousands may be pending when a server is dead: what only a waiter needs is made for it.
    def __init__(self, seq: int, runner: CallbackThread) -> None:
        self.seq = seq
        self._outcome: Outcome | None = None
        self._done: threading.Event | None = None
        self._lock = threading.RLock()  # a signal handler may ask while this thread does
        self._callbacks: tuple[Callable[[Delivery], object], ...] = ()
        self._runner = runner

    def done(self) -> bool:
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the outcome, at most `timeout` seconds; None when there is none yet."""
        with self._lock:
            if self._outcome is not None:
                return self._outcome
            if self._done is None:
                self._done = threading.Event()
            done = self._done
        if timeout is None or timeout > 0:
            self.hurry()
        done.wait(timeout)
        return self._outcome

    def hurry(self) -> None:
        """Somebody waits for the outcome: no nap before it is sent, none before it is told."""
        if self._outcome is None:
            self._runner.hurry(self.seq)

    def cancel(self) -> bool:
        """False: what was sent cannot be taken back."""
        return False

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call ``callback(delivery)`` once there is an outcome, on the client's callback thread."""
        with self._lock:
            if self._outcome is None:
                self._callbacks += (callback,)
                return
        self._runner.run(callback, self)

    def settle(self, outcome: Outcome) -> None:
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            callbacks, self._callbacks = self._callbacks, ()
            done = self._done
        if done is not None:
            done.set()
        for callback in callbacks:
            self._runner.run(callback, self)

    def after_fork(self, outcome: Outcome) -> None:
        """In the child: another thread of the parent may have held these locks."""
        self._lock = threading.RLock()
        self._done = None
        self.settle(outcome)

    def __repr__(self) -> str:
        state = "pending" if self._outcome is None else " ".join(filter(None, self._outcome))
        return f"<Delivery {self.seq} {state}>"


class CallbackThread:
    """Runs callbacks one after the other on a thread of its own, started by the first of them.

    The sender never waits for user code; the thread ends after a second without work.

    Args:
        report: called with (kind, text) of an exception that a callback has raised.
        hurry: gives what is to be called with the sequence of an event whose outcome somebody waits for.
    """

    def __init__(
        self,
        report: Callable[[str, str], object],
        hurry: Callable[[], Callable[[int], object] | None] = lambda: None,
    ) -> None:
        self._report = report
        self._hurry = hurry
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._linger = LINGER

    def hurry(self, seq: int) -> None:
        hurry = self._hurry()
        if hurry is not None:
            hurry(seq)

    def run(self, callback: Callable[..., object], *given: Any) -> None:
        with self._wake:
            self._waiting.append((callback, given))
            self._linger = LINGER
            if self._thread is not None:
                self._wake.notify()
                return
            self._thread = thread = threading.Thread(
                target=self._work, name="logclient-callbacks", daemon=True
            )
        try:
            thread.start()
        except RuntimeError:
            # At interpreter shutdown no thread can be started any more: run them here.
            self._linger = 0.0
            self._work()

    def park(self, timeout: float) -> None:
        """Before a fork: have the thread end, if it only waits for more."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        with self._wake:
            self._linger = 0.0
            self._wake.notify()
        if thread.ident is not None:
            thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._wake:
                if not self._waiting and self._linger:
                    self._wake.wait(self._linger)
                if not self._waiting:
                    self._thread = None
                    return
                callback, given = self._waiting.popleft()
            try:
                callback(*given)
            except Exception as error:  # user code: reported, never ours to raise
                self._report("callback", f"a callback raised {type(error).__name__}: {error}")
