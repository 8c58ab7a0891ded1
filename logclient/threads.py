"""Threads, locks and waits that also work where gevent has patched the standard library.

It replaces threads by coroutines (greenlets) of one thread, and locks, sockets and ``time.sleep`` by forms
that switch to another greenlet instead of waiting. A sender that waits in C would stop all of them.
So our own threads are always native, like the locks and sockets that they use. A caller that waits for them
in a greenlet polls, and lets the other greenlets run in between.

Names are resolved when they are used: a process may be patched after this module was imported, and after
a client was created (gunicorn patches in the worker what the master has loaded).
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from signal import SIG_BLOCK, SIG_SETMASK, Signals, pthread_sigmask, sigpending, sigwait, valid_signals
from types import FunctionType, ModuleType
from typing import Any

from logclient.errors import ConfigError
from logclient.standard import os, select, time

SENDER, CALLBACKS, SPOOL, CONNECT = NAMES = (
    "logclient-sender",
    "logclient-callbacks",
    "logclient-spool",
    "logclient-connect",
)
"""The names of our threads, as debuggers show them."""

SHORTEST = 0.0005  # seconds between the first two polls of a greenlet that waits
LONGEST = 0.02  # seconds between two polls, at most; more when many greenlets wait
CROWD = 40  # greenlets that may poll that often; more of them share this rate, so that others get their turn
FAULTS = {Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE, Signals.SIGILL, Signals.SIGSEGV, Signals.SIGTRAP}
"""Signals that a thread raises itself. If they were blocked, the process would end without its handlers."""

GONE = 0.25  # seconds until a thread that has ended for Python ends for the system; it takes microseconds


_THREAD = dict(vars(_thread))
# Programs, debuggers and coverage set them and take them away.
_HOOKS = {"excepthook", "_trace_hook", "_profile_hook"}
_THREADING = {
    name: found
    for name, found in vars(threading).items()
    if (callable(found) and name not in _HOOKS) or name in ("_active", "_limbo")
}
_METHODS = [name for name, found in vars(threading.Thread).items() if isinstance(found, FunctionType)]


def _of(module: str, name: str) -> Any:
    """Return an attribute of a module that is imported already; None: there is none."""
    return getattr(sys.modules.get(module), name, None)


def patched() -> bool:
    """Return whether gevent has replaced threads by greenlets."""
    is_patched = _of("gevent.monkey", "is_module_patched")
    return is_patched is not None and bool(is_patched("threading"))


def original(module: ModuleType, name: str) -> Any:
    """Return an attribute of a module of the standard library as it was before gevent patched it.

    One of ``_thread`` is as it was when this module was imported, whatever tests of the program put there.
    """
    get_original = _of("gevent.monkey", "get_original")
    if get_original is not None and sys.modules["gevent.monkey"].is_module_patched(module.__name__):
        return get_original(module.__name__, name)
    return _THREAD[name] if module is _thread else getattr(module, name)


def wait_ready(reading: list[int], writing: list[int], seconds: float) -> bool:
    """Sleep for so many seconds at most; return whether one of these descriptors is ready."""
    poll = select.poll()
    wanted = dict.fromkeys(reading, select.POLLIN)
    for fd in writing:
        wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
    for fd, events in wanted.items():
        poll.register(fd, events)
    return bool(poll.poll(seconds * 1000.0))


def check() -> None:
    """Check that native threads can be started, which a ConfigError denies."""
    # Not `start_new_thread`: debuggers wrap it, and it still starts threads.
    found = _thread.get_ident
    if isinstance(found, FunctionType) and not patched():
        raise ConfigError(
            f"threads: replaced by {found.__module__}, which hides the original ones; "
            "events are sent by a native thread (gevent is supported)"
        )


def get_ident() -> int:
    ident: int = original(_thread, "get_ident")()
    return ident


def caller_ident() -> int:
    """Return the identifier of this thread; or of this greenlet, where greenlets replace threads."""
    return threading.get_ident() if patched() else get_ident()


def in_main_thread() -> bool:
    """Return whether this is the native thread in which signal handlers run."""
    if not patched():
        return bool(_THREADING["main_thread"]().ident == get_ident())
    # gevent names its greenlets where Python names its threads.
    try:
        return bool(original(_thread, "_get_main_thread_ident")() == get_ident())
    except AttributeError:  # before Python 3.13
        return _hub() is not None


# -- greenlets --------------------------------------------------------------------------------------


def _hub() -> Any:
    """Return the greenlet of this native thread's event loop, if it has one."""
    get_hub = _of("gevent._hub_local", "get_hub_if_exists")
    return None if get_hub is None else get_hub()


def _current() -> Any:
    return sys.modules["greenlet"].getcurrent()


def in_hub() -> bool:
    """Return whether this is a callback of the event loop itself, which must not wait."""
    hub = _hub()
    return hub is not None and _current() is hub


_without_switch: set[int] = set()


@contextmanager
def without_switching() -> Iterator[None]:
    """Have this native thread wait without a switch: in a fork no other greenlet may run."""
    ident = get_ident()
    _without_switch.add(ident)
    try:
        yield
    finally:
        _without_switch.discard(ident)


def is_green() -> bool:
    """Return whether the caller has to wait by switching, as a greenlet of an event loop."""
    hub = _hub()
    if hub is None or _current() is hub:
        return False
    return not (_without_switch and get_ident() in _without_switch)


def is_alien() -> bool:
    """Return whether this is a native thread without greenlets, which must not wait for their locks."""
    return patched() and _hub() is None


_waiting: dict[int, None] = {}  # one key for each greenlet that waits: to be counted


def wait_until(done: Callable[[], Any], timeout: float | None = None) -> bool:
    """Poll until ``done()`` is true, `timeout` seconds at most; return whether it came true in time.

    In a greenlet the others run meanwhile. Polls become rarer: a change after t seconds is seen within t/4,
    and within 20 ms at most (0.5 s with 1,000 greenlets that wait).
    """
    if done():
        return True
    green = is_green()
    pause = sys.modules["gevent"].sleep if green else time.sleep
    key = id(_current()) if green else 0
    begin = time.monotonic()
    if green:
        _waiting[key] = None
    try:
        while True:
            waited = time.monotonic() - begin
            longest = LONGEST * max(1.0, len(_waiting) / CROWD)
            step = min(max(SHORTEST, waited / 4), longest)
            if timeout is not None:
                if waited >= timeout:
                    return False
                step = min(step, timeout - waited)
            pause(step)
            if done():
                return True
    finally:
        if green:
            _waiting.pop(key, None)


def unless_green(done: Callable[[], bool], wait: Callable[[float], bool]) -> Callable[[float], bool]:
    """Return a wait that lets other greenlets run: ``wait`` is compiled, and would block them all."""
    return lambda seconds: wait_until(done, seconds) if is_green() else wait(seconds)


# -- signals ----------------------------------------------------------------------------------------


@contextmanager
def signals_blocked(numbers: Iterable[int] = valid_signals() - FAULTS) -> Iterator[None]:
    """Block signals in the calling thread; a thread that is started meanwhile blocks them for ever.

    Signals belong to the program. Ours must not be the thread that takes one which the program blocks.
    """
    # First only read: a Python handler may raise once the mask has changed, also out of that very call.
    before = pthread_sigmask(SIG_BLOCK, ())
    try:
        pthread_sigmask(SIG_BLOCK, numbers)
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


@contextmanager
def without_sigpipe() -> Iterator[None]:
    """Write to what nobody reads any more without SIGPIPE, whose default action ends the process."""
    due = Signals.SIGPIPE in sigpending()
    with signals_blocked({Signals.SIGPIPE}):
        try:
            yield
        finally:
            if not due and Signals.SIGPIPE in sigpending():
                sigwait({Signals.SIGPIPE})


# -- native locks and threads -----------------------------------------------------------------------


def Lock() -> threading.Lock:
    """Make a native lock: to be held for moments only, and never across a switch to another greenlet."""
    lock: threading.Lock = original(_thread, "allocate_lock")()
    return lock


def RLock() -> threading.RLock:
    """Make a native lock that its owner may take again. All greenlets of a thread are one owner."""
    lock: threading.RLock = original(_thread, "RLock")()
    return lock


def lock_here(locks: dict[int, Any], make: Callable[[], Any] = RLock) -> Any:
    """Return this process's lock out of `locks`; a forked child may find its parent's held for ever."""
    return locks.setdefault(os.getpid(), make())


def acquire(lock: threading.Lock | threading.RLock, timeout: float | None = None) -> bool:
    """Take a native lock that another thread may hold for long; return whether it was taken in time."""
    if lock.acquire(False):
        return True
    if timeout is not None and timeout <= 0:
        return False
    if is_green():
        return wait_until(lambda: lock.acquire(False), timeout)
    return lock.acquire(True, -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class Event:
    """A ``threading.Event`` between native threads and greenlets."""

    __slots__ = ("_flag", "_waiters")

    def __init__(self) -> None:
        self._flag = False
        self._waiters: list[threading.Lock] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._flag = True
        while self._waiters:
            try:
                waiter = self._waiters.pop()
            except IndexError:  # another thread sets it, too
                break
            waiter.release()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, `timeout` seconds at most; return whether it is."""
        if self._flag or (timeout is not None and timeout <= 0):
            return self._flag
        if is_green():
            return wait_until(self.is_set, timeout)
        waiter = Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            # `set` sets the flag before it looks for waiters: one of us sees the other.
            return self._flag or acquire(waiter, timeout) or self._flag
        finally:
            try:
                self._waiters.remove(waiter)
            except ValueError:
                pass


class NativeThread:
    """The part of ``threading.Thread`` that we use, where that would be a greenlet."""

    def __init__(self, target: Callable[[], object]) -> None:
        self.ident: int | None = None
        self.native_id: int | None = None
        self._target = target
        self._begun = False
        self._ended = Event()

    def start(self) -> None:
        """Start the thread; a RuntimeError: no thread can be started (any more)."""
        with signals_blocked():
            original(_thread, "start_new_thread")(self._run, ())
            self._begun = True  # before a handler of a signal runs, which may raise

    def _run(self) -> None:
        self.ident = get_ident()
        self.native_id = _THREAD["get_native_id"]()
        try:
            self._target()
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        """Return whether it has started and not ended."""
        return self._begun and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, `timeout` seconds at most."""
        self._ended.wait(timeout)


class Thread(threading.Thread):
    """A thread of ours, which takes no signal."""

    def start(self) -> None:
        """Start it; RuntimeError: there can be no thread (any more)."""
        with signals_blocked():
            super().start()
        if self.ident is None:
            raise RuntimeError("can't start new thread: threading.Thread is replaced")


AnyThread = threading.Thread | NativeThread


def _is_mocked() -> bool:
    """Return whether tests of the program have replaced what ``threading.Thread`` is made of."""
    now = vars(threading)
    if any(now.get(name) is not found for name, found in _THREADING.items()):
        return True
    # A function in the place of a method is meant for all threads; a mock counts calls.
    methods = vars(threading.Thread)
    return not all(isinstance(methods[name], FunctionType) for name in _METHODS)


def make_thread(target: Callable[[], object], name: str) -> AnyThread:
    """Make a native daemon thread, to be started. Join it with ``join``."""
    if patched() or _is_mocked():
        return NativeThread(target)

    def run() -> None:
        try:
            target()
        finally:
            if patched():  # since the start: threading looks for it by its present identifier
                getattr(threading, "_active", {})[threading.get_ident()] = thread

    thread = Thread(target=run, name=name, daemon=True)
    return thread


def join(thread: AnyThread, timeout: float | None = None) -> bool:
    """Wait for the end of a thread, `timeout` seconds at most; return whether it has ended."""
    if is_green():
        wait_until(lambda: not thread.is_alive(), timeout)
    else:
        thread.join(timeout)
    if thread.is_alive():
        return False
    # Libraries clean up when a thread ends for the system. OpenSSL holds a lock of the whole process
    # meanwhile: a child that is forked then finds it locked for ever, and its first use of TLS never returns.
    place = f"/proc/self/task/{thread.native_id}"  # Linux only
    deadline = time.monotonic() + GONE
    try:
        while time.monotonic() < deadline:
            os.stat(place)  # takes no descriptor
            os.sched_yield()
    except OSError:
        pass
    return True
