"""The fallback: lost events as JSON lines in a file or on stderr. See docs/operations.md.

The sender writes it. Several processes may write to one file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from base64 import b64encode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logclient.delivery.watching import Settlement

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

ROTATE_AT = 64 << 20
"""Bytes of the file after which it becomes ``FILE.1``, in place of an older one."""


class Fallback:
    """Writes lost events to a file, or to stderr.

    Args:
        target: path of the file, or ``stderr``.
    """

    def __init__(self, target: str) -> None:
        self.target = target
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
            value = self._json.loads(body)
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
        data = memoryview(b"\n".join([*lines, b""]))
        if self.target == "stderr":
            _write(2, data)
            return
        while True:
            fd = os.open(self.target, _FLAGS, 0o600)
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "is not a regular file", self.target)
                fcntl.flock(fd, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                if not size or size + len(data) <= ROTATE_AT:
                    _write(fd, data)
                    return
                if _is_at(self.target, found):  # no other process has rotated it meanwhile
                    os.replace(self.target, f"{self.target}.1")
            finally:
                os.close(fd)


def _is_at(path: str, found: os.stat_result) -> bool:
    """Return whether a path still leads to this file."""
    try:
        return os.path.samestat(os.stat(path), found)
    except FileNotFoundError:
        return False


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
