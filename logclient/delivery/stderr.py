"""Standard error, as long as somebody reads it: the sender must not wait for a reader that has stopped."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from logclient import threads
from logclient.standard import os, select, time

TIMEOUT = 0.5
"""Seconds in which it must take what is written; then it gets nothing for `PAUSE`."""

PAUSE = 10.0

_not_before = 0.0  # when it gets something again: a monotonic second


def write(data: bytes) -> None:
    """Write all of it to descriptor 2.

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
