"""Fork and exit: the few hooks a process needs, registered once, for all engines.

Order at exit (CPython): non-daemon threads are joined, then atexit callbacks run last-in first-out,
``logging.shutdown`` among them. Ours is registered after ``logging`` was imported, so it runs before;
what is logged later still is pumped in the call. Children of ``multiprocessing`` skip atexit before
3.13 and run its finalizers instead; Celery's pool processes run neither, but send a signal of Celery's.
SIGTERM's default action runs nothing at all: see ``flush_on_sigterm``.

uwsgi forks in C and, unless told otherwise (``py-call-uwsgi-fork-hooks``), says nothing to Python. A
child of a process in which another thread holds the interpreter's lock at that moment waits for it for
ever: so its master gets no sender, and delivers in the call what it logs before it forks.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.delivery import error_log

if TYPE_CHECKING:
    from logclient.delivery.error_log import ErrorLog
    from logclient.delivery.shutdown import Lifetime

# The only module state of the package: who to call at exit and around a fork.
_engines: weakref.WeakSet[Lifetime] = weakref.WeakSet()
_registered: dict[str, int] = {}
_restarting: deque[Lifetime] = deque()

PARK = 0.05
"""Seconds a fork waits for all senders to let go."""

SHARE = 0.5
"""Seconds beyond the deadline at exit, in which senders write down what they give up."""


def watch(engine: Lifetime) -> None:
    """Tell `engine` of forks and of the end of the process."""
    _engines.add(engine)
    if "hooks" not in _registered:
        _registered["hooks"] = os.getpid()
        import logging  # noqa: F401  (its atexit callback must be older than ours)

        atexit.register(at_exit)
        atexit.register(at_exit)  # twice: Ctrl-C may end the first call before its first line
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


def given_up(log: ErrorLog, events: int, text: str) -> None:
    """Say that a client ended before all of its events were delivered. What is held back, because another
    client has said so in this minute, is part of a line at exit."""
    if log.complain("given up", text):
        return
    _registered["unsaid"] = _registered.get("unsaid", 0) + events


def shutting_down() -> bool:
    """Whether the interpreter ends: hooks registered now are not called any more."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False))


def at_first_event() -> None:
    """When a sender is started: have the children of multiprocessing and of Celery flush too."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _registered.get("finalizer") != os.getpid():
        _registered["finalizer"] = os.getpid()
        util.Finalize(None, at_exit, exitpriority=-100)
    signals = sys.modules.get("celery.signals")
    if signals is not None and "celery" not in _registered:  # forks inherit it
        _registered["celery"] = os.getpid()
        signals.worker_process_shutdown.connect(_celery_process_ends, weak=False)


def _celery_process_ends(**_: Any) -> None:
    at_exit()


def forks_unseen() -> bool:
    """Whether this is a uwsgi process that will fork without running Python's hooks."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or "py-call-uwsgi-fork-hooks" in getattr(uwsgi, "opt", ()):
        return False
    try:
        return not (uwsgi.worker_id() or uwsgi.mule_id() or uwsgi.i_am_the_spooler())
    except AttributeError:  # another module of that name
        return False


def threads_starve() -> bool:
    """Whether uwsgi keeps the interpreter's lock between requests."""
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and getattr(uwsgi, "has_threads", 1) == 0


def engines() -> list[Lifetime]:
    while True:
        try:
            return list(_engines)
        except RuntimeError:  # one was born meanwhile, in another thread
            continue


def at_exit() -> None:
    """Deliver what is there: one deadline for all, the longest any of them asks for."""
    with _undisturbed():
        begin = time.monotonic()
        found = engines()
        finish(found, lambda engine: begin + engine.limits.atexit_timeout)
        for engine in found:
            engine.drain_callbacks(begin + engine.limits.atexit_timeout)
        unsaid = _registered.pop("unsaid", 0)
        if unsaid:
            what = error_log.counted(unsaid, "more event")
            error_log.process.complain("unsaid", f"{what} given up by closed clients")


def finish(found: list[Lifetime], deadline: Callable[[Lifetime], float]) -> None:
    """Have all these engines deliver until their monotonic deadlines, side by side, and end.

    All senders are told first, so that none waits for another. Only then they are waited for, and what no
    thread can do is done here. Ctrl-C ends the wait; what is left then is given up, counted and reported
    like what is left at the deadline.
    """
    before = {engine: engine.given_up for engine in found}
    interrupt: BaseException | None = None
    try:
        told = [(engine, by) for engine in found if engine.begin_exit(by := deadline(engine))]
        _drive([(engine, by) for engine, by in told if not engine.running])
        last = max((by for _, by in told), default=0.0)
        for engine, by in told:
            engine.wait_left(by, last - by + SHARE)
    except BaseException as error:
        interrupt = error
        end = time.monotonic()
        for engine in found:
            engine.begin_exit(end)
        for engine in found:
            engine.wait_left(end, SHARE)
    left = [(engine, n) for engine in found if (n := engine.undelivered(before[engine]))]
    total = sum(n for _, n in left)
    if left:
        more = len(left) - 1
        others = f" and {more} more client{'s' * (more > 1)}" if more else ""
        text = f"{left[0][0].url}{others}: {error_log.counted(total, 'event')} not delivered before exit"
        left[0][0].error_log.complain("exit", text, 40)
    if interrupt is not None and not isinstance(interrupt, KeyboardInterrupt):
        raise interrupt


def _drive(waiting: list[tuple[Lifetime, float]]) -> None:
    """Be the sender of engines that have no thread, in turn: none takes the time of another."""
    while waiting and (now := time.monotonic()) < (last := max(by for _, by in waiting)):
        # All of it for one alone; not less than what a connection takes.
        share = max(SHARE / 2, (last - now) / len(waiting))
        waiting = [(engine, by) for engine, by in waiting if not engine.wait_left(min(by, now + share), 0.0)]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep off our own SIGTERM handler until the last events are delivered: it comes right then when
    multiprocessing's Pool has told its workers to end, and terminates them.
    """
    _registered["delivering"] = os.getpid()
    try:
        yield
    finally:
        _registered["delivering"] = 0
        late = _registered.pop("late", 0)
        if late:
            os.kill(os.getpid(), late)


def _before_fork() -> None:
    # No lock is taken here: other hooks run after this one, and may log.
    found = engines()
    _restarting.clear()
    pause = not _would_warn()
    for engine in found:
        engine.park(pause)
    deadline = time.monotonic() + PARK
    with threads.without_switching():
        for engine in found:
            engine.wait_parked(deadline)


def _would_warn() -> bool:
    """Whether our threads alone would make Python warn of a fork beside threads: it does so since 3.12."""
    if sys.version_info < (3, 12):
        return False
    return all(
        thread is threading.main_thread() or thread.name in threads.NAMES for thread in threading.enumerate()
    )


def _in_parent() -> None:
    try:
        _unpark()
    except BaseException:  # Ctrl-C: Python prints it and goes on, and so must the senders
        _unpark()
        raise


def _unpark() -> None:
    _restarting.extend(engine for engine in engines() if engine.unpark())
    start_next()


def start_next() -> None:
    """After a fork: start one more of the senders that have work. Each of them starts the next one, so
    that the caller of fork starts one and does not wait for the rest."""
    while _restarting:
        try:
            engine = _restarting.popleft()
        except IndexError:  # the last one went to another thread
            return
        if engine.restart():
            return


def _in_child() -> None:
    for engine in engines():
        if engine.handoff.forked:
            engine.after_fork()


def in_sender(ident: int) -> bool:
    """Whether this is the sender's own thread."""
    return ident != 0 and threads.get_ident() == ident


def cannot_wait(ident: int) -> bool:
    """Whether the caller would wait for itself: it is the sender, or a callback of the event loop (gevent's,
    eventlet's) that all greenlets depend on. At the end of the process that does not matter any more."""
    return in_sender(ident) or (threads.in_hub() and _registered.get("delivering") != os.getpid())


def must_not_block(ident: int) -> bool:
    """Whether the caller may not wait: it cannot, or is a signal handler."""
    return cannot_wait(ident) or _in_signal_handler()


def _in_signal_handler() -> bool:
    # Python does not say. A handler is a function that signal.getsignal knows, somewhere up the stack.
    if not threads.in_main_thread():
        return False
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if not callable(handler):  # the default, ignored, or installed from C
            continue
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        # default_int_handler and the like are built in and log nothing.
        if code is not None:
            codes.add(code)
    if not codes:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def flush_on_sigterm(timeout: float = 2.0) -> None:
    """Deliver what is queued when SIGTERM comes, then do what would have been done without us.

    Never installed by itself: a process's signal handlers belong to the application. Call it from
    the main thread, after the application has installed its own handler.
    """
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        if _registered.get("delivering") == os.getpid():
            _registered["late"] = number
            return
        deadline = time.monotonic() + timeout
        ends = not callable(previous) and previous != signal.SIG_IGN
        with _undisturbed():
            if ends:
                finish(engines(), lambda engine: deadline)
            else:
                for engine in engines():
                    engine.flush(max(0.0, deadline - time.monotonic()))
        if callable(previous):
            previous(number, frame)
        elif ends:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
