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
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logclient.delivery.engine import Engine

# The only module state of the package: who to call at exit and around a fork.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_registered: dict[str, int] = {}


def watch(engine: Engine) -> None:
    """Tell `engine` of forks and of the end of the process."""
    _engines.add(engine)
    if "hooks" not in _registered:
        _registered["hooks"] = os.getpid()
        import logging  # noqa: F401  (its atexit callback must be older than ours)

        atexit.register(at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


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


def engines() -> list[Engine]:
    while True:
        try:
            return list(_engines)
        except RuntimeError:  # one was born meanwhile, in another thread
            continue


def at_exit() -> None:
    """Deliver what is there: one deadline for all, the longest any of them asks for."""
    with _undisturbed():
        begin = time.monotonic()
        for engine in engines():
            engine.finish(begin + engine.limits.atexit_timeout)


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
    for engine in engines():
        engine.park()


def _in_parent() -> None:
    for engine in engines():
        engine.unpark()


def _in_child() -> None:
    for engine in engines():
        if engine.handoff.forked:
            engine.after_fork()


def in_sender(ident: int) -> bool:
    """Whether this is the sender's own thread."""
    return ident != 0 and threading.get_ident() == ident


def must_not_block(ident: int) -> bool:
    """Whether the caller may not wait: it is the sender itself, or a signal handler."""
    return in_sender(ident) or _in_signal_handler()


def _in_signal_handler() -> bool:
    # Python does not say. A handler is a function that signal.getsignal knows, somewhere up the stack.
    if threading.current_thread() is not threading.main_thread():
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
            for engine in engines():
                if ends:
                    engine.finish(deadline)
                else:
                    engine.flush(max(0.0, deadline - time.monotonic()))
        if callable(previous):
            previous(number, frame)
        elif ends:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
