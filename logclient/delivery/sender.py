"""The sender: the thread that delivers for one client, and callers that deliver in its place.

Only one thread at a time is the sender: it holds the *role*. Normally that is a daemon thread, started by the
first event. Where no thread can be started, at interpreter exit or in uwsgi's master, callers take the role
and deliver in their call: delivery is *inline*.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from logclient import threads
from logclient._ext.record import mark_sender_thread
from logclient.delivery import lifecycle
from logclient.delivery.contract import FOREVER, LONGEST
from logclient.errors import described
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.pump import PumpGroup
    from logclient._ext.queue import EventQueue
    from logclient.delivery.books import Books
    from logclient.delivery.ending import Ending

SLICE = 0.05
"""Seconds between two checks whether the condition has come for which a caller delivers."""


class _Work(Protocol):
    """What a sender does; ``delivery.engine.Engine`` has it."""

    @property
    def has_work(self) -> bool: ...
    def start_sender(self, wait: bool = False) -> bool: ...
    def step(self) -> bool: ...
    def turn(self, until: float) -> None: ...
    def turned_at_exit(self, done: Callable[[], bool], deadline: float) -> None: ...
    def leave(self) -> None: ...


class Sender:
    """The role, its thread, and callers that deliver.

    Attributes:
        ending: the state in which delivery is.
        ident: the thread that has the role; 0: none has.
        thread: the last one that was started.
        give_up_at: when a caller that delivers has no more time: a monotonic second.
    """

    def __init__(self, ending: Ending, queue: EventQueue, pump: PumpGroup, books: Books) -> None:
        self.ident = 0
        self.thread: threads.AnyThread | None = None
        self.give_up_at = FOREVER
        self.ending = ending
        self._queue = queue
        self._pump = pump
        self._callbacks = books.submissions.callbacks
        self._diagnostics = books.diagnostics
        self._role = threads.Lock()
        self._starting = threads.Lock()
        self._thread_ended = threads.Event()

    @property
    def inline(self) -> bool:
        """Whether callers deliver the events that they wait for, because there is no thread for it."""
        return self.ending.threadless or self.ending.is_handed or lifecycle.forks_unseen()

    @property
    def is_stopped(self) -> bool:
        """Whether the sender must not begin anything that takes long."""
        ending = self.ending
        return ending.muted or ending.stopping or time.monotonic() >= min(ending.deadline, self.give_up_at)

    # -- the thread --------------------------------------------------------------------------------

    def start(self, work: _Work, wait: bool = False) -> bool:
        """Start the thread, unless it runs or a fork goes on; return False when none can be started."""
        ending = self.ending
        # Between the two hooks of a fork no thread may be started. And a log call in a destructor or signal
        # handler may come while this very thread starts one.
        if ending.forking or not self._starting.acquire(blocking=wait):
            return True
        try:
            # First: a sender that ends meanwhile sets it again.
            self._queue.needs_sender = False
            if ending.running:
                return True
            if time.monotonic() < ending.start_at:
                self._queue.needs_sender = True
                return False
            lifecycle.call_at_end()
            if lifecycle.threads_starve():
                self._diagnostics.warn_limited(
                    "uwsgi",
                    "uwsgi runs no threads between requests, so records wait for the next one: "
                    "set enable-threads = true",
                )
            self._pump.resume()
            thread = threads.make_thread(partial(self._run, work), threads.SENDER)
            self.thread = thread
            self._thread_ended = threads.Event()
            ending.thread_started()
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                # The interpreter ends, or it is only out of threads: then the next event tries again.
                ending.thread_failed(time.monotonic(), "shutdown" in str(error))
                self._queue.needs_sender = True
                if not ending.threadless:
                    self._diagnostics.warn_limited("sender", f"{self._diagnostics.url}: no sender: {error}")
                return False
            except BaseException:  # Ctrl-C; the thread may have begun
                if not thread.is_alive():
                    ending.thread_ended()
                self._queue.needs_sender = True
                raise
            return True
        finally:
            self._starting.release()

    def _run(self, work: _Work) -> None:
        lifecycle.start_next()
        ending = self.ending
        with self._role:
            self.ident = threads.get_ident()
            mark_sender_thread(True)
            leaves = False
            try:
                while ending.is_open and not ending.stopping and not leaves:
                    leaves = not work.step()
            except BaseException as error:
                # A bug of ours must not end in silence; the next event starts a new sender.
                words = f"the sender stopped: {type(error).__name__}: {error}"
                self._diagnostics.warn_limited("sender", words)
                leaves = ending.is_draining
                raise
            finally:
                try:
                    if leaves:
                        work.leave()
                finally:
                    self.ident = 0
                    ending.thread_ended()
                    self._queue.needs_sender = True
                    self._thread_ended.set()
        # The stop may have been requested for a fork that is over already.
        if not ending.stopping and work.has_work:
            work.start_sender(wait=True)

    def join(self, timeout: float) -> bool:
        """Wait for the end of the sender's thread; return whether it has ended."""
        thread = self.thread
        if thread is not None and thread.ident != threads.get_ident():
            # Not `join` alone: before Python 3.13 a join that is interrupted takes the thread for ended.
            deadline = time.monotonic() + max(0.0, min(timeout, LONGEST))
            if self._thread_ended.wait(deadline - time.monotonic()):
                threads.join(thread, max(0.0, deadline - time.monotonic()))
        return not self.ending.running

    # -- callers -----------------------------------------------------------------------------------

    @contextmanager
    def role(self, seconds: float) -> Iterator[bool]:
        """Hold the role if it can be taken within `seconds`; yield whether it was."""
        has = threads.acquire(self._role, seconds)
        try:
            yield has
        finally:
            if has:
                self._role.release()

    @contextmanager
    def acting(self, deadline: float) -> Iterator[None]:
        """Be the sender inside of a call that holds the role, until the monotonic second `deadline`."""
        self.ident = threads.get_ident()
        own = mark_sender_thread(True)
        self.give_up_at = deadline
        try:
            yield
        finally:
            self.give_up_at = FOREVER
            mark_sender_thread(own)
            self.ident = 0

    def drive(self, work: _Work, done: Callable[[], bool], timeout: float) -> bool:
        """Be the sender until ``done()``, where no thread is; return whether that came true."""
        begin = time.monotonic()
        deadline = begin + timeout
        self._queue.wake()  # a sender that sleeps: a caller waits
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with self.role(min(left, SLICE)) as has_role:
                if not has_role:
                    # A thread still has it, and does the work.
                    self._queue.wake()
                    continue
                with self.acting(deadline):
                    try:
                        work.turn(min(deadline, time.monotonic() + SLICE))
                    except Exception as error:
                        if not sys.is_finalizing():
                            raise
                        # Destructors may log when Python imports nothing any more, as pyzmq wants to.
                        self.ending.abandon(True)
                        words = f"events of destructors are not delivered: {described(error)}"
                        self._diagnostics.warn_limited("exit", f"{self._diagnostics.url}: {words}")
                        break
                    if self.ending.is_handed:
                        work.turned_at_exit(done, deadline)
        if self.inline:
            self._callbacks.drain(deadline)
            self.ending.waited(time.monotonic() - begin)
        return done()

    # -- a fork ------------------------------------------------------------------------------------

    def park(self, pause: bool) -> None:
        """Before a fork: ask the thread to end, so that no work of it is interrupted in the child.

        Everything it works on stays; the next event (or ``unpark``) starts another. With `pause`, a sender
        that only waits is paused instead, which costs next to nothing.
        """
        self.ending.forking = True  # first: from now on no thread starts
        self._queue.needs_sender = True
        paused = lifecycle.in_sender(self.ident) or (pause and self._queue.pause_for_fork())
        self.ending.fork_begins(paused)
        if not paused:
            self._pump.stop()
            if self.ending.running:
                self._queue.wake()

    def wait_parked(self, timeout: float) -> None:
        """Wait for the thread that was asked to end."""
        if self.ending.stopping:
            self.join(timeout)

    def unpark(self) -> None:
        """Go on in the parent after a fork."""
        self.ending.fork_over()
        self._pump.resume()
        self._queue.resume_after_fork()
