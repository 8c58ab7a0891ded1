"""The fallback: lost events as JSON lines in a file or on stderr. See docs/operations.md.

The sender writes it. Several processes may write to one file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from logclient.errors import ConfigError

if TYPE_CHECKING:
    from logclient.delivery.watching import Settlement

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

ROTATE_AT = 64 << 20
"""Bytes of the file after which it becomes ``FILE.1``, in place of an older one."""

STDERR_S = 0.5
"""Seconds in which stderr must take what is written; then it gets nothing for `STDERR_PAUSE_S`."""

STDERR_PAUSE_S = 10.0


class Fallback:
    """Writes lost events to a file, or to stderr.

    Args:
        target: path of the file, or ``stderr``.
    """

    def __init__(self, target: str) -> None:
        self.target = target if target == "stderr" else os.path.abspath(target)
        folder = os.path.dirname(self.target)
        if folder and not os.path.isdir(folder):
            raise ConfigError(f"fallback: no such folder: {folder}")
        self._not_before = 0.0
        # Now, in the caller's thread: a child forked while the sender imports never gets that module.
        import json

        self._json = json

    def _line(self, lost: Settlement) -> bytes:
        """Make the line of one event, or of consecutive ones of which only the ids are known."""
        told: dict[str, Any] = {"status": lost.status, "reason": lost.reason}
        if lost.events > 1:
            told |= {"first": f"{lost.producer}{lost.first:012x}", "last": f"{lost.producer}{lost.last:012x}"}
        elif lost.first:
            told["id"] = f"{lost.producer}{lost.first:012x}"
        event = self._event(lost.body or b"")
        if event is None and lost.body:
            try:
                told["text"] = lost.body.decode()
            except UnicodeDecodeError:
                told["base64"] = b64encode(lost.body).decode()
        line = self._dumps(told)
        return line if event is None else b'%s,"event":%s}' % (line[:-1], event)

    def _event(self, body: bytes) -> bytes | None:
        """Return a body as JSON in one line; None: it is none."""
        try:
            value = self._json.loads(body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        return self._dumps(value) if b"\n" in body or b"\r" in body else body

    def _dumps(self, value: Any) -> bytes:
        return self._json.dumps(value, separators=(",", ":")).encode()

    def write(self, lost: list[Settlement], omitted: int) -> None:
        """Append lines, and rotate the file if it would have more than `ROTATE_AT` bytes.

        Args:
            lost: what is known.
            omitted: how many events more were lost; nothing is known of them.

        Raises:
            OSError: the rest was not written.
        """
        lines = [self._line(one) for one in lost]
        if omitted:
            lines.append(self._dumps({"omitted": omitted}))
        data = b"\n".join([*lines, b""])
        if self.target == "stderr":
            self._write_stderr(data)
        else:
            while not self._append(data):
                pass

    def _append(self, data: bytes) -> bool:
        """Append to the file; return False if it has been moved away instead."""
        fd = os.open(self.target, _FLAGS, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file", self.target)
            if found.st_uid != os.geteuid():
                raise OSError(errno.EPERM, "belongs to another user", self.target)
            size = found.st_size
            if size and size + len(data) > ROTATE_AT and _lock(fd):
                try:
                    if _is_at(self.target, found):  # no other process has moved it meanwhile
                        os.replace(self.target, f"{self.target}.1")
                    return False
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has it, too
            if size and os.pread(fd, 1, size - 1) != b"\n":  # the disk was full, or a process killed
                data = b"\n" + data
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            return True
        finally:
            os.close(fd)

    def _write_stderr(self, data: bytes) -> None:
        """Write as long as somebody reads: the sender must not wait for a terminal that is stopped."""
        end = time.monotonic() + STDERR_S
        if end < self._not_before:
            raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                self._not_before = end + STDERR_PAUSE_S
                raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
            rest = rest[os.write(2, rest[: select.PIPE_BUF]) :]  # what a pipe takes at once


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _lock(fd: int) -> bool:
    """Lock a file for its rotation, unless that would wait or cannot be done."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(path: str, found: os.stat_result) -> bool:
    """Return whether a path still leads to this file."""
    try:
        return os.path.samestat(os.stat(path), found)
    except FileNotFoundError:
        return False
