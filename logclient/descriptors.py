"""Descriptors that are known again.

The program that we are guests of may close every number, as one does that becomes a daemon, and use it for a
file of its own. Only the file behind a number tells whose it is. ``_ext/descriptors.h`` does the same in C.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from logclient.standard import os

Identity = tuple[int, int]
"""Device and inode."""


def identity(fd: int) -> Identity | None:
    """Return what identifies the file behind a descriptor; None: there is none."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lifted(fd: int) -> int:
    """Return a new descriptor under a number above those of standard input, output and errors."""
    if not 0 <= fd < 3:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


@contextmanager
def standard_taken() -> Iterator[None]:
    """Take the free numbers of the standard streams, so that a library opens others meanwhile."""
    import socket

    taken = []
    for number in range(3):
        if identity(number) is None:
            # What writes there gets an error, as before. No file of the program is like it.
            taker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            taker.setblocking(False)
            fd = taker.detach()
            taken.append((fd, identity(fd)))
    try:
        yield
    finally:
        for fd, ours in taken:
            if identity(fd) == ours:
                os.close(fd)


class File:
    """A descriptor that was just opened; -1: there is none."""

    def __init__(self, fd: int = -1) -> None:
        self.fd = lifted(fd)
        self._identity = identity(self.fd)

    @property
    def is_ours(self) -> bool:
        """Whether it is open, and still that of our file."""
        return self.fd >= 0 and identity(self.fd) == self._identity

    def use(self) -> int:
        """Return the descriptor; OSError: it is not ours any more."""
        if not self.is_ours:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self.fd

    def close(self) -> None:
        """Close it if it is ours still, and forget it."""
        fd, self.fd = self.fd if self.is_ours else -1, -1
        if fd >= 0:
            os.close(fd)
