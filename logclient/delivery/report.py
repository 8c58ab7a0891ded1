"""Our own errors: a line a minute per kind, on the ``logclient`` logger's handlers or stderr.

One reporter serves all clients of a process: a dead server is one line, however many of them it has.

Never through a logclient handler: what a shipper logs about itself must not be shipped by it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque

from logclient import threads

EVERY = 60.0
"""Seconds between two lines of one kind."""

KINDS = 256
"""Kinds remembered beyond that minute, at most: some name an event or an endpoint."""

NAME = "logclient"

_behind: deque[tuple[str, int]] = deque(maxlen=KINDS)


def counted(number: int, noun: str) -> str:
    """As in ``1 event was`` and ``3 events were``."""
    return f"{number} {noun} was" if number == 1 else f"{number} {noun}s were"


class Reporter:
    """Limits lines per kind, and says how many it held back."""

    def __init__(self, every: float = EVERY) -> None:
        self.every = every
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._lock = threads.Lock()

    def complain(self, kind: str, text: str, level: int = logging.WARNING) -> bool:
        """Write the line unless one of its kind is less than ``every`` seconds old; whether it was."""
        now = time.monotonic()
        # Not waited for: a log call in a signal handler may find it held by its own thread.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            last = self._last.get(kind)
            if last is not None and now - last < self.every:
                self._held[kind] = self._held.get(kind, 0) + 1
                return False
            if len(self._last) >= KINDS:
                self._last = {k: t for k, t in self._last.items() if now - t < self.every or k in self._held}
            self._last[kind] = now
            held = self._held.pop(kind, 0)
        finally:
            self._lock.release()
        if held:
            text = f"{text} ({held} more of this kind held back)"
        _write(text, level)
        return True

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self._lock = threads.Lock()


process = Reporter()
"""The one of this process."""


def behind() -> bool:
    """Whether lines wait for ``catch_up``: those of our own threads, where gevent or eventlet have patched
    the locks of handlers. A native thread that waits for such a lock may wait for ever."""
    return bool(_behind)


def catch_up() -> None:
    """Write them, if this is a thread of the application's."""
    while _behind and not threads.is_alien():
        try:
            text, level = _behind.popleft()
        except IndexError:  # another thread does
            return
        _write(text, level)


def _write(text: str, level: int) -> None:
    # Some of the words are a peer's: one line, and nothing in it that a terminal obeys.
    line = text
    if not text.isprintable():
        line = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
    # Not getLogger: its lock may be held by who waits for us (dictConfig closes old handlers under it).
    logger = logging.root.manager.loggerDict.get(NAME)
    handlers = [h for h in getattr(logger, "handlers", ()) if not getattr(h, "ships_logs", False)]
    try:
        if handlers and threads.is_alien():
            _behind.append((line, level))
        elif handlers:
            record = logging.LogRecord(NAME, level, __file__, 0, line, None, None)
            for handler in handlers:
                if level >= handler.level:
                    handler.handle(record)
        elif sys.stderr is not None:
            sys.stderr.write(f"logclient: {line}\n")
    except Exception:  # a closed stderr, a user's handler: nowhere left to say it
        pass
