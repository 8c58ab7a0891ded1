"""The fallback: lost events as JSON lines in a file or on stderr. See docs/operations.md.

The sender writes it. Several processes may write to one file.
"""

from __future__ import annotations

import errno
import fcntl
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logclient.delivery import error_log
from logclient.errors import ConfigError
from logclient.files import open_regular
from logclient.standard import os

if TYPE_CHECKING:
    from logclient.delivery.watching import Settlement

ROTATE_AT = 64 << 20
"""Bytes of the file after which it becomes ``FILE.1``, in place of an older one."""

_WRITTEN_AT_ONCE = 512  # events: the lines of all would take several times as much memory as their bodies

_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")


def check_folder(target: str) -> None:
    """Refuse a file in a folder that there is not."""
    folder = os.path.dirname(target)
    if folder and not os.path.isdir(folder):
        raise ConfigError(f"fallback: no such folder: {folder}")


class Fallback:
    """Writes lost events to a file, with an absolute path, or to ``stderr``."""

    def __init__(self, target: str) -> None:
        self.target = target
        # Now, in the caller's thread: a child forked while the sender imports never gets that module.
        from logclient.standard import json

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
        line = self._json.dumps(told, separators=(",", ":")).encode()
        return line if event is None else b'%s,"event":%s}' % (line[:-1], event)

    def _event(self, body: bytes) -> bytes | None:
        """Return a body as JSON in one line; None: it is none."""
        try:
            self._json.loads(body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        return body.translate(_TO_SPACES)  # strings have no line breaks

    def write(self, lost: list[Settlement], omitted: int) -> None:
        """Append lines, and rotate the file if it would have more than `ROTATE_AT` bytes.

        So many events more were `omitted`: nothing is known of them.

        Raises:
            OSError: the rest was not written.
        """
        for i in range(0, len(lost), _WRITTEN_AT_ONCE):
            self._write(b"".join(self._line(one) + b"\n" for one in lost[i : i + _WRITTEN_AT_ONCE]))
        if omitted:
            self._write(b'{"omitted":%d}\n' % omitted)

    def _write(self, data: bytes) -> None:
        if self.target == "stderr":
            error_log.write_stderr(data)
        else:
            while not self._append(data):
                pass

    def _append(self, data: bytes) -> bool:
        """Append to the file; return False if it has been moved away instead."""
        fd = open_regular(self.target, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise OSError(errno.EPERM, "belongs to another user", self.target)
            if found.st_mode & 0o022:
                raise OSError(errno.EPERM, "others may write to it", self.target)
            size = found.st_size
            if size and size + len(data) > ROTATE_AT and _lock(fd):
                try:
                    with suppress(FileNotFoundError):
                        if os.path.samestat(os.stat(self.target), found):  # no other process has moved it
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


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _lock(fd: int) -> bool:
    """Lock a file for its rotation, unless that would wait or cannot be done."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
