"""Our own errors: a line a minute for each kind, on the ``logclient`` logger's handlers or stderr.

One log serves all clients of a process: a dead server is one line, however many clients it has, and two
dead servers are two.

Lines never go through a logclient handler: a shipper must not ship its own log.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
from collections import OrderedDict, deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.standard import os, select, time

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from logclient._ext.queue import EventQueue

EVERY = 60.0
"""Seconds between two lines of one kind."""

KINDS = 256
"""Kinds remembered at most: some name an event or an endpoint."""

PEERS = 32
"""Servers whose errors have kinds of their own, in a process; those of further servers share theirs."""

NAME = "logclient"

TIMEOUT = 0.5
"""Seconds in which standard error must take what is written; then it gets nothing for `PAUSE`."""

PAUSE = 10.0

_not_before = 0.0  # when it gets something again: a monotonic second

_deferred: deque[tuple[str, int]] = deque(maxlen=KINDS)
"""Lines of our own threads, where gevent has patched the locks of handlers: a native thread that waits for
such a lock may wait for ever."""


def counted(number: int, noun: str) -> str:
    """Write a number and a noun, as in ``1 event was`` and ``3 events were``."""
    return f"{number} {noun} was" if number == 1 else f"{number} {noun}s were"


class ErrorLog:
    """Limits lines to one of each kind in `every` seconds, and reports the number of those held back.

    Beyond `KINDS` kinds it forgets the one that was least recently used. What forgotten kinds have held back
    is reported as one number.
    """

    def __init__(self, every: float = EVERY) -> None:
        self.every = every
        self._kinds: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When the last line of a kind was written, and how many were held back since."""
        self._peers: set[str] = set()
        self._forgotten = 0
        self._summary_at = 0.0
        self._locks: dict[int, threading.Lock] = {}  # by process

    def warn_limited(self, kind: str, text: str, level: int = logging.WARNING) -> bool:
        """Write a line unless one of its kind is less than ``every`` seconds old; return whether it was."""
        now = time.monotonic()
        lock = threads.lock_here(self._locks, threads.Lock)
        # Do not wait: a log call in a signal handler may find the lock held by its own thread.
        if not lock.acquire(blocking=False):
            self._forgotten += 1
            return False
        try:
            last, held = self._kinds.get(kind, (-math.inf, 0))
            recent = now - last < self.every
            self._kinds[kind] = (last, held + 1) if recent else (now, 0)
            self._kinds.move_to_end(kind)
            if recent:
                return False
            forgotten = self._forget(now)
        finally:
            lock.release()
        if held:
            text = f"{text} ({held} more of this kind held back)"
        _write(text, level)
        if forgotten:
            _write(f"{counted(forgotten, 'line')} held back, of other kinds", logging.WARNING)
        return True

    def kind_at(self, kind: str, peer: str) -> str:
        """Return the kind of an error at one server: the line of one holds back none of another."""
        if len(self._peers) < PEERS:
            self._peers.add(peer)
        return f"{kind} {peer}" if peer in self._peers else kind

    def _forget(self, now: float) -> int:
        """Forget a kind if there are too many; return how many lines to report that were held back so."""
        if len(self._kinds) > KINDS:
            self._forgotten += self._kinds.popitem(last=False)[1][1]
        if now < self._summary_at:
            return 0
        forgotten, self._forgotten = self._forgotten, 0
        if forgotten:
            self._summary_at = now + self.every
        return forgotten


process = ErrorLog()
"""The log of this process."""


def write_deferred() -> None:
    """Write the lines that wait, if this is a thread of the application."""
    while _deferred and not threads.is_alien():
        try:
            text, level = _deferred.popleft()
        except IndexError:  # another thread does
            return
        _write(text, level)


def _write(text: str, level: int) -> None:
    # Parts of the text come from a peer: make one line of it, without control characters.
    line = text
    if not text.isprintable():
        line = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
    # Not getLogger: a thread that waits for us may hold its lock (dictConfig closes old handlers under it).
    try:
        logger = logging.root.manager.loggerDict.get(NAME)
        handlers = [h for h in getattr(logger, "handlers", ()) if not getattr(h, "ships_logs", False)]
        if handlers and threads.is_alien():
            _deferred.append((line, level))
        elif handlers:
            record = logging.LogRecord(NAME, level, __file__, 0, line, None, None)
            for handler in handlers:
                if level >= handler.level:
                    handler.handle(record)
        elif sys.stderr is not None:
            line = f"logclient: {line}\n"
            if _is_descriptor_2(sys.stderr):
                write_stderr(line.encode(errors="backslashreplace"))
            else:
                with threads.without_sigpipe():
                    sys.stderr.write(line)
    except Exception:  # a stderr that is closed or not read, a user's handler: the line has no place
        pass


def _is_descriptor_2(stream: Any) -> bool:
    try:
        return bool(stream.fileno() == 2)
    except (AttributeError, OSError, ValueError):
        return False


def write_stderr(data: bytes) -> None:
    """Write all of it to descriptor 2, as long as somebody reads it: the sender must not wait for that.

    Raises:
        TimeoutError: nobody reads it; the rest was not written.
        OSError: it cannot be written.
    """
    global _not_before
    if sys.__stderr__ is None:  # it was closed when the process began: the number may be another file's
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    end = time.monotonic() + TIMEOUT
    if end < _not_before:
        raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
    rest = memoryview(data)
    with _opened() as fd, threads.without_sigpipe():
        while rest:
            if not threads.wait_ready([], [fd], max(0.0, end - time.monotonic())):
                _not_before = end + PAUSE
                raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
            with suppress(BlockingIOError):
                rest = rest[os.write(fd, rest[: select.PIPE_BUF]) :]  # what a pipe takes at once


@contextmanager
def _opened() -> Iterator[int]:
    """Open a terminal anew, without blocking: it may take less than a pipe does at once."""
    fd = 2
    if os.isatty(2):
        with suppress(OSError):  # it belongs to another user, or is outside of this container
            fd = os.open(os.ttyname(2), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        if fd != 2:
            os.close(fd)


class Diagnostics:
    """The errors of one client: the last one, and lines for the error log. `on_error` is told of every error.

    Callers of the queue write the lines that the sender may not write.
    """

    def __init__(self, url: str, log: ErrorLog, queue: EventQueue) -> None:
        self.url = url
        self.log = log
        self.last_error = ""
        self.on_error: Callable[[str], object] = lambda text: None
        self._queue = queue

    def note(self, text: str) -> str:
        """Remember an error as the last one, behind the URL; return the whole text."""
        self.last_error = f"{self.url}: {text}"
        return self.last_error

    def report(self, kind: str, text: str, peer: str = "") -> bool:
        """Remember an error, of a server if one is named, and write a line of it; return whether."""
        text = self.note(text)
        self.on_error(text)
        written = self.log.warn_limited(self.log.kind_at(kind, peer) if peer else kind, text)
        self._have_deferred_written()
        return written

    def recovered(self, text: str) -> None:
        """Write that an error which has a line is over; there are no more of these than of those."""
        _write(f"{self.url}: {text}", logging.INFO)
        self._have_deferred_written()

    def _have_deferred_written(self) -> None:
        if _deferred:
            self._queue.needs_sender = True
