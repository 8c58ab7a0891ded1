"""Fork and exit: the hooks that a process needs, registered once, for all clients.

Order at exit (CPython): non-daemon threads are joined, then atexit callbacks run last-in first-out,
``logging.shutdown`` among them. Ours is registered after ``logging`` was imported, so it runs before;
records that are logged later are delivered in the call. Forked children mostly end by ``os._exit``, which
runs nothing: see ``call_at_end``. SIGTERM's default action runs nothing at all: see ``flush_on_sigterm``.
"""

from __future__ import annotations

import atexit
import os as program_os  # for `_exit` alone: ours, of `standard`, is a copy
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from signal import getsignal, valid_signals
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any, TypeVar

from logclient import threads
from logclient.delivery import error_log
from logclient.errors import described
from logclient.standard import open, os, time

T = TypeVar("T")

_Sender = Any
"""A ``delivery.sender.Sender``, whose module imports this one and says what is called, and in which order."""


class Observer:
    """What is told of all clients, such as a collector of metrics."""

    def add(self, sender: _Sender) -> None:
        """Take note of a client; it is of this process, or was made in the one that this was forked from."""

    def after_fork(self) -> None:
        """Begin anew in the child of a fork; called before its clients do."""

    def process_ends(self) -> None:
        """Read the last counts: all senders have ended."""


# Senders to call at exit and around a fork.
_senders: weakref.WeakSet[_Sender] = weakref.WeakSet()
_state: dict[str, int] = {}
"""``hooks_pid``: the process that has installed the hooks. ``delivering_pid``: the one that delivers its last
events; ``late_sigterm``: the signal that came meanwhile. ``unreported_events``: given up, without a line."""
_restarting: deque[_Sender] = deque()

_observers: list[weakref.ref[Observer]] = []

PARK = 0.05
"""Seconds that a fork waits for all senders to pause or end."""

OVERTIME = 0.5
"""Seconds beyond the deadline at exit, in which senders record the events that they give up, and as many for
the callbacks of these."""


def watch(sender: _Sender) -> None:
    """Call `sender` around forks and at the end of the process."""
    _senders.add(sender)
    for observer in _alive():
        observer.add(sender)
    _install_hooks()


def _install_hooks() -> None:
    if "hooks_pid" not in _state:
        _state["hooks_pid"] = os.getpid()
        import logging  # noqa: F401  (its atexit callback must be older than ours)

        atexit.register(at_exit)
        atexit.register(at_exit)  # twice: Ctrl-C may end the first call before its first line
        os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


def observe(observer: Observer) -> None:
    """Tell `observer` of all clients: those that are there, those to come, and when all have ended.

    It is told as long as somebody else refers to it.
    """
    _observers.append(weakref.ref(observer, _observers.remove))
    _install_hooks()
    for sender in senders():
        observer.add(sender)


def _alive() -> list[Observer]:
    return [observer for reference in tuple(_observers) if (observer := reference()) is not None]


def report_given_up(log: error_log.ErrorLog, events: int, text: str, kind: str = "given up") -> None:
    """Report that a client ended before all of its events were delivered.

    If the line is held back, because another client has reported that in this minute, its events are counted
    in a line at exit.
    """
    if log.warn_limited(kind, text):
        return
    _state["unreported_events"] = _state.get("unreported_events", 0) + events


def shutting_down() -> bool:
    """Return whether the interpreter ends: hooks registered now are not called any more."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False))


def senders() -> list[_Sender]:
    """Return all senders of this process."""
    return members(_senders)


def members(some: weakref.WeakSet[T]) -> list[T]:
    """Return what is in a set to which other threads may add."""
    while True:
        try:
            return list(some)
        except RuntimeError:  # another thread has just added one
            continue


def at_exit(hurried: bool = False) -> None:
    """Deliver the queued events of all senders at the same time; each has its own deadline."""
    begin = time.monotonic()
    _end_process(lambda sender: begin + sender.setup.config.atexit_timeout, hurried)


def _end_process(limit: Callable[[_Sender], float], hurried: bool = False) -> None:
    """Have all senders end by their monotonic deadlines; `hurried`: do not wait for a server that is away."""
    with _undisturbed():
        found = senders()
        left = set()
        if hurried:
            left = {s for s in found if s.waiter.flush(limit(s) - time.monotonic(), if_reachable=True)}
        now = time.monotonic()

        def deadline(sender: _Sender) -> float:
            return now if sender in left else limit(sender)

        finish(found, deadline)
        soon = time.monotonic() + OVERTIME
        for sender in found:
            sender.engine.wait_for_callbacks(max(deadline(sender), soon))
        unsaid = _state.pop("unreported_events", 0)
        if unsaid:
            what = error_log.counted(unsaid, "more event")
            error_log.process.warn_limited("unsaid", f"{what} given up or dropped by other clients")
        _tell(lambda observer: observer.process_ends())


def _tell(call: Callable[[Observer], object]) -> None:
    """Call each observer; one that fails is reported, and the others are called."""
    for observer in _alive():
        try:
            call(observer)
        except Exception as error:
            error_log.process.warn_limited("observer", f"{type(observer).__name__}: {described(error)}")


def finish(found: list[_Sender], deadline: Callable[[_Sender], float]) -> None:
    """Have all these senders deliver until their monotonic deadlines, side by side, and end.

    All senders are asked first, so that none waits for another. Then they are waited for, and this thread
    delivers for senders that have no thread. Ctrl-C ends the wait; the rest is given up, counted and reported
    like events that are left at the deadline.
    """
    before = {sender: sender.engine.given_up for sender in found}
    interrupt: BaseException | None = None
    try:
        asked = [(sender, by) for sender in found if sender.exit(by := deadline(sender))]
        _drive([(sender, by) for sender, by in asked if not sender.running])
        last = max((by for _, by in asked), default=0.0)
        for sender, by in asked:
            _finish_one(sender, by, last - by + OVERTIME)
    except BaseException as error:
        interrupt = error
        end = time.monotonic()
        for sender in found:
            sender.exit(end)
        for sender in found:
            sender.waiter.finish(end, OVERTIME)
    left = [(sender, n) for sender in found if (n := sender.undelivered(before[sender]))]
    total = sum(n for _, n in left)
    if left:
        first, more = left[0][0], len(left) - 1
        others = f" and {more} more client{'s' * (more > 1)}" if more else ""
        who = f"{first.setup.config.redacted}{others}"
        text = f"{who}: {error_log.counted(total, 'event')} not delivered before exit"
        kept = {sender: n for sender, n in left if sender.setup.config.fallback and sender.engine.settled_all}
        named = ", ".join(sorted({str(sender.setup.config.fallback) for sender in kept}))
        some = sum(kept.values())
        which = "" if some == total else f" for {some} of them"
        text += f"; see {named}{which}" if kept else "; fallback=FILE, or stderr, would keep them"
        text += f" ({first.engine.why})" if first.engine.why else ""
        first.setup.log.warn_limited("exit", text, 40)
    if interrupt is not None and not isinstance(interrupt, KeyboardInterrupt):
        raise interrupt


def _drive(waiting: list[tuple[_Sender, float]]) -> None:
    """Deliver for senders that have no thread, in turn, so that none takes the time of another."""
    while waiting and (now := time.monotonic()) < (last := max(by for _, by in waiting)):
        # A single sender gets all of the time, and none gets less than a connection takes.
        share = max(OVERTIME / 2, (last - now) / len(waiting))
        waiting = [(sender, by) for sender, by in waiting if not _finish_one(sender, min(by, now + share))]


def _finish_one(sender: _Sender, by: float, grace: float = 0.0) -> bool:
    """Call ``Waiter.finish``; an error of ours ends the delivery of this client alone."""
    try:
        return bool(sender.waiter.finish(by, grace))
    except Exception as error:
        sender.role.died(error)
        return bool(sender.waiter.finish(by, grace))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Defer our own SIGTERM handler until the last events are delivered.

    multiprocessing's Pool asks its workers to end and terminates them right after that.
    """
    _state["delivering_pid"] = os.getpid()
    try:
        yield
    finally:
        _state["delivering_pid"] = 0
        late = _state.pop("late_sigterm", 0)
        if late:
            os.kill(os.getpid(), late)


def _before_fork() -> None:
    # No lock is taken here: other hooks run after this one, and may log.
    found = senders()
    _restarting.clear()
    pause = not _would_warn()
    for sender in found:
        sender.park(pause)
    deadline = time.monotonic() + PARK
    with threads.without_switching():
        for sender in found:
            sender.wait_parked(deadline)


def _would_warn() -> bool:
    """Return whether only our threads would make Python (3.12 and newer) warn of a fork."""
    if sys.version_info < (3, 12):
        return False
    return all(
        thread is threading.main_thread() or thread.name in threads.NAMES for thread in threading.enumerate()
    )


def _in_parent() -> None:
    try:
        _unpark()
    except BaseException:  # Ctrl-C: Python prints it and goes on, and so do the senders
        _unpark()
        raise


def _unpark() -> None:
    _restarting.extend(sender for sender in senders() if sender.unpark())
    start_next()


def start_next() -> None:
    """Start one more of the senders that have work after a fork.

    Each sender starts the next one, so that the caller of fork starts one and does not wait for the rest.
    """
    while _restarting:
        try:
            sender = _restarting.popleft()
        except IndexError:  # the last one went to another thread
            return
        if sender.restart():
            return


def _in_child() -> None:
    for name in ("unreported_events", "late_sigterm"):  # the parent's
        _state.pop(name, None)
    _tell(lambda observer: observer.after_fork())
    for sender in senders():
        sender.notice_fork()


def in_sender(ident: int) -> bool:
    """Return whether this is the sender's own thread."""
    return ident != 0 and threads.get_ident() == ident


def cannot_wait(ident: int) -> bool:
    """Return whether the caller would wait for itself.

    That is so for the sender, and for callbacks of gevent's event loop that all greenlets
    depend on; these may wait at the end of the process.
    """
    return in_sender(ident) or (threads.in_hub() and _state.get("delivering_pid") != os.getpid())


def must_not_block(ident: int) -> bool:
    """Return whether the caller must not wait: it cannot, or is a signal handler."""
    return cannot_wait(ident) or _in_signal_handler()


def _in_signal_handler() -> bool:
    # Python has no test for it. A handler is a function of signal.getsignal that is somewhere on the stack.
    if not threads.in_main_thread():
        return False
    codes = set()
    for number in valid_signals():
        handler: Any = getsignal(number)
        if not callable(handler):  # the default, ignored, or installed from C
            continue
        while isinstance(handler, partial):
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


# -- hosts that fork, run threads or end processes in their own way --------------------------------------
# Nothing is imported for them: a host that this process runs in has loaded its module.

_asked: dict[str, int] = {}  # the process that has asked each of them to call at its end

_LOADED = os.getpid()
"""The process that has loaded this module."""

FORKED_NO_EXEC = 0x40
"""The kernel's flag of a process that was forked and has run no other program since (Linux)."""


def call_at_end() -> None:
    """Have the events of a child process delivered at its end.

    Forked children mostly end by ``os._exit``: those of ``multiprocess``, billiard, RQ and pytest-forked,
    and those of ``multiprocessing``, which runs its own finalizers first. Celery's pool processes say that
    they end a second earlier, and may be killed within that.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _asked.get("multiprocessing") != os.getpid():
        _asked["multiprocessing"] = os.getpid()
        util.Finalize(None, at_exit, exitpriority=-100)
    signals = sys.modules.get("celery.signals")
    if signals is not None and "celery" not in _asked:  # forks inherit it
        _asked["celery"] = os.getpid()
        signals.worker_process_shutdown.connect(lambda **_: at_exit(), weak=False)
    if _asked.get("os._exit") != os.getpid():
        _asked["os._exit"] = os.getpid()
        if _is_forked():
            _deliver_before_exit()


def _is_forked() -> bool:
    """Return whether this process is a forked child; its parent need not have loaded logclient."""
    if os.getpid() != _LOADED:
        return True
    try:
        with open("/proc/self/stat", "rb") as file:
            flags = file.read().rpartition(b")")[2].split()[6]
        return bool(int(flags) & FORKED_NO_EXEC)
    except (OSError, ValueError, IndexError):  # not Linux
        return False


def _deliver_before_exit() -> None:
    """Replace ``os._exit`` by a function that delivers first, at most once in each process.

    What the program has put in its place is called, but a mock, which the program will look at, stays.
    """
    original = program_os._exit
    if hasattr(original, "delivers") or not isinstance(original, (BuiltinFunctionType, FunctionType)):
        return

    @wraps(original)
    def deliver_then_exit(*given: Any, **named: Any) -> Any:
        pid = os.getpid()
        with suppress(BaseException):  # the caller wants the end of the process
            # A second call, such as that of a watchdog, ends the process at once.
            if _asked.get("os._exit") == pid and _state.get("delivering_pid") != pid:
                _asked["os._exit"] = 0
                at_exit(hurried=True)
        return original(*given, **named)

    deliver_then_exit.__module__ = "os"  # it is pickled as ``os._exit``
    deliver_then_exit.__dict__["delivers"] = True
    setattr(program_os, "_exit", deliver_then_exit)  # noqa: B010


def forks_unseen() -> bool:
    """Return whether this is a uwsgi process that will fork without running Python's hooks.

    uwsgi forks in C and, without ``py-call-uwsgi-fork-hooks``, does not run Python's hooks. A child of a
    process in which another thread holds the GIL at that moment waits for it for ever. So uwsgi's master gets
    no sender, and delivers events that it logs before a fork in the call.
    """
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or "py-call-uwsgi-fork-hooks" in getattr(uwsgi, "opt", ()):
        return False
    try:
        return not (uwsgi.worker_id() or uwsgi.mule_id() or uwsgi.i_am_the_spooler())
    except AttributeError:  # another module of that name
        return False


def threads_starve() -> bool:
    """Return whether uwsgi holds the GIL between requests."""
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and getattr(uwsgi, "has_threads", 1) == 0


def flush_on_sigterm(timeout: float = 2.0) -> None:
    """Deliver queued events when SIGTERM comes, then run the previous handler, or end the process.

    Call it from the main thread, after the application has installed its own handler. logclient never
    installs a signal handler on its own.

    Args:
        timeout: seconds for delivery.

    Raises:
        ValueError: this is not the main thread.
    """
    previous = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        if _state.get("delivering_pid") == os.getpid():
            _state["late_sigterm"] = number
            return
        deadline = time.monotonic() + timeout
        ends = not callable(previous) and previous != signal.SIG_IGN
        if ends:
            _end_process(lambda sender: deadline)
        else:
            with _undisturbed():
                for sender in senders():
                    sender.waiter.flush(max(0.0, deadline - time.monotonic()))
        if callable(previous):
            previous(number, frame)
        elif ends:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            if os.getpid() == 1:  # as in a container: the kernel does not apply the default action
                os._exit(128 + number)

    signal.signal(signal.SIGTERM, handle)
