"""Waiting and giving up while a transport makes a connection."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterable

from logclient.config import Secret
from logclient.descriptors import Identity, identity
from logclient.errors import CredentialError
from logclient.standard import os, time
from logclient.threads import wait_ready

STOP_CHECK_S = 0.05
"""Seconds between two calls of ``stopped``."""


class Attempt:
    """An attempt to connect.

    Args:
        stopped: returns whether to give up; called again and again.
        warn: reports, as a text, something that does not keep the connection from being made.
    """

    def __init__(
        self,
        stopped: Callable[[], bool] = lambda: False,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.stopped = stopped
        self.warn = warn
        self._waits_for: list[tuple[int, Identity | None]] = []

    def wait(self, reading: list[int], writing: list[int], deadline: float, late: str) -> bool:
        """Sleep until a descriptor is ready, or until it is time to call this again; return whether one is.

        Raises:
            TimeoutError: it is later than the monotonic second `deadline`; the text is `late`.
            InterruptedError: none is ready, and ``stopped`` says to give up.
            ConnectionAbortedError: a descriptor is not ours any more.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(late)
        known = self._waits_for = [(fd, identity(fd)) for fd in reading + writing]
        try:
            ready = self._sleep(reading, writing, min(left, STOP_CHECK_S))
        finally:
            self._waits_for = []
        if any(identity(fd) != file for fd, file in known):
            raise ConnectionAbortedError(errno.ECONNABORTED, "the program has closed the descriptor")
        if not ready and self.stopped():
            raise InterruptedError("stopped while connecting")
        return ready

    def _sleep(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        return wait_ready(reading, writing, seconds)

    def abandon(self) -> None:
        """In a forked child: release the connection that the parent is making.

        Else the peer would not see its end there. Its object belongs to a thread that does not exist here.
        """
        for fd, known in self._waits_for:
            if known == identity(fd) and stat.S_ISSOCK(os.fstat(fd).st_mode):  # else it is ZeroMQ's
                os.close(fd)


def renew(secrets: Iterable[tuple[str, Secret | None]], attempt: Attempt) -> None:
    """Read secrets anew, by the names of their options, before a connection that needs them.

    One that cannot be read keeps its last value, and `attempt` reports that.

    Raises:
        CredentialError: a secret cannot be read, and never was.
    """
    for name, secret in secrets:
        if secret is None:
            continue
        try:
            secret.renew()
        except ValueError as error:
            if not secret.is_known:
                raise CredentialError(f"{name}: {error}") from None
            attempt.warn(f"{name}: {error}; the last value is used")
