"""The role of the sender: one thread at a time delivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logclient import threads
from logclient._ext.queue import EventQueue
from logclient._ext.record import mark_sender_thread
from logclient.delivery import lifecycle
from logclient.delivery.contract import FOREVER, LONGEST
from logclient.delivery.ending import Ending
from logclient.delivery.engine import Engine
from logclient.errors import described
from logclient.standard import time


class Role:
    """Who has the role in this process: a thread that is started for it, or a caller in its place.

    Attributes:
        ident: the thread that has the role; 0: none has.
        thread: the last one that was started for it.
    """

    def __init__(self, queue: EventQueue, engine: Engine, ending: Ending) -> None:
        self.ident = 0
        self.thread: threads.AnyThread | None = None
        self._queue = queue
        self._engine = engine
        self._ending = ending
        self._lock = threads.Lock()
        self._starting = threads.Lock()
        self._ended = threads.Event()  # the last thread has

    # -- a thread has it ---------------------------------------------------------------------------

    def start(self, target: Callable[[], object], wait: bool) -> bool:
        """Start a thread for ``target()``, unless there is one, or a fork goes on.

        Return whether there is one, or will be after the fork. With `wait`, another such call is waited for.
        """
        ending, queue = self._ending, self._queue
        # Between the two hooks of a fork no thread may be started. And a log call in a destructor or signal
        # handler may come while this very thread starts one.
        if ending.forking or not self._starting.acquire(blocking=wait):
            return True
        try:
            # First: a sender that ends meanwhile sets it again.
            queue.needs_sender = False
            if ending.running:
                return True
            if time.monotonic() < ending.start_at:
                queue.needs_sender = True
                return False
            return self._start(target)
        except BaseException:  # Ctrl-C
            queue.needs_sender = True
            raise
        finally:
            self._starting.release()

    def _start(self, target: Callable[[], object]) -> bool:
        ending, diagnostics = self._ending, self._engine.diagnostics
        lifecycle.call_at_end()
        if lifecycle.threads_starve():
            diagnostics.report(
                "uwsgi",
                "uwsgi runs no threads between requests, so records wait for the next one: "
                "set enable-threads = true",
            )
        self._engine.pump.resume()
        self._ended = threads.Event()
        thread = self.thread = threads.make_thread(target, threads.SENDER)
        try:
            ending.thread_started()
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # The interpreter ends, or it is only out of threads: then the next event tries again.
            ending.thread_failed(time.monotonic(), "shutdown" in str(error))
            self._queue.needs_sender = True
            if not ending.threadless:
                diagnostics.report("sender", f"no sender: {error}")
            return False
        except BaseException:  # the thread may have begun
            if not thread.is_alive():
                ending.thread_ended()
            raise
        return True

    def run(self, step: Callable[[], bool], at_end: Callable[[], object]) -> None:
        """Have the role in this thread, and deliver by ``step()``; once that returns False, ``at_end()``."""
        ending = self._ending
        with self._lock:
            self.ident = threads.get_ident()
            mark_sender_thread(True)
            leaves = False
            try:
                while ending.is_open and not ending.parking and not leaves:
                    leaves = not step()
            except BaseException as error:
                # A bug of ours must not end in silence; the next event starts a new thread. While draining
                # there may be no next event, so the rest is given up and counted at once.
                self.died(error)
                leaves = ending.is_draining
                raise
            finally:
                try:
                    if leaves:
                        at_end()
                finally:
                    self.ident = 0
                    ending.thread_ended()
                    self._queue.needs_sender = True
                    self._ended.set()

    def died(self, error: BaseException) -> None:
        """Report an error of ours that has ended the delivery of a thread, or of a caller at the end."""
        self._engine.diagnostics.report("sender", f"the sender stopped: {described(error)}")
        if self._ending.is_draining:
            self._ending.cut_short(time.monotonic())

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        thread = self.thread
        if thread is not None and thread.ident != threads.get_ident():
            # Not `join` alone: before Python 3.13 a join that is interrupted takes the thread for ended.
            deadline = time.monotonic() + max(0.0, min(timeout, LONGEST))
            if self._ended.wait(deadline - time.monotonic()):
                threads.join(thread, max(0.0, deadline - time.monotonic()))
        return not self._ending.running

    # -- a caller has it ---------------------------------------------------------------------------

    @contextmanager
    def held(self, seconds: float) -> Iterator[bool]:
        """Have the role in this call if it can be had within `seconds`; yield whether it is."""
        has = threads.acquire(self._lock, seconds)
        try:
            yield has
        finally:
            if has:
                self._lock.release()

    @contextmanager
    def delivering(self, deadline: float) -> Iterator[None]:
        """Deliver in this call, which holds the role, until the monotonic second `deadline`."""
        self.ident = threads.get_ident()
        own = mark_sender_thread(True)
        self._ending.caller_by = deadline
        try:
            yield
        finally:
            self._ending.caller_by = FOREVER
            mark_sender_thread(own)
            self.ident = 0
