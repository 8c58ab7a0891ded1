"""The ledger: a producer's record of its events and their outcomes (docs/formats.md).

Only the sender writes it. The pump writes the ``batch`` lines, formatted in C and without the GIL, before the
first byte of their events is sent; the rest is written here, to the same descriptor. A ledger that cannot be
written is reported and never stops delivery.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any

from logclient.errors import is_shortage

ROTATE_AT = 256 << 20
"""Bytes of a part after which a new one is begun."""


def make_ledger(
    place: tuple[str, dict[str, Any]] | None, producer: bytes, parts: int | None = None, size: int = 0
) -> Ledger | None:
    """Make the ledger of a producer, or continue one of so many parts and bytes of another process.

    Its place is the directory, and the fields of the ``open`` lines; None: there is no ledger.
    """
    if place is None:
        return None
    directory, about = place
    if parts is not None:
        about = {**about, "continues": True}
    return Ledger(directory, producer.hex(), {**about, "pid": os.getpid()}, parts or 0, size)


class Ledger:
    """One producer's ledger: one part at a time, created when the first line is written.

    `about` has the fields of the ``open`` lines. `fd` is the descriptor of the part, -1 if there is none;
    `stopped` the reason for which no more is written, empty while it goes on.
    """

    def __init__(
        self, directory: str, producer: str, about: dict[str, Any], parts: int = 0, size: int = 0
    ) -> None:
        self.directory = directory
        self.producer = producer
        self.fd = -1
        self.stopped = ""
        # Now, in the caller's thread: a child forked while the sender imports never gets that module.
        from json import dumps

        self._dumps = dumps
        self._about = about
        self._part = parts
        self._size = 0
        self._earlier = size

    @staticmethod
    def now_us() -> int:
        """Return the microseconds since 1970."""
        return time.time_ns() // 1000

    def open(self) -> int:
        """Return the descriptor to write to, opening the first part if there is none; -1 once stopped.

        Raises:
            OSError: there is no descriptor left; a later attempt may succeed.
        """
        if self.fd < 0 and not self.stopped:
            self._next()
        return self.fd

    def _next(self) -> None:
        path = os.path.join(self.directory, f"{self.producer}-{self._part + 1:04d}.ledger")
        try:
            _remove_empty(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            if is_shortage(error):
                raise
            self.close()
            self.stopped = f"{path}: {error.strerror}"
            return
        self.close()
        self.fd = fd
        self._part += 1
        self._earlier += self._size
        self._size = 0
        self.write("open", version=1, producer=self.producer, part=self._part, **self._about)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line; a failure stops the ledger."""
        if self.fd < 0:
            return
        line = self._dumps({"t": kind, "at_us": self.now_us(), **fields}, separators=(",", ":")).encode()
        view = memoryview(line + b"\n")
        try:
            while view:
                written = os.write(self.fd, view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self.stop(error.errno or 0)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return self._earlier + self._size

    def wrote(self, size: int, error: int) -> None:
        """Count the bytes written by the pump; stop by its errno, or begin a new part where that is due."""
        self._size += size
        if error:
            self.stop(error)
        elif self._size >= ROTATE_AT:
            try:
                self._next()
            except OSError:
                pass  # no descriptor left: this part grows on

    def stop(self, error: int) -> None:
        """Stop writing; note that in the ledger if it still takes a line."""
        self.stopped = os.strerror(error)
        if self.fd >= 0:
            try:
                # A newline first: the line that failed may be torn.
                os.write(self.fd, b'\n{"t":"stopped","reason":"write failed"}\n')
            except OSError:
                pass
        self.close()

    def close(self) -> None:
        """Close the part."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def abandon(self) -> None:
        """Close the parent's file in a forked child."""
        self.close()


def _remove_empty(path: str) -> None:
    """Remove a part without a line: a process was killed between making and writing it."""
    try:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            os.unlink(path)
    except OSError:
        pass
