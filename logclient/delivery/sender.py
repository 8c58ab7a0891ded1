"""The sender: the thread that delivers for one client, and callers that deliver in its place.

Only one thread at a time is the sender: it holds the *role*. Normally that is a daemon thread, started by the
first event. Where no thread can be started, at interpreter exit or in uwsgi's master, callers take the role
and deliver in their call: delivery is *inline*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logclient import threads
from logclient._ext.record import mark_sender_thread
from logclient.delivery import error_log, hosts, lifecycle
from logclient.delivery.contract import FOREVER, LONGEST

if TYPE_CHECKING:
    from threading import Lock

    from logclient._ext.queue import EventQueue
    from logclient.config import Config
    from logclient.delivery.contract import Pump
    from logclient.delivery.diagnostics import Diagnostics
    from logclient.delivery.submissions import Submissions

SLICE = 0.05
"""Seconds between two checks whether the condition has come for which a caller delivers."""

START_AGAIN = 0.1
"""Seconds between two attempts to start a thread when none can be started."""


class Sender:
    """The role, its thread, and callers that wait. A base class: `Engine` defines a turn.

    Attributes:
        exiting: the process ends, so delivery is inline.
        sender_ident: the thread that has the role; 0: none has.
    """

    limits: Config
    queue: EventQueue
    pump: Pump
    submissions: Submissions
    diagnostics: Diagnostics
    exiting: bool

    def _begin(self) -> None:
        """Start anew: in a new client, and in the child of a fork."""
        self.sender_ident = 0
        self._role = threads.Lock()
        self._thread: threads.AnyThread | None = None
        self._thread_ended = threads.Event()
        self._running = False
        self._starting = threads.Lock()
        self._start_again = 0.0
        self._no_threads = False
        self._stopping = False  # the thread is to end, for a fork
        self._forking = False
        self._drive_by = FOREVER  # when a caller that delivers has no more time
        self._patience = self.limits.atexit_timeout  # seconds that calls may still wait at exit

    # Implemented by subclasses.

    def turn(self, until: float) -> None:
        """Deliver, until the monotonic second `until` at most; the caller holds the role."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """Start anew in the child of a fork."""
        raise NotImplementedError

    def _run(self) -> None:
        """Be the sender's thread."""
        raise NotImplementedError

    def _turned_at_exit(self, done: Callable[[], bool], deadline: float) -> None:
        """Finish a turn of a caller that delivers while the process ends."""
        raise NotImplementedError

    @property
    def _has_work(self) -> bool:
        """Whether a sender is needed even if no event comes."""
        raise NotImplementedError

    @property
    def may_be_reachable(self) -> bool:
        """Whether the server is reachable as far as is known; True before the first attempt."""
        raise NotImplementedError

    # -- the thread --------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a thread is the sender."""
        return self._running

    @property
    def inline(self) -> bool:
        """Whether callers deliver the events that they wait for, because there is no thread for it."""
        return self._no_threads or self.exiting or hosts.forks_unseen()

    @property
    def settled_all(self) -> bool:
        """Whether every event has its outcome."""
        return self.queue.settled >= self.queue.next_seq - 1

    def _start(self, wait: bool = False) -> bool:
        """Start the sender's thread unless it runs; return False when none can be started."""
        # Between the two hooks of a fork no thread may be started. And a log call in a destructor or signal
        # handler may come while this very thread starts one.
        if self._forking or not self._starting.acquire(blocking=wait):
            return True
        try:
            # First: a sender that ends meanwhile sets it again.
            self.queue.needs_sender = False
            if self._running:
                return True
            if time.monotonic() < self._start_again:
                self.queue.needs_sender = True
                return False
            hosts.call_at_end(lifecycle.at_exit)
            if hosts.threads_starve():
                self.diagnostics.complain(
                    "uwsgi runs no threads between requests, so records wait for the next one: "
                    "set enable-threads = true",
                    "uwsgi",
                )
            self._stopping = False
            self.pump.resume()
            thread = threads.make_thread(self._run, threads.SENDER)
            self._thread = thread
            self._thread_ended = threads.Event()
            self._running = True
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                self._running = False
                self.queue.needs_sender = True
                # The interpreter ends, or it is only out of threads: then the next event tries again.
                self._no_threads = "shutdown" in str(error)
                if not self._no_threads:
                    # An attempt is expensive, and each log call may make one.
                    self._start_again = time.monotonic() + START_AGAIN
                    self.diagnostics.complain(f"{self.diagnostics.url}: no sender: {error}", "sender")
                return False
            except BaseException:  # Ctrl-C; the thread may have begun
                self._running = thread.is_alive()
                self.queue.needs_sender = True
                raise
            return True
        finally:
            self._starting.release()

    def _join(self, timeout: float) -> bool:
        """Wait for the end of the sender's thread; return whether it has ended."""
        thread = self._thread
        if thread is None or thread.ident == threads.get_ident():
            return not self._running
        # Not `join` alone: before Python 3.13 a join that is interrupted takes the thread for ended.
        deadline = time.monotonic() + max(0.0, min(timeout, LONGEST))
        if self._thread_ended.wait(deadline - time.monotonic()):
            threads.join(thread, max(0.0, deadline - time.monotonic()))
        return not self._running

    # -- callers that wait -------------------------------------------------------------------------

    def flush(self, timeout: float) -> int:
        """Wait until all events sent before this call are settled; return how many are not."""
        if self.queue.forked:
            self.after_fork()
        if self.exiting:
            timeout = min(timeout, self._patience)
        target = self.queue.next_seq - 1
        settled = self._wait_settled(target, timeout)
        error_log.write_deferred()
        return 0 if settled else self.unsettled(target)

    def flush_if_reachable(self, timeout: float) -> int:
        """Flush, but do not wait for a server that cannot be reached."""
        if self.queue.forked:
            self.after_fork()
        if self.exiting:
            timeout = min(timeout, self._patience)
        deadline = time.monotonic() + timeout
        target = self.queue.next_seq - 1
        while not self._wait_settled(target, max(0.0, min(deadline - time.monotonic(), SLICE))):
            if time.monotonic() >= deadline or not self.may_be_reachable:
                return self.flush(0.0)
        return 0

    def unsettled(self, target: int) -> int:
        """Return how many events up to this sequence have no outcome."""
        # Acks may come in any order: events beyond `settled` may have their outcome, too.
        counts = self.queue.counters()
        return int(max(0, min(target - counts["settled"], counts["queued"] + counts["inflight"])))

    def _wait_settled(self, target: int, timeout: float) -> bool:
        if self.queue.settled >= target:
            return True
        if lifecycle.cannot_wait(self.sender_ident):
            return False
        if not self.inline and self._start():
            self.queue.wake()
            if threads.is_green():
                return threads.wait_until(lambda: self._reached(target), timeout)
            return self.queue.wait_settled(target, timeout)
        return self._drive_to(target, timeout)

    def _reached(self, target: int) -> bool:
        """Return whether every event up to `target` has its outcome; if not, the pump returns when it has."""
        self.queue.set_flush_target(target)
        return self.queue.settled >= target

    def _drive_to(self, target: int, timeout: float) -> bool:
        return self._drive(lambda: self._reached(target), timeout)

    def _drive(self, done: Callable[[], bool], timeout: float) -> bool:
        """Be the sender until ``done()``, where no thread is; return whether that came true."""
        begin = time.monotonic()
        deadline = begin + timeout
        self.queue.wake()  # a sender that sleeps: a caller waits
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with held(self._role, min(left, SLICE)) as has_role:
                if not has_role:
                    # A thread still has it, and does the work.
                    self.queue.wake()
                    continue
                with self._as_sender(deadline):
                    self.turn(min(deadline, time.monotonic() + SLICE))
                    if self.exiting:
                        self._turned_at_exit(done, deadline)
        if self.inline:
            self.submissions.callbacks.drain(deadline)
            self._patience = max(0.0, self._patience - (time.monotonic() - begin))
        return done()

    @contextmanager
    def _as_sender(self, deadline: float) -> Iterator[None]:
        """Be the sender inside of a call that holds the role, until the monotonic second `deadline`."""
        self.sender_ident = threads.get_ident()
        own = mark_sender_thread(True)
        self._drive_by = deadline
        try:
            yield
        finally:
            self._drive_by = FOREVER
            mark_sender_thread(own)
            self.sender_ident = 0

    # -- a fork (called by lifecycle) --------------------------------------------------------------

    def park(self, pause: bool) -> None:
        """Before a fork: ask the sender's thread to end, so that no work of it is interrupted in the child.

        Everything it works on stays; the next event (or ``unpark``) starts another.

        Args:
            pause: pause a sender that only waits instead, which costs next to nothing.
        """
        self._forking = True
        self.queue.needs_sender = True
        if not (lifecycle.in_sender(self.sender_ident) or (pause and self.queue.pause_for_fork())):
            self._stopping = True
            self.pump.stop()
            if self._running:
                self.queue.wake()
        self.submissions.callbacks.park()

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        if self._stopping:
            self._join(deadline - time.monotonic())
        self.submissions.callbacks.wait_parked(deadline - time.monotonic())

    def unpark(self) -> bool:
        """Go on in the parent after a fork; return whether a sender has work."""
        self._forking = False
        self._stopping = False
        self.pump.resume()
        self.queue.resume_after_fork()
        return self._has_work

    def restart(self) -> bool:
        """Have a sender again after a fork; return whether its thread was started."""
        if self.inline:
            self.ensure_sender()
            return False
        return not self._running and self._start() and self._running

    def ensure_sender(self) -> None:
        """Start a sender, or be one."""
        raise NotImplementedError


@contextmanager
def held(lock: Lock, seconds: float) -> Iterator[bool]:
    """Hold `lock` if it can be taken within `seconds`; yield whether it was."""
    has = threads.acquire(lock, seconds)
    try:
        yield has
    finally:
        if has:
            lock.release()
