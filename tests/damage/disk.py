"""A disk that is full at a write, or at whose write the process is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from logclient import descriptors


class Killed(BaseException):
    """The end of the process within a write; `whole`: all its bytes were written."""

    def __init__(self, whole: bool) -> None:
        super().__init__(whole)
        self.whole = whole


class Fault(NamedTuple):
    nth: int  # the number of the write, from 1
    share: float  # the share of its bytes that are written
    kill: bool  # whether the process is killed; otherwise the disk is full
    repairs: bool = True  # whether a full disk allows a truncation or one more short line
    lasts: int = 1  # the number of further writes that fail


class Disk:
    """A substitute for the module `os` in a writer of the product."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.writes = 0
        self.struck = False
        self._failing = 0
        self._open: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *args: Any) -> int:
        fd = os.open(*args)
        self._open.append(fd)
        return fd

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
        os.close(fd)

    def write(self, fd: int, data: Any) -> int:
        return self._write(fd, bytes(data))

    def writev(self, fd: int, parts: Sequence[Any]) -> int:
        return self._write(fd, b"".join(map(bytes, parts)))

    def ftruncate(self, fd: int, size: int) -> None:
        if self.struck and self.fault is not None and not self.fault.repairs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(fd, size)

    def _write(self, fd: int, data: bytes) -> int:
        self.writes += 1
        fault = self.fault
        if fault is None:
            return os.write(fd, data)
        if not self.struck and self.writes == fault.nth:
            self.struck = True
            # A full disk accepts only a part.
            size = min(int(fault.share * len(data)), len(data) - (not fault.kill))
            if size:
                os.write(fd, data[:size])
            if fault.kill:
                raise Killed(size == len(data))
            self._failing = fault.lasts
            if 0 < size < len(data):
                return size
        if self._failing:
            self._failing -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.struck and not fault.repairs and data.startswith(b"\n"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)

    def end(self) -> None:
        """End the process: release its descriptors and locks."""
        while self._open:
            os.close(self._open.pop())


@contextmanager
def instead_of_os(module: Any, disk: Disk) -> Iterator[None]:
    users: tuple[Any, ...] = (module, descriptors)
    before = [user.os for user in users]
    for user in users:
        user.os = disk
    try:
        yield
    finally:
        for user, its in zip(users, before, strict=True):
            user.os = its
