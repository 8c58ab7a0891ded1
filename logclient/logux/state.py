"""The file in which a Logux client keeps its identity and the state of reception (option ``state``).

One client at a time uses the file. It holds a lock on another file, ``<file>.lock``, which is never deleted.
A forked child does not use the file: it belongs to the parent.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from logclient import threads
from logclient.descriptors import File, lifted
from logclient.errors import ConfigError
from logclient.files import open_regular
from logclient.logux.core import ALPHABET, Logux
from logclient.logux.messages import MAX_NUMBER
from logclient.standard import json, os

_MAX_SIZE = 4096  # bytes of the file
_NEW = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class State:
    """The file of a client, read once and written when something has changed.

    Errors after the start are reported as `warn_limited(kind, text)`; a ConfigError: the file cannot be used.
    """

    def __init__(self, path: str, warn_limited: Callable[[str, str], object]) -> None:
        self.path = path
        self.pid = os.getpid()
        self._warn = warn_limited
        self._mutex = threads.RLock()
        self._written: dict[str, Any] = {}
        self._core: Logux | None = None
        self._lock = File()
        try:
            self._lock = File(os.open(f"{path}.lock", os.O_RDWR | _NEW, 0o600))
            found = self._read()
        except OSError as error:
            self.release()
            raise ConfigError(f"state: {path}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            held = isinstance(error, (BlockingIOError, PermissionError))
            why = "another client has it" if held else f"cannot be locked: {error.strerror or error}"
            self._report(f"{why}; this one has a client id of its own, and keeps nothing")
            return
        if found is not None:
            try:
                self._written = _checked(found)
            except (ValueError, RecursionError):
                self._report("damaged; going on under a new client id, and nothing counts as received")

    def _read(self) -> bytes | None:
        try:
            fd = open_regular(self.path)
        except FileNotFoundError:
            return None
        try:
            owner = os.fstat(fd).st_uid
            if owner != os.geteuid():
                raise OSError(f"belongs to uid {owner}, not to us")
            return os.read(fd, _MAX_SIZE + 1)
        finally:
            os.close(fd)

    def _report(self, words: str) -> None:
        self._warn(f"state {self.path}", f"state: {self.path}: {words}")

    def begin(self, core: Logux) -> None:
        """Give a new core the saved state. In a forked child, release the file instead."""
        if os.getpid() != self.pid:
            self._mutex = threads.RLock()  # another thread of the parent may hold it
            self._close()
        elif self._lock.fd >= 0:
            self._core = core
            if self._written:
                core.resume(**self._written)
            self.keep(core.received)

    def keep(self, received: int | float) -> None:
        """Save our identity, and that everything up to `received` was received and handled."""
        with self._mutex:
            core = self._core
            if core is None:
                return
            now = {"client": core.client, "clients": core.clients, "received": received}
            if now == self._written:
                return
            try:
                self._write(json.dumps(now).encode() + b"\n")
                self._written = now
            except OSError as error:
                self._report(f"cannot be written: {error.strerror or error}")

    def _write(self, text: bytes) -> None:
        part = f"{self.path}.new"  # what stands there may be a FIFO, or of another user
        with suppress(FileNotFoundError):
            os.unlink(part)
        fd = lifted(os.open(part, os.O_WRONLY | os.O_EXCL | _NEW, 0o600))
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
        os.replace(part, self.path)

    def release(self) -> None:
        """Stop writing, so that another client may use the file."""
        with self._mutex:
            self._close()

    def _close(self) -> None:
        self._core = None
        if self._lock.is_ours and os.getpid() == self.pid:
            with suppress(OSError):
                fcntl.flock(self._lock.fd, fcntl.LOCK_UN)  # a forked child may still have a copy of it
        self._lock.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self._close()


def _checked(text: bytes) -> dict[str, Any]:
    """Parse a file; raise a ValueError if `State.keep` has not written it."""
    if len(text) > _MAX_SIZE:
        raise ValueError("too long")
    found = json.loads(text)
    if not isinstance(found, dict) or found.keys() != {"client", "clients", "received"}:
        raise ValueError("other names")
    client, clients, received = found["client"], found["clients"], found["received"]
    if not isinstance(client, str) or not 0 < len(client) <= 64 or not set(client) <= set(ALPHABET):
        raise ValueError("client")
    if type(clients) is not int or not 0 < clients < MAX_NUMBER:
        raise ValueError("clients")
    if type(received) not in (int, float) or not 0 <= received < MAX_NUMBER:
        raise ValueError("received")
    return found
